"""What a server may do to a client: busy, broken, hung, strict, wrong. A scripted server plays it; the measurement survives or says why."""

from __future__ import annotations

import builtins
import itertools
import json
import logging
import sys
import threading
from typing import Any

import pytest

from ddtree_metrics.bench import Plan, PromptSource, Sweep, run_sweep
from ddtree_metrics.bench import client as client_module
from ddtree_metrics.bench.client import Client, base_address
from ddtree_metrics.errors import BenchError
from tests.fakeserver import CLOCK, FakeServer, Reply, error, events, recorded, streamed, usage_of, whole


@pytest.fixture(autouse=True)
def _own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "clock", CLOCK)


KEY = "sk-very-secret-0123456789"
QUICK = Plan(ctx=(30,), lengths=(2, 12), repeat=3, precision=0, timeout=20.0)


def paced(body: dict[str, Any], number: int = 0, **more: Any) -> Reply:
    """Answer after 2 ms a token."""
    return whole(body, pause=0.002 * (body.get("max_tokens") or body["max_completion_tokens"]), cached=29, **more)


def longs(server: FakeServer) -> int:
    return sum(1 for b in server.seen if b.get("max_tokens") == 12)


def sweep(server: FakeServer, plan: Plan = QUICK, **more: Any) -> Sweep:
    return run_sweep(server.url, plan, **more)


def test_a_patient_server_is_measured_with_exact_prompt_lengths():
    with FakeServer(paced) as server:
        (point,) = sweep(server).points
    assert (point.prompt_tok, point.kept, point.rounds, point.status) == (30, 3, 3, "ok")
    assert point.decode_tok_s == pytest.approx(1000 / 2)  # 2 ms a token
    assert (point.n_a, point.n_b) == (2, 12)


def test_each_round_warms_up_with_n1_tokens_on_its_own_prompt_and_alternates_the_order():
    with FakeServer(paced) as server:
        sweep(server)
        sent = [(b["prompt"], b["max_tokens"]) for b in server.seen]
    groups = [list(g) for _, g in itertools.groupby(sent, key=lambda s: s[0])]
    rounds = [[n for _, n in g] for g in groups if any(n == 12 for _, n in g)]
    assert rounds == [[2, 2, 12], [2, 12, 2], [2, 2, 12]]  # warm-up, then short first and long first in turn
    prompts = [g[0][0] for g in groups if any(n == 12 for _, n in g)]
    assert len({p[:16] for p in prompts}) == 3  # fresh from the first words on


def test_ignore_eos_and_min_tokens_are_asked_for():
    with FakeServer(paced) as server:
        sweep(server)
        assert all(b["ignore_eos"] is True and b["min_tokens"] == b["max_tokens"] and b["temperature"] == 0 for b in server.seen)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (422, "Unexpected fields in the request: {'ignore_eos', 'min_tokens'}"),
        (400, "Unrecognized request argument supplied: ignore_eos"),
        (400, "extra fields not permitted"),
    ],
)
def test_a_server_that_refuses_ignore_eos_is_asked_without_and_the_user_is_told(status: int, message: str):
    def strict(body: dict[str, Any], number: int) -> Reply:
        return error(status, message) if "ignore_eos" in body else paced(body)

    with FakeServer(strict) as server:
        made = sweep(server)
    assert made.points[0].kept == 3
    assert "ignore_eos" in made.refused
    assert any("does not take" in note and "ignore_eos" in note for note in made.notes)


def test_a_chat_server_that_wants_max_completion_tokens_gets_it():
    def strict(body: dict[str, Any], number: int) -> Reply:
        if "max_tokens" in body:
            return error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return paced(body)

    with FakeServer(strict) as server:
        made = sweep(server, Plan(ctx=(30,), lengths=(2, 12), repeat=2, chat=True))
    assert made.points[0].kept == 2
    assert made.refused == []


def test_429_in_a_pair_drops_it_waits_as_told_and_counts():
    def busy(body: dict[str, Any], number: int) -> Reply:
        if body["max_tokens"] == 12 and longs(server) == 2:
            return error(429, "slow down", **{"Retry-After": "0"})
        return paced(body)

    plan = Plan(ctx=(30,), lengths=(2, 12), repeat=4, precision=0)
    with FakeServer(busy) as server:
        (point,) = sweep(server, plan).points
    assert (point.kept, point.dropped, point.status) == (3, {"rate_limited": 1}, "ok")


def test_retry_after_is_read_and_obeyed_outside_a_pair(monkeypatch: pytest.MonkeyPatch):
    waits: list[float] = []

    def busy(body: dict[str, Any], number: int) -> Reply:
        return error(429, "slow down", **{"Retry-After": "7"}) if number == 0 else paced(body)

    with FakeServer(busy) as server, Client(server.url) as client:
        monkeypatch.setattr(client.stopped, "wait", lambda s: waits.append(s))
        answer, sent = client.ask_politely("a b c", 2, role="warmup")
    assert (answer.failure, len(sent), waits) == (None, 2, [7.0])


def test_a_server_that_is_always_busy_is_given_up_with_its_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threading.Event, "wait", lambda self, timeout=None: self.is_set())
    with FakeServer(lambda body, number: error(503, "model is loading")) as server, pytest.raises(BenchError, match="model is loading"):
        sweep(server)


def sse(body: dict[str, Any], *, tail: list[bytes] | None = None, gap: float = 0.0) -> list[bytes]:
    """A stream of max_tokens chunks."""
    n = body["max_tokens"]
    chunks = [{"choices": [{"index": 0, "text": f" w{i}", "finish_reason": "length" if i == n - 1 else None}]} for i in range(n)]
    return events(*chunks) + (events({"choices": [], "usage": usage_of(body, cached=29)}, "[DONE]") if tail is None else tail)


STREAM = Plan(ctx=(30,), lengths=(2, 12), repeat=3, precision=0, stream=True, timeout=20.0)


def test_a_stream_is_measured_and_usage_is_asked_for():
    with FakeServer(lambda body, number: streamed(sse(body), gap=0.002)) as server:
        (point,) = sweep(server, STREAM).points
        assert all(b["stream_options"]["include_usage"] for b in server.seen)
    assert (point.kept, point.n_b) == (3, 12)


def test_chunks_cut_in_half_are_put_together():
    def halves(body: dict[str, Any], number: int) -> Reply:
        raw = b"".join(sse(body))
        return streamed([raw[i : i + 37] for i in range(0, len(raw), 37)], gap=0.001)

    with FakeServer(halves) as server:
        (point,) = sweep(server, STREAM).points
    assert (point.kept, point.n_a, point.n_b) == (3, 2, 12)


def test_several_tokens_a_chunk_are_counted_by_usage():
    def packed(body: dict[str, Any], number: int) -> Reply:
        text = {"choices": [{"index": 0, "text": " many words at once", "finish_reason": "length"}]}
        pieces = events(text, {"choices": [], "usage": usage_of(body, cached=29)}, "[DONE]")
        return streamed(pieces, pause=0.002 * body["max_tokens"])

    with FakeServer(packed) as server:
        (point,) = sweep(server, STREAM).points
    assert (point.kept, point.n_b, point.stream_tok_s) == (3, 12, None)


@pytest.mark.parametrize("how", ["5xx in mid-stream", "connection closed", "half a chunk", "usage missing"])
def test_a_stream_that_breaks_drops_its_pair(how: str):
    def breaking(body: dict[str, Any], number: int) -> Reply:
        if body["max_tokens"] == 12 and longs(server) == 2:
            some = sse(body)[:5]
            if how == "5xx in mid-stream":
                return streamed([*some, *events({"error": {"message": "internal error", "code": 500}})])
            if how == "half a chunk":
                return streamed([*some, b'data: {"choices": [{"ind'])
            if how == "usage missing":
                return streamed(sse(body, tail=events("[DONE]")))
            return streamed(some)
        return streamed(sse(body), gap=0.001)

    with FakeServer(breaking) as server:
        (point,) = sweep(server, STREAM).points
    assert (point.kept, point.dropped) == (2, {"no_usage" if how == "usage missing" else "failed": 1})


def test_500_in_a_pair_drops_it():
    def failing(body: dict[str, Any], number: int) -> Reply:
        return error(500, "out of memory", **{"Retry-After": "0"}) if body["max_tokens"] == 12 and longs(server) == 1 else paced(body)

    with FakeServer(failing) as server:
        (point,) = sweep(server).points
    assert (point.kept, point.dropped) == (2, {"failed": 1})


def test_a_hung_socket_ends_after_the_timeout():
    def hanging(body: dict[str, Any], number: int) -> Reply:
        return Reply(pieces=[], hang=True) if body["max_tokens"] == 12 and longs(server) == 1 else paced(body)

    with FakeServer(hanging) as server:
        (point,) = sweep(server, Plan(ctx=(30,), lengths=(2, 12), repeat=3, precision=0, timeout=2.5)).points
    assert (point.kept, point.dropped) == (2, {"timeout": 1})


def test_a_body_that_is_cut_short_is_broken():
    with FakeServer(lambda body, number: Reply(body=b'{"choices": [', cut=True)) as server, Client(server.url) as client:
        assert client.ask("a b", 2, role="measure").failure == "broken"


@pytest.mark.parametrize("raw", [b"<html>gateway</html>", b"[]", b"", b"\xff\xfe"])
def test_an_answer_that_is_no_json_object_is_told(raw: bytes):
    with FakeServer(lambda body, number: Reply(body=raw)) as server, pytest.raises(BenchError, match="does not answer a request"):
        sweep(server)


def test_a_server_without_usage_is_refused_with_the_reason():
    nothing = Reply(body=json.dumps({"choices": [{"text": " x", "finish_reason": "length"}]}).encode())
    with FakeServer(lambda body, number: nothing) as server, pytest.raises(BenchError, match="no token usage"):
        sweep(server)


def test_wrong_usage_drops_the_pair():
    def lying(body: dict[str, Any], number: int) -> Reply:
        return paced(body, made=500) if body["max_tokens"] == 12 and longs(server) == 1 else paced(body)

    with FakeServer(lying) as server:
        (point,) = sweep(server).points
    assert (point.kept, point.dropped) == (2, {"failed": 1})


def test_o8_pairs_with_unequal_cached_tokens_are_dropped_and_the_point_refused():
    def caching(body: dict[str, Any], number: int) -> Reply:
        return whole(body, pause=0.002 * body["max_tokens"], cached=29 if body["max_tokens"] == 2 else 0)

    with FakeServer(caching) as server:
        (point,) = sweep(server).points
    assert (point.status, point.decode_tok_s, point.dropped) == ("failed", None, {"prefill_differs": 3})


def test_where_cached_tokens_are_not_reported_the_point_says_so():
    with FakeServer(lambda body, number: whole(body, pause=0.002 * body["max_tokens"])) as server:
        (point,) = sweep(server).points
    assert any("reports no cached tokens" in note for note in point.notes)


def test_o7_an_early_end_is_counted_as_it_is():
    with FakeServer(lambda body, number: paced(body, made=min(body["max_tokens"], 9), finish="stop")) as server:
        (point,) = sweep(server).points
    assert (point.n_b, point.kept) == (9, 3)
    assert any("stopped early (9 of 12 tokens; ended by itself)" in note for note in point.notes)


def test_an_over_long_prompt_leaves_the_other_lengths_measured():
    def window(body: dict[str, Any], number: int) -> Reply:
        return error(400, "This model's maximum context length is 100 tokens") if len(body["prompt"].split()) > 100 else paced(body)

    with FakeServer(window) as server:
        short, long = sweep(server, Plan(ctx=(30, 300), lengths=(2, 12), repeat=2, precision=0)).points
    assert short.status == "ok"
    assert (long.status, long.decode_tok_s) == ("not_measured", None)
    assert "maximum context length is 100" in (long.reason or "")


def test_a_wrong_model_is_named_with_those_that_are_served():
    unknown = error(404, "The model `nope` does not exist.")
    with FakeServer(lambda body, number: unknown) as server, pytest.raises(BenchError, match="it serves: fake"):
        run_sweep(server.url, Plan(ctx=(30,), model="nope"))


def test_the_first_model_that_is_served_is_asked_for():
    with FakeServer(paced, {"/v1/models": {"data": [{"id": "one"}, {"id": "two"}]}}) as server:
        made = sweep(server)
        assert {b["model"] for b in server.seen} == {"one"}
    assert any("names 2 models" in note for note in made.notes)


def test_a_key_is_sent_and_stands_nowhere_else(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    prompts = PromptSource(3)
    routes = {"/server_info": {"version": "9", "server_args": 1, "api_key": KEY, "note": f"started with {KEY}", "tp_size": 8}}

    def echoing(body: dict[str, Any], number: int) -> Reply:
        return error(500, f"cannot: {KEY} {body['prompt']}", **{"Retry-After": "0"}) if longs(server) == 1 and number else paced(body)

    with FakeServer(echoing, routes) as server:
        made = run_sweep(server.url, QUICK, prompts=prompts, api_key=KEY)
        assert {h.get("Authorization") for h in server.headers} == {f"Bearer {KEY}"}
        prompt = server.seen[-1]["prompt"]
    everything = made.to_json() + made.table() + caplog.text + repr(made)
    assert KEY not in everything
    assert prompt[:40] not in everything
    assert made.server["flags"] == {
        "version": "9",
        "server_args": "1",
        "api_key": "<redacted>",
        "note": "<redacted>",
        "tp_size": "8",
    }


def test_a_missing_or_refused_key_is_told_without_showing_it():
    denied = Reply(401, b'{"error": {"message": "Invalid API Key", "type": "authentication_error"}}')
    with FakeServer(paced, {"/v1/models": denied}) as server:
        with pytest.raises(BenchError, match=r"wants an API key \(HTTP 401\); set DDTREE_API_KEY"):
            sweep(server)
        with pytest.raises(BenchError, match="does not take this API key") as told:
            sweep(server, api_key=KEY)
    assert KEY not in str(told.value)


@pytest.mark.parametrize("key", ["with blank", "new\nline", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused(key: str):
    with pytest.raises(BenchError, match="API key") as told:
        Client("http://127.0.0.1:1", api_key=key)
    assert key not in str(told.value)


def test_each_request_has_its_own_connection():
    with FakeServer(paced) as server:
        sweep(server)
        assert {h.get("Connection") for h in server.headers} == {"close"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("127.0.0.1:30000", "http://127.0.0.1:30000/v1"),
        ("http://host:8000/", "http://host:8000/v1"),
        ("http://host:8000/v1/", "http://host:8000/v1"),
        ("https://host/api/v1/chat/completions", "https://host/api/v1"),
        ("http://host/v1/completions", "http://host/v1"),
        ("http://[::1]:80/v1", "http://[::1]:80/v1"),
        ("https://me:pw@host/v1", "https://host/v1"),
    ],
)
def test_an_address_may_be_given_in_any_usual_form(given: str, wanted: str):
    assert base_address(given)[0] == wanted


@pytest.mark.parametrize("bad", ["ftp://host", "http://", "http://host:port", ""])
def test_a_bad_address_is_refused(bad: str):
    with pytest.raises(BenchError, match="address"):
        base_address(bad)


def test_a_key_in_the_address_is_refused_and_not_repeated():
    with pytest.raises(BenchError, match="DDTREE_API_KEY") as told:
        base_address(f"http://host/v1?api_key={KEY}")
    assert KEY not in str(told.value)


def test_nothing_at_the_address_is_said_so():
    with pytest.raises(BenchError, match="nothing answers at http://127"):
        run_sweep("http://127.0.0.1:9", QUICK)


def test_without_httpcore_the_install_line_is_given(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def missing(name: str, *args: Any, **more: Any) -> Any:
        if name == "httpcore":
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    monkeypatch.delitem(sys.modules, "ddtree_metrics.bench.exchange", raising=False)
    with pytest.raises(BenchError, match=r"pip install 'ddtree-metrics\[bench\]'"):
        Client("http://127.0.0.1:1")


def test_ctrl_c_keeps_what_was_measured():
    def interrupt(done: int, total: int, text: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with FakeServer(paced) as server:
        made = sweep(server, Plan(ctx=(30,), lengths=(2, 12), repeat=9, precision=0), progress=interrupt)
    assert made.interrupted
    assert (made.points[0].rounds, made.points[0].decode_tok_s is not None) == (2, True)


def test_a_server_that_dies_ends_the_sweep_with_what_there_is():
    plan = Plan(ctx=(30,), lengths=(2, 12), repeat=40, precision=0)
    with FakeServer(paced) as server:

        def kill(done: int, total: int, text: str) -> None:
            if done == 3:
                server.closing.set()
                server._http.shutdown()
                server._http.server_close()

        made = sweep(server, plan, progress=kill)
        server._http.server_close()
        server._http.shutdown = lambda: None  # it is down already
    (point,) = made.points
    assert point.kept == 2
    assert point.rounds < 10
    assert point.reason


def test_requests_at_once_are_sent_together():
    most, now, lock = [0], [0], threading.Lock()

    def counting(body: dict[str, Any], number: int) -> Reply:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.05)
        with lock:
            now[0] -= 1
        return paced(body)

    with FakeServer(counting) as server:
        (point,) = sweep(server, Plan(ctx=(30,), lengths=(2, 12), repeat=2, concurrency=3, precision=0)).points
    assert most[0] == 3
    assert (point.kept, point.rounds) == (6, 6)


def test_verify_counters_of_metrics_are_used_where_answers_have_none():
    made = {"tokens": 100.0, "steps": 40.0}

    def counting(body: dict[str, Any], number: int) -> Reply:
        made["tokens"] += body["max_tokens"]
        made["steps"] += body["max_tokens"] // 2
        return paced(body)

    def page(_: Any) -> str:
        return (
            f'sglang:generation_tokens_total{{is_streaming="false"}} {made["tokens"] - 60}\n'
            'sglang:generation_tokens_total{is_streaming="true"} 60.0\n'
            f'sglang:spec_verify_calls_total{{model_name="t"}} {made["steps"]}\n'
        )

    with FakeServer(counting, {"/metrics": page}) as server:
        (point,) = sweep(server).points
    # 2 and 12 tokens in 1 and 6 steps: 10 tokens in 5 steps
    assert (point.tokens_per_step, point.steps_from) == (2.0, "metrics")


@pytest.mark.parametrize(("running", "told"), [("2.0", True), ("0.0", False)])
def test_other_requests_on_the_server_are_told(running: str, told: bool):
    page = f'vllm:num_requests_running{{engine="0"}} {running}\nvllm:num_requests_waiting{{engine="0"}} 0.0\n'
    with FakeServer(paced, {"/metrics": page}) as server:
        made = sweep(server)
    assert any("other requests when 3 of the rounds began" in note for note in made.notes) is told


def test_the_counters_of_real_servers_are_found():
    from ddtree_metrics.bench.server import read_counters

    assert read_counters(recorded("sglang-metrics.prom").decode()) == {"steps": 326.0, "tokens": 717.0 + 312.0}
    vllm = read_counters(recorded("vllm-metrics.prom").decode())
    assert vllm == {"steps": 134.0, "accepted": 380.0, "proposed": 917.0, "tokens": 493.0}


@pytest.mark.parametrize(
    "bad",
    [
        {"ctx": ()},
        {"ctx": (64, 64)},
        {"ctx": (0,)},
        {"lengths": (8,)},
        {"lengths": (264, 8)},
        {"lengths": (1, 8)},
        {"repeat": 0},
        {"concurrency": 0},
        {"timeout": 0},
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(bad: dict[str, Any]):
    with pytest.raises(BenchError):
        Plan(**bad)
