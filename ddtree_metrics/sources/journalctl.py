"""The journal through a ``journalctl`` pipe, for machines without systemd-python: the same lines at a quarter of the speed."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, cast

import pyarrow as pa

from ddtree_metrics.errors import SourceDamaged, SourceUnsupported
from ddtree_metrics.sources import JournalPlace
from ddtree_metrics.sources import journal_fields as f
from ddtree_metrics.sources.entries import EntryRows
from ddtree_metrics.sources.export_format import ExportParser

if TYPE_CHECKING:
    from ddtree_metrics.sources.select import Entrance

_READ = 1 << 20


class Pipe:
    """``journalctl -o export --all``, run without a shell."""

    def __init__(self) -> None:
        program = shutil.which("journalctl")
        if program is None:
            raise SourceUnsupported("journalctl is not installed: apt-get install systemd, or install systemd-python (the extra [journal])")
        self._program = program

    def _command(self, files: tuple[str, ...], *more: str) -> list[str]:
        # --file takes patterns, so the characters of patterns in names are quoted.
        named = ["--file=" + glob.escape(path) for path in files]
        return [self._program, "--no-pager", "--quiet", *named, *more]

    def _run(self, command: list[str]) -> bytes:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=_environment(), check=False)
        if done.returncode:
            raise SourceDamaged(f"journalctl failed: {_said(done.stderr)}")
        return done.stdout

    def unique(self, files: tuple[str, ...], name: str) -> set[str]:
        """Return the values that a field has in the files."""
        return {v for v in self._run(self._command(files, f"--field={name}")).decode("utf-8", "replace").split("\n") if v}

    def boots(self, files: tuple[str, ...]) -> list[str]:
        """Return the boots in the files, oldest first."""
        made = []
        for boot in self.unique(files, "_BOOT_ID"):
            # journalctl's --lines=+1 (the first entry) came with systemd 254: take one entry of the pipe, and close it.
            with subprocess.Popen(
                self._command(files, "--output=export", "--output-fields=_BOOT_ID", f"_BOOT_ID={boot}"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(),
            ) as child:
                assert child.stdout is not None
                for line in child.stdout:
                    if line.startswith(b"__REALTIME_TIMESTAMP="):
                        made.append((int(line.partition(b"=")[2]), boot))
                        break
                child.kill()
        return [boot for _, boot in sorted(made)]

    def count(self, files: tuple[str, ...], match: str) -> int:
        """Count the entries with a match."""
        out = self._run(self._command(files, "--output=export", "--output-fields=_BOOT_ID", match))
        return out.count(b"\n__REALTIME_TIMESTAMP=")

    def batches(self, place: Entrance, rows: EntryRows) -> Iterator[pa.RecordBatch]:
        """Read the matching entries into rows, and yield batches of them."""
        command = self._command(place.files, "--output=export", "--all", f"--output-fields={','.join(f.WANTED)}")
        if place.since_us is not None:
            command.append(f"--since=@{place.since_us // 1_000_000}")
        for at, group in enumerate(place.groups):
            command += ["+", *group] if at else list(group)
        with tempfile.TemporaryFile() as said:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, env=_environment())
            try:
                yield from _read(cast("BinaryIO", child.stdout), rows)
                code = child.wait()
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
                assert child.stdout is not None
                child.stdout.close()
            said.seek(0)
            words = _said(said.read())
            if code:
                rows.stats.damaged.append(f"journalctl stopped early ({words}); what came before was read")
            elif words:
                rows.stats.notes.append(f"journalctl says: {words}")


def follow_command(since_us: int, place: JournalPlace) -> list[str]:
    """Write the command that prints, in the export format, what a journal has since a time and what is written to it from now on.

    Without matches: what is wanted is chosen where the entries are read, as of a journal that was saved.
    """
    named = [f"--file={pattern}" for pattern in place.files]
    if place.directory is not None:
        named.append(f"--directory={place.directory}")
    if place.namespace is not None and place.directory is None:
        named.append(f"--namespace={place.namespace}")
    fields = f"--output-fields={','.join(f.WANTED)}"
    shown = ("--follow", "--boot=all", "--lines=all", "--output=export", "--all", fields, f"--since=@{since_us // 1_000_000}")
    return ["journalctl", "--no-pager", "--quiet", *named, *shown]


def _read(pipe: BinaryIO, rows: EntryRows) -> Iterator[pa.RecordBatch]:
    parser = ExportParser()
    fd = pipe.fileno()
    while data := os.read(fd, _READ):
        for entry in parser.feed(data):
            _take(rows, entry)
            if rows.full and (batch := rows.batch()) is not None:
                yield batch
    last, _ = parser.close()
    if last is not None:
        _take(rows, last)
    rows.finish()
    if (batch := rows.batch()) is not None:
        yield batch


def _take(rows: EntryRows, entry: dict[str, f.Value]) -> None:
    time = f.number(f.first(entry, "__REALTIME_TIMESTAMP"), f.TIME_MAX)
    mono = f.number(f.first(entry, "__MONOTONIC_TIMESTAMP"), f.BOOT_CLOCK_MAX)
    if time is not None and mono is not None and (time, mono) in rows.spoiled:
        return
    rows.met += rows.within(time)
    rows.take(entry, time, mono, f.place_of(f.text(entry, "__CURSOR")))


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SYSTEMD_", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}


def _said(text: bytes) -> str:
    return " ".join(text.decode("utf-8", "replace").split())[:300]
