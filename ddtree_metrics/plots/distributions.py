"""How often how many drafts are accepted, and how step times are distributed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

from ddtree_metrics.plots.looks import (
    DASHES,
    DOTS,
    QUIET,
    Floats,
    drawable,
    error_bars,
    field,
    finish,
    has,
    look,
    new_axes,
    nothing,
    number,
    series_of,
    words,
)
from ddtree_metrics.plots.of_log import draws, once_of, survival_of
from ddtree_metrics.plots.start_series import StartLook, parts_of
from ddtree_metrics.plots.timeline import columns_weight, quantiles, step_ms
from ddtree_metrics.plots.titles import several
from ddtree_metrics.steps import frames as columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@draws(survival_of, "acceptance(rows)", "depth", "survival")
def plot_survival(
    acceptance: Any,
    ax: Axes | None = None,
    *,
    starts: Mapping[int, StartLook] | None = None,
    label: str | None = None,
    color: str | None = None,
) -> Axes:
    """Draw how often at least so many drafts were accepted, and the chance of each depth once the one before was reached.

    Parameters
    ----------
    acceptance : Acceptance, DataFrame, or mapping of int to either
        What ``acceptance`` gives, or its ``survival`` frame: ``depth, survival`` and, if there, ``conditional, low, high, rows``. Of a
        mapping by server start each is a series.
    starts : mapping of int to StartLook, optional
        The name and colour of each server start of such a mapping.
    ax, label, color
        As in ``plot_step_time``.
    """
    import pandas as pd

    if isinstance(acceptance, Mapping):
        for run, one in acceptance.items():
            start = (starts or {}).get(run)
            name = None if start is None or len(acceptance) < 2 else start.name if label is None else label
            ax = plot_survival(one, ax, label=name, color=start.color if start else color)
        return ax if ax is not None else plot_survival(None, label=label)
    is_frame = isinstance(acceptance, pd.DataFrame)
    frame = acceptance if is_frame else getattr(acceptance, "survival", None)
    frame = frame if isinstance(frame, pd.DataFrame) else pd.DataFrame()
    depth, survival = (drawable(columns.numeric(frame, name)) for name in ("depth", "survival"))
    ok = np.isfinite(depth) & np.isfinite(survival) & (depth > 0)
    if not ok.any():
        reason = None if is_frame else words(acceptance, "reason")
        why = reason or "no step says how many drafts of each sequence were accepted"
        return nothing(new_axes(ax, "Accepted drafts by depth"), why, label or None)
    before = [float(np.asarray(line.get_ydata())[0]) for line in (series_of(ax) if ax is not None else [])]
    shares = [f"{100 * v:.0f}" for v in (*before, survival[ok][np.argmin(depth[ok])])]
    said = ", then ".join(shares) if len(shares) < 5 else f"{min(shares, key=float)} to {max(shares, key=float)}"
    title = f"The first draft is accepted in {said} % of steps"
    ax = new_axes(ax, title, plainly=title)
    color, marker = look(ax, color)
    rows = drawable(columns.numeric(frame, "rows"))
    n = f"n = {number(float(np.nanmax(rows)), whole=True)} request-steps" if np.isfinite(rows).any() else ""
    low, high = drawable(columns.numeric(frame, "low")), drawable(columns.numeric(frame, "high"))
    error_bars(ax, depth[ok], survival[ok], low[ok], high[ok], color)
    ax.plot(
        depth[ok],
        survival[ok],
        color=color,
        marker=marker,
        ms=4.5,
        lw=1.6,
        label=", ".join(filter(None, [label, n or "at least this deep"])),
        gid="series",
        zorder=3,
    )
    conditional = drawable(columns.numeric(frame, "conditional"))
    there = ok & np.isfinite(conditional)
    if there.any():
        named = None if has(ax, "conditional") else "dotted: given that the depth before was reached"
        style: dict[str, Any] = {"marker": marker, "ms": 4, "mfc": "none", "lw": 1.0, "ls": DOTS, "zorder": 2}
        ax.plot(depth[there], conditional[there], color=color, label=named, gid="conditional", **style)
    cap = float("nan") if is_frame else field(acceptance, "depth_cap")
    if np.isfinite(cap) and not has(ax, "reference"):
        ax.axvline(cap, color=QUIET, lw=0.9, ls=DASHES, zorder=1, gid="reference", label=f"depth cap ({int(cap)})")
    ax.set_xlabel("depth (accepted drafts)", fontsize=9)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25", "50", "75", "100"])
    return finish(ax, "share of request-steps (%)", top=1.05)


@draws(once_of, "step_times(steps)", "step_time_ms", "step_us")
def plot_step_time_distribution(steps: pd.DataFrame, ax: Axes | None = None, *, label: str | None = None, color: str | None = None) -> Axes:
    """Draw how step times are distributed, on a log scale, with the median and the 95th percentile marked.

    Parameters
    ----------
    steps : DataFrame
        ``step_time_ms`` or ``step_us``; with a ``weight`` column (a row a request a step) a step counts once.
    ax, label, color
        As in ``plot_step_time``.
    """
    ms, weight = step_ms(steps), columns_weight(steps)
    ok = np.isfinite(ms) & (weight > 0)
    if not ok.any():
        ax = new_axes(ax, "Distribution of step times")
        return nothing(ax, "no step has a step time" if len(ms) else "there are no steps", label or None)
    parts = [part for part in parts_of(steps[ok], label, color) if len(part[0])]
    each = [quantiles(step_ms(part), columns_weight(part), (0.5, 0.95)) for part, *_ in parts]
    if len(parts) == 1:
        title = f"Half of the steps take up to {number(each[0][0])} ms, one in 20 over {number(each[0][1])}"
    else:
        title = f"Median step: {several([float(q[0]) for q in each], 'ms')}"
    ax = new_axes(ax, title, plainly="Distribution of step times")
    whole = ms[ok]
    low, high = np.log10(whole.min()), np.log10(whole.max())
    if high - low < 0.05:
        low, high = low - 0.05, high + 0.05
    edges = np.logspace(low, high, int(np.clip(2 * np.cbrt(len(whole)), 8, 60)) + 1)
    edges[0], edges[-1] = min(edges[0], whole.min()), max(edges[-1], whole.max())
    for (part, name, tint), marks in zip(parts, each, strict=True):
        _histogram(ax, step_ms(part), columns_weight(part), edges, marks, name, tint)
    ax.set_xscale("log")
    ax.set_xlabel("step time (ms, log scale)", fontsize=9)
    ratio = float(np.divide(*ax.get_xlim()[::-1]))
    if ratio > 4:
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if ratio < 300 else (1.0,)))
    else:
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.6g}") if ratio > 4 else ScalarFormatter(useOffset=False))
    ax.xaxis.set_minor_formatter(NullFormatter())
    return finish(ax, "share of steps (%)")


def _histogram(ax: Axes, ms: Floats, weight: Floats, edges: Floats, marks: list[Any], label: str | None, color: str | None) -> None:
    """Draw one histogram, with its median and 95th percentile."""
    color, _ = look(ax, color)
    heights, _ = np.histogram(ms, edges, weights=100 * weight / weight.sum())
    ax.stairs(heights, edges, fill=True, color=color, alpha=0.25, zorder=2)
    said = f"n = {number(float(weight.sum()), whole=True)} steps, median {number(marks[0])} ms, 95th percentile {number(marks[1])} ms"
    ax.stairs(heights, edges, color=color, lw=1.3, label=", ".join(filter(None, [label, said])), gid="series", zorder=3)
    for value, dashes in zip(marks, ("-", DASHES), strict=True):
        ax.axvline(value, color=color, lw=1.3, ls=dashes, gid="reference", zorder=4)
