"""A long table held compressed, batch by batch, of which some columns or all can be had.

Most of a table of steps is text that says the same again and again (a line's place in the journal, host, unit, boot): compressed it takes
about a fifth of the memory, and the numbers need few of its columns.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa

from ddtree_metrics.schema import arrow_schema
from ddtree_metrics.tables import conform
from ddtree_metrics.tables.atomic import told

PACKED_ROWS = 1 << 16
"""A table with no more rows than about this is held as it is."""


class Packed:
    """Batches of one table, compressed as they are added.

    Parameters
    ----------
    record : type
        The record class.
    folder : path, optional
        Where a file without a name holds the batches, which goes with the process; they are held in memory if not given.
    """

    def __init__(self, record: type, folder: Path | None = None) -> None:
        self.record = record
        self.folder = folder
        self.schema = arrow_schema(record)
        self.num_rows = 0
        self._parts: list[pa.Buffer | tuple[int, int]] = []
        self._file: IO[bytes] | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch with exactly the columns of the record class."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, self.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as out:
            out.write_batch(batch.replace_schema_metadata(self.schema.metadata))
        part = sink.getvalue()
        self._parts.append(part if self.folder is None else self._written(part, self.folder))
        self.num_rows += batch.num_rows

    def _written(self, part: pa.Buffer, folder: Path) -> tuple[int, int]:
        """Append a part to the file, and return where it is."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by close
            begin = self._file.seek(0, os.SEEK_END)
            left = memoryview(part)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise told(error, f"a passing file in {folder}") from error
        return begin, part.size

    def _read(self, part: pa.Buffer | tuple[int, int]) -> pa.Buffer:
        """Return a part from where it is held."""
        if isinstance(part, pa.Buffer):
            return part
        begin, size = part
        if self._file is None:
            raise ValueError("the file of these rows was closed")
        return pa.py_buffer(os.pread(self._file.fileno(), size, begin))

    def close(self) -> None:
        """Let go of the batches."""
        self._parts.clear()
        if self._file is not None:
            with contextlib.suppress(OSError):  # what it still holds may find no room
                self._file.close()
            self._file = None

    @property
    def nbytes(self) -> int:
        """How many bytes the compressed batches take."""
        return sum(part.size if isinstance(part, pa.Buffer) else part[1] for part in self._parts)

    def table(self, names: Collection[str] | None = None) -> pa.Table:
        """Return the table, or some of its columns in the order of the table.

        Parameters
        ----------
        names : collection of str, optional
            Which columns; all if not given.
        """
        made = list(self.batches(names))
        chosen = [f for f in self.schema if names is None or f.name in names]
        return pa.Table.from_batches(made, schema=pa.schema(chosen, metadata=self.schema.metadata))

    def batches(self, names: Collection[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the batches of ``table(names)``, one in memory at a time."""
        kept = None if names is None else [i for i, name in enumerate(self.schema.names) if name in names]
        options = pa.ipc.IpcReadOptions(included_fields=kept)
        for part in self._parts:
            yield pa.ipc.open_file(self._read(part), options=options).get_batch(0)


def pack(batches: Iterable[pa.RecordBatch | pa.Table], into: Packed) -> None:
    """Compress batches, in order; their columns are made exact."""
    for batch in batches:
        for part in conform(batch, into.record).combine_chunks().to_batches():
            into.add(part)
