"""Rows that two files of one table have both, because what they were exported from overlaps: each is kept once.

A row is the same where its line stands at the same place (``where``) with the same times. Rows of one file are never the same; equal
ones are counted against each other one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.sources.mixing import Ints, Keys, mixed, turns

_PLACE = ("where", "request_id")
"""What tells where a row is from; rows without it are never the same, but for events."""
_REST = (
    "time", "monotonic_us", "boot_id", "host", "unit", "kind", "detail", "event", "received", "first_token", "finished", "source",
    "step_index", "slot",
)  # fmt: skip
_TIMES = ("time", "received", "finished")


@dataclass(frozen=True, slots=True)
class Overlap:
    """What was left out of one file.

    Attributes
    ----------
    file, other : str
        The file, and the one that has its rows too.
    rows : int
        How many rows.
    """

    file: str
    other: str
    rows: int


def once(tables: Sequence[pa.Table], files: Sequence[str]) -> tuple[list[pa.Table], list[Overlap]]:
    """Leave out of each file the rows that one before it has.

    Parameters
    ----------
    tables : sequence of pyarrow.Table
        The rows of each file, of one record class.
    files : sequence of str
        Their names.

    Returns
    -------
    tables : list of pyarrow.Table
    overlaps : list of Overlap
        One a pair of files that share rows.
    """
    kept = list(tables)
    spans = [_span(table) for table in tables]
    keys: dict[int, Keys] = {}
    overlaps = []
    for i in range(1, len(kept)):
        for j in range(i):
            if not (spans[i][0] <= spans[j][1] and spans[j][0] <= spans[i][1]):
                continue
            for n in (i, j):
                if n not in keys:
                    keys[n] = _keys(tables[n])
            same = np.isin(keys[i], keys[j]) & (keys[i] != 0)
            if not same.any():
                continue
            overlaps.append(Overlap(files[i], files[j], int(same.sum())))
            kept[i] = kept[i].filter(pa.array(~same))
            keys[i] = keys[i][~same]
    return kept, overlaps


def _span(table: pa.Table) -> tuple[int, int]:
    """Return the first and the last time; all times where a row has none."""
    for name in _TIMES:
        if name in table.column_names and table.num_rows:
            time = table[name].cast(pa.int64())
            if time.null_count == 0:
                found = pc.min_max(time)
                return found["min"].as_py(), found["max"].as_py()
    return (-(1 << 62), 1 << 62) if table.num_rows else (1, 0)


def _keys(table: pa.Table) -> Keys:
    """Make one number of what tells a row from all others; 0 where nothing does."""
    n = table.num_rows
    place = next((name for name in _PLACE if name in table.column_names), None)
    if place is None:
        return np.zeros(n, dtype=np.uint64)
    made = np.zeros(n, dtype=np.uint64)
    for name in (place, *(p for p in _PLACE if p != place), *_REST):
        if name not in table.column_names or table[name].null_count == n:
            continue
        made = mixed(made, numbers_of(table[name]))
    # which of the equal rows of this file each one is
    order = np.argsort(made, kind="stable")
    turn = np.empty(n, dtype=np.int64)
    turn[order] = turns(made[order])
    nowhere = np.asarray(table[place].is_null())
    if {"kind", "time"} <= set(table.column_names):  # a jump of the clock stands on no line: its time and kind tell it
        nowhere &= np.asarray(table["kind"].is_null()) | np.asarray(table["time"].is_null())
    return np.where(nowhere, np.uint64(0), mixed(made, turn))


def numbers_of(column: pa.ChunkedArray) -> Ints:
    """Return a number for each value of a column of text, whole numbers or times; those of text hold in this process only."""
    if pa.types.is_string(column.type):
        coded = column.combine_chunks().dictionary_encode()
        some = np.fromiter(map(hash, coded.dictionary.to_pylist()), np.int64, len(coded.dictionary))
        indices = np.asarray(coded.indices.fill_null(len(some)))
        return np.append(some, 0)[indices]
    return np.asarray(column.cast(pa.int64()).fill_null(-1).combine_chunks())
