"""Arrow, pandas and records: the same rows three ways, with types that do not depend on the data."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddtree_metrics import tables
from ddtree_metrics.errors import SchemaError
from ddtree_metrics.records import TABLES, DecodeBatch, Request, TreeStep
from ddtree_metrics.schema import SCHEMA_VERSION, Column, arrow_schema, columns

UTC = timezone.utc
T0 = datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC)
STEP = TreeStep(
    time=T0, host="kimi", batch_size=2, commit_lens=(4, 5), request_ids=("a", "b"), avg_commit_len=4.5, extra={"k": "v"}, tokens=9
)


def value_of(column: Column) -> st.SearchStrategy[Any]:
    """Make values of a column, null among them."""
    bits = 63 if column.col.wide else 31
    whole = st.integers(-(2**bits), 2**bits - 1)
    text = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
    made: dict[str, st.SearchStrategy[Any]] = {
        "int": whole,
        "float": st.floats(allow_nan=False, allow_infinity=False),
        "str": text,
        "bool": st.booleans(),
        "datetime": st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)),
        "list<int>": st.lists(whole, max_size=3).map(tuple),
        "list<float>": st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
        "list<str>": st.lists(text, max_size=3).map(tuple),
        "map": st.dictionaries(text, text, max_size=3),
    }
    return st.none() | made[column.kind]


def rows_of(record: type, max_size: int = 4) -> st.SearchStrategy[list[Any]]:
    """Make records of a class, every column drawn."""
    return st.lists(st.builds(record, **{c.name: value_of(c) for c in columns(record)}), max_size=max_size)


@pytest.mark.parametrize("record", TABLES.values(), ids=TABLES)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(data=st.data())
def test_records_come_back_from_a_table_as_they_went_in(record: type, data: st.DataObject) -> None:
    rows = data.draw(rows_of(record))
    table = tables.from_records(rows, record)
    assert table.schema.equals(arrow_schema(record), check_metadata=True)
    assert list(tables.to_records(table, record)) == rows


@pytest.mark.parametrize("record", TABLES.values(), ids=TABLES)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(data=st.data())
def test_records_come_back_from_a_frame_as_they_went_in(record: type, data: st.DataObject) -> None:
    rows = data.draw(rows_of(record))
    frame = tables.to_pandas(tables.from_records(rows, record))
    assert list(tables.to_records(tables.from_pandas(frame, record), record)) == rows


@pytest.mark.parametrize("record", TABLES.values(), ids=TABLES)
def test_frame_types_do_not_depend_on_the_data(record: type) -> None:
    none = tables.to_pandas(tables.empty(record))
    nulls = tables.to_pandas(tables.from_records([record()], record))
    assert none.dtypes.to_dict() == nulls.dtypes.to_dict()
    kinds = {c.name: c for c in columns(record)}
    for name, dtype in none.dtypes.items():
        kind = kinds[str(name)].kind
        if kind == "datetime":
            assert str(dtype) == "datetime64[us, UTC]"
        elif kind == "int":
            assert str(dtype) == ("Int64" if kinds[str(name)].col.wide else "Int32")
        elif kind == "float":
            assert str(dtype) == "float64"
        elif kind == "str":
            assert dtype == pd.StringDtype("pyarrow")
        elif kind == "bool":
            assert str(dtype) == "boolean"
        else:
            assert isinstance(dtype, pd.ArrowDtype)


def test_records_are_made_as_they_are_asked_for() -> None:
    taken = []

    def batches() -> Any:
        for i in range(3):
            taken.append(i)
            yield tables.from_records([STEP], TreeStep).to_batches()[0]

    rows = tables.to_records(batches(), TreeStep)
    assert taken == []
    assert next(rows) == STEP
    assert taken == [0]


def test_records_hold_tuples_dicts_and_aware_datetimes() -> None:
    row = next(tables.to_records(tables.from_records([STEP], TreeStep), TreeStep))
    assert row.commit_lens == (4, 5)
    assert row.extra == {"k": "v"}
    assert row.time.tzinfo is UTC
    assert row.nodes is None


def test_times_of_other_zones_become_utc() -> None:
    there = datetime(2026, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))
    row = next(tables.to_records(tables.from_records([TreeStep(time=there)], TreeStep), TreeStep))
    assert (row.time, row.time.utcoffset()) == (there, timedelta(0))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (TreeStep(time=datetime(2026, 1, 1)), "column 'time' of steps holds .* give it one: tzinfo"),
        (TreeStep(batch_size=2**31), "column 'batch_size' of steps is int64, wanted int32"),
        (TreeStep(tokens=2**63), "column 'tokens' of steps"),
        (TreeStep(batch_size=True), "column 'batch_size' of steps holds True"),
        (TreeStep(batch_size="4"), "column 'batch_size' of steps holds '4'"),
        (TreeStep(batch_size=1.5), "column 'batch_size' of steps"),
        (TreeStep(host="\ud800"), "column 'host' of steps"),
        (TreeStep(nodes=(1, 2**40)), "column 'nodes' of steps"),
        (TreeStep(nodes=(1.5,)), "column 'nodes' of steps"),
        (TreeStep(nodes="17"), "column 'nodes' of steps holds '17'"),
    ],
)
def test_values_that_do_not_fit_name_the_column(row: TreeStep, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        tables.from_records([row], TreeStep)


# Frames that people make by hand


def test_plain_python_frames_become_exact_tables() -> None:
    frame = pd.DataFrame(
        {
            "time": pd.to_datetime(["2026-01-01T12:00:00Z", None]),
            "host": ["kimi", None],
            "batch_size": [1.0, np.nan],
            "commit_lens": [[4], None],
            "avg_commit_len": [4, 5],
            "extra": [{"k": "v"}, None],
        }
    )
    table = tables.from_pandas(frame, TreeStep)
    assert table.schema.equals(arrow_schema(TreeStep), check_metadata=True)
    first, second = tables.to_records(table, TreeStep)
    assert first == TreeStep(
        time=datetime(2026, 1, 1, 12, tzinfo=UTC), host="kimi", batch_size=1, commit_lens=(4,), avg_commit_len=4.0, extra={"k": "v"}
    )
    assert second == TreeStep(avg_commit_len=5.0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"batch_size": [1.5]}, "column 'batch_size' of steps is double, wanted int32"),
        ({"batch_size": ["1"]}, "column 'batch_size'"),
        ({"time": [pd.Timestamp("2026-01-01")]}, "column 'time' of steps is timestamp.*tz_localize"),
        ({"host": [1]}, "column 'host'"),
        ({"nodes": [4]}, "column 'nodes'"),
        ({"speed": [4.0]}, "has no column 'speed'; pass extra='drop'"),
    ],
)
def test_frames_that_do_not_fit_name_the_column(values: dict[str, list[Any]], words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        tables.from_pandas(pd.DataFrame(values), TreeStep)


def test_extra_columns_can_be_dropped() -> None:
    table = tables.from_pandas(pd.DataFrame({"speed": [4.0], "budget": [16]}), TreeStep, extra="drop")
    assert table.column("budget").to_pylist() == [16]


def test_categories_and_arrow_columns_are_taken() -> None:
    frame = pd.DataFrame({"host": pd.Categorical(["a", None]), "nodes": pd.Series([[17], None], dtype=pd.ArrowDtype(pa.list_(pa.int64())))})
    rows = list(tables.to_records(tables.from_pandas(frame, TreeStep), TreeStep))
    assert rows == [TreeStep(host="a", nodes=(17,)), TreeStep()]


# conform


def test_tables_as_other_tools_write_them_back_are_made_exact() -> None:
    back = pa.table(
        {
            "extra": pa.array([[{"key": "k", "value": "v"}], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))),
            "host": pa.array(["kimi", "kimi"]).dictionary_encode(),
            "unit": pa.array(["u", None], pa.large_string()),
            "time": pa.array([1_000, None], pa.timestamp("ns", "Europe/Berlin")),
            "batch_size": pa.array([2, None], pa.int64()),
            "nodes": pa.array([[17], None], pa.large_list(pa.int64())),
            "budget": pa.array([None, None]),
            "avg_commit_len": pa.array([4, None], pa.int16()),
        }
    )
    table = tables.conform(back, TreeStep)
    assert table.schema.equals(arrow_schema(TreeStep), check_metadata=True)
    first = next(tables.to_records(table, TreeStep))
    expected = TreeStep(
        time=datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        host="kimi",
        unit="u",
        batch_size=2,
        nodes=(17,),
        avg_commit_len=4.0,
        extra={"k": "v"},
    )
    assert first == expected


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("batch_size", pa.array([2**40]), "is int64, wanted int32"),
        ("batch_size", pa.array(["2"]), "is string, wanted int32"),
        ("batch_size", pa.array([True]), "is bool, wanted int32"),
        ("time", pa.array([1], pa.timestamp("ns", "UTC")), "wanted timestamp"),
        ("time", pa.array([1]), "is int64, wanted timestamp"),
        ("avg_commit_len", pa.array([2**53 + 1]), "is int64, wanted double"),
        ("host", pa.array([1]), "is int64, wanted string"),
        ("nodes", pa.array([["17"]]), "wanted list"),
    ],
)
def test_casts_that_would_lose_something_are_refused(name: str, values: pa.Array, words: str) -> None:
    with pytest.raises(SchemaError, match=f"column '{name}' of steps .*{words}"):
        tables.conform(pa.table({name: values}), TreeStep)


def test_a_newer_schema_says_upgrade() -> None:
    newer = arrow_schema(TreeStep).with_metadata(
        {"ddtree_metrics.record": "TreeStep", "ddtree_metrics.schema_version": str(SCHEMA_VERSION + 1)}
    )
    table = pa.table({"host": ["a"]}).replace_schema_metadata(newer.metadata)
    with pytest.raises(SchemaError, match="upgrade with"):
        tables.conform(table, TreeStep)


def test_an_older_schema_lacks_columns_and_is_read() -> None:
    older = pa.table({"host": ["a"]}).replace_schema_metadata({"ddtree_metrics.record": "TreeStep", "ddtree_metrics.schema_version": "0"})
    assert tables.conform(older, TreeStep).num_rows == 1


def test_rows_of_another_class_are_refused() -> None:
    with pytest.raises(SchemaError, match="holds DecodeBatch rows, not TreeStep"):
        tables.conform(tables.empty(DecodeBatch), TreeStep)


def test_a_column_that_is_there_twice_is_refused() -> None:
    with pytest.raises(SchemaError, match="'host' is there twice"):
        tables.conform(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["host", "host"]), TreeStep)


def test_no_batches_make_an_empty_table() -> None:
    assert tables.concat([], TreeStep).schema.equals(arrow_schema(TreeStep), check_metadata=True)
    batch = tables.from_records([STEP], TreeStep).to_batches()[0]
    assert tables.concat([batch, batch], TreeStep).num_rows == 2


def test_each_record_class_has_a_table() -> None:
    assert tables.table_name(Request) == "requests"
    with pytest.raises(SchemaError, match="int has no table"):
        tables.table_name(int)


# flat_lists

LISTS = [
    pd.Series([[4, 5], None, [], [6]], dtype=pd.ArrowDtype(pa.list_(pa.int32()))),
    pd.Series([[4, 5], None, [], (6,)], dtype=object),
    pd.Series([np.array([4, 5]), float("nan"), [], [6]], dtype=object),
    pa.chunked_array([[[4, 5], None], [[], [6]]], pa.list_(pa.int32())),
    pa.array([[9], [4, 5], None, [], [6], [9]], pa.list_(pa.int32())).slice(1, 4),
    [[4, 5], pd.NA, [], [6]],
]


@pytest.mark.parametrize("series", LISTS, ids=["arrow", "objects", "arrays", "chunks", "slice", "plain"])
def test_lists_are_taken_apart(series: Any) -> None:
    values, offsets, valid = tables.flat_lists(series)
    assert (values.tolist(), values.dtype) == ([4, 5, 6], np.int64)
    assert (offsets.tolist(), offsets.dtype) == ([0, 2, 2, 2, 3], np.int64)
    assert (valid.tolist(), valid.dtype) == ([True, False, True, True], bool)


def test_lists_of_floats_and_of_text_are_taken_apart() -> None:
    values, _, _ = tables.flat_lists(pd.Series([[4.5], [1]], dtype=object))
    assert (values.tolist(), values.dtype) == ([4.5, 1.0], np.float64)
    values, offsets, _ = tables.flat_lists(tables.to_pandas(tables.from_records([STEP], TreeStep))["request_ids"])
    assert (values.tolist(), offsets.tolist()) == (["a", "b"], [0, 2])


@pytest.mark.parametrize(
    "series", [pd.Series([], dtype=object), pa.chunked_array([], pa.list_(pa.int32())), pa.nulls(0)], ids=["objects", "chunks", "null"]
)
def test_no_lists_are_no_values(series: Any) -> None:
    values, offsets, valid = tables.flat_lists(series)
    assert (len(values), offsets.tolist(), len(valid)) == (0, [0], 0)


def test_missing_lists_alone_are_no_values() -> None:
    values, offsets, valid = tables.flat_lists(pd.Series([None, None], dtype=object))
    assert (len(values), offsets.tolist(), valid.tolist()) == (0, [0, 0, 0], [False, False])


@pytest.mark.parametrize("series", [pd.Series([1, 2]), pd.Series(["[4]"]), pd.Series([[1], ["a"]], dtype=object)])
def test_what_is_no_list_is_refused(series: Any) -> None:
    with pytest.raises(SchemaError, match="list"):
        tables.flat_lists(series)
