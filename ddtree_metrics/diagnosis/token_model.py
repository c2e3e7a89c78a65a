"""Tokens per step of requests: what changes within a request, and what differs from request to request.

How much is accepted depends on the text, and the text of a request is not in the log. What changes *within* a request (its context as it
grows, the batch around it) cannot be its text; what differs only *between* requests (how long the prompt is, whether it was cached) can.
So both slopes are estimated, side by side (Mundlak, 1978): the first from the deviations of steps from their request's mean, the second
from the means of requests, whose weight knows that a text is one observation (random effects; variances by moments, Swamy and Arora,
1972). The standard errors are cluster-robust.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from ddtree_metrics.metrics.confounding import APART
from ddtree_metrics.metrics.doubt import Estimate, Partitions
from ddtree_metrics.steps.frames import Floats, Ints


@dataclass(slots=True)
class Linear:
    """A weighted linear fit with cluster-robust standard errors.

    Attributes
    ----------
    names : tuple of str
        Terms, without the intercept.
    beta : ndarray
        Intercept (0 for a fit of deviations) and coefficients.
    bread : ndarray
        Inverse of the weighted product of the columns.
    scores : ndarray of shape (rows, terms + 1)
        Each row's part in the error of the normal equations.
    vif : dict of str to float
        Variance inflation of each term.
    """

    names: tuple[str, ...]
    beta: Floats
    bread: Floats
    scores: Floats
    residual: Floats
    weight: Floats
    parts: Partitions
    vif: dict[str, float]

    def combination(self, wanted: dict[str, float], constant: float = 0.0) -> Estimate:
        """Return a linear combination of the coefficients; names that are not there count nothing."""
        c = np.r_[constant, [wanted.get(name, 0.0) for name in self.names]]
        variance, dof = self.parts.variance(self.scores @ (self.bread @ c), len(self.beta))
        return Estimate(float(c @ self.beta), float(np.sqrt(variance)), max(dof - len(self.beta) + 1, 2))


def linear(y: Floats, weight: Floats, terms: dict[str, Floats], parts: Partitions, *, constant: bool = True) -> Linear | None:
    """Fit a weighted linear model; None where there are too few rows."""
    names = tuple(terms)
    n = len(y)
    if n < len(names) + 2:
        return None
    x = np.column_stack([np.full(n, float(constant)), *(terms[k] for k in names)])
    size = np.sqrt((x**2 * weight[:, None]).sum(axis=0))
    size = np.where(size > 0, size, 1.0)
    normal = (x * weight[:, None]).T @ x / np.outer(size, size)
    bread = np.linalg.pinv(normal, rcond=1e-9, hermitian=True) / np.outer(size, size)
    beta = bread @ (x.T @ (weight * y))
    residual = y - x @ beta
    # HC2-like: a row that pulls the line to itself hides its own error
    pull = np.clip(np.einsum("ij,jk,ik->i", x, bread, x) * weight, 0.0, 0.9)
    scores = x * (weight * residual / np.sqrt(1.0 - pull))[:, None]
    vif = {}
    for i, name in enumerate(names, 1):
        others = [j for j in range(1, len(names) + 1) if j != i] + ([0] if constant else [])
        vif[name] = 1.0
        if others:
            a = np.linalg.pinv(normal[np.ix_(others, others)], rcond=1e-10, hermitian=True)
            explained = float(normal[i, others] @ a @ normal[others, i])
            share = (
                1.0 - float(((x[:, i] * weight).sum() / max(weight.sum(), 1e-300)) ** 2) * weight.sum() / size[i] ** 2 if constant else 1.0
            )
            vif[name] = max(share, 1e-12) / max(normal[i, i] - explained, 1e-12)
    return Linear(names, beta, bread, scores, residual, weight, parts, vif)


@dataclass(slots=True)
class TokenModel:
    """What tokens per step go with, within requests and between them.

    Attributes
    ----------
    within, between : Linear or None
        Both fits; None where there is nothing to fit.
    mean : float
        Mean tokens per step over requests, as weighted in ``between``.
    person : ndarray of int
        The cells' request, as a row number of ``between``.
    requests : int
        How many requests.
    weight : ndarray
        Weight of each request in ``between``.
    owner : ndarray of int
        Prompt of each request.
    columns : dict of str to ndarray
        Means of the columns over each request.
    y : ndarray
        Mean tokens per step of each request, what moved within it taken off.
    raw : ndarray
        The same as logged.
    carried : dict of str to float
        By how many requests each slope within requests is carried: as many as would weigh the same if all weighed alike.
    """

    within: Linear | None
    between: Linear | None
    mean: float
    person: Ints
    requests: int
    weight: Floats
    owner: Ints
    columns: dict[str, Floats]
    y: Floats
    raw: Floats
    carried: dict[str, float]

    def slope(self, name: str, *, within: bool) -> Estimate:
        """Return a slope; unknown where it was not fitted, or is not told apart from another term."""
        found = self.within if within else self.between
        if found is None or name not in found.names or found.vif[name] > APART:
            return Estimate()
        return found.combination({name: 1.0})


def fit_tokens(
    y: Floats,
    weight: Floats,
    person: Ints,
    owner: Ints,
    time_us: Ints,
    moving: dict[str, Floats],
    fixed: dict[str, Floats],
    *,
    levels: dict[str, Floats] | None = None,
) -> TokenModel | None:
    """Fit tokens per step of cells.

    Parameters
    ----------
    y, weight : ndarray of shape (cells,)
        Tokens per step, and request-steps each stands for.
    person, owner : ndarray of int
        The request of each cell, and its prompt.
    time_us : ndarray of int
        When.
    moving : dict of str to ndarray
        Terms whose deviations within a request are fitted; the means of requests are corrected for those that are not in ``fixed``.
    fixed : dict of str to ndarray
        Terms of the means of requests.
    levels : dict of str to ndarray, optional
        Starts, breaks and groups: terms of the means of requests as well.

    Returns
    -------
    TokenModel or None
        None where there are fewer than three requests.
    """
    names, code = np.unique(person, return_inverse=True)
    n = len(names)
    if n < 3:
        return None
    total = np.bincount(code, weight, n)

    def mean(values: Floats) -> Floats:
        return np.asarray(np.bincount(code, weight * values, n) / total)

    raw = mean(y)
    deviation = y - raw[code]
    inner = {k: v - mean(v)[code] for k, v in moving.items()}
    inner = {k: v for k, v in inner.items() if float((weight * v**2).sum() / weight.sum()) > 1e-10}
    own = Partitions.of(owner, time_us, np.zeros(len(y), np.int64), blocks=False)
    within = linear(deviation, weight, inner, own, constant=False) if inner else None
    carried = {}
    for name, values in inner.items():
        pull = np.bincount(code, weight * values**2, n)
        carried[name] = float(pull.sum() ** 2 / max(float((pull**2).sum()), 1e-300))
    rest = deviation if within is None else within.residual
    counts = np.bincount(code, minlength=n)
    free = max(int((counts - 1).sum()), 1)
    noise = float((weight * rest**2).sum()) / free if free > 1 else float(weight.mean())
    adjusted = raw.copy()
    if within is not None:
        for name in (n for n in within.names if n not in fixed):
            slope = within.combination({name: 1.0})
            # a slope that is not known is not taken off
            if slope.sure and abs(slope.value) > 2.0 * slope.se:
                values = mean(moving[name])
                # a slope between requests that is asked for as well is that of what was seen, not what is left of it
                adjusted -= slope.value * (values - values.mean())
    outer = {k: mean(v) for k, v in fixed.items()}
    outer |= {k: mean(v) for k, v in (levels or {}).items()}
    outer = {k: v for k, v in outer.items() if np.ptp(v) > 0}
    first = np.zeros(n, np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]
    texts, when = owner[first], time_us[first]
    parts = Partitions.of(texts, when, np.zeros(n, np.int64), blocks=False)
    w = np.ones(n)
    between = None
    spread = 0.0
    for _ in range(3):
        between = linear(adjusted, w, outer, parts)
        if between is None:
            break
        # variance between requests by moments: what is left over beyond the noise of their own steps
        left = between.residual
        dof = max(n - len(outer) - 1, 1)
        spread = max(float((left**2).sum()) / dof - float((noise / total).mean()), 0.0)
        w = 1.0 / np.maximum(spread + noise / total, 1e-9)
        w = w / w.mean()
    average = float((w * adjusted).sum() / w.sum())
    columns = {k: mean(v) for k, v in {**moving, **fixed, **(levels or {})}.items()}
    return TokenModel(within, between, average, code, n, w, texts, columns, adjusted, raw, carried)


def likelihood(seen: Estimate, expected: float, doubt: float = 0.0) -> float:
    """Return the log of how likely an estimate is where the truth is ``expected``, known to ``doubt``."""
    if not seen.sure:
        return 0.0
    se = float(np.hypot(seen.se, doubt))
    return float(stats.t.logpdf((seen.value - expected) / max(se, 1e-12), max(seen.dof, 3)) - np.log(max(se, 1e-12)))


SIDE = 0.25
"""A request is on the upper side of a quantity if it lies beyond this share of its range."""


def halves(values: Floats, owner: Ints) -> tuple[int, int]:
    """Count the distinct prompts of requests on the lower and on the upper side of a quantity."""
    edge = float(values.min()) + SIDE * float(np.ptp(values))
    return len(np.unique(owner[values <= edge])), len(np.unique(owner[values > edge]))
