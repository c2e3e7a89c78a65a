"""Lines that are JSON objects: journal entries (``journalctl -o json``) and docker's json-file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ddtree_metrics.sources import collectors
from ddtree_metrics.sources import journal_fields as f
from ddtree_metrics.sources.clean import decode, strip_ansi
from ddtree_metrics.sources.select import Wanted
from ddtree_metrics.sources.stamp_columns import rfc3339_us

_HEAD = re.compile(r"(?:\x1e|data: )?[ \t]*")
_NEXT = re.compile(r"\}\s*\{")
_JOURNAL = ("MESSAGE", "__REALTIME_TIMESTAMP", "__CURSOR", "N_DROPPED")
_DECODER = json.JSONDecoder()
_scan: Callable[[str, int], tuple[Any, int]] = _DECODER.raw_decode


class EntryWriter(NamedTuple):
    """What many entries have in common: who wrote them, whether they are selected, and which stream's pieces they are."""

    context: f.Context
    ident: str | None
    wanted: int
    key: Any


class EntryText(NamedTuple):
    """What one object says. ``text`` is ``None`` for an entry without a message, ``null`` then tells which kind of nothing."""

    text: str | None
    null: bool
    time: int | None
    resolution: int
    journal: bool
    monotonic: int | None
    writer: EntryWriter
    more: int
    bad: bool


def split_objects(text: str) -> list[str]:
    """Split a line that holds several JSON objects; one that cannot be split comes back whole."""
    if text.startswith(collectors.OPEN_TELEMETRY):
        return collectors.split_records(text)
    if not _NEXT.search(text):
        return [text]
    made, at = [], 0
    while at < len(text):
        match = _HEAD.match(text, at)
        begin = match.end() if match else at
        try:
            _, end = _DECODER.raw_decode(text, begin)
        except (ValueError, RecursionError):
            break
        made.append(text[begin:end])
        at = end
        while at < len(text) and text[at] in " \t,":
            at += 1
    if at < len(text):
        made.append(text[at:])
    return made or [text]


def _values(value: Any) -> tuple[f.Value | None, bool]:
    """Turn a JSON value of a field into bytes: a string, a list of byte values, a list of strings, a number."""
    if isinstance(value, str):
        try:
            return value.encode(), False
        except UnicodeEncodeError:  # half of a surrogate pair
            return value.encode("utf-8", "replace"), True
    if isinstance(value, list):
        if value and all(type(v) is int for v in value):
            return bytes(v & 0xFF for v in value), any(not 0 <= v < 256 for v in value)
        parts: list[bytes] = []
        bad = False
        for item in value:
            made, odd = _values(item)
            bad |= odd
            if isinstance(made, list):
                parts += made
            elif made is not None:
                parts.append(made)
        return (parts or None), bad
    if isinstance(value, bool) or value is None:
        return None, False
    if isinstance(value, int | float):
        return str(value).encode() if not isinstance(value, int) or abs(value) < 10**20 else None, False
    return None, False


def _entry(found: dict[str, Any]) -> tuple[dict[str, f.Value], bool]:
    entry: dict[str, f.Value] = {}
    bad = False
    for name, raw in found.items():
        if name in _WANTED:
            value, odd = _values(raw)
            bad |= odd and name == "MESSAGE"
            if value is not None:
                entry[name] = value
    return entry, bad


_WANTED = frozenset(f.WANTED)
# An entry that has none of these is a plain line, and the fields of its writer say the rest.
_SPECIAL = frozenset(("MESSAGE_ID", "N_DROPPED", "_LINE_BREAK", "CONTAINER_PARTIAL_MESSAGE"))
_WRITER = tuple(name for name in f.WANTED if name not in _SPECIAL and name != "MESSAGE")


# What only a line of a journal in JSON begins with, and what a line that has lost its beginning ends with.
_OPENS = r'^(?:\x1e|data: )?[ \t]*\{ *"(?:__[A-Z]|_[A-Z]|MESSAGE"|SYSLOG_[A-Z]|PRIORITY")'
_OBJECT = r"^(?:\x1e|data: )?[ \t]*\{"
_LOST_HEAD = re.compile(r'"(?:__?[A-Z][A-Z_]+|MESSAGE)" ?: ?["[0-9n]')


class Torn:
    """Lines of a JSON file that are no whole JSON: cut at the end of the file or at its beginning, or overwritten.

    Attributes
    ----------
    since : int or None
        The first line that is an entry: from there on every line that begins as an object should be one.
    count, first, last : int
        How many broken lines there are, and where.
    """

    def __init__(self) -> None:
        self.since: int | None = None
        self.count = self.first = self.last = 0

    def met(self, lines: NDArray[np.int64]) -> None:
        """Take note of lines that are entries."""
        if self.since is None:
            self.since = int(lines.min())

    def find(self, texts: pa.Array, lines: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell the broken ones of the lines that nothing else could read, and count them."""
        after = np.zeros(len(texts), bool) if self.since is None else lines > self.since
        opens = np.asarray(pc.match_substring_regex(texts, _OPENS))
        ask = (opens | after) & np.asarray(pc.match_substring_regex(texts, _OBJECT))
        if len(lines) and lines[0] == 1 and _lost_head(texts[0].as_py()):
            ask[0] = True
        broken = np.zeros(len(texts), bool)
        for i in np.flatnonzero(ask).tolist():
            broken[i] = _is_broken(texts[i].as_py())
        at = lines[broken]
        if len(at):
            self.first = self.first or int(at[0])
            self.last, self.count = int(at[-1]), self.count + len(at)
        return broken


def _lost_head(text: str) -> bool:
    """Say whether a line is what is left of an entry without its beginning: the first line of a file that was cut there."""
    return not text.startswith("{") and text.rstrip().endswith("}") and _LOST_HEAD.search(text) is not None


def _is_broken(text: str) -> bool:
    match = _HEAD.match(text)
    try:
        _, end = _scan(text, match.end() if match else 0)
    except ValueError:
        return True
    except RecursionError:
        return False
    return bool(text[end:].strip(" \t\r,"))


class Reader:
    """Read lines that are JSON objects; writers are remembered, as they come again and again."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._writers: dict[Any, EntryWriter] = {}
        self._streams: dict[Any, EntryWriter] = {}

    def parse(self, text: str) -> EntryText | None:
        """Read one line; ``None`` if it is no journal entry and no docker line."""
        match = None if text.startswith("{") else _HEAD.match(text)
        try:
            found, end = _scan(text, match.end() if match else 0)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or (end != len(text) and text[end:].strip()):
            return None
        if "MESSAGE" in found or (any(name in found for name in _JOURNAL) and "message" not in found):
            return self._journal(found)
        log = found.get("log")
        if isinstance(log, str) and ("stream" in found or "time" in found):
            return self._docker(found, log)
        entry = collectors.as_entry(found)
        return None if entry is None else self._journal(entry)

    def _writer(self, entry: f.Entry) -> EntryWriter:
        wanted = self._wanted.entry(entry)
        return EntryWriter(f.context(entry), f.text(entry, "SYSLOG_IDENTIFIER"), -1 if wanted is None else int(wanted), f.piece_key(entry))

    def _journal(self, found: dict[str, Any]) -> EntryText:
        time, resolution, journal = _number(found.get("__REALTIME_TIMESTAMP"), f.TIME_MAX), 1, True
        if time is None and (collected := collectors.time_of(found)) is not None:
            (time, resolution), journal = collected, False
        monotonic = _number(found.get("__MONOTONIC_TIMESTAMP"), f.BOOT_CLOCK_MAX)
        message = found.get("MESSAGE")
        if (
            isinstance(message, str)
            and _SPECIAL.isdisjoint(found)
            and message.isprintable()
            and not message.startswith("Suppressed ")  # a notice of journald says in its words whose it is
        ):
            key = tuple(map(found.get, _WRITER))
            try:
                writer = self._writers.get(key)
            except TypeError:  # a field that is a list
                pass
            else:
                if writer is None:
                    if len(self._writers) > 4096:
                        self._writers.clear()
                    writer = self._writers[key] = self._writer(_entry(found)[0])
                return EntryText(message, False, time, resolution, journal, monotonic, writer, 1, False)
        entry, bad = _entry(found)
        raw = f.message(entry)
        text = None
        if raw is not None:
            text, odd = decode(raw)
            bad |= odd
            text = strip_ansi(text)
        elif message == []:
            text = ""
        null = text is None and "MESSAGE" in found and message is None
        return EntryText(text, null, time, resolution, journal, monotonic, self._writer(entry), 2 if f.goes_on(entry) else 1, bad)

    def _docker(self, found: dict[str, Any], log: str) -> EntryText:
        bad = False
        try:
            log.encode()
        except UnicodeEncodeError:
            log, bad = log.encode("utf-8", "replace").decode(), True
        stamp, stream = found.get("time"), found.get("stream")
        at = rfc3339_us(stamp) if isinstance(stamp, str) else None
        name = stream if isinstance(stream, str) else None
        writer = self._streams.get(name)
        if writer is None:
            if len(self._streams) > 64:
                self._streams.clear()
            writer = self._streams[name] = EntryWriter(f.Context(None, None, name, None, None), None, -1, None)
        whole = log.endswith("\n")
        text = strip_ansi(log[:-1] if whole else log)
        return EntryText(text, False, at[0] if at else None, at[1] if at else 0, False, None, writer, 1 if whole else 2, bad)


def _number(value: Any, below: int) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value < below else None
    return f.number(value, below) if isinstance(value, str) else None
