"""What watch keeps of a log: rolling sums, a clock that nobody sets, alerts, a baseline."""

from __future__ import annotations

import json
import math
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ddtree_metrics.errors import MetricError
from ddtree_metrics.live.alerts import State, Thresholds, alerts, steps_without_accepted
from ddtree_metrics.live.curve import Baseline, baseline_of, load_baseline, save_baseline
from ddtree_metrics.live.fresh_rows import FreshRows
from ddtree_metrics.live.rolling import EDGES, UNKNOWN, Rolling, Steady, bins_of, means, name_of, ratios, sums_by_bin
from ddtree_metrics.live.watching import Watch
from ddtree_metrics.reading import start_reading
from tests.captures import journal_export


@pytest.fixture(scope="module")
def read() -> list[dict[str, pa.RecordBatch]]:
    """Capture A as it is read, in small pieces."""
    made = []
    for tables in start_reading(journal_export("A"), on_error="skip"):
        made.append(tables)
    return made


def test_bins_double_and_the_last_is_for_rows_without_a_context() -> None:
    assert bins_of(np.array([0.0, 127.9, 128.0, 255.0, 256.0, math.nan, 1e9])).tolist() == [0, 0, 1, 1, 2, UNKNOWN, UNKNOWN - 1]
    assert (name_of(0), name_of(2), name_of(UNKNOWN)) == ("0-127", "256-511", "unknown")
    assert EDGES[-1] == 128 * 2**13


@settings(report_multiple_bugs=False, phases=[Phase.explicit, Phase.generate], max_examples=5, deadline=None)
@given(cuts=st.lists(st.integers(1, 544), max_size=8, unique=True))
def test_however_lines_come_each_step_counts_once_and_the_sums_are_those_of_the_whole(
    read: list[dict[str, pa.RecordBatch]], cuts: list[int]
) -> None:
    steps = [tables["steps"] for tables in read if "steps" in tables]
    whole = pa.Table.from_batches(steps).combine_chunks().to_batches()[0]
    rows, total = FreshRows(), np.zeros((UNKNOWN + 1, 8))
    edges = [0, *sorted(cuts), whole.num_rows]
    for low, high in pairwise(edges):
        basis, fresh = rows.feed([{"steps": whole.slice(low, high - low)}])
        total += sums_by_bin(basis, fresh)
    # 545 steps, the warm-ups among them; 19 of the others stand behind a prefill, and 2 are the first of their process
    assert total[:, 0].sum() == 545
    assert total[:, 1].sum() == 545 - 19 - 2
    once, fresh = FreshRows().feed([{"steps": whole}])
    assert np.allclose(total.sum(axis=0), sums_by_bin(once, fresh).sum(axis=0))


def test_decode_lines_beside_step_lines_are_not_counted_once_more(read: list[dict[str, pa.RecordBatch]]) -> None:
    made = Watch(start_reading(journal_export("A"), on_error="skip"), live=False)
    for tables in read:
        for name in sorted(tables, key=lambda name: name != "steps"):  # first the steps, then their Decode lines, as other batches
            made.take([{name: tables[name]}], 0.0)
    assert sum(b.now.steps for b in made.snapshot(0.0).bins) == 545


def test_speed_is_tokens_per_step_by_step_time() -> None:
    # 3 steps of 20, 30 and 40 ms with 2, 3 and 4 tokens: 30 ms, 3 tokens, 1000 * 3 / 30 = 100 tok/s; two of three requests at once
    sums = np.array([3.0, 3.0, 90.0, 3.0, 9.0, 3.0, 6.0, 3.0])
    made = means(sums)
    assert (made.step_ms, made.tokens, made.tok_per_s, made.batch, made.accepted_share) == (30.0, 3.0, 100.0, 2.0, 1.0)
    assert means(np.zeros(8)).tok_per_s is None


# -- the clock -----------------------------------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_or_ahead_moves_no_line_out_of_its_minute() -> None:
    clock = Steady(live=True)
    clock.feed(np.array([1000.0, 1001.0]), 50.0)
    # an hour back while two seconds pass, then an hour ahead while one passes
    assert clock.feed(np.array([1003.0 - 3600, 1003.5 - 3600]), 52.0).tolist() == pytest.approx([1003.0, 1003.5])
    assert clock.feed(np.array([1004.5 + 3600]), 53.0).tolist() == pytest.approx([1004.5], abs=1.0)
    assert [round(x / 3600) for x in clock.set_by] == [-1, 2]
    assert clock.now(60.0) == pytest.approx(1004.5 + 7, abs=1.0)


def test_an_hour_in_which_nothing_is_logged_is_an_hour() -> None:
    clock = Steady(live=True)
    clock.feed(np.array([1000.0]), 0.0)
    assert clock.feed(np.array([4600.0]), 3600.0).tolist() == [4600.0]
    saved = Steady(live=False)  # a file is read in no time
    saved.feed(np.array([1000.0]), 0.0)
    assert saved.feed(np.array([4600.0]), 0.1).tolist() == [4600.0]
    assert not clock.set_by
    assert not saved.set_by


def test_the_last_minutes_are_empty_when_nothing_came_for_so_long(read: list[dict[str, pa.RecordBatch]]) -> None:
    made = Watch(start_reading(journal_export("A"), on_error="skip"), live=True)
    made.take(read, 0.0)
    assert made.snapshot(0.0).spans["15 min"].steps == 545
    assert made.snapshot(400.0).spans["5 min"].steps == 0
    assert made.snapshot(400.0).spans["15 min"].steps == 545
    assert made.snapshot(901.0).spans["15 min"].steps == 0


def test_sums_are_kept_for_a_quarter_of_an_hour_and_no_longer() -> None:
    rolling, (basis, fresh) = (
        Rolling(),
        FreshRows().feed([{"steps": next(t["steps"] for t in start_reading(journal_export("A"), on_error="skip") if "steps" in t)}]),
    )
    for second in range(3000):
        mine = np.zeros(len(basis), dtype=bool)
        mine[second % len(basis)] = True
        rolling.add(np.array([float(second)]), basis, mine)
    assert len(rolling._cells) == 900
    assert rolling.last(900, 2999.0)[:, 0].sum() == 900
    assert rolling.last(60, 2999.0)[:, 0].sum() == 60
    assert fresh.all()


# -- alerts ----------------------------------------------------------------------------------------------------------------------------


def sums(step_ms: float, tokens: float, n: float = 100.0, at: int = 3) -> np.ndarray:
    made = np.zeros((UNKNOWN + 1, 8))
    made[at] = [n, n, n * step_ms, n, n * tokens, n, n, n]
    return made


class Constant(Rolling):
    """Sums that are the same at all times."""

    def __init__(self, made: np.ndarray) -> None:
        super().__init__()
        self.made = made

    def last(self, seconds: float, now_s: float, *, until_s: float | None = None) -> np.ndarray:
        return self.made


@pytest.mark.parametrize(
    ("step_ms", "tokens", "rules"),
    [
        (30.0, 3.0, []),
        (37.4, 3.0, []),  # 37.5 is 1.25 of 30
        (37.6, 3.0, ["step_time"]),
        (30.0, 2.41, []),  # 3 / 1.25 = 2.4
        (30.0, 2.39, ["tokens_per_step"]),
        (20.0, 4.5, []),  # better is no alert
    ],
)
def test_an_alert_begins_where_a_number_is_off_its_baseline_by_the_limit(step_ms: float, tokens: float, rules: list[str]) -> None:
    state = State(Constant(sums(step_ms, tokens)), 0.0, Baseline("x", sums(30.0, 3.0)), Thresholds())
    assert [a.rule for a in alerts(state)] == rules


def test_other_contexts_than_those_of_the_baseline_are_no_alert() -> None:
    state = State(Constant(sums(90.0, 1.0, at=6)), 0.0, Baseline("x", sums(30.0, 3.0, at=3)), Thresholds())
    assert alerts(state) == []


def test_a_mix_of_longer_contexts_is_no_change_at_equal_context() -> None:
    then = sums(30.0, 3.0, n=900, at=2) + sums(90.0, 3.0, n=100, at=6)
    now = sums(30.0, 3.0, n=100, at=2) + sums(90.0, 3.0, n=900, at=6)
    step, tokens, _ = ratios(now, then, 20.0)
    assert (step, tokens) == (pytest.approx(1.0), pytest.approx(1.0))


def test_a_short_burst_is_no_alert() -> None:
    class Burst(Rolling):
        def last(self, seconds: float, now_s: float, *, until_s: float | None = None) -> np.ndarray:
            # slow in the newest half only
            return sums(90.0, 3.0) if until_s is None or until_s == now_s else sums(30.0, 3.0)

    assert alerts(State(Burst(), 600.0, Baseline("x", sums(30.0, 3.0)), Thresholds())) == []


@pytest.mark.parametrize(("steps", "told"), [(199, False), (200, True)])
def test_steps_without_an_accepted_draft_are_told_from_the_limit_on(steps: int, told: bool) -> None:
    state = State(Constant(sums(30.0, 1.0)), 0.0, None, Thresholds(), without_accepted=steps)
    assert [a.rule for a in alerts(state)] == (["nothing_accepted"] if told else [])


def test_one_accepted_draft_begins_the_count_anew() -> None:
    one, two = np.ones(5), np.array([1.0, 2.0, 1.0, 1.0])
    assert steps_without_accepted(7, one, np.ones(5)) == 12
    assert steps_without_accepted(7, two, np.ones(4)) == 2
    assert steps_without_accepted(7, np.array([np.nan, 1.0]), np.array([40.0, 40.0])) == 47


def test_lost_lines_are_told() -> None:
    state = State(Constant(sums(30.0, 3.0)), 0.0, None, Thresholds(), lost_lines=261)
    assert [a.said for a in alerts(state)] == ["journald dropped at least 261 lines"]


def test_the_worse_drafter_of_capture_a_is_told_against_the_first_run() -> None:
    made = Watch(
        start_reading(journal_export("A"), on_error="skip"),
        live=False,
        baseline=baseline_of(start_reading(journal_export("A"), until="2026-11-29 15:19", tz="UTC", on_error="skip"), "run 1"),
        limits=Thresholds(for_s=40.0),
    )
    for tables in made.reading:
        made.take([tables], time.monotonic())
    # truth-summary.json: 3.725 and 2.108 tokens a step
    assert [a.rule for a in made.snapshot(0.0).alerts] == ["tokens_per_step"]


# -- a baseline in a file --------------------------------------------------------------------------------------------------------------


def test_a_baseline_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = Baseline("a log", sums(30.5, 2.25))
    save_baseline(saved, tmp_path / "b.json")
    read = load_baseline(tmp_path / "b.json")
    assert read.source == "a log"
    assert np.array_equal(read.sums, saved.sums)


@pytest.mark.parametrize("damage", ["no json", "other form", "bins", "nan", "negative", "missing"])
def test_what_is_no_baseline_is_refused_in_one_sentence(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "b.json"
    save_baseline(Baseline("a log", sums(30.5, 2.25)), path)
    made = json.loads(path.read_text())
    if damage == "other form":
        made["form"] = "ddtree_metrics.baseline/9"
    elif damage == "bins":
        made["bins"] = made["bins"][:-1]
    elif damage == "nan":
        made["bins"][0]["sums"][0] = 1e400
    elif damage == "negative":
        made["bins"][0]["sums"][0] = -1
    path.write_text("{" if damage == "no json" else json.dumps(made))
    if damage == "missing":
        path.unlink()
    with pytest.raises(MetricError, match=r"b\.json"):
        load_baseline(path)
