"""libsystemd in a process of its own, so that a journal that is cut short while it is read costs its rest and nothing else."""

from __future__ import annotations

import contextlib
import errno
import marshal
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ddtree_metrics.errors import SourceUnsupported
from ddtree_metrics.sources import journal_child
from ddtree_metrics.sources import journal_fields as f
from ddtree_metrics.sources.entries import EntryRows
from ddtree_metrics.sources.select import Entrance

LONG_LINE = 49_152
"""journald's usual LineMax: only messages at least as long can be pieces, unless the journal shows shorter ones."""


class ReaderKilled(OSError):
    """The process that read the journal was killed by a signal."""

    def __init__(self, number: int) -> None:
        name = signal.Signals(-number).name if number < 0 else f"exit code {number}"
        why = "a file of it was cut short or overwritten while it was read" if -number == signal.SIGBUS else "its reader was killed"
        super().__init__(errno.EIO, f"{why} ({name})")


class LowLevel:
    """libsystemd's calls; see ``journal_child.Journal`` for what each does.

    Parameters
    ----------
    why_not : str
        Why systemd-python cannot be used here; empty if it can, or need not.
    library : str or None
        The file of the compiled reader; systemd-python is used without.
    """

    def __init__(self, why_not: str, library: str | None = None) -> None:
        if why_not and library is None:
            raise SourceUnsupported(why_not)
        self._library = library
        self._child: subprocess.Popen[bytes] | None = None

    def _start(self) -> subprocess.Popen[bytes]:
        # Isolated: a script's own folder would be searched for modules first, and has some with names of the standard library's.
        command = [sys.executable, "-I", str(Path(journal_child.__file__))]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert child.stdin is not None
        marshal.dump(([p for p in sys.path if p], self._library), child.stdin)
        return child

    def _answers(self, *command: Any) -> Iterator[Any]:
        """Send a command and yield what comes back; where no process can be started, do it in this one."""
        try:
            self._child = child = self._child or self._start()
        except OSError:
            yield from journal_child.answers(journal_child.find(self._library), *command)
            return
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            marshal.dump(command, child.stdin)
            child.stdin.flush()
        while True:
            try:
                answer = marshal.load(child.stdout)
            except (EOFError, ValueError, TypeError):
                code = child.wait()
                self.close()
                raise ReaderKilled(code) from None
            yield answer

    def _ask(self, *command: Any) -> Any:
        answer = next(self._answers(*command))
        return _told(answer)

    def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            for pipe in (child.stdin, child.stdout):
                with contextlib.suppress(BrokenPipeError):
                    if pipe is not None:
                        pipe.close()
            child.wait()

    def __del__(self) -> None:
        self.close()

    def check(self, files: tuple[str, ...]) -> OSError | None:
        """Open files, to see whether they can be read."""
        try:
            self._ask("check", list(files))
        except OSError as error:
            return error
        return None

    def unique(self, files: tuple[str, ...], name: str) -> set[str]:
        """Return the values that a field has in the files."""
        return set(self._ask("unique", list(files), name))

    def boots(self, files: tuple[str, ...]) -> list[str]:
        """Return the boots in the files, oldest first."""
        return list(self._ask("boots", list(files)))

    def count(self, files: tuple[str, ...], match: str) -> int:
        """Count the entries with a match."""
        return int(self._ask("count", list(files), match))

    def batches(self, place: Entrance, rows: EntryRows) -> Iterator[pa.RecordBatch]:
        """Read the matching entries into rows, and yield batches of them; what came before the process was killed is kept."""
        groups = [list(group) for group in place.groups]
        writers = _Writers(rows)
        killed: ReaderKilled | None = None
        try:
            for answer in self._answers("entries", list(place.files), groups, place.since_us, *rows.window.bounds, LONG_LINE):
                told = _told(answer)
                if isinstance(told, tuple):
                    writers.take_block(*told)
                    if rows.full and (batch := rows.batch()) is not None:
                        yield batch
                    continue
                items = list(told)
                done = len(items[-1]) == 1
                if done:
                    rows.unread += items.pop()[0]
                writers.take(items)
                if done:
                    break
                if rows.full and (batch := rows.batch()) is not None:
                    yield batch
        except ReaderKilled as error:
            killed = error
        finally:
            self.close()
        rows.finish()
        if (batch := rows.batch()) is not None:
            yield batch
        if killed is not None:
            raise killed


def _told(answer: Any) -> Any:
    """Return what an answer says, or raise the error that it tells of."""
    if not answer[0]:
        raise OSError(answer[1], answer[2])
    return answer[1]


class _Writers:
    """Who wrote the entries that come: the child's numbers and the ones that the rows have for them."""

    def __init__(self, rows: EntryRows) -> None:
        self._rows = rows
        self._contexts: list[f.Context] = []
        self._streams: list[bytes | None] = []
        self._numbers: dict[int, int] = {}
        self._generation = rows.generation

    def take_block(self, columns: list[bytes], others: list[tuple[int, tuple[Any, ...]]]) -> None:
        """Put columns into the rows, as they are or, where something odd is among them, one by one."""
        rows = self._rows
        for _, item in others:
            if len(item) == 2:
                self._meet(item)
        time, mono, code = (np.frombuffer(column, kind) for column, kind in zip(columns, (np.int64, np.int64, np.int32), strict=False))
        message, cursor = (
            pa.Array.from_buffers(pa.binary(), len(time), [None, pa.py_buffer(ends), pa.py_buffer(texts)])
            for ends, texts in (columns[3:5], columns[5:7])
        )
        odd = rows.pending or any(len(item) == 6 for _, item in others)
        if odd or (rows.spoiled and not rows.spoiled.isdisjoint(zip(time.tolist(), mono.tolist(), strict=True))):
            places = [place.removeprefix(b"journal:").decode() for place in cursor.to_pylist()]
            lines: list[Any] = list(zip(time.tolist(), mono.tolist(), places, code.tolist(), message.to_pylist(), strict=True))
            for at, item in reversed(others):
                if len(item) != 2:
                    lines.insert(at, item)
            self.take(lines)
            return
        numbers = self._known()
        which, turned = np.unique(code, return_inverse=True)
        for one in which.tolist():
            if one not in numbers:
                numbers[one] = rows.writer(self._contexts[one])
        writers = np.array([numbers[one] for one in which.tolist()], np.int64)[turned]
        rows.add_block(time, mono, cursor.cast(pa.string()), writers, message, [at for at, item in others if not item])
        rows.met += len(time)

    def _known(self) -> dict[int, int]:
        """Return the rows' numbers of the child's."""
        if self._generation != self._rows.generation:
            self._numbers.clear()
            self._generation = self._rows.generation
        return self._numbers

    def _meet(self, item: tuple[Any, ...]) -> None:
        self._contexts.append(f.context(item[0], item[1]))
        self._streams.append(f.first(item[0], "_STREAM_ID"))

    def take(self, items: list[tuple[Any, ...]]) -> None:
        """Put what came into the rows."""
        rows, numbers = self._rows, self._known()
        append, spoiled = rows.items.append, rows.spoiled
        for item in items:
            size = len(item)
            if size == 5:
                time, mono, cursor, code, message = item
                if spoiled and (time, mono) in spoiled:
                    continue
                writer = numbers.get(code)
                if writer is None:
                    writer = numbers[code] = rows.writer(self._contexts[code])
                if rows.pending:
                    rows.piece((self._streams[code],), False, time, mono, "journal:" + cursor, writer, message)
                else:
                    if rows.left_out:
                        rows.resume()
                    append((time, mono, "journal:" + cursor, writer, message))
                rows.met += 1
            elif size == 6:
                time, mono, cursor, code, fields, boot = item
                if (time, mono) in spoiled:
                    continue
                rows.met += 1
                if code is None:
                    rows.take(fields, time, mono, "journal:" + cursor, boot)
                else:
                    writer = numbers.setdefault(code, rows.writer(self._contexts[code]))
                    text = f.message(fields) or b""
                    rows.piece(f.piece_key(fields), f.goes_on(fields), time, mono, "journal:" + cursor, writer, text)
            elif size == 2:
                self._meet(item)
            else:
                rows.left_out = True


__all__ = ["LowLevel", "ReaderKilled"]
