"""Why it was slow: hypotheses, evidence, verdict.

``diagnose`` tests every cause that can be measured beside each step in one model of step time and one of tokens per step, compares groups
of steps and server starts, and says in one sentence what follows; what cannot be told apart is named together. ``format_diagnosis``
writes it for a terminal.
"""

from __future__ import annotations

from ddtree_metrics.diagnosis.apart import Apart, tell_apart
from ddtree_metrics.diagnosis.core import diagnose
from ddtree_metrics.diagnosis.result import Comparison, Diagnosis, FlagChange, Hypothesis, Interval
from ddtree_metrics.diagnosis.text import format_diagnosis

__all__ = ["Apart", "Comparison", "Diagnosis", "FlagChange", "Hypothesis", "Interval", "diagnose", "format_diagnosis", "tell_apart"]
