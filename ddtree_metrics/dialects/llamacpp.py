"""What llama.cpp's server (and ik_llama.cpp, and forks) writes: a block of lines at the end of each request, and a few while it runs.

No line is one step. The stock log says of each request how long its prompt was, how many tokens it made in what time, how many drafts
were checked and how many agreed with; ``requests/slots.py`` folds the lines into requests. Some releases print a block as one message of
several lines, of which only the first has a head: journald splits them, and the lines without a head belong to the one before.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

from ddtree_metrics.dialects.base import Broken, Dialect, Line, Sample
from ddtree_metrics.dialects.cast import number
from ddtree_metrics.dialects.secrets import clean_value
from ddtree_metrics.dialects.stamps import STAMP
from ddtree_metrics.records import DecodeBatch, Event, PrefillBatch, RequestLine, ServerStart

_A = re.A
_HEAD = re.compile(
    r"\s*(?:\[\d{1,7}\]\s+)?"  # a router's port
    r"(?:(?P<stamp>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)\s*\|?\s*)?"
    r"(?:(?P<minute>\d{1,7})\.(?P<second>\d\d)\.(?P<ms>\d{3})\.(?P<us>\d{3}) [A-Z] +)?"
    r"(?:INFO \[[^\]]{0,60}\] )?",
    _A,
)
_SLOT = re.compile(
    r"slot\s+(?P<function>[\w:]{1,24}(?:\(\))?):\s+id\s+(?P<slot>\d+)\s+\|\s+task\s+(?P<task>-?\d+)\s*\|\s*(?P<rest>.*)", _A | re.S
)
_N = r"\s*([^\s();|/]*[^\s();|/,])"
"""A value: whatever stands there, so that one that is no number breaks the line and does not hide it."""
_PROMPT_TIME = re.compile(rf"prompt eval time\s*={_N}\s+ms\s*/{_N}\s+tokens\b", _A)
_EVAL_TIME = re.compile(rf"eval time\s*={_N}\s+ms\s*/{_N}\s+(tokens|runs)\b", _A)
_DRAFTS = re.compile(
    rf"draft acceptance(?: rate)?\s*={_N}\s*\({_N}\s+accepted\s*/{_N}\s+generated\)"
    rf"(?:,\s*mean (?:acceptance length|len)\s*={_N})?(?:,\s*acceptance rate per position\s*=\s*\(([^()]*)\))?",
    _A,
)
_POSITIONS = re.compile(r"acc per pos\s*=\s*\(([^()]*)\)", _A)
_RELEASED = re.compile(rf"stop processing: n_(?:tokens|past)\s*={_N},\s*truncated\s*={_N}", _A)
_PROMPT = re.compile(rf"new prompt\b.*?\b(?:n_prompt_tokens|task\.n_tokens)\s*={_N}\s*$", _A)
_WHOLE_PROMPT = re.compile(rf"need to evaluate at least \S+ token.*\(n_past\s*={_N},\s*task\.n_tokens\(\)\s*={_N}\)", _A)
_CACHED = re.compile(rf"(?:n_past was set to{_N}\s*$|cached n_tokens\s*={_N},)", _A)
_VERIFIED = re.compile(rf"accepted\s*{_N}/{_N}\s+draft tokens\s*$", _A)
_CANCELLED = re.compile(rf"srv\s+stop: cancel task, id_task\s*={_N}\s*$", _A)
_REFUSED = re.compile(rf"srv\s+send_error: task id\s*={_N},\s*error:", _A)
_IK_RELEASED = re.compile(r"slot released\s*\|(?P<rest>.*)", _A | re.S)
_IK_PAIR = re.compile(r"(\w+)=(\S+)", _A)


def _head(body: str) -> tuple[str, dict[str, Any]]:
    """Take the head off a line; return what is behind it and what it says."""
    found = _HEAD.match(body)
    assert found is not None  # all of its parts may be missing
    said: dict[str, Any] = {}
    if found["minute"] is not None:
        seconds = int(found["minute"]) * 60 + int(found["second"])
        said["since_start_us"] = seconds * 1_000_000 + int(found["ms"]) * 1000 + int(found["us"])
    if found["stamp"] is not None:
        stamp = found["stamp"].replace("T", " ").replace(",", ".")
        try:
            when = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S.%f" if "." in stamp else "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
        except ValueError:
            return body[found.end() :], said
        said[STAMP] = round(when.timestamp() * 1e6)
    return body[found.end() :], said


def _int(text: str, wide: bool = True) -> int:
    return int(number(text, "int", wide))


def _rates(text: str) -> tuple[float, ...]:
    return tuple(float(number(part.strip(), "float")) for part in text.split(",") if part.strip())


def _slot(body: str) -> tuple[str, dict[str, Any]]:
    """Take head, slot and task off a line; a task of -1 is none."""
    rest, said = _head(body)
    found = _SLOT.match(rest)
    if found is None:
        return rest, said
    task = None if found["task"].startswith("-") else _int(found["task"])
    said["_function"] = found["function"]
    return found["rest"], {**said, "slot": _int(found["slot"], wide=False), "task": task}


def read_timings(body: str) -> dict[str, Any] | None:
    """Read one line of the block that ends a request: the times, the drafts; or the line that only names the request."""
    rest, said = _slot(body)
    function = said.pop("_function", None)
    if function is None and rest != rest.lstrip() and not re.match(r"\s*(?:prompt eval|eval|draft acceptance|acc per pos)", rest, _A):
        return None
    text = rest.strip()
    if function not in (None, "print_timing", "print_timings"):
        return None
    if function is not None and not text:
        return {"event": "timings", **said}
    found = _PROMPT_TIME.match(text)
    if found:
        return {"event": "prefill_timing", **said, "prefill_ms": float(number(found[1], "float")), "prefill_tokens": _int(found[2])}
    found = _EVAL_TIME.match(text)
    if found:
        if found[3] == "runs":  # a tool's own summary
            return None
        return {"event": "decode_timing", **said, "decode_ms": float(number(found[1], "float")), "completion_tokens": _int(found[2])}
    found = _DRAFTS.match(text)
    if found:
        number(found[1], "float")
        made = {"event": "drafts", **said, "accepted_drafts": _int(found[2]), "proposed_drafts": _int(found[3])}
        if found[4] is not None:
            made["mean_accept_len"] = float(number(found[4], "float"))
        if found[5] is not None:
            made["position_accept_rates"] = _rates(found[5])
        return made
    found = _POSITIONS.match(text)
    if found:
        return {"event": "drafts", **said, "position_accept_rates": _rates(found[1])}
    if re.match(r"(?:prompt )?eval time\s*=|draft acceptance(?: rate)?\s*=|acc per pos\s*=", text, _A):
        raise Broken("cut")
    return None


def read_slot(body: str) -> dict[str, Any] | None:
    """Read what happens to a slot: a request gets it, its prompt, what was cached of it, a verified draft, its release."""
    rest, said = _slot(body)
    if said.pop("_function", None) is None:
        return None
    if said["task"] is None:
        return None
    if rest.startswith("processing task"):
        return {"event": "assigned", **said}
    found = _RELEASED.match(rest)
    if found:
        truncated = _int(found[2])
        return {
            "event": "released", **said, "end_context": _int(found[1]), **({"extra": {"truncated": str(truncated)}} if truncated else {})
        }  # fmt: skip
    if rest.startswith("stop processing"):
        raise Broken("cut")
    found = _PROMPT.match(rest)
    if found:
        return {"event": "prompt", **said, "prompt_tokens": _int(found[1])}
    found = _WHOLE_PROMPT.match(rest)
    if found:
        return {"event": "prompt", **said, "prompt_tokens": _int(found[2])}
    found = _CACHED.match(rest)
    if found:
        return {"event": "cached", **said, "cached_tokens": _int(found[1] or found[2])}
    found = _VERIFIED.match(rest)
    if found:
        return {"event": "verified", **said, "accepted_drafts": _int(found[1]), "proposed_drafts": _int(found[2])}
    return None


def read_task(body: str) -> dict[str, Any] | None:
    """Read that a task was cancelled, or refused."""
    rest, said = _head(body)
    found = _CANCELLED.match(rest)
    if found:
        return {"event": "cancelled", **said, "task": _int(found[1])}
    found = _REFUSED.match(rest)
    return {"event": "refused", **said, "task": _int(found[1])} if found else None


def read_released(body: str) -> dict[str, Any] | None:
    """Read ik_llama.cpp's ``slot released | … id_slot=0 id_task=2281 … n_past=40048 …``."""
    rest, said = _head(body)
    found = _IK_RELEASED.match(rest)
    if found is None:
        return None
    pairs = dict(_IK_PAIR.findall(found["rest"]))
    if "id_slot" not in pairs or "id_task" not in pairs:
        raise Broken("missing_fields")
    made = {"event": "released", **said, "slot": _int(pairs["id_slot"], wide=False), "task": _int(pairs["id_task"])}
    if "n_past" in pairs:
        made["end_context"] = _int(pairs["n_past"])
    if pairs.get("truncated") == "true":
        made["extra"] = {"truncated": "1"}
    if re.fullmatch(r"\d{9,10}", pairs.get("timestamp", ""), _A):
        made[STAMP] = int(pairs["timestamp"]) * 1_000_000
    return made


_PROGRESS = re.compile(rf"n_(?:decoded|gen)\s*={_N},\s*tg\s*={_N}\s+t/s(?:,\s*tg_3s\s*={_N}\s+t/s)?\s*$", _A)


def read_progress(body: str) -> dict[str, Any] | None:
    """Read how far a running request is: its own tokens a second, not the server's."""
    rest, said = _slot(body)
    if said.pop("_function", None) is None:
        return None
    found = _PROGRESS.match(rest.strip())
    if found is None:
        if re.match(r"n_(?:decoded|gen)\s*=", rest, _A):
            raise Broken("cut")
        return None
    mean = float(number(found[2], "float"))
    recent = float(number(found[3], "float")) if found[3] is not None else mean
    extra = {"slot": str(said["slot"]), "n_decoded": str(_int(found[1])), "tg": found[2]}
    if said["task"] is not None:
        extra["task"] = str(said["task"])
    stamp = {STAMP: said[STAMP]} if STAMP in said else {}
    return {"gen_throughput": recent, "extra": extra, **stamp}


_PREFILL = re.compile(
    rf"prompt processing(?: progress)?,\s*n_tokens\s*={_N},.*?progress\s*={_N}(?:,\s*t\s*={_N}\s+s\s*/{_N}\s+tokens per second)?\s*$", _A
)


def read_prefill(body: str) -> dict[str, Any] | None:
    """Read how far a prompt is; the tokens are those computed so far, of this pass and of those before it."""
    rest, said = _slot(body)
    if said.pop("_function", None) is None:
        return None
    found = _PREFILL.match(rest.strip())
    if found is None:
        return None
    number(found[2], "float")
    extra = {"slot": str(said["slot"]), "n_tokens": str(_int(found[1])), "progress": found[2]}
    if said["task"] is not None:
        extra["task"] = str(said["task"])
    stamp = {STAMP: said[STAMP]} if STAMP in said else {}
    made: dict[str, Any] = {"new_seqs": 1, "extra": extra, **stamp}
    if found[4] is not None:
        made["input_throughput"] = float(number(found[4], "float"))
    return made


_STARTS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(r"srv\s+(?:init|main):\s+build_info:\s*(\S+)", _A), ("build",)),
    (re.compile(r"(?:main: )?build: (\d+ \(\w+\))", _A), ("build",)),
    (re.compile(r"srv\s+load_model: loading model '([^']*)'", _A), ("model",)),
    (re.compile(r"common_speculative_init_result: loading draft model '([^']*)'", _A), ("model_draft",)),
    (re.compile(r"srv\s+load_model: loading draft model '([^']*)'", _A), ("model_draft",)),
    (re.compile(r"srv\s+load_model: initializing, n_slots = (\d+), n_ctx_slot = (\d+)", _A), ("parallel", "ctx_slot")),
    (re.compile(r"(?:spec|cmn)?\s*common_specu\w*: adding speculative implementation '([^']*)'", _A), ("spec_type",)),
    (
        re.compile(r"spec\s+common_specu\w*:\s+- n_max=(\d+), n_min=(\d+), p_min=([\d.]+)", _A),
        ("draft_n_max", "draft_n_min", "draft_p_min"),
    ),
    (re.compile(r"cmn\s+common_param\w*: common_params_print_info: verbosity = (\d+)", _A), ("verbosity",)),
    (re.compile(r"cmn\s+common_init_?: llama threadpool init, n_threads = (\d+)", _A), ("threads",)),
    (re.compile(r"cmn\s+init: llama threadpool init, n_threads = (\d+)", _A), ("threads",)),
)


def read_start(body: str) -> dict[str, Any] | None:
    """Read one of the lines of a start; what it says is a part of ``args``, for the command line is not printed."""
    rest, said = _head(body)
    for pattern, names in _STARTS:
        found = pattern.match(rest)
        if found:
            args = {name: clean_value(value)[:400] for name, value in zip(names, found.groups(), strict=True)}
            made: dict[str, Any] = {"args": args}
            if "ctx_slot" in args:
                made["context_len"] = _int(args["ctx_slot"])
            if "spec_type" in args:
                made["algorithm"] = args["spec_type"]
            if "draft_n_max" in args:
                made["num_draft_tokens"] = _int(args["draft_n_max"], wide=False)
            return {**made, **({STAMP: said[STAMP]} if STAMP in said else {})}
    return None


def _read_event(pattern: str, kind: str) -> Any:
    wanted = re.compile(pattern, _A)

    def read(body: str) -> dict[str, Any] | None:
        rest, said = _head(body)
        found = wanted.match(rest)
        stamp = {STAMP: said[STAMP]} if STAMP in said else {}
        return {"kind": kind, "detail": found[0].strip()[:200], **stamp} if found else None

    return read


_END = "0.06.895.980 I slot print_timing: id  1 | task 0 | "
TIMINGS = Line(
    RequestLine,
    marker="print_timing: id",
    also=("prompt eval time =", "eval time =", "draft acceptance =", "draft acceptance rate =", "acc per pos ="),
    anywhere=True,
    reader=read_timings,
    samples=(
        Sample(
            _END + "prompt eval time =     300.11 ms /    20 tokens (   15.01 ms per token,    66.64 tokens per second)",
            {
                "event": "prefill_timing", "slot": 1, "task": 0, "prefill_ms": 300.11, "prefill_tokens": 20, "since_start_us": 6_895_980,
                "completion_tokens": None,
            },
        ),
        Sample(
            "       eval time =    9840.04 ms /   200 tokens (   49.20 ms per token,    20.33 tokens per second)",
            {"event": "decode_timing", "slot": None, "decode_ms": 9840.04, "completion_tokens": 200, "since_start_us": None},
        ),
        Sample("57.42.052.753 I slot print_timing: id  0 | task 854 |", {"event": "timings", "slot": 0, "task": 854}),
        Sample("slot print_timing: id 0 | task -1 |", {"event": "timings", "slot": 0, "task": None}),
        Sample(
            "draft acceptance rate = 0.23026 (   70 accepted /   304 generated)",
            {"event": "drafts", "accepted_drafts": 70, "proposed_drafts": 304, "mean_accept_len": None},
        ),
        Sample(
            _END + "draft acceptance = 0.64479 (  167 accepted /   259 generated), mean acceptance length =  2.92, "
            "acceptance rate per position = (0.805, 0.632, 0.483)",
            {
                "event": "drafts", "accepted_drafts": 167, "proposed_drafts": 259, "mean_accept_len": 2.92,
                "position_accept_rates": [0.805, 0.632, 0.483],
            },
        ),
        Sample(
            "2026-05-17 11:04:29.854 | 4.01.806.856 I slot print_timing: id  0 | task 0 | draft acceptance = 0.65959 ( 5995 accepted / "
            " 9089 generated), mean len =  4.30",
            {"event": "drafts", "mean_accept_len": 4.3, "accepted_drafts": 5995, "since_start_us": 241_806_856},
        ),
        Sample(_END + "     acc per pos = (1.000, 0.818)", {"event": "drafts", "position_accept_rates": [1.0, 0.818]}),
        Sample(_END + "draft acceptance = 0.64479 (  167 accep", broken="cut"),
        Sample(_END + "       eval time =     19.32 m", broken="cut"),
        Sample(_END + "       eval time =      nan ms /    20 tokens (    nan ms per token, nan tokens per second)", broken="bad_number"),
        Sample(_END + "       eval time =    1,024.00 ms /    20 tokens", broken="bad_number"),
        Sample(_END + "   graphs reused =          4"),
        Sample("llama_perf_context_print:        eval time =   27360.44 ms /   214 runs   (  127.85 ms per token)"),
        Sample("llama_print_timings: prompt eval time =  1.00 ms /  2 tokens"),
        Sample("what does eval time = 19.32 ms / 20 tokens mean?"),
    ),
)  # fmt: skip

SLOTS = Line(
    RequestLine,
    marker="processing task",
    also=(
        "stop processing: n_", "new prompt, n_ctx_slot", "need to evaluate at least", "n_past was set to", "cached n_tokens =",
        "draft tokens",
    ),
    anywhere=True,
    reader=read_slot,
    samples=(
        Sample(
            "0.00.324.663 I slot launch_slot_: id  2 | task 0 | processing task, is_child = 0",
            {"event": "assigned", "slot": 2, "task": 0, "since_start_us": 324_663},
        ),
        Sample(
            "4.01.809.152 I slot      release: id  0 | task 0 | stop processing: n_tokens = 8191, truncated = 1",
            {"event": "released", "end_context": 8191, "extra": {"truncated": "1"}},
        ),
        Sample(
            "slot      release: id  0 | task 118 | stop processing: n_past = 275, truncated = 0",
            {"event": "released", "end_context": 275, "task": 118, "extra": None},
        ),
        Sample(
            "slot update_slots: id  0 | task 118 | new prompt, n_ctx_slot = 4096, n_keep = 0, n_prompt_tokens = 2104",
            {"event": "prompt", "prompt_tokens": 2104},
        ),
        Sample(
            "0.35.328.927 I slot   operator(): id  0 | task 1428 | new prompt, n_ctx_slot = 16384, n_keep = 0, task.n_tokens = 512",
            {"event": "prompt", "prompt_tokens": 512, "slot": 0, "task": 1428},
        ),
        Sample(
            "0.01.2.3 W slot   operator(): id  0 | task 9 | need to evaluate at least 1 token for each active slot "
            "(n_past = 64, task.n_tokens() = 64)",
        ),
        Sample(
            "0.01.002.003 W slot   operator(): id  0 | task 9 | need to evaluate at least 1 token for each active slot "
            "(n_past = 64, task.n_tokens() = 64)",
            {"event": "prompt", "prompt_tokens": 64},
        ),
        Sample("0.01.002.004 W slot   operator(): id  0 | task 9 | n_past was set to 63", {"event": "cached", "cached_tokens": 63}),
        Sample(
            "0.00.544.634 I slot   operator(): id  2 | task 0 | accepted  6/ 6 draft tokens",
            {"event": "verified", "accepted_drafts": 6, "proposed_drafts": 6},
        ),
        Sample("0.00.352.981 I slot      release: id  2 | task 0 | stop processing: n_tok", broken="cut"),
        Sample("0.35.328.912 I slot launch_slot_: id  0 | task -1 | sampler chain: logits -> logit-bias"),
        Sample("a worker is processing task 12"),
    ),
)  # fmt: skip

TASKS = Line(
    RequestLine,
    marker="cancel task, id_task =",
    also=("send_error: task id =",),
    anywhere=True,
    reader=read_task,
    samples=(
        Sample("1.02.003.004 W srv          stop: cancel task, id_task = 901", {"event": "cancelled", "task": 901, "slot": None}),
        Sample(
            "1.02.003.004 E srv    send_error: task id = 57, error: request (6000 tokens) exceeds the available context size (5632 "
            "tokens), try increasing it",
            {"event": "refused", "task": 57},
        ),
        Sample("please cancel task, id_task = 901"),
    ),
)  # fmt: skip

IK_RELEASED = Line(
    RequestLine,
    marker="slot released",
    anywhere=True,
    reader=read_released,
    samples=(
        Sample(
            'INFO [           release_slots] slot released | tid="128799779225600" timestamp=1770857874 id_slot=0 id_task=2281 '
            "n_ctx=196096 n_past=40048 n_system_tokens=0 n_cache_tokens=40048 truncated=false",
            {"event": "released", "slot": 0, "task": 2281, "end_context": 40048},
        ),
        Sample("INFO [           release_slots] slot released | tid=", broken="missing_fields"),
        Sample("the slot released nothing"),
    ),
)  # fmt: skip

PROGRESS = Line(
    DecodeBatch,
    marker="n_decoded =",
    also=("n_gen =",),
    anywhere=True,
    reader=read_progress,
    samples=(
        Sample(
            "0.43.627.623 I slot print_timing: id  0 | task 144 | n_decoded =    300, tg =  99.66 t/s, tg_3s =  98.50 t/s",
            {"gen_throughput": 98.5, "running": None, "extra": {"slot": "0", "task": "144", "n_decoded": "300", "tg": "99.66"}},
        ),
        Sample(
            "57.38.073.660 I slot print_timing: id  0 | task 854 | n_decoded =    187, tg =   6.71 t/s",
            {"gen_throughput": 6.71, "extra": {"slot": "0", "task": "854", "n_decoded": "187", "tg": "6.71"}},
        ),
        Sample(
            "0.43.627.623 I slot print_timing: id  0 | task 144 | n_gen =    300, tg =  99.66 t/s, tg_3s = 101.20 t/s",
            {"gen_throughput": 101.2},
        ),
        Sample("0.43.627.623 I slot print_timing: id  0 | task 144 | n_gen =    300, tg =  99.", broken="cut"),
        Sample("0.00.1.2 D slot process_toke: id  0 | task 0 | n_gen = 1, n_remaining = 63, next token:  2132 ' poso'"),
    ),
)  # fmt: skip

PREFILL = Line(
    PrefillBatch,
    marker="prompt processing, n_tokens =",
    also=("prompt processing progress, n_tokens =",),
    anywhere=True,
    reader=read_prefill,
    samples=(
        Sample(
            "0.10.000.001 I slot print_timing: id  0 | task 7 | prompt processing, n_tokens =   2048, progress = 0.06, t =   3.16 s / "
            "647.88 tokens per second",
            {
                "new_seqs": 1, "new_tokens": None, "input_throughput": 647.88,
                "extra": {"slot": "0", "task": "7", "n_tokens": "2048", "progress": "0.06"},
            },
        ),
        Sample("prompt processing, n_tokens = many"),
    ),
)  # fmt: skip

STARTS = Line(
    ServerStart,
    marker="load_model: ",
    also=(
        "build_info:", "build: ", "loading draft model '", "adding speculative implementation '", "- n_max=",
        "common_params_print_info: verbosity =", "llama threadpool init, n_threads =",
    ),
    anywhere=True,
    reader=read_start,
    samples=(
        Sample("0.00.006.506 I srv    load_model: loading model 'models/tiny-target.gguf'", {"args": {"model": "models/tiny-target.gguf"}}),
        Sample(
            "0.00.256.048 I srv    load_model: initializing, n_slots = 3, n_ctx_slot = 5632, kv_unified = 'false'",
            {"context_len": 5632, "args": {"parallel": "3", "ctx_slot": "5632"}},
        ),
        Sample(
            "0.00.177.961 I common_speculative_init_result: loading draft model 'models/tiny-drafter-v1.gguf'",
            {"args": {"model_draft": "models/tiny-drafter-v1.gguf"}},
        ),
        Sample(
            "0.00.300.000 I spec common_specu: adding speculative implementation 'draft-simple'",
            {"algorithm": "draft-simple", "args": {"spec_type": "draft-simple"}},
        ),
        Sample("0.00.003.519 I srv          init: build_info: b0-unknown", {"args": {"build": "b0-unknown"}}),
        Sample("build: 5604 (1f63e75f) with gcc", {"args": {"build": "5604 (1f63e75f)"}}),
        Sample("0.00.006.469 I srv    load_model: prompt cache is enabled, size limit: 8192 MiB"),
        Sample("the build: 12 (ab) failed"),
    ),
)  # fmt: skip

EVENTS = (
    Line(
        Event,
        marker="initializing ...",
        anywhere=True,
        reader=_read_event(r"srv\s+init: initializing \.\.\.", "restart"),
        samples=(
            Sample("0.00.000.227 I srv          init: initializing ...", {"kind": "restart"}),
            Sample("something else is initializing ..."),
        ),
    ),
    Line(
        Event,
        marker="listening on http",
        also=("server is listening on",),
        anywhere=True,
        reader=_read_event(r"(?:srv\s+init: |main: )(?:server is )?listening on \S+", "ready"),
        samples=(
            Sample("0.00.279.846 I srv          init: listening on http://127.0.0.1:19511", {"kind": "ready"}),
            Sample("main: server is listening on http://127.0.0.1:8080 - starting the main loop", {"kind": "ready"}),
            Sample("proxy is listening on http://127.0.0.1:8080"),
        ),
    ),
    Line(
        Event,
        marker="main loop exited",
        also=("cleaning up before exit...",),
        anywhere=True,
        reader=_read_event(r"(?:~Server: main loop exited|srv\s+operator\(\): operator\(\): cleaning up before exit\.\.\.)", "exit"),
        samples=(
            Sample("9.00.279.846 I ~Server: main loop exited", {"kind": "exit"}),
            Sample("a main loop exited"),
        ),
    ),
)

LLAMACPP = Dialect(
    name="llamacpp",
    more="LLAMA_TRACE=1 in its environment prints a line for each draft that is checked, --verbosity 4 the length of each prompt",
    about="llama.cpp's server since 2024, ik_llama.cpp: one row a request, no line a step",
    lines=(TIMINGS, PROGRESS, PREFILL, SLOTS, TASKS, IK_RELEASED, STARTS, *EVENTS),
)
