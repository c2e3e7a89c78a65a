"""How a change of speed divides: into factors that multiply, and into shares of them where shares mean something.

Speed is tokens per step by step time. Between two groups of steps both can differ for two reasons: the groups hold another *mix* (longer
contexts, larger batches), or at equal mix the number itself moved. On the log scale

    change of speed = mix + step time at equal mix + tokens per step at equal mix

exactly. The parts at equal mix are the rate terms of Kitagawa (1955, JASA 50, 1168-1194), also known after Oaxaca and Blinder (1973), of
each of the two means, as logs of their ratios: both sides are held at the mean of both mixes. That is what Shapley's value of two players
(mix and rate) is for a difference of means, so neither order of the groups is preferred: swapping them turns every part's sign. What the
mix did is the rest; so it also holds what the parts at equal mix cannot speak for, values that only one side has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ddtree_metrics.metrics.doubt import Interval
from ddtree_metrics.steps.frames import Floats

MOSTLY = 0.8
"""A part that makes up this much of a change is named alone."""

AGAINST = 0.005
"""A share below 0 by no more than this is not called a part that worked against the change."""

NEGLIGIBLE = 0.1
"""A part against the change counts as nothing if it is no more than this share of it and its interval holds none."""

NAMES = ("mix", "step time", "acceptance")
"""What the three parts are called."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The three parts of a change of speed, as logs of factors of speed; they add up to ``total``.

    Attributes
    ----------
    mix : float
        What the mix of contexts and batches did to speed.
    step_time : float
        What step time at equal mix did to speed: below 0 where steps got slower.
    tokens : float
        What tokens per step at equal mix did to speed.
    """

    mix: float
    step_time: float
    tokens: float

    @property
    def total(self) -> float:
        """The log of speed after by speed before."""
        return self.mix + self.step_time + self.tokens

    @property
    def factors(self) -> tuple[float, float, float]:
        """What speed is multiplied by, by the mix, by step time and by tokens per step."""
        return math.exp(self.mix), math.exp(self.step_time), math.exp(self.tokens)

    @property
    def against(self) -> tuple[str, ...]:
        """Which of ``NAMES`` worked against the change; none where speed did not change."""
        parts = zip(NAMES, (self.mix, self.step_time, self.tokens), strict=True)
        return tuple(name for name, part in parts if part * self.total < 0 and abs(part) > AGAINST * abs(self.total))

    @property
    def one_way(self) -> bool:
        """Whether no part worked against the change, so that shares lie between 0 and 1."""
        return self.total != 0 and not self.against

    @property
    def named(self) -> tuple[str, ...]:
        """The fewest of ``NAMES`` that make up ``MOSTLY`` of what worked with the change, in the order of ``NAMES``."""
        with_it = {n: p / self.total for n, p in zip(NAMES, (self.mix, self.step_time, self.tokens), strict=True) if p * self.total > 0}
        wanted, found = MOSTLY * sum(with_it.values()) - 1e-12, 0.0
        made = []
        for name, part in sorted(with_it.items(), key=lambda item: -item[1]):
            if found < wanted:
                made.append(name)
            found += part
        return tuple(n for n in NAMES if n in made)

    @property
    def equation(self) -> str:
        """The factors in words, as in ``speed x 0.69 = x 0.9 mix ÷1.47 step time x 1.13 tokens``; without a mix that did nothing."""
        mix = f"x {math.exp(self.mix):.3g} mix " if self.mix else ""
        rest = f"÷{math.exp(-self.step_time):.3g} step time x {math.exp(self.tokens):.3g} tokens"
        return f"speed x {math.exp(self.total):.3g} = {mix}{rest}"

    def shares(self) -> tuple[float, float, float]:
        """Return the three shares of the change; they add up to 1, and one is negative where a part worked against it."""
        if self.total == 0:
            return math.nan, math.nan, math.nan
        return self.mix / self.total, self.step_time / self.total, self.tokens / self.total


def three_parts(step_time: float, tokens: float, step_time_equal: float, tokens_equal: float) -> Parts:
    """Divide a change of speed.

    Parameters
    ----------
    step_time, tokens : float
        Logs of after by before, as logged.
    step_time_equal, tokens_equal : float
        The same at equal mix.

    Returns
    -------
    Parts
    """
    return Parts((tokens - tokens_equal) - (step_time - step_time_equal), -step_time_equal, tokens_equal)


_DID = {
    "mix": ("the mix of contexts and batches", "got lighter", "got heavier"),
    "step time": ("steps", "got faster", "got slower"),
    "acceptance": ("tokens per step", "rose", "fell"),
}


def worked_against(name: str, *, slower: bool, leaves_open: bool = False) -> str:
    """Say in words that a part worked against a change of speed.

    Parameters
    ----------
    name : str
        One of ``NAMES``.
    slower : bool
        Whether speed fell.
    leaves_open : bool
        Whether the interval of the part leaves it open.
    """
    what, up, down = _DID[name]
    did = f"{up} and made up for part of the slow-down" if slower else f"{down} and took part of the speed-up back"
    return f"by these estimates {what} {did} (the interval leaves it open)" if leaves_open else f"{what} {did}"


@dataclass(frozen=True, slots=True)
class Errors:
    """How sure the parts of a change are.

    Attributes
    ----------
    covariance : ndarray of shape (3, 3)
        Of the errors of the parts, in the order of ``NAMES``.
    dof : int
        Degrees of freedom.
    total : float
        Standard error of the whole change, as logged.
    """

    covariance: Floats
    dof: int
    total: float


@dataclass(frozen=True, slots=True)
class Divided:
    """The shares of a change, in the order of ``NAMES``; all unknown where they would mean nothing.

    Attributes
    ----------
    shares : tuple of Interval
        They add up to 1, and lie between 0 and 1.
    reason : str or None
        Why there are none.
    against : tuple of str
        Sentences of the parts that worked against the change.
    nothing : tuple of str
        Parts against it that are small and open, and count as nothing.
    unclear : bool
        Whether the data cannot tell that speed changed.
    """

    shares: tuple[Interval, Interval, Interval]
    reason: str | None = None
    against: tuple[str, ...] = ()
    nothing: tuple[str, ...] = ()
    unclear: bool = False


def named(parts: Parts, errors: Errors | None) -> tuple[str, ...]:
    """Name the parts that a change is put down to: the fewest that make up ``MOSTLY`` of it, as far as that is known.

    Where the smallest of them is needed for that only within a standard error of its share, it is not named.
    """
    names = parts.named
    if errors is None or len(names) < 2:
        return names
    each = np.array([parts.mix, parts.step_time, parts.tokens])
    with_it = each * parts.total > 0
    whole = float(each[with_it].sum())
    least = min((NAMES.index(name) for name in names), key=lambda i: abs(each[i]))
    gradient = -each[least] * with_it / whole**2
    gradient[least] += 1.0 / whole
    rest = float(sum(each[NAMES.index(name)] for name in names)) - float(each[least])
    doubt = math.sqrt(max(float(gradient @ errors.covariance @ gradient), 0.0))
    return tuple(name for name in names if name != NAMES[least]) if rest / whole + doubt >= MOSTLY else names


UNKNOWN_SHARES = (Interval(unit="share"), Interval(unit="share"), Interval(unit="share"))


def divide(parts: Parts, errors: Errors | None, *, level: float, seed: int = 0, draws: int = 4000) -> Divided:
    """Divide a change of speed into shares.

    Parameters
    ----------
    parts : Parts
        The three parts.
    errors : Errors or None
        How sure they are; without them there are no intervals.
    level : float
        Level of the intervals.
    seed, draws : int
        Errors are drawn so often, from this start.

    Returns
    -------
    Divided
        Shares only where all parts go one way: a part that worked against the change has none, and the factors say what it did.
    """
    each, total = np.array([parts.mix, parts.step_time, parts.tokens]), parts.total
    if total == 0:
        return Divided(UNKNOWN_SHARES, "speed did not change")
    times = float(stats.t.ppf(0.5 + level / 2, errors.dof)) if errors is not None else 0.0
    if errors is not None and abs(total) <= times * errors.total:
        return Divided(UNKNOWN_SHARES, "the interval of the change of speed contains no change", unclear=True)
    against, nothing = [], []
    for name in parts.against:
        i = NAMES.index(name)
        leaves_open = errors is not None and abs(each[i]) <= times * math.sqrt(errors.covariance[i, i])
        if leaves_open and abs(each[i]) <= NEGLIGIBLE * abs(total):
            nothing.append(name)
        else:
            against.append(worked_against(name, slower=total < 0, leaves_open=leaves_open))
    if against:
        return Divided(UNKNOWN_SHARES, "; ".join(against), tuple(against), tuple(nothing))

    def divided(of: Floats) -> Floats:
        with_it = np.maximum(of * np.sign(total), 0.0)
        return np.asarray(with_it / np.maximum(with_it.sum(axis=0), 1e-300))

    centre = divided(each)
    if errors is None:
        one, two, three = (Interval(float(c), unit="share") for c in centre)
        return Divided((one, two, three), nothing=tuple(nothing))
    values, axes = np.linalg.eigh(errors.covariance)
    normal = np.random.default_rng(seed).standard_t(errors.dof, (3, draws))
    drawn = each[:, None] + axes @ (np.sqrt(np.maximum(values, 0.0))[:, None] * normal)
    drawn = drawn[:, np.sign(drawn.sum(axis=0)) == np.sign(total)]
    low, high = np.quantile(divided(drawn), [0.5 - level / 2, 0.5 + level / 2], axis=1) if drawn.shape[1] > 1 else (centre, centre)
    one, two, three = (Interval(float(c), float(min(a, c)), float(max(b, c)), "share") for c, a, b in zip(centre, low, high, strict=True))
    return Divided((one, two, three), nothing=tuple(nothing))


def counteracting(share: float | None, low: float | None = None, high: float | None = None, *, slower: bool = True) -> str | None:
    """Say in words which of the two parts worked against a change of speed; None where both had a hand in it, or it is not known.

    Parameters
    ----------
    share : float or None
        The share of step time; acceptance has the rest of 1.
    low, high : float, optional
        Its interval; one that holds a share between 0 and 1 leaves it open whether the part worked against the change at all.
    slower : bool
        Whether speed fell.
    """
    if share is None or not math.isfinite(share) or -AGAINST <= share <= 1 + AGAINST:
        return None
    end = high if share < 0 else low
    leaves_open = end is not None and math.isfinite(end) and (end > 0 if share < 0 else end < 1)
    return worked_against("step time" if share < 0 else "acceptance", slower=slower, leaves_open=leaves_open)
