"""What a diagnosis says, as plain data: the verdict, the comparisons, the hypotheses, what was left out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

DIAGNOSIS_VERSION = 1
"""1: the first form."""

SUPPORTED = "supported"
REFUTED = "refuted"
CANNOT_TELL = "cannot tell"

KINDS = ("step_time", "acceptance", "both", "between_steps", "nothing", "cannot_tell")


@dataclass(frozen=True, slots=True)
class Interval:
    """A number with its interval; ``low`` and ``high`` are None where there is no interval.

    Attributes
    ----------
    value, low, high : float or None
        The estimate and the ends of its interval; all None where it cannot be told.
    unit : str
        ``share`` for parts of 1, ``ratio`` for after / before, else the unit.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "ratio"

    @property
    def known(self) -> bool:
        """Whether there is a number at all."""
        return self.value is not None


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One possible cause, and what the data say of it.

    Attributes
    ----------
    key : str
        A short fixed name, for programs.
    name : str
        The hypothesis as a sentence.
    status : str
        ``supported``, ``refuted`` or ``cannot tell``.
    acts_on : str or None
        ``step time``, ``tokens per step``, ``time between steps``, or None where it is about the measurement itself.
    effect : Interval
        What it does to speed: the ratio of speed with the cause over speed without it, so 0.5 is half as fast. Measured from the low
        end to the high end of the cause in the data, or from the group before to the group after; ``evidence`` says which.
    evidence : str
        Which rows, how many, and what they show.
    next : str
        The next measurement to make.
    explains : bool
        Whether it is named by the verdict.
    together_with : tuple of str
        Keys of other hypotheses from which the data cannot separate it.
    """

    key: str
    name: str
    status: str
    acts_on: str | None = None
    effect: Interval = Interval()
    evidence: str = ""
    next: str = ""
    explains: bool = False
    together_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FlagChange:
    """A server flag that differs between two starts of the server.

    Attributes
    ----------
    flag, before, after : str
        The flag and its two values; ``(not set)`` where it is missing.
    reach : str
        ``none`` for a flag that acts on finished text only, ``drafter`` or ``step`` or ``both`` for one with a known path to
        tokens per step or to step time, ``measurement`` for one that changes what is logged, ``unknown`` else.
    status : str
        What the data say of it as a cause of the change in numbers.
    evidence : str
        Why.
    """

    flag: str
    before: str
    after: str
    reach: str
    status: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two groups of steps, and how their speeds differ.

    Attributes
    ----------
    kind : str
        ``context``, ``runs``, ``groups``, ``parts`` (the last third of the log against the first), or the cause whose low and high end
        are compared: ``batch``, ``uptime``, ``cached``, ``graph_off``.
    before, after : str
        What the groups are, in words.
    verdict : str
        ``step_time``, ``acceptance``, ``both``, ``nothing`` or ``cannot_tell``.
    sentence : str
        The same as a sentence.
    step_time_before_ms, step_time_after_ms, tokens_before, tokens_after, speed_before, speed_after : float or None
        Means of the groups over request-steps (each request of a batch sees the step): step time, tokens per step, and their quotient,
        the speed of a request in tokens a second.
    step_time_ratio, tokens_ratio, speed_ratio : Interval
        After over before, as it was logged.
    step_time_ratio_equal, tokens_ratio_equal : Interval
        After over before at equal context, batch size and the other measured causes; unknown for context comparisons.
    share_step_time, share_acceptance : Interval
        Parts of the slow-down on the log scale; they add up to 1. Unknown where there is no change to divide.
    verdict_equal : str or None
        The verdict at equal context, batch size and the other measured causes: what is left for flags, drafter and text. None where it
        was not asked.
    equal_of : tuple of str
        What is held equal in that: ``context``, ``batch size``, ``uptime`` and the like, as far as it is measured and varies.
    rows : dict of str to int
        Requests, request-steps and timed steps of each group.
    interval_from : str or None
        What was taken as independent: ``requests`` or ``stretches``.
    flags : tuple of FlagChange
        Flags that differ, for a comparison of server starts.
    reason : str or None
        Why something cannot be told.
    """

    kind: str
    before: str
    after: str
    verdict: str
    sentence: str
    step_time_before_ms: float | None = None
    step_time_after_ms: float | None = None
    tokens_before: float | None = None
    tokens_after: float | None = None
    speed_before: float | None = None
    speed_after: float | None = None
    step_time_ratio: Interval = Interval()
    tokens_ratio: Interval = Interval()
    speed_ratio: Interval = Interval()
    step_time_ratio_equal: Interval = Interval()
    tokens_ratio_equal: Interval = Interval()
    share_step_time: Interval = Interval(unit="share")
    share_acceptance: Interval = Interval(unit="share")
    verdict_equal: str | None = None
    equal_of: tuple[str, ...] = ()
    rows: dict[str, int] = field(default_factory=dict)
    interval_from: str | None = None
    flags: tuple[FlagChange, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why it was slow, as far as the log can say.

    Attributes
    ----------
    verdict : str
        One sentence.
    kind : str
        ``step_time``, ``acceptance``, ``both``, ``between_steps`` (time is lost between steps), ``nothing`` or ``cannot_tell``.
    share_step_time, share_acceptance : Interval
        Parts of the slow-down that the verdict speaks of.
    comparisons : tuple of Comparison
        The first is the one that the verdict rests on.
    hypotheses : tuple of Hypothesis
        Those the verdict names first, then other supported ones, those that cannot be told, and the refuted ones.
    slopes : dict of str to Interval
        What each measured cause adds, all others held equal: ``context_step_ms`` (ms for each 1000 tokens of context in the batch) and
        the like.
    cannot_tell : tuple of str
        What cannot be told, in sentences.
    next : tuple of str
        What to measure next, the most useful first.
    excluded : dict of str to int
        Rows that were left out, by reason.
    used : dict of str to int
        Rows that were used: steps, timed steps, request-steps, requests, runs.
    basis : str
        What kind of lines it rests on, in words.
    level : float
        The level of all intervals.
    """

    verdict: str
    kind: str
    share_step_time: Interval
    share_acceptance: Interval
    comparisons: tuple[Comparison, ...]
    hypotheses: tuple[Hypothesis, ...]
    slopes: dict[str, Interval]
    cannot_tell: tuple[str, ...]
    next: tuple[str, ...]
    excluded: dict[str, int]
    used: dict[str, int]
    basis: str
    level: float

    def hypothesis(self, key: str) -> Hypothesis:
        """Return one hypothesis by its key.

        Raises
        ------
        KeyError
            If there is none of that key.
        """
        for one in self.hypotheses:
            if one.key == key:
                return one
        raise KeyError(f"no hypothesis {key!r}; there are {', '.join(h.key for h in self.hypotheses)}")

    @property
    def causes(self) -> tuple[Hypothesis, ...]:
        """The hypotheses that the verdict names."""
        return tuple(h for h in self.hypotheses if h.explains)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON; numbers that are not finite become None."""
        return {"schema_version": DIAGNOSIS_VERSION, **plain(self)}


def plain(value: Any) -> Any:
    """Turn dataclasses, tuples and NumPy numbers into what JSON knows; a number that is not finite becomes None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int):
        return value
    if hasattr(value, "item"):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)
