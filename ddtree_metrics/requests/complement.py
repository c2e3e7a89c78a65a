"""Two tellings of the same requests, put together."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ddtree_metrics import tables
from ddtree_metrics.records import Request
from ddtree_metrics.requests.request_fields import TIMES
from ddtree_metrics.steps.own_requests import OWN_KINDS


def complement_requests(requests: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Fill in what one telling leaves out from another: a client's file from the server's own lines.

    Parameters
    ----------
    requests : DataFrame
        The table that counts.
    others : DataFrame
        Another table of requests, for example ``requests_from_log(log.request_lines)``.

    Returns
    -------
    DataFrame
        ``requests`` with its missing numbers (verify steps, cached tokens …; never times, which may be another clock's) taken from
        ``others`` by id, where the id is unique in both; then the requests of ``others`` that ``requests`` does not have.
        ``attrs["complement"]`` counts both.
    """
    mine, theirs = _rows(requests), _rows(others)
    count: dict[Any, int] = {}
    for row in mine:
        count[row["request_id"]] = count.get(row["request_id"], 0) + 1
    by_id: dict[Any, list[dict[str, Any]]] = {}
    for row in theirs:
        by_id.setdefault(row["request_id"], []).append(row)
    filled = 0
    for row in mine:
        found = by_id.get(row["request_id"], [])
        if row["request_id"] is None or len(found) != 1 or count[row["request_id"]] != 1:
            continue
        changed = False
        for name, value in found[0].items():
            if value is not None and row[name] is None and name not in (*TIMES, "flags", "where", "source"):
                row[name] = value
                changed = True
        filled += changed
    extra = [row for row in theirs if row["request_id"] not in count] if len(theirs) else []
    made = tables.to_pandas(tables.from_records([Request(**row) for row in (*mine, *extra)], Request))
    made.attrs.update(requests.attrs)
    made.attrs["complement"] = {"filled": filled, "added": len(extra)}
    return made


def kinds_from(requests: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """Take which requests are the server's own from its log: a file of requests takes all of them for a client's.

    Parameters
    ----------
    requests : DataFrame
        A table of requests.
    own : DataFrame
        ``requests_from_log`` of the log of the same server.

    Returns
    -------
    DataFrame
        The same requests; those whose id the log knows as a warm-up or a health check have that ``kind``.
    """
    if not len(own) or "request_id" not in requests or "kind" not in own:
        return requests
    known = own[own["kind"].isin(OWN_KINDS) & own["request_id"].notna()].drop_duplicates("request_id")
    told = requests["request_id"].map(dict(zip(known["request_id"].astype(object), known["kind"].astype(object), strict=True)))
    if not told.notna().any():
        return requests
    made = requests.copy()
    kinds = (made["kind"] if "kind" in made else pd.Series(None, index=made.index)).astype(object)
    made["kind"] = kinds.where(told.isna(), told.astype(object)).astype(own["kind"].dtype)
    made.attrs.update(requests.attrs)
    return made


def times_from(requests: pd.DataFrame, own: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Take the times that the server's request file lacks (it has them with ``--enable-metrics``) from the server's own log.

    Parameters
    ----------
    requests : DataFrame
        A table of requests; only rows whose ``source`` is ``request_file`` and that have no time at all are changed, since only they
        are of the log's clock.
    own : DataFrame
        ``requests_from_log`` of the log of the same server.

    Returns
    -------
    DataFrame
        The requests; those with times from the log carry the flag ``times_from_log``.
    int
        How many they are.
    """
    names = TIMES
    mine = _rows(requests)
    bare = [r for r in mine if r["source"] == "request_file" and r["request_id"] is not None and all(r[n] is None for n in names)]
    if not bare or not len(own):
        return requests, 0
    by_id: dict[Any, list[dict[str, Any]]] = {}
    for row in _rows(own):
        by_id.setdefault(row["request_id"], []).append(row)
    count: dict[Any, int] = {}
    for row in mine:
        count[row["request_id"]] = count.get(row["request_id"], 0) + 1
    filled = 0
    for row in bare:
        found = [x for x in by_id.get(row["request_id"], []) if any(x[n] is not None for n in names)]
        if len(found) != 1 or count[row["request_id"]] != 1:
            continue
        row.update({n: found[0][n] for n in names})
        told = {"no_start": row["received"] or row["first_token"], "no_end": row["finished"]}
        row["flags"] = (*(f for f in row["flags"] or () if told.get(f) is None), "times_from_log")
        filled += 1
    if not filled:
        return requests, 0
    made = tables.to_pandas(tables.from_records([Request(**row) for row in mine], Request))
    made.attrs.update(requests.attrs)
    return made, filled


def _rows(requests: pd.DataFrame) -> list[dict[str, Any]]:
    table = tables.from_pandas(requests, Request, extra="drop")
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        for name in ("accepted_histogram", "flags"):
            if row[name] is not None:
                row[name] = tuple(row[name])
    return rows
