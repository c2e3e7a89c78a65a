"""The sections of a page that say what it rests on: server starts, what was read and left out, definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ddtree_metrics.diagnosis.numerals import cut_words
from ddtree_metrics.diagnosis.phrases import STATUS, flag_name
from ddtree_metrics.report.facts import Facts, clocks
from ddtree_metrics.report.markup import Html, count, how, table, tag
from ddtree_metrics.steps import frames as columns
from ddtree_metrics.steps.left_out import left_out
from ddtree_metrics.times import format_us

if TYPE_CHECKING:
    from ddtree_metrics.coverage import Coverage
    from ddtree_metrics.diagnosis import Diagnosis
    from ddtree_metrics.log import Log

MOST_EVENTS = 200
MOST_STARTS = 12
MOST_ARGS = 300
CUT = 200
"""Longer texts from a log are cut; a page must stay readable, and small."""

START_COLUMNS = {
    "algorithm": "algorithm",
    "num_draft_tokens": "draft tokens",
    "num_steps": "draft steps",
    "topk": "top k",
    "budget": "budget",
    "block_size": "block",
    "draft_window": "draft window",
    "page_size": "page",
    "tp_size": "TP",
    "dp_size": "DP",
    "context_len": "longest context",
    "max_total_tokens": "KV pool (tokens)",
    "decode_log_interval": "log interval",
}


def coverage(log: Log, diagnosis: Diagnosis, facts: Facts) -> Html:
    """Say what was read, what could not be read, and what was left out of the numbers."""
    met: Coverage = log.coverage
    rows: list[tuple[object, object]] = [(said, count(n)) for said, n in met.counted()]
    if met.clock_steps:
        jumps = ", ".join(f"{s:+.1f} s" for s in met.clock_steps[:8]) + (" …" if len(met.clock_steps) > 8 else "")
        rows.append((f"jumps of the wall clock ({jumps})", count(len(met.clock_steps))))
    units = [(cut(unit), count(n)) for unit, n in sorted(met.units.items(), key=lambda u: -u[1])[:20]]
    warnings = []
    if met.suppressed_lines:
        warnings.append(
            f"At least {count(met.suppressed_lines)} lines are missing: counts are lower bounds. journald suppressed them; raise "
            "LogRateLimitIntervalSec= and LogRateLimitBurst= of the unit, or RateLimitBurst= of journald."
        )
    warnings += [f"Damaged: {cut(d)}" for d in met.damaged[:20]]
    notes = [cut(n) for n in met.notes[:30]]
    sentence = facts.gaps.attrs.get("sentence")
    examples = [
        [tag("p", f"{kind.table} ({kind.dialect}): {kind.reason}, {count(kind.count)} lines"),
         tag("pre", tag("code", "\n".join(f"{where}: {cut(text)}" for where, text in kind.examples)), tabindex="0")]
        for kind in met.broken[:20]
    ]  # fmt: skip
    totals = [f"{count(n)} {said}" for said, n in met.counted()[:4]]
    left_said = [left_out(reason, n) for reason, n in sorted(diagnosis.excluded.items(), key=lambda e: -e[1])]
    comparison = getattr(facts.comparison, "sentence", None)
    return tag(
        "section",
        tag("h2", "What was read", id="coverage"),
        [tag("p", w, class_="note") for w in warnings],
        tag("p", f"{'; '.join(totals)}. Left out: {'; '.join(cut(one) for one in left_said[:4]) or 'nothing'}."),
        tag("p", sentence) if isinstance(sentence, str) and sentence else None,
        tag("p", comparison) if comparison else None,
        tag(
            "details",
            tag("summary", "All counts and notes"),
            table(("Read", "Count"), rows, numeric=(1,), class_="short"),
            [tag("h3", "By unit"), table(("Unit", "Lines"), units, numeric=(1,), class_="short")] if len(units) > 1 else None,
            [tag("h3", "Left out of the numbers"), tag("ul", [tag("li", one) for one in left_said])] if left_said else None,
            tag("ul", [tag("li", n) for n in notes]) if notes else None,
        ),
        tag("details", tag("summary", "Examples of broken lines"), examples) if examples else None,
        _events(log),
        how(
            "log.coverage.to_dict()\nddt.diagnose(log).excluded\nddt.gaps(log.steps, log.events, prefill=log.prefill)",
            "SELECT step_why, count(*) AS rows\nFROM 'export/steps.parquet'\nGROUP BY step_why\nORDER BY rows DESC;",
        ),
    )


def definitions(log: Log, diagnosis: Diagnosis, facts: Facts) -> Html:
    """Say what the numbers count, and what that rests on."""
    counts = log.counts
    root = {
        1: "nodes count the root (inferred: trees of budget + 1 nodes are there)",
        0: "nodes do not count the root (inferred: trees reach the budget and never exceed it)",
        None: "whether nodes count the root cannot be told",
    }[counts.root]
    told = clocks(log)
    said: list[object] = [
        cut(counts.sentence(), 400),
        root,
        "speed of a request (tok/s) = tokens a step / step time, both averaged over request-steps: a step of four requests counts as four",
        "tokens a step come from commit lengths as logged",
        "step time is wall time from one step to the next, host work included; not across a prefill, idle time, a restart or lost lines",
        "context length is what is in the KV cache when a step begins: prompt and what earlier steps committed",
        f"{100 * diagnosis.level:g} % intervals come from resampling requests or blocks of time, not steps; × is a ratio, after / before; "
        "at equal mix means at equal context, batch and other measured causes",
        _one_budget(facts),
        f"times come from {', '.join(told)}" if told else "no line has a time",
    ]
    return tag(
        "section",
        tag("h2", "Definitions", id="definitions"),
        tag("ul", [tag("li", one) for one in said if one]),
        how(
            "log.counts.to_dict()",
            "SELECT commit_lens[i] - accepted_drafts[i] AS commit_minus_accepted, count(*) AS sequences\n"
            "FROM (SELECT *, unnest(range(1, len(commit_lens) + 1)) AS i FROM 'export/steps.parquet'\n"
            "      WHERE step_why IS DISTINCT FROM 'duplicate_rank')\n"
            "GROUP BY 1\nORDER BY 1;",
        ),
    )


def _one_budget(facts: Facts) -> str | None:
    """Say the budget where there is one only, of which no curve can be drawn."""
    budget = columns.finite(columns.numeric(facts.rows, "budget"))
    known = np.unique(budget[np.isfinite(budget)])
    return f"the budget was {known[0]:g} nodes throughout, so there is no curve over budgets" if len(known) == 1 else None


def configuration(log: Log, diagnosis: Diagnosis, facts: Facts) -> Html:
    """List server starts and the flags that changed between them; fold all arguments."""
    servers = log.servers
    heading = tag("h2", "Server starts", id="config")
    if not len(servers):
        return tag(
            "section", heading, tag("p", "The log has no server start: which flags the server ran with is not known.", class_="quiet")
        )
    at = columns.time_us(servers)
    chosen = servers.head(MOST_STARTS)
    changes = [
        (
            tag("code", cut(flag_name(flag.flag))),
            cut(flag.before),
            cut(flag.after),
            STATUS.get(flag.status, flag.status),
            cut_words(flag.evidence),
        )
        for found in diagnosis.comparisons
        if found.kind == "runs"
        for flag in found.flags
    ]
    folds = []
    for i, row in enumerate(chosen.to_dict("records")):
        known = [f"{said} = {cut(_value(row[name]))}" for name, said in START_COLUMNS.items() if columns.has(servers, name)]
        pairs = [f"{cut(k, 80)} = {cut(v)}" for k, v in _pairs(row.get("args"))]
        lines = "\n".join([*known, "", *pairs[:MOST_ARGS]])
        said = f"{stamp(at[i])}: {len(pairs)} arguments" if pairs else stamp(at[i])
        folds.append(tag("details", tag("summary", said), tag("pre", tag("code", lines), tabindex="0")))
    more = f"{len(servers) - MOST_STARTS} more starts are not shown." if len(servers) > MOST_STARTS else None
    nothing = "No flag differs between the starts." if len(servers) > 1 else "There is one start: nothing to compare."
    return tag(
        "section",
        heading,
        table(("Flag", "Before", "After", "Cause?", "Why"), changes[:MOST_ARGS], class_="cards")
        if changes
        else tag("p", nothing, class_="quiet"),
        folds,
        tag("p", more, class_="quiet") if more else None,
        how(
            'log.servers\n[c.flags for c in ddt.diagnose(log).comparisons if c.kind == "runs"]',
            "SELECT time, algorithm, num_draft_tokens, budget, draft_window, args\nFROM 'export/servers.parquet'\nORDER BY time;",
        ),
    )


def _events(log: Log) -> Html | None:
    """Count events by kind, and list the first of them."""
    frame = log.events
    rows = _by_kind(frame)
    if not rows:
        return None
    at, kinds, details = columns.time_us(frame), columns.text(frame, "kind"), columns.text(frame, "detail")
    numbers = columns.numeric(frame, "count")
    listed = [
        (stamp(at[i]), str(kinds[i] or ""), count(numbers[i]), cut(details[i] or "")) for i in range(min(len(frame), MOST_EVENTS))
    ]  # fmt: skip
    more = f"{count(len(frame) - MOST_EVENTS)} more are not listed." if len(frame) > MOST_EVENTS else None
    return tag(
        "details",
        tag("summary", f"{count(len(frame))} events"),
        table(("Kind", "Events", "Sum of counts", "First (UTC)", "Last (UTC)"), rows, numeric=(1, 2), class_="cards"),
        table(("Time (UTC)", "Kind", "Count", "Detail"), listed, numeric=(2,), class_="cards"),
        tag("p", more, class_="quiet") if more else None,
        how(
            "log.events",
            "SELECT kind, count(*) AS events, sum(count) AS sum_of_counts\nFROM 'export/events.parquet'\nGROUP BY kind\nORDER BY kind;",
        ),
    )


def _by_kind(frame: pd.DataFrame) -> list[tuple[object, ...]]:
    kinds, at, numbers = columns.text(frame, "kind"), columns.time_us(frame), columns.numeric(frame, "count")
    rows: list[tuple[object, ...]] = []
    for kind in sorted({str(k) for k in kinds if k is not None}):
        mine = kinds == kind
        times = at[mine & np.isfinite(at)]
        total = numbers[mine & np.isfinite(numbers)]
        ends = (stamp(times.min()), stamp(times.max())) if len(times) else ("–", "–")
        rows.append((kind.replace("_", " "), count(mine.sum()), count(total.sum()) if len(total) else "–", *ends))
    return rows


def stamp(us: Any) -> str:
    """Write an instant to the second."""
    try:
        text = format_us(int(us))
    except (TypeError, ValueError, OverflowError):
        return "–"
    return text.replace("T", " ")[:19]


def cut(text: object, most: int = CUT) -> str:
    """Cut a text that comes from a log."""
    said = str(text)
    return said if len(said) <= most else f"{said[: most - 1]}… ({len(said):,} characters)"


def _value(value: Any) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return "–"
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return str(value)


def _pairs(args: Any) -> list[tuple[str, str]]:
    try:
        found = dict(args)
    except (TypeError, ValueError):
        return []
    return sorted((str(k), str(v)) for k, v in found.items())
