"""What a diagnosis says, as plain data: the verdict, the comparisons, the hypotheses, what was left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from html import escape
from typing import TYPE_CHECKING, Any

from ddtree_metrics.diagnosis.reasons import Reason
from ddtree_metrics.metrics.doubt import Interval

if TYPE_CHECKING:
    from ddtree_metrics.beside import Around
    from ddtree_metrics.diagnosis.scene import Scene

DIAGNOSIS_VERSION = 4
"""1: the first form. 2: both directions (``direction``), breaks in time (``since``, ``breaks``), three parts of a comparison
(``mix_ratio`` and the ratios at equal mix), ``mix`` among the kinds, reasons as kinds with numbers. 3: shares are of the three parts
(``share_mix`` beside the other two, all at equal mix), and ``shares_reason`` says why there are none. 4: ``slow_since``, ``beside``."""

SUPPORTED = "supported"
REFUTED = "refuted"
CANNOT_TELL = "cannot tell"


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
        Quantities from which the data cannot separate it; ``text`` is the kind of text that requests are about.
    reasons : tuple of Reason
        What ``evidence`` is written from: kinds with numbers.
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
    reasons: tuple[Reason, ...] = ()


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
        ``context``, ``runs``, ``break`` (what follows a sudden change against what was before it), ``groups``, ``parts`` (the last third
        of the log against the first), or the cause whose low and high end are compared: ``batch``, ``uptime``, ``cached``, ``graph_off``.
    before, after : str
        What the groups are, in words.
    verdict : str
        What speed as logged differs by: ``step_time``, ``acceptance``, ``both``, ``nothing`` or ``cannot_tell``.
    sentence : str
        The same as a sentence.
    direction : str
        ``slower``, ``faster``, ``unchanged``, ``mixed`` (both numbers moved, against each other) or ``cannot_tell``.
    step_time_before_ms, step_time_after_ms, tokens_before, tokens_after, speed_before, speed_after : float or None
        Means of the groups over request-steps (each request of a batch sees the step): step time, tokens per step, and their quotient,
        the speed of a request in tokens a second.
    step_time_ratio, tokens_ratio, speed_ratio : Interval
        After over before, as it was logged.
    step_time_ratio_equal, tokens_ratio_equal, speed_ratio_equal : Interval
        After over before at equal context, batch size and the other measured causes; unknown where groups were chosen by one of them, and
        where the groups do not overlap in one. Intervals of step time know how far two starts of a server differ for no reason.
    stalls_ratio : Interval
        What single steps that take more than twice the usual add to the mean, after over before; it is within ``step_time_ratio_equal``.
    mix_ratio : Interval
        What the mix of contexts and batches (and of what else is held equal) did to speed: ``speed_ratio`` is ``mix_ratio *
        tokens_ratio_equal / step_time_ratio_equal``. The three are those of ``attribute_slowdown`` for the same rows.
    unchanged_within : float or None
        Where no change is shown: speed changed by no more than this share.
    share_mix, share_step_time, share_acceptance : Interval
        Parts of the change of speed as logged on the log scale, each from 0 to 1; they add up to 1. Step time and acceptance are those at
        equal mix where that is known; else as logged, and ``share_mix`` is unknown. All are unknown where there is no change to divide, and
        where one part worked against it: ``mix_ratio``, ``step_time_ratio_equal`` and ``tokens_ratio_equal`` then say what each did.
    shares_reason : str or None
        Why there are no shares, in words: which part worked against the change, or that speed did not change for certain.
    verdict_equal, direction_equal : str or None
        The verdict and the direction at equal context, batch size and the other measured causes: what is left for flags, drafter and text.
        None where it was not asked, or cannot be had.
    equal_of : tuple of str
        What is held equal in that: ``context``, ``batch size``, ``uptime`` and the like, as far as it is measured and varies.
    rows : dict of str to int
        Requests, request-steps and timed steps of each group.
    interval_from : str or None
        What was taken as independent: ``requests`` or ``stretches``.
    flags : tuple of FlagChange
        Flags that differ, for a comparison of server starts.
    reasons : tuple of Reason
        Why something cannot be told: kinds with numbers.
    reason : str or None
        The same as a sentence.
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
    direction: str = "cannot_tell"
    direction_equal: str | None = None
    speed_ratio_equal: Interval = Interval()
    stalls_ratio: Interval = Interval()
    mix_ratio: Interval = Interval()
    unchanged_within: float | None = None
    share_mix: Interval = Interval(unit="share")
    shares_reason: str | None = None
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class Since:
    """When a number changed.

    Attributes
    ----------
    what : str
        ``restart`` or ``break``.
    time, low, high : str
        When, in UTC, and between which two instants for certain (the same three for a restart).
    on : str or None
        ``step time`` or ``tokens per step``, for a break.
    ratio : Interval
        The number after by the number before, at equal context and batch; unknown for a restart, whose comparison has it.
    beside : tuple of Reason
        What stands in the log just before it: a retraction, lost lines, prefills, another budget, a graph that was left.
    """

    what: str
    time: str
    low: str
    high: str
    on: str | None = None
    ratio: Interval = Interval()
    beside: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why it was slow, as far as the log can say.

    Attributes
    ----------
    verdict : str
        One sentence.
    kind : str
        ``step_time``, ``acceptance``, ``both``, ``mix`` (other contexts and batches, the server as before), ``between_steps`` (time is
        lost between steps), ``nothing`` or ``cannot_tell``.
    share_mix, share_step_time, share_acceptance : Interval
        Parts of the change that the verdict speaks of: those of its comparison.
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
    direction : str
        ``slower``, ``faster``, ``unchanged``, ``mixed`` or ``cannot_tell``: what happened to the speed that the verdict speaks of.
    since : Since or None
        Since when, where the verdict is about a change in time.
    breaks : tuple of Since
        All sudden changes in mid-run.
    unchanged_within : float or None
        For ``unchanged``: by no more than this share.
    scene : Scene or None
        What was read: services, time span, server starts, what is missing, the slowest requests.
    slow_since : tuple of str
        When steps began to be slow for a while, or the slow window that was asked about.
    beside : tuple of Around
        What other programs wrote around the time that the verdict speaks of, then around other breaks, server starts and slow times.
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
    direction: str = "cannot_tell"
    since: Since | None = None
    breaks: tuple[Since, ...] = ()
    unchanged_within: float | None = None
    scene: Scene | None = None
    share_mix: Interval = Interval(unit="share")
    slow_since: tuple[str, ...] = ()
    beside: tuple[Around, ...] = ()

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

    def __str__(self) -> str:
        """Return the answer as a screen of text."""
        from ddtree_metrics.diagnosis.text import format_diagnosis

        return format_diagnosis(self)

    def __repr__(self) -> str:
        return f"<Diagnosis: {self.verdict if len(self.verdict) <= 160 else self.verdict[:159] + '…'}>"

    def _repr_html_(self) -> str:
        """Show the screen in a notebook."""
        return f"<pre style='white-space: pre-wrap'>{escape(str(self))}</pre>"

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
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
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
