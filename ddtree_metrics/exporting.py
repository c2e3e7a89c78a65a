"""A reading written out: one table to one file, all tables to a folder, or a partitioned dataset, in bounded memory.

Only the join needs steps in memory; without requests every table is written as its rows come. Where nobody knows yet whether the log's
own lines will tell of requests, steps wait on disk.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics import tables as _tables
from ddtree_metrics.errors import OutputError
from ddtree_metrics.reading import LINE_TABLES, Readable
from ddtree_metrics.records import TABLES
from ddtree_metrics.tables.atomic import make_folder, swept, told
from ddtree_metrics.tables.datasets import DatasetWriter
from ddtree_metrics.tables.writers import FileWriter, open_writer

if TYPE_CHECKING:
    from ddtree_metrics.log import Log


@dataclass(slots=True)
class Written:
    """What an export wrote.

    Attributes
    ----------
    rows : dict of str to int
        Rows by table.
    paths : list of Path
        The files, or the folder of a dataset.
    """

    rows: dict[str, int] = field(default_factory=dict)
    paths: list[Path] = field(default_factory=list)


def metadata_of(reading: Readable) -> dict[str, str]:
    """Return what a file says of itself: coverage and conventions, each as JSON."""
    return {"coverage": reading.coverage.to_json(), "counts": reading.conventions.to_json()}


def export(
    reading: Readable,
    destinations: dict[str, Path | str],
    *,
    format: str | None = None,
    force: bool = False,
    finish: Callable[[Log], dict[str, pa.Table]] | None = None,
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
        Tables to keep in memory for ``finish``.
    optional : iterable of str
        Tables that are written only if the lines speak of requests. What is kept for them waits on disk, beside the files, and
        without such lines ``finish`` gets nothing of it but ``request_lines``.
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
    from ddtree_metrics.log import Log

    made = Written()
    maybe = tuple(optional)
    kept: dict[str, _Kept] = {name: _Kept(name) for name in keep}
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
            for name, batch in tables.items():
                if name in kept:
                    kept[name].add(batch, Path(destinations[maybe[0]]).parent if maybe and name != "request_lines" else None)
                if name in writers and name in LINE_TABLES:
                    writers[name].write(batch)
        if finish is not None:
            whole = {name: part.table() for name, part in kept.items() if not maybe or name == "request_lines"}
            if maybe and _speaks_of_requests(whole.get("request_lines")):
                whole |= {name: part.table() for name, part in kept.items() if name not in whole}
                maybe = ()
            for name in maybe:
                writers.pop(name).abort()
            for name, table in finish(Log(whole, reading.coverage, reading.conventions)).items():
                if name in writers:
                    writers[name].write(table)
        # all are complete before the first is moved into its place
        for writer in writers.values():
            writer.finish()
    except BaseException:
        for part in kept.values():
            part.close()
        for writer in writers.values():
            writer.abort()
        for folder in reversed(folders):
            with contextlib.suppress(OSError):
                with swept(folder):  # a writer may have been interrupted while it was made
                    pass
                folder.rmdir()
        raise
    for part in kept.values():
        part.close()
    for writer in writers.values():
        writer.commit()
    made.rows = {name: writer.rows for name, writer in writers.items()}
    made.paths = [Path(path) for name, path in destinations.items() if str(path) != "-" and name in writers]
    return made


class _Kept:
    """The rows of one table that are needed whole at the end: in memory, or in a file without a name that goes with the process."""

    def __init__(self, name: str) -> None:
        self.record = TABLES[name]
        self.parts: list[pa.RecordBatch] = []
        self.file: IO[bytes] | None = None
        self.stream: Any = None

    def add(self, batch: pa.RecordBatch, folder: Path | None) -> None:
        """Keep some rows, in a folder's file if one is given."""
        if folder is None:
            self.parts.append(batch)
            return
        try:
            if self.file is None:
                self.file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by table or close
                self.stream = pa.ipc.new_stream(self.file, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
            self.stream.write_batch(batch)
        except OSError as error:
            raise told(error, f"a passing file in {folder}") from error

    def table(self) -> pa.Table:
        """Return all rows."""
        if self.file is not None:
            self.stream.close()
            self.file.seek(0)
            self.parts = list(pa.ipc.open_stream(self.file))
            self.close()
        return _tables.concat(self.parts, self.record)

    def close(self) -> None:
        """Let go of the file."""
        if self.file is not None:
            with contextlib.suppress(OSError):  # what it still holds may find no room
                self.file.close()
            self.file = None


def _speaks_of_requests(lines: pa.Table | None) -> bool:
    """Whether any line tells of a request that can be joined: an access line does not."""
    if lines is None or not lines.num_rows:
        return False
    return bool(pc.any(pc.is_in(lines["event"], value_set=pa.array(["received", "finished", "stats"]))).as_py())


def export_dataset(
    reading: Readable, root: Path | str, names: Iterable[str], *, partition: tuple[str, ...] = ("host", "date"), source: str = ""
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
    """
    chosen = [n for n in names if n in LINE_TABLES]
    if not chosen:
        raise OutputError(f"a dataset holds tables of lines: {', '.join(LINE_TABLES)}", usage=True)
    made = Written(paths=[Path(root)])
    writers: dict[str, DatasetWriter] = {}
    try:
        for name in chosen:
            writers[name] = DatasetWriter(root, TABLES[name], partition, source=source or "lines", metadata=lambda: metadata_of(reading))
        for tables in reading:
            for name, batch in tables.items():
                if name in writers:
                    writers[name].write(batch)
        # all are complete before the first is moved into its place
        for writer in writers.values():
            writer.finish()
        for writer in writers.values():
            writer.commit()
    except BaseException:
        for writer in writers.values():
            writer.abort()
        raise
    made.rows = {name: writer.rows for name, writer in writers.items()}
    return made
