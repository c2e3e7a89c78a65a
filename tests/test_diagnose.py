"""``diagnose`` on hand-made logs: the cases of one slow-down in small numbers, restarts and flags, and input that says nothing."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_metrics.diagnosis import diagnose, format_diagnosis, tell_apart
from ddtree_metrics.diagnosis.flags import reach_of
from ddtree_metrics.errors import MetricError

START = 1_770_000_000_000_000


def log_of(rows: pd.DataFrame | None = None, **frames: Any) -> SimpleNamespace:
    """Make a light stand-in for a log; frames that are not given are empty."""
    rows = pd.DataFrame() if rows is None else rows
    made = {name: pd.DataFrame() for name in ("steps", "decode", "prefill", "servers", "events", "requests")}
    return SimpleNamespace(**{**made, "steps": rows, "request_steps": rows, "coverage": None, "counts": None, **frames})


def request(
    name: str,
    *,
    steps: int,
    ms: float,
    tokens: tuple[int, ...],
    context: int,
    at: float,
    boot: str = "a",
    noise: float = 0.01,
    seed: int = 0,
) -> pd.DataFrame:
    """Make the rows of one request alone in its batch: ``tokens`` are taken in turn, step times vary by ``noise``."""
    rng = np.random.default_rng([seed, sum(map(ord, name))])
    times = ms * np.exp(rng.normal(0, noise, steps))
    committed = np.resize(tokens, steps)
    grown = np.concatenate([[0], np.cumsum(committed)[:-1]])
    return pd.DataFrame(
        {
            "time_us": (START + (at + np.cumsum(times) / 1000) * 1e6).astype(np.int64),
            "stream": boot,
            "boot_id": boot,
            "request_id": name,
            "prompt_len": context,
            "generated_len": grown + 1,
            "context_len": context + grown,
            "tokens": committed,
            "batch_size": 1,
            "weight": 1.0,
            "step_us": np.round(times * 1000),
            "step_why": None,
        }
    )


def servers(*starts: tuple[float, str, dict[str, str]]) -> pd.DataFrame:
    """Make server starts: seconds, boot, flags."""
    return pd.DataFrame(
        {
            "time": pd.to_datetime([START + int(at * 1e6) for at, _, _ in starts], unit="us", utc=True),
            "boot_id": [boot for _, boot, _ in starts],
            "args": [list(args.items()) for _, _, args in starts],
        }
    )


def sentences(d: Any) -> list[str]:
    """Collect every text of a diagnosis."""
    found = [d.verdict, d.basis, *d.cannot_tell, *d.next, format_diagnosis(d), format_diagnosis(d, 60, full=True)]
    found += [x for h in d.hypotheses for x in (h.name, h.evidence, h.next)]
    found += [x for c in d.comparisons for x in (c.before, c.after, c.sentence, c.reason or "", *(f.evidence for f in c.flags))]
    return found


def assert_speaks_plainly(d: Any) -> None:
    """No number that is none in any sentence, and data that JSON can hold."""
    for text in sentences(d):
        for word in ("nan", "inf", "None"):
            assert word not in text.replace("(", " ").replace(")", " ").replace("%", " ").split(), text
    json.loads(json.dumps(d.to_dict(), allow_nan=False))


# -- O6 ------------------------------------------------------------------------------------------------------------------------


def two_lengths(before: tuple[float, tuple[int, ...]], after: tuple[float, tuple[int, ...]], each: int = 12) -> pd.DataFrame:
    parts = []
    for i in range(each):
        parts.append(request(f"s{i}", steps=50, ms=before[0], tokens=before[1], context=300, at=20.0 * i, seed=i))
        parts.append(request(f"l{i}", steps=50, ms=after[0], tokens=after[1], context=5000, at=20.0 * i + 10, seed=i))
    return pd.concat(parts, ignore_index=True)


def test_o6_a_slow_down_at_unchanged_acceptance_is_step_time():
    # 4.8 tokens at 138 tok/s is 34.78 ms a step, 4.7 at 32.2 is 145.96 ms. ln(4.197) / (ln(4.197) + ln(4.8 / 4.7)) = 98.6 %
    rows = two_lengths((34.783, (5, 5, 5, 5, 4)), (145.963, (5, 5, 5, 4, 5, 5, 4, 5, 5, 4)))
    d = diagnose(log_of(rows), before="context:0-2000", after="context:4000-9000")
    assert d.kind == "step_time"
    assert d.share_step_time.value == pytest.approx(0.986, abs=0.003)
    assert d.share_step_time.value + d.share_acceptance.value == pytest.approx(1)
    one = d.comparisons[0]
    assert one.step_time_ratio.value == pytest.approx(4.20, abs=0.02)
    assert one.tokens_ratio.value == pytest.approx(0.979, abs=0.001)
    assert one.speed_ratio.value == pytest.approx(0.2333, abs=0.002)
    assert d.verdict.startswith("Step time")


def test_o6_two_halves_are_both():
    # 5.0 at 150 tok/s is 33.33 ms, 2.5 at 30 tok/s is 83.33 ms: shares ln 2.5 / ln 5 = 56.9 % and ln 2 / ln 5 = 43.1 %
    d = diagnose(log_of(two_lengths((33.333, (5,)), (83.333, (2, 3)))), before={"context": (0, 2000)}, after={"context": (4000, 9000)})
    assert d.kind == "both"
    assert d.share_step_time.value == pytest.approx(0.569, abs=0.005)
    assert d.share_acceptance.value == pytest.approx(0.431, abs=0.005)


def test_o6_short_against_long_context_is_what_is_compared_without_groups():
    d = diagnose(log_of(two_lengths((34.783, (5, 5, 5, 5, 4)), (145.963, (5, 5, 5, 4, 5, 5, 4, 5, 5, 4)))))
    assert d.kind == "step_time"
    assert d.comparisons[0].kind == "context"
    assert d.hypothesis("context_step_time").status == "supported"
    # (145.96 - 34.78) ms over 4700 tokens is 23.66 ms for each 1000
    assert d.slopes["context_step_ms"].value == pytest.approx(23.66, rel=0.02)


# -- O5 ------------------------------------------------------------------------------------------------------------------------

O5 = pd.DataFrame(
    {
        "boot": list("aaaabb"),
        "uptime_min": [5, 35, 70, 120, 2, 4],
        "context": [2000, 20000, 40000, 63000, 1500, 63500],
        "tok_per_s": [15.0, 12.0, 7.0, 1.1, 15.2, 14.8],
    }
)


def o5_log(boots: str, steps: int) -> SimpleNamespace:
    born = {"a": 0.0, "b": 3 * 3600.0}
    rows = [
        request(
            f"r{i}",
            steps=steps,
            ms=3000 / r.tok_per_s,
            tokens=(3,),
            context=int(r.context),
            at=born[r.boot] + 60 * r.uptime_min,
            boot=r.boot,
        )
        for i, r in enumerate(O5.itertuples())
        if r.boot in boots
    ]
    return log_of(pd.concat(rows, ignore_index=True), servers=servers(*[(born[b], b, {"page_size": "1"}) for b in boots]))


def test_o5_rows_of_one_boot_cannot_tell_context_from_uptime():
    found = tell_apart(O5[O5["boot"] == "a"])
    # r of (2000, 20000, 40000, 63000) with (5, 35, 70, 120) is 0.997
    assert found.cause is None
    assert found.together
    assert found.r == pytest.approx(0.997, abs=0.001)


def test_o5_the_second_boot_shows_that_it_is_the_uptime():
    found = tell_apart(O5)
    assert found.cause == "uptime"
    assert found.factor == pytest.approx(14.8 / 1.1, rel=0.001)
    assert "13.5x" in found.sentence


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_o5_diagnose_with_one_boot_names_both_and_no_cause(steps):
    d = diagnose(o5_log("a", steps))
    assert d.kind == "cannot_tell"
    assert not d.causes
    assert d.hypothesis("context_step_time").status == "cannot tell"
    assert d.hypothesis("uptime").status == "cannot tell"
    assert "context" in d.verdict
    assert "uptime" in d.verdict
    assert any("right after a restart" in line for line in d.next)
    assert_speaks_plainly(d)


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_o5_diagnose_with_both_boots_says_uptime_and_not_context(steps):
    d = diagnose(o5_log("ab", steps))
    assert [h.key for h in d.causes] == ["uptime"]
    assert d.kind == "step_time"
    assert d.hypothesis("context_step_time").status == "refuted"
    assert "13." in d.hypothesis("uptime").evidence
    assert_speaks_plainly(d)


# -- restarts and flags --------------------------------------------------------------------------------------------------------


def two_runs(after: tuple[float, tuple[int, ...]], flags: dict[str, str], context_after: int = 0) -> SimpleNamespace:
    """Sixteen requests, a restart, sixteen more; a step takes 20 ms and 10 more for each 1000 tokens in both."""
    parts = []
    rng = np.random.default_rng(5)
    for run, (ms, tokens) in enumerate([(20.0, (4, 5, 3)), after]):
        for i in range(16):
            context = int(rng.integers(100, 2500)) + run * context_after
            made = request(
                f"{run}-{i}",
                steps=40,
                ms=ms + context / 100,
                tokens=tokens,
                context=context,
                at=1000.0 * run + 10 + 8 * i,
                boot=f"b{run}",
                seed=i,
            )
            parts.append(made)
    started = {"page_size": "1", "api_key": "None"}
    return log_of(pd.concat(parts, ignore_index=True), servers=servers((0.0, "b0", started), (1000.0, "b1", started | flags)))


def test_a_parser_flag_is_refuted_by_numbers_that_did_not_move():
    d = diagnose(two_runs((20.0, (4, 5, 3)), {"reasoning_parser": "kimi_k2"}, context_after=1500))
    pair = next(c for c in d.comparisons if c.kind == "runs")
    # as logged the second run is slower, since its contexts are longer by 1500: 33 to 48 ms; at equal context it is not
    assert pair.step_time_ratio.value > 1.3
    assert pair.step_time_ratio_equal.value == pytest.approx(1.0, abs=0.02)
    assert pair.verdict_equal == "nothing"
    assert [(f.flag, f.status, f.reach) for f in pair.flags] == [("reasoning_parser", "refuted", "none")]
    assert pair.flags[0].evidence.startswith("measured: at equal context")
    assert d.hypothesis("flags").status == "refuted"
    assert "Not the cause: --reasoning-parser" in d.verdict
    assert [h.key for h in d.causes] == ["context_step_time"]


def test_a_parser_flag_that_changed_with_the_drafter_is_refuted_by_reasoning_and_says_so():
    d = diagnose(two_runs((20.0, (2, 3, 1)), {"reasoning_parser": "kimi_k2", "speculative_draft_model_path": "worse"}), before=1, after=2)
    flags = {f.flag: f for f in d.comparisons[0].flags}
    assert d.kind == "acceptance"
    parser = flags["reasoning_parser"]
    assert parser.status == "refuted"
    assert "cannot separate it from speculative_draft_model_path" in parser.evidence
    assert "by reasoning, not by measurement" in parser.evidence
    assert flags["speculative_draft_model_path"].status == "supported"
    assert any("by data alone they cannot be told apart" in line for line in d.cannot_tell)


def test_two_flags_with_a_path_that_changed_together_are_not_told_apart():
    d = diagnose(two_runs((60.0, (4, 5, 3)), {"attention_backend": "triton", "page_size": "64"}), before="run:1", after="run:2")
    assert d.kind == "step_time"
    assert {f.status for f in d.comparisons[0].flags} == {"cannot tell"}
    assert d.hypothesis("flags").status == "cannot tell"
    assert not d.causes


@pytest.mark.parametrize(
    ("flag", "reach"),
    [
        ("reasoning_parser", "none"),
        ("--tool-call-parser", "none"),
        ("served_model_name", "none"),
        ("log_requests_level", "measurement"),
        ("speculative_draft_model_path", "both"),
        ("attention_backend", "step"),
        ("disable_cuda_graph", "step"),
        ("some_new_flag", "unknown"),
    ],
)
def test_flags_are_sorted_by_what_they_can_reach(flag, reach):
    assert reach_of(flag) == reach


def test_changed_flags_are_those_that_differ_and_none_is_not_set():
    d = diagnose(two_runs((20.0, (4, 5, 3)), {"reasoning_parser": "None", "random_seed": "7"}), before=1, after=2)
    assert [(f.flag, f.before, f.after) for f in d.comparisons[0].flags] == [("random_seed", "(not set)", "7")]


# -- groups --------------------------------------------------------------------------------------------------------------------


def test_groups_can_be_windows_runs_boots_ranges_and_requests():
    log = two_runs((60.0, (4, 5, 3)), {})
    edge = pd.Timestamp(START + 500_000_000, unit="us", tz="UTC")
    ways = [
        (1, 2),
        ("run:1", "run:2"),
        (-2, -1),
        ("boot:b0", "boot:b1"),
        ((None, edge), (edge, None)),
        (slice(None, edge), slice(edge, None)),
        ({"until": edge}, {"since": edge}),
        (f"..{edge.isoformat()}", f"{edge.isoformat()}.."),
        ([f"0-{i}" for i in range(16)], [f"1-{i}" for i in range(16)]),
        ("requests:" + ",".join(f"0-{i}" for i in range(16)), None),
    ]
    for before, after in ways:
        d = diagnose(log, before, after)
        one = d.comparisons[0]
        assert (one.rows["requests_before"], one.rows["requests_after"]) == (16, 16), (before, after)
        assert d.kind == "step_time"


@pytest.mark.parametrize("group", ["nonsense", 3.5, {"color": (1, 2)}, True, [], "context:a-b", [1, 2]])
def test_a_group_that_cannot_be_understood_is_an_error_that_names_the_forms(group):
    with pytest.raises(MetricError, match="give a window"):
        diagnose(two_runs((20.0, (4,)), {}), before=group)


def test_a_range_without_rows_cannot_be_told_and_says_which_group_is_empty():
    d = diagnose(two_runs((20.0, (4,)), {}), before="context:0-50", after="context:100-9000")
    assert d.kind == "cannot_tell"
    assert "context 0 to 50: no row" in d.verdict
    assert_speaks_plainly(d)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("run:9", None, "there is no run 9: the log has 2 server starts"),
        (1, 1, "name the same rows"),
        ("requests:nope", None, "of request nope: the log has 32 requests"),
        ("boot:zz", None, "of boot 'zz': the log has 2 boots"),
        ("context:5000-100", None, "first end is larger than its last"),
        ({"context": (5000, 100)}, None, "from 5000 to 100 is empty"),
    ],
)
def test_a_group_that_the_log_does_not_have_is_an_error_that_says_what_it_has(before, after, said):
    with pytest.raises(MetricError, match=re.escape(said)):
        diagnose(two_runs((20.0, (4,)), {}), before=before, after=after)


def test_rows_in_neither_group_are_counted():
    d = diagnose(two_lengths_log(), before="context:0-1000", after="context:5000-5050")
    assert d.excluded["rows in neither group"] > 0


def two_lengths_log() -> SimpleNamespace:
    return log_of(two_lengths((20.0, (4, 5)), (40.0, (4, 5))))


# -- what is observed ------------------------------------------------------------------------------------------------------------


def test_suppressed_lines_are_supported_with_their_number_and_advice():
    events = pd.DataFrame({"kind": ["suppressed"], "count": [740]})
    h = diagnose(log_of(two_lengths_log().request_steps, events=events)).hypothesis("suppressed")
    assert h.status == "supported"
    assert "at least 740 lines missing" in h.evidence
    assert "LogRateLimitIntervalSec" in h.next
    assert "RateLimitBurst" in h.next


@pytest.mark.parametrize(("flag", "key"), [("simulate_acc_len", "simulated"), ("profile_dir", "profiling")])
def test_a_switch_left_on_is_supported(flag, key):
    log = log_of(two_lengths_log().request_steps, servers=servers((0.0, "a", {flag: "3"})))
    assert diagnose(log).hypothesis(key).status == "supported"
    off = log_of(two_lengths_log().request_steps, servers=servers((0.0, "a", {flag: "None"})))
    assert diagnose(off).hypothesis(key).status == "refuted"
    assert diagnose(two_lengths_log()).hypothesis(key).status == "cannot tell"


def test_acceptance_at_its_cap_for_many_steps_is_too_good():
    rows = two_lengths((20.0, (4, 5, 2, 8)), (20.0, (4, 5, 2, 8)))
    loop = request("loop", steps=200, ms=20, tokens=(8,), context=900, at=900.0)
    assert diagnose(log_of(rows)).hypothesis("too_good").status == "refuted"
    assert diagnose(log_of(pd.concat([rows, loop], ignore_index=True))).hypothesis("too_good").status == "supported"


# -- bad input -----------------------------------------------------------------------------------------------------------------


def broken_inputs() -> dict[str, SimpleNamespace]:
    rows = two_lengths_log().request_steps
    null = rows.copy()
    for name in ("tokens", "step_us", "context_len", "request_id", "generated_len"):
        null[name] = None
    decode = pd.DataFrame(
        {
            "time_us": START + np.arange(30) * 1_000_000,
            "running": 1,
            "tokens": 1000 + np.arange(30) * 100,
            "accept_len": 2.5,
            "gen_throughput": 100.0,
            "cuda_graph": True,
            "stream": "a",
        }
    )
    lists = pd.DataFrame(
        {"time_us": START + np.arange(20) * 20_000, "batch_size": 1, "commit_lens": [[3, 4]] * 20, "step_us": 20_000, "stream": "a"}
    )
    return {
        "nothing": log_of(),
        "one step": log_of(rows.iloc[:1]),
        "two steps": log_of(rows.iloc[:2]),
        "one request": log_of(rows[rows["request_id"] == "s0"]),
        "all null": log_of(null),
        "constant context": log_of(rows.assign(context_len=500, prompt_len=500, generated_len=1)),
        "constant everything": log_of(rows.assign(context_len=500, prompt_len=500, generated_len=1, tokens=4, step_us=20_000.0)),
        "negative step times": log_of(rows.assign(step_us=-rows["step_us"])),
        "zero step times": log_of(rows.assign(step_us=0)),
        "infinite step times": log_of(rows.assign(step_us=np.inf)),
        "negative tokens": log_of(rows.assign(tokens=-1)),
        "zero tokens": log_of(rows.assign(tokens=0)),
        "no time": log_of(rows.drop(columns=["time_us"])),
        "no columns": log_of(pd.DataFrame(index=range(5))),
        "text for numbers": log_of(rows.assign(context_len="many", tokens="few")),
        "a step a request": log_of(rows.assign(request_id=[f"r{i}" for i in range(len(rows))])),
        "decode with infinite throughput": log_of(decode=decode.assign(gen_throughput=np.inf)),
        "decode with zero throughput": log_of(decode=decode.assign(gen_throughput=0.0)),
        "decode all null": log_of(decode=decode.assign(running=None, tokens=None, accept_len=None, gen_throughput=None)),
        "one decode line": log_of(decode=decode.iloc[:1]),
        "decode": log_of(decode=decode),
        "lists longer than the batch": log_of(steps=lists, request_steps=pd.DataFrame()),
    }


def _not_there(log: SimpleNamespace, groups: tuple[Any, Any]) -> bool:
    """Whether the groups name a second run, or requests, that a log with rows does not have."""
    if not len(log.request_steps) and not len(log.steps) and not len(log.decode):
        return False
    if isinstance(groups[0], list):
        ids = set(log.request_steps["request_id"].dropna()) if "request_id" in log.request_steps else set()
        return not {"s0", "l0"} <= ids
    return groups == (1, 2)


@pytest.mark.parametrize("name", list(broken_inputs()))
@pytest.mark.parametrize("groups", [(None, None), (1, 2), ("context:0-600", "context:600-"), (["s0"], ["l0"])])
def test_bad_input_gives_a_result_that_says_what_cannot_be_told(name, groups):
    log = broken_inputs()[name]
    if _not_there(log, groups):
        with pytest.raises(MetricError, match=r"there is no run 2|is known to be of request|there is nothing to compare"):
            diagnose(log, *groups)
        return
    d = diagnose(log, *groups)
    # the rows are sound but for what the name says, and show a step time that doubles
    assert d.kind in ("cannot_tell", "nothing", "step_time")
    assert not d.causes or d.kind == "step_time"
    assert d.cannot_tell
    assert_speaks_plainly(d)


@pytest.mark.parametrize(
    "name", ["nothing", "one step", "all null", "negative step times", "zero step times", "infinite step times", "no columns"]
)
def test_without_measurements_no_cause_is_named(name):
    d = diagnose(broken_inputs()[name])
    assert d.kind == "cannot_tell"
    assert not d.causes
    assert not d.share_step_time.known


def test_what_is_left_out_is_counted():
    rows = two_lengths_log().request_steps
    rows.loc[:9, "step_us"] = -5.0
    rows.loc[10:14, "step_us"] = np.nan
    rows.loc[10:14, "step_why"] = "prefill_between"
    rows.loc[20:22, "tokens"] = np.nan
    d = diagnose(log_of(rows))
    assert d.excluded["step time not positive"] == 10
    assert d.excluded["no step time: prefill_between"] == 5
    assert d.excluded["tokens unknown"] == 3


def test_lists_longer_than_the_batch_are_not_counted_as_tokens():
    d = diagnose(broken_inputs()["lists longer than the batch"])
    assert d.excluded["tokens unknown"] == 20


def test_level_and_min_change_are_shares():
    with pytest.raises(MetricError, match="between 0 and 1"):
        diagnose(two_lengths_log(), level=90)


numbers = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.integers(-10, 100_000))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(numbers, numbers, numbers, st.sampled_from(["a", "b", None]), st.integers(-1, 3)), max_size=25))
def test_no_table_of_odd_numbers_makes_a_traceback_or_a_nan(table):
    rows = pd.DataFrame(table, columns=["step_us", "tokens", "context_len", "request_id", "batch_size"])
    rows["time_us"] = START + np.arange(len(rows)) * 50_000
    rows["stream"] = "a"
    d = diagnose(log_of(rows))
    assert_speaks_plainly(d)
    assert d.to_dict()["schema_version"] == 4


# -- the text --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_text_fits_its_width_and_the_answer_stands_above_its_evidence(width):
    d = diagnose(two_runs((20.0, (2, 3, 1)), {"reasoning_parser": "kimi_k2", "speculative_draft_model_path": "worse"}))
    screen = format_diagnosis(d, width).splitlines()
    lines = format_diagnosis(d, width, full=True).splitlines()
    assert max(map(len, [*screen, *lines])) <= width
    assert len(screen) <= 16
    headline = next(i for i, line in enumerate(lines) if line.startswith("SLOWER SINCE THE RESTART"))
    assert headline < lines.index("Checks")


def test_the_input_is_not_changed_and_the_answer_is_the_same_twice():
    log = two_lengths_log()
    before = log.request_steps.copy(deep=True)
    one, two = diagnose(log), diagnose(log)
    pd.testing.assert_frame_equal(log.request_steps, before)
    assert one.to_dict() == two.to_dict()
