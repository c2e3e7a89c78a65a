"""Journal files: where they are, and what their headers say before libsystemd is asked to read them.

libsystemd leaves damaged, unreadable and newer files out without a word when it is given a folder, and refuses all of them when it is
given names and one is bad. So each file's header (272 bytes, little-endian; systemd's journal-def.h) is looked at first.
"""

from __future__ import annotations

import glob
import os
import re
import stat
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ddtree_metrics.sources import JournalPlace
from ddtree_metrics.sources.clean import shown as printable

MAGIC = b"LPKSHHRH"
KNOWN_FLAGS = 0b11111
"""Incompatible features that are known: xz, lz4, keyed hash, zstd, compact."""

_HEX32 = re.compile(r"[0-9a-f]{32}")
RUNTIME, PERSISTENT = "/run/log/journal", "/var/log/journal"

MISSING, DENIED, UNSUPPORTED, DAMAGED = "missing", "denied", "unsupported", "damaged"

GROUPS = "become a member of the group systemd-journal or adm (usermod -aG systemd-journal USER, then log in again), or run as root"
REMEDY = {
    MISSING: "check the name",
    DENIED: GROUPS,
    UNSUPPORTED: "read it on the machine that made it, or save it there with journalctl -o export",
    DAMAGED: "copy it again from the machine, or leave it out",
}
"""What to do about a journal file that cannot be read."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of a readable journal file says."""

    path: str
    sequence: bytes
    first: int
    last: int
    entries: int
    first_us: int
    last_us: int
    online: bool
    size: int
    file: bytes = b""


@dataclass(slots=True)
class Files:
    """Journal files, sorted into those that can be read and those that cannot.

    Attributes
    ----------
    good : list of Header
    bad : list of (kind, path, text)
        ``kind`` is ``missing``, ``denied``, ``unsupported`` or ``damaged``.
    """

    good: list[Header] = field(default_factory=list)
    bad: list[tuple[str, str, str]] = field(default_factory=list)

    def told(self) -> list[str]:
        """Say of each file that cannot be read why, and what to do."""
        return [f"{text}: {REMEDY[kind]}" for kind, _, text in self.bad]

    def reasons(self) -> str:
        """Say the same in one sentence, what to do once a kind."""
        made = []
        for kind, remedy in REMEDY.items():
            texts = [text for k, _, text in self.bad if k == kind]
            if texts:
                made.append("; ".join(texts[:5]) + (f" and {len(texts) - 5} more" if len(texts) > 5 else "") + f": {remedy}")
        return "; ".join(made)

    def add(self, path: str, shown: str | None = None) -> None:
        """Look at a file's header."""
        shown = shown or printable(path)
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                self.bad.append((DAMAGED, path, f"{shown}: is no regular file"))
                return
            with open(path, "rb") as file:  # noqa: PTH123
                size = os.fstat(file.fileno()).st_size
                head = file.read(272)
        except FileNotFoundError:
            self.bad.append((MISSING, path, f"{shown}: no such file"))
            return
        except PermissionError:
            self.bad.append((DENIED, path, f"{shown}: may not be read by this user"))
            return
        except OSError as error:
            self.bad.append((DAMAGED, path, f"{shown}: cannot be read ({error.strerror or error})"))
            return
        made = read_header(path, head, size)
        if isinstance(made, Header):
            self.good.append(made)
        else:
            self.bad.append((made[0], path, f"{shown}: {made[1]}"))


def read_header(path: str, head: bytes, size: int) -> Header | tuple[str, str]:
    """Read a journal file's header.

    Returns
    -------
    Header, or (kind, reason) where the file cannot be read.
    """
    if size == 0:
        return DAMAGED, "is empty (0 bytes)"
    if head[:8] != MAGIC:
        return DAMAGED, "is no journal file, or its beginning was overwritten"
    if len(head) < 208:
        return DAMAGED, f"was cut inside its header ({size} bytes)"
    flags = struct.unpack_from("<I", head, 12)[0]
    if flags & ~KNOWN_FLAGS:
        return UNSUPPORTED, f"was made by a newer systemd (unsupported feature flags {flags & ~KNOWN_FLAGS:#x})"
    header_size, arena = struct.unpack_from("<QQ", head, 88)
    if size < header_size + arena:
        return DAMAGED, f"was cut to {size} of {header_size + arena} bytes"
    entries, last, first = struct.unpack_from("<QQQ", head, 152)
    first_us, last_us = struct.unpack_from("<QQ", head, 184)
    return Header(path, head[72:88], first, last, entries, first_us, last_us, head[16] == 1, size, head[24:40])


def journal_files(directory: str, namespace: str | None = None, machine: str | None = None) -> list[str]:
    """List the journal files of a folder as libsystemd does: in it, and in subfolders named by a machine id.

    Parameters
    ----------
    directory : str
        The folder.
    namespace : str, optional
        Subfolders of this namespace (``<machine id>.<namespace>``) instead of the main ones, ``*`` for all.
    machine : str, optional
        Only the subfolder of this machine id.

    Raises
    ------
    OSError
        If the folder itself cannot be listed.
    """
    made = []
    for entry in sorted(os.scandir(directory), key=lambda e: e.name):
        if entry.name.endswith((".journal", ".journal~")) and namespace is None:
            made.append(entry.path)
            continue
        head, _, tail = entry.name.partition(".")
        if not _HEX32.fullmatch(head) or (machine is not None and head != machine):
            continue
        if (tail or None) == namespace or namespace == "*":
            try:
                if is_kind(entry.is_dir):
                    inner = sorted(e.path for e in os.scandir(entry.path) if e.name.endswith((".journal", ".journal~")))
                    made += inner
            except PermissionError:
                made.append(entry.path)  # opening it tells that it may not be read
    if not made and namespace not in (None, "*"):
        # a folder of a namespace itself, or one that somebody copied
        made = [e.path for e in sorted(os.scandir(directory), key=lambda e: e.name) if e.name.endswith((".journal", ".journal~"))]
    return made


def is_kind(ask: Callable[[], bool]) -> bool:
    """Ask an entry of a folder what it is; a link that leads to itself is nothing."""
    try:
        return ask()
    except PermissionError:
        raise
    except OSError:
        return False


def machine_id() -> str | None:
    """Return this machine's id, if it has one."""
    try:
        text = Path("/etc/machine-id").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if _HEX32.fullmatch(text) else None


def find(place: JournalPlace, names: dict[str, str] | None = None) -> tuple[Files, list[str]]:
    """Find the files of a journal and look at their headers.

    Parameters
    ----------
    place : JournalPlace
        Which journal.
    names : dict of str to str, optional
        What to call files in messages.

    Returns
    -------
    files : Files
    looked : list of str
        The folders or patterns that were looked at.
    """
    files = Files()
    paths: list[str] = []
    looked: list[str] = []
    if place.files:
        for pattern in place.files:
            looked.append(pattern)
            found = [pattern] if os.path.lexists(pattern) else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
            if not found:
                files.bad.append((MISSING, pattern, f"{printable(pattern)}: no such file"))
            paths += found
    folders: Iterable[str] = ()
    machine = None
    if place.directory is not None:
        folders = (place.directory,)
    elif not place.files:
        folders = (RUNTIME, PERSISTENT)
        machine = machine_id()
    for folder in folders:
        looked.append(folder)
        try:
            paths += journal_files(folder, place.namespace, machine)
        except FileNotFoundError:
            if place.directory is not None:
                files.bad.append((MISSING, folder, f"{printable(folder)}: no such folder"))
        except PermissionError:
            files.bad.append((DENIED, folder, f"{printable(folder)}: may not be read by this user"))
        except NotADirectoryError:
            paths.append(folder)
        except OSError as error:
            files.bad.append((DAMAGED, folder, f"{printable(folder)}: cannot be read ({error.strerror})"))
    for path in dict.fromkeys(paths):
        files.add(path, (names or {}).get(path))
    return files, looked


def holes(good: Iterable[Header]) -> list[str]:
    """Tell where entries are missing between files, from the sequence numbers of each sequence.

    Files of one sequence share its numbers (``system.journal`` and ``user-1000.journal``), so they are taken together.
    """
    series: dict[bytes, list[Header]] = {}
    for header in good:
        if header.entries:
            series.setdefault(header.sequence, []).append(header)
    made = []
    for some in series.values():
        some.sort(key=lambda h: (h.first, h.last))
        reached, before = some[0].last, some[0]
        for header in some[1:]:
            if header.first > reached + 1:
                names = f"{printable(Path(before.path).name)} and {printable(Path(header.path).name)}"
                made.append(
                    f"{header.first - reached - 1} entries are missing between {names}: a file in between was removed, or cannot be read"
                )
            if header.last > reached:
                reached, before = header.last, header
    return made
