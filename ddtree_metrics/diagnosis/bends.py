"""Controls for context that can bend: where a straight line is not enough, the other causes would be judged by what it leaves over."""

from __future__ import annotations

import numpy as np

from ddtree_metrics.diagnosis.model import VIF_LIMIT, Fit, fit
from ddtree_metrics.steps.frames import Floats

KNOTS = (0.2, 0.4, 0.6, 0.8)
"""Quantiles of context at which the control of a comparison of two groups may bend."""


def bending(y: Floats, inside: dict[str, Floats], cluster: np.ndarray, weight: Floats, straight: Fit, *, relative: bool) -> Fit:
    """Return a model whose context term bends, so that a knee is not put down to the group that has more of the context beyond it."""
    if "group" not in inside or "context" not in inside:
        return straight
    x = inside["context"]
    bends: dict[str, Floats] = {}
    for i, knot in enumerate(np.unique(np.quantile(x, KNOTS))):
        term = np.maximum(x - knot, 0.0)
        if (term > 0).mean() > 0.05 and np.ptp(term) > 0:
            bends[f"bend:{i}"] = term
    terms = {k: v for k, v in inside.items() if k != "bend"} | bends
    bent = fit(y, terms, cluster, weight, relative=relative)
    return bent if bent is not None and bent.dof >= 3 else straight


def bend(y: Floats, inside: dict[str, Floats], cluster: np.ndarray, weight: Floats) -> dict[str, Floats]:
    """Return a bend in the context term where a straight line is clearly not enough, for the other terms to be judged fairly."""
    x = inside["context"]
    best: tuple[float, dict[str, Floats]] | None = None
    for knot in np.unique(np.quantile(x, [0.25, 0.5, 0.75])):
        term = np.maximum(x - knot, 0.0)
        if term.std() <= 1e-9 or (term > 0).mean() < 0.05:
            continue
        model = fit(y, {**inside, "bend": term}, cluster, weight, relative=True)
        if model is None:
            continue
        value, se = model.combination({"bend": 1.0})
        score = abs(value) / max(se, 1e-12)
        if score > 3.5 and model.vif[model.names.index("context")] < VIF_LIMIT and (best is None or score > best[0]):
            best = (score, {"bend": term})
    return best[1] if best else {}
