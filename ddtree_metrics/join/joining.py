"""The join from end to end: prepare, match, check, sum up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.join import decode_context
from ddtree_metrics.join.by_id import match_ids
from ddtree_metrics.join.joined_rows import RowWriter
from ddtree_metrics.join.match import OtherLines, Result, match
from ddtree_metrics.join.prepare import UNKNOWN, Asked, Bools, Ints, StepColumns, prepare_requests, prepare_steps, stream_names
from ddtree_metrics.join.share import share
from ddtree_metrics.join.verify import Matched
from ddtree_metrics.steps.intervals import COARSE_US

BIAS = "#token holds slots allocated ahead (17 to 23 a running request more than the context in one real capture); not corrected"
ADVICE = "; SGLang writes their times with --enable-metrics, and its own lines (--log-requests) have them too"
MIN_TRUSTED = 0.9
"""A join in which less than this share of the checked requests reconcile is warned of."""


@dataclass(slots=True)
class Joined:
    """What the join made: a writer of rows, the summary, and what the user should hear."""

    writer: RowWriter
    summary: dict[str, Any]
    warnings: list[str]


def join_steps(
    again: Callable[[], Iterator[pa.RecordBatch]],
    requests: pd.DataFrame,
    prefill: pa.Table | None,
    decode: pd.DataFrame | None,
    events: pa.Table | None,
    clock_offset_s: float | None,
    root: int | None,
) -> Joined:
    """Join steps (read once here) with requests; see ``join_requests``."""
    s = prepare_steps(again())
    asked, left_out = prepare_requests(requests)
    relative, _, _, ids = _about(requests, asked)
    side = _side(prefill, events)
    offset_us = None if clock_offset_s is None else round(clock_offset_s * 1e6)
    resolution = _resolution(again)
    if resolution >= COARSE_US and prefill is not None:
        _order_by_line(s, again, prefill, side, resolution)
    result, asked, by_id, bonus = _match(s, asked, side, offset_us, relative, resolution, ids)
    _, own_flags, kinds, _ = _about(requests, asked)
    names: list[str | None] = [ids[i] for i in asked.row.tolist()]
    m = result.matched
    shared = share(s, asked, m, result.flags)
    estimates: dict[int, tuple[float, int]] = {}
    found = None
    if decode is not None and len(s):
        found = decode_context.from_decode_lines(s, decode, _without_context(s, asked, m))
        estimates = found.estimates
    where = np.empty(len(s), np.int32)
    where[s.row] = np.arange(len(s), dtype=np.int32)
    flags = _row_flags(asked, m, result.flags, own_flags, kinds)
    writer = RowWriter(s, asked, m, names, flags, root, by_id, estimates, where)
    summary, words = _sum_up(s, asked, m, result, left_out, flags, by_id, requests, bonus, found, shared)
    return Joined(writer, summary, words)


def _match(
    steps: StepColumns, asked: Asked, side: OtherLines, offset_us: int | None, relative: Bools, resolution: int, ids: list[str | None]
) -> tuple[Result, Asked, Bools | None, int]:
    """Match; if almost nothing reconciles, see whether the log's commits leave the bonus token out."""
    if steps.ids is not None:
        result, by_id = match_ids(steps, asked, [ids[i] for i in asked.row.tolist()])
        return result, asked, by_id, 0
    result, moved = match(steps, asked, side, offset_us, relative, resolution)
    m = result.matched
    checked = int(m.has_reconciled.sum())
    strong = int((m.has_reconciled & (moved.steps > 0) & (moved.accepted >= 0)).sum())
    if (
        strong >= 1
        and m.trusted.sum() < 0.3 * checked
        and len(steps)
        and bool(np.array_equal(steps.commit[steps.commit >= 0], steps.accepted[steps.commit >= 0]))
    ):
        steps.commit[steps.commit >= 0] += 1
        steps.total[steps.total >= 0] += steps.batch[steps.total >= 0]
        second, again = match(steps, asked, side, offset_us, relative, resolution)
        if second.matched.trusted.sum() > m.trusted.sum():
            return second, again, None, 1
        steps.commit[steps.commit >= 0] -= 1
        steps.total[steps.total >= 0] -= steps.batch[steps.total >= 0]
    return result, moved, None, 0


def _about(requests: pd.DataFrame, asked: Asked) -> tuple[Bools, list[tuple[str, ...]], list[str | None], list[str | None]]:
    n = len(requests)

    def texts(name: str) -> list[Any]:
        return (
            [None] * n if name not in requests else [None if x is None or x is pd.NA or x != x else str(x) for x in requests[name].tolist()]
        )

    if "flags" in requests:
        flags = [() if x is None or x is pd.NA or isinstance(x, float) else tuple(str(f) for f in x) for x in requests["flags"].tolist()]
    else:
        flags = [()] * n
    rows = asked.row.tolist()
    relative = np.array(["relative_clock" in flags[i] for i in rows], bool)
    kinds = texts("kind")
    return relative, [flags[i] for i in rows], [kinds[i] for i in rows], texts("request_id")


def _side(prefill: pa.Table | None, events: pa.Table | None) -> OtherLines:
    made = OtherLines()
    if prefill is not None and prefill.num_rows:
        time = np.asarray(pc.fill_null(prefill.column("time").combine_chunks().cast(pa.int64()), int(UNKNOWN)))
        length = np.asarray(
            pc.fill_null(pc.add(pc.fill_null(prefill.column("new_tokens"), -1), pc.fill_null(prefill.column("cached_tokens"), 0)), -1)
        )
        seqs = np.asarray(pc.fill_null(prefill.column("new_seqs"), -1)).astype(np.int64)
        rank = prefill.column("tp_rank")
        lowest = np.asarray(pc.fill_null(rank, 0)).astype(np.int64)
        stream = stream_names(prefill).dictionary_encode()
        codes = np.asarray(stream.indices)
        for code, name in enumerate(stream.dictionary.to_pylist()):
            at = np.flatnonzero((codes == code) & (time != UNKNOWN))
            at = at[lowest[at] == (lowest[at].min() if len(at) else 0)]
            at = at[np.argsort(time[at], kind="stable")]
            made.prefill_time[name], made.prefill_length[name], made.prefill_seqs[name] = time[at], length[at], seqs[at]
    if events is not None and events.num_rows:
        time = np.asarray(pc.fill_null(events.column("time").combine_chunks().cast(pa.int64()), int(UNKNOWN)))
        kind = np.asarray(events.column("kind").to_pylist(), dtype=object)
        stream = events.column("stream").to_pylist()
        jumped = np.asarray(pc.fill_null(events.column("count"), 0)).astype(np.int64)
        for i in np.flatnonzero((kind == "clock_step") & (time != UNKNOWN)).tolist():
            made.jumps.append((min(int(time[i]), int(time[i] - jumped[i])), max(int(time[i]), int(time[i] - jumped[i]))))
        made.notices = np.sort(time[(kind == "suppressed") & (time != UNKNOWN)])
        for i in np.flatnonzero((kind == "retraction") & (time != UNKNOWN)).tolist():
            if stream[i] is None:
                made.retracted_anywhere = np.sort(np.append(made.retracted_anywhere, time[i]))
            else:
                made.retracted[stream[i]] = np.sort(np.append(made.retracted.get(stream[i], np.zeros(0, np.int64)), time[i]))
    return made


def _resolution(again: Callable[[], Iterator[pa.RecordBatch]]) -> int:
    for batch in again():
        if batch.num_rows and "time_resolution_us" in batch.schema.names:
            most = pc.max(batch.column("time_resolution_us")).as_py()
            return int(most) if most is not None else 1
    return 1


def _order_by_line(
    steps: StepColumns, again: Callable[[], Iterator[pa.RecordBatch]], prefill: pa.Table, side: OtherLines, resolution: int
) -> None:
    """Where the clock is too coarse, let the order of the lines tell which step follows a prefill.

    For the match (and for nothing else) the lines that share a stamp are spread evenly over the clock's smallest step.
    """
    streams, lines = [], []
    for batch in again():
        if batch.num_rows:
            streams.append(stream_names(batch))
            lines.append(_line_numbers(batch.column("where")))
    if not lines:
        return
    name, line = np.asarray(pa.concat_arrays(streams).to_pylist(), dtype=object)[steps.row], np.concatenate(lines)[steps.row]
    other, before = np.asarray(stream_names(prefill).to_pylist(), dtype=object), _line_numbers(prefill.column("where"))
    stamps = np.asarray(pc.fill_null(prefill.column("time").combine_chunks().cast(pa.int64()), int(UNKNOWN)))
    for stream in {run.stream for run in steps.runs}:
        mine = np.flatnonzero(name == stream)
        theirs = np.flatnonzero((other == stream) & (before >= 0) & (stamps != UNKNOWN))
        own = line[mine]
        if not len(theirs) or (own < 0).any() or not bool(np.all(np.diff(own) > 0)):
            continue
        theirs = theirs[np.argsort(before[theirs], kind="stable")]
        steps.fresh[mine] |= np.diff(np.searchsorted(before[theirs], own), prepend=0) > 0
        both = np.concatenate([own, before[theirs]])
        turn = np.argsort(both, kind="stable")
        time = np.maximum.accumulate(np.concatenate([steps.time[mine], stamps[theirs]])[turn])
        heads = np.flatnonzero(np.concatenate([[True], time[1:] != time[:-1]]))
        size = np.diff(np.append(heads, len(time)))
        inside = np.arange(len(time)) - np.repeat(heads, size)
        spread = np.empty(len(time), np.int64)
        spread[turn] = time + (inside * 2 + 1) * resolution // (2 * np.repeat(size, size))
        steps.time[mine] = spread[: len(mine)]
        if stream in side.prefill_time and len(side.prefill_time[stream]) == len(theirs):
            side.prefill_time[stream] = spread[len(mine) :]


def _line_numbers(column: Any) -> Ints:
    found = pc.extract_regex(column, r"^(?P<name>.*):(?P<line>\d+)$")
    found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    text = pc.if_else(pc.is_valid(found), pc.struct_field(found, "line"), None)
    return np.asarray(pc.fill_null(text.cast(pa.int64()), -1)).astype(np.int64)


def _without_context(steps: StepColumns, asked: Asked, matched: Matched) -> np.ndarray:
    """Say which steps have a slot without a context."""
    if not len(steps):
        return np.zeros(0, bool)
    prompt = asked.prompt[np.maximum(matched.request, 0)] if len(asked) else np.full(steps.slots, -1)
    bad = (matched.request < 0) | (matched.generated <= 0) | (prompt < 0)
    return np.add.reduceat(bad.astype(np.int64), steps.place[:-1]) > 0


def _row_flags(
    asked: Asked, matched: Matched, flags: dict[int, set[str]], own: list[tuple[str, ...]], kinds: list[str | None]
) -> list[tuple[str, ...]]:
    made = []
    inherited = {"identity_broken", "no_prompt_length", "same_id", "absurd_duration", "relative_clock", "time_ambiguous", "errored"}
    for r in range(len(asked)):
        some = set(flags.get(r, ())) | (set(own[r]) & inherited if r < len(own) else set())
        if r < len(kinds) and kinds[r] in ("warmup", "health_check"):
            some.add(str(kinds[r]))
        if matched.count[r] and not matched.trusted[r] and not some - {"warmup", "health_check", "retracted", "same_id"}:
            some.add("not_checked" if not matched.has_reconciled[r] else "not_trusted")
        made.append(tuple(sorted(some)))
    return made


def _when(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _sum_up(
    steps: StepColumns,
    asked: Asked,
    matched: Matched,
    result: Result,
    left_out: dict[str, int],
    flags: list[tuple[str, ...]],
    by_id: Bools | None,
    requests: pd.DataFrame,
    bonus: int,
    found: decode_context.DecodeContext | None,
    shared: int,
) -> tuple[dict[str, Any], list[str]]:
    ways: Counter[str] = Counter()
    if len(steps):
        head = matched.request[steps.place[:-1]] >= 0
        all_known = np.minimum.reduceat(matched.request, steps.place[:-1]) >= 0
        if by_id is not None:
            ways["id"] = int(head.sum())
            ways["none"] = int((~head).sum())
        else:
            several = steps.batch != 1
            ways["alone"] = int((head & ~several).sum())
            ways["shared"] = int((all_known & several & ~steps.whole).sum())
            ways["slots"] = int((all_known & several & steps.whole).sum())
            ways["slots_in_part"] = int((~all_known & several & (np.maximum.reduceat(matched.request, steps.place[:-1]) >= 0)).sum())
            ways["none"] = len(steps) - sum(ways.values())
    checked = int(matched.has_reconciled.sum())
    exact = int((matched.trusted & (matched.reconciled == 0)).sum())
    cut = int((matched.trusted & (matched.reconciled != 0)).sum())
    fits = int(matched.fits.sum())
    offset = result.offset
    lost = int(steps.lost.sum())
    summary: dict[str, Any] = {
        "steps": len(steps),
        "request_steps": steps.slots,
        "steps_by_way": {k: ways.get(k, 0) for k in ("id", "alone", "slots", "slots_in_part", "shared", "none")},
        "requests": len(requests),
        "requests_left_out": {k: v for k, v in left_out.items() if v},
        "requests_with_steps": int((matched.count > 0).sum()),
        "requests_without_steps": len(asked) - int((matched.count > 0).sum()),
        "rank_unknown": result.without_stream,
        "checked": checked,
        "reconciled_exactly": exact,
        "reconciled_within_last_cut": cut,
        "reconciled_but_doubted": fits - exact - cut,
        "not_reconciled": checked - fits,
        "reconciled_share": fits / checked if checked else None,
        "times_from_log": _count(requests, "times_from_log"),
        "flags": dict(Counter(f for some in flags for f in some)),
        "clock_offset_s": offset.us / 1e6,
        "clock_uncertainty_s": None if offset.uncertainty_us is None else offset.uncertainty_us / 1e6,
        "clock_how": offset.how,
        "losses": lost,
        "bonus_added": bool(bonus),
    }
    if found is not None:
        summary["decode_lines"] = {
            "used": found.used,
            "zero": found.zero,
            "constant": found.constant,
            "rounded": found.rounded,
            "somebody_left": found.left,
            "steps": len(found.estimates),
            "bias": BIAS,
        }
    sources = set(requests["source"].dropna()) if "source" in requests else set()
    words = _words(steps, asked, matched, summary, offset, bonus, found, sources)
    return summary, words


def _count(requests: pd.DataFrame, flag: str) -> int:
    """Count the requests that carry a flag."""
    if "flags" not in requests:
        return 0
    return sum(flag in x for x in requests["flags"].tolist() if x is not None and x is not pd.NA and not isinstance(x, float))


def _words(
    steps: StepColumns,
    asked: Asked,
    matched: Matched,
    summary: dict[str, Any],
    offset: Any,
    bonus: int,
    found: decode_context.DecodeContext | None,
    requests_sources: set[str],
) -> list[str]:
    words: list[str] = []
    if summary["requests_left_out"]:
        told = ", ".join(f"{v} {k}" for k, v in summary["requests_left_out"].items())
        advice = ADVICE if "no_start" in summary["requests_left_out"] and "request_file" in requests_sources else ""
        words.append(f"{sum(summary['requests_left_out'].values())} requests are not joined ({told}){advice}")
    if found is not None and found.estimates:
        words.append(
            f"the context of {len(found.estimates)} steps is estimated from Decode batch lines (context_from decode_line): the mean "
            f"of the batch, with slots held ahead in it"
        )
    if not len(steps) or not len(asked):
        return words
    if not summary["requests_with_steps"]:
        begin, end = int(steps.time.min()), int(steps.time.max())
        known = asked.finished[asked.finished != UNKNOWN]
        first, last = int(asked.entry.min()), int(max(known.max() if len(known) else asked.entry.max(), asked.entry.max()))
        if first > end or last < begin:
            words.append(
                f"no request overlaps the log: steps from {_when(begin)} to {_when(end)} UTC, requests from "
                f"{_when(first + offset.us)} to {_when(last + offset.us)} UTC; another server's file, or another "
                f"time zone (pass tz=, or clock_offset_s=)"
            )
        elif summary["rank_unknown"]:
            words.append(
                f"requests and steps are of the same time, but none of the requests is matched: {summary['rank_unknown']} could be any of "
                f"several ranks'; give their dp_rank"
            )
        else:
            words.append("requests and steps are of the same time, but no request fits any step; another server's file, perhaps")
        return words
    if offset.us and offset.how == "estimated":
        unsure = "" if offset.uncertainty_us is None else f" ± {offset.uncertainty_us / 1e6:.3f} s"
        words.append(
            f"the requests' clock is {offset.us / 1e6:+.3f} s{unsure} from the log's; estimated from what reconciles, and taken off"
        )
    share_ok = summary["reconciled_share"]
    if share_ok is not None and share_ok < MIN_TRUSTED:
        words.append(
            f"only {summary['checked'] - summary['not_reconciled']} of {summary['checked']} requests reconcile ({share_ok:.1%}; "
            f"{MIN_TRUSTED:.0%} are wanted): rows of the others carry flags and trusted is false"
        )
    if summary["reconciled_but_doubted"] > (1 - MIN_TRUSTED) * summary["checked"]:
        words.append(
            f"{summary['reconciled_but_doubted']} of {summary['checked']} requests reconcile, but something else is in doubt, mostly which "
            f"of those that ran together is which: their rows carry flags and trusted is false"
        )
    if summary["losses"]:
        words.append(f"lines are missing in {summary['losses']} places: requests that ran there carry the flag lost_lines")
    if summary["rank_unknown"]:
        words.append(f"{summary['rank_unknown']} requests could be any of several ranks' and are not joined; give their dp_rank")
    if bonus:
        words.append("commit lengths leave the bonus token out (found by reconciling with the requests); one token a step is added")
    return words
