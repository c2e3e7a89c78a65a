"""Throughput over time: tokens and step times put into buckets of time, and events marked above."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

from ddtree_metrics.plots.looks import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    QUIET,
    VERMILLION,
    Floats,
    drawable,
    finish,
    look,
    new_axes,
    nothing,
    shorten,
)
from ddtree_metrics.steps import frames as columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

EVENT_LOOKS: Final = {
    "restart": ("v", BLUE),
    "boot": ("<", BLUE),
    "ready": ("^", GREEN),
    "exit": ("X", QUIET),
    "suppressed": ("s", VERMILLION),
    "retraction": ("D", PURPLE),
    "clock_step": ("P", ORANGE),
    "gap": ("d", QUIET),
    "burst": ("h", QUIET),
    "exception": ("X", VERMILLION),
    "adaptive_tier": ("*", GREEN),
}
WIDTHS_S: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
BUCKETS = 160
MOST_KINDS = 8
"""More kinds of event than that are drawn as one, the rarest ones."""
LAST_US = 7.2e15
"""A time after 2198 is a fault of whoever wrote it."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Throughput in equal steps of time.

    Attributes
    ----------
    at : ndarray of float
        Middles of the buckets, in microseconds since 1970.
    rate : ndarray of float
        Tokens a second in each; NaN where nothing ran, which leaves a hole.
    width_us : int
        How long a bucket is.
    local : bool
        Whether the zone of the times is not known.
    why : str
        Why there is nothing, where there is nothing.
    """

    at: Floats
    rate: Floats
    width_us: int
    local: bool
    why: str


def plot_throughput(
    frame: pd.DataFrame | Buckets,
    ax: Axes | None = None,
    *,
    events: pd.DataFrame | None = None,
    label: str | None = None,
    color: str | None = None,
) -> Axes:
    """Draw tokens per second of all requests over time, while steps ran, with events marked above.

    Parameters
    ----------
    frame : DataFrame or Buckets
        Steps (``time`` or ``time_us``, ``tokens``, and ``step_us`` or ``step_time_ms``) or ``Decode batch`` lines (``time``,
        ``gen_throughput``); or what ``bucket`` made of them. Idle time is no part of it, and a stretch without steps is a hole in
        the line.
    ax : Axes, optional
        Where to draw; a second call on the same one adds a second series.
    events : DataFrame, optional
        ``log.events`` or what ``gaps`` gives: ``kind`` and ``time`` or ``start``.
    label, color : str, optional
        The name and colour of the series.

    Returns
    -------
    Axes
    """
    ax = new_axes(ax, "Throughput while decoding, over time")
    made = frame if isinstance(frame, Buckets) else bucket(frame)
    if not np.isfinite(made.rate).any():
        return nothing(ax, made.why, label)
    color, _ = look(ax, color)
    times = made.at.astype(np.int64).astype("datetime64[us]")
    said = f"{label or 'all requests'}, mean over {_span(made.width_us)}"
    ax.plot(times, made.rate, color=color, lw=1.2, marker=".", ms=4, label=said, gid="series", zorder=3)
    _mark(ax, events)
    locator: Any = AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    ax.set_xlabel("time as logged (zone unknown)" if made.local else "time (UTC)", fontsize=9)
    ax.xaxis.get_offset_text().set_fontsize(8.5)
    finish(ax, "tokens/s", headroom=1.5, below=0.94, ncols=2)
    return ax


def bucket(frame: pd.DataFrame) -> Buckets:
    """Put steps, or ``Decode batch`` lines, into at most ``BUCKETS`` buckets of time."""
    at, rate, width, why = _buckets(frame)
    zones = set(columns.text(frame.drop_duplicates("time_from"), "time_from")) if "time_from" in frame.columns else set()
    return Buckets(at, rate, width, any(isinstance(z, str) and z.endswith("-local") for z in zones), why)


def _buckets(frame: pd.DataFrame) -> tuple[Floats, Floats, int, str]:
    empty = np.zeros(0)
    if not len(frame):
        return empty, empty, 0, "there are no steps"
    at = columns.time_us(frame)
    at = np.where(np.abs(at) < LAST_US, at, np.nan)
    printed = drawable(columns.numeric(frame, "gen_throughput"))
    if np.isfinite(printed).any():
        value, weight = printed, np.ones(len(frame))
        ok = np.isfinite(at) & np.isfinite(value) & (value > 0)
        why = "no line has both a time and a throughput"
    else:
        seconds = step_ms(frame) / 1000 * columns_weight(frame)
        tokens = drawable(columns.numeric(frame, "tokens"))
        ok = np.isfinite(at) & np.isfinite(seconds) & (seconds > 0) & np.isfinite(tokens)
        value, weight = tokens, seconds
        why = "no step has a time, a step time and committed tokens"
    if not ok.any():
        return empty, empty, 0, why
    at, value, weight, stream = at[ok], value[ok], weight[ok], columns.stream_codes(frame)[ok]
    span_s = max(float(np.ptp(at)) / 1e6, 0.1)
    width = int(1e6 * next((w for w in WIDTHS_S if span_s / w <= BUCKETS), span_s / BUCKETS))
    places = (at // width).astype(np.int64)
    keys, inverse = np.unique(np.stack([places, stream]), axis=1, return_inverse=True)
    inverse = np.asarray(inverse).reshape(-1)
    rate = np.bincount(inverse, value) / np.bincount(inverse, weight)
    # several streams (data-parallel ranks) work side by side: their rates add up
    each, place = np.unique(keys[0], return_inverse=True)
    total = np.bincount(place, rate)
    holes = each[:-1][np.diff(each) > 1] + 1
    middles = np.concatenate([each, holes])
    order = np.argsort(middles)
    return (middles[order] + 0.5) * width, np.concatenate([total, np.full(len(holes), np.nan)])[order], width, why


def _mark(ax: Axes, events: pd.DataFrame | None) -> None:
    """Draw a thin line and a marker above for each event, one a hundredth of the width at most, and count them in the legend."""
    if events is None or not len(events):
        return
    kinds, at = columns.text(events, "kind"), columns.time_us(events)
    if "start" in events.columns:
        at = np.where(np.isfinite(at), at, columns.instants(events["start"]))
    at = at[[k is not None for k in kinds]]
    shown = [float(x) for line in ax.lines if line.get_gid() == "series" for x in np.asarray(line.get_xdata(orig=False), dtype=float)]
    left, right = min(shown), max(shown)
    room = 0.02 * (right - left) or 1e-4
    kinds = np.array([str(k) for k in kinds if k is not None], dtype=object)
    names, counts = np.unique(kinds.astype(str), return_counts=True)
    rare = set(names[np.argsort(-counts, kind="stable")][MOST_KINDS:])
    kinds = np.array(["other" if k in rare else k for k in kinds], dtype=object)
    for kind in sorted(set(kinds)):
        days = at[(kinds == kind) & np.isfinite(at)] / 86400e6
        days = days[(days >= left - 5 * room) & (days <= right + 5 * room)]
        if not len(days):
            continue
        marker, color = EVENT_LOOKS.get(kind, ("|", QUIET))
        places = np.unique(np.round(days / (room / 2))) * (room / 2)
        across = ax.get_xaxis_transform()
        ax.vlines(places, 0, 0.965, transform=across, color=color, lw=0.8, alpha=0.45, zorder=1, gid="event")
        name = shorten(kind.replace("_", " "), 24) + (f" ({len(days):,})" if len(days) > 1 else "")
        ax.plot(
            places,
            np.full(len(places), 0.975),
            transform=across,
            ls="none",
            marker=marker,
            ms=5.5,
            color=color,
            label=name,
            gid="event",
            clip_on=False,
        )


def step_ms(frame: pd.DataFrame) -> Floats:
    """Return step times in ms, from ``step_time_ms`` where it is there, else from ``step_us``; NaN where they are not positive."""
    made = columns.numeric(frame, "step_time_ms")
    if "step_time_ms" not in frame.columns:
        made = columns.numeric(frame, "step_us") / 1000
    return np.where((made > 1e-6) & (made < 1e12), made, np.nan)


def columns_weight(frame: pd.DataFrame) -> Floats:
    """Return what share of a step each row stands for: 1, or ``weight`` where a row is a request of a step."""
    if "weight" not in frame.columns:
        return np.ones(len(frame))
    made = columns.numeric(frame, "weight")
    return np.where(np.isfinite(made) & (made > 0), made, 0.0)


def _span(width_us: int) -> str:
    seconds = width_us / 1e6
    for size, word in ((86400, "day"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {word}"
    return f"{seconds:.3g} s"


def quantiles(values: Floats, weights: Floats, shares: tuple[float, ...]) -> list[Any]:
    """Return weighted quantiles: the smallest value at which the running share of the weights reaches each share."""
    order = np.argsort(values)
    running = np.cumsum(weights[order]) / weights.sum()
    return [values[order][min(int(np.searchsorted(running, s)), len(values) - 1)] for s in shares]
