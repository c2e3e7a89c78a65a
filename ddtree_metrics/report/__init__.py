"""A report: one HTML page that needs no network, the answer first.

The page holds its style and its pictures (inline SVG), runs no script, and asks for nothing: it can be mailed, printed and opened in ten
years. All text is escaped where it is put in (``markup``), so that nothing a log says becomes part of the page.
"""

from __future__ import annotations

import re
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

from ddtree_metrics import __version__
from ddtree_metrics.diagnosis.answer import answer
from ddtree_metrics.report import account
from ddtree_metrics.report.charts import charts, sweep
from ddtree_metrics.report.evidence import evidence
from ddtree_metrics.report.facts import gather
from ddtree_metrics.report.first_screen import first_screen, parts
from ddtree_metrics.report.markup import Html, escape, join, tag
from ddtree_metrics.schema import SCHEMA_VERSION
from ddtree_metrics.steps.given import need_log

if TYPE_CHECKING:
    from ddtree_metrics.diagnosis import Diagnosis
    from ddtree_metrics.log import Log

REPORT_VERSION = 2
"""1: the first form. 2: the answer on the first screen, evidence folded."""


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
        sweep(facts),
        account.configuration(log, diagnosis, facts),
        account.coverage(log, diagnosis, facts),
        account.definitions(log, diagnosis, facts),
        _reproduce(),
    ]
    return Template(_read("page.html")).substitute(
        title=escape(name),
        version=escape(__version__),
        style=_read("page.css"),
        header=tag("h1", name),
        body=join([first_screen(diagnosis, facts), _nav(pieces), pieces]),
        footer=tag(
            "p",
            f"Made by ddtree_metrics {__version__}; report form {REPORT_VERSION}, table schema {SCHEMA_VERSION}. "
            "This page holds no script and asks the network for nothing.",
        ),
    )


def _nav(pieces: list[Html | None]) -> Html:
    """Link to the sections, by their headings."""
    found = [m for piece in pieces if piece for m in [re.search(r'<h2 id="([^"]+)">(.*?)</h2>', piece)] if m]
    return tag("nav", [tag("a", Html(m[2]), href=f"#{m[1]}") for m in found], aria_label="Sections")


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


def _read(name: str) -> str:
    return resources.files("ddtree_metrics.report").joinpath(name).read_text(encoding="utf-8")
