"""The table of hypotheses: each measured effect and each observation as a sentence, with its evidence and the next measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ddtree_metrics.diagnosis.apart import Apart
from ddtree_metrics.diagnosis.causes import STEP, TOKENS, Causes, Effect
from ddtree_metrics.diagnosis.result import CANNOT_TELL, REFUTED, SUPPORTED, Comparison, Hypothesis, Interval
from ddtree_metrics.diagnosis.words import factor, number, plural
from ddtree_metrics.steps.basis import Basis as Panel


@dataclass(slots=True)
class Named:
    """A hypothesis, and what the verdict needs to know of it.

    Attributes
    ----------
    hypothesis : Hypothesis
        As it is listed.
    term : str
        The term of the models that it is about.
    phrase : str
        How the verdict names it as a cause.
    strength : float
        The log of how many times slower it makes a request; 0 if not.
    numeric : bool
        Whether it rests on an effect in the models.
    part, part_status
        Its effect between the two groups that were given, and whether that is supported.
    alone : bool
        Whether it would be supported if the causes it rises with were not there.
    goes_with : bool
        Whether it would be supported if the context, which is not known, did not stand behind it.
    share_s, share_a : Interval or None
        How its effect divides into step time and acceptance.
    """

    hypothesis: Hypothesis
    term: str = ""
    phrase: str = ""
    strength: float = 0.0
    numeric: bool = False
    part: Interval | None = None
    part_status: str = CANNOT_TELL
    alone: bool = False
    goes_with: bool = False
    share_s: Interval | None = None
    share_a: Interval | None = None


@dataclass(frozen=True, slots=True)
class _Kind:
    key: str
    name: str
    term: str
    on: tuple[str, ...]
    phrase: str
    next: str


_KINDS = (
    _Kind(
        "context_step_time",
        "Context length makes steps slower",
        "context",
        (STEP,),
        "steps get slower with context",
        "sweep over context with one request at a time (ddtree-logs bench), again after each change of the attention backend",
    ),
    _Kind(
        "context_acceptance",
        "Acceptance falls with context",
        "context",
        (TOKENS,),
        "acceptance falls with context",
        "run the same text at several context lengths, several requests each",
    ),
    _Kind(
        "window_knee",
        "Acceptance falls once the context passes the drafter's window",
        "window",
        (TOKENS,),
        "acceptance falls once the context passes the drafter's window",
        "run the same text just below and just above the drafter's window, or raise the window",
    ),
    _Kind(
        "generated_acceptance",
        "Acceptance falls with generated length",
        "generated",
        (TOKENS,),
        "acceptance falls with generated length",
        "compare long outputs after short prompts with short outputs after long prompts",
    ),
    _Kind(
        "batch",
        "A larger batch makes requests slower",
        "batch",
        (STEP, TOKENS),
        "a larger batch is slower",
        "run the same requests one at a time and several at once",
    ),
    _Kind(
        "uptime",
        "The server gets slower the longer it is up",
        "uptime",
        (STEP, TOKENS),
        "the server gets slower with uptime",
        "measure one long request right after a restart, and a short one after hours",
    ),
    _Kind(
        "fragmentation",
        "The KV cache fragments: steps get slower with generated length at equal context",
        "generated",
        (STEP,),
        "steps get slower with generated length at equal context",
        "compare step times at equal context: a long prompt just begun against a short prompt after a long output",
    ),
    _Kind(
        "cached_prefix",
        "A cached prefix makes requests slower",
        "cached",
        (TOKENS, STEP),
        "requests with a cached prefix are slower",
        "send the same prompt twice, the second time after flushing the cache",
    ),
    _Kind(
        "graph_off",
        "Steps without a device graph are slower",
        "graph_off",
        (STEP,),
        "steps run without a device graph",
        "raise --cuda-graph-max-bs above the batch sizes seen, and compare",
    ),
)


def hypotheses(
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
) -> list[Named]:
    """Make the list of hypotheses, in the order of the table; parameters as in ``verdict.conclude``."""
    made = []
    for kind in _KINDS:
        if kind.key == "window_knee":
            made.append(_knee(panel, causes, kind, window))
        else:
            made.append(_measured(panel, causes, kind, explicit))
    if causes.knee_open and window is not None:
        _slope_or_knee(made, window)
    _settle(made, apart, panel)
    made.append(_flags(panel, comparisons))
    for h in tests:
        strength = -math.log(h.effect.value) if h.status == SUPPORTED and h.effect.value and h.effect.value > 0 else 0.0
        phrase = {
            "retraction": "requests are retracted and wait to be prefilled again",
            "prefill_between": "prefills of other requests hold up decoding",
        }.get(h.key, h.name[0].lower() + h.name[1:])
        made.append(Named(h, phrase=phrase, strength=strength))
    return made


def _measured(panel: Panel, causes: Causes, kind: _Kind, explicit: bool) -> Named:
    effects = [e for e in (causes.get(kind.term, on) for on in kind.on) if e is not None]
    if not effects:
        why = next((causes.untested[kind.term, on] for on in kind.on if (kind.term, on) in causes.untested), None)
        why = why or "too few rows or requests for a model"
        refuted = ": none of" in why or (kind.key == "batch" and "hardly varies" in why)
        why += ", so there is nothing to compare with" if ": all of" in why else ""
        why += ": not the cause of any difference in this log" if kind.key == "batch" and refuted else ""
        return Named(
            Hypothesis(kind.key, kind.name, REFUTED if refuted else CANNOT_TELL, kind.on[0], Interval(), why, "" if refuted else kind.next),
            kind.term,
        )
    rank = {SUPPORTED: 0, CANNOT_TELL: 1, REFUTED: 2}
    best = min(effects, key=lambda e: (rank[e.status], not e.alone, not e.goes_with, e.speed.value if e.speed.value is not None else 1.0))
    status = best.status
    said = "; ".join(_evidence(e, explicit) for e in effects)
    shown = best.part if explicit and best.part.known else best.speed
    together = tuple(best.together_with) if status == CANNOT_TELL else ()
    hypothesis = Hypothesis(
        kind.key, kind.name, status, best.on, shown, said, kind.next if status != REFUTED else "", together_with=together
    )
    named = Named(hypothesis, kind.term, numeric=True, alone=best.alone)
    used = best.part if explicit else best.speed
    if used.value is not None and 0 < used.value < 1:
        named.strength = -math.log(used.value)
    elif best.alone:
        named.strength = 0.1
    named.part, named.part_status = best.part, best.part_status
    named.goes_with = best.goes_with
    named.phrase = f"{kind.phrase} ({_change(best, explicit)})"
    if status == SUPPORTED and best.speed.value is not None and not explicit:
        named.share_s, named.share_a = _divide(causes, kind.term, best)
    return named


def _divide(causes: Causes, term: str, best: Effect) -> tuple[Interval, Interval]:
    """Divide what a cause does into step time and acceptance, with an interval from the ends of both effects."""
    step, tokens = causes.get(term, STEP), causes.get(term, TOKENS)
    s = _logs(step)
    a = _logs(tokens)
    total = s[0] + a[0]
    if total <= 0:
        return Interval(1.0 if best.on == STEP else 0.0, unit="share"), Interval(0.0 if best.on == STEP else 1.0, unit="share")
    share = s[0] / total
    # delta method: both errors act on the share, at right angles
    ds, da = (s[2] - s[1]) / 2, (a[2] - a[1]) / 2
    wide = math.hypot(ds * a[0], da * s[0]) / total**2
    return Interval(share, share - wide, share + wide, "share"), Interval(1 - share, 1 - share - wide, 1 - share + wide, "share")


def _logs(e: Effect | None) -> tuple[float, float, float]:
    """How much slower, as logs: estimate, low, high."""
    if e is None or e.speed.value is None or e.speed.low is None or e.speed.high is None:
        return 0.0, 0.0, 0.0
    return -math.log(e.speed.value), -math.log(max(e.speed.high, 1e-9)), -math.log(max(e.speed.low, 1e-9))


def _ends(e: Effect, low: float, high: float) -> str:
    if e.cause in ("context", "generated"):
        return f"from {1000 * low:,.0f} to {1000 * high:,.0f} tokens"
    if e.cause == "batch":
        return f"from {low + 1:.3g} to {high + 1:.3g} requests"
    if e.cause == "uptime":
        return f"from {low:.1f} to {high:.1f} min"
    if e.cause == "graph_off":
        return "graph off against on" if high - low == 1 else f"from {100 * low:.0f} to {100 * high:.0f} % of steps without"
    if e.cause == "cached":
        return "cached against not" if high - low == 1 else f"from {100 * low:.0f} to {100 * high:.0f} % cached"
    return "beyond the window against within" if high - low == 1 else f"from {100 * low:.0f} to {100 * high:.0f} % beyond the window"


def _change(e: Effect, explicit: bool) -> str:
    if explicit and e.part.known:
        return f"{_ends(e, e.part_low, e.part_high)}: speed {factor(Interval(e.part.value))}"
    return f"{_ends(e, e.low, e.high)}: speed {factor(Interval(e.speed.value))}"


def _evidence(e: Effect, explicit: bool) -> str:
    rows = f"{e.rows} {'timed steps' if e.on == STEP else 'request-steps'}, {e.clusters} {e.interval_from}"
    if not e.speed.known and not e.reason:
        return f"{e.on}: too few rows or requests to say anything ({rows})"
    if e.reason and not e.speed.known:
        tail = "; without those it would matter" if e.alone else ""
        return f"{e.on}: {e.reason}{tail} ({rows})"
    slope = ""
    if e.slope.value is not None and e.slope.low is not None and e.slope.high is not None:
        unit = {
            "context": "for each 1000 tokens",
            "generated": "for each 1000 tokens",
            "batch": "for each request more",
            "uptime": "a minute",
        }.get(e.cause, "in all")
        slope = f", {_signed(e.slope.value)} {e.slope.unit} {unit} ({_signed(e.slope.low)} to {_signed(e.slope.high)})"
    said = f"{e.on}, {_ends(e, e.low, e.high)}: speed {factor(e.speed)}{slope} ({rows})"
    if explicit and e.part.known:
        said += f"; between the groups {_ends(e, e.part_low, e.part_high)}: speed {factor(e.part)}"
    return f"{said}; {e.reason}" if e.reason else said


def _signed(x: float) -> str:
    written = number(abs(x))
    return written if written == "0" else f"{'+' if x >= 0 else '-'}{written}"


def _knee(panel: Panel, causes: Causes, kind: _Kind, window: int | None) -> Named:
    if window is None:
        said = "no server start line tells the drafter's window; give it as window="
        return Named(Hypothesis(kind.key, kind.name, CANNOT_TELL, TOKENS, Interval(), said, "give the drafter's window"), "window")
    effect = causes.get("window", TOKENS)
    if effect is not None:
        named = _measured(panel, causes, kind, False)
        h = named.hypothesis
        named.hypothesis = Hypothesis(
            h.key, h.name, h.status, h.acts_on, h.effect, f"window {window:,}; {h.evidence}", h.next, together_with=h.together_with
        )
        named.part, named.part_status = effect.part, effect.part_status
        return named
    known = panel.context[np.isfinite(panel.context) & panel.counted]
    beyond = int((known > window).sum())
    if not len(known):
        said = "no context length is known"
    elif beyond in (0, len(known)):
        said = f"window {window:,}; {beyond} of {len(known)} request-steps lie beyond it, so the two sides cannot be compared"
    else:
        said = f"window {window:,}; {beyond} of {len(known)} request-steps lie beyond it; "
        said += "no clear step there that the slope with context does not explain"
    return Named(Hypothesis(kind.key, kind.name, CANNOT_TELL, TOKENS, Interval(), said, kind.next), "window")


def _slope_or_knee(made: list[Named], window: int) -> None:
    """Name the slope of acceptance with context and the step at the window as one effect, where the data cannot tell which it is."""
    by_key = {n.hypothesis.key: n for n in made}
    slope, knee = by_key["context_acceptance"], by_key["window_knee"]
    if slope.hypothesis.status != SUPPORTED:
        return
    said = f"whether as a slope or at the drafter's window of {window:,} tokens cannot be told"
    slope.phrase += f", {said}"
    slope.hypothesis = replace(slope.hypothesis, evidence=f"{slope.hypothesis.evidence}; {said}")
    knee.hypothesis = replace(knee.hypothesis, status=CANNOT_TELL, together_with=("context",))


def _settle(made: list[Named], apart: Apart, panel: Panel) -> None:
    """Let pairs at equal values decide between context and uptime where the model could not."""
    by_key = {n.hypothesis.key: n for n in made}
    context, uptime = by_key["context_step_time"], by_key["uptime"]
    if apart.cause is not None:
        right, wrong = (uptime, context) if apart.cause == "uptime" else (context, uptime)
        ratio = Interval(1 / apart.factor)
        _set(right, SUPPORTED, ratio, apart.sentence)
        right.strength, right.numeric, right.alone = math.log(apart.factor), True, False
        right.phrase = (
            f"{'the server gets slower with uptime' if apart.cause == 'uptime' else 'steps get slower with context'}: {apart.sentence}"
        )
        _set(wrong, REFUTED, Interval(1.0), apart.sentence)
        wrong.alone, wrong.strength = False, 0.0
    elif apart.together:
        for n, other in ((context, "uptime"), (uptime, "context")):
            if n.hypothesis.status != REFUTED:
                _set(n, CANNOT_TELL, Interval(), apart.sentence, (other,))
                n.alone = True
                n.strength = max(n.strength, 0.1)


def _set(named: Named, status: str, effect: Interval, evidence: str, together: tuple[str, ...] = ()) -> None:
    h = named.hypothesis
    next_step = h.next
    if status == CANNOT_TELL and not next_step:
        next_step = "measure one long request right after a restart"
    named.hypothesis = Hypothesis(
        h.key, h.name, status, h.acts_on, effect, evidence, "" if status == REFUTED else next_step, together_with=together
    )


def _flags(panel: Panel, comparisons: list[Comparison]) -> Named:
    name, key = "A server flag that was changed", "flags"
    pairs = [c for c in comparisons if c.flags]
    starts = [run for run in panel.runs if run.number > 0 and run.args]
    told = [run for run in panel.runs if run.number > 0]
    if not pairs:
        if len(told) >= 2 and len(starts) < len(told):
            said = f"{plural(len(told) - len(starts), 'server start')} without a start line in the log: whether a flag changed is not known"
            return Named(Hypothesis(key, name, CANNOT_TELL, None, Interval(), said, "read the log from the server's start"))
        if len(starts) >= 2:
            compared = [c for c in comparisons if c.kind == "runs"]
            if compared:
                return Named(Hypothesis(key, name, REFUTED, None, Interval(), f"{len(starts)} server starts with the same flags", ""))
            return Named(
                Hypothesis(
                    key,
                    name,
                    CANNOT_TELL,
                    None,
                    Interval(),
                    f"{len(starts)} server starts, but no two of them have enough steps to compare",
                    "measure the same requests under both",
                )
            )
        if len(starts) == 1:
            return Named(Hypothesis(key, name, REFUTED, None, Interval(), "one server start: no flag changed while this was measured", ""))
        return Named(
            Hypothesis(
                key, name, CANNOT_TELL, None, Interval(), "no server start line is in the log", "read the log from the server's start"
            )
        )
    flags = [f for c in pairs for f in c.flags]
    by = {s: [f for f in flags if f.status == s] for s in (SUPPORTED, CANNOT_TELL, REFUTED)}
    status = SUPPORTED if by[SUPPORTED] else CANNOT_TELL if by[CANNOT_TELL] else REFUTED
    said = "; ".join(f"{', '.join(_flag_name(f.flag) for f in by[s])} {s}" for s in by if by[s])
    first = (by[SUPPORTED] or by[CANNOT_TELL] or by[REFUTED])[0]
    raw = "; ".join(
        f"{c.before} to {c.after}: step time {factor(c.step_time_ratio)} as logged and {factor(c.step_time_ratio_equal)} at equal context, "
        f"tokens per step {factor(c.tokens_ratio)} and {factor(c.tokens_ratio_equal)}"
        for c in pairs[-2:]
    )
    next_step = "" if status == REFUTED else "restart with one flag changed at a time, and send the same requests"
    phrase = f"{', '.join(_flag_name(f.flag) for f in by[SUPPORTED][:3])} changed with the restart" if by[SUPPORTED] else ""
    return Named(
        Hypothesis(key, name, status, None, Interval(), f"{said} ({raw}); {_flag_name(first.flag)}: {first.evidence}", next_step),
        phrase=phrase,
    )


def _flag_name(flag: str) -> str:
    return "--" + flag.lstrip("-").replace("_", "-")
