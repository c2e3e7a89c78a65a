"""The numbers of a log on one screen: rows, time span, step time, tokens per step and speed, for each server start and by context."""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddtree_metrics import metrics
from ddtree_metrics.layout import TextLine, plural, table
from ddtree_metrics.steps import frames as columns
from ddtree_metrics.steps.basis import Basis, Kind, empty_like
from ddtree_metrics.steps.basis_rows import PLAIN, PLAIN_IN_PART, basis_of
from ddtree_metrics.steps.left_out import left_out
from ddtree_metrics.steps.starts import names_of

SUMMARY_VERSION = 3
"""1: the first form. 2: step_time_seen_ms; server starts that no line tells of, and of several services. 3: by_host, by_day."""

MAX_RUNS = 12
"""So many server starts are listed; of more, the last ones."""

MIXED = "steps with several requests share one mean (Decode batch lines): by-context values mix them"
"""Said where tokens per step of a request are those of its batch."""

_NOTES = {
    Kind.STEP_LINES_NO_REQUESTS: "no request is known: which steps are of one request cannot be told",
    Kind.ENGINE_WINDOWS: "one row is a window of the engine: step times are those of steady windows, no line has a context length",
    Kind.REQUESTS: "one row is a request: p50 and p95 are those of mean step times of requests, context is that in the middle of each",
    Kind.DECODE_WINDOWS: "each line is a window of steps: p95 is that of window means, context is #token / #running-req",
}
_TABLES = ("steps", "decode", "prefill", "servers", "events", "requests")


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """One line of a summary: the whole log, one server start, or one bin of context.

    Attributes
    ----------
    name : str
        ``all``, ``run 2`` or ``1024-2047``.
    called : str
        A server start in words: ``15:19:17, draft model changed``; ``""`` for other lines.
    steps, timed_steps, request_steps, requests : int
        What the numbers rest on: steps, those whose time is known, request-steps (a step of a batch of four counts four times), requests.
    step_time_mean_ms, step_time_p50_ms, step_time_p95_ms : float or None
        Step time: over steps for the whole log and for server starts, over request-steps in a bin of context.
    step_time_seen_ms : float or None
        The mean step time that request-steps saw: a step of a batch of four counts four times. Tokens per step (micro) over it are the
        speed.
    tokens_per_step_micro, tokens_per_step_macro : float or None
        Tokens per step and request: all tokens by all request-steps, and the mean of the requests' own means.
    tok_per_s : float or None
        Speed of one request while it is decoded: tokens per step (micro) over the mean step time that its request-steps saw.
    """

    name: str
    called: str = ""
    steps: int = 0
    timed_steps: int = 0
    request_steps: int = 0
    requests: int = 0
    step_time_mean_ms: float | None = None
    step_time_seen_ms: float | None = None
    step_time_p50_ms: float | None = None
    step_time_p95_ms: float | None = None
    tokens_per_step_micro: float | None = None
    tokens_per_step_macro: float | None = None
    tok_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of a log.

    Attributes
    ----------
    rows : dict of str to int
        Rows of each table.
    first, last : str or None
        Time of the first and the last step or line, in UTC.
    span_s : float or None
        Seconds between them.
    basis : str
        What kind of lines the numbers rest on.
    total : SummaryLine
        The whole log.
    runs, by_context : tuple of SummaryLine
        Each server start, and each bin of context.
    excluded : dict of str to int
        What was left out, by reason.
    notes : tuple of str
        What a reader should know.
    by_host, by_day : tuple of SummaryLine
        Each host and each day of a lake.
    """

    rows: dict[str, int]
    first: str | None
    last: str | None
    span_s: float | None
    basis: str
    total: SummaryLine
    runs: tuple[SummaryLine, ...]
    by_context: tuple[SummaryLine, ...]
    excluded: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    by_host: tuple[SummaryLine, ...] = ()
    by_day: tuple[SummaryLine, ...] = ()

    @property
    def sections(self) -> dict[str, tuple[SummaryLine, ...]]:
        """The lines by what they are told apart by."""
        found = {"all": (self.total,), "host": self.by_host, "day": self.by_day, "server start": self.runs, "context": self.by_context}
        return {name: lines for name, lines in found.items() if lines}

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON, with ``schema_version``."""
        return {"schema_version": SUMMARY_VERSION, **asdict(self)}


def summarise(log: Any) -> Summary:
    """Sum up a log.

    DDTree lines are taken where there are any; else stock ``Decode batch`` lines: one a step where they are logged every step, else
    one a window of steps.

    Parameters
    ----------
    log : Log
        What was read.

    Returns
    -------
    Summary
        Requests of the server itself (warm-up, health check) are left out and counted; what is not known is None.
    """
    frames = {name: empty_like(log, name) for name in _TABLES}
    basis = basis_of(log)
    notes = [_NOTES[basis.kind]] if basis.kind in _NOTES else []
    notes += [note for note in (PLAIN, PLAIN_IN_PART) if note in basis.notes]
    first, last = _span([pd.DataFrame({"time_us": np.where(basis.time_us >= 0, basis.time_us, np.nan)}), *frames.values()])
    suppressed = getattr(getattr(log, "coverage", None), "suppressed_lines", 0) or 0
    if suppressed:
        notes.append(f"at least {suppressed} lines missing (suppressed): counts are lower bounds")
    hidden = getattr(getattr(log, "coverage", None), "duplicate_ranks", 0) or 0
    if hidden:
        notes.append(f"{hidden} duplicate rank lines hidden")
    untimed = basis.first & ~np.isfinite(basis.step_ms)
    vague = {str(basis.why_names[code]) for code in np.unique(basis.why_code[untimed]) if code >= 0} & {"coarse_clock", "burst"}
    if vague:
        notes += _bounds(frames["steps"], frames["events"], frames["prefill"], burst="coarse_clock" not in vague)
    if basis.kind in (Kind.DECODE_STEPS, Kind.DECODE_WINDOWS) and (basis.batch > 1).any():
        notes.append(MIXED)
    total = _line("all", basis, np.ones(len(basis), dtype=bool))
    if basis.kind is Kind.NOTHING:
        notes.append("no step line and no Decode batch line: there is nothing to measure")
    return Summary(
        rows={name: len(frame) for name, frame in frames.items()},
        first=_iso(first),
        last=_iso(last),
        span_s=(last - first) / 1e6 if first is not None and last is not None else None,
        basis=basis.basis,
        total=total,
        runs=tuple(_runs(basis, notes)),
        by_context=tuple(_contexts(basis)),
        excluded=basis.excluded,
        notes=tuple(notes),
    )


def _bounds(steps: pd.DataFrame, events: pd.DataFrame, prefill: pd.DataFrame, *, burst: bool) -> list[str]:
    """Say what a clock too coarse for single steps, or lines written together, tell of their mean, a stretch without a break at a time."""
    if not len(steps):
        return []
    found = metrics.step_time_bounds(steps, events, prefill=prefill)
    known = found[found["mean_ms"].notna() & found["low_ms"].notna()] if len(found) else found
    n = float(known["steps"].sum()) if len(known) else 0.0
    if not n:
        return []
    mean, low, high = (float((known[name] * known["steps"]).sum()) / n for name in ("mean_ms", "low_ms", "high_ms"))
    stretches = plural(len(known), "stretch")
    if burst:
        return [
            f"lines were written together, which says nothing of single steps; from flush to flush, over {n:.0f} steps in "
            f"{stretches} without a break, the mean is {mean:.4g} ms (between {low:.4g} and {high:.4g} ms), "
            "idle time shorter than a flush included"
        ]
    return [
        f"the clock of the lines is too coarse for single steps; over {n:.0f} intervals in {stretches} without a break "
        f"the mean step time is {mean:.4g} ms, and between {low:.4g} and {high:.4g} ms for certain"
    ]


def _line(name: str, basis: Basis, mine: npt.NDArray[np.bool_]) -> SummaryLine:
    """Sum up some rows, a step counted once for step time."""
    if not mine.any():
        return SummaryLine(name)
    ms, tokens, ids, steps = basis.step_ms[mine], basis.tokens[mine], basis.request_code[mine], basis.row_steps[mine]
    once = ~np.asarray(pd.Series(basis.step[mine]).duplicated(), dtype=bool)
    timed, counted = np.isfinite(ms), np.isfinite(tokens)
    own = ms[timed & once]
    named = counted & (ids >= 0)
    n, sums = np.bincount(ids[named], steps[named]), np.bincount(ids[named], (tokens * steps)[named])
    micro, seen = basis.mean_tokens(mine), basis.mean_step_ms(mine)
    macro = float((sums[n > 0] / n[n > 0]).mean()) if n.any() else None
    return SummaryLine(
        name,
        steps=round(float(steps[once].sum())),
        timed_steps=round(float(steps[timed & once].sum())),
        request_steps=round(float(steps[counted].sum())),
        requests=len(np.unique(ids[ids >= 0])),
        step_time_mean_ms=float(np.average(own, weights=steps[timed & once])) if len(own) else None,
        step_time_seen_ms=seen,
        step_time_p50_ms=float(np.quantile(own, 0.5)) if len(own) else None,
        step_time_p95_ms=float(np.quantile(own, 0.95)) if len(own) else None,
        tokens_per_step_micro=micro,
        tokens_per_step_macro=macro,
        tok_per_s=1000 * micro / seen if micro is not None and seen else None,
    )


def _runs(basis: Basis, notes: list[str]) -> list[SummaryLine]:
    """One line a server start that a line tells of, or that speculation or the process shows; nothing where there is only one unseen."""
    told = [run for run in basis.runs if not run.hidden]
    if not told and len(basis.runs) < 2:
        return []
    called = {name.label: name.words for name in names_of(basis.runs, basis.services)}
    made = [
        (run, replace(_line(run.label if run.number else "before run 1", basis, basis.run == run.number), called=called.get(run.label, "")))
        for run in basis.runs
    ]
    lines = [line for _, line in made if line.steps]
    empty = sum(not line.steps for run, line in made if run.number)
    if empty:
        notes.append(f"{empty} of {sum(run.number > 0 for run in basis.runs)} server starts have no step")
    if len(lines) > MAX_RUNS:
        notes.append(f"{len(lines) - MAX_RUNS} earlier server starts are not listed")
    return lines[-MAX_RUNS:]


def _contexts(basis: Basis) -> list[SummaryLine]:
    if not np.isfinite(basis.context).any():
        return []
    made = metrics.by_context(basis.frame(), resamples=2)

    def number(x: Any) -> float | None:
        return float(x) if x is not None and math.isfinite(x) else None

    return [
        SummaryLine(
            str(r["bin"]),
            steps=int(r["steps"]),
            timed_steps=int(r["timed_steps"]),
            request_steps=int(r["rows"]),
            requests=int(r["requests"]),
            step_time_mean_ms=number(r["step_time_mean_ms"]),
            step_time_seen_ms=number(r["step_time_mean_ms"]),
            step_time_p50_ms=number(r["step_time_p50_ms"]),
            step_time_p95_ms=number(r["step_time_p95_ms"]),
            tokens_per_step_micro=number(r["tokens_per_step_pooled"]),
            tokens_per_step_macro=number(r["tokens_per_step_per_request"]),
            tok_per_s=number(r["tok_per_s"]),
        )
        for r in made.to_dict("records")
    ]


def _span(frames: list[pd.DataFrame]) -> tuple[int | None, int | None]:
    times = [columns.time_us(frame) for frame in frames if len(frame) and ("time" in frame or "time_us" in frame)]
    known = np.concatenate([t[np.isfinite(t)] for t in times]) if times else np.empty(0)
    return (int(known.min()), int(known.max())) if len(known) else (None, None)


def _iso(us: int | None) -> str | None:
    from ddtree_metrics.times import format_us

    return None if us is None else format_us(us)


# -- the table -----------------------------------------------------------------------------------------------------------------

_HEAD = ("requests", "n", "tok/step", "ms", "tok/s", "p50 ms", "p95 ms", "(macro)")
_FIRST_TO_GO = (1, 8, 6, 7)  # in a narrow terminal
_LEGEND = (
    "n: timed steps; tok/step: tokens per step and request, pooled, (macro): mean over requests; ms: mean step time that requests saw; "
    "tok/s: of one request, 1000 × tok/step / ms"
)


def format_summary(summary: Summary, width: int = 80) -> str:
    """Write a summary as tables for a terminal.

    Parameters
    ----------
    summary : Summary
        What ``summarise`` gave.
    width : int
        Columns; at least 60; in a narrow one the number of requests and the macro mean are left out. ``n`` is the number of steps whose
        time is known.

    Returns
    -------
    str
        Lines of at most ``width`` characters, without a newline at the end.
    """
    return "\n".join(line.text for line in summary_lines(summary, width))


def summary_lines(summary: Summary, width: int = 80) -> list[TextLine]:
    """Return the lines of ``format_summary`` with their kinds, for whoever colours them."""
    from ddtree_metrics.times import format_span

    width = min(max(width, 60), 120)
    counts = ", ".join(f"{n:,} {name}" for name, n in summary.rows.items() if n) or "no rows"
    out = _wrap(f"{counts} ({summary.basis})" if summary.total.steps else counts, width, "title")
    if summary.first and summary.last and summary.span_s is not None:
        out += _wrap(f"{summary.first[:19]}Z to {summary.last[:19]}Z ({format_span(int(summary.span_s * 1e6))})", width, "title")
    if summary.total.steps:
        heads = {"all": "", "context": "context, tokens"}
        sections = [(heads.get(name, name), [_cells(line) for line in lines]) for name, lines in summary.sections.items()]
        out += [TextLine(), *table(sections, _HEAD, width, first_to_go=_FIRST_TO_GO), TextLine()]
        for line in summary.runs:
            out += _wrap(f"{line.name}: {line.called}", width) if line.called else []
        out += _wrap(_LEGEND, width, "note")
    for note in summary.notes:
        out += _wrap(note, width, "warning")
    if summary.excluded:
        out += _wrap("Left out: " + ", ".join(left_out(reason, n) for reason, n in summary.excluded.items()), width, "note")
    return out


def _cells(line: SummaryLine) -> tuple[str, ...]:
    return (
        line.name,
        f"{line.requests:,}" if line.requests else "-",
        f"{line.timed_steps:,}",
        _number(line.tokens_per_step_micro, 2),
        _number(line.step_time_seen_ms),
        _number(line.tok_per_s),
        _number(line.step_time_p50_ms),
        _number(line.step_time_p95_ms),
        _number(line.tokens_per_step_macro, 2),
    )


def _number(x: float | None, digits: int | None = None) -> str:
    if x is None or not math.isfinite(x):
        return "-"
    if digits is not None and abs(x) < 10_000:
        return f"{x:.{digits}f}"
    return f"{x:.3g}" if abs(x) >= 1e6 else f"{x:.0f}" if abs(x) >= 1000 else f"{x:.1f}"


def _wrap(text: str, width: int, kind: str = "") -> list[TextLine]:
    return [TextLine(part, kind) for part in textwrap.wrap(text, width, break_on_hyphens=False) or [""]]
