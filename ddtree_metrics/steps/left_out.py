"""Why rows were left out, in words."""

from __future__ import annotations

from ddtree_metrics.layout import plural

_WHY = {
    "prefill_between": "a prefill ran in between",
    "suppressed": "lines were lost in between",
    "retraction": "a retraction in between",
    "coarse_clock": "the clock is too coarse",
    "burst": "lines were written together",
    "clock_step": "the clock was set",
    "gap": "an idle time or a hole in between",
    "restart": "the server was restarted",
    "boot": "the machine was booted",
    "first": "the first of its stream",
    "outside_window": "cut by the window",
    "after_idle": "idle time before it",
    "window_mismatch": "the window has another number of steps",
}
"""Why a step was not timed, in words."""


def left_out(reason: str, count: int) -> str:
    """Say how many rows were left out and why: ``19 steps were not timed (a prefill ran in between)``."""
    head, _, why = reason.partition("no step time: ")
    if head or not why:
        return f"{count:,} {reason}"
    return f"{plural(count, 'step')} {'was' if count == 1 else 'were'} not timed ({_WHY.get(why, why.replace('_', ' '))})"
