"""Streams: which intervals are step times, and why the others are not."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_metrics.records import TABLES
from ddtree_metrics.schema import arrow_schema
from ddtree_metrics.steps.streams import Streams

T0 = 1_767_225_600_000_000  # 2026-01-01 00:00:00 UTC


def _time(us: int | None) -> datetime | None:
    if us is None:
        return None
    return datetime.fromtimestamp(us // 1_000_000, timezone.utc).replace(microsecond=us % 1_000_000)


def _step(us: int | None, line: int, **more: Any) -> tuple[str, int, dict[str, Any]]:
    row = {"time": _time(us), "time_from": "journal", "time_resolution_us": 1, "batch_size": 1, "commit_lens": [4], "steps": 1}
    row |= {"boot_id": "b1", "host": "gpu1", "unit": "sglang.service", "pid": 7, **more}
    return "steps", line, row


def _event(kind: str, us: int, line: int, **more: Any) -> tuple[str, int, dict[str, Any]]:
    row = {"time": _time(us), "kind": kind, "boot_id": "b1", "host": "gpu1", "unit": "sglang.service", **more}
    return "events", line, row


def _feed(streams: Streams, rows: list[tuple[str, int, dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    tables, lines = {}, {}
    for name in {r[0] for r in rows}:
        chosen = [r for r in rows if r[0] == name]
        tables[name] = pa.RecordBatch.from_pylist([r[2] for r in chosen], schema=arrow_schema(TABLES[name]))
        lines[name] = np.array([r[1] for r in chosen], dtype=np.int64)
    return {name: batch.to_pylist() for name, batch in streams.feed(tables, lines).items()}


def _steps(rows: list[tuple[str, int, dict[str, Any]]]) -> list[tuple[int | None, str | None]]:
    out = _feed(Streams(), rows)
    return [(r["step_us"], r["step_why"]) for r in out["steps"]]


def test_o15_a_suppression_notice_breaks_the_run_of_steps() -> None:
    # 40 ms, then 29.97 s in which journald dropped 740 lines, then 40 ms
    rows = [
        _step(T0, 0),
        _step(T0 + 40_000, 1),
        _event("suppressed", T0 + 30_000_000, 2, count=740),
        _step(T0 + 30_010_000, 3),
        _step(T0 + 30_050_000, 4),
    ]

    assert _steps(rows) == [(None, "first"), (40_000, None), (None, "suppressed"), (40_000, None)]


def test_a_notice_of_a_named_unit_concerns_lines_that_name_no_unit() -> None:
    rows = [
        _step(T0, 0, unit=None),
        _event("suppressed", T0 + 30_000_000, 1, count=740),
        _step(T0 + 30_010_000, 2, unit=None),
        _step(T0 + 30_050_000, 3, unit=None),
    ]

    assert [w for _, w in _steps(rows)] == ["first", "suppressed", None]


def test_a_notice_of_another_unit_breaks_nothing() -> None:
    rows = [_step(T0, 0), _event("suppressed", T0 + 10_000, 1, count=9, unit="other.service"), _step(T0 + 40_000, 2)]

    assert _steps(rows) == [(None, "first"), (40_000, None)]


def test_o18_the_boot_clock_times_steps_when_the_wall_clock_jumps() -> None:
    rows = [
        _step(T0, 0, monotonic_us=9_000_000),
        _step(T0 - 3_600_000_000 + 50_000, 1, monotonic_us=9_050_000),
        _step(T0 + 100_000, 2, monotonic_us=9_100_000),
        _step(T0 + 100_000_000, 3, monotonic_us=50_000, boot_id="b2"),
    ]
    streams = Streams()
    out = _feed(streams, rows)

    assert [(r["step_us"], r["step_why"]) for r in out["steps"]] == [(None, "first"), (50_000, None), (50_000, None), (None, "boot")]
    # -3599.95 s of wall time passed in 0.05 s of boot time: a jump of -3600.0 s, and back
    assert streams.counts.clock_steps == [-3600.0, 3600.0]
    assert [e["kind"] for e in out["events"]] == ["clock_step", "clock_step", "boot"]


def test_without_a_boot_clock_time_that_runs_backwards_is_no_step() -> None:
    rows = [_step(T0, 0), _step(T0 - 1_000_000, 1), _step(T0 - 960_000, 2)]

    assert _steps(rows) == [(None, "first"), (None, "clock_step"), (40_000, None)]


def test_o17_whole_seconds_give_no_step_time_line_by_line() -> None:
    rows = [_step(T0 + s * 1_000_000, i, time_resolution_us=1_000_000, time_from="stamp") for i, s in enumerate([0, 0, 0, 1, 1, 1, 2])]

    assert _steps(rows) == [(None, "first")] + [(None, "coarse_clock")] * 6


def test_o10_copies_from_other_tensor_parallel_ranks_are_marked_and_not_counted() -> None:
    rows = [_step(T0 + i * 50, i, tp_rank=i, pid=100 + i) for i in range(4)]
    rows.append(_step(T0 + 300, 4, tp_rank=4, dp_rank=1, pid=104, batch_size=2, commit_lens=[2, 3]))
    streams = Streams()
    out = _feed(streams, rows)["steps"]

    assert [r["step_why"] for r in out] == ["first", "duplicate_rank", "duplicate_rank", "duplicate_rank", "first"]
    assert [r["tokens"] for r in out] == [4, None, None, None, 5]
    assert streams.counts.duplicate_ranks == 3


def test_the_lowest_rank_is_kept_when_a_higher_one_logs_first() -> None:
    rows = [_step(T0, 0, tp_rank=1), _step(T0 + 20, 1, tp_rank=0), _step(T0 + 40_000, 2, tp_rank=1), _step(T0 + 40_020, 3, tp_rank=0)]

    assert _steps(rows) == [(None, "duplicate_rank"), (None, "first"), (None, "duplicate_rank"), (40_000, None)]


def test_pipeline_stages_that_log_the_same_step_are_copies() -> None:
    rows = [_step(T0, 0, pp_rank=0, tp_rank=0), _step(T0 + 30, 1, pp_rank=1, tp_rank=0)]

    assert [w for _, w in _steps(rows)] == ["first", "duplicate_rank"]


def test_a_prefill_between_two_steps_is_no_part_of_a_step() -> None:
    prefill = ("prefill", 1, {"time": _time(T0 + 20_000), "boot_id": "b1", "host": "gpu1", "unit": "sglang.service", "pid": 7})
    rows = [_step(T0, 0), prefill, _step(T0 + 900_000, 2), _step(T0 + 940_000, 3)]

    assert _steps(rows) == [(None, "first"), (None, "prefill_between"), (40_000, None)]


def test_a_prefill_of_another_data_parallel_rank_is_none_of_its_business() -> None:
    prefill = (
        "prefill",
        1,
        {"time": _time(T0 + 20_000), "boot_id": "b1", "host": "gpu1", "unit": "sglang.service", "pid": 7, "dp_rank": 1},
    )

    assert _steps([_step(T0, 0, dp_rank=0), prefill, _step(T0 + 40_000, 2, dp_rank=0)])[1] == (40_000, None)


def test_a_prefill_at_the_end_of_a_batch_is_remembered() -> None:
    prefill = ("prefill", 1, {"time": _time(T0 + 20_000), "boot_id": "b1", "host": "gpu1", "unit": "sglang.service", "pid": 7})
    streams = Streams()
    _feed(streams, [_step(T0, 0)])
    _feed(streams, [prefill])
    out = _feed(streams, [_step(T0 + 900_000, 2), _step(T0 + 940_000, 3)])["steps"]

    assert [(r["step_us"], r["step_why"]) for r in out] == [(None, "prefill_between"), (40_000, None)]


def test_lines_written_in_one_go_say_nothing_of_step_times() -> None:
    # 3 lines share a stamp, then two honest steps: neither the burst nor the interval after it is a step time
    rows = [_step(T0, 0), _step(T0 + 40_000, 1)]
    rows += [_step(T0 + 200_000, 2 + i) for i in range(3)]
    rows += [_step(T0 + 240_000, 5), _step(T0 + 280_000, 6)]

    assert [w for _, w in _steps(rows)] == ["first", None, "burst", "burst", "burst", "burst", None]


def test_a_hole_far_above_the_usual_step_is_a_gap_and_an_event() -> None:
    times = [0, 40, 80, 120, 160, 200, 5_200, 5_240, 5_280]  # ms; 5 s without a line
    out = _feed(Streams(), [_step(T0 + t * 1000, i) for i, t in enumerate(times)])

    assert [r["step_why"] for r in out["steps"]] == ["first", None, None, None, None, None, "gap", None, None]
    gap = [e for e in out["events"] if e["kind"] == "gap"]
    assert [e["count"] for e in gap] == [5_000_000]


def test_steps_that_grow_slowly_with_context_are_no_gaps() -> None:
    # from 30 to 600 ms over 2000 steps: twenty times the first, never far from its neighbours
    times = np.cumsum(np.linspace(30_000, 600_000, 2000)).astype(int)
    out = _feed(Streams(), [_step(T0 + int(t), i) for i, t in enumerate(times)])["steps"]

    assert [r["step_why"] for r in out] == ["first"] + [None] * 1999


def test_a_hole_of_twelve_usual_steps_is_a_gap() -> None:
    # 40 ms steps, and once 480 ms
    times = [0, 40, 80, 120, 600, 640, 680]

    assert [w for _, w in _steps([_step(T0 + t * 1000, i) for i, t in enumerate(times)])] == ["first", None, None, None, "gap", None, None]


def test_lines_an_hour_apart_are_no_steps_however_few_there_are() -> None:
    assert _steps([_step(T0, 0), _step(T0 + 3_600_000_000, 1)]) == [(None, "first"), (None, "gap")]


def test_lines_a_minute_apart_are_no_steps_however_regular_they_are() -> None:
    rows = [_step(T0 + i * 60_000_000, i) for i in range(20)]

    assert [w for _, w in _steps(rows)] == ["first"] + ["gap"] * 19


def test_services_side_by_side_without_a_process_are_streams_of_their_own() -> None:
    # two services, 100 ms a step each, interleaved at 30 and 70 ms
    rows = []
    for i in range(5):
        rows.append(_step(T0 + i * 100_000, 2 * i, pid=None, unit="a.service"))
        rows.append(_step(T0 + i * 100_000 + 30_000, 2 * i + 1, pid=None, unit="b.service"))
    out = _feed(Streams(), rows)["steps"]

    assert {r["step_us"] for r in out} == {None, 100_000}
    assert [r["step_why"] for r in out[:3]] == ["first", "first", None]


def test_files_of_two_servers_are_streams_of_their_own_and_a_rotated_set_is_one() -> None:
    nobody: dict[str, Any] = {"pid": None, "unit": None, "host": None, "boot_id": None}
    pods = [_step(T0 + i * 100_000, i, where=f"pod-{'ab'[i % 2]}.log:{i + 1}", **nobody) for i in range(6)]
    rotated = [_step(T0 + i * 100_000, i, where=f"run.log{'.1' if i < 3 else ''}:{i + 1}", **nobody) for i in range(6)]

    assert {s for s, _ in _steps(pods)} == {None, 200_000}
    assert [s for s, _ in _steps(rotated)] == [None] + [100_000] * 5


def test_processes_side_by_side_did_not_replace_each_other() -> None:
    rows = []
    for i in range(4):
        rows += [_step(T0 + i * 100_000, 2 * i, pid=5), _step(T0 + i * 100_000 + 30_000, 2 * i + 1, pid=6)]

    assert [w for _, w in _steps(rows)] == ["first", "first"] + [None] * 6


def test_another_unit_on_the_same_machine_is_no_restart() -> None:
    rows = [_step(T0, 0), _step(T0 + 40_000, 1), _step(T0 + 80_000, 2, unit="other.service", pid=8)]

    assert [w for _, w in _steps(rows)] == ["first", None, "first"]


def test_a_step_lost_on_the_lowest_rank_is_taken_from_another_ranks_copy() -> None:
    # 40 steps of 20 ms logged by two ranks 1 ms apart; the lowest rank's lines of steps 10, 11 and 25 are missing
    rows, line = [], 0
    for i in range(40):
        commit = [1 + i % 5]
        for tp in (0, 1):
            if tp == 0 and i in (10, 11, 25):
                continue
            rows.append(
                _step(
                    T0 + i * 20_000 + tp * 1_000, line, tp_rank=tp, pid=100 + tp, commit_lens=commit, monotonic_us=i * 20_000 + tp * 1_000
                )
            )
            line += 1
    streams = Streams()
    out = _feed(streams, rows)["steps"]
    kept = [r for r in out if r["step_why"] != "duplicate_rank"]

    assert len(kept) == 40
    assert sum(r["tokens"] for r in kept) == sum(1 + i % 5 for i in range(40))
    assert len({r["stream"] for r in kept}) == 1
    assert all(abs(r["step_us"] - 20_000) <= 1_000 for r in kept[1:])
    assert (streams.counts.duplicate_ranks, streams.counts.adopted_ranks) == (37, 3)


def test_copies_that_an_end_of_a_batch_parts_from_their_steps_are_copies() -> None:
    rows = []
    for i in range(30):
        for tp in (0, 1):
            rows.append(
                _step(
                    T0 + i * 20_000 + tp * 500,
                    len(rows),
                    tp_rank=tp,
                    pid=100 + tp,
                    commit_lens=[1 + i % 5],
                    monotonic_us=i * 20_000 + tp * 500,
                )
            )
    for cut in (1, 7, 20, 21, 59):
        streams = Streams()
        out = [row for part in (rows[:cut], rows[cut:]) for row in _feed(streams, part)["steps"]]

        assert sum(r["step_why"] == "duplicate_rank" for r in out) == 30
        assert (streams.counts.duplicate_ranks, streams.counts.adopted_ranks) == (30, 0)


def test_lines_left_out_of_a_window_break_the_run_of_steps() -> None:
    # between the two, a line was logged at a time outside of the window: the clock had jumped there and back
    tables = {"steps": pa.RecordBatch.from_pylist([_step(T0, 0)[2], _step(T0 + 100_000, 2)[2]], schema=arrow_schema(TABLES["steps"]))}
    out = Streams().feed(tables, {"steps": np.array([0, 2])}, np.array([1]))["steps"].to_pylist()

    assert [r["step_why"] for r in out] == ["first", "outside_window"]


def test_another_process_after_the_first_is_a_restart() -> None:
    rows = [_step(T0, 0), _step(T0 + 40_000, 1), _step(T0 + 9_000_000, 2, pid=8), _step(T0 + 9_040_000, 3, pid=8)]

    assert _steps(rows) == [(None, "first"), (40_000, None), (None, "restart"), (40_000, None)]


def test_a_server_start_in_a_text_log_without_processes_is_a_restart() -> None:
    start = ("servers", 1, {"time": _time(T0 + 5_000_000), "args": [("page_size", "1")]})
    none: dict[str, Any] = {"pid": None, "host": None, "unit": None, "boot_id": None}

    assert [w for _, w in _steps([_step(T0, 0, **none), start, _step(T0 + 40_000, 2, **none)])] == ["first", "restart"]


def test_a_retraction_breaks_the_run_of_steps_of_its_process() -> None:
    rows = [_step(T0, 0), _event("retraction", T0 + 10_000, 1, pid=7, count=1), _step(T0 + 90_000, 2)]

    assert [w for _, w in _steps(rows)] == ["first", "retraction"]


def test_tokens_come_from_commit_lengths_and_add_up_in_the_stream() -> None:
    rows = [
        _step(T0, 0, batch_size=2, commit_lens=[2, 3]),
        _step(T0 + 40_000, 1, commit_lens=None, avg_commit_len=4.0),
        _step(T0 + 80_000, 2, batch_size=3, commit_lens=None, avg_commit_len=2.67),  # 8 / 3
        _step(T0 + 120_000, 3, commit_lens=None, avg_commit_len=None, accepted_drafts=[4]),  # no commit, so no tokens
        _step(T0 + 160_000, 4, batch_size=3, commit_lens=None, avg_commit_len=2.5),  # 7.5 tokens: no such sum
    ]
    out = _feed(Streams(), rows)["steps"]

    assert [r["tokens"] for r in out] == [5, 4, 8, None, None]
    assert [r["tokens_cum"] for r in out] == [5, 9, 17, 17, 17]


def test_a_line_that_stands_for_many_steps_has_no_time_of_one() -> None:
    rows = [_step(T0, 0), _step(T0 + 2_000_000, 1, steps=50)]

    assert _steps(rows)[1] == (None, "window")


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.integers(20_000, 60_000), min_size=2, max_size=30),
    cuts=st.sets(st.integers(1, 29), max_size=5),
    ranks=st.integers(1, 3),
)
def test_where_batches_are_cut_does_not_matter(gaps: list[int], cuts: set[int], ranks: int) -> None:
    # no interval is ten times another, so that none is a gap: what is usual depends on what lies ahead in the batch
    times = T0 + np.cumsum([0, *gaps])
    rows = [_step(int(t), i, dp_rank=i % ranks, monotonic_us=int(t) - T0) for i, t in enumerate(times)]
    whole = _feed(Streams(), rows)["steps"]
    streams, parts, last = Streams(), [], 0
    for cut in [*sorted(c for c in cuts if c < len(rows)), len(rows)]:
        if cut > last:
            parts += _feed(streams, rows[last:cut])["steps"]
        last = cut

    assert parts == whole
