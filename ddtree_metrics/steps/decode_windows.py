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
from ddtree_metrics.steps.frames import Bools, Floats
from ddtree_metrics.steps.step_time import Intervals, _between, step_times

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

    @classmethod
    def of(cls, decode: pd.DataFrame) -> _Parts:
        running, accept = cols.numeric(decode, "running"), cols.numeric(decode, "accept_len")
        throughput = cols.numeric(decode, "gen_throughput")
        if not np.isfinite(accept).any():
            accept = np.ones(len(decode))  # no speculation: one token a request and step
        frame = Intervals.of(decode)
        seen = cols.numeric(decode, "line_us") if cols.has(decode, "line_us") else frame.elapsed_us
        with np.errstate(invalid="ignore", divide="ignore"):
            raw = np.where((throughput > 0) & np.isfinite(throughput), 1000.0 * running * accept / throughput, np.nan)
        raw = np.where(running * accept > 0, raw, np.nan)
        return cls(running, accept, throughput, cols.numeric(decode, "tokens"), raw, running * accept, frame, seen)

    def window_steps(self) -> Floats:
        """Return the steps of each window by the growth of ``#token``; NaN where the two lines cannot be compared."""
        back = np.maximum(self.frame.previous, 0)
        comparable = (self.frame.previous >= 0) & (self.per_step > 0)
        if len(self.running):
            comparable &= self.running == self.running[back]
        grown = self.tokens - (self.tokens[back] if len(self.tokens) else self.tokens)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(comparable, grown / self.per_step, np.nan)


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
    parts = _Parts.of(decode)
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


def decode_step_times(
    decode: pd.DataFrame, *, prefill: pd.DataFrame | None = None, events: pd.DataFrame | None = None, interval: int | None = None
) -> pd.DataFrame:
    """Add the mean step time of each Decode line's window, or why it has none.

    Parameters
    ----------
    decode : pandas.DataFrame
        Decode lines in the order in which they were logged.
    prefill, events : pandas.DataFrame, optional
        What may lie within a window and spoil it.
    interval : int, optional
        ``--decode-log-interval``, where it is known; inferred otherwise.

    Returns
    -------
    pandas.DataFrame
        A copy with ``step_time_raw_ms`` (the formula, whatever it is worth), ``step_time_ms`` (null where the window is spoiled),
        ``step_time_from``, ``step_time_why`` (after_idle, prefill_between, requests_changed, retraction, window_mismatch,
        throughput_zero, throughput_not_finite, no_running, no_accept_len, first, unchecked, duplicate_rank), ``window_steps`` (by
        ``#token``), ``window_implied_ms``, ``window_seen_ms``, ``log_interval``. ``attrs`` has ``log_interval``,
        ``log_interval_from``, ``reason`` and ``counts`` by reason.
    """
    parts = _Parts.of(decode)
    found = log_interval(decode, interval=interval)
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
    between = _between(decode, parts.frame.stamps, parts.frame.previous_stamps, events, prefill)
    mark((line_why == "prefill_between") | between.get("prefill_between", np.zeros(len(decode), dtype=bool)), "prefill_between")
    mark((line_why == "retraction") | between.get("retraction", np.zeros(len(decode), dtype=bool)), "retraction")
    mark(np.isin(line_why.astype(str), ("boot", "restart")), "first")
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
    made["step_time_why"] = pd.Series(why, index=decode.index, dtype=object)
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


def _stands_out(parts: _Parts, why: NDArray[Any], factor: float) -> tuple[Bools, Bools]:
    """Tell which windows are far longer a step than the three before and the three after; and which could be compared at all."""
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
        before[np.isnan(before).all(axis=1)] = -np.inf
        after[np.isnan(after).all(axis=1)] = -np.inf
        level = np.maximum(np.nanmedian(before, axis=1), np.nanmedian(after, axis=1))
        idle[rows] = values > factor * level
    return idle, compared


def steps_from_decode(decode: pd.DataFrame, *, interval: int | None = None) -> pd.DataFrame:
    """Make the step table out of Decode lines: exact, one step a line, with ``--decode-log-interval 1``.

    Works for every speculative algorithm of an unpatched server, for all print this line. With a longer interval each row stands
    for a window of steps and has the window's mean step time in ``step_ms``.

    Parameters
    ----------
    decode : pandas.DataFrame
        Decode lines in the order in which they were logged.
    interval : int, optional
        ``--decode-log-interval``, where it is known.

    Returns
    -------
    pandas.DataFrame
        Every column of the step table. ``tokens`` is ``accept_len * running`` rounded to a whole number, exact while two decimals of
        ``accept_len`` times the batch stay below one half (99 requests). ``accept_len`` counts the bonus token in every release, so
        ``avg_accepted_drafts`` is one less. ``attrs["log_interval"]`` and ``attrs["reason"]`` say what a line stands for.
    """
    found = log_interval(decode, interval=interval)
    parts = _Parts.of(decode)
    made = pd.DataFrame(index=decode.index)
    for field in fields(TreeStep):
        made[field.name] = decode[field.name] if field.name in decode.columns and field.name not in ("tokens", "extra") else None
    made["time_us"] = pd.array(np.where(np.isnan(parts.frame.stamps), 0, parts.frame.stamps).astype(np.int64), dtype="Int64")
    made.loc[np.isnan(parts.frame.stamps), "time_us"] = pd.NA
    accepts = cols.numeric(decode, "accept_len")
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
        if cols.has(decode, "line_us") or cols.has(decode, "line_why"):
            made["step_us"] = decode["line_us"] if "line_us" in decode.columns else None
            made["step_why"] = decode["line_why"] if "line_why" in decode.columns else None
            made.loc[made["step_why"].notna(), "step_us"] = None
        else:
            timed = step_times(made.drop(columns=["step_us", "step_why", "step_ms"]))
            made["step_us"] = _whole(np.round(timed["step_time_ms"].to_numpy(dtype=float) * 1000.0))
            made["step_why"] = timed["step_time_why"]
    else:
        windows = decode_step_times(decode, interval=interval)
        made["step_us"] = pd.array([None] * len(decode), dtype="Int64")
        made["step_why"] = "window"
        made["step_ms"] = windows["step_time_ms"].to_numpy(dtype=float)
    streams = parts.frame.streams
    running = pd.Series(np.nan_to_num(total), index=decode.index).groupby(streams).cumsum()
    made["tokens_cum"] = _whole(running.to_numpy(dtype=float))
    made.attrs = {"log_interval": steps, "reason": _why_not_one(found)}
    return made


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
