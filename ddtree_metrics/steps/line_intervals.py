"""The intervals between the lines of a frame, put to the one rule of ``intervals``."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.between import Between
from ddtree_metrics.steps.frames import Bools, Floats, Ints
from ddtree_metrics.steps.intervals import CLOCK_STEP_US, CODE, RowClocks, judge
from ddtree_metrics.steps.stream_ids import Origins, begins_as, family_of, stream_of


class Intervals:
    """Each row's interval since the previous row of its stream, by the better of its clocks.

    Attributes
    ----------
    stamps, previous_stamps : ndarray
        Wall clock of the row and of the one before it in the stream, in us; NaN where not known.
    elapsed_us : ndarray
        Time between them: by the boot clock where both rows have it, else by the wall clock.
    jump_us : ndarray
        By how much the wall clock was set between them, where both clocks tell.
    by_monotonic : ndarray of bool
        Whether the boot clock was used.
    resolution_us : ndarray
        The smallest step of the wall clock, as declared or as the stamps show.
    streams : ndarray of int64
        The stream's number.
    previous : ndarray of int64
        Row number of the one before, -1 for the first.
    copies : ndarray of bool
        Rows that other ranks logged; they are before and after nothing.
    """

    def __init__(self, streams: Ints, previous: Ints, stamps: Floats, monotonic: Floats, resolution: Floats, copies: Bools) -> None:
        self.streams = streams
        self.previous = previous
        self.stamps = stamps
        self.monotonic = monotonic
        self.copies = copies
        back = np.maximum(previous, 0)
        first = previous < 0
        self.previous_stamps = np.where(first, np.nan, stamps[back] if len(stamps) else stamps)
        wall = stamps - self.previous_stamps
        boot_clock = np.where(first, np.nan, monotonic - (monotonic[back] if len(monotonic) else monotonic))
        self.by_monotonic = np.isfinite(boot_clock)
        self.elapsed_us = np.where(self.by_monotonic, boot_clock, wall)
        self.jump_us = wall - boot_clock
        self.resolution_us = resolution

    @classmethod
    def of(cls, lines: pd.DataFrame) -> Intervals:
        """Take the intervals of a table of lines, in the order of its rows."""
        streams = cols.stream_codes(lines)
        previous = np.full(len(lines), -1, dtype=np.int64)
        copies = cols.text(lines, "step_why" if "step_why" in lines.columns else "line_why") == "duplicate_rank"
        kept = np.flatnonzero(~copies)
        order = kept[np.argsort(streams[kept], kind="stable")]
        same = np.diff(streams[order]) == 0
        previous[order[1:][same]] = order[:-1][same]
        stamps = cols.time_us(lines)
        return cls(streams, previous, stamps, cols.finite(cols.numeric(lines, "monotonic_us")), resolution_us(lines, stamps), copies)

    @property
    def clock_set(self) -> Bools:
        """Rows before which the wall clock was set."""
        with np.errstate(invalid="ignore"):
            return np.abs(self.jump_us) > CLOCK_STEP_US

    def clocks(self) -> RowClocks:
        """Return both clocks as whole numbers."""
        timed, has_mono = np.isfinite(self.stamps), np.isfinite(self.monotonic)
        return RowClocks(_ints(self.stamps), timed, _ints(self.monotonic), has_mono, _ints(self.resolution_us))


def _ints(values: Floats) -> Ints:
    return np.rint(np.where(np.isfinite(values), values, 0.0)).astype(np.int64)


def judged(
    lines: pd.DataFrame,
    frame: Intervals,
    *,
    prefill: pd.DataFrame | None,
    events: pd.DataFrame | None,
    servers: pd.DataFrame | None = None,
    find_gaps: bool = True,
) -> Ints:
    """Say of each row why the time since the row before it is no step time, as a number into ``intervals.REASONS``; 0 where it is one.

    The same rule as the reader's (``intervals.judge``), with what lies between two rows found by the order in the file where that is known.
    """
    made = np.zeros(len(lines), dtype=np.int64)
    made[frame.copies] = CODE["duplicate_rank"]
    if not len(lines):
        return made
    between = Between(lines, frame.stamps, frame.monotonic, frame.previous).masks(prefill=prefill, events=events, servers=servers)
    begins = _begins(lines, frame)
    clocks = frame.clocks()
    stands_for = cols.numeric(lines, "steps")
    windows = np.isfinite(stands_for) & (stands_for != 1)
    own = np.flatnonzero(~frame.copies)
    order = own[np.argsort(frame.streams[own], kind="stable")]
    for at in np.split(order, np.flatnonzero(np.diff(frame.streams[order])) + 1) if len(order) else ():
        found = judge(
            clocks.take(at),
            {kind: mask[at] for kind, mask in between.items()},
            None,
            begins=int(begins[at[0]]),
            windows=windows[at],
            find_gaps=find_gaps,
        )
        made[at] = found.reason
    return made


def _begins(lines: pd.DataFrame, frame: Intervals) -> Ints:
    """Say of the first row of each stream whether it follows a boot, a restart, or nothing that is known."""
    made = np.zeros(len(lines), dtype=np.int64)
    places = _origins(lines)
    own = np.flatnonzero(~frame.copies)
    _, firsts, codes = np.unique(frame.streams[own], return_index=True, return_inverse=True)
    ends = np.zeros(len(firsts), dtype=np.int64)
    np.maximum.at(ends, codes.reshape(-1), own)
    newest: dict[str, int] = {}
    for k in np.argsort(firsts):
        row = int(own[firsts[k]])
        family = family_of(places.of(row))
        before = newest.get(family)
        newest[family] = int(k)
        made[row] = CODE[
            begins_as(
                stream_of(places.of(row)),
                None if before is None else stream_of(places.of(int(own[firsts[before]]))),
                goes_on=before is not None and int(ends[before]) > row,
            )
        ]
    return made


def _origins(lines: pd.DataFrame) -> Origins:
    """Name the places that rows come from, as the reader does; where only streams are known, by the parts of their names."""
    names = {name: cols.text(lines, name) for name in ("host", "boot_id", "unit", "where")}
    numbers = {name: cols.numeric(lines, name) for name in ("pid", "dp_rank")}
    told = any(name in lines.columns for name in ("host", "boot_id", "unit", "pid", "dp_rank"))
    if not told and cols.has(lines, "stream"):
        codes, texts = pd.factorize(cols.text(lines, "stream"), use_na_sentinel=True)
        parts = [str(text).split("|") for text in texts]
        for name, place in (("host", 0), ("boot_id", 1), ("dp_rank", 3)):
            known = np.array([p[place] if len(p) == 4 else "" for p in parts] + [""], dtype=object)
            if name == "dp_rank":
                ranks = [float(x[2:]) if x.startswith("dp") and x[2:].isdigit() else np.nan for x in known]
                numbers[name] = np.array(ranks)[codes]
            else:
                names[name] = known[codes]
    arrays = {name: pa.array(values, pa.string(), from_pandas=True) for name, values in names.items()}
    arrays |= {name: pa.array(_ints(v), pa.int64(), mask=~np.isfinite(v)) for name, v in numbers.items()}
    return Origins(pa.RecordBatch.from_pydict(arrays))


def resolution_us(lines: pd.DataFrame, stamps: Floats) -> Floats:
    """Return the smallest step of the wall clock of each row: as declared, else as all stamps of the table show."""
    declared = cols.numeric(lines, "time_resolution_us")
    known = stamps[np.isfinite(stamps)]
    shown = 1.0
    if len(known) > 2:
        for unit in (1_000_000.0, 1_000.0):
            if not np.any(np.mod(known, unit)):
                shown = unit
                break
    return np.where(np.isfinite(declared), declared, shown)
