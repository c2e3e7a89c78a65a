"""What a report shows besides the diagnosis: curve, fit, acceptance, gaps, each with the calls that make it from a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ddtree_metrics import metrics
from ddtree_metrics.memory import give_back
from ddtree_metrics.steps import frames as columns
from ddtree_metrics.steps.basis import Kind
from ddtree_metrics.steps.basis_rows import LONG, basis_of

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

_OVER_TIME = ["time", "time_us", "time_from", "stream", "tokens", "step_time_ms", "step_why"]


@dataclass(slots=True)
class Facts:
    """The frames that the pictures and tables of a report are made of.

    Attributes
    ----------
    rows : DataFrame
        One row a request a step, with step times: the basis of all numbers.
    steps : DataFrame
        What the line over time is drawn from, all that the server did: one row a step, or a ``Decode batch`` line.
    once : DataFrame
        The first row of each step of ``rows``: what the distribution is drawn from.
    kind : Kind
        What kind of line the rows are made of.
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
    once: pd.DataFrame = field(default_factory=pd.DataFrame)
    kind: Kind = Kind.NOTHING
    calls: str = "rows = log.basis.frame()"
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
    basis = basis_of(log)
    rows = basis.frame()
    steps = log.lean_steps
    timed = metrics.step_times(steps, events=log.events, prefill=log.prefill)[_OVER_TIME] if len(steps) else log.decode
    made = Facts(rows, timed if len(timed) else rows, metrics.by_context(rows, level=level), kind=basis.kind)
    made.once = rows[["where", "step_time_ms"]].drop_duplicates("where")
    made.by_sql = basis.kind is Kind.STEP_LINES
    made.fit = metrics.fit_step_time(rows, level=level)
    told = columns.has(rows, "drafts") or not len(steps)
    made.acceptance = metrics.acceptance(rows if told else log.steps, level=level)
    if len(steps) and len(log.decode):
        made.comparison = metrics.compare_step_times(steps, log.decode, prefill=log.prefill)
    made.gaps = metrics.gaps(steps if len(steps) else log.decode, log.events, prefill=log.prefill)
    made.sweep = sweep_frame(bench)
    if len(rows) >= LONG:
        give_back()
    return made


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
