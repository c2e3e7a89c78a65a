"""The one rule by which the time between two lines of a stream is the time of a step, or why it is none.

The reader asks it batch by batch (``streams``), the metrics ask it of a frame (``step_time``); every threshold stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

BURST_US = 100
"""Two lines of a stream nearer than this were written together: no server makes a step in it."""

COARSE_US = 100_000
"""A clock whose smallest step is this or more cannot time a step line by line."""

GAP_FACTOR = 10
"""An interval this many times the usual one beside it is no step; idle time, most often."""

GAP_FLOOR_US = 100_000
"""... and by so much longer at least, so that jitter of very fast steps is not taken for a gap."""

CLOCK_STEP_US = 500_000
"""Wall clock and boot clock may differ by so much between two lines before it is called a jump."""

NEIGHBOURS = 25
"""How many intervals on each side make the usual one."""

LONGEST_STEP_US = 5_000_000
"""No interval longer than this is taken for a step, whatever is beside it: lines an hour apart are usual in an idle night."""

REASONS = (
    "",
    "duplicate_rank",
    "no_time",
    "first",
    "boot",
    "restart",
    "suppressed",
    "outside_window",
    "retraction",
    "clock_step",
    "prefill_between",
    "coarse_clock",
    "window",
    "burst",
    "gap",
)
"""Why an interval is no step time; the first, empty, is that it is one."""

CODE = {name: i for i, name in enumerate(REASONS)}

_BLOCK = 512


@dataclass(slots=True)
class RowClocks:
    """Both clocks of some rows, and how fine the wall clock is.

    Attributes
    ----------
    time, mono : ndarray of int64
        Wall clock and boot clock in us; what is not known is 0.
    timed, has_mono : ndarray of bool
        Where they are known.
    resolution : ndarray of int64
        The smallest step of the wall clock in us.
    """

    time: Ints
    timed: Bools
    mono: Ints
    has_mono: Bools
    resolution: Ints

    def take(self, at: Ints) -> RowClocks:
        """Return the clocks of some rows."""
        return RowClocks(self.time[at], self.timed[at], self.mono[at], self.has_mono[at], self.resolution[at])

    def since_previous(self, last: Last | None) -> tuple[Ints, Bools, Bools]:
        """Return the time since the row before, whether it is known, and whether it is the boot clock's."""
        time0, mono0 = (last.time_us, last.monotonic_us) if last is not None else (None, None)
        prev_time, prev_timed = np.insert(self.time[:-1], 0, time0 or 0), np.insert(self.timed[:-1], 0, time0 is not None)
        prev_mono, prev_has = np.insert(self.mono[:-1], 0, mono0 or 0), np.insert(self.has_mono[:-1], 0, mono0 is not None)
        by_boot_clock = self.has_mono & prev_has
        by_wall_clock = self.timed & prev_timed
        dt = np.where(by_boot_clock, self.mono - prev_mono, np.where(by_wall_clock, self.time - prev_time, 0))
        return dt, by_boot_clock | by_wall_clock, by_boot_clock


@dataclass(slots=True)
class Last:
    """What is remembered of a stream: both clocks of its newest row, and the intervals before it."""

    time_us: int | None
    monotonic_us: int | None
    burst: bool = False
    usual: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclass(slots=True)
class JudgedIntervals:
    """The intervals before some rows of one stream.

    Attributes
    ----------
    elapsed_us : ndarray of int64
        Time since the row before, never below 0, and 0 where it is not known.
    reason : ndarray of int64
        Why it is no step time, as a number into ``REASONS``.
    gaps : ndarray of int64
        The rows before which there is a gap.
    usual_us : ndarray of float64
        The usual interval beside each gap; infinite where there is nothing to compare with.
    last : Last
        What the rows after these need.
    """

    elapsed_us: Ints
    reason: Ints
    gaps: Ints
    usual_us: Floats
    last: Last


def judge(
    clocks: RowClocks, between: Mapping[str, Bools | None], last: Last | None, *, begins: int, windows: Bools | None, find_gaps: bool
) -> JudgedIntervals:
    """Say of each interval of one stream whether it is a step time, and if not, why; where several reasons hold, the strongest.

    Parameters
    ----------
    clocks : RowClocks
        Of the rows of one stream, in the order of their lines; at least one.
    between : mapping of str to ndarray of bool
        For each kind of interruption (restart, suppressed, outside_window, retraction, prefill_between) the rows before which it
        happened.
    last : Last or None
        What was remembered of the stream; None where it begins.
    begins : int
        Why it begins (first, boot, restart), as a number into ``REASONS``; used if ``last`` is None.
    windows : ndarray of bool, optional
        Rows that stand for more than one step.
    find_gaps : bool
        Whether to compare each interval with its neighbours.
    """
    dt, known, by_boot_clock = clocks.since_previous(last)
    reason = np.zeros(len(dt), dtype=np.int64)

    def mark(where: Bools | None, code: str) -> None:
        if where is not None and where.any():
            reason[where & (reason == 0)] = CODE[code]

    if last is None:
        reason[0] = begins
    mark(~known & ~(clocks.timed | clocks.has_mono), "no_time")
    for kind in ("restart", "suppressed", "outside_window", "retraction"):
        mark(between.get(kind), kind)
    mark(~known, "no_time")
    mark(dt < 0, "clock_step")
    coarse = ~by_boot_clock & (clocks.resolution >= COARSE_US)
    mark(between.get("prefill_between"), "prefill_between")
    mark(coarse, "coarse_clock")
    mark(windows, "window")
    together = known & (dt >= 0) & (dt < BURST_US) & ~coarse
    # the lines of a burst, the one it begins with, and the one after it: none of these intervals is a step
    starts = np.append(together[1:], False)
    after = np.insert(together[:-1], 0, last.burst if last is not None else False)
    mark(together | starts | after, "burst")
    carried = last.usual if last is not None else np.empty(0, dtype=np.int64)
    gaps, usual = gaps_among(dt, reason == 0, carried) if find_gaps else (np.empty(0, dtype=np.int64), np.empty(0))
    reason[gaps] = CODE["gap"]
    newest = Last(
        time_us=int(clocks.time[-1]) if clocks.timed[-1] else None,
        monotonic_us=int(clocks.mono[-1]) if clocks.has_mono[-1] else None,
        burst=bool(together[-1]),
        usual=np.concatenate([carried, dt[reason == 0]])[-2 * NEIGHBOURS :],
    )
    return JudgedIntervals(np.where(known, np.maximum(dt, 0), 0), reason, gaps, usual, newest)


def gaps_among(dt: Ints, sound: Bools, carried: Ints | None = None) -> tuple[Ints, Floats]:
    """Find intervals far above the usual one beside them, or too long for any step: idle time or lost lines, but no step.

    Parameters
    ----------
    dt : ndarray of int64
        The intervals of a stream in us.
    sound : ndarray of bool
        Those that may be steps; the others are no neighbours either.
    carried : ndarray of int64, optional
        Intervals before these.

    Returns
    -------
    rows : ndarray of int64
        Where there is a gap.
    usual : ndarray of float64
        The usual interval beside each; infinite where there is nothing to compare with.
    """
    ok = np.flatnonzero(sound)
    carried = np.empty(0, dtype=np.int64) if carried is None else carried
    if not len(ok):
        return ok, np.empty(0)
    here = dt[ok]
    series = np.concatenate([carried, here]).astype(np.float64)
    least = _least_usual(series)[len(carried) :]
    looked_at = np.flatnonzero((here > LONGEST_STEP_US) | ((here > least * GAP_FACTOR) & (here > least + GAP_FLOOR_US)))
    usual = _usual_beside(series, looked_at + len(carried))
    far = (here[looked_at] > usual * GAP_FACTOR) & (here[looked_at] > usual + GAP_FLOOR_US)
    found = far | (here[looked_at] > LONGEST_STEP_US)
    return ok[looked_at[found]], usual[found]


def _least_usual(series: Floats) -> Floats:
    """Return for each interval what the usual one beside it is at least: cheap, so that few medians need be taken.

    A median is not below the lower half of its values, so not below the k-th smallest of a block that holds them all, where k is half of
    the number of values.
    """
    n = len(series)
    fewest = min(n - 1, NEIGHBOURS)
    if fewest < 2:
        return np.full(n, series.min() if n else 0.0)
    k = fewest // 2 - 1
    blocks = -(-n // _BLOCK)
    padded = np.full(blocks * _BLOCK + 2 * NEIGHBOURS, np.inf)
    padded[NEIGHBOURS : NEIGHBOURS + n] = series
    views = np.lib.stride_tricks.sliding_window_view(padded, _BLOCK + 2 * NEIGHBOURS)[::_BLOCK]
    return np.repeat(np.partition(views, k, axis=1)[:, k], _BLOCK)[:n]


def _usual_beside(series: Floats, at: Ints) -> Floats:
    """Return the median of the intervals beside each of some, up to ``NEIGHBOURS`` on each side; inf where there is none."""
    if len(series) < 2:
        return np.full(len(at), np.inf)
    padded = np.concatenate([np.full(NEIGHBOURS, np.nan), series, np.full(NEIGHBOURS, np.nan)])
    views = np.lib.stride_tricks.sliding_window_view(padded, 2 * NEIGHBOURS + 1)
    made = np.empty(len(at))
    for begin in range(0, len(at), 1 << 14):
        around = views[at[begin : begin + (1 << 14)]].copy()
        around[:, NEIGHBOURS] = np.nan
        made[begin : begin + (1 << 14)] = np.nanmedian(around, axis=1)
    return made
