"""The counters of whole requests: tokens the client got, verify steps and accepted drafts have to fit together."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.given import takes


@takes("requests", ("request_id", "completion_tokens", "verify_steps"))
def reconcile_counters(requests: pd.DataFrame) -> pd.DataFrame:
    """Check the counters of each request against ``completion = 1 + steps + accepted``.

    The prefill gives one token (one more after each retraction), every step one bonus token, and every accepted draft one more.
    What a step commits after the stop token is thrown away, so the right side may be larger, never smaller.

    Parameters
    ----------
    requests : pandas.DataFrame
        ``completion_tokens``, ``verify_steps``, ``accepted_drafts`` (or ``accepted_histogram``), and ``retractions`` if there were.

    Returns
    -------
    pandas.DataFrame
        A copy with ``tokens_per_step`` (tokens the client got from steps, by steps: the prefill's token is not one of them),
        ``counter_gap`` (right side minus completion), ``discarded_tail`` (the gap where it is not negative), ``counters``
        (exact, discarded_tail, inconsistent, or null) and ``counters_why``.
    """
    completion, steps = cols.numeric(requests, "completion_tokens"), cols.numeric(requests, "verify_steps")
    accepted = cols.numeric(requests, "accepted_drafts")
    hist, at, valid = cols.lists(requests, "accepted_histogram")
    if valid.any():
        depth = np.arange(len(hist)) - np.repeat(at[:-1], np.diff(at))
        steps = np.where(np.isnan(steps), cols.row_sums(hist, at, valid), steps)
        accepted = np.where(np.isnan(accepted), cols.row_sums(hist * depth, at, valid), accepted)
    prefills = 1.0 + np.nan_to_num(cols.numeric(requests, "retractions"))
    gap = prefills + steps + accepted - completion
    made = requests.copy()
    with np.errstate(invalid="ignore", divide="ignore"):
        made["tokens_per_step"] = np.where(steps > 0, (completion - prefills) / steps, np.nan)
    made["counter_gap"] = gap
    made["discarded_tail"] = np.where(gap >= 0, gap, np.nan)
    verdict = np.full(len(requests), "inconsistent", dtype=object)
    verdict[gap == 0], verdict[gap > 0] = "exact", "discarded_tail"
    why = np.full(len(requests), None, dtype=object)
    why[np.isnan(accepted)] = "accepted drafts are not known"
    why[np.isnan(steps)] = "verify steps are not known"
    why[np.isnan(completion)] = "completion tokens are not known"
    why[gap < 0] = "the client got more tokens than prefill, steps and accepted drafts can give"
    verdict[np.isnan(gap)] = None
    made["counters"] = pd.Series(verdict, index=requests.index, dtype=object)
    made["counters_why"] = pd.Series(why, index=requests.index, dtype=object)
    return made
