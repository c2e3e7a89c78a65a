"""Step time of cells: a sum of what context, batch and the like add, times what starts, breaks and groups do to all of it.

    step time = (a + b1 * context + b2 * (batch - 1) + ...) * exp(g1 * start 2 + ...)

Errors grow in proportion to step time, so it is fitted on the log scale (iterated least squares; cells far off weigh less: Huber,
M-estimation). Slopes stay in milliseconds; a start, a break or a group is a ratio.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ddtree_metrics.metrics.confounding import APART
from ddtree_metrics.metrics.doubt import Estimate, Partitions
from ddtree_metrics.steps.frames import Bools, Floats

HUBER = 2.0
"""Cells further off than so many robust standard deviations weigh less."""

BEND = "bend:"
"""What the names of terms begin with that let another term bend."""

SUM_AND_COUNT = 400.0
"""The limit of variance inflation for the context of a batch and its size (R^2 of 0.9975)."""

LEAST_PART = 0.02
"""The sum is never taken below this part of the mean step time."""


@dataclass(slots=True)
class StepModel:
    """A fitted model of step time.

    Attributes
    ----------
    added, times : tuple of str
        Terms of the sum, in ms for each unit of them; terms of the exponent.
    beta : ndarray
        Intercept, coefficients of ``added``, coefficients of ``times``.
    x, z : ndarray
        The terms of each cell: ``x`` with a column of ones first.
    fitted : ndarray
        Step time of each cell by the model.
    jacobian, bread, factor : ndarray
        Derivative of the log of ``fitted``; inverse of its weighted product; weight of each cell times its residual.
    vif : dict of str to float
        Variance inflation of each term.
    corr : ndarray
        Correlation of the terms' columns of the Jacobian.
    parts : Partitions
        What is independent.
    """

    added: tuple[str, ...]
    times: tuple[str, ...]
    beta: Floats
    x: Floats
    z: Floats
    y: Floats
    weight: Floats
    fitted: Floats
    jacobian: Floats
    bread: Floats
    factor: Floats
    vif: dict[str, float]
    corr: Floats
    parts: Partitions
    loss: float

    @property
    def names(self) -> tuple[str, ...]:
        """All terms, in the order of ``beta`` without the intercept."""
        return self.added + self.times

    def at(self, beta: Floats, x: Floats, z: Floats) -> Floats:
        """Return step times for rows of terms under some coefficients."""
        k = len(self.added) + 1
        base = x @ beta[:k]
        return np.asarray(np.maximum(base, LEAST_PART * abs(beta[0]) + 1e-9) * np.exp(np.clip(z @ beta[k:], -20, 20)))

    def estimate(self, what: Callable[[Floats], float]) -> Estimate:
        """Return a function of the coefficients with its standard error (delta method over the partitions)."""
        value = what(self.beta)
        if not np.isfinite(value):
            return Estimate()
        gradient = np.zeros(len(self.beta))
        for i in range(len(self.beta)):
            h = 1e-5 * max(abs(self.beta[i]), float(np.sqrt(max(self.bread[i, i], 1e-20))), 1e-8)
            up, down = self.beta.copy(), self.beta.copy()
            up[i] += h
            down[i] -= h
            gradient[i] = (what(up) - what(down)) / (2 * h)
        if not np.isfinite(gradient).all():
            return Estimate(value)
        score = (self.jacobian @ (self.bread @ gradient)) * self.factor
        variance, dof = self.parts.variance(score, len(self.beta))
        return Estimate(value, float(np.sqrt(variance)), dof)

    def coefficient(self, name: str) -> Estimate:
        """Return one coefficient."""
        i = 1 + self.names.index(name)
        return self.estimate(lambda beta: float(beta[i]))

    def between(self, x0: Floats, x1: Floats, z0: Floats, z1: Floats) -> Estimate:
        """Return the log of mean step time over the rows ``x1, z1`` by that over ``x0, z0``."""
        return self.estimate(lambda b: float(np.log(self.at(b, x1, z1).mean()) - np.log(self.at(b, x0, z0).mean())))

    def levels(self) -> Floats:
        """Return what starts, breaks and groups do to each cell, as a factor."""
        return np.asarray(np.exp(self.z @ self.beta[len(self.added) + 1 :]))

    def apart(self, name: str) -> bool:
        """Whether a term can be told apart from the others.

        The context of a batch is a sum over it, so that the two always rise together: of these two the limit is wider.
        """
        if self.vif[name] <= APART:
            return True
        other = {"context": "batch", "batch": "context"}.get(name)
        if other not in self.names or self.vif[name] > SUM_AND_COUNT:
            return False
        i, rest = self.names.index(name), [j for j, n in enumerate(self.names) if n not in (name, other) and not n.startswith(BEND)]
        if not rest:
            return True
        inverse = np.linalg.pinv(self.corr[np.ix_(rest, rest)], rcond=1e-10, hermitian=True)
        return 1.0 / max(1.0 - float(self.corr[i, rest] @ inverse @ self.corr[rest, i]), 1e-9) <= APART

    def partners(self, name: str, at_least: float = 0.9) -> list[str]:
        """Return the terms that rise and fall together with this one, the closest first."""
        i = self.names.index(name)
        r = np.abs(self.corr[i])
        return [self.names[j] for j in np.argsort(-r, kind="stable") if j != i and r[j] >= at_least]


def fit_steps(
    y: Floats, weight: Floats, added: dict[str, Floats], times: dict[str, Floats], parts: Partitions, *, keep: Bools | None = None
) -> StepModel | None:
    """Fit step times.

    Parameters
    ----------
    y : ndarray of shape (cells,)
        Step times in ms, positive.
    weight : ndarray
        How many steps each stands for.
    added, times : dict of str to ndarray
        The terms of the sum and of the exponent, finite, not constant.
    parts : Partitions
        What is independent.
    keep : ndarray of bool, optional
        Cells that the coefficients rest on; all if not given.

    Returns
    -------
    StepModel or None
        None where there are too few cells for the terms.
    """
    n, k = len(y), len(added) + 1
    p = k + len(times)
    if n < p + 2:
        return None
    x = np.column_stack([np.ones(n), *added.values()])
    z = np.column_stack([*times.values()]) if times else np.zeros((n, 0))
    spread = np.r_[1.0, [v.std() or 1.0 for v in added.values()]]
    w = np.minimum(weight, 25.0) if weight.max(initial=0) > 0 else np.ones(n)
    w = w / w.mean()
    if keep is not None:
        w = w * keep
    mean = float((w * y).sum() / w.sum())
    relative = w / np.maximum(y, 0.05 * mean) ** 2
    xs = x / spread
    start = np.linalg.lstsq(xs * np.sqrt(relative)[:, None], y * np.sqrt(relative), rcond=1e-9)[0]
    beta = np.r_[start / spread, np.zeros(len(times))]
    log_y = np.log(y)
    huber = np.ones(n)
    scale = 0.0
    for step in range(40):
        base = np.maximum(x @ beta[:k], LEAST_PART * mean)
        log_mu = np.log(base) + z @ beta[k:]
        r = log_y - log_mu
        used = r[w > 0]
        scale = max(1.4826 * float(np.median(np.abs(used - np.median(used)))), 1e-6)
        huber = np.minimum(1.0, HUBER * scale / np.maximum(np.abs(r), 1e-12))
        jac = np.column_stack([x / base[:, None], z])
        size = np.sqrt((jac**2 * w[:, None]).sum(axis=0)) + 1e-300
        root = np.sqrt(w * huber)
        delta = np.linalg.lstsq(jac * root[:, None] / size, r * root, rcond=1e-9)[0] / size
        for _ in range(12):  # a step that makes the sum negative, or the loss larger, is halved
            tried = beta + delta
            if ((x @ tried[:k])[w > 0] > LEAST_PART * mean).mean() > 0.98:
                break
            delta = delta / 2
        beta = beta + delta
        if step > 3 and float(np.max(np.abs(delta) * size / np.sqrt(w.sum()))) < 1e-7:
            break
    base = np.maximum(x @ beta[:k], LEAST_PART * mean)
    mu = base * np.exp(z @ beta[k:])
    r = log_y - np.log(mu)
    jac = np.column_stack([x / base[:, None], z])
    # the derivative of Huber's psi: a cell far off adds nothing to what is known of the coefficients
    inside = w * (huber >= 1.0)
    normal = (jac * inside[:, None]).T @ jac
    size = np.sqrt(np.maximum(np.diag(normal), 1e-300))
    bread = np.linalg.pinv(normal / np.outer(size, size), rcond=1e-9, hermitian=True) / np.outer(size, size)
    vif, corr = _collinearity(jac, w * huber, [*added, *times])
    loss = float((w * np.minimum(np.abs(r), 3 * scale) ** 2).sum() / w.sum())
    return StepModel(tuple(added), tuple(times), beta, x, z, y, w, mu, jac, bread, w * huber * r, vif, corr, parts, loss)


def _collinearity(jac: Floats, w: Floats, names: list[str]) -> tuple[dict[str, float], Floats]:
    """Return how much the variance of each term is inflated by the others, and the correlations of the terms."""
    if not names:
        return {}, np.zeros((0, 0))
    one = jac[:, :1]
    share = (w[:, None] * one * jac[:, 1:]).sum(axis=0) / max(float((w * one[:, 0] ** 2).sum()), 1e-300)
    left = jac[:, 1:] - one * share
    product = (left * w[:, None]).T @ left
    d = np.sqrt(np.maximum(np.diag(product), 1e-300))
    corr = product / np.outer(d, d)
    made = {}
    for i, name in enumerate(names):
        # a bend of a term is no rival of it
        others = [j for j, other in enumerate(names) if j != i and (name.startswith(BEND) or not other.startswith(BEND))]
        if not others:
            made[name] = 1.0
            continue
        inverse = np.linalg.pinv(corr[np.ix_(others, others)], rcond=1e-10, hermitian=True)
        r2 = float(corr[i, others] @ inverse @ corr[others, i])
        made[name] = 1.0 / max(1.0 - r2, 1e-9)
    return made, corr
