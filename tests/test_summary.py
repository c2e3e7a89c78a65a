"""``summarise`` and its table: the numbers of a real server's capture, small arithmetic, and logs that say nothing."""

from __future__ import annotations

import json
import warnings
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ddtree_metrics as ddt
from ddtree_metrics.errors import DDTreeWarning
from ddtree_metrics.summary import SUMMARY_VERSION, format_summary, summarise

REAL = Path(__file__).parent.parent / "fixtures" / "real"


@cache
def capture() -> Any:
    return summarise(ddt.read_text(REAL / "A" / "journal.export.zst"))


@cache
def truth() -> Any:
    return json.loads((REAL / "A" / "truth-summary.json").read_text())


def log_of(**frames: pd.DataFrame) -> SimpleNamespace:
    names = ("steps", "decode", "prefill", "servers", "events", "requests", "request_steps")
    return SimpleNamespace(**{**{name: pd.DataFrame() for name in names}, **frames}, coverage=None, counts=None)


def test_each_server_start_of_the_capture_has_its_true_numbers():
    runs = {line.name: line for line in capture().runs}
    assert list(runs) == ["run 1", "run 2"]
    for name, line in runs.items():
        true = truth()["runs"][name.removeprefix("run ")]
        assert line.steps == true["steps"]
        assert line.requests == true["requests"]
        assert line.request_steps == true["request_steps"]
        assert line.timed_steps == pytest.approx(true["step_ms_clean"]["n"], abs=2)
        assert line.step_time_p50_ms == pytest.approx(true["step_ms_clean"]["median"], rel=0.02)
        assert line.step_time_mean_ms == pytest.approx(true["step_ms_clean"]["mean"], rel=0.02)
        assert line.tokens_per_step_micro == pytest.approx(true["tokens_per_request_step"], rel=0.001)


def test_each_context_bin_of_the_capture_has_its_true_mean():
    # the truth has a bin of each run; both together are their mean, weighted by the number of step times
    lines = {line.name: line for line in capture().by_context}
    bins = [truth()["runs"][k]["context_bins_all"] for k in ("1", "2")]
    assert list(lines) == list(bins[0])
    for name, line in lines.items():
        parts = [b[name]["step_ms_clean"] for b in bins]
        n = sum(p["n"] for p in parts)
        mean = sum(p["n"] * p["mean"] for p in parts) / n
        assert line.request_steps == sum(b[name]["request_steps"] for b in bins)
        assert line.step_time_mean_ms == pytest.approx(mean, rel=0.02)


def test_warm_up_requests_are_left_out_and_counted():
    # 4 and 6 steps of the two warm-up requests
    assert capture().excluded["request-steps of the server itself (warm-up or health check)"] == 10


def test_micro_and_macro_are_different_means():
    # request a: 4 steps of 5 tokens; request b: 1 step of 1. micro 21 / 5 = 4.2, macro (5 + 1) / 2 = 3. 1000 * 4.2 / 20 ms = 210 tok/s
    rows = pd.DataFrame(
        {
            "request_id": list("aaaab"),
            "tokens": [5, 5, 5, 5, 1],
            "context_len": [100, 105, 110, 115, 900],
            "step_us": [20_000, 10_000, 20_000, 30_000, 20_000],
            "time_us": np.arange(5) * 20_000,
            "batch_size": 1,
        }
    )
    line = summarise(log_of(request_steps=rows, steps=rows)).total
    assert (line.steps, line.timed_steps, line.request_steps, line.requests) == (5, 5, 5, 2)
    assert line.tokens_per_step_micro == pytest.approx(4.2)
    assert line.tokens_per_step_macro == pytest.approx(3.0)
    assert line.step_time_p50_ms == pytest.approx(20.0)
    assert line.tok_per_s == pytest.approx(210.0)


def test_a_step_of_a_batch_counts_once_for_step_time():
    # one step of three requests at 90 ms, one of one at 30 ms: the mean over steps is 60 ms; the requests saw 90, 90, 90, 30: 75 ms
    rows = pd.DataFrame(
        {
            "request_id": list("abca"),
            "slot": [0, 1, 2, 0],
            "where": ["x:1"] * 3 + ["x:2"],
            "tokens": [3, 3, 3, 3],
            "context_len": [10, 20, 30, 13],
            "step_time_ms": [90.0, 90.0, 90.0, 30.0],
            "batch_size": [3, 3, 3, 1],
        }
    )
    line = summarise(log_of(request_steps=rows, steps=rows.iloc[:2])).total
    assert (line.steps, line.timed_steps, line.request_steps) == (2, 2, 4)
    assert line.step_time_mean_ms == pytest.approx(60.0)
    assert line.tok_per_s == pytest.approx(1000 * 3 / 75)


def test_stock_lines_of_a_longer_interval_are_windows_and_say_so():
    # interval 10: 10 * 2.5 tokens at 100 tok/s are 0.25 s, 25 ms a step
    n = 12
    decode = pd.DataFrame(
        {
            "time_us": 1_770_000_000_000_000 + np.arange(n) * 250_000,
            "line_us": [np.nan] + [250_000] * (n - 1),
            "running": 1,
            "tokens": 1000 + np.arange(n) * 25,
            "accept_len": 2.5,
            "gen_throughput": 100.0,
            "stream": "a",
        }
    )
    made = summarise(log_of(decode=decode))
    assert made.basis == "Decode batch lines, one for 10 steps"
    assert made.total.step_time_p50_ms == pytest.approx(25.0)
    assert made.total.tokens_per_step_micro == pytest.approx(2.5)
    assert made.total.tok_per_s == pytest.approx(100.0)
    assert "window" in made.notes[0]


def odd_logs() -> dict[str, SimpleNamespace]:
    rows = pd.DataFrame(
        {"request_id": "a", "tokens": [3, 4], "context_len": [5, 8], "step_us": [1000, 2000], "time_us": [0, 1000], "batch_size": 1}
    )
    return {
        "nothing": log_of(),
        "one step": log_of(steps=rows.iloc[:1], request_steps=rows.iloc[:1]),
        "all null": log_of(
            steps=rows, request_steps=rows.assign(tokens=None, context_len=None, step_us=None, request_id=None, time_us=None)
        ),
        "negative": log_of(steps=rows, request_steps=rows.assign(step_us=-1)),
        "infinite": log_of(steps=rows, request_steps=rows.assign(step_time_ms=np.inf)),
        "no requests": log_of(steps=pd.DataFrame({"commit_lens": [[3], [4, 5]], "batch_size": [1, 2], "step_us": [1000, 2000]})),
        "lists longer than the batch": log_of(steps=pd.DataFrame({"commit_lens": [[3, 9]], "batch_size": [1], "step_us": [1000]})),
        "zero throughput": log_of(decode=pd.DataFrame({"running": [1], "tokens": [5], "accept_len": [2.0], "gen_throughput": [0.0]})),
        "infinite throughput": log_of(
            decode=pd.DataFrame({"running": [0], "tokens": [5], "accept_len": [2.0], "gen_throughput": [np.inf]})
        ),
    }


@pytest.mark.parametrize("name", list(odd_logs()))
def test_a_log_that_says_little_gives_a_summary_without_nan(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DDTreeWarning)
        made = summarise(odd_logs()[name])
    text = format_summary(made)
    assert "nan" not in text
    assert " inf" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert json.loads(json.dumps(made.to_dict(), allow_nan=False))["schema_version"] == SUMMARY_VERSION


def test_an_empty_log_says_that_there_is_nothing_to_measure():
    assert "nothing to measure" in format_summary(summarise(log_of()))


@pytest.mark.parametrize("width", [60, 80])
def test_the_table_fits_its_width(width):
    lines = format_summary(capture(), width).splitlines()
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if "p50 ms" in line)
    row = next(line for line in lines if line.startswith("run 1"))
    assert len(head) == len(row)


def test_server_starts_are_named_by_time_and_by_what_they_changed():
    # the README of capture A: run 2 has another draft model and --reasoning-parser
    made = capture()
    assert [line.called for line in made.runs] == ["15:17:18", "15:19:17, draft model and reasoning parser changed"]
    assert "run 2: 15:19:17, draft model and reasoning parser changed" in format_summary(made)


def test_each_table_of_a_summary_has_heads_over_its_columns():
    lines = format_summary(capture(), 100).splitlines()
    for name in ("server start", "context, tokens"):
        head = next(i for i, line in enumerate(lines) if line.startswith(name))
        assert lines[head].split()[-7:] == lines[3].split()[-7:]
        for column in ("tok/step", "tok/s", "(macro)"):
            # numbers end where their head ends
            end = lines[head].index(column) + len(column)
            assert lines[head + 1][end - 1].isdigit()


def test_lost_lines_are_told():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DDTreeWarning)
        made = summarise(ddt.read_text(REAL / "C" / "journal.export.zst"))
    assert any("lower bounds" in note for note in made.notes)


def test_o17_whole_second_stamps_give_the_mean_step_time_with_its_bounds(tmp_path: Path) -> None:
    # 101 lines over 4 s: 4 s / 100 = 40 ms, and (4 - 1) / 100 to (4 + 1) / 100
    import ddtree_metrics as ddt

    line = "[2026-02-01 10:00:{:02d} TP0] DDTREE metrics: bs=1 budget=8 actual_nodes=[9] accepted_drafts=[3] commit_lens=[4]\n"
    path = tmp_path / "run.log"
    path.write_text("".join(line.format(second) * n for second, n in ((0, 24), (1, 25), (2, 25), (3, 25), (4, 2))))
    made = summarise(ddt.read_text(path, tz="UTC"))

    assert made.total.step_time_mean_ms is None
    assert any("the mean step time is 40 ms, and between 30 and 50 ms" in note for note in made.notes)


def test_a_bin_of_context_has_no_more_requests_than_the_log():
    # capture C loses lines: rows of three requests, and rows of nobody between them
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DDTreeWarning)
        made = summarise(ddt.read_text(REAL / "C" / "journal.export.zst"))
    assert made.by_context
    assert all(line.requests <= made.total.requests for line in made.by_context)


def test_lines_written_together_are_bounded_from_flush_to_flush():
    # 20 flushes of 63 lines, 2.5 s apart: 1197 lines after the first, in 47.5 s: 39.68 ms (47500 / 1198 = 39.65 to 47500 / 1196 = 39.72)
    stamps = np.repeat(np.arange(20) * 2_500_000, 63) + 1_770_000_000_000_000
    steps = pd.DataFrame(
        {"time_us": stamps, "tokens_per_step": 4.0, "batch_size": 1, "step_us": np.nan, "step_why": ["first"] + ["burst"] * 1259}
    )
    note = next(n for n in summarise(log_of(steps=steps)).notes if "written together" in n)
    assert "over 1197 steps in 1 stretch" in note
    assert "39.68 ms (between 39.65 and 39.72 ms)" in note


def test_decode_lines_of_several_requests_are_said_to_share_one_mean():
    n = 12
    decode = pd.DataFrame(
        {
            "time_us": 1_770_000_000_000_000 + np.arange(n) * 250_000,
            "line_us": [np.nan] + [250_000] * (n - 1),
            "running": 2,
            "tokens": 1000 + np.arange(n) * 25,
            "accept_len": 2.5,
            "gen_throughput": 200.0,
            "stream": "a",
        }
    )
    said = "steps with several requests share one mean"
    assert any(note.startswith(said) for note in summarise(log_of(decode=decode)).notes)
    assert not any(note.startswith(said) for note in summarise(log_of(decode=decode.assign(running=1, gen_throughput=100.0))).notes)
