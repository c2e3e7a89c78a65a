"""What is new in a journal or in log files, put into a lake exactly once; see docs/lake.md for what a commit is.

A run goes on where the last one ended. Lines are read in chunks of one size from the first run on. What the last, unfinished chunk gave is
written into parts of their own; the next run reads these lines once more, with those behind them and with what was remembered before
them, and replaces the parts. So many runs give what one gives: also step times, running sums, copies of ranks and server starts whose lines
two runs met.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ddtree_metrics import __version__
from ddtree_metrics.coverage import Coverage
from ddtree_metrics.errors import OutputError, UsageError
from ddtree_metrics.opening import ReadOptions
from ddtree_metrics.reading import LINE_TABLES, Reading
from ddtree_metrics.records import TABLES
from ddtree_metrics.schema import SCHEMA_VERSION
from ddtree_metrics.sources import JournalPlace, SourceStats, open_source
from ddtree_metrics.sources.journal import JournalSource
from ddtree_metrics.sources.open_files import sorted_out
from ddtree_metrics.sources.resumed import Chunk, PlainStream, Resumed, ResumedJournal, ResumedText, TextFile, gone, identify
from ddtree_metrics.sources.rotated import rotation
from ddtree_metrics.steps.conventions import Conventions
from ddtree_metrics.tables.atomic import write_whole
from ddtree_metrics.tables.lake_parts import KnownRows, LakeWriter, PartNames
from ddtree_metrics.tables.manifest import OWN, WAIT_S, Manifest, PartEntry, commit, staging, writing
from ddtree_metrics.times import Window

PARTITION = ("host", "date")
KEPT = 50
"""Of notes, damage and files that are gone so many of the newest are kept with a source."""


@dataclass(slots=True)
class Appended:
    """What one run put into a lake.

    Attributes
    ----------
    rows : dict of str to int
        New rows by table; those that were only written again are not among them.
    coverage : Coverage
        What the run met.
    commits : int
        How many commits it made.
    """

    rows: dict[str, int] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)
    commits: int = 0


@dataclass(frozen=True, slots=True)
class _Pass:
    """What is read and committed together.

    Attributes
    ----------
    source : Resumed
    window : Window
    main : bool
        Whether it ends where the next run begins; else it is a stretch besides.
    memory : object
        What was remembered before the first line.
    replaces : bool
        Whether the newest parts of the source are written again.
    hole : str
        What is missing before the first line, in a sentence.
    """

    source: Resumed
    window: Window
    main: bool = False
    memory: Any = None
    replaces: bool = False
    hole: str = ""


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a source is read on, what is missing there, and what is remembered of it for the next run besides."""

    source: Resumed
    again: bool
    hole: str
    known: dict[str, Any]


def append_lines(
    root: Path,
    paths: Sequence[Any],
    options: ReadOptions,
    *,
    tables: Sequence[str] = LINE_TABLES,
    partition: Sequence[str] = (),
    wait_s: float = WAIT_S,
) -> Appended:
    """Put what is new into a lake.

    Parameters
    ----------
    root : Path
        The lake; made where it is missing.
    paths : sequence
        Files, folders of journal files, streams; the journal that ``options`` name if empty.
    options : ReadOptions
    tables : sequence of str
        Tables of lines.
    partition : sequence of str
        What the folders are named for, ``host, date`` if not given; a lake keeps what it began with.
    wait_s : float
        So long another run is waited for.

    Raises
    ------
    OutputError
        If another run does not end, the lake cannot be written, or it is partitioned otherwise.
    """
    made = Appended()
    with writing(root, wait_s) as manifest:
        by = list(partition or manifest.partition or PARTITION)
        if manifest.partition and by != manifest.partition:
            raise OutputError(f"{root} is partitioned by {', '.join(manifest.partition)}; leave --partition out", usage=True)
        if manifest.commit == 0 and any(child.is_dir() and child.name in TABLES for child in root.iterdir()):
            raise OutputError(
                f"{root} holds tables of exports without --append, in which nothing says where they ended; name another folder", usage=True
            )
        manifest.partition = by
        run = _Run(root, manifest, options, tuple(tables), made)
        accounts = []
        for origin in _origins(paths, options, manifest, made.coverage):
            accounts.append(run.take(origin))
        made.coverage = Coverage.merged([made.coverage, *accounts])
    return made


class _Run:
    """One run of `append_lines` over all of its sources."""

    def __init__(self, root: Path, manifest: Manifest, options: ReadOptions, tables: tuple[str, ...], made: Appended) -> None:
        self.root, self.manifest, self.options, self.tables, self.made = root, manifest, options, tables, made

    def take(self, origin: _Origin) -> Coverage:
        """Read what is new in a source, and commit it; what is read besides what comes next is committed first."""
        record = self.manifest.sources.get(origin.key)
        window = self.options.window
        if window.until_us is not None or not origin.goes_on:
            # behind a stretch of time with an end, or a pipe, nothing can be taken up
            return self._commit(origin, _Pass(origin.whole(window), window), {})
        accounts = []
        since = window.since_us
        if record is not None:
            known = record["since_us"]
            if known is not None and since is not None and since < known:
                accounts.append(self._commit(origin, _Pass(origin.whole(Window(since, known)), Window(since, known)), {}))
            else:
                since = known
        window = Window(since, None)
        accounts += [self._commit(origin, _Pass(late, window), {}) for late in origin.late(record, window)]
        start = origin.resumed(record, window)
        memory, hole = self._memory(record, start)
        main = _Pass(start.source, window, True, memory, start.again, hole)
        accounts.append(self._commit(origin, main, {"what": origin.what, "since_us": since, **start.known}))
        return Coverage.merged(accounts)

    def _memory(self, record: dict[str, Any] | None, start: _Start) -> tuple[Any, str]:
        """Return what is remembered of a source: before the lines that are read again, or behind the last one."""
        if record is None:
            return None, start.hole
        try:
            found: Any = json.loads((self.root / OWN / record["memory"]).read_bytes())
        except (OSError, ValueError):
            found = {}
        if found.get("version") != _version():
            account = {"reading": None, "account": record["account"], "counts": record["counts"]}
            return account, start.hole or "what an older version remembered of open streams cannot be used: each of them begins anew here"
        return found["before" if start.again else "behind"], start.hole

    def _commit(self, origin: _Origin, part: _Pass, known: dict[str, Any]) -> Coverage:
        """Read a source to its end, and commit what it gave; where nothing is new there is no commit."""
        manifest, key = self.manifest, origin.key
        number = manifest.commit + 1
        old = {name: entry for name, entry in manifest.parts.items() if part.replaces and entry.source == key}
        reading = Reading(part.source, replace(self.options, window=part.window))
        if part.memory is not None and part.memory["reading"] is not None:
            reading.recall(part.memory["reading"])
        if part.hole:
            reading.coverage.add_note(part.hole)
        place = staging(self.root, number)
        names = PartNames(number, old)
        there = KnownRows(self.root, {name: entry for name, entry in manifest.parts.items() if name not in old}, manifest.partition)
        entries: dict[str, PartEntry] = {}
        before: Any = None
        end: Chunk | None = None
        missing = bool(part.hole)
        try:
            writers = _CommitWriters(self.root, manifest, place, names, there, self.tables, origin.goes_on)
            for chunk in part.source.chunks():
                if chunk.last:
                    writers.write(reading.whole_starts())
                    before, end = _remembered(reading, part.memory), chunk
                    entries |= writers.entries(None)
                    writers = _CommitWriters(self.root, manifest, place, names, there, self.tables, origin.goes_on)
                writers.write(reading.feed(chunk.lines, after_hole=missing and chunk.lines.num_rows > 0))
                missing = missing and not chunk.lines.num_rows
                if self.options.progress is not None:
                    self.options.progress(reading.coverage)
            writers.write(reading.rest())
            entries |= writers.entries(key if part.main else None)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        finally:
            if self.options.progress is not None:
                self.options.progress(None)
        parts = {name: entry for name, entry in manifest.parts.items() if name not in old}
        sources = dict(manifest.sources)
        if part.main:
            assert end is not None
            record = {**known, "again": end.again, "end": end.position}
            if manifest.sources.get(key, {}).items() >= record.items() and not _other_rows(entries, old):
                shutil.rmtree(place, ignore_errors=True)
                return reading.coverage
            behind = _remembered(reading, part.memory)
            memory = f"sources/{key}-{number:08d}.json"
            (self.root / OWN / "sources").mkdir(exist_ok=True)
            text = json.dumps({"version": _version(), "before": before, "behind": behind})
            write_whole(self.root / OWN / memory, text.encode(), force=True)
            sources[key] = {**record, "account": behind["account"], "counts": behind["counts"], "memory": memory}
            parts = {name: replace(entry, source=None) if entry.source == key else entry for name, entry in parts.items()}
        elif not entries:
            return reading.coverage
        new = Manifest(number, manifest.partition, {**parts, **entries}, sources, manifest.kept_from)
        commit(self.root, new, [name for name in old if name not in entries])
        manifest.commit, manifest.parts, manifest.sources = new.commit, new.parts, new.sources
        self.made.commits += 1
        for some, sign in ((entries, 1), (old, -1)):
            for name, entry in some.items():
                table = name.partition("/")[0]
                self.made.rows[table] = self.made.rows.get(table, 0) + sign * entry.rows
        return reading.coverage


def _other_rows(entries: Mapping[str, PartEntry], old: Mapping[str, PartEntry]) -> bool:
    """Whether the parts that are written again have other rows than before."""
    return sum(entry.rows for entry in entries.values()) != sum(entry.rows for entry in old.values())


class _CommitWriters:
    """The tables of a commit, each opened when it has rows."""

    def __init__(
        self, root: Path, manifest: Manifest, place: Path, names: PartNames, there: KnownRows, tables: tuple[str, ...], goes_on: bool
    ) -> None:
        self._how = {"partition": tuple(manifest.partition), "staging": place, "names": names, "number": manifest.commit + 1}
        self._how["kept_from"] = manifest.kept_from
        self._root, self._there, self._tables, self._goes_on = root, there, tables, goes_on
        self._open: dict[str, LakeWriter] = {}

    def write(self, read: Iterator[dict[str, pa.RecordBatch]]) -> None:
        """Take the rows that a reading yields."""
        for tables in read:
            for name, batch in tables.items():
                if name not in self._tables:
                    continue
                if not self._goes_on and name in ("steps", "decode", "prefill") and batch.column("monotonic_us").null_count:
                    raise UsageError(
                        "lines of a pipe without the boot clock cannot be told from those of the run before: name the log file, or the "
                        "journal, or pipe what journalctl -o export --all writes"
                    )
                if name not in self._open:
                    self._open[name] = LakeWriter(self._root, TABLES[name], known=self._there, **self._how)  # type: ignore[arg-type]
                self._open[name].write(batch)

    def entries(self, source: str | None) -> dict[str, PartEntry]:
        """Complete all parts, and return what the manifest is to say of them."""
        made: dict[str, PartEntry] = {}
        for writer in self._open.values():
            made |= writer.entries(source)
        return made


def _remembered(reading: Reading, before: Any) -> Any:
    """Return what a reading remembers, with the account of all that was read of the source so far."""
    own = Coverage.from_dict(reading.coverage.to_dict())
    parts = [own] if before is None else [Coverage.from_dict(before["account"]), own]
    account = Coverage.merged(parts)
    account.notes = list(dict.fromkeys(account.notes))[-KEPT:]
    account.damaged = list(dict.fromkeys(account.damaged))[-KEPT:]
    account.clock_steps = account.clock_steps[-KEPT:]
    counts = Conventions.from_dict(reading.conventions.to_dict())
    if before is not None:
        counts.merge(Conventions.from_dict(before["counts"]))
    return {"reading": reading.memory(), "account": account.to_dict(), "counts": counts.to_dict()}


def _version() -> str:
    return f"{__version__} {SCHEMA_VERSION}"


# Sources --------------------------------------------------------------------------------------------------------------------


class _JournalOrigin:
    """A journal, live or as files."""

    goes_on = True

    def __init__(self, place: JournalPlace, where: Sequence[str], options: ReadOptions) -> None:
        self._place, self._selection = place, options.selection
        self.key = _key("journal", where, options)
        self.what = ", ".join(where)

    def _source(self, window: Window) -> JournalSource:
        return JournalSource(self._place, self._selection, window)

    def whole(self, window: Window) -> Resumed:
        """Return all of it."""
        return ResumedJournal(self._source(window), {})

    def late(self, record: dict[str, Any] | None, window: Window) -> Iterator[Resumed]:
        """Yield files that came when what stands behind them had been read already."""
        if record is None:
            return
        source, done = self._source(window), record["again"]
        files = [
            h.path
            for h in source.headers
            if h.entries and h.file.hex() not in record["files"] and h.first <= done.get(h.sequence.hex(), -1)
        ]
        if files:
            yield ResumedJournal(source, {}, until=done, files=files)

    def resumed(self, record: dict[str, Any] | None, window: Window) -> _Start:
        """Return what comes behind the last run."""
        source = self._source(window)
        known = {"files": sorted({h.file.hex() for h in source.headers} | set(record["files"] if record else ()))}
        if record is None:
            return _Start(ResumedJournal(source, {}), False, "", known)
        is_gone, lost = gone(source.headers, record["again"], record["end"])
        hole = (
            f"{self.what}: {lost:,} entries of the journal (of all units) between the last run and this one were removed before they were "
            "read, and are missing in the lake; export more often, or let the journal keep more (SystemMaxUse= in journald.conf)"
        )
        start = record["end"] if is_gone else record["again"]
        return _Start(ResumedJournal(source, start), not is_gone, hole if lost else "", known)


class _TextOrigin:
    """A log file with those that rotation made of it."""

    goes_on = True

    def __init__(self, name: str, files: Sequence[TextFile], options: ReadOptions) -> None:
        self._files, self._options = list(files), options
        self.key = _key("text", [name], options)
        self.what = name

    def _source(self, done: Mapping[str, int], whole: Sequence[str] = ()) -> Resumed:
        return ResumedText(self._files, done, whole, selection=self._options.selection, tz=self._options.zone)

    def whole(self, window: Window) -> Resumed:
        """Return all of it."""
        return self._source({})

    def late(self, record: dict[str, Any] | None, window: Window) -> Iterator[Resumed]:
        """Yield nothing: an older file is one of which no line was read, wherever it stands."""
        return iter(())

    def resumed(self, record: dict[str, Any] | None, window: Window) -> _Start:
        """Return what comes behind the last run."""
        before: dict[str, Any] = record["files"] if record else {}
        mine = {f.key: {"label": f.label, "path": f.path, "size": f.size, "mtime_ns": f.mtime_ns} for f in self._files}
        kept = dict(list({name: entry for name, entry in before.items() if name not in mine}.items())[-KEPT:])
        known = {"files": {**kept, **mine}}
        if record is None:
            return _Start(self._source({}), False, "", known)
        again, end = record["again"], record["end"]
        tail = {name for name, lines in end.items() if lines > again.get(name, 0)}
        absent = {
            name
            for name in tail
            if name not in mine or (mine[name]["path"] == before[name]["path"] and mine[name]["size"] < before[name]["size"])
        }
        done = end if absent else again
        whole = [name for name in mine if name in before and mine[name] == before[name] and end.get(name) == done.get(name)]
        hole = (
            f"{self.what}: {', '.join(before[name]['label'] for name in sorted(absent))} is not there any more as it was at the last run, "
            "and lines that came to it since are missing in the lake; name the files that rotation makes too, as a pattern in quotes "
            f"({self.what}*)"
        )
        done = {name: lines for name, lines in done.items() if name in known["files"]}
        return _Start(self._source(done, whole), not absent, hole if absent else "", known)


class _StreamOrigin:
    """A pipe."""

    goes_on = False

    def __init__(self, stream: Any, options: ReadOptions) -> None:
        self._stream, self._options = stream, options
        self.key, self.what = "stream", "a pipe"

    def whole(self, window: Window) -> Resumed:
        """Return its lines."""
        return PlainStream(open_source(self._stream, selection=self._options.selection, window=window, tz=self._options.zone))

    def late(self, record: dict[str, Any] | None, window: Window) -> Iterator[Resumed]:
        """Yield nothing."""
        return iter(())

    def resumed(self, record: dict[str, Any] | None, window: Window) -> _Start:
        """Return its lines."""
        return _Start(self.whole(window), False, "", {})


_Origin = _JournalOrigin | _TextOrigin | _StreamOrigin


def _origins(paths: Sequence[Any], options: ReadOptions, manifest: Manifest, account: Coverage) -> Iterator[_Origin]:
    """Yield what is read, one after the other."""
    if not paths:
        place = options.place
        named = [place.directory] if place.directory is not None else place.files
        where = [str(Path(name).resolve()) for name in named] or [" ".join(["journal", *([place.namespace] if place.namespace else [])])]
        yield _JournalOrigin(place, where, options)
        return
    stats = SourceStats()
    journals, files, streams, failed = sorted_out(paths, stats)
    if failed and not (journals or files or streams):
        raise failed[0]
    account.damaged += map(str, failed)
    for note in stats.notes:
        account.add_note(note)
    if journals:
        where = sorted({str(Path(name).resolve().parent) for name in journals})
        yield _JournalOrigin(JournalPlace(files=tuple(map(glob.escape, journals))), where, options)
    sets: dict[str, list[TextFile]] = {}
    known = {
        name: entry for source in manifest.sources.values() if isinstance(source["files"], dict) for name, entry in source["files"].items()
    }
    for path in files:
        file = identify(path, known)
        known[file.key] = {"label": file.label, "path": file.path, "size": file.size, "mtime_ns": file.mtime_ns}
        base = str(Path(file.path).parent / rotation(Path(file.path).name)[0])
        if file.key not in {other.key for other in sets.get(base, ())}:
            sets.setdefault(base, []).append(file)
    for base, some in sets.items():
        yield _TextOrigin(base, some, options)
    for stream in streams:
        yield _StreamOrigin(stream, options)


def _key(kind: str, where: Sequence[str], options: ReadOptions) -> str:
    """Name a source: what is read, and who is asked for."""
    chosen = [kind, *where, *(f"{name} {value}" for name, value in dataclasses.asdict(options.selection).items() if value)]
    return f"{kind}-{hashlib.sha256(json.dumps(chosen).encode()).hexdigest()[:12]}"
