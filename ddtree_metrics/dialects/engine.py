"""The engine: declared lines become Arrow tables, a batch at a time; broken lines are counted with their reason.

Tiers, cheapest first:

0. the eight bytes behind the head of every line are looked up among the markers (``scan.py``, ``stamps.py``);
1. lines of pairs are read by the shapes that were learned so far (``shapes.py``), lines with a pattern by one RE2 pass;
2. lines that begin with no marker are searched once, all together, for any marker or key; most noise ends here;
3. what is left is read one line at a time (``pairs.py``, ``find.py``) and teaches tier 1 new shapes.

No tier reads what another would refuse: a test feeds the same lines to tier 3 alone and compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.dialects import assemble
from ddtree_metrics.dialects.base import MORE, Broken, Dialect, Line
from ddtree_metrics.dialects.bykey import read_by_key
from ddtree_metrics.dialects.find import Found, Locator, without_junk
from ddtree_metrics.dialects.pairs import kinds_of, read_pairs, read_whole
from ddtree_metrics.dialects.scan import Ints, Text, word_of
from ddtree_metrics.dialects.shapes import RowsRead, Shapes
from ddtree_metrics.dialects.stamps import NO_HEAD, STAMP, Head, Heads, read_head, read_heads
from ddtree_metrics.dialects.tallies import BrokenLines, QuotedLines, example_of
from ddtree_metrics.errors import BrokenLine
from ddtree_metrics.records import TABLES, RequestLine, table_of
from ddtree_metrics.times import StampBefore

FEW = 32
_HEAD_BYTES = 96
_OPEN, _CLOSE, _BLANK = 91, 93, 32


@dataclass(slots=True)
class Parsed:
    """What a batch of lines gave.

    Parameters
    ----------
    tables : dict of str to pyarrow.RecordBatch
        The tables with at least one row, each with the columns of its record class.
    line : dict of str to numpy.ndarray of int64
        The running number of the line of each row, from 0 at the first line that was ever fed.
    """

    tables: dict[str, pa.RecordBatch] = field(default_factory=dict)
    line: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)


@dataclass(slots=True)
class _LineKind:
    """A line kind of a dialect, made ready for use."""

    dialect: Dialect
    line: Line
    table: str
    shapes: Shapes
    pattern: re.Pattern[str] | None


class Parser:
    """Turns batches of lines into tables.

    Parameters
    ----------
    dialects : iterable of Dialect or str
        Which writers to understand; where two know a line, the first wins.
    tz : zoneinfo.ZoneInfo or None
        The zone of the servers' own stamps. Without it a stamp is stored as if it were UTC, and ``time_from`` says so.
    on_error : str
        ``"warn"`` and ``"skip"`` count broken lines (who reads warns, once, with the count); ``"raise"`` raises at the first.
    fast : bool
        Use the vectorised tiers; False reads line by line, to compare.

    Attributes
    ----------
    broken : BrokenLines
        What could not be read, with reasons and examples.
    quoted : QuotedLines
        Lines with a marker that gave nothing and are not broken: quotations, sentences, code.
    misses : dict of str to int
        Lines that left the fast tier, by dialect.
    lines : int
        How many lines were fed.
    """

    def __init__(self, dialects: Iterable[Dialect | str], *, tz: ZoneInfo | None = None, on_error: str = "warn", fast: bool = True) -> None:
        from ddtree_metrics.dialects import get

        self.dialects = tuple(get(d) for d in dialects)
        self.on_error = on_error
        self.broken = BrokenLines()
        self.quoted = QuotedLines()
        self.misses: dict[str, int] = {d.name: 0 for d in self.dialects}
        self.lines = 0
        self._clock = assemble.RowTimes(tz)
        self._fast = fast
        self._kinds = [
            _LineKind(d, line, table_of(line.record), Shapes(line), re.compile(line.whole_pattern, re.A | re.S) if line.pattern else None)
            for d in self.dialects
            for line in d.lines
        ]
        self._locator = Locator([k.line for k in self._kinds])
        words: dict[int, list[tuple[bytes, int]]] = {}
        for number, kind in enumerate(self._kinds):
            for marker in () if kind.line.anywhere else kind.line.markers:
                if len(marker.encode()) >= 8:
                    words.setdefault(word_of(marker.encode()), []).append((marker.encode(), number))
        self._words = words
        self._sort_words()

    @property
    def last_stamp(self) -> StampBefore | None:
        """The newest stamp whose zone had to be worked out: where clocks are set back, it decides on the next one."""
        return self._clock.localizer.last if self._clock.localizer is not None else None

    @last_stamp.setter
    def last_stamp(self, stamp: StampBefore | None) -> None:
        if stamp is not None:
            self._clock.begin().last = stamp

    def _sort_words(self) -> None:
        self._word_keys = np.array(sorted(self._words), dtype=np.uint64)

    def feed(self, batch: pa.RecordBatch) -> Parsed:
        """Read one batch of lines.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            Lines as ``sources.LINE_SCHEMA`` describes them.

        Returns
        -------
        Parsed

        Raises
        ------
        BrokenLine
            With ``on_error="raise"``, at the first broken line.
        """
        text = Text(without_junk(batch.column(batch.schema.get_field_index("message")), self._locator.speaks))
        job = _Batch(self, batch, text)
        if len(text):
            job.run()
        made = Parsed()
        self._clock.localize(batch, [p for parts in job.parts.values() for p in parts])
        for table, parts in job.parts.items():
            rows, made.tables[table] = assemble.table(TABLES[table], parts, batch, self._clock)
            made.line[table] = rows + self.lines
        self.lines += len(text)
        return made

    def _taught(self, number: int, opening: bytes) -> None:
        """Look up the opening of a new shape from now on; it may be no declared marker."""
        if len(opening) < 8:
            return
        known = self._words.setdefault(word_of(opening), [])
        if all(n != number or not opening.startswith(m) for m, n in known):
            known.append((opening, number))
            self._sort_words()


class _Batch:
    """The work on one batch."""

    def __init__(self, parser: Parser, batch: pa.RecordBatch, text: Text) -> None:
        self.parser = parser
        self.batch = batch
        self.text = text
        self.parts: dict[str, list[assemble.Piece]] = {}
        self._slow: dict[str, list[tuple[int, dict[str, Any], Head, str]]] = {}
        self._refused: list[Ints] = []

    def run(self) -> None:
        """Read all lines."""
        locator, text = self.parser._locator, self.text
        rest = self._by_marker() if self.parser._fast else np.arange(len(text))
        some = self._candidates(rest, locator.any_of)
        self._each(some)
        for row in self._candidates(np.setdiff1d(rest, some, assume_unique=True), locator.mentions):
            message = text.text(int(row))
            mention = locator.mention(message)
            if mention is not None and locator.is_quotation(message, *mention):
                self._quoted(int(row), mention[0])
            else:
                self._one(int(row))
        for refused in self._refused:
            for row in self._candidates(refused, locator.mentions):
                self._one(int(row))
        for table, found in self._slow.items():
            self.parts.setdefault(table, []).append(assemble.from_rows(TABLES[table], found))

    def _each(self, rows: Ints) -> None:
        """Find out where the message begins in each line; those of pairs are then read together."""
        together: dict[int, list[tuple[int, int, Head]]] = {}
        for row in rows.tolist():
            message = self.text.text(row)
            found = self.parser._locator.find(message)
            first = found[0] if found and self.parser._fast else None
            # Positions in the text are positions in the buffer only as long as all is ASCII.
            if first and first.marked and self.parser._kinds[first.kind].line.is_pairs and message[: first.begin].isascii():
                together.setdefault(first.kind, []).append((row, first.begin, first.head))
            else:
                self._one(row, found)
        for number, places in together.items():
            those = np.array([p[0] for p in places], dtype=np.int64)
            begin = self.text.start[those] + np.array([p[1] for p in places], dtype=np.int64)
            self._together(number, those, begin, Heads.of([p[2] for p in places]))

    def _by_marker(self) -> Ints:
        """Tier 0 and 1; return the lines that begin with no marker."""
        text, parser = self.text, self.parser
        count = len(text)
        start, end = text.start, text.end
        closing = text.places(_CLOSE)
        begin = start.copy()
        inside = start.copy()
        opened = np.flatnonzero((text.data[start] == _OPEN) & (end > start))
        if len(opened) and len(closing):
            at = closing[np.minimum(np.searchsorted(closing, start[opened]), len(closing) - 1)]
            whole = (at > start[opened]) & (at < end[opened]) & (at - start[opened] < _HEAD_BYTES) & (text.data[at + 1] == _BLANK)
            opened, at = opened[whole], at[whole]
            begin[opened] = at + 2
            inside[opened] = at
        words = text.words(begin)
        keys = parser._word_keys
        place = np.minimum(np.searchsorted(keys, words), len(keys) - 1) if len(keys) else np.zeros(count, dtype=np.int64)
        hit = (keys[place] == words) & (end - begin >= 8) if len(keys) else np.zeros(count, dtype=np.bool_)
        taken = np.zeros(count, dtype=np.bool_)
        for code in np.flatnonzero(np.bincount(place[hit], minlength=1)):
            rows = np.flatnonzero(hit & (place == code))
            for marker, number in parser._words[int(keys[code])]:
                if not len(rows):
                    break
                same = text.equal(begin[rows], marker) & (end[rows] - begin[rows] >= len(marker))
                chosen = rows[same]
                rows = rows[~same]
                if len(chosen):
                    taken[chosen] = True
                    others = self._kind(number, chosen, begin[chosen], inside[chosen])
                    if others is not None:
                        rows = np.union1d(rows, others)
            self._refused.append(rows[taken[rows]])
        return np.flatnonzero(~taken & (end - start >= self.parser._locator.shortest))

    def _kind(self, number: int, rows: Ints, begin: Ints, inside: Ints) -> Ints | None:
        """Read lines that begin with a marker of a kind; return those that may be of the next kind with that marker."""
        text, kind = self.text, self.parser._kinds[number]
        bare = inside == text.start[rows]
        heads, usual = read_heads(text, np.where(bare, inside, text.start[rows] + 1), inside)
        # An empty bracket is no head.
        usual &= bare | (inside > text.start[rows] + 1)
        for row in rows[~usual]:
            self._one(int(row))
        if not usual.all():
            keep = np.flatnonzero(usual)
            rows, begin, heads = rows[keep], begin[keep], assemble.take_heads(heads, keep)
        if not len(rows):
            return None
        if kind.line.reader is not None:
            nothing = []
            for i, row in enumerate(rows):
                if not self._read(number, int(row), text.text(int(row)), int(begin[i] - text.start[row]), assemble.head_of(heads, i)):
                    nothing.append(i)
            return rows[nothing] if nothing else None
        if kind.pattern is not None:
            return self._by_pattern(number, rows, begin, heads)
        self._together(number, rows, begin, heads)
        return None

    def _together(self, number: int, rows: Ints, begin: Ints, heads: Heads) -> None:
        """Read lines of pairs of one kind, by their shapes, by their keys, and what is left one by one."""
        text, kind = self.text, self.parser._kinds[number]
        parts, left = kind.shapes.read(text, rows, begin)
        by_key = kind.line.loose
        # The first lines are read one by one, so that a shape which they have in common can be learned; later on, fewer will do.
        some = FEW if not by_key or kind.shapes.offered < 16 * FEW else FEW // 4
        while len(left):
            known = kind.shapes.learned
            self._one_by_one(number, rows, begin, heads, left[:some])
            left = left[some:]
            some *= 2
            if len(left) and kind.shapes.learned > known:
                more, still = kind.shapes.read(text, rows[left], begin[left])
                parts += more
                left = left[still]
            if by_key and len(left) >= FEW // 4:
                by_key = False
                more, still = read_by_key(kind.line, text, rows[left], begin[left], kind.shapes.openings)
                parts += more
                left = left[still]
        for part in parts:
            places = np.searchsorted(rows, part.rows)
            self._add(kind, part, heads if len(places) == len(rows) else assemble.take_heads(heads, places))

    def _one_by_one(self, number: int, rows: Ints, begin: Ints, heads: Heads, which: Ints) -> None:
        kind = self.parser._kinds[number]
        self.parser.misses[kind.dialect.name] += len(which)
        for i in which:
            row = int(rows[i])
            message = self.text.text(row)
            # Bytes before the message are the head, ASCII by its form.
            self._read(number, row, message, int(begin[i] - self.text.start[row]), assemble.head_of(heads, int(i)))

    def _by_pattern(self, number: int, rows: Ints, begin: Ints, heads: Heads) -> Ints:
        kind = self.parser._kinds[number]
        line = kind.line
        bodies = self.text.strings(begin, self.text.end[rows])
        found = pc.extract_regex(bodies, "(?s)" + line.whole_pattern)
        valid = np.asarray(found.is_valid())
        if line.pid is not None:
            pids = self.batch.column(self.batch.schema.get_field_index("pid")).take(pa.array(rows))
            valid = valid & np.asarray(pc.equal(pids, line.pid).fill_null(False))
        hits = np.flatnonzero(valid)
        if not len(hits):
            return rows
        kinds = kinds_of(line.record)
        names = [f.name for f in found.type]
        usual = valid.copy()
        for name, texts in zip(names, found.flatten(), strict=True):
            if name.endswith(MORE):
                usual &= np.asarray(pc.equal(texts, "").fill_null(True))
            else:
                usual &= assemble.plain_texts(texts.fill_null(""), kinds[name])
        for i in np.flatnonzero(valid & ~usual).tolist():
            self._read(
                number,
                int(rows[i]),
                self.text.text(int(rows[i])),
                int(begin[i] - self.text.start[rows[i]]),
                assemble.head_of(heads, int(i)),
            )
        hits = np.flatnonzero(usual)
        if not len(hits):
            return rows[~valid]
        found = found.take(pa.array(hits))
        part = RowsRead(rows[hits])
        for i, name in enumerate(names):
            if name.endswith(MORE):
                continue
            texts = found.field(i)
            if name in assemble.ORIGIN:
                # A group that took no part is empty here, and says nothing.
                texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
            part.columns[name] = assemble.cast_texts(texts, kinds[name])
        for name, value in line.const.items():
            part.columns[name] = pa.repeat(pa.scalar(value, assemble.arrow_type(line.record, name)), len(hits))
        self._add(kind, part, assemble.take_heads(heads, hits))
        return rows[~valid]

    def _add(self, kind: _LineKind, part: RowsRead, heads: Heads) -> None:
        for name, value in kind.line.const.items():
            if name not in part.columns:
                part.columns[name] = pa.repeat(pa.scalar(value, assemble.arrow_type(kind.line.record, name)), len(part.rows))
        self.parts.setdefault(kind.table, []).append(assemble.Piece(part.rows, part.columns, heads, kind.dialect.name))

    def _candidates(self, rows: Ints, pattern: str) -> Ints:
        """Tier 2: which of the lines hold any marker or key at all."""
        if not len(rows):
            return rows
        messages = self.text.messages
        if len(rows) < len(self.text):
            messages = messages.take(pa.array(rows))
        return rows[np.asarray(pc.match_substring_regex(messages, pattern))]

    def _one(self, row: int, found: list[Found] | None = None) -> None:
        """Tier 3 for a line of which not even the kind is known; ``found`` is what the locator said of it."""
        message = self.text.text(row)
        locator = self.parser._locator
        for places in (locator.find(message) if found is None else found, None):
            for one in locator.buried(message) if places is None else places:
                if self._read(one.kind, row, message, one.begin, one.head, found=one):
                    self.parser.misses[self.parser._kinds[one.kind].dialect.name] += 1
                    return
        mention = locator.mention(message)
        if mention is not None:
            self._quoted(row, mention[0])
        elif (rest := locator.headless(message)) and not (row and self.text.text(row - 1).rstrip().endswith(",")):
            self._broken(self.parser._kinds[rest[0]], row, message, rest[1], "cut")

    def _read(self, number: int, row: int, message: str, begin: int, head: Head, found: Found | None = None) -> bool:
        """Read one line of a known kind; return whether it is one (read or broken)."""
        kind = self.parser._kinds[number]
        line = kind.line
        body = message[begin:]
        marked = found is None or found.marked
        try:
            if line.reader is not None:
                values = line.reader(body)
                extra: dict[str, str] = {}
            elif kind.pattern is not None:
                values = self._match(kind, body, row)
                extra = {}
            else:
                reading = self._pairs(number, row, body, marked, found is not None and found.whole)
                values = None if reading is None else {k: v for k, v in reading[0].items() if v is not None}
                extra = {} if reading is None else reading[1]
        except Broken as problem:
            self._broken(kind, row, message, begin, problem.reason)
            return True
        if values is None:
            return False
        stamp = values.pop(STAMP, None)
        if stamp is not None:
            head = stamp if isinstance(stamp, Head) else head.refined(stamp)
        more = {**head.extra, **(found.extra if found else {}), **extra}
        if more and "extra" in kinds_of(line.record):
            values["extra"] = {**values.get("extra", {}), **more}
        self._slow.setdefault(kind.table, []).append((row, {**line.const, **values}, head, kind.dialect.name))
        return True

    def _pairs(self, number: int, row: int, body: str, marked: bool, whole: bool) -> tuple[dict[str, Any], dict[str, str]] | None:
        kind = self.parser._kinds[number]
        if whole:
            found = read_whole(kind.line, body, marked)
            return None if found is None else (found.values, found.extra)
        try:
            reading = read_pairs(kind.line, body, marked)
        except Broken as problem:
            joined = self._wrapped(row, body) if problem.reason == "cut" and not kind.line.loose else None
            if joined is None:
                raise
            reading = read_pairs(kind.line, joined, marked)
            return None if reading is None else (reading.values, reading.extra)
        if reading is None:
            return None
        if self.parser._fast:
            shape = kind.shapes.offer(body, reading)
            if shape is not None:
                self.parser._taught(number, shape.literals[0])
        return reading.values, reading.extra

    def _wrapped(self, row: int, body: str) -> str | None:
        """Join a line that an editor or terminal wrapped behind a comma with the next one, if that goes on like it."""
        if not body.rstrip().endswith(",") or row + 1 >= len(self.text):
            return None
        following = self.text.text(row + 1)
        if not re.match(r"\s+#?[A-Za-z][^:,\"']*: \S", following):
            return None
        return body.rstrip() + " " + following.strip()

    def _match(self, kind: _LineKind, body: str, row: int) -> dict[str, Any] | None:
        assert kind.pattern is not None
        found = kind.pattern.match(body)
        if found is None:
            return None
        if kind.line.pid is not None:
            pid = self.batch.column(self.batch.schema.get_field_index("pid"))[row].as_py()
            if pid != kind.line.pid:
                return None
        kinds = kinds_of(kind.line.record)
        if any(text for name, text in found.groupdict().items() if name.endswith(MORE)):
            raise Broken("bad_number")
        return {n: assemble.cast_text(v, kinds[n]) for n, v in found.groupdict().items() if v is not None and not n.endswith(MORE)}

    def _where(self, row: int) -> str:
        where = self.batch.column(self.batch.schema.get_field_index("where"))[row].as_py()
        return str(where) if where else f"line {self.parser.lines + row + 1}"

    def _quoted(self, row: int, number: int) -> None:
        """Count a line that gave nothing although it holds a marker."""
        kind = self.parser._kinds[number]

        # Whatever speaks of a line may be a prompt: nothing of it is kept.
        self.parser.quoted.add(kind.dialect.name, lambda: (self._where(row), f"{kind.line.marker} (the text around it left out)"))

    def _broken(self, kind: _LineKind, row: int, message: str, begin: int, reason: str) -> None:
        where = self._where(row)
        left_out = kind.line.record is RequestLine
        text = f"{kind.line.marker} (the text of the request left out)" if left_out else example_of(message, begin, kind.line.words)
        if self.parser.on_error == "raise":
            raise BrokenLine(where, text, reason)
        self.parser.broken.add(kind.dialect.name, kind.table, reason, where, text)


__all__ = ["NO_HEAD", "BrokenLines", "Parsed", "Parser", "QuotedLines", "read_head"]
