"""The systemd journal: live, a folder, files, a namespace.

Two ways lead to the same lines: systemd-python's low-level calls (here), and a ``journalctl`` pipe (``journalctl.py``) for machines
without it. This module is the only one that imports ``systemd``.
"""

from __future__ import annotations

import errno
import shutil
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from ddtree_metrics.errors import DDTreeWarning, SourceDamaged, SourceDenied, SourceError, SourceNotFound, SourceUnsupported
from ddtree_metrics.sources import BATCH_LINES, JournalPlace, Selection, SourceStats, journal_files
from ddtree_metrics.sources import journal_fields as f
from ddtree_metrics.sources.clean import shown
from ddtree_metrics.sources.entries import EntryRows
from ddtree_metrics.sources.journal_files import GROUPS, REMEDY
from ddtree_metrics.sources.matching import Group, Matcher
from ddtree_metrics.sources.survey import survey
from ddtree_metrics.sources.twins import Twins
from ddtree_metrics.sources.wanted import Wanted
from ddtree_metrics.times import Window

APT_SYSTEMD = "apt-get install -y --no-install-recommends gcc libc6-dev pkg-config libsystemd-dev python3-dev"
FASTER = f"systemd-python reads a journal several times faster than journalctl does: {APT_SYSTEMD}; pip install 'ddtree-metrics[journal]'"

LONG_LINE = 49_152
"""journald's usual LineMax: only messages at least as long can be pieces, unless the journal shows shorter ones."""

DAY = 86_400_000_000
SMALL = 1_000_000
"""Entries that are read through from the first one, whatever the window: a second of work at most."""
SURVEY_MAX = 2 << 30
"""Bytes of journal files that are looked at for damage beforehand; larger journals are not."""


class Entrance(NamedTuple):
    """What both ways to read need to know: files by name, groups of matches (any group may hold, all of its terms must), where to begin."""

    files: tuple[str, ...]
    groups: tuple[Group, ...]
    since_us: int | None


class Backend(Protocol):
    """A way to read a journal."""

    def unique(self, files: tuple[str, ...], name: str) -> set[str]:
        """Return the values that a field has in the files."""

    def boots(self, files: tuple[str, ...]) -> list[str]:
        """Return the boots in the files, oldest first."""

    def batches(self, place: Entrance, rows: EntryRows) -> Iterator[pa.RecordBatch]:
        """Read the matching entries into rows, and yield batches of them."""


class LowLevel:
    """systemd-python, its inherited low-level calls only: ``for entry in Reader`` is seven times slower."""

    def __init__(self) -> None:
        self._reader, why = _find_reader()
        if self._reader is None:
            raise SourceUnsupported(why)

    def _open(self, files: tuple[str, ...]) -> Any:
        assert self._reader is not None
        reader = self._reader(files=list(files))
        reader.data_threshold = 0
        return reader

    def check(self, path: str) -> OSError | None:
        """Open one file alone, to see whether it can be read."""
        try:
            self._open((path,)).close()
        except OSError as error:
            return error
        return None

    def unique(self, files: tuple[str, ...], name: str) -> set[str]:
        """Return the values that a field has in the files."""
        reader = self._open(files)
        try:
            found = self._reader.__mro__[1].query_unique(reader, name)
            return {v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in found}
        finally:
            reader.close()

    def boots(self, files: tuple[str, ...]) -> list[str]:
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

    def count(self, files: tuple[str, ...], match: str) -> int:
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

    def batches(self, place: Entrance, rows: EntryRows) -> Iterator[pa.RecordBatch]:
        """Read the matching entries into rows, and yield batches of them."""
        reader = self._open(place.files)
        try:
            short = self._shortest_piece(place)
            _match(reader, place.groups)
            if place.since_us is None:
                reader.seek_head()
            else:
                reader.seek_realtime(int(place.since_us))
            yield from _read(reader, rows, short)
        finally:
            reader.close()

    def _shortest_piece(self, place: Entrance) -> int:
        """Find how long the messages are that journald cut, so that only these are asked whether they go on."""
        if "line-max" not in self.unique(place.files, "_LINE_BREAK"):
            return LONG_LINE
        reader = self._open(place.files)
        try:
            reader.add_match("_LINE_BREAK=line-max")
            reader.seek_head()
            shortest = LONG_LINE
            while reader._next():
                try:
                    shortest = min(shortest, len(reader._get("MESSAGE")))
                except (KeyError, OSError):
                    shortest = 0
            return shortest
        finally:
            reader.close()


def _match(reader: Any, groups: tuple[Group, ...]) -> None:
    for at, group in enumerate(groups):
        if at:
            reader.add_disjunction()
        for term in group:
            reader.add_match(term)


def _read(reader: Any, rows: EntryRows, short: int) -> Iterator[pa.RecordBatch]:
    """Take entries, the usual ones (a line of a stdout stream) by four calls each, all others by all their fields."""
    following, get, realtime, monotonic = reader._next, reader._get, reader._get_realtime, reader._get_monotonic
    cursor, whole = reader._get_cursor, reader._get_all
    known: dict[Any, int] = {}
    generation = rows.generation
    (low, high), stats = rows.window.bounds, rows.stats  # a call of contains would cost every entry a twentieth
    unread = 0
    items = rows.items
    append = items.append
    while True:
        try:
            if not following():
                break
            time = realtime()
            # Both bounds, on every entry: after a step of the clock the entries are not in the order of their times.
            if time < low or time >= high:
                rows.left_out = True
                continue
            mono, boot = monotonic()
            try:
                stream, message = get("_STREAM_ID"), get("MESSAGE")
                key = (stream, get("_PID"), boot)
            except KeyError:
                rows.take(whole(), time, mono, "journal:" + cursor(), boot.hex())
            else:
                writer = known.get(key)
                if writer is None:
                    writer = known[key] = rows.writer(f.context(whole(), boot.hex()))
                if rows.pending or len(message) >= short:
                    entry = whole()
                    rows.piece(f.piece_key(entry), f.goes_on(entry), time, mono, "journal:" + cursor(), writer, message)
                else:
                    if rows.left_out:
                        rows.resume()
                    append((time, mono, "journal:" + cursor(), writer, message))
        except OSError as error:
            if error.errno in (
                errno.EBADMSG,
                errno.EPROTONOSUPPORT,
                errno.ENODATA,
                errno.EADDRNOTAVAIL,
                errno.E2BIG,
                errno.ENOENT,
                errno.EIO,
            ):
                unread += 1  # this entry cannot be read; the next one perhaps
                if unread > 100_000:
                    break
                continue
            raise
        if len(items) >= BATCH_LINES:
            batch = rows.batch()
            if generation != rows.generation:
                known.clear()
                generation = rows.generation
            if batch is not None:
                yield batch
    if unread:
        stats.damaged.append(
            f"{unread} entries of the journal cannot be read (damaged); the others were read: {REMEDY[journal_files.DAMAGED]}"
        )
    rows.finish()
    if (batch := rows.batch()) is not None:
        yield batch


_LOW_LEVEL = (
    "_next",
    "_get",
    "_get_all",
    "_get_realtime",
    "_get_monotonic",
    "_get_cursor",
    "seek_realtime",
    "add_match",
    "add_disjunction",
)


def _find_reader() -> tuple[Any, str]:
    """Return systemd-python's Reader, or why there is none."""
    try:
        import systemd
    except ImportError:
        return None, f"systemd-python is not installed. {FASTER}"
    try:
        from systemd import journal
    except ImportError:
        return None, (
            f"the module 'systemd' ({getattr(systemd, '__file__', '?')}) is another package with the same name (PyPI: systemd, which is "
            f"cysystemd, or python-systemd); uninstall it and install systemd-python. {FASTER}"
        )
    reader = getattr(journal, "Reader", None)
    if reader is None or not all(hasattr(reader, name) for name in _LOW_LEVEL):
        return None, (
            f"the package 'systemd' ({getattr(journal, '__file__', '?')}) is not systemd-python, or a release before 234 ("
            f"beware of the PyPI packages 'systemd' and 'python-systemd'). {FASTER}"
        )
    return reader, ""


def find_backend(name: str | None, stats: SourceStats) -> Any:
    """Return the way to read that was asked for, or the best this machine has."""
    from ddtree_metrics.sources.journalctl import Pipe

    if name == "systemd":
        return LowLevel()
    if name == "journalctl":
        return Pipe()
    if name is not None:
        raise SourceUnsupported(f"no way to read a journal is called {name!r}; there are 'systemd' and 'journalctl'")
    try:
        return LowLevel()
    except SourceUnsupported as error:
        if shutil.which("journalctl") is None:
            raise SourceUnsupported(
                f"reading a journal needs systemd-python ({APT_SYSTEMD}; pip install 'ddtree-metrics[journal]') or journalctl (apt-get "
                "install systemd); a journal saved as text (journalctl -o export --all) can be read without both"
            ) from None
        _warn_once(str(error))
        stats.notes.append(f"read through journalctl: {error}")
        return Pipe()


_warned: set[str] = set()


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(DDTreeWarning(text), stacklevel=5)


class JournalSource:
    """A journal; see :func:`ddtree_metrics.sources.open_journal`. Its files are looked at now, and read when batches are taken."""

    has_boot_clock = True

    def __init__(
        self,
        place: JournalPlace,
        selection: Selection,
        window: Window,
        *,
        backend: str | None = None,
        stats: SourceStats | None = None,
        names: dict[str, str] | None = None,
    ) -> None:
        self.stats = SourceStats() if stats is None else stats
        self.name = _title(place)
        self._window = window
        self._wanted = Wanted(selection) if selection.units or selection.user_units else None
        self._names = names or {}
        found, looked = journal_files.find(place, names)
        _raise_if_nothing(found, looked, place)
        self._backend = find_backend(backend, self.stats)
        self._leave_out_what_fails(found)
        _raise_if_nothing(found, looked, place)
        self.stats.damaged += found.told()
        self.stats.notes += journal_files.holes(found.good)
        self._headers = found.good
        self._files = tuple(h.path for h in found.good)
        try:
            self._groups = Matcher(self._backend, self._files, self.stats).groups(selection) if self._files else ()
        except SourceNotFound as error:
            # Everybody may read the journal of their own user: what is not in there may be in the files that are denied.
            denied = [text for kind, _, text in found.bad if kind == journal_files.DENIED]
            if not denied:
                raise
            raise SourceDenied(f"{error}; but other files of it are denied ({'; '.join(denied[:3])}): {GROUPS}") from None

    def _leave_out_what_fails(self, found: journal_files.Files) -> None:
        """Ask libsystemd to open the files; leave out, and name, those that it cannot open though their headers look well."""
        if not isinstance(self._backend, LowLevel) or not found.good:
            return
        try:
            self._backend._open(tuple(h.path for h in found.good)).close()
            return
        except OSError:
            pass
        kept = []
        for header in found.good:
            error = self._backend.check(header.path)
            if error is None:
                kept.append(header)
            elif error.errno == errno.EPROTONOSUPPORT:
                text = f"{shown(header.path)}: uses a feature that this machine's libsystemd does not know"
                found.bad.append((journal_files.UNSUPPORTED, header.path, text))
            elif error.errno in (errno.EACCES, errno.EPERM):
                found.bad.append((journal_files.DENIED, header.path, f"{shown(header.path)}: may not be read by this user"))
            elif error.errno == errno.ENOENT:
                continue  # removed since it was found (vacuum)
            else:
                found.bad.append((journal_files.DAMAGED, header.path, f"{shown(header.path)}: is damaged ({error.strerror})"))
        found.good[:] = kept

    def _survey(self) -> bool:
        """Look for damage in the files that may hold something of the window; say whether their entries are in the order of their times."""
        low, high = self._window.since_us, self._window.until_us
        some = [
            h
            for h in self._headers
            if (low is None or max(h.first_us, h.last_us) >= low - DAY) and (high is None or min(h.first_us, h.last_us) < high + DAY)
        ]
        if sum(h.size for h in some) > SURVEY_MAX:
            return True
        ordered = True
        for header in some:
            found = survey(header)
            if found is None:
                continue
            ordered &= found.ordered
            if found.bad:
                name = self._names.get(header.path, shown(header.path))
                self.stats.damaged.append(
                    f"{name}: {found.bad} of {found.entries} entries are damaged; the others were read: {REMEDY[journal_files.DAMAGED]}"
                )
        return ordered

    def _since(self, ordered: bool) -> int | None:
        """Say where to begin: at ``since``, unless the clock may have been set; then at the beginning, for no entry to be missed.

        A search by time needs entries in the order of their times. journald says when somebody sets the clock; and a small journal is read
        through in any case.
        """
        since = self._window.since_us
        if since is None or not ordered or sum(h.entries for h in self._headers) <= SMALL:
            return None
        if f.TIME_CHANGE in self._backend.unique(self._files, "MESSAGE_ID"):
            return None
        return since

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the selected lines in the order in which journald wrote them."""
        if not self._files:
            return
        rows = EntryRows(self.stats, self._window)
        rows.wanted = self._wanted
        ordered = self._survey()
        twins = Twins(self._headers, self.stats)
        try:
            for batch in self._backend.batches(Entrance(self._files, self._groups, self._since(ordered)), rows):
                once = twins.feed(batch)
                if once.num_rows:
                    yield once
            twins.tell()
        except OSError as error:
            raise SourceDamaged(f"{self.name}: reading stopped: {error}; {REMEDY[journal_files.DAMAGED]}") from error


def _title(place: JournalPlace) -> str:
    if place.files:
        first = shown(place.files[0])
        return first if len(place.files) == 1 else f"{first} and {len(place.files) - 1} more"
    name = f"journal in {shown(place.directory)}" if place.directory else "journal"
    return f"{name}, namespace {place.namespace}" if place.namespace else name


_ERRORS = {
    journal_files.DENIED: SourceDenied,
    journal_files.UNSUPPORTED: SourceUnsupported,
    journal_files.DAMAGED: SourceDamaged,
    journal_files.MISSING: SourceNotFound,
}


def _raise_if_nothing(found: journal_files.Files, looked: list[str], place: JournalPlace) -> None:
    """Raise the error that says why no file can be read, if none can."""
    if found.good:
        return
    reasons = found.reasons()
    for kind, error in _ERRORS.items():
        if kind in {kind for kind, _, _ in found.bad}:
            raise error(f"no journal file can be read: {reasons}" if len(found.bad) > 1 else reasons)
    where = " or ".join(looked)
    what = f"no journal files of namespace {place.namespace!r}" if place.namespace else "no journal files"
    hint = (
        "name a folder of them, or a file"
        if place.directory is None
        else "a journal folder holds *.journal files, or subfolders named by machine ids"
    )
    raise SourceNotFound(f"{what} in {where}; {hint}")


def count_units(place: JournalPlace) -> dict[str, int]:
    """Count the entries of each unit, user unit and container; see :func:`ddtree_metrics.sources.list_units`."""
    source = JournalSource(place, Selection(), Window())
    backend, files = source._backend, source._files
    made: Counter[str] = Counter()
    for field in ("_SYSTEMD_UNIT", "_SYSTEMD_USER_UNIT", "CONTAINER_NAME"):
        for name in backend.unique(files, field):
            made[name] += backend.count(files, f"{field}={name}")
    return dict(made.most_common())


__all__ = ["JournalSource", "SourceError", "count_units"]
