"""From the tables of a log to its basis: DDTree lines where there are any, else stock ``Decode batch`` lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddtree_metrics.memory import give_back, return_large_arrays
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.basis import Basis, Codes, Kind, empty_like, floats, microseconds
from ddtree_metrics.steps.decode_windows import decode_step_times, steps_from_decode
from ddtree_metrics.steps.engine_windows import engine_windows
from ddtree_metrics.steps.frames import Bools, Floats, Ints
from ddtree_metrics.steps.nearby import add_decode_context, add_graph, add_requests
from ddtree_metrics.steps.own_requests import EXCLUDED, own_rows
from ddtree_metrics.steps.repeated_prompts import prompt_keys
from ddtree_metrics.steps.request_rows import rows_of_requests
from ddtree_metrics.steps.speculation import speculative
from ddtree_metrics.steps.starts import Rows, place, service_keys, service_name, services_by_stream
from ddtree_metrics.steps.tokens import neutral_columns
from ddtree_metrics.steps.window_contexts import contexts_of_windows

STRETCH_STEPS = 25
"""Where requests cannot be told apart, so many steps in a row are taken as one cluster, fewer in a short log."""

STRETCHES = 20

FAR_OFF_TOKENS, FAR_OFF_SHARE = 16, 0.1
"""A join whose count differs from the request's by more than both (the share is of the context) is not believed."""

ABSURD_MS, ABSURD_TOKENS, ABSURD_CONTEXT = 1e8, 1e5, 1e9
"""Larger values are no measurements: a step of a day, a commit of a book, a context of a library."""

LONG = 1 << 17
"""From so many rows on, memory that is free is given back between the stages."""

MORE = ("drafts", "draft_nodes", "step_index")
"""Columns that only some metrics ask for."""

PLAIN = "decoding is without speculation: no line has an accept length, and a step is one token of each request"
PLAIN_IN_PART = "in part of the log decoding is without speculation: there no line has an accept length, and a step is one token"


def basis_of(log: Any) -> Basis:
    """Return the rows that the numbers of a log rest on.

    DDTree lines are taken where there are any; else stock ``Decode batch`` lines, each as one step where they are logged every step, else
    as a window; else the requests of a server that prints no more than one block of lines for each. Requests of the server itself
    (warm-ups, health checks) are left out and counted.

    Parameters
    ----------
    log : Log
        Or anything with its frames; a ``Log`` makes them once.

    Returns
    -------
    Basis
        To add notes and counts to; the arrays are shared and not to be changed.
    """
    kept = getattr(log, "basis", None)
    if isinstance(kept, Basis):
        return kept.copy()
    return build(log)


def build(log: Any) -> Basis:
    """Make the basis of a log; see ``basis_of``."""
    heads, decode = _step_heads(log), empty_like(log, "decode")
    servers, requests = empty_like(log, "servers"), empty_like(log, "requests")
    interval: int | None = None
    spoken: Floats | None = None
    whole = rows_of_requests(log) if not len(heads) else None
    if whole is not None:
        rows, kind = whole, Kind.REQUESTS
    elif cols.has(decode, "prompt_throughput"):
        rows, kind = _rows_of_windows(decode, servers, requests, getattr(log, "clock_offset_s", None) or 0.0), Kind.ENGINE_WINDOWS
    elif len(heads) or not len(decode):
        rows = _request_steps(log)
        if not len(rows) and len(heads):
            rows = _rows_of_steps(empty_like(log, "steps"))
        kind = Kind.STEP_LINES if cols.has(rows, "request_id") else Kind.STEP_LINES_NO_REQUESTS
        kind = kind if len(rows) else Kind.NOTHING
    else:
        rows, kind, interval = _rows_of_decode(log, decode, servers, requests)
    own = own_rows(rows, requests, getattr(log, "own_requests", None))
    if own.any():
        rows = _without(rows, own)
    rows = rows.copy(deep=False)
    rows.index = pd.RangeIndex(len(rows))
    by_stream = services_by_stream(heads, decode, _heads(rows))
    if kind in (Kind.DECODE_STEPS, Kind.DECODE_WINDOWS):
        spoken = _spoken(rows, decode, servers)
    elif kind in (Kind.REQUESTS, Kind.ENGINE_WINDOWS):
        spoken = floats(rows, "speculative")
    if len(rows) >= LONG:
        return_large_arrays()
        give_back()
    made = _from_rows(rows, kind, spoken)
    if len(rows) >= LONG:
        give_back()
    made.log_interval = interval
    made.excluded = {EXCLUDED: int(own.sum()), **made.excluded} if own.any() else made.excluded
    if kind is Kind.ENGINE_WINDOWS:
        whose = (
            "context is that of the requests that ran, by what their client says"
            if np.isfinite(made.context).any()
            else "no line has a context length"
        )
        made.notes.append(f"a window tells of steps only where the same requests ran all through it and no prompt did; {whose}")
    if kind is Kind.REQUESTS:
        made.notes.append(
            "one row is a request: its step time is a mean over its steps, its context that in their middle, and its batch the mean number "
            "of requests that decoded with it"
        )
    if kind is Kind.DECODE_WINDOWS:
        made.notes.append("context is #token / #running-req of a Decode line: a mean over the batch, slots held ahead included")
    if made.plain:
        made.notes.append(PLAIN)
    elif (made.speculative == 0.0).any():
        made.notes.append(PLAIN_IN_PART)
    if len(heads):
        add_decode_context(made, decode)
    _add_starts(made, servers, by_stream)
    add_requests(made, requests)
    add_graph(made, decode)
    _shrink(made)
    if len(made) >= LONG:
        give_back()
    return made


def _step_heads(log: Any) -> pd.DataFrame:
    """Return the first step of each stream; of a log that cannot tell them, all steps."""
    heads = getattr(log, "heads", None)
    return heads("steps") if callable(heads) else empty_like(log, "steps")


def _heads(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the first row of each stream."""
    return rows.drop_duplicates("stream") if "stream" in rows else rows.head(0)


def _request_steps(log: Any) -> pd.DataFrame:
    """Return the rows of a join: those that are there, else such that nobody else holds."""
    fresh = getattr(log, "fresh_request_steps", None)
    return fresh() if callable(fresh) else empty_like(log, "request_steps")


def _shrink(made: Basis) -> None:
    """Hold numbers in 32 bits where they fit, and a column of one value as that value: the rows of a million steps are 2 to 4 million."""
    for name, kind in Basis.__annotations__.items():
        if kind not in ("Floats", "Ints", "Codes", "Bools", "Numbers"):
            continue
        values = getattr(made, name)
        if not len(values):
            continue
        first = values[0]
        if (values == first).all() or (kind == "Floats" and np.isnan(first) and bool(np.isnan(values).all())):
            setattr(made, name, np.broadcast_to(first, len(values)))
        elif kind == "Numbers" and values.min() >= -(2**31) and values.max() < 2**31:
            setattr(made, name, values.astype(np.int32))


def _rows_of_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """Make one row a step where nothing could be joined: tokens are the mean over the batch."""
    made = neutral_columns(steps)
    made["tokens"] = made["tokens_per_step"]
    made["weight"] = 1.0
    return made.drop(columns=["request_id", "drafts", "draft_nodes"], errors="ignore")


def _rows_of_decode(log: Any, decode: pd.DataFrame, servers: pd.DataFrame, requests: pd.DataFrame) -> tuple[pd.DataFrame, Kind, int | None]:
    """Take stock lines: one a step where the interval is 1, else one a window of steps."""
    prefill, events = empty_like(log, "prefill"), empty_like(log, "events")
    kept: pd.DataFrame | None = getattr(log, "decode_steps", None)  # a Log keeps them, and joins them once
    made = steps_from_decode(decode, prefill=prefill, events=events, servers=servers) if kept is None else kept
    if made.attrs.get("log_interval") == 1:
        joined: pd.DataFrame | None = getattr(log, "lean_decode_request_steps", None)
        if joined is None:
            from ddtree_metrics.join import join_requests

            joined = join_requests(made, requests, prefill, decode=decode, events=events)
        return joined, Kind.DECODE_STEPS, 1
    timed = decode_step_times(decode, prefill=prefill, events=events, servers=servers)
    interval = timed.attrs.get("log_interval")
    running = floats(timed, "running")
    running[running < 1] = np.nan
    why = cols.text(timed, "step_why")
    context = floats(timed, "tokens") / running
    # #token falls to the rest of the batch when a request ends: it is then nobody's context
    context[(context <= 0) | np.isin(why, ["requests_changed", "retraction"])] = np.nan
    tokens = floats(timed, "accept_len")
    rows = pd.DataFrame(
        {
            "tokens": np.where(tokens > 0, tokens, np.nan),
            "batch_size": running,
            "context_len": context,
            "time_us": cols.time_us(timed),
            "step_time_ms": floats(timed, "step_time_ms"),
            "step_why": why,
            "stream": cols.text(timed, "stream"),
            "boot_id": cols.text(timed, "boot_id"),
            "weight": float(interval or 1),
            "request_id": _alone(microseconds(timed), running, requests),
        }
    )
    return rows, Kind.DECODE_WINDOWS, interval


def _rows_of_windows(decode: pd.DataFrame, servers: pd.DataFrame, requests: pd.DataFrame, ahead_s: float) -> pd.DataFrame:
    """Take the windows in which something was generated, one row each; with their context where requests tell which ran."""
    lines = decode[decode["prompt_throughput"].notna()].reset_index(drop=True)
    told = engine_windows(lines, servers)
    running, step = floats(lines, "running"), told["step_time_ms"].to_numpy(dtype=np.float64)
    drafted = pd.Series(np.isfinite(floats(lines, "drafted")).astype(np.float64))
    stream = cols.text(lines, "stream")
    at = cols.time_us(lines)
    one = len(set(service_keys(lines))) == 1  # a client does not say which of several services it asked
    contexts = contexts_of_windows(
        at + ahead_s * 1e6,
        floats(told, "window_ms") * 1e3,
        running,
        floats(told, "generated"),
        np.isfinite(step),
        requests if one else requests[:0],
    )
    rows = pd.DataFrame(
        {
            "context_len": contexts,
            "tokens": told["tokens_per_step"],
            "batch_size": np.where(np.isfinite(step), running, np.nan),
            "time_us": at,
            "step_time_ms": step,
            "step_why": cols.text(told, "step_why"),
            "stream": stream,
            "host": cols.text(lines, "host"),
            "unit": cols.text(lines, "unit"),
            "where": cols.text(lines, "where"),
            "boot_id": cols.text(lines, "boot_id"),
            "weight": told["request_steps"],
            "speculative": drafted.groupby(pd.Series(stream).fillna("").to_numpy()).transform("max"),
        }
    )
    return rows[told["generated"].to_numpy() > 0]


def _spoken(rows: pd.DataFrame, decode: pd.DataFrame, servers: pd.DataFrame) -> Floats:
    """Say of each row whether its server speculated, by the Decode line it was made of."""
    told = speculative(decode, servers)
    if len(rows) == len(decode):
        return told
    lines = pd.DataFrame({"stream": cols.text(decode, "stream"), "at": cols.time_us(decode), "told": told})
    by = lines.dropna(subset=["at"]).drop_duplicates(["stream", "at"], keep="last").set_index(["stream", "at"])["told"]
    mine = pd.MultiIndex.from_arrays([cols.text(rows, "stream"), cols.time_us(rows)])
    return np.asarray(by.reindex(mine).to_numpy(dtype=np.float64))


def _from_rows(rows: pd.DataFrame, kind: Kind, spoken: Floats | None) -> Basis:
    """Make the basis of rows; columns are taken out of them as they are read, so that a long log is not held twice."""
    n = len(rows)

    def take(name: str) -> Floats:
        values = floats(rows, name)
        _drop(rows, name)
        return values

    time = microseconds(rows)
    batch = floats(rows, "batch_size")
    batch[batch < 1] = np.nan
    stream, streams = _codes(rows, "stream")
    step = _step_codes(rows, stream, time, batch)
    request, requests = _codes(rows, "request_id")
    text = _texts(rows, request)
    _drop(rows, "where", "request_id", "stream", "time_us", "time", "batch_size", "trusted")
    if n >= LONG:
        give_back()
    step_ms = take("step_time_ms") if "step_time_ms" in rows else take("step_us") / 1000.0
    bad = np.isfinite(step_ms) & (step_ms <= 0)
    step_ms[bad] = np.nan
    tokens = take("tokens")
    absurd = (np.abs(np.nan_to_num(step_ms)) > ABSURD_MS) | (np.abs(np.nan_to_num(tokens)) > ABSURD_TOKENS)
    step_ms[absurd] = tokens[absurd] = np.nan
    negative = np.isfinite(tokens) & (tokens < 0)
    tokens[negative] = np.nan
    weight = take("weight")
    weight = np.where(np.isfinite(weight) & (weight > 0), weight, 1.0 / np.where(np.isfinite(batch), batch, 1.0))
    order = np.lexsort((take("slot"), step, stream, time))
    first = np.zeros(n, dtype=bool)
    first[order[~pd.Series(step[order]).duplicated().to_numpy()]] = True
    context, generated = take("context_len"), take("generated_len")
    context[(context < 0) | (context > ABSURD_CONTEXT)] = np.nan
    generated[(generated < 0) | (generated > ABSURD_CONTEXT)] = np.nan
    batch_context = take("batch_context")
    # a request whose committed tokens are far from what it got was joined wrongly; a few tokens do not matter to its context
    off = np.abs(take("reconciled"))
    doubtful = np.isfinite(off) & (off > np.maximum(FAR_OFF_TOKENS, FAR_OFF_SHARE * np.nan_to_num(context)))
    del off
    context[doubtful] = generated[doubtful] = batch_context[doubtful] = np.nan
    alone = ~np.isfinite(batch_context) & np.isfinite(context)
    batch_context[alone] = context[alone] * np.where(np.isfinite(batch[alone]), batch[alone], 1.0)
    longest = generated
    if n and np.nanmax(np.nan_to_num(batch), initial=0.0) > 1:
        longest = pd.Series(generated).groupby(step).transform("max").to_numpy(np.float64)
    why, reasons = _small(_codes(rows, "step_why"))
    boot, boots = _small(_codes(rows, "boot_id"))
    nothing = np.broadcast_to(np.nan, n)
    if spoken is None:
        spoken = np.broadcast_to(1.0, n)  # a server that writes step lines speculates
    made = Basis(
        tokens=tokens,
        step_ms=step_ms,
        elapsed_us=nothing,
        context=context,
        batch_context=batch_context,
        generated=generated,
        longest=longest,
        prompt=take("prompt_len"),
        batch=batch,
        uptime_s=nothing,
        cached=nothing,
        graph_off=nothing,
        budget=take("budget"),
        speculative=spoken,
        time_us=time,
        run=np.broadcast_to(np.int64(1), n),
        cluster=request,
        text=text,
        stretch=np.broadcast_to(np.int64(0), n),
        stream=stream,
        step=step,
        service=np.broadcast_to(np.int32(0), n),
        family=_families(stream, streams),
        weight=weight,
        first=first,
        known=request >= 0,
        why_code=why,
        request_code=request.astype(np.int32),
        boot_code=boot,
        matched_code=np.broadcast_to(np.int32(-1), n),
        stream_names=streams,
        why_names=reasons,
        request_names=requests,
        boot_names=boots,
        kind=kind,
    )
    for name in MORE:
        if cols.has(rows, name):
            made.more[name] = take(name).astype(np.float32)
    if cols.has(rows, "matched"):
        made.matched_code, made.matched_names = _small(_codes(rows, "matched"))
    _count(made, {"bad": bad, "negative": negative, "absurd": absurd, "doubtful": doubtful})
    _sort(made, order)
    made.elapsed_us = _elapsed(made)
    _add_stretches(made)
    return made


def _drop(rows: pd.DataFrame, *names: str) -> None:
    for name in names:
        if name in rows:
            del rows[name]


def _without(rows: pd.DataFrame, out: Bools) -> pd.DataFrame:
    """Return the other rows, column by column: a long table is not held twice."""
    rows, kept = rows.copy(deep=False), ~out
    return pd.DataFrame({name: rows.pop(name).array[kept] for name in map(str, rows.columns.tolist())}, copy=False)


def _count(made: Basis, odd: dict[str, Bools]) -> None:
    """Count what cannot be used, by reason."""
    untimed = made.first & ~np.isfinite(made.step_ms) & ~odd["bad"] & ~odd["absurd"]
    made.count("step time not positive", int((odd["bad"] & made.first).sum()))
    made.count("tokens negative", int(odd["negative"].sum()))
    made.count("step time or tokens beyond any sense", int(odd["absurd"].sum()))
    made.count("tokens unknown", int((~np.isfinite(made.tokens) & ~odd["negative"] & ~odd["absurd"]).sum()))
    counts = np.bincount(made.why_code[untimed].astype(np.int64) + 1, minlength=len(made.why_names) + 1)
    for code in np.argsort(-counts, kind="stable"):
        made.count(f"no step time: {made.why_names[code - 1]}" if code else "no step time", int(counts[code]))
    made.count("context not used: the join's tokens are far from the request's", int(odd["doubtful"].sum()))
    made.count("no context length", int((~np.isfinite(made.context) & ~odd["doubtful"]).sum()))
    made.count("no request", int((~made.known).sum()))


def _sort(made: Basis, order: Ints) -> None:
    """Put the rows into an order."""
    if np.array_equal(order, np.arange(len(order))):
        return
    for name, kind in Basis.__annotations__.items():
        if kind in ("Floats", "Ints", "Codes", "Bools", "Numbers"):
            values = getattr(made, name)
            setattr(made, name, values if not any(values.strides) else values[order])
    made.more = {name: values[order] for name, values in made.more.items()}


def _elapsed(made: Basis) -> Floats:
    """Return the wall time since the line before of the same stream, the same for all rows of a step; NaN where it is not known."""
    result = np.full(len(made), np.nan)
    rows = np.flatnonzero(made.first)
    rows = rows[np.argsort(made.stream[rows], kind="stable")]
    passed = np.diff(made.time_us[rows]).astype(np.float64)
    known = (np.diff(made.stream[rows]) == 0) & (made.time_us[rows[1:]] >= 0) & (made.time_us[rows[:-1]] >= 0) & (passed >= 0)
    result[rows[1:][known]] = passed[known]
    if len(rows) == len(made):
        return result
    by_step = np.full(int(made.step.max(initial=-1)) + 1, np.nan)
    by_step[made.step[rows]] = result[rows]
    return by_step[made.step]


_BEGINS_ANEW = ("first", "boot", "restart", "prefill_between", "after_idle", "gap")
"""What lies before the first step of another request."""

FEWEST_PARTS = 8
"""With fewer stretches between prefills than this, blocks of steps are taken."""


def _add_stretches(made: Basis) -> None:
    """Put steps in a row into blocks, which stand for requests where these cannot be told apart."""
    if not len(made):
        return
    counter = pd.Series(made.first).groupby(made.stream).cumsum().to_numpy(np.int64)
    size = int(np.clip(made.first.sum() // STRETCHES, 4, STRETCH_STEPS))
    block = counter // size
    made.stretch = pd.factorize((made.stream + 1) * (int(block.max()) + 1) + block)[0].astype(np.int64)
    requests, texts = len(np.unique(made.cluster[made.known])), len(np.unique(made.text[made.known]))
    lone = made.cluster < 0
    unknown = _between_prefills(made, lone) if lone.any() else made.stretch
    made.cluster[lone] = made.cluster.max(initial=-1) + 1 + unknown[lone]
    made.text[lone] = made.text.max(initial=-1) + 1 + unknown[lone]
    if texts < requests:
        made.notes.append(
            f"{requests} requests have at most {texts} distinct prompts: repeats say nothing of other texts, and are taken as one"
        )


def _between_prefills(made: Basis, lone: Bools) -> Ints:
    """Return what stands for the request of rows that tell none: the steps between two prefills, blocks of steps where there are few.

    The steps from one prefill to the next are of the same texts, however many they are: blocks of them would count one text several times.
    """
    cuts = [i for i, name in enumerate(made.why_names) if str(name) in _BEGINS_ANEW]
    begins = made.first & np.isin(made.why_code, cuts)
    part = pd.Series(begins).groupby(made.stream).cumsum().to_numpy(np.int64)
    block = pd.factorize((made.stream + 1) * (int(part.max(initial=0)) + 1) + part)[0].astype(np.int64)
    return block if len(np.unique(block[lone])) >= FEWEST_PARTS else made.stretch


def _add_starts(made: Basis, servers: pd.DataFrame, by_stream: dict[str, str]) -> None:
    """Give each row its service and its server start."""
    names = [by_stream.get(str(name), "\x1f") for name in made.stream_names]
    codes, services = pd.factorize(np.array([*names, "\x1f"], dtype=object))
    used = np.unique(codes[made.stream]) if len(made) else np.empty(0, dtype=np.int64)
    renamed = np.full(len(services), -1, dtype=np.int64)
    renamed[used] = np.arange(len(used))
    keys = [str(services[i]) for i in used] or ["\x1f"]
    if len(made):
        made.service = renamed[codes[made.stream]].astype(np.int32)
    reasons = {str(name): i for i, name in enumerate(made.why_names)}
    begins = np.isin(made.why_code, [reasons[name] for name in ("restart", "boot") if name in reasons])
    first = begins | np.isin(made.why_code, [reasons[name] for name in ("first",) if name in reasons])
    placed = place(
        Rows(
            made.time_us,
            made.stream,
            made.family,
            made.service.astype(np.int64),
            made.speculative,
            begins,
            first,
            made.boot_code,
            made.boot_names,
        ),
        servers,
        keys,
    )
    made.services = [service_name(key) for key in keys]
    made.runs, made.run, made.uptime_s = placed.runs, placed.run, placed.uptime_s
    made.notes += placed.notes


def _codes(rows: pd.DataFrame, name: str) -> tuple[Ints, npt.NDArray[Any]]:
    """Give each distinct text of a column a number, -1 where it is null; in the order of its first rows."""
    if name not in rows:
        return np.full(len(rows), -1, dtype=np.int64), np.empty(0, dtype=object)
    codes, names = pd.factorize(rows[name], use_na_sentinel=True)
    return np.asarray(codes, dtype=np.int64), np.asarray(names, dtype=object)


def _small(made: tuple[Ints, npt.NDArray[Any]]) -> tuple[Codes, npt.NDArray[Any]]:
    return made[0].astype(np.int32), made[1]


def _texts(rows: pd.DataFrame, code: Ints) -> Ints:
    """Give each row the number of its request's prompt: repeats of one prompt are not independent of each other."""
    if not (code >= 0).any() or "prompt_len" not in rows:
        return code.copy()
    keys = prompt_keys(rows)
    return keys.codes.copy() if keys.source in ("prompt_id", "sequence") else code.copy()


def _families(stream: Ints, streams: npt.NDArray[Any]) -> Ints:
    """Give each row the number of its host and rank: the name of a stream without boot and process."""
    parts = [str(name).split("|") for name in streams]
    names = np.array([f"{p[0]}|{p[-1]}" if len(p) == 4 else "" for p in parts] + [""], dtype=object)
    numbers, _ = pd.factorize(names)
    return np.asarray(numbers[stream], dtype=np.int64)


def _step_codes(rows: pd.DataFrame, stream: Ints, time: Ints, batch: Floats) -> Ints:
    n = len(rows)
    if not n or not (np.isfinite(batch) & (batch > 1)).any() or ("slot" not in rows and "request_id" not in rows):
        return np.arange(n, dtype=np.int64)
    if "where" in rows and rows["where"].notna().all():
        return np.asarray(pd.factorize(rows["where"])[0], dtype=np.int64)
    if (time >= 0).all():
        return np.asarray(pd.factorize(pd.MultiIndex.from_arrays([stream, time]))[0], dtype=np.int64)
    return np.arange(n, dtype=np.int64)


def _alone(time: Ints, running: Floats, requests: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Name the request of a line where exactly one was running then."""
    named = np.full(len(time), None, dtype=object)
    if not len(requests) or "finished" not in requests or "received" not in requests:
        return named
    begin_column = "first_token" if "first_token" in requests and requests["first_token"].notna().any() else "received"
    begin = microseconds(pd.DataFrame({"time": requests[begin_column].to_numpy()}))
    end = microseconds(pd.DataFrame({"time": requests["finished"].to_numpy()}))
    ids = cols.text(requests, "request_id")
    ok = (begin >= 0) & (end > begin)
    begin, end, ids = begin[ok], end[ok], ids[ok]
    turn = np.argsort(begin, kind="stable")
    begin, end, ids = begin[turn], end[turn], ids[turn]
    active = np.searchsorted(begin, time, side="right") - np.searchsorted(np.sort(end), time, side="left")
    last = np.searchsorted(begin, time, side="right") - 1
    single = (active == 1) & (running == 1) & (last >= 0)
    if len(end):
        single &= end[np.maximum(last, 0)] >= time
        named[single] = ids[last[single]]
    return named
