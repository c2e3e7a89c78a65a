"""What SGLang and its DDTree forks write: every word of theirs that this library knows is in here or in ``sglang_*.py``.

The step line of the DDTree forks has never been published whole, so it is declared loosely: any label, any order, singular or
plural, scalar or list. The stock lines are declared by whole keys, for all releases from 0.3.0 to 0.5.23; keys that a release or a
fork adds go to ``extra``. A key that a release does not print leaves its column null; a line that ends in the middle is broken.
"""

from __future__ import annotations

from ddtree_metrics.dialects.base import Counts, Dialect, Field, Line, Sample
from ddtree_metrics.dialects.pairs import ITERATION
from ddtree_metrics.dialects.sglang_requests import read_finished, read_json, read_received, read_stats
from ddtree_metrics.dialects.sglang_start import read_pool, read_server_args, read_worker
from ddtree_metrics.records import DecodeBatch, Event, PrefillBatch, RequestLine, ServerStart, TreeStep

_LISTS = ("nodes", "accepted_drafts", "commit_lens", "request_ids", "context_lens")
_STRONG = ("nodes", "accepted_drafts", "commit_lens", "avg_accepted_drafts", "avg_commit_len")


def _keys(**spellings: str) -> dict[str, str | Field]:
    return {key: column for column, keys in spellings.items() for key in keys.split()}


STEP = Line(
    TreeStep,
    marker="DDTREE metrics",
    also=("DDTREE debug",),
    loose=True,
    fields=_keys(
        batch_size="bs batch_size batch",
        budget="budget tree_budget node_budget ddtree_budget",
        nodes="actual_nodes actual_node actual_tree_sizes actual_tree_size tree_nodes",
        accepted_drafts="accepted_drafts accepted_draft num_accepted_drafts num_correct_drafts correct_drafts correct_draft",
        commit_lens="commit_lens commit_len commit_lengths commit_length",
        avg_accepted_drafts="avg_accepted_drafts avg_accepted_draft mean_accepted_drafts",
        avg_commit_len="avg_commit_len avg_commit_lens avg_commit_length mean_commit_len",
        steps="steps",
        step_ms="step_ms step_time_ms",
        request_ids="rids rid request_ids request_id req_ids",
        context_lens="context_lens context_len ctx_lens ctx_len seq_lens seq_len",
    ),
    strong=_STRONG,
    need=_STRONG,
    same_length=_LISTS,
    length="batch_size",
    means={"avg_accepted_drafts": "accepted_drafts", "avg_commit_len": "commit_lens"},
    const={"steps": 1},
    samples=(
        Sample(
            "[2026-02-01 10:00:00 TP0] DDTREE metrics: bs=1 budget=16 actual_nodes=[17] accepted_drafts=[4] commit_lens=[5] "
            "avg_accepted_drafts=4.00 avg_commit_len=5.00",
            {
                "tp_rank": 0, "batch_size": 1, "budget": 16, "nodes": [17], "accepted_drafts": [4], "commit_lens": [5],
                "avg_accepted_drafts": 4.0, "avg_commit_len": 5.0, "steps": 1, "extra": None,
            },
        ),
        Sample(
            "[2026-02-01 10:00:00 DP1 TP4] ddtree debug: commit_len: (2, 3), bs: 2, accepted_draft: [np.int64(1), 2], draft_ms: 1.5",
            {"dp_rank": 1, "tp_rank": 4, "batch_size": 2, "commit_lens": [2, 3], "accepted_drafts": [1, 2], "extra": {"draft_ms": "1.5"}},
        ),
        Sample("avg_accepted_drafts=4.00 avg_com...", broken="cut"),
        Sample("[2026-02-01 10:00:00 TP0] DDTREE metrics: bs=2 commit_lens=[1, 2, 3] accepted_drafts=[0, 1, 2]", broken="list_length"),
        Sample("[2026-02-01 10:00:00 TP0] DDTREE metrics: bs=1 commit_lens=[-1]", broken="negative"),
        Sample("[2026-02-01 10:00:00 TP0] DDTREE metrics: bs=1 commit_lens=[5] avg_commit_len=nan", broken="bad_number"),
        Sample("[2026-02-01 10:00:00 TP0] DDTREE metrics: bs=1 commit_lens=[99999999999999999999]", broken="out_of_range"),
        Sample("[2026-02-01 10:00:00 TP0] DDTREE metrics: bs=1 budget=16", broken="missing_fields"),
        Sample("[2026-02-01 10:00:00 TP0] DDTREE metrics: bs=1 commit_lens=[4] commit_lens=[5]", broken="repeated_key"),
        Sample("[rank0]: DDTREE metrics: bs=1 commit_lens=[4] avg_commit_len=4.00", {"commit_lens": [4], "avg_commit_len": 4.0}),
        Sample('client said: "please explain DDTREE metrics: bs=" 4711'),
        Sample("[2026-02-01 10:00:00 TP0] DDTREE config: budget=16 topk=4 draft_model=/models/draft-1"),
    ),
)  # fmt: skip

_POOL: dict[str, str | Field] = {
    "token usage": "token_usage",
    "full token usage": Field("token_usage", keep=True),
    "gpu token usage": Field("token_usage", keep=True),
}
_GRAPH = _keys(cuda_graph="cuda_graph") | {f"{device} graph": "cuda_graph" for device in ("cuda", "cpu", "npu", "musa")}
del _GRAPH["cuda_graph"]

DECODE = Line(
    DecodeBatch,
    marker="Decode batch",
    pairs=", ",
    kv=": ",
    fields={
        ITERATION: "iteration",
        "#running-req": "running",
        "#token": "tokens",
        "#full token": Field("tokens", keep=True),
        "#gpu token": Field("tokens", keep=True),
        **_POOL,
        "accept len": "accept_len",
        "accept rate": "accept_rate",
        "#retracted-req": "retracted",
        **_GRAPH,
        "gen throughput (token/s)": "gen_throughput",
        "#queue-req": "queued",
    },
    decimals=2,
    last="#queue-req",
    need=("running",),
    samples=(
        Sample(
            "[2026-02-20 12:00:00.123 DP1 PP0 ATTN_CP0 MOE_DP0 TP4 EP4] Decode batch [4711], #running-req: 1, #token: 1200, "
            "token usage: 0.01, accept len: 3.10, accept rate: 0.78, waiting-image-req: 0, npu graph: True, "
            "gen throughput (token/s): 190.50, #queue-req: 0, ",
            {
                "dp_rank": 1, "pp_rank": 0, "tp_rank": 4, "ep_rank": 4, "iteration": 4711, "running": 1, "tokens": 1200,
                "token_usage": 0.01, "accept_len": 3.1, "accept_rate": 0.78, "cuda_graph": True, "gen_throughput": 190.5, "queued": 0,
                "extra": {"ATTN_CP": "0", "MOE_DP": "0", "waiting-image-req": "0"},
            },
        ),
        Sample(
            "Decode batch. #running-req: 1, #full token: 1200, full token usage: 0.01, mamba num: 2, mamba usage: 0.02, "
            "est uncap acc len: 4.55 [4.40, 4.70], gen throughput (token/s): 80.12, #queue-req: 0, fwd occupancy: nan%",
            {
                "running": 1, "tokens": 1200, "token_usage": 0.01, "accept_len": None, "gen_throughput": 80.12,
                "extra": {
                    "#full token": "1200", "full token usage": "0.01", "mamba num": "2", "mamba usage": "0.02",
                    "est uncap acc len": "4.55 [4.40, 4.70]", "fwd occupancy": "nan%",
                },
            },
        ),
        Sample("[2026-02-01 10:00:00 TP0] Decode batch, #running-req: 29, #token: 10096, token usage:", broken="cut"),
        Sample("[2026-02-01 10:00:00 TP0] Decode batch, #running-req: 1, accept rate: 0.39, cuda graph: Tru", broken="cut"),
        Sample("[2026-02-01 10:00:00 TP0] Decode batch, accept len: 3.40", broken="missing_fields"),
        Sample("[2026-02-01 10:00:00] Receive: obj=GenerateReqInput(text='[2026-02-01 10:00:00 TP0] Decode batch, #running-req: 1')"),
        Sample("accept len: 4.00, accept rate: 1.00, gen throughput: 88.23 token/s"),
        Sample('client said: "[2026-02-01 10:00:00 TP0] Decode batch, #running-req: 1, #queue-req: 0"'),
    ),
)  # fmt: skip

PREFILL = Line(
    PrefillBatch,
    marker="Prefill batch",
    pairs=", ",
    kv=": ",
    fields={
        ITERATION: "iteration",
        "#new-seq": "new_seqs",
        "#new-token": "new_tokens",
        "#cached-token": "cached_tokens",
        **_POOL,
        "#running-req": "running",
        "#queue-req": "queued",
        **_GRAPH,
        "input throughput (token/s)": "input_throughput",
    },
    decimals=2,
    last="#queue-req",
    samples=(
        Sample(
            "[12:00:00 TP0] Prefill batch(mixed #running-req: 3). #new-seq: 1, #new-token: 128, #cached-token: 0, cache hit rate: 33.33%, "
            "#queue-req: 0",
            {"running": 3, "new_seqs": 1, "new_tokens": 128, "cached_tokens": 0, "queued": 0, "extra": {"cache hit rate": "33.33%"},
             "time_flag": "no_date"},
        ),
        Sample(
            "[2026-02-20 12:00:00] Prefill batch, #new-seq: 1, #new-token: 2048, #cached-token: 64, token usage: 0.01, #running-req: 0, "
            "#queue-req: 0, input throughput (token/s): 512.00, cuda graph: False",
            {"new_seqs": 1, "new_tokens": 2048, "cached_tokens": 64, "token_usage": 0.01, "input_throughput": 512.0, "cuda_graph": False},
        ),
        Sample("[2026-04-24 11:13:49 TP0] Prefill batch, #new-seq: 1, #new-token: 1024, ...", broken="cut"),
        Sample('File "x.py", line 3: logger.info(f"Prefill batch, #new-seq: {n}")'),
    ),
)  # fmt: skip


ACCESS = Line(
    RequestLine,
    marker="INFO:   ",
    shared=True,
    pattern=r'^INFO:\s+\S+ - "(?P<path>[A-Z]+ [^\s?"]*)(?:\?[^\s"]*)? HTTP/[0-9.]+" (?P<status>\d{3})(?:\s.*)?$',
    const={"event": "access"},
    samples=(
        Sample(
            '[2026-04-05 20:02:51] INFO:     192.0.2.10:40052 - "POST /v1/chat/completions?key=s HTTP/1.1" 200 OK',
            {"event": "access", "path": "POST /v1/chat/completions", "status": 200},
        ),
        Sample("[2026-04-27 02:36:29] INFO:     Uvicorn running on http://192.0.2.10:30000 (Press CTRL+C to quit)"),
    ),
)


def _event(kind: str, marker: str, pattern: str, *samples: Sample, also: tuple[str, ...] = (), shared: bool = False) -> Line:
    return Line(Event, marker=marker, also=also, shared=shared, pattern=pattern, const={"kind": kind}, samples=samples)


_ALL = r"^(?P<detail>.+)"

EVENTS = (
    _event(
        "retraction",
        "KV cache pool is full",
        r"^(?P<detail>(?:KV cache pool is full|Decode out of memory happened)\. (?:Retract requests\. )?"
        r"#retracted_reqs: (?P<count>\d{1,9})\b.*)",
        Sample(
            "[2026-11-29 15:16:57] KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 210, "
            "#new_token_ratio: 0.0646 -> 0.8623",
            {"kind": "retraction", "count": 1},
        ),
        Sample("[12:00:00 TP0] Decode out of memory happened. #retracted_reqs: 3, #new_token_ratio: 0.4 -> 0.5", {"count": 3}),
        Sample("the KV cache pool is full. Retract requests."),
        also=("Decode out of memory happened",),
    ),
    _event(
        "exception",
        "Scheduler hit an exception",
        # Which exception, and not what it says: a tokenizer's says the prompt.
        r"^(?P<detail>\w+ hit an exception(?:: Traceback \(most recent call last\):|: [\w.]{0,80}(?:Error|Exception|Exit|Interrupt))?"
        r"|terminate called after throwing(?: an instance of '[\w:]{1,80}')?)",
        Sample(
            "026-05-28 00:11:09.816 DP0 TP0 EP0] Scheduler hit an exception: Traceback (most recent call last):",
            {"kind": "exception", "detail": "Scheduler hit an exception: Traceback (most recent call last):", "dp_rank": 0, "ep_rank": 0},
        ),
        Sample(
            "[2026-04-27 02:36:30] TokenizerManager hit an exception: ValueError: cannot tokenize 'my own words'",
            {"kind": "exception", "detail": "TokenizerManager hit an exception: ValueError"},
        ),
        Sample("why the Scheduler hit an exception"),
        also=("TokenizerManager hit an exception", "DetokenizerManager hit an exception", "terminate called after throwing"),
    ),
    _event(
        "ready",
        "The server is fired up and ready",
        _ALL,
        Sample("[2026-04-27 02:36:30] The server is fired up and ready to roll!", {"kind": "ready", "tp_rank": None}),
        Sample("when The server is fired up and ready"),
    ),
    _event(
        "restart",
        "INFO:   ",
        r"^INFO:\s+(?P<detail>Started server process \[\d+\])",
        Sample("[2026-04-27 02:36:29] INFO:     Started server process [399368]", {"kind": "restart"}),
        Sample("[2026-04-27 02:36:29] INFO:     Waiting for application startup."),
        shared=True,
    ),
    _event(
        "exit",
        "INFO:   ",
        r"^INFO:\s+(?P<detail>Finished server process \[\d+\])",
        Sample("[2026-04-27 02:36:29] INFO:     Finished server process [399368]", {"kind": "exit"}),
        Sample("Finished server process"),
        shared=True,
    ),
    _event(
        "exit",
        "SIGTERM received",
        _ALL,
        Sample("[2026-11-29 15:18:01] SIGTERM received. signum=None frame=None. Draining requests and shutting down...", {"kind": "exit"}),
        Sample("on SIGTERM received"),
        also=("Received sigquit from a child process",),
    ),
    _event(
        "adaptive_tier",
        "Adaptive spec params updated",
        r"^(?P<detail>(?:Adaptive spec params updated|Switch adaptive runtime state): steps \d+ -> \d+.*)",
        Sample("[2026-05-10 12:00:09 TP0] Adaptive spec params updated: steps 3 -> 7 (ema_accept_len=2.76)", {"kind": "adaptive_tier"}),
        Sample(
            "[2026-05-10 12:00:09 TP0] Switch adaptive runtime state: steps 3 -> 7, draft_tokens 4 -> 8",
            {"detail": "Switch adaptive runtime state: steps 3 -> 7, draft_tokens 4 -> 8"},
        ),
        Sample("Adaptive spec params"),
        also=("Switch adaptive runtime state",),
    ),
    _event(
        "profiling",
        "ddtree profile rounds",
        _ALL,
        Sample(
            "[2026-07-20 12:00:11 TP0] ddtree profile rounds=[50,100) profiled=50 mean_accept_len=n/a output_tokens/round=n/a "
            "top_cpu_ms= top_gpu_ms=",
            {"kind": "profiling", "tp_rank": 0},
        ),
        Sample("ddtree profile"),
        also=(
            "DDTREE profile rounds", "DFLASH profile rounds", "dflash profile rounds", "ddtree_v2 profile rounds",
            "DDTREE_V2 profile rounds", "[DDTREE rank-probe]", "Profiling starts", "Profiling done", "Stop profiling",
        ),
    ),
    _event(
        "notice",
        "DFLASH verify completed",
        _ALL,
        Sample(
            "[2026-07-20 12:00:09 TP0] DDTREE v2 verify completed. first commit_lens=[7, 1]",
            {"kind": "notice", "detail": "DDTREE v2 verify completed. first commit_lens=[7, 1]"},
        ),
        Sample("DFLASH verify"),
        also=(
            "DDTREE verify completed", "DDTREE spine verify completed", "DDTREE v2 verify completed", "DFLASH block size mismatch",
            "AdaptiveSpeculativeParams initialized",
        ),
    ),
    Line(
        Event,
        marker="SGLANG_SIMULATE_ACC_LEN",
        anywhere=True,
        pattern=_ALL,
        const={"kind": "simulated"},
        samples=(
            Sample("[2026-07-20 12:00:09] Using simulated acceptance, SGLANG_SIMULATE_ACC_LEN=3.0", {"kind": "simulated"}),
            Sample("[2026-07-20 12:00:09] Receive: obj=GenerateReqInput(rid='a', text='SGLANG_SIMULATE_ACC_LEN=3')"),
            Sample('she asked "what does SGLANG_SIMULATE_ACC_LEN do?"'),
        ),
    ),
)  # fmt: skip

SERVERS = (
    Line(
        ServerStart,
        marker="server_args=",
        reader=read_server_args,
        samples=(
            Sample(
                "[2025-08-08 09:08:57] server_args=ServerArgs(model_path='m', context_length=None, api_key='sk-1', tp_size=8, page_size=1, "
                "speculative_algorithm='DDTREE', speculative_ddtree_budget=16)",
                {
                    "algorithm": "DDTREE", "budget": 16, "tp_size": 8, "page_size": 1, "context_len": None,
                    "args": {
                        "model_path": "m", "context_length": "None", "api_key": "<redacted>", "tp_size": "8", "page_size": "1",
                        "speculative_algorithm": "DDTREE", "speculative_ddtree_budget": "16",
                    },
                    "args_cut": False,
                },
            ),
            Sample(
                "[2026-04-27 02:35:54] server_args={'model_path': 'org/model-8b', 'max_total_tokens': 64, 'log_le",
                {"max_total_tokens": 64, "args": {"model_path": "org/model-8b", "max_total_tokens": "64"}, "args_cut": True},
            ),
            Sample(
                "[2026-04-27 02:35:54] server_args=ServerArgs(model_path='org/model-8b', tp_size=8, ----cut----, page_size=16)",
                {"page_size": 16, "args": {"model_path": "org/model-8b", "tp_size": "8", "page_size": "16"}, "args_cut": True},
            ),
            Sample("[2026-04-27 02:35:54] server_args=ServerArgs(...)", {"args_cut": True}),
            Sample("[2026-04-27 02:35:54] server_args=ServerAr", broken="cut"),
            Sample("[2026-04-27 02:35:54] the server_args=ServerArgs(model_path='m')"),
        ),
    ),
    Line(
        ServerStart,
        marker="max_total_num_tokens=",
        reader=read_pool,
        samples=(
            Sample(
                "[2026-01-29 00:52:48 TP0] max_total_num_tokens=665690, chunked_prefill_size=8192, max_prefill_tokens=16384, "
                "max_running_requests=48, context_len=65536, available_gpu_mem=13.50 GB",
                {"max_total_tokens": 665690, "context_len": 65536, "args": None},
            ),
            Sample("[2026-01-29 00:52:48 TP0] max_total_num_tokens=", broken="cut"),
        ),
    ),
    Line(
        ServerStart,
        marker="Initialized DDTree worker",
        also=("Initialized DDTREE ", "Initialized DFLASH draft runner", "Initialized DSpark draft runner"),
        reader=read_worker,
        samples=(
            Sample(
                "[2026-07-08 12:00:00 TP0] Initialized DDTree worker. block_size=16, tree_budget=64, max_tree_nodes=65",
                {"algorithm": "DDTREE", "block_size": 16, "budget": 64, "args": None},
            ),
            Sample(
                "[2026-05-10 12:00:00 TP0] Initialized DFLASH draft runner. attention_backend=fa3, model=DFlashDraftModel, block_size=16, "
                "draft_window_size=None, compact_cache=False",
                {"algorithm": "DFLASH", "block_size": 16, "draft_window": None},
            ),
            Sample("[2026-05-10 12:00:00 TP0] Initialized something else. block_size=16"),
        ),
    ),
)  # fmt: skip

REQUESTS = (
    Line(
        RequestLine,
        marker="Receive: obj=",
        reader=read_received,
        samples=(
            Sample(
                "[2025-04-27 12:00:00] Receive: obj=GenerateReqInput(text='rid=\\'x\\'', rid='r2')",
                {"event": "received", "request_id": "r2"},
            ),
            Sample("[2025-04-27 12:00:00] Receive OpenAI: obj=ChatCompletionRequest(rid='r2')"),
        ),
    ),
    Line(
        RequestLine,
        marker="Finish: obj=",
        also=("in=GenerateReqInput(", "in=EmbeddingReqInput("),
        reader=read_finished,
        samples=(
            Sample(
                "[2025-12-02 12:00:03] Finish: obj=GenerateReqInput(rid='r2', text=\"out={'meta_info': {'completion_tokens': 1}}\"), "
                "out={'text': \"it's\", 'meta_info': {'id': 'r2', 'finish_reason': {'type': 'length', 'length': 256}, "
                "'prompt_tokens': 100, 'completion_tokens': 256, 'cached_tokens': 0, 'e2e_latency': 1.5, 'spec_verify_ct': 40, "
                "'spec_accept_token_num': 216, 'spec_draft_token_num': 600}}",
                {
                    "event": "finished", "request_id": "r2", "finish_reason": "length", "prompt_tokens": 100, "completion_tokens": 256,
                    "cached_tokens": 0, "e2e_ms": 1500.0, "verify_steps": 40, "accepted_drafts": 216, "proposed_drafts": 600,
                },
            ),
            Sample(
                "[2024-12-04 12:00:00] in=GenerateReqInput(rid='r1'), out={'meta_info': {'id': 'r1', 'completion_tokens': 256}}",
                {"event": "finished", "request_id": "r1", "completion_tokens": 256},
            ),
            Sample("[2025-12-02 12:00:03] Finish: obj=GenerateReqInput(rid='r2', text='half", broken="cut"),
            Sample("Finish: all"),
        ),
    ),
    Line(
        RequestLine,
        marker='{"timestamp":',
        shared=True,
        reader=read_json,
        samples=(
            Sample(
                '[2026-01-29 00:52:50] {"timestamp": "2026-01-29T00:52:50.123456", "event": "request.finished", "rid": "r3", "out": '
                '{"meta_info": {"id": "r3", "finish_reason": {"type": "stop", "matched": 2}, "spec_correct_drafts_histogram": [2, 4, 6]}}}',
                {"event": "finished", "request_id": "r3", "finish_reason": "stop", "accepted_histogram": [2, 4, 6]},
            ),
            Sample('[2026-01-29 00:52:51] {"timestamp": "2026-01-29T00:52:51.123456", "event": "scheduler.status", "rank": 0}'),
        ),
    ),
    Line(
        RequestLine,
        marker="ReqTimeStats(",
        also=("Req Time Stats(",),
        reader=read_stats,
        samples=(
            Sample(
                "Req Time Stats(rid=r2, input len=38, output len=484, type=unified): queue_duration=0.40ms, forward_duration=1499.00ms, "
                "start_time=0.0",
                {
                    "event": "stats", "request_id": "r2", "prompt_tokens": 38, "completion_tokens": 484, "queue_ms": 0.4,
                    "forward_ms": 1499.0, "extra": {"type": "unified", "start_time": "0.0"},
                },
            ),
            Sample("Req Time Stats(rid=r2, input len=38", broken="cut"),
            Sample("Req Time Stats(rid=r2, input len=(38), output len=4): queue_duration=0.40ms", broken="bad_form"),
            Sample("Req Time Stats(rid=r2, input len=38): queue_duration=1,024.40ms, forward_duration=1.00ms", broken="bad_number"),
            Sample("the ReqTimeStats(rid=r2): 1"),
        ),
    ),
)  # fmt: skip

SGLANG = Dialect(
    name="sglang",
    about="SGLang 0.3.0 to 0.5.23 and forks with DDTree metrics",
    counts=Counts(),
    lines=(STEP, DECODE, PREFILL, ACCESS, *EVENTS, *SERVERS, *REQUESTS),
)
