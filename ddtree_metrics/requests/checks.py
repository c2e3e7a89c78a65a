"""What can be told of a request by looking at it: identities, impossible times, duplicates, and whose request it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ddtree_metrics.records import TABLES
from ddtree_metrics.schema import arrow_schema

Row = dict[str, Any]

ABSURD_US = 7 * 86_400 * 1_000_000
"""A request does not take a week; a longer one has a broken clock."""

ABSURD_MS = ABSURD_US / 1e3
UNBOUNDED_TAIL = 64
"""How much a last step may have been cut by, where nothing says how long a step can be."""

HEALTH_PREFIX = "HEALTH_CHECK"


def check(row: Row) -> None:
    """Add to one request what its own numbers say: ``discarded_tail``, ``kind`` and ``flags``.

    Identities (SGLang's counters; the first token comes from the prefill, one bonus token from each step, one more token from
    each prefill after a retraction): ``completion = 1 + retractions + steps + accepted - tail``, ``sum(h) = steps``,
    ``sum(i * h[i]) = accepted``, and proposed drafts are a whole number a step. ``tail`` is what the last step had committed past the
    end of the output.
    """
    flags: list[str] = list(row.get("flags") or ())
    received, first, finished = (row.get(k) for k in ("received", "first_token", "finished"))
    if finished is None:
        flags.append("no_end")
    if received is None and first is None:
        flags.append("no_start")
    begin = received if received is not None else first
    if begin is not None and finished is not None:
        if finished < begin or (first is not None and not begin <= first):
            flags.append("end_before_start")
        elif finished - begin > ABSURD_US:
            flags.append("absurd_duration")
    if row.get("prompt_tokens") is None:
        flags.append("no_prompt_length")
    if row.get("completion_tokens") is None:
        flags.append("no_completion_length")
    _identities(row, flags)
    row["flags"] = tuple(dict.fromkeys(flags)) or None
    if row.get("kind") is None:
        rid = row.get("request_id") or ""
        row["kind"] = "health_check" if rid.startswith(HEALTH_PREFIX) else "client"


def longest(row: Row) -> int:
    """Return the most drafts that one step of a request can have accepted, as far as its own numbers say."""
    steps, proposed, hist = row.get("verify_steps"), row.get("proposed_drafts"), row.get("accepted_histogram")
    if hist:
        return max(len(hist) - 1, 0)
    if steps and proposed:
        return -(-int(proposed) // int(steps))
    return UNBOUNDED_TAIL


def _identities(row: Row, flags: list[str]) -> None:
    steps, accepted, hist = row.get("verify_steps"), row.get("accepted_drafts"), row.get("accepted_histogram")
    completion, again = row.get("completion_tokens"), row.get("retractions") or 0
    if steps is None:
        return
    if hist:
        if sum(hist) != steps:
            flags.append("identity_broken")
        if accepted is not None and sum(i * n for i, n in enumerate(hist)) != accepted:
            flags.append("identity_broken")
    proposed = row.get("proposed_drafts")
    if proposed is not None:
        if accepted is not None and accepted > proposed:
            flags.append("identity_broken")
        if steps and proposed % steps and not row.get("_uneven"):
            flags.append("proposed_uneven")
    if accepted is None or completion is None or steps == 0:
        return
    tail = 1 + again + steps + accepted - completion
    if 0 <= tail <= max(longest(row), 1):
        row["discarded_tail"] = tail
    else:
        flags.append("identity_broken")


def mark_duplicates(rows: list[Row]) -> int:
    """Flag requests that are told twice (``duplicate``), and different ones that share an id (``same_id``).

    Those without an id are told twice where all their times and counts are the same, unless their times are of whole seconds: several
    requests of one burst may then look alike.
    """
    seen: dict[str, list[Row]] = {}
    nameless: set[tuple[Any, ...]] = set()
    doubled = 0
    for row in rows:
        rid = row.get("request_id")
        if rid is None:
            content = tuple(row.get(k) for k in _CONTENT)
            times = [t for t in content[:3] if t is not None]
            if content in nameless and any(t % 1_000_000 for t in times):
                row["flags"] = (*(row.get("flags") or ()), "duplicate")
                doubled += 1
            nameless.add(content)
            continue
        for other in seen.setdefault(rid, []):
            if _same(row, other):
                row["flags"] = (*(row.get("flags") or ()), "duplicate")
                doubled += 1
                break
        else:
            seen[rid].append(row)
    for alike in seen.values():
        if len(alike) > 1:
            for row in alike:
                row["flags"] = (*(row.get("flags") or ()), "same_id")
    return doubled


_CONTENT = ("received", "first_token", "finished", "prompt_tokens", "completion_tokens", "verify_steps", "accepted_drafts")


def _same(a: Row, b: Row) -> bool:
    return all(a.get(k) is None or b.get(k) is None or a[k] == b[k] for k in _CONTENT)


def name_nameless(rows: list[Row], names: list[str]) -> None:
    """Give requests without an id one that tells where they stand, and the flag ``no_id``."""
    for row, name in zip(rows, names, strict=True):
        if row.get("request_id") is None:
            row["request_id"] = name
            row["flags"] = (*(row.get("flags") or ()), "no_id")


def to_frame(rows: list[Row]) -> pd.DataFrame:
    """Make the table of requests; times are microseconds since 1970 in the rows."""
    from ddtree_metrics import tables

    schema = arrow_schema(TABLES["requests"])
    arrays = []
    for f in schema:
        values = [row.get(f.name) for row in rows]
        made = pa.array(values, pa.int64()).cast(f.type) if pa.types.is_timestamp(f.type) else pa.array(values, f.type)
        arrays.append(made)
    return tables.to_pandas(pa.Table.from_arrays(arrays, schema=schema))


def count_flags(rows: list[Row]) -> dict[str, int]:
    """Count the flags over all rows."""
    counts: dict[str, int] = {}
    for row in rows:
        for flag in row.get("flags") or ():
            counts[flag] = counts.get(flag, 0) + 1
    return counts


def tokens_per_step(requests: pd.DataFrame) -> pd.Series:
    """Tokens each verify step of a request added to what the client got: the prefill's tokens are not counted.

    Parameters
    ----------
    requests : DataFrame
        A table of requests, with completion_tokens, verify_steps and retractions.

    Returns
    -------
    Series of float
        ``(completion_tokens - 1 - retractions) / verify_steps``; null where a part of it is unknown or there was no step.
    """
    steps = requests["verify_steps"].astype("Float64")
    again = requests["retractions"].astype("Float64").fillna(0.0)
    made = (requests["completion_tokens"].astype("Float64") - 1 - again) / steps.where(steps > 0)
    return pd.Series(made.to_numpy(dtype=np.float64, na_value=np.nan), index=requests.index, name="tokens_per_step")
