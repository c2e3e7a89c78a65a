"""Breaks in time: since when steps take longer or less, or commit more or fewer tokens, at equal context and batch.

What the models leave over is a series in time. Changes of its level are found by PELT (Killick, Fearnhead and Eckley, 2012; the library
``ruptures``), and each is believed only if it is large against the noise of *blocks* of time (a neighbour on the host, a clock that
drifts and texts that differ make runs of high and low values of their own), and sudden: a drift is no break. A level that comes and goes
is an episode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ddtree_metrics.diagnosis.causes import STEP
from ddtree_metrics.diagnosis.cells import FEWEST_REQUESTS
from ddtree_metrics.metrics.doubt import Estimate
from ddtree_metrics.steps.frames import Bools, Floats, Ints

BINS = 240
"""A series is summed up to so many bins before it is searched."""

FEWEST_BINS = 12
"""A shorter series is not searched."""

TRANSIT = 2
"""A level of so few bins between two others is the bin in which one became the other."""

SURE = 4.5
"""A break is so many standard errors from none: it is the largest of many places."""

ONE_TOKEN = 1.02
"""A mean of so many tokens per step, or fewer, is that of drafts of which none is accepted."""

SUDDEN = 0.5
"""At a break the level changes by at least this share of its size within a few bins."""

EPISODE_SHARE, EPISODE_S = 0.2, 300.0
"""A level that returns within this share of the run and so many seconds is an episode, no break."""

SETTLES_MIN = 1.0
"""A level that is reached in fewer minutes than this is the first requests of a start, and no server that gets warm."""

RETURNS = 0.4
"""... if what is left of the change is less than this share of it."""


@dataclass(frozen=True, slots=True)
class Break:
    """A sudden change of one of the two numbers in mid-run.

    Attributes
    ----------
    on : str
        ``step time`` or ``tokens per step``.
    run : int
        The server start in which it lies.
    time_us, low_us, high_us : int
        When; and between which two instants it lies for certain.
    size : Estimate
        Log of the number after by the number before, at equal context and batch.
    last_us : int
        Until when the new level was seen.
    level : float
        The number after, as logged.
    gradual : bool
        Whether it came about between ``low_us`` and ``high_us`` little by little.
    """

    on: str
    run: int
    time_us: int
    low_us: int
    high_us: int
    size: Estimate
    last_us: int
    level: float = math.nan
    gradual: bool = False

    def after(self, run: Ints, time_us: Ints) -> Bools:
        """Tell which rows are of the level that begins with it: in the same start, from then until the next change."""
        return np.asarray((run == self.run) & (time_us >= self.time_us))


@dataclass(frozen=True, slots=True)
class Episodes:
    """Times at which steps were slower and became as they were before.

    Attributes
    ----------
    count : int
        How many.
    share : float
        Share of all steps in them.
    size : float
        Log of step time in them by step time outside.
    spans_us : tuple of (int, int, int)
        Server start, first and last time of each.
    """

    count: int = 0
    share: float = 0.0
    size: float = 0.0
    spans_us: tuple[tuple[int, int, int], ...] = ()

    def inside(self, run: Ints, time_us: Ints) -> Bools:
        """Tell which rows lie in one."""
        made = np.zeros(len(run), dtype=bool)
        for number, begin, end in self.spans_us:
            made |= (run == number) & (time_us >= begin) & (time_us <= end)
        return made


def find_breaks(
    on: str, left: Floats, level: Floats, weight: Floats, time_us: Ints, run: Ints, least: float, owner: Ints | None = None
) -> tuple[list[Break], Episodes]:
    """Find the breaks in what a model leaves over.

    Parameters
    ----------
    on : str
        Which number.
    left : ndarray of shape (cells,)
        Log of what was seen by what the model says.
    level : ndarray
        The number itself.
    weight : ndarray
        Steps of each cell.
    time_us, run : ndarray of int
        When; which start.
    least : float
        The smallest change (log) that counts.
    owner : ndarray of int, optional
        Whose text each cell is of, where that may stand behind a change: it is then believed only if the means of requests show it too.

    Returns
    -------
    breaks : list of Break
    episodes : Episodes
    """
    breaks: list[Break] = []
    spans: list[tuple[int, int, int]] = []
    inside = np.zeros(len(left), dtype=bool)
    for number in np.unique(run):
        mine = np.flatnonzero((run == number) & (time_us >= 0))
        if len(mine) < FEWEST_BINS:
            continue
        mine = mine[np.argsort(time_us[mine], kind="stable")]
        texts = None if owner is None else owner[mine]
        found, episodes = _of_run(on, int(number), left[mine], level[mine], weight[mine], time_us[mine], least, texts)
        breaks += found
        for begin, end in episodes:
            inside[mine[begin:end]] = True
            spans.append((int(number), int(time_us[mine[begin]]), int(time_us[mine[end - 1]])))
    made = Episodes()
    if spans:
        w = weight / weight.sum()
        outside = max(float(w[~inside].sum()), 1e-12)
        size = float((w * left)[inside].sum() / w[inside].sum() - (w * left)[~inside].sum() / outside)
        made = Episodes(len(spans), float(w[inside].sum()), size, tuple(spans))
    return breaks, made


def _of_run(
    on: str, run: int, left: Floats, level: Floats, weight: Floats, time_us: Ints, least: float, owner: Ints | None
) -> tuple[list[Break], list[tuple[int, int]]]:
    """Search one server start; cells are in the order of time."""
    edges = _bins(len(left))
    series = np.array([_middle(left[a:b], weight[a:b]) for a, b in pairwise(edges)])
    seconds = time_us[edges[1:] - 1] / 1e6
    cuts = _candidates(series, least)
    cuts, episodes = _episodes(series, cuts, seconds, least)
    calm = np.ones(len(series), dtype=bool)
    for a, b in episodes:
        calm[a:b] = False
    at = np.flatnonzero(calm)
    quiet = series[at]
    places = sorted({int(np.searchsorted(at, c)) for c in cuts} - {0, len(quiet)})
    kept = _believed(quiet, places, least)
    if owner is not None:
        kept = _of_no_text(kept, at, edges, left, level, owner)
    noise = _long_noise(quiet, kept)
    made = []
    bounds = [0, *kept, len(quiet)]
    for i, cut in enumerate(kept, 1):
        earlier, later = quiet[bounds[i - 1] : cut], quiet[cut : bounds[i + 1]]
        few = min(len(earlier), len(later))
        size = Estimate(float(np.median(later) - np.median(earlier)), noise * math.sqrt(1 / len(earlier) + 1 / len(later)), max(few - 1, 3))
        begin, stop = int(at[bounds[i - 1]]), int(at[bounds[i + 1] - 1]) + 1
        first, low, high = _place(left, edges, begin, int(at[cut]), stop)
        end = int(edges[stop])
        shown = float(np.average(level[first:end], weights=weight[first:end])) if end > first else math.nan
        made.append(Break(on, run, int(time_us[first]), int(time_us[low]), int(time_us[high]), size, int(time_us[end - 1]), shown))
    if not made and on == STEP:
        made = _settling(on, run, quiet, level[edges[at]], time_us[edges[at]], least)
    return made, [(int(edges[a]), int(edges[b])) for a, b in episodes]


def _bins(n: int) -> Ints:
    return np.unique(np.linspace(0, n, min(n, BINS) + 1).astype(np.int64))


def _middle(values: Floats, weight: Floats) -> float:
    """Return a mean from which the furthest are left out; few values have only their median."""
    if len(values) < 5:
        return float(np.median(values))
    low, high = np.quantile(values, [0.1, 0.9])
    inner = (values >= low) & (values <= high)
    return float(np.average(values[inner], weights=weight[inner]))


def _candidates(series: Floats, least: float) -> list[int]:
    """Return the places where PELT sees the level change (squared errors; the linear kernel is their compiled form)."""
    import ruptures

    if len(series) < FEWEST_BINS or float(np.ptp(series)) < least:
        return []
    # by the upper quartile: half of a series may stand still (1.15 standard deviations for a normal one)
    noise = float(np.quantile(np.abs(np.diff(series)), 0.75)) / 1.15 / math.sqrt(2)
    noise = max(noise, 1e-4, least / 10)
    clipped = np.clip(series, np.median(series) - 8.0, np.median(series) + 8.0)
    found = ruptures.KernelCPD(kernel="linear", min_size=2).fit(clipped[:, None]).predict(pen=4.0 * noise**2 * math.log(len(series)))
    return _without_transits(series, [int(c) for c in found[:-1]])


def _without_transits(series: Floats, cuts: list[int]) -> list[int]:
    """Make one cut of two that have only a bin or two between them, on the way from one level to the next: the break is within those."""
    kept, i = list(cuts), 0
    while i + 1 < len(kept):
        begin, end = kept[i], kept[i + 1]
        first, last = ([0, *kept][i], [*kept, len(series)][i + 2])
        before, way, after = (float(np.median(part)) for part in (series[first:begin], series[begin:end], series[end:last]))
        if end - begin <= TRANSIT < min(begin - first, last - end) and min(before, after) <= way <= max(before, after):
            off = [np.abs(series[begin:c] - before).sum() + np.abs(series[c:end] - after).sum() for c in range(begin, end + 1)]
            kept[i : i + 2] = [begin + int(np.argmin(off))]
        else:
            i += 1
    return kept


def _long_noise(series: Floats, cuts: Sequence[int]) -> float:
    """Return the standard deviation of a bin that the mean of a long stretch of them has.

    The long-run variance, twice: by means of blocks of bins within the levels, and by how far apart bins are that lie further and further
    from each other (a variogram; medians, which a few breaks do not move). The larger counts, for levels that were found in the noise make
    the first too small.
    """
    bounds = [0, *cuts, len(series)]
    left = np.concatenate([series[a:b] - np.median(series[a:b]) for a, b in pairwise(bounds)])
    best = float(left.var())
    size = 2
    while len(left) // size >= 8:
        blocks = left[: len(left) // size * size].reshape(-1, size).mean(axis=1)
        best = max(best, float(blocks.var(ddof=1)) * size)
        size *= 2
    lags = range(1, max(len(series) // 6, 2))
    apart = np.array([(1.4826 * float(np.median(np.abs(series[k:] - series[:-k])))) ** 2 / 2 for k in lags])
    far = float(apart.max())
    together = np.maximum(1.0 - apart / max(far, 1e-12), 0.0)
    fading = int(np.argmax(together < 0.1)) if (together < 0.1).any() else len(together)
    best = max(best, far * (1.0 + 2.0 * float(together[:fading].sum())))
    return math.sqrt(max(best, 1e-10))


def _score(a: Floats, b: Floats, noise: float) -> tuple[float, float]:
    """Return the size of a change between two stretches, and how many standard errors it is."""
    size = float(np.median(b) - np.median(a))
    return size, abs(size) / (noise * math.sqrt(1 / len(a) + 1 / len(b)))


def _jump(a: Floats, b: Floats) -> float:
    """Return the change at the cut itself: lines through what is near on each side, seen at the cut."""
    ends = []
    for part, at in ((a[-max(len(a) // 2, 6) :], "end"), (b[: max(len(b) // 2, 6)], "begin")):
        place = np.arange(len(part), dtype=np.float64)
        if len(part) < 5:
            ends.append(float(np.median(part)))
            continue
        slopes = (
            np.subtract.outer(part, part)[np.triu_indices(len(part), 1)] / np.subtract.outer(place, place)[np.triu_indices(len(part), 1)]
        )
        slope = float(np.median(slopes))  # Theil and Sen
        middle = float(np.median(part - slope * place))
        ends.append(middle + slope * (place[-1] + 0.5 if at == "end" else -0.5))
    return ends[1] - ends[0]


def _believed(series: Floats, cuts: Sequence[int], least: float) -> list[int]:
    """Leave out the least sure cut, and the least sure of the rest, until each is large, sure and sudden.

    The other way round, the surest first, the second step of two is noise to the first, and neither is ever sure.
    """
    kept = list(cuts)
    while kept:
        noise = _long_noise(series, kept)
        worst: tuple[float, int] | None = None
        bounds = [0, *kept, len(series)]
        for i, cut in enumerate(kept):
            a, b = series[bounds[i] : cut], series[cut : bounds[i + 2]]
            size, score = _score(a, b, noise)
            sure = min(len(a), len(b)) >= 3 and abs(size) >= least and score >= SURE
            if (worst is None or score < worst[0]) and not (sure and _jump(a, b) / size >= SUDDEN):
                worst = (score, cut)
        if worst is None:
            return kept
        kept.remove(worst[1])
    return kept


def _of_no_text(kept: list[int], at: Ints, edges: Ints, left: Floats, level: Floats, owner: Ints) -> list[int]:
    """Leave out, the weakest first, every cut that the means of requests do not show: a run of other texts is no break.

    Where one token is committed in every step no text is needed to explain it.
    """
    kept = list(kept)
    while kept:
        bounds = [0, *kept, len(at)]
        worst: tuple[float, int] | None = None
        for i, cut in enumerate(kept):
            sides = []
            for begin, end in ((bounds[i], cut), (cut, bounds[i + 2])):
                cells = slice(int(edges[at[begin]]), int(edges[at[end - 1] + 1]))
                texts, code = np.unique(owner[cells], return_inverse=True)
                means = np.bincount(code, left[cells]) / np.bincount(code)
                sides.append((means, len(texts), float(np.median(level[cells]))))
            (a, na, one), (b, nb, other) = sides
            if min(one, other) <= ONE_TOKEN and max(one, other) > ONE_TOKEN + 0.1:
                continue
            spread = math.sqrt(float(a.var(ddof=1)) / na + float(b.var(ddof=1)) / nb) if min(na, nb) > 1 else math.inf
            score = abs(float(b.mean() - a.mean())) / max(spread, 1e-9) if min(na, nb) >= FEWEST_REQUESTS else 0.0
            if score < SURE and (worst is None or score < worst[0]):
                worst = (score, cut)
        if worst is None:
            return kept
        kept.remove(worst[1])
    return kept


def _episodes(series: Floats, cuts: list[int], seconds: Floats, least: float) -> tuple[list[int], list[tuple[int, int]]]:
    """Take stretches in which the level was higher, and on both sides the same, for episodes."""
    kept, episodes = list(cuts), []
    changed = True
    while changed:
        changed = False
        bounds = [0, *kept, len(series)]
        noise = _long_noise(series, kept) if kept else 0.0
        for i in range(1, len(bounds) - 2):
            before, middle, after = (series[bounds[j] : bounds[j + 1]] for j in (i - 1, i, i + 1))
            up, left = float(np.median(middle) - np.median(before)), float(np.median(after) - np.median(before))
            a, b = bounds[i], bounds[i + 1]
            short = (b - a) < EPISODE_SHARE * len(series) or seconds[b - 1] - seconds[a] < EPISODE_S
            if not (short and abs(left) < RETURNS * abs(up)):
                continue
            outside = np.concatenate([before, after])
            if up > least and _score(outside, middle, noise)[1] >= SURE / 2:
                episodes.append((a, b))
            kept = [c for c in kept if c not in (a, b)]
            changed = True
            break
    return _at_the_ends(series, kept, episodes, least)


def _at_the_ends(series: Floats, kept: list[int], episodes: list[tuple[int, int]], least: float) -> tuple[list[int], list[tuple[int, int]]]:
    """Where slow times come and go, one at either end of the log is one more of them, as far as it can be seen."""
    if len(episodes) < 2 or not kept:
        return kept, episodes
    usual = float(np.median([np.median(series[a:b]) for a, b in episodes]))
    longest = max(b - a for a, b in episodes)
    inside = np.zeros(len(series), dtype=bool)
    for a, b in episodes:
        inside[a:b] = True
    calm = float(np.median(series[~inside]))
    for begin, end in ((kept[-1], len(series)), (0, kept[0])):
        middle = float(np.median(series[begin:end]))
        if kept and end - begin <= 1.5 * longest and middle - calm > max(least, RETURNS * (usual - calm)):
            episodes = [*episodes, (begin, end)]
            kept = [c for c in kept if c not in (begin, end)]
    return kept, episodes


def _settling(on: str, run: int, series: Floats, level: Floats, time_us: Ints, least: float) -> list[Break]:
    """Find a level that is reached within the first part of a start, and stays: a server that gets warm, or hot.

    The series is fitted by a ramp that ends at each of some places in the first half; the best is believed if it is large and sure, and if
    what follows does not go on rising.
    """
    n = len(series)
    if n < 2 * FEWEST_BINS:
        return []
    minutes = (time_us - time_us[0]) / 6e7
    best: tuple[float, float, float] | None = None
    for share in np.linspace(0.03, 0.5, 24):
        until = share * float(minutes[-1])
        if until < SETTLES_MIN:
            continue
        ramp = np.minimum(minutes / until, 1.0)
        x = np.column_stack([np.ones(n), ramp])
        beta = np.linalg.lstsq(x, series, rcond=None)[0]
        loss = float(((series - x @ beta) ** 2).sum())
        if best is None or loss < best[0]:
            best = (loss, until, float(beta[1]))
    if best is None:
        return []
    _, until, size = best
    ramp = np.minimum(minutes / until, 1.0)
    straight = np.column_stack([np.ones(n), minutes / minutes[-1]])
    line = series - straight @ np.linalg.lstsq(straight, series, rcond=None)[0]
    rest = series - size * ramp
    noise = _long_noise(rest, [])
    spread = math.sqrt(float(((ramp - ramp.mean()) ** 2).sum()))
    flat = ramp >= 1.0
    half = int(flat.sum()) // 2
    onward = float(np.median(series[flat][half:]) - np.median(series[flat][:half])) if half >= 6 else math.inf
    sure = abs(size) * spread / noise >= SURE and abs(size) >= 1.5 * least
    if not sure or abs(onward) > 0.25 * abs(size) or best[0] > 0.8 * float((line**2).sum()):
        return []
    at = int(np.argmax(flat))
    se = noise / spread
    return [
        Break(
            on,
            run,
            int(time_us[at]),
            int(time_us[0]),
            int(time_us[at]),
            Estimate(size, se, 10),
            int(time_us[-1]),
            float(level[at:].mean()),
            True,
        )
    ]


def _place(left: Floats, edges: Ints, begin: int, cut: int, end: int) -> tuple[int, int, int]:
    """Return the first cell after a break, and the last cell before it and the first after it for certain (by likelihood)."""
    a, b = int(edges[max(cut - 2, begin)]), int(edges[min(cut + 2, end)])
    lower, upper = float(np.median(left[edges[begin] : edges[cut]])), float(np.median(left[edges[cut] : edges[end]]))
    part = left[a:b]
    nearer = np.where(np.abs(part - lower) < np.abs(part - upper), lower, upper)
    spread = max(1.4826 * float(np.median(np.abs(part - nearer))), 1e-3)
    to_lower = np.minimum(((part - lower) / spread) ** 2, 9.0)
    to_upper = np.minimum(((part - upper) / spread) ** 2, 9.0)
    loss = np.r_[0.0, np.cumsum(to_lower)] + np.r_[np.cumsum(to_upper[::-1])[::-1], 0.0]
    best = int(np.argmin(loss))
    likely = np.flatnonzero(loss <= loss.min() + 3.84)
    n = len(left)
    return min(a + best, n - 1), max(a + int(likely[0]) - 1, 0), min(a + int(likely[-1]), n - 1)
