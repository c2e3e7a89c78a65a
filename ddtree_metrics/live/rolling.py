"""Sums over the last minutes, by second and context: a line costs the same however many came before it, and memory has an end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ddtree_metrics.metrics.context import bin_label, doubling_edges
from ddtree_metrics.steps.basis import Basis
from ddtree_metrics.steps.frames import Bools, Floats, Ints

EDGES = tuple(doubling_edges(2**20 - 1).tolist())
"""Bins of context: those of ``summary``, up to a million tokens."""

UNKNOWN = len(EDGES) - 1
"""The bin of rows whose context is not known."""

LONGEST_S = 900
"""Seconds that are kept."""

STEP_BACK_S = 5.0
"""A time that is so much before the newest one, or so much further ahead of it than has passed, is that of a clock that was set."""

_STEPS, _TIMED, _MS, _COUNTED, _TOKENS, _BATCHED, _BATCH, _ACCEPTED = range(8)


def name_of(at: int) -> str:
    """Name a bin of context."""
    return "unknown" if at == UNKNOWN else bin_label(EDGES[at], EDGES[at + 1])


@dataclass(frozen=True, slots=True)
class Means:
    """What some rows are in the mean; None where nothing tells it.

    Attributes
    ----------
    steps : float
        Steps of requests that had a number of tokens or a step time.
    step_ms : float or None
        Mean step time that requests saw.
    tokens : float or None
        Tokens per step and request.
    tok_per_s : float or None
        Speed of one request.
    batch : float or None
        Requests in a step.
    accepted_share : float or None
        Share of steps that put out more than one token.
    """

    steps: float = 0.0
    step_ms: float | None = None
    tokens: float | None = None
    tok_per_s: float | None = None
    batch: float | None = None
    accepted_share: float | None = None


def means(sums: Floats) -> Means:
    """Divide the sums of some rows."""
    step = float(sums[_MS] / sums[_TIMED]) if sums[_TIMED] else None
    tokens = float(sums[_TOKENS] / sums[_COUNTED]) if sums[_COUNTED] else None
    return Means(
        steps=float(sums[_STEPS]),
        step_ms=step,
        tokens=tokens,
        tok_per_s=1000 * tokens / step if tokens is not None and step else None,
        batch=float(sums[_BATCH] / sums[_BATCHED]) if sums[_BATCHED] else None,
        accepted_share=float(sums[_ACCEPTED] / sums[_COUNTED]) if sums[_COUNTED] else None,
    )


def sums_by_bin(basis: Basis, rows: Bools) -> Floats:
    """Sum rows up by context.

    Returns
    -------
    ndarray of float, shape (bins, 8)
        Steps, timed ones and their ms, counted ones and their tokens, those of a known batch and their requests, those of more than one
        token; each weighted by the steps of requests that a row stands for.
    """
    n = UNKNOWN + 1
    weight, tokens, ms, batch = basis.row_steps[rows], basis.tokens[rows], basis.step_ms[rows], basis.batch[rows]
    at = bins_of(basis.context[rows])
    counted, timed, sized = np.isfinite(tokens), np.isfinite(ms), np.isfinite(batch) & basis.first[rows]

    def by_bin(some: Bools, values: Floats | float = 1.0) -> Floats:
        return np.asarray(np.bincount(at[some], (weight * values)[some], n), dtype=np.float64)

    return np.column_stack(
        [
            by_bin(counted | timed),
            by_bin(timed),
            by_bin(timed, np.where(timed, ms, 0.0)),
            by_bin(counted),
            by_bin(counted, np.where(counted, tokens, 0.0)),
            by_bin(sized),
            by_bin(sized, np.where(sized, batch, 0.0)),
            by_bin(counted & (tokens > 1)),
        ]
    )


def bins_of(context: Floats) -> Ints:
    """Give each context the number of its bin."""
    known = np.isfinite(context)
    at = np.clip(np.searchsorted(EDGES, np.where(known, context, 0.0), side="right") - 1, 0, UNKNOWN - 1)
    return np.where(known, at, UNKNOWN)


def boot_clock() -> float:
    """Return seconds on a clock that nobody sets; where there is one, on one that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Steady:
    """A clock that follows the times of lines, and goes on by what has passed where a clock was set.

    Parameters
    ----------
    live : bool
        Whether lines come as they are written. If not, a leap ahead is time in which nothing was logged.
    """

    def __init__(self, live: bool) -> None:
        self.live = live
        self.set_by: list[float] = []
        self._shift = 0.0
        self._newest: float | None = None
        self._arrived = 0.0
        self._caught_up = False

    def feed(self, at_s: Floats, arrived_s: float, wall_s: float | None = None) -> Floats:
        """Return the times of lines on this clock, in seconds.

        Parameters
        ----------
        at_s : ndarray, shape (n,)
            Their own times, in order.
        arrived_s : float
            When they came, on a clock that nobody sets and that goes on while the machine sleeps.
        wall_s : float, optional
            The time of day then. Before the first line that is not older than some seconds, lines are of the past, and a leap ahead is time
            in which nothing was logged. By default there is no past.
        """
        made = np.empty(len(at_s))
        live = self.live and self._caught_up
        self._caught_up |= wall_s is None or (len(at_s) > 0 and abs(wall_s - float(at_s[-1])) < STEP_BACK_S)
        passed = arrived_s - self._arrived
        for i, at in enumerate(at_s.tolist()):
            now = at + self._shift
            if self._newest is not None:
                ahead = now - self._newest
                if ahead < -STEP_BACK_S or (live and ahead > passed + STEP_BACK_S):
                    moved = (passed if live else 0.0) - ahead
                    self._shift += moved
                    self.set_by.append(-moved)
                    now += moved
            self._newest = now if self._newest is None else max(self._newest, now)
            made[i] = now
        self._arrived = arrived_s
        return made

    def now(self, arrived_s: float) -> float | None:
        """Return the time by now: that of the newest line, and where lines come as they are written what has passed since."""
        if self._newest is None:
            return None
        return self._newest + (max(arrived_s - self._arrived, 0.0) if self.live else 0.0)


class Rolling:
    """Sums of the last ``LONGEST_S`` seconds."""

    def __init__(self) -> None:
        self._cells: deque[tuple[int, Floats]] = deque()

    def add(self, at_s: Floats, basis: Basis, rows: Bools) -> None:
        """Add rows at their times on a steady clock, which may be a little out of order."""
        seconds = np.floor(at_s).astype(np.int64)
        places = np.flatnonzero(rows)
        by_second = dict(self._cells)
        for second in np.unique(seconds):
            mine = np.zeros(len(rows), dtype=bool)
            mine[places[seconds == second]] = True
            made = sums_by_bin(basis, mine)
            by_second[int(second)] = by_second[int(second)] + made if int(second) in by_second else made
        newest = max(by_second, default=0)
        self._cells = deque(sorted((s, c) for s, c in by_second.items() if s > newest - LONGEST_S))

    def last(self, seconds: float, now_s: float, *, until_s: float | None = None) -> Floats:
        """Return the sums by bin of the last so many seconds before ``now_s``, or of those that end at ``until_s``."""
        end = now_s if until_s is None else until_s
        found = [cell for second, cell in self._cells if end - seconds < second <= end]
        return np.sum(found, axis=0) if found else np.zeros((UNKNOWN + 1, 8))

    def each(self, seconds: int, now_s: float, pieces: int) -> list[Means]:
        """Return the means of so many pieces of time in a row, the last of which ends now."""
        sums = np.zeros((pieces, 8))
        for second, cell in self._cells:
            back = int((now_s - second) // seconds)
            if 0 <= back < pieces and second <= now_s:
                sums[pieces - 1 - back] += cell.sum(axis=0)
        return [means(row) for row in sums]


def ratios(now: Floats, then: Floats, least: float) -> tuple[float | None, float | None, float]:
    """Compare two sums by bin at equal context.

    Parameters
    ----------
    now, then : ndarray of float, shape (bins, 8)
    least : float
        So many steps a bin must have in both.

    Returns
    -------
    step, tokens : float or None
        Step time and tokens per step now by those then: the logs of the ratios of bins that both have, weighted by the steps now. Where no
        row has a context the rows without one are compared.
    steps : float
        Steps now that the comparison rests on.
    """
    known = now[:UNKNOWN, _STEPS].sum() > 0 and then[:UNKNOWN, _STEPS].sum() > 0
    bins: Iterable[int] = range(UNKNOWN) if known else (UNKNOWN,)
    made: list[float | None] = []
    rests = 0.0
    for total, count in ((_MS, _TIMED), (_TOKENS, _COUNTED)):
        logs = [
            (now[b, count], np.log(now[b, total] / now[b, count]) - np.log(then[b, total] / then[b, count]))
            for b in bins
            if min(now[b, count], then[b, count]) >= least and now[b, total] > 0 and then[b, total] > 0
        ]
        weight = sum(w for w, _ in logs)
        made.append(float(np.exp(sum(w * x for w, x in logs) / weight)) if weight else None)
        rests = max(rests, float(weight))
    return made[0], made[1], rests
