"""Tables that were written before: single files, folders of them, and datasets in Hive's layout, to which parts are added.

A dataset is ``ROOT/steps/host=kimi/date=2026-10-25/part-run.log-1a2b3c4d-0000.parquet``. The columns of the folders' names are not in
the files. Parts are made in ``.staging-ROOT`` beside the root and moved in one by one, so that a reader never meets half a part
whatever it takes for one. A part is named for what its rows came from: the same source again replaces its parts, another adds to them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ddtree_metrics.errors import OutputError, SchemaError, SourceDamaged, SourceDenied, SourceError, SourceNotFound
from ddtree_metrics.records import TABLES
from ddtree_metrics.schema import METADATA_PREFIX, SCHEMA_VERSION, arrow_schema, columns
from ddtree_metrics.tables import check_metadata, concat, conform, table_name
from ddtree_metrics.tables.atomic import lock, make_folder, swept, sync_folder, told
from ddtree_metrics.tables.manifest import UNKNOWN, account_of, is_lake, visible
from ddtree_metrics.tables.overlaps import Overlap, once
from ddtree_metrics.tables.writers import GROUP_ROWS, FileWriter, Metadata

# What Spark and Hive escape in a folder's name, the blank, which pyarrow does, and what cannot be seen. All readers undo any %XX.
_ODD = re.compile(r'[\x00-\x20"#%\'*/:=?\\{}\[\]^\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]')
_LONGEST = 200
_DAY_US = 86_400_000_000


class DatasetWriter:
    """Rows of one table on their way into a dataset.

    Parameters
    ----------
    root : str or path
        The dataset; the table is the folder of its name in it. It is made where it is missing.
    record : type
        The record class of the rows.
    partition : sequence of str
        What the folders are named for: columns of text, and ``date``, the UTC date of ``time``.
    source : str
        What the rows came from, in words that are the same next time: a path, or a unit and its window. Parts of the same source are
        replaced, also those in partitions that have no rows any more.
    metadata : mapping or callable, optional
        As for `ddtree_metrics.tables.writers.open_writer`; every part carries it.
    max_open : int
        How many parts may be open at once.

    Notes
    -----
    A context manager: nothing is in the dataset before the block ends, and nothing is if it ends with an error. Without rows nothing is
    written. At most two row groups of rows wait in memory over all parts together.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        record: type,
        partition: Iterable[str] = ("host", "date"),
        *,
        source: str,
        metadata: Metadata = None,
        max_open: int = 32,
    ) -> None:
        self.root = Path(os.path.realpath(root))
        self.rows = 0
        self._record = record
        self._partition = _checked(tuple(partition), record)
        self._leave_out = tuple(name for name in self._partition if name != "date")
        self._source = source
        self._metadata = metadata
        self._max_open = max(1, max_open)
        self._open: OrderedDict[tuple[str | None, ...], FileWriter] = OrderedDict()
        self._closed: list[tuple[Path, tuple[str | None, ...]]] = []
        self._numbers: dict[Path, int] = {}
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", Path(source).name or source).strip("-.")[-40:] or "rows"
        self._mark = hashlib.sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:8]
        self._stem = f"part-{slug}-{self._mark}"
        self._table = self.root / table_name(record)
        self._made: list[Path] = []
        self._lock: int | None = None
        self._staging = self.root.parent / f".staging-{self.root.name}" / secrets.token_hex(4)
        with self._guarded():
            self._stage()

    def _stage(self) -> None:
        if self.root.is_dir() and self.root.stat().st_dev != self.root.parent.stat().st_dev:
            raise OutputError(f"{self.root} is the top of its own file system, so parts cannot be moved into it; use a folder inside")
        if self.root.exists() and not self.root.is_dir():
            raise OutputError(f"{self.root} is a file, not a folder; choose another name", usage=True)
        above = self._staging.parent
        self._made += make_folder(above)
        with swept(above, staging=True):
            self._made += make_folder(self._staging)
            self._lock = os.open(self._staging, os.O_RDONLY)
            lock(self._lock)

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Take the next rows.

        Parameters
        ----------
        batch : RecordBatch or Table
            Columns of the record class; see `ddtree_metrics.tables.conform`.
        """
        with self._guarded():
            table = conform(batch, self._record)
            for key, found in _split(table, self._partition):
                rows = self._admitted(key, found)
                if not rows.num_rows:
                    continue
                writer = self._writer(key)
                writer.write(rows)
                self.rows += rows.num_rows
            while sum(w.pending_rows for w in self._open.values()) > 2 * GROUP_ROWS:
                max(self._open.values(), key=lambda w: w.pending_rows).flush()

    def _admitted(self, key: tuple[str | None, ...], rows: pa.Table) -> pa.Table:
        """Return those of the rows of a partition that are to be written."""
        return rows

    def _next_part(self, folder: Path) -> Path:
        """Name the next part of a folder, and say where it is staged."""
        number = self._numbers.get(folder, 0)
        self._numbers[folder] = number + 1
        return self._staging / folder / f"{self._stem}-{number:04d}.parquet"

    def _writer(self, key: tuple[str | None, ...]) -> FileWriter:
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        if len(self._open) >= self._max_open:
            oldest, writer = self._open.popitem(last=False)
            self._close(oldest, writer)
        staged = self._next_part(folder_of(self._partition, key))
        make_folder(staged.parent)
        self._open[key] = self._part(staged, key, None)
        return self._open[key]

    def _part(self, path: Path, key: tuple[str | None, ...], metadata: Mapping[str, str] | None) -> FileWriter:
        given = self._metadata if metadata is None else metadata
        meant = json.dumps(dict(zip(self._partition, key, strict=True)))

        def entries() -> dict[str, str]:
            return {
                **((given() if callable(given) else given) or {}),
                "partition": meant,
                "source": self._source.encode("utf-8", "backslashreplace").decode(),
            }

        return FileWriter(path, self._record, "parquet", force=True, metadata=entries, leave_out=self._leave_out, shown=str(self.root))

    def _close(self, key: tuple[str | None, ...], writer: FileWriter) -> None:
        writer.finish()
        writer.commit()
        if writer.path is not None:
            self._closed.append((writer.path, key))

    def finish(self) -> None:
        """Complete all parts; none is in the dataset yet."""
        with self._guarded():
            if callable(self._metadata) and self._closed:  # parts closed early do not have what is known only now
                final = self._metadata()
                for path, key in self._closed:
                    self._stamp(path, key, final)
            for key, writer in self._open.items():
                self._close(key, writer)
            self._open.clear()

    def commit(self) -> None:
        """Move the finished parts into the dataset, and remove older ones of the same source."""
        if self._open:
            self.finish()
        with self._guarded():
            self._move()
        self._clean()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Whatever goes wrong inside leaves nothing behind."""
        try:
            yield
        except OSError as error:
            self.abort()
            raise told(error, str(self.root)) from error
        except BaseException:
            self.abort()
            raise

    def _stamp(self, path: Path, key: tuple[str | None, ...], metadata: Mapping[str, str]) -> None:
        with pq.ParquetFile(path, page_checksum_verification=True) as old, self._part(path, key, metadata) as new:
            for group in range(old.num_row_groups):
                new.write(old.read_row_group(group))

    def _move(self) -> None:
        kept = set()
        for staged, _ in self._closed:
            final = self._table / staged.relative_to(self._staging)
            final.parent.mkdir(parents=True, exist_ok=True)
            staged.replace(final)
            sync_folder(final.parent)
            kept.add(final)
        if self._table.is_dir():
            for old in list(self._table.rglob(f"part-*-{self._mark}-????.parquet")):
                if old not in kept:
                    old.unlink()
                    with contextlib.suppress(OSError):  # folders that are empty now
                        for folder in old.parents[: len(self._partition)]:
                            folder.rmdir()

    def _clean(self) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        for folder in (self._staging.parent, *reversed(self._made)):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def abort(self) -> None:
        """Remove what was written so far; the dataset stays as it was."""
        for writer in self._open.values():
            writer.abort()
        self._open.clear()
        self._clean()

    def __del__(self) -> None:
        """Leave nothing where an interruption came before anybody could abort."""
        if getattr(self, "_lock", None) is not None:
            self.abort()

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.abort()
            return
        self.finish()
        self.commit()


def _checked(partition: tuple[str, ...], record: type) -> tuple[str, ...]:
    kinds = {c.name: c.kind for c in columns(record)}
    able = [name for name, kind in kinds.items() if kind == "str"] + (["date"] if "time" in kinds else [])
    wrong = [name for name in partition if name not in able or partition.count(name) > 1]
    if wrong or not partition:
        what = f"by {wrong[0]!r}" if wrong else "by nothing"
        raise OutputError(f"table {table_name(record)} cannot be partitioned {what}; it can by {', '.join(able)}", usage=True)
    return partition


def folder_of(partition: tuple[str, ...], key: tuple[str | None, ...]) -> Path:
    """Return the folder of a partition, from that of the table."""
    return Path(*(f"{name}={_escaped(value)}" for name, value in zip(partition, key, strict=True)))


def _escaped(value: str | None) -> str:
    """Write a value as a part of a folder's name; one that no file system takes is cut, and told from others by a hash.

    What it was is in the metadata of the parts.
    """
    if not value:
        return UNKNOWN
    escaped = _ODD.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), value)
    if len(escaped.encode("utf-8", "surrogateescape")) <= _LONGEST:
        return escaped
    mark = hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    start = escaped.encode("utf-8", "surrogateescape")[: _LONGEST - 9].decode("utf-8", "ignore")
    return f"{re.sub('%.?$', '', start)}~{mark}"


def _split(table: pa.Table, partition: tuple[str, ...]) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
    """Yield the rows of each partition, in order, partitions by their first row."""
    if table.num_rows == 0:
        return
    codes = np.zeros(table.num_rows, np.int64)
    words: list[list[str | None]] = []
    for name in partition:
        if name == "date":
            time = table.column("time").cast(pa.int64()).combine_chunks()
            us = time.fill_null(0).to_numpy(zero_copy_only=False)
            days = np.where(np.asarray(time.is_valid()), us // _DAY_US, np.iinfo(np.int64).min)
            found, code = np.unique(days, return_inverse=True)
            texts: list[str | None] = [None if d == np.iinfo(np.int64).min else str(np.datetime64(int(d), "D")) for d in found]
        else:
            held = table.column(name).combine_chunks().dictionary_encode()
            held = held.combine_chunks() if isinstance(held, pa.ChunkedArray) else held
            texts = [None, *held.dictionary.to_pylist()]
            code = held.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False) + 1
        codes = codes * len(texts) + code
        words.append(texts)
    unique, first = np.unique(codes, return_index=True)
    for code in unique[np.argsort(first)].tolist():
        key: list[str | None] = []
        rest = code
        for texts in reversed(words):
            rest, at = divmod(rest, len(texts))
            key.insert(0, texts[at])
        yield tuple(key), table if len(unique) == 1 else table.take(pa.array(np.flatnonzero(codes == code)))


# Reading back ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stored:
    """A file that export wrote."""

    path: Path
    kind: str
    table: str
    metadata: dict[str, str]

    @property
    def record(self) -> type:
        return TABLES[self.table]

    @property
    def partition(self) -> dict[str, str | None]:
        """The values of the columns that are in the folder's name."""
        made: dict[str, str | None] = json.loads(self.metadata.get("partition", "{}"))
        return made

    def read(self) -> pa.Table:
        with _told_as_source(self.path):
            if self.kind == "parquet":
                with self.path.open("rb") as opened, pq.ParquetFile(opened, page_checksum_verification=True) as file:
                    return self._restored(file.read())
            with _mapped(self.path) as mapped, pa.ipc.open_file(mapped) as file:
                table = file.read_all()
                table.validate(full=True)  # nothing else would notice places behind the end of a text
                return self._restored(table)

    def _restored(self, table: pa.Table) -> pa.Table:
        names = arrow_schema(self.record).names
        for name, value in self.partition.items():
            if name in names and name not in table.column_names:
                filled = pa.nulls(table.num_rows, pa.string()) if value is None else pa.repeat(pa.scalar(value), table.num_rows)
                table = table.append_column(name, filled)
        return conform(table, self.record)


def is_stored(path: str | os.PathLike[str]) -> bool:
    """Say whether a path holds tables rather than lines: a Parquet or Arrow file, or a folder with some in it and no journal files."""
    place = Path(path)
    try:
        if place.is_dir():
            if any(inside.name.endswith((".journal", ".journal~")) for inside in place.iterdir()):
                return False
            return is_lake(place) or next(iter(_inside(place)), None) is not None
        if not place.is_file():
            return False  # of a pipe nothing may be taken to look at it
        with place.open("rb") as file:
            return _kind_of(file.read(8)) is not None
    except OSError:
        return False


def all_stored(paths: Iterable[Any]) -> bool:
    """Say whether what is to be read are tables, all of it; a stream is none."""
    places = list(paths)
    return bool(places) and all(isinstance(place, str | Path) and str(place) != "-" and is_stored(place) for place in places)


def read_tables(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, overlaps: dict[str, list[Overlap]] | None = None
) -> dict[str, pa.Table]:
    """Read tables that export wrote; a row that several files have is there once.

    Parameters
    ----------
    paths : path or iterable of paths
        Parquet or Arrow files, folders of them, roots of datasets, or the folder of one table in a dataset.
    overlaps : dict, optional
        Takes, by table, which files share rows, and how many were left out.

    Returns
    -------
    dict of str to pyarrow.Table
        Each table that was found, with exactly its record class's columns, those of the folders' names among them. Files come in the order
        given, those of a folder by partition and then by the time of their first row; rows as they stand in the files. What the files say
        of themselves (coverage and so on) is in the schema's metadata; where files differ, as ``coverage``, ``coverage.1`` …

    Raises
    ------
    SourceNotFound, SourceDenied, SourceDamaged
        If a file is not there, may not be read, or is cut short.
    SchemaError
        If a file is of another origin, or of a newer schema.
    """
    parts: dict[str, list[pa.Table]] = {}
    files: dict[str, list[str]] = {}
    notes: dict[str, dict[str, list[str]]] = {}
    for stored in _stored(paths):
        parts.setdefault(stored.table, []).append(stored.read())
        files.setdefault(stored.table, []).append(str(stored.path))
        said = notes.setdefault(stored.table, {})
        for key, text in stored.metadata.items():
            if key not in ("record", "schema_version", "partition", "source") and text not in said.setdefault(key, []):
                said[key].append(text)
    made = {}
    roots = [Path(given) for given in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    for root in filter(is_lake, roots):
        for said in notes.values():
            for key, text in account_of(root):
                said.setdefault(key, []).append(text)
    for name, some in parts.items():
        # a lake has no row twice
        tables, shared = (some, []) if len(roots) == 1 and is_lake(roots[0]) else once(some, files[name])
        if overlaps is not None and shared:
            overlaps[name] = shared
        entries = {key if i == 0 else f"{key}.{i}": text for key, texts in notes[name].items() for i, text in enumerate(texts)}
        made[name] = concat(tables, TABLES[name]).replace_schema_metadata(arrow_schema(TABLES[name], entries).metadata)
    return made


@contextlib.contextmanager
def _told_as_source(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise SourceNotFound(f"no file {path}") from None
    except PermissionError:
        raise SourceDenied(f"{path} may not be read by this user; ask its owner, or copy it") from None
    except (pa.ArrowException, UnicodeDecodeError) as error:  # a wrong length asks for more memory than there is
        raise SourceDamaged(f"{path} is damaged or was not written to its end ({error}); export it again") from None
    except OSError as error:
        raise SourceDamaged(f"{path} cannot be read ({error.strerror or error})") from None


def _mapped(path: Path) -> Any:
    """Open a file for Arrow, without copying it where its name is one that Arrow takes."""
    return pa.memory_map(str(path)) if os.fsencode(path).decode("utf-8", "replace") == str(path) else path.open("rb")


def _kind_of(head: bytes) -> str | None:
    return "parquet" if head[:4] == b"PAR1" else "arrow" if head[:6] == b"ARROW1" else None


def _look(path: Path) -> tuple[_Stored, Any]:
    """Read a file's head and foot: what it is, and when its first row was."""
    with _told_as_source(path):
        with path.open("rb") as file:
            kind = _kind_of(file.read(8))
        first: Any = None
        if kind == "parquet":
            with path.open("rb") as file:
                foot = pq.read_metadata(file)
            metadata, names = foot.metadata or {}, foot.schema.to_arrow_schema().names
            first = _first_time(foot)
        elif kind == "arrow":
            with _mapped(path) as mapped, pa.ipc.open_file(mapped) as opened:
                metadata, names = opened.schema.metadata or {}, opened.schema.names
        else:
            raise SchemaError(f"{path} is neither a Parquet nor an Arrow file; give one that export wrote, or read it as text")
    said = {
        key.decode()[len(METADATA_PREFIX) :]: text.decode("utf-8", "replace")
        for key, text in metadata.items()
        if key.startswith(METADATA_PREFIX.encode())
    }
    by_class = {record.__name__: name for name, record in TABLES.items()}
    if "record" not in said:
        shown = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
        raise SchemaError(f"{path} was not written by ddtree-logs export: its metadata names no record class; its columns are {shown}")
    if said["record"] in by_class:
        check_metadata(metadata, TABLES[by_class[said["record"]]], str(path))
    else:
        raise SchemaError(
            f"{path} holds {said['record']} rows (schema version {said.get('schema_version')}), which this version of ddtree_metrics "
            f"does not know (it reads up to {SCHEMA_VERSION}); upgrade with: pip install --upgrade ddtree-metrics"
        )
    return _Stored(path, kind, by_class[said["record"]], said), first


def _first_time(foot: pq.FileMetaData) -> Any:
    """Return the earliest time of the first row group, where it is known."""
    if foot.num_row_groups == 0:
        return None
    group = foot.row_group(0)
    for i in range(group.num_columns):
        column = group.column(i)
        if column.path_in_schema in ("time", "received") and column.statistics is not None and column.statistics.has_min_max:
            return column.statistics.min
    return None


def _inside(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
        if path.suffix in (".parquet", ".arrow") and not hidden and path.is_file():
            yield path


def _visible(root: Path) -> list[Path]:
    return [part.path for parts in visible(root).parts.values() for part in parts]


def _stored(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[_Stored]:
    made: list[_Stored] = []
    for given in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        path = Path(given)
        if not path.is_dir():
            made.append(_look(path)[0])
            continue
        with _told_as_source(path):
            found = [_look(each) for each in (_visible(path) if is_lake(path) else _inside(path))]
        if not found:
            raise SourceNotFound(f"no Parquet file in {path}; give a file or a folder that export wrote")
        found.sort(key=lambda pair: (pair[0].path.parent, pair[1] is not None, str(pair[1] or ""), pair[0].path.name))
        made += [stored for stored, _ in found]
    if not made:
        raise SourceError("no file to read was given")
    return made
