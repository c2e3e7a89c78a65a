"""Fit both models to some rows of a log, and judge every cause by them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ddtree_metrics.diagnosis.breaks import Break
from ddtree_metrics.diagnosis.causes import BETWEEN, CAUSES, RARE, REQUESTS, SAME_CONTEXT, STEP, TOKENS, Cause
from ddtree_metrics.diagnosis.cells import FEWEST_REQUESTS, Cells, step_cells, token_cells
from ddtree_metrics.diagnosis.reasons import Reason, Why, because
from ddtree_metrics.diagnosis.result import CANNOT_TELL, REFUTED, SUPPORTED
from ddtree_metrics.diagnosis.step_model import BEND, StepModel, fit_steps
from ddtree_metrics.diagnosis.token_model import TokenModel, fit_tokens, halves, likelihood, linear
from ddtree_metrics.metrics.confounding import APART
from ddtree_metrics.metrics.doubt import Estimate, Partitions
from ddtree_metrics.steps.basis import Basis
from ddtree_metrics.steps.frames import Bools, Floats, Ints

KNOWN_SHARE = 0.8
"""A quantity that is known for a smaller share of rows than this is not tested."""

BENDS_FROM = 24
"""With so many requests tokens per step may bend with context, where two groups are compared."""

TIMES_LIKELIER = math.log(8.0)
"""One of two explanations is named alone if the data are so many times likelier under it (log): wrong in less than 2 % at worst."""

LONG_UPTIME_MIN = 30.0
"""Uptime is a cause only where one start was watched for so long, or several starts show the same."""

SEVERAL_UPTIME_MIN = 5.0
"""... each for so long."""

COMMON = 0.1
"""Two groups overlap in a quantity if each has at least this share of its cells, and three, where the other has some too."""

NEAR = 0.1
"""The range of a group is wider by this share of itself when it is asked what overlaps: equal means about equal."""

KNOTS = (0.33, 0.66)
"""Quantiles of context at which step time may bend, where two groups are compared."""

SHARP = 3.5
"""A bend is kept if it is so many standard errors from none."""


@dataclass(frozen=True, slots=True)
class Study:
    """What to study, and how sure to be.

    Attributes
    ----------
    level, least : float
        Level of the intervals; the smallest change of speed (on the log scale) that counts.
    floor : float
        Standard deviation of the log of step time from start to start.
    causes : sequence of Cause
        What to test.
    """

    level: float
    least: float
    floor: float
    causes: Sequence[Cause] = CAUSES

    @property
    def strict(self) -> float:
        """The level at which a cause is supported: widened for as many tests as there are causes (Bonferroni)."""
        return 1 - (1 - self.level) / 8


@dataclass(slots=True)
class Effect:
    """What one cause does to one of the two numbers.

    Attributes
    ----------
    cause : Cause
        Which.
    status : str
        ``supported``, ``refuted`` or ``cannot tell``.
    speed : Estimate
        Log of speed at the high end of the cause by speed at its low end, at equal values of the others.
    slope : Estimate
        In ms or tokens for each unit.
    low, high : float
        The two ends, in units of the column: 10th and 90th percentile, or no and yes.
    part : Estimate
        The same from the mean of the group before to the mean of the group after, where two groups were given.
    part_low, part_high : float
        Those means.
    rows, requests : int
        What it rests on.
    together_with : tuple of str
        Terms from which it cannot be separated.
    alone : bool
        Whether it would be supported if those were not there.
    goes_with : bool
        Whether it would be supported if what is not known (the context) did not stand behind it.
    reasons : tuple of Reason
        Why it is not told, or what should be known.
    """

    cause: Cause
    status: str = CANNOT_TELL
    speed: Estimate = field(default_factory=Estimate)
    slope: Estimate = field(default_factory=Estimate)
    low: float = math.nan
    high: float = math.nan
    part: Estimate = field(default_factory=Estimate)
    part_low: float = math.nan
    part_high: float = math.nan
    rows: int = 0
    requests: int = 0
    together_with: tuple[str, ...] = ()
    alone: bool = False
    goes_with: bool = False
    reasons: tuple[Reason, ...] = ()

    @property
    def tested(self) -> bool:
        """Whether there was something to test."""
        return self.rows > 0


@dataclass(slots=True)
class Steps:
    """Cells of step times with their terms and the model."""

    cells: Cells
    columns: dict[str, Floats]
    model: StepModel | None
    bends: tuple[str, ...] = ()


@dataclass(slots=True)
class Tokens:
    """Cells of tokens per step with their terms and the model.

    ``equal`` is the model of the requests that lie where both groups have some, for comparing them at equal mix; ``apart`` is the quantity
    in which they do not overlap, if there is one.
    """

    cells: Cells
    columns: dict[str, Floats]
    model: TokenModel | None
    equal: TokenModel | None = None
    apart: str | None = None


@dataclass(slots=True)
class Findings:
    """Both models of some rows, and what they say of each cause."""

    steps: Steps
    tokens: Tokens
    effects: list[Effect]
    lacking: dict[tuple[str, str], Reason]

    def effect(self, key: str, on: str) -> Effect | None:
        """Return the effect of a cause on a number; None if there is no such cause."""
        return next((e for e in self.effects if e.cause.key == key and e.cause.on == on), None)

    def context_lacks(self, on: str) -> Reason | None:
        """Return the reason where the context is known for too few rows for anything to be put down to another cause."""
        found = self.lacking.get(("context", on))
        return found if found is not None and found.kind is Why.NOT_KNOWN else None


def study(panel: Basis, use: Bools, part: Ints, asked: Study, breaks: Sequence[Break] = (), *, own_term: bool = False) -> Findings:
    """Fit both models and judge each cause.

    Parameters
    ----------
    panel : Basis
        All rows.
    use : ndarray of bool
        Those to use.
    part : ndarray of int
        Which group of a comparison a row is of: 1 before, 2 after, 0 neither.
    asked : Study
        How sure to be, and what to test.
    breaks : sequence of Break
        Breaks in time; what follows one is a level of its own.
    own_term : bool
        Whether the group after is a term of its own, for whatever is not measured.
    """
    steps, lacking = _fit_steps(panel, use, part, asked, breaks, own_term)
    tokens, more = _fit_tokens(panel, use, part, asked, breaks, own_term)
    made = Findings(steps, tokens, [], {**lacking, **more})
    for cause in asked.causes:
        found = lacking.get((cause.term, STEP)) if cause.on == STEP else more.get((cause.term, TOKENS))
        if found is not None:
            made.effects.append(Effect(cause, reasons=(found,)))
        elif cause.on == STEP:
            made.effects.append(_judge_step(panel, made.steps, cause, part, asked))
        else:
            made.effects.append(_judge_tokens(made.tokens, cause, part, asked))
    _graph_on_some_rows(panel, use, part, asked, breaks, own_term, made)
    _graph_and_batch(panel, use, made)
    _context_or_generated(made)
    _open_context(made)
    return made


# -- terms ---------------------------------------------------------------------------------------------------------------------


def _columns(
    panel: Basis, cells: Cells, asked: Study, on: str, weight: Floats
) -> tuple[dict[str, Floats], dict[tuple[str, str], Reason], dict[str, Floats]]:
    """Return the causes' columns of the cells, and why others cannot be tested."""
    kept: dict[str, Floats] = {}
    raw: dict[str, Floats] = {}
    lacking: dict[tuple[str, str], Reason] = {}
    n = len(cells.rows)
    for cause in asked.causes:
        if cause.on != on or cause.term in kept or (cause.term, on) in lacking:
            continue
        values = cause.column(panel)
        inside = values[cells.rows]
        known = inside[np.isfinite(inside)]
        reason = _lacks(cause, known, n)
        if reason is not None:
            lacking[cause.term, on] = reason
            continue
        filled = np.where(np.isfinite(values), values, float(known.mean()))
        kept[cause.term] = cells.average(filled, weight)
        raw[cause.term] = values
    return kept, lacking, raw


def _lacks(cause: Cause, known: Floats, n: int) -> Reason | None:
    """Return why a cause cannot be tested on these values, None if it can."""
    what = {"term": cause.term, "on": cause.on}
    if n < 2:
        return because(Why.NO_ROWS, rows=n, **what)
    if len(known) < KNOWN_SHARE * n:
        return because(Why.NOT_KNOWN, known=len(known), rows=n, **what)
    if cause.unit.binary:
        share = float(known.mean())
        if share < RARE:
            return because(Why.NEVER, rows=len(known), **what)
        if share > 1 - RARE:
            return because(Why.ALWAYS, rows=len(known), **what)
        return None
    low, high = float(known.min()), float(known.max())
    few = cause.unit is REQUESTS and 1.0 - np.unique(known, return_counts=True)[1].max() / len(known) < RARE
    if high - low <= cause.unit.least_span or high - low < SAME_CONTEXT * abs(float(known.mean())) or few:
        return because(Why.HARDLY_VARIES, low=low, high=high, **what)
    return None


def _levels(cells: Cells, breaks: Sequence[Break], on: str, *, own_term: bool) -> dict[str, Floats]:
    """Return a yes-or-no term for the group after, or for each server start but the first, and for what follows each break."""
    made: dict[str, Floats] = {}
    if own_term:
        made["group"] = (cells.part == 2).astype(np.float64)
    else:
        numbers, counts = np.unique(cells.run, return_counts=True)
        enough = numbers[counts >= 3]
        for number in enough[1:13]:
            made[f"run:{number}"] = (cells.run == number).astype(np.float64)
    for i, found in enumerate(breaks):
        if found.on == on:
            made[f"break:{i}"] = found.after(cells.run, cells.time_us).astype(np.float64)
    return {k: v for k, v in made.items() if 0 < v.sum() < len(v)}


def _fit_steps(
    panel: Basis, use: Bools, part: Ints, asked: Study, breaks: Sequence[Break], own_term: bool
) -> tuple[Steps, dict[tuple[str, str], Reason]]:
    cells = step_cells(panel, use, part)
    weight = panel.weight if panel.windows else np.ones(len(panel))
    columns, lacking, _ = _columns(panel, cells, asked, STEP, weight)
    columns = {k: v for k, v in columns.items() if np.ptp(v) > 0}
    levels = _levels(cells, breaks, STEP, own_term=own_term)
    made = Steps(cells, columns, None)
    if len(cells) < 3:
        return made, lacking
    parts = Partitions.of(cells.owner, cells.time_us, cells.run)
    model = fit_steps(cells.usual, cells.weight, columns, levels, parts)
    if model is not None and "batch" in model.added and _follows_slow_steps(model, cells):
        # requests overlap because steps are slow: held equal, the batch would take what is to be explained
        lacking["batch", STEP] = because(Why.REVERSED, term="batch", on=STEP)
        columns.pop("batch")
        model = fit_steps(cells.usual, cells.weight, columns, levels, parts)
    if model is not None and "context" in columns:
        made.bends, bent = _bends(cells, columns, levels, model, parts, always=own_term)
        model = bent or model
    made.model = model
    return made, lacking


LOCAL_S = 10.0
"""Within so many seconds a batch that grows makes steps slower at once, if it does ..."""

FEWEST_LOCAL = 3
"""... as far as there are so many stretches of them with more than one batch size."""


def _follows_slow_steps(model: StepModel, cells: Cells) -> bool:
    """Whether a larger batch goes with slower steps over the log, but not within a minute: then it grew because steps were slow."""
    i = 1 + model.added.index("batch")
    x0, x1 = model.x.mean(axis=0)[None, :], model.x.mean(axis=0)[None, :].copy()
    x1[0, i] += 1.0
    none = np.zeros((1, model.z.shape[1]))
    whole = model.between(x0, x1, none, none)
    if not whole.sure or whole.value <= 2.0 * whole.se or (cells.time_us < 0).any():
        return False
    held = model.x.copy()
    held[:, i] = held[:, i].mean()
    left = np.log(cells.usual) - np.log(model.at(model.beta, held, model.z))
    place = ((cells.time_us - cells.time_us.min()) / (LOCAL_S * 1e6)).astype(np.int64)
    _, code = np.unique(np.column_stack([cells.run, place]), axis=0, return_inverse=True)
    code = code.reshape(-1)
    w = model.weight
    total = np.bincount(code, w)
    batch = model.x[:, i]
    y = left - (np.bincount(code, w * left) / total)[code]
    b = batch - (np.bincount(code, w * batch) / total)[code]
    if float((w * b**2).sum()) <= 1e-9 or len(np.unique(code[np.abs(b) > 1e-9])) < FEWEST_LOCAL:
        return False
    fitted = linear(y, w, {"batch": b}, Partitions.of(code, cells.time_us, cells.run, blocks=False), constant=False)
    if fitted is None:
        return False
    local = fitted.combination({"batch": 1.0})
    return likelihood(local, 0.0) - likelihood(local, whole.value, whole.se) > TIMES_LIKELIER


def _bends(
    cells: Cells, columns: dict[str, Floats], levels: dict[str, Floats], straight: StepModel, parts: Partitions, *, always: bool
) -> tuple[tuple[str, ...], StepModel | None]:
    """Let context bend where a line is clearly not enough, or always where groups are compared that may lie on both sides of a bend."""
    x = columns["context"]
    tried = {}
    for i, knot in enumerate(np.unique(np.quantile(x, KNOTS))):
        term = np.maximum(x - knot, 0.0)
        if (term > 0).mean() > 0.08 and (term == 0).mean() > 0.08 and term.std() > 1e-9:
            tried[f"{BEND}{i}"] = term
    if not tried or len(cells) < 12 * (len(columns) + len(levels) + 3):
        return (), None
    best: tuple[float, str] | None = None
    for name, term in tried.items():
        model = fit_steps(cells.usual, cells.weight, {**columns, name: term}, levels, parts)
        if model is None or model.vif["context"] > APART * 4:
            continue
        e = model.coefficient(name)
        score = abs(e.value) / max(e.se, 1e-12)
        if score > (1.5 if always else SHARP) and straight.loss > model.loss and (best is None or score > best[0]):
            best = (score, name)
    if best is None:
        return (), None
    columns[best[1]] = tried[best[1]]
    return (best[1],), fit_steps(cells.usual, cells.weight, columns, levels, parts)


def _fit_tokens(
    panel: Basis, use: Bools, part: Ints, asked: Study, breaks: Sequence[Break], own_term: bool
) -> tuple[Tokens, dict[tuple[str, str], Reason]]:
    cells = token_cells(panel, use, part)
    weight = panel.weight if panel.windows else np.ones(len(panel))
    columns, lacking, _ = _columns(panel, cells, asked, TOKENS, weight)
    made = Tokens(cells, columns, None)
    if len(cells) < 3:
        return made, lacking
    levels = _levels(cells, breaks, TOKENS, own_term=own_term)
    moving = {c.term: columns[c.term] for c in asked.causes if c.on == TOKENS and c.moves and c.term in columns and c.term != "context"}
    if "context" in columns and "generated" not in moving:
        moving["context"] = columns["context"]
    fixed = dict(columns)
    if "context" in columns and "generated" in columns:
        # the length of the prompt is what differs between requests; what they generate is corrected for by the slope within them
        fixed["context"] = columns["context"] - columns["generated"]
        fixed.pop("generated")
    made.model = fit_tokens(cells.mean, cells.weight, cells.person, cells.owner, cells.time_us, moving, fixed, levels=levels)
    if own_term and "group" in levels:
        common, made.apart = overlap(columns, cells.part)
        # a request counts with all of its steps, or not at all
        keep = np.isin(cells.person, np.unique(cells.person[common]))
        if made.apart is None:
            some = cells.take(keep)
            chosen = {
                name: {k: v[keep] for k, v in terms.items()} for name, terms in (("moving", moving), ("fixed", fixed), ("levels", levels))
            }
            if "context" in chosen["fixed"] and len(np.unique(some.person)) >= BENDS_FROM:
                middle = float(np.median(chosen["fixed"]["context"]))
                chosen["fixed"][f"{BEND}context"] = np.maximum(chosen["fixed"]["context"] - middle, 0.0)
            made.equal = fit_tokens(
                some.mean, some.weight, some.person, some.owner, some.time_us, chosen["moving"], chosen["fixed"], levels=chosen["levels"]
            )
    return made, lacking


def overlap(columns: dict[str, Floats], cells_part: Ints) -> tuple[Bools, str | None]:
    """Return the cells that lie where both groups have some, and the quantity in which they do not overlap, if there is one."""
    common = cells_part > 0
    for name, values in columns.items():
        if name.startswith(BEND) or name in ("uptime", "generated"):
            continue
        sides = [values[cells_part == k] for k in (1, 2)]
        ranges = [(float(np.quantile(s, 0.02)), float(np.quantile(s, 0.98))) for s in sides]
        pad = NEAR * max(max(abs(a), abs(b)) for a, b in ranges)
        low, high = max(r[0] for r in ranges) - pad, min(r[1] for r in ranges) + pad
        inside = common & (values >= low) & (values <= high)
        for k in (1, 2):
            mine = cells_part == k
            if (inside & mine).sum() < max(2, COMMON * mine.sum()):
                return inside, name
        common = inside
    return common, None


# -- judging -------------------------------------------------------------------------------------------------------------------


def _ends(cause: Cause, values: Floats, weight: Floats) -> tuple[float, float]:
    if cause.unit.binary:
        return (0.0, 1.0) if set(np.unique(np.round(values, 6))) <= {0.0, 1.0} else (float(values.min()), float(values.max()))
    low, high = (float(q) for q in np.quantile(values, [0.1, 0.9]))
    if high <= low:
        low, high = float(values.min()), float(values.max())
    return low, high


def _verdict(speed: Estimate, asked: Study) -> str:
    """Supported where the strict interval lies beyond the least change that counts; refuted where the plain one lies within it."""
    if not speed.sure:
        return CANNOT_TELL
    if speed.ends(asked.strict)[1] < -asked.least:
        return SUPPORTED
    return REFUTED if speed.ends(asked.level)[0] > -asked.least else CANNOT_TELL


def _judge_step(panel: Basis, steps: Steps, cause: Cause, part: Ints, asked: Study) -> Effect:
    model, cells = steps.model, steps.cells
    made = Effect(cause, rows=len(cells.rows), requests=len(np.unique(cells.owner)))
    if model is None or cause.term not in model.added:
        made.reasons = (because(Why.NO_MODEL, rows=len(cells.rows), on=STEP),)
        return made
    values = steps.columns[cause.term]
    made.low, made.high = _ends(cause, values, cells.weight)
    column = 1 + model.added.index(cause.term)
    at = model.x.mean(axis=0)
    none = np.zeros((1, model.z.shape[1]))

    def line(value: float) -> Floats:
        x = at.copy()
        x[column] = value
        for name in steps.bends if cause.term == "context" else ():
            knot = float((values - steps.columns[name])[steps.columns[name] > 0].min())
            x[1 + model.added.index(name)] = max(value - knot, 0.0)
        return x[None, :]

    slower = model.between(line(made.low), line(made.high), none, none)
    made.speed = Estimate(-slower.value, slower.se, slower.dof)
    made.slope = _slope(model, cause, steps, made)
    if (cells.part == 1).any() and (cells.part == 2).any():
        sides = [float((cells.weight * values)[cells.part == k].sum() / cells.weight[cells.part == k].sum()) for k in (1, 2)]
        made.part_low, made.part_high = sides
        moved = model.between(line(sides[0]), line(sides[1]), none, none)
        made.part = Estimate(-moved.value, moved.se, moved.dof)
    if not model.apart(cause.term):
        partners = [p for p in model.partners(cause.term) if not p.startswith(BEND)] or ["others"]
        made.together_with = tuple(partners[:2])
        alone = _without(steps, cause, partners)
        made.alone = alone is not None and _verdict(alone, asked) == SUPPORTED
        made.status, made.speed, made.slope = CANNOT_TELL, Estimate(), Estimate()
        made.part = Estimate()
        made.reasons = (because(Why.TOGETHER, term=cause.term, others=made.together_with),)
        return made
    made.status = _verdict(made.speed, asked)
    if cause.term == "uptime":
        _long_enough(panel, cells, made)
    if made.status == SUPPORTED and cause.few:
        few = _visits(values, cells, (made.low + made.high) / 2)
        if min(few) < FEWEST_REQUESTS:
            made.status, made.goes_with = CANNOT_TELL, True
            made.reasons = (because(Why.FEW_STEPS, low=few[0], high=few[1], least=FEWEST_REQUESTS, term=cause.term),)
    return made


def _visits(values: Floats, cells: Cells, edge: float) -> tuple[int, int]:
    """Count how often a quantity was on its lower and on its upper side, in the order of time: what is seen once is seen once."""
    order = np.lexsort((cells.time_us, cells.run))
    upper = values[order] > edge
    owner = cells.owner[order]
    new = np.r_[True, (upper[1:] != upper[:-1]) | (owner[1:] != owner[:-1])]
    return int((new & ~upper).sum()), int((new & upper).sum())


def _slope(model: StepModel, cause: Cause, steps: Steps, made: Effect) -> Estimate:
    """Return the slope: the coefficient, or over a bend the mean slope between both ends, as the effect has it."""
    if cause.term != "context" or not steps.bends:
        return model.coefficient(cause.term)
    i = 1 + model.added.index("context")
    x = steps.columns["context"]
    knots = [(1 + model.added.index(n), float((x - steps.columns[n])[steps.columns[n] > 0].min())) for n in steps.bends]

    def mean_slope(beta: Floats) -> float:
        rise = float(beta[i]) * (made.high - made.low)
        for j, knot in knots:
            rise += float(beta[j]) * (max(made.high - knot, 0.0) - max(made.low - knot, 0.0))
        return rise / (made.high - made.low)

    return model.estimate(mean_slope)


def _without(steps: Steps, cause: Cause, partners: Sequence[str]) -> Estimate | None:
    """Return the effect of a cause where those it rises together with are left out."""
    model = steps.model
    if model is None:
        return None
    added = {k: steps.columns[k] for k in model.added if k not in partners}
    times = {k: model.z[:, i] for i, k in enumerate(model.times) if k not in partners}
    other = fit_steps(model.y, model.weight, added, times, model.parts)
    if other is None or cause.term not in other.added:
        return None
    at = other.x.mean(axis=0)
    x0, x1 = at.copy(), at.copy()
    i = 1 + other.added.index(cause.term)
    x0[i], x1[i] = _ends(cause, added[cause.term], model.weight)
    none = np.zeros((1, other.z.shape[1]))
    found = other.between(x0[None, :], x1[None, :], none, none)
    return Estimate(-found.value, found.se, found.dof)


def _long_enough(panel: Basis, cells: Cells, made: Effect) -> None:
    """Take back what is said of uptime where it was not watched for long: anything that changed in mid-run looks like it."""
    minutes = panel.uptime_s[cells.row] / 60.0
    spans = [float(np.ptp(minutes[cells.run == r])) for r in np.unique(cells.run) if (cells.run == r).sum() >= 8]
    several = [s for s in spans if s >= SEVERAL_UPTIME_MIN]
    if max(spans, default=0.0) >= LONG_UPTIME_MIN or len(several) >= 2:
        return
    if made.status == SUPPORTED:
        made.goes_with = True
        made.status = CANNOT_TELL
    made.reasons = (because(Why.SHORT_UPTIME, minutes=max(spans, default=0.0), least=LONG_UPTIME_MIN),)


def _judge_tokens(tokens: Tokens, cause: Cause, part: Ints, asked: Study) -> Effect:
    model, cells = tokens.model, tokens.cells
    made = Effect(cause, rows=len(cells.rows), requests=len(np.unique(cells.owner)))
    if model is None or cause.term not in tokens.columns:
        made.reasons = (because(Why.NO_MODEL, rows=len(cells.rows), on=TOKENS),)
        return made
    values = tokens.columns[cause.term]
    made.low, made.high = _ends(cause, values, cells.weight)
    grown = "generated" if "generated" in tokens.columns and cause.term == "context" else cause.term
    inner = model.slope(grown, within=True)
    outer = model.slope("context" if cause.term == "generated" else cause.term, within=False)
    if cause.term == "generated":
        _generated(made, model, inner, outer, asked)
    else:
        _between_or_text(made, model, tokens, inner, outer, asked)
    if (cells.part == 1).any() and (cells.part == 2).any() and made.slope.known:
        sides = [float((cells.weight * values)[cells.part == k].sum() / cells.weight[cells.part == k].sum()) for k in (1, 2)]
        made.part_low, made.part_high = sides
        made.part = _as_speed(made.slope, model, sides[0], sides[1], float(np.average(values, weights=cells.weight)))
    return made


def _as_speed(slope: Estimate, model: TokenModel, low: float, high: float, middle: float) -> Estimate:
    """Return what a slope of tokens per step does to the log of speed from one value to another."""
    if not slope.known:
        return Estimate()
    floor = max(0.05 * model.mean, 1e-9)
    at = [max(model.mean + slope.value * (v - middle), floor) for v in (low, high)]
    # the log of a line: both ends lie on the same line, so the sign is that of the slope
    steep = abs(high - low) * (1 / at[0] + 1 / at[1]) / 2
    return Estimate(math.log(at[1] / at[0]), steep * slope.se, slope.dof)


def _generated(made: Effect, model: TokenModel, inner: Estimate, outer: Estimate, asked: Study) -> None:
    """Judge generated length: tokens fall within requests, and not with the length of the prompt."""
    middle = float(model.columns["generated"].mean())
    made.slope = inner
    made.speed = _as_speed(inner, model, made.low, made.high, middle)
    made.status = _verdict(made.speed, asked)
    if made.status != SUPPORTED:
        return
    if not outer.sure:
        made.status, made.alone, made.together_with = CANNOT_TELL, True, ("context",)
        made.reasons = (because(Why.TOGETHER, term="generated", others=("context",)),)
        return
    own = likelihood(outer, 0.0) - likelihood(outer, inner.value, inner.se)
    if own < TIMES_LIKELIER:
        made.status, made.alone, made.together_with = CANNOT_TELL, True, ("context",)
        made.reasons = (because(Why.TOGETHER, term="generated", others=("context",)),)


def _between_or_text(made: Effect, model: TokenModel, tokens: Tokens, inner: Estimate, outer: Estimate, asked: Study) -> None:
    """Judge a cause that differs between requests: named alone only where what happens within requests agrees, or prompts are the same."""
    cause = made.cause
    own = model.columns[cause.term]
    middle = float(np.average(own, weights=model.weight))
    carriers = model.carried.get("generated" if "generated" in model.carried and cause.term == "context" else cause.term, 0.0)
    if cause.moves and not cause.setting and inner.sure and outer.sure and carriers >= FEWEST_REQUESTS:
        weights = np.array([1 / max(inner.se, 1e-9) ** 2, 1 / max(outer.se, 1e-9) ** 2])
        both = Estimate(
            float(weights @ [inner.value, outer.value] / weights.sum()), float(weights.sum() ** -0.5), min(inner.dof, outer.dof)
        )
    else:
        both = outer if outer.sure else inner
    made.slope = both
    made.speed = _as_speed(both, model, made.low, made.high, middle)
    if not both.sure:
        made.reasons = (because(Why.NO_MODEL, rows=made.rows, on=TOKENS),)
        return
    if cause.setting:
        made.status = _verdict(made.speed, asked)
        return
    if not cause.moves:
        _same_prompt(made, model, own, asked)
        return
    between = _as_speed(outer, model, made.low, made.high, middle) if outer.sure else Estimate()
    within = _as_speed(inner, model, made.low, made.high, middle) if inner.sure else Estimate()
    status = _verdict(made.speed, asked)
    shown = status == SUPPORTED or (between.sure and _verdict(between, asked) == SUPPORTED)
    if not shown:
        # a fall within requests alone is enough for what does not grow with them, and cannot be their text
        made.status = status if not (within.sure and _verdict(within, asked) == SUPPORTED and not between.sure) else SUPPORTED
        return
    few = halves(own, model.owner)
    agrees = likelihood(inner, outer.value, outer.se) - likelihood(inner, 0.0) if inner.sure and outer.sure else 0.0
    if inner.sure and not outer.sure:
        agrees = TIMES_LIKELIER if _verdict(within, asked) == SUPPORTED else 0.0
    own_evidence = agrees >= TIMES_LIKELIER and carriers >= FEWEST_REQUESTS
    if min(few) < FEWEST_REQUESTS and outer.sure and not own_evidence:
        made.reasons = (because(Why.FEW_REQUESTS, low=few[0], high=few[1], least=FEWEST_REQUESTS, term=cause.term),)
        made.together_with, made.alone, made.status = ("text",), True, CANNOT_TELL
    elif agrees >= TIMES_LIKELIER and status == SUPPORTED:
        made.status = SUPPORTED
        made.reasons = (because(Why.WITHIN, inner=inner.value, outer=outer.value, term=cause.term),)
    else:
        made.status, made.alone, made.together_with = CANNOT_TELL, True, ("text",)
        made.speed = between if between.sure else made.speed
        made.slope = outer if outer.sure else made.slope
        against = likelihood(inner, 0.0) - likelihood(inner, outer.value, outer.se) if inner.sure and outer.sure else 0.0
        made.reasons = (because(Why.TEXT_OR, term=cause.term, within=inner.value if inner.sure else None, text=against >= TIMES_LIKELIER),)


def _same_prompt(made: Effect, model: TokenModel, own: Floats, asked: Study) -> None:
    """Judge what is fixed for a request by the same prompts on both sides; other prompts are other texts."""
    made.status = _verdict(made.speed, asked)
    if made.status != SUPPORTED:
        return
    yes = own > 0.5
    pairs = np.intersect1d(model.owner[yes], model.owner[~yes])
    if len(pairs) >= FEWEST_REQUESTS:
        differences = np.array([model.y[yes & (model.owner == p)].mean() - model.y[~yes & (model.owner == p)].mean() for p in pairs])
        se = float(differences.std(ddof=1) / math.sqrt(len(pairs)))
        made.slope = Estimate(float(differences.mean()), se, len(pairs) - 1)
        made.speed = _as_speed(made.slope, model, 0.0, 1.0, float(yes.mean()))
        made.status = _verdict(made.speed, asked)
        return
    made.status, made.alone, made.together_with = CANNOT_TELL, True, ("text",)
    made.reasons = (because(Why.TEXT_OR, term=made.cause.term, within=None, text=False),)


def _context_or_generated(made: Findings) -> None:
    """Where acceptance is shown to fall with context, its fall within requests is that of their context; and the other way round."""
    context, generated = made.effect("context_acceptance", TOKENS), made.effect("generated_acceptance", TOKENS)
    if context is None or generated is None:
        return
    for one, other in ((context, generated), (generated, context)):
        if one.status == SUPPORTED:
            other.alone = False
            if other.status != REFUTED:
                other.status = CANNOT_TELL
                other.together_with = (one.cause.term,)
            return


# -- what is not known of most rows -----------------------------------------------------------------------------------------------


ENOUGH_OF_SIZE = 0.05
"""A batch size counts among those of one graph state if so many of its steps are of it."""

GOES_WITH = 0.5
"""The graph's state goes with the batch size if their correlation is at least this."""

FEW_GRAPH_ROWS = 20
"""So many steps with a graph, and so many without, are needed where the state of the others is not known."""


def _graph_on_some_rows(
    panel: Basis, use: Bools, part: Ints, asked: Study, breaks: Sequence[Break], own_term: bool, made: Findings
) -> None:
    """Test the device graph on the steps whose graph state is known, where that is not known of most."""
    lacking = made.lacking.get(("graph_off", STEP))
    if lacking is None or lacking.kind is not Why.NOT_KNOWN or made.context_lacks(STEP):
        return
    known = use & panel.timed & np.isfinite(panel.graph_off)
    if min(int((known & (panel.graph_off == state)).sum()) for state in (0, 1)) < FEW_GRAPH_ROWS:
        return
    steps, _ = _fit_steps(panel, known, part, asked, breaks, own_term)
    for i, effect in enumerate(made.effects):
        if effect.cause.term == "graph_off" and effect.cause.on == STEP:
            made.effects[i] = _judge_step(panel, steps, effect.cause, part, asked)
            made.effects[i].reasons += (replace(lacking, kind=Why.ON_SOME_ROWS),)
            made.lacking.pop(("graph_off", STEP))


def _graph_and_batch(panel: Basis, use: Bools, made: Findings) -> None:
    """Name graph and batch size together where they say the same: no batch size is seen in both states, and one state has one size only.

    With two sizes on each side, what the batch size does is seen without the graph, and what is left at the jump is the graph's.
    """
    graph, batch = made.effect("graph_off", STEP), made.effect("batch", STEP)
    if graph is None or batch is None:
        return
    lacking = made.lacking.get(("graph_off", STEP))
    if lacking is not None:
        if lacking.kind is Why.NOT_KNOWN and batch.status == SUPPORTED and panel.graph_with_batch >= GOES_WITH:
            batch.alone, batch.together_with, batch.status = True, ("graph_off",), CANNOT_TELL
            batch.speed = batch.part = batch.slope = Estimate()
            batch.reasons = (replace(lacking, kind=Why.GRAPH_UNKNOWN),)
        return
    rows = use & panel.timed
    size, off = panel.batch[rows], panel.graph_off[rows]
    good = np.isfinite(size) & np.isfinite(off)
    sides = []
    for state in (0, 1):
        values, counts = np.unique(size[good & (off == state)], return_counts=True)
        sides.append(set(values[counts >= ENOUGH_OF_SIZE * max(int(counts.sum()), 1)].tolist()))
    if sides[0] & sides[1] or min(len(s) for s in sides) >= 2 or sides[0] == sides[1]:
        return
    some = SUPPORTED in (graph.status, batch.status) or graph.alone or batch.alone
    for one, other in ((graph, "batch"), (batch, "graph_off")):
        one.alone = some
        one.together_with, one.status = (other,), CANNOT_TELL
        one.speed = one.part = one.slope = Estimate()
        one.reasons = (because(Why.SAME_AS_BATCH),)


def _open_context(made: Findings) -> None:
    """Take back what was said of other causes where the context, which may stand behind them, is not known."""
    for effect in made.effects:
        reason = made.context_lacks(effect.cause.on)
        if reason is None or effect.cause.term == "context" or not effect.tested:
            continue
        effect.goes_with = effect.goes_with or effect.status == SUPPORTED
        effect.together_with, effect.alone, effect.status = (), False, CANNOT_TELL
        effect.slope = Estimate()
        grows = effect.cause.term in ("uptime", "generated")
        if grows:
            effect.speed = effect.part = Estimate()
        kind = Why.GROWS_WITH_CONTEXT if grows else Why.CONTEXT_UNKNOWN
        effect.reasons = (replace(reason, kind=kind, numbers={**reason.numbers, "other": effect.cause.term}),)


__all__ = ["BETWEEN", "Effect", "Findings", "Steps", "Study", "Tokens", "study"]
