"""The process that reads journal files through libsystemd; a script by itself, run by ``journal_process.py``.

libsystemd maps the files, and a map of a file that is cut short kills its process (SIGBUS). Here it kills this one only. It imports
nothing but the compiled reader (``native/libsystemd.c``), or systemd-python where that was not built, so it starts quickly. It talks in
``marshal``: commands come in, answers go out.
"""

from __future__ import annotations

import errno
import marshal
import os
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any, BinaryIO

CHUNK = 1024
"""Items that go out together; so many entries at most are lost when the process is killed."""
UNREADABLE_MOST = 100_000
END = ";b="
"""What follows it in a cursor is in other columns, as ``journal_fields.place_of`` has it."""
# One entry cannot be read; the next one perhaps. A name of a field that is no UTF-8 is a UnicodeDecodeError.
_DAMAGE = frozenset((errno.EBADMSG, errno.EPROTONOSUPPORT, errno.ENODATA, errno.EADDRNOTAVAIL, errno.E2BIG, errno.ENOENT, errno.EIO))


class Journal:
    """systemd-python, its inherited low-level calls only: ``for entry in Reader`` is seven times slower."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def _open(self, files: list[str]) -> Any:
        reader = self._reader(files=files)
        reader.data_threshold = 0
        return reader

    def check(self, files: list[str]) -> None:
        """Open files, to see whether they can be read."""
        self._open(files).close()

    def unique(self, files: list[str], name: str) -> list[str]:
        """Return the values that a field has in the files."""
        reader = self._open(files)
        try:
            found = self._reader.__mro__[1].query_unique(reader, name)
            return [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in found]
        finally:
            reader.close()

    def boots(self, files: list[str]) -> list[str]:
        """Return the boots in the files, oldest first."""
        made = []
        for boot in self.unique(files, "_BOOT_ID"):
            reader = self._open(files)
            try:
                reader.add_match(f"_BOOT_ID={boot}")
                reader.seek_head()
                if reader._next():
                    made.append((reader._get_realtime(), boot))
            finally:
                reader.close()
        return [boot for _, boot in sorted(made)]

    def count(self, files: list[str], match: str) -> int:
        """Count the entries with a match."""
        reader = self._open(files)
        try:
            reader.add_match(match)
            reader.seek_head()
            count, following = 0, reader._next
            while following():
                count += 1
            return count
        finally:
            reader.close()

    def shortest_piece(self, files: list[str], longest: int) -> int:
        """Find how long the messages are that journald cut, so that only these are asked whether they go on."""
        if "line-max" not in self.unique(files, "_LINE_BREAK"):
            return longest
        reader = self._open(files)
        try:
            reader.add_match("_LINE_BREAK=line-max")
            reader.seek_head()
            while reader._next():
                try:
                    longest = min(longest, len(reader._get("MESSAGE")))
                except (KeyError, OSError):
                    return 0
            return longest
        finally:
            reader.close()

    def entries(
        self, files: list[str], groups: list[list[str]], since: int | None, low: int, high: int, longest: int
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Yield what the matching entries say, in lists of tuples that their lengths tell apart.

        ``()``: entries outside of the window were left out here. ``(fields, boot)``: another writer, its number is how many came before.
        ``(time, monotonic, cursor, writer, message)``: a line of it. ``(time, monotonic, cursor, writer or None, fields, boot)``: an entry
        with all of its fields, of a writer that is known or not. ``(count,)``: at the end, how many could not be read. The compiled reader
        gives the lines as columns instead, ``(columns, others)``, the others with the number of the lines before each.
        """
        reader = self._open(files)
        try:
            short = self.shortest_piece(files, longest)
            for at, group in enumerate(groups):
                if at:
                    reader.add_disjunction()
                for term in group:
                    reader.add_match(term)
            if since is None:
                reader.seek_head()
            else:
                reader.seek_realtime(since)
            yield from (_entries if hasattr(reader, "_get_all") else _blocks)(reader, low, high, short)
        finally:
            reader.close()


def _entries(reader: Any, low: int, high: int, short: int) -> Iterator[list[tuple[Any, ...]]]:
    """Take entries, the usual ones (a line of a stdout stream) by four calls each, all others by all their fields."""
    following, get, realtime, monotonic = reader._next, reader._get, reader._get_realtime, reader._get_monotonic
    cursor, whole = reader._get_cursor, reader._get_all
    known: dict[Any, int] = {}
    items: list[tuple[Any, ...]] = []
    append = items.append
    unread, left_out = 0, False
    while unread < UNREADABLE_MOST:
        try:
            if not following():
                break
            time = realtime()
            # Both bounds, on every entry: after a step of the clock the entries are not in the order of their times.
            if time < low or time >= high:
                if not left_out:
                    append(())
                left_out = True
                continue
            mono, boot = monotonic()
            try:
                stream, message = get("_STREAM_ID"), get("MESSAGE")
                key = (stream, get("_PID"), boot)
            except KeyError:
                append((time, mono, cursor().partition(END)[0], None, whole(), boot.hex()))
            else:
                writer = known.get(key)
                if writer is None:
                    append((whole(), boot.hex()))
                    writer = known[key] = len(known)
                if len(message) >= short:
                    append((time, mono, cursor().partition(END)[0], writer, whole(), boot.hex()))
                else:
                    append((time, mono, cursor().partition(END)[0], writer, message))
            left_out = False
        except OSError as error:
            if error.errno not in _DAMAGE:
                raise
            unread += 1
        except (ValueError, TypeError, SystemError):
            unread += 1
        if len(items) >= CHUNK:
            yield items
            items.clear()
    append((unread,))
    yield items


def _blocks(reader: Any, low: int, high: int, short: int) -> Iterator[Any]:
    """Take the same entries by the compiled reader's one call for many."""
    unread, left_out, more = 0, False, True
    while more and unread < UNREADABLE_MOST:
        *columns, others, more, failed, left_out = reader.entries(low, high, short, CHUNK, left_out)
        unread += failed
        yield columns, others
    yield [(unread,)]


def answers(journal: Journal, name: str, *words: Any) -> Iterator[tuple[Any, ...]]:
    """Do what a command says, and yield ``(True, answer)``, or ``(False, errno, text)``."""
    do: Callable[..., Any] = getattr(journal, name)
    try:
        answer = do(*words)
        if name == "entries":
            for items in answer:
                yield True, items
        else:
            yield True, answer
    except OSError as error:
        yield False, error.errno or errno.EIO, error.strerror or str(error)
    except (ValueError, TypeError, SystemError) as error:
        yield False, errno.EBADMSG, str(error)


def find(library: str | None) -> Journal:
    """Make a journal of the compiled reader, or of systemd-python's."""
    if library is not None:
        spec = spec_from_loader("libsystemd", ExtensionFileLoader("libsystemd", library))
        assert spec is not None
        compiled: Any = module_from_spec(spec)
        # as systemd-python's, a class over the one that calls the library
        return Journal(type("Reader", (compiled.Reader,), {}))
    from systemd import journal

    return Journal(journal.Reader)


def main() -> None:
    """Find the reader where the parent finds it, and answer commands until there are no more."""
    into: BinaryIO = sys.stdin.buffer
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not come between the answers
    sys.path[:], library = marshal.load(into)
    journal = find(library)
    while True:
        try:
            command = marshal.load(into)
        except EOFError:
            return
        for answer in answers(journal, *command):
            marshal.dump(answer, out)
            out.flush()


if __name__ == "__main__":
    main()
