"""Why a request stands out among the others of a log: long context, a large batch, slow steps, or few tokens a step."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from ddtree_metrics.diagnosis.numerals import number, times, tokens
from ddtree_metrics.steps.frames import Bools, Floats, numeric

BEYOND = math.log(1.15)
"""A number that differs by less than this (as a log) from the usual does not stand out."""

SAME_CONTEXT = math.log(1.5)
"""Requests whose contexts differ by less than this (as a log) are compared as if they were equal."""

SAME_BATCH = 0.5
"""... and whose mean batches differ by less than this."""

NEIGHBOURS = 2
"""With fewer other requests of the same context and batch nothing is said of steps at equal context."""


def why_slow(requests: pd.DataFrame) -> list[str]:
    """Say of each request why it is slower than usual.

    Parameters
    ----------
    requests : DataFrame
        A row a request, as ``by_request`` gives them.

    Returns
    -------
    list of str
        A phrase for each row; ``""`` for one that is not slower than the median by more than 15 %, or of which it is not known.
    """
    columns = [numeric(requests, name) for name in ("tok_per_s", "step_time_ms", "tokens_per_step", "context_len", "batch_size")]
    speed = columns[0]
    usual = [float(np.nanmedian(c)) if np.isfinite(c).any() else math.nan for c in columns]
    return [
        _why(i, columns, usual, numeric(requests, "run")) if np.isfinite(speed[i]) and math.log(usual[0] / speed[i]) > BEYOND else ""
        for i in range(len(requests))
    ]


def _why(i: int, columns: list[Floats], usual: list[float], run: Floats) -> str:
    _, ms, per_step, context, batch = columns
    said = []
    if np.isfinite(ms[i]) and math.log(ms[i] / usual[1]) > BEYOND:
        longer, fuller = context[i] > math.exp(SAME_CONTEXT) * usual[3], batch[i] > usual[4] + SAME_BATCH
        alike = _alike(i, context, batch) & np.isfinite(ms)
        expected = float(np.median(ms[alike])) if alike.sum() >= NEIGHBOURS else math.nan
        if longer:
            said.append(f"long context: {tokens(context[i])} (usual {tokens(usual[3])})")
        if fuller:
            said.append(f"batch of {number(batch[i], 1)} (usual {number(usual[4], 1)})")
        if np.isfinite(expected) and math.log(ms[i] / expected) > BEYOND:
            said.append(f"steps {times(ms[i] / expected)} those of requests like it")
        elif not longer and not fuller:
            said.append(f"steps of {number(ms[i])} ms (usual {number(usual[1])})")
    if np.isfinite(per_step[i]) and per_step[i] > 0 and math.log(usual[2] / per_step[i]) > BEYOND:
        own = per_step[(run == run[i]) & np.isfinite(per_step)]
        as_all = len(own) >= NEIGHBOURS and math.log(float(np.median(own)) / per_step[i]) <= BEYOND
        said.append(f"{number(per_step[i], 2)} tokens/step (usual {number(usual[2], 2)}){', as all of its server start' if as_all else ''}")
    return "; ".join(said) or "a little of everything"


def _alike(i: int, context: Floats, batch: Floats) -> Bools:
    """Return the other requests of about the same context and batch."""
    with np.errstate(invalid="ignore", divide="ignore"):
        made = (np.abs(np.log(context / context[i])) < SAME_CONTEXT) & (np.abs(batch - batch[i]) < SAME_BATCH)
    made[i] = False
    return np.asarray(made)
