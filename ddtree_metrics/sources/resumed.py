"""Sources that are read on from where another run ended, in chunks of one size whatever the runs were.

A position says how far a source was read: of a journal the sequence number of the newest entry, for each sequence that its files hold; of
text how many lines of each file, which is told by its first bytes, so that a file may be renamed, packed or copied.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.counting import add_counters, copy_counters
from ddtree_metrics.errors import SourceError, SourceNotFound
from ddtree_metrics.sources import BATCH_LINES, LINE_SCHEMA, Selection, Source, SourceStats, open_source
from ddtree_metrics.sources.journal import JournalSource
from ddtree_metrics.sources.journal_files import Header
from ddtree_metrics.sources.open_files import head_of
from ddtree_metrics.times import ALWAYS

Position = dict[str, int]

HEAD = 4_096
"""Bytes at its beginning that tell a text file from others."""
LEAST_HEAD = 64
"""A file with fewer bytes is told by its path too."""

_CURSOR = r"^journal:s=(?P<sequence>[0-9a-f]+);i=(?P<number>[0-9a-f]+)"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines that are read together.

    Attributes
    ----------
    lines : RecordBatch
    last : bool
        Whether it is what is left at the end, which will be read once more, with what comes behind it.
    position : dict of str to int
        Of the last chunk: how far the source is read.
    again : dict of str to int
        Of the last chunk: where to begin so that its lines are read once more.
    """

    lines: pa.RecordBatch
    last: bool
    position: Position
    again: Position = field(default_factory=dict)


class Resumed:
    """A source that goes on where it was left."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stats = SourceStats()

    def chunks(self) -> Iterator[Chunk]:
        """Yield the lines behind the position; the last chunk may be empty."""
        raise NotImplementedError

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the same lines, without saying which are the last."""
        for chunk in self.chunks():
            yield chunk.lines


@dataclass(slots=True)
class _Cutter:
    """Makes chunks of `BATCH_LINES` lines out of batches; each piece of a batch goes with what it was counted by."""

    position: Position
    _waiting: deque[tuple[pa.RecordBatch, Any]] = field(default_factory=deque)
    _rows: int = 0

    def add(self, batch: pa.RecordBatch, key: Any) -> None:
        self._waiting.append((batch, key))
        self._rows += batch.num_rows

    def full(self) -> Iterator[pa.RecordBatch]:
        """Yield what is full. A line at least stays behind: the newest one of a file may not be written to its end."""
        while self._rows > BATCH_LINES:
            whole = pa.concat_batches([batch for batch, _ in self._waiting])
            where = whole.column("where")
            cut = BATCH_LINES
            while cut > 1 and where[cut - 1].as_py() == where[cut].as_py():  # lines of one entry stay together
                cut -= 1
            yield self._cut(whole, cut)

    def rest(self) -> pa.RecordBatch | None:
        """Return what is left."""
        return self._cut(pa.concat_batches([batch for batch, _ in self._waiting]), self._rows) if self._rows else None

    def _cut(self, whole: pa.RecordBatch, cut: int) -> pa.RecordBatch:
        left = cut
        while left:
            batch, key = self._waiting.popleft()
            taken = batch.slice(0, left)
            if batch.num_rows > left:
                self._waiting.appendleft((batch.slice(left), key))
            left -= taken.num_rows
            if key is not None:
                self.position[key] = self.position.get(key, 0) + taken.num_rows
        self._rows -= cut
        return whole.slice(0, cut)


def _cursors(lines: pa.RecordBatch) -> tuple[pa.Array, np.ndarray[Any, Any]]:
    """Return the sequence and the number of each line's entry."""
    parts = pc.extract_regex(lines.column("where"), _CURSOR)
    coded = parts.field("number").to_pylist()
    return parts.field("sequence"), np.fromiter((int(text or "0", 16) for text in coded), np.int64, len(coded))


def oldest(lines: pa.RecordBatch) -> Position:
    """Return the number of the oldest entry of each sequence among some lines of journals."""
    sequences, numbers = _cursors(lines)
    coded = sequences.dictionary_encode()
    codes = np.asarray(coded.indices)
    return {text: int(numbers[codes == code].min()) for code, text in enumerate(coded.dictionary.to_pylist())}


class ResumedJournal(Resumed):
    """A journal from a position on; files without anything new are not opened.

    Parameters
    ----------
    source : JournalSource
        All of its files.
    done : mapping of str to int
        Up to which entry each sequence was read.
    until : mapping of str to int, optional
        Up to which entry it is to be read; without it, what the files held when they were looked at: an entry that is written
        while others are read may be met or not, and is left to the next run.
    files : collection of str, optional
        Only these.
    """

    def __init__(
        self, source: JournalSource, done: Mapping[str, int], *, until: Mapping[str, int] | None = None, files: Sequence[str] | None = None
    ) -> None:
        super().__init__(source.name)
        self._source = source
        self._done = done
        self._until: dict[str, int] = dict(until) if until is not None else {}
        if until is None:
            for header in source.headers:
                key = header.sequence.hex()
                self._until[key] = max(header.last, self._until.get(key, 0))
        new = [h.path for h in source.headers if h.entries and h.last > done.get(h.sequence.hex(), -1)]
        source.narrow(new if files is None else files)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the lines behind the position; the last chunk may be empty."""
        cutter = _Cutter({})
        none = None
        fed = _Fed(self.stats)
        for batch in self._source.batches():
            new = self._new(batch)
            none = new.slice(0, 0)
            cutter.add(new, None)
            for lines in cutter.full():
                fed.take(lines, self._source.stats)
                yield Chunk(lines, False, {})
        rest = cutter.rest()
        lines = rest if rest is not None else none if none is not None else _nothing()
        fed.take(lines, self._source.stats)
        # all entries up to there were looked at, also those of others
        position = {**self._done, **self._until}
        yield Chunk(lines, True, position, {**position, **{sequence: number - 1 for sequence, number in oldest(lines).items()}})

    def _new(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        sequences, numbers = _cursors(batch)
        coded = sequences.dictionary_encode()
        texts = coded.dictionary.to_pylist()
        codes = np.asarray(coded.indices)
        low = np.array([self._done.get(text, -1) for text in texts], dtype=np.int64)[codes]
        high = np.array([self._until.get(text, np.iinfo(np.int64).max) for text in texts], dtype=np.int64)[codes]
        keep = (numbers > low) & (numbers <= high)
        return batch if keep.all() else batch.filter(pa.array(keep))


class _Fed:
    """Keeps the account of the lines that are handed on; what a source met in lines that are read once more does not count again."""

    def __init__(self, stats: SourceStats) -> None:
        self._stats = stats
        self._lines = 0
        self._units: dict[str, int] = {}

    def take(self, lines: pa.RecordBatch, met: SourceStats) -> None:
        copy_counters(met, self._stats)
        self._stats.notes = list(met.notes)
        self._lines += lines.num_rows
        for one in lines.column("unit").drop_null().value_counts().to_pylist():
            self._units[one["values"]] = self._units.get(one["values"], 0) + one["counts"]
        self._stats.lines, self._stats.units = self._lines, dict(self._units)


def _nothing() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=LINE_SCHEMA)


@dataclass(slots=True)
class TextFile:
    """A text file, as it is known in a lake.

    Attributes
    ----------
    key : str
        What tells it from others: a hash of its first bytes, and how many they are.
    label : str
        What it is called in ``where``: the name under which it came first.
    path : str
    size, mtime_ns : int
        As they were when it was looked at.
    """

    key: str
    label: str
    path: str
    size: int
    mtime_ns: int

    @property
    def as_before(self) -> tuple[int, int]:
        """What tells whether it was written to."""
        return self.size, self.mtime_ns


def identify(path: str, known: Mapping[str, Mapping[str, Any]]) -> TextFile:
    """Tell which file of those that are known a path leads to, or that it is another.

    Parameters
    ----------
    path : str
    known : mapping of str to mapping
        What is remembered of files, by key: ``label``, ``path``, ``size``, ``mtime_ns``.
    """
    place = Path(path)
    status = place.stat()
    head = head_of(path, HEAD)
    found = None
    for key, entry in known.items():
        size = int(key.partition("-")[0])
        if size <= len(head) and _key(head[:size]) == key and (size >= LEAST_HEAD or entry["path"] == str(place.resolve())):
            found = key if found is None or size > int(found.partition("-")[0]) else found
    key = _key(head) if found is None else found
    label = known[found]["label"] if found is not None else place.name
    if found is None and label in {entry["label"] for entry in known.values()}:
        label = f"{label}@{key.partition('-')[2][:8]}"
    return TextFile(key, label, str(place.resolve()), status.st_size, status.st_mtime_ns)


def _key(head: bytes) -> str:
    return f"{len(head)}-{hashlib.sha256(head).hexdigest()[:32]}"


class ResumedText(Resumed):
    """Text files, one behind the other, from a position on.

    They are read from their beginnings, for what wraps the lines is known only then, but what is done is not taken apart again; a file
    that is as it was when it was read to its end is not opened.

    Parameters
    ----------
    files : sequence of TextFile
    done : mapping of str to int
        How many lines of each file were read.
    whole : collection of str
        Keys of files that were read to their ends and are as they were then.
    selection, tz
        As for ``open_source``. No window is taken: which line is the how-many-th must not depend on it.
    """

    def __init__(
        self, files: Sequence[TextFile], done: Mapping[str, int], whole: Sequence[str], *, selection: Selection, tz: tzinfo | None
    ) -> None:
        super().__init__(files[0].label if len(files) == 1 else f"{files[0].label} and {len(files) - 1} more")
        self._files, self._done, self._whole = files, done, set(whole)
        self._how: dict[str, Any] = {"selection": selection, "window": ALWAYS, "tz": tz}

    def chunks(self) -> Iterator[Chunk]:
        """Yield the lines behind the position; the last chunk may be empty."""
        cutter = _Cutter(dict(self._done))
        fed = _Fed(self.stats)
        met = SourceStats()
        absent: list[SourceNotFound] = []
        failed: list[SourceError] = []
        for file in self._files:
            if file.key in self._whole:
                continue
            source = open_source(file.path, name=file.label, **self._how)
            skip = self._done.get(file.key, 0)
            try:
                for lines in _behind(source, skip):
                    cutter.add(lines, file.key)
                    for full in cutter.full():
                        fed.take(full, _sum(met, source.stats))
                        yield Chunk(full, False, {})
            except SourceNotFound as error:
                absent.append(error)
            except SourceError as error:
                failed.append(error)
                met.damaged.append(str(error))
            met = _sum(met, source.stats)
        if len(absent) == len(self._files):
            raise absent[0]
        if len(failed) == len(self._files):
            raise failed[0]
        again = dict(cutter.position)
        rest = cutter.rest()
        lines = rest if rest is not None else _nothing()
        fed.take(lines, met)
        yield Chunk(lines, True, dict(cutter.position), again)


def _behind(source: Source, skip: int) -> Iterator[pa.RecordBatch]:
    for batch in source.batches():
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        yield batch.slice(skip)
        skip = 0


def _sum(one: SourceStats, other: SourceStats) -> SourceStats:
    made = SourceStats(notes=list(dict.fromkeys([*one.notes, *other.notes])))
    add_counters(one, made)
    add_counters(other, made)
    return made


class PlainStream(Resumed):
    """A stream that is read to its end; nothing of it can be read again.

    Parameters
    ----------
    source : Source
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source.name)
        self.stats, self._source = source.stats, source

    def chunks(self) -> Iterator[Chunk]:
        """Yield the lines."""
        for batch in self._source.batches():
            yield Chunk(batch, False, {})
        yield Chunk(_nothing(), True, {})


def gone(headers: Sequence[Header], done: Mapping[str, int], end: Mapping[str, int]) -> tuple[bool, int]:
    """Say whether what a journal still holds begins behind what was read of it.

    Parameters
    ----------
    headers : sequence of Header
        Its files.
    done, end : mapping of str to int
        Up to which entry each sequence is done, and up to which it was read.

    Returns
    -------
    gone : bool
        Whether entries behind ``done`` cannot be read once more.
    lost : int
        How many entries behind ``end`` are missing.
    """
    is_gone, lost = False, 0
    for sequence, number in end.items():
        mine = [h for h in headers if h.entries and h.sequence.hex() == sequence and h.last > done.get(sequence, -1)]
        first = min((h.first for h in mine), default=None)
        if first is None:
            is_gone |= number > done.get(sequence, -1)
        elif first > done.get(sequence, -1) + 1:
            is_gone = True
            lost += max(first - 1 - number, 0)
    return is_gone, lost


__all__ = ["Chunk", "PlainStream", "Resumed", "ResumedJournal", "ResumedText", "TextFile", "gone", "identify"]
