"""Whether somebody said more than usual: a ratio of two rates with its interval, and what many comparisons do to it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def rate_ratio(count: int, base: Sequence[int], level: float = 0.9) -> tuple[float, float, float, float]:
    """Compare a count with counts of stretches of the same length.

    Given the sum of two Poisson counts, the first is binomial (Przyborowski and Wilenski, 1940); its exact interval (Clopper and Pearson,
    1934) gives that of the ratio. Lines come in bursts, so both counts are divided by how much more than Poisson's the counts of the
    stretches vary (quasi-Poisson, McCullagh and Nelder, 1989). How much that is, is known from a few stretches only: the chance is at least
    that of Student's t for one more of them, on the scale of square roots (Anscombe, 1948).

    Parameters
    ----------
    count : int
        In the stretch that is asked about.
    base : sequence of int
        In the others.
    level : float
        Of the interval.

    Returns
    -------
    ratio, low, high, p : float
        The ratio of the rates (infinite where the others have none), its interval, and the chance of so many or more if the rate is the
        same.
    """
    from scipy.stats import beta, t

    others, n = np.asarray(base, dtype=np.float64), len(base)
    if not n:
        return math.nan, 0.0, math.inf, 1.0
    mean = float(others.mean())
    spread = float(others.var(ddof=1)) / mean if n > 1 and mean > 0 else 1.0
    spread = max(spread, 1.0)
    x, y = count / spread, float(others.sum()) / spread
    share, alpha = 1 / (1 + n), (1 - level) / 2
    total = x + y
    low = float(beta.ppf(alpha, x, total - x + 1)) if x > 0 else 0.0
    high = float(beta.ppf(1 - alpha, x + 1, total - x)) if total > x else 1.0
    # the chance of at least x, with the incomplete beta function between whole numbers
    p = float(beta.cdf(share, x, total - x + 1)) if x > 0 else 1.0
    roots = np.sqrt(others + 3 / 8)
    if n > 1 and (width := float(roots.std(ddof=1)) * math.sqrt(1 + 1 / n)) > 0:
        p = max(p, float(t.sf((math.sqrt(count + 3 / 8) - float(roots.mean())) / width, n - 1)))
    ratio = math.inf if y == 0 else (x / share * (1 - share)) / y
    return ratio, _odds(low) * n, _odds(high) * n, p


def _odds(share: float) -> float:
    return math.inf if share >= 1 else share / (1 - share)


def holm(p: Sequence[float]) -> list[float]:
    """Correct chances for how many there are (Holm, 1979).

    Parameters
    ----------
    p : sequence of float

    Returns
    -------
    list of float
        In the same order; at most 1.
    """
    order = np.argsort(p, kind="stable")
    made, worst = [0.0] * len(p), 0.0
    for place, i in enumerate(order.tolist()):
        worst = max(worst, min((len(p) - place) * p[i], 1.0))
        made[i] = worst
    return made
