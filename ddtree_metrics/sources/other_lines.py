"""Lines of whoever writes to the journal, for some minutes of it: the kernel, systemd, other services."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree_metrics.errors import SourceUnsupported
from ddtree_metrics.sources import JournalPlace, SourceStats
from ddtree_metrics.sources.byte_streams import Bytes, Unpacked, compression
from ddtree_metrics.sources.export_format import ExportParser
from ddtree_metrics.sources.open_files import open_file

FIELDS = ("MESSAGE", "PRIORITY", "_SYSTEMD_UNIT", "SYSLOG_IDENTIFIER", "_TRANSPORT", "_COMM", "_HOSTNAME", "CONTAINER_NAME")


@dataclass(frozen=True, slots=True)
class OtherLine:
    """One entry: time, host, who wrote it (the unit, else the identifier), the identifier, priority (6 where there is none), message."""

    time_us: int
    host: str
    who: str
    ident: str
    priority: int
    message: str


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
    return OtherLine(
        int(stamp), _text(entry.get("_HOSTNAME")), who or "?", ident or who, int(priority) if priority.isdigit() else 6, message[:4096]
    )


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
    place : JournalPlace, optional
        A journal.
    dumps : sequence of str
        Files of ``journalctl -o export`` or ``-o json``, which are read from their beginning each time they are asked.

    Attributes
    ----------
    denied : list of str
        What journalctl says of what this user may not read.
    """

    def __init__(self, place: JournalPlace | None, dumps: Sequence[str] = ()) -> None:
        self.place = place
        self.dumps = tuple(dumps)
        self.denied: list[str] = []
        self._held: list[OtherLine] | None = None

    @property
    def size(self) -> int:
        """Bytes of the dumps, which have to be read from the beginning."""
        return sum(Path(path).stat().st_size for path in self.dumps if Path(path).exists())

    def __call__(self, begin_us: int, end_us: int) -> Iterator[OtherLine]:
        """Yield the lines from ``begin_us`` until before ``end_us``."""
        if self.place is not None:
            yield from self._journal(self.place, begin_us, end_us)
        if self.dumps:
            if self._held is None:
                self._held = [line for path in self.dumps for line in _dump(path)]
            yield from (line for line in self._held if begin_us <= line.time_us < end_us)

    def _journal(self, place: JournalPlace, begin_us: int, end_us: int) -> Iterator[OtherLine]:
        program = shutil.which("journalctl")
        if program is None:
            raise SourceUnsupported("journalctl is not installed, and lines of others are read with it: apt-get install systemd")
        command = [program, "--no-pager", "--output=json", "--all", f"--output-fields={','.join(FIELDS)}"]
        command += [f"--since=@{begin_us // 1_000_000}", f"--until=@{-(-end_us // 1_000_000)}"]
        command += [f"--directory={place.directory}"] if place.directory else []
        command += [f"--file={name}" for name in place.files]
        command += [f"--namespace={place.namespace}"] if place.namespace else []
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
            finally:
                child.stdout.close()
                if child.poll() is None:
                    child.kill()
                child.wait()
            said.seek(0)
            for words in said.read().decode("utf-8", "replace").splitlines():
                if "permission" in words.lower() or "not seeing messages" in words.lower():
                    self.denied.append(words.removeprefix("Hint: ").strip()[:200])
        self.denied = list(dict.fromkeys(self.denied))


def is_dump(path: str) -> bool:
    """Whether a file is an export or a JSON dump of a journal, by its first bytes."""
    head = _bytes(path).peek(64).lstrip()
    return head.startswith((b"__CURSOR=", b"__REALTIME_TIMESTAMP=")) or (head.startswith(b"{") and b'"' in head)


def _bytes(path: str) -> Bytes | Unpacked:
    stats = SourceStats()
    stream: Bytes | Unpacked = Bytes(open_file(path), path, stats)
    kind = compression(stream.peek(64))
    return stream if kind is None else Unpacked(stream, kind, stats)


def _dump(path: str) -> Iterator[OtherLine]:
    stream = _bytes(path)
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
