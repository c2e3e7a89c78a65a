"""One row a request: when it ran, at what context and batch, and how fast."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.frames import Floats
from ddtree_metrics.steps.given import takes

BY_REQUEST_COLUMNS = (
    "request_id",
    "time",
    "run",
    "prompt_len",
    "context_len",
    "batch_size",
    "steps",
    "timed_steps",
    "tokens",
    "step_time_ms",
    "tokens_per_step",
    "tok_per_s",
)


@takes("request_steps", "request_id")
def by_request(request_steps: pd.DataFrame) -> pd.DataFrame:
    """Sum up each request: its first step, its context at the end, its mean batch, and its speed while it was decoded.

    Parameters
    ----------
    request_steps : DataFrame
        One row a request a step, with ``request_id``, ``tokens`` and ``step_time_ms`` (else ``step_us``).

    Returns
    -------
    DataFrame
        A row a request with ``BY_REQUEST_COLUMNS``, by the time of the first step: ``time`` (UTC), ``run`` (the server start, if the rows
        tell), ``prompt_len`` and ``context_len`` (tokens, at its last step), ``batch_size`` (mean), ``steps``, ``timed_steps``, ``tokens``
        (sum), ``step_time_ms`` (mean), ``tokens_per_step`` (mean) and ``tok_per_s``, which is ``1000 * tokens_per_step / step_time_ms``.
        Null where a number is not known.
    """
    if not len(request_steps) or "request_id" not in request_steps.columns:
        return pd.DataFrame(columns=list(BY_REQUEST_COLUMNS))
    codes, names = pd.factorize(request_steps["request_id"], use_na_sentinel=True)
    mine = codes >= 0
    place, n = codes[mine], len(names)

    def values(name: str) -> Floats:
        return cols.finite(cols.numeric(request_steps, name))[mine]

    def sums(each: Floats) -> tuple[Floats, Floats]:
        known = np.isfinite(each)
        held = np.asarray(np.bincount(place[known], each[known], minlength=n), dtype=np.float64)
        return held, np.asarray(np.bincount(place[known], minlength=n), dtype=np.float64)

    def mean(each: Floats) -> Floats:
        total, count = sums(each)
        return np.divide(total, count, out=np.full(n, np.nan), where=count > 0)

    def most(each: Floats) -> Floats:
        made = np.full(n, -np.inf)
        np.maximum.at(made, place, np.where(np.isfinite(each), each, -np.inf))
        return np.where(np.isfinite(made), made, np.nan)

    at, ms, tokens = cols.time_us(request_steps)[mine], cols.finite(cols.step_ms(request_steps))[mine], values("tokens")
    first = -most(-at)
    made = pd.DataFrame({"request_id": np.asarray(names, dtype=object)})
    made["time"] = pd.to_datetime(pd.Series(first).round(), unit="us", utc=True)
    for name in ("run", "prompt_len", "context_len"):
        made[name] = pd.array(most(values(name)), dtype="Float64").astype("Int64")
    made["batch_size"] = mean(values("batch_size"))
    made["steps"] = np.bincount(place, minlength=n)
    made["timed_steps"] = sums(ms)[1].astype(int)
    total, counted = sums(tokens)
    made["tokens"] = np.where(counted > 0, total, np.nan)
    made["step_time_ms"], made["tokens_per_step"] = mean(ms), mean(tokens)
    made["tok_per_s"] = 1000.0 * made["tokens_per_step"] / made["step_time_ms"]
    return made.iloc[np.argsort(first, kind="stable")].reset_index(drop=True)[list(BY_REQUEST_COLUMNS)]
