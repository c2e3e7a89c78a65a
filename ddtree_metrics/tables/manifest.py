"""What belongs to a lake: the list of its parts, which one rename of a file changes, and what stands in it that does not belong there.

A lake is a dataset in Hive's layout with a folder ``_ddtree`` in its root; readers leave out names that begin with ``_``::

    LAKE/steps/host=kimi/date=2026-10-25/part-00000042-0000.parquet
    LAKE/_ddtree/manifest.json       the parts that are visible, and where each source was read to
    LAKE/_ddtree/staging/00000042/   parts on their way into their places, under names that no reader takes for Parquet
    LAKE/_ddtree/lock                held (flock) by whoever writes

A commit is the rename of ``manifest.json``, and comes before its parts are moved into their places: nobody ever meets a row that is not
committed, and what a killed process did not move is moved by the next one that writes (`settle`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from ddtree_metrics.errors import DDTreeWarning, OutputError, SchemaError, SourceNotFound
from ddtree_metrics.records import TABLES
from ddtree_metrics.schema import METADATA_PREFIX, SCHEMA_VERSION
from ddtree_metrics.tables.atomic import lock, make_folder, sync_folder, told, write_whole
from ddtree_metrics.times import format_us

OWN = "_ddtree"
"""The folder of a lake's own files."""
LAYOUT = 1
"""1: the first form."""
STAGED = ".part"
"""What a part's name ends in while it is staged."""
SAME_NAME_US = 60_000_000
"""Two boots of one machine do not overlap; by so much they may seem to, where its clock was set."""
WAIT_S = 600.0
"""So long another process that writes to a lake is waited for; after `SILENT_S` it is said."""
SILENT_S = 2.0
BEHIND_US = 3_600_000_000
"""Steps that are so much newer than the newest that was joined with requests are told of."""
AHEAD_S = 300.0
"""Rows that are so much newer than the file that holds them come from a clock that is ahead."""
HOURS_APART = (1.0, 24.0)
"""Newest rows of two hosts that are so many hours apart are named; further apart, one of them stopped."""
UNKNOWN = "unknown"
"""The folder of rows whose host or date is not known.

Hive's own word, ``__HIVE_DEFAULT_PARTITION__``, makes pandas and pyarrow refuse the whole dataset. Each part's metadata says what was
meant, so that null comes back as null here, and a machine that is called ``unknown`` keeps its name.
"""


@dataclass(slots=True)
class PartEntry:
    """What the manifest says of a part.

    Attributes
    ----------
    rows, bytes : int
    first_us, last_us : int or None
        The first and the last time of its rows.
    schema_version : int
    values : list of str or None
        What its folders are named for, in the order of the manifest's ``partition``.
    commit : int
        The commit that wrote it.
    source : str or None
        Whose newest rows it holds; such a part is written again as long as more rows come from there.
    boots : dict of str to list of int
        The first and the last time of each boot's rows, by the first eight digits of its id.
    """

    rows: int
    bytes: int
    first_us: int | None
    last_us: int | None
    schema_version: int
    values: list[str | None]
    commit: int
    source: str | None = None
    boots: dict[str, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Manifest:
    """The parts of a lake, and where its sources were read to.

    Attributes
    ----------
    commit : int
        How many commits there were.
    partition : list of str
        What the folders are named for.
    parts : dict of str to PartEntry
        By path from the root, with ``/``.
    sources : dict of str to dict
        What is remembered of each source.
    kept_from : str or None
        The first day that is kept; older ones were dropped, and are not taken again.
    """

    commit: int = 0
    partition: list[str] = field(default_factory=list)
    parts: dict[str, PartEntry] = field(default_factory=dict)
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    kept_from: str | None = None

    def to_json(self) -> bytes:
        """Return it as JSON, a part a line."""
        parts = ",\n".join(f"  {json.dumps(path)}: {json.dumps(dataclasses.asdict(entry))}" for path, entry in sorted(self.parts.items()))
        sources = ",\n".join(f"  {json.dumps(key)}: {json.dumps(known)}" for key, known in sorted(self.sources.items()))
        head = json.dumps({"layout": LAYOUT, "commit": self.commit, "partition": self.partition, "kept_from": self.kept_from})[:-1]
        return f'{head},\n "parts": {{\n{parts}\n }},\n "sources": {{\n{sources}\n }}}}\n'.encode()


@dataclass(frozen=True, slots=True)
class LakePart:
    """A file with rows of one table.

    Attributes
    ----------
    path : Path
        Where it is now.
    table : str
    partition : dict of str to (str or None)
        What its folders are named for.
    rows : int
    first_us, last_us : int or None
    schema_version : int
    name : str
        Its path from the root once it is in its place.
    """

    path: Path
    table: str
    partition: dict[str, str | None]
    rows: int
    first_us: int | None
    last_us: int | None
    schema_version: int
    name: str


@dataclass(slots=True)
class Visible:
    """What a reader of a lake sees.

    Attributes
    ----------
    parts : dict of str to list of LakePart
        By table, in the order of their names.
    notes : list of str
        What was left out and why, each in a sentence.
    deleted : list of str
        Folders of partitions of which nothing is left: somebody deleted them.
    broken : list of str
        The notes that tell of something that should not be: a part that is cut or missing, a file that is no part.
    """

    parts: dict[str, list[LakePart]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def _say(self, note: str) -> None:
        self.notes.append(note)
        self.broken.append(note)


def is_lake(root: str | os.PathLike[str]) -> bool:
    """Say whether a folder is a lake that has a manifest."""
    return (Path(root) / OWN / "manifest.json").is_file()


def load(root: Path) -> Manifest:
    """Read a lake's manifest; an empty one where there is none.

    Raises
    ------
    SchemaError
        If it is not one, or a newer version wrote it.
    """
    path = root / OWN / "manifest.json"
    try:
        found = json.loads(path.read_bytes())
        if found["layout"] > LAYOUT:
            raise SchemaError(f"{path} is of layout {found['layout']}, and this version reads up to {LAYOUT}: upgrade ddtree-metrics")
        parts = {name: PartEntry(**entry) for name, entry in found["parts"].items()}
        return Manifest(found["commit"], found["partition"], parts, found["sources"], found.get("kept_from"))
    except FileNotFoundError:
        return Manifest()
    except (ValueError, KeyError, TypeError) as error:
        raise SchemaError(
            f"{path} is no manifest of a lake ({error}); bring it back from a copy, or move it away and export anew into another folder"
        ) from None


def visible(root: str | os.PathLike[str]) -> Visible:
    """Say which parts a reader of a lake takes, and name all else that stands there; nothing is written.

    Parameters
    ----------
    root : path
        A lake, or a dataset without a manifest: then each file that ``export`` wrote is a part.

    Raises
    ------
    SourceNotFound
        If there is no such folder.
    SchemaError
        If the manifest cannot be read.
    """
    root = Path(root)
    if not root.is_dir():
        raise SourceNotFound(f"no folder {root}; a lake is made by: ddtree-logs export --append {root}")
    if not is_lake(root):
        made = Visible()
        for name, path in sorted(_files(root)):
            _add_unlisted(made, name, path)
        return made
    known = load(root)
    while True:
        made = _listed(root, known)
        again = load(root)
        if again.commit == known.commit:
            return made
        known = again  # another process has written in the meantime


def account_of(root: Path) -> list[tuple[str, str]]:
    """Return what is known of a lake's sources, as the metadata of a file would have it: ``coverage`` and ``counts``, each as JSON."""
    seen = visible(root)
    about = {"notes": [note for note in seen.notes if note not in seen.broken], "damaged": seen.broken}
    sources = load(root).sources.values()
    return [
        *(("coverage", json.dumps(known["account"])) for known in sources),
        *((("coverage", json.dumps(about)),) if seen.notes else ()),
        *(("counts", json.dumps(known["counts"])) for known in sources),
    ]


def _listed(root: Path, known: Manifest) -> Visible:
    """Compare what stands in a lake with its manifest."""
    made = Visible()
    there = dict(sorted(_files(root)))
    missing: dict[str, list[str]] = {}
    for name, entry in sorted(known.parts.items()):
        path = _place(root, name, entry)
        there.pop(name, None)
        if path is None:
            missing.setdefault(name.rpartition("/")[0], []).append(name)
        elif (size := path.stat().st_size) != entry.bytes:
            made._say(f"{path} has {size:,} of {entry.bytes:,} bytes: it was changed or half-written; its {entry.rows:,} rows are left out")
        elif _readable(made, path, entry.schema_version):
            values = dict(zip(known.partition, entry.values, strict=True))
            table = name.partition("/")[0]
            part = LakePart(path, table, values, entry.rows, entry.first_us, entry.last_us, entry.schema_version, name)
            made.parts.setdefault(table, []).append(part)
    for folder, names in missing.items():
        rows = sum(known.parts[name].rows for name in names)
        if any(name.rpartition("/")[0] == folder for name in known.parts if name not in names):
            made._say(f"{root / folder}: {', '.join(n.rpartition('/')[2] for n in names)} with {rows:,} rows is gone, others are there")
        else:
            made.deleted.append(folder)
            made.notes.append(f"{root / folder} was deleted, with {rows:,} rows")
    made.notes += _about_hosts(root, known) + _not_joined(known)
    for path in there.values():
        made._say(f"{path} is no part of this lake (it is not in its manifest) and is left out")
    return made


def _about_hosts(root: Path, known: Manifest) -> list[str]:
    """Name hosts of which two seem to have one name, and hosts whose clocks may be hours apart."""
    if "host" not in known.partition:
        return []
    at = known.partition.index("host")
    boots: dict[str, dict[str, list[int]]] = {}
    written: dict[str, float] = {}
    for name, entry in known.parts.items():
        host = entry.values[at]
        for boot, (first, last) in entry.boots.items() if host is not None else ():
            span = boots.setdefault(host or "", {}).setdefault(boot, [first, last])
            span[:] = min(first, span[0]), max(last, span[1])
            with contextlib.suppress(OSError):
                written[host or ""] = max(written.get(host or "", 0.0), (root / name).stat().st_mtime)
    made = []
    ends = {host: max(last for _, last in spans.values()) for host, spans in boots.items()}
    for host, spans in sorted(boots.items()):
        ordered = sorted(spans.items(), key=lambda item: item[1])
        for (one, (_, until)), (other, (since, _)) in itertools.pairwise(ordered):
            if until - since > SAME_NAME_US:
                made.append(
                    f"two machines are called {host!r}, or the clock of one was set back: boots {one} and {other} both wrote from "
                    f"{format_us(since)} on; their streams are kept apart, by host they are one"
                )
                break
        ahead = ends[host] / 1e6 - written.get(host, float("inf"))
        if ahead > AHEAD_S:
            made.append(f"the clock of {host!r} is ahead: it wrote lines {ahead / 3600:.1f} h after the time at which they were exported")
    newest = max(ends.values(), default=0)
    apart = {
        host: (newest - end) / 3.6e9 for host, end in sorted(ends.items()) if HOURS_APART[0] <= (newest - end) / 3.6e9 <= HOURS_APART[1]
    }
    if apart:
        some = ", ".join(f"{host!r} by {hours:.1f} h" for host, hours in list(apart.items())[:5]) + (" …" if len(apart) > 5 else "")
        made.append(f"the newest rows of hosts are hours apart ({some}): their clocks differ, their lines come late, or they stopped")
    return made


def _not_joined(known: Manifest) -> list[str]:
    """Say how far ``request_steps`` are behind ``steps``, where there are any."""
    newest = {
        table: max((e.last_us for name, e in known.parts.items() if name.startswith(f"{table}/") and e.last_us is not None), default=None)
        for table in ("steps", "request_steps")
    }
    steps, joined = newest["steps"], newest["request_steps"]
    if steps is None or joined is None or steps - joined < BEHIND_US:
        return []
    return [f"requests are joined up to {format_us(joined)}, steps go on to {format_us(steps)}: ddtree-logs lake join LAKE/ joins the rest"]


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield what stands in the folders of tables, by name from the root, without names that readers leave out."""
    for table in TABLES:
        for folder, inner, names in os.walk(root / table):
            inner[:] = [name for name in inner if not name.startswith((".", "_"))]
            for name in names:
                if not name.startswith((".", "_")):
                    path = Path(folder, name)
                    yield path.relative_to(root).as_posix(), path


def staging(root: Path, number: int) -> Path:
    """Return the folder in which the parts of a commit wait for being moved into their places."""
    return root / OWN / "staging" / f"{number:08d}"


def _place(root: Path, name: str, entry: PartEntry) -> Path | None:
    """Return where a part is: where it waits for being moved, or in its place already; None if it is gone."""
    for path in (staging(root, entry.commit) / (name + STAGED), root / name):
        if path.is_file():
            return path
    return None


def _readable(made: Visible, path: Path, version: int) -> bool:
    """Say whether a part of a schema version can be read; name it if it is not of this one."""
    if version > SCHEMA_VERSION:
        made._say(f"{path} has schema version {version}, this version reads up to {SCHEMA_VERSION}: upgrade ddtree-metrics; it is left out")
    elif version < SCHEMA_VERSION:
        made.notes.append(f"{path} has schema version {version}, older than {SCHEMA_VERSION}: columns that came later are null in it")
    return version <= SCHEMA_VERSION


def _add_unlisted(made: Visible, name: str, path: Path) -> None:
    """Take a file of a dataset without a manifest for what its footer says."""
    try:
        with path.open("rb") as file:
            foot = pq.read_metadata(file)
    except (pa.ArrowInvalid, OSError):
        made._say(f"{path} is no Parquet file, or is half-written; it is left out")
        return
    table, said = name.partition("/")[0], foot.metadata or {}
    record = said.get(f"{METADATA_PREFIX}record".encode(), b"").decode("utf-8", "replace")
    if record != TABLES[table].__name__:
        made._say(f"{path} was not written by ddtree-logs export into table {table}; it is left out")
        return
    version = int(said.get(f"{METADATA_PREFIX}schema_version".encode(), b"1"))
    if _readable(made, path, version):
        meant = said.get(f"{METADATA_PREFIX}partition".encode())
        values = json.loads(meant) if meant else dict(_named(folder) for folder in name.split("/")[1:-1])
        span = [time_of(foot, which) for which in ("min", "max")]
        made.parts.setdefault(table, []).append(LakePart(path, table, values, foot.num_rows, span[0], span[1], version, name))


def _named(folder: str) -> tuple[str, str | None]:
    name, _, value = folder.partition("=")
    return name, None if value == UNKNOWN else unquote(value)


def time_of(foot: pq.FileMetaData, which: str) -> int | None:
    """Return the first (``min``) or last (``max``) time of a file's rows in us, where its statistics say so."""
    names = foot.schema.names
    at = "time" if "time" in names else "received"
    found = []
    for number in range(foot.num_row_groups):
        group = foot.row_group(number)
        for i in range(group.num_columns):
            column = group.column(i)
            if column.path_in_schema == at and column.statistics is not None and column.statistics.has_min_max:
                found.append(int(pa.scalar(getattr(column.statistics, which), pa.timestamp("us", tz="UTC")).value))
    return None if not found else min(found) if which == "min" else max(found)


# Writing --------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def writing(root: Path, wait_s: float) -> Iterator[Manifest]:
    """Hold a lake alone, settle what a killed process left, and give its manifest.

    Parameters
    ----------
    root : Path
        The lake; its own folder is made where it is missing.
    wait_s : float
        How long another writer is waited for.

    Raises
    ------
    OutputError
        If another process is still writing then, or the folder cannot be written.
    """
    own = root / OWN
    made = make_folder(own)
    try:
        number = os.open(own / "lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as error:
        raise told(error, str(own)) from error
    try:
        began, told_of = time.monotonic(), False
        while not lock(number):
            waited = time.monotonic() - began
            if waited >= wait_s:
                raise OutputError(f"another process writes to {root}, for more than {wait_s:g} s; run it again when that is done")
            if waited > SILENT_S and not told_of:
                told_of = True
                warnings.warn(f"another process writes to {root}; waiting until it is done", DDTreeWarning, stacklevel=4)
            time.sleep(0.05)
        manifest = load(root)
        settle(root, manifest)
        yield manifest
    finally:
        if not (own / "manifest.json").exists():
            with contextlib.suppress(OSError):
                (own / "lock").unlink()
            shutil.rmtree(own / "staging", ignore_errors=True)
            for folder in reversed(made):
                with contextlib.suppress(OSError):
                    folder.rmdir()
        os.close(number)


def settle(root: Path, manifest: Manifest) -> None:
    """Move the parts of the newest commit into their places, and remove all that no commit knows: the left-overs of killed processes.

    Files that were never a lake's are left alone; `visible` names them.
    """
    own = root / OWN
    try:
        removed = own / "removed.json"
        if removed.is_file():
            for name in json.loads(removed.read_bytes()).get(str(manifest.commit), ()):
                if name not in manifest.parts:
                    _remove(root, name)
            removed.unlink()
        waiting = staging(root, manifest.commit)
        if waiting.is_dir():
            for path in sorted(waiting.rglob(f"*{STAGED}")):
                name = path.relative_to(waiting).as_posix().removesuffix(STAGED)
                if name in manifest.parts:
                    final = root / name
                    final.parent.mkdir(parents=True, exist_ok=True)
                    path.replace(final)
                    sync_folder(final.parent)
        shutil.rmtree(own / "staging", ignore_errors=True)
        named = {known["memory"] for known in manifest.sources.values()}
        for path in (own / "sources").glob("*.json"):
            if f"sources/{path.name}" not in named:
                path.unlink()
    except OSError as error:
        raise told(error, str(root)) from error


def commit(root: Path, manifest: Manifest, removed: list[str]) -> None:
    """Make a manifest the lake's, then move its parts in and remove the files of those that it no longer has.

    Parameters
    ----------
    root : Path
    manifest : Manifest
        With the new number of its commit, whose parts are staged.
    removed : list of str
        Parts that it no longer has.
    """
    own = root / OWN
    if removed:
        write_whole(own / "removed.json", json.dumps({str(manifest.commit): removed}).encode(), force=True)
    write_whole(own / "manifest.json", manifest.to_json(), force=True)
    settle(root, manifest)


def _remove(root: Path, name: str) -> None:
    path = root / name
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    with contextlib.suppress(OSError):  # folders that are empty now
        for folder in path.relative_to(root).parents:
            if folder.name:
                (root / folder).rmdir()
