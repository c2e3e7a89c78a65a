"""The rows that the numbers of a log rest on: request-steps as plain arrays, with every measured cause beside them.

Summary, report, plots and diagnosis count these rows and no others. Nothing is dropped silently: what cannot be used is counted in
``Basis.excluded`` with its reason.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.frames import Bools, Floats, Ints
from ddtree_metrics.steps.starts import Start, service_keys, service_name

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

Codes = npt.NDArray[np.int32]
Numbers = npt.NDArray[Any]
"""Whole numbers of 32 bits where they fit."""


class Kind(str, Enum):
    """What kind of line the rows are made of."""

    STEP_LINES = "step_lines"
    STEP_LINES_NO_REQUESTS = "step_lines_no_requests"
    DECODE_STEPS = "decode_steps"
    DECODE_WINDOWS = "decode_windows"
    REQUESTS = "requests"
    ENGINE_WINDOWS = "engine_windows"
    NOTHING = "nothing"

    def __str__(self) -> str:
        return self.value


@dataclass(slots=True)
class Basis:
    """Request-steps in order of time, as arrays of equal length.

    An array whose values are all the same may be a view of one value, which cannot be written to.

    Attributes
    ----------
    tokens, step_ms : ndarray of float
        Tokens the step added to the request; step time, NaN where there is none.
    elapsed_us : ndarray of float
        Wall time since the previous line of the stream, whatever lies between; NaN for the first.
    context, batch_context, generated, longest, prompt, batch, uptime_s, cached, graph_off, budget : ndarray of float
        Measured causes, NaN where not known. ``batch_context`` is the sum over the batch, ``longest`` the most that any request of it
        has generated.
    speculative : ndarray of float
        Whether the server speculated: 1, 0, or NaN where it cannot be told.
    time_us, run, cluster, text, stretch, stream, step, service : ndarray of int
        Time; number of the server start from 1; request; its prompt, the same for repeats; block of steps in a row; process and rank;
        which step the row belongs to; which of ``services``.
    weight : ndarray of float
        Steps the row stands for: 1 / batch size for a row of a step, more for a line that sums up a window.
    first : ndarray of bool
        Whether the row is the first of its step: sums over these rows count a step once.
    known : ndarray of bool
        Whether the row's request is known.
    family : ndarray of int
        Host and rank of the row's process: a process of the same family takes the place of the one before it.
    why_code, request_code, boot_code, matched_code : ndarray of int
        Why there is no step time, the request, the machine's boot, how the request was found: into ``why_names``, ``request_names``,
        ``boot_names``, ``matched_names``; -1 for none.
    kind : Kind
        What kind of line the rows are made of.
    log_interval : int or None
        For how many steps a Decode line stands, where ``kind`` is ``DECODE_STEPS`` or ``DECODE_WINDOWS`` and it is known.
    graph_with_batch : float
        Correlation, over Decode lines, of running without a device graph and the batch size; NaN where either does not vary.
    runs : list of Start
        Server starts in the order of their numbers.
    services : list of str
        Names of services.
    excluded : dict of str to int
        What was left out, by reason.
    notes : list of str
        What a reader should know.
    more : dict of str to ndarray
        Columns that only some metrics ask for: ``drafts``, ``draft_nodes``, ``step_index``.
    """

    tokens: Floats
    step_ms: Floats
    elapsed_us: Floats
    context: Floats
    batch_context: Floats
    generated: Floats
    longest: Floats
    prompt: Floats
    batch: Floats
    uptime_s: Floats
    cached: Floats
    graph_off: Floats
    budget: Floats
    speculative: Floats
    time_us: Ints
    run: Numbers
    cluster: Numbers
    text: Numbers
    stretch: Numbers
    stream: Numbers
    step: Numbers
    service: Codes
    family: Numbers
    weight: Floats
    first: Bools
    known: Bools
    why_code: Codes
    request_code: Codes
    boot_code: Codes
    matched_code: Codes
    stream_names: npt.NDArray[Any]
    why_names: npt.NDArray[Any]
    request_names: npt.NDArray[Any]
    boot_names: npt.NDArray[Any]
    matched_names: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, dtype=object))
    kind: Kind = Kind.NOTHING
    log_interval: int | None = None
    runs: list[Start] = field(default_factory=list)
    services: list[str] = field(default_factory=list)
    excluded: dict[str, int] = field(default_factory=dict)
    graph_with_batch: float = float("nan")
    tz: ZoneInfo | None = None
    notes: list[str] = field(default_factory=list)
    more: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def timed(self) -> Bools:
        """Rows that begin a step whose time is known."""
        return np.isfinite(self.step_ms) & self.first

    @property
    def counted(self) -> Bools:
        """Rows whose tokens are known."""
        return np.isfinite(self.tokens)

    @property
    def windows(self) -> bool:
        """Whether a row stands for several steps: a window of them, or all of a request."""
        return self.kind in (Kind.DECODE_WINDOWS, Kind.REQUESTS, Kind.ENGINE_WINDOWS)

    @property
    def row_steps(self) -> Floats:
        """Of how many steps of requests a row is made: one, but for a row that stands for a whole request, or for all of a window."""
        return self.weight if self.kind in (Kind.REQUESTS, Kind.ENGINE_WINDOWS) else np.broadcast_to(1.0, len(self))

    def mean_tokens(self, rows: Bools | slice = slice(None)) -> float | None:
        """Return the mean tokens of a step of a request."""
        return _mean(self.tokens[rows], self.row_steps[rows])

    def mean_step_ms(self, rows: Bools | slice = slice(None)) -> float | None:
        """Return the mean step time in ms that a request sees: 1000 times the mean tokens by it is the speed of a request."""
        return _mean(self.step_ms[rows], self.row_steps[rows])

    @property
    def plain(self) -> bool:
        """Whether decoding is without speculation in every row."""
        return bool(len(self)) and bool((self.speculative == 0.0).all())

    @property
    def basis(self) -> str:
        """What the rows are, in words."""
        said = {
            Kind.STEP_LINES: "step lines",
            Kind.STEP_LINES_NO_REQUESTS: "step lines without requests",
            Kind.DECODE_STEPS: "Decode batch lines, one a step",
            Kind.DECODE_WINDOWS: f"Decode batch lines, one for {self.log_interval} steps"
            if self.log_interval
            else "Decode batch lines of unknown interval",
            Kind.REQUESTS: "requests, one row for all steps of each",
            Kind.ENGINE_WINDOWS: "windows of an engine, steps only in steady ones",
            Kind.NOTHING: "no step line and no Decode batch line",
        }[self.kind]
        return said + (", without speculation" if self.plain else "")

    @property
    def why(self) -> npt.NDArray[np.object_]:
        """Why each row has no step time, None where it has one; made anew each time."""
        return _named(self.why_code, self.why_names)

    @property
    def request(self) -> npt.NDArray[np.object_]:
        """The request of each row, None where not known; made anew each time."""
        return _named(self.request_code, self.request_names)

    @property
    def boot(self) -> npt.NDArray[np.object_]:
        """The machine's boot of each row, None where not known; made anew each time."""
        return _named(self.boot_code, self.boot_names)

    def count(self, reason: str, n: int) -> None:
        """Add to the account of rows left out."""
        if n:
            self.excluded[reason] = self.excluded.get(reason, 0) + int(n)

    def copy(self) -> Basis:
        """Return the same rows with notes and account of their own; the arrays are shared."""
        made = copy.copy(self)
        made.runs, made.services = list(self.runs), list(self.services)
        made.excluded, made.notes, made.more = dict(self.excluded), list(self.notes), dict(self.more)
        return made

    def run_of(self, lines: pd.DataFrame) -> Ints:
        """Return the number of the server start that each line of another table of the same log is of; 0 where none is known before it."""
        at = cols.time_us(lines)
        made = np.zeros(len(lines), dtype=np.int64)
        only = len(self.services) < 2
        names = None if only else np.array([service_name(key) for key in service_keys(lines)], dtype=object)
        for code, name in enumerate(self.services or [""]):
            own = [s for s in self.runs if s.service == code and s.start_us is not None and s.number > 0]
            if not own:
                continue
            starts = np.array([s.start_us for s in own], dtype=np.float64)
            numbers = np.array([0, *(s.number for s in own)], dtype=np.int64)
            rows = np.isfinite(at) if names is None else np.isfinite(at) & (names == name)
            made[rows] = numbers[np.searchsorted(starts, at[rows], side="right")]
        return made

    def frame(self) -> pd.DataFrame:
        """Return the rows as a frame with the names that the metrics take.

        Returns
        -------
        DataFrame
            ``request_id`` and ``stream`` (categories), ``where`` (a number, the same for rows of one step), ``context_len``, ``tokens``,
            ``step_time_ms``, ``step_why``, ``batch_size``, ``batch_context``, ``weight``, ``budget``, ``time_us``, ``prompt_len``,
            ``generated_len``, ``run``, ``row_steps`` (where a row stands for more than one), and ``drafts``, ``draft_nodes``,
            ``step_index``, ``matched`` where they are known.
        """
        made: dict[str, Any] = {
            "request_id": _category(self.request_code, self.request_names),
            "stream": _category(self.stream, self.stream_names),
            "where": self.step,
            "time_us": pd.arrays.IntegerArray(np.maximum(self.time_us, 0), self.time_us < 0),
            "context_len": self.context,
            "tokens": self.tokens,
            "step_time_ms": self.step_ms,
            "step_why": _category(self.why_code, self.why_names),
            "batch_size": self.batch,
            "batch_context": self.batch_context,
            "weight": self.weight,
            "budget": self.budget,
            "prompt_len": self.prompt,
            "generated_len": self.generated,
            "run": self.run,
        }
        if len(self.matched_names):
            made["matched"] = _category(self.matched_code, self.matched_names)
        for name, values in self.more.items():
            made[name] = values
        if self.kind in (Kind.REQUESTS, Kind.ENGINE_WINDOWS):
            made["row_steps"] = self.row_steps
        return pd.DataFrame(made, copy=False)


def _category(codes: npt.NDArray[Any], names: npt.NDArray[Any]) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, categories=pd.Index(names, dtype=object))


def _named(codes: npt.NDArray[Any], names: npt.NDArray[Any]) -> npt.NDArray[np.object_]:
    return np.array([*names, None], dtype=object)[codes]


def _mean(values: Floats, weight: Floats) -> float | None:
    known = np.isfinite(values)
    return float(np.average(values[known], weights=weight[known])) if known.any() else None


def floats(frame: pd.DataFrame, name: str) -> Floats:
    """Return a column as floats; NaN where it is null, missing, infinite or no number."""
    return cols.finite(cols.numeric(frame, name))


def microseconds(frame: pd.DataFrame) -> Ints:
    """Return the times of rows in microseconds since 1970; -1 where there is none."""
    at = cols.time_us(frame)
    known = np.isfinite(at) & (np.abs(np.nan_to_num(at)) < 2**62)
    return np.where(known, np.where(known, at, 0.0), -1).astype(np.int64)


def empty_like(log: Any, name: str) -> pd.DataFrame:
    """Return a frame of the log, an empty one where it has none; of ``request_steps`` the lean form, where there is one."""
    frame = getattr(log, "lean_request_steps", None) if name == "request_steps" else None
    frame = getattr(log, name, None) if frame is None else frame
    return frame if isinstance(frame, pd.DataFrame) else pd.DataFrame()
