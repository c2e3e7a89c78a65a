"""The causes that are numbers beside each step: context, batch size, uptime and the like, tested together.

Each is a term of one model of step time and one of tokens per step, so that what is said of one holds at equal values of the others. A
cause that the others predict (|r| > 0.98) is not told apart from them, and it is said which.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from ddtree_metrics.diagnosis.bends import bend, bending
from ddtree_metrics.diagnosis.compare import clusters_of, step_weight, token_weight
from ddtree_metrics.diagnosis.model import VIF_LIMIT, Fit, fit
from ddtree_metrics.diagnosis.result import CANNOT_TELL, REFUTED, SUPPORTED, Interval
from ddtree_metrics.steps.basis import Basis as Panel
from ddtree_metrics.steps.frames import Bools, Floats

STEP, TOKENS = "step time", "tokens per step"

NOT_KNOWN = Interval()

RARE = 0.005
"""A yes-or-no cause that holds for a smaller share of rows than this is not tested."""

LABELS = {
    "context": "context",
    "batch": "batch size",
    "uptime": "uptime",
    "generated": "generated length",
    "cached": "cached prefix",
    "graph_off": "graph off",
    "window": "drafter window",
    "bend": "context",
    "group": "whatever else differs between the groups",
}


def label(term: str) -> str:
    """Return a term in words."""
    return f"restart (run {term[4:]})" if term.startswith("run:") else LABELS.get(term, term)


@dataclass(slots=True)
class Effect:
    """What one cause does to one outcome.

    Attributes
    ----------
    cause, on : str
        The term, and ``step time`` or ``tokens per step``.
    status : str
        ``supported``, ``refuted`` or ``cannot tell``.
    speed : Interval
        Ratio of speed, high end of the cause over its low end, at equal values of the others.
    slope : Interval
        Coefficient of the term, in ms or tokens for each unit of it.
    low, high : float
        The two ends, in units of the term: its 10th and 90th percentile, or no and yes.
    part, part_status, part_low, part_high
        The same from the mean of the group before to the mean of the group after, where two groups were given.
    rows, clusters : int
        What it rests on.
    interval_from : str
        ``requests`` or ``stretches``.
    together_with : list of str
        Terms from which it cannot be separated.
    goes_with : bool
        Whether it would be supported if what is not known (the context) did not stand behind it.
    alone : bool
        Whether it would be supported if those were not there.
    reason : str
        Why it cannot be told, or why it was not tested.
    """

    cause: str
    on: str
    status: str = CANNOT_TELL
    speed: Interval = NOT_KNOWN
    slope: Interval = NOT_KNOWN
    low: float = np.nan
    high: float = np.nan
    part: Interval = NOT_KNOWN
    part_status: str = CANNOT_TELL
    part_low: float = np.nan
    part_high: float = np.nan
    rows: int = 0
    clusters: int = 0
    interval_from: str = ""
    together_with: list[str] = field(default_factory=list)
    alone: bool = False
    goes_with: bool = False
    reason: str = ""


@dataclass(slots=True)
class Causes:
    """All effects, the models they come from, and the terms by row.

    ``equal`` holds the models that compare two groups at equal values: the same with a control for context that can bend.
    ``knee_open`` says that a fall of acceptance may be a slope or a step at the drafter's window, and which cannot be told.
    """

    effects: list[Effect] = field(default_factory=list)
    models: dict[str, Fit] = field(default_factory=dict)
    equal: dict[str, Fit] = field(default_factory=dict)
    knee_open: bool = False
    terms: dict[str, dict[str, Floats]] = field(default_factory=dict)
    untested: dict[tuple[str, str], str] = field(default_factory=dict)

    def context_lacks(self, on: str) -> str:
        """Say for how many rows the context is known, where that is too few for anything to be put down to another cause; else ``""``."""
        reason = self.untested.get(("context", on), "")
        return reason if "known for" in reason else ""

    def get(self, cause: str, on: str) -> Effect | None:
        """Return the effect of a cause on an outcome, None if it was not tested."""
        for one in self.effects:
            if one.cause == cause and one.on == on:
                return one
        return None


def study(
    panel: Panel, rows: Bools, after: Bools | None, before: Bools | None, *, window: int | None, own_term: bool, level: float, least: float
) -> Causes:
    """Fit both models and judge each cause.

    Parameters
    ----------
    panel : Panel
        All rows.
    rows : ndarray of bool
        Those to use.
    after, before : ndarray of bool or None
        The two groups, where two were given: effects are then also measured from the mean of one group to the mean of the other.
    window : int or None
        The drafter's window.
    own_term : bool
        Whether the group after is a term of its own, for whatever is not measured.
    level, least : float
        Level of the intervals; the smallest change of speed (on the log scale) that counts.
    """
    made = Causes()
    for on in (STEP, TOKENS):
        use = rows & (panel.timed if on == STEP else panel.counted)
        terms, lacking = _terms(panel, use, on, window)
        for cause, reason in lacking.items():
            made.untested[cause, on] = reason
        if own_term and after is not None:
            terms["group"] = after.astype(np.float64)
        elif len(panel.runs) > 1:
            terms |= _run_terms(panel, use)
        use &= np.all([np.isfinite(v) for v in terms.values()], axis=0) if terms else True
        terms = {k: v for k, v in terms.items() if use.any() and np.ptp(v[use]) > 0}
        made.terms[on] = terms
        if not use.any():
            continue
        y = (panel.step_ms if on == STEP else panel.tokens)[use]
        weight = (step_weight(panel) if on == STEP else token_weight(panel))[use]
        cluster, how = clusters_of(panel, use)
        if on == TOKENS and "context" in terms and window is not None:
            beyond = (panel.context > window).astype(np.float64)
            if 0.02 < float(beyond[use].mean()) < 0.98:
                terms["window"] = beyond
        inside = {k: v[use] for k, v in terms.items()}
        if on == STEP and "context" in inside:
            inside |= bend(y, inside, cluster, weight)
        model = fit(y, inside, cluster, weight, relative=on == STEP)
        if model is None:
            continue
        if on == TOKENS and not own_term:
            model, made.knee_open = _without_window(model, y, inside, cluster, weight, level)
        made.models[on] = model
        if own_term:
            made.equal[on] = bending(y, inside, cluster, weight, model, relative=on == STEP)
        # both directions, both models, and as much again since terms are chosen by looking (the bend, the step at the window)
        tests = 8 * max(len(model.names), 3)
        for cause in [n for n in model.names if n not in ("bend",) and not n.startswith("run:") and n != "group"]:
            effect = _judge(panel, use, after, before, model, inside, y, cluster, weight, cause, on, how, tests, level, least)
            if made.context_lacks(on):
                _leave_open(effect, lacking["context"])
            made.effects.append(effect)
        if on == STEP and made.get("graph_off", STEP) is not None:
            _same_as_batch(made, panel, use)
        elif on == STEP and "known for" in lacking.get("graph_off", "") and not made.context_lacks(STEP):
            some = _graph_on_some_rows(panel, use, after, before, inside, y, cluster, weight, how, tests, level, least)
            if some is not None:
                some.reason = f"measured on those steps whose graph state is known ({lacking['graph_off']})"
                made.effects.append(some)
                _same_as_batch(made, panel, use & np.isfinite(panel.graph_off))
            else:
                _graph_may_stand_behind(made, panel, lacking["graph_off"])
    return made


FEW_GRAPH_ROWS = 20
"""So many steps with a graph, and so many without, are needed where the state of the others is not known."""


def _graph_on_some_rows(
    panel: Panel,
    use: Bools,
    after: Bools | None,
    before: Bools | None,
    inside: dict[str, Floats],
    y: Floats,
    cluster: np.ndarray,
    weight: Floats,
    how: str,
    tests: int,
    level: float,
    least: float,
) -> Effect | None:
    """Test the device graph on the steps whose graph state is known, where that is not known of most."""
    off = panel.graph_off[use]
    known = np.isfinite(off)
    if min((off == 0).sum(), (off == 1).sum()) < FEW_GRAPH_ROWS:
        return None
    terms = {k: v[known] for k, v in inside.items() if np.ptp(v[known]) > 0} | {"graph_off": off[known]}
    model = fit(y[known], terms, cluster[known], weight[known], relative=True)
    if model is None:
        return None
    some = use.copy()
    some[use] = known
    return _judge(
        panel, some, after, before, model, terms, y[known], cluster[known], weight[known], "graph_off", STEP, how, tests, level, least
    )


def _graph_may_stand_behind(made: Causes, panel: Panel, reason: str) -> None:
    """Leave the batch size open where the graph's state is not known of most steps, and goes with the batch size where it is."""
    batch = made.get("batch", STEP)
    if batch is None or batch.status != SUPPORTED or not panel.graph_with_batch >= GOES_WITH:
        return
    batch.alone, batch.together_with = True, ["graph_off"]
    batch.status = batch.part_status = CANNOT_TELL
    batch.speed = batch.part = batch.slope = NOT_KNOWN
    batch.reason = f"{reason}, and in the Decode lines it goes with the batch size"


GOES_WITH = 0.5
"""The graph's state goes with the batch size if their correlation is at least this."""

ENOUGH_OF_SIZE = 0.05
"""A batch size counts among those of one graph state if so many of its steps are of it."""


def _same_as_batch(made: Causes, panel: Panel, use: Bools) -> None:
    """Name graph and batch size together where they say the same: no batch size is seen in both states, and one state has one size only.

    With two sizes on each side, what the batch size does is seen without the graph, and what is left at the jump is the graph's.
    """
    size, off = panel.batch[use], panel.graph_off[use]
    good = np.isfinite(size) & np.isfinite(off)
    sides = []
    for state in (0, 1):
        mine = size[good & (off == state)]
        values, counts = np.unique(mine, return_counts=True)
        sides.append(set(values[counts >= ENOUGH_OF_SIZE * max(len(mine), 1)].tolist()))
    if sides[0] & sides[1] or min(len(s) for s in sides) >= 2 or sides[0] == sides[1]:
        return
    graph, batch = made.get("graph_off", STEP), made.get("batch", STEP)
    for one, other in ((graph, "batch"), (batch, "graph_off")):
        if one is None:
            continue
        one.alone = one.alone or one.status == SUPPORTED or (one is batch and graph is not None and graph.alone)
        if one is batch and not one.alone:
            continue
        one.together_with = [other, *[t for t in one.together_with if t not in (other, "context")]]
        one.status = one.part_status = CANNOT_TELL
        one.speed = one.part = one.slope = NOT_KNOWN
        one.reason = "the device graph is off exactly at the larger batch sizes: the two cannot be told apart"


def _leave_open(effect: Effect, reason: str) -> None:
    """Take back what was said of an effect, since context, which may stand behind it, is not known.

    Uptime and generated length grow with the context of a running request, so that not even a number is left; of others it stays.
    """
    effect.goes_with = SUPPORTED in (effect.status, effect.part_status)
    effect.together_with, effect.alone = [], False
    effect.status = effect.part_status = CANNOT_TELL
    effect.slope = NOT_KNOWN
    if effect.cause in ("uptime", "generated"):
        effect.speed = effect.part = NOT_KNOWN
        effect.reason = f"{reason}, and {label(effect.cause)} grows with it"
    else:
        effect.reason = f"{reason}, and may stand behind it"


def _terms(panel: Panel, use: Bools, on: str, window: int | None) -> tuple[dict[str, Floats], dict[str, str]]:
    """Return the causes that can be tested on these rows, and why the others cannot."""
    n = int(use.sum())
    step = on == STEP
    batch = np.where(np.isfinite(panel.batch), panel.batch, 1.0)
    candidates: dict[str, Floats] = {
        "context": (panel.batch_context if step else panel.context) / 1000.0,
        "batch": batch - 1.0,
        "uptime": panel.uptime_s / 60.0,
        "generated": (panel.longest if step else panel.generated) / 1000.0,
        "cached": panel.cached,
    }
    if step:
        candidates["graph_off"] = panel.graph_off
    kept: dict[str, Floats] = {}
    lacking: dict[str, str] = {}
    for name, values in candidates.items():
        inside = values[use]
        known = inside[np.isfinite(inside)]
        if n == 0:
            lacking[name] = f"no row has a {'step time' if step else 'number of tokens'}"
        elif n < 2:
            lacking[name] = f"one row only has a {'step time' if step else 'number of tokens'}"
        elif len(known) < 0.8 * n:
            lacking[name] = f"{LABELS[name]} is known for {len(known)} of {n} rows only"
        elif name in ("cached", "graph_off"):
            share = float(known.mean())
            if share < RARE or share > 1 - RARE:
                lacking[name] = f"{LABELS[name]}: {'all' if share > 0.5 else 'none'} of {len(known)} rows"
            else:
                kept[name] = values
        elif (
            np.ptp(known) <= {"context": 0.02, "uptime": 2.0, "generated": 0.02}.get(name, 0.5)
            or np.ptp(known) < 0.02 * abs(known.mean())
            or (name == "batch" and min((known == known.min()).mean(), (known != known.min()).mean()) < RARE)
        ):
            lacking[name] = f"{LABELS[name]} hardly varies ({_range(name, known)})"
        else:
            kept[name] = values
    return kept, lacking


def _range(name: str, known: Floats) -> str:
    scale, unit, add = {
        "context": (1000, " tokens", 0),
        "uptime": (1, " min", 0),
        "generated": (1000, " tokens", 0),
        "batch": (1, "", 1),
    }[name]
    low, high = known.min() * scale + add, known.max() * scale + add
    if name == "uptime":
        return f"{low:.1f} to {high:.1f}{unit}"
    return f"{low:.0f} to {high:.0f}{unit}" if high > low else f"always {low:.0f}{unit}"


def _run_terms(panel: Panel, use: Bools) -> dict[str, Floats]:
    """One yes-or-no term a server start but the first that has rows."""
    numbers, counts = np.unique(panel.run[use], return_counts=True)
    enough = numbers[counts >= 5] if len(numbers) <= 12 else numbers[np.argsort(-counts)[:12]]
    return {f"run:{k}": (panel.run == k).astype(np.float64) for k in sorted(enough)[1:]}


def _without_window(
    model: Fit, y: Floats, inside: dict[str, Floats], cluster: np.ndarray, weight: Floats, level: float
) -> tuple[Fit, bool]:
    """Keep the step at the drafter's window only where it is clearly there; else context is judged by its slope alone.

    Returns
    -------
    tuple
        The model, and whether a step at the window remains possible in the place of the slope.
    """
    if "window" not in model.names:
        return model, False
    value, se = model.combination({"window": 1.0})
    if value < 0 and abs(value) > float(stats.t.ppf(1 - (1 - level) / 8, model.dof)) * se:
        return model, False
    if model.vif[model.names.index("context")] < 6 and abs(value) + 1.7 * se < 0.05 * model.mean:
        return model, False
    alone = fit(y, {k: v for k, v in inside.items() if k != "window"}, cluster, weight)
    return alone or model, True


def _judge(
    panel: Panel,
    use: Bools,
    after: Bools | None,
    before: Bools | None,
    model: Fit,
    inside: dict[str, Floats],
    y: Floats,
    cluster: np.ndarray,
    weight: Floats,
    cause: str,
    on: str,
    how: str,
    tests: int,
    level: float,
    least: float,
) -> Effect:
    x = inside[cause]
    contrast, low, high, start = _contrast(panel, use, inside, cause, on, None)
    effect = Effect(cause, on, low=low, high=high, rows=len(y), clusters=model.clusters, interval_from=how)
    value, se = model.combination({cause: 1.0})
    t = float(stats.t.ppf(0.5 + level / 2, model.dof))
    effect.slope = Interval(value, value - t * se, value + t * se, "ms" if on == STEP else "tokens")
    inflated = model.vif[model.names.index(cause)]
    if inflated > VIF_LIMIT:
        effect.together_with = model.partners(cause) or model.partners(cause, 0.5)[:2]
        effect.slope = Interval(unit=effect.slope.unit)
        effect.reason = f"{label(cause)} rises and falls with {' and '.join(label(p) for p in effect.together_with) or 'the other causes'}"
        drop = set(effect.together_with)
        rest = {k: v for k, v in inside.items() if k not in drop or k == cause}
        single = fit(y, rest, cluster, weight, relative=on == STEP)
        if single is not None:
            shown = _speed(single, contrast, x, start, on, weight, tests, level, least)
            effect.alone = shown[0] == SUPPORTED
            if shown[0] == REFUTED:
                effect.status, effect.speed = REFUTED, shown[1]
        return effect
    effect.status, effect.speed = _speed(model, contrast, x, start, on, weight, tests, level, least)
    if after is not None and before is not None and after[use].any() and before[use].any():
        moved, effect.part_low, effect.part_high, start = _contrast(panel, use, inside, cause, on, (before[use], after[use]))
        effect.part_status, effect.part = _speed(model, moved, x, start, on, weight, tests, level, least)
    return effect


def _contrast(
    panel: Panel, use: Bools, inside: dict[str, Floats], cause: str, on: str, groups: tuple[Bools, Bools] | None
) -> tuple[dict[str, float], float, float, float]:
    """Return what changes when a cause goes from its low to its high end, both ends, and the low end as the term has it.

    More requests in the batch hold more context between them: that part of the context is put down to the batch size.
    """
    x = inside[cause]
    binary = cause in ("cached", "graph_off", "window")
    own = x
    batch = np.where(np.isfinite(panel.batch[use]), panel.batch[use], 1.0)
    shared = cause == "context" and on == STEP and "batch" in inside
    if shared:
        own = x / batch
    if groups is not None:
        low, high = float(own[groups[0]].mean()), float(own[groups[1]].mean())
    elif binary:
        low, high = 0.0, 1.0
    else:
        low, high = (float(q) for q in np.quantile(own, [0.1, 0.9]))
        if high <= low:
            low, high = float(own.min()), float(own.max())
    contrast = {cause: high - low}
    if shared:
        size = float(batch.mean())
        contrast = {cause: size * (high - low)}
        low_x, high_x = size * low, size * high
    else:
        low_x, high_x = low, high
    if cause == "context" and "bend" in inside:
        knot = float((x - inside["bend"])[inside["bend"] > 0].min())
        contrast["bend"] = max(high_x - knot, 0.0) - max(low_x - knot, 0.0)
    if cause == "batch" and on == STEP and "context" in inside:
        held = float((inside["context"] / batch).mean())
        contrast["context"] = held * (high - low)
        if "bend" in inside:
            contrast["bend"] = float((inside["bend"] > 0).mean()) * held * (high - low)
    return contrast, low, high, low_x


def _speed(
    model: Fit, contrast: dict[str, float], x: Floats, low: float, on: str, weight: Floats, tests: int, level: float, least: float
) -> tuple[str, Interval]:
    """Turn a contrast into a ratio of speed, and judge it."""
    if model.mean <= 0:
        return CANNOT_TELL, Interval()
    change, se = model.combination(contrast)
    main = next(iter(contrast.values()))
    place = 0.5 if main == 0 else float(np.clip(((weight * x).sum() / weight.sum() - low) / main, 0.0, 1.0))

    def ratio(c: float) -> float:
        start, end = max(model.mean - place * c, 0.02 * model.mean), max(model.mean + (1 - place) * c, 0.02 * model.mean)
        return start / end if on == STEP else end / start

    def between(width: float) -> tuple[float, float]:
        t = float(stats.t.ppf(0.5 + width / 2, model.dof)) * se
        ends = sorted((ratio(change - t), ratio(change + t)))
        return ends[0], ends[1]

    point = ratio(change)
    low_end, high_end = between(level)
    _, strict_high = between(1 - (1 - level) / tests)
    if low_end < 0.05 or high_end > 20:
        return CANNOT_TELL, Interval()  # anything is possible: no number is worth printing
    speed = Interval(point, low_end, high_end)
    if point <= np.exp(-least) and strict_high < 1.0:
        return SUPPORTED, speed
    if low_end > np.exp(-least):
        return REFUTED, speed
    return CANNOT_TELL, speed
