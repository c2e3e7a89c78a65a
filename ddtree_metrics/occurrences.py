"""Events as they happened: one row a happening, however many ranks printed it, and what only a number on a Decode line tells of.

Every tensor-parallel rank prints that requests were retracted, or that it met an exception: that is one retraction, one exception.
And a decode node prints on each Decode line how many retracted requests wait: where that number rises by more than the retractions
that were told of in lines of their own, the rest is a retraction as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ddtree_metrics.records import TABLES, LoggedLine
from ddtree_metrics.schema import arrow_schema, columns
from ddtree_metrics.steps.columns import ints_of
from ddtree_metrics.steps.stream_ids import Labels, Origin, Origins

Ints = npt.NDArray[np.int64]
Tables = dict[str, pa.RecordBatch]
Lines = dict[str, Ints]

SAME_US = 5_000_000
"""Ranks print one event within this time of the first that does: they wait for each other at every step, however long it takes."""

SAME_LINES = 256
"""The same in lines, where a line has no time."""

RETRACTION = "retraction"

_SHARED = frozenset(c.name for c in columns(LoggedLine))


@dataclass(slots=True)
class _Happening:
    """One event, and the ranks that have printed it so far."""

    when: int | None
    line: int
    ranks: set[tuple[int, int, int]]


@dataclass(slots=True)
class _Queue:
    """How many retracted requests wait, as a rank's newest Decode line says."""

    waiting: int
    line: int


@dataclass(slots=True)
class Occurrences:
    """Follow the events of a log from batch to batch.

    Attributes
    ----------
    duplicates : int
        Event lines that said what another rank had said already; they are left out.
    told : int
        Retractions that only a number on Decode lines tells of.
    """

    duplicates: int = 0
    told: int = 0
    _open: dict[tuple[str, str], list[_Happening]] = field(default_factory=dict)
    _queues: dict[tuple[str, int], _Queue] = field(default_factory=dict)
    _retracted: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    _starts: dict[str, int] = field(default_factory=dict)

    def feed(self, tables: Tables, line: Lines) -> tuple[Tables, Lines]:
        """Leave out copies of events, and add what Decode lines tell.

        Parameters
        ----------
        tables : dict of str to pyarrow.RecordBatch
            The tables of one batch of lines, as the engine made them.
        line : dict of str to ndarray of int64
            For each table the running number of the line that each row came from.

        Returns
        -------
        tables, line
            The same with another table of events. An event that a Decode line tells of has the number of that line.
        """
        tables, line = dict(tables), dict(line)
        for name in ("servers", "events"):
            if name in tables:
                self._leave_out_copies(name, tables, line)
        if "servers" in tables:
            self._remember_starts(tables["servers"], line["servers"])
        if "events" in tables:
            self._remember_retractions(tables["events"], line["events"])
        waiting = tables["decode"].column("retracted") if "decode" in tables else None
        if waiting is not None and waiting.null_count < len(waiting):
            self._add_retractions(tables, line)
        return tables, line

    def _leave_out_copies(self, name: str, tables: Tables, line: Lines) -> None:
        """Leave out the rows of a table that repeat what another rank has printed."""
        keep = self._first_ones(tables[name], line[name])
        if keep.all():
            return
        self.duplicates += int((~keep).sum())
        if keep.any():
            tables[name], line[name] = tables[name].filter(pa.array(keep)), line[name][keep]
        else:
            del tables[name], line[name]

    def _remember_retractions(self, events: pa.RecordBatch, at: Ints) -> None:
        counts, counted = ints_of(events.column("count"))
        groups = _groups(events)
        for i, kind in enumerate(events.column("kind").to_pylist()):
            if kind == RETRACTION:
                known = self._retracted.setdefault(groups.texts[int(groups.codes[i])], [])
                known.append((int(at[i]), int(counts[i]) if counted[i] else 1))

    def _first_ones(self, rows: pa.RecordBatch, at: Ints) -> npt.NDArray[np.bool_]:
        """Say which rows are the first about their event; a row without a rank is never a copy, and has no copies."""
        tp, has_tp = ints_of(rows.column("tp_rank"))
        pp, has_pp = ints_of(rows.column("pp_rank"))
        ep, has_ep = ints_of(rows.column("ep_rank"))
        keep = np.ones(len(at), dtype=bool)
        ranked = np.flatnonzero(has_tp | has_pp | has_ep)
        if not len(ranked):
            return keep
        groups = _groups(rows)
        own = [name for name in rows.schema.names if name not in _SHARED]
        said = [str(row) for row in rows.select(own).take(pa.array(ranked)).to_pylist()]
        time, timed = ints_of(rows.column("time"))
        steps, _ = ints_of(rows.column("time_resolution_us"))
        for i, text in zip(ranked.tolist(), said, strict=True):
            key = (groups.texts[int(groups.codes[i])], text)
            when = int(time[i]) if timed[i] else None
            here = int(at[i])
            rank = (int(pp[i]), int(tp[i]), int(ep[i]))
            near = [h for h in self._open.get(key, ()) if _is_near(h, when, here, int(steps[i]))]
            same = next((h for h in near if rank not in h.ranks), None)
            if same is None:
                near.append(_Happening(when, here, {rank}))
            else:
                same.ranks.add(rank)
                keep[i] = False
            self._open[key] = near
        if len(self._open) > 4096:  # texts that never come again
            newest = int(at[-1])
            self._open = {k: some for k, some in self._open.items() if newest - some[-1].line <= SAME_LINES}
        return keep

    # -- what a number on a Decode line tells -----------------------------------------------------------------------------------

    def _remember_starts(self, servers: pa.RecordBatch, at: Ints) -> None:
        for i, place in enumerate(places(servers)):
            if servers.column("args")[i].is_valid:
                self._starts[place] = int(at[i])

    def _add_retractions(self, tables: Tables, line: Lines) -> None:
        decode, at = tables["decode"], line["decode"]
        waiting, known = ints_of(decode.column("retracted"))
        tp, _ = ints_of(decode.column("tp_rank"))
        pp, _ = ints_of(decode.column("pp_rank"))
        rank = pp * 65_536 + tp
        groups, services = _groups(decode), Origins(decode).labels(_place)
        risen_rows: list[int] = []
        counts: list[int] = []
        for code, group in enumerate(groups.texts):
            mine = groups.rows(code)
            for number in np.unique(rank[mine]).tolist():
                rows = mine[(rank[mine] == number) & known[mine]]
                if not len(rows):
                    continue
                place = services.texts[int(services.codes[rows[0]])]
                for i, count in self._rises(group, int(number), place, rows, waiting, at):
                    risen_rows.append(i)
                    counts.append(count)
            newest = int(at[mine[-1]])
            self._retracted[group] = [e for e in self._retracted.get(group, ()) if e[0] > newest]
        if not risen_rows:
            return
        order = np.argsort(at[risen_rows], kind="stable")
        rows = np.asarray(risen_rows, dtype=np.int64)[order]
        retractions = _told(decode.take(pa.array(rows)), [counts[i] for i in order])
        first = self._first_ones(retractions, at[rows])
        self.duplicates += int((~first).sum())
        self.told += int(first.sum())
        _put_among(tables, line, retractions.filter(pa.array(first)), at[rows][first])

    def _rises(self, group: str, rank: int, place: str, rows: Ints, waiting: Ints, at: Ints) -> list[tuple[int, int]]:
        """Return the rows of one rank at which more requests wait than before, each with the retractions that no other line reported."""
        before = self._queues.get((group, rank), _Queue(0, -1))
        values = np.insert(waiting[rows], 0, before.waiting)
        lines = np.insert(at[rows], 0, before.line)
        start = self._starts.get(place, -1)
        told = self._retracted.get(group, [])
        rises = []
        began = (lines[:-1] < start) & (start < lines[1:])
        for i in np.flatnonzero((np.diff(values) > 0) | (began & (values[1:] > 0))).tolist():
            risen = int(values[i + 1]) - (0 if began[i] else int(values[i]))
            risen -= sum(count for number, count in told if lines[i] < number < lines[i + 1])
            if risen > 0:
                rises.append((int(rows[i]), risen))
        self._queues[(group, rank)] = _Queue(int(values[-1]), int(lines[-1]))
        return rises


def _is_near(happened: _Happening, when: int | None, line: int, resolution_us: int) -> bool:
    if when is None or happened.when is None:
        return line - happened.line <= SAME_LINES
    return abs(when - happened.when) <= SAME_US + resolution_us


def places(batch: pa.RecordBatch) -> list[str]:
    """Name the service that each row is from: host, boot, and unit, or the file where the unit is not known."""
    services = Origins(batch).labels(_place)
    return [services.texts[code] for code in services.codes.tolist()]


def _place(origin: Origin) -> str:
    return f"{origin.host}\x1f{origin.boot_id}\x1f{origin.unit or origin.file}"


def _groups(batch: pa.RecordBatch) -> Labels:
    """Name the ranks that work on the same requests."""
    return Origins(batch).labels(lambda origin: f"{_place(origin)}\x1f{origin.dp_rank}")


def _told(rows: pa.RecordBatch, counts: list[int]) -> pa.RecordBatch:
    """Make events of Decode lines at which more retracted requests wait than before."""
    schema = arrow_schema(TABLES["events"])
    n = len(counts)
    said = {
        "kind": pa.repeat(pa.scalar(RETRACTION), n),
        "count": pa.array(counts, schema.field("count").type),
        "detail": pa.array(
            [f"{count} more retracted request{'s wait' if count > 1 else ' waits'} than at the Decode line before" for count in counts]
        ),
    }
    arrays = [said[f.name] if f.name in said else rows.column(f.name) if f.name in _SHARED else pa.nulls(n, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _put_among(tables: Tables, line: Lines, more: pa.RecordBatch, numbers: Ints) -> None:
    """Put more events among those of a batch, in the order of their lines."""
    if "events" in tables:
        more = pa.Table.from_batches([tables["events"].cast(more.schema), more]).combine_chunks().to_batches()[0]
        numbers = np.concatenate([line["events"], numbers])
    order = np.argsort(numbers, kind="stable")
    tables["events"], line["events"] = more.take(pa.array(order)), numbers[order]


OCCURRENCE_CLASSES = (Occurrences, _Happening, _Queue)
"""Whose objects are remembered from batch to batch."""

__all__ = ["OCCURRENCE_CLASSES", "Occurrences", "places"]
