"""Step times: what is one, what is none and why, and what coarse clocks still say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_metrics.metrics import (
    compare_step_times,
    decode_step_times,
    gaps,
    log_interval,
    step_time_bounds,
    step_times,
    steps_from_decode,
)
from ddtree_metrics.records import TreeStep
from ddtree_metrics.schema import columns
from tests.simulator import simulate

REAL = Path(__file__).parent.parent / "fixtures" / "real"
TEN = pd.Timestamp("2026-02-01T10:00:00Z")


def at(*seconds: float) -> list[pd.Timestamp]:
    return [TEN + pd.Timedelta(seconds=s) for s in seconds]


def why(frame: pd.DataFrame) -> list[Any]:
    return list(frame["step_why"])


def stock_lines() -> pd.DataFrame:
    """The three Decode lines of case O3: the first one after idle time."""
    return pd.DataFrame(
        {
            "time": at(0, 1, 1),
            "running": [1, 1, 1],
            "tokens": [100, 180, 280],
            "accept_len": [2.20, 2.00, 2.50],
            "accept_rate": [0.40, 0.33, 0.50],
            "gen_throughput": [0.40, 180.00, 200.00],
        }
    )


def test_o3_step_time_from_stock_lines_and_the_first_line_after_idle_is_kept_out() -> None:
    made = decode_step_times(stock_lines())
    # 1000 * 2.20 * 1 / 0.40 = 5500; 1000 * 2.00 / 180 = 11.11; 1000 * 2.50 / 200 = 12.50
    np.testing.assert_allclose(made["step_time_raw_ms"], [5500.0, 11.1111, 12.5], rtol=1e-4)
    np.testing.assert_allclose(made["step_time_ms"], [np.nan, 11.1111, 12.5], rtol=1e-4)
    assert why(made) == ["after_idle", None, None]


def test_o3_the_log_interval_is_inferred_as_40_from_the_growth_of_tokens() -> None:
    # (180 - 100) / 2.00 = 40 and (280 - 180) / 2.50 = 40
    found = log_interval(stock_lines())
    assert (found.value, found.source, found.agree, found.checked) == (40, "tokens", 2, 2)


def test_o3_a_window_that_does_not_fit_the_interval_is_marked() -> None:
    tokens = [100, 180, 260, 340, 375, 455]  # the fifth grows by 35 = 17.5 steps of 2, the others by 80 = 40 steps
    lines = pd.DataFrame({"time": at(0, 1, 2, 3, 4, 5), "running": 1, "tokens": tokens, "accept_len": 2.0, "gen_throughput": 180.0})
    made = decode_step_times(lines)
    assert why(made) == [None, None, None, None, "window_mismatch", None]
    assert made.attrs["counts"] == {"window_mismatch": 1}


def test_a_prefill_a_change_of_the_batch_and_a_zero_throughput_spoil_a_window() -> None:
    lines = pd.DataFrame(
        {
            "time": at(0, 1, 2, 3, 4),
            "running": [1, 1, 1, 2, 2],
            "tokens": [100, 180, 260, 500, 660],
            "accept_len": 2.0,
            "gen_throughput": [180.0, 180.0, 170.0, 300.0, 0.0],
        }
    )
    made = decode_step_times(lines, prefill=pd.DataFrame({"time": at(1.5)}))
    assert why(made) == [None, None, "prefill_between", "requests_changed", "throughput_zero"]


def test_without_speculation_a_step_makes_one_token() -> None:
    lines = pd.DataFrame({"time": at(0, 4, 8), "running": 8, "tokens": [0, 320, 640], "gen_throughput": 80.0})
    # 1000 * 8 * 1 / 80 = 100 ms; 320 / 8 = 40 steps a window
    assert decode_step_times(lines)["step_time_ms"].tolist() == [100.0, 100.0, 100.0]
    assert log_interval(lines).value == 40


def test_a_lone_line_cannot_be_checked_and_says_so() -> None:
    made = decode_step_times(stock_lines().tail(1))
    assert why(made) == ["unchecked"]
    assert made["step_time_ms"].isna().all()


def test_o15_suppressed_lines_are_a_gap_and_no_slow_step() -> None:
    steps = pd.DataFrame({"time": at(0, 0.040, 30.010, 30.050), "commit_lens": [[4]] * 4, "unit": "sglang.service"})
    events = pd.DataFrame({"time": at(30.0), "kind": ["suppressed"], "count": [740], "unit": ["sglang.service"]})
    made = step_times(steps, events=events)
    np.testing.assert_allclose(made["step_time_ms"], [np.nan, 40.0, np.nan, 40.0])
    assert why(made) == ["first", None, "suppressed", None]
    holes = gaps(steps, events)
    # 30.010 s - 0.040 s = 29.970 s
    assert holes[["kind", "count", "unit"]].values.tolist() == [["suppressed", 740, "sglang.service"]]
    assert holes["duration_ms"].iloc[0] == pytest.approx(29_970.0)
    assert holes.attrs["missing_lines"] == 740
    for words in ("At least 740 lines are missing", "lower bounds", "LogRateLimitIntervalSec", "RateLimitBurst"):
        assert words in holes.attrs["sentence"]


def test_o17_whole_seconds_give_bounds_and_no_single_step_times() -> None:
    seconds = [0] * 24 + [1] * 25 + [2] * 25 + [3] * 25 + [4] * 2
    steps = pd.DataFrame({"time": at(*seconds)})
    made = step_times(steps)
    assert made["step_time_ms"].isna().all()
    assert set(why(made)[1:]) == {"coarse_clock"}
    (row,) = step_time_bounds(steps).to_dict("records")
    # 4 s over 100 intervals; each end is wrong by less than 1 s: (3 s .. 5 s) / 100
    assert (row["steps"], row["mean_ms"], row["low_ms"], row["high_ms"]) == (100, 40.0, 30.0, 50.0)
    assert row["time_resolution_us"] == 1_000_000


def test_o17_the_same_lines_with_a_fine_clock_give_single_step_times() -> None:
    made = step_times(pd.DataFrame({"time": at(*(np.arange(101) * 0.04 + 0.0003))}))
    np.testing.assert_allclose(made["step_time_ms"].iloc[1:], 40.0, atol=0.001)


def test_a_stretch_of_coarse_stamps_ends_at_a_suppression() -> None:
    steps = pd.DataFrame({"time": at(0, 0, 1, 1, 20, 20, 21)})
    events = pd.DataFrame({"time": at(15), "kind": ["suppressed"], "count": [None]})
    assert step_time_bounds(steps, events)["steps"].tolist() == [3, 2]


def test_o18_the_boot_clock_times_steps_while_the_wall_clock_jumps() -> None:
    steps = pd.DataFrame(
        {
            "time_us": [1767225600000000, 1767222000050000, 1767225600100000, 1767225700000000],
            "monotonic_us": [9000000, 9050000, 9100000, 50000],
            "boot_id": ["b1", "b1", "b1", "b2"],
        }
    )
    made = step_times(steps)
    np.testing.assert_allclose(made["step_time_ms"], [np.nan, 50.0, 50.0, np.nan])
    assert why(made) == ["first", None, None, "boot"]
    assert list(made["step_time_from"]) == [None, "monotonic", "monotonic", None]
    holes = gaps(steps)
    jumps = holes[holes["kind"] == "clock_step"]
    # wall -3599.95 s against 0.05 s on the boot clock, then +3600.05 s against 0.05 s
    assert [f"{c / 1e6:+.1f}" for c in jumps["count"]] == ["-3600.0", "+3600.0"]
    assert holes["kind"].tolist() == ["clock_step", "clock_step", "boot"]


def test_a_wall_clock_that_runs_backwards_gives_no_negative_step() -> None:
    made = step_times(pd.DataFrame({"time": at(0.0001, 0.0401, -100.0001, -99.9601)}))
    assert why(made) == ["first", None, "clock_step", None]
    assert (made["step_time_ms"].dropna() > 0).all()


def test_a_burst_of_equal_stamps_is_refused_with_what_leads_into_and_out_of_it() -> None:
    # 63 lines written in one go: block-buffered output
    stamps = [0.0001, *[1.0001] * 63, 1.0413, 1.0813, 1.1213]
    made = step_times(pd.DataFrame({"time": at(*stamps)}))
    assert why(made) == ["first", *["burst"] * 64, None, None]
    (hole,) = gaps(pd.DataFrame({"time": at(*stamps)})).to_dict("records")
    assert (hole["kind"], hole["count"]) == ("burst", 64)
    assert "buffered" in hole["detail"]


def test_no_step_time_is_taken_across_a_prefill_a_retraction_or_a_restart() -> None:
    steps = pd.DataFrame({"time": at(0.001, 0.041, 0.341, 0.381, 0.481, 60.0), "pid": [7] * 5 + [8], "host": "h"})
    events = pd.DataFrame({"time": at(0.45), "kind": ["retraction"], "count": [1]})
    made = step_times(steps, events=events, prefill=pd.DataFrame({"time": at(0.3)}))
    assert why(made) == ["first", None, "prefill_between", None, "retraction", "restart"]


def test_idle_time_is_a_gap() -> None:
    made = step_times(pd.DataFrame({"time": at(*(np.arange(10) * 0.04 + 0.0001), 30.0, 30.04)}))
    assert why(made)[-2:] == ["gap", None]


def test_streams_are_timed_apart() -> None:
    steps = pd.DataFrame({"time": at(0.001, 0.011, 0.041, 0.061), "dp_rank": [0, 1, 0, 1]})
    np.testing.assert_allclose(step_times(steps)["step_time_ms"], [np.nan, np.nan, 40.0, 50.0])


def test_a_logged_step_time_goes_before_the_clocks_and_a_negative_one_is_no_time() -> None:
    made = step_times(pd.DataFrame({"time": at(0.001, 0.041, 0.081), "step_ms": [33.0, None, -5.0]}))
    assert list(made["step_time_from"]) == ["logged", "realtime", None]
    assert why(made) == [None, None, "not_positive"]


def test_times_that_were_computed_when_the_log_was_read_are_kept() -> None:
    steps = pd.DataFrame({"step_us": [None, 40_000, None], "step_why": ["first", None, "prefill_between"], "monotonic_us": [1, 2, 3]})
    made = step_times(steps)
    np.testing.assert_allclose(made["step_time_ms"], [np.nan, 40.0, np.nan])
    assert why(made) == ["first", None, "prefill_between"]


def test_where_the_clock_is_too_coarse_the_decode_lines_give_the_mean() -> None:
    steps = pd.DataFrame({"time": at(*np.repeat([0, 1, 2], 40))})
    lines = pd.DataFrame({"time": at(0, 1, 2), "running": 1, "tokens": [80, 160, 240], "accept_len": 2.0, "gen_throughput": 80.0})
    made = step_times(steps, lines)
    # 1000 * 2 / 80 = 25 ms
    assert set(made["step_time_ms"].iloc[1:].round(6)) == {25.0}
    assert set(made["step_time_from"].iloc[1:]) == {"throughput"}
    assert why(made)[0] == "first"


@pytest.mark.parametrize("capture", ["A", "C"])
def test_stock_lines_of_a_real_server_make_the_same_step_table_as_its_per_step_lines(capture: str) -> None:
    from ddtree_metrics.loading import read_text

    log = read_text(str(REAL / capture / "journal.export.zst"))
    made = steps_from_decode(log.decode)
    assert made.attrs == {"log_interval": 1, "reason": None}
    assert list(made.columns) == [*(c.name for c in columns(TreeStep))]
    assert made["tokens"].tolist() == log.steps["tokens"].tolist()
    # The two lines of a step are written about 20 ms apart, so single steps differ and medians agree.
    compared = compare_step_times(log.steps, log.decode, prefill=log.prefill)
    assert compared.pairs > 0.9 * (len(log.steps) - 25)
    assert compared.ratio == pytest.approx(1.0, abs=0.05)
    assert compared.agree
    own = step_times(made)["step_time_ms"].median()
    assert own == pytest.approx(step_times(log.steps)["step_time_ms"].median(), rel=0.05)


def test_with_a_longer_interval_a_row_stands_for_a_window() -> None:
    made = steps_from_decode(stock_lines())
    assert made["steps"].tolist() == [40, 40, 40]
    assert set(made["step_why"]) == {"window"}
    assert "--decode-log-interval 1" in made.attrs["reason"]


def test_two_sources_that_differ_are_reported() -> None:
    run = simulate(seed=2, requests=30)
    decode = run.frames["decode"]
    same = compare_step_times(run.steps, decode, prefill=run.frames["prefill"])
    assert same.agree
    slower = decode.assign(gen_throughput=decode["gen_throughput"] / 1.3)
    made = compare_step_times(run.steps, slower, prefill=run.frames["prefill"])
    assert made.agree is False
    assert made.ratio == pytest.approx(1.3, rel=0.02)
    assert "differ" in made.sentence


def test_decode_windows_of_a_simulated_server_have_the_true_step_time() -> None:
    run = simulate(seed=5, requests=40, context_ms=0.0, batch_ms=0.0, noise=0.01, step_ms=25.0)
    made = decode_step_times(run.frames["decode"], prefill=run.frames["prefill"])
    assert made.attrs["log_interval"] == 40
    np.testing.assert_allclose(made["step_time_ms"].dropna(), 25.0, rtol=0.02)


@settings(deadline=None)
@given(st.lists(st.integers(min_value=-10_000_000, max_value=10_000_000), max_size=30))
def test_a_step_time_is_positive_or_has_a_reason(differences: list[int]) -> None:
    steps = pd.DataFrame({"monotonic_us": np.cumsum([0, *differences])})
    made = step_times(steps)
    known = made["step_time_ms"].notna()
    assert (made.loc[known, "step_time_ms"] > 0).all()
    assert made.loc[~known, "step_why"].notna().all()
    assert made.loc[known, "step_why"].isna().all()


def flushed(flushes: int, lines: int, every_s: float, *, late_s: dict[int, float] | None = None) -> pd.DataFrame:
    """Lines of a block-buffered server: so many written together at each flush, 20 us apart."""
    late = np.cumsum([(late_s or {}).get(k, 0.0) for k in range(flushes)])
    stamps = [k * every_s + late[k] + i * 20e-6 for k in range(flushes) for i in range(lines)]
    return pd.DataFrame({"time": at(*stamps)})


def test_lines_written_together_are_bounded_from_flush_to_flush() -> None:
    # 4 flushes of 63 lines, 2.5 s apart: 189 lines after the first flush, in 7.5 s (and 1.24 ms inside the last): 39.7 ms a step,
    # between 7500 / 190 = 39.5 and 7500 / 188 = 39.9 ms
    (row,) = step_time_bounds(flushed(4, 63, 2.5)).to_dict("records")
    assert row["steps"] == 189
    assert row["mean_ms"] == pytest.approx(7500 / 189, rel=0.001)
    assert row["low_ms"] == pytest.approx(7500 / 190, rel=0.001)
    assert row["high_ms"] == pytest.approx(7500 / 188, rel=0.001)
    assert row["reason"] is None


def test_one_flush_says_nothing_of_single_steps() -> None:
    (row,) = step_time_bounds(flushed(1, 63, 2.5)).to_dict("records")
    assert np.isnan([row["mean_ms"], row["low_ms"], row["high_ms"]]).all()
    assert "written together" in row["reason"]


def test_idle_time_between_two_flushes_ends_a_stretch() -> None:
    # the sixth flush comes 60 s late: 5 flushes before it and 5 from it on, of which 4 each are counted
    made = step_time_bounds(flushed(10, 50, 2.0, late_s={5: 60.0}))
    assert made["steps"].tolist() == [200, 200]
    np.testing.assert_allclose(made["mean_ms"], 40.0, rtol=0.001)


def test_bounds_from_flush_to_flush_hold_the_true_mean() -> None:
    # steps of 20 to 60 ms; a buffer holds 40 lines and is written when the line after does not fit
    rng = np.random.default_rng(3)
    ends = np.cumsum(rng.uniform(0.02, 0.06, 2000))
    stamps = [float(ends[min(k + 40, 1999)]) + i * 10e-6 for k in range(0, 1960, 40) for i in range(40)]
    (row,) = step_time_bounds(pd.DataFrame({"time": at(*stamps)})).to_dict("records")
    assert row["low_ms"] < 1000 * float(np.diff(ends[:1960]).mean()) < row["high_ms"]
    assert row["high_ms"] / row["low_ms"] < 1.01
