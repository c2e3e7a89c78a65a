"""Shares of a change of speed in words: what is said where one part worked against the other."""

from __future__ import annotations

import math

AGAINST = 0.005
"""A share below 0 by no more than this is not called a part that worked against the change."""


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
    name, up, down = ("steps", "got faster", "got slower") if share < 0 else ("tokens per step", "rose", "fell")
    end = high if share < 0 else low
    open_ = end is not None and math.isfinite(end) and (end > 0 if share < 0 else end < 1)
    did = f"{up} and made up for part of the slow-down" if slower else f"{down} and took part of the speed-up back"
    said = f"by these estimates {name} {did} (the interval leaves it open)" if open_ else f"{name} {did}"
    return f"{said}, so the shares (which add up to 100 %) go beyond 0 and 100 %"
