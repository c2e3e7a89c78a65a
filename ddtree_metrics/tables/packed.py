"""A long table held compressed, batch by batch, of which some columns or all can be had.

Most of a table of steps is text that says the same again and again (a line's place in the journal, host, unit, boot): compressed it takes
about a fifth of the memory, and the numbers need few of its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from ddtree_metrics.schema import arrow_schema
from ddtree_metrics.tables import conform

PACKED_ROWS = 1 << 16
"""A table with no more rows than about this is held as it is."""


class Packed:
    """Batches of one table, compressed as they are added.

    Parameters
    ----------
    record : type
        The record class.
    """

    def __init__(self, record: type) -> None:
        self.record = record
        self.schema = arrow_schema(record)
        self.num_rows = 0
        self._parts: list[pa.Buffer] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch with exactly the columns of the record class."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, self.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as out:
            out.write_batch(batch.replace_schema_metadata(self.schema.metadata))
        self._parts.append(sink.getvalue())
        self.num_rows += batch.num_rows

    @property
    def nbytes(self) -> int:
        """How many bytes the compressed batches take."""
        return sum(part.size for part in self._parts)

    def table(self, names: Sequence[str] | None = None) -> pa.Table:
        """Return the table, or some of its columns in the order of the table.

        Parameters
        ----------
        names : sequence of str, optional
            Which columns; all if not given.
        """
        kept = None if names is None else [i for i, name in enumerate(self.schema.names) if name in names]
        options = pa.ipc.IpcReadOptions(included_fields=kept)
        batches = [pa.ipc.open_file(part, options=options).get_batch(0) for part in self._parts]
        schema = self.schema if kept is None else pa.schema([self.schema.field(i) for i in kept], metadata=self.schema.metadata)
        return pa.Table.from_batches(batches, schema=schema)


def pack(batches: Iterable[pa.RecordBatch | pa.Table], into: Packed) -> None:
    """Compress batches, in order; their columns are made exact."""
    for batch in batches:
        for part in conform(batch, into.record).combine_chunks().to_batches():
            into.add(part)
