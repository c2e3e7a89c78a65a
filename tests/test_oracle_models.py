"""The models of ``diagnosis`` beside statsmodels': the same estimates, and standard errors that are no smaller.

Tolerances. Where both solve the same normal equations the estimates agree to rounding. Where both iterate (Huber) they stop at slightly
different scales: ours takes the residuals' spread about their median, RLM about zero; a tenth of a standard error is far above what that
moves. Standard errors of ours rest on the derivative of Huber's psi (cells far off add nothing to what is known), statsmodels' WLS on the
weights themselves: ours are 1 to 13 % larger here. Where ours takes the largest variance over requests and blocks of time it may be
larger yet, and is never smaller than 0.9 of that over requests alone.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.optimize import least_squares

from ddtree_metrics.diagnosis.compare import _stalls
from ddtree_metrics.diagnosis.step_model import HUBER, StepModel, fit_steps
from ddtree_metrics.diagnosis.token_model import TokenModel, fit_tokens, linear
from ddtree_metrics.metrics.doubt import START_FLOOR, Partitions
from tests.models_data import STEP_SETS, TOKEN_SETS, Data, Rows, mean_of, step_data, wandering

HEAVY = {"stalls 1.5 % and 1.5 %", "stalls 1.5 % and 6 %", "heavy tails"}
"""Sets in which means and robust estimates answer different questions, or with different precision."""


def clustered(y: np.ndarray, x: np.ndarray, weight: np.ndarray, groups: np.ndarray) -> sm.regression.linear_model.RegressionResults:
    return sm.WLS(y, x, weights=weight).fit(cov_type="cluster", cov_kwds={"groups": groups})


def robust(y: np.ndarray, x: np.ndarray, weight: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what RLM says with Huber's norm, each row as often as it weighs, and cluster-robust errors with the weights it ends with."""
    often = weight.astype(int)
    found = sm.RLM(np.repeat(y, often), np.repeat(x, often, axis=0), M=sm.robust.norms.HuberT(HUBER)).fit()
    off = np.abs(y - x @ found.params)
    weights = weight * np.minimum(1.0, HUBER * found.scale / np.maximum(off, 1e-12))
    return found.params, clustered(y, x, weights, groups).bse


def all_of(model: StepModel) -> tuple[np.ndarray, np.ndarray]:
    """Return all coefficients with their standard errors."""
    made = [model.estimate(lambda beta, i=i: float(beta[i])) for i in range(len(model.beta))]
    return np.array([e.value for e in made]), np.array([e.se for e in made])


# -- step time -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STEP_SETS)
def test_a_model_of_factors_alone_is_the_robust_regression_of_the_log(name):
    d = STEP_SETS[name]()
    model = fit_steps(d.y, d.weight, {}, d.terms, d.by_request())
    value, se = all_of(model)
    expected, error = robust(np.log(d.y), sm.add_constant(np.column_stack([*d.terms.values()])), d.weight, d.request)
    value[0] = np.log(value[0])  # the intercept is in ms
    se[0] /= model.beta[0]
    assert np.abs((value - expected) / error).max() < 0.1
    assert (se / error).min() > 0.95
    assert (se / error).max() < 1.2
    both, wider = all_of(fit_steps(d.y, d.weight, {}, d.terms, d.by_request_and_time()))
    assert both[1:] == pytest.approx(value[1:])
    assert (wider[1:] / error[1:]).min() > 0.9


@pytest.mark.parametrize("name", STEP_SETS)
def test_a_model_of_sums_and_factors_is_where_a_robust_regression_on_its_derivatives_stays(name):
    # At the optimum of a nonlinear M-estimate the regression of residuals on derivatives moves nothing, and its errors are the estimate's.
    d = STEP_SETS[name]()
    added = {k: v for k, v in d.terms.items() if k != "group"}
    model = fit_steps(d.y, d.weight, added, {"group": d.group}, d.by_request())
    value, se = all_of(model)
    x = sm.add_constant(np.column_stack([*added.values()]))
    base = x @ value[:-1]
    slopes = np.column_stack([x / base[:, None], d.group])
    left = np.log(d.y) - np.log(base) - value[-1] * d.group
    expected, error = robust(left + slopes @ value, slopes, d.weight, d.request)
    assert np.abs((value - expected) / error).max() < 0.1
    assert (se / error).min() > 0.95
    assert (se / error).max() < 1.2


@pytest.mark.parametrize("name", STEP_SETS)
def test_a_model_of_sums_and_factors_is_what_a_general_minimiser_finds_from_elsewhere(name):
    d = STEP_SETS[name]()
    added = {k: v for k, v in d.terms.items() if k != "group"}
    model = fit_steps(d.y, d.weight, added, {"group": d.group}, d.by_request())
    value, se = all_of(model)
    x = sm.add_constant(np.column_stack([*added.values()]))
    # scipy's weights would move its threshold with them: a row as often as it weighs
    often = np.repeat(np.arange(len(d.y)), d.weight.astype(int))
    scale = 1.4826 * np.median(np.abs(np.log(d.y / model.fitted)))

    def left(beta: np.ndarray) -> np.ndarray:
        return (np.log(d.y) - np.log(np.maximum(x @ beta[:-1], 1e-3)) - beta[-1] * d.group)[often]

    start = np.r_[d.y.mean(), np.zeros(len(added)), 0.0]
    found = least_squares(left, start, loss="huber", f_scale=HUBER * scale, x_scale="jac")
    assert np.abs((value - found.x) / se).max() < 0.1


@pytest.mark.parametrize("name", [n for n in STEP_SETS if n not in HEAVY])
def test_slopes_in_ms_are_those_of_a_gamma_regression_where_tails_are_light(name):
    # Gamma errors grow in proportion to the mean, as ours do; identity link: a sum in ms. The group's factor is taken off, known.
    d = STEP_SETS[name]()
    added = {k: v for k, v in d.terms.items() if k != "group"}
    model = fit_steps(d.y, d.weight, added, {"group": d.group}, d.by_request())
    value, se = all_of(model)
    x = sm.add_constant(np.column_stack([*added.values()]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an identity link may leave the domain; here it does not
        family = sm.families.Gamma(sm.families.links.Identity())
        oracle = sm.GLM(d.y / np.exp(value[-1] * d.group), x, family=family, var_weights=d.weight).fit(
            cov_type="cluster", cov_kwds={"groups": d.request}
        )
    # Huber's estimate loses 1 to 5 % of precision to the mean's on normal errors, and half a standard error is what two such may differ
    assert np.abs((value[:-1] - oracle.params) / oracle.bse).max() < 0.5
    if "context:group" not in added:  # with the group's factor taken off as known, its own slope is far better known to the oracle
        assert (se[:-1] / oracle.bse).min() > 0.75
        assert (se[:-1] / oracle.bse).max() < 1.35


@pytest.mark.parametrize("name", [n for n in STEP_SETS if n not in HEAVY])
def test_factors_are_those_of_generalised_estimating_equations_with_a_log_link(name):
    d = STEP_SETS[name]()
    value, se = all_of(fit_steps(d.y, d.weight, {}, d.terms, d.by_request()))
    x = sm.add_constant(np.column_stack([*d.terms.values()]))
    family = sm.families.Gamma(sm.families.links.Log())
    oracle = sm.GEE(d.y, x, d.request, family=family, weights=d.weight, cov_struct=sm.cov_struct.Independence()).fit()
    assert np.abs((value[1:] - oracle.params[1:]) / oracle.bse[1:]).max() < 0.5
    assert (se[1:] / oracle.bse[1:]).min() > 0.75
    assert (se[1:] / oracle.bse[1:]).max() < 1.35


def test_errors_of_a_restart_in_noise_that_wanders_know_of_time_as_a_covariance_with_lags_does():
    # The second half differs by nothing. Newey and West with four minutes of lags; requests alone know of 22 seconds.
    ours, requests, lags, values = [], [], [], []
    for seed in range(60):
        d = step_data(seed, noise=lambda rng, n: 0.01 * rng.standard_normal(n) + wandering(rng, n, 0.04, 30.0))
        half = (np.arange(len(d.y)) >= len(d.y) // 2).astype(float)
        y = d.y / ((28 + 2.5 * d.context) * 1.1**d.group)
        parts = Partitions.of(d.request, d.time_us, half.astype(np.int64))
        found = fit_steps(y, d.weight, {}, {"half": half}, parts).coefficient("half")
        ours.append(found.se)
        values.append(found.value)
        x = sm.add_constant(half)
        requests.append(clustered(np.log(y), x, d.weight, d.request).bse[1])
        lags.append(sm.OLS(np.log(y), x).fit(cov_type="HAC", cov_kwds={"maxlags": 320, "use_correction": True}).bse[1])
    assert np.mean(ours) / np.mean(lags) > 0.9
    assert np.mean(ours) / np.mean(requests) > 1.2
    # Means of two stretches of 675 s of noise of 0.04 over 30 s differ by 0.04 x sqrt(2 x 2 x 30 / 675) = 0.017. No covariance that is
    # estimated from blocks or lags shorter than the log says so much (0.012): a contrast of starts has the floor for that.
    truth = 0.04 * np.sqrt(4 * 30 / 675)
    assert np.std(values) == pytest.approx(truth, rel=0.25)
    assert np.mean(ours) > 0.65 * truth
    assert np.sqrt(np.mean(ours) ** 2 + 2 * START_FLOOR**2) > truth


# -- stalls: what is usual, and the mean ---------------------------------------------------------------------------------------


def steps_that_stall(seed: int, before: float, after: float, own: float = 0.03, ratio: float = 1.0) -> Rows:
    """Make 60 requests of 60 steps of 30 ms, of which some take 3 to 7 times as long: 5 times, on average."""
    rng = np.random.default_rng([seed, 5])
    request = np.repeat(np.arange(60), 60)
    group = (request >= 30).astype(float)
    ms = 30 * ratio**group * np.exp(own * rng.standard_normal(60)[request] + 0.04 * rng.standard_normal(3600))
    stalled = rng.random(3600) < np.where(group == 1, after, before)
    return Rows(np.where(stalled, ms * rng.uniform(3, 7, 3600), ms), request, group)


@pytest.mark.parametrize(
    ("before", "after", "ratio"), [(0.015, 0.06, 1.0), (0.015, 0.015, 1.0), (0.06, 0.015, 1.0), (0.015, 0.06, 1.1), (0.0, 0.015, 1.0)]
)
def test_stalls_move_the_mean_and_not_what_is_usual(before, after, ratio):
    """The mean of p stalls of 5 is 1 + 4 p: 1.24 / 1.06 = 1.170 (log 0.157) for 1.5 against 6 %, at equal medians."""
    truth = np.log(ratio) + np.log((1 + 4 * after) / (1 + 4 * before))
    held, means, oracle = [], [], []
    for seed in range(20):
        rows = steps_that_stall(seed, before, after, ratio=ratio)
        cells = rows.cells()
        parts = Partitions.of(cells.owner, cells.time_us, cells.run)
        model = fit_steps(cells.usual, cells.weight, {}, {"group": (cells.part == 2).astype(float)}, parts)
        usual = model.coefficient("group")
        stalls = _stalls(cells, model.fitted, parts)
        if seed < 5:  # the median of the steps themselves, by the requests' own levels (3 %) not wholly the truth
            robustly = robust(np.log(rows.step_ms), sm.add_constant(rows.part - 1.0), rows.weight, rows.cluster)[0][1]
            # RLM sees 6 % of steps far off on one side: each weighs 2 scales at most, 0.06 x 2 x 0.05 = 0.006
            assert usual.value == pytest.approx(robustly, abs=0.01)
        assert usual.value == pytest.approx(np.log(ratio), abs=0.03)
        mean, reach = usual.value + stalls.value, 1.7 * np.hypot(usual.se, stalls.se)
        means.append(mean)
        held.append(abs(mean - truth) <= reach)
        family = sm.families.Gamma(sm.families.links.Log())
        found = sm.GEE(rows.step_ms, sm.add_constant(rows.part - 1.0), rows.cluster, family=family).fit()
        oracle.append((found.params[1], found.bse[1]))
    # of 20 intervals of 90 %, 16 or more hold the truth with a probability of 96 %
    assert sum(held) >= 16
    # the mean over 20 seeds is known to a fifth of the error of one
    assert np.mean(means) == pytest.approx(truth, abs=3 * np.mean([se for _, se in oracle]) / np.sqrt(20))
    assert means == pytest.approx([value for value, _ in oracle], abs=0.015)


# -- tokens per step -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TOKEN_SETS)
def test_a_linear_fit_is_weighted_least_squares_with_errors_by_request(name):
    d = TOKEN_SETS[name]()
    oracle = clustered(d.y, sm.add_constant(np.column_stack([*d.terms.values()])), d.weight, d.request)
    found = linear(d.y, d.weight, d.terms, d.by_request())
    assert found.beta == pytest.approx(oracle.params, rel=1e-6, abs=1e-9)
    se = [found.combination({}, 1.0).se, *(found.combination({k: 1.0}).se for k in d.terms)]
    # the same but for the divisor: rows less terms there, each row's own pull here
    assert se == pytest.approx(oracle.bse, rel=0.01)


def within_and_between(d: Data) -> tuple[TokenModel, dict[str, np.ndarray]]:
    moving = {k: v for k, v in d.terms.items() if k != "group"}
    return fit_tokens(d.y, d.weight, d.request, d.request, d.time_us, moving, moving, levels={"group": d.group}), moving


@pytest.mark.parametrize("name", TOKEN_SETS)
def test_slopes_within_requests_are_those_beside_a_constant_for_each_request(name):
    d = TOKEN_SETS[name]()
    model, moving = within_and_between(d)
    each = (d.request[:, None] == np.arange(d.request.max() + 1)).astype(float)
    oracle = clustered(d.y, np.column_stack([*moving.values(), each]), d.weight, d.request)
    found = [model.within.combination({k: 1.0}) for k in moving]
    k = len(moving)
    assert [e.value for e in found] == pytest.approx(oracle.params[:k], rel=1e-6)
    # the oracle counts the requests' constants among what was fitted: sqrt(rows / (rows - requests)), 2 % for 30 cells each
    assert [e.se for e in found] == pytest.approx(oracle.bse[:k], rel=0.03)


@pytest.mark.parametrize("name", TOKEN_SETS)
def test_slopes_between_requests_are_those_of_a_random_intercept(name):
    d = TOKEN_SETS[name]()
    model, moving = within_and_between(d)
    means = [mean_of(d, v) for v in moving.values()]
    x = np.column_stack([np.ones(len(d.y)), *means, d.group, *(v - m for v, m in zip(moving.values(), means, strict=True))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "no texts at all": a variance of zero is at the edge of what may be
        mixed = sm.MixedLM(d.y, x, d.request).fit()
    exchangeable = sm.GEE(d.y, x, d.request, weights=None, cov_struct=sm.cov_struct.Exchangeable()).fit()
    found = [model.between.combination({k: 1.0}) for k in (*moving, "group")]
    wanted = slice(1, len(found) + 1)
    value, se = np.array([e.value for e in found]), np.array([e.se for e in found])
    # Neither oracle takes weights, so that "unequal weights" (1 to 25 at random) is the same question with a fifth less information.
    near = 0.5 if name == "unequal weights" else 0.02
    assert np.abs((value - mixed.params[wanted]) / mixed.bse[wanted]).max() < near
    assert np.abs((value - exchangeable.params[wanted]) / exchangeable.bse[wanted]).max() < near
    # MixedLM's errors rest on its model, ours on what is seen of the requests, sixty of them: their own error is 1 / sqrt(2 x 60) = 9 %.
    assert (se / mixed.bse[wanted]).min() > 0.75
    assert (se / mixed.bse[wanted]).max() < 1.35
    # Sandwiches of few clusters are too small, and GEE does not mend that; ours does: G / (G - 1), and each one's pull (HC2).
    assert (se / exchangeable.bse[wanted]).min() > 0.95
    assert (se / exchangeable.bse[wanted]).max() < (2.0 if name == "eight requests" else 1.35)


def test_a_slope_between_requests_is_that_of_what_was_seen_whatever_the_slope_within():
    # -0.2 within and +0.1 between: the second is 0.1, not what is left of it when -0.2 is taken off (0.3); and 0, not 0.2
    for name, truth in (("another slope between than within", 0.1), ("a slope within only", 0.0), ("calm", -0.15)):
        between = within_and_between(TOKEN_SETS[name]())[0].slope("context", within=False)
        assert between.value == pytest.approx(truth, abs=2 * between.se)
        assert between.se < 0.05
