"""The second fast tier: lines of ``key=value`` pairs in any order, read key by key for all lines at once.

A shape (``shapes.py``) reads lines whose keys stand in one order. Where the order changes from line to line there would be thousands of
shapes, so here every pair of all lines is found first (``=`` signs and the blanks before them), the pairs are sorted by key, and the
values of one column are read together. Anything out of the ordinary in a line (a key twice, two spellings of one column, a value that
is no plain number) leaves the line to the tolerant reader.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa

from ddtree_metrics.dialects.base import MOST_SEQUENCES, Line
from ddtree_metrics.dialects.pairs import kinds_of
from ddtree_metrics.dialects.scan import Bools, Ints, Text
from ddtree_metrics.dialects.secrets import kept_key, names_secret
from ddtree_metrics.dialects.shapes import RowsRead, raw_values

MANY_PAIRS = 64
MANY_KEYS = 256
_MOST_DECIMALS = 6
_KEY = re.compile(r"[A-Za-z_#][\w#./+-]*", re.ASCII)


class _Pairs:
    """All pairs of some lines: the line each belongs to, its key (a number), and where its value begins and ends."""

    def __init__(self, text: Text, begin: Ints, end: Ints) -> None:
        signs, blanks = text.places(61), text.places(32)
        first = np.searchsorted(signs, begin)
        count = np.searchsorted(signs, end) - first
        self.good: Bools = (count > 0) & (count <= MANY_PAIRS)
        count = np.where(self.good, count, 0)
        self.offsets = np.zeros(len(begin) + 1, dtype=np.int64)
        np.cumsum(count, out=self.offsets[1:])
        self.line = np.repeat(np.arange(len(begin)), count)
        sign = signs[np.arange(self.offsets[-1]) + np.repeat(first - self.offsets[:-1], count)]
        # The opening of each line ends in a blank, so there is one before every key.
        key = blanks[np.searchsorted(blanks, sign) - 1] + 1
        self.left = sign + 1
        self.right = np.empty_like(sign)
        self.right[:-1] = key[1:] - 1
        last = self.offsets[1:][count > 0] - 1
        self.right[last] = end[count > 0]
        self.last = np.zeros(len(sign), dtype=np.bool_)
        self.last[last] = True
        opening = self.offsets[:-1][count > 0]
        self.drop(opening, key[opening] == begin[count > 0])
        fine = (self.right > self.left) & (sign > key)
        self.drop(slice(None), fine)
        names = text.strings(np.where(fine, key, 0), np.where(fine, sign, 0)).dictionary_encode()
        self.names: list[str] = names.dictionary.to_pylist()
        self.key: Ints = names.indices.to_numpy().astype(np.int64)

    def drop(self, which: Any, fine: Bools) -> None:
        """Give up the lines of the pairs that are not fine."""
        self.good[self.line[which][~fine]] = False


def read_by_key(line: Line, text: Text, rows: Ints, begin: Ints, openings: list[bytes]) -> tuple[list[RowsRead], Ints]:
    """Read lines of pairs in any order.

    Parameters
    ----------
    line : Line
        Their declaration; it is loose.
    text : Text
        The batch.
    rows, begin : numpy.ndarray of int64
        Which lines to try, and where the message of each begins.
    openings : list of bytes
        How such lines open, up to their first key.

    Returns
    -------
    parts : list of RowsRead
        What was read.
    left : numpy.ndarray of int64
        Which of ``rows`` (as places in it) were not.
    """
    parts: list[RowsRead] = []
    left = np.arange(len(rows))
    for opening in openings:
        if not len(left):
            break
        fits = text.equal(begin[left], opening) & (text.end[rows[left]] - begin[left] > len(opening))
        some = left[fits]
        if not len(some):
            continue
        part = _read(line, text, rows[some], begin[some] + len(opening))
        if part is not None:
            parts.append(part)
            left = left[~np.isin(rows[left], part.rows, assume_unique=True)]
    return parts, left


def _read(line: Line, text: Text, rows: Ints, begin: Ints) -> RowsRead | None:
    pairs = _Pairs(text, begin, text.end[rows])
    if not len(pairs.key) or len(pairs.names) > MANY_KEYS:
        return None
    columns, unknown = _sort_keys(line, pairs)
    made: dict[str, Any] = {}
    kinds = kinds_of(line.record)
    decimals = np.full(len(pairs.key), -1, dtype=np.int64)
    for column, which in columns.items():
        made[column] = _column(text, pairs, which, kinds[column][0], decimals)
    raw = np.zeros(len(pairs.key), dtype=np.bool_)
    for code in unknown:
        which = np.flatnonzero(pairs.key == code)
        raw[which] = True
        name, left, right = pairs.names[code], pairs.left[which], pairs.right[which]
        pairs.drop(which, text.uints(left, right)[1] if names_secret(name) else raw_values(text, name, left, right))
    _check_means(line, pairs, columns, decimals)
    sizes = _check_sizes(line, pairs, columns, made)
    there = {c: _present(pairs, which) for c, which in columns.items()}
    if line.need:
        pairs.good &= np.any([there[c] for c in line.need if c in there] or [np.zeros(len(rows), dtype=np.bool_)], axis=0)
    keep = np.flatnonzero(pairs.good)
    if not len(keep):
        return None
    part = RowsRead(rows[keep])
    for column, which in columns.items():
        kept = pairs.good[pairs.line[which]]
        part.columns[column] = _array(text, line, column, kinds[column], there[column][keep], made[column], kept)
    if line.length and sizes is not None:
        part.columns[line.length] = pa.array(sizes[keep].astype(np.int32), mask=sizes[keep] < 0)
    if raw.any():
        part.columns["extra"] = _extra(text, pairs, raw, keep)
    return part


def _present(pairs: _Pairs, which: Ints) -> Bools:
    there = np.zeros(len(pairs.good), dtype=np.bool_)
    there[pairs.line[which]] = True
    return there


def _sort_keys(line: Line, pairs: _Pairs) -> tuple[dict[str, Ints], list[int]]:
    """Say which pairs fill which column, and which keys have none; give up lines with a key or a column twice."""
    of: dict[str, list[int]] = {}
    unknown: list[int] = []
    place = np.zeros(len(pairs.names), dtype=np.int64)
    numbers: dict[str, int] = {}
    for code, name in enumerate(pairs.names):
        target = line.column_of(name)
        if target is None:
            unknown.append(code)
            place[code] = len(numbers)
            numbers["=" + name] = len(numbers)
            continue
        place[code] = numbers.setdefault(target.column, len(numbers))
        of.setdefault(target.column, []).append(code)
        if target.keep:
            pairs.drop(slice(None), pairs.key != code)
    for code, name in enumerate(pairs.names):
        if not _KEY.fullmatch(name) or (line.column_of(name) is None and kept_key(name) != name):
            pairs.drop(slice(None), pairs.key != code)
    times = np.bincount(pairs.line * len(numbers) + place[pairs.key], minlength=len(pairs.good) * len(numbers))
    pairs.good &= ~(times.reshape(len(pairs.good), len(numbers)) > 1).any(axis=1)
    return {column: np.flatnonzero(np.isin(pairs.key, codes)) for column, codes in of.items()}, unknown


def _column(text: Text, pairs: _Pairs, which: Ints, kind: str, decimals: Ints) -> Any:
    """Read all values of one column; lines whose value is not plain are given up."""
    left, right = pairs.left[which], pairs.right[which]
    values: Any = None
    if kind == "int":
        values, fine = text.uints(left, right)
    elif kind == "float":
        values, fine = _floats(text, left, right, which, decimals)
    elif kind == "list<int>":
        values, fine = _lists(text, left, right)
    elif kind == "list<str>":
        sizes, elements, fine = text.id_lists(left, right)
        values = (np.where(fine, sizes, 0), elements)
    else:
        fine = np.zeros(len(which), dtype=np.bool_)
    pairs.drop(which, fine)
    return values


def _floats(text: Text, left: Ints, right: Ints, which: Ints, decimals: Ints) -> tuple[Any, Bools]:
    values = np.zeros(len(left), dtype=np.float64)
    fine = np.zeros(len(left), dtype=np.bool_)
    rest = np.arange(len(left))
    for places in range(_MOST_DECIMALS + 1):
        if not len(rest):
            break
        here = rest if places == 0 else rest[(right[rest] - left[rest] > places + 1) & (text.data[right[rest] - places - 1] == 46)]
        made, good = text.fixed(left[here], right[here], places)
        here = here[good]
        values[here] = made[good]
        fine[here] = True
        decimals[which[here]] = places
        rest = rest[~np.isin(rest, here, assume_unique=True)]
    return values, fine


def _lists(text: Text, left: Ints, right: Ints) -> tuple[tuple[Ints, Ints], Bools]:
    """Read lists, and scalars as lists of one."""
    bracket = text.data[left] == 91
    fine = np.zeros(len(left), dtype=np.bool_)
    sizes = np.zeros(len(left), dtype=np.int64)
    listed, alone = np.flatnonzero(bracket), np.flatnonzero(~bracket)
    some, elements, good = text.lists(left[listed], right[listed])
    fine[listed] = good
    sizes[listed] = np.where(good, some, 0)
    if not len(alone):
        return (sizes, elements), fine
    values, good = text.uints(left[alone], right[alone])
    fine[alone] = good
    sizes[alone] = good
    inside = np.repeat(bracket, sizes)
    out = np.empty(len(inside), dtype=np.int64)
    out[inside] = elements
    out[~inside] = values[good]
    return (sizes, out), fine


def _check_means(line: Line, pairs: _Pairs, columns: dict[str, Ints], decimals: Ints) -> None:
    """Give up lines that end in a number which may have lost its last digits."""
    most = np.full(len(pairs.good), -1, dtype=np.int64)
    means = np.zeros(len(pairs.key), dtype=np.bool_)
    for column in line.means:
        which = columns.get(column)
        if which is not None:
            means[which] = True
            before = which[~pairs.last[which]]
            np.maximum.at(most, pairs.line[before], decimals[before])
    floats = decimals >= 0
    ends = np.flatnonzero(pairs.last & floats)
    short = means[ends] & (decimals[ends] < most[pairs.line[ends]])
    pairs.drop(ends, ~(short | (decimals[ends] < line.decimals)))


def _check_sizes(line: Line, pairs: _Pairs, columns: dict[str, Ints], made: dict[str, Any]) -> Ints | None:
    """Give up lines whose lists differ in length; return the batch size of each line, -1 where nothing says it."""
    agreed = np.full(len(pairs.good), -1, dtype=np.int64)
    found = False
    if line.length in columns:
        agreed[pairs.line[columns[line.length]]] = made[line.length]
        pairs.good &= agreed <= MOST_SEQUENCES
    for column in line.same_length:
        if column in columns:
            found = True
            owner, sizes = pairs.line[columns[column]], made[column][0]
            pairs.drop(columns[column], (agreed[owner] < 0) | (agreed[owner] == sizes))
            agreed[owner] = sizes
    return agreed if found else None


def _array(text: Text, line: Line, column: str, kind: tuple[str, bool], there: Bools, made: Any, kept: Bools) -> pa.Array:
    """Make a column of the lines that were read; ``kept`` says which of its values belong to one."""
    if kind[0].startswith("list"):
        sizes, elements = made
        elements = elements[np.repeat(kept, sizes)]
        sizes = sizes[kept]
        full = np.zeros(len(there), dtype=np.int64)
        full[there] = sizes
        offsets = np.zeros(len(there) + 1, dtype=np.int32)
        np.cumsum(full, out=offsets[1:])
        if kind[0] == "list<str>":
            values = text.strings(elements[:, 0], elements[:, 1])
        else:
            values = pa.array(elements.astype(np.int64 if kind[1] else np.int32))
        # A null offset makes its list null; the last one is no list's beginning.
        starts = pa.array(offsets, mask=np.append(~there, False))
        return pa.ListArray.from_arrays(starts, values, type=pa.list_(pa.field("element", values.type)))
    of = np.float64 if kind[0] == "float" else np.int64 if kind[1] else np.int32
    value = np.full(len(there), line.const.get(column, 0), dtype=of)
    value[there] = made[kept]
    return pa.array(value, mask=None if column in line.const else ~there)


def _extra(text: Text, pairs: _Pairs, raw: Bools, keep: Ints) -> pa.Array:
    """Make the ``extra`` column; null where a line has no unknown key."""
    which = np.flatnonzero(raw & pairs.good[pairs.line])
    count = np.bincount(pairs.line[which], minlength=len(pairs.good))[keep]
    offsets = np.zeros(len(keep) + 1, dtype=np.int32)
    np.cumsum(count, out=offsets[1:])
    names = pa.array(pairs.names, type=pa.string()).take(pa.array(pairs.key[which]))
    starts = pa.array(offsets, mask=np.append(count == 0, False))
    return pa.MapArray.from_arrays(starts, names, text.strings(pairs.left[which], pairs.right[which]))


__all__ = ["read_by_key"]
