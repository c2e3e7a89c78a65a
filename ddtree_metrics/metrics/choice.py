"""How much of a curve the data support: a richer form must predict requests it has not seen better than a simpler one."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from ddtree_metrics.metrics.models import Model, Regression

WORTH = 0.02
"""A richer model must move the curve by this share of the mean value somewhere in the data; less is of no use to anybody."""

NAN = float("nan")


def choose(
    regression: Regression, forms: dict[str, list[Model]], *, scale: float, sloped: bool | None = None, level: float = 0.95
) -> tuple[pd.DataFrame, str]:
    """Choose the simplest form that predicts requests it has not seen as well as the richer ones.

    A richer form must lower the error out of request by more than its uncertainty, and move the curve by `WORTH` of the mean
    somewhere; a knee must also beat a smooth curve. A bend and a drop claim equally much, and the better one is taken.

    Parameters
    ----------
    regression : Regression
        The data.
    forms : dict of str to list of Model
        Candidates by kind, each at every knee it may have.
    scale : float
        Mean of the values.
    sloped : bool, optional
        Whether the interval of the line's slope leaves out zero; decides between flat and line where it is known.
    level : float
        One-sided level of the comparison.

    Returns
    -------
    comparison : pandas.DataFrame
        ``model``, ``loss``, ``gain``, ``gain_low``, ``chosen``.
    chosen : str
        The kind chosen.
    """
    groups = regression.cells.groups
    out = {kind: regression.left_out(models) for kind, models in forms.items()}
    order = [k for k in ("flat", "line", "curve", "bend", "drop") if k in forms]
    quantile = float(stats.t.ppf(level, max(groups - 1, 1)))

    def gain(simple: str, rich: str) -> tuple[float, float]:
        difference = out[simple] - out[rich]
        error = float(np.sqrt(groups * np.var(difference, ddof=1))) if groups > 1 else np.inf
        return float(difference.sum()), float(difference.sum()) - quantile * error

    def matters(simple: str, rich: str) -> bool:
        a, b = regression.best(forms[simple]), regression.best(forms[rich])
        assert a is not None
        assert b is not None
        cells = regression.cells
        apart = a.design(cells.x, cells.extra) @ regression.fit(a) - b.design(cells.x, cells.extra) @ regression.fit(b)
        return float(np.quantile(np.abs(apart), 0.95)) > WORTH * abs(scale)

    chosen = order[0]
    rows: dict[str, tuple[float, float]] = {order[0]: (NAN, NAN)}
    for kind in order[1:]:
        base = "line" if kind in ("curve", "bend", "drop") and "line" in forms else order[0]
        if base == kind:
            base = order[0]
        rows[kind] = gain(base, kind)
        supported = sloped if kind == "line" and sloped is not None and base == "flat" else rows[kind][1] > 0
        if not supported or not matters(base, kind):
            continue
        better = gain(chosen, kind)
        if chosen in ("flat", "line") or (better[0] if (chosen, kind) == ("bend", "drop") else better[1]) > 0:
            chosen = kind
    total = float(out[order[0]].sum())
    made = pd.DataFrame(
        [
            {
                "model": kind,
                "loss": float(out[kind].sum()) / total if total > 0 else NAN,
                "gain": rows[kind][0] / total if total > 0 else NAN,
                "gain_low": rows[kind][1] / total if total > 0 else NAN,
                "chosen": kind == chosen,
            }
            for kind in order
        ]
    )
    return made, chosen
