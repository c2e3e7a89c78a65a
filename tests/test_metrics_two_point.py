"""Two-point decode speed: from tokens really produced, or refused with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_metrics.metrics import Run, check_sweep, implied_tokens, run_rate, two_point_rate

ORACLES = Path(__file__).parent.parent / "fixtures" / "oracles"


def test_o7_the_rate_uses_the_tokens_really_produced() -> None:
    made = two_point_rate(Run(8, 1.46, max_tokens=8), Run(200, 4.33, max_tokens=264))
    # (200 - 8) / (4.33 - 1.46) = 192 / 2.87 = 66.90, not 256 / 2.87 = 89.20
    assert round(made.tok_per_s, 2) == 66.90
    assert made.notes == ("B stopped early: 200 of 264",)
    assert made.status == "ok"


def test_o7_no_token_difference_gives_no_rate() -> None:
    made = two_point_rate(Run(8, 1.46), Run(8, 4.33))
    assert np.isnan(made.tok_per_s)
    assert made.status == "no_token_difference"
    assert "no token difference" in str(made.reason)


def test_o7_a_longer_run_that_was_faster_gives_neither_a_negative_nor_an_infinite_rate() -> None:
    for total in (1.46, 1.0):
        made = two_point_rate(Run(8, 1.46), Run(200, total))
        assert np.isnan(made.tok_per_s)
        assert made.status == "no_time_difference"


def test_o8_a_warm_cache_on_one_side_is_refused_with_a_fallback_under_its_own_name() -> None:
    a = Run(8, 1.60, prompt_tokens=5000, cached_tokens=0, first_token_s=1.48)
    b = Run(200, 1.20, prompt_tokens=5000, cached_tokens=4992, first_token_s=0.05)
    made = two_point_rate(a, b)
    assert np.isnan(made.tok_per_s)
    assert made.status == "prefill_differs"
    assert "cached 0 against 4992" in str(made.reason)
    # (200 - 1) / (1.20 - 0.05) = 173.0
    assert round(made.fallback_tok_per_s, 1) == 173.0
    assert "B alone" in str(made.fallback_from)
    without = two_point_rate(Run(8, 1.60, cached_tokens=0), Run(200, 1.20, cached_tokens=4992))
    assert np.isnan(without.fallback_tok_per_s)


def test_o9_the_clock_starts_at_the_first_token_of_any_kind() -> None:
    made = run_rate(
        {"completion_tokens": 300, "reasoning_tokens": 240, "first_token_s": 20.0, "first_content_s": 26.0, "last_token_s": 27.5}
    )
    # 299 / (27.5 - 20.0) = 39.87, not 299 / 1.5 = 199.3
    assert (made.ttft_s, made.window_s, round(made.tok_per_s, 2)) == (20.0, 7.5, 39.87)


def test_o9_with_only_the_content_timed_there_is_no_rate_for_a_reasoning_answer() -> None:
    made = run_rate(Run(300, first_content_s=26.0, last_token_s=27.5, reasoning_tokens=240))
    assert np.isnan(made.tok_per_s)
    assert made.status == "ttft_after_reasoning"
    plain = run_rate(Run(300, first_content_s=20.0, last_token_s=27.5, reasoning_tokens=0))
    assert round(plain.tok_per_s, 2) == 39.87


def test_prompts_of_different_length_are_refused() -> None:
    assert two_point_rate(Run(8, 1.0, prompt_tokens=100), Run(200, 2.0, prompt_tokens=5000)).status == "prompt_differs"


@pytest.mark.parametrize(
    ("a", "b"), [({}, {}), (Run(), Run(8, 1.0)), (Run(8), Run(200, 3.0)), ({"completion_tokens": None}, {"total_s": "soon"})]
)
def test_missing_numbers_are_said_to_be_missing(a: object, b: object) -> None:
    made = two_point_rate(a, b)
    assert made.status == "missing"
    assert made.reason
    assert np.isnan(made.tok_per_s)


numbers = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.integers(-10, 10**6))


@settings(deadline=None)
@given(numbers, numbers, numbers, numbers, numbers, numbers)
def test_a_rate_is_positive_and_finite_or_has_a_reason(ca: object, ta: object, cb: object, tb: object, fa: object, fb: object) -> None:
    made = two_point_rate(
        {"completion_tokens": ca, "total_s": ta, "first_token_s": fa}, {"completion_tokens": cb, "total_s": tb, "first_token_s": fb}
    )
    if made.status == "ok":
        assert 0 < made.tok_per_s < np.inf
    else:
        assert np.isnan(made.tok_per_s)
        assert "nan" not in str(made.reason)


def seed_sweep() -> pd.DataFrame:
    table = pd.read_csv(ORACLES / "seed_context_sweep.csv")
    return pd.DataFrame(
        {
            "prompt_tokens": table["prompt_tok"],
            "tok_per_s": table["decode_tok_s_printed"],
            "t_a": table["t_short_s"],
            "t_b": table["t_long_s"],
        }
    )


def test_the_printed_sweep_used_192_tokens_and_not_256() -> None:
    made = check_sweep(seed_sweep(), claimed=256)
    # 255.7 * 0.75 = 191.8, 216.4 * 0.88 = 190.4, 113.3 * 1.69 = 191.5, 66.8 * 2.87 = 191.7
    assert made.frame["implied_tokens"].round(1).tolist() == [191.8, 190.4, 191.5, 191.7]
    assert made.tokens == 192
    assert "a difference of 192" in made.sentence
    assert made.sentence.endswith("not 256.")
    assert (made.frame["implied_high"] < 256).all()


def test_the_printed_sweep_shows_a_prefill_that_hardly_took_longer() -> None:
    made = check_sweep(seed_sweep())
    # 1.32 - 0.56 = 0.76 s for 2850 prompt tokens, then 1.46 - 1.32 = 0.14 s for the next 2850
    assert made.notes == ("2,850 more prompt tokens took 0.14 s, against 0.76 s for the 2,850 before: a prefix cache may have helped",)
    assert made.frame["note"].notna().tolist() == [False, False, False, True]


def test_o7_applied_to_the_last_row_of_the_sweep() -> None:
    assert implied_tokens(66.8, 1.46, 4.33) == pytest.approx(191.7, abs=0.05)
    assert np.isnan(implied_tokens(None, 1.0, 2.0))


def test_a_sweep_that_used_what_it_claims_says_so() -> None:
    t_a = np.array([0.10, 0.40, 0.80])
    rates = np.array([200.0, 150.0, 100.0])
    sweep = pd.DataFrame({"prompt_tokens": [100, 2000, 4500], "tok_per_s": rates, "t_a": t_a, "t_b": (t_a + 256 / rates).round(2)})
    made = check_sweep(sweep, claimed=256)
    assert "not 256" not in made.sentence
    assert made.notes == ()


def test_a_sweep_that_contradicts_itself_or_is_empty_says_so() -> None:
    sweep = pd.DataFrame({"prompt_tokens": [100, 2000], "tok_per_s": [200.0, 100.0], "t_a": [0.1, 0.2], "t_b": [1.1, 1.2]})
    made = check_sweep(sweep)
    assert made.tokens is None
    assert "do not agree" in str(made.reason)
    empty = check_sweep(pd.DataFrame())
    assert empty.reason
    assert "nan" not in empty.sentence
