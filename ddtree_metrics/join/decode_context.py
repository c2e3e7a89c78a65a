"""Context length from ``Decode batch`` lines, where no request tells it.

``#token`` is what the pool holds for all running requests, slots held ahead included (17 to 23 a request more than the context in
one real capture). In the line of a request's last step its tokens are gone already, while ``#running-req`` still counts it. So it is an
estimate, marked as such, and left out where the number is zero, does not move, is rounded to pages too large for it, or where somebody
may have left with the step of the line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddtree_metrics.join.prepare import UNKNOWN, Ints, StepColumns

PRECISION = 0.02
"""Rounding to pages may move the context by this share of it, not more."""

LEAST = 16
"""... or by so many tokens, whichever is more."""

WINDOW = 200
"""A line further away than so many steps says nothing of a step."""


@dataclass(slots=True)
class DecodeContext:
    """What the lines gave: an estimate (mean over the batch, in tokens) for some steps, and how many lines were no use."""

    estimates: dict[int, tuple[float, int]]
    used: int = 0
    zero: int = 0
    constant: int = 0
    rounded: int = 0
    left: int = 0


def usable(tokens: Ints, running: Ints) -> tuple[np.ndarray, int, int, int]:
    """Tell which lines of one stream say something of the context.

    Returns
    -------
    good : ndarray of bool
    zero, constant, rounded : int
        How many lines were left out for each reason.
    """
    good = (running > 0) & (tokens > 0)
    zero = int(((running > 0) & (tokens == 0)).sum())
    still = np.zeros(len(tokens), bool)
    if len(tokens) > 1:
        same = (tokens[1:] == tokens[:-1]) & (tokens[1:] > 0)  # whatever the batch: two batches do not hold the very same number
        still[1:] |= same
        still[:-1] |= same
        still |= np.isin(tokens, tokens[still])
    constant = int((good & still).sum())
    good &= ~still
    some = tokens[good]
    page = int(np.gcd.reduce(some)) if len(some) >= 3 else 1
    coarse = np.zeros(len(tokens), bool)
    if page > 1:
        context = tokens / np.maximum(running, 1)
        coarse = good & (page > np.maximum(PRECISION * context, LEAST))
    rounded = int(coarse.sum())
    return good & ~coarse, zero, constant, rounded


def from_decode_lines(steps: StepColumns, decode: pd.DataFrame, wanted: np.ndarray) -> DecodeContext:
    """Estimate the context of steps whose requests are not known.

    Parameters
    ----------
    steps : StepColumns
        The steps.
    decode : DataFrame
        The table ``decode`` of the same log.
    wanted : ndarray of bool, shape (steps,)
        For which steps.

    Returns
    -------
    DecodeContext
    """
    made = DecodeContext({})
    if not len(decode) or not wanted.any():
        return made
    time = pd.to_datetime(decode["time"], utc=True).astype("datetime64[us, UTC]")
    t = np.where(time.isna(), UNKNOWN, time.astype("int64"))
    tokens = pd.to_numeric(decode["tokens"], errors="coerce").astype("Float64").fillna(-1).to_numpy(np.float64).astype(np.int64)
    running = pd.to_numeric(decode["running"], errors="coerce").astype("Float64").fillna(-1).to_numpy(np.float64).astype(np.int64)
    streams = decode["stream"].astype("string").fillna("-").to_numpy(dtype=object) if "stream" in decode else np.full(len(t), "-", object)
    for run in steps.runs:
        mine = (streams == run.stream) & (t != UNKNOWN) if "stream" in decode else t != UNKNOWN
        at = np.flatnonzero(mine)
        at = at[np.argsort(t[at], kind="stable")]
        lo, hi = run.begin, run.end
        inside = at[(t[at] >= steps.time[lo:hi].min()) & (t[at] <= steps.time[lo:hi].max() + 1_000_000)]
        good, zero, constant, rounded = usable(tokens[inside], running[inside])
        made.zero, made.constant, made.rounded = made.zero + zero, made.constant + constant, made.rounded + rounded
        kept = inside[good]
        if not len(kept):
            continue
        after = lo + np.searchsorted(steps.time[lo:hi], t[kept], side="right")  # the line follows the step before this one
        fits = steps.batch[np.maximum(after - 1, lo)] == running[kept]
        kept, after = kept[fits], after[fits]
        broken = _broken(steps, lo, hi)
        gone = _somebody_left(steps, lo, hi, after) | _fallen(after - 1 - lo, tokens[kept], broken)
        made.left += int(gone.sum())
        kept, after = kept[~gone], after[~gone]
        made.used += len(kept)
        _spread(steps, lo, hi, after, tokens[kept], running[kept], broken, wanted, made)
    return made


def _broken(steps: StepColumns, lo: int, hi: int) -> Ints:
    """Give a number to each stretch of steps over which the batch was the same; a step that follows a prefill is a stretch of its own."""
    changed = steps.batch[lo + 1 : hi] != steps.batch[lo : hi - 1]
    fresh = steps.fresh[lo:hi]
    after = np.concatenate([[False], fresh[:-1]])[1:]  # the line of a prefill may be printed before the step that ran when it was scheduled
    return np.cumsum(np.concatenate([[0], changed | fresh[1:] | after]))


def _somebody_left(steps: StepColumns, lo: int, hi: int, after: Ints) -> np.ndarray:
    """Whether a request may have ended with the step before ``after``: fewer come next, as many after a prefill, or nothing is known."""
    last = after >= hi
    step, following = np.maximum(after - 1, lo), np.minimum(after, hi - 1)
    fewer = steps.batch[following] < steps.batch[step]
    replaced = (steps.batch[following] == steps.batch[step]) & steps.fresh[following]
    return last | fewer | replaced


def _fallen(step: Ints, tokens: Ints, broken: Ints) -> np.ndarray:
    """Whether the number fell since the line before although the same batch has only written since."""
    fallen = np.zeros(len(tokens), bool)
    if len(tokens) > 1:
        fallen[1:] = (broken[step[1:]] == broken[step[:-1]]) & (tokens[1:] < tokens[:-1])
    return fallen


def _spread(
    steps: StepColumns, lo: int, hi: int, after: Ints, tokens: Ints, running: Ints, broken: Ints, wanted: np.ndarray, made: DecodeContext
) -> None:
    """Carry each line's number to the steps around it over which the batch was the same, by what they committed."""
    total = np.maximum(steps.total[lo:hi], 0)
    cum = np.concatenate([[0], np.cumsum(total)])
    for k in (np.flatnonzero(wanted[lo:hi]) + lo).tolist():
        j = int(np.searchsorted(after, k, side="right"))
        for i in (j, j - 1):  # the next line, then the one before
            if not 0 <= i < len(after):
                continue
            step = int(after[i]) - 1
            if abs(step - k) > WINDOW or not lo <= step < hi or broken[step - lo] != broken[k - lo] or running[i] != steps.batch[k]:
                continue
            context = (tokens[i] - (cum[after[i] - lo] - cum[k - lo])) / running[i]
            if context > 0:
                made.estimates[k] = (float(context), int(running[i]))
                break
