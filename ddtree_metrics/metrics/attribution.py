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
from ddtree_metrics.metrics.confidence import number, useless
from ddtree_metrics.metrics.confounding import word
from ddtree_metrics.metrics.doubt import Estimate
from ddtree_metrics.metrics.part_estimates import PartEstimates, TwoSides, estimate_parts
from ddtree_metrics.metrics.shares import NAMES, Errors, Parts, divide, named, three_parts
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.given import takes
from ddtree_metrics.steps.repeated_prompts import prompt_keys

HELD = ("context_len", "batch_size")
"""What two tables are compared at equal values of where nothing else is asked for."""

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
        The fewest parts that make up 80 % of what worked with the change, within a standard error: ``mix``, ``step time``,
        ``acceptance``, ``both`` (step time and acceptance), ``mix and step time``, ``mix and acceptance``, ``all three``; or
        ``no change``, ``cannot tell``.
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


@takes("request_steps", also=("after",), fill=(), strict=False)
def attribute_slowdown(
    before: Any,
    after: Any,
    *,
    step_time: str = "mean",
    control: str | Sequence[str] | None = None,
    level: float = 0.9,
    resamples: int = 4000,
    seed: int = 0,
    min_change: float = 0.02,
    start_floor: float = 0.0,
) -> Attribution:
    """Split the change of speed between two groups of steps into the mix, step time and acceptance.

    Three factors multiply to the ratio of speeds: what the mix of contexts and batches did, what step time at equal mix did, and what
    tokens per step at equal mix did (Kitagawa, 1955, with logs of ratios; ``metrics.shares`` has the formula). A traffic that only
    grew longer is then told from a server that grew slower.

    Parameters
    ----------
    before, after : DataFrame, Series or mapping
        Request steps of each side (intervals then come from leaving out requests, and blocks of time where ``time_us`` is there), a row of
        `by_context`, or a mapping with ``tokens_per_step`` and one of ``tok_per_s`` and ``step_time_ms``.
    step_time : str
        ``mean`` (what a request's speed is made of) or ``p50`` (not moved by single stalls; nothing is held equal then).
    control : str or sequence of str, optional
        Columns that are held equal: both sides are averaged over the classes that both have, with the same weights. If not given, those
        of ``context_len`` and ``batch_size`` that both tables have; ``()`` holds nothing equal. Where the sides do not overlap in one
        of them, the ratios at equal mix are NaN and ``equal_reason`` says so; the shares are then those as logged, or, if ``control``
        was given, NaN.
    level, resamples, seed
        Level of the intervals; how often errors are drawn for those of the shares, and from which start.
    min_change : float
        A change of speed smaller than this has no cause to be looked for.
    start_floor : float
        By how much (standard deviation, as a share) step time differs from one server start to the next when nothing was changed; 0
        where both sides are of one start. ``diagnose`` gives its own.

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
    asked = _Asked(level, min_change, resamples, seed)
    if isinstance(before, pd.DataFrame) and isinstance(after, pd.DataFrame):
        return _of_frames(before, after, step_time, names, asked, math.sqrt(2) * start_floor)
    left, right = _side(before, step_time), _side(after, step_time)
    change = _Change((left, right), asked, mix_known=False, notes=["no rows, so the mix cannot be told"])
    if not (left.error or right.error):
        change.found = _from_two_rows(left, right)
        change.interval_from = "bins" if change.found.speed.sure else None
    return _split(change)


def _from_two_rows(left: _Side, right: _Side) -> PartEstimates:
    """Make the estimates of two rows, which are taken as independent."""
    made = PartEstimates()
    errors = (math.nan, math.nan)
    if left.spread is not None and right.spread is not None:
        errors = (math.hypot(left.spread[0], right.spread[0]), math.hypot(left.spread[1], right.spread[1]))
        made.covariance, made.dof = np.diag([0.0, errors[0] ** 2, errors[1] ** 2]), MANY
    made.step = Estimate(math.log(right.ms / left.ms), errors[0], MANY)
    made.tokens = Estimate(math.log(right.tokens / left.tokens), errors[1], MANY)
    made.speed = made.tokens.minus(made.step)
    return made


MANY = 1000
"""Degrees of freedom of an interval that was given: as good as those of a normal distribution."""


@dataclass(frozen=True)
class _Asked:
    """Level of the intervals, the smallest change that counts, and how errors are drawn."""

    level: float
    min_change: float
    draws: int
    seed: int

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
        timed, counted, steps = np.isfinite(times), np.isfinite(tokens), cols.row_steps(given)
        if not timed.any() or not counted.any():
            return _Side(NAN, NAN, error="no step has a step time" if not timed.any() else "no step has a token count")
        middle = float(np.average(times[timed], weights=steps[timed]) if step_time == "mean" else np.median(times[timed]))
        return _checked(middle, float(np.average(tokens[counted], weights=steps[counted])))
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
    """Two sides, and all that is known of how they differ.

    Attributes
    ----------
    sides : tuple of _Side
        As logged.
    asked : _Asked
        How sure to be.
    found : PartEstimates
        The changes, as logs of after by before.
    mix_known : bool
        Whether any row tells the mix.
    must_hold : bool
        Whether holding it equal was asked for, so that nothing else will do.
    """

    sides: tuple[_Side, _Side]
    asked: _Asked
    found: PartEstimates = field(default_factory=PartEstimates)
    mix_known: bool = True
    must_hold: bool = False
    interval_from: str | None = None
    reason: str | None = None
    equal_reason: str | None = None
    notes: list[str] = field(default_factory=list)


def _of_frames(
    before: pd.DataFrame, after: pd.DataFrame, step_time: str, control: tuple[str, ...] | None, asked: _Asked, floor: float
) -> Attribution:
    """Split two tables of request steps."""
    change = _Change((_side(before, step_time), _side(after, step_time)), asked, must_hold=bool(control))
    if any(side.error for side in change.sides):
        return _split(change)
    held = control if control is not None else tuple(n for n in HELD if cols.has(before, n) and cols.has(after, n))
    wanted = {*_NEEDED, *held}
    both = [f.loc[:, [c for c in f.columns if c in wanted]].assign(_side=i) for i, f in enumerate((before, after))]
    parts = pd.concat(both, ignore_index=True)
    keys = prompt_keys(parts)
    side = parts["_side"].to_numpy(dtype=np.int64)
    first = np.unique(cols.step_codes(parts) * 2 + side, return_index=True, return_inverse=True)
    _hold(change, parts, held, control is not None, step_time)
    at = cols.time_us(parts)
    run = np.unique(cols.numeric(parts, "run"), return_inverse=True)[1] if "run" in parts.columns else side
    change.found = found = estimate_parts(
        TwoSides(
            side=side,
            ms=cols.step_ms(parts),
            tokens=cols.finite(cols.numeric(parts, "tokens")),
            weight=cols.row_steps(parts),
            owner=keys.codes,
            lead=keys.codes[first[1][first[2].reshape(-1)]],
            held={} if change.equal_reason or not change.mix_known else {n: cols.finite(cols.numeric(parts, n)) for n in held},
            time_us=np.where(np.isfinite(at), np.nan_to_num(at), -1).astype(np.int64),
            run=np.asarray(run, dtype=np.int64).reshape(-1),
        ),
        floor=floor,
        median=step_time == "p50",
    )
    change.equal_reason = change.equal_reason or found.apart
    if found.held:
        shares = [f"{100 * used:.0f} %" for used in found.used]
        change.notes.append(f"compared at equal {_words(held)}: {shares[0]} of the steps before and {shares[1]} of those after could be")
        if found.alone_equal and not found.alone:
            change.notes.append(f"no intervals at equal {_words(held)}: only one prompt of a side is in what both sides have")
    elif math.isfinite(found.used[0]):
        change.equal_reason = f"the steps that have {_words(held)} in common have no step time, or no token count"
    if found.alone:
        few = [len(np.unique(keys.codes[side == i])) for i in (0, 1)]
        said = " and ".join(f"{keys.distinct(few[i])} {('before', 'after')[i]}" for i in found.alone)
        change.reason = f"no intervals: {said}"
    elif found.speed.sure:
        change.interval_from = "requests"
    return _split(change)


def _hold(change: _Change, parts: pd.DataFrame, held: tuple[str, ...], given: bool, step_time: str) -> None:
    """Note what is not held equal, and why."""
    if not held:
        change.mix_known = False
        change.notes.append("nothing is held equal, as asked" if given else f"no {_words(HELD)} in the rows, so the mix cannot be told")
        return
    if not given and len(held) < len(HELD):
        change.notes.append(f"{_words([n for n in HELD if n not in held])} is not known on both sides, and not held equal")
    missing = [name for name in held if name not in parts.columns]
    if missing:
        change.equal_reason = f"there is no column {missing[0]} to compare at equal values of"
    elif step_time != "mean":
        change.equal_reason = "medians are not compared at equal mix; step_time='mean' is"


_NEEDED = (
    "row_steps",
    "request_id",
    "prompt_id",
    "prompt_len",
    "tokens",
    "step_us",
    "step_time_ms",
    "matched",
    "stream",
    "where",
    "time",
    "time_us",
    "slot",
    "batch_size",
    "run",
)


def _split(change: _Change) -> Attribution:
    """Make factors, shares and the verdict from both sides and the estimated changes."""
    left, right = change.sides
    made: dict[str, Any] = dict.fromkeys((f.name for f in Attribution.__dataclass_fields__.values() if f.type == "float"), NAN)
    if left.error or right.error:
        words = [f"{name}: {side.error}" for name, side in (("before", left), ("after", right)) if side.error]
        lacking = str(left.error) if left.error == right.error else "; ".join(words)
        return Attribution(**made, verdict="cannot tell", reason=lacking, equal_reason=lacking)
    made |= {
        "speed_before": 1000.0 * left.tokens / left.ms,
        "speed_after": 1000.0 * right.tokens / right.ms,
        "step_time_before_ms": left.ms,
        "step_time_after_ms": right.ms,
        "tokens_before": left.tokens,
        "tokens_after": right.tokens,
    }
    found = change.found
    parts = found.parts or Parts(0.0, -found.step.value, found.tokens.value)
    estimates = {"step_time_ratio": found.step, "tokens_ratio": found.tokens, "speed_ratio": found.speed}
    if found.held:
        mix = Estimate(parts.mix, found.mix.se, found.mix.dof)
        estimates |= {"mix_ratio": mix, "step_time_ratio_equal": found.step_equal, "tokens_ratio_equal": found.tokens_equal}
    elif not change.mix_known:
        made["mix_ratio"] = 1.0
    for name, one in estimates.items():
        ends = one.ratio(change.asked.level)
        made[name] = math.exp(one.value)
        if ends.low is None or ends.high is None:
            continue
        if useless(ends.low, ends.high):
            said = name.removesuffix("_equal").replace("_", " ") + (" at equal mix" if name.endswith("_equal") else "")
            change.notes.append(f"no interval of the {said}: too few requests, it would span a factor of 20")
        else:
            made[name + "_low"], made[name + "_high"] = ends.low, ends.high
    verdict, reason = _verdict(parts, made, change)
    return Attribution(
        **made,
        verdict=verdict,
        interval_from=change.interval_from,
        notes=tuple(change.notes),
        reason="; ".join(dict.fromkeys(r for r in (reason, change.reason) if r)) or None,
        equal_of=found.held,
        equal_reason=change.equal_reason or (change.notes[0] if not change.mix_known else None),
    )


_RATIOS = {"mix": "mix_ratio", "step time": "step_time_ratio", "acceptance": "tokens_ratio"}
"""The ratio behind each part, as logged; those of step time and acceptance have an ``_equal`` one."""

_VERDICTS = {("step time", "acceptance"): "both", NAMES: "all three"}


def _ratio_of(name: str, change: _Change) -> str:
    """Return the name of the ratio behind a part."""
    return _RATIOS[name] + ("_equal" if change.found.held and name != "mix" else "")


def _verdict(parts: Parts, made: dict[str, Any], change: _Change) -> tuple[str, str | None]:
    """Add the shares; return the verdict, and why there are none."""
    least, total = change.asked.least, parts.total
    each = dict(zip(NAMES, (parts.mix, parts.step_time, parts.tokens), strict=True))
    if abs(total) < least:
        if max(abs(p) for p in each.values()) > 2 * least:
            moved = [("the mix" if n == "mix" else n) for n, p in each.items() if abs(p) > least / 2]
            change.notes.append(f"{', '.join(moved[:-1])} and {moved[-1]} {'both ' if len(moved) == 2 else ''}changed, and cancel")
        return "no change", f"speed changed by {100 * math.expm1(total):+.1f} %, less than {100 * change.asked.min_change:g} %"
    found = change.found
    errors = Errors(found.covariance, found.dof, found.speed.se) if found.covariance is not None else None
    divided = divide(parts, errors, level=change.asked.level, seed=change.asked.seed, draws=change.asked.draws)
    if divided.unclear or (errors is None and found.speed.sure and abs(total) <= found.speed.reach(change.asked.level)):
        for name, said in (("mix", "speed through the mix"), ("step time", "step time"), ("acceptance", "tokens per step")):
            key = _ratio_of(name, change)
            low, high = made[key + "_low"], made[key + "_high"]
            if low > 1.0 or high < 1.0:
                at = " at equal mix" if key.endswith("_equal") else ""
                change.notes.append(f"{said}{at} by itself did change: x {made[key]:.3g} ({low:.3g} to {high:.3g})")
        return "cannot tell", "the interval of the change of speed contains no change"
    if change.must_hold and not found.held:
        return "cannot tell", change.equal_reason
    for name in divided.nothing:
        key = _ratio_of(name, change)
        change.notes.append(f"{name} is counted as nothing: x {made[key]:.3g} ({made[key + '_low']:.3g} to {made[key + '_high']:.3g})")
    change.notes += divided.against
    keys = ("share_mix", "share_step_time", "share_acceptance")
    for key, share in list(zip(keys, divided.shares, strict=True))[0 if found.held else 1 :]:
        made |= {key + end: NAN if x is None else x for end, x in (("", share.value), ("_low", share.low), ("_high", share.high))}
    names = named(parts, errors)
    return _VERDICTS.get(names, " and ".join(names)), divided.reason
