"""A simulated run as lines: what the server prints, as journald keeps it, and the server's request file."""

from __future__ import annotations

import gzip
import json
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.simulator import Run, _Request

LABEL = "simulated log: made by tests/simulator.py of ddtree_metrics; no server ran"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line in the journal."""

    realtime_us: int
    monotonic_us: int
    boot_id: str
    pid: int
    message: str
    seconds: float
    driver: int | None = None  # how many lines journald lost, if this is its own notice


def lines(run: Run) -> list[Entry]:
    """Render every line that survived, in the order in which they were logged."""
    s = run.settings
    raw: list[tuple[float, int, int, str, str]] = []  # seconds, server, rank (-1: the HTTP process), rank word, text
    rng = random.Random(s.seed)
    raw.append((-0.001, 0, -1, "", LABEL))

    def word(dp: int, tp: int) -> str:
        return (f" DP{dp}" if s.dp > 1 else "") + (f" TP{tp}" if s.tp > 1 or s.dp > 1 else "")

    step, rows = run._step, run._rows
    accepted, commit = rows["accepted"].tolist(), rows["commit"].tolist()
    if not s.commit_includes_bonus:
        commit = [max(c - 1, 0) for c in commit]
    node = s.budget + int(s.nodes_include_root)
    copies = s.tp if s.tp_copies else 1
    columns = zip(*(step[c].tolist() for c in ("t_line", "dp", "run", "bs", "first_row", "kept")), strict=True)
    for t, dp, number, bs, first, kept in columns:
        if kept:
            text = _step_text(s.layout, bs, s.budget, [node] * bs, accepted[first : first + bs], commit[first : first + bs], rng)
            for tp in range(copies):
                raw.append((t + tp * 2e-5, number, dp, word(dp, dp * s.tp + tp), text))
    p = run._prefill[run._prefill["kept"]]
    for t, dp, number, seqs, new, cached, running, queued, _ in p.itertuples(index=False):
        raw.append((t, number, dp, word(dp, dp * s.tp), _prefill_text(s.release, seqs, new, cached, running, queued)))
    d = run._decode[run._decode["kept"]]
    for t, dp, number, bs, held, accept, rate, queued, graph, decodes, _ in d.itertuples(index=False):
        text = _decode_text(s.release, s.budget + 1, s.pool, bs, held, accept, rate, queued, graph, decodes)
        raw.append((t, number, dp, word(dp, dp * s.tp), text))
    for t, dp, number, kind, count, _ in run._tape.event:
        if kind == "retraction":
            ratio = "#new_tokens_gained: 100, #new_token_ratio: 0.1000 -> 0.9000"
            text = f"KV cache pool is full. Retract requests. #retracted_reqs: {count}, {ratio}"
            raw.append((t, number, dp, word(dp, dp * s.tp), text))
        elif dp == 0:
            raw.extend((at, number, -1, "", text) for at, text in _server_text(run, t, number, kind))
    for (t, event, request), kept in zip(run._talk, run._talk_kept, strict=True):
        if kept:
            raw.append((t, request.run, -1, "", _request_text(run, event, request)))
            if event == "finished":
                raw.append((t + 1e-4, request.run, -1, "-", 'INFO:     127.0.0.1:50000 - "POST /generate HTTP/1.1" 200 OK'))
                if s.time_stats:
                    raw.append((t - 2e-4, request.run, request.dp, word(request.dp, request.dp * s.tp), _stats_text(run, request)))
    raw.sort(key=lambda x: x[0])
    seconds = np.array([x[0] for x in raw])
    wall, mono, boots = run.wall_us(seconds).tolist(), run.mono_us(seconds).tolist(), run.boot_of(seconds).tolist()
    made = []
    stamp, stamped = "", -1
    notices = list(run.notices)
    for i, (at, number, dp, rank, text) in enumerate(raw):
        while notices and notices[0][0] <= at:
            lost_at, lost = notices.pop(0)
            one = np.array([lost_at])
            notice = f"Suppressed {lost} messages from {s.unit}"
            made.append(Entry(int(run.wall_us(one)[0]), int(run.mono_us(one)[0]), run.boot_id(boots[i]), 1, notice, lost_at, lost))
        second = wall[i] // 1_000_000
        if second != stamped:
            stamped, stamp = second, time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(second))
        exact = f".{wall[i] // 1000 % 1000:03d}" if s.milliseconds else ""
        message = text if text == LABEL else f"[{stamp}{exact}{'' if rank == '-' else rank}] {text}"
        made.append(Entry(wall[i], mono[i], run.boot_id(boots[i]), run.pid(number, dp), message, at))
    return made


def _step_text(layout: str, bs: int, budget: int, nodes: list[int], accepted: list[int], commit: list[int], rng: random.Random) -> str:
    means = (sum(accepted) / bs, sum(commit) / bs)
    if layout == "working":
        return (
            f"DDTREE metrics: bs={bs} budget={budget} actual_nodes={nodes} accepted_drafts={accepted} commit_lens={commit} "
            f"avg_accepted_drafts={means[0]:.2f} avg_commit_len={means[1]:.2f}"
        )
    if layout == "averages":
        return f"DDTREE metrics: bs={bs} budget={budget} avg_accepted_drafts={means[0]:.2f} avg_commit_len={means[1]:.2f}"
    if layout == "colon":
        return (
            f"DDTREE metrics: bs: {bs}, budget: {budget}, actual_nodes: {nodes}, accepted_drafts: {accepted}, commit_lens: {commit}, "
            f"avg_accepted_drafts: {means[0]:.2f}, avg_commit_len: {means[1]:.2f}"
        )
    one = layout == "scalar" and bs == 1
    pairs = [
        f"bs={bs}",
        f"budget={budget}",
        f"actual_nodes={nodes[0] if one else nodes}",
        f"accepted_drafts={accepted[0] if one else accepted}",
        f"{'commit_len' if layout == 'singular' else 'commit_lens'}={commit[0] if one else commit}",
        f"avg_accepted_drafts={means[0]:.2f}",
        f"avg_commit_len={means[1]:.2f}",
    ]
    if layout == "shuffled":
        rng.shuffle(pairs)
    elif layout not in ("singular", "scalar"):
        raise ValueError(f"no layout {layout!r}")
    return "DDTREE metrics: " + " ".join(pairs)


def _version(release: str) -> tuple[int, ...]:
    return tuple(int(x) for x in release.split(".")[:3])


def _prefill_text(release: str, seqs: int, new: int, cached: int, running: int, queued: int) -> str:
    end = "," if _version(release) >= (0, 5, 4) else "."
    text = f"Prefill batch{end} #new-seq: {seqs}, #new-token: {new}, #cached-token: {cached}, token usage: 0.00, "
    text += f"#running-req: {running}, #queue-req: {queued}"
    if _version(release) < (0, 5, 9):
        return text + ", "
    return text + ", cuda graph: False, input throughput (token/s): 0.00"


def _decode_text(
    release: str, width: int, pool: int, bs: int, held: int, accept: float, rate: float, queued: int, graph: bool, decodes: int
) -> str:
    version = _version(release)
    end = "," if version >= (0, 5, 4) else "."
    share = (accept - 1) / (width - 1) if version >= (0, 5, 11) else accept / width
    accepted = f"accept len: {accept:.2f}, " + (f"accept rate: {share:.2f}, " if version >= (0, 5, 3) else "")
    return (
        f"Decode batch{end} #running-req: {bs}, #token: {held}, token usage: {held / pool:.2f}, {accepted}cuda graph: {bool(graph)}, "
        f"gen throughput (token/s): {rate:.2f}, #queue-req: {queued}{', ' if version < (0, 5, 9) else ''}"
    )


def _server_text(run: Run, t: float, number: int, kind: str) -> list[tuple[float, str]]:
    from tests.simulator_frames import server_args

    if kind == "exit":
        return [(t, "SIGTERM received. signum=None frame=None. Draining requests and shutting down...")]
    plain = {"None": None, "True": True, "False": False}
    args = {k: plain[v] if v in plain else int(v) if v.isdigit() else v for k, v in server_args(run, number).items()}
    text = (
        f"server_args={args!r}"
        if _version(run.settings.release) >= (0, 5, 19)
        else ("server_args=ServerArgs(" + ", ".join(f"{k}={v!r}" for k, v in args.items()) + ")")
    )
    pool = run.settings.pool
    return [
        (t, text),
        (
            t + 0.02,
            f"max_total_num_tokens={pool}, chunked_prefill_size={run.settings.chunk}, max_prefill_tokens=16384, "
            f"max_running_requests={run.settings.max_running}, context_len=262144, available_gpu_mem=8.00 GB",
        ),
        (t + 0.05, "The server is fired up and ready to roll!"),
    ]


def _finish_reason(request: _Request) -> dict[str, Any]:
    if request.reason == "length":
        return {"type": "length", "length": request.completion}
    return {"type": request.reason, "matched": 2} if request.reason == "stop" else {"type": "abort", "message": "Abort in simulation"}


def _meta(run: Run, request: _Request) -> dict[str, Any]:
    """Return ``meta_info`` of a finished request, with the keys of the chosen release."""

    def wall(t: float) -> float | None:
        return None if math.isnan(t) else float(run.wall_us(np.array([t]))[0]) / 1e6

    version = _version(run.settings.release)
    proposed = request.steps * run.settings.budget
    if version >= (0, 5, 20):
        names = ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram")
    elif version >= (0, 5, 11):
        names = ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram")
    else:
        names = ("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram")
    made: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": _finish_reason(request),
        "prompt_tokens": request.prompt,
        "num_retractions": request.retractions,
        "forward_entry_time": wall(request.forward),
        "prefill_finished_time": wall(request.first),
        "queue_time": 0.0,
        "completion_tokens": request.completion,
        "cached_tokens": request.cached,
        "dp_rank": request.dp if run.settings.dp > 1 else None,
        "e2e_latency": request.finished - request.received,
    }
    if request.steps:
        made |= {
            "spec_accept_rate": request.accepted / proposed,
            "spec_accept_length": request.completion / request.steps,
            names[0]: request.accepted,
            names[1]: proposed,
            "spec_verify_ct": request.steps,
            names[2]: list(request.hist),
        }
    made |= {
        "request_received_ts": wall(request.received),
        "first_token_latency": None if math.isnan(request.first) else request.first - request.received,
        "request_finished_ts": wall(request.finished),
    }
    return made


def _request_text(run: Run, event: str, request: _Request) -> str:
    if run.settings.log_requests == "json":
        name = "request.received" if event == "received" else "request.finished"
        body: dict[str, Any] = {"timestamp": "", "event": name, "rid": request.rid, "obj": {"rid": request.rid, "stream": True}}
        if event == "finished":
            body["out"] = {"meta_info": _meta(run, request)}
        t = request.received if event == "received" else request.finished
        us = int(run.wall_us(np.array([t]))[0])
        body["timestamp"] = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(us // 1_000_000)) + f".{us % 1_000_000:06d}"
        return json.dumps(body)
    obj = f"obj=GenerateReqInput(rid='{request.rid}', sampling_params={{'max_new_tokens': {request.output}}}, stream=True)"
    if event == "received":
        return f"Receive: {obj}"
    return f"Finish: {obj}, out={{'meta_info': {_meta(run, request)!r}}}"


def _stats_text(run: Run, request: _Request) -> str:
    entry = float(run.wall_us(np.array([request.received]))[0]) / 1e6
    forward = 0.0 if math.isnan(request.forward) else 1000 * (request.finished - request.forward)
    if _version(run.settings.release) >= (0, 5, 12):
        return (
            f"ReqTimeStats(rid={request.rid}, input_len={request.prompt}, cached_input_len={request.cached}, "
            f"output_len={request.completion}, "
            f"type=unified): queue_duration=0.00ms, forward_duration={forward:.2f}ms, entry_time={entry:.3f}"
        )
    return (
        f"Req Time Stats(rid={request.rid}, input len={request.prompt}, output len={request.completion}, type=unified): "
        f"queue_duration=0.00ms, forward_duration={forward:.2f}ms, start_time={entry:.2f}"
    )


def requests_jsonl(run: Run) -> list[str]:
    """Return the lines of the server's request file: what finished, health checks left out."""
    done = [r for r in run._tape.requests if r.reason not in (None, "killed") and r.kind != "health_check"]
    done.sort(key=lambda r: r.finished)
    made = []
    for r in done:
        parameters = {"rid": r.rid, "sampling_params": {"max_new_tokens": r.output}, "stream": True, "simulated": True}
        made.append(json.dumps({"request_parameters": json.dumps(parameters), **_meta(run, r)}))
    return made


# -- how it is stored ---------------------------------------------------------------------------------------------------------


def _cursor(run: Run, i: int, e: Entry) -> str:
    return f"s=51313a1ed;i={i + 1:x};b={e.boot_id};m={e.monotonic_us:x};t={e.realtime_us:x};x=0"


def _fields(run: Run, i: int, e: Entry) -> dict[str, str]:
    made = {
        "__CURSOR": _cursor(run, i, e),
        "__REALTIME_TIMESTAMP": str(e.realtime_us),
        "__MONOTONIC_TIMESTAMP": str(e.monotonic_us),
        "_BOOT_ID": e.boot_id,
        "_HOSTNAME": run.settings.host,
        "PRIORITY": "6",
        "_PID": str(e.pid),
    }
    if e.driver is not None:
        return made | {
            "_TRANSPORT": "driver",
            "SYSLOG_IDENTIFIER": "systemd-journald",
            "_SYSTEMD_UNIT": "systemd-journald.service",
            "MESSAGE_ID": "a596d6fe7bfa4994828e72309e95d61e",
            "OBJECT_SYSTEMD_UNIT": run.settings.unit,
            "N_DROPPED": str(e.driver),
            "MESSAGE": e.message,
        }
    return made | {
        "_TRANSPORT": "stdout",
        "SYSLOG_IDENTIFIER": "python",
        "_SYSTEMD_UNIT": run.settings.unit,
        "_STREAM_ID": f"{e.pid // 100:032x}",
        "MESSAGE": e.message,
    }


def _store(path: Path, data: bytes) -> Path:
    if path.suffix == ".zst":
        import pyarrow as pa

        with pa.CompressedOutputStream(str(path), "zstd") as out:
            out.write(data)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(data, mtime=0))
    else:
        path.write_bytes(data)
    return path


def write_text(run: Run, path: Path) -> Path:
    """Write the messages alone."""
    return _store(path, "".join(e.message + "\n" for e in run.lines if e.driver is None).encode())


def write_export(run: Run, path: Path) -> Path:
    """Write in journald's export format."""
    text = "".join("".join(f"{k}={v}\n" for k, v in _fields(run, i, e).items()) + "\n" for i, e in enumerate(run.lines))
    return _store(path, text.encode())


def write_journal_json(run: Run, path: Path) -> Path:
    """Write as ``journalctl -o json`` does."""
    return _store(path, "".join(json.dumps(_fields(run, i, e)) + "\n" for i, e in enumerate(run.lines)).encode())
