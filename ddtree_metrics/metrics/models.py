"""The regression behind the fits: few terms, many rows, resampling and cross-validation by request.

Rows are first made harmless (a residual from a flexible pilot fit is cut at three robust standard deviations, so that a stall does
not bend a line) and then summed into cells of one request, one context class and one batch. From there on everything is sums of
cross products by request: a fit, a fold left out, a resample differ only in how often each request's sums are added.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddtree_metrics.metrics.intervals import Resampler, effective, group_codes
from ddtree_metrics.steps.frames import Floats, Ints

CUT = 3.0
"""Residuals are cut at this many robust standard deviations."""

CELL_ROWS = 20_000
"""More rows than this are summed into cells."""

KNEES = 30
"""Knees tried, at quantiles of the context."""

FOLDS = 10


def huber(design: Floats, y: Floats, weight: Floats, *, rounds: int = 25, k: float = 1.345) -> Floats:
    """Fit a linear model by iterated reweighting with Huber's weights; returns the coefficients."""
    root = np.sqrt(weight)
    beta = np.linalg.lstsq(design * root[:, None], y * root, rcond=None)[0]
    for _ in range(rounds):
        away = (y - design @ beta) * root
        scale = 1.4826 * float(np.median(np.abs(away)))
        if not scale > 0:
            break
        size = np.abs(away) / scale
        pull = weight * np.where(size <= k, 1.0, k / np.maximum(size, 1e-300))
        both = np.sqrt(pull)
        new = np.linalg.lstsq(design * both[:, None], y * both, rcond=None)[0]
        done = float(np.max(np.abs(new - beta))) <= 1e-9 * max(1.0, float(np.max(np.abs(beta))))
        beta = new
        if done:
            break
    return np.asarray(beta)


def without_outliers(x: Floats, extra: Floats, y: Floats, seed: int) -> tuple[Floats, Floats]:
    """Cut the residuals from a flexible pilot fit; returns the tamed values and the weight of each row.

    Noise of a step time grows with it, so weights are one over the squared pilot value, and residuals are relative.
    """
    scaled = x / max(float(np.max(np.abs(x), initial=0.0)), 1e-9)
    hinges = np.unique(np.quantile(scaled, [0.25, 0.5, 0.75])) if len(x) >= 40 else np.empty(0)
    terms = [np.ones(len(x)), scaled, *[np.maximum(scaled - h, 0.0) for h in hinges]]
    spread = np.abs(extra).max(axis=0, initial=0.0) if extra.size else np.ones(extra.shape[1])
    design = np.column_stack([*terms, extra / np.where(spread > 0, spread, 1.0)])
    pick = np.arange(len(x))
    if len(x) > 50_000:
        pick = np.random.default_rng(seed).choice(len(x), 50_000, replace=False)
    pilot = design @ huber(design[pick], y[pick], np.ones(len(pick)))
    middle = float(np.median(y))
    pilot = np.clip(pilot, 0.2 * middle, None) if middle > 0 else pilot
    if middle > 0:
        pilot = design @ huber(design[pick], y[pick], 1.0 / np.square(pilot[pick]))
        pilot = np.clip(pilot, 0.2 * middle, None)
        relative = (y - pilot) / pilot
        scale = 1.4826 * float(np.median(np.abs(relative)))
        limit = CUT * scale if scale > 0 else np.inf
        return pilot * (1.0 + np.clip(relative, -limit, limit)), 1.0 / np.square(pilot / middle)
    return y, np.ones(len(y))


@dataclass(frozen=True)
class Cells:
    """Observations summed into cells: request, context class, batch, nodes.

    Attributes
    ----------
    x, extra, y : ndarray
        Mean context, the other terms (one column each) and mean value of each cell.
    weight : ndarray
        Weight of each cell.
    group : ndarray of int64
        Request (or group of requests) of each cell.
    groups : int
        How many there are.
    effective : float
        Effective number of requests.
    """

    x: Floats
    extra: Floats
    y: Floats
    weight: Floats
    group: Ints
    groups: int
    effective: float

    @classmethod
    def of(cls, x: Floats, extra: Floats, y: Floats, weight: Floats, codes: Ints, *, seed: int) -> Cells:
        """Sum rows into cells."""
        group, groups = group_codes(codes, seed=seed)
        sizes = effective(np.bincount(group, minlength=groups).astype(float))
        if len(x) <= CELL_ROWS:
            return cls(x, extra, y, weight, group, groups, sizes)
        grid = np.unique(np.quantile(x, np.linspace(0, 1, 129)[1:-1]))
        key = group * (len(grid) + 1) + np.searchsorted(grid, x)
        for column in extra.T:
            part = np.unique(column, return_inverse=True)[1].reshape(-1)
            key = np.unique(key * (int(part.max()) + 1) + part, return_inverse=True)[1].reshape(-1)
        cell = np.unique(key, return_inverse=True)[1].reshape(-1)
        count = int(cell.max()) + 1
        total = np.bincount(cell, weights=weight, minlength=count)

        def mean(values: Floats) -> Floats:
            return np.asarray(np.bincount(cell, weights=weight * values, minlength=count) / total)

        owner = np.zeros(count, dtype=np.int64)
        owner[cell] = group
        extras = np.column_stack([mean(c) for c in extra.T]) if extra.shape[1] else np.zeros((count, 0))
        return cls(mean(x), extras, mean(y), total.astype(float), owner, groups, sizes)


@dataclass(frozen=True)
class Model:
    """One form of the curve: which columns it has, and where its knee is.

    Attributes
    ----------
    kind : str
        ``flat``, ``line``, ``bend`` (a line that changes slope at the knee), ``drop`` (a line that jumps at the knee) or ``curve``
        (a parabola).
    knee : float
        Where it bends or jumps; NaN for the others.
    """

    kind: str
    knee: float = float("nan")

    def design(self, x: Floats, extra: Floats) -> Floats:
        """Return the design matrix, context in thousands of tokens."""
        k = x / 1000.0
        terms = [np.ones(len(x))]
        if self.kind != "flat":
            terms.append(k)
        if self.kind == "bend":
            terms.append(np.maximum(k - self.knee / 1000.0, 0.0))
        elif self.kind == "drop":
            terms.append((x > self.knee).astype(float))
        elif self.kind == "curve":
            terms.append(np.square(k))
        return np.column_stack([*terms, extra])


class Regression:
    """Fits of one set of cells, by sums over requests."""

    def __init__(self, cells: Cells, *, seed: int) -> None:
        self.cells = cells
        self.seed = seed
        rng = np.random.default_rng(seed)
        self.fold = rng.permutation(cells.groups) % min(FOLDS, max(cells.groups, 1))
        low, high = (float(q) for q in np.quantile(cells.x, [0.05, 0.95])) if len(cells.x) else (0.0, 0.0)
        self.grid = np.unique(np.linspace(low, high, KNEES)) if high > low else np.empty(0)
        self._sums: dict[Model, tuple[Floats, Floats]] = {}

    def knees(self, kind: str, minimum: int = 2) -> list[Model]:
        """List models of a kind at every knee that has data of enough requests, and one tenth of the weight, on both sides."""
        made = []
        total = float(self.cells.weight.sum())
        for knee in self.grid:
            above = self.cells.x > knee
            enough = min(len(np.unique(self.cells.group[above])), len(np.unique(self.cells.group[~above]))) >= minimum
            share = float(self.cells.weight[above].sum()) / total
            if enough and 0.1 <= share <= 0.9:
                made.append(Model(kind, float(knee)))
        return made

    def refined(self, models: list[Model]) -> list[Model]:
        """Add knees between those beside the best one, so that a knee is not known better or worse than the data know it."""
        best = self.best(models)
        if best is None or len(models) < 2:
            return models
        at = [m.knee for m in models]
        i = at.index(best.knee)
        finer = np.linspace(at[max(i - 1, 0)], at[min(i + 1, len(at) - 1)], 17)[1:-1]
        return sorted({*models, *(Model(best.kind, float(k)) for k in finer)}, key=lambda m: m.knee)

    def sums(self, model: Model) -> tuple[Floats, Floats]:
        """Return cross products by group: shapes (groups, p, p) and (groups, p)."""
        if model not in self._sums:
            design = model.design(self.cells.x, self.cells.extra)
            weighted = design * self.cells.weight[:, None]
            p = design.shape[1]
            gram = np.zeros((self.cells.groups, p, p))
            right = np.zeros((self.cells.groups, p))
            for i in range(p):
                right[:, i] = np.bincount(self.cells.group, weights=weighted[:, i] * self.cells.y, minlength=self.cells.groups)
                for j in range(i, p):
                    gram[:, i, j] = np.bincount(self.cells.group, weights=weighted[:, i] * design[:, j], minlength=self.cells.groups)
                    gram[:, j, i] = gram[:, i, j]
            self._sums[model] = (gram, right)
        return self._sums[model]

    def fit(self, model: Model, weights: NDArray[np.floating] | None = None) -> Floats:
        """Fit a model; with weights (shape (resamples, groups)) once for each row of them."""
        gram, right = self.sums(model)
        p = right.shape[1]
        draws = np.ones((1, self.cells.groups)) if weights is None else weights
        left = (draws @ gram.reshape(self.cells.groups, p * p)).reshape(-1, p, p)
        side = draws @ right
        scale = np.sqrt(np.maximum(np.einsum("bii->bi", left), 1e-300))
        made = np.einsum("bij,bj->bi", np.linalg.pinv(left / scale[:, :, None] / scale[:, None, :], rcond=1e-10), side / scale) / scale
        return np.asarray(made[0] if weights is None else made)

    def loss(self, model: Model, beta: Floats) -> Floats:
        """Sum the squared errors by group."""
        away = self.cells.y - model.design(self.cells.x, self.cells.extra) @ beta
        return np.bincount(self.cells.group, weights=self.cells.weight * np.square(away), minlength=self.cells.groups).astype(float)

    def best(self, models: list[Model]) -> Model | None:
        """Return the model of least squared error among some of one kind."""
        losses = [float(self.loss(m, self.fit(m)).sum()) for m in models]
        return models[int(np.argmin(losses))] if losses else None

    def left_out(self, models: list[Model]) -> Floats:
        """Return the squared error of each group under fits that never saw it; the knee is chosen without it too."""
        made = np.zeros(self.cells.groups)
        for fold in np.unique(self.fold):
            inside = (self.fold != fold).astype(float)[None, :]
            chosen, beta, least = models[0], self.fit(models[0], inside)[0], np.inf
            for model in models:
                candidate = self.fit(model, inside)[0]
                error = float((self.loss(model, candidate) * inside[0]).sum())
                if error < least:
                    chosen, beta, least = model, candidate, error
            out = self.fold == fold
            made[out] = self.loss(chosen, beta)[out]
        return made

    def sampler(self, *, resamples: int, level: float) -> Resampler:
        """Draw groups with replacement."""
        return Resampler.over(self.cells.groups, resamples=resamples, seed=self.seed, level=level)

    def knee_draws(self, models: list[Model], sampler: Resampler) -> Floats:
        """Return the best knee of each resample."""
        squares = np.bincount(self.cells.group, weights=self.cells.weight * np.square(self.cells.y), minlength=self.cells.groups)
        total = sampler.weights @ squares
        losses = np.empty((len(models), len(total)))
        for i, model in enumerate(models):
            gram, right = self.sums(model)
            p = right.shape[1]
            left = (sampler.weights @ gram.reshape(self.cells.groups, p * p)).reshape(-1, p, p)
            side = sampler.weights @ right
            beta = self.fit(model, sampler.weights)
            losses[i] = total - 2 * np.einsum("bi,bi->b", beta, side) + np.einsum("bi,bij,bj->b", beta, left, beta)
        return np.array([m.knee for m in models])[np.argmin(losses, axis=0)]
