"""Why something is said, as a kind with numbers: what decides never reads a sentence, and sentences are made at the very end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Why(Enum):
    """Kinds of reason; ``phrases`` has the sentence of each."""

    # why a cause was not tested
    NO_ROWS = "no_rows"
    NOT_KNOWN = "not_known"
    HARDLY_VARIES = "hardly_varies"
    ALWAYS = "always"
    NEVER = "never"
    NO_MODEL = "no_model"
    # what a test gave
    MEASURED = "measured"
    TOGETHER = "together"
    CONTEXT_UNKNOWN = "context_unknown"
    GROWS_WITH_CONTEXT = "grows_with_context"
    FEW_REQUESTS = "few_requests"
    FEW_STEPS = "few_steps"
    TEXT_OR = "text_or"
    WITHIN = "within"
    SHORT_UPTIME = "short_uptime"
    REVERSED = "reversed"
    ON_SOME_ROWS = "on_some_rows"
    GRAPH_UNKNOWN = "graph_unknown"
    SAME_AS_BATCH = "same_as_batch"
    SLOPE_OR_KNEE = "slope_or_knee"
    PAIRS = "pairs"
    # the drafter's window
    NO_WINDOW = "no_window"
    ONE_SIDE = "one_side"
    NO_STEP_AT_WINDOW = "no_step_at_window"
    # comparisons
    NO_OVERLAP = "no_overlap"
    STRETCHES = "stretches"
    EMPTY_GROUP = "empty_group"
    NOT_POSITIVE = "not_positive"
    # what is observed
    OBSERVED = "observed"


@dataclass(frozen=True, slots=True)
class Reason:
    """A kind of reason with its numbers.

    Attributes
    ----------
    kind : Why
        What kind.
    numbers : dict of str to object
        What its sentence is made of: numbers, names of quantities, other facts.
    """

    kind: Why
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """Return one of the numbers."""
        return self.numbers[name]


def because(kind: Why, /, **numbers: Any) -> Reason:
    """Make a reason."""
    return Reason(kind, numbers)
