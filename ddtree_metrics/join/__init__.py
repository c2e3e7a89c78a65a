"""Steps × requests: which request made a step, and at what context length.

``join_requests`` works on frames, ``join_batches`` on tables or files of any length. How requests are followed through the batch is in
``follow``; how their clock is compared with the log's, in ``clock``; when a match is trusted, in ``verify``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics import tables
from ddtree_metrics.errors import DDTreeWarning, JoinError
from ddtree_metrics.join.compact import compact_rows, lean_join
from ddtree_metrics.join.joining import MIN_TRUSTED, Joined, join_steps
from ddtree_metrics.records import DecodeBatch, Event, PrefillBatch, RequestStep, TreeStep
from ddtree_metrics.schema import arrow_schema
from ddtree_metrics.steps.conventions import Conventions
from ddtree_metrics.steps.given import takes
from ddtree_metrics.steps.intervals import COARSE_US

__all__ = ["MIN_TRUSTED", "Whole", "compact_rows", "join_batches", "join_requests"]

READ = [f.name for f in arrow_schema(TreeStep) if f.name not in ("where", "monotonic_us", "extra", "unit", "dialect", "time_flag")]
"""The columns of steps that a match reads."""

BATCH = 1 << 17
"""So many rows of a frame are joined at a time."""

LEAN_READ = ["time", "time_us", "stream", "host", "boot_id", "pid", "dp_rank", "where", "budget", "step_us", "step_why", "nodes"]
LEAN_READ += ["context_lens", "request_ids"]
"""The columns of steps that lean rows are made from."""


@takes("steps", fill=("requests", "prefill", "decode", "events"))
def join_requests(
    steps: pd.DataFrame,
    requests: pd.DataFrame,
    prefill: pd.DataFrame | None = None,
    *,
    decode: pd.DataFrame | None = None,
    events: pd.DataFrame | None = None,
    clock_offset_s: float | None = None,
) -> pd.DataFrame:
    """Find the request of each slot of each step, and its context length.

    Parameters
    ----------
    steps : DataFrame
        The table of steps (``log.steps``: copies from other ranks left out).
    requests : DataFrame
        What ``read_requests`` or ``requests_from_log`` gives.
    prefill : DataFrame, optional
        The table ``prefill``; helps to tell which rank served a request, and where a retracted one comes back.
    decode : DataFrame, optional
        The table ``decode``; gives an estimate of the context where no request is known.
    events : DataFrame, optional
        The table ``events``: lines lost and retractions.
    clock_offset_s : float, optional
        By how many seconds the requests' clock is ahead of the log's, if that is known; else it is estimated.

    Returns
    -------
    DataFrame
        One row a slot of a step, in the order of ``steps``; the columns of ``records.RequestStep``. ``matched`` says how the request
        was found: ``id`` (the line names it), ``alone``, ``slots`` (the batch was followed), ``shared`` (averages only), ``none``.
        ``context_len`` is
        prompt + what earlier steps committed, the tokens in the KV cache when the step began. ``trusted`` is true where the
        request's own counters agree with what it was given; every other row of a known request carries a reason in ``flags``.
        ``attrs["join"]`` sums it all up.

    Raises
    ------
    JoinError
        If columns that the join cannot do without are missing.

    Warns
    -----
    DDTreeWarning
        If nothing overlaps (both ranges are named), if less than ``MIN_TRUSTED`` of the checked requests reconcile, if lines are
        missing, or if the clocks had to be shifted.

    Notes
    -----
    A request joins the end of the batch when its prefill is done and keeps its place until it ends: on real captures the order was always
    that, and context was prompt + committed by earlier steps, without exception. The last step may commit more than the client gets
    (``reconciled`` > 0, at most one step's length).
    """
    _check_frames(steps, requests)
    table = tables.from_pandas(steps, TreeStep, extra="drop")

    def some(columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        return iter((table if columns is None else table.select(columns)).to_batches(max_chunksize=BATCH))

    return Whole(some, requests, prefill, decode=decode, events=events, clock_offset_s=clock_offset_s).rows()


class Whole:
    """A join of all steps of a log, whose rows can be had in full or lean.

    Parameters are as for ``join_requests``, but steps are a callable that gives their batches, or some columns of them, as often as it is
    called: only numbers are held.
    """

    def __init__(
        self,
        steps: Callable[[Sequence[str] | None], Iterator[pa.RecordBatch]],
        requests: pd.DataFrame,
        prefill: pd.DataFrame | None = None,
        *,
        decode: pd.DataFrame | None = None,
        events: pd.DataFrame | None = None,
        clock_offset_s: float | None = None,
        quiet: bool = False,
    ) -> None:
        self.steps = steps
        finest = (pc.max(batch.column("time_resolution_us")).as_py() or 0 for batch in steps(["time_resolution_us"]))
        # where the clock is coarse, the order of the lines tells what it does not
        read = [*READ, "where"] if any(us >= COARSE_US for us in finest) else READ
        self.joined = join_steps(
            lambda: steps(read),
            requests,
            None if prefill is None else tables.from_pandas(prefill, PrefillBatch, extra="drop"),
            None if decode is None else tables.to_pandas(tables.from_pandas(decode, DecodeBatch, extra="drop")),
            None if events is None else tables.from_pandas(events, Event, extra="drop"),
            clock_offset_s,
            _root(steps(READ)),
        )
        if not quiet:
            _warn(self.joined)

    def parts(self) -> Iterator[pa.Table]:
        """Yield what ``join_requests`` returns, a table for each batch of steps."""
        begin = 0
        for batch in self.steps(None):
            if batch.num_rows:
                yield self.joined.writer.table(tables.conform(batch, TreeStep, extra="drop").combine_chunks(), begin)
                begin += batch.num_rows

    def rows(self) -> pd.DataFrame:
        """Return what ``join_requests`` returns."""
        made = tables.to_pandas(tables.concat(self.parts(), RequestStep))
        made.attrs["join"] = self.joined.summary
        return made

    def lean(self) -> pd.DataFrame:
        """Return the rows in less memory; see ``lean_join``."""
        made = lean_join(self.joined.writer, lambda: self.steps(LEAN_READ))
        made.attrs["join"] = self.joined.summary
        return made


def join_batches(
    steps: Callable[[], Iterable[pa.RecordBatch]] | pa.Table | Any,
    requests: pd.DataFrame,
    prefill: pd.DataFrame | None = None,
    *,
    events: pd.DataFrame | None = None,
    clock_offset_s: float | None = None,
    summary: dict[str, Any] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Join a log of any length in two passes, the second of which yields the rows part by part.

    Parameters
    ----------
    steps : pyarrow.Table, pyarrow.dataset.Dataset, or callable
        The steps, in the order of their lines; a callable must give the same batches each time it is called.
    requests, prefill, events, clock_offset_s
        As for ``join_requests``.
    summary : dict, optional
        Filled with what ``attrs["join"]`` of ``join_requests`` holds.

    Yields
    ------
    pyarrow.RecordBatch
        Rows with the columns of ``records.RequestStep``, a batch for each batch of steps.

    Notes
    -----
    Memory holds some 60 bytes a step (numbers only), whatever else the steps carry.
    """
    again = _batches(steps)
    joined = join_steps(
        again,
        requests,
        None if prefill is None else tables.from_pandas(prefill, PrefillBatch, extra="drop"),
        None,
        None if events is None else tables.from_pandas(events, Event, extra="drop"),
        clock_offset_s,
        _root(again(), most=64),
    )
    if summary is not None:
        summary.update(joined.summary)
    _warn(joined)
    begin = 0
    for batch in again():
        if batch.num_rows:
            yield from joined.writer.table(tables.conform(batch, TreeStep, extra="drop"), begin).to_batches()
            begin += batch.num_rows


def _batches(steps: Any) -> Callable[[], Iterator[pa.RecordBatch]]:
    if isinstance(steps, pa.Table):
        return lambda: iter(steps.to_batches(max_chunksize=1 << 18))
    if hasattr(steps, "to_batches"):
        return lambda: iter(steps.to_batches())
    if callable(steps):
        return lambda: iter(steps())
    raise JoinError("steps must be a table, a dataset, or a callable that gives record batches")


def _root(batches: Iterable[pa.RecordBatch], most: int | None = None) -> int | None:
    counts = Conventions()
    for i, batch in enumerate(batches):
        if most is not None and i >= most:
            break
        counts.feed(tables.conform(batch, TreeStep, extra="drop").to_batches()[0] if batch.num_rows else batch)
    return counts.root


def _check_frames(steps: pd.DataFrame, requests: pd.DataFrame) -> None:
    if not {"time", "time_us"} & set(steps.columns) and len(steps):
        raise JoinError("steps have no column time (or time_us); pass the table of steps of a log")
    if len(requests) and not {"received", "first_token"} & set(requests.columns):
        raise JoinError(
            f"requests have no column received or first_token, only {', '.join(map(str, requests.columns[:8]))}; "
            f"read them with read_requests"
        )


def _warn(joined: Joined) -> None:
    for message in joined.warnings:
        warnings.warn(message, DDTreeWarning, stacklevel=4)
