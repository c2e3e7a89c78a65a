"""Tables into files: Parquet, CSV, JSON lines, Arrow; whole or not at all.

Whatever goes wrong before a file is complete (a full disk, Ctrl-C, an error in the rows) leaves nothing behind, and the old file as it
was; ``placing`` sees to that, this module to the formats.
"""

from __future__ import annotations

import base64
import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from ddtree_metrics.errors import OutputError
from ddtree_metrics.schema import Column, arrow_schema, columns
from ddtree_metrics.tables import conform
from ddtree_metrics.tables.atomic import Beside, Destination, Stdout, make_folder, refuse_existing, told
from ddtree_metrics.tables.text_formats import csv_header, csv_lines, json_lines

FORMATS: dict[str, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"),
    "csv": (".csv",),
    "jsonl": (".jsonl", ".ndjson"),
    "arrow": (".arrow", ".feather"),
}
"""The formats, and the suffixes that mean them."""

PLACES = ("where",)
"""Columns of text in which each value is another one, and goes on where the one before it ends."""
GROUP_ROWS = 262_144
GROUP_BYTES = 256 << 20

Metadata = Mapping[str, str] | Callable[[], Mapping[str, str]] | None


class TableWriter(Protocol):
    """Something that rows of one table can be written to, batch after batch."""

    rows: int

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Take the next rows."""

    def __enter__(self) -> TableWriter: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def format_of(path: str | os.PathLike[str], given: str | None = None) -> str:
    """Return the format of a file: the one that is given, else the one its suffix means.

    Parameters
    ----------
    path : str or path
        Where to write; ``-`` is stdout, which has no suffix.
    given : str, optional
        One of `FORMATS`.

    Returns
    -------
    str

    Raises
    ------
    OutputError
        (exit code 2) If there is no such format, or the suffix means none.
    """
    accepted = ", ".join(f"{name} ({' '.join(ends)})" for name, ends in FORMATS.items())
    if given is not None:
        if given.lower() in FORMATS:
            return given.lower()
        raise OutputError(f"no format {given!r}; the formats are {accepted}", usage=True)
    text = os.fspath(path)
    for name, ends in FORMATS.items():
        if text.lower().endswith(ends):
            return name
    what = "stdout has no suffix that tells the format" if text == "-" else f"the suffix of {text!r} means no format"
    raise OutputError(f"{what}; give the format, or use one of {accepted}", usage=True)


def open_writer(
    path: str | os.PathLike[str],
    record: type,
    *,
    format: str | None = None,
    force: bool = False,
    metadata: Metadata = None,
) -> FileWriter:
    """Open a file for the rows of one table.

    Parameters
    ----------
    path : str or path
        Where to; ``-`` is stdout.
    record : type
        The record class of the rows.
    format : str, optional
        ``parquet``, ``csv``, ``jsonl`` or ``arrow``; without it, the suffix decides.
    force : bool
        Whether a file that exists may be replaced.
    metadata : mapping or callable, optional
        Entries for the metadata of the file and of its schema, without the prefix ``ddtree_metrics.``; a callable is asked when
        all rows are written. CSV and JSON lines have no place for it.

    Returns
    -------
    FileWriter
        A context manager with ``write(batch)``. The file is in place when the block ends without an error, and else is not there.

    Raises
    ------
    OutputError
        If the file cannot be written there; exit code 2 where the call was wrong (no such format, the file exists).
    """
    return FileWriter(path, record, format_of(path, format), force=force, metadata=metadata)


class FileWriter:
    """The rows of one table on their way into a file; see `open_writer`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        record: type,
        format: str,
        *,
        force: bool = False,
        metadata: Metadata = None,
        leave_out: tuple[str, ...] = (),
        shown: str | None = None,
    ) -> None:
        self.rows = 0
        self._record = record
        self._leave_out = leave_out
        self._metadata = metadata
        self._place: Destination = Stdout(format) if os.fspath(path) == "-" else Beside(Path(path), force, shown)
        self._body: _Body
        with self._guarded():
            self._body = _BODIES[format](self._place, record, leave_out)

    @property
    def path(self) -> Path | None:
        """Where the file will be; None for stdout."""
        return self._place.final

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Take the next rows.

        Parameters
        ----------
        batch : RecordBatch or Table
            Columns of the record class; see `ddtree_metrics.tables.conform`.
        """
        with self._guarded():
            table = conform(batch, self._record)
            if self._leave_out:
                table = table.drop_columns(list(self._leave_out))
            self._body.write(table)
            self.rows += table.num_rows

    @property
    def pending_rows(self) -> int:
        """Rows that wait in memory for their row group."""
        return getattr(self._body, "pending_rows", 0)

    def flush(self) -> None:
        """Write the rows that wait, as a smaller row group."""
        with self._guarded():
            if isinstance(self._body, _Parquet):
                self._body.flush()

    def finish(self) -> None:
        """Write what belongs at the end, and bring the file to the disk; it is not in its place yet."""
        with self._guarded():
            given = self._metadata() if callable(self._metadata) else self._metadata
            self._body.finish(dict(given or {}))
            self._place.finish()

    def commit(self) -> None:
        """Move the finished file into its place."""
        with self._guarded():
            self._place.commit()

    def abort(self) -> None:
        """Remove what was written so far."""
        self._place.abort()
        body = getattr(self, "_body", None)
        if body is not None:
            with contextlib.suppress(Exception):
                body.abort()

    @contextlib.contextmanager
    def _guarded(self) -> Any:
        """Whatever goes wrong inside leaves nothing behind, and is told in our words where it is the disk's fault."""
        try:
            yield
        except BrokenPipeError:
            self.abort()
            raise
        except OSError as error:
            self.abort()
            raise told(error, self._place.name) from error
        except BaseException:
            self.abort()
            raise

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.abort()
            return
        self.finish()
        self.commit()


class FolderWriter:
    """Several tables, each in its file of a folder: ``DIR/steps.parquet``, ``DIR/decode.parquet`` and so on.

    Parameters
    ----------
    folder : str or path
        It is made where it is missing.
    tables : mapping of str to type
        The record class of each table. Each gets a file, also without rows.
    format : str
        As for `open_writer`.
    force : bool
        Whether files that exist may be replaced; without it, one of them stops all before anything is written.
    metadata : mapping or callable, optional
        As for `open_writer`; the same for all.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        tables: Mapping[str, type],
        *,
        format: str = "parquet",
        force: bool = False,
        metadata: Metadata = None,
    ) -> None:
        self.folder = Path(folder)
        suffix = FORMATS[format_of("", format)][0]
        self._made = make_folder(self.folder)
        self.writers: dict[str, FileWriter] = {}
        try:
            for name in tables:
                refuse_existing(self.folder / f"{name}{suffix}", force)
            for name, record in tables.items():
                self.writers[name] = FileWriter(
                    self.folder / f"{name}{suffix}", record, format_of("", format), force=force, metadata=metadata
                )
        except BaseException:
            self.abort()
            raise

    @property
    def rows(self) -> dict[str, int]:
        """Rows written so far, by table."""
        return {name: writer.rows for name, writer in self.writers.items()}

    def write(self, table: str, batch: pa.RecordBatch | pa.Table) -> None:
        """Take the next rows of a table."""
        self.writers[table].write(batch)

    def abort(self) -> None:
        """Remove what was written so far."""
        for writer in self.writers.values():
            writer.abort()
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def __enter__(self) -> FolderWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.abort()
            return
        try:
            for writer in self.writers.values():
                writer.finish()
            for writer in self.writers.values():
                writer.commit()
        except BaseException:
            self.abort()
            raise


def write_tables(
    folder: str | os.PathLike[str],
    tables: Mapping[str, tuple[type, pa.Table | Iterable[pa.RecordBatch]]],
    *,
    format: str = "parquet",
    force: bool = False,
    metadata: Metadata = None,
) -> dict[str, int]:
    """Write whole tables into a folder, each in its file.

    Parameters
    ----------
    folder : str or path
        It is made where it is missing.
    tables : mapping of str to (type, Table or iterable of RecordBatch)
        Record class and rows of each table.
    format, force, metadata
        As for `FolderWriter`.

    Returns
    -------
    dict of str to int
        Rows written, by table.
    """
    with FolderWriter(folder, {name: record for name, (record, _) in tables.items()}, format=format, force=force, metadata=metadata) as out:
        for name, (_, rows) in tables.items():
            for batch in [rows] if isinstance(rows, (pa.Table, pa.RecordBatch)) else rows:
                out.write(name, batch)
    return out.rows


class _Body(Protocol):
    """A format."""

    def write(self, table: pa.Table) -> None:
        """Take rows."""

    def finish(self, metadata: dict[str, str]) -> None:
        """Write the end."""

    def abort(self) -> None:
        """Let go of everything."""


def bare_schema(record: type, leave_out: tuple[str, ...] = (), metadata: dict[str, str] | None = None) -> pa.Schema:
    """Return the schema of a record class without some of its columns."""
    schema = arrow_schema(record, metadata)
    kept = [field for field in schema if field.name not in leave_out]
    return pa.schema(kept, metadata=schema.metadata)


class _Parquet:
    """Parquet: zstd, times and places delta-coded, all else by dictionary; row groups of `GROUP_ROWS` rows whatever the batches' size."""

    def __init__(self, place: Destination, record: type, leave_out: tuple[str, ...] = ()) -> None:
        self._place, self._record, self._leave_out = place, record, leave_out
        self._schema = bare_schema(record, leave_out)
        self._pending: list[pa.Table] = []
        self.pending_rows = 0
        self._bytes = 0
        # Since pyarrow 16, metadata can be added at the end. The schema with its metadata is one of its entries, so that it is
        # left out at the beginning; readers then find the same in the file's metadata and in the schema's.
        self._held = None if hasattr(pq.ParquetWriter, "add_key_value_metadata") else _held_file(place)
        self._writer = _parquet_writer(self._held or place, self._schema, record, store=self._held is not None)

    def write(self, table: pa.Table) -> None:
        if table.num_rows == 0:
            return
        self._pending.append(table)
        self.pending_rows += table.num_rows
        self._bytes += table.nbytes
        if self.pending_rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self.flush(GROUP_ROWS if self._bytes < GROUP_BYTES else None)

    def flush(self, whole: int | None = None) -> None:
        """Write what is waiting; with ``whole``, only complete row groups of so many rows."""
        if not self.pending_rows:
            return
        table = pa.concat_tables(self._pending)
        take = table.num_rows if whole is None else table.num_rows // whole * whole
        self._writer.write_table(table.slice(0, take).replace_schema_metadata(self._writer.schema.metadata), row_group_size=GROUP_ROWS)
        rest = table.slice(take)
        self._pending = [rest] if rest.num_rows else []
        self.pending_rows, self._bytes = rest.num_rows, rest.nbytes

    def finish(self, metadata: dict[str, str]) -> None:
        self.flush()
        schema = bare_schema(self._record, self._leave_out, metadata)
        if self._held is None:
            self._writer.add_key_value_metadata({**schema.metadata, b"ARROW:schema": base64.b64encode(schema.serialize().to_pybytes())})
            self._writer.close()
            return
        self._writer.close()
        self._held.seek(0)
        old = pq.ParquetFile(self._held)
        with _parquet_writer(self._place, schema, self._record, store=True) as writer:
            for group in range(old.num_row_groups):
                writer.write_table(old.read_row_group(group).replace_schema_metadata(schema.metadata), row_group_size=GROUP_ROWS)
        self._held.close()

    def abort(self) -> None:
        self._pending = []
        self._writer.close()
        if self._held is not None:
            self._held.close()


def _held_file(place: Destination) -> BinaryIO:
    """Open a file for rows that are copied to their place later; it has no name, so nothing stays behind, whatever happens."""
    folder = place.final.parent if isinstance(place, Beside) and place.body is not None and place.final is not None else None
    return tempfile.TemporaryFile(dir=folder, prefix=".", suffix=".partial")


def _parquet_writer(sink: Any, schema: pa.Schema, record: type, *, store: bool) -> pq.ParquetWriter:
    declared = {c.name: c for c in columns(record)}
    here = [declared[name] for name in schema.names]
    encodings = {c.name: "DELTA_BINARY_PACKED" for c in here if _runs_on(c)} | {n: "DELTA_BYTE_ARRAY" for n in schema.names if n in PLACES}
    inner = {"map": (".key_value.key", ".key_value.value"), **{f"list<{kind}>": (".list.element",) for kind in ("int", "float", "str")}}
    return pq.ParquetWriter(
        sink,
        schema if store else schema.remove_metadata(),
        version="2.6",
        compression="zstd",
        compression_level=3,
        use_dictionary=[c.name + end for c in here if c.name not in encodings for end in inner.get(c.kind, ("",))],
        column_encoding=encodings,
        store_schema=store,
        write_page_checksum=True,
    )


def _runs_on(column: Column) -> bool:
    """Whether a column grows from row to row, so that its differences are what should be stored."""
    return column.kind == "datetime" or (column.kind == "int" and column.col.wide and (column.unit == "us" or column.name.endswith("_cum")))


def _ipc() -> pa.ipc.IpcWriteOptions:
    """Compress as Feather files are by default: columns of nulls are as long as others."""
    return pa.ipc.IpcWriteOptions(compression="lz4")


class _Arrow:
    """Arrow IPC. Its schema stands at the beginning, so the rows are written first and copied behind the final schema."""

    def __init__(self, place: Destination, record: type, leave_out: tuple[str, ...] = ()) -> None:
        self._place, self._record, self._leave_out = place, record, leave_out
        self._held = _held_file(place)
        self._writer = pa.ipc.new_stream(self._held, bare_schema(record, leave_out), options=_ipc())

    def write(self, table: pa.Table) -> None:
        try:
            self._writer.write_table(table)
            self._held.flush()
        except OSError as error:
            where = self._place.name if isinstance(self._place, Beside) else f"a passing file in {tempfile.gettempdir()}"
            raise told(error, where) from error

    def finish(self, metadata: dict[str, str]) -> None:
        self._writer.close()
        self._held.seek(0)
        schema = bare_schema(self._record, self._leave_out, metadata)
        with pa.ipc.open_stream(self._held) as rows, pa.ipc.new_file(self._place, schema, options=_ipc()) as out:
            for batch in rows:
                out.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
        self._held.close()

    def abort(self) -> None:
        with contextlib.suppress(OSError):  # what it still holds may find no room
            self._held.close()


class _Text:
    """CSV with a header, or JSON lines."""

    def __init__(self, place: Destination, kind: Literal["csv", "jsonl"], schema: pa.Schema) -> None:
        self._place = place
        self._lines = csv_lines if kind == "csv" else json_lines
        if kind == "csv":
            place.write(csv_header(schema))

    def write(self, table: pa.Table) -> None:
        for batch in table.to_batches(max_chunksize=16_384):
            self._place.write(self._lines(batch))

    def finish(self, metadata: dict[str, str]) -> None:
        """Do nothing: these formats have no end, and no place for metadata."""

    def abort(self) -> None:
        """Do nothing: everything is in the place already."""


_BODIES: dict[str, Callable[[Destination, type, tuple[str, ...]], _Body]] = {
    "parquet": _Parquet,
    "arrow": _Arrow,
    "csv": lambda place, record, leave_out: _Text(place, "csv", bare_schema(record, leave_out)),
    "jsonl": lambda place, record, leave_out: _Text(place, "jsonl", bare_schema(record, leave_out)),
}
