"""Why it was slow: hypotheses, evidence, verdict.

``diagnose`` tests every cause that can be measured beside each step in one model of step time and one of tokens per step, compares groups
of steps and server starts, and says in one sentence what follows; what cannot be told apart is named together. ``format_diagnosis``
writes it for a terminal.
"""

from __future__ import annotations

from ddtree_metrics.diagnosis.assembly import diagnose
from ddtree_metrics.diagnosis.causes import CAUSES, Cause
from ddtree_metrics.diagnosis.matched_pairs import Apart, tell_apart
from ddtree_metrics.diagnosis.result import Comparison, Diagnosis, FlagChange, Hypothesis, Since
from ddtree_metrics.diagnosis.text import format_diagnosis
from ddtree_metrics.metrics.doubt import Interval

__all__ = [
    "CAUSES",
    "Apart",
    "Cause",
    "Comparison",
    "Diagnosis",
    "FlagChange",
    "Hypothesis",
    "Interval",
    "Since",
    "diagnose",
    "format_diagnosis",
    "tell_apart",
]
