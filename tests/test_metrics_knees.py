"""Knees: where acceptance changes, how well that is known, and whether it is the context or another kind of text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_metrics.metrics import WindowKnee, find_window_knee, fit_step_time
from ddtree_metrics.metrics.confidence import Resampler
from ddtree_metrics.metrics.knees import KneeRows, Profile, find_knee, within_jump
from tests.test_metrics_fits import made_up


def dropping(
    seed: int,
    *,
    knee: float = 2048,
    requests: int = 40,
    steps: int = 60,
    contexts: tuple[int, int] = (1500, 2600),
    below: float = 4.0,
    above: float = 2.8,
    texts: float = 0.15,
) -> pd.DataFrame:
    """Return steps whose mean commit drops at a knee; requests differ by a factor of about ``exp(texts)``."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(requests), steps)
    context = np.repeat(rng.integers(*contexts, requests), steps) + 4 * np.tile(np.arange(steps), requests)
    mean = np.where(context > knee, above, below) * np.exp(rng.normal(0, texts, requests))[ids]
    tokens = 1 + rng.poisson(np.maximum(mean - 1, 0))
    return pd.DataFrame({"request_id": ids.astype(str), "context_len": context, "tokens": tokens})


def bending(seed: int) -> pd.DataFrame:
    """Return steps whose mean commit is 5 up to 3000 tokens, and falls by 1.2 per 1000 tokens from there."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(60), 300)
    context = np.repeat(rng.integers(200, 4500, 60), 300) + 4 * np.tile(np.arange(300), 60)
    mean = (5.0 - 1.2 * np.maximum(context - 3000, 0) / 1000) * np.exp(rng.normal(0, 0.05, 60))[ids]
    return pd.DataFrame({"request_id": ids.astype(str), "context_len": context, "tokens": 1 + rng.poisson(mean - 1)})


def rows_of(frame: pd.DataFrame) -> KneeRows:
    """Return a frame's rows as the profile takes them."""
    x, y = (frame[c].to_numpy(dtype=float) for c in ("context_len", "tokens"))
    codes = np.unique(frame["request_id"], return_inverse=True)[1]
    return KneeRows.of(x, np.zeros((len(x), 0)), y, np.ones(len(x)), codes, seed=0)


def sampler_of(rows: KneeRows, resamples: int = 200) -> Resampler:
    """Return resamples of its requests."""
    return Resampler.over(rows.groups, resamples=resamples, seed=0, level=0.9)


def without_gap(frame: pd.DataFrame, low: int = 2000, high: int = 3000) -> pd.DataFrame:
    """Leave out what was measured between two contexts."""
    return frame[(frame["context_len"] <= low) | (frame["context_len"] >= high)]


@pytest.fixture(scope="module")
def hundred() -> list[WindowKnee]:
    """Return the answers for a hundred drops at exactly 2048."""
    return [find_window_knee(dropping(seed, steps=80, requests=30), 2048, resamples=100) for seed in range(100)]


def test_a_drop_exactly_at_the_window_is_supported_in_95_of_100_runs(hundred: list[WindowKnee]) -> None:
    assert sum(k.verdict == "supported" for k in hundred) >= 95


def test_the_interval_of_a_knee_holds_the_truth_in_85_to_100_of_100_runs(hundred: list[WindowKnee]) -> None:
    held = [k.knee_low <= 2048 <= k.knee_high for k in hundred if k.model == "drop"]
    assert len(held) >= 95
    assert sum(held) >= 0.85 * len(held)
    assert [k.at_window for k in hundred if k.model == "drop"] == held
    # and is of use: about ten requests cross the knee, in steps of 4 tokens
    assert np.median([k.knee_high - k.knee_low for k in hundred]) < 100


def test_the_jump_within_requests_holds_the_truth_in_85_to_97_of_100_runs(hundred: list[WindowKnee]) -> None:
    # 2.8 / 4.0 = 0.7
    held = [k.within_low <= 0.7 <= k.within_high for k in hundred if np.isfinite(k.within_low)]
    assert len(held) >= 95
    assert 0.85 * len(held) <= sum(held) <= 0.97 * len(held)


@pytest.mark.parametrize("seed", range(4))
def test_where_nothing_was_measured_a_knee_may_be_anywhere_in_the_gap(seed: int) -> None:
    frame = without_gap(dropping(seed, contexts=(1000, 4000), steps=200, below=4.0, above=2.4))
    last, first = frame["context_len"][frame["context_len"] <= 2000].max(), frame["context_len"][frame["context_len"] >= 3000].min()
    known, free = find_window_knee(frame, 2048), find_window_knee(frame)
    assert known.at_window
    assert known.verdict != "refuted"
    for found in (known, free):
        assert found.model == "drop"
        assert found.knee_low <= last
        assert found.knee_high >= first
    # in the gap, the window if it is known, and its middle if not: nothing more precise is shown
    if last <= free.knee < first:
        assert known.knee == 2048
        assert free.knee == (last + first) / 2


def test_a_knee_without_a_known_window_is_returned_and_said() -> None:
    found = find_window_knee(dropping(3))
    assert (found.verdict, found.model, found.at_window) == ("found", "drop", None)
    assert found.knee == pytest.approx(2048, abs=40)
    assert found.size_low < 0.7 < found.size_high
    assert found.knee_below > 1.2 * found.knee_above
    assert (found.below, found.above) == (found.knee_below, found.knee_above)
    assert found.sentence.startswith(f"Acceptance drops at about {found.knee:,.0f} tokens of context (")
    assert "the drafter's window is not known" in found.sentence
    assert found.within_at == found.knee
    assert found.crossing >= 6


def test_a_bend_without_a_known_window_has_its_place_and_both_slopes() -> None:
    made = [find_window_knee(bending(seed)) for seed in range(4)]
    bends = [f for f in made if f.model == "bend"]
    assert len(bends) >= 3
    assert all(f.verdict == "found" for f in bends)
    assert sum(f.knee_low <= 3000 <= f.knee_high for f in bends) >= len(bends) - 1
    # flat, then -1.2 per 1000 tokens
    for found in bends:
        assert found.slope_below == pytest.approx(0.0, abs=0.15)
        assert found.slope_above == pytest.approx(-1.2, abs=0.2)
        assert "begins to fall" in found.sentence


def test_a_drop_elsewhere_refutes_the_window() -> None:
    found = find_window_knee(dropping(5, knee=3000, contexts=(2000, 4000), steps=200), 2348)
    assert found.verdict == "refuted"
    assert found.knee_low <= 3000 <= found.knee_high
    assert found.within_at == found.knee


def test_acceptance_that_rises_elsewhere_says_nothing_against_the_window() -> None:
    found = find_window_knee(dropping(6, knee=3000, contexts=(2000, 4000), steps=200, above=5.6), 2348)
    assert found.model == "drop"
    assert found.size > 1
    assert not found.sentence.startswith("Acceptance does not change at the drafter's window")


def test_long_prompts_of_another_text_are_not_called_the_window() -> None:
    # requests that begin beyond 2000 tokens accept less from their first step; none changes when it passes 2048
    seen = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        start = rng.integers(1000, 3000, 40)
        ids = np.repeat(np.arange(40), 200)
        context = np.repeat(start, 200) + 4 * np.tile(np.arange(200), 40)
        level = np.where(start > 2000, 2.8, 4.0) * np.exp(rng.normal(0, 0.05, 40))
        frame = pd.DataFrame({"request_id": ids.astype(str), "context_len": context, "tokens": 1 + rng.poisson(level[ids] - 1)})
        seen.append(find_window_knee(frame, 2048, resamples=100))
    assert sum(f.verdict == "supported" for f in seen) <= 1
    assert all(f.crossing >= 6 for f in seen)
    assert np.mean([f.within_ratio for f in seen]) == pytest.approx(1.0, abs=0.02)


def test_two_kinds_of_text_with_a_gap_between_are_not_told_from_a_window() -> None:
    short = dropping(1, contexts=(300, 1200), requests=20, knee=1e9)
    long = dropping(2, contexts=(3000, 4000), requests=20, knee=0).assign(request_id=lambda f: "long" + f["request_id"])
    found = find_window_knee(pd.concat([short, long]), 2048)
    assert found.verdict == "cannot tell"
    assert found.crossing == 0
    assert np.isnan(found.within_ratio)


@pytest.mark.parametrize(("many", "few"), [(20, 5), (5, 20)])
def test_fewer_than_six_requests_on_one_side_support_nothing(many: int, few: int) -> None:
    short = dropping(1, contexts=(300, 1200), requests=many, knee=1e9)
    long = dropping(2, contexts=(3000, 4000), requests=few, knee=0).assign(request_id=lambda f: "long" + f["request_id"])
    found = find_window_knee(pd.concat([short, long]), 2048)
    assert found.verdict == "cannot tell"
    assert (found.requests_below, found.requests_above) == (many, few)
    assert "5 distinct prompts" in str(found.reason)
    assert np.isnan(found.ratio)
    assert find_window_knee(pd.concat([short, long])).verdict == "cannot tell"


def test_a_knee_is_said_where_nothing_passes_the_window() -> None:
    found = find_window_knee(dropping(3), 8192)
    assert found.verdict == "cannot tell"
    assert "no request beyond the window of 8,192 tokens" in found.sentence
    assert "Acceptance drops at about" in found.sentence
    assert found.at_window is False


def test_one_rising_line_has_no_knee() -> None:
    models = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        ids = np.repeat(np.arange(30), 80)
        context = np.repeat(rng.integers(300, 5000, 30), 80) + 4 * np.tile(np.arange(80), 30)
        models.append(
            find_window_knee(pd.DataFrame({"request_id": ids, "context_len": context, "tokens": 1 + rng.poisson(1 + context / 2500)}))
        )
    assert sum(m.verdict == "cannot tell" for m in models) >= 5
    assert all(m.reason == "the drafter's window is not known" for m in models if m.verdict == "cannot tell")


# -- the arithmetic, against searches that are written out ---------------------------------------------------------------


def brute(x: Any, y: Any, kind: str, places: Any, units: Any = None) -> list[float]:
    """Fit by least squares at each place, one after the other; with units, each has a level of its own."""
    errors = []
    for place in places:
        knee = (x > place).astype(float) if kind == "drop" else np.maximum(x - place, 0.0)
        columns = [x, knee] if units is None else [x, knee, *(units == u for u in np.unique(units))]
        design = np.column_stack([np.ones(len(x)), *columns])
        errors.append(float(np.square(y - design @ np.linalg.lstsq(design, y, rcond=None)[0]).sum()))
    return errors


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from(["drop", "bend"]), st.booleans())
def test_the_profile_is_that_of_one_least_squares_fit_a_place(seed: int, kind: str, own_level: bool) -> None:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"request_id": rng.integers(0, 5, 60), "context_len": rng.integers(100, 900, 60), "tokens": rng.integers(1, 8, 60)}
    )
    rows = rows_of(frame)
    places = np.quantile(rows.x, [0.2, 0.4, 0.5, 0.7, 0.8])
    gain, _, error = Profile(rows, kind, places, np.inf if own_level else 0.0).solve()
    expected = brute(rows.x, rows.y, kind, places, rows.unit if own_level else None)
    np.testing.assert_allclose(error[0] - gain[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["drop", "bend"])
def test_levels_of_requests_count_as_generalised_least_squares_has_them(kind: str) -> None:
    rows = rows_of(dropping(4, requests=7, steps=12, contexts=(1900, 2100)))
    places, between = np.quantile(rows.x, [0.3, 0.5, 0.6]), 0.4
    gain, coefficients, error = Profile(rows, kind, places, between).solve()
    # V = I + 0.4 for pairs of one request; errors and coefficients from its inverse, written out
    inverse = np.linalg.inv(np.eye(len(rows.x)) + between * (rows.unit[:, None] == rows.unit[None, :]))
    for i, place in enumerate(places):
        knee = (rows.x > place).astype(float) if kind == "drop" else np.maximum(rows.x - place, 0.0) / 1000
        design = np.column_stack([np.ones(len(rows.x)), rows.x / 1000, knee])
        beta = np.linalg.solve(design.T @ inverse @ design, design.T @ inverse @ rows.y)
        away = rows.y - design @ beta
        np.testing.assert_allclose(coefficients[0, i], beta, rtol=1e-6)
        assert error[0] - gain[0, i] == pytest.approx(away @ inverse @ away)


@pytest.mark.parametrize("seed", range(5))
def test_the_knee_is_where_a_search_of_every_gap_finds_it(seed: int) -> None:
    rows = rows_of(dropping(seed, requests=14, steps=20, contexts=(1950, 2150), texts=0.0, above=2.0))
    found = find_knee(rows, "drop", sampler_of(rows))
    assert found is not None
    seen = np.unique(rows.x)
    places = (seen[:-1] + seen[1:]) / 2
    enough = [min(len(np.unique(rows.unit[rows.x <= p])), len(np.unique(rows.unit[rows.x > p]))) >= 6 for p in places]
    inner = [0.02 <= float((rows.x <= p).mean()) <= 0.98 for p in places]
    places = places[np.array(enough) & np.array(inner)]
    assert found.place == places[int(np.argmin(brute(rows.x, rows.y, "drop", places)))]
    assert found.low <= found.gap[0] < found.place < found.gap[1] <= found.high


def test_the_jump_within_requests_is_that_of_a_regression_with_their_levels() -> None:
    rows = rows_of(dropping(8, requests=10, steps=40, contexts=(1900, 2100)))
    made = within_jump(rows, 2048, sampler_of(rows))
    over = rows.x > 2048
    design = np.column_stack([rows.x / 1000, over, *(rows.unit == u for u in range(10))])
    slope, jump, *levels = np.linalg.lstsq(design, rows.y, rcond=None)[0]
    sides = [(int((over & (rows.unit == u)).sum()), int((~over & (rows.unit == u)).sum())) for u in range(10)]
    counts = np.array([a * b / (a + b) for a, b in sides])
    before = np.average(np.array(levels) + slope * 2.048, weights=counts)
    assert made.ratio == pytest.approx(1 + jump / before)
    assert made.crossing == sum(a > 0 and b > 0 for a, b in sides)


def test_requests_that_do_not_cross_only_tell_about_the_slope() -> None:
    # without noise and slope: crossing requests drop from 4 to 3; others sit at 9 and at 1, on one side each
    def one(name: str, contexts: range, tokens: Any) -> pd.DataFrame:
        return pd.DataFrame({"request_id": name, "context_len": contexts, "tokens": tokens})

    crossing = [one(f"c{i}", range(1000, 1020), [4.0] * 10 + [3.0] * 10) for i in range(3)]
    others = [one(f"l{i}", range(900 + i, 920 + i), 9.0) for i in range(4)] + [
        one(f"h{i}", range(1100 + i, 1120 + i), 1.0) for i in range(4)
    ]
    rows = rows_of(pd.concat([*crossing, *others]))
    made = within_jump(rows, 1009, sampler_of(rows))
    assert made.crossing == 3
    # the others are flat and hold the slope near zero, where the crossing ones alone would have it explain part of the step
    assert made.ratio == pytest.approx(0.75, abs=0.05)


def test_a_knee_among_many_rows_is_found_to_a_few_tokens() -> None:
    # as exact as the rows, not as the cells that 200,000 of them are summed into, each some 50 tokens wide
    frame = dropping(1, requests=400, steps=500, contexts=(100, 6000))
    found = find_window_knee(frame, 2048, resamples=50)
    assert found.verdict == "supported"
    assert 2040 <= found.knee_low <= 2048 <= found.knee_high <= 2056


def test_more_requests_than_groups_keep_their_own_levels() -> None:
    # 2,500 requests are resampled as 2,000 groups; levels differ by a factor of e^1, and the jump within is still 0.7
    frame = dropping(2, requests=2500, steps=30, contexts=(1900, 2150), texts=0.5, below=8.0, above=5.6)
    found = find_window_knee(frame, 2048, resamples=50)
    assert found.within_ratio == pytest.approx(0.7, abs=0.02)
    assert found.verdict == "supported"


# -- slopes and effects ---------------------------------------------------------------------------------------------------


def holds(low: float, value: float, high: float) -> bool:
    """Tell whether an interval holds a value."""
    return low <= value <= high


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.0, 0.05, 0.2, 1.0, -0.3]),
    st.sampled_from([0.0, 0.4]),
    st.integers(3, 25),
    st.sampled_from([0.02, 0.2]),
)
def test_a_slope_never_contradicts_the_effect_beside_it(seed: int, slope: float, curve: float, requests: int, noise: float) -> None:
    frame = made_up(seed, lambda c: 20.0 + slope * c / 1000 + curve * (c / 1000) ** 2, requests=requests, noise=noise)
    fit = fit_step_time(frame, resamples=100, seed=seed)
    effect = fit.effect(500, 5000)
    assert effect.slope_ms_per_1000 == pytest.approx(fit.slope_ms_per_1000)
    np.testing.assert_allclose([effect.slope_low, effect.slope_high], [fit.slope_low, fit.slope_high])
    # ratio = line(5000) / line(500), and line(5000) = line(500) + 4.5 * slope
    assert effect.ratio == pytest.approx(1 + 4.5 * effect.slope_ms_per_1000 / effect.step_time_low_ms)
    assert effect.share == pytest.approx(1 - 1 / effect.ratio)
    if np.isfinite(effect.ratio_low):
        assert effect.ratio_low <= effect.ratio <= effect.ratio_high
        assert holds(effect.slope_low, 0.0, effect.slope_high) == holds(effect.ratio_low, 1.0, effect.ratio_high)
        assert holds(effect.slope_low, 0.0, effect.slope_high) == holds(effect.share_low, 0.0, effect.share_high)
    else:
        assert effect.reason
    share = fit.share_at(4000)
    if np.isfinite(share.low):
        assert holds(share.slope_low, 0.0, share.slope_high) == holds(share.low, 0.0, share.high)
        if fit.model in ("flat", "line"):
            assert share.slope_low == pytest.approx(fit.slope_low)
    row = fit.coefficients.set_index("term")
    if fit.model == "line":
        assert tuple(row.loc["context_len", ["low", "high"]]) == (fit.slope_low, fit.slope_high)


def test_an_effect_is_the_lines_ratio() -> None:
    fit = fit_step_time(made_up(1, lambda c: 20.0 + 0.005 * c, requests=60))
    effect = fit.effect(1000, 5000)
    # (20 + 25) / (20 + 5) = 1.8
    assert effect.ratio == pytest.approx(1.8, rel=0.03)
    assert effect.ratio_low < 1.8 < effect.ratio_high
    assert not effect.extrapolated
    assert fit.effect(1000, 50_000).extrapolated


def test_an_effect_that_is_not_known_has_a_reason() -> None:
    constant = fit_step_time(made_up(5, lambda c: 20.0 + 0.0 * c).assign(context_len=700))
    for effect in (constant.effect(100, 700), fit_step_time(pd.DataFrame()).effect(100, 700), constant.effect(700, 100)):
        assert np.isnan(effect.ratio)
        assert effect.reason


def test_the_knee_of_a_step_time_reaches_over_a_gap_in_the_data() -> None:
    frame = made_up(1, lambda c: 30.0 + 8.0 * np.maximum(c - 3000, 0) / 1000, noise=0.02)
    frame = frame[(frame["context_len"] <= 2500) | (frame["context_len"] >= 3600)]
    fit = fit_step_time(frame)
    assert fit.model == "bend"
    assert fit.knee_low <= frame["context_len"][frame["context_len"] <= 2500].max()
    assert fit.knee_high >= frame["context_len"][frame["context_len"] >= 3600].min()
