"""Steps whose lines give no list: their tokens are shared by the requests that ran."""

from __future__ import annotations

import numpy as np

from ddtree_metrics.join.prepare import UNKNOWN, Asked, StepColumns
from ddtree_metrics.join.verify import Matched


def share(steps: StepColumns, asked: Asked, matched: Matched, flags: dict[int, set[str]]) -> int:
    """Put the requests that ran into the slots of steps without lists, and count their shares.

    Where the batch was followed, who ran is known already; elsewhere it is told by time, if as many ran as the batch was large.

    Returns
    -------
    int
        How many steps are shared.
    """
    if not len(steps) or not len(asked):
        return 0
    split = ~steps.whole & (steps.batch >= 1)
    if not split.any():
        return 0
    slots = np.repeat(split, np.diff(steps.place))
    open_steps = np.flatnonzero(split & (np.minimum.reduceat(matched.request, steps.place[:-1]) < 0))
    concerned: set[int] = set()
    if len(open_steps):
        starts = np.sort(asked.entry)
        ends = np.sort(np.where(asked.finished == UNKNOWN, np.int64(2**62), asked.finished))
        t = steps.time[open_steps]
        begun, over = np.searchsorted(starts, t, side="right"), np.searchsorted(ends, t, side="left")
        fits = begun - over == steps.batch[open_steps]
        changed = np.flatnonzero(np.concatenate([[True], (np.diff(begun) != 0) | (np.diff(over) != 0)]))
        for i, first in enumerate(changed.tolist()):
            last = int(changed[i + 1]) if i + 1 < len(changed) else len(open_steps)
            if not fits[first:last].any():
                continue
            now = int(t[first])
            active = np.flatnonzero((asked.entry <= now) & ((asked.finished >= now) | (asked.finished == UNKNOWN)))
            for k in open_steps[first:last][fits[first:last]].tolist():
                if steps.place[k + 1] - steps.place[k] == len(active):
                    matched.request[steps.place[k] : steps.place[k + 1]] = active
    concerned.update(np.unique(matched.request[slots & (matched.request >= 0)]).tolist())
    if not concerned:
        return 0
    values = steps.commit.astype(np.float64)
    width = np.repeat(np.diff(steps.place), np.diff(steps.place))
    total = np.repeat(steps.total, np.diff(steps.place))
    values = np.where(slots & (total >= 0), total / np.maximum(width, 1), np.maximum(values, 0))
    mine = np.isin(matched.request, list(concerned))
    at = np.flatnonzero(mine)
    order = np.argsort(matched.request[at], kind="stable")
    at = at[order]
    who = matched.request[at]
    cum = np.cumsum(values[at])
    heads = np.flatnonzero(np.concatenate([[True], who[1:] != who[:-1]]))
    base = np.repeat((cum - values[at])[heads], np.diff(np.append(heads, len(at))))
    matched.generated[at] = np.rint(1 + cum - values[at] - base).astype(np.int32)
    counts = np.diff(np.append(heads, len(at)))
    matched.index[at] = np.arange(len(at)) - np.repeat(heads, counts)
    for r in concerned:
        flags.setdefault(r, set()).add("shared")
        matched.trusted[r] = False
        matched.count[r] = max(int(matched.count[r]), 1)
    return int((split & (np.minimum.reduceat(matched.request, steps.place[:-1]) >= 0)).sum())
