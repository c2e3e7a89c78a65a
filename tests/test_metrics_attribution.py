"""Splitting a slow-down into step time and acceptance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_metrics.errors import MetricError
from ddtree_metrics.metrics import attribute_slowdown, by_context, confounded, fit_step_time
from tests.test_metrics_context import simulated

ORACLES = Path(__file__).parent.parent / "fixtures" / "oracles"


def test_o6_a_slow_down_that_is_step_time() -> None:
    made = attribute_slowdown({"tokens_per_step": 4.80, "tok_per_s": 138.0}, {"tokens_per_step": 4.70, "tok_per_s": 32.2})
    # 1000 * 4.80 / 138.0 = 34.78, 1000 * 4.70 / 32.2 = 145.96; ln 4.1964 / (ln 4.1964 + ln 1.0213) = 0.986
    assert (round(made.step_time_before_ms, 2), round(made.step_time_after_ms, 2)) == (34.78, 145.96)
    assert (round(made.step_time_ratio, 2), round(made.tokens_ratio, 3), round(made.speed_ratio, 4)) == (4.20, 0.979, 0.2333)
    assert (round(100 * made.share_step_time, 1), round(100 * made.share_acceptance, 1)) == (98.6, 1.4)
    assert made.verdict == "step time"


def test_o6_a_slow_down_that_is_both() -> None:
    made = attribute_slowdown({"tokens_per_step": 5.0, "tok_per_s": 150.0}, {"tokens_per_step": 2.5, "tok_per_s": 30.0})
    # 33.33 -> 83.33 ms: ln 2.5 / ln 5 = 0.569; ln 2 / ln 5 = 0.431
    assert (round(made.step_time_before_ms, 2), round(made.step_time_after_ms, 2)) == (33.33, 83.33)
    assert (round(100 * made.share_step_time, 1), round(100 * made.share_acceptance, 1)) == (56.9, 43.1)
    assert made.verdict == "both"


positive = st.floats(min_value=0.01, max_value=1e4)


@settings(deadline=None)
@given(positive, positive, positive, positive)
def test_the_shares_add_up_to_one_or_there_are_none(a: float, b: float, c: float, d: float) -> None:
    made = attribute_slowdown({"tokens_per_step": a, "step_time_ms": b}, {"tokens_per_step": c, "step_time_ms": d})
    if made.verdict == "no change":
        assert np.isnan(made.share_step_time)
        assert np.isnan(made.share_acceptance)
        assert made.reason
    else:
        assert made.share_step_time + made.share_acceptance == pytest.approx(1.0)
    assert made.speed_ratio == pytest.approx(made.tokens_ratio / made.step_time_ratio)
    assert "nan" not in made.sentence


def test_a_speed_that_did_not_change_has_no_cause() -> None:
    made = attribute_slowdown({"tokens_per_step": 5.0, "tok_per_s": 100.0}, {"tokens_per_step": 4.0, "tok_per_s": 100.0})
    assert made.verdict == "no change"
    assert np.isnan(made.share_step_time)
    assert made.notes == ("step time and acceptance both changed, and cancel",)


def test_a_factor_that_worked_against_the_change_has_a_negative_share_and_a_note() -> None:
    made = attribute_slowdown({"tokens_per_step": 4.0, "step_time_ms": 20.0}, {"tokens_per_step": 5.0, "step_time_ms": 50.0})
    # ln 2.5 / (ln 2.5 - ln 1.25) = 0.916 / 0.693
    assert made.share_step_time == pytest.approx(1.322, abs=1e-3)
    assert made.verdict == "step time"
    assert made.notes[0].startswith("tokens per step rose and made up for part of the slow-down")
    assert made.notes[0] in made.sentence


def test_two_tables_of_request_steps_have_intervals_from_requests() -> None:
    frame = simulated(seed=1, requests=80, context_ms=10.0)
    made = attribute_slowdown(frame[frame["context_len"] < 500], frame[frame["context_len"] > 2000])
    assert made.interval_from == "requests"
    assert made.share_step_time_low < made.share_step_time < made.share_step_time_high
    assert made.share_acceptance_low == pytest.approx(1 - made.share_step_time_high)
    assert made.verdict == "step time"


def test_rows_of_by_context_will_do() -> None:
    curve = by_context(simulated(seed=1, requests=80, context_ms=10.0), [0, 500, 2000, 5000])
    made = attribute_slowdown(curve.iloc[0], curve.iloc[-1])
    assert made.interval_from == "bins"
    assert made.verdict == "step time"
    assert made.step_time_after_ms == curve["step_time_mean_ms"].iloc[-1]


def test_the_same_steps_on_both_sides_did_not_change() -> None:
    frame = simulated(seed=2, requests=20)
    made = attribute_slowdown(frame, frame)
    assert made.verdict == "no change"
    assert made.speed_ratio_low == made.speed_ratio_high == 1.0  # the same requests are drawn for both


def test_a_change_within_its_interval_is_not_split() -> None:
    frame = simulated(seed=3, requests=40, acceptance_spread=0.1)
    ids = frame["request_id"].unique()
    halves = (frame[frame["request_id"].isin(ids[::2])], frame[frame["request_id"].isin(ids[1::2])])
    made = attribute_slowdown(*halves)
    assert made.verdict in ("cannot tell", "no change")
    assert np.isnan(made.share_step_time)
    assert "nan" not in made.sentence


def test_one_request_on_a_side_gives_shares_without_intervals_and_says_why() -> None:
    frame = simulated(seed=4, requests=30, context_ms=20.0, prompt=(50, 6000))
    longest = frame.loc[frame["context_len"].idxmax(), "request_id"]
    made = attribute_slowdown(frame[frame["context_len"] < 300], frame[frame["request_id"] == longest])
    assert np.isnan(made.share_step_time_low)
    assert made.reason == "no intervals: 1 distinct prompt after"
    assert made.share_step_time > 0.75


def test_at_equal_context_a_restart_that_changed_nothing_changed_nothing() -> None:
    before = simulated(seed=5, requests=60, prompt=(50, 800), context_ms=15.0)
    after = simulated(seed=6, requests=60, prompt=(50, 4000), context_ms=15.0)
    plain = attribute_slowdown(before, after)
    assert plain.verdict == "step time"
    held = attribute_slowdown(before, after, control="context_len")
    assert abs(np.log(held.step_time_ratio)) < 0.05
    assert held.verdict in ("no change", "cannot tell")
    assert "compared at equal context_len" in held.notes[0]


def test_sides_with_nothing_in_common_cannot_be_compared_at_equal_context() -> None:
    frame = simulated(seed=7, requests=30)
    made = attribute_slowdown(frame[frame["context_len"] < 200], frame[frame["context_len"] > 2000], control="context_len")
    assert made.verdict == "cannot tell"
    assert made.reason == "the two sides have no context_len in common"


def test_a_call_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(MetricError, match="p50"):
        attribute_slowdown({}, {}, step_time="max")
    with pytest.raises(MetricError, match="control"):
        attribute_slowdown({}, {}, control="context_len")


def test_published_prompts_differ_by_acceptance_alone() -> None:
    table = pd.read_csv(ORACLES / "lucebox_per_prompt.csv")
    part = table[table["hardware"] == "RTX 3090"].sort_values("dflash_tok_s")
    slow, fast = ({"tokens_per_step": r.al_generated_over_steps, "tok_per_s": r.dflash_tok_s} for r in (part.iloc[0], part.iloc[-1]))
    made = attribute_slowdown(fast, slow)
    # the step takes 62.9 to 65.0 ms in all 30 prompts, while tokens per step more than halve
    assert made.verdict == "acceptance"
    assert made.share_acceptance > 0.95


def test_the_papers_cells_have_their_overhead() -> None:
    table = pd.read_csv(ORACLES / "ddtree_paper_cells.csv").dropna(subset=["tau_over_speedup"])
    for row in table.itertuples():
        # plain decoding: one token a step at speed 1; with drafts tau tokens a step at the speed-up
        made = attribute_slowdown(
            {"tokens_per_step": 1.0, "tok_per_s": 1.0},
            {"tokens_per_step": row.tau_tokens_per_round_incl_bonus, "tok_per_s": row.speedup_vs_ar},
        )
        assert made.step_time_ratio == pytest.approx(row.tau_over_speedup, abs=1e-4)
    cell = table[(table["model"] == "Qwen3-8B") & (table["dataset"] == "MATH-500") & (table["method"] == "DDTree")].iloc[0]
    # 10.73 / 7.52 - 1 = 0.427: a round costs 43 % more than a plain step
    assert cell["tau_tokens_per_round_incl_bonus"] / cell["speedup_vs_ar"] - 1 == pytest.approx(0.427, abs=5e-4)


def test_the_frame_has_a_row_a_factor_with_shares_that_add_up() -> None:
    made = attribute_slowdown({"tokens_per_step": 5.0, "tok_per_s": 150.0}, {"tokens_per_step": 2.5, "tok_per_s": 30.0}).to_frame()
    assert made["factor"].tolist() == ["step time", "acceptance"]
    assert made["share"].sum() == pytest.approx(1.0)


def test_share_intervals_cover_the_truth() -> None:
    # Step time 20 -> 40 ms and tokens 5 -> 4: the share of step time is ln 2 / (ln 2 + ln 1.25) = 0.756
    truth = np.log(2) / (np.log(2) + np.log(1.25))
    rng = np.random.default_rng(5)
    covered = 0
    runs = 100
    for seed in range(runs):
        sides = []
        for name, ms, tokens in (("a", 20.0, 5.0), ("b", 40.0, 4.0)):
            ids = np.repeat(np.arange(20), 30)
            sides.append(
                pd.DataFrame(
                    {
                        "request_id": [f"{name}{i}" for i in ids],
                        "tokens": tokens + 0.5 * rng.normal(0, 1, 20)[ids] + rng.normal(0, 1, len(ids)),
                        "step_time_ms": ms * (1 + 0.05 * rng.normal(0, 1, 20)[ids] + 0.05 * rng.normal(0, 1, len(ids))),
                    }
                )
            )
        made = attribute_slowdown(*sides, resamples=300, seed=seed)
        covered += made.share_step_time_low <= truth <= made.share_step_time_high
    assert 0.85 * runs <= covered <= 0.95 * runs + 1, covered


def uptime_rows() -> pd.DataFrame:
    """The table of case O5: boot a gets slower by the hour, boot b is fresh."""
    return pd.DataFrame(
        {
            "boot": list("aaaabb"),
            "uptime_min": [5, 35, 70, 120, 2, 4],
            "context_len": [2000, 20000, 40000, 63000, 1500, 63500],
            "tok_per_s": [15.0, 12.0, 7.0, 1.1, 15.2, 14.8],
        }
    )


def test_o5_context_and_uptime_that_rise_together_are_named_together() -> None:
    rows = uptime_rows()
    made = confounded(rows[rows["boot"] == "a"], "context_len", "uptime_min")
    assert made.together
    assert abs(made.r) > 0.98
    assert made.sentence.startswith("Context and uptime rise together (|r| >= 0.99)")
    assert not confounded(rows, "context_len", "uptime_min").together


def test_o5_at_equal_context_the_rate_differs_with_the_boot() -> None:
    rows = uptime_rows()
    old, fresh = rows.iloc[3], rows.iloc[5]
    made = attribute_slowdown(
        {"tokens_per_step": 4.0, "tok_per_s": fresh["tok_per_s"]}, {"tokens_per_step": 4.0, "tok_per_s": old["tok_per_s"]}
    )
    # 14.8 / 1.1 = 13.45 at 63.5k and 63.0k tokens of context
    assert 1 / made.speed_ratio == pytest.approx(13.45, abs=0.01)


@pytest.mark.parametrize("frame", [pd.DataFrame(), pd.DataFrame({"a": [1, 1], "b": [1, 2]}), pd.DataFrame({"a": [None], "b": [2]})])
def test_columns_that_cannot_be_compared_say_so(frame: pd.DataFrame) -> None:
    made = confounded(frame, "a", "b")
    assert made.together is None
    assert made.reason
    assert "nan" not in made.sentence


def test_a_factor_that_changed_for_certain_is_noted_where_speed_did_not() -> None:
    rng = np.random.default_rng(8)
    sides = []
    for name, ms, tokens in (("a", 20.0, 4.0), ("b", 26.0, 5.1)):
        ids = np.repeat(np.arange(12), 40)
        values = tokens + 0.9 * rng.normal(0, 1, 12)[ids]
        sides.append(pd.DataFrame({"request_id": [f"{name}{i}" for i in ids], "tokens": values, "step_time_ms": ms}))
    made = attribute_slowdown(*sides, min_change=0.0)
    assert made.verdict == "cannot tell"
    assert any(note.startswith("step time by itself did change: x 1.3") for note in made.notes)


def test_a_fit_explains_what_the_attribution_finds() -> None:
    frame = simulated(seed=9, requests=80, context_ms=10.0, prompt=(50, 6000))
    fit = fit_step_time(frame)
    long, short = frame[frame["context_len"] > 3000], frame[frame["context_len"] < 300]
    expected = fit.predict([long["context_len"].mean(), short["context_len"].mean()])["step_time_ms"]
    made = attribute_slowdown(short, long)
    assert made.step_time_ratio == pytest.approx(expected.iloc[0] / expected.iloc[1], rel=0.05)
