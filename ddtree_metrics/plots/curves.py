"""Step time, tokens per step and speed against context, or against whatever ``by_context`` binned by."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ddtree_metrics.plots import titles
from ddtree_metrics.plots.looks import (
    DASHES,
    DOTS,
    GREEN,
    QUIET,
    STYLE,
    Floats,
    drawable,
    entitle,
    error_bars,
    field,
    finish,
    fitting,
    has,
    look,
    new_axes,
    nothing,
    number,
    plain,
    series_of,
    sizes,
    words,
)
from ddtree_metrics.plots.of_log import curve_and_slope_of, curve_of, draws
from ddtree_metrics.plots.slopes import Slope, slope_of
from ddtree_metrics.plots.start_series import parts_of
from ddtree_metrics.steps import frames as columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

AXIS_WORDS: Final = {
    "context_len": "context length when the step begins (tokens)",
    "prompt_len": "prompt length (tokens)",
    "generated_len": "generated length (tokens)",
    "batch_size": "batch size (sequences)",
    "batch_context": "context of the whole batch (tokens)",
    "uptime_s": "time since the server started (s)",
    "budget": "budget (draft nodes)",
}
SWEEP_NAMES: Final = {
    "step_time_mean_ms": ("step_time_ms", "step_ms"),
    "tokens_per_step_pooled": ("tokens_per_step",),
    "tok_per_s": ("decode_tok_s",),
}
TWO_DECADES: Final = 100.0


@draws(curve_and_slope_of, "by_context(rows)", "x_mean", "low")
def plot_step_time(
    curve: pd.DataFrame, ax: Axes | None = None, *, fit: Any = None, sweep: Any = None, label: str | None = None, color: str | None = None
) -> Axes:
    """Draw mean step time against context (or against whatever ``by_context`` binned by), with intervals.

    Parameters
    ----------
    curve : Log or DataFrame
        Of a log each server start is a series, and the slope is that of its diagnosis. Else what ``by_context`` gives: ``x_mean`` and
        ``step_time_mean_ms`` are needed, ``_low``, ``_high`` and ``timed_steps`` are drawn if there; with a column ``run``
        (``by_context(rows, each="run")``) each server start is a series.
    ax : Axes, optional
        Where to draw; a second call on the same one adds a second series.
    fit : StepTimeFit or Diagnosis, optional
        What ``fit_step_time`` or ``diagnose`` gives: its slope is drawn through the points, at the batch of each bin, and is the title.
    sweep : DataFrame, optional
        A measured sweep, drawn as squares: ``x_mean`` or ``prompt_tokens``, and ``step_time_mean_ms``.
    label, color : str, optional
        The name and colour of the series; with a label of ``""`` it is in no legend.

    Returns
    -------
    Axes
    """
    slope = slope_of(fit) if curve.attrs.get("by", "context_len") == "context_len" else None
    ax = new_axes(ax, titles.step_time(curve, fit, slope), plainly=titles.plainly("Step time", curve))
    drawn = _series(ax, curve, "step_time_mean_ms", "timed_steps", label, color, "no bin has a step time")
    if drawn and slope is not None:
        _slope(ax, slope, drawn)
    elif drawn and (hasattr(fit, "predict") or words(fit, "reason")):
        _fit(ax, fit, curve, drawn[0][1] if len(drawn) == 1 else QUIET, alone=len(drawn) == 1)
    _measured(ax, sweep, "step_time_mean_ms")
    return finish(ax, "step time (ms)")


@draws(curve_of, "by_context(rows)", "x_mean", "low")
def plot_tokens_per_step(
    curve: pd.DataFrame, ax: Axes | None = None, *, sweep: Any = None, label: str | None = None, color: str | None = None
) -> Axes:
    """Draw tokens per step (pooled, bonus included) against context; parameters as in ``plot_step_time``.

    The dashed line at one token a step is what plain decoding gives.
    """
    ax = new_axes(ax, titles.tokens_per_step(curve), plainly=titles.plainly("Tokens per step", curve))
    _series(ax, curve, "tokens_per_step_pooled", "rows", label, color, "no bin has committed tokens")
    _measured(ax, sweep, "tokens_per_step_pooled")
    if series_of(ax) and not has(ax, "reference"):
        ax.axhline(1.0, color=QUIET, lw=0.9, ls=DASHES, zorder=1, gid="reference", label="plain decoding: one token a step")
    return finish(ax, "tokens per step")


@draws(curve_of, "by_context(rows)", "x_mean", "low")
def plot_speed(
    curve: pd.DataFrame, ax: Axes | None = None, *, sweep: Any = None, label: str | None = None, color: str | None = None
) -> Axes:
    """Draw the speed of one request against context, and a measured sweep over it; parameters as in ``plot_step_time``.

    The sweep needs ``x_mean`` or ``prompt_tokens``, and ``tok_per_s``; ``tok_per_s_low`` and ``_high`` are drawn if there.
    """
    ax = new_axes(ax, titles.speed(curve), plainly=titles.plainly("Speed of one request", curve))
    _series(ax, curve, "tok_per_s", "timed_steps", label, color, "no bin has both a step time and tokens")
    _measured(ax, sweep, "tok_per_s")
    return finish(ax, "tokens/s of one request")


@draws(curve_and_slope_of, "by_context(rows)", "x_mean", "low")
def plot_overview(curve: pd.DataFrame, *, fit: Any = None, sweep: Any = None, title: str | None = None) -> Figure:
    """Draw step time, tokens per step and speed against context, one above the other, as one figure.

    Parameters
    ----------
    curve, fit, sweep
        As in ``plot_step_time`` and ``plot_speed``.
    title : str, optional
        Written above.

    Returns
    -------
    Figure
        For ``save_figure``.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 9.6), layout="constrained")
        FigureCanvasAgg(figure)
        upper, middle, lower = figure.subplots(3, 1)
        plot_step_time(curve, upper, fit=fit, sweep=sweep)
        plot_tokens_per_step(curve, middle, sweep=sweep)
        plot_speed(curve, lower, sweep=sweep)
        if title:
            figure.suptitle(plain(title), fontsize=11, x=0.01, ha="left")
    return figure


def _series(
    ax: Axes, curve: pd.DataFrame, value: str, counts: str, label: str | None, color: str | None, empty: str
) -> list[tuple[pd.DataFrame, str]]:
    """Draw one series a server start, of one point a bin; returns what was drawn, each with its colour."""
    parts = [part for part in parts_of(curve, label, color) if _points(part[0], value)[2].any()]
    if not parts:
        why = curve.attrs.get("reason") or _first_reason(curve) or empty
        nothing(ax, str(why) if len(curve) else f"the table is empty: {why}" if why is empty else str(why), label or None)
        return []
    drawn = [(part, _bins(ax, part, value, counts, name, tint)) for part, name, tint in parts]
    by = str(curve.attrs.get("by", "context_len"))
    level = f"{100 * float(curve.attrs.get('level', 0.9)):g} % intervals"
    unit = "request-steps" if counts == "rows" else "timed steps"
    sized = any(np.isfinite(columns.numeric(part, counts)).any() for part, *_ in parts)
    under = ([f"n: {unit} in a bin"] if sized else []) + ([f"bars: {level}"] if has(ax, "interval") else [])
    under += ["hollow: no interval"] if has(ax, "hollow") else []
    _axis(ax, by, "; ".join(under))
    return drawn


def _points(curve: pd.DataFrame, value: str) -> tuple[Floats, Floats, Any]:
    x, y = _middles(curve), drawable(columns.numeric(curve, value))
    return x, y, np.isfinite(x) & np.isfinite(y)


def _bins(ax: Axes, curve: pd.DataFrame, value: str, counts: str, label: str | None, color: str | None) -> str:
    """Draw one point a bin; returns their colour."""
    x, y, ok = _points(curve, value)
    order = np.argsort(x[ok], kind="stable")
    x, y = x[ok][order], y[ok][order]
    low = drawable(columns.numeric(curve, f"{value}_low"))[ok][order]
    high = drawable(columns.numeric(curve, f"{value}_high"))[ok][order]
    n = columns.numeric(curve, counts if counts in curve.columns else "steps")[ok][order]
    color, marker = look(ax, color)
    sure = np.isfinite(low) & np.isfinite(high)
    error_bars(ax, x, y, low, high, color)
    # one line of the legend, with its marker, also where every point is hollow
    ax.plot(x, y, color=color, lw=1.4, alpha=0.55, gid="series", zorder=3)
    style: dict[str, Any] = {"ls": "none", "marker": marker, "ms": 5, "zorder": 4}
    ax.plot(x[sure], y[sure], **style, color=color, label=(label or None) if sure.any() else None)
    if (~sure).any():
        named = None if sure.any() else label or None
        ax.plot(x[~sure], y[~sure], **style, mfc="none", mec=color, mew=1.2, label=named, gid="hollow")
    sizes(ax, x, n, color)
    return color


def _axis(ax: Axes, by: str, under: str) -> None:
    """Name the x axis, and make it logarithmic where it spans more than two decades."""
    said = AXIS_WORDS.get(by, by.replace("_", " "))
    old = ax.get_xlabel().partition("\n")[2].replace("\n", " ")
    parts = dict.fromkeys(part for part in (*old.split("; "), *under.split("; ")) if part)
    ax.set_xlabel("\n".join([said, *textwrap.wrap("; ".join(parts), fitting(ax, 5.8))]), fontsize=9)
    shown = np.concatenate([np.asarray(line.get_xdata(), dtype=float) for line in ax.lines if line.get_gid() in ("series", "hollow")])
    shown = shown[np.isfinite(shown)]
    if by.endswith(("context", "_len")) and len(shown) and shown.min() > 0 and shown.max() / shown.min() > TWO_DECADES:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if shown.max() / shown.min() < 5e3 else (1.0,)))
        ax.xaxis.set_minor_locator(NullLocator())
    else:
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))


def _middles(curve: pd.DataFrame) -> Floats:
    """Return where each bin stands: the mean of what is in it, or else its middle."""
    mean = drawable(columns.numeric(curve, "x_mean"))
    middle = (drawable(columns.numeric(curve, "low")) + drawable(columns.numeric(curve, "high"))) / 2
    return np.where(np.isfinite(mean), mean, middle)


def _first_reason(curve: pd.DataFrame) -> str | None:
    said = [r for r in columns.text(curve, "reason") if isinstance(r, str) and r]
    return said[0] if said else None


def _slope(ax: Axes, slope: Slope, drawn: list[tuple[pd.DataFrame, str]]) -> None:
    """Draw the line of a slope through the points of each series, at the batch of each bin."""
    several = False
    for curve, color in drawn:
        x, y, ok = _points(curve, "step_time_mean_ms")
        order = np.flatnonzero(ok)[np.argsort(x[ok], kind="stable")]
        weight = np.maximum(np.nan_to_num(drawable(columns.numeric(curve, "timed_steps")), nan=1.0), 1.0)
        batch, total = (drawable(columns.numeric(curve, name))[order] for name in ("batch_size_mean", "batch_context_mean"))
        at, line, mixed = slope.through(x[order], y[order], weight[order], batch, total)
        several |= mixed
        if len(at) > 1:
            ax.plot(at, line, color=color, lw=1.4, ls=DASHES, zorder=2, gid="fit")
    said = f"{number(slope.value, signed=True)} ms per 1,000 tokens"
    if np.isfinite(slope.low) and np.isfinite(slope.high):
        said += f" ({number(slope.low)} to {number(slope.high)})"
    ax.plot([], [], color=QUIET, lw=1.4, ls=DASHES, label=said + (", at each bin's batch" if several else ""))


def _batches(fit: Any, curve: pd.DataFrame) -> list[dict[str, float]] | None:
    """Return context and batch of each bin, where the batches differ; None where the fit has one batch size for all."""
    made = {
        "context": _middles(curve),
        "batch": drawable(columns.numeric(curve, "batch_size_mean")),
        "batch_context": drawable(columns.numeric(curve, "batch_context_mean")),
    }
    ok = np.isfinite(made["context"]) & np.isfinite(made["batch"]) & np.isfinite(drawable(columns.numeric(curve, "step_time_mean_ms")))
    typical = field(fit, "batch_typical")
    if not ok.any() or not np.isfinite(typical) or curve.attrs.get("by", "context_len") != "context_len":
        return None
    if not (np.abs(made["batch"][ok] - typical) > 0.02 * typical).any():
        return None
    order = np.flatnonzero(ok)[np.argsort(made["context"][ok], kind="stable")]
    return [{name: float(values[i]) for name, values in made.items()} for i in order]


def _fit(ax: Axes, fit: Any, curve: pd.DataFrame, color: str, *, alone: bool) -> None:
    """Lay a fitted curve with its interval behind the points, and mark its knee."""
    model = words(fit, "model")
    if model is None:
        ax.plot([], [], ls="none", label=f"no fit: {plain(words(fit, 'reason') or 'too little data')}")
        return
    left, right = field(fit, "context_min"), field(fit, "context_max")
    if not np.isfinite(left) or not np.isfinite(right) or left >= right:
        x = _points(curve, "step_time_mean_ms")[0]
        left, right = float(np.nanmin(x)), float(np.nanmax(x))
    each = _batches(fit, curve) if alone else None
    if each is None:
        made = fit.predict(np.linspace(left, right, 80))
    else:
        import pandas as pd

        made = pd.concat([fit.predict([b.pop("context")], **b) for b in each], ignore_index=True)
    at, y = columns.numeric(made, "context"), drawable(columns.numeric(made, "step_time_ms"))
    low, high = drawable(columns.numeric(made, "low")), drawable(columns.numeric(made, "high"))
    slope = field(fit, "slope_ms_per_1000")
    said = f"{model} fit"
    if model == "line" and np.isfinite(slope):
        a, b = field(fit, "slope_low"), field(fit, "slope_high")
        between = f" ({number(a)} to {number(b)})" if np.isfinite(a) and np.isfinite(b) else ""
        said += f": {number(slope, signed=True)} ms per 1,000 tokens{between}"
    batch = field(fit, "batch_typical")
    said += ", at each bin's batch" if each is not None else f", at batch {batch:.3g}" if np.isfinite(batch) else ""
    ax.fill_between(at, low, high, color=color, alpha=0.15, lw=0, zorder=1, gid="interval")
    ax.plot(at, y, color=color, lw=1.4, ls=DASHES, zorder=2, label=said, gid="fit")
    knee = field(fit, "knee")
    if model == "bend" and np.isfinite(knee):
        ax.axvline(knee, color=QUIET, lw=0.9, ls=DOTS, zorder=1, gid="reference", label=f"knee at {number(knee, whole=True)}")


def _measured(ax: Axes, sweep: Any, value: str) -> None:
    """Lay a measured sweep over the picture, in green squares that are no series of the log."""
    if sweep is None or not len(sweep):
        return
    y = _first_of(sweep, value, *SWEEP_NAMES.get(value, ()))
    x = _first_of(sweep, "x_mean", "prompt_tokens", "prompt_tok")
    ok = np.isfinite(x) & np.isfinite(y)
    if not ok.any():
        return
    if has(ax, "nothing"):
        ax.texts[0].remove()
        ax.spines[["left", "bottom"]].set_visible(True)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
        ax.yaxis.set_major_locator(MaxNLocator(nbins=6))
        ax.set_xlabel(AXIS_WORDS["context_len"], fontsize=9)
        entitle(ax, titles.measured(y[ok]))
    order = np.argsort(x[ok], kind="stable")
    low, high = (drawable(columns.numeric(sweep, f"{value}_{end}"))[ok] for end in ("low", "high"))
    error_bars(ax, x[ok], y[ok], low, high, GREEN)
    said = f"measured sweep ({int(ok.sum())} points)"
    ax.plot(x[ok][order], y[ok][order], color=GREEN, marker="*", ms=8, lw=1.2, ls=DOTS, zorder=5, label=said, gid="series")


def _first_of(frame: pd.DataFrame, *names: str) -> Floats:
    """Return the first of these columns that holds a number."""
    found = next((n for n in names if np.isfinite(drawable(columns.numeric(frame, n))).any()), names[0])
    return drawable(columns.numeric(frame, found))
