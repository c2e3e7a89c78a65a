"""The benchmark against a real engine: llama.cpp's own server on tiny models, started here on 127.0.0.1."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from ddtree_metrics.bench import Plan, run_sweep
from ddtree_metrics.bench.client import Client
from ddtree_metrics.bench.stats import all_rounds
from ddtree_metrics.errors import BenchError
from tests.tinygguf import INSTALL, write_kind
from tests.tinyserver import TinyServer


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny models; without the engine the tests fail with the line that installs it."""
    missing = [name for name in ("xllamacpp", "gguf") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.fail(f"{', '.join(missing)} missing; {INSTALL}")
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def plain(models: Path) -> Iterator[TinyServer]:
    with TinyServer(write_kind(models, "plain"), context=4096) as server:
        yield server


@pytest.fixture(scope="module")
def think(models: Path) -> Iterator[TinyServer]:
    with TinyServer(write_kind(models, "think"), context=1024) as server:
        yield server


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_have_exactly_the_wanted_tokens_and_both_sides_of_a_pair_meet_the_same_cache(plain: TinyServer, stream: bool):
    made = run_sweep(plain.url, Plan(ctx=(64, 333), lengths=(8, 40), repeat=3, precision=0, stream=stream))
    assert {a.failure for a in made.answers} == {None}
    for ctx in (64, 333):
        measured = [a for a in made.answers if a.ctx == ctx and a.role == "measure"]
        assert {a.prompt_tokens for a in measured} == {ctx}
        assert sorted(a.completion_tokens for a in measured) == [8, 8, 8, 40, 40, 40]
        assert {a.cached_tokens for a in measured} == {ctx - 1}  # this engine computes the last token of a cached prompt again


def test_the_estimate_agrees_with_the_engines_own_clock(plain: TinyServer):
    made = run_sweep(plain.url, Plan(ctx=(512,), lengths=(8, 136), repeat=7, precision=0))
    kept = [r for r in all_rounds(made.answers, 2) if r.reason is None]
    # the same requests by both clocks, so that a busy machine slows both; benchmarks/bench_two_point.py prints tighter bounds
    ratios = [r.long.server_decode_ms / 1000 / r.long.server_decode_tokens / r.seconds_a_token for r in kept]
    assert median(ratios) == pytest.approx(1, abs=0.15)


def test_speed_falls_with_context(plain: TinyServer):
    made = run_sweep(plain.url, Plan(ctx=(32, 1536), lengths=(8, 72), repeat=5, precision=0))
    # attention over 1,536 tokens costs several times the weights of this model: no noise hides it
    short, long = ([r.seconds_a_token for r in all_rounds([a for a in made.answers if a.ctx == c], 2) if not r.reason] for c in (32, 1536))
    assert min(long) > min(short)


def test_ids_and_times_of_the_requests_are_the_engines(plain: TinyServer):
    made = run_sweep(plain.url, Plan(ctx=(64,), lengths=(8, 40), repeat=2, precision=0))
    rows = made.request_records()
    assert len({r["request_id"] for r in rows}) == len(rows)
    assert all(r["request_id"].startswith(("chatcmpl-", "cmpl-")) for r in rows)
    assert all(earlier["finished"] <= later["received"] for earlier, later in itertools.pairwise(rows))  # one at a time
    assert made.started <= rows[0]["received"].timestamp() <= made.finished


def test_naive_pairs_are_refused_because_the_cache_helped_one_side(plain: TinyServer):
    from ddtree_metrics.bench.stats import judge
    from ddtree_metrics.metrics.two_point import two_point_rate

    with Client(plain.url) as client:
        prompt = "a prompt that no cache has seen " * 40
        a, b = (client.ask(prompt, n, role="measure", round=0) for n in (8, 40))
    assert (a.cached_tokens or 0) < 64 < (b.cached_tokens or 0)  # cold, then warm
    assert judge(0, [a, b], 2).reason == "prefill_differs"
    assert two_point_rate(a.run(), b.run()).status == "prefill_differs"


def test_the_servers_version_and_flags_are_kept(plain: TinyServer):
    made = run_sweep(plain.url, Plan(ctx=(64,), lengths=(8, 16), repeat=1))
    assert made.server["kind"] == "llama.cpp"
    assert made.server["context_len"] == 4096
    assert made.server["flags"]["n_ctx"] == "4096"
    assert made.model == "tiny"


def test_an_over_long_prompt_is_refused_with_the_servers_words_and_the_rest_is_measured(plain: TinyServer):
    short, long = run_sweep(plain.url, Plan(ctx=(64, 5000), lengths=(8, 40), repeat=2, precision=0)).points
    assert short.rounds == 2
    assert long.decode_tok_s is None
    assert "context size" in (long.reason or "")


def test_the_end_of_the_window_is_no_success(models: Path):
    # 480 prompt tokens + 40 in a window of 512: the engine answers 200 and "length" with fewer tokens
    with TinyServer(write_kind(models, "plain"), context=512) as server:
        (point,) = run_sweep(server.url, Plan(ctx=(480,), lengths=(8, 264), repeat=2, precision=0)).points
    assert point.decode_tok_s is None
    assert point.dropped == {"short_difference": 2}


@pytest.mark.parametrize("stream", [False, True])
def test_o9_reasoning_counts_as_output(think: TinyServer, stream: bool):
    made = run_sweep(think.url, Plan(ctx=(64,), lengths=(8, 40), repeat=2, precision=0, chat=True, stream=stream))
    measured = [a for a in made.answers if a.role == "measure"]
    assert sorted(a.completion_tokens for a in measured) == [8, 8, 40, 40]
    assert {a.prompt_tokens for a in measured} == {64}  # the template's own tokens counted
    if stream:
        assert all(a.first_token_s is not None and a.chunks > 0 for a in measured)
        assert all(a.first_content_s is None for a in measured)  # all of it is reasoning


def test_a_chat_template_longer_than_the_wanted_prompt_is_told(think: TinyServer):
    (point,) = run_sweep(think.url, Plan(ctx=(4,), lengths=(8, 16), repeat=1, chat=True)).points
    assert point.decode_tok_s is None
    assert "shortest prompt" in (point.reason or "")


def test_o7_a_model_that_ends_by_itself_is_held_to_the_end_or_counted(models: Path):
    with TinyServer(write_kind(models, "eos"), context=1024) as server:
        held = run_sweep(server.url, Plan(ctx=(64,), lengths=(8, 136), repeat=3, precision=0)).answers
        with Client(server.url) as client:
            client.refused = ["ignore_eos", "min_tokens"]
            texts = [f"{i} {word} or so" for i in range(8) for word in ("taro", "kiso", "mepi")]
            free = [client.ask(text, 264, role="measure") for text in texts]
    assert all(a.completion_tokens == a.max_tokens for a in held)  # ignore_eos was asked for and obeyed
    early = [a for a in free if (a.completion_tokens or 0) < 264]
    assert early  # without it, some end by themselves, and usage says so
    assert {a.finish_reason for a in early} == {"stop"}


def test_speculation_gives_tokens_per_step_and_step_time(models: Path):
    draft = write_kind(models, "draft")
    with TinyServer(write_kind(models, "plain"), context=1024, draft=draft) as server:
        (point,) = run_sweep(server.url, Plan(ctx=(64,), lengths=(8, 136), repeat=3, precision=0)).points
    assert point.steps_from == "timings"
    assert 1.0 < point.tokens_per_step <= 9.0  # a step adds at most its 8 drafts and one token more
    assert point.step_ms > 0


def test_an_api_key_is_asked_for_and_taken(models: Path):
    with TinyServer(write_kind(models, "plain"), context=1024, api_key="sesame") as server:
        with pytest.raises(BenchError, match="DDTREE_API_KEY"):
            run_sweep(server.url, Plan(ctx=(64,), lengths=(8, 16), repeat=1))
        made = run_sweep(server.url, Plan(ctx=(64,), lengths=(8, 16), repeat=1), api_key="sesame")
    assert {a.failure for a in made.answers} == {None}


def test_requests_at_once_are_measured_for_each_and_together(models: Path):
    with TinyServer(write_kind(models, "plain"), context=2048, slots=2) as server:
        made = run_sweep(server.url, Plan(ctx=(64,), lengths=(8, 40), repeat=2, precision=0, concurrency=2))
    measured = [a for a in made.answers if a.role == "measure"]
    assert sorted((a.round, a.worker, a.completion_tokens) for a in measured) == [
        (r, w, n) for r in (0, 1) for w in (0, 1) for n in (8, 40)
    ]
