"""What a server asks itself: warm-ups when it starts, and health checks. One rule, wherever the requests come from."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.frames import Bools, Floats

OWN_KINDS = ("warmup", "health_check")
"""Kinds of request that are the server's own."""

EXCLUDED = "request-steps of the server itself (warm-up or health check)"
"""How they are called where they are counted."""


def own_in(request_steps: pa.Table) -> pd.DataFrame:
    """Return the server's own requests that rows which were written say of themselves: id, kind, and from when to when they ran."""
    parts = []
    flags = request_steps.column("flags").combine_chunks()
    owners = np.asarray(pc.list_parent_indices(flags))
    words = pc.list_flatten(flags)
    for kind in OWN_KINDS:
        rows = request_steps.select(["request_id", "time_us"]).take(pa.array(np.unique(owners[np.asarray(pc.equal(words, kind))])))
        times = rows.group_by("request_id").aggregate([("time_us", "min"), ("time_us", "max")]).to_pandas()
        span = [pd.to_datetime(times[f"time_us_{end}"], unit="us", utc=True) for end in ("min", "max")]
        parts.append(pd.DataFrame({"request_id": times["request_id"], "kind": kind, "received": span[0], "finished": span[1]}))
    return pd.concat(parts, ignore_index=True)


def own_rows(rows: pd.DataFrame, requests: pd.DataFrame, told: pd.DataFrame | None = None) -> Bools:
    """Tell which request-steps are of the server's own requests.

    Parameters
    ----------
    rows : pandas.DataFrame
        A row a request a step: ``request_id``, ``time_us`` or ``time``.
    requests : pandas.DataFrame
        The requests that the rows were joined with, with ``kind`` where it is known.
    told : pandas.DataFrame, optional
        What the log's own lines say of requests, where ``requests`` come from elsewhere: a file that a client wrote knows no warm-up.

    Returns
    -------
    ndarray of bool
        Rows whose request is one of the server's own by its id; and rows of no request within the time of such a request, where none
        of the given requests was under way.
    """
    made = np.zeros(len(rows), dtype=bool)
    if not len(rows):
        return made
    asked = [table for table in (requests, told) if table is not None and cols.has(table, "kind") and "request_id" in table.columns]
    ids = {x for table in asked for x in cols.text(table, "request_id")[_is_own(table)]} - {None}
    if ids and "request_id" in rows.columns:
        made |= np.asarray(rows["request_id"].isin(list(ids)), dtype=bool)
    lone = np.asarray(rows["request_id"].isna(), dtype=bool) if "request_id" in rows.columns else np.ones(len(rows), dtype=bool)
    if not asked or not lone.any():
        return made
    at = cols.time_us(rows)
    inside = np.zeros(len(rows), dtype=bool)
    for table in asked:
        inside |= _within(at, table[_is_own(table)])
    if not inside.any():
        return made
    clients = requests[~_is_own(requests) & ~np.isin(cols.text(requests, "request_id").astype(str), [str(x) for x in ids])]
    return np.asarray(made | (lone & inside & ~_within(at, clients)))


def _is_own(requests: pd.DataFrame) -> Bools:
    return np.asarray(np.isin(cols.text(requests, "kind").astype(str), OWN_KINDS), dtype=bool)


def _within(at: Floats, requests: pd.DataFrame) -> Bools:
    """Tell which instants lie within the time of any of some requests, their ends included."""
    begin, end = (cols.instants(requests[n]) if n in requests.columns else np.full(len(requests), np.nan) for n in ("received", "finished"))
    known = np.isfinite(begin) & np.isfinite(end)
    begin, end = np.sort(begin[known]), np.sort(end[known])
    with np.errstate(invalid="ignore"):
        return np.asarray(np.searchsorted(begin, at, side="right") > np.searchsorted(end, at, side="left")) & np.isfinite(at)
