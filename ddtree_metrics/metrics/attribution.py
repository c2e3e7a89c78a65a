"""Split a change of speed into what the mix did, what step time did, and what tokens per step did.

Speed is tokens per step by step time, so on the log scale the change of speed is the sum of two changes as logged; and of three parts
where the rows tell how the two sides differ in context and batch (``metrics.shares`` has the formula, ``metrics.equal_mix`` the means).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ddtree_metrics.errors import MetricError
from ddtree_metrics.metrics import equal_mix
from ddtree_metrics.metrics.confidence import MAX_GROUPS, effective, number, sums_by, useless, widening
from ddtree_metrics.metrics.confounding import word
from ddtree_metrics.metrics.shares import NAMES, Parts, three_parts, worked_against
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.frames import Bools, Floats, Ints
from ddtree_metrics.steps.repeated_prompts import prompt_keys

HELD = ("context_len", "batch_size")
"""What two tables are compared at equal values of where nothing else is asked for."""

NEGLIGIBLE = 0.1
"""A part against the change counts as nothing if it is no more than this share of it and its interval holds none."""

NAN = float("nan")


@dataclass(frozen=True)
class Attribution:
    """What part of a change of speed each factor explains.

    Attributes
    ----------
    speed_before, speed_after, speed_ratio : float
        Tokens a second of one request, as logged; ``_low`` and ``_high`` are the interval of the ratio.
    step_time_before_ms, step_time_after_ms, step_time_ratio : float
        Step time in ms as logged; above 1 is slower.
    tokens_before, tokens_after, tokens_ratio : float
        Tokens per step as logged; below 1 is slower.
    mix_ratio : float
        What the mix of contexts and batches multiplied speed by: below 1, the requests after were harder ones. 1 where no row tells
        the mix (a note says so); NaN where the two sides do not overlap.
    step_time_ratio_equal, tokens_ratio_equal : float
        Step time and tokens per step after by before at equal mix; NaN with ``equal_reason``. ``mix_ratio * tokens_ratio_equal /
        step_time_ratio_equal`` is ``speed_ratio``.
    share_mix, share_step_time, share_acceptance : float
        Parts of the change on the log scale; they add up to 1, and lie between 0 and 1. Step time and acceptance are those at equal
        mix where that is known, else as logged, and ``share_mix`` is then NaN. All are NaN where a part worked against the change
        (the factors say by how much), where speed did not change, and where the data cannot tell whether it did; ``reason`` says which.
    verdict : str
        The fewest parts that make up 80 % of what worked with the change: ``mix``, ``step time``, ``acceptance``, ``both`` (step time
        and acceptance), ``mix and step time``, ``mix and acceptance``, ``all three``; or ``no change``, ``cannot tell``.
    interval_from : str or None
        What the intervals rest on: ``requests``, ``bins`` (the intervals of two rows, taken as independent), or None.
    notes : tuple of str
        What should be known beside the shares.
    reason : str or None
        Why there are no shares, or no intervals.
    equal_of : tuple of str
        Columns at equal values of which the ratios at equal mix are.
    equal_reason : str or None
        Why there are no ratios at equal mix; where the sides do not overlap, in which quantity.
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
    mix_ratio: float = NAN
    mix_ratio_low: float = NAN
    mix_ratio_high: float = NAN
    step_time_ratio_equal: float = NAN
    step_time_ratio_equal_low: float = NAN
    step_time_ratio_equal_high: float = NAN
    tokens_ratio_equal: float = NAN
    tokens_ratio_equal_low: float = NAN
    tokens_ratio_equal_high: float = NAN
    share_mix: float = NAN
    share_mix_low: float = NAN
    share_mix_high: float = NAN
    equal_of: tuple[str, ...] = ()
    equal_reason: str | None = None

    @property
    def parts(self) -> Parts | None:
        """The parts whose factors multiply to ``speed_ratio``; None where speed, or what the mix did, cannot be told.

        Where no row tells the mix it is taken to have done nothing, and the other two parts are as logged.
        """
        if not (self.step_time_ratio > 0 and self.tokens_ratio > 0 and self.mix_ratio > 0):
            return None
        step, tokens = math.log(self.step_time_ratio), math.log(self.tokens_ratio)
        if not self.equal_of:
            return Parts(0.0, -step, tokens)
        return three_parts(step, tokens, math.log(self.step_time_ratio_equal), math.log(self.tokens_ratio_equal))

    @property
    def sentence(self) -> str:
        """The split in words, factors first, without a number that is not known."""
        if not math.isfinite(self.speed_ratio):
            return f"The change of speed cannot be split: {self.reason}."
        parts = self.parts or Parts(0.0, -math.log(self.step_time_ratio), math.log(self.tokens_ratio))
        at = f" at equal {_words(self.equal_of)}" if self.equal_of else ""
        step = f"{self.step_time_before_ms:.2f} to {self.step_time_after_ms:.2f} ms a step"
        tokens = f"{self.tokens_before:.2f} to {self.tokens_after:.2f} tokens a step"
        said = [
            f"{parts.equation.capitalize()}{at}.",
            f"As logged: {self.speed_before:.1f} to {self.speed_after:.1f} tok/s, {step}, {tokens}.",
        ]
        if self.equal_reason and not self.mix_ratio > 0 and self.equal_reason != self.reason:
            said.append(f"Not known at equal mix: {self.equal_reason}.")
        shares = zip(NAMES, (self.share_mix, self.share_step_time, self.share_acceptance), strict=True)
        known = [f"{name} {100 * share:.1f} %" for name, share in shares if math.isfinite(share)]
        if known:
            said.append(f"Of the {'slow-down' if self.speed_ratio < 1 else 'speed-up'}: {', '.join(known)}.")
        else:
            said.append(f"No shares: {self.reason}.")
        return " ".join(said)

    def to_frame(self) -> pd.DataFrame:
        """Return a row a factor: ``factor``, ``unit``, ``before``, ``after``, ``ratio``, ``ratio_equal``, ``share``.

        The last three have their intervals beside them. ``ratio`` is as logged, ``ratio_equal`` at equal mix; that of the mix is what it
        multiplied speed by.
        """
        rows = []
        for factor, unit, before, after, key, share in (
            ("mix", "speed", NAN, NAN, "mix_ratio", "share_mix"),
            ("step time", "ms", self.step_time_before_ms, self.step_time_after_ms, "step_time_ratio", "share_step_time"),
            ("acceptance", "tokens/step", self.tokens_before, self.tokens_after, "tokens_ratio", "share_acceptance"),
        ):
            row: dict[str, Any] = {"factor": factor, "unit": unit, "before": before, "after": after}
            for column, name in (("ratio", key), ("ratio_equal", f"{key}_equal"), ("share", share)):
                for end in ("", "_low", "_high"):
                    row[column + end] = getattr(self, name + end, NAN)
            rows.append(row)
        return pd.DataFrame(rows)


def _words(names: Sequence[str]) -> str:
    """Say columns in words."""
    return " and ".join(word(name) for name in names)


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
    """Split the change of speed between two groups of steps into the mix, step time and acceptance.

    Three factors multiply to the ratio of speeds: what the mix of contexts and batches did, what step time at equal mix did, and what
    tokens per step at equal mix did (Kitagawa, 1955, with logs of ratios; ``metrics.shares`` has the formula). A traffic that only
    grew longer is then told from a server that grew slower.

    Parameters
    ----------
    before, after : DataFrame, Series or mapping
        Request steps of each side (then requests are resampled for the intervals), a row of `by_context`, or a mapping with
        ``tokens_per_step`` and one of ``tok_per_s`` and ``step_time_ms``.
    step_time : str
        ``mean`` (what a request's speed is made of) or ``p50`` (not moved by single stalls; nothing is held equal then).
    control : str or sequence of str, optional
        Columns that are held equal: both sides are averaged over the classes that both have, with the same weights. If not given, those
        of ``context_len`` and ``batch_size`` that both tables have; ``()`` holds nothing equal. Where the sides do not overlap in one
        of them, the ratios at equal mix are NaN and ``equal_reason`` says so; the shares are then those as logged, or, if ``control``
        was given, NaN.
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
    >>> made.parts.equation
    'speed x 0.233 = ÷4.2 step time x 0.979 tokens'
    """
    if step_time not in ("mean", "p50"):
        raise MetricError(f"step_time is 'mean' or 'p50', not {step_time!r}")
    names = (control,) if isinstance(control, str) else None if control is None else tuple(control)
    if names and (step_time != "mean" or not (isinstance(before, pd.DataFrame) and isinstance(after, pd.DataFrame))):
        raise MetricError("control needs two tables of request steps and step_time='mean'")
    asked = _Asked(level, min_change)
    if isinstance(before, pd.DataFrame) and isinstance(after, pd.DataFrame):
        return _of_frames(before, after, step_time, names, resamples, seed, asked)
    left, right = _side(before, step_time), _side(after, step_time)
    change = _Change((left, right), asked)
    change.mix_known, change.notes = False, ["no rows, so the mix cannot be told"]
    if left.spread is not None and right.spread is not None:
        rng = np.random.default_rng(seed)
        noise = rng.standard_normal((max(resamples, 200), 4)) * np.array([*left.spread, *right.spread])
        change.draws = (noise[:, 2] - noise[:, 0], noise[:, 3] - noise[:, 1])
        change.interval_from = "bins"
    return _split(change)


@dataclass(frozen=True)
class _Asked:
    """Level of the intervals, and the smallest change that counts."""

    level: float
    min_change: float

    @property
    def least(self) -> float:
        """The smallest change on the log scale."""
        return math.log1p(self.min_change)


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


@dataclass
class _Change:
    """Two sides, and all that is known of how they differ; changes are logs of after by before.

    Attributes
    ----------
    sides : tuple of _Side
        As logged.
    asked : _Asked
        How sure to be.
    equal : tuple of float or None
        Changes of step time and of tokens per step at equal mix.
    draws, equal_draws : tuple of ndarray or None
        Resampled errors of the two changes, as logged and at equal mix.
    stretch : float
        By how much they must be stretched for few requests.
    held : tuple of str
        Columns held equal.
    mix_known : bool
        Whether any row tells the mix.
    must_hold : bool
        Whether holding it equal was asked for, so that nothing else will do.
    """

    sides: tuple[_Side, _Side]
    asked: _Asked
    equal: tuple[float, float] | None = None
    draws: tuple[Floats, Floats] | None = None
    equal_draws: tuple[Floats, Floats] | None = None
    stretch: float = 1.0
    held: tuple[str, ...] = ()
    mix_known: bool = True
    must_hold: bool = False
    interval_from: str | None = None
    reason: str | None = None
    equal_reason: str | None = None
    notes: list[str] = field(default_factory=list)


def _of_frames(
    before: pd.DataFrame, after: pd.DataFrame, step_time: str, control: tuple[str, ...] | None, resamples: int, seed: int, asked: _Asked
) -> Attribution:
    """Split two tables of request steps, resampling requests; a request on both sides is drawn for both at once."""
    change = _Change((_side(before, step_time), _side(after, step_time)), asked, must_hold=bool(control))
    if any(side.error for side in change.sides):
        return _split(change)
    held = control if control is not None else tuple(n for n in HELD if cols.has(before, n) and cols.has(after, n))
    wanted = {*_NEEDED, *held}
    both = [f.loc[:, [c for c in f.columns if c in wanted]].assign(_side=i) for i, f in enumerate((before, after))]
    parts = pd.concat(both, ignore_index=True)
    keys = prompt_keys(parts)
    side = parts["_side"].to_numpy(dtype=np.int64)
    ms, tokens = cols.step_ms(parts), cols.finite(cols.numeric(parts, "tokens"))
    present = np.zeros((keys.prompts, 2), dtype=bool)
    present[keys.codes, side] = True
    first = np.unique(cols.step_codes(parts) * 2 + side, return_index=True, return_inverse=True)
    group, strata = _groups(present, seed)
    groups = sum(strata)
    own, lead = group[keys.codes], group[keys.codes[first[1][first[2].reshape(-1)]]]
    few = (int(present[:, 0].sum()), int(present[:, 1].sum()))
    made = _classes(change, parts, held, control is not None, step_time, (ms, tokens), side)
    if made is not None:
        logs = _at_equal_mix(made, side, own, lead, ms, tokens, np.ones((1, groups)))
        ends = [float(logs[1][0, k] - logs[0][0, k]) for k in (0, 1)]
        if all(math.isfinite(e) for e in ends):
            change.equal, change.held = (ends[0], ends[1]), held
        else:
            change.equal_reason = f"the steps that have {_words(held)} in common have no step time, or no token count"
    counts = [np.bincount(keys.codes[side == i], minlength=keys.prompts).astype(float) for i in (0, 1)]
    lacking = [i for i in (0, 1) if effective(counts[i]) < 1.8]
    if lacking:
        said = " and ".join(f"{keys.distinct(few[i])} {('before', 'after')[i]}" for i in lacking)
        change.reason = f"no intervals: {said}"
        return _split(change)
    weights = _weights(strata, resamples, seed)
    raw = [_log_draws(weights, own, lead, ms, tokens, side == i, groups, step_time, change.sides[i]) for i in (0, 1)]
    sizes = [effective(c) for c in counts]
    change.stretch = _welch([step - token for step, token in raw], sizes, asked.level)
    change.draws, change.interval_from = (raw[1][0] - raw[0][0], raw[1][1] - raw[0][1]), "requests"
    if made is not None and change.equal is not None:
        inside = made.cell >= 0
        sizes = [effective(np.bincount(keys.codes[inside & (side == i)], minlength=keys.prompts).astype(float)) for i in (0, 1)]
        if min(sizes) < 1.8:
            change.notes.append(f"no intervals at equal {_words(held)}: only one prompt of a side is in what both sides have")
        else:
            logs = _at_equal_mix(made, side, own, lead, ms, tokens, weights)
            spread = _welch([log[:, 0] - log[:, 1] for log in logs], sizes, asked.level)
            away = (logs[1] - logs[0] - np.array(change.equal)) * spread / change.stretch
            change.equal_draws = (away[:, 0], away[:, 1])
    return _split(change)


def _classes(
    change: _Change,
    parts: pd.DataFrame,
    held: tuple[str, ...],
    given: bool,
    step_time: str,
    values: tuple[Floats, Floats],
    side: Ints,
) -> equal_mix.Classes | None:
    """Put the rows into classes of equal values, or note why not."""
    if not held:
        change.mix_known = False
        change.notes.append("nothing is held equal, as asked" if given else f"no {_words(HELD)} in the rows, so the mix cannot be told")
        return None
    if not given and len(held) < len(HELD):
        change.notes.append(f"{_words([n for n in HELD if n not in held])} is not known on both sides, and not held equal")
    missing = [name for name in held if name not in parts.columns]
    if missing:
        change.equal_reason = f"there is no column {missing[0]} to compare at equal values of"
        return None
    if step_time != "mean":
        change.equal_reason = "medians are not compared at equal mix; step_time='mean' is"
        return None
    columns = [cols.finite(cols.numeric(parts, name)) for name in held]
    made = equal_mix.classes(held, columns, side, np.isfinite(values[0]) | np.isfinite(values[1]))
    if isinstance(made, str):
        change.equal_reason = made
        return None
    shares = [f"{100 * used:.0f} %" for used in made.used]
    change.notes.append(f"compared at equal {_words(held)}: {shares[0]} of the steps before and {shares[1]} of those after could be")
    return made


def _at_equal_mix(
    made: equal_mix.Classes, side: Ints, own: Ints, lead: Ints, ms: Floats, tokens: Floats, weights: Floats
) -> tuple[Floats, Floats]:
    """Return for each side the logs of step time and of tokens per step at equal mix, a row a draw."""
    mix = equal_mix.counts(made, side, own, np.isfinite(ms) | np.isfinite(tokens), weights)
    step = equal_mix.log_means(made, mix, side, lead, ms, weights)
    token = equal_mix.log_means(made, mix, side, own, tokens, weights)
    return np.column_stack([step[:, 0], token[:, 0]]), np.column_stack([step[:, 1], token[:, 1]])


def _groups(present: Bools, seed: int) -> tuple[Ints, list[int]]:
    """Put prompts into the groups that are drawn: each its own, or random groups where one stratum has very many.

    Strata are prompts that are on the one side, on the other, and on both. Returns the group of each prompt, and how many groups each
    stratum has.
    """
    rng = np.random.default_rng(seed)
    group = np.zeros(len(present), dtype=np.int64)
    strata: list[int] = []
    for kind in ((True, False), (False, True), (True, True)):
        members = np.flatnonzero((present == np.array(kind)).all(axis=1))
        if len(members):
            size = min(len(members), MAX_GROUPS)
            group[members] = sum(strata) + rng.permutation(len(members)) % size
            strata.append(size)
    return group, strata


def _weights(strata: list[int], resamples: int, seed: int) -> Floats:
    """Draw the groups of each stratum with replacement: how often each was drawn, a row a resample."""
    rng = np.random.default_rng(seed)
    return np.hstack([rng.multinomial(size, np.full(size, 1.0 / size), size=resamples).astype(float) for size in strata])


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
            from ddtree_metrics.metrics.confidence import Resampler, quantile_draws

            sampler = Resampler(weights, prompts, 0.9)
            log_ms = np.log(quantile_draws(ms[timed], lead[timed], sampler, (0.5,))[:, 0]) - math.log(side.ms)
        log_tokens = np.log(token_sums[:, 0] / token_sums[:, 1]) - math.log(side.tokens)
    return log_ms, log_tokens


def _split(change: _Change) -> Attribution:
    """Make factors, shares and the verdict from both sides and the resampled errors of the changes."""
    left, right = change.sides
    made: dict[str, Any] = dict.fromkeys((f.name for f in Attribution.__dataclass_fields__.values() if f.type == "float"), NAN)
    if left.error or right.error:
        words = [f"{name}: {side.error}" for name, side in (("before", left), ("after", right)) if side.error]
        lacking = str(left.error) if left.error == right.error else "; ".join(words)
        return Attribution(**made, verdict="cannot tell", reason=lacking, equal_reason=lacking)
    step, tokens = math.log(right.ms / left.ms), math.log(right.tokens / left.tokens)
    made |= {
        "speed_before": 1000.0 * left.tokens / left.ms,
        "speed_after": 1000.0 * right.tokens / right.ms,
        "step_time_before_ms": left.ms,
        "step_time_after_ms": right.ms,
        "tokens_before": left.tokens,
        "tokens_after": right.tokens,
    }
    parts = three_parts(step, tokens, *(change.equal or (step, tokens)))
    centres = {"step_time_ratio": step, "tokens_ratio": tokens, "speed_ratio": tokens - step}
    if change.equal is not None:
        centres |= {"mix_ratio": parts.mix, "step_time_ratio_equal": change.equal[0], "tokens_ratio_equal": change.equal[1]}
    elif not change.mix_known:
        made["mix_ratio"] = 1.0
    made |= {name: math.exp(centre) for name, centre in centres.items()}
    away = _errors(change)
    _add_intervals(made, centres, away, change)
    low, high = made["speed_ratio_low"], made["speed_ratio_high"]
    unclear = "speed_ratio" in away and low <= 1.0 <= high
    for name in centres:
        if useless(made[name + "_low"], made[name + "_high"]) and math.isfinite(made[name + "_high"]):
            made[name + "_low"] = made[name + "_high"] = NAN
            said = name.removesuffix("_equal").replace("_", " ") + (" at equal mix" if name.endswith("_equal") else "")
            change.notes.append(f"no interval of the {said}: too few requests, it would span a factor of 20")
    verdict, reason = _verdict(parts, made, unclear, change)
    if reason is None:
        _add_shares(made, parts, away, change)
    return Attribution(
        **made,
        verdict=verdict,
        interval_from=change.interval_from if away else None,
        notes=tuple(change.notes),
        reason="; ".join(dict.fromkeys(r for r in (reason, change.reason) if r)) or None,
        equal_of=change.held,
        equal_reason=change.equal_reason or (change.notes[0] if not change.mix_known else None),
    )


def _errors(change: _Change) -> dict[str, Floats]:
    """Return the resampled errors of every change, by the name of its ratio; empty where there are too few draws."""
    if change.draws is None:
        return {}
    drawn = [*change.draws, *(change.equal_draws or ())]
    ok = np.logical_and.reduce([np.isfinite(d) for d in drawn])
    if np.count_nonzero(ok) < 50 <= np.count_nonzero(np.isfinite(drawn[0]) & np.isfinite(drawn[1])):
        change.equal_draws = None
        change.notes.append("no intervals at equal mix: too few requests")
        return _errors(change)
    if np.count_nonzero(ok) < 50:
        change.reason = change.reason or "no intervals: too few requests"
        return {}
    step, tokens, *equal = (d[ok] * change.stretch for d in drawn)
    made = {"step_time_ratio": step, "tokens_ratio": tokens, "speed_ratio": tokens - step}
    if equal:
        mix = (tokens - equal[1]) - (step - equal[0])
        made |= {"mix_ratio": mix, "step_time_ratio_equal": equal[0], "tokens_ratio_equal": equal[1]}
    return made


def _add_intervals(made: dict[str, Any], centres: dict[str, float], away: dict[str, Floats], change: _Change) -> None:
    """Add the interval of every ratio that has one."""
    tail = [0.5 - change.asked.level / 2, 0.5 + change.asked.level / 2]
    for name, errors in away.items():
        low, high = np.quantile(centres[name] + errors, tail)
        made[name + "_low"], made[name + "_high"] = math.exp(max(low, -700.0)), math.exp(min(high, 700.0))


_RATIOS = {"mix": "mix_ratio", "step time": "step_time_ratio", "acceptance": "tokens_ratio"}
"""The ratio behind each part, as logged; those of step time and acceptance have an ``_equal`` one."""

_VERDICTS = {("step time", "acceptance"): "both", NAMES: "all three"}


def _ratio_of(name: str, change: _Change) -> str:
    """Return the name of the ratio behind a part."""
    return _RATIOS[name] + ("_equal" if change.equal is not None and name != "mix" else "")


def _verdict(parts: Parts, made: dict[str, Any], unclear: bool, change: _Change) -> tuple[str, str | None]:
    """Return the verdict, and why there are no shares."""
    least, total = change.asked.least, parts.total
    each = dict(zip(NAMES, (parts.mix, parts.step_time, parts.tokens), strict=True))
    if abs(total) < least:
        if max(abs(p) for p in each.values()) > 2 * least:
            moved = [("the mix" if n == "mix" else n) for n, p in each.items() if abs(p) > least / 2]
            change.notes.append(f"{', '.join(moved[:-1])} and {moved[-1]} {'both ' if len(moved) == 2 else ''}changed, and cancel")
        return "no change", f"speed changed by {100 * math.expm1(total):+.1f} %, less than {100 * change.asked.min_change:g} %"
    if unclear:
        for name, said in (("mix", "speed through the mix"), ("step time", "step time"), ("acceptance", "tokens per step")):
            key = _ratio_of(name, change)
            low, high = made[key + "_low"], made[key + "_high"]
            if low > 1.0 or high < 1.0:
                at = " at equal mix" if key.endswith("_equal") else ""
                change.notes.append(f"{said}{at} by itself did change: x {made[key]:.3g} ({low:.3g} to {high:.3g})")
        return "cannot tell", "the interval of the change of speed contains no change"
    if change.must_hold and change.equal is None:
        return "cannot tell", change.equal_reason
    verdict = _VERDICTS.get(parts.named, " and ".join(parts.named))
    against = []
    for name in parts.against:
        key = _ratio_of(name, change)
        low, high = made[key + "_low"], made[key + "_high"]
        leaves_open = bool(low <= 1.0 <= high)
        if leaves_open and abs(each[name]) <= NEGLIGIBLE * abs(total):
            change.notes.append(f"{name} is counted as nothing: x {made[key]:.3g} ({low:.3g} to {high:.3g})")
        else:
            against.append(worked_against(name, slower=total < 0, leaves_open=leaves_open))
    change.notes += against
    return verdict, "; ".join(against) or None


def _add_shares(made: dict[str, Any], parts: Parts, away: dict[str, Floats], change: _Change) -> None:
    """Add the shares and their intervals; what is next to nothing against the change counts as nothing."""
    three = change.equal is not None
    keys = ("share_mix", "share_step_time", "share_acceptance")[0 if three else 1 :]

    def divided(each: Floats, total: Any) -> Floats:
        with_it = np.maximum(each * np.sign(total), 0.0)
        return np.asarray(with_it / np.maximum(with_it.sum(axis=0), 1e-300))

    centre = np.array([parts.mix, parts.step_time, parts.tokens])
    for key, share in zip(keys, divided(centre, parts.total)[-len(keys) :], strict=True):
        made[key] = float(share)
    names = ("mix_ratio", "step_time_ratio_equal", "tokens_ratio_equal") if three else ("step_time_ratio", "tokens_ratio")
    if not all(name in away for name in names):
        return
    errors = np.stack([away[name] * (-1.0 if name.startswith("step") else 1.0) for name in names])
    drawn = centre[-len(keys) :, None] + errors
    drawn = drawn[:, np.sign(drawn.sum(axis=0)) == np.sign(parts.total)]
    tail = [0.5 - change.asked.level / 2, 0.5 + change.asked.level / 2]
    for key, ends in zip(keys, np.quantile(divided(drawn, parts.total), tail, axis=1).T, strict=True):
        made[key + "_low"], made[key + "_high"] = float(ends[0]), float(ends[1])
