"""Whether a lake is as it should be: its parts as the manifest says, each row once, no hole in a stream, one machine a name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ddtree_metrics.layout import plural
from ddtree_metrics.records import TABLES
from ddtree_metrics.schema import METADATA_PREFIX, arrow_schema
from ddtree_metrics.tables.lake_parts import key_columns, place_keys
from ddtree_metrics.tables.manifest import LakePart, is_lake, load, time_of, visible
from ddtree_metrics.times import format_us

_NEEDED = {"steps": ("stream", "time_us", "monotonic_us", "tokens", "tokens_cum", "step_why")}
_DAY_US = 86_400_000_000
_SERIES = 16
"""Runs of which each may have its own running sum in one stream."""


@dataclass(slots=True)
class LakeCheck:
    """What was found in a lake.

    Attributes
    ----------
    rows : dict of str to int
        Rows by table, as they were counted.
    parts : int
    versions : dict of int to int
        Parts by schema version.
    bytes : int
    problems : list of str
        What should not be, each in a sentence with what to do.
    notes : list of str
        What a reader should know.
    """

    rows: dict[str, int] = field(default_factory=dict)
    parts: int = 0
    versions: dict[int, int] = field(default_factory=dict)
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was found that should not be."""
        return not self.problems


def check_lake(root: str | os.PathLike[str]) -> LakeCheck:
    """Read a lake through, and say what is wrong with it; nothing is changed.

    Parameters
    ----------
    root : path
        A lake.

    Returns
    -------
    LakeCheck
        Counted rows against the manifest, schema versions, parts that are missing, cut or foreign, rows outside of their partition,
        rows that are there twice, and holes: places where the running sum of a stream's tokens jumps.

    Raises
    ------
    SourceNotFound, SchemaError
        As `ddtree_metrics.tables.manifest.visible`.
    """
    place = Path(root)
    seen = visible(place)
    made = LakeCheck(problems=list(seen.broken), notes=[note for note in seen.notes if note not in seen.broken])
    streams: dict[str, tuple[set[int], str]] = {}
    for table, parts in seen.parts.items():
        folders: dict[str, list[LakePart]] = {}
        for part in parts:
            folders.setdefault(part.name.rpartition("/")[0], []).append(part)
            made.parts += 1
            made.bytes += part.path.stat().st_size
        # day by day, for streams go on from one to the next
        for folder, some in sorted(folders.items(), key=lambda item: (item[1][0].partition.get("date") or "", item[0])):
            good = [part for part in some if _counted(made, table, part)]
            if not good or "time_from" not in arrow_schema(TABLES[table]).names:  # made of other tables
                continue
            rows = pa.concat_tables([_columns(part, table) for part in good])
            keys = place_keys(rows.select([name for name in key_columns(table) if name in rows.column_names]))
            twice = len(keys) - len(np.unique(keys))
            if twice:
                made.problems.append(
                    f"{place / folder}: {twice:,} rows are there twice; they were written past the manifest, or are of another lake: "
                    "export into a new folder"
                )
            if table == "steps":
                made.problems += [f"{place / folder}: {hole}" for hole in _holes(rows, streams, good[0].partition.get("date"))]
    if is_lake(place):
        for known in load(place).sources.values():
            made.notes += [f"{known['what']}: {note}" for note in known["account"]["notes"] if " missing in the lake" in note]
    return made


def _counted(made: LakeCheck, table: str, part: LakePart) -> bool:
    """Compare a part with what is said of it."""
    try:
        with part.path.open("rb") as file:
            foot = pq.read_metadata(file)
    except (pa.ArrowInvalid, OSError) as error:
        made.problems.append(f"{part.path} cannot be read ({error}); bring it back from a copy")
        return False
    said = foot.metadata or {}
    version = int(said.get(f"{METADATA_PREFIX}schema_version".encode(), b"1"))
    made.versions[version] = made.versions.get(version, 0) + 1
    made.rows[table] = made.rows.get(table, 0) + foot.num_rows
    if foot.num_rows != part.rows:
        made.problems.append(f"{part.path} has {foot.num_rows:,} rows, and its manifest says {part.rows:,}")
    record = said.get(f"{METADATA_PREFIX}record".encode(), b"").decode()
    if record != TABLES[table].__name__:
        made.problems.append(f"{part.path} holds {record or 'unknown'} rows, not those of {table}")
        return False
    day = part.partition.get("date")
    first, last = time_of(foot, "min"), time_of(foot, "max")
    if day is not None and first is not None and last is not None:
        begin = int(datetime.combine(date.fromisoformat(day), datetime.min.time(), timezone.utc).timestamp()) * 1_000_000
        if first < begin or last >= begin + _DAY_US:
            made.problems.append(f"{part.path} has rows of other days than {day}")
    return True


def _columns(part: LakePart, table: str) -> pa.Table:
    with part.path.open("rb") as file, pq.ParquetFile(file, page_checksum_verification=True) as opened:
        there = set(opened.schema_arrow.names)
        wanted = [name for name in dict.fromkeys([*key_columns(table), *_NEEDED.get(table, ())]) if name in there]
        return opened.read(wanted)


def _holes(rows: pa.Table, streams: dict[str, tuple[set[int], str]], day: str | None) -> Iterator[str]:
    """Yield where the running sum of a stream jumps, from one of its rows to the next."""
    rows = rows.filter(pc.is_valid(rows["tokens_cum"]))
    coded = rows["stream"].combine_chunks().dictionary_encode()
    codes = np.asarray(coded.indices.fill_null(-1))
    clock = np.asarray(pc.fill_null(pc.coalesce(rows["monotonic_us"], rows["time_us"]), 0))
    total, tokens = (np.asarray(pc.fill_null(rows[name], 0)) for name in ("tokens_cum", "tokens"))
    order = np.lexsort((total, clock, codes))
    for code, stream in enumerate(coded.dictionary.to_pylist()):
        mine = order[codes[order] == code]
        begin = total[mine] - tokens[mine]
        ends, day_before = streams.get(stream, ({int(begin[0])}, day or ""))
        after_days = day is not None and day_before != "" and day > _next_day(day_before)
        wrong = []
        # a series that begins anew is another run's, which knew nothing of the stream; then the first goes on
        for i in np.flatnonzero(begin != np.insert(total[mine[:-1]], 0, -1)).tolist():
            if i:
                ends.add(int(total[mine[i - 1]]))
            if int(begin[i]) in ends:
                ends.discard(int(begin[i]))
            elif begin[i] and not (after_days and i == 0 and begin[i] > max(ends, default=0)):
                wrong.append(i)
        streams[stream] = ({*sorted(ends)[-_SERIES:], int(total[mine[-1]])}, day or "")
        if wrong:
            at = int(mine[wrong[0]])
            yield (
                f"{plural(len(wrong), 'hole')} in stream {stream!r}, the first at {format_us(rows['time_us'][at].as_py())}: rows before it "
                "are missing, or it is there under another sum; export the time around it once more with --since"
            )


def _next_day(day: str) -> str:
    return (date.fromisoformat(day) + timedelta(days=1)).isoformat()
