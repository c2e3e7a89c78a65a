"""The bulk of a quiet log: requests that ran alone, matched all at once."""

from __future__ import annotations

import numpy as np

from ddtree_metrics.join.batch import Tolerance
from ddtree_metrics.join.prepare import UNKNOWN, Asked, Bools, Ints, StepColumns, StreamRun


def match_alone(s: StepColumns, asked: Asked, run: StreamRun, which: Ints, tol: Tolerance) -> tuple[Ints, Ints, Ints]:
    """Find the requests that made whole stretches of single steps, where their own numbers leave no doubt.

    Parameters
    ----------
    s, a : StepColumns, Asked
        Steps and requests.
    run : StreamRun
        The run to look at.
    which : ndarray of int
        Its requests, ordered by entry.
    tol : Tolerance
        How far times may be off.

    Returns
    -------
    request, begin, end : ndarray of int
        The requests found, and the steps ``begin <= step < end`` of each.
    """
    none = np.zeros(0, np.int64)
    if not len(which) or run.end <= run.begin:
        return none, none, none
    lo, hi = run.begin, run.end
    time = s.time[lo:hi]
    if len(time) > 1 and bool(np.any(time[1:] < time[:-1])):
        return none, none, none  # the wall clock jumped: leave it to the one who follows
    first = s.place[lo:hi]
    single = (s.batch[lo:hi] == 1) & s.whole[lo:hi] & ~s.lost[lo:hi]
    bad = np.zeros(hi - lo + 1, np.int32)
    np.cumsum(~single, out=bad[1:])
    commit = np.where(single, s.commit[first], 0)
    cum = np.zeros(hi - lo + 1, np.int64)
    np.cumsum(commit, out=cum[1:])
    entry, fin = asked.entry[which], asked.finished[which]
    slack = np.where(asked.client[which] | (asked.steps[which] <= 0), tol.start_us, 0)
    begin = np.searchsorted(time, entry - slack, side="left")
    plain = begin
    # a client sees the first token late: its request may have made steps since; its predecessor's end says where they begin
    ends = np.where(fin == UNKNOWN, UNKNOWN, fin)
    before = np.concatenate([[UNKNOWN], np.maximum.accumulate(ends)[:-1]]) if len(ends) else ends
    begin = np.maximum(begin, np.searchsorted(time, before, side="right"))
    begin = np.maximum(
        begin, np.searchsorted(time, np.where(asked.received[which] == UNKNOWN, UNKNOWN, asked.received[which]), side="left")
    )
    n = hi - lo
    completion, steps, tail = asked.completion[which], asked.steps[which], asked.tail[which]
    strong = (steps > 0) & (tail >= 0)
    # a first step follows a prefill: where the log shows them, it must, and nothing is prefilled while a request is alone
    fresh = np.flatnonzero(s.fresh[lo:hi])
    place = np.searchsorted(fresh, begin, side="left")
    snapped = np.append(fresh, n)[place]
    begin = np.where(strong & ~asked.client[which], begin, snapped)
    begin = np.minimum(begin, n)
    target = cum[begin] + completion - 1
    by_tokens = np.searchsorted(cum, target, side="left")
    end = np.where(steps > 0, begin + steps, by_tokens)
    good = (
        (completion > 1)
        & (fin != UNKNOWN)
        & (end <= n)
        & (end > begin)
        & asked.exact[which]
        & ~asked.aborted[which]
        & (asked.retractions[which] == 0)
    )
    inside = np.minimum(end, n)
    good &= bad[inside] == bad[np.minimum(begin, n)]
    got = cum[inside] - cum[begin]
    over = got - (completion - 1)
    last = commit[np.clip(inside - 1, 0, n - 1)]
    good &= np.where(strong, over == tail, (over >= 0) & (over < np.maximum(last, 1)))
    good &= time[np.clip(inside - 1, 0, n - 1)] <= fin + np.where(strong, tol.end_us, 2_000)
    after = np.where(inside < n, time[np.clip(inside, 0, n - 1)], np.iinfo(np.int64).max)
    good &= after > fin - tol.lag_us
    fresh_before = np.zeros(hi - lo + 1, np.int32)
    np.cumsum(s.fresh[lo:hi], out=fresh_before[1:])
    good &= strong | (fresh_before[inside] - fresh_before[np.minimum(begin + 1, n)] <= 0)
    good &= strong | (time[np.clip(begin, 0, n - 1)] <= entry + tol.end_us + _usual(time) * 3)
    # nobody else may have been there: the steps between this one's end and the next one's start belong to somebody unknown
    good &= ~strong | asked.client[which] | (begin == np.minimum(plain, n))
    good &= _apart(begin, inside, good)
    at = np.flatnonzero(good)
    return which[at], begin[at] + lo, inside[at] + lo


def _usual(time: Ints) -> int:
    """Return the usual time between two steps."""
    return int(np.median(np.diff(time[:100_000]))) if len(time) > 1 else 0


def _apart(begin: Ints, end: Ints, good: Bools) -> Bools:
    """Whether each stretch overlaps no other that is wanted."""
    ok = np.ones(len(begin), bool)
    if len(begin) > 1:
        reach = np.maximum.accumulate(np.where(good, end, 0))
        ok[1:] &= begin[1:] >= reach[:-1]
        nearest = np.minimum.accumulate(np.where(good, begin, np.iinfo(np.int64).max)[::-1])[::-1]
        ok[:-1] &= end[:-1] <= nearest[1:]
    return ok
