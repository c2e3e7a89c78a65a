"""Match requests with steps: the clock, the stream of each request, those alone, those in slots."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ddtree_metrics.join.alone import match_alone
from ddtree_metrics.join.batch import Tolerance
from ddtree_metrics.join.clock import Offset, proposals, refined, same_clock, whole_quarter
from ddtree_metrics.join.follow import Follower
from ddtree_metrics.join.prepare import UNKNOWN, Asked, Bools, Ints, StepColumns, StreamRun
from ddtree_metrics.join.verify import Matched, SegmentArrays, lay_out

CLIENT_START_US = 100_000
"""A client may see the first token so much later than the step lines begin."""

SERVER_START_US = 30_000
"""A server may state the first token (received + latency) so much later than the prefill's end."""

END_US = 100_000
"""A step line may be logged so much later than the end that the server states for its request (71 ms were seen)."""


@dataclass(slots=True)
class OtherLines:
    """What else the log says: prefills and retractions, by stream."""

    prefill_time: dict[str, Ints] = field(default_factory=dict)
    prefill_length: dict[str, Ints] = field(default_factory=dict)
    prefill_seqs: dict[str, Ints] = field(default_factory=dict)
    retracted: dict[str, Ints] = field(default_factory=dict)
    retracted_anywhere: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    notices: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    jumps: list[tuple[int, int]] = field(default_factory=list)

    def all_prefills(self) -> tuple[Ints, Ints]:
        """Return times and lengths of all prefills, in order; the length is -1 where it is of several requests."""
        if not self.prefill_time:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        times = np.concatenate(list(self.prefill_time.values()))
        lengths = np.concatenate(list(self.prefill_length.values()))
        seqs = np.concatenate(list(self.prefill_seqs.values()))
        order = np.argsort(times, kind="stable")
        return times[order], np.where(seqs == 1, lengths, -1)[order]


@dataclass(slots=True)
class Result:
    """The match, and how it was come by."""

    matched: Matched
    offset: Offset
    flags: dict[int, set[str]]
    without_stream: int = 0


POLICIES = ("length", "kept", "newest")
"""Who is retracted, and the order after it: least output, the rest sorted by output; least output, order kept; the newest."""


def match(
    steps: StepColumns, asked: Asked, side: OtherLines, offset_us: int | None, relative: Bools, resolution_us: int
) -> tuple[Result, Asked]:
    """Match requests with the slots of steps.

    Parameters
    ----------
    s, a : StepColumns, Asked
        Steps and requests.
    side : OtherLines
        Prefills and retractions.
    offset_us : int or None
        By how much the requests' clock is ahead, if that is known.
    relative : ndarray of bool
        Which requests count from an unknown start.
    resolution_us : int
        The smallest step of the log's clock.

    Returns
    -------
    Result
    Asked
        The requests on the log's clock, in the order of their entry: the result numbers these.

    Notes
    -----
    The log's own lines have the log's clock. Other requests are tried with the offset 0 first, and have another one only if the whole
    match then reconciles clearly more of them.
    """
    if offset_us is not None:
        lag = 25_000 if asked.client.any() else 10_000
        return _matched_at(steps, asked, side, Offset(us=offset_us, uncertainty_us=0, how="given", lag_us=lag), resolution_us)
    times, lengths = side.all_prefills()
    others = asked if not asked.log.any() else asked.take(np.flatnonzero(~asked.log))
    zero = _matched_at(steps, asked, side, same_clock(steps, others if len(others) else asked, times), resolution_us)
    if not len(others) or not len(steps):
        return zero
    best, agree = zero, _reconciling(zero)
    checked = int(zero[0].matched.has_reconciled.sum())
    if agree >= ENOUGH * checked and agree >= min(10, 0.5 * len(asked)) and not relative.any():
        return best
    most, enough = agree, max(agree + 3, 1.5 * agree)
    for offset in proposals(steps, others, times, lengths, relative if len(others) == len(asked) else relative[~asked.log]):
        made = _matched_at(steps, asked, side, offset, resolution_us)
        n = _reconciling(made)
        few = len(others) <= 3 and n == len(asked) and (bool(relative.any()) or whole_quarter(offset.us))
        if n > most and (n >= enough or few):
            best, most = made, n
    if best is zero:
        if not agree and zero[0].offset.how != "not checked":
            zero[0].offset.how = "not found"
        return best
    made = _matched_at(steps, asked, side, refined(steps, others, best[0].offset), resolution_us)
    return made if _reconciling(made) >= most else best


ENOUGH = 0.9
"""If such a share of the checked requests reconcile on the same clock, no other is looked for."""


def _reconciling(made: tuple[Result, Asked]) -> int:
    return int(made[0].matched.fits.sum())


def _matched_at(steps: StepColumns, asked: Asked, side: OtherLines, offset: Offset, resolution_us: int) -> tuple[Result, Asked]:
    """Match with one offset between the clocks."""
    a = asked.take(np.arange(len(asked)))
    moved = ~a.log if offset.how != "given" or not a.log.all() else np.ones(len(a), bool)
    for times in (a.received, a.first, a.finished, a.entry):
        np.subtract(times, offset.us, out=times, where=(times != UNKNOWN) & moved)
    order = np.lexsort((a.received, a.entry))
    if not np.array_equal(order, np.arange(len(a))):
        a = a.take(order)
    unsure = min(offset.uncertainty_us or 0, 100_000) if offset.us else 0
    coarse = resolution_us if resolution_us >= 1000 else 0
    tol = Tolerance(
        start_us=(CLIENT_START_US if a.client.any() else SERVER_START_US) + unsure + coarse,
        end_us=END_US + unsure + coarse,
        tie_us=(60_000 if a.client.any() else 2_000) + coarse,
        lag_us=offset.lag_us + coarse,
        coarse_us=coarse,
    )
    best: Result | None = None
    for policy in POLICIES:
        made = _attempt(steps, a, side, tol, offset, policy)
        if best is None or made.matched.trusted.sum() > best.matched.trusted.sum():
            best = made
        if not any("retracted" in f for f in made.flags.values()) or bool(made.matched.trusted[made.matched.has_reconciled].all()):
            break
    assert best is not None
    return best, a


def _attempt(steps: StepColumns, asked: Asked, side: OtherLines, tol: Tolerance, offset: Offset, policy: str) -> Result:
    flags: dict[int, set[str]] = {}
    for begin, end in side.jumps:
        last = np.where(asked.finished != UNKNOWN, asked.finished, asked.entry)
        first = np.where(asked.received != UNKNOWN, asked.received, asked.entry)
        for r in np.flatnonzero((first <= end + 1_000_000) & (last >= begin - 1_000_000)).tolist():
            flags.setdefault(r, set()).add("clock_jump")
    allotted, lost = _allot(steps, asked, side, tol, flags)
    pieces: list[tuple[Any, ...]] = []
    ends: dict[int, tuple[int, int]] = {}
    for run, which in zip(steps.runs, allotted, strict=True):
        _match_run(steps, asked, run, which, side, tol, pieces, ends, flags, policy)
    matched = lay_out(steps, asked, _pieces(pieces, ends), flags, tol)
    return Result(matched, offset, flags, lost)


def _pieces(parts: list[tuple[Any, ...]], ends: dict[int, tuple[int, int]]) -> SegmentArrays:
    if not parts:
        none = np.zeros(0, np.int64)
        return SegmentArrays(none, none, none, none, none, none, ends)
    request, begin, end, slot, part, again = (np.concatenate([np.asarray(p[i], np.int64) for p in parts]) for i in range(6))
    return SegmentArrays(request, begin, end, slot, part, again, ends)


def _allot(steps: StepColumns, asked: Asked, side: OtherLines, tol: Tolerance, flags: dict[int, set[str]]) -> tuple[list[Ints], int]:
    """Give each request to the run that served it; those whose rank cannot be told are left out."""
    runs = steps.runs
    out: list[list[int]] = [[] for _ in runs]
    can = (asked.completion != 0) & (asked.completion != 1) & (asked.steps != 0)
    entry = asked.entry
    end = np.where(asked.finished != UNKNOWN, asked.finished, entry)
    spans = [(int(steps.time[r.begin : r.end].min()), int(steps.time[r.begin : r.end].max())) for r in runs]
    if len(runs) == 1:
        lo, hi = spans[0]
        good = can & (entry <= hi + tol.start_us) & (end >= lo - tol.end_us)
        return [np.flatnonzero(good)], 0
    without = 0
    begins = np.array([x[0] for x in spans])
    finishes = np.array([x[1] for x in spans])
    for r in np.flatnonzero(can).tolist():
        near = np.flatnonzero((begins - tol.start_us <= end[r]) & (finishes + tol.start_us >= entry[r]))
        if asked.rank[r] >= 0:
            ranked = [i for i in near.tolist() if runs[i].dp_rank in (None, int(asked.rank[r]))]
            near = np.array(ranked, np.int64)
        if len(near) > 1:
            near = _one_of(steps, asked, side, r, near, spans, tol)
        if len(near) == 1:
            out[int(near[0])].append(r)
        elif len(near) > 1:
            flags.setdefault(r, set()).add("rank_unknown")
            without += 1
    return [np.array(x, np.int64) for x in out], without


def _one_of(steps: StepColumns, asked: Asked, side: OtherLines, r: int, near: Ints, spans: list[tuple[int, int]], tol: Tolerance) -> Ints:
    """Choose among runs that were there at the time: by steps, by the length of a prefill, by overlap."""
    first, last = int(asked.entry[r]), int(asked.finished[r] if asked.finished[r] != UNKNOWN else asked.entry[r])
    fits, prefilled = [], []
    for i in near.tolist():
        run = steps.runs[i]
        time = steps.time[run.begin : run.end]
        b, e = np.searchsorted(time, [first - (tol.start_us if asked.client[r] else 0), last], side="right")
        n = int(e - b)
        if asked.steps[r] > 0:
            if abs(n - int(asked.steps[r])) <= 1:
                fits.append(i)
        elif n > 0:
            fits.append(i)
        times, lengths = side.prefill_time.get(run.stream), side.prefill_length.get(run.stream)
        if times is not None and lengths is not None and asked.prompt[r] >= 0:
            x, y = np.searchsorted(times, [first - tol.start_us - 50_000, first + 50_000])
            if int(asked.prompt[r]) in set(lengths[x:y].tolist()):
                prefilled.append(i)
    for some in ([i for i in prefilled if i in fits], prefilled, fits):
        if len(some) == 1:
            return np.array(some, np.int64)
    apart = all(spans[i][1] < spans[j][0] or spans[j][1] < spans[i][0] for i in near.tolist() for j in near.tolist() if i < j)
    if apart:  # runs one after the other: the one it overlaps most
        over = [min(last, spans[i][1]) - max(first, spans[i][0]) for i in near.tolist()]
        return np.array([near[int(np.argmax(over))]], np.int64)
    return near


def _match_run(
    steps: StepColumns,
    asked: Asked,
    run: StreamRun,
    which: Ints,
    side: OtherLines,
    tol: Tolerance,
    pieces: list[tuple[Any, ...]],
    ends: dict[int, tuple[int, int]],
    flags: dict[int, set[str]],
    policy: str,
) -> None:
    """Match one run: first those alone, then the stretches between them."""
    if run.end <= run.begin:
        return
    # a coarse clock does not tell where a request begins: there the batch is followed from line to line
    alone, begin, end = match_alone(steps, asked, run, which[:0] if tol.coarse_us else which, tol)
    if len(alone):
        zero = np.zeros(len(alone), np.int64)
        pieces.append((alone, begin, end, zero, zero, zero))
    rest = np.setdiff1d(which, alone, assume_unique=True)
    rest = rest[np.argsort(rest, kind="stable")]
    free = np.ones(run.end - run.begin + 1, bool)
    mark = np.zeros(run.end - run.begin + 2, np.int32)
    np.add.at(mark, begin - run.begin, 1)
    np.add.at(mark, end - run.begin, -1)
    taken = np.cumsum(mark, dtype=np.int32)[: run.end - run.begin] > 0
    free[:-1] = ~taken & steps.single[run.begin : run.end]
    free[-1] = False
    edge = np.flatnonzero(np.diff(np.concatenate([[False], free])))
    stretches = edge.reshape(-1, 2) + run.begin
    if not len(stretches):
        return
    retracted = np.concatenate([side.retracted.get(run.stream, np.zeros(0, np.int64)), side.retracted_anywhere])
    retracted.sort()
    none = np.zeros(0, np.int64)
    prefills = (side.prefill_time.get(run.stream, none), side.prefill_length.get(run.stream, none), side.prefill_seqs.get(run.stream, none))
    entry = asked.entry[rest]
    until = np.where(asked.finished[rest] != UNKNOWN, asked.finished[rest], entry)
    joined: set[int] = set()
    for x, y in stretches.tolist():
        lo, hi = int(steps.time[x:y].min()), int(steps.time[x:y].max())
        near = (
            rest[(entry <= hi + tol.start_us) & (until >= lo - tol.end_us)] if len(rest) < 4096 else _near(rest, entry, until, lo, hi, tol)
        )
        mine = [r for r in near.tolist() if r not in joined]
        if not mine:
            continue
        f = Follower(steps, asked, x, y, mine, tol, retracted, prefills, side.notices, policy)
        f.go()
        pieces.append((f.segments.request, f.segments.begin, f.segments.end, f.segments.slot, f.segments.part, f.segments.again))
        joined.update(f.segments.request)
        ends.update(f.ends)
        for r, own in f.flags.items():
            flags.setdefault(r, set()).update(own)


def _near(rest: Ints, entry: Ints, until: Ints, lo: int, hi: int, tol: Tolerance) -> Ints:
    """Pick those that can have run in a stretch, from many ordered by entry."""
    j = int(np.searchsorted(entry, hi + tol.start_us, side="right"))
    reach = np.maximum.accumulate(until[:j]) if j else until[:0]
    i = int(np.searchsorted(reach, lo - tol.end_us, side="left"))
    part = slice(i, j)
    return rest[part][until[part] >= lo - tol.end_us]
