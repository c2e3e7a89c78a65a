"""What stands beside a step in other tables: the cache state of its request, the graph flag of its batch size, the context of a line."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddtree_metrics.layout import plural
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.basis import Basis, floats, microseconds
from ddtree_metrics.steps.frames import Floats

CACHED_SHARE = 0.5
"""A prompt with at least this share of its tokens from the prefix cache counts as cached."""


def add_requests(basis: Basis, requests: pd.DataFrame) -> None:
    """Add what the table of requests says: whose prompt was cached."""
    if not len(requests) or "request_id" not in requests or not len(basis):
        return
    place = pd.Series(np.arange(len(requests)), index=cols.text(requests, "request_id")).groupby(level=0).first()
    at = pd.Index(basis.request_names).map(place).to_numpy(dtype=float, na_value=np.nan)
    at = np.append(at, np.nan)[basis.request_code]
    found = np.isfinite(at)
    rows = at[found].astype(np.int64)
    cached, prompt = floats(requests, "cached_tokens"), floats(requests, "prompt_tokens")
    share = np.divide(cached, prompt, out=np.full(len(cached), np.nan), where=prompt > 0)
    made = np.full(len(basis), np.nan)
    made[found] = np.where(np.isfinite(share[rows]), (share[rows] >= CACHED_SHARE).astype(float), np.nan)
    basis.cached = made


def add_graph(basis: Basis, decode: pd.DataFrame) -> None:
    """Say which steps ran without a device graph.

    A Decode line says it of one step only. Graphs are captured by batch size, so within one server start the answer of a batch size holds
    for all steps of it, where its lines agree; a row of a batch size that no line speaks of stays unknown.
    """
    if not len(decode) or "cuda_graph" not in decode or not len(basis) or not decode["cuda_graph"].notna().any():
        return
    run = basis.run_of(decode)
    flag = pd.to_numeric(decode["cuda_graph"].astype("object"), errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    running = floats(decode, "running")
    table = pd.DataFrame({"run": run, "batch": running, "off": 1.0 - flag}).dropna()
    if table.empty:
        return
    if table["off"].nunique() > 1 and table["batch"].nunique() > 1:
        basis.graph_with_batch = float(np.corrcoef(table["off"], table["batch"])[0, 1])
    mine = pd.DataFrame({"run": basis.run, "batch": basis.batch})
    per = table.groupby(["run", "batch"])["off"].agg(["min", "max"])
    agreed = per[per["min"] == per["max"]]["min"].rename("off")
    joined = mine.join(agreed, on=["run", "batch"])["off"].to_numpy(np.float64, copy=True)
    # graphs are captured up to a largest batch: a smaller one than a graphed one is graphed, a larger one than an eager one is eager
    largest_on = table[table["off"] == 0].groupby("run")["batch"].max()
    smallest_off = table[table["off"] == 1].groupby("run")["batch"].min()
    on = mine["run"].map(largest_on).to_numpy(np.float64)
    off = mine["run"].map(smallest_off).to_numpy(np.float64)
    size = basis.batch
    with np.errstate(invalid="ignore"):
        consistent = ~(on >= off)
        joined = np.where(np.isnan(joined) & consistent & (size <= on), 0.0, joined)
        joined = np.where(np.isnan(joined) & consistent & (size >= off), 1.0, joined)
    between = _between_lines(basis, decode, flag)
    basis.graph_off = np.where(np.isnan(joined), between, joined)


NEAR_US = 1_000_000
"""A Decode line further from a step than this says nothing of its context."""


def add_decode_context(basis: Basis, decode: pd.DataFrame) -> None:
    """Take the context of rows that no request tells it of from the nearest Decode line with as many requests running.

    It is the mean over the batch, slots held ahead included: an estimate, and the notes say for how many rows.
    """
    lacking = ~np.isfinite(basis.context) & (basis.time_us >= 0)
    if not len(decode) or not lacking.any() or basis.windows:
        return
    time, running, held, names = microseconds(decode), floats(decode, "running"), floats(decode, "tokens"), cols.text(decode, "stream")
    ok = (time >= 0) & (running >= 1) & (held > 0)
    at = np.flatnonzero(ok)[np.argsort(time[ok], kind="stable")]
    if not len(at) or _ranks(names[at]) > 1:
        return
    place = np.searchsorted(time[at], basis.time_us)
    best = np.full(len(basis), -1, dtype=np.int64)
    gap = np.full(len(basis), NEAR_US + 1, dtype=np.int64)
    for shift in (0, -1):
        i = np.clip(place + shift, 0, len(at) - 1)
        here = np.abs(time[at][i] - basis.time_us)
        nearer = (here < gap) & (running[at][i] == basis.batch)
        best[nearer], gap[nearer] = i[nearer], here[nearer]
    use = lacking & (best >= 0)
    if not use.any():
        return
    line = at[best[use]]
    basis.context[use] = held[line] / running[line]
    basis.batch_context[use] = held[line]
    basis.notes.append(f"the context of {plural(int(use.sum()), 'row')} is estimated from the nearest Decode line: a mean over the batch")


def _ranks(names: npt.NDArray[np.object_]) -> int:
    """Count the ranks that streams are of; processes that follow each other on one rank are one."""
    return len({str(x).rpartition("|")[2] for x in names})


def _between_lines(basis: Basis, decode: pd.DataFrame, flag: Floats) -> Floats:
    """Carry the graph flag to the steps between two Decode lines of one process that agree, for steps of the batch size of both."""
    made = np.full(len(basis), np.nan)
    time, running, names = microseconds(decode), floats(decode, "running"), cols.text(decode, "stream")
    ok = (time >= 0) & np.isfinite(flag)
    if len(np.unique(basis.stream)) > 1 and len({str(x) for x in names[ok]} - {"None"}) != 1:
        spans = {k: basis.time_us[basis.stream == k] for k in np.unique(basis.stream)}
        if _overlap([(x.min(), x.max()) for x in spans.values()]):
            return made  # several processes at once: which of them a line is of is not kept here
    at = np.flatnonzero(ok)[np.argsort(time[ok], kind="stable")]
    if len(at) < 2:
        return made
    later = np.searchsorted(time[at], basis.time_us, side="left")
    inside = (later > 0) & (later < len(at)) & (basis.time_us >= 0)
    left, right = at[np.clip(later - 1, 0, len(at) - 1)], at[np.clip(later, 0, len(at) - 1)]
    agree = inside & (flag[left] == flag[right]) & (running[left] == basis.batch) & (running[right] == basis.batch)
    made[agree] = 1.0 - flag[left][agree]
    return made


def _overlap(spans: list[tuple[int, int]]) -> bool:
    spans = sorted(spans)
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))
