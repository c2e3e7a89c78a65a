"""Files are whole or not there, and every reader reads every file."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddtree_metrics.errors import OutputError, SchemaError
from ddtree_metrics.records import TABLES, DecodeBatch, TreeStep
from ddtree_metrics.schema import arrow_schema, columns
from ddtree_metrics.tables import conform, empty, from_records, to_records, writers
from ddtree_metrics.tables.writers import FolderWriter, format_of, open_writer, write_tables

UTC = timezone.utc
T0 = datetime(2026, 1, 1, 12, 0, 0, 500000, tzinfo=UTC)
STEP = TreeStep(
    time=T0,
    time_us=1767268800500000,
    host='ki"mi, 1',
    batch_size=2,
    nodes=(),
    commit_lens=(4, 5),
    request_ids=("a", 'b"'),
    avg_commit_len=4.5,
    extra={"k": "v\n"},
    tokens=9,
)
NOTES = {"coverage": '{"lines": 3}', "counts": "{}"}


def write(path: Path, rows: list[Any], record: type = TreeStep, **options: Any) -> Path:
    with open_writer(path, record, metadata=NOTES, **options) as out:
        out.write(from_records(rows, record))
    return path


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# Which format


@pytest.mark.parametrize(
    ("path", "given", "expected"),
    [
        ("a.parquet", None, "parquet"),
        ("a.PARQUET", None, "parquet"),
        ("a.csv", None, "csv"),
        ("a.jsonl", None, "jsonl"),
        ("a.ndjson", None, "jsonl"),
        ("a.arrow", None, "arrow"),
        ("a.feather", None, "arrow"),
        ("a.txt", "csv", "csv"),
        ("-", "Parquet", "parquet"),
        ("a.csv", "jsonl", "jsonl"),
    ],
)
def test_the_suffix_means_the_format_unless_it_is_given(path: str, given: str | None, expected: str) -> None:
    assert format_of(path, given) == expected


@pytest.mark.parametrize(("path", "given"), [("a.txt", None), ("a", None), ("-", None), ("a.csv", "excel"), ("a.json", None)])
def test_what_means_no_format_lists_those_that_do(path: str, given: str | None) -> None:
    with pytest.raises(OutputError, match=r"parquet \(\.parquet .*jsonl \(\.jsonl \.ndjson\)") as caught:
        format_of(path, given)
    assert caught.value.exit_code == 2


# What is in the files


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_metadata_known_at_the_end_is_in_the_file_and_in_the_schema(tmp_path: Path, suffix: str) -> None:
    known: dict[str, str] = {}
    with open_writer(tmp_path / f"a.{suffix}", TreeStep, metadata=lambda: known) as out:
        out.write(from_records([STEP], TreeStep))
        known.update(NOTES)
    if suffix == "parquet":
        table = pq.read_table(tmp_path / "a.parquet")
        found = pq.read_metadata(tmp_path / "a.parquet").metadata
    else:
        with pa.ipc.open_file(tmp_path / "a.arrow") as file:
            table = file.read_all()
        found = table.schema.metadata
    wanted = arrow_schema(TreeStep, NOTES)
    assert table.schema.equals(wanted)
    for metadata in (table.schema.metadata, found):
        assert wanted.metadata.items() <= metadata.items()
    assert json.loads(found[b"ddtree_metrics.coverage"]) == {"lines": 3}
    assert table.schema.field("budget").metadata[b"unit"] == b"nodes"
    assert list(to_records(table, TreeStep)) == [STEP]


def test_small_batches_are_collected_into_large_row_groups(tmp_path: Path) -> None:
    batch = from_records([TreeStep(time=T0, budget=i) for i in range(1000)], TreeStep)
    with open_writer(tmp_path / "a.parquet", TreeStep) as out:
        for _ in range(300):
            out.write(batch)
    assert out.rows == 300_000
    found = pq.ParquetFile(tmp_path / "a.parquet").metadata
    assert [found.row_group(i).num_rows for i in range(found.num_row_groups)] == [262_144, 300_000 - 262_144]
    by_name = {found.row_group(0).column(i).path_in_schema: found.row_group(0).column(i) for i in range(found.num_columns)}
    assert by_name["time"].encodings == ("DELTA_BINARY_PACKED", "RLE") or "DELTA_BINARY_PACKED" in by_name["time"].encodings
    assert "RLE_DICTIONARY" in by_name["budget"].encodings
    assert "RLE_DICTIONARY" in by_name["nodes.list.element"].encodings
    assert by_name["time"].statistics.min == T0
    assert {c.compression for c in by_name.values()} == {"ZSTD"}
    assert found.num_rows == 300_000


def test_csv_has_a_header_lists_as_json_and_times_in_utc(tmp_path: Path) -> None:
    text = write(tmp_path / "a.csv", [STEP, TreeStep(host="")]).read_bytes().decode()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert list(rows[0]) == [c.name for c in columns(TreeStep)]
    assert rows[0]["time"] == "2026-01-01T12:00:00.500000Z"
    assert rows[0]["host"] == 'ki"mi, 1'
    assert json.loads(rows[0]["commit_lens"]) == [4, 5]
    assert json.loads(rows[0]["nodes"]) == []
    assert json.loads(rows[0]["request_ids"]) == ["a", 'b"']
    assert json.loads(rows[0]["extra"]) == {"k": "v\n"}
    assert rows[0]["avg_commit_len"] == "4.5"
    assert rows[1]["budget"] == ""
    # a missing text is empty, an empty text is quoted
    assert text.splitlines()[-1].count('""') == 1


def test_csv_without_rows_is_its_header(tmp_path: Path) -> None:
    assert write(tmp_path / "a.csv", []).read_text() == ",".join(c.name for c in columns(TreeStep)) + "\n"


def test_json_lines_are_one_object_a_line_and_have_no_nan(tmp_path: Path) -> None:
    odd = TreeStep(avg_commit_len=math.inf, host="\x00\u2028é\\")
    text = write(tmp_path / "a.jsonl", [STEP, odd]).read_text()

    def refuse(word: str) -> None:
        raise AssertionError(word)

    first, second = (json.loads(line, parse_constant=refuse) for line in text.split("\n")[:-1])
    assert list(first) == [c.name for c in columns(TreeStep)]
    assert first["time"] == "2026-01-01T12:00:00.500000Z"
    assert (first["commit_lens"], first["nodes"], first["budget"], first["extra"]) == ([4, 5], [], None, {"k": "v\n"})
    assert (second["avg_commit_len"], second["host"]) == (None, "\x00\u2028é\\")


def test_json_lines_without_rows_are_an_empty_file(tmp_path: Path) -> None:
    assert write(tmp_path / "a.jsonl", []).read_bytes() == b""


def of_json(line: str, record: type) -> Any:
    """Make the record of a JSON line, as a reader without this library would."""
    held = json.loads(line)
    for column in columns(record):
        value = held[column.name]
        if value is None:
            continue
        if column.kind == "datetime":
            held[column.name] = datetime.strptime(value, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
        elif column.kind.startswith("list"):
            held[column.name] = tuple(value)
        elif column.kind == "float":
            held[column.name] = float(value)
    return record(**held)


def rows_of(record: type) -> st.SearchStrategy[list[Any]]:
    made: dict[str, st.SearchStrategy[Any]] = {}
    text = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
    for column in columns(record):
        bits = 63 if column.col.wide else 31
        whole = st.integers(-(2**bits), 2**bits - 1)
        kinds: dict[str, st.SearchStrategy[Any]] = {
            "int": whole,
            "float": st.floats(allow_nan=False, allow_infinity=False),
            "str": text,
            "bool": st.booleans(),
            "datetime": st.datetimes(datetime(1000, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)),
            "list<int>": st.lists(whole, max_size=3).map(tuple),
            "list<float>": st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
            "list<str>": st.lists(text, max_size=3).map(tuple),
            "map": st.dictionaries(text, text, max_size=3),
        }
        made[column.name] = st.none() | kinds[column.kind]
    return st.lists(st.builds(record, **made), max_size=4)


@pytest.mark.parametrize("record", TABLES.values(), ids=TABLES)
@settings(max_examples=8, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_records_come_back_from_parquet_arrow_and_json_lines(record: type, data: st.DataObject, tmp_path: Path) -> None:
    rows = data.draw(rows_of(record))
    write(tmp_path / "a.parquet", rows, record, force=True)
    assert list(to_records(pq.read_table(tmp_path / "a.parquet"), record)) == rows
    write(tmp_path / "a.arrow", rows, record, force=True)
    with pa.ipc.open_file(tmp_path / "a.arrow") as file:
        assert list(to_records(file.read_all(), record)) == rows
    lines = write(tmp_path / "a.jsonl", rows, record, force=True).read_text().split("\n")[:-1]
    assert [of_json(line, record) for line in lines] == rows


# O19


@pytest.mark.parametrize("order", list(itertools.permutations(["e0", "e1", "e2"])), ids="".join)
def test_o19_every_reader_reads_every_file_in_every_order(tmp_path: Path, order: tuple[str, ...]) -> None:
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow.dataset as ds

    from ddtree_metrics.tables.datasets import read_tables

    one = TreeStep(time=T0, batch_size=1, commit_lens=(4,))
    for name, rows in {"e0": [], "e1": [TreeStep()], "e2": [one]}.items():
        write(tmp_path / f"{name}.parquet", rows)
    files = [str(tmp_path / f"{name}.parquet") for name in order]

    for file in files:
        schema = pq.read_schema(file)
        assert schema.equals(arrow_schema(TreeStep))
        assert schema.field("time").type == pa.timestamp("us", tz="UTC")
        assert schema.field("batch_size").type == pa.int32()
        assert str(schema.field("commit_lens").type) == "list<element: int32>"
        assert schema.field("host").type == pa.string()
        assert schema.metadata[b"ddtree_metrics.schema_version"] == b"3"

    seen = duckdb.sql(f"SELECT batch_size, commit_lens, typeof(time), typeof(batch_size) FROM read_parquet({files})").fetchall()
    assert sorted(seen, key=str) == [(1, [4], "TIMESTAMP WITH TIME ZONE", "INTEGER"), (None, None, "TIMESTAMP WITH TIME ZONE", "INTEGER")]
    frame = pl.read_parquet(files)
    assert (frame.height, frame.schema["time"], frame.schema["batch_size"]) == (2, pl.Datetime("us", "UTC"), pl.Int32)
    assert pd.concat([pd.read_parquet(f) for f in files]).shape[0] == 2
    assert pd.read_parquet(files).shape[0] == 2
    assert ds.dataset(files).to_table().schema.field("batch_size").type == pa.int32()
    assert ds.dataset(files).count_rows() == 2
    assert list(to_records(read_tables(files)["steps"], TreeStep)) in ([TreeStep(), one], [one, TreeStep()])


# Whole or not there


def test_an_existing_file_is_not_overwritten_without_force(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("old")
    with pytest.raises(OutputError, match="exists already") as caught:
        open_writer(tmp_path / "a.parquet", TreeStep)
    assert caught.value.exit_code == 2
    assert (names(tmp_path), (tmp_path / "a.parquet").read_text()) == (["a.parquet"], "old")
    write(tmp_path / "a.parquet", [STEP], force=True)
    assert (names(tmp_path), pq.read_metadata(tmp_path / "a.parquet").num_rows) == (["a.parquet"], 1)


def test_a_file_that_comes_up_in_the_meantime_is_left_alone(tmp_path: Path) -> None:
    out = open_writer(tmp_path / "a.csv", TreeStep)
    (tmp_path / "a.csv").write_text("mine")
    with pytest.raises(OutputError, match="has come into being"), out:
        pass
    assert (names(tmp_path), (tmp_path / "a.csv").read_text()) == (["a.csv"], "mine")


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "arrow"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path, suffix: str, error: type[BaseException]) -> None:
    (tmp_path / f"a.{suffix}").write_text("old")
    with pytest.raises(error), open_writer(tmp_path / f"a.{suffix}", TreeStep, force=True) as out:  # noqa: PT012
        out.write(from_records([STEP], TreeStep))
        raise error
    assert (names(tmp_path), (tmp_path / f"a.{suffix}").read_text()) == ([f"a.{suffix}"], "old")


def test_rows_that_do_not_fit_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(SchemaError), open_writer(tmp_path / "a.parquet", TreeStep) as out:  # noqa: PT012
        out.write(from_records([STEP], TreeStep))
        out.write(empty(DecodeBatch))
    assert names(tmp_path) == []


def test_metadata_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), open_writer(tmp_path / "a.parquet", TreeStep, metadata=lambda: {"x": str(1 / 0)}):
        pass
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "words"),
    [("no/a.parquet", "there is no folder .*no"), ("file/a.parquet", "there is no folder .*file"), ("dir", "is a folder")],
)
def test_places_where_nothing_can_be_written_are_named(tmp_path: Path, path: str, words: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "dir").mkdir()
    with pytest.raises(OutputError, match=words):
        open_writer(tmp_path / path, TreeStep, format="parquet")
    assert names(tmp_path) == ["dir", "file"]


def test_a_name_of_the_greatest_length_is_written(tmp_path: Path) -> None:
    write(tmp_path / ("n" * 247 + ".parquet"), [STEP])
    with pytest.raises(OutputError, match="the name is too long"):
        write(tmp_path / ("n" * 300 + ".parquet"), [STEP])
    assert len(names(tmp_path)) == 1


def test_a_link_is_written_through_and_modes_are_kept(tmp_path: Path) -> None:
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "real.csv").chmod(0o640)
    (tmp_path / "link.csv").symlink_to("real.csv")
    write(tmp_path / "link.csv", [STEP], force=True)
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == ["link.csv", "real.csv"]


def test_new_files_have_the_mode_that_the_user_s_mask_says(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write(tmp_path / "a.csv", [STEP])
    finally:
        os.umask(old)
    assert (tmp_path / "a.csv").stat().st_mode & 0o777 == 0o640


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 64 KiB: writing fails in the middle, as on a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "arrow"])
def test_a_write_that_fails_in_the_middle_leaves_the_old_file(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a.{suffix}").write_text("old")
    rows = from_records([TreeStep(where=os.urandom(8).hex(), time_us=i) for i in range(20_000)], TreeStep)
    with (
        pytest.raises(OutputError, match=r"larger than is allowed.*nothing was left behind"),
        open_writer(tmp_path / f"a.{suffix}", TreeStep, force=True) as out,
    ):
        out.write(rows)
    assert (names(tmp_path), (tmp_path / f"a.{suffix}").read_text()) == ([f"a.{suffix}"], "old")


@pytest.mark.parametrize("format", ["parquet", "csv", "jsonl", "arrow"])
def test_a_full_device_is_told_as_such(format: str) -> None:
    rows = from_records([TreeStep(time_us=i) for i in range(5_000)], TreeStep)
    with pytest.raises(OutputError, match="/dev/full: no space is left"), open_writer("/dev/full", TreeStep, format=format) as out:
        out.write(rows)
    assert Path("/dev/full").is_char_device()


def test_a_device_is_written_to_and_stays_what_it_is() -> None:
    with open_writer("/dev/null", TreeStep, format="parquet") as out:
        out.write(from_records([STEP], TreeStep))
    assert Path("/dev/null").is_char_device()


CHILD = """
    import sys
    from ddtree_metrics.tables import from_records
    from ddtree_metrics.records import TreeStep
    from ddtree_metrics.tables.writers import open_writer
    with open_writer(sys.argv[1], TreeStep, force=True) as out:
        rows = from_records([TreeStep(where=str(i)) for i in range(50_000)], TreeStep)
        print("ready", flush=True)
        while True:
            out.write(rows)
"""


def killed_in_mid_write(path: Path, number: signal.Signals) -> int:
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(CHILD), str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    child.stdout.readline()
    until = time.monotonic() + 30
    while not any(p.name.startswith(".a.") and p.stat().st_size > 100_000 for p in path.parent.iterdir()) and time.monotonic() < until:
        time.sleep(0.02)
    child.send_signal(number)
    child.stdout.close()
    return child.wait(60)


def test_ctrl_c_in_mid_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [STEP])
    assert killed_in_mid_write(tmp_path / "a.parquet", signal.SIGINT) != 0
    assert names(tmp_path) == ["a.parquet"]
    assert pq.read_metadata(tmp_path / "a.parquet").num_rows == 1


def test_a_kill_in_mid_write_does_not_harm_what_readers_see(tmp_path: Path) -> None:
    import duckdb
    import polars as pl

    write(tmp_path / "a.parquet", [STEP])
    assert killed_in_mid_write(tmp_path / "a.parquet", signal.SIGKILL) == -signal.SIGKILL
    left = [name for name in names(tmp_path) if name != "a.parquet"]
    assert [name[:3] + name[-8:] for name in left] == [".a..partial"]
    assert duckdb.sql(f"SELECT count(*) FROM '{tmp_path}/*.parquet'").fetchall() == [(1,)]
    assert pl.read_parquet(f"{tmp_path}/*.parquet").height == 1
    assert pq.read_table(tmp_path).num_rows == 1
    write(tmp_path / "a.parquet", [STEP, STEP], force=True)
    assert pq.read_metadata(tmp_path / "a.parquet").num_rows == 2


# stdout


def through_stdout(format: str, rows: int = 1) -> subprocess.CompletedProcess[bytes]:
    code = f"""
        from ddtree_metrics.tables import from_records
        from ddtree_metrics.records import TreeStep
        from ddtree_metrics.tables.writers import open_writer
        with open_writer("-", TreeStep, format={format!r}, metadata={NOTES!r}) as out:
            out.write(from_records([TreeStep(budget=16)] * {rows}, TreeStep))
    """
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, check=True, timeout=60)


def test_parquet_and_arrow_go_through_a_pipe() -> None:
    table = pq.read_table(io.BytesIO(through_stdout("parquet").stdout))
    assert (table.column("budget").to_pylist(), table.schema.metadata[b"ddtree_metrics.counts"]) == ([16], b"{}")
    with pa.ipc.open_file(pa.py_buffer(through_stdout("arrow").stdout)) as file:
        assert file.read_all().schema.metadata[b"ddtree_metrics.counts"] == b"{}"


def test_text_goes_through_a_pipe() -> None:
    assert json.loads(through_stdout("jsonl").stdout)["budget"] == 16
    assert through_stdout("csv").stdout.decode().count("\n") == 2


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_binary_is_refused_on_a_terminal(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with pytest.raises(OutputError, match="stdout is a terminal") as caught:
        open_writer("-", TreeStep, format=format)
    assert caught.value.exit_code == 2


def test_a_broken_pipe_stays_one() -> None:
    read, wrote = os.pipe()
    os.close(read)
    with pytest.raises(BrokenPipeError), open_writer(f"/dev/fd/{wrote}", TreeStep, format="csv") as out:
        out.write(from_records([STEP] * 5000, TreeStep))
    os.close(wrote)


# Folders


def test_each_table_gets_its_file_also_without_rows(tmp_path: Path) -> None:
    batches = from_records([STEP, STEP], TreeStep).to_batches()
    rows = write_tables(
        tmp_path / "new" / "out", {"steps": (TreeStep, iter(batches)), "decode": (DecodeBatch, empty(DecodeBatch))}, metadata=NOTES
    )
    assert rows == {"steps": 2, "decode": 0}
    assert names(tmp_path / "new" / "out") == ["decode.parquet", "steps.parquet"]
    for name, record in (("steps", TreeStep), ("decode", DecodeBatch)):
        assert pq.read_schema(tmp_path / "new" / "out" / f"{name}.parquet").equals(arrow_schema(record))


def test_one_existing_file_stops_all_of_them_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "decode.csv").write_text("old")
    with pytest.raises(OutputError, match=r"decode\.csv exists already"):
        FolderWriter(tmp_path, {"steps": TreeStep, "decode": DecodeBatch}, format="csv")
    assert names(tmp_path) == ["decode.csv"]


def test_a_failure_in_one_table_writes_none_and_takes_the_new_folder_back(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), FolderWriter(tmp_path / "a" / "b", {"steps": TreeStep, "decode": DecodeBatch}) as out:  # noqa: PT012
        out.write("steps", from_records([STEP], TreeStep))
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(OutputError, match="out is a file, not a folder"):
        FolderWriter(tmp_path / "out", {"steps": TreeStep})
    with pytest.raises(OutputError, match="a part of its path is a file"):
        FolderWriter(tmp_path / "out" / "deeper", {"steps": TreeStep})


def test_files_can_be_conformed_after_another_tool_rewrote_them(tmp_path: Path) -> None:
    import duckdb

    write(tmp_path / "a.parquet", [STEP])
    duckdb.sql(f"COPY (SELECT * FROM '{tmp_path}/a.parquet') TO '{tmp_path}/b.parquet'")
    assert list(to_records(conform(pq.read_table(tmp_path / "b.parquet"), TreeStep), TreeStep)) == [STEP]


def test_the_formats_are_told_by_the_module() -> None:
    assert set(writers.FORMATS) == {"parquet", "csv", "jsonl", "arrow"}
