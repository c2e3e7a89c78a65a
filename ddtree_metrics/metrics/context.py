"""Step time and tokens per step against context length, or against any other axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ddtree_metrics.errors import MetricError
from ddtree_metrics.metrics.confidence import (
    Resampler,
    around,
    effective,
    group_codes,
    quantile_draws,
    sums_by,
    token_bounds,
    within,
)
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.frames import Bools, Floats, Ints
from ddtree_metrics.steps.given import frame_of, takes
from ddtree_metrics.steps.repeated_prompts import PromptKeys, prompt_keys

AXES = ("context_len", "prompt_len", "generated_len")
"""The usual axes; any other numeric column of the frame will do too."""

_PAIRS = ("step_time_mean_ms", "step_time_p50_ms", "step_time_p95_ms", "tokens_per_step_pooled", "tokens_per_step_per_request", "tok_per_s")

_IN_WORDS = dict(zip(_PAIRS, ("step time",) * 3 + ("tokens per step",) * 2 + ("speed",), strict=True))

BY_CONTEXT_COLUMNS = (
    "bin",
    "low",
    "high",
    "x_mean",
    "rows",
    "steps",
    "timed_steps",
    "requests",
    "prompts",
    *(name + end for name in _PAIRS for end in ("", "_low", "_high")),
    "batch_size_mean",
    "batch_context_mean",
    "interval_from",
    "reason",
)

MAX_BINS = 10_000


@takes("request_steps", ("tokens", "step_time_ms", "step_us"))
def by_context(
    request_steps: pd.DataFrame,
    edges: Sequence[float] | None = None,
    *,
    by: str = "context_len",
    bins: int | None = None,
    width: float | None = None,
    each: str | None = None,
    level: float = 0.9,
    resamples: int = 400,
    seed: int = 0,
) -> pd.DataFrame:
    """Summarise steps by bins of context length, prompt length, generated length, or another column.

    Parameters
    ----------
    request_steps : pandas.DataFrame
        One row a request a step; ``step_time_ms`` (else ``step_us``), ``tokens``, ``request_id`` and the axis are used. A row may
        stand for several steps of its request (``row_steps``): it counts so often in every mean.
    edges : sequence of float, optional
        Rising bin edges; the upper one of a bin is not in it.
    by : str
        The axis: ``context_len``, ``prompt_len``, ``generated_len``, or any numeric column.
    bins : int, optional
        So many bins of about equally many rows.
    width : float, optional
        Bins of this width.
    each : str, optional
        A column by which rows are told apart besides, such as ``run``: the bins are those of all rows, and the result has a row for each
        value and bin, the value in a first column of this name. ``attrs["means"]`` has the means of each value over all of its rows.
    level : float
        Level of the intervals.
    resamples, seed : int
        How often requests are resampled, and from which start.

    Returns
    -------
    pandas.DataFrame
        A row a bin that is not empty, with ``BY_CONTEXT_COLUMNS``. Each request of a batch sees the step, so step times are those
        of request-steps: a step of four requests in one bin counts four times in its mean and quantiles, and ``steps`` counts it
        once. ``tokens_per_step_pooled`` is all tokens by all request-steps (micro), ``tokens_per_step_per_request`` the mean of
        the requests' own means (macro). ``tok_per_s`` is ``1000 * tokens_per_step_pooled / step_time_mean_ms``, for one request.
        Intervals come from resampling prompts; a bin with one distinct prompt has none, and ``reason`` says so. Those of tokens per
        step do not leave what is possible (one token a step, the largest commit seen), and one that spans a factor of 20 is left
        out. ``batch_size_mean`` and ``batch_context_mean`` (summed over the batch) are means over the rows of the bin. ``attrs`` has
        ``by``, ``level``, ``rows_without_axis``, ``rows_outside``, ``rows_without_time`` and ``reason``.

    Raises
    ------
    MetricError
        If the axis does not exist, or the edges do not rise.
    """
    if by not in AXES and by not in request_steps.columns:
        raise MetricError(f"no column {by!r} to bin by; there are {', '.join(map(str, request_steps.columns)) or 'none'}")
    frame_of(request_steps, "request_steps", ((by, "request_id"),), "by_context")
    axis = cols.finite(cols.numeric(request_steps, by))
    known = np.isfinite(axis)
    limits = bin_edges(axis[known], edges, bins, width)
    if each is not None:
        return _of_each(request_steps, each, limits, by=by, level=level, resamples=resamples, seed=seed)
    place = np.searchsorted(limits, axis, side="right") - 1
    inside = known & (place >= 0) & (place < len(limits) - 1)
    ms = cols.step_ms(request_steps)
    made = pd.DataFrame(columns=list(BY_CONTEXT_COLUMNS))
    if inside.any():
        data = _Data(request_steps, axis, ms, prompt_keys(request_steps))
        order = np.flatnonzero(inside)[np.argsort(place[inside], kind="stable")]
        starts = np.flatnonzero(np.concatenate([[True], np.diff(place[order]) != 0]))
        rows = []
        for number, part in enumerate(np.split(order, starts[1:])):
            row = data.summary(part, resamples=resamples, seed=seed + number, level=level)
            low, high = float(limits[place[part[0]]]), float(limits[place[part[0]] + 1])
            row |= {"bin": bin_label(low, high), "low": low, "high": high}
            rows.append(row)
        made = pd.DataFrame(rows, columns=list(BY_CONTEXT_COLUMNS))
    for name in ("interval_from", "reason", "bin"):
        made[name] = made[name].astype(object).where(made[name].notna(), None)
    reason = None
    if not len(request_steps):
        reason = "there are no steps"
    elif not known.any():
        reason = f"no step has a known {by}"
    elif not inside.any():
        reason = f"no step lies within the edges of {by}"
    elif len(made) == 1:
        reason = f"all steps lie in one bin of {by}: nothing can be said about how step time goes with it"
    made.attrs = {
        "by": by,
        "level": level,
        "rows_without_axis": int((~known).sum()),
        "rows_outside": int((known & ~inside).sum()),
        "rows_without_time": int(np.isnan(ms).sum()),
        "reason": reason,
    }
    return made


def _of_each(frame: pd.DataFrame, each: str, limits: Floats, **how: Any) -> pd.DataFrame:
    """Summarise the rows of each value of a column, all by the same bins."""
    if each not in frame.columns:
        raise MetricError(f"no column {each!r} to tell rows apart by; there are {', '.join(map(str, frame.columns)) or 'none'}")
    codes, values = pd.factorize(frame[each], sort=True)
    parts = [by_context(frame[codes == i], limits.tolist(), **how) for i in range(len(values))]
    kept = [part.assign(**{each: value}) for part, value in zip(parts, values, strict=True) if len(part)]
    made = pd.concat(kept, ignore_index=True) if kept else pd.DataFrame(columns=[*BY_CONTEXT_COLUMNS, each])
    made = made[[each, *BY_CONTEXT_COLUMNS]]
    counts = {name: sum(part.attrs[name] for part in parts) for name in ("rows_without_axis", "rows_outside", "rows_without_time")}
    ms, tokens = cols.finite(cols.step_ms(frame)), cols.finite(cols.numeric(frame, "tokens"))
    means = {}
    for i, value in enumerate(values):
        own = {"step_time_mean_ms": _mean(ms[codes == i]), "tokens_per_step_pooled": _mean(tokens[codes == i])}
        means[value] = own | {"tok_per_s": 1000.0 * own["tokens_per_step_pooled"] / own["step_time_mean_ms"]}
    made.attrs = {**by_context(frame, limits.tolist(), **{**how, "resamples": 2}).attrs, **counts, "each": each, "means": means}
    return made


class _Data:
    """The columns of a table of request steps that a bin is summarised from."""

    def __init__(self, frame: pd.DataFrame, axis: Floats, ms: Floats, keys: PromptKeys) -> None:
        self.axis, self.ms, self.keys = axis, ms, keys
        self.tokens = cols.finite(cols.numeric(frame, "tokens"))
        self.bounds = token_bounds(self.tokens)
        self.batch = cols.finite(cols.numeric(frame, "batch_size"))
        self.count = cols.row_steps(frame)
        self.step = cols.step_codes(frame)
        self.total = _batch_context(frame, self.step, self.batch)
        # A step's time is one observation, however many requests share it: it is resampled with the first of them.
        first = np.unique(self.step, return_index=True)[1]
        self.lead = keys.codes[first[np.unique(self.step, return_inverse=True)[1].reshape(-1)]]

    def summary(self, rows: Ints, *, resamples: int, seed: int, level: float) -> dict[str, Any]:
        """Summarise some rows: estimates, intervals, and why there is no interval."""
        tokens, ms, count = self.tokens[rows], self.ms[rows], self.count[rows]
        has_tokens, timed = np.isfinite(tokens), np.isfinite(ms)
        requests = self.keys.request_codes[rows]
        many, texts = self.keys.counts(rows)
        row: dict[str, Any] = {
            "x_mean": float(self.axis[rows].mean()),
            "rows": len(rows),
            "steps": _once(self.step[rows], count),
            "timed_steps": _once(self.step[rows][timed], count[timed]),
            "requests": many,
            "prompts": texts,
            "batch_size_mean": float(np.nanmean(self.batch[rows])) if np.isfinite(self.batch[rows]).any() else np.nan,
            "batch_context_mean": _mean(self.total[rows]),
            "interval_from": None,
        }
        estimate = self._estimates(tokens, ms, requests, self._of_requests(rows), count)
        row |= estimate
        reasons = []
        if not timed.any():
            reasons.append("no step of this bin has a step time")
        if not has_tokens.any():
            reasons.append("no step of this bin has a token count")
        prompts = self.keys.codes[rows]
        why_not = self._why_no_interval(prompts, requests)
        if why_not:
            reasons.append(why_not)
        else:
            draws, groups = self._draws(rows, resamples=resamples, seed=seed, level=level)
            wide = []
            for name, values in draws.items():
                ends = around(estimate[name], values, groups, level)
                floor, ceiling = self.bounds if name.startswith("tokens_per_step") else (0.0, float("inf"))
                low, high = within(ends, floor, ceiling)
                row[name + "_low"], row[name + "_high"] = low, high
                if np.isfinite(ends).all() and not np.isfinite(low):
                    wide.append(_IN_WORDS[name])
            if wide:
                reasons.append(f"no interval of {' and '.join(dict.fromkeys(wide))}: too few requests, it would span a factor of 20")
            row["interval_from"] = {"request_id": "requests", "stretch": "stretches"}.get(self.keys.source, "prompts")
        row["reason"] = "; ".join(reasons) or None
        return row

    def _of_requests(self, rows: Ints) -> Bools:
        """Tell which rows the mean over requests is made of: those of known requests, or all where none is known."""
        known = self.keys.known
        return known[rows] if known is not None and known.any() else np.ones(len(rows), dtype=bool)

    @staticmethod
    def _estimates(tokens: Floats, ms: Floats, requests: Ints, named: Bools, count: Floats) -> dict[str, float]:
        """Compute the point estimates of a bin; each row counts for its steps."""
        made = dict.fromkeys(_PAIRS, float("nan"))
        timed, has_tokens = ms[np.isfinite(ms)], np.isfinite(tokens)
        if len(timed):
            made["step_time_mean_ms"] = float(np.average(timed, weights=count[np.isfinite(ms)]))
            made["step_time_p50_ms"], made["step_time_p95_ms"] = (float(q) for q in np.quantile(timed, [0.5, 0.95]))
        if has_tokens.any():
            made["tokens_per_step_pooled"] = float(np.average(tokens[has_tokens], weights=count[has_tokens]))
        named = named & has_tokens
        if named.any():
            part = np.unique(requests[named], return_inverse=True)[1].reshape(-1)
            own = np.bincount(part, weights=(tokens * count)[named]) / np.bincount(part, weights=count[named])
            made["tokens_per_step_per_request"] = float(own.mean())
        if len(timed) and has_tokens.any():
            made["tok_per_s"] = 1000.0 * made["tokens_per_step_pooled"] / made["step_time_mean_ms"]
        return made

    def _why_no_interval(self, prompts: Ints, requests: Ints) -> str | None:
        """Say why rows cannot be resampled, or None."""
        distinct, counts = np.unique(prompts, return_counts=True)
        if self.keys.source == "stretch":
            return None if len(distinct) > 1 else "no request is known, and the steps are one stretch: no interval"
        if len(distinct) == 1:
            several = len(np.unique(requests))
            return "one request: no interval" if several == 1 else f"one distinct prompt ({several} requests): no interval"
        if effective(counts.astype(float)) < 1.8:
            return f"one of {len(distinct)} prompts makes up most of the steps: no interval"
        return None

    def _draws(self, rows: Ints, *, resamples: int, seed: int, level: float) -> tuple[dict[str, Floats], float]:
        """Resample a bin; returns the resampled values of every estimate, and the effective number of groups."""
        tokens, ms, count = self.tokens[rows], self.ms[rows], self.count[rows]
        has_tokens, timed = np.isfinite(tokens), np.isfinite(ms)
        both, groups = group_codes(np.concatenate([self.keys.codes[rows], self.lead[rows]]), seed=seed)
        own, lead = both[: len(rows)], both[len(rows) :]
        sampler = Resampler.over(groups, resamples=resamples, seed=seed, level=level)
        sums = sums_by(own, groups, tokens * count, has_tokens * count)
        times = sums_by(lead, groups, ms * count, timed * count)
        named = self._of_requests(rows) & has_tokens
        requests = np.unique(self.keys.request_codes[rows][named], return_inverse=True)[1].reshape(-1)
        made: dict[str, Floats] = {}
        with np.errstate(invalid="ignore", divide="ignore"):
            if named.any():
                of_request = np.bincount(requests, weights=count[named])
                means = np.bincount(requests, weights=(tokens * count)[named]) / of_request
                owner = np.zeros(len(of_request), dtype=np.int64)
                owner[requests] = own[named]
                macro = sampler.draws(sums_by(owner, groups, means, np.ones(len(means))))
                made["tokens_per_step_per_request"] = macro[:, 0] / macro[:, 1]
            if has_tokens.any():
                pooled = sampler.draws(sums)
                made["tokens_per_step_pooled"] = pooled[:, 0] / pooled[:, 1]
            if timed.any():
                drawn = sampler.draws(times)
                made["step_time_mean_ms"] = drawn[:, 0] / drawn[:, 1]
                quantiles = quantile_draws(ms[timed], lead[timed], sampler, (0.5, 0.95))
                made["step_time_p50_ms"], made["step_time_p95_ms"] = quantiles[:, 0], quantiles[:, 1]
            if "tokens_per_step_pooled" in made and "step_time_mean_ms" in made:
                made["tok_per_s"] = 1000.0 * made["tokens_per_step_pooled"] / made["step_time_mean_ms"]
        return made, effective(np.bincount(own).astype(float))


def _once(step: Ints, count: Floats) -> int:
    """Count the steps of some rows, each once."""
    first = np.unique(step, return_index=True)[1]
    return round(float(count[first].sum()))


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _batch_context(frame: pd.DataFrame, step: Ints, batch: Floats) -> Floats:
    """Return for each row the context of its whole batch: as the frame says, else the sum over a step whose requests are all there."""
    stated = cols.finite(cols.numeric(frame, "batch_context"))
    context = cols.finite(cols.numeric(frame, "context_len"))
    place = np.unique(step, return_inverse=True)[1].reshape(-1)
    rows = np.bincount(place)
    seen, total = np.bincount(place, weights=np.isfinite(context)), np.bincount(place, weights=np.nan_to_num(context))
    whole = (seen == rows)[place] & (np.isnan(batch) | (rows[place] == batch))
    return np.where(np.isfinite(stated), stated, np.where(whole, total[place], np.nan))


def bin_edges(axis: Floats, edges: Sequence[float] | None = None, bins: int | None = None, width: float | None = None) -> Floats:
    """Choose bin edges: as given, of equal count, of equal width, or doubling."""
    if edges is not None:
        made = np.asarray([float(e) for e in edges], dtype=float)
        if len(made) < 2 or not (np.diff(made) > 0).all():
            raise MetricError(f"bin edges must be at least two and rise, not {list(edges)[:10]}")
        return made
    if not len(axis):
        return np.array([0.0, 1.0])
    low, high = float(axis.min()), float(axis.max())
    if bins is not None:
        if bins < 1:
            raise MetricError(f"bins must be 1 or more, not {bins}")
        made = np.unique(np.quantile(axis, np.linspace(0, 1, bins + 1), method="inverted_cdf"))
        return np.append(made[:-1] if len(made) > 1 else made, made[-1] + 1.0)
    if width is not None:
        if not width > 0 or (high - low) / width > MAX_BINS:
            raise MetricError(f"a bin width of {width} makes no or too many bins between {low:g} and {high:g}")
        first = np.floor(low / width)
        return np.asarray((first + np.arange(int(np.floor(high / width) - first) + 2)) * width)
    distinct = np.unique(axis[:: max(1, len(axis) // 1000)])
    if len(distinct) <= 8:
        distinct = np.unique(axis)
    if len(distinct) <= 8:
        return np.append(distinct, distinct[-1] + 1.0)
    if low >= 0 and high >= 256 and high > 4 * max(low, 64.0):
        made = doubling_edges(high)
        return np.asarray(made[max(0, int(np.searchsorted(made, low, side="right")) - 1) :])
    step = 10.0 ** np.floor(np.log10((high - low) / 6))  # above 8 values: they differ
    step = next(step * k for k in (1, 2, 5, 10) if (high - low) / (step * k) <= 8)
    first = np.floor(low / step)
    return np.asarray((first + np.arange(int(np.floor(high / step) - first) + 2)) * step)


def doubling_edges(high: float) -> Floats:
    """Return edges of bins of context that double from 128 tokens on, until ``high`` lies in one."""
    return np.concatenate([[0.0], 128.0 * 2.0 ** np.arange(int(np.ceil(np.log2((high + 1) / 128.0))) + 1)])


def bin_label(low: float, high: float) -> str:
    """Name a bin: ``512-1023`` for whole numbers, ``0.5..1`` for others."""
    if low == round(low) and high == round(high):
        return f"{low:.0f}" if high - low <= 1 else f"{low:.0f}-{high - 1:.0f}"
    size = max(abs(low), abs(high))
    if size >= 1000:  # means over a batch are seldom whole: fractions of a token in a name are noise
        return f"{low:.0f}" if high - low <= 1 else f"{low:.0f}..{high:.0f}"
    return f"{low:.4g}..{high:.4g}"
