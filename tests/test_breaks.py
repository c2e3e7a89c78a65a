"""``find_breaks`` on simulated series: what is no break is not called one, and a break lies within the interval that is given for it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from ddtree_metrics.diagnosis.breaks import Break, Episodes, _candidates, find_breaks

START = 1_770_000_000_000_000
CELL_S = 0.75  # 25 steps of 30 ms
CELLS = 800  # ten minutes
STEP_SD = 0.06  # of the log of one step
CELL_SD = STEP_SD / 5  # of the mean of 25
LEAST = float(np.log(1.05))
SEEDS = 100


def seconds(n: int = CELLS) -> np.ndarray:
    return np.arange(n) * CELL_S


def iid(rng: np.random.Generator, n: int = CELLS, sd: float = CELL_SD) -> np.ndarray:
    return sd * rng.standard_normal(n)


def wandering(rng: np.random.Generator, n: int, sd: float, over_s: float) -> np.ndarray:
    """Make AR(1) noise from its stationary distribution, whose correlation falls to 1/e within ``over_s``."""
    phi = float(np.exp(-CELL_S / over_s))
    first = [phi * rng.standard_normal()]
    return sd * lfilter([1.0], [1.0, -phi], np.sqrt(1 - phi**2) * rng.standard_normal(n), zi=first)[0]


def jump(n: int, at: int, ratio: float) -> np.ndarray:
    return np.log(ratio) * (np.arange(n) >= at)


def times(n: int = CELLS) -> np.ndarray:
    return START + (seconds(n) * 1e6).astype(np.int64)


def found_in(left: np.ndarray, run: np.ndarray | None = None, time_us: np.ndarray | None = None) -> tuple[list[Break], Episodes]:
    n = len(left)
    run = np.ones(n, np.int64) if run is None else run
    return find_breaks("step time", left, 30 * np.exp(left), np.full(n, 25.0), times(n) if time_us is None else time_us, run, LEAST)


def holds(one: Break, at: int, n: int = CELLS) -> bool:
    """Whether the interval of a break holds the first cell of the new level."""
    return bool(one.low_us <= times(n)[at] <= one.high_us)


def slow_wave(rng: np.random.Generator, period_s: float) -> np.ndarray:
    return iid(rng) + 0.05 * np.sin(2 * np.pi * (seconds() / period_s + rng.uniform()))


NO_BREAK = {
    "iid": iid,
    "iid, as noisy as single steps": lambda rng: iid(rng, sd=STEP_SD),
    "AR(1), 5 % over 30 s": lambda rng: iid(rng) + wandering(rng, CELLS, 0.05, 30.0),
    "sinus of 5 % over 90 s": lambda rng: slow_wave(rng, 90.0),
    "sinus of 5 % over the log": lambda rng: slow_wave(rng, 600.0),
    "ramp of 30 %": lambda rng: iid(rng) + np.log(1 + 0.3 * np.linspace(0, 1, CELLS)),
    "stalls in 1.5 % of the cells": lambda rng: iid(rng) + np.where(rng.random(CELLS) < 0.015, np.log(5.0), 0.0),
}


@pytest.mark.parametrize("kind", NO_BREAK)
def test_no_break_is_claimed_where_there_is_none(kind):
    alarms = [seed for seed in range(SEEDS) if found_in(NO_BREAK[kind](np.random.default_rng([seed, 1])))[0]]
    assert len(alarms) <= 2, alarms


def test_a_jump_lies_within_its_interval_and_its_size_within_the_interval_of_the_size():
    place, size, widths = [], [], []
    for seed in range(SEEDS):
        rng = np.random.default_rng([seed, 2])
        at = int(rng.integers(CELLS // 10, CELLS * 9 // 10))
        breaks, episodes = found_in(iid(rng) + jump(CELLS, at, 1.3))
        assert episodes.count == 0
        place.append(len(breaks) == 1 and holds(breaks[0], at))
        if len(breaks) == 1:
            size.append(abs(breaks[0].size.value - np.log(1.3)) <= breaks[0].size.reach(0.9))
            widths.append((breaks[0].high_us - breaks[0].low_us) / 1e6)
    assert sum(place) >= 95
    assert sum(size) >= 90
    # a jump of 22 standard deviations of a cell is known to the cell: an interval of minutes would hold it for nothing
    assert np.median(widths) <= 3 * CELL_S


@pytest.mark.parametrize("sd", [0.03, 0.05])
def test_a_jump_in_noise_that_wanders_is_found_where_it_is_if_it_is_found(sd):
    # A jump of 1.5 stands 8 standard deviations beyond noise of 5 % that is the same for half a minute: 20 such in ten minutes.
    at = CELLS // 2
    found = [found_in(iid(r) + wandering(r, CELLS, sd, 30.0) + jump(CELLS, at, 1.5))[0] for r in map(np.random.default_rng, range(40))]
    near = [any(abs(b.time_us - times()[at]) <= 5e6 for b in breaks) for breaks in found]
    assert sum(near) >= 36
    assert sum(len(breaks) > 1 for breaks in found) <= 2


def test_ten_cells_are_too_few_to_claim_a_jump():
    for seed in range(20):
        breaks, episodes = found_in(iid(np.random.default_rng(seed), 10) + jump(10, 5, 3.0))
        assert (breaks, episodes.count) == ([], 0)


def test_up_and_down_again_is_an_episode_and_no_break():
    for seed in range(20):
        rng = np.random.default_rng([seed, 3])
        begin = int(rng.integers(200, 500))
        left = iid(rng) + jump(CELLS, begin, 1.6) - jump(CELLS, begin + 80, 1.6)
        breaks, episodes = found_in(left)
        assert breaks == []
        assert episodes.count == 1
        assert episodes.share == pytest.approx(0.1, abs=0.01)  # 80 of 800 cells
        assert episodes.size == pytest.approx(np.log(1.6), abs=0.05)
        ((_, first, last),) = episodes.spans_us
        assert abs(first - times()[begin]) <= 4 * CELL_S * 1e6  # a bin has three or four cells
        assert abs(last - times()[begin + 79]) <= 4 * CELL_S * 1e6
        inside = episodes.inside(np.ones(CELLS, np.int64), times())
        assert inside.sum() == pytest.approx(80, abs=8)


def test_a_level_that_stays_after_an_episode_is_a_break_beside_it():
    rng = np.random.default_rng(4)
    left = iid(rng) + jump(CELLS, 150, 1.6) - jump(CELLS, 220, 1.6) + jump(CELLS, 500, 1.4)
    breaks, episodes = found_in(left)
    assert episodes.count == 1
    assert len(breaks) == 1
    assert holds(breaks[0], 500)


@pytest.mark.parametrize(
    ("first", "second"), [(1.3, 1.3), (1.4, 1 / 1.2), (1 / 1.5, 1 / 1.3)], ids=["up, up", "up, half down", "down, down"]
)
def test_of_two_breaks_both_are_found(first, second):
    good = 0
    for seed in range(20):
        rng = np.random.default_rng([seed, 5])
        a, b = int(rng.integers(160, 320)), int(rng.integers(480, 640))
        breaks, _ = found_in(iid(rng) + jump(CELLS, a, first) + jump(CELLS, b, second))
        good += len(breaks) == 2 and holds(breaks[0], a) and holds(breaks[1], b)
        if len(breaks) == 2:
            assert breaks[0].size.value == pytest.approx(np.log(first), abs=0.02)
            assert breaks[1].size.value == pytest.approx(np.log(second), abs=0.02)
            # until when a level was seen is known to the bin, which has three or four cells
            assert breaks[0].last_us < breaks[1].time_us + 4 * CELL_S * 1e6
    assert good >= 19


def test_time_run_backwards_turns_the_sign_of_the_size_and_mirrors_the_place():
    for seed in range(20):
        rng = np.random.default_rng([seed, 6])
        at = int(rng.integers(100, 700))
        left = iid(rng) + jump(CELLS, at, 1.3)
        (one,), (other,) = found_in(left)[0], found_in(left[::-1])[0]
        # the bins begin at the other end, so that one more cell of the old level may be in the bin of the jump
        assert other.size.value == pytest.approx(-one.size.value, abs=0.5 * one.size.se)
        assert holds(one, at)
        assert holds(other, CELLS - at)
        assert other.high_us - other.low_us <= 3 * CELL_S * 1e6


def test_neither_the_order_of_cells_nor_a_factor_on_all_of_them_moves_a_break():
    rng = np.random.default_rng(7)
    left = iid(rng) + jump(CELLS, 300, 1.3)
    shuffled = rng.permutation(CELLS)
    (one,), (other,), (scaled,) = found_in(left)[0], found_in(left[shuffled], time_us=times()[shuffled])[0], found_in(left + np.log(7.0))[0]
    assert one == other
    assert (scaled.time_us, scaled.low_us, scaled.high_us) == (one.time_us, one.low_us, one.high_us)
    assert scaled.size.value == pytest.approx(one.size.value)


def test_server_starts_are_searched_apart():
    # the second start is slower from its first step on: that is a restart, and no break
    run = np.repeat([1, 2], CELLS // 2)
    rng = np.random.default_rng(8)
    assert found_in(iid(rng) + jump(CELLS, CELLS // 2, 1.5), run)[0] == []
    (one,) = found_in(iid(rng) + jump(CELLS, CELLS // 2, 1.5) + jump(CELLS, 600, 1.3), run)[0]
    assert one.run == 2
    assert holds(one, 600)
    assert one.after(run, times()).sum() == pytest.approx(200, abs=1)


def test_cells_whose_time_is_not_known_are_left_out():
    rng = np.random.default_rng(9)
    left = iid(rng) + jump(CELLS, 300, 1.3)
    left[::7] = np.log(9.0)
    time_us = times()
    time_us[::7] = -1
    (one,) = found_in(left, time_us=time_us)[0]
    assert holds(one, 300) or holds(one, 301)
    assert one.size.value == pytest.approx(np.log(1.3), abs=0.01)


def cheapest(series: np.ndarray, penalty: float) -> list[int]:
    """Cut a series where squared errors and a penalty for each cut are least in sum, by trying all (optimal partitioning)."""
    n = len(series)
    best, last = np.full(n + 1, np.inf), np.zeros(n + 1, int)
    best[0] = -penalty
    for end in range(2, n + 1):
        for begin in range(end - 1):
            value = best[begin] + float(((series[begin:end] - series[begin:end].mean()) ** 2).sum()) + penalty
            if value < best[end]:
                best[end], last[end] = value, begin
    cuts: list[int] = []
    while n:
        n = int(last[n])
        cuts.append(n)
    return cuts[-2::-1]


@pytest.mark.parametrize("seed", range(5))
def test_the_places_looked_at_are_the_cheapest_cuts_of_all(seed):
    rng = np.random.default_rng([seed, 10])
    series = iid(rng, 60, 0.05) + jump(60, 20, 1.3) + jump(60, 41, 1.2)
    noise = np.quantile(np.abs(np.diff(series)), 0.75) / 1.15 / np.sqrt(2)
    assert _candidates(series, LEAST) == cheapest(series, 4 * noise**2 * np.log(60))
