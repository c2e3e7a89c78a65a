"""Two groups of rows: how speeds differ, and how much of it is the mix, the step time at equal mix, and the tokens at equal mix.

Speed of a request is tokens per step over step time, so on the log scale the parts add up; ``metrics.part_estimates`` estimates them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from ddtree_metrics.diagnosis.causes import STEP, TOKENS
from ddtree_metrics.diagnosis.cells import FEWEST_REQUESTS, Cells, seen_weight
from ddtree_metrics.diagnosis.reasons import Reason, Why, because
from ddtree_metrics.diagnosis.result import Comparison
from ddtree_metrics.diagnosis.step_model import BEND, LEAST_PART
from ddtree_metrics.diagnosis.study import Effect, Findings, Study
from ddtree_metrics.metrics.confounding import APART
from ddtree_metrics.metrics.doubt import Estimate, Interval, Partitions
from ddtree_metrics.metrics.part_estimates import PartEstimates, TwoSides, estimate_parts
from ddtree_metrics.metrics.shares import UNKNOWN_SHARES, Divided, Errors, Parts, divide, named, three_parts
from ddtree_metrics.steps.basis import Basis
from ddtree_metrics.steps.frames import Bools, Floats, Ints


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
    step, tokens, speed : Estimate
        Log of after by before, as logged.
    step_equal, tokens_equal : Estimate
        The same at equal mix of contexts, batches and what else is measured; unknown where it was not asked or cannot be had.
    mix : Estimate
        Log of what the mix did to speed.
    found : PartEstimates
        What the three parts were estimated to be.
    stalls : Estimate
        What stalls add to the mean step time; within ``step_equal``.
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
    speed: Estimate = field(default_factory=Estimate)
    step_equal: Estimate = field(default_factory=Estimate)
    tokens_equal: Estimate = field(default_factory=Estimate)
    mix: Estimate = field(default_factory=Estimate)
    found: PartEstimates = field(default_factory=PartEstimates)
    stalls: Estimate = field(default_factory=Estimate)
    held: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    independent: str = "requests"
    asked_equal: bool = False
    reasons: list[Reason] = field(default_factory=list)

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
    for (one, other), good, lacking in ((values[0], timed, STEP), (values[1], counted, TOKENS)):
        if not (one > 0 and other > 0):
            made.reasons += _missing(part, good, lacking, before, after, one, other)
    _estimate(made, panel, part, (ms, tokens), found, asked, equal=equal)
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


BY_CLASSES = ("context", "batch")
"""What two groups are always compared at equal values of; ``metrics.attribution`` holds the same equal."""


def _estimate(
    made: Contrast, panel: Basis, part: Ints, values: tuple[Floats, Floats], found: Findings, asked: Study, *, equal: bool
) -> None:
    """Add both ratios as logged; and where it is asked the three parts: what the mix did, and both numbers at equal mix.

    Context and batch size are held equal by classes. What else is measured is held equal where by the models it may make a difference
    that counts: a setting, or a yes or no, by classes too, and any other quantity by its line, whose doubt is added.
    """
    lacking = (found.context_lacks(STEP) or found.context_lacks(TOKENS)) if equal else None
    apart = _not_told_apart(found) if equal and lacking is None else None
    if lacking is not None:
        made.reasons.append(replace(lacking, kind=Why.CONTEXT_UNKNOWN))
    elif apart is not None:
        made.reasons.append(because(Why.NO_OVERLAP, term=apart))
    equal = equal and lacking is None and apart is None
    more = [e for e in found.effects if equal and e.cause.term not in BY_CLASSES and _may_matter(e, asked)]
    lines = [e for e in more if not (e.cause.unit.binary or e.cause.setting)]
    columns = {"context": panel.context, "batch": panel.batch} | {e.cause.term: e.cause.column(panel) for e in more if e not in lines}
    made.found = estimate_parts(_two_sides(made, panel, part, values, columns), floor=math.sqrt(2) * asked.floor, equal=equal, lone=True)
    made.step, made.tokens, made.speed = made.found.step, made.found.tokens, made.found.speed
    if not made.found.held:
        if made.found.apart_in is not None:
            made.reasons.append(because(Why.NO_OVERLAP, term=made.found.apart_in))
        return
    made.step_equal, made.tokens_equal, made.mix = made.found.step_equal, made.found.tokens_equal, made.found.mix
    for e in lines:
        _take_off(made, e)
    held = {*made.found.held, *(e.cause.term for e in lines)}
    made.held = tuple(dict.fromkeys(c.term for c in asked.causes if c.term in held))
    if found.steps.model is not None:
        made.stalls = _stalls(found.steps.cells, found.steps.model.fitted, found.steps.model.parts)


def _two_sides(made: Contrast, panel: Basis, part: Ints, values: tuple[Floats, Floats], columns: dict[str, Floats]) -> TwoSides:
    """Put the rows of both groups together."""
    rows = np.flatnonzero(part > 0)
    owner = panel.text if made.independent == "requests" else np.arange(len(panel)) if panel.windows else panel.stretch
    heads = np.zeros(int(panel.step.max(initial=-1)) + 1, np.int64)
    heads[panel.step[panel.first]] = owner[panel.first]
    return TwoSides(
        side=part[rows] - 1,
        ms=values[0][rows],
        tokens=values[1][rows],
        weight=seen_weight(panel)[rows],
        owner=owner[rows].astype(np.int64),
        lead=heads[panel.step[rows]],
        held={name: column[rows] for name, column in columns.items() if np.isfinite(column[rows]).any()},
        time_us=panel.time_us[rows],
        run=panel.run[rows].astype(np.int64),
    )


def _not_told_apart(found: Findings) -> str | None:
    """Return the quantity, not held equal by classes, that changes together with the group, if there is one."""
    model = found.steps.model
    if model is None or "group" not in model.times or model.vif["group"] <= APART:
        return None
    return next((p for p in model.partners("group", 0.5) if p not in BY_CLASSES and not p.startswith(BEND)), None)


def _may_matter(e: Effect, asked: Study) -> bool:
    """Whether a cause may make a difference of speed between the groups that counts, as far as it is known."""
    return e.part.sure and max(abs(end) for end in e.part.ends(asked.level)) > asked.least / 2


def _take_off(made: Contrast, e: Effect) -> None:
    """Take what a line says of a quantity off the number at equal mix, and give it to the mix; with its doubt."""
    shift = Estimate(-e.part.value if e.cause.on == STEP else e.part.value, e.part.se, e.part.dof)
    if e.cause.on == STEP:
        made.step_equal = made.step_equal.minus(shift)
    else:
        made.tokens_equal = made.tokens_equal.minus(shift)
    made.mix = Estimate(made.mix.value + e.part.value, float(np.hypot(made.mix.se, e.part.se)), min(made.mix.dof, e.part.dof))
    if made.found.covariance is not None:
        i = 1 if e.cause.on == STEP else 2
        turned = np.zeros(3)
        turned[[0, i]] = 1.0, -1.0
        made.found.covariance = made.found.covariance + e.part.se**2 * np.outer(turned, turned)


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


# -- what follows ------------------------------------------------------------------------------------------------------------------


def divided(made: Contrast, level: float, seed: int) -> Divided:
    """Return the shares of the three parts in a change of speed; of the two as logged where the mix is not a question or not known."""
    if not made.speed.sure or made.found.covariance is None:
        return Divided(UNKNOWN_SHARES)
    parts = made.parts or Parts(0.0, -made.step.value, made.tokens.value)
    return divide(parts, Errors(made.found.covariance, made.found.dof, made.speed.se), level=level, seed=seed)


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
    most = named(Parts(0.0, -step.value, tokens.value), Errors(np.diag([0.0, step.se**2, tokens.se**2]), speed.dof, speed.se))
    if most == ("step time",) and moved_step:
        return Judged("step_time", direction)
    if most == ("acceptance",) and moved_tokens:
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
    shares = divided(made, level, seed)
    mix_share, step_share, token_share = shares.shares
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
        mix_ratio=made.mix.ratio(level),
        share_mix=mix_share if made.parts is not None else Interval(unit="share"),
        shares_reason=shares.reason,
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


__all__ = ["Contrast", "Judged", "contrast", "judge", "told"]
