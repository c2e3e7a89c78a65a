"""The rows of ``request_steps`` in a quarter of the memory, for numbers that are made of all rows of a long log.

Strings are categories, whole numbers take 32 bits where they fit, the place of a line is a number, and columns that nothing is computed
from are left out. What is computed from a lean frame is the same as from the whole one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics import tables
from ddtree_metrics.join.joined_rows import RowWriter
from ddtree_metrics.memory import give_back

PART = 1 << 15
"""So many steps, or rows, are held in full at a time."""

LEFT_OUT = ("time", "host", "unit", "dp_rank", "context_from", "flags")


def lean_join(writer: RowWriter, steps: pa.Table) -> pd.DataFrame:
    """Make the lean rows of a join.

    Parameters
    ----------
    writer : RowWriter
        What the join gave.
    steps : pyarrow.Table
        The steps that were joined.

    Returns
    -------
    DataFrame
        The columns of ``records.RequestStep`` but ``LEFT_OUT``; ``where`` is a number, the same for equal places.
    """
    short = _numbered(steps)

    def parts() -> Iterator[pa.Table]:
        for i, begin in enumerate(range(0, max(short.num_rows, 1), PART)):
            if i % 4 == 3:
                give_back()
            yield writer.table(short.slice(begin, PART).combine_chunks(), begin, LEFT_OUT)

    return _lean(parts())


def compact_rows(rows: pa.Table) -> pd.DataFrame:
    """Make lean rows of a table ``request_steps`` that was read back; see ``lean_join``."""
    short = _numbered(rows)
    stamps = pc.coalesce(short.column("time_us"), short.column("time").cast(pa.int64()))
    short = short.set_column(short.column_names.index("time_us"), "time_us", stamps)
    return _lean(short.slice(begin, PART) for begin in range(0, max(short.num_rows, 1), PART))


def _numbered(table: pa.Table) -> pa.Table:
    """Put numbers in place of the places of lines, in the order in which they are first met."""
    place = table.column("where").combine_chunks()
    place = place if isinstance(place, pa.Array) else pa.concat_arrays([pa.array([], pa.string()), *place.chunks])
    return table.set_column(table.column_names.index("where"), "where", place.dictionary_encode().indices.cast(pa.string()))


def _lean(parts: Iterable[pa.Table]) -> pd.DataFrame:
    held: dict[str, list[Any]] = {}
    for part in parts:
        for name in part.column_names:
            if name not in LEFT_OUT:
                held.setdefault(name, []).extend(_small(name, chunk) for chunk in part.column(name).chunks or [_empty(part, name)])
    made = {}
    for i, name in enumerate(list(held)):
        made[name] = _series(held.pop(name))
        if i % 8 == 7 and len(made[name]) > PART:
            give_back()
    return pd.DataFrame(made, copy=False)


def _empty(part: pa.Table, name: str) -> pa.Array:
    return pa.array([], part.schema.field(name).type)


def _small(name: str, column: pa.Array) -> pa.Array:
    if name == "where":
        return column.cast(pa.int32())
    if pa.types.is_string(column.type):
        return column.dictionary_encode()
    if pa.types.is_int64(column.type):
        ends = pc.min_max(column)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        if low is None or (low >= -(2**31) and high < 2**31):
            return column.cast(pa.int32())
    return column


def _series(chunks: list[pa.Array]) -> Any:
    if pa.types.is_dictionary(chunks[0].type):
        whole = pa.chunked_array(chunks).unify_dictionaries().combine_chunks()
        whole = whole if isinstance(whole, pa.Array) else whole.chunk(0)
        codes = whole.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return pd.Categorical.from_codes(codes, categories=pd.Index(whole.dictionary.to_pylist(), dtype=object))
    if len({c.type for c in chunks}) > 1:
        chunks = [c.cast(pa.int64()) for c in chunks]
    column = pa.chunked_array(chunks)
    if pa.types.is_floating(column.type):
        return np.asarray(column.to_numpy(), dtype=np.float64)
    return tables.to_pandas(pa.table({"x": column}))["x"].array
