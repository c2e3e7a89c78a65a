"""What a diagnosis is about: services, time span, server starts, what is missing from the log, and the slowest requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ddtree_metrics.coverage import Coverage
from ddtree_metrics.diagnosis.observed import missing_lines, retractions
from ddtree_metrics.hints import nothing_found
from ddtree_metrics.metrics import by_request
from ddtree_metrics.steps.basis import Basis, empty_like, floats
from ddtree_metrics.steps.frames import text
from ddtree_metrics.steps.starts import StartName, names_of
from ddtree_metrics.times import format_us

SLOWEST = 3
"""So many requests are named."""

LEAST_STEPS = 8
"""A request with fewer timed steps is no slow request: single steps vary too much."""


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """One of the slowest requests: its id, its speed, and the length of its prompt."""

    request_id: str
    tok_per_s: float
    prompt_len: int | None


@dataclass(frozen=True, slots=True)
class Scene:
    """What was read.

    Attributes
    ----------
    services : tuple of str
        Units, containers, or files.
    first, last : str or None
        Time of the first and the last row, in UTC.
    starts : tuple of StartName
        Server starts that are told or seen.
    missing : int or None
        Lines that are known to be missing, at least; None if nothing says that any is.
    pool : float or None
        The fullest that the KV pool was, as a share.
    retractions : int
        Requests that were retracted.
    clock : str
        Why no step could be timed: ``coarse_clock`` (whole seconds of a collector, as journalctl prints them), ``coarse_stamp`` (of the
        server itself), ``burst`` (lines were written together), or ``""``.
    tokens, step_ms : float or None
        Mean tokens per step and request, and the mean step time that requests saw.
    tokens_by_start : tuple of float or None
        The same of each of ``starts``.
    slowest : tuple of SlowRequest
        The slowest requests, the slowest first.
    nothing : tuple of str
        Where no row was found: the reason, and the remedy.
    """

    services: tuple[str, ...] = ()
    first: str | None = None
    last: str | None = None
    starts: tuple[StartName, ...] = ()
    missing: int | None = None
    pool: float | None = None
    retractions: int = 0
    clock: str = ""
    tokens: float | None = None
    step_ms: float | None = None
    tokens_by_start: tuple[float | None, ...] = ()
    slowest: tuple[SlowRequest, ...] = ()
    nothing: tuple[str, ...] = ()

    def start(self, label: str) -> StartName | None:
        """Return the server start of that label."""
        return next((one for one in self.starts if one.label == label), None)


def scene_of(panel: Basis, log: Any) -> Scene:
    """Sum up what was read.

    Parameters
    ----------
    panel : Basis
        Its rows.
    log : Log
        For the units, the pool and what is missing.
    """
    at = panel.time_us[panel.time_us >= 0]
    usage = floats(empty_like(log, "decode"), "token_usage")
    return Scene(
        services=_services(panel, log),
        first=format_us(int(at.min())) if len(at) else None,
        last=format_us(int(at.max())) if len(at) else None,
        starts=names_of(panel.runs, panel.services),
        missing=missing_lines(log),
        pool=float(np.nanmax(usage)) if np.isfinite(usage).any() else None,
        retractions=retractions(log),
        clock=_clock(panel, log),
        tokens=panel.mean_tokens(),
        step_ms=panel.mean_step_ms(),
        tokens_by_start=tuple(panel.mean_tokens(panel.run == run.number) for run in panel.runs if run.number > 0),
        slowest=_slowest(panel),
        nothing=_nothing(log),
    )


def _services(panel: Basis, log: Any) -> tuple[str, ...]:
    names = [name.rpartition("/")[2] for name in panel.services if name]
    units = getattr(getattr(log, "coverage", None), "units", None) or {}
    source = getattr(getattr(log, "coverage", None), "source", "")
    return tuple(dict.fromkeys(names)) or tuple(units)[:1] or ((source,) if source else ())


def _nothing(log: Any) -> tuple[str, ...]:
    coverage = getattr(log, "coverage", None)
    return (nothing_found(coverage) or ()) if isinstance(coverage, Coverage) else ()


def _clock(panel: Basis, log: Any) -> str:
    """Say what kept steps from being timed, where none was."""
    if not len(panel) or panel.timed.any():
        return ""
    codes = panel.why_code[panel.first & (panel.why_code >= 0)]
    names = [str(panel.why_names[code]) for code in codes]
    most = max(sorted(set(names)), key=names.count, default="")
    if most == "coarse_clock":
        steps = empty_like(log, "steps")
        steps = steps if len(steps) else empty_like(log, "decode")
        own, host = ([str(x or "") for x in text(steps, name)[:1]] for name in ("time_from", "host"))
        # lines that name their host come from a collector, whose clock can be finer than the server's stamps
        return "coarse_stamp" if own and own[0].startswith("stamp") and not any(host) else "coarse_clock"
    return most if most == "burst" else ""


def _slowest(panel: Basis) -> tuple[SlowRequest, ...]:
    if not panel.known.any():
        return ()
    made = by_request(panel.frame())
    made = made[(made["timed_steps"] >= LEAST_STEPS) & made["tok_per_s"].notna()].nsmallest(SLOWEST, "tok_per_s")
    return tuple(
        SlowRequest(str(r["request_id"]), float(r["tok_per_s"]), None if pd.isna(r["prompt_len"]) else int(r["prompt_len"]))
        for r in made.to_dict("records")
    )
