"""Edges: what lies just inside of a threshold and just outside of it, read from lines as a user's journal has them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import ddtree_metrics as ddt
from ddtree_metrics.cli import main
from ddtree_metrics.coverage import Coverage
from ddtree_metrics.tables.datasets import DatasetWriter
from ddtree_metrics.tables.writers import FileWriter, open_writer
from tests.journals import T0, build, entry

UNIT = "sglang-kimi.service"
HEAD = "[2026-05-05 12:00:01{rank}] "


def metrics(commit: Sequence[int] = (4,), *, rank: str = "", bonus: int = 1, budget: int = 16, nodes: int = 17) -> str:
    """One DDTree line; ``commit`` are the commit lengths of its slots."""
    n = len(commit)
    accepted = [c - bonus for c in commit]
    return (
        f"{HEAD.format(rank=rank)}DDTREE metrics: bs={n} budget={budget} actual_nodes={[nodes] * n} accepted_drafts={accepted} "
        f"commit_lens={list(commit)} avg_accepted_drafts={sum(accepted) / n:.2f} avg_commit_len={sum(commit) / n:.2f}"
    )


def averages(size: int, commit: str) -> str:
    """One DDTree line that prints averages only."""
    return f"{HEAD.format(rank='')}DDTREE metrics: bs={size} budget=16 avg_accepted_drafts=1.00 avg_commit_len={commit}"


def read(*entries: bytes, **how: Any) -> ddt.Log:
    return ddt.read_text(io.BytesIO(b"".join(entries)), on_error="raise", **how)


def lines(at_us: Sequence[int], message: str | None = None) -> list[bytes]:
    """One step at each of these times after T0; each commits another number of tokens."""
    return [entry(T0 + us, message or metrics([1 + i % 15])) for i, us in enumerate(at_us)]


def every(us: int, count: int, begin: int = 0) -> list[int]:
    return [begin + us * i for i in range(count)]


def whys(log: ddt.Log) -> list[str | None]:
    return list(log.table("steps").column("step_why").to_pylist())


# -- windows ------------------------------------------------------------------------------------------------------------------


def stamp(us: int) -> str:
    """Write an instant as ``--since`` takes it."""
    return f"@{us // 1_000_000}.{us % 1_000_000:06d}"


def as_export(at_us: Sequence[int]) -> bytes:
    return b"".join(lines([us - T0 for us in at_us]))


def as_json(at_us: Sequence[int]) -> bytes:
    rows = [{"__REALTIME_TIMESTAMP": str(us), "_SYSTEMD_UNIT": UNIT, "_PID": "7", "MESSAGE": metrics()} for us in at_us]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_short_iso(at_us: Sequence[int]) -> bytes:
    # T0 is 2026-05-05 12:00:01 UTC
    return "".join(iso(us, metrics()) for us in at_us).encode()


def iso(us: int, message: str, digits: int = 6) -> str:
    """One line of ``journalctl -o short-iso``; no more than a minute after T0."""
    return f"2026-05-05T12:00:{1 + (us - T0) / 1e6:0{3 + digits}.{digits}f}+0000 gpu1 python3[7]: {message}\n"


def as_server_log(at_us: Sequence[int]) -> bytes:
    return "".join(metrics().replace("12:00:01", f"12:00:{1 + (us - T0) / 1e6:09.6f}") + "\n" for us in at_us).encode()


# a microsecond before since, at since, a microsecond before until, at until
AT = [T0 + 999_999, T0 + 1_000_000, T0 + 1_999_999, T0 + 2_000_000]
WINDOW = {"since": stamp(T0 + 1_000_000), "until": stamp(T0 + 2_000_000)}


@pytest.mark.parametrize(("form", "own_stamps"), [(as_export, 0), (as_json, 0), (as_short_iso, 0), (as_server_log, 2)])
def test_a_line_at_since_is_in_the_window_and_one_at_until_is_not(form: Any, own_stamps: int) -> None:
    log = ddt.read_text(io.BytesIO(form(AT)), **WINDOW, tz="UTC")

    assert log.steps["time_us"].tolist() == AT[1:3]
    # of lines that the source knows the times of, none comes as far as to be read and counted
    assert log.coverage.outside_window == own_stamps


def test_an_entry_of_a_journal_at_since_is_in_the_window_and_one_at_until_is_not(tmp_path: Path) -> None:
    log = ddt.read_journal(files=build(tmp_path / "some.journal", as_export(AT)), **WINDOW)

    assert log.steps["time_us"].tolist() == AT[1:3]
    assert log.coverage.outside_window == 0


def test_an_exported_row_at_since_is_in_the_window_and_one_at_until_is_not(tmp_path: Path) -> None:
    path = tmp_path / "steps.parquet"
    pq.write_table(ddt.read_text(io.BytesIO(as_export(AT))).table("steps"), path)

    assert ddt.read_parquet(path, **WINDOW).steps["time_us"].tolist() == AT[1:3]


def test_null_messages_are_counted_from_since_until_just_before_until() -> None:
    rows = [{"__REALTIME_TIMESTAMP": str(us), "_SYSTEMD_UNIT": UNIT, "MESSAGE": None} for us in AT]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()

    assert ddt.read_text(io.BytesIO(text), **WINDOW).coverage.message_null == 2


def test_a_window_of_one_microsecond_holds_its_beginning_and_an_empty_one_is_refused() -> None:
    log = read(*lines([0, 1, 2]), since=stamp(T0 + 1), until=stamp(T0 + 2))

    assert log.steps["time_us"].tolist() == [T0 + 1]
    with pytest.raises(ddt.DDTreeError, match="empty"):
        read(*lines([0]), since=stamp(T0 + 1), until=stamp(T0 + 1))


# -- what is a step time ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("between_us", "why"), [(99, "burst"), (100, None)])
def test_lines_a_tenth_of_a_millisecond_apart_are_steps_and_nearer_ones_are_a_burst(between_us: int, why: str | None) -> None:
    # 40 ms steps, one line 99 or 100 us after the one before
    log = read(*lines([0, 40_000, 80_000, 80_000 + between_us, 120_000 + between_us]))

    assert whys(log)[3] == why


@pytest.mark.parametrize(("hole_us", "why"), [(400_000, None), (400_001, "gap")])
def test_ten_times_the_usual_step_is_one_still_and_more_is_a_gap(hole_us: int, why: str | None) -> None:
    # beside the hole all intervals are 40 ms: ten times that is 400 ms; farther off they are 20 ms
    at = [*every(20_000, 30, -600_000), *every(40_000, 30), *every(40_000, 30, 29 * 40_000 + hole_us)]
    log = read(*lines(at))

    assert whys(log)[60] == why
    assert log.coverage.gaps == (why == "gap")


def test_the_usual_step_is_remembered_over_the_end_of_a_file() -> None:
    # 25 intervals of 10 ms before the hole, in another file, and 25 of 100 ms after it: the median is 55 ms, and 600 ms are a gap
    first, second = lines(every(10_000, 60)), lines(every(100_000, 60, 590_000 + 600_000))
    log = ddt.read_text([io.BytesIO(b"".join(first)), io.BytesIO(b"".join(second))])

    assert [i for i, why in enumerate(whys(log)) if why == "gap"] == [60]


@pytest.mark.parametrize(("digits", "why"), [(1, "coarse_clock"), (2, None)])
def test_stamps_of_a_tenth_of_a_second_time_no_step_and_those_of_a_hundredth_do(digits: int, why: str | None) -> None:
    text = "".join(iso(T0 + i * 300_000, metrics(), digits) for i in range(9))

    assert set(whys(ddt.read_text(io.BytesIO(text.encode())))[1:]) == {why}


@pytest.mark.parametrize(("hole_us", "why"), [(102_000, None), (102_001, "gap")])
def test_a_gap_beside_fast_steps_is_a_tenth_of_a_second_longer_than_they_are(hole_us: int, why: str | None) -> None:
    # 2 ms steps: ten times would be 20 ms, but a hole of less than 2 + 100 ms may be jitter
    log = read(*lines([*every(2_000, 30), *every(2_000, 30, 29 * 2_000 + hole_us)]))

    assert whys(log)[30] == why


@pytest.mark.parametrize(("each_us", "why"), [(5_000_000, None), (5_000_001, "gap")])
def test_five_seconds_are_the_longest_step_however_regular(each_us: int, why: str | None) -> None:
    assert set(whys(read(*lines(every(each_us, 12))))[1:]) == {why}


def test_the_usual_step_is_the_median_of_25_intervals_on_each_side() -> None:
    # within 25 of the hole: 24 intervals of 10 ms and 26 of 100 ms, the median is 100 ms, and 600 ms are no gap;
    # within 24 or 26 of it there are as many of both, the median is 55 ms, and 600 ms would be one
    between = [*[10] * 30, 100, *[10] * 24, 600, *[100] * 24, 100, *[10] * 30]
    at = [0]
    for ms in between:
        at.append(at[-1] + ms * 1000)

    assert set(whys(read(*lines(at)))[1:]) == {None}


@pytest.mark.parametrize(("jump_us", "found"), [(500_040, []), (500_041, [0.500041])])
def test_half_a_second_and_a_thousandth_of_the_time_are_no_jump_of_the_clock(jump_us: int, found: list[float]) -> None:
    # 40 ms of boot time between two lines: the clocks may part by 500 000 + 40 000 / 1000 us
    log = read(entry(T0, metrics(), mono=9_000_000), entry(T0 + 40_000 + jump_us, metrics(), mono=9_040_000))

    assert log.coverage.clock_steps == found
    assert log.steps["step_us"].tolist()[1] == 40_000


# -- tokens of a step ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "commit", "tokens"),
    [
        (99, "2.00", 198),  # the sum lies within 0.495 of 198: there is one whole number
        (100, "2.00", None),  # within 0.5: there may be two
        (3, "1.33", 4),  # 3.99 lies within 0.015 of 4
        (3, "1.32", None),  # 3.96 does not, so it was not rounded from a sum of three
        (1, "2.005", 2),
        (1, "2.006", None),
    ],
)
def test_tokens_are_taken_from_an_average_up_to_a_batch_of_99_and_only_where_it_fits(size: int, commit: str, tokens: int | None) -> None:
    (row,) = read(entry(T0, averages(size, commit))).table("steps").to_pylist()

    assert row["tokens"] == tokens


# -- what the numbers count ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("with_bonus", "bonus"), [(18, 1), (17, None)])
def test_nine_of_ten_steps_say_whether_the_bonus_is_in_the_commit(with_bonus: int, bonus: int | None) -> None:
    # 18 of 20 are nine tenths; 17 of 19 are 0.895 of all
    rows = [metrics([4])] * with_bonus + [metrics([4], bonus=0)] * 2
    entries = [entry(T0 + i * 40_000, text) for i, text in enumerate(rows)]
    log = ddt.read_text(io.BytesIO(b"".join(entries)), on_error="skip")

    assert log.counts.bonus == bonus


@pytest.mark.parametrize(("trees", "root"), [(10, 0), (9, None)])
def test_ten_trees_that_just_reach_the_budget_say_that_nodes_leave_the_root_out(trees: int, root: int | None) -> None:
    log = read(*lines(every(40_000, trees), metrics(nodes=16)))

    assert log.counts.root == root


@pytest.mark.parametrize(("most", "root"), [(17, 1), (18, None)])
def test_one_node_more_than_the_budget_is_the_root_and_two_are_something_else(most: int, root: int | None) -> None:
    entries = [*lines(every(40_000, 12), metrics(nodes=16)), entry(T0 + 1_000_000, metrics(nodes=most))]

    assert read(*entries).counts.root == root


# -- copies by other ranks ----------------------------------------------------------------------------------------------------


def copies(between_us: int, late_us: int, count: int = 12, lost: Sequence[int] = (5,)) -> list[bytes]:
    """Steps that rank 0 and rank 1 both log, rank 1 later by ``late_us``; some lines of rank 0 were lost."""
    made = [
        (T0 + i * between_us + rank * late_us, metrics([1 + i], rank=f" TP{rank}"))
        for i in range(count)
        for rank in (0, 1)
        if rank or i not in lost
    ]
    return [entry(us, text, pid=100 + (" TP1]" in text)) for us, text in sorted(made)]


def kept(log: ddt.Log) -> int:
    return sum(why != "duplicate_rank" for why in whys(log))


@pytest.mark.parametrize(
    ("between_us", "late_us", "expected"),
    [
        # half the usual step apart: 11 lines of rank 0, and the one of rank 1 that stands for the lost one
        (40_000, 20_000, 12),
        # ... and farther apart they are no copies: all of rank 1 but those at the end of the file, where it cannot be told
        (40_000, 20_001, 22),
        # a quarter of a second at most, however long a step takes
        (2_000_000, 250_000, 12),
        (2_000_000, 250_001, 22),
    ],
)
def test_copies_of_a_step_are_logged_within_half_a_step_and_a_quarter_of_a_second(between_us: int, late_us: int, expected: int) -> None:
    assert kept(read(*copies(between_us, late_us))) == expected


@pytest.mark.parametrize(("cut", "expected"), [(2, 12), (3, 21)])
def test_in_the_same_order_they_are_copies_however_late_but_for_two_at_the_end(cut: int, expected: int) -> None:
    # rank 1 is late by more than half a step, in the same order as rank 0; its last two lines may be missing.
    # With three missing it is not the same order any more, and its other 9 lines are too late to be copies of the 12
    entries = copies(40_000, 30_000, lost=())
    late = [e for e in entries if b" TP1]" in e]

    assert kept(read(*[e for e in entries if e not in late[-cut:]])) == expected


@pytest.mark.parametrize(("back", "expected"), [(16, 20), (17, 21)])
def test_copies_may_be_out_of_order_by_16_lines(back: int, expected: int) -> None:
    # 20 steps of one moment; rank 1 logs two of them, the second of which rank 0 logged ``back`` lines before the first
    own = [entry(T0 + i, metrics([1 + i], rank=" TP0"), pid=100) for i in range(20)]
    others = [entry(T0 + 20 + i, metrics([1 + n], rank=" TP1"), pid=101) for i, n in enumerate((18, 18 - back))]
    # what is near the end of a batch is not looked at, so a later step ends it; the usual distance is made by two steps before
    before = [entry(T0 - (2 - i) * 1_000_000, metrics([30 + i], rank=" TP0"), pid=100) for i in range(2)]
    after = [entry(T0 + (1 + i) * 1_000_000, metrics([40 + i], rank=" TP0"), pid=100) for i in range(24)]

    assert kept(read(*before, *own, *others, *after)) == expected + 26


@pytest.mark.parametrize(("before_end_us", "expected"), [(20_000, 12), (20_001, 13)])
def test_a_line_of_another_rank_near_the_end_may_have_its_pair_in_the_next_lines(before_end_us: int, expected: int) -> None:
    # 12 steps of 40 ms by rank 0; rank 1 logged one that rank 0 did not: it stands for a lost one unless its pair may be yet to come
    own = [entry(T0 + i * 40_000, metrics([1 + i], rank=" TP0"), pid=100) for i in range(11)]
    other = entry(T0 + 440_000 - before_end_us, metrics([14], rank=" TP1"), pid=101)
    last = entry(T0 + 440_000, metrics([12], rank=" TP0"), pid=100)

    assert kept(read(*own, other, last)) == expected


@pytest.mark.parametrize(("parted", "expected"), [(16, 26), (17, 27)])
def test_sixteen_steps_are_remembered_for_copies_in_the_next_file(parted: int, expected: int) -> None:
    def step(i: int, rank: int) -> bytes:
        return entry(T0 + i * 40_000 + rank * 10_000, metrics([1 + i], rank=f" TP{rank}"), pid=100 + rank)

    first = [step(i, 0) for i in range(20)]
    second = [*(step(i, 1) for i in range(20 - parted, 20)), *(step(i, rank) for i in range(20, 26) for rank in (0, 1))]
    log = ddt.read_text([io.BytesIO(b"".join(first)), io.BytesIO(b"".join(second))])

    assert kept(log) == expected


@pytest.mark.parametrize(("digits", "expected"), [(1, 11), (2, 12)])
def test_stamps_of_a_tenth_of_a_second_do_not_say_which_step_a_copy_is_of(digits: int, expected: int) -> None:
    # twelve steps of 0.6 s by two ranks, one line of rank 0 lost: rank 1's stands for it where the clock can tell that it is another step
    steps = [(i, rank) for i in range(12) for rank in (0, 1) if rank or i != 5]
    text = "".join(iso(T0 + i * 600_000, metrics([1 + i], rank=f" TP{rank}"), digits) for i, rank in steps)

    assert kept(ddt.read_text(io.BytesIO(text.encode()))) == expected


# -- server starts ------------------------------------------------------------------------------------------------------------


def start(at_us: int, text: str, unit: str = UNIT) -> bytes:
    return entry(T0 + at_us, HEAD.format(rank="") + text, unit=unit)


ARGS = "server_args=ServerArgs(model_path='org/model', speculative_algorithm='DDTREE', tp_size=8)"
WORKER = "Initialized DDTree worker. block_size={block}, tree_budget={budget}, max_tree_nodes=65"


def test_what_a_server_prints_while_it_starts_belongs_to_that_start_the_second_one_too() -> None:
    log = read(
        start(0, ARGS),
        start(1_000_000, WORKER.format(block=16, budget=64)),
        start(60_000_000, ARGS),
        start(61_000_000, WORKER.format(block=8, budget=32)),
    )
    rows = log.table("servers").to_pylist()

    assert [(r["block_size"], r["budget"], r["tp_size"]) for r in rows] == [(16, 64, 8), (8, 32, 8)]
    assert [r["time"].timestamp() * 1e6 - T0 for r in rows] == [0, 60_000_000]


def test_what_another_unit_prints_is_no_part_of_a_start() -> None:
    log = read(start(0, ARGS), start(1, ARGS, unit="b.service"), start(2, WORKER.format(block=16, budget=64)))

    assert [(r["unit"], r["block_size"]) for r in log.table("servers").to_pylist()] == [(UNIT, 16), ("b.service", None)]


def test_a_start_whose_first_line_is_missing_is_one_start_too() -> None:
    (row,) = read(start(0, WORKER.format(block=16, budget=64)), start(1, WORKER.format(block=16, budget=32))).table("servers").to_pylist()

    # what is settled last holds: the budget is printed again when it was cut down
    assert (row["args"], row["block_size"], row["budget"]) == (None, 16, 32)


# -- files --------------------------------------------------------------------------------------------------------------------


def only_two_are_finished(monkeypatch: pytest.MonkeyPatch) -> list[FileWriter]:
    """Have the third file that is to be complete find no space; return those that were finished."""
    finish = FileWriter.finish
    finished: list[FileWriter] = []

    def third_fails(writer: FileWriter) -> None:
        if len(finished) == 2:
            raise ddt.OutputError("no space is left on the device")
        finish(writer)
        finished.append(writer)

    monkeypatch.setattr(FileWriter, "finish", third_fails)
    return finished


def test_no_file_is_moved_into_place_before_all_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "in.export"
    log.write_bytes(as_export([T0, T0 + 40_000]))
    out = tmp_path / "out"
    out.mkdir()
    (out / "steps.parquet").write_text("old")
    finished = only_two_are_finished(monkeypatch)
    done = CliRunner().invoke(main, ["export", str(log), "-o", f"{out}/", "--force"])

    assert done.exit_code == 1
    assert len(finished) == 2
    assert [(p.name, p.read_text()) for p in out.iterdir()] == [("steps.parquet", "old")]


def test_no_table_of_a_log_is_moved_into_place_before_all_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = read(*lines([0, 40_000]))
    finished = only_two_are_finished(monkeypatch)
    with pytest.raises(ddt.OutputError, match="no space"):
        log.write(f"{tmp_path / 'out'}/")

    assert len(finished) == 2
    assert list(tmp_path.rglob("*")) == []


def test_no_part_of_a_dataset_is_moved_into_place_before_all_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "in.export"
    day = 86_400_000_000
    log.write_bytes(as_export([T0, T0 + day, T0 + 2 * day]))
    finish = FileWriter.finish
    finished: list[FileWriter] = []

    def last_fails(writer: FileWriter) -> None:
        if len(finished) == 2:
            raise ddt.OutputError("no space is left on the device")
        finish(writer)
        finished.append(writer)

    monkeypatch.setattr(FileWriter, "finish", last_fails)
    done = CliRunner().invoke(main, ["export", str(log), "-o", str(tmp_path / "data"), "--partition", "date", "-t", "steps"])

    assert done.exit_code == 1
    assert len(finished) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["in.export"]


def test_no_table_of_a_dataset_is_moved_into_place_before_all_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "in.export"
    log.write_bytes(as_export([T0, T0 + 40_000]))
    finish = DatasetWriter.finish
    finished: list[DatasetWriter] = []

    def second_fails(writer: DatasetWriter) -> None:
        if finished:
            raise ddt.OutputError("no space is left on the device")
        finish(writer)
        finished.append(writer)

    monkeypatch.setattr(DatasetWriter, "finish", second_fails)
    to = [*("-o", str(tmp_path / "data")), *("--partition", "date"), *("-t", "steps"), *("-t", "decode")]
    done = CliRunner().invoke(main, ["export", str(log), *to])

    assert done.exit_code == 1
    assert len(finished) == 1
    assert not list(tmp_path.rglob("*.parquet"))


def test_rows_of_long_texts_are_written_before_they_fill_the_memory(tmp_path: Path) -> None:
    # 64 MiB a row: four of them are 256 MiB, which is as much as waits in memory, however few rows they are
    row = ddt.TABLES["events"]
    batch = pa.RecordBatch.from_pylist([{"kind": "gap", "detail": "x" * (64 << 20)}], schema=ddt.arrow_schema(row))
    with open_writer(tmp_path / "events.parquet", row) as out:
        for _ in range(9):
            out.write(batch)
    found = pq.ParquetFile(tmp_path / "events.parquet").metadata

    assert [found.row_group(i).num_rows for i in range(found.num_row_groups)] == [4, 4, 1]


NUMBERS = [f.name for f in fields(Coverage) if isinstance(getattr(Coverage(), f.name), int)]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_counter_that_is_one_field_is_added_up_written_down_and_told_everywhere(name: str) -> None:
    from ddtree_metrics.cli.inspect_command import lines_of
    from ddtree_metrics.counting import copy_counters, counters

    both = Coverage.merged([Coverage(**{name: 2}), Coverage(**{name: 3})])
    taken = Coverage()
    copy_counters(both, taken)
    said = {"coverage": both.to_dict(), "counts": ddt.Conventions().to_dict()} | dict.fromkeys(
        ("services", "streams", "servers", "events"), ()
    )
    words = counters(Coverage)[name]

    assert getattr(both, name) == getattr(taken, name) == 5
    assert Coverage.from_dict(json.loads(both.to_json())) == both
    assert f"<td style='text-align:left'>{words}</td><td>5</td>" in both._repr_html_()
    assert name == "lines" or f"5 {words}" in " ".join(" ".join(lines_of(said)).split())


def test_the_account_of_two_files_has_the_gaps_of_both(tmp_path: Path) -> None:
    for name, begin in (("a", 0), ("b", 3_600_000_000)):
        (tmp_path / f"{name}.export").write_bytes(b"".join(lines([*every(40_000, 9, begin), *every(40_000, 9, begin + 10_000_000)])))
        done = CliRunner().invoke(main, ["export", str(tmp_path / f"{name}.export"), "-o", str(tmp_path / f"{name}.parquet")])
        assert done.exit_code == 0, done.output

    assert ddt.read_parquet([tmp_path / "a.parquet", tmp_path / "b.parquet"]).coverage.gaps == 2
