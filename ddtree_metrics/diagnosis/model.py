"""A linear model of step time or of tokens per step on all measured causes at once, with intervals that know of requests.

The model is ``y = X b + u_request + e``: what one request has of its own (its text) is a random effect, since steps of one request
are not independent. It is fitted by quasi-demeaning (generalised least squares for an unbalanced one-way layout; Swamy and Arora,
1972); the intervals take the model's variance, or the cluster-robust one (CR1) where that is clearly larger, with Student's t at
clusters minus terms degrees of freedom. Step times are fitted relative to their size, and outliers weigh less (Huber).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

VIF_LIMIT = 25.0
"""A cause that the others predict with R^2 > 0.96 (|r| > 0.98 for one other) is not told apart from them."""

CLEARLY_LARGER = 1.5
"""The cluster-robust variance replaces the model's where it is so many times larger: beyond what its own noise explains."""

HUBER = 2.5
"""Residuals beyond so many robust standard deviations weigh less."""

PART = 1 << 17
"""So many rows are multiplied at a time."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model.

    Attributes
    ----------
    names : tuple of str
        Terms, the intercept not among them.
    beta, cov : ndarray
        Coefficients of the terms and their covariance.
    mean : float
        Mean of ``y``, weighted.
    vif : ndarray
        Variance inflation of each term: 1 / (1 - R^2 on the other terms).
    corr : ndarray
        Correlation of each pair of terms.
    dof, clusters, rows : int
        Degrees of freedom of the intervals; independent clusters; rows.
    residual : ndarray
        ``y`` minus the fitted value of the terms, of every row.
    """

    names: tuple[str, ...]
    beta: Floats
    cov: Floats
    mean: float
    vif: Floats
    corr: Floats
    dof: int
    clusters: int
    rows: int
    residual: Floats

    def combination(self, weights: dict[str, float]) -> tuple[float, float]:
        """Return a linear combination of coefficients and its standard error; terms that are not in the model are left out."""
        c = np.array([weights.get(name, 0.0) for name in self.names])
        return float(c @ self.beta), float(np.sqrt(max(c @ self.cov @ c, 0.0)))

    def partners(self, name: str, at_least: float = 0.9) -> list[str]:
        """Return the terms that rise and fall together with this one, the closest first."""
        i = self.names.index(name)
        r = np.abs(self.corr[i])
        order = [j for j in np.argsort(-r, kind="stable") if j != i and r[j] >= at_least]
        return [self.names[j] for j in order]


def fit(y: Floats, terms: dict[str, Floats], cluster: Ints, weight: Floats | None = None, *, relative: bool = False) -> Fit | None:
    """Fit ``y`` on all terms.

    Parameters
    ----------
    y : ndarray of shape (n,)
        Finite values; positive if ``relative``.
    terms : dict of str to ndarray of shape (n,)
        The causes, finite. Constant ones must be left out before.
    cluster : ndarray of int of shape (n,)
        What each row belongs to; rows of one cluster may depend on each other.
    weight : ndarray of shape (n,), optional
        How much each row counts.
    relative : bool
        Whether errors grow in proportion to ``y`` (step times), and outliers are to weigh less.

    Returns
    -------
    Fit or None
        None where there are not more rows than terms, or only one cluster.
    """
    n, names = len(y), tuple(terms)
    p = len(names) + 1
    if n < p + 2:
        return None
    order = np.argsort(cluster, kind="stable")
    codes = cluster[order]
    starts = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
    if len(starts) < 2:
        return None
    y = y[order]
    w = np.ones(n) if weight is None else weight[order] / weight.mean()
    # a column at a time: a long log has millions of rows, and one matrix of them is enough
    x = np.ones((n, p))
    spread = np.ones(len(names))
    for j, name in enumerate(names):
        column = terms[name][order]
        column = column - (w * column).sum() / w.sum()
        spread[j] = np.sqrt((w * column**2).sum() / w.sum()) or 1.0
        x[:, j + 1] = column / spread[j]
    mean = float((w * y).sum() / w.sum())

    b = _solve(x, y, w)
    use = w
    if relative:
        for _ in range(4):
            mu = np.maximum(x @ b, 0.05 * mean)
            r = (y - mu) / mu
            scale = 1.4826 * float(np.median(np.abs(r - np.median(r)))) or 1e-9
            huber = np.minimum(1.0, HUBER * scale / np.maximum(np.abs(r), 1e-12))
            use = w * huber * (mean / mu) ** 2
            b = _solve(x, y, use)
    root = np.sqrt(use)
    ys, xs = y * root, x * root[:, None]
    sizes = np.diff(np.r_[starts, n])
    theta = _theta(ys - xs @ b, starts, sizes, p)
    if theta.any():
        ys = _demean(ys, starts, sizes, theta)
        for j in range(p):
            xs[:, j] = _demean(xs[:, j], starts, sizes, theta)
        b = np.linalg.lstsq(xs.T @ xs, xs.T @ ys, rcond=1e-10)[0]
    e = ys - xs @ b
    bread = np.linalg.pinv(xs.T @ xs, rcond=1e-10, hermitian=True)
    model = bread * (float(e @ e) / max(n - p, 1))
    scores = np.column_stack([np.add.reduceat(xs[:, j] * e, starts) for j in range(p)])
    g = len(starts)
    robust = bread @ (scores.T @ scores) @ bread * (g / (g - 1))
    ratio = np.maximum(np.diag(robust), 1e-300) / np.maximum(np.diag(model), 1e-300)
    wider = np.sqrt(np.where(ratio > CLEARLY_LARGER, ratio, 1.0))
    cov = model * np.outer(wider, wider)
    beta = b[1:] / spread
    cov = cov[1:, 1:] / np.outer(spread, spread)
    residual = np.empty(n)
    residual[order] = y - x @ b
    vif, corr = _collinearity(x[:, 1:], w)
    return Fit(names, beta, cov, mean, vif, corr, max(g - p, 1), g, n, residual)


def _solve(x: Floats, y: Floats, w: Floats) -> Floats:
    p = x.shape[1]
    left, right = np.zeros((p, p)), np.zeros(p)
    for begin in range(0, len(x), PART):
        part = slice(begin, begin + PART)
        xw = x[part] * w[part, None]
        left += xw.T @ x[part]
        right += xw.T @ y[part]
    return np.asarray(np.linalg.lstsq(left, right, rcond=1e-10)[0], dtype=np.float64)


def _theta(r: Floats, starts: Ints, sizes: Ints, p: int) -> Floats:
    """How much of each cluster's mean to take off, from the variances within and between clusters."""
    n, g = len(r), len(starts)
    means = np.add.reduceat(r, starts) / sizes
    within = float(((r - np.repeat(means, sizes)) ** 2).sum()) / max(n - g, 1) if n > g else 0.0
    if n <= g or g <= p:
        return np.zeros(g)
    between = float((sizes * means**2).sum()) / (g - p)
    typical = (n - float((sizes.astype(float) ** 2).sum()) / n) / (g - 1)
    tau2 = max(0.0, (between - within) / max(typical, 1e-12))
    if tau2 == 0.0:
        return np.zeros(g)
    return 1.0 - np.sqrt(within / (within + sizes * tau2))


def _demean(values: Floats, starts: Ints, sizes: Ints, theta: Floats) -> Floats:
    sums = np.add.reduceat(values, starts)
    return values - np.repeat(theta * sums / sizes, sizes)


def _collinearity(z: Floats, w: Floats) -> tuple[Floats, Floats]:
    k = z.shape[1]
    if k == 0:
        return np.zeros(0), np.zeros((0, 0))
    corr = np.zeros((k, k))
    for begin in range(0, len(z), PART):
        part = z[begin : begin + PART]
        corr += (part * w[begin : begin + PART, None]).T @ part
    corr /= w.sum()
    d = np.sqrt(np.maximum(np.diag(corr), 1e-300))
    corr = corr / np.outer(d, d)
    vif = np.ones(k)
    for i in range(k):
        others = [j for j in range(k) if j != i]
        if others:
            a = np.linalg.pinv(corr[np.ix_(others, others)], rcond=1e-10, hermitian=True)
            r2 = float(corr[i, others] @ a @ corr[others, i])
            vif[i] = 1.0 / max(1.0 - r2, 1e-9)
    return vif, corr
