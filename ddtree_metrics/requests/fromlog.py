"""Requests as the server's own log tells of them: received, finished, time stats, access lines."""

from __future__ import annotations

import warnings
from typing import Any

import pandas as pd

from ddtree_metrics.errors import DDTreeWarning
from ddtree_metrics.requests import slots
from ddtree_metrics.requests.checks import ABSURD_MS, Row, check, count_flags, mark_duplicates, name_nameless, to_frame
from ddtree_metrics.requests.request_fields import COUNTS, TIMES
from ddtree_metrics.steps.given import takes
from ddtree_metrics.steps.stream_ids import file_of

_LISTS: dict[str, type] = {"accepted_histogram": int, "position_accept_rates": float}
_ENDPOINTS = (
    "/generate",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/api/generate",
    "/api/chat",
    "/completion",
)


@takes("request_lines", "event")
def requests_from_log(request_lines: pd.DataFrame) -> pd.DataFrame:
    """Fold the lines that speak of requests into one row a request.

    Parameters
    ----------
    request_lines : DataFrame
        The table ``request_lines`` of a log, in the order of its lines.

    Returns
    -------
    DataFrame
        The columns of ``records.Request``, ``source`` is ``log``, in the order in which they were received.
        ``attrs["requests"]`` counts lines and flags.

    Notes
    -----
    Times that the server states in the line win over the time of the line. A `Finish` line alone gives the start as end minus
    latency. A request without its `Finish` line has no end (flag ``no_end``): it may still run, or the line is lost. Access
    lines give an end only, and of a streamed request not even that (uvicorn writes them when the first bytes go out); they are
    used only where no other line speaks of requests, with the flag ``access_line``. Where no id is told, the place of the line stands
    for it (flag ``no_id``).

    All times are the log's. If its stamps have no zone, and the times that the server states are whole quarters of an hour away from
    them, these are moved onto the stamps (``attrs["requests"]["moved_onto_stamps"]`` counts them).
    """
    lines = _records(request_lines)
    rows: list[Row] = []
    access = [x for x in lines if x["event"] == "access"]
    named = [x for x in lines if x["event"] in ("received", "finished", "stats")]
    current: dict[str, Row] = {}
    rows += slots.fold(x for x in lines if x["event"] in slots.EVENTS)
    for line in named:
        rid = line["request_id"]
        key = rid if rid is not None else f"\0{len(rows)}"
        row = current.get(key)
        event = line["event"]
        if row is None or event in row["_seen"] or (event == "received" and "finished" in row["_seen"]):
            row = {
                "_seen": set(),
                "_pid": line["pid"],
                "_boot": line["boot_id"],
                "request_id": rid,
                "source": "log",
                "where": line["where"],
            }
            rows.append(row)
            current[key] = row
        row["_seen"].add(event)
        _merge(row, line)
    if not named and not rows:
        rows = [r for r in map(_from_access, access) if r is not None]
    _label_warmups(rows)
    for row in rows:
        if row.get("received") is None and row.get("finished") is not None and row.get("_e2e_ms") is not None:
            row["received"] = row["finished"] - round(row["_e2e_ms"] * 1000)
        check(row)
    rows.sort(key=_when)
    doubled = mark_duplicates(rows)
    name_nameless(rows, ["#".join((row.get("where") or "log").rsplit(":", 1)) for row in rows])
    absurd = sum("absurd_duration" in (r.get("flags") or ()) for r in rows)
    if absurd:
        warnings.warn(
            f"{absurd} requests of the log state an impossible duration; those durations are left out (flag absurd_duration)",
            DDTreeWarning,
            stacklevel=2,
        )
    frame = to_frame(rows)
    frame.attrs["requests"] = {
        "source": "log",
        "lines": len(lines),
        "access_lines": len(access),
        "requests": len(rows),
        "duplicates": doubled,
        "moved_onto_stamps": sum(bool(row.get("_moved")) for row in rows),
        "flags": count_flags(rows),
    }
    return frame


def _records(lines: pd.DataFrame) -> list[Row]:
    wanted = (
        "event",
        "request_id",
        "pid",
        "boot_id",
        "where",
        "time",
        "time_from",
        *TIMES,
        "e2e_ms",
        "queue_ms",
        "forward_ms",
        "finish_reason",
        "accepted_histogram",
        "status",
        "path",
        "unit",
        "slot",
        "task",
        "prefill_tokens",
        "prefill_ms",
        "decode_ms",
        "mean_accept_len",
        "position_accept_rates",
        "since_start_us",
        "extra",
        *COUNTS,
    )
    columns: dict[str, list[Any]] = {}
    for name in wanted:
        if name not in lines:
            columns[name] = [None] * len(lines)
        elif name in ("time", *TIMES):
            columns[name] = _us(lines[name])
        elif name in _LISTS:
            columns[name] = [None if x is None or x is pd.NA else tuple(map(_LISTS[name], x)) for x in lines[name].tolist()]
        elif name == "extra":
            columns[name] = [x if isinstance(x, list | dict) else None for x in lines[name].tolist()]
        else:
            columns[name] = [None if x is None or x is pd.NA or x != x else x for x in lines[name].tolist()]
    columns["_file"] = [file_of(x) if p is None and x else None for p, x in zip(columns["pid"], columns["where"], strict=True)]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _us(times: pd.Series) -> list[int | None]:
    stamps = pd.to_datetime(times, utc=True).astype("datetime64[us, UTC]")
    return [None if missing else int(us) for us, missing in zip(stamps.astype("int64"), stamps.isna(), strict=True)]


def _merge(row: Row, line: Row) -> None:
    for name in (*COUNTS, "finish_reason", "accepted_histogram"):
        if line[name] is not None:
            row[name] = int(line[name]) if name in COUNTS else line[name]
    shift = _zone_shift(line)
    row["_moved"] = row.get("_moved") or shift
    for name in TIMES:
        if line[name] is not None:
            row[name] = line[name] + shift
            row.setdefault("_stated", set()).add(name)
    event = line["event"]
    if event == "received" and "received" not in row.get("_stated", ()):
        row["received"] = line["time"]
    elif (
        event in ("finished", "stats") and "finished" not in row.get("_stated", ()) and (event == "finished" or row.get("finished") is None)
    ):
        row["finished"] = line["time"]
    if line["e2e_ms"] is not None:
        row["_e2e_ms"] = line["e2e_ms"]
    elif event == "stats" and line["forward_ms"] is not None and row.get("_e2e_ms") is None:
        row["_e2e_ms"] = line["forward_ms"] + (line["queue_ms"] or 0.0)
    worst = max((line[k] or 0.0 for k in ("e2e_ms", "queue_ms", "forward_ms")), default=0.0)
    if worst > ABSURD_MS or min((line[k] or 0.0 for k in ("e2e_ms", "queue_ms", "forward_ms")), default=0.0) < 0:
        row["flags"] = (*(row.get("flags") or ()), "absurd_duration")
        row["_e2e_ms"] = None


QUARTER_US = 15 * 60 * 1_000_000
"""Time zones differ by multiples of this."""


def _zone_shift(line: Row) -> int:
    """Return what brings the instants that a line states onto its own stamp, where that has no zone; 0 where it does not tell."""
    if line["time"] is None or line["time_from"] not in ("stamp-local", "frame-local"):
        return 0
    told = line["received"] if line["event"] == "received" else line["finished"]
    if told is None and line["received"] is not None and line["e2e_ms"] is not None:
        told = line["received"] + round(line["e2e_ms"] * 1000)
    if told is None:
        return 0
    away: int = line["time"] - told
    shift = round(away / QUARTER_US) * QUARTER_US
    return shift if abs(away - shift) < 60_000_000 else 0


def _from_access(line: Row) -> Row | None:
    path = (line["path"] or "").split(" ")[-1]
    if not path.endswith(_ENDPOINTS) or line["status"] not in (None, 200):
        return None
    return {
        "request_id": None,
        "finished": line["time"],
        "source": "log",
        "where": line["where"],
        "flags": ("access_line",),
        "kind": "client",
    }


def _label_warmups(rows: list[Row]) -> None:
    """Recognise the requests a server sends itself when it starts: the first of an HTTP process, short, and all alike.

    SGLang's has 8 new tokens and a prompt of a few; with several data-parallel ranks there is one for each.
    """
    first: dict[tuple[Any, Any], list[Row]] = {}
    for row in sorted(rows, key=_when):
        if "received" in row.get("_seen", ()) and not str(row.get("request_id") or "").startswith("HEALTH_CHECK"):
            first.setdefault((row["_boot"], row["_pid"]), []).append(row)
    for sequence in first.values():
        pattern = (sequence[0].get("prompt_tokens"), sequence[0].get("completion_tokens"))
        if pattern[0] is None or pattern[0] > 16 or pattern[1] != 8:
            continue
        for row in sequence:
            if (row.get("prompt_tokens"), row.get("completion_tokens")) != pattern:
                break
            row["kind"] = "warmup"


def _when(row: Row) -> int:
    for name in TIMES:
        if row.get(name) is not None:
            return int(row[name])
    return 0
