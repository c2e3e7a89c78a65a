"""The section of a page for what other programs wrote beside changes: signals, and who wrote more than usual."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ddtree_metrics.beside import said_of
from ddtree_metrics.layout import plural
from ddtree_metrics.report.markup import Html, count, figure, how, table, tag
from ddtree_metrics.times import format_us, short_span

if TYPE_CHECKING:
    from ddtree_metrics.beside import Around, Burst
    from ddtree_metrics.diagnosis import Diagnosis

MOST = 30
"""So many rows of each stretch are shown."""


def neighbours(diagnosis: Diagnosis) -> Html | None:
    """Show what stands beside, a table for each stretch; None where nothing can be looked at and nothing is worth saying."""
    told = [one for one in diagnosis.beside if one.lines or one.unknown]
    if not told:
        return None
    return tag(
        "section",
        tag("h2", "Beside", id="beside"),
        tag("p", "What other programs wrote then. No line says that speed changed because of it.", class_="quiet"),
        [_stretch(one) for one in told],
        how('log.beside("14:05", "2m")'),
    )


def _stretch(one: Around) -> Html:
    # a kind of line that came many times is one row
    kinds: dict[tuple[str, str, str, str], list[int]] = {}
    for seen in one.seen:
        kinds.setdefault((seen.host, seen.unit, seen.said, seen.message), []).append(seen.time_us)
    rows = [
        (_clock(times[0]), host, unit, said + (f" ({len(times)} times)" if len(times) > 1 else ""), message)
        for (host, unit, said, message), times in kinds.items()
    ]
    rows += [("", b.host, b.unit, _burst(b), "") for b in one.bursts]
    shown = rows[:MOST]
    with_messages = any(row[4] for row in shown)
    head = ("Time (UTC)", "Host", "Who", "What", *(["Message"] if with_messages else []))
    left = len(rows) - len(shown) + one.left_out
    under = [
        f"{plural(one.lines, 'line')} of other programs in these minutes. ",
        f"{count(left)} more signals are not shown. " if left else None,
    ]
    return tag(
        "div",
        tag("h3", short_span(format_us(one.begin_us), format_us(one.end_us))) if one.lines else None,
        table(head, [row[: len(head)] for row in shown], whole=(0, 1, 2), class_="cards") if shown else None,
        tag("p", under if one.lines else None, [f"{said}. " for said in one.unknown], class_="quiet"),
    )


def _burst(one: Burst) -> str:
    high = "more" if math.isinf(one.high) else figure(one.high)
    times = "" if math.isinf(one.ratio) else f": {figure(one.ratio)} times ({figure(one.low)} to {high})"
    return f"{said_of(one)}{times}"


def _clock(us: int) -> str:
    return format_us(us)[11:19]
