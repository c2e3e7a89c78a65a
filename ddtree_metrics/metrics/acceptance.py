"""Tokens per step, and how deep drafts are accepted."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from ddtree_metrics.layout import plural
from ddtree_metrics.metrics.confidence import (
    Resampler,
    around,
    effective,
    group_codes,
    number,
    sums_by,
    token_bounds,
    within,
)
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.frames import Bools, Floats, Ints
from ddtree_metrics.steps.given import takes
from ddtree_metrics.steps.repeated_prompts import PromptKeys, prompt_keys
from ddtree_metrics.steps.tokens import commit_convention, nodes_convention

TOO_GOOD = 0.95
"""So large a share of steps at the depth cap is a repetition loop or a placeholder more often than a good drafter."""

TOO_GOOD_ROWS = 20
"""... and so many steps at least."""

NAN = float("nan")

SURVIVAL_COLUMNS = ("depth", "rows", "survival", "conditional", "low", "high")


@dataclass(frozen=True)
class Acceptance:
    """How many tokens a step makes, and how deep drafts are accepted.

    Attributes
    ----------
    rows, requests, prompts, repeats : int
        Request-steps, requests, distinct prompts among them (at most, where the texts are not known), and requests that repeat one.
    tokens_per_step_micro, tokens_per_step_macro : float
        All tokens by all request-steps; mean over requests of their own means. ``_low`` and ``_high`` are the intervals.
    drafts_per_step_micro, drafts_per_step_macro : float
        The same for draft tokens agreed with; NaN where the convention is not known.
    survival : pandas.DataFrame
        ``depth``, ``rows`` (request-steps with at least so many drafts accepted), ``survival`` (their share), ``conditional`` (their
        share of those one level up), ``low`` and ``high`` (interval of the survival).
    depth_cap : int or None
        The deepest draft: as given, else the deepest seen. ``depth_cap_from`` is ``given`` or ``seen``.
    share_at_cap : float
        Share of request-steps in which all drafts down to the cap were accepted.
    budget_mean, nodes_mean, budget_used : float
        Nodes allowed, nodes verified (root not counted), and the second by the first.
    last_steps : int
        Request-steps that are the last of their request: they may commit less, or more than the client gets.
    tokens_per_step_without_last : float
        Micro mean without them.
    tokens_per_step_distinct, tokens_per_step_repeats : float
        Micro mean of the first request of each prompt, and of the repeats.
    nulls : dict of str to int
        Rows whose tokens or drafts are null; they are left out, not counted as zero.
    too_good : bool
        Whether nearly all steps are at the depth cap: a repetition loop, or drafts that are no drafts.
    interval_from : str or None
        ``requests``, ``prompts`` or ``stretches``.
    notes : tuple of str
        What should be known beside the numbers.
    reason : str or None
        Why something is missing.
    """

    rows: int
    requests: int
    prompts: int
    repeats: int
    tokens_per_step_micro: float = NAN
    tokens_per_step_micro_low: float = NAN
    tokens_per_step_micro_high: float = NAN
    tokens_per_step_macro: float = NAN
    tokens_per_step_macro_low: float = NAN
    tokens_per_step_macro_high: float = NAN
    drafts_per_step_micro: float = NAN
    drafts_per_step_macro: float = NAN
    survival: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(SURVIVAL_COLUMNS)))
    depth_cap: int | None = None
    depth_cap_from: str | None = None
    share_at_cap: float = NAN
    budget_mean: float = NAN
    nodes_mean: float = NAN
    budget_used: float = NAN
    last_steps: int = 0
    tokens_per_step_without_last: float = NAN
    tokens_per_step_distinct: float = NAN
    tokens_per_step_repeats: float = NAN
    nulls: dict[str, int] = field(default_factory=dict)
    too_good: bool = False
    interval_from: str | None = None
    notes: tuple[str, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class _Rows:
    """What acceptance is computed from: one row a request a step, or weighted rows of histograms."""

    tokens: Floats
    drafts: Floats
    weight: Floats
    nodes: Floats
    budget: Floats
    keys: PromptKeys
    last: Bools
    note: str | None = None


@takes("request_steps", fill=())
def acceptance(frame: pd.DataFrame, *, depth_cap: int | None = None, level: float = 0.9, resamples: int = 400, seed: int = 0) -> Acceptance:
    """Summarise acceptance.

    Parameters
    ----------
    frame : pandas.DataFrame
        Request steps (``tokens``, ``drafts``), step lines (lists ``commit_lens``, ``accepted_drafts``), or requests
        (``accepted_histogram``: steps by number of accepted drafts).
    depth_cap : int, optional
        The deepest draft (``--speculative-num-steps``, or block size less one); the deepest seen where not given.
    level, resamples, seed
        Level of the intervals; how often requests are resampled, and from which start.

    Returns
    -------
    Acceptance
    """
    rows = _rows(frame)
    has_tokens, has_drafts = np.isfinite(rows.tokens), np.isfinite(rows.drafts)
    nulls = {"tokens": int((~has_tokens).sum()), "drafts": int((~has_drafts).sum())}
    keys = rows.keys
    known = keys.source != "stretch"
    many, texts = keys.counts()
    made: dict[str, Any] = {
        "rows": round(float(rows.weight.sum())),
        "requests": many,
        "prompts": texts,
        "repeats": many - texts,
        "nulls": nulls,
    }
    notes: list[str] = [rows.note] if rows.note else []
    reasons: list[str] = []
    if not len(rows.tokens):
        return Acceptance(**made, reason="there are no steps")
    if not has_tokens.any() and not has_drafts.any():
        return Acceptance(**made, reason="no step has a token count or accepted drafts")
    made |= _means(rows, has_tokens, "tokens_per_step")
    made |= _means(replace(rows, tokens=rows.drafts), has_drafts, "drafts_per_step")
    if has_tokens.any():
        made |= _parts(rows, has_tokens)
    group, groups = group_codes(keys.codes, seed=seed)
    weights = np.bincount(group, weights=rows.weight, minlength=groups).astype(float)
    sampler = None
    if effective(weights) >= 1.8:
        sampler = Resampler.over(groups, resamples=resamples, seed=seed, level=level)
        made["interval_from"] = {"request_id": "requests", "stretch": "stretches"}.get(keys.source, "prompts")
        if has_tokens.any():
            made |= _intervals(rows, has_tokens, depth_cap, group, groups, sampler, made)
            if has_tokens.any() and math.isnan(made["tokens_per_step_micro_low"]):
                reasons.append("no interval of tokens per step: too few requests, it would span a factor of 20")
    elif keys.prompts == 1:
        one = "one stretch of steps" if not known else "one request" if keys.requests == 1 else "one distinct prompt"
        reasons.append(f"no interval: {one}")
    else:
        reasons.append("no interval: one prompt makes up most of the steps")
    if has_drafts.any():
        made |= _survival(rows, has_drafts, depth_cap, group, groups, sampler)
        if made["share_at_cap"] >= TOO_GOOD and made["depth_cap"] > 0 and made["rows"] >= TOO_GOOD_ROWS:
            made["too_good"] = True
            share = f"{100 * made['share_at_cap']:.0f} % of steps"
            notes.append(f"{share} accepted every draft: a repetition loop, or drafts that are no drafts")
    else:
        reasons.append("survival by depth is not known: accepted drafts are null, or their convention is not known")
    nodes, budget = rows.nodes[np.isfinite(rows.nodes)], rows.budget[np.isfinite(rows.budget)]
    if len(nodes):
        made["nodes_mean"] = float(nodes.mean())
    if len(budget):
        made["budget_mean"] = float(budget.mean())
    both = np.isfinite(rows.nodes) & np.isfinite(rows.budget)
    if both.any() and rows.budget[both].sum() > 0:
        made["budget_used"] = float(rows.nodes[both].sum() / rows.budget[both].sum())
    return Acceptance(**made, notes=tuple(notes), reason="; ".join(reasons) or None)


def _rows(frame: pd.DataFrame) -> _Rows:
    """Take the rows from whichever kind of table was given."""
    if "accepted_histogram" in frame.columns:
        return _from_histograms(frame)
    if "commit_lens" in frame.columns or "accepted_drafts" in frame.columns:
        return _from_lists(frame)
    keys = prompt_keys(frame)
    tokens, drafts = cols.finite(cols.numeric(frame, "tokens")), cols.finite(cols.numeric(frame, "drafts"))
    note = None
    if "matched" in frame.columns:
        shared = cols.text(frame, "matched") == "shared"
        if shared.any():
            drafts = np.where(shared, np.nan, drafts)
            note = f"{int(shared.sum()):,} rows are shares of batch averages: they say nothing about depth"
    last = np.zeros(len(frame), dtype=bool)
    if "step_index" in frame.columns and keys.source != "stretch":
        index = cols.numeric(frame, "step_index")
        top = pd.Series(index).groupby(keys.request_codes).transform("max").to_numpy(dtype=float)
        last = np.isfinite(index) & (index == top)
    weight = np.ones(len(frame))
    return _Rows(tokens, drafts, weight, cols.numeric(frame, "draft_nodes"), cols.numeric(frame, "budget"), keys, last, note)


def _from_lists(frame: pd.DataFrame) -> _Rows:
    """Take one row a sequence a step from the lists of step lines; a batch of one may say it as an average."""
    own = cols.text(frame, "step_why") != "duplicate_rank"
    lists = {n: cols.lists(frame, n) for n in ("commit_lens", "accepted_drafts", "nodes")}
    size = cols.numeric(frame, "batch_size")
    length = np.zeros(len(frame), dtype=np.int64)
    for _, at, valid in lists.values():
        length = np.where(valid, np.maximum(length, np.diff(at)), length)
    wrong = own & np.isfinite(size) & (length > 0) & (length != size)
    own = own & ~wrong
    length = np.where((length == 0) & ((size == 1) | np.isnan(size)), 1, length)
    length = np.where(own, length, 0)
    start = np.concatenate([[0], np.cumsum(length)])
    flat = {}
    for name, (values, at, valid) in lists.items():
        column = np.full(int(start[-1]), np.nan)
        for_rows = np.flatnonzero(valid & own & (np.diff(at) > 0))
        counts = np.diff(at)[for_rows]
        inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        column[np.repeat(start[for_rows], counts) + inside] = values[np.repeat(at[for_rows], counts) + inside]
        flat[name] = column
    for name, mean in (("commit_lens", "avg_commit_len"), ("accepted_drafts", "avg_accepted_drafts")):
        lone = np.flatnonzero(length == 1)
        lone = lone[np.isnan(flat[name][start[lone]])]
        values = cols.numeric(frame, mean)[lone]
        whole = np.isfinite(values) & (values == np.round(values))
        flat[name][start[lone[whole]]] = values[whole]
    which = np.repeat(np.arange(len(frame)), length)
    wanted = ("stream", "host", "boot_id", "pid", "dp_rank", "step_us", "time", "time_us")
    ids = frame.iloc[which][[c for c in wanted if c in frame.columns]]
    keys = prompt_keys(ids.reset_index(drop=True))
    note = None
    drafts = flat["accepted_drafts"]
    if np.isfinite(drafts).any() and not commit_convention(frame, warn=False).bonus_in_commit:
        note = "whether the accepted drafts contain the root or the bonus token is not known: depths may be one too large"
    if wrong.any():
        odd = f"{plural(int(wrong.sum()), 'step')} left out: lists longer or shorter than the batch"
        note = f"{note}; {odd}" if note else odd
    root = nodes_convention(frame).counts_root
    nodes = flat["nodes"] - 1 if root else flat["nodes"] if root is False else np.full(len(drafts), np.nan)
    budget, last = cols.numeric(frame, "budget")[which], np.zeros(len(which), dtype=bool)
    return _Rows(flat["commit_lens"], drafts, np.ones(len(which)), nodes, budget, keys, last, note)


def _from_histograms(frame: pd.DataFrame) -> _Rows:
    """Take one weighted row a request a depth from histograms of accepted drafts; a step commits one more."""
    values, at, _ = cols.lists(frame, "accepted_histogram")
    which = np.repeat(np.arange(len(frame)), np.diff(at))
    depth = (np.arange(len(values)) - np.repeat(at[:-1], np.diff(at))).astype(float)
    used = np.isfinite(values) & (values > 0)
    ids = frame.iloc[which[used]].reset_index(drop=True)
    if "request_id" not in ids.columns:
        ids = ids.assign(request_id=which[used].astype(str))
    keys = prompt_keys(ids[["request_id", *(["prompt_id"] if "prompt_id" in ids.columns else [])]])
    count = int(used.sum())
    nothing = np.full(count, np.nan)
    note = "from histograms of accepted drafts: tokens are drafts + 1, the cut of last steps is not seen"
    return _Rows(depth[used] + 1, depth[used], values[used], nothing, nothing, keys, np.zeros(count, dtype=bool), note)


def _means(rows: _Rows, there: Bools, name: str) -> dict[str, float]:
    """Pooled mean, and mean over requests."""
    if not there.any():
        return {}
    values, weight = rows.tokens[there], rows.weight[there]
    codes = np.unique(rows.keys.request_codes[there], return_inverse=True)[1].reshape(-1)
    own = np.bincount(codes, weights=values * weight) / np.bincount(codes, weights=weight)
    return {f"{name}_micro": float(np.average(values, weights=weight)), f"{name}_macro": float(own.mean())}


def _parts(rows: _Rows, there: Bools) -> dict[str, Any]:
    """Means without last steps, of first requests of each prompt, and of repeats."""
    made: dict[str, Any] = {"last_steps": int(rows.last.sum())}
    inner = there & ~rows.last
    if inner.any():
        made["tokens_per_step_without_last"] = float(np.average(rows.tokens[inner], weights=rows.weight[inner]))
    if rows.keys.source == "stretch":
        return made
    first = np.full(rows.keys.prompts, np.iinfo(np.int64).max)
    appears = np.unique(rows.keys.request_codes, return_index=True)[1]
    np.minimum.at(first, rows.keys.codes, appears[rows.keys.request_codes])
    original = first[rows.keys.codes] == appears[rows.keys.request_codes]
    for name, part in (("distinct", there & original), ("repeats", there & ~original)):
        if part.any():
            made[f"tokens_per_step_{name}"] = float(np.average(rows.tokens[part], weights=rows.weight[part]))
    return made


def _intervals(
    rows: _Rows, there: Bools, cap: int | None, group: Ints, groups: int, sampler: Resampler, made: dict[str, Any]
) -> dict[str, float]:
    """Intervals of the micro and the macro mean, within what is possible: one token a step, and one more than the depth cap."""
    floor, ceiling = token_bounds(rows.tokens[there])
    bounds = floor, max(cap + 1.0, ceiling if math.isfinite(ceiling) else 0.0) if cap is not None else ceiling
    values = np.where(there, rows.tokens * rows.weight, np.nan)
    weight = np.where(there, rows.weight, np.nan)
    pooled = sampler.draws(sums_by(group, groups, values, weight))
    codes = np.unique(rows.keys.request_codes[there], return_inverse=True)[1].reshape(-1)
    own = np.bincount(codes, weights=values[there]) / np.bincount(codes, weights=weight[there])
    owner = np.zeros(len(own), dtype=np.int64)
    owner[codes] = group[there]
    macro = sampler.draws(sums_by(owner, groups, own, np.ones(len(own))))
    size = effective(np.bincount(group, weights=rows.weight, minlength=groups).astype(float))
    many = effective(np.bincount(owner, minlength=groups).astype(float))
    result = {}
    with np.errstate(invalid="ignore", divide="ignore"):
        for name, draws, count in (("micro", pooled, size), ("macro", macro, many)):
            key = f"tokens_per_step_{name}"
            ends = around(made[key], draws[:, 0] / draws[:, 1], count, sampler.level)
            result[key + "_low"], result[key + "_high"] = within(ends, *bounds)
    return result


def _survival(rows: _Rows, there: Bools, cap: int | None, group: Ints, groups: int, sampler: Resampler | None) -> dict[str, Any]:
    """Survival by depth, and the share at the depth cap."""
    drafts, weight, who = rows.drafts[there], rows.weight[there], group[there]
    seen = int(max(drafts.max(), 0))
    deepest = min(max(seen, cap or 0), 10_000)
    counts = np.array([float(weight[drafts >= d].sum()) for d in range(deepest + 1)])
    frame = _survival_frame(counts)
    if sampler is not None:
        total = np.bincount(who, weights=weight, minlength=groups).astype(float)
        size = effective(total)
        drawn = sampler.draws(total)
        for d in range(deepest + 1):
            reached = sampler.draws(np.bincount(who, weights=weight * (drafts >= d), minlength=groups).astype(float))
            with np.errstate(invalid="ignore", divide="ignore"):
                low, high = around(float(frame["survival"].to_numpy()[d]), reached / drawn, size, sampler.level, log=False)
            frame.loc[d, ["low", "high"]] = [max(low, 0.0), min(high, 1.0)] if np.isfinite(low) else [NAN, NAN]
    limit = cap if cap is not None else seen
    return {
        "survival": frame,
        "depth_cap": limit,
        "depth_cap_from": "given" if cap is not None else "seen",
        "share_at_cap": float(weight[drafts >= limit].sum() / weight.sum()),
    }


def _survival_frame(counts: Floats) -> pd.DataFrame:
    """Make the table of survival from request-steps with at least so many drafts."""
    with np.errstate(invalid="ignore", divide="ignore"):
        survival = counts / counts[0] if len(counts) else counts
        conditional = np.concatenate([[np.nan], counts[1:] / counts[:-1]])[: len(counts)]
    return pd.DataFrame(
        {
            "depth": np.arange(len(counts)),
            "rows": counts,
            "survival": cols.finite(survival),
            "conditional": cols.finite(conditional),
            "low": np.nan,
            "high": np.nan,
        }
    )


def survival_from_histogram(histogram: Iterable[Any]) -> pd.DataFrame:
    """Make survival and conditional acceptance by depth from a histogram of accepted drafts.

    Parameters
    ----------
    histogram : iterable of int
        Steps by number of accepted drafts, from 0.

    Returns
    -------
    pandas.DataFrame
        ``depth``, ``rows``, ``survival``, ``conditional``.

    Examples
    --------
    >>> survival_from_histogram([2, 1, 1])["survival"].tolist()
    [1.0, 0.5, 0.25]
    """
    values = np.array([number(v) for v in histogram], dtype=float)
    values = np.where(np.isfinite(values) & (values > 0), values, 0.0)
    return _survival_frame(np.cumsum(values[::-1])[::-1])[["depth", "rows", "survival", "conditional"]]
