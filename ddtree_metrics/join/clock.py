"""How far the clock of the requests is from the clock of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ddtree_metrics.join.prepare import UNKNOWN, Asked, Bools, Ints, StepColumns

SAMPLE = 300
"""How many requests are looked at to find the offset."""

REACH_US = 16 * 3_600_000_000
"""Offsets up to this far (all time zones) are looked for; further only where a clock has no known start."""

QUARTER_US = 15 * 60 * 1_000_000
"""Time zones differ by multiples of this."""

ALIKE = 0.6
"""Requests and steps are of one clock if at so many steps as many requests ran as the batch was large."""

CLUSTER_US = 80_000
"""Differences between first tokens and prefills that lie so near each other agree."""

MOST_TRIED = 5
"""With so many offsets beside 0 the whole match is tried."""

BIN_US = 50_000
CLIENT_LAG_US = 25_000
SERVER_LAG_US = 10_000

Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class Offset:
    """What was found: the requests' clock is ``us`` ahead of the log's, give or take ``uncertainty_us``."""

    us: int = 0
    uncertainty_us: int | None = None
    how: str = "same clock"
    agree: int = 0
    of: int = 0
    lag_us: int = SERVER_LAG_US


class Clock:
    """Compare requests with the steps of a log at a supposed offset."""

    def __init__(self, steps: StepColumns, asked: Asked, prefill_times: Ints) -> None:
        self.s, self.a = steps, asked
        good = (asked.finished != UNKNOWN) & (asked.entry != UNKNOWN) & (asked.completion > 1) & (asked.retractions == 0) & ~asked.aborted
        at = np.flatnonzero(good)
        if len(at) > SAMPLE:
            at = at[np.linspace(0, len(at) - 1, SAMPLE).astype(int)]
        self.at = at
        self.streams = self._streams()
        fresh = steps.time[steps.fresh]
        self.starts = np.sort(prefill_times) if len(prefill_times) else np.sort(fresh if len(fresh) else steps.time)

    def _streams(self) -> list[tuple[Ints, Any, Ints, Any]]:
        """List, for each stream with rising times: times, batch sizes, running tokens, running count of steps not alone."""
        by: dict[str, list[slice]] = {}
        for run in self.s.runs:
            by.setdefault(run.stream, []).append(slice(run.begin, run.end))
        made = []
        for parts in by.values():
            at: Any = parts[0] if len(parts) == 1 else np.concatenate([np.arange(p.start, p.stop) for p in parts])
            time = self.s.time[at]
            if bool(np.any(time[1:] < time[:-1])):
                places = np.arange(at.start, at.stop) if isinstance(at, slice) else at
                at = places[np.argsort(time, kind="stable")]
                time = self.s.time[at]
            total, several = np.zeros(len(time) + 1, np.int64), np.zeros(len(time) + 1, np.int32)
            np.cumsum(np.maximum(self.s.total[at], 0), out=total[1:])
            np.cumsum(self.s.batch[at] != 1, out=several[1:])
            made.append((time, self.s.batch[at], total, several))
        return made

    def hits(self, offset_us: int) -> tuple[int, int]:
        """Count the sampled requests whose steps (or tokens) agree at this offset, and those that could be compared."""
        a, at = self.a, self.at
        first, fin = a.entry[at] - offset_us, a.finished[at] - offset_us
        agree = np.zeros(len(at), bool)
        asked = np.zeros(len(at), bool)
        nowhere = np.ones(len(at), bool)
        for time, _, total, several in self.streams:
            i = np.searchsorted(time, first - np.where(a.client[at], CLIENT_LAG_US, 0), side="left")
            j = np.searchsorted(time, fin, side="right")
            n = j - i
            steps = a.steps[at]
            by_steps = (steps > 0) & (np.abs(n - steps) <= 1) & (n > 0)
            alone = (several[j] == several[i]) & (n > 0)
            over = total[j] - total[i] - (a.completion[at] - 1)
            each = np.maximum((total[j] - total[i]) / np.maximum(n, 1), 1)
            by_tokens = (steps <= 0) & alone & (np.abs(over) <= 2 * each)
            agree |= by_steps | by_tokens
            asked |= (steps > 0) | alone
            nowhere &= n == 0
        return int(agree.sum()), int((asked | nowhere).sum())

    def likeness(self, offset_us: int) -> float:
        """Return the share of (sampled) steps at which as many requests ran as the batch was large; of one stream only."""
        if len(self.streams) != 1:
            return 0.0
        time, batch, _, _ = self.streams[0]
        at = np.linspace(0, len(time) - 1, min(len(time), 2000)).astype(int)
        a = self.a
        good = (a.finished != UNKNOWN) & (a.completion > 1)
        late = np.where(a.client[good], CLIENT_LAG_US, 0)
        t = time[at] + offset_us
        begun = np.searchsorted(np.sort(a.entry[good] - late), t, side="right")
        over = np.searchsorted(np.sort(a.finished[good]), t, side="left")
        return float(np.mean(begun - over == batch[at]))

    def search(self, far: bool) -> list[int]:
        """List offsets at which many requests begin where the log begins something."""
        entry = self.a.entry[self.at]
        if not len(entry) or not len(self.starts):
            return []
        centre = int(np.median(entry)) - int(np.median(self.starts)) if far else 0
        reach = int(max(np.ptp(entry), np.ptp(self.starts)) + REACH_US) if far else REACH_US
        bins = min(2 * reach // BIN_US + 1, 20_000_000)
        width = max(2 * reach // bins + 1, BIN_US)
        votes = np.zeros(bins + 2, np.int32)
        for e in entry.tolist():
            lo, hi = np.searchsorted(self.starts, [e - centre - reach, e - centre + reach])
            d = (e - centre - self.starts[lo:hi] + reach) // width
            np.add.at(votes, np.unique(np.clip(d, 0, bins)), 1)
        smooth = votes[:-1] + votes[1:]
        best = np.argsort(smooth, kind="stable")[::-1][:12]
        return [int(centre + (int(b) + 1) * width - reach) for b in best if smooth[b] >= 2]

    def refine(self, offset_us: int, span_us: int = 400_000) -> Offset:
        """Find the stretch of offsets that most requests allow, near one that is about right."""
        lo, hi, lags = self._allowed(offset_us, span_us)
        made = Offset(us=offset_us, how="estimated")
        made.agree, made.of = self.hits(offset_us)
        sound = lo < hi
        lo, hi, lags = lo[sound], hi[sound], lags[sound]
        if len(lo) >= 2:
            edges = np.concatenate([lo, hi])
            change = np.concatenate([np.ones(len(lo), int), -np.ones(len(hi), int)])
            order = np.lexsort((-change, edges))
            level = np.cumsum(change[order])
            most = int(level.max())
            need = min(most, max(2, int(np.ceil(0.95 * most))))
            inside = np.flatnonzero(level >= need)
            begin, end = int(edges[order][inside[0]]), int(edges[order][min(inside[-1] + 1, len(order) - 1)])
            made.us = offset_us if begin <= offset_us <= end else (begin + end) // 2
            made.uncertainty_us = max((end - begin) // 2, 1)
            made.agree, made.of = most, max(most, made.of)
        fits = (lo <= made.us) & (made.us <= hi) if len(lo) else np.zeros(0, bool)
        if fits.any():
            made.lag_us = int(np.clip(np.median(lags[fits]) - made.us, 0, 400_000))
        return made

    def _allowed(self, offset_us: int, span_us: int) -> tuple[Ints, Ints, Ints]:
        """Return, for each request whose steps can be told near this offset, the offsets it allows, and how late its end is told."""
        a = self.a
        los, his, lags = [], [], []
        for r in self.at.tolist():
            first, fin = int(a.entry[r]), int(a.finished[r])
            for time, _, total, several in self.streams:
                j = int(np.searchsorted(time, first - offset_us))
                for i in range(max(j - 6, 0), min(j + 7, len(time))):
                    e = self._end(r, i, total, several)
                    if e is None or e > len(time):
                        continue
                    before = int(time[i - 1]) if i else -(2**62)
                    after = int(time[e]) if e < len(time) else 2**62
                    slack = CLIENT_LAG_US if a.client[r] else 0
                    low = max(fin - after - 4 * CLIENT_LAG_US, first - int(time[i]) - 4 * slack)
                    high = min(fin - int(time[e - 1]), first - before)
                    if low < high and low - span_us <= offset_us <= high + span_us:
                        los.append(max(low, offset_us - 2 * span_us))
                        his.append(min(high, offset_us + 2 * span_us))
                        lags.append(fin - int(time[e - 1]))
        return np.array(los, np.int64), np.array(his, np.int64), np.array(lags, np.int64)

    def _end(self, r: int, i: int, total: Ints, several: Any) -> int | None:
        steps = int(self.a.steps[r])
        if steps > 0:
            return i + steps
        e = int(np.searchsorted(total, total[i] + self.a.completion[r] - 1))
        if e >= len(total) or several[e] != several[i]:
            return None
        return e


def by_prefills(asked: Asked, times: Ints, lengths: Ints) -> Offset | None:
    """Propose the offset by prefills that have the very length of a request's prompt; None if too few agree.

    A client sees its first token some 20 ms after the prefill; that much is taken off, and is part of the uncertainty.
    """
    at = np.flatnonzero((asked.first != UNKNOWN) & (asked.prompt > 0) & (asked.completion > 0))
    if len(at) > 2000:
        at = at[np.linspace(0, len(at) - 1, 2000).astype(int)]
    order = np.argsort(lengths, kind="stable")
    sorted_lengths, sorted_times = lengths[order], times[order]
    lo, hi = np.searchsorted(sorted_lengths, asked.prompt[at], "left"), np.searchsorted(sorted_lengths, asked.prompt[at], "right")
    told = hi > lo
    found = [(asked.first[r] - sorted_times[i:j])[:2000] for r, i, j in zip(at[told], lo[told], hi[told], strict=True)]
    if len(found) < 2:
        return None
    diffs = np.concatenate(found)
    owner = np.repeat(np.arange(len(found)), [len(x) for x in found])
    turn = np.argsort(diffs, kind="stable")
    diffs, owner = diffs[turn], owner[turn]
    reach = np.searchsorted(diffs, diffs + CLUSTER_US, side="right")
    best = int(np.argmax(reach - np.arange(len(diffs))))
    cluster = slice(best, int(reach[best]))
    agree = len(np.unique(owner[cluster]))
    if agree < max(2, 0.5 * len(found)):
        return None
    client = bool(asked.client[at].mean() > 0.5)
    lag = CLIENT_LAG_US if client else 0
    middle = float(np.median(diffs[cluster]))
    spread = float(np.subtract(*np.percentile(diffs[cluster], [75, 25])))
    us = round(middle - lag)
    unsure = round(spread / 2 + (CLIENT_LAG_US if client else 1_000))
    return Offset(us, unsure, "estimated", agree, len(found), lag or SERVER_LAG_US)


def same_clock(steps: StepColumns, asked: Asked, prefill_times: Ints) -> Offset:
    """Return the offset 0, with how far it can be from the truth and how late an end is told."""
    lag = CLIENT_LAG_US if asked.client.any() else SERVER_LAG_US
    clock = Clock(steps, asked, prefill_times)
    if not len(clock.at) or not len(steps):
        return Offset(how="not checked", lag_us=lag)
    if asked.log.all():  # the log's own lines: nothing to estimate but the lag
        found = clock.refine(0)
        return Offset(0, 0, "same clock", found.agree, found.of, found.lag_us)
    found = clock.refine(0) if clock.hits(0)[0] or clock.likeness(0) >= ALIKE else Offset(lag_us=lag)
    found.us, found.how = 0, "same clock"
    return found


def proposals(steps: StepColumns, asked: Asked, prefill_times: Ints, lengths: Ints, relative: Bools) -> list[Offset]:
    """Propose offsets that may make requests and steps agree; which of them does, only the match tells.

    Parameters
    ----------
    s, a : StepColumns, Asked
        Steps of the log; requests on their own clock.
    prefill_times, lengths : ndarray of int
        When prefills were logged, in us, and of how many tokens each was (-1: of several requests); may be empty. The line may be
        printed when a prefill is scheduled (SGLang up to 0.5.8) or when it is done (from 0.5.9): it is no more than a hint.
    relative : ndarray of bool
        Which requests count from an unknown start.

    Returns
    -------
    list of Offset
        At most ``MOST_TRIED``, the likeliest first.
    """
    clock = Clock(steps, asked, prefill_times)
    if not len(clock.at) or not len(steps):
        return []
    far = bool(relative.any())
    told = by_prefills(asked, prefill_times, lengths) if len(lengths) else None
    rough = clock.search(far)
    if len(prefill_times):  # the first step after a prefill is the mark that does not depend on when its line is printed
        begun = _first_tokens(steps)
        if len(begun):
            clock.starts = begun
            rough += clock.search(far)
    ranked: dict[int, tuple[float, int]] = {}
    made: dict[int, Offset] = {}
    for us in rough if told is None else [told.us, *rough]:
        near = clock.refine(us, 2 * BIN_US + 300_000)
        near.uncertainty_us = near.uncertainty_us or 2 * BIN_US
        for one in (near, Offset(us, 2 * BIN_US, "estimated", lag_us=near.lag_us)):
            if one.us not in made:
                made[one.us], ranked[one.us] = one, (round(clock.likeness(one.us), 2), clock.hits(one.us)[0])
    best = sorted(made, key=lambda us: ranked[us], reverse=True)
    if told is not None:  # it knows the lengths of the prompts, which the others do not
        made[told.us], best = told, [told.us, *(us for us in best if us != told.us)]
    chosen: list[int] = []
    for us in best:
        if all(abs(us - other) > 2_000 for other in chosen) and abs(us) > 2_000:
            chosen.append(us)
    return [made[us] for us in chosen[:MOST_TRIED]]


def refined(steps: StepColumns, asked: Asked, offset: Offset) -> Offset:
    """Put an offset into the middle of those that the requests allow, with its uncertainty."""
    made = Clock(steps, asked, np.zeros(0, np.int64)).refine(offset.us)
    if made.uncertainty_us is None:
        made.us, made.uncertainty_us = offset.us, offset.uncertainty_us
    elif asked.client.any():  # how late a client sees its tokens is not known
        made.uncertainty_us += CLIENT_LAG_US
    made.how = "estimated"
    return made


def _first_tokens(steps: StepColumns) -> Ints:
    """Estimate when prefills were done: a step's time before the line of the first step after each, as long as the next step took."""
    at = np.flatnonzero(steps.fresh)
    after = np.minimum(at + 1, len(steps) - 1)
    took = steps.time[after] - steps.time[at]
    known = (after > at) & ~steps.fresh[after] & (took > 0)
    return np.sort(steps.time[at[known]] - took[known])


def whole_quarter(us: int) -> bool:
    """Whether an offset may be a difference of time zones."""
    return abs((us + QUARTER_US // 2) % QUARTER_US - QUARTER_US // 2) < 5_000_000
