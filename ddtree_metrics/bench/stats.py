"""From the answers of a context length to its speed, with an interval, or to the reason why there is none.

A *round* is one prompt asked for with two or more lengths. Its value is the time a token: the least-squares slope of time over
tokens really produced, which for two requests is (t_b - t_a) / (n_b - n_a). The result of a point is the **median of the rounds'
values**, turned into tokens a second at the very end: speeds are never averaged, since one small difference would dominate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Literal

from msgspec import Meta

from ddtree_metrics.bench.answer_forms import Count, Milliseconds, Seconds
from ddtree_metrics.bench.answers import TimedAnswer
from ddtree_metrics.metrics.two_point import two_point_rate

LEVEL = 0.95
Speed = Annotated[float, Meta(ge=1e-12, le=1e18)]
"""Tokens a second."""
DROPPED_AT_MOST = 1 / 3
"""A point that lost a larger share of its rounds gets no number."""


@dataclass(frozen=True, slots=True)
class MedianInterval:
    """A median and the range that holds the true one with the probability ``level``; no range for fewer than three values."""

    middle: float
    low: float | None
    high: float | None
    level: float | None


def median_interval(values: Sequence[float], level: float = LEVEL) -> MedianInterval:
    """Return the median and a distribution-free interval for it.

    From order statistics, interpolated between two of them to the wanted level (Hettmansperger and Sheather, Statistics &
    Probability Letters 4, 1986). Six values are needed for 95 %; three to five give their range, with the level that has.

    Parameters
    ----------
    values : sequence of float
        At least one.
    level : float
        Between 0 and 1.

    Returns
    -------
    MedianInterval
    """
    x, n = sorted(values), len(values)
    middle = median(x)
    if n < 3:
        return MedianInterval(middle, None, None, None)

    def covered(depth: int) -> float:
        """Probability that the depth-th smallest and largest value enclose the median."""
        return 1 - 2 * sum(math.comb(n, i) for i in range(depth)) / 2**n

    if covered(1) <= level:
        return MedianInterval(middle, x[0], x[-1], covered(1))
    depth = 1
    while depth + 1 <= n // 2 and covered(depth + 1) >= level:
        depth += 1
    if depth + 1 > n - depth:
        return MedianInterval(middle, x[depth - 1], x[n - depth], covered(depth))
    over = (covered(depth) - level) / (covered(depth) - covered(depth + 1))
    share = (n - depth) * over / (depth + (n - 2 * depth) * over)
    return MedianInterval(
        middle,
        (1 - share) * x[depth - 1] + share * x[depth],
        (1 - share) * x[n - depth] + share * x[n - depth - 1],
        level,
    )


@dataclass(slots=True)
class Round:
    """One prompt, asked for with each length: its value, or why it was dropped.

    Attributes
    ----------
    seconds_a_token : float or None
    reason : str or None
        ``None`` for a round that counts; else ``failed``, ``rate_limited``, ``timeout``, ``no_usage``, ``no_token_difference``,
        ``no_time_difference``, ``prefill_differs``, ``prompt_differs``, ``short_difference`` or ``missing``.
    detail : str
        The same in words, with numbers.
    """

    number: int
    answers: list[TimedAnswer] = field(default_factory=list)
    seconds_a_token: float | None = None
    reason: str | None = None
    detail: str = ""

    @property
    def short(self) -> TimedAnswer:
        """The answer with the fewest tokens asked for."""
        return min(self.answers, key=lambda a: a.max_tokens)

    @property
    def long(self) -> TimedAnswer:
        """The answer with the most tokens asked for."""
        return max(self.answers, key=lambda a: a.max_tokens)


def judge(number: int, answers: list[TimedAnswer], lengths: int) -> Round:
    """Decide whether a round counts, and compute its value.

    Parameters
    ----------
    number : int
        Which round.
    answers : list of TimedAnswer
        Of one prompt and one worker.
    lengths : int
        How many there should be.

    Returns
    -------
    Round
    """
    made = Round(number, answers)

    def drop(reason: str, detail: str) -> Round:
        made.reason, made.detail = reason, detail
        return made

    for a in answers:
        if a.failure is not None:
            kind = a.failure if a.failure in ("rate_limited", "timeout") else "failed"
            return drop(kind, f"{a.failure}: {a.message}")
    if len(answers) < max(2, lengths):
        return drop("missing", f"{len(answers)} of {lengths} requests were made")
    if any(a.completion_tokens is None for a in answers):
        return drop("no_usage", "the server does not say how many tokens it produced")
    a, b = made.short, made.long
    rate = two_point_rate(a.run(), b.run())
    if rate.status != "ok":
        return drop(rate.status, rate.reason or rate.status)
    n_a, n_b = a.completion_tokens or 0, b.completion_tokens or 0
    if n_b - n_a < (b.max_tokens - a.max_tokens) / 2:
        return drop("short_difference", f"{n_b - n_a} tokens between the two instead of {b.max_tokens - a.max_tokens}")
    cached = {x.cached_tokens for x in answers}
    if len(cached) > 1:
        return drop("prefill_differs", f"cached tokens differ: {sorted(str(c) for c in cached)}")
    slope = _slope([(float(x.completion_tokens or 0), x.elapsed_s or 0.0) for x in answers])
    if slope is None or slope <= 0:
        return drop("no_time_difference", "more tokens did not take longer")
    made.seconds_a_token = slope
    return made


def _slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least-squares slope; ``None`` if all lie at one place."""
    n_mean = sum(n for n, _ in points) / len(points)
    t_mean = sum(t for _, t in points) / len(points)
    spread = sum((n - n_mean) ** 2 for n, _ in points)
    return sum((n - n_mean) * (t - t_mean) for n, t in points) / spread if spread else None


@dataclass(slots=True)
class Point:
    """The result for one context length. Speeds are tokens a second **for each request**, times are seconds.

    Attributes
    ----------
    ctx_req : int
        Prompt tokens asked for.
    prompt_tok : int or None
        Prompt tokens as the server counted them.
    context_mid : float or None
        The context length to which the value belongs: prompt + (n_a + n_b) / 2.
    decode_tok_s, low, high, level : float or None
        The typical speed (1 / median time a token) and its interval.
    best_tok_s : float or None
        (n_b - n_a) / (smallest t_b - smallest t_a): what the server does when nothing disturbs it.
    server_tok_s, stream_tok_s : float or None
        The server's own clock, and from the chunks of single streamed answers (medians over the long requests).
    total_tok_s : float or None
        All requests at once together, where several run at once.
    tokens_per_step, step_ms : float or None
        Pooled over the difference of the two requests, where the server reports verify counts.
    prefill_tok_s : float or None
        From requests whose prompt was in no cache.
    kept, rounds : int
        Rounds that count, and all.
    dropped : dict of str to int
        Why the others do not.
    status : str
        ``ok``, ``unreliable`` (more than a third dropped), ``failed`` (nothing left) or ``not_measured``.
    """

    ctx_req: Count
    prompt_tok: Count | None = None
    context_mid: Annotated[float, Meta(ge=0, le=1e13)] | None = None
    decode_tok_s: Speed | None = None
    low: Speed | None = None
    high: Speed | None = None
    level: Annotated[float, Meta(ge=0, le=1)] | None = None
    best_tok_s: Speed | None = None
    t_a: Seconds | None = None
    t_b: Seconds | None = None
    n_a: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    n_b: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    server_tok_s: Speed | None = None
    stream_tok_s: Speed | None = None
    total_tok_s: Speed | None = None
    ttft: Seconds | None = None
    tokens_per_step: Annotated[float, Meta(ge=0, le=1e12)] | None = None
    step_ms: Milliseconds | None = None
    steps_from: str | None = None
    prefill_tok_s: Speed | None = None
    kept: Count = 0
    rounds: Count = 0
    dropped: dict[str, Count] = field(default_factory=dict)
    status: Literal["ok", "unreliable", "failed", "not_measured"] = "not_measured"
    reason: str | None = None
    notes: list[str] = field(default_factory=list)


def summarise(
    ctx: int, answers: Sequence[TimedAnswer], lengths: Sequence[int], *, concurrency: int = 1, problem: str | None = None
) -> Point:
    """Make the point of one context length from all its answers.

    Parameters
    ----------
    ctx : int
        The context length asked for.
    answers : sequence of TimedAnswer
        In the order in which they were sent, warm-ups included.
    lengths : sequence of int
        The ``max_tokens`` of a round, ascending.
    concurrency : int
        Requests at once.
    problem : str or None
        Why measuring was given up, if it was.

    Returns
    -------
    Point
    """
    point = Point(ctx, reason=problem)
    rounds = all_rounds(answers, len(lengths))
    kept = [r for r in rounds if r.reason is None]
    point.rounds, point.kept = len(rounds), len(kept)
    point.dropped = dict(Counter(r.reason for r in rounds if r.reason))
    _first_look(point, answers, kept)
    if rounds:
        point.status = "ok"
    if not kept:
        if rounds:
            point.status = "failed"
            example = next(r for r in rounds if r.reason)
            point.reason = f"all {len(rounds)} rounds were dropped ({_listing(point.dropped)}), the first because: {example.detail}"
        elif problem is None:
            point.reason = "nothing was measured"
        return point
    values = one_a_round(kept)
    middle = median_interval(values)
    a, b = [r.short for r in kept], [r.long for r in kept]
    point.n_a, point.n_b = _median(x.completion_tokens for x in a), _median(x.completion_tokens for x in b)
    point.t_a, point.t_b = _median(x.elapsed_s for x in a), _median(x.elapsed_s for x in b)
    if point.prompt_tok is not None and point.n_a is not None and point.n_b is not None:
        point.context_mid = point.prompt_tok + (point.n_a + point.n_b) / 2
    if point.kept < point.rounds * (1 - DROPPED_AT_MOST):
        point.status = "unreliable"
        point.reason = f"{point.rounds - point.kept} of {point.rounds} rounds were dropped ({_listing(point.dropped)})"
        return point
    point.decode_tok_s = 1 / middle.middle
    if middle.low and middle.high:
        point.low, point.high, point.level = 1 / middle.high, 1 / middle.low, middle.level
    _side_numbers(point, answers, kept, concurrency)
    _remarks(point, kept, concurrency)
    return point


def all_rounds(answers: Sequence[TimedAnswer], lengths: int) -> list[Round]:
    """Group the answers by round and worker, and judge each group; a round whose warm-up failed is a dropped one."""
    groups: dict[tuple[int, int], list[TimedAnswer]] = {}
    prepared: dict[tuple[int, int], TimedAnswer] = {}
    for a in answers:
        if a.round is None:
            continue
        if a.role == "measure":
            groups.setdefault((a.round, a.worker), []).append(a)
        else:
            prepared[a.round, a.worker] = a
    measured = {number for number, _ in groups}
    for key, a in prepared.items():  # a round that was lost before it began
        if key[0] not in measured and a.failure:
            groups[key] = [a]
    return [judge(number, group, lengths) for (number, _), group in sorted(groups.items(), key=lambda g: g[0])]


def one_a_round(kept: Sequence[Round]) -> list[float]:
    """Return one value a round: requests that ran side by side are not independent of each other."""
    by: dict[int, list[float]] = {}
    for r in kept:
        by.setdefault(r.number, []).append(r.seconds_a_token or 0.0)
    return [sum(v) / len(v) for v in by.values()]


def _first_look(point: Point, answers: Sequence[TimedAnswer], kept: Sequence[Round]) -> None:
    seen = [r.long.prompt_tokens for r in kept] or [a.prompt_tokens for a in answers if a.role in ("measure", "warmup")]
    counts = Counter(n for n in seen if n is not None)
    if counts:
        point.prompt_tok = counts.most_common(1)[0][0]
        if len(counts) > 1:
            point.notes.append(f"prompt lengths from {min(counts)} to {max(counts)} tokens")
        if point.prompt_tok != point.ctx_req:
            point.notes.append(f"{point.prompt_tok} prompt tokens instead of {point.ctx_req}: no cut of the text has exactly that length")


def _side_numbers(point: Point, answers: Sequence[TimedAnswer], kept: Sequence[Round], concurrency: int) -> None:
    a, b = [r.short for r in kept], [r.long for r in kept]
    whole = [r for r in kept if r.short.completion_tokens == r.short.max_tokens and r.long.completion_tokens == r.long.max_tokens]
    if len(whole) >= 3:
        gap = min(r.long.elapsed_s or 0.0 for r in whole) - min(r.short.elapsed_s or 0.0 for r in whole)
        if gap > 0:
            point.best_tok_s = (whole[0].long.max_tokens - whole[0].short.max_tokens) / gap
    point.server_tok_s = _inverse(
        _median(x.server_decode_ms / 1000 / x.server_decode_tokens for x in b if x.server_decode_tokens and x.server_decode_ms)
    )
    point.stream_tok_s = _inverse(_median(_stream_seconds(x) for x in b))
    point.ttft = _median(x.first_token_s for x in a)
    stepped = [
        r for r in kept if r.short.steps is not None and r.long.steps is not None and r.long.steps > r.short.steps and _counts_whole(r)
    ]
    if stepped and len(stepped) * 2 > len(kept) and any(x.accepted_drafts is None or x.accepted_drafts > 0 or x.proposed_drafts for x in b):
        steps = sum((r.long.steps or 0) - (r.short.steps or 0) for r in stepped)
        tokens = sum((r.long.completion_tokens or 0) - (r.short.completion_tokens or 0) for r in stepped)
        point.tokens_per_step = tokens / steps
        point.steps_from = stepped[0].long.steps_from
        # the median of the rounds' time a step, each from its own difference
        point.step_ms = _median(
            1000 * ((r.long.elapsed_s or 0.0) - (r.short.elapsed_s or 0.0)) / ((r.long.steps or 0) - (r.short.steps or 0)) for r in stepped
        )
    per_token = 1 / point.decode_tok_s if point.decode_tok_s else 0.0
    point.prefill_tok_s = _median(
        x.prompt_tokens / (x.elapsed_s - x.completion_tokens * per_token)
        for x in answers
        if x.role in ("grow", "warmup")
        and x.failure is None
        and x.prompt_tokens
        and x.elapsed_s
        and x.completion_tokens is not None
        and x.cached_tokens is not None
        and x.cached_tokens <= 0.02 * x.prompt_tokens
        and x.elapsed_s > 2 * x.completion_tokens * per_token
        and concurrency == 1
    )
    if concurrency > 1:
        point.total_tok_s = _inverse(_median(_group_seconds(kept, number, concurrency) for number in {r.number for r in kept}))


def _counts_whole(r: Round) -> bool:
    return r.short.steps_from == r.long.steps_from


def _stream_seconds(x: TimedAnswer) -> float | None:
    """Seconds a token from the chunks of one answer: (n - tokens of the first chunk) / (last - first)."""
    if x.chunks < 2 or x.first_token_s is None or x.last_token_s is None or not x.completion_tokens:
        return None
    first = x.first_chunk_tokens
    if first is None:
        if x.chunks < x.completion_tokens - 1:  # several tokens a chunk, and no count of the first: unknown
            return None
        first = 1
    made = x.completion_tokens - first
    return (x.last_token_s - x.first_token_s) / made if made > 0 and x.last_token_s > x.first_token_s else None


def _group_seconds(kept: Sequence[Round], number: int, concurrency: int) -> float | None:
    """Seconds a token of all requests of a round together, from first sent to last done."""
    group = [r for r in kept if r.number == number]
    if len(group) < concurrency:
        return None

    def span(answers: list[TimedAnswer]) -> float:
        start = min(x.sent_us for x in answers)
        return max(x.sent_us + (x.elapsed_s or 0.0) * 1e6 for x in answers) / 1e6 - start / 1e6

    longs, shorts = [r.long for r in group], [r.short for r in group]
    tokens = sum(x.completion_tokens or 0 for x in longs) - sum(x.completion_tokens or 0 for x in shorts)
    gap = span(longs) - span(shorts)
    return gap / tokens if tokens > 0 and gap > 0 else None


def _remarks(point: Point, kept: Sequence[Round], concurrency: int) -> None:
    """Note what a reader should know about the number."""
    say = point.notes.append
    if point.dropped:
        say(f"{point.rounds - point.kept} of {point.rounds} rounds dropped: {_listing(point.dropped)}")
    early = [r.long for r in kept if (r.long.completion_tokens or 0) < r.long.max_tokens]
    if early:
        ended = [x for x in early if x.finish_reason == "length"]
        fewest = min(x.completion_tokens or 0 for x in early)
        cause = "the context window may be full" if ended else "ended by itself"
        say(f"{len(early)} of {len(kept)} long answers stopped early ({fewest} of {early[0].max_tokens} tokens; {cause})")
    if all(x.cached_tokens is None for r in kept for x in r.answers):
        say(
            "the server reports no cached tokens (vLLM: --enable-prompt-tokens-details, SGLang: --enable-cache-report): that both "
            "requests met the same cache rests on the warm-up"
        )
        shorts = [r.short.elapsed_s or 0.0 for r in kept]
        usual = median(shorts)
        slow = sum(1 for r in kept if (r.short.elapsed_s or 0.0) - usual > ((r.long.elapsed_s or 0.0) - (r.short.elapsed_s or 0.0)) / 2)
        if slow:
            say(f"{slow} short answers took far longer than the others, as without a cache")
    queued = [max(x) / min(x) for x in _starts(kept)]
    if concurrency > 1 and queued and median(queued) > 1.8:
        say(f"some of the {concurrency} requests seem to have waited for others: the server may run fewer at once")
    looping = _median(r.long.repeats for r in kept)
    plain = point.tokens_per_step is None and any(r.long.server_decode_ms is not None for r in kept)  # known not to speculate
    if looping is not None and looping > 0.5 and not plain:
        say(f"{100 * looping:.0f} % of the answers repeats itself: drafts are easy to guess, speculation looks better than in real use")
    bent = _median(_bend(r) for r in kept)
    if bent is not None and abs(bent) > 0.05:
        say(f"time over tokens is no straight line: the middle request lies {100 * bent:+.0f} % of the difference off it")


def _starts(kept: Sequence[Round]) -> list[list[float]]:
    by: dict[int, list[float]] = {}
    for r in kept:
        by.setdefault(r.number, []).append(r.short.elapsed_s or math.inf)
    return [v for v in by.values() if len(v) > 1]


def _bend(r: Round) -> float | None:
    """How far the middle request lies off the line through the outer two, as a share of their time difference."""
    if len(r.answers) < 3:
        return None
    ordered = sorted(r.answers, key=lambda x: x.max_tokens)
    a, m, b = ordered[0], ordered[len(ordered) // 2], ordered[-1]
    (n_a, t_a), (n_m, t_m), (n_b, t_b) = ((x.completion_tokens or 0, x.elapsed_s or 0.0) for x in (a, m, b))
    return (t_m - t_a) / (t_b - t_a) - (n_m - n_a) / (n_b - n_a) if t_b > t_a and n_b > n_a else None


def _listing(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {why}" for why, n in sorted(counts.items(), key=lambda c: (-c[1], c[0])))


def _median(values: object) -> float | None:
    known = [float(v) for v in values if v is not None]  # type: ignore[attr-defined]
    return median(known) if known else None


def _inverse(value: float | None) -> float | None:
    return 1 / value if value else None
