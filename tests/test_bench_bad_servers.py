"""A server may be broken or hostile: every request ends, takes little memory, and what is wrong is said in one sentence."""

from __future__ import annotations

import copy
import itertools
import json
import tracemalloc
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ddtree_metrics.bench import Plan, run_sweep
from ddtree_metrics.bench.client import Client
from ddtree_metrics.cli import main
from ddtree_metrics.errors import BenchError
from tests.rawserver import BAD, Connection, RawServer, completion, healthy, path_of, told

SHORT = Plan(ctx=(30,), lengths=(2, 12), repeat=1, precision=0, timeout=0.6)


def bench(url: str, *more: str, **env: str) -> Result:
    arguments = ["bench", url, "--ctx", "30", "--n1", "2", "--n2", "12", "--repeat", "1", "--timeout", "0.6", *more]
    return CliRunner().invoke(main, arguments, env={"DDTREE_API_KEY": "", "OPENAI_API_KEY": ""} | env)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", BAD)
def test_a_bad_answer_ends_within_the_deadline_and_in_bounded_memory(how: str, stream: bool):
    tracemalloc.start()
    try:
        with RawServer(healthy(BAD[how])) as server, Client(server.url, stream=stream, timeout=0.6) as client:
            answer = client.ask("a b c", 8, role="measure")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.failure in ("timeout", "bad_answer", "broken", "bad_request")
    assert len(answer.message or "") > 10
    assert peak < 60e6  # the longest answer is 16 MiB: its pieces, the whole, and what the play sends


@pytest.mark.parametrize("how", ["trickle", "flood", "gzip_bomb", "endless_continue", "no_http"])
def test_a_server_that_is_bad_from_the_first_question_on_is_one_sentence_and_exit_1(how: str):
    with RawServer(BAD[how]) as server:
        made = bench(server.url)
    assert (made.exit_code, made.stdout) == (1, "")
    assert made.stderr.startswith("ddtree-logs: ")
    assert made.stderr.count("\n") == 1


def test_what_is_packed_although_plain_was_asked_for_is_unpacked():
    import gzip

    def packed(wire: Connection, request: bytes) -> None:
        wire.send(told(gzip.compress(json.dumps(completion(request)).encode()), "Content-Encoding: gzip"))

    with RawServer(healthy(packed)) as server, Client(server.url) as client:
        assert client.ask("a b c", 8, role="measure").prompt_tokens == 3


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "sk-very-secret"])
def test_a_packing_that_was_not_asked_for_is_refused(encoding: str):
    odd = healthy(lambda wire, request: wire.send(told(b"xx", f"Content-Encoding: {encoding}")))
    with RawServer(odd) as server, Client(server.url) as client:
        answer = client.ask("a b c", 8, role="measure")
    assert (answer.failure, answer.message) == ("bad_answer", "the answer is packed in a way that was not asked for")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of plain values."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *itertools.chain.from_iterable(places(item, (*path, key)) for key, item in inside)]


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    made = copy.deepcopy(value)
    at = made
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return made


WRONG = [None, True, -1, 1.5, 10**30, "text", "", [], [[]], {}, {"x": {"y": [1]}}, [None], 0]
FULL: dict[str, Any] = {
    "id": "cmpl-1",
    "object": "text_completion",
    "model": "fake",
    "choices": [
        {
            "index": 0,
            "text": " so",
            "finish_reason": "length",
            "delta": {"content": "x", "reasoning_content": None, "tool_calls": None},
            "meta_info": {"spec_verify_ct": 3, "spec_accepted_drafts": 4, "spec_num_proposed_drafts": 9, "completion_tokens": 8},
        }
    ],
    "usage": {
        "prompt_tokens": 30,
        "completion_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 0},
    },
    "timings": {"predicted_n": 8, "predicted_ms": 3.5, "prompt_ms": 1.0, "cache_n": 1, "draft_n": 9, "draft_n_accepted": 4},
    "metrics": {"speculative_decoding": {"num_spec_steps": 3, "num_accepted_draft_tokens": 4, "num_draft_tokens": 9}},
}


def test_a_wrong_type_at_every_place_of_an_answer_is_a_failure_or_unknown():
    from ddtree_metrics.bench.answers import AnswerReader, TimedAnswer

    counted = 0
    for path, wrong, stream in itertools.product(places(FULL), WRONG, (False, True)):
        reader = AnswerReader(TimedAnswer("measure", 8))
        if stream:
            reader.event(json.dumps(put(FULL, path, wrong)).encode(), 1.0)
        else:
            reader.body(put(FULL, path, wrong))
        answer = reader.finish(stream=stream)
        counts = (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens, answer.steps)
        assert all(c is None or (type(c) is int and 0 <= c < 10**12) for c in counts)
        assert answer.failure in (None, "bad_answer", "server_error", "broken")
        counted += 1
    assert counted > 800


@pytest.mark.parametrize(
    ("payload", "told_"),
    [
        ({"usage": {"completion_tokens": "8"}}, r"usage\.completion_tokens: a whole number or null is wanted, not a text"),
        ({"choices": {}}, r"choices: a list or null is wanted, not an object"),
        ({"timings": {"predicted_n": -1}}, r"timings\.predicted_n: a whole number >= 0 is wanted"),
    ],
)
def test_the_message_names_the_place_and_what_is_wanted(payload: Any, told_: str):
    answer = healthy(lambda wire, request: wire.send(told(payload)))
    with RawServer(answer) as server, pytest.raises(BenchError, match=told_):
        run_sweep(server.url, SHORT)


SIDES: dict[str, Any] = {
    "/v1/models": {"data": [{"id": "fake", "owned_by": "vllm", "max_model_len": 4096, "meta": {"n_vocab": 3}}]},
    "/server_info": {"version": "9", "server_args": {"a": [1]}, "max_req_input_len": 9, "tp_size": 8},
    "/props": {"build_info": "b1", "default_generation_settings": {"n_ctx": 4096, "params": {"speculative.types": "x"}}},
    "/version": {"version": "0.9"},
    "/tokenize": {"count": 3, "tokens": [1, 2, 3]},
}


@pytest.mark.parametrize("path", SIDES)
def test_a_wrong_type_at_every_place_of_a_side_answer_is_left_out(path: str):
    from ddtree_metrics.bench.server import Tokenizer, identify

    now: dict[str, Any] = {}

    def play(wire: Connection, request: bytes) -> None:
        said = now.get(path_of(request))
        wire.send(told({"detail": "Not Found"}, status="404 Not Found") if said is None else told(said))

    with RawServer(play) as server, Client(server.url) as client:
        for place, wrong in itertools.product(places(SIDES[path]), WRONG):
            now = {"/v1/models": SIDES["/v1/models"], path: put(SIDES[path], place, wrong)}
            facts = identify(client)
            assert all(isinstance(k, str) and isinstance(v, str) for k, v in facts["flags"].items())
            assert facts["version"] is None or isinstance(facts["version"], str)
            assert facts["context_len"] is None or type(facts["context_len"]) is int
            assert all(isinstance(name, str) for name in client.models())
            count = Tokenizer(client).count("one two three")
            assert count is None or (type(count) is int and count > 0)


@pytest.mark.parametrize("value", ["nan", "1e999", "..", "+-", "-5", "1e-", "0x10"])
def test_an_odd_number_on_the_metrics_page_is_no_number(value: str):
    from ddtree_metrics.bench.server import read_counters

    assert read_counters(f"sglang:generation_tokens_total {value}\nsglang:spec_verify_calls_total 4\n") == {"steps": 4.0}


@pytest.mark.parametrize("retry", ["nan", "-1", "1e400", "Thu, 01 Jan 0001 00:00:00 -0000", "soon", "9" * 400])
def test_an_odd_retry_after_is_no_reason_to_fail(retry: str):
    answer = healthy(lambda wire, request: wire.send(told({"error": "slow"}, f"Retry-After: {retry}", status="429 Too Many Requests")))
    with RawServer(answer) as server, Client(server.url, timeout=0.05) as client:
        assert client.ask_politely("a", 2, role="warmup", retries=1)[0].failure in ("rate_limited", "timeout")


@pytest.mark.parametrize("depth", [2_000, 200_000])
def test_deep_json_is_no_answer(depth: int):
    deep = b'{"choices": ' + b"[" * depth + b"]" * depth + b"}"
    with RawServer(healthy(lambda wire, request: wire.send(told(deep)))) as server, Client(server.url) as client:
        answer = client.ask("a", 2, role="measure")
    assert answer.failure == "bad_answer"


def test_a_server_that_is_always_busy_after_the_first_answer_is_given_up(monkeypatch: pytest.MonkeyPatch):
    asked = itertools.count()

    def busy(wire: Connection, request: bytes) -> None:
        if next(asked) < 1:
            wire.send(told(completion(request)))
        else:
            wire.send(told({"error": "busy"}, "Retry-After: 3600", status="503 Service Unavailable"))

    with RawServer(healthy(busy)) as server:
        made = run_sweep(server.url, Plan(ctx=(30, 40), lengths=(2, 12), repeat=50, precision=0, timeout=0.01 + 0.5))
        assert server.requests < 60
    assert all(p.decode_tok_s is None for p in made.points)


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "[::1", "http://[::1]:99999", "http://a b", "http://\x00", "http://h\u0000st", "http://" + "a" * 300, "http://.", "//"],
)
def test_an_address_that_is_none_is_one_sentence(url: str):
    made = bench(url)
    assert made.exit_code in (1, 2)
    assert "Traceback" not in made.output
    assert not made.exception or isinstance(made.exception, SystemExit)
    assert made.stderr.splitlines()[-1].lower().startswith(("ddtree-logs: ", "error: "))


@pytest.mark.parametrize("proxy", ["http://[::1", "ftp://x", "http://", "http://:80", "://", "http://h:port", "http://h:99999999", "h\x01"])
def test_a_broken_proxy_variable_is_named_and_not_quoted(proxy: str):
    made = bench("http://example.invalid", http_proxy=proxy, HTTP_PROXY=proxy)
    assert made.exit_code == 1
    assert made.stderr == "ddtree-logs: HTTP_PROXY does not hold a proxy's address such as http://host:3128; mend or unset it\n"
