"""Lines of whoever writes to the journal, for some minutes of it: the kernel, systemd, other services."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ddtree_metrics.errors import SourceUnsupported
from ddtree_metrics.sources import JournalPlace, SourceStats, journal_files
from ddtree_metrics.sources.byte_streams import Bytes, Unpacked, compression
from ddtree_metrics.sources.clean import shown
from ddtree_metrics.sources.export_format import ExportParser
from ddtree_metrics.sources.journal import DAY
from ddtree_metrics.sources.open_files import open_file

FIELDS = ("MESSAGE", "PRIORITY", "UNIT", "USER_UNIT", "_SYSTEMD_UNIT", "SYSLOG_IDENTIFIER", "_TRANSPORT", "_COMM", "_HOSTNAME")

JOURNALS = (".journal", ".journal~")
MOST_HELD = 500_000
"""So many lines of others are kept of dumps."""


@dataclass(frozen=True, slots=True)
class OtherLine:
    """One entry: time, host, who wrote it (the unit, else the identifier), the identifier, priority (6 where there is none), message.

    ``about`` is the unit that a line of systemd is about.
    """

    time_us: int
    host: str
    who: str
    ident: str
    priority: int
    message: str
    about: str = ""


def line_of(entry: dict[str, Any]) -> OtherLine | None:
    """Make a line of the fields of an entry; None where it has no time or no message."""
    stamp, message = _text(entry.get("__REALTIME_TIMESTAMP")), _text(entry.get("MESSAGE"))
    if not stamp.isdigit() or not message:
        return None
    kernel = _text(entry.get("_TRANSPORT")) == "kernel"
    ident = "kernel" if kernel else _text(entry.get("SYSLOG_IDENTIFIER")) or _text(entry.get("_COMM"))
    priority = _text(entry.get("PRIORITY"))
    unit = "" if kernel else _text(entry.get("_SYSTEMD_UNIT"))
    who = unit if unit and unit != "init.scope" else ident
    about = _text(entry.get("UNIT")) or _text(entry.get("USER_UNIT"))
    level = int(priority) if priority.isdigit() else 6
    return OtherLine(int(stamp), _text(entry.get("_HOSTNAME")), who or "?", ident or who, level, message[:4096], about)


def _text(value: Any) -> str:
    if isinstance(value, list):  # bytes that are no text, or a field that an entry has more than once
        value = bytes(x & 255 for x in value) if all(isinstance(x, int) for x in value) else value[0]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


class LinesOfOthers:
    """Reads lines of a journal, or of what ``journalctl`` saved of one, between two times.

    Parameters
    ----------
    paths : sequence of str or None
        Journal files, folders of them, and dumps (``journalctl -o export`` or ``-o json``); None for the journal of ``place``.
    place : JournalPlace
        Which journal, where there are no paths.

    Attributes
    ----------
    unread : list of str
        What this user may not read, and what is damaged, each with what to do.
    own : callable
        Whether a line is the server's own; those are not kept.
    """

    def __init__(self, paths: Sequence[str] | None, place: JournalPlace) -> None:
        self._paths = None if paths is None else tuple(str(Path(path).absolute()) for path in paths)
        self._place = place
        self.unread: list[str] = []
        self.own: Callable[[OtherLine], bool] = lambda _: False
        self._found: tuple[list[journal_files.Header], list[str]] | None = None
        self._held: list[OtherLine] | None = None

    def _inputs(self) -> tuple[list[journal_files.Header], list[str]]:
        """Find journal files and dumps, once; what cannot be read is named."""
        if self._found is not None:
            return self._found
        places, dumps = [], []
        if self._paths is None:
            # the kernel writes to the main journal, wherever a service writes
            both = {self._place.namespace, None} if not self._place.files else {self._place.namespace}
            places = [replace(self._place, namespace=name) for name in both]
        for path in self._paths or ():
            inside = [str(p) for p in sorted(Path(path).iterdir()) if p.is_file()] if Path(path).is_dir() else [path]
            journals = [glob.escape(p) for p in inside if p.endswith(JOURNALS)]
            places += [JournalPlace(directory=path)] if Path(path).is_dir() else [JournalPlace(files=tuple(journals))] if journals else []
            dumps += [p for p in inside if not p.endswith(JOURNALS) and Path(p).is_file() and is_dump(p)]
        made: dict[str, journal_files.Header] = {}
        for place in places:
            found, _ = journal_files.find(place)
            made.update({header.path: header for header in found.good})
            self.unread += found.told()
        self.unread = list(dict.fromkeys(self.unread))
        self._found = list(made.values()), list(dict.fromkeys(dumps))
        return self._found

    @property
    def any(self) -> bool:
        """Whether there is anything that can hold lines of others."""
        return any(self._inputs()) or bool(self.unread)

    @property
    def size(self) -> int:
        """Bytes of the dumps, which have to be read from the beginning; of compressed ones about ten times theirs."""
        return sum(Path(p).stat().st_size * (10 if compression(_head(p)) else 1) for p in self._inputs()[1] if Path(p).exists())

    def __call__(self, begin_us: int, end_us: int) -> Iterator[OtherLine]:
        """Yield the lines of others from ``begin_us`` until before ``end_us``."""
        journals, dumps = self._inputs()
        near = [h for h in journals if min(h.first_us, h.last_us) < end_us + DAY and max(h.first_us, h.last_us) >= begin_us - DAY]
        if near:
            yield from (line for line in self._journal(near, begin_us, end_us) if not self.own(line))
        if dumps:
            if self._held is None:
                lines = (line for path in dumps for line in _dump(path) if not self.own(line))
                self._held = list(islice(lines, MOST_HELD))
                if next(lines, None) is not None:
                    self.unread.append(
                        f"the saved journal has more than {MOST_HELD:,} lines of others; those after them were not looked at"
                    )
            yield from (line for line in self._held if begin_us <= line.time_us < end_us)

    def _journal(self, files: Sequence[journal_files.Header], begin_us: int, end_us: int) -> Iterator[OtherLine]:
        program = shutil.which("journalctl")
        if program is None:
            raise SourceUnsupported("journalctl is not installed, and lines of others are read with it: apt-get install systemd")
        command = [program, "--no-pager", "--quiet", "--output=json", "--all", f"--output-fields={','.join(FIELDS)}"]
        command += [f"--since=@{begin_us // 1_000_000}", f"--until=@{-(-end_us // 1_000_000)}"]
        command += [f"--file={glob.escape(header.path)}" for header in files]
        with tempfile.TemporaryFile() as said:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, env={**os.environ, "LC_ALL": "C.UTF-8"}
            )
            assert child.stdout is not None
            try:
                for text in child.stdout:
                    with contextlib.suppress(ValueError):
                        line = line_of(json.loads(text))
                        if line is not None and begin_us <= line.time_us < end_us:
                            yield line
                child.wait()
            finally:
                child.stdout.close()
                if child.poll() is None:
                    child.kill()
                    child.wait()
            said.seek(0)
            words = shown(said.read(400).decode("utf-8", "replace").strip())
            if child.returncode and words:
                self.unread = list(dict.fromkeys([*self.unread, f"journalctl stopped: {words}"]))


def is_dump(path: str) -> bool:
    """Whether a file is an export or a JSON dump of a journal, by its first bytes."""
    head = _head(path).lstrip()
    if compression(head) is not None:
        with _bytes(path) as stream:
            head = stream.peek(64).lstrip()
    return head.startswith((b"__CURSOR=", b"__REALTIME_TIMESTAMP=")) or (head.startswith(b"{") and b'"' in head)


def _head(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(64)
    except OSError:
        return b""


@contextlib.contextmanager
def _bytes(path: str) -> Iterator[Bytes | Unpacked]:
    stats = SourceStats()
    with open_file(path) as file:
        stream = Bytes(file, path, stats)
        kind = compression(stream.peek(64))
        yield stream if kind is None else Unpacked(stream, kind, stats)


def _dump(path: str) -> Iterator[OtherLine]:
    with _bytes(path) as stream:
        if stream.peek(64).lstrip().startswith(b"{"):
            rest = b""
            while data := stream.read():
                *lines, rest = (rest + data).split(b"\n")
                yield from _json_lines(lines)
            yield from _json_lines([rest])
            return
        parser = ExportParser(FIELDS)
        while data := stream.read():
            yield from filter(None, map(line_of, parser.feed(data)))
        last, _ = parser.close()
        if last is not None and (line := line_of(last)) is not None:
            yield line


def _json_lines(lines: Sequence[bytes]) -> Iterator[OtherLine]:
    for text in lines:
        with contextlib.suppress(ValueError):
            entry = json.loads(text) if text.strip() else None
            line = line_of(entry) if isinstance(entry, dict) else None
            if line is not None:
                yield line
