"""From comparisons, hypotheses and observations to one verdict: what happened to speed, since when, by which of its parts, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ddtree_metrics.diagnosis.breaks import Break
from ddtree_metrics.diagnosis.causes import BETWEEN, STEP, TOKENS
from ddtree_metrics.diagnosis.compare import Contrast, Judged
from ddtree_metrics.diagnosis.flags import Changed
from ddtree_metrics.diagnosis.hypotheses import Named
from ddtree_metrics.diagnosis.result import CANNOT_TELL, SUPPORTED
from ddtree_metrics.diagnosis.study import Findings, Study
from ddtree_metrics.metrics.shares import MOSTLY

CONTEXT_KEYS = ("context_step_time", "context_acceptance", "window_knee", "generated_acceptance", "fragmentation")
"""Hypotheses that the comparison of long with short context rests on."""

ALL_OF_IT = 0.7
"""Log of what speculation without an accepted draft is taken to cost, for its place among other findings: about half of the speed."""


@dataclass(slots=True)
class Compared:
    """Two groups, as measured, and what follows: as logged, and at equal mix where that was asked."""

    seen: Contrast
    raw: Judged
    equal: Judged | None = None
    flags: tuple[Changed, ...] = ()
    broken: Break | None = None
    restart_us: int | None = None

    switched: bool = False

    @property
    def judged(self) -> Judged | None:
        """What it is called at equal mix; as logged where speculation was switched and there is no equal mix: nothing else does so much."""
        return self.raw if self.switched and not self.seen.speed_equal.sure else self.equal

    @property
    def shown(self) -> bool:
        """Whether speed, or both of its parts, changed at equal mix."""
        return self.judged is not None and self.judged.direction in ("slower", "faster", "mixed")

    @property
    def size(self) -> float:
        """Log of how much speed changed at equal mix; the larger of its parts where they worked against each other."""
        if self.judged is self.raw and self.switched:
            return abs(self.seen.speed.value) if self.seen.speed.known else 0.0
        if self.equal is not None and self.equal.direction == "mixed":
            return max(abs(self.seen.step_equal.value), abs(self.seen.tokens_equal.value))
        return abs(self.seen.speed_equal.value) if self.seen.speed_equal.known else 0.0


@dataclass(slots=True)
class Verdict:
    """What is concluded.

    Attributes
    ----------
    kind, direction : str
        See ``Diagnosis``.
    main : Compared or None
        The comparison that it rests on.
    causes : list of Named
        What is named, the strongest first.
    together : list of Named
        What would be named if it could be told apart.
    why : str
        What leaves it open: ``context``, ``untimed``, ``uncounted``, ``nothing_there``, ``open_comparison``, ``unexplained``, ``text``,
        ``together``
        or ``""``.
    open : Compared or None
        The comparison that leaves it open.
    within : float or None
        For ``unchanged``: by no more than this share.
    """

    kind: str
    direction: str
    main: Compared | None = None
    causes: list[Named] = field(default_factory=list)
    together: list[Named] = field(default_factory=list)
    why: str = ""
    open: Compared | None = None
    within: float | None = None


def explicit(main: Compared, named: Sequence[Named], found: Findings, asked: Study) -> Verdict:
    """Conclude where two groups were given: what their numbers say, and what moved between them."""
    raw, equal = main.raw, main.equal
    hidden = raw.direction in ("unchanged", "cannot_tell") and main.shown
    judged = equal if hidden and equal is not None else raw
    lost = [n for n in named if n.acts_on == BETWEEN and n.status == SUPPORTED]
    if judged.direction in ("unchanged", "cannot_tell") and lost:
        return Verdict("between_steps", "slower", main, lost)
    if judged.direction in ("unchanged", "cannot_tell"):
        why = "" if judged.direction == "unchanged" else "open_comparison"
        return Verdict(judged.kind, judged.direction, main, why=why, open=main, within=judged.within)
    sign = -1.0 if judged.direction == "slower" else 1.0
    causes = [] if hidden else [n for n in named if n.numeric and n.status == SUPPORTED and sign * n.part >= asked.least / 2]
    causes.sort(key=lambda n: -abs(n.part))
    if main.shown:
        causes += [n for n in named if n.key == "flags" and n.status == SUPPORTED]
        causes += [n for n in named if n.key in ("speculation", "nothing_accepted") and n.status == SUPPORTED]
        causes += [n for n in named if n.breaks and n.status == SUPPORTED]
    together = [n for n in named if n.alone and n.together_with and not causes]
    why = ""
    if found.context_lacks(STEP) or found.context_lacks(TOKENS):
        why = "context"
    elif not causes:
        why = "together" if together else "unexplained"
    return Verdict(judged.kind, judged.direction, main, causes, together, why)


def whole(comparisons: Sequence[Compared], named: Sequence[Named], found: Findings, asked: Study, *, timed: bool, counted: bool) -> Verdict:
    """Conclude about a whole log: of what stands out by itself, the largest is the verdict."""
    by_key = {n.key: n for n in named}
    in_time = [c for c in comparisons if c.seen.kind in ("runs", "break")]
    context = next((c for c in comparisons if c.seen.kind == "context"), None)
    parts = next((c for c in comparisons if c.seen.kind == "parts"), None)
    telling = sorted((n for n in named if n.status == SUPPORTED and n.numeric and n.strength > 0), key=lambda n: -n.strength)
    together = sorted((n for n in named if n.alone and n.together_with and n.status == CANNOT_TELL), key=lambda n: -n.strength)
    changes = sorted((c for c in in_time if c.shown), key=lambda c: -c.size)
    lost = sorted((n for n in named if n.acts_on == BETWEEN and n.status == SUPPORTED), key=lambda n: -n.strength)
    nothing = by_key.get("nothing_accepted")
    best = max((_cost(n, comparisons) for n in telling), default=0.0)
    change = changes[0].size if changes else 0.0
    held = lost[0].strength if lost else 0.0
    if nothing is not None and nothing.status == SUPPORTED and max(change, held) < ALL_OF_IT:
        return Verdict("acceptance", "slower", changes[0] if changes else context or parts, [nothing, *telling])
    if (found.context_lacks(STEP) or found.context_lacks(TOKENS)) and not lost and not changes:
        main = parts or (comparisons[0] if comparisons else None)
        why = "untimed" if not timed else "uncounted" if not counted else "context"
        return Verdict("cannot_tell", "cannot_tell", main, why=why, open=main)
    if change > max(best, held):
        return _changed(changes[0], named, telling)
    if held > best:
        return Verdict("between_steps", "slower", context, [*lost, *telling])
    if telling and (not together or best >= together[0].strength or together[0].acts_on != telling[0].acts_on):
        return _load(telling, named, comparisons, context)
    main = context or parts or (comparisons[0] if comparisons else None)
    if together:
        return Verdict("cannot_tell", "cannot_tell", main, together=together, why="together", open=main)
    episodes = by_key.get("episodes")
    if episodes is not None and episodes.status == SUPPORTED:
        return Verdict("step_time", "slower", main, [episodes])
    if not timed or not counted:
        return Verdict("cannot_tell", "cannot_tell", main, why="untimed" if not timed else "uncounted", open=main)
    if context is not None and context.raw.direction in ("slower", "faster"):
        why = "text" if context.raw.kind in ("acceptance", "both") else "unexplained"
        return Verdict("cannot_tell", "cannot_tell", context, why=why, open=context)
    broken = [n for n in named if n.breaks and n.status == SUPPORTED]
    if broken:
        return _small_break(in_time, broken)
    undecided = [c for c in (*in_time, *([context] if context else []), *([parts] if parts else [])) if _open(c)]
    if not comparisons or undecided:
        worst = undecided[0] if undecided else None
        why = "open_comparison" if worst is not None else "nothing_there"
        return Verdict("cannot_tell", "cannot_tell", worst or main, why=why, open=worst)
    bounds = [
        w for w in (c.equal.within if c.equal is not None else c.raw.within for c in (*in_time, context, parts) if c is not None) if w
    ]
    return Verdict("nothing", "unchanged", main, within=max(bounds, default=None))


def _cost(n: Named, comparisons: Sequence[Compared]) -> float:
    """Return what a cause costs the rows at its high end against those at its low end, as logged, where they were compared."""
    kind = "context" if n.key in CONTEXT_KEYS else n.term
    own = next((c for c in comparisons if c.seen.kind == kind), None)
    return max(-own.seen.speed.value, 0.0) if own is not None and own.seen.speed.known else n.strength


def _small_break(in_time: Sequence[Compared], broken: list[Named]) -> Verdict:
    """Conclude from a break that is sure, and too small for its two levels to be told from the least change that counts."""
    main = max((c for c in in_time if c.broken is not None), key=lambda c: abs(c.broken.size.value) if c.broken is not None else 0.0)
    assert main.broken is not None
    on_steps = main.broken.on == STEP
    slower = (main.broken.size.value > 0) == on_steps
    return Verdict("step_time" if on_steps else "acceptance", "slower" if slower else "faster", main, broken)


def _open(c: Compared) -> bool:
    """Whether a comparison leaves open whether anything changed."""
    judged = c.equal if c.seen.asked_equal else c.raw
    return judged is None or judged.direction == "cannot_tell"


def _changed(main: Compared, named: Sequence[Named], telling: Sequence[Named]) -> Verdict:
    """Conclude from a change in time: a restart, or a break in mid-run."""
    judged = main.judged or main.raw
    causes: list[Named] = []
    if main.seen.kind == "runs":
        causes = [n for n in named if n.key in ("flags", "speculation") and n.status == SUPPORTED and set(n.pairs) & {id(main)}]
    else:
        causes = [n for n in named if n.key == ("break_step_time" if judged.kind != "acceptance" else "break_acceptance")]
        causes = [n for n in causes if n.status == SUPPORTED]
        causes += [n for n in named if n.key == "nothing_accepted" and n.status == SUPPORTED]
    return Verdict(judged.kind, judged.direction, main, [*causes, *telling], why="" if causes else "unexplained")


def _load(telling: list[Named], named: Sequence[Named], comparisons: Sequence[Compared], context: Compared | None) -> Verdict:
    """Conclude from what goes with context, batch and the like: slow there, and no change in time that costs more."""
    step = sum(n.strength for n in telling if n.acts_on == STEP)
    tokens = sum(n.strength for n in telling if n.acts_on == TOKENS)
    share = step / (step + tokens)
    kind = "step_time" if share >= MOSTLY else "acceptance" if share <= 1 - MOSTLY else "both"
    own = next((c for c in comparisons if c.seen.kind == telling[0].term), None)
    open_ = [n for n in named if n.alone and "text" in n.together_with]
    if telling[0].key in CONTEXT_KEYS and context is not None:
        if context.raw.kind in ("step_time", "acceptance", "both"):
            # one division for the sentence, the table and the picture: that of the comparison
            kind = context.raw.kind
        return Verdict(kind, "slower", context, list(telling), open_ if kind != "step_time" else [])
    return Verdict(kind, "slower", own or context, list(telling))
