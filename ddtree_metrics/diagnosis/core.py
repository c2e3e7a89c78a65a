"""``diagnose``: put the panel, the comparisons and the causes together, and say what follows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from ddtree_metrics.diagnosis import observed, verdict
from ddtree_metrics.diagnosis.apart import Apart, context_or_uptime
from ddtree_metrics.diagnosis.causes import STEP, TOKENS, Causes, label, study
from ddtree_metrics.diagnosis.compare import comparison
from ddtree_metrics.diagnosis.groups import pick
from ddtree_metrics.diagnosis.model import VIF_LIMIT, Fit
from ddtree_metrics.diagnosis.result import SUPPORTED, Comparison, Diagnosis, Interval
from ddtree_metrics.errors import MetricError
from ddtree_metrics.steps.basis import Basis as Panel
from ddtree_metrics.steps.basis import basis_of, empty_like, floats
from ddtree_metrics.steps.frames import Bools
from ddtree_metrics.steps.starts import Start as Run

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

LEAST = 0.05
"""A change of speed smaller than this (on the log scale, 5 %) is not called a slow-down."""

MIN_RUN_ROWS = 20
"""A server start with fewer steps is not compared."""

MIN_RUN_WINDOWS = 8
"""... or with fewer Decode lines, where each sums up many steps."""

MAX_RUN_PAIRS = 6

UNASKED = 8
"""A comparison that nobody asked for, or of lines that each sum up many steps, counts as so many tests."""


def diagnose(
    log: Any,
    before: Any = None,
    after: Any = None,
    *,
    requests: Any = None,
    window: int | None = None,
    level: float = 0.9,
    min_change: float = LEAST,
    seed: int = 0,
    tz: ZoneInfo | None = None,
) -> Diagnosis:
    """Say why requests were slow: step time, acceptance, both, or neither, and with what it goes.

    Parameters
    ----------
    log : Log
        What ``read_journal``, ``read_text`` or ``read_parquet`` gave.
    before, after : optional
        Two groups of steps: a window (``"14:00..14:30"`` or a pair of instants), a server start (``"run:2"``, or a number from 1), a boot
        (``"boot:ID"``), a range (``"context:0-1023"`` or ``{"context": (0, 1024)}``), or requests (``"requests:ID,ID"`` or a list of
        ids). With only one of them, the other is all the rest. Without both, the quarter of request-steps at the longest context is
        compared with the quarter at the shortest, and server starts with each other.
    requests : DataFrame, path, or sequence of paths, optional
        Requests to join with, instead of those that the log itself tells of.
    window : int, optional
        The drafter's attention window in tokens; read from the server's start line where it is there.
    level : float
        Level of all intervals.
    min_change : float
        The smallest change of speed that counts, as a share.
    seed : int
        For the intervals of shares, which are drawn.
    tz : ZoneInfo, optional
        The zone of instants without one; the machine's if not given.

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

    Notes ----- A cause is called supported only if its effect on speed is at least ``min_change`` and its interval, widened for the
    number of causes tested (Bonferroni), leaves out no effect; refuted only if its interval leaves out an effect of that size. Everything
    else cannot be told.
    """
    if not (0 < level < 1 and 0 < min_change < 1):
        raise MetricError(f"level and min_change are shares between 0 and 1, not {level!r} and {min_change!r}")
    if requests is not None:
        if not hasattr(log, "with_requests"):
            raise MetricError("requests can only be given with a log that was read (Log.with_requests)")
        log = log.with_requests(requests, tz=tz)
    panel = basis_of(log)
    panel.tz = tz
    least = float(-np.log1p(-min_change))
    window = window if window is not None else _window_of(log)
    if before is not None or after is not None:
        return _two_groups(log, panel, before, after, window, level, least, seed)
    return _whole_log(log, panel, window, level, least, seed)


def _window_of(log: Any) -> int | None:
    """Return the drafter's window from the server's start lines, where they agree."""
    values = floats(empty_like(log, "servers"), "draft_window")
    values = np.unique(values[np.isfinite(values) & (values > 0)])
    return int(values[0]) if len(values) == 1 else None


def _two_groups(log: Any, panel: Panel, before: Any, after: Any, window: int | None, level: float, least: float, seed: int) -> Diagnosis:
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
    rows = a | b
    if len(panel):
        panel.count("rows in neither group", int((~rows).sum()))
    # windows, boots and server starts differ in what is not measured: that is a term of its own. Requests and ranges are chosen by what
    # is measured, and all rows
    # of the log help to say what that does.
    unmeasured = kind in ("windows", "runs", "boot")
    use = rows if unmeasured else all_rows
    causes = study(panel, use, a, b, window=window, own_term=unmeasured, level=level, least=least)
    shown = kind if kind in ("context", "runs") else "groups"
    made = _compare(shown, b_name, a_name, panel, rows, a, causes, level, least, seed, asked=True)
    strict = made
    if unmeasured:
        made, strict = _equal(made, causes, level, UNASKED if panel.windows else 2, least)
    # a group that is the faster: what made the other slow is looked for, in the same words whichever is given first
    faster = made.speed_ratio.low is not None and made.speed_ratio.low > 1.0
    if faster:
        reverse = study(panel, use, b, a, window=window, own_term=unmeasured, level=level, least=least)
        back = _compare(shown, a_name, b_name, panel, rows, b, reverse, level, least, seed, asked=True)
        faster = back.verdict in ("step_time", "acceptance", "both")
        if faster:
            causes = reverse
            made = replace(made, verdict=back.verdict)
    runs = [_only_run(panel, b), _only_run(panel, a)]
    if runs[0] is not None and runs[1] is not None and runs[0] is not runs[1]:
        made = replace(made, flags=observed.flag_changes(runs[0], runs[1], made, strict, least))
    tests = _observations(log, panel, rows, b if faster else a, least)
    return verdict.conclude(
        panel, [made], causes, tests, Apart(), window, explicit=True, level=level, least=least, seed=seed, faster=faster
    )


def _whole_log(log: Any, panel: Panel, window: int | None, level: float, least: float, seed: int) -> Diagnosis:
    rows = np.ones(len(panel), dtype=bool)
    causes = study(panel, rows, None, None, window=window, own_term=False, level=level, least=least)
    comparisons = []
    split = None if any(causes.context_lacks(on) for on in (STEP, TOKENS)) else _short_long(panel)
    parts = _first_last(panel) if split is None else None
    if parts is not None:
        use, last, b_name, a_name = parts
        found = comparison("parts", b_name, a_name, panel, use, last, {}, {}, level=level, least=least, seed=seed)[0]
        comparisons.append(found)
    if split is not None:
        use, long, b_name, a_name = split
        comparisons.append(_compare("context", b_name, a_name, panel, use, long, causes, level, least, seed))
    pairs = _run_pairs(panel)
    for first, second in pairs:
        into = panel.run == second.number
        outof = panel.run == first.number
        pair = study(panel, into | outof, into, outof, window=window, own_term=True, level=level, least=least)
        made = _compare("runs", first.label, second.label, panel, into | outof, into, pair, level, least, seed)
        made, strict = _equal(made, pair, level, UNASKED * len(pairs), least)
        comparisons.append(replace(made, flags=observed.flag_changes(first, second, made, strict, least)))
    apart = context_or_uptime(panel, causes, least)
    for cause in ("batch", "uptime", "cached", "graph_off"):
        shown = [e for e in causes.effects if e.cause == cause and e.status == SUPPORTED]
        ends = _low_high(panel, cause) if shown or apart.cause == cause else None
        if ends is not None:
            use, high, b_name, a_name = ends
            comparisons.append(_compare(cause, b_name, a_name, panel, use, high, causes, level, least, seed))
    tests = _observations(log, panel, rows, None, least)
    return verdict.conclude(panel, comparisons, causes, tests, apart, window, explicit=False, level=level, least=least, seed=seed)


def _compare(
    kind: str,
    b_name: str,
    a_name: str,
    panel: Panel,
    rows: Bools,
    after: Bools,
    causes: Causes,
    level: float,
    least: float,
    seed: int,
    *,
    asked: bool = False,
) -> Comparison:
    terms = {on: {k: v for k, v in causes.terms.get(on, {}).items() if k != "group"} for on in (STEP, TOKENS)}
    models: tuple[Fit | None, Fit | None] = (None, None)
    strict = None
    if kind not in ("runs", "groups") and not asked:
        # nobody asked for these two groups: they are compared at equal server starts, and a difference must be clearer than one that
        # somebody noticed
        models = (causes.models.get(STEP), causes.models.get(TOKENS))
        strict = 1 - (1 - level) / 5
    return comparison(
        kind, b_name, a_name, panel, rows, after, terms[STEP], terms[TOKENS], models, level=level, least=least, seed=seed, strict=strict
    )[0]


def _equal(made: Comparison, causes: Causes, level: float, tests: int, least: float) -> tuple[Comparison, Comparison]:
    """Add the ratios at equal context, batch size and the rest: the coefficient of the group.

    Returns
    -------
    tuple of Comparison
        With intervals at ``level``, and with intervals widened for so many tests, from which the verdict at equal values is taken.
    """
    both = []
    apart = False
    for width in (level, 1 - (1 - level) / (2 * tests)):
        found = {}
        for on in (STEP, TOKENS):
            model = causes.equal.get(on)
            lacks = causes.context_lacks(on)
            if lacks or model is None or "group" not in model.names:
                continue
            if model.vif[model.names.index("group")] > VIF_LIMIT:
                apart = True
                continue
            value, se = model.combination({"group": 1.0})
            t = float(stats.t.ppf(0.5 + width / 2, model.dof)) * se
            share = _share_of_group(causes, on)
            ends = [_ratio(model.mean, c, share) for c in (value, value - t, value + t)]
            found[on] = Interval(ends[0], ends[1], ends[2])
        both.append(replace(made, step_time_ratio_equal=found.get(STEP, Interval()), tokens_ratio_equal=found.get(TOKENS, Interval())))
    judged = verdict.equal_verdict(both[1], both[0], least)
    held = {label(n.split(":")[0]) for m in causes.equal.values() for n in m.names if n != "group" and not n.startswith(("bend", "run:"))}
    order = [label(n) for n in ("context", "batch", "uptime", "generated", "cached", "graph_off", "window")]
    if apart and made.reason is None:
        both[0] = replace(both[0], reason="the two share too little of the same contexts and uptimes to be compared at equal values")
    return replace(both[0], verdict_equal=judged, equal_of=tuple(w for w in order if w in held)), both[1]


def _share_of_group(causes: Causes, on: str) -> float:
    group = causes.terms[on].get("group")
    return float(np.nanmean(group)) if group is not None and len(group) else 0.5


def _ratio(mean: float, change: float, share: float) -> float:
    low = max(mean - share * change, 0.02 * mean)
    return max(mean + (1 - share) * change, 0.02 * mean) / low


def _short_long(panel: Panel) -> tuple[Bools, Bools, str, str] | None:
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
    several = len(np.unique(panel.run[short | long])) > 1
    return short | long, long, f"context up to {low:.0f}", f"context from {high:.0f}{' (equal mix of server starts)' if several else ''}"


def _first_last(panel: Panel) -> tuple[Bools, Bools, str, str] | None:
    """Return the first and the last third of the rows by time: what is left to compare where the context is not known."""
    if (panel.time_us < 0).any() or len(panel) < 12:
        return None
    place = np.arange(len(panel))
    first, last = place < len(panel) // 3, place >= len(panel) - len(panel) // 3
    return first | last, last, "the first third of the log", "the last third"


def _low_high(panel: Panel, cause: str) -> tuple[Bools, Bools, str, str] | None:
    """Return the rows at the low and at the high end of a cause: the outer quarters, or no and yes."""
    values = {"batch": panel.batch, "uptime": panel.uptime_s / 60, "cached": panel.cached, "graph_off": panel.graph_off}[cause]
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    low, high = (0.5, 0.5) if cause in ("cached", "graph_off") else (float(q) for q in np.quantile(known, [0.25, 0.75]))
    if cause not in ("cached", "graph_off") and high <= low:
        low, high = float(known.min()), float(np.nextafter(known.min(), np.inf))
    with np.errstate(invalid="ignore"):
        below, above = values <= low, values >= high
    if not below.any() or not above.any():
        return None
    low, high = float(values[below].max()), float(values[above].min())
    names = {
        "batch": (f"batches of up to {low:.0f}", f"batches of {high:.0f} and more"),
        "uptime": (f"uptime up to {low:.1f} min", f"uptime from {high:.1f} min"),
        "cached": ("prompts not cached", "prompts with a cached prefix"),
        "graph_off": ("steps with a device graph", "steps without a device graph"),
    }[cause]
    return below | above, above, *names


def _run_pairs(panel: Panel) -> list[tuple[Run, Run]]:
    """Return server starts to compare, each with the one before it; those with too few steps are passed over and counted."""
    enough = []
    for run in panel.runs:
        n = int((panel.run == run.number).sum())
        if n >= (MIN_RUN_WINDOWS if panel.windows else MIN_RUN_ROWS):
            enough.append(run)
        elif run.number > 0:
            panel.count("server starts with too few steps to compare", 1)
    return list(pairwise(enough))[-MAX_RUN_PAIRS:]


def _only_run(panel: Panel, rows: Bools) -> Run | None:
    numbers = np.unique(panel.run[rows])
    if len(numbers) != 1:
        return None
    return next((run for run in panel.runs if run.number == numbers[0]), None)


def _observations(log: Any, panel: Panel, rows: Bools, after: Bools | None, least: float) -> list[Any]:
    return [
        observed.retraction(panel, log, rows, after, least),
        observed.prefills(panel, log, rows, after, least),
        observed.suppressed(log),
        *observed.switches(panel, log),
        observed.too_good(panel, rows if after is None else rows & after),
    ]
