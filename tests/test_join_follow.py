"""The follower of the batch: what it passes over changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_metrics.join.batch import Tolerance
from ddtree_metrics.join.follow import Follower
from ddtree_metrics.join.prepare import UNKNOWN, Asked, StepColumns, StreamRun

STEP_US = 20_000


def world(seed: int, steps: int, requests: int, known: float, lost: float, retracted: float, prefilled: float) -> tuple[Any, ...]:
    """Draw a stretch of steps, and requests of which a share says more than when they were received."""
    rng = np.random.default_rng(seed)
    batch = np.clip(np.cumsum(rng.integers(-1, 2, steps)) + 2, 1, 6).astype(np.int32)
    place = np.concatenate([[0], np.cumsum(batch)])
    time = 10_000_000 + np.cumsum(rng.integers(1, 2 * STEP_US, steps))
    commit = rng.integers(1, 6, int(place[-1])).astype(np.int16)
    s = StepColumns(
        row=np.arange(steps, dtype=np.int32),
        **{"time": time, "batch": batch, "place": place, "commit": commit, "accepted": (commit - 1).astype(np.int16)},
        **{name: np.zeros(steps, bool) for name in ("whole", "single")},
        lost=rng.random(steps) < lost,
        fresh=rng.random(steps) < 0.2,
        **dict.fromkeys((name for name in StepColumns.__slots__ if name not in KEPT), None),
    )
    s.runs = [StreamRun("s", None, 0 if rng.random() < 0.7 else 1, steps)]
    told = rng.random(requests) < known
    received = np.sort(rng.integers(int(time[0]) - 100_000, int(time[-1]), requests))
    entry = received + np.where(told, rng.integers(0, 60_000, requests), 0)
    order = np.argsort(entry, kind="stable")
    told, received, entry = told[order], received[order], entry[order]
    count = np.where(told & (rng.random(requests) < 0.7), rng.integers(1, 30, requests), -1)
    unknown = np.full(requests, -1)
    columns = dict.fromkeys(("tail", "longest", "rank", "first"), unknown)
    columns |= {"row": np.arange(requests), "received": received, "entry": entry, "steps": count}
    columns["finished"] = np.where(told & (rng.random(requests) < 0.8), entry + rng.integers(0, 900_000, requests), UNKNOWN)
    columns["prompt"] = np.where(told | (rng.random(requests) < 0.1), rng.integers(1, 6, requests), -1)
    columns["completion"] = np.where(told & (rng.random(requests) < 0.5), rng.integers(1, 90, requests), -1)
    columns["accepted"] = np.where(count > 0, rng.integers(0, 60, requests), -1)
    columns["retractions"] = rng.integers(0, 2, requests)
    a = Asked(
        **columns,
        hist=[None] * requests,
        **{name: rng.random(requests) < 0.1 for name in ("aborted", "client", "log")},
        exact=told & (rng.random(requests) < 0.7),
    )
    tol = Tolerance(start_us=5_000, end_us=30_000, tie_us=2_000, lag_us=20_000, coarse_us=0)
    none = np.zeros(0, np.int64)
    at = np.flatnonzero(rng.random(steps) < prefilled)
    prefills = (time[at] - 1, rng.integers(1, 6, len(at)), rng.integers(1, 3, len(at))) if len(at) else (none, none, none)
    notices = time[s.lost] - 1
    return s, a, 0, steps, list(range(requests)), tol, time[rng.random(steps) < retracted] - 1, prefills, notices


KEPT = ("row", "time", "batch", "place", "commit", "accepted", "whole", "single", "lost", "fresh")


def result(drawn: tuple[Any, ...], *, leap: bool) -> dict[str, Any]:
    f = Follower(*drawn)
    f.go(leap=leap)
    segments = [getattr(f.segments, name) for name in ("request", "begin", "end", "slot", "part", "again")]
    return {"segments": segments, "flags": f.flags, "ends": f.ends, "missed": f.missed, "pending": f.pending}


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 120),
    st.integers(0, 90),
    st.sampled_from([0.0, 0.03, 0.3, 1.0]),
    st.sampled_from([0.0, 0.0, 0.03]),
    st.sampled_from([0.0, 0.05]),
    st.sampled_from([0.0, 0.2]),
)
def test_passing_over_what_nobody_known_takes_part_in_changes_nothing(
    seed: int, steps: int, requests: int, known: float, lost: float, retracted: float, prefilled: float
) -> None:
    drawn = world(seed, steps, requests, known, lost, retracted, prefilled)

    assert result(drawn, leap=True) == result(drawn, leap=False)


@pytest.mark.parametrize("steps", [1_000, 10_000])
def test_a_stretch_in_which_only_receipts_are_known_is_one_stride_however_long(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can be told from somebody before the log: one look at the first step, and one at the last."""
    drawn = world(1, steps, steps // 10, known=0, lost=0, retracted=0, prefilled=0)
    drawn[0].runs[0].begin = 0
    drawn[1].prompt[:] = -1
    looks: list[int] = []
    monkeypatch.setattr(Follower, "_advance", lambda self, k, plain=Follower._advance: looks.append(k) or plain(self, k))

    f = Follower(*drawn)
    f.go()

    assert len(looks) <= 2
    assert f.segments.request == []
