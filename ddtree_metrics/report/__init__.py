"""A report: one HTML page that needs no network, the answer first.

The page holds its style and its pictures (inline SVG), runs no script, and asks for nothing: it can be mailed, printed and opened in ten
years. All text is escaped where it is put in (``markup``), so that nothing a log says becomes part of the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddtree_metrics.diagnosis.answer import answer
from ddtree_metrics.report import account
from ddtree_metrics.report.charts import charts, sweep
from ddtree_metrics.report.evidence import evidence
from ddtree_metrics.report.facts import gather
from ddtree_metrics.report.first_screen import first_screen, parts
from ddtree_metrics.report.lake_page import render_lake_report
from ddtree_metrics.report.markup import Html, tag
from ddtree_metrics.report.neighbours import neighbours
from ddtree_metrics.report.page import REPORT_VERSION, whole_page
from ddtree_metrics.steps.given import need_log

if TYPE_CHECKING:
    from ddtree_metrics.diagnosis import Diagnosis
    from ddtree_metrics.log import Log

__all__ = ["REPORT_VERSION", "render_lake_report", "render_report"]


def render_report(log: Log, diagnosis: Diagnosis | None = None, *, bench: Any = None, title: str | None = None) -> str:
    """Return a report as one HTML page.

    Parameters
    ----------
    log : Log
        What was read.
    diagnosis : Diagnosis, optional
        What ``diagnose`` says of it; it is asked if not given.
    bench : Sweep, DataFrame or mapping, optional
        A measured sweep (``ddtree-logs bench --json``), laid over the curve that comes from the log.
    title : str, optional
        Of the page; unit, time span and requests if not given.

    Returns
    -------
    str
        A whole page. The same log gives the same page.
    """
    need_log(log, "render_report")
    if diagnosis is None:
        from ddtree_metrics.diagnosis import diagnose

        diagnosis = diagnose(log)
    facts = gather(log, diagnosis, bench)
    name = title or (answer(diagnosis).scene if diagnosis.scene and diagnosis.scene.services else "Decode speed")
    pieces = [
        parts(diagnosis),
        evidence(diagnosis),
        charts(diagnosis, facts),
        neighbours(diagnosis),
        sweep(facts),
        account.configuration(log, diagnosis, facts),
        account.coverage(log, diagnosis, facts),
        account.definitions(log, diagnosis, facts),
        _reproduce(),
    ]
    return whole_page(name, [first_screen(diagnosis, facts), *pieces])


def _reproduce() -> Html:
    shell = "ddtree-logs export FILE... -t all -o export/\nddtree-logs report export/*.parquet -o report.html"
    python = 'import ddtree_metrics as ddt\n\nlog = ddt.read("export")\nfound = ddt.diagnose(log)'
    return tag(
        "section",
        tag("h2", "Reproduce", id="reproduce"),
        tag("p", "Under each section stands the call that gives its numbers, and the SQL where a query gives the same. Both start from:"),
        tag("pre", tag("code", shell), tabindex="0"),
        tag("pre", tag("code", python), tabindex="0"),
    )
