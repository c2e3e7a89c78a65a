"""The simulator: its log says what its truth says, and its server behaves as the settings ask."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ddtree_metrics as ddt
from tests.captures import FIXTURES
from tests.simulator import Restart, Settings, Work, simulate
from tests.simulator_incident import incident, truth


def test_equal_settings_give_equal_runs() -> None:
    a, b = simulate(seed=3, requests=8, concurrency=2), simulate(seed=3, requests=8, concurrency=2)
    pd.testing.assert_frame_equal(a.truth_steps, b.truth_steps)
    assert [e.message for e in a.lines] == [e.message for e in b.lines]
    assert [e.message for e in a.lines] != [e.message for e in simulate(seed=4, requests=8, concurrency=2).lines]


def test_truth_obeys_the_servers_identities() -> None:
    run = simulate(seed=1, requests=40, concurrency=6, pool=6000, output=(100, 300))
    requests = run.truth_requests
    done = requests[requests["completion_tokens"] > 0]
    # 1 token from the prefill, 1 more from the prefill after each retraction, 1 bonus a step
    tail = 1 + done["retractions"] + done["verify_steps"] + done["accepted_drafts"] - done["completion_tokens"]
    assert done["retractions"].sum() > 0
    assert tail.between(0, run.settings.depth).all()
    assert all(sum(h) == n for h, n in zip(done["accepted_histogram"], done["verify_steps"], strict=True))
    steps = run.truth_steps
    assert (steps["context_len"] == steps["prompt_len"] + steps["generated_len"] - 1).all()
    assert steps.groupby("step")["slot"].apply(lambda s: s.tolist() == list(range(len(s)))).all()


def test_step_time_is_what_the_settings_say() -> None:
    run = simulate(
        seed=2, workload=(Work(100, 2000, at=2.0), Work(6000, 2000, at=200.0)), noise=0.0, step_ms=10.0, context_ms=3.0, batch_ms=2.0
    )
    steps = run.truth_steps
    assert np.allclose(steps["step_ms"], 10.0 + 3.0 * steps["context_len"] / 1000 + 2.0)  # one request at a time


def test_acceptance_is_what_the_settings_say() -> None:
    run = simulate(seed=2, workload=(Work(100, 40_000, at=2.0),), acceptance=0.7, acceptance_spread=0.0, depth=3, warmup=False)
    drafts = run.truth_steps["drafts"]
    # 0.7 + 0.49 + 0.343 = 1.533 of at most 3
    assert drafts.mean() == pytest.approx(1.533, abs=0.03)


@pytest.mark.parametrize("layout", ["working", "colon", "singular", "scalar", "shuffled"])
def test_every_spelling_is_read_back_by_the_library(layout: str, tmp_path: Path) -> None:
    run = simulate(seed=5, requests=6, concurrency=3, layout=layout)
    log = ddt.read_text(run.write_export(tmp_path / "simulated.export.zst"))
    pd.testing.assert_frame_equal(
        log.steps[["batch_size", "budget", "commit_lens", "accepted_drafts", "step_us"]].astype(str),
        run.steps[["batch_size", "budget", "commit_lens", "accepted_drafts", "step_us"]].astype(str),
        check_dtype=False,
    )


@pytest.mark.parametrize("release", ["0.5.2", "0.5.8", "0.5.15", "0.5.23"])
@pytest.mark.parametrize("log_requests", ["text", "json"])
def test_request_lines_of_every_release_give_the_true_requests(release: str, log_requests: str, tmp_path: Path) -> None:
    run = simulate(seed=5, requests=5, concurrency=2, release=release, log_requests=log_requests, time_stats=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log = ddt.read_text(run.write_export(tmp_path / "simulated.export"))
    got = log.requests.set_index("request_id").sort_index()
    want = run.truth_requests.set_index("request_id").sort_index()
    assert got.index.tolist() == want.index.tolist()
    for name in ("prompt_tokens", "completion_tokens"):
        assert got[name].tolist() == want[name].tolist()
    stepped = want["verify_steps"] > 0
    assert got.loc[stepped, "verify_steps"].tolist() == want.loc[stepped, "verify_steps"].tolist()
    assert got.loc[stepped, "accepted_drafts"].tolist() == want.loc[stepped, "accepted_drafts"].tolist()
    assert got["kind"].tolist() == want["kind"].tolist()


def test_tables_without_text_are_the_tables_that_the_reader_makes(tmp_path: Path) -> None:
    run = simulate(seed=6, requests=10, concurrency=3, restarts=(Restart(5.0, args={"x": "1"}),))
    log = ddt.read_text(run.write_export(tmp_path / "simulated.export.zst"))
    for name in ("time_us", "step_us", "step_why", "tokens", "tokens_cum", "stream"):
        assert log.steps[name].astype(str).tolist() == run.steps[name].astype(str).tolist(), name
    assert log.prefill["new_tokens"].tolist() == run.frames["prefill"]["new_tokens"].tolist()
    assert log.decode["running"].tolist() == run.frames["decode"]["running"].tolist()


def test_the_rate_limit_loses_lines_and_tells_of_them() -> None:
    run = simulate(seed=6, requests=30, concurrency=4, burst=(3.0, 60))
    lost = sum(count for _, count in run.notices)
    assert lost > 0
    assert (~run.truth_steps["logged"]).any()
    suppressed = run.frames["events"]["kind"] == "suppressed"
    assert run.frames["events"].loc[suppressed, "count"].sum() == lost


def test_clock_jumps_move_the_wall_clock_only() -> None:
    run = simulate(seed=6, requests=10, clock_jumps=((5.0, -30.0),))
    wall = np.diff([e.realtime_us for e in run.lines])
    boot = np.diff([e.monotonic_us for e in run.lines])
    assert (boot >= 0).all()
    assert (wall < 0).sum() == 1


def test_whatever_it_writes_says_that_it_is_simulated(tmp_path: Path) -> None:
    run = simulate(seed=6, requests=3)
    assert "simulated log" in run.lines[0].message
    assert (run.steps["unit"] == "sglang-simulated.service").all()
    assert (run.steps["host"] == "simulated").all()
    assert all(json.loads(json.loads(line)["request_parameters"])["simulated"] for line in run.requests_jsonl)
    assert "simulated" in Settings().unit


def test_the_incident_is_the_incident() -> None:
    made = truth(incident())
    short, slow = made["short"], made["slow"]
    assert isinstance(short, dict)
    assert isinstance(slow, dict)
    # the report: 138 tok/s at short context, 32.2 tok/s for 3,239 prompt + 2,750 output tokens
    assert short["tokens_per_s"] == pytest.approx(138, rel=0.02)
    assert slow["tokens_per_s"] == pytest.approx(32.2, rel=0.02)
    assert slow["mean_step_ms"] > 3 * short["mean_step_ms"]
    assert slow["tokens_per_step"] < 0.9 * short["tokens_per_step"]
    requests = incident().truth_requests
    one = requests[requests["request_id"] == "the-slow-one-simulated"].iloc[0]
    assert (one["prompt_tokens"], one["completion_tokens"]) == (3239, 2750)


def test_the_fixture_is_what_the_simulator_makes_and_only_parsers_changed() -> None:
    folder = FIXTURES / "incident"
    assert json.loads((folder / "simulated-truth.json").read_text()) == json.loads(json.dumps(truth(incident())))
    log = ddt.read_text(folder / "simulated-journal.export.zst")
    before, after = (dict(a) for a in log.servers["args"])
    assert {k for k in before if before[k] != after[k]} == {"reasoning_parser", "tool_call_parser"}
    out = log.with_requests(folder / "simulated-requests.jsonl").request_steps
    assert out.attrs["join"]["reconciled_share"] == 1.0
    assert out["context_len"].max() == incident().truth_steps["context_len"].max()
