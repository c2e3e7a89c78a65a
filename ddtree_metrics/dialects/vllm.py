"""What vLLM writes: a window of ten seconds on one line, what was drafted in it on the next, and one line an engine step if it is asked.

The two lines of a window are one row of ``decode`` (``steps/window_pairs.py`` puts them together, for they are two lines of one process).
No line has the context length of a request, and none the tokens of a step; what a window can say of steps is worked out in
``steps/engine_windows.py``. Stamps have no year, so a frame's own time is taken where there is one.
"""

from __future__ import annotations

import functools
import re
from datetime import datetime, timedelta, timezone
from typing import Any

from ddtree_metrics.dialects.base import Broken, Dialect, Line, Sample
from ddtree_metrics.dialects.cast import number
from ddtree_metrics.dialects.secrets import clean_value
from ddtree_metrics.dialects.sglang_start import safe_args, scan_items
from ddtree_metrics.dialects.stamps import STAMP, Head
from ddtree_metrics.dialects.window_fields import drafts_in, pairs_of, share_of
from ddtree_metrics.records import DecodeBatch, Event, PrefillBatch, ServerStart, TreeStep

_A = re.A
_HEAD = re.compile(
    r"\s*(?:\((?P<role>[\w-]{1,40}) pid=(?P<pid>\d{1,10})\)\s*)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR) (?P<month>\d\d)-(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)\s+\[?[\w./-]{1,80}:\d{1,6}\]\s*)?",
    _A,
)
_N = r"\s*([^\s();|/%]*[^\s();|/,%])"
_ENGINE = r"(?:Engine (?P<engine>\d{1,6}): |\d{1,6} Engines Aggregated: )?"
_WINDOW = re.compile(
    rf"{_ENGINE}Avg prompt throughput:{_N} tokens/s, Avg generation throughput:{_N} tokens/s, Running:{_N} reqs, (?P<rest>.*)", _A | re.S
)
_DRAFTS = re.compile(r"(?:SpecDecoding|Speculative) metrics: (?P<rest>.*)", _A | re.S)
_ITERATION = re.compile(
    rf"{_ENGINE}Iteration\({_N}\):{_N} context requests,{_N} context tokens,{_N} generation requests,{_N} generation tokens, "
    rf"iteration elapsed time:{_N} ms(?P<rest>.*)",
    _A | re.S,
)
_ARGS = re.compile(r"non-default args: (?=\{)", _A)
_TODAY = datetime.now(timezone.utc)


def _head(body: str) -> tuple[str, dict[str, Any]]:
    """Take the head off a line; return what is behind it, and what it says of process and time."""
    found = _HEAD.match(body)
    assert found is not None  # all of its parts may be missing
    said: dict[str, Any] = {}
    if found["pid"] is not None:
        said["pid"] = int(number(found["pid"], "int"))
    if found["clock"] is not None:
        at = _guessed(int(found["month"]), int(found["day"]), found["clock"])
        if at is not None:
            said[STAMP] = Head(naive_us=at, resolution_us=1_000_000, flag="year_guessed")
    return body[found.end() :], said


@functools.lru_cache(maxsize=256)
def _guessed(month: int, day: int, clock: str) -> int | None:
    """Return a stamp without a year as of the latest year in which it lies in the past."""
    for year in (_TODAY.year, _TODAY.year - 1, _TODAY.year - 2, _TODAY.year - 3):
        try:
            made = datetime.strptime(f"{year}-{month:02}-{day:02} {clock}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
        except ValueError:
            continue
        if made <= _TODAY + timedelta(days=1):
            return round(made.timestamp()) * 1_000_000
    return None


def _whose(found: re.Match[str]) -> dict[str, Any]:
    return {} if found["engine"] is None else {"dp_rank": int(number(found["engine"], "int"))}


_WINDOW_KEYS = {"Waiting": "queued", "Pending": "queued"}
_SHOWN = ("Prefix cache hit rate", "External prefix cache hit rate", "MM cache hit rate", "Swapped", "Deferred", "Preemptions", "Corrupted")


def read_window(body: str) -> dict[str, Any] | None:
    """Read the line of a window: tokens a second of the whole engine, requests at its end."""
    rest, said = _head(body)
    found = _WINDOW.match(rest)
    if found is None:
        if re.match(rf"{_ENGINE}Avg prompt throughput:", rest, _A):
            raise Broken("cut")
        return None
    pairs = pairs_of(found["rest"])
    made: dict[str, Any] = {**said, **_whose(found)}
    made["prompt_throughput"] = float(number(found[2], "float"))
    made["gen_throughput"] = float(number(found[3], "float"))
    made["running"] = int(number(found[4], "int"))
    extra: dict[str, str] = {}
    for name, value in pairs.items():
        if name in _WINDOW_KEYS:
            made[_WINDOW_KEYS[name]] = int(number(value.split(" ")[0], "int"))
        elif name.endswith("KV cache usage") and (not name.startswith("CPU") or "token_usage" not in made):
            made["token_usage"] = share_of(value)
        elif name in _SHOWN:
            extra[name] = clean_value(value)[:40]
    if "queued" not in made:
        raise Broken("cut")
    return {**made, **({"extra": extra} if extra else {})}


def read_drafts(body: str) -> dict[str, Any] | None:
    """Read what was drafted in a window; the numbers of the oldest engine are sums since its start, and stay in ``extra``."""
    rest, said = _head(body)
    found = _DRAFTS.match(rest)
    return None if found is None else {**said, **drafts_in(pairs_of(found["rest"]))}


def read_iteration(body: str) -> dict[str, Any] | None:
    """Read one engine step without a prompt in it: its time, and the tokens that were scheduled, which are no tokens made."""
    made = _iteration(body)
    if made is None or made["context"][0]:
        return None
    requests, tokens = made["generation"]
    extra = {**made["extra"], "generation tokens": str(tokens)}
    return {**made["said"], "batch_size": requests, "steps": 1, "step_ms": made["ms"], "extra": extra}


def read_prefill(body: str) -> dict[str, Any] | None:
    """Read one engine step with a prompt in it."""
    made = _iteration(body)
    if made is None or not made["context"][0]:
        return None
    new, tokens = made["context"]
    iteration = int(made["extra"].pop("iteration"))
    extra = {**made["extra"], "iteration elapsed time": f"{made['ms']:g} ms"}
    return {
        **made["said"], "new_seqs": new, "new_tokens": tokens, "running": made["generation"][0], "iteration": iteration, "extra": extra
    }  # fmt: skip


def _iteration(body: str) -> dict[str, Any] | None:
    rest, said = _head(body)
    found = _ITERATION.match(rest)
    if found is None:
        if re.match(rf"{_ENGINE}Iteration\(\d+\):", rest, _A):
            raise Broken("cut")
        return None
    counts = [int(number(found[i], "int")) for i in (3, 4, 5, 6)]
    extra = {"iteration": str(int(number(found[2], "int", wide=True)))}
    if "(dummy)" in found["rest"]:
        extra["dummy"] = "True"
    ms = float(number(found[7], "float"))
    return {"said": {**said, **_whose(found)}, "context": counts[:2], "generation": counts[2:], "ms": ms, "extra": extra}


def read_args(body: str) -> dict[str, Any] | None:
    """Read the arguments that differ from the defaults, as the server prints them when it starts."""
    rest, said = _head(body)
    found = _ARGS.match(rest)
    if found is None:
        return None
    items, whole = scan_items(rest, found.end() + 1)
    args = safe_args(items)
    made: dict[str, Any] = {**said, "args": args, "args_cut": not whole}
    inner = dict(scan_items(args.get("speculative_config", ""), 1)[0])
    method = inner.get("method", "").strip("'\"")
    if method:
        made["algorithm"] = method[:80]
    for column, text in (
        ("num_draft_tokens", inner.get("num_speculative_tokens")),
        ("context_len", args.get("max_model_len")),
        ("tp_size", args.get("tensor_parallel_size")),
        ("dp_size", args.get("data_parallel_size")),
    ):
        if text is not None and re.fullmatch(r"\d{1,9}", text, _A):
            made[column] = int(text)
    return made


_VERSION = re.compile(r"(?:vLLM API server version |Initializing an? (?:V1 )?LLM engine \(v)(?P<version>\d[\w.+]{0,40})", _A)


def read_version(body: str) -> dict[str, Any] | None:
    """Read which release starts: the one line that every server prints, however little it says of its work."""
    rest, said = _head(body)
    found = _VERSION.match(rest)
    return None if found is None else {**said, "kind": "notice", "detail": f"vLLM {found['version']} starts"}


_API = "(APIServer pid=27238) INFO 11-30 08:30:48 [loggers.py:335] "
WINDOW = Line(
    DecodeBatch,
    marker="Avg prompt throughput:",
    anywhere=True,
    reader=read_window,
    samples=(
        Sample(
            _API + "Engine 000: Avg prompt throughput: 31.5 tokens/s, Avg generation throughput: 49.9 tokens/s, Running: 1 "
            "reqs, Waiting: 2 "
            "reqs, CPU KV cache usage: 0.4%, Prefix cache hit rate: 0.0%",
            {
                "prompt_throughput": 31.5, "gen_throughput": 49.9, "running": 1, "queued": 2, "token_usage": 0.004, "pid": 27238,
                "dp_rank": 0, "accept_len": None, "extra": {"Prefix cache hit rate": "0.0%"},
            },
        ),
        Sample(
            "INFO 06-06 14:20:34 [loggers.py:116] Engine 003: Avg prompt throughput: 11244.6 tokens/s, Avg generation throughput: 267.6 "
            "tokens/s, Running: 337 reqs, Waiting: 633 reqs, GPU KV cache usage: 9.5%, Prefix cache hit rate: 0.5%",
            {"running": 337, "queued": 633, "token_usage": 0.095, "dp_rank": 3, "gen_throughput": 267.6},
        ),
        Sample(
            "INFO 08-27 15:21:10 metrics.py:406] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 75.3 tokens/s, Running: 6 "
            "reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 9.2%, CPU KV cache usage: 0.0%.",
            {"running": 6, "queued": 0, "token_usage": 0.092, "dp_rank": None, "extra": {"Swapped": "0 reqs"}},
        ),
        Sample(
            _API + "Engine 000: Avg prompt throughput: nan tokens/s, Avg generation throughput: 49.9 tokens/s, Running: 1 reqs, Waiting: 0 "
            "reqs, GPU KV cache usage: 0.4%",
            broken="bad_number",
        ),
        Sample(_API + "Engine 000: Avg prompt throughput: 31.5 tokens/s, Avg gener", broken="cut"),
        Sample(
            "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 75.3 tokens/s, Running: 6 reqs, ",
            broken="cut",
        ),
        Sample("what does Avg prompt throughput: 3 tokens/s mean?"),
    ),
)  # fmt: skip

DRAFTS = Line(
    DecodeBatch,
    marker="SpecDecoding metrics:",
    also=("Speculative metrics:",),
    anywhere=True,
    reader=read_drafts,
    samples=(
        Sample(
            "(APIServer pid=27238) INFO 11-30 08:30:48 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 2.38, "
            "Accepted throughput: "
            "29.14 tokens/s, Drafted throughput: 84.36 tokens/s, Accepted: 76 tokens, Drafted: 220 tokens, Per-position acceptance rate: "
            "0.618, 0.382, 0.200, 0.182, Avg Draft acceptance rate: 34.5%",
            {
                "mean_accept_len": 2.38, "accepted": 76, "drafted": 220, "accepted_throughput": 29.14, "drafted_throughput": 84.36,
                "position_accept_rates": [0.618, 0.382, 0.2, 0.182], "accept_rate": 0.345, "accept_len": None, "pid": 27238,
            },
        ),
        Sample(
            "INFO 06-06 14:20:34 [metrics.py:86] SpecDecoding metrics: Draft acceptance rate: 38.8%, Mean acceptance length: "
            "2.16, Accepted: "
            "150 tokens, Drafted: 387 tokens, Per-position acceptance rate: 0.543, 0.357, 0.264",
            {"mean_accept_len": 2.16, "accepted": 150, "drafted": 387, "accept_rate": 0.388, "drafted_throughput": None},
        ),
        Sample(
            "SpecDecoding metrics: Draft acceptance rate: 100.0%, Accepted: 66 tokens, Drafted: 66 tokens",
            {"accepted": 66, "drafted": 66, "accept_rate": 1.0, "mean_accept_len": None},
        ),
        Sample(
            "Speculative metrics: Draft acceptance rate: 1.000, Number of accepted tokens: 66, Number of draft tokens: 66, ",
            {"accepted": 66, "drafted": 66, "accept_rate": 1.0},
        ),
        Sample(
            "INFO 10-16 19:05:47 metrics.py:367] Speculative metrics: Draft acceptance rate: 0.642, System efficiency: 0.598, Number of "
            "speculative tokens: 3, Number of accepted tokens: 8547, Number of draft tokens: 13311, Number of emitted tokens: 10616.",
            {
                "accepted": None, "drafted": None, "accept_rate": 0.642,
                "extra": {
                    "Number of accepted tokens": "8547", "Number of draft tokens": "13311", "Number of emitted tokens": "10616",
                    "Number of speculative tokens": "3",
                },
            },
        ),
        Sample(
            "(APIServer pid=1) INFO 09-04 11:01:16 [metrics.py:125] SpecDecoding metrics: Mean acceptance length: 6.82, "
            "Current speculative "
            "depth: 7, Accepted throughput: 6.46 tokens/s, Drafted throughput: 7.77 tokens/s, Accepted: 256 tokens, Drafted: 308 tokens, "
            "Per-position acceptance rate: 1.000, 1.000, 1.000, 1.000, 0.795, 0.614, 0.409, Avg Draft acceptance rate: 83.1%",
            {"mean_accept_len": 6.82, "accepted": 256, "extra": {"Current speculative depth": "7"}},
        ),
        Sample(
            "SpecDecoding metrics: Mean acceptance length: 1.00, Accepted throughput: 0.00 tokens/s, Drafted throughput: 20.70 tokens/s, "
            "Accepted: 0 tokens, Drafted: 207 tokens, Per-position acceptance rate: 0.000, 0.000, 0.000, Avg Draft acceptance rate: 0.0%",
            {"mean_accept_len": 1.0, "accepted": 0, "drafted": 207, "accept_rate": 0.0},
        ),
        Sample(
            "SpecDecoding metrics: Mean acceptance length: nan, Accepted: 0 tokens, Drafted: 0 tokens, Avg Draft acceptance rate: nan%",
            {"mean_accept_len": None, "accepted": 0, "drafted": 0, "accept_rate": None},
        ),
        Sample("SpecDecoding metrics: Mean acceptance length: 2.38, Accepted thr", broken="cut"),
        Sample("SpecDecoding metrics: Mean acceptance length: 2.38, Accepted: 1,076 tokens, Drafted: 220 tokens", broken="bad_number"),
        Sample(
            "DiffusionDecoding metrics: Committed token throughput: 1.00 tokens/s, Mean denoising steps per canvas: 2.00, "
            "Committed: 3 tokens, "
            "Denoising steps: 4, Canvas positions evaluated: 5"
        ),
    ),
)  # fmt: skip

_STEP = "(APIServer pid=27584) INFO 11-30 08:32:33 [loggers.py:199] Engine 000: Iteration"
ITERATION = Line(
    TreeStep,
    marker="Iteration(",
    anywhere=True,
    reader=read_iteration,
    samples=(
        Sample(
            _STEP + "(40): 0 context requests, 0 context tokens, 3 generation requests, 9 generation tokens, iteration elapsed time: "
            "13.49 ms, "
            "CPU KV cache usage: 0.2%",
            {
                "batch_size": 3, "steps": 1, "step_ms": 13.49, "nodes": None, "commit_lens": None, "dp_rank": 0,
                "extra": {"iteration": "40", "generation tokens": "9"},
            },
        ),
        Sample(
            "(EngineCore_DP0 pid=2010410) INFO 12-22 21:44:40 [core.py:349] Iteration(515): 0 context requests, 0 context "
            "tokens, 20 generation "
            "requests, 20 generation tokens, iteration elapsed time: 10.99 ms",
            {"batch_size": 20, "step_ms": 10.99},
        ),
        Sample(_STEP + "(40): 0 context requests, 0 context tok", broken="cut"),
        Sample("Iteration(5) of the loop"),
    ),
)  # fmt: skip

PREFILL = Line(
    PrefillBatch,
    marker="Iteration(",
    anywhere=True,
    reader=read_prefill,
    samples=(
        Sample(
            "(EngineCore_DP1 pid=1205) INFO 07-09 03:15:05 [v1/engine/core.py:359] Iteration(15): 2 context requests, 7986 "
            "context tokens, 14 "
            "generation requests, 14 generation tokens, iteration elapsed time: 1115.64 ms",
            {
                "new_seqs": 2, "new_tokens": 7986, "running": 14, "iteration": 15, "cached_tokens": None,
                "extra": {"iteration elapsed time": "1115.64 ms"},
            },
        ),
        Sample("Iteration(5) of the loop"),
    ),
)  # fmt: skip

ARGS = Line(
    ServerStart,
    marker="non-default args: {",
    anywhere=True,
    reader=read_args,
    samples=(
        Sample(
            "(APIServer pid=27238) INFO 11-30 08:30:19 [api_utils.py:286] non-default args: {'model': 'm', 'max_model_len': "
            "4096, 'api_key': "
            "['sk-abcdefgh12345678'], 'speculative_config': {'method': 'draft_model', 'num_speculative_tokens': 4}}",
            {
                "algorithm": "draft_model", "num_draft_tokens": 4, "context_len": 4096, "args_cut": False,
                "args": {
                    "model": "m", "max_model_len": "4096", "api_key": "<redacted>",
                    "speculative_config": "{'method': 'draft_model', 'num_speculative_tokens': 4}",
                },
            },
        ),
        Sample("non-default args: {'model': 'm', 'max_mod", {"args": {"model": "m"}, "args_cut": True}),
        Sample("the non-default args: {}"),
    ),
)  # fmt: skip

VERSION = Line(
    Event,
    marker="vLLM API server version ",
    also=("Initializing a V1 LLM engine (v", "Initializing an LLM engine (v"),
    anywhere=True,
    reader=read_version,
    samples=(
        Sample("INFO 06-06 14:20:30 [api_server.py:1289] vLLM API server version 0.9.1", {"kind": "notice", "detail": "vLLM 0.9.1 starts"}),
        Sample(
            "(EngineCore pid=27295) INFO 11-30 08:30:33 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='m'",
            {"kind": "notice", "detail": "vLLM 0.32.0 starts", "pid": 27295},
        ),
        Sample("which vLLM API server version 0.9.1 is meant?"),
    ),
)

VLLM = Dialect(
    name="vllm",
    about="vLLM: windows of some seconds, not steps",
    more="--enable-logging-iteration-details prints the time of every step, --per-request-spec-decode-metrics puts "
    "acceptance into the answers",
    lines=(WINDOW, DRAFTS, ITERATION, PREFILL, ARGS, VERSION),
)
