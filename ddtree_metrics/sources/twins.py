"""Entries that a rotation wrote into both files of a journal, the old one and the new: each is one entry.

``systemd-journal-remote`` does so: same boot, both clocks and fields, another sequence number, so that libsystemd gives both. Equal
entries of *one* file are real: journald stamps what it reads in one go with one time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.sources import SourceStats
from ddtree_metrics.sources.journal_files import Header

_CURSOR = re.compile(r"journal:s=(?P<sequence>[0-9a-f]{32});i=(?P<number>[0-9a-f]+)", re.A)
_SAME = ("monotonic_us", "time", "boot_id", "host", "unit", "pid", "message")


class Twins:
    """Leave out the second of two such entries.

    Parameters
    ----------
    headers : iterable of Header
        The files of the journal.
    stats : SourceStats
        Where they are counted.
    """

    def __init__(self, headers: Iterable[Header], stats: SourceStats) -> None:
        self._headers = [h for h in headers if h.entries]
        self._stats = stats
        self._last: pa.RecordBatch | None = None
        self.count = 0

    def feed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch without second twins."""
        if len(self._headers) < 2 or not batch.num_rows:
            return batch
        before = batch if self._last is None else pa.Table.from_batches([self._last, batch]).combine_chunks().to_batches()[0]
        self._last = batch.slice(batch.num_rows - 1)
        rows = before.num_rows
        if rows < 2:
            return batch
        mono = np.asarray(before.column("monotonic_us").fill_null(-1))
        maybe = np.flatnonzero((mono[1:] == mono[:-1]) & (mono[1:] >= 0)) + 1
        for name in _SAME[1:]:
            if not len(maybe):
                return batch
            column = before.column(name)
            one, other = column.take(pa.array(maybe)), column.take(pa.array(maybe - 1))
            same = np.asarray(pc.fill_null(pc.equal(one, other), False)) | (np.asarray(one.is_null()) & np.asarray(other.is_null()))
            maybe = maybe[same]
        where = before.column("where")
        second = [i for i in maybe.tolist() if self._are_apart(where[i - 1].as_py(), where[i].as_py())]
        if not second:
            return batch
        self.count += len(second)
        keep = np.ones(rows, dtype=bool)
        keep[second] = False
        left_out = before.filter(pa.array(~keep))
        self._stats.take_off(left_out)
        return batch.filter(pa.array(keep[rows - batch.num_rows :]))

    def _are_apart(self, one: str | None, other: str | None) -> bool:
        """Whether two entries stand in different files."""
        first, second = self._files(one), self._files(other)
        return bool(first) and bool(second) and not first & second

    def _files(self, where: str | None) -> set[str]:
        cursor = _CURSOR.match(where or "")
        if cursor is None:
            return set()
        sequence, number = bytes.fromhex(cursor["sequence"]), int(cursor["number"], 16)
        return {h.path for h in self._headers if h.sequence == sequence and h.first <= number and (number <= h.last or h.online)}

    def tell(self) -> None:
        """Say how many there were."""
        if self.count:
            entries = "entry stands" if self.count == 1 else "entries stand"
            self._stats.notes.append(f"{self.count} {entries} in two files of the journal, written twice by a rotation: each counts once")
