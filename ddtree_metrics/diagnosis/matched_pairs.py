"""Telling two causes apart without a model: compare steps at equal values of one of them.

If speed differs at equal context and not at equal uptime, it is the uptime. This needs no straight line, and few requests: it is the
check an engineer makes by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddtree_metrics.diagnosis.causes import STEP
from ddtree_metrics.diagnosis.reasons import Why
from ddtree_metrics.diagnosis.study import Findings
from ddtree_metrics.metrics.confounding import APART, TOGETHER
from ddtree_metrics.steps.basis import Basis
from ddtree_metrics.steps.frames import Floats

NEAR = 0.1
"""Two values are equal if they differ by no more than this share of the larger (or of the range, if that is less strict by less) ..."""

FAR = 0.4
"""... and far apart if they differ by this share of the range."""

FEW_CLUSTERS = 12
"""With fewer requests the model says too little, and pairs are looked at."""

MOST_CELLS = 400
"""Of more requests there are too many pairs."""


@dataclass(frozen=True, slots=True)
class Apart:
    """What pairs at equal values say of two causes.

    Attributes
    ----------
    cause : str or None
        ``context`` or ``uptime``, if pairs at equal values of the other show it, and none show the other.
    together : bool
        Whether the two rise together (|r| > 0.98) and no pair tells them apart.
    r : float
        Their correlation.
    factor : float
        How many times slower, at equal values of the other cause.
    sentence : str
        The evidence.
    """

    cause: str | None = None
    together: bool = False
    r: float = float("nan")
    factor: float = float("nan")
    sentence: str = ""


def tell_apart(
    table: pd.DataFrame, speed: str = "tok_per_s", first: str = "context", second: str = "uptime_min", *, least: float = 0.1
) -> Apart:
    """Say which of two causes a speed goes with, from pairs of rows at equal values of the other.

    Parameters
    ----------
    table : DataFrame
        One row a measurement.
    speed, first, second : str
        The columns.
    least : float
        The smallest difference of speed (log scale) that counts.

    Returns
    -------
    Apart
    """
    rows = table[[speed, first, second]].apply(pd.to_numeric, errors="coerce")
    rows = rows[np.isfinite(rows.to_numpy(np.float64)).all(axis=1) & (rows[speed] > 0)]
    if len(rows) < 3:
        return Apart(sentence=f"{len(rows)} measurements are too few to tell {_name(first)} and {_name(second)} apart")
    y = np.log(rows[speed].to_numpy(np.float64))
    a, b = rows[first].to_numpy(np.float64), rows[second].to_numpy(np.float64)
    r = float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) > 0 and np.ptp(b) > 0 else float("nan")
    i, j = np.triu_indices(len(rows), 1)
    near_a, far_a = _near(a, i, j)
    near_b, far_b = _near(b, i, j)
    by_b = _differences(y, b, i, j, near_a & far_b)  # at equal first, the second differs
    by_a = _differences(y, a, i, j, near_b & far_a)
    if by_a is None or by_b is None:
        together = bool(abs(r) > TOGETHER)
        said = (
            f"{_name(first)} and {_name(second)} rise together (|r| > {TOGETHER:.2f})"
            if together
            else f"no two measurements at equal {_name(first)} or {_name(second)} can be compared"
        )
        return Apart(None, together, r, sentence=said)
    (drop_b, at_b), (drop_a, at_a) = by_b, by_a
    slow_b, slow_a = drop_b >= least, drop_a >= least
    pair_b = f"at equal {_name(first)} ({_pair(a, i, j, at_b)}) the speed differs {np.exp(abs(drop_b)):.1f}x"
    pair_a = f"at equal {_name(second)} ({_pair(b, i, j, at_a)}) it "
    if slow_b and not slow_a and drop_b > 3 * abs(drop_a):
        return Apart(
            "uptime" if second.startswith("uptime") else second,
            False,
            r,
            float(np.exp(drop_b)),
            f"{pair_b}, while {pair_a}does not ({np.exp(abs(drop_a)):.2f}x)",
        )
    if slow_a and not slow_b and drop_a > 3 * abs(drop_b):
        said = f"at equal {_name(second)} ({_pair(b, i, j, at_a)}) the speed differs {np.exp(drop_a):.1f}x, "
        said += f"while at equal {_name(first)} it does not ({np.exp(abs(drop_b)):.2f}x)"
        return Apart(first, False, r, float(np.exp(drop_a)), said)
    return Apart(None, False, r, sentence=f"{pair_b}, and {pair_a}differs {np.exp(abs(drop_a)):.1f}x")


def _name(column: str) -> str:
    return column.replace("_min", "").replace("_s", "").replace("_len", "").replace("_", " ")


def _near(x: Floats, i: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    gap, span = np.abs(x[i] - x[j]), float(np.ptp(x))
    return gap <= NEAR * np.maximum(np.minimum(np.abs(x[i]), np.abs(x[j])), 0.2 * span), gap >= FAR * span


def _differences(y: Floats, x: Floats, i: np.ndarray, j: np.ndarray, pairs: np.ndarray) -> tuple[float, int] | None:
    """Return the median fall of ``y`` from the lower to the higher ``x`` over the pairs, and the pair next to it."""
    at = np.flatnonzero(pairs)
    if not len(at):
        return None
    up = np.where(x[j[at]] > x[i[at]], y[i[at]] - y[j[at]], y[j[at]] - y[i[at]])
    middle = float(np.median(up))
    return middle, int(at[np.argmin(np.abs(up - middle))])


def _pair(x: Floats, i: np.ndarray, j: np.ndarray, at: int) -> str:
    return f"{x[i[at]]:.4g} / {x[j[at]]:.4g}"


def context_or_uptime(panel: Basis, found: Findings, least: float) -> Apart:
    """Tell context and uptime apart by pairs of requests, for where the model of step time cannot."""
    if any(r is not None and r.kind is Why.HARDLY_VARIES for r in (found.lacking.get((name, STEP)) for name in ("context", "uptime"))):
        return Apart()
    model = found.steps.model
    both = model is not None and {"context", "uptime"} <= set(model.added)
    enough = len(np.unique(found.steps.cells.owner)) >= FEW_CLUSTERS
    if model is not None and both and enough and max(model.vif["context"], model.vif["uptime"]) <= APART:
        return Apart()
    use = panel.timed & panel.counted & np.isfinite(panel.context) & np.isfinite(panel.uptime_s) & (panel.batch <= 1.5)
    if use.sum() < 3:
        return Apart()
    cell = pd.DataFrame(
        {
            "cell": panel.cluster[use],
            "context": panel.context[use],
            "uptime_min": panel.uptime_s[use] / 60,
            "ms": panel.step_ms[use],
        }
    )
    if cell["cell"].nunique() > MOST_CELLS:
        return Apart()
    per = cell.groupby("cell").agg(context=("context", "mean"), uptime_min=("uptime_min", "mean"), ms=("ms", "mean"))
    per["tok_per_s"] = 1000 / per["ms"]  # at one token a step: it is the step time that these two are told apart for
    return tell_apart(per, least=max(3 * least, 0.15))
