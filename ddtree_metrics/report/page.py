"""The frame of a page: its style, its links to the sections, and what made it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from string import Template

from ddtree_metrics import __version__
from ddtree_metrics.report.markup import Html, escape, join, tag
from ddtree_metrics.schema import SCHEMA_VERSION

REPORT_VERSION = 2
"""1: the first form. 2: the answer on the first screen, evidence folded."""


def whole_page(title: str, pieces: Sequence[Html | None]) -> str:
    """Return a page of its pieces: the first is the first screen, and each other a section with a heading.

    Parameters
    ----------
    title : str
        Of the page.
    pieces : sequence of Html or None
        What stands on it.
    """
    first, *rest = pieces
    return Template(_read("page.html")).substitute(
        title=escape(title),
        version=escape(__version__),
        style=_read("page.css"),
        header=tag("h1", title),
        body=join([first, _nav(rest), rest]),
        footer=tag(
            "p",
            f"Made by ddtree_metrics {__version__}; report form {REPORT_VERSION}, table schema {SCHEMA_VERSION}. "
            "This page holds no script and asks the network for nothing.",
        ),
    )


def _nav(pieces: Sequence[Html | None]) -> Html:
    """Link to the sections, by their headings."""
    found = [m for piece in pieces if piece for m in [re.search(r'<h2 id="([^"]+)">(.*?)</h2>', piece)] if m]
    return tag("nav", [tag("a", Html(m[2]), href=f"#{m[1]}") for m in found], aria_label="Sections")


def _read(name: str) -> str:
    return resources.files("ddtree_metrics.report").joinpath(name).read_text(encoding="utf-8")
