"""Intervals by resampling requests: the steps of one request are not independent, the requests are.

Every statistic here is a function of sums over requests. So a table is summed once per request, and a resample is a matrix
product of how often each request was drawn with those sums. A percentile interval of few requests is too narrow; it is widened
by the ratio of Student's quantile to the normal one and by ``sqrt(G / (G - 1))``, where G is the effective number of requests
(Hesterberg 2015, "What teachers should know about the bootstrap", section 5.3, for the sample mean).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats

from ddtree_metrics.steps.frames import Bools, Floats, Ints

MAX_GROUPS = 2000
"""More requests than this are put into so many random groups: their variance is the same, and memory stays small."""

WIDEST = 20.0
"""An interval of a positive quantity whose ends differ by more than this factor says nothing, and is not given."""


@dataclass(frozen=True)
class Resampler:
    """How often each group was drawn in each resample.

    Attributes
    ----------
    weights : ndarray, shape (resamples, groups)
        Draws of each group.
    groups : int
        Groups that were drawn from.
    level : float
        Level of the intervals.
    """

    weights: NDArray[np.float32]
    groups: int
    level: float

    @classmethod
    def over(cls, groups: int, *, resamples: int, seed: int, level: float) -> Resampler:
        """Draw groups with replacement, ``resamples`` times."""
        rng = np.random.default_rng(seed)
        drawn = rng.multinomial(groups, np.full(groups, 1.0 / groups), size=resamples) if groups else np.zeros((resamples, 0))
        return cls(drawn.astype(np.float32), groups, level)

    def draws(self, sums: Floats) -> Floats:
        """Return the resampled sums, shape (resamples,) + sums.shape[1:], of sums with one row a group."""
        return np.asarray(self.weights @ sums.astype(np.float64, copy=False))


def group_codes(codes: Ints, *, seed: int) -> tuple[Ints, int]:
    """Renumber the groups that occur from 0, and put more than ``MAX_GROUPS`` of them into random groups of groups."""
    found, local = np.unique(codes, return_inverse=True)
    local = local.astype(np.int64).reshape(-1)
    if len(found) <= MAX_GROUPS:
        return local, len(found)
    block = np.random.default_rng(seed).permutation(len(found)) % MAX_GROUPS
    return block[local].astype(np.int64), MAX_GROUPS


def effective(sizes: Floats) -> float:
    """Return the effective number of groups of unequal size: the square of the sum over the sum of squares."""
    total = float(np.nansum(sizes))
    return total**2 / float(np.nansum(np.square(sizes))) if total > 0 else 0.0


def widening(groups: float, level: float) -> float:
    """By how much a percentile interval of so few groups must be stretched."""
    groups = max(groups, 1.5)
    upper = 0.5 + level / 2
    return float(stats.t.ppf(upper, groups - 1) / stats.norm.ppf(upper) * np.sqrt(groups / (groups - 1)))


def around(estimate: float, draws: Floats, groups: float, level: float, *, log: bool = True) -> tuple[float, float]:
    """Make an interval around an estimate from its resampled values.

    Parameters
    ----------
    estimate : float
        The value of the whole sample.
    draws : ndarray
        Its resampled values; those that are not finite are left out.
    groups : float
        The (effective) number of groups that were resampled.
    level : float
        Level of the interval.
    log : bool
        Whether the value is a positive quantity whose errors are relative.

    Returns
    -------
    tuple of float
        Lower and upper end; NaN where there are fewer than two groups or too few usable resamples.
    """
    draws = draws[np.isfinite(draws)]
    if log:
        draws = draws[draws > 0]
        if not estimate > 0:
            log = False
    if groups < 1.0001 or len(draws) < 20 or not np.isfinite(estimate):
        return float("nan"), float("nan")
    away = np.log(draws / estimate) if log else draws - estimate
    low, high = np.quantile(away, [0.5 - level / 2, 0.5 + level / 2]) * widening(groups, level)
    low, high = min(low, 0.0), max(high, 0.0)
    return (float(estimate * np.exp(low)), float(estimate * np.exp(high))) if log else (float(estimate + low), float(estimate + high))


def useless(low: float, high: float) -> bool:
    """Tell whether the interval of a positive quantity is so wide (a factor of ``WIDEST``) that it says nothing."""
    return not low > 0 or high > WIDEST * low


def within(ends: tuple[float, float], floor: float = 0.0, ceiling: float = float("inf")) -> tuple[float, float]:
    """Clip an interval of a positive quantity to what is possible; NaN where it is too wide to be of use.

    Parameters
    ----------
    ends : tuple of float
        Lower and upper end, as ``around`` gives them.
    floor, ceiling : float
        What the quantity cannot leave.

    Returns
    -------
    tuple of float
    """
    low, high = max(ends[0], floor), min(ends[1], ceiling)
    return (low, high) if np.isfinite(ends).all() and not useless(low, high) else (float("nan"), float("nan"))


def token_bounds(tokens: Floats) -> tuple[float, float]:
    """Return what the mean of tokens per step cannot leave: one token a step, and the largest commit that was seen.

    Means over a batch or over a window of steps do not tell the largest commit, and a step that committed nothing lowers the floor.
    """
    known = tokens[np.isfinite(tokens)]
    if not len(known):
        return 0.0, float("inf")
    whole = bool((known == np.round(known)).all())
    return min(1.0, float(known.min())), float(known.max()) if whole else float("inf")


def sums_by(codes: Ints, groups: int, *values: Floats) -> Floats:
    """Sum columns by group, NaN as 0; shape (groups, number of columns)."""
    return np.column_stack([np.bincount(codes, weights=np.nan_to_num(v), minlength=groups) for v in values])


def quantile_draws(values: Floats, codes: Ints, sampler: Resampler, probabilities: tuple[float, ...], bins: int = 400) -> Floats:
    """Resample quantiles of pooled values.

    Parameters
    ----------
    values : ndarray
        Finite values.
    codes : ndarray of int64
        The group of each value.
    sampler : Resampler
        The draws.
    probabilities : tuple of float
        Which quantiles.
    bins : int
        Values are sorted into so many classes of about equal number; a quantile is the mean of its class.

    Returns
    -------
    ndarray, shape (resamples, len(probabilities))
    """
    order = np.argsort(values, kind="stable")
    count = min(bins, len(values))
    klass = np.empty(len(values), dtype=np.int64)
    klass[order] = np.arange(len(values)) * count // len(values)
    centre = np.bincount(klass, weights=values, minlength=count) / np.bincount(klass, minlength=count)
    table = sparse.coo_matrix((np.ones(len(values)), (klass, codes)), shape=(count, sampler.groups)).tocsr()
    drawn = np.cumsum(np.asarray(table @ sampler.weights.T.astype(np.float64)), axis=0)
    total = drawn[-1]
    made = np.full((drawn.shape[1], len(probabilities)), np.nan)
    for column, probability in enumerate(probabilities):
        rank = (drawn < probability * total).sum(axis=0)
        made[:, column] = np.where(total > 0, centre[np.minimum(rank, count - 1)], np.nan)
    return made


def counted(mask: Bools) -> int:
    """How many are true."""
    return int(np.count_nonzero(mask))


def number(value: Any) -> float:
    """Read anything as a float; NaN where it is no number."""
    if isinstance(value, str):
        return float("nan")
    try:
        made = float(value)
    except (TypeError, ValueError):
        return float("nan")
    return made
