"""Two groups of rows: how speeds differ, and how much of it is the mix, the step time at equal mix, and the tokens at equal mix.

Speed of a request is tokens per step over step time, so on the log scale the parts add up (``metrics.attribution.three_parts``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from ddtree_metrics.diagnosis.causes import STEP, TOKENS
from ddtree_metrics.diagnosis.cells import FEWEST_REQUESTS, Cells, seen_weight
from ddtree_metrics.diagnosis.doubt import Estimate, Partitions
from ddtree_metrics.diagnosis.reasons import Reason, Why, because
from ddtree_metrics.diagnosis.result import Comparison, Interval
from ddtree_metrics.diagnosis.step_model import BEND, LEAST_PART, StepModel, fit_steps
from ddtree_metrics.diagnosis.study import Findings, Study, overlap
from ddtree_metrics.metrics.confounding import APART
from ddtree_metrics.metrics.shares import AGAINST, MOSTLY, Parts, three_parts
from ddtree_metrics.steps.basis import Basis
from ddtree_metrics.steps.frames import Bools, Floats, Ints

DRAWS = 4000


@dataclass(frozen=True, slots=True)
class Side:
    """Mean step time (ms) that request-steps saw, and mean tokens per step, of one group."""

    ms: float = math.nan
    tokens: float = math.nan

    @property
    def speed(self) -> float:
        """Tokens a second of one request."""
        return 1000 * self.tokens / self.ms if self.ms > 0 else math.nan


@dataclass(slots=True)
class Contrast:
    """What two groups differ in, before it is said.

    Attributes
    ----------
    kind, before, after : str
        See ``Comparison``.
    sides : tuple of Side
        Both groups as logged.
    step, tokens : Estimate
        Log of after by before, as logged.
    step_equal, tokens_equal : Estimate
        The same at equal mix of contexts, batches and what else is measured; unknown where it was not asked or cannot be had.
    usual, stalls : Estimate
        ``step_equal`` without stalls, and what stalls add.
    parts : Parts
        Mix, step time at equal mix and tokens at equal mix.
    held : tuple of str
        Terms held equal.
    counts : dict of str to int
        Requests, request-steps and timed steps of each side.
    independent : str
        ``requests`` or ``stretches``.
    reasons : list of Reason
        Why something cannot be told.
    """

    kind: str
    before: str
    after: str
    sides: tuple[Side, Side] = (Side(), Side())
    step: Estimate = field(default_factory=Estimate)
    tokens: Estimate = field(default_factory=Estimate)
    step_equal: Estimate = field(default_factory=Estimate)
    tokens_equal: Estimate = field(default_factory=Estimate)
    usual: Estimate = field(default_factory=Estimate)
    stalls: Estimate = field(default_factory=Estimate)
    held: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    independent: str = "requests"
    asked_equal: bool = False
    reasons: list[Reason] = field(default_factory=list)

    @property
    def speed(self) -> Estimate:
        """Log of speed after by speed before, as logged."""
        return self.tokens.minus(self.step)

    @property
    def speed_equal(self) -> Estimate:
        """The same at equal mix."""
        return self.tokens_equal.minus(self.step_equal)

    @property
    def parts(self) -> Parts | None:
        """The three parts, where all are known."""
        if not (self.step.known and self.tokens.known and self.step_equal.known and self.tokens_equal.known):
            return None
        return three_parts(self.step.value, self.tokens.value, self.step_equal.value, self.tokens_equal.value)


def contrast(
    kind: str, before: str, after: str, panel: Basis, part: Ints, found: Findings, asked: Study, *, equal: bool, level_out: bool = False
) -> Contrast:
    """Compare the rows of two groups.

    Parameters
    ----------
    kind, before, after : str
        What is compared, and the names of the groups.
    panel : Basis
        All rows.
    part : ndarray of int
        1 before, 2 after, 0 neither.
    found : Findings
        Models of these rows; with a term for the group if ``equal``.
    asked : Study
        How sure to be.
    equal : bool
        Whether to compare at equal values of what is measured.
    level_out : bool
        Whether what starts and breaks do is taken off first: groups that were not chosen by them count all alike.
    """
    made = Contrast(kind, before, after, asked_equal=equal)
    made.counts, made.independent = _counts(panel, part)
    weight = seen_weight(panel)
    ms, tokens = panel.step_ms, panel.tokens
    timed, counted = np.isfinite(ms), np.isfinite(tokens)
    if level_out:
        ms, tokens = _levelled(panel, found, ms, tokens)
    values = []
    for y, good in ((ms, timed), (tokens, counted)):
        values.append([_mean(y, weight, good & (part == k)) for k in (1, 2)])
    made.sides = (Side(values[0][0], values[1][0]), Side(values[0][1], values[1][1]))
    for name, one, other, good, lacking in (
        ("step", values[0][0], values[0][1], timed, STEP),
        ("tokens", values[1][0], values[1][1], counted, TOKENS),
    ):
        if not (one > 0 and other > 0):
            made.reasons += _missing(part, good, lacking, before, after, one, other)
            continue
        se, dof = _noise(found, part, name)
        setattr(made, name, Estimate(math.log(other / one), se, dof))
    if equal:
        _at_equal_mix(made, panel, part, found, asked)
    if made.independent == "stretches" and made.step.known and made.tokens.known:
        made.reasons.append(because(Why.STRETCHES, least=FEWEST_REQUESTS))
    return made


def _mean(y: Floats, weight: Floats, rows: Bools) -> float:
    return float((weight[rows] * y[rows]).sum() / weight[rows].sum()) if rows.any() else math.nan


def _counts(panel: Basis, part: Ints) -> tuple[dict[str, int], str]:
    counts: dict[str, int] = {}
    for name, k in (("before", 1), ("after", 2)):
        mask = part == k
        counts[f"requests_{name}"] = len(np.unique(panel.cluster[mask & panel.known]))
        counts[f"request_steps_{name}"] = int((mask & panel.counted).sum())
        counts[f"timed_steps_{name}"] = int((mask & panel.timed).sum())
    known = panel.known & (part > 0)
    few = len(np.unique(panel.text[known])) < FEWEST_REQUESTS
    return counts, "stretches" if few else "requests"


def _missing(part: Ints, good: Bools, lacking: str, before: str, after: str, one: float, other: float) -> list[Reason]:
    made = []
    for name, k, value in ((before, 1, one), (after, 2, other)):
        mine = part == k
        if not mine.any() or not (mine & good).any():
            made.append(because(Why.EMPTY_GROUP, group=name, rows=int(mine.sum()), lacking=lacking))
        elif not value > 0:
            made.append(because(Why.NOT_POSITIVE, group=name, lacking=lacking))
    return made


def _levelled(panel: Basis, found: Findings, ms: Floats, tokens: Floats) -> tuple[Floats, Floats]:
    """Take off what the models say of starts and breaks, so that a group with more rows of one start is compared fairly."""
    model, cells = found.steps.model, found.steps.cells
    if model is not None and model.times:
        factor = np.ones(len(panel))
        level = model.levels() / math.exp(float(np.average(np.log(model.levels()), weights=cells.weight)))
        told = [n for n in model.times if model.vif[n] <= APART]
        if len(told) == len(model.times):
            whole = np.ones(int(panel.step.max(initial=-1)) + 1)
            whole[panel.step[cells.rows]] = level[cells.member]
            factor = whole[panel.step]
        ms = ms / factor
    other, mine = found.tokens.model, found.tokens.cells
    if other is not None and other.between is not None:
        names = [n for n in other.between.names if n.startswith(("run:", "break:")) and other.between.vif[n] <= APART]
        if names:
            shift = np.zeros(len(mine))
            for name in names:
                column = (mine.run == int(name[4:])).astype(float) if name.startswith("run:") else None
                if column is not None:
                    shift += other.between.combination({name: 1.0}).value * (column - np.average(column, weights=mine.weight))
            moved = np.zeros(len(panel))
            moved[mine.rows] = shift[mine.member]
            tokens = tokens - moved
    return ms, tokens


def _noise(found: Findings, part: Ints, name: str) -> tuple[float, int]:
    """Return the standard error of a log ratio of means for the contexts and batches that were served: what varies is noise and text."""
    if name == "step":
        model, cells = found.steps.model, found.steps.cells
        if model is None:
            return math.nan, 1
        levels = np.exp(np.average(np.log(cells.mean / model.fitted)))
        left = cells.mean / (model.fitted * levels)
        return _weighted_noise(left, cells.weight, cells.part, model.parts)
    tokens, mine = found.tokens.model, found.tokens.cells
    if tokens is None:
        return math.nan, 1
    within, between = tokens.within, tokens.between
    expected = tokens.raw[tokens.person] if between is None else (tokens.raw - between.residual)[tokens.person]
    if within is not None:
        base = mine.mean - within.residual - tokens.raw[tokens.person]
        expected = expected + base
    left = 1.0 + (mine.mean - expected) / max(tokens.mean, 1e-9)
    parts = Partitions.of(mine.owner, mine.time_us, mine.run, blocks=False)
    return _weighted_noise(left, mine.weight, mine.part, parts)


def _weighted_noise(left: Floats, weight: Floats, part: Ints, parts: Partitions) -> tuple[float, int]:
    score = np.zeros(len(left))
    for k, sign in ((1, -1.0), (2, 1.0)):
        mine = part == k
        if not mine.any():
            return math.nan, 1
        w = weight[mine] / weight[mine].sum()
        middle = float((w * left[mine]).sum())
        score[mine] = sign * w * (left[mine] - middle) / max(middle, 1e-9)
    value, dof = parts.variance(score, 2)
    return math.sqrt(value), dof


# -- at equal mix ----------------------------------------------------------------------------------------------------------------


def _at_equal_mix(made: Contrast, panel: Basis, part: Ints, found: Findings, asked: Study) -> None:
    """Add the ratios at equal mix: the models' values over the mix of both groups, each counted equally."""
    lacking = found.context_lacks(STEP) or found.context_lacks(TOKENS)
    if lacking is not None:
        made.reasons.append(replace(lacking, kind=Why.CONTEXT_UNKNOWN))
        return
    _steps_at_equal_mix(made, found, asked)
    _tokens_at_equal_mix(made, found)
    held = {n for n in (*found.steps.columns, *found.tokens.columns) if not n.startswith(BEND)}
    made.held = tuple(c for c in dict.fromkeys(cause.term for cause in asked.causes) if c in held)


def _steps_at_equal_mix(made: Contrast, found: Findings, asked: Study) -> None:
    model, cells = found.steps.model, found.steps.cells
    if model is None or "group" not in model.times:
        return
    common, apart = overlap(found.steps.columns, cells.part)
    if apart is not None:
        made.reasons.append(because(Why.NO_OVERLAP, term=apart))
        return
    if model.vif["group"] > APART:
        made.reasons.append(because(Why.NO_OVERLAP, term=(model.partners("group", 0.5) or ["context"])[0]))
        return
    column = model.times.index("group")
    weight = np.where(common, cells.weight, 0.0)
    for k in (1, 2):
        weight[cells.part == k] /= max(weight[cells.part == k].sum(), 1e-300)
    rows = np.flatnonzero(weight > 0)
    # the same step time for all of the mix: group off, group on
    model_2 = _with_slopes(found, model)
    used = model_2 or model
    x, z = used.x[rows], used.z[rows].copy()
    mix = weight[rows] / weight[rows].sum()
    x0, x1 = x.copy(), x.copy()
    off, on = z.copy(), z.copy()
    off[:, column], on[:, column] = 0.0, 1.0
    if model_2 is not None:
        i, j = 1 + used.added.index("context"), 1 + used.added.index("context:group")
        x0[:, j], x1[:, j] = 0.0, x[:, i]

    def ratio(beta: Floats) -> float:
        return float(np.log((mix * used.at(beta, x1, on)).sum()) - np.log((mix * used.at(beta, x0, off)).sum()))

    usual = used.estimate(ratio)
    floor = math.sqrt(2) * asked.floor
    made.usual = usual.with_floor(floor)
    made.stalls = _stalls(cells, used.fitted, model.parts)
    both = math.hypot(usual.se, made.stalls.se) if made.stalls.sure else usual.se
    made.step_equal = Estimate(usual.value + (made.stalls.value if made.stalls.known else 0.0), both, usual.dof).with_floor(floor)


def _with_slopes(found: Findings, model: StepModel) -> StepModel | None:
    """Return a model in which the slope with context may differ between the groups, where it clearly does."""
    if "context" not in model.added or found.steps.bends:
        return None
    cells = found.steps.cells
    x = found.steps.columns["context"]
    group = model.z[:, model.times.index("group")]
    if min(np.ptp(x[group == k]) if (group == k).sum() > 8 else 0.0 for k in (0, 1)) < 0.3 * np.ptp(x):
        return None
    added = {**{k: model.x[:, 1 + i] for i, k in enumerate(model.added)}, "context:group": x * group}
    times = {k: model.z[:, i] for i, k in enumerate(model.times)}
    other = fit_steps(cells.usual, cells.weight, added, times, model.parts)
    if other is None or other.vif["group"] > APART * 2:
        return None
    e = other.coefficient("context:group")
    return other if e.sure and abs(e.value) > 3.0 * e.se else None


def _stalls(cells: Cells, fitted: Floats, parts: Partitions) -> Estimate:
    """Return the log of what stalls add to the mean step time after by what they add before."""
    left = cells.mean / np.maximum(fitted, LEAST_PART)
    sides = []
    for k in (1, 2):
        mine = cells.part == k
        w = cells.weight[mine]
        usual = float(np.exp(np.median(np.log(np.maximum(cells.usual[mine] / fitted[mine], 1e-9)))))
        sides.append(float((w * left[mine]).sum() / w.sum()) / usual)
    se, dof = _weighted_noise(left, cells.weight, cells.part, parts)
    quiet, _ = _weighted_noise(cells.usual / np.maximum(fitted, LEAST_PART), cells.weight, cells.part, parts)
    own = math.sqrt(max(se**2 - quiet**2, 0.0))
    return Estimate(math.log(max(sides[1], 1e-9) / max(sides[0], 1e-9)), own, dof)


def _tokens_at_equal_mix(made: Contrast, found: Findings) -> None:
    model = found.tokens.equal
    if found.tokens.apart is not None:
        made.reasons.append(because(Why.NO_OVERLAP, term=found.tokens.apart))
        return
    if model is None or model.between is None or "group" not in model.between.names:
        return
    if model.between.vif["group"] > APART:
        made.reasons.append(because(Why.NO_OVERLAP, term="context"))
        return
    change = model.between.combination({"group": 1.0})
    share = float(np.average(model.columns["group"], weights=model.weight))
    low = max(model.mean - share * change.value, 0.02 * model.mean)
    high = max(model.mean + (1 - share) * change.value, 0.02 * model.mean)
    steep = share / low + (1 - share) / high
    made.tokens_equal = Estimate(math.log(high / low), steep * change.se, change.dof)


# -- what follows ------------------------------------------------------------------------------------------------------------------


def shares(made: Contrast, level: float, seed: int) -> tuple[Interval, Interval]:
    """Return the parts of step time and of tokens per step in a change of speed as logged, which add up to 1.

    They are unknown where either ratio is, where the interval of the speed ratio holds 1 (there is then nothing to divide), and where one
    number worked against the change: factors then say what shares cannot.
    """
    nothing = Interval(unit="share")
    total = made.speed
    if not total.sure or total.value == 0 or abs(total.value) <= total.reach(level):
        return nothing, nothing
    if not -AGAINST <= -made.step.value / total.value <= 1 + AGAINST:
        return nothing, nothing
    rng = np.random.default_rng(seed)
    s = made.step.value + made.step.se * rng.standard_t(made.step.dof, DRAWS)
    t = made.tokens.value + made.tokens.se * rng.standard_t(made.tokens.dof, DRAWS)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = s / (s - t)
    drawn = drawn[np.sign(t - s) == np.sign(total.value)]
    low, high = np.quantile(drawn, [0.5 - level / 2, 0.5 + level / 2])
    share = -made.step.value / total.value
    return Interval(share, float(low), float(high), "share"), Interval(1 - share, 1 - float(high), 1 - float(low), "share")


@dataclass(frozen=True, slots=True)
class Judged:
    """What a change of both numbers is called.

    Attributes
    ----------
    kind : str
        ``step_time``, ``acceptance``, ``both``, ``nothing`` or ``cannot_tell``.
    direction : str
        ``slower``, ``faster``, ``unchanged``, ``mixed`` (both moved, against each other) or ``cannot_tell``.
    within : float or None
        For ``unchanged``: speed changed by no more than this share.
    """

    kind: str
    direction: str
    within: float | None = None


WIDE = 2.0
"""No change is shown, and none beyond so many times the least that counts is possible: unchanged."""


def judge(step: Estimate, tokens: Estimate, asked: Study, *, strict: float | None = None) -> Judged:
    """Name what a change of speed comes from; in both directions alike.

    A difference is shown at the level ``strict``; a change is ruled out at ``asked.level``.
    """
    speed = tokens.minus(step)
    if not speed.sure:
        return Judged("cannot_tell", "cannot_tell")
    sure = strict or asked.level
    moved_step = abs(step.value) > step.reach(sure) and abs(step.value) >= asked.least / 2
    moved_tokens = abs(tokens.value) > tokens.reach(sure) and abs(tokens.value) >= asked.least / 2
    changed = abs(speed.value) >= asked.least and abs(speed.value) > speed.reach(sure)
    if not changed:
        one = [e for e, m in ((step, moved_step), (tokens, moved_tokens)) if m and abs(e.value) >= asked.least]
        if len(one) == 1 and moved_step != moved_tokens and abs(speed.value) >= asked.least / 2:
            # one number moved for certain; the noise of the other does not take that back
            kind = "step_time" if moved_step else "acceptance"
            return Judged(kind, "slower" if speed.value < 0 else "faster")
        low, high = speed.ends(asked.level)
        bound = max(abs(low), abs(high))
        if moved_step and moved_tokens and step.value * tokens.value > 0:
            return Judged("both", "mixed")
        if bound < WIDE * asked.least:
            return Judged("nothing", "unchanged", 1 - math.exp(-bound))
        return Judged("cannot_tell", "cannot_tell")
    direction = "slower" if speed.value < 0 else "faster"
    share = -step.value / speed.value
    if share >= MOSTLY and moved_step:
        return Judged("step_time", direction)
    if share <= 1 - MOSTLY and moved_tokens:
        return Judged("acceptance", direction)
    if moved_step and moved_tokens:
        return Judged("both", direction)
    if moved_step or moved_tokens:
        return Judged("step_time" if moved_step else "acceptance", direction)
    return Judged("cannot_tell", direction)


def told(made: Contrast, raw: Judged, equal: Judged | None, asked: Study, seed: int) -> Comparison:
    """Make the comparison that is handed out; its sentence is made later."""

    def number(x: float) -> float | None:
        return float(x) if math.isfinite(x) else None

    level = asked.level
    step_share, token_share = shares(made, level, seed)
    parts = made.parts
    return Comparison(
        kind=made.kind,
        before=made.before,
        after=made.after,
        verdict=raw.kind,
        direction=raw.direction,
        sentence="",
        step_time_before_ms=number(made.sides[0].ms),
        step_time_after_ms=number(made.sides[1].ms),
        tokens_before=number(made.sides[0].tokens),
        tokens_after=number(made.sides[1].tokens),
        speed_before=number(made.sides[0].speed),
        speed_after=number(made.sides[1].speed),
        step_time_ratio=made.step.ratio(level),
        tokens_ratio=made.tokens.ratio(level),
        speed_ratio=made.speed.ratio(level),
        step_time_ratio_equal=made.step_equal.ratio(level),
        tokens_ratio_equal=made.tokens_equal.ratio(level),
        speed_ratio_equal=made.speed_equal.ratio(level),
        stalls_ratio=made.stalls.ratio(level),
        mix_ratio=Interval(math.exp(parts.mix)) if parts is not None else Interval(),
        share_step_time=step_share,
        share_acceptance=token_share,
        verdict_equal=equal.kind if equal is not None and made.speed_equal.known else None,
        direction_equal=equal.direction if equal is not None and made.speed_equal.known else None,
        unchanged_within=equal.within if equal is not None else raw.within,
        equal_of=made.held,
        rows=made.counts,
        interval_from=made.independent if made.step.known and made.tokens.known else None,
        reasons=tuple(made.reasons),
    )


__all__ = ["Contrast", "Judged", "contrast", "judge", "shares", "told"]
