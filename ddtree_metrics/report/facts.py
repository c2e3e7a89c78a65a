"""What a report shows besides the diagnosis: curve, fit, acceptance, gaps, each with the calls that make it from a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ddtree_metrics import metrics
from ddtree_metrics.diagnosis.others_beside import FIRST
from ddtree_metrics.memory import give_back
from ddtree_metrics.plots.of_log import over_time_of
from ddtree_metrics.plots.start_series import StartLook, start_looks, with_starts
from ddtree_metrics.plots.timeline import BEGINS_AT_ITS_END, Buckets, bucket
from ddtree_metrics.steps import frames as columns
from ddtree_metrics.steps.basis import Kind
from ddtree_metrics.steps.basis_rows import LONG, basis_of

if TYPE_CHECKING:
    from ddtree_metrics.diagnosis import Diagnosis
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

PREFILL_BUSY = 1
"""A prefill while at least so many requests were running held them up."""


@dataclass(slots=True)
class Facts:
    """The frames that the pictures and tables of a report are made of.

    Attributes
    ----------
    rows : DataFrame
        One row a request a step, with step times: the basis of all numbers.
    curve : DataFrame
        ``by_context`` of the rows, each server start by itself.
    starts : dict of int to StartLook
        What each server start is called, and its colour.
    buckets : list of Buckets
        What the line over time is drawn from.
    marked : DataFrame
        What is marked over time: ``kind`` and ``time_us``.
    once : DataFrame
        The first row of each step of ``rows``: what the distribution is drawn from.
    kind : Kind
        What kind of line the rows are made of.
    acceptance : dict of int to Acceptance
        ``acceptance`` of the rows of each server start; of all lines as 0 where the rows do not tell it.
    comparison : object or None
        ``compare_step_times``, where the log has both kinds of line.
    gaps : DataFrame
        What must not be averaged over.
    sweep : DataFrame or None
        A measured sweep, with the names of the curve.
    calls : str
        The Python lines that make ``rows`` from ``log``.
    by_sql : bool
        Whether the rows stand in an export as ``request_steps``, and their server starts as ``servers``.
    """

    rows: pd.DataFrame
    curve: pd.DataFrame
    starts: dict[int, StartLook]
    buckets: list[Buckets] = field(default_factory=list)
    marked: pd.DataFrame = field(default_factory=pd.DataFrame)
    once: pd.DataFrame = field(default_factory=pd.DataFrame)
    kind: Kind = Kind.NOTHING
    acceptance: dict[int, Any] = field(default_factory=dict)
    comparison: Any = None
    gaps: pd.DataFrame = field(default_factory=pd.DataFrame)
    sweep: pd.DataFrame | None = None
    calls: str = "rows = log.basis.frame()"
    by_sql: bool = False


def gather(log: Log, diagnosis: Diagnosis, bench: Any = None) -> Facts:
    """Compute everything once.

    Parameters
    ----------
    log : Log
        What was read.
    diagnosis : Diagnosis
        What ``diagnose`` says of it: its level and its breaks.
    bench : Sweep, DataFrame or mapping, optional
        A measured sweep; a mapping is what its JSON file holds.
    """
    basis = basis_of(log)
    starts, level = start_looks(basis), diagnosis.level
    rows = with_starts(basis.frame(), starts)
    made = Facts(rows, metrics.by_context(rows, each="run", level=level), starts, kind=basis.kind)
    made.once = rows[["where", "step_time_ms", "run"]].drop_duplicates("where")
    for frame in (made.curve, made.once):
        frame.attrs["starts"] = starts
    local = any(str(name).endswith("-local") for name in clocks(log))
    made.buckets = [replace(one, local=local) for one in bucket(over_time_of(log)[0])]
    made.by_sql = basis.kind is Kind.STEP_LINES and len(basis.services) < 2 and not any(run.hidden for run in basis.runs)
    steps = log.lean_steps
    if columns.has(rows, "drafts") or not len(steps):
        own = {n: rows[columns.numeric(rows, "run") == n] for n in starts}
        made.acceptance = {n: metrics.acceptance(part, level=level) for n, part in own.items() if len(part)}
    else:
        made.acceptance = {0: metrics.acceptance(log.steps, level=level)}
    made.acceptance = made.acceptance or {0: metrics.acceptance(rows, level=level)}
    if len(steps) and len(log.decode):
        made.comparison = metrics.compare_step_times(steps, log.decode, prefill=log.prefill)
    made.gaps = metrics.gaps(steps if len(steps) else log.decode, log.events, prefill=log.prefill)
    made.marked = _marked(log, made.gaps, diagnosis)
    made.sweep = sweep_frame(bench)
    if len(rows) >= LONG:
        give_back()
    return made


def clocks(log: Log) -> list[str]:
    """Return whose clocks the times of the lines are."""
    lines = log.lean_steps if log.has_rows("steps") else log.decode
    return sorted({str(z) for z in columns.text(lines.drop_duplicates("time_from"), "time_from") if z is not None})


def _marked(log: Log, gaps: pd.DataFrame, diagnosis: Diagnosis) -> pd.DataFrame:
    """Return what is marked over time: events, gaps that no event tells of, prefills that others waited for, breaks, others."""
    kinds, at = columns.text(log.events, "kind"), columns.time_us(log.events)
    found, begin = columns.text(gaps, "kind"), columns.time_us(gaps)
    for name, mine in (("start", np.ones(len(gaps), dtype=bool)), ("end", np.isin(found.astype(str), BEGINS_AT_ITS_END))):
        if name in gaps.columns:
            begin = np.where(mine, columns.instants(gaps[name]), begin)
    new = ~np.isin(found.astype(str), np.unique(kinds.astype(str))) if len(found) else np.zeros(0, dtype=bool)
    busy = log.prefill[columns.numeric(log.prefill, "running") >= PREFILL_BUSY]
    breaks = [instant_us(one.time) for one in diagnosis.breaks]
    others = [float(one.time_us) for near in diagnosis.beside for one in near.seen if one.signal in FIRST]
    pieces = [(kinds, at), (found[new], begin[new]), (["prefill"] * len(busy), columns.time_us(busy))]
    pieces += [(["break"] * len(breaks), breaks), (["beside"] * len(others), others)]
    return pd.DataFrame(
        {
            "kind": np.concatenate([np.asarray(k, dtype=object) for k, _ in pieces]),
            "time_us": np.concatenate([np.asarray(t, dtype=np.float64) for _, t in pieces]),
        }
    )


def instant_us(text: str) -> float:
    """Read an instant as ``format_us`` writes it."""
    return float(pd.Timestamp(text).value // 1000)


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
