"""What stands in the log just before a break: a retraction, lost lines, prefills, another budget, a graph that was left."""

from __future__ import annotations

from typing import Any

import numpy as np

from ddtree_metrics.diagnosis.breaks import Break
from ddtree_metrics.diagnosis.reasons import Reason, Why, because
from ddtree_metrics.steps.basis import Basis, empty_like, microseconds

JUST_BEFORE_US = 10_000_000
"""What happened so long before a break, or within its own interval, stands beside it."""

MANY_PREFILLS = 4
"""So many prefills just before are a burst of them."""


def beside(found: Break, panel: Basis, log: Any) -> list[Reason]:
    """Return what stands beside a break.

    Parameters
    ----------
    found : Break
        The break.
    panel : Basis
        All rows.
    log : Log
        Or anything with its frames.
    """
    begin, end = found.low_us - JUST_BEFORE_US, found.high_us
    made: list[Reason] = []
    events = empty_like(log, "events")
    if len(events) and "kind" in events:
        at, kinds = microseconds(events), events["kind"].astype(str).to_numpy()
        near = (at >= begin) & (at <= end)
        for kind in dict.fromkeys(kinds[near].tolist()):
            times = at[near & (kinds == kind)]
            made.append(because(Why.OBSERVED, sentence=f"{kind.replace('_', ' ')}", kind=kind, count=len(times), time_us=int(times[-1])))
    prefill = empty_like(log, "prefill")
    if len(prefill):
        at = microseconds(prefill)
        count = int(((at >= begin) & (at <= end)).sum())
        if count >= MANY_PREFILLS:
            made.append(because(Why.OBSERVED, sentence=f"{count} prefills", kind="prefill_burst", count=count))
    for name, values in (("budget", panel.budget), ("graph_off", panel.graph_off)):
        mine = (panel.run == found.run) & np.isfinite(values) & (panel.time_us >= 0)
        before, after = mine & (panel.time_us < found.time_us), mine & (panel.time_us >= found.time_us)
        if before.any() and after.any():
            one, other = float(np.median(values[before])), float(np.median(values[after]))
            if one != other:
                made.append(because(Why.OBSERVED, sentence=f"{name} {one:g} to {other:g}", kind=name, before=one, after=other))
    return made
