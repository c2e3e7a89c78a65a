"""Split a slow-down into step time and acceptance.

Speed is tokens per step by step time, so on the log scale the change of speed is the sum of two changes, and each has its share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ddtree_metrics.errors import MetricError
from ddtree_metrics.metrics.intervals import MAX_GROUPS, effective, number, sums_by, useless, widening
from ddtree_metrics.metrics.shares import counteracting
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.frames import Bools, Floats, Ints
from ddtree_metrics.steps.prompts import prompt_keys

CLEAR = 0.75
"""A share of this or more names its cause alone; less, and both are named."""

NAN = float("nan")


@dataclass(frozen=True)
class Attribution:
    """What part of a change of speed each factor explains.

    Attributes
    ----------
    speed_before, speed_after, speed_ratio : float
        Tokens a second of one request; ``_low`` and ``_high`` are the interval of the ratio.
    step_time_before_ms, step_time_after_ms, step_time_ratio : float
        Step time; above 1 is slower.
    tokens_before, tokens_after, tokens_ratio : float
        Tokens per step; below 1 is slower.
    share_step_time, share_acceptance : float
        Parts of the change on the log scale; they add up to 1. One is negative where a factor worked against the change. NaN where
        speed did not change, or the data cannot tell whether it did.
    verdict : str
        ``step time``, ``acceptance``, ``both``, ``no change`` or ``cannot tell``.
    interval_from : str or None
        What the intervals rest on: ``requests``, ``bins`` (the intervals of two rows, taken as independent), or None.
    notes : tuple of str
        What should be known beside the shares.
    reason : str or None
        Why there are no shares, or no intervals.
    """

    speed_before: float
    speed_after: float
    speed_ratio: float
    speed_ratio_low: float
    speed_ratio_high: float
    step_time_before_ms: float
    step_time_after_ms: float
    step_time_ratio: float
    step_time_ratio_low: float
    step_time_ratio_high: float
    tokens_before: float
    tokens_after: float
    tokens_ratio: float
    tokens_ratio_low: float
    tokens_ratio_high: float
    share_step_time: float
    share_step_time_low: float
    share_step_time_high: float
    share_acceptance: float
    share_acceptance_low: float
    share_acceptance_high: float
    verdict: str
    interval_from: str | None = None
    notes: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def sentence(self) -> str:
        """The split in words, without a number that is not known."""
        if not math.isfinite(self.speed_ratio):
            return f"The change of speed cannot be split: {self.reason}."
        step = f"{self.step_time_before_ms:.2f} ms to {self.step_time_after_ms:.2f} ms a step (x {self.step_time_ratio:.3g})"
        tokens = f"{self.tokens_before:.2f} to {self.tokens_after:.2f} tokens a step (x {self.tokens_ratio:.3g})"
        speed = f"{self.speed_before:.1f} to {self.speed_after:.1f} tok/s (x {self.speed_ratio:.3g})"
        if not math.isfinite(self.share_step_time):
            return f"{speed}: {step}, {tokens}. No shares: {self.reason}."
        direction = "slow-down" if self.speed_ratio < 1 else "speed-up"
        shares = f"step time {100 * self.share_step_time:.1f} %, acceptance {100 * self.share_acceptance:.1f} %"
        against = counteracting(self.share_step_time, self.share_step_time_low, self.share_step_time_high, slower=self.speed_ratio < 1)
        return f"{speed}: {step}, {tokens}. Of the {direction}: {shares}{f' ({against})' if against else ''}."

    def to_frame(self) -> pd.DataFrame:
        """Return a row a factor: ``factor``, ``before``, ``after``, ``ratio``, ``share``, each with its interval where it has one."""
        return pd.DataFrame(
            [
                {
                    "factor": "step time",
                    "unit": "ms",
                    "before": self.step_time_before_ms,
                    "after": self.step_time_after_ms,
                    "ratio": self.step_time_ratio,
                    "ratio_low": self.step_time_ratio_low,
                    "ratio_high": self.step_time_ratio_high,
                    "share": self.share_step_time,
                    "share_low": self.share_step_time_low,
                    "share_high": self.share_step_time_high,
                },
                {
                    "factor": "acceptance",
                    "unit": "tokens/step",
                    "before": self.tokens_before,
                    "after": self.tokens_after,
                    "ratio": self.tokens_ratio,
                    "ratio_low": self.tokens_ratio_low,
                    "ratio_high": self.tokens_ratio_high,
                    "share": self.share_acceptance,
                    "share_low": self.share_acceptance_low,
                    "share_high": self.share_acceptance_high,
                },
            ]
        )


def attribute_slowdown(
    before: Any,
    after: Any,
    *,
    step_time: str = "mean",
    control: str | Sequence[str] | None = None,
    level: float = 0.9,
    resamples: int = 1000,
    seed: int = 0,
    min_change: float = 0.02,
) -> Attribution:
    """Split the change of speed between two groups of steps into step time and acceptance.

    Parameters
    ----------
    before, after : DataFrame, Series or mapping
        Request steps of each side (then requests are resampled for the intervals), a row of `by_context`, or a mapping with
        ``tokens_per_step`` and one of ``tok_per_s`` and ``step_time_ms``.
    step_time : str
        ``mean`` (what a request's speed is made of) or ``p50`` (not moved by single stalls).
    control : str or sequence of str, optional
        Columns at equal values of which the two sides are compared, such as ``context_len`` and ``batch_size``: both are averaged
        over the classes that both have, with the same weights. Needs tables of request steps.
    level, resamples, seed
        Level of the intervals; how often requests are resampled, and from which start.
    min_change : float
        A change of speed smaller than this has no cause to be looked for.

    Returns
    -------
    Attribution

    Raises
    ------
    MetricError
        If ``step_time`` is neither of the two, or ``control`` cannot be done with what was given.

    Examples
    --------
    >>> made = attribute_slowdown({"tokens_per_step": 4.80, "tok_per_s": 138.0}, {"tokens_per_step": 4.70, "tok_per_s": 32.2})
    >>> round(made.share_step_time, 3), round(made.share_acceptance, 3), made.verdict
    (0.986, 0.014, 'step time')
    """
    if step_time not in ("mean", "p50"):
        raise MetricError(f"step_time is 'mean' or 'p50', not {step_time!r}")
    names = (control,) if isinstance(control, str) else tuple(control or ())
    if names and (step_time != "mean" or not (isinstance(before, pd.DataFrame) and isinstance(after, pd.DataFrame))):
        raise MetricError("control needs two tables of request steps and step_time='mean'")
    if isinstance(before, pd.DataFrame) and isinstance(after, pd.DataFrame):
        return _of_frames(before, after, step_time, names, level, resamples, seed, min_change)
    left, right = _side(before, step_time), _side(after, step_time)
    draws = None
    if left.spread is not None and right.spread is not None:
        rng = np.random.default_rng(seed)
        noise = rng.standard_normal((max(resamples, 200), 4)) * np.array([*left.spread, *right.spread])
        draws = (noise[:, 2] - noise[:, 0], noise[:, 3] - noise[:, 1])
    return _split(left, right, draws, 1.0, level, min_change, "bins" if draws else None, None)


@dataclass(frozen=True)
class _Side:
    """One side of a comparison: step time in ms, tokens per step, the standard errors of their logs, and what is missing."""

    ms: float
    tokens: float
    spread: tuple[float, float] | None = None
    error: str | None = None


def _side(given: Any, step_time: str) -> _Side:
    """Read one side from whatever was given."""
    if isinstance(given, pd.DataFrame):
        times, tokens = cols.step_ms(given), cols.finite(cols.numeric(given, "tokens"))
        timed, counted = times[np.isfinite(times)], tokens[np.isfinite(tokens)]
        if not len(timed) or not len(counted):
            return _Side(NAN, NAN, error="no step has a step time" if not len(timed) else "no step has a token count")
        return _checked(float(timed.mean() if step_time == "mean" else np.median(timed)), float(counted.mean()))
    if isinstance(given, pd.Series):
        given = given.to_dict()
    if isinstance(given, Mapping):
        name = f"step_time_{step_time}_ms"
        if "tokens_per_step_pooled" in given and name in given:
            spread = (_log_error(given, name), _log_error(given, "tokens_per_step_pooled"))
            usable = spread if all(math.isfinite(s) for s in spread) else None
            return _checked(number(given[name]), number(given["tokens_per_step_pooled"]), usable)
        rate, ms, speed = (number(given.get(k)) for k in ("tokens_per_step", "step_time_ms", "tok_per_s"))
        if not math.isfinite(ms) and math.isfinite(speed) and speed > 0:
            ms = 1000.0 * rate / speed
        elif not math.isfinite(rate) and math.isfinite(speed) and math.isfinite(ms):
            rate = speed * ms / 1000.0
        return _checked(ms, rate)
    return _Side(NAN, NAN, error=f"a {type(given).__name__} says neither step time nor tokens per step")


def _checked(ms: float, tokens: float, spread: tuple[float, float] | None = None) -> _Side:
    """Make a side of two numbers, or say which of them is of no use."""
    if not (math.isfinite(ms) and ms > 0):
        return _Side(NAN, NAN, error="the step time is not known, or not positive")
    if not (math.isfinite(tokens) and tokens > 0):
        return _Side(NAN, NAN, error="tokens per step are not known, or not positive")
    return _Side(ms, tokens, spread)


def _log_error(row: Mapping[str, Any], name: str, level: float = 0.9) -> float:
    """Return the standard error of the log that an interval of this level stands for."""
    low, high = number(row.get(name + "_low")), number(row.get(name + "_high"))
    if not (low > 0 and high > 0 and math.isfinite(low) and math.isfinite(high)):
        return NAN
    return float((math.log(high) - math.log(low)) / 2 / stats.norm.ppf(0.5 + level / 2))


def _of_frames(
    before: pd.DataFrame,
    after: pd.DataFrame,
    step_time: str,
    control: tuple[str, ...],
    level: float,
    resamples: int,
    seed: int,
    min_change: float,
) -> Attribution:
    """Split two tables of request steps, resampling requests; a request on both sides is drawn for both at once."""
    sides = (_side(before, step_time), _side(after, step_time))
    if sides[0].error or sides[1].error:
        return _split(*sides, None, 1.0, level, min_change, None, None)
    wanted = {*_NEEDED, *control}
    both = [f.loc[:, [c for c in f.columns if c in wanted]].assign(_side=i) for i, f in enumerate((before, after))]
    parts = pd.concat(both, ignore_index=True)
    cells = np.zeros(len(parts), dtype=np.int64)
    notes: tuple[str, ...] = ()
    if control:
        cells, notes, error = _common_cells(parts, control)
        if error:
            return _split(_Side(NAN, NAN, error=error), _Side(NAN, NAN, error=error), None, 1.0, level, min_change, None, None)
        parts, cells = parts[cells >= 0].reset_index(drop=True), np.unique(cells[cells >= 0], return_inverse=True)[1].reshape(-1)
    keys = prompt_keys(parts)
    side = parts["_side"].to_numpy(dtype=np.int64)
    ms, tokens = cols.step_ms(parts), cols.finite(cols.numeric(parts, "tokens"))
    if control:
        whole = [_standardised(np.ones((1, keys.prompts)), keys.codes, keys.codes, ms, tokens, side, cells, keys.prompts)]
        sides = tuple(_checked(float(np.exp(whole[0][i][0][0])), float(np.exp(whole[0][i][1][0]))) for i in (0, 1))  # type: ignore[assignment]
    present = np.zeros((keys.prompts, 2), dtype=bool)
    present[keys.codes, side] = True
    counts = [np.bincount(keys.codes[side == i], minlength=keys.prompts).astype(float) for i in (0, 1)]
    few = [int(present[:, i].sum()) for i in (0, 1)]
    lacking = [name for i, name in enumerate(("before", "after")) if effective(counts[i]) < 1.8]
    if lacking:
        many = {"before": few[0], "after": few[1]}
        reason = "no intervals: " + " and ".join(f"{keys.distinct(many[n])} {n}" for n in lacking)
        return _split(*sides, None, 1.0, level, min_change, None, reason, notes)
    rng = np.random.default_rng(seed)
    weights = np.zeros((resamples, keys.prompts), dtype=np.float32)
    for kind in ((True, False), (False, True), (True, True)):
        members = np.flatnonzero((present == np.array(kind)).all(axis=1))
        if len(members):
            weights[:, members] = _drawn(len(members), resamples, rng)
    first = np.unique(cols.step_codes(parts) * 2 + side, return_index=True, return_inverse=True)
    lead = keys.codes[first[1][first[2].reshape(-1)]]
    if control:
        logs = [
            (log_ms - math.log(sides[i].ms), log_tokens - math.log(sides[i].tokens))
            for i, (log_ms, log_tokens) in enumerate(_standardised(weights, keys.codes, lead, ms, tokens, side, cells, keys.prompts))
        ]
    else:
        logs = [_log_draws(weights, keys.codes, lead, ms, tokens, side == i, keys.prompts, step_time, sides[i]) for i in (0, 1)]
    stretch = _welch([ms_log - tokens_log for ms_log, tokens_log in logs], [effective(c) for c in counts], level)
    draws = (logs[1][0] - logs[0][0], logs[1][1] - logs[0][1])
    return _split(*sides, draws, stretch, level, min_change, "requests", None, notes)


def _welch(sides: list[Floats], groups: list[float], level: float) -> float:
    """By how much the interval of a difference must be stretched for few requests: Welch's degrees of freedom."""
    sizes = np.maximum(np.array(groups), 1.5)
    spread = np.array([float(np.nanvar(side[np.isfinite(side)])) for side in sides]) * sizes / (sizes - 1)
    total = float(spread.sum())
    if not total > 0:
        return widening(float(sizes.min()), level)
    freedom = total**2 / float((np.square(spread) / (sizes - 1)).sum())
    inflated = np.sqrt(total / float((spread * (sizes - 1) / sizes).sum()))
    upper = 0.5 + level / 2
    return float(stats.t.ppf(upper, max(freedom, 1.0)) / stats.norm.ppf(upper) * inflated)


def _common_cells(parts: pd.DataFrame, control: tuple[str, ...]) -> tuple[Ints, tuple[str, ...], str | None]:
    """Put rows into classes of equal values of the control columns; -1 for classes that one side has not. Also notes, and why not."""
    made = np.zeros(len(parts), dtype=np.int64)
    known = np.ones(len(parts), dtype=bool)
    for name in control:
        if name not in parts.columns:
            return made, (), f"there is no column {name} to compare at equal values of"
        values = cols.finite(cols.numeric(parts, name))
        known &= np.isfinite(values)
        distinct = np.unique(values[np.isfinite(values)])
        if len(distinct) <= 16 and (distinct == np.round(distinct)).all():
            part = np.searchsorted(distinct, values)
        else:
            with np.errstate(invalid="ignore", divide="ignore"):  # classes that double every two steps: within one, values differ by 41 %
                part = np.where(values > 0, np.floor(2 * np.log2(np.maximum(values, 1e-9))) + 100, 0)
            part = np.where(np.isfinite(part), part, 0)
        made = made * 4096 + np.clip(part.astype(np.int64), 0, 4095)
    made = np.unique(made, return_inverse=True)[1].astype(np.int64).reshape(-1)
    side = parts["_side"].to_numpy(dtype=np.int64)
    useful = known & np.isfinite(cols.step_ms(parts)) & np.isfinite(cols.numeric(parts, "tokens"))
    counts = np.column_stack([np.bincount(made[useful & (side == i)], minlength=int(made.max(initial=0)) + 1) for i in (0, 1)])
    common = np.asarray((counts > 0).all(axis=1))
    inside: Bools = known & common[made] if len(made) else known
    words = " and ".join(control)
    if not inside.any():
        return made, (), f"the two sides have no {words} in common"
    shares = [float(inside[side == i].mean()) for i in (0, 1)]
    note = f"compared at equal {words}: {100 * shares[0]:.0f} % of the steps before and {100 * shares[1]:.0f} % of those after could be"
    return np.where(inside, made, -1), (note,), None


def _standardised(
    weights: Any, own: Ints, lead: Ints, ms: Floats, tokens: Floats, side: Ints, cells: Ints, prompts: int
) -> list[tuple[Floats, Floats]]:
    """Return for each side the logs of step time and tokens per step, averaged over classes with the weights that both sides share."""
    count = int(cells.max()) + 1
    means, sizes = [], []
    for i in (0, 1):
        row: list[Floats] = []
        for values, codes in ((ms, lead), (tokens, own)):
            good = (side == i) & np.isfinite(values)
            at = codes[good] * count + cells[good]
            total = np.bincount(at, weights=values[good], minlength=prompts * count).reshape(prompts, count)
            number_of = np.bincount(at, minlength=prompts * count).reshape(prompts, count)
            drawn = np.asarray(weights @ number_of, dtype=float)
            with np.errstate(invalid="ignore", divide="ignore"):
                row.append(np.asarray(weights @ total, dtype=float) / drawn)
            row.append(drawn)
        means.append((row[0], row[2]))
        sizes.append(np.minimum(row[1], row[3]))
    shared = np.minimum(*sizes)
    with np.errstate(invalid="ignore", divide="ignore"):
        total = shared.sum(axis=1)
        return [tuple(np.log((np.where(shared > 0, m, 0.0) * shared).sum(axis=1) / total) for m in pair) for pair in means]


_NEEDED = (
    "request_id",
    "prompt_id",
    "prompt_len",
    "tokens",
    "step_us",
    "step_time_ms",
    "matched",
    "stream",
    "where",
    "time_us",
    "slot",
    "batch_size",
)


def _drawn(count: int, resamples: int, rng: np.random.Generator) -> Floats:
    """Draw members of a stratum with replacement; very many by Poisson counts, which is the same in the limit."""
    if count > MAX_GROUPS:
        return rng.poisson(1.0, size=(resamples, count)).astype(np.float64)
    return rng.multinomial(count, np.full(count, 1.0 / count), size=resamples).astype(np.float64)


def _log_draws(
    weights: Any, own: Ints, lead: Ints, ms: Floats, tokens: Floats, rows: Any, prompts: int, step_time: str, side: _Side
) -> tuple[Floats, Floats]:
    """Resample one side: logs of step time and of tokens per step, relative to their estimates."""
    timed, counted = rows & np.isfinite(ms), rows & np.isfinite(tokens)
    time_sums = weights @ sums_by(lead[timed], prompts, ms[timed], np.ones(int(timed.sum())))
    token_sums = weights @ sums_by(own[counted], prompts, tokens[counted], np.ones(int(counted.sum())))
    with np.errstate(invalid="ignore", divide="ignore"):
        if step_time == "mean":
            log_ms = np.log(time_sums[:, 0] / time_sums[:, 1]) - math.log(side.ms)
        else:
            from ddtree_metrics.metrics.intervals import Resampler, quantile_draws

            sampler = Resampler(weights, prompts, 0.9)
            log_ms = np.log(quantile_draws(ms[timed], lead[timed], sampler, (0.5,))[:, 0]) - math.log(side.ms)
        log_tokens = np.log(token_sums[:, 0] / token_sums[:, 1]) - math.log(side.tokens)
    return log_ms, log_tokens


def _split(
    left: _Side,
    right: _Side,
    draws: tuple[Floats, Floats] | None,
    stretch: float,
    level: float,
    min_change: float,
    interval_from: str | None,
    reason: str | None,
    known: tuple[str, ...] = (),
) -> Attribution:
    """Make the shares from both sides and the resampled errors of the two log ratios."""
    empty: dict[str, Any] = dict.fromkeys((f.name for f in Attribution.__dataclass_fields__.values() if f.type == "float"), NAN)
    if left.error or right.error:
        words = [f"{name}: {side.error}" for name, side in (("before", left), ("after", right)) if side.error]
        if left.error == right.error:
            words = [str(left.error)]
        return Attribution(**empty, verdict="cannot tell", reason="; ".join(words))
    slower, fewer = math.log(right.ms / left.ms), math.log(left.tokens / right.tokens)
    change = slower + fewer
    made = empty | {
        "speed_before": 1000.0 * left.tokens / left.ms,
        "speed_after": 1000.0 * right.tokens / right.ms,
        "speed_ratio": math.exp(-change),
        "step_time_before_ms": left.ms,
        "step_time_after_ms": right.ms,
        "step_time_ratio": math.exp(slower),
        "tokens_before": left.tokens,
        "tokens_after": right.tokens,
        "tokens_ratio": math.exp(-fewer),
    }
    notes: list[str] = list(known)
    tail = [0.5 - level / 2, 0.5 + level / 2]
    unclear = False
    if draws is not None:
        ok = np.isfinite(draws[0]) & np.isfinite(draws[1])
        away_ms, away_tokens = draws[0][ok] * stretch, draws[1][ok] * stretch
        if ok.sum() >= 50:
            for name, centre, away in (
                ("step_time_ratio", slower, away_ms),
                ("tokens_ratio", -fewer, away_tokens),
                ("speed_ratio", -change, away_tokens - away_ms),
            ):
                low, high = np.quantile(centre + away, tail)
                made[name + "_low"], made[name + "_high"] = math.exp(max(low, -700.0)), math.exp(min(high, 700.0))
            unclear = made["speed_ratio_low"] <= 1.0 <= made["speed_ratio_high"]
            for name in ("step_time_ratio", "tokens_ratio", "speed_ratio"):
                if useless(made[name + "_low"], made[name + "_high"]):
                    made[name + "_low"] = made[name + "_high"] = NAN
                    notes.append(f"no interval of the {name.replace('_', ' ')}: too few requests, it would span a factor of 20")
        else:
            draws, interval_from = None, None
            reason = reason or "no intervals: too few requests"
    if abs(change) < math.log1p(min_change):
        if max(abs(slower), abs(fewer)) > 2 * math.log1p(min_change):
            notes.append("step time and acceptance both changed, and cancel")
        why = f"speed changed by {100 * (math.exp(-change) - 1):+.1f} %, less than {100 * min_change:g} %"
        return Attribution(**made, verdict="no change", interval_from=interval_from, notes=tuple(notes), reason=why)
    if unclear:
        why = "the interval of the change of speed contains no change"
        for name, key in (("step time", "step_time_ratio"), ("tokens per step", "tokens_ratio")):
            low, high = made[key + "_low"], made[key + "_high"]
            if low > 1.0 or high < 1.0:
                notes.append(f"{name} by itself did change: x {made[key]:.3g} ({low:.3g} to {high:.3g})")
        return Attribution(**made, verdict="cannot tell", interval_from=interval_from, notes=tuple(notes), reason=why)
    share = slower / change
    made["share_step_time"], made["share_acceptance"] = share, 1.0 - share
    if draws is not None:
        total = change + away_ms - away_tokens
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = (slower + away_ms) / total
        shares = shares[np.sign(total) == np.sign(change)]
        low, high = (float(q) for q in np.quantile(shares, tail))
        made["share_step_time_low"], made["share_step_time_high"] = low, high
        made["share_acceptance_low"], made["share_acceptance_high"] = 1.0 - high, 1.0 - low
    against = counteracting(share, made["share_step_time_low"], made["share_step_time_high"], slower=change > 0)
    if against:
        notes.append(against)
    verdict = "step time" if share >= CLEAR else "acceptance" if share <= 1 - CLEAR else "both"
    return Attribution(**made, verdict=verdict, interval_from=interval_from, notes=tuple(notes), reason=reason)
