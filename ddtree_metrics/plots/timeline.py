"""Throughput over time: tokens and step times put into buckets of time, and events marked above."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

from ddtree_metrics.plots.looks import (
    DASHES,
    GREEN,
    INK,
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
from ddtree_metrics.plots.of_log import draws, over_time_of
from ddtree_metrics.plots.start_series import StartLook, parts_of
from ddtree_metrics.plots.titles import several
from ddtree_metrics.steps import frames as columns
from ddtree_metrics.times import format_us

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

EVENT_LOOKS: Final = {
    "restart": ("v", INK, "server start"),
    "boot": ("<", INK, "boot"),
    "suppressed": ("s", VERMILLION, "lines lost"),
    "retraction": ("D", PURPLE, "retraction"),
    "clock_step": ("P", ORANGE, "clock set"),
    "gap": ("d", QUIET, "hole without a reason"),
    "burst": ("h", QUIET, "lines written together"),
    "exception": ("X", VERMILLION, "exception"),
    "adaptive_tier": ("*", GREEN, "adaptive tier"),
    "prefill": ("|", QUIET, "prefill that others waited for"),
    "break": ("v", VERMILLION, "sudden change"),
    "beside": ("1", INK, "line of another program"),
}
"""Marker, colour and name of each kind of event."""
UNMARKED: Final = ("ready", "exit")
"""A server says when it is ready and when it ends; the hole between shows both."""
BEGINS_AT_ITS_END: Final = ("restart", "boot")
"""What lies between the last step of one server and the first of the next belongs to the next."""
WIDTHS_S: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
BUCKETS = 160
MOST_KINDS = 8
"""More kinds of event than that are drawn as one, the rarest ones."""
DAY_US: Final = 86_400e6
LAST_US = 7.2e15
"""A time after 2198 is a fault of whoever wrote it."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Throughput of one server start in equal steps of time.

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
    name, color : str or None
        What the server start is called, and its colour.
    ends : (float, float)
        Times of the first and the last step.
    """

    at: Floats
    rate: Floats
    width_us: int
    local: bool
    why: str
    name: str | None = None
    color: str | None = None
    ends: tuple[float, float] = (float("nan"), float("nan"))


@draws(over_time_of, "step_times(steps)", "time_us", "time", "gen_throughput")
def plot_throughput(
    frame: pd.DataFrame | Sequence[Buckets],
    ax: Axes | None = None,
    *,
    events: pd.DataFrame | None = None,
    starts: Mapping[int, StartLook] | None = None,
    label: str | None = None,
    color: str | None = None,
) -> Axes:
    """Draw tokens per second of all requests over time, while steps ran, with events marked above.

    Parameters
    ----------
    frame : DataFrame or sequence of Buckets
        Steps (``time`` or ``time_us``, ``tokens``, and ``step_us`` or ``step_time_ms``) or ``Decode batch`` lines (``time``,
        ``gen_throughput``); or what ``bucket`` made of them. With a column ``run`` each server start is a series. Idle time is no part of
        it, and a stretch without steps is a hole in the line.
    ax : Axes, optional
        Where to draw; a second call on the same one adds a second series.
    events : DataFrame, optional
        ``log.events`` or what ``gaps`` gives: ``kind`` and ``time`` or ``start`` and ``end``.
    starts : mapping of int to StartLook, optional
        Server starts, which are marked where they were, the hole before them shaded; instead of those among the events.
    label, color : str, optional
        The name and colour of the series; with a label of ``""`` it is in no legend.

    Returns
    -------
    Axes
    """
    made = list(frame) if isinstance(frame, Sequence) else bucket(frame, label, color)
    shown = [part for part in made if np.isfinite(part.rate).any()]
    if not shown:
        ax = new_axes(ax, "Throughput while decoding, over time")
        return nothing(ax, made[0].why if made else "there are no steps", label or None)
    ax = new_axes(
        ax,
        f"All requests together: {several([float(np.nanmean(part.rate)) for part in shown], 'tok/s')}",
        plainly="Throughput while decoding, over time",
    )
    for part in shown:
        tint, marker = look(ax, part.color)
        times = part.at.astype(np.int64).astype("datetime64[us]")
        name = part.name or None if part.name is not None else "all requests"
        ax.plot(times, part.rate, color=tint, lw=1.2, marker=marker, ms=3, label=name, gid="series", zorder=3)
    _holes(ax, shown)
    marked = dict(starts or {})
    _mark(ax, events, told=BEGINS_AT_ITS_END if marked else ())
    _mark_starts(ax, marked)
    locator: Any = AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))  # type: ignore[no-untyped-call]
    day = np.datetime64(int(shown[0].ends[0]), "us").astype("datetime64[D]") if np.isfinite(shown[0].ends[0]) else ""
    zone = "as logged, zone unknown" if any(part.local for part in shown) else "UTC"
    ax.set_xlabel(f"time ({zone}), {day}; mean over {_span(shown[0].width_us)}", fontsize=9)
    return finish(ax, "tokens/s", ncols=2)


def bucket(frame: pd.DataFrame, label: str | None = None, color: str | None = None) -> list[Buckets]:
    """Put steps, or ``Decode batch`` lines, into at most ``BUCKETS`` buckets of time, each server start by itself."""
    zones = set(columns.text(frame.drop_duplicates("time_from"), "time_from")) if "time_from" in frame.columns else set()
    local = any(isinstance(z, str) and z.endswith("-local") for z in zones)
    span = _usable(columns.time_us(frame))
    span_us = float(np.ptp(span[np.isfinite(span)])) if np.isfinite(span).any() else 0.0
    made = []
    for part, name, tint in parts_of(frame, label, color):
        at, rate, width, why = _buckets(part, span_us)
        own = _usable(columns.time_us(part))
        ends = (float(np.nanmin(own)), float(np.nanmax(own))) if np.isfinite(own).any() else (float("nan"), float("nan"))
        made.append(Buckets(at, rate, width, local, why, name, tint, ends))
    return made


def _usable(at: Floats) -> Floats:
    return np.where(np.abs(at) < LAST_US, at, np.nan)


def _buckets(frame: pd.DataFrame, span_us: float) -> tuple[Floats, Floats, int, str]:
    empty = np.zeros(0)
    if not len(frame):
        return empty, empty, 0, "there are no steps"
    at = _usable(columns.time_us(frame))
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
    span_s = max(span_us / 1e6, 0.1)
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


def _holes(ax: Axes, shown: list[Buckets]) -> None:
    """Shade what lies between the last step of a server and the first of the next."""
    ordered = sorted((part for part in shown if np.isfinite(part.ends[0])), key=lambda part: part.ends)
    for one, other in itertools.pairwise(ordered):
        if other.ends[0] > one.ends[1]:
            ax.axvspan(one.ends[1] / DAY_US, other.ends[0] / DAY_US, color=QUIET, alpha=0.13, lw=0, zorder=0, gid="hole")


def _mark_starts(ax: Axes, starts: Mapping[int, StartLook]) -> None:
    """Draw a line where each server was started, but for the first, and write when it was."""
    told = sorted((look.time_us, look) for look in starts.values() if look.time_us is not None)
    left, right = _extent(ax)
    across = ax.get_xaxis_transform()
    written = -np.inf
    for at, _ in told[1:] if len(told) > 1 else []:
        day = at / DAY_US
        if not left <= day <= right:
            continue
        marker, color, _ = EVENT_LOOKS["restart"]
        ax.vlines([day], 0, 1, transform=across, color=color, lw=1.1, linestyles=DASHES, zorder=2, gid="event")
        ax.plot([day], [1.0], transform=across, ls="none", marker=marker, ms=6, color=color, gid="event", clip_on=False, zorder=4)
        if day - written > 0.2 * (right - left):
            late = day > left + 0.75 * (right - left)
            ax.annotate(
                f"restart {format_us(at)[11:19]}", (day, 1.0), (-5 if late else 5, -3), xycoords=across, textcoords="offset points",
                ha="right" if late else "left", va="top", fontsize=8, gid="start",
            )  # fmt: skip
            written = day


def _extent(ax: Axes) -> tuple[float, float]:
    shown = [float(x) for line in ax.lines if line.get_gid() == "series" for x in np.asarray(line.get_xdata(orig=False), dtype=float)]
    return min(shown), max(shown)


def _mark(ax: Axes, events: pd.DataFrame | None, told: Sequence[str] = ()) -> None:
    """Draw a thin line and a marker above for each event, one a hundredth of the width at most, and count them in the legend."""
    if events is None or not len(events):
        return
    kinds, at = columns.text(events, "kind"), columns.time_us(events)
    if "start" in events.columns:
        at = np.where(np.isfinite(at), at, columns.instants(events["start"]))
    if "end" in events.columns:
        at = np.where(np.isin(kinds.astype(str), BEGINS_AT_ITS_END), columns.instants(events["end"]), at)
    kept = np.array([k is not None and k not in UNMARKED and k not in told for k in kinds], dtype=bool)
    kinds, at = kinds[kept].astype(str), at[kept]
    left, right = _extent(ax)
    room = 0.02 * (right - left) or 1e-4
    names, counts = np.unique(kinds, return_counts=True)
    rare = set(names[np.argsort(-counts, kind="stable")][MOST_KINDS:])
    kinds = np.array(["other" if k in rare else k for k in kinds], dtype=object)
    for kind in sorted(set(kinds)):
        days = at[(kinds == kind) & np.isfinite(at)] / DAY_US
        days = days[(days >= left - 5 * room) & (days <= right + 5 * room)]
        if not len(days):
            continue
        marker, color, said = EVENT_LOOKS.get(kind, ("|", QUIET, shorten(str(kind).replace("_", " "), 24)))
        places = np.unique(np.round(days / (room / 2))) * (room / 2)
        across = ax.get_xaxis_transform()
        if kind != "prefill":
            ax.vlines(places, 0, 1, transform=across, color=color, lw=0.8, alpha=0.45, zorder=1, gid="event")
        ax.plot(
            places,
            np.full(len(places), 0.015 if kind == "prefill" else 1.0),
            transform=across,
            ls="none",
            marker=marker,
            ms=5.5,
            color=color,
            label=said + (f" ({len(days):,})" if len(days) > 1 else ""),
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
