"""``diagnose``: put the rows, the models, the comparisons and the observations together, and say what follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ddtree_metrics.diagnosis import observed, say, verdict
from ddtree_metrics.diagnosis.breaks import Break, Episodes, find_breaks
from ddtree_metrics.diagnosis.causes import CAUSES, STEP, TOKENS, Cause
from ddtree_metrics.diagnosis.compare import contrast, judge
from ddtree_metrics.diagnosis.flags import Changed, judged
from ddtree_metrics.diagnosis.groups import pick
from ddtree_metrics.diagnosis.hypotheses import Named, listed
from ddtree_metrics.diagnosis.matched_pairs import Apart, context_or_uptime
from ddtree_metrics.diagnosis.others_beside import others_beside
from ddtree_metrics.diagnosis.reasons import Why, because
from ddtree_metrics.diagnosis.result import CANNOT_TELL, REFUTED, SUPPORTED, Diagnosis
from ddtree_metrics.diagnosis.step_model import StepModel, fit_steps
from ddtree_metrics.diagnosis.study import Findings, Study, study
from ddtree_metrics.diagnosis.verdict import Compared
from ddtree_metrics.errors import MetricError
from ddtree_metrics.metrics.doubt import START_FLOOR, Estimate
from ddtree_metrics.steps.basis import Basis, empty_like, floats
from ddtree_metrics.steps.basis_rows import basis_of
from ddtree_metrics.steps.frames import Bools, Ints
from ddtree_metrics.steps.given import need_log
from ddtree_metrics.steps.starts import Start
from ddtree_metrics.times import format_us

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from ddtree_metrics.metrics.window import WindowKnee

LEAST = 0.05
"""A change of speed smaller than this (as a share) is not called a change."""

MIN_RUN_ROWS = 20
"""A server start with fewer steps is not compared."""

MIN_RUN_WINDOWS = 3
"""... or with fewer Decode lines, where each sums up many steps."""

LEVEL_FLOOR = 0.005
"""The same as ``start_floor`` for two levels of one start: noise that wanders over minutes is not all in the blocks of time."""

MAX_RUN_PAIRS = 6

MAX_BREAKS = 4

UNASKED = 5
"""A comparison that nobody asked for counts as so many tests."""


def diagnose(
    log: Any,
    before: Any = None,
    after: Any = None,
    *,
    requests: Any = None,
    window: int | None = None,
    level: float = 0.9,
    min_change: float = LEAST,
    start_floor: float = START_FLOOR,
    seed: int = 0,
    tz: ZoneInfo | None = None,
    causes: Sequence[Cause] = CAUSES,
    messages: bool = False,
) -> Diagnosis:
    """Say what happened to the speed of requests, since when, and why: step time, acceptance, both, or neither.

    Parameters
    ----------
    log : Log
        What ``read_journal``, ``read_text`` or ``read_parquet`` gave.
    before, after : optional
        Two groups of steps: a window (``"14:00..14:30"`` or a pair of instants), a server start (``"run:2"``, or a number from 1), a boot
        (``"boot:ID"``), a service (``"unit:NAME"``), a range (``"context:0-1023"`` or ``{"context": (0, 1024)}``), or requests
        (``"requests:ID,ID"`` or a list of ids). With only one of them, the other is all the rest. Without both, what stands out by itself
        is looked for: server starts against each other, sudden changes in mid-run, and the quarter of request-steps at the longest context
        against the quarter at the shortest.
    requests : DataFrame, path, or sequence of paths, optional
        Requests to join with, instead of those that the log itself tells of.
    window : int, optional
        The drafter's attention window in tokens; read from the server's start line where it is there.
    level : float
        Level of all intervals.
    min_change : float
        The smallest change of speed that counts, as a share.
    start_floor : float
        By how much (standard deviation, as a share) step time differs from one start of a server to the next when nothing was changed:
        two starts are one observation each, however many steps they have.
    seed : int
        For the intervals of shares, which are drawn.
    tz : ZoneInfo, optional
        The zone of instants without one; the machine's if not given.
    causes : sequence of Cause
        The causes that are numbers beside each step; ``causes.CAUSES`` if not given.
    messages : bool
        Whether the messages of other programs that stand beside a change are kept, redacted and cut; else they are said in words only.

    Returns
    -------
    Diagnosis

    Raises
    ------
    MetricError
        If ``before`` or ``after`` cannot be understood or names what the log does not have, if both name the same rows, or if ``level``
        or ``min_change`` is no share.
    TimeError
        If the ends of a window cannot be read.

    Notes
    -----
    A cause is called supported only if its effect on speed is beyond ``min_change`` with its whole interval, widened for the number of
    causes tested (Bonferroni); refuted only if its interval leaves out an effect of that size. Everything else cannot be told. What the
    text of requests may stand behind is supported only where steps within requests show it too.
    """
    need_log(log, "diagnose")
    if not (0 < level < 1 and 0 < min_change < 1):
        raise MetricError(f"level and min_change are shares between 0 and 1, not {level!r} and {min_change!r}")
    if not 0 <= start_floor < 1:
        raise MetricError(f"start_floor is a share from 0 to 1, not {start_floor!r}")
    if requests is not None:
        if not hasattr(log, "with_requests"):
            raise MetricError("requests can only be given with a log that was read (Log.with_requests)")
        log = log.with_requests(requests, tz=tz)
    panel = basis_of(log)
    panel.tz = tz
    asked = Study(level, float(-np.log1p(-min_change)), float(start_floor), tuple(causes))
    window = window if window is not None else _window_of(log)
    if before is not None or after is not None:
        made = _two_groups(log, panel, before, after, window, asked, seed)
    else:
        made = _whole_log(log, panel, window, asked, seed)
    return replace(made, beside=others_beside(made, log, messages=messages))


def _window_of(log: Any) -> int | None:
    """Return the drafter's window from the server's start lines, where they agree."""
    values = floats(empty_like(log, "servers"), "draft_window")
    values = np.unique(values[np.isfinite(values) & (values > 0)])
    return int(values[0]) if len(values) == 1 else None


def _knee(panel: Basis, use: Bools, window: int | None) -> WindowKnee | None:
    """Look for where acceptance changes with context."""
    import pandas as pd

    from ddtree_metrics.metrics import find_window_knee

    rows = np.flatnonzero(use & panel.counted & np.isfinite(panel.context))
    if len(rows) < 8 or len(np.unique(panel.text[rows])) < 2:
        return None
    frame = pd.DataFrame({"context_len": panel.context[rows], "tokens": panel.tokens[rows], "request_id": panel.text[rows]})
    return find_window_knee(frame, window, resamples=100)


# -- two groups that were given --------------------------------------------------------------------------------------------------


def _two_groups(log: Any, panel: Basis, before: Any, after: Any, window: int | None, asked: Study, seed: int) -> Diagnosis:
    part, kind, b_name, a_name = _groups(panel, before, after)
    # windows, boots, services and server starts differ in what is not measured: that is a term of its own. Requests and ranges are chosen
    # by what is measured, and all rows of the log help to say what that does.
    unmeasured = kind in ("windows", "runs", "boot", "unit")
    use = part > 0 if unmeasured else np.ones(len(panel), dtype=bool)
    found = study(panel, use, part, asked, own_term=unmeasured)
    shown = kind if kind in ("context", "runs") else "groups"
    runs = [_only_run(panel, part == 1), _only_run(panel, part == 2)]
    if runs[0] is not None and runs[0] is runs[1]:
        asked = _within_a_start(asked)
    seen = contrast(shown, b_name, a_name, panel, part, found, asked, equal=unmeasured)
    made = Compared(seen, judge(seen.step, seen.tokens, asked))
    if unmeasured:
        made.equal = judge(seen.step_equal, seen.tokens_equal, asked, strict=asked.strict)
    flags = Named("flags", CANNOT_TELL)
    speculation = None
    if runs[0] is not None and runs[1] is not None and runs[0] is not runs[1]:
        made.restart_us = runs[1].start_us
        listed_flags = judged(runs[0], runs[1], seen, asked, 1 - (1 - asked.level) / 2)
        flags = _of_flags(panel, [(made, listed_flags)])
    else:
        flags = _of_flags(panel, [])
    speculation = _speculation(panel, [(made, part)])
    rows = part > 0
    breaks: list[Break] = []
    if kind == "windows":
        everything = np.ones(len(panel), dtype=bool)
        none = np.zeros(len(panel), dtype=np.int64)
        _, breaks, _ = _breaks(panel, everything, study(panel, everything, none, asked), asked)
        breaks = [b for b in breaks if _between(panel, part, b)]
        made.broken = max(breaks, key=lambda b: abs(b.size.value), default=None)
    sights = _observe(log, panel, rows, part == 2, asked, breaks, Episodes())
    knee = _knee(panel, use, window)
    named = listed(panel, found, knee, sights, Apart(), flags, breaks, asked, explicit=True)
    named += [speculation] if speculation is not None else []
    made_verdict = verdict.explicit(made, named, found, asked)
    said = say.diagnosis(panel, [made], named, made_verdict, found, breaks, asked, seed, explicit=True, log=log)
    asked_about = panel.time_us[(part == 2) & (panel.time_us >= 0)] if kind == "windows" else panel.time_us[:0]
    return replace(said, slow_since=(format_us(int(asked_about.min())),) if len(asked_about) else ())


def _between(panel: Basis, part: Ints, found: Break) -> bool:
    """Whether a break lies between two windows: what is before it is of one, what is after it of the other."""
    timed = panel.time_us >= 0
    if not (timed & (part == 1)).any() or not (timed & (part == 2)).any():
        return False
    low, high = int(panel.time_us[timed & (part == 1)].max()), int(panel.time_us[timed & (part == 2)].min())
    if low > high:  # the window after is the earlier one
        low, high = int(panel.time_us[timed & (part == 2)].max()), int(panel.time_us[timed & (part == 1)].min())
    return low - _SLACK_US <= found.time_us <= high + _SLACK_US


_SLACK_US = 5_000_000


def _groups(panel: Basis, before: Any, after: Any) -> tuple[Ints, str, str, str]:
    """Return which group each row is of (1 before, 2 after), their kind, and their names."""
    all_rows = np.ones(len(panel), dtype=bool)
    if before is None:
        a, kind, a_name = pick(panel, after)
        b, b_name = all_rows & ~a, "all the rest"
    elif after is None:
        b, kind, b_name = pick(panel, before)
        a, a_name = all_rows & ~b, "all the rest"
    else:
        b, kind, b_name = pick(panel, before)
        a, other, a_name = pick(panel, after)
        kind = kind if kind == other else "groups"
    both = a & b
    if both.any() and (not (a & ~b).any() or not (b & ~a).any()):
        inside = "name the same rows" if (a == b).all() else "overlap so that one has no rows of its own"
        raise MetricError(f"before ({b_name}) and after ({a_name}) {inside}: there is nothing to compare")
    if both.any():
        panel.count("rows in both groups", int(both.sum()))
        a, b = a & ~both, b & ~both
    if len(panel):
        panel.count("rows in neither group", int((~(a | b)).sum()))
    return np.where(b, 1, np.where(a, 2, 0)).astype(np.int64), kind, b_name, a_name


# -- a whole log -----------------------------------------------------------------------------------------------------------------


def _whole_log(log: Any, panel: Basis, window: int | None, asked: Study, seed: int) -> Diagnosis:
    rows = np.ones(len(panel), dtype=bool)
    none = np.zeros(len(panel), dtype=np.int64)
    found = study(panel, rows, none, asked)
    found, breaks, episodes = _breaks(panel, rows, found, asked)
    comparisons = _in_time(panel, breaks, asked)
    unknown = any(found.context_lacks(on) for on in (STEP, TOKENS))
    split = None if unknown else _short_long(panel)
    if split is not None:
        comparisons.append(_load(panel, "context", split, breaks, asked))
    elif not unknown or (parts := _first_last(panel)) is None:
        pass
    else:
        comparisons.append(_parts(panel, parts, found, asked))
    if split is None and not unknown and not comparisons and (parts := _first_last(panel)) is not None:
        comparisons.append(_parts(panel, parts, found, asked))
    apart = context_or_uptime(panel, found, asked.least)
    flags = _of_flags(panel, [(c, _flags_of(panel, c, asked)) for c in comparisons if c.seen.kind == "runs"])
    sights = _observe(log, panel, rows, None, asked, breaks, episodes)
    knee = _knee(panel, rows, window)
    named = listed(panel, found, knee, sights, apart, flags, breaks, asked, explicit=False)
    speculation = _speculation(panel, [(c, _part_of(panel, c)) for c in comparisons if c.seen.kind == "runs"])
    named += [speculation] if speculation is not None else []
    for term in ("batch", "uptime", "cached", "graph_off"):
        if any(n.term == term and n.status == SUPPORTED for n in named) or apart.cause == term:
            ends = _low_high(panel, term)
            if ends is not None:
                comparisons.append(_load(panel, term, ends, breaks, asked))
    result = verdict.whole(comparisons, named, found, asked, timed=bool(panel.timed.any()), counted=bool(panel.counted.any()))
    said = say.diagnosis(panel, comparisons, named, result, found, breaks, asked, seed, explicit=False, log=log)
    return replace(said, slow_since=tuple(format_us(low) for _, low, _ in episodes.spans_us))


def _breaks(panel: Basis, rows: Bools, found: Findings, asked: Study) -> tuple[Findings, list[Break], Episodes]:
    """Find sudden changes in what the models leave over; twice, since the first models do not know of them."""
    none = np.zeros(len(panel), dtype=np.int64)
    breaks, episodes = _without_settings(panel, *_left_over(found, _over_time(found), asked))
    if breaks:
        found = study(panel, rows, none, asked, breaks)
        breaks, episodes = _without_settings(panel, *_left_over(found, found.steps.model, asked))
        found = study(panel, rows, none, asked, breaks)
    return found, breaks, episodes


COMES_AND_GOES = 3
"""With so many episodes, a break that is no larger than they are is one more of them."""

_LARGER = 1.3


def _without_settings(panel: Basis, breaks: list[Break], episodes: Episodes) -> tuple[list[Break], Episodes]:
    """Leave out breaks that a logged change of the budget explains, and those that are of a level that comes and goes."""
    kept = []
    known = np.isfinite(panel.budget) & (panel.time_us >= 0)
    at, budget, run = panel.time_us[known], panel.budget[known], panel.run[known]
    changed = at[1:][(budget[1:] != budget[:-1]) & (run[1:] == run[:-1])]
    for b in breaks:
        near = (changed >= b.low_us - _SLACK_US) & (changed <= b.high_us + _SLACK_US)
        no_larger = b.gradual or abs(b.size.value) <= _LARGER * episodes.size
        again = b.on == STEP and episodes.count >= COMES_AND_GOES and no_larger
        if not near.any() and not again:
            kept.append(b)
    return kept, episodes


TIME_BLOCKS = 8
"""Before breaks are known, so many stretches of each server start have a level of their own, and what context does is seen within them."""


def _over_time(found: Findings) -> StepModel | None:
    """Fit step time with levels that differ over time, so that a break is not put down to a context that rose with it."""
    model, cells = found.steps.model, found.steps.cells
    if model is None:
        return None
    times = {}
    for run in np.unique(cells.run):
        mine = np.flatnonzero(cells.run == run)
        mine = mine[np.argsort(cells.time_us[mine], kind="stable")]
        for i, block in enumerate(np.array_split(mine, TIME_BLOCKS)):
            if len(block) >= 3:
                column = np.zeros(len(cells))
                column[block] = 1.0
                times[f"break:{run}:{i}"] = column
    times.pop(next(iter(times), ""), None)
    # what changes once in a run is a level of its own, and no slope
    added = {k: model.x[:, 1 + i] for i, k in enumerate(model.added) if k not in ("uptime", "budget")}
    return fit_steps(model.y, model.weight, added, times, model.parts) or model


def _left_over(found: Findings, model: StepModel | None, asked: Study) -> tuple[list[Break], Episodes]:
    made: list[Break] = []
    episodes = Episodes()
    cells = found.steps.cells
    if model is not None:
        # what uptime and known breaks explain is given back: they are what is looked for
        x, z = model.x.copy(), model.z.copy()
        if "uptime" in model.added:
            i = 1 + model.added.index("uptime")
            x[:, i] = x[:, i].mean()
        z[:, [i for i, name in enumerate(model.times) if name.startswith("break:")]] = 0.0
        left = np.log(cells.usual) - np.log(model.at(model.beta, x, z))
        made, episodes = find_breaks(STEP, left, cells.mean, cells.weight, cells.time_us, cells.run, asked.least)
    tokens, mine = found.tokens.model, found.tokens.cells
    if tokens is not None and (mine.mean > 0).any():
        shift = np.zeros(tokens.requests)
        for name in tokens.between.names if tokens.between is not None else ():
            if name == "budget" or name.startswith(("run:", "break:")):
                continue
            column = tokens.columns.get(name)
            e = tokens.between.combination({name: 1.0}) if tokens.between is not None else None
            if column is not None and e is not None and e.sure and abs(e.value) > 2 * e.se:
                shift += e.value * (column - column.mean())
        expected = np.maximum(tokens.mean + shift[tokens.person], 0.05 * tokens.mean)
        left = np.log(np.maximum(mine.mean, 0.05)) - np.log(expected)
        for run in np.unique(mine.run):
            left[mine.run == run] -= float(np.median(left[mine.run == run]))
        made += find_breaks(TOKENS, left, mine.mean, mine.weight, mine.time_us, mine.run, asked.least, mine.owner)[0]
    made.sort(key=lambda b: -abs(b.size.value))
    return sorted(made[:MAX_BREAKS], key=lambda b: b.time_us), episodes


def _in_time(panel: Basis, breaks: Sequence[Break], asked: Study) -> list[Compared]:
    """Compare what follows each restart and each break with what was before it, nothing else between them."""
    made: list[Compared] = []
    pairs = _run_pairs(panel)
    strict = 1 - (1 - asked.level) / (UNASKED * max(len(pairs), 1))
    for first, second in pairs:
        part = np.zeros(len(panel), dtype=np.int64)
        part[(panel.run == first.number) & _since_last_break(panel, first, breaks)] = 1
        part[(panel.run == second.number) & _until_first_break(panel, second, breaks)] = 2
        one = _pair(panel, "runs", first.label, second.label, part, asked, strict)
        one.restart_us = second.start_us
        made.append(one)
    strict = 1 - (1 - asked.level) / UNASKED
    by_time = sorted(breaks, key=lambda b: b.time_us)
    for found in by_time:
        others = [b.time_us for b in by_time if b.run == found.run and b is not found and b.on == found.on]
        low = max((t for t in others if t < found.time_us), default=-1)
        high = min((t for t in others if t > found.time_us), default=2**62)
        mine = (panel.run == found.run) & (panel.time_us >= low) & (panel.time_us < high)
        if found.gradual:
            mine &= (panel.time_us >= found.time_us) | (panel.time_us < (found.low_us + found.time_us) // 2)
        else:
            mine &= (panel.time_us <= found.low_us) | (panel.time_us >= found.high_us)
        part = np.where(mine, np.where(panel.time_us >= found.time_us, 2, 1), 0).astype(np.int64)
        one = _pair(panel, "break", "before it", "after the break", part, _within_a_start(asked), strict)
        one.broken = found
        # the break is of one number: the noise of the other is no doubt about it
        still = Estimate(0.0, 0.0, 100)
        step, tokens = (one.seen.step_equal, still) if found.on == STEP else (still, one.seen.tokens_equal)
        one.equal = judge(step, tokens, asked, strict=strict)
        made.append(one)
    return made


def _within_a_start(asked: Study) -> Study:
    """Return the same with the floor of two levels of one server start."""
    return replace(asked, floor=min(asked.floor, LEVEL_FLOOR))


def _since_last_break(panel: Basis, run: Start, breaks: Sequence[Break]) -> Bools:
    last = max((b.time_us for b in breaks if b.run == run.number and not b.gradual), default=-1)
    return _enough(panel, run, panel.time_us >= last)


def _until_first_break(panel: Basis, run: Start, breaks: Sequence[Break]) -> Bools:
    first = min((b.time_us for b in breaks if b.run == run.number and not b.gradual), default=2**62)
    return _enough(panel, run, panel.time_us < first)


def _enough(panel: Basis, run: Start, rows: Bools) -> Bools:
    """Return the rows, or all where too few of the start's are left."""
    least = MIN_RUN_WINDOWS if panel.windows else MIN_RUN_ROWS
    return rows if (rows & (panel.run == run.number) & panel.timed).sum() >= least else np.ones(len(panel), dtype=bool)


def _pair(panel: Basis, kind: str, b_name: str, a_name: str, part: Ints, asked: Study, strict: float) -> Compared:
    found = study(panel, part > 0, part, asked, own_term=True)
    seen = contrast(kind, b_name, a_name, panel, part, found, asked, equal=True)
    return Compared(seen, judge(seen.step, seen.tokens, asked), judge(seen.step_equal, seen.tokens_equal, asked, strict=strict))


def _load(panel: Basis, kind: str, split: tuple[Bools, Bools, str, str], breaks: Sequence[Break], asked: Study) -> Compared:
    """Compare the two ends of a quantity, every server start counted alike; nobody asked for it, so a difference must be clear."""
    use, high, b_name, a_name = split
    part = np.where(use, np.where(high, 2, 1), 0).astype(np.int64)
    found = study(panel, np.ones(len(panel), dtype=bool), part, asked, breaks)
    seen = contrast(kind, b_name, a_name, panel, part, found, asked, equal=False, level_out=True)
    return Compared(seen, judge(seen.step, seen.tokens, asked, strict=1 - (1 - asked.level) / UNASKED))


def _parts(panel: Basis, split: tuple[Bools, Bools, str, str], found: Findings, asked: Study) -> Compared:
    use, last, b_name, a_name = split
    part = np.where(use, np.where(last, 2, 1), 0).astype(np.int64)
    found = study(panel, np.ones(len(panel), dtype=bool), part, asked)
    seen = contrast("parts", b_name, a_name, panel, part, found, asked, equal=False)
    return Compared(seen, judge(seen.step, seen.tokens, asked))


def _short_long(panel: Basis) -> tuple[Bools, Bools, str, str] | None:
    """Return the quarter of rows at the shortest and that at the longest context; None where context hardly varies."""
    # a window without a step time says nothing of speed, and most windows of a short request have none
    use = np.isfinite(panel.context) & (np.isfinite(panel.step_ms) if panel.windows else True)
    known = panel.context[use]
    if len(known) < 8:
        return None
    low, high = np.quantile(known, [0.25, 0.75])
    with np.errstate(invalid="ignore"):
        short, long = use & (panel.context <= low), use & (panel.context >= high)
    if high <= low or panel.context[long].mean() < 1.3 * max(panel.context[short].mean(), 1.0):
        return None
    return short | long, long, f"short (≤{low:,.0f} tokens)", f"long context (≥{high:,.0f} tokens)"


def _first_last(panel: Basis) -> tuple[Bools, Bools, str, str] | None:
    """Return the first and the last third of the rows by time: what is left to compare where the context is not known."""
    if (panel.time_us < 0).any() or len(panel) < 12:
        return None
    place = np.arange(len(panel))
    first, last = place < len(panel) // 3, place >= len(panel) - len(panel) // 3
    return first | last, last, "the first third of the log", "the last third"


def _low_high(panel: Basis, cause: str) -> tuple[Bools, Bools, str, str] | None:
    """Return the rows at the low and at the high end of a cause: the outer quarters, or no and yes."""
    values = {"batch": panel.batch, "uptime": panel.uptime_s / 60, "cached": panel.cached, "graph_off": panel.graph_off}[cause]
    use = np.isfinite(values)
    if use.sum() < 8:
        return None
    if cause in ("cached", "graph_off"):
        high = use & (values > 0.5)
        names = ("not cached", "cached prefix") if cause == "cached" else ("graph on", "graph off")
        return (use, high, *names) if high.any() and (use & ~high).any() else None
    low_end, high_end = np.quantile(values[use], [0.25, 0.75])
    if high_end <= low_end:
        high_end = float(values[use].max())
    with np.errstate(invalid="ignore"):
        low, high = use & (values <= low_end), use & (values >= high_end) & (values > low_end)
    if not low.any() or not high.any():
        return None
    if cause == "batch":
        low_name = "1" if low_end <= 1 else f"≤{low_end:.0f}"
        return low | high, high, f"small batches ({low_name} requests)", f"large batches (≥{high_end:.0f} requests)"
    return low | high, high, f"early (≤{low_end:.1f} min)", f"late (≥{high_end:.1f} min)"


# -- server starts ---------------------------------------------------------------------------------------------------------------


def _run_pairs(panel: Basis) -> list[tuple[Start, Start]]:
    """Return the server starts that follow each other, of one service, and have enough steps to be compared."""
    least = MIN_RUN_WINDOWS if panel.windows else MIN_RUN_ROWS
    rows = {run.number: int((panel.timed & (panel.run == run.number)).sum()) for run in panel.runs}
    good = [run for run in panel.runs if rows.get(run.number, 0) >= least]
    made = []
    for service in dict.fromkeys(run.service for run in good):
        made += list(pairwise([run for run in good if run.service == service]))
    return made[-MAX_RUN_PAIRS:]


def _only_run(panel: Basis, rows: Bools) -> Start | None:
    numbers = np.unique(panel.run[rows])
    if len(numbers) != 1:
        return None
    return next((run for run in panel.runs if run.number == numbers[0]), None)


def _part_of(panel: Basis, c: Compared) -> Ints:
    numbers = {run.label: run.number for run in panel.runs}
    b, a = numbers.get(c.seen.before, -1), numbers.get(c.seen.after, -1)
    return np.where(panel.run == b, 1, np.where(panel.run == a, 2, 0)).astype(np.int64)


def _flags_of(panel: Basis, c: Compared, asked: Study) -> list[Changed]:
    by_label = {run.label: run for run in panel.runs}
    before, after = by_label.get(c.seen.before), by_label.get(c.seen.after)
    if before is None or after is None:
        return []
    pairs = max(len(_run_pairs(panel)), 1)
    return judged(before, after, c.seen, asked, 1 - (1 - asked.level) / (2 * pairs))


def _of_flags(panel: Basis, pairs: list[tuple[Compared, list[Changed]]]) -> Named:
    """Make the hypothesis of changed flags from the server starts that were compared."""
    flags = tuple(f for _, found in pairs for f in found)
    starts = [run for run in panel.runs if run.number > 0 and run.args]
    runs = [run for run in panel.runs if run.number > 0]
    facts = {"starts": len(starts), "runs": len(runs), "compared": len(pairs)}
    made = Named("flags", flags=flags, reasons=[because(Why.OBSERVED, sentence="", **facts)])
    for one, found in pairs:
        one.flags = tuple(found)
    if flags:
        statuses = {f.status for f in flags}
        made.status = SUPPORTED if SUPPORTED in statuses else CANNOT_TELL if CANNOT_TELL in statuses else REFUTED
        made.pairs = tuple(id(c) for c, found in pairs if any(f.status == SUPPORTED for f in found))
        made.strength = max((c.size for c, found in pairs if any(f.status == SUPPORTED for f in found)), default=0.0)
        return made
    if len(runs) >= 2 and len(starts) < len(runs):
        return made
    if len(starts) >= 2:
        made.status = REFUTED if pairs else CANNOT_TELL
    elif len(starts) == 1:
        made.status = REFUTED
    return made


SWITCHED = 0.9
"""Speculation was switched between two groups if so much more of the rows of one are of a server that speculates."""


def _speculation(panel: Basis, pairs: Sequence[tuple[Compared, Ints]]) -> Named | None:
    """Say whether speculation was on in one run and off in the other; None where it was not."""
    known = panel.speculative
    for c, part in pairs:
        sides = [known[(part == k) & np.isfinite(known)] for k in (1, 2)]
        if not len(sides[0]) or not len(sides[1]):
            continue
        off, on = (float(s.mean()) for s in sides)
        if abs(off - on) > SWITCHED:
            c.switched = True
            status = SUPPORTED if c.shown else CANNOT_TELL
            made = Named("speculation", status, None, "speculation", strength=c.size, pairs=(id(c),))
            made.reasons = [
                because(
                    Why.OBSERVED, sentence=f"speculation is {'on' if off > on else 'off'} before and {'on' if on > off else 'off'} after"
                )
            ]
            return made
    return None


def _observe(
    log: Any, panel: Basis, rows: Bools, after: Bools | None, asked: Study, breaks: Sequence[Break], episodes: Episodes
) -> list[observed.Seen]:
    since = max((b.time_us for b in breaks if b.on == TOKENS and b.size.value < 0), default=None)
    return [
        observed.retraction(panel, log, rows, after, asked),
        observed.prefills(panel, log, rows, after, asked),
        observed.suppressed(log),
        *observed.switches(panel, log),
        observed.too_good(panel, rows),
        observed.nothing_accepted(panel, rows, since),
        observed.episodes(episodes, asked),
    ]


__all__ = ["diagnose", "math"]
