"""Reading answers: real streams replayed, in any cut; counts, reasoning, errors of every shape."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_metrics.bench.answers import AnswerReader, EventStream, TimedAnswer, explain
from tests.fakeserver import SSE, recorded


def replay(raw: bytes, cuts: tuple[int, ...] = (), max_tokens: int = 0, step: float = 1.0) -> TimedAnswer:
    """Feed a stream in pieces; piece k arrives at k seconds."""
    reader = AnswerReader(TimedAnswer("measure", max_tokens))
    stream = EventStream()
    places = [0, *sorted(cuts), len(raw)]
    now = 0.0
    for start, end in itertools.pairwise(places):
        now += step
        for data in stream.feed(raw[start:end]):
            reader.event(data, now)
    for data in stream.end():
        reader.event(data, now)
    return reader.finish(stream=True)


def one_event_a_piece(raw: bytes, max_tokens: int = 0) -> TimedAnswer:
    cuts, at = [], raw.find(b"\n\n")
    while at >= 0:
        cuts.append(at + 2)
        at = raw.find(b"\n\n", at + 1)
    return replay(raw, tuple(cuts[:-1]), max_tokens)


def test_llama_stream_counts_tokens_from_the_chunk_without_choices_and_reads_the_engine_clock():
    a = one_event_a_piece(recorded("llama-completions.sse"), 8)
    # 8 text chunks at 1..8 s, then a chunk without text, one with usage and timings
    assert (a.completion_tokens, a.prompt_tokens, a.cached_tokens, a.chunks) == (8, 3, 0, 8)
    assert (a.first_token_s, a.last_token_s, a.elapsed_s) == (1.0, 8.0, 8.0)
    assert (a.server_decode_tokens, a.server_decode_ms) == (7, 10.389)
    assert a.steps is None  # no draft: no verify steps
    assert a.failure is None


def test_sglang_stream_has_24_tokens_in_10_chunks():
    a = one_event_a_piece(recorded("sglang-completions-spec.sse"), 24)
    assert (a.completion_tokens, a.chunks, a.cached_tokens, a.reasoning_tokens) == (24, 10, 2, 0)
    assert a.request_id == "ba8048037d234b38acef5b775b2b2b90"  # the rid of the server's own log lines


def test_vllm_running_usage_gives_the_tokens_of_the_first_chunk_and_the_verify_steps():
    a = one_event_a_piece(recorded("vllm-completions-spec-continuous-usage.sse"), 24)
    assert (a.completion_tokens, a.chunks, a.first_chunk_tokens) == (24, 4, 1)
    # per_step_accepted [6, 7, 7]: 3 steps, 20 accepted, 21 proposed
    assert (a.steps, a.accepted_drafts, a.proposed_drafts, a.steps_from) == (3, 20, 21, "speculative_decoding")


def test_vllm_chat_role_chunk_is_no_token():
    a = one_event_a_piece(recorded("vllm-chat-spec.sse"), 12)
    assert (a.completion_tokens, a.chunks, a.first_token_s) == (12, 3, 2.0)  # the role chunk came at 1 s


def test_vllm_whole_answer_has_16_steps():
    reader = AnswerReader(TimedAnswer("measure", 96))
    reader.body(json.loads((SSE / "vllm-completion-spec-detailed.json").read_text()))
    a = reader.finish(stream=False)
    assert (a.completion_tokens, a.steps, a.accepted_drafts) == (96, 16, 82)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_a_stream_cut_anywhere_gives_the_same_counts(data: st.DataObject):
    name = data.draw(st.sampled_from(sorted(p.name for p in SSE.glob("*.sse"))))
    raw = recorded(name)
    if data.draw(st.booleans()):
        raw = raw.replace(b"\n", b"\r\n")
    cuts = data.draw(st.lists(st.integers(1, len(raw) - 1), max_size=30, unique=True))
    a, b = replay(raw, tuple(cuts)), replay(raw)
    assert a.failure is None
    same = ("completion_tokens", "prompt_tokens", "chunks", "steps", "finish_reason", "server_decode_ms")
    assert [getattr(a, n) for n in same] == [getattr(b, n) for n in same]


@given(st.binary(max_size=300), st.integers(0, 2400))
@settings(max_examples=30, deadline=None)
def test_garbage_in_a_stream_never_raises(junk: bytes, at: int):
    raw = recorded("sglang-completions-spec.sse")
    answer = replay(raw[:at] + b"\n\ndata: " + junk + b"\n\n" + raw[at:])
    assert answer.failure in (None, "broken", "bad_answer", "server_error", "bad_request", "too_long", "rate_limited", "auth")


@pytest.mark.parametrize(
    "value",
    [None, 3, "x", [], {"choices": None}, {"choices": [{}]}, {"choices": [None]}, {"usage": "no"}, {"usage": {"prompt_tokens": "9"}}],
)
def test_odd_answers_never_raise(value: object):
    reader = AnswerReader(TimedAnswer("measure", 8))
    reader.body(value)
    assert reader.finish(stream=False).completion_tokens is None


def delta(**part: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": part}]}).encode() + b"\n\n"


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_o9_first_token_of_any_kind_starts_the_clock(key: str):
    reader = AnswerReader(TimedAnswer("measure", 300))
    for part, at in (
        ({"role": "assistant", "content": None}, 0.5),
        ({key: "hm"}, 20.0),
        ({"content": "so"}, 26.0),
        ({"content": "."}, 27.5),
    ):
        reader.event(delta(**part)[6:].strip(), at)
    usage = {"choices": [], "usage": {"completion_tokens": 300, "completion_tokens_details": {"reasoning_tokens": 240}}}
    reader.event(json.dumps(usage).encode(), 27.6)
    reader.event(b"[DONE]", 27.6)
    a = reader.finish(stream=True)
    assert (a.first_token_s, a.first_content_s, a.last_token_s, a.reasoning_tokens) == (20.0, 26.0, 27.5, 240)
    from ddtree_metrics.metrics.two_point import run_rate

    assert run_rate(a.run()).tok_per_s == pytest.approx(299 / 7.5)  # 39.87; content alone would say 299 / 1.5 = 199.3


@pytest.mark.parametrize(
    ("usage", "timings"),
    [
        ({"completion_tokens": 9}, None),  # more than the 8 asked for
        ({"completion_tokens": -1}, None),
        ({"completion_tokens": 0}, None),  # although there is text
        ({"completion_tokens": 8}, {"predicted_n": 5, "predicted_ms": 3.0}),  # the two disagree
        ({"completion_tokens": 8, "completion_tokens_details": {"reasoning_tokens": 20}}, None),
    ],
)
def test_counts_that_contradict_each_other_are_no_answer(usage: dict, timings: dict | None):
    reader = AnswerReader(TimedAnswer("measure", 8))
    reader.body({"choices": [{"text": " a", "finish_reason": "length"}], "usage": usage, "timings": timings})
    assert reader.finish(stream=False).failure == "bad_answer"


def test_llama_draft_timings_give_the_verify_steps():
    # 128 tokens: one from the prefill, 106 accepted drafts, so 128 - 1 - 106 = 21 steps (mean length 1 + 106/21 = 6.05)
    reader = AnswerReader(TimedAnswer("measure", 128))
    reader.body(
        {"choices": [{"text": "x"}], "timings": {"predicted_n": 128, "predicted_ms": 90.0, "draft_n": 163, "draft_n_accepted": 106}}
    )
    a = reader.finish(stream=False)
    assert (a.steps, a.accepted_drafts, a.proposed_drafts) == (21, 106, 163)
    assert a.completion_tokens == 128  # from the timings, where usage is missing


def test_a_stream_that_ends_before_its_answer_is_broken():
    raw = recorded("llama-completions.sse")
    assert replay(raw[: raw.index(b'"length"') - 300]).failure == "broken"


def test_an_error_in_the_middle_of_a_stream_is_told():
    raw = delta(content="a") + b'data: {"error": {"message": "CUDA out of memory", "code": 500}}\n\n'
    a = replay(raw)
    assert (a.failure, a.message) == ("server_error", "CUDA out of memory")


@pytest.mark.parametrize(
    ("status", "payload", "kind"),
    [
        # over-long prompts: llama.cpp, vLLM, SGLang each in its own shape
        (
            400,
            {
                "error": {
                    "code": 400,
                    "message": "request (9 tokens) exceeds the available context size (8 tokens)",
                    "type": "exceed_context_size_error",
                }
            },
            "too_long",
        ),
        (
            400,
            {
                "error": {
                    "message": "This model's maximum context length is 8192 tokens.",
                    "type": "BadRequestError",
                    "param": "input_tokens",
                }
            },
            "too_long",
        ),
        (
            400,
            {
                "object": "error",
                "message": "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
                "type": "BadRequestError",
            },
            "too_long",
        ),
        (401, {"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}}, "auth"),
        (404, {"error": {"message": "The model `x` does not exist.", "code": 404}}, "not_found"),
        (422, {"detail": "Unexpected fields in the request: {'ignore_eos'}"}, "refused_field"),
        (400, {"error": {"message": "Unrecognized request argument supplied: min_tokens"}}, "refused_field"),
        (
            422,
            {"detail": [{"loc": ["body", "ignore_eos"], "msg": "Extra inputs are not permitted", "input": {"prompt": "SECRET"}}]},
            "refused_field",
        ),
        (429, {"error": {"message": "slow down"}}, "rate_limited"),
        (503, {"error": {"message": "loading"}}, "server_error"),
        (400, {"error": "no"}, "bad_request"),
        (500, None, "server_error"),
        (400, [1], "bad_request"),
    ],
)
def test_errors_of_every_shape_are_understood(status: int, payload: object, kind: str):
    found, text = explain(status, payload)
    assert found == kind
    assert "SECRET" not in text
