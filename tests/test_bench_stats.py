"""From answers to a point: which rounds count, the interval, and what is refused."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_metrics.bench.answers import TimedAnswer
from ddtree_metrics.bench.stats import judge, median_interval, summarise


def answer(n: int, t: float, asked: int | None = None, number: int = 0, **more: object) -> TimedAnswer:
    made = TimedAnswer(
        "measure", asked or n, ctx=64, round=number, prompt_tokens=64, completion_tokens=n, elapsed_s=t, finish_reason="length"
    )
    return replace(made, **more)


def pairs(times: list[tuple[float, float]], **more: object) -> list[TimedAnswer]:
    """Make rounds of 8 and 264 tokens."""
    return [a for i, (t_a, t_b) in enumerate(times) for a in (answer(8, t_a, number=i, **more), answer(264, t_b, number=i, **more))]


def test_o7_the_rate_uses_the_tokens_really_produced():
    short, long = answer(8, 1.46), answer(200, 4.33, asked=264)
    r = judge(0, [short, long], 2)
    # (200 - 8) / (4.33 - 1.46) = 66.90, not 256 / 2.87 = 89.20
    assert 1 / r.seconds_a_token == pytest.approx(66.90, abs=0.005)
    point = summarise(64, [short, long], (8, 264))
    assert point.decode_tok_s == pytest.approx(66.90, abs=0.005)
    assert any("stopped early (200 of 264 tokens" in note for note in point.notes)


def test_o7_no_token_difference_gives_a_reason_and_no_rate():
    r = judge(0, [answer(8, 1.46), answer(8, 1.5, asked=264)], 2)
    assert (r.seconds_a_token, r.reason) == (None, "no_token_difference")


def test_o7_a_long_request_that_is_faster_gives_a_reason_and_no_rate():
    r = judge(0, [answer(8, 1.5), answer(264, 1.2)], 2)
    assert (r.seconds_a_token, r.reason) == (None, "no_time_difference")


def test_o8_a_warm_cache_on_one_side_is_dropped_and_counted():
    cold = answer(8, 1.60, prompt_tokens=5000, cached_tokens=0, first_token_s=1.48)
    warm = answer(200, 1.20, prompt_tokens=5000, cached_tokens=4992, first_token_s=0.05)
    assert judge(0, [cold, warm], 2).reason == "prefill_differs"
    point = summarise(5000, [cold, warm], (8, 200))
    assert (point.status, point.decode_tok_s, point.dropped) == ("failed", None, {"prefill_differs": 1})
    assert "4992" in (point.reason or "")


def test_o8_any_difference_in_cached_tokens_drops_the_round():
    r = judge(0, [answer(8, 1.0, cached_tokens=63), answer(264, 2.0, cached_tokens=48)], 2)
    assert r.reason == "prefill_differs"


SEED = [(64, 82, 255.7, 0.11, 0.86), (1024, 1407, 216.4, 0.56, 1.44), (3072, 4257, 113.3, 1.32, 3.01), (5120, 7107, 66.8, 1.46, 4.33)]


@pytest.mark.parametrize(("ctx", "prompt", "printed", "t_a", "t_b"), SEED)
def test_the_seed_sweep_reproduces_with_192_tokens_and_not_with_256(ctx: int, prompt: int, printed: float, t_a: float, t_b: float):
    def speed(n_a: int, n_b: int) -> float:
        point = summarise(ctx, [answer(n_a, t_a, prompt_tokens=prompt), answer(n_b, t_b, prompt_tokens=prompt)], (n_a, n_b))
        assert point.prompt_tok == prompt
        return point.decode_tok_s or 0.0

    # times are printed to 0.01 s, so t_b - t_a is known to 0.01
    spread = 0.01 / (t_b - t_a)
    assert speed(8, 200) == pytest.approx(printed, rel=spread)
    assert speed(8, 264) > printed * (1 + 2 * spread)


def test_the_seed_sweep_prints_as_it_was_printed():
    from ddtree_metrics.bench.stats import Point
    from ddtree_metrics.bench.sweep import Plan, Sweep

    points = [Point(c, prompt_tok=p, decode_tok_s=r, t_a=a, t_b=b) for c, p, r, a, b in SEED]
    assert Sweep("http://x/v1", Plan(), "m", "p", points).plain() == (
        "ctx_req prompt_tok decode_tok/s    t_a     t_b\n"
        "     64         82        255.7   0.11    0.86\n"
        "   1024       1407        216.4   0.56    1.44\n"
        "   3072       4257        113.3   1.32    3.01\n"
        "   5120       7107         66.8   1.46    4.33\n"
    )


def test_the_value_is_the_median_of_differences_and_not_the_mean_of_speeds():
    # time a token 1, 2 and 100 ms: median 2 ms = 500 tok/s; the mean of the speeds would be (1000 + 500 + 10) / 3 = 503
    # and of one tiny difference more: 1e-6 s a token is a million tok/s
    point = summarise(64, pairs([(1, 1 + 256 * d) for d in (0.001, 0.002, 0.1, 1e-6, 0.002)]), (8, 264))
    assert point.decode_tok_s == pytest.approx(500)


def test_best_is_the_smallest_long_minus_the_smallest_short():
    # min t_b = 1.30, min t_a = 1.00: 256 / 0.30
    point = summarise(64, pairs([(1.2, 1.6), (1.0, 1.5), (1.1, 1.3)]), (8, 264))
    assert point.best_tok_s == pytest.approx(256 / 0.30)


def test_more_than_two_points_give_the_least_squares_slope():
    # n = 8, 136, 264 at t = 1, 2, 4: slope = sum((n - 136)(t - 7/3)) / sum((n - 136)^2) = (128*1.333.. + 128*1.666..) / 32768 = 384/32768
    r = judge(0, [answer(8, 1), answer(136, 2), answer(264, 4)], 3)
    assert r.seconds_a_token == pytest.approx(384 / 32768)
    # the middle lies at 1/3 of the time and 1/2 of the tokens: -17 % off the line
    point = summarise(64, [answer(8, 1), answer(136, 2), answer(264, 4)], (8, 136, 264))
    assert any("-17 %" in note for note in point.notes)


def test_six_values_are_needed_for_95_percent():
    # 1 - 2/2^5 = 0.9375, 1 - 2/2^6 = 0.96875
    five, six = median_interval([1, 2, 3, 4, 5]), median_interval([1, 2, 3, 4, 5, 6])
    assert (five.low, five.high, five.level) == (1, 5, 0.9375)
    assert six.level == 0.95
    # depth 1 covers 0.96875, depth 2 0.78125; share over = 0.01875/0.1875 = 0.1; lambda = 5*0.1/(1 + 4*0.1) = 0.35714
    assert (six.low, six.high) == pytest.approx((1.35714, 5.64286), abs=1e-5)


def test_two_values_have_no_interval():
    assert median_interval([1, 3]) == median_interval([3, 1])
    assert (median_interval([1, 3]).middle, median_interval([1, 3]).low) == (2, None)


def test_the_interval_covers_the_median_as_often_as_it_says():
    rng, hits, runs = random.Random(5), 0, 2000
    for _ in range(runs):
        made = median_interval([rng.lognormvariate(0, 1) for _ in range(9)])
        hits += (made.low or 0) <= 1.0 <= (made.high or 0)  # the median of this law is 1
    # binomial: 0.95 +- 3 * sqrt(0.95 * 0.05 / 2000) = 0.935 .. 0.965
    assert 0.935 <= hits / runs <= 0.965


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_the_interval_encloses_the_median(values: list[float]):
    made = median_interval(values)
    if made.low is not None:
        assert made.low <= made.middle * (1 + 1e-12)
        assert made.high >= made.middle * (1 - 1e-12)


def test_a_point_that_lost_more_than_a_third_gets_no_number():
    bad = pairs([(1.0, 2.0)] * 3)
    for a in bad[1:4:2]:
        a.cached_tokens = 3
    for a in bad[0:4:2]:
        a.cached_tokens = 63
    point = summarise(64, bad, (8, 264))
    assert (point.status, point.kept, point.rounds, point.decode_tok_s) == ("unreliable", 1, 3, None)
    assert point.reason == "2 of 3 rounds were dropped (2 prefill_differs)"


def test_less_than_half_of_the_planned_difference_is_dropped():
    assert judge(0, [answer(8, 1), answer(100, 2, asked=264)], 2).reason == "short_difference"


@pytest.mark.parametrize(
    ("failure", "reason"), [("rate_limited", "rate_limited"), ("timeout", "timeout"), ("server_error", "failed"), ("broken", "failed")]
)
def test_a_failed_request_takes_its_round_with_it(failure: str, reason: str):
    assert judge(0, [answer(8, 1), answer(264, 2, failure=failure)], 2).reason == reason


def test_half_a_round_is_missing_the_other_half():
    assert judge(0, [answer(8, 1)], 2).reason == "missing"


def test_missing_usage_is_a_reason():
    assert judge(0, [answer(8, 1), answer(264, 2, completion_tokens=None)], 2).reason == "no_usage"


def test_other_prompt_lengths_are_a_reason():
    assert judge(0, [answer(8, 1), answer(264, 2, prompt_tokens=65)], 2).reason == "prompt_differs"


def test_verify_counts_give_tokens_per_step_and_step_time():
    # 256 tokens in 64 steps and 6.4 s more: 4 tokens a step, 100 ms a step
    rows = pairs([(1.0, 7.4)] * 3)
    for a in rows:
        a.steps, a.steps_from, a.accepted_drafts = (2, "timings", 5) if a.max_tokens == 8 else (66, "timings", 197)
    point = summarise(64, rows, (8, 264))
    assert (point.tokens_per_step, point.step_ms) == (pytest.approx(4.0), pytest.approx(100.0))
    assert point.decode_tok_s == pytest.approx(40.0)  # = tokens per step / step time


def test_a_stream_alone_subtracts_the_tokens_of_its_first_chunk():
    # 24 tokens, 8 of them in the first chunk at 1.0 s, the last at 3.0 s: 16 tokens in 2 s
    rows = pairs([(1.0, 2.0)] * 3, chunks=4, first_token_s=1.0, last_token_s=3.0, first_chunk_tokens=8)
    for a in rows:
        if a.max_tokens == 264:
            a.first_chunk_tokens = 8
    point = summarise(64, rows, (8, 264))
    assert point.stream_tok_s == pytest.approx((264 - 8) / 2.0)


def test_a_stream_alone_says_nothing_where_the_first_chunk_may_hold_several():
    point = summarise(64, pairs([(1.0, 2.0)] * 3, chunks=4, first_token_s=1.0, last_token_s=3.0), (8, 264))
    assert point.stream_tok_s is None


def test_requests_side_by_side_count_as_one_value_a_round():
    rows = []
    for number in range(6):
        for worker in range(3):
            for n, t in ((8, 1.0), (264, 1.0 + 256 * 0.001 * (1 + worker))):
                rows.append(answer(n, t, number=number, worker=worker, sent_us=number * 10_000_000))
    point = summarise(64, rows, (8, 264), concurrency=3)
    assert (point.kept, point.rounds) == (18, 18)
    assert point.decode_tok_s == pytest.approx(1000 / 2)  # the mean of 1, 2 and 3 ms in each round
    assert point.low == pytest.approx(point.high)  # six equal values: not eighteen
    # together: 3 * 256 tokens, and the slowest takes 256 * 3 ms longer
    assert point.total_tok_s == pytest.approx(3 * 256 / (256 * 0.003))


def test_no_number_of_a_point_is_ever_infinite_or_nan():
    for rows in ([], pairs([(0.0, 0.0)]), pairs([(1.0, 1.0)]), pairs([(math.inf, math.inf)]), pairs([(math.nan, 1.0)])):
        point = summarise(64, rows, (8, 264))
        assert point.decode_tok_s is None
        assert point.reason
