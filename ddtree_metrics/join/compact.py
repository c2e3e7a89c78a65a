"""The rows of ``request_steps`` in a quarter of the memory, for numbers that are made of all rows of a long log.

Strings are categories, whole numbers take 32 bits where they fit, the place of a line is a number, and columns that nothing is computed
from are left out. What is computed from a lean frame is the same as from the whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics import tables
from ddtree_metrics.join.joined_rows import RowWriter
from ddtree_metrics.memory import give_back
from ddtree_metrics.records import RequestStep

Numbers = npt.NDArray[np.int32]

PART = 1 << 15
"""So many steps, or rows, are held in full at a time."""

LEFT_OUT = ("time", "host", "unit", "dp_rank", "context_from", "flags")


def lean_join(writer: RowWriter, steps: Callable[[], Iterable[pa.RecordBatch]]) -> pd.DataFrame:
    """Make the lean rows of a join.

    Parameters
    ----------
    writer : RowWriter
        What the join gave.
    steps : callable
        Gives the batches of the steps that were joined; it is called twice.

    Returns
    -------
    DataFrame
        The columns of ``records.RequestStep`` but ``LEFT_OUT``; ``where`` is a number, the same for equal places.
    """
    numbers = _numbers(batch.column("where") for batch in steps())
    if not len(numbers):
        return compact_rows(tables.empty(RequestStep))

    def parts() -> Iterator[pa.Table]:
        begin = 0
        for batch in steps():
            for at in range(0, batch.num_rows, PART):
                piece = _renumbered(pa.Table.from_batches([batch.slice(at, PART)]), numbers[begin : begin + PART])
                yield writer.table(piece, begin, LEFT_OUT)
                begin += piece.num_rows
                if begin // PART % 4 == 3:
                    give_back()

    return _lean(parts())


def compact_rows(rows: pa.Table) -> pd.DataFrame:
    """Make lean rows of a table ``request_steps`` that was read back; see ``lean_join``."""
    short = _renumbered(rows, _numbers(rows.column("where").chunks))
    stamps = pc.coalesce(short.column("time_us"), short.column("time").cast(pa.int64()))
    short = short.set_column(short.column_names.index("time_us"), "time_us", stamps)
    return _lean(short.slice(begin, PART) for begin in range(0, max(short.num_rows, 1), PART))


def _numbers(places: Iterable[pa.Array]) -> Numbers:
    """Give each place of a line a number, in the order in which they are first met; -1 where there is none.

    Places are compared by 64 bits of their text: that two of a million are taken for one has a chance of 3 in 100 million.
    """
    hashes, known = [np.zeros(0, np.uint64)], [np.zeros(0, bool)]
    for part in places:
        told = part.dictionary_encode()
        codes = told.indices.fill_null(len(told.dictionary)).to_numpy(zero_copy_only=False)
        texts = np.array([*told.dictionary.to_pylist(), ""], dtype=object)
        hashes.append(pd.util.hash_array(texts, categorize=False)[codes])
        known.append(codes < len(told.dictionary))
    numbers = pd.factorize(np.concatenate(hashes))[0].astype(np.int32)
    return np.where(np.concatenate(known), numbers, np.int32(-1))


def _renumbered(table: pa.Table, numbers: Numbers) -> pa.Table:
    """Put numbers in place of the places of lines."""
    numbers = numbers[: table.num_rows]
    return table.set_column(table.column_names.index("where"), "where", pa.array(numbers, mask=numbers < 0).cast(pa.string()))


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
