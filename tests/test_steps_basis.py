"""The basis: summary, report, plots and diagnosis rest on the same rows, of the right server start and service."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ddtree_metrics as ddt
from ddtree_metrics import metrics, tables
from ddtree_metrics.diagnosis import diagnose
from ddtree_metrics.diagnosis.assembly import basis_of as basis_of_the_diagnosis
from ddtree_metrics.report.facts import gather
from ddtree_metrics.steps.basis import Basis, Kind
from ddtree_metrics.steps.basis_rows import basis_of
from ddtree_metrics.steps.own_requests import EXCLUDED, own_rows
from ddtree_metrics.summary import SummaryLine, format_summary, summarise
from tests import captures

FIXTURES = Path(__file__).parent.parent / "fixtures"
A = FIXTURES / "real" / "A"
T0 = 1_767_225_600_000_000


@cache
def capture(requests: str) -> Any:
    log = ddt.read_text(A / "journal.export.zst")
    return log if requests == "none" else log.with_requests(A / requests)


def counts(rows: pd.DataFrame) -> dict[str, float]:
    """Count the rows of a frame, a step once."""
    once = rows.drop_duplicates("where")
    timed = once["step_time_ms"].dropna()
    return {
        "steps": len(once),
        "timed_steps": len(timed),
        "request_steps": int(rows["tokens"].notna().sum()),
        "requests": rows["request_id"].nunique(),
        "tokens per step": float(rows["tokens"].mean()),
        "mean step time": float(timed.mean()),
    }


@pytest.mark.filterwarnings("ignore::ddtree_metrics.errors.DDTreeWarning")
@pytest.mark.parametrize("requests", ["none", "requests.jsonl", "client.csv"])
def test_summary_report_plots_and_diagnosis_count_the_same_rows(requests: str) -> None:
    # 545 steps, 10 of them of two warm-ups; 19 follow a prefill and have no step time (the engine's own account: truth-summary.json)
    runs = captures.summary("A")["runs"].values()
    true = {
        "steps": 545 - 10,
        "timed_steps": 545 - 10 - 19,
        "request_steps": sum(run["request_steps"] for run in runs),
        "requests": sum(run["requests"] for run in runs),
    }
    assert sum(run["steps"] for run in runs) == true["steps"]
    log = capture(requests)
    line, facts, basis = summarise(log).total, gather(log, diagnose(log)), basis_of(log)
    said = {
        "steps": line.steps,
        "timed_steps": line.timed_steps,
        "request_steps": line.request_steps,
        "requests": line.requests,
        "tokens per step": line.tokens_per_step_micro,
        "mean step time": line.step_time_mean_ms,
    }
    assert {name: said[name] for name in true} == true
    assert counts(facts.rows) == pytest.approx(said)
    assert len(facts.once) == line.steps
    assert facts.once["step_time_ms"].notna().sum() == line.timed_steps
    of_the_diagnosis = basis_of_the_diagnosis(log)
    assert counts(of_the_diagnosis.frame()) == pytest.approx(said)
    used = diagnose(log).used
    assert (used["steps"], used["request_steps"], used["requests"]) == (line.steps, line.request_steps, line.requests)
    # 10 steps of two warm-ups, 19 first steps of requests, after their prefill; the two first lines of processes are of warm-ups
    expected = {EXCLUDED: 10, "no step time: prefill_between": 19}
    for excluded in (summarise(log).excluded, diagnose(log).excluded, basis.excluded):
        assert {name: n for name, n in excluded.items() if name in expected or name.startswith("no step time")} == expected


def test_a_dataset_read_as_a_log_rests_on_the_rows_of_the_log(tmp_path: Path) -> None:
    ddt.export(A / "journal.export.zst", tmp_path / "lake", partition=("host", "date"), requests=A / "requests.jsonl")
    read, log = ddt.read(tmp_path / "lake").basis, capture("requests.jsonl").basis
    # 535 steps without the warm-ups, 516 timed, 717 request-steps of 22 requests
    assert (len(np.unique(read.step)), int(read.timed.sum()), int(read.counted.sum())) == (535, 516, 717)
    assert read.excluded[EXCLUDED] == log.excluded[EXCLUDED] == 10
    assert len(np.unique(read.request_code[read.known])) == 22


def test_days_of_hosts_without_steps_of_requests_are_named_where_a_dataset_is_read_as_a_log(tmp_path: Path) -> None:
    ddt.export(A / "journal.export.zst", tmp_path / "lake", partition=("host", "date"), requests=A / "requests.jsonl")
    assert not [note for note in ddt.read(tmp_path / "lake").coverage.notes if "request_steps" in note]
    steps = ddt.read(A / "journal.export.zst").steps.assign(host="gpu-02")
    ddt.Log({"steps": tables.from_pandas(steps, ddt.TreeStep)}).write(tmp_path / "other.parquet", "steps")
    both = ddt.read_parquet([tmp_path / "lake", tmp_path / "other.parquet"])
    assert [note for note in both.coverage.notes if "1 day of hosts have no request_steps (gpu-02 2026-11-29)" in note]


def test_a_request_file_without_kinds_leaves_warm_ups_to_the_log() -> None:
    # the file's ids are the log's; it says nothing of kinds
    log = capture("none")
    bare = log.requests.drop(columns=["kind"])
    made = log.with_requests(bare.assign(kind="client"))
    assert made.requests["kind"].value_counts().to_dict() == {"client": 22, "warmup": 2, "health_check": 2}
    assert basis_of(made).excluded[EXCLUDED] == 10


def test_steps_of_no_request_within_a_warm_up_are_the_servers_own_unless_a_request_covers_them() -> None:
    at = pd.to_datetime([T0, T0 + 4_000_000], unit="us", utc=True)
    told = pd.DataFrame({"request_id": ["w"], "kind": ["warmup"], "received": at[:1], "finished": at[1:]})
    rows = pd.DataFrame({"time_us": T0 + np.array([-1, 0, 2_000_000, 4_000_000, 4_000_001]), "request_id": [None] * 5})
    nobody = pd.DataFrame({"request_id": [], "received": [], "finished": []})
    assert own_rows(rows, nobody, told).tolist() == [False, True, True, True, False]
    # a client's request from 1 s to 3 s covers the step at 2 s; a step of that request is never the server's
    times = pd.to_datetime([T0 + 1_000_000, T0 + 3_000_000], unit="us", utc=True)
    client = pd.DataFrame({"request_id": ["c"], "kind": ["client"], "received": times[:1], "finished": times[1:]})
    assert own_rows(rows, client, told).tolist() == [False, True, False, True, False]
    assert own_rows(rows.assign(request_id="c"), client, told).tolist() == [False] * 5


# -- tables multiply -----------------------------------------------------------------------------------------------------------


def test_in_every_row_of_a_summary_tokens_per_step_over_the_step_time_is_the_speed() -> None:
    made = summarise(capture("none"))
    lines: list[SummaryLine] = [made.total, *made.runs, *made.by_context]
    assert len(lines) == 1 + 2 + 7
    for line in lines:
        assert line.tokens_per_step_micro is not None
        assert line.step_time_seen_ms is not None
        assert line.tok_per_s == pytest.approx(1000 * line.tokens_per_step_micro / line.step_time_seen_ms)


def test_the_numbers_that_a_summary_prints_multiply_within_rounding() -> None:
    text = format_summary(summarise(capture("none")), width=100).splitlines()
    head = next(row for row in text if "tok/step" in row)
    assert head.split() == ["requests", "n", "tok/step", "ms", "tok/s", "p50", "ms", "p95", "ms", "(macro)"]
    bins = [line.name for line in summarise(capture("none")).by_context]
    rows = [row.split() for row in text if row.startswith(("all ", "run 1 ", "run 2 ", *(f"{name} " for name in bins)))]
    assert len(rows) == 10
    for row in rows:
        tokens, ms, speed = (float(x) for x in row[-6:-3])
        # tokens are printed to 0.005, ms and speed to 0.05
        assert (tokens - 0.005) / (ms + 0.05) * 1000 - 0.05 <= speed <= (tokens + 0.005) / (ms - 0.05) * 1000 + 0.05


def test_by_context_multiplies_in_every_bin() -> None:
    frame = metrics.by_context(capture("none").basis.frame())
    assert len(frame) == 7
    np.testing.assert_allclose(frame["tok_per_s"], 1000 * frame["tokens_per_step_pooled"] / frame["step_time_mean_ms"])


def test_the_report_puts_the_speed_beside_what_it_is_the_quotient_of() -> None:
    text = ddt.render_report(capture("none"))
    text = text[text.index("Numbers by context length") :]
    places = [text.index(word) for word in ("Tokens a step", "Step time (ms)", "tok/s", "Median / 95 %")]
    assert places == sorted(places)


# -- server starts and services ------------------------------------------------------------------------------------------------


def windows(stream: str, unit: str, begin_s: float, n: int, speed: float, accept: float | None = 2.0) -> pd.DataFrame:
    """Decode lines of 40 steps of one request, one a second."""
    return pd.DataFrame(
        {
            "time_us": T0 + ((begin_s + np.arange(n)) * 1e6).astype(np.int64),
            "host": "gpu1",
            "unit": unit,
            "stream": stream,
            "running": 1,
            "tokens": 1000 + 80 * np.arange(n),
            "accept_len": accept,
            "gen_throughput": speed,
        }
    )


def log_of(**frames: pd.DataFrame) -> SimpleNamespace:
    names = ("steps", "decode", "prefill", "servers", "events", "requests", "request_steps")
    return SimpleNamespace(**{**{name: pd.DataFrame() for name in names}, **frames})


def test_two_services_in_one_journal_are_never_two_starts_of_one() -> None:
    # a starts at 0 s and 100 s, b at 50 s: runs 1 and 3 are of a, run 2 is of b
    decode = pd.concat(
        [
            windows("gpu1|b|1|-", "a.service", 10, 5, 80.0),
            windows("gpu1|b|2|-", "b.service", 60, 5, 40.0),
            windows("gpu1|b|3|-", "a.service", 110, 5, 80.0),
        ],
        ignore_index=True,
    )
    servers = pd.DataFrame(
        {
            "time_us": T0 + np.array([0, 50, 100]) * 1_000_000,
            "host": "gpu1",
            "unit": ["a.service", "b.service", "a.service"],
            "args": [{"x": "1"}, {"x": "2"}, {"x": "3"}],
        }
    )
    made = basis_of(log_of(decode=decode, servers=servers))
    assert made.services == ["gpu1/a.service", "gpu1/b.service"]
    assert [(run.number, run.service) for run in made.runs] == [(1, 0), (2, 1), (3, 0)]
    assert made.run.tolist() == [1] * 5 + [2] * 5 + [3] * 5
    assert made.service.tolist() == [0] * 5 + [1] * 5 + [0] * 5
    # uptime counts from the start of the own service: 10 s to 14 s in each
    assert made.uptime_s.tolist() == [10.0, 11.0, 12.0, 13.0, 14.0] * 3
    assert made.run_of(servers).tolist() == [1, 2, 3]
    assert [line.name for line in summarise(log_of(decode=decode, servers=servers)).runs] == [
        "run 1 of gpu1/a.service",
        "run 2 of gpu1/b.service",
        "run 3 of gpu1/a.service",
    ]


def test_services_side_by_side_keep_their_starts_while_the_other_one_starts() -> None:
    # b starts at 50 s, in the middle of a: the lines of a after it are still of run 1
    decode = pd.concat([windows("a", "a.service", 40, 20, 80.0), windows("b", "b.service", 52, 5, 80.0)], ignore_index=True)
    servers = pd.DataFrame({"time_us": [T0, T0 + 50_000_000], "host": "gpu1", "unit": ["a.service", "b.service"], "args": [{}, {}]})
    made = basis_of(log_of(decode=decode, servers=servers))
    assert set(made.run[made.service == 0]) == {1}
    assert set(made.run[made.service == 1]) == {2}


def test_files_without_a_unit_are_services_and_parts_of_a_rotated_one_are_one() -> None:
    decode = pd.concat(
        [
            windows("-|-|a.log|-", "", 0, 3, 80.0).assign(where="a.log.1:7"),
            windows("-|-|b.log|-", "", 10, 3, 80.0).assign(where="b.log:7"),
            windows("-|-|a.log|-", "", 20, 3, 80.0).assign(where="a.log:7"),
        ],
        ignore_index=True,
    ).assign(unit=None, host=None)
    made = basis_of(log_of(decode=decode))
    assert made.services == ["a.log", "b.log"]
    assert made.service.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0]


def test_speculation_turned_on_is_a_start_that_no_line_tells_of() -> None:
    # run 1: 1000 / 146 = 6.85 ms, one token a step; run 2: 2000 / 93 = 21.5 ms, two tokens
    log = ddt.read_text(FIXTURES / "failing" / "mixed-speculation.log")
    made = basis_of(log)
    assert made.kind is Kind.DECODE_WINDOWS
    assert [(run.number, run.hidden, run.args) for run in made.runs] == [(1, True, None), (2, True, None)]
    assert made.run.tolist() == [1] * 4 + [2] * 4
    assert made.speculative.tolist() == [0.0] * 4 + [1.0] * 4
    one, two = summarise(log).runs
    assert (one.tokens_per_step_micro, two.tokens_per_step_micro) == (1.0, 2.0)
    assert one.tok_per_s == pytest.approx(146.0)
    assert two.tok_per_s == pytest.approx(93.0)
    assert one.step_time_mean_ms == pytest.approx(1000 / 146)
    assert two.step_time_mean_ms == pytest.approx(2000 / 93)


def test_speculation_turned_on_at_a_start_that_a_line_tells_of_is_one_start() -> None:
    decode = pd.concat([windows("s", "a.service", 10, 5, 80.0, None), windows("s", "a.service", 110, 5, 80.0)], ignore_index=True)
    servers = pd.DataFrame({"time_us": [T0, T0 + 100_000_000], "unit": "a.service", "host": "gpu1", "args": [{"a": "1"}, {"a": "2"}]})
    made = basis_of(log_of(decode=decode, servers=servers))
    assert [run.hidden for run in made.runs] == [False, False]
    assert made.run.tolist() == [1] * 5 + [2] * 5
    assert basis_of(log_of(decode=decode, servers=servers[:1])).run.tolist() == [1] * 5 + [2] * 5


def test_ranks_that_turn_speculation_on_one_after_the_other_are_one_start() -> None:
    decode = pd.concat(
        [
            windows(stream, "a.service", begin + shift, 5, 80.0, accept)
            for stream, shift in (("g|b|1|dp0", 0.0), ("g|b|1|dp1", 0.3))
            for begin, accept in ((0.0, None), (100.0, 2.0))
        ],
        ignore_index=True,
    )
    made = basis_of(log_of(decode=decode))
    assert len(made.runs) == 2
    assert [set(made.run[made.time_us < T0 + 50_000_000]), set(made.run[made.time_us > T0 + 50_000_000])] == [{1}, {2}]


# -- the arrays ----------------------------------------------------------------------------------------------------------------


def test_elapsed_is_the_time_since_the_line_before_whatever_lies_between() -> None:
    # lines at 0, 40, 2040 ms (after a prefill) of one stream, at 10 ms of another
    rows = pd.DataFrame(
        {
            "time_us": T0 + np.array([0, 10_000, 40_000, 2_040_000]),
            "stream": ["a", "b", "a", "a"],
            "request_id": ["x", "y", "x", "z"],
            "tokens": 3,
            "step_us": [None, None, 40_000, None],
            "step_why": ["first", "first", None, "prefill_between"],
            "batch_size": 1,
        }
    )
    made = basis_of(log_of(steps=rows, request_steps=rows))
    assert made.kind is Kind.STEP_LINES
    np.testing.assert_array_equal(made.elapsed_us, [np.nan, np.nan, 40_000.0, 2_000_000.0])
    assert made.why.tolist() == ["first", "first", None, "prefill_between"]
    assert made.request.tolist() == ["x", "y", "x", "z"]


def test_rows_of_one_step_have_one_elapsed_time() -> None:
    rows = pd.DataFrame(
        {
            "time_us": T0 + np.repeat([0, 40_000, 90_000], 2),
            "stream": "a",
            "request_id": ["x", "y"] * 3,
            "slot": [0, 1] * 3,
            "tokens": 3,
            "step_us": np.repeat([np.nan, 40_000, 50_000], 2),
            "batch_size": 2,
        }
    )
    np.testing.assert_array_equal(
        basis_of(log_of(steps=rows, request_steps=rows)).elapsed_us, [np.nan, np.nan, 40_000.0, 40_000.0, 50_000.0, 50_000.0]
    )


def test_what_one_reader_notes_on_the_basis_of_a_log_another_does_not_see() -> None:
    log = capture("none")
    mine = basis_of(log)
    mine.count("rows in neither group", 5)
    mine.notes.append("mine")
    assert "rows in neither group" not in basis_of(log).excluded
    assert "mine" not in basis_of(log).notes
    assert mine.tokens is basis_of(log).tokens


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        ({}, Kind.NOTHING),
        ({"steps": pd.DataFrame({"time_us": [T0], "commit_lens": [[3]], "batch_size": [1]})}, Kind.STEP_LINES_NO_REQUESTS),
        ({"decode": windows("a", "u", 0, 5, 80.0)}, Kind.DECODE_WINDOWS),
        ({"decode": windows("a", "u", 0, 9, 2.0).assign(tokens=100 + 2 * np.arange(9), gen_throughput=2.0)}, Kind.DECODE_STEPS),
    ],
)
def test_the_kind_says_what_the_rows_are_made_of(frames: dict[str, pd.DataFrame], kind: Kind) -> None:
    assert basis_of(log_of(**frames)).kind is kind


def test_tokens_of_steps_without_requests_are_the_mean_over_the_batch() -> None:
    # lists: (3 + 4) / 2 = 3.5; a list of one for a batch of two says nothing; an average of 3.25 over 4 is 13 / 4; 2.37 over 128 is printed
    steps = pd.DataFrame(
        {
            "time_us": T0 + np.arange(4) * 40_000,
            "commit_lens": [[3, 4], [3], None, None],
            "avg_commit_len": [3.5, 3.0, 3.25, 2.37],
            "batch_size": [2, 2, 4, 128],
        }
    )
    np.testing.assert_array_equal(basis_of(log_of(steps=steps)).tokens, [3.5, np.nan, 3.25, 2.37])


def test_a_million_rows_take_less_than_three_hundred_bytes_each() -> None:
    made = capture("none").basis
    arrays = [getattr(made, name) for name, kind in Basis.__annotations__.items() if kind in ("Floats", "Ints", "Codes", "Bools")]
    each = sum(a.itemsize for a in (*arrays, *made.more.values()))
    assert all(len(a) == len(made) for a in arrays)
    assert each < 300
