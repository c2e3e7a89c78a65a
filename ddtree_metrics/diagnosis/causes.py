"""The causes that are numbers beside each step: one record each, all tested in one model of step time and one of tokens per step.

What is said of one cause holds at equal values of the others. A cause that the others predict is named together with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ddtree_metrics.steps.basis import Basis
from ddtree_metrics.steps.frames import Floats

STEP, TOKENS, BETWEEN = "step time", "tokens per step", "time between steps"

RARE = 0.005
"""A yes-or-no cause that holds for a smaller share of rows than this is not tested."""

SAME_CONTEXT = 0.02
"""A quantity that varies by less than this share of its size hardly varies."""


@dataclass(frozen=True, slots=True)
class Unit:
    """In what a cause is measured.

    Attributes
    ----------
    shown : str
        The unit in which a value is shown; ``""`` for a yes or no.
    each : str
        What a slope is for each of: ``for each 1000 tokens``.
    scale, offset : float
        What a value is multiplied by, and what is added, to be shown.
    least_span : float
        Smaller ranges than this hardly vary.
    binary : bool
        Whether it is a yes or no.
    """

    shown: str = ""
    each: str = "in all"
    scale: float = 1.0
    offset: float = 0.0
    least_span: float = 0.0
    binary: bool = False


THOUSANDS = Unit("tokens", "for each 1000 tokens", 1000.0, least_span=0.02)
REQUESTS = Unit("requests", "for each request more", offset=1.0, least_span=0.5)
MINUTES = Unit("min", "a minute", least_span=2.0)
YES_OR_NO = Unit(binary=True)


@dataclass(frozen=True, slots=True)
class Cause:
    """A possible cause that is a number beside each step.

    Attributes
    ----------
    key : str
        Its fixed name, for programs; ``phrases`` has its sentence under it.
    term : str
        The quantity; causes of one quantity share it.
    on : str
        ``STEP`` or ``TOKENS``: which of the two numbers it acts on.
    column : callable
        From the panel to the values of each row, in units of ``unit``.
    label : str
        The quantity in words.
    unit : Unit
        In what it is measured and shown.
    moves : bool
        Whether it changes within a request.
    setting : bool
        Whether it is a setting of the server: no text of requests goes with it.
    slope : str
        Its name in ``Diagnosis.slopes``; ``""`` for none.
    """

    key: str
    term: str
    on: str
    column: Callable[[Basis], Floats]
    label: str
    unit: Unit
    moves: bool = True
    setting: bool = False
    slope: str = ""

    @property
    def few(self) -> bool:
        """Whether it may hold for a few requests only, which is then no support: a yes or no, or a count."""
        return self.unit.binary or self.unit is REQUESTS


def _batch(panel: Basis) -> Floats:
    return np.asarray(np.where(np.isfinite(panel.batch), panel.batch, 1.0) - 1.0)


CAUSES: tuple[Cause, ...] = (
    Cause("context_step_time", "context", STEP, lambda p: p.batch_context / 1000.0, "context", THOUSANDS, slope="context_step_ms"),
    Cause("context_acceptance", "context", TOKENS, lambda p: p.context / 1000.0, "context", THOUSANDS, slope="context_tokens"),
    Cause(
        "generated_acceptance", "generated", TOKENS, lambda p: p.generated / 1000.0, "generated length", THOUSANDS, slope="generated_tokens"
    ),
    Cause("batch", "batch", STEP, _batch, "batch size", REQUESTS, slope="batch_step_ms"),
    Cause("batch", "batch", TOKENS, _batch, "batch size", REQUESTS, slope="batch_tokens"),
    Cause("uptime", "uptime", STEP, lambda p: p.uptime_s / 60.0, "uptime", MINUTES, slope="uptime_step_ms"),
    Cause("fragmentation", "generated", STEP, lambda p: p.longest / 1000.0, "generated length", THOUSANDS, slope="generated_step_ms"),
    Cause("cached_prefix", "cached", STEP, lambda p: p.cached, "cached prefix", YES_OR_NO, moves=False, slope="cached_step_ms"),
    Cause("cached_prefix", "cached", TOKENS, lambda p: p.cached, "cached prefix", YES_OR_NO, moves=False, slope="cached_tokens"),
    Cause("graph_off", "graph_off", STEP, lambda p: p.graph_off, "graph off", YES_OR_NO, slope="graph_off_step_ms"),
    Cause(
        "budget", "budget", TOKENS, lambda p: -p.budget, "budget", Unit("nodes", "for each node less", -1.0, least_span=0.5), setting=True
    ),
    Cause("budget", "budget", STEP, lambda p: p.budget, "budget", Unit("nodes", "for each node more", least_span=0.5), setting=True),
)
"""Every cause that is a number beside each step. A new one is a record here and a sentence in ``phrases.CAUSES``."""


def label(term: str) -> str:
    """Return a term in words."""
    if term.startswith("run:"):
        return f"restart (run {term[4:]})"
    if term.startswith("break:"):
        return "the break in time"
    if term == "text":
        return "the kind of text"
    if term == "window":
        return "drafter window"
    return next((c.label for c in CAUSES if c.term == term), term)
