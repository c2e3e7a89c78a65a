"""What a server answered to one request: counts and times, never text.

The parsing is here and knows no HTTP library: a whole JSON body, or pieces of an event stream with the time each arrived.
Which server sends what was read off real answers of llama.cpp, vLLM and SGLang.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from ddtree_metrics.bench.answer_forms import (
    CachedTokens,
    CompletionForm,
    Count,
    MetaInfo,
    Milliseconds,
    Output,
    ReasoningTokens,
    Seconds,
    SpeculativeDecoding,
    Timings,
    Usage,
)
from ddtree_metrics.metrics.two_point import Run
from ddtree_metrics.validation import checked, decode_json

TOKEN_KEYS = ("content", "reasoning_content", "reasoning", "refusal", "text")
"""Keys that hold generated text; reasoning is output like any other."""
LONGEST_EVENT = 1 << 20
"""Bytes that an event of a stream may have."""
Instant = Annotated[int, Meta(ge=0, le=4_000_000_000_000_000)]
"""Microseconds since 1970, until 2096."""


@dataclass(slots=True)
class TimedAnswer:
    """One request and what came back.

    Times are seconds after the first byte of the request was sent, on a connection that was open by then.

    Attributes
    ----------
    role : str
        ``calibrate``, ``grow`` (finding the prompt's length), ``warmup`` or ``measure``.
    sent_us : int
        When it was sent, microseconds since 1970.
    elapsed_s : float or None
        Until the last token (streaming) or the end of the answer.
    first_chunk_tokens : int or None
        Tokens in the first chunk of a stream, where the server counts as it goes; under speculation often more than one.
    server_decode_ms, server_decode_tokens : float or None, int or None
        The server's own time of its decode phase and the tokens made in it, the prefill's token not among them.
    steps : int or None
        Verify steps of this request, where the answer has them or they follow from it.
    failure : str or None
        ``None`` where the answer is whole; else ``refused_field``, ``auth``, ``not_found``, ``too_long``, ``rate_limited``,
        ``bad_request``, ``server_error``, ``timeout``, ``connection``, ``broken`` or ``bad_answer``.
    """

    role: Literal["calibrate", "grow", "warmup", "measure"]
    max_tokens: Count
    ctx: Count | None = None
    round: Count | None = None
    worker: Count = 0
    request_id: str | None = None
    sent_us: Instant = 0
    elapsed_s: Seconds | None = None
    first_token_s: Seconds | None = None
    first_content_s: Seconds | None = None
    last_token_s: Seconds | None = None
    chunks: Count = 0
    first_chunk_tokens: Count | None = None
    prompt_tokens: Count | None = None
    cached_tokens: Count | None = None
    completion_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    finish_reason: str | None = None
    server_decode_ms: Milliseconds | None = None
    server_decode_tokens: Count | None = None
    server_prefill_ms: Milliseconds | None = None
    steps: Count | None = None
    accepted_drafts: Count | None = None
    proposed_drafts: Count | None = None
    steps_from: str | None = None
    repeats: Seconds | None = None
    status: int | None = None
    retry_after_s: float | None = None
    failure: str | None = None
    message: str | None = None

    def run(self) -> Run:
        """Return it in the form that ``two_point_rate`` takes."""
        return Run(
            completion_tokens=self.completion_tokens,
            total_s=self.elapsed_s,
            max_tokens=self.max_tokens,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            first_token_s=self.first_token_s,
            first_content_s=self.first_content_s,
            last_token_s=self.last_token_s,
            reasoning_tokens=self.reasoning_tokens,
        )


@dataclass(slots=True)
class EventStream:
    """Cut the bytes of an event stream into events, wherever the network cut them."""

    _rest: bytearray = field(default_factory=bytearray)
    _seen: int = 0
    _data: list[bytes] = field(default_factory=list)
    _held: int = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Take bytes; yield the data of each event that is complete now.

        Raises
        ------
        ValueError
            If an event has no end.
        """
        self._rest += piece
        start = 0
        while (at := self._rest.find(b"\n", max(start, self._seen))) >= 0:
            line = bytes(self._rest[start:at]).rstrip(b"\r")
            start = at + 1
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._held += len(line)
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data, self._held = [], 0
        del self._rest[:start]
        self._seen = len(self._rest)
        if self._held + self._seen > LONGEST_EVENT:
            raise ValueError(f"an event of the stream is longer than {LONGEST_EVENT:,} bytes")

    def end(self) -> Iterator[bytes]:
        """Yield an event whose closing blank line never came, if its own line is whole."""
        yield from self.feed(b"\n\n")


class AnswerReader:
    """Fill an ``TimedAnswer`` from what the server sends; keeps the text only to see whether it repeats itself."""

    def __init__(self, answer: TimedAnswer) -> None:
        self.answer = answer
        self._text: list[str] = []
        self._visible = False
        self.done = False

    def body(self, payload: Any) -> None:
        """Read a whole answer, or one event of a stream without its time."""
        if not isinstance(payload, dict):
            self.fail("bad_answer", "the answer is not a JSON object")
            return
        if payload.get("error") or payload.get("object") == "error":
            kind, text = explain(500, payload)
            self.fail(kind, text)
            return
        try:
            said: CompletionForm = checked(payload, CompletionForm, ValueError)
        except ValueError as error:
            self.fail("bad_answer", f"the answer has not the form of a completion: {error}")
            return
        a = self.answer
        if isinstance(said.id, str):
            a.request_id = said.id[:200]
        for choice in filter(None, said.choices or ()):
            a.finish_reason = _word(choice.finish_reason) or a.finish_reason
            self._output(choice.delta or choice.message or choice)
            self._sglang(choice.meta_info)
        self._usage(said.usage)
        self._timings(said.timings)
        self._sglang(said.meta_info)
        spec = (said.metrics and said.metrics.speculative_decoding) or SpeculativeDecoding()
        self._counters(spec.num_spec_steps, spec.num_accepted_draft_tokens, spec.num_draft_tokens, "speculative_decoding")

    def event(self, data: bytes, at_s: float) -> None:
        """Read one event of a stream that arrived ``at_s`` after sending."""
        if data.strip() == b"[DONE]":
            self.done = True
            return
        try:
            payload: Any = decode_json(data, Any, ValueError)
        except ValueError as error:
            self.fail("broken", f"an event of the stream cannot be read: {error}")
            return
        a, before = self.answer, len(self._text)
        counted = a.completion_tokens
        self._visible = False
        self.body(payload)
        if len(self._text) > before:
            a.chunks += 1
            a.last_token_s = at_s
            if a.first_token_s is None:
                a.first_token_s = at_s
                a.first_chunk_tokens = (a.completion_tokens or None) if not counted else None
            if self._visible and a.first_content_s is None:
                a.first_content_s = at_s

    def finish(self, *, stream: bool) -> TimedAnswer:
        """Check what was read, and return the answer."""
        a = self.answer
        if a.failure:
            return a
        if stream and not self.done and a.finish_reason is None:
            self.fail("broken", "the stream ended before the answer did")
        elif stream and a.last_token_s is not None:
            a.elapsed_s = a.last_token_s
        n, text = a.completion_tokens, bool(self._text)
        made = a.server_decode_tokens
        if n is None and made is not None:
            a.completion_tokens = n = made + 1
        if n is not None and (n < 0 or (n > a.max_tokens > 0) or (n == 0 and text) or (made is not None and made + 1 != n > 0)):
            self.fail("bad_answer", f"the token counts contradict each other: {n} of {a.max_tokens} asked for")
        if n and a.reasoning_tokens is not None and a.reasoning_tokens > n:
            self.fail("bad_answer", f"{a.reasoning_tokens} reasoning tokens of {n}")
        if a.prompt_tokens is not None and a.prompt_tokens <= 0:
            a.prompt_tokens = None
        if a.steps is not None and a.steps <= 0:
            a.steps = a.steps_from = None
        a.repeats = _repeats("".join(self._text))
        return a

    def fail(self, kind: str, text: str) -> None:
        """Note the first failure."""
        if self.answer.failure is None:
            self.answer.failure, self.answer.message = kind, text

    def _output(self, part: Output) -> None:
        for key in TOKEN_KEYS:
            value = getattr(part, key)
            if isinstance(value, str) and value:
                self._text.append(value)
                self._visible |= key in ("content", "text")
        if part.tool_calls:
            self._text.append(" ")
            self._visible = True

    def _usage(self, usage: Usage | None) -> None:
        if usage is None:
            return
        a = self.answer
        cached = (usage.prompt_tokens_details or CachedTokens()).cached_tokens
        reasoned = (usage.completion_tokens_details or ReasoningTokens()).reasoning_tokens
        a.prompt_tokens = _first(usage.prompt_tokens, a.prompt_tokens)
        a.completion_tokens = _first(usage.completion_tokens, a.completion_tokens)
        a.cached_tokens = _first(cached, a.cached_tokens)
        a.reasoning_tokens = _first(reasoned, usage.reasoning_tokens, a.reasoning_tokens)

    def _timings(self, timings: Timings | None) -> None:
        """Read llama.cpp's own clock: ``predicted_ms`` spans predicted_n - 1 decode steps' tokens.

        The build decides whether ``predicted_per_second`` divides n or n - 1, so it is not used.
        """
        if timings is None:
            return
        a, made = self.answer, timings.predicted_n
        if made and timings.predicted_ms is not None:
            a.server_decode_tokens, a.server_decode_ms = made - 1, timings.predicted_ms
            accepted = timings.draft_n_accepted
            if accepted is not None and accepted < made:
                # each step adds its accepted drafts and one token of the target; the first token is the prefill's
                self._counters(made - 1 - accepted, accepted, timings.draft_n, "timings")
        a.server_prefill_ms = timings.prompt_ms if timings.prompt_ms is not None else a.server_prefill_ms
        a.cached_tokens = _first(a.cached_tokens, timings.cache_n)

    def _sglang(self, meta: MetaInfo | None) -> None:
        if meta is None:
            return
        accepted = _first(meta.spec_num_correct_drafts, meta.spec_accepted_drafts, meta.spec_accept_token_num)
        self._counters(meta.spec_verify_ct, accepted, meta.spec_num_proposed_drafts, "meta_info")
        a = self.answer
        a.prompt_tokens = _first(meta.prompt_tokens, a.prompt_tokens)
        a.completion_tokens = _first(meta.completion_tokens, a.completion_tokens)
        a.cached_tokens = _first(meta.cached_tokens, a.cached_tokens)

    def _counters(self, steps: int | None, accepted: int | None, proposed: int | None, source: str) -> None:
        a = self.answer
        if steps is not None:
            a.steps, a.steps_from, a.accepted_drafts, a.proposed_drafts = steps, source, accepted, proposed


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _word(reason: Any) -> str | None:
    if isinstance(reason, dict):
        reason = reason.get("type")
    return reason[:200] if isinstance(reason, str) else None


def _repeats(text: str) -> float | None:
    """Share of four-word runs of a text that occurred in it before; ``None`` for short texts."""
    words = text.split()
    runs = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return None if len(runs) < 12 else round(1 - len(set(runs)) / len(runs), 3)


def explain(status: int, payload: Any) -> tuple[str, str]:
    """Say what an error answer means: its kind (as ``Answer.failure``) and the server's words.

    Servers put the words under ``error.message``, at top level, or in a list under ``detail`` (whose ``input`` may quote the
    whole request, so only ``loc`` and ``msg`` are read).
    """
    error = payload.get("error", payload) if isinstance(payload, dict) else payload
    code = None
    if isinstance(error, dict):
        detail = error.get("detail")
        if isinstance(detail, list):
            text = "; ".join(f"{_dotted(d.get('loc'))}: {d.get('msg')}" for d in detail if isinstance(d, dict))
        else:
            text = str(error.get("message") or detail or error.get("type") or "no message")
        code = str(error.get("type") or "") + " " + str(error.get("code") or "")
    else:
        text = str(error or "no message")
    code = code or ""
    low = text.lower()
    if status in (401, 403) or "authentication" in code:
        kind = "auth"
    elif status == 429:
        kind = "rate_limited"
    elif "exceed_context" in code or re.search(r"context (length|size|window)|maximum (context|model|input)|too long|max_model_len", low):
        kind = "too_long"
    elif status == 404:
        kind = "not_found"
    elif status in (400, 422) and (named_fields(text) or re.search(r"unexpected|unrecogni[sz]ed|unknown|not permitted|extra", low)):
        kind = "refused_field"
    elif status >= 500:
        kind = "server_error"
    else:
        kind = "bad_request"
    return kind, text[:300]


def _dotted(place: Any) -> str:
    return ".".join(map(str, place)) if isinstance(place, list) else ""


OPTIONAL_FIELDS = ("ignore_eos", "min_tokens", "continuous_usage_stats", "stream_options", "include_usage", "temperature", "max_tokens")


def named_fields(text: str) -> list[str]:
    """List the fields of ours that an error text names."""
    return [name for name in OPTIONAL_FIELDS if re.search(rf"\b{name}\b", text)]
