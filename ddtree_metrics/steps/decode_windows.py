"""Step times from the stock ``Decode batch`` lines, each line checked against itself and its neighbours.

With R requests running, A tokens committed a request and step, and G tokens a second, a window of the log has a mean step time of
``1000 * R * A / G`` ms. That holds only if R was constant and nothing else ran. Two identities check it: the window's length
``K * R * A / G`` against the time since the previous line, and the growth of ``#token`` against ``K * R * A``, where K is
``--decode-log-interval``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddtree_metrics.records import TreeStep
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.between import Between
from ddtree_metrics.steps.frames import Bools, Floats, Ints
from ddtree_metrics.steps.given import takes
from ddtree_metrics.steps.intervals import REASONS, gaps_among
from ddtree_metrics.steps.line_intervals import Intervals, judged
from ddtree_metrics.steps.speculation import speculative

IDLE_FACTOR = 3.0
"""A window's step time this many times that of the windows before and after it holds idle time."""

SURE = 0.6
"""So large a share of the lines must show the interval in ``#token`` for it to go before the times, which rest on the throughput."""

IDLE_FACTOR_SINGLE = 10.0
"""The same where a line is a single step, whose time really varies."""


@dataclass(frozen=True)
class LogInterval:
    """How many steps lie between two Decode lines.

    Attributes
    ----------
    value : int or None
        The interval, None where the lines do not tell.
    source : str or None
        ``given``, ``times`` (time between lines over the step time that the line implies) or ``tokens`` (growth of ``#token``).
    agree, checked : int
        Lines that show this value, of those that could be checked.
    reason : str or None
        Why there is no value.
    """

    value: int | None
    source: str | None
    agree: int
    checked: int
    reason: str | None = None


@dataclass(frozen=True)
class _Parts:
    """The numbers of Decode lines that the formulas need."""

    running: Floats
    accept: Floats
    throughput: Floats
    tokens: Floats
    raw_ms: Floats
    per_step: Floats
    frame: Intervals
    seen_us: Floats
    speculative: Floats

    @classmethod
    def of(cls, decode: pd.DataFrame, servers: pd.DataFrame | None = None) -> _Parts:
        running, accept = cols.numeric(decode, "running"), cols.numeric(decode, "accept_len")
        throughput = cols.numeric(decode, "gen_throughput")
        spoken = speculative(decode, servers)
        accept = np.where(spoken == 0.0, 1.0, accept)  # no speculation: one token a request and step
        frame = Intervals.of(decode)
        seen = cols.numeric(decode, "line_us") if cols.has(decode, "line_us") else frame.elapsed_us
        with np.errstate(invalid="ignore", divide="ignore"):
            raw = np.where((throughput > 0) & np.isfinite(throughput), 1000.0 * running * accept / throughput, np.nan)
        raw = np.where(running * accept > 0, raw, np.nan)
        return cls(running, accept, throughput, cols.numeric(decode, "tokens"), raw, running * accept, frame, seen, spoken)

    @property
    def changed(self) -> Bools:
        """Rows before which speculation was turned on or off: another server, whose window says nothing of the one before."""
        return speculation_changes(self.speculative, self.frame.previous)

    def window_steps(self) -> Floats:
        """Return the steps of each window by the growth of ``#token``; NaN where the two lines cannot be compared."""
        back = np.maximum(self.frame.previous, 0)
        comparable = (self.frame.previous >= 0) & (self.per_step > 0)
        if len(self.running):
            comparable &= (self.running == self.running[back]) & ~self.changed
        grown = self.tokens - (self.tokens[back] if len(self.tokens) else self.tokens)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(comparable, grown / self.per_step, np.nan)


def speculation_changes(spoken: Floats, previous: Ints) -> Bools:
    """Tell before which rows a stream of Decode lines changes from speculation to none, or back: a server start that no line tells of."""
    made = np.zeros(len(spoken), dtype=bool)
    newest = spoken.copy()
    for row in np.flatnonzero(np.isnan(spoken) & (previous >= 0)):  # what cannot be told is as it was
        newest[row] = newest[previous[row]]
    back = np.maximum(previous, 0)
    rows = (previous >= 0) & np.isfinite(newest)
    if len(spoken):
        made[rows] = np.isfinite(newest[back][rows]) & (newest[rows] != newest[back][rows])
    return made


def log_interval(decode: pd.DataFrame, *, interval: int | None = None) -> LogInterval:
    """Infer how many steps lie between two Decode lines.

    Parameters
    ----------
    decode : pandas.DataFrame
        Decode lines in the order in which they were logged.
    interval : int, optional
        The interval, where it is known (``--decode-log-interval``); then it is only returned.

    Returns
    -------
    LogInterval
    """
    if interval is not None:
        return LogInterval(int(interval), "given", 0, 0)
    return _log_interval(_Parts.of(decode))


def _log_interval(parts: _Parts) -> LogInterval:
    fine = parts.frame.by_monotonic | (parts.frame.resolution_us <= 10_000)
    with np.errstate(invalid="ignore", divide="ignore"):
        by_time = np.where(fine & (parts.seen_us > 0), parts.seen_us / 1000.0 / parts.raw_ms, np.nan)
    times, tokens = _most_common(by_time, "times"), _most_common(parts.window_steps(), "tokens")
    if tokens.value is not None and (times.value is None or tokens.agree >= SURE * tokens.checked):
        return tokens
    return times if times.value is not None or times.checked > tokens.checked else tokens


def _most_common(values: Floats, source: str) -> LogInterval:
    """Find the whole number that most of the values are close to."""
    values = values[np.isfinite(values) & (values > 0.5)]
    if len(values) < 2:
        return LogInterval(None, None, 0, len(values), "fewer than two pairs of lines could be compared")
    candidates, counts = np.unique(np.round(values), return_counts=True)
    near = np.array([int((np.abs(values - c) <= np.maximum(0.3, 0.05 * c)).sum()) for c in candidates])
    order = np.lexsort((counts, near))
    value, agree = int(candidates[order[-1]]), int(near[order[-1]])
    if agree < 2 or agree < 0.4 * len(values):
        return LogInterval(None, None, agree, len(values), f"the lines do not agree: {agree} of {len(values)} show {value} steps")
    close = values[np.abs(values - value) <= np.maximum(0.3, 0.05 * value)]
    return LogInterval(round(float(np.median(close))), source, agree, len(values))


@takes("decode")
def decode_step_times(
    decode: pd.DataFrame,
    *,
    prefill: pd.DataFrame | None = None,
    events: pd.DataFrame | None = None,
    servers: pd.DataFrame | None = None,
    interval: int | None = None,
) -> pd.DataFrame:
    """Add the mean step time of each Decode line's window, or why it has none.

    Parameters
    ----------
    decode : pandas.DataFrame
        Decode lines in the order in which they were logged.
    prefill, events : pandas.DataFrame, optional
        What may lie within a window and spoil it. Decode lines that were read from a log know it themselves (``line_why``), by the order
        in the file.
    servers : pandas.DataFrame, optional
        Server starts; one without a speculative algorithm says that its steps make one token.
    interval : int, optional
        ``--decode-log-interval``, where it is known; inferred otherwise.

    Returns
    -------
    pandas.DataFrame
        A copy with ``step_time_raw_ms`` (the formula, whatever it is worth), ``step_time_ms`` (null where the window is spoiled),
        ``step_time_from``, ``step_why`` (after_idle, prefill_between, requests_changed, retraction, window_mismatch,
        throughput_zero, throughput_not_finite, no_running, no_accept_len, first, unchecked, duplicate_rank), ``window_steps`` (by
        ``#token``), ``window_implied_ms``, ``window_seen_ms``, ``log_interval``, ``speculative`` (1, 0, or null) and ``accept_len``
        (1 where there is no speculation). ``attrs`` has ``log_interval``,
        ``log_interval_from``, ``reason`` and ``counts`` by reason.
    """
    parts = _Parts.of(decode, servers)
    found = LogInterval(int(interval), "given", 0, 0) if interval is not None else _log_interval(parts)
    every = found.value
    window_steps = parts.window_steps()
    why = np.full(len(decode), None, dtype=object)

    def mark(mask: Bools, reason: str) -> None:
        why[mask & (why == None)] = reason  # noqa: E711 - elementwise

    line_why = cols.text(decode, "line_why")
    mark(line_why == "duplicate_rank", "duplicate_rank")
    with np.errstate(invalid="ignore"):
        mark(np.isinf(parts.throughput) | np.isnan(parts.throughput) | (parts.throughput < 0), "throughput_not_finite")
        mark(parts.throughput == 0, "throughput_zero")
        mark(np.isnan(parts.accept), "no_accept_len")
        mark(~(parts.per_step > 0), "no_running")
    reason = _what_lies_between(decode, parts.frame, line_why, prefill, events)
    mark(reason == "prefill_between", "prefill_between")
    mark(reason == "retraction", "retraction")
    mark(np.isin(line_why.astype(str), ("boot", "restart")) | parts.changed, "first")
    factor = IDLE_FACTOR_SINGLE if every == 1 else IDLE_FACTOR
    idle, compared = _stands_out(parts, why, factor)
    mark(idle | (line_why == "gap"), "after_idle")
    if every is None or every > 1:
        back = np.maximum(parts.frame.previous, 0)
        changed = (parts.frame.previous >= 0) & (parts.running != parts.running[back]) if len(decode) else np.zeros(0, dtype=bool)
        mark(changed, "requests_changed")
        if every is not None:
            checked = np.isfinite(window_steps)
            fits = np.abs(window_steps - every) <= np.maximum(2.0, 0.05 * every)
            if checked.any() and fits[checked].mean() >= 0.5:
                mark(checked & ~fits, "window_mismatch")
    mark(~compared & (parts.frame.previous < 0), "unchecked")
    implied = parts.raw_ms * (every if every is not None else np.nan)
    ok = (why == None) & np.isfinite(parts.raw_ms)  # noqa: E711 - elementwise
    made = decode.copy()
    made["step_time_raw_ms"] = parts.raw_ms
    made["step_time_ms"] = np.where(ok, parts.raw_ms, np.nan)
    made["step_time_from"] = pd.Series(["throughput" if o else None for o in ok], index=decode.index, dtype=object)
    made["step_why"] = pd.Series(why, index=decode.index, dtype=object)
    made["accept_len"] = parts.accept
    made["speculative"] = parts.speculative
    made["window_steps"] = window_steps
    made["window_implied_ms"] = implied
    made["window_seen_ms"] = parts.seen_us / 1000.0
    made["log_interval"] = pd.Series([every] * len(decode), index=decode.index, dtype="Int64")
    names, counts = np.unique(why[why != None].astype(str), return_counts=True)  # noqa: E711 - elementwise
    made.attrs = {
        "log_interval": every,
        "log_interval_from": found.source,
        "reason": found.reason,
        "counts": {str(n): int(c) for n, c in zip(names, counts, strict=True)},
    }
    return made


def _what_lies_between(
    decode: pd.DataFrame, frame: Intervals, line_why: NDArray[Any], prefill: pd.DataFrame | None, events: pd.DataFrame | None
) -> NDArray[Any]:
    """Say what lies between each Decode line and the one before it.

    A line that was read from a log says it itself; where it says nothing, or only that its clock is coarse, the other tables tell.
    """
    told = np.isin(line_why.astype(str), ("None", "coarse_clock"))
    if not cols.has(decode, "line_why") or (line_why == "coarse_clock").any():
        unsaid = told if not cols.has(decode, "line_why") else line_why == "coarse_clock"
        masks = Between(decode, frame.stamps, frame.monotonic, frame.previous).masks(prefill=prefill, events=events)
        made = line_why.copy()
        for kind in ("prefill_between", "retraction"):
            if kind in masks:
                made[unsaid & masks[kind]] = kind
        return made
    return line_why


def _stands_out(parts: _Parts, why: NDArray[Any], factor: float) -> tuple[Bools, Bools]:
    """Tell which windows hold idle time, and which could be compared at all.

    Idle time makes one window far longer than the three before it and the three after it. At an end of the log, where there is nothing on
    one side, it has to stand out of its one neighbour too: several long windows in a row are a slow phase, and the log just ends in it.
    """
    idle = np.zeros(len(why), dtype=bool)
    compared = np.zeros(len(why), dtype=bool)
    usable = np.isfinite(parts.raw_ms) & (why == None)  # noqa: E711 - elementwise
    for stream in np.unique(parts.frame.streams[usable]):
        rows = np.flatnonzero((parts.frame.streams == stream) & usable)
        values = parts.raw_ms[rows]
        if len(rows) < 2:
            continue
        compared[rows] = True
        padded = np.concatenate([np.full(3, np.nan), values, np.full(3, np.nan)])
        shifted = np.lib.stride_tricks.sliding_window_view(padded, 3)
        before, after = shifted[: len(rows)].copy(), shifted[4 : 4 + len(rows)].copy()
        before[0], after[-1] = values[1], values[-2]  # the one neighbour
        level = np.maximum(np.nanmedian(before, axis=1), np.nanmedian(after, axis=1))
        idle[rows] = values > factor * level
    return idle, compared


@takes("decode")
def steps_from_decode(
    decode: pd.DataFrame,
    *,
    prefill: pd.DataFrame | None = None,
    events: pd.DataFrame | None = None,
    servers: pd.DataFrame | None = None,
    interval: int | None = None,
) -> pd.DataFrame:
    """Make the step table out of Decode lines: exact, one step a line, with ``--decode-log-interval 1``.

    Works for every speculative algorithm of an unpatched server, for all print this line. With a longer interval each row stands
    for a window of steps and has the window's mean step time in ``step_ms``.

    Parameters
    ----------
    decode : pandas.DataFrame
        Decode lines in the order in which they were logged.
    prefill, events, servers : pandas.DataFrame, optional
        As for ``decode_step_times``.
    interval : int, optional
        ``--decode-log-interval``, where it is known.

    Returns
    -------
    pandas.DataFrame
        Every column of the step table. ``tokens`` is ``accept_len * running`` rounded to a whole number, exact while two decimals of
        ``accept_len`` times the batch stay below one half (99 requests). ``accept_len`` counts the bonus token in every release, so
        ``avg_accepted_drafts`` is one less. ``attrs["log_interval"]`` and ``attrs["reason"]`` say what a line stands for.
    """
    parts = _Parts.of(decode, servers)
    found = LogInterval(int(interval), "given", 0, 0) if interval is not None else _log_interval(parts)
    made = pd.DataFrame(index=decode.index)
    for field in fields(TreeStep):
        made[field.name] = decode[field.name] if field.name in decode.columns and field.name not in ("tokens", "extra") else None
    made["time_us"] = pd.array(np.where(np.isnan(parts.frame.stamps), 0, parts.frame.stamps).astype(np.int64), dtype="Int64")
    made.loc[np.isnan(parts.frame.stamps), "time_us"] = pd.NA
    accepts = parts.accept
    steps = found.value
    made["batch_size"] = _whole(parts.running)
    made["avg_commit_len"] = parts.accept
    made["avg_accepted_drafts"] = accepts - 1.0
    made["steps"] = pd.array([steps] * len(decode), dtype="Int64")
    total = np.round(parts.per_step * (steps if steps is not None else np.nan))
    made["tokens"] = _whole(total)
    alone = (parts.running == 1) & np.isfinite(total) & (steps == 1)
    made["commit_lens"] = pd.Series([[int(t)] if a else None for t, a in zip(total, alone, strict=True)], index=decode.index, dtype=object)
    drafts = np.where(np.isfinite(accepts), total - 1, np.nan)
    lists = [[int(d)] if a and np.isfinite(d) else None for d, a in zip(drafts, alone, strict=True)]
    made["accepted_drafts"] = pd.Series(lists, index=decode.index, dtype=object)
    if steps == 1:
        elapsed, why = _single_steps(decode, parts, prefill, events)
        made["step_us"] = _whole(np.where(why == None, elapsed, np.nan))  # noqa: E711 - elementwise
        made["step_why"] = pd.Series(why, index=decode.index, dtype=object)
    else:
        windows = decode_step_times(decode, prefill=prefill, events=events, servers=servers, interval=interval)
        made["step_us"] = pd.array([None] * len(decode), dtype="Int64")
        made["step_why"] = "window"
        made["step_ms"] = windows["step_time_ms"].to_numpy(dtype=float)
    streams = parts.frame.streams
    running = pd.Series(np.nan_to_num(total), index=decode.index).groupby(streams).cumsum()
    made["tokens_cum"] = _whole(running.to_numpy(dtype=float))
    made.attrs = {"log_interval": steps, "reason": _why_not_one(found)}
    return made


def _single_steps(
    decode: pd.DataFrame, parts: _Parts, prefill: pd.DataFrame | None, events: pd.DataFrame | None
) -> tuple[Floats, NDArray[Any]]:
    """Return the time since the line before, and why it is no step time: by the rule of step lines."""
    if not (cols.has(decode, "line_us") or cols.has(decode, "line_why")):
        reason = judged(decode.drop(columns=["steps"], errors="ignore"), parts.frame, prefill=prefill, events=events)
        return parts.frame.elapsed_us, np.array([None, *REASONS[1:]], dtype=object)[reason]
    elapsed = cols.numeric(decode, "line_us")
    why = cols.text(decode, "line_why")
    why[np.isnan(elapsed) & (why == None)] = "no_time"  # noqa: E711 - elementwise
    sound = why == None  # noqa: E711 - elementwise
    for stream in np.unique(parts.frame.streams):
        rows = np.flatnonzero(parts.frame.streams == stream)
        gaps, _ = gaps_among(np.nan_to_num(elapsed[rows]).astype(np.int64), np.asarray(sound[rows], dtype=bool))
        why[rows[gaps]] = "gap"
    return elapsed, why


def _whole(values: Floats) -> Any:
    """Make nullable integers of floats."""
    known = np.isfinite(values)
    return pd.arrays.IntegerArray(np.where(known, values, 0).astype(np.int64), ~known)


def _why_not_one(found: LogInterval) -> str | None:
    """Say why the rows are windows and no steps, if they are."""
    if found.value == 1:
        return None
    if found.value is None:
        return f"how many steps a line stands for is not known: {found.reason}"
    return f"a line stands for {found.value} steps; run the server with --decode-log-interval 1 to get one line a step"
