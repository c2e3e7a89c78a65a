"""Lakes of several hosts for the fleet's tests: steps of requests as an export writes them, with what the fleet needs to be told apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from ddtree_metrics.records import TABLES
from ddtree_metrics.tables.datasets import DatasetWriter

DAY_US = 86_400_000_000
T0 = 1_761_350_400_000_000
"""2025-10-25 00:00 UTC."""
LENGTH = 50
"""Steps of a request."""


def host_rows(
    host: str, steps: int, *, seed: int, day: int = 0, boot: str = "b0", slower: float = 1.0, longest: int = 100_000, lag_us: int = 0
) -> pa.Table:
    """Make the steps of one process on one day: requests one after the other, whose first steps have no step time."""
    rng = np.random.default_rng(seed)
    who, index = np.divmod(np.arange(steps), LENGTH)
    requests = int(who[-1]) + 1
    prompt = np.exp(rng.uniform(np.log(50), np.log(longest), requests)).astype(np.int64)[who]
    drafts = rng.binomial(7, 0.5, steps)
    tokens = drafts + 1
    total = np.cumsum(tokens) - tokens
    context = prompt + total - total[who * LENGTH]
    us = (slower * (20_000 + 4 * context) * rng.lognormal(0, 0.08, steps)).astype(np.int64)
    first = index == 0
    at = T0 + day * DAY_US + 1_000_000 + np.arange(steps) * (DAY_US // 2 // steps) - lag_us

    def said(word: str) -> pa.Array:
        return pa.array([word]).take(pa.array(np.zeros(steps, np.int64)))

    return pa.table(
        {
            "time": pa.array(at, pa.timestamp("us", "UTC")),
            "time_us": at,
            "host": said(host),
            "unit": said("sglang.service"),
            "boot_id": said(boot),
            "stream": said(f"{host}|{boot}|{1000 + seed}|"),
            "request_id": pa.array([f"{host}-{seed}-{i}" for i in range(requests)]).take(pa.array(who)),
            "step_index": index,
            "slot": np.zeros(steps, np.int64),
            "prompt_len": prompt,
            "generated_len": context - prompt,
            "context_len": context,
            "context_from": said("request"),
            "batch_context": context,
            "tokens": tokens.astype(float),
            "drafts": drafts.astype(float),
            "draft_nodes": np.full(steps, 16.0),
            "budget": np.where(np.arange(steps) % 3 == 0, 16, 32),
            "batch_size": np.ones(steps, np.int64),
            "weight": np.ones(steps),
            "step_us": pa.array(us, mask=first),
            "step_why": pa.array([None, "prefill_between"]).take(pa.array(first.astype(np.int64))),
            "matched": said("alone"),
            "reconciled": np.zeros(steps, np.int64),
            "trusted": np.ones(steps, bool),
        }
    )


def write(root: Path, *tables: pa.Table, source: str = "made", table: str = "request_steps") -> Path:
    """Add rows to a lake."""
    with DatasetWriter(root, TABLES[table], ("host", "date"), source=source) as writer:
        for rows in tables:
            writer.write(rows)
    return root


def fleet(root: Path, *, hosts: int = 3, days: int = 2, steps: int = 2000) -> Path:
    """Make a lake of so many hosts, days, and steps a host and day."""
    for number in range(hosts):
        parts = (host_rows(f"host{number}", steps, seed=10 * number, day=day) for day in range(days))
        write(root, *parts, source=f"host{number}")
    return root
