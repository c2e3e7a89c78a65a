"""What lies between two lines of a frame: where lines of other tables stand among them."""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.frames import Bools, Floats, Ints

_CURSOR = re.compile(r"journal:s=([0-9a-f]+);i=([0-9a-f]+)")


class Between:
    """What lies between each row of a frame and the row before it in its stream: prefills, suppressions, retractions, restarts.

    A mark (a row of another table) lies before the first line that stands after it in the file, where both tell their place; by the
    boot clock where they do not; else by the time, a mark of the same time as a row before the row.

    Parameters
    ----------
    lines : DataFrame
        Step lines or Decode lines, in the order in which they were logged.
    stamps, monotonic : ndarray
        Their wall clock and boot clock in us, NaN where not known.
    previous : ndarray of int64
        For each row the row before it in its stream, -1 for the first.
    """

    def __init__(self, lines: pd.DataFrame, stamps: Floats, monotonic: Floats, previous: Ints) -> None:
        self._lines, self._stamps, self._monotonic, self._previous = lines, stamps, monotonic, previous
        self._places: tuple[NDArray[Any], Floats] | None = None

    def masks(
        self, *, prefill: pd.DataFrame | None = None, events: pd.DataFrame | None = None, servers: pd.DataFrame | None = None
    ) -> dict[str, Bools]:
        """Tell for each kind of interruption which intervals contain one."""
        made: dict[str, Bools] = {}
        if prefill is not None and len(prefill):
            made["prefill_between"] = self._contain(prefill, by_stream=True)
        if events is not None and len(events) and "kind" in events.columns:
            kinds = cols.text(events, "kind")
            for kind, by_stream in (("retraction", True), ("suppressed", False), ("restart", False)):
                if (kinds == kind).any():
                    made[kind] = self._contain(events[kinds == kind], by_stream=by_stream)
        if servers is not None and len(servers) and "args" in servers.columns:
            whole = servers[servers["args"].notna()]
            if len(whole):
                hit = self._contain(whole, by_stream=False)
                made["restart"] = made["restart"] | hit if "restart" in made else hit
        return made

    def _contain(self, marks: pd.DataFrame, *, by_stream: bool) -> Bools:
        made = np.zeros(len(self._lines), dtype=bool)
        before = self._positions(marks)
        named = by_stream and cols.has(marks, "stream") and cols.has(self._lines, "stream")
        keys = ("stream",) if named else ("host", "boot_id", "dp_rank") if by_stream else ("host", "unit")
        mark_keys = {k: cols.text(marks, k) for k in keys}
        line_keys = {k: cols.text(self._lines, k) for k in keys}
        group = cols.codes(marks, keys)
        rows, previous = np.arange(len(self._lines)), self._previous
        for code in np.unique(group[before >= 0]):
            mine = np.flatnonzero((group == code) & (before >= 0))
            at = np.sort(before[mine])
            inside = np.searchsorted(at, rows, side="right") > np.searchsorted(at, previous, side="right")
            inside &= previous >= 0
            for key in keys:
                wanted = mark_keys[key][mine[0]]
                if wanted is not None:
                    inside &= (line_keys[key] == wanted) | (line_keys[key] == None)  # noqa: E711 - elementwise
                elif named:
                    inside &= line_keys[key] == None  # noqa: E711 - elementwise
            made |= inside
        return made

    def _positions(self, marks: pd.DataFrame) -> Ints:
        """Return the row before which each mark lies; the number of rows where it lies after them all, -1 where nothing tells."""
        made = np.full(len(marks), -1, dtype=np.int64)
        if self._places is None:
            self._places = places(self._lines)
        files, numbers = self._places
        mark_files, mark_numbers = places(marks)
        for file in {f for f in mark_files if f is not None}:
            rows = np.flatnonzero(files == file)
            if len(rows):
                mine = np.flatnonzero(mark_files == file)
                made[mine] = _following(rows, numbers[rows], mark_numbers[mine], "right")
        boots = self._monotonic
        if (made < 0).any() and np.isfinite(boots).any():
            mark_boots, own_boots = cols.text(marks, "boot_id"), cols.text(self._lines, "boot_id")
            uptime = cols.finite(cols.numeric(marks, "monotonic_us"))
            for boot in set(mark_boots[(made < 0) & np.isfinite(uptime)]):
                rows = np.flatnonzero((own_boots == boot) & np.isfinite(boots))
                if len(rows):
                    mine = np.flatnonzero((made < 0) & (mark_boots == boot) & np.isfinite(uptime))
                    made[mine] = _following(rows, boots[rows], uptime[mine], "left")
        stamps, mark_stamps = self._stamps, cols.time_us(marks)
        rest = np.flatnonzero((made < 0) & np.isfinite(mark_stamps))
        rows = np.flatnonzero(np.isfinite(stamps))
        if len(rest) and len(rows):
            made[rest] = _following(rows, stamps[rows], mark_stamps[rest], "left")
        return made


def _following(rows: Ints, values: Floats, marks: Floats, side: Literal["left", "right"]) -> Ints:
    """Return the first row whose value is above (or at) each mark, one past the last row where none is."""
    at = np.searchsorted(np.maximum.accumulate(values), marks, side=side)
    return np.where(at < len(rows), rows[np.minimum(at, len(rows) - 1)], rows[-1] + 1)


def places(frame: pd.DataFrame) -> tuple[NDArray[Any], Floats]:
    """Return the file (or journal) in which each row's line stands, None where not known, and its number there."""
    files = np.full(len(frame), None, dtype=object)
    numbers = np.full(len(frame), np.nan)
    for row, where in enumerate(cols.text(frame, "where")):
        if not isinstance(where, str):
            continue
        if where.startswith("journal:"):
            found = _CURSOR.match(where)
            if found:
                files[row], numbers[row] = found[1], int(found[2], 16)
        else:
            file, _, number = where.rpartition(":")
            if file and number.isdigit():
                files[row], numbers[row] = file, int(number)
    return files, numbers
