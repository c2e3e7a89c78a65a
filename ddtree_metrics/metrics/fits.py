"""How step time goes with context: t = a + b * context + c * batch + d * nodes, and whether a line is enough."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ddtree_metrics.errors import MetricError
from ddtree_metrics.layout import plural
from ddtree_metrics.metrics.choice import choose
from ddtree_metrics.metrics.confidence import widening
from ddtree_metrics.metrics.confounding import TOGETHER
from ddtree_metrics.metrics.knees import KneeRows, find_knee, level_variance
from ddtree_metrics.metrics.models import ClassMeans, Model, Regression, without_outliers
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.frames import Floats, Ints
from ddtree_metrics.steps.given import takes
from ddtree_metrics.steps.repeated_prompts import prompt_keys

MODELS = ("flat", "line", "bend", "curve")

NAN = float("nan")


@dataclass(frozen=True)
class Share:
    """The share of a step time that is due to context.

    Attributes
    ----------
    share, low, high : float
        ``1 - t(0) / t(context)``, with its interval.
    extrapolated : bool
        Whether the context lies outside the data, or so does 0 by far.
    reason : str or None
        Why it is not known.
    slope_ms_per_1000, slope_low, slope_high : float
        Mean slope of the same curve between 0 and the context: its interval holds 0 if and only if that of the share does.
    """

    share: float
    low: float
    high: float
    extrapolated: bool
    reason: str | None = None
    slope_ms_per_1000: float = NAN
    slope_low: float = NAN
    slope_high: float = NAN


@dataclass(frozen=True)
class FittedEffect:
    """Step time at one context length against another, all from one fitted line.

    Attributes
    ----------
    context_low, context_high : float
        The two context lengths.
    step_time_low_ms, step_time_high_ms : float
        The line there.
    ratio, ratio_low, ratio_high : float
        ``line(context_high) / line(context_low)``, with its interval.
    slope_ms_per_1000, slope_low, slope_high : float
        The same line's slope. Its interval holds 0 if and only if that of the ratio holds 1 (and that of the share 0).
    share, share_low, share_high : float
        Share of the higher step time that is due to the difference: ``1 - 1 / ratio``.
    extrapolated : bool
        Whether one of the two lies outside the data.
    reason : str or None
        Why it is not known, or has no interval.
    """

    context_low: float
    context_high: float
    step_time_low_ms: float = NAN
    step_time_high_ms: float = NAN
    ratio: float = NAN
    ratio_low: float = NAN
    ratio_high: float = NAN
    slope_ms_per_1000: float = NAN
    slope_low: float = NAN
    slope_high: float = NAN
    share: float = NAN
    share_low: float = NAN
    share_high: float = NAN
    extrapolated: bool = False
    reason: str | None = None


@dataclass(frozen=True)
class StepTimeFit:
    """A fit of step time.

    Attributes
    ----------
    model : str or None
        ``flat``, ``line``, ``bend``, ``curve``: the simplest that predicts steps of requests it has not seen as well as any; None
        if nothing could be fitted.
    context_term : str
        What the context term is: ``context_len`` (mean over the batch) or ``batch_context`` (sum over the batch, for attention
        reads all of it); the better one, where the data tell them apart.
    coefficients : pandas.DataFrame
        ``term``, ``estimate``, ``low``, ``high``, ``unit`` of the chosen model.
    intercept_ms : float
        Step time at no context (batch and nodes at zero).
    slope_ms_per_1000, slope_low, slope_high : float
        Slope of the *line* model, whichever was chosen.
    knee, knee_low, knee_high : float
        Where the slope changes; NaN unless a bend was chosen. The interval reaches at least to the observed contexts on both sides.
    rows, requests : int
        Steps and requests used.
    context_min, context_max, batch_typical, nodes_typical : float
        What the data cover.
    comparison : pandas.DataFrame
        ``model``, ``loss`` (out of request, relative to the line), ``gain`` and ``gain_low`` (over the next simpler one, and its
        lower bound), ``chosen``.
    dropped : dict of str to str
        Terms that could not be fitted, and why.
    sentence : str
        The fit in words.
    reason : str or None
        Why there is no fit, or no interval.
    """

    model: str | None
    context_term: str
    coefficients: pd.DataFrame
    intercept_ms: float
    slope_ms_per_1000: float
    slope_low: float
    slope_high: float
    knee: float
    knee_low: float
    knee_high: float
    rows: int
    requests: int
    context_min: float
    context_max: float
    batch_typical: float
    nodes_typical: float
    comparison: pd.DataFrame
    dropped: dict[str, str]
    sentence: str
    reason: str | None = None
    _form: Model | None = field(default=None, repr=False, compare=False)
    _beta: Floats | None = field(default=None, repr=False, compare=False)
    _line: tuple[Floats, Floats | None] | None = field(default=None, repr=False, compare=False)
    _draws: Floats | None = field(default=None, repr=False, compare=False)
    _extra: tuple[str, ...] = field(default=(), repr=False, compare=False)
    _groups: float = field(default=0.0, repr=False, compare=False)
    _level: float = field(default=0.9, repr=False, compare=False)

    def predict(
        self, context: Any, batch: float | None = None, nodes: float | None = None, *, batch_context: float | None = None
    ) -> pd.DataFrame:
        """Predict step time at given context lengths.

        Parameters
        ----------
        context : array_like
            Context length of each request of the batch.
        batch, nodes : float, optional
            Batch size and nodes; typical ones where not given.
        batch_context : float, optional
            Context of the whole batch, where its requests differ in it; context times batch size where not given.

        Returns
        -------
        pandas.DataFrame
            ``context``, ``step_time_ms``, ``low``, ``high``, ``extrapolated``; NaN where nothing was fitted.
        """
        at = np.atleast_1d(np.asarray(context, dtype=float))
        made = pd.DataFrame({"context": at, "step_time_ms": NAN, "low": NAN, "high": NAN, "extrapolated": self._outside(at, batch)})
        if self._form is None or self._beta is None:
            return made
        total = self.context_term == "batch_context" and batch_context is not None and np.isfinite(batch_context)
        design = self._design(at, batch, nodes, total=batch_context if total else None)
        made["step_time_ms"] = design @ self._beta
        if self._draws is not None:
            drawn = self._draws @ design.T
            ends = [_ends(float(e), d, self._groups, self._level) for e, d in zip(made["step_time_ms"], drawn.T, strict=True)]
            made["low"], made["high"] = [e[0] for e in ends], [e[1] for e in ends]
        return made

    def share_at(self, context: float, batch: float | None = None) -> Share:
        """Return the share of the step time at a context length that is due to context: ``1 - t(0) / t(context)``.

        It is that of the chosen form; the slope beside it is the mean slope of the same form. Where a flat fit was chosen both are
        those of the line, which are about zero and have an interval.
        """
        form = None if self._form is None else Model("line") if self._form.kind == "flat" else self._form
        made = self._between(0.0, float(context), batch, form)
        away = made.extrapolated
        if form is not None and np.isfinite(made.ratio):
            away = bool(self._outside(np.array([float(context)]), batch)[0]) or self.context_min > 0.25 * self.context_max
        slope = (made.slope_ms_per_1000, made.slope_low, made.slope_high)
        return Share(made.share, made.share_low, made.share_high, away, made.reason, *slope)

    def effect(self, context_low: float, context_high: float, batch: float | None = None) -> FittedEffect:
        """Compare step time at two context lengths by the fitted line.

        Ratio, slope and share come from the same line and the same resamples, so that none contradicts another. The line is that of
        ``slope_ms_per_1000``, whichever form was chosen.

        Parameters
        ----------
        context_low, context_high : float
            The two context lengths, of each request of the batch.
        batch : float, optional
            Batch size; the typical one where not given.

        Returns
        -------
        FittedEffect
        """
        return self._between(float(context_low), float(context_high), batch, None if self._line is None else Model("line"))

    def _between(self, first: float, second: float, batch: float | None, form: Model | None) -> FittedEffect:
        """Compare a form at two contexts: every number from the same coefficients, and every interval from the same draws."""
        if form is None or self._form is None or self._beta is None or (form.kind == "line" and self._line is None):
            return FittedEffect(first, second, reason=self.dropped.get("context") or self.reason or "nothing was fitted")
        beta, draws = self._beta, self._draws
        if form.kind == "line":
            assert self._line is not None
            beta, draws = self._line
        if not first < second:
            return FittedEffect(first, second, reason="the second context is not the longer one")
        design = self._design(np.array([first, second]), batch, None, form)
        ends = design @ beta
        outside = bool(self._outside(np.array([first, second]), batch).any())
        if not (ends > 0).all():
            reason = "the fit gives no positive step time there"
            return FittedEffect(first, second, float(ends[0]), float(ends[1]), extrapolated=True, reason=reason)
        run = float(self._x(np.array([second - first]), batch)[0]) / 1000.0
        slope, ratio = float(ends[1] - ends[0]) / run, float(ends[1] / ends[0])
        low = high = slope_low = slope_high = NAN
        why = self.reason
        if draws is not None:
            # widened around the estimate as every interval is, before the ratio is taken: so its sign is the slope's
            drawn = ends + widening(self._groups, self._level) * (draws @ design.T - ends)
            slope_low, slope_high = _quantiles((drawn[:, 1] - drawn[:, 0]) / run, slope, self._level)
            with np.errstate(invalid="ignore", divide="ignore"):
                ratios = np.where(
                    drawn[:, 0] > 0, np.maximum(drawn[:, 1], 0.0) / drawn[:, 0], np.where(drawn[:, 1] > drawn[:, 0], np.inf, 0.0)
                )
            low, high = _quantiles(ratios, ratio, self._level)
            if not (low > 0 and np.isfinite(high)):
                low = high = NAN
                why = "the step time at one of the two contexts may be zero: the ratio has no interval"
        return FittedEffect(
            first,
            second,
            float(ends[0]),
            float(ends[1]),
            ratio,
            low,
            high,
            slope,
            slope_low,
            slope_high,
            1.0 - 1.0 / ratio,
            1.0 - 1.0 / low,
            1.0 - 1.0 / high,
            outside,
            why,
        )

    def _x(self, context: Floats, batch: float | None) -> Floats:
        """Return the context term of some context lengths: of one request, or of the whole batch."""
        size = self.batch_typical if batch is None else float(batch)
        return context * size if self.context_term == "batch_context" else context

    def _design(
        self, context: Floats, batch: float | None, nodes: float | None, form: Model | None = None, total: float | None = None
    ) -> Floats:
        """Return the design matrix of some context lengths."""
        form = form or self._form
        assert form is not None
        size = self.batch_typical if batch is None else float(batch)
        x = self._x(context, batch)
        x = x if total is None else np.full(len(x), float(total))
        values = {"batch": size, "nodes": self.nodes_typical if nodes is None else float(nodes)}
        extra = np.column_stack([np.full(len(x), values[t]) for t in self._extra]) if self._extra else np.zeros((len(x), 0))
        return form.design(x, extra)

    def _outside(self, context: Floats, batch: float | None) -> Any:
        size = self.batch_typical if batch is None else float(batch)
        x = context * size if self.context_term == "batch_context" and np.isfinite(size) else context
        return ~((x >= self.context_min) & (x <= self.context_max))


@dataclass(frozen=True)
class _Steps:
    """One row a step: what the fit is made of."""

    mean_context: Floats
    sum_context: Floats
    batch: Floats
    nodes: Floats
    ms: Floats
    codes: Ints
    requests: int
    source: str


def _one_row_a_step(frame: pd.DataFrame) -> _Steps:
    """Collapse request steps to steps: mean and summed context, and the first request to stand for the batch."""
    keys = prompt_keys(frame)
    step = cols.step_codes(frame)
    _, first, place = np.unique(step, return_index=True, return_inverse=True)
    place = place.reshape(-1)
    count = len(first)
    context = cols.finite(cols.numeric(frame, "context_len"))
    known = np.isfinite(context)
    seen = np.bincount(place, weights=known, minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(place, weights=np.where(known, context, 0.0), minlength=count) / seen
    batch = cols.finite(cols.numeric(frame, "batch_size"))[first]
    batch = np.where(np.isnan(batch), np.bincount(place, minlength=count), batch)
    total = cols.finite(cols.numeric(frame, "batch_context"))[first]
    total = np.where(np.isnan(total) & (seen == batch), mean * batch, total)
    mean = np.where(np.isfinite(total) & (batch > 0), total / np.maximum(batch, 1), mean)
    nodes = cols.finite(cols.numeric(frame, "draft_nodes"))
    all_nodes = np.bincount(place, weights=np.nan_to_num(nodes), minlength=count).astype(float)
    all_nodes[np.bincount(place, weights=np.isnan(nodes), minlength=count) > 0] = np.nan
    return _Steps(mean, total, batch, all_nodes, cols.step_ms(frame)[first], keys.codes[first], keys.counts()[1], keys.source)


@takes("request_steps", "context_len", fill=())
def fit_step_time(
    request_steps: pd.DataFrame,
    *,
    batch: bool = True,
    nodes: bool = False,
    models: tuple[str, ...] = MODELS,
    level: float = 0.9,
    resamples: int = 400,
    seed: int = 0,
) -> StepTimeFit:
    """Fit step time against context, robustly, and choose honestly how much of a curve the data support.

    Parameters
    ----------
    request_steps : pandas.DataFrame
        One row a request a step.
    batch, nodes : bool
        Whether batch size and verified nodes are terms of the fit.
    models : tuple of str
        Forms to choose from, of flat, line, bend and curve.
    level, resamples, seed
        Level of the intervals; how often requests are resampled, and from which start.

    Returns
    -------
    StepTimeFit

    Raises
    ------
    MetricError
        If a model has no such name.
    """
    unknown = [m for m in models if m not in MODELS]
    if unknown or not models:
        raise MetricError(f"models are some of {', '.join(MODELS)}, not {', '.join(unknown) or 'none'}")
    steps = _one_row_a_step(request_steps)
    usable = np.isfinite(steps.ms) & np.isfinite(steps.mean_context)
    rows = int(usable.sum())
    if rows < 3:
        if not len(steps.ms):
            why = "there are no steps"
        elif not np.isfinite(steps.ms).any():
            why = "no step has a step time"
        elif not np.isfinite(steps.mean_context).any():
            why = "no step has a known context length"
        else:
            why = f"{plural(rows, 'step')} with both step time and context: too few for a fit"
        return _nothing(why, rows)
    dropped: dict[str, str] = {}
    x, term = steps.mean_context[usable], "context_len"
    y, codes = steps.ms[usable], steps.codes[usable]
    extra, names = _terms(steps, usable, x, batch, nodes, dropped)
    constant = bool(np.ptp(x) <= 1e-9 * max(1.0, float(np.abs(x).max())))
    sums = steps.sum_context[usable]
    if batch and not constant and np.isfinite(sums).all() and np.ptp(steps.batch[usable]) > 0:
        other_dropped: dict[str, str] = {}
        other, other_names = _terms(steps, usable, sums, batch, nodes, other_dropped)
        if _line_loss(sums, other, y, codes, seed) < _line_loss(x, extra, y, codes, seed):
            x, extra, names, term, dropped = sums, other, other_names, "batch_context", other_dropped
    tamed, weight = without_outliers(x, extra, y, seed)
    cells = ClassMeans.of(x, extra, tamed, weight, codes, seed=seed)
    reason = _why_no_intervals(steps.source, cells)
    if constant:
        dropped["context"] = f"the context is {x[0]:.0f} tokens in every step: nothing can be said about how step time goes with it"
        forms: dict[str, list[Model]] = {"flat": [Model("flat")]}
        models = ("flat",)
    regression = Regression(_blocks(cells) if cells.effective < 1.8 else cells, seed=seed)
    if not constant:
        forms = {"flat": [Model("flat")], "line": [Model("line")], "bend": regression.knees("bend"), "curve": [Model("curve")]}
        forms = {k: v for k, v in forms.items() if k in models and v}
        if len(np.unique(x)) < 4:
            forms = {k: v for k, v in forms.items() if k in ("flat", "line")} or {"line": [Model("line")]}
    draws = lines = None
    slope = float(regression.fit(Model("line"))[1]) if not constant else NAN
    low = high = NAN
    sampler = regression.sampler(resamples=resamples, level=level) if reason is None else None
    if sampler is not None and not constant:
        lines = regression.fit(Model("line"), sampler.weights)
        low, high = _ends(slope, lines[:, 1], cells.effective, level)
    sloped = None if lines is None else bool(low > 0 or high < 0)
    comparison, chosen = choose(regression, forms, scale=float(np.average(tamed, weights=weight)), sloped=sloped)
    form = regression.best(forms[chosen])
    assert form is not None
    knee_low = knee_high = NAN
    if chosen == "bend":
        found = KneeRows.of(x, extra, tamed, weight, codes, seed=seed)
        between = level_variance(found, "bend", form.knee)
        knee = find_knee(found, "bend", sampler, between=between, level=level, minimum=2 if sampler is not None else 1)
        if knee is not None:
            form, knee_low, knee_high = Model("bend", knee.place), knee.low, knee.high
    beta = regression.fit(form)
    if sampler is not None:
        draws = regression.fit(form, sampler.weights)
    fit = StepTimeFit(
        model=chosen,
        context_term=term,
        coefficients=_coefficients(form, names, term, beta, draws, cells.effective, level),
        intercept_ms=float(beta[0]),
        slope_ms_per_1000=slope,
        slope_low=low,
        slope_high=high,
        knee=form.knee,
        knee_low=knee_low,
        knee_high=knee_high,
        rows=rows,
        requests=steps.requests if steps.source != "stretch" else 0,
        context_min=float(x.min()),
        context_max=float(x.max()),
        batch_typical=float(np.median(steps.batch[usable])),
        nodes_typical=float(np.median(steps.nodes[usable])) if np.isfinite(steps.nodes[usable]).any() else NAN,
        comparison=comparison,
        dropped=dropped,
        sentence="",
        reason=reason,
        _form=form,
        _beta=beta,
        _line=None if constant else (regression.fit(Model("line")), lines),
        _draws=draws,
        _extra=names,
        _groups=cells.effective,
        _level=level,
    )
    object.__setattr__(fit, "sentence", _sentence(fit))
    return fit


def _terms(steps: _Steps, usable: Any, x: Floats, batch: bool, nodes: bool, dropped: dict[str, str]) -> tuple[Floats, tuple[str, ...]]:
    """Collect the terms beside context that vary, and that can be told apart from it."""
    columns: list[Floats] = []
    names: list[str] = []
    for wanted, name, values in ((batch, "batch", steps.batch[usable]), (nodes, "nodes", steps.nodes[usable])):
        if not wanted:
            continue
        if not np.isfinite(values).all():
            dropped[name] = f"{name} is not known for every step"
        elif np.ptp(values) <= 0:
            dropped[name] = f"{name} is {values[0]:g} in every step"
        else:
            against = [("context", x), *zip(names, columns, strict=True)]
            twin = next((n for n, v in against if np.ptp(v) > 0 and abs(np.corrcoef(v, values)[0, 1]) > TOGETHER), None)
            if twin:
                dropped[name] = f"{name} and {twin} rise together (|r| > {TOGETHER:.2f}): their effects cannot be told apart"
            else:
                columns.append(values)
                names.append(name)
    return (np.column_stack(columns) if columns else np.zeros((len(x), 0))), tuple(names)


def _line_loss(x: Floats, extra: Floats, y: Floats, codes: Ints, seed: int) -> float:
    """Return the squared error of a line, outliers tamed."""
    tamed, weight = without_outliers(x, extra, y, seed)
    regression = Regression(ClassMeans.of(x, extra, tamed, weight, codes, seed=seed), seed=seed)
    beta = regression.fit(Model("line"))
    design = Model("line").design(x, extra)
    away = np.abs(y - design @ beta) / np.maximum(np.abs(design @ beta), 1e-9)
    return float(np.minimum(away, 5 * np.median(away) + 1e-12).mean())


def _why_no_intervals(source: str, cells: ClassMeans) -> str | None:
    """Say why requests cannot be resampled, or None."""
    if cells.groups == 1:
        return "no intervals: " + {"request_id": "one request", "stretch": "one stretch of steps"}.get(source, "one distinct prompt")
    if cells.effective < 1.8:
        return "no intervals: one request makes up most of the steps"
    return None


def _blocks(cells: ClassMeans) -> ClassMeans:
    """Cut the rows of a single request into blocks, to have something to leave out; intervals are not made from these."""
    rows = len(cells.x)
    count = min(10, rows)
    block = (np.arange(rows) * count * 2 // rows) % count
    made = block.astype(np.int64)
    return ClassMeans(cells.x, cells.extra, cells.y, cells.weight, made, count, float(count), made)


def _ends(estimate: float, draws: Floats, groups: float, level: float) -> tuple[float, float]:
    """Make an interval around an estimate, widened for few groups, whose ends are values of draws."""
    return _quantiles(estimate + widening(groups, level) * (draws - estimate), estimate, level)


def _quantiles(draws: Floats, estimate: float, level: float) -> tuple[float, float]:
    """Return the ends between which draws lie, outwards to a draw: so the interval of a rising function of it has the same sign."""
    draws = draws[~np.isnan(draws)]
    if len(draws) < 20 or not np.isfinite(estimate):
        return NAN, NAN
    low = np.quantile(draws, 0.5 - level / 2, method="lower")
    high = np.quantile(draws, 0.5 + level / 2, method="higher")
    return min(float(low), estimate), max(float(high), estimate)


def _coefficients(
    form: Model, names: tuple[str, ...], term: str, beta: Floats, draws: Floats | None, groups: float, level: float
) -> pd.DataFrame:
    """Make the table of coefficients of the chosen form."""
    unit = "ms per 1000 tokens" if term == "context_len" else "ms per 1000 tokens in the batch"
    labels = [("intercept", "ms")]
    if form.kind != "flat":
        labels.append((term, unit))
    if form.kind == "bend":
        labels.append(("beyond the knee", unit + ", added"))
    elif form.kind == "curve":
        labels.append((f"{term} squared", unit.replace("1000 tokens", "(1000 tokens)^2")))
    labels += [(n, "ms per sequence" if n == "batch" else "ms per node") for n in names]
    rows = []
    for i, (label, words) in enumerate(labels):
        low, high = _ends(float(beta[i]), draws[:, i], groups, level) if draws is not None else (NAN, NAN)
        rows.append({"term": label, "estimate": float(beta[i]), "low": low, "high": high, "unit": words})
    return pd.DataFrame(rows, columns=["term", "estimate", "low", "high", "unit"])


def _nothing(why: str, rows: int) -> StepTimeFit:
    """Make the result of a fit that could not be made."""
    return StepTimeFit(
        None,
        "context_len",
        pd.DataFrame(columns=["term", "estimate", "low", "high", "unit"]),
        *(NAN,) * 7,
        rows,
        0,
        *(NAN,) * 4,
        pd.DataFrame(columns=["model", "loss", "gain", "gain_low", "chosen"]),
        {},
        f"Step time cannot be fitted: {why}.",
        why,
    )


def _sentence(fit: StepTimeFit) -> str:
    """Say a fit in words, without a number that is not known."""
    where = "of context" if fit.context_term == "context_len" else "of context in the batch"
    span = f"{fit.context_min:,.0f} to {fit.context_max:,.0f} tokens"
    if "context" in fit.dropped:
        return f"Step time {fit.intercept_ms:.1f} ms; {fit.dropped['context']}."
    between = f" ({fit.slope_low:.2f} to {fit.slope_high:.2f})" if np.isfinite(fit.slope_low) else ""
    if fit.model == "flat":
        goes = "hardly goes" if fit.slope_low > 0 or fit.slope_high < 0 else "does not go"
        text = f"Step time {goes} with context between {span}: a line has {fit.slope_ms_per_1000:.2f}{between} ms per 1000 tokens."
    elif fit.model == "line":
        text = f"Step time rises by {fit.slope_ms_per_1000:.2f}{between} ms per 1000 tokens {where}, from {span}."
        if fit.slope_ms_per_1000 < 0:
            between = f" ({-fit.slope_high:.2f} to {-fit.slope_low:.2f})" if np.isfinite(fit.slope_low) else ""
            text = f"Step time falls by {-fit.slope_ms_per_1000:.2f}{between} ms per 1000 tokens {where}, from {span}."
    elif fit.model == "bend":
        first, more = (float(v) for v in fit.coefficients["estimate"].to_numpy()[1:3])
        knee = f"{fit.knee:,.0f}" + (f" ({fit.knee_low:,.0f} to {fit.knee_high:,.0f})" if np.isfinite(fit.knee_low) else "")
        text = f"Step time changes slope at {knee} tokens {where}: {first:.2f} ms per 1000 tokens below, {first + more:.2f} above."
    else:
        slope = f"{fit.slope_ms_per_1000:.2f}{between} ms per 1000 tokens {where}"
        text = f"Step time goes with context along a curve, on average {slope}, {span}."
    return text + (f" ({fit.reason}.)" if fit.reason else "")
