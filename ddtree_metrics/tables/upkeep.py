"""Upkeep of a lake: small parts become one, old days are dropped, partitions that were deleted by hand are forgotten."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ddtree_metrics.errors import OutputError
from ddtree_metrics.records import TABLES
from ddtree_metrics.tables import conform
from ddtree_metrics.tables.lake_parts import LakeWriter, PartNames
from ddtree_metrics.tables.manifest import WAIT_S, Manifest, PartEntry, commit, is_lake, staging, visible, writing

LARGE = 512 << 20
"""A part of so many bytes is large enough."""


def compact_lake(root: str | os.PathLike[str], *, wait_s: float = WAIT_S) -> dict[str, int]:
    """Make one part of the small parts of each partition.

    Parameters
    ----------
    root : path
        A lake.
    wait_s : float
        So long another process that writes to it is waited for.

    Returns
    -------
    dict of str to int
        ``parts`` before and ``into`` how many, and the ``rows`` that were written again. The newest part of each source, which the
        next run writes again, stays as it is.

    Raises
    ------
    OutputError
        If it is no lake, or cannot be written. Nothing is changed then.

    Notes
    -----
    A partition is a commit, so a process that is killed leaves whole ones; memory holds a row group of one table.
    """
    made = {"parts": 0, "into": 0, "rows": 0}
    with lake_held(root, wait_s) as (place, manifest):
        partitions: dict[str, list[str]] = {}
        there = {part.name for parts in visible(place).parts.values() for part in parts}
        for name, entry in sorted(manifest.parts.items(), key=lambda item: (item[1].first_us is None, item[1].first_us, item[0])):
            if entry.source is None and entry.bytes < LARGE and name in there:
                partitions.setdefault(name.rpartition("/")[0], []).append(name)
        for folder, names in sorted(partitions.items()):
            if len(names) < 2:
                continue
            entries = _merged(place, manifest, folder.partition("/")[0], names)
            rows, before = sum(e.rows for e in entries.values()), sum(manifest.parts[name].rows for name in names)
            if rows != before:
                shutil.rmtree(staging(place, manifest.commit + 1), ignore_errors=True)
                raise OutputError(f"{place / folder} holds {rows:,} rows, its manifest says {before:,}: ddtree-logs lake check {root}")
            made["parts"] += len(names)
            made["into"] += len(entries)
            made["rows"] += rows
            change_parts(place, manifest, remove=names, add=entries)
    return made


def drop_days(root: str | os.PathLike[str], before: date, *, wait_s: float = WAIT_S) -> dict[str, int]:
    """Drop all days before one; rows of these days are not taken any more either.

    Parameters
    ----------
    root : path
        A lake that is partitioned by ``date``.
    before : date
        The first day (UTC) that stays. Rows without a time stay.
    wait_s : float
        As for `compact_lake`.

    Returns
    -------
    dict of str to int
        The ``parts`` and ``rows`` that were dropped.
    """
    with lake_held(root, wait_s) as (place, manifest):
        if "date" not in manifest.partition:
            raise OutputError(f"{root} is not partitioned by date, so no days can be dropped from it", usage=True)
        at = manifest.partition.index("date")
        days = {name: entry.values[at] for name, entry in manifest.parts.items()}
        old = [name for name, day in days.items() if day is not None and day < before.isoformat()]
        rows = sum(manifest.parts[name].rows for name in old)
        kept_from = max(manifest.kept_from or "", before.isoformat())
        if old or kept_from != manifest.kept_from:
            manifest.kept_from = kept_from
            change_parts(place, manifest, remove=old, add={})
        return {"parts": len(old), "rows": rows}


def forget_deleted(root: str | os.PathLike[str], *, wait_s: float = WAIT_S) -> list[str]:
    """Take partitions that were deleted by hand off the manifest, so that they are not named any more.

    Parameters
    ----------
    root : path
        A lake.
    wait_s : float
        As for `compact_lake`.

    Returns
    -------
    list of str
        Their folders, from the root.
    """
    with lake_held(root, wait_s) as (place, manifest):
        folders = visible(place).deleted
        gone = [name for name in manifest.parts if name.rpartition("/")[0] in set(folders)]
        if gone:
            change_parts(place, manifest, remove=gone, add={})
        return folders


@contextlib.contextmanager
def lake_held(root: str | os.PathLike[str], wait_s: float) -> Iterator[tuple[Path, Manifest]]:
    """Hold a lake alone, and give its folder and its manifest."""
    place = Path(root)
    if not is_lake(place):
        raise OutputError(f"{root} is no lake (it has no _ddtree/manifest.json); one is made by: ddtree-logs export --append {root}")
    with writing(place, wait_s) as manifest:
        yield place, manifest


def _merged(place: Path, manifest: Manifest, table: str, names: list[str]) -> dict[str, PartEntry]:
    """Write the rows of some parts of one partition into a new one, in their order."""
    number = manifest.commit + 1
    record = TABLES[table]
    values = manifest.parts[names[0]].values
    try:
        writer = LakeWriter(
            place, record, tuple(manifest.partition), staging=staging(place, number), names=PartNames(number, names), number=number
        )
        for name in names:
            with (place / name).open("rb") as file, pq.ParquetFile(file, page_checksum_verification=True) as opened:
                for batch in opened.iter_batches(batch_size=65_536):
                    rows = pa.Table.from_batches([batch])
                    for column, value in zip(manifest.partition, values, strict=True):
                        if column != "date":
                            rows = rows.append_column(column, pa.array([value] * rows.num_rows, pa.string()))
                    writer.write(conform(rows.replace_schema_metadata(None), record))
        return writer.entries()
    except BaseException:
        shutil.rmtree(staging(place, number), ignore_errors=True)
        raise


def change_parts(place: Path, manifest: Manifest, *, remove: list[str], add: dict[str, PartEntry]) -> None:
    """Commit a manifest without some parts and with others, which are staged."""
    for name in remove:
        del manifest.parts[name]
    manifest.parts |= add
    manifest.commit += 1
    commit(place, manifest, [name for name in remove if name not in add])
