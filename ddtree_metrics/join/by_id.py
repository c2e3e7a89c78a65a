"""Steps whose lines name their requests."""

from __future__ import annotations

import numpy as np

from ddtree_metrics.join.batch import Tolerance
from ddtree_metrics.join.clock import Offset
from ddtree_metrics.join.match import Result
from ddtree_metrics.join.prepare import UNKNOWN, Asked, Bools, StepColumns
from ddtree_metrics.join.verify import SegmentArrays, lay_out


def match_ids(steps: StepColumns, asked: Asked, names: list[str | None]) -> tuple[Result, Bools]:
    """Match by the ids in the lines; requests that share an id are told apart by their times.

    Returns
    -------
    Result
        As the other ways give it.
    by_id : ndarray of bool, shape (slots,)
        Which slots a line names.
    """
    known: dict[str, list[int]] = {}
    for r, name in enumerate(names):
        if name is not None:
            known.setdefault(name, []).append(r)
    request, begin, slot = [], [], []
    by_id = np.zeros(steps.slots, bool)
    for k, ids in enumerate(steps.ids or ()):
        if ids is None or len(ids) != steps.place[k + 1] - steps.place[k]:
            continue
        for j, name in enumerate(ids):
            by_id[steps.place[k] + j] = True
            some = known.get(name, ())
            if not some:
                continue
            t = int(steps.time[k])
            r = some[0]
            if len(some) > 1:
                r = min(some, key=lambda x: _away(asked, x, t))
            request.append(r)
            begin.append(k)
            slot.append(j)
    at = np.array(begin, np.int64)
    zero = np.zeros(len(at), np.int64)
    pieces = SegmentArrays(np.array(request, np.int64), at, at + 1, np.array(slot, np.int64), zero, zero, {})
    flags: dict[int, set[str]] = {}
    tol = Tolerance(10**12, 10**12, 0, 0)
    matched = lay_out(steps, asked, pieces, flags, tol)
    return Result(matched, Offset(how="not needed"), flags), by_id


def _away(asked: Asked, r: int, t: int) -> int:
    """How far a time lies outside a request's own."""
    end = int(asked.finished[r]) if asked.finished[r] != UNKNOWN else int(asked.entry[r])
    return max(int(asked.entry[r]) - t, t - end, 0)
