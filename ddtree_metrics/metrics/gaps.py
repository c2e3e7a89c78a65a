"""Holes, clock steps and bursts: what must not be averaged over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.given import takes
from ddtree_metrics.steps.line_intervals import Intervals
from ddtree_metrics.steps.step_time import step_times

GAP_COLUMNS = ("kind", "start", "end", "duration_ms", "count", "unit", "stream", "detail")

_HOLES = ("suppressed", "gap", "boot", "restart", "retraction")


@takes("lines")
def gaps(steps: pd.DataFrame, events: pd.DataFrame | None = None, *, prefill: pd.DataFrame | None = None) -> pd.DataFrame:
    """List the intervals that are no steps, and the events that broke a run of them.

    Parameters
    ----------
    steps : pandas.DataFrame
        Step lines in the order in which they were logged.
    events : pandas.DataFrame, optional
        Events of the same log; suppression notices bring the number of lost lines.
    prefill : pandas.DataFrame, optional
        ``Prefill batch`` lines; an interval with a prefill in it is not listed, for it is no hole.

    Returns
    -------
    pandas.DataFrame
        A row a hole, in the order of the log: ``kind`` (suppressed, gap, clock_step, burst, coarse_clock, boot, restart, retraction),
        ``start``, ``end``, ``duration_ms`` (by the boot clock where it is known), ``count`` (lines lost, lines of a burst,
        microseconds the wall clock was moved), ``unit``, ``stream``, ``detail``. ``attrs["missing_lines"]`` is the sum of lines
        known to be lost, ``attrs["sentence"]`` says what follows from it.
    """
    rows: list[dict[str, Any]] = []
    timed = step_times(steps, events=events, prefill=prefill)
    why = cols.text(timed, "step_why")
    frame = Intervals.of(steps)
    units, streams = cols.text(steps, "unit"), cols.text(steps, "stream")
    notices = _Notices(events)
    for row in np.flatnonzero(pd.Series(why, dtype=object).isin(_HOLES)):
        found = notices.take(why[row], frame.previous_stamps[row], frame.stamps[row])
        count, unit, detail = found if found else (None, None, None)
        rows.append(
            {
                "_at": float(row),
                "kind": why[row],
                "start": _stamp(frame.stamps[row - 1] if frame.previous[row] < 0 and row else frame.previous_stamps[row]),
                "end": _stamp(frame.stamps[row]),
                "duration_ms": frame.elapsed_us[row] / 1000.0,
                "count": count,
                "unit": unit or units[row],
                "stream": streams[row],
                "detail": detail or _detail(why[row], count),
            }
        )
    own_clocks = frame.clock_set
    for row in np.flatnonzero(own_clocks | ((why == "clock_step") & ~own_clocks)):
        jump = frame.jump_us[row] if own_clocks[row] else frame.elapsed_us[row]
        known = own_clocks[row]
        rows.append(
            {
                "_at": float(row),
                "kind": "clock_step",
                "start": _stamp(frame.previous_stamps[row]),
                "end": _stamp(frame.stamps[row]),
                "duration_ms": frame.elapsed_us[row] / 1000.0 if known else np.nan,
                "count": round(float(jump)) if np.isfinite(jump) and known else None,
                "unit": units[row],
                "stream": streams[row],
                "detail": f"the wall clock was moved by {jump / 1e6:+.1f} s"
                if known
                else "the wall clock went backwards; no boot clock tells by how much",
            }
        )
    rows += _runs("burst", why, frame, units, streams)
    rows += _runs("coarse_clock", why, frame, units, streams)
    latest = np.maximum.accumulate(np.where(np.isfinite(frame.stamps), frame.stamps, -np.inf))
    for at, notice in notices.rest({"suppressed", "retraction"} | (set() if own_clocks.any() else {"clock_step"})):
        # the first row that was logged later
        later = int(np.searchsorted(latest, at if np.isfinite(at) else np.inf, side="right"))
        rows.append({"_at": later - 0.5 if later < len(steps) else float(len(steps)), **notice})
    rows.sort(key=lambda r: r["_at"])
    made = pd.DataFrame(rows, columns=list(GAP_COLUMNS))
    made["count"] = made["count"].astype("Int64")
    lost = made.loc[made["kind"] == "suppressed", "count"].dropna()
    missing = int(lost.sum()) if len(lost) else 0
    made.attrs["missing_lines"] = missing
    made.attrs["sentence"] = (
        f"At least {missing:,} lines are missing: counts are lower bounds. To keep them, raise LogRateLimitIntervalSec= and "
        "LogRateLimitBurst= of the unit (or RateLimitIntervalSec= and RateLimitBurst= in journald.conf)."
        if missing
        else ("Lines are missing, nobody knows how many: counts are lower bounds." if (made["kind"] == "suppressed").any() else None)
    )
    return made


class _Notices:
    """Events by kind, each to be used for one hole or listed on its own."""

    def __init__(self, events: pd.DataFrame | None) -> None:
        self.kinds: NDArray[Any] = np.empty(0, dtype=object)
        if events is None or not len(events) or "kind" not in events.columns:
            return
        self.kinds = cols.text(events, "kind")
        self.times = cols.time_us(events)
        self.counts = cols.numeric(events, "count")
        self.units, self.streams = cols.text(events, "unit"), cols.text(events, "stream")
        self.details = cols.text(events, "detail")
        self.used = np.zeros(len(events), dtype=bool)
        # rows of each kind by time, and these times
        self.sorted: dict[Any, tuple[NDArray[np.intp], NDArray[np.float64]]] = {}
        known = np.isfinite(self.times)
        for kind in pd.unique(self.kinds[known]):
            mine = np.flatnonzero(known & (self.kinds == kind))
            mine = mine[np.argsort(self.times[mine], kind="stable")]
            self.sorted[kind] = mine, self.times[mine]

    def take(self, kind: Any, start: float, end: float) -> tuple[int | None, Any, Any] | None:
        """Take the notices of a kind within an interval: their summed count, unit and words."""
        if not len(self.kinds) or kind not in self.sorted or not (np.isfinite(start) and np.isfinite(end)):
            return None
        rows, times = self.sorted[kind]
        hit = rows[np.searchsorted(times, start, side="right") : np.searchsorted(times, end, side="right")]
        if not len(hit):
            return None
        self.used[hit] = True
        counts = self.counts[hit]
        first = int(hit.min())
        total = int(np.nansum(counts)) if np.isfinite(counts).any() else None
        return total, self.units[first], self.details[first]

    def rest(self, kinds: set[str]) -> list[tuple[float, dict[str, Any]]]:
        """List the events of these kinds that no hole used, each with its time in us."""
        made = []
        for row in range(len(self.kinds)):
            if self.kinds[row] in kinds and not self.used[row]:
                notice = {
                    "kind": self.kinds[row],
                    "start": _stamp(self.times[row]),
                    "end": _stamp(self.times[row]),
                    "duration_ms": np.nan,
                    "count": int(self.counts[row]) if np.isfinite(self.counts[row]) else None,
                    "unit": self.units[row],
                    "stream": self.streams[row],
                    "detail": self.details[row],
                }
                made.append((float(self.times[row]), notice))
        return made


def _runs(kind: str, why: NDArray[Any], frame: Intervals, units: NDArray[Any], streams: NDArray[Any]) -> list[dict[str, Any]]:
    """Make one row of each run of rows that a kind spoiled."""
    made = []
    hit = why == kind
    for stream in np.unique(frame.streams[hit]):
        rows = np.flatnonzero(frame.streams == stream)
        inside = hit[rows]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(int)))
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            part = rows[begin:end]
            start, stop = frame.stamps[part[0]], frame.stamps[part[-1]]
            lines = len(part)
            made.append(
                {
                    "_at": float(part[0]),
                    "kind": kind,
                    "start": _stamp(start),
                    "end": _stamp(stop),
                    "duration_ms": (stop - start) / 1000.0,
                    "count": lines,
                    "unit": units[part[0]],
                    "stream": streams[part[0]],
                    "detail": "lines written in one go: the output is block-buffered; set PYTHONUNBUFFERED=1, or log to stderr"
                    if kind == "burst"
                    else "the clock is too coarse for single steps; step_time_bounds() bounds their mean",
                }
            )
    return made


def _detail(kind: Any, count: int | None) -> str:
    """Say in words what a hole is."""
    words = {
        "suppressed": "lines were dropped by journald's rate limit" if count is None else f"journald dropped {count:,} lines",
        "gap": "no step for much longer than a step takes: idle, or lines are missing",
        "boot": "the machine was booted",
        "restart": "the server was restarted",
        "retraction": "requests were retracted: the KV pool was full",
    }
    return words.get(str(kind), str(kind))


def _stamp(us: float) -> Any:
    """Turn microseconds into an instant, NaT where not known."""
    return pd.Timestamp(int(us), unit="us", tz="UTC") if np.isfinite(us) else pd.NaT
