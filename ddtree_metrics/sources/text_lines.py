"""Text: lines of a log file, of a journal that was saved as text, of standard input."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from datetime import tzinfo
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.errors import SourceDamaged, SourceError, SourceNotFound, SourceUnsupported
from ddtree_metrics.sources import JournalPlace, Selection, SourceStats, documents
from ddtree_metrics.sources import journal_fields as f
from ddtree_metrics.sources import patterns as p
from ddtree_metrics.sources.byte_streams import CHUNK, Bytes, Decoded, Unpacked, compression, encoding
from ddtree_metrics.sources.clean import ANSI, ESC, split_lines, to_text
from ddtree_metrics.sources.entries import EntryRows
from ddtree_metrics.sources.export_format import ExportParser
from ddtree_metrics.sources.framing import Framer
from ddtree_metrics.sources.jsonlines import Torn
from ddtree_metrics.sources.select import Roll, Wanted, options
from ddtree_metrics.sources.text_block import LineBlock, framed_batches, plain_batches
from ddtree_metrics.times import Window

LINE_MAX = CHUNK
"""Longer lines are cut here (the rest is left out and counted), so that a file without newlines cannot fill the memory."""

JOURNAL_MAGIC = b"LPKSHHRH"
HEAD = 4096
"""Bytes that are looked at to know a journal saved as text."""
_EXPORT = re.compile(rb"\n*(?:__CURSOR|__REALTIME_TIMESTAMP|__MONOTONIC_TIMESTAMP)=")
_NULS = re.compile(rb"\x00+")
_ENDS = re.compile(rb"\r+\n")
_EMPTY_HEADS = re.compile(rb"(^|\n)\r+")
SAVE_AGAIN = "copy or save it again for the rest"
Stream = Bytes | Unpacked | Decoded
_FOREIGN = ((b"PAR1", "a Parquet file: read it as a table (read_parquet)"), (b"PK\x03\x04", "a ZIP archive: unpack it first"))

_TABLES = (".parquet", ".pq", ".arrow", ".feather")


class TextSource:
    """One file or stream of text, plain or compressed; see :func:`ddtree_metrics.sources.open_source`.

    With a ``roll`` the source is one of several, which are asked together at the end whether anything of the selection was met.
    """

    def __init__(
        self,
        file: BinaryIO,
        name: str,
        *,
        selection: Selection,
        window: Window,
        tz: tzinfo | None,
        stats: SourceStats | None = None,
        written_us: int | None = None,
        close: bool = False,
        roll: Roll | None = None,
    ) -> None:
        self.name = name
        self.stats = SourceStats() if stats is None else stats
        self._file = file
        self._selection, self._window, self._tz = selection, window, tz
        self._written_us = written_us
        self._close = close
        self._roll = Roll(selection) if roll is None else roll
        self._alone = roll is None
        self._line = 1
        self._met = 0
        self.has_boot_clock = False
        """Whether it is known to be a journal; of a stream it is not known before it is read."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the lines in order; once only, as a stream cannot be read twice.

        Raises
        ------
        SourceDamaged
            If it is damaged, and nothing of it could be read.
        """
        before = len(self.stats.damaged)
        try:
            yield from self._batches()
        finally:
            if self._close:
                self._file.close()
        damage = self.stats.damaged[before:]
        if damage and not self._met:
            del self.stats.damaged[before:]
            why = "; ".join(text.removesuffix(f": {SAVE_AGAIN}").removesuffix("; what came before was read") for text in damage)
            raise SourceDamaged(f"{why}: nothing of it can be read; copy it again, or leave it out")
        if self._alone:
            self._roll.check(self.name, self.stats)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        packed: Bytes | Unpacked = Bytes(self._file, self.name, self.stats)
        head = packed.peek(64)
        for _ in range(3):  # a compressed file inside a compressed file is seldom, but cheap
            kind = compression(head)
            if kind is None:
                break
            packed = Unpacked(packed, kind, self.stats)
            head = packed.peek(64)
        source: Stream = packed
        code = encoding(head)
        if code is not None:
            source = Decoded(packed, code, self.stats)
            head = source.peek(64)
        for magic, what in _FOREIGN:
            if head.startswith(magic):
                raise SourceUnsupported(f"{self.name} is {what}")
        if self.name.lower().endswith(_TABLES):
            raise SourceDamaged(f"{self.name} has the name of a table, and does not begin like one; it cannot be read")
        if head.startswith(JOURNAL_MAGIC):
            yield from self._journal(source)
        elif _EXPORT.match(head):
            yield from self._export(source, ExportParser())
        elif documents.is_verbose(source.peek(160)):
            yield from self._export(source, documents.VerboseParser())
        elif documents.is_laid_out(head):
            yield from self._text(documents.OneLineEach(source))
        else:
            yield from self._text(source)

    def _journal(self, source: Stream) -> Iterator[pa.RecordBatch]:
        """Put a journal file that came through a pipe or a compressor where libsystemd can map it."""
        from ddtree_metrics.sources.journal import JournalSource

        with tempfile.TemporaryDirectory(prefix="ddtree-") as folder:
            path = Path(folder) / (re.sub(r"[^A-Za-z0-9@._-]", "_", Path(self.name).name.split(".journal")[0]) + ".journal")
            with path.open("wb") as out:
                while data := source.read():
                    out.write(data)
            place = JournalPlace(files=(str(path),))
            try:
                inner = JournalSource(place, self._selection, self._window, stats=self.stats, names={str(path): self.name})
            except SourceNotFound as error:
                if self._alone:
                    raise
                self._roll.absent.append(f"{self.name}: {error}")
                return
            self._roll.found = True
            self._met += 1
            yield from inner.batches()

    def _export(self, source: Stream, parser: ExportParser | documents.VerboseParser) -> Iterator[pa.RecordBatch]:
        """Read journal export text, or what is like it."""
        rows, wanted = EntryRows(self.stats, self._window), Wanted(self._selection, self._roll)
        untold = 0
        while data := source.read():
            entries = parser.feed(data)
            self._met += len(entries)
            for entry in entries:
                untold += _take(rows, wanted, entry, self.name)
                if rows.full and (batch := rows.batch()) is not None:
                    yield batch
            if source.live and (batch := rows.batch()) is not None:
                yield batch
        last, cut = parser.close()
        if last is not None and "__REALTIME_TIMESTAMP" in last:
            self._met += 1
            untold += _take(rows, wanted, last, self.name)
        if cut:
            self.stats.damaged.append(f"{self.name}: the export text ends inside an entry; what came before was read: {SAVE_AGAIN}")
        if parser.broken:
            self.stats.damaged.append(
                f"{self.name}: {parser.broken} places are not of the journal export format; they were skipped: {SAVE_AGAIN}"
            )
        self._note_untold(untold, self._met, set())
        rows.finish()
        if (batch := rows.batch()) is not None:
            yield batch

    def _text(self, source: Stream | documents.OneLineEach) -> Iterator[pa.RecordBatch]:
        """Read lines."""
        framer = Framer(self.stats, self._selection, self._window, self._tz, self._written_us, self._roll)
        blocks = Blocks(source)
        for block in blocks:
            yield from self._lines(block, framer)
        framer.finish()
        if framer.backwards:
            self.stats.notes.append(
                f"{self.name}: its lines come newest first, so no step time can be told; save it again in order of time (logcli --forward)"
            )
        self._met += self._line - 1 - framer.torn.count
        self._tell_torn(framer.torn, blocks.open_end)
        notes = self.stats.notes
        if blocks.cut:
            notes.append(f"{self.name}: {blocks.cut} lines are longer than {LINE_MAX >> 20} MiB; what is beyond was left out")
        self._note_untold(framer.untold, framer.asked, self._roll.idents)
        if framer.clocks.guessed:
            notes.append(
                f"{self.name}: the year of {framer.clocks.guessed} stamps is not in the file; the latest was taken that does not put them "
                "after the file was written"
            )

    def _tell_torn(self, torn: Torn, open_end: bool) -> None:
        """Name the lines of a JSON file that are no whole JSON."""
        if not torn.count:
            return
        cut = open_end and torn.last == self._line - 1
        others = torn.count - cut
        if others:
            self.stats.damaged.append(
                f"{self.name}: {others} {'line is' if others == 1 else 'lines are'} broken JSON, the first at {self.name}:{torn.first}; "
                f"what could be read was read: {SAVE_AGAIN}"
            )
        if cut:
            self.stats.damaged.append(
                f"{self.name}: the JSON ends inside an entry (line {torn.last}); what came before was read: {SAVE_AGAIN}"
            )

    def _note_untold(self, untold: int, asked: int, idents: set[str]) -> None:
        """Say that a selection could not be applied to some lines, or to all."""
        if not untold:
            return
        self._roll.untold += untold
        s, said = self._selection, options(self._selection)
        kinds = ((s.units or s.user_units, "units"), (s.identifiers, "identifiers"), (s.containers, "containers"))
        of = " or ".join(word for some, word in kinds if some)
        if untold < asked:
            text = f"{untold} lines do not say whose they are, so {said} could not be applied to them; they were taken"
        else:
            text = f"the lines say nothing of {of}, so {said} could not be applied; all {untold} were taken"
        names = sorted(name for name in idents if not f.is_journald(name))
        if names and not s.identifiers:
            text += f" (--identifier can be: {', '.join(names[:4])})"
        self.stats.notes.append(f"{self.name}: {text}")

    def _lines(self, block: bytes, framer: Framer) -> Iterator[pa.RecordBatch]:
        """Turn one block of whole lines into batches."""
        if ESC in block:
            block = ANSI.sub(b"", block)
        returns = b"\r" in block
        if returns:
            block = _EMPTY_HEADS.sub(rb"\1", _ENDS.sub(b"\n", block))
        lines, bad = to_text(_split(block))
        self.stats.bad_bytes += bad
        first_line, self._line = self._line, self._line + len(lines)
        selective = not framer.wanted.any
        if not framer.busy and not pc.any(pc.match_substring_regex(lines, p.ANY)).as_py():
            n = len(lines)
            number = np.arange(first_line, first_line + n, dtype=np.int64)
            if returns:
                lines, parents = split_lines(lines)
                number = number if parents is None else number[parents]
            framer.untold += len(lines) if selective else 0
            framer.asked += len(lines)
            self.stats.lines += len(lines)
            yield from plain_batches(lines, number, self.name)
            return
        rows = LineBlock(lines, first_line)
        framer.unframe(rows)
        texts, parents = split_lines(rows.message)
        if parents is not None:
            self.stats.lines += len(texts) - len(rows)
            rows.select(parents)
            rows.message = texts
        framer.count_units(rows)
        if len(rows):
            yield from framed_batches(rows, self.name, framer.names)


def has_boot_clock(file: BinaryIO) -> bool:
    """Say by its first bytes whether an open file is a journal, as a file or as export or JSON text; the file is closed."""
    source = Bytes(file, "", SourceStats())
    with file, contextlib.suppress(OSError, EOFError, SourceError):
        head = source.peek(HEAD)
        if (kind := compression(head)) is not None:
            head = Unpacked(source, kind, SourceStats()).peek(HEAD)
        return head.startswith(JOURNAL_MAGIC) or bool(_EXPORT.match(head)) or b'"__MONOTONIC_TIMESTAMP"' in head
    return False


def _take(rows: EntryRows, wanted: Wanted, entry: dict[str, f.Value], name: str) -> bool:
    """Take an entry of export text; say whether it was taken only because it does not say whose it is."""
    answer = wanted.entry(entry)
    if answer is False:
        return False
    cursor = f.text(entry, "__CURSOR")
    time = f.number(f.first(entry, "__REALTIME_TIMESTAMP"), f.TIME_MAX)
    mono = f.number(f.first(entry, "__MONOTONIC_TIMESTAMP"), f.BOOT_CLOCK_MAX)
    rows.take(entry, time, mono, f.place_of(cursor) if cursor else f"{name}:@{time}")
    return answer is None


def _split(block: bytes) -> pa.Array:
    """Make an array of the lines of a block that ends with a newline."""
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == 10)
    offsets = np.empty(len(ends) + 1, np.int32)
    offsets[0] = 0
    offsets[1:] = ends + 1
    whole = pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(block)])
    return pc.binary_slice(whole, 0, -1)


class Blocks:
    """Cut a stream into blocks of whole lines.

    NUL bytes end a line as carriage returns do: what comes after them is read (a log that was emptied while its writer kept its place
    begins with very many).
    """

    def __init__(self, source: Stream | documents.OneLineEach) -> None:
        self.cut = 0
        self.open_end = False
        """Whether the text ends without a newline."""
        self._source = source

    def __iter__(self) -> Iterator[bytes]:
        """Yield blocks; each ends with a newline."""
        rest, skipping, first = b"", False, True
        while data := self._source.read():
            if first and data.startswith(b"\xef\xbb\xbf"):
                data = data[3:]
            first = False
            if b"\0" in data:
                data = _NULS.sub(b"\r", data)
                if not rest:
                    data = data.lstrip(b"\r")
            if skipping:  # the rest of a line that is too long
                end = data.find(b"\n")
                if end < 0:
                    continue
                data, skipping = data[end + 1 :], False
            end = data.rfind(b"\n") + 1
            if end:
                yield b"".join((rest, memoryview(data)[:end]))
                rest = data[end:]
            else:
                rest = rest + data if rest else data
            if len(rest) > LINE_MAX:
                self.cut += 1
                yield rest[:LINE_MAX] + b"\n"
                rest, skipping = b"", True
        if rest and not getattr(self._source, "torn", False):
            self.open_end = True
            yield rest + b"\n"


def written_us(file: BinaryIO) -> int | None:
    """Return when a file was last written, in microseconds since 1970."""
    try:
        return os.fstat(file.fileno()).st_mtime_ns // 1000
    except (OSError, ValueError, AttributeError):
        return None
