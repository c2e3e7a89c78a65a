"""A simulated run as the library's own tables, without the way through text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ddtree_metrics.records import TABLES
from ddtree_metrics.schema import arrow_schema
from ddtree_metrics.steps.streams import Streams

if TYPE_CHECKING:
    from tests.simulator import Run


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """Convert as ``ddtree_metrics.tables.to_pandas`` does."""
    try:
        from ddtree_metrics import tables
    except ImportError:
        return _to_pandas(table)
    return tables.to_pandas(table)


def _to_pandas(table: pa.Table) -> pd.DataFrame:
    plain = {
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
        pa.string(): pd.StringDtype("pyarrow"),
    }

    def pick(kind: pa.DataType) -> Any:
        return plain.get(kind, pd.ArrowDtype(kind) if pa.types.is_nested(kind) else None)

    return table.to_pandas(types_mapper=pick)


def _lists(values: np.ndarray, offsets: np.ndarray) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, pa.int32()))


def _batch(name: str, columns: dict[str, Any], n: int) -> pa.RecordBatch:
    schema = arrow_schema(TABLES[name])
    arrays = []
    for f in schema:
        made = columns.get(f.name)
        if made is None:
            arrays.append(pa.nulls(n, f.type))
        elif isinstance(made, pa.Array):
            arrays.append(made.cast(f.type) if made.type != f.type else made)
        elif pa.types.is_timestamp(f.type):
            values = np.asarray(made, np.int64)
            arrays.append(pa.array(values, pa.int64(), mask=values < 0).cast(f.type))
        elif np.isscalar(made) or isinstance(made, str):
            arrays.append(pa.array([made] * n, f.type))
        else:
            arrays.append(pa.array(made, f.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _common(run: Run, t: np.ndarray, server: np.ndarray, dp: np.ndarray) -> dict[str, Any]:
    s = run.settings
    boots = run.boot_of(t)
    return {
        "time": run.wall_us(t),
        "time_from": "journal",
        "time_resolution_us": 1,
        "monotonic_us": run.mono_us(t),
        "boot_id": pa.array([run.boot_id(int(b)) for b in boots], pa.string()),
        "host": s.host,
        "unit": s.unit,
        "pid": np.array([4001 + 100 * a + b for a, b in zip(server.tolist(), dp.tolist(), strict=True)], np.int64),
        "dp_rank": np.asarray(dp, np.int64) if s.dp > 1 else None,
        "tp_rank": 0 if s.tp > 1 else None,
        "dialect": "sglang",
    }


def frames(run: Run) -> dict[str, pd.DataFrame]:
    """Build steps, decode, prefill, servers, events, requests and request_lines."""
    s = run.settings
    made: dict[str, pa.RecordBatch] = {}
    times: dict[str, np.ndarray] = {}

    step = run._step
    kept = step["kept"].to_numpy(bool)
    rows = run._rows
    row_kept = kept[rows["step"].to_numpy(np.int64)] if len(rows) else np.empty(0, bool)
    sub = step[kept]
    bs = sub["bs"].to_numpy(np.int64)
    accepted = rows["accepted"].to_numpy(np.int64)[row_kept]
    commit = rows["commit"].to_numpy(np.int64)[row_kept]
    if not s.commit_includes_bonus:
        commit = np.maximum(commit - 1, 0)
    offsets = np.concatenate([[0], np.cumsum(bs)])
    averages = s.layout == "averages"
    t = sub["t_line"].to_numpy(float)
    times["steps"] = t
    sum_accepted = np.add.reduceat(accepted, offsets[:-1]) if len(bs) else np.empty(0)
    sum_commit = np.add.reduceat(commit, offsets[:-1]) if len(bs) else np.empty(0)
    made["steps"] = _batch(
        "steps",
        {
            **_common(run, t, sub["run"].to_numpy(np.int64), sub["dp"].to_numpy(np.int64)),
            "where": pa.array([f"simulated:{i + 1}" for i in np.flatnonzero(kept)], pa.string()),
            "batch_size": bs,
            "budget": s.budget,
            "nodes": None if averages else _lists(np.full(len(commit), s.budget + int(s.nodes_include_root)), offsets),
            "accepted_drafts": None if averages else _lists(accepted, offsets),
            "commit_lens": None if averages else _lists(commit, offsets),
            "avg_accepted_drafts": np.round(sum_accepted / np.maximum(bs, 1), 2),
            "avg_commit_len": np.round(sum_commit / np.maximum(bs, 1), 2),
            "steps": 1,
        },
        len(sub),
    )
    p = run._prefill[run._prefill["kept"]]
    times["prefill"] = t = p["t"].to_numpy(float)
    made["prefill"] = _batch(
        "prefill",
        {
            **_common(run, t, p["run"].to_numpy(np.int64), p["dp"].to_numpy(np.int64)),
            "new_seqs": p["seqs"].to_numpy(np.int64),
            "new_tokens": p["new"].to_numpy(np.int64),
            "cached_tokens": p["cached"].to_numpy(np.int64),
            "token_usage": np.zeros(len(p)),
            "running": p["running"].to_numpy(np.int64),
            "queued": p["queued"].to_numpy(np.int64),
        },
        len(p),
    )
    d = run._decode[run._decode["kept"]]
    times["decode"] = t = d["t"].to_numpy(float)
    made["decode"] = _batch(
        "decode",
        {
            **_common(run, t, d["run"].to_numpy(np.int64), d["dp"].to_numpy(np.int64)),
            "running": d["bs"].to_numpy(np.int64),
            "tokens": d["held"].to_numpy(np.int64),
            "token_usage": np.round(d["held"].to_numpy(float) / s.pool, 2),
            "accept_len": np.round(d["accept"].to_numpy(float), 2),
            "accept_rate": np.round((d["accept"].to_numpy(float) - 1) / s.budget, 2),
            "gen_throughput": np.round(d["rate"].to_numpy(float), 2),
            "queued": d["queued"].to_numpy(np.int64),
            "cuda_graph": d["graph"].to_numpy(bool),
        },
        len(d),
    )
    _servers_and_events(run, made, times)
    made["request_lines"], times["request_lines"] = _request_lines(run)
    order = np.argsort(np.concatenate(list(times.values())), kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    line, at = {}, 0
    for name, t in times.items():
        line[name] = rank[at : at + len(t)]
        at += len(t)
    for name in made:  # rows in the order of their lines
        turn = np.argsort(line[name], kind="stable")
        made[name] = made[name].take(pa.array(turn))
        line[name] = line[name][turn]
    filled = Streams().feed(made, line)
    out = {name: to_pandas(pa.Table.from_batches([batch])) for name, batch in filled.items()}
    out["requests"] = to_pandas(pa.Table.from_batches([_requests(run)]))
    return out


def _servers_and_events(run: Run, made: dict[str, pa.RecordBatch], times: dict[str, np.ndarray]) -> None:
    s = run.settings
    happened = sorted(run._tape.event, key=lambda e: e[0])
    starts = [e for e in happened if e[3] == "start" and e[1] == 0]
    t = np.array([e[0] for e in starts], float)
    times["servers"] = t
    args = [tuple(server_args(run, e[2]).items()) for e in starts]
    made["servers"] = _batch(
        "servers",
        {
            **_common(run, t, np.array([e[2] for e in starts], np.int64), np.full(len(starts), -1)),
            "dp_rank": None,
            "algorithm": "DDTREE",
            "num_draft_tokens": s.budget + 1,
            "num_steps": s.depth,
            "budget": s.budget,
            "block_size": s.depth + 1,
            "draft_window": s.window,
            "page_size": 1,
            "tp_size": s.tp,
            "dp_size": s.dp,
            "max_total_tokens": s.pool,
            "decode_log_interval": s.decode_log_interval,
            "args": pa.array(args, pa.map_(pa.string(), pa.string())),
        },
        len(starts),
    )
    told: list[tuple[float, int, int, str, int | None, str]] = []
    for at, dp, number, kind, count, detail in happened:
        if kind == "retraction":
            told.append((at, dp, number, kind, count, detail))
        elif kind == "exit" and dp == 0:
            told.append((at, -1, number, "exit", None, "the simulated server ends"))
        elif kind == "start" and dp == 0:
            told.append((at + 0.05, -1, number, "ready", None, "the simulated server is ready"))
    for at, lost in run.notices:
        told.append((at, -1, -1, "suppressed", lost, f"Suppressed {lost} messages from {s.unit}"))
    told.sort(key=lambda e: e[0])
    t = np.array([e[0] for e in told], float)
    times["events"] = t
    common = _common(run, t, np.array([max(e[2], 0) for e in told], np.int64), np.array([e[1] for e in told], np.int64))
    if s.dp > 1:
        common["dp_rank"] = pa.array([e[1] if e[1] >= 0 else None for e in told], pa.int32())
    common["pid"] = pa.array([None if e[2] < 0 else 4001 + 100 * e[2] + e[1] for e in told], pa.int32())
    made["events"] = _batch(
        "events",
        {**common, "kind": [e[3] for e in told], "count": pa.array([e[4] for e in told], pa.int64()), "detail": [e[5] for e in told]},
        len(told),
    )


def server_args(run: Run, number: int) -> dict[str, str]:
    """Return the flags of server start ``number``, as it prints them."""
    s = run.settings
    made = {
        "model_path": "simulated-model",
        "speculative_algorithm": "DDTREE",
        "speculative_num_steps": str(s.depth),
        "speculative_num_draft_tokens": str(s.budget + 1),
        "speculative_ddtree_budget": str(s.budget),
        "speculative_ddtree_debug_metrics": "True",
        "page_size": "1",
        "tp_size": str(s.tp),
        "dp_size": str(s.dp),
        "decode_log_interval": str(s.decode_log_interval),
        "reasoning_parser": "None",
        "tool_call_parser": "None",
        "api_key": "None",
        **s.args,
    }
    if s.window is not None:
        made["speculative_draft_window_size"] = str(s.window)
    for restart in sorted(s.restarts, key=lambda r: r.at)[:number]:
        made.update(restart.args)
    return made


def _requests(run: Run) -> pa.RecordBatch:
    """The table of requests as read from the server's request file: what finished, without health checks."""
    truth = run.truth_requests
    done = truth[truth["finish_reason"].notna() & (truth["finish_reason"] != "killed") & (truth["kind"] != "health_check")]
    depth = run.settings.budget
    n = len(done)
    return _batch(
        "requests",
        {
            "request_id": done["request_id"].tolist(),
            "received": done["received_us"].to_numpy(),
            "first_token": done["first_token_us"].to_numpy(),
            "finished": done["finished_us"].to_numpy(),
            "prompt_tokens": done["prompt_tokens"].to_numpy(np.int64),
            "cached_tokens": done["cached_tokens"].to_numpy(np.int64),
            "completion_tokens": done["completion_tokens"].to_numpy(np.int64),
            "reasoning_tokens": np.zeros(n, np.int64),
            "verify_steps": done["verify_steps"].to_numpy(np.int64),
            "accepted_drafts": done["accepted_drafts"].to_numpy(np.int64),
            "proposed_drafts": done["verify_steps"].to_numpy(np.int64) * depth,
            "accepted_histogram": pa.array(done["accepted_histogram"].tolist(), pa.list_(pa.int32())),
            "retractions": done["retractions"].to_numpy(np.int64),
            "dp_rank": done["dp_rank"].to_numpy(np.int64) if run.settings.dp > 1 else None,
            "finish_reason": done["finish_reason"].tolist(),
            "kind": done["kind"].tolist(),
            "source": "request_file",
            "where": [f"simulated-requests.jsonl:{i + 1}" for i in range(n)],
        },
        n,
    )


def _request_lines(run: Run) -> tuple[pa.RecordBatch, np.ndarray]:
    talk = [x for x, kept in zip(run._talk, run._talk_kept, strict=True) if kept]
    t = np.array([x[0] for x in talk], float)
    n = len(talk)
    server = np.array([x[2].run for x in talk], np.int64)
    over = [x[1] == "finished" for x in talk]

    def of(name: str) -> list[Any]:
        return [getattr(x[2], name) if f else None for x, f in zip(talk, over, strict=True)]

    def us(name: str) -> np.ndarray:
        seconds = np.array([getattr(x[2], name) for x in talk], float)
        good = np.array(over, bool) & ~np.isnan(seconds) if n else np.empty(0, bool)
        return np.where(good, run.wall_us(np.nan_to_num(seconds)), -1)

    common = _common(run, t, server, np.full(n, -1))
    common["dp_rank"] = common["tp_rank"] = None
    columns = {
        **common,
        "event": [x[1] for x in talk],
        "request_id": [x[2].rid for x in talk],
        "prompt_tokens": of("prompt"),
        "cached_tokens": of("cached"),
        "completion_tokens": of("completion"),
        "verify_steps": of("steps"),
        "accepted_drafts": of("accepted"),
        "accepted_histogram": pa.array(of("hist"), pa.list_(pa.int32())),
        "retractions": of("retractions"),
        "finish_reason": of("reason"),
        "received": us("received"),
        "first_token": us("first"),
        "finished": us("finished"),
        "e2e_ms": [1000 * (x[2].finished - x[2].received) if f else None for x, f in zip(talk, over, strict=True)],
    }
    return _batch("request_lines", columns, n), t


def client_frame(run: Run, offset_s: float) -> pd.DataFrame:
    """Return what a client notes: sent, first_chunk and last_chunk as epoch seconds of its own clock."""
    truth = run.truth_requests
    done = truth[(truth["completion_tokens"] > 0) & (truth["kind"] == "client")].sort_values("received_us")
    rng = np.random.default_rng([run.settings.seed, 5])
    net = rng.exponential(0.002, (3, len(done)))
    return pd.DataFrame(
        {
            "request_id": done["request_id"].to_numpy(),
            "sent": np.round(done["received_us"].to_numpy() / 1e6 - net[0] + offset_s, 6),
            "first_chunk": np.round(done["first_token_us"].to_numpy() / 1e6 + 0.02 + net[1] + offset_s, 6),
            "last_chunk": np.round(done["finished_us"].to_numpy() / 1e6 + net[2] + offset_s, 6),
            "prompt_tokens": done["prompt_tokens"].to_numpy(),
            "completion_tokens": done["completion_tokens"].to_numpy(),
        }
    )
