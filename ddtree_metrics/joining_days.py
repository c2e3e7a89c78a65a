"""``request_steps`` of a lake, day by day: what a reading of a whole log joins at its end, for logs that have none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.coverage import Coverage
from ddtree_metrics.errors import OutputError
from ddtree_metrics.log import Log
from ddtree_metrics.reading import JOINED_OF
from ddtree_metrics.records import TABLES
from ddtree_metrics.steps.conventions import Conventions
from ddtree_metrics.tables import concat
from ddtree_metrics.tables.datasets import folder_of, read_tables
from ddtree_metrics.tables.lake_parts import LakeWriter, PartNames
from ddtree_metrics.tables.manifest import WAIT_S, Manifest, staging
from ddtree_metrics.tables.upkeep import change_parts, lake_held

MARGIN = timedelta(hours=2)
"""Lines of so long before and after a day are read with it: of requests that run over midnight."""


def join_days(root: str | os.PathLike[str], *, wait_s: float = WAIT_S) -> dict[str, int]:
    """Write the steps of requests of each day whose lines tell of requests, and is new or has new rows.

    Parameters
    ----------
    root : path
        A lake that is partitioned by ``date``.
    wait_s : float
        So long another process that writes to it is waited for, once a day of a host.

    Returns
    -------
    dict of str to int
        How many ``days`` (of a host) were joined, and the ``rows`` of ``request_steps`` they have.

    Raises
    ------
    OutputError
        If it is no lake, or not partitioned by date.
    """
    made = {"days": 0, "rows": 0}
    with lake_held(root, wait_s) as (_, manifest):
        if "date" not in manifest.partition:
            raise OutputError(f"{root} is not partitioned by date; requests are joined day by day", usage=True)
        todo = list(_days_to_join(manifest))
    for values in todo:
        # held day by day, so that exports come in between
        with lake_held(root, wait_s) as (place, manifest):
            made["days"] += 1
            made["rows"] += _join(place, manifest, values)
    return made


def _folders(manifest: Manifest, values: tuple[str | None, ...], table: str) -> str:
    return f"{table}/{folder_of(tuple(manifest.partition), values).as_posix()}"


def _days_to_join(manifest: Manifest) -> Iterator[tuple[str | None, ...]]:
    """Yield the partitions whose steps are newer than what was joined of them, and of which any line tells of a request."""
    newest: dict[tuple[str | None, ...], dict[str, int]] = {}
    for name, entry in manifest.parts.items():
        of = newest.setdefault(tuple(entry.values), {})
        table = name.partition("/")[0]
        of[table] = max(of.get(table, 0), entry.commit)
    at = manifest.partition.index("date")
    for values, commits in sorted(newest.items(), key=repr):
        lines = max((commits.get(table, 0) for table in JOINED_OF), default=0)
        if values[at] is not None and "steps" in commits and "request_lines" in commits and lines > commits.get("request_steps", 0):
            yield values


def _join(place: Path, manifest: Manifest, values: tuple[str | None, ...]) -> int:
    """Join one day, and commit it."""
    number, at = manifest.commit + 1, manifest.partition.index("date")
    day = date.fromisoformat(values[at] or "")
    begin = datetime.combine(day, datetime.min.time(), timezone.utc)
    log = Log(_tables_around(place, manifest, values, begin), Coverage(), _counts(manifest))
    folder = _folders(manifest, values, "request_steps")
    old = [name for name in manifest.parts if name.rpartition("/")[0] == folder]
    try:
        writer = LakeWriter(
            place,
            TABLES["request_steps"],
            tuple(manifest.partition),
            staging=staging(place, number),
            names=PartNames(number, old),
            number=number,
            kept_from=manifest.kept_from,
        )
        for part in log.joined_parts():
            rows = _between(part, begin, begin + timedelta(days=1))
            if rows.num_rows:
                writer.write(rows)
        entries = writer.entries()
    except BaseException:
        shutil.rmtree(staging(place, number), ignore_errors=True)
        raise
    change_parts(place, manifest, remove=old, add=entries)
    return sum(entry.rows for entry in entries.values())


def _tables_around(place: Path, manifest: Manifest, values: tuple[str | None, ...], begin: datetime) -> dict[str, pa.Table]:
    """Read the lines of a day, and those shortly before and after it."""
    at = manifest.partition.index("date")
    made = {}
    for table in JOINED_OF:
        parts = []
        for days in (-1, 0, 1):
            other = [*values[:at], (begin + timedelta(days=days)).date().isoformat(), *values[at + 1 :]]
            folder = _folders(manifest, tuple(other), table)
            paths = [place / name for name in sorted(manifest.parts) if name.rpartition("/")[0] == folder and (place / name).is_file()]
            if paths:
                parts.append(_between(read_tables(paths)[table], begin - MARGIN, begin + timedelta(days=1) + MARGIN))
        made[table] = concat(parts, TABLES[table]).sort_by("time")
    return made


def _between(rows: pa.Table, begin: datetime, end: datetime) -> pa.Table:
    return rows.filter(pc.and_(pc.greater_equal(rows["time"], pa.scalar(begin)), pc.less(rows["time"], pa.scalar(end))))


def _counts(manifest: Manifest) -> Conventions:
    made = Conventions()
    for known in manifest.sources.values():
        made.merge(Conventions.from_dict(known["counts"]))
    return made
