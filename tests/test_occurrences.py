"""One event a happening: copies by other ranks, and retractions that only a number on Decode lines tells of."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pytest

import ddtree_metrics as ddt
from ddtree_metrics.cli.inspect_command import describe
from ddtree_metrics.reading import Reading
from ddtree_metrics.sources import open_source

FAILING = Path(__file__).resolve().parent.parent / "fixtures" / "failing"


def read(*lines: str) -> ddt.Log:
    return ddt.read_text(io.BytesIO("\n".join([*lines, ""]).encode()))


def decode(second: int, retracted: int | None, rank: str = "TP0") -> str:
    queue = "" if retracted is None else f"pre-allocated usage: 0.28, #prealloc-req: 5, #transfer-req: 3, #retracted-req: {retracted}, "
    return (
        f"[2026-05-19 12:{second // 60:02}:{second % 60:02} {rank}] Decode batch, #running-req: 8, #token: 16384, token usage: 0.71, "
        f"accept len: 2.40, accept rate: 0.84, {queue}cuda graph: True, gen throughput (token/s): 2520.18, #queue-req: 3"
    )


def pool_full(second: int, count: int = 1, rank: str = "TP0", ratio: str = "0.0646 -> 0.8623") -> str:
    return (
        f"[2026-05-19 12:{second // 60:02}:{second % 60:02} {rank}] KV cache pool is full. Retract requests. #retracted_reqs: {count}, "
        f"#new_token_ratio: {ratio}"
    )


def retracted(log: ddt.Log) -> list[int]:
    """How many requests each retraction of the log concerns."""
    events = log.events
    return events["count"][events["kind"] == "retraction"].tolist()


def test_one_retraction_printed_by_six_ranks_is_one_retraction() -> None:
    log = ddt.read_text(FAILING / "retraction-on-six-ranks.log")
    assert retracted(log) == [1]
    assert log.coverage.parsed["events"] == 1
    assert log.coverage.duplicate_events == 5  # TP0 comes first; TP5, TP7, TP2, TP6, TP4 say it again
    assert describe(log, joined=False)["events"] == {"retraction": 1}


@pytest.mark.parametrize("order", [[0, 1, 0, 1], [0, 0, 1, 1], [1, 0, 0, 1]])
def test_two_equal_retractions_in_one_second_stay_two_whatever_the_order_of_the_ranks(order: list[int]) -> None:
    log = read(*[pool_full(30, rank=f"TP{rank}") for rank in order])
    assert retracted(log) == [1, 1]


def test_a_retraction_that_only_one_rank_printed_counts_though_another_rank_told_of_an_earlier_one() -> None:
    log = read(pool_full(30, rank="TP0"), pool_full(30, rank="TP1"), pool_full(90, rank="TP1"))
    assert retracted(log) == [1, 1]


def test_two_data_parallel_ranks_each_retract_their_own_requests() -> None:
    # two schedulers, two retractions; each has two tensor-parallel ranks
    log = read(*[pool_full(30, rank=f"DP{dp} TP{2 * dp + tp}") for dp in (0, 1) for tp in (0, 1)])
    assert retracted(log) == [1, 1]


def test_an_exception_that_every_rank_meets_is_one_exception() -> None:
    head = "Scheduler hit an exception: Traceback (most recent call last):"
    log = read(*[f"[2026-05-19 12:00:0{i // 2} TP{i}] {head}" for i in range(8)])
    assert Counter(log.events["kind"]) == {"exception": 1}


def test_a_start_that_every_rank_prints_is_one_start() -> None:
    args = "server_args=ServerArgs(model_path='m', tp_size=2, dp_size=1)"
    log = read(*[f"[2026-05-19 12:00:00 TP{i}] {args}" for i in range(2)], decode(20, None), decode(30, None))
    assert len(log.servers) == 1
    assert log.decode["line_why"].tolist() == ["first", "coarse_clock"]


def test_events_without_a_rank_are_never_copies() -> None:
    line = "[2026-05-19 12:00:00] SIGTERM received. signum=None frame=None. Draining requests and shutting down..."
    assert len(read(line, line).events) == 2


def test_copies_are_found_over_the_end_of_a_batch() -> None:
    filler = [f"[2026-05-19 12:00:30] noise {i}" for i in range(40_000)]
    assert retracted(read(pool_full(30), *filler, pool_full(30, rank="TP1"))) == [1]


def test_a_rise_of_the_waiting_retracted_requests_is_a_retraction() -> None:
    # the number is the length of a queue (SGLang 0.4.7.post1 to 0.5.23): 0, then 2 more, then 1 is taken up again, then 3 more
    log = read(*[decode(10 * i, n) for i, n in enumerate([0, 2, 2, 1, 4, 0])])
    assert retracted(log) == [2, 3]
    assert log.decode["line_why"].tolist() == ["first", "retraction", "coarse_clock", "coarse_clock", "retraction", "coarse_clock"]
    assert log.decode["line_us"].tolist()[1:] == [10_000_000] * 5


def test_a_queue_that_is_there_at_the_first_line_was_retracted_by_then() -> None:
    assert retracted(read(decode(0, 3), decode(10, 3))) == [3]


def test_a_retraction_that_is_printed_in_both_ways_counts_once() -> None:
    log = read(decode(0, 0), pool_full(5, 2), decode(10, 2), decode(20, 2), decode(30, 0))
    assert retracted(log) == [2]
    assert log.events["detail"].str.contains("pool is full").all()


def test_what_the_dedicated_lines_do_not_tell_of_is_told_by_the_rest_of_the_rise() -> None:
    # 5 more wait, 2 of them have a line: the line of the other 3 is lost
    assert retracted(read(decode(0, 0), pool_full(5, 2), decode(10, 5))) == [2, 3]


def test_copies_of_a_decode_line_by_other_ranks_tell_of_one_retraction() -> None:
    lines = [decode(10 * i, n, f"TP{tp}") for i, n in enumerate([0, 2, 0, 2, 0]) for tp in range(4)]
    assert retracted(read(*lines)) == [2, 2]


def test_the_queue_of_each_data_parallel_rank_is_its_own() -> None:
    assert retracted(read(decode(0, 1, "DP0 TP0"), decode(0, 2, "DP1 TP0"), decode(10, 1, "DP0 TP0"), decode(10, 2, "DP1 TP0"))) == [1, 2]


def test_a_restart_begins_with_an_empty_queue() -> None:
    start = "[2026-05-19 12:00:15] server_args=ServerArgs(model_path='m', tp_size=1)"
    assert retracted(read(decode(0, 0), decode(10, 3), start, decode(20, 3))) == [3, 3]


@pytest.mark.parametrize("lines", [0, 40_000])
def test_a_rise_is_seen_over_the_end_of_a_batch_and_breaks_the_window_it_lies_in(lines: int) -> None:
    reading = Reading(open_source(io.BytesIO("\n".join([decode(0, 1), *["noise"] * lines, decode(10, 2), decode(20, 2), ""]).encode())))
    made = list(reading)
    counts = [n for t in made if "events" in t for n in t["events"].column("count").to_pylist()]
    whys = [w for t in made if "decode" in t for w in t["decode"].column("line_why").to_pylist()]
    assert (counts, whys) == ([1, 1], ["first", "retraction", "coarse_clock"])
