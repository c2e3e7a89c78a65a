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

MOSTLY = 0.8
"""A part that makes up this much of a change is named alone."""

AGAINST = 0.005
"""A share below 0 by no more than this is not called a part that worked against the change."""

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
