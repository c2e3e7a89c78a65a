"""Edges of the metrics: what lies just inside of a threshold and just outside of it, by arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import ddtree_metrics as ddt
from ddtree_metrics.metrics import step_time_bounds
from ddtree_metrics.metrics.confidence import around, within
from ddtree_metrics.metrics.shares import Errors, Parts, counteracting, divide
from ddtree_metrics.metrics.two_point import Run
from ddtree_metrics.steps.repeated_prompts import prompt_keys
from tests.test_diagnose import two_runs

T0 = 1_777_982_401_000_000


def at(us: Any) -> pd.Series:
    return pd.Series(pd.to_datetime(T0 + np.asarray(us, dtype=np.int64), unit="us", utc=True))


# -- shares -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "said"),
    [(-0.005, None), (-0.0051, "steps got faster"), (0.5, None), (1.005, None), (1.0051, "tokens per step rose")],
)
def test_half_a_hundredth_beyond_the_whole_is_no_part_that_worked_against_it(share: float, said: str | None) -> None:
    words = counteracting(share)

    assert words is None if said is None else words is not None and words.startswith(said)


@pytest.mark.parametrize(
    ("share", "ends", "open_"), [(1.2, (1.0, 1.4), False), (1.2, (0.99, 1.4), True), (-0.2, (-0.4, 0.0), False), (-0.2, (-0.4, 0.01), True)]
)
def test_an_interval_that_ends_at_the_whole_leaves_nothing_open(share: float, ends: tuple[float, float], open_: bool) -> None:
    words = counteracting(share, *ends)

    assert words is not None
    assert words.startswith("by these estimates") == open_


@pytest.mark.parametrize(
    ("against", "error", "nothing"),
    [
        # with very many degrees of freedom the 90 % interval is 1.645 errors to each side
        (0.099, 0.2, True),  # less than a tenth of the change, and open: it counts as nothing
        (0.101, 0.2, False),  # more than a tenth: open, but too much to be left out
        (0.05, 0.0310, True),  # 1.645 x 0.0310 = 0.0510: the interval holds none
        (0.05, 0.0300, False),  # 1.645 x 0.0300 = 0.0494: it surely worked against the change
    ],
)
def test_a_part_against_the_change_is_nothing_up_to_a_tenth_if_it_may_be_none(against: float, error: float, nothing: bool) -> None:
    parts = Parts(mix=0.0, step_time=-1.0 - against, tokens=against)  # the change is -1
    errors = Errors(np.diag([1e-12, 1e-6, error**2]), dof=1_000_000, total=0.01)

    made = divide(parts, errors, level=0.9)

    assert made.nothing == (("acceptance",) if nothing else ())
    assert len(made.against) == (0 if nothing else 1)
    assert (made.shares[1].value == pytest.approx(1.0)) if nothing else (made.reason == made.against[0])
    assert not made.unclear


def test_a_change_within_its_own_error_has_no_shares() -> None:
    """1.645 x 0.0600 = 0.0987 and 1.645 x 0.0610 = 0.1003, beside a change of 0.1."""
    parts = Parts(mix=0.0, step_time=-0.06, tokens=-0.04)
    covariance = np.diag([1e-12, 1e-6, 1e-6])

    told = divide(parts, Errors(covariance, 1_000_000, 0.0600), level=0.9)
    untold = divide(parts, Errors(covariance, 1_000_000, 0.0610), level=0.9)

    assert [x.value for x in told.shares] == pytest.approx([0.0, 0.6, 0.4])
    assert untold.unclear
    assert not any(x.known for x in untold.shares)


# -- columns that rise together ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "together"),
    [
        # the limit is an R^2 of 1 - 1 / 25: |r| = 0.9798. x = 0 1 2 3 and y = 0 1 2 4: 6.5 / sqrt(5 * 8.75) = 0.983;
        # with 4.2 at the end 6.8 / sqrt(5 * 9.68) = 0.977; the ranks agree
        (4.0, True),
        (4.2, False),
    ],
)
def test_columns_rise_together_from_a_correlation_of_98_hundredths_on(last: float, together: bool) -> None:
    frame = pd.DataFrame({"context_len": [0.0, 1.0, 2.0, 3.0], "uptime_s": [0.0, 1.0, 2.0, last]})

    assert ddt.confounded(frame, "context_len", "uptime_s").together is together


def test_columns_rise_together_only_if_their_ranks_do_too() -> None:
    # one far value makes r = 1.00; ranks 1 2 3 4 5 and 2 1 4 3 5 differ by 1 in four places: 1 - 6 * 4 / (5 * 24) = 0.8
    frame = pd.DataFrame({"context_len": [0.0, 1.0, 2.0, 3.0, 1000.0], "uptime_s": [1.0, 0.0, 3.0, 2.0, 1000.0]})

    assert ddt.confounded(frame, "context_len", "uptime_s").together is False


@pytest.mark.parametrize(("requests", "together"), [(2, None), (3, True)])
def test_two_requests_do_not_tell_whether_columns_rise_together(requests: int, together: bool | None) -> None:
    frame = pd.DataFrame({"context_len": np.arange(float(requests)), "uptime_s": np.arange(float(requests))})

    assert ddt.confounded(frame, "context_len", "uptime_s").together is together


# -- stretches of coarse stamps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pause_us", "resolution_us", "stretches"),
    [(2_000_000, 1000, 1), (2_000_001, 1000, 2), (5_000_000, 1_000_000, 1), (5_000_001, 1_000_000, 2)],
)
def test_a_stretch_goes_on_over_two_seconds_or_five_steps_of_its_clock(pause_us: int, resolution_us: int, stretches: int) -> None:
    steps = pd.DataFrame({"time": at([0, 40_000, 80_000, 80_000 + pause_us, 120_000 + pause_us]), "time_resolution_us": resolution_us})

    assert len(step_time_bounds(steps)) == stretches


@pytest.mark.parametrize(("last_ms", "stretches"), [(1200, 1), (1201, 2)])
def test_a_flush_ends_a_stretch_if_its_lines_took_over_three_times_as_long_as_usual(last_ms: int, stretches: int) -> None:
    # flushes of 10 lines every 400 ms, 40 ms a line; the last but one comes after 1.2 s, 120 ms a line
    flushes = np.cumsum([0, 400, 400, 400, last_ms, 400]) * 1000
    steps = pd.DataFrame({"time": at(np.repeat(flushes, 10)), "time_resolution_us": 1})

    assert len(step_time_bounds(steps)) == stretches


def test_a_flush_of_three_times_as_many_lines_may_take_three_times_as_long() -> None:
    # 10 lines every 400 ms, and once 30 lines after 1.2 s: all are 40 ms a line
    flushes = np.cumsum([0, 400, 400, 1200, 400, 400]) * 1000
    steps = pd.DataFrame({"time": at(np.repeat(flushes, [10, 10, 10, 30, 10, 10])), "time_resolution_us": 1})

    assert len(step_time_bounds(steps)) == 1


def test_n_lines_between_two_stamps_are_n_less_one_steps_give_or_take_a_tick() -> None:
    # 5 lines, 4 s apart in whole seconds: 4 s / 4 steps, between 3 s / 4 and 5 s / 4
    (row,) = step_time_bounds(pd.DataFrame({"time": at(np.arange(5) * 1_000_000), "time_resolution_us": 1_000_000})).to_dict("records")

    assert (row["steps"], row["mean_ms"], row["low_ms"], row["high_ms"]) == (4, 1000.0, 750.0, 1250.0)


@pytest.mark.parametrize(
    ("stamps", "resolution"), [([0, 1_000_000, 2_000_000], 1_000_000.0), ([0, 1000, 5000], 1000.0), ([0, 1000, 5001], 1.0)]
)
def test_the_smallest_step_of_a_clock_is_seen_in_three_stamps(stamps: list[int], resolution: float) -> None:
    assert step_time_bounds(pd.DataFrame({"time": at(stamps)}))["time_resolution_us"].tolist() == [resolution]
    # two stamps may be whole by chance
    assert step_time_bounds(pd.DataFrame({"time": at(stamps[:2])}))["time_resolution_us"].tolist() == [1.0]


@pytest.mark.parametrize(("resolution_us", "why"), [(100_000, "coarse_clock"), (99_999, None)])
def test_a_clock_of_a_tenth_of_a_second_times_no_step(resolution_us: int, why: str | None) -> None:
    made = ddt.step_times(pd.DataFrame({"time": at(np.arange(6) * 300_000), "time_resolution_us": resolution_us}))

    assert set(made["step_why"].tolist()[1:]) == {why}


@pytest.mark.parametrize(("between_us", "why"), [(99, "burst"), (100, None)])
def test_lines_a_tenth_of_a_millisecond_apart_are_steps(between_us: int, why: str | None) -> None:
    made = ddt.step_times(pd.DataFrame({"time": at([0, 40_000, 80_000, 80_000 + between_us, 120_000, 160_000]), "time_resolution_us": 1}))

    assert made["step_why"].tolist()[3] == why
    # the line that begins a burst and the one after it are no steps either, the one after that is
    assert made["step_why"].tolist()[2] == made["step_why"].tolist()[4] == why
    assert made["step_why"].tolist()[5] is None


# -- Decode lines ----------------------------------------------------------------------------------------------------------------


def decode(ms: Any, *, every: int = 40, accept: float = 2.0, tokens: Any = None, resolution_us: int = 1000) -> pd.DataFrame:
    """Decode lines of one request whose windows have these step times; ``tokens`` are the counts in the pool."""
    ms = np.asarray(ms, dtype=float)
    made = pd.DataFrame(
        {
            "time": at(np.round(np.cumsum(ms * every * 1000)).astype(np.int64)),
            "time_resolution_us": resolution_us,
            "running": 1,
            "accept_len": accept,
            "gen_throughput": accept / ms * 1000.0,
        }
    )
    if tokens is not None:
        made["tokens"] = tokens
    return made


@pytest.mark.parametrize(("factor", "why"), [(2.999, None), (3.001, "after_idle")])
def test_a_window_three_times_as_slow_as_those_beside_it_holds_idle_time(factor: float, why: str | None) -> None:
    ms = [20.0] * 12
    ms[6] *= factor
    made = ddt.decode_step_times(decode(ms), interval=40)

    assert made["step_why"].tolist()[6] == why


@pytest.mark.parametrize(("factor", "why"), [(9.99, None), (10.01, "after_idle")])
def test_a_single_step_may_take_ten_times_as_long_as_those_beside_it(factor: float, why: str | None) -> None:
    ms = [20.0] * 12
    ms[6] *= factor
    made = ddt.decode_step_times(decode(ms, every=1), interval=1)

    assert made["step_why"].tolist()[6] == why


def test_the_windows_beside_one_are_three_on_each_side() -> None:
    # three of 20 ms before the slow one, and three of 20 ms after; farther off they are 60 ms, and 61 ms are three times 20 all the same
    slow = [60.0] * 4 + [20.0] * 3 + [61.0] + [20.0] * 3 + [60.0] * 4

    assert ddt.decode_step_times(decode(slow), interval=40)["step_why"].tolist()[7] == "after_idle"
    # with two of 20 ms the median of the three nearest is still 20; with one it is 60, and nothing stands out
    slow[4] = slow[10] = 60.0
    assert ddt.decode_step_times(decode(slow), interval=40)["step_why"].tolist()[7] == "after_idle"
    slow[5] = slow[9] = 60.0
    assert ddt.decode_step_times(decode(slow), interval=40)["step_why"].tolist()[7] is None


@pytest.mark.parametrize(("steps", "why"), [(42, None), (42.5, "window_mismatch"), (38, None), (37.5, "window_mismatch")])
def test_a_window_may_hold_a_twentieth_more_or_fewer_steps_than_the_interval(steps: float, why: str | None) -> None:
    # 40 steps of 2 tokens are 80 tokens a line; a twentieth of 40 is 2 steps
    grown = [80.0] * 12
    grown[6] = 2 * steps
    made = ddt.decode_step_times(decode([20.0] * 12, tokens=1000 + np.cumsum(grown)), interval=40)

    assert made["step_why"].tolist()[6] == why


@pytest.mark.parametrize(("steps", "why"), [(105, None), (105.5, "window_mismatch")])
def test_of_long_windows_a_twentieth_is_let_pass(steps: float, why: str | None) -> None:
    grown = [200.0] * 12
    grown[6] = 2 * steps
    made = ddt.decode_step_times(decode([20.0] * 12, every=100, tokens=1000 + np.cumsum(grown)), interval=100)

    assert made["step_why"].tolist()[6] == why


def test_the_last_window_is_compared_with_those_before_it() -> None:
    made = ddt.decode_step_times(decode([20.0] * 11 + [61.0]), interval=40)

    assert made["step_why"].tolist()[-1] == "after_idle"


@pytest.mark.parametrize(("own", "agree"), [(20.0 * 1.049, True), (20.0 * 1.051, False)])
def test_step_lines_and_decode_lines_agree_within_a_twentieth(own: float, agree: bool) -> None:
    # windows of 40 steps of 20 ms; the Decode lines say ``own``
    times = np.arange(1, 481) * 20_000
    steps = pd.DataFrame({"time": at(times), "time_resolution_us": 1, "batch_size": 1, "tokens": 2})
    lines = decode([20.0] * 12)
    lines["time"] = at(times[39::40] + 1)
    lines["gen_throughput"] = 2.0 / own * 1000.0

    assert ddt.compare_step_times(steps, lines).agree is agree


# -- budgets ---------------------------------------------------------------------------------------------------------------------


def budgets(tokens: dict[int, int]) -> pd.DataFrame:
    """Many requests at each budget that commit so many hundredths of a token a step."""
    rows = []
    for budget, hundredths in tokens.items():
        for request in range(20):
            low, more = divmod(hundredths, 100)
            made = [low + 1] * more + [low] * (100 - more)
            rows += [{"request_id": f"{budget}-{request}", "budget": budget, "tokens": t, "step_us": 20_000} for t in made]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(("last", "warned"), [(379, True), (381, False)])
def test_a_twentieth_fewer_tokens_at_the_largest_budget_is_warned_of(last: int, warned: bool) -> None:
    # 95 % of 4.00 are 3.80
    made = ddt.by_budget(budgets({8: 400, 16: 390, 32: last}))

    assert (made.attrs["warning"] is not None) == warned


def test_two_budgets_show_no_fall_and_three_that_do_not_fall_in_order_show_none() -> None:
    assert ddt.by_budget(budgets({8: 400, 32: 300})).attrs["warning"] is None
    # ranks 1 2 3 4 of the budgets, 3 4 1 2 of the tokens: 1 - 6 * 16 / (4 * 15) = -0.6, which is not below -0.7
    assert ddt.by_budget(budgets({8: 400, 16: 450, 24: 250, 32: 300})).attrs["warning"] is None
    # 4 2 3 1: 1 - 6 * (9 + 0 + 0 + 9) / 60 = -0.8
    assert ddt.by_budget(budgets({8: 400, 16: 300, 24: 350, 32: 250})).attrs["warning"] is not None


# -- acceptance ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("full", "short", "too_good"), [(19, 1, True), (18, 2, False), (19, 0, False), (20, 0, True)])
def test_19_of_20_steps_that_accept_every_draft_are_too_good(full: int, short: int, too_good: bool) -> None:
    # 19 of 20 are 95 %; 18 of 20 are 90 %; 19 rows are too few to say
    drafts = [7] * full + [3] * short
    made = ddt.acceptance(pd.DataFrame({"request_id": "a", "tokens": [d + 1 for d in drafts], "drafts": drafts}), depth_cap=7)

    assert bool(made.too_good) == too_good


def test_every_depth_to_the_deepest_has_a_survival_with_its_ends() -> None:
    # eight requests alike, a fifth of whose steps accepts 0, 1, 2, 3 and 4 drafts each: nothing varies, so the ends are the values
    rows = [{"request_id": str(i), "tokens": d + 1, "drafts": d} for i in range(8) for d in (0, 1, 2, 3, 4) * 4]
    made = ddt.acceptance(pd.DataFrame(rows), depth_cap=4).survival

    assert made is not None
    for name in ("survival", "low", "high"):
        assert made[name].tolist() == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


# -- rates -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "convention"),
    [
        # (2.20 - 1) / (4 - 1) = 0.4000; both numbers are known within 0.005: 0.005 + 0.005 / 3 = 0.00667
        (0.4066, "drafts_only"),
        (0.4067, None),
        (0.3934, "drafts_only"),
        (0.3933, None),
        # 2.20 / 4 = 0.5500; 0.005 + 0.005 / 4 = 0.00625
        (0.5562, "with_bonus"),
        (0.5563, None),
    ],
)
def test_a_printed_rate_fits_a_formula_within_the_rounding_of_both_numbers(rate: float, convention: str | None) -> None:
    assert ddt.accept_rate(2.20, rate, 4).rate_convention == convention


@pytest.mark.parametrize(("clear", "other", "settled"), [(9, 1, "with_bonus"), (8, 1, "ambiguous")])
def test_nine_tenths_of_the_clear_lines_settle_the_ambiguous_ones(clear: int, other: int, settled: str) -> None:
    # four draft tokens: 4.00 of length fits 1.00 by both formulas; 2.20 fits 0.55 with the bonus, 0.40 without
    rows = [(2.20, 0.55)] * clear + [(2.20, 0.40)] * other + [(4.00, 1.00)]
    frame = pd.DataFrame(rows, columns=["accept_len", "accept_rate"])

    assert ddt.accept_rates(frame, num_draft_tokens=4)["rate_convention"].iloc[-1] == settled


# -- two points ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cached", "status"), [(64, "ok"), (65, "prefill_differs")])
def test_64_cached_tokens_more_or_fewer_are_the_same_prefill(cached: int, status: str) -> None:
    a = Run(8, 1.0, prompt_tokens=1000, cached_tokens=100)

    assert ddt.two_point_rate(a, Run(200, 4.0, prompt_tokens=1000, cached_tokens=100 + cached)).status == status
    assert ddt.two_point_rate(a, Run(200, 4.0, prompt_tokens=1000, cached_tokens=100 - cached)).status == status


@pytest.mark.parametrize(("tokens", "seconds", "status"), [(2, 0.5, "ok"), (1, 0.5, "too_few_tokens"), (2, 0.0, "no_time")])
def test_a_run_needs_two_tokens_and_some_time_between_them(tokens: int, seconds: float, status: str) -> None:
    assert ddt.run_rate(Run(tokens, first_token_s=1.0, last_token_s=1.0 + seconds)).status == status


@pytest.mark.parametrize(("took", "noted"), [(0.50, False), (0.49, True)])
def test_a_prefill_that_costs_less_than_half_as_much_as_those_before_may_have_used_a_cache(took: float, noted: bool) -> None:
    # 1 s for each 1000 tokens more, and then less than half of it
    t_a = np.cumsum([1.0, 1.0, 1.0, took])
    made = ddt.check_sweep(pd.DataFrame({"prompt_tokens": [1000, 2000, 3000, 4000], "tok_per_s": 100.0, "t_a": t_a, "t_b": t_a + 2.56}))

    assert bool(made.notes) == noted
    assert made.tokens == 256


def test_a_sweep_is_printed_with_one_decimal_of_the_rate_and_two_of_the_times() -> None:
    (row,) = ddt.check_sweep(pd.DataFrame({"prompt_tokens": [100], "tok_per_s": [64.0], "t_a": [1.0], "t_b": [5.0]})).frame.to_dict(
        "records"
    )

    # 64.0 is 63.95 to 64.05, and a difference of two times is 4.00 give or take 0.01: 63.95 * 3.99 and 64.05 * 4.01
    assert (row["implied_tokens"], row["implied_low"], row["implied_high"]) == pytest.approx((256.0, 255.1605, 256.8405))


# -- intervals -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("high", "given"), [(20.0, True), (20.001, False)])
def test_an_interval_that_spans_a_factor_of_20_is_given_and_a_wider_one_is_not(high: float, given: bool) -> None:
    assert np.isfinite(within((1.0, high))).all() == given


@pytest.mark.parametrize(("draws", "given"), [(20, True), (19, False)])
def test_an_interval_needs_20_draws_and_two_groups(draws: int, given: bool) -> None:
    values = np.linspace(0.9, 1.1, draws)

    assert np.isfinite(around(1.0, values, 5.0, 0.9)).all() == given
    assert not np.isfinite(around(1.0, values, 1.0, 0.9)).any()


def test_an_interval_of_few_groups_is_as_much_wider_as_students_quantile_is() -> None:
    # 5 groups: t(4, 0.95) = 2.1318, z(0.95) = 1.6449, sqrt(5 / 4) = 1.1180: 1.4490 times as wide
    draws = np.linspace(0.0, 2.0, 2001)  # its 5 % and 95 % quantiles are 0.1 and 1.9
    low, high = around(1.0, draws, 5.0, 0.9, log=False)

    assert (low, high) == pytest.approx((1 - 0.9 * 1.4490, 1 + 0.9 * 1.4490), abs=2e-4)


def sequences(same: int) -> pd.DataFrame:
    """Two requests with prompts of one length, whose first ``same`` steps committed the same tokens, all kinds equally often."""
    first = [1 + (i * 7) % 10 for i in range(20)]
    second = first[:same] + [1 + (t % 10) for t in first[same:]]
    return pd.DataFrame({"request_id": ["a"] * 20 + ["b"] * 20, "prompt_len": 100, "tokens": first + second})


@pytest.mark.parametrize(("same", "prompts"), [(8, 1), (7, 2)])
def test_two_requests_are_of_one_prompt_if_their_first_8_steps_are_alike(same: int, prompts: int) -> None:
    # ten kinds of step: two steps agree by accident in a tenth of all cases, so two would do for one pair, but 8 is the least
    assert prompt_keys(sequences(same)).prompts == prompts


@pytest.mark.parametrize(("same", "prompts"), [(19, 99), (18, 100)])
def test_among_many_requests_more_steps_must_be_alike(same: int, prompts: int) -> None:
    # 100 requests are 4950 pairs, and two kinds of step agree by accident in half of all cases: for one false pair in a hundred such
    # tables log(0.01 / 4950) / log(0.5) = 18.9 steps must be alike
    tokens = np.random.default_rng(0).integers(1, 3, (100, 24))
    tokens[1, :same], tokens[1, same] = tokens[0, :same], 3 - tokens[0, same]
    frame = pd.DataFrame({"request_id": np.repeat(np.arange(100), 24).astype(str), "prompt_len": 50, "tokens": tokens.ravel()})

    assert prompt_keys(frame).prompts == prompts


def test_a_prompt_id_says_which_requests_are_of_one_prompt() -> None:
    frame = pd.DataFrame({"request_id": list("aabbcd"), "prompt_id": ["x", "x", "x", "x", "y", None], "tokens": 1})
    keys = prompt_keys(frame)

    # a and b are x, c is y, and d, which names none, is a prompt of its own
    assert (keys.prompts, keys.requests, keys.source) == (3, 4, "prompt_id")
    assert keys.counts() == (4, 3)
    assert [keys.codes[0] == code for code in keys.codes] == [True, True, True, True, False, False]


# -- bins of context --------------------------------------------------------------------------------------------------------------


def bins_of(contexts: list[int], **how: Any) -> list[str]:
    frame = pd.DataFrame({"request_id": "a", "context_len": contexts, "tokens": 2, "step_us": 20_000})
    return ddt.by_context(frame, **how)["bin"].tolist()


def test_eight_context_lengths_have_a_bin_each_and_nine_share_some() -> None:
    # each bin goes to the next length, the last one to the next token
    assert bins_of([10, 20, 30, 40, 50, 60, 70, 80]) == [*(f"{low}-{low + 9}" for low in range(10, 80, 10)), "80"]
    # nine lengths over 80 tokens: 80 / 6 = 13.3 is above 10, and 80 / 10 are 8 steps
    assert bins_of([10, 20, 30, 40, 50, 60, 70, 80, 90]) == [f"{low}-{low + 9}" for low in range(10, 100, 10)]


@pytest.mark.parametrize(
    ("low", "high", "bins"),
    [
        # over more than four times the shortest (64 at least), bins double
        (0, 257, ["0-127", "128-255", "256-511"]),
        # 256 / 6 = 42.7: 10, 20 and 50 are tried, and 256 / 50 are no more than 8 steps
        (0, 256, ["0-49", "50-99", "100-149", "150-199", "200-249", "250-299"]),
        (100, 401, ["0-127", "128-255", "256-511"]),
        # 400 is four times 100 and no more; 300 / 6 = 50: steps of 50
        # 85 / 6 = 14.2: 85 / 10 are more than 8 steps, so they are of 20
        (0, 85, ["0-19", "20-39", "40-59", "60-79", "80-99"]),
        (100, 400, ["100-149", "150-199", "200-249", "250-299", "300-349", "350-399", "400-449"]),
        (130, 1000, ["128-255", "256-511", "512-1023"]),
    ],
)
def test_bins_double_over_a_wide_range_of_contexts_and_are_even_over_a_narrow_one(low: int, high: int, bins: list[str]) -> None:
    assert bins_of([round(low + (high - low) * i / 60) for i in range(61)]) == bins


@pytest.mark.parametrize(("width", "refused"), [(0.1, False), (0.0999, True), (0.0, True)])
def test_there_may_be_10_000_bins_and_no_more(width: float, refused: bool) -> None:
    if refused:
        with pytest.raises(ddt.MetricError, match="bin width"):
            bins_of([0, 1000], width=width)
    else:
        assert len(bins_of([0, 1000], width=width)) in (2, 10_001)


@pytest.mark.parametrize(("edges", "refused"), [([0, 10], False), ([0], True), ([0, 0], True), ([10, 0], True)])
def test_bin_edges_are_two_at_least_and_rise(edges: list[float], refused: bool) -> None:
    if refused:
        with pytest.raises(ddt.MetricError, match="bin edges"):
            bins_of([5], edges=edges)
    else:
        assert bins_of([5], edges=edges) == ["0-9"]


def test_a_bin_holds_its_lower_edge_and_not_its_upper_one() -> None:
    frame = pd.DataFrame({"request_id": "a", "context_len": [0, 9, 10, 19, 20], "tokens": 2, "step_us": 20_000})

    assert ddt.by_context(frame, edges=[0, 10, 20])["rows"].tolist() == [2, 2]


def test_a_step_has_a_context_only_where_one_request_ran_at_a_known_time() -> None:
    # a (prompt 100) runs from 1 s to 5 s and b (prompt 7) from 4 s: steps at 2 and 3 s are a's, at 4.5 s both run, at 9 s nobody
    requests = pd.DataFrame(
        {
            "first_token": at([1_000_000, 4_000_000]),
            "finished": at([5_000_000, 6_000_000]),
            "prompt_tokens": [100, 7],
            "request_id": list("ab"),
        }
    )
    stamps = [T0 + us for us in (2_000_000, 3_000_000, 4_500_000, 9_000_000)]
    steps = pa.table(
        {
            "time_us": pa.array([*stamps, None], pa.int64()),
            "step_us": pa.array([20_000] * 5, pa.int64()),
            "tokens": pa.array([4] * 5, pa.int64()),
            "tokens_cum": pa.array([4, 8, 12, 16, 20], pa.int64()),
        }
    )
    made = ddt.summarise_histogram(ddt.context_histogram(steps.to_batches(), requests=requests, edges=[0, 102, 200]))

    # 100 when the first began, 104 when the second did
    assert made[["bin", "rows"]].to_numpy().tolist() == [["0-101", 1], ["102-199", 1]]


# -- groups of a diagnosis -----------------------------------------------------------------------------------------------------------


def test_a_window_of_a_diagnosis_begins_at_since_and_ends_before_until() -> None:
    # two runs of 16 requests of 40 steps; the window ends at the very microsecond of the second run's first step
    log = two_runs((60.0, (4, 5, 3)), {})
    rows = log.request_steps
    edge = pd.Timestamp(int(rows.loc[rows["boot_id"] == "b1", "time_us"].min()), unit="us", tz="UTC")

    for groups in ({"before": (None, edge)}, {"after": (edge, None)}):  # the other group is all the rest
        counted = ddt.diagnose(log, **groups).comparisons[0].rows
        assert (counted["request_steps_before"], counted["request_steps_after"]) == (640, 640)


# -- tokens of a step that prints averages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "average", "tokens", "each"),
    [
        (99.0, 2.01, 199.0, 199 / 99),  # 198.99 lies within 0.495 of 199 only, so the mean is 199 / 99 and not 2.01
        (100.0, 2.01, None, 2.01),  # within 0.5 there may be two whole numbers: the mean is what was printed
        (999.0, 2.01, None, 2.01),
        (None, 2.01, None, 2.01),  # a batch of unknown size: the mean is known all the same
        (3.0, 1.32, None, None),  # 3.96 is no sum of three that is printed as 1.32: nothing is believed
    ],
)
def test_the_mean_as_printed_is_taken_where_the_sum_of_a_batch_is_not_sure(
    size: float | None, average: float, tokens: float | None, each: float | None
) -> None:
    steps = pd.DataFrame({"batch_size": [size], "avg_commit_len": [average], "budget": [16]}).astype({"batch_size": float})

    (row,) = ddt.neutral_columns(steps).to_dict("records")

    assert [row["tokens"], row["tokens_per_step"]] == [
        pytest.approx(x) if x is not None else pytest.approx(np.nan, nan_ok=True) for x in (tokens, each)
    ]


def test_a_list_of_commits_that_does_not_fit_its_batch_is_not_mended_by_the_mean() -> None:
    """Which of three lengths count for a batch of 100 is not known, whatever mean stands beside them."""
    steps = pd.DataFrame({"batch_size": [100.0], "avg_commit_len": [2.0], "commit_lens": [[2, 2, 2]], "budget": [16]})

    (row,) = ddt.neutral_columns(steps).to_dict("records")

    assert np.isnan(row["tokens"])
    assert np.isnan(row["tokens_per_step"])
