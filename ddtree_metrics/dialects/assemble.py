"""From what the readers read to the tables: columns in the order of the lines, with the origin of each line beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.dialects.base import Line
from ddtree_metrics.dialects.cast import convert
from ddtree_metrics.dialects.secrets import DOUBTFUL, redact
from ddtree_metrics.dialects.stamps import RANKS, Head, Heads, Ints
from ddtree_metrics.schema import arrow_schema
from ddtree_metrics.times import Localizer

ORIGIN = ("monotonic_us", "boot_id", "host", "unit", "pid", "where")
_TIME = ("time", "time_from", "time_resolution_us", "time_flag")
_FAR = 2**31 - 1
TEXT = 400


@dataclass(slots=True)
class Piece:
    """Rows of one table that were read together."""

    rows: Ints
    columns: dict[str, pa.Array]
    heads: Heads
    dialect: str

    def filled(self, line: Line) -> Piece:
        """Put in what is the same on every line of its kind."""
        for name, value in line.const.items():
            constant = pa.scalar(value, arrow_schema(line.record).field(name).type)
            there = self.columns.get(name)
            self.columns[name] = pa.repeat(constant, len(self.rows)) if there is None else there.fill_null(constant)
        return self


class RowTimes:
    """Decides whose time a row has.

    Parameters
    ----------
    tz : zoneinfo.ZoneInfo or None
        The zone of the stamps in the lines; None if not known.
    """

    def __init__(self, tz: ZoneInfo | None) -> None:
        self._tz = tz
        self.localizer: Localizer | None = None

    def begin(self) -> Localizer:
        """Return what works out the zone; made when the first stamp needs it."""
        self.localizer = self.localizer or Localizer(self._tz)
        return self.localizer

    def localize(self, batch: pa.RecordBatch, pieces: list[Piece]) -> None:
        """Turn the local stamps of all pieces of a batch into UTC, in the order of the lines; ``heads`` is changed in place."""
        if self._tz is None or not pieces or self._is_sure(batch):
            return
        rows = np.concatenate([p.rows for p in pieces])
        known = np.concatenate([p.heads.known for p in pieces])
        naive = np.concatenate([p.heads.naive for p in pieces])
        order = np.flatnonzero(known)[np.argsort(rows[known], kind="stable")]
        made, flags = self.begin().feed(naive[order])
        naive[order] = made
        marked = [(int(i), flag) for i, flag in zip(order, flags, strict=True) if flag is not None]
        at = 0
        for piece in pieces:
            piece.heads.naive = naive[at : at + len(piece.rows)]
            for place, flag in marked:
                if at <= place < at + len(piece.rows):
                    if piece.heads.flags is None:
                        piece.heads.flags = [None] * len(piece.rows)
                    piece.heads.flags[place - at] = flag
            at += len(piece.rows)

    @staticmethod
    def _is_sure(batch: pa.RecordBatch) -> bool:
        sources = batch.column(batch.schema.get_field_index("time_from"))
        return sources.null_count == 0 and pc.all(pc.is_in(sources, value_set=pa.array(["journal", "frame"]))).as_py() is True

    @property
    def name(self) -> str:
        """What ``time_from`` says of a stamp."""
        return "stamp-local" if self._tz is None else "stamp"


def bare_lines(messages: Sequence[str]) -> pa.RecordBatch:
    """Make a batch of lines of which nothing but the text is known."""
    kinds = {
        "time": pa.timestamp("us", tz="UTC"),
        "time_from": pa.string(),
        "time_resolution_us": pa.int32(),
        "time_flag": pa.string(),
        "monotonic_us": pa.int64(),
        "boot_id": pa.string(),
        "host": pa.string(),
        "unit": pa.string(),
        "pid": pa.int32(),
        "where": pa.string(),
    }
    columns = {name: pa.nulls(len(messages), kind) for name, kind in kinds.items()}
    return pa.RecordBatch.from_pydict({**columns, "message": pa.array(messages, type=pa.string())})


def cast_text(text: str, kind: tuple[str, bool]) -> Any:
    """Turn the text of a pattern's group into a value; nothing for an empty one."""
    if kind[0] == "str":
        return clean_text(text)
    return convert(text, *kind) if text else None


def clean_text(text: str) -> str:
    """Return the text of a line as a column keeps it: without blanks around it and secrets in it, not too long."""
    return redact(text.strip(" \t"))[:TEXT]


def clean_texts(texts: pa.Array) -> pa.Array:
    """Return texts of lines as ``clean_text`` does, all together."""
    texts = pc.utf8_trim(texts, characters=" \t")
    doubtful = np.flatnonzero(np.asarray(pc.fill_null(pc.match_substring_regex(texts, DOUBTFUL), False)))
    if len(doubtful):
        made = texts.to_pylist()
        for i in doubtful:
            made[i] = redact(made[i])
        texts = pa.array(made, type=pa.string())
    return pc.utf8_slice_codeunits(texts, 0, TEXT)


def from_rows(record: type, found: Sequence[tuple[int, dict[str, Any], Head, str]]) -> Piece:
    """Make a piece of rows that were read one at a time."""
    schema = arrow_schema(record)
    columns: dict[str, pa.Array] = {}
    names = {n for _, values, _, _ in found for n in values}
    for name in schema.names:
        if name in names:
            kind = schema.field(name).type
            made = [_plain(values.get(name), kind) for _, values, _, _ in found]
            columns[name] = pa.array(made, type=kind)
    columns["dialect"] = pa.array([d for _, _, _, d in found])
    return Piece(np.array([r for r, _, _, _ in found], dtype=np.int64), columns, Heads.of([h for _, _, h, _ in found]), "")


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(str(k), str(v)) for k, v in value.items()]
    if isinstance(value, datetime):
        return value
    return value


def table(record: type, pieces: list[Piece], batch: pa.RecordBatch, clock: RowTimes) -> tuple[Ints, pa.RecordBatch]:
    """Make the rows of one table from all its pieces.

    Parameters
    ----------
    record : type
        The record class.
    pieces : list of Piece
        In any order.
    batch : pyarrow.RecordBatch
        The lines, for their origin.
    clock : RowTimes
        Whose time a row has.

    Returns
    -------
    rows : numpy.ndarray of int64
        The place of each row's line in the batch.
    table : pyarrow.RecordBatch
    """
    schema = arrow_schema(record)
    rows = np.concatenate([p.rows for p in pieces]) if len(pieces) > 1 else pieces[0].rows
    order = None if (np.diff(rows) > 0).all() else pa.array(np.argsort(rows, kind="stable"))
    if order is not None:
        rows = rows[order.to_numpy()]
    sizes = [len(p.rows) for p in pieces]
    pieces = [_with_head_extra(p, schema) for p in pieces]
    columns: dict[str, pa.Array] = {}
    for name in schema.names:
        if name in _TIME or name in ORIGIN or name in RANKS or name == "dialect":
            continue
        there = [p.columns.get(name) for p in pieces]
        kind = schema.field(name).type
        if all(c is None for c in there):
            columns[name] = pa.nulls(len(rows), kind)
            continue
        columns[name] = _joined([pa.nulls(n, kind) if c is None else _as(c, kind) for c, n in zip(there, sizes, strict=True)], order)
    names = [p.columns.get("dialect") or pa.repeat(pa.scalar(p.dialect), len(p.rows)) for p in pieces]
    columns["dialect"] = _joined(names, order)
    places = None if order is None else order.to_numpy()
    ranks = _stack([p.heads.ranks for p in pieces], places)
    for i, name in enumerate(RANKS):
        there_mask = ranks[:, i] < 0
        kind = schema.field(name).type
        columns[name] = pa.nulls(len(rows), kind) if there_mask.all() else pa.array(ranks[:, i].astype(np.int32), mask=there_mask)
        said = [p.columns.get(name) for p in pieces]
        if columns[name].null_count and any(c is not None for c in said):
            parts = [pa.nulls(n, kind) if c is None else _as(c, kind) for c, n in zip(said, sizes, strict=True)]
            columns[name] = pc.coalesce(columns[name], _joined(parts, order))
    columns.update(_times(pieces, places, rows, batch, clock))
    index = pa.array(rows)
    for name in ORIGIN:
        kind = schema.field(name).type
        columns[name] = _taken(batch, name, index, kind)
        said = [p.columns.get(name) for p in pieces]
        if columns[name].null_count and any(c is not None for c in said):
            # What a line itself says of its origin fills in where the source does not know it.
            parts = [pa.nulls(n, kind) if c is None else _as(c, kind) for c, n in zip(said, sizes, strict=True)]
            columns[name] = pc.coalesce(columns[name], _joined(parts, order))
    return rows, pa.RecordBatch.from_arrays([_as(columns[n], schema.field(n).type) for n in schema.names], schema=schema)


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)


def _joined(parts: list[pa.Array], order: pa.Array | None) -> pa.Array:
    made = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    return made if order is None else made.take(order)


def _stack(parts: list[Any], order: Any) -> Any:
    made = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return made if order is None else made[order]


def _taken(batch: pa.RecordBatch, name: str, index: pa.Array, kind: pa.DataType) -> pa.Array:
    column = batch.column(batch.schema.get_field_index(name))
    if column.null_count == len(column):
        return pa.nulls(len(index), kind)
    if len(index) == len(column):
        return _as(column, kind)
    return _as(column.take(index), kind)


def _with_head_extra(piece: Piece, schema: pa.Schema) -> Piece:
    """Put rank words without a column into extra."""
    if piece.heads.extra is None or "extra" not in schema.names or "dialect" in piece.columns:
        return piece
    old = piece.columns["extra"].to_pylist() if "extra" in piece.columns else [None] * len(piece.rows)
    made = [list((more or {}).items()) + (had or []) or None for had, more in zip(old, piece.heads.extra, strict=True)]
    columns = {**piece.columns, "extra": pa.array(made, type=schema.field("extra").type)}
    return Piece(piece.rows, columns, piece.heads, piece.dialect)


def _times(pieces: list[Piece], order: Any, rows: Ints, batch: pa.RecordBatch, clock: RowTimes) -> dict[str, pa.Array]:
    """Choose between the source's time and the stamp of the line, row by row, as arrays."""
    count = len(rows)
    index = pa.array(rows)
    if batch.column(batch.schema.get_field_index("time")).null_count == batch.num_rows:
        return _own_times(pieces, order, count, clock)
    source = _taken(batch, "time", index, pa.timestamp("us", tz="UTC"))
    source_from = _taken(batch, "time_from", index, pa.string())
    source_resolution = _taken(batch, "time_resolution_us", index, pa.int32())
    source_flag = _taken(batch, "time_flag", index, pa.string())
    has_source = np.asarray(source.is_valid())
    sure = has_source & np.asarray(pc.is_in(source_from, value_set=pa.array(["journal", "frame"])))
    same = {"time": source, "time_from": source_from, "time_resolution_us": source_resolution, "time_flag": source_flag}
    if sure.all():
        return same
    known = _stack([p.heads.known for p in pieces], order)
    naive = _stack([p.heads.naive for p in pieces], order)
    resolution = _stack([p.heads.resolution for p in pieces], order)
    own = np.asarray(source_resolution.fill_null(_FAR)).astype(np.int64)
    finer = has_source & (own < np.where(resolution > 0, resolution, _FAR))
    stamped = known & ~sure & ~finer
    flags = _flags(pieces, order, count)
    if not stamped.any() and flags is None:
        return same
    mask = pa.array(stamped)
    stamp = pa.array(np.where(stamped, naive, 0), type=pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    time = pc.if_else(mask, stamp, source)
    time_from = pc.if_else(mask, pa.scalar(clock.name), source_from)
    time_resolution = pc.if_else(mask, pa.array(np.where(stamped, resolution, 0).astype(np.int32)), source_resolution)
    flag = pc.if_else(mask, pa.scalar(None, pa.string()), source_flag)
    if flags is not None:
        # What is doubtful about a stamp counts where the stamp is the time, or where there is no time because of it.
        flag = pc.if_else(pa.array(stamped | ~has_source), pa.array(flags, type=pa.string()), flag)
    return {"time": time, "time_from": time_from, "time_resolution_us": time_resolution, "time_flag": flag}


def _own_times(pieces: list[Piece], order: Any, count: int, clock: RowTimes) -> dict[str, pa.Array]:
    """Take the stamps, where the source knows no time at all."""
    known = _stack([p.heads.known for p in pieces], order)
    naive = _stack([p.heads.naive for p in pieces], order)
    resolution = _stack([p.heads.resolution for p in pieces], order)
    flags = _flags(pieces, order, count)
    mask = None if known.all() else ~known
    time = pa.array(naive, type=pa.int64(), mask=mask).cast(pa.timestamp("us", tz="UTC"))
    time_from = pa.repeat(pa.scalar(clock.name), count)
    if mask is not None:
        time_from = pc.if_else(pa.array(known), time_from, pa.scalar(None, pa.string()))
    return {
        "time": time,
        "time_from": time_from,
        "time_resolution_us": pa.array(resolution.astype(np.int32), mask=mask),
        "time_flag": pa.nulls(count, pa.string()) if flags is None else pa.array(flags, type=pa.string()),
    }


def _flags(pieces: list[Piece], order: Any, count: int) -> list[str | None] | None:
    if all(p.heads.flags is None for p in pieces):
        return None
    made = [f for p in pieces for f in (p.heads.flags or [None] * len(p.rows))]
    return made if order is None else [made[i] for i in order]
