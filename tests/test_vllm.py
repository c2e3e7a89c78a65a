"""vLLM: the windows of a real server become rows that say of steps what the engine itself knew, and nothing more."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ddtree_metrics as ddt
from ddtree_metrics.dialects import detect
from ddtree_metrics.steps.engine_windows import drafts_of, engine_windows
from ddtree_metrics.summary import summarise
from tests.captures import FIXTURES, journal_export

RUNS = (1, 2, 3, 5)  # the fourth start failed


@functools.cache
def f() -> ddt.Log:
    return ddt.read_text(journal_export("F"))


@functools.cache
def windows() -> pd.DataFrame:
    """Set what is worked out beside the truth of each window; both are in the order of the lines."""
    true = pd.DataFrame([json.loads(line) for line in (FIXTURES / "real" / "F" / "windows.jsonl").read_text().splitlines()])
    decode = f().decode.reset_index(drop=True)
    at = pd.to_datetime(decode["time"], utc=True).astype("int64") / 1e6
    assert np.abs(at - true["line_time"]).max() < 0.001
    return pd.concat([true, engine_windows(decode, f().servers).add_prefix("our_"), decode.add_prefix("row_")], axis=1)


def within(ours: pd.Series, true: pd.Series, share: float) -> bool:
    error = (ours / true - 1).abs()
    assert error.notna().any()
    return bool((error.dropna() <= share).all())


def test_the_two_lines_of_a_window_are_one_row_and_none_is_broken() -> None:
    # 36 + 43 + 23 + 11 window lines, 34 + 40 + 21 lines of drafts: so many rows have drafts
    assert len(f().decode) == 113
    assert f().decode["drafted"].notna().sum() == 95
    assert f().coverage.broken_lines == 0


def test_each_row_has_the_numbers_that_were_printed() -> None:
    w = windows()
    for ours, true in (("prompt_throughput", "prompt_tput"), ("gen_throughput", "gen_tput"), ("running", "running"), ("queued", "waiting")):
        assert (w[f"row_{ours}"].astype(float) == w[true].astype(float)).all()
    told = w["drafted"].notna()
    for ours, true in (("accepted", "accepted"), ("drafted", "drafted"), ("mean_accept_len", "mal")):
        assert (w.loc[told, f"row_{ours}"].astype(float) == w.loc[told, true].astype(float)).all()
        assert w.loc[~told, f"row_{ours}"].isna().all()


def test_the_lines_pair_up_wherever_the_batches_of_lines_end(tmp_path: Path) -> None:
    window = "(APIServer pid=7) INFO 11-30 08:30:{s:02} [loggers.py:335] Engine 000: Avg prompt throughput: 0.0 "
    window += "tokens/s, Avg generation throughput: 50.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.4%\n"
    drafts = "(APIServer pid=7) INFO 11-30 08:30:{s:02} [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 2.00, "
    drafts += "Accepted: {n} tokens, Drafted: 90 tokens, Avg Draft acceptance rate: 50.0%\n"
    text = "".join((window + "noise\n" * 997 + drafts).format(s=s, n=s) for s in range(40))
    (tmp_path / "server.log").write_text(text)
    decode = ddt.read(tmp_path / "server.log").decode
    assert decode["accepted"].tolist() == list(range(40))
    assert (decode["gen_throughput"] == 50.0).all()


def test_drafts_of_every_window_are_exact_or_null() -> None:
    w = windows()[lambda x: x["our_drafts"].notna()]
    assert len(w) == 95
    assert (w["our_drafts"] == w["t_drafts"]).all()


@pytest.mark.parametrize("run", RUNS)
def test_tokens_per_step_of_each_start_are_within_2_percent_of_every_engine_step(run: int) -> None:
    """The engine's own, over whole runs: 2.056, 1.969, 3.001 with n-gram drafts where 5.181 is printed, and 1.0."""
    line = next(x for x in summarise(f()).runs if x.name.startswith(f"run {run}"))
    assert line.tokens_per_step_micro == pytest.approx({1: 2.056, 2: 1.969, 3: 3.001, 5: 1.0}[run], rel=0.02)


def test_step_times_are_told_in_steady_windows_only_and_are_right_there() -> None:
    w = windows()
    steady = w["our_step_time_ms"].notna()
    # 9, 10, 9 and 0 windows are steady by the engine's own account
    assert [int((steady & (w["run"] == run)).sum()) for run in RUNS] == [9, 10, 9, 0]
    assert within(w.loc[steady, "our_steps"], w.loc[steady, "t_steps"], 0.028)
    assert within(w.loc[steady, "our_step_time_ms"], w.loc[steady, "t_step_period_ms"], 0.035)
    assert set(w.loc[~steady & (w["gen_tput"] > 0), "our_step_why"]) == {"not_steady", "first"}


def test_the_length_and_the_tokens_of_a_window_are_within_a_percent() -> None:
    w = windows()[lambda x: x["gen_tput"] > 0]
    assert within(w["our_window_ms"] / 1000, w["t_window_s"], 0.009)
    assert within(w["our_generated"], w["t_gen_tokens"], 0.0042)


def test_no_row_of_a_window_has_a_context_length() -> None:
    assert np.isnan(f().basis.context).all()
    assert any("no line has a context length" in note for note in f().basis.notes)


def test_an_iteration_line_is_a_step_without_tokens_or_a_prefill() -> None:
    # 1621 and 2154 lines; the rest, with a prompt in them, are prefills
    steps, prefill = f().steps, f().prefill
    assert (len(steps), len(prefill)) == (1621 + 2154 - 54, 54)
    assert steps["step_ms"].notna().all()
    assert steps["tokens"].isna().all()


def test_the_dialect_is_found_without_being_named() -> None:
    line = "INFO 06-06 14:20:34 [loggers.py:116] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
    line += "Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 9.5%"
    assert [x.name for x in detect([line])] == ["vllm"]


def test_sums_since_the_start_are_never_taken_for_a_window(tmp_path: Path) -> None:
    v0 = "INFO 10-16 19:05:47 metrics.py:367] Speculative metrics: Draft acceptance rate: 0.642, System efficiency: 0.598, "
    v0 += "Number of speculative tokens: 3, Number of accepted tokens: 8547, Number of draft tokens: 13311, "
    v0 += "Number of emitted tokens: 10616.\n"
    (tmp_path / "v0.log").write_text(v0)
    (row,) = ddt.read(tmp_path / "v0.log").decode.to_dict("records")
    assert pd.isna(row["accepted"])
    assert pd.isna(row["drafted"])
    assert dict(row["extra"])["Number of emitted tokens"] == "10616"


def test_nothing_accepted_leaves_drafts_unknown() -> None:
    assert np.isnan(drafts_of(0, 207, 1.0, (0.0, 0.0, 0.0)))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=400))
@settings(max_examples=200, deadline=None)
def test_drafts_worked_out_from_printed_numbers_are_right_or_null(runs: list[int]) -> None:
    """Each draft has four tokens of which some are accepted; the line prints the mean with two decimals, rates with three."""
    n, accepted = len(runs), sum(runs)
    rates = tuple(round(sum(run > i for run in runs) / n, 3) for i in range(4))
    made = drafts_of(accepted, 4 * n, round(1 + accepted / n, 2), rates)
    assert np.isnan(made) or made == n
    if accepted and n <= 200:
        assert made == n or np.isnan(made)


def test_the_year_of_a_stamp_without_one_is_said_to_be_guessed(tmp_path: Path) -> None:
    line = "INFO 06-06 14:20:34 [loggers.py:116] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
    (tmp_path / "a.log").write_text(line + "Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 9.5%\n")
    (row,) = ddt.read(tmp_path / "a.log").decode.to_dict("records")
    assert (row["time"].month, row["time"].day, row["time"].hour) == (6, 6, 14)
    assert row["time_flag"] == "year_guessed"


V0 = (
    "INFO 10-16 19:05:{s:02} metrics.py:345] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 40.0 "
    "tokens/s, Running: 1 reqs, "
    "Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 9.2%, CPU KV cache usage: 0.0%.\n"
    "INFO 10-16 19:05:{s:02} metrics.py:367] Speculative metrics: Draft acceptance rate: 0.642, System efficiency: 0.598, Number of "
    "speculative tokens: 3, Number of accepted tokens: {a}, Number of draft tokens: {d}, Number of emitted tokens: {e}.\n"
)


def test_counts_since_the_start_become_differences_and_begin_anew_with_the_server(tmp_path: Path) -> None:
    # 600 drafted by threes are 200 steps, 400 emitted are 2 tokens a step; in the next window 300 of 100 steps are 3
    sums = [(0, 0, 0), (500, 600, 400), (800, 900, 700), (10, 30, 20)]
    (tmp_path / "v0.log").write_text("".join(V0.format(s=10 * k, a=a, d=d, e=e) for k, (a, d, e) in enumerate(sums)))
    log = ddt.read(tmp_path / "v0.log")
    told = engine_windows(log.decode, log.servers)
    assert told["tokens_per_step"].tolist()[1:3] == [2.0, 3.0]
    assert told["request_steps"].tolist()[1:3] == [200.0, 100.0]
    assert told["tokens_per_step"].iloc[[0, 3]].isna().all()
