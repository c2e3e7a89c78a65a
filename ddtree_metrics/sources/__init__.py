"""Where lines come from, and how they are wrapped. A source knows no server.

Every source yields the same Arrow batches of lines (``LINE_SCHEMA``) and counts what it met on the way in ``SourceStats``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Annotated, BinaryIO, Protocol

import pyarrow as pa

from ddtree_metrics.counting import Count
from ddtree_metrics.times import ALWAYS, Window

BATCH_LINES = 32_768

AFTER_LEFT_OUT = "after_left_out"
"""``time_flag`` of a row before which lines were left out, because their time lies outside of the window though they stand inside."""

LINE_SCHEMA = pa.schema(
    [
        pa.field("time", pa.timestamp("us", tz="UTC")),
        pa.field("time_from", pa.string()),
        pa.field("time_resolution_us", pa.int32()),
        pa.field("time_flag", pa.string()),
        pa.field("monotonic_us", pa.int64()),
        pa.field("boot_id", pa.string()),
        pa.field("host", pa.string()),
        pa.field("unit", pa.string()),
        pa.field("pid", pa.int32()),
        pa.field("stream", pa.string()),
        pa.field("where", pa.string()),
        pa.field("message", pa.string()),
    ]
)
"""One row a line of text that somebody logged; ``message`` is valid UTF-8 without colour codes and line ends."""


@dataclass
class SourceStats:
    """What a source met while it was read; the counts grow as batches are taken."""

    lines: Annotated[int, Count("lines read")] = 0
    message_null: Annotated[int, Count("entries whose message is null: the reader ran without --all")] = 0
    message_missing: Annotated[int, Count("entries without a message")] = 0
    blob_data: Annotated[int, Count("messages that journalctl replaced by [blob data]")] = 0
    pieces_joined: Annotated[int, Count("pieces of cut lines, joined")] = 0
    pieces_unfinished: Annotated[int, Count("cut lines whose end never came, not read")] = 0
    bad_bytes: Annotated[int, Count("lines with bytes that are no UTF-8, replaced")] = 0
    duplicate_lines: Annotated[int, Count("lines that another of the files has too, counted once")] = 0
    units: Annotated[dict[str, int], Count("lines by unit")] = field(default_factory=dict)
    damaged: Annotated[list[str], Count("files, or parts of them, that could not be read")] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def take_off(self, lines: pa.RecordBatch) -> None:
        """Take lines that were met before off the account; they are counted as ``duplicate_lines`` only."""
        self.duplicate_lines += lines.num_rows
        self.lines -= lines.num_rows
        for one in lines.column("unit").drop_null().value_counts().to_pylist():
            left = self.units.get(one["values"], 0) - one["counts"]
            self.units[one["values"]] = left
            if left <= 0:
                del self.units[one["values"]]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which lines of a journal are wanted; nothing set means all.

    The kinds are alternatives: a line that any of them selects is taken. ``boot`` restricts the whole: a boot id of 32 hex
    digits, 8 or more of the first ones, or an offset as journalctl counts (``0`` the newest, ``-1`` the one before, ``1`` the oldest).
    """

    units: tuple[str, ...] = ()
    user_units: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    boot: str | None = None


@dataclass(frozen=True, slots=True)
class JournalPlace:
    """Which journal: the machine's own (nothing set), a directory, files or globs, or a namespace."""

    directory: str | None = None
    files: tuple[str, ...] = ()
    namespace: str | None = None


class Source(Protocol):
    """Anything that lines can be taken from."""

    @property
    def name(self) -> str:
        """What is read, in words: ``journal``, ``run.log``."""

    @property
    def stats(self) -> SourceStats:
        """What was met so far."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the lines in order, in batches of ``LINE_SCHEMA``."""


PathLike = str | os.PathLike[str]


def open_source(
    path: PathLike | BinaryIO,
    *,
    selection: Selection = Selection(),
    window: Window = ALWAYS,
    tz: tzinfo | None = None,
    follow_rotation: bool = False,
    name: str | None = None,
) -> Source:
    """Open one file, folder of journal files, or stream; its first bytes decide how it is read.

    Parameters
    ----------
    path : str, os.PathLike or binary file object
        A journal file, a journal as text (export, JSON or verbose), a log as text (UTF-8, or UTF-16 as Windows writes it), each plain or
        compressed (gzip, zstd, xz, bzip2); a folder of journal files, of which nothing else is read; ``"-"`` or a
        binary file object (it need not be seekable), read as its bytes come.
    selection : Selection
        Which lines are wanted, where the lines say whose they are; ``stats.notes`` says where they do not.
    window : Window
        Which stretch of time; applied to the rows whose ``time_from`` is ``journal`` or ``frame``.
    tz : tzinfo, optional
        The zone of collectors' stamps that name none (journalctl's ``short`` and the like).
    follow_rotation : bool
        Read ``run.log.2.gz`` and ``run.log.1`` before ``run.log``.
    name : str, optional
        What to call it in ``where`` and in messages; the file's name by default.

    Returns
    -------
    Source

    Raises
    ------
    SourceNotFound, SourceDenied, SourceUnsupported, SourceDamaged
        If nothing of it can be read, or all its lines say whose they are and none is of the selection; for text that is known once the
        batches have been taken. Damage to a part is told in ``stats.damaged`` then.
    """
    from ddtree_metrics.sources.open_files import open_any

    return open_any([path], selection=selection, window=window, tz=tz, follow_rotation=follow_rotation, name=name)


def open_sources(
    paths: Iterable[PathLike | BinaryIO],
    *,
    selection: Selection = Selection(),
    window: Window = ALWAYS,
    tz: tzinfo | None = None,
    follow_rotation: bool = False,
) -> Source:
    """Open several files as one source; names may hold ``*``, ``?`` and ``[...]``.

    Files of one rotated set (``run.log.2.gz``, ``run.log.1``, ``run.log``) are read oldest first; journal files are read
    together, in the order of their entries. Otherwise the order is the given one, journals (as files or as export or JSON text) before
    plain text. A file is read once, however often and through
    whichever links it is named; lines that an earlier file has too are left out, and ``stats.notes`` says how many (``twice.py`` has the
    rule). What is missing or cannot be read is named in ``stats.damaged``, and the other files are read; only if
    nothing can be read it is an error. Parameters and errors are those of :func:`open_source`; a stream that is named twice is a
    ``UsageError``.
    """
    from ddtree_metrics.sources.open_files import open_any

    return open_any(list(paths), selection=selection, window=window, tz=tz, follow_rotation=follow_rotation)


def open_journal(
    place: JournalPlace = JournalPlace(),
    selection: Selection = Selection(),
    window: Window = ALWAYS,
    *,
    backend: str | None = None,
) -> Source:
    """Open a journal.

    Parameters
    ----------
    place : JournalPlace
        Which one.
    selection : Selection
        Which entries; a unit comes with journald's "Suppressed" notices for it and with what PID 1 says about it.
    window : Window
        Which stretch of time; both bounds are tested on every entry, as entries need not be in the order of their times.
    backend : {"systemd", "journalctl"}, optional
        Read through systemd-python, or through a ``journalctl`` pipe; by default the first that this machine has.

    Returns
    -------
    Source

    Raises
    ------
    SourceNotFound
        No such journal, or a unit that never logged in it.
    SourceDenied
        Journal files are there and may not be read.
    SourceUnsupported
        Files of a newer format only, or neither systemd-python nor journalctl is installed.
    SourceDamaged
        No file of it can be read.

    Notes
    -----
    libsystemd maps the files, and a file that somebody cuts short while it is read kills whoever maps it (SIGBUS). So a process of its own
    reads them; if it is killed, that is damage, and what came before is kept.
    """
    from ddtree_metrics.sources.journal import JournalSource

    return JournalSource(place, selection, window, backend=backend)


def list_units(place: JournalPlace = JournalPlace()) -> dict[str, int]:
    """Count the entries of each unit of a journal, most first; see :func:`open_journal` for the errors."""
    from ddtree_metrics.sources.journal import count_units

    return count_units(place)
