"""From the tables of a log to the rows that a diagnosis rests on: DDTree lines where there are any, else stock ``Decode batch`` lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddtree_metrics.steps.basis import Basis, Floats, Ints, empty_like, floats, keep, microseconds, words
from ddtree_metrics.steps.decode_windows import decode_step_times, steps_from_decode
from ddtree_metrics.steps.starts import add_decode_context, add_graph, add_requests, add_runs

STRETCH_STEPS = 25
"""Where requests cannot be told apart, so many steps in a row are taken as one cluster, fewer in a short log."""

STRETCHES = 20

FAR_OFF_TOKENS, FAR_OFF_SHARE = 16, 0.1
"""A join whose count differs from the request's by more than both (the share is of the context) is not believed."""

ABSURD_MS, ABSURD_TOKENS, ABSURD_CONTEXT = 1e8, 1e5, 1e9
"""Larger values are no measurements: a step of a day, a commit of a book, a context of a library."""


def build(log: Any) -> Basis:
    """Make the panel of a log.

    DDTree lines are taken where there are any; else stock ``Decode batch`` lines, each as one step where they are logged every step, else
    as a window.

    Parameters
    ----------
    log : Log
        Or anything with its frames.
    """
    steps, decode = empty_like(log, "steps"), empty_like(log, "decode")
    if len(steps):
        rows = empty_like(log, "request_steps")
        basis = "step lines"
        if not len(rows):
            rows, basis = _rows_of_steps(steps), "step lines without requests"
        panel = _from_rows(rows, basis)
    elif len(decode):
        panel = _from_decode(log, decode)
    else:
        panel = _from_rows(empty_like(log, "request_steps"), "request-steps")
        if not len(panel):
            panel.basis = "no step line and no Decode batch line"
    if panel.plain:
        panel.basis += ", without speculation"
        panel.notes.append("decoding is without speculation: no line has an accept length, and a step is one token of each request")
    if len(steps):
        add_decode_context(panel, decode)
    add_runs(panel, log)
    add_requests(panel, log)
    add_graph(panel, decode, empty_like(log, "servers"))
    return panel


def _rows_of_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """Make one row a step where nothing could be joined: tokens are the mean over the batch."""
    from ddtree_metrics.tables import flat_lists

    size = floats(steps, "batch_size")
    tokens = floats(steps, "avg_commit_len")
    if "commit_lens" in steps:
        values, offsets, valid = flat_lists(steps["commit_lens"])
        lengths = np.diff(offsets)
        sums = (
            np.add.reduceat(np.r_[values.astype(np.float64), 0.0], np.minimum(offsets[:-1], len(values))) if len(lengths) else np.empty(0)
        )
        fits = valid & (lengths > 0) & (np.isnan(size) | (lengths == size))
        tokens = np.where(fits, sums / np.maximum(lengths, 1), np.where(valid & (lengths > 0), np.nan, tokens))
    made = pd.DataFrame({"tokens": tokens, "batch_size": size, "time_us": microseconds(steps)})
    for name in ("step_us", "step_time_ms", "step_why", "stream", "boot_id", "budget"):
        if name in steps:
            made[name] = steps[name].to_numpy()
    made["weight"] = 1.0
    return made


def _from_rows(rows: pd.DataFrame, basis: str) -> Basis:
    n = len(rows)
    time = microseconds(rows)
    batch = floats(rows, "batch_size")
    batch[batch < 1] = np.nan
    step_ms = floats(rows, "step_time_ms") if "step_time_ms" in rows else floats(rows, "step_us") / 1000.0
    bad = np.isfinite(step_ms) & (step_ms <= 0)
    step_ms[bad] = np.nan
    tokens = floats(rows, "tokens")
    absurd = (np.abs(np.nan_to_num(step_ms)) > ABSURD_MS) | (np.abs(np.nan_to_num(tokens)) > ABSURD_TOKENS)
    step_ms[absurd] = tokens[absurd] = np.nan
    negative = np.isfinite(tokens) & (tokens < 0)
    tokens[negative] = np.nan
    request = words(rows, "request_id")
    stream = pd.factorize(words(rows, "stream"), use_na_sentinel=True)[0].astype(np.int64)
    step = _step_codes(rows, stream, time, batch)
    weight = floats(rows, "weight")
    weight = np.where(np.isfinite(weight) & (weight > 0), weight, 1.0 / np.where(np.isfinite(batch), batch, 1.0))
    order = np.lexsort((floats(rows, "slot"), step, stream, time))
    code, _ = pd.factorize(request, use_na_sentinel=True)
    first = np.zeros(n, dtype=bool)
    sorted_steps = step[order]
    if n:
        seen = pd.Series(sorted_steps).duplicated().to_numpy()
        first[order[~seen]] = True
    context, generated = floats(rows, "context_len"), floats(rows, "generated_len")
    context[(context < 0) | (context > ABSURD_CONTEXT)] = np.nan
    generated[(generated < 0) | (generated > ABSURD_CONTEXT)] = np.nan
    batch_context = floats(rows, "batch_context")
    # a request whose committed tokens are far from what it got was joined wrongly; a few tokens do not matter to its context
    off = np.abs(floats(rows, "reconciled"))
    doubtful = np.isfinite(off) & (off > np.maximum(FAR_OFF_TOKENS, FAR_OFF_SHARE * np.nan_to_num(context)))
    context[doubtful] = generated[doubtful] = batch_context[doubtful] = np.nan
    alone = ~np.isfinite(batch_context) & np.isfinite(context)
    batch_context[alone] = context[alone] * np.where(np.isfinite(batch[alone]), batch[alone], 1.0)
    longest = generated.copy()
    if n and np.nanmax(np.nan_to_num(batch), initial=0.0) > 1:
        longest = pd.Series(generated).groupby(step).transform("max").to_numpy(np.float64)
    why = words(rows, "step_time_why" if "step_time_why" in rows else "step_why")
    panel = Basis(
        tokens=tokens,
        step_ms=step_ms,
        context=context,
        batch_context=batch_context,
        generated=generated,
        longest=longest,
        prompt=floats(rows, "prompt_len"),
        batch=batch,
        uptime_s=np.full(n, np.nan),
        cached=np.full(n, np.nan),
        graph_off=np.full(n, np.nan),
        budget=floats(rows, "budget"),
        time_us=time,
        run=np.ones(n, dtype=np.int64),
        cluster=code.astype(np.int64),
        text=_texts(rows, code.astype(np.int64)),
        stretch=np.zeros(n, dtype=np.int64),
        stream=stream,
        step=step,
        weight=weight,
        first=first,
        known=code >= 0,
        why=why,
        request=request,
        boot=words(rows, "boot_id"),
        family=_families(rows),
        basis=basis,
    )
    panel.count("step time not positive", int((bad & first).sum()))
    panel.count("tokens negative", int(negative.sum()))
    panel.count("step time or tokens beyond any sense", int(absurd.sum()))
    panel.count("tokens unknown", int((~np.isfinite(tokens) & ~negative & ~absurd).sum()))
    untimed = first & ~np.isfinite(step_ms) & ~bad & ~absurd
    for reason, count in pd.Series([w or "no step time" for w in why[untimed]], dtype=object).value_counts().items():
        panel.count(f"no step time: {reason}" if reason != "no step time" else "no step time", int(count))
    panel.count("context not used: the join's tokens are far from the request's", int(doubtful.sum()))
    panel.count("no context length", int((~np.isfinite(context) & ~doubtful).sum()))
    panel.count("no request", int((code < 0).sum()))
    keep(panel, order)
    # blocks of steps in a row, for where requests cannot be told apart
    if n:
        counter = pd.Series(panel.first).groupby(panel.stream).cumsum().to_numpy(np.int64)
        size = int(np.clip(panel.first.sum() // STRETCHES, 4, STRETCH_STEPS))
        panel.stretch = pd.factorize(pd.MultiIndex.from_arrays([panel.stream, counter // size]))[0].astype(np.int64)
        lone = panel.cluster < 0
        panel.cluster[lone] = panel.cluster.max(initial=-1) + 1 + panel.stretch[lone]
        panel.text[lone] = panel.text.max(initial=-1) + 1 + panel.stretch[lone]
        requests, texts = len(np.unique(code[code >= 0])), len(np.unique(panel.text[panel.known]))
        if texts < requests:
            panel.notes.append(
                f"{requests} requests have at most {texts} distinct prompts: repeats say nothing of other texts, and are taken as one"
            )
    return panel


def _texts(rows: pd.DataFrame, code: Ints) -> Ints:
    """Give each row the number of its request's prompt: repeats of one prompt are not independent of each other."""
    if not (code >= 0).any() or "prompt_len" not in rows:
        return code.copy()
    from ddtree_metrics.steps.prompts import prompt_keys

    keys = prompt_keys(rows)
    return keys.codes.copy() if keys.source in ("prompt_id", "sequence") else code.copy()


def _families(rows: pd.DataFrame) -> Ints:
    """Give each row the number of its host and rank: the name of a stream without boot and process."""
    codes, streams = pd.factorize(words(rows, "stream"), use_na_sentinel=True)
    parts = [str(name).split("|") for name in streams]
    names = np.array([f"{p[0]}|{p[-1]}" if len(p) == 4 else "" for p in parts] + [""], dtype=object)
    numbers, _ = pd.factorize(names)
    return np.asarray(numbers[codes], dtype=np.int64)


def _step_codes(rows: pd.DataFrame, stream: Ints, time: Ints, batch: Floats) -> Ints:
    n = len(rows)
    if not n or not (np.isfinite(batch) & (batch > 1)).any() or ("slot" not in rows and "request_id" not in rows):
        return np.arange(n, dtype=np.int64)
    if "where" in rows and rows["where"].notna().all():
        return np.asarray(pd.factorize(rows["where"])[0], dtype=np.int64)
    if (time >= 0).all():
        return np.asarray(pd.factorize(pd.MultiIndex.from_arrays([stream, time]))[0], dtype=np.int64)
    return np.arange(n, dtype=np.int64)


def _from_decode(log: Any, decode: pd.DataFrame) -> Basis:
    """Take stock lines: one a step where the interval is 1, else one a window of steps."""
    prefill, events = empty_like(log, "prefill"), empty_like(log, "events")
    kept: pd.DataFrame | None = getattr(log, "decode_steps", None)  # a Log keeps them, and joins them once
    plain = _plain(decode, empty_like(log, "servers"))
    if plain:
        decode, kept = decode.assign(accept_len=1.0), None
    made = steps_from_decode(decode) if kept is None else kept
    if made.attrs.get("log_interval") == 1:
        joined: pd.DataFrame | None = None if plain else getattr(log, "lean_decode_request_steps", None)
        if joined is None:
            from ddtree_metrics.join import join_requests

            joined = join_requests(made, empty_like(log, "requests"), prefill, decode=decode, events=events)
        panel = _from_rows(joined, "Decode batch lines, one a step")
        panel.plain = plain
        return panel
    timed = decode_step_times(decode, prefill=prefill if len(prefill) else None, events=events if len(events) else None)
    interval = timed.attrs.get("log_interval")
    running = floats(timed, "running")
    running[running < 1] = np.nan
    why = words(timed, "step_time_why")
    context = floats(timed, "tokens") / running
    # #token falls to the rest of the batch when a request ends: it is then nobody's context
    context[(context <= 0) | np.isin(why, ["requests_changed", "retraction"])] = np.nan
    time = microseconds(timed)
    rows = pd.DataFrame(
        {
            "tokens": floats(timed, "accept_len"),
            "batch_size": running,
            "context_len": context,
            "time_us": time,
            "step_time_ms": floats(timed, "step_time_ms"),
            "step_time_why": why,
            "stream": words(timed, "stream"),
            "boot_id": words(timed, "boot_id"),
            "weight": float(interval or 1),
            "request_id": _alone(time, running, empty_like(log, "requests")),
        }
    )
    rows["tokens"] = rows["tokens"].where(rows["tokens"] > 0)
    panel = _from_rows(rows, f"Decode batch lines, one for {interval} steps" if interval else "Decode batch lines of unknown interval")
    panel.windows, panel.plain = True, plain
    panel.notes.append("context is #token / #running-req of a Decode line: a mean over the batch, slots held ahead included")
    return panel


def _plain(decode: pd.DataFrame, servers: pd.DataFrame) -> bool:
    """Whether the server decodes without speculation: no line has an accept length, and no start has an algorithm."""
    if np.isfinite(floats(decode, "accept_len")).any() or not np.isfinite(floats(decode, "gen_throughput")).any():
        return False
    flags = [str(x).lower() for x in words(servers, "algorithm") if x is not None]
    return all(x in ("", "none") for x in flags)


def _alone(time: Ints, running: Floats, requests: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Name the request of a line where exactly one was running then."""
    named = np.full(len(time), None, dtype=object)
    if not len(requests) or "finished" not in requests or "received" not in requests:
        return named
    begin_column = "first_token" if "first_token" in requests and requests["first_token"].notna().any() else "received"
    begin = microseconds(pd.DataFrame({"time": requests[begin_column].to_numpy()}))
    end = microseconds(pd.DataFrame({"time": requests["finished"].to_numpy()}))
    ids = words(requests, "request_id")
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
