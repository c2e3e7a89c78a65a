"""Rows of a basis from requests alone, for servers whose log has no line a step and none a window: one row stands for a whole request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.basis import empty_like, floats

ORIGIN = ("host", "boot_id", "unit", "pid")


def rows_of_requests(log: Any) -> pd.DataFrame | None:
    """Make one row a request, as long as the requests say how many steps they took in what time.

    Parameters
    ----------
    log : Log
        Or anything with its frames.

    Returns
    -------
    DataFrame or None
        ``tokens`` a step, ``step_time_ms`` and ``step_why``, ``context_len`` in the middle of the request's steps, ``batch_size`` (a mean),
        ``weight`` (steps), ``speculative`` and where the request is from; None where requests do not say these things.
    """
    requests = _telling(log)
    if requests is None:
        return None
    steps, completion = floats(requests, "verify_steps"), floats(requests, "completion_tokens")
    prompt, accepted, proposed = (floats(requests, name) for name in ("prompt_tokens", "accepted_drafts", "proposed_drafts"))
    some = steps > 0
    weight = np.where(some, steps, np.nan)
    origin = _origins(requests, empty_like(log, "request_lines"))
    rows = pd.DataFrame(
        {
            **origin,
            "request_id": cols.text(requests, "request_id"),
            "where": cols.text(requests, "where"),
            "time_us": cols.time_us(pd.DataFrame({"time": requests["finished"].to_numpy()})),
            "tokens": np.where(completion > 1, (completion - 1) / weight, np.nan),
            "drafts": accepted / weight,
            "draft_nodes": proposed / weight,
            "step_time_ms": floats(requests, "step_ms"),
            "step_why": cols.text(requests, "step_why"),
            "context_len": prompt + np.floor((completion - 1) / 2),
            "generated_len": np.floor((completion + 1) / 2),
            "prompt_len": prompt,
            "batch_size": floats(requests, "mean_batch"),
            "weight": weight,
        }
    )[some]
    drafted = pd.Series(np.isfinite(proposed[some]).astype(np.float64), index=rows.index)
    # a server drafts always or never; one request without a draft may have had nothing to draft from
    rows["speculative"] = drafted.groupby(rows["stream"]).transform("max")
    return rows if len(rows) else None


def _telling(log: Any) -> pd.DataFrame | None:
    """Return the requests that say their steps and times: those of the log, else those that its own lines tell."""
    requests = empty_like(log, "requests")
    if not _tell(requests) and cols.has(empty_like(log, "request_lines"), "decode_ms"):
        requests = empty_like(log, "told_requests")
    return requests if _tell(requests) else None


def _tell(requests: pd.DataFrame) -> bool:
    return len(requests) > 0 and cols.has(requests, "decode_ms") and bool((floats(requests, "verify_steps") > 0).any())


def _origins(requests: pd.DataFrame, lines: pd.DataFrame) -> dict[str, Any]:
    """Return host, boot, unit, process and stream of each request, by the line that it was first told in."""
    places = cols.text(requests, "where")
    if len(lines) and "where" in lines:
        firsts = lines.drop_duplicates("where").set_index("where")
        found = firsts.reindex(places)
        made = {name: cols.text(found, name) for name in ORIGIN}
    else:
        made = {name: np.full(len(requests), None, dtype=object) for name in ORIGIN}
    streams = [
        f"{host or ''}|{boot or ''}|{pid if pid is not None else unit or ''}|"
        for host, boot, unit, pid in zip(*(made[name] for name in ORIGIN), strict=True)
    ]
    return {"host": made["host"], "boot_id": made["boot_id"], "unit": made["unit"], "stream": np.array(streams, dtype=object)}
