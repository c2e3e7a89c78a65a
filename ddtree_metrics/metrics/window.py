"""Whether acceptance falls where the context leaves the drafter's window, and where it falls if the window is not known."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ddtree_metrics.layout import plural
from ddtree_metrics.metrics.choice import choose
from ddtree_metrics.metrics.confidence import Resampler, around
from ddtree_metrics.metrics.knees import SIDE, Knee, KneeRows, Profile, Within, find_knee, knee_size, level_variance, squared, within_jump
from ddtree_metrics.metrics.models import ClassMeans, Model, Regression
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.frames import Floats
from ddtree_metrics.steps.given import takes
from ddtree_metrics.steps.repeated_prompts import prompt_keys

ALIKE = 0.04
"""A change of tokens per step by less than this at the window is no change."""

COINCIDENCE = 0.1
"""A knee whose interval is at most this share of the contexts seen falls on a known window by chance at most so often."""

CROSSING = 3
"""At least so many requests must fall as they cross a window to say that it is not the text."""

NORMAL = 1.645
"""Standard errors between an estimate and a value that it speaks against, one-sided at 95 %."""

SUPPORTED, REFUTED, FOUND, CANNOT_TELL = "supported", "refuted", "found", "cannot tell"

NAN = float("nan")


@dataclass(frozen=True)
class WindowKnee:
    """Tokens per step on both sides of the drafter's window, or of the knee that was found.

    Attributes
    ----------
    window : float
        The window in tokens; NaN where it is not known.
    window_from : str or None
        ``given``, ``servers`` (the server's start line), or None.
    model : str or None
        What tokens per step do against context: ``flat``, ``line``, ``curve``, ``bend`` (another slope from the knee on) or
        ``drop`` (a jump at it, up or down).
    knee, knee_low, knee_high : float
        Where, for a bend or a drop, in tokens. The interval reaches at least from the last observed context up to the knee to the
        first one beyond it, between which the data cannot tell. ``knee`` is the window where that lies in the likeliest gap, else
        the middle of the gap.
    below, above : float
        Tokens per step on both sides of the window, pooled; of the knee where the window is not known.
    ratio, ratio_low, ratio_high : float
        The jump at the window itself (at the knee where the window is not known): tokens per step just beyond it by just below it,
        the slope taken out.
    at_window : bool or None
        Whether the knee's interval contains the window.
    verdict : str
        ``supported``, ``refuted``, ``found`` (a knee, but no window is known to compare it with) or ``cannot tell``.
    sentence : str
        The result in words.
    reason : str or None
        Why it cannot be told, or why the window is not known.
    size, size_low, size_high : float
        Of the knee: for a drop tokens per step just beyond it by just below it, for a bend the change of slope in tokens per step
        per 1000 tokens of context.
    slope_below, slope_above : float
        Tokens per step per 1000 tokens of context on both sides of the knee; the same for a drop.
    knee_below, knee_above : float
        Tokens per step up to the knee and beyond it, pooled.
    requests_below, requests_above : int
        Distinct prompts with steps up to the place (window, else knee), and beyond it.
    crossing : int
        Requests with steps on both sides of ``within_at``, repeats of a prompt counted once.
    within_ratio, within_low, within_high : float
        The jump at ``within_at`` measured on those alone, each at its own level: other requests, which may be other texts, have no
        part in it. NaN where none crosses.
    within_at : float
        Where: at the window, but at the knee where the window is not known or a drop lies elsewhere for certain.
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
    size: float = NAN
    size_low: float = NAN
    size_high: float = NAN
    slope_below: float = NAN
    slope_above: float = NAN
    knee_below: float = NAN
    knee_above: float = NAN
    requests_below: int = 0
    requests_above: int = 0
    crossing: int = 0
    within_ratio: float = NAN
    within_low: float = NAN
    within_high: float = NAN
    within_at: float = NAN

    @property
    def found(self) -> str:
        """Where the knee is, and how large, in words; ``""`` where there is none."""
        return _said(self) if np.isfinite(self.knee) else ""


@takes("request_steps", "context_len")
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
        Supported: tokens per step fall at the window, and this is not only that requests beyond it are other requests: those that
        pass it fall too, or the place is known so narrowly that it is no coincidence. Refuted: the jump there is small for certain,
        or the fall lies elsewhere for certain. Found: a knee, but no window to compare it with. Otherwise it cannot be told. Fewer
        than six requests on one side support nothing.
    """
    window, window_from, why = _window(window, servers)
    x, y = cols.finite(cols.numeric(request_steps, "context_len")), cols.finite(cols.numeric(request_steps, "tokens"))
    keys = prompt_keys(request_steps)
    usable = np.isfinite(x) & np.isfinite(y)
    means = _means(x[usable], y[usable], window)
    made = WindowKnee(window, window_from, None, NAN, NAN, NAN, *means, NAN, NAN, NAN, None, CANNOT_TELL, "", why)
    if not usable.any():
        return _cannot(made, "no step has both a context length and a token count")
    x, y, codes = x[usable], y[usable], keys.codes[usable]
    if np.ptp(x) <= 0:
        return _cannot(made, "the context is the same in every step")
    ones, none = np.ones(len(x)), np.zeros((len(x), 0))
    rows = KneeRows.of(x, none, y, ones, codes, seed=seed)
    if rows.effective < 1.8:
        return _cannot(made, "one request makes up most of the steps")
    cells = ClassMeans.of(x, none, y, ones, codes, seed=seed, apart=True)
    sampler = Resampler.over(rows.groups, resamples=resamples, seed=seed, level=level)
    model, knee = _knee(cells, rows, sampler, window, float(y.mean()), level, seed)
    made = replace(made, model=model)
    if knee is not None:
        made = _with(made, knee, x, y)
    if why and knee is None:
        return _cannot(made, why)
    place = knee.place if why and knee is not None else window
    below, above, _ = rows.sides(place)
    made = replace(made, requests_below=below, requests_above=above)
    if min(below, above) < SIDE and not why:
        side, count = ("below", below) if below < SIDE else ("beyond", above)
        few = keys.distinct(count) if count else "no request"
        return _cannot(made, f"{few} {side} the window of {window:,.0f} tokens" + (f", fewer than {SIDE}" if count else ""))
    between = level_variance(rows, "drop", place)
    smooth, others = (squared(rows), np.array([(place / 1000.0) ** 2])) if model == "curve" else (rows, np.empty(0))
    one = Profile(smooth, "drop", np.array([place]), between)
    ratio = knee_size("drop", place, smooth, one.solve()[1][0, 0], one.solve(sampler.weights)[1][:, 0], level, others=others)
    if knee is None and _falls(*ratio):
        # the place was named beforehand: no search has to be paid for, as choosing a form has
        near = find_knee(smooth, "drop", sampler, between=between, favour=window, level=level)
        if near is not None and near.low <= window <= near.high and near.size < 1:
            # its size is that at the window, with the curve taken out
            near = replace(near, size=ratio[0], size_low=ratio[1], size_high=ratio[2])
            near = replace(near, slope_below=NAN, slope_above=NAN) if model == "curve" else near
            made, knee = _with(replace(made, model="drop"), near, x, y), near
    elsewhere = knee is not None and knee.kind == "drop" and not made.at_window
    own = knee.place if elsewhere and knee is not None else place
    known = np.ones(len(x), dtype=bool) if keys.known is None else keys.known[usable]
    within = Within()
    if keys.source != "stretch" and known.any():
        only = rows if known.all() else KneeRows.of(x[known], none[known], y[known], ones[known], codes[known], seed=seed)
        drawn = sampler if only is rows else Resampler.over(only.groups, resamples=resamples, seed=seed, level=level)
        within = within_jump(only, own, drawn, level=level)
    below_mean, above_mean = _means(x, y, place)
    made = replace(
        made,
        below=below_mean,
        above=above_mean,
        ratio=ratio[0],
        ratio_low=ratio[1],
        ratio_high=ratio[2],
        crossing=within.crossing,
        within_ratio=within.ratio,
        within_low=within.low,
        within_high=within.high,
        within_at=own,
    )
    if why:
        return replace(made, verdict=FOUND, sentence=f"{_said(made)} Whether it is the drafter's window cannot be told: {why}.")
    verdict, sentence, reason = _verdict(made, float(np.diff(np.quantile(x, [0.05, 0.95]))[0]), within.error)
    return replace(made, verdict=verdict, sentence=sentence, reason=reason)


def _with(made: WindowKnee, knee: Knee, x: Floats, y: Floats) -> WindowKnee:
    """Add a knee."""
    below, above = _means(x, y, knee.place)
    return replace(
        made,
        knee=knee.place,
        knee_low=knee.low,
        knee_high=knee.high,
        knee_below=below,
        knee_above=above,
        size=knee.size,
        size_low=knee.size_low,
        size_high=knee.size_high,
        slope_below=knee.slope_below,
        slope_above=knee.slope_above,
        at_window=bool(knee.low <= made.window <= knee.high) if np.isfinite(made.window) else None,
    )


def _falls(ratio: float, low: float, high: float) -> bool:
    """Tell whether a jump is a fall for certain, and one that matters."""
    return bool(np.isfinite(low) and high < 1.0 and ratio < 1 - ALIKE)


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


def _means(x: Floats, y: Floats, place: float) -> tuple[float, float]:
    """Return the pooled means up to a place and beyond it."""
    below, above = x <= place, x > place
    return (float(y[below].mean()) if below.any() else NAN), (float(y[above].mean()) if above.any() else NAN)


def _cannot(made: WindowKnee, reason: str) -> WindowKnee:
    """Say why it cannot be told, and a knee that was found all the same."""
    sentence = f"Whether acceptance falls at the drafter's window cannot be told: {reason}."
    if made.found:
        sentence += " " + made.found
    return replace(made, sentence=sentence, reason=reason, verdict=CANNOT_TELL)


def _knee(
    cells: ClassMeans, rows: KneeRows, sampler: Resampler, window: float, scale: float, level: float, seed: int
) -> tuple[str, Knee | None]:
    """Choose a form, and find its knee if it has one."""
    coarse = Regression(cells, seed=seed)
    tried = coarse.knees("drop", SIDE)
    first = coarse.best(tried)
    middle = first.knee if first is not None else float(np.median(rows.x))
    between = level_variance(rows, "drop", middle)
    regression = Regression(cells, seed=seed, between=between) if between > 0 else coarse
    forms = {"flat": [Model("flat")], "line": [Model("line")], "curve": [Model("curve")]}
    forms |= {kind: found for kind in ("bend", "drop") if (found := regression.knees(kind, SIDE))}
    line = float(regression.fit(Model("line"))[1])
    low, high = around(line, regression.fit(Model("line"), sampler.weights)[:, 1], cells.effective, level, log=False)
    _, model = choose(regression, forms, scale=scale, sloped=bool(low > 0 or high < 0))
    if model not in ("bend", "drop"):
        return model, None
    return model, find_knee(rows, model, sampler, between=between, favour=window, level=level)


def _span(made: WindowKnee) -> str:
    return f"{made.knee_low:,.0f} to {made.knee_high:,.0f}"


def _own(made: WindowKnee) -> str:
    """Say what the requests that cross it do."""
    if not made.crossing:
        return "no request passes it, so that it may be another kind of text"
    count = plural(made.crossing, "request")
    if not np.isfinite(made.within_ratio):
        return f"{count} {'passes' if made.crossing == 1 else 'pass'} it, too little to say what they do there"
    between = f" ({made.within_low:.2f} to {made.within_high:.2f})" if np.isfinite(made.within_low) else ""
    return f"within the {count} that {'passes' if made.crossing == 1 else 'pass'} it x {made.within_ratio:.2f}{between}"


def _said(made: WindowKnee) -> str:
    """Say where the knee is, and how large."""
    if made.model == "drop":
        does = "drops" if made.size < 1 else "jumps up"
        size = f"x {made.size:.2f}" + (f" ({made.size_low:.2f} to {made.size_high:.2f})" if np.isfinite(made.size_low) else "")
    else:
        does = "begins to fall" if made.slope_above < 0 and made.slope_above < made.slope_below else "changes slope"
        size = f"{made.slope_below:+.2f} per 1,000 tokens below, {made.slope_above:+.2f} beyond"
    levels = f"{made.knee_below:.2f} tokens per step up to there, {made.knee_above:.2f} beyond; {size}"
    own = f"; {_own(made)}" if made.within_at == made.knee and made.model == "drop" else ""
    return f"Acceptance {does} at about {made.knee:,.0f} tokens of context ({_span(made)}): {levels}{own}."


def _verdict(made: WindowKnee, spread: float, error: float) -> tuple[str, str, str | None]:
    """Weigh the jump at the window, the knee that was found, and whether it is there within single requests."""
    window = made.window
    levels = f"{made.below:.2f} tokens per step up to {window:,.0f} tokens of context, {made.above:.2f} beyond"
    if np.isfinite(made.ratio):
        jumps = f"the jump there is x {made.ratio:.3f}"
        jumps += f" ({made.ratio_low:.3f} to {made.ratio_high:.3f})" if np.isfinite(made.ratio_low) else ""
    else:
        jumps = "the jump there cannot be estimated"
    falls = _falls(made.ratio, made.ratio_low, made.ratio_high)
    knee_falls = (made.model == "drop" and made.size < 1) or (made.model == "bend" and made.size < 0)
    if knee_falls and made.at_window is False:
        said = _said(made).removeprefix("Acceptance ")
        return REFUTED, f"Acceptance does not change at the drafter's window of {window:,.0f}: it {said}", None
    at = knee_falls and bool(made.at_window)
    if at or falls:
        place = f"the change lies at {made.knee:,.0f} ({_span(made)})" if at else jumps
        narrow = at and made.knee_high - made.knee_low <= COINCIDENCE * spread
        doubt = _doubt(made, narrow, error)
        if doubt is None:
            return SUPPORTED, f"Acceptance {'changes' if at else 'drops'} at the drafter's window: {levels}; {place}; {_own(made)}.", None
        return CANNOT_TELL, f"Whether acceptance falls at the drafter's window cannot be told: {levels}; {place}; but {doubt}.", doubt
    if np.isfinite(made.ratio_low) and made.ratio_low > 1 - ALIKE:
        return REFUTED, f"Acceptance does not drop at the drafter's window: {levels}; {jumps}.", None
    return CANNOT_TELL, f"Whether acceptance falls at the drafter's window cannot be told: {levels}; {jumps}.", jumps


def _doubt(made: WindowKnee, narrow: bool, error: float) -> str | None:
    """Say why a fall may be of the text and not of the context, or None."""
    if made.crossing >= CROSSING and made.within_high < 1.0:
        return None
    expected = made.size if made.model == "drop" else made.ratio
    if made.model == "bend" and narrow:
        return None
    if made.crossing >= SIDE and 0 < expected < made.within_low:
        return f"{_own(made)}: requests beyond it may be another kind of text"
    # a place that narrow is no coincidence, unless the few requests that pass it speak rather for no jump than for this one
    against = made.within_ratio > np.sqrt(max(expected, 0.0)) and made.within_ratio - expected > NORMAL * error
    if narrow and not against:
        return None
    return f"{_own(made)}: text or context, unknown"
