"""The list of hypotheses: each measured cause and each observation, with what the verdict needs to know of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ddtree_metrics.diagnosis.breaks import Break
from ddtree_metrics.diagnosis.causes import BETWEEN, STEP, TOKENS
from ddtree_metrics.diagnosis.flags import Changed
from ddtree_metrics.diagnosis.matched_pairs import Apart
from ddtree_metrics.diagnosis.observed import Seen
from ddtree_metrics.diagnosis.reasons import Reason, Why, because
from ddtree_metrics.diagnosis.result import CANNOT_TELL, REFUTED, SUPPORTED
from ddtree_metrics.diagnosis.study import Effect, Findings, Study
from ddtree_metrics.metrics.doubt import Estimate, Interval
from ddtree_metrics.metrics.window import WindowKnee
from ddtree_metrics.steps.basis import Basis


@dataclass(slots=True)
class Named:
    """A hypothesis before it is said.

    Attributes
    ----------
    key, status, acts_on : str
        As in ``Hypothesis``.
    term : str
        The quantity that it is about.
    strength : float
        Log of how many times slower it makes a request; 0 if not.
    numeric : bool
        Whether it rests on an effect in the models.
    effects : list of Effect
        The effects that it rests on, the one shown first.
    shown : Interval
        Its effect on speed.
    part : float
        Log of what it did to speed between the two groups that were given; 0 where there were none.
    alone, goes_with : bool
        Whether it would be supported if the causes it rises with were not there; if the context, which is not known, did not stand
        behind it.
    together_with : tuple of str
        Quantities from which it cannot be separated.
    reasons : list of Reason
        What is said of it.
    seen : Seen or None
        What was observed.
    flags : tuple of Changed
        The flags of the server starts compared.
    """

    key: str
    status: str = CANNOT_TELL
    acts_on: str | None = None
    term: str = ""
    strength: float = 0.0
    numeric: bool = False
    effects: list[Effect] = field(default_factory=list)
    shown: Interval = field(default_factory=Interval)
    part: float = 0.0
    alone: bool = False
    goes_with: bool = False
    together_with: tuple[str, ...] = ()
    reasons: list[Reason] = field(default_factory=list)
    seen: Seen | None = None
    flags: tuple[Changed, ...] = ()
    breaks: tuple[Break, ...] = ()
    pairs: tuple[int, ...] = ()


def listed(
    panel: Basis,
    found: Findings,
    knee: WindowKnee | None,
    observed: Sequence[Seen],
    apart: Apart,
    flags: Named,
    breaks: Sequence[Break],
    asked: Study,
    *,
    explicit: bool,
) -> list[Named]:
    """Make the list of hypotheses.

    Parameters
    ----------
    panel : Basis
        All rows.
    found : Findings
        Effects of the measured causes.
    knee : WindowKnee or None
        What acceptance does at the drafter's window, or wherever it changes.
    observed : sequence of Seen
        What was seen without a model.
    apart : Apart
        What pairs at equal values say of context and uptime.
    flags : Named
        What the server starts say of flags.
    breaks : sequence of Break
        Sudden changes in mid-run.
    asked : Study
        How sure to be.
    explicit : bool
        Whether two groups were given.
    """
    made: dict[str, Named] = {}
    for key in dict.fromkeys(c.key for c in asked.causes):
        effects = [e for e in found.effects if e.cause.key == key]
        made[key] = _measured(key, effects, asked, explicit)
    slope = made.get("context_acceptance")
    made["window_knee"] = _window(found, knee, slope, asked)
    _settle(made, apart)
    for on, key in ((STEP, "break_step_time"), (TOKENS, "break_acceptance")):
        made[key] = _broken(key, on, [b for b in breaks if b.on == on], asked)
    made["flags"] = flags
    for seen in observed:
        strength = -math.log(seen.speed) if seen.status == SUPPORTED and seen.speed > 0 else 0.0
        shown = Interval(seen.speed) if math.isfinite(seen.speed) else Interval()
        made[seen.key] = Named(seen.key, seen.status, seen.acts_on, strength=strength, shown=shown, seen=seen)
    return list(made.values())


def _measured(key: str, effects: list[Effect], asked: Study, explicit: bool) -> Named:
    tested = [e for e in effects if e.tested]
    if not tested:
        first = effects[0]
        reason = next((r for e in effects for r in e.reasons), because(Why.NO_MODEL, rows=0, on=first.cause.on))
        # what never was there, or never changed, is not the cause of any difference in this log
        never = reason.kind is Why.NEVER or (reason.kind is Why.HARDLY_VARIES and first.cause.term in ("batch", "budget"))
        return Named(key, REFUTED if never else CANNOT_TELL, first.cause.on, first.cause.term, reasons=[reason], effects=[])
    rank = {SUPPORTED: 0, CANNOT_TELL: 1, REFUTED: 2}
    tested.sort(key=lambda e: (rank[e.status], not e.alone, not e.goes_with, e.speed.value if e.speed.known else 1.0))
    best = tested[0]
    part = best.part if explicit and best.part.known else Estimate()
    shown = part if part.known else best.speed
    made = Named(
        key,
        best.status,
        best.cause.on,
        best.cause.term,
        numeric=True,
        effects=tested,
        shown=shown.ratio(asked.level),
        alone=best.alone,
        goes_with=best.goes_with,
        together_with=best.together_with if best.status == CANNOT_TELL else (),
        reasons=[r for e in tested for r in e.reasons],
    )
    made.part = sum(e.part.value for e in tested if e.part.known and e.status == SUPPORTED)
    if best.speed.known and best.speed.value < 0:
        made.strength = -best.speed.value
    elif best.alone:
        made.strength = 2 * asked.least
    return made


def _broken(key: str, on: str, breaks: list[Break], asked: Study) -> Named:
    if not breaks:
        return Named(key, REFUTED, on, "time")
    sign = -1.0 if on == STEP else 1.0
    most = max(breaks, key=lambda b: abs(b.size.value))
    speed = Estimate(sign * most.size.value, most.size.se, most.size.dof)
    return Named(key, SUPPORTED, on, "time", strength=abs(most.size.value), shown=speed.ratio(asked.level), breaks=tuple(breaks))


def _window(found: Findings, knee: WindowKnee | None, slope: Named | None, asked: Study) -> Named:
    """Judge the drafter's window by where acceptance changes, and by the requests that cross it."""
    made = Named("window_knee", CANNOT_TELL, TOKENS, "window")
    if knee is None:
        made.reasons = [because(Why.NO_MODEL, rows=0, on=TOKENS)]
        return made
    if math.isnan(knee.window):
        made.reasons = [because(Why.NO_WINDOW), *([because(Why.OBSERVED, sentence=knee.found)] if knee.found else [])]
        return made
    made.reasons = [because(Why.OBSERVED, sentence=knee.sentence, window=knee.window)]
    ratio = knee.ratio
    if math.isfinite(ratio) and ratio > 0:
        low_high = [None if math.isnan(x) else x for x in (knee.ratio_low, knee.ratio_high)]
        made.shown = Interval(ratio, low_high[0], low_high[1])
    made.status = knee.verdict if knee.verdict in (SUPPORTED, REFUTED) else CANNOT_TELL
    if made.status != SUPPORTED:
        return made
    drop = -math.log(max(min(knee.above / max(knee.below, 1e-9), 1.0), 1e-9))
    made.strength, made.numeric = drop, True
    if drop < asked.least:
        made.status = REFUTED
    elif slope is not None and knee.model == "drop":
        # what falls at one place is no slope
        slope.alone, slope.together_with = False, ("window",)
        slope.status = CANNOT_TELL if slope.status != REFUTED else REFUTED
        slope.strength = 0.0
        slope.reasons.append(because(Why.SLOPE_OR_KNEE, window=knee.window))
    return made


def _settle(made: dict[str, Named], apart: Apart) -> None:
    """Let pairs at equal values decide between context and uptime where the model could not."""
    context, uptime = made.get("context_step_time"), made.get("uptime")
    if context is None or uptime is None:
        return
    if apart.cause is not None:
        right, wrong = (uptime, context) if apart.cause == "uptime" else (context, uptime)
        reason = because(Why.PAIRS, sentence=apart.sentence)
        right.status, right.shown, right.reasons = SUPPORTED, Interval(1 / apart.factor), [reason]
        right.strength, right.numeric, right.alone, right.together_with = math.log(apart.factor), True, False, ()
        wrong.status, wrong.shown, wrong.reasons = REFUTED, Interval(1.0), [reason]
        wrong.alone, wrong.strength, wrong.together_with = False, 0.0, ()
    elif apart.together:
        for one, other in ((context, "uptime"), (uptime, "context")):
            if one.status != REFUTED:
                one.status, one.shown, one.together_with = CANNOT_TELL, Interval(), (other,)
                one.reasons = [because(Why.PAIRS, sentence=apart.sentence)]
                one.alone, one.strength = True, max(one.strength, 0.1)


__all__ = ["BETWEEN", "Named", "listed"]
