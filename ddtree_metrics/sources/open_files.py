"""Names of files, folders and streams become sources: globs, rotated sets, journal files together."""

from __future__ import annotations

import contextlib
import glob
import os
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import tzinfo
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from ddtree_metrics.errors import SourceDenied, SourceError, SourceNotFound, UsageError
from ddtree_metrics.sources import JournalPlace, PathLike, Selection, Source, SourceStats
from ddtree_metrics.sources.byte_streams import Bytes, Unpacked, compression
from ddtree_metrics.sources.clean import shown
from ddtree_metrics.sources.journal_files import GROUPS, is_kind, journal_files
from ddtree_metrics.sources.rotated import rotation
from ddtree_metrics.sources.select import Roll
from ddtree_metrics.sources.text_lines import JOURNAL_MAGIC, TextSource, has_boot_clock, written_us
from ddtree_metrics.sources.twice import Twice
from ddtree_metrics.times import Window


class Chain:
    """Several sources, one after the other, with one account.

    Parameters
    ----------
    name : str
    parts : sequence of Source
        What can be opened.
    stats : SourceStats
        The account of all parts.
    roll : Roll
        Where the parts keep whose lines they met.
    failed : sequence of SourceError
        What could not be opened.
    """

    def __init__(self, name: str, parts: Sequence[Any], stats: SourceStats, roll: Roll, failed: Sequence[SourceError] = ()) -> None:
        self.name = name
        self.stats = stats
        self._parts = parts
        self._roll = roll
        self._failed = list(failed)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the lines of all parts, in their order, each once; a part that cannot be read is named in ``stats.damaged``.

        Raises
        ------
        SourceError
            If no part can be read, or none has a line of the selection.
        """
        readable = False
        self.stats.damaged += map(str, self._failed)
        twice = Twice(self.stats) if len(self._parts) > 1 else None
        # where two have the same line, that of the better clock is the one to keep
        parts = self._parts if twice is None else sorted(self._parts, key=lambda part: not part.has_boot_clock)
        for number, part in enumerate(parts, start=1):
            if twice is not None:
                twice.begin(part.name)
            try:
                for batch in part.batches():
                    readable = True
                    once = batch if twice is None else twice.feed(batch, last=number == len(parts))
                    if once.num_rows:
                        yield once
                readable = True
            except SourceError as error:
                self._failed.append(error)
                self.stats.damaged.append(str(error))
            if twice is not None:
                twice.finish()
        if self._failed and not readable:
            raise _all_of(self._failed)
        self._roll.check(self.name, self.stats)


def _all_of(errors: Sequence[SourceError]) -> SourceError:
    """Make one error of several, of the kind of the first."""
    return errors[0] if len(errors) == 1 else type(errors[0])("; ".join(map(str, errors)))


class FileSource:
    """A file that is opened when its lines are wanted, so that a long list of files does not hold as many open."""

    def __init__(self, path: str, name: str, stats: SourceStats, **how: Any) -> None:
        self.path, self.name, self.stats = path, name, stats
        self._how = how

    @property
    def has_boot_clock(self) -> bool:
        """Whether it is a journal that was saved, by its first bytes; False if it cannot be opened."""
        try:
            return Path(self.path).is_file() and has_boot_clock(open_file(self.path))
        except SourceError:
            return False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the lines in order."""
        file = open_file(self.path)
        yield from TextSource(file, self.name, stats=self.stats, written_us=written_us(file), close=True, **self._how).batches()


FIFO_PATIENCE = 60.0
"""Seconds to wait for somebody who writes to a named pipe."""


def open_file(path: str) -> BinaryIO:
    """Open a file for reading; what goes wrong becomes a SourceError that says what to do."""
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):  # noqa: PTH116
            return _open_fifo(path)
        return cast("BinaryIO", open(path, "rb"))  # noqa: PTH123 - closed by the source
    except FileNotFoundError:
        raise SourceNotFound(f"no file {path!r}; check the name, or use a pattern in quotes") from None
    except PermissionError:
        raise SourceDenied(f"{path!r} may not be read by this user; run as its owner, or as a member of its group") from None
    except IsADirectoryError:
        raise SourceNotFound(f"{path!r} is a folder; name the log files in it") from None
    except (OSError, ValueError) as error:
        raise SourceError(f"{path!r} cannot be opened: {getattr(error, 'strerror', None) or error}") from error


def _open_fifo(path: str) -> BinaryIO:
    """Open a named pipe, which waits until somebody opens its other end."""
    opened: list[BinaryIO | OSError] = []

    def wait() -> None:
        try:
            opened.append(cast("BinaryIO", open(path, "rb")))  # noqa: PTH123, SIM115
        except OSError as error:
            opened.append(error)

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    waiter.join(FIFO_PATIENCE)
    if not opened:
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # lets the thread go
        raise SourceError(f"nobody wrote to the named pipe {path!r} within {FIFO_PATIENCE:g} seconds; start the writer, then read it")
    if isinstance(opened[0], OSError):
        raise opened[0]
    return opened[0]


def open_any(
    paths: Sequence[PathLike | BinaryIO],
    *,
    selection: Selection,
    window: Window,
    tz: tzinfo | None,
    follow_rotation: bool = False,
    name: str | None = None,
) -> Source:
    """Make one source of files, patterns, folders of journal files and streams, see :func:`ddtree_metrics.sources.open_sources`."""
    if not paths:
        raise SourceNotFound("no file was named; name one, or read the journal")
    stats = SourceStats()
    items, failed = _expand(paths, follow_rotation, stats)
    labels = _labels(items)
    title = name or ("nothing" if not labels else labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more")
    alone = len(items) == 1 and not failed
    roll = Roll(selection)
    how: dict[str, Any] = {"selection": selection, "window": window, "tz": tz, "roll": None if alone else roll}
    parts: list[Any] = []
    journals: list[str] = []
    place_of_journals = 0
    for item, label in zip(items, labels, strict=True):
        if not isinstance(item, str):
            parts.append(TextSource(item, name or label, stats=stats, **how))
            continue
        try:
            some = _folder(item, stats) if os.path.isdir(item) else [item] if _is_journal(item) else []  # noqa: PTH112
        except SourceError as error:
            failed.append(error)
            continue
        if not some:
            parts.append(FileSource(item, name or label, stats, **how))
        elif not journals:
            place_of_journals = len(parts)
        journals += some
    if journals:
        from ddtree_metrics.sources.journal import JournalSource

        folder = items[0] if alone and Path(items[0]).is_dir() else None
        place = JournalPlace(directory=folder) if folder else JournalPlace(files=tuple(map(glob.escape, _once(journals, stats))))
        try:
            parts.insert(place_of_journals, JournalSource(place, selection, window, stats=stats))
            roll.found = True
        except SourceError as error:
            if alone:
                raise
            if isinstance(error, SourceNotFound):  # the files are there: what was not found is the selection
                roll.absent.append(str(error))
            else:
                failed.append(error)
    if alone and parts:
        return cast("Source", parts[0])
    if failed and not parts:
        raise _all_of(failed)
    return Chain(title, parts, stats, roll, failed)


def sorted_out(paths: Sequence[PathLike | BinaryIO], stats: SourceStats) -> tuple[list[str], list[str], list[Any], list[SourceError]]:
    """Expand names, and tell apart journal files, other files and streams; also return what is not there, or denied."""
    items, failed = _expand(paths, False, stats)
    journals: list[str] = []
    files: list[str] = []
    streams: list[Any] = []
    for item in items:
        try:
            if not isinstance(item, str):
                streams.append(item)
            elif os.path.isdir(item):  # noqa: PTH112
                journals += _folder(item, stats)
            elif _is_pipe(item):
                streams.append(open_file(item))
            else:
                (journals if _is_journal(item) else files).append(item)
        except SourceError as error:
            failed.append(error)
    return _once(journals, stats), files, streams, failed


def head_of(path: str, size: int) -> bytes:
    """Return the first bytes of a file as they are once it is unpacked."""
    stats = SourceStats()
    with open_file(path) as file:
        packed: Bytes | Unpacked = Bytes(file, path, stats)
        while (kind := compression(packed.peek(64))) is not None:
            packed = Unpacked(packed, kind, stats)
        head = b""
        while len(head) < size and (more := packed.read()):
            head += more
    return head[:size]


def _labels(items: Sequence[Any]) -> list[str]:
    """Name files in ``where``: by their own name, or with the folder where two of them would be the same."""
    short = ["stdin" if not isinstance(i, str) else shown(Path(i).name) for i in items]
    for at, item in enumerate(items):
        if not isinstance(item, str):
            inner = getattr(item, "name", None)
            if isinstance(inner, str) and inner not in ("", "<stdin>"):
                short[at] = shown(Path(inner).name)
    return [shown(item) if isinstance(item, str) and short.count(s) > 1 else s for item, s in zip(items, short, strict=True)]


def _folder(path: str, stats: SourceStats) -> list[str]:
    """Return the journal files of a folder, as libsystemd finds them; nothing else in it is read."""
    try:
        found = journal_files(path)
        others = sorted(
            shown(e.name) for e in os.scandir(path) if is_kind(e.is_file) and not e.name.startswith(".") and e.path not in found
        )
    except PermissionError:
        raise SourceDenied(f"the folder {path!r} may not be read by this user; {GROUPS}") from None
    except OSError as error:
        raise SourceError(f"the folder {path!r} cannot be read: {error.strerror}") from error
    if not found:
        example = others[0] if others else "run.log"
        pattern = f"*{Path(example).suffix or '.log'}"
        raise SourceNotFound(
            f"{path!r} is a folder without journal files; name the log files in it, such as {str(Path(path) / example)!r}, or give a "
            f"pattern in quotes, such as {str(Path(path) / pattern)!r}"
        )
    if others:
        some = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        stats.notes.append(f"{shown(path)}: only its journal files were read; to read its other files ({some}) name them")
    return found


def _is_journal(path: str) -> bool:
    """Say whether a file is to be read as a journal file: by its first bytes, or by its name if they are nothing else."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return False  # the error is told where it is opened
    if not stat.S_ISREG(status.st_mode):
        return False
    named = path.endswith((".journal", ".journal~"))
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            head = file.read(64)
    except OSError:
        return named
    if head.startswith(JOURNAL_MAGIC):
        return True
    return (
        named
        and not (head.strip() and all(b >= 32 or b in (9, 10, 13) for b in head))
        and not head.startswith((b"\x1f\x8b", b"\x28\xb5", b"\xfd7z"))
    )


def _expand(paths: Sequence[PathLike | BinaryIO], follow_rotation: bool, stats: SourceStats) -> tuple[list[Any], list[SourceError]]:
    """Resolve patterns, bring rotated sets into order, and open standard input; also return what is not there, or denied."""
    made: list[Any] = []
    failed: list[SourceError] = []
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            made.append(path)
            continue
        text = os.fspath(path)
        if text == "-":
            made.append(sys.stdin.buffer)
        elif any(c in text for c in "*?[") and not os.path.lexists(text):
            found = sorted(glob.glob(text, recursive=True))  # noqa: PTH207
            files = [name for name in found if not os.path.isdir(name)] or found  # noqa: PTH112
            pipes = [name for name in files if _is_pipe(name)]
            if pipes:
                stats.notes.append(f"named pipes and devices are read only if named without a pattern: {', '.join(map(shown, pipes[:4]))}")
                files = [name for name in files if name not in pipes]
            elif not files:
                failed.append(SourceNotFound(f"no file matches {text!r}; check the pattern"))
            made += files
        elif (error := _unreachable(text)) is not None:
            failed.append(error)
        else:
            made += [*_older(text), text] if follow_rotation else [text]
    readable = []
    for item in _once(made, stats):
        if isinstance(item, str) and Path(item).is_file() and not os.access(item, os.R_OK) and not _is_journal(item):
            failed.append(SourceDenied(f"{item!r} may not be read by this user; run as its owner, or as a member of its group"))
        else:
            readable.append(item)
    return in_order(readable), failed


def _is_pipe(path: str) -> bool:
    """Say whether a name is that of a named pipe or a device, which can make a reader wait for ever."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _unreachable(path: str) -> SourceError | None:
    """Say why a name leads to nothing, if so."""
    try:
        os.lstat(path)
    except PermissionError:
        return SourceDenied(f"{path!r} may not be read by this user, for a folder on the way to it may not be entered; run as its owner")
    except (OSError, ValueError):
        return SourceNotFound(f"no file {path!r}; check the name, or use a pattern in quotes")
    return None


def _once(items: Sequence[Any], stats: SourceStats) -> list[Any]:
    """Leave out files that were named before, through whichever path; refuse streams that were."""
    seen: dict[Any, Any] = {}
    again: list[str] = []
    for item in items:
        key, is_file = _identity(item)
        if key not in seen:
            seen[key] = item
            continue
        before = seen[key]
        if not is_file or (item is before and not isinstance(item, str)):
            raise UsageError(f"{_shown(item)} is named twice, and a stream can be read only once; name it once")
        label, other = _shown(item), _shown(before)
        again.append(label if os.path.abspath(label) == os.path.abspath(other) else f"{label} (the same file as {other})")  # noqa: PTH100
    if again:
        more = f" and {len(again) - 4} more" if len(again) > 4 else ""
        stats.notes.append(f"named more than once, and read once: {', '.join(again[:4])}{more}")
    return list(seen.values())


def _identity(item: Any) -> tuple[Any, bool]:
    """Return what tells a file or a stream from all others, and whether it is a file or a folder."""
    if item == os.devnull:
        return object(), True
    try:
        status = os.stat(item if isinstance(item, str) else item.fileno())  # noqa: PTH116
    except (OSError, ValueError, AttributeError):
        return (item, True) if isinstance(item, str) else (id(item), False)
    return (status.st_dev, status.st_ino), stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)


def _shown(item: Any) -> str:
    name = shown(item) if isinstance(item, str) else getattr(item, "name", None)
    return "standard input" if name in ("<stdin>", "-", 0, "/dev/stdin") else name if isinstance(name, str) else "a stream"


def _older(path: str) -> list[str]:
    """Find the rotated files of a log, such as ``run.log.1`` and ``run.log.2.gz``."""
    folder = Path(path).parent
    base = Path(path).name
    return [str(folder / name) for name in sorted(p.name for p in folder.iterdir()) if name != base and rotation(name)[0] == base]


def in_order(items: list[Any]) -> list[Any]:
    """Bring the files of each rotated set into the order of time, where the set's first member stands."""
    groups: dict[Any, list[Any]] = {}
    for at, item in enumerate(items):
        key: Any = at
        if isinstance(item, str):
            base, _ = rotation(Path(item).name)
            key = (str(Path(item).parent), base)
        groups.setdefault(key, []).append(item)
    made = []
    for members in groups.values():
        made += sorted(members, key=lambda m: rotation(Path(m).name)[1]) if len(members) > 1 else members
    return made
