"""The sections of a report that say why: verdict, evidence, pictures, the curve, the sweep."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ddtree_metrics import metrics, plots
from ddtree_metrics.diagnosis.numerals import cut_words
from ddtree_metrics.errors import MetricError
from ddtree_metrics.metrics.confidence import useless
from ddtree_metrics.metrics.shares import counteracting
from ddtree_metrics.plots.timeline import bucket
from ddtree_metrics.report.drawing import NARROW, WIDE, draw
from ddtree_metrics.report.facts import Facts
from ddtree_metrics.report.markup import Html, between, count, figure, how, join, known, percent, quantity, ratio, table, tag
from ddtree_metrics.steps import frames as columns
from ddtree_metrics.steps.basis import Kind
from ddtree_metrics.summary import MIXED

if TYPE_CHECKING:
    from ddtree_metrics.diagnosis import Comparison, Diagnosis, Hypothesis, Interval
    from ddtree_metrics.log import Log

SIGNS = {"supported": "●", "refuted": "○", "cannot tell": "?"}
MOST_ROWS = 60
"""More rows of a table are not shown, and it says so."""


def verdict(diagnosis: Diagnosis) -> Html:
    """Say the answer, the two shares, what cannot be told and what to measure next."""
    first_sentence, rest = _split(cut_words(diagnosis.verdict))
    made: list[object] = [tag("p", first_sentence, class_="verdict"), tag("p", rest, class_="lead") if rest else None]
    if diagnosis.comparisons:
        first = diagnosis.comparisons[0]
        picture = draw(lambda ax: plots.plot_attribution(first, ax), _shares_in_words(first), size=(4.3, 2.2))
        made.append(tag("div", picture, _comparison(first), class_="answer"))
        made.append(
            how(
                "found = ddt.diagnose(log)\nfound.verdict\nfound.comparisons[0]          # both groups, ratios, shares\n"
                "found.comparisons[0].share_step_time   # .value, .low, .high",
                note="Shares are parts of the logarithm of the speed ratio, so they add up to 100 %.",
            )
        )
    lists = [
        tag("div", tag("h3", name), _items(said))
        for name, said in (("What to measure next", diagnosis.next), ("What cannot be told", diagnosis.cannot_tell))
        if said
    ]
    return join([made, tag("div", lists, class_="lists") if lists else None])


def _split(text: str) -> tuple[str, str]:
    """Split off the first sentence."""
    parts = re.split(r"(?<=[.!?]) (?=[A-Z])", text.strip(), maxsplit=1)
    return parts[0], parts[1] if len(parts) > 1 else ""


def other_comparisons(diagnosis: Diagnosis) -> Html | None:
    """Show the comparisons that the verdict does not rest on."""
    rest = diagnosis.comparisons[1:]
    if not rest:
        return None
    blocks = [[tag("h3", c.sentence), _comparison(c)] for c in rest[:8]]
    more = f"{len(rest) - 8} more comparisons are not shown." if len(rest) > 8 else None
    return join(
        [
            tag("h2", "Other comparisons", id="comparisons"),
            blocks,
            tag("p", more, class_="quiet") if more else None,
            how("for found in ddt.diagnose(log).comparisons:\n    print(found.sentence, found.step_time_ratio, found.tokens_ratio)"),
        ]
    )


def evidence(diagnosis: Diagnosis) -> Html:
    """Show the hypotheses: status, effect with its interval, what the data show, what to measure next."""
    names = {h.key: h.name for h in diagnosis.hypotheses}
    rows = [_hypothesis(h, names) for h in diagnosis.hypotheses]
    head = ("Hypothesis", "The data say", "Speed with it / without", "Evidence")
    body = table(head, rows, numeric=(2,), class_="cards") if rows else tag("p", "Nothing could be tested.", class_="quiet")
    return join(
        [
            tag("h2", "Evidence", id="evidence"),
            tag(
                "p",
                f"Effects are ratios of speed with {100 * diagnosis.level:g} % intervals: ×0.50 is half as fast. "
                "Slopes (so much for each 1000 tokens) hold all measured causes equal. ",
                _basis(diagnosis),
                class_="quiet",
            ),
            body,
            how(_hypothesis_calls(list(names))),
        ]
    )


def pictures(log: Log, facts: Facts) -> Html:
    """Draw step time, tokens per step, speed, survival, distribution, and the line over time."""
    x = "context length"
    events, made = _event_rows(log, facts), bucket(facts.steps)

    def over_time(ax: Any) -> Any:
        return plots.plot_throughput(made, ax, events=events)

    drawn = [
        draw(lambda ax: plots.plot_step_time(facts.curve, ax, fit=facts.fit, sweep=facts.sweep), f"Mean step time against {x}, with a fit"),
        draw(lambda ax: plots.plot_tokens_per_step(facts.curve, ax, sweep=facts.sweep), f"Tokens per step against {x}"),
        draw(lambda ax: plots.plot_speed(facts.curve, ax, sweep=facts.sweep), f"Speed of one request against {x}"),
        draw(lambda ax: plots.plot_survival(facts.acceptance, ax), "Share of steps that accepted at least so many drafts"),
        draw(
            lambda ax: plots.plot_step_time_distribution(facts.once, ax),
            "Distribution of step times",
        ),
        _second_axis(facts),
        draw(over_time, "Tokens per second over time, with events", size=WIDE, class_="whole only-wide"),
        draw(over_time, "Tokens per second over time, with events", size=NARROW, class_="whole only-narrow"),
    ]
    code = (
        f"{facts.calls}\ncurve = ddt.by_context(rows)\n"
        "ax = ddt.plot_step_time(curve, fit=ddt.fit_step_time(rows))\nddt.plot_tokens_per_step(curve)\n"
        'ddt.plot_survival(ddt.acceptance(rows))\nddt.plot_step_time_distribution(rows.drop_duplicates("where").drop(columns="weight"))\n'
        "ddt.plot_throughput(log.steps, events=log.events)\n"
        'ddt.save_figure(ax, "step-time.svg")'
    )
    said = [getattr(facts.fit, "sentence", None), getattr(facts.comparison, "sentence", None)]
    if said[0] and getattr(facts.fit, "model", None) in ("line", "bend", "curve"):
        said[0] += (
            " This is the line through the picture: context and batch size only. The slope under Evidence is another model, in which all "
            "measured causes are held equal, so the two need not agree."
        )
    return join(
        [
            tag("h2", "Pictures", id="pictures"),
            tag("div", drawn, class_="figures"),
            [tag("p", s) for s in said if s],
            how(code, note="Numbers above the x axis are sample sizes; a hollow point has no interval."),
        ]
    )


def _second_axis(facts: Facts) -> Html:
    """Draw step time against batch size where that varies, else against generated length."""
    batch = columns.finite(columns.numeric(facts.rows, "batch_size"))
    by = "batch_size" if len(np.unique(batch[np.isfinite(batch)])) > 1 else "generated_len"
    try:
        frame = metrics.by_context(facts.rows, by=by)
    except MetricError:
        frame = pd.DataFrame()
    frame.attrs["by"] = by
    return draw(lambda ax: plots.plot_step_time(frame, ax), f"Mean step time against {by.replace('_', ' ')}")


def curve(facts: Facts) -> Html:
    """Show the numbers behind the pictures, a row a bin of context length."""
    frame = facts.curve
    heading = tag("h2", "By context length", id="by-context")
    if not len(frame):
        why = frame.attrs.get("reason") or "no step has a known context length"
        return join([heading, tag("p", f"There is nothing to show: {why}.", class_="quiet"), how(f"{facts.calls}\nddt.by_context(rows)")])
    rows: list[tuple[object, ...]] = []
    for row in frame.head(MOST_ROWS).to_dict("records"):
        rows.append(
            (
                _bin(row),
                count(row.get("timed_steps")),
                count(row.get("requests")),
                _q(row, "tokens_per_step_pooled"),
                _q(row, "step_time_mean_ms"),
                _q(row, "tok_per_s"),
                figure(row.get("step_time_p50_ms")),
                figure(row.get("step_time_p95_ms")),
                _q(row, "tokens_per_step_per_request"),
                row.get("reason") if isinstance(row.get("reason"), str) else None,
            )
        )
    head = [
        "Context",
        "Timed steps",
        "Requests",
        "Tokens a step, pooled",
        "Step time, mean (ms)",
        "Tokens/s",
        "Step time, median",
        "95 %",
        "Tokens a step, mean over requests",
        "Note",
    ]
    if not any(r[-1] for r in rows):
        head, rows = head[:-1], [r[:-1] for r in rows]
    more = f"{len(frame) - MOST_ROWS} more bins are not shown." if len(frame) > MOST_ROWS else None
    skipped = frame.attrs.get("rows_without_axis")
    note = f"{count(skipped)} request-steps have no context length and are in no bin." if known(skipped) and skipped else None
    mixed = facts.kind in (Kind.DECODE_STEPS, Kind.DECODE_WINDOWS) and bool((columns.numeric(facts.rows, "batch_size") > 1).any())
    return join(
        [
            heading,
            table(head, rows, numeric=range(1, 9), whole=(0,)),
            tag("p", more, class_="quiet") if more else None,
            tag("p", note, class_="quiet") if note else None,
            tag("p", f"{_capital(MIXED)}.", class_="note") if mixed else None,
            how(f"{facts.calls}\ncurve = ddt.by_context(rows)", curve_sql(frame) if facts.by_sql else None),
        ]
    )


def curve_sql(frame: pd.DataFrame) -> str:
    """Write the query over an export that gives the means of the curve."""
    edges = zip(columns.numeric(frame, "low"), columns.numeric(frame, "high"), strict=True)
    bins = ", ".join(f"({low:.0f}, {high:.0f})" for low, high in edges if np.isfinite(low) and np.isfinite(high))
    return (
        f"WITH bins(low, high) AS (VALUES {bins})\n"
        "SELECT low, high,\n"
        "       count(*) AS request_steps,\n"
        "       count(DISTINCT request_id) AS requests,\n"
        "       count(*) FILTER (step_us > 0) AS timed_request_steps,\n"
        "       avg(step_us) FILTER (step_us > 0) / 1000 AS step_time_mean_ms,\n"
        "       avg(tokens) AS tokens_per_step_pooled\n"
        "FROM 'export/request_steps.parquet'\n"
        "JOIN bins ON context_len >= low AND context_len < high\n"
        "WHERE NOT list_has_any(coalesce(flags, []), ['warmup', 'health_check'])\n"
        "GROUP BY low, high\n"
        "ORDER BY low;"
    )


def sweep(facts: Facts) -> Html | None:
    """Lay a measured sweep beside what the log says at the same context length."""
    if facts.sweep is None:
        return None
    rows: list[tuple[object, ...]] = []
    for point in facts.sweep.head(MOST_ROWS).to_dict("records"):
        logged = _at(facts.curve, point.get("x_mean"))
        speed, derived = point.get("tok_per_s"), None if logged is None else logged.get("tok_per_s")
        quotient = ratio(float(speed) / float(derived)) if known(speed) and known(derived) and float(derived) > 0 else "–"
        reason = point.get("reason")
        rows.append(
            (
                count(point.get("prompt_tokens")),
                quantity(speed, point.get("tok_per_s_low"), point.get("tok_per_s_high")),
                _q(logged, "tok_per_s") if logged is not None else "no bin there",
                quotient,
                reason if isinstance(reason, str) else None,
            )
        )
    head = ["Prompt tokens", "Measured, tokens/s", "From the log, same context", "Measured / log", "Note"]
    if not any(r[-1] for r in rows):
        head, rows = head[:-1], [r[:-1] for r in rows]
    body = table(head, rows, numeric=range(4)) if rows else tag("p", "The sweep has no points.", class_="quiet")
    return join(
        [
            tag("h2", "Measured sweep", id="sweep"),
            tag(
                "p",
                "The speed of single requests, measured from outside, beside what the log says of the requests it saw. A measured "
                "point stands in the bin that holds its context length (prompt and half of the output).",
            ),
            body,
            how(
                'import json\nsweep = json.load(open("sweep.json"))\nddt.render_report(log, ddt.diagnose(log), bench=sweep)\n'
                f'{facts.calls}\nddt.by_context(rows)[["low", "high", "tok_per_s"]]'
            ),
        ]
    )


# -- pieces ------------------------------------------------------------------------------------------------------------------


def _comparison(found: Comparison) -> Html:
    """Show two groups side by side."""
    equal = found.step_time_ratio_equal.known or found.tokens_ratio_equal.known

    def line(name: str, before: Any, after: Any, change: Interval, at_equal: Interval | None, share: Interval | None) -> tuple[object, ...]:
        cells: list[object] = [name, figure(before), figure(after), _ratio(change)]
        if equal:
            cells.append(_ratio(at_equal) if at_equal is not None else "–")
        cells.append(quantity(share.value, share.low, share.high, percent) if share is not None and share.known else "–")
        return tuple(cells)

    rows = [
        line(
            "Step time (ms)",
            found.step_time_before_ms,
            found.step_time_after_ms,
            found.step_time_ratio,
            found.step_time_ratio_equal,
            found.share_step_time,
        ),
        line(
            "Tokens per step", found.tokens_before, found.tokens_after, found.tokens_ratio, found.tokens_ratio_equal, found.share_acceptance
        ),
        line("Tokens/s, one request", found.speed_before, found.speed_after, found.speed_ratio, None, None),
    ]
    head = ["", "before", "after", "after / before", *(["at equal context and batch"] if equal else []), "share"]
    sizes = ", ".join(f"{count(n)} {name.replace('_', ' ')}" for name, n in found.rows.items() if known(n))
    slower = found.speed_ratio.value is None or found.speed_ratio.value < 1
    sure = found.share_step_time.low is not None and found.share_step_time.high is not None
    remark = counteracting(found.share_step_time.value, found.share_step_time.low, found.share_step_time.high, slower=slower)
    under = [
        f"Before: {found.before}. After: {found.after}.",
        f" {sizes}." if sizes else None,
        f" {found.reason}." if found.reason else None,
        f" {_capital(remark)}." if remark else None,
        " The shares have no interval: too few rows, or one of the ratios has none." if found.share_step_time.known and not sure else None,
    ]
    return tag("div", table(head, rows, numeric=range(1, len(head)), class_="cards"), tag("p", under, class_="quiet"))


def _hypothesis(one: Hypothesis, names: dict[str, str]) -> tuple[object, ...]:
    status = tag("span", f"{SIGNS.get(one.status, '')} {one.status}".strip(), class_=f"status {one.status.replace(' ', '-')}")
    name: object = tag("strong", one.name) if one.explains else one.name
    more = [cut_words(one.evidence)]
    together = [names.get(k, k) for k in one.together_with]
    extra = tag("p", "Cannot be separated from: " + "; ".join(together)) if together else None
    nxt = tag("p", one.next, class_="next") if one.next else None
    return name, status, _ratio(one.effect), join([more, extra, nxt])


def _hypothesis_calls(keys: list[str]) -> str:
    lines = ["found = ddt.diagnose(log)", "found.hypotheses"]
    if keys:
        also = f"      # by its key; also: {', '.join(keys[1:5])}" if keys[1:] else ""
        lines.append(f'found.hypothesis("{keys[0]}").effect{also}')
    return "\n".join(lines)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _ratio(found: Interval) -> Html:
    if not found.known:
        return Html("–")
    if found.unit == "ratio" and found.low is not None and found.high is not None and useless(found.low, found.high):
        return join([ratio(found.value), tag("span", "no interval: too few rows", class_="ci")])
    unit = "" if found.unit in ("ratio", "share", "") else found.unit
    write = {"share": percent, "ratio": ratio}.get(found.unit, lambda v: figure(v, unit=unit))
    return quantity(found.value, found.low, found.high, write)


def _shares_in_words(found: Comparison) -> str:
    parts = []
    for name, share in (("step time", found.share_step_time), ("tokens per step", found.share_acceptance)):
        if share.known:
            ends = between(share.low, share.high, percent)
            parts.append(f"{name} {percent(share.value)}" + (f" ({ends})" if ends else " (no interval)"))
    return "Shares of the change in speed: " + (", ".join(parts) or "not known")


def _basis(diagnosis: Diagnosis) -> str:
    used = ", ".join(f"{count(n)} {name.replace('_', ' ')}" for name, n in diagnosis.used.items() if known(n))
    return f"They rest on {diagnosis.basis}" + (f": {used}." if used else ".")


def _items(said: Sequence[str]) -> Html:
    return tag("ul", [tag("li", s) for s in said])


def _event_rows(log: Log, facts: Facts) -> pd.DataFrame:
    """Return what is marked over time: what the log says, and the gaps, clock steps and bursts that were found."""
    kinds, at = columns.text(log.events, "kind"), columns.time_us(log.events)
    found, starts = columns.text(facts.gaps, "kind"), columns.time_us(facts.gaps)
    if "start" in facts.gaps.columns:
        starts = columns.instants(facts.gaps["start"])
    new = ~np.isin(found.astype(str), np.unique(kinds.astype(str))) if len(found) else np.zeros(0, dtype=bool)
    return pd.DataFrame({"kind": np.concatenate([kinds, found[new]]), "time_us": np.concatenate([at, starts[new]])})


def _bin(row: dict[Any, Any]) -> str:
    low, high = row.get("low"), row.get("high")
    if known(low) and known(high) and float(low).is_integer() and float(high).is_integer():
        return count(low) if float(high) - float(low) <= 1 else f"{count(low)} to {count(float(high) - 1)}"
    return str(row.get("bin", ""))


def _q(row: dict[Any, Any], name: str) -> Html:
    return quantity(row.get(name), row.get(f"{name}_low"), row.get(f"{name}_high"))


def _at(frame: pd.DataFrame, x: Any) -> dict[Any, Any] | None:
    """Return the row of the curve whose bin holds this context length."""
    if not known(x) or not len(frame):
        return None
    inside = (columns.numeric(frame, "low") <= float(x)) & (columns.numeric(frame, "high") > float(x))
    return frame[inside].iloc[0].to_dict() if inside.any() else None
