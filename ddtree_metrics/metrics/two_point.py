"""Decode speed from two requests of one prompt that differ in how much they generate: the prefill cancels.

The rate is the difference in tokens *really produced* over the difference in time. It is refused where the prefills differ (a
warm cache on one side), or where one side cannot be timed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from ddtree_metrics.layout import plural
from ddtree_metrics.metrics.confidence import number
from ddtree_metrics.steps import frames as cols

CACHE_SLACK = 64
"""Cached prompt tokens of two runs may differ by so many (a page or two) without telling in the time."""


@dataclass(frozen=True)
class Run:
    """One request, as its client saw it. Times are seconds after it was sent.

    Attributes
    ----------
    completion_tokens : float or None
        Tokens produced, as the server counted them; never the number of chunks.
    total_s : float or None
        When the answer was complete.
    max_tokens : float or None
        What was asked for.
    prompt_tokens, cached_tokens : float or None
        Length of the prompt, and how much of it came from the prefix cache.
    first_token_s : float or None
        When the first token of any kind came, reasoning included.
    first_content_s : float or None
        When the first token that is no reasoning came.
    last_token_s : float or None
        When the last token came; ``total_s`` stands in for it.
    reasoning_tokens : float or None
        How many of the tokens were reasoning.
    """

    completion_tokens: float | None = None
    total_s: float | None = None
    max_tokens: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    first_token_s: float | None = None
    first_content_s: float | None = None
    last_token_s: float | None = None
    reasoning_tokens: float | None = None


RunLike = Any  # Run, a mapping with its keys, or a Series


def _run(run: RunLike) -> dict[str, float]:
    """Read a run of any form as floats, NaN for what is not known."""
    made = {f.name: number(getattr(run, f.name, None) if isinstance(run, Run) else run.get(f.name)) for f in fields(Run)}
    return {k: v if np.isfinite(v) else float("nan") for k, v in made.items()}


@dataclass(frozen=True)
class RunRate:
    """Decode speed of one request.

    Attributes
    ----------
    tok_per_s : float
        ``(completion - 1) / (last - first)``; NaN where ``status`` is not ``ok``.
    ttft_s, window_s, tokens : float
        Time to the first token of any kind, the time from there to the last, and the tokens made in it.
    status : str
        ``ok``, ``ttft_after_reasoning``, ``too_few_tokens``, ``no_time`` or ``missing``.
    reason : str or None
        Why there is no rate, in words.
    """

    tok_per_s: float
    ttft_s: float
    window_s: float
    tokens: float
    status: str
    reason: str | None = None


def run_rate(run: RunLike) -> RunRate:
    """Compute the decode speed of one request from its first token of any kind to its last.

    Parameters
    ----------
    run : Run, mapping or Series
        What the client saw.

    Returns
    -------
    RunRate

    Examples
    --------
    >>> round(run_rate(Run(300, first_token_s=20.0, first_content_s=26.0, last_token_s=27.5, reasoning_tokens=240)).tok_per_s, 2)
    39.87
    """
    r = _run(run)
    nothing = float("nan")
    first, last = r["first_token_s"], r["last_token_s"]
    if np.isnan(last):
        last = r["total_s"]
    if np.isnan(first):
        if np.isnan(r["first_content_s"]):
            return RunRate(nothing, nothing, nothing, nothing, "missing", "the time of the first token is not known")
        if r["reasoning_tokens"] > 0:
            reason = "only the first token after the reasoning was timed: the window would miss the reasoning tokens"
            return RunRate(nothing, nothing, nothing, nothing, "ttft_after_reasoning", reason)
        first = r["first_content_s"]
    tokens = r["completion_tokens"] - 1
    window = last - first
    if np.isnan(tokens) or np.isnan(window):
        missing = "completion tokens are" if np.isnan(tokens) else "the time of the last token is"
        return RunRate(nothing, first, window, tokens, "missing", f"{missing} not known")
    if tokens < 1:
        return RunRate(nothing, first, window, tokens, "too_few_tokens", "fewer than two tokens were produced")
    if window <= 0:
        return RunRate(nothing, first, window, tokens, "no_time", "the last token came no later than the first")
    return RunRate(tokens / window, first, window, tokens, "ok")


@dataclass(frozen=True)
class TwoPointRate:
    """Decode speed from two requests.

    Attributes
    ----------
    tok_per_s : float
        Tokens a second, NaN where ``status`` is not ``ok``.
    tokens, seconds : float
        The differences it was made of.
    status : str
        ``ok``, ``no_token_difference``, ``no_time_difference``, ``prefill_differs``, ``prompt_differs`` or ``missing``.
    reason : str or None
        Why there is no rate, in words.
    notes : tuple of str
        What should be known beside the rate, such as a run that stopped early.
    fallback_tok_per_s : float
        The speed of the longer run alone, from its first token on; another measure, so under its own name. NaN where not known.
    fallback_from : str or None
        What the fallback is, in words.
    """

    tok_per_s: float
    tokens: float
    seconds: float
    status: str
    reason: str | None = None
    notes: tuple[str, ...] = ()
    fallback_tok_per_s: float = float("nan")
    fallback_from: str | None = None


def two_point_rate(a: RunLike, b: RunLike) -> TwoPointRate:
    """Compute tokens a second from two requests of one prompt, the second with more tokens.

    Parameters
    ----------
    a, b : Run, mapping or Series
        The shorter and the longer run.

    Returns
    -------
    TwoPointRate
        Refused, with a reason, where the runs differ in more than what they generated.

    Examples
    --------
    >>> made = two_point_rate(Run(8, 1.46, max_tokens=8), Run(200, 4.33, max_tokens=264))
    >>> round(made.tok_per_s, 2), made.notes
    (66.9, ('B stopped early: 200 of 264',))
    """
    left, right = _run(a), _run(b)
    notes = tuple(
        f"{name} stopped early: {r['completion_tokens']:.0f} of {r['max_tokens']:.0f}"
        for name, r in (("A", left), ("B", right))
        if r["completion_tokens"] < r["max_tokens"]
    )
    tokens = right["completion_tokens"] - left["completion_tokens"]
    seconds = _end(right) - _end(left)

    def refused(status: str, reason: str) -> TwoPointRate:
        longer, name = (right, "B") if not tokens < 0 else (left, "A")
        alone = run_rate(longer)
        if alone.status == "ok":
            words = f"{name} alone, from its first token: {alone.tokens:.0f} tokens in {alone.window_s:.2f} s"
            return TwoPointRate(float("nan"), tokens, seconds, status, reason, notes, alone.tok_per_s, words)
        return TwoPointRate(float("nan"), tokens, seconds, status, reason, notes)

    if np.isnan(tokens):
        return refused("missing", "completion tokens of both runs are needed; what was asked for is not what was produced")
    if np.isnan(seconds):
        return refused("missing", "the time of both runs is needed")
    if left["prompt_tokens"] != right["prompt_tokens"] and np.isfinite(left["prompt_tokens"] + right["prompt_tokens"]):
        return refused("prompt_differs", f"prompts of {left['prompt_tokens']:.0f} and {right['prompt_tokens']:.0f} tokens")
    cached = abs(right["cached_tokens"] - left["cached_tokens"])
    if cached > CACHE_SLACK:
        return refused("prefill_differs", f"cached {left['cached_tokens']:.0f} against {right['cached_tokens']:.0f} tokens of the prompt")
    if tokens == 0:
        return refused("no_token_difference", "no token difference: both runs produced the same number of tokens")
    if tokens < 0:
        return refused("no_token_difference", "no token difference of use: B produced fewer tokens than A")
    if seconds <= 0:
        return refused("no_time_difference", "B produced more tokens in no more time: a warm cache on one side, or another load")
    return TwoPointRate(tokens / seconds, tokens, seconds, "ok", None, notes)


def _end(run: dict[str, float]) -> float:
    """When a run was complete."""
    return run["total_s"] if np.isfinite(run["total_s"]) else run["last_token_s"]


def implied_tokens(rate: Any, t_a: Any, t_b: Any) -> float:
    """Return the difference in tokens that a printed two-point rate was computed with: ``rate * (t_b - t_a)``.

    NaN where a number is missing.
    """
    return number(rate) * (number(t_b) - number(t_a))


@dataclass(frozen=True)
class SweepCheck:
    """A printed sweep of two-point rates, checked against its own numbers.

    Attributes
    ----------
    frame : pandas.DataFrame
        The rows with ``implied_tokens``, ``implied_low``, ``implied_high`` (what rounding leaves open), ``prefill_ms_per_token``
        (rise of the shorter run's time over the row before, by prompt tokens) and ``note``.
    tokens : int or None
        The whole token difference that the rows allow, the likeliest where rounding allows several; None if there is none.
    notes : tuple of str
        What does not fit.
    sentence : str
        The result in words.
    reason : str or None
        Why there is no result.
    """

    frame: pd.DataFrame
    tokens: int | None
    notes: tuple[str, ...]
    sentence: str
    reason: str | None = None


def check_sweep(sweep: pd.DataFrame, *, claimed: int | None = None, digits: tuple[int, int] = (1, 2)) -> SweepCheck:
    """Check a sweep of two-point rates against its own numbers.

    Rate times difference in time is the token difference that was really used; each printed number leaves it open by its
    rounding, and all rows must allow one whole number. And a prefill takes longer for more tokens: where the shorter run's time
    hardly rises with the prompt, a prefix cache has helped.

    Parameters
    ----------
    sweep : pandas.DataFrame
        ``prompt_tokens``, ``tok_per_s``, ``t_a``, ``t_b`` (seconds), in order of prompt length.
    claimed : int, optional
        The token difference that is claimed for the sweep.
    digits : tuple of int
        Decimals with which rates and times were printed.

    Returns
    -------
    SweepCheck
    """
    rate, prompt = cols.numeric(sweep, "tok_per_s"), cols.numeric(sweep, "prompt_tokens")
    t_a, t_b = cols.numeric(sweep, "t_a"), cols.numeric(sweep, "t_b")
    half_rate, half_time = 0.5 * 10.0 ** -digits[0], 10.0 ** -digits[1]
    taken = t_b - t_a
    low, high = (rate - half_rate) * (taken - half_time), (rate + half_rate) * (taken + half_time)
    made = sweep.copy()
    made["implied_tokens"], made["implied_low"], made["implied_high"] = rate * taken, low, high
    with np.errstate(invalid="ignore", divide="ignore"):
        rise = cols.finite(np.concatenate([[np.nan], 1000.0 * np.diff(t_a) / np.diff(prompt)])[: len(sweep)])
    made["prefill_ms_per_token"] = rise
    notes: list[str] = []
    words: list[Any] = [None] * len(sweep)
    for row in range(1, len(sweep)):
        before = rise[1:row][np.isfinite(rise[1:row])]
        if len(before) and np.isfinite(rise[row]) and before.max() > 0 and rise[row] < 0.5 * float(np.median(before)):
            more, took = np.diff(prompt[row - 2 : row + 1]), np.diff(t_a[row - 2 : row + 1])
            words[row] = (
                f"{more[1]:,.0f} more prompt tokens took {took[1]:.2f} s, against {took[0]:.2f} s for the {more[0]:,.0f} before: "
                "a prefix cache may have helped"
            )
            notes.append(words[row])
    made["note"] = pd.Series(words, index=sweep.index, dtype=object)
    usable = np.isfinite(low) & np.isfinite(high) & (rate > 0) & (taken > 0)
    if not usable.any():
        reason = "no row has a rate and two times of which the second is later"
        return SweepCheck(made, None, tuple(notes), f"The sweep cannot be checked: {reason}.", reason)
    floor, ceiling = int(np.ceil(low[usable].max() - 1e-9)), int(np.floor(high[usable].min() + 1e-9))
    span = f"{(rate * taken)[usable].min():.1f} to {(rate * taken)[usable].max():.1f}"
    if floor > ceiling:
        reason = f"the rows do not agree on a token difference: rate times time gives {span}"
        return SweepCheck(made, None, tuple(notes), f"The sweep contradicts itself: {reason}.", reason)
    weight = 1.0 / np.square(high - low)[usable]
    tokens = int(np.clip(np.round(np.average((rate * taken)[usable], weights=weight)), floor, ceiling))
    sentence = f"Rate times time gives {span} tokens on {plural(int(usable.sum()), 'row')}: a difference of {tokens}"
    if floor < ceiling:
        sentence += f" (rounding allows {floor} to {ceiling})"
    if claimed is not None and not floor <= claimed <= ceiling:
        sentence += f", not {claimed}"
    return SweepCheck(made, tokens, tuple(notes), sentence + ".")
