"""Step time by context for logs of any size: histograms that are made batch by batch and merge.

Step times go into buckets of 1 % width by logarithm, so a quantile is wrong by less than 0.5 %; counts and sums are exact. The
histogram of a file, a day or a host is a few thousand rows, and the histogram of many is their sum. Nothing here needs a window
function, a sort, or the values in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ddtree_metrics.errors import MetricError
from ddtree_metrics.metrics.context import BY_CONTEXT_COLUMNS, bin_label
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.frames import Floats, Ints

GROWTH = 1.01
"""Each bucket is this much wider than the one before."""

BUCKETS = 2790
"""Buckets from 1 us to 10 days."""

MAX_BINS = 4096

SCHEMA = pa.schema(
    [
        pa.field("bin", pa.int32(), metadata={"meaning": "Bin of context length, from 0."}),
        pa.field("bucket", pa.int32(), metadata={"meaning": "floor(ln(step_us) / ln(1.01)); -1: steps without a step time."}),
        pa.field("n", pa.int64(), metadata={"meaning": "Rows."}),
        pa.field("sum_us", pa.float64(), metadata={"meaning": "Sum of their step times.", "unit": "us"}),
        pa.field("n_tokens", pa.int64(), metadata={"meaning": "Rows with a token count."}),
        pa.field("sum_tokens", pa.float64(), metadata={"meaning": "Sum of their tokens.", "unit": "tokens"}),
    ]
)

_EDGES = b"ddtree_metrics.edges"
_WIDTH = b"ddtree_metrics.width"
_LEFT_OUT = b"ddtree_metrics.rows_without_context"


class _Histogram:
    """Dense counts, grown as bins turn up."""

    def __init__(self) -> None:
        self.n = np.zeros((0, BUCKETS + 1), dtype=np.int64)
        self.us = np.zeros((0, BUCKETS + 1))
        self.n_tokens = np.zeros((0, BUCKETS + 1), dtype=np.int64)
        self.tokens = np.zeros((0, BUCKETS + 1))
        self.left_out = 0

    def grow(self, bins: int) -> None:
        """Make room for so many bins."""
        more = bins - len(self.n)
        if bins > MAX_BINS:
            raise MetricError(f"a histogram of {bins} bins of context is too fine; use a larger width than this, at most {MAX_BINS} bins")
        if more > 0:
            for name in ("n", "us", "n_tokens", "tokens"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros((more, BUCKETS + 1), dtype=old.dtype)]))

    def add(self, place: Ints, us: Floats, tokens: Floats) -> None:
        """Count rows: their bin (-1: none), step time (NaN: none) and tokens (NaN: unknown)."""
        used = place >= 0
        self.left_out += int(len(place) - used.sum())
        place, us, tokens = place[used], us[used], tokens[used]
        if not len(place):
            return
        self.grow(int(place.max()) + 1)
        key = place * (BUCKETS + 1) + buckets(us)
        size = self.n.size
        has = np.isfinite(tokens)
        self.n += np.bincount(key, minlength=size).reshape(self.n.shape)
        self.us += np.bincount(key, weights=np.nan_to_num(us), minlength=size).reshape(self.n.shape)
        self.n_tokens += np.bincount(key[has], minlength=size).reshape(self.n.shape)
        self.tokens += np.bincount(key[has], weights=tokens[has], minlength=size).reshape(self.n.shape)

    def to_arrow(self, width: float | None, edges: Sequence[float] | None) -> pa.Table:
        """Return the rows that are not empty."""
        place, bucket = np.nonzero(self.n)
        columns = [place, bucket.astype(np.int64) - 1]
        columns += [getattr(self, name)[place, bucket] for name in ("n", "us", "n_tokens", "tokens")]
        arrays = [pa.array(c, type=f.type) for c, f in zip(columns, SCHEMA, strict=True)]
        return described(pa.Table.from_arrays(arrays, schema=SCHEMA), width, edges, self.left_out)


def described(table: pa.Table, width: float | None, edges: Sequence[float] | None, left_out: int) -> pa.Table:
    """Return a histogram that says its bins, and how many rows have none of them, in its metadata."""
    notes = {_LEFT_OUT: str(left_out).encode()}
    if edges is not None:
        notes[_EDGES] = ",".join(repr(float(e)) for e in edges).encode()
    else:
        notes[_WIDTH] = repr(float(width if width is not None else 0)).encode()
    return table.replace_schema_metadata(notes)


def buckets(us: Floats) -> Ints:
    """Return the column of each step time in the dense table: 0 without a step time, else its bucket and one."""
    with np.errstate(invalid="ignore", divide="ignore"):
        made = np.floor(np.log(us) / np.log(GROWTH))
    good = np.isfinite(made)
    return np.where(good, np.clip(np.where(good, made, 0), 0, BUCKETS - 1) + 1, 0).astype(np.int64)


def context_histogram(
    batches: Iterable[pa.RecordBatch | pa.Table],
    *,
    requests: pd.DataFrame | None = None,
    width: float = 4096,
    edges: Sequence[float] | None = None,
) -> pa.Table:
    """Count steps by context and step time, batch by batch, in memory that does not grow with the log.

    Parameters
    ----------
    batches : iterable of RecordBatch or Table
        Request steps (``context_len``, ``step_us``, ``tokens``); or step lines in the order of time (``time_us``, ``step_us``,
        ``tokens``, ``tokens_cum``) together with `requests`. Other columns are not looked at. From a Parquet file,
        ``pyarrow.parquet.ParquetFile(path, pre_buffer=False).iter_batches(columns=...)`` keeps memory small; with buffering
        ahead Arrow holds the whole file.
    requests : pandas.DataFrame, optional
        Requests of the same host, to give step lines their context: ``first_token`` (or ``received``), ``finished``,
        ``prompt_tokens``. Only steps during which exactly one request ran are counted, the others are left out.
    width : float
        Width of the bins in tokens.
    edges : sequence of float, optional
        Rising bin edges instead of equal widths; contexts outside are left out.

    Returns
    -------
    pyarrow.Table
        ``SCHEMA``; the bins and the number of rows left out stand in the metadata.

    Raises
    ------
    MetricError
        If neither a context nor requests are there, or the bins are of no use.
    """
    limits = None
    if edges is not None:
        limits = np.asarray([float(e) for e in edges])
        if len(limits) < 2 or not (np.diff(limits) > 0).all():
            raise MetricError(f"bin edges must be at least two and rise, not {list(edges)[:10]}")
    elif not width > 0:
        raise MetricError(f"the width of bins must be positive, not {width}")
    table = _Histogram()
    alone = _Alone(requests) if requests is not None else None
    for batch in batches:
        names = batch.schema.names
        if "context_len" in names:
            context, us = _floats(batch, "context_len"), _floats(batch, "step_us")
        elif alone is not None:
            context, us = alone.contexts(batch)
        else:
            raise MetricError("step lines hold no context length; give requests=, or join steps and requests first")
        with np.errstate(invalid="ignore"):
            us = np.where(us > 0, us, np.nan)
            if limits is not None:
                place = np.searchsorted(limits, context, side="right") - 1.0
                place[(place >= len(limits) - 1) | ~np.isfinite(context)] = -1
            else:
                place = np.floor(context / width)
                place[~np.isfinite(place) | (place < 0)] = -1
        table.add(place.astype(np.int64), us, _floats(batch, "tokens"))
    return table.to_arrow(width, edges)


def _floats(batch: pa.RecordBatch | pa.Table, name: str) -> Floats:
    """Read a column of a batch as float64, null and missing as NaN."""
    if name not in batch.schema.names:
        return np.full(batch.num_rows, np.nan)
    column = batch.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        column = column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)


class _Alone:
    """Gives step lines their context where exactly one request ran, carrying over what each request had at its first step."""

    def __init__(self, requests: pd.DataFrame) -> None:
        missing = [c for c in ("finished", "prompt_tokens") if c not in requests.columns]
        if missing:
            raise MetricError(f"requests need {' and '.join(missing)} to give steps their context")
        start = cols.instants(requests["first_token"]) if "first_token" in requests.columns else np.full(len(requests), np.nan)
        if "received" in requests.columns:
            start = np.where(np.isnan(start), cols.instants(requests["received"]), start)
        end, prompt = cols.instants(requests["finished"]), cols.numeric(requests, "prompt_tokens")
        good = np.isfinite(start) & np.isfinite(end) & np.isfinite(prompt)
        order = np.flatnonzero(good)[np.argsort(start[good], kind="stable")]
        self.start, self.end, self.prompt = start[order], end[order], prompt[order]
        self.ends = np.sort(self.end)
        best = np.maximum.accumulate(self.end) if len(order) else self.end
        owner = np.where(self.end == best, np.arange(len(order)), 0)
        self.latest = np.maximum.accumulate(owner) if len(order) else owner
        self.base = np.full(len(order), np.nan)

    def contexts(self, batch: pa.RecordBatch | pa.Table) -> tuple[Floats, Floats]:
        """Return context and step time of each row, NaN where they are not known."""
        stamps, us = _floats(batch, "time_us"), _floats(batch, "step_us").copy()
        before = _floats(batch, "tokens_cum") - _floats(batch, "tokens")
        context = np.full(len(stamps), np.nan)
        if not len(self.start):
            return context, us
        begun = np.searchsorted(self.start, stamps, side="right")
        active = begun - np.searchsorted(self.ends, stamps, side="left")
        single = (active == 1) & np.isfinite(stamps) & np.isfinite(before)
        rows = np.flatnonzero(single)
        who = self.latest[begun[rows] - 1]
        seen, first = np.unique(who, return_index=True)
        new = np.isnan(self.base[seen])
        self.base[seen[new]] = before[rows[first[new]]]
        context[rows] = self.prompt[who] + before[rows] - self.base[who]
        with np.errstate(invalid="ignore"):
            us[rows] = np.where(stamps[rows] - us[rows] >= self.start[who], us[rows], np.nan)
        return context, us


def bucket_quantiles(timed: pd.DataFrame, shares: tuple[float, ...]) -> list[float]:
    """Return quantiles in ms of rows (``bucket``, ``n``) in order, between the two nearest ranks as usual.

    Each value is the middle of its bucket.
    """
    upto = np.cumsum(timed["n"].to_numpy(dtype=np.int64))
    middle = GROWTH ** (timed["bucket"].to_numpy(dtype=float) + 0.5) / 1000.0
    made = []
    for share in shares:
        rank = share * (upto[-1] - 1)
        low, high = (middle[int(np.searchsorted(upto, r, side="right"))] for r in (np.floor(rank), np.ceil(rank)))
        made.append(float(low + (rank - np.floor(rank)) * (high - low)))
    return made


def merge_histograms(*tables: pa.Table) -> pa.Table:
    """Add histograms of the same bins.

    Parameters
    ----------
    *tables : pyarrow.Table
        What `context_histogram` made.

    Returns
    -------
    pyarrow.Table

    Raises
    ------
    MetricError
        If there are none, or their bins differ.
    """
    if not tables:
        raise MetricError("there are no histograms to merge")
    notes = [t.schema.metadata or {} for t in tables]
    if len({(n.get(_EDGES), n.get(_WIDTH)) for n in notes}) > 1:
        raise MetricError("histograms of different bins cannot be merged; make them with the same width or edges")
    whole = pa.concat_tables([t.cast(SCHEMA) for t in tables])
    added = whole.group_by(["bin", "bucket"]).aggregate([(c, "sum") for c in ("n", "sum_us", "n_tokens", "sum_tokens")])
    added = added.select(["bin", "bucket", "n_sum", "sum_us_sum", "n_tokens_sum", "sum_tokens_sum"]).rename_columns(SCHEMA.names)
    left_out = sum(int(n.get(_LEFT_OUT, b"0")) for n in notes)
    metadata = {**notes[0], _LEFT_OUT: str(left_out).encode()}
    return added.cast(SCHEMA).sort_by([("bin", "ascending"), ("bucket", "ascending")]).replace_schema_metadata(metadata)


def summarise_histogram(table: pa.Table) -> pd.DataFrame:
    """Make the table of `by_context` from a histogram, as far as a histogram goes.

    Parameters
    ----------
    table : pyarrow.Table
        What `context_histogram` or `merge_histograms` made.

    Returns
    -------
    pandas.DataFrame
        The columns of `by_context`. Means are exact, quantiles within 0.5 %; there are no requests in a histogram, so there are
        no intervals and no mean over requests, and ``reason`` says so.
    """
    notes = table.schema.metadata or {}
    edges = np.array([float(e) for e in notes[_EDGES].split(b",")]) if _EDGES in notes else None
    width = float(notes.get(_WIDTH, b"0"))
    frame = table.to_pandas()
    rows: list[dict[str, Any]] = []
    for number, part in frame.groupby("bin", sort=True):
        place = int(str(number))
        low, high = (float(edges[place]), float(edges[place + 1])) if edges is not None else (place * width, (place + 1) * width)
        row: dict[str, Any] = dict.fromkeys(BY_CONTEXT_COLUMNS, np.nan)
        timed = part[part["bucket"] >= 0].sort_values("bucket")
        tokens, counted = float(part["sum_tokens"].sum()), int(part["n_tokens"].sum())
        row |= {"bin": bin_label(low, high), "low": low, "high": high, "x_mean": (low + high) / 2, "rows": int(part["n"].sum())}
        row |= {"steps": row["rows"], "timed_steps": int(timed["n"].sum()), "requests": 0, "prompts": 0, "interval_from": None}
        reasons = ["no interval: a histogram holds no requests"]
        if row["timed_steps"]:
            row["step_time_mean_ms"] = float(timed["sum_us"].sum()) / row["timed_steps"] / 1000.0
            row["step_time_p50_ms"], row["step_time_p95_ms"] = bucket_quantiles(timed, (0.5, 0.95))
        else:
            reasons.append("no step of this bin has a step time")
        if counted:
            row["tokens_per_step_pooled"] = tokens / counted
        if row["timed_steps"] and counted:
            row["tok_per_s"] = 1000.0 * row["tokens_per_step_pooled"] / row["step_time_mean_ms"]
        row["reason"] = "; ".join(reasons)
        rows.append(row)
    made = pd.DataFrame(rows, columns=list(BY_CONTEXT_COLUMNS))
    made["interval_from"] = made["interval_from"].astype(object).where(made["interval_from"].notna(), None)
    made.attrs = {
        "by": "context_len",
        "level": None,
        "rows_without_axis": int(notes.get(_LEFT_OUT, b"0")),
        "rows_outside": 0,
        "rows_without_time": int(frame.loc[frame["bucket"] < 0, "n"].sum()),
        "reason": None if len(made) else "the histogram is empty",
    }
    return made
