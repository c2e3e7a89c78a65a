"""How long each step took, and which intervals between two lines are no step times at all.

A step time is the time from the previous step line of the same stream to this one. It is null, with a reason, wherever something
else lies between: a prefill, idle time, lost lines, a boot, a restart, a clock that was set. Lines that were written in one go
(block-buffered output) and stamps of whole seconds say nothing about single steps; both still bound the mean of a stretch
(`step_time_bounds`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.between import Between
from ddtree_metrics.steps.frames import Bools, Floats, Ints
from ddtree_metrics.steps.given import takes
from ddtree_metrics.steps.intervals import BURST_US, COARSE_US, REASONS
from ddtree_metrics.steps.line_intervals import Intervals, judged

STRETCH_US = 2_000_000.0
"""Stamps of a coarse clock further apart than this (and than five of its steps) end a stretch."""

FLUSH_FACTOR = 3.0
"""A flush whose lines took longer than so many times the usual holds idle time."""


@takes("steps")
def step_times(
    steps: pd.DataFrame,
    decode: pd.DataFrame | None = None,
    events: pd.DataFrame | None = None,
    *,
    prefill: pd.DataFrame | None = None,
    servers: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Add the step time of each step, where it came from, or why there is none.

    Parameters
    ----------
    steps : pandas.DataFrame
        Step lines, or request steps, in the order in which they were logged. Times are taken from ``step_ms`` (the line says it),
        ``step_us`` with ``step_why`` (computed when the log was read), else from ``monotonic_us``, else from ``time``.
    decode : pandas.DataFrame, optional
        ``Decode batch`` lines. Where a step has no time of its own because the clock is too coarse or lines came in a burst, the
        mean step time of the window around it is used (``throughput``).
    events : pandas.DataFrame, optional
        Suppressions, retractions, restarts: no step time is taken across them.
    prefill : pandas.DataFrame, optional
        ``Prefill batch`` lines: no step time is taken across them either.
    servers : pandas.DataFrame, optional
        Server starts: no step time is taken across one.

    Returns
    -------
    pandas.DataFrame
        A copy with ``step_time_ms`` (float), ``step_time_from`` (logged, monotonic, realtime, throughput) and ``step_why``
        (null where there is a time).

    Examples
    --------
    >>> import pandas as pd
    >>> step_times(pd.DataFrame({"monotonic_us": [0, 40_000, 81_000]}))["step_time_ms"].tolist()
    [nan, 40.0, 41.0]
    """
    ms, why, source = _own_times(steps, events, prefill, servers)
    logged = cols.numeric(steps, "step_ms")
    stated = np.isfinite(logged) & (why != "duplicate_rank")
    negative = stated & ~(logged > 0)
    ms = np.where(stated, logged, ms)
    why[stated] = None
    source[stated] = "logged"
    bad = negative | (np.isfinite(ms) & ~(ms > 0))
    ms[bad] = np.nan
    why[bad] = "not_positive"
    if decode is not None and len(decode) and len(steps):
        _fill_from_decode(steps, decode, prefill, events, ms, why, source)
    missing = np.isnan(ms)
    source[missing] = None
    why[~missing] = None
    made = steps.copy()
    made["step_time_ms"] = ms
    made["step_time_from"] = pd.Series(source, index=steps.index, dtype=object)
    made["step_why"] = pd.Series(why, index=steps.index, dtype=object)
    return made


def _own_times(
    steps: pd.DataFrame, events: pd.DataFrame | None, prefill: pd.DataFrame | None, servers: pd.DataFrame | None
) -> tuple[Floats, NDArray[Any], NDArray[Any]]:
    """Return step time in ms, why there is none, and the clock used, without throughput."""
    rows = len(steps)
    source = np.full(rows, None, dtype=object)
    read = "step_us" in steps.columns or "step_time_ms" not in steps.columns  # else step_why is what this function gave before
    if cols.has(steps, "step_us") or (read and cols.has(steps, "step_why")):
        ms = cols.finite(cols.numeric(steps, "step_us")) / 1000.0
        why = cols.text(steps, "step_why")
        why[np.isfinite(ms)] = None
        why[np.isnan(ms) & (why == None)] = "no_time"  # noqa: E711 - elementwise
        clock = np.isfinite(cols.numeric(steps, "monotonic_us")) if "monotonic_us" in steps.columns else np.ones(rows, dtype=bool)
        source[:] = np.where(clock, "monotonic", "realtime")
        return ms, why, source
    frame = Intervals.of(steps)
    reason = judged(steps, frame, prefill=prefill, events=events, servers=servers)
    why = _NAMES[reason]
    ms = np.where(reason == 0, frame.elapsed_us / 1000.0, np.nan)
    source[:] = np.where(frame.by_monotonic, "monotonic", "realtime")
    return ms, why, source


_NAMES = np.array([None, *REASONS[1:]], dtype=object)


def _fill_from_decode(
    steps: pd.DataFrame,
    decode: pd.DataFrame,
    prefill: pd.DataFrame | None,
    events: pd.DataFrame | None,
    ms: Floats,
    why: NDArray[Any],
    source: NDArray[Any],
) -> None:
    """Give steps that cannot be timed by their stamps the mean step time of the Decode line's window they lie in."""
    from ddtree_metrics.steps.decode_windows import decode_step_times

    lines = decode_step_times(decode, prefill=prefill, events=events)
    times, values = cols.time_us(lines), cols.numeric(lines, "step_time_ms")
    stamps = cols.time_us(steps)
    wanted = np.isnan(ms) & np.isin(why.astype(str), ("coarse_clock", "burst", "no_time", "window")) & np.isfinite(stamps)
    if cols.has(steps, "stream") and cols.has(lines, "stream"):
        step_keys, line_keys = cols.text(steps, "stream"), cols.text(lines, "stream")
    else:
        step_keys, line_keys = cols.text(steps, "dp_rank"), cols.text(lines, "dp_rank")
    for key in set(line_keys[np.isfinite(times)]):
        line_rows = np.flatnonzero((line_keys == key) & np.isfinite(times))
        line_rows = line_rows[np.argsort(times[line_rows], kind="stable")]
        rows = np.flatnonzero(wanted & (step_keys == key))
        place = np.searchsorted(times[line_rows], stamps[rows], side="left")
        inside = place < len(line_rows)
        found = values[line_rows[np.minimum(place, len(line_rows) - 1)]]
        use = inside & np.isfinite(found)
        ms[rows[use]] = found[use]
        source[rows[use]] = "throughput"


@takes("steps")
def step_time_bounds(steps: pd.DataFrame, events: pd.DataFrame | None = None, *, prefill: pd.DataFrame | None = None) -> pd.DataFrame:
    """Bound the mean step time of each unbroken stretch, where stamps are too coarse for single steps.

    ``n + 1`` lines between the first and the last stamp of a stretch are ``n`` steps; each end is wrong by less than one step of
    the clock, so their time is known to plus or minus one such step.

    Lines that were written together (block-buffered output: lines of a fine clock less than 0.1 ms apart) say nothing of the steps
    between them, but their flushes do: the lines of a flush were made since the flush before it. So ``n`` lines after the first flush
    are ``n`` steps in the time from the first flush to the last, give or take one, for the line that fills a buffer may be written
    with the next one. A flush whose lines took over ``FLUSH_FACTOR`` times as long as usual ends a stretch: there was idle time.
    One flush alone says nothing.

    Parameters
    ----------
    steps : pandas.DataFrame
        Step lines in the order in which they were logged.
    events, prefill : pandas.DataFrame, optional
        What breaks a stretch.

    Returns
    -------
    pandas.DataFrame
        A row a stretch: ``stream``, ``start``, ``end``, ``steps`` (intervals), ``mean_ms``, ``low_ms``, ``high_ms``,
        ``time_resolution_us`` and ``reason`` (why there is no mean; null where there is one).

    Examples
    --------
    101 lines within 4 s of whole-second stamps: 4 s / 100 = 40 ms, between 30 and 50 ms.
    """
    names = ["stream", "start", "end", "steps", "mean_ms", "low_ms", "high_ms", "time_resolution_us", "reason"]
    frame = Intervals.of(steps)
    stamps, before = frame.stamps, frame.previous_stamps
    kept = np.flatnonzero((cols.text(steps, "step_why") != "duplicate_rank") & np.isfinite(stamps))
    order = kept[np.argsort(frame.streams[kept], kind="stable")]
    with np.errstate(invalid="ignore"):
        elapsed = stamps - before
        together = (elapsed >= 0) & (elapsed < BURST_US) & (frame.resolution_us < COARSE_US)
        starts = (frame.previous < 0) | ~np.isfinite(elapsed) | (elapsed < 0) | frame.clock_set
        starts |= _far(frame, elapsed, together, order)
    for mask in Between(steps, stamps, frame.monotonic, frame.previous).masks(prefill=prefill, events=events).values():
        starts |= mask
    names_of = cols.text(steps, "stream")
    rows: list[dict[str, Any]] = []
    heads = np.union1d(np.flatnonzero(starts[order]), [0]).astype(np.int64)
    for begin, end in zip(heads, np.append(heads[1:], len(order)), strict=True):
        if begin == end:
            continue
        part = order[begin:end]
        first, last = stamps[part[0]], stamps[part[-1]]
        resolution = float(frame.resolution_us[part].max())
        row: dict[str, Any] = {
            "stream": names_of[part[0]],
            "start": pd.Timestamp(int(first), unit="us", tz="UTC"),
            "end": pd.Timestamp(int(last), unit="us", tz="UTC"),
            "time_resolution_us": resolution,
        }
        alone = ~together[part]
        alone[0] = True
        made = _bounds(last - first, len(part) - 1, resolution) if alone.all() else _flush_bounds(last - first, alone)
        rows.append(row | made)
    return pd.DataFrame(rows, columns=names)


def _far(frame: Intervals, elapsed: Floats, together: Bools, order: Ints) -> Bools:
    """Tell which lines are too far from the one before to be of one stretch: a pause, or a flush that took far longer than usual."""
    far = np.asarray(elapsed > np.maximum(STRETCH_US, 5 * frame.resolution_us))
    for stream in np.unique(frame.streams[order]):
        rows = order[frame.streams[order] == stream]
        if together[rows].sum() <= len(rows) / 2:
            continue
        heads = np.flatnonzero(~together[rows])
        each = elapsed[rows[heads]] / np.diff(np.append(heads, len(rows)))
        known = each[np.isfinite(each) & (each > 0)]
        far[rows] = False
        if len(known):
            far[rows[heads]] = each > FLUSH_FACTOR * float(np.median(known))
    return far


def _bounds(span: float, count: int, resolution: float) -> dict[str, Any]:
    """Bound the mean of so many steps between two stamps that are each wrong by less than one step of the clock."""
    if count < 1:
        return {"steps": count, "mean_ms": np.nan, "low_ms": np.nan, "high_ms": np.nan, "reason": "one line, no interval"}
    made = {"steps": count, "low_ms": max(0.0, span - resolution) / count / 1000.0, "high_ms": (span + resolution) / count / 1000.0}
    if span <= 0:
        return made | {"mean_ms": np.nan, "reason": "all lines have one stamp: only the upper bound is known"}
    return made | {"mean_ms": span / count / 1000.0, "reason": None}


def _flush_bounds(span: float, alone: Bools) -> dict[str, Any]:
    """Bound the mean of the steps between the first flush and the last; ``alone`` marks the first line of each."""
    heads = np.flatnonzero(alone)
    count = len(alone) - int(heads[1]) if len(heads) > 1 else 0
    made: dict[str, Any] = {"steps": count, "mean_ms": np.nan, "low_ms": np.nan, "high_ms": np.nan}
    if count < 2:
        return made | {"reason": "lines written together say nothing of single steps, and there is no second flush to count from"}
    return made | {
        "mean_ms": span / count / 1000.0,
        "low_ms": span / (count + 1) / 1000.0,
        "high_ms": span / (count - 1) / 1000.0,
        "reason": None,
    }
