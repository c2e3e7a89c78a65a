"""Entries that take several lines of text each: JSON that was laid out for reading or put into an array, and ``journalctl -o verbose``."""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, Protocol

from ddtree_metrics.sources.journal_fields import WANTED

_DECODER = json.JSONDecoder()
_BETWEEN = re.compile(r"[\s,\[\]\x1e]*")
_LINE_END = re.compile(r"[\r\n]+[ \t]*")
_NEXT = re.compile(r"\n(?=[ \t]{0,2}\{)")
_LAID_OUT = re.compile(rb"\s*(?:\[\s*(?:\{|$)|\[\s*\n|\{\s*\n)")
_VERBOSE = re.compile(rb"\s*(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \S+ \[s=[0-9a-f]{1,32};i=[0-9a-f]+;")
_HEAD = re.compile(
    r"\S.*\[(?P<cursor>s=[0-9a-f]+;i=[0-9a-f]+;b=(?P<boot>[0-9a-f]{32});m=(?P<mono>[0-9a-f]+);t=(?P<time>[0-9a-f]+);x=[0-9a-f]+)\]"
)
_FIELD = re.compile(r"    ([A-Z_][A-Z0-9_]*)=(.*)", re.S)
_WANTED = frozenset(WANTED)
MOST = 8 << 20
"""Characters of one document; what is longer is none."""


class Chunks(Protocol):
    """Bytes as they come."""

    name: str
    live: bool

    def read(self) -> bytes:
        """Return the next bytes; empty at the end."""


def is_laid_out(head: bytes) -> bool:
    """Whether a text begins as JSON does that has its objects in an array, or over several lines."""
    return _LAID_OUT.match(head) is not None


def is_verbose(head: bytes) -> bool:
    """Whether a text begins as ``journalctl -o verbose`` prints entries."""
    return _VERBOSE.match(head) is not None


class OneLineEach:
    """JSON objects, each on a line of its own, from a text that has them otherwise; what is no JSON comes as it is."""

    torn = False

    def __init__(self, source: Chunks) -> None:
        self.name, self.live = source.name, source.live
        self._source = source
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._ended = False

    def read(self) -> bytes:
        """Return the next objects; empty at the end."""
        while not self._ended:
            data = self._source.read()
            self._ended = not data
            self._rest += self._decoder.decode(data, final=self._ended)
            made = self._objects()
            if made:
                return "".join(made).encode()
        return b""

    def _objects(self) -> list[str]:
        text, at, made = self._rest, 0, []
        while True:
            between = _BETWEEN.match(text, at)
            at = between.end() if between else at
            if at >= len(text):
                break
            try:
                _, end = _DECODER.raw_decode(text, at)
                made.append(_LINE_END.sub("", text[at:end]) + "\n")
            except (ValueError, RecursionError):
                following = _NEXT.search(text, at + 1)
                if following is None and not self._ended and len(text) - at < MOST:
                    break
                end = following.start() if following else len(text)
                made.append(text[at:end] + "\n")
            at = end
        self._rest = text[at:]
        return made


class VerboseParser:
    """Split the text of ``journalctl -o verbose`` into entries; the counterpart of ``ExportParser``.

    Attributes
    ----------
    broken : int
        Lines that are neither the head of an entry nor a field of one.
    """

    def __init__(self) -> None:
        self.broken = 0
        self._rest = b""
        self._entry: dict[str, Any] = {}
        self._field: str | None = None
        self._indent = 0

    def feed(self, data: bytes) -> list[dict[str, bytes | list[bytes]]]:
        """Take more bytes and return the entries that are whole by now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        made: list[dict[str, bytes | list[bytes]]] = []
        for raw in lines:
            line = raw.decode("utf-8", "surrogateescape")
            head = _HEAD.match(line)
            if head is not None:
                if self._entry:
                    made.append(self._entry)
                self._field = None
                self._entry = {
                    "__CURSOR": head["cursor"].encode(),
                    "__REALTIME_TIMESTAMP": str(int(head["time"], 16)).encode(),
                    "__MONOTONIC_TIMESTAMP": str(int(head["mono"], 16)).encode(),
                    "_BOOT_ID": head["boot"].encode(),
                }
            else:
                self._take(line)
        return made

    def _take(self, line: str) -> None:
        field = _FIELD.fullmatch(line)
        if self._field is not None and line.startswith(" " * self._indent):
            # A value of several lines goes on under its beginning.
            self._add(self._field, line[self._indent :], more=True)
        elif field is not None and self._entry:
            self._field, self._indent = field[1], 5 + len(field[1])
            self._add(field[1], field[2], more=False)
        elif line.strip() and not line.startswith("-- "):
            self.broken += 1

    def _add(self, name: str, text: str, *, more: bool) -> None:
        if name not in _WANTED or name == "_BOOT_ID":
            return
        value = text.encode("utf-8", "surrogateescape")
        old = self._entry.get(name)
        if old is None:
            self._entry[name] = value
        elif more and isinstance(old, list):
            old[-1] += b"\n" + value
        elif more:
            self._entry[name] = old + b"\n" + value
        else:
            self._entry[name] = [*old, value] if isinstance(old, list) else [old, value]

    def close(self) -> tuple[dict[str, bytes | list[bytes]] | None, bool]:
        """End the text: return the last entry, and whether the text was cut inside a line."""
        cut = bool(self._rest)
        entry, self._entry, self._rest = self._entry, {}, b""
        return (entry or None), cut
