"""Whether what a request was given is what it says it got."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from ddtree_metrics.join.batch import Tolerance
from ddtree_metrics.join.prepare import UNKNOWN, Asked, Bools, Ints, StepColumns
from ddtree_metrics.steps.intervals import COARSE_US

UNSURE = {
    "lost_lines",
    "left_early",
    "order_ambiguous",
    "cut",
    "retraction_guessed",
    "ended_after",
    "same_id",
    "window_line",
    "clock_jump",
    "retraction_missed",
}
"""Flags of a request that is not trusted, whatever its numbers say."""

ACCIDENT = 1e-3
"""A histogram that the steps of somebody else would match less often than this is proof of itself."""

NEARBY = 8
"""A move to another slot is tried so many steps sooner and later."""

Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class Matched:
    """Which request made which slot: arrays over all slots (``request`` -1: nobody known), and what is known of each request.

    ``fits`` says that its numbers reconcile with the steps and its times agree with them; ``trusted`` that nothing else is in doubt either.
    """

    request: npt.NDArray[np.int32]
    index: npt.NDArray[np.int32]
    generated: npt.NDArray[np.int32]
    begin: Ints
    last: Ints
    count: Ints
    committed: Ints
    reconciled: Ints
    has_reconciled: Bools
    fits: Bools
    trusted: Bools
    flags: dict[int, set[str]]


@dataclass(slots=True)
class SegmentArrays:
    """Segments of all followers as arrays."""

    request: Ints
    begin: Ints
    end: Ints
    slot: Ints
    part: Ints
    again: Ints
    ends: dict[int, tuple[int, int]]


def lay_out(steps: StepColumns, asked: Asked, pieces: SegmentArrays, flags: dict[int, set[str]], tol: Tolerance) -> Matched:
    """Lay segments out over the slots, number the steps of each request, and check every request.

    Parameters
    ----------
    s, a : StepColumns, Asked
        Steps and requests; the requests' times are already on the log's clock.
    pieces : SegmentArrays
        Who had which slot when.
    flags : dict of int to set of str
        What is doubtful about a request already; more is added.
    tol : Tolerance
        How far times may be off.

    Returns
    -------
    Matched
    """
    n = len(asked)
    order = np.lexsort((pieces.begin, pieces.request))
    sums = Sums.of(n)
    slots = steps.slots
    out = tuple(np.full(slots, -1, np.int32) for _ in range(3))
    lengths = (pieces.end - pieces.begin)[order]
    cum = np.cumsum(lengths)
    req = pieces.request[order]
    at = 0
    while at < len(order):  # some requests at a time, so that memory stays small
        stop = int(np.searchsorted(cum, (cum[at - 1] if at else 0) + CHUNK, side="right"))
        stop = max(stop, at + 1)
        stop = int(np.searchsorted(req, req[stop - 1], side="right"))
        _lay_out_some(steps, asked, pieces, order[at:stop], sums, out)
        at = stop
    for r in np.flatnonzero((sums.count > 0) & (sums.again != asked.retractions) & ~(asked.client & (asked.retractions == 0))).tolist():
        flags.setdefault(r, set()).add("retraction_missed")
    trusted, fits, reconciled, has = _check(steps, asked, sums, out[0], flags, tol, pieces)
    return Matched(out[0], out[1], out[2], sums.first, sums.last, sums.count, sums.committed, reconciled, has, fits, trusted, flags)


CHUNK = 1 << 20
"""So many rows are laid out at a time."""


@dataclass(slots=True)
class Sums:
    """What each request was given, summed up."""

    count: Ints
    committed: Ints
    accepted: Ints
    first: Ints
    last: Ints
    last_commit: Ints
    again: Ints
    unknown: Bools
    drafts_known: Bools
    hist_fits: Bools

    @classmethod
    def of(cls, n: int) -> Sums:
        """Return the sums of ``n`` requests that were given nothing."""

        def zero() -> Ints:
            return np.zeros(n, np.int64)

        flags = (np.zeros(n, bool), np.ones(n, bool), np.ones(n, bool))
        return cls(zero(), zero(), zero(), zero() - 1, zero() - 1, zero(), zero(), *flags)


def _lay_out_some(
    steps: StepColumns, asked: Asked, pieces: SegmentArrays, which: Ints, sums: Sums, out: tuple[npt.NDArray[np.int32], ...]
) -> None:
    """Lay the segments ``which`` (ordered by request and time; whole requests) out over the slots."""
    ids, req = np.unique(pieces.request[which], return_inverse=True)
    begin, slot = pieces.begin[which], pieces.slot[which]
    length = pieces.end[which] - begin
    total, n = int(length.sum()), len(ids)
    step = np.arange(total) - np.repeat(np.cumsum(length) - length - begin, length)
    place = steps.place[step] + np.repeat(slot, length)
    commit = steps.commit[place].astype(np.int64)
    known = commit >= 0
    commit[~known] = 0
    who = np.repeat(req, length)
    count = np.bincount(who, minlength=n)
    heads = np.cumsum(count) - count
    before = np.cumsum(commit) - commit
    generated = 1 + np.repeat(pieces.again[which], length) + before - before[heads][who]
    index = np.arange(total) - heads[who]
    sums.count[ids] = count
    sums.committed[ids] = np.bincount(who, weights=commit, minlength=n).astype(np.int64)
    sums.unknown[ids] = np.bincount(who, weights=~known, minlength=n) > 0
    sums.first[ids], sums.last[ids] = step[heads], step[heads + count - 1]
    sums.last_commit[ids] = commit[heads + count - 1]
    np.maximum.at(sums.again, ids[req], pieces.again[which])
    part = np.repeat(pieces.part[which], length)
    if part.any():
        _after_losses(asked, pieces, part, who, commit, count, heads, index, generated, ids)
    accepted = steps.accepted[place].astype(np.int64)
    sums.drafts_known[ids] = np.bincount(who, weights=accepted < 0, minlength=n) == 0
    accepted[accepted < 0] = 0
    sums.accepted[ids] = np.bincount(who, weights=accepted, minlength=n).astype(np.int64)
    sums.hist_fits[ids] = _histograms([asked.hist[i] for i in ids.tolist()], who, accepted)
    out[0][place] = ids[who]
    out[1][place] = index
    out[2][place] = generated


def _after_losses(
    asked: Asked,
    pieces: SegmentArrays,
    part: Ints,
    who: Ints,
    commit: Ints,
    count: Ints,
    heads: Ints,
    index: Ints,
    generated: Ints,
    ids: Ints,
) -> None:
    """Count from the end where lines are missing in the middle, if the request's own totals allow it; else nothing is known."""
    for i in np.unique(who[part > 0]).tolist():
        r = int(ids[i])
        rows = slice(int(heads[i]), int(heads[i] + count[i]))
        later = part[rows] > 0
        newest = part[rows] == part[rows].max()
        totals = asked.steps[r] >= 0 and asked.accepted[r] >= 0 and asked.tail[r] >= 0
        finished = r in pieces.ends and pieces.ends[r][1] == int(part[rows].max())
        index[rows] = np.where(later, -1, index[rows])
        values = generated[rows]
        values[later] = -1
        if totals and finished and asked.completion[r] >= 0:
            whole = int(asked.completion[r] + asked.tail[r])
            backwards = np.cumsum(commit[rows][::-1])[::-1]
            values[newest] = (whole - backwards)[newest]
            index[rows] = np.where(newest, asked.steps[r] - np.arange(int(count[i]), 0, -1), index[rows])
        generated[rows] = values


def _check(
    steps: StepColumns,
    asked: Asked,
    sums: Sums,
    request: npt.NDArray[np.int32],
    flags: dict[int, set[str]],
    tol: Tolerance,
    pieces: SegmentArrays,
) -> tuple[Bools, Bools, Ints, Bools]:
    n = len(asked)
    count, first, last = sums.count, sums.first, sums.last
    some = count > 0
    reconciled = sums.committed - (asked.completion - 1 - asked.retractions)
    has = some & (asked.completion >= 0) & ~sums.unknown
    cut = (reconciled >= 0) & (reconciled < np.maximum(sums.last_commit, 1)) & (reconciled <= np.maximum(asked.longest, 1))
    cut &= (asked.tail < 0) | (reconciled == asked.tail)
    has_hist = np.array([h is not None for h in asked.hist], bool)
    drafts_fit = ~sums.drafts_known | (asked.accepted < 0) | (sums.accepted == asked.accepted)
    steps_fit = (asked.steps < 0) | (count == asked.steps)
    hist_fit = ~has_hist | ~sums.drafts_known | sums.hist_fits
    strong = (asked.steps >= 0) & (asked.accepted >= 0) & sums.drafts_known
    sure = strong & has_hist & hist_fit & (_chance(asked.hist) < ACCIDENT)
    end = np.where(some, steps.time[np.maximum(last, 0)], 0) if len(steps) else np.zeros(n, np.int64)
    in_time = (asked.finished == UNKNOWN) | (end <= asked.finished + np.where(sure, tol.end_us, 2_000 + tol.start_us // 50))
    following = np.minimum(last + 1, max(len(steps) - 1, 0))
    same = np.zeros(n, bool)
    bound = np.zeros(len(steps) + 1, bool)
    for run in steps.runs:
        bound[run.begin] = True
    if len(steps):
        same = some & (last + 1 < len(steps)) & ~bound[np.minimum(last + 1, len(steps))]
    late = same & (asked.finished != UNKNOWN) & (steps.time[following] <= asked.finished - tol.lag_us) if len(steps) else same
    fits = has & cut & drafts_fit & steps_fit & hist_fit
    # with lengths only, a shift by one step can add up too: the first step must follow a prefill that the log shows
    begins = some & steps.fresh[np.maximum(first, 0)] if len(steps) else same
    if len(steps) and steps.fresh.sum() <= some.sum() // 2:  # the log does not show its prefills
        begins = begins | strong
    timely = in_time & begins & (sure | ~late)
    # its last step follows a prefill and comes after its end: that is somebody else's first one
    if len(steps):
        timely &= ~((count > 1) & steps.fresh[np.maximum(last, 0)] & (asked.finished != UNKNOWN) & (end > asked.finished + 2_000))
    good = fits & timely
    trusted = good.copy()
    if steps.no_time or tol.coarse_us >= COARSE_US:  # only what its own numbers prove
        trusted &= sure
    for r, own in flags.items():
        if own & UNSURE:
            trusted[r] = False
        if own & {"beside_unknown", "prefill_differs"} and not sure[r]:
            trusted[r] = False
    _doubt_neighbours(steps, trusted, some, sure, first, last, request, flags, pieces)
    for r in np.flatnonzero(has & ~fits).tolist():
        flags.setdefault(r, set()).add("not_reconciled")
    for r in np.flatnonzero(fits & ~timely).tolist():
        flags.setdefault(r, set()).add("time_mismatch")
    for r in np.flatnonzero(some & ~has).tolist():
        flags.setdefault(r, set()).add("not_checked")
    return trusted, good, reconciled, has


def _doubt_neighbours(
    steps: StepColumns,
    trusted: Bools,
    some: Bools,
    sure: Bools,
    first: Ints,
    last: Ints,
    request: npt.NDArray[np.int32],
    flags: dict[int, set[str]],
    pieces: SegmentArrays,
) -> None:
    """Take trust from requests that ran beside a doubtful one (or nobody known), unless their own numbers are beyond doubt.

    If one request of a batch is not what it seems, the slots of those behind it may be wrong too, and lengths may still add up. Even a
    histogram does not tell in which step a request moved up, if the steps around that are alike in both slots.
    """
    if not len(steps) or not some.any():
        return
    empty = np.minimum.reduceat(request, steps.place[:-1]) < 0
    several = steps.batch > 1
    bad = some & ~trusted
    mark = np.zeros(len(steps) + 1, np.int32)
    np.add.at(mark, first[bad], 1)
    np.add.at(mark, last[bad] + 1, -1)
    doubtful = np.zeros(len(steps) + 1, np.int32)
    np.cumsum(((np.cumsum(mark[:-1], dtype=np.int32) > 0) | empty) & several, out=doubtful[1:])
    good = np.flatnonzero(trusted)
    near = good[doubtful[last[good] + 1] > doubtful[first[good]]]
    order = np.lexsort((pieces.begin, pieces.request))
    begins = np.searchsorted(pieces.request[order], near)
    ends = np.searchsorted(pieces.request[order], near, side="right")
    firm = trusted.copy()
    for r, i, j in zip(near.tolist(), begins.tolist(), ends.tolist(), strict=True):
        if not sure[r] or _moves_in_doubt(steps, pieces, order[i:j], request, firm):
            trusted[r] = False
            flags.setdefault(r, set()).add("beside_doubtful")


def _moves_in_doubt(steps: StepColumns, pieces: SegmentArrays, own: Ints, request: npt.NDArray[np.int32], firm: Bools) -> bool:
    """Whether a request may have moved to its next slot some steps sooner or later, by what it was given in both slots.

    It moves up when somebody before it leaves; if all of those are known for certain, so is the step.
    """
    before: tuple[int, int] | None = None
    for i in own.tolist():
        begin, end, slot = int(pieces.begin[i]), int(pieces.end[i]), int(pieces.slot[i])
        if before is not None and before[0] != begin:
            before = None
        old = slot + 1 if before is None else before[1]  # it may have joined behind one that left a little later
        left: Counter[int] = Counter()
        if begin:
            first = int(steps.place[begin - 1])
            last = int(steps.place[begin]) if before is None else first + old
            left = Counter(request[first:last].tolist()) - Counter(request[steps.place[begin] : steps.place[begin + 1]].tolist())
        if any(x < 0 or not firm[x] for x in left):
            if _alike(steps, range(begin, min(begin + NEARBY, end)), slot, old):
                return True
            if before is not None and _alike(steps, range(begin - 1, max(begin - NEARBY, 0) - 1, -1), old, slot):
                return True
        before = (end, slot)
    return False


def _alike(s: StepColumns, steps: range, slot: int, other: int) -> bool:
    """Whether the first one, two … of these steps give the same in one slot as in another, in any order."""
    mine: list[tuple[int, int]] = []
    theirs: list[tuple[int, int]] = []
    for k in steps:
        if max(slot, other) >= s.place[k + 1] - s.place[k]:
            return False
        one, two = int(s.place[k]) + slot, int(s.place[k]) + other
        mine.append((int(s.commit[one]), int(s.accepted[one])))
        theirs.append((int(s.commit[two]), int(s.accepted[two])))
        if sorted(mine) == sorted(theirs):
            return True
    return False


def _chance(hists: list[tuple[int, ...] | None]) -> npt.NDArray[np.float64]:
    """Return how often as many steps of the same kind would have the very same histogram by accident (the multinomial probability)."""
    n = len(hists)
    lengths = np.array([len(h) if h is not None else 0 for h in hists], np.int64)
    flat = np.array([x for h in hists if h is not None for x in h], np.float64)
    who = np.repeat(np.arange(n), lengths)
    total = np.bincount(who, weights=flat, minlength=n)
    share = flat / np.maximum(total[who], 1) if len(flat) else flat
    terms = flat * np.log(np.maximum(share, 1e-300)) - gammaln(flat + 1)
    log = gammaln(total + 1) + np.bincount(who, weights=terms, minlength=n)
    return np.where(lengths > 0, np.exp(log), 1.0)


def _histograms(hists: list[tuple[int, ...] | None], who: Ints, accepted: Ints) -> Bools:
    """Compare the accepted drafts of each request's steps with the histogram it reports; true where it reports none."""
    n = len(hists)
    lengths = np.array([len(h) if h is not None else 0 for h in hists], np.int64)
    if not lengths.any():
        return np.ones(n, bool)
    depth = max(int(accepted.max(initial=0)) + 1, int(lengths.max()))
    got = np.bincount(who * depth + accepted, minlength=n * depth).reshape(n, depth)
    want = np.zeros((n, depth), np.int64)
    flat = np.array([x for h in hists if h is not None for x in h], np.int64)
    rows = np.repeat(np.arange(n), lengths)
    want[rows, np.arange(len(flat)) - np.repeat(np.cumsum(lengths) - lengths, lengths)] = flat
    return (lengths == 0) | (got == want).all(axis=1)
