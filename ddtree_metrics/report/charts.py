"""The charts of a page: each against context, by server start, with one legend; the numbers behind them; a measured sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ddtree_metrics import metrics, plots
from ddtree_metrics.errors import MetricError
from ddtree_metrics.plots.looks import MARKERS, SERIES
from ddtree_metrics.report.drawing import COLOURS, draw
from ddtree_metrics.report.facts import Facts
from ddtree_metrics.report.markup import Html, count, figure, how, join, known, quantity, ratio, table, tag
from ddtree_metrics.steps import frames as columns
from ddtree_metrics.steps.basis import Kind
from ddtree_metrics.summary import MIXED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ddtree_metrics.diagnosis import Diagnosis

MOST_ROWS = 60
"""More rows of a table are not shown, and it says so."""

SIGNS = dict(zip(MARKERS, "●■▲◆▼✚", strict=True))


def charts(diagnosis: Diagnosis, facts: Facts) -> Html:
    """Draw step time, tokens per step, speed, survival and distribution, and fold the numbers behind them."""

    def of_starts(plot: Callable[..., Axes], frame: pd.DataFrame, **more: Any) -> Html:
        return draw(lambda ax: plot(frame, ax, label="", **more))

    drawn = [
        of_starts(plots.plot_step_time, facts.curve, fit=diagnosis, sweep=facts.sweep),
        of_starts(plots.plot_tokens_per_step, facts.curve, sweep=facts.sweep),
        of_starts(plots.plot_speed, facts.curve, sweep=facts.sweep),
        draw(lambda ax: plots.plot_survival(facts.acceptance, ax, starts=facts.starts, label="")),
        of_starts(plots.plot_step_time_distribution, facts.once),
        of_starts(plots.plot_step_time, _second_axis(facts)),
        *_budgets(facts),
    ]
    code = (
        f'{facts.calls}\ncurve = ddt.by_context(rows, each="run")\n'
        "ax = ddt.plot_step_time(curve, fit=ddt.diagnose(log))\nddt.plot_tokens_per_step(curve)\n"
        'ddt.plot_survival(ddt.acceptance(rows))\nddt.plot_step_time_distribution(rows.drop_duplicates("where").drop(columns="weight"))\n'
        "ddt.plot_throughput(rows, events=log.events)\n"
        'ddt.save_figure(ax, "step-time.svg")'
    )
    return tag(
        "section",
        tag("h2", "Charts", id="charts"),
        _legend(facts),
        tag("div", drawn, class_="figures"),
        _numbers(facts),
        how(code),
    )


def _legend(facts: Facts) -> Html | None:
    """Name the server starts once, with the colour and marker that each has in every chart."""
    if len(facts.starts) < 2:
        return None
    items = []
    for start in facts.starts.values():
        sign = SIGNS[MARKERS[SERIES.index(start.color)]] if start.color in SERIES else "●"
        items.append(tag("li", tag("span", sign, style=f"color: {COLOURS[start.color]}", aria_hidden="true"), " ", start.name))
    return tag("ul", tag("li", "Server started", class_="quiet"), items, class_="legend")


def _second_axis(facts: Facts) -> pd.DataFrame:
    """Summarise steps by batch size where that varies, else by generated length."""
    batch = columns.finite(columns.numeric(facts.rows, "batch_size"))
    by = "batch_size" if len(np.unique(batch[np.isfinite(batch)])) > 1 else "generated_len"
    try:
        frame = metrics.by_context(facts.rows, by=by, each="run")
    except MetricError:
        frame = pd.DataFrame()
    frame.attrs |= {"by": by, "starts": facts.starts}
    return frame


def _budgets(facts: Facts) -> list[Html]:
    """Draw budgets where there are several; one is no curve, and the definitions say which it was."""
    budget = columns.finite(columns.numeric(facts.rows, "budget"))
    if len(np.unique(budget[np.isfinite(budget)])) < 2:
        return []
    budgets = metrics.by_budget(facts.rows)
    return [draw(lambda ax: plots.plot_budget(budgets, ax))]


def _numbers(facts: Facts) -> Html:
    """Fold the numbers behind the charts, a row a bin of context length and server start."""
    frame = facts.curve
    if not len(frame):
        why = frame.attrs.get("reason") or "no step has a known context length"
        return tag("p", f"There are no numbers by context: {why}.", class_="quiet")
    several = len(facts.starts) > 1
    rows: list[tuple[object, ...]] = []
    for row in frame.head(MOST_ROWS).to_dict("records"):
        start = facts.starts.get(int(row["run"])) if known(row.get("run")) else None
        rows.append(
            (
                _bin(row),
                *([start.name if start else "–"] if several else []),
                f"{count(row.get('timed_steps'))} / {count(row.get('requests'))}",
                _q(row, "tokens_per_step_pooled"),
                _q(row, "step_time_mean_ms"),
                _q(row, "tok_per_s"),
                f"{figure(row.get('step_time_p50_ms'))} / {figure(row.get('step_time_p95_ms'))}",
            )
        )
    head = ["Context", *(["Server"] if several else []), "Steps / requests", "Tokens a step", "Step time (ms)", "tok/s", "Median / 95 %"]
    more = f"{len(frame) - MOST_ROWS} more rows are not shown." if len(frame) > MOST_ROWS else None
    skipped = frame.attrs.get("rows_without_axis")
    note = f"{count(skipped)} request-steps have no context length and are in no row." if known(skipped) and skipped else None
    mixed = facts.kind in (Kind.DECODE_STEPS, Kind.DECODE_WINDOWS) and bool((columns.numeric(facts.rows, "batch_size") > 1).any())
    return join(
        [
            tag("p", f"{MIXED[:1].upper()}{MIXED[1:]}.", class_="note") if mixed else None,
            tag(
                "details",
                tag("summary", "Numbers by context length"),
                table(head, rows, numeric=range(1 + several, len(head)), class_="cards"),
                tag("p", more, class_="quiet") if more else None,
                tag("p", note, class_="quiet") if note else None,
                how(f'{facts.calls}\nddt.by_context(rows, each="run")', curve_sql(frame) if facts.by_sql else None),
            ),
        ]
    )


def curve_sql(frame: pd.DataFrame) -> str:
    """Write the query over an export that gives the means of the curve, for the starts of one server."""
    edges = dict.fromkeys(zip(columns.numeric(frame, "low"), columns.numeric(frame, "high"), strict=True))
    bins = ", ".join(f"({low:.0f}, {high:.0f})" for low, high in sorted(edges) if np.isfinite(low) and np.isfinite(high))
    return (
        f"WITH bins(low, high) AS (VALUES {bins}),\n"
        "rows AS (SELECT *, (SELECT count(*) FROM 'export/servers.parquet' s WHERE s.time <= r.time) AS run\n"
        "         FROM 'export/request_steps.parquet' r)\n"
        "SELECT run, low, high,\n"
        "       count(*) AS request_steps,\n"
        "       count(DISTINCT request_id) AS requests,\n"
        "       count(*) FILTER (step_us > 0) AS timed_request_steps,\n"
        "       avg(step_us) FILTER (step_us > 0) / 1000 AS step_time_mean_ms,\n"
        "       avg(tokens) AS tokens_per_step_pooled\n"
        "FROM rows\n"
        "JOIN bins ON context_len >= low AND context_len < high\n"
        "WHERE NOT list_has_any(coalesce(flags, []), ['warmup', 'health_check'])\n"
        "GROUP BY run, low, high\n"
        "ORDER BY run, low;"
    )


def sweep(facts: Facts) -> Html | None:
    """Lay a measured sweep beside what the log says at the same context length."""
    if facts.sweep is None:
        return None
    pooled = metrics.by_context(facts.rows, resamples=2)
    rows: list[tuple[object, ...]] = []
    for point in facts.sweep.head(MOST_ROWS).to_dict("records"):
        logged = _at(pooled, point.get("x_mean"))
        speed, derived = point.get("tok_per_s"), None if logged is None else logged.get("tok_per_s")
        quotient = ratio(float(speed) / float(derived)) if known(speed) and known(derived) and float(derived) > 0 else "–"
        reason = point.get("reason")
        rows.append(
            (
                count(point.get("prompt_tokens")),
                quantity(speed, point.get("tok_per_s_low"), point.get("tok_per_s_high")),
                figure(logged.get("tok_per_s")) if logged is not None else "no bin there",
                quotient,
                reason if isinstance(reason, str) else None,
            )
        )
    head = ["Prompt tokens", "Measured, tokens/s", "From the log, same context", "Measured / log", "Note"]
    if not any(r[-1] for r in rows):
        head, rows = head[:-1], [r[:-1] for r in rows]
    body = table(head, rows, numeric=range(4), class_="cards") if rows else tag("p", "The sweep has no points.", class_="quiet")
    return tag(
        "section",
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
        ],
    )


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
