"""``iter_journal`` and ``iter_text``: typed records as lines are read, without reading to the end first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from ddtree_metrics import tables as _tables
from ddtree_metrics.errors import SchemaError
from ddtree_metrics.keywords import JournalKeywords, TextKeywords, spelled_out
from ddtree_metrics.reading import LINE_TABLES, Reading, start_reading
from ddtree_metrics.records import TABLES

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ddtree_metrics.keywords import Names, Paths
    from ddtree_metrics.records import DecodeBatch, Event, PrefillBatch, RequestLine, ServerStart, TreeStep

    Text = str | None


@overload
def iter_journal(
    unit: Names = None, since: Text = None, until: Text = None, *, table: Literal["steps"] = "steps", **options: Unpack[JournalKeywords]
) -> Iterator[TreeStep]: ...
@overload
def iter_journal(
    unit: Names = None, since: Text = None, until: Text = None, *, table: Literal["decode"], **options: Unpack[JournalKeywords]
) -> Iterator[DecodeBatch]: ...
@overload
def iter_journal(
    unit: Names = None, since: Text = None, until: Text = None, *, table: Literal["prefill"], **options: Unpack[JournalKeywords]
) -> Iterator[PrefillBatch]: ...
@overload
def iter_journal(
    unit: Names = None, since: Text = None, until: Text = None, *, table: Literal["servers"], **options: Unpack[JournalKeywords]
) -> Iterator[ServerStart]: ...
@overload
def iter_journal(
    unit: Names = None, since: Text = None, until: Text = None, *, table: Literal["events"], **options: Unpack[JournalKeywords]
) -> Iterator[Event]: ...
@overload
def iter_journal(
    unit: Names = None, since: Text = None, until: Text = None, *, table: Literal["request_lines"], **options: Unpack[JournalKeywords]
) -> Iterator[RequestLine]: ...
@overload
def iter_journal(
    unit: Names = None, since: Text = None, until: Text = None, *, table: str, **options: Unpack[JournalKeywords]
) -> Iterator[Any]: ...
@spelled_out(JournalKeywords)
def iter_journal(
    unit: Names = None, since: Text = None, until: Text = None, *, table: str = "steps", **options: Unpack[JournalKeywords]
) -> Iterator[Any]:
    """Yield the records of one table from the journal as lines are read; parameters as in ``read_journal``."""
    return _iterate(start_reading(None, unit=unit, since=since, until=until, **options), table)


@overload
def iter_text(paths: Paths, *, table: Literal["steps"] = "steps", **options: Unpack[TextKeywords]) -> Iterator[TreeStep]: ...
@overload
def iter_text(paths: Paths, *, table: Literal["decode"], **options: Unpack[TextKeywords]) -> Iterator[DecodeBatch]: ...
@overload
def iter_text(paths: Paths, *, table: Literal["prefill"], **options: Unpack[TextKeywords]) -> Iterator[PrefillBatch]: ...
@overload
def iter_text(paths: Paths, *, table: Literal["servers"], **options: Unpack[TextKeywords]) -> Iterator[ServerStart]: ...
@overload
def iter_text(paths: Paths, *, table: Literal["events"], **options: Unpack[TextKeywords]) -> Iterator[Event]: ...
@overload
def iter_text(paths: Paths, *, table: Literal["request_lines"], **options: Unpack[TextKeywords]) -> Iterator[RequestLine]: ...
@overload
def iter_text(paths: Paths, *, table: str, **options: Unpack[TextKeywords]) -> Iterator[Any]: ...
@spelled_out(TextKeywords)
def iter_text(paths: Paths, *, table: str = "steps", **options: Unpack[TextKeywords]) -> Iterator[Any]:
    """Yield the records of one table from files or a pipe as lines arrive; parameters as in ``read_text``."""
    return _iterate(start_reading(paths, **options), table)


def _iterate(reading: Reading, table: str) -> Iterator[Any]:
    if table not in LINE_TABLES:
        raise SchemaError(f"no table of lines {table!r}; there are {', '.join(LINE_TABLES)}")
    return _records_of(reading, table)


def _records_of(reading: Reading, table: str) -> Iterator[Any]:
    for tables in reading:
        if table in tables:
            yield from _tables.to_records(pa.Table.from_batches([tables[table]]), TABLES[table])
