"""What a page opens with: the two speeds, one line why, one line what it is not, and throughput over time; then the parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ddtree_metrics import plots
from ddtree_metrics.diagnosis.answer import Answer, answer
from ddtree_metrics.diagnosis.numerals import cut_words
from ddtree_metrics.diagnosis.text import diagnosis_lines
from ddtree_metrics.report.drawing import NARROW, WIDE, draw
from ddtree_metrics.report.facts import Facts
from ddtree_metrics.report.markup import Html, how, join, table, tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddtree_metrics.diagnosis import Diagnosis

NOT = "not the cause"
BESIDE = "beside"
"""What other programs wrote then; it is never put with the causes."""


def first_screen(diagnosis: Diagnosis, facts: Facts) -> Html:
    """Say the answer in a handful of lines, and draw throughput over time."""
    found = answer(diagnosis)
    return tag("section", _words(diagnosis, found), _over_time(facts), id="answer")


def _words(diagnosis: Diagnosis, found: Answer) -> Html:
    lines = diagnosis_lines(diagnosis, 120)
    if not any(line.kind == "title" for line in lines):  # nothing can be told: the reason and the remedy
        return join(
            [
                tag("p", _joined(line.text for line in lines if line.kind == "headline"), class_="headline"),
                [tag("pre", tag("code", line.text.strip())) for line in lines if line.kind == "next"],
                tag("p", _joined(line.text for line in lines if line.kind not in ("headline", "next"))),
            ]
        )
    before, _, change = found.speeds.partition(" (")
    numbers, _, unit = before.partition(" tok/s")
    speeds = tag("p", numbers, tag("span", f" tok/s{unit}", f" · {change.rstrip(')')}" if change else None), class_="speeds")
    why, rest = _why(found)
    nots = [f"{word}: {said}" if word != NOT else said for word, said in rest]
    return join(
        [
            tag("p", f"⚠ {cut_words(found.warning)}", class_="note") if found.warning else None,
            tag("p", cut_words(found.headline), class_=f"headline {found.direction}"),
            speeds if found.speeds else None,
            tag("p", tag("b", f"{why[0]}:"), " ", cut_words(why[1]), class_="why") if why else None,
            tag("p", tag("b", "Not the cause:"), " ", cut_words("; ".join(nots)), class_="why") if nots else None,
            [tag("p", tag("b", "Beside:"), " ", cut_words(said), class_="why") for word, said in found.findings if word == BESIDE],
            tag("p", cut_words(found.reason)) if found.reason else None,
        ]
    )


def _why(found: Answer) -> tuple[tuple[str, str] | None, list[tuple[str, str]]]:
    """Return what explains the change, and what does not: the likely cause, else the largest part."""
    findings = [pair for pair in found.findings if pair[0] != BESIDE]
    causes = [(word, said) for word, said in findings if word != NOT and not word.startswith("restart ")]
    rest = [pair for pair in findings if pair not in causes]
    if causes:
        return (_capital(causes[0][0]), "; ".join(said for _, said in causes)), rest
    if not found.parts:
        return None, rest
    most = found.parts[0]
    arrow = f"{most.before} → {most.after}{most.unit}" if most.before else ""
    groups = " against ".join(reversed(found.groups)) if found.groups else ""
    said = ", ".join(filter(None, [" ".join(filter(None, [most.name, arrow])), most.share, most.note, groups]))
    return ("Mostly", said), rest


def _over_time(facts: Facts) -> Html:
    unnamed = [replace(one, name="") for one in facts.buckets]  # the words at each start tell what is what

    def throughput(ax: Axes) -> Axes:
        return plots.plot_throughput(unnamed, ax, events=facts.marked, starts=facts.starts)

    return join([draw(throughput, size=size, class_=f"whole only-{name}") for size, name in ((WIDE, "wide"), (NARROW, "narrow"))])


def parts(diagnosis: Diagnosis) -> Html | None:
    """Take the change apart, and name what is slow besides, what is open, and what to do next."""
    found = answer(diagnosis)
    if not found.parts:
        return None
    first = diagnosis.comparisons[0]
    both = found.groups or ("before", "after")
    rows: list[tuple[str, ...]] = [
        (p.name, _with_unit(p.before, p.unit), _with_unit(p.after, p.unit), p.share, p.note) for p in found.parts
    ]
    head = ["", *both, "of the change", "note"]
    if not any(r[-1] for r in rows):
        head, rows = head[:-1], [r[:-1] for r in rows]
    loads = [(x.name, x.groups, x.speeds, x.slope) for x in found.loads]
    more = [(w, s) for w, s in (("Unclear", found.unclear), ("Slowest", " · ".join(found.slowest)), ("Next", found.next)) if s]
    return tag(
        "section",
        tag("h2", "Parts", id="parts"),
        tag(
            "div",
            table(head, rows, numeric=(1, 2), class_="cards"),
            draw(lambda ax: plots.plot_attribution(first, ax), size=(4.3, 2.0)),
            class_="answer",
        ),
        [tag("h3", "Load, not a change in time"), table(("", "groups", "tok/s a request", "slope"), loads, class_="cards")]
        if loads
        else None,
        tag("dl", [[tag("dt", word), tag("dd", cut_words(said))] for word, said in more]) if more else None,
        how(
            "found = ddt.diagnose(log)\nprint(found)\nfound.comparisons[0].share_step_time   # .value, .low, .high",
            note="Shares are parts of the logarithm of the speed ratio, so they add up to 100 %.",
        ),
    )


def _with_unit(value: str, unit: str) -> str:
    return f"{value}{unit}" if value else ""


def _joined(texts: Iterable[str]) -> str:
    return " ".join(text.strip() for text in texts if text.strip())


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
