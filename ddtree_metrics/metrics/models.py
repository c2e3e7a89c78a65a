"""The regression behind the fits: few terms, many rows, resampling and cross-validation by request.

Rows are first made harmless (a residual from a flexible pilot fit is cut at three robust standard deviations, so that a stall does
not bend a line) and then summed into cells of one request, one context class and one batch. From there on everything is sums of
cross products by request: a fit, a fold left out, a resample differ only in how often each request's sums are added.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddtree_metrics.metrics.confidence import Resampler, effective, group_codes
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
class ClassMeans:
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
    unit : ndarray of int64
        Request of each cell, where it has a level of its own: requests in one group of requests have several.
    """

    x: Floats
    extra: Floats
    y: Floats
    weight: Floats
    group: Ints
    groups: int
    effective: float
    unit: Ints

    @classmethod
    def of(cls, x: Floats, extra: Floats, y: Floats, weight: Floats, codes: Ints, *, seed: int, apart: bool = False) -> ClassMeans:
        """Sum rows into cells; ``apart`` keeps the requests of one group of requests apart."""
        group, groups = group_codes(codes, seed=seed)
        sizes = effective(np.bincount(group, minlength=groups).astype(float))
        unit = np.unique(codes, return_inverse=True)[1].astype(np.int64).reshape(-1) if apart else group
        if len(x) <= CELL_ROWS:
            return cls(x, extra, y, weight, group, groups, sizes, unit)
        grid = np.unique(np.quantile(x, np.linspace(0, 1, 129)[1:-1]))
        key = unit * (len(grid) + 1) + np.searchsorted(grid, x)
        for column in extra.T:
            part = np.unique(column, return_inverse=True)[1].reshape(-1)
            key = np.unique(key * (int(part.max()) + 1) + part, return_inverse=True)[1].reshape(-1)
        cell = np.unique(key, return_inverse=True)[1].reshape(-1)
        count = int(cell.max()) + 1
        total = np.bincount(cell, weights=weight, minlength=count)

        def mean(values: Floats) -> Floats:
            return np.asarray(np.bincount(cell, weights=weight * values, minlength=count) / total)

        owner, own = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        owner[cell], own[cell] = group, unit
        extras = np.column_stack([mean(c) for c in extra.T]) if extra.shape[1] else np.zeros((count, 0))
        return cls(mean(x), extras, mean(y), total.astype(float), owner, groups, sizes, own)


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
    """Fits of one set of cells, by sums over requests.

    Parameters
    ----------
    cells : ClassMeans
        The observations.
    seed : int
        Start of the draws.
    between : float
        Variance of a request's own level in units of the variance of a row of weight 1 (generalised least squares); 0 for ordinary
        least squares.
    """

    def __init__(self, cells: ClassMeans, *, seed: int, between: float = 0.0) -> None:
        self.cells = cells
        self.seed = seed
        self.between = between
        rng = np.random.default_rng(seed)
        self.fold = rng.permutation(cells.groups) % min(FOLDS, max(cells.groups, 1))
        low, high = (float(q) for q in np.quantile(cells.x, [0.05, 0.95])) if len(cells.x) else (0.0, 0.0)
        self.grid = np.unique(np.linspace(low, high, KNEES)) if high > low else np.empty(0)
        self._owner: Ints = np.empty(0, dtype=np.int64)
        self._taken: Floats = np.empty(0)
        squares = self._by_group(np.square(cells.y))
        if between > 0:
            units = int(cells.unit.max(initial=-1)) + 1
            self._owner = np.zeros(units, dtype=np.int64)
            self._owner[cells.unit] = cells.group
            own = np.bincount(cells.unit, weights=cells.weight, minlength=units)
            self._taken = np.asarray(between / (1.0 + between * own), dtype=np.float64)
            level = np.bincount(cells.unit, weights=cells.weight * cells.y, minlength=units)
            squares = squares - self._by_owner(self._taken * level * level)
        self.squares = squares
        self._sums: dict[Model, tuple[Floats, Floats]] = {}

    def _by_group(self, values: Floats) -> Floats:
        return np.bincount(self.cells.group, weights=self.cells.weight * values, minlength=self.cells.groups).astype(float)

    def _by_owner(self, values: Floats) -> Floats:
        return np.bincount(self._owner, weights=values, minlength=self.cells.groups).astype(float)

    def knees(self, kind: str, minimum: int = 2) -> list[Model]:
        """List models of a kind at every knee that has data of enough requests, and one tenth of the weight, on both sides."""
        cells = self.cells
        if not len(self.grid):
            return []
        least, most = np.full(cells.groups, np.inf), np.full(cells.groups, -np.inf)
        np.minimum.at(least, cells.group, cells.x)
        np.maximum.at(most, cells.group, cells.x)
        order = np.argsort(cells.x, kind="stable")
        weight = np.concatenate([[0.0], np.cumsum(cells.weight[order])])
        made = []
        for knee in self.grid:
            enough = min(int((most > knee).sum()), int((least <= knee).sum())) >= minimum
            share = 1.0 - float(weight[np.searchsorted(cells.x[order], knee, side="right")]) / float(weight[-1])
            if enough and 0.1 <= share <= 0.9:
                made.append(Model(kind, float(knee)))
        return made

    def sums(self, model: Model) -> tuple[Floats, Floats]:
        """Return cross products by group: shapes (groups, p, p) and (groups, p)."""
        if model not in self._sums:
            design = model.design(self.cells.x, self.cells.extra)
            p = design.shape[1]
            gram = np.zeros((self.cells.groups, p, p))
            right = np.zeros((self.cells.groups, p))
            for i in range(p):
                right[:, i] = self._by_group(design[:, i] * self.cells.y)
                for j in range(i, p):
                    gram[:, i, j] = gram[:, j, i] = self._by_group(design[:, i] * design[:, j])
            if self.between > 0:
                units = len(self._owner)
                weight = self.cells.weight
                whole = [np.bincount(self.cells.unit, weights=weight * d, minlength=units) for d in design.T]
                level = np.bincount(self.cells.unit, weights=weight * self.cells.y, minlength=units)
                for i in range(p):
                    right[:, i] -= self._by_owner(self._taken * whole[i] * level)
                    for j in range(i, p):
                        gram[:, i, j] -= self._by_owner(self._taken * whole[i] * whole[j])
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
        """Sum the squared errors by group, shape (groups,); for several sets of coefficients (n, p) one row each."""
        gram, right = self.sums(model)
        made = self.squares - 2.0 * beta @ right.T + np.einsum("...i,gij,...j->...g", beta, gram, beta, optimize=True)
        return np.maximum(made, 0.0)

    def best(self, models: list[Model]) -> Model | None:
        """Return the model of least squared error among some of one kind."""
        losses = [float(self.loss(m, self.fit(m)).sum()) for m in models]
        return models[int(np.argmin(losses))] if losses else None

    def left_out(self, models: list[Model]) -> Floats:
        """Return the squared error of each group under fits that never saw it; the knee is chosen without it too."""
        folds = np.unique(self.fold)
        inside = (self.fold[None, :] != folds[:, None]).astype(float)
        least, made = np.full(len(folds), np.inf), np.zeros(self.cells.groups)
        for model in models:
            errors = self.loss(model, self.fit(model, inside))
            own = (errors * inside).sum(axis=1)
            for i in np.flatnonzero(own < least):
                out = self.fold == folds[i]
                made[out], least[i] = errors[i, out], own[i]
        return made

    def sampler(self, *, resamples: int, level: float) -> Resampler:
        """Draw groups with replacement."""
        return Resampler.over(self.cells.groups, resamples=resamples, seed=self.seed, level=level)
