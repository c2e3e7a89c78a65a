"""A lake: what is new is added once, whoever dies, waits, comes late or is asked twice."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ddtree_metrics as ddt
from ddtree_metrics import appending
from ddtree_metrics.errors import OutputError, UsageError
from ddtree_metrics.opening import read_options
from ddtree_metrics.records import TABLES
from ddtree_metrics.sources import resumed
from ddtree_metrics.tables.datasets import read_tables
from ddtree_metrics.tables.manifest import load, visible, writing
from tests import journals
from tests.simulator import Restart, simulate
from tests.simulator_text import write_export, write_text

UNIT = "sglang-simulated.service"
ORDER = {"events": "kind", "request_lines": "event"}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lines of a server with two data-parallel ranks and copies from tensor-parallel ones, restarted once."""
    run = simulate(requests=24, concurrency=3, dp=2, tp=2, tp_copies=True, restarts=(Restart(9.0),), milliseconds=True, cached_share=0.2)
    return write_text(run, tmp_path_factory.mktemp("log") / "run.log")


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The same kind of server in a journal, as ``journalctl -o export`` writes it."""
    run = simulate(requests=24, concurrency=3, dp=2, tp=2, tp_copies=True, restarts=(Restart(9.0),), cached_share=0.2)
    return write_export(run, tmp_path_factory.mktemp("export") / "run.export").read_bytes()


def rows(root: Path) -> dict[str, list[dict[str, Any]]]:
    """What a lake or an export holds, by table, in an order that does not depend on the parts."""
    return {name: ordered(table) for name, table in read_tables(root).items() if table.num_rows}


def ordered(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: json.dumps([str(row["time"]), row["where"], row.get("kind"), row.get("event")]))


def at_once(source: Any, folder: Path, **options: Any) -> dict[str, list[dict[str, Any]]]:
    """What one export writes."""
    ddt.export(source, folder, tables=[n for n in TABLES if n not in ("requests", "request_steps")], partition=("host", "date"), **options)
    return rows(folder)


def append(source: Any, lake: Path, **options: Any) -> Any:
    return ddt.export(source, lake, append=True, **options)


@pytest.mark.parametrize("chunk", [97, 32_768])
def test_many_runs_over_a_growing_file_give_what_one_export_gives(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    whole = at_once(log, tmp_path / "once")
    monkeypatch.setattr(resumed, "BATCH_LINES", chunk)
    data, growing = log.read_bytes(), tmp_path / "run.log"
    new = 0
    for cut in range(len(data) // 13, len(data) + len(data) // 13, len(data) // 13):  # most cuts are inside of a line
        growing.write_bytes(data[:cut])
        new += append(growing, tmp_path / "lake", on_error="skip").rows.get("steps", 0)
    assert len(whole["steps"]) > 500
    assert rows(tmp_path / "lake") == whole
    assert new == len(whole["steps"])
    assert visible(tmp_path / "lake").notes == []


@pytest.mark.parametrize("chunk", [97, 32_768])
def test_many_runs_over_a_journal_give_what_one_export_gives(
    tmp_path: Path, export: bytes, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    entries = export.split(b"\n\n")
    monkeypatch.setattr(resumed, "BATCH_LINES", chunk)
    for cut in range(0, len(entries), 300):
        # systemd-journal-remote writes behind what the file has
        journals.build(tmp_path / "j" / "system.journal", b"\n\n".join(entries[cut : cut + 300]) + b"\n\n")
        append(tmp_path / "j", tmp_path / "lake")
    whole = at_once(tmp_path / "j", tmp_path / "once")
    assert len(whole["steps"]) > 500
    assert rows(tmp_path / "lake") == whole


KILLER = """
import os, random, signal, sys, time
from pathlib import Path
from ddtree_metrics import exporting
from ddtree_metrics.sources import resumed
lines, growing, lake, kills = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
resumed.BATCH_LINES = 150
data, chance, died = lines.read_bytes(), random.Random(1), 0
def run(kill_after):
    began, child = time.monotonic(), os.fork()
    if not child:
        try:
            exporting.export(growing, lake, append=True, on_error="skip")
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status != 0, time.monotonic() - began
growing.write_bytes(data[: len(data) // 4])
usual = 0.2
while died < kills:
    growing.write_bytes(data[: len(data) // 4 + (3 * len(data) // 4) * died // kills])
    killed, took = run(chance.uniform(0, usual))
    died += killed
    if not killed:
        usual = took
    if died % 5 == 0:
        run(None)
    found = [str(path) for path in (lake / "steps").rglob("*.parquet")]
    if found:
        import pyarrow.parquet as pq
        where = [w for path in found for w in pq.ParquetFile(path).read(["where"])["where"].to_pylist()]
        assert len(where) == len(set(where)), "a foreign reader sees a row twice"
growing.write_bytes(data)
run(None)
print(died)
"""


def test_a_run_killed_200_times_at_any_moment_leaves_no_row_twice_and_none_lost(tmp_path: Path, log: Path) -> None:
    whole = at_once(log, tmp_path / "once")
    place = tmp_path / "run.log"
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(log), str(place), str(tmp_path / "lake"), "200"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["200"]
    assert rows(tmp_path / "lake") == whole
    assert visible(tmp_path / "lake").notes == []
    left = [p.name for p in (tmp_path / "lake" / "_ddtree").rglob("*") if p.is_file()]
    assert sorted(n for n in left if not n.startswith("text-")) == ["lock", "manifest.json"]


def test_two_runs_at_once_add_each_row_once(tmp_path: Path, log: Path) -> None:
    whole = at_once(log, tmp_path / "once")
    command = [sys.executable, "-m", "ddtree_metrics", "export", str(log), "--append", str(tmp_path / "lake")]
    runs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [run.wait() for run in runs] == [0, 0, 0], [run.stderr.read() for run in runs if run.stderr]
    assert rows(tmp_path / "lake") == whole


def test_a_run_that_waits_too_long_for_another_says_so(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, tmp_path / "lake")
    with writing(tmp_path / "lake", 0), pytest.raises(OutputError, match=r"another process writes to .*lake, for more than 0\.1 s"):
        appending.append_lines(tmp_path / "lake", [str(log)], read_options(), wait_s=0.1)


def test_nothing_new_is_no_commit(tmp_path: Path, log: Path) -> None:
    assert append(log, tmp_path / "lake").rows["steps"] > 500
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "lake").rglob("*") if p.is_file()}
    assert append(log, tmp_path / "lake").rows == {}
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "lake").rglob("*") if p.is_file()} == before


def parts_of(export: bytes, *cuts: int) -> list[bytes]:
    entries = [e + b"\n\n" for e in export.split(b"\n\n") if e.strip()]
    ends = [0, *cuts, len(entries)]
    return [b"".join(entries[a:b]) for a, b in itertools.pairwise(ends)]


def without_borders(tables: dict[str, list[dict[str, Any]]]) -> dict[str, list[tuple[Any, ...]]]:
    """What the lines themselves say: no column that needs the line before."""
    return {
        name: sorted((str(r["time"]), str(r["where"]), str(r.get("commit_lens")), str(r.get("event"))) for r in some)
        for name, some in tables.items()
        if name != "events"
    }


def test_a_journal_file_that_comes_late_is_taken_once(tmp_path: Path, export: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumed, "BATCH_LINES", 100)
    first, second, third = parts_of(export, 400, 900)
    journals.build(tmp_path / "j" / "a.journal", first)
    append(tmp_path / "j", tmp_path / "lake")
    journals.build(tmp_path / "j" / "b.journal", third)
    append(tmp_path / "j", tmp_path / "lake")
    journals.build(tmp_path / "j" / "c.journal", second)
    append(tmp_path / "j", tmp_path / "lake")
    append(tmp_path / "j", tmp_path / "lake")
    assert without_borders(rows(tmp_path / "lake")) == without_borders(at_once(tmp_path / "j", tmp_path / "once"))


def test_an_archived_file_of_the_same_sequence_that_comes_late_is_taken_once(
    tmp_path: Path, export: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumed, "BATCH_LINES", 100)
    first, second = parts_of(export, 700)
    # two files with one sequence of numbers: the second goes on where the first ends
    one = journals.build(tmp_path / "one.journal", first)
    both = shutil.copy(one, tmp_path / "both.journal")
    journals.build(Path(both), second)
    data = bytearray(Path(both).read_bytes())
    data[24:40] = b"\x07" * 16  # another file
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "system.journal").write_bytes(data)
    append(tmp_path / "j", tmp_path / "lake")
    shutil.copy(one, tmp_path / "j" / "system@late.journal")
    append(tmp_path / "j", tmp_path / "lake")
    assert without_borders(rows(tmp_path / "lake")) == without_borders(at_once(tmp_path / "j", tmp_path / "once"))


def test_an_earlier_since_adds_what_came_before_and_nothing_twice(tmp_path: Path, export: bytes) -> None:
    journal = journals.build(tmp_path / "j" / "system.journal", export)
    whole = at_once(tmp_path / "j", tmp_path / "once")
    times = [row["time"] for row in whole["steps"]]
    middle, early = times[len(times) // 2].isoformat(), times[len(times) // 4].isoformat()
    append(tmp_path / "j", tmp_path / "lake", since=middle)
    assert len(rows(tmp_path / "lake")["steps"]) == sum(t >= times[len(times) // 2] for t in times)
    append(tmp_path / "j", tmp_path / "lake", since=early)
    assert len(rows(tmp_path / "lake")["steps"]) == sum(t >= times[len(times) // 4] for t in times)
    for since in (middle, early, "2020-01-01", "2020-01-01"):
        append(tmp_path / "j", tmp_path / "lake", since=since)
    assert without_borders(rows(tmp_path / "lake")) == without_borders(whole)
    assert journal.exists()


def test_a_window_with_an_end_is_added_and_what_follows_later_too(tmp_path: Path, log: Path) -> None:
    whole = at_once(log, tmp_path / "once")
    end = whole["steps"][len(whole["steps"]) // 2]["time"].isoformat()
    append(log, tmp_path / "lake", until=end, tz="UTC")
    append(log, tmp_path / "lake", tz="UTC")
    assert without_borders(rows(tmp_path / "lake")) == without_borders(at_once(log, tmp_path / "again", tz="UTC"))


@pytest.mark.parametrize("way", ["copy", "link", "gzip", "elsewhere"])
def test_the_same_file_by_another_path_adds_nothing(tmp_path: Path, log: Path, way: str) -> None:
    append(log, tmp_path / "lake")
    before = rows(tmp_path / "lake")
    other = tmp_path / ("run.log" if way == "elsewhere" else "other.log.gz" if way == "gzip" else "other.log")
    if way == "link":
        other.symlink_to(log)
    elif way == "gzip":
        other.write_bytes(gzip.compress(log.read_bytes()))
    else:
        shutil.copy(log, other)
    assert append(other, tmp_path / "lake").rows == {}
    assert rows(tmp_path / "lake") == before


def test_a_host_whose_lines_come_through_journal_remote_too_is_there_once(tmp_path: Path, export: bytes) -> None:
    journals.build(tmp_path / "own" / "system.journal", export)
    journals.build(tmp_path / "remote" / "remote-gpu1.journal", export)
    append(tmp_path / "own", tmp_path / "lake")
    before = rows(tmp_path / "lake")
    assert append(tmp_path / "remote", tmp_path / "lake").rows == {}
    assert rows(tmp_path / "lake") == before


def test_a_log_that_is_rotated_between_runs_loses_nothing_and_keeps_its_streams(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumed, "BATCH_LINES", 100)
    lines = log.read_bytes().splitlines(keepends=True)
    current, pattern = tmp_path / "run.log", str(tmp_path / "run.log*")
    current.write_bytes(b"".join(lines[:500]))
    append(pattern, tmp_path / "lake", on_error="skip")
    current.write_bytes(b"".join(lines[:700]))
    (tmp_path / "run.log.1.gz").write_bytes(gzip.compress(current.read_bytes()))
    current.write_bytes(b"".join(lines[700:1200]))
    append(pattern, tmp_path / "lake", on_error="skip")
    current.write_bytes(b"".join(lines[700:]))
    append(pattern, tmp_path / "lake", on_error="skip")
    assert len(rows(tmp_path / "lake")["steps"]) == len(at_once(log, tmp_path / "once")["steps"])


def test_a_log_that_was_rotated_away_is_named_and_what_follows_is_taken(tmp_path: Path, log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    current = tmp_path / "run.log"
    current.write_bytes(b"".join(lines[:500]))
    append(current, tmp_path / "lake", on_error="skip")
    kept = len(rows(tmp_path / "lake")["steps"])
    current.write_bytes(b"".join(lines[700:]))
    made = append(current, tmp_path / "lake", on_error="skip")
    assert [note for note in made.coverage.notes if "run.log is not there any more as it was at the last run" in note]
    after = tmp_path / "after.log"
    after.write_bytes(b"".join(lines[700:]))
    assert len(rows(tmp_path / "lake")["steps"]) == kept + len(at_once(after, tmp_path / "once", on_error="skip")["steps"])
    assert append(current, tmp_path / "lake", on_error="skip").rows == {}


def test_entries_that_were_vacuumed_before_they_were_read_are_counted_and_cost_no_other(
    tmp_path: Path, export: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumed, "BATCH_LINES", 100)
    first, _, third = parts_of(export, 500, 650)
    place = tmp_path / "j" / "system.journal"
    journals.build(place, first)
    append(tmp_path / "j", tmp_path / "lake")
    before = rows(tmp_path / "lake")
    sequence = load(tmp_path / "lake").sources.popitem()[1]["end"].popitem()[0]
    place.unlink()
    journals.build(place, third)
    # the sequence goes on at 651: 500 entries were read, 150 went
    data = bytearray(place.read_bytes())
    data[72:88] = bytes.fromhex(sequence)
    renumber(data, 650)
    place.write_bytes(data)
    made = append(tmp_path / "j", tmp_path / "lake")
    assert [n for n in made.coverage.notes if "150 entries of the journal (of all units) between the last run and this one" in n], (
        made.coverage.notes
    )
    after = rows(tmp_path / "lake")
    assert [row for row in after["steps"] if row in before["steps"]] == before["steps"]
    new = [row for row in after["steps"] if row not in before["steps"]]
    assert new
    by_stream: dict[str, str] = {}
    for row in sorted(new, key=lambda row: row["time"]):
        by_stream.setdefault(row["stream"], row["step_why"])
    assert set(by_stream.values()) <= {"outside_window", "first", "restart", "duplicate_rank"}


def renumber(data: bytearray, more: int) -> None:
    """Raise the sequence numbers of a journal file's entries, and those of its header (head 168, tail 160)."""
    for at in (160, 168):
        data[at : at + 8] = (int.from_bytes(data[at : at + 8], "little") + more).to_bytes(8, "little")
    at, end = int.from_bytes(data[88:96], "little"), int.from_bytes(data[88:96], "little") + int.from_bytes(data[96:104], "little")
    while at + 16 <= end:
        size = int.from_bytes(data[at + 8 : at + 16], "little")
        if size < 16:
            break
        if data[at] == 3:  # an entry; its number stands behind the object's head
            data[at + 16 : at + 24] = (int.from_bytes(data[at + 16 : at + 24], "little") + more).to_bytes(8, "little")
        at += (size + 7) // 8 * 8


def test_a_pipe_of_a_journal_adds_each_row_once_and_one_of_bare_text_is_refused(tmp_path: Path, export: bytes, log: Path) -> None:
    first, second = parts_of(export, 700)
    whole = at_once(io.BytesIO(first + second), tmp_path / "once")
    append(io.BytesIO(first), tmp_path / "lake")
    append(io.BytesIO(first + second), tmp_path / "lake")
    assert without_borders(rows(tmp_path / "lake")) == without_borders(whole)
    with pytest.raises(UsageError, match="name the log file"):
        append(io.BytesIO(log.read_bytes()), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_lake_of_tables_without_a_manifest_or_other_folders_is_refused(tmp_path: Path, log: Path) -> None:
    at_once(log, tmp_path / "old")
    with pytest.raises(OutputError, match="name another folder"):
        append(log, tmp_path / "old")
    append(log, tmp_path / "lake")
    with pytest.raises(OutputError, match="is partitioned by host, date"):
        append(log, tmp_path / "lake", partition=("date",))


def test_a_lake_is_read_with_the_account_of_all_runs(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumed, "BATCH_LINES", 97)
    lines, growing = log.read_bytes().splitlines(keepends=True), tmp_path / "run.log"
    for end in (400, 800, len(lines)):
        growing.write_bytes(b"".join(lines[:end]))
        append(growing, tmp_path / "lake", on_error="skip")
    made, whole = ddt.read(tmp_path / "lake"), ddt.read(log)
    assert made.coverage.lines == whole.coverage.lines == len(lines)
    assert made.coverage.parsed == whole.coverage.parsed
    assert made.coverage.duplicate_ranks == whole.coverage.duplicate_ranks
    assert made.counts.commit_minus_accepted == whole.counts.commit_minus_accepted
    assert len(made.steps) == len(whole.steps)


def test_every_reader_takes_a_lake_and_none_what_is_its_own(tmp_path: Path, log: Path) -> None:
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow.dataset as ds

    append(log, tmp_path / "lake")
    lake, steps = tmp_path / "lake", len(rows(tmp_path / "lake")["steps"])
    # what a killed run may leave is neither Parquet by its name nor in the folder of a table
    left = lake / "_ddtree" / "staging" / "00000009" / "steps" / "host=unknown" / "date=2026-02-02"
    left.mkdir(parents=True)
    shutil.copy(next((lake / "steps").rglob("*.parquet")), left / "part-00000009-0000.parquet.part")
    assert duckdb.sql(f"SELECT count(*) FROM '{lake}/steps/**/*.parquet'").fetchall() == [(steps,)]
    everything = duckdb.sql(f"SELECT count(*) FROM read_parquet('{lake}/**/*.parquet', union_by_name=true, hive_partitioning=false)")
    assert everything.fetchall() == [(sum(len(some) for some in rows(lake).values()),)]
    assert len(pd.read_parquet(lake / "steps")) == steps
    assert pl.scan_parquet(lake / "steps").select(pl.len()).collect().item() == steps
    assert ds.dataset(lake / "steps", partitioning="hive").count_rows() == steps
    assert ddt.read(lake).table("steps").num_rows == steps


def test_what_does_not_belong_into_a_lake_is_named_and_the_rest_is_answered(tmp_path: Path, export: bytes) -> None:
    hosts = [export.replace(b"_HOSTNAME=simulated", f"_HOSTNAME={name}".encode()) for name in ("a", "b", "c")]
    for name, some in zip("abc", hosts, strict=True):
        journals.build(tmp_path / "j" / f"remote-{name}.journal", some)
    lake = tmp_path / "lake"
    append(tmp_path / "j", lake)
    whole = rows(lake)
    assert {row["host"] for row in whole["steps"]} == {"a", "b", "c"}
    assert {p.name for p in (lake / "steps").iterdir()} == {"host=a", "host=b", "host=c"}
    (lake / "steps" / "host=a" / "notes.txt").write_text("mine")
    part = next((lake / "steps" / "host=b").rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:1000])
    shutil.rmtree(lake / "steps" / "host=c")
    seen = visible(lake)
    assert [note.rpartition("/")[2] for note in seen.notes if "notes.txt" in note] == [
        "notes.txt is no part of this lake (it is not in its manifest) and is left out"
    ]
    assert [note for note in seen.notes if str(part) in note and "has 1,000 of" in note]
    assert [note for note in seen.notes if "host=c" in note and "was deleted" in note]
    made = ddt.read(lake)
    assert set(made.steps["host"]) == {"a"}
    assert len(made.table("steps")) == sum(row["host"] == "a" for row in whole["steps"])
    assert sum("left out" in text for text in made.coverage.damaged) == 2
    assert [note for note in made.coverage.notes if "was deleted" in note]


def test_a_step_takes_at_most_12_bytes_on_disk_in_the_columns_that_analyses_need(tmp_path: Path) -> None:
    run = simulate(requests=2_500, concurrency=4, output=(100, 600), seed=3)
    journals.build(tmp_path / "j" / "system.journal", write_export(run, tmp_path / "run.export").read_bytes())
    append(tmp_path / "j", tmp_path / "lake", tables=["steps"])
    size: dict[str, float] = {}
    steps = 0
    for path in (tmp_path / "lake" / "steps").rglob("*.parquet"):
        foot = pq.read_metadata(path)
        steps += foot.num_rows
        for group in range(foot.num_row_groups):
            for i in range(foot.num_columns):
                column = foot.row_group(group).column(i)
                name = column.path_in_schema.partition(".")[0]
                size[name] = size.get(name, 0) + column.total_compressed_size
    assert steps > 40_000
    each = {name: n / steps for name, n in size.items()}
    # times are there once for analyses (time_us, and step_us between them); where tells where a line stands
    assert sum(n for name, n in each.items() if name not in ("time", "monotonic_us", "where")) <= 12
    # a random hash, both clocks and the boot in each place were 12.6 bytes; now it is the number of an entry, one more than before
    assert each["where"] < 1
    assert each["boot_id"] + each["stream"] + each["unit"] + each["dialect"] + each["time_from"] < 0.2


def test_a_place_in_a_journal_is_a_cursor_that_journalctl_takes(tmp_path: Path, export: bytes) -> None:
    journals.build(tmp_path / "j" / "system.journal", export)
    steps = ddt.read(tmp_path / "j").table("steps").to_pylist()
    row = steps[len(steps) // 2]
    cursor = row["where"].removeprefix("journal:")
    assert cursor.count(";") == 1
    said = subprocess.run(
        ["journalctl", "-D", str(tmp_path / "j"), f"--cursor={cursor}", "-n", "+1", "-o", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(said.stdout.splitlines()[0])
    assert int(found["__MONOTONIC_TIMESTAMP"]) == row["monotonic_us"]
