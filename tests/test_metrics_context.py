"""Step time and tokens per step against context: bins, means, intervals, histograms, and what they say when they cannot tell."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_metrics.errors import MetricError
from ddtree_metrics.metrics import (
    BY_CONTEXT_COLUMNS,
    acceptance,
    by_context,
    context_histogram,
    merge_histograms,
    prompt_keys,
    summarise_histogram,
)
from tests.simulator import simulate


def simulated(**settings: object) -> pd.DataFrame:
    """Return request steps of a simulated run, as the join would make them."""
    truth = simulate(**settings).truth_steps  # type: ignore[arg-type]
    truth["step_us"] = np.where(truth["step_why"].isna(), truth["step_ms"] * 1000, np.nan)
    truth["where"] = "simulated:" + truth["step"].astype(str)
    return truth


def small() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "request_id": ["a", "a", "a", "b", "b", "c"],
            "context_len": [100, 104, 200, 120, 180, 900],
            "tokens": [4, 2, 3, 6, 4, 5],
            "step_us": [20_000, 30_000, 40_000, 10_000, None, 50_000],
        }
    )


def test_pooled_and_per_request_means_quantiles_and_speed() -> None:
    made = by_context(small(), [0, 150, 1000]).set_index("bin")
    row = made.loc["0-149"]
    # tokens 4, 2 of a and 6 of b: pooled 12 / 3, per request (3 + 6) / 2; times 20, 30, 10 ms
    assert (row["tokens_per_step_pooled"], row["tokens_per_step_per_request"]) == (4.0, 4.5)
    assert (row["step_time_mean_ms"], row["step_time_p50_ms"]) == (20.0, 20.0)
    assert row["step_time_p95_ms"] == pytest.approx(29.0)  # 20 + 0.9 * 10
    assert row["tok_per_s"] == 200.0  # 4 tokens in 20 ms
    assert (row["rows"], row["requests"], row["x_mean"]) == (3, 2, 108.0)
    assert tuple(by_context(small()).columns) == BY_CONTEXT_COLUMNS


def test_a_step_without_a_time_counts_for_tokens_only() -> None:
    row = by_context(small(), [150, 1000]).iloc[0]
    assert (row["rows"], row["timed_steps"]) == (3, 2)
    assert row["step_time_mean_ms"] == 45.0
    assert row["tokens_per_step_pooled"] == 4.0


def test_a_step_of_a_batch_is_counted_once_as_a_step() -> None:
    frame = pd.DataFrame(
        {
            "request_id": list("abab"),
            "where": ["l:1", "l:1", "l:2", "l:2"],
            "context_len": 500,
            "tokens": 2,
            "step_us": 30_000,
            "batch_size": 2,
        }
    )
    row = by_context(frame).iloc[0]
    assert (row["rows"], row["steps"], row["timed_steps"], row["batch_size_mean"]) == (4, 2, 2, 2.0)


def test_bins_by_count_by_width_and_by_other_axes() -> None:
    frame = simulated(seed=1, requests=30)
    by_count = by_context(frame, bins=4)
    assert len(by_count) == 4
    assert by_count["rows"].max() < 1.6 * by_count["rows"].min()
    by_width = by_context(frame, width=500)
    assert set(by_width["high"] - by_width["low"]) == {500.0}
    for axis in ("prompt_len", "generated_len", "batch_size"):
        made = by_context(frame, by=axis)
        assert made.attrs["by"] == axis
        assert made["rows"].sum() == len(frame)


def test_bins_that_make_no_sense_are_refused() -> None:
    for call in (
        lambda: by_context(small(), [100]),
        lambda: by_context(small(), [100, 50]),
        lambda: by_context(small(), by="nosuch"),
        lambda: by_context(small(), bins=0),
        lambda: by_context(small(), width=0),
    ):
        with pytest.raises(MetricError):
            call()


def test_a_bin_with_one_distinct_prompt_has_no_interval_and_says_so() -> None:
    rng = np.random.default_rng(3)
    tokens = rng.integers(1, 8, 40)
    repeats = pd.concat(
        [
            pd.DataFrame({"request_id": f"r{i}", "prompt_len": 900, "context_len": 1000, "tokens": tokens, "step_us": 30_000.0 + i})
            for i in range(5)
        ]
    )
    row = by_context(repeats).iloc[0]
    assert (row["requests"], row["prompts"]) == (5, 1)
    assert np.isnan(row["tokens_per_step_pooled_low"])
    assert row["reason"] == "one distinct prompt (5 requests): no interval"
    alone = by_context(repeats[repeats["request_id"] == "r0"]).iloc[0]
    assert alone["reason"] == "one request: no interval"
    named = by_context(repeats.assign(prompt_id=repeats["request_id"])).iloc[0]
    assert named["prompts"] == 5
    assert np.isfinite(named["step_time_mean_ms_low"])


def test_equal_lengths_alone_do_not_make_the_same_prompt() -> None:
    frame = simulated(seed=4, requests=60, prompt=(700, 700), warmup=False)
    keys = prompt_keys(frame)
    assert (keys.prompts, keys.requests) == (60, 60)
    constant = frame.assign(tokens=5)  # every step the same: the sequence says nothing
    assert prompt_keys(constant).prompts == 60


def test_without_requests_stretches_of_unbroken_steps_stand_in() -> None:
    frame = simulated(seed=4, requests=30).drop(columns="request_id")
    made = by_context(frame, [0, 1000])
    assert made["interval_from"].iloc[0] == "stretches"
    assert np.isfinite(made["step_time_mean_ms_low"].iloc[0])


def test_intervals_resample_requests_and_not_steps() -> None:
    # Twenty requests of 200 steps each, all steps of a request alike: only twenty observations.
    rng = np.random.default_rng(0)
    means = rng.normal(4.0, 1.0, 20)
    frame = pd.DataFrame(
        {"request_id": np.repeat(np.arange(20).astype(str), 200), "context_len": 100, "tokens": np.repeat(means, 200), "step_us": 30_000}
    )
    row = by_context(frame).iloc[0]
    half = (row["tokens_per_step_pooled_high"] - row["tokens_per_step_pooled_low"]) / 2
    # t(19, 0.95) * s / sqrt(20); steps as units would give a fourteenth of it
    assert half == pytest.approx(1.729 * means.std(ddof=1) / np.sqrt(20), rel=0.2)


def test_intervals_cover_the_truth_in_85_to_95_of_100_runs() -> None:
    rng = np.random.default_rng(11)
    covered = {"tokens_per_step_pooled": 0, "step_time_mean_ms": 0, "step_time_p50_ms": 0}
    truth = {"tokens_per_step_pooled": 4.0, "step_time_mean_ms": 30.0, "step_time_p50_ms": 30.0}
    runs = 100
    for seed in range(runs):
        ids = np.repeat(np.arange(25), 30)
        effect, noise = rng.normal(0, 0.3, 25)[ids], rng.normal(0, 1, len(ids))
        frame = pd.DataFrame(
            {
                "request_id": ids.astype(str),
                "context_len": 100,
                "tokens": 4.0 + effect + noise,
                "step_us": 30_000 * (1 + 0.1 * rng.normal(0, 1, 25)[ids] + 0.05 * rng.normal(0, 1, len(ids))),
            }
        )
        row = by_context(frame, resamples=150, seed=seed).iloc[0]
        for name, value in truth.items():
            covered[name] += row[f"{name}_low"] <= value <= row[f"{name}_high"]
    assert all(0.85 * runs <= n <= 0.95 * runs for n in covered.values()), covered


def test_the_simulators_step_time_is_found_in_every_bin() -> None:
    frame = simulated(seed=7, requests=60, noise=0.02)
    made = by_context(frame, [0, 500, 1000, 2000, 4100])
    # a step takes 20 + 4 ms for each 1000 tokens of context + 1 ms for each sequence
    np.testing.assert_allclose(made["step_time_mean_ms"], 21.0 + 4.0 * made["x_mean"] / 1000, rtol=0.01)


def test_the_same_call_gives_the_same_intervals() -> None:
    frame = simulated(seed=7, requests=20)
    pd.testing.assert_frame_equal(by_context(frame), by_context(frame))


def batches(frame: pd.DataFrame, rows: int) -> list[pa.RecordBatch]:
    names = ("context_len", "step_us", "tokens")
    return pa.table({n: pa.array(frame[n], from_pandas=True) for n in names}).to_batches(max_chunksize=rows)


def test_a_histogram_gives_counts_and_means_exactly_and_quantiles_within_half_a_percent() -> None:
    frame = simulated(seed=3, requests=80, stall_share=0.02)
    exact = by_context(frame, width=512)
    made = summarise_histogram(context_histogram(batches(frame, 97), width=512))
    assert made["bin"].tolist() == exact["bin"].tolist()
    assert made["rows"].tolist() == exact["rows"].tolist()
    for name in ("step_time_mean_ms", "tokens_per_step_pooled", "tok_per_s"):
        np.testing.assert_allclose(made[name].astype(float), exact[name].astype(float), rtol=1e-9)
    for name in ("step_time_p50_ms", "step_time_p95_ms"):
        np.testing.assert_allclose(made[name].astype(float), exact[name].astype(float), rtol=0.005)
    assert made["reason"].str.contains("no interval").all()


@settings(deadline=None)
@given(st.lists(st.integers(0, 400), max_size=4))
def test_histograms_of_parts_merge_to_the_histogram_of_the_whole(cuts: list[int]) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"context_len": rng.integers(0, 20_000, 400), "step_us": rng.lognormal(10, 1, 400), "tokens": rng.integers(1, 9, 400)}
    )
    frame.loc[::17, "step_us"] = None
    at = [0, *sorted(cuts), 400]
    parts = [context_histogram(batches(frame.iloc[a:b], 50)) for a, b in itertools.pairwise(at)]
    whole, merged = context_histogram(batches(frame, 1000)), merge_histograms(*parts)
    assert merged.schema.metadata == whole.schema.metadata
    for name in ("bin", "bucket", "n", "n_tokens"):
        assert merged[name].to_pylist() == whole[name].to_pylist()
    for name in ("sum_us", "sum_tokens"):
        np.testing.assert_allclose(merged[name], whole[name])


def test_step_lines_get_their_context_from_requests_that_ran_alone() -> None:
    run = simulate(seed=6, requests=40)
    names = ("time_us", "step_us", "tokens", "tokens_cum")
    table = pa.table({n: pa.array(run.steps[n], from_pandas=True) for n in names})
    made = summarise_histogram(context_histogram(table.to_batches(max_chunksize=64), requests=run.requests, width=1024))
    truth = run.truth_steps
    exact = truth[truth["kind"] == "client"] if "kind" in truth else truth
    expected = exact.groupby(exact["context_len"] // 1024).size()
    assert made["rows"].tolist() == expected.tolist()


def test_histograms_that_do_not_fit_together_are_refused() -> None:
    frame = small()
    with pytest.raises(MetricError, match="different bins"):
        merge_histograms(context_histogram(batches(frame, 9), width=100), context_histogram(batches(frame, 9), width=200))
    with pytest.raises(MetricError, match="too fine"):
        context_histogram(batches(frame.assign(context_len=10_000_000), 9), width=1)
    with pytest.raises(MetricError, match="requests="):
        context_histogram([pa.record_batch({"step_us": [1]})])
    with pytest.raises(MetricError):
        merge_histograms()
    assert summarise_histogram(context_histogram([])).empty


def test_tokens_per_step_do_not_leave_what_is_possible() -> None:
    # three requests whose steps all commit 1, 1 and 3: without bounds the interval of the mean 1.67 goes below 1 and above 3
    frame = pd.DataFrame(
        {"request_id": list("aaabbbccc"), "context_len": 100, "tokens": [1, 1, 1, 1, 1, 1, 3, 3, 3], "step_time_ms": 40.0, "batch_size": 1}
    )
    (row,) = by_context(frame).to_dict("records")
    for name in ("tokens_per_step_pooled", "tokens_per_step_per_request"):
        assert row[name] == pytest.approx(5 / 3)
        assert (row[name + "_low"], row[name + "_high"]) == (1.0, 3.0)


def test_an_interval_that_spans_a_factor_of_twenty_is_not_given() -> None:
    # two requests, one of 1 ms a step and one of 1 s
    frame = pd.DataFrame(
        {"request_id": list("aaaabbbb"), "context_len": 100, "tokens": 3, "step_time_ms": [1.0] * 4 + [1000.0] * 4, "batch_size": 1}
    )
    (row,) = by_context(frame).to_dict("records")
    assert row["step_time_mean_ms"] == pytest.approx(500.5)
    assert np.isnan(row["step_time_mean_ms_low"])
    assert "no interval of step time" in row["reason"]
    assert row["tokens_per_step_pooled_low"] == 3.0


def test_rows_without_a_request_are_no_requests() -> None:
    # two requests and five rows of nobody, in stretches of their own; the mean over requests is that of the two: (4 + 2) / 2
    frame = pd.DataFrame(
        {
            "request_id": ["a", None, "a", None, "b", None, None, "b", None],
            "context_len": 100,
            "tokens": [4, 9, 4, 9, 2, 9, 9, 2, 9],
            "step_time_ms": [40.0, np.nan, 40.0, np.nan, 40.0, np.nan, 40.0, 40.0, np.nan],
            "batch_size": 1,
        }
    )
    (row,) = by_context(frame).to_dict("records")
    assert (row["requests"], row["prompts"], row["rows"]) == (2, 2, 9)
    assert row["tokens_per_step_per_request"] == pytest.approx(3.0)
    assert acceptance(frame).requests == 2


def test_bins_of_means_over_a_batch_have_sane_names() -> None:
    frame = pd.DataFrame({"context_len": [9733.3333, 9734.3333, 9735.6667], "tokens": 3, "step_time_ms": 40.0})
    assert all("." not in name.replace("..", "") for name in by_context(frame)["bin"])
    assert by_context(pd.DataFrame({"context_len": [0.25, 0.5], "tokens": 3, "step_time_ms": 40.0}))["bin"].tolist() == [
        "0.25..0.5",
        "0.5..1.5",
    ]


def test_the_context_of_a_batch_is_that_of_all_its_requests() -> None:
    # one step of two requests at 100 and 900, one of one at 102: batch contexts 1000, 1000 and 102
    frame = pd.DataFrame(
        {
            "request_id": list("aba"), "where": ["x:1", "x:1", "x:2"], "context_len": [100, 900, 102], "tokens": 2,
            "step_time_ms": 40.0, "batch_size": [2, 2, 1],
        }
    )  # fmt: skip
    made = by_context(frame, [0, 500, 1000])
    assert made["batch_context_mean"].tolist() == [551.0, 1000.0]  # (1000 + 102) / 2


def test_without_texts_prompts_can_only_be_fewer() -> None:
    rng = np.random.default_rng(0)
    part = pd.DataFrame({"request_id": "a", "prompt_len": 50, "tokens": rng.integers(1, 6, 40)})
    other = pd.DataFrame({"request_id": "c", "prompt_len": 60, "tokens": rng.integers(1, 6, 40)})
    frame = pd.concat([part, part.assign(request_id="b"), other], ignore_index=True)
    keys = prompt_keys(frame)
    assert keys.source == "sequence"
    assert keys.distinct(keys.prompts) == "at most 2 distinct prompts"
    assert prompt_keys(frame.assign(prompt_id=frame["request_id"])).distinct(3) == "3 distinct prompts"
