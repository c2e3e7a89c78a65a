"""Where a curve bends or jumps: every place at once, by sums over requests.

For one place of the knee the model is a plane and one more column h: ``1[x > k]`` for a drop, ``max(x - k, 0)`` for a bend. By
Frisch, Waugh and Lovell the squared error falls by ``(h'My)^2 / h'Mh`` when h is added, M taking the other columns out. All that is
needed of h are its products with the other columns, and for every k these are sums from the far end of the context downwards. So
rows are summed once by request and by class of context between two candidate places; a resample of requests is a matrix product.

Steps of one request share a level (its text). With ``between``, the variance of that level in units of the variance of a step, rows
count as generalised least squares has them: each sum of products loses ``between / (1 + between * n)`` times the product of the sums
(the inverse of ``I + between * 11'``). ``between = 0`` is ordinary least squares, and infinity looks within requests only.

The likelihood of a drop is flat between two neighbouring observed contexts, so a place is a gap there, never a point in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ddtree_metrics.metrics.confidence import Resampler, around, effective, group_codes, sums_by, widening, within
from ddtree_metrics.steps.frames import Floats, Ints

SIDE = 6
"""Fewer requests than this on one side of a knee support nothing."""

CERTAIN = 5.0
"""Next to what belongs to it, the interval of a knee leaves out a place so many times less often than its level says: leaving a window
out refutes it."""

PLACES = 240
"""At most about so many places of a knee are tried at once; then as many again between those that remain."""

CHUNK = 1000
"""Requests whose sums are held at once."""

EDGE = 0.02
"""A knee has at least this share of the weight on each side."""

NAN = float("nan")


@dataclass(frozen=True)
class KneeRows:
    """What a knee is looked for in: one row an observation.

    Attributes
    ----------
    x : ndarray, shape (rows,)
        Context in tokens.
    extra : ndarray, shape (rows, terms)
        Other terms.
    y, weight : ndarray, shape (rows,)
        Values and their weights (one over the variance).
    unit : ndarray of int64, shape (rows,)
        Request of each row, from 0; rows are sorted by it.
    owner : ndarray of int64, shape (units,)
        Which group of requests (what is resampled) each belongs to.
    groups : int
        How many groups there are.
    effective : float
        Effective number of groups.
    """

    x: Floats
    extra: Floats
    y: Floats
    weight: Floats
    unit: Ints
    owner: Ints
    groups: int
    effective: float

    @classmethod
    def of(cls, x: Floats, extra: Floats, y: Floats, weight: Floats, codes: Ints, *, seed: int) -> KneeRows:
        """Sort rows by request."""
        group, groups = group_codes(codes, seed=seed)
        unit = np.unique(codes, return_inverse=True)[1].astype(np.int64).reshape(-1)
        owner = np.zeros(int(unit.max(initial=-1)) + 1, dtype=np.int64)
        owner[unit] = group
        size = effective(np.bincount(group, minlength=groups).astype(float))
        order = np.argsort(unit, kind="stable")
        return cls(x[order], extra[order], y[order], weight[order], unit[order], owner, groups, size)

    @property
    def ends(self) -> tuple[Floats, Floats]:
        """Return the smallest and largest context of each request."""
        starts = np.flatnonzero(np.concatenate([[True], np.diff(self.unit) != 0])) if len(self.unit) else np.empty(0, dtype=np.int64)
        if not len(starts):
            return np.empty(0), np.empty(0)
        return np.minimum.reduceat(self.x, starts), np.maximum.reduceat(self.x, starts)

    def sides(self, place: float) -> tuple[int, int, int]:
        """Count the requests with steps up to a place, with steps beyond it, and with both."""
        low, high = self.ends
        return int((low <= place).sum()), int((high > place).sum()), int(((low <= place) & (high > place)).sum())


class Profile:
    """The squared error as a function of where the knee is, for the sample and for resamples of it.

    Parameters
    ----------
    rows : KneeRows
        The observations.
    kind : str
        ``drop`` or ``bend``.
    places : ndarray, shape (places,)
        Where the knee may be, in tokens, ascending.
    between : float
        Variance of a request's level in units of the variance of a row of weight 1; infinity looks within requests only.
    """

    def __init__(self, rows: KneeRows, kind: str, places: Floats, between: float = 0.0) -> None:
        self.rows, self.kind, self.places, self.between = rows, kind, np.asarray(places, dtype=float), between
        base, count = 2 + rows.extra.shape[1], len(self.places)
        self.gram = np.zeros((rows.groups, base, base))
        self.right = np.zeros((rows.groups, base))
        self.squares = np.zeros(rows.groups)
        self.whole = np.zeros((rows.groups, base))
        self.cross = np.zeros((base, rows.groups, count))
        self.far = np.zeros((rows.groups, count))
        self.hh = np.zeros((rows.groups, count))
        self.hy = np.zeros((rows.groups, count))
        units = len(rows.owner)
        starts = np.searchsorted(rows.unit, np.arange(0, units + CHUNK, CHUNK))
        for number, (a, b) in enumerate(pairwise(starts)):
            first = number * CHUNK
            self._add(slice(int(a), int(b)), first, min(CHUNK, units - first))

    def _add(self, part: slice, first: int, units: int) -> None:
        """Add the sums of some requests."""
        rows, count = self.rows, len(self.places)
        k = rows.x[part] / 1000.0
        weight, y = rows.weight[part], rows.y[part]
        base = [np.ones(len(k)), k, *rows.extra[part].T]
        cell = (rows.unit[part] - first) * (count + 1) + np.searchsorted(self.places, rows.x[part], side="left")

        def total(values: Floats) -> Floats:
            """Sum by request and class: shape (units, places + 1)."""
            return np.bincount(cell, weights=weight * values, minlength=units * (count + 1)).reshape(units, count + 1).astype(float)

        def beyond(sums: Floats) -> Floats:
            """Sum what lies beyond each place: shape (units, places)."""
            return np.asarray(np.cumsum(sums[:, ::-1], axis=1)[:, ::-1][:, 1:])

        owner = rows.owner[first : first + units]
        plain = [total(b) for b in base]
        whole = np.column_stack([p.sum(axis=1) for p in plain])
        own_y = total(y)
        level = own_y.sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            taken = 1.0 / whole[:, 0] if np.isinf(self.between) else self.between / (1.0 + self.between * whole[:, 0])
        gram = np.empty((units, len(base), len(base)))
        unit = rows.unit[part] - first
        for i in range(len(base)):
            for j in range(i, len(base)):
                gram[:, i, j] = gram[:, j, i] = np.bincount(unit, weights=weight * base[i] * base[j], minlength=units)
        right = np.column_stack([np.bincount(unit, weights=weight * b * y, minlength=units) for b in base])
        np.add.at(self.whole, owner, np.einsum("uii->ui", gram))
        np.add.at(self.gram, owner, gram - taken[:, None, None] * whole[:, :, None] * whole[:, None, :])
        np.add.at(self.right, owner, right - (taken * level)[:, None] * whole)
        np.add.at(self.squares, owner, np.bincount(unit, weights=weight * y * y, minlength=units) - taken * level * level)
        above = [beyond(p) for p in plain]
        if self.kind == "drop":
            products, with_y, square = above, beyond(own_y), above[0]
        else:
            at = self.places[None, :] / 1000.0
            products = [beyond(total(k * b)) - at * s for b, s in zip(base, above, strict=True)]
            with_y = beyond(total(k * y)) - at * beyond(own_y)
            square = products[1] - at * products[0]
        one = products[0]
        for j, product in enumerate(products):
            np.add.at(self.cross[j], owner, product - (taken * whole[:, j])[:, None] * one)
        np.add.at(self.far, owner, square)
        np.add.at(self.hh, owner, square - taken[:, None] * one * one)
        np.add.at(self.hy, owner, with_y - (taken * level)[:, None] * one)

    def solve(self, weights: NDArray[np.floating] | None = None) -> tuple[Floats, Floats, Floats]:
        """Fit every place at once.

        Parameters
        ----------
        weights : ndarray, shape (resamples, groups), optional
            How often each group was drawn; the sample itself where not given (one resample).

        Returns
        -------
        gain : ndarray, shape (resamples, places)
            By how much the squared error falls with a knee there.
        coefficients : ndarray, shape (resamples, places, 3 + terms)
            Intercept, slope per 1000 tokens, other terms, and the knee's own term.
        error : ndarray, shape (resamples,)
            Squared error without a knee.
        """
        groups, base = self.right.shape
        drawn = np.ones((1, groups)) if weights is None else np.asarray(weights, dtype=float)
        left = (drawn @ self.gram.reshape(groups, base * base)).reshape(-1, base, base)
        right, squares = drawn @ self.right, drawn @ self.squares
        # what is constant within every request is gone where each has a level of its own, but for rounding
        diagonal = np.einsum("rii->ri", left)
        there = diagonal > 1e-9 * (drawn @ self.whole)
        left, right = left * there[:, :, None] * there[:, None, :], right * there
        scale = np.sqrt(np.where(there, diagonal, 1.0))
        inverse = np.linalg.pinv(left / scale[:, :, None] / scale[:, None, :], rcond=1e-9) / scale[:, :, None] / scale[:, None, :]
        plain = np.einsum("rij,rj->ri", inverse, right)
        cross = np.stack([drawn @ c for c in self.cross], axis=2) * there[:, None, :]
        hh, hy = drawn @ self.hh, drawn @ self.hy
        away = np.einsum("rkj,rji->rki", cross, inverse)
        left_over = hh - np.einsum("rkj,rkj->rk", away, cross)
        top = hy - np.einsum("rkj,rj->rk", cross, plain)
        good = left_over > 1e-8 * np.maximum(drawn @ self.far, 1e-300)
        size = np.where(good, top / np.where(good, left_over, 1.0), np.nan)
        gain = np.where(good, top * np.nan_to_num(size), 0.0)
        coefficients = np.concatenate([plain[:, None, :] - away * np.nan_to_num(size)[:, :, None], size[:, :, None]], axis=2)
        error = np.maximum(squares - np.einsum("rj,rj->r", plain, right), 0.0)
        return gain, coefficients, error


def level_variance(rows: KneeRows, kind: str, place: float) -> float:
    """Estimate the variance of a request's level in units of the variance of a row, by the method of moments.

    The variance within comes from a fit within requests; what the residuals of an ordinary fit have more of it, weighted by request,
    is the variance between (Swamy and Arora 1972, in its simplest form).

    Returns
    -------
    float
        Not negative; 0 where it cannot be estimated.
    """
    units, terms = len(rows.owner), 3 + rows.extra.shape[1]
    at = np.array([place])
    freedom = len(rows.x) - units - terms
    if freedom <= 0 or units <= terms:
        return 0.0
    gain, _, error = Profile(rows, kind, at, np.inf).solve()
    inside = max(float(error[0] - gain[0, 0]), 0.0) / freedom
    beta = Profile(rows, kind, at).solve()[1][0, 0]
    away = rows.y - design(rows, kind, place) @ np.nan_to_num(beta)
    sums = sums_by(rows.unit, units, rows.weight * away, rows.weight)
    total = sums[:, 1].sum()
    spread = float((np.square(sums[:, 0]) / sums[:, 1]).sum()) - (units - terms) * inside
    share = 1.0 - float(np.square(sums[:, 1]).sum()) / total**2
    if not inside > 0 or share <= 0:
        return 0.0
    return max(spread / (total * share), 0.0) / inside


def design(rows: KneeRows, kind: str, place: float) -> Floats:
    """Return the design matrix with a knee at a place, context in thousands of tokens."""
    knee = (rows.x > place).astype(float) if kind == "drop" else np.maximum(rows.x - place, 0.0) / 1000.0
    return np.column_stack([np.ones(len(rows.x)), rows.x / 1000.0, rows.extra, knee])


@dataclass(frozen=True)
class Knee:
    """Where a curve bends or jumps.

    Attributes
    ----------
    kind : str
        ``drop`` or ``bend``.
    place, low, high : float
        Where, in tokens, with its interval; never narrower than the observed contexts on both sides.
    gap : tuple of float
        The last observed context up to the knee and the first beyond it: the data cannot tell where between the two it lies.
    size, size_low, size_high : float
        Of a drop the level just beyond the knee by the level just below it; of a bend the change of slope per 1000 tokens.
    slope_below, slope_above : float
        Per 1000 tokens; the same for a drop.
    """

    kind: str
    place: float
    low: float
    high: float
    gap: tuple[float, float]
    size: float
    size_low: float
    size_high: float
    slope_below: float
    slope_above: float


def find_knee(
    rows: KneeRows,
    kind: str,
    sampler: Resampler | None,
    *,
    between: float = 0.0,
    favour: float = NAN,
    level: float = 0.9,
    minimum: int = SIDE,
) -> Knee | None:
    """Find the most likely place of a knee, and all places that the data cannot tell from it.

    Parameters
    ----------
    rows : KneeRows
        The observations.
    kind : str
        ``drop`` or ``bend``.
    sampler : Resampler or None
        Draws of the groups; without them there is no interval.
    between : float
        As for `Profile`.
    favour : float
        A place that is named where the most likely gap contains it (the known window).
    level : float
        Level of the intervals.
    minimum : int
        Requests that each side must have.

    Returns
    -------
    Knee or None
        None where no place has enough requests on both sides.

    Notes
    -----
    A place belongs to the interval if the squared error there exceeds the least by no more than ``c`` variances, ``c`` being
    ``-2 ln(1 - sqrt(level))`` for a jump (Hansen 2000, "Sample splitting and threshold estimation", Econometrica 68) and the quantile
    of chi-squared with one degree of freedom for a bend; or, where it is more, by what resampled requests show for the place found,
    as their errors are not independent. From the ends of these places it goes on outwards as long as a stricter test (98 % for 90 %)
    cannot leave a place out, and then to the neighbouring observed contexts.
    """
    seen = np.unique(rows.x)
    places = _places(rows, seen, kind, favour, minimum)
    if not len(places):
        return None
    chosen = np.unique(np.concatenate([_thinned(rows, places, kind), places[_has(places, seen, favour)]]))
    found, low, high, profile = _scan(rows, kind, chosen, sampler, between, level)
    if len(chosen) < len(places):
        near = places[(places >= low) & (places <= high)]
        edges = [places[places < low][-1:], places[places > high][:1]]
        far = chosen[(chosen < low) | (chosen > high)]
        fine = near[np.unique(np.linspace(0, len(near) - 1, PLACES).round().astype(int))] if len(near) > PLACES else near
        chosen = np.unique(np.concatenate([fine, *edges, places[_has(places, seen, favour)], far[:: max(1, len(far) // 40)]]))
        found, low, high, profile = _scan(rows, kind, chosen, sampler, between, level)
    place = float(chosen[found])
    gap = _gap(seen, place)
    beta = profile.solve()[1][0, found]
    drawn = None if sampler is None else Profile(rows, kind, chosen[found : found + 1], between).solve(sampler.weights)[1][:, 0]
    size, size_low, size_high = knee_size(kind, place, rows, beta, drawn, level)
    if sampler is None:
        low = high = NAN
    else:
        low, high = min(low, gap[0]), max(high, gap[1])
    more = 0.0 if kind == "drop" else float(beta[-1])
    return Knee(kind, place, low, high, gap, size, size_low, size_high, float(beta[1]), float(beta[1]) + more)


def squared(rows: KneeRows) -> KneeRows:
    """Add the squared context as a term, in millions of tokens squared: a jump is then looked for on top of a smooth curve."""
    return replace(rows, extra=np.column_stack([rows.extra, np.square(rows.x / 1000.0)]))


def knee_size(
    kind: str, place: float, rows: KneeRows, beta: Floats, drawn: Floats | None, level: float, *, others: Floats | None = None
) -> tuple[float, float, float]:
    """Return the size of a knee with its interval: a ratio for a drop, a change of slope for a bend.

    The level by which a drop is divided is that at the knee, with the other terms as given, or at their means.
    """
    middle = others
    if middle is None:
        middle = np.average(rows.extra, axis=0, weights=rows.weight) if rows.extra.shape[1] else np.empty(0)

    def of(b: Floats) -> Floats:
        if kind == "bend":
            return np.asarray(b[..., -1])
        before = b[..., 0] + b[..., 1] * place / 1000.0 + b[..., 2:-1] @ middle
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(before > 0, 1.0 + b[..., -1] / before, np.nan)

    estimate = float(of(beta))
    if drawn is None:
        return estimate, NAN, NAN
    return estimate, *around(estimate, of(drawn), rows.effective, level, log=kind == "drop")


def _places(rows: KneeRows, seen: Floats, kind: str, favour: float, minimum: int) -> Floats:
    """List where a knee may be: one place a gap for a drop, also between them for a bend."""
    if len(seen) < 2:
        return np.empty(0)
    places = (seen[:-1] + seen[1:]) / 2
    if np.isfinite(favour):
        inside = (seen[:-1] <= favour) & (favour < seen[1:])
        places = np.where(inside, favour, places)
    if kind == "bend":
        places = np.unique(np.concatenate([places, np.linspace(seen[0], seen[-1], 121)[1:-1]]))
    low, high = (np.sort(e) for e in rows.ends)
    below = np.searchsorted(low, places, side="right")
    above = len(high) - np.searchsorted(high, places, side="right")
    order = np.argsort(rows.x, kind="stable")
    weight = np.concatenate([[0.0], np.cumsum(rows.weight[order])])
    share = weight[np.searchsorted(rows.x[order], places, side="right")] / weight[-1]
    return np.asarray(places[(below >= minimum) & (above >= minimum) & (share >= EDGE) & (share <= 1 - EDGE)])


def _thinned(rows: KneeRows, places: Floats, kind: str) -> Floats:
    """Take about `PLACES` of many places: evenly by rows, evenly by context, and the middles of the widest gaps."""
    if len(places) <= PLACES:
        return places
    by_rows = np.quantile(rows.x, np.linspace(0, 1, PLACES // 2))
    by_context = np.linspace(places[0], places[-1], PLACES // 4)
    near = np.searchsorted(places, np.concatenate([by_rows, by_context])).clip(0, len(places) - 1)
    wide = np.argsort(-np.diff(places), kind="stable")[: PLACES // 8]
    return np.asarray(places[np.unique(np.concatenate([near, wide, wide + 1, [0, len(places) - 1]]))])


def _has(places: Floats, seen: Floats, favour: float) -> NDArray[np.bool_]:
    """Mark the place that stands for the gap that contains a favoured one."""
    return np.asarray(places == favour) if np.isfinite(favour) else np.zeros(len(places), dtype=bool)


def _gap(seen: Floats, place: float) -> tuple[float, float]:
    """Return the last observed context up to a place, and the first beyond it."""
    at = int(np.searchsorted(seen, place, side="right"))
    return float(seen[max(at - 1, 0)]), float(seen[min(at, len(seen) - 1)])


def _scan(
    rows: KneeRows, kind: str, places: Floats, sampler: Resampler | None, between: float, level: float
) -> tuple[int, float, float, Profile]:
    """Return the best of some places, and the ends of those that cannot be told from it, reaching to the next ones that can."""
    profile = Profile(rows, kind, places, between)
    gain, coefficients, _ = profile.solve()
    found = int(np.argmax(gain[0]))
    variance = _variance(rows, kind, float(places[found]), coefficients[0, found], between)
    limit, sure = (variance * _quantile(kind, p) for p in (level, 1.0 - (1.0 - level) / CERTAIN))
    if sampler is not None:
        drawn = profile.solve(sampler.weights)[0]
        lost = drawn.max(axis=1) - drawn[:, found]
        limit = max(limit, float(np.quantile(lost, level)) * widening(rows.effective, level) ** 2)
    inside = np.flatnonzero(gain[0] >= gain[0, found] - limit)
    outside = np.flatnonzero(gain[0] < gain[0, found] - max(limit, sure))
    first, last = int(inside[0]), int(inside[-1])
    first = int(outside[outside < first].max(initial=-1)) + 1
    last = int(outside[outside > last].min(initial=len(places))) - 1
    seen = np.unique(rows.x) if kind == "drop" else places
    low = _gap(seen, places[first - 1])[1] if first else _gap(seen, places[first])[0]
    high = _gap(seen, places[last + 1])[0] if last + 1 < len(places) else _gap(seen, places[last])[1]
    return found, low, high, profile


def _quantile(kind: str, level: float) -> float:
    """Return the quantile of twice the log likelihood ratio of a knee's place."""
    return float(-2.0 * np.log(1.0 - np.sqrt(level))) if kind == "drop" else float(stats.chi2.ppf(level, 1))


def _variance(rows: KneeRows, kind: str, place: float, beta: Floats, between: float) -> float:
    """Return the variance of a row about its request's own level, on that side of the knee where it is larger.

    A likelihood that holds a knee against noisier rows on one side needs their variance, not the mean of both.
    """
    away = rows.y - design(rows, kind, place) @ np.nan_to_num(beta)
    units = len(rows.owner)
    if between > 0:
        sums = sums_by(rows.unit, units, rows.weight * away, rows.weight)
        share = 1.0 if np.isinf(between) else between * sums[:, 1] / (1.0 + between * sums[:, 1])
        away = away - (share * sums[:, 0] / np.where(sums[:, 1] > 0, sums[:, 1], 1.0))[rows.unit]
    squares = rows.weight * np.square(away)
    far = rows.x > place
    lost = len(rows.x) / max(len(rows.x) - 3 - rows.extra.shape[1], 1)
    return float(max(squares[far].mean() if far.any() else 0.0, squares[~far].mean() if (~far).any() else 0.0)) * lost


@dataclass(frozen=True)
class Within:
    """The jump at a place on the requests that cross it.

    Attributes
    ----------
    ratio, low, high : float
        The level just beyond the place by the level just below it, for the same requests.
    crossing : int
        How many requests have steps on both sides.
    error : float
        Standard error of the ratio if steps of a request vary independently; known for a single request too.
    """

    ratio: float = NAN
    low: float = NAN
    high: float = NAN
    crossing: int = 0
    error: float = NAN


def within_jump(rows: KneeRows, place: float, sampler: Resampler, *, level: float = 0.9) -> Within:
    """Measure a jump only on requests that cross the place themselves, each at its own level.

    The jump is that of a regression with one level a request and a common slope (the "within" estimator: Mundlak 1978, Econometrica
    46); requests on one side only tell about the slope. It is divided by the crossing requests' level just below the place, each
    weighted as it counts in the jump, ``n_below * n_beyond / n``.

    Returns
    -------
    Within
    """
    units = len(rows.owner)
    over = (rows.x > place).astype(float)
    w, wx, wy, beyond = sums_by(rows.unit, units, rows.weight, rows.weight * rows.x / 1000.0, rows.weight * rows.y, rows.weight * over).T
    crossing = (beyond > 0) & (beyond < w)
    count = int(crossing.sum())
    if not count:
        return Within()
    profile = Profile(rows, "drop", np.array([place]), np.inf)
    counts = np.where(crossing, beyond * (w - beyond) / w, 0.0)
    sums = sums_by(rows.owner, rows.groups, counts, counts * wy / w, counts * wx / w, counts * beyond / w)

    def ratio(weights: NDArray[np.floating] | None) -> tuple[Floats, Floats]:
        gain, beta, _ = profile.solve(weights)
        beta = beta[:, 0]
        drawn = sums.sum(axis=0)[None, :] if weights is None else weights @ sums
        with np.errstate(invalid="ignore", divide="ignore"):
            y, x, share = drawn[:, 1] / drawn[:, 0], drawn[:, 2] / drawn[:, 0], drawn[:, 3] / drawn[:, 0]
            before = y - beta[:, 1] * (x - place / 1000.0) - beta[:, -1] * share
            # gain = jump^2 times the information about it
            return np.where(before > 0, 1.0 + beta[:, -1] / before, np.nan), np.abs(beta[:, -1]) / np.sqrt(gain[:, 0]) / before

    made, scale = ratio(None)
    estimate = float(made[0])
    ends = within(around(estimate, ratio(sampler.weights)[0], effective(sums[:, 0]), level))
    beta = profile.solve()[1][0, 0]
    error = float(scale[0]) * float(np.sqrt(_variance(rows, "drop", place, beta, np.inf)))
    return Within(estimate, *ends, count, error)
