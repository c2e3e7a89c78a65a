"""What a change of speed is due to, and what a budget brings."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import FuncFormatter

from ddtree_metrics.metrics.shares import counteracting
from ddtree_metrics.plots.curves import AXIS_WORDS
from ddtree_metrics.plots.looks import BLUE, GREEN, ORANGE, drawable, entitle, field, finish, new_axes, nothing, number, series_of, words
from ddtree_metrics.plots.of_log import budgets_of, change_of, draws
from ddtree_metrics.steps import frames as columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@draws(change_of, "attribute_slowdown(before, after)", "share_step_time")
def plot_attribution(attribution: Any, ax: Axes | None = None) -> Axes:
    """Draw what share of a slow-down (or speed-up) each cause has, with its interval.

    The shares are of the logarithm of the speed ratio, so they add up to 100 %. The mix of contexts and batches has a bar of its own
    where its share is known; step time and tokens per step are then those at equal mix. Where two shares go beyond 0 and 100 % it is said
    which made up for part of the change. Where one part worked against the change there are no shares, and what each did to speed is drawn
    instead; where that is not known, why. Without intervals it is said, too.

    Parameters
    ----------
    attribution : Log, Diagnosis, Attribution, Comparison of a diagnosis, or mapping
        ``share_step_time, share_acceptance`` and perhaps ``share_mix``, each with ``_low`` and ``_high`` (or as an interval), and
        ``speed_before, speed_after`` for the title.
    ax : Axes, optional
        Where to draw.
    """
    ax = new_axes(ax, "What the change in speed is due to", size=(4.8, 1.9))
    compared = getattr(attribution, "comparisons", None)
    if compared is not None:
        attribution = compared[0] if compared else {"reason": "there is no change of speed to divide"}
    names = ["share_step_time", "share_acceptance"]
    if np.isfinite(field(attribution, "share_mix")):
        names.append("share_mix")
    share, low, high = (np.array([field(attribution, n, end) for n in names]) for end in ("", "low", "high"))
    before, after = field(attribution, "speed_before"), field(attribution, "speed_after")
    if np.isfinite(before) and np.isfinite(after) and before > 0:
        change = f"{100 * (after / before - 1):+.0f}".replace("-", "\u2212")
        entitle(ax, f"{number(before)} → {number(after)} tok/s a request ({change} %)")
    if not np.isfinite(share).all():
        return _factors(ax, attribution)
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
    under = ["share of the change (%)"]
    slower = not (np.isfinite(before) and np.isfinite(after) and after > before)
    remark = counteracting(float(share[0]), float(low[0]), float(high[0]), slower=slower) if len(names) == 2 else None
    if remark:
        under.append(textwrap.fill(remark.partition(", so")[0], 50))
    if not (np.isfinite(low) & np.isfinite(high)).all():
        under.append("no interval is known")
    ax.set_xlabel("\n".join(under), fontsize=9)
    return ax


def _factors(ax: Axes, attribution: Any) -> Axes:
    """Draw what each part did to speed, as a factor on a log scale, where parts worked against each other."""
    ends = ("", "low", "high")
    mix = np.array([field(attribution, "mix_ratio", end) for end in ends])
    equal = "_equal" if np.isfinite(mix[0]) else ""
    step, tokens = (np.array([field(attribution, f"{name}{equal}", end) for end in ends]) for name in ("step_time_ratio", "tokens_ratio"))
    parts = [1.0 / step[[0, 2, 1]], tokens, *([mix] if equal else [])]  # a step that takes twice as long halves the speed
    if not all(np.isfinite(part[0]) and part[0] > 0 for part in parts):
        return nothing(ax, words(attribution, "reason") or "the change cannot be split into step time and tokens per step")
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = [np.log(part) for part in parts]
    known = np.concatenate([each[np.isfinite(each)] for each in logs])
    left, right = min(float(known.min()), -0.1), max(float(known.max()), 0.1)
    ink = ax.xaxis.label.get_color()
    ax.grid(visible=False)
    places = list(range(len(parts)))
    ax.barh(places, [each[0] for each in logs], color=(BLUE, ORANGE, GREEN)[: len(parts)], height=0.5, zorder=2, gid="series")
    for y, (part, each) in enumerate(zip(parts, logs, strict=True)):
        said = f"× {part[0]:.2f}"
        if np.isfinite(each).all():
            ax.plot(each[1:], [y, y], color=ink, lw=1.3, zorder=4, marker="|", ms=8, gid="interval")
            said += f" ({part[1]:.2f} to {part[2]:.2f})"
        end = float(max(each[np.isfinite(each)].max(), 0.0))
        ax.text(end + 0.025 * (right - left), y, said, va="center", fontsize=8.5, zorder=5)
    ax.set_xlim(left - 0.03 * (right - left), right + 0.55 * (right - left))
    ax.set_ylim(len(parts) - 0.5, -0.5)
    ax.set_yticks(places, ["step time", "tokens\nper step", "mix of\nrequests"][: len(parts)])
    ax.tick_params(axis="y", labelsize=9, length=0)
    ax.axvline(0.0, color=ink, lw=0.9, zorder=3)
    marks = [v for v in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0, 10.0) if left - 0.05 <= np.log(v) <= right + 0.05]
    ax.set_xticks(np.log(marks), [f"{v:g}" for v in marks])
    ax.set_xlabel("what each part did to speed: times so much (log scale)", fontsize=9)
    return ax


@draws(budgets_of, "by_budget(rows)", "tok_per_s", "tokens_per_step")
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
    budget, lowest = drawable(columns.numeric(budgets, "budget")), 100.0
    known = np.unique(budget[np.isfinite(budget)])
    ax = new_axes(ax, "Speed and acceptance by budget")
    if len(known) == 1:
        return nothing(ax, f"the budget was always {known[0]:g} nodes, and one budget is no curve{_at_one(budgets)}", label)
    bests = []
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
        bests.append(x[best])
        said = f"{label + ', ' if label else ''}{word}: best at {x[best]:g} ({number(y[best])} {unit})"
        ax.plot(x, 100 * y / y[best], color=color, marker=marker, ms=4, lw=1.5, label=said, gid="series", zorder=3)
        ax.plot(x[best], 100.0, marker=marker, ms=10, mfc="none", mec=color, mew=1.5, zorder=4)
        lowest = min(lowest, float(100 * y.min() / y[best]))
    if not series_of(ax):
        return nothing(ax, "no step says its budget, or none has a speed", label)
    ax.set_xlabel(AXIS_WORDS["budget"], fontsize=9)
    if len(bests) > 1:
        both = bests[0] == bests[1]
        entitle(
            ax, f"Budget {bests[0]:g} is fastest" + (", and has most tokens a step" if both else f"; {bests[1]:g} has most tokens a step")
        )
    finish(ax, "share of its own best (%)")
    ax.set_ylim(max(0.0, lowest - 8), 104)
    ax.set_yticks([t for t in ax.get_yticks() if max(0.0, lowest - 8) <= t <= 100])
    return ax


def _at_one(budgets: pd.DataFrame) -> str:
    """Say the numbers of the only budget there is."""
    speed, tokens = (drawable(columns.numeric(budgets, name)) for name in ("tok_per_s", "tokens_per_step"))
    said = [f"{number(float(v[0]))} {unit}" for v, unit in ((speed, "tok/s"), (tokens, "tokens a step")) if len(v) and np.isfinite(v[0])]
    return f" ({', '.join(said)})" if said else ""
