"""The lines of one block of text, as columns that framing fills in; and the batches they become."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ddtree_metrics.sources import AFTER_LEFT_OUT, BATCH_LINES, LINE_SCHEMA

# What the time of a row rests on.
NO_TIME, JOURNAL, FRAME, LOCAL, NO_YEAR = range(5)
TIME_FROM = [None, "journal", "frame", "frame-local", None]
# What is doubtful about it.
FLAGS = [None, "ambiguous", "nonexistent", "year_guessed", AFTER_LEFT_OUT]
YEAR_GUESSED, LEFT_OUT = 3, 4

_LABELS = ("unit", "host", "stream", "boot", "ident")


class Names:
    """Words that come again and again, as numbers; shared by all blocks of a source."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, word: str | None) -> int:
        """Return the number of a word; -1 for ``None`` and for the empty one."""
        if not word:
            return -1
        code = self._codes.get(word)
        if code is None:
            code = self._codes[word] = len(self.words)
            self.words.append(word)
        return code

    def codes(self, values: pa.Array) -> NDArray[np.int32]:
        """Return the numbers of a string array's values."""
        encoded = values.dictionary_encode()
        table = np.array([self.code(w) for w in encoded.dictionary.to_pylist()] + [-1], np.int32)
        return table[np.asarray(encoded.indices.fill_null(len(table) - 1))]

    def column(self, codes: NDArray[np.int32]) -> pa.Array:
        """Return the words of some numbers."""
        if not len(codes) or codes.max() < 0:
            return pa.nulls(len(codes), pa.string())
        used, inverse = np.unique(codes, return_inverse=True)
        words = [self.words[c] if c >= 0 else None for c in used.tolist()]
        return pa.array(words, pa.string()).take(pa.array(inverse.reshape(-1)))


class LineBlock:
    """One block of lines: arrays beside each other, one element a line.

    Attributes
    ----------
    message : pyarrow.StringArray
        What is left of the line when its frames are off.
    line : ndarray of int64
        Line numbers in the file, from 1.
    time, kind, resolution, flag : ndarray
        Microseconds since 1970; what they rest on (``NO_TIME`` ...); their smallest step; what is doubtful.
    monotonic, pid : ndarray
        -1 where unknown.
    unit, host, stream, boot, ident : ndarray of int32
        Numbers of :class:`Names`, -1 where unknown.
    more : ndarray of int8
        What a frame says of pieces: 0 no word of them, 1 the end of a line (or all of it), 2 the line goes on.
    wanted : ndarray of int8
        Whether an entry's own fields say that it is selected: 1 yes, 0 no, -1 they do not say.
    keep : ndarray of bool
        False for rows that hold no line of their own.
    prefix : ndarray of int32
        Bytes of the journalctl prefix of a line, 0 without one: what the next lines of the same message are indented by.
    """

    def __init__(self, message: pa.StringArray, first_line: int) -> None:
        n = len(message)
        self.message = message
        self.line = np.arange(first_line, first_line + n, dtype=np.int64)
        self.time = np.zeros(n, np.int64)
        self.kind = np.zeros(n, np.int8)
        self.resolution = np.zeros(n, np.int32)
        self.flag = np.zeros(n, np.int8)
        self.monotonic = np.full(n, -1, np.int64)
        self.pid = np.full(n, -1, np.int32)
        self.unit, self.host, self.stream, self.boot, self.ident = (np.full(n, -1, np.int32) for _ in _LABELS)
        self.more = np.zeros(n, np.int8)
        self.wanted = np.full(n, -1, np.int8)
        self.keep = np.ones(n, bool)
        self.prefix = np.zeros(n, np.int32)

    def __len__(self) -> int:
        return len(self.message)

    def set_time(self, at: NDArray[np.int64], time: NDArray[np.int64], kind: int, resolution: NDArray[np.int32] | int) -> None:
        """Give rows the time of a frame, unless they have a better one.

        A frame further inside is nearer to the writer, so it wins, unless it knows less: its zone, or its fraction of a second.
        """
        finer = np.broadcast_to(np.asarray(resolution, np.int32), (len(at),))
        old = self.kind[at]
        zoned = (old == JOURNAL) | (old == FRAME)
        if kind in (JOURNAL, FRAME):
            takes = ~zoned | ((old != JOURNAL) & (finer <= self.resolution[at]))
        else:
            takes = (old == NO_TIME) | (~zoned & (finer <= self.resolution[at]))
        at = at[takes]
        self.time[at], self.kind[at], self.resolution[at] = time[takes], kind, finer[takes]

    def select(self, keep: NDArray[np.bool_] | NDArray[np.int64]) -> None:
        """Keep some rows only, or take them by number."""
        taken = np.flatnonzero(keep) if keep.dtype == bool else keep
        self.message = self.message.take(pa.array(taken))
        for name in ("line", "time", "kind", "resolution", "flag", "monotonic", "pid", *_LABELS, "more", "wanted", "keep", "prefix"):
            setattr(self, name, getattr(self, name)[taken])


def places(name: str, line: NDArray[np.int64]) -> pa.Array:
    """Say where lines stand: ``run.log:118``."""
    return pc.binary_join_element_wise(pa.scalar(name), pa.array(line).cast(pa.string()), ":")


def plain_batches(message: pa.StringArray, line: NDArray[np.int64], name: str) -> Iterator[pa.RecordBatch]:
    """Make batches of lines that nobody framed."""
    n = len(message)
    nulls = {kind: pa.nulls(n, kind) for kind in {field.type for field in LINE_SCHEMA}}
    columns = [nulls[field.type] for field in LINE_SCHEMA]
    columns[-2:] = [places(name, line), message]
    yield from in_batches(columns)


def framed_batches(rows: LineBlock, name: str, names: Names) -> Iterator[pa.RecordBatch]:
    """Make batches of lines with what their frames say."""
    unknown = rows.kind == NO_TIME
    time = pa.array(rows.time, mask=unknown).cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))
    columns = [
        time,
        pa.array(TIME_FROM, pa.string()).take(pa.array(rows.kind)),
        pa.array(rows.resolution, mask=unknown),
        pa.array(FLAGS, pa.string()).take(pa.array(rows.flag)),
        pa.array(rows.monotonic, mask=rows.monotonic < 0),
        names.column(rows.boot),
        names.column(rows.host),
        names.column(rows.unit),
        pa.array(rows.pid, mask=rows.pid < 0),
        names.column(rows.stream),
        places(name, rows.line),
        rows.message,
    ]
    yield from in_batches(columns)


def in_batches(columns: list[pa.Array]) -> Iterator[pa.RecordBatch]:
    """Slice columns into batches of about ``BATCH_LINES`` rows."""
    whole = pa.RecordBatch.from_arrays(columns, schema=LINE_SCHEMA)
    n = whole.num_rows
    parts = max(1, -(-n // BATCH_LINES))
    step = -(-n // parts)
    for at in range(0, n, step or 1):
        yield whole.slice(at, step)
