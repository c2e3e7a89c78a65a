"""What a line means beside the lines before it: streams, step times, running sums, duplicate ranks.

Lines come in batches; a ``Streams`` object carries over what the next batch needs, so that a log of any length is read in
bounded memory. All work is done on whole columns.

A *stream* is one sequence of steps: host, boot, process and data-parallel rank. Time between two lines is taken only within one
stream, from the boot clock where there is one, and only where it is the time of a step; else ``step_why`` says why not.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ddtree_metrics.counting import Count
from ddtree_metrics.records import TABLES
from ddtree_metrics.schema import arrow_schema
from ddtree_metrics.steps.columns import BatchRows
from ddtree_metrics.steps.intervals import CLOCK_STEP_US, CODE, REASONS, Last, RowClocks, judge
from ddtree_metrics.steps.rank_copies import Group, Ranks
from ddtree_metrics.steps.stream_ids import Labels, Origin, Origins, begins_as, concerns, family_of, in_order, stream_of, unit_of

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STREAMS_KEPT = 4_096
"""Streams of a table that are remembered from one run to the next."""

_NEVER = np.int64(-1)
_BREAKS = ("prefill_between", "retraction", "suppressed", "restart", "outside_window")
_ANYWHERE = "\x1f"  # of every host and unit

# Between two Decode lines time has passed whatever else happened in it; line_why then says what did.
_TIMED_WINDOWS = ("", "prefill_between", "retraction", "suppressed", "gap", "coarse_clock")


@dataclass(slots=True)
class _Followed:
    """What is remembered of a stream: the number of its newest line, what its intervals need, and its running sum."""

    line: int
    last: Last
    tokens_cum: int = 0


@dataclass
class StreamCounts:
    """What was found while streams were followed."""

    duplicate_ranks: Annotated[int, Count("copies of a step from other tensor-parallel ranks, hidden")] = 0
    adopted_ranks: Annotated[int, Count("steps whose own line was lost, taken from a copy of another rank")] = 0
    clock_steps: Annotated[list[float], Count("jumps of the wall clock, in seconds")] = field(default_factory=list)
    gaps: Annotated[int, Count("holes between steps without a reason in the log")] = 0
    bursts: Annotated[int, Count("steps written together, whose times say nothing of them")] = 0


class Streams:
    """Follow the streams of a log from batch to batch, and fill the columns that need the line before."""

    def __init__(self) -> None:
        self.counts = StreamCounts()
        self._last: dict[tuple[str, str], _Followed] = {}
        self._ranks = Ranks()
        self._breaks: dict[tuple[str, str], int] = {}
        self._families: dict[tuple[str, str], str] = {}
        self._clock: dict[str, tuple[int, int, int]] = {}
        self._boots: dict[str, str] = {}

    def feed(self, tables: dict[str, pa.RecordBatch], line: dict[str, Ints], left_out: Ints | None = None) -> dict[str, pa.RecordBatch]:
        """Fill the derived columns of one batch.

        Parameters
        ----------
        tables : dict of str to pyarrow.RecordBatch
            Tables of the batch, as the engine made them.
        line : dict of str to ndarray of int64
            For each table the running number of the line that each row came from.
        left_out : ndarray of int64, optional
            The numbers of lines that stood among these and were left out, because their time lies outside of a window.

        Returns
        -------
        dict of str to pyarrow.RecordBatch
            The same tables with ``time_us``, ``stream``, ``step_us`` … filled, and ``events`` with what was found.
        """
        rows = {name: BatchRows(batch, line[name]) for name, batch in tables.items() if batch.num_rows}
        found: list[dict[str, Any]] = []
        self._follow_clocks(rows, found)
        streams = {name: r.origins.labels(stream_of) for name, r in rows.items() if name in ("steps", "decode", "prefill", "events")}
        breaks = self._collect_breaks(rows, streams)
        if left_out is not None and len(left_out):
            breaks["outside_window"][_ANYWHERE] = np.sort(left_out)
        out = dict(tables)
        for name in ("steps", "decode"):
            if name in rows:
                out[name] = self._follow(name, rows[name], streams[name], breaks, found)
        self._breaks.update({(kind, key): int(lines[-1]) for kind, by in breaks.items() for key, lines in by.items()})
        if "prefill" in rows:
            r = rows["prefill"]
            time, timed = r.ints("time")
            out["prefill"] = _replace(r.batch, {"time_us": _int_array(time, timed), "stream": streams["prefill"].column()})
        if "events" in rows:
            out["events"] = _replace(rows["events"].batch, {"stream": streams["events"].column()})
        if found:
            out["events"] = _append_events(out.get("events"), found)
        return out

    def forget_old(self) -> None:
        """Forget all streams but the newest, of which so many are kept that none that goes on is among the others."""
        for name in ("steps", "decode"):
            mine = sorted((key for key in self._last if key[0] == name), key=lambda key: self._last[key].line)
            for key in mine[:-STREAMS_KEPT]:
                del self._last[key]
        self._families = {family: key for family, key in self._families.items() if (family[0], key) in self._last}

    # -- clocks ---------------------------------------------------------------------------------------------------------------

    def _follow_clocks(self, rows: dict[str, BatchRows], found: list[dict[str, Any]]) -> None:
        """Compare wall clock and boot clock over all lines of a boot, and note where the wall clock jumped."""
        parts = []
        known: dict[str, int] = {}
        for name, r in rows.items():
            if name == "request_lines":
                continue
            time, timed = r.ints("time")
            mono, has_mono = r.ints("monotonic_us")
            keep = timed & has_mono
            if keep.any():
                labels = r.origins.labels(lambda o: f"{o.host}\x1f{o.boot_id}")
                codes = np.array([known.setdefault(text, len(known)) for text in labels.texts], dtype=np.int64)[labels.codes]
                parts.append((r.line, time, mono, codes) if keep.all() else (r.line[keep], time[keep], mono[keep], codes[keep]))
        if not parts:
            return
        line, time, mono, codes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        if len(parts) > 1:
            order = np.argsort(line, kind="stable")
            line, time, mono, codes = line[order], time[order], mono[order], codes[order]
        codes, present = in_order(codes, len(known))
        texts = list(known)
        for code, key in enumerate([texts[old] for old in present]):
            at = np.flatnonzero(codes == code) if len(present) > 1 else slice(None)
            t, m, n = time[at], mono[at], line[at]
            if key in self._clock:
                t0, m0, n0 = self._clock[key]
                t, m, n = np.insert(t, 0, t0), np.insert(m, 0, m0), np.insert(n, 0, n0)
            self._clock[key] = (int(t[-1]), int(m[-1]), int(n[-1]))
            host, _, boot = key.partition("\x1f")
            if boot and self._boots.get(host) not in (None, boot):
                found.append(
                    _event("boot", t[0], host=host, boot_id=boot, monotonic_us=int(m[0]), detail="another boot of this machine begins")
                )
            if boot:
                self._boots[host] = boot
            passed = np.diff(m)
            jump = np.diff(t) - passed
            # a clock that is slewed may drift by 500 us a second; a jump is more than that
            for i in np.flatnonzero((np.abs(jump) > CLOCK_STEP_US + np.abs(passed) // 1000) & (passed >= 0)):
                us = int(jump[i])
                self.counts.clock_steps.append(us / 1e6)
                found.append(
                    _event(
                        "clock_step",
                        t[i + 1],
                        host=host,
                        boot_id=boot or None,
                        monotonic_us=int(m[i + 1]),
                        count=us,
                        detail=f"the wall clock jumped by {us / 1e6:+.1f} s; step times use the boot clock",
                    )
                )

    # -- what lies between two lines ------------------------------------------------------------------------------------------

    def _collect_breaks(self, rows: dict[str, BatchRows], streams: dict[str, Labels]) -> dict[str, dict[str, Ints]]:
        """For each kind of break, the lines at which it happened, by stream or by unit."""
        found: dict[str, dict[str, list[Ints]]] = {kind: {} for kind in _BREAKS}

        def add(kind: str, keys: Labels, lines: Ints) -> None:
            for code, key in enumerate(keys.texts):
                at = keys.rows(code)
                if len(at):
                    found[kind].setdefault(key, []).append(lines[at])

        if "prefill" in rows:
            add("prefill_between", streams["prefill"], rows["prefill"].line)
        if "events" in rows:
            kinds = np.asarray(rows["events"].batch.column("kind").to_pylist(), dtype=object)
            units = rows["events"].origins.labels(unit_of)
            for kind, keys in (("retraction", streams["events"]), ("suppressed", units), ("restart", units)):
                at = np.flatnonzero(kinds == kind)
                if len(at):
                    add(kind, keys.take(at), rows["events"].line[at])
        if "servers" in rows:
            whole = np.asarray(rows["servers"].batch.column("args").is_valid())
            at = np.flatnonzero(whole)
            if len(at):
                add("restart", rows["servers"].origins.labels(unit_of).take(at), rows["servers"].line[at])
        return {kind: {key: np.sort(np.concatenate(v)) for key, v in by.items()} for kind, by in found.items()}

    def _broken(self, kind: str, key: str, breaks: dict[str, dict[str, Ints]], line: Ints, before: Ints) -> Bools | None:
        """Whether a break of this kind happened between the lines ``before`` and ``line``; None if it never did."""
        parts = [lines for other, lines in breaks[kind].items() if concerns(other, key)]
        carried = [at for (k, other), at in self._breaks.items() if k == kind and concerns(other, key)]
        if not parts and not carried:
            return None
        seen = np.sort(np.concatenate([np.asarray(carried, dtype=np.int64), *parts]))
        # lines left out, and retractions that a Decode line tells of, are numbered by the line after them; others are lines of their own
        at = np.searchsorted(seen, line, side="right" if kind in ("outside_window", "retraction") else "left")
        return np.where(at > 0, seen[np.maximum(at - 1, 0)], _NEVER) > before

    # -- steps and windows ----------------------------------------------------------------------------------------------------

    def _follow(
        self, name: str, r: BatchRows, streams: Labels, breaks: dict[str, dict[str, Ints]], found: list[dict[str, Any]]
    ) -> pa.RecordBatch:
        n = len(r.line)
        clocks = _clocks(r)
        why = np.zeros(n, dtype=np.int64)
        step = np.zeros(n, dtype=np.int64)
        copies = self._ranks.feed(name, r, streams)
        duplicate, streams = copies.duplicate, copies.streams
        if name == "steps":
            self.counts.duplicate_ranks += int(duplicate.sum())
            self.counts.adopted_ranks += copies.adopted
        why[duplicate] = CODE["duplicate_rank"]
        tokens, has_tokens = r.tokens() if name == "steps" else (np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool))
        has_tokens &= ~duplicate
        cum = np.zeros(n, dtype=np.int64)
        own = None if not duplicate.any() else ~duplicate
        ends = {key: int(r.line[rows[-1]]) for code, key in enumerate(streams.texts) if len(rows := streams.rows(code))}
        for code, key in enumerate(streams.texts):
            at = streams.rows(code)
            at = at if own is None else at[own[at]]
            if not len(at):
                continue
            if (name, key) not in self._last:
                why[at[0]] = CODE[self._first(name, key, r.origins.of(int(at[0])), int(r.line[at[0]]), ends)]
            self._follow_one(name, key, at, r, unit_of(r.origins.of(int(at[0]))), breaks, clocks, step, why, found)
            last = self._last[(name, key)]
            cum[at] = last.tokens_cum + np.cumsum(np.where(has_tokens[at], tokens[at], 0))
            last.tokens_cum = int(cum[at[-1]])
        made = {"time_us": _int_array(clocks.time, clocks.timed), "stream": streams.column()}
        said = _said(why)
        if name == "steps":
            made |= {
                "step_us": _int_array(step, why == 0),
                "step_why": said,
                "tokens": _int_array(tokens, has_tokens),
                "tokens_cum": _int_array(cum, ~duplicate),
            }
        else:
            honest = np.isin(why, [CODE[kind] for kind in _TIMED_WINDOWS])
            made |= {"line_us": _int_array(step, honest & (step > 0)), "line_why": said}
        return _replace(r.batch, made)

    def _follow_one(
        self,
        name: str,
        key: str,
        at: Ints,
        r: BatchRows,
        unit: str,
        breaks: dict[str, dict[str, Ints]],
        clocks: RowClocks,
        step: Ints,
        why: Ints,
        found: list[dict[str, Any]],
    ) -> None:
        """Fill ``step`` and ``why`` for the rows ``at`` of one stream, in the order of their lines."""
        line = r.line[at]
        before = self._last.get((name, key))
        prev_line = np.insert(line[:-1], 0, _NEVER if before is None else before.line)
        windows = None
        if name == "steps":
            stands_for, said = r.ints("steps")
            windows = said[at] & (stands_for[at] != 1)
        named = {"restart": unit, "suppressed": unit, "outside_window": unit, "retraction": key, "prefill_between": key}
        made = judge(
            clocks.take(at),
            {kind: self._broken(kind, concerned, breaks, line, prev_line) for kind, concerned in named.items()},
            None if before is None else before.last,
            begins=int(why[at[0]]),
            windows=windows,
            find_gaps=name == "steps",
        )
        step[at], why[at] = made.elapsed_us, made.reason
        # a line that says its own step time needs no clock, and one without a batch (how far one request is) is no step of it
        needs_clock = np.asarray(r.batch.column("step_ms").is_null())[at] if name == "steps" else r.ints("running")[1][at]
        self.counts.bursts += int(((made.reason == CODE["burst"]) & needs_clock).sum())
        self.counts.gaps += len(made.gaps)
        for i, usual in zip(made.gaps.tolist(), made.usual_us.tolist(), strict=True):
            found.append(_gap(r.batch.slice(int(at[i]), 1), int(made.elapsed_us[i]), usual))
        self._last[(name, key)] = _Followed(int(line[-1]), made.last, 0 if before is None else before.tokens_cum)

    def _first(self, name: str, key: str, origin: Origin, line: int, ends: dict[str, int]) -> str:
        """Say why a stream begins; see ``begins_as``."""
        family = family_of(origin)
        before = self._families.get((name, family))
        self._families[(name, family)] = key
        return begins_as(key, before, goes_on=before is not None and ends.get(before, _NEVER) > line)


# -- helpers on columns -------------------------------------------------------------------------------------------------------


def _clocks(rows: BatchRows) -> RowClocks:
    time, timed = rows.ints("time")
    mono, has_mono = rows.ints("monotonic_us")
    return RowClocks(time, timed, mono, has_mono, rows.ints("time_resolution_us")[0])


@functools.cache
def _reasons() -> pa.Array:
    return pa.array([None, *REASONS[1:]], pa.string())


def _said(why: Ints) -> pa.Array:
    """Write reasons out; none is null."""
    first = int(why[0])
    if (why == first).all():
        return pa.repeat(_reasons()[first], len(why))
    return _reasons().take(pa.array(why))


def _int_array(values: Ints, valid: Bools) -> pa.Array:
    return pa.array(values, type=pa.int64(), mask=None if valid.all() else ~valid)


def _replace(batch: pa.RecordBatch, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    arrays = [columns.get(f.name, batch.column(i)) for i, f in enumerate(batch.schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _event(kind: str, time_us: Any, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "time": None if time_us is None else int(time_us), "time_from": None, **more}


def _gap(row: pa.RecordBatch, here_us: int, usual_us: float) -> dict[str, Any]:
    """Make the event of a hole before the one row given."""
    same = ("monotonic_us", "host", "boot_id", "unit", "pid", "dp_rank", "where")
    usual = f", {here_us / max(usual_us, 1.0):.0f} times the usual {usual_us / 1e3:.1f} ms beside it" if np.isfinite(usual_us) else ""
    return _event(
        "gap",
        row.column("time").cast(pa.int64())[0].as_py(),
        count=here_us,
        detail=f"{here_us / 1e6:.3f} s without a step{usual}",
        stream=stream_of(Origins(row).all[0]),
        **{name: row.column(name)[0].as_py() for name in same},
    )


def _append_events(batch: pa.RecordBatch | None, found: list[dict[str, Any]]) -> pa.RecordBatch:
    schema = arrow_schema(TABLES["events"])
    arrays = []
    for f in schema:
        values = [e.get(f.name) for e in found]
        made = pa.array(values, type=pa.int64()).cast(f.type) if pa.types.is_timestamp(f.type) else pa.array(values, type=f.type)
        arrays.append(made)
    extra = pa.RecordBatch.from_arrays(arrays, schema=schema)
    if batch is None:
        return extra
    table = pa.Table.from_batches([batch.cast(schema) if batch.schema != schema else batch, extra]).combine_chunks()
    return table.to_batches()[0]


STREAM_CLASSES = (Streams, StreamCounts, _Followed, Last, Ranks, Group)
"""Whose objects are remembered from batch to batch."""
