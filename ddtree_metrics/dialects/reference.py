"""The reference reader: one line at a time, in plain Python, of the declarations. What it says of a line is right by definition.

It reads every line where the compiled reader was not built, the lines that are unusual in anything where it was, and what the tests hold
the compiled reader against.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ddtree_metrics.dialects.assemble import cast_text
from ddtree_metrics.dialects.base import MORE, Broken, Dialect, Line
from ddtree_metrics.dialects.find import Found, Locator, clean
from ddtree_metrics.dialects.pairs import kinds_of, read_pairs, read_whole
from ddtree_metrics.dialects.stamps import STAMP, Head, read_head
from ddtree_metrics.dialects.tallies import BrokenLines, QuotedLines, example_of
from ddtree_metrics.errors import BrokenLine
from ddtree_metrics.records import RequestLine, table_of

Row = tuple[int, dict[str, Any], Head, str]
"""The number of a line in its batch, its columns, its head, and the name of its dialect."""


@dataclass(slots=True)
class LineKind:
    """A line kind of a dialect, made ready for use."""

    dialect: Dialect
    line: Line
    table: str
    pattern: re.Pattern[str] | None

    @staticmethod
    def of(dialect: Dialect, line: Line) -> LineKind:
        """Compile its pattern, if it has one."""
        return LineKind(dialect, line, table_of(line.record), re.compile(line.whole_pattern, re.A | re.S) if line.pattern else None)


@dataclass(slots=True)
class ReadLines:
    """The lines of a batch, and the rows that were read of them so far, by table."""

    batch: pa.RecordBatch
    messages: pa.Array
    first: int
    speaks: re.Pattern[str]
    rows: dict[str, list[Row]] = field(default_factory=dict)

    def text(self, row: int) -> str:
        """Return one line, without what a damaged stream left around it."""
        return clean(str(self.messages[row].as_py()), self.speaks)

    def origin(self, row: int, name: str) -> Any:
        """Return what the source says of a line."""
        return self.batch.column(self.batch.schema.get_field_index(name))[row].as_py()


class Reference:
    """Reads lines one at a time, and counts those that are broken or only speak of a line."""

    def __init__(self, kinds: list[LineKind], on_error: str) -> None:
        self.kinds = kinds
        self.locator = Locator([k.line for k in kinds])
        self.broken = BrokenLines()
        self.quoted = QuotedLines()
        self.misses = {k.dialect.name: 0 for k in kinds}
        self.labelled: list[tuple[int, int, str]] = []
        """Of lines of pairs without a marker: the kind, where the message begins, and all that stands before the first pair."""
        self._on_error = on_error

    def read(self, lines: ReadLines, row: int, message: str, found: list[Found] | None = None) -> None:
        """Read a line of which not even the kind is known; ``found`` is what the locator said of it, if it was asked."""
        for places in (self.locator.find(message) if found is None else found, None):
            for one in self.locator.buried(message) if places is None else places:
                if self._read(lines, row, one.kind, message, one.begin, one.head, one):
                    self.misses[self.kinds[one.kind].dialect.name] += 1
                    return
        mention = self.locator.mention(message)
        if mention is not None:
            self._quoted(lines, row, mention[0])
        elif (rest := self.locator.headless(message)) and not (row and lines.text(row - 1).rstrip().endswith(",")):
            self._broken(lines, row, rest[0], message, rest[1], "cut")

    def read_at(self, lines: ReadLines, row: int, kind: int, message: str, begin: int) -> bool:
        """Read a line of which the kind, and where its message begins, is known; return whether it is one (read or broken)."""
        if not begin and "[" in message:
            return False  # a head further on would go first
        head = read_head(message[1 : begin - 2]) if begin else Head()
        if head is None or not self._read(lines, row, kind, message, begin, head):
            return False
        # What has a reader of its own has no usual shape that it could be out of.
        self.misses[self.kinds[kind].dialect.name] += self.kinds[kind].line.reader is None
        return True

    def read_spoken(self, lines: ReadLines, row: int, message: str) -> None:
        """Read a line with a quotation mark before its marker."""
        mention = self.locator.mention(message)
        if mention is not None and self.locator.is_quotation(message, *mention):
            self._quoted(lines, row, mention[0])
        else:
            self.read(lines, row, message)

    def _read(self, lines: ReadLines, row: int, number: int, message: str, begin: int, head: Head, found: Found | None = None) -> bool:
        kind = self.kinds[number]
        line = kind.line
        body = message[begin:]
        extra: dict[str, str] = {}
        try:
            if line.reader is not None:
                values = line.reader(body)
            elif kind.pattern is not None:
                values = self._match(lines, row, kind, body)
            else:
                values, extra = self._pairs(lines, row, number, message, begin, found)
        except Broken as problem:
            self._broken(lines, row, number, message, begin, problem.reason)
            return True
        if values is None:
            return False
        stamp = values.pop(STAMP, None)
        if stamp is not None:
            head = stamp if isinstance(stamp, Head) else head.refined(stamp)
        more = {**head.extra, **extra}
        if more and "extra" in kinds_of(line.record):
            values["extra"] = {**values.get("extra", {}), **more}
        lines.rows.setdefault(kind.table, []).append((row, {**line.const, **values}, head, kind.dialect.name))
        return True

    def _pairs(
        self, lines: ReadLines, row: int, number: int, message: str, begin: int, found: Found | None
    ) -> tuple[dict[str, Any] | None, dict[str, str]]:
        kind, body = self.kinds[number], message[begin:]
        marked = found is None or found.marked
        try:
            reading = (read_whole if found is not None and found.whole else read_pairs)(kind.line, body, marked)
        except Broken as problem:
            joined = _wrapped(lines, row, body) if problem.reason == "cut" and not kind.line.loose else None
            if joined is None:
                raise
            reading = read_pairs(kind.line, joined, marked)
        if reading is None:
            return None, {}
        if not marked and not (found and found.whole):
            key, at, _ = reading.tokens.pairs[0]
            self.labelled.append((number, begin, message[: begin + body.rfind(key, 0, at)]))
        return {name: value for name, value in reading.values.items() if value is not None}, reading.extra

    @staticmethod
    def _match(lines: ReadLines, row: int, kind: LineKind, body: str) -> dict[str, Any] | None:
        assert kind.pattern is not None
        found = kind.pattern.match(body)
        if found is None or (kind.line.pid is not None and lines.origin(row, "pid") != kind.line.pid):
            return None
        kinds = kinds_of(kind.line.record)
        if any(text for name, text in found.groupdict().items() if name.endswith(MORE)):
            raise Broken("bad_number")
        return {n: cast_text(v, kinds[n]) for n, v in found.groupdict().items() if v is not None and not n.endswith(MORE)}

    @staticmethod
    def _where(lines: ReadLines, row: int) -> str:
        return str(lines.origin(row, "where") or f"line {lines.first + row + 1}")

    def _quoted(self, lines: ReadLines, row: int, number: int) -> None:
        """Count a line that gave nothing although it holds a marker."""
        kind = self.kinds[number]
        # Whatever speaks of a line may be a prompt: nothing of it is kept.
        self.quoted.add(kind.dialect.name, lambda: (self._where(lines, row), f"{kind.line.marker} (the text around it left out)"))

    def _broken(self, lines: ReadLines, row: int, number: int, message: str, begin: int, reason: str) -> None:
        kind = self.kinds[number]
        where = self._where(lines, row)
        left_out = kind.line.record is RequestLine
        text = f"{kind.line.marker} (the text of the request left out)" if left_out else example_of(message, begin, kind.line.words)
        if self._on_error == "raise":
            raise BrokenLine(where, text, reason)
        self.broken.add(kind.dialect.name, kind.table, reason, where, text)


def _wrapped(lines: ReadLines, row: int, body: str) -> str | None:
    """Join a line that an editor or terminal wrapped behind a comma with the next one, if that goes on like it."""
    if not body.rstrip().endswith(",") or row + 1 >= len(lines.messages):
        return None
    following = lines.text(row + 1)
    if not re.match(r"\s+#?[A-Za-z][^:,\"']*: \S", following):
        return None
    return body.rstrip() + " " + following.strip()
