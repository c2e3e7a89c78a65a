"""Journal entries, one after the other, become batches of lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ddtree_metrics.sources import AFTER_LEFT_OUT, BATCH_LINES, LINE_SCHEMA, SourceStats
from ddtree_metrics.sources import journal_fields as f
from ddtree_metrics.sources.clean import clean_messages
from ddtree_metrics.times import Window

if TYPE_CHECKING:
    from ddtree_metrics.sources.select import Wanted

Item = tuple["int | None", "int | None", str, int, bytes]
"""Time, monotonic time, place, number of the writer, message."""

Block = tuple[pa.Array, pa.Array, pa.Array, NDArray[np.int64], pa.Array]
"""The same of many lines, as columns."""

PIECES_MAX = 16 << 20
"""A joined line is cut here, so that a stream without newlines cannot fill the memory."""


class EntryRows:
    """Collect entries until they make a batch.

    Parameters
    ----------
    stats : SourceStats
        Where counts go.
    window : Window
        Entries outside of it are left out; entries without a time are kept.
    """

    def __init__(self, stats: SourceStats, window: Window) -> None:
        self.stats = stats
        self.wanted: Wanted | None = None
        """Whose notices of suppressed lines are taken, where the entries come with those of all units."""
        self.window = window
        self.contexts: list[f.Context] = []
        self._known: dict[f.Context, int] = {}
        self.pending: dict[Any, list[Any]] = {}
        self.items: list[Item] = []
        self.left_out = False
        self.spoiled: set[tuple[int, int]] = set()
        """Clocks of entries that are not as they were written, and must not be taken."""
        self.met = 0
        """Entries that came, whether taken or not."""
        self.unread = 0
        """Entries that could not be read."""
        self._made = False
        self._marks: list[int] = []
        self._blocks: list[Block] = []
        self._held = 0

    def writer(self, context: f.Context) -> int:
        """Return the number of a context."""
        code = self._known.get(context)
        if code is None:
            code = self._known[context] = len(self.contexts)
            self.contexts.append(context)
        return code

    @property
    def full(self) -> bool:
        """Whether there is enough for a batch."""
        return self._held + len(self.items) >= BATCH_LINES

    def within(self, time: int | None) -> bool:
        """Say whether a time lies in the window."""
        return time is None or bool(self.window.contains(time))

    def add(self, time: int | None, mono: int | None, place: str, writer: int, message: bytes) -> None:
        """Take a whole line."""
        if self.left_out:
            self.resume()
        self.items.append((time, mono, place, writer, message))

    def resume(self) -> None:
        """Remember that entries were left out before the next line, among those that are in the window."""
        self._mark(self._held + len(self.items))
        self.left_out = False

    def _mark(self, row: int) -> None:
        if row or self._made:
            self._marks.append(row)

    def add_block(
        self,
        time: NDArray[np.int64],
        mono: NDArray[np.int64],
        place: pa.Array,
        writers: NDArray[np.int64],
        message: pa.Array,
        left_out: list[int],
    ) -> None:
        """Take whole lines; ``left_out`` says how many of them stood before each stretch of entries that were left out."""
        self._settle()
        rows = len(time)
        if rows and self.left_out:
            self.resume()
        for at in left_out:
            if at < rows:
                self._mark(self._held + at)
            else:
                self.left_out = True
        if rows:
            self._blocks.append((pa.array(time), pa.array(mono), place, writers, message))
            self._held += rows

    def _settle(self) -> None:
        """Make columns of the lines that came one by one."""
        if self.items:
            times, monos, where, who, messages = zip(*self.items, strict=True)
            self._held += len(self.items)
            self.items.clear()
            columns = (pa.array(times, pa.int64()), pa.array(monos, pa.int64()), pa.array(where, pa.string()))
            self._blocks.append((*columns, np.array(who, np.int64), pa.array(messages, pa.binary())))

    def take(self, entry: f.Entry, time: int | None, mono: int | None, place: str, boot: str | None = None) -> None:
        """Take an entry: its line, a piece of one, or the fact that it has none."""
        if self.wanted is not None and "MESSAGE_ID" in entry and f.is_suppressed(entry) and not self.wanted.entry(entry):
            return
        if not self.within(time):
            self.left_out = True
            return
        message = f.message(entry)
        if message is None:
            self.stats.message_missing += 1
            return
        context = f.context(entry, boot)
        writer = self._known.get(context)
        if writer is None:
            writer = self.writer(context)
        more = ("_LINE_BREAK" in entry or "CONTAINER_PARTIAL_MESSAGE" in entry) and f.goes_on(entry)
        if more or self.pending:
            self.piece(f.piece_key(entry), more, time, mono, place, writer, message)
        else:
            self.add(time, mono, place, writer, message)

    def piece(self, key: Any, more: bool, time: int | None, mono: int | None, place: str, writer: int, message: bytes) -> None:
        """Take what may be a piece: keep it while its line goes on, else put the line together."""
        begun = self.pending.get(key)
        if begun is not None and f.begins_anew(begun[4][0], message):
            del self.pending[key]
            self.stats.pieces_joined += len(begun[4]) > 1
            self.add(begun[0], begun[1], begun[2], begun[3], b"".join(begun[4]))
            begun = None
        if begun is None:
            if more:
                self.pending[key] = [time, mono, place, writer, [message], len(message)]
            else:
                self.add(time, mono, place, writer, message)
            return
        if begun[5] < PIECES_MAX:
            begun[4].append(message)
            begun[5] += len(message)
        self.stats.pieces_joined += 1
        if not more:
            del self.pending[key]
            self.stats.pieces_joined += 1
            time, mono, place, writer, texts, _ = begun
            self.add(time, mono, place, writer, b"".join(texts))

    def finish(self) -> None:
        """Give up on lines whose end never came."""
        self.stats.pieces_unfinished += sum(len(begun[4]) for begun in self.pending.values())
        self.pending.clear()

    def batch(self) -> pa.RecordBatch | None:
        """Make a batch of what is there; ``None`` if nothing is."""
        self._settle()
        if not self._blocks:
            return None
        self._made = True
        times, monos, where, who, messages = zip(*self._blocks, strict=True)
        self._blocks, self._held = [], 0
        lines, parents, bad = clean_messages(pa.concat_arrays(messages))
        writers = np.concatenate(who)
        time, mono, places = pa.concat_arrays(times), pa.concat_arrays(monos), pa.concat_arrays(where)
        if parents is not None:
            taken = pa.array(parents)
            time, mono, places, writers = time.take(taken), mono.take(taken), places.take(taken), writers[parents]
        rows = len(lines)
        codes = pa.array(writers)
        unit, host, stream, pid, boot = (
            pa.array(column, kind).take(codes)
            for column, kind in zip(zip(*self.contexts, strict=True), (pa.string(),) * 3 + (pa.int32(), pa.string()), strict=True)
        )
        stats = self.stats
        stats.lines += rows
        stats.bad_bytes += bad
        counts = np.bincount(writers, minlength=len(self.contexts))
        for context, count in zip(self.contexts, counts.tolist(), strict=True):
            if count and context.unit is not None:
                stats.units[context.unit] = stats.units.get(context.unit, 0) + count
        flags = pa.nulls(rows, pa.string())
        if self._marks:
            marked = np.zeros(rows, bool)
            marked[np.searchsorted(parents, self._marks) if parents is not None else self._marks] = True
            flags = pc.if_else(pa.array(marked), AFTER_LEFT_OUT, pa.scalar(None, pa.string()))
            self._marks.clear()
        known = time.is_valid()
        columns = [
            time.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC")),
            pc.if_else(known, "journal", pa.scalar(None, pa.string())),
            pc.if_else(known, pa.scalar(1, pa.int32()), pa.scalar(None, pa.int32())),
            flags,
            mono,
            boot,
            host,
            unit,
            pid,
            stream,
            places,
            lines,
        ]
        if len(self.contexts) > 4096:
            self._forget()
        return pa.RecordBatch.from_arrays(columns, schema=LINE_SCHEMA)

    def _forget(self) -> None:
        """Drop contexts that no kept piece needs: a journal of a whole machine has very many short-lived processes."""
        kept = {begun[3]: self.contexts[begun[3]] for begun in self.pending.values()}
        self.contexts, self._known = [], {}
        renamed = {old: self.writer(context) for old, context in kept.items()}
        for begun in self.pending.values():
            begun[3] = renamed[begun[3]]
        self.generation += 1

    generation = 0
    """Goes up when numbers of contexts become invalid."""
