"""The numbers of a lake on one screen: the summary of a log, with hosts and days."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ddtree_metrics.fleet.odd_hosts import odd_hosts
from ddtree_metrics.layout import plural
from ddtree_metrics.metrics.context import bin_label
from ddtree_metrics.metrics.histograms import bucket_quantiles
from ddtree_metrics.steps.own_requests import EXCLUDED
from ddtree_metrics.summary import MAX_RUNS, Summary, SummaryLine
from ddtree_metrics.times import format_us

if TYPE_CHECKING:
    from ddtree_metrics.fleet.analyses import Dataset

MOST_STREAMS = 500
"""More processes than this are not told apart on one screen: their histograms are not asked for."""

MOST_LINES = 40
"""So many hosts, and so many days, are listed; of more days the last ones, of more hosts those with most steps."""

WORDS = {"request_steps": "steps of requests", "steps": "step lines without requests"}


def summarise_lake(lake: Dataset) -> Summary:
    """Sum up a lake.

    Parameters
    ----------
    lake : Dataset
        The lake.

    Returns
    -------
    Summary
        As of a log, with hosts and days; quantiles are within a bucket of 1 %. A mean over requests would need every request's own
        sum: it is not known here.
    """
    notes = [*lake.notes, *odd_hosts(lake)]
    streams = lake.streams
    few = len(streams) <= MOST_STREAMS
    found = lake.by_context("host", *(("start",) if few else ()), once=True).sums().to_pandas()
    days = lake.by_context("date", edges=[0.0, 1e12], once=True).sums().to_pandas()
    counted = int(found["n"].sum())
    lines = sum(part.rows for part in lake.bases.get("steps", ()))
    if lines:
        notes.append(
            f"{lines:,} step lines are of hosts and days without request_steps: their context lengths are not known, and their tokens are "
            "means over the batch; export a log or journal with --partition to have them joined"
        )
    if found["bin"].isna().all() and counted:
        notes.append("no step has a known context length")
    runs = _runs(lake, _lines(found, "start"), notes) if few else []
    if not few:
        notes.append(f"{plural(len(streams), 'process')} are not told apart here; lake.tokens_per_step('start') tells them")
    edges = lake.edges
    contexts = [
        _line(bin_label(edges[int(number)], edges[int(number) + 1]), part, once=False)
        for number, part in found.dropna(subset=["bin"]).groupby("bin", sort=True)
    ]
    times = streams[["first_us", "last_us"]].dropna()
    first, last = (int(times["first_us"].min()), int(times["last_us"].max())) if len(times) else (None, None)
    stored = {name: sum(part.rows for part in parts) for name, parts in lake.bases.items()}
    left_out = {EXCLUDED if "steps" not in stored else "rows of other ranks, or of the server itself": sum(stored.values()) - counted}
    return Summary(
        rows={name: sum(part.rows for part in lake.seen.parts[name]) for name in lake.tables},
        first=None if first is None else format_us(first),
        last=None if last is None else format_us(last),
        span_s=None if first is None or last is None else (last - first) / 1e6,
        basis=" and ".join(WORDS[name] for name in lake.bases),
        total=_line("all", found, once=True),
        runs=tuple(runs),
        by_context=tuple(contexts),
        excluded={**{reason: n for reason, n in left_out.items() if n}, **lake.account()},
        notes=tuple(notes),
        by_host=tuple(_shown(_lines(found, "host"), "hosts", notes)),
        by_day=tuple(_shown(_lines(days, "date"), "days", notes)),
    )


def _lines(found: pd.DataFrame, by: str) -> list[SummaryLine]:
    made = []
    key: Any
    for key, part in found.groupby(by, sort=True, dropna=False):
        made.append(_line("unknown" if pd.isna(key) else str(key), part, once=True))
    return made


def _shown(lines: list[SummaryLine], what: str, notes: list[str]) -> list[SummaryLine]:
    """Return the lines that a screen has room for, and say how many others there are."""
    if len(lines) <= MOST_LINES:
        return lines
    notes.append(f"{len(lines) - MOST_LINES} more {what} are not listed")
    if what == "days":
        return lines[-MOST_LINES:]
    most = sorted(lines, key=lambda line: -line.steps)[:MOST_LINES]
    return [line for line in lines if line in most]


def _runs(lake: Dataset, lines: list[SummaryLine], notes: list[str]) -> list[SummaryLine]:
    """Name server starts, the last ones where there are many; one that nothing tells of is not listed alone."""
    told = [start for start in lake.starts.runs if not start.hidden]
    if not told and len(lines) < 2:
        return []
    named = []
    for line in lines:
        number = int(float(line.name)) if line.name != "unknown" else 0
        named.append(SummaryLine(**{**_fields(line), "name": lake.called(number) if number else "before run 1"}))
    if len(named) > MAX_RUNS:
        notes.append(f"{len(named) - MAX_RUNS} earlier server starts are not listed")
    return named[-MAX_RUNS:]


def _fields(line: SummaryLine) -> dict[str, Any]:
    return {name: getattr(line, name) for name in SummaryLine.__slots__}


def _line(name: str, part: pd.DataFrame, *, once: bool) -> SummaryLine:
    """Make a line of a histogram: step times over steps (``once``), or over request-steps."""
    timed = part[part["bucket"] >= 0]
    n, n_tokens = float(timed["n"].sum()), float(part["n_tokens"].sum())
    weights = timed["steps"] if once else timed["n"]
    steps = float(timed["steps"].sum())
    by_bucket = weights.groupby(timed["bucket"]).sum().rename("n").reset_index()
    by_bucket["n"] = np.rint(by_bucket["n"]).astype(np.int64)
    by_bucket = by_bucket[by_bucket["n"] > 0]
    p50, p95 = bucket_quantiles(by_bucket, (0.5, 0.95)) if len(by_bucket) else (None, None)
    micro = float(part["sum_tokens"].sum()) / n_tokens if n_tokens else None
    seen = float(timed["sum_us"].sum()) / n / 1000.0 if n else None
    return SummaryLine(
        name,
        steps=round(float(part["steps"].sum())),
        timed_steps=round(steps),
        request_steps=int(n_tokens) if once else int(part["n"].sum()),
        requests=int(part["requests"].sum()) if once else 0,
        step_time_mean_ms=(float(timed["steps_us"].sum()) / steps / 1000.0 if steps else None) if once else seen,
        step_time_seen_ms=seen,
        step_time_p50_ms=p50,
        step_time_p95_ms=p95,
        tokens_per_step_micro=micro,
        tok_per_s=1000.0 * micro / seen if micro is not None and seen else None,
    )
