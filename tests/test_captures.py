"""The captures of a real server: every line comes back with the engine's own values, and every oddity is what it is."""

from __future__ import annotations

import numpy as np
import pytest

import ddtree_metrics as ddt
from tests.captures import UNIT, journal_export, summary, truth, truth_steps


@pytest.fixture(scope="module")
def a() -> ddt.Log:
    return ddt.read_text(journal_export("A"))


@pytest.fixture(scope="module")
def c() -> ddt.Log:
    return ddt.read_text(journal_export("C"))


def test_a_every_step_comes_back_with_the_engines_values(a: ddt.Log) -> None:
    rows = a.table("steps").to_pylist()
    steps = truth_steps("A")

    assert len(rows) == len(steps) == 545
    for row, step in zip(rows, steps, strict=True):
        assert row["accepted_drafts"] == step["accepted"]
        assert row["commit_lens"] == step["committed"]
        assert row["nodes"] == step["nodes"]
        assert row["batch_size"] == len(step["rids"])
        assert row["tokens"] == sum(step["committed"])


def test_a_step_lines_are_stamped_within_the_time_that_the_capture_states(a: ddt.Log) -> None:
    # README of the capture: journal time minus truth time of the metrics lines is 71.353 ms at most, 0.16 ms at least
    late = [
        (row["time_us"] - step["time_ns"] / 1e3) / 1e3 for row, step in zip(a.table("steps").to_pylist(), truth_steps("A"), strict=True)
    ]

    assert min(late) > 0.1
    assert max(late) < 72


def test_a_no_line_is_broken_and_every_kind_is_counted_as_the_capture_says(a: ddt.Log) -> None:
    kinds = summary("A")["journal"]["kinds"]

    assert a.coverage.broken == []
    assert a.coverage.parsed["steps"] == kinds["metrics"]
    assert a.coverage.parsed["decode"] == kinds["decode_batch"]
    assert a.coverage.parsed["prefill"] == kinds["prefill_batch"]
    assert a.coverage.parsed["servers"] == kinds["server_args"]
    events = a.request_lines["event"].value_counts()
    assert events["received"] == kinds["receive"]
    assert events["finished"] == kinds["finish"]
    assert events["access"] == kinds["http_access"]


def test_a_decode_lines_say_the_mean_commit_of_the_same_step(a: ddt.Log) -> None:
    # with --decode-log-interval 1 there is one Decode line a step; accept len is the mean of commit_lens, printed with 2 decimals
    steps, decode = a.table("steps").to_pylist(), a.table("decode").to_pylist()

    assert len(decode) == len(steps)
    for step, line in zip(steps, decode, strict=True):
        assert line["accept_len"] == pytest.approx(np.mean(step["commit_lens"]), abs=0.0051)
        assert line["running"] in (step["batch_size"], step["batch_size"] - 1, 0) or line["running"] <= step["batch_size"]


def test_a_the_two_processes_are_two_streams_and_the_second_is_a_restart(a: ddt.Log) -> None:
    steps = a.steps

    assert steps["stream"].nunique() == 2
    assert list(steps.groupby("stream", sort=False).size()) == [303, 242]  # 299 + 4 and 236 + 6, the warm-up's included
    assert steps.loc[steps["step_why"].isin(["first", "restart"]), "step_why"].tolist() == ["first", "restart"]


def test_a_intervals_with_a_prefill_in_them_are_no_step_times(a: ddt.Log) -> None:
    """The truth says when each prefill began; a step time must never contain one."""
    rows = a.table("steps").to_pylist()
    steps = truth_steps("A")
    prefills = sorted(p["mono_ns"] for p in truth("A") if p["kind"] == "prefill")
    for i in range(1, len(rows)):
        between = any(steps[i - 1]["mono_ns"] < p < steps[i]["mono_ns"] for p in prefills)
        if between:
            assert rows[i]["step_us"] is None, i
        elif steps[i]["run"] == steps[i - 1]["run"]:
            assert rows[i]["step_us"] is not None, i


def test_a_step_times_are_those_of_the_engine(a: ddt.Log) -> None:
    # the capture's own summary: median of the clean intervals of run 1 and 2, all batch sizes, without the warm-up
    runs = summary("A")["runs"]
    steps = a.steps[a.steps["step_us"].notna()]
    for (_, part), run in zip(steps.groupby("stream", sort=False), ("1", "2"), strict=True):
        median_ms = float(part["step_us"].astype(float).median()) / 1e3
        assert median_ms == pytest.approx(runs[run]["step_ms_clean"]["median"], rel=0.02)


def test_a_server_starts_have_their_settings_and_their_restart_is_seen(a: ddt.Log) -> None:
    starts = a.table("servers").to_pylist()

    assert len(starts) == 2
    for start in starts:
        assert start["algorithm"] == "STANDALONE"
        assert (start["num_draft_tokens"], start["num_steps"], start["topk"]) == (12, 4, 2)
        assert (start["context_len"], start["max_total_tokens"], start["decode_log_interval"]) == (8192, 16384, 1)
    before, after = (dict(s["args"]) for s in starts)
    assert before["reasoning_parser"] != after["reasoning_parser"]
    assert before["speculative_draft_model_path"] != after["speculative_draft_model_path"]


def test_a_prompts_and_answers_are_nowhere_in_the_tables(a: ddt.Log) -> None:
    for name in ("request_lines", "events", "servers"):
        text = str(a.table(name).to_pylist())
        assert "'input_ids'" not in text
        assert "text=" not in text
        assert "GenerateReqInput" not in text


def test_a_progress_bars_with_carriage_returns_are_read_as_lines(a: ddt.Log) -> None:
    # 1492 entries; the four with control characters (length-prefixed in the export) hold carriage returns
    assert summary("A")["journal"]["entries"] == 1492
    assert a.coverage.lines >= 1492
    assert a.coverage.bad_bytes == 0


def test_a_the_budget_is_never_exceeded_and_nodes_count_the_root(a: ddt.Log) -> None:
    # 12 draft tokens a step: the root and 11 nodes
    assert a.counts.root == 1
    assert a.counts.bonus == 1
    assert a.counts.commit_minus_accepted == {1: sum(len(s["rids"]) for s in truth_steps("A"))}


def test_c_what_journald_kept_comes_back_and_what_it_lost_is_said(c: ddt.Log) -> None:
    rows = c.table("steps").to_pylist()
    lost = [e for e in c.table("events").to_pylist() if e["kind"] == "suppressed"]

    assert len(rows) == 66
    assert [e["count"] for e in lost] == [11, 118, 132]
    assert {e["unit"] for e in lost} == {UNIT}
    assert (c.coverage.suppressed_notices, c.coverage.suppressed_lines) == (3, 261)  # 11 + 118 + 132
    assert "at least 261 lines missing" in str(c.coverage)


def test_c_every_kept_line_has_the_values_of_a_step_of_the_truth_in_order(c: ddt.Log) -> None:
    steps = truth_steps("C")
    at = 0
    for row in c.table("steps").to_pylist():
        while (row["accepted_drafts"], row["commit_lens"]) != (steps[at]["accepted"], steps[at]["committed"]) or abs(
            row["time_us"] - steps[at]["time_ns"] / 1e3
        ) > 5_000:
            at += 1
            assert at < len(steps), row["where"]
        at += 1


def test_c_no_step_time_spans_a_suppression(c: ddt.Log) -> None:
    """Two lines beside each other in the journal may be many steps apart; the truth says how many."""
    steps = truth_steps("C")
    times = np.array([s["time_ns"] / 1e3 for s in steps])
    rows = c.table("steps").to_pylist()
    index = [int(np.argmin(np.abs(times - row["time_us"]))) for row in rows]
    apart = [i for i in range(1, len(rows)) if index[i] - index[i - 1] != 1]

    # three holes of 3, 54 and 63 steps, and each is a notice
    assert [index[i] - index[i - 1] for i in apart] == [3, 54, 63]
    assert [rows[i]["step_why"] for i in apart] == ["suppressed"] * 3
    assert all(rows[i]["step_us"] is None for i in apart)


def test_c_the_retraction_is_an_event(c: ddt.Log) -> None:
    assert [e["count"] for e in c.table("events").to_pylist() if e["kind"] == "retraction"] == [1]


def test_typed_records_come_one_by_one_as_lines_are_read() -> None:
    steps = ddt.iter_text(journal_export("A"))
    first = next(steps)

    assert isinstance(first, ddt.TreeStep)
    assert (first.commit_lens, first.accepted_drafts, first.batch_size) == ((3,), (2,), 1)
    assert sum(1 for _ in steps) == 544
