"""The three parts of a change of speed between two groups of request-steps, and how sure each is: the one place where they are estimated.

``attribute_slowdown`` and ``diagnose`` both take them from here. The values are those of ``metrics.equal_mix``. Their errors are a
jackknife: requests are left out one after the other, and, where times are known, blocks of time of several lengths; the largest variance
counts (``metrics.doubt`` says why). Two starts of a server are one observation each, so that step time may carry a floor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ddtree_metrics.metrics import equal_mix
from ddtree_metrics.metrics.confidence import effective
from ddtree_metrics.metrics.doubt import Estimate, Partitions, chained, largest
from ddtree_metrics.metrics.shares import Parts, three_parts
from ddtree_metrics.steps.frames import Bools, Floats, Ints

MOST_PARTS = 400
"""More requests, or blocks of time, than this are put into so many random groups, which are left out instead."""

A_CLASS = 2
"""Texts differ more than contexts do: for tokens per step a column has so few classes that each holds this many requests of each side."""

ALONE = 1.8
"""A side that is made of fewer (effective) requests than this gives no interval."""


Scores = list[Floats | None]
"""What each part adds to the error of an estimate, for each partition; None where it cannot be told."""


@dataclass(frozen=True, slots=True)
class TwoSides:
    """Request-steps of two groups.

    Attributes
    ----------
    side : ndarray of int
        0 before, 1 after.
    ms, tokens, weight : ndarray of float
        Step time and tokens of each, NaN where not known; request-steps a row stands for.
    owner, lead : ndarray of int
        Whose text a row is of; and of which owner the step is counted, the same for all rows of a step.
    held : dict of str to ndarray
        What is held equal.
    time_us, run : ndarray of int
        When (-1: not known); of which server start.
    """

    side: Ints
    ms: Floats
    tokens: Floats
    weight: Floats
    owner: Ints
    lead: Ints
    held: Mapping[str, Floats]
    time_us: Ints
    run: Ints


@dataclass(slots=True)
class PartEstimates:
    """Changes from before to after, as logs of ratios, with standard errors.

    Attributes
    ----------
    step, tokens, speed : Estimate
        As logged.
    step_equal, tokens_equal : Estimate
        At equal mix; unknown with ``apart``.
    mix : Estimate
        What the mix did to speed.
    covariance : ndarray of shape (3, 3) or None
        Of the errors of mix, step time and tokens, each as a log of speed, at equal mix where that is known, else as logged; None where
        there is no interval.
    dof : int
        Its degrees of freedom.
    held : tuple of str
        What was held equal.
    used : tuple of float
        Share of each side that could be compared at equal mix.
    apart : str or None
        Why there is nothing at equal mix.
    apart_in : str or None
        The quantity in which the sides do not overlap.
    alone : tuple of int
        Sides that are made of one request as good as alone, so that nothing has an interval.
    alone_equal : bool
        Whether that holds for what both sides have.
    """

    step: Estimate = field(default_factory=Estimate)
    tokens: Estimate = field(default_factory=Estimate)
    speed: Estimate = field(default_factory=Estimate)
    step_equal: Estimate = field(default_factory=Estimate)
    tokens_equal: Estimate = field(default_factory=Estimate)
    mix: Estimate = field(default_factory=Estimate)
    covariance: Floats | None = None
    dof: int = 1
    held: tuple[str, ...] = ()
    used: tuple[float, float] = (math.nan, math.nan)
    apart: str | None = None
    apart_in: str | None = None
    alone: tuple[int, ...] = ()
    alone_equal: bool = False

    @property
    def parts(self) -> Parts | None:
        """The three parts; None where they are not all known."""
        if not (self.held and self.step_equal.known and self.tokens_equal.known and self.speed.known):
            return None
        return three_parts(self.step.value, self.tokens.value, self.step_equal.value, self.tokens_equal.value)


def estimate_parts(sides: TwoSides, *, floor: float = 0.0, median: bool = False, equal: bool = True, lone: bool = False) -> PartEstimates:
    """Estimate how much of a change of speed is the mix, step time at equal mix, and tokens per step at equal mix.

    Parameters
    ----------
    sides : TwoSides
        The rows.
    floor : float
        Standard error of the log of step time that no number of steps takes away.
    median : bool
        Whether step time as logged is the median; nothing is then held equal.
    equal : bool
        Whether to compare at equal values of ``held``; if not, they only tell how much of the variation is the mix that was served.
    lone : bool
        Whether a side that is one request as good as alone has an interval: as if requests differed as much as on the other side.

    Returns
    -------
    PartEstimates
    """
    made = PartEstimates()
    atom, owners, leads, sizes, before = _atoms(sides)
    made.alone = tuple(i for i in (0, 1) if _alone(sides, sides.side == i))
    values: dict[str, float] = {}
    scores: dict[str, Scores] = {}
    pulls: dict[str, Floats] = {}
    for name, of, partitions in (("step", sides.ms, leads), ("tokens", sides.tokens, owners[:1])):
        values[name], pull = _medians(sides.side, of) if median and name == "step" else _as_logged(sides, of)
        pulls[name] = np.asarray(np.bincount(partitions[0][atom] * 2 + sides.side, pull, 2 * sizes[0]), dtype=float).reshape(-1, 2)
        scores[name] = [np.asarray(np.bincount(p[atom], pull, n)) for p, n in zip(partitions, sizes, strict=False)]
    found = None
    if equal and sides.held and not median:
        found = _classes(sides, equal_mix.MOST)
    if isinstance(found, equal_mix.Classes):
        made.used = found.used
        inside = found.cell >= 0
        of_texts = _classes(sides, max(_fewest(sides, inside) // A_CLASS, 1))
        coarse = of_texts if isinstance(of_texts, equal_mix.Classes) else found
        without = {
            "step_equal": _at_equal_mix(found, sides, atom, leads, sizes, sides.ms, sides.weight),
            "tokens_equal": _at_equal_mix(coarse, sides, atom, owners[:1], sizes[:1], sides.tokens, _by_text(sides)),
        }
        if all(math.isfinite(v[0]) for v in without.values()):
            made.held = tuple(sides.held)
            made.alone_equal = any(_alone(sides, inside & (sides.side == i)) for i in (0, 1))
            for name, logs in without.items():
                values[name], scores[name] = float(logs[0]), _jackknife(logs, sizes if name == "step_equal" else sizes[:1])
    elif found is not None:
        made.apart, made.apart_in = found.reason, found.name
    more = _of_the_other(sides, made.alone[0], pulls) if lone and len(made.alone) == 1 else None
    _estimates(made, values, scores, floor, more, before)
    return made


def _of_the_other(sides: TwoSides, side: int, pulls: dict[str, Floats]) -> dict[str, float]:
    """Return the variance that a side of one request has if requests differ as they do on the other side."""
    size = [
        effective(np.asarray(np.bincount(sides.owner[rows], sides.weight[rows]), dtype=float))
        for rows in (sides.side == 0, sides.side == 1)
    ]
    times = size[1 - side] / max(size[side], 1.0)
    step, tokens = (times * largest([pulls[name][:, 1 - side]])[0] for name in ("step", "tokens"))
    speed = times * largest([pulls["tokens"][:, 1 - side] - pulls["step"][:, 1 - side]])[0]
    return {"step": step, "tokens": tokens, "speed": speed, "step_equal": step, "tokens_equal": tokens, "mix": 0.0}


def _useful(sides: TwoSides) -> Bools:
    return np.isfinite(sides.ms) | np.isfinite(sides.tokens)


def _alone(sides: TwoSides, rows: Bools) -> bool:
    return effective(np.asarray(np.bincount(sides.owner[rows], sides.weight[rows]), dtype=float)) < ALONE


def _as_logged(sides: TwoSides, values: Floats) -> tuple[float, Floats]:
    """Return the log of the mean after by the mean before, and what each row adds to its error.

    The mix that was served is what it was: the error is of what a line through the held quantities does not explain.
    """
    good = np.isfinite(values)
    weight = np.where(good, sides.weight, 0.0)
    total = np.bincount(sides.side, weight, 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(sides.side, weight * np.where(good, values, 0.0), 2) / total
        value = float(np.log(mean[1]) - np.log(mean[0])) if (mean > 0).all() else math.nan
    if not math.isfinite(value):
        return math.nan, np.zeros(len(values))
    left = np.where(good, values, 0.0)
    left /= mean[sides.side]
    left -= 1.0
    columns = [c for c in (_standardised(held, good, weight, sides.side) for held in sides.held.values()) if c is not None]
    if columns:
        # column by column: a matrix of them, weighted, would be the largest thing that a diagnosis holds
        share = weight / weight.sum()
        product = np.array([[np.dot(share * one, other) for other in columns] for one in columns]) + 1e-6 * np.eye(len(columns))
        for slope, column in zip(np.linalg.solve(product, [np.dot(share * c, left) for c in columns]), columns, strict=True):
            left -= slope * column
    left *= weight
    left /= np.where(sides.side == 1, total[1], -total[0])
    return value, left


def _standardised(held: Floats, good: Bools, weight: Floats, side: Ints) -> Floats | None:
    """Return a quantity less its mean of each side, in units of its spread; None where it does not vary within the sides."""
    known = good & np.isfinite(held)
    w = np.where(known, weight, 0.0)
    centred = np.where(known, held, 0.0)
    middle = np.bincount(side, w * centred, 2) / np.maximum(np.bincount(side, w, 2), 1e-300)
    centred -= middle[side]
    centred[~known] = 0.0
    spread = math.sqrt(float(np.dot(weight, centred**2) / weight.sum()))
    if not spread > 1e-9 * max(1.0, float(np.abs(middle).max())):
        return None
    centred /= spread
    return centred


def _medians(side: Ints, ms: Floats) -> tuple[float, Floats]:
    """Return the log ratio of the medians, and what each row adds to its error (the derivative of a quantile)."""
    value, pull = 0.0, np.zeros(len(ms))
    for i, sign in ((0, -1.0), (1, 1.0)):
        mine = np.flatnonzero((side == i) & np.isfinite(ms))
        if not len(mine):
            return math.nan, pull
        low, middle, high = np.quantile(ms[mine], [0.45, 0.5, 0.55])
        value += sign * math.log(middle)
        density = 0.1 / max(high - low, 1e-9 * middle)
        pull[mine] = sign * 0.5 * np.sign(ms[mine] - middle) / (len(mine) * density * middle)
    return value, pull


def _classes(sides: TwoSides, most: int) -> equal_mix.Classes | equal_mix.NoOverlap:
    return equal_mix.classes(tuple(sides.held), list(sides.held.values()), sides.side, _useful(sides), most)


def _fewest(sides: TwoSides, rows: Bools) -> int:
    """Return the number of requests of the side that has fewer."""
    return min(len(np.unique(sides.owner[rows & (sides.side == i)])) for i in (0, 1))


def _at_equal_mix(
    found: equal_mix.Classes, sides: TwoSides, atom: Ints, partitions: list[Ints], sizes: list[int], values: Floats, weight: Floats
) -> Floats:
    """Return a log ratio at equal mix, of all rows and without each part."""
    served = np.where(_useful(sides), sides.weight, 0.0)
    sums = equal_mix.LeftOut(found, sides.side, atom, partitions, sizes)
    mix = sums(served)
    logs = equal_mix.log_means(sums, np.where(mix > 1e-12 * served.sum(), mix, 0.0), values, weight)
    return np.asarray(logs[:, 1] - logs[:, 0])


def _by_text(sides: TwoSides) -> Floats:
    """Return what each row weighs in a mean of tokens per step where requests have texts of their own.

    A long request is many steps and one text. With the variance between requests in units of that of a step (Swamy and Arora, 1972)
    the best weight of a request of n steps is n / (1 + ratio * n); ``token_model`` weighs its requests in the same way.
    """
    good = np.isfinite(sides.tokens)
    weight = np.where(good, sides.weight, 0.0)
    group = np.unique(sides.owner * 2 + sides.side, return_inverse=True)[1].reshape(-1)
    _, pull = _as_logged(sides, sides.tokens)
    total = np.bincount(sides.side, weight, 2)
    left = np.where(good, pull * total[sides.side] / np.maximum(weight, 1e-300), 0.0)
    n = np.bincount(group, weight)
    mean = np.bincount(group, weight * left) / np.maximum(n, 1e-300)
    free = int(good.sum()) - len(n)
    if free < 1 or len(n) < 3:
        return sides.weight
    inside = float((weight * (left - mean[group]) ** 2).sum()) / free
    spread = (float((n * mean**2).sum()) - (len(n) - 2) * inside) / max(float(n.sum() - (n**2).sum() / n.sum()), 1e-300)
    ratio = max(spread, 0.0) / inside if inside > 0 else math.inf if spread > 0 else 0.0
    shrunk = 1.0 / np.maximum(n, 1e-300) if math.isinf(ratio) else 1.0 / (1.0 + ratio * n)
    return sides.weight * shrunk[group]


def _atoms(sides: TwoSides) -> tuple[Ints, list[Ints], list[Ints], list[int], Ints | None]:
    """Cut the rows into atoms, each of one request, start and few seconds; and the atoms into parts: for tokens and for step times.

    The parts of both lists have the same numbers, so that both are estimated without the same requests; how many there are follows.
    Where times are known the last of them are a chain of short blocks, with the block before each.
    """
    place = np.zeros(len(sides.side), np.int64)
    known = bool(len(place)) and bool((sides.time_us >= 0).all())
    if known:
        place = (sides.time_us - sides.time_us.min()) // 5_000_000
    atom = np.zeros(len(place), np.int64)
    for column in (sides.owner, sides.lead, sides.run, place):
        low = int(column.min(initial=0))
        atom = atom * (int(column.max(initial=0)) - low + 1) + column - low
        _, first, atom = np.unique(atom, return_index=True, return_inverse=True)
        atom = np.asarray(atom, dtype=np.int64).reshape(-1)
    time_us = sides.time_us[first] if known else np.full(len(first), -1)
    blocks = Partitions.of(np.arange(len(first)), time_us, sides.run[first], blocks=known)
    codes = [c for name, c in zip(blocks.names, blocks.codes, strict=True) if name != "requests"]
    both = np.unique(np.r_[sides.owner[first], sides.lead[first]], return_inverse=True)[1].reshape(2, -1)
    count = int(both.max(initial=-1)) + 1
    if count > MOST_PARTS:
        group = np.random.default_rng(0).permutation(count) % MOST_PARTS
        both = group[both]
    grouped = [_grouped(c) for c in codes]
    sizes = [min(count, MOST_PARTS), *(int(g.max(initial=-1)) + 1 for g in grouped)]
    if blocks.chain is not None and blocks.before is not None:
        grouped.append(blocks.chain)
        sizes.append(len(blocks.before))
    return atom, [both[0], *grouped], [both[1], *grouped], sizes, blocks.before


def _grouped(codes: Ints) -> Ints:
    count = int(codes.max(initial=-1)) + 1
    return codes if count <= MOST_PARTS else (np.random.default_rng(0).permutation(count) % MOST_PARTS)[codes]


def _estimates(
    made: PartEstimates,
    values: dict[str, float],
    away: dict[str, Scores],
    floor: float,
    more: dict[str, float] | None,
    before: Ints | None,
) -> None:
    """Turn values and scores into estimates with errors.

    Requests are the parts of everything. Blocks of time are parts of step times only, for texts know no clock: where these make the
    variance of what is of step time in an estimate larger than requests do, that much is added to it.
    """
    terms = {name: {name: 1.0} for name in values} | {"speed": {"tokens": 1.0, "step": -1.0}}
    if made.held:
        terms["mix"] = {"tokens": 1.0, "step": -1.0, "tokens_equal": -1.0, "step_equal": 1.0}
    found = {}
    for name, of in terms.items():
        lone = more is None and (bool(made.alone) or (made.alone_equal and (name.endswith("_equal") or name == "mix")))
        found[name] = _sum(of, away, 0)
        value = float(sum(sign * values[one] for one, sign in of.items()))
        if found[name] is None or lone:
            variance, dof = math.nan, 1  # without requests there is no knowing how texts differ
        else:
            variance, dof = _variance({one: sign for one, sign in of.items() if one.startswith("step")}, away, found[name], before)
        one = Estimate(value, math.sqrt(variance + (more or {}).get(name, 0.0)), dof)
        setattr(made, name, one.with_floor(floor) if name == "step_equal" else one)
    names = ("mix", "step_equal", "tokens_equal") if made.held else ("", "step", "tokens")
    scores = [found[name] if name else np.zeros(1) for name in names]
    if all(getattr(made, name).sure for name in names if name):
        _together(made, [s for s in scores if s is not None], names)


def _variance(of_steps: dict[str, float], away: dict[str, Scores], by_request: Floats | None, before: Ints | None) -> tuple[float, int]:
    """Return the variance of an estimate, and its degrees of freedom."""
    variance, dof = largest([by_request] if by_request is not None else [])
    if not of_steps:
        return variance, dof
    last = len(away["step"]) - (before is not None)
    of_time, time_dof = largest([s for i in range(1, last) if (s := _sum(of_steps, away, i)) is not None])
    if before is not None and (links := _sum(of_steps, away, last)) is not None:
        of_time, time_dof = max((of_time, time_dof), chained(links, before))
    own = _sum(of_steps, away, 0)
    extra = max(of_time - (largest([own])[0] if own is not None else 0.0), 0.0)
    return variance + extra, time_dof if extra > variance else dof


def _together(made: PartEstimates, scores: list[Floats], names: tuple[str, str, str]) -> None:
    """Add how the errors of the parts go together: as over requests, and each no smaller than alone."""
    stacked = np.array(np.broadcast_arrays(*scores)) * np.array([[1.0], [-1.0], [1.0]])
    size = stacked.shape[1]
    seen = stacked @ stacked.T * size / (size - 1)
    own = np.array([getattr(made, name).se if name else 0.0 for name in names])
    made.covariance = seen
    made.covariance[range(3), range(3)] = np.maximum(np.diag(seen), own**2)
    made.dof = min(getattr(made, name).dof for name in names if name)


def _sum(of: Mapping[str, float], away: dict[str, Scores], partition: int) -> Floats | None:
    """Add the scores of several estimates over one partition; None where one of them cannot be told."""
    made: Floats | None = None
    for name, sign in of.items():
        scores = away[name][partition]
        if scores is None:
            return None
        made = sign * scores if made is None else made + sign * scores
    return made


def _jackknife(values: Floats, sizes: list[int]) -> Scores:
    """Return the scores of an estimate from its values without each part."""
    made: Scores = []
    begin = 1
    for size in sizes:
        without = values[begin : begin + size]
        begin += size
        fine = size > 1 and bool(np.isfinite(without).all())
        made.append((without.mean() - without) * (size - 1) / size if fine else None)
    return made
