"""Which field names are understood as what, and how times, durations and counts are read from them.

``ACCEPTED`` is the one table of names; the documentation and the error about unknown columns are made from it.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeVar

from ddtree_metrics.errors import JoinError
from ddtree_metrics.records import Request, RequestFacts
from ddtree_metrics.schema import columns
from ddtree_metrics.times import EPOCH, UTC, parse_iso

Number = TypeVar("Number", int, float)

ACCEPTED: dict[str, tuple[str, ...]] = {
    "request_id": ("request_id", "rid", "id", "req_id", "x_request_id", "uuid"),
    "received": (
        "received",
        "sent",
        "request_received_ts",
        "request_start",
        "request_start_time",
        "request_start_ts",
        "start_time",
        "started_at",
        "start",
        "arrival_time",
        "arrival",
        "send_time",
        "submitted",
        "submit_time",
        "received_time",
        "received_at",
        "created_at",
        "created_time",
        "created",
    ),
    "first_token": (
        "first_token",
        "first_chunk",
        "prefill_finished_time",
        "prefill_finished_ts",
        "first_token_time",
        "first_token_ts",
        "first_token_iteration",
        "first_token_at",
        "first_chunk_time",
    ),
    "finished": (
        "finished",
        "last_chunk",
        "request_finished_ts",
        "request_end",
        "request_end_time",
        "end_time",
        "ended_at",
        "end",
        "finished_time",
        "finished_at",
        "finish_time",
        "completion_time",
        "completed_at",
        "completed_time",
        "last_token_time",
        "last_token_iteration",
        "last_chunk_time",
    ),
    "ttft": ("ttft", "first_token_latency", "time_to_first_token"),
    "e2e": ("e2e_latency", "e2e", "e2el", "latency", "request_latency", "duration", "total_time", "elapsed"),
    "prompt_tokens": (
        "prompt_tokens",
        "input_tokens",
        "prompt_len",
        "input_len",
        "isl",
        "input_sequence_length",
        "num_prompt_tokens",
        "n_prompt_tokens",
        "prompt_length",
    ),
    "cached_tokens": ("cached_tokens", "num_cached_tokens", "cached_input_len", "cached_prompt_tokens", "usage_prompt_cache_read_tokens"),
    "completion_tokens": (
        "completion_tokens",
        "output_tokens",
        "output_len",
        "generated_tokens",
        "osl",
        "output_sequence_length",
        "num_output_tokens",
        "num_generation_tokens",
        "n_tokens",
        "completion_length",
    ),
    "reasoning_tokens": ("reasoning_tokens", "reasoning_token_count", "num_reasoning_tokens"),
    "verify_steps": ("verify_steps", "spec_verify_ct", "verify_ct", "num_drafts", "spec_num_drafts", "draft_rounds"),
    "accepted_drafts": (
        "accepted_drafts",
        "spec_num_correct_drafts",
        "spec_accepted_drafts",
        "spec_accept_token_num",
        "num_accepted_tokens",
        "spec_num_accepted_tokens",
        "num_accepted_draft_tokens",
        "draft_n_accepted",
    ),
    "proposed_drafts": (
        "proposed_drafts",
        "spec_num_proposed_drafts",
        "spec_proposed_drafts",
        "spec_draft_token_num",
        "num_draft_tokens",
        "spec_num_draft_tokens",
        "draft_n",
    ),
    "accepted_histogram": ("accepted_histogram", "spec_correct_drafts_histogram", "spec_accept_histogram", "acceptance_histogram"),
    "prefill_ms": ("prefill_ms", "prompt_ms"),
    "decode_ms": ("decode_ms", "predicted_ms"),
    "step_ms": ("step_ms",),
    "step_why": ("step_why",),
    "mean_batch": ("mean_batch",),
    "mean_accept_len": ("mean_accept_len", "mean_acceptance_length"),
    "position_accept_rates": ("position_accept_rates",),
    "end_context": ("end_context",),
    "retractions": ("retractions", "num_retractions", "total_retractions"),
    "dp_rank": ("dp_rank", "data_parallel_rank", "routed_dp_rank"),
    "finish_reason": ("finish_reason", "stop_reason"),
}
"""Column → names it is known by. Case, blanks, hyphens and a unit at the end (``_s``, ``_ms``, ``_us``, ``_ns``) do not matter."""

IGNORED = frozenset(
    [
        "discarded_tail",
        "max_tokens",
        "max_new_tokens",
        "max_completion_tokens",
        "model",
        "stream",
        "prompt",
        "text",
        "output",
        "outputs",
        "messages",
        "response",
        "responses",
        "generated_text",
        "choices",
        "input_ids",
        "output_ids",
        "token_ids",
        "headers",
        "authorization",
        "api_key",
        "temperature",
        "top_p",
        "error",
        "errors",
        "label",
        "success",
        "status",
        "object",
        "usage",
        "metadata",
        "index",
        "total_tokens",
        "request_parameters",
        "url",
        "endpoint",
        "user",
        "kind",
        "source",
        "where",
        "flags",
        "queue_time",
        "queue",
        "itl",
        "itls",
        "tpot",
    ]
)
"""Columns that are left out without a word: texts, token ids, keys, and what the tables have no use for."""

TIMES = ("received", "first_token", "finished")
DURATIONS = ("ttft", "e2e")
COUNTS = (*(c.name for c in columns(RequestFacts) if c.kind == "int"), "dp_rank")
MEASURES = tuple(c.name for c in columns(Request) if c.kind == "float")
_UNITS = {"s": 1e6, "sec": 1e6, "secs": 1e6, "seconds": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
_BY_NAME = {name: column for column, names in ACCEPTED.items() for name in names}

RELATIVE_BEFORE_S = 1e8
"""An epoch stamp before 1973 is none: such a number counts from an unknown start (a boot, a benchmark)."""


_OWN: ContextVar[Mapping[str, str]] = ContextVar("names of columns that a caller gave", default=MappingProxyType({}))


@contextmanager
def also(columns: Mapping[str, str] | None) -> Iterator[None]:
    """Take other names for columns as well, for as long as files are read.

    Parameters
    ----------
    columns : mapping of str to str, optional
        From a column, or any accepted name of it, to what a file calls it: ``{"finished": "Ended"}``.

    Raises
    ------
    JoinError
        If there is no such column.
    """
    own = {}
    for name, theirs in (columns or {}).items():
        column = _BY_NAME.get(plain(name))
        if column is None:
            near = difflib.get_close_matches(plain(name), _BY_NAME, 1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(ACCEPTED)}"
            raise JoinError(f"no column is called {name!r}; {meant}")
        own[plain(theirs)] = column
    token = _OWN.set(own)
    try:
        yield
    finally:
        _OWN.reset(token)


def nearest(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the id or time that a file most likely has under another name, and that name; None if none is alike."""
    best: tuple[float, str, str] | None = None
    for name in names:
        for accepted, column in _BY_NAME.items():
            if column in (*TIMES, "request_id"):
                alike = difflib.SequenceMatcher(None, plain(name), accepted).ratio()
                if alike > max(0.5, best[0] if best else 0.0):
                    best = (alike, column, name)
    return best[1:] if best else None


def plain(name: str) -> str:
    """Return a field name without case, blanks and hyphens."""
    return re.sub(r"[\s\-.]+", "_", name.strip()).lower().strip("_")


def find(name: str) -> tuple[str, float | None] | None:
    """Tell which column a field name stands for.

    Parameters
    ----------
    name : str
        The name as the file has it.

    Returns
    -------
    tuple of str and float or None, or None
        The column (or ``ttft``, ``e2e``) and the microseconds in its unit, where the name says a unit.
    """
    key = plain(name)
    if key in _OWN.get():
        return _OWN.get()[key], None
    if key in _BY_NAME:
        return _BY_NAME[key], 1e6 if key.endswith("_ts") else None
    for unit, us in _UNITS.items():
        for end in (f"_{unit}", f"_({unit})", f"({unit})"):
            if key.endswith(end) and key.removesuffix(end).strip("_") in _BY_NAME:
                column = _BY_NAME[key.removesuffix(end).strip("_")]
                return (column, us) if column in TIMES or column in DURATIONS else None
    return None


def accepted_names() -> str:
    """Return the accepted names in words, for messages."""
    return "; ".join(f"{column}: {', '.join(names[:6])}{' …' if len(names) > 6 else ''}" for column, names in ACCEPTED.items())


def instant(value: Any, unit_us: float | None = None) -> tuple[int | None, str | None]:
    """Read an instant.

    Parameters
    ----------
    value : str, int, float, datetime or None
        ISO 8601 text, or a number: epoch seconds, milliseconds, microseconds or nanoseconds, told apart by their size.
    unit_us : float, optional
        Microseconds in its unit, if that is known.

    Returns
    -------
    us : int or None
        Microseconds since 1970, null where it is none.
    kind : str or None
        ``utc``, ``local`` (no zone in it), ``relative`` (counts from an unknown start), or None for no instant.
    """
    if value is None or value == "" or isinstance(value, bool):
        return None, None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return (value.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1), "local"
        return (value - EPOCH) // timedelta(microseconds=1), "utc"
    if isinstance(value, str):
        text = value.strip()
        stamp = parse_iso(text)
        if stamp is not None:
            return stamp[0], "utc" if stamp[1] else "local"
        made = number(text)
        if made is None:
            return None, None
        value = int(text) if text.isdigit() else made
    if not isinstance(value, (int, float)) or number(value) is None or value <= 0:
        return None, None
    if unit_us is None:
        unit_us = 1e6 if value < 1e11 else 1e3 if value < 1e14 else 1.0 if value < 1e17 else 1e-3
    us = int(value) // 1000 if isinstance(value, int) and unit_us == 1e-3 else round(value * unit_us)
    if us >= 2**53 * 8:
        return None, None
    return us, "utc" if us >= RELATIVE_BEFORE_S * 1e6 else "relative"


def number(value: Any) -> float | None:
    """Read a number; None where it is none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        made = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return made if math.isfinite(made) else None


def whole(value: Any) -> int | None:
    """Read a count; None where it is none, negative, or more than a column holds."""
    made = value if isinstance(value, int) and not isinstance(value, bool) else number(value)
    return int(made) if made is not None and 0 <= made < 2**31 and made == int(made) else None


def reason(value: Any) -> str | None:
    """Return the kind of a finish reason, never its text."""
    if isinstance(value, Mapping):
        value = value.get("type")
    return value if isinstance(value, str) and 0 < len(value) <= 32 else None


def histogram(value: Any) -> tuple[int, ...] | None:
    """Read a histogram, from a list or its text."""
    return _all(value, whole)


def shares(value: Any) -> tuple[float, ...] | None:
    """Read a list of shares, from a list or its text."""
    return _all(value, number)


def _all(value: Any, read: Callable[[Any], Number | None]) -> tuple[Number, ...] | None:
    if isinstance(value, str):
        value = [x for x in value.strip().strip("[]()").replace(",", " ").split() if x]
    if not isinstance(value, Iterable) or isinstance(value, (str, Mapping)):
        return None
    made = [read(x) for x in value]
    return None if not made or None in made else tuple(x for x in made if x is not None)
