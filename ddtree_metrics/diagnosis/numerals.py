"""Numbers in sentences: never ``nan``, never more digits than they are worth."""

from __future__ import annotations

import math
import re

from ddtree_metrics.metrics.confidence import useless
from ddtree_metrics.metrics.doubt import Interval

DUST = 5e-6
"""A smaller number is rounding of floating-point arithmetic, or too small to mean anything: it is written as 0."""

LONGEST = 200
"""Longer values and words of a log are cut, and it is said how long they were."""


def number(x: float | None, digits: int | None = None) -> str:
    """Write a number with three or four significant digits, or so many decimals; a number that is not known in words."""
    if x is None or not math.isfinite(x):
        return "(not known)"
    if digits is not None:
        return f"{x if abs(x) >= 0.5 * 10.0**-digits else 0.0:.{digits}f}"
    if abs(x) < DUST:
        return "0"
    size = math.floor(math.log10(abs(x)))
    if size >= 6:
        return f"{x:.2e}"
    return f"{round(x, 3 - size):,.0f}" if size >= 3 else f"{x:,.{min(5, 2 - size)}f}"


def percent(share: Interval) -> str:
    """Write a share, ``87 %``."""
    if share.value is None:
        return "(not known)"
    return f"{round(100 * share.value):d} %"


def percent_range(share: Interval) -> str:
    """Write a share with its interval, ``87 % (82 to 91)``."""
    if share.value is None:
        return "not known"
    if share.low is None or share.high is None:
        return percent(share)
    return f"{percent(share)} ({round(100 * share.low):d} to {round(100 * share.high):d})"


def factor(ratio: Interval) -> str:
    """Write a ratio with its interval, ``× 0.23 (0.21 to 0.25)``; one that spans a factor of 20 is no interval, and it is said."""
    if ratio.value is None:
        return "not known"
    said = f"× {_times(ratio.value)}"
    if ratio.low is None or ratio.high is None:
        return said
    if useless(ratio.low, ratio.high):
        return f"{said} (no interval: too few rows)"
    return f"{said} ({_times(ratio.low)} to {_times(ratio.high)})"


def _times(x: float) -> str:
    """Write a factor with two decimals, a small one with two significant digits."""
    return number(x) if abs(x) < 0.05 or abs(x) >= 1000 else f"{x:.2f}"


def times(x: float | None) -> str:
    """Write a factor alone, ``× 1.66``."""
    return "(not known)" if x is None else f"× {_times(x)}"


def change(ratio: float) -> str:
    """Write a ratio as the change that it is, ``+28 %``, ``-46 %``."""
    by = round(100 * (ratio - 1))
    return f"{by:+d} %" if by else "0 %"


def signed(x: float, digits: int | None = None) -> str:
    """Write a number with its sign, ``+28``, ``-46``: with so many decimals, else whole from ten on."""
    if abs(x) < DUST:
        return "0"
    return f"{'-' if x < 0 else '+'}{number(abs(x), digits if digits is not None else 0 if abs(x) >= 10 else None)}"


def cut(text: object, most: int = LONGEST) -> str:
    """Cut a text that is too long to be read, and say how long it was."""
    said = str(text)
    return said if len(said) <= most else f"{said[:most]}… ({len(said):,} characters)"


def cut_words(text: str, most: int = LONGEST) -> str:
    """Cut each word of a text that is too long to be read."""
    return re.sub(rf"\S{{{most + 1},}}", lambda found: cut(found.group(), most), text)


def tokens(x: float) -> str:
    """Write a number of tokens, ``4,100``."""
    return f"{x:,.0f}" if math.isfinite(x) else "(not known)"
