"""Two causes that rise together cannot be told apart; whether they do is a number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.given import takes
from ddtree_metrics.steps.repeated_prompts import prompt_keys

APART = 25.0
"""A quantity whose variance is inflated so many times by others (1 / (1 - R^2)) is not told apart from them: the one limit for it."""

TOGETHER = (1 - 1 / APART) ** 0.5
"""The same as a correlation with one other (0.98): from there on two columns are said to rise together."""

NAN = float("nan")


@dataclass(frozen=True)
class Confounding:
    """Whether two columns rise together.

    Attributes
    ----------
    r : float
        Correlation over requests (each counts once, by its means), or over rows where no request is known.
    together : bool or None
        Whether their effects cannot be told apart; None where that is not known.
    points : int
        Requests (or rows) used.
    sentence : str
        The result in words.
    reason : str or None
        Why it is not known.
    """

    r: float
    together: bool | None
    points: int
    sentence: str
    reason: str | None = None


@takes("request_steps", fill=())
def confounded(frame: pd.DataFrame, first: str, second: str, *, limit: float = TOGETHER) -> Confounding:
    """Tell whether two columns rise (or fall) together so closely that what one does could be done by the other.

    Parameters
    ----------
    frame : pandas.DataFrame
        Request steps, or one row a request.
    first, second : str
        Two numeric columns, such as ``context_len`` and an uptime.
    limit : float
        Correlation from which on they are taken to go together. Both the ranks' and the values' correlation must reach it.

    Returns
    -------
    Confounding
    """
    a, b = cols.finite(cols.numeric(frame, first)), cols.finite(cols.numeric(frame, second))
    known = np.isfinite(a) & np.isfinite(b)
    names = f"{word(first)} and {word(second)}"

    def cannot(reason: str, points: int) -> Confounding:
        return Confounding(NAN, None, points, f"Whether {names} rise together cannot be told: {reason}.", reason)

    if not known.any():
        return cannot("they are not known for the same steps", 0)
    a, b = a[known], b[known]
    if "request_id" in frame.columns:
        codes = np.unique(prompt_keys(frame).request_codes[known], return_inverse=True)[1].reshape(-1)
        count = np.bincount(codes)
        a, b = np.bincount(codes, weights=a) / count, np.bincount(codes, weights=b) / count
    for name, values in ((first, a), (second, b)):
        if np.ptp(values) <= 0:
            return cannot(f"{word(name)} is the same throughout", len(a))
    if len(a) < 3:
        return cannot("fewer than three requests", len(a))
    ranks = float(np.corrcoef(pd.Series(a).rank(), pd.Series(b).rank())[0, 1])
    plain = float(np.corrcoef(a, b)[0, 1])
    together = bool(min(abs(ranks), abs(plain)) >= limit)
    if together:
        how = "rise together" if plain > 0 else "go against each other"
        shown = np.floor(100 * abs(plain)) / 100
        sentence = f"{names[0].upper()}{names[1:]} {how} (|r| >= {shown:.2f}): which of the two is the cause cannot be told apart."
    else:
        sentence = f"{names[0].upper()}{names[1:]} vary apart (r = {plain:.2f}): their effects can be told apart."
    return Confounding(plain, together, len(a), sentence)


def word(column: str) -> str:
    """Say a column in words."""
    known = {"context_len": "context", "prompt_len": "prompt length", "generated_len": "generated length", "batch_size": "batch size"}
    word = known.get(column, column)
    for end in ("_s", "_min", "_ms", "_us"):
        word = word.removesuffix(end)
    return word.replace("_", " ")
