"""A page about a lake: the numbers of hosts, days and server starts, curves by host, survival and budgets, and what was left out."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ddtree_metrics import plots
from ddtree_metrics.fleet.overview import summarise_lake
from ddtree_metrics.plots.looks import SERIES
from ddtree_metrics.report.drawing import draw
from ddtree_metrics.report.markup import Html, count, figure, how, table, tag
from ddtree_metrics.report.page import whole_page
from ddtree_metrics.steps.left_out import left_out

if TYPE_CHECKING:
    from ddtree_metrics.fleet import Dataset
    from ddtree_metrics.summary import Summary, SummaryLine

HEADS = {"all": "Lake", "host": "Host", "day": "Day (UTC)", "server start": "Server start", "context": "Context (tokens)"}


def render_lake_report(lake: Dataset, *, title: str | None = None) -> str:
    """Return a report of a lake as one HTML page.

    Parameters
    ----------
    lake : Dataset
        The lake.
    title : str, optional
        Of the page.
    """
    found = summarise_lake(lake)
    named = title or f"{count(len(found.by_host))} hosts, {count(found.total.steps)} steps"
    return whole_page(named, [_first(found), _charts(lake, found), _numbers(found), _account(found), _reproduce(lake)])


def _first(found: Summary) -> Html:
    speed = figure(found.total.tok_per_s)
    span = f"{(found.first or '–')[:19]}Z to {(found.last or '–')[:19]}Z"
    means = f"{figure(found.total.tokens_per_step_micro)} tokens a step, {figure(found.total.step_time_seen_ms)} ms a step"
    said = f"{speed} tok/s a request: {means}, over {count(found.total.timed_steps)} timed steps, {span}."
    return tag("section", tag("p", said, class_="lead"), [tag("p", note, class_="quiet") for note in found.notes])


def _charts(lake: Dataset, found: Summary) -> Html:
    hosts = [line.name for line in sorted(found.by_host, key=lambda line: -line.steps)][: len(SERIES)]
    curves = lake.by_context("host").frame()
    survival = lake.survival("host").frame()
    drawn = []
    for plot, frame in (
        (plots.plot_step_time, curves),
        (plots.plot_tokens_per_step, curves),
        (plots.plot_speed, curves),
        (plots.plot_survival, survival),
    ):
        parts = [(host, frame[frame["host"].fillna("unknown") == host]) for host in hosts]
        drawn.append(draw(functools.partial(_each, plot, parts)))
    budgets = lake.by_budget().frame()
    if budgets["budget"].nunique() > 1:
        drawn.append(draw(lambda ax: plots.plot_budget(budgets, ax)))
    more = None if len(hosts) == len(found.by_host) else tag("p", f"Drawn are the {len(hosts)} hosts with most steps.", class_="quiet")
    return tag("section", tag("h2", "Charts", id="charts"), more, tag("div", drawn, class_="figures"))


def _each(plot: Any, parts: Iterable[tuple[str, Any]], ax: Any) -> None:
    for color, (host, frame) in zip(SERIES, parts, strict=False):
        if len(frame):
            plot(frame, ax, label=host, color=color)


def _numbers(found: Summary) -> Html:
    made = []
    for name, lines in found.sections.items():
        rows = [_row(line) for line in lines]
        head = [HEADS[name], "Timed steps", "Requests", "Tokens a step", "Step time (ms)", "tok/s", "Median / 95 % (ms)"]
        made.append(table(head, rows, numeric=range(1, 7), whole=(0,), class_="cards"))
    return tag("section", tag("h2", "Numbers", id="numbers"), made)


def _row(line: SummaryLine) -> tuple[object, ...]:
    return (
        line.name,
        count(line.timed_steps),
        count(line.requests or None),
        figure(line.tokens_per_step_micro),
        figure(line.step_time_seen_ms),
        figure(line.tok_per_s),
        f"{figure(line.step_time_p50_ms)} / {figure(line.step_time_p95_ms)}",
    )


def _account(found: Summary) -> Html:
    stored = ", ".join(f"{count(n)} {name}" for name, n in found.rows.items())
    return tag(
        "section",
        tag("h2", "What was read, and what was left out", id="coverage"),
        tag("p", f"Rows in the lake: {stored}."),
        tag("ul", [tag("li", left_out(reason, n)) for reason, n in found.excluded.items()]) if found.excluded else None,
        tag(
            "p",
            "Counts and means are exact; medians and 95th percentiles are of histograms of 1 % buckets. A step of several requests counts "
            "once in the steps of a host, day or start; in bins of context each request of it counts. There are no intervals, and no means "
            "over requests: these would need the sums of every request.",
            class_="quiet",
        ),
    )


def _reproduce(lake: Dataset) -> Html:
    code = (
        "import ddtree_metrics as ddt\n\n"
        f'lake = ddt.open_dataset("{lake.root}")\n'
        'curve = lake.by_context("host").frame()\nstarts = lake.tokens_per_step("start").frame()\nlake.survival("host").frame()\n'
        "lake.by_budget().frame()"
    )
    return tag("section", tag("h2", "Reproduce", id="reproduce"), how(code))
