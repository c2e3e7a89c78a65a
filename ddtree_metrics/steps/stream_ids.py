"""Which rows come from the same place: host, boot, unit, process and data-parallel rank, as numbers instead of texts.

Nearly all rows of a batch come from the same few places. Each column is encoded once, and names are made of the distinct
combinations only, not of every row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.sources.rotated import rotation

Ints = npt.NDArray[np.int64]

_NAMES = ("host", "boot_id", "unit", "pid", "dp_rank")

# run.log.1, run.log.2.gz and run.log-20260201 are parts of run.log


@dataclass(frozen=True, slots=True)
class Origin:
    """One place; what is not known is empty."""

    host: str
    boot_id: str
    unit: str
    pid: str
    dp_rank: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class Labels:
    """A text for each of some rows.

    Attributes
    ----------
    codes : ndarray of int64, shape (n,)
        Which text each row has.
    texts : list of str
        The distinct texts, in the order in which rows have them first.
    """

    codes: Ints
    texts: list[str]

    def rows(self, code: int) -> Ints:
        """Return the rows with a text."""
        return np.arange(len(self.codes)) if len(self.texts) == 1 else np.flatnonzero(self.codes == code)

    def take(self, at: Ints) -> Labels:
        """Return the labels of some rows; texts that none of them has stay in the list."""
        return Labels(self.codes[at], self.texts)

    def column(self) -> pa.Array:
        """Return the texts of all rows as a column."""
        if len(self.texts) == 1:
            return pa.repeat(pa.scalar(self.texts[0], pa.string()), len(self.codes))
        return pa.array(self.texts, pa.string()).take(pa.array(self.codes))


class Origins:
    """The origins of the rows of a batch.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        A table of lines.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.codes: Ints = np.zeros(batch.num_rows, dtype=np.int64)
        keys: list[tuple[str, ...]] = [()]
        for name in _NAMES:
            codes, texts = _encoded(batch.column(name))
            if codes is None:
                keys = [(*key, texts[0]) for key in keys]
                continue
            self.codes, found = in_order(self.codes * len(texts) + codes, len(keys) * len(texts))
            keys = [(*keys[code // len(texts)], texts[code % len(texts)]) for code in found]
        self.all = [Origin(*key) for key in keys]
        if any(not o.pid and not o.unit for o in self.all):
            self._add_files(batch.column("where"))

    def _add_files(self, where: pa.Array) -> None:
        """Where neither process nor unit is known, the file tells servers apart; parts of a rotated set are one file."""
        if where.null_count == len(where):
            return
        ends = {file_of(where[i].as_py()) for i in (0, len(where) - 1)}
        if len(ends) == 1:
            self.all = [o if o.pid or o.unit else replace(o, file=next(iter(ends))) for o in self.all]
            return
        codes, texts = _encoded(pc.replace_substring_regex(where, r":[0-9]+$", ""))
        if codes is None:
            codes = np.zeros(len(where), dtype=np.int64)
        names = [file_of(text) for text in texts]
        self.codes, found = in_order(self.codes * len(texts) + codes, len(self.all) * len(texts))
        origins = [(self.all[code // len(texts)], names[code % len(texts)]) for code in found]
        self.all = [o if o.pid or o.unit else replace(o, file=name) for o, name in origins]

    def of(self, row: int) -> Origin:
        """Return the origin of one row."""
        return self.all[int(self.codes[row])]

    def labels(self, name: Callable[[Origin], str]) -> Labels:
        """Name each row by its origin; origins with the same name become one."""
        if len(self.all) == 1:
            return Labels(self.codes, [name(self.all[0])])
        known: dict[str, int] = {}
        renamed = np.array([known.setdefault(name(origin), len(known)) for origin in self.all], dtype=np.int64)
        return Labels(renamed[self.codes], list(known))


def file_of(where: str | None) -> str:
    """Return the name of the file in which a line stands, without what rotation adds to it."""
    if not where or where.startswith("journal:"):
        return ""
    return rotation(re.sub(r":[0-9]+$", "", where))[0]


def _encoded(column: pa.Array) -> tuple[Ints | None, list[str]]:
    """Return the number of each row's text, and the texts; no numbers where all rows have the same."""
    if column.null_count == len(column):
        return None, [""]
    encoded = column.dictionary_encode()
    texts = ["" if v is None else str(v) for v in encoded.dictionary.to_pylist()]
    if column.null_count == 0:
        if len(texts) == 1:
            return None, texts
        return encoded.indices.to_numpy().astype(np.int64), texts
    return encoded.indices.fill_null(len(texts)).to_numpy().astype(np.int64), [*texts, ""]


def in_order(codes: Ints, size: int) -> tuple[Ints, list[int]]:
    """Give codes below ``size`` new numbers, in the order in which they come first; also return the old ones."""
    n = len(codes)
    if size > 4 * n + 1024:
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        renamed = np.empty(len(order), dtype=np.int64)
        renamed[order] = np.arange(len(order))
        return renamed[inverse.reshape(-1)], codes[first[order]].tolist()
    first = np.full(size, n, dtype=np.int64)
    first[codes[::-1]] = np.arange(n - 1, -1, -1)
    there = np.flatnonzero(first < n)
    old = there[np.argsort(first[there])]
    renamed = np.zeros(size, dtype=np.int64)
    renamed[old] = np.arange(len(old))
    return renamed[codes], old.tolist()


def unit_of(origin: Origin) -> str:
    """Name the unit that a line is of: ``host`` and ``unit``."""
    return f"{origin.host}\x1f{origin.unit}"


def stream_of(origin: Origin) -> str:
    """Name a stream: ``host|boot|process|dp``, with ``-`` for what is not known.

    Where the process is not known, the unit (or container) stands for it, and else the file.
    """
    rank = f"dp{origin.dp_rank}" if origin.dp_rank else ""
    return "|".join(part or "-" for part in (origin.host, origin.boot_id[:8], origin.pid or origin.unit or origin.file, rank))


def family_of(origin: Origin) -> str:
    """Name the place that a process takes: of one family, a process follows the other."""
    return f"{origin.host}|{origin.unit or origin.file}|{origin.dp_rank}"


def concerns(event: str, row: str) -> bool:
    """Whether what happened to one unit (or stream) concerns a line of another, where either may be unknown in part.

    A notice that names a unit is taken to concern lines of no named unit too: a text log does not say its unit.
    """
    if event == row:
        return True
    if "\x1f" not in event:
        return False
    return all(not a or not b or a == b for a, b in zip(event.split("\x1f"), row.split("\x1f"), strict=True))


def begins_as(stream: str, before: str | None, *, goes_on: bool) -> str:
    """Say why a stream begins: the first of its family, another boot, or another process in the place of an older one.

    Parameters
    ----------
    stream, before : str
        Names of this stream and of the newest one of its family before it, None where there is none.
    goes_on : bool
        Whether that one logs on: it was not replaced then.
    """
    if before is None or goes_on:
        return "first"
    return "restart" if before.split("|")[1:2] == stream.split("|")[1:2] else "boot"


__all__ = ["Labels", "Origin", "Origins", "begins_as", "concerns", "family_of", "file_of", "in_order", "stream_of", "unit_of"]
