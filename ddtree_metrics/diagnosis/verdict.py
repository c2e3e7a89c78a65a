"""From comparisons, effects and observations to one verdict, and the sentences it is said in."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ddtree_metrics.diagnosis.apart import Apart
from ddtree_metrics.diagnosis.causes import STEP, TOKENS, Causes, label
from ddtree_metrics.diagnosis.compare import MOSTLY
from ddtree_metrics.diagnosis.hypotheses import Named, hypotheses
from ddtree_metrics.diagnosis.result import CANNOT_TELL, REFUTED, SUPPORTED, Comparison, Diagnosis, Hypothesis, Interval
from ddtree_metrics.diagnosis.unclear import GIVE_REQUESTS, context_unknown, joined, moved, not_normal, why_not, without_context
from ddtree_metrics.diagnosis.words import factor, number, percent
from ddtree_metrics.steps.basis import Basis as Panel

_OPENING = {
    "step_time": "Step time",
    "acceptance": "Acceptance",
    "both": "Step time and acceptance, both",
    "between_steps": "Time is lost between steps",
    "nothing": "Nothing: no slow-down is shown",
    "cannot_tell": "It cannot be told",
}


def equal_verdict(made: Comparison, shown: Comparison, least: float) -> str | None:
    """Judge a comparison at equal values of the measured causes.

    A change is shown by the intervals of ``made``, widened for the number of tests; it is ruled out by those of ``shown``, as printed.
    """
    step, tokens = made.step_time_ratio_equal, made.tokens_ratio_equal
    if step.value is None or tokens.value is None or step.low is None or tokens.high is None:
        return None
    slow = step.low > 1 and math.log(step.value) >= least / 2
    few = tokens.high < 1 and -math.log(tokens.value) >= least / 2
    total = math.log(step.value) - math.log(tokens.value)
    if total < least or not (slow or few):
        plain_step, plain_tokens = shown.step_time_ratio_equal, shown.tokens_ratio_equal
        ruled_out = math.log(plain_step.high or 1) < least and -math.log(max(plain_tokens.low or 0, 1e-9)) < least
        return "nothing" if ruled_out else "cannot_tell"
    share = math.log(step.value) / total
    if share >= MOSTLY and slow:
        return "step_time"
    if share <= 1 - MOSTLY and few:
        return "acceptance"
    return "both" if slow and few else "step_time" if slow else "acceptance"


def compared(made: Comparison, least: float) -> str:
    """Say a comparison in a sentence."""
    names = f"{made.after} against {made.before}"
    if made.speed_before is None or made.speed_after is None or made.speed_ratio.value is None:
        return f"{names}: cannot be compared, {made.reason or 'there are too few rows'}."
    speeds = f"{number(made.speed_after)} instead of {number(made.speed_before)} tok/s for a request ({factor(made.speed_ratio)})"
    step = f"step time {number(made.step_time_before_ms)} -> {number(made.step_time_after_ms)} ms"
    tokens = f"tokens per step {number(made.tokens_before, 2)} -> {number(made.tokens_after, 2)}"
    if made.share_step_time.value is not None and 0 <= made.share_step_time.value <= 1 and made.verdict not in ("nothing", "cannot_tell"):
        step += f" ({percent(made.share_step_time)} of it)"
        tokens += f" ({percent(made.share_acceptance)} of it)"
    tail = ""
    if made.verdict_equal is not None:
        what = {"nothing": "neither number moved", "cannot_tell": "it cannot be told whether anything moved"}.get(
            made.verdict_equal, f"{_part(made.verdict_equal)} changed"
        )
        tail = f" At equal {joined(made.equal_of)} {what}: step time {factor(made.step_time_ratio_equal)}, "
        tail += f"tokens per step {factor(made.tokens_ratio_equal)}."
    said = {"nothing": "no slow-down is shown", "cannot_tell": "a slow-down can be neither shown nor ruled out"}.get(
        made.verdict, _mostly(made.verdict, made.share_step_time)
    )
    return f"{names}: {said}. {speeds}; {step}, {tokens}.{tail}"


def _divided(share: Interval, main: Comparison | None, least: float) -> str:
    """Say how a slow-down divides; a part that got better is not called a share, and is ruled out only if its interval does."""
    if share.value is not None and share.value > 1.005:
        tokens = main.tokens_ratio if main is not None else Interval()
        if tokens.low is not None and tokens.low > math.exp(-least):
            return f"step time is all of the slow-down; tokens per step did not fall: {factor(tokens)}"
        tail = f": {factor(tokens)}" if tokens.known else ""
        return f"step time is all of the slow-down that is shown; whether tokens per step fell as well cannot be told{tail}"
    if share.value is not None and share.value < -0.005:
        step = main.step_time_ratio if main is not None else Interval()
        if step.high is not None and step.high < math.exp(least):
            return f"acceptance is all of the slow-down; steps did not get slower: {factor(step)}"
        tail = f": {factor(step)}" if step.known else ""
        return f"acceptance is all of the slow-down that is shown; whether steps got slower as well cannot be told{tail}"
    other = Interval(None if share.value is None else 1 - share.value, unit="share")
    return f"step time {percent(share)} of the slow-down, acceptance {percent(other)}"


def _part(kind: str) -> str:
    return {"step_time": "step time", "acceptance": "acceptance", "both": "step time and acceptance"}.get(kind, kind)


def _mostly(kind: str, share: Interval) -> str:
    if kind == "both":
        return "both step time and acceptance"
    part = share.value if kind == "step_time" else None if share.value is None else 1 - share.value
    return f"{_part(kind)}{', mostly' if part is not None and part < 0.95 else ''}"


@dataclass(slots=True)
class _Finding:
    kind: str
    share_s: Interval
    share_a: Interval
    causes: list[Named]
    main: Comparison | None
    together: list[Named]
    extra: str = ""
    faster: bool = False


def conclude(
    panel: Panel,
    comparisons: list[Comparison],
    causes: Causes,
    tests: list[Hypothesis],
    apart: Apart,
    window: int | None,
    *,
    explicit: bool,
    level: float,
    least: float,
    seed: int,
    faster: bool = False,
) -> Diagnosis:
    """Make the diagnosis.

    Parameters
    ----------
    panel : Panel
        All rows.
    comparisons : list of Comparison
        The comparison asked for, or those of the whole log.
    causes : Causes
        Effects of the measured causes.
    tests : list of Hypothesis
        What was observed without a model.
    apart : Apart
        What pairs at equal values say of context and uptime.
    window : int or None
        The drafter's window.
    explicit : bool
        Whether two groups were given.
    level, least, seed
        As in ``diagnose``.
    faster : bool
        Whether the group after is the faster of two that were given: causes are then those that made the group before slow.
    """
    comparisons = [replace(c, sentence=compared(c, least)) for c in comparisons]
    named = hypotheses(panel, comparisons, causes, tests, apart, window, explicit=explicit, level=level, least=least)
    found = _explicit(panel, comparisons[0], causes, named, least) if explicit else _whole(panel, comparisons, causes, named, least)
    found.faster = faster
    if found.main is not None:
        comparisons = [found.main, *[c for c in comparisons if c is not found.main]]
    telling = {id(n) for n in found.causes}
    listed = [replace(n.hypothesis, explains=id(n) in telling) for n in named]
    order = {SUPPORTED: 1, CANNOT_TELL: 2, REFUTED: 3}
    strength = {n.hypothesis.key: n.strength for n in named}
    listed.sort(key=lambda h: (0 if h.explains else order[h.status], -strength[h.key]))
    return Diagnosis(
        verdict=_sentence(panel, found, comparisons, explicit, least) + not_normal(named),
        kind=found.kind,
        share_step_time=found.share_s,
        share_acceptance=found.share_a,
        comparisons=tuple(comparisons),
        hypotheses=tuple(listed),
        slopes=_slopes(causes),
        cannot_tell=tuple(_open_questions(panel, comparisons, causes, found, listed)),
        next=tuple(([GIVE_REQUESTS] if context_unknown(causes) else []) + _next(listed, comparisons, found))[:6],
        excluded=dict(panel.excluded),
        used=_used(panel),
        basis=panel.basis,
        level=level,
    )


def _explicit(panel: Panel, main: Comparison, causes_of: Causes, named: list[Named], least: float) -> _Finding:
    """Two groups were given: the kind is what their numbers say, the causes are what moved between them."""
    causes = [n for n in named if n.part is not None and n.part_status == SUPPORTED and main.verdict not in ("nothing", "cannot_tell")]
    causes.sort(key=lambda n: -n.strength)
    together = [n for n in named if n.alone and n.hypothesis.together_with]
    kind = main.verdict
    extra = ""
    if main.verdict_equal in ("step_time", "acceptance", "both"):
        causes += [n for n in named if n.hypothesis.key == "flags" and n.hypothesis.status == SUPPORTED]
    lost = [n for n in named if n.hypothesis.key in ("retraction", "prefill_between") and n.hypothesis.status == SUPPORTED]
    if kind in ("nothing", "cannot_tell") and lost:
        return _Finding("between_steps", Interval(unit="share"), Interval(unit="share"), lost, main, [])
    if kind == "cannot_tell":
        extra = why_not(panel, main, causes_of, least)
    elif kind != "nothing" and context_unknown(causes_of):
        extra = f"why cannot be told, since {without_context(panel, [], causes_of, named)}"
    elif kind != "nothing" and not causes and not together:
        extra = "none of the measured causes explains it: look at what else changed (flags, drafter, text of the requests)"
    return _Finding(kind, main.share_step_time, main.share_acceptance, causes, main, together if not causes else [], extra)


def _whole(panel: Panel, comparisons: list[Comparison], causes: Causes, named: list[Named], least: float) -> _Finding:
    none = Interval(unit="share")
    telling = sorted((n for n in named if n.hypothesis.status == SUPPORTED and n.numeric), key=lambda n: -n.strength)
    together = sorted(
        (n for n in named if n.alone and n.hypothesis.together_with and n.hypothesis.status == CANNOT_TELL), key=lambda n: -n.strength
    )
    context = next((c for c in comparisons if c.kind == "context"), None)
    runs = [c for c in comparisons if c.kind == "runs" and c.verdict_equal in ("step_time", "acceptance", "both")]
    runs.sort(key=lambda c: _equal_log(c))
    lost = [n for n in named if n.hypothesis.key == "retraction" and n.hypothesis.status == SUPPORTED]
    if context_unknown(causes) and not lost and len(panel):
        parts = next((c for c in comparisons if c.kind in ("parts", "runs")), None)
        if not panel.timed.any() or not panel.counted.any():
            return _Finding("cannot_tell", none, none, [], parts, [], why_not(panel, parts, causes, least))
        return _Finding("cannot_tell", none, none, [], parts, [], without_context(panel, comparisons, causes, named))
    best = max((n.strength for n in telling), default=0.0)
    if together and best < 1.0 * max((n.strength for n in together), default=0.0):
        main = context or (comparisons[0] if comparisons else None)
        shares = (main.share_step_time, main.share_acceptance) if main is not None else (none, none)
        return _Finding("cannot_tell", *shares, [], main, together)
    if lost and lost[0].strength > best and (not runs or lost[0].strength > -_equal_log(runs[0])):
        return _Finding("between_steps", none, none, [*lost, *telling], context, [])
    if telling and (not runs or best >= -_equal_log(runs[0])):
        kind, share = _kind_of(telling)
        share = share if len(causes.models) == 2 else (none, none)
        if context is not None and context.share_step_time.known:
            # one division for the sentence, the table and the picture: that of the comparison, which has intervals
            share = (context.share_step_time, context.share_acceptance)
        by_context = [
            n
            for n in telling
            if n.hypothesis.key in ("context_step_time", "context_acceptance", "window_knee", "generated_acceptance", "fragmentation")
        ]
        main = context if by_context and telling[0] in by_context else None
        if main is not None and main.verdict in ("step_time", "acceptance", "both"):
            # the comparison divides the slow-down; a part that no cause acts on is not named
            acting = {n.hypothesis.acts_on for n in telling}
            if len(by_context) == len(telling) and (main.verdict != "both" or acting == {STEP, TOKENS}):
                kind = main.verdict
            return _Finding(kind, main.share_step_time, main.share_acceptance, telling, main, [])
        own = next((c for c in comparisons if c.kind == telling[0].term), None)
        if own is not None and own.verdict == kind and own.share_step_time.known:
            share = own.share_step_time, own.share_acceptance
        return _Finding(kind, *share, telling, own or context, [])
    if runs:
        kind = runs[0].verdict_equal or "cannot_tell"
        restart = [n for n in named if n.hypothesis.key == "flags" and n.hypothesis.status == SUPPORTED]
        return _Finding(
            kind,
            runs[0].share_step_time,
            runs[0].share_acceptance,
            [*restart, *telling],
            runs[0],
            [],
            "" if restart else f"it changed with the restart from {runs[0].before} to {runs[0].after}",
        )
    main = context or next((c for c in comparisons if c.kind == "parts"), None) or (comparisons[0] if comparisons else None)
    if main is not None and main.verdict in ("step_time", "acceptance", "both"):
        what = "long and short context differ" if main is context else f"{moved(main)}"
        extra = f"{what}, but no measured cause can be held responsible beyond doubt"
        return _Finding("cannot_tell", main.share_step_time, main.share_acceptance, [], main, together, extra)
    enough = bool(causes.models) and all(m.clusters >= 6 for m in causes.models.values()) and len(causes.models) == 2
    if main is None or main.verdict != "nothing":
        enough = False
    return _Finding("nothing" if enough else "cannot_tell", none, none, [], main, [], "" if enough else why_not(panel, main, causes, least))


def _equal_log(c: Comparison) -> float:
    """Return the log of the speed ratio at equal context."""
    return math.log(c.tokens_ratio_equal.value or 1) - math.log(c.step_time_ratio_equal.value or 1)


def _kind_of(telling: list[Named]) -> tuple[str, tuple[Interval, Interval]]:
    """Name the part on which the supported causes act, and divide their effect."""
    step = sum(n.strength for n in telling if n.hypothesis.acts_on == STEP)
    tokens = sum(n.strength for n in telling if n.hypothesis.acts_on == TOKENS)
    share = step / (step + tokens)
    kind = "step_time" if share >= MOSTLY else "acceptance" if share <= 1 - MOSTLY else "both"
    one = len(telling) == 1
    both = (telling[0].share_s, telling[0].share_a) if one and telling[0].share_s is not None and telling[0].share_a is not None else None
    return kind, both or (Interval(share, unit="share"), Interval(1 - share, unit="share"))


def _sentence(panel: Panel, found: _Finding, comparisons: list[Comparison], explicit: bool, least: float) -> str:
    if not len(panel):
        return f"It cannot be told: there is nothing to measure ({panel.basis})."
    kind = found.kind
    if kind == "cannot_tell" and found.together:
        names = list(dict.fromkeys(x for n in found.together for x in [n.term, *n.hypothesis.together_with]))
        words = " and ".join(label(x) for x in names)
        what = sorted({n.hypothesis.acts_on or "" for n in found.together})
        slow = " and ".join(w for w in what if w)
        return f"It cannot be told which: {slow} gets worse, but {words} rise together in this log, so the cause cannot be told apart."
    if kind == "cannot_tell":
        return f"It cannot be told: {found.extra or 'there is too little to go by'}.{_of_restarts(found, comparisons, explicit)}"
    parts = [_OPENING[kind]]
    if found.faster and found.main is not None and kind != "nothing":
        parts[0] = f"{found.main.after} is the faster ({factor(found.main.speed_ratio)}), {found.main.before} is slow by "
        parts[0] += _OPENING[kind][0].lower() + _OPENING[kind][1:]
        parts[0] = parts[0][0].upper() + parts[0][1:]
    share = found.share_s.value if kind == "step_time" else found.share_a.value if kind == "acceptance" else None
    if share is not None and share < 0.95:
        parts[0] += ", mostly"
    reasons = [n.phrase for n in found.causes][:3]
    if reasons:
        parts.append(": " + "; ".join(reasons))
    elif found.extra:
        parts.append(": " + found.extra)
    elif found.together:
        words = " and ".join(dict.fromkeys(label(x) for n in found.together for x in [n.term, *n.hypothesis.together_with]))
        parts.append(f": of its causes, {words} rise together and cannot be told apart")
    if kind == "nothing":
        main = found.main
        speed = main.speed_ratio if main is not None else Interval()
        seen = f" ({main.after} against {main.before}: speed {factor(speed)})" if main is not None and speed.known else ""
        parts.append(f" and no measured cause stands out{seen}")
    elif kind in ("step_time", "acceptance", "both") and found.share_s.known:
        parts.append(f" ({_divided(found.share_s, found.main if not found.faster else None, least)})")
    elif kind == "step_time" and not panel.counted.any():
        parts.append(" (tokens per step are not known)")
    elif kind == "acceptance" and not panel.timed.any():
        parts.append(" (step times are not known)")
    said = "".join(parts) + "."
    return said + _of_restarts(found, comparisons, explicit)


def _of_restarts(found: _Finding, comparisons: list[Comparison], explicit: bool) -> str:
    """Say what a restart did, where the verdict is not about it, and which of its flags are refuted."""
    said = ""
    pairs = [c for c in comparisons if c.kind == "runs" and c.verdict_equal is not None]
    pairs.sort(key=lambda c: c.verdict_equal in ("nothing", "cannot_tell"))
    if not pairs:
        return ""
    c = pairs[0]
    if c is not found.main and not explicit:
        ratios = f"step time {factor(c.step_time_ratio_equal)}, tokens per step {factor(c.tokens_ratio_equal)}"
        equal = f"at equal {joined(c.equal_of)}"
        if c.verdict_equal == "nothing":
            said += f" The restart from {c.before} to {c.after} moved neither number {equal} ({ratios})."
        elif c.verdict_equal == "cannot_tell":
            said += f" Whether the restart from {c.before} to {c.after} moved either number {equal} cannot be told ({ratios})."
        else:
            share = c.share_step_time if c.verdict == c.verdict_equal else _equal_share(c)
            said += f" From {c.before} to {c.after} it is {_mostly(c.verdict_equal or '', share)}: {ratios} {equal}."
    refuted = [f"--{f.flag.replace('_', '-')}" for f in c.flags if f.status == REFUTED and f.reach != "measurement"]
    if refuted:
        said += f" Refuted as a cause: {', '.join(refuted[:4])}{' and others' if len(refuted) > 4 else ''}."
    return said


def _equal_share(c: Comparison) -> Interval:
    """Return the share of step time at equal values."""
    step, tokens = math.log(c.step_time_ratio_equal.value or 1), -math.log(c.tokens_ratio_equal.value or 1)
    return Interval(step / (step + tokens) if step + tokens else None, unit="share")


_SLOPE_NAMES = {
    ("context", STEP): "context_step_ms",
    ("batch", STEP): "batch_step_ms",
    ("uptime", STEP): "uptime_step_ms",
    ("generated", STEP): "generated_step_ms",
    ("cached", STEP): "cached_step_ms",
    ("graph_off", STEP): "graph_off_step_ms",
    ("context", TOKENS): "context_tokens",
    ("window", TOKENS): "window_tokens",
    ("batch", TOKENS): "batch_tokens",
    ("uptime", TOKENS): "uptime_tokens",
    ("generated", TOKENS): "generated_tokens",
    ("cached", TOKENS): "cached_tokens",
}


def _slopes(causes: Causes) -> dict[str, Interval]:
    return {_SLOPE_NAMES[e.cause, e.on]: e.slope for e in causes.effects if e.slope.known and (e.cause, e.on) in _SLOPE_NAMES}


def _used(panel: Panel) -> dict[str, int]:
    return {
        "request_steps": int(panel.counted.sum()),
        "steps": int(panel.first.sum()),
        "timed_steps": int(panel.timed.sum()),
        "requests": len(np.unique(panel.cluster[panel.known])),
        "server_starts": sum(run.number > 0 for run in panel.runs),
    }


def _open_questions(panel: Panel, comparisons: list[Comparison], causes: Causes, found: _Finding, listed: list[Hypothesis]) -> list[str]:
    said: list[str] = []
    for h in listed:
        if h.status == CANNOT_TELL and h.together_with:
            said.append(f"{h.name}: cannot be told apart from {' and '.join(label(x) for x in h.together_with)}.")
    for h in listed:
        if h.status == CANNOT_TELL and not h.together_with:
            worst = h.effect.low if h.effect.low is not None and h.effect.low < 1 else None
            said.append(
                f"{h.name}: it could cost up to {100 * (1 - worst):.0f} % of the speed, or nothing."
                if worst is not None
                else f"{h.name}: {h.evidence}."
            )
    for c in comparisons:
        if c.reason:
            said.append(f"{c.after} against {c.before}: {c.reason}.")
        if c.flags and any(f.reach != "none" for f in c.flags) and len(c.flags) > 1 and c.verdict_equal not in ("nothing", None):
            which = f"Which of the {len(c.flags)} flags that changed before {c.after}"
            said.append(f"{which}: by data alone they cannot be told apart, they changed in one restart.")
    said += [f"{n[0].upper()}{n[1:]}." for n in panel.notes]
    return list(dict.fromkeys(said))


def _next(listed: list[Hypothesis], comparisons: list[Comparison], found: _Finding) -> list[str]:
    made = [h.next for h in listed if h.explains and h.next]
    made += [h.next for h in listed if h.status == CANNOT_TELL and h.together_with and h.next]
    made += [h.next for h in listed if h.status == SUPPORTED and not h.explains and h.next]
    made += [h.next for h in listed if h.status == CANNOT_TELL and not h.together_with and h.next]
    return list(dict.fromkeys(made))[:6]
