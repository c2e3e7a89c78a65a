"""What an answer of a completions endpoint must look like where numbers are taken from it; what is not named here is not read.

Ids and finish reasons are only labels, so any type of them is let in and texts are used. The text of an answer is looked at, never kept.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
"""Tokens, steps, chunks, rounds."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class CachedTokens(msgspec.Struct):
    """``usage.prompt_tokens_details``."""

    cached_tokens: Count | None = None


class ReasoningTokens(msgspec.Struct):
    """``usage.completion_tokens_details``."""

    reasoning_tokens: Count | None = None


class Usage(msgspec.Struct):
    """OpenAI's token counts."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    prompt_tokens_details: CachedTokens | None = None
    completion_tokens_details: ReasoningTokens | None = None


class Timings(msgspec.Struct):
    """llama.cpp's own clock and counts."""

    predicted_n: Count | None = None
    predicted_ms: Milliseconds | None = None
    prompt_ms: Milliseconds | None = None
    cache_n: Count | None = None
    draft_n: Count | None = None
    draft_n_accepted: Count | None = None


class MetaInfo(msgspec.Struct):
    """SGLang's counts of a request; the accepted drafts had three names."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    cached_tokens: Count | None = None
    spec_verify_ct: Count | None = None
    spec_num_correct_drafts: Count | None = None
    spec_accepted_drafts: Count | None = None
    spec_accept_token_num: Count | None = None
    spec_num_proposed_drafts: Count | None = None


class SpeculativeDecoding(msgspec.Struct):
    """``metrics.speculative_decoding`` of vLLM."""

    num_spec_steps: Count | None = None
    num_accepted_draft_tokens: Count | None = None
    num_draft_tokens: Count | None = None


class RequestMetrics(msgspec.Struct):
    """``metrics`` of vLLM."""

    speculative_decoding: SpeculativeDecoding | None = None


class Output(msgspec.Struct):
    """A piece of an answer: a delta, a message, or the choice itself."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    text: Any = None
    tool_calls: Any = None


class Choice(Output):
    """One of ``choices``."""

    finish_reason: Any = None
    delta: Output | None = None
    message: Output | None = None
    meta_info: MetaInfo | None = None


class CompletionForm(msgspec.Struct):
    """A whole answer, or one event of a stream."""

    id: Any = None
    choices: list[Choice | None] | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    meta_info: MetaInfo | None = None
    metrics: RequestMetrics | None = None
