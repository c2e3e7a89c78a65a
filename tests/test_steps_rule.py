"""One rule of step times: the reader and the metrics ask the same one, and the order in the file decides what lies between two lines."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ddtree_metrics as ddt
from ddtree_metrics import tables
from ddtree_metrics.metrics import decode_step_times, log_interval, step_times, steps_from_decode
from ddtree_metrics.records import TABLES
from ddtree_metrics.schema import arrow_schema
from ddtree_metrics.steps.intervals import gaps_among
from ddtree_metrics.steps.speculation import speculative
from ddtree_metrics.steps.streams import Streams

FIXTURES = Path(__file__).parent.parent / "fixtures"
FAILING = FIXTURES / "failing"
T0 = 1_767_225_600_000_000


def texts(values: Any) -> list[str | None]:
    return [None if pd.isna(x) else str(x) for x in values]


def same_answers(steps: pd.DataFrame, **others: pd.DataFrame) -> None:
    """Assert that a frame without what the reader computed gives what the reader computed."""
    made = step_times(steps.drop(columns=["step_us", "step_why"]), **others)
    assert texts(made["step_why"]) == texts(steps["step_why"])
    np.testing.assert_allclose(made["step_time_ms"].to_numpy(float), steps["step_us"].to_numpy(float, na_value=np.nan) / 1000.0, atol=1e-9)


@pytest.mark.parametrize("capture", ["A", "C"])
def test_a_frame_of_a_capture_gives_the_step_times_that_the_reader_gave(capture: str) -> None:
    log = ddt.read_text(FIXTURES / "real" / capture / "journal.export.zst")
    same_answers(log.steps, prefill=log.prefill, events=log.events, servers=log.servers)


_KINDS = ("step", "step", "step", "step", "prefill", "retraction", "suppressed", "server", "restart")
_WAITS = st.sampled_from([0, 40, 99, 100, 20_000, 40_000, 41_000, 300_000, 450_000, 2_000_000, 6_000_000, -5_000])


def _row(kind: str, us: int, number: int, coarse: bool, pid: int | None) -> tuple[str, dict[str, Any]]:
    stamp = us // 1_000_000 * 1_000_000 if coarse else us
    row: dict[str, Any] = {
        "time": datetime.fromtimestamp(stamp // 1_000_000, timezone.utc).replace(microsecond=stamp % 1_000_000),
        "time_resolution_us": 1_000_000 if coarse else 1,
        "host": "gpu1",
        "unit": "sglang.service",
        "pid": pid,
        "where": f"run.log:{number}",
    }
    if kind == "step":
        return "steps", row | {"batch_size": 1, "commit_lens": [4], "steps": 1}
    if kind == "prefill":
        return "prefill", row
    if kind == "server":
        return "servers", row | {"args": [("tp_size", "1")]}
    return "events", row | {"kind": kind}


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(_KINDS), _WAITS, st.sampled_from([7, 7, 7, 8])), min_size=1, max_size=80), st.booleans())
def test_the_reader_and_the_metrics_answer_alike_on_any_lines(lines: list[tuple[str, int, int]], coarse: bool) -> None:
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ("steps", "prefill", "events", "servers")}
    numbers: dict[str, list[int]] = {name: [] for name in rows}
    us = T0
    for number, (kind, wait, pid) in enumerate(lines, 1):
        us += wait
        name, row = _row(kind, us, number, coarse, pid)
        rows[name].append(row)
        numbers[name].append(number)
    batches = {k: pa.RecordBatch.from_pylist(v, schema=arrow_schema(TABLES[k])) for k, v in rows.items() if v}
    read = Streams().feed(batches, {k: np.array(numbers[k], dtype=np.int64) for k in batches})
    if "steps" not in read:
        return
    frames = {k: tables.to_pandas(pa.Table.from_batches([b])) for k, b in read.items()}
    if "events" in frames:  # without what the reader found itself
        frames["events"] = frames["events"][frames["events"]["where"].notna() & (frames["events"]["kind"] != "gap")]
    same_answers(frames.pop("steps"), **{k: v for k, v in frames.items() if k != "decode"})


def test_four_hundred_rows_have_as_many_gaps_for_the_metrics_as_for_the_reader() -> None:
    # 300 steps of 10 ms, then 100 of 150 ms: 15 times the usual of the whole log, but 1 time that of their neighbours. One interval,
    # the first slow one, has fast ones before it and slow ones after it: median of both sides 80 ms, no gap.
    us = T0 + np.concatenate([[0], np.cumsum(np.repeat([10_000, 150_000], [300, 100]))])
    made = step_times(pd.DataFrame({"time_us": us}))
    assert texts(made["step_why"]) == ["first", *[None] * 400]


def test_a_gap_is_found_whatever_share_of_the_intervals_is_slow() -> None:
    # 96 % take 500 ms; among 400 that take 10 ms one of 300 ms is 30 times its neighbours
    dt = np.concatenate([np.full(9600, 500_000), np.full(200, 10_000), [300_000], np.full(200, 10_000)])
    gaps, usual = gaps_among(dt, np.ones(len(dt), dtype=bool))
    assert gaps.tolist() == [9800]
    assert usual.tolist() == [10_000.0]


def test_an_interval_longer_than_any_step_is_a_gap_and_one_as_long_is_none() -> None:
    # nothing is beside it: only the longest step, 5 s, can tell
    for us, reason in ((5_000_000, None), (5_000_001, "gap")):
        assert texts(step_times(pd.DataFrame({"monotonic_us": [0, us]}))["step_why"]) == ["first", reason]


# -- windows of Decode lines ---------------------------------------------------------------------------------------------------


def test_the_order_in_the_file_decides_which_window_a_prefill_lies_in() -> None:
    # lines 1, 2, prefill, 3, 4; the prefill has the second of line 2. Windows before and after it: 1000 * 1 * 3 / 120 = 25 ms
    log = ddt.read_text(FAILING / "order-in-one-second.log")
    for decode in (log.decode, log.decode.drop(columns=["line_us", "line_why"])):
        made = decode_step_times(decode, prefill=log.prefill, events=log.events)
        assert texts(made["step_why"]) == [None, None, "prefill_between", None]
        assert made["step_time_ms"].tolist()[:2] == [25.0, 25.0]
    # 120 tokens a line are 40 steps of 3 tokens
    assert log.decode_steps.attrs["log_interval"] == 40
    ms = log.decode_steps["step_ms"].to_numpy(float)
    np.testing.assert_allclose(ms, [25.0, 25.0, np.nan, 25.0])


def test_steps_from_decode_takes_no_step_across_a_prefill() -> None:
    # one line a step: 2 tokens a line and step, 40 ms apart; the prefill comes 10 ms before the fourth line
    lines = pd.DataFrame(
        {
            "time_us": T0 + 300 + np.arange(6) * 40_000,
            "running": 1,
            "tokens": 100 + 2 * np.arange(6),
            "accept_len": 2.0,
            "gen_throughput": 50.0,
        }
    )
    made = steps_from_decode(lines, prefill=pd.DataFrame({"time_us": [T0 + 110_000]}))
    assert made.attrs["log_interval"] == 1
    assert texts(made["step_why"]) == ["first", None, None, "prefill_between", None, None]
    assert made["step_us"].dropna().tolist() == [40_000] * 4


def test_idle_time_between_two_single_step_lines_is_a_gap() -> None:
    us = T0 + 300 + np.concatenate([np.arange(12) * 40_000, 3_000_000 + np.arange(3) * 40_000])
    lines = pd.DataFrame({"time_us": us, "running": 1, "tokens": 100 + 2 * np.arange(15), "accept_len": 2.0, "gen_throughput": 50.0})
    told = lines.assign(line_us=[None, *np.diff(us)], line_why=["first", *[None] * 14])
    for frame in (lines, told):
        assert texts(steps_from_decode(frame)["step_why"]) == ["first", *[None] * 11, "gap", None, None]


def windows(*throughput: float) -> pd.DataFrame:
    """Decode lines of 40 steps of one request at 2 tokens a step."""
    n = len(throughput)
    return pd.DataFrame(
        {
            "time_us": T0 + np.cumsum([80e6 / x for x in throughput]).astype(np.int64),
            "running": 1,
            "tokens": 100 + 80 * np.arange(n),
            "accept_len": 2.0,
            "gen_throughput": throughput,
        }
    )


@pytest.mark.parametrize("slow", [2, 3, 10])
def test_a_slow_phase_at_an_end_of_the_log_is_no_idle_time(slow: int) -> None:
    # 20 lines at 80 tok/s are 25 ms a step, the slow ones at 8 tok/s 250 ms
    at_the_end = decode_step_times(windows(*[80.0] * 20, *[8.0] * slow))
    assert texts(at_the_end["step_why"]) == [None] * (20 + slow)
    assert at_the_end["step_time_ms"].tolist() == [25.0] * 20 + [250.0] * slow
    at_the_start = decode_step_times(windows(*[8.0] * slow, *[80.0] * 20))
    assert texts(at_the_start["step_why"]) == [None] * (20 + slow)


def test_a_single_line_that_stands_out_is_idle_time_wherever_it_is() -> None:
    for at in (0, 10, 20):
        made = decode_step_times(windows(*[80.0] * at, 8.0, *[80.0] * (20 - at)))
        assert texts(made["step_why"]) == [None] * at + ["after_idle"] + [None] * (20 - at)


# -- speculation, stretch by stretch -------------------------------------------------------------------------------------------


def test_a_stretch_without_accept_len_is_a_server_without_speculation() -> None:
    # run 1: 1000 * 1 * 1 / 146 = 6.85 ms; run 2: 1000 * 1 * 2 / 93 = 21.5 ms, its first window begins in run 1
    log = ddt.read_text(FAILING / "mixed-speculation.log")
    assert log_interval(log.decode).value == 40
    made = decode_step_times(log.decode)
    assert made["accept_len"].tolist() == [1.0] * 4 + [2.0] * 4
    assert made["speculative"].tolist() == [0.0] * 4 + [1.0] * 4
    assert texts(made["step_why"]) == [None] * 4 + ["first"] + [None] * 3
    np.testing.assert_allclose(made["step_time_ms"].dropna(), [1000 / 146] * 4 + [2000 / 93] * 3)
    assert made["window_steps"].dropna().tolist() == [40.0] * 6


def test_one_line_without_accept_len_among_others_is_no_server_without_speculation() -> None:
    lines = windows(*[80.0] * 10)
    for lacking in (1, 2):
        cut = lines.copy()
        cut.loc[4 : 3 + lacking, "accept_len"] = np.nan
        made = decode_step_times(cut)
        assert texts(made["step_why"])[4 : 4 + lacking] == ["no_accept_len"] * lacking
        assert np.isnan(made["speculative"][4])
    cut.loc[4:6, "accept_len"] = np.nan  # three in a row
    assert speculative(cut).tolist() == [1.0] * 4 + [0.0] * 3 + [1.0] * 3


@pytest.mark.parametrize(("said", "expected"), [("None", 0.0), ("none", 0.0), (None, 0.0), ("EAGLE3", np.nan)])
def test_a_server_start_says_whether_lines_without_accept_len_are_without_speculation(said: str | None, expected: float) -> None:
    # one line only, too few to tell by themselves; an old release speculates and prints no accept len
    lines = windows(*[80.0] * 5)
    lines.loc[0, "accept_len"] = np.nan
    servers = pd.DataFrame({"time_us": [T0 - 1], "algorithm": [None], "args": [{"speculative_algorithm": said}]})
    np.testing.assert_array_equal(speculative(lines, servers), [expected, 1.0, 1.0, 1.0, 1.0])
