"""The typed records: one class a table, one field a column, each declared here and nowhere else.

``None`` means that the line does not say it. Lists have one element a sequence of the batch, in the server's order.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from ddtree_metrics.schema import Col


@dataclass(frozen=True, slots=True)
class LoggedLine:
    """Where and when a line was logged, and by which rank: the columns that all tables of lines share."""

    time: Annotated[
        datetime | None,
        Col("When the line was logged, in UTC; see time_from for what that rests on."),
    ] = None
    time_from: Annotated[
        str | None,
        Col(
            "Whose clock time is: journal (journald), frame (a collector's stamp with a zone), stamp (the server's own, its "
            "zone given), frame-local and stamp-local (zone unknown: local time written as if it were UTC)."
        ),
    ] = None
    time_resolution_us: Annotated[int | None, Col("The smallest step of that clock: 1 in a journal, 1000000 for whole seconds.", "us")] = (
        None
    )
    time_flag: Annotated[
        str | None,
        Col("What is doubtful about time: ambiguous or nonexistent (clock change), no_date, year_guessed; null if nothing."),
    ] = None
    monotonic_us: Annotated[int | None, Col("The boot clock when the line was logged; it never jumps.", "us", wide=True)] = None
    boot_id: Annotated[str | None, Col("The boot of the machine.")] = None
    host: Annotated[str | None, Col("The machine's name.")] = None
    unit: Annotated[str | None, Col("The systemd unit, user unit, or container that wrote the line.")] = None
    pid: Annotated[int | None, Col("The process that wrote the line.")] = None
    dp_rank: Annotated[int | None, Col("Data-parallel rank, as the line's prefix says.")] = None
    pp_rank: Annotated[int | None, Col("Pipeline-parallel rank.")] = None
    tp_rank: Annotated[int | None, Col("Tensor-parallel rank.")] = None
    ep_rank: Annotated[int | None, Col("Expert-parallel rank.")] = None
    dialect: Annotated[str | None, Col("The dialect that understood the line.")] = None
    where: Annotated[str | None, Col("Where the line stands: run.log:118, or journal:<cursor>, which journalctl --cursor takes.")] = None


@dataclass(frozen=True, slots=True)
class TreeStep(LoggedLine):
    """One draft-verify-commit step of a batch (or a window of steps), as one rank logged it."""

    batch_size: Annotated[int | None, Col("Sequences in the batch.", "sequences")] = None
    budget: Annotated[int | None, Col("Draft nodes a tree may have, root not counted.", "nodes")] = None
    nodes: Annotated[tuple[int, ...] | None, Col("Nodes verified for each sequence, as logged; most servers count the root.", "nodes")] = (
        None
    )
    accepted_drafts: Annotated[tuple[int, ...] | None, Col("Draft tokens the target agreed with, for each sequence.", "tokens")] = None
    commit_lens: Annotated[
        tuple[int, ...] | None, Col("Tokens added to each sequence, as logged, never computed from accepted_drafts.", "tokens")
    ] = None
    avg_accepted_drafts: Annotated[float | None, Col("Mean of accepted drafts over the batch, as logged.", "tokens")] = None
    avg_commit_len: Annotated[float | None, Col("Mean commit length over the batch, as logged.", "tokens")] = None
    steps: Annotated[int | None, Col("How many steps the line stands for.", "steps")] = None
    step_ms: Annotated[float | None, Col("Step time, where the line itself says it.", "ms")] = None
    request_ids: Annotated[tuple[str, ...] | None, Col("Request of each sequence, where the line says it.")] = None
    context_lens: Annotated[
        tuple[int, ...] | None, Col("Context length of each sequence when the step began, where the line says it.", "tokens")
    ] = None
    extra: Annotated[dict[str, str] | None, Col("Every key of the line that the dialect does not know.")] = None
    time_us: Annotated[int | None, Col("time as a whole number of microseconds since 1970.", "us", wide=True)] = None
    stream: Annotated[
        str | None, Col("The sequence of steps this one belongs to: host, boot, process (unit or file where it is not known) and DP rank.")
    ] = None
    step_us: Annotated[
        int | None, Col("Time since the previous step of the stream; null where that would not be a step time.", "us", wide=True)
    ] = None
    step_why: Annotated[
        str | None,
        Col(
            "Why step_us is null: first, boot, restart, prefill_between, suppressed, outside_window, retraction, clock_step, burst, "
            "coarse_clock, gap, no_time, window or duplicate_rank."
        ),
    ] = None
    tokens: Annotated[int | None, Col("Tokens the step added to all outputs: the sum of the commit lengths.", "tokens", wide=True)] = None
    tokens_cum: Annotated[int | None, Col("Running sum of tokens in the stream, this step included.", "tokens", wide=True)] = None


@dataclass(frozen=True, slots=True)
class DecodeBatch(LoggedLine):
    """One ``Decode batch`` line: a window of decode steps of one scheduler."""

    running: Annotated[int | None, Col("Requests in the batch at the moment of printing.", "requests")] = None
    tokens: Annotated[
        int | None, Col("KV slots in use by running requests (#token or #full token); not one request's context.", "tokens", wide=True)
    ] = None
    token_usage: Annotated[float | None, Col("tokens as a share of the pool.")] = None
    accept_len: Annotated[float | None, Col("Mean tokens committed for each request and step of the window, bonus included.", "tokens")] = (
        None
    )
    accept_rate: Annotated[float | None, Col("Accept rate as printed; its denominator changed between releases.")] = None
    gen_throughput: Annotated[
        float | None, Col("Tokens made in the window over wall time since the previous such line, idle time included.", "tokens/s")
    ] = None
    prompt_throughput: Annotated[float | None, Col("Prompt tokens computed in the window over its length, where printed.", "tokens/s")] = (
        None
    )
    accepted: Annotated[int | None, Col("Draft tokens accepted in the window, where printed.", "tokens", wide=True)] = None
    drafted: Annotated[int | None, Col("Draft tokens checked in the window, where printed.", "tokens", wide=True)] = None
    accepted_throughput: Annotated[
        float | None, Col("Tokens of accepted over the time since the last line that told of drafts, as printed.", "tokens/s")
    ] = None
    drafted_throughput: Annotated[float | None, Col("Tokens of drafted over the same time, as printed.", "tokens/s")] = None
    mean_accept_len: Annotated[
        float | None, Col("Mean acceptance length as printed; it counts only steps of requests that had a draft.", "tokens")
    ] = None
    position_accept_rates: Annotated[tuple[float, ...] | None, Col("Share of the drafts that were accepted at each position.")] = None
    queued: Annotated[int | None, Col("Requests waiting.", "requests")] = None
    cuda_graph: Annotated[bool | None, Col("Whether this step ran as a device graph (cuda, cpu, npu or musa).")] = None
    iteration: Annotated[int | None, Col("Forward counter of the scheduler, where printed.", wide=True)] = None
    retracted: Annotated[
        int | None, Col("Retracted requests that wait to run again, at the moment of printing; where printed.", "requests")
    ] = None
    extra: Annotated[dict[str, str] | None, Col("Every key of the line that has no column.")] = None
    time_us: Annotated[int | None, Col("time as a whole number of microseconds since 1970.", "us", wide=True)] = None
    stream: Annotated[str | None, Col("The sequence of lines this one belongs to: host, boot, process and DP rank.")] = None
    line_us: Annotated[int | None, Col("Time since the previous Decode line of the stream, null where not known.", "us", wide=True)] = None
    line_why: Annotated[
        str | None,
        Col(
            "Why line_us is null, or what lies between the two lines: first, boot, restart, prefill_between, suppressed, outside_window, "
            "retraction, clock_step, burst, coarse_clock, gap, no_time or duplicate_rank."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class PrefillBatch(LoggedLine):
    """One ``Prefill batch`` line: one forward pass over prompt tokens."""

    new_seqs: Annotated[int | None, Col("Requests in this prefill; each chunk of a long prompt counts again.", "requests")] = None
    new_tokens: Annotated[int | None, Col("Tokens computed.", "tokens", wide=True)] = None
    cached_tokens: Annotated[int | None, Col("Tokens taken from the prefix cache.", "tokens", wide=True)] = None
    token_usage: Annotated[float | None, Col("Share of the pool in use.")] = None
    running: Annotated[int | None, Col("Requests running.", "requests")] = None
    queued: Annotated[int | None, Col("Requests waiting.", "requests")] = None
    input_throughput: Annotated[float | None, Col("Input throughput as printed.", "tokens/s")] = None
    cuda_graph: Annotated[bool | None, Col("Whether it ran as a device graph.")] = None
    iteration: Annotated[int | None, Col("Forward counter of the scheduler, where printed.", wide=True)] = None
    extra: Annotated[dict[str, str] | None, Col("Every key of the line that has no column.")] = None
    time_us: Annotated[int | None, Col("time as a whole number of microseconds since 1970.", "us", wide=True)] = None
    stream: Annotated[str | None, Col("The sequence of lines this one belongs to: host, boot, process and DP rank.")] = None


@dataclass(frozen=True, slots=True)
class ServerStart(LoggedLine):
    """One start of a server, from the line in which it prints its arguments, and those that follow it."""

    algorithm: Annotated[str | None, Col("Speculative algorithm.")] = None
    num_draft_tokens: Annotated[int | None, Col("Draft tokens a step (tree nodes with the root, or chain length).", "tokens")] = None
    num_steps: Annotated[int | None, Col("Draft depth.", "steps")] = None
    topk: Annotated[int | None, Col("Branches a draft step.")] = None
    budget: Annotated[int | None, Col("DDTree node budget, root not counted.", "nodes")] = None
    block_size: Annotated[int | None, Col("Block size of the drafter, anchor included.", "tokens")] = None
    draft_window: Annotated[int | None, Col("Tokens the drafter attends to.", "tokens")] = None
    page_size: Annotated[int | None, Col("KV page size.", "tokens")] = None
    tp_size: Annotated[int | None, Col("Tensor-parallel ranks.")] = None
    dp_size: Annotated[int | None, Col("Data-parallel ranks.")] = None
    context_len: Annotated[int | None, Col("Longest context allowed.", "tokens", wide=True)] = None
    max_total_tokens: Annotated[int | None, Col("KV pool size.", "tokens", wide=True)] = None
    decode_log_interval: Annotated[int | None, Col("Decode steps between two Decode batch lines.", "steps")] = None
    args: Annotated[dict[str, str] | None, Col("All arguments as printed, as far as each was read whole; secrets removed.")] = None
    args_cut: Annotated[
        bool | None,
        Col(
            "Whether the line of arguments was cut: then an argument that is not in args is unknown, else it was not printed; null where "
            "the line is not in the log."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Event(LoggedLine):
    """Anything that breaks a run of steps, or that a reader of the numbers should know of."""

    kind: Annotated[
        str | None,
        Col(
            "suppressed, retraction, clock_step, boot, restart, ready, exit, adaptive_tier, exception, gap, simulated, profiling or notice."
        ),
    ] = None
    count: Annotated[int | None, Col("How many: lines lost, requests retracted, microseconds jumped.", wide=True)] = None
    detail: Annotated[str | None, Col("The event in words.")] = None
    stream: Annotated[str | None, Col("The stream it concerns, where it concerns one.")] = None


@dataclass(frozen=True)
class RequestFacts:
    """What may be known of a request, whoever tells it: the columns that ``Request`` and ``RequestLine`` share."""

    __slots__ = ()  # the two classes have them

    request_id: Annotated[str | None, Col("The request's id.")] = None
    received: Annotated[datetime | None, Col("When it was received (UTC).")] = None
    first_token: Annotated[datetime | None, Col("When its first token of any kind came out.")] = None
    finished: Annotated[datetime | None, Col("When it was finished.")] = None
    prompt_tokens: Annotated[int | None, Col("Prompt length.", "tokens", wide=True)] = None
    cached_tokens: Annotated[int | None, Col("Prompt tokens taken from the prefix cache.", "tokens", wide=True)] = None
    completion_tokens: Annotated[int | None, Col("Tokens the client got, the prefill's first token included.", "tokens", wide=True)] = None
    reasoning_tokens: Annotated[int | None, Col("How many of them were reasoning.", "tokens", wide=True)] = None
    verify_steps: Annotated[int | None, Col("Verify steps of this request.", "steps", wide=True)] = None
    accepted_drafts: Annotated[int | None, Col("Draft tokens accepted, bonus not counted.", "tokens", wide=True)] = None
    proposed_drafts: Annotated[int | None, Col("Draft tokens proposed.", "tokens", wide=True)] = None
    accepted_histogram: Annotated[tuple[int, ...] | None, Col("Steps by number of accepted drafts, from 0.", "steps")] = None
    mean_accept_len: Annotated[
        float | None,
        Col("Mean acceptance length as printed; it counts only steps that had a draft, and is then no tokens per step.", "tokens"),
    ] = None
    position_accept_rates: Annotated[tuple[float, ...] | None, Col("Share of the drafted steps that accepted each draft position.")] = None
    prefill_ms: Annotated[float | None, Col("Time of the prefill, as printed.", "ms")] = None
    decode_ms: Annotated[
        float | None, Col("Time from the first token to the last step as printed, other requests' work included.", "ms")
    ] = None
    end_context: Annotated[int | None, Col("Tokens in the KV cache after the last step, where the log says it.", "tokens", wide=True)] = (
        None
    )
    retractions: Annotated[int | None, Col("How often it lost its place and was prefilled again.")] = None
    finish_reason: Annotated[str | None, Col("Why it ended: stop, length, abort.")] = None


@dataclass(frozen=True, slots=True)
class Request(RequestFacts):
    """One finished request, from the server's log, its request file, or a client."""

    step_ms: Annotated[
        float | None,
        Col("Mean time of a step of this request, the prefills of others within it taken out; where the log has no line a step.", "ms"),
    ] = None
    step_why: Annotated[str | None, Col("Why step_ms is null: no_steps, others_unknown, prefill_between.")] = None
    mean_batch: Annotated[
        float | None, Col("Requests that decoded at the same time, itself among them: the mean over its decode time.", "requests")
    ] = None
    discarded_tail: Annotated[
        int | None, Col("Tokens the last step committed past the end: 1 + retractions + steps + accepted - completion.", "tokens")
    ] = None
    dp_rank: Annotated[int | None, Col("Data-parallel rank that served it.")] = None
    kind: Annotated[str | None, Col("client, warmup or health_check.")] = None
    flags: Annotated[
        tuple[str, ...] | None, Col("What is doubtful: identity_broken, no_end, end_before_start, duplicate, absurd_duration …")
    ] = None
    source: Annotated[str | None, Col("Where the request was read: log, request_file, client.")] = None
    where: Annotated[str | None, Col("Where the record stands.")] = None


@dataclass(frozen=True, slots=True)
class RequestLine(RequestFacts, LoggedLine):
    """One line that speaks of a request: received, finished, time stats, or an access-log line. Never its text."""

    event: Annotated[
        str | None,
        Col(
            "received, finished, stats or access; of servers that name slots: assigned, prompt, cached, timings, prefill_timing, "
            "decode_timing, drafts, verified, progress, released, cancelled or refused."
        ),
    ] = None
    slot: Annotated[int | None, Col("The slot that the request runs in, where the server has slots.")] = None
    task: Annotated[int | None, Col("The server's own number of the request, anew from 0 at each start.", wide=True)] = None
    e2e_ms: Annotated[float | None, Col("End-to-end latency, as printed.", "ms")] = None
    queue_ms: Annotated[float | None, Col("Time in the queue, as printed.", "ms")] = None
    forward_ms: Annotated[float | None, Col("Time in forward passes, as printed.", "ms")] = None
    prefill_tokens: Annotated[int | None, Col("Prompt tokens computed, those from the cache not among them.", "tokens", wide=True)] = None
    since_start_us: Annotated[int | None, Col("Time since the process started, where the line's head says it.", "us", wide=True)] = None
    status: Annotated[int | None, Col("HTTP status of an access line.")] = None
    path: Annotated[str | None, Col("HTTP method and path of an access line, query removed.")] = None
    extra: Annotated[dict[str, str] | None, Col("Other numbers of the line; never text of a prompt or an answer.")] = None


@dataclass(frozen=True, slots=True)
class RequestStep:
    """One step of one request: what the join makes of a step line and the requests that ran."""

    time: Annotated[datetime | None, Col("When the step was logged (UTC).")] = None
    time_us: Annotated[int | None, Col("The same as microseconds since 1970.", "us", wide=True)] = None
    host: Annotated[str | None, Col("The machine's name.")] = None
    boot_id: Annotated[str | None, Col("The boot of the machine.")] = None
    unit: Annotated[str | None, Col("The unit that logged the step.")] = None
    dp_rank: Annotated[int | None, Col("Data-parallel rank.")] = None
    stream: Annotated[str | None, Col("The sequence of steps it belongs to.")] = None
    where: Annotated[str | None, Col("Where the step line stands.")] = None
    request_id: Annotated[str | None, Col("The request, null where none covers the step.")] = None
    step_index: Annotated[int | None, Col("Which step of the request it is, from 0.", "steps")] = None
    slot: Annotated[int | None, Col("Place in the batch, from 0.")] = None
    prompt_len: Annotated[int | None, Col("Prompt length of the request.", "tokens", wide=True)] = None
    generated_len: Annotated[
        int | None, Col("Tokens generated when the step began, the prefill's token included.", "tokens", wide=True)
    ] = None
    context_len: Annotated[
        int | None, Col("Tokens in the KV cache when the step began: prompt and what earlier steps committed.", "tokens", wide=True)
    ] = None
    context_from: Annotated[str | None, Col("What context_len rests on: request, line, decode_line; null where it is null.")] = None
    batch_context: Annotated[
        int | None, Col("Sum of context_len over the batch of the step, null unless known for all.", "tokens", wide=True)
    ] = None
    tokens: Annotated[float | None, Col("Tokens the step added to this request; a share where matched is shared.", "tokens")] = None
    drafts: Annotated[float | None, Col("Draft tokens agreed with, bonus and root not counted.", "tokens")] = None
    draft_nodes: Annotated[float | None, Col("Draft nodes verified, root not counted.", "nodes")] = None
    budget: Annotated[int | None, Col("Draft nodes allowed, root not counted.", "nodes")] = None
    batch_size: Annotated[int | None, Col("Sequences in the batch.", "sequences")] = None
    weight: Annotated[float | None, Col("Share of the step that is this row's: 1/batch_size, so that a step counts once.")] = None
    step_us: Annotated[int | None, Col("Step time, null where it would be a lie.", "us", wide=True)] = None
    step_why: Annotated[str | None, Col("Why step_us is null.")] = None
    matched: Annotated[str | None, Col("How the request was found: id, alone, slots, shared or none.")] = None
    reconciled: Annotated[
        int | None,
        Col("Tokens committed for the request minus (completion_tokens - 1 - retractions); null if not known.", "tokens", wide=True),
    ] = None
    trusted: Annotated[bool | None, Col("Whether reconciled lies within what the cut of a last step explains.")] = None
    flags: Annotated[tuple[str, ...] | None, Col("What is doubtful about this row.")] = None


TABLES: dict[str, type] = {
    "steps": TreeStep,
    "decode": DecodeBatch,
    "prefill": PrefillBatch,
    "servers": ServerStart,
    "events": Event,
    "requests": Request,
    "request_lines": RequestLine,
    "request_steps": RequestStep,
}
"""The record class of each table."""


def table_of(record: type) -> str:
    """Return the table of a record class."""
    return next(name for name, known in TABLES.items() if known is record)
