"""A reading written out: one table to one file, all tables to a folder, or a partitioned dataset, in bounded memory.

Only the join needs steps in memory; without requests every table is written as its rows come. Where nobody knows yet whether the log's
own lines will tell of requests, steps wait on disk.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.appending import append_lines
from ddtree_metrics.coverage import Coverage
from ddtree_metrics.destinations import IN_A_FOLDER, OF_REQUESTS, chosen_tables, dataset_source, files_of, is_folder, refuse_inputs
from ddtree_metrics.errors import OutputError
from ddtree_metrics.keywords import ReadKeywords, spelled_out
from ddtree_metrics.opening import read_options, several, zone_of
from ddtree_metrics.reading import JOINED_OF, LINE_TABLES, Readable, Tables, start_reading
from ddtree_metrics.records import TABLES
from ddtree_metrics.tables.atomic import make_folder, swept
from ddtree_metrics.tables.datasets import DatasetWriter, all_stored
from ddtree_metrics.tables.packed import Packed, pack
from ddtree_metrics.tables.writers import FileWriter, open_writer
from ddtree_metrics.times import parse_window

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ddtree_metrics.keywords import PathLike, Paths
    from ddtree_metrics.log import Log


IN_A_DATASET = (*LINE_TABLES, "request_steps")
"""The tables that a dataset may hold: those with a host and a time in each row."""


@dataclass(slots=True)
class Written:
    """What an export wrote.

    Attributes
    ----------
    rows : dict of str to int
        Rows by table.
    paths : list of Path
        The files, or the folder of a dataset.
    coverage : Coverage
        What the read met.
    """

    rows: dict[str, int] = field(default_factory=dict)
    paths: list[Path] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)


def metadata_of(reading: Readable) -> dict[str, str]:
    """Return what a file says of itself: coverage and conventions, each as JSON."""
    return {"coverage": reading.coverage.to_json(), "counts": reading.conventions.to_json()}


class StoredTables:
    """The tables of a log, one after the other, as if they were read from lines."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.coverage = log.coverage
        self.conventions = log.counts
        self.on_error = "skip"

    def __iter__(self) -> Iterator[Tables]:
        """Yield the tables, in pieces."""
        for name in TABLES:
            for batch in self._log.table(name).to_batches() if name in self._log.stored else ():
                yield {name: batch}


@spelled_out(ReadKeywords)
def export(
    source: Log | Paths | None = None,
    output: PathLike | None = None,
    *,
    tables: Sequence[str] = (),
    format: str | None = None,
    partition: Sequence[str] = (),
    append: bool = False,
    requests: PathLike | Sequence[PathLike] | None = None,
    clock_offset_s: float | None = None,
    force: bool = False,
    **options: Unpack[ReadKeywords],
) -> Written:
    """Read and write in one go, in bounded memory: tables as Parquet, CSV, JSON lines or Arrow.

    Parameters
    ----------
    source : Log, path, binary file, or sequence of paths or files, optional
        What is read, or a log that was; without it the journal of this machine.
    output : str or Path, optional
        A file; a folder (it is there, or its name ends in ``/``) for a file a table; ``-`` for stdout. Without it files in this folder,
        named after the end of the window.
    tables : sequence of str
        Which tables, or ``all``; steps if not given (in a folder all but ``request_lines``).
    format : str, optional
        ``parquet``, ``csv``, ``jsonl`` or ``arrow``; by the suffix if not given.
    partition : sequence of str
        Columns by which a Hive-partitioned dataset is parted in the folder ``output``: ``host, date``.
    append : bool
        Whether ``output`` is a lake to which what is new is added: each source is read on from where the last run ended, and no row is
        there twice. The window then is that of the first run; with an earlier ``since`` what came before is added.
    requests, clock_offset_s : optional
        As for ``Log.with_requests``.
    force : bool
        Whether a file that is there is written over.
    **options
        As for ``read``, where lines are read.

    Returns
    -------
    Written

    Raises
    ------
    OutputError
        If a file cannot be written, or is there already, or is read; nothing half-written is left, and old files are as they were.
    """
    from ddtree_metrics.loading import read_parquet
    from ddtree_metrics.log import Log

    log = source if isinstance(source, Log) else None
    paths = None if isinstance(source, Log) else source
    if append:
        if log is not None or all_stored(several(paths)):
            raise OutputError("a lake takes lines, not tables of an earlier export: name the journal or the log files", usage=True)
        if output is None or str(output) == "-" or format not in (None, "parquet") or requests is not None:
            raise OutputError("a lake is a folder of Parquet files with tables of lines: name it, without a format or requests", usage=True)
        return _appended(paths, Path(output), tables, partition, options)
    now_us = options.get("now_us") or time.time_ns() // 1000
    options["now_us"] = now_us
    if all_stored(several(paths)):
        given: Any = options
        log = read_parquet([Path(str(place)) for place in several(paths)], **given)
    request_files = several(requests)
    names = chosen_tables(tables, output, with_requests=bool(request_files))
    window = parse_window(options.get("since"), options.get("until"), now_us=now_us, tz=zone_of(options.get("tz")))
    end_us = now_us if window.until_us is None else window.until_us
    inputs = [
        *several(paths),
        *request_files,
        *several(options.get("dialect_file")),
        options.get("directory"),
        *several(options.get("files")),
    ]
    read = [place for place in inputs if isinstance(place, str | Path)]

    def joined(found: Log) -> Log:
        return found.with_requests(list(request_files), tz=options.get("tz"), clock_offset_s=clock_offset_s) if request_files else found

    if log is not None:
        log = joined(log)
    if partition:
        if output is None or str(output) == "-":
            raise OutputError("a partitioned dataset is written into a folder: name it (-o DIR/)", usage=True)
        if format not in (None, "parquet"):
            raise OutputError("a partitioned dataset is made of Parquet files; leave the format out", usage=True)
        refuse_inputs([output], read)
        names = tuple(n for n in (names if tables else IN_A_FOLDER) if n != "requests")
        reading = start_reading(paths, **options) if log is None else StoredTables(log)
        files = [str(place) if isinstance(place, str | Path) else "-" for place in several(paths)]
        called = dataset_source(files, reading.coverage.source, end_us, options)
        joins = log is None or "request_steps" not in log.stored
        return export_dataset(
            reading,
            output,
            names,
            partition=tuple(partition),
            source=called,
            join=(lambda found: joined(found) if log is None else log) if joins else None,
            asked=bool(request_files or "request_steps" in tables),
        )
    destinations = files_of(names, output, format, end_us)
    refuse_inputs(destinations.values(), read)
    later = [name for name in OF_REQUESTS if name in destinations]
    keep = JOINED_OF if "request_steps" in later else ("request_lines",) if later else ()
    # steps of requests that nobody asked for are written only where there are any
    asked = bool(request_files or tables) or (log is not None and "request_steps" in log.stored)

    def finish(found: Log) -> dict[str, Iterable[pa.Table]]:
        whole = joined(found) if log is None else log
        parts = {"requests": lambda: iter([whole.table("requests")]), "request_steps": whole.joined_parts}
        return {name: parts[name]() for name in later if name != "request_steps" or "steps" in whole.stored}

    return write_reading(
        start_reading(paths, **options) if log is None else StoredTables(log),
        destinations,
        format=format,
        force=force,
        finish=finish if later else None,
        keep=keep,
        optional=("request_steps",) if "request_steps" in later and not asked else (),
        make_folders=is_folder(output),
    )


def _appended(paths: Paths | None, root: Path, tables: Sequence[str], partition: Sequence[str], options: ReadKeywords) -> Written:
    """Put what is new into a lake."""
    refuse_inputs([root], [place for place in several(paths) if isinstance(place, str | Path)])
    asked = chosen_tables(tables, root, with_requests=False) if tables else LINE_TABLES
    names = [name for name in asked if name in LINE_TABLES]
    if not names:
        raise OutputError(f"a lake holds tables of lines: {', '.join(LINE_TABLES)}", usage=True)
    made = append_lines(root, several(paths), read_options(**options), tables=names, partition=partition)
    return Written(made.rows, [root], made.coverage)


def write_reading(
    reading: Readable,
    destinations: Mapping[str, PathLike],
    *,
    format: str | None = None,
    force: bool = False,
    finish: Callable[[Log], dict[str, Iterable[pa.Table]]] | None = None,
    keep: Iterable[str] = (),
    optional: Iterable[str] = (),
    make_folders: bool = False,
) -> Written:
    """Write tables of a reading as its rows come.

    Parameters
    ----------
    reading : Reading
        What is read; it is passed over once.
    destinations : dict of str to path
        Where each table goes; ``-`` is stdout.
    format : str, optional
        ``parquet``, ``csv``, ``jsonl`` or ``arrow``; by the suffix if not given.
    force : bool
        Whether a file that is there is written over.
    finish : callable, optional
        Gets the tables that were kept (``keep``) as a ``Log`` when all lines are read, and returns more tables to write; for
        requests and their steps, which need other tables whole.
    keep : iterable of str
        Tables to keep for ``finish``: compressed, in passing files beside those that are written.
    optional : iterable of str
        Tables that are written only if the lines speak of requests. Without such lines ``finish`` gets nothing but ``request_lines``.
    make_folders : bool
        Whether a folder that is not there is made; it is removed again if nothing is written.

    Returns
    -------
    Written

    Raises
    ------
    OutputError
        If a file cannot be written; nothing half-written is left, and old files are as they were.
    """
    written = Written(coverage=reading.coverage)
    unsure = tuple(optional)
    beside = next((Path(path).parent for path in destinations.values() if str(path) != "-"), None)
    kept = _Kept(keep, beside)
    writers: dict[str, FileWriter] = {}
    parents = {Path(path).parent for path in destinations.values() if str(path) != "-"} if make_folders else set()
    # noted before they are made, so that a signal in between leaves none of them
    folders = sorted((f for parent in parents for f in (parent, *parent.parents) if not f.exists()), key=lambda f: len(f.parts))
    try:
        for parent in parents:
            make_folder(parent)
        for name, path in destinations.items():
            writers[name] = open_writer(path, TABLES[name], format=format, force=force, metadata=lambda: metadata_of(reading))
        for tables in reading:
            kept.take(tables)
            for name, batch in tables.items():
                if name in writers and name in LINE_TABLES:
                    writers[name].write(batch)
        if finish is not None:
            if unsure and not kept.speaks_of_requests():
                for name in unsure:
                    writers.pop(name).abort()
                kept.forget_all_but("request_lines")
            for name, parts in finish(kept.log(reading)).items():
                for part in parts if name in writers else ():
                    writers[name].write(part)
        # all are complete before the first is moved into its place
        for writer in writers.values():
            writer.finish()
    except BaseException:
        for writer in writers.values():
            writer.abort()
        for folder in reversed(folders):
            with contextlib.suppress(OSError):
                with swept(folder):  # a writer may have been interrupted while it was made
                    pass
                folder.rmdir()
        raise
    finally:
        kept.close()
    for writer in writers.values():
        writer.commit()
    written.rows = {name: writer.rows for name, writer in writers.items()}
    written.paths = [Path(path) for name, path in destinations.items() if str(path) != "-" and name in writers]
    return written


class _Kept:
    """Tables that are kept until all lines are read: compressed, in passing files beside those that are written."""

    def __init__(self, names: Iterable[str], beside: Path | None) -> None:
        self._rows = {name: Packed(TABLES[name], beside) for name in names}
        self._all = list(self._rows.values())

    def take(self, tables: Tables) -> None:
        """Keep the next rows."""
        for name, batch in tables.items():
            if name in self._rows:
                pack([batch], self._rows[name])

    @functools.cached_property
    def _lines(self) -> pa.Table | None:
        return self._rows["request_lines"].table() if "request_lines" in self._rows else None

    def speaks_of_requests(self) -> bool:
        """Whether any line tells of a request that can be joined: an access line does not."""
        lines = self._lines
        if lines is None or not lines.num_rows:
            return False
        return bool(pc.any(pc.is_in(lines["event"], value_set=pa.array(["received", "finished", "stats"]))).as_py())

    def forget_all_but(self, name: str) -> None:
        """Leave out the other tables."""
        self._rows = {kept: rows for kept, rows in self._rows.items() if kept == name}

    def log(self, reading: Readable) -> Log:
        """Return the tables as a log; its steps stay compressed."""
        from ddtree_metrics.log import Log

        whole = {name: rows.table() for name, rows in self._rows.items() if name not in ("steps", "request_lines")}
        whole |= {} if self._lines is None else {"request_lines": self._lines}
        return Log(whole, reading.coverage, reading.conventions, {name: self._rows[name] for name in ("steps",) if name in self._rows})

    def close(self) -> None:
        """Remove the passing files."""
        for rows in self._all:
            rows.close()


def export_dataset(
    reading: Readable,
    root: Path | str,
    names: Iterable[str],
    *,
    partition: tuple[str, ...] = ("host", "date"),
    source: str = "",
    join: Callable[[Log], Log] | None = None,
    asked: bool = False,
) -> Written:
    """Write tables of a reading into a Hive-partitioned dataset, ``root/<table>/host=…/date=…``.

    Parameters
    ----------
    reading : Reading
        What is read.
    root : path
        The dataset's folder; made if it is not there. Parts of the same source are replaced, others stay.
    names : iterable of str
        The tables.
    partition : tuple of str
        The columns to part by: ``host``, ``date`` (of ``time``, UTC), or any column of text.
    source : str
        A name for what is read; it makes the parts' file names.
    join : callable, optional
        Gets the tables that steps of requests are made of, as a log, when all lines are read, and gives it with its requests; without it
        ``request_steps`` are those of the reading.
    asked : bool
        Whether ``request_steps`` are written where no line speaks of a request.
    """
    chosen = [n for n in names if n in IN_A_DATASET]
    if not chosen:
        raise OutputError(f"a dataset holds tables of lines, and request_steps: {', '.join(LINE_TABLES)}", usage=True)
    written = Written(paths=[Path(root)], coverage=reading.coverage)
    writers: dict[str, DatasetWriter] = {}
    joins = join is not None and "request_steps" in chosen
    kept = _Kept(JOINED_OF if joins else (), Path(root).parent)
    try:
        for name in chosen:
            writers[name] = DatasetWriter(root, TABLES[name], partition, source=source or "lines", metadata=lambda: metadata_of(reading))
        for tables in reading:
            kept.take(tables)
            for name, batch in tables.items():
                if name in writers and not (joins and name == "request_steps"):
                    writers[name].write(batch)
        if joins and join is not None and (asked or kept.speaks_of_requests()):
            for part in join(kept.log(reading)).joined_parts():
                writers["request_steps"].write(part)
        # all are complete before the first is moved into its place
        for writer in writers.values():
            writer.finish()
        for writer in writers.values():
            writer.commit()
    except BaseException:
        for writer in writers.values():
            writer.abort()
        raise
    finally:
        kept.close()
    written.rows = {name: writer.rows for name, writer in writers.items() if writer.rows or name != "request_steps"}
    return written
