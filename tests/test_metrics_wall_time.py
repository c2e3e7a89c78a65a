"""Where the wall time went: steps, prefills, idle time, and what cannot be told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ddtree_metrics as ddt
from ddtree_metrics.metrics import WALL_TIME_COLUMNS, wall_time

FAILING = Path(__file__).resolve().parent.parent / "fixtures" / "failing"
SECOND = 1_000_000


def decode(times_s: list[float], **more: Any) -> pd.DataFrame:
    """Decode lines of one stream at some seconds; as read from a log if ``line_why`` is given."""
    us = np.round(np.array(times_s) * SECOND).astype(np.int64)
    made = {"time_us": us, "running": 4, "accept_len": 2.0, "gen_throughput": 300.0, "stream": "s", **more}
    return pd.DataFrame(made)


def prefill(times_s: list[float], running: Any = 4, stream: str = "s") -> pd.DataFrame:
    return pd.DataFrame({"time_us": [round(t * SECOND) for t in times_s], "running": running, "stream": stream})


def seconds(made: pd.DataFrame) -> dict[str, float]:
    return {what: round(value, 6) for what, value in zip(made["what"], made["seconds"], strict=True)}


def test_prefill_stalls_take_92_percent_of_the_wall_time_of_the_report() -> None:
    # From the stamps of the file itself: 160 Decode lines, 159 windows, 3044.957 s. 79 hold no prefill: 120.047 s, median 1.521 s,
    # all with 10 requests. 80 hold one: 2924.910 s. Their steps take 80 * 1.521 = 121.680 s as usual, so the prefills take
    # 2924.910 - 121.680 = 2803.230 s: 2803.230 / 3044.957 = 92.06 % of all, 2803.230 / 2924.910 = 95.84 % of these windows.
    log = ddt.read_text(FAILING / "prefill-stalls.log")
    made = wall_time(log.decode, log.prefill, log.events)
    assert made["what"].tolist() == ["prefill_between", "step"]
    assert made["seconds"].tolist() == pytest.approx([2803.230, 120.047 + 121.680], abs=1e-6)
    assert made["share"].tolist() == pytest.approx([0.92061, 0.07939], abs=1e-5)
    assert made["intervals"].tolist() == [80, 159]
    assert made["interval_seconds"].tolist() == pytest.approx([2924.910, 3044.957], abs=1e-6)
    assert made.attrs["usual_ms"] == {10: 1521.0}
    assert "92% of the wall time" in made.attrs["sentence"]
    assert "96% of the intervals" in made.attrs["sentence"]


def test_the_usual_window_is_the_same_before_and_after_the_stalls() -> None:
    # 20 windows before the first stall, and the same again after it: step time itself did not move
    log = ddt.read_text(FAILING / "prefill-stalls.log")
    clean = log.decode[log.decode["line_why"].isna()]
    early, late = clean["line_us"].iloc[:19].median(), clean["line_us"].iloc[19:].median()
    assert late / early == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("read", [False, True])
def test_the_rest_of_a_window_is_of_what_lies_in_it(read: bool) -> None:
    # windows of 2 s; one of 12 s with a prefill for which four requests wait, one of 22 s with a retraction
    lines = decode([0, 2, 4, 6, 18, 20, 42, 44])
    if read:
        lines["line_why"] = ["first", None, None, None, "prefill_between", None, "retraction", None]
    events = pd.DataFrame({"kind": ["retraction"], "time_us": [30 * SECOND]})
    made = wall_time(lines, prefill([7]), events)
    assert seconds(made) == {"retraction": 20.0, "step": 14.0, "prefill_between": 10.0}
    assert made["share"].sum() == pytest.approx(1.0)
    assert made["stream"].tolist() == ["s"] * 3


def test_a_prefill_when_nothing_was_running_is_not_told_from_the_idle_time_before_it() -> None:
    lines = decode([0, 2, 4, 6, 106, 108], line_why=["first", None, None, None, "prefill_between", None])
    assert seconds(wall_time(lines, prefill([105], running=0))) == {"idle_or_prefill": 98.0, "step": 10.0}
    # nor where the line does not say what was running
    assert seconds(wall_time(lines, prefill([105], running=[None]))) == {"idle_or_prefill": 98.0, "step": 10.0}
    # another stream's prefill says nothing of this one
    assert seconds(wall_time(lines, pd.concat([prefill([104]), prefill([105], 0, "other")]))) == {"prefill_between": 98.0, "step": 10.0}


def test_idle_time_without_a_reason_is_a_gap() -> None:
    assert seconds(
        wall_time(decode([0, 2, 4, 6, 8, 108, 110, 112, 114], gen_throughput=[160, 160, 160, 160, 160, 3.2, 160, 160, 160]))
    ) == {
        "gap": 98.0,
        "step": 16.0,
    }


@pytest.mark.parametrize(("why", "what"), [("suppressed", "suppressed"), ("outside_window", "outside_window"), ("restart", "restart")])
def test_intervals_of_which_nobody_knows_the_steps_are_put_down_as_a_whole(why: str, what: str) -> None:
    lines = decode([0, 2, 4, 16, 18], line_why=["first", None, None, why, None])
    assert seconds(wall_time(lines)) == {what: 12.0, "step": 6.0}


def test_the_usual_window_goes_by_the_number_of_running_requests() -> None:
    # 40 steps take 1 s with one request, 2.5 s with four: with two, on the line between them, 1.5 s
    lines = decode(
        [0, 1, 2, 4.5, 7, 17],
        running=[1, 1, 1, 4, 4, 2],
        gen_throughput=[80, 80, 80, 128, 128, 16],
        line_why=["first", None, None, None, None, "prefill_between"],
    )
    made = wall_time(lines, prefill([9]))
    assert made.attrs["usual_ms"] == {1: 1000.0, 4: 2500.0}
    assert seconds(made) == {"prefill_between": 8.5, "step": 8.5}


def test_where_every_interval_holds_a_prefill_the_part_of_the_steps_is_not_known_and_that_is_said() -> None:
    lines = decode([0, 10, 20], line_why=["first", "prefill_between", "prefill_between"])
    made = wall_time(lines, prefill([5, 15]))
    assert seconds(made) == {"prefill_between": 20.0}
    assert made.attrs["unsplit_s"] == 20.0
    assert made.attrs["usual_ms"] == {}


def test_a_window_shorter_than_usual_gives_the_prefill_nothing_and_never_less() -> None:
    lines = decode([0, 2, 4, 5], line_why=["first", None, None, "prefill_between"])
    assert seconds(wall_time(lines, prefill([4.5]))) == {"step": 5.0, "prefill_between": 0.0}


def test_steps_are_split_as_windows_are_and_bursts_are_steps() -> None:
    # 40 ms steps; one interval of 2.04 s with a prefill; two lines written together, and the one after them
    us = [0, 40_000, 80_000, 120_000, 2_160_000, 2_240_000, 2_240_010, 2_280_010]
    why = ["first", None, None, None, "prefill_between", "burst", "burst", "burst"]
    step_us = [40_000 if w is None else None for w in why]
    steps = pd.DataFrame({"monotonic_us": us, "time_us": us, "batch_size": 1, "step_us": step_us, "step_why": why, "stream": "s"})
    made = wall_time(steps, pd.DataFrame({"time_us": [1_000_000], "running": [1], "stream": "s"}))
    assert seconds(made) == {"prefill_between": 2.0, "step": 0.28001}


def test_copies_of_other_ranks_take_no_time_and_streams_are_their_own() -> None:
    lines = pd.concat(
        [
            decode([0, 2, 4], line_why=["first", None, None]),
            decode([0, 2, 4], line_why="duplicate_rank"),
            decode([1, 4, 7], stream="t", line_why=["first", None, None]),
        ],
        ignore_index=True,
    )
    made = wall_time(lines)
    assert made[["stream", "what", "seconds", "share", "intervals"]].to_numpy().tolist() == [
        ["s", "step", 4.0, 1.0, 2],
        ["t", "step", 6.0, 1.0, 2],
    ]


@pytest.mark.parametrize("lines", [decode([]), decode([5]), pd.DataFrame({"time_us": [], "batch_size": []})])
def test_a_log_without_an_interval_has_no_wall_time(lines: pd.DataFrame) -> None:
    made = wall_time(lines, prefill([]))
    assert list(made.columns) == list(WALL_TIME_COLUMNS)
    assert (len(made), made.attrs["sentence"], made.attrs["unsplit_s"]) == (0, None, 0.0)


def test_the_real_capture_adds_up_and_both_kinds_of_line_agree() -> None:
    log = ddt.read_text(FAILING.parent / "real" / "A" / "journal.export.zst")
    by_step, by_line = (wall_time(frame, log.prefill, log.events) for frame in (log.steps, log.decode))
    span = sum(float(part["monotonic_us"].max() - part["monotonic_us"].min()) for _, part in log.steps.groupby("stream")) / 1e6
    assert by_step["seconds"].sum() == pytest.approx(span, abs=1e-6)
    # with --decode-log-interval 1 a Decode line is a step
    one, other = (made.groupby("what")["seconds"].sum() for made in (by_step, by_line))
    assert one.to_dict() == pytest.approx(other.to_dict(), rel=0.02)
