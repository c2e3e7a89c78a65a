"""What TensorRT-LLM writes with ``print_iter_log``: one line an iteration, with the device time of the iteration *before* it.

``steps/late_times.py`` gives each time to the iteration that it is of. ``num_generation_tokens`` are the tokens in the pass, drafts
included: no line tells what was accepted. ``cached_kv_tokens`` is the context of the whole batch, and of the request where it is one.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

from ddtree_metrics.dialects.base import Broken, Dialect, Line, Sample
from ddtree_metrics.dialects.cast import number
from ddtree_metrics.dialects.stamps import STAMP, Head
from ddtree_metrics.records import PrefillBatch, TreeStep

_A = re.A
_HEAD = re.compile(
    r"\s*(?:\d{1,6}: )?(?:\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] )?"
    r"(?:\[TRT-LLM\] )?(?:\[[A-Z]\] )?(?:\[?_torch\]?)?(?:\[RANK \d{1,6}\])?\s*",
    _A,
)
_ITERATION = re.compile(r"iter = (\S+), global_rank = (\S+), rank = (\S+), (?P<rest>.*)", _A | re.S)
_PAIR = re.compile(r"'?(\w+)'?\s*[:=] (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|[^\s{}]*[^\s{},])", _A)
_WANTED = {"num_scheduled_requests", "num_ctx_requests", "num_ctx_tokens", "num_generation_tokens"}
PREVIOUS = "prev_device_step_time"
"""The key in ``extra`` of the time of the iteration before."""


def _line(body: str) -> tuple[dict[str, str], dict[str, Any]] | None:
    found = _HEAD.match(body)
    rest = body[found.end() :] if found else body
    line = _ITERATION.match(rest)
    if line is None:
        return None
    pairs = dict(_PAIR.findall(line["rest"]))
    if not pairs.keys() >= _WANTED or not line["rest"].rstrip().endswith("}"):
        raise Broken("cut")
    pairs["iteration"] = line[1].rstrip(",")
    said: dict[str, Any] = {"tp_rank": int(number(line[3].rstrip(","), "int"))}
    try:
        at = datetime.strptime(pairs.get("timestamp", ""), "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return pairs, said
    ranks = (None, None, said["tp_rank"], None)
    return pairs, {**said, STAMP: Head(naive_us=round(at.timestamp()) * 1_000_000, resolution_us=1_000_000, ranks=ranks)}


def _int(pairs: dict[str, str], name: str) -> int:
    return int(number(pairs[name], "int"))


def _extra(pairs: dict[str, str]) -> dict[str, str]:
    """Keep what has no column; times are checked, and N/A is none."""
    made = {"iteration": str(_int(pairs, "iteration"))}
    for name in (PREVIOUS, "host_step_time"):
        text = pairs.get(name, "N/A").removesuffix("ms")
        if text != "N/A":
            made[name] = f"{float(number(text, 'float')):g} ms"
    for name in ("num_generation_tokens", "cached_kv_tokens"):
        if name in pairs:
            made[name] = str(int(number(pairs[name], "int", wide=True)))
    return made


def read_step(body: str) -> dict[str, Any] | None:
    """Read an iteration without a prompt in it; its own time stands on the next line."""
    read = _line(body)
    if read is None:
        return None
    pairs, said = read
    batch = _int(pairs, "num_scheduled_requests")
    if _int(pairs, "num_ctx_requests") or not batch:
        return None
    made: dict[str, Any] = {**said, "batch_size": batch, "steps": 1, "extra": _extra(pairs)}
    if batch == 1 and "cached_kv_tokens" in made["extra"]:
        made["context_lens"] = [int(number(pairs["cached_kv_tokens"], "int"))]
    return made


def read_prefill(body: str) -> dict[str, Any] | None:
    """Read an iteration with a prompt in it, or one in which nothing ran."""
    read = _line(body)
    if read is None:
        return None
    pairs, said = read
    new, batch = _int(pairs, "num_ctx_requests"), _int(pairs, "num_scheduled_requests")
    if not new and batch:
        return None
    made = {**said, "new_seqs": new, "new_tokens": _int(pairs, "num_ctx_tokens"), "running": max(batch - new, 0)}
    extra = _extra(pairs)
    return {**made, "iteration": int(extra.pop("iteration")), "extra": extra}


_NEW = (
    "[07/22/2026-00:00:00] [TRT-LLM] [I] [_torch][RANK 0] iter = 259, global_rank = 0, rank = 0, num_scheduled_requests = 1, "
    "kv_cache_util = 0.100, currank_total_requests = 1/1, host_step_time = 5.0ms, prev_device_step_time = 7.3ms, "
    "timestamp = 2026-07-22 00:00:00, states = "
)
_OLD = (
    "iter = 12, global_rank = 0, rank = 0, currank_total_requests = 8/8, host_step_time = 7.4ms, prev_device_step_time = 6.9ms, "
    "timestamp = 2025-07-07 00:00:00, num_scheduled_requests: 8, states = "
)
_STATES = "{{'num_ctx_requests': {0}, 'num_ctx_tokens': {1}, 'num_generation_tokens': {2}}}"

STEP = Line(
    TreeStep,
    marker="iter = ",
    anywhere=True,
    reader=read_step,
    samples=(
        Sample(
            _OLD + _STATES.format(0, 0, 32),
            {
                "batch_size": 8, "steps": 1, "step_ms": None, "context_lens": None, "commit_lens": None, "tp_rank": 0,
                "extra": {"iteration": "12", PREVIOUS: "6.9 ms", "host_step_time": "7.4 ms", "num_generation_tokens": "32"},
            },
        ),
        Sample(
            _NEW + "{'num_ctx_requests': 0, 'num_ctx_tokens': 0, 'num_generation_tokens': 4, 'cached_kv_tokens': 63821}",
            {"batch_size": 1, "context_lens": [63821], "accepted_drafts": None},
        ),
        Sample(
            ("1: " + _NEW + _STATES.format(0, 0, 4)).replace("7.3ms", "N/Ams"),
            {"batch_size": 1, "extra": {"iteration": "259", "host_step_time": "5 ms", "num_generation_tokens": "4"}},
        ),
        Sample(_NEW[:200], broken="cut"),
        Sample(_NEW + "{'num_ctx_tokens': 0, 'num_generation_tokens': 4}", broken="cut"),
        Sample((_NEW + _STATES.format(0, 0, 4)).replace("7.3ms", "7,3ms"), broken="bad_number"),
        Sample("iter = 12 of the loop"),
    ),
)  # fmt: skip

PREFILL = Line(
    PrefillBatch,
    marker="iter = ",
    anywhere=True,
    reader=read_prefill,
    samples=(
        Sample(
            _OLD + _STATES.format(2, 7986, 6),
            {"new_seqs": 2, "new_tokens": 7986, "running": 6, "iteration": 12, "cached_tokens": None},
        ),
        Sample("iter = 12 of the loop"),
    ),
)

TENSORRT_LLM = Dialect(
    name="tensorrt_llm",
    about="TensorRT-LLM with print_iter_log: the time of every step",
    more="what was accepted stands in its answers only, never in its log",
    lines=(STEP, PREFILL),
)
