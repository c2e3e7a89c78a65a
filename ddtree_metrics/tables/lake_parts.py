"""Parts of a lake: staged under the number of their commit, and without rows that the lake has already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ddtree_metrics.schema import SCHEMA_VERSION
from ddtree_metrics.sources.mixing import Keys, mixed, turns
from ddtree_metrics.tables.datasets import DatasetWriter, folder_of
from ddtree_metrics.tables.manifest import STAGED, PartEntry, time_of
from ddtree_metrics.tables.overlaps import numbers_of

_ORIGIN = ("time", "monotonic_us", "boot_id", "unit", "pid", "dp_rank", "pp_rank", "tp_rank", "ep_rank")
_SAID = {
    "steps": ("batch_size", "budget", "tokens"),
    "decode": ("running", "tokens", "queued"),
    "prefill": ("new_seqs", "new_tokens", "cached_tokens"),
    "events": ("kind", "count"),
    "request_lines": ("event", "request_id"),
}
"""What a row says that does not depend on the lines before and after it."""


TIMED_TABLES = ("steps", "decode", "prefill")
"""The tables whose parts say from when to when each boot of the machine wrote them."""


class PartNames:
    """Names for the parts of one commit.

    Parameters
    ----------
    number : int
        The commit's.
    taken_over : iterable of str
        Parts whose rows are written again; the first new part of their folder takes the name, so that it replaces them in one rename.
    """

    def __init__(self, number: int, taken_over: Iterable[str] = ()) -> None:
        self._number = number
        self._next = 0
        self._old: dict[str, list[str]] = {}
        for name in taken_over:
            folder, _, last = name.rpartition("/")
            self._old.setdefault(folder, []).append(last)

    def take(self, folder: str) -> str:
        """Return the name of the next part of a folder."""
        old = self._old.get(folder)
        if old:
            return old.pop(0)
        self._next += 1
        return f"part-{self._number:08d}-{self._next - 1:04d}.parquet"


class LakeWriter(DatasetWriter):
    """Rows of one table on their way into a lake; `entries` says which parts they became.

    Parameters
    ----------
    root : Path
    record : type
    partition : tuple of str
    staging : Path
        The folder of the commit.
    names : PartNames
    number : int
        The commit's.
    known : KnownRows, optional
        What is there already, and is not written again.
    kept_from : str, optional
        The first day of which rows are taken.
    """

    def __init__(
        self,
        root: Path,
        record: type,
        partition: tuple[str, ...],
        *,
        staging: Path,
        names: PartNames,
        number: int,
        known: KnownRows | None = None,
        kept_from: str | None = None,
        max_open: int = 32,
    ) -> None:
        self._place, self._names, self._commit_number, self._known = staging, names, number, known
        self._kept_from = kept_from or ""
        self._boots: dict[tuple[str | None, ...], dict[str, list[int]]] = {}
        super().__init__(root, record, partition, source="lake", max_open=max_open)

    def _stage(self) -> None:
        self._staging = self._place

    def _next_part(self, folder: Path) -> Path:
        inner = (Path(self._table.name) / folder).as_posix()
        return self._staging / inner / (self._names.take(inner) + STAGED)

    def _admitted(self, key: tuple[str | None, ...], rows: pa.Table) -> pa.Table:
        day = dict(zip(self._partition, key, strict=True)).get("date")
        if day is not None and day < self._kept_from:
            return rows.slice(0, 0)
        if self._known is not None:
            rows = self._new(key, rows)
        if rows.num_rows and self._table.name in TIMED_TABLES:
            spans = rows.select(["boot_id", "time"]).group_by("boot_id").aggregate([("time", "min"), ("time", "max")])
            found = self._boots.setdefault(key, {})
            for boot, first, last in zip(*(column.to_pylist() for column in _as_numbers(spans)), strict=True):
                if boot is not None and first is not None:
                    before = found.get(boot[:8], [first, last])
                    found[boot[:8]] = [min(first, before[0]), max(last, before[1])]
        return rows

    def _new(self, key: tuple[str | None, ...], rows: pa.Table) -> pa.Table:
        assert self._known is not None
        return self._known.without(f"{self._table.name}/{folder_of(self._partition, key).as_posix()}", rows)

    def entries(self, source: str | None = None) -> dict[str, PartEntry]:
        """Complete the parts, and return what the manifest is to say of them.

        Parameters
        ----------
        source : str, optional
            Whose newest rows they are, if they are to be written again.
        """
        self.finish()
        made = {}
        for path, key in self._closed:
            with path.open("rb") as file:
                foot = pq.read_metadata(file)
            name = path.relative_to(self._staging).as_posix().removesuffix(STAGED)
            span = time_of(foot, "min"), time_of(foot, "max")
            size = path.stat().st_size
            boots = self._boots.get(key, {})
            made[name] = PartEntry(foot.num_rows, size, *span, SCHEMA_VERSION, list(key), self._commit_number, source, boots)
        return made

    def _clean(self) -> None:
        """Leave the staging folder to the commit, or to who gives it up."""


class KnownRows:
    """The rows that a lake has where new ones may be the same.

    A row is the same where its line stands at the same place with the same times and the same content. Where boot and boot clock are
    known, it also is the same if it came by another journal (of systemd-journal-remote, or a copy that numbers anew).

    Parameters
    ----------
    root : Path
    parts : mapping of str to PartEntry
        The parts to look at; not those that are about to be written again.
    partition : sequence of str
        The columns that are in the folders' names: equal in all rows of one folder.
    """

    def __init__(self, root: Path, parts: Mapping[str, PartEntry], partition: Sequence[str]) -> None:
        self._root = root
        self._partition = frozenset(partition)
        self._parts: dict[str, list[tuple[str, PartEntry]]] = {}
        for name, entry in parts.items():
            self._parts.setdefault(name.rpartition("/")[0], []).append((name, entry))
        self._read: dict[str, tuple[Keys, Keys, pa.ChunkedArray]] = {}

    def without(self, folder: str, rows: pa.Table) -> pa.Table:
        """Return the rows of a partition that the lake does not have."""
        candidates = self._parts.get(folder)
        if not candidates:
            return rows
        span = pc.min_max(rows["time"].cast(pa.int64())).as_py()
        first, last = span["min"], span["max"]
        keep = np.ones(rows.num_rows, dtype=bool)
        table = folder.partition("/")[0]
        mine: tuple[Keys, Keys, pa.ChunkedArray] | None = None
        for name, entry in candidates:
            apart = None not in (first, last, entry.first_us, entry.last_us) and (last < entry.first_us or first > entry.last_us)
            if apart or not (self._root / name).is_file():
                continue
            mine = mine or _keys(rows, self._columns(table))
            keep &= ~_same(mine, self._of(name, table))
        return rows if keep.all() else rows.filter(pa.array(keep))

    def _columns(self, table: str) -> list[str]:
        return [name for name in key_columns(table) if name not in self._partition]

    def _of(self, name: str, table: str) -> tuple[Keys, Keys, pa.ChunkedArray]:
        if name not in self._read:
            with (self._root / name).open("rb") as file, pq.ParquetFile(file, page_checksum_verification=True) as opened:
                self._read[name] = _keys(opened.read(self._columns(table)), self._columns(table))
        return self._read[name]


def _keys(rows: pa.Table, columns: Sequence[str]) -> tuple[Keys, Keys, pa.ChunkedArray]:
    """Return for each row a number for place, times and content, one for boot clock and content (0 where that is not known), its place."""
    content = _content(rows, [name for name in columns if name != "where"])
    placed = _with_turns(mixed(content, numbers_of(rows["where"])))
    if "boot_id" not in columns:
        return placed, np.zeros(rows.num_rows, dtype=np.uint64), rows["where"]
    clocked = np.asarray(rows["boot_id"].is_valid()) & np.asarray(rows["monotonic_us"].is_valid())
    return placed, np.where(clocked, _with_turns(content), np.uint64(0)), rows["where"]


def _as_numbers(spans: pa.Table) -> list[pa.ChunkedArray]:
    return [spans["boot_id"], spans["time_min"].cast(pa.int64()), spans["time_max"].cast(pa.int64())]


def key_columns(table: str) -> list[str]:
    """Return the columns that tell the rows of a table apart."""
    return [*_ORIGIN, *_SAID.get(table, ()), "where"]


def place_keys(rows: pa.Table) -> Keys:
    """Return a number for place, times and content of each row that stands on a line; rows that stand on none are left out."""
    rows = rows.filter(pc.is_valid(rows["where"]))
    return _content(rows, rows.column_names)


def _content(rows: pa.Table, columns: Sequence[str]) -> Keys:
    made = np.zeros(rows.num_rows, dtype=np.uint64)
    for name in columns:
        made = mixed(made, numbers_of(rows[name]))
    return made


def _with_turns(keys: Keys) -> Keys:
    """Tell equal ones apart: the first, the second, and so on."""
    order = np.argsort(keys, kind="stable")
    turn = np.empty(len(keys), dtype=np.int64)
    turn[order] = turns(keys[order])
    return mixed(keys, turn)


def _same(
    mine: tuple[Keys, Keys, pa.ChunkedArray], theirs: tuple[Keys, Keys, pa.ChunkedArray]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Say which of my rows are among theirs."""
    same = np.isin(mine[0], theirs[0])
    maybe = np.flatnonzero(~same & (mine[1] != 0) & np.isin(mine[1], theirs[1]))
    if len(maybe):
        order = np.argsort(theirs[1], kind="stable")
        at = order[np.searchsorted(theirs[1][order], mine[1][maybe])]
        here, there = mine[2].take(pa.array(maybe)).to_pylist(), theirs[2].take(pa.array(at)).to_pylist()
        # two entries of one journal are two, whatever they say
        same[maybe] = [_journal(one) is None or _journal(one) != _journal(other) for one, other in zip(here, there, strict=True)]
    return same


def _journal(place: str | None) -> str | None:
    return place.partition(";")[0] if place is not None and place.startswith("journal:") else None
