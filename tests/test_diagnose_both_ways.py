"""What ``diagnose`` says of a change in time: in both directions alike, since when, and what it may not be blamed on."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ddtree_metrics as ddt
from ddtree_metrics.diagnosis import CAUSES, Cause, diagnose, phrases
from ddtree_metrics.diagnosis.causes import STEP, Unit
from ddtree_metrics.diagnosis.result import SUPPORTED
from tests.test_diagnose import START, log_of, request, servers
from tests.worlds import make
from tests.worlds.build import share
from tests.worlds.judging import read

FAILING = Path(__file__).parent.parent / "fixtures" / "failing"


@pytest.fixture(autouse=True)
def _utc(monkeypatch):
    # the plain logs of the worlds have no zone: they are in UTC
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    os.environ.pop("TZ", None)
    time.tzset()


@cache
def failing(name: str) -> Any:
    return ddt.read_text(FAILING / f"{name}.log", tz="UTC")


def supported_flags(d: Any) -> set[str]:
    return {f.flag for c in d.comparisons for f in c.flags if f.status == SUPPORTED}


# -- both directions ---------------------------------------------------------------------------------------------------------


def test_uptime_has_a_slope_in_ms_per_minute(tmp_path):
    d = diagnose(read(make("uptime", 3), tmp_path))
    # a step of 30 ms grows by this share in an hour
    expected = 30 * share(3, 0.2, 0.35) / 60
    assert d.slopes["uptime_step_ms"].value == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("name", ["step_break", "mended", "acceptance_to_one"])
def test_the_effect_of_a_break_is_the_speed_after_it_by_the_speed_before(name, tmp_path):
    world = make(name, 3)
    d = diagnose(read(world, tmp_path))
    (found,) = [h for h in d.hypotheses if h.key in ("break_step_time", "break_acceptance") and h.status == SUPPORTED]
    # steps that take 1.5 times as long are two thirds of the speed; half the tokens a step are half of it
    expected = 1 / world.truth.step_ratio if found.key == "break_step_time" else world.truth.tokens_ratio
    assert found.effect.value == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize("name", ["drafter_better", "drafter_worse"])
def test_a_drafter_that_was_changed_by_a_restart_is_the_cause_whichever_is_the_better(name, tmp_path):
    world = make(name, 3)
    d = diagnose(read(world, tmp_path))
    assert d.direction == ("faster" if name == "drafter_better" else "slower")
    assert d.kind == "acceptance"
    assert d.since.what == "restart"
    assert supported_flags(d) == {"speculative_draft_model_path"}
    # the truth is worked out from the simulation without its noise
    equal = d.comparisons[0].tokens_ratio_equal
    assert equal.value == pytest.approx(world.truth.tokens_ratio, rel=0.08)


MIRRORED = {"slower": "faster", "faster": "slower", "unchanged": "unchanged", "cannot_tell": "cannot_tell", "mixed": "mixed"}


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        (name, seed)
        for name in ("drafter_worse", "drafter_better", "mix_only", "harmless_restart", "backend_scales", "drafter_and_mix")
        for seed in (5, 6)
    ],
)
def test_swapping_the_groups_mirrors_the_answer_and_never_turns_supported_into_refuted(name, seed, tmp_path):
    log = read(make(name, seed), tmp_path)
    one, two = diagnose(log, 1, 2), diagnose(log, 2, 1)
    assert two.direction == MIRRORED[one.direction]
    a, b = one.comparisons[0], two.comparisons[0]
    for ratio in ("step_time_ratio", "tokens_ratio", "step_time_ratio_equal", "tokens_ratio_equal"):
        x, y = getattr(a, ratio), getattr(b, ratio)
        assert x.value * y.value == pytest.approx(1, rel=0.01), ratio
        assert x.low * y.high == pytest.approx(1, rel=0.03), ratio
    assert b.direction_equal == MIRRORED[a.direction_equal or "cannot_tell"]
    statuses = [{f.flag: f.status for f in c.flags} for c in (a, b)]
    assert statuses[0] == statuses[1]
    pairs = {(h.status, two.hypothesis(h.key).status) for h in one.hypotheses}
    assert ("supported", "refuted") not in pairs
    assert ("refuted", "supported") not in pairs


def test_a_mix_that_shifted_is_told_as_mix_and_the_server_as_unchanged(tmp_path):
    world = make("mix_only", 4)
    d = diagnose(read(world, tmp_path), 1, 2)
    one = d.comparisons[0]
    assert d.direction == "slower"
    assert one.direction_equal in ("unchanged", "cannot_tell")
    assert not supported_flags(d)
    assert {h.key for h in d.causes} == {"context_step_time"}
    # the parts multiply: speed = mix x tokens / step time
    product = one.mix_ratio.value * one.tokens_ratio_equal.value / one.step_time_ratio_equal.value
    assert product == pytest.approx(one.speed_ratio.value, rel=1e-9)
    assert one.mix_ratio.value < 0.9


def test_nothing_is_never_said_while_a_comparison_is_open():
    # two runs whose contexts do not overlap: whether the restart matters cannot be told, whatever else is calm
    parts = []
    for run, contexts in enumerate(((200, 400), (5000, 6000))):
        for i in range(12):
            context = contexts[i % 2] + 7 * i
            parts.append(request(f"{run}-{i}", steps=40, ms=30, tokens=(3, 4), context=context, at=1000.0 * run + 20 * i + 10, seed=i))
    started = {"page_size": "1"}
    log = log_of(pd.concat(parts, ignore_index=True), servers=servers((0.0, "a", started), (1000.0, "a", {"page_size": "64"})))
    d = diagnose(log)
    assert d.kind == "cannot_tell"
    pair = next(c for c in d.comparisons if c.kind == "runs")
    assert not pair.step_time_ratio_equal.known
    assert not pair.tokens_ratio_equal.known
    assert [r.kind.value for r in pair.reasons] == ["no_overlap"]
    assert "the two share too little of the same context" in (pair.reason or "")
    assert {f.status for f in pair.flags} == {"cannot tell"}


# -- breaks in time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "key"), [("step_break", "break_step_time"), ("acceptance_to_one", "break_acceptance")])
def test_a_break_in_mid_run_is_found_within_its_own_interval(name, key, tmp_path):
    world = make(name, 7)
    d = diagnose(read(world, tmp_path))
    assert d.direction == "slower"
    assert d.hypothesis(key).status == "supported"
    assert d.since.what == "break"
    low, high = (int(pd.Timestamp(x).value // 1000) for x in (d.since.low, d.since.high))
    # a cell is 25 steps of some 30 ms: the interval may miss the truth by one
    assert low - 1_500_000 <= world.truth.break_time_us <= high + 1_500_000
    assert d.hypothesis("uptime").status != "supported"


def test_a_retraction_stands_beside_the_break_that_follows_it(tmp_path):
    world = make("break_after_retraction", 8)
    d = diagnose(read(world, tmp_path))
    assert d.since.what == "break"
    assert "retraction" in {r.numbers["kind"] for r in d.since.beside}
    # 32 to 250 ms: x 7.8
    assert d.comparisons[0].step_time_ratio_equal.value == pytest.approx(250 / 32, rel=0.02)
    assert {h.key for h in d.hypotheses if h.status == "supported"} <= {"break_step_time", "retraction"}


def test_acceptance_that_jumps_to_one_is_a_break_and_no_slope():
    d = diagnose(failing("acceptance-jumps-to-one"))
    # the file: about 2.5 tokens for nine minutes, then exactly 1.00
    assert d.since.what == "break"
    assert d.since.low[11:16] == "09:09"
    assert d.direction == "slower"
    h = d.hypothesis("nothing_accepted")
    assert h.status == "supported"
    assert "every step commits one token" in h.evidence
    assert d.hypothesis("uptime").status != "supported"


def test_slow_times_that_come_and_go_are_no_break_and_no_restart(tmp_path):
    world = make("neighbour", 1)
    d = diagnose(read(world, tmp_path))
    assert d.hypothesis("break_step_time").status == "refuted"
    assert not supported_flags(d)


# -- speculation -------------------------------------------------------------------------------------------------------------


def test_a_drafter_of_which_nothing_is_accepted_is_not_praised():
    d = diagnose(failing("nothing-accepted"))
    assert d.kind == "acceptance"
    assert [h.key for h in d.causes] == ["nothing_accepted"]
    assert "1.00 tokens per step in 160 rows" in d.hypothesis("nothing_accepted").evidence


def test_speculation_that_was_switched_on_is_told_run_by_run():
    d = diagnose(failing("mixed-speculation"))
    one = d.comparisons[0]
    # run 1: 1000 / 146 = 6.85 ms at one token; run 2: 1000 * 2 / 93 = 21.5 ms at two
    assert one.step_time_before_ms == pytest.approx(6.85, abs=0.01)
    assert one.step_time_after_ms == pytest.approx(21.5, abs=0.01)
    assert (one.tokens_before, one.tokens_after) == (1.0, 2.0)
    assert one.speed_ratio.value == pytest.approx(93 / 146)
    assert d.direction == "slower"
    assert [h.key for h in d.causes] == ["speculation"]


# -- text, and what may not be said ------------------------------------------------------------------------------------------


def test_two_long_requests_of_another_text_support_nothing():
    d = diagnose(failing("text-not-context"))
    assert d.kind == "cannot_tell"
    assert not d.causes
    assert "context and the kind of text vary together" in d.verdict


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("long_prompts_other_text", {"context_acceptance"}),
        ("cached_other_text", {"cached_prefix"}),
        ("two_long_requests", {"context_acceptance"}),
    ],
)
def test_what_only_differs_between_requests_may_be_their_text(name, keys, tmp_path):
    d = diagnose(read(make(name, 9), tmp_path))
    for key in keys:
        assert d.hypothesis(key).status != "supported", key
    if name != "two_long_requests":
        assert all("text" in d.hypothesis(key).together_with for key in keys)


@pytest.mark.parametrize("name", ["inert_flag_other_text", "backend_other_text"])
def test_a_flag_is_not_blamed_for_a_number_that_it_cannot_reach(name, tmp_path):
    d = diagnose(read(make(name, 9), tmp_path))
    assert not supported_flags(d)
    assert "flags" not in {h.key for h in d.causes}


# -- starts and services ---------------------------------------------------------------------------------------------------------


def two_starts(second: dict[str, str], *, cut: bool) -> Any:
    """Sixteen requests on each side of a restart after which steps take 60 % longer; the second start line may be cut."""
    parts = [
        request(
            f"{run}-{i}", steps=40, ms=32.0 if run else 20.0, tokens=(4, 5, 3), context=300 + 140 * i, at=1000.0 * run + 10 + 8 * i, seed=i
        )
        for run in range(2)
        for i in range(16)
    ]
    first = {"attention_backend": "triton", "page_size": "1", "tp_size": "8"}
    started = servers((0.0, "a", first), (1000.0, "a", second)).assign(args_cut=[False, cut])
    return log_of(pd.concat(parts, ignore_index=True), servers=started)


def test_a_flag_beyond_the_cut_of_a_start_line_is_unknown_and_not_unset():
    # the second line was cut behind page_size: tp_size and attention_backend may have been given, or not
    d = diagnose(two_starts({"page_size": "64"}, cut=True))
    pair = next(c for c in d.comparisons if c.kind == "runs")
    assert [(f.flag, f.before, f.after) for f in pair.flags] == [("page_size", "1", "64")]
    # steps got slower with it, but a flag beyond the cut may have done it
    assert pair.direction_equal == "slower"
    assert pair.flags[0].status == "cannot tell"
    assert "flags beyond the cut are not known" in pair.flags[0].evidence


def test_the_same_flag_is_the_cause_where_the_start_line_is_whole():
    d = diagnose(two_starts({"page_size": "64", "attention_backend": "triton", "tp_size": "8"}, cut=False))
    pair = next(c for c in d.comparisons if c.kind == "runs")
    assert [(f.flag, f.status) for f in pair.flags] == [("page_size", "supported")]
    # 32 / 20 ms
    assert pair.step_time_ratio_equal.value == pytest.approx(1.6, rel=0.02)


def test_two_services_of_one_log_are_not_compared_as_two_starts():
    parts = []
    for service, ms in (("fast.service", 20.0), ("slow.service", 45.0)):
        for i in range(12):
            made = request(f"{service}-{i}", steps=40, ms=ms, tokens=(3, 4), context=300 + 90 * i, at=30.0 * i, seed=i)
            parts.append(made.assign(unit=service, host="gpu", stream=f"gpu|a|{service}|"))
    rows = pd.concat(parts, ignore_index=True)
    d = diagnose(log_of(rows))
    assert not [c for c in d.comparisons if c.kind == "runs"]
    asked = diagnose(log_of(rows), before="unit:fast.service", after="unit:slow.service")
    # 45 / 20 ms
    assert asked.comparisons[0].step_time_ratio_equal.value == pytest.approx(2.25, rel=0.02)
    assert asked.direction == "slower"
    with pytest.raises(ddt.errors.MetricError, match=r"no row is of unit 'fats.service': the log has 2 services"):
        diagnose(log_of(rows), before="unit:fats.service")


def test_how_much_could_be_timed_is_said_where_it_is_little():
    rows = pd.concat([request(f"r{i}", steps=40, ms=20.0, tokens=(3, 4), context=300 + 90 * i, at=30.0 * i) for i in range(10)])
    late = rows.index % 4 > 0  # three of four intervals hold a prefill
    rows = rows.assign(step_us=np.where(late, np.nan, rows["step_us"]), step_why=np.where(late, "prefill_between", None)).reset_index(
        drop=True
    )
    d = diagnose(log_of(rows))
    assert any("100 of 400 steps could be timed (25 %)" in line for line in d.cannot_tell)


# -- how it is made ----------------------------------------------------------------------------------------------------------


def test_a_new_hypothesis_is_one_record_and_one_sentence(monkeypatch):
    # steps take 40 % longer in every other request, which a column of its own tells
    rows = pd.concat(
        [
            request(f"r{i}", steps=50, ms=28.0 if i % 2 else 20.0, tokens=(3, 4), context=300 + 90 * (i % 5), at=20.0 * i, seed=i)
            for i in range(24)
        ],
        ignore_index=True,
    )
    second = 1_000_000
    swap = Cause("swap", "swap", STEP, lambda p: (((p.time_us - START) // (20 * second)) % 2).astype(float), "swapping", Unit(binary=True))
    monkeypatch.setitem(phrases.CAUSES, "swap", phrases.Phrase("Pages are swapped out", "pages are swapped out", "add memory"))
    d = diagnose(log_of(rows), causes=(*CAUSES, swap))
    h = d.hypothesis("swap")
    assert h.status == "supported"
    # a speed of 20 / 28
    assert h.effect.value == pytest.approx(20 / 28, rel=0.02)
    assert "swap" in {c.key for c in d.causes}
    assert "pages are swapped out" in d.verdict


def test_rewording_every_sentence_changes_no_verdict(monkeypatch):
    logs = [failing("nothing-accepted"), failing("text-not-context"), failing("mixed-speculation")]
    before = [diagnose(log) for log in logs]
    for key, phrase in list(phrases.CAUSES.items()):
        monkeypatch.setitem(phrases.CAUSES, key, replace(phrase, name="x", as_cause="x", next="x"))
    for key in list(phrases.OBSERVED):
        monkeypatch.setitem(phrases.OBSERVED, key, lambda n: "x")
    for why in list(phrases._REASONS):
        monkeypatch.setitem(phrases._REASONS, why, lambda n: "x")
    for log, old in zip(logs, before, strict=True):
        new = diagnose(log)
        assert (new.kind, new.direction) == (old.kind, old.direction)
        assert {h.key: h.status for h in new.hypotheses} == {h.key: h.status for h in old.hypotheses}
        assert [(c.kind, c.verdict, c.direction) for c in new.comparisons] == [(c.kind, c.verdict, c.direction) for c in old.comparisons]


@pytest.mark.parametrize("name", ["context_both", "batch", "poisson_four", "texts_differ", "graph_off"])
def test_a_slope_and_its_effect_agree_in_sign_and_in_doubt(name, tmp_path):
    d = diagnose(read(make(name, 10), tmp_path))
    pairs = [("context_step_ms", "context_step_time", -1), ("batch_step_ms", "batch", -1)]
    for slope_name, key, sign in pairs:
        slope, effect = d.slopes.get(slope_name), d.hypothesis(key).effect
        if slope is None or slope.low is None or effect.low is None or d.hypothesis(key).acts_on != STEP:
            continue
        assert np.sign(slope.value) == sign * np.sign(np.log(effect.value)) or abs(np.log(effect.value)) < 1e-4
        # a slope whose interval holds 0 cannot stand beside an effect whose interval leaves out 1
        holds = slope.low <= 0 <= slope.high
        assert not (holds and (effect.high < 0.995 or effect.low > 1.005))


@pytest.mark.parametrize("seed", range(11, 17))
def test_the_headline_agrees_with_the_shares_beside_it(seed, tmp_path):
    for name in ("context_both", "drafter_worse", "backend_and_drafter"):
        folder = tmp_path / name
        folder.mkdir()
        d = diagnose(read(make(name, seed), folder))
        share = d.share_step_time.value
        if share is None or d.comparisons[0].kind == "runs":
            continue
        assert d.kind == ("step_time" if share >= 0.8 else "acceptance" if share <= 0.2 else "both") or d.comparisons[0].verdict == d.kind


def test_options_are_shares():
    log = log_of(request("a", steps=5, ms=30, tokens=(3,), context=100, at=0.0))
    with pytest.raises(ddt.errors.MetricError, match="start_floor is a share"):
        diagnose(log, start_floor=-0.1)


def test_a_larger_floor_of_starts_makes_the_interval_of_a_restart_wider_and_of_nothing_else(tmp_path):
    log = read(make("harmless_restart", 3), tmp_path)
    narrow, wide = (diagnose(log, 1, 2, start_floor=floor).comparisons[0] for floor in (0.0, 0.1))
    # two starts of 10 % each are 14 % between them, at 1.7 standard errors
    assert np.log(wide.step_time_ratio_equal.high / wide.step_time_ratio_equal.low) / 2 > 1.645 * 0.1 * 2**0.5
    assert np.log(narrow.step_time_ratio_equal.high / narrow.step_time_ratio_equal.low) / 2 < 0.05
    assert wide.tokens_ratio_equal == narrow.tokens_ratio_equal
