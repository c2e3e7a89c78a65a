"""The two-point decode benchmark against an OpenAI-compatible server, and its baselines.

``run_sweep(url, Plan(ctx=(64, 1024)))`` measures; ``Sweep.save`` and ``load_sweep`` keep; ``compare`` says what changed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddtree_metrics.bench.baseline import Comparison, Verdict, compare
    from ddtree_metrics.bench.prompts import PromptSource
    from ddtree_metrics.bench.protocol import run_sweep
    from ddtree_metrics.bench.stats import Point
    from ddtree_metrics.bench.sweep import Plan, Sweep, load_sweep

_HOME = {
    "Comparison": "baseline",
    "Verdict": "baseline",
    "compare": "baseline",
    "PromptSource": "prompts",
    "run_sweep": "protocol",
    "Plan": "sweep",
    "Sweep": "sweep",
    "load_sweep": "sweep",
    "Point": "stats",
}

__all__ = ["Comparison", "Plan", "Point", "PromptSource", "Sweep", "Verdict", "compare", "load_sweep", "run_sweep"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
