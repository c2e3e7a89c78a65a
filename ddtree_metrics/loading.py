"""A ``Log`` of whatever there is: a journal, files of lines, tables that an export wrote."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics import tables as _tables
from ddtree_metrics.coverage import Coverage
from ddtree_metrics.errors import DDTreeWarning, SourceDamaged, SourceNotFound
from ddtree_metrics.keywords import JournalKeywords, ReadKeywords, StoredKeywords, TextKeywords, spelled_out
from ddtree_metrics.layout import plural
from ddtree_metrics.log import Log
from ddtree_metrics.memory import give_back, return_large_arrays
from ddtree_metrics.opening import only, read_options, several
from ddtree_metrics.reading import LINE_TABLES, Readable, start_reading
from ddtree_metrics.records import TABLES
from ddtree_metrics.schema import METADATA_PREFIX
from ddtree_metrics.sources.journal_fields import UNIT_SUFFIXES, matches, unit_name
from ddtree_metrics.sources.journal_files import journal_files
from ddtree_metrics.steps.conventions import Conventions
from ddtree_metrics.tables.datasets import all_stored, read_tables
from ddtree_metrics.tables.overlaps import Overlap
from ddtree_metrics.tables.packed import PACKED_ROWS, Packed, pack
from ddtree_metrics.tables.window_cuts import rows_within

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ddtree_metrics.keywords import Names, PathLike, Paths


@spelled_out(ReadKeywords)
def read(paths: Paths | None = None, **options: Unpack[ReadKeywords]) -> Log:
    """Read whatever it is: journal files, text logs, ``journalctl`` output, a folder of any of them, what ``Log.write`` or an export wrote.

    Parameters
    ----------
    paths : str, Path, binary file, or sequence of them, optional
        What to read; what it holds decides how. Without it the journal of this machine is read, and ``unit=`` says whose lines.
    **options
        As for ``read_parquet`` where tables are read, for ``read_text`` where files are, else for ``read_journal``.

    Returns
    -------
    Log

    Raises
    ------
    SourceError
        If nothing could be read.
    TimeError
        If the window cannot be read, or is empty.

    Examples
    --------
    >>> log = ddt.read("run.log.gz")  # doctest: +SKIP
    >>> log = ddt.read(unit="sglang-kimi.service", since="1h")  # doctest: +SKIP
    """
    if paths is None:
        return read_journal(**options)
    given: Any = options  # each function refuses what it does not take
    sources: list[Any] = list(several(paths))
    files = [Path(p) for p in sources if isinstance(p, str | Path)]
    if all_stored(sources):
        return read_parquet(files, **given)
    if len(files) == len(sources) == 1:
        place = files[0]
        if place.suffix in UNIT_SUFFIXES and not place.exists():
            raise SourceNotFound(f"no file {str(place)!r}; a unit of the journal is read with unit={str(place)!r}")
        if place.is_dir() and not journal_files(str(place)):
            sources = [place / "*"]
    return read_text(sources, **given)


@spelled_out(JournalKeywords)
def read_journal(unit: Names = None, since: str | None = None, until: str | None = None, **options: Unpack[JournalKeywords]) -> Log:
    """Read the systemd journal.

    Parameters
    ----------
    unit, user_unit, identifier, container : str or sequence of str, optional
        Whose lines; what any of them selects is taken, and everything if none is given. journald's notices that lines of the
        unit were suppressed are read as well.
    since, until : str, optional
        The window, ``since <= t < until``: ``1h``, ``yesterday``, ``2026-05-05 12:00``, ``@1767225600``; a bare span means ago.
    boot : str or int, optional
        Only this boot: an id, ``0`` for the newest, ``-1`` for the one before.
    directory, files, namespace : optional
        Another journal than the machine's own.
    dialect : str, Dialect or sequence of them, optional
        Who wrote the lines; all known dialects if not given.
    dialect_file : path or sequence of paths, optional
        Line formats of your own, described in TOML; they are tried first.
    tz : str or ZoneInfo, optional
        The zone in which ``since`` and ``until`` are meant, and of times that do not say theirs; the machine's if not given.
    on_error : {"warn", "raise", "skip"}
        What a broken line does.
    commit_includes_bonus, nodes_include_root : bool, optional
        What the numbers count, where you know it; ``Log.counts`` infers it from the data if not given.
    now_us : int, optional
        What is taken as now, in microseconds since 1970; for tests.
    progress : callable, optional
        Called with the account (``Coverage``) after each batch of lines, and with ``None`` at the end.

    Returns
    -------
    Log

    Raises
    ------
    SourceError
        ``SourceNotFound``, ``SourceDenied``, ``SourceUnsupported`` or ``SourceDamaged``, if nothing could be read.
    TimeError
        If the window cannot be read, or is empty.
    """
    return collect(start_reading(None, unit=unit, since=since, until=until, **options))


@spelled_out(TextKeywords)
def read_text(paths: Paths, **options: Unpack[TextKeywords]) -> Log:
    """Read files: server logs plain or compressed, ``journalctl`` output in any format, ``.journal`` files.

    Parameters
    ----------
    paths : str, Path, binary file, or sequence of them
        What to read; the first bytes decide how. Globs are expanded, rotated sets are put in order.
    **options
        As in ``read_journal``; a selection applies where the text says who wrote a line.

    Returns
    -------
    Log
    """
    return collect(start_reading(paths, **options))


@spelled_out(StoredKeywords)
def read_parquet(paths: PathLike | Sequence[PathLike], **options: Unpack[StoredKeywords]) -> Log:
    """Read back what an export wrote: files, a folder of tables, or a partitioned dataset.

    Parameters
    ----------
    paths : str, Path, or sequence of them
        Files of one or several tables; rows are put together in the order given, and a row that several files have is taken once.
    **options
        ``unit``, ``since``, ``until``, ``tz`` and ``now_us`` as in ``read_journal``: rows of other units, or outside of the window, are
        left out.

    Returns
    -------
    Log

    Raises
    ------
    SchemaError
        If a file is not one of this library's, or of a newer schema.
    """
    chosen = read_options(**only(options, StoredKeywords, "tables of an earlier export"))
    files = [Path(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
    overlaps: dict[str, list[Overlap]] = {}
    tables = read_tables(files, overlaps=overlaps)
    coverages, counts, spoiled = [], Conventions(), False
    seen = set()
    for table in tables.values():
        for kind, text in _notes_of(table):
            if (kind, text) in seen:
                continue
            seen.add((kind, text))
            try:
                if kind == "coverage":
                    coverages.append(Coverage.merged([Coverage.from_dict(json.loads(text))]))
                else:
                    counts.merge(Conventions.from_dict(json.loads(text)))
            except (ValueError, TypeError, KeyError, AttributeError):
                spoiled = True
    tables = {name: _of_units(rows_within(table, chosen.window), chosen.selection.units) for name, table in tables.items()}
    account = Coverage.merged(coverages) if coverages else Coverage(source=", ".join(map(str, files)))
    if spoiled:
        for name, table in tables.items():
            account.parsed[name] = table.num_rows
        account.damaged.append(f"what an export said of its reading ({', '.join(path.name for path in files[:3])}); its rows were read")
    _take_off(account, overlaps)
    joined = _days(tables.get("request_steps"))
    unjoined = _days(tables.get("steps")) - joined if joined else set()
    if unjoined:
        account.add_note(
            f"the steps of {plural(len(unjoined), 'day')} of hosts have no request_steps ({', '.join(sorted(unjoined)[:3])}): what rests "
            "on those leaves them out; ddtree-logs lake join makes them"
        )
    return Log(tables, account, counts)


def _days(table: pa.Table | None) -> set[str]:
    """Return the days of hosts that a table has rows of."""
    if table is None or not table.num_rows:
        return set()
    days = pc.strftime(table.column("time"), format="%Y-%m-%d")
    both = pa.table({"host": table.column("host"), "day": days}).group_by(["host", "day"]).aggregate([])
    return {f"{row['host'] or 'an unknown host'} {row['day']}" for row in both.to_pylist() if row["day"] is not None}


def _take_off(account: Coverage, overlaps: dict[str, list[Overlap]]) -> None:
    """Subtract rows that several files have from the account, and say so in a note."""
    for name, shared in overlaps.items():
        rows = sum(overlap.rows for overlap in shared)
        account.duplicate_lines += rows
        if name in account.parsed:
            account.parsed[name] = max(account.parsed[name] - rows, 0)
        for overlap in shared:
            account.add_note(f"{overlap.rows:,} {name} of {overlap.file} are in {overlap.other} too: they were left out, and count once")


def _of_units(table: pa.Table, units: tuple[str, ...]) -> pa.Table:
    """Keep the rows of some units; all where none is asked for."""
    if not units or "unit" not in table.column_names:
        return table
    names = tuple(name for unit in units for name in (unit, unit_name(unit)))
    wanted = [unit for unit in pc.unique(table["unit"]).to_pylist() if matches(names, unit)]
    return table.filter(pc.is_in(table["unit"], pa.array(wanted, pa.string())))


def collect(reading: Readable) -> Log:
    """Read a ``Reading`` to its end, and keep it all; a long table of steps compressed, for most of it is text that hardly changes."""
    parts: dict[str, list[pa.RecordBatch]] = {}
    packed: Packed | None = None
    waiting = 0
    for tables in reading:
        for name, batch in tables.items():
            parts.setdefault(name, []).append(batch)
        waiting += tables["steps"].num_rows if "steps" in tables else 0
        if waiting >= PACKED_ROWS:
            if packed is None:
                packed = Packed(TABLES["steps"])
                return_large_arrays()
            pack(parts.pop("steps"), packed)
            waiting = 0
    if packed is not None:
        pack(parts.pop("steps", []), packed)
    whole = {name: _tables.concat(parts.get(name, []), TABLES[name]) for name in LINE_TABLES if name != "steps" or packed is None}
    if reading.coverage.damaged and reading.on_error != "skip":
        damaged = reading.coverage.damaged
        if reading.on_error == "raise":
            raise SourceDamaged("; ".join(damaged))
        warnings.warn(f"part could not be read: {'; '.join(damaged)}", DDTreeWarning, stacklevel=3)
    if packed is not None:
        give_back()
    log = Log(whole, reading.coverage, reading.conventions, None if packed is None else {"steps": packed})
    log._others = getattr(reading, "others", log._others)
    return log


def _notes_of(table: pa.Table) -> Iterator[tuple[str, str]]:
    for key, value in (table.schema.metadata or {}).items():
        name = key.decode()
        for kind in ("coverage", "counts"):
            if name == f"{METADATA_PREFIX}{kind}" or name.startswith(f"{METADATA_PREFIX}{kind}."):
                yield kind, value.decode()
