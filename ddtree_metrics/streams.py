"""What a line means beside the lines before it: streams, step times, running sums, duplicate ranks.

Lines come in batches; a ``Streams`` object carries over what the next batch needs, so that a log of any length is read in
bounded memory. All work is done on whole columns.

A *stream* is one sequence of steps: host, boot, process and data-parallel rank. Time between two lines is taken only within one
stream, from the boot clock where there is one, and only where it is the time of a step; else ``step_why`` says why not.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ddtree_metrics.origins import Labels, Origin, Origins, in_order
from ddtree_metrics.ranks import Ranks
from ddtree_metrics.records import TABLES
from ddtree_metrics.rows import Rows
from ddtree_metrics.schema import arrow_schema

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

BURST_US = 100
"""Two lines of a stream nearer than this were written together: no server makes a step in it."""

COARSE_US = 100_000
"""A clock whose smallest step is this or more cannot time a step line by line."""

GAP_FACTOR = 10
"""An interval this many times the usual one beside it is no step; idle time, most often."""

GAP_FLOOR_US = 100_000
"""... and by so much longer at least, so that jitter of very fast steps is not taken for a gap."""

CLOCK_STEP_US = 500_000
"""Wall clock and boot clock may differ by so much between two lines before it is called a jump."""

NEIGHBOURS = 25
"""How many intervals on each side make the usual one."""

LONGEST_STEP_US = 5_000_000
"""No interval longer than this is taken for a step, whatever is beside it: lines an hour apart are usual in an idle night."""

# Reasons, the strongest first: where several hold, the first is written.
_REASONS = (
    "",
    "duplicate_rank",
    "no_time",
    "first",
    "boot",
    "restart",
    "suppressed",
    "outside_window",
    "retraction",
    "clock_step",
    "coarse_clock",
    "window",
    "prefill_between",
    "burst",
    "gap",
)
_CODE = {name: i for i, name in enumerate(_REASONS)}
_NEVER = np.int64(-1)
_BREAKS = ("prefill_between", "retraction", "suppressed", "restart", "outside_window")
_ANYWHERE = "\x1f"  # of every host and unit

# Between two Decode lines time has passed whatever else happened in it; line_why then says what did.
_TIMED_WINDOWS = ("", "prefill_between", "retraction", "suppressed", "gap", "coarse_clock")


@dataclass(slots=True)
class _Clocks:
    """Both clocks of some rows, and how fine the wall clock is."""

    time: Ints
    timed: Bools
    mono: Ints
    has_mono: Bools
    resolution: Ints

    @classmethod
    def of(cls, rows: Rows) -> _Clocks:
        time, timed = rows.ints("time")
        mono, has_mono = rows.ints("monotonic_us")
        resolution, _ = rows.ints("time_resolution_us")
        return cls(time, timed, mono, has_mono, resolution)

    def take(self, at: Ints) -> _Clocks:
        return _Clocks(self.time[at], self.timed[at], self.mono[at], self.has_mono[at], self.resolution[at])

    def since_previous(self, last: _Last | None) -> tuple[Ints, Bools, Bools]:
        """Return the time since the row before, whether it is known, and whether it is the boot clock's."""
        time0, mono0 = (last.time_us, last.monotonic_us) if last is not None else (None, None)
        prev_time, prev_timed = np.insert(self.time[:-1], 0, time0 or 0), np.insert(self.timed[:-1], 0, time0 is not None)
        prev_mono, prev_has = np.insert(self.mono[:-1], 0, mono0 or 0), np.insert(self.has_mono[:-1], 0, mono0 is not None)
        by_boot_clock = self.has_mono & prev_has
        by_wall_clock = self.timed & prev_timed
        dt = np.where(by_boot_clock, self.mono - prev_mono, np.where(by_wall_clock, self.time - prev_time, 0))
        return dt, by_boot_clock | by_wall_clock, by_boot_clock


@dataclass(slots=True)
class _Last:
    """What is remembered of a stream: its newest line and the intervals before it."""

    line: int
    time_us: int | None
    monotonic_us: int | None
    burst: bool = False
    tokens_cum: int = 0
    usual: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclass(slots=True)
class StreamCounts:
    """What was found while streams were followed."""

    duplicate_ranks: int = 0
    adopted_ranks: int = 0
    clock_steps: list[float] = field(default_factory=list)
    gaps: int = 0
    bursts: int = 0
    streams: set[str] = field(default_factory=set)


class Streams:
    """Follow the streams of a log from batch to batch, and fill the columns that need the line before."""

    def __init__(self) -> None:
        self.counts = StreamCounts()
        self._last: dict[tuple[str, str], _Last] = {}
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
        rows = {name: Rows(batch, line[name]) for name, batch in tables.items() if batch.num_rows}
        found: list[dict[str, Any]] = []
        self._follow_clocks(rows, found)
        streams = {name: r.origins.labels(_stream) for name, r in rows.items() if name in ("steps", "decode", "prefill", "events")}
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

    # -- clocks ---------------------------------------------------------------------------------------------------------------

    def _follow_clocks(self, rows: dict[str, Rows], found: list[dict[str, Any]]) -> None:
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

    def _collect_breaks(self, rows: dict[str, Rows], streams: dict[str, Labels]) -> dict[str, dict[str, Ints]]:
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
            for kind, keys in (("retraction", streams["events"]), ("suppressed", rows["events"].origins.labels(_unit))):
                at = np.flatnonzero(kinds == kind)
                if len(at):
                    add(kind, keys.take(at), rows["events"].line[at])
        if "servers" in rows:
            whole = np.asarray(rows["servers"].batch.column("args").is_valid())
            at = np.flatnonzero(whole)
            if len(at):
                add("restart", rows["servers"].origins.labels(_unit).take(at), rows["servers"].line[at])
        return {kind: {key: np.sort(np.concatenate(v)) for key, v in by.items()} for kind, by in found.items()}

    def _broken(self, kind: str, key: str, breaks: dict[str, dict[str, Ints]], line: Ints, before: Ints) -> Bools | None:
        """Whether a break of this kind happened between the lines ``before`` and ``line``; None if it never did."""
        parts = [lines for other, lines in breaks[kind].items() if _concerns(other, key)]
        carried = [at for (k, other), at in self._breaks.items() if k == kind and _concerns(other, key)]
        if not parts and not carried:
            return None
        seen = np.sort(np.concatenate([np.asarray(carried, dtype=np.int64), *parts]))
        # lines left out, and retractions that a Decode line tells of, are numbered by the line after them; others are lines of their own
        at = np.searchsorted(seen, line, side="right" if kind in ("outside_window", "retraction") else "left")
        return np.where(at > 0, seen[np.maximum(at - 1, 0)], _NEVER) > before

    # -- steps and windows ----------------------------------------------------------------------------------------------------

    def _follow(
        self, name: str, r: Rows, streams: Labels, breaks: dict[str, dict[str, Ints]], found: list[dict[str, Any]]
    ) -> pa.RecordBatch:
        n = len(r.line)
        clocks = _Clocks.of(r)
        why = np.zeros(n, dtype=np.int64)
        step = np.zeros(n, dtype=np.int64)
        copies = self._ranks.feed(name, r, streams)
        duplicate, streams = copies.duplicate, copies.streams
        if name == "steps":
            self.counts.duplicate_ranks += int(duplicate.sum())
            self.counts.adopted_ranks += copies.adopted
        why[duplicate] = _CODE["duplicate_rank"]
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
            self.counts.streams.add(key)
            if (name, key) not in self._last:
                why[at[0]] = _CODE[self._first(name, key, r.origins.of(int(at[0])), int(r.line[at[0]]), ends)]
            self._follow_one(name, key, at, r, _unit(r.origins.of(int(at[0]))), breaks, clocks, step, why, found)
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
            honest = np.isin(why, [_CODE[kind] for kind in _TIMED_WINDOWS])
            made |= {"line_us": _int_array(step, honest & (step > 0)), "line_why": said}
        return _replace(r.batch, made)

    def _follow_one(
        self,
        name: str,
        key: str,
        at: Ints,
        r: Rows,
        unit: str,
        breaks: dict[str, dict[str, Ints]],
        clocks: _Clocks,
        step: Ints,
        why: Ints,
        found: list[dict[str, Any]],
    ) -> None:
        """Fill ``step`` and ``why`` for the rows ``at`` of one stream, in the order of their lines."""
        clock = clocks.take(at)
        line = r.line[at]
        last = self._last.get((name, key))
        prev_line = np.insert(line[:-1], 0, _NEVER if last is None else last.line)
        dt, known, by_boot_clock = clock.since_previous(last)
        reason = np.zeros(len(at), dtype=np.int64)

        def mark(where: Bools | None, code: str) -> None:
            if where is not None and where.any():
                reason[where & (reason == 0)] = _CODE[code]

        if last is None:
            reason[0] = why[at[0]]  # why the stream begins
        mark(~known & ~(clock.timed | clock.has_mono), "no_time")
        mark(self._broken("restart", unit, breaks, line, prev_line), "restart")
        mark(self._broken("suppressed", unit, breaks, line, prev_line), "suppressed")
        mark(self._broken("outside_window", unit, breaks, line, prev_line), "outside_window")
        mark(self._broken("retraction", key, breaks, line, prev_line), "retraction")
        mark(~known, "no_time")
        mark(dt < 0, "clock_step")
        coarse = ~by_boot_clock & (clock.resolution >= COARSE_US)
        mark(coarse, "coarse_clock")
        if name == "steps":
            stands_for, said = r.ints("steps")
            mark(said[at] & (stands_for[at] != 1), "window")
        mark(self._broken("prefill_between", key, breaks, line, prev_line), "prefill_between")
        together = known & (dt >= 0) & (dt < BURST_US) & ~coarse
        # the lines of a burst, the one it begins with, and the one after it: none of these intervals is a step
        starts = np.append(together[1:], False)
        after = np.insert(together[:-1], 0, last.burst if last is not None else False)
        burst = together | starts | after
        mark(burst, "burst")
        self.counts.bursts += int((reason == _CODE["burst"]).sum())
        usual = last.usual if last is not None else np.empty(0, dtype=np.int64)
        if name == "steps":
            self._mark_gaps(dt, reason, usual, r, at, found)
        ok = reason == 0
        step[at] = np.where(known, np.maximum(dt, 0), 0)
        why[at] = reason
        kept = dt[ok]
        self._last[(name, key)] = _Last(
            line=int(line[-1]),
            time_us=int(clock.time[-1]) if clock.timed[-1] else None,
            monotonic_us=int(clock.mono[-1]) if clock.has_mono[-1] else None,
            burst=bool(together[-1]),
            tokens_cum=last.tokens_cum if last is not None else 0,
            usual=np.concatenate([usual, kept])[-2 * NEIGHBOURS :],
        )

    def _mark_gaps(self, dt: Ints, reason: Ints, carried: Ints, r: Rows, at: Ints, found: list[dict[str, Any]]) -> None:
        """Mark intervals far above the usual one beside them, or too long for any step: idle time or lost lines, but no step."""
        ok = np.flatnonzero(reason == 0)
        if not len(ok):
            return
        here = dt[ok]
        series = np.concatenate([carried, here])
        # the usual interval beside one is not below the fifth percentile of all, so nothing else need be looked at
        looked_at = np.flatnonzero(here > min(float(np.quantile(series, 0.05)) * GAP_FACTOR, LONGEST_STEP_US))
        if not len(looked_at):
            return
        usual = _usual_beside(series, looked_at + len(carried))
        far = (here[looked_at] > usual * GAP_FACTOR) & (here[looked_at] > usual + GAP_FLOOR_US)
        for i in looked_at[far | (here[looked_at] > LONGEST_STEP_US)]:
            reason[ok[i]] = _CODE["gap"]
            self.counts.gaps += 1
            beside = float(usual[int(np.searchsorted(looked_at, i))])
            found.append(_gap(r.batch.slice(int(at[ok[i]]), 1), int(here[i]), beside))

    def _first(self, name: str, key: str, origin: Origin, line: int, ends: dict[str, int]) -> str:
        """Say why a stream begins: the first of its server, another boot, or another process in the place of an older one.

        A process whose older neighbour goes on logging has not replaced it.
        """
        family = f"{origin.host}|{origin.unit or origin.file}|{origin.dp_rank}"
        before = self._families.get((name, family))
        self._families[(name, family)] = key
        if before is None or ends.get(before, _NEVER) > line:
            return "first"
        return "restart" if before.split("|")[1] == key.split("|")[1] else "boot"


def _usual_beside(series: Ints, at: Ints) -> npt.NDArray[np.float64]:
    """Return the median of the intervals beside each of some, up to ``NEIGHBOURS`` on each side; inf where there is none."""
    if len(series) < 2:
        return np.full(len(at), np.inf)
    padded = np.concatenate([np.full(NEIGHBOURS, np.nan), series.astype(np.float64), np.full(NEIGHBOURS, np.nan)])
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * NEIGHBOURS + 1)[at].copy()
    around[:, NEIGHBOURS] = np.nan
    return np.asarray(np.nanmedian(around, axis=1), dtype=np.float64)


def _concerns(event: str, row: str) -> bool:
    """Whether what happened to one unit (or stream) concerns a line of another, where either may be unknown in part.

    A notice that names a unit is taken to concern lines of no named unit too: a text log does not say its unit.
    """
    if event == row:
        return True
    if "\x1f" not in event:
        return False
    return all(not a or not b or a == b for a, b in zip(event.split("\x1f"), row.split("\x1f"), strict=True))


# -- helpers on columns -------------------------------------------------------------------------------------------------------


def _unit(origin: Origin) -> str:
    return f"{origin.host}\x1f{origin.unit}"


def _stream(origin: Origin) -> str:
    """Name a stream: ``host|boot|process|dp``, with ``-`` for what is not known.

    Where the process is not known, the unit (or container) stands for it, and else the file.
    """
    rank = f"dp{origin.dp_rank}" if origin.dp_rank else ""
    return "|".join(part or "-" for part in (origin.host, origin.boot_id[:8], origin.pid or origin.unit or origin.file, rank))


@functools.cache
def _reasons() -> pa.Array:
    return pa.array([None, *_REASONS[1:]], pa.string())


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
        stream=_stream(Origins(row).all[0]),
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
