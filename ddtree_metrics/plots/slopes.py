"""One slope for a picture and its text: what a diagnosis says that context adds, as a line through the points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree_metrics.plots.looks import Floats


@dataclass(frozen=True, slots=True)
class Slope:
    """Milliseconds a step for each 1,000 tokens of context in the batch.

    Attributes
    ----------
    value, low, high : float
        The slope and its interval.
    request : float
        Milliseconds for each request more in the batch; 0 where it is not known.
    """

    value: float
    low: float = float("nan")
    high: float = float("nan")
    request: float = 0.0

    def through(self, x: Floats, y: Floats, weight: Floats, batch: Floats, batch_context: Floats) -> tuple[Floats, Floats, bool]:
        """Lay the line through points: so much for context and batch of each, at the level of their mean.

        Returns
        -------
        tuple
            Where the line runs: x and y, and whether batches differ, so that it is no straight line.
        """
        mixed = bool(np.isfinite(batch).any() and np.nanmax(batch) > 1.02 * np.nanmin(batch))
        total = np.where(np.isfinite(batch_context), batch_context, x) if mixed else x
        many = np.where(np.isfinite(batch), batch, 1.0) if mixed else np.ones(len(x))
        added = self.value / 1000 * total + self.request * many
        level = float(np.average(y - added, weights=weight))
        if mixed:
            return x, level + added, True
        at = np.linspace(x.min(), x.max(), 60) if len(x) > 1 else x
        return at, level + self.request + self.value / 1000 * at, False


def slope_of(found: Any) -> Slope | None:
    """Return the slope of a ``Diagnosis``; None where it has none, or it is no diagnosis."""
    slopes = getattr(found, "slopes", None)
    held = slopes.get("context_step_ms") if isinstance(slopes, dict) else None
    if slopes is None or held is None or held.value is None:
        return None
    low, high = (float("nan") if end is None else end for end in (held.low, held.high))
    each = slopes.get("batch_step_ms")
    return Slope(held.value, low, high, request=0.0 if each is None or each.value is None else each.value)
