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
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse, stats

from ddtree_metrics.metrics import columns as cols
from ddtree_metrics.metrics.columns import Bools, Floats, Ints

MAX_GROUPS = 2000
"""More requests than this are put into so many random groups: their variance is the same, and memory stays small."""

WIDEST = 20.0
"""An interval of a positive quantity whose ends differ by more than this factor says nothing, and is not given."""

MIN_MATCH = 8
"""Two requests are called the same prompt only if at least so many first steps committed the same tokens."""


@dataclass(frozen=True)
class PromptKeys:
    """Which rows belong to the same prompt.

    Attributes
    ----------
    codes : ndarray of int64
        The prompt's number for each row, from 0.
    request_codes : ndarray of int64
        The request's number for each row.
    prompts, requests : int
        How many there are.
    source : str
        ``prompt_id`` (a column said it), ``sequence`` (same length and the same commits, step for step), ``request_id`` (nothing
        tells repeats apart: each request counts as a prompt of its own), or ``stretch`` (no request is known: a stretch of steps
        without a break stands for one).
    known : ndarray of bool, optional
        Rows whose request is known; the others are in stretches, which are no requests. All rows, or none where the source is
        ``stretch``, if not given.

    Notes
    -----
    Without the texts (``prompt_id``) nobody can know that two prompts differ: ``prompts`` is then the most there can be.
    """

    codes: Ints
    request_codes: Ints
    prompts: int
    requests: int
    source: str
    known: Bools | None = None

    def counts(self, rows: Ints | None = None) -> tuple[int, int]:
        """Return how many requests and how many prompts are among some rows (all if not given); stretches are neither."""
        mine = np.arange(len(self.codes)) if rows is None else rows
        if self.known is not None:
            mine = mine[self.known[mine]]
        elif self.source == "stretch":
            return 0, 0
        return len(np.unique(self.request_codes[mine])), len(np.unique(self.codes[mine]))

    def distinct(self, count: int) -> str:
        """Write a number of distinct prompts, ``at most 23 distinct prompts`` where the texts are not known."""
        sure = self.source == "prompt_id" or count < 2
        return f"{'' if sure else 'at most '}{cols.plural(count, 'distinct prompt')}"


def prompt_keys(request_steps: pd.DataFrame) -> PromptKeys:
    """Find out which requests are repeats of one prompt.

    A benchmark that sends one prompt twenty times has twenty requests and one prompt, and says nothing about other prompts. A log
    does not hold the text. Two requests are taken as the same prompt if a column ``prompt_id`` says so, or if their prompts are
    equally long and their first steps committed the same number of tokens, step for step, over so many steps that chance cannot
    explain it (fewer than one false match in a hundred such tables).

    Parameters
    ----------
    request_steps : pandas.DataFrame
        One row a request a step.

    Returns
    -------
    PromptKeys
    """
    requests, rows_known = _request_codes(request_steps)
    known = bool(rows_known.any())
    count = int(requests.max(initial=-1)) + 1
    source = "request_id" if known else "stretch"
    if not count:
        return PromptKeys(requests, requests, 0, 0, source, rows_known)
    if cols.has(request_steps, "prompt_id"):
        prompt = cols.codes(request_steps, ("prompt_id",))
        null = np.asarray(request_steps["prompt_id"].isna())
        prompt = np.where(null, int(prompt.max()) + 1 + requests, prompt)
        made = np.unique(prompt, return_inverse=True)[1].astype(np.int64)
        return PromptKeys(made, requests, int(made.max()) + 1, count, "prompt_id", rows_known)
    merged = _same_sequences(request_steps, requests, count) if known and cols.has(request_steps, "prompt_len") else None
    if merged is None:
        return PromptKeys(requests, requests, count, count, source, rows_known)
    return PromptKeys(merged[requests], requests, int(merged.max()) + 1, count, "sequence", rows_known)


def _request_codes(frame: pd.DataFrame) -> tuple[Ints, Bools]:
    """Give each row the number of its request; rows without one get the number of their stretch of unbroken steps."""
    rows = len(frame)
    if "request_id" in frame.columns:
        part, distinct = pd.factorize(frame["request_id"], use_na_sentinel=True)
        made = np.asarray(part, dtype=np.int64)
    else:
        made, distinct = np.full(rows, -1, dtype=np.int64), pd.Index([])
    null = made < 0
    if null.any():
        streams = cols.stream_codes(frame)
        order = np.argsort(streams, kind="stable")
        timed = "step_us" in frame.columns or "step_time_ms" in frame.columns
        broken = np.isnan(cols.step_ms(frame)) if timed else np.zeros(rows, dtype=bool)
        starts = np.concatenate([[True], np.diff(streams[order]) != 0]) | (broken[order] if not broken.all() else False)
        stretch = np.empty(rows, dtype=np.int64)
        stretch[order] = np.cumsum(starts)
        made = np.where(null, len(distinct) + stretch, made)
    made = np.unique(made, return_inverse=True)[1].astype(np.int64).reshape(-1)
    return made, ~null


def _same_sequences(frame: pd.DataFrame, requests: Ints, count: int) -> Ints | None:
    """Give each request the number of its prompt, by prompt length and first commits; None if no two are the same."""
    tokens = cols.numeric(frame, "tokens")
    usable = np.isfinite(tokens)
    if "matched" in frame.columns:
        usable &= cols.text(frame, "matched") != "shared"
    if not usable.any():
        return None
    shares = np.unique(tokens[usable], return_counts=True)[1] / usable.sum()
    coincidence = float((shares**2).sum())
    lengths = np.full(count, np.nan)
    lengths[requests] = cols.numeric(frame, "prompt_len")
    _, twins = np.unique(lengths[np.isfinite(lengths)], return_counts=True)
    pairs = float((twins * (twins - 1) / 2).sum())
    if pairs == 0 or coincidence > 0.98:
        return None
    need = max(MIN_MATCH, int(np.ceil(np.log(0.01 / pairs) / np.log(coincidence))))
    picked = np.flatnonzero(usable)
    picked = picked[np.argsort(requests[picked], kind="stable")]
    who = requests[picked]
    starts = np.flatnonzero(np.concatenate([[True], np.diff(who) != 0]))
    sizes = np.diff(np.concatenate([starts, [len(who)]]))
    long = (sizes >= need) & np.isfinite(lengths[who[starts]])
    if long.sum() < 2:
        return None
    window = tokens[picked[(starts[long][:, None] + np.arange(need)[None, :])]]
    keys = np.column_stack([lengths[who[starts[long]]], window])
    inverse = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    if len(np.unique(inverse)) == len(inverse):
        return None
    made = np.arange(count, dtype=np.int64) + len(inverse)
    made[who[starts[long]]] = inverse
    return np.unique(made, return_inverse=True)[1].astype(np.int64).reshape(-1)


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
