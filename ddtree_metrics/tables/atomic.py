"""Where an output goes: stdout, a device, or a file that is whole or not there.

A file is written beside its place under a name that no reader picks up (``.NAME.XXXXXXXX.partial``), brought to the disk, and moved
into place when it is complete. Giving up removes it and leaves the old file as it was. What a process left that was killed is removed by
the next one that writes into that folder: a file or staging folder of that name whose lock nobody holds.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ddtree_metrics.errors import OutputError

fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None

_PARTIAL = re.compile(r"\..{1,200}\.[0-9a-f]{8}\.partial", re.S)
_STAGED = re.compile(r"[0-9a-f]{8}")
_PATIENCE_S = 1.0


def lock(number: int) -> bool:
    """Take the lock of an open file or folder; whoever dies lets go of it. Return whether it is ours."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def swept(folder: Path, *, staging: bool = False) -> Iterator[None]:
    """Remove what dead processes of ours left in a folder, and keep others from doing so until what is made in the block is locked.

    Parameters
    ----------
    folder : Path
        Where something is about to be written.
    staging : bool
        Whether it is ``.staging-ROOT``, whose folders are the left-overs; else partial files are.
    """
    try:
        number = os.open(folder, os.O_RDONLY)
    except OSError:  # it may be written to all the same
        yield
        return
    try:
        until = time.monotonic() + _PATIENCE_S
        while not (ours := lock(number)) and fcntl is not None and time.monotonic() < until:
            time.sleep(0.01)
        if ours:
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in [e for e in entries if (_STAGED if staging else _PARTIAL).fullmatch(e.name)]:
                    with contextlib.suppress(OSError):
                        if not entry.is_symlink() and entry.is_dir() == staging:
                            _remove_unlocked(Path(entry.path), staging)
        yield
    finally:
        os.close(number)


def _remove_unlocked(path: Path, folder: bool) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        if not lock(number):
            return
        if folder:
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    finally:
        os.close(number)


class Destination:
    """Somewhere to put a file; doubles as the binary stream that the formats write to."""

    final: Path | None = None
    name = "stdout"
    closed = False

    def __init__(self) -> None:
        self._stream: BinaryIO | None = None
        self._at = 0

    def write(self, data: Any) -> int:
        """Take the next bytes; after abort they are dropped."""
        if self._stream is None:  # given up: a format may still want to write its end
            return memoryview(data).nbytes
        self._stream.write(data)
        size = memoryview(data).nbytes
        self._at += size
        return size

    def tell(self) -> int:
        """Return how many bytes were taken."""
        return self._at

    def flush(self) -> None:
        """Hand on what is buffered."""
        if self._stream is not None:
            self._stream.flush()

    def close(self) -> None:
        """Do nothing: the place is closed by finish and abort."""

    def readable(self) -> bool:
        """Say that nothing can be read back."""
        return False

    def writable(self) -> bool:
        """Say that it can be written to."""
        return True

    def seekable(self) -> bool:
        """Say that it goes on at its end only."""
        return False

    def finish(self) -> None:
        """Bring everything to the disk; the file is not in its place yet."""
        self.flush()

    def commit(self) -> None:
        """Move the finished file into its place."""
        self._stream = None

    def abort(self) -> None:
        """Give up, and leave nothing behind."""
        self._stream = None


class Stdout(Destination):
    """The standard output; binary formats are refused on a terminal."""

    def __init__(self, format: str) -> None:
        super().__init__()
        if format in ("parquet", "arrow") and sys.stdout.isatty():
            raise OutputError(
                f"{format} is binary and stdout is a terminal; send it into a file or a pipe, or take csv or jsonl", usage=True
            )
        sys.stdout.flush()
        self._stream = sys.stdout.buffer


class Beside(Destination):
    """A file under a passing name in the folder of its place; a device or a pipe is written to directly."""

    def __init__(self, path: Path, force: bool, shown: str | None = None) -> None:
        super().__init__()
        self.name = shown or str(path)
        self.final = Path(os.path.realpath(path))  # through a link, so that the link stays
        self._force = force
        self._passing: Path | None = None
        refuse_existing(path, force)
        mode = None
        try:
            found = path.stat()
        except OSError:
            pass
        else:
            if not stat.S_ISREG(found.st_mode):
                try:
                    self._stream = path.open("wb")  # not its real path: that of a pipe is none
                except OSError as error:
                    raise told(error, self.name) from error
                return
            mode = stat.S_IMODE(found.st_mode)
        folder = self.final.parent
        if not folder.is_dir():
            raise OutputError(f"cannot write {path}: there is no folder {folder}; make it first, or write elsewhere")
        # no longer in bytes than a name may be
        stem = os.fsdecode(os.fsencode(self.final.name)[:200])
        passing = folder / f".{stem}.{secrets.token_hex(4)}.partial"
        try:
            with swept(folder):
                number = os.open(passing, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
                lock(number)
        except OSError as error:
            raise told(error, self.name) from error
        self._passing = passing
        self._stream = os.fdopen(number, "wb", buffering=1 << 20)
        if mode is not None:
            with contextlib.suppress(OSError):
                os.fchmod(number, mode)

    @property
    def body(self) -> Path | None:
        """The file that is being written, where there is one."""
        return self._passing

    def finish(self) -> None:
        """Bring everything to the disk; the file is not in its place yet."""
        if self._stream is None:
            return
        self._stream.flush()
        if self._passing is None:
            self._stream.close()
            self._stream = None
        else:  # it stays open, and thereby locked, until it is in its place
            os.fsync(self._stream.fileno())

    def commit(self) -> None:
        """Move the finished file into its place; without force, never over another one."""
        if self._passing is None or self.final is None:
            return
        if self._force:
            self._passing.replace(self.final)
        else:
            try:
                os.link(self._passing, self.final)  # fails where a file has come up in the meantime
            except FileExistsError:
                raise OutputError(
                    f"{self.name} has come into being while it was written, and was left alone; choose another name"
                ) from None
            except OSError:  # no hard links on this file system
                refuse_existing(self.final, False)
                self._passing.replace(self.final)
            else:
                self._passing.unlink()
        self._passing = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        sync_folder(self.final.parent)

    def abort(self) -> None:
        """Give up, and leave nothing behind."""
        stream, self._stream = self._stream, None
        passing, self._passing = self._passing, None
        if passing is not None:
            with contextlib.suppress(OSError):
                passing.unlink()
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.close()

    def __del__(self) -> None:
        """Leave nothing where an interruption came before anybody could abort."""
        if getattr(self, "_passing", None) is not None:
            self.abort()


def write_whole(path: Path, data: bytes, *, force: bool) -> None:
    """Write a small file whole: afterwards it is there, or the old one still is.

    Raises
    ------
    OutputError
        If it exists and ``force`` is not given, or it cannot be written.
    """
    place = Beside(path, force)
    try:
        place.write(data)
        place.finish()
        place.commit()
    except BaseException as error:
        place.abort()
        if isinstance(error, OSError):
            raise told(error, str(path)) from error
        raise


def sync_folder(folder: Path) -> None:
    """Bring the entries of a folder to the disk, where the system can."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def refuse_existing(path: Path, force: bool) -> None:
    """Refuse a folder, and a file that exists unless it may be replaced."""
    try:
        folder, file = path.is_dir(), path.is_file()
    except OSError as error:
        raise told(error, str(path)) from error
    if folder:
        raise OutputError(f"{path} is a folder; write {path}{os.sep} to put all tables into it, or give the name of a file", usage=True)
    if file and not force:
        raise OutputError(f"{path} exists already; give another name, or force to replace it", usage=True)


def make_folder(folder: Path) -> list[Path]:
    """Make a folder with its parents, and return those that were made."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    made: list[Path] = []
    try:
        for each in reversed(missing):
            each.mkdir()
            made.append(each)
        if not folder.is_dir():
            raise OutputError(f"{folder} is a file, not a folder; choose another name", usage=True)
    except OSError as error:
        for each in reversed(made):
            with contextlib.suppress(OSError):
                each.rmdir()
        raise told(error, str(folder)) from error
    return made


def told(error: OSError, name: str) -> OutputError:
    """Say in one sentence why a file could not be written."""
    return OutputError(f"cannot write {name}: {why_not(error)}; nothing was left behind")


def why_not(error: OSError) -> str:
    """Say why the system refused, and what to do."""
    remedies = {
        errno.ENOSPC: "no space is left on the device; make room, or write elsewhere",
        errno.EDQUOT: "the quota is used up; make room, or write elsewhere",
        errno.EFBIG: "the file would be larger than is allowed here; see ulimit -f",
        errno.EACCES: "the folder may not be written to by this user; choose another",
        errno.EPERM: "the folder may not be changed; choose another",
        errno.EROFS: "the file system is read-only; choose another folder",
        errno.ENOTDIR: "a part of its path is a file, not a folder",
        errno.ENAMETOOLONG: "the name is too long",
        errno.EMFILE: "too many files are open; see ulimit -n",
        errno.ENFILE: "too many files are open on this machine",
        errno.EIO: "the device fails",
    }
    return remedies.get(error.errno or 0) or error.strerror or str(error)
