"""Whether acceptance falls where the context leaves the drafter's window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddtree_metrics.metrics.choice import choose
from ddtree_metrics.metrics.intervals import around
from ddtree_metrics.metrics.models import Cells, Model, Regression
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.frames import Floats
from ddtree_metrics.steps.prompts import prompt_keys

ALIKE = 0.04
"""A change of tokens per step by less than this at the window is no change."""

NAN = float("nan")


@dataclass(frozen=True)
class WindowKnee:
    """Tokens per step on both sides of the drafter's window.

    Attributes
    ----------
    window : float
        The window in tokens; NaN where it is not known.
    window_from : str or None
        ``given``, ``servers`` (the server's start line), or None.
    model : str or None
        What tokens per step do against context: ``flat``, ``line``, ``curve``, ``bend`` (another slope from the knee on) or
        ``drop`` (a jump at it).
    knee, knee_low, knee_high : float
        Where, for a bend or a drop.
    below, above : float
        Tokens per step on both sides of the window, pooled.
    ratio, ratio_low, ratio_high : float
        The jump at the window itself: tokens per step just above it by just below it, the slope on both sides taken out.
    at_window : bool or None
        Whether the knee's interval contains the window.
    verdict : str
        ``supported``, ``refuted`` or ``cannot tell``.
    sentence : str
        The result in words.
    reason : str or None
        Why it cannot be told.
    """

    window: float
    window_from: str | None
    model: str | None
    knee: float
    knee_low: float
    knee_high: float
    below: float
    above: float
    ratio: float
    ratio_low: float
    ratio_high: float
    at_window: bool | None
    verdict: str
    sentence: str
    reason: str | None = None


def find_window_knee(
    request_steps: pd.DataFrame,
    window: float | None = None,
    *,
    servers: pd.DataFrame | None = None,
    level: float = 0.9,
    resamples: int = 400,
    seed: int = 0,
) -> WindowKnee:
    """Test whether tokens per step change at the drafter's window, and look for where they change.

    Parameters
    ----------
    request_steps : pandas.DataFrame
        One row a request a step, with ``context_len`` and ``tokens``.
    window : float, optional
        The drafter's window in tokens.
    servers : pandas.DataFrame, optional
        Server starts; ``draft_window`` is taken from them where all that say it agree.
    level, resamples, seed
        Level of the intervals; how often requests are resampled, and from which start.

    Returns
    -------
    WindowKnee
        Supported: tokens per step drop at the window, or bend at a knee whose interval contains it. Refuted: the jump there is small
        for certain, or the knee lies elsewhere for certain. Otherwise it cannot be told.
    """
    window, window_from, why = _window(window, servers)
    x, y = cols.finite(cols.numeric(request_steps, "context_len")), cols.finite(cols.numeric(request_steps, "tokens"))
    keys = prompt_keys(request_steps)
    usable = np.isfinite(x) & np.isfinite(y)
    below, above = usable & (x <= window), usable & (x > window)
    means = [float(y[m].mean()) if m.any() else NAN for m in (below, above)]

    def cannot(reason: str, model: str | None = None) -> WindowKnee:
        sentence = f"Whether acceptance falls at the drafter's window cannot be told: {reason}."
        return WindowKnee(
            window, window_from, model, NAN, NAN, NAN, means[0], means[1], NAN, NAN, NAN, None, "cannot tell", sentence, reason
        )

    if not usable.any():
        return cannot("no step has both a context length and a token count")
    if np.ptp(x[usable]) <= 0:
        return cannot("the context is the same in every step")
    cells = Cells.of(x[usable], np.zeros((int(usable.sum()), 0)), y[usable], np.ones(int(usable.sum())), keys.codes[usable], seed=seed)
    if cells.effective < 1.8:
        return cannot("one request makes up most of the steps")
    regression = Regression(cells, seed=seed)
    sampler = regression.sampler(resamples=resamples, level=level)
    forms = {"flat": [Model("flat")], "line": [Model("line")], "curve": [Model("curve")]}
    forms |= {kind: found for kind in ("bend", "drop") if (found := regression.knees(kind))}
    scale = float(y[usable].mean())
    slope = float(regression.fit(Model("line"))[1])
    low, high = around(slope, regression.fit(Model("line"), sampler.weights)[:, 1], cells.effective, level, log=False)
    _, model = choose(regression, forms, scale=scale, sloped=bool(low > 0 or high < 0))
    knee = knee_low = knee_high = NAN
    if model in ("bend", "drop"):
        candidates = regression.refined(forms[model])
        best = regression.best(candidates)
        assert best is not None
        knee = best.knee
        knee_low, knee_high = around(knee, regression.knee_draws(candidates, sampler), cells.effective, level)
    if why:
        return cannot(why, model)
    few = [len(np.unique(keys.codes[m])) for m in (below, above)]
    if min(few) < 2:
        side = "below" if few[0] < 2 else "beyond"
        return cannot(f"{keys.distinct(min(few))} {side} the window of {window:,.0f} tokens", model)
    ratio, ratio_low, ratio_high = _jump(regression, Model("drop", window), sampler.weights.astype(float), cells.effective, level)
    at = None if np.isnan(knee_low) else bool(knee_low <= window <= knee_high)
    verdict, sentence, reason = _verdict(window, model, knee, (knee_low, knee_high), at, (ratio, ratio_low, ratio_high), means)
    return WindowKnee(
        window,
        window_from,
        model,
        knee,
        knee_low,
        knee_high,
        means[0],
        means[1],
        ratio,
        ratio_low,
        ratio_high,
        at,
        verdict,
        sentence,
        reason,
    )


def _window(window: float | None, servers: pd.DataFrame | None) -> tuple[float, str | None, str | None]:
    """Return the window, where it is from, and why it is not known."""
    if window is not None and np.isfinite(window) and window > 0:
        return float(window), "given", None
    said = cols.finite(cols.numeric(servers, "draft_window")) if servers is not None else np.empty(0)
    distinct = np.unique(said[said > 0])
    if len(distinct) == 1:
        return float(distinct[0]), "servers", None
    if len(distinct) > 1:
        return NAN, None, f"the server starts name several windows ({', '.join(f'{d:.0f}' for d in distinct)})"
    return NAN, None, "the drafter's window is not known"


def _jump(regression: Regression, model: Model, weights: Floats, groups: float, level: float) -> tuple[float, float, float]:
    """Estimate the jump at a given place relative to the level just below it, with its interval."""
    at = model.knee / 1000.0

    def ratio(beta: Floats) -> Floats:
        before = beta[..., 0] + beta[..., 1] * at
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(before > 0, 1.0 + beta[..., 2] / before, np.nan)

    estimate = float(ratio(regression.fit(model)))
    return estimate, *around(estimate, ratio(regression.fit(model, weights)), groups, level)


def _verdict(
    window: float, model: str, knee: float, ends: tuple[float, float], at: bool | None, jump: tuple[float, float, float], means: list[float]
) -> tuple[str, str, str | None]:
    """Weigh the jump at the window and the knee that was found."""
    ratio, low, high = jump
    levels = f"{means[0]:.2f} tokens per step up to {window:,.0f} tokens of context, {means[1]:.2f} beyond"
    if np.isfinite(ratio):
        jumps = f"the jump there is x {ratio:.3f}" + (f" ({low:.3f} to {high:.3f})" if np.isfinite(low) else "")
    else:
        jumps = "the jump there cannot be estimated"
    falls = np.isfinite(high) and high < 1.0
    knee_falls = model in ("bend", "drop") and means[1] < means[0]
    if knee_falls and at:
        place = f"the change lies at {knee:,.0f} ({ends[0]:,.0f} to {ends[1]:,.0f})"
        return "supported", f"Acceptance changes at the drafter's window: {levels}; {place}.", None
    if model in ("bend", "drop") and at is False:
        place = f"{knee:,.0f} tokens ({ends[0]:,.0f} to {ends[1]:,.0f})"
        return "refuted", f"Acceptance changes at {place}, not at the drafter's window of {window:,.0f}.", None
    if falls and ratio < 1 - ALIKE / 2 and model in ("flat", "line", "drop", "bend"):
        return "supported", f"Acceptance drops at the drafter's window: {levels}; {jumps}.", None
    if np.isfinite(low) and low > 1 - ALIKE:
        return "refuted", f"Acceptance does not drop at the drafter's window: {levels}; {jumps}.", None
    return "cannot tell", f"Whether acceptance falls at the drafter's window cannot be told: {levels}; {jumps}.", jumps
