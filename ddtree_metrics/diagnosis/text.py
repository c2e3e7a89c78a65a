"""A diagnosis as text for a terminal: verdict, shares, comparisons, hypotheses, what cannot be told, what to measure next."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ddtree_metrics.diagnosis.causes import label
from ddtree_metrics.diagnosis.numerals import cut, cut_words, factor, number, percent_range, plural
from ddtree_metrics.diagnosis.phrases import factors, joined
from ddtree_metrics.diagnosis.result import Comparison, Diagnosis, Hypothesis
from ddtree_metrics.metrics.shares import counteracting


def format_diagnosis(d: Diagnosis, width: int = 80) -> str:
    """Write a diagnosis as plain text.

    Parameters
    ----------
    d : Diagnosis
        What ``diagnose`` gave.
    width : int
        Columns; at least 40.

    Returns
    -------
    str
        Lines of at most ``width`` characters, without a newline at the end. A word that is longer is broken; one of more than 200
        characters is cut, and its length is said.
    """
    width = max(width, 40)
    out = _wrap(d.verdict, width)
    out += list(_shares(d, width))
    for c in d.comparisons:
        out += ["", *_comparison(c, width)]
    out += ["", "hypotheses"]
    if any("for each" in h.evidence for h in d.hypotheses):
        out += _wrap("slopes (so much for each 1000 tokens, request, minute): all measured causes held equal", width, "  ", "  ")
    for h in d.hypotheses:
        out += _hypothesis(h, width)
    if d.cannot_tell:
        out += ["", "what cannot be told"]
        for line in d.cannot_tell:
            out += _wrap(line, width, "  - ", "    ")
    if d.next:
        out += ["", "what to measure next"]
        for i, line in enumerate(d.next, 1):
            out += _wrap(line, width, f"  {i}. ", "     ")
    used = d.used
    counts = ", ".join(
        plural(used[name], name[:-1].replace("_", " ")) for name in ("request_steps", "timed_steps", "requests", "server_starts")
    )
    rests = f"rests on {counts} ({d.basis})"
    out += ["", *_wrap(rests, width)]
    if d.excluded:
        out += _wrap("left out: " + ", ".join(f"{count} {reason}" for reason, count in d.excluded.items()), width)
    return "\n".join(out)


def _shares(d: Diagnosis, width: int) -> Iterator[str]:
    """Write the parts of the slow-down: those of the comparison that the verdict rests on, as the report and the picture have them."""
    main = d.comparisons[0] if d.comparisons else None
    step, tokens = d.share_step_time, d.share_acceptance
    if not step.known:
        return
    slower = True
    if main is not None and main.share_step_time.known:
        step, tokens = main.share_step_time, main.share_acceptance
        slower = main.speed_ratio.value is None or main.speed_ratio.value < 1
    interval = step.low is not None and step.high is not None
    yield ""
    yield f"share of the {'slow-down' if slower else 'speed-up'}" + (f" ({100 * d.level:.0f} % intervals)" if interval else "")
    yield f"  step time   {percent_range(step)}"
    yield f"  acceptance  {percent_range(tokens)}"
    remark = counteracting(step.value, step.low, step.high, slower=slower)
    if remark:
        yield from _wrap(remark, width, "  ", "  ")
    if step is not d.share_step_time and step != d.share_step_time and main is not None:
        yield from _wrap(f"in {main.after} against {main.before}", width, "  ", "  ")
    if not interval:
        said = "no interval: the shares are those of the effects of the causes that the verdict names; each has its own interval below"
        yield from _wrap(said, width, "  ", "  ")


def _comparison(c: Comparison, width: int) -> list[str]:
    out = _wrap(f"{c.after} against {c.before}", width)
    rows = [
        ("step time, ms", number(c.step_time_before_ms), number(c.step_time_after_ms), c.step_time_ratio),
        ("tokens per step", number(c.tokens_before, 2), number(c.tokens_after, 2), c.tokens_ratio),
        ("tok/s a request", number(c.speed_before), number(c.speed_after), c.speed_ratio),
    ]
    for name, before, after, ratio in rows:
        line = f"  {name:<15} {before:>11} {after:>11}  {factor(ratio)}"
        if len(line) <= width:
            out.append(line)
        else:
            out += _wrap(f"{name}: {before} -> {after}", width, "  ", "    ")
            out += _wrap(factor(ratio), width, "    ", "    ")
    if c.speed_ratio.known and c.step_time_ratio.known and c.tokens_ratio.known:
        out += _wrap(factors(c), width, "  ", "    ")
    if c.speed_ratio_equal.known:
        same = joined([label(t) for t in c.equal_of])
        ratios = f"step time {factor(c.step_time_ratio_equal)}, tokens per step {factor(c.tokens_ratio_equal)}"
        out += _wrap(f"at equal {same}: {ratios}", width, "  ", "    ")
    for f in c.flags:
        out += _wrap(f"--{f.flag.replace('_', '-')}: {cut(f.before)} -> {cut(f.after)}: {f.status}; {f.evidence}", width, "  ", "    ")
    if c.reason:
        out += _wrap(c.reason, width, "  ", "  ")
    return out


def _hypothesis(h: Hypothesis, width: int) -> list[str]:
    head = f"  [{h.status}] {h.name}"
    out = _wrap(head, width, "", "    ")
    if h.effect.known and h.acts_on:
        out += _wrap(f"speed {factor(h.effect)}, through {h.acts_on}", width, "    ", "    ")
    if h.evidence:
        out += _wrap(h.evidence, width, "    ", "    ")
    return out


def _wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    text = cut_words(text)
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False) or [first.rstrip()]
