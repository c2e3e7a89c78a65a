"""The fast tier: shapes of lines, learned from lines that the tolerant reader has read.

A shape is the fixed text of a line between its values: ``DDTREE metrics: bs=``, `` budget=``, `` actual_nodes=``. All lines of a
batch that have the same fixed text at the same places are read as arrays: the key-value signs are found for the whole batch at
once, the text before each is compared eight bytes at a time, and the values are read eight digits at a time. What differs in
anything (a key more, another order, a sign, a number too long) leaves the fast tier and loses nothing but time. Since shapes are
learned, a release that adds or moves a key is as fast as the usual one after the first few lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.dialects.base import MOST_SEQUENCES, Line
from ddtree_metrics.dialects.pairs import ITERATION, LineValues, kinds_of
from ddtree_metrics.dialects.scan import Bools, Ints, Text
from ddtree_metrics.dialects.secrets import PLAIN, SHAPED, kept_key, may_be_secret, names_secret

MAX_SHAPES = 48
LEARN_AFTER = 4
FEW_LINES = 24
MAX_OPENINGS = 8
# A shape that reads less than one in so many of the lines it is tried on is given up, once it was tried on enough.
RARE = 50
RARE_AFTER = 20_000
# A value that must be redacted has at least so many characters.
_SECRET_SIZE = 6

_INT = re.compile(r"\d{1,8}", re.ASCII)
_FLOAT = re.compile(r"\d{1,8}(?:\.(\d{1,6}))?", re.ASCII)
_LIST = re.compile(r"\[(?:\d{1,8}(?:, \d{1,8})*)?\]", re.ASCII)
_IDS = re.compile(r"\['[\w-]{1,200}'(?:, '[\w-]{1,200}')*\]", re.ASCII)
_RAW = re.compile(r"[^\s\"'(){}\[\],;|=@…]+")
_SPAN = re.compile(r"[0-9.]+ \[[0-9., -]*\]")
_RAW_TABLE = np.zeros(256, dtype=np.bool_)
_RAW_TABLE[[c for c in range(256) if c <= 32 or c >= 127 or chr(c) in "\"'(){}[],;|=@"]] = True
_SPAN_TABLE = np.ones(256, dtype=np.bool_)
_SPAN_TABLE[[ord(c) for c in "0123456789.,- []"]] = False


@dataclass(frozen=True, slots=True)
class Slot:
    """One value of a shape: what it is, and where it goes.

    ``kind`` is int, float, bool, list, one (a scalar for a list), ids, or one of raw, digits and span (``4.55 [4.40, 4.70]``), which
    have no column and go to ``extra``.
    """

    kind: str
    column: str | None
    key: str
    decimals: int = 0
    keep: bool = False


@dataclass(slots=True)
class Shape:
    """The fixed texts of a line and its values in between."""

    literals: tuple[bytes, ...]
    slots: tuple[Slot, ...]
    tail: bytes
    sign: int
    ordinals: tuple[int, ...]
    total: int
    used: int = 0
    idle: int = 0
    tried: int = 0

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two shapes the same."""
        return (self.literals, self.slots, self.tail)


@dataclass(slots=True)
class RowsRead:
    """Rows that were read together: their places in the batch, and a column each."""

    rows: Ints
    columns: dict[str, pa.Array] = field(default_factory=dict)


def learn(line: Line, text: str, reading: LineValues) -> Shape | None:
    """Make the shape of a line that was read; ``None`` if the fast tier could not read it the same way."""
    tokens = reading.tokens
    if tokens.residue or "repeated" in reading.extra or not text.isascii():
        return None
    spans = sorted(tokens.pairs, key=lambda p: p[1])
    keys = [k for k, _, _ in spans]
    if len(set(keys)) != len(keys):
        return None
    kinds = kinds_of(line.record)
    slots: list[Slot] = []
    literals: list[bytes] = []
    seen: set[str] = set()
    at = 0
    for place, (key, begin, end) in enumerate(spans):
        if begin < at or (place and begin - at < 2):
            return None
        target = line.column_of(key)
        slot = _slot(key, text[begin:end], target.column if target else None, kinds)
        if slot is None or (slot.kind == "span" and line.loose):
            return None
        if target is not None:
            if target.column in seen:
                return None
            seen.add(target.column)
            if line.decimals and slot.kind == "float" and place == len(spans) - 1 and slot.decimals < line.decimals:
                return None
            slot = Slot(slot.kind, slot.column, slot.key, slot.decimals, target.keep)
        slots.append(slot)
        literals.append(text[at:begin].encode())
        at = end
    means = [s.decimals for s in slots if s.column in line.means]
    if slots and slots[-1].column in line.means and slots[-1].decimals < max(means):
        return None
    tail = text[at:]
    if tail.strip(" ,"):
        return None
    sign = text[spans[-1][1] - 1 :: -1].lstrip()[:1] if spans else ""
    if sign not in ("=", ":"):
        return None
    ordinals = []
    for place, (_, begin, _) in enumerate(spans):
        count = text.count(sign, 0, begin)
        if place and sign.encode() not in literals[place]:
            return None
        ordinals.append(count - 1)
    return Shape(tuple(literals), tuple(slots), tail.encode(), ord(sign), tuple(ordinals), text.count(sign))


def _slot(key: str, value: str, column: str | None, kinds: dict[str, tuple[str, bool]]) -> Slot | None:
    if column is None:
        if kept_key(key) != key:
            return None
        if names_secret(key):
            # A count (#pending-token: 0), as long as it is one.
            return Slot("digits", None, key) if _INT.fullmatch(value) else None
        if _SPAN.fullmatch(value):
            return Slot("span", None, key)
        return Slot("raw", None, key) if _RAW.fullmatch(value) and value.isascii() and value != "..." else None
    kind = kinds[column][0]
    if kind == "int" and _INT.fullmatch(value):
        return Slot("int", column, key)
    if kind == "float" and (found := _FLOAT.fullmatch(value)):
        return Slot("float", column, key, len(found[1] or ""))
    if kind == "bool" and value in ("True", "False"):
        return Slot("bool", column, key)
    if kind == "list<int>" and _LIST.fullmatch(value):
        return Slot("list", column, key)
    if kind == "list<str>" and _IDS.fullmatch(value):
        return Slot("ids", column, key)
    if kind == "list<int>" and _INT.fullmatch(value):
        return Slot("one", column, key)
    return None


def match(shape: Shape, line: Line, text: Text, rows: Ints, begin: Ints) -> RowsRead | None:
    """Read all lines that have a shape.

    Parameters
    ----------
    shape, line : Shape, Line
        The shape and the declaration it was learned for.
    text : Text
        The batch.
    rows : numpy.ndarray of int64
        Which lines to try.
    begin : numpy.ndarray of int64
        Where the message of each begins, behind its head.

    Returns
    -------
    Part or None
        The lines that were read.
    """
    places = text.places(shape.sign)
    end = text.end[rows]
    low = np.searchsorted(places, begin)
    fits = np.flatnonzero(np.searchsorted(places, end) - low == shape.total)
    if not len(fits):
        return None
    if len(fits) < len(rows):
        rows, begin, end, low = rows[fits], begin[fits], end[fits], low[fits]
    starts: list[Ints] = []
    good: Bools = np.ones(len(rows), dtype=np.bool_)
    ends: list[Ints] = []
    for place, literal in enumerate(shape.literals):
        if place == 0:
            value = begin + len(literal)
        else:
            value = places[low + shape.ordinals[place]] + (len(literal) - literal.rindex(shape.sign))
            ends.append(value - len(literal))
        good &= text.equal(value - len(literal), literal)
        starts.append(value)
    ends.append(end - len(shape.tail))
    good &= text.equal(ends[-1], shape.tail)
    for left, right in zip(starts, ends, strict=True):
        good &= right > left
    if not good.all():
        keep = np.flatnonzero(good)
        if not len(keep):
            return None
        rows = rows[keep]
        starts = [s[keep] for s in starts]
        ends = [e[keep] for e in ends]
    return _values(shape, line, text, rows, starts, ends)


def _values(shape: Shape, line: Line, text: Text, rows: Ints, starts: list[Ints], ends: list[Ints]) -> RowsRead | None:
    count = len(rows)
    good: Bools = np.ones(count, dtype=np.bool_)
    numbers: dict[str, Any] = {}
    lists: dict[str, tuple[Ints, Ints, Bools]] = {}
    for slot, left, right in zip(shape.slots, starts, ends, strict=True):
        if slot.kind == "int":
            numbers[slot.key], fine = text.uints(left, right)
        elif slot.kind == "float":
            numbers[slot.key], fine = text.fixed(left, right, slot.decimals)
        elif slot.kind == "bool":
            true = (right - left == 4) & text.equal(left, b"True")
            fine = true | ((right - left == 5) & text.equal(left, b"False"))
            numbers[slot.key] = true
        elif slot.kind == "list":
            sizes, elements, fine = text.lists(left, right)
            lists[slot.key] = (sizes, elements, fine)
        elif slot.kind == "ids":
            sizes, elements, fine = text.id_lists(left, right)
            lists[slot.key] = (sizes, elements, fine)
        elif slot.kind == "one":
            value, fine = text.uints(left, right)
            lists[slot.key] = (np.ones(count, dtype=np.int64), value[fine], fine)
        elif slot.kind == "digits":
            fine = text.uints(left, right)[1]
        elif slot.kind == "span":
            fine = ~text.holds(left, right, _SPAN_TABLE) & (text.data[right - 1] == 93) & (text.data[left] != 91)
            fine &= text.data[left] != 32
        else:
            fine = raw_values(text, slot.key, left, right)
        good &= fine
    length = numbers.get(next((s.key for s in shape.slots if line.length and s.column == line.length), ""))
    if length is not None:
        good &= length <= MOST_SEQUENCES
    sizes_of = [lists[s.key][0] for s in shape.slots if s.column in line.same_length and s.key in lists]
    for sizes in sizes_of:
        good &= sizes == (sizes_of[0] if length is None else length)
    keep = None if good.all() else np.flatnonzero(good)
    if keep is not None:
        if not len(keep):
            return None
        rows = rows[keep]
    part = RowsRead(rows)
    kinds = kinds_of(line.record)
    if line.length and length is None and sizes_of:
        sizes = sizes_of[0] if keep is None else sizes_of[0][keep]
        part.columns[line.length] = pa.array(sizes.astype(np.int32))
    for slot in shape.slots:
        if slot.column is None:
            continue
        if slot.key in lists:
            sizes, elements, fine = lists[slot.key]
            if keep is not None:
                elements = elements[np.repeat(good[fine], sizes[fine])]
                sizes = sizes[keep]
            made = text.strings(elements[:, 0], elements[:, 1]) if slot.kind == "ids" else _ints(elements, kinds[slot.column][1])
            part.columns[slot.column] = list_array(sizes, made)
            continue
        value = numbers[slot.key] if keep is None else numbers[slot.key][keep]
        if slot.kind == "int":
            value = value.astype(np.int64 if kinds[slot.column][1] else np.int32)
        part.columns[slot.column] = pa.array(value)
    raw = [(s.key, b, e) for s, b, e in zip(shape.slots, starts, ends, strict=True) if s.column is None or s.keep]
    if raw:
        if keep is not None:
            raw = [(k, b[keep], e[keep]) for k, b, e in raw]
        part.columns["extra"] = map_array(text, raw)
    return part


def raw_values(text: Text, key: str, left: Ints, right: Ints) -> Bools:
    """Say which values of an unknown key can be kept as they stand: whole, plain, and neither secret nor text."""
    fine: Bools = ~text.holds(left, right, _RAW_TABLE)
    for back in range(3, 7):
        # Dots at the end, with up to three other signs behind them, say that the line was cut.
        fine &= ~((right - back >= left) & text.equal(right - back, b"..."))
    size = right - left
    if may_be_secret(key):
        fine &= size < 16
    some = np.flatnonzero(fine & (size >= _SECRET_SIZE))
    if len(some):
        values = text.strings(left[some], right[some])
        fine[some] = pc.and_not(pc.match_substring_regex(values, PLAIN), pc.match_substring_regex(values, SHAPED))
    return fine


def _ints(elements: Ints, wide: bool) -> pa.Array:
    return pa.array(elements.astype(np.int64 if wide else np.int32))


def list_array(sizes: Ints, elements: pa.Array) -> pa.Array:
    """Make an Arrow list column from lengths and all elements in a row."""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), elements, type=pa.list_(pa.field("element", elements.type)))


def map_array(text: Text, raw: list[tuple[str, Ints, Ints]]) -> pa.Array:
    """Make the ``extra`` column where all lines have the same unknown keys."""
    count, width = len(raw[0][1]), len(raw)
    begin = np.stack([b for _, b, _ in raw], axis=1).ravel()
    end = np.stack([e for _, _, e in raw], axis=1).ravel()
    names = pa.array([k for k, _, _ in raw]).take(pa.array(np.tile(np.arange(width), count)))
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * width)
    return pa.MapArray.from_arrays(offsets, names, text.strings(begin, end))


class Shapes:
    """The shapes of one line kind, most used first, and the ones that may become shapes."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.shapes: list[Shape] = []
        self.learned = 0
        self.offered = 0
        self.openings: list[bytes] = []
        self._seen: dict[tuple[Any, ...], int] = {}
        self._rare: set[tuple[Any, ...]] = set()

    def read(self, text: Text, rows: Ints, begin: Ints) -> tuple[list[RowsRead], Ints]:
        """Read what the shapes can; return the parts, and which of ``rows`` (as places in it) are left."""
        parts: list[RowsRead] = []
        left = np.arange(len(rows))
        # What few lines have is read quicker by its keys, where that can be done.
        few = max(FEW_LINES, len(rows) // RARE) if self.openings else FEW_LINES
        for shape in self.shapes:
            if not len(left) or (len(left) < few and len(left) < len(rows) and shape is not self.shapes[0]):
                break
            shape.tried += len(left)
            part = match(shape, self.line, text, rows[left], begin[left])
            if part is None:
                shape.idle += 1
                continue
            shape.used += len(part.rows)
            shape.idle = 0
            parts.append(part)
            left = left[~np.isin(rows[left], part.rows, assume_unique=True)]
        self.shapes.sort(key=lambda s: -s.used)
        if self.openings:
            self._forget()
        return parts, left

    def _forget(self) -> None:
        """Give up shapes that few lines have; what is read by its keys needs none."""
        rare = {s.key for s in self.shapes if s.tried > RARE_AFTER and s.used * RARE < s.tried}
        if rare:
            self._rare |= rare
            self.shapes = [s for s in self.shapes if s.key not in rare]

    def _note_opening(self, text: str, reading: LineValues) -> None:
        """Remember how lines of this kind open up to their first key, for ``bykey.py``."""
        if not self.line.loose or len(self.openings) >= MAX_OPENINGS or not reading.tokens.pairs:
            return
        key, begin, _ = reading.tokens.pairs[0]
        opening = text[: begin - len(key) - 1]
        low = opening[:80].lower()
        if not any(low.startswith(m.lower()) for m in self.line.markers) or reading.tokens.residue:
            return
        made = opening.encode()
        if opening.endswith(" ") and text[len(opening) : begin] == f"{key}=" and opening.isascii() and made not in self.openings:
            self.openings.append(made)

    def offer(self, text: str, reading: LineValues) -> Shape | None:
        """Take note of a line that the tolerant reader has read; return the shape if it has become one."""
        self._note_opening(text, reading)
        self.offered += 1
        keys = tuple(k for k, _, _ in reading.tokens.pairs)
        count = self._seen[keys] = self._seen.get(keys, 0) + 1
        if len(self._seen) > 4096:
            self._seen.clear()
        if count < LEARN_AFTER or count & (count - 1):
            return None
        shape = learn(self.line, text, reading)
        if shape is None or shape.key in self._rare or any(s.key == shape.key for s in self.shapes):
            return None
        if len(self.shapes) >= MAX_SHAPES:
            self.shapes.remove(max(self.shapes, key=lambda s: (s.idle, -s.used)))
        self.shapes.append(shape)
        self.learned += 1
        return shape


__all__ = ["ITERATION", "RowsRead", "Shape", "Shapes", "Slot", "learn", "list_array", "map_array", "match"]
