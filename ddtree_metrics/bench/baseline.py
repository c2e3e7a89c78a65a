"""Compare a sweep with an earlier one: same, slower, faster, or cannot tell, for each context length.

Where both sweeps used the same prompts, rounds are compared one by one: with speculation the prompt is the largest source of
variance, and it cancels. Else the two medians are compared.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from ddtree_metrics.bench.stats import Point, Round, all_rounds, median_interval
from ddtree_metrics.bench.sweep import Sweep

TOLERANCE = 0.05
LEVEL = 0.95
_PAIRS = 6  # fewer cannot give an interval of 95 %


@dataclass(frozen=True, slots=True)
class PointVerdict:
    """What became of one context length.

    Attributes
    ----------
    verdict : str
        ``same``, ``slower``, ``faster`` or ``cannot tell``.
    ratio, low, high : float or None
        Speed now over speed then, and its 95 % interval.
    best_ratio : float or None
        The same of the undisturbed speeds.
    paired : bool
        Whether rounds with the same prompts were compared one by one.
    reason : str or None
        Why it cannot be told, or what to beware of.
    """

    ctx_req: int
    before: float | None
    now: float | None
    ratio: float | None
    low: float | None
    high: float | None
    best_ratio: float | None
    verdict: str
    paired: bool = False
    reason: str | None = None


@dataclass(slots=True)
class SweepComparison:
    """Two sweeps beside each other.

    Attributes
    ----------
    verdicts : list of PointVerdict
    tolerance : float
        A change smaller than this share is no change.
    changed : dict of str to tuple
        Settings of the server that differ: before, now.
    notes : list of str
        Differences between the sweeps themselves.
    """

    verdicts: list[PointVerdict]
    tolerance: float
    changed: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def regressions(self) -> list[PointVerdict]:
        """Context lengths that are slower beyond the tolerance."""
        return [v for v in self.verdicts if v.verdict == "slower"]

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        by: dict[str, list[int]] = {}
        for v in self.verdicts:
            by.setdefault(v.verdict, []).append(v.ctx_req)
        parts = [f"{word} at {', '.join(map(str, by[word]))}" for word in ("slower", "faster", "same", "cannot tell") if word in by]
        return f"against the baseline (tolerance {100 * self.tolerance:g} %): " + "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "tolerance": self.tolerance,
            "sentence": self.sentence,
            "verdicts": [asdict(v) for v in self.verdicts],
            "changed": {k: list(v) for k, v in self.changed.items()},
            "notes": self.notes,
        }

    def table(self) -> str:
        """Return the comparison as a table for people."""
        rows = [["ctx_req", "before", "now", "change", "95 % interval", "best", "verdict"]]
        for v in self.verdicts:
            interval = f"{_percent(v.low)} .. {_percent(v.high)}" if v.low is not None else "-"
            rows.append([str(v.ctx_req), _number(v.before), _number(v.now), _percent(v.ratio), interval, _percent(v.best_ratio), v.verdict])
        widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
        text = [" ".join(c.rjust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
        return "\n".join(text) + "\n"


def compare(before: Sweep, now: Sweep, tolerance: float = TOLERANCE) -> SweepComparison:
    """Compare two sweeps.

    A point is *slower* when its whole interval, and the undisturbed speed too, lie beyond the tolerance: a busy machine
    widens the first and hardly moves the second. It is *same* when its whole interval lies within. All else *cannot be told*.

    Parameters
    ----------
    before, now : Sweep
    tolerance : float
        A share, 0.05 for 5 %.

    Returns
    -------
    SweepComparison
    """
    notes, barrier = _differences(before, now)
    same_prompts = (before.prompt, before.plan.seed, before.plan.lengths) == (now.prompt, now.plan.seed, now.plan.lengths)
    earlier = {p.ctx_req: p for p in before.points}
    verdicts = []
    for point in now.points:
        old = earlier.get(point.ctx_req)
        if old is None:
            verdicts.append(_unknown(point, None, "the baseline has no such context length"))
        elif barrier:
            verdicts.append(_unknown(point, old, barrier))
        elif old.decode_tok_s is None or point.decode_tok_s is None:
            which, why = ("the baseline", old.reason) if old.decode_tok_s is None else ("this sweep", point.reason)
            verdicts.append(_unknown(point, old, f"{which} has no number: {why}"))
        else:
            verdicts.append(_judge(before, now, old, point, same_prompts and old.prompt_tok == point.prompt_tok, tolerance))
    measured = {p.ctx_req for p in now.points}
    left = [str(c) for c in earlier if c not in measured]
    if left:
        notes.append(f"not measured this time: {', '.join(left)}")
    return SweepComparison(verdicts, tolerance, _changes(before, now), notes)


def _judge(before: Sweep, now: Sweep, old: Point, point: Point, same_prompts: bool, tolerance: float) -> PointVerdict:
    pairs = _log_ratios(before, now, point.ctx_req) if same_prompts else []
    low: float | None
    high: float | None
    assert old.decode_tok_s is not None
    assert point.decode_tok_s is not None
    if paired := len(pairs) >= _PAIRS:
        made = median_interval(pairs, LEVEL)
        ratio = math.exp(made.middle)
        low, high = (math.exp(made.low), math.exp(made.high)) if made.low is not None and made.high is not None else (None, None)
    else:
        ratio = point.decode_tok_s / old.decode_tok_s
        low, high = _difference(old, point)
    best = point.best_tok_s / old.best_tok_s if point.best_tok_s and old.best_tok_s else None
    floor, ceiling = 1 - tolerance, 1 / (1 - tolerance)
    reason = None
    if low is None or high is None:
        verdict, reason = "cannot tell", f"too few rounds ({old.kept} and {point.kept}) for an interval of 95 %; six of each are needed"
    elif high < floor or low > ceiling:
        verdict = "slower" if high < floor else "faster"
        if best is not None and (best >= floor if verdict == "slower" else best <= ceiling):
            reason = (
                f"typically {verdict}, but undisturbed rounds are not ({_percent(best)}): something beside the server disturbed one "
                "of the sweeps, repeat both on a quiet machine"
            )
            verdict = "cannot tell"
    elif low >= floor and high <= ceiling:
        verdict = "same"
    else:
        verdict, reason = "cannot tell", "the interval reaches across the tolerance; more rounds would narrow it"
    if best is None and verdict in ("slower", "faster"):
        reason = "no undisturbed speed to compare"
    return PointVerdict(point.ctx_req, old.decode_tok_s, point.decode_tok_s, ratio, low, high, best, verdict, paired, reason)


def _log_ratios(before: Sweep, now: Sweep, ctx: int) -> list[float]:
    """Return log(speed now / speed then) of each round that both kept; with several at once, of each worker's pair averaged."""

    def values(sweep: Sweep) -> dict[int, list[Round]]:
        made: dict[int, list[Round]] = {}
        for r in all_rounds([a for a in sweep.answers if a.ctx == ctx], len(sweep.plan.lengths)):
            if r.reason is None:
                made.setdefault(r.number, []).append(r)
        return made

    old, new = values(before), values(now)
    pairs = []
    for number in sorted(old.keys() & new.keys()):
        a = sum(r.seconds_a_token or 0.0 for r in old[number]) / len(old[number])
        b = sum(r.seconds_a_token or 0.0 for r in new[number]) / len(new[number])
        pairs.append(math.log(a / b))
    return pairs


def _difference(old: Point, new: Point) -> tuple[float | None, float | None]:
    """Return the interval of a ratio from those of its two parts (square-and-add on the log scale; Zou and Donner, 2008)."""
    parts = (old.low, old.high, old.decode_tok_s, new.low, new.high, new.decode_tok_s)
    if min(old.level or 0, new.level or 0) < LEVEL - 0.001 or any(p is None or p <= 0 for p in parts):
        return None, None
    o_low, o_high, o, n_low, n_high, n = (math.log(p) for p in parts if p is not None)
    low = (n - o) - math.hypot(n - n_low, o_high - o)
    high = (n - o) + math.hypot(n_high - n, o - o_low)
    return math.exp(low), math.exp(high)


def _unknown(point: Point, old: Point | None, reason: str) -> PointVerdict:
    return PointVerdict(
        point.ctx_req, old.decode_tok_s if old else None, point.decode_tok_s, None, None, None, None, "cannot tell", False, reason
    )


def _differences(before: Sweep, now: Sweep) -> tuple[list[str], str | None]:
    """Return what differs between the sweeps, and what of it forbids a comparison."""
    a, b = before.plan, now.plan
    for name, words in (
        ("chat", "one sweep used the chat endpoint, the other completions"),
        ("stream", "one sweep streamed, the other did not"),
        ("concurrency", f"{a.concurrency} and {b.concurrency} requests at once"),
    ):
        if getattr(a, name) != getattr(b, name):
            return [], words
    notes = []
    if (before.prompt, a.seed) != (now.prompt, b.seed):
        notes.append("the prompts differ: with speculation, part of a change may be theirs; use the baseline's --seed and --prompt-file")
    if a.lengths != b.lengths:
        notes.append(f"the requests have other lengths ({a.lengths} then, {b.lengths} now): the values stand at other context lengths")
    if before.model != now.model:
        notes.append(f"the model's name was {before.model}, and is {now.model}")
    if before.interrupted or now.interrupted:
        notes.append("one of the sweeps was interrupted")
    return notes, None


def _changes(before: Sweep, now: Sweep) -> dict[str, tuple[str | None, str | None]]:
    made: dict[str, tuple[str | None, str | None]] = {}
    for name in ("kind", "version"):
        if before.server.get(name) != now.server.get(name):
            made[name] = (before.server.get(name), now.server.get(name))
    old, new = before.server.get("flags") or {}, now.server.get("flags") or {}
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            made[name] = (old.get(name), new.get(name))
    return made


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * (ratio - 1):+.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
