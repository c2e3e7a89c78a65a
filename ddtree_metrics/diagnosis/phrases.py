"""Every sentence of a diagnosis: reasons, causes, observations, comparisons and verdicts in words, made of kinds and numbers at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddtree_metrics.diagnosis.causes import STEP, TOKENS, Cause, label
from ddtree_metrics.diagnosis.flags import Changed
from ddtree_metrics.diagnosis.hypotheses import Named
from ddtree_metrics.diagnosis.numerals import factor, number, tokens
from ddtree_metrics.diagnosis.observed import Seen
from ddtree_metrics.diagnosis.reasons import Reason, Why
from ddtree_metrics.diagnosis.result import CANNOT_TELL, REFUTED, SUPPORTED, Comparison
from ddtree_metrics.diagnosis.study import Effect
from ddtree_metrics.layout import plural
from ddtree_metrics.metrics.doubt import Interval
from ddtree_metrics.steps.starts import NOT_SET
from ddtree_metrics.times import format_us

STATUS = {SUPPORTED: "cause", REFUTED: "ruled out", CANNOT_TELL: "unknown"}
"""The words for what the data say of a hypothesis."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """How a cause is named.

    Attributes
    ----------
    name : str
        The hypothesis as a sentence.
    as_cause : str
        How the verdict names it.
    next : str
        What to measure next.
    """

    name: str
    as_cause: str
    next: str = ""


CAUSES: dict[str, Phrase] = {
    "context_step_time": Phrase(
        "Context length makes steps slower",
        "steps get slower with context",
        "sweep over context with one request at a time (ddtree-logs bench), again after each change of the attention backend",
    ),
    "context_acceptance": Phrase(
        "Acceptance falls with context",
        "acceptance falls with context",
        "run the same text at several context lengths, several requests each",
    ),
    "window_knee": Phrase(
        "Acceptance falls once the context passes the drafter's window",
        "acceptance falls once the context passes the drafter's window",
        "run the same text just below and just above the drafter's window, or raise the window",
    ),
    "generated_acceptance": Phrase(
        "Acceptance falls with generated length",
        "acceptance falls with generated length",
        "compare long outputs after short prompts with short outputs after long prompts",
    ),
    "batch": Phrase(
        "A larger batch makes requests slower", "a larger batch is slower", "run the same requests one at a time and several at once"
    ),
    "uptime": Phrase(
        "The server gets slower the longer it is up",
        "the server gets slower with uptime",
        "measure one long request right after a restart, and a short one after hours",
    ),
    "fragmentation": Phrase(
        "The KV cache fragments: steps get slower with generated length at equal context",
        "steps get slower with generated length at equal context",
        "compare step times at equal context: a long prompt just begun against a short prompt after a long output",
    ),
    "cached_prefix": Phrase(
        "A cached prefix makes requests slower",
        "requests with a cached prefix are slower",
        "send the same prompt twice, the second time after flushing the cache",
    ),
    "graph_off": Phrase(
        "Steps without a device graph are slower",
        "steps run without a device graph",
        "raise --cuda-graph-max-bs above the batch sizes seen, and compare",
    ),
    "budget": Phrase("Another draft budget changes the speed", "the draft budget changed", "run the same requests under both budgets"),
    "flags": Phrase("A server flag that was changed", "", "restart with one flag changed at a time, and send the same requests"),
    "break_step_time": Phrase(
        "Step time changed suddenly in mid-run",
        "step time changed suddenly",
        "look at what else happened on the machine at that time: other processes, clocks, power, temperature",
    ),
    "break_acceptance": Phrase(
        "Acceptance changed suddenly in mid-run",
        "acceptance changed suddenly",
        "send one of the earlier requests again: if it is accepted as before, the text changed and not the server",
    ),
    "retraction": Phrase(
        "Requests are retracted: the KV pool is too small",
        "requests are retracted and wait to be prefilled again",
        "raise --max-total-tokens or --mem-fraction-static, or lower --max-running-requests, and compare the time between steps",
    ),
    "prefill_between": Phrase(
        "Prefills of other requests hold up decoding",
        "prefills of other requests hold up decoding",
        "look at --chunked-prefill-size and at the times of arrival of long prompts",
    ),
    "suppressed": Phrase(
        "Lines were suppressed by journald",
        "lines were suppressed by journald",
        "set LogRateLimitIntervalSec=0 for the unit, or raise RateLimitBurst in journald.conf",
    ),
    "simulated": Phrase("Simulated acceptance was left on", "simulated acceptance was left on", "switch it off and measure again"),
    "profiling": Phrase(
        "Profiling or a debug switch was left on", "profiling or a debug switch was left on", "switch it off and measure again"
    ),
    "too_good": Phrase(
        "Acceptance is too good: a repetition loop or placeholder drafts",
        "acceptance stays at its cap as in a repetition loop or with placeholder drafts",
        "look at the text of these requests; check that drafts are not placeholders",
    ),
    "nothing_accepted": Phrase(
        "Speculation is on and no draft is accepted",
        "speculation is on and no draft is accepted",
        "check that the draft model belongs to the target (vocabulary, chat template, revision), or switch speculation off",
    ),
    "speculation": Phrase(
        "Speculation was switched on or off", "speculation was switched", "compare both at the batch sizes and texts that are served"
    ),
    "episodes": Phrase(
        "Steps were slower for a while and then as before",
        "steps were slower for a while",
        "look at what else ran on the machine at those times",
    ),
}
"""The sentence of every hypothesis by its key."""


# -- reasons -------------------------------------------------------------------------------------------------------------------


def _scaled(cause: Cause, value: float) -> str:
    shown = value * cause.unit.scale + cause.unit.offset
    if cause.unit.shown == "tokens":
        return tokens(shown)
    return f"{shown:.1f}" if cause.unit.shown == "min" else f"{shown:.3g}"


def _cause_of(term: str, on: str) -> Cause:
    from ddtree_metrics.diagnosis.causes import CAUSES as RECORDS

    found = [c for c in RECORDS if c.term == term]
    return next((c for c in found if c.on == on), found[0])


def _hardly(n: Mapping[str, Any]) -> str:
    cause = _cause_of(str(n["term"]), str(n["on"]))
    low, high = _scaled(cause, float(n["low"])), _scaled(cause, float(n["high"]))
    name = cause.label[0].upper() + cause.label[1:]
    unit = f" {cause.unit.shown}" if cause.unit.shown not in ("", "requests") else ""
    return f"{name} was always {low}{unit}" if low == high else f"Not testable: {cause.label} was only {low} to {high}{unit}"


def _what(on: str) -> str:
    return "step time" if on == STEP else "number of tokens"


def _known(n: Mapping[str, Any]) -> str:
    return (
        f"{label(str(n['term']))} is known for {int(n['known']):,} of {plural(int(n['rows']), 'step' if n['on'] == STEP else 'row')} only"
    )


_REASONS: dict[Why, Callable[[Mapping[str, Any]], str]] = {
    Why.NO_ROWS: lambda n: f"no row has a {_what(n['on'])}" if not n["rows"] else f"one row only has a {_what(n['on'])}",
    Why.NOT_KNOWN: _known,
    Why.HARDLY_VARIES: _hardly,
    Why.ALWAYS: lambda n: f"{label(n['term'])}: all of {n['rows']:,} rows, so there is nothing to compare with",
    Why.NEVER: lambda n: (
        f"CUDA graph was on for every step ({n['rows']:,} rows)"
        if n["term"] == "graph_off"
        else f"{label(n['term'])}: none of {n['rows']:,} rows"
    ),
    Why.NO_MODEL: lambda n: f"{n['on']}: too few rows or requests to say anything" + (f" ({n['rows']:,} rows)" if n["rows"] else ""),
    Why.TOGETHER: lambda n: (
        f"it rises together with {' and '.join(label(o) for o in n['others'])} in this log, so the two cannot be told apart"
    ),
    Why.CONTEXT_UNKNOWN: lambda n: f"{_known(n)}, and it may stand behind it",
    Why.GROWS_WITH_CONTEXT: lambda n: f"{_known(n)}, and {label(str(n['other']))} grows with it",
    Why.FEW_REQUESTS: lambda n: (
        f"it rests on {plural(n['low'], 'request')} with less {label(n['term'])} and {n['high']:,} with more: with fewer than {n['least']} "
        f"on a side "
        f"{label(n['term'])} and the kind of text vary together"
    ),
    Why.FEW_STEPS: lambda n: (
        f"less {label(n['term'])} was seen {plural(n['low'], 'time')} and more {n['high']:,}, and fewer than {n['least']} on a side "
        "support nothing"
    ),
    Why.TEXT_OR: lambda n: _text_or(n),
    Why.WITHIN: lambda n: "the same is seen within requests as they grow, so it is not their text",
    Why.SHORT_UPTIME: lambda n: (
        f"uptime was only {n['minutes']:.1f} min, and {n['least']:.0f} min of one start, or several starts, are needed to tell it from any "
        "other change in mid-run"
    ),
    Why.REVERSED: lambda n: (
        "larger batches go with slower steps over the log, but not within a minute: requests overlap because steps are slow"
    ),
    Why.ON_SOME_ROWS: lambda n: f"measured on those steps of which it is known ({_known(n)})",
    Why.GRAPH_UNKNOWN: lambda n: f"{_known(n)}, and in the Decode lines it goes with the batch size",
    Why.SAME_AS_BATCH: lambda n: "the device graph is off exactly at the larger batch sizes: the two cannot be told apart",
    Why.SLOPE_OR_KNEE: lambda n: f"it falls at the drafter's window of {n['window']:,.0f} tokens, and not as a slope",
    Why.PAIRS: lambda n: str(n["sentence"]),
    Why.NO_WINDOW: lambda n: "no server start line tells the drafter's window; give it with --window",
    Why.ONE_SIDE: lambda n: f"{n['beyond']:,} of {n['rows']:,} request-steps lie beyond the window, so the two sides cannot be compared",
    Why.NO_STEP_AT_WINDOW: lambda n: "no clear step there that the slope with context does not explain",
    Why.NO_OVERLAP: lambda n: f"the two share too little of the same {label(n['term'])} to be compared at equal {label(n['term'])}",
    Why.STRETCHES: lambda n: (
        f"fewer than {n['least']} different requests are known: the intervals rest on stretches of steps, and how much texts differ is not "
        "in them"
    ),
    Why.EMPTY_GROUP: lambda n: f"{n['group']}: {_empty(n)}",
    Why.NOT_POSITIVE: lambda n: f"{n['group']}: the {_what(n['lacking'])} is not above zero",
    Why.OBSERVED: lambda n: str(n["sentence"]).rstrip("."),
}


def _empty(n: Mapping[str, Any]) -> str:
    return f"none of {n['rows']:,} rows has a {_what(n['lacking'])}" if n["rows"] else "no row"


def _text_or(n: Mapping[str, Any]) -> str:
    what = {"window": "beyond the window", "cached": "with a cached prefix", "batch": "in larger batches"}.get(
        n["term"], f"with more {label(n['term'])}"
    )
    told = "within them it does not fall" if n["text"] else "whether it falls within them is not clear"
    tail = "" if n["within"] is None else f": {told}"
    return f"requests {what} accept less{tail}: text or {label(n['term'])}, unknown"


def reason(r: Reason) -> str:
    """Write a reason."""
    return _REASONS[r.kind](r.numbers)


def reasons(rs: Sequence[Reason]) -> str:
    """Write some reasons, each once."""
    return "; ".join(dict.fromkeys(reason(r) for r in rs))


# -- effects -------------------------------------------------------------------------------------------------------------------


def ends(cause: Cause, low: float, high: float) -> str:
    """Write the two ends of a cause."""
    if cause.term == "graph_off":
        return "graph off against on" if high - low == 1 else f"from {100 * low:.0f} to {100 * high:.0f} % of steps without"
    if cause.unit.binary:
        yes = cause.label.split()[0]
        return f"{yes} against not" if high - low == 1 else f"from {100 * low:.0f} to {100 * high:.0f} % {yes}"
    unit = f" {cause.unit.shown}" if cause.unit.shown else ""
    return f"from {_scaled(cause, low)} to {_scaled(cause, high)}{unit}"


def _signed(x: float) -> str:
    written = number(abs(x))
    return written if written == "0" else f"{'+' if x >= 0 else '-'}{written}"


def evidence_of(e: Effect, level: float, *, explicit: bool) -> str:
    """Write what an effect rests on."""
    rests = f"{e.rows:,} {'timed steps' if e.cause.on == STEP else 'request-steps'}, {plural(e.requests, 'request')}"
    if not e.speed.known:
        said = reasons(e.reasons) or "too few rows or requests to say anything"
        tail = "; without those it would matter" if e.alone and "text" not in e.together_with else ""
        return f"{e.cause.on}: {said}{tail} ({rests})"
    slope = ""
    if e.slope.sure:
        unit = "ms" if e.cause.on == STEP else "tokens"
        low, high = e.slope.ends(level)
        slope = f", {_signed(e.slope.value)} {unit} {e.cause.unit.each} ({_signed(low)} to {_signed(high)})"
    said = f"{e.cause.on}, {ends(e.cause, e.low, e.high)}: speed {factor(e.speed.ratio(level))}{slope} ({rests})"
    if explicit and e.part.known:
        said += f"; between the groups {ends(e.cause, e.part_low, e.part_high)}: speed {factor(e.part.ratio(level))}"
    return f"{said}; {reasons(e.reasons)}" if e.reasons else said


# -- observations ----------------------------------------------------------------------------------------------------------------


def _missing(n: Mapping[str, Any]) -> str:
    return f"at least {n['missing']:,} lines are missing from the log"


def _pool(n: Mapping[str, Any]) -> str:
    return f"; the pool was at most {n['pool']:.0%} full" if n.get("pool") is not None else ""


def _hits(n: Mapping[str, Any]) -> str:
    return f"{plural(n['hit'], 'retraction')}{_pool(n)}"


def _cost(n: Mapping[str, Any]) -> str:
    return (
        f"{_hits(n)}; {n['share']:.0%} of the time of running requests went by while they had no place in the batch "
        f"({plural(n['waits'], 'wait')})"
    )


def _went(n: Mapping[str, Any]) -> str:
    return f"{n['share']:.0%} of the time of running requests went to prefills of others in between"


def _groups(n: Mapping[str, Any]) -> str:
    return f"prefills in between took {n['before']:.0%} of the time of running requests before and {n['after']:.0%} after"


def _on(n: Mapping[str, Any]) -> str:
    lines = f"{plural(n['lines'], 'line')} {'says' if n['lines'] == 1 else 'say'} so" if n["lines"] else ""
    flags = f"started with {', '.join(n['flags'])}" if n["flags"] else ""
    return f"{'; '.join(filter(None, [lines, flags]))}: the numbers are not those of normal service"


OBSERVED: dict[tuple[str, str], Callable[[Mapping[str, Any]], str]] = {
    ("retraction", "none"): lambda n: (
        f"no retraction among {plural(n['events'], 'event')}, {plural(n['lines'], 'Decode line')} and "
        f"{plural(n['requests'], 'request')}{_pool(n)}"
    ),
    ("retraction", "none_lost"): lambda n: f"no line says so, but {_missing(n)}",
    ("retraction", "none_silent"): lambda n: "the log has no kind of line that would say so",
    ("retraction", "cost_unknown"): lambda n: f"{_hits(n)}; what they cost cannot be measured: the requests of most steps are not known",
    ("retraction", "cost"): _cost,
    ("retraction", "cost_at_least"): lambda n: f"{_cost(n)}; it may be more: {_missing(n)}",
    ("retraction", "cost_small"): lambda n: f"{_cost(n)}, too little to matter",
    ("prefill_between", "unknown"): lambda n: "the requests of most steps are not known, nor how many ran while others were prefilled",
    ("prefill_between", "held"): _went,
    ("prefill_between", "halves"): lambda n: f"{_went(n)}: {n['early']:.0%} in the first half of the log, {n['late']:.0%} in the second",
    ("prefill_between", "share"): _went,
    ("prefill_between", "share_lost"): lambda n: f"{_went(n)}; it may be more: {_missing(n)}",
    ("prefill_between", "share_silent"): lambda n: f"{_went(n)}; it may be more: the log has no Prefill lines",
    ("prefill_between", "share_usual"): lambda n: f"{_went(n)}; whether that is more than usual needs two groups",
    ("prefill_between", "unknown_group"): lambda n: "no two steps of one request are known in one of the groups",
    ("prefill_between", "groups"): _groups,
    ("prefill_between", "groups_lost"): lambda n: f"{_groups(n)}, but {_missing(n)}",
    ("suppressed", "lost"): lambda n: (
        f"at least {n['lines']:,} lines missing ({plural(n['notices'], 'notice')}): counts are lower bounds, and no step time is taken "
        "across a hole"
    ),
    ("suppressed", "holes"): lambda n: (
        f"no notice of lost lines, but {plural(n['holes'], 'hole')} without a reason: idle time or lost lines"
    ),
    ("suppressed", "silent"): lambda n: (
        "no notice of lost lines, but the log has no lines beside those of steps, so a notice would not be in it either"
    ),
    ("suppressed", "none"): lambda n: "no log lines were lost: no notice says so",
    ("too_good", "few"): lambda n: f"{n['rows']:,} steps of known requests are too few to say",
    ("too_good", "cap"): lambda n: f"no step committed more than {n['cap']:g} tokens in {n['rows']:,}",
    ("too_good", "share"): lambda n: (
        f"{n['share']:.0%} of {n['rows']:,} steps committed the most ({n['cap']:g} tokens); the longest row of such steps in one request "
        f"is {n['longest']}"
    ),
    ("nothing_accepted", "plain"): lambda n: "decoding is without speculation",
    ("nothing_accepted", "unknown"): lambda n: "no row has a number of tokens",
    ("nothing_accepted", "all"): lambda n: (
        f"{number(n['mean'], 2)} tokens per step in {n['rows']:,} rows: every step pays for a draft, and none is accepted"
    ),
    ("nothing_accepted", "since"): lambda n: (
        f"since {clock(n['since_us'])} every step commits one token ({n['rows']:,} rows); before it was {number(n['before'], 2)}"
    ),
    ("nothing_accepted", "some"): lambda n: f"{number(n['mean'], 2)} tokens per step in {n['rows']:,} rows",
    ("episodes", "none"): lambda n: "no stretch of time had slower steps and then the same as before",
    ("episodes", "some"): lambda n: (
        f"{plural(n['count'], 'time')}, {n['share']:.0%} of the steps, × {n['size']:.2f} as long: "
        + ", ".join(f"{clock(a)} to {clock(b)}" for _, a, b in n["spans_us"])
    ),
    ("simulated", "on"): _on,
    ("profiling", "on"): _on,
}
for _key in ("simulated", "profiling"):
    OBSERVED[_key, "off"] = lambda n: f"no line says so, and no flag of {plural(n['starts'], 'server start')} does"
    OBSERVED[_key, "unknown"] = lambda n: (
        "no line says so, but no server start is in the log, and an environment variable would leave no trace"
    )


def observed(seen: Seen) -> str:
    """Write what was seen."""
    return OBSERVED[seen.key, seen.case](seen.numbers)


_NEXT: dict[tuple[str, str], str] = {
    ("suppressed", "holes"): "read the journal of the whole unit, journald's notices in it",
    ("suppressed", "silent"): "read the journal of the whole unit, journald's notices in it",
    ("simulated", "unknown"): "read the log from the server's start",
    ("profiling", "unknown"): "read the log from the server's start",
    ("retraction", "none"): "",
    ("retraction", "none_lost"): "",
    ("retraction", "none_silent"): "",
    ("too_good", "few"): "",
    ("prefill_between", "unknown"): "",
    ("prefill_between", "unknown_group"): "",
    ("nothing_accepted", "unknown"): "",
}


def next_of(n: Named) -> str:
    """Say what to measure next for a hypothesis."""
    if n.status == REFUTED:
        return ""
    if n.seen is not None and (n.seen.key, n.seen.case) in _NEXT:
        return _NEXT[n.seen.key, n.seen.case]
    if "uptime" in n.together_with:
        return "measure one long request right after a restart"
    if n.key == "window_knee" and any(r.kind is Why.NO_WINDOW for r in n.reasons):
        return "give the drafter's window with --window"
    return CAUSES[n.key].next


# -- times and flags -----------------------------------------------------------------------------------------------------------


def clock(us: int) -> str:
    """Write an instant as a time of day, UTC."""
    return format_us(us)[11:19]


def flag_name(flag: str) -> str:
    """Write a flag as it is given."""
    return "--" + flag.lstrip("-").replace("_", "-")


def flag_evidence(c: Changed, numbers: str) -> str:
    """Say why a flag is judged as it is; ``numbers`` are both ratios at equal mix."""
    rest = ", ".join(c.rivals[:3])
    if c.reach in ("none", "measurement"):
        what = "acts on finished text, after a step is over" if c.reach == "none" else "changes what is logged or how, not what is computed"
        said = f"measured: {numbers}" + (f", so {' and '.join(c.still)} did not move" if c.still else "")
        if c.open:
            said += f"; whether {' and '.join(c.open)} moved cannot be told"
        if rest:
            said += f"; the data cannot separate it from {rest}, changed in the same restart"
        return f"{said}; by reasoning, not by measurement: it {what}, and has no path to either number"
    if c.status == REFUTED:
        return f"measured: {numbers}: {' and '.join(c.still)} did not move when it changed"
    cut = "; the start line was cut, and flags beyond the cut are not known" if c.cut else ""
    if not c.moved:
        return f"{numbers}: too little to say whether {' or '.join(c.open) or 'anything'} moved{cut}"
    what = f"{' and '.join(c.moved)} moved with the restart"
    if c.status == SUPPORTED:
        return f"{numbers}: {what}; no other flag with a path to it changed; a restart changes caches, uptime and traffic as well"
    tail = f"; cannot be separated from {rest}, changed in the same restart" if rest else ""
    return f"{numbers}: {what}{tail}{cut}"


def set_to(c: Changed) -> str:
    """Write a change of a flag."""
    if c.before == NOT_SET:
        return f"{flag_name(c.flag)} → {c.after}"
    if c.after == NOT_SET:
        return f"{flag_name(c.flag)} {c.before} → not set"
    return f"{flag_name(c.flag)} {c.before} → {c.after}"


# -- comparisons -----------------------------------------------------------------------------------------------------------------

PART = {"step_time": "step time", "acceptance": "tokens per step", "both": "step time and tokens per step"}


def slower(ratio: Interval) -> str:
    """Say a ratio of speeds: ``70 % slower``, ``x 1.9 faster``."""
    if ratio.value is None:
        return "not known"
    if ratio.value < 1:
        return f"{100 * (1 - ratio.value):.0f} % slower"
    return f"{100 * (ratio.value - 1):.0f} % faster" if ratio.value < 2 else f"{ratio.value:.1f} times as fast"


def joined(words: Sequence[str]) -> str:
    """Join words: ``context, batch size and uptime``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else "what is measured"


def compared(c: Comparison) -> str:
    """Say a comparison in a sentence."""
    names = f"{c.after} against {c.before}"
    if c.speed_before is None or c.speed_after is None or c.speed_ratio.value is None:
        return f"{names}: cannot be compared, {c.reason or 'there are too few rows'}."
    speeds = f"{number(c.speed_after)} instead of {number(c.speed_before)} tok/s for a request ({factor(c.speed_ratio)})"
    step = f"step time {number(c.step_time_before_ms)} -> {number(c.step_time_after_ms)} ms"
    per = f"tokens per step {number(c.tokens_before, 2)} -> {number(c.tokens_after, 2)}"
    said = {"unchanged": "no change is shown", "cannot_tell": "a change can be neither shown nor ruled out"}.get(
        c.direction, f"{c.direction}, by {PART.get(c.verdict, 'what is not known')}"
    )
    if c.direction == "mixed":
        said = "both numbers moved, one against the other"
    tail = ""
    if c.speed_ratio_equal.known:
        same = joined([label(t) for t in c.equal_of])
        moved = {"unchanged": "no change is shown", "cannot_tell": "it cannot be told whether anything moved"}.get(
            c.direction_equal or "", f"it is {PART.get(c.verdict_equal or '', 'something')} that moved"
        )
        tail = f" At equal {same} {moved}: step time {factor(c.step_time_ratio_equal)}, tokens per step {factor(c.tokens_ratio_equal)}"
        if c.mix_ratio.value is not None and abs(math.log(c.mix_ratio.value)) > 0.02:
            tail += f"; the mix of {same} alone made speed {factor(c.mix_ratio)}"
        if c.stalls_ratio.value is not None and abs(math.log(c.stalls_ratio.value)) > 0.02:
            tail += f"; single slow steps are part of it: {factor(c.stalls_ratio)}"
        tail += "."
    return f"{names}: {said}. {speeds}; {step}, {per}.{tail}"


def factors(c: Comparison) -> str:
    """Write a change of speed as what it is made of: ``speed × 0.69 = ÷ 1.64 step time × 1.13 tokens per step``."""
    return (
        f"speed × {c.speed_ratio.value or 0:.2f} = ÷ {c.step_time_ratio.value or 0:.2f} step time "
        f"× {c.tokens_ratio.value or 0:.2f} tokens per step"
    )


def numbers_at_equal(c: Comparison) -> str:
    """Write both ratios at equal mix."""
    held = joined([label(t) for t in c.equal_of]) if c.equal_of else "context"
    return f"at equal {held} step time {factor(c.step_time_ratio_equal)}, tokens per step {factor(c.tokens_ratio_equal)}"


__all__ = ["CANNOT_TELL", "CAUSES", "OBSERVED", "TOKENS", "Phrase", "compared", "reason", "reasons"]
