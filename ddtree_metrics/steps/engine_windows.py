"""What windows of an engine say of its steps (vLLM, and who prints the same numbers): tokens a step always, step times in steady windows.

Meanings, found against every engine step of a real server: the generation throughput divides by the length of one window, also where
windows before it were not printed; the throughput of drafted tokens divides by the time since the last line that told of drafts; a draft is
one request in one step that had draft tokens, and the printed mean acceptance length knows no other steps.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.basis import floats
from ddtree_metrics.steps.frames import Floats, Ints

NEAR = 0.5
"""How far, as a share of the usual interval, a window's own length may be from it; further off it spans windows without drafts."""

UNPRINTED = 1.5
"""A gap of so many usual intervals holds a window that was not printed, for nothing ran in it."""

MIXED_DRAFTERS = ("ngram", "suffix")
"""Drafters that find no draft in some steps: there the printed mean is no tokens per step."""


def drafts_of(accepted: float, drafted: float, mean: float, positions: tuple[float, ...] | None) -> float:
    """Return in how many steps of requests something was drafted.

    Parameters
    ----------
    accepted, drafted : float
        Tokens of the window.
    mean : float
        1 + accepted / drafts, with two decimals.
    positions : tuple of float or None
        accepted at each position / drafts, with three decimals.

    Returns
    -------
    float
        The only whole number that fits all that is printed; NaN where none does, or several do, or nothing was accepted.
    """
    if not (accepted > 0 and mean > 1 and drafted >= accepted):
        return float("nan")
    low, high = accepted / (mean + 0.0051 - 1), accepted / max(mean - 0.0051 - 1, 1e-9)
    numbers = np.arange(max(int(np.floor(low)), 1), min(int(np.ceil(high)), int(drafted)) + 1, dtype=np.float64)
    numbers = numbers[np.abs(1 + accepted / numbers - mean) <= 0.0051]
    if positions:
        rates = np.asarray(positions)
        counts = np.round(rates * numbers[:, None])
        fits = (np.abs(counts / numbers[:, None] - rates) <= 0.00051).all(axis=1) & (counts.sum(axis=1) == accepted)
        numbers = numbers[fits]
    return float(numbers[0]) if len(numbers) == 1 else float("nan")


def engine_windows(decode: pd.DataFrame, servers: pd.DataFrame | None = None) -> pd.DataFrame:
    """Work out for each window what it says of steps.

    Parameters
    ----------
    decode : DataFrame
        Rows with ``prompt_throughput``, in the order of their lines.
    servers : DataFrame, optional
        Server starts: they tell which drafter there is.

    Returns
    -------
    DataFrame
        The same index: ``window_ms``, ``generated`` (tokens), ``drafts``, ``request_steps``, ``tokens_per_step``, ``steps``,
        ``step_time_ms``, ``step_why`` (``first``, ``window_length``, ``not_steady``, ``idle``). What cannot be told is NaN.
    """
    n = len(decode)
    made = pd.DataFrame(index=decode.index)
    speed, running, queued = (floats(decode, name) for name in ("gen_throughput", "running", "queued"))
    accepted, drafted = floats(decode, "accepted"), floats(decode, "drafted")
    told = np.isfinite(drafted)
    gap, before = _gaps(decode)
    usual = _usual(decode, gap)
    own = drafted / np.where(floats(decode, "drafted_throughput") > 0, floats(decode, "drafted_throughput"), np.nan)
    near = np.abs(own / usual - 1) <= NEAR
    window = np.where(near, own, np.where(before >= 0, usual, np.nan))
    generated = np.round(speed * window)
    positions = decode["position_accept_rates"] if "position_accept_rates" in decode else pd.Series(None, index=decode.index, dtype=object)
    drafts = np.full(n, np.nan)
    means = floats(decode, "mean_accept_len")
    for i in np.flatnonzero(told & (accepted > 0)):
        rates = positions.iloc[i]
        drafts[i] = drafts_of(accepted[i], drafted[i], means[i], None if rates is None or rates is pd.NA else tuple(map(float, rates)))
    always = _drafts_always(decode, servers)
    sums = _since_start(decode)
    emitted, checked = _rise(sums[0], before), _rise(sums[1], before)
    summed = np.isfinite(sums[0])
    taken = np.where(told, accepted, 0.0)
    counted = generated - taken
    by_sums = np.where(checked > 0, checked / sums[2], np.nan)
    request_steps = np.where(told & always & np.isfinite(drafts), drafts, np.where(counted > 0, counted, np.nan))
    request_steps = np.where(summed, by_sums, request_steps)
    made["window_ms"], made["generated"], made["drafts"], made["request_steps"] = window * 1e3, generated, drafts, request_steps
    busy = generated > 0
    tokens = np.where(
        told & always & (means >= 1), means, np.where(busy & (counted > 0), generated / np.where(counted > 0, counted, 1.0), np.nan)
    )
    tokens = np.where(summed, emitted / by_sums, tokens)
    made["tokens_per_step"] = np.where(busy | (np.isnan(generated) & told), tokens, np.nan)
    same = (before >= 0) & (running == running[before]) & (queued == queued[before])
    steady = same & (running > 0) & (floats(decode, "prompt_throughput") == 0) & (gap < UNPRINTED * usual) & busy
    made["steps"] = np.where(steady, request_steps / np.where(running > 0, running, np.nan), np.nan)
    made["step_time_ms"] = made["window_ms"] / made["steps"]
    why = np.where(before < 0, "first", np.where(np.isnan(window), "window_length", np.where(~busy, "idle", "not_steady"))).astype(object)
    why[np.isfinite(made["step_time_ms"].to_numpy())] = None
    made["step_why"] = why
    return made


EMITTED, DRAFTED, SPECULATIVE = "Number of emitted tokens", "Number of draft tokens", "Number of speculative tokens"
"""What the oldest engine counts since its start; what a window did is the difference to the window before."""


def _since_start(decode: pd.DataFrame) -> tuple[Floats, Floats, Floats]:
    """Return the tokens emitted and drafted since the start, and the drafts of a step; NaN where a row does not tell them."""
    made = np.full((3, len(decode)), np.nan)
    if cols.has(decode, "extra"):
        for i, extra in enumerate(decode["extra"]):
            told = dict(extra) if isinstance(extra, list | tuple | dict) else {}
            if EMITTED in told:
                made[:, i] = [float(told.get(name, "nan")) for name in (EMITTED, DRAFTED, SPECULATIVE)]
    return made[0], made[1], made[2]


def _rise(total: Floats, before: Ints) -> Floats:
    """Return by how much a count has risen since the window before; NaN where it fell, for then the server was started again."""
    rise = np.where(before >= 0, total - total[before], np.nan)
    return np.where(rise >= 0, rise, np.nan)


def _gaps(decode: pd.DataFrame) -> tuple[Floats, Ints]:
    """Return the time since the window before of the same stream in seconds, and its place; NaN and -1 for the first."""
    at = cols.time_us(decode)
    codes = pd.factorize(pd.Series(cols.text(decode, "stream")), use_na_sentinel=False)[0]
    order = np.argsort(codes, kind="stable")
    gap, before = np.full(len(decode), np.nan), np.full(len(decode), -1, dtype=np.int64)
    same = np.diff(codes[order]) == 0
    before[order[1:][same]] = order[:-1][same]
    later = np.flatnonzero(before >= 0)
    gap[later] = (at[later] - at[before[later]]) / 1e6
    return gap, before


def _usual(decode: pd.DataFrame, gap: Floats) -> Floats:
    """Return the usual interval of each row's stream: the median of its gaps."""
    made = (
        pd.Series(np.where(gap > 0, gap, np.nan)).groupby(pd.Series(cols.text(decode, "stream")).fillna("").to_numpy()).transform("median")
    )
    return np.asarray(made.to_numpy(dtype=np.float64))


def _drafts_always(decode: pd.DataFrame, servers: pd.DataFrame | None) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which rows are of a server whose drafter has a draft for every step, by the last start before it of the same process."""
    always = np.zeros(len(decode), dtype=bool)
    if servers is None or not len(servers) or not cols.has(servers, "algorithm"):
        return always
    at, starts = cols.time_us(decode), cols.time_us(servers)
    methods = cols.text(servers, "algorithm")
    units, of = cols.text(decode, "unit"), cols.text(servers, "unit")
    for i in np.argsort(starts, kind="stable"):
        mine = (at >= starts[i]) & (units == of[i])
        always[mine] = methods[i] is not None and not str(methods[i]).startswith(MIXED_DRAFTERS)
    return always
