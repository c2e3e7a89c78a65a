"""What ``diagnose`` may not say: causes where the context is not known, "nothing" where an interval is wide, "refuted" without evidence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddtree_metrics.diagnosis import diagnose, format_diagnosis
from tests.test_diagnose import START, assert_speaks_plainly, log_of, o5_log, request, servers, two_lengths


def steps_only(ms: np.ndarray, tokens: np.ndarray, batch: np.ndarray | int = 1, stream: str = "a", at: float = 0.0) -> pd.DataFrame:
    """Rows as from a log of step lines alone: no request, no context."""
    return pd.DataFrame(
        {
            "time_us": (START + (at + np.cumsum(ms) / 1000) * 1e6).astype(np.int64),
            "stream": stream,
            "boot_id": "a",
            "tokens": tokens,
            "batch_size": batch,
            "weight": 1.0,
            "step_us": np.round(ms * 1000),
            "step_why": None,
        }
    )


# -- context not known -------------------------------------------------------------------------------------------------------------


def test_step_lines_alone_show_a_drift_and_no_cause():
    n = 900
    ms = np.linspace(45, 145, n)
    tokens = np.where(np.arange(n) < 450, 4, 2)
    d = diagnose(log_of(steps_only(ms, tokens)))
    assert d.kind == "cannot_tell"
    assert not d.causes
    parts = d.comparisons[0]
    assert parts.kind == "parts"
    # a line from 45 to 145: the mean of its first third is 45 + 100 / 6, of its last 145 - 100 / 6
    assert parts.step_time_before_ms == pytest.approx(61.7, abs=0.2)
    assert parts.step_time_after_ms == pytest.approx(128.3, abs=0.2)
    assert parts.tokens_ratio.value == pytest.approx(0.5)
    assert "context is known for 0 of 900 steps" in d.verdict
    assert "tokens per step 4.00 -> 2.00" in d.verdict
    assert "rise together" not in format_diagnosis(d, full=True)
    assert "--requests" in d.next[0]
    assert_speaks_plainly(d)


def test_a_batch_that_goes_with_slow_steps_is_no_cause_while_the_context_is_not_known():
    batch = np.repeat(np.tile([1, 4], 20), 30)
    rng = np.random.default_rng(1)
    ms = (20 + 10 * batch) * np.exp(rng.normal(0, 0.02, len(batch)))
    d = diagnose(log_of(steps_only(ms, np.full(len(batch), 3), batch)))
    assert d.kind == "cannot_tell"
    assert not d.causes
    assert d.hypothesis("batch").status == "cannot tell"
    assert "this goes with it, but the context may stand behind it: a larger batch is slower" in d.verdict


def test_two_windows_of_step_lines_alone_differ_in_step_time_and_the_cause_is_not_known():
    ms = np.r_[np.full(300, 40.0), np.full(300, 90.0)] * np.exp(np.random.default_rng(0).normal(0, 0.02, 600))
    edge = pd.Timestamp(START + 13_000_000, unit="us", tz="UTC")
    d = diagnose(log_of(steps_only(ms, np.full(600, 3))), before=(None, edge), after=(edge, None))
    assert d.kind == "step_time"
    assert not d.causes
    assert "why cannot be told, since context is known for 0 of 600 steps" in d.verdict
    assert d.comparisons[0].verdict_equal is None


# -- restarts without a start line -----------------------------------------------------------------------------------------------------


def processes(*tokens: tuple[int, ...]) -> pd.DataFrame:
    """Twelve requests of each of some processes that follow each other; the first row of each says that it begins there."""
    parts = []
    for run, row in enumerate(tokens):
        for i in range(12):
            made = request(
                f"{run}-{i}", steps=40, ms=30, tokens=row, context=500 + 150 * ((7 * i) % 12), at=1000.0 * run + 20 * i, boot="a", seed=i
            )
            made["stream"] = f"h|a|{100 + run}|-"
            made["step_why"] = made["step_why"].astype(object)
            if i == 0:
                made.loc[0, "step_why"] = "restart" if run else "first"
                made.loc[0, "step_us"] = np.nan
            parts.append(made)
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("started", [(), ((-30.0, "a", {"page_size": "1"}),)])
def test_a_restart_known_by_the_process_alone_is_a_run(started):
    frames = {"servers": servers(*started)} if started else {}
    d = diagnose(log_of(processes((4, 5, 3), (2, 2, 2)), **frames))
    assert d.used["server_starts"] == 2
    pair = next(c for c in d.comparisons if c.kind == "runs")
    # 4, 5, 3 in turn for 40 steps: 161 / 40 = 4.025; ratio 2 / 4.025
    assert pair.tokens_ratio_equal.value == pytest.approx(0.497, abs=0.01)
    assert d.kind == "acceptance"
    assert "it changed with the restart from run 1 to run 2" in d.verdict
    assert d.hypothesis("flags").status == "cannot tell"
    assert any("flags are not known" in line for line in d.cannot_tell)


def test_a_process_whose_start_line_is_there_is_not_counted_twice():
    log = log_of(processes((4, 5, 3), (2, 2, 2)), servers=servers((-30.0, "a", {"page_size": "1"}), (900.0, "a", {"page_size": "1"})))
    assert diagnose(log).used["server_starts"] == 2


# -- nothing, refuted ------------------------------------------------------------------------------------------------------------------


def test_nothing_is_said_only_where_the_interval_rules_a_slow_down_out():
    calm = two_lengths((30.0, (4, 5, 4, 5)), (30.0, (4, 5, 4, 5)))
    d = diagnose(log_of(calm))
    assert d.kind == "nothing"
    assert d.comparisons[0].speed_ratio.low > 0.95
    # four requests of 50 steps on each side, whose commit lengths are drawn: a mean of 200 of them is known to about 1.5 / 200 ** 0.5
    rng = np.random.default_rng(4)
    few = two_lengths((30.0, (5,)), (30.0, (5,)), each=4)
    d = diagnose(log_of(few.assign(tokens=rng.choice([1, 9, 2, 8, 5], len(few)))))
    assert d.comparisons[0].speed_ratio.low < 0.95
    assert d.kind == "cannot_tell"
    assert "no slow-down is shown, but one of up to" in d.verdict


def test_factors_say_what_shares_cannot_where_one_number_worked_against_the_other():
    # steps twice as long, tokens 4.25 -> 4.75: speed x 4.75 / 4.25 / 2 = 0.56
    d = diagnose(log_of(two_lengths((30.0, (4, 5, 4, 4)), (60.0, (4, 5, 5, 5)))))
    assert "tokens per step rose, × 1.12" in d.verdict
    assert not d.comparisons[0].share_step_time.known
    assert "speed × 0.56 = ÷ 2.00 step time × 1.12 tokens per step" in format_diagnosis(d, full=True)


def calm(**frames: Any) -> SimpleNamespace:
    return log_of(two_lengths((30.0, (4, 5)), (30.0, (4, 5))), **frames)


def test_no_line_that_says_so_refutes_nothing_in_a_log_that_would_not_have_one():
    d = diagnose(calm())
    for key in ("retraction", "suppressed", "prefill_between"):
        assert d.hypothesis(key).status == "cannot tell", key
    started = servers((-10.0, "a", {"page_size": "1"}))
    d = diagnose(calm(servers=started))
    for key in ("retraction", "suppressed", "prefill_between"):
        assert d.hypothesis(key).status == "refuted", key


def test_with_lost_lines_neither_retraction_nor_prefills_are_refuted():
    events = pd.DataFrame({"kind": ["suppressed"], "count": [261]})
    d = diagnose(calm(servers=servers((-10.0, "a", {"page_size": "1"})), events=events))
    for key in ("retraction", "prefill_between"):
        assert d.hypothesis(key).status == "cannot tell", key
        assert "261 lines are missing" in d.hypothesis(key).evidence


def test_holes_without_a_reason_leave_lost_lines_open():
    events = pd.DataFrame({"kind": ["gap", "gap"], "count": [1, 1]})
    h = diagnose(calm(servers=servers((-10.0, "a", {"page_size": "1"})), events=events)).hypothesis("suppressed")
    assert h.status == "cannot tell"
    assert "2 holes without a reason" in h.evidence


def test_the_reason_is_the_quantity_that_is_not_known():
    rows = two_lengths((30.0, (4, 5)), (60.0, (4, 5)))
    d = diagnose(log_of(rows.assign(step_us=np.nan, step_why="coarse_clock")))
    assert d.verdict == "It cannot be told: no step has a step time (1200 of 1200: coarse_clock)."
    d = diagnose(log_of(rows.assign(tokens=np.nan)))
    assert d.kind == "step_time"
    assert not d.share_step_time.known
    assert "tokens per step are not known" in d.verdict


# -- causes that say the same ------------------------------------------------------------------------------------------------------------


def decode_lines(rows: pd.DataFrame, graph: np.ndarray, every: int) -> pd.DataFrame:
    """One line after each so many steps, with the graph state of that step."""
    mine = rows.iloc[every - 1 :: every]
    return pd.DataFrame(
        {
            "time_us": mine["time_us"].to_numpy() + 50,
            "running": mine["batch_size"].to_numpy(),
            "tokens": mine["context_len"].to_numpy(),
            "accept_len": 3.0,
            "cuda_graph": graph[every - 1 :: every],
            "stream": "a",
        }
    )


def test_a_graph_that_is_off_exactly_at_one_batch_size_is_named_together_with_the_batch():
    rows, at = [], 0.0
    for i in range(24):
        size = 8 if i % 2 else 1
        made = request(f"r{i}", steps=50, ms=80.0 if size == 8 else 40.0, tokens=(3, 4), context=300 + 37 * (i % 7), at=at)
        rows.append(made.assign(batch_size=size, weight=1.0, batch_context=made["context_len"] * size))
        at += 20.0
    table = pd.concat(rows, ignore_index=True)
    graph = (table["batch_size"] == 1).to_numpy()
    d = diagnose(log_of(table, decode=decode_lines(table, graph, 10)))
    assert d.kind == "cannot_tell"
    assert not d.causes
    assert d.hypothesis("graph_off").status == d.hypothesis("batch").status == "cannot tell"
    assert "batch size" in d.verdict
    assert "graph off" in d.verdict


def test_a_batch_is_not_blamed_where_a_graph_of_unknown_state_goes_with_it():
    rows = []
    for i in range(24):
        size = (1, 2, 4, 8)[i % 4]
        made = request(f"r{i}", steps=50, ms=80.0 if size > 2 else 40.0, tokens=(3, 4), context=300 + 37 * (i % 7), at=20.0 * i)
        rows.append(made.assign(batch_size=size, weight=1.0, batch_context=made["context_len"] * size))
    table = pd.concat(rows, ignore_index=True)
    # eight lines, of which the two at a batch of 8 do not agree with each other
    lines = decode_lines(table, (table["batch_size"] <= 2).to_numpy(), 50).iloc[:8]
    lines.loc[lines.index[3], "cuda_graph"] = True
    d = diagnose(log_of(table, decode=lines))
    assert "batch" not in {h.key for h in d.causes}


def test_the_graph_state_of_decode_lines_holds_for_the_steps_between_two_that_agree():
    rows = [
        request(f"r{i}", steps=120, ms=40.0 if i % 2 else 70.0, tokens=(3, 4), context=300 + 211 * (i % 7), at=30.0 * i) for i in range(20)
    ]
    table = pd.concat(rows, ignore_index=True)
    graph = np.repeat(np.arange(20) % 2 == 1, 120)
    d = diagnose(log_of(table, decode=decode_lines(table, graph, 40)))
    assert [h.key for h in d.causes] == ["graph_off"]
    # 40 ms against 70: a speed of 0.571
    assert d.hypothesis("graph_off").effect.value == pytest.approx(40 / 70, rel=0.02)


def test_a_slope_and_a_knee_that_cannot_be_told_apart_are_named_as_one_effect():
    # acceptance falls between 1,500 and 3,500 tokens, where there is no request: a line through both ends, or a step at 2,048
    rows = []
    for i in range(24):
        short = i % 2 == 0
        context = (400 + 90 * (i // 2)) if short else (3500 + 90 * (i // 2))
        rows.append(request(f"r{i}", steps=50, ms=30, tokens=(4, 5, 6) if short else (3, 4, 2), context=context, at=20.0 * i, seed=i))
    d = diagnose(log_of(pd.concat(rows, ignore_index=True)), window=2048)
    assert d.kind in ("acceptance", "cannot_tell")
    named = {h.key for h in d.causes}
    assert named != {"context_acceptance"} or "whether as a slope or at the drafter's window of 2,048 tokens cannot be told" in d.verdict


def test_a_knee_is_not_put_down_to_the_restart_after_which_contexts_are_longer():
    parts = []
    for run, contexts in enumerate(([200, 600, 1000, 1500, 2500, 3500], [800, 1500, 2500, 3000, 3500, 5000])):
        for i in range(18):
            context = contexts[i % 6] + 13 * i
            tokens = (5, 5, 4) if context < 2048 else (3, 2, 2)
            parts.append(request(f"{run}-{i}", steps=40, ms=30, tokens=tokens, context=context, at=1000.0 * run + 20 * i + 10, seed=i))
    log = log_of(pd.concat(parts, ignore_index=True), servers=servers((0.0, "a", {"page_size": "1"}), (1000.0, "a", {"page_size": "1"})))
    pair = next(c for c in diagnose(log).comparisons if c.kind == "runs")
    assert pair.tokens_ratio.value < 0.9
    assert pair.tokens_ratio_equal.low <= 1 <= pair.tokens_ratio_equal.high
    assert pair.verdict_equal in ("nothing", "cannot_tell")
    assert "context" in pair.equal_of


def test_o5_the_restart_is_found_in_both_orders_and_uptime_is_said_to_be_held_equal():
    log = o5_log("ab", 8)
    assert "uptime" in diagnose(log).verdict
    rows = []
    for run, born in enumerate((0.0, 20_000.0)):
        for i in range(24):
            minutes = 5.0 * i if run == 0 else 0.3 * i
            context = 1000 + 2500 * ((7 * i) % 24)
            ms, at = 30 + 1.5 * minutes, born + 60 * minutes
            rows.append(request(f"{run}-{i}", steps=30, ms=ms, tokens=(3, 4), context=context, at=at, seed=i))
    log = log_of(pd.concat(rows, ignore_index=True), servers=servers((-1.0, "a", {"page_size": "1"}), (19_999.0, "a", {"page_size": "1"})))
    for before, after in ((1, 2), (2, 1)):
        d = diagnose(log, before, after)
        assert d.kind == "step_time", (before, after)
        assert [h.key for h in d.causes] == ["uptime"], (before, after)
        assert "uptime" in d.comparisons[0].equal_of
    assert diagnose(log, 1, 2).verdict.startswith("Run 2 is the faster")


# -- what must reach the verdict, and stock lines ------------------------------------------------------------------------------------------


def test_simulated_acceptance_reaches_the_verdict():
    d = diagnose(calm(servers=servers((-10.0, "a", {"simulate_acc_len": "3"}))))
    assert d.verdict.endswith("The numbers are not those of normal service: simulated acceptance was left on.")


def windows(n: int, accept: float | None) -> pd.DataFrame:
    """Decode lines ten steps apart, one request at a time, of 20 lines each, whose step time is 20 ms and 10 for each 1000 tokens."""
    made, t = [], 0.0
    for i in range(n):
        context = 200.0 + 300.0 * (i % 10)
        for _ in range(20):
            ms = 20 + context / 100
            t += 10 * ms / 1000
            context += 10 * (accept or 1.0)
            made.append((START + int(t * 1e6), 1, int(context), accept, 1000 * (accept or 1.0) / ms))
        t += 5
    frame = pd.DataFrame(made, columns=["time_us", "running", "tokens", "accept_len", "gen_throughput"])
    return frame.assign(stream="a", time=pd.to_datetime(frame["time_us"], unit="us", utc=True), cuda_graph=True)


def test_plain_decoding_is_one_token_a_step():
    started = servers((-10.0, "a", {"decode_log_interval": "10"})).assign(decode_log_interval=10, algorithm=None)
    d = diagnose(log_of(decode=windows(20, None), servers=started))
    assert "without speculation" in d.basis
    assert d.comparisons[0].tokens_before == d.comparisons[0].tokens_after == 1.0
    assert d.kind == "step_time"
    assert "context_step_time" in {h.key for h in d.causes}


def test_long_and_short_are_taken_among_the_windows_that_have_a_step_time():
    lines = windows(20, 3.0)
    # the first and the last tenth of contexts have no throughput, so no step time
    low, high = lines["tokens"].quantile([0.25, 0.75])
    lines.loc[(lines["tokens"] <= low) | (lines["tokens"] >= high), "gen_throughput"] = np.nan
    d = diagnose(log_of(decode=lines, servers=servers((-10.0, "a", {"x": "1"})).assign(decode_log_interval=10, algorithm="DDTREE")))
    one = d.comparisons[0]
    assert one.kind == "context"
    assert one.step_time_before_ms is not None
    assert one.step_time_after_ms is not None
