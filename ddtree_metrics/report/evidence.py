"""The evidence of a page: what is a cause lies open; what is unknown, ruled out or compared besides is folded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddtree_metrics.diagnosis.answer import heads, slow_range
from ddtree_metrics.diagnosis.numerals import cut_words
from ddtree_metrics.diagnosis.phrases import STATUS
from ddtree_metrics.diagnosis.result import CANNOT_TELL, REFUTED, SUPPORTED
from ddtree_metrics.layout import plural
from ddtree_metrics.metrics.confidence import useless
from ddtree_metrics.metrics.shares import counteracting
from ddtree_metrics.report.markup import Html, count, figure, how, join, known, percent, quantity, ratio, table, tag

if TYPE_CHECKING:
    from ddtree_metrics.diagnosis import Comparison, Diagnosis, Hypothesis, Interval

MOST_COMPARISONS = 8


def evidence(diagnosis: Diagnosis) -> Html:
    """Show what the data say of each hypothesis, the causes first and open."""
    by_status = {status: [h for h in diagnosis.hypotheses if h.status == status] for status in (SUPPORTED, CANNOT_TELL, REFUTED)}
    others = [h for h in diagnosis.hypotheses if h.status not in by_status]
    causes = by_status[SUPPORTED]
    above = tuple(f"{h.name}:" for h in diagnosis.hypotheses)
    compared = len(diagnosis.comparisons)
    open_ = [said for said in diagnosis.cannot_tell if not said.startswith(above)]
    folds = [
        _fold(f"{len(held)} {said}", _hypotheses(held, diagnosis)) if held else None
        for said, held in ((STATUS[CANNOT_TELL], by_status[CANNOT_TELL]), (STATUS[REFUTED], by_status[REFUTED]), ("others", others))
    ]
    return tag(
        "section",
        tag("h2", "Evidence", id="evidence"),
        _hypotheses(causes, diagnosis) if causes else tag("p", "No cause is shown.", class_="quiet"),
        folds,
        _fold("Also open", tag("ul", [tag("li", cut_words(said)) for said in open_])) if open_ else None,
        _fold("What to measure next", tag("ol", [tag("li", cut_words(said)) for said in diagnosis.next])) if diagnosis.next else None,
        _fold(f"{plural(compared, 'comparison')} with intervals", _comparisons(diagnosis)) if compared else None,
        tag("p", _basis(diagnosis), class_="quiet"),
        how(_calls([h.key for h in diagnosis.hypotheses])),
    )


def _fold(summary: str, inside: object) -> Html:
    return tag("details", tag("summary", summary), inside)


def _hypotheses(held: list[Hypothesis], diagnosis: Diagnosis) -> Html:
    names = {h.key: h.name for h in diagnosis.hypotheses}
    return table(("Check", "Effect", "Evidence"), [_hypothesis(h, names) for h in held], class_="cards")


def _hypothesis(one: Hypothesis, names: dict[str, str]) -> tuple[object, ...]:
    together = [names.get(k, k) for k in one.together_with]
    said = tag("span", STATUS.get(one.status, one.status), class_=f"status {one.status.replace(' ', '-')}")
    effect = tag("span", slow_range(one), class_="effect") if one.effect.known and one.effect.unit == "ratio" and one.acts_on else None
    extra = tag("p", "Cannot be separated from: " + "; ".join(together)) if together else None
    return tag("span", one.name, " ", said), effect, join([cut_words(one.evidence), extra])


def _comparisons(diagnosis: Diagnosis) -> Html:
    shown = diagnosis.comparisons[:MOST_COMPARISONS]
    more = len(diagnosis.comparisons) - len(shown)
    return join(
        [
            [[tag("h3", f"{c.after} against {c.before}"), _comparison(c)] for c in shown],
            tag("p", f"{more} more comparisons are not shown.", class_="quiet") if more else None,
            how("for found in ddt.diagnose(log).comparisons:\n    print(found.sentence, found.step_time_ratio, found.tokens_ratio)"),
        ]
    )


def _comparison(found: Comparison) -> Html:
    """Show two groups side by side."""
    equal = found.step_time_ratio_equal.known or found.tokens_ratio_equal.known

    def line(name: str, before: Any, after: Any, change: Interval, at_equal: Interval | None, share: Interval | None) -> tuple[object, ...]:
        cells: list[object] = [name, figure(before), figure(after), _ratio(change)]
        if equal:
            cells.append(_ratio(at_equal) if at_equal is not None else "–")
        cells.append(quantity(share.value, share.low, share.high, percent) if share is not None and share.known else "–")
        return tuple(cells)

    steps = (found.step_time_ratio, found.step_time_ratio_equal, found.share_step_time)
    tokens = (found.tokens_ratio, found.tokens_ratio_equal, found.share_acceptance)
    rows = [
        line("step time (ms)", found.step_time_before_ms, found.step_time_after_ms, *steps),
        line("tokens a step", found.tokens_before, found.tokens_after, *tokens),
        line("tok/s a request", found.speed_before, found.speed_after, found.speed_ratio, None, None),
    ]
    first, second = heads(found)
    head = ["", first, second, "ratio", *(["at equal mix"] if equal else []), "share"]
    sizes = ", ".join(f"{count(n)} {name.replace('_', ' ')}" for name, n in found.rows.items() if known(n))
    slower = found.speed_ratio.value is None or found.speed_ratio.value < 1
    remark = counteracting(found.share_step_time.value, found.share_step_time.low, found.share_step_time.high, slower=slower)
    under = [f"{sizes}. " if sizes else None, f"{found.reason}. " if found.reason else None, f"{_capital(remark)}. " if remark else None]
    return tag("div", table(head, rows, numeric=range(1, len(head)), class_="cards"), tag("p", under, class_="quiet"))


def _ratio(found: Interval) -> Html:
    if not found.known:
        return Html("–")
    if found.unit == "ratio" and found.low is not None and found.high is not None and useless(found.low, found.high):
        return join([ratio(found.value), tag("span", "no interval: too few rows", class_="ci")])
    unit = "" if found.unit in ("ratio", "share", "") else found.unit
    write = {"share": percent, "ratio": ratio}.get(found.unit, lambda v: figure(v, unit=unit))
    return quantity(found.value, found.low, found.high, write)


def _basis(diagnosis: Diagnosis) -> str:
    used = ", ".join(f"{count(n)} {name.replace('_', ' ')}" for name, n in diagnosis.used.items() if known(n))
    return f"Rests on {diagnosis.basis}" + (f": {used}." if used else ".")


def _calls(keys: list[str]) -> str:
    lines = ["found = ddt.diagnose(log)", "found.hypotheses"]
    if keys:
        also = f"      # by its key; also: {', '.join(keys[1:5])}" if keys[1:] else ""
        lines.append(f'found.hypothesis("{keys[0]}").effect{also}')
    return "\n".join(lines)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
