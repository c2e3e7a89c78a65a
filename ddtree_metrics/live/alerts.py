"""When somebody should be told: rules, each a record, and the alerts that hold by now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ddtree_metrics.diagnosis.numerals import change, number
from ddtree_metrics.live.curve import Baseline
from ddtree_metrics.live.rolling import Rolling, means, ratios

LEAST = 20.0
"""So many steps a bin of context must have on both sides to be compared."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From where on it is told.

    Attributes
    ----------
    nothing_accepted : int
        Steps in a row without an accepted draft, where speculation is on.
    change : float
        By this share step time is above, or tokens per step are below, the baseline at equal context.
    for_s : float
        For so many seconds.
    """

    nothing_accepted: int = 200
    change: float = 0.25
    for_s: float = 300.0


@dataclass(frozen=True, slots=True)
class State:
    """What rules look at."""

    rolling: Rolling
    now_s: float
    baseline: Baseline | None
    limits: Thresholds
    without_accepted: int = 0
    lost_lines: int = 0


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that holds by now: the rule's name, one sentence, and its numbers."""

    rule: str
    said: str
    numbers: dict[str, float] = field(default_factory=dict)


def _nothing_accepted(state: State) -> Alert | None:
    n = state.without_accepted
    if n < state.limits.nothing_accepted:
        return None
    return Alert("nothing_accepted", f"no draft was accepted in {n:,} steps in a row", {"steps": float(n)})


def spelled(seconds: float) -> str:
    """Write a span, ``5 min`` or ``40 s``."""
    return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:.3g} min"


def _off_baseline(state: State, which: int) -> Alert | None:
    if state.baseline is None:
        return None
    now = state.rolling.last(state.limits.for_s, state.now_s)
    ratio = ratios(now, state.baseline.sums, LEAST)[which]
    # over all of the time: each half of it must be off, or a short burst would do
    halves = [
        ratios(state.rolling.last(state.limits.for_s / 2, state.now_s, until_s=state.now_s - back), state.baseline.sums, LEAST / 2)[which]
        for back in (0.0, state.limits.for_s / 2)
    ]
    worse = [None if r is None else (r if which == 0 else 1 / r) for r in (ratio, *halves)]
    if any(w is None or w < 1 + state.limits.change for w in worse) or ratio is None:
        return None
    name, rule = ("step time is", "step_time") if which == 0 else ("tokens per step are", "tokens_per_step")
    seen = means(now.sum(axis=0))
    value = f"{number(seen.step_ms)} ms" if which == 0 else number(seen.tokens, 2)
    off = f"{change(ratio).lstrip('+-')} {'above' if ratio > 1 else 'below'}"
    return Alert(rule, f"{name} {off} the baseline at equal context for {spelled(state.limits.for_s)} ({value} now)", {"ratio": ratio})


def _lines_lost(state: State) -> Alert | None:
    if not state.lost_lines:
        return None
    return Alert("lines_lost", f"journald dropped at least {state.lost_lines:,} lines", {"lines": float(state.lost_lines)})


RULES: Sequence[Callable[[State], Alert | None]] = (
    _nothing_accepted,
    lambda state: _off_baseline(state, 0),
    lambda state: _off_baseline(state, 1),
    _lines_lost,
)


RULE_NAMES = ("nothing_accepted", "step_time", "tokens_per_step", "lines_lost")


def alerts(state: State) -> list[Alert]:
    """Return what holds by now."""
    return [found for rule in RULES if (found := rule(state)) is not None]


def steps_without_accepted(
    before: int, tokens: np.ndarray[tuple[int], np.dtype[np.float64]], steps: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> int:
    """Count on the steps in a row, up to the newest row, that put out one token each."""
    known = np.isfinite(tokens)
    accepted = np.flatnonzero(known & (tokens > 1))
    if len(accepted):
        later = np.arange(len(tokens)) > accepted[-1]
        return round(float(steps[known & later].sum()))
    return before + round(float(steps[known].sum()))
