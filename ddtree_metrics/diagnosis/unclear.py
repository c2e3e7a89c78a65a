"""Why it cannot be told: which quantity is not known, which interval is too wide, and what is visible all the same."""

from __future__ import annotations

import numpy as np

from ddtree_metrics.diagnosis.causes import STEP, TOKENS, Causes
from ddtree_metrics.diagnosis.compare import step_weight
from ddtree_metrics.diagnosis.hypotheses import Named
from ddtree_metrics.diagnosis.result import SUPPORTED, Comparison
from ddtree_metrics.diagnosis.words import factor, number, plural
from ddtree_metrics.steps.basis import Basis as Panel

GIVE_REQUESTS = "give the requests (--requests FILE), or a log with its Decode batch lines: without them the context is not known"


def context_unknown(causes: Causes) -> bool:
    """Whether the context is known for too few rows for anything to be put down to a cause."""
    return any(causes.context_lacks(on) for on in (STEP, TOKENS))


def without_context(panel: Panel, comparisons: list[Comparison], causes: Causes, named: list[Named]) -> str:
    """Say what is visible where the context is not known: levels and drifts, and what goes with them."""
    use = panel.timed if causes.context_lacks(STEP) else panel.counted
    known, rows = int((use & np.isfinite(panel.context)).sum()), int(use.sum())
    said = f"context is known for {known:,} of {plural(rows, 'step')}, so context, batch size and other causes cannot be separated"
    seen = [moved(c) for c in comparisons if c.kind in ("parts", "runs") and c.speed_ratio.known]
    spread = _spread(panel)
    if spread:
        seen.append(spread)
    for n in named:
        if n.goes_with and n.hypothesis.effect.value is not None:
            seen.append(f"this goes with it, but the context may stand behind it: {n.phrase}")
    return said + (f". What is visible: {'; '.join(seen)}" if seen else "")


def moved(c: Comparison) -> str:
    """Say how both numbers moved between two groups."""
    step = f"step time {number(c.step_time_before_ms)} -> {number(c.step_time_after_ms)} ms, {factor(c.step_time_ratio)}"
    tokens = f"tokens per step {number(c.tokens_before, 2)} -> {number(c.tokens_after, 2)}, {factor(c.tokens_ratio)}"
    return f"{c.after} against {c.before}: {step}, {tokens}"


def _spread(panel: Panel) -> str:
    """Say how far the step time of stretches of steps lies apart, which the ends of a log do not show."""
    use = panel.timed
    codes, inverse = np.unique(panel.stretch[use], return_inverse=True)
    if len(codes) < 10:
        return ""
    weight = step_weight(panel)[use]
    means = np.bincount(inverse, weight * panel.step_ms[use]) / np.bincount(inverse, weight)
    low, high = (float(q) for q in np.quantile(means, [0.1, 0.9]))
    return f"the step time of stretches of steps lies between {number(low)} and {number(high)} ms (10th to 90th percentile of {len(codes)})"


def why_not(panel: Panel, main: Comparison | None, causes: Causes, least: float) -> str:
    """Say what it is that leaves the answer open."""
    if not panel.timed.any():
        reasons = {k: v for k, v in panel.excluded.items() if k.startswith(("no step time", "step time"))}
        most = max(reasons, key=lambda k: reasons[k]) if reasons else ""
        why = f" ({reasons[most]} of {len(panel)}: {most.removeprefix('no step time: ')})" if most and most != "no step time" else ""
        return f"no step has a step time{why}"
    if not panel.counted.any():
        return "no step has a number of tokens"
    if main is not None and not main.speed_ratio.known:
        return main.reason or f"{main.after} and {main.before} cannot be compared"
    if main is not None and main.speed_ratio.low is None:
        return f"{moved(main)}, and there are too few requests and steps for an interval"
    if main is not None and main.speed_ratio.low is not None and main.speed_ratio.high is not None:
        lost, change = 100 * (1 - main.speed_ratio.low), 100 * (1 - np.exp(-least))
        said = f"{main.after} against {main.before}: speed {factor(main.speed_ratio)}"
        if main.speed_ratio.high < np.exp(-least):
            return f"a slow-down is shown ({said}), but no measured cause can be held responsible for it"
        if lost > change:
            return f"no slow-down is shown, but one of up to {lost:.0f} % is not ruled out, and {change:.0f} % counts ({said})"
        return f"no slow-down is shown there ({said}), but other causes cannot be tested: {_untested(causes)}"
    return _untested(causes) or _few(panel)


def _untested(causes: Causes) -> str:
    reasons = list(dict.fromkeys(reason for (cause, _), reason in causes.untested.items() if cause in ("context", "batch", "uptime")))
    if causes.models:
        return "; ".join(reasons) or "the intervals of all causes are wide"
    return "; ".join([*reasons, "too few requests or steps for a model"])


def _few(panel: Panel) -> str:
    return f"{plural(len(np.unique(panel.cluster[panel.known])), 'request')} and {plural(int(panel.timed.sum()), 'timed step')} only"


def not_normal(named: list[Named]) -> str:
    """Say that the numbers are not those of normal service, where something supported makes them so."""
    said = {
        "simulated": "simulated acceptance was left on",
        "profiling": "profiling or a debug switch was left on",
        "too_good": "acceptance stays at its cap as in a repetition loop or with placeholder drafts",
    }
    found = [said[n.hypothesis.key] for n in named if n.hypothesis.key in said and n.hypothesis.status == SUPPORTED]
    return f" The numbers are not those of normal service: {'; '.join(found)}." if found else ""


def joined(words: tuple[str, ...] | list[str]) -> str:
    """Join words: ``context, batch size and uptime``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else "what is measured"
