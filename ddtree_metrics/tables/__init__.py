"""Arrow tables, pandas frames and typed records: three views of the same rows, with the columns that a record class declares.

``conform`` makes any table that carries the columns exact, or says which column stands in the way; everything that reads a file or
takes a frame goes through it. Nothing is rounded, cut or parsed on the way: a value that does not fit is an error.

pandas is imported where a frame is made or taken, and nowhere else: an export that goes from lines to a file never needs it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.errors import SchemaError
from ddtree_metrics.records import TABLES
from ddtree_metrics.schema import METADATA_PREFIX, SCHEMA_VERSION, Column, arrow_schema, columns
from ddtree_metrics.times import EPOCH

if TYPE_CHECKING:
    import pandas as pd

RECORD_ROWS = 4_096


@functools.cache
def _pandas_types() -> dict[pa.DataType, Any]:
    """Map Arrow types to the pandas types that hold them whatever the data are."""
    import pandas as pd

    return {
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
        pa.string(): pd.StringDtype("pyarrow"),
        pa.large_string(): pd.StringDtype("pyarrow"),
    }


def table_name(record: type) -> str:
    """Return the name of the table that holds a record class: ``steps`` for ``TreeStep``."""
    for name, known in TABLES.items():
        if known is record:
            return name
    raise SchemaError(f"{record.__name__} has no table; the record classes are {', '.join(r.__name__ for r in TABLES.values())}")


def empty(record: type) -> pa.Table:
    """Return the table of a record class without rows."""
    return arrow_schema(record).empty_table()


def concat(batches: Iterable[pa.RecordBatch | pa.Table], record: type) -> pa.Table:
    """Put batches of one table one behind the other, without copying the values.

    Parameters
    ----------
    batches : iterable of RecordBatch or Table
        In order; each with the columns of the record class.
    record : type
        The record class.

    Returns
    -------
    pyarrow.Table
        With exactly ``arrow_schema(record)``; without rows where there were no batches.
    """
    made = [conform(b, record) for b in batches]
    return pa.concat_tables(made) if made else empty(record)


def conform(table: pa.Table | pa.RecordBatch, record: type, *, extra: Literal["refuse", "drop"] = "refuse") -> pa.Table:
    """Give a table exactly the columns of a record class.

    Parameters
    ----------
    table : Table or RecordBatch
        Any table with some of the columns, in any order, also as another tool wrote them back (large or dictionary-encoded strings,
        wider integers, other units of time).
    record : type
        The record class.
    extra : {"refuse", "drop"}
        What to do with columns that the class does not declare.

    Returns
    -------
    pyarrow.Table
        With exactly ``arrow_schema(record)``; columns that were missing are null.

    Raises
    ------
    SchemaError
        If a column cannot be converted without loss, there are extra columns, the table is of another record class, or it was written
        by a newer version of this library.
    """
    wanted = arrow_schema(record)
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if table.schema.equals(wanted):
        return table.replace_schema_metadata(wanted.metadata)
    check_metadata(table.schema.metadata, record)
    names = table.column_names
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise SchemaError(f"table {table_title(record)}: column {twice[0]!r} is there twice; keep one of them")
    unknown = [n for n in names if n not in wanted.names]
    if unknown and extra == "refuse":
        raise SchemaError(
            f"table {table_title(record)} has no column {', '.join(map(repr, unknown))}; pass extra='drop' to leave such columns out, "
            f"or take these: {', '.join(wanted.names)}"
        )
    made = []
    for field in wanted:
        if field.name in names:
            made.append(_lossless(table.column(field.name), field, record))
        else:
            made.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)], type=field.type))
    return pa.Table.from_arrays(made, schema=wanted)


def check_metadata(metadata: dict[bytes, bytes] | None, record: type, what: str = "the table") -> None:
    """Refuse rows of another record class, and rows that a newer version wrote.

    Parameters
    ----------
    metadata : dict of bytes to bytes or None
        Of an Arrow schema or a Parquet file; without our entries nothing is refused.
    record : type
        The record class that is wanted.
    what : str
        What the message calls it.
    """
    found = {k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, v in (metadata or {}).items()}
    version = found.get(f"{METADATA_PREFIX}schema_version", str(SCHEMA_VERSION))
    if not version.isdigit() or int(version) > SCHEMA_VERSION:
        raise SchemaError(
            f"{what} has schema version {version}, and this version of ddtree_metrics reads up to {SCHEMA_VERSION}; "
            "upgrade with: pip install --upgrade ddtree-metrics"
        )
    name = found.get(f"{METADATA_PREFIX}record")
    if name is not None and name != record.__name__:
        raise SchemaError(f"{what} holds {name} rows, not {record.__name__}")


def table_title(record: type) -> str:
    """Name a table in a message: its table's name, or the class's where it has none."""
    return next((name for name, known in TABLES.items() if known is record), record.__name__)


def to_pandas(table: pa.Table | pa.RecordBatch) -> pd.DataFrame:
    """Make a frame whose column types do not depend on the data.

    Parameters
    ----------
    table : Table or RecordBatch
        Any of our tables.

    Returns
    -------
    DataFrame
        Integers are pandas' nullable ``Int32``/``Int64``, floats ``float64`` (null is NaN), truth values ``boolean``, text
        ``string``, instants ``datetime64[us, UTC]``; lists and maps stay in Arrow (``ArrowDtype``), see `flat_lists`.
    """
    import pandas as pd

    known = _pandas_types()

    def mapper(kind: pa.DataType) -> Any:
        if kind in known:
            return known[kind]
        return pd.ArrowDtype(kind) if pa.types.is_nested(kind) else None

    frame: pd.DataFrame = table.to_pandas(types_mapper=mapper, ignore_metadata=True)
    return frame


def from_pandas(frame: pd.DataFrame, record: type, *, extra: Literal["refuse", "drop"] = "refuse") -> pa.Table:
    """Make the exact table of a record class from a frame.

    Parameters
    ----------
    frame : DataFrame
        Nullable, NumPy, Arrow or object columns; NaN, NaT, None and NA are null. The index is left out.
    record : type
        The record class.
    extra : {"refuse", "drop"}
        What to do with columns that the class does not declare.

    Returns
    -------
    pyarrow.Table
        With exactly ``arrow_schema(record)``; columns that the frame lacks are null.

    Raises
    ------
    SchemaError
        If a value does not fit its column: a fraction in a whole number, an instant without a zone, text in a number.
    """
    wanted = arrow_schema(record)
    arrays, names = [], []
    for position, name in enumerate(frame.columns):
        names.append(str(name))
        series = frame.iloc[:, position]
        if name in wanted.names:
            arrays.append(_from_series(series, wanted.field(name), record))
        else:
            arrays.append(pa.nulls(len(frame)))
    return conform(pa.Table.from_arrays(arrays, names=names), record, extra=extra)


def from_records(rows: Iterable[Any], record: type) -> pa.Table:
    """Make a table from typed records.

    Parameters
    ----------
    rows : iterable
        Objects of the record class.
    record : type
        The record class.

    Returns
    -------
    pyarrow.Table
        With exactly ``arrow_schema(record)``.

    Raises
    ------
    SchemaError
        If a value does not fit its column, or an instant has no zone.
    """
    held = list(rows)
    wanted = arrow_schema(record)
    arrays = []
    for column, field in zip(columns(record), wanted, strict=True):
        values = [getattr(row, column.name) for row in held]
        arrays.append(_from_values(values, field, record))
    return pa.Table.from_arrays(arrays, schema=wanted)


def to_records(table: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch], record: type) -> Iterator[Any]:
    """Yield the rows as typed records, made as they are asked for.

    Parameters
    ----------
    table : Table, RecordBatch or iterable of RecordBatch
        Rows of the record class.
    record : type
        The record class.

    Yields
    ------
    object
        One ``record`` a row; lists are tuples, maps dicts, instants aware datetimes in UTC.
    """
    declared = columns(record)
    parts: Iterable[Any] = [table] if isinstance(table, (pa.Table, pa.RecordBatch)) else table
    for part in parts:
        exact = conform(part, record)
        for batch in exact.to_batches(max_chunksize=RECORD_ROWS):
            values = [_to_values(batch.column(i), column) for i, column in enumerate(declared)]
            for row in zip(*values, strict=True):
                yield record(*row)


def flat_lists(series: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Take a column of lists apart into one array of values and the places where each row begins.

    Parameters
    ----------
    series : Series, Array, ChunkedArray or sequence
        Lists of numbers (or of text), of an Arrow column or of Python objects; a missing list is null.

    Returns
    -------
    values : ndarray of int64 or float64, shape (total,)
        All values; float64 if the lists hold floats or nulls, objects for text. No copy where the column is such already.
    offsets : ndarray of int64, shape (n + 1,)
        Row ``i`` is ``values[offsets[i]:offsets[i + 1]]``.
    valid : ndarray of bool, shape (n,)
        Whether the row has a list; an empty list is one.

    Raises
    ------
    SchemaError
        If the column holds something other than lists.
    """
    if isinstance(series, (pa.Array, pa.ChunkedArray)):
        held: Any = series
    elif _is_arrow_series(series):
        held = pa.array(series)
    else:
        held = _list_array(list(series))
    if isinstance(held, pa.ChunkedArray):
        held = held.combine_chunks() if held.num_chunks != 1 else held.chunk(0)
        if isinstance(held, pa.ChunkedArray):  # without chunks, pyarrow may give one back
            held = pa.array([], held.type)
    if pa.types.is_null(held.type):
        n = len(held)
        return np.zeros(0, np.int64), np.zeros(n + 1, np.int64), np.zeros(n, bool)
    if not (pa.types.is_list(held.type) or pa.types.is_large_list(held.type) or pa.types.is_fixed_size_list(held.type)):
        raise SchemaError(f"a column of lists is wanted, not one of {held.type}")
    valid = np.asarray(held.is_valid())
    lengths = np.asarray(pc.fill_null(pc.list_value_length(held), 0), dtype=np.int64)
    offsets = np.zeros(len(held) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    flat = held.flatten()
    if pa.types.is_floating(flat.type) or (flat.null_count and pa.types.is_integer(flat.type)):
        values = flat.cast(pa.float64()).to_numpy(zero_copy_only=False)
    elif pa.types.is_integer(flat.type):
        values = flat.cast(pa.int64()).to_numpy(zero_copy_only=False)
    else:
        values = flat.to_numpy(zero_copy_only=False)
    return values, offsets, valid


def _list_array(rows: list[Any]) -> pa.Array:
    made: list[Any] = []
    for row in rows:
        if isinstance(row, (list, tuple, np.ndarray)):
            made.append(row)
        elif _is_null(row):
            made.append(None)
        else:
            raise SchemaError(f"a column of lists is wanted; one of its values is {row!r} ({type(row).__name__})")
    lengths = [0 if row is None else len(row) for row in made]
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    chained = list(chain.from_iterable(row for row in made if row is not None))
    try:
        flat = pa.array(chained, from_pandas=True) if chained else pa.array([], pa.int64())
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SchemaError(f"the lists of one column do not hold one type of value: {error}") from None
    missing = np.array([row is None for row in made] + [False], dtype=bool)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32(), mask=missing), flat)


def _family(kind: pa.DataType) -> str:
    """Sort Arrow types into families; a value never changes its family without being asked to."""
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    if pa.types.is_null(kind):
        return "null"
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    text = str(kind)
    if text in ("string", "large_string", "string_view"):
        return "text"
    if pa.types.is_timestamp(kind):
        return "instant" if kind.tz is not None else "instant without a zone"
    if pa.types.is_map(kind):
        return "map"
    if text.startswith(("list", "large_list", "fixed_size_list")):
        inner = kind.value_type
        if pa.types.is_struct(inner) and inner.num_fields == 2:
            return "map"
        return f"list of {_family(inner)}"
    return text


def _lossless(column: pa.ChunkedArray, field: pa.Field, record: type) -> pa.ChunkedArray:
    """Convert a column to the type of a field, or say why not."""
    if column.type.equals(field.type):
        return column
    got, want = _family(column.type), _family(field.type)
    fits = got in (want, "null") or (got, want) in (("list of null", "list of number"), ("list of null", "list of text"))
    if not fits:
        hint = "; give it one with .dt.tz_localize('UTC')" if got == "instant without a zone" else ""
        raise SchemaError(f"column {field.name!r} of {table_title(record)} is {column.type}, wanted {field.type}{hint}")
    try:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if want == "map" and not pa.types.is_map(column.type):
            return pa.chunked_array([_map_of(chunk, field.type) for chunk in column.chunks], type=field.type)
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SchemaError(f"column {field.name!r} of {table_title(record)} is {column.type}, wanted {field.type}: {error}") from None


def _map_of(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Make a map of a list of (key, value) structs, as tools without maps write it back."""
    rows = [None if row is None else [tuple(pair.values()) for pair in row] for row in column.to_pylist()]
    return pa.array(rows, kind)


def _from_series(series: pd.Series[Any], field: pa.Field, record: type) -> Any:
    values: Any
    if series.dtype == object:
        return _from_values(series.tolist(), field, record)
    import pandas as pd

    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.cat.categories.dtype)
    try:
        values = pa.array(series, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError) as error:
        raise SchemaError(f"column {field.name!r} of {table_title(record)} is {series.dtype}, wanted {field.type}: {error}") from None
    return values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])


def _is_arrow_series(series: Any) -> bool:
    pd: Any = sys.modules.get("pandas")  # without pandas there can be no series
    return pd is not None and isinstance(series, pd.Series) and isinstance(series.dtype, pd.ArrowDtype)


def _is_null(value: Any) -> bool:
    if value is None or (isinstance(value, float) and value != value):
        return True
    pd: Any = sys.modules.get("pandas")  # without pandas there can be neither NA nor NaT
    return pd is not None and (value is pd.NA or value is pd.NaT)


def _from_values(values: Sequence[Any], field: pa.Field, record: type) -> pa.Array | pa.ChunkedArray:
    """Make a column of Python values."""
    kind, want = field.type, _family(field.type)
    held: list[Any] = [None if _is_null(v) else v for v in values]
    wrong = next((v for v in held if v is not None and not _takes(v, want)), None)
    if wrong is not None:
        hint = "; give it one: tzinfo=timezone.utc" if isinstance(wrong, datetime) and want == "instant" else ""
        raise SchemaError(f"column {field.name!r} of {table_title(record)} holds {wrong!r} ({type(wrong).__name__}), wanted {kind}{hint}")
    if want == "map":
        held = [list(v.items()) if isinstance(v, dict) else v for v in held]
    try:
        if want in ("number", "list of number"):  # asked for whole numbers at once, pyarrow would cut fractions off
            return _lossless(pa.chunked_array([pa.array(held, from_pandas=True)]), field, record)
        return pa.array(held, kind, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError, ValueError) as error:
        raise SchemaError(f"column {field.name!r} of {table_title(record)}: a value does not fit {kind}: {error}") from None


def _takes(value: Any, want: str) -> bool:
    """Say whether a Python value may stand in a column of a family."""
    if want == "number":
        return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if want == "instant":
        return isinstance(value, datetime) and value.tzinfo is not None
    if want == "text":
        return isinstance(value, str)
    if want == "bool":
        return isinstance(value, (bool, np.bool_))
    if want == "map":
        return isinstance(value, (dict, list, tuple))
    return isinstance(value, (list, tuple, np.ndarray))


def _to_values(array: pa.Array, column: Column) -> list[Any]:
    """Return a column as the Python values that a record holds."""
    if column.kind == "datetime":
        return [None if v is None else EPOCH + timedelta(microseconds=v) for v in array.cast(pa.int64()).to_pylist()]
    values: list[Any] = array.to_pylist()
    if column.kind.startswith("list"):
        return [None if v is None else tuple(v) for v in values]
    if column.kind == "map":
        return [None if v is None else dict(v) for v in values]
    return values
