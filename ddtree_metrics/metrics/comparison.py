"""Step times by two sources, on the same steps: step lines beside ``Decode batch`` lines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddtree_metrics.layout import plural
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.decode_windows import decode_step_times
from ddtree_metrics.steps.given import takes
from ddtree_metrics.steps.step_time import step_times


@dataclass(frozen=True)
class StepTimeComparison:
    """The step time by two sources, on the same steps.

    Attributes
    ----------
    frame : pandas.DataFrame
        A row a Decode line whose window could be compared: ``time``, ``steps``, ``steps_ms`` (mean of the step lines within it),
        ``decode_ms``, ``difference_ms``.
    pairs : int
        Windows compared.
    steps_ms, decode_ms : float
        Medians by each source.
    ratio, low, high : float
        Median of decode over steps, and the middle 90 % of the windows' ratios.
    agree : bool or None
        Whether the medians differ by less than 5 %; None if nothing could be compared.
    sentence : str
        The result in words.
    reason : str or None
        Why nothing could be compared.
    """

    frame: pd.DataFrame
    pairs: int
    steps_ms: float
    decode_ms: float
    ratio: float
    low: float
    high: float
    agree: bool | None
    sentence: str
    reason: str | None = None


@takes("steps", fill=("decode", "prefill"))
def compare_step_times(steps: pd.DataFrame, decode: pd.DataFrame, *, prefill: pd.DataFrame | None = None) -> StepTimeComparison:
    """Compare the step times of step lines with those of Decode lines over the same steps.

    Parameters
    ----------
    steps, decode : pandas.DataFrame
        Both kinds of line of one log.
    prefill : pandas.DataFrame, optional
        ``Prefill batch`` lines.

    Returns
    -------
    StepTimeComparison
    """
    names = ["time", "steps", "steps_ms", "decode_ms", "difference_ms"]
    timed = step_times(steps, prefill=prefill)
    lines = decode_step_times(decode, prefill=prefill)
    ms, at = cols.numeric(timed, "step_time_ms"), cols.time_us(timed)
    line_ms, line_at = cols.numeric(lines, "step_time_ms"), cols.time_us(lines)
    by_stream = cols.has(steps, "stream") and cols.has(decode, "stream")
    step_keys = cols.text(steps, "stream" if by_stream else "dp_rank")
    line_keys = cols.text(decode, "stream" if by_stream else "dp_rank")
    rows: list[pd.DataFrame] = []
    for key in dict.fromkeys(line_keys[np.isfinite(line_at)]):
        mine = np.flatnonzero((line_keys == key) & np.isfinite(line_at))
        mine = mine[np.argsort(line_at[mine], kind="stable")]
        theirs = np.flatnonzero((step_keys == key) & np.isfinite(at))
        theirs = theirs[np.argsort(at[theirs], kind="stable")]
        place = np.searchsorted(at[theirs], line_at[mine], side="right")
        before = np.concatenate([[0], place[:-1]])
        values = np.concatenate([[0.0], np.cumsum(np.nan_to_num(ms[theirs]))])
        known = np.concatenate([[0], np.cumsum(np.isfinite(ms[theirs]))])
        count = place - before
        whole = (count > 0) & (known[place] - known[before] == count) & np.isfinite(line_ms[mine])
        if whole.any():
            sizes, often = np.unique(count[whole], return_counts=True)
            whole &= count == sizes[int(np.argmax(often))]
        whole &= np.arange(len(mine)) > 0
        part = np.flatnonzero(whole)
        mean = (values[place[part]] - values[before[part]]) / count[part]
        rows.append(
            pd.DataFrame(
                {
                    "time": pd.to_datetime(line_at[mine[part]].astype(np.int64), unit="us", utc=True),
                    "steps": count[part],
                    "steps_ms": mean,
                    "decode_ms": line_ms[mine[part]],
                    "difference_ms": line_ms[mine[part]] - mean,
                }
            )
        )
    frame = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=names)
    if not len(frame):
        reason = "no Decode line has a sound window in which every step has a time"
        nothing = float("nan")
        return StepTimeComparison(frame, 0, nothing, nothing, nothing, nothing, nothing, None, f"Cannot be compared: {reason}.", reason)
    ratios = frame["decode_ms"].to_numpy(dtype=float) / frame["steps_ms"].to_numpy(dtype=float)
    low, high = (float(q) for q in np.quantile(ratios, [0.05, 0.95]))
    own, stock = float(frame["steps_ms"].median()), float(frame["decode_ms"].median())
    ratio = stock / own
    agree = bool(abs(ratio - 1.0) < 0.05)
    verb = "agree" if agree else "differ"
    sentence = (
        f"Step lines and Decode lines {verb} over {plural(len(frame), 'window')}: median step {own:.1f} ms and {stock:.1f} ms "
        f"({100 * (ratio - 1):+.1f} %)."
    )
    return StepTimeComparison(frame, len(frame), own, stock, ratio, low, high, agree, sentence)
