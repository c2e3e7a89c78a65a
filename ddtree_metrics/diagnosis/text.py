"""A diagnosis as text: the answer on one screen, and everything under it where it is asked for."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ddtree_metrics.diagnosis.answer import Answer, Part, answer, heads
from ddtree_metrics.diagnosis.causes import label
from ddtree_metrics.diagnosis.numerals import cut, cut_words, factor, number, percent_range
from ddtree_metrics.diagnosis.others_beside import in_words
from ddtree_metrics.diagnosis.phrases import STATUS, factors, flag_name, joined
from ddtree_metrics.diagnosis.result import Comparison, Diagnosis, Hypothesis
from ddtree_metrics.diagnosis.scene import Scene
from ddtree_metrics.layout import TextLine, plural
from ddtree_metrics.steps.left_out import left_out
from ddtree_metrics.times import format_us, short_span

SCREEN = 16
"""The answer has at most so many lines."""

WIDEST = 120
"""Lines are no longer, however wide the terminal is: nobody reads a longer one."""

LONGEST_WORD = 14
"""A longer first column than this is only as wide as it must be in its own line."""

REASON_LINES = 5
"""Why nothing can be told takes at most so many lines of the screen."""


def format_diagnosis(d: Diagnosis, width: int = 80, *, full: bool = False, shell: bool = False) -> str:
    """Write a diagnosis as plain text.

    Parameters
    ----------
    d : Diagnosis
        What ``diagnose`` gave.
    width : int
        Columns; at least 40.
    full : bool
        Whether all evidence follows; else the answer takes one screen of at most 16 lines.
    shell : bool
        Whether the reader sits at a shell: commands and options are named instead of calls.

    Returns
    -------
    str
        Lines of at most ``width`` characters, without a newline at the end. A word that is longer is broken; one of more than 200
        characters is cut, and its length is said.
    """
    return "\n".join(line.text for line in diagnosis_lines(d, width, full=full, shell=shell))


def diagnosis_lines(d: Diagnosis, width: int = 80, *, full: bool = False, shell: bool = False) -> list[TextLine]:
    """Return the lines of ``format_diagnosis`` with their kinds, for whoever colours them."""
    width = max(min(width, WIDEST), 40)
    found = answer(d)
    if nothing := _nothing(d, width, shell=shell):
        return nothing
    lines = _screen(found, width, _MORE if shell and not full else ("",))
    return [*lines, *_evidence(d, width)] if full else _shortened(lines)


_MORE = ("   Evidence: --full   Charts: report", "   Evidence: --full", " (--full)")
"""Where the evidence is, for a reader at a shell; the first that fits."""


# -- one screen --------------------------------------------------------------------------------------------------------------------


def _screen(a: Answer, width: int, more: Sequence[str]) -> list[TextLine]:
    scene = a.scene if len(a.scene) <= width else a.scene.replace(".service", "")
    out = [TextLine(t, "title") for t in _wrap(scene, width)]
    if a.warning:
        out += [TextLine(t, "warning") for t in _wrap(f"⚠ {a.warning}", width, "", "  ")]
    out.append(TextLine("", "gap"))
    head = a.headline.upper()
    for own in sorted(a.names, key=len, reverse=True):
        head = head.replace(own.upper(), own)
    if len(head) + 4 + len(a.speeds) <= width and a.speeds:
        out.append(TextLine(f"{head}    {a.speeds}", f"headline {a.direction}"))
    else:
        out += [TextLine(t, f"headline {a.direction}") for t in _wrap(head, width)]
        out += [TextLine(t, "speeds") for t in _wrap(a.speeds, width, "  ", "  ")] if a.speeds else []
    if a.reason:
        told = _wrap(a.reason, width, "  ", "  ")
        out += [TextLine(t) for t in told[:REASON_LINES]]
    words = [*(p.name for p in a.parts), *(word for word, _ in a.findings), *(x.name for x in a.loads)]
    name = 2 + max((len(x) for x in words if len(x) <= LONGEST_WORD), default=0)
    out += _parts(a, width, name)
    for word, said in a.findings:
        out += [TextLine(t, "finding") for t in _wrap(said, width, f"  {word + '  ':<{name}}", " " * (name + 2))]
    if a.loads:
        out.append(TextLine("Also, load and no regression:" if a.changed else "Also:", "label"))
        out += _columns([(x.name, x.groups, x.speeds, x.slope) for x in a.loads], width, name)
    slowest = _joined_within(a.slowest, width - len("Slowest: "))
    for word, said, kind in (("Unclear", a.unclear, "unclear"), ("Slowest", slowest, "slowest"), ("Next", a.next, "next")):
        if said:
            out += [TextLine(t, kind) for t in _wrap(said, width, f"{word}: ", "  ")]
    where = next((m for m in more if len(a.checks + m) <= width), more[-1])
    out += [TextLine(t, "note") for t in _wrap(a.checks + where, width)] if a.checks else []
    return out


def _joined_within(pieces: Sequence[str], width: int) -> str:
    """Join as many pieces as fit in one line, one at least."""
    count = max((n for n in range(1, len(pieces) + 1) if len(" · ".join(pieces[:n])) <= width), default=1)
    return " · ".join(pieces[:count])


def _parts(a: Answer, width: int, name: int) -> list[TextLine]:
    """Lay out the parts of a change in columns, under the names of the two groups where neither is before the other."""
    if not a.parts:
        return []
    both = [p for p in a.parts if p.before]
    if a.groups and both:
        first = max(len(a.groups[0]), *(len(p.before + p.unit) for p in both)) + 2
        second = max(len(a.groups[1]), *(len(p.after + p.unit) for p in both))
        made = [TextLine(f"  {'':<{name}}{a.groups[0]:<{first}}{a.groups[1]}"[:width], "head")]
        cells = [f"{p.before + p.unit if p.before else '':<{first}}{p.after + p.unit if p.before else '':<{second}}" for p in a.parts]
    else:
        made = []
        left, right = (max((len(x) for x in side), default=0) for side in ([p.before for p in both], [p.after + p.unit for p in both]))
        cells = [f"{p.before:>{left}} → {p.after + p.unit:<{right}}" if p.before else " " * (left + right + 3) for p in a.parts]
    share = max(len(p.share) for p in a.parts)
    for p, cell in zip(a.parts, cells, strict=True):
        text = f"  {p.name:<{name}}{cell}  {_aligned(p, share)}".rstrip()
        if not p.note:
            made += [TextLine(t, "part") for t in _wrap_if_long(text, width, name)]
        elif name + len(cell) + share + 6 + len(p.note) <= width:
            made.append(TextLine(f"{text:<{name + len(cell) + share + 4}}  {p.note}", "part"))
        else:
            made += [TextLine(t, "part") for t in _wrap_if_long(text, width, name)]
            made += [TextLine(t, "aside") for t in _wrap(p.note, width, " " * (name + 2), " " * (name + 2))]
    return made


def _aligned(p: Part, width: int) -> str:
    """Put shares below each other: ``91 % of it`` above `` 9 %``."""
    return f"{p.share:<{width}}" if not p.share.endswith("%") or len(p.share) > 3 else f"{p.share:>4}".ljust(width)


def _columns(rows: Sequence[tuple[str, ...]], width: int, name: int) -> list[TextLine]:
    """Lay out rows in columns as long as they fit; what does not fit goes below, under the second column."""
    widths = [name] + [max(len(r[i]) for r in rows) + 3 for i in range(1, len(rows[0]))]
    made = []
    for row in rows:
        text = "  " + "".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip()
        if len(text) <= width:
            made.append(TextLine(text, "load"))
            continue
        line = f"  {row[0]:<{name}}"
        for cell in (c for c in row[1:] if c):
            gap = "" if line.endswith(" ") else "   "
            if len(line + gap + cell) <= width:
                line += gap + cell
                continue
            made += [TextLine(line.rstrip(), "load")] if line.strip() else []
            *whole, line = _wrap(cell, width, " " * (name + 2), " " * (name + 2))
            made += [TextLine(t, "load") for t in whole]
        made.append(TextLine(line.rstrip(), "load"))
    return made


_FIRST_TO_GO = ("slowest", "gap", "unclear", "aside", "load", "label", "finding")
"""What is left out of a screen that would be longer than it may be, the least worth first."""


def _shortened(lines: list[TextLine]) -> list[TextLine]:
    """Leave out whole lines until the screen is short enough."""
    for kind in _FIRST_TO_GO:
        if len(lines) > SCREEN:
            lines = [line for line in lines if line.kind != kind]
    return lines[: SCREEN - 1] + lines[-1:] if len(lines) > SCREEN else lines


# -- nothing can be told -------------------------------------------------------------------------------------------------------------

_REMEDY = {
    "coarse_clock": (
        "Timestamps are whole seconds, so steps cannot be timed. Run again with",
        "journalctl -o short-precise …   (or -o export)",
    ),
    "coarse_stamp": (
        "Timestamps are whole seconds, so steps cannot be timed. Read the journal, or start the server with",
        "SGLANG_LOG_MS=1",
    ),
    "burst": ("Lines were written together, so their times say nothing of steps. Start the server with", "PYTHONUNBUFFERED=1"),
}
"""Why no step could be timed, and what to do."""


def _nothing(d: Diagnosis, width: int, *, shell: bool) -> list[TextLine]:
    """Write the reason and the remedy where there is nothing to tell; an empty list where there is something."""
    scene = d.scene or Scene()
    if scene.clock in _REMEDY:
        why, what = _REMEDY[scene.clock]
        made = [TextLine(t, "headline") for t in _wrap(why, width)] + [TextLine(t, "next") for t in _wrap(what, width, "  ", "  ")]
        known = _known_anyway(d, scene)
        return made + [TextLine(t) for t in _wrap(known, width)] if known else made
    if d.used.get("steps") or d.used.get("request_steps") or d.comparisons:
        return []
    reason, remedy = scene.nothing or ("There is nothing to measure: no step line and no Decode batch line was read.", "")
    made = [TextLine(t, "headline") for t in _wrap(reason, width)]
    return made + [TextLine(t, "next") for t in _wrap(remedy, width)] if remedy else made


def _known_anyway(d: Diagnosis, scene: Scene) -> str:
    """Say what is known where no step could be timed: tokens per step before and after each restart, or over the log."""
    known = [(start, n) for start, n in zip(scene.starts, scene.tokens_by_start, strict=True) if n]
    pairs = [(b[0], a[1], b[1]) for a, b in pairwise(known) if a[0].service == b[0].service]
    if pairs:
        start, before, after = max(pairs, key=lambda p: abs(math.log(p[2] / p[1])))
        where = f"the restart of {start.time[11:19]}" if start.time else start.label
        return f"Known anyway: tokens/step {number(before, 2)} → {number(after, 2)} at {where}."
    return "" if scene.tokens is None else f"Known anyway: {number(scene.tokens, 2)} tokens/step over {plural(d.used['steps'], 'step')}."


# -- all of it -----------------------------------------------------------------------------------------------------------------------


def _evidence(d: Diagnosis, width: int) -> list[TextLine]:
    out: list[TextLine] = []
    for c in d.comparisons:
        out += [TextLine(), *_comparison(d, c, width)]
    out += [TextLine(), TextLine("Checks", "label")]
    if any("for each" in h.evidence for h in d.hypotheses):
        out += _lines("slopes (so much for each 1,000 tokens, request, minute): all measured causes held equal", width, "  ", "  ")
    alike: dict[tuple[str, str], list[Hypothesis]] = {}
    for h in d.hypotheses:
        alike.setdefault((h.status, h.evidence), []).append(h)
    for group in alike.values():
        out += _hypotheses(group, width)
    above = tuple(f"{h.name}:" for h in d.hypotheses)
    open_ = [line for line in d.cannot_tell if not line.startswith(above)]
    if open_:
        out += [TextLine(), TextLine("Also open", "label")]
        for line in open_:
            out += _lines(line, width, "  - ", "    ")
    for around in d.beside:
        said = in_words(around, 20)
        span = short_span(format_us(around.begin_us), format_us(around.end_us))
        if said or around.unknown:
            out += [TextLine(), TextLine(f"Beside, {span} (no line says that it is because of it)", "label")]
        for line in (*said, *around.unknown):
            out += _lines(line, width, "  - ", "    ")
    if len(d.next) > 1:
        out += [TextLine(), TextLine("What to measure next", "label")]
        for i, line in enumerate(d.next, 1):
            out += _lines(line, width, f"  {i}. ", "     ")
    used = d.used
    counts = ", ".join(
        plural(used[name], name[:-1].replace("_", " ")) for name in ("request_steps", "timed_steps", "requests", "server_starts")
    )
    out += [TextLine(), *_lines(f"Rests on {counts} ({d.basis}); intervals hold at {100 * d.level:g} %", width, kind="note")]
    if d.excluded:
        out += _lines("Left out: " + ", ".join(left_out(reason, count) for reason, count in d.excluded.items()), width, kind="note")
    return out


def _comparison(d: Diagnosis, c: Comparison, width: int) -> Iterator[TextLine]:
    """Write a comparison as a table whose columns are named, and what belongs to it."""
    first, second = heads(c)
    yield from _lines(f"{c.after} against {c.before}", width, kind="label")
    rows = [
        ("step time, ms", number(c.step_time_before_ms), number(c.step_time_after_ms), factor(c.step_time_ratio)),
        ("tokens/step", number(c.tokens_before, 2), number(c.tokens_after, 2), factor(c.tokens_ratio)),
        ("tok/s a request", number(c.speed_before), number(c.speed_after), factor(c.speed_ratio)),
    ]
    wide = max(11, len(first), len(second))
    if 17 + 2 * (wide + 2) + max(len(r[3]) for r in rows) <= width:
        yield TextLine(f"  {'':<15} {first:>{wide}} {second:>{wide}}  ratio (interval)", "head")
        for name, before, after, ratio in rows:
            yield TextLine(f"  {name:<15} {before:>{wide}} {after:>{wide}}  {ratio}", "part")
    else:
        for name, before, after, ratio in rows:
            yield from _lines(f"{name}: {before} → {after}", width, "  ", "    ")
            yield from _lines(ratio, width, "    ", "    ")
    if c.share_step_time.known:
        mix = f"mix of requests {percent_range(c.share_mix)}, " if c.share_mix.known else ""
        told = f"{mix}step time {percent_range(c.share_step_time)}, tokens/step {percent_range(c.share_acceptance)}"
        yield from _lines(f"of the change: {told}", width, "  ", "    ")
    elif c.shares_reason:
        yield from _lines(c.shares_reason, width, "  ", "    ")
    if c.speed_ratio.known and c.step_time_ratio.known and c.tokens_ratio.known:
        yield from _lines(factors(c), width, "  ", "    ")
    if c.speed_ratio_equal.known:
        same = joined([label(t) for t in c.equal_of])
        ratios = f"step time {factor(c.step_time_ratio_equal)}, tokens/step {factor(c.tokens_ratio_equal)}"
        yield from _lines(f"at equal {same}: {ratios}", width, "  ", "    ")
    for f in c.flags:
        yield from _lines(f"{flag_name(f.flag)}: {cut(f.before)} → {cut(f.after)}: {STATUS[f.status]}; {f.evidence}", width, "  ", "    ")
    if c.reason:
        yield from _lines(c.reason, width, "  ", "  ")


def _hypotheses(group: Sequence[Hypothesis], width: int) -> Iterator[TextLine]:
    """Write hypotheses of which the data say the same, and what they say once."""
    for h in group:
        yield from _lines(f"{STATUS[h.status]:<10} {h.name}", width, "  ", " " * 13, kind=f"check {h.status}")
    if group[0].evidence:
        yield from _lines(group[0].evidence, width, " " * 13, " " * 13)


def _lines(text: str, width: int, first: str = "", rest: str = "", *, kind: str = "") -> list[TextLine]:
    return [TextLine(t, kind) for t in _wrap(text, width, first, rest)]


def _wrap_if_long(text: str, width: int, name: int) -> list[str]:
    return [text.rstrip()] if len(text.rstrip()) <= width else _wrap(" ".join(text.split()), width, "  ", " " * (name + 2))


def _wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Break a text into lines; runs of blanks within a line stay as they are."""
    text = cut_words(text)
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False) or [first.rstrip()]
