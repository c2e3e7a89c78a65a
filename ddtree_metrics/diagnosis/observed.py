"""What the log shows without a model: time lost between steps, lost lines, switches left on, acceptance that is too good or none at all."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ddtree_metrics.diagnosis.breaks import ONE_TOKEN, Episodes
from ddtree_metrics.diagnosis.causes import BETWEEN, STEP, TOKENS
from ddtree_metrics.diagnosis.result import CANNOT_TELL, REFUTED, SUPPORTED
from ddtree_metrics.diagnosis.study import Study
from ddtree_metrics.metrics import wall_time
from ddtree_metrics.steps.basis import Basis, empty_like, floats
from ddtree_metrics.steps.frames import Bools, Ints

TOO_GOOD_STEPS = 64
"""So many steps of one request in a row with every draft accepted are no good fortune."""

TOO_GOOD_SHARE = 0.97
"""... as is a request of so many steps with this share of them at the cap."""

HELD_UP = 0.25
"""Prefills that take this much of the time of running requests are a cause by themselves; of less it takes two groups to say."""


HELD_UP_HALF = 0.15
"""... or this much in one half of the log, and clearly less in the other."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of one possible cause.

    Attributes
    ----------
    key : str
        Which.
    status : str
        What follows.
    acts_on : str or None
        Which number it acts on.
    case : str
        What kind of sight; ``phrases.OBSERVED`` has the sentence of each.
    speed : float
        Speed with it by speed without it; NaN where it is not known.
    numbers : dict of str to object
        What the sentence is made of.
    """

    key: str
    status: str
    acts_on: str | None
    case: str
    speed: float = math.nan
    numbers: Mapping[str, Any] = field(default_factory=dict)


# -- time between steps --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Lost:
    """Time that running requests spent outside of steps, in seconds."""

    total_s: float
    by_reason: dict[str, float]
    intervals: int
    places: int = 0

    def share(self, *reasons: str) -> float:
        """Part of the time from first to last step of all requests that went by for these reasons (all, if none is given)."""
        lost = sum(v for k, v in self.by_reason.items() if not reasons or k in reasons)
        return lost / self.total_s if self.total_s > 0 else 0.0


# of these the time is not known to be lost: the clock cannot say
_UNTIMED = ("coarse_clock", "burst", "window", "no_time", "clock_step", "duplicate_rank", "first", "boot", "restart")


def lost_time(panel: Basis, rows: Bools) -> Lost:
    """Sum up, over requests, the time between their steps that was no step."""
    use = rows & panel.known & (panel.time_us >= 0)
    if panel.windows or use.sum() < 2:
        return Lost(0.0, {}, 0)
    turn = _turn(panel)
    at = np.flatnonzero(use)
    at = at[np.lexsort((panel.time_us[at], panel.cluster[at]))]
    same = panel.cluster[at][1:] == panel.cluster[at][:-1]
    between = (panel.time_us[at][1:] - panel.time_us[at][:-1]) / 1e6
    later = at[1:]
    step_s = panel.step_ms[later] / 1000.0
    names = panel.why_names
    why = panel.why_code[later]
    timed = np.isfinite(step_s)
    # steps of others went by between two steps of this request: it had lost its place in the batch
    missed = turn[later] > turn[at[:-1]] + 1
    clockless = np.array([str(name) in _UNTIMED for name in names] + [False], dtype=bool)
    ok = same & (between >= 0) & ~(~timed & ~missed & clockless[why])
    times = panel.step_ms[use]
    usual = float(np.nanmedian(times)) / 1000.0 if np.isfinite(times).any() else 0.0
    lost = np.maximum(between - np.where(timed, step_s, usual), 0.0)
    lost[timed & ~missed] = 0.0
    made: dict[str, float] = {}
    for i, name in enumerate([*names, "unknown"]):
        mine = ok & ~missed & ~timed & (why == (i if i < len(names) else -1))
        seconds = float(lost[mine].sum())
        if seconds > 0:
            made[str(name)] = seconds
    away = float(lost[ok & missed].sum())
    if away > 0:
        made["lost_place"] = away
    return Lost(float(between[ok].sum()), made, int((ok & (lost > 0)).sum()), int((ok & missed).sum()))


def _turn(panel: Basis) -> Ints:
    """Give each row the place of its step in its stream, the same for all rows of a step."""
    streams = pd.Series(panel.first).groupby(panel.stream).cumsum()
    own = np.where(panel.first, streams.to_numpy(np.int64), 0)
    table = pd.Series(own).groupby(panel.step).transform("max")
    return table.to_numpy(np.int64)


def retraction(panel: Basis, log: Any, rows: Bools, after: Bools | None, asked: Study) -> Seen:
    """Judge retraction and pool pressure: requests that lost their place, and the time it cost."""
    key = "retraction"
    events, requests, decode = empty_like(log, "events"), empty_like(log, "requests"), empty_like(log, "decode")
    number = retractions(log)
    usage = floats(decode, "token_usage")
    counted = bool(np.isfinite(floats(requests, "retractions")).any() or np.isfinite(floats(decode, "retracted")).any())
    missing = missing_lines(log)
    facts = {
        "pool": float(np.nanmax(usage)) if np.isfinite(usage).any() else None,
        "missing": missing,
        "events": len(events),
        "lines": len(decode),
        "requests": len(requests),
        "hit": number,
    }
    if not number:
        known = (counted or tells_of_others(log)) and missing is None
        case = "none" if known else "none_lost" if missing is not None else "none_silent"
        return Seen(key, REFUTED if known else CANNOT_TELL, BETWEEN, case, 1.0 if known else math.nan, facts)
    lost = lost_time(panel, rows & (after if after is not None else True))
    share = lost.share("retraction", "lost_place")
    facts |= {"share": share, "waits": lost.places}
    if lost.total_s <= 0 or not mostly_known(panel, rows):
        return Seen(key, CANNOT_TELL, BETWEEN, "cost_unknown", math.nan, facts)
    if share >= 1 - math.exp(-asked.least):
        return Seen(key, SUPPORTED, BETWEEN, "cost", 1 - share, facts)
    if missing is not None:
        return Seen(key, CANNOT_TELL, BETWEEN, "cost_at_least", 1 - share, facts)
    return Seen(key, REFUTED, BETWEEN, "cost_small", 1 - share, facts)


def retractions(log: Any) -> int:
    """Return how many retractions the log tells of, in lines of their own or in the records of requests."""
    events, requests = empty_like(log, "events"), empty_like(log, "requests")
    told = 0
    if "kind" in events:
        mine = events["kind"].astype(str) == "retraction"
        counts = floats(events[mine], "count")
        told = int(np.nansum(np.where(np.isfinite(counts), counts, 1.0)))
    return int(np.nansum(floats(requests, "retractions"))) or told


def missing_lines(log: Any) -> int | None:
    """Return how many lines are known to be missing at least; None where nothing says that any is."""
    coverage, events = getattr(log, "coverage", None), empty_like(log, "events")
    lines = int(getattr(coverage, "suppressed_lines", 0) or 0)
    notices = int(getattr(coverage, "suppressed_notices", 0) or 0)
    if "kind" in events:
        mine = events["kind"].astype(str) == "suppressed"
        notices = max(notices, int(mine.sum()))
        lines = max(lines, int(np.nansum(floats(events[mine], "count"))))
    return lines if lines or notices else None


_OURS = ("boot", "restart", "clock_step", "gap", "suppressed", "burst")
"""Events that the reader finds by itself, and journald's notices: they are no messages of the server."""


def tells_of_others(log: Any) -> bool:
    """Whether the log has lines of a kind that a scheduler's own messages would stand among, not only lines picked out by a pattern."""
    events = empty_like(log, "events")
    other = "kind" in events and bool((~events["kind"].astype(str).isin(_OURS)).any())
    return other or any(len(empty_like(log, name)) for name in ("decode", "prefill", "servers"))


def mostly_known(panel: Basis, rows: Bools) -> bool:
    """Whether the requests of most rows are known."""
    return bool(panel.known[rows].mean() >= 0.8) if rows.any() else False


def held_up(panel: Basis, log: Any, rows: Bools) -> float | None:
    """Return the share of the time of running requests that went to prefills of others; None where it cannot be told.

    Where the requests are known it is the time between their own steps; else, for a whole log, what ``wall_time`` gives.
    """
    if mostly_known(panel, rows) and not panel.windows:
        lost = lost_time(panel, rows)
        return lost.share("prefill_between") if lost.total_s > 0 else None
    steps, decode, prefill = (empty_like(log, name) for name in ("steps", "decode", "prefill"))
    lines = steps if len(steps) else decode
    if not rows.all() or not len(prefill) or not np.isfinite(floats(prefill, "running")).any() or not len(lines):
        return None
    spent = wall_time(lines, prefill, empty_like(log, "events"))
    seconds = spent.groupby("what")["seconds"].sum()
    busy = float(sum(seconds.get(what, 0.0) for what in _RUNNING))
    return float(seconds.get("prefill_between", 0.0)) / busy if busy > 0 else None


_RUNNING = ("step", "prefill_between", "retraction")
"""Kinds of wall time in which requests were running."""


def _halves(panel: Basis, log: Any, rows: Bools) -> tuple[float, float]:
    """Return the share of time that went to prefills of others in the first and in the second half of the rows; 0 where not known."""
    if panel.windows or not mostly_known(panel, rows) or (panel.time_us[rows] < 0).any():
        return 0.0, 0.0
    middle = float(np.median(panel.time_us[rows]))
    return held_up(panel, log, rows & (panel.time_us < middle)) or 0.0, held_up(panel, log, rows & (panel.time_us >= middle)) or 0.0


def prefills(panel: Basis, log: Any, rows: Bools, after: Bools | None, asked: Study) -> Seen:
    """Judge prefills of other requests that hold up the decode steps."""
    key = "prefill_between"
    doubt = missing_lines(log)
    silent = not tells_of_others(log)
    if after is None:
        share = held_up(panel, log, rows)
        facts = {"share": share, "missing": doubt}
        if share is None:
            return Seen(key, CANNOT_TELL, BETWEEN, "unknown", math.nan, facts)
        if share >= HELD_UP:
            return Seen(key, SUPPORTED, BETWEEN, "held", 1 - share, facts)
        early, late = _halves(panel, log, rows)
        if max(early, late) >= HELD_UP_HALF and (1 - max(early, late)) / (1 - min(early, late)) <= math.exp(-2 * asked.least):
            return Seen(key, SUPPORTED, BETWEEN, "halves", 1 - max(early, late), facts | {"early": early, "late": late})
        if share < 1 - math.exp(-asked.least):
            if doubt is not None or silent:
                return Seen(key, CANNOT_TELL, BETWEEN, "share_lost" if doubt is not None else "share_silent", math.nan, facts)
            return Seen(key, REFUTED, BETWEEN, "share", 1 - share, facts)
        return Seen(key, CANNOT_TELL, BETWEEN, "share_usual", 1 - share, facts)
    b, a = held_up(panel, log, rows & ~after), held_up(panel, log, rows & after)
    if b is None or a is None:
        return Seen(key, CANNOT_TELL, BETWEEN, "unknown_group", math.nan, {})
    facts = {"before": b, "after": a, "missing": doubt}
    ratio = (1 - a) / max(1 - b, 0.01)
    status = SUPPORTED if ratio <= math.exp(-2 * asked.least) else REFUTED if ratio >= math.exp(-asked.least) else CANNOT_TELL
    if status == REFUTED and doubt is not None:
        return Seen(key, CANNOT_TELL, BETWEEN, "groups_lost", math.nan, facts)
    return Seen(key, status, BETWEEN, "groups", ratio, facts)


# -- about the measurement itself ----------------------------------------------------------------------------------------------


def suppressed(log: Any) -> Seen:
    """Judge lines lost to journald's rate limit."""
    key = "suppressed"
    coverage = getattr(log, "coverage", None)
    events = empty_like(log, "events")
    missing = missing_lines(log)
    if missing is not None:
        notices = int(getattr(coverage, "suppressed_notices", 0) or 0)
        if "kind" in events:
            notices = max(notices, int((events["kind"].astype(str) == "suppressed").sum()))
        return Seen(key, SUPPORTED, None, "lost", math.nan, {"lines": missing, "notices": notices})
    holes = int(getattr(coverage, "gaps", 0) or 0)
    if "kind" in events:
        holes = max(holes, int((events["kind"].astype(str) == "gap").sum()))
    if holes:
        return Seen(key, CANNOT_TELL, None, "holes", math.nan, {"holes": holes})
    if not tells_of_others(log):
        return Seen(key, CANNOT_TELL, None, "silent")
    return Seen(key, REFUTED, None, "none")


_SIMULATED = re.compile(r"simulat\w*_acc|sglang_simulate_acc", re.I)
_PROFILING = re.compile(
    r"^(enable_)?(profil\w*|layerwise_nvtx\w*|nvtx\w*|debug_cuda_graph|debug_tensor_dump\w*|cuda_launch_blocking)", re.I
)
_OFF = {"", "none", "false", "0", "off", "null", "-1", "no"}


def switches(panel: Basis, log: Any) -> list[Seen]:
    """Judge profiling and simulated acceptance that were left on."""
    events = empty_like(log, "events")
    kinds = events["kind"].astype(str) if "kind" in events else pd.Series(dtype=str)
    started = [run for run in panel.runs if run.args]
    made = []
    for key, pattern, acts in (("simulated", _SIMULATED, TOKENS), ("profiling", _PROFILING, STEP)):
        seen = int((kinds == key).sum())
        flags = sorted(
            {f"{k}={v}" for run in started for k, v in (run.args or {}).items() if pattern.search(k) and v.strip().lower() not in _OFF}
        )
        facts = {"lines": seen, "flags": tuple(flags[:3]), "starts": len(started)}
        if seen or flags:
            made.append(Seen(key, SUPPORTED, acts, "on", math.nan, facts))
        else:
            made.append(Seen(key, REFUTED if started else CANNOT_TELL, acts, "off" if started else "unknown", math.nan, facts))
    return made


def too_good(panel: Basis, rows: Bools) -> Seen:
    """Judge acceptance that stays at its cap: a loop of repeated text, or drafts that are not real."""
    key = "too_good"
    use = np.flatnonzero(rows & panel.counted & panel.known)
    if panel.windows or len(use) < TOO_GOOD_STEPS:
        return Seen(key, CANNOT_TELL, TOKENS, "few", math.nan, {"rows": len(use)})
    tokens = panel.tokens[use]
    cap = float(tokens.max())
    if cap <= 1.5:
        return Seen(key, REFUTED, TOKENS, "cap", math.nan, {"cap": cap, "rows": len(use)})
    order = np.lexsort((panel.time_us[use], panel.cluster[use]))
    full = tokens[order] >= cap
    owner = panel.cluster[use][order]
    new = np.r_[True, (owner[1:] != owner[:-1]) | (full[1:] != full[:-1])]
    lengths = np.diff(np.r_[np.flatnonzero(new), len(full)])
    longest = int(lengths[full[new]].max(initial=0))
    codes, counts = np.unique(owner, return_counts=True)
    share = np.bincount(np.searchsorted(codes, owner), full) / counts
    high = int(((share >= TOO_GOOD_SHARE) & (counts >= TOO_GOOD_STEPS)).sum())
    overall = float(full.mean())
    facts = {"share": overall, "rows": len(use), "cap": cap, "longest": longest}
    # a row that long must be far beyond what the share alone would give
    by_chance = len(full) * overall**longest if longest else 1.0
    loop = high or (longest >= TOO_GOOD_STEPS and by_chance < 1e-3) or (longest >= TOO_GOOD_STEPS and overall > 0.9)
    return Seen(key, SUPPORTED if loop else REFUTED, TOKENS, "share", math.nan, facts)


def nothing_accepted(panel: Basis, rows: Bools, since_us: int | None) -> Seen:
    """Judge whether speculation is on and no draft is accepted: every step costs a draft, and commits one token."""
    key = "nothing_accepted"
    use = rows & panel.counted & speculative(panel)
    if not use.any():
        return Seen(key, CANNOT_TELL if not panel.plain else REFUTED, TOKENS, "plain" if panel.plain else "unknown")
    mean = float(np.average(panel.tokens[use], weights=_weights(panel)[use]))
    facts: dict[str, Any] = {"rows": int(use.sum()), "mean": mean}
    if 1 / ONE_TOKEN <= mean <= ONE_TOKEN:
        return Seen(key, SUPPORTED, TOKENS, "all", math.nan, facts)
    if since_us is not None:
        later = use & (panel.time_us >= since_us)
        if later.any() and float(np.average(panel.tokens[later], weights=_weights(panel)[later])) <= ONE_TOKEN:
            earlier = use & ~later
            facts |= {"rows": int(later.sum()), "since_us": since_us}
            before = float(np.average(panel.tokens[earlier], weights=_weights(panel)[earlier])) if earlier.any() else math.nan
            return Seen(key, SUPPORTED, TOKENS, "since", 1 / before if before > 0 else math.nan, facts | {"before": before})
    return Seen(key, REFUTED, TOKENS, "some", math.nan, facts)


def _weights(panel: Basis) -> Any:
    return panel.weight if panel.windows else np.ones(len(panel))


def speculative(panel: Basis) -> Bools:
    """Tell which rows are of a server that speculates, as far as it is known."""
    return np.asarray(panel.speculative != 0.0)


def episodes(found: Episodes, asked: Study) -> Seen:
    """Judge times at which steps were slower for a while and then as before: a neighbour on the host, a hot day, another job."""
    key = "episodes"
    facts = {"count": found.count, "share": found.share, "size": math.exp(found.size), "spans_us": found.spans_us[:4]}
    if not found.count:
        return Seen(key, REFUTED, STEP, "none", math.nan, facts)
    cost = 1 + found.share * (math.exp(found.size) - 1)
    status = SUPPORTED if cost >= math.exp(asked.least) else REFUTED
    return Seen(key, status, STEP, "some", 1 / cost, facts)
