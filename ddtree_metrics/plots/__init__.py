"""Pictures for a post-mortem: each takes a frame and an ``Axes``, draws, and returns the ``Axes``.

Without an ``Axes`` a figure is made that is readable at half a page. Colours are those of Okabe and Ito (2008), told apart by people who
see few of them, and every series has its own marker besides. The number of steps behind a point stands above the x axis; a hollow point
has no interval. Where there is nothing to draw, the picture is a sentence that says why.

Nothing here touches pyplot: a figure belongs to whoever holds it.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

from ddtree_metrics.metrics.shares import counteracting
from ddtree_metrics.plots.figure_files import render_figure, save_figure
from ddtree_metrics.plots.looks import (
    BLUE,
    DASHES,
    DOTS,
    GREEN,
    ORANGE,
    QUIET,
    STYLE,
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
    plain,
    series_of,
    sizes,
    words,
)
from ddtree_metrics.plots.timeline import columns_weight, plot_throughput, quantiles, step_ms
from ddtree_metrics.steps import frames as columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = [
    "plot_attribution",
    "plot_budget",
    "plot_overview",
    "plot_speed",
    "plot_step_time",
    "plot_step_time_distribution",
    "plot_survival",
    "plot_throughput",
    "plot_tokens_per_step",
    "render_figure",
    "save_figure",
]

AXIS_WORDS: Final = {
    "context_len": "context length when the step begins (tokens)",
    "prompt_len": "prompt length (tokens)",
    "generated_len": "generated length (tokens)",
    "batch_size": "batch size (sequences)",
    "batch_context": "context of the whole batch (tokens)",
    "uptime_s": "time since the server started (s)",
    "budget": "budget (draft nodes)",
}
SHORT_WORDS: Final = {
    "context_len": "context length",
    "prompt_len": "prompt length",
    "generated_len": "generated length",
    "batch_context": "context of the batch",
    "uptime_s": "uptime",
}
SWEEP_NAMES: Final = {
    "step_time_mean_ms": ("step_time_ms", "step_ms"),
    "tokens_per_step_pooled": ("tokens_per_step",),
    "tok_per_s": ("decode_tok_s",),
}


# -- against context ---------------------------------------------------------------------------------------------------------


def plot_step_time(
    curve: pd.DataFrame, ax: Axes | None = None, *, fit: Any = None, sweep: Any = None, label: str | None = None, color: str | None = None
) -> Axes:
    """Draw mean step time against context (or against whatever ``by_context`` binned by), with intervals.

    Parameters
    ----------
    curve : DataFrame
        What ``by_context`` gives; ``x_mean, step_time_mean_ms`` are needed, ``_low``, ``_high`` and ``timed_steps`` are drawn if there.
    ax : Axes, optional
        Where to draw; a second call on the same one adds a second series.
    fit : StepTimeFit, optional
        What ``fit_step_time`` gives, laid behind the points; where bins differ in batch size, it is drawn at the batch of each bin.
    sweep : DataFrame, optional
        A measured sweep, drawn as squares: ``x_mean`` or ``prompt_tokens``, and ``step_time_mean_ms``.
    label, color : str, optional
        The name and colour of the series.

    Returns
    -------
    Axes
    """
    ax = new_axes(ax, _title("Step time", curve))
    drawn = _bins(ax, curve, "step_time_mean_ms", "timed_steps", "mean", label, color, "no bin has a step time")
    if drawn is not None and fit is not None:
        _fit(ax, fit, curve, *drawn)
    _measured(ax, sweep, "step_time_mean_ms")
    return finish(ax, "step time (ms)")


def plot_tokens_per_step(
    curve: pd.DataFrame, ax: Axes | None = None, *, sweep: Any = None, label: str | None = None, color: str | None = None
) -> Axes:
    """Draw tokens per step (pooled, bonus included) against context; parameters as in ``plot_step_time``.

    The dashed line at one token a step is what plain decoding gives.
    """
    ax = new_axes(ax, _title("Tokens per step", curve))
    _bins(ax, curve, "tokens_per_step_pooled", "rows", "pooled mean", label, color, "no bin has committed tokens")
    _measured(ax, sweep, "tokens_per_step_pooled")
    if series_of(ax) and not has(ax, "reference"):
        ax.axhline(1.0, color=QUIET, lw=0.9, ls=DASHES, zorder=1, gid="reference", label="plain decoding")
    return finish(ax, "tokens per step")


def plot_speed(
    curve: pd.DataFrame, ax: Axes | None = None, *, sweep: Any = None, label: str | None = None, color: str | None = None
) -> Axes:
    """Draw the speed of one request against context, and a measured sweep over it; parameters as in ``plot_step_time``.

    The sweep needs ``x_mean`` or ``prompt_tokens``, and ``tok_per_s``; ``tok_per_s_low`` and ``_high`` are drawn if there.
    """
    ax = new_axes(ax, _title("Speed of one request", curve))
    _bins(ax, curve, "tok_per_s", "timed_steps", "from the log", label, color, "no bin has both a step time and tokens")
    _measured(ax, sweep, "tok_per_s")
    return finish(ax, "tokens/s")


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
        figure = Figure(figsize=(5.2, 8.6), layout="constrained")
        FigureCanvasAgg(figure)
        upper, middle, lower = figure.subplots(3, 1)
        plot_step_time(curve, upper, fit=fit, sweep=sweep)
        plot_tokens_per_step(curve, middle, sweep=sweep)
        plot_speed(curve, lower, sweep=sweep)
        if title:
            figure.suptitle(plain(title), fontsize=11, x=0.01, ha="left")
    return figure


def _bins(
    ax: Axes, curve: pd.DataFrame, value: str, counts: str, what: str, label: str | None, color: str | None, empty: str
) -> tuple[Floats, str] | None:
    """Draw one point a bin; returns where they are and their colour, or None if there was nothing to draw."""
    x, y = _middles(curve), drawable(columns.numeric(curve, value))
    ok = np.isfinite(x) & np.isfinite(y)
    if not ok.any():
        why = curve.attrs.get("reason") or _first_reason(curve) or empty
        nothing(ax, str(why) if len(curve) else f"the table is empty: {why}" if why is empty else str(why), label)
        return None
    order = np.argsort(x[ok], kind="stable")
    x, y = x[ok][order], y[ok][order]
    low = drawable(columns.numeric(curve, f"{value}_low"))[ok][order]
    high = drawable(columns.numeric(curve, f"{value}_high"))[ok][order]
    n = columns.numeric(curve, counts if counts in curve.columns else "steps")[ok][order]
    color, marker = look(ax, color)
    sure = np.isfinite(low) & np.isfinite(high)
    said = label or what
    if sure.any():
        said += f", {100 * float(curve.attrs.get('level', 0.9)):g} % interval"
    if np.isfinite(n).any():
        unit = "request steps" if counts == "rows" else "steps"
        said += f" (n: {unit} in the bin)"
    error_bars(ax, x, y, low, high, color)
    ax.plot(x, y, color=color, lw=1.4, alpha=0.55, gid="series", zorder=3)
    ax.plot(x[sure], y[sure], ls="none", marker=marker, ms=5, color=color, zorder=4, label=said if sure.any() else None)
    named = None if sure.any() and has(ax, "hollow") else "no interval" if sure.any() else said
    if (~sure).any():
        ax.plot(x[~sure], y[~sure], ls="none", marker=marker, ms=5, mfc="none", mec=color, mew=1.2, zorder=4, label=named, gid="hollow")
    sizes(ax, x, n, color)
    by = curve.attrs.get("by", "context_len")
    ax.set_xlabel(AXIS_WORDS.get(by, str(by).replace("_", " ")), fontsize=9)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
    return x, color


def _title(what: str, curve: pd.DataFrame) -> str:
    by = str(curve.attrs.get("by", "context_len"))
    return f"{what} by {SHORT_WORDS.get(by, by.replace('_', ' '))}"


def _middles(curve: pd.DataFrame) -> Floats:
    """Return where each bin stands: the mean of what is in it, or else its middle."""
    mean = drawable(columns.numeric(curve, "x_mean"))
    middle = (drawable(columns.numeric(curve, "low")) + drawable(columns.numeric(curve, "high"))) / 2
    return np.where(np.isfinite(mean), mean, middle)


def _first_reason(curve: pd.DataFrame) -> str | None:
    said = [r for r in columns.text(curve, "reason") if isinstance(r, str) and r]
    return said[0] if said else None


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


def _fit(ax: Axes, fit: Any, curve: pd.DataFrame, x: Floats, color: str) -> None:
    """Lay a fitted curve with its interval behind the points, and mark its knee."""
    model = words(fit, "model")
    if model is None:
        ax.plot([], [], ls="none", label=f"no fit: {plain(words(fit, 'reason') or 'too little data')}")
        return
    left, right = field(fit, "context_min"), field(fit, "context_max")
    if not np.isfinite(left) or not np.isfinite(right) or left >= right:
        left, right = float(x.min()), float(x.max())
    each = _batches(fit, curve)
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
    if each is None and np.isfinite(batch):
        said += f", at batch {batch:.3g}"
    ax.fill_between(at, low, high, color=color, alpha=0.15, lw=0, zorder=1, gid="interval")
    ax.plot(at, y, color=color, lw=1.4, ls=DASHES, zorder=2, label=said, gid="fit")
    if model != "flat":
        held = "at each bin's batch" if each is not None else "no other cause"
        ax.plot([], [], ls="none", label=f"of this picture: context and batch only, {held}", gid="note")
    knee = field(fit, "knee")
    if model == "bend" and np.isfinite(knee):
        ax.axvline(knee, ymax=0.75, color=QUIET, lw=0.9, ls=DOTS, zorder=1, gid="reference", label=f"knee at {number(knee, whole=True)}")


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
    order = np.argsort(x[ok], kind="stable")
    low, high = (drawable(columns.numeric(sweep, f"{value}_{end}"))[ok] for end in ("low", "high"))
    error_bars(ax, x[ok], y[ok], low, high, GREEN)
    said = f"measured sweep (n = {int(ok.sum())} points)"
    ax.plot(x[ok][order], y[ok][order], color=GREEN, marker="s", ms=5, lw=1.2, ls=DOTS, zorder=5, label=said, gid="series")


def _first_of(frame: pd.DataFrame, *names: str) -> Floats:
    """Return the first of these columns that holds a number."""
    found = next((n for n in names if np.isfinite(drawable(columns.numeric(frame, n))).any()), names[0])
    return drawable(columns.numeric(frame, found))


# -- the rest ----------------------------------------------------------------------------------------------------------------


def plot_survival(acceptance: Any, ax: Axes | None = None, *, label: str | None = None, color: str | None = None) -> Axes:
    """Draw how often at least so many drafts were accepted, and the chance of each depth once the one before was reached.

    Parameters
    ----------
    acceptance : Acceptance or DataFrame
        What ``acceptance`` gives, or its ``survival`` frame: ``depth, survival`` and, if there, ``conditional, low, high, rows``.
    ax, label, color
        As in ``plot_step_time``.
    """
    import pandas as pd

    ax = new_axes(ax, "Accepted drafts by depth")
    is_frame = isinstance(acceptance, pd.DataFrame)
    frame = acceptance if is_frame else getattr(acceptance, "survival", None)
    frame = frame if isinstance(frame, pd.DataFrame) else pd.DataFrame()
    depth, survival = (drawable(columns.numeric(frame, name)) for name in ("depth", "survival"))
    ok = np.isfinite(depth) & np.isfinite(survival) & (depth > 0)
    if not ok.any():
        reason = None if is_frame else words(acceptance, "reason")
        return nothing(ax, reason or "no step says how many drafts of each sequence were accepted", label)
    color, marker = look(ax, color)
    rows = drawable(columns.numeric(frame, "rows"))
    n = f" (n = {number(float(np.nanmax(rows)), whole=True)} request steps)" if np.isfinite(rows).any() else ""
    low, high = drawable(columns.numeric(frame, "low")), drawable(columns.numeric(frame, "high"))
    error_bars(ax, depth[ok], survival[ok], low[ok], high[ok], color)
    ax.plot(
        depth[ok],
        survival[ok],
        color=color,
        marker=marker,
        ms=4.5,
        lw=1.6,
        label=f"{label or 'at least this deep'}{n}",
        gid="series",
        zorder=3,
    )
    conditional = drawable(columns.numeric(frame, "conditional"))
    there = ok & np.isfinite(conditional)
    if there.any():
        named = f"{label}, given the depth before" if label else "given that the depth before was reached"
        ax.plot(depth[there], conditional[there], color=color, marker=marker, ms=4, mfc="none", lw=1.0, ls=DOTS, label=named, zorder=2)
    cap = float("nan") if is_frame else field(acceptance, "depth_cap")
    if np.isfinite(cap) and not has(ax, "reference"):
        ax.axvline(cap, ymax=0.71, color=QUIET, lw=0.9, ls=DASHES, zorder=1, gid="reference", label=f"depth cap ({int(cap)})")
    ax.set_xlabel("depth (accepted drafts)", fontsize=9)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25", "50", "75", "100"])
    return finish(ax, "share of request steps (%)", top=1.0, headroom=1.4)


def plot_step_time_distribution(steps: pd.DataFrame, ax: Axes | None = None, *, label: str | None = None, color: str | None = None) -> Axes:
    """Draw how step times are distributed, on a log scale, with the median and the 95th percentile marked.

    Parameters
    ----------
    steps : DataFrame
        ``step_time_ms`` or ``step_us``; with a ``weight`` column (a row a request a step) a step counts once.
    ax, label, color
        As in ``plot_step_time``.
    """
    ax = new_axes(ax, "Distribution of step times")
    ms, weight = step_ms(steps), columns_weight(steps)
    ok = np.isfinite(ms) & (weight > 0)
    if not ok.any():
        return nothing(ax, "no step has a step time" if len(ms) else "there are no steps", label)
    ms, weight = ms[ok], weight[ok]
    color, _ = look(ax, color)
    low, high = np.log10(ms.min()), np.log10(ms.max())
    if high - low < 0.05:
        low, high = low - 0.05, high + 0.05
    edges = np.logspace(low, high, int(np.clip(2 * np.cbrt(len(ms)), 8, 60)) + 1)
    edges[0], edges[-1] = min(edges[0], ms.min()), max(edges[-1], ms.max())
    heights, _ = np.histogram(ms, edges, weights=100 * weight / weight.sum())
    named = f"{label}, " if label else ""
    ax.stairs(heights, edges, fill=True, color=color, alpha=0.25, zorder=2)
    ax.stairs(
        heights, edges, color=color, lw=1.3, label=f"{named}n = {number(float(weight.sum()), whole=True)} steps", gid="series", zorder=3
    )
    for value, name, dashes in zip(quantiles(ms, weight, (0.5, 0.95)), ("median", "95th percentile"), ("-", DASHES), strict=True):
        ax.axvline(value, ymax=0.75, color=color, lw=1.3, ls=dashes, label=f"{named}{name} {number(value)} ms", gid="reference", zorder=4)
    ax.set_xscale("log")
    ax.set_xlabel("step time (ms, log scale)", fontsize=9)
    ratio = float(np.divide(*ax.get_xlim()[::-1]))
    if ratio > 4:
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if ratio < 300 else (1.0,)))
    else:
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.6g}") if ratio > 4 else ScalarFormatter(useOffset=False))
    ax.xaxis.set_minor_formatter(NullFormatter())
    return finish(ax, "share of steps (%)", headroom=1.35)


def plot_attribution(attribution: Any, ax: Axes | None = None) -> Axes:
    """Draw what share of a slow-down (or speed-up) each cause has, with its interval.

    The shares are of the logarithm of the speed ratio, so they add up to 100 %. The mix of contexts and batches has a bar of its own
    where its share is known; step time and tokens per step are then those at equal mix. Where two shares go beyond 0 and 100 % it is said
    which made up for part of the change, and where there are no shares, why. Without intervals it is said, too.

    Parameters
    ----------
    attribution : Attribution, Comparison of a diagnosis, or mapping
        ``share_step_time, share_acceptance`` and perhaps ``share_mix``, each with ``_low`` and ``_high`` (or as an interval), and
        ``speed_before, speed_after`` for the title.
    ax : Axes, optional
        Where to draw.
    """
    ax = new_axes(ax, "What the change in speed is due to", size=(4.8, 1.9))
    names = ["share_step_time", "share_acceptance"]
    if np.isfinite(field(attribution, "share_mix")):
        names.append("share_mix")
    share, low, high = (np.array([field(attribution, n, end) for n in names]) for end in ("", "low", "high"))
    before, after = field(attribution, "speed_before"), field(attribution, "speed_after")
    if np.isfinite(before) and np.isfinite(after) and before > 0:
        title = f"{number(before)} → {number(after)} tokens/s (×{number(after / before)})"
        ax.set_title(title, loc="left", fontsize=10, fontweight="bold")
    if not np.isfinite(share).all():
        return nothing(ax, words(attribution, "reason") or "the change cannot be split into step time and tokens per step")
    ends = np.concatenate([share, low[np.isfinite(low)], high[np.isfinite(high)], [0.0, 1.0]])
    left, right = float(ends.min()), float(ends.max())
    ink = ax.xaxis.label.get_color()
    ax.grid(visible=False)
    places = list(range(len(names)))
    ax.barh(places, share, color=(BLUE, ORANGE, GREEN)[: len(names)], height=0.5, zorder=2, gid="series")
    for y, (value, a, b) in enumerate(zip(share, low, high, strict=True)):
        said = f"{100 * value:.1f} %".replace("-", "\u2212")
        if np.isfinite(a) and np.isfinite(b):
            ax.plot([a, b], [y, y], color=ink, lw=1.3, zorder=4, marker="|", ms=8, gid="interval")
            said += f" ({100 * a:.1f} to {100 * b:.1f})".replace("-", "\u2212")
        end = float(np.nanmax([value, b, 0.0]))
        ax.text(end + 0.025 * (right - left), y, said, va="center", fontsize=8.5, zorder=5)
    ax.set_xlim(left - (0.03 * (right - left) if left < 0 else 0.0), right + 0.5 * (right - left))
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_yticks(places, ["step time", "tokens\nper step", "mix of\nrequests"][: len(names)])
    ax.tick_params(axis="y", labelsize=9, length=0)
    ax.axvline(0.0, color=ink, lw=0.9, zorder=3)
    step = next((d for d in (0.25, 0.5, 1.0, 2.0, 5.0) if right - left <= 6 * d), (right - left) / 4)
    ax.set_xticks(np.arange(np.ceil(left / step - 0.01), np.floor(right / step + 0.01) + 1) * step + 0.0)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.0f}".replace("-", "\u2212")))
    under = ["what the change is due to: shares on the log scale (%)"]
    slower = not (np.isfinite(before) and np.isfinite(after) and after > before)
    remark = counteracting(float(share[0]), float(low[0]), float(high[0]), slower=slower) if len(names) == 2 else None
    if remark:
        under.append(textwrap.fill(remark.partition(", so")[0], 50))
    if not (np.isfinite(low) & np.isfinite(high)).all():
        under.append("no interval is known")
    ax.set_xlabel("\n".join(under), fontsize=9)
    return ax


def plot_budget(budgets: pd.DataFrame, ax: Axes | None = None, *, label: str | None = None) -> Axes:
    """Draw speed and tokens per step against the budget, each as a share of its own best, the bests ringed.

    Parameters
    ----------
    budgets : DataFrame
        What ``by_budget`` gives: ``budget, tok_per_s, tokens_per_step``.
    ax : Axes, optional
        Where to draw.
    label : str, optional
        Put before the names in the legend.
    """
    ax = new_axes(ax, "Speed and acceptance by budget")
    budget, lowest = drawable(columns.numeric(budgets, "budget")), 100.0
    for name, word, unit, color, marker in (
        ("tok_per_s", "speed", "tokens/s", BLUE, "o"),
        ("tokens_per_step", "tokens per step", "a step", ORANGE, "s"),
    ):
        y = drawable(columns.numeric(budgets, name))
        ok = np.isfinite(budget) & np.isfinite(y) & (y > 0)
        if not ok.any():
            continue
        order = np.argsort(budget[ok], kind="stable")
        x, y = budget[ok][order], y[ok][order]
        best = int(np.argmax(y))
        said = f"{label + ', ' if label else ''}{word}: best at {x[best]:g} ({number(y[best])} {unit})"
        ax.plot(x, 100 * y / y[best], color=color, marker=marker, ms=4, lw=1.5, label=said, gid="series", zorder=3)
        ax.plot(x[best], 100.0, marker=marker, ms=10, mfc="none", mec=color, mew=1.5, zorder=4)
        lowest = min(lowest, float(100 * y.min() / y[best]))
    if not series_of(ax):
        return nothing(ax, "no step says its budget, or none has a speed", label)
    ax.set_xlabel(AXIS_WORDS["budget"], fontsize=9)
    finish(ax, "share of its own best (%)", headroom=1.0)
    ax.set_ylim(max(0.0, lowest - 8), 100 + 0.42 * (108 - lowest))
    ax.set_yticks([t for t in ax.get_yticks() if max(0.0, lowest - 8) <= t <= 100])
    return ax
