"""A report: one HTML page that needs no network, verdict first.

The page holds its style and its pictures (inline SVG), runs no script, and asks for nothing: it can be mailed, printed and opened in ten
years. All text is escaped where it is put in (``markup``), so that nothing a log says becomes part of the page.
"""

from __future__ import annotations

from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

from ddtree_metrics import __version__
from ddtree_metrics.report import account, sections
from ddtree_metrics.report.facts import gather
from ddtree_metrics.report.markup import Html, count, escape, join, tag
from ddtree_metrics.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from ddtree_metrics.diagnosis import Diagnosis
    from ddtree_metrics.log import Log

REPORT_VERSION = 1
"""1: the first form."""


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
        Of the page; the units it is about if not given.

    Returns
    -------
    str
        A whole page. The same log gives the same page.
    """
    if diagnosis is None:
        from ddtree_metrics.diagnosis import diagnose

        diagnosis = diagnose(log)
    facts = gather(log, bench, level=diagnosis.level)
    name = title or _title(log)
    body = [
        sections.verdict(diagnosis),
        sections.evidence(diagnosis),
        sections.pictures(log, facts),
        sections.curve(facts),
        sections.sweep(facts),
        sections.other_comparisons(diagnosis),
        account.configuration(log, diagnosis),
        account.events(log, facts),
        account.coverage(log, diagnosis, facts),
        account.conventions(log, diagnosis),
        _reproduce(),
    ]
    return Template(_read("page.html")).substitute(
        title=escape(name),
        version=escape(__version__),
        style=_read("page.css"),
        header=_header(log, name, with_sweep=facts.sweep is not None, with_others=len(diagnosis.comparisons) > 1),
        body=join(body),
        footer=tag(
            "p",
            f"Made by ddtree_metrics {__version__}; report form {REPORT_VERSION}, table schema {SCHEMA_VERSION}. "
            "This page holds no script and asks the network for nothing.",
        ),
    )


def _title(log: Log) -> str:
    units = sorted(log.coverage.units, key=lambda u: -log.coverage.units[u])
    about = ", ".join(units[:2]) + (f" and {len(units) - 2} more" if len(units) > 2 else "")
    return f"Decode speed of {about}" if about else "Decode speed"


def _header(log: Log, name: str, *, with_sweep: bool, with_others: bool) -> Html:
    met = log.coverage
    window = f"{account.stamp(met.first_us)} to {account.stamp(met.last_us)} UTC" if met.first_us is not None else "no line has a time"
    source = account.cut(met.source, 300) if met.source else "source not known"
    links = [
        ("evidence", "Evidence"),
        ("pictures", "Pictures"),
        ("by-context", "By context"),
        *([("sweep", "Measured sweep")] if with_sweep else []),
        *([("comparisons", "Other comparisons")] if with_others else []),
        ("config", "Flags"),
        ("events", "Events"),
        ("coverage", "What was read"),
        ("conventions", "What numbers count"),
        ("reproduce", "Reproduce"),
    ]
    return join(
        [
            tag("h1", name),
            tag("p", f"{window} · {count(met.lines)} lines · ", source),
            tag("nav", [tag("a", said, href=f"#{anchor}") for anchor, said in links], aria_label="Sections"),
        ]
    )


def _reproduce() -> Html:
    shell = (
        "ddtree-logs export FILE... -t all -o export/     # or -u UNIT -S SINCE instead of FILE\n"
        "ddtree-logs report export/*.parquet -o report.html"
    )
    python = (
        "import ddtree_metrics as ddt\n\n"
        'log = ddt.read_parquet("export")     # or ddt.read_text(...), ddt.read_journal(...)\n'
        "found = ddt.diagnose(log)"
    )
    return join(
        [
            tag("h2", "How to get these numbers again", id="reproduce"),
            tag(
                "p",
                "Below each block stands the call that gives its numbers, and the SQL where a query gives the same. "
                "Both start from an export of the same lines:",
            ),
            tag("pre", tag("code", shell), tabindex="0"),
            tag("pre", tag("code", python), tabindex="0"),
        ]
    )


def _read(name: str) -> str:
    return resources.files("ddtree_metrics.report").joinpath(name).read_text(encoding="utf-8")
