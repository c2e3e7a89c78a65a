"""The systemd journal: live, a folder, files, a namespace.

Three ways lead to the same lines: the compiled reader (``native/libsystemd.c``), systemd-python's low-level calls where that was not built
(``journal_process.py`` runs both), and a ``journalctl`` pipe (``journalctl.py``) for machines without either.
"""

from __future__ import annotations

import errno
import shutil
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ddtree_metrics import native
from ddtree_metrics.errors import DDTreeWarning, SourceDamaged, SourceDenied, SourceError, SourceNotFound, SourceUnsupported
from ddtree_metrics.sources import JournalPlace, Selection, SourceStats, journal_files
from ddtree_metrics.sources import journal_fields as f
from ddtree_metrics.sources.clean import shown
from ddtree_metrics.sources.entries import EntryRows
from ddtree_metrics.sources.journal_check import JournalCheck, check
from ddtree_metrics.sources.journal_files import GROUPS, REMEDY
from ddtree_metrics.sources.journal_process import LowLevel, ReaderKilled
from ddtree_metrics.sources.mixing import distinct
from ddtree_metrics.sources.select import Entrance, Matcher, Wanted
from ddtree_metrics.sources.twins import Twins
from ddtree_metrics.times import Window

APT_SYSTEMD = "apt-get install -y --no-install-recommends gcc libc6-dev pkg-config libsystemd-dev python3-dev"
FASTER = f"systemd-python reads a journal several times faster than journalctl does: {APT_SYSTEMD}; pip install 'ddtree-metrics[journal]'"

DAY = 86_400_000_000
SMALL = 1_000_000
"""Entries that are read through from the first one, whatever the window: a second of work at most."""
CHECK_MAX = 2 << 30
"""Bytes of journal files that are looked at for damage beforehand; larger journals are not."""


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


def _why_no_reader() -> str:
    """Say why systemd-python cannot be used; empty if it can."""
    try:
        import systemd
    except ImportError:
        return f"systemd-python is not installed. {FASTER}"
    try:
        from systemd import journal
    except ImportError:
        return (
            f"the module 'systemd' ({getattr(systemd, '__file__', '?')}) is another package with the same name (PyPI: systemd, which is "
            f"cysystemd, or python-systemd); uninstall it and install systemd-python. {FASTER}"
        )
    reader = getattr(journal, "Reader", None)
    if reader is None or not all(hasattr(reader, name) for name in _LOW_LEVEL):
        return (
            f"the package 'systemd' ({getattr(journal, '__file__', '?')}) is not systemd-python, or a release before 234 ("
            f"beware of the PyPI packages 'systemd' and 'python-systemd'). {FASTER}"
        )
    return ""


def _compiled() -> str | None:
    """Return the file of the compiled reader; ``None`` where it was not built, or finds no libsystemd."""
    module = native.load("libsystemd")
    return None if module is None or module.why_not else str(module.__file__)


def _low_level() -> LowLevel:
    library = _compiled()
    return LowLevel("" if library else _why_no_reader(), library)


def find_backend(name: str | None, stats: SourceStats) -> Any:
    """Return the way to read that was asked for, or the best this machine has."""
    from ddtree_metrics.sources.journalctl import Pipe

    if name == "systemd":
        return _low_level()
    if name == "journalctl":
        return Pipe()
    if name is not None:
        raise SourceUnsupported(f"no way to read a journal is called {name!r}; there are 'systemd' and 'journalctl'")
    try:
        return _low_level()
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

    @property
    def headers(self) -> list[journal_files.Header]:
        """The files that are read, as their headers say."""
        return list(self._headers)

    def narrow(self, paths: Collection[str]) -> None:
        """Read only these of the files; what the selection means was found in all of them."""
        self._headers = [h for h in self._headers if h.path in paths]
        self._files = tuple(h.path for h in self._headers)

    def _leave_out_what_fails(self, found: journal_files.Files) -> None:
        """Ask libsystemd to open the files; leave out, and name, those that it cannot open though their headers look well."""
        if not isinstance(self._backend, LowLevel) or not found.good:
            return
        if self._backend.check(tuple(h.path for h in found.good)) is None:
            return
        kept = []
        for header in found.good:
            error = self._backend.check((header.path,))
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

    def _checks(self) -> list[JournalCheck] | None:
        """Look for damage in the files that may hold something of the window; ``None`` if they are too large to be looked at."""
        low, high = self._window.since_us, self._window.until_us
        some = [
            h
            for h in self._headers
            if (low is None or max(h.first_us, h.last_us) >= low - DAY) and (high is None or min(h.first_us, h.last_us) < high + DAY)
        ]
        if sum(h.size for h in some) > CHECK_MAX:
            self.stats.notes.append(
                f"the journal files are larger than {CHECK_MAX >> 30} GiB together, so they were not checked for damage"
            )
            return None
        made = []
        for header in some:
            found = check(header, self._groups, self._window)
            if found is None:
                continue
            made.append(found)
            if found.bad:
                self.stats.damaged.append(
                    f"{self._shown(header)}: {found.bad} of {found.entries} entries are damaged; the others were read: "
                    f"{REMEDY[journal_files.DAMAGED]}"
                )
        return made

    def _shown(self, header: journal_files.Header) -> str:
        return self._names.get(header.path, shown(header.path))

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
        checks = self._checks()
        ordered = checks is None or all(c.ordered for c in checks)
        for found in checks or ():
            rows.spoiled |= found.spoiled
        twins = Twins(self._headers, self.stats)
        try:
            for batch in self._backend.batches(Entrance(self._files, self._groups, self._since(ordered)), rows):
                once = twins.feed(batch)
                if once.num_rows:
                    yield once
        except ReaderKilled as error:
            self.stats.damaged.append(f"{self._of_whom()}: reading stopped after {rows.met} entries, for {error.strerror}; read it again")
            if not rows.met:
                raise SourceDamaged(f"{self.name}: {error.strerror}; read it again") from None
            return
        except OSError as error:
            raise SourceDamaged(f"{self.name}: reading stopped: {error}; {REMEDY[journal_files.DAMAGED]}") from error
        finally:
            twins.tell()
        self._tell_missing(rows, checks, twins.count)

    def _of_whom(self) -> str:
        """Name the files that are shorter than their headers say by now, or all of them."""
        again = journal_files.Files()
        for header in self._headers:
            again.add(header.path, self._shown(header))
        return "; ".join(text for _, _, text in again.bad) or self.name

    def _tell_missing(self, rows: EntryRows, checks: list[JournalCheck] | None, twice: int) -> None:
        """Name what was not read though the files hold it: their indexes are damaged, or their entries."""
        missing = rows.unread
        if checks:
            missing = max(missing, len(distinct(np.concatenate([c.keys for c in checks]))) - (rows.met - twice))
        if missing > 0:
            entries = "1 entry" if missing == 1 else f"{missing} entries"
            self.stats.damaged.append(
                f"{self.name}: {entries} cannot be read (damaged, or not to be found by a damaged index); the others were read: "
                f"{REMEDY[journal_files.DAMAGED]}"
            )


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
