"""What is known about the server under test: kind, version, flags, and its counters of verify steps."""

from __future__ import annotations

import hashlib
import re
import time
from typing import Any

from ddtree_metrics.bench.answers import Answer
from ddtree_metrics.bench.client import Client

_SECRET = re.compile(r"api_?key|secret|passw|credential|authorization|private_key|(hf|access|auth|bearer)_?token", re.I)
_CHANGES = re.compile(r"media_marker|internal_states|throughput|is_sleeping|memory_usage|step_time|accept_length|uptime|timestamp")
_LONG = 200


def flatten(value: Any, key: str | None = None, prefix: str = "") -> dict[str, str]:
    """Turn nested settings into names and texts, without secrets, long texts and what changes by itself.

    Parameters
    ----------
    value : object
        What a server said of itself.
    key : str or None
        The API key of this client: never kept, wherever it stands.
    prefix : str
        Put before each name.
    """
    made: dict[str, str] = {}
    if not isinstance(value, dict):
        return made
    for name, item in value.items():
        full = f"{prefix}{name}"
        if item is None or _CHANGES.search(full):
            continue
        if _SECRET.search(str(name)):
            made[full] = "(removed)"
        elif isinstance(item, dict):
            made |= flatten(item, key, f"{full}.")
        elif isinstance(item, list) and any(isinstance(x, (dict, list)) for x in item):
            continue
        else:
            text = str(item)
            if key and key in text:
                text = "(removed)"
            elif len(text) > _LONG:
                text = "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:16]
            made[full] = text
    return made


def identify(client: Client, key: str | None = None) -> dict[str, Any]:
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
        made |= {"kind": "sglang", "version": info.get("version"), "flags": flatten(info, key)}
        made["context_len"] = _number(info.get("max_req_input_len")) or _number(info.get("context_length"))
        return made
    props = client.get("/props")
    if isinstance(props, dict) and "build_info" in props:
        # the defaults of sampling are not the server's setup; speculation and window are
        settings = props.pop("default_generation_settings", None) or {}
        props["n_ctx"] = settings.get("n_ctx")
        props["speculative"] = (settings.get("params") or {}).get("speculative.types")
        models = client.get("/models", root=False)
        if isinstance(models, dict):
            served = models.get("data") or [{}]
            props["model"] = served[0].get("meta") if isinstance(served[0], dict) else None
        made |= {"kind": "llama.cpp", "version": props.get("build_info"), "flags": flatten(props, key)}
        made["context_len"] = _number(props.get("n_ctx"))
        return made
    version = client.get("/version")
    if isinstance(version, dict) and "version" in version:
        made |= {"kind": "vllm", "version": str(version["version"])}
    models = client.get("/models", root=False)
    served = models.get("data") if isinstance(models, dict) else None
    if served and isinstance(served[0], dict):
        made["context_len"] = _number(served[0].get("max_model_len"))
        shown = {k: served[0].get(k) for k in ("id", "root", "owned_by", "max_model_len")}
        made["flags"] = flatten(shown, key, "model.")
        if made["kind"] == "unknown" and served[0].get("owned_by") in ("vllm", "sglang"):
            made["kind"] = served[0]["owned_by"]
    return made


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


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
        if isinstance(said.get("count"), int):
            return said["count"] or None
        tokens = said.get("tokens")
        return len(tokens) or None if isinstance(tokens, list) else None


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
    for line in text.splitlines():
        match = re.match(r"([a-zA-Z_:]+)(?:\{[^}]*\})?\s+([0-9.eE+-]+)\s*$", line)
        if not match:
            continue
        for name, known in _COUNTERS.items():
            if match[1] in known:
                made[name] = made.get(name, 0.0) + float(match[2])
    return made


_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred")


def others(client: Client) -> int | None:
    """Return how many requests the server works on or keeps waiting, while this client has none; ``None`` if it does not say."""
    fewest: int | None = None
    for wait in (0.0, 0.1, 0.4):  # a gauge may lag behind the end of our own last request
        time.sleep(wait)
        page = client.get("/metrics")
        if not isinstance(page, str):
            return fewest
        found = re.findall(r"^([a-zA-Z_:]+)(?:\{[^}]*\})?\s+([0-9.eE+-]+)\s*$", page, re.M)
        values = [float(value) for name, value in found if name in _RUNNING + _WAITING]
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

    def fill(self, answer: Answer, before: dict[str, float] | None) -> None:
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
        if made == answer.completion_tokens and steps > 0:
            answer.steps, answer.steps_from = int(steps), "metrics"
            if "accepted" in now:
                answer.accepted_drafts = int(now["accepted"] - before.get("accepted", 0.0))
            if "proposed" in now:
                answer.proposed_drafts = int(now["proposed"] - before.get("proposed", 0.0))
