"""Datasets in Hive's layout, and reading back whatever export wrote."""

from __future__ import annotations

import errno
import os
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddtree_metrics.errors import OutputError, SourceError
from ddtree_metrics.records import DecodeBatch, Request, TreeStep
from ddtree_metrics.schema import METADATA_PREFIX, arrow_schema
from ddtree_metrics.tables import datasets, from_records, to_records, writers
from ddtree_metrics.tables.datasets import DatasetWriter, is_stored, read_tables
from ddtree_metrics.tables.writers import open_writer, write_tables

UTC = timezone.utc
T0 = datetime(2026, 1, 1, 23, 59, 59, tzinfo=UTC)


def step(host: str | None, seconds: float | None, budget: int = 16) -> TreeStep:
    return TreeStep(time=None if seconds is None else T0 + timedelta(seconds=seconds), host=host, budget=budget, commit_lens=(4,))


ROWS = [step("a", 0, 1), step("b", 0.5, 2), step("a", 1, 3), step("b", 2, 4), step("a", 3, 5)]


def add(root: Path, rows: list[Any], source: str = "run.log", record: type = TreeStep, **options: Any) -> None:
    with DatasetWriter(root, record, source=source, **options) as out:
        for i in range(0, len(rows), 2):
            out.write(from_records(rows[i : i + 2], record))
        assert out.rows == len(rows)


def tree(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def folders(root: Path) -> list[str]:
    return sorted({str(p.parent.relative_to(root)) for p in root.rglob("*.parquet")})


def rows_in(*paths: Path) -> list[Any]:
    return list(to_records(read_tables(paths)["steps"], TreeStep))


# Writing


def notes_of(path: Path) -> dict[str, str]:
    """What a file says of itself."""
    known = pq.read_schema(path).metadata
    return {key.decode().removeprefix(METADATA_PREFIX): value.decode() for key, value in known.items()}


def test_rows_go_into_folders_of_host_and_utc_date(tmp_path: Path) -> None:
    add(tmp_path / "ds", ROWS)
    assert folders(tmp_path / "ds") == [f"steps/host={h}/date=2026-01-{d:02}" for h in "ab" for d in (1, 2)]
    assert [p.name for p in tmp_path.iterdir()] == ["ds"]
    part = next((tmp_path / "ds").rglob("*.parquet"))
    assert part.name.startswith("part-run.log-")
    assert "host" not in pq.read_schema(part).names
    assert "date" not in pq.read_schema(part).names


def test_rows_come_back_by_host_and_time_with_their_host(tmp_path: Path) -> None:
    add(tmp_path / "ds", ROWS)
    assert rows_in(tmp_path / "ds") == [r for h in "ab" for r in ROWS if r.host == h]
    assert rows_in(tmp_path / "ds" / "steps") == rows_in(tmp_path / "ds")
    assert [r.budget for r in rows_in(tmp_path / "ds" / "steps" / "host=b")] == [2, 4]
    assert read_tables(tmp_path / "ds")["steps"].schema.equals(arrow_schema(TreeStep))


def test_every_reader_takes_the_dataset_without_options(tmp_path: Path) -> None:
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow.dataset as ds

    add(tmp_path / "ds", [*ROWS, step(None, 0, 6)])
    table = tmp_path / "ds" / "steps"
    found = duckdb.sql(f"SELECT host, date, count(*), sum(budget) FROM '{table}/**/*.parquet' GROUP BY ALL ORDER BY ALL").fetchall()
    first, second = date(2026, 1, 1), date(2026, 1, 2)
    assert found == [("a", first, 1, 1), ("a", second, 2, 8), ("b", first, 1, 2), ("b", second, 1, 4), ("unknown", first, 1, 6)]
    frame = pd.read_parquet(table)
    assert frame.groupby(frame.host.astype(str)).budget.sum().to_dict() == {"a": 9, "b": 6, "unknown": 6}
    polars = pl.read_parquet(table)
    assert (polars.schema["date"], polars["host"].unique().sort().to_list()) == (pl.Date, ["a", "b", "unknown"])
    assert pl.scan_parquet(table).select(pl.len()).collect().item() == 6
    # pyarrow.dataset reads the rows without options too; for the folders' columns it wants to be told that they are Hive's
    assert ds.dataset(table).count_rows() == 6
    assert ds.dataset(table, partitioning="hive").to_table(filter=ds.field("host") == "a").num_rows == 3
    assert pq.read_table(table).num_rows == 6


def test_a_dataset_of_rows_without_a_host_is_read_by_all(tmp_path: Path) -> None:
    import duckdb
    import pandas as pd
    import polars as pl

    rows = [step(None, 0), step(None, None), step("unknown", 0), step("", 0)]
    add(tmp_path / "ds", rows)
    assert len(pd.read_parquet(tmp_path / "ds" / "steps")) == 4
    assert pl.read_parquet(tmp_path / "ds" / "steps").height == 4
    assert duckdb.sql(f"SELECT count(*) FROM '{tmp_path}/ds/steps/**/*.parquet'").fetchall() == [(4,)]
    # and here each is what it was
    assert sorted(map(repr, rows_in(tmp_path / "ds"))) == sorted(map(repr, rows))


@pytest.mark.parametrize(
    "host", ["a/b", "a=b", "a b", "ü.example", "100%", "../..", "..", "a\\b:c*?", "x\ny", "123", "[v6::1]", "a'b\"c", "a+b", "%41"]
)
def test_odd_host_names_come_back_from_every_reader(tmp_path: Path, host: str) -> None:
    import duckdb
    import pandas as pd
    import polars as pl

    add(tmp_path / "ds", [step(host, 0), step("zz", 0)])
    table = tmp_path / "ds" / "steps"
    assert len(list(table.iterdir())) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["ds"]
    assert {r.host for r in rows_in(tmp_path / "ds")} == {host, "zz"}
    assert set(pd.read_parquet(table).host.astype(str)) == {host, "zz"}
    assert set(pl.read_parquet(table)["host"].to_list()) == {host, "zz"}
    assert set(duckdb.sql(f"SELECT DISTINCT host FROM '{table}/**/*.parquet'").fetchall()) == {(host,), ("zz",)}


def test_the_same_source_again_replaces_its_parts_and_another_adds(tmp_path: Path) -> None:
    root = tmp_path / "ds"
    add(root, ROWS, "run.log")
    before = tree(root)
    add(root, ROWS, "run.log")
    assert tree(root) == before
    assert len(rows_in(root)) == 5
    add(root, ROWS[:2], "other.log")
    assert len(rows_in(root)) == 7
    add(root, ROWS[:1], "run.log")  # the other partitions have no rows of it any more
    assert len(rows_in(root)) == 3
    assert folders(root) == ["steps/host=a/date=2026-01-01", "steps/host=b/date=2026-01-01"]


def test_sources_with_the_same_name_elsewhere_are_two(tmp_path: Path) -> None:
    add(tmp_path / "ds", ROWS, "/one/run.log")
    add(tmp_path / "ds", ROWS, "/two/run.log")
    assert len(rows_in(tmp_path / "ds")) == 10


def test_several_tables_share_a_root(tmp_path: Path) -> None:
    add(tmp_path / "ds", ROWS)
    add(tmp_path / "ds", [DecodeBatch(time=T0, host="a", running=1)], record=DecodeBatch)
    made = read_tables(tmp_path / "ds")
    assert {name: table.num_rows for name, table in made.items()} == {"steps": 5, "decode": 1}


@pytest.mark.parametrize("max_open", [1, 2, 32])
def test_the_number_of_open_parts_is_bounded_and_changes_nothing(tmp_path: Path, max_open: int) -> None:
    known: dict[str, str] = {}
    rows = [step(f"h{i % 5}", i * 0.001, i) for i in range(40)]
    with DatasetWriter(tmp_path / "ds", TreeStep, source="x", metadata=lambda: known, max_open=max_open) as out:
        for row in rows:
            out.write(from_records([row], TreeStep))
            assert len(out._open) <= max_open
        known["coverage"] = "{}"
    assert rows_in(tmp_path / "ds") == sorted(rows, key=lambda r: (r.host, r.budget))
    for path in (tmp_path / "ds").rglob("*.parquet"):
        assert notes_of(path)["coverage"] == "{}"


def test_waiting_rows_are_bounded_over_all_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "GROUP_ROWS", 10)
    with DatasetWriter(tmp_path / "ds", TreeStep, source="x") as out:
        for i in range(50):
            out.write(from_records([step(f"h{i % 4}", 0, i)] * 3, TreeStep))
            assert sum(w.pending_rows for w in out._open.values()) <= 20
    assert len(rows_in(tmp_path / "ds")) == 150


def test_other_columns_can_name_the_folders(tmp_path: Path) -> None:
    add(tmp_path / "ds", ROWS, partition=("date",))
    assert folders(tmp_path / "ds") == ["steps/date=2026-01-01", "steps/date=2026-01-02"]
    assert rows_in(tmp_path / "ds") == ROWS
    assert "host" in pq.read_schema(next((tmp_path / "ds").rglob("*.parquet"))).names


@pytest.mark.parametrize(
    ("record", "partition"),
    [(TreeStep, ("budget",)), (TreeStep, ("nothing",)), (TreeStep, ("host", "host")), (Request, ("host",)), (TreeStep, ())],
)
def test_what_cannot_name_folders_says_what_can(tmp_path: Path, record: type, partition: tuple[str, ...]) -> None:
    with pytest.raises(OutputError, match=r"cannot be partitioned by .*; it can by ") as caught:
        DatasetWriter(tmp_path / "ds", record, partition, source="x")
    assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_without_rows_nothing_is_written(tmp_path: Path) -> None:
    add(tmp_path / "ds", [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_the_dataset_as_it_was(tmp_path: Path, error: type[BaseException]) -> None:
    root = tmp_path / "deep" / "ds"
    with pytest.raises(error), DatasetWriter(root, TreeStep, source="x") as out:  # noqa: PT012
        out.write(from_records(ROWS, TreeStep))
        raise error
    assert list(tmp_path.iterdir()) == []
    add(root, ROWS[:1])
    before = tree(tmp_path)
    with pytest.raises(error), DatasetWriter(root, TreeStep, source="run.log") as out:  # noqa: PT012
        out.write(from_records(ROWS, TreeStep))
        raise error
    assert tree(tmp_path) == before


def test_a_full_disk_leaves_the_dataset_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path / "ds", ROWS[:1])
    before = tree(tmp_path)

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = DatasetWriter(tmp_path / "ds", TreeStep, source="run.log")
    out.write(from_records(ROWS, TreeStep))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="no space is left"):
        out.commit()
    assert tree(tmp_path) == before


def test_parts_in_the_making_are_seen_by_no_reader(tmp_path: Path) -> None:
    import duckdb
    import pandas as pd
    import polars as pl

    root = tmp_path / "ds"
    add(root, ROWS)
    out = DatasetWriter(root, TreeStep, source="other.log")
    out.write(from_records(ROWS, TreeStep))
    try:
        assert duckdb.sql(f"SELECT count(*) FROM '{root}/**/*.parquet'").fetchall() == [(5,)]
        assert pl.read_parquet(root / "steps").height == 5
        assert len(pd.read_parquet(root / "steps")) == 5
        assert len(rows_in(root)) == 5
        assert sorted(p.name for p in tmp_path.iterdir()) == [".staging-ds", "ds"]
    finally:
        out.abort()
    assert [p.name for p in tmp_path.iterdir()] == ["ds"]


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "ds").write_text("x")
    with pytest.raises(OutputError, match="ds is a file"):
        DatasetWriter(tmp_path / "ds", TreeStep, source="x")
    assert [p.name for p in tmp_path.iterdir()] == ["ds"]


@settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    rows=st.lists(
        st.builds(
            step,
            st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=4),
            st.none() | st.integers(-200_000, 200_000),
            st.integers(0, 9),
        ),
        max_size=12,
    )
)
def test_any_rows_come_back(rows: list[TreeStep], tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("any") / "ds"
    add(root, rows, max_open=2)
    back = rows_in(root) if rows else []
    assert sorted(map(repr, back)) == sorted(map(repr, rows))
    assert [p.name for p in root.parent.iterdir()] == (["ds"] if rows else [])


# Reading


def one(path: Path, rows: list[Any], record: type = TreeStep, **notes: str) -> Path:
    with open_writer(path, record, metadata=notes, force=True) as out:
        out.write(from_records(rows, record))
    return path


def test_files_are_read_in_the_order_given(tmp_path: Path) -> None:
    first, second = one(tmp_path / "a.parquet", ROWS[:2]), one(tmp_path / "b.arrow", ROWS[2:])
    assert rows_in(first, second) == ROWS
    assert rows_in(second, first) == ROWS[2:] + ROWS[:2]


def test_parts_of_a_day_are_read_by_the_time_of_their_first_row(tmp_path: Path) -> None:
    add(tmp_path / "ds", [step("a", -5, 1), step("a", -4, 2)], "run.log.2")
    add(tmp_path / "ds", [step("a", -3, 3)], "run.log.1")
    add(tmp_path / "ds", [step("a", -2, 4)], "run.log")
    assert [r.budget for r in rows_in(tmp_path / "ds")] == [1, 2, 3, 4]


def test_what_files_say_of_themselves_is_kept(tmp_path: Path) -> None:
    paths = [
        one(tmp_path / "a.parquet", ROWS, coverage="1"),
        one(tmp_path / "b.parquet", [], coverage="2"),
        one(tmp_path / "c.parquet", [], coverage="1"),
    ]
    metadata = read_tables(paths)["steps"].schema.metadata
    assert metadata[b"ddtree_metrics.coverage"] == b"1"
    assert metadata[b"ddtree_metrics.coverage.1"] == b"2"
    assert b"ddtree_metrics.coverage.2" not in metadata
    assert metadata[b"ddtree_metrics.record"] == b"TreeStep"


def test_a_folder_of_tables_is_read(tmp_path: Path) -> None:
    write_tables(
        tmp_path / "out", {"steps": (TreeStep, from_records(ROWS, TreeStep)), "decode": (DecodeBatch, from_records([], DecodeBatch))}
    )
    (tmp_path / "out" / ".steps.parquet.1234.partial").write_text("half")
    (tmp_path / "out" / ".hidden.parquet").write_text("half")
    assert {name: t.num_rows for name, t in read_tables(tmp_path / "out").items()} == {"steps": 5, "decode": 0}


def test_tables_are_told_from_lines(tmp_path: Path) -> None:
    assert is_stored(one(tmp_path / "a.parquet", ROWS))
    assert is_stored(one(tmp_path / "b.arrow", ROWS))
    assert is_stored(tmp_path)
    (tmp_path / "run.log").write_text("PARQUET or not")
    (tmp_path / "empty").mkdir()
    assert not is_stored(tmp_path / "run.log")
    assert not is_stored(tmp_path / "empty")
    assert not is_stored(tmp_path / "missing")


def test_no_path_is_an_error() -> None:
    with pytest.raises(SourceError, match="no file"):
        read_tables([])


def test_a_file_without_late_metadata_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pyarrow 15, metadata known at the end needs the file written again; the result is the same."""
    monkeypatch.delattr(pq.ParquetWriter, "add_key_value_metadata", raising=False)
    path = one(tmp_path / "a.parquet", ROWS, coverage="1")
    assert [p.name for p in tmp_path.iterdir()] == ["a.parquet"]
    assert pq.read_table(path).schema.equals(arrow_schema(TreeStep))
    assert notes_of(path)["coverage"] == "1"
    assert rows_in(path) == ROWS
    assert writers.GROUP_ROWS == 262_144
