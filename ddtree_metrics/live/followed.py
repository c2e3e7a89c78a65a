"""Lines as they are written: a journal, files that grow and are rotated, a pipe. What comes within a second is read at once."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ddtree_metrics.errors import SourceDenied, SourceError, SourceUnsupported, UsageError
from ddtree_metrics.opening import ReadOptions
from ddtree_metrics.sources.journalctl import follow_command

GATHER_S = 0.5
"""So long is waited for more lines before those that are there are read: each batch has a fixed cost."""

TAIL_BYTES = 64 << 20
"""A file that is longer is followed from so many bytes before its end."""


class Gathered:
    """A stream whose bytes are taken in portions; without a descriptor of its own, so that nobody reads past it.

    Parameters
    ----------
    fd : int
        What is read.
    end : callable
        Called when it is closed.
    ended : callable
        Called when there is no more to come, with whether it was closed; may raise what that means.
    """

    def __init__(self, fd: int, end: Callable[[], None] = lambda: None, ended: Callable[[bool], None] = lambda closed: None) -> None:
        self._fd, self._end, self._ended = fd, end, ended
        self._closed = self._over = False
        self.live = True

    def read1(self, size: int = -1) -> bytes:
        """Wait for bytes, then a moment for more; empty at the end, or when it was stopped."""
        size = size if size > 0 else 1 << 20
        parts: list[bytes] = []
        taken, until = 0, 0.0
        while taken < size and not self._over:
            wait = None if not parts else max(until - time.monotonic(), 0.0)
            if not select.select([self._fd], [], [], wait)[0]:
                break
            data = os.read(self._fd, min(1 << 20, size - taken))
            if not data:
                if not parts and not self._over:
                    self._over = True
                    self._ended(self._closed)
                break
            until = until or time.monotonic() + GATHER_S
            parts.append(data)
            taken += len(data)
        return b"".join(parts)

    def read(self, size: int = -1) -> bytes:
        """Read as ``read1`` does."""
        return self.read1(size)

    def close(self) -> None:
        """Let go of what is read."""
        self._closed = True
        self._end()


def follow_stdin() -> Gathered:
    """Follow standard input."""
    return Gathered(sys.stdin.fileno())


def follow_files(paths: Sequence[str]) -> Gathered:
    """Follow files by name with ``tail -F``: they may grow, be cut, be rotated, and not be there yet."""
    folder = next((path for path in paths if Path(path).is_dir()), None)
    if folder is not None:
        raise UsageError(f"{folder} is a folder; watch follows log files, or a journal (-D {folder})")
    denied = next((path for path in paths if Path(path).exists() and not os.access(path, os.R_OK)), None)
    if denied is not None:
        raise SourceDenied(f"{denied} may not be read by this user: give it read permission, or run as its owner")
    long = [path for path in paths if Path(path).exists() and Path(path).stat().st_size > TAIL_BYTES]
    begin = ("-c", f"{TAIL_BYTES}") if long else ("-n", "+1")
    return _child([_program("tail", "coreutils"), *begin, "-q", "-F", "--", *paths])


def follow_journal(options: ReadOptions, since_us: int) -> Gathered:
    """Follow a journal with ``journalctl -f``, which goes on through rotation, vacuum and restarts of what it reads."""
    _program("journalctl", "systemd")
    return _child(follow_command(since_us, options.place))


def _program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SourceUnsupported(f"{name} is not installed: apt-get install {package}; or pipe lines in: … | ddtree-logs watch -")
    return found


def _child(command: Sequence[str]) -> Gathered:
    said = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the child lives)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=said,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        start_new_session=True,  # Ctrl-C is for this process, which ends the other
    )
    out = child.stdout
    assert out is not None

    def end() -> None:
        if child.poll() is None:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(2)
            child.kill()
            child.wait()

    def ended(closed: bool) -> None:
        code = child.wait()
        out.close()
        with said:
            said.seek(0)
            if closed:
                return
            words = " ".join(said.read().decode("utf-8", "replace").split())[-300:]
        kind = SourceDenied if "ermission" in words else SourceError
        raise kind(f"{Path(command[0]).name} ended (exit code {code}){': ' + words if words else ''}")

    return Gathered(out.fileno(), end, ended)
