"""A column is declared once, and everything else is derived from that."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import pyarrow as pa
import pytest

from ddtree_metrics.errors import SchemaError
from ddtree_metrics.records import TABLES, LoggedLine, TreeStep
from ddtree_metrics.schema import SCHEMA_VERSION, Col, arrow_schema, columns

ALL = [(name, record) for name, record in TABLES.items()]


@pytest.mark.parametrize(("name", "record"), ALL, ids=TABLES)
def test_every_field_is_a_column_that_may_be_null(name: str, record: type) -> None:
    assert [c.name for c in columns(record)] == [f.name for f in dataclasses.fields(record)]
    assert all(c.nullable for c in columns(record))
    assert record() == record(**{c.name: None for c in columns(record)})


@pytest.mark.parametrize(("name", "record"), ALL, ids=TABLES)
def test_records_are_frozen_and_have_slots(name: str, record: type) -> None:
    row = record()
    assert not hasattr(row, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(row, columns(record)[0].name, 1)


@pytest.mark.parametrize(("name", "record"), ALL, ids=TABLES)
def test_meanings_are_sentences_and_units_stand_in_the_field(name: str, record: type) -> None:
    schema = arrow_schema(record)
    for column in columns(record):
        assert column.meaning[0].isupper() or column.meaning.split()[0] in ("time", "tokens", "client,", "received,", "suppressed,"), (
            column.meaning
        )
        notes = schema.field(column.name).metadata
        assert notes[b"meaning"].decode() == column.meaning
        assert notes.get(b"unit") == (column.unit.encode() if column.unit else None)


@pytest.mark.parametrize(("name", "record"), ALL, ids=TABLES)
def test_the_schema_names_its_record_and_its_version(name: str, record: type) -> None:
    found = arrow_schema(record).metadata
    assert found[b"ddtree_metrics.record"] == record.__name__.encode()
    assert found[b"ddtree_metrics.schema_version"] == str(SCHEMA_VERSION).encode()


def test_entries_of_a_file_are_added_with_the_prefix() -> None:
    schema = arrow_schema(TreeStep, {"coverage": "{}"})
    assert schema.metadata[b"ddtree_metrics.coverage"] == b"{}"
    assert b"ddtree_metrics.coverage" not in arrow_schema(TreeStep).metadata
    assert schema.equals(arrow_schema(TreeStep))


def test_types_are_those_that_the_annotations_say() -> None:
    schema = arrow_schema(TreeStep)
    expected = {
        "time": pa.timestamp("us", tz="UTC"),
        "time_us": pa.int64(),
        "batch_size": pa.int32(),
        "avg_commit_len": pa.float64(),
        "host": pa.string(),
        "commit_lens": pa.list_(pa.field("element", pa.int32())),
        "request_ids": pa.list_(pa.field("element", pa.string())),
        "extra": pa.map_(pa.string(), pa.string()),
    }
    assert {name: schema.field(name).type for name in expected} == expected
    assert str(schema.field("commit_lens").type) == "list<element: int32>"


@pytest.mark.parametrize("name", ["steps", "decode", "prefill", "servers", "events", "request_lines"])
def test_tables_of_lines_begin_with_where_the_line_comes_from(name: str) -> None:
    common = [c.name for c in columns(LoggedLine)]
    assert [c.name for c in columns(TABLES[name])][: len(common)] == common


def test_the_same_name_has_one_type_in_all_tables_of_lines() -> None:
    seen: dict[str, Any] = {}
    for name in ("steps", "decode", "prefill", "servers", "events", "request_lines"):
        for column in columns(LoggedLine):
            kind = arrow_schema(TABLES[name]).field(column.name).type
            assert seen.setdefault(column.name, kind) == kind


@dataclass
class NoCol:
    """A field without a declaration."""

    a: int | None = None


@dataclass
class WrongType:
    """A type that no column has."""

    a: Annotated[complex | None, Col("A number.")] = None


@dataclass
class TwoTypes:
    """A field that may be either."""

    a: Annotated[int | str | None, Col("One or the other.")] = None


@dataclass
class Plain:
    """Kinds that the tables do not use without None."""

    a: Annotated[bool, Col("Yes or no.")] = False
    b: Annotated[datetime, Col("When.")] = datetime(2026, 1, 1)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (NoCol, r"NoCol\.a has no Col"),
        (WrongType, "no column type for"),
        (TwoTypes, "one type, or one type and None"),
        (int, "is not a record class"),
    ],
)
def test_wrong_declarations_are_named(record: type, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        columns(record)


def test_other_kinds_are_derived_too() -> None:
    assert [(c.kind, c.nullable) for c in columns(Plain)] == [("bool", False), ("datetime", False)]
    assert [c.type_name() for c in columns(Plain)] == ["bool", "timestamp[us, tz=UTC]"]


@pytest.mark.parametrize("module", ["errors", "schema", "records", "times"])
def test_the_lowest_modules_load_nothing_heavy(module: str) -> None:
    code = (
        f"import sys, ddtree_metrics.{module}; "
        "print([m for m in ('pandas', 'pyarrow', 'numpy', 'scipy', 'matplotlib', 'click') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
