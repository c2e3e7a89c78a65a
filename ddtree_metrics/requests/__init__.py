"""Requests: when they ran, how long their prompts were, what they were given. From the log, the server's file, or a client.

Prompts, outputs and token ids are never stored, and no value of a header or a key is.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from ddtree_metrics.errors import DDTreeWarning, JoinError
from ddtree_metrics.requests import request_fields, request_files
from ddtree_metrics.requests.checks import Row, check, count_flags, mark_duplicates, name_nameless, to_frame, tokens_per_step
from ddtree_metrics.requests.complement import complement_requests
from ddtree_metrics.requests.fromlog import requests_from_log
from ddtree_metrics.requests.step_means import steps_of_answers
from ddtree_metrics.times import Localizer

__all__ = ["complement_requests", "read_requests", "requests_from_log", "tokens_per_step"]


def read_requests(
    paths: str | PathLike[str] | pd.DataFrame | Sequence[str | PathLike[str] | pd.DataFrame],
    *,
    tz: ZoneInfo | str | None = None,
    columns: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Read requests from files, whatever program wrote them, or from a frame with columns of these names.

    Parameters
    ----------
    paths : path, DataFrame, or sequence of them
        Files, folders (every file of a known ending in it) or globs. Understood are, by content and not by name: SGLang's request
        file (``--export-metrics-to-file``; hourly files) and its JSON request log, JSON lines or one JSON document of flat
        records or of OpenAI responses (``usage``), what ``bench_serving --output-details``, guidellm (JSON) and aiperf
        (``profile_export.jsonl``) write, CSV, and Parquet; each also compressed (``.gz``, ``.zst``).
    tz : ZoneInfo or str, optional
        The zone of times that have none in them.
    columns : mapping of str to str, optional
        What the files call a column, where they do not call it by an accepted name: ``{"finished": "Ended"}``.

    Returns
    -------
    DataFrame
        One row a request, the columns of ``records.Request``. ``attrs["requests"]`` says what was read: files, records, broken
        records, and how many rows carry each flag. No row is left out for what its numbers say; ``flags`` tells.

    Raises
    ------
    JoinError
        If times have no zone and ``tz`` is not given, or if no column or field is an id or a time (the message names the accepted
        ones).
    SourceNotFound, SourceDamaged, SourceDenied
        If a file cannot be read.

    Warns
    -----
    DDTreeWarning
        Once a cause, with a count: files without a request, records that cannot be read, columns not used, requests without times.

    Notes
    -----
    A request without an id gets one that says where it stands, ``file.jsonl#3`` for the third record of a file (flag ``no_id``), so
    that its steps can be told from those of others; it is a ``duplicate`` if all its times and counts are those of another one.

    Accepted names (case, blanks, hyphens and a unit at the end do not matter; ``_ms``, ``_us``, ``_ns`` set the unit)::

        request_id         request_id rid id req_id x_request_id uuid
        received           received sent request_received_ts request_start start_time arrival_time submitted created_at …
        first_token        first_token first_chunk prefill_finished_time first_token_time first_token_iteration …
        finished           finished last_chunk request_finished_ts request_end end_time finished_time completed_at …
        (durations)        ttft first_token_latency time_to_first_token; e2e_latency e2e latency request_latency duration
        prompt_tokens      prompt_tokens input_tokens prompt_len input_len isl input_sequence_length …
        cached_tokens      cached_tokens num_cached_tokens cached_input_len
        completion_tokens  completion_tokens output_tokens output_len generated_tokens osl output_sequence_length …
        verify_steps       verify_steps spec_verify_ct num_drafts …
        accepted_drafts    spec_num_correct_drafts, spec_accepted_drafts, spec_accept_token_num (three names, one meaning) …
        proposed_drafts    spec_num_proposed_drafts, spec_proposed_drafts, spec_draft_token_num …
        accepted_histogram spec_correct_drafts_histogram, spec_accept_histogram
        retractions        num_retractions total_retractions
        prefill_ms, decode_ms  prompt_ms, predicted_ms (llama.cpp's ``timings``)
        dp_rank, reasoning_tokens, finish_reason, end_context, step_ms, step_why, mean_batch, mean_accept_len, position_accept_rates

    The whole table is ``ddtree_metrics.requests.request_fields.ACCEPTED``. Instants are ISO 8601 text or epoch numbers; seconds,
    milliseconds, microseconds and nanoseconds are told apart by their size. A number before 1973 counts from an unknown start
    (flag ``relative_clock``; the join finds the offset). Durations without a unit are seconds.
    """
    zone = ZoneInfo(tz) if isinstance(tz, str) else tz
    met = request_files.Met()
    rows: list[Row] = []
    localizers: dict[tuple[str, str], Localizer] = {}
    places: list[str] = []
    told: dict[str, int] = {}
    with request_fields.also(columns):
        for path in request_files.expand(paths):
            base = request_files.FRAME if isinstance(path, pd.DataFrame) else path.name
            told[base] = told.get(base, 0) + 1
            name = base if told[base] == 1 else f"{base}({told[base]})"
            before = len(rows)
            for where, source, raw in request_files.rows(path, met):
                met.records += 1
                rows.append(_normal(where, source, raw, zone, localizers))
                places.append(f"{name}#{len(rows) - before}")
            if len(rows) == before:
                met.empty.append(base)
    doubled = mark_duplicates(rows)
    name_nameless(rows, places)
    steps_of_answers(rows)
    _warn(met, rows, doubled)
    frame = to_frame(rows)
    frame.attrs["requests"] = {
        "source": "files",
        "files": met.files,
        "records": met.records,
        "broken": met.broken,
        "not_requests": met.not_requests,
        "requests": len(rows),
        "duplicates": doubled,
        "flags": count_flags(rows),
        "unknown_columns": sorted(met.unknown),
        "empty_files": met.empty,
    }
    return frame


def _normal(where: str, source: str, raw: dict[str, Any], zone: ZoneInfo | None, localizers: dict[tuple[str, str], Localizer]) -> Row:
    """Bring one record to the columns of ``Request``; times in microseconds."""
    row: Row = {"source": raw.get("source") if isinstance(raw.get("source"), str) else source, "where": where, "flags": ()}
    took: dict[str, float] = {}
    for name, value in raw.items():
        hit = request_fields.find(name) if not name.startswith("_") and value is not None else None
        if hit is None:
            continue
        column, unit = hit
        if column in request_fields.TIMES:
            if row.get(column) is None:
                _instant(row, column, name, value, unit, zone, localizers)
        elif column in request_fields.DURATIONS:
            seconds = request_fields.number(value)
            if seconds is not None:
                took.setdefault(column, seconds * (1e6 if unit is None else unit))
        elif column == "finish_reason":
            row.setdefault(column, request_fields.reason(value))
        elif column == "accepted_histogram":
            row.setdefault(column, request_fields.histogram(value))
        elif column == "position_accept_rates":
            row.setdefault(column, request_fields.shares(value))
        elif column == "step_why":
            row.setdefault(column, str(value)[:40])
        elif column in request_fields.MEASURES:
            row.setdefault(column, request_fields.number(value))
        elif column == "request_id":
            if row.get(column) is None:
                row[column] = str(value)[:200]
        elif row.get(column) is None:
            count = request_fields.whole(value)
            if count is None:
                row["flags"] += ("unreadable_number",)
            row[column] = count
    received = row.get("received")
    for column, duration in (("first_token", "ttft"), ("finished", "e2e")):
        if row.get(column) is None and received is not None and duration in took:
            row[column] = received + round(took[duration])
    if received is None and row.get("finished") is not None and 0 <= took.get("e2e", -1) < 7 * 86_400e6:
        row["received"] = row["finished"] - round(took["e2e"])
    row["_drafted_steps"] = request_fields.whole(raw.get("num_spec_steps"))
    if raw.get("_flag"):
        row["flags"] += (str(raw["_flag"]),)
    if isinstance(raw.get("kind"), str):
        row["kind"] = raw["kind"]
    elif raw.get("_warmup") and (row.get("prompt_tokens") or 0) <= 16:
        row["kind"] = "warmup"
    check(row)
    return row


def _instant(
    row: Row, column: str, name: str, value: Any, unit: float | None, zone: ZoneInfo | None, localizers: dict[tuple[str, str], Localizer]
) -> None:
    us, kind = request_fields.instant(value, unit)
    if us is None:
        if value not in ("", 0, 0.0):
            row["flags"] += ("unreadable_time",)
        return
    if kind == "local":
        if zone is None:
            raise JoinError(
                f"{row['where']}: the time in {name!r} has no zone, so it cannot be set beside the log; pass tz= (--tz, for example "
                f"--tz Europe/Berlin or --tz UTC)"
            )
        utc, flag = localizers.setdefault((row["where"].rpartition(":")[0], column), Localizer(zone)).feed(np.array([us], np.int64))
        us = int(utc[0])
        if flag[0] is not None:
            row["flags"] += (f"time_{flag[0]}",)
    elif kind == "relative" and "relative_clock" not in row["flags"]:
        row["flags"] += ("relative_clock",)
    row[column] = us


def _warn(met: request_files.Met, rows: Iterable[Row], doubled: int) -> None:
    if met.broken:
        _say(
            f"{met.broken} records could not be read and are left out, the first at {met.first_broken}: cut off, or not in the file's form"
        )
    if met.unknown:
        shown = ", ".join(sorted(met.unknown)[:8])
        _say(f"{len(met.unknown)} columns are not used ({shown}); accepted are {request_fields.accepted_names()}")
    if met.empty:
        shown = ", ".join(met.empty[:4]) + (" …" if len(met.empty) > 4 else "")
        why = f"; {met.not_requests} records are no finished requests" if met.not_requests and not met.records else ""
        _say(f"no request in {len(met.empty)} of {met.files} request files ({shown}){why}")
    if doubled:
        _say(f"{doubled} requests are told twice; the copies carry the flag duplicate and are not joined")
    counts = count_flags(list(rows))
    for flag, words in (
        ("no_start", f"requests have no start time{_ADVICE if _lacks_metrics(rows) else ''}"),
        ("no_end", "requests have no end"),
        ("end_before_start", "requests end before they start"),
        ("absurd_duration", "requests state an impossible duration"),
        ("no_prompt_length", "requests have no prompt length, so their context cannot be known"),
        ("identity_broken", "requests break an identity of their own counters (completion = 1 + steps + accepted - cut)"),
        ("relative_clock", "requests have times that count from an unknown start; the join looks for the offset"),
        ("unreadable_time", "times could not be read"),
        ("unreadable_number", "numbers could not be read"),
    ):
        if counts.get(flag):
            _say(f"{counts[flag]} {words} (flag {flag})")


_ADVICE = ", which SGLang writes with --enable-metrics; or take them from a log with --log-requests"


def _lacks_metrics(rows: Iterable[Row]) -> bool:
    """Whether it is the server's own file that has no times."""
    return any(row.get("source") == "request_file" and "no_start" in (row.get("flags") or ()) for row in rows)


def _say(message: str) -> None:
    warnings.warn(message, DDTreeWarning, stacklevel=4)
