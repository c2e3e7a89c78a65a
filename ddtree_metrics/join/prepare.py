"""Steps and requests as flat arrays, cut into runs: stretches of one server process on one data-parallel rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.steps.columns import whole_sum
from ddtree_metrics.tables import flat_lists

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int16]
Halves = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

UNKNOWN = np.int64(-(2**62))
"""A time that is not known."""

FRESH = ("first", "restart", "boot", "prefill_between", "gap", "suppressed", "retraction", "clock_step")
"""What ``step_why`` says of a step before which a request may have been prefilled."""

SMALLER: dict[str, Any] = {"batch": np.int32, "lens": np.int32, "total": np.int32, "rank": np.int32}
"""What is kept in fewer bits."""


@dataclass(slots=True)
class StreamRun:
    """One run of one stream: where its steps stand in the order of streams."""

    stream: str
    dp_rank: int | None
    begin: int
    end: int


@dataclass(slots=True)
class StepColumns:
    """All steps, ordered by stream and then as logged.

    ``row`` is the place of each step in the table that was given. ``place[i]:place[i + 1]`` are the slots of step ``i`` in
    ``commit`` and ``accepted`` (-1: not known). ``whole`` says that the step is one step with one known commit length a slot;
    ``single`` that it is one step at all; ``lost`` that lines are missing before it; ``fresh`` that it follows a prefill or begins
    something.
    """

    row: Halves
    time: Ints
    batch: Halves
    place: Ints
    commit: Small
    accepted: Small
    whole: Bools
    single: Bools
    lost: Bools
    fresh: Bools
    total: Halves
    runs: list[StreamRun]
    ids: Any = None
    no_time: int = 0

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.time)

    @property
    def slots(self) -> int:
        """How many (request, step) places there are."""
        return int(self.place[-1]) if len(self.place) else 0


@dataclass(slots=True)
class Asked:
    """The requests that can be joined, ordered by when they can have entered the batch; times in us, -1 for unknown counts."""

    row: Ints
    received: Ints
    first: Ints
    finished: Ints
    entry: Ints
    prompt: Ints
    completion: Ints
    steps: Ints
    accepted: Ints
    tail: Ints
    longest: Ints
    retractions: Ints
    rank: Ints
    hist: list[tuple[int, ...] | None]
    aborted: Bools
    client: Bools
    log: Bools
    exact: Bools

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.row)

    def take(self, at: Ints) -> Asked:
        """Return some of them."""
        made: dict[str, Any] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            made[name] = [value[i] for i in at.tolist()] if isinstance(value, list) else value[at]
        return Asked(**made)


def _ints(column: Any, missing: int) -> Ints:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return np.asarray(pc.fill_null(column.cast(pa.int64()), missing)).astype(np.int64, copy=False)


def _floats(column: Any) -> npt.NDArray[np.float64]:
    return np.asarray(pc.fill_null(column.cast(pa.float64()), np.nan))


def stream_names(table: pa.Table | pa.RecordBatch) -> pa.Array:
    """Name the stream of each row: as given, else host, boot, process and data-parallel rank."""
    given = table.column("stream")
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
        given = given if isinstance(given, pa.Array) else pa.array([], pa.string())
    if given.null_count == 0:
        return given
    parts = [pc.fill_null(table.column(n).cast(pa.string()), "-") for n in ("host", "boot_id", "pid", "dp_rank")]
    made = pc.binary_join_element_wise(*parts, "|")
    made = pc.coalesce(given, made)
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made


def prepare_steps(batches: Iterable[pa.RecordBatch | pa.Table]) -> StepColumns:
    """Read what the join needs of each step, batch by batch, so that memory holds numbers only."""
    parts: dict[str, list[Any]] = {
        k: [] for k in ("time", "batch", "lens", "commit", "accepted", "whole", "single", "total", "code", "lost", "fresh", "cut", "rank")
    }
    names: dict[str, int] = {}
    ids: list[Any] = []
    for batch in batches:
        _prepare(batch, parts, names, ids)
    if not parts["time"]:
        none = np.zeros(0, np.int64)
        half, small, flag = none.astype(np.int32), none.astype(np.int16), none > 0
        return StepColumns(half, none, half, np.zeros(1, np.int64), small, small, flag, flag, flag, flag, half, [])
    flat = {k: np.concatenate(parts.pop(k)) for k in list(parts)}
    code = flat["code"]
    in_order = len(names) <= 1 or bool(np.all(code[1:] >= code[:-1]))
    order: Any = slice(None) if in_order else np.argsort(code, kind="stable")
    lens = flat.pop("lens")[order]
    place = np.zeros(len(lens) + 1, np.int64)
    np.cumsum(lens, out=place[1:])
    commit, accepted = flat.pop("commit"), flat.pop("accepted")
    if not in_order:
        old = np.empty(len(lens), np.int64)
        begins = np.empty(len(lens), np.int64)
        old[order] = lens
        begins[:] = np.cumsum(old) - old
        move = np.repeat(begins[order] - place[:-1], lens) + np.arange(int(place[-1]))
        commit, accepted = commit[move], accepted[move]
    time = flat["time"][order]
    unknown = time == UNKNOWN
    code, cut = code[order], flat["cut"][order]
    starts = np.flatnonzero(np.concatenate([[True], (code[1:] != code[:-1]) | cut[1:]]))
    by_code = {v: k for k, v in names.items()}
    ranks = flat["rank"][order]
    ends = np.append(starts[1:], len(code))
    runs = [
        StreamRun(by_code[int(code[a])], int(ranks[a]) if ranks[a] >= 0 else None, int(a), int(b))
        for a, b in zip(starts, ends, strict=True)
    ]
    if unknown.any():
        _fill_times(time, unknown, runs)
    has_ids = any(x is not None for x in ids)
    return StepColumns(
        row=np.arange(len(code), dtype=np.int32)[order],
        time=time,
        batch=flat["batch"][order],
        place=place,
        commit=commit,
        accepted=accepted,
        whole=flat["whole"][order],
        single=flat["single"][order],
        fresh=flat["fresh"][order],
        lost=flat["lost"][order],
        total=flat["total"][order],
        runs=runs,
        ids=[ids[i] for i in np.arange(len(code))[order].tolist()] if has_ids else None,
        no_time=int(unknown.sum()),
    )


def _prepare(batch: Any, parts: dict[str, list[Any]], names: dict[str, int], ids: list[Any]) -> None:
    n = batch.num_rows
    if not n:
        return
    time = _ints(batch.column("time_us"), int(UNKNOWN))
    if (time == UNKNOWN).any():
        own = _ints(batch.column("time"), int(UNKNOWN))
        time = np.where(time == UNKNOWN, own, time)
    values, offsets, valid = flat_lists(batch.column("commit_lens"))
    drafts, draft_offsets, has_drafts = flat_lists(batch.column("accepted_drafts"))
    lens = np.diff(offsets)
    size = _ints(batch.column("batch_size"), -1)
    size = np.where(size < 0, np.where(valid, lens, -1), size)
    one = _ints(batch.column("steps"), 1) == 1
    listed = valid & (lens == size)
    width = np.maximum(size, 1)
    total = _ints(batch.column("tokens"), -1)
    if (total < 0).any():
        mean = _floats(batch.column("avg_commit_len"))
        sums = np.concatenate([[0], np.cumsum(values)])
        from_list = np.where(valid, sums[offsets[1:]] - sums[offsets[:-1]], -1)
        from_mean = whole_sum(np.where(size > 0, mean, np.nan), size)
        total = np.where(total >= 0, total, np.where(valid, from_list, np.nan_to_num(from_mean, nan=-1.0).astype(np.int64)))
    if listed.all() and bool(np.all(size >= 1)):
        commit = _small(values)
        same = has_drafts.all() and np.array_equal(draft_offsets, offsets)
        accepted = _small(drafts) if same else _spread(width, drafts, draft_offsets, has_drafts)
    else:
        commit = _spread(width, values, offsets, listed)
        accepted = _spread(width, drafts, draft_offsets, has_drafts)
        single = np.flatnonzero((size == 1) & ~listed)
        begins = np.cumsum(width) - width
        commit[begins[single]] = _small(total[single])
        mean = _floats(batch.column("avg_accepted_drafts"))[single]
        good = ~np.isnan(mean) & (mean == np.rint(mean))
        missing = accepted[begins[single]] < 0
        accepted[begins[single[good & missing]]] = _small(np.nan_to_num(mean).astype(np.int64))[good & missing]
    whole = one & (size >= 1) & (listed | ((size == 1) & (total >= 0)))
    why = batch.column("step_why")
    lost = np.asarray(pc.fill_null(pc.is_in(why, pa.array(["suppressed"])), False))
    cut = np.asarray(pc.fill_null(pc.is_in(why, pa.array(["restart", "boot"])), False))
    fresh = np.asarray(pc.fill_null(pc.is_in(why, pa.array(FRESH)), False))
    encoded = stream_names(batch).dictionary_encode()
    codes = np.array([names.setdefault(k, len(names)) for k in encoded.dictionary.to_pylist()], np.int64)
    parts["code"].append(codes[np.asarray(encoded.indices)].astype(np.int32))
    for key, made in (
        ("time", time),
        ("batch", size),
        ("lens", width),
        ("commit", commit),
        ("accepted", accepted),
        ("whole", whole),
        ("total", total),
        ("lost", lost),
        ("cut", cut),
        ("fresh", fresh),
        ("single", one & (size >= 1)),
        ("rank", _ints(batch.column("dp_rank"), -1)),
    ):
        parts[key].append(made.astype(SMALLER[key], copy=False) if key in SMALLER else made)
    named = batch.column("request_ids")
    if named.null_count < n or ids:
        before = sum(len(x) for x in parts["time"]) - n
        ids.extend([None] * (before - len(ids)))
        ids.extend(named.to_pylist())


def _small(values: Any) -> Small:
    """Keep counts in 16 bits; what does not fit is no count of one step, and is not known."""
    return np.where((values >= 0) & (values < 2**15), values, -1).astype(np.int16)


def _spread(width: Ints, values: Any, offsets: Ints, valid: Bools) -> Small:
    """Lay lists out over ``width`` places a row; -1 where a list is missing or of another length."""
    out = np.full(int(width.sum()), -1, np.int16)
    good = valid & (np.diff(offsets) == width)
    begins = np.cumsum(width) - width
    n = width[good]
    if len(n):
        inside = np.arange(int(n.sum())) - np.repeat(np.cumsum(n) - n, n)
        out[np.repeat(begins[good], n) + inside] = _small(values[np.repeat(offsets[:-1][good], n) + inside])
    return out


def _fill_times(time: Ints, unknown: Bools, runs: list[StreamRun]) -> None:
    """Give steps without a time that of the step before them, so that their order is kept."""
    for run in runs:
        part, missing = time[run.begin : run.end], unknown[run.begin : run.end]
        if missing.all():
            part[:] = 0
            continue
        last = np.maximum.accumulate(np.where(missing, -1, np.arange(len(part))))
        first = int(np.flatnonzero(~missing)[0])
        part[:] = part[np.where(last < 0, first, last)]


def prepare_requests(requests: pd.DataFrame) -> tuple[Asked, dict[str, int]]:
    """Pick the requests that can be joined; also count those that cannot, by reason."""
    n = len(requests)

    def times(name: str) -> Ints:
        if name not in requests:
            return np.full(n, UNKNOWN)
        stamps = pd.to_datetime(requests[name], utc=True).astype("datetime64[us, UTC]")
        return np.where(stamps.isna(), UNKNOWN, stamps.astype("int64"))

    def counts(name: str) -> Ints:
        if name not in requests:
            return np.full(n, -1, np.int64)
        return pd.to_numeric(requests[name], errors="coerce").astype("Float64").fillna(-1).to_numpy(np.float64).astype(np.int64)

    def texts(name: str) -> list[Any]:
        return (
            [None] * n if name not in requests else [None if x is None or x is pd.NA or x != x else str(x) for x in requests[name].tolist()]
        )

    received, first, finished = times("received"), times("first_token"), times("finished")
    if "flags" in requests:
        flags = [() if x is None or x is pd.NA or isinstance(x, float) else tuple(x) for x in requests["flags"].tolist()]
    else:
        flags = [()] * n
    has = {flag: np.array([flag in f for f in flags], bool) for flag in ("duplicate", "end_before_start", "absurd_duration", "access_line")}
    known = (first != UNKNOWN) | (received != UNKNOWN)
    good = known & ~has["duplicate"] & ~has["end_before_start"] & ~has["access_line"]
    left_out = {
        "duplicate": int(has["duplicate"].sum()),
        "end_before_start": int((has["end_before_start"] & ~has["duplicate"]).sum()),
        "no_start": int((~known & ~has["duplicate"] & ~has["end_before_start"]).sum()),
    }
    entry = np.where(first != UNKNOWN, first, received)
    source = texts("source")
    if "accepted_histogram" in requests:
        hist = [
            None if x is None or x is pd.NA or isinstance(x, float) else tuple(int(i) for i in x)
            for x in requests["accepted_histogram"].tolist()
        ]
    else:
        hist = [None] * n
    steps, accepted, proposed = counts("verify_steps"), counts("accepted_drafts"), counts("proposed_drafts")
    longest = np.array([max(len(h) - 1, 0) if h else -1 for h in hist], np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where((steps > 0) & (proposed >= 0), -(-proposed // np.maximum(steps, 1)), 64)
    longest = np.where(longest >= 0, longest, each)
    completion, retractions = counts("completion_tokens"), np.maximum(counts("retractions"), 0)
    tail = np.where((steps >= 0) & (accepted >= 0) & (completion >= 0), 1 + retractions + steps + accepted - completion, -1)
    asked = Asked(
        row=np.arange(n),
        received=received,
        first=first,
        finished=finished,
        entry=entry,
        prompt=counts("prompt_tokens"),
        completion=completion,
        steps=steps,
        accepted=accepted,
        tail=np.where((tail >= 0) & (tail <= np.maximum(longest, 1)), tail, -1),
        longest=longest,
        retractions=retractions,
        rank=counts("dp_rank"),
        hist=hist,
        aborted=np.array([x == "abort" for x in texts("finish_reason")], bool),
        client=np.array([x == "client" for x in source], bool),
        log=np.array([x == "log" for x in source], bool),
        exact=first != UNKNOWN,
    )
    at = np.flatnonzero(good)
    order = at[np.lexsort((received[at], entry[at]))]
    return asked.take(order), left_out
