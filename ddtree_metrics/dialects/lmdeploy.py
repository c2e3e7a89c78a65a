"""What LMDeploy writes: a window of ten seconds with what was drafted in it on one line, and the begin and end of each request."""

from __future__ import annotations

import re
from typing import Any

from ddtree_metrics.dialects.base import Broken, Dialect, Line, Sample
from ddtree_metrics.dialects.cast import number
from ddtree_metrics.dialects.stamps import STAMP, read_head
from ddtree_metrics.dialects.window_fields import drafts_in, pairs_of, share_of
from ddtree_metrics.records import DecodeBatch, RequestLine

_A = re.A
_N = r"\s*([^\s();|/%]*[^\s();|/,%])"

_HEAD = re.compile(r"\s*\[(?P<head>[^\]]{0,60})\]\s*", _A)
_WINDOW = re.compile(
    rf"Avg thr \(in/out\):{_N} /{_N} tokens/s, Server \(succeeded/failed/routed/waiting\):[\d /]*, "
    rf"Engine \(running/waiting\):{_N} /{_N}(?:, (?P<rest>.*))?$",
    _A | re.S,
)
_FINISHED = re.compile(rf'session {_N[3:]} finished, reason "(?P<reason>\w{{1,40}})", input_tokens{_N}, output_tokens{_N}\s*$', _A)
_RECEIVED = re.compile(rf"session={_N[3:]}, .*?\binput_tokens={_N[3:]}, max_new_tokens=", _A)


def read_window(body: str) -> dict[str, Any] | None:
    """Read a window: tokens a second in and out, requests at its end, and what was drafted."""
    found = _HEAD.match(body)
    head = read_head(found["head"]) if found else None
    rest = body[found.end() :] if found and head is not None else body.lstrip()
    line = _WINDOW.match(rest)
    if line is None:
        if rest.startswith("Avg thr (in/out):"):
            raise Broken("cut")
        return None
    made: dict[str, Any] = {} if head is None else {STAMP: head}
    made |= {"prompt_throughput": float(number(line[1], "float")), "gen_throughput": float(number(line[2], "float"))}
    made |= {"running": int(number(line[3], "int")), "queued": int(number(line[4], "int"))}
    general, marker, drafts = (line["rest"] or "").partition("SpecDecoding metrics: ")
    pairs = pairs_of(general)
    if "KV cache" in pairs:
        made["token_usage"] = share_of(pairs["KV cache"])
    extra = {"Prefix cache hit rate": pairs["Prefix cache hit rate"]} if "Prefix cache hit rate" in pairs else {}
    told = drafts_in(pairs_of(drafts)) if marker else {}
    extra |= told.pop("extra", {})
    return {**made, **told, **({"extra": extra} if extra else {})}


def read_request(body: str) -> dict[str, Any] | None:
    """Read the begin or the end of a request: its lengths, never its text."""
    found = _HEAD.match(body)
    head = read_head(found["head"]) if found else None
    said = {} if head is None else {STAMP: head}
    end = _FINISHED.search(body)
    if end is not None:
        made = {"event": "finished", "request_id": f"session-{int(number(end[1], 'int', wide=True))}", "finish_reason": end["reason"]}
        return {**said, **made, "prompt_tokens": _count(end[3]), "completion_tokens": _count(end[4])}
    begin = _RECEIVED.search(body)
    if begin is not None:
        session = int(number(begin[1], "int", wide=True))
        return {**said, "event": "received", "request_id": f"session-{session}", "prompt_tokens": _count(begin[2])}
    if re.search(r"session \d+ finished, reason \"\w+\", input", body, _A):
        raise Broken("cut")
    return None


def _count(text: str) -> int:
    return int(number(text, "int", wide=True))


WINDOW = Line(
    DecodeBatch,
    marker="Avg thr (in/out):",
    anywhere=True,
    reader=read_window,
    samples=(
        Sample(
            "[2026-08-21 22:31:54 DP0] Avg thr (in/out): 12.3 / 45.6 tokens/s, Server (succeeded/failed/routed/waiting): 1 / 0 / 1 / 0, "
            "Engine (running/waiting): 1 / 0, KV cache: 3.2%, Prefix cache hit rate: 50.0%, SpecDecoding metrics: Draft acceptance rate: "
            "61.00%, Mean acceptance length: 2.83, Accepted: 530 tokens, Drafted: 870 tokens, Per-position acceptance rate: 0.730, 0.550, "
            "0.400",
            {
                "prompt_throughput": 12.3, "gen_throughput": 45.6, "running": 1, "queued": 0, "token_usage": 0.032, "dp_rank": 0,
                "mean_accept_len": 2.83, "accepted": 530, "drafted": 870, "accept_rate": 0.61, "accept_len": None,
                "position_accept_rates": [0.73, 0.55, 0.4], "extra": {"Prefix cache hit rate": "50.0%"},
            },
        ),
        Sample(
            "[2026-08-21 22:31:54] Avg thr (in/out): 0.0 / 45.6 tokens/s, Server (succeeded/failed/routed/waiting): 1 / 0 / 1 / 0, Engine "
            "(running/waiting): 2 / 1, KV cache: 3.2%",
            {"gen_throughput": 45.6, "running": 2, "queued": 1, "drafted": None, "dp_rank": None, "extra": None},
        ),
        Sample("[2026-08-21 22:31:54 DP0] Avg thr (in/out): 12.3 / 4", broken="cut"),
        Sample(
            "[2026-08-21 22:31:54] Avg thr (in/out): nan / 45.6 tokens/s, Server (succeeded/failed/routed/waiting): 1 / 0 / 1 / 0, Engine "
            "(running/waiting): 2 / 1",
            broken="bad_number",
        ),
        Sample("is Avg thr (in/out): 3 a lot?"),
    ),
)  # fmt: skip

REQUESTS = Line(
    RequestLine,
    marker=" finished, reason ",
    also=("session=",),
    anywhere=True,
    reader=read_request,
    samples=(
        Sample(
            'session 12 finished, reason "stop", input_tokens 8342, output_tokens 310',
            {
                "event": "finished", "request_id": "session-12", "finish_reason": "stop", "prompt_tokens": 8342, "completion_tokens": 310,
            },
        ),
        Sample(
            "session=12, input_tokens=8342, max_new_tokens=512, prep=True",
            {"event": "received", "request_id": "session-12", "prompt_tokens": 8342},
        ),
        Sample('session 12 finished, reason "stop", input_tokens 83', broken="cut"),
        Sample("the session=3 of parliament"),
    ),
)  # fmt: skip

LMDEPLOY = Dialect(
    name="lmdeploy",
    about="LMDeploy: windows of ten seconds, and the lengths of each request",
    more="its info level prints the begin and end of each request, and no level prints a line a step",
    lines=(WINDOW, REQUESTS),
)
