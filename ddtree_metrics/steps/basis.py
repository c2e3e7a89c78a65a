"""The rows that a diagnosis rests on: request-steps as plain arrays, with every measured cause beside them.

Nothing is dropped silently: what cannot be used is counted in ``Basis.excluded`` with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddtree_metrics.steps import frames as columns

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Start:
    """One start of the server, or one process where the log has no start line."""

    number: int
    start_us: int | None
    boot_id: str | None
    args: dict[str, str] | None
    label: str


@dataclass(slots=True)
class Basis:
    """Request-steps in order of time, as arrays of equal length.

    Attributes
    ----------
    tokens, step_ms : ndarray of float
        Tokens the step added to the request; step time, NaN where there is none.
    context, batch_context, generated, prompt, batch, uptime_s, cached, graph_off, budget : ndarray of float
        Measured causes, NaN where not known. ``batch_context`` is the sum over the batch.
    time_us, run, cluster, text, stretch, stream, step : ndarray of int
        Time; number of the server start from 1; request; its prompt, the same for repeats; block of steps in a row; process and rank;
        which step the row belongs to.
    weight : ndarray of float
        Steps the row stands for: 1 / batch size for a row of a step, more for a line that sums up a window.
    first : ndarray of bool
        Whether the row is the first of its step: sums over these rows count a step once.
    known : ndarray of bool
        Whether the row's request is known.
    plain : bool
        Whether decoding is without speculation.
    graph_with_batch : float
        Correlation, over Decode lines, of running without a device graph and the batch size; NaN where either does not vary.
    family : ndarray of int
        Host and rank of the row's process: a process of the same family takes the place of the one before it.
    """

    tokens: Floats
    step_ms: Floats
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
    time_us: Ints
    run: Ints
    cluster: Ints
    text: Ints
    stretch: Ints
    stream: Ints
    step: Ints
    weight: Floats
    first: Bools
    known: Bools
    why: npt.NDArray[np.object_]
    request: npt.NDArray[np.object_]
    boot: npt.NDArray[np.object_]
    family: Ints
    runs: list[Start] = field(default_factory=list)
    excluded: dict[str, int] = field(default_factory=dict)
    basis: str = ""
    windows: bool = False
    plain: bool = False
    graph_with_batch: float = float("nan")
    tz: ZoneInfo | None = None
    notes: list[str] = field(default_factory=list)

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

    def count(self, reason: str, n: int) -> None:
        """Add to the account of rows left out."""
        if n:
            self.excluded[reason] = self.excluded.get(reason, 0) + int(n)


def floats(frame: pd.DataFrame, name: str) -> Floats:
    """Return a column as floats; NaN where it is null, missing, infinite or no number."""
    if name not in frame:
        return np.full(len(frame), np.nan)
    values = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan).copy()
    values[~np.isfinite(values)] = np.nan
    return values


def words(frame: pd.DataFrame, name: str) -> npt.NDArray[np.object_]:
    """Return a column as objects, None where it is null or missing."""
    return columns.text(frame, name)


def microseconds(frame: pd.DataFrame) -> Ints:
    """Return the times of rows in microseconds since 1970; -1 where there is none."""
    if "time_us" in frame:
        given = floats(frame, "time_us")
        if np.isfinite(given).any() or "time" not in frame:
            return np.where(np.isfinite(given), given, -1).astype(np.int64)
    if "time" not in frame or not len(frame):
        return np.full(len(frame), -1, dtype=np.int64)
    stamps = pd.to_datetime(frame["time"], utc=True, errors="coerce")
    values = stamps.astype("datetime64[us, UTC]").astype("int64").to_numpy(copy=True)
    values[stamps.isna().to_numpy()] = -1
    return values


def empty_like(log: Any, name: str) -> pd.DataFrame:
    """Return a frame of the log, an empty one where it has none; of ``request_steps`` the lean form, where there is one."""
    frame = getattr(log, "lean_request_steps", None) if name == "request_steps" else None
    frame = getattr(log, name, None) if frame is None else frame
    return frame if isinstance(frame, pd.DataFrame) else pd.DataFrame()


_ARRAYS = tuple(name for name, kind in Basis.__annotations__.items() if kind in ("Floats", "Ints", "Bools", "npt.NDArray[np.object_]"))


def keep(panel: Basis, rows: npt.NDArray[Any]) -> None:
    """Take some rows of every array, or put them in another order."""
    for name in _ARRAYS:
        setattr(panel, name, getattr(panel, name)[rows])


def without(panel: Basis, drop: Bools, reason: str) -> None:
    """Leave rows out and count them."""
    if drop.any():
        panel.count(reason, int(drop.sum()))
        keep(panel, ~drop)
