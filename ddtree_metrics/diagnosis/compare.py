"""Two groups of rows: how much slower, and how much of it is step time, how much tokens per step.

Speed of a request is tokens per step over step time, so on the log scale the two parts add up. Intervals are for the contexts and batches
that were served: what varies is the noise of steps and the text of requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import stats

from ddtree_metrics.diagnosis.model import CLEARLY_LARGER, VIF_LIMIT, Fit, fit
from ddtree_metrics.diagnosis.result import Comparison, Interval
from ddtree_metrics.steps.basis import Basis as Panel
from ddtree_metrics.steps.frames import Bools, Floats, Ints

MOSTLY = 0.8
"""A part that makes up this much of a slow-down is named alone."""

FEWEST_REQUESTS = 6
"""With fewer requests, stretches of steps are taken as independent instead, and it is said."""

DRAWS = 4000


@dataclass(frozen=True, slots=True)
class LogRatio:
    """The log of after / before, its standard error and degrees of freedom; NaN where it cannot be told."""

    before: float
    after: float
    log: float
    se: float
    dof: int

    @property
    def known(self) -> bool:
        """Whether there is a ratio."""
        return bool(np.isfinite(self.log))

    def interval(self, level: float) -> Interval:
        """Return the ratio with its interval."""
        if not self.known:
            return Interval()
        if not np.isfinite(self.se):
            return Interval(float(np.exp(self.log)))
        t = float(stats.t.ppf(0.5 + level / 2, self.dof)) * self.se
        return Interval(float(np.exp(self.log)), float(np.exp(self.log - t)), float(np.exp(min(self.log + t, 50))))

    def differs(self, level: float) -> bool:
        """Whether the interval leaves out 1."""
        if not (self.known and np.isfinite(self.se)):
            return False
        return abs(self.log) > float(stats.t.ppf(0.5 + level / 2, self.dof)) * self.se


UNKNOWN = LogRatio(np.nan, np.nan, np.nan, np.nan, 1)


def clusters_of(panel: Panel, rows: Bools, *, of_step: bool = False) -> tuple[Ints, str]:
    """Say what is independent among some rows: their requests, or stretches of steps where there are too few.

    The time of a step is one observation, however many requests share it: with ``of_step``, all rows of a step are put to its first one.
    """
    known = panel.known[rows]
    if known.any():
        mine = panel.text[rows]
        if of_step and not panel.first[rows].all():
            lead = np.zeros(int(panel.step.max()) + 1, dtype=np.int64)
            lead[panel.step[panel.first]] = panel.text[panel.first]
            mine = lead[panel.step[rows]]
        if len(np.unique(mine[known])) >= FEWEST_REQUESTS:
            return mine, "requests"
    return panel.stretch[rows], "stretches"


def log_ratio(y: Floats, weight: Floats, after: Bools, cluster: Ints, model: Fit | None) -> LogRatio:
    """Return the log ratio of two weighted means.

    Parameters
    ----------
    y, weight : ndarray
        Values of the rows of both groups, and how much each counts.
    after : ndarray of bool
        Which group a row is of.
    cluster : ndarray of int
        What is independent.
    model : Fit or None
        A model of ``y`` on the measured causes, fitted to these rows; its residuals give the standard error, so that a context that
        differs within a group is not taken for noise.
    """
    if not after.any() or after.all():
        return UNKNOWN
    w_b, w_a = weight * ~after, weight * after
    m_b, m_a = float((w_b * y).sum() / w_b.sum()), float((w_a * y).sum() / w_a.sum())
    if not (m_b > 0 and m_a > 0):
        return replace(UNKNOWN, before=m_b, after=m_a)
    log = float(np.log(m_a / m_b))
    if model is None or model.clusters < 3:
        return LogRatio(m_b, m_a, log, np.nan, 1)
    size = np.where(after, m_a, m_b)
    r = model.residual / size
    r = r - np.where(after, (w_a * r).sum() / w_a.sum(), (w_b * r).sum() / w_b.sum())
    q = w_a / w_a.sum() - w_b / w_b.sum()
    _, codes = np.unique(cluster, return_inverse=True)
    g = int(codes.max()) + 1
    robust = float((np.bincount(codes, q * r, g) ** 2).sum()) * g / (g - 1)
    tau2, sigma2 = _components(r, codes, g, len(model.names) + 1)
    modelled = float((np.bincount(codes, q, g) ** 2).sum()) * tau2 + float((q**2).sum()) * sigma2
    return LogRatio(m_b, m_a, log, float(np.sqrt(robust if robust > CLEARLY_LARGER * modelled else modelled)), model.dof)


def _components(r: Floats, codes: npt.NDArray[np.intp], g: int, p: int) -> tuple[float, float]:
    """Variances between and within clusters, by moments."""
    n = np.bincount(codes, minlength=g).astype(np.float64)
    total = len(r)
    means = np.bincount(codes, r, g) / n
    if total <= g or g <= p:
        return 0.0, float(r.var())
    within = float(((r - means[codes]) ** 2).sum()) / (total - g)
    between = float((n * means**2).sum()) / (g - p)
    typical = (total - float((n**2).sum()) / total) / (g - 1)
    return max(0.0, (between - within) / max(typical, 1e-12)), within


def shares(step: LogRatio, tokens: LogRatio, level: float, seed: int) -> tuple[Interval, Interval]:
    """Return the parts of step time and of tokens per step in a slow-down (or a speed-up), which add up to 1.

    They are unknown where either ratio is, and where the interval of the speed ratio holds 1: there is then nothing to divide.
    """
    nothing = Interval(unit="share")
    if not (step.known and tokens.known):
        return nothing, nothing
    total = step.log - tokens.log
    if total == 0 or not (np.isfinite(step.se) and np.isfinite(tokens.se)):
        return nothing, nothing
    both = float(np.hypot(step.se, tokens.se))
    if abs(total) <= float(stats.t.ppf(0.5 + level / 2, min(step.dof, tokens.dof))) * both:
        return nothing, nothing
    rng = np.random.default_rng(seed)
    s = step.log + step.se * rng.standard_t(step.dof, DRAWS)
    t = tokens.log + tokens.se * rng.standard_t(tokens.dof, DRAWS)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = s / (s - t)
    drawn = drawn[np.sign(s - t) == np.sign(total)]
    low, high = np.quantile(drawn, [0.5 - level / 2, 0.5 + level / 2])
    share = step.log / total
    return Interval(share, float(low), float(high), "share"), Interval(1 - share, 1 - float(high), 1 - float(low), "share")


def ratios(
    panel: Panel,
    rows: Bools,
    after: Bools,
    terms_step: dict[str, Floats],
    terms_tokens: dict[str, Floats],
    models: tuple[Fit | None, Fit | None] = (None, None),
) -> tuple[LogRatio, LogRatio, str]:
    """Return the log ratios of step time and of tokens per step between two groups, and what was independent.

    Parameters
    ----------
    panel : Panel
        All rows.
    rows, after : ndarray of bool
        Rows of both groups, and those of the group after.
    terms_step, terms_tokens : dict of str to ndarray
        Measured causes of every row, to take out of the noise.
    models : pair of Fit or None
        Models of step time and of tokens with a term for each server start: what these say of server starts is taken off, so that a group
        with more rows of one start is compared fairly.
    """
    made = []
    how = "requests"
    # each request of a batch sees the step: its speed is its tokens over the times of the steps it was in
    weight = token_weight(panel)
    timed = np.isfinite(panel.step_ms)
    for y, use, terms, whole_log in (
        (panel.step_ms, rows & timed, terms_step, models[0]),
        (panel.tokens, rows & panel.counted, terms_tokens, models[1]),
    ):
        if not use.any():
            made.append(UNKNOWN)
            continue
        cluster, mine = clusters_of(panel, use, of_step=y is panel.step_ms)
        how = mine if mine == "stretches" else how
        inside = {name: values[use] for name, values in terms.items()}
        inside = {k: v for k, v in inside.items() if np.isfinite(v).all() and v.std() > 0}
        group = after[use].astype(np.float64)
        weights = weight[use]
        weights = np.where(np.isfinite(weights), weights, 1.0)
        model = None
        if group.any() and not group.all():
            model = fit(y[use], {**inside, "group": group}, cluster, weights, relative=y is panel.step_ms)
        values, doubt = y[use], 0.0
        if whole_log is not None:
            values, doubt = _at_equal_starts(values, weights, after[use], inside, whole_log)
        found = log_ratio(values, weights, after[use], cluster, model)
        made.append(replace(found, se=float(np.hypot(found.se, doubt))) if doubt else found)
    return made[0], made[1], how


def _at_equal_starts(y: Floats, weight: Floats, after: Bools, inside: dict[str, Floats], model: Fit) -> tuple[Floats, float]:
    """Take off what a model says of server starts; returns the values, and the standard error that this adds to a log ratio."""
    starts = [k for k in model.names if k.startswith("run:") and k in inside and model.vif[model.names.index(k)] < VIF_LIMIT]
    if not starts or not after.any() or after.all():
        return y, 0.0
    moved = {}
    values = y
    for k in starts:
        beta = model.combination({k: 1.0})[0]
        x = inside[k]
        moved[k] = float((weight * x)[after].sum() / weight[after].sum() - (weight * x)[~after].sum() / weight[~after].sum())
        values = values - beta * (x - float((weight * x).sum() / weight.sum()))
    return values, model.combination(moved)[1] / max(model.mean, 1e-12)


def step_weight(panel: Panel) -> Floats:
    """How many steps the first row of a step stands for."""
    return panel.weight if panel.windows else np.ones(len(panel))


def token_weight(panel: Panel) -> Floats:
    """How many request-steps a row of tokens stands for: a window of K steps of n requests is K times n of them."""
    if panel.windows:
        return np.where(np.isfinite(panel.batch), panel.weight * panel.batch, panel.weight)
    return np.ones(len(panel))


def judge(step: LogRatio, tokens: LogRatio, share: Interval, level: float, least: float, strict: float) -> str:
    """Name the part that a slow-down comes from: step_time, acceptance, both, nothing or cannot_tell.

    A difference is shown at the level ``strict``; a slow-down is ruled out at ``level``.
    """
    if not (step.known and tokens.known) or not (np.isfinite(step.se) and np.isfinite(tokens.se)):
        return "cannot_tell"
    total = step.log - tokens.log
    se = float(np.hypot(step.se, tokens.se))
    dof = min(step.dof, tokens.dof)
    t = float(stats.t.ppf(0.5 + level / 2, dof))
    slow = step.differs(strict) and step.log >= least / 2
    few = tokens.differs(strict) and tokens.log <= -least / 2
    if total - float(stats.t.ppf(0.5 + strict / 2, dof)) * se <= 0 or total < least or share.value is None:
        # no slow-down shown: nothing, unless one that counts is still possible
        return "nothing" if total + t * se < least else "cannot_tell"
    if share.value >= MOSTLY and slow:
        return "step_time"
    if share.value <= 1 - MOSTLY and few:
        return "acceptance"
    if slow and few:
        return "both"
    return "step_time" if slow else "acceptance" if few else "cannot_tell"


def comparison(
    kind: str,
    before: str,
    after_name: str,
    panel: Panel,
    rows: Bools,
    after: Bools,
    terms_step: dict[str, Floats],
    terms_tokens: dict[str, Floats],
    models: tuple[Fit | None, Fit | None] = (None, None),
    *,
    level: float,
    least: float,
    seed: int,
    strict: float | None = None,
) -> tuple[Comparison, LogRatio, LogRatio]:
    """Compare two groups of rows; see ``ratios`` and ``judge``, which takes the level ``strict`` where one is given."""
    step, tokens, how = ratios(panel, rows, after, terms_step, terms_tokens, models)
    share_s, share_a = shares(step, tokens, level, seed)
    verdict = judge(step, tokens, share_s, level, least, strict or level)
    both = step.known and tokens.known
    speed = (
        LogRatio(np.nan, np.nan, tokens.log - step.log, float(np.hypot(step.se, tokens.se)), min(step.dof, tokens.dof)) if both else UNKNOWN
    )
    counts = {}
    for name, mask in (("before", rows & ~after), ("after", rows & after)):
        counts[f"requests_{name}"] = len(np.unique(panel.cluster[mask & panel.known]))
        counts[f"request_steps_{name}"] = int((mask & panel.counted).sum())
        counts[f"timed_steps_{name}"] = int((mask & panel.timed).sum())
    reason = None
    if not both:
        lacking, has = ("step time", np.isfinite(panel.step_ms)) if not step.known else ("number of tokens", panel.counted)
        without = [
            f"{name}: {'no row' if not mask.any() else f'none of {int(mask.sum())} rows has a {lacking}'}"
            for name, mask in ((before, rows & ~after), (after_name, rows & after))
            if not (mask & has).any()
        ]
        reason = "; ".join(without) or f"the {lacking} of one group is not above zero"
    elif how == "stretches":
        reason = f"fewer than {FEWEST_REQUESTS} different requests are known: the intervals rest on stretches of steps, "
        reason += "and how much texts differ is not in them"

    def number(x: float) -> float | None:
        return float(x) if np.isfinite(x) else None

    made = Comparison(
        kind=kind,
        before=before,
        after=after_name,
        verdict=verdict,
        sentence="",
        step_time_before_ms=number(step.before),
        step_time_after_ms=number(step.after),
        tokens_before=number(tokens.before),
        tokens_after=number(tokens.after),
        speed_before=number(1000 * tokens.before / step.before) if both else None,
        speed_after=number(1000 * tokens.after / step.after) if both else None,
        step_time_ratio=step.interval(level),
        tokens_ratio=tokens.interval(level),
        speed_ratio=speed.interval(level),
        share_step_time=share_s,
        share_acceptance=share_a,
        rows=counts,
        interval_from=how if both else None,
        reason=reason,
    )
    return made, step, tokens
