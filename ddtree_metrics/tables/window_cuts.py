"""Rows of a table that lie in a window of time."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics import tables as _tables
from ddtree_metrics.times import ALWAYS, Window


def rows_within(table: pa.Table, window: Window) -> pa.Table:
    """Keep the rows of a window; rows without a time stay."""
    ends = ("time", "time") if "time" in table.column_names else ("finished", "received") if "received" in table.column_names else None
    if ends is None or window == ALWAYS:
        return table
    last, first = (table[name].cast(pa.int64()) for name in ends)
    first = pc.coalesce(first, last)  # a request is in the window if any of it is
    low, high = window.bounds
    inside = pc.and_(pc.greater_equal(last, low), pc.less(first, high))
    return table.filter(pc.or_(pc.is_null(last), pc.fill_null(inside, False)))


def starts_within(servers: pa.Table, window: Window) -> pa.Table:
    """Keep the server starts of a window, and of each service the last one before it."""
    inside = rows_within(servers, window)
    before = servers.slice(0, 0) if window.since_us is None else rows_within(servers, Window(None, window.since_us))
    if not before.num_rows:
        return inside
    frame = _tables.to_pandas(before.select(["time", "host", "unit", "dp_rank"]))
    last = frame[frame["time"].notna()].sort_values("time", kind="stable").drop_duplicates(["host", "unit", "dp_rank"], keep="last")
    return pa.concat_tables([before.take(pa.array(sorted(last.index), pa.int64())), inside])
