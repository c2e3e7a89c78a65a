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
    elif np.isnan(made.share_step_time):
        # one factor made speed higher, the other made it lower
        assert (made.step_time_ratio > 1) == (made.tokens_ratio > 1)
        assert "made up for part of the slow-down" in made.sentence or "took part of the speed-up back" in made.sentence
    else:
        assert made.share_step_time + made.share_acceptance == pytest.approx(1.0)
        assert 0 <= made.share_step_time <= 1
    assert made.speed_ratio == pytest.approx(made.tokens_ratio / made.step_time_ratio)
    assert made.parts is not None
    assert np.prod(made.parts.factors) == pytest.approx(made.speed_ratio, rel=1e-9)
    assert "nan" not in made.sentence


def test_a_speed_that_did_not_change_has_no_cause() -> None:
    made = attribute_slowdown({"tokens_per_step": 5.0, "tok_per_s": 100.0}, {"tokens_per_step": 4.0, "tok_per_s": 100.0})
    assert made.verdict == "no change"
    assert np.isnan(made.share_step_time)
    # 50 ms and 40 ms a step: ÷0.8 and x 0.8
    assert made.notes == ("no rows, so the mix cannot be told", "step time and acceptance both changed, and cancel")
    assert made.sentence.startswith("Speed x 1 = ÷0.8 step time x 0.8 tokens.")


@pytest.mark.parametrize(
    ("tokens", "ms", "verdict", "said"),
    [
        # of before 4 tokens in 20 ms; ln 2.5 / (ln 2.5 - ln 1.25) = 0.916 / 0.693 would be a share of 132 %
        (5.0, 50.0, "step time", "tokens per step rose and made up for part of the slow-down"),
        (2.0, 16.0, "acceptance", "steps got faster and made up for part of the slow-down"),
        (3.6, 10.0, "step time", "tokens per step fell and took part of the speed-up back"),
        (8.0, 25.0, "acceptance", "steps got slower and took part of the speed-up back"),
    ],
)
def test_where_a_factor_worked_against_the_change_there_are_factors_and_words_and_no_shares(
    tokens: float, ms: float, verdict: str, said: str
) -> None:
    made = attribute_slowdown({"tokens_per_step": 4.0, "step_time_ms": 20.0}, {"tokens_per_step": tokens, "step_time_ms": ms})
    assert np.isnan([made.share_mix, made.share_step_time, made.share_acceptance]).all()
    assert (made.verdict, made.reason) == (verdict, said)
    assert made.sentence.endswith(f"No shares: {said}.")
    # x = speed after / before, the product of what stands behind it
    assert made.sentence.startswith(f"Speed x {tokens / 4 * 20 / ms:.3g} = ÷{ms / 20:.3g} step time x {tokens / 4:.3g} tokens.")


@pytest.mark.parametrize(("share", "verdict"), [(0.81, "step time"), (0.79, "both"), (0.5, "both"), (0.21, "both"), (0.19, "acceptance")])
def test_a_part_is_named_alone_from_four_fifths_on(share: float, verdict: str) -> None:
    for sign in (1, -1):  # a slow-down, and a speed-up: e^-1 and e of the speed
        after = {"tokens_per_step": 4 * np.exp(-sign * (1 - share)), "step_time_ms": 20 * np.exp(sign * share)}
        made = attribute_slowdown({"tokens_per_step": 4.0, "step_time_ms": 20.0}, after)
        assert made.share_step_time == pytest.approx(share)
        assert made.verdict == verdict


def test_a_mapping_does_not_tell_the_mix() -> None:
    made = attribute_slowdown({"tokens_per_step": 5.0, "tok_per_s": 150.0}, {"tokens_per_step": 2.5, "tok_per_s": 30.0})
    assert made.mix_ratio == 1
    assert np.isnan([made.step_time_ratio_equal, made.tokens_ratio_equal, made.share_mix, made.mix_ratio_low]).all()
    assert made.equal_reason == "no rows, so the mix cannot be told"
    assert made.parts is not None
    assert made.parts.factors == pytest.approx((1, 1 / 2.5, 0.5))


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
    short, long = frame[frame["context_len"] < 300], frame[frame["request_id"] == longest]
    fewer = attribute_slowdown(short, long.assign(tokens=long["tokens"] * 0.8))
    assert np.isnan(fewer.share_step_time_low)
    assert fewer.reason == "no intervals: 1 distinct prompt after"
    assert fewer.share_step_time > 0.8
    more = attribute_slowdown(short, long.assign(tokens=long["tokens"] * 1.5))
    assert more.reason == "tokens per step rose and made up for part of the slow-down; no intervals: 1 distinct prompt after"
    assert np.isnan(more.share_step_time)


def test_at_equal_context_a_restart_that_changed_nothing_changed_nothing() -> None:
    before = simulated(seed=5, requests=60, prompt=(50, 800), context_ms=15.0)
    after = simulated(seed=6, requests=60, prompt=(50, 4000), context_ms=15.0)
    plain = attribute_slowdown(before, after, control=())
    assert plain.verdict == "step time"
    held = attribute_slowdown(before, after, control="context_len")
    assert abs(np.log(held.step_time_ratio_equal)) < 0.05
    assert held.verdict == "mix"
    assert held.equal_of == ("context_len",)
    assert "compared at equal context" in held.notes[0]
    # what is logged is reported as it is, whatever is held equal
    for name in ("speed_before", "speed_after", "step_time_before_ms", "step_time_after_ms", "step_time_ratio", "tokens_ratio"):
        assert getattr(held, name) == getattr(plain, name)


def test_sides_with_nothing_in_common_cannot_be_compared_at_equal_context() -> None:
    frame = simulated(seed=7, requests=30)
    made = attribute_slowdown(frame[frame["context_len"] < 200], frame[frame["context_len"] > 2000], control="context_len")
    assert made.verdict == "cannot tell"
    assert made.reason == made.equal_reason
    assert made.reason is not None
    assert made.reason.startswith("the two sides do not overlap in context: 5")
    assert np.isnan([made.step_time_ratio_equal, made.tokens_ratio_equal, made.mix_ratio, made.share_step_time]).all()
    assert made.parts is None


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
    assert 0.96 < made.step_time_ratio < 1.04
    assert made.tokens_ratio < 0.55


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
    assert made["factor"].tolist() == ["mix", "step time", "acceptance"]
    assert made["share"].sum() == pytest.approx(1.0)
    assert made["ratio"].tolist() == pytest.approx([1.0, 2.5, 0.5])


def rows(
    seed: int,
    contexts: tuple[float, float],
    *,
    requests: int = 40,
    steps: int = 40,
    batches: tuple[int, ...] = (1,),
    factor: float = 1.0,
    tokens: float = 4.0,
    noise: float = 0.01,
    texts: float = 0.0,
    slope: float = 10.0,
    batch_ms: float = 0.0,
) -> pd.DataFrame:
    """Return request steps of (20 ms + 10 ms for each 1000 tokens of context + batch) x factor; contexts evenly spread between two ends."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(requests), steps)
    middle = contexts[0] + (contexts[1] - contexts[0]) * (rng.permutation(requests) + 0.5) / requests
    context = middle[who] + (contexts[1] - contexts[0]) / requests * (np.tile(np.arange(steps) + 0.5, requests) / steps - 0.5)
    batch = np.asarray(batches)[rng.permutation(requests) % len(batches)][who]
    text = texts * rng.normal(size=requests)[who]
    return pd.DataFrame(
        {
            "request_id": [f"{seed}-{i}" for i in who],
            "prompt_id": [f"{seed}-{i}" for i in who],
            "context_len": context,
            "batch_size": batch,
            "tokens": tokens + text + rng.normal(0, 2 * noise * tokens, len(who)),
            "step_time_ms": factor * (20 + slope * context / 1000 + batch_ms * batch) * np.exp(noise * rng.normal(size=len(who))),
        }
    )


def test_longer_contexts_alone_are_the_mix_and_no_slower_step() -> None:
    made = attribute_slowdown(rows(1, (100, 2500)), rows(2, (1500, 4000)))
    # means: 20 + 10 x 1.3 = 33 ms and 20 + 10 x 2.75 = 47.5 ms; at equal context the same
    assert made.step_time_ratio == pytest.approx(47.5 / 33, rel=0.01)
    assert made.step_time_ratio_equal == pytest.approx(1.0, abs=0.01)
    assert made.tokens_ratio_equal == pytest.approx(1.0, abs=0.01)
    assert made.mix_ratio == pytest.approx(33 / 47.5, rel=0.015)
    assert made.mix_ratio_low < 33 / 47.5 < made.mix_ratio_high < 1
    assert made.verdict == "mix"
    assert made.share_mix == pytest.approx(1.0, abs=0.05)
    assert made.share_mix + made.share_step_time + made.share_acceptance == pytest.approx(1.0)
    assert made.equal_of == ("context_len", "batch_size")


def test_the_slope_inside_a_class_is_taken_off() -> None:
    # All contexts lie within a factor of 1.4, one class. Means 20 + 10 x 1.125 = 31.25 and 20 + 10 x 1.275 = 32.75 ms, 4.8 % apart.
    made = attribute_slowdown(rows(1, (1000, 1250), noise=0.002), rows(2, (1150, 1400), noise=0.002))
    assert made.step_time_ratio == pytest.approx(32.75 / 31.25, rel=0.002)
    assert made.step_time_ratio_equal == pytest.approx(1.0, abs=0.003)


def test_larger_batches_alone_are_the_mix() -> None:
    before = rows(1, (100, 3000), batches=(1, 2), batch_ms=8.0)
    after = rows(2, (100, 3000), batches=(2, 3), batch_ms=8.0)
    made = attribute_slowdown(before, after)
    # 20 + 10 x 1.55 + 8 x 1.5 = 47.5 and 55.5 ms; batches of 2 are what both have
    assert made.step_time_ratio == pytest.approx(55.5 / 47.5, rel=0.03)
    assert made.step_time_ratio_equal == pytest.approx(1.0, abs=0.01)
    assert made.verdict == "mix"


def test_a_slower_server_under_heavier_traffic_is_told_in_three_factors() -> None:
    before, after = rows(1, (100, 3000), tokens=5.0), rows(2, (1000, 4500), factor=1.25, tokens=4.0)
    made = attribute_slowdown(before, after)
    assert made.step_time_ratio_equal == pytest.approx(1.25, rel=0.01)
    assert made.tokens_ratio_equal == pytest.approx(0.8, rel=0.01)
    assert made.mix_ratio == pytest.approx((20 + 15.5) / (20 + 27.5), rel=0.015)  # mean contexts 1550 and 2750
    # ln: 0.291 of mix, 0.223, 0.223: the two largest are 70 %, all three are needed for four fifths
    assert made.verdict == "all three"
    assert made.share_mix == pytest.approx(0.291 / 0.737, abs=0.02)
    assert made.sentence.startswith("Speed x 0.4")
    assert " mix ÷1.2" in made.sentence
    assert "tokens at equal context and batch size." in made.sentence
    mirrored = attribute_slowdown(after, before)
    assert mirrored.verdict == "all three"
    assert mirrored.share_mix == pytest.approx(made.share_mix)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    ends=st.tuples(*[st.integers(1, 6000)] * 4),
    batches=st.tuples(st.sampled_from([(1,), (1, 2), (2, 5), (1, 20), (18, 30, 40)]), st.sampled_from([(1,), (1, 3), (2, 20), (30, 41)])),
    factor=st.floats(0.2, 5.0),
    requests=st.integers(1, 12),
)
def test_the_factors_multiply_to_the_speed_and_swapping_the_sides_inverts_them(
    seed: int, ends: tuple[int, int, int, int], batches: tuple[tuple[int, ...], tuple[int, ...]], factor: float, requests: int
) -> None:
    a = rows(seed, (ends[0], ends[0] + ends[1]), batches=batches[0], requests=requests, steps=7, noise=0.1)
    b = rows(seed + 1, (ends[2], ends[2] + ends[3]), batches=batches[1], requests=requests, steps=9, noise=0.1, factor=factor)
    made, other = attribute_slowdown(a, b, resamples=60), attribute_slowdown(b, a, resamples=60)
    assert (made.parts is None) == (other.parts is None)
    if made.parts is None or other.parts is None:
        assert made.equal_reason
        assert np.isnan([made.mix_ratio, made.step_time_ratio_equal, made.tokens_ratio_equal]).all()
    else:
        assert np.prod(made.parts.factors) == pytest.approx(made.speed_ratio, rel=1e-9)
        assert made.mix_ratio * made.tokens_ratio_equal / made.step_time_ratio_equal == pytest.approx(made.speed_ratio, rel=1e-9)
        assert np.multiply(made.parts.factors, other.parts.factors) == pytest.approx([1.0, 1.0, 1.0], rel=1e-9)
    shares = np.array([made.share_mix, made.share_step_time, made.share_acceptance])
    known = shares[np.isfinite(shares)]
    assert len(known) == 0 or (known.sum() == pytest.approx(1.0) and (known >= 0).all() and (known <= 1).all())
    for name in ("mix", "step_time", "acceptance"):
        share, low, high = (getattr(made, f"share_{name}{end}") for end in ("", "_low", "_high"))
        assert not low < 0
        assert not high > 1
        assert np.isnan(low) or np.isfinite(share)
    assert len(known) > 0 or made.reason
    assert "nan" not in made.sentence


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        # 1000 to 1010 tokens: a line through them says nothing of 5000. Ranges are from the 2nd to the 98th percentile.
        ({"contexts": (1000, 1010)}, {"contexts": (5000, 5010)}, "in context: 1,000 to 1,010 before, 5,000 to 5,010 after"),
        ({"contexts": (100, 500)}, {"contexts": (600, 4000)}, "in context: 108 to 492 before, 669 to 3,931 after"),
        ({"contexts": (99, 4000)}, {"contexts": (99, 4000), "batches": (4, 5)}, "in batch size: 1 before, 4 to 5 after"),
        ({"contexts": (99, 4000), "batches": (17, 18)}, {"contexts": (99, 4000), "batches": (40, 50)}, "in batch size: 17 to 18 before"),
    ],
)  # fmt: skip
def test_where_the_sides_do_not_overlap_no_number_is_made_up(before: dict[str, object], after: dict[str, object], reason: str) -> None:
    sides = rows(1, noise=0.05, **before), rows(2, noise=0.05, factor=1.3, **after)  # type: ignore[arg-type]
    made = attribute_slowdown(*sides)
    equal = ("mix_ratio", "step_time_ratio_equal", "tokens_ratio_equal", "share_mix")
    assert np.isnan([getattr(made, name + end) for name in equal for end in ("", "_low", "_high")]).all()
    assert made.equal_reason is not None
    assert made.equal_reason.startswith(f"the two sides do not overlap {reason}")
    assert f"Not known at equal mix: {made.equal_reason}." in made.sentence
    assert made.parts is None
    assert made.verdict == "step time"  # as logged
    assert made.step_time_ratio > 1.2


def test_contexts_that_hardly_vary_and_are_about_equal_are_compared_as_they_are() -> None:
    # Noise of 5 % over 10 tokens has slopes of any size; carried over 20 tokens they would say anything. 4000 steps: 0.1 % of noise.
    made = attribute_slowdown(rows(1, (1000, 1010), noise=0.05, slope=0.0), rows(2, (1020, 1030), noise=0.05, factor=1.25, slope=0.0))
    assert made.step_time_ratio_equal == pytest.approx(1.25, rel=0.01)
    assert made.step_time_ratio_equal_high / made.step_time_ratio_equal_low < 1.03


def test_a_context_that_only_a_twentieth_of_a_side_shares_is_no_overlap() -> None:
    after = pd.concat([rows(2, (100, 900), requests=2), rows(3, (2000, 4000), requests=38)])
    made = attribute_slowdown(rows(1, (100, 900)), after)
    assert made.equal_reason is not None
    assert "overlap in context" in made.equal_reason


def test_classes_that_one_side_hardly_has_do_not_count() -> None:
    def side(seed: int, one: int, two: int) -> pd.DataFrame:
        """So many requests in batches of 1 and of 2."""
        return pd.concat([rows(seed, (500, 600), requests=one), rows(seed + 9, (500, 600), requests=two, batches=(2,))])

    # batches of 2: 2 % of the steps before and 60 % after, less than a tenth of 62 %; batches of 1: 98 % and 40 %
    rare = attribute_slowdown(side(1, 49, 1), side(2, 20, 30), control="batch_size")
    assert rare.notes == ("compared at equal batch size: 98 % of the steps before and 40 % of those after could be",)
    # 80 % and 20 %: a fifth of both, that is fair
    fair = attribute_slowdown(side(1, 40, 10), side(2, 10, 40), control="batch_size")
    assert fair.notes == ("compared at equal batch size: 100 % of the steps before and 100 % of those after could be",)


def test_batches_of_20_and_21_are_about_equal_and_those_of_3_and_4_are_not() -> None:
    near = attribute_slowdown(rows(1, (500, 900), batches=(20,)), rows(2, (500, 900), batches=(21,), factor=1.25))
    assert near.step_time_ratio_equal == pytest.approx(1.25, rel=0.01)
    apart = attribute_slowdown(rows(1, (500, 900), batches=(3,)), rows(2, (500, 900), batches=(4,), factor=1.25))
    assert apart.equal_reason == "the two sides do not overlap in batch size: 3 before, 4 after"


def test_a_step_time_that_bends_with_context_is_no_slower_step() -> None:
    # Flat up to 2,000 tokens, 40 ms for each 1000 beyond. Short contexts differ by 150 tokens: at the slope of the long ones, 6 of 20 ms.
    sides = [pd.concat([rows(s, ends), rows(s + 9, (3000, 4000), requests=10)]) for s, ends in ((1, (1000, 1250)), (2, (1150, 1400)))]
    rng = np.random.default_rng(3)
    bent = [
        f.assign(step_time_ms=(20 + 0.04 * np.maximum(f["context_len"] - 2000, 0)) * np.exp(0.01 * rng.normal(size=len(f)))) for f in sides
    ]
    assert attribute_slowdown(*bent).step_time_ratio_equal == pytest.approx(1.0, abs=0.01)


def test_one_request_in_what_both_sides_have_gives_no_interval_at_equal_mix() -> None:
    after = pd.concat([rows(2, (300, 900), requests=1, factor=1.25), rows(3, (3000, 4000), requests=5, factor=1.25)])
    made = attribute_slowdown(rows(1, (100, 1000), requests=20), after)
    assert made.step_time_ratio_equal == pytest.approx(1.25, rel=0.02)
    assert np.isnan([made.step_time_ratio_equal_low, made.tokens_ratio_equal_high, made.mix_ratio_low]).all()
    assert made.step_time_ratio_low < made.step_time_ratio < made.step_time_ratio_high
    assert "no intervals at equal context and batch size: only one prompt of a side is in what both sides have" in made.notes


def test_what_the_rows_do_not_tell_is_not_held_equal_and_it_says_so() -> None:
    a, b = rows(1, (100, 2500)), rows(2, (1500, 4000))
    neither = attribute_slowdown(*(f.drop(columns=["context_len", "batch_size"]) for f in (a, b)))
    assert neither.mix_ratio == 1
    assert neither.equal_reason == "no context and batch size in the rows, so the mix cannot be told"
    assert neither.verdict == "step time"
    batch = attribute_slowdown(a.drop(columns="context_len"), b)
    assert batch.equal_of == ("batch_size",)
    assert "context is not known on both sides, and not held equal" in batch.notes
    nothing = attribute_slowdown(a, b, control=())
    assert nothing.equal_reason == "nothing is held equal, as asked"
    assert nothing.share_step_time == neither.share_step_time
    absent = attribute_slowdown(a, b, control="colour")
    assert (absent.verdict, absent.reason) == ("cannot tell", "there is no column colour to compare at equal values of")
    median = attribute_slowdown(a, b, step_time="p50")
    assert median.parts is None
    assert median.equal_reason == "medians are not compared at equal mix; step_time='mean' is"
    unknown = attribute_slowdown(a, b.assign(context_len=np.nan), control="context_len")
    assert unknown.equal_reason == "context is not known after"


def test_parts_that_cancel_are_named() -> None:
    # Contexts of 2750 instead of 1300: x 33 / 47.5; a server that takes 0.695 of the time makes up for it
    made = attribute_slowdown(rows(1, (100, 2500)), rows(2, (1500, 4000), factor=33 / 47.5))
    assert made.verdict == "no change"
    assert "the mix and step time both changed, and cancel" in made.notes
    unsure = attribute_slowdown(
        rows(1, (100, 2500), texts=0.5, requests=20), rows(2, (1500, 4000), factor=33 / 47.5, texts=0.5, requests=20), min_change=0.0
    )
    assert unsure.verdict == "cannot tell"
    assert any(note.startswith("step time at equal mix by itself did change: x 0.6") for note in unsure.notes)


def test_a_small_part_that_its_interval_leaves_open_counts_as_nothing() -> None:
    # The same contexts on both sides, texts that differ: tokens per step by chance up or down, step time x 1.5 for certain
    found = [attribute_slowdown(rows(s, (100, 2500), texts=0.3), rows(s + 50, (100, 2500), texts=0.3, factor=1.5)) for s in range(6)]
    rose = [m for m in found if m.tokens_ratio_equal > 1.005 and np.log(m.tokens_ratio_equal) < 0.1 * -np.log(m.speed_ratio)]
    assert rose
    for made in rose:
        assert (made.verdict, made.share_acceptance) == ("step time", 0.0)
        assert any(note.startswith("acceptance is counted as nothing: x 1.0") for note in made.notes)


def test_a_part_against_the_change_that_is_open_and_not_small_is_said_in_words() -> None:
    # ÷1.12 and x 1.03: 0.113 - 0.030, so tokens took back a third. Their error is 10 % x sqrt(2 / 40) = 2.2 %, the interval +-3.7 %.
    sides = [
        side.assign(tokens=side["tokens"] - side["tokens"].mean() + 4 * more)
        for side, more in ((rows(1, (1000, 1100), texts=0.4), 1.0), (rows(2, (1000, 1100), texts=0.4, factor=1.12), 1.03))
    ]
    made = attribute_slowdown(*sides)
    assert made.tokens_ratio_equal_low < 1 < made.tokens_ratio_equal < 1.04
    assert made.verdict == "step time"
    assert made.reason == "by these estimates tokens per step rose and made up for part of the slow-down (the interval leaves it open)"
    assert np.isnan(made.share_step_time)


def test_very_many_requests_are_drawn_in_groups_with_the_same_intervals() -> None:
    def sides(requests: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        settings = {"requests": requests, "steps": 2, "texts": 1.0}
        return rows(seed, (100, 2500), **settings), rows(seed + 1, (100, 2500), factor=1.2, **settings)  # type: ignore[arg-type]

    few, many = (attribute_slowdown(*sides(n, 5), resamples=400) for n in (1500, 6000))
    width = [np.log(m.tokens_ratio_equal_high / m.tokens_ratio_equal_low) for m in (few, many)]
    assert width[0] / width[1] == pytest.approx(2.0, rel=0.15)  # root of four


def test_statsmodels_oaxaca_finds_the_same_mix() -> None:
    from statsmodels.stats.oaxaca import OaxacaBlinder

    # log of step time: 3 + 0.1 for each 1000 tokens, + 0.2 after; contexts 0.1-3 and 1.5-4.4 thousand: explained 0.1 x 1.4 = 0.14
    sides = []
    for seed, (low, high), more in ((1, (100, 3000), 0.0), (2, (1500, 4400), 0.2)):
        side = rows(seed, (low, high), requests=60)
        rng = np.random.default_rng(seed + 10)
        person = 0.03 * rng.normal(size=60)[np.repeat(np.arange(60), 40)]
        noise = person + 0.05 * rng.normal(size=len(side))
        sides.append(side.assign(step_time_ms=np.exp(3 + 0.1 * side["context_len"] / 1000 + more + noise), tokens=4))
    made = attribute_slowdown(*sides)
    both = pd.concat(sides, keys=(0, 1), names=("after", None)).reset_index("after")
    exog = both[["context_len", "after"]].astype(float)
    oracle = OaxacaBlinder(np.log(both["step_time_ms"]), exog, "after", hasconst=False, swap=False).two_fold(two_fold_type="pooled")
    unexplained, explained, gap = (-float(p) for p in oracle.params)  # before less after
    # tokens are the same throughout, so the mix did what it did to step time
    explained_here = -np.log(made.mix_ratio)
    error = np.log(made.mix_ratio_high / made.mix_ratio_low) / 2 / 1.645
    assert abs(explained_here - explained) < 2 * error
    assert abs(explained_here - explained) < 0.01
    assert explained == pytest.approx(0.14, abs=0.01)
    assert np.log(made.step_time_ratio_equal) == pytest.approx(unexplained, abs=0.01)
    assert np.log(made.step_time_ratio) == pytest.approx(gap, abs=0.01)
    assert made.step_time_ratio_equal_low < np.exp(0.2) < made.step_time_ratio_equal_high


def test_intervals_at_equal_mix_cover_the_truth() -> None:
    # 1.25 times the step time, 0.8 times the tokens, with contexts that differ and texts of 10 % (requests are what varies)
    covered = np.zeros(2)
    runs = 100
    for seed in range(runs):
        a = rows(2 * seed, (100, 3000), texts=0.5, tokens=5.0, requests=15, steps=20)
        b = rows(2 * seed + 1, (1000, 4500), texts=0.4, tokens=4.0, factor=1.25, requests=15, steps=20)
        noisy = [np.exp(0.05 * np.random.default_rng((seed, i)).normal(size=15))[np.repeat(np.arange(15), 20)] for i in (0, 1)]
        a["step_time_ms"], b["step_time_ms"] = a["step_time_ms"] * noisy[0], b["step_time_ms"] * noisy[1]
        made = attribute_slowdown(a, b, resamples=300, seed=seed)
        for i, (name, truth) in enumerate((("step_time_ratio_equal", 1.25), ("tokens_ratio_equal", 0.8))):
            covered[i] += getattr(made, name + "_low") <= truth <= getattr(made, name + "_high")
    assert (covered >= 0.83 * runs).all(), covered
    assert (covered <= 0.98 * runs).all(), covered


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
