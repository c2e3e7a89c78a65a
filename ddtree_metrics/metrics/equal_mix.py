"""Two groups of rows at equal values of some columns: means over one mix of classes, the same for both.

Rows are put into classes of about equal context, batch size and what else is held equal. A mean at equal mix is

    M_side = sum over classes of w * m_side,   w = (p_before + p_after) / 2

with p the share of a side's rows that a class holds: the rate term of Kitagawa (1955, "Components of a difference between two rates",
JASA 50, 1168-1194), who weighs by the mean of both mixes so that neither side is preferred. Only classes count that both sides have in
fair number (``FAIR``, as Crump, Hotz, Imbens and Mitnik, 2009, "Dealing with limited overlap in estimation of average treatment effects",
Biometrika 96, 187-199). Inside a class the sides may still differ, by up to its width; so a mean is moved along the slope inside the
class to a place that both sides share (regression standardisation), and never beyond the rows that its own side has there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree_metrics.metrics.confounding import word
from ddtree_metrics.steps.frames import Bools, Floats, Ints

FAIR = 0.1
"""A class counts if each side has at least this share of its rows, both sides counted alike; and the sides overlap in a quantity if each
has at least this share of its rows where the other has some."""

NEAR = 0.1
"""Values that differ by no more than this share of themselves are about equal."""

WIDTH = math.sqrt(2.0)
"""Inside a class the values of a column differ by no more than this factor."""

REACH = math.sqrt(3.0)
"""A mean is moved along the slope by no more than so many standard deviations of its own rows: to the ends of an even spread."""

WHOLE = 16
"""Whole numbers up to this one are classes of their own."""

MOST = 1000
"""More classes of a column than this are none that anybody has rows for."""

ENDS = (0.02, 0.98)
"""Quantiles between which a side is said to have values."""


@dataclass(frozen=True)
class Classes:
    """Rows in classes that both sides have.

    Attributes
    ----------
    names : tuple of str
        Columns held equal.
    cell : ndarray of int
        The class of each row; -1 for rows that are not compared.
    count : int
        How many classes.
    away : ndarray of float, shape (rows, columns with classes of a width)
        How far each row lies from the middle of its class, in units of the column.
    level : ndarray of int, one value a class
        Which step of the first of those columns the class is on.
    scale : ndarray of float, shape (classes, columns)
        The middle of each class.
    used : tuple of float
        Share of each side's rows that is compared.
    """

    names: tuple[str, ...]
    cell: Ints
    count: int
    away: Floats
    level: Ints
    scale: Floats
    used: tuple[float, float]


@dataclass(frozen=True, slots=True)
class NoOverlap:
    """Why two sides cannot be compared at equal values: in words, and in which column they have nothing in common."""

    reason: str
    name: str | None = None


def classes(names: tuple[str, ...], columns: list[Floats], side: Ints, rows: Bools, most: int = MOST) -> Classes | NoOverlap:
    """Put rows into classes of about equal values.

    Parameters
    ----------
    names : tuple of str
        Columns held equal.
    columns : list of ndarray
        Their values.
    side : ndarray of int
        0 before, 1 after.
    rows : ndarray of bool
        Rows that are of use.
    most : int
        Into so many classes a column is cut at the most; fewer are wider, and leave more to the slope inside them.

    Returns
    -------
    Classes or NoOverlap
    """
    inside = rows.copy()
    own: list[Ints] = []
    wide: list[Floats] = []
    first: Ints | None = None
    for name, values in zip(names, columns, strict=True):
        known = inside & np.isfinite(values)
        if any(not (known & (side == i)).any() for i in (0, 1)):
            lacking = " and ".join(w for i, w in enumerate(("before", "after")) if not (known & (side == i)).any())
            return NoOverlap(f"{word(name)} is not known {lacking}" if (inside & rows).any() else "no row is of use on both sides")
        made = _one_column(values, known, side, most)
        kept = [np.count_nonzero((made >= 0) & (side == i)) for i in (0, 1)]
        if any(kept[i] < max(1.0, FAIR * np.count_nonzero(known & (side == i))) for i in (0, 1)):
            return NoOverlap(_apart(name, values, known, side), name)
        inside = known & (made >= 0)
        own.append(made)
        if not _whole(values[known], most):
            wide.append(values)
            first = made if first is None else first
    joint = np.zeros(len(side), dtype=np.int64)
    for made in own:
        joint = np.unique(joint * (int(made.max(initial=0)) + 2) + made + 1, return_inverse=True)[1].astype(np.int64).reshape(-1)
    joint = np.where(inside, joint, -1)
    fair = _fair(joint, side)
    inside &= fair[joint]
    used = [int(np.count_nonzero(inside & (side == i))) / max(int(np.count_nonzero(rows & (side == i))), 1) for i in (0, 1)]
    if min(used) < FAIR / 2:
        return NoOverlap(f"hardly any {' and '.join(word(n) for n in names)} is common to the two sides", names[0])
    cell = np.full(len(side), -1, dtype=np.int64)
    cell[inside] = np.unique(joint[inside], return_inverse=True)[1].reshape(-1)
    return _placed(names, cell, side, wide, first, (used[0], used[1]))


def _whole(values: Floats, most: int) -> bool:
    """Tell whether a column has small whole numbers, or a yes and a no, which are classes of their own."""
    return bool((values == np.round(values)).all() and values.max() <= WHOLE and len(np.unique(values)) <= max(most, 2))


def _one_column(values: Floats, known: Bools, side: Ints, most: int) -> Ints:
    """Give each row the number of its class in one column; -1 where it lies outside of what both sides have."""
    made = np.full(len(values), -1, dtype=np.int64)
    if _whole(values[known], most):
        distinct, codes = np.unique(values[known], return_inverse=True)
        both = np.logical_and(*[np.bincount(codes[side[known] == i], minlength=len(distinct)) > 0 for i in (0, 1)])
        made[known] = np.where(both[codes], codes, -1)
        return made
    ends = [np.quantile(values[known & (side == i)], ENDS) for i in (0, 1)]
    low, high = max(e[0] for e in ends), min(e[1] for e in ends)
    low, high = low - NEAR * abs(low), high + NEAR * abs(high)
    if not high >= low:
        return made
    within = known & (values >= low) & (values <= high)
    made[within & (values <= 0)] = 0
    positive = within & (values > 0)
    if positive.any():
        logs = np.log(values[positive])
        start, span = float(logs.min()), float(np.ptp(logs))
        count = min(max(1, math.ceil(span / math.log(WIDTH) - 1e-9)), most)
        made[positive] = 1 + np.clip(np.floor((logs - start) / max(span, 1e-12) * count), 0, count - 1).astype(np.int64)
    return made


def _fair(joint: Ints, side: Ints) -> Bools:
    """Tell which classes both sides have in fair number."""
    size = int(joint.max(initial=-1)) + 1
    if not size:
        return np.zeros(1, dtype=bool)
    counts = np.column_stack([np.bincount(joint[(side == i) & (joint >= 0)], minlength=size) for i in (0, 1)]).astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = counts / counts.sum(axis=0)
        made = share.min(axis=1) >= FAIR * share.sum(axis=1)
    return np.asarray(np.append(made & (counts.min(axis=1) > 0), False))  # the last is that of -1


def _apart(name: str, values: Floats, known: Bools, side: Ints) -> str:
    """Say that the sides do not overlap in a quantity, and where each of them is."""
    ranges = []
    for i, end in enumerate(("before", "after")):
        low, high = (_short(v) for v in np.quantile(values[known & (side == i)], ENDS, method="nearest"))
        ranges.append(f"{low} to {high} {end}" if low != high else f"{low} {end}")
    return f"the two sides do not overlap in {word(name)}: {', '.join(ranges)}"


def _short(value: float) -> str:
    """Write a number with no more digits than it takes to tell a range."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _placed(names: tuple[str, ...], cell: Ints, side: Ints, wide: list[Floats], first: Ints | None, used: tuple[float, float]) -> Classes:
    """Find where in each class the two sides are compared."""
    count, size = int(cell.max()) + 1, len(wide)
    inside = np.flatnonzero(cell >= 0)
    at, mine = cell[inside], side[inside]
    away = np.zeros((len(cell), size))
    scale = np.ones((count, size))
    level = np.zeros(count, dtype=np.int64)
    if first is not None:
        level[at] = first[inside]
    for k, values in enumerate(wide):
        y = values[inside]
        means = []
        for i in (0, 1):
            own = mine == i
            means.append(np.bincount(at[own], y[own], count) / np.bincount(at[own], minlength=count))
        middle = (means[0] + means[1]) / 2
        away[inside, k] = y - middle[at]
        scale[:, k] = np.maximum(np.abs(middle), 1e-9)
    return Classes(names, cell, count, away, level, scale, used)


class LeftOut:
    """Sums of columns by side and class: of all rows first, and then without one part of the rows after the other.

    Parameters
    ----------
    made : Classes
        The classes.
    side : ndarray of int
        0 before, 1 after.
    atom : ndarray of int
        The finest part of the rows that each row is of: atoms are never cut.
    partitions : sequence of ndarray of int
        For each way to cut the atoms into parts, the part of each atom.
    sizes : sequence of int
        How many parts each has.
    """

    def __init__(self, made: Classes, side: Ints, atom: Ints, partitions: Sequence[Ints], sizes: Sequence[int]) -> None:
        self.made = made
        self.inside = np.flatnonzero(made.cell >= 0)
        width = 2 * made.count
        keys, self.place = np.unique(
            atom[self.inside] * width + side[self.inside] * made.count + made.cell[self.inside], return_inverse=True
        )
        self.of, self.cell = keys // width, keys % width
        self.partitions = list(zip(partitions, sizes, strict=True))

    def __call__(self, column: Floats) -> Floats:
        """Sum a column of all rows; shape (1 + parts of all partitions, 2, classes)."""
        width = 2 * self.made.count
        sums = np.bincount(self.place, column[self.inside], len(self.of))
        whole = np.bincount(self.cell, sums, width)
        out = [whole[None, :]]
        for part, size in self.partitions:
            out.append(whole[None, :] - np.bincount(part[self.of] * width + self.cell, sums, size * width).reshape(size, width))
        return np.asarray(np.concatenate(out).reshape(-1, 2, self.made.count), dtype=float)


def log_means(sums: LeftOut, mix: Floats, values: Floats, weight: Floats) -> Floats:
    """Return the logs of both sides' means at equal mix.

    Parameters
    ----------
    sums : LeftOut
        How columns are summed.
    mix : ndarray, shape (draws, 2, classes)
        What each side weighs in each class.
    values : ndarray of float
        What the mean is of; rows where it is NaN are left out.
    weight : ndarray of float
        What each row weighs.

    Returns
    -------
    ndarray, shape (draws, 2)
        NaN where a draw has no class that both sides have.
    """
    good = np.isfinite(values)
    w, v = np.where(good, weight, 0.0), np.where(good, values, 0.0)
    made = sums.made

    def total(column: Floats) -> Floats:
        found, dust = sums(w * column), 1e-12 * float(np.abs(w * column).sum())  # what is left of a sum when all of it is taken away
        return np.where(np.abs(found) > dust, found, 0.0)

    number, size = total(np.ones(len(v))), made.away.shape[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        y = total(v)
        mean = y / number
        if size:
            mean = mean - _moved(made, total, number, y, v)
        share = mix / mix.sum(axis=2, keepdims=True)
        both: Any = np.isfinite(mean).all(axis=1) & (mix > 0).all(axis=1) & (number > 0).all(axis=1)
        count = np.where(both, share.sum(axis=1), 0.0)
        found = (np.where(both[:, None, :], mean, 0.0) * count[:, None, :]).sum(axis=2) / count.sum(axis=1)[:, None]
        return np.asarray(np.where(found > 0, np.log(np.where(found > 0, found, 1.0)), np.nan))


def _moved(made: Classes, total: Any, number: Floats, y: Floats, values: Floats) -> Floats:
    """Return what the place of a side's rows inside their class adds to its mean; shape (draws, 2, classes)."""
    size = made.away.shape[1]
    x = [total(made.away[:, k]) for k in range(size)]
    safe = np.maximum(number, 1e-300)
    xy = np.stack([total(made.away[:, k] * values) - x[k] * y / safe for k in range(size)], axis=-1)
    xx = np.empty((*number.shape, size, size))
    for k in range(size):
        for j in range(k, size):
            xx[..., k, j] = xx[..., j, k] = total(made.away[:, k] * made.away[:, j]) - x[k] * x[j] / safe
    # the slope on one step of context rests on all classes of that step, and on those of neighbouring steps with less weight
    steps, place = np.unique(made.level, return_inverse=True)
    near = 0.25 ** np.abs(made.level[:, None] - steps[None, :]) / np.square(made.scale[:, :1])
    deviation = np.sqrt(np.maximum(xx[..., range(size), range(size)], 0.0) / safe[..., None])
    xx[..., range(size), range(size)] += 1e-10 * number[..., None] * np.square(made.scale)  # no slope where values do not vary
    xy = np.einsum("dscx,cl->dslx", xy, near)
    xx = np.einsum("dscxz,cl->dslxz", xx, near)
    unit = np.sqrt(xx[..., range(size), range(size)])
    xx = xx / (unit[..., :, None] * unit[..., None, :]) + 1e-9 * np.eye(size)
    slope = (np.linalg.solve(xx, (xy / unit)[..., None])[..., 0] / unit)[:, :, place.reshape(-1), :]
    apart = np.clip(np.stack(x, axis=-1) / safe[..., None], -REACH * deviation, REACH * deviation)
    return np.asarray((slope * apart).sum(axis=-1))
