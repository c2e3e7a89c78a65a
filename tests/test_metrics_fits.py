"""The fit of step time: coefficients, intervals, and no more of a curve than the data support."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ddtree_metrics.errors import MetricError
from ddtree_metrics.metrics import fit_step_time
from tests.test_metrics_context import simulated

ORACLES = Path(__file__).parent.parent / "fixtures" / "oracles"


def made_up(seed: int, shape: object, *, requests: int = 40, noise: float = 0.05, low: int = 50, high: int = 6000) -> pd.DataFrame:
    """Return steps of requests whose step time is a given function of context."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(requests), 60)
    context = np.repeat(rng.integers(low, high, requests), 60) + 4 * np.tile(np.arange(60), requests)
    level = 1 + 0.01 * rng.normal(0, 1, requests)[ids]
    ms = shape(context) * level * rng.lognormal(0, noise, len(ids))  # type: ignore[operator]
    return pd.DataFrame({"request_id": ids.astype(str), "context_len": context, "step_time_ms": ms, "batch_size": 1, "tokens": 4})


def test_a_line_has_the_simulators_coefficients_within_its_intervals() -> None:
    fit = fit_step_time(simulated(seed=1, requests=60))
    assert fit.model == "line"
    assert fit.slope_low < 4.0 < fit.slope_high  # context_ms
    assert fit.slope_ms_per_1000 == pytest.approx(4.0, rel=0.05)
    assert fit.intercept_ms == pytest.approx(21.0, rel=0.02)  # step_ms + batch_ms for one sequence
    # share at 4000 tokens: 16 / (21 + 16)
    share = fit.share_at(4000)
    assert share.share == pytest.approx(16 / 37, abs=0.02)
    assert share.low < share.share < share.high


def test_batch_and_context_are_told_apart_and_attention_reads_the_whole_batch() -> None:
    fit = fit_step_time(simulated(seed=2, requests=120, concurrency=6, batch_ms=2.0))
    assert fit.context_term == "batch_context"
    terms = fit.coefficients.set_index("term")["estimate"]
    assert terms["batch_context"] == pytest.approx(4.0, rel=0.05)
    assert terms["batch"] == pytest.approx(2.0, rel=0.2)


def test_stalls_do_not_bend_the_line() -> None:
    fit = fit_step_time(simulated(seed=3, requests=60, stall_share=0.02))
    assert fit.model == "line"
    assert fit.slope_ms_per_1000 == pytest.approx(4.0, rel=0.05)


def test_a_flat_step_time_is_called_flat() -> None:
    fits = [fit_step_time(made_up(seed, lambda c: 30.0 + 0.0 * c)) for seed in range(10)]
    assert all(f.model == "flat" for f in fits)
    for fit in fits:
        # never "does not go" beside a slope whose interval leaves out zero, however small it is
        sure = fit.slope_low > 0 or fit.slope_high < 0
        assert ("hardly goes with context" if sure else "does not go with context") in fit.sentence
    assert fits[0].share_at(4000).low < 0.02


def test_a_bend_is_found_with_its_knee() -> None:
    fits = [fit_step_time(made_up(seed, lambda c: 30.0 + 8.0 * np.maximum(c - 3000, 0) / 1000)) for seed in range(6)]
    assert sum(f.model == "bend" for f in fits) >= 5
    inside = [f.knee_low <= 3000 <= f.knee_high for f in fits if f.model == "bend"]
    assert sum(inside) >= len(inside) - 2
    assert all(abs(f.knee - 3000) < 300 for f in fits if f.model == "bend")


def test_a_line_never_gets_a_knee() -> None:
    models = [fit_step_time(made_up(seed, lambda c: 20.0 + 0.005 * c)).model for seed in range(15)]
    assert models.count("line") >= 14
    assert "bend" not in models


def test_a_parabola_is_a_curve_and_no_knee() -> None:
    models = [fit_step_time(made_up(seed, lambda c: 25.0 + 1.2 * (c / 1000) ** 2)).model for seed in range(6)]
    assert models.count("curve") >= 5
    assert "bend" not in models


def test_a_knee_that_only_one_request_has_passed_is_not_claimed() -> None:
    steep = made_up(0, lambda c: 30.0 + 8.0 * np.maximum(c - 3000, 0) / 1000, low=50, high=2500)
    one = made_up(1, lambda c: 30.0 + 8.0 * np.maximum(c - 3000, 0) / 1000, requests=1, low=5000, high=5001).assign(request_id="far")
    assert fit_step_time(pd.concat([steep, one])).model != "bend"


def test_slope_intervals_cover_the_truth_in_85_to_95_of_100_runs() -> None:
    runs = 100
    covered = 0
    for seed in range(runs):
        fit = fit_step_time(made_up(seed, lambda c: 20.0 + 0.005 * c, requests=25), models=("flat", "line"), resamples=200)
        covered += fit.slope_low <= 5.0 <= fit.slope_high
    assert 0.85 * runs <= covered <= 0.95 * runs + 1, covered


def test_terms_that_rise_together_are_not_told_apart() -> None:
    frame = made_up(4, lambda c: 20.0 + 0.005 * c)
    frame["batch_size"] = 1 + frame["context_len"] // 100
    frame["batch_context"] = frame["context_len"] * frame["batch_size"]
    fit = fit_step_time(frame)
    assert any("rise together" in words for words in fit.dropped.values())


def test_a_constant_context_says_that_nothing_can_be_said() -> None:
    fit = fit_step_time(made_up(5, lambda c: 20.0 + 0.0 * c).assign(context_len=700))
    assert fit.model == "flat"
    assert np.isnan(fit.slope_ms_per_1000)
    assert "700 tokens in every step" in fit.sentence
    assert "nan" not in fit.sentence
    assert fit.share_at(1000).reason


def test_one_request_gives_a_fit_without_intervals() -> None:
    frame = made_up(6, lambda c: 20.0 + 0.005 * c, requests=1, noise=0.001)
    frame["context_len"] = np.arange(60) * 50
    frame["step_time_ms"] = 20.0 + 0.005 * frame["context_len"]
    fit = fit_step_time(frame)
    assert fit.slope_ms_per_1000 == pytest.approx(5.0)
    assert np.isnan(fit.slope_low)
    assert fit.reason == "no intervals: one request"
    assert "nan" not in fit.sentence


def test_a_model_with_no_such_name_is_refused() -> None:
    with pytest.raises(MetricError, match="flat, line, bend, curve"):
        fit_step_time(pd.DataFrame(), models=("spline",))


def verify(model: str, rows: int | None = None) -> pd.DataFrame:
    """Return the published verify times of one model as steps, each a request of its own."""
    table = pd.read_csv(ORACLES / "verify_latency_nodes_context.csv")
    part = table[table["model"] == model]
    part = part[part["n_query_rows"] <= rows] if rows else part
    return pd.DataFrame(
        {
            "request_id": part.index.astype(str),
            "context_len": part["context_tokens"],
            "draft_nodes": part["n_query_rows"],
            "step_time_ms": part["verify_ms_fitted_A800"],
            "batch_size": 1,
        }
    )


@pytest.mark.parametrize("model", ["Qwen3-4B", "Qwen3-8B"])
def test_the_published_verify_table_is_flat_to_about_4000_tokens_and_rises_from_there(model: str) -> None:
    fit = fit_step_time(verify(model, rows=64), nodes=True)
    assert fit.model == "bend"
    assert 3000 < fit.knee < 5000
    below, added = fit.coefficients["estimate"].iloc[1:3]
    assert abs(below) < 0.5
    assert 3.0 < below + added < 4.5
    # 16 rows: 34.8 ms at 1 token, 49.0 ms at 8000 (Qwen3-8B)
    table = verify(model)
    ends = table[(table["draft_nodes"] == 16) & table["context_len"].isin([1, 8000])]["step_time_ms"]
    np.testing.assert_allclose(fit.predict([1, 8000], nodes=16)["step_time_ms"], ends, rtol=0.03)


def test_the_published_verify_table_has_its_mean_slope_at_16_rows() -> None:
    table = verify("Qwen3-8B")
    fit = fit_step_time(table[table["draft_nodes"] == 16], models=("line",))
    # (49.0 - 34.8) ms over 8000 tokens = 1.8 ms per 1000; a line through the bent curve comes a little lower
    assert fit.slope_ms_per_1000 == pytest.approx(1.8, abs=0.25)


def test_more_nodes_take_longer_in_the_published_table() -> None:
    fit = fit_step_time(verify("Qwen3-8B"), nodes=True, models=("line",))
    table = verify("Qwen3-8B")
    x = np.column_stack([np.ones(len(table)), table["context_len"] / 1000, table["draft_nodes"]])
    y = table["step_time_ms"].to_numpy()
    plain = np.linalg.lstsq(x / y[:, None], np.ones(len(y)), rcond=None)[0]
    # least squares of relative errors, without the robust part: the surface is no plane, so they only lie near each other
    np.testing.assert_allclose(fit.coefficients["estimate"], plain, rtol=0.15)


def test_the_published_per_prompt_step_time_does_not_go_with_the_prompt() -> None:
    table = pd.read_csv(ORACLES / "lucebox_per_prompt.csv")
    part = table[table["hardware"] == "RTX 3090"]
    steps = 1000 * part["al_generated_over_steps"] / part["dflash_tok_s"]
    assert (steps.min().round(1), steps.max().round(1)) == (62.9, 65.0)
    fit = fit_step_time(
        pd.DataFrame({"request_id": part.index.astype(str), "context_len": part["prompt_tokens"], "step_time_ms": steps, "batch_size": 1})
    )
    assert fit.model == "flat"
    assert fit.intercept_ms == pytest.approx(64.0, abs=0.5)


def test_one_outlier_of_the_published_prompts_does_not_move_the_level() -> None:
    table = pd.read_csv(ORACLES / "lucebox_per_prompt.csv")
    part = table[table["hardware"] == "RTX 2080 Ti"]
    steps = 1000 * part["al_generated_over_steps"] / part["dflash_tok_s"]
    assert round(steps.max()) == 201  # a step-time event in one prompt, against 149
    fit = fit_step_time(
        pd.DataFrame({"request_id": part.index.astype(str), "context_len": part["prompt_tokens"], "step_time_ms": steps, "batch_size": 1}),
        models=("flat",),
    )
    assert fit.intercept_ms == pytest.approx(steps.median(), rel=0.01)
