"""Steps whose lines give no list: their tokens are shared by the requests that ran."""

from __future__ import annotations

import numpy as np

from ddtree_metrics.join.prepare import UNKNOWN, Asked, StepColumns
from ddtree_metrics.join.verify import Matched


def share(s: StepColumns, a: Asked, m: Matched, flags: dict[int, set[str]]) -> int:
    """Put the requests that ran into the slots of steps without lists, and count their shares.

    Where the batch was followed, who ran is known already; elsewhere it is told by time, if as many ran as the batch was large.

    Returns
    -------
    int
        How many steps are shared.
    """
    if not len(s) or not len(a):
        return 0
    split = ~s.whole & (s.batch >= 1)
    if not split.any():
        return 0
    slots = np.repeat(split, np.diff(s.place))
    open_steps = np.flatnonzero(split & (np.minimum.reduceat(m.request, s.place[:-1]) < 0))
    concerned: set[int] = set()
    if len(open_steps):
        starts = np.sort(a.entry)
        ends = np.sort(np.where(a.finished == UNKNOWN, np.int64(2**62), a.finished))
        t = s.time[open_steps]
        begun, over = np.searchsorted(starts, t, side="right"), np.searchsorted(ends, t, side="left")
        fits = begun - over == s.batch[open_steps]
        changed = np.flatnonzero(np.concatenate([[True], (np.diff(begun) != 0) | (np.diff(over) != 0)]))
        for i, first in enumerate(changed.tolist()):
            last = int(changed[i + 1]) if i + 1 < len(changed) else len(open_steps)
            if not fits[first:last].any():
                continue
            now = int(t[first])
            active = np.flatnonzero((a.entry <= now) & ((a.finished >= now) | (a.finished == UNKNOWN)))
            for k in open_steps[first:last][fits[first:last]].tolist():
                if s.place[k + 1] - s.place[k] == len(active):
                    m.request[s.place[k] : s.place[k + 1]] = active
    concerned.update(np.unique(m.request[slots & (m.request >= 0)]).tolist())
    if not concerned:
        return 0
    values = s.commit.astype(np.float64)
    width = np.repeat(np.diff(s.place), np.diff(s.place))
    total = np.repeat(s.total, np.diff(s.place))
    values = np.where(slots & (total >= 0), total / np.maximum(width, 1), np.maximum(values, 0))
    mine = np.isin(m.request, list(concerned))
    at = np.flatnonzero(mine)
    order = np.argsort(m.request[at], kind="stable")
    at = at[order]
    who = m.request[at]
    cum = np.cumsum(values[at])
    heads = np.flatnonzero(np.concatenate([[True], who[1:] != who[:-1]]))
    base = np.repeat((cum - values[at])[heads], np.diff(np.append(heads, len(at))))
    m.generated[at] = np.rint(1 + cum - values[at] - base).astype(np.int32)
    counts = np.diff(np.append(heads, len(at)))
    m.index[at] = np.arange(len(at)) - np.repeat(heads, counts)
    for r in concerned:
        flags.setdefault(r, set()).add("shared")
        m.trusted[r] = False
        m.count[r] = max(int(m.count[r]), 1)
    return int((split & (np.minimum.reduceat(m.request, s.place[:-1]) >= 0)).sum())
