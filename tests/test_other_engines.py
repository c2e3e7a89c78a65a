"""LMDeploy and TensorRT-LLM: windows, requests and iterations as their formats describe them; what no line says is null."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import ddtree_metrics as ddt

ITERATION = (
    "[07/22/2026-00:00:{s:02}] [TRT-LLM] [I] [_torch][RANK 0] iter = {n}, global_rank = 0, rank = 0, num_scheduled_requests = {batch}, "
    "kv_cache_util = 0.100, currank_total_requests = 1/1, host_step_time = 5.0ms, prev_device_step_time = {before}, "
    "timestamp = 2026-07-22 "
    "00:00:{s:02}, states = {{'num_ctx_requests': {new}, 'num_ctx_tokens': 0, 'num_generation_tokens': {tokens}, "
    "'cached_kv_tokens': {kv}}}\n"
)


def iteration(n: int, before: str, *, batch: int = 1, new: int = 0, kv: int = 100) -> str:
    return ITERATION.format(n=n, s=n % 60, before=before, batch=batch, new=new, tokens=4 * batch, kv=kv)


def read(tmp_path: Path, text: str) -> ddt.Log:
    (tmp_path / "server.log").write_text(text)
    return ddt.read(tmp_path / "server.log")


def test_each_time_is_given_to_the_iteration_that_it_is_of(tmp_path: Path) -> None:
    log = read(tmp_path, iteration(1, "N/A") + iteration(2, "7.0ms") + iteration(3, "8.0ms"))
    # the line of 2 tells the time of 1, the line of 3 that of 2, and nothing that of 3
    assert log.steps["step_ms"].tolist()[:2] == [7.0, 8.0]
    assert pd.isna(log.steps["step_ms"].iloc[2])


def test_the_time_of_a_prefill_is_not_given_to_a_step_nor_the_other_way_round(tmp_path: Path) -> None:
    log = read(tmp_path, iteration(1, "N/A") + iteration(2, "7.0ms", new=1) + iteration(3, "90.0ms") + iteration(4, "8.0ms"))
    assert log.steps["step_ms"].tolist()[:2] == [7.0, 8.0]
    assert len(log.prefill) == 1


def test_an_iteration_that_is_missing_leaves_the_time_before_it_unknown(tmp_path: Path) -> None:
    log = read(tmp_path, iteration(1, "N/A") + iteration(3, "1456.7ms") + iteration(4, "8.0ms"))
    assert pd.isna(log.steps["step_ms"].iloc[0])
    assert log.steps["step_ms"].iloc[1] == 8.0


def test_an_iteration_in_which_nothing_ran_is_no_step(tmp_path: Path) -> None:
    log = read(tmp_path, iteration(1, "N/A") + iteration(2, "7.0ms", batch=0) + iteration(3, "1456.7ms") + iteration(4, "8.0ms"))
    assert log.steps["step_ms"].tolist()[:2] == [7.0, 8.0]


def test_times_find_their_steps_wherever_the_batches_of_lines_end(tmp_path: Path) -> None:
    log = read(tmp_path, "".join(iteration(n, f"{n}.0ms") + "noise\n" * 997 for n in range(1, 41)))
    assert log.steps["step_ms"].tolist()[:39] == [float(n + 1) for n in range(1, 40)]
    assert len(log.steps) == 40


def test_the_context_of_a_batch_is_that_of_a_request_only_where_it_is_one(tmp_path: Path) -> None:
    log = read(tmp_path, iteration(1, "N/A", kv=500) + iteration(2, "7.0ms", batch=2, kv=900))
    first, second = log.steps["context_lens"].tolist()
    assert list(first) == [500]
    assert second is None or pd.isna(second)
    assert log.steps["tokens"].isna().all()


def test_an_iteration_with_a_prompt_takes_no_step_of_another_server_with_it(tmp_path: Path) -> None:
    other = "[2026-07-22 00:00:01] DDTREE metrics: bs=1 budget=16 actual_nodes=[17] accepted_drafts=[4] commit_lens=[5]\n"
    log = read(tmp_path, other + iteration(1, "N/A", new=1) + other)
    assert log.steps["budget"].tolist() == [16, 16]
    assert len(log.prefill) == 1


LMDEPLOY = (
    "[2026-08-21 22:3{m}:{s:02} DP0] Avg thr (in/out): 0.0 / {out} tokens/s, Server (succeeded/failed/routed/waiting): "
    "1 / 0 / 1 / 0, Engine "
    "(running/waiting): 1 / 0, KV cache: 3.2%, SpecDecoding metrics: Draft acceptance rate: 50.00%, Mean acceptance "
    "length: 2.00, Accepted: "
    "{accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: 0.700, 0.300\n"
)


def test_a_steady_window_of_lmdeploy_tells_tokens_and_time_of_a_step(tmp_path: Path) -> None:
    # 10 s, 40 tokens/s: 400 tokens, of which 200 accepted, so 200 steps of 50 ms with 2 tokens each
    text = "".join(LMDEPLOY.format(m=k // 6, s=k % 6 * 10, out=40.0, accepted=200, drafted=400) for k in range(6))
    basis = read(tmp_path, text).basis
    assert basis.tokens.tolist() == pytest.approx([2.0] * 5)
    assert basis.step_ms.tolist() == pytest.approx([50.0] * 5)


def test_requests_of_lmdeploy_have_lengths_and_times(tmp_path: Path) -> None:
    text = "[2026-08-21 22:30:00] session=12, input_tokens=8342, max_new_tokens=512, prep=True\n"
    text += '[2026-08-21 22:30:09] session 12 finished, reason "stop", input_tokens 8342, output_tokens 310\n'
    (row,) = read(tmp_path, text).requests.to_dict("records")
    assert (row["request_id"], row["prompt_tokens"], row["completion_tokens"], row["finish_reason"]) == ("session-12", 8342, 310, "stop")
    assert (row["finished"] - row["received"]).total_seconds() == 9
