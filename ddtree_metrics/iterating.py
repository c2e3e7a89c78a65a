"""``iter_journal`` and ``iter_text``: typed records as lines are read, without reading to the end first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from ddtree_metrics import tables as _tables
from ddtree_metrics.errors import SchemaError
from ddtree_metrics.opening import Names, PathLike, open_any_journal, open_text, start_reading, zone_of
from ddtree_metrics.reading import LINE_TABLES, Reading
from ddtree_metrics.records import TABLES

if TYPE_CHECKING:
    from typing import TypedDict
    from zoneinfo import ZoneInfo

    from typing_extensions import Unpack

    from ddtree_metrics.records import DecodeBatch, Event, PrefillBatch, RequestLine, ServerStart, TreeStep

    class _Options(TypedDict, total=False):
        """Keywords that both ways of reading take; their meanings stand in ``read_journal``."""

        user_unit: Names
        identifier: Names
        container: Names
        dialect: Any
        tz: str | ZoneInfo | None
        on_error: str
        commit_includes_bonus: bool | None
        nodes_include_root: bool | None
        now_us: int | None

    class _JournalOptions(_Options, total=False):
        boot: str | int | None
        directory: PathLike | None
        files: PathLike | Sequence[PathLike] | None
        namespace: str | None

    class _TextOptions(_Options, total=False):
        since: str | None
        until: str | None
        unit: Names


@overload
def iter_journal(
    unit: Names = None,
    since: str | None = None,
    until: str | None = None,
    *,
    table: Literal["steps"] = "steps",
    **options: Unpack[_JournalOptions],
) -> Iterator[TreeStep]: ...
@overload
def iter_journal(
    unit: Names = None, since: str | None = None, until: str | None = None, *, table: Literal["decode"], **options: Unpack[_JournalOptions]
) -> Iterator[DecodeBatch]: ...
@overload
def iter_journal(
    unit: Names = None, since: str | None = None, until: str | None = None, *, table: Literal["prefill"], **options: Unpack[_JournalOptions]
) -> Iterator[PrefillBatch]: ...
@overload
def iter_journal(
    unit: Names = None, since: str | None = None, until: str | None = None, *, table: Literal["servers"], **options: Unpack[_JournalOptions]
) -> Iterator[ServerStart]: ...
@overload
def iter_journal(
    unit: Names = None, since: str | None = None, until: str | None = None, *, table: Literal["events"], **options: Unpack[_JournalOptions]
) -> Iterator[Event]: ...
@overload
def iter_journal(
    unit: Names = None,
    since: str | None = None,
    until: str | None = None,
    *,
    table: Literal["request_lines"],
    **options: Unpack[_JournalOptions],
) -> Iterator[RequestLine]: ...
@overload
def iter_journal(
    unit: Names = None, since: str | None = None, until: str | None = None, *, table: str, **options: Unpack[_JournalOptions]
) -> Iterator[Any]: ...
def iter_journal(
    unit: Names = None,
    since: str | None = None,
    until: str | None = None,
    *,
    table: str = "steps",
    boot: str | int | None = None,
    directory: PathLike | None = None,
    files: PathLike | Sequence[PathLike] | None = None,
    namespace: str | None = None,
    user_unit: Names = None,
    identifier: Names = None,
    container: Names = None,
    dialect: Any = None,
    tz: str | ZoneInfo | None = None,
    on_error: str = "warn",
    commit_includes_bonus: bool | None = None,
    nodes_include_root: bool | None = None,
    now_us: int | None = None,
) -> Iterator[Any]:
    """Yield the records of one table from the journal as lines are read; parameters as in ``read_journal``."""
    zone = zone_of(tz)
    source, window = open_any_journal(unit, since, until, boot, directory, files, namespace, user_unit, identifier, container, zone, now_us)
    return _iterate(start_reading(source, window, dialect, zone, on_error, commit_includes_bonus, nodes_include_root), table)


@overload
def iter_text(
    paths: PathLike | IO[bytes] | Sequence[PathLike | IO[bytes]], *, table: Literal["steps"] = "steps", **options: Unpack[_TextOptions]
) -> Iterator[TreeStep]: ...
@overload
def iter_text(
    paths: PathLike | IO[bytes] | Sequence[PathLike | IO[bytes]], *, table: Literal["decode"], **options: Unpack[_TextOptions]
) -> Iterator[DecodeBatch]: ...
@overload
def iter_text(
    paths: PathLike | IO[bytes] | Sequence[PathLike | IO[bytes]], *, table: Literal["prefill"], **options: Unpack[_TextOptions]
) -> Iterator[PrefillBatch]: ...
@overload
def iter_text(
    paths: PathLike | IO[bytes] | Sequence[PathLike | IO[bytes]], *, table: Literal["servers"], **options: Unpack[_TextOptions]
) -> Iterator[ServerStart]: ...
@overload
def iter_text(
    paths: PathLike | IO[bytes] | Sequence[PathLike | IO[bytes]], *, table: Literal["events"], **options: Unpack[_TextOptions]
) -> Iterator[Event]: ...
@overload
def iter_text(
    paths: PathLike | IO[bytes] | Sequence[PathLike | IO[bytes]], *, table: Literal["request_lines"], **options: Unpack[_TextOptions]
) -> Iterator[RequestLine]: ...
@overload
def iter_text(
    paths: PathLike | IO[bytes] | Sequence[PathLike | IO[bytes]], *, table: str, **options: Unpack[_TextOptions]
) -> Iterator[Any]: ...
def iter_text(
    paths: PathLike | IO[bytes] | Sequence[PathLike | IO[bytes]],
    *,
    table: str = "steps",
    since: str | None = None,
    until: str | None = None,
    unit: Names = None,
    user_unit: Names = None,
    identifier: Names = None,
    container: Names = None,
    dialect: Any = None,
    tz: str | ZoneInfo | None = None,
    on_error: str = "warn",
    commit_includes_bonus: bool | None = None,
    nodes_include_root: bool | None = None,
    now_us: int | None = None,
) -> Iterator[Any]:
    """Yield the records of one table from files or a pipe as lines arrive; parameters as in ``read_text``."""
    zone = zone_of(tz)
    source, window = open_text(paths, since, until, unit, user_unit, identifier, container, zone, now_us)
    return _iterate(start_reading(source, window, dialect, zone, on_error, commit_includes_bonus, nodes_include_root), table)


def _iterate(reading: Reading, table: str) -> Iterator[Any]:
    if table not in LINE_TABLES:
        raise SchemaError(f"no table of lines {table!r}; there are {', '.join(LINE_TABLES)}")
    return _records_of(reading, table)


def _records_of(reading: Reading, table: str) -> Iterator[Any]:
    for tables in reading:
        if table in tables:
            yield from _tables.to_records(pa.Table.from_batches([tables[table]]), TABLES[table])
