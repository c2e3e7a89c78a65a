"""What stands beside a step in other tables: the server start, the cache state of its request, the graph flag of its batch size."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddtree_metrics.steps.basis import Basis, Floats, Ints, Start, empty_like, floats, microseconds, without, words
from ddtree_metrics.steps.frames import plural

CACHED_SHARE = 0.5
"""A prompt with at least this share of its tokens from the prefix cache counts as cached."""


def add_runs(panel: Basis, log: Any) -> None:
    """Give each row the number of its server start, and say how long the server had been up."""
    servers = empty_like(log, "servers")
    starts = microseconds(servers) if len(servers) else np.empty(0, dtype=np.int64)
    good = starts >= 0
    turn = np.argsort(starts[good], kind="stable")
    frame = servers[good].iloc[turn]
    starts = starts[good][turn]
    hidden = hidden_starts(panel, starts)
    if len(starts) or len(hidden):
        boots, args = words(frame, "boot_id"), words(frame, "args")
        found: list[tuple[int, str | None, dict[str, str] | None]] = [
            (int(at), boots[i], _mapping(args[i], frame.iloc[i])) for i, at in enumerate(starts)
        ]
        if not len(starts):
            found.append((int(panel.time_us[panel.time_us >= 0].min()), panel.boot[0], None))
        found += [(int(panel.time_us[i]), panel.boot[i], None) for i in hidden]
        found.sort(key=lambda x: x[0])
        for i, (at, boot, mapping) in enumerate(found):
            panel.runs.append(Start(i + 1, at, boot, mapping, f"run {i + 1}"))
        starts = np.array([x[0] for x in found], dtype=np.int64)
        if len(hidden):
            panel.notes.append(
                f"{plural(len(hidden), 'restart')} known by the process only, without a server start line: the flags are not known, and "
                "uptime counts from the first step of the process"
            )
        panel.run = np.maximum(np.searchsorted(starts, panel.time_us, side="right"), 0).astype(np.int64)
        before = panel.run == 0
        if before.any():
            panel.runs.insert(0, Start(0, None, None, None, "before the first server start"))
        known = (panel.run > 0) & (panel.time_us >= 0)
        panel.uptime_s[known] = (panel.time_us[known] - starts[panel.run[known] - 1]) / 1e6
        return
    if not len(panel):
        return
    # no start line: a process is a run, and its uptime counts from its first line, which is a lower bound
    boot = panel.boot.copy()
    boot[pd.isna(boot)] = ""
    codes, names = pd.factorize(boot)
    panel.run = codes.astype(np.int64) + 1
    for i, name in enumerate(names):
        mine = panel.time_us[(codes == i) & (panel.time_us >= 0)]
        start = int(mine.min()) if len(mine) else None
        panel.runs.append(Start(i + 1, start, name or None, None, f"boot {name[:8]}" if name else "the only run"))
        if start is not None:
            at = (codes == i) & (panel.time_us >= 0)
            panel.uptime_s[at] = (panel.time_us[at] - start) / 1e6
    panel.notes.append("no server start line: uptime counts from the first step of each boot")


def hidden_starts(panel: Basis, starts: Ints) -> list[int]:
    """Return the rows that begin a server start of which no line tells: another process goes on in the place of one that ended.

    A server start line is that of the first process of each rank that logs a step after it; a later process of the rank has restarted.
    """
    begins = np.flatnonzero(np.isin(panel.why, ("first", "restart", "boot")) & (panel.time_us >= 0))
    _, first_rows = np.unique(panel.stream, return_index=True)
    begins = begins[np.isin(begins, first_rows)]
    found: list[int] = []
    claimed: set[tuple[int, int]] = set()
    known = list(starts)
    for i in begins.tolist():
        before = [s for s in known if s <= panel.time_us[i]]
        mine = (int(before[-1]) if before else -1, int(panel.family[i]))
        if mine in claimed and panel.why[i] != "first":
            found.append(i)
            known = sorted([*known, int(panel.time_us[i])])
            mine = (int(panel.time_us[i]), mine[1])
        claimed.add(mine)
    return found


_SERVER_COLUMNS = [
    "algorithm",
    "num_draft_tokens",
    "num_steps",
    "topk",
    "budget",
    "block_size",
    "draft_window",
    "page_size",
    "tp_size",
    "dp_size",
    "context_len",
    "max_total_tokens",
    "decode_log_interval",
]


def _mapping(args: Any, row: pd.Series[Any]) -> dict[str, str]:
    """Return the arguments of a server start: the map as printed, and the columns where there is no map."""
    try:
        pairs = dict(args) if args is not None else {}
    except (TypeError, ValueError):
        pairs = {}
    made = {str(k): str(v) for k, v in pairs.items()}
    if not made:
        made = {name: str(row[name]) for name in _SERVER_COLUMNS if name in row.index and not pd.isna(row[name])}
    return made


def add_requests(panel: Basis, log: Any) -> None:
    """Add what the table of requests says: whose prompt was cached; warm-up requests are left out."""
    requests = empty_like(log, "requests")
    if not len(requests) or "request_id" not in requests or not len(panel):
        return
    ids = words(requests, "request_id")
    index = pd.Index(ids)
    at = (
        pd.Index(panel.request)
        .map(pd.Series(np.arange(len(ids)), index=index).groupby(level=0).first())
        .to_numpy(dtype=float, na_value=np.nan)
    )
    found = np.isfinite(at)
    rows = at[found].astype(np.int64)
    cached, prompt = floats(requests, "cached_tokens"), floats(requests, "prompt_tokens")
    share = np.divide(cached, prompt, out=np.full(len(cached), np.nan), where=prompt > 0)
    panel.cached[found] = np.where(np.isfinite(share[rows]), (share[rows] >= CACHED_SHARE).astype(float), np.nan)
    kind = words(requests, "kind")
    odd = np.zeros(len(panel), dtype=bool)
    odd[found] = np.isin(kind[rows].astype(str), ["warmup", "health_check"])
    without(panel, odd, "request of the server itself (warm-up or health check)")


def add_graph(panel: Basis, decode: pd.DataFrame, servers: pd.DataFrame) -> None:
    """Say which steps ran without a device graph.

    A Decode line says it of one step only. Graphs are captured by batch size, so within one server start the answer of a batch size holds
    for all steps of it, where its lines agree; a row of a batch size that no line speaks of stays unknown.
    """
    if not len(decode) or "cuda_graph" not in decode or not len(panel) or not decode["cuda_graph"].notna().any():
        return
    starts = np.sort(microseconds(servers)) if len(servers) else np.empty(0, dtype=np.int64)
    starts = starts[starts >= 0]
    run = np.searchsorted(starts, microseconds(decode), side="right") if len(starts) else None
    flag = pd.to_numeric(decode["cuda_graph"].astype("object"), errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    running = floats(decode, "running")
    table = pd.DataFrame({"run": 0 if run is None else run, "batch": running, "off": 1.0 - flag}).dropna()
    if table.empty:
        return
    if table["off"].nunique() > 1 and table["batch"].nunique() > 1:
        panel.graph_with_batch = float(np.corrcoef(table["off"], table["batch"])[0, 1])
    mine = pd.DataFrame({"run": 0 if run is None else panel.run, "batch": panel.batch})
    per = table.groupby(["run", "batch"])["off"].agg(["min", "max"])
    agreed = per[per["min"] == per["max"]]["min"].rename("off")
    joined = mine.join(agreed, on=["run", "batch"])["off"].to_numpy(np.float64, copy=True)
    # graphs are captured up to a largest batch: a smaller one than a graphed one is graphed, a larger one than an eager one is eager
    largest_on = table[table["off"] == 0].groupby("run")["batch"].max()
    smallest_off = table[table["off"] == 1].groupby("run")["batch"].min()
    on = mine["run"].map(largest_on).to_numpy(np.float64)
    off = mine["run"].map(smallest_off).to_numpy(np.float64)
    size = panel.batch
    with np.errstate(invalid="ignore"):
        consistent = ~(on >= off)
        joined = np.where(np.isnan(joined) & consistent & (size <= on), 0.0, joined)
        joined = np.where(np.isnan(joined) & consistent & (size >= off), 1.0, joined)
    between = _between_lines(panel, decode, flag)
    panel.graph_off = np.where(np.isnan(joined), between, joined)


NEAR_US = 1_000_000
"""A Decode line further from a step than this says nothing of its context."""


def add_decode_context(panel: Basis, decode: pd.DataFrame) -> None:
    """Take the context of rows that no request tells it of from the nearest Decode line with as many requests running.

    It is the mean over the batch, slots held ahead included: an estimate, and the notes say for how many rows.
    """
    lacking = ~np.isfinite(panel.context) & (panel.time_us >= 0)
    if not len(decode) or not lacking.any() or panel.windows:
        return
    time, running, held, names = microseconds(decode), floats(decode, "running"), floats(decode, "tokens"), words(decode, "stream")
    ok = (time >= 0) & (running >= 1) & (held > 0)
    at = np.flatnonzero(ok)[np.argsort(time[ok], kind="stable")]
    if not len(at) or _ranks(names[at]) > 1:
        return
    place = np.searchsorted(time[at], panel.time_us)
    best = np.full(len(panel), -1, dtype=np.int64)
    gap = np.full(len(panel), NEAR_US + 1, dtype=np.int64)
    for shift in (0, -1):
        i = np.clip(place + shift, 0, len(at) - 1)
        here = np.abs(time[at][i] - panel.time_us)
        nearer = (here < gap) & (running[at][i] == panel.batch)
        best[nearer], gap[nearer] = i[nearer], here[nearer]
    use = lacking & (best >= 0)
    if not use.any():
        return
    line = at[best[use]]
    panel.context[use] = held[line] / running[line]
    panel.batch_context[use] = held[line]
    panel.notes.append(f"the context of {plural(int(use.sum()), 'row')} is estimated from the nearest Decode line: a mean over the batch")


def _ranks(names: npt.NDArray[np.object_]) -> int:
    """Count the ranks that streams are of; processes that follow each other on one rank are one."""
    return len({str(x).rpartition("|")[2] for x in names})


def _between_lines(panel: Basis, decode: pd.DataFrame, flag: Floats) -> Floats:
    """Carry the graph flag to the steps between two Decode lines of one process that agree, for steps of the batch size of both."""
    made = np.full(len(panel), np.nan)
    time, running, names = microseconds(decode), floats(decode, "running"), words(decode, "stream")
    ok = (time >= 0) & np.isfinite(flag)
    if len(np.unique(panel.stream)) > 1 and len({str(x) for x in names[ok]} - {"None"}) != 1:
        spans = {k: panel.time_us[panel.stream == k] for k in np.unique(panel.stream)}
        if _overlap([(x.min(), x.max()) for x in spans.values()]):
            return made  # several processes at once: which of them a line is of is not kept here
    at = np.flatnonzero(ok)[np.argsort(time[ok], kind="stable")]
    if len(at) < 2:
        return made
    later = np.searchsorted(time[at], panel.time_us, side="left")
    inside = (later > 0) & (later < len(at)) & (panel.time_us >= 0)
    left, right = at[np.clip(later - 1, 0, len(at) - 1)], at[np.clip(later, 0, len(at) - 1)]
    agree = inside & (flag[left] == flag[right]) & (running[left] == panel.batch) & (running[right] == panel.batch)
    made[agree] = 1.0 - flag[left][agree]
    return made


def _overlap(spans: list[tuple[int, int]]) -> bool:
    spans = sorted(spans)
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))
