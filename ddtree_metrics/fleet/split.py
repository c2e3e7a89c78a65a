"""Two groups of a lake against each other: what the mix, step time and tokens per step did, from sums by context and batch.

The rows that ``attribute_slowdown`` takes are here sums over classes of context (5 % wide, its own are 41 %) and batch size: each row
stands for the steps that were summed. A lake's requests are not told apart; what stands for them, where doubt is concerned, are server
processes and days, of which a comparison of two hosts or weeks has many.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ddtree_metrics.diagnosis.groups import range_of
from ddtree_metrics.errors import MetricError
from ddtree_metrics.fleet import added_up
from ddtree_metrics.layout import TextLine, table
from ddtree_metrics.metrics.attribution import Attribution, attribute_slowdown
from ddtree_metrics.metrics.part_estimates import MOST_PARTS

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from ddtree_metrics.fleet.analyses import Dataset

CLASS_GROWTH = 1.05
"""Contexts within a class differ by less than this."""

SPREAD_ROWS = 50_000
"""Sums are spread over about so many rows a side, so that what counts rows (which classes both sides have in fair number) counts alike."""

FORMS = "host:NAME, unit:NAME, day:2026-10-25, run:2 (a server start), boot:ID, context:0-1023, batch:1-4, budget:16, or a window FROM..TO"

_RANGES = {"context": "context_len", "context_len": "context_len", "batch": "batch_size", "batch_size": "batch_size", "budget": "budget"}


def rows_of(lake: Dataset, asked: str) -> tuple[ir.Table, str]:
    """Return the rows that a group names, as an expression, and its name in words.

    Parameters
    ----------
    lake : Dataset
        The lake.
    asked : str
        See ``FORMS``; several with commas between them are the rows that all of them name: ``host:kimi,day:2026-10-25``.

    Raises
    ------
    MetricError
        If it cannot be understood, or the lake has nothing of that name.
    """
    rows, words = lake.rows, []
    for one in asked.split(","):
        rows, said = _narrowed(lake, rows, one.strip())
        words.append(said)
    return rows, ", ".join(words)


def _narrowed(lake: Dataset, rows: ir.Table, asked: str) -> tuple[ir.Table, str]:
    head, _, tail = asked.partition(":")
    head, tail = head.strip().lower(), tail.strip()
    ends = range_of(asked) if head in _RANGES else None
    if ends is not None:
        value = rows[_RANGES[head]]
        rows = rows.filter(value >= ends[1])
        return (rows.filter(value < ends[2]) if np.isfinite(ends[2]) else rows), asked
    if head in _RANGES and re.fullmatch(r"\d+", tail):
        return rows.filter(rows[_RANGES[head]] == int(tail)), asked
    if head == "run" and re.fullmatch(r"-?\d+", tail):
        placed = lake.starts
        numbers = sorted({int(n) for n in placed.run})
        number = numbers[int(tail)] if int(tail) < 0 and -int(tail) <= len(numbers) else int(tail)
        mine = [str(name) for name in lake.streams["stream"][placed.run == number]]
        if not mine:
            raise MetricError(f"there is no run {tail}: the lake has {len(numbers)} server starts")
        return rows.filter(rows.stream.isin(mine)), lake.called(number)
    if ".." in asked:
        since, until = (part.strip() or None for part in asked.split("..", 1))
        return lake.with_rows(rows).narrowed(since=since, until=until).rows, f"{since or 'the beginning'} to {until or 'the end'}"
    column = {"host": "host", "unit": "unit", "day": "date", "date": "date", "boot": "boot_id"}.get(head)
    if column is None and not tail:  # a bare name: of a day, a unit or a host
        column, tail = "date" if re.fullmatch(r"\d{4}-\d\d-\d\d", asked) else "unit" if "." in asked else "host", asked
    if column is None or not tail:
        raise MetricError(f"cannot understand the group {asked!r}; over a lake give {FORMS}")
    known = _names(lake, column)
    found = [name for name in known if name == tail or (column == "boot_id" and name.startswith(tail))]
    if not found:
        few = ", ".join(known[:4]) + (" and others" if len(known) > 4 else "")
        raise MetricError(f"no row of the lake is of {'day' if column == 'date' else column} {tail!r}; there are {few or 'none'}")
    return rows.filter(rows[column].isin(found)), tail


def _names(lake: Dataset, column: str) -> list[str]:
    if column == "date" or column not in lake.streams:
        said = {part.partition.get(column) for parts in lake.bases.values() for part in parts}
        if said == {None}:
            said = set(lake.rows.select(column).distinct().to_pandas()[column])
        return sorted(name for name in said if name)
    return sorted(str(name) for name in lake.streams[column].dropna().unique())


def split(lake: Dataset, before: str, after: str, *, level: float = 0.9, start_floor: float = 0.0) -> Attribution:
    """Split a difference of speed between two groups of a lake into the mix, step time and tokens per step.

    Parameters
    ----------
    lake : Dataset
        The lake.
    before, after : str
        The groups, see ``FORMS``.
    level, start_floor
        As for ``attribute_slowdown``.

    Returns
    -------
    Attribution
    """
    sides = [rows_of(lake, asked)[0] for asked in (before, after)]
    clusters = _clusters(lake)
    frames = [_spread(added_up.mixed(side, clusters, CLASS_GROWTH).to_pandas(), clusters) for side in sides]
    for frame, asked in zip(frames, (before, after), strict=True):
        if not len(frame):
            raise MetricError(f"no row of the lake is of {asked!r}")
    found = attribute_slowdown(frames[0], frames[1], level=level, start_floor=start_floor)
    few = [("before", "after")[i] for i, frame in enumerate(frames) if frame["prompt_id"].nunique() < 2]
    if few:
        said = f"no intervals: what was measured {' and '.join(few)} is one server process on one day"
        kept = [part for part in (found.reason or "").split("; ") if part and not part.startswith("no intervals")]
        return replace(found, reason="; ".join([*kept, said]))
    return replace(found, interval_from="server processes and days" if found.interval_from else None)


def split_lines(found: Attribution, names: tuple[str, str]) -> list[TextLine]:
    """Return a split in words: what is compared, the change of speed, its parts, and what should be known beside them."""
    change = f"{found.speed_before:.1f} → {found.speed_after:.1f} tok/s a request ({100 * (found.speed_ratio - 1):+.1f} %)"
    sure = found.speed_ratio_high < 1 or found.speed_ratio_low > 1
    if not np.isfinite(found.speed_ratio):
        return [TextLine(f"{names[0]} against {names[1]}", "title"), TextLine(f"CANNOT BE TOLD: {found.reason}", "headline")]
    word = "unchanged" if found.verdict == "no change" else "slower" if found.speed_ratio < 1 else "faster"
    said = word.upper() if sure or word == "unchanged" else f"{word.upper()}, AND IT CANNOT BE TOLD WHETHER BY CHANCE"
    lines = [
        TextLine(f"{names[1]} against {names[0]}", "title"),
        TextLine(f"{said}   {change}", f"headline {word}" if sure or word == "unchanged" else "headline"),
    ]
    rows = []
    for row in found.to_frame().to_dict("records"):
        equal = row["ratio"] if row["factor"] == "mix" else row["ratio_equal"]
        end = "ratio" if row["factor"] == "mix" else "ratio_equal"
        ends = (row[f"{end}_low"], row[f"{end}_high"])
        span = f"({ends[0]:.3f} to {ends[1]:.3f})" if all(np.isfinite(ends)) else ""
        share = f"{100 * row['share']:.0f} % of it" if np.isfinite(row["share"]) else ""
        logged = f"{row['before']:.2f} → {row['after']:.2f} {row['unit']}" if np.isfinite(row["before"]) else ""
        rows.append((_CALLED[row["factor"]], logged, f"×{equal:.3f}" if np.isfinite(equal) else "-", span, share))
    lines += [TextLine(), *table([("", rows)], ("as logged", "at equal mix", "interval", "share"), 100, left=(1, 3, 4))]
    whole = [found.reason, *found.notes]
    if found.equal_reason and found.equal_reason != found.reason:
        whole.append(found.equal_reason)
    return [*lines, TextLine(), *(TextLine(text, "note") for text in whole if text)]


_CALLED = {"mix": "mix of contexts and batches", "step time": "step time", "acceptance": "tokens per step"}


def _clusters(lake: Dataset) -> tuple[str, ...]:
    """Choose what stands for requests: processes by day, as long as those are not too many to leave out one by one."""
    days = max(len(_names(lake, "date")), 1)
    streams = len(lake.streams)
    return ("stream", "date") if streams * days <= MOST_PARTS else ("stream",) if streams <= MOST_PARTS else ("host",)


def _spread(found: pd.DataFrame, clusters: tuple[str, ...]) -> pd.DataFrame:
    """Make rows of sums: each stands for so many steps, and a sum of many steps is several rows."""
    # in one order and from exact sums, so that the same question has the same answer to the last digit, whatever engine added up
    found = found.sort_values([*clusters, "class_", "batch_size", "timed", "told"], ignore_index=True)
    n = found["n"].to_numpy(dtype=np.float64)
    times = np.maximum(np.rint(n / max(n.sum(), 1.0) * SPREAD_ROWS), 1).astype(np.int64)
    key: Any = found[list(clusters)].astype(str).agg("|".join, axis=1) if len(found) else []
    made = pd.DataFrame(
        {
            "prompt_id": key,
            "request_id": key,
            "context_len": found["context_len"].astype(float) / n,
            "batch_size": found["batch_size"].astype(float),
            "step_time_ms": found["step_us"].astype(float) / n / 1000.0,
            "tokens": found["tokens"].astype(float) / n,
            "row_steps": n / times,
        }
    )
    return made.loc[np.repeat(np.arange(len(made)), times)].reset_index(drop=True)
