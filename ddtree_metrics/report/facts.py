"""What a report shows besides the diagnosis: curve, fit, acceptance, gaps, each with the calls that make it from a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ddtree_metrics import metrics
from ddtree_metrics.steps import frames as columns

if TYPE_CHECKING:
    from ddtree_metrics.log import Log

SWEEP_NAMES = {
    "x_mean": ("context_mid", "prompt_tokens", "prompt_tok"),
    "prompt_tokens": ("prompt_tok",),
    "tok_per_s": ("decode_tok_s", "decode_tok_per_s"),
    "tok_per_s_low": ("low",),
    "tok_per_s_high": ("high",),
    "step_time_mean_ms": ("step_ms", "step_time_ms"),
    "tokens_per_step_pooled": ("tokens_per_step",),
}


@dataclass(slots=True)
class Facts:
    """The frames that the pictures and tables of a report are made of.

    Attributes
    ----------
    rows : DataFrame
        One row a request a step, with step times.
    steps : DataFrame
        What the distribution and the line over time are drawn from: one row a step, or a ``Decode batch`` line.
    curve : DataFrame
        ``by_context`` of the rows.
    fit, acceptance : object or None
        ``fit_step_time`` and ``acceptance`` of the rows.
    comparison : object or None
        ``compare_step_times``, where the log has both kinds of line.
    gaps : DataFrame
        What must not be averaged over.
    sweep : DataFrame or None
        A measured sweep, with the names of the curve.
    calls : str
        The Python lines that make ``rows`` from ``log``.
    by_sql : bool
        Whether the rows stand in an export as ``request_steps``.
    """

    rows: pd.DataFrame
    steps: pd.DataFrame
    curve: pd.DataFrame
    fit: Any = None
    acceptance: Any = None
    comparison: Any = None
    gaps: pd.DataFrame = field(default_factory=pd.DataFrame)
    sweep: pd.DataFrame | None = None
    calls: str = ""
    by_sql: bool = False


def gather(log: Log, bench: Any = None, *, level: float = 0.9) -> Facts:
    """Compute everything once.

    Parameters
    ----------
    log : Log
        What was read.
    bench : Sweep, DataFrame or mapping, optional
        A measured sweep; a mapping is what its JSON file holds.
    level : float
        Of the intervals.
    """
    rows, steps, calls, by_sql = _rows(log)
    made = Facts(rows, steps, metrics.by_context(rows, level=level), calls=calls, by_sql=by_sql)
    made.fit = metrics.fit_step_time(rows, level=level)
    has_lists = columns.has(log.steps, "accepted_drafts") or not len(log.steps)
    made.acceptance = metrics.acceptance(rows if has_lists or columns.has(rows, "drafts") else log.steps, level=level)
    if len(log.steps) and len(log.decode):
        made.comparison = metrics.compare_step_times(log.steps, log.decode, prefill=log.prefill)
    made.gaps = metrics.gaps(log.steps if len(log.steps) else log.decode, log.events, prefill=log.prefill)
    made.sweep = sweep_frame(bench)
    return made


def _rows(log: Log) -> tuple[pd.DataFrame, pd.DataFrame, str, bool]:
    """Return one row a request a step, one row a step, the calls that make the former, and whether an export has it."""
    if len(log.steps):
        steps = metrics.step_times(log.steps, events=log.events, prefill=log.prefill)
        if len(log.lean_request_steps):
            calls = "rows = ddt.step_times(log.request_steps, events=log.events, prefill=log.prefill)"
            return metrics.step_times(log.lean_request_steps, events=log.events, prefill=log.prefill), steps, calls, True
        return steps, steps, "rows = ddt.step_times(log.steps, events=log.events, prefill=log.prefill)", False
    if not len(log.decode):
        rows = metrics.step_times(log.lean_request_steps, events=log.events, prefill=log.prefill)
        return rows, rows, "rows = ddt.step_times(log.request_steps)", True
    steps = log.decode_steps
    if steps.attrs.get("log_interval") == 1:
        calls = (
            "steps = ddt.steps_from_decode(log.decode)\n"
            "rows = ddt.join_requests(steps, log.requests, log.prefill, decode=log.decode, events=log.events)\n"
            "rows = ddt.step_times(rows, events=log.events, prefill=log.prefill)"
        )
        timed = metrics.step_times(steps, events=log.events, prefill=log.prefill)
        return metrics.step_times(log.lean_decode_request_steps, events=log.events, prefill=log.prefill), timed, calls, False
    timed = metrics.decode_step_times(log.decode, prefill=log.prefill, events=log.events)
    rows = timed.drop(columns=["tokens"], errors="ignore")
    running = columns.numeric(timed, "running")
    running = np.where(running >= 1, running, np.nan)
    context = columns.numeric(timed, "tokens") / running
    unsure = np.isin(columns.text(timed, "step_time_why"), ["requests_changed", "retraction"])
    rows["context_len"] = np.where((context > 0) & ~unsure, context, np.nan)
    rows["tokens"] = columns.numeric(timed, "accept_len")
    rows["batch_size"] = running
    calls = (
        "rows = ddt.decode_step_times(log.decode, prefill=log.prefill, events=log.events)\n"
        "rows = rows.assign(\n"
        "    context_len=rows.tokens / rows.running,  # mean over the batch, slots held ahead included\n"
        "    tokens=rows.accept_len,\n"
        "    batch_size=rows.running,\n"
        ")"
    )
    return rows, log.decode, calls, False


def sweep_frame(bench: Any) -> pd.DataFrame | None:
    """Return a measured sweep as a frame with the names of ``by_context``; None where there is none."""
    if bench is None:
        return None
    if isinstance(bench, pd.DataFrame):
        made = bench.copy()
    elif hasattr(bench, "frame"):
        made = bench.frame().copy()
    elif isinstance(bench, Mapping):
        made = pd.DataFrame(list(bench.get("points") or []))
    else:
        made = pd.DataFrame(list(bench))
    for name, others in SWEEP_NAMES.items():
        if name not in made.columns:
            found = next((o for o in others if o in made.columns), None)
            made[name] = columns.numeric(made, found) if found else np.nan
    return made
