"""What is known about the server under test: kind, version, flags, and its counters of verify steps.

All of it is decoration of a measurement: what has not the expected form is left out.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from typing import Any

from ddtree_metrics.bench.answers import TimedAnswer
from ddtree_metrics.bench.client import Client
from ddtree_metrics.dialects.secrets import kept

_CHANGES = re.compile(r"media_marker|internal_states|throughput|is_sleeping|memory_usage|step_time|accept_length|uptime|timestamp")
_LONG = 200
_DEEPEST = 6
_MOST_FLAGS = 2000


def flatten(value: Any, prefix: str = "", depth: int = 0) -> dict[str, str]:
    """Turn nested settings into names and texts, without secrets, long texts and what changes by itself.

    Parameters
    ----------
    value : object
        What a server said of itself.
    prefix : str
        Put before each name.
    depth : int
        How deep it lies; below six nothing is read.
    """
    made: dict[str, str] = {}
    if not isinstance(value, dict) or depth > _DEEPEST:
        return made
    for name, item in value.items():
        full = f"{prefix}{name}"[-_LONG:]
        if item is None or _CHANGES.search(full):
            continue
        if isinstance(item, dict):
            made |= flatten(item, f"{full}.", depth + 1)
        elif isinstance(item, list) and any(isinstance(x, (dict, list)) for x in item):
            continue
        else:
            text = kept(full, str(item))
            made[full] = text if len(text) <= _LONG else "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:16]
        if len(made) >= _MOST_FLAGS:
            break
    return made


def identify(client: Client) -> dict[str, Any]:
    """Ask a server what it is; what it does not say is left out.

    Returns
    -------
    dict
        ``kind`` (``sglang``, ``vllm``, ``llama.cpp`` or ``unknown``), ``version``, ``flags`` (name to text), ``context_len``.
    """
    made: dict[str, Any] = {"kind": "unknown", "version": None, "flags": {}, "context_len": None}
    info = client.get("/server_info")
    if not isinstance(info, dict):
        info = client.get("/get_server_info")
    if isinstance(info, dict) and ("version" in info or "server_args" in info or "tp_size" in info):
        made |= {"kind": "sglang", "version": _text(info.get("version")), "flags": flatten(info)}
        made["context_len"] = _number(info.get("max_req_input_len")) or _number(info.get("context_length"))
        return made
    props = client.get("/props")
    if isinstance(props, dict) and "build_info" in props:
        # the defaults of sampling are not the server's setup; speculation and window are
        settings = props.pop("default_generation_settings", None)
        props["n_ctx"] = _at(settings, "n_ctx")
        props["speculative"] = _at(settings, "params", "speculative.types")
        props["model"] = _at(client.get("/models", root=False), "data", 0, "meta")
        made |= {"kind": "llama.cpp", "version": _text(props.get("build_info")), "flags": flatten(props)}
        made["context_len"] = _number(props.get("n_ctx"))
        return made
    version = _at(client.get("/version"), "version")
    if version is not None:
        made |= {"kind": "vllm", "version": _text(version)}
    served = _at(client.get("/models", root=False), "data", 0)
    if isinstance(served, dict):
        made["context_len"] = _number(served.get("max_model_len"))
        made["flags"] = flatten({k: served.get(k) for k in ("id", "root", "owned_by", "max_model_len")}, "model.")
        if made["kind"] == "unknown" and served.get("owned_by") in ("vllm", "sglang"):
            made["kind"] = served["owned_by"]
    return made


def _at(value: Any, *places: str | int) -> Any:
    """Return what lies at a place of plain values; ``None`` where there is no such place."""
    for place in places:
        if isinstance(value, dict) and isinstance(place, str):
            value = value.get(place)
        else:
            value = value[place] if isinstance(value, list) and isinstance(place, int) and place < len(value) else None
    return value


def _text(value: Any) -> str | None:
    return str(value)[:_LONG] if isinstance(value, (str, int, float)) else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**12 else None


class Tokenizer:
    """Ask the server's ``/tokenize`` for the length of a text; cheaper than a request, where it exists."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._form: dict[str, str] | None = None
        for field in ("content", "prompt"):  # llama.cpp's, and vLLM's and SGLang's
            if self._ask({field: "one two three"}):
                self._form = {"field": field}
                break

    @property
    def there(self) -> bool:
        """Whether the server has it."""
        return self._form is not None

    def count(self, text: str) -> int | None:
        """Return how many tokens a text has, without those of a chat template."""
        return self._ask({(self._form or {})["field"]: text}) if self._form else None

    def _ask(self, body: dict[str, Any]) -> int | None:
        if self._client.model:
            body = {**body, "model": self._client.model}
        said = self._client.get("/tokenize", body=body)
        if not isinstance(said, dict):
            return None
        tokens = said.get("tokens")
        return _number(said.get("count")) or (len(tokens) or None if isinstance(tokens, list) else None)


_COUNTERS = {
    "steps": ("vllm:spec_decode_num_drafts_total", "sglang:spec_verify_calls_total"),
    "accepted": ("vllm:spec_decode_num_accepted_tokens_total",),
    "proposed": ("vllm:spec_decode_num_draft_tokens_total",),
    "tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
}


def read_counters(text: str) -> dict[str, float]:
    """Sum the counters of verify steps over all label sets of a Prometheus page.

    Returns
    -------
    dict
        ``steps``, ``accepted``, ``proposed``, ``tokens``: those that the page has.
    """
    made: dict[str, float] = {}
    for metric, value in _samples(text):
        for name, known in _COUNTERS.items():
            if metric in known:
                made[name] = made.get(name, 0.0) + value
    return made


_SAMPLE = re.compile(r"^([a-zA-Z_:]+)(?:\{[^}\n]*\})?[ \t]+([0-9.eE+-]+)[ \t]*\r?$", re.M)


def _samples(page: str) -> list[tuple[str, float]]:
    """Return name and value of each sample of a Prometheus page; a value that is no sensible number is left out."""
    made = []
    for name, text in _SAMPLE.findall(page):
        try:
            value = float(text)
        except ValueError:
            continue
        if math.isfinite(value) and 0 <= value < 1e15:
            made.append((name, value))
    return made


_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred")


def others(client: Client) -> int | None:
    """Return how many requests the server works on or keeps waiting, while this client has none; ``None`` if it does not say."""
    fewest: int | None = None
    for wait in (0.0, 0.1, 0.4):  # a gauge may lag behind the end of our own last request
        time.sleep(wait)
        page = client.get("/metrics")
        values = [value for name, value in _samples(page) if name in _RUNNING + _WAITING] if isinstance(page, str) else []
        if not values:
            return fewest
        fewest = int(sum(values)) if fewest is None else min(fewest, int(sum(values)))
        if fewest == 0:
            break
    return fewest


class VerifyCounters:
    """The server's counters before and after a request, for servers whose answers hold no verify counts."""

    def __init__(self, client: Client) -> None:
        self._client = client
        first = self.read()
        self.there = bool(first and "steps" in first and "tokens" in first)

    def read(self) -> dict[str, float] | None:
        """Read them now."""
        page = self._client.get("/metrics")
        return read_counters(page) if isinstance(page, str) else None

    def fill(self, answer: TimedAnswer, before: dict[str, float] | None) -> None:
        """Give an answer its verify steps, if the counters grew by exactly its tokens (so that nobody else's are among them)."""
        if before is None or answer.failure or answer.steps is not None or not answer.completion_tokens:
            return
        for _ in range(4):  # counters may lag behind the answer
            now = self.read() or {}
            made = now.get("tokens", 0.0) - before.get("tokens", 0.0)
            if made >= answer.completion_tokens:
                break
            time.sleep(0.05)
        else:
            return
        steps = now.get("steps", 0.0) - before.get("steps", 0.0)
        if made == answer.completion_tokens and steps >= 1:
            answer.steps, answer.steps_from = int(steps), "metrics"
            answer.accepted_drafts, answer.proposed_drafts = (
                max(0, int(now[name] - before.get(name, 0.0))) if name in now else None for name in ("accepted", "proposed")
            )
