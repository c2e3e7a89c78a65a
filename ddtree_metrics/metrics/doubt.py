"""How sure an estimate is: what is independent of what among cells, and how far two starts of a server differ for no reason.

Cells of one request share its text; cells of one minute share a clock, a heat and the neighbours on the host. So the variance of an
estimate is taken over requests and over blocks of time of several lengths, and the largest counts (cluster-robust, CR1; Cameron, Gelbach
and Miller, 2011, for more than one way to cluster; batch means for the blocks). Blocks must be longer than what noise remembers, and a log
may be too short for eight of such; so short blocks are also taken as a chain, in which each remembers the one before it (an AR(1),
prewhitened: Andrews and Monahan, 1992, Econometrica 60, 953-966). A start of a server is one observation of everything that
differs from start to start, however many steps it has: contrasts of starts carry a floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ddtree_metrics.steps.frames import Floats, Ints

BLOCKS_S = (15.0, 60.0, 240.0)
"""Lengths of blocks of time, in seconds."""

LINK_S, MOST_LINKS = 5.0, 400
"""Length of the short blocks in seconds, longer where there would be more of them than this."""

FEWEST_BLOCKS = 8
"""A partition into fewer parts says too little of a variance."""

START_FLOOR = 0.02
"""Standard deviation of the log of step time from one start of a server to the next when nothing was changed."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A number with its interval; ``low`` and ``high`` are None where there is no interval.

    Attributes
    ----------
    value, low, high : float or None
        The estimate and the ends of its interval; all None where it cannot be told.
    unit : str
        ``share`` for parts of 1, ``ratio`` for after / before, else the unit.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "ratio"

    @property
    def known(self) -> bool:
        """Whether there is a number at all."""
        return self.value is not None


@dataclass(frozen=True, slots=True)
class Partitions:
    """Ways to cut cells into parts that are taken as independent, one array of codes for each; and a chain of short blocks of time.

    ``before`` has for each block of the chain the one before it in the same start, -1 for the first.
    """

    names: tuple[str, ...]
    codes: tuple[Ints, ...]
    sizes: tuple[int, ...]
    chain: Ints | None = None
    before: Ints | None = None

    @classmethod
    def of(cls, owner: Ints, time_us: Ints, run: Ints, *, blocks: bool = True) -> Partitions:
        """Cut by owner, and by blocks of time within each server start.

        Parameters
        ----------
        owner, time_us, run : ndarray of int
            Whose text it is; when (-1: not known); of which server start.
        blocks : bool
            Whether neighbours in time depend on each other.
        """
        made: list[tuple[str, Ints]] = [("requests", np.unique(owner, return_inverse=True)[1])]
        known = time_us >= 0
        chain = before = None
        if blocks and len(owner) and known.all():
            span = float(time_us.max() - time_us.min()) / 1e6
            lengths = [s for s in BLOCKS_S if s * FEWEST_BLOCKS <= span] or [max(span / FEWEST_BLOCKS, 1e-3)]
            if span / 12 > 2 * lengths[-1]:
                lengths.append(span / 12)
            for seconds in lengths:
                place = ((time_us - time_us.min()) / (seconds * 1e6)).astype(np.int64)
                both = np.unique(np.column_stack([run, place]), axis=0, return_inverse=True)[1]
                made.append((f"blocks of {seconds:.0f} s", both.reshape(-1)))
            chain, before = _chain(time_us, run, max(LINK_S, span / MOST_LINKS))
        sizes = [int(c.max(initial=-1)) + 1 for _, c in made]
        keep = [i for i, n in enumerate(sizes) if n >= FEWEST_BLOCKS] or [int(np.argmax(sizes))]
        codes = tuple(np.asarray(made[i][1]) for i in keep)
        return cls(tuple(made[i][0] for i in keep), codes, tuple(sizes[i] for i in keep), chain, before)

    def variance(self, score: Floats, terms: int = 1) -> tuple[float, int]:
        """Return the largest variance of a sum of scores over the partitions, and the degrees of freedom of it.

        Parameters
        ----------
        score : ndarray of shape (cells,)
            What each cell adds to the error of the estimate.
        terms : int
            Parameters that were fitted.
        """
        sums = [np.asarray(np.bincount(codes, score, size), dtype=float) for codes, size in zip(self.codes, self.sizes, strict=True)]
        found = largest(sums)
        if self.chain is None or self.before is None:
            return found
        return max(found, chained(np.asarray(np.bincount(self.chain, score, len(self.before)), dtype=float), self.before))


def _chain(time_us: Ints, run: Ints, seconds: float) -> tuple[Ints, Ints]:
    """Cut cells into short blocks of time within each start; return the block of each cell, and for each block the one before it."""
    place = ((time_us - time_us.min()) / (seconds * 1e6)).astype(np.int64)
    blocks, code = np.unique(np.column_stack([run, place]), axis=0, return_inverse=True)
    before = np.arange(len(blocks)) - 1
    before[np.r_[True, blocks[1:, 0] != blocks[:-1, 0]]] = -1
    return code.reshape(-1), before


def chained(sums: Floats, before: Ints) -> tuple[float, int]:
    """Return the variance of a sum over blocks of time of which each remembers the one before it, and its degrees of freedom.

    Parameters
    ----------
    sums : ndarray
        What each block adds to the error of the estimate.
    before : ndarray of int
        The block before each; -1 for the first of a start.
    """
    later = np.flatnonzero(before >= 0)
    if len(later) < 2 * FEWEST_BLOCKS:
        return 0.0, 1
    now, then = sums[later], sums[before[later]]
    size = float(np.sqrt((now**2).sum() * (then**2).sum()))
    rho = float((now * then).sum()) / size if size > 0 else 0.0
    each = len(sums) / (len(sums) - len(later))
    # short series seem to forget sooner than they do (Kendall, 1954, Biometrika 41, 403-404)
    rho = min(rho + max(1.0 + 3.0 * rho, 0.0) / each, 1.0 - 4.0 / each)
    if rho <= 0:
        return 0.0, 1
    news = np.r_[now - rho * then, sums[before < 0] * np.sqrt(1.0 - rho**2)]
    dof = int(max(len(sums) * (1.0 - rho) / (1.0 + rho), 2.0))
    return float((news**2).sum()) / (1.0 - rho) ** 2, dof


def largest(partitions: Sequence[Floats]) -> tuple[float, int]:
    """Return the largest variance of a sum over several ways to cut it into independent parts, and its degrees of freedom.

    Parameters
    ----------
    partitions : sequence of ndarray
        What each part of a partition adds to the error of the estimate.
    """
    best, dof = 0.0, 1
    for sums in partitions:
        size = len(sums)
        if size < 2:
            continue
        value = float((sums**2).sum()) * size / (size - 1)
        # few parts may carry all of it: as many degrees of freedom as parts that count (Carter, Schnepel and Steigerwald, 2017)
        effective = float(np.abs(sums).sum()) ** 2 / max(float((sums**2).sum()), 1e-300)
        free = int(max(min(effective, size - 1.0), 1.0))
        if value > best or dof == 1:
            best, dof = max(value, best), max(free, 2)
    return best, dof


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number on the log scale (or any other), its standard error and degrees of freedom; NaN where it cannot be told."""

    value: float = float("nan")
    se: float = float("nan")
    dof: int = 1

    @property
    def known(self) -> bool:
        """Whether there is a number."""
        return bool(np.isfinite(self.value))

    @property
    def sure(self) -> bool:
        """Whether there is an interval as well."""
        return bool(np.isfinite(self.value) and np.isfinite(self.se))

    def reach(self, level: float) -> float:
        """Return half the width of the interval."""
        return float(stats.t.ppf(0.5 + level / 2, self.dof)) * self.se if self.sure else float("inf")

    def ends(self, level: float) -> tuple[float, float]:
        """Return both ends of the interval; infinite where there is none."""
        return self.value - self.reach(level), self.value + self.reach(level)

    def ratio(self, level: float) -> Interval:
        """Return the exponential with its interval."""
        if not self.known:
            return Interval()
        if not self.sure:
            return Interval(float(np.exp(self.value)))
        low, high = self.ends(level)
        return Interval(float(np.exp(self.value)), float(np.exp(max(low, -50))), float(np.exp(min(high, 50))))

    def plain(self, level: float, unit: str) -> Interval:
        """Return the number itself with its interval."""
        if not self.known:
            return Interval(unit=unit)
        low, high = self.ends(level)
        return Interval(self.value, low, high, unit) if self.sure else Interval(self.value, unit=unit)

    def minus(self, other: Estimate) -> Estimate:
        """Return the difference of two independent estimates."""
        if not (self.known and other.known):
            return Estimate()
        se = float(np.hypot(self.se, other.se)) if self.sure and other.sure else float("nan")
        return Estimate(self.value - other.value, se, min(self.dof, other.dof))

    def with_floor(self, floor: float) -> Estimate:
        """Return it with a standard error that is larger by an independent one."""
        return Estimate(self.value, float(np.hypot(self.se, floor)), self.dof)


UNKNOWN = Estimate()
