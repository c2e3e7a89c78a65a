"""The lines of a simulated server, as it hands them to its log: who wrote them, when, and what they say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from tests.worlds.engine import DEPTH, Prefill, Request, RunLog, Step
from tests.worlds.flags import command_line, server_args

MAIN, SCHEDULER = "main", "scheduler"


@dataclass(frozen=True)
class Line:
    """One line. `body` has no stamp; `scheduler` lines carry a rank word before it. A bare line has no stamp either."""

    at: float
    writer: str
    body: str
    run: int
    bare: bool = False


@dataclass(frozen=True)
class Form:
    """Which lines a log has.

    Parameters
    ----------
    tree_lines
        One `DDTREE metrics` line per step.
    interval
        Decode results between two `Decode batch` lines, or None for no such lines.
    request_lines
        `Receive:` and `Finish:` lines of the HTTP process.
    """

    tree_lines: bool = True
    interval: int | None = None
    request_lines: bool = False


def tree_line(step: Step) -> str:
    """Return the metrics line of a step; the nodes include the root, the budget does not."""
    batch = step.batch
    nodes = [step.budget + 1] * batch
    accepted = list(step.accepted)
    commits = [a + 1 for a in accepted]
    mean = sum(accepted) / batch
    return (
        f"DDTREE metrics: bs={batch} budget={step.budget} actual_nodes={nodes} accepted_drafts={accepted} commit_lens={commits}"
        f" avg_accepted_drafts={mean:.2f} avg_commit_len={mean + 1:.2f}"
    )


def decode_line(window: list[Step], since: float, drafts: int | None, pool: int) -> str:
    """Return the stock line at the end of a window of steps.

    Parameters
    ----------
    window
        The decode results since the last such line.
    since
        When that line was printed, or when the scheduler started.
    drafts
        Draft tokens of the server with the root, or None without speculation.
    """
    last = window[-1]
    sequences = sum(step.batch for step in window)
    committed = sum(step.committed for step in window)
    parts = [f"#running-req: {last.batch}", f"#token: {last.used}", f"token usage: {last.used / pool:.2f}"]
    if drafts is not None:
        rate = (committed - sequences) / (sequences * (drafts - 1))
        parts += [f"accept len: {committed / sequences:.2f}", f"accept rate: {rate:.2f}"]
    parts.append(f"cuda graph: {last.graph}")
    parts.append(f"gen throughput (token/s): {committed / (last.end - since):.2f}")
    parts.append(f"#queue-req: {last.queue}")
    return "Decode batch, " + ", ".join(parts)


def prefill_line(batch: Prefill, before: float, pool: int) -> str:
    rate = batch.new_tokens / max(1e-3, batch.end - before)
    return (
        f"Prefill batch, #new-seq: {batch.sequences}, #new-token: {batch.new_tokens}, #cached-token: {batch.cached_tokens},"
        f" token usage: {batch.used / pool:.2f}, #running-req: {batch.running}, #queue-req: {batch.queue},"
        f" #pending-token: {batch.pending}, cuda graph: False, input throughput (token/s): {rate:.2f}"
    )


def meta_info(request: Request, origin: float, run: RunLog) -> dict[str, object]:
    """Return what the server says about a finished request, in the order of its own rows."""
    steps, correct = request.steps, sum(k * n for k, n in enumerate(request.histogram))
    drafts = int(str(server_args(run.server.flags)["speculative_num_draft_tokens"] or 1))
    proposed = steps * (drafts - 1)
    latency = request.finished_at - request.received_at
    meta: dict[str, object] = {
        "id": request.rid,
        "finish_reason": {"type": "length", "length": request.max_tokens},
        "prompt_tokens": request.prompt,
        "weight_version": "default",
        "num_retractions": request.retractions,
        "forward_entry_time": origin + request.prefill_at,
        "prefill_finished_time": origin + request.first_at,
        "queue_time": request.prefill_at - request.received_at,
        "reasoning_tokens": 0,
        "completion_tokens": request.max_tokens,
        "cached_tokens": request.cached,
        "dp_rank": None,
        "e2e_latency": latency,
    }
    if run.server.speculative and steps:
        meta |= {
            "spec_accept_rate": correct / proposed,
            "spec_accept_length": request.max_tokens / steps,
            "spec_num_correct_drafts": correct,
            "spec_num_proposed_drafts": proposed,
            "spec_verify_ct": steps,
            "spec_correct_drafts_histogram": request.histogram[: DEPTH + 1],
        }
    meta |= {
        "request_received_ts": origin + request.received_at,
        "first_token_latency": request.first_at - request.received_at,
        "request_finished_ts": origin + request.finished_at + 0.002,
        "response_sent_to_client_ts": origin + request.finished_at + 0.004,
    }
    if request.finished_at > request.first_at:
        meta["decode_throughput"] = (request.max_tokens - 1) / (request.finished_at - request.first_at)
    return meta


def request_row(request: Request, origin: float, run: RunLog) -> str:
    """Return the row of a finished request as the server exports it to a file."""
    sampling = {"temperature": 0, "max_new_tokens": request.max_tokens, "ignore_eos": True}
    parameters = {"rid": request.rid, "sampling_params": sampling, "stream": not request.warmup, "log_metrics": True}
    return json.dumps({"request_parameters": json.dumps(parameters), **meta_info(request, origin, run)})


def _object(request: Request) -> str:
    sampling = {"temperature": 0, "max_new_tokens": request.max_tokens, "ignore_eos": True}
    return (
        f"GenerateReqInput(rid='{request.rid}', session_id=None, sampling_params={sampling}, return_logprob=False,"
        f" logprob_start_len=-1, top_logprobs_num=0, stream={not request.warmup}, log_metrics=True, priority=None)"
    )


def arguments(run: RunLog, form: Form) -> dict[str, object]:
    """Return the changed arguments of a start, with those that make it write these lines."""
    return {**run.server.flags, "decode_log_interval": form.interval or 1_000_000, "log_requests": form.request_lines}


def _start(run: RunLog, form: Form) -> Iterator[Line]:
    at, number = run.started, run.index

    def main(after: float, body: str, bare: bool = False) -> Line:
        return Line(at + after, MAIN, body, number, bare)

    def scheduler(after: float, body: str) -> Line:
        return Line(at + after, SCHEDULER, body, number)

    load = run.ready - run.started
    yield main(0.0, "<frozen importlib>:71: UserWarning: the entry point has a new name.", bare=True)
    yield main(0.4, f"server_args={server_args(arguments(run, form))}")
    yield scheduler(load * 0.1, "Init torch distributed begin.")
    yield scheduler(load * 0.2, "Load weight begin. avail mem=94.10 GB")
    yield main(load * 0.5, "Loading safetensors checkpoint shards:  50% Completed\r", bare=True)
    yield scheduler(load * 0.8, "Load weight end. elapsed=41.20 s, type=DeepseekV3ForCausalLM, avail mem=24.13 GB, mem usage=69.97 GB.")
    yield scheduler(load * 0.82, f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {run.server.pool}, KV size: 17.20 GB")
    yield scheduler(load * 0.9, "Capture cuda graph begin. This can take up to several minutes. avail mem=6.90 GB")
    yield scheduler(
        load * 0.96,
        f"max_total_num_tokens={run.server.pool}, chunked_prefill_size={run.server.chunk}, max_prefill_tokens=16384,"
        f" max_running_requests={run.server.max_running}, context_len=65536, available_gpu_mem=5.80 GB",
    )
    yield main(load * 0.97, "INFO:     Started server process [4242]")
    yield main(load * 0.98, "INFO:     Application startup complete.")
    yield main(load * 0.99, "INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)")
    warmup = run.requests[0]
    yield main(warmup.finished_at + 0.05 - at, "The server is fired up and ready to roll!")


def _engine_lines(run: RunLog, form: Form) -> Iterator[Line]:
    pool, number = run.server.pool, run.index
    drafts = int(str(server_args(run.server.flags)["speculative_num_draft_tokens"] or 1)) if run.server.speculative else None
    before = run.ready
    for batch in run.prefills:
        yield Line(batch.end, SCHEDULER, prefill_line(batch, before, pool), number)
        before = batch.end
    for retraction in run.retractions:
        text = (
            f"KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: {retraction.gained},"
            f" #new_token_ratio: {retraction.ratio_before:.4f} -> {retraction.ratio_after:.4f}"
        )
        yield Line(retraction.at, SCHEDULER, text, number)
    window: list[Step] = []
    since = run.ready
    for step in run.steps:
        if form.tree_lines and run.server.speculative:
            yield Line(step.end, SCHEDULER, tree_line(step), number)
        window.append(step)
        if form.interval is not None and len(window) == form.interval:
            yield Line(step.end + 0.0005, SCHEDULER, decode_line(window, since, drafts, pool), number)
            since, window = step.end, []


def _http_lines(run: RunLog, form: Form, origin: float) -> Iterator[Line]:
    for port, request in enumerate(run.requests, start=35000):
        if form.request_lines:
            yield Line(request.received_at, MAIN, f"Receive: obj={_object(request)}", run.index)
            out = {"meta_info": meta_info(request, origin, run)}
            yield Line(request.finished_at + 0.003, MAIN, f"Finish: obj={_object(request)}, out={out}", run.index)
        yield Line(request.first_at + 0.002, MAIN, f'INFO:     127.0.0.1:{port} - "POST /generate HTTP/1.1" 200 OK', run.index)


def lines_of(run: RunLog, form: Form, origin: float) -> list[Line]:
    """Return the lines of one start of the server in order of time.

    Parameters
    ----------
    origin
        Epoch seconds of the start of the world.
    """
    every = [*_start(run, form), *_engine_lines(run, form), *_http_lines(run, form, origin)]
    every.append(Line(run.ended + 8.0, MAIN, "INFO:     Shutting down", run.index))
    every.append(
        Line(run.ended + 8.5, SCHEDULER, "SIGTERM received. signum=None frame=None. Draining requests and shutting down...", run.index)
    )
    return sorted(every, key=lambda line: line.at)


def unit_command(run: RunLog, form: Form) -> str:
    return command_line(arguments(run, form))
