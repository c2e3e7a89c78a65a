"""Acceptance: what was committed, by which convention, how deep, at which rate, and what a budget buys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_metrics.errors import DDTreeWarning
from ddtree_metrics.metrics import (
    accept_rate,
    accept_rates,
    acceptance,
    by_budget,
    commit_convention,
    find_window_knee,
    neutral_columns,
    nodes_convention,
    reconcile_counters,
    survival_from_histogram,
    weighted_mean_over_ranks,
)
from tests.simulator import simulate

ORACLES = Path(__file__).parent.parent / "fixtures" / "oracles"


def line(accepted: list[int], commit: list[int], budget: int = 16) -> dict[str, object]:
    """One step line, as the working layout says it."""
    return {
        "batch_size": len(commit),
        "budget": budget,
        "nodes": [budget + 1] * len(commit),
        "accepted_drafts": accepted,
        "commit_lens": commit,
        "avg_accepted_drafts": round(float(np.mean(accepted)), 2),
        "avg_commit_len": round(float(np.mean(commit)), 2),
    }


A, B = line([4], [5]), line([4], [4])


def test_o2_tokens_per_step_come_from_the_commit_alone() -> None:
    made = neutral_columns(pd.DataFrame([A, B]))
    assert made["tokens_per_step"].tolist() == [5.0, 4.0]
    assert made["commit_minus_accepted"].tolist() == [1.0, 0.0]
    # at 32.0 tok/s: 5 / 32 = 156.25 ms, 4 / 32 = 125 ms
    assert (1000 * made["tokens_per_step"] / 32.0).tolist() == [156.25, 125.0]


def test_o2_each_convention_is_named() -> None:
    only_a, only_b = commit_convention(pd.DataFrame([A] * 3)), commit_convention(pd.DataFrame([B] * 2))
    assert (only_a.counts, only_a.convention, only_a.bonus_in_commit) == ({1: 3}, "accepted+1", True)
    assert only_a.sentence.startswith("commit = accepted + 1 bonus")
    assert (only_b.counts, only_b.convention, only_b.bonus_in_commit) == ({0: 2}, "accepted", False)
    assert only_b.sentence.startswith("commit = accepted (bonus not visible")


def test_o2_a_mixture_warns_with_the_counts_of_each() -> None:
    with pytest.warns(DDTreeWarning, match=r"3 sequences with commit = accepted \+ 1, 2 with commit = accepted"):
        made = commit_convention(pd.DataFrame([A] * 3 + [B] * 2))
    assert made.convention == "mixed"
    assert made.bonus_in_commit is None


def test_neutral_columns_are_null_where_the_convention_is_not_known() -> None:
    made = neutral_columns(pd.DataFrame([B]))
    assert made["tokens"].tolist() == [4.0]
    assert made["drafts"].isna().all()
    known = neutral_columns(pd.DataFrame([line([3, 2], [4, 3])]))
    # 4 + 3 tokens; 3 + 2 drafts; two trees of 17 rows with the root, 16 nodes without it
    assert known[["tokens", "drafts", "draft_nodes", "verify_rows"]].iloc[0].tolist() == [7.0, 5.0, 32.0, 34.0]


def test_the_root_is_proved_by_a_tree_larger_than_its_budget() -> None:
    assert nodes_convention(pd.DataFrame([A])).counts_root is True
    full = pd.DataFrame([{**A, "nodes": [16]}] * 12)
    assert nodes_convention(full).counts_root is False
    small = nodes_convention(pd.DataFrame([{**A, "nodes": [9]}] * 12))
    assert small.counts_root is None
    assert small.reason
    assert neutral_columns(pd.DataFrame([{**A, "nodes": [9]}]))["draft_nodes"].isna().all()


def test_averages_stand_in_for_lists_where_they_are_exact() -> None:
    made = neutral_columns(pd.DataFrame([{"batch_size": 3, "avg_accepted_drafts": 1.33, "avg_commit_len": 2.33}]))
    # 3 * 2.33 = 6.99, and only 7 is within 3 * 0.005 of it
    assert made["tokens"].tolist() == [7.0]


def test_o4_two_meanings_of_accept_rate_give_one_draft_acceptance() -> None:
    older, newer = accept_rate(2.20, 0.55, 4), accept_rate(2.20, 0.40, 4)
    # (2.20 - 1) / 3 = 0.40; printed: 2.20 / 4 = 0.55 and 1.20 / 3 = 0.40
    assert older.draft_acceptance == pytest.approx(0.40)
    assert newer.draft_acceptance == pytest.approx(0.40)
    assert (older.rate_convention, newer.rate_convention) == ("with_bonus", "drafts_only")


def test_o4_without_the_draft_count_the_raw_rate_is_kept_and_nothing_is_guessed() -> None:
    made = accept_rate(2.20, 0.40)
    assert made.raw == 0.40
    assert np.isnan(made.draft_acceptance)
    assert made.rate_convention is None
    assert "neither the number of draft tokens nor the depth is known" in str(made.reason)


@pytest.mark.parametrize(
    ("accept_len", "printed", "drafts", "depth", "convention"),
    [
        (2.50, 1.25, 8, 1, "with_bonus_steps"),  # 2.5 / (1 + 1): above 1, 0.5.3.post2 to 0.5.5
        (3.55, 0.51, 6, None, "drafts_only"),  # 2.55 / 5
        (1.95, 0.49, 4, None, "with_bonus"),  # 1.95 / 4
        (4.00, 0.27, 12, 4, "drafts_only"),  # 3 / 11: a tree of depth 4
        (3.00, 0.50, 12, 4, "drafts_only_steps"),  # 2 / 4
        (4.00, 1.00, 4, None, "ambiguous"),  # 4 / 4 and 3 / 3
        (2.00, 0.77, 4, None, None),
    ],
)
def test_every_formula_of_the_accept_rate_is_recognised(
    accept_len: float, printed: float, drafts: int, depth: int | None, convention: str | None
) -> None:
    assert accept_rate(accept_len, printed, drafts, depth).rate_convention == convention


def test_an_ambiguous_line_takes_the_convention_of_the_lines_around_it() -> None:
    lines = pd.DataFrame({"accept_len": [2.2, 4.0, 3.0], "accept_rate": [0.55, 1.0, 0.75]})
    assert accept_rates(lines, num_draft_tokens=4)["rate_convention"].tolist() == ["with_bonus"] * 3


def test_the_draft_count_is_read_from_the_server_start_before_the_line() -> None:
    start = pd.Timestamp("2026-01-01T00:00:00Z")
    servers = pd.DataFrame({"time": [start, start + pd.Timedelta("1h")], "num_draft_tokens": [4, 6]})
    lines = pd.DataFrame(
        {"time": [start + pd.Timedelta("1min"), start + pd.Timedelta("61min")], "accept_len": [2.2, 3.55], "accept_rate": [0.55, 0.51]}
    )
    made = accept_rates(lines, servers=servers)
    assert made["rate_convention"].tolist() == ["with_bonus", "drafts_only"]
    np.testing.assert_allclose(made["draft_acceptance"], [0.40, 0.51])


def test_o11_the_mean_over_ranks_is_weighted_and_null_is_not_zero() -> None:
    made = weighted_mean_over_ranks([None, None, 2.90, 3.67, None, 4.64], [None, None, 100, 300, None, 50])
    # (290 + 1101 + 232) / 450
    assert made.value == pytest.approx(3.607, abs=5e-4)
    assert (made.ranks, made.nulls, made.weight) == (3, 3, 450)
    nothing = weighted_mean_over_ranks([None], [5])
    assert np.isnan(nothing.value)
    assert nothing.reason


def test_o11_steps_without_a_token_count_are_left_out_and_counted() -> None:
    made = acceptance(pd.DataFrame({"request_id": list("aab"), "tokens": [4, None, 2], "drafts": [3, None, 1]}))
    assert made.tokens_per_step_micro == 3.0
    assert made.nulls == {"tokens": 1, "drafts": 1}


def test_o12_the_last_step_may_commit_less_than_it_accepted() -> None:
    requests = pd.DataFrame({"completion_tokens": [200, 57, 60], "verify_steps": [188, 12, 12], "accepted_drafts": [11, 48, 40]})
    made = reconcile_counters(requests)
    # R1: 1 + 188 + 11 = 200, 199 / 188 = 1.0585. R2: 1 + 12 + 48 = 61 against 57, 56 / 12 = 4.667. R3: 1 + 12 + 40 = 53 < 60.
    np.testing.assert_allclose(made["tokens_per_step"].iloc[:2], [199 / 188, 56 / 12])
    assert round(made["tokens_per_step"].iloc[0], 4) == 1.0585
    assert made["discarded_tail"].tolist()[:2] == [0.0, 4.0]
    assert made["counters"].tolist() == ["exact", "discarded_tail", "inconsistent"]
    assert made["counter_gap"].iloc[2] == -7
    assert np.isnan(made["discarded_tail"].iloc[2])


def test_last_steps_are_marked_and_the_mean_without_them_is_given() -> None:
    frame = pd.DataFrame({"request_id": list("aaabb"), "step_index": [0, 1, 2, 0, 1], "tokens": [5, 5, 1, 4, 2], "drafts": [4, 4, 4, 3, 3]})
    made = acceptance(frame)
    assert made.last_steps == 2
    assert made.tokens_per_step_micro == pytest.approx(17 / 5)
    assert made.tokens_per_step_without_last == pytest.approx(14 / 3)


def test_micro_and_macro_are_both_given_and_differ() -> None:
    frame = pd.DataFrame({"request_id": ["a"] * 9 + ["b"], "tokens": [2] * 9 + [6], "drafts": [1] * 9 + [5]})
    made = acceptance(frame)
    # pooled (18 + 6) / 10 = 2.4; mean of 2 and 6 = 4
    assert (made.tokens_per_step_micro, made.tokens_per_step_macro) == (2.4, 4.0)


def test_survival_by_depth_from_request_steps_lists_and_histograms_agree() -> None:
    # drafts 0, 1, 1, 3: P(>=1) = 3/4, P(>=2) = P(>=3) = 1/4; given one level up: 3/4, 1/3, 1
    steps = pd.DataFrame({"request_id": list("abab"), "tokens": [1, 2, 2, 4], "drafts": [0, 1, 1, 3]})
    lists = pd.DataFrame({"batch_size": [2, 2], "commit_lens": [[1, 2], [2, 4]], "accepted_drafts": [[0, 1], [1, 3]]})
    histograms = pd.DataFrame({"request_id": ["a", "b"], "accepted_histogram": [[1, 1], [0, 1, 0, 1]]})
    for frame in (steps, lists, histograms):
        made = acceptance(frame)
        np.testing.assert_allclose(made.survival["survival"], [1, 0.75, 0.25, 0.25])
        np.testing.assert_allclose(made.survival["conditional"], [np.nan, 0.75, 1 / 3, 1])
        assert (made.depth_cap, made.depth_cap_from, made.share_at_cap) == (3, "seen", 0.25)
        assert made.tokens_per_step_micro == 2.25


def test_the_depth_cap_can_be_given_and_need_not_be_reached() -> None:
    made = acceptance(pd.DataFrame({"request_id": list("ab"), "tokens": [2, 4], "drafts": [1, 3]}), depth_cap=7)
    assert (made.depth_cap, made.depth_cap_from, made.share_at_cap) == (7, "given", 0.0)
    assert made.survival["depth"].tolist() == list(range(8))


def test_budget_used_is_nodes_by_budget() -> None:
    frame = pd.DataFrame({"request_id": list("ab"), "tokens": [2, 4], "drafts": [1, 3], "draft_nodes": [8, 16], "budget": [16, 16]})
    made = acceptance(frame)
    assert (made.nodes_mean, made.budget_mean, made.budget_used) == (12.0, 16.0, 0.75)


def test_repeats_of_a_prompt_are_told_from_distinct_prompts() -> None:
    rng = np.random.default_rng(1)
    first, other = rng.integers(1, 8, 30), rng.integers(1, 8, 30)
    parts = {"a": first, "a-again": first, "b": other}
    frame = pd.concat([pd.DataFrame({"request_id": k, "prompt_len": 500, "tokens": v, "drafts": v - 1}) for k, v in parts.items()])
    made = acceptance(frame)
    assert (made.requests, made.prompts, made.repeats) == (3, 2, 1)
    assert made.tokens_per_step_repeats == pytest.approx(first.mean())
    assert made.tokens_per_step_distinct == pytest.approx(np.concatenate([first, other]).mean())


def test_shares_of_batch_averages_say_nothing_about_depth() -> None:
    frame = pd.DataFrame({"request_id": list("ab"), "tokens": [2.5, 2.5], "drafts": [1.5, 1.5], "matched": "shared"})
    made = acceptance(frame)
    assert made.tokens_per_step_micro == 2.5
    assert made.survival.empty
    assert made.reason


def test_nearly_all_steps_at_the_cap_are_too_good() -> None:
    frame = pd.DataFrame({"request_id": ["a", "b"] * 50, "tokens": 8, "drafts": 7})
    assert acceptance(frame, depth_cap=7).too_good
    assert not acceptance(frame, depth_cap=15).too_good


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_survival_of_a_histogram_falls_and_sums_to_the_mean(histogram: list[int]) -> None:
    made = survival_from_histogram(histogram)
    total = sum(histogram)
    if total:
        assert (np.diff(made["survival"]) <= 1e-12).all()
        # the mean is the sum of the survival over depths 1, 2, ...
        mean = sum(d * n for d, n in enumerate(histogram)) / total
        assert made["survival"].iloc[1:].sum() == pytest.approx(mean)
    else:
        assert made["survival"].isna().all()


def test_published_counters_satisfy_their_identities() -> None:
    table = pd.read_csv(ORACLES / "counter_identities.csv")
    printed = table.set_index("inputs")["value"]
    # SGLang meta_info: histogram [11,14,11,4,0,3] has 43 rounds and 63 drafts; completion 106
    sglang = acceptance(pd.DataFrame({"request_id": ["r"], "accepted_histogram": [[11, 14, 11, 4, 0, 3]]}))
    assert (sglang.rows, sglang.drafts_per_step_micro * 43) == (43, pytest.approx(63))
    assert printed["histogram=[11,14,11,4,0,3]"] == "43;63"
    checked = reconcile_counters(pd.DataFrame({"completion_tokens": [106], "accepted_histogram": [[11, 14, 11, 4, 0, 3]]}))
    assert checked["counter_gap"].tolist() == [1.0]  # 1 + 43 + 63 - 106: the last step was cut by one
    # correct / proposed = 63 / 215 with six draft tokens (five proposed a round)
    rate = accept_rate(1 + 63 / 43, round(63 / 215, 2), 6)
    assert rate.rate_convention == "drafts_only"
    assert rate.draft_acceptance == pytest.approx(float(printed["correct=63 proposed=215"]))
    # vLLM per request: [39,1,0,3] gives a mean acceptance length of 1 + 10 / 43
    vllm = acceptance(pd.DataFrame({"request_id": ["r"], "accepted_histogram": [[39, 1, 0, 3]]}))
    assert vllm.tokens_per_step_micro == pytest.approx(float(printed["hist [39,1,0,3] steps=43 accepted=10 drafted=129"]))
    # llama.cpp: 87 calls, 167 accepted, per position (0.805, 0.632, 0.483) = 70, 55, 42 of 87
    llama = survival_from_histogram([87 - 70, 70 - 55, 55 - 42, 42])
    assert llama["survival"].round(3).tolist() == [1.0, 0.805, 0.632, 0.483]
    assert 1 + llama["survival"].iloc[1:].sum() == pytest.approx(float(printed["accepted=167 generated=259 calls=87"]), abs=1e-4)


def test_published_budget_sweeps_have_their_best_by_speed_and_by_acceptance() -> None:
    sweeps = pd.read_csv(ORACLES / "budget_sweeps.csv").dropna(subset=["tok_per_s"])
    best = {}
    for _, part in sweeps.groupby(["implementation", "hardware", "model", "data"]):
        frame = pd.DataFrame(
            {
                "request_id": part.index.astype(str),
                "budget": part["budget"],
                "tokens": part["acceptance"],
                "step_us": 1e6 * part["acceptance"] / part["tok_per_s"],
            }
        )
        made = by_budget(frame)
        np.testing.assert_allclose(made["tok_per_s"], part.sort_values("budget")["tok_per_s"])
        key = (int(made.loc[made["best_by_speed"], "budget"].iloc[0]), int(made.loc[made["best_by_acceptance"], "budget"].iloc[0]))
        best[key] = made
    # differ on the 3090 (22, 24) and the 5090 (22, 30), agree in the other three (40, 16, 9)
    assert set(best) == {(22, 24), (22, 30), (40, 40), (16, 16), (9, 9)}
    # in one sweep acceptance falls with the budget, which a correct tree cannot do
    assert {key for key, made in best.items() if made.attrs["warning"]} == {(16, 16)}
    assert "budget 24 (8.91); fastest: budget 22 (135.8 tok/s)" in best[22, 24].attrs["sentence"]


@pytest.mark.parametrize("seed", range(3))
def test_a_drop_at_the_drafters_window_is_found_and_the_window_read_from_the_server_start(seed: int) -> None:
    run = simulate(seed=seed, requests=80, window=2048, acceptance_beyond_window=-0.15)
    found = find_window_knee(run.truth_steps, servers=run.frames["servers"])
    assert (found.window, found.window_from) == (2048, "servers")
    assert found.verdict == "supported"
    assert found.above < found.below


def test_without_a_drop_the_window_is_not_blamed() -> None:
    verdicts = [find_window_knee(simulate(seed=s, requests=80, window=2048).truth_steps, 2048).verdict for s in range(8)]
    assert verdicts.count("supported") <= 1


def test_a_window_that_nothing_passes_cannot_be_told() -> None:
    run = simulate(seed=1, requests=20, prompt=(50, 500))
    found = find_window_knee(run.truth_steps, 2048)
    assert found.verdict == "cannot tell"
    assert "beyond the window" in found.sentence
    assert "nan" not in found.sentence
    assert find_window_knee(run.truth_steps).reason == "the drafter's window is not known"


def test_intervals_of_tokens_per_step_stay_between_one_and_the_deepest_commit() -> None:
    # three requests that commit 1, 1 and 3 a step: the mean is 5 / 3; with a depth cap of 3 a step commits 4 at most
    frame = pd.DataFrame({"request_id": list("aaabbbccc"), "tokens": [1, 1, 1, 1, 1, 1, 3, 3, 3]})
    made = acceptance(frame)
    assert made.tokens_per_step_micro == pytest.approx(5 / 3)
    assert (made.tokens_per_step_micro_low, made.tokens_per_step_micro_high) == (1.0, 3.0)
    assert 3.0 < acceptance(frame, depth_cap=3).tokens_per_step_micro_high <= 4.0
