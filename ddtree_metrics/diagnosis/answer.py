"""The answer on one screen, as data: what changed and since when, its parts, what did it and what did not, and what it rests on.

A terminal, a page and a notebook lay out the same answer; nothing is decided here, and each thing is said once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddtree_metrics.diagnosis import phrases
from ddtree_metrics.diagnosis.causes import label
from ddtree_metrics.diagnosis.numerals import cut, number, signed, times, tokens
from ddtree_metrics.diagnosis.others_beside import in_two_lines
from ddtree_metrics.diagnosis.result import CANNOT_TELL, REFUTED, SUPPORTED, Comparison, Diagnosis, FlagChange, Hypothesis
from ddtree_metrics.diagnosis.scene import Scene
from ddtree_metrics.layout import plural
from ddtree_metrics.metrics.shares import NAMES
from ddtree_metrics.steps.starts import NOT_SET, words_of
from ddtree_metrics.times import short_span

MIX_COUNTS = math.log(1.05)
"""What the mix did to speed is a part of its own from here on, as a log."""

UNCLEAR = 0.1
"""What could make requests slower by this share, or more, and cannot be told, is named."""

MOST_UNCLEAR = 3

IN_TIME = ("runs", "break", "parts")
"""Kinds of comparison in which one group comes after the other."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a change: its name, its two values, its share, and what else is known of it."""

    name: str
    before: str = ""
    after: str = ""
    unit: str = ""
    share: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """What makes requests slow without a change in time: its name, two groups, two speeds, and its slope."""

    name: str
    groups: str
    speeds: str
    slope: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, ready to be laid out.

    Attributes
    ----------
    scene : str
        What was read: unit, time span, requests, starts.
    warning : str
        What is missing from the log; ``""`` for nothing.
    direction : str
        As of the diagnosis: ``slower``, ``faster``, ``unchanged``, ``mixed``, ``cannot_tell``.
    headline : str
        What happened.
    names : tuple of str
        Names in the headline, which are written as they are.
    speeds : str
        From which speed to which.
    changed : bool
        Whether it is about a change in time.
    reason : str
        Why it cannot be told.
    groups : tuple of str
        What the two columns of ``parts`` are, where neither is before the other in time; else empty.
    parts : tuple of Part
        The largest first.
    findings : tuple of (str, str)
        Likely cause, not the cause, what a restart did: a word, and a sentence.
    loads : tuple of Load
        What is slow besides, without being a change.
    unclear : str
        What could cost something and cannot be told.
    slowest : tuple of str
        The slowest requests.
    next : str
        What to do next.
    checks : str
        What the answer rests on.
    """

    scene: str
    warning: str
    direction: str
    headline: str
    names: tuple[str, ...] = ()
    speeds: str = ""
    changed: bool = False
    reason: str = ""
    groups: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    findings: tuple[tuple[str, str], ...] = ()
    loads: tuple[Load, ...] = ()
    unclear: str = ""
    slowest: tuple[str, ...] = ()
    next: str = ""
    checks: str = ""


def answer(d: Diagnosis) -> Answer:
    """Compose the answer of a diagnosis."""
    scene = d.scene or Scene()
    main = d.comparisons[0] if d.comparisons else None
    if main is not None and main.direction == "unchanged" and d.direction != "unchanged":
        main = None  # what is slow is so in both groups, and is no difference between them
    if main is not None and main.kind == "parts" and d.direction == "cannot_tell" and _restarts(d, main):
        main = None  # restarts part a log better than its thirds do
    groups = heads(main) if main is not None and main.kind not in IN_TIME else ()
    return Answer(
        scene=_scene(d, scene),
        warning=_warning(scene),
        direction=d.direction,
        headline=_headline(d, main),
        names=heads(main) if main is not None and main.kind in ("groups", "runs") else (),
        speeds=speeds(main, each=main.kind in IN_TIME) if main is not None else _speed(d, scene),
        changed=d.since is not None,
        reason=_reason(d, whole=main is not None),
        groups=groups,
        parts=tuple(_parts(d, main)) if main is not None else (),
        findings=tuple(_findings(d, main, scene)),
        loads=tuple(_loads(d, main)),
        unclear=_unclear(d, main),
        slowest=_slowest(scene) if groups else (),
        next=_next(d, main),
        checks=_checks(d),
    )


# -- what was read -----------------------------------------------------------------------------------------------------------------


def _scene(d: Diagnosis, scene: Scene) -> str:
    services = ", ".join(scene.services[:3]) + (f" and {len(scene.services) - 3} more" if len(scene.services) > 3 else "")
    span = short_span(scene.first, scene.last) if scene.first and scene.last else ""
    used = d.used
    counts = [
        plural(used.get("requests", 0), "request") if used.get("requests") else plural(used.get("steps", 0), "step"),
        plural(used["server_starts"], "start") if used.get("server_starts") else "",
    ]
    return " · ".join(filter(None, [services, span, *counts]))


def _warning(scene: Scene) -> str:
    if scene.missing is None:
        return ""
    said = f"journald dropped at least {plural(scene.missing, 'line')}" if scene.missing else "journald dropped lines"
    rest = []
    if scene.pool is not None and scene.pool >= 0.9:
        rest.append(f"the KV pool reached {scene.pool:.0%}".replace("%", " %"))
    if scene.retractions:
        rest.append(plural(scene.retractions, "retraction"))
    return "; ".join(filter(None, [said, ", ".join(rest)]))


# -- what happened -----------------------------------------------------------------------------------------------------------------

_SLOW = {
    "context_step_time": "Long context is slow",
    "context_acceptance": "Long context is slow",
    "window_knee": "Beyond the drafter's window requests are slow",
    "generated_acceptance": "Long outputs are slow",
    "fragmentation": "Long outputs are slow",
    "batch": "Large batches are slow",
    "uptime": "The server gets slower the longer it is up",
    "cached_prefix": "Requests with a cached prefix are slow",
    "graph_off": "Steps without a CUDA graph are slow",
    "budget": "Another draft budget is slow",
    "retraction": "Retractions hold requests up",
    "prefill_between": "Prefills of other requests hold requests up",
    "nothing_accepted": "No draft is accepted",
    "episodes": "Steps were slow for a while",
}

_WORDS = {"slower": "Slower", "faster": "Faster", "mixed": "Changed"}


def _headline(d: Diagnosis, main: Comparison | None) -> str:
    if d.direction == "cannot_tell" or d.kind == "cannot_tell":
        return "It cannot be told"
    if d.direction == "unchanged":
        within = f" beyond {100 * d.unchanged_within:.0f} %" if d.unchanged_within else ""
        return f"No change of speed{within} is shown"
    word = _WORDS.get(d.direction, "Changed")
    if d.since is not None:
        return f"{word} since the restart at {d.since.time[11:19]}" if d.since.what == "restart" else f"{word} since {d.since.time[11:19]}"
    if main is not None and main.kind in ("groups", "runs"):
        before, after = heads(main)
        how = {"slower": "is slower than", "faster": "is faster than"}.get(d.direction, "differs both ways from")
        return f"{after} {how} {before}"
    cause = next((h for h in d.causes if h.key in _SLOW), None)
    said = _SLOW[cause.key] if cause is not None else f"{main.after if main is not None else 'It'} is {word.lower()}"
    return said + _restart_beside(d, main)


def _reason(d: Diagnosis, *, whole: bool) -> str:
    """Return why it cannot be told, or the first sentence of it, without the words that the headline has."""
    if d.direction != "cannot_tell" and d.kind != "cannot_tell":
        return ""
    said = re.sub(r"^It cannot be told[:.]?\s*", "", d.verdict)
    said = said[:1].upper() + said[1:]
    return said if whole or ". " not in said else said.partition(". ")[0] + "."


def _restarts(d: Diagnosis, main: Comparison | None) -> list[Comparison]:
    """Return comparisons of server starts in which speed changed for sure, as logged; the largest first."""
    found = [c for c in d.comparisons if c is not main and c.kind == "runs" and c.direction in ("slower", "faster", "mixed")]
    return sorted(found, key=lambda c: -abs(math.log(c.speed_ratio.value or 1.0)))


def _restart_beside(d: Diagnosis, main: Comparison | None) -> str:
    """Say of the restarts, in the headline, whether they mattered."""
    found = {c.direction_equal for c in d.comparisons if c is not main and c.kind == "runs"}
    if not found or found & {"slower", "faster", "mixed", None}:
        return ""
    many = sum(c is not main and c.kind == "runs" for c in d.comparisons) > 1
    return f"; nothing shows that {'any restart' if many else 'the restart'} mattered"


def speeds(c: Comparison, *, each: bool = True) -> str:
    """Write both speeds of a comparison: ``34.3 → 18.4 tok/s a request (-46 %)``."""
    if c.speed_before is None or c.speed_after is None:
        return ""
    share = f" ({signed(100 * (c.speed_after / c.speed_before - 1))} %)" if c.speed_before else ""
    return f"{number(c.speed_before)} → {number(c.speed_after)} tok/s{' a request' if each else ''}{share}"


def _speed(d: Diagnosis, scene: Scene) -> str:
    """Write the speed of all requests, where there is nothing to compare it with."""
    if not scene.tokens or not scene.step_ms:
        return ""
    return f"{number(1000 * scene.tokens / scene.step_ms)} tok/s a request{' while steps run' if d.kind == 'between_steps' else ''}"


# -- its parts ---------------------------------------------------------------------------------------------------------------------


def heads(c: Comparison) -> tuple[str, str]:
    """Return the short names of two groups: what stands in parentheses, a window without its day, without a first word that both have."""
    first, second = (_short_name(name) for name in (c.before, c.after))
    word = second.rpartition(" ")[2]
    first = first.removesuffix(f" {word}") if word.isalpha() else first
    common = first.partition(" ")[0]
    if common.isalpha() and second.startswith(f"{common} ") and c.kind != "runs":
        return first.removeprefix(f"{common} "), second.removeprefix(f"{common} ")
    return first, second


_WINDOW = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)? to (\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)?")


def _short_name(name: str) -> str:
    if found := re.search(r"\((.*)\)", name):
        return found.group(1)
    if found := _WINDOW.fullmatch(name):
        day, low, low_s, other_day, high, high_s = found.groups()
        seconds = low_s != ":00" or high_s != ":00"
        one, other = low + (low_s or "") * seconds, high + (high_s or "") * seconds
        return f"{one}-{other}" if day == other_day else f"{day} {one} to {other_day} {other}"
    return name


def _parts(d: Diagnosis, main: Comparison) -> list[Part]:
    step = (
        (number(main.step_time_before_ms), number(main.step_time_after_ms))
        if main.step_time_before_ms and main.step_time_after_ms
        else None
    )
    per = (number(main.tokens_before, 2), number(main.tokens_after, 2)) if main.tokens_before and main.tokens_after else None
    shares = _shares(main)
    made = []
    if "mix" in shares:
        made.append(Part("mix", share=shares["mix"], note=f"{_held(main)} of the requests, the server as before"))
    at_equal = main.share_mix.known or "mix" in shares
    if step:
        note = f"{times(main.step_time_ratio_equal.value)} at equal mix" if at_equal else _slope_note(d, main)
        made.append(Part("step time", *step, unit=" ms", share=shares.get("step time", ""), note=note))
    if per:
        note = f"{times(main.tokens_ratio_equal.value)} at equal mix" if at_equal else _token_note(d, main)
        made.append(Part("tokens/step", *per, share=shares.get("acceptance", ""), note=note))
    order = sorted(made, key=lambda p: -_leading(p.share))
    if order and order[0].share.endswith("%"):
        order[0] = Part(*(getattr(order[0], n) if n != "share" else f"{order[0].share} of it" for n in Part.__slots__))
    return order


def _leading(share: str) -> float:
    found = re.match(r"(\d+) %", share)
    return float(found.group(1)) if found else -1.0


def _held(c: Comparison) -> str:
    return phrases.joined([label(t) for t in c.equal_of]) if c.equal_of else "context and batch"


def _shares(c: Comparison) -> dict[str, str]:
    """Return the shares of a change as the comparison has them; where there are none since parts worked against each other, the factors."""
    if c.direction == "unchanged" or c.speed_ratio.value is None:
        return {}
    known = zip(NAMES, (c.share_mix.value, c.share_step_time.value, c.share_acceptance.value), strict=True)
    found = {name: share for name, share in known if share is not None and (name != "mix" or share >= 0.005)}
    if found:
        return {name: f"{round(100 * share)} %" for name, share in found.items()}
    mix, equal = c.mix_ratio.value, bool(c.step_time_ratio_equal.value and c.tokens_ratio_equal.value)
    step, per = (c.step_time_ratio_equal, c.tokens_ratio_equal) if equal else (c.step_time_ratio, c.tokens_ratio)
    if not step.value or not per.value:
        return {}
    made = {"mix": mix} if equal and mix is not None and abs(math.log(mix)) > MIX_COUNTS else {}
    made |= {"step time": 1 / step.value, "acceptance": per.value}
    return {name: f"speed {times(factor)}" for name, factor in made.items()}


def _slope_note(d: Diagnosis, main: Comparison) -> str:
    return _slope(d, main.kind)


_SLOPES = {
    "context": ("context_step_ms", "ms per 1,000 tokens"),
    "batch": ("batch_step_ms", "ms per request more"),
    "uptime": ("uptime_step_ms", "ms per minute"),
}


def _slope(d: Diagnosis, kind: str) -> str:
    name, unit = _SLOPES.get(kind, ("", ""))
    found = d.slopes.get(name)
    if found is None or found.value is None or ((found.low or 0) < 0 < (found.high or 0)):
        return ""
    sure = found.low is not None and found.high is not None and found.high - found.low < 2
    return f"{signed(found.value, 1 if sure else None)} {unit}"


def _token_note(d: Diagnosis, main: Comparison) -> str:
    """Say what is not clear about tokens per step against context."""
    if main.kind != "context" or main.tokens_ratio.value is None or abs(math.log(main.tokens_ratio.value)) < MIX_COUNTS:
        return ""
    by_key = {h.key: h for h in d.hypotheses}
    slope, knee = by_key.get("context_acceptance"), by_key.get("window_knee")
    if slope is None or slope.status == REFUTED:
        return ""
    if knee is not None and knee.status == SUPPORTED:
        return "falls at the drafter's window"
    if slope.status == SUPPORTED:
        return "falls with context"
    rivals = ["context", *(["window"] if knee is not None and knee.status == CANNOT_TELL else [])]
    rivals += ["text" if x == "text" else label(x) for x in slope.together_with]
    return f"{', '.join(rivals[:-1])} or {rivals[-1]}: unclear" if len(rivals) > 1 else ""


# -- what did it, and what did not ------------------------------------------------------------------------------------------------


def _findings(d: Diagnosis, main: Comparison | None, scene: Scene) -> list[tuple[str, str]]:
    made: list[tuple[str, str]] = []
    if main is None:
        made = [("evidence", h.evidence) for h in d.causes[:2] if h.evidence]
        made += [(_name_of(c, scene), _as_logged(c)) for c in _restarts(d, main)[:3]]
        step = f"step time {number(scene.step_ms)} ms" if scene.step_ms else ""
        per = f"{number(scene.tokens, 2)} tokens/step" if scene.tokens else ""
        return made + ([("overall", ", ".join(filter(None, [step, per])))] if step or per else [])
    told = d.direction in ("slower", "faster", "mixed")
    if told and main.kind in ("runs", "groups"):
        made += _cause_of_change(d, main)
    if told and main.kind == "break":
        made += _beside(d)
    made += [(f"{_name_of(c, scene)}", _numbers_at_equal(c)) for c in d.comparisons if c is not main and c.kind == "runs"][:2]
    made += [(f"{c.after}", speeds(c)) for c in d.comparisons if c is not main and c.kind == "break"][:2]
    if d.since is not None and d.beside and (near := in_two_lines(d.beside[0])):
        made.append(("beside", near))
    ruled_out = [
        f for c in d.comparisons if c.kind in ("runs", "groups") for f in c.flags if f.status == REFUTED and f.reach != "measurement"
    ]
    if ruled_out:
        many = len(ruled_out) > 1
        names = ", ".join(dict.fromkeys(phrases.flag_name(f.flag) for f in ruled_out[:3])) if many else _set(ruled_out[0])
        more = " and others" if len(ruled_out) > 3 else ""
        same = "same restart; " if len(main.flags) > len(ruled_out) else ""
        late = f"{'act after each step' if many else 'it acts after a step is over'}"
        why = late if all(f.reach == "none" for f in ruled_out) else f"nothing moved that {'they' if many else 'it'} can reach"
        made.append(("not the cause", f"{names}{more} ({same}{why})"))
    return made


def _cause_of_change(d: Diagnosis, main: Comparison) -> list[tuple[str, str]]:
    sure = [f for f in main.flags if f.status == SUPPORTED]
    if sure:
        return [("likely cause", ", ".join(_set(f) for f in sure[:3]))]
    open_ = [f for f in main.flags if f.status == CANNOT_TELL]
    if open_:
        names = ", ".join(_set(f) for f in open_[:4])
        return [("possible", f"{names}" + (": one restart, cannot be told apart" if len(open_) > 1 else ""))]
    told = [h for h in d.causes if h.key != "flags"]
    if told:
        return [("likely cause", "; ".join(phrases.CAUSES[h.key].as_cause or h.name for h in told[:2]))]
    if main.kind == "runs":
        return [("cause unknown", "no flag that changed can do that: the text of the requests, or what no line tells")]
    return []


def _beside(d: Diagnosis) -> list[tuple[str, str]]:
    if d.since is None or d.since.on is None:
        return []
    seen = phrases.joined([phrases.reason(r) for r in d.since.beside]) if d.since.beside else ""
    what = f"{d.since.on} changed suddenly in mid-run, between {d.since.low[11:19]} and {d.since.high[11:19]}"
    return [("what happened", what), *([("just before", seen)] if seen else [("just before", "nothing in this log")])]


def _name_of(c: Comparison, scene: Scene) -> str:
    start = scene.start(c.after)
    return f"restart {start.time[11:19]}" if start is not None and start.time else f"restart to {c.after}"


def _as_logged(c: Comparison) -> str:
    numbers = [("step time", c.step_time_ratio.value), ("tokens/step", c.tokens_ratio.value)]
    return f"{speeds(c)} as logged: " + ", ".join(f"{name} {times(value)}" for name, value in numbers if value is not None)


def _numbers_at_equal(c: Comparison) -> str:
    if c.step_time_ratio_equal.value is None or c.tokens_ratio_equal.value is None:
        return f"{speeds(c)}; {c.reason or 'cannot be compared at equal mix'}"
    if c.direction_equal in ("slower", "faster", "mixed"):
        return (
            f"{speeds(c)}: step time {times(c.step_time_ratio_equal.value)}, tokens/step {times(c.tokens_ratio_equal.value)} at equal mix"
        )
    moved = abs(math.log(c.tokens_ratio_equal.value)) >= 0.02
    rest = f", tokens/step {times(c.tokens_ratio_equal.value)}" if moved else ""
    return f"step time {times(c.step_time_ratio_equal.value)}{rest} at equal context"


def _set(f: FlagChange) -> str:
    name = phrases.flag_name(f.flag)
    before, after = _short_values(f.before, f.after)
    if f.before == NOT_SET:
        return f"{name} → {after}"
    return f"{name} {before} → {'not set' if f.after == NOT_SET else after}"


def _short_values(before: str, after: str) -> tuple[str, str]:
    """Leave out the folders that two paths share."""
    one, other = before.split("/"), after.split("/")
    while len(one) > 1 and len(other) > 1 and one[0] == other[0]:
        one, other = one[1:], other[1:]
    return cut("/".join(one), 60), cut("/".join(other), 60)


# -- what is slow besides ------------------------------------------------------------------------------------------------------------

LOADS = {"context": "long context", "batch": "batching", "uptime": "uptime", "cached": "cached prefix", "graph_off": "CUDA graph off"}


def _loads(d: Diagnosis, main: Comparison | None) -> list[Load]:
    shown = {h.key for h in d.hypotheses if h.status == SUPPORTED}
    made = []
    for c in d.comparisons:
        key = {"context": "context_step_time", "cached": "cached_prefix"}.get(c.kind, c.kind)
        also = {"context_acceptance", "window_knee"} if c.kind == "context" else set()
        if c is main or c.kind not in LOADS or not ({key} | also) & shown or c.speed_before is None or c.speed_after is None:
            continue
        before, after = heads(c)
        both = f"{number(c.speed_before)} → {number(c.speed_after)} tok/s"
        made.append(Load(LOADS[c.kind], f"{before} → {after}", both, _slope(d, c.kind)))
    return made


_SHORT = {
    "context_step_time": "context on step time",
    "context_acceptance": "context on acceptance",
    "window_knee": "the drafter's window",
    "generated_acceptance": "output length on acceptance",
    "fragmentation": "KV fragmentation",
    "batch": "batching",
    "uptime": "uptime",
    "cached_prefix": "cached prefix",
    "graph_off": "CUDA graph",
    "budget": "draft budget",
    "retraction": "retractions",
    "prefill_between": "prefills of others",
}


def _unclear(d: Diagnosis, main: Comparison | None) -> str:
    """Name what could cost much and cannot be told."""
    said = {"context_acceptance", "window_knee"} if main is not None and main.kind == "context" else set()
    found = [h for h in d.hypotheses if h.status == CANNOT_TELL and h.key in _SHORT and h.key not in said]
    worst = [(1 - (h.effect.low if h.effect.low is not None else h.effect.value or 1.0), h) for h in found]
    worst = sorted([(w, h) for w, h in worst if w >= UNCLEAR], key=lambda pair: -pair[0])
    return ", ".join(f"{_SHORT[h.key]} ({slow_range(h)})" for _, h in worst[:MOST_UNCLEAR])


def slow_range(h: Hypothesis) -> str:
    """Write what a cause could cost: ``0 to 29 % slower``."""
    low, high = h.effect.low, h.effect.high
    if low is None or high is None:
        return f"{100 * (1 - (h.effect.value or 1.0)):.0f} % slower"
    return f"{max(100 * (1 - high), 0):.0f} to {100 * (1 - low):.0f} % slower"


def _slowest(scene: Scene) -> tuple[str, ...]:
    said = []
    for i, one in enumerate(scene.slowest):
        at = f" at {tokens(one.prompt_len)}" if one.prompt_len is not None else ""
        said.append(f"{one.request_id[:8]} {number(one.tok_per_s)}{' tok/s' if not i else ''}{at}{' tokens' if at and not i else ''}")
    return tuple(said)


# -- what to do, and what it rests on ------------------------------------------------------------------------------------------------


def _next(d: Diagnosis, main: Comparison | None) -> str:
    if main is not None and d.direction in ("slower", "faster", "mixed"):
        sure = [f for f in main.flags if f.status == SUPPORTED]
        open_ = [f for f in main.flags if f.status == CANNOT_TELL]
        if len(sure) == 1:
            return f"restart with the old {words_of(sure[0].flag)} only; send the same requests"
        if len(open_) > 1 and not sure:
            return "restart with one flag changed at a time; send the same requests"
        if main.kind == "context" and any(h.key == "context_step_time" for h in d.causes):
            return f"ddtree-logs bench URL --ctx {' '.join(map(str, _contexts(main)))}"
    return d.next[0] if d.next else ""


def _contexts(c: Comparison) -> list[int]:
    """Choose four contexts between the ends of two groups, in steps of 128 tokens."""
    ends = [float(x.replace(",", "")) for x in re.findall(r"[\d,]*\d", " ".join(heads(c)))]
    if len(ends) != 2 or min(ends) <= 0 or ends[1] < 2 * ends[0]:
        return [512, 2048, 3072, 5120]
    return [max(128, 128 * round(float(x) / 128)) for x in np.geomspace(ends[0], 1.5 * ends[1], 4)]


def _checks(d: Diagnosis) -> str:
    count = {s: sum(h.status == s for h in d.hypotheses) for s in (SUPPORTED, REFUTED, CANNOT_TELL)}
    return (
        f"{plural(len(d.hypotheses), 'check')}: {count[SUPPORTED]} yes, {count[REFUTED]} ruled out, {count[CANNOT_TELL]} unknown."
        if d.hypotheses
        else ""
    )


__all__: Sequence[str] = ("Answer", "Load", "Part", "answer", "heads", "slow_range", "speeds")
