"""The verdict, the comparisons and the hypotheses as they are handed out: the one place where all of it becomes sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ddtree_metrics.diagnosis import compare, phrases
from ddtree_metrics.diagnosis.beside_breaks import beside
from ddtree_metrics.diagnosis.breaks import Break
from ddtree_metrics.diagnosis.causes import STEP, TOKENS, label
from ddtree_metrics.diagnosis.flags import Changed
from ddtree_metrics.diagnosis.hypotheses import Named
from ddtree_metrics.diagnosis.numerals import factor, number, percent
from ddtree_metrics.diagnosis.reasons import Why
from ddtree_metrics.diagnosis.result import (
    CANNOT_TELL,
    REFUTED,
    SUPPORTED,
    Comparison,
    Diagnosis,
    FlagChange,
    Hypothesis,
    Since,
)
from ddtree_metrics.diagnosis.scene import scene_of
from ddtree_metrics.diagnosis.study import Findings, Study
from ddtree_metrics.diagnosis.verdict import Compared, Verdict
from ddtree_metrics.layout import plural
from ddtree_metrics.metrics.doubt import Estimate, Interval
from ddtree_metrics.steps.basis import Basis, Kind
from ddtree_metrics.times import format_us

GIVE_REQUESTS = "give the requests (--requests FILE), or a log with its Decode batch lines: without them the context is not known"

GIVE_CLIENT = (
    "give the client's requests (--requests FILE): they tell the context of windows in which one ran alone, or the same all through"
)
SEND_ALONE = "send requests one at a time, or as many at once for several windows: only there the context of a window is known"

USABLE = 0.5
"""Where a smaller share of the steps could be timed than this, it is said."""

NEXT = 6
"""So many things to measure next are listed."""


def diagnosis(
    panel: Basis,
    comparisons: Sequence[Compared],
    named: Sequence[Named],
    verdict: Verdict,
    found: Findings,
    breaks: Sequence[Break],
    asked: Study,
    seed: int,
    *,
    explicit: bool,
    log: Any = None,
) -> Diagnosis:
    """Write the diagnosis.

    Parameters
    ----------
    panel : Basis
        All rows.
    comparisons : sequence of Compared
        The comparison asked for, or those of the whole log.
    named : sequence of Named
        All hypotheses.
    verdict : Verdict
        What follows.
    found : Findings
        The models.
    breaks : sequence of Break
        Sudden changes.
    asked : Study
        How sure to be.
    seed : int
        For the intervals of shares.
    explicit : bool
        Whether two groups were given.
    log : Log, optional
        For what stands beside a break.
    """
    told = {id(c): _comparison(c, asked, seed) for c in comparisons}
    order = sorted(comparisons, key=lambda c: c is not verdict.main)
    shown = [told[id(c)] for c in order]
    main = told[id(verdict.main)] if verdict.main is not None else None
    telling = {id(n) for n in verdict.causes}
    hypotheses = [_hypothesis(n, asked, explicit=explicit, explains=id(n) in telling) for n in named]
    rank = {SUPPORTED: 1, CANNOT_TELL: 2, REFUTED: 3}
    strength = {n.key: n.strength for n in named}
    hypotheses.sort(key=lambda h: (0 if h.explains else rank[h.status], -strength[h.key]))
    all_since = tuple(_since(b, panel, log, asked) for b in breaks)
    since = _since_of(verdict, dict(zip([id(b) for b in breaks], all_since, strict=True)))
    share_m = share_s = share_a = Interval(unit="share")
    if main is not None and verdict.kind not in ("nothing", "between_steps"):
        share_m, share_s, share_a = main.share_mix, main.share_step_time, main.share_acceptance
    sentence = _sentence(panel, verdict, main, shown, named, found, since, asked, explicit=explicit)
    return Diagnosis(
        verdict=sentence + _not_normal(named),
        kind=verdict.kind,
        share_step_time=share_s,
        share_acceptance=share_a,
        comparisons=tuple(shown),
        hypotheses=tuple(hypotheses),
        slopes=_slopes(found, asked),
        cannot_tell=tuple(_open_questions(panel, shown, hypotheses, verdict)),
        next=tuple(_next(panel, hypotheses, found)),
        excluded=dict(panel.excluded),
        used=_used(panel),
        basis=panel.basis,
        level=asked.level,
        direction=verdict.direction,
        since=since,
        breaks=all_since,
        unchanged_within=verdict.within,
        scene=scene_of(panel, log),
        share_mix=share_m,
    )


def _comparison(c: Compared, asked: Study, seed: int) -> Comparison:
    made = compare.told(c.seen, c.raw, c.equal, asked, seed)
    numbers = phrases.numbers_at_equal(made)
    flags = tuple(_flag(f, numbers) for f in c.flags)
    made = replace(made, flags=flags, reason=phrases.reasons(made.reasons) or None)
    return replace(made, sentence=phrases.compared(made))


def _flag(c: Changed, numbers: str) -> FlagChange:
    return FlagChange(c.flag, c.before, c.after, c.reach, c.status, phrases.flag_evidence(c, numbers))


def _hypothesis(n: Named, asked: Study, *, explicit: bool, explains: bool) -> Hypothesis:
    if n.seen is not None:
        said = phrases.observed(n.seen)
    elif n.key == "flags":
        said = _flags_evidence(n)
    elif n.key in ("break_step_time", "break_acceptance"):
        said = _breaks_evidence(n, asked)
    elif n.effects and not any(r.kind is Why.PAIRS for r in n.reasons):
        said = "; ".join(phrases.evidence_of(e, asked.level, explicit=explicit) for e in n.effects)
    else:
        said = phrases.reasons(n.reasons)
    return Hypothesis(
        n.key,
        phrases.CAUSES[n.key].name,
        n.status,
        n.acts_on,
        n.shown,
        said,
        phrases.next_of(n),
        explains,
        n.together_with,
        tuple(n.reasons),
    )


def _flags_evidence(n: Named) -> str:
    if n.flags:
        by = {s: [f for f in n.flags if f.status == s] for s in (SUPPORTED, CANNOT_TELL, REFUTED)}
        return "; ".join(f"{', '.join(phrases.set_to(f) for f in by[s])}: {phrases.STATUS[s]}" for s in by if by[s])
    facts = n.reasons[0].numbers
    starts, runs = int(facts["starts"]), int(facts["runs"])
    if runs >= 2 and starts < runs:
        return f"{plural(runs - starts, 'server start')} without a start line in the log: whether a flag changed is not known"
    if starts >= 2:
        if facts["compared"]:
            return f"{starts} server starts with the same flags"
        return f"{starts} server starts, but no two of them have enough steps to compare"
    if starts == 1:
        return "one server start: no flag changed while this was measured"
    return "no server start line is in the log"


def _breaks_evidence(n: Named, asked: Study) -> str:
    if not n.breaks:
        return "no sudden change at equal context and batch"
    return "; ".join(
        f"{'little by little from' if b.gradual else f'at {phrases.clock(b.time_us)}, between'} {phrases.clock(b.low_us)} and "
        f"{phrases.clock(b.high_us)}: {n.acts_on} {factor(b.size.ratio(asked.level))}"
        for b in n.breaks
    )


def _since(b: Break, panel: Basis, log: Any, asked: Study) -> Since:
    return Since(
        "break",
        format_us(b.time_us),
        format_us(b.low_us),
        format_us(b.high_us),
        b.on,
        b.size.ratio(asked.level),
        tuple(beside(b, panel, log)) if log is not None else (),
    )


def _since_of(verdict: Verdict, breaks: dict[int, Since]) -> Since | None:
    c = verdict.main
    if c is None or verdict.direction in ("unchanged", "cannot_tell"):
        return None
    if c.broken is not None:
        return breaks.get(id(c.broken))
    if c.seen.kind == "runs" and c.restart_us is not None:
        at = format_us(c.restart_us)
        return Since("restart", at, at, at)
    return None


# -- the sentence ----------------------------------------------------------------------------------------------------------------


def _sentence(
    panel: Basis,
    verdict: Verdict,
    main: Comparison | None,
    shown: Sequence[Comparison],
    named: Sequence[Named],
    found: Findings,
    since: Since | None,
    asked: Study,
    *,
    explicit: bool,
) -> str:
    if not len(panel):
        return f"It cannot be told: there is nothing to measure ({panel.basis})."
    if (verdict.kind == "cannot_tell" and verdict.why != "unexplained") or (verdict.direction == "cannot_tell"):
        return f"It cannot be told{_open(panel, verdict, main, named, found, asked)}.{_restarts(shown, main, explicit)}"
    if verdict.kind == "nothing":
        within = f" beyond {100 * verdict.within:.0f} %" if verdict.within else ""
        said = [f"Nothing: no change of speed{within} is shown, and no measured cause stands out."]
        if main is not None and main.speed_ratio.known:
            said.append(f"{_capital(main.after)} against {main.before}: speed {factor(main.speed_ratio if explicit else _speed(main))}.")
        return " ".join(said) + _restarts(shown, main, explicit)
    said = [_head(verdict, main, since, explicit=explicit)]
    causes = list(dict.fromkeys(_as_cause(n, asked, explicit=explicit) for n in verdict.causes))[:3]
    if causes:
        more = [*causes[1:], *[phrases.reasons(n.reasons) for n in verdict.together if n.reasons][:1]]
        _go_on(said, causes[0], "Cause: ")
        said += [f"Also: {'; '.join(dict.fromkeys(more))}."] if more else []
    elif verdict.why == "context":
        _go_on(said, f"why cannot be told, since {_without_context(panel, shown, named, found)}", "It is open ")
    elif verdict.together:
        _go_on(said, f"of its causes, {_together(verdict.together)} cannot be told apart", "But ")
    elif verdict.why == "unexplained":
        _go_on(said, _unexplained(verdict, main), "Why is not known: ")
    parts = _divided(verdict, main, asked, explicit=explicit)
    return " ".join([*said, *([f"{parts}."] if parts else [])]) + _restarts(shown, main, explicit)


LONGEST_HEADLINE = 25
"""The first sentence has no more words than this."""


def _go_on(said: list[str], more: str, otherwise: str) -> None:
    """Add to the headline, or where it would grow too long say it in a sentence of its own."""
    both = f"{said[0]}: {more}"
    if ": " not in said[0] and len(both.split(". ")[0].split()) <= LONGEST_HEADLINE:
        said[0] = f"{both}."
    else:
        said[0] += "."
        said.append(f"{otherwise}{more}.")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


_OPENING = {
    "step_time": "Step time",
    "acceptance": "Acceptance",
    "both": "Step time and acceptance, both",
    "between_steps": "Time is lost between steps",
    "cannot_tell": "What it is cannot be told",
}


def _speed(c: Comparison) -> Interval:
    return c.speed_ratio_equal if c.speed_ratio_equal.known else c.speed_ratio


def _head(verdict: Verdict, main: Comparison | None, since: Since | None, *, explicit: bool) -> str:
    opening = _OPENING[verdict.kind]
    if main is not None and verdict.kind in ("step_time", "acceptance") and _also(verdict.kind, main, explicit=explicit):
        opening += ", mostly"
    if main is None or verdict.kind == "between_steps":
        return opening
    lower = opening[0].lower() + opening[1:]
    if since is not None and not explicit:
        word = "Faster" if verdict.direction == "faster" else "Slower" if verdict.direction == "slower" else "Changed"
        names = f" ({main.before} to {main.after})"
        where = f"the restart at {since.time[11:19]}" if since.what == "restart" else since.time[11:19]
        speeds = f", {number(main.speed_before)} -> {number(main.speed_after)} tok/s a request: {lower}"
        long = len(f"{word} since {where}{names}{speeds}".split()) > LONGEST_HEADLINE
        return f"{word} since {where}{names if since.what == 'restart' and not long else ''}{speeds}"
    if explicit and verdict.direction in ("faster", "mixed"):
        name = main.after[0].upper() + main.after[1:]
        how = "is the faster" if verdict.direction == "faster" else "has both numbers moved, one against the other"
        return f"{name} {how} ({factor(main.speed_ratio)}), by {lower}"
    return opening


ALONE = 0.95
"""A number that makes up less of a change than this is most of it, not all."""


def _also(kind: str, main: Comparison, *, explicit: bool) -> bool:
    """Whether the other number went the same way and did more than a little: of the change that the verdict is about."""
    equal = not explicit and main.speed_ratio_equal.known
    step, per = (main.step_time_ratio_equal, main.tokens_ratio_equal) if equal else (main.step_time_ratio, main.tokens_ratio)
    if not step.value or not per.value:
        return False
    own, other = -math.log(step.value), math.log(per.value)
    own, other = (own, other) if kind == "step_time" else (other, own)
    return own * other > 0 and abs(own) < ALONE * abs(own + other)


def _as_cause(n: Named, asked: Study, *, explicit: bool) -> str:
    said = phrases.CAUSES[n.key].as_cause
    if n.key == "flags":
        supported = [f for f in n.flags if f.status == SUPPORTED]
        return f"{', '.join(phrases.set_to(f) for f in supported[:3])} changed with the restart"
    if n.key in ("break_step_time", "break_acceptance"):
        return f"{said} ({_breaks_evidence(n, asked)})"
    if n.seen is not None:
        return f"{said} ({phrases.observed(n.seen)})" if n.key in ("nothing_accepted", "episodes", "prefill_between") else said
    if any(r.kind is Why.PAIRS for r in n.reasons):
        return f"{said}: {phrases.reasons(n.reasons)}"
    if n.effects:
        e = n.effects[0]
        if explicit and e.part.known:
            return f"{said} ({phrases.ends(e.cause, e.part_low, e.part_high)}: speed {factor(Interval(math.exp(e.part.value)))})"
        if e.speed.known:
            return f"{said} ({phrases.ends(e.cause, e.low, e.high)}: speed {factor(Interval(math.exp(e.speed.value)))})"
    return said


def _together(named: Sequence[Named]) -> str:
    words = dict.fromkeys(label(x) for n in named for x in [n.term, *n.together_with])
    return phrases.joined(list(words))


def _unexplained(verdict: Verdict, main: Comparison | None) -> str:
    if main is not None and main.kind == "runs":
        reach = [f for f in main.flags if f.status == CANNOT_TELL]
        if reach:
            return f"which of {', '.join(phrases.flag_name(f.flag) for f in reach[:4])} did it cannot be told, they changed in one restart"
        return (
            f"it changed with the restart from {main.before} to {main.after}, and no flag that changed can do that: "
            "the text of the requests, or what no line tells"
        )
    return "none of the measured causes explains it: look at what else changed (flags, drafter, text of the requests)"


def _divided(verdict: Verdict, main: Comparison | None, asked: Study, *, explicit: bool) -> str:
    """Say how the change divides: factors always, shares only where no part worked against it."""
    if main is None or verdict.kind not in ("step_time", "acceptance", "both"):
        return ""
    if not (main.step_time_ratio.known and main.tokens_ratio.known):
        return (
            "Not divided: tokens per step are not known"
            if main.step_time_ratio.known
            else "Not divided: step times are not known"
            if main.tokens_ratio.known
            else ""
        )
    shown = verdict.main is not None and verdict.main.shown
    if not explicit and not shown and main.direction in ("unchanged", "cannot_tell"):
        return ""
    if not explicit and not shown and main.verdict != verdict.kind:
        return ""
    return parts(main, asked.least)


def parts(c: Comparison, least: float) -> str:
    """Say what a change of speed is made of: its shares where there are some, as the table and the picture have them, else its factors."""
    equal = c.speed_ratio_equal.known
    step, per = (c.step_time_ratio_equal, c.tokens_ratio_equal) if equal else (c.step_time_ratio, c.tokens_ratio)
    if c.share_step_time.known:
        names = (("mix of requests", c.share_mix), ("step time", c.share_step_time), ("acceptance", c.share_acceptance))
        said = ", ".join(f"{name} {percent(share)}" for name, share in names if share.value is not None and share.value >= LEAST_SHARE)
        return f"Of the {'slow-down' if (c.speed_ratio.value or 1) < 1 else 'speed-up'}: {said}" + _left(c, least)
    if not step.known or not per.known:
        return ""
    steps = f"steps got {'slower' if (step.value or 1) > 1 else 'faster'}, {factor(step)}"
    tokens = f"tokens per step {'rose' if (per.value or 1) > 1 else 'fell'}, {factor(per)}"
    mix = c.mix_ratio.value
    if equal and mix is not None and abs(math.log(mix)) > least / 2:
        held = phrases.joined([label(t) for t in c.equal_of])
        return f"At equal {held} {steps}, and {tokens}; the mix of these did {factor(c.mix_ratio)} to speed{_left(c, least)}"
    return f"{_capital(steps)}, and {tokens}" + (" at equal mix" if equal else "")


LEAST_SHARE = 0.005
"""A smaller share is none, and is not said."""


def _left(c: Comparison, least: float) -> str:
    """Say how much slower or faster requests are at equal mix, where that is another number than as logged."""
    mix = c.mix_ratio.value
    if mix is None or abs(math.log(mix)) <= least / 2 or not c.speed_ratio_equal.known:
        return ""
    return f"; at equal mix requests are {phrases.slower(c.speed_ratio_equal)}"


def _restarts(shown: Sequence[Comparison], main: Comparison | None, explicit: bool) -> str:
    """Say what a restart did, where the verdict is not about it, and which of its flags are ruled out."""
    pairs = [c for c in shown if c.kind == "runs" and (c.verdict_equal is not None)]
    pairs.sort(key=lambda c: c.direction_equal in ("unchanged", "cannot_tell"))
    said = ""
    for c in pairs[:1]:
        if c is not main and not explicit and c.speed_ratio_equal.known:
            ratios = f"step time {factor(c.step_time_ratio_equal)}, tokens per step {factor(c.tokens_ratio_equal)}"
            equal = f"at equal {phrases.joined([label(t) for t in c.equal_of])}"
            if c.direction_equal == "unchanged":
                said += f" Nothing shows that the restart from {c.before} to {c.after} matters {equal} ({ratios})."
            elif c.direction_equal == "cannot_tell":
                said += f" Whether the restart from {c.before} to {c.after} matters {equal} cannot be told ({ratios})."
            else:
                part = phrases.PART.get(c.verdict_equal or "", "something")
                said += f" From {c.before} to {c.after} requests are {phrases.slower(c.speed_ratio_equal)}, by {part}: {ratios} {equal}."
        ruled_out = [phrases.flag_name(f.flag) for f in c.flags if f.status == REFUTED and f.reach != "measurement"]
        if ruled_out:
            said += f" Not the cause: {', '.join(ruled_out[:4])}{' and others' if len(ruled_out) > 4 else ''}."
    return said


def _open(panel: Basis, verdict: Verdict, main: Comparison | None, named: Sequence[Named], found: Findings, asked: Study) -> str:
    """Say what it is that leaves the answer open."""
    if verdict.why == "together":
        texts = [n for n in verdict.together if "text" in n.together_with]
        others = [n for n in verdict.together if "text" not in n.together_with]
        if others:
            acts = phrases.joined(sorted({n.acts_on or "" for n in others if n.acts_on}))
            return f" which: {acts} gets worse, but {_together(others)} rise together in this log, so the cause cannot be told apart"
        return ": " + "; ".join(dict.fromkeys(phrases.reasons(n.reasons) for n in texts[:2]))
    if verdict.why == "text" and main is not None:
        few = f" ({plural(main.rows['requests_before'], 'request')} with short and {main.rows['requests_after']:,} with long context)"
        return (
            f": requests with long context accept less (tokens per step {factor(main.tokens_ratio)}), and context and the kind of text "
            f"vary together{few if main.rows['requests_after'] else ''}"
        )
    if verdict.why == "context":
        return f": {_without_context(panel, [main] if main is not None else [], named, found)}"
    if verdict.why == "untimed" or not panel.timed.any():
        reasons = {k: v for k, v in panel.excluded.items() if k.startswith(("no step time", "step time"))}
        most = max(reasons, key=lambda k: reasons[k]) if reasons else ""
        word = most.removeprefix("no step time: ")
        return ": no step has a step time" + (f" ({reasons[most]} of {len(panel)}: {word})" if most and most != "no step time" else "")
    if verdict.why == "uncounted" or not panel.counted.any():
        return ": no step has a number of tokens"
    if main is not None and not main.speed_ratio.known:
        return f": {main.reason or f'{main.after} and {main.before} cannot be compared'}"
    if main is None:
        lacking = {term: phrases.reason(r) for (term, _), r in reversed(found.lacking.items()) if term in ("context", "batch", "uptime")}
        few = f": {plural(int(panel.timed.sum()), 'timed step')} only"
        same = phrases.joined([_lower(said.removeprefix("Not testable: ")) for said in lacking.values()])
        return few + (
            f", and nothing to compare them by: {same}"
            if lacking
            else f" of {plural(len(np.unique(panel.cluster[panel.known])), 'request')}"
        )
    ratio = _speed(main) if main.verdict_equal is not None else main.speed_ratio
    mix = " at equal mix" if ratio is main.speed_ratio_equal and ratio.known else ""
    said = f"{main.after} against {main.before}: speed {factor(ratio)}{mix}"
    if main.verdict_equal is not None and not main.speed_ratio_equal.known:
        return f": {main.reason or 'the two cannot be compared at equal mix'} ({said})"
    if ratio.low is None or ratio.high is None:
        return f": {said}, and there are too few requests and steps for an interval"
    if verdict.why == "unexplained":
        return f": no measured cause can be held responsible beyond doubt. {_capital(said)}"
    change = 100 * (1 - math.exp(-asked.least))
    lost = 100 * (1 - ratio.low)
    if lost > change:
        return f": no slow-down is shown, but one of up to {lost:.0f} % is not ruled out, and {change:.0f} % counts. {_capital(said)}"
    return f": no change is shown, but one of up to {100 * (ratio.high - 1):.0f} % is not ruled out. {_capital(said)}"


def _without_context(panel: Basis, shown: Sequence[Comparison], named: Sequence[Named], found: Findings) -> str:
    """Say what is visible where the context is not known: levels and drifts, and what goes with them."""
    use = panel.timed if found.context_lacks(STEP) else panel.counted
    known, rows = int((use & np.isfinite(panel.context)).sum()), int(use.sum())
    said = f"context is known for {known:,} of {plural(rows, 'step')}, so context, batch size and other causes cannot be separated"
    seen = [_moved(c) for c in shown if c.kind in ("parts", "runs") and c.speed_ratio.known]
    spread = _spread(found)
    seen += [spread] if spread else []
    for n in named:
        if n.goes_with and n.shown.value is not None and n.effects:
            e = n.effects[0]
            how = f"{phrases.CAUSES[n.key].as_cause} ({phrases.ends(e.cause, e.low, e.high)}: speed {factor(Interval(n.shown.value))})"
            seen.append(f"this goes with it, but the context may stand behind it: {how}")
    return said + (f". What is visible: {'; '.join(seen)}" if seen else "")


def _moved(c: Comparison) -> str:
    step = f"step time {number(c.step_time_before_ms)} -> {number(c.step_time_after_ms)} ms, {factor(c.step_time_ratio)}"
    per = f"tokens per step {number(c.tokens_before, 2)} -> {number(c.tokens_after, 2)}, {factor(c.tokens_ratio)}"
    return f"{c.after} against {c.before}: {step}, {per}"


def _spread(found: Findings) -> str:
    """Say how far the step time of stretches of steps lies apart, which the ends of a log do not show."""
    cells = found.steps.cells
    if len(cells) < 10:
        return ""
    low, high = (float(q) for q in np.quantile(cells.mean, [0.1, 0.9]))
    return f"the step time of stretches of steps lies between {number(low)} and {number(high)} ms (10th to 90th percentile of {len(cells)})"


def _not_normal(named: Sequence[Named]) -> str:
    """Say that the numbers are not those of normal service, where something supported makes them so."""
    found = [phrases.CAUSES[n.key].as_cause for n in named if n.key in ("simulated", "profiling", "too_good") and n.status == SUPPORTED]
    return f" The numbers are not those of normal service: {'; '.join(found)}." if found else ""


# -- lists -----------------------------------------------------------------------------------------------------------------------


def _slopes(found: Findings, asked: Study) -> dict[str, Interval]:
    made = {}
    for e in found.effects:
        if e.cause.slope and e.slope.known:
            made[e.cause.slope] = e.slope.plain(asked.level, "ms" if e.cause.on == STEP else "tokens")
    return made


def _used(panel: Basis) -> dict[str, int]:
    return {
        "request_steps": int(panel.counted.sum()),
        "steps": int(panel.first.sum()),
        "timed_steps": int(panel.timed.sum()),
        "requests": len(np.unique(panel.cluster[panel.known])),
        "server_starts": sum(run.number > 0 for run in panel.runs),
    }


def _open_questions(panel: Basis, shown: Sequence[Comparison], hypotheses: Sequence[Hypothesis], verdict: Verdict) -> list[str]:
    said: list[str] = []
    for h in hypotheses:
        if h.status == CANNOT_TELL and h.together_with:
            said.append(f"{h.name}: cannot be told apart from {phrases.joined([label(x) for x in h.together_with])}.")
    for h in hypotheses:
        if h.status != CANNOT_TELL or h.together_with:
            continue
        worst = h.effect.low if h.effect.low is not None and h.effect.low < 1 else None
        said.append(
            f"{h.name}: 0 to {100 * (1 - worst):.0f} % slower; too little to tell." if worst is not None else f"{h.name}: {h.evidence}."
        )
    for c in shown:
        if c.reason:
            said.append(f"{c.after} against {c.before}: {c.reason}.")
        if c.flags and any(f.reach != "none" for f in c.flags) and len(c.flags) > 1 and c.direction_equal not in ("unchanged", None):
            which = f"Which of the {len(c.flags)} flags that changed before {c.after}"
            said.append(f"{which}: by data alone they cannot be told apart, they changed in one restart.")
    steps, timed = int(panel.first.sum()), int(panel.timed.sum())
    if steps and timed < USABLE * steps:
        what = "window" if panel.windows else "step"
        said.append(
            f"{timed:,} of {plural(steps, what)} could be timed ({100 * timed / steps:.0f} %): what is said of step time rests on these."
        )
    said += [f"{n[0].upper()}{n[1:]}." for n in panel.notes]
    return list(dict.fromkeys(said))


def _next(panel: Basis, hypotheses: Sequence[Hypothesis], found: Findings) -> list[str]:
    windows = SEND_ALONE if np.isfinite(panel.context).any() else GIVE_CLIENT
    asked = windows if panel.kind is Kind.ENGINE_WINDOWS else GIVE_REQUESTS
    made = [asked] if any(found.context_lacks(on) for on in (STEP, TOKENS)) else []
    made += [h.next for h in hypotheses if h.explains and h.next]
    made += [h.next for h in hypotheses if h.status == CANNOT_TELL and h.together_with and h.next]
    made += [h.next for h in hypotheses if h.status == SUPPORTED and not h.explains and h.next]
    made += [h.next for h in hypotheses if h.status == CANNOT_TELL and not h.together_with and h.next]
    return list(dict.fromkeys(made))[:NEXT]


__all__ = ["Estimate", "diagnosis"]
