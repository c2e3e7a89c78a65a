"""Rows put together to cells: stretches of steps over which nothing that is measured changed.

Everything that is fitted is fitted to cells, so that a log of a million steps costs what one of some thousand does. A cell has the mean of
its steps, and the mean without stalls: steps that took more than twice the usual of their own cell. What is usual and what stalls add are
two things, and a speed is made of both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddtree_metrics.steps.basis import Basis
from ddtree_metrics.steps.frames import Bools, Floats, Ints

STEPS_A_CELL = 25
"""So many steps of one stretch are one cell, at the most ..."""

MOST_CELLS = 8000
"""... and more of them in a log so long that there would be more cells than about this."""

STALL = 2.0
"""A step that takes so many times the median of its cell is a stall."""

FEWEST_FOR_STALLS = 5
"""In a cell of fewer steps none is called a stall."""


FEWEST_REQUESTS = 6
"""With fewer different requests, stretches of steps are taken as independent instead, and it is said; and with fewer on a side nothing is
supported that their text may stand behind."""


@dataclass(slots=True)
class Cells:
    """Cells of rows, as arrays of equal length.

    Attributes
    ----------
    mean : ndarray of float
        Mean of the values of the rows.
    usual : ndarray of float
        The same without stalls.
    stalls : ndarray of float
        Weight of the rows that stalled.
    weight : ndarray of float
        How many steps, or request-steps, a cell stands for.
    owner : ndarray of int
        The request (its prompt, the same for repeats) that the rows are of; the cell itself where fewer than ``FEWEST_REQUESTS`` are known.
    person : ndarray of int
        The request itself.
    run, stream, part : ndarray of int
        Server start; process and rank; which group of a comparison the rows are of (0: none).
    time_us : ndarray of int
        Time of the middle row.
    row : ndarray of int
        The first row of each, in the panel.
    member : ndarray of int
        Which cell each used row belongs to.
    rows : ndarray of int
        The rows used, in the order of ``member``.
    """

    mean: Floats
    usual: Floats
    stalls: Floats
    weight: Floats
    owner: Ints
    person: Ints
    run: Ints
    stream: Ints
    part: Ints
    time_us: Ints
    row: Ints
    member: Ints
    rows: Ints

    def __len__(self) -> int:
        return len(self.mean)

    def average(self, values: Floats, weight: Floats) -> Floats:
        """Return the mean of a column over the rows of each cell."""
        w = weight[self.rows]
        return np.asarray(np.bincount(self.member, w * values[self.rows], len(self)) / np.bincount(self.member, w, len(self)))

    def take(self, keep: Bools) -> Cells:
        """Return some of the cells; rows are those of all."""
        made = {name: getattr(self, name)[keep] for name in _OF_CELLS}
        return Cells(**made, member=self.member, rows=self.rows)


_OF_CELLS = ("mean", "usual", "stalls", "weight", "owner", "person", "run", "stream", "part", "time_us", "row")


def step_cells(panel: Basis, use: Bools, part: Ints) -> Cells:
    """Make cells of step times: stretches of one process, one request at the head of the batch, one batch size and one budget."""
    use = use & panel.timed
    return _cells(panel, use, panel.step_ms, panel.stream, part, _weight(panel, steps=True), stalls=True)


def token_cells(panel: Basis, use: Bools, part: Ints) -> Cells:
    """Make cells of tokens per step: stretches of one request, one batch size and one budget."""
    use = use & panel.counted
    return _cells(panel, use, panel.tokens, panel.cluster, part, _weight(panel, steps=False), stalls=False)


def _weight(panel: Basis, *, steps: bool) -> Floats:
    """Return how many steps (or request-steps) a row stands for: a window of K steps of n requests is K steps, and K times n of them."""
    if not panel.windows:
        return np.ones(len(panel))
    return panel.weight if steps else np.where(np.isfinite(panel.batch), panel.weight * panel.batch, panel.weight)


def seen_weight(panel: Basis) -> Floats:
    """Return how many request-steps each row stands for: every request of a batch sees the time of its step."""
    return _weight(panel, steps=False)


def _cells(panel: Basis, use: Bools, values: Floats, owner: Ints, part: Ints, weight: Floats, *, stalls: bool) -> Cells:
    rows = np.flatnonzero(use)
    rows = rows[np.argsort(owner[rows], kind="stable")]
    size = 1 if panel.windows else max(STEPS_A_CELL, len(rows) // MOST_CELLS)
    keys = [owner[rows], panel.cluster[rows], panel.run[rows], part[rows], _codes(panel.batch[rows]), _codes(panel.budget[rows])]
    new = _changes(keys)
    if not panel.windows and new.sum() * 4 > len(rows):
        new = _changes(keys[:1] + keys[2:4])  # a batch that changes with every few steps: its mean is what counts
    place = np.arange(len(rows)) - np.maximum.accumulate(np.where(new, np.arange(len(rows)), 0))
    new |= place % size == 0
    member = np.cumsum(new) - 1
    starts = np.flatnonzero(new)
    count = len(starts)
    w: Floats = np.asarray(weight[rows], dtype=np.float64)
    y: Floats = np.asarray(values[rows], dtype=np.float64)
    total: Floats = np.asarray(np.bincount(member, w, count), dtype=np.float64)
    mean: Floats = np.asarray(np.bincount(member, w * y, count) / np.maximum(total, 1e-300), dtype=np.float64)
    usual: Floats = mean.copy()
    stalled: Floats = np.zeros(count)
    if stalls and not panel.windows and count:
        often = np.bincount(member, minlength=count)
        order = np.lexsort((y, member))
        median = y[order][starts + (often - 1) // 2]
        slow = (y > STALL * median[member]) & (often[member] >= FEWEST_FOR_STALLS)
        if slow.any():
            kept = np.bincount(member, w * ~slow, count)
            usual = np.asarray(np.bincount(member, w * y * ~slow, count) / np.maximum(kept, 1e-300), dtype=np.float64)
            stalled = total - kept
    head = rows[starts]
    texts, persons = panel.text[head], panel.cluster[head]
    if len(np.unique(texts)) < FEWEST_REQUESTS:
        texts = persons = np.arange(count, dtype=np.int64)
    middle = rows[np.minimum(starts + np.bincount(member, minlength=count) // 2, len(rows) - 1)] if count else head
    return Cells(
        mean,
        usual,
        stalled,
        total,
        texts,
        persons,
        panel.run[head],
        panel.stream[head],
        part[head],
        panel.time_us[middle],
        head,
        member,
        rows,
    )


def _codes(values: Floats) -> Ints:
    """Return a number for each value of a column that has few; what is not known is a value like any other."""
    return np.asarray(np.nan_to_num(values, nan=-1.0).astype(np.int64))


def _changes(keys: list[Ints]) -> Bools:
    new = np.zeros(len(keys[0]), dtype=bool)
    if len(new):
        new[0] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return new
