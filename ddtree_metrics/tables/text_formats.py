"""Batches as CSV and JSON lines: one text a row, made a column at a time.

Instants are ISO 8601 in UTC with microseconds and ``Z``. In CSV, lists and maps are JSON and a missing value is an empty field
(an empty text is ``""``). In JSON lines a missing value is ``null``. JSON has no NaN and no infinity: both become missing.
"""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

_ESCAPED = r'["\\\x00-\x1f\x7f]'


def csv_header(schema: pa.Schema) -> bytes:
    """Return the first line of a CSV file."""
    return (",".join(schema.names) + "\n").encode()


def csv_lines(batch: pa.RecordBatch) -> bytes:
    """Return the rows of a batch as CSV lines, without the header."""
    if batch.num_rows == 0:
        return b""
    made = [_csv_column(batch.column(i)) for i in range(batch.num_columns)]
    sink = io.BytesIO()
    plain = pa.RecordBatch.from_arrays(made, names=batch.schema.names)
    pacsv.write_csv(plain, sink, pacsv.WriteOptions(include_header=False))
    return sink.getvalue()


def json_lines(batch: pa.RecordBatch) -> bytes:
    """Return the rows of a batch as JSON objects, one a line."""
    if batch.num_rows == 0:
        return b""
    parts: list[Any] = []
    for i, name in enumerate(batch.schema.names):
        head = ("{" if i == 0 else ", ") + json.dumps(name) + ": "
        parts += [pa.scalar(head), pc.fill_null(_json(batch.column(i)), "null")]
    lines = pc.binary_join_element_wise(*parts, pa.scalar("}"), "")
    return ("\n".join(lines.to_pylist()) + "\n").encode()


def iso_instants(array: pa.Array) -> pa.Array:
    """Write instants as ``2026-01-01T12:00:00.000000Z``."""
    # Through the type without a zone, so that no time zone data is needed; the values are UTC in both.
    text = array.cast(pa.timestamp("us")).cast(pa.string())
    return pc.binary_join_element_wise(pc.replace_substring(text, " ", "T", max_replacements=1), "Z", "")


def _csv_column(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_timestamp(kind):
        return iso_instants(array)
    if pa.types.is_floating(kind):
        return _finite(array)
    if pa.types.is_nested(kind):
        return _json(array)
    return array


def _finite(array: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_finite(array), array, pa.scalar(None, array.type))


def _json(array: pa.Array) -> pa.Array:
    """Return the values as JSON text; null stays null."""
    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return array.cast(pa.string())
    if pa.types.is_floating(kind):
        return _finite(array).cast(pa.string())
    if pa.types.is_timestamp(kind):
        return pc.binary_join_element_wise('"', iso_instants(array), '"', "")
    if pa.types.is_string(kind):
        if pc.any(pc.match_substring_regex(array, _ESCAPED)).as_py():
            return pa.array([None if v is None else json.dumps(v, ensure_ascii=False) for v in array.to_pylist()], pa.string())
        return pc.binary_join_element_wise('"', array, '"', "")
    if pa.types.is_map(kind):
        if array.null_count == len(array):
            return pa.nulls(len(array), pa.string())
        texts = [None if v is None else json.dumps(dict(v), ensure_ascii=False) for v in array.to_pylist()]
        return pa.array(texts, pa.string())
    inner = pc.fill_null(_json(array.flatten()), "null")
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    ends = pc.cumulative_sum(lengths).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    joined = pc.binary_join_element_wise("[", pc.binary_join(pa.ListArray.from_arrays(offsets, inner), ", "), "]", "")
    return pc.if_else(array.is_valid(), joined, pa.scalar(None, pa.string()))
