"""What the log shows without a model: time lost between steps, lost lines, switches left on, acceptance that is too good, changed flags."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ddtree_metrics.diagnosis.result import CANNOT_TELL, REFUTED, SUPPORTED, Comparison, FlagChange, Hypothesis, Interval
from ddtree_metrics.diagnosis.words import plural
from ddtree_metrics.steps.basis import Basis as Panel
from ddtree_metrics.steps.basis import empty_like, floats
from ddtree_metrics.steps.frames import Bools, Ints
from ddtree_metrics.steps.starts import Start as Run

TOO_GOOD_STEPS = 64
"""So many steps of one request in a row with every draft accepted are no good fortune."""

TOO_GOOD_SHARE = 0.97
"""... as is a request of so many steps with this share of them at the cap."""

NOT_SET = "(not set)"


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


def lost_time(panel: Panel, rows: Bools) -> Lost:
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
    codes, names = pd.factorize(panel.why)
    why = codes[later]
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


def _turn(panel: Panel) -> Ints:
    """Give each row the place of its step in its stream, the same for all rows of a step."""
    streams = pd.Series(panel.first).groupby(panel.stream).cumsum()
    own = np.where(panel.first, streams.to_numpy(np.int64), 0)
    table = pd.Series(own).groupby(panel.step).transform("max")
    return table.to_numpy(np.int64)


def retraction(panel: Panel, log: Any, rows: Bools, after: Bools | None, least: float) -> Hypothesis:
    """Judge retraction and pool pressure: requests that lost their place, and the time it cost."""
    events, requests, decode = empty_like(log, "events"), empty_like(log, "requests"), empty_like(log, "decode")
    told = 0
    if "kind" in events:
        mine = events["kind"].astype(str) == "retraction"
        counts = floats(events[mine], "count")
        told = int(np.nansum(np.where(np.isfinite(counts), counts, 1.0)))
    by_request = int(np.nansum(floats(requests, "retractions")))
    shown = floats(decode, "retracted")
    usage = floats(decode, "token_usage")
    counted = bool(np.isfinite(floats(requests, "retractions")).any() or np.isfinite(shown).any())
    lost_lines = losses(log)
    known = (counted or _tells_of_others(log)) and not lost_lines
    fullest = float(np.nanmax(usage)) if np.isfinite(usage).any() else None
    pool = f"; the pool was at most {fullest:.0%} full" if fullest is not None else ""
    number = max(told, by_request, int(np.nansum(shown)) if np.isfinite(shown).any() else 0)
    name, key = "Requests are retracted: the KV pool is too small", "retraction"
    next_step = "raise --max-total-tokens or --mem-fraction-static, or lower --max-running-requests, and compare the time between steps"
    if not number:
        status = REFUTED if known else CANNOT_TELL
        said = (
            f"no retraction among {plural(len(events), 'event')}, {plural(len(decode), 'Decode line')} and "
            f"{plural(len(requests), 'request')}{pool}"
            if known
            else f"no line says so, but {lost_lines}"
            if lost_lines
            else "the log has no kind of line that would say so"
        )
        return Hypothesis(key, name, status, "time between steps", Interval(1.0) if known else Interval(), said, "")
    lost = lost_time(panel, rows & (after if after is not None else True))
    share = lost.share("retraction", "lost_place")
    hit = by_request or told
    said = f"{plural(hit, 'retraction')}{pool}; {share:.0%} of the time of running requests "
    said += f"went by while they had no place in the batch ({plural(lost.places, 'wait')})"
    if lost.total_s <= 0 or not _mostly_known(panel, rows):
        said = f"{plural(hit, 'retraction')}{pool}; what they cost cannot be measured: the requests of most steps are not known"
        return Hypothesis(key, name, CANNOT_TELL, "time between steps", Interval(), said, next_step)
    if share >= 1 - np.exp(-least):
        return Hypothesis(key, name, SUPPORTED, "time between steps", Interval(1 - share), said, next_step)
    if lost_lines:
        said += f"; it may be more: {lost_lines}"
        return Hypothesis(key, name, CANNOT_TELL, "time between steps", Interval(), said, next_step)
    return Hypothesis(key, name, REFUTED, "time between steps", Interval(1 - share), said + ", too little to matter", "")


def losses(log: Any) -> str:
    """Say that lines are missing, where the log says so; ``""`` where nothing says so."""
    coverage, events = getattr(log, "coverage", None), empty_like(log, "events")
    lines = int(getattr(coverage, "suppressed_lines", 0) or 0)
    notices = int(getattr(coverage, "suppressed_notices", 0) or 0)
    if "kind" in events:
        mine = events["kind"].astype(str) == "suppressed"
        notices = max(notices, int(mine.sum()))
        lines = max(lines, int(np.nansum(floats(events[mine], "count"))))
    return f"at least {lines} lines are missing from the log" if lines or notices else ""


def _tells_of_others(log: Any) -> bool:
    """Whether the log has lines of a kind that a scheduler's own messages would stand among, not only lines picked out by a pattern."""
    events = empty_like(log, "events")
    other = "kind" in events and bool((~events["kind"].astype(str).isin(_OURS)).any())
    return other or any(len(empty_like(log, name)) for name in ("decode", "prefill", "servers"))


_OURS = ("boot", "restart", "clock_step", "gap", "suppressed", "burst")
"""Events that the reader finds by itself, and journald's notices: they are no messages of the server."""


def _mostly_known(panel: Panel, rows: Bools) -> bool:
    return bool(panel.known[rows].mean() >= 0.8) if rows.any() else False


def prefills(panel: Panel, log: Any, rows: Bools, after: Bools | None, least: float) -> Hypothesis:
    """Judge prefills of other requests that hold up the decode steps; named only where it differs between two groups."""
    name, key = "Prefills of other requests hold up decoding", "prefill_between"
    next_step = "look at --chunked-prefill-size and at the times of arrival of long prompts"
    if after is None:
        lost = lost_time(panel, rows)
        share = lost.share("prefill_between")
        if lost.total_s <= 0 or not _mostly_known(panel, rows):
            return Hypothesis(key, name, CANNOT_TELL, "time between steps", Interval(), "the requests of most steps are not known", "")
        said = f"{share:.0%} of the time between first and last step of the requests went to prefills in between"
        doubt = losses(log) or ("" if _tells_of_others(log) else "the log has no Prefill lines")
        if share < 1 - np.exp(-least) and doubt:
            return Hypothesis(key, name, CANNOT_TELL, "time between steps", Interval(), f"{said}; it may be more: {doubt}", next_step)
        if share < 1 - np.exp(-least):
            return Hypothesis(key, name, REFUTED, "time between steps", Interval(1 - share), said, "")
        return Hypothesis(
            key,
            name,
            CANNOT_TELL,
            "time between steps",
            Interval(1 - share),
            f"{said}; whether that is more than usual needs two groups",
            next_step,
        )
    before_lost, after_lost = lost_time(panel, rows & ~after), lost_time(panel, rows & after)
    if before_lost.total_s <= 0 or after_lost.total_s <= 0:
        return Hypothesis(
            key, name, CANNOT_TELL, "time between steps", Interval(), "no two steps of one request are known in one of the groups", ""
        )
    b, a = before_lost.share("prefill_between"), after_lost.share("prefill_between")
    said = f"prefills in between took {b:.0%} of the time of running requests before and {a:.0%} after"
    ratio = (1 - a) / max(1 - b, 0.01)
    status = SUPPORTED if ratio <= np.exp(-2 * least) else REFUTED if ratio >= np.exp(-least) else CANNOT_TELL
    if status == REFUTED and losses(log):
        return Hypothesis(key, name, CANNOT_TELL, "time between steps", Interval(), f"{said}, but {losses(log)}", next_step)
    return Hypothesis(key, name, status, "time between steps", Interval(ratio), said, next_step if status != REFUTED else "")


# -- about the measurement itself ----------------------------------------------------------------------------------------------


def suppressed(log: Any) -> Hypothesis:
    """Judge lines lost to journald's rate limit."""
    coverage = getattr(log, "coverage", None)
    events = empty_like(log, "events")
    lines = int(getattr(coverage, "suppressed_lines", 0) or 0)
    notices = int(getattr(coverage, "suppressed_notices", 0) or 0)
    if "kind" in events:
        mine = events["kind"].astype(str) == "suppressed"
        notices = max(notices, int(mine.sum()))
        lines = max(lines, int(np.nansum(floats(events[mine], "count"))))
    name, key = "Lines were suppressed by journald", "suppressed"
    if notices or lines:
        said = f"at least {lines} lines missing ({plural(notices, 'notice')}): counts are lower bounds, "
        said += "and no step time is taken across a hole"
        return Hypothesis(
            key,
            name,
            SUPPORTED,
            None,
            Interval(),
            said,
            "set LogRateLimitIntervalSec=0 for the unit, or raise RateLimitBurst in journald.conf",
        )
    holes = int(getattr(coverage, "gaps", 0) or 0)
    if "kind" in events:
        holes = max(holes, int((events["kind"].astype(str) == "gap").sum()))
    if holes:
        said = f"no notice of lost lines, but {plural(holes, 'hole')} without a reason: idle time or lost lines"
        return Hypothesis(key, name, CANNOT_TELL, None, Interval(), said, "read the journal of the whole unit, journald's notices in it")
    if not _tells_of_others(log):
        said = "no notice of lost lines, but the log has no lines beside those of steps, so a notice would not be in it either"
        return Hypothesis(key, name, CANNOT_TELL, None, Interval(), said, "read the journal of the whole unit, journald's notices in it")
    return Hypothesis(key, name, REFUTED, None, Interval(), "no notice of lost lines", "")


_SIMULATED = re.compile(r"simulat\w*_acc|sglang_simulate_acc", re.I)
_PROFILING = re.compile(
    r"^(enable_)?(profil\w*|layerwise_nvtx\w*|nvtx\w*|debug_cuda_graph|debug_tensor_dump\w*|cuda_launch_blocking)", re.I
)
_OFF = {"", "none", "false", "0", "off", "null", "-1", "no"}


def switches(panel: Panel, log: Any) -> list[Hypothesis]:
    """Judge profiling and simulated acceptance that were left on."""
    events = empty_like(log, "events")
    kinds = events["kind"].astype(str) if "kind" in events else pd.Series(dtype=str)
    told = [run for run in panel.runs if run.args]
    made = []
    for key, name, pattern, event, acts in (
        ("simulated", "Simulated acceptance was left on", _SIMULATED, "simulated", "tokens per step"),
        ("profiling", "Profiling or a debug switch was left on", _PROFILING, "profiling", "step time"),
    ):
        seen = int((kinds == event).sum())
        flags = sorted(
            {f"{k}={v}" for run in told for k, v in (run.args or {}).items() if pattern.search(k) and v.strip().lower() not in _OFF}
        )
        if seen or flags:
            line = f"{plural(seen, 'line')} {'says' if seen == 1 else 'say'} so" if seen else ""
            said = "; ".join(filter(None, [line, f"started with {', '.join(flags[:3])}" if flags else ""]))
            made.append(
                Hypothesis(
                    key,
                    name,
                    SUPPORTED,
                    acts,
                    Interval(),
                    f"{said}: the numbers are not those of normal service",
                    "switch it off and measure again",
                )
            )
        elif told:
            made.append(
                Hypothesis(
                    key, name, REFUTED, acts, Interval(), f"no line says so, and no flag of {plural(len(told), 'server start')} does", ""
                )
            )
        else:
            said = "no line says so, but no server start is in the log, and an environment variable would leave no trace"
            made.append(Hypothesis(key, name, CANNOT_TELL, acts, Interval(), said, "read the log from the server's start"))
    return made


def too_good(panel: Panel, rows: Bools) -> Hypothesis:
    """Judge acceptance that stays at its cap: a loop of repeated text, or drafts that are not real."""
    name, key = "Acceptance is too good: a repetition loop or placeholder drafts", "too_good"
    use = np.flatnonzero(rows & panel.counted & panel.known)
    if panel.windows or len(use) < TOO_GOOD_STEPS:
        return Hypothesis(
            key, name, CANNOT_TELL, "tokens per step", Interval(), f"{len(use)} steps of known requests are too few to say", ""
        )
    tokens = panel.tokens[use]
    cap = float(tokens.max())
    if cap <= 1.5:
        return Hypothesis(
            key, name, REFUTED, "tokens per step", Interval(), f"no step committed more than {cap:g} tokens in {len(use)}", ""
        )
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
    said = (
        f"{overall:.0%} of {len(use)} steps committed the most ({cap:g} tokens); the longest row of such steps in one request is {longest}"
    )
    # a row that long must be far beyond what the share alone would give
    by_chance = len(full) * overall**longest if longest else 1.0
    if high or (longest >= TOO_GOOD_STEPS and by_chance < 1e-3) or (longest >= TOO_GOOD_STEPS and overall > 0.9):
        return Hypothesis(
            key,
            name,
            SUPPORTED,
            "tokens per step",
            Interval(),
            said,
            "look at the text of these requests; check that drafts are not placeholders",
        )
    return Hypothesis(key, name, REFUTED, "tokens per step", Interval(), said, "")


# -- flags ---------------------------------------------------------------------------------------------------------------------

_FINISHED_TEXT = re.compile(
    r"^(reasoning_parser|tool_call_parser|tool_server|chat_template|completion_template|served_model_name|api_key|admin_api_key|file_storage_path|"
    r"enable_cache_report|show_time_cost|bucket_\w+|prompt_tokens_buckets|generation_tokens_buckets|hf_chat_template_name)$"
)
_MEASUREMENT = re.compile(
    r"^(log_|decode_log_interval|enable_metrics|export_metrics|crash_dump|gc_warning|speculative_\w*debug|enable_trace|otlp_|host$|port$|random_seed$)"
)
_DRAFTER = re.compile(r"^speculative_|draft|^json_model_override")
_STEP = re.compile(
    r"attention|cuda_graph|graph|page_size|^tp_|^dp_|^pp_|^ep_|_size$|quant|dtype|kv_cache|mem_fraction|max_total|max_running|chunk|schedul|overlap|compile|"
    r"backend|moe|nccl|all_reduce|^device$|^model_path$|nsa|mla|kernel|context_length|disable_|radix"
)


def reach_of(flag: str) -> str:
    """Say which of the two numbers a flag can reach: none, measurement, drafter, step, both or unknown."""
    name = flag.strip().lstrip("-").replace("-", "_").lower()
    if _FINISHED_TEXT.match(name):
        return "none"
    if _MEASUREMENT.match(name):
        return "measurement"
    if _DRAFTER.search(name):
        return "both"
    if name in ("model_path", "temperature", "sampling_defaults", "revision", "lora_paths"):
        return "both"
    return "step" if _STEP.search(name) else "unknown"


def changed(before: Run, after: Run) -> list[tuple[str, str, str]]:
    """Return the flags whose values differ between two server starts: flag, value before, value after."""
    if before.args is None or after.args is None:
        return []

    def value(args: dict[str, str], key: str) -> str:
        found = args.get(key, NOT_SET)
        return NOT_SET if found.strip().lower() in ("none", "") else found

    keys = sorted(set(before.args) | set(after.args))
    made = [(k, value(before.args, k), value(after.args, k)) for k in keys]
    return [x for x in made if x[1] != x[2]]


def flag_changes(before: Run, after: Run, compared: Comparison, strict: Comparison, least: float) -> tuple[FlagChange, ...]:
    """Judge each changed flag by what the numbers did at equal context, and by what else changed with it.

    A flag whose numbers did not move is refuted by them. Where they moved, flags that changed in one restart cannot be told apart by the
    data; a flag that acts on finished text only is refuted all the same, by reasoning, and the evidence says so.
    """
    listed = changed(before, after)
    step, tokens = compared.step_time_ratio_equal, compared.tokens_ratio_equal
    moved_step = _moved(strict.step_time_ratio_equal, step, least, up=True)
    moved_tokens = _moved(strict.tokens_ratio_equal, tokens, least, up=False)
    numbers = f"at equal {' and '.join(compared.equal_of) or 'context'} step time {_times(step)}, tokens per step {_times(tokens)}"
    made = []
    others = [k for k, _, _ in listed if reach_of(k) not in ("none", "measurement")]
    for flag, b, a in listed:
        reach = reach_of(flag)
        rest = [k for k in others if k != flag]
        if moved_step is False and moved_tokens is False:
            made.append(FlagChange(flag, b, a, reach, REFUTED, f"measured: {numbers}: neither number moved when it changed"))
        elif reach in ("none", "measurement"):
            what = (
                "acts on finished text, after a step is over" if reach == "none" else "changes what is logged or how, not what is computed"
            )
            still = [n for n, m in (("step time", moved_step), ("tokens per step", moved_tokens)) if m is False]
            open_ = [n for n, m in (("step time", moved_step), ("tokens per step", moved_tokens)) if m is None]
            parts = [f"measured: {numbers}" + (f", so {' and '.join(still)} did not move" if still else "")]
            if open_:
                parts.append(f"whether {' and '.join(open_)} moved cannot be told")
            if rest:
                parts.append(f"the data cannot separate it from {', '.join(rest[:3])}, changed in the same restart")
            parts.append(f"by reasoning, not by measurement: it {what}, and has no path to either number")
            made.append(FlagChange(flag, b, a, reach, REFUTED, "; ".join(parts)))
        elif moved_step is None and moved_tokens is None:
            made.append(FlagChange(flag, b, a, reach, CANNOT_TELL, f"{numbers}: too little data to say whether anything moved"))
        else:
            hit = [n for n, m in (("step time", moved_step), ("tokens per step", moved_tokens)) if m]
            what = f"{' and '.join(hit)} moved with the restart" if hit else "no change is shown, a small one is possible"
            if rest:
                made.append(
                    FlagChange(
                        flag,
                        b,
                        a,
                        reach,
                        CANNOT_TELL,
                        f"{numbers}: {what}; cannot be separated from {', '.join(rest[:3])}, changed in the same restart",
                    )
                )
            else:
                tail = "; a restart changes caches and uptime as well" if hit else ""
                made.append(
                    FlagChange(
                        flag,
                        b,
                        a,
                        reach,
                        SUPPORTED if hit else CANNOT_TELL,
                        f"{numbers}: {what}; no other flag with a path to it changed{tail}",
                    )
                )
    return tuple(made)


def _moved(strict: Interval, plain: Interval, least: float, *, up: bool) -> bool | None:
    """Whether a number got worse: True (by the strict interval), False (the plain one rules it out), or None where it cannot be told."""
    ends = (strict.value, strict.low, strict.high, plain.low, plain.high)
    if any(x is None for x in ends):
        return None
    value, low, high, plain_low, plain_high = (max(float(x or 0.0), 1e-9) for x in ends)
    worse, surely, bound = (value, low, plain_high) if up else (1 / value, 1 / high, 1 / plain_low)
    if surely > 1.0 and worse >= np.exp(least):
        return True
    return False if bound < np.exp(least) else None


def _times(ratio: Interval) -> str:
    if ratio.value is None:
        return "not known"
    tail = f" ({ratio.low:.2f} to {ratio.high:.2f})" if ratio.low is not None and ratio.high is not None else ""
    return f"x {ratio.value:.2f}{tail}"
