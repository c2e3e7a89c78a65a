"""The join: who made each step, at what context; against captures of a real server and against simulations whose truth is known."""

from __future__ import annotations

import functools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ddtree_metrics as ddt
from ddtree_metrics import tables
from ddtree_metrics.cli import main
from ddtree_metrics.errors import DDTreeWarning, JoinError
from ddtree_metrics.join import join_batches, join_requests, verify
from ddtree_metrics.join.decode_context import usable
from ddtree_metrics.join.prepare import prepare_requests, prepare_steps
from ddtree_metrics.records import DecodeBatch, Request, RequestStep, TreeStep
from ddtree_metrics.requests import complement_requests, read_requests, requests_from_log
from ddtree_metrics.schema import arrow_schema
from tests.captures import FIXTURES, journal_export, truth_steps
from tests.simulator import Restart, Run, Work, simulate


def quiet(*args: Any, **kwargs: Any) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DDTreeWarning)
        return join_requests(*args, **kwargs)


def flagged(out: pd.DataFrame) -> np.ndarray:
    """Rows that carry a flag, or say that no request is known."""
    flags = np.array([x is not pd.NA and x is not None and len(x) > 0 for x in out["flags"].tolist()], bool)
    return flags | (out["matched"] == "none").to_numpy(bool)


def trusted(out: pd.DataFrame) -> np.ndarray:
    return out["trusted"].fillna(False).to_numpy(bool)


# -- captures of a real server ------------------------------------------------------------------------------------------------------


@functools.cache
def capture(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ddt.read_text(journal_export(name))


def requests_of(name: str, source: str) -> pd.DataFrame:
    folder = FIXTURES / "real" / name
    if source == "log":
        return requests_from_log(capture(name).request_lines)
    if source == "client and log":
        return complement_requests(read_requests(folder / "client.csv"), requests_from_log(capture(name).request_lines))
    return read_requests(folder / source)


def joined(name: str, source: str) -> pd.DataFrame:
    log = capture(name)
    return quiet(log.steps, requests_of(name, source), log.prefill, decode=log.decode, events=log.events)


def against_truth(name: str, out: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Say for each row whether request, tokens and context (within one token) are what the engine noted, and whose step it was."""
    truth = truth_steps(name)
    log = capture(name)
    when = np.array([t["time_ns"] // 1000 for t in truth])
    at = np.searchsorted(when, log.steps["time_us"].to_numpy(np.int64), side="right") - 1
    true = [(rid, seq, n) for k in at for rid, seq, n in zip(truth[k]["rids"], truth[k]["seq_lens"], truth[k]["committed"], strict=True)]
    assert len(true) == len(out)
    ids = out["request_id"].fillna("").tolist()
    contexts = out["context_len"].fillna(-9).tolist()
    right = [i == rid and abs(c - seq) <= 1 and n == t for (rid, seq, n), i, c, t in zip(true, ids, contexts, out["tokens"], strict=True)]
    return np.array(right), np.array([rid for rid, _, _ in true])


@pytest.mark.parametrize("source", ["requests.jsonl", "client.csv", "log", "client and log"])
def test_capture_a_at_least_995_in_1000_pairs_are_right(source: str) -> None:
    out = joined("A", source)
    right, whose = against_truth("A", out)
    known = np.isin(whose, requests_of("A", source)["request_id"].tolist())
    assert right[known].mean() >= 0.995
    assert not (~right & trusted(out)).any()
    assert not (~right & ~flagged(out)).any()
    if source != "client.csv":  # the client knows nothing of the warm-up
        assert known.all()
    assert int(out["batch_size"].max()) == 4


def test_capture_a_with_the_clients_file_alone_leaves_only_the_warm_up_unmatched() -> None:
    out = joined("A", "client.csv")
    none = out[out["matched"] == "none"]
    assert len(none) == 10  # 4 + 6 steps of the two warm-ups, see the capture's README
    assert (none["context_from"].dropna() == "decode_line").all()
    assert none["request_id"].isna().all()


@pytest.mark.parametrize("source", ["requests.jsonl", "client.csv", "log"])
def test_capture_c_is_flagged_where_lines_are_lost(source: str) -> None:
    out = joined("C", source)
    right, _ = against_truth("C", out)
    assert not (~right & ~flagged(out)).any()
    assert not (~right & trusted(out)).any()
    assert out.attrs["join"]["losses"] == 3


def test_capture_c_the_retracted_request_is_flagged_and_the_clean_one_trusted() -> None:
    out = joined("C", "requests.jsonl")
    retracted = out[out["request_id"] == "bbd88fbe13744d729f8ab1d1267dfd3a"]
    assert all("lost_lines" in f for f in retracted["flags"])
    clean = out[out["request_id"] == "1023fc6107184cd6b6e85ac8890662b9"]  # between two losses: nothing of it is missing
    assert len(clean) == 18
    assert trusted(clean).all()


def test_capture_c_warns_of_what_cannot_be_trusted() -> None:
    log = capture("C")
    with pytest.warns(DDTreeWarning) as told:
        join_requests(log.steps, requests_of("C", "requests.jsonl"), log.prefill, events=log.events)
    texts = [str(w.message) for w in told]
    # the one between two losses, and the last, whose numbers fit though lines before it are lost
    assert any("only 2 of 8 requests reconcile (25.0%; 90% are wanted)" in t for t in texts)
    assert any("lines are missing in 3 places" in t for t in texts)


def test_warm_up_and_health_checks_are_recognised_in_the_log() -> None:
    kinds = requests_from_log(capture("A").request_lines)["kind"].value_counts().to_dict()
    assert kinds == {"client": 22, "warmup": 2, "health_check": 2}
    out = joined("A", "log")
    assert sum("warmup" in f for f in out["flags"].dropna()) == 10


# -- simulations --------------------------------------------------------------------------------------------------------------------


def score(run: Run, out: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return for each row whether request, step index and context are exactly right, and whether its request could be known."""
    true = run.truth_steps
    true = true[true["logged"]].sort_values(["step", "slot"], kind="stable")
    assert len(true) == len(out)
    right = (out["request_id"].fillna("").to_numpy(object) == true["request_id"].to_numpy(object)) & (
        out["context_len"].fillna(-1).to_numpy(np.int64) == true["context_len"].to_numpy(np.int64)
    )
    right &= out["step_index"].fillna(-1).to_numpy(np.int64) == true["step_index"].to_numpy(np.int64)
    return right, true["request_id"].isin(set(run.requests["request_id"])).to_numpy(bool)


def run_join(run: Run, requests: pd.DataFrame | None = None) -> pd.DataFrame:
    f = run.frames
    return quiet(f["steps"], run.requests if requests is None else requests, f["prefill"], decode=f["decode"], events=f.get("events"))


def client_of(run: Run, tmp_path: Path, offset_s: float = 0.0) -> pd.DataFrame:
    run.client_frame(offset_s).to_csv(tmp_path / "client.csv", index=False)
    return read_requests(tmp_path / "client.csv")


SCENES: dict[str, dict[str, Any]] = {
    "one at a time": {"concurrency": 1},
    "4 at once": {"concurrency": 4},
    "16 at once": {"concurrency": 16},
    "arrivals": {"rate": 3.0},
    "two ranks": {"concurrency": 8, "dp": 2},
    "retractions": {"concurrency": 8, "pool": 6000, "output": (100, 400)},
    "noise": {"concurrency": 4, "noise": 0.5, "stall_share": 0.02, "line_lag_ms": 3.0},
    "aborts": {"concurrency": 4, "abort_share": 0.2},
    "chunked prefill": {"concurrency": 4, "chunk": 512},
    "cached prompts": {"concurrency": 4, "cached_share": 0.5},
    "restart": {"concurrency": 4, "restarts": (Restart(12.0),)},
    "last commit cut": {"concurrency": 3, "cut_last_commit": True},
}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("seed", [1, 2])
def test_simulated_pairs_are_right_and_every_wrong_one_is_flagged(scene: str, seed: int) -> None:
    run = simulate(seed=seed, requests=50, **SCENES[scene])
    out = run_join(run)
    right, known = score(run, out)
    assert right[known].mean() >= 0.995
    assert not (~right & ~flagged(out)).any()
    assert not (~right & trusted(out)).any()


@pytest.mark.parametrize(("how", "seed"), [("suppressed", 1), ("suppressed", 2), ("silent", 1), ("silent", 2)])
def test_lost_lines_make_flags_not_errors(how: str, seed: int) -> None:
    lost: dict[str, Any] = {"burst": (3.0, 60)} if how == "suppressed" else {"lost_share": 0.003}
    run = simulate(seed=seed, requests=50, concurrency=4, **lost)
    out = run_join(run)
    right, _ = score(run, out)
    assert not (~right & ~flagged(out)).any()
    assert not (~right & trusted(out)).any()


@settings(max_examples=18, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    concurrency=st.sampled_from([1, 2, 4, 9]),
    dp=st.sampled_from([1, 1, 2]),
    depth=st.integers(1, 9),
    acceptance=st.floats(0.2, 0.95),
    pool=st.sampled_from([4500, 8000, 1_000_000]),
    chunk=st.sampled_from([300, 8192]),
    noise=st.floats(0.0, 0.6),
    abort_share=st.sampled_from([0.0, 0.2]),
    lost_share=st.sampled_from([0.0, 0.0, 0.01]),
    burst=st.sampled_from([None, None, (2.0, 50)]),
    order=st.sampled_from(["length", "kept"]),
)
def test_what_is_marked_trusted_is_truly_right(order: str, **kwargs: Any) -> None:
    run = simulate(requests=16, output=(2, 120), prompt=(5, 3000), retraction_order=order, **kwargs)
    out = run_join(run)
    right, _ = score(run, out)
    assert not (~right & trusted(out)).any()
    assert not (~right & ~flagged(out)).any()


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10_000), concurrency=st.sampled_from([1, 2, 5]), acceptance=st.floats(0.3, 0.95))
def test_what_is_trusted_on_a_clients_word_is_right_too(
    seed: int, concurrency: int, acceptance: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = simulate(seed=seed, requests=14, concurrency=concurrency, acceptance=acceptance)
    out = run_join(run, client_of(run, tmp_path_factory.mktemp("client")))
    right, _ = score(run, out)
    assert not (~right & trusted(out)).any()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_client_alone_is_enough_for_requests_one_at_a_time(seed: int, tmp_path: Path) -> None:
    run = simulate(seed=seed, requests=40, concurrency=1)
    out = run_join(run, client_of(run, tmp_path))
    right, known = score(run, out)
    warmups = set(run.requests.loc[run.requests["kind"] == "warmup", "request_id"])
    true = run.truth_steps[run.truth_steps["logged"]].sort_values(["step", "slot"])
    mine = known & ~true["request_id"].isin(warmups).to_numpy()
    assert right[mine].mean() >= 0.995


# -- clocks -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.9, 7200.7, -3 * 3600 + 12.345, -5.5 * 3600])
def test_the_clock_offset_is_found_with_its_uncertainty(offset: float, tmp_path: Path) -> None:
    run = simulate(seed=4, requests=40, concurrency=1)
    requests = client_of(run, tmp_path, offset)
    f = run.frames
    with pytest.warns(DDTreeWarning, match="the requests' clock is"):
        out = join_requests(f["steps"], requests, f["prefill"])
    told = out.attrs["join"]
    assert abs(told["clock_offset_s"] - offset) <= told["clock_uncertainty_s"] + 0.005
    assert told["clock_uncertainty_s"] < 0.1
    right, _ = score(run, out)
    assert right.mean() > 0.99
    assert not (~right & trusted(out)).any()


BURSTS = tuple(Work(100, 40, at=2.0 + 6.0 * (i // 4)) for i in range(32))
"""Bursts of equal prompts: the first of each is prefilled at once, the others together, so that prefills of one length come too soon."""


def printed_when_scheduled(run: Run) -> pd.DataFrame:
    """The table of prefills with the time at which each began, which is what SGLang up to 0.5.8 prints."""
    s, prefill = run.settings, run.frames["prefill"]
    took = s.prefill_ms + s.prefill_token_ms * prefill["new_tokens"].to_numpy(np.float64) / 1000
    return prefill.assign(time=prefill["time"] - pd.to_timedelta(took * 1000 + 100, unit="us"))


@pytest.mark.parametrize("source", ["log", "request_file"])
@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("scene", ["bursts of equal prompts", "long prefills"])
def test_no_clock_offset_is_invented_whenever_the_prefill_line_is_printed(scene: str, scheduled: bool, source: str) -> None:
    changes: dict[str, Any] = {"workload": BURSTS} if scene.startswith("bursts") else {"requests": 30, "prefill_token_ms": 1000.0}
    run = simulate(seed=3, concurrency=4, **changes)
    prefill = printed_when_scheduled(run) if scheduled else run.frames["prefill"]
    out = quiet(run.steps, run.requests.assign(source=source), prefill, events=run.frames.get("events"))
    assert out.attrs["join"]["clock_offset_s"] == 0.0
    right, known = score(run, out)
    assert right[known].all()
    assert out.attrs["join"]["reconciled_share"] == 1.0


@pytest.mark.parametrize("scheduled", [False, True])
def test_an_offset_is_found_whenever_the_prefill_line_is_printed(scheduled: bool, tmp_path: Path) -> None:
    run = simulate(seed=4, requests=40, concurrency=1, prefill_token_ms=400.0)  # prefills of 35 ms to 1.6 s
    prefill = printed_when_scheduled(run) if scheduled else run.frames["prefill"]
    out = quiet(run.steps, client_of(run, tmp_path, 7200.7), prefill)
    told = out.attrs["join"]
    assert abs(told["clock_offset_s"] - 7200.7) <= told["clock_uncertainty_s"] + 0.005
    right, known = score(run, out)
    assert right[known].mean() > 0.98
    assert not (~right & trusted(out)).any()


def test_the_logs_own_requests_have_the_logs_clock() -> None:
    run = simulate(seed=4, requests=10)
    moved = run.requests.assign(source="log")
    for name in ("received", "first_token", "finished"):
        moved[name] = moved[name] + pd.Timedelta(hours=2)
    out = quiet(run.steps, moved, run.frames["prefill"])
    assert out.attrs["join"]["clock_offset_s"] == 0.0
    assert not trusted(out).any()


def test_a_log_takes_the_offset_that_is_given(tmp_path: Path) -> None:
    run = simulate(seed=4, requests=12)
    log = quietly_read(run.write_export(tmp_path / "simulated.export"))
    joined = log.with_requests(client_of(run, tmp_path, 100.0), clock_offset_s=100.0).request_steps.attrs["join"]
    assert (joined["clock_how"], joined["clock_offset_s"]) == ("given", 100.0)


def cli(*args: str | Path) -> Any:
    return CliRunner().invoke(main, [str(a) for a in args], prog_name="ddtree-logs", catch_exceptions=False)


def test_the_command_line_takes_the_offset_and_passes_it_on(tmp_path: Path) -> None:
    run = simulate(seed=4, requests=12)
    log = run.write_export(tmp_path / "simulated.export")
    run.client_frame(100.0).to_csv(tmp_path / "client.csv", index=False)
    done = cli("export", log, "--requests", tmp_path / "client.csv", "--clock-offset", "100", "-o", f"{tmp_path}/out/")
    assert done.exit_code == 0, done.stderr
    rows = tables.to_pandas(pq.read_table(tmp_path / "out" / "request_steps.parquet"))
    assert score(run, rows)[0].mean() > 0.99
    assert "the requests' clock is" not in done.stderr  # given, not estimated
    assert cli("export", log, "--clock-offset", "100", "-o", f"{tmp_path}/other/").exit_code == 2
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("told", ["text", "none"])
def test_a_folder_gets_request_steps_where_the_logs_own_lines_tell_of_requests(told: str, tmp_path: Path) -> None:
    run = simulate(seed=4, requests=6, log_requests=told)
    done = cli("export", run.write_export(tmp_path / "simulated.export"), "-o", f"{tmp_path}/out/")
    assert done.exit_code == 0, done.stderr
    names = {p.name for p in (tmp_path / "out").iterdir()}
    usual = {f"{n}.parquet" for n in ("steps", "decode", "prefill", "servers", "events", "requests")}
    assert names == (usual | {"request_steps.parquet"} if told == "text" else usual)
    if told == "text":
        assert score(run, tables.to_pandas(pq.read_table(tmp_path / "out" / "request_steps.parquet")))[0].all()


def quietly_read(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DDTreeWarning)
        return ddt.read_text(path)


# -- a log and its file of requests -------------------------------------------------------------------------------------------------


def without_times(run: Run, path: Path) -> Path:
    """The server's file as it is without --enable-metrics."""
    keys = {"prompt_tokens", "completion_tokens", "verify_steps", "accepted_drafts"}
    names = {"verify_steps": "spec_verify_ct", "accepted_drafts": "spec_num_correct_drafts"}
    rows = [
        {"request_parameters": "{}", "id": r["request_id"], **{names.get(k, k): int(r[k]) for k in keys}}
        for r in run.requests.to_dict("records")
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_times_that_the_servers_file_lacks_come_from_the_logs_own_lines(tmp_path: Path) -> None:
    run = simulate(seed=4, requests=12, concurrency=2)
    log = quietly_read(run.write_export(tmp_path / "simulated.export"))
    n = len(run.requests)
    with pytest.warns(DDTreeWarning) as told:
        made = log.with_requests(without_times(run, tmp_path / "r.jsonl"))
    assert any(str(w.message).startswith(f"{n} requests of the file have no times: those of the log's own lines") for w in told)
    assert (made.requests["source"] == "request_file").all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DDTreeWarning)
        out = made.request_steps
    assert out.attrs["join"]["times_from_log"] == n
    assert score(run, out)[0].all()


def test_without_times_anywhere_the_advice_names_the_options(tmp_path: Path) -> None:
    run = simulate(seed=4, requests=4, log_requests="none")
    log = quietly_read(run.write_export(tmp_path / "simulated.export"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DDTreeWarning)
        made = log.with_requests(without_times(run, tmp_path / "r.jsonl"))
    with pytest.warns(DDTreeWarning) as told:
        assert made.request_steps["request_id"].isna().all()
    assert any(
        "no_start); SGLang writes their times with --enable-metrics, and its own lines (--log-requests)" in str(w.message) for w in told
    )


def test_an_empty_file_does_not_take_the_logs_own_requests_away(tmp_path: Path) -> None:
    run = simulate(seed=4, requests=4)
    log = quietly_read(run.write_export(tmp_path / "simulated.export"))
    (tmp_path / "nothing.jsonl").write_text("")
    with pytest.warns(DDTreeWarning) as told:
        made = log.with_requests(tmp_path / "nothing.jsonl")
    texts = [str(w.message) for w in told]
    assert any("nothing.jsonl" in t for t in texts)
    assert any(f"the {len(log.requests)} requests of the log's own lines stay" in t for t in texts)
    assert made.requests["request_id"].tolist() == log.requests["request_id"].tolist()


def test_requests_without_an_id_are_counted_one_by_one(tmp_path: Path) -> None:
    run = simulate(seed=4, requests=6, concurrency=1, warmup=False)
    client_of(run, tmp_path).drop(columns=["request_id", "flags"]).to_csv(tmp_path / "nameless.csv", index=False)
    out = quiet(run.steps, read_requests(tmp_path / "nameless.csv"), run.frames["prefill"])
    # 6 requests: names and steps of each as in the truth, where they carry the server's ids
    assert out["request_id"].nunique() == 6
    assert out.groupby("request_id").size().tolist() == run.truth_steps.groupby("request_id", sort=False).size().tolist()
    assert int(ddt.by_context(out, edges=[0, 10_000])["requests"].iloc[0]) == 6


# -- windows and doubts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("concurrency", [4, 8])
def test_a_window_of_a_busy_log_gives_hardly_a_step_to_the_wrong_request(seed: int, concurrency: int) -> None:
    # more arrive than can run: at both ends of the window some wait whose beginning, or whose end, is outside
    run = simulate(seed=seed, requests=60, rate=4.0, max_running=concurrency, warmup=False)
    whole = run.steps["time"]
    lo, hi = whole.iloc[len(whole) // 4], whole.iloc[3 * len(whole) // 4]
    part = {k: f[(f["time"] >= lo) & (f["time"] <= hi)].reset_index(drop=True) for k, f in run.frames.items() if "time" in f}
    out = quiet(part["steps"], requests_from_log(part["request_lines"]), part["prefill"], decode=part["decode"], events=part["events"])
    true = run.truth_steps.set_index(["time_us", "slot"])["request_id"]
    named = out[out["request_id"].notna()]
    wrong = named["request_id"].to_numpy(object) != true.loc[list(zip(named["time_us"], named["slot"], strict=True))].to_numpy(object)
    assert wrong.mean() < 0.05  # a few steps around the ends of requests that began before
    assert not (wrong & trusted(named)).any()
    assert not (wrong & ~flagged(named)).any()
    assert len(named) > 0.5 * len(out)


def test_a_histogram_does_not_tell_in_which_of_two_like_steps_a_request_moved_up() -> None:
    # somebody unknown leaves slot 0 before the fourth step or before the third: "a" has one accepted in both slots of the third
    accepted = [(0, 1), (2, 0), (1, 1), (3,), (0,)]
    hists = {"a": (2, 2, 0, 1)}  # 1, 0, 1, 3, 0 in the order of its steps
    rows = [
        TreeStep(time=at(1 + i / 10), batch_size=len(a), accepted_drafts=a, commit_lens=tuple(x + 1 for x in a), steps=1)
        for i, a in enumerate(accepted)
    ]
    s, a, pieces = moved_up(rows, hists["a"])
    firm = np.array([True, False])
    request = np.full(s.slots, -1, np.int32)
    for r, begin, end, slot in zip(pieces.request, pieces.begin, pieces.end, pieces.slot, strict=True):
        request[s.place[begin:end] + slot] = r
    own = np.flatnonzero(pieces.request == 0)
    assert len(a) == 2
    assert verify._moves_in_doubt(s, pieces, own, request, firm)
    assert not verify._moves_in_doubt(s, pieces, own, request, np.array([True, True]))  # the one that left is known for certain


def moved_up(rows: list[TreeStep], hist: tuple[int, ...]) -> Any:
    """Steps, two requests, and their places: the second in slot 0 of the first three steps, the first behind it and then alone."""
    common: dict[str, Any] = {"received": at(0.5), "first_token": at(0.9), "finished": at(1.5), "prompt_tokens": 10, "completion_tokens": 9}
    frame = requests_frame(Request(request_id="a", accepted_histogram=hist, **common), Request(request_id="b", **common))
    s = prepare_steps(tables.from_records(rows, TreeStep).to_batches())
    zero = ints(0, 0, 0)
    pieces = verify.SegmentArrays(ints(0, 0, 1), ints(0, 3, 0), ints(3, 5, 3), ints(1, 0, 0), zero, zero, {})
    return s, prepare_requests(frame)[0], pieces


@pytest.mark.parametrize("seed", range(1, 9))
def test_suppressed_lines_leave_nothing_wrong_trusted(seed: int) -> None:
    run = simulate(seed=seed, requests=40, rate=2.0, max_running=4, acceptance=0.45, depth=4, burst=(2.0, 40))
    out = quiet(run.steps, requests_from_log(run.frames["request_lines"]), run.frames["prefill"], events=run.frames["events"])
    right, _ = score(run, out)
    assert not (~right & trusted(out)).any()


def test_what_reconciles_and_is_doubted_is_counted_apart() -> None:
    # two of the same length and totals, received in the same instant: either may be the one in slot 0
    accepted = [(0, 1), (1, 0), (2, 2)]
    rows = [
        TreeStep(time=at(1 + i / 10), batch_size=2, accepted_drafts=a, commit_lens=tuple(x + 1 for x in a), steps=1)
        for i, a in enumerate(accepted)
    ]
    common: dict[str, Any] = {
        "received": at(0.5),
        "first_token": at(0.9),
        "finished": at(1.25),
        "prompt_tokens": 10,
        "completion_tokens": 7,
        "verify_steps": 3,
        "accepted_drafts": 3,
        "source": "request_file",
    }
    with pytest.warns(DDTreeWarning) as told:
        out = join_requests(steps_frame(*rows), requests_frame(*(Request(request_id=x, **common) for x in "ab")))
    summary = out.attrs["join"]
    assert (summary["checked"], summary["reconciled_but_doubted"], summary["not_reconciled"]) == (2, 2, 0)
    assert summary["reconciled_share"] == 1.0
    texts = [str(w.message) for w in told]
    assert not any(t.startswith("only") for t in texts)
    assert any(t.startswith("2 of 2 requests reconcile, but something else is in doubt") for t in texts)


def test_where_only_the_rank_is_unknown_the_ranges_are_said_to_overlap() -> None:
    rows = [
        TreeStep(time=at(1 + i / 10), dp_rank=rank, stream=f"s{rank}", batch_size=1, steps=1, accepted_drafts=(1,), commit_lens=(2,))
        for i in range(4)
        for rank in (0, 1)
    ]
    request = Request(
        request_id="a", received=at(0.5), first_token=at(0.9), finished=at(1.35), prompt_tokens=5, completion_tokens=9, source="client"
    )
    with pytest.warns(DDTreeWarning) as told:
        join_requests(steps_frame(*rows), requests_frame(request))
    texts = [str(w.message) for w in told]
    assert not any("overlaps" in t for t in texts)
    assert any("of the same time" in t and "1 could be any of several ranks'" in t for t in texts)


def test_an_offset_that_is_given_is_taken(tmp_path: Path) -> None:
    run = simulate(seed=4, requests=20, concurrency=1)
    f = run.frames
    out = quiet(f["steps"], client_of(run, tmp_path, 100.0), f["prefill"], clock_offset_s=100.0)
    assert out.attrs["join"]["clock_how"] == "given"
    assert score(run, out)[0].mean() > 0.99


def test_a_server_file_from_another_time_zone_is_found_without_prefill_lines() -> None:
    run = simulate(seed=4, requests=30, concurrency=3)
    moved = run.requests.copy()
    for name in ("received", "first_token", "finished"):
        moved[name] = moved[name] + pd.Timedelta(hours=-8)
    out = quiet(run.steps, moved)
    assert out.attrs["join"]["clock_offset_s"] == pytest.approx(-8 * 3600, abs=0.05)
    assert score(run, out)[0].mean() >= 0.995


def test_another_servers_file_says_that_nothing_overlaps_and_shows_both_ranges() -> None:
    run, other = simulate(seed=4, requests=12), simulate(seed=5, requests=12, start=1_700_000_000.0)
    with pytest.warns(DDTreeWarning, match=r"no request overlaps the log: steps from 2026-02-02 .* UTC, requests from 2023-11-14 .*"):
        out = join_requests(run.steps, other.requests)
    assert (out["matched"] == "none").all()
    assert len(out) == int(run.steps["batch_size"].sum())


@pytest.mark.parametrize("jump", [-20.0, 3600.0])
def test_a_wall_clock_that_jumps_makes_flags_not_errors(jump: float) -> None:
    run = simulate(seed=3, requests=30, concurrency=3, clock_jumps=((4.0, jump),))
    out = run_join(run)
    right, _ = score(run, out)
    assert not (~right & ~flagged(out)).any()
    assert not (~right & trusted(out)).any()
    assert trusted(out).any() or jump < 0  # the repeated stretch is the whole of this log


@pytest.mark.parametrize("concurrency", [1, 3])
def test_whole_second_stamps_are_matched_by_the_order_of_lines(concurrency: int, tmp_path: Path) -> None:
    run = simulate(seed=3, requests=30, concurrency=concurrency, output=(60, 300))
    log = ddt.read_text(run.write_text(tmp_path / "simulated.log"), tz="UTC")
    out = quiet(log.steps, run.requests, log.prefill, decode=log.decode, events=log.events)
    right, _ = score(run, out)
    assert right.mean() > 0.99 or concurrency > 1  # several at once within one second: what cannot be told is flagged
    assert not (~right & ~flagged(out)).any()
    assert not (~right & trusted(out)).any()
    assert out["time_us"].tolist() == [t for t, n in zip(log.steps["time_us"], log.steps["batch_size"], strict=True) for _ in range(n)]


# -- ranks ------------------------------------------------------------------------------------------------------------------------


def steps_frame(*rows: TreeStep) -> pd.DataFrame:
    return tables.to_pandas(tables.from_records(rows, TreeStep))


def requests_frame(*rows: Request) -> pd.DataFrame:
    return tables.to_pandas(tables.from_records(rows, Request))


def at(s: float) -> Any:
    return (pd.Timestamp("2026-02-01 10:00:00", tz="UTC") + pd.Timedelta(microseconds=round(s * 1e6))).to_pydatetime()


def test_o10_copies_of_other_ranks_are_one_step_and_data_parallel_ranks_are_streams(tmp_path: Path) -> None:
    run = simulate(seed=6, requests=8, concurrency=2, dp=2, tp=4, tp_copies=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log = ddt.read_text(run.write_export(tmp_path / "simulated.export"))
    assert log.table("steps").num_rows == 4 * len(log.steps)
    out = quiet(log.steps, run.requests, log.prefill, events=log.events)
    right, _ = score(run, out)
    assert right.all()
    assert set(out["dp_rank"]) == {0, 1}


def test_two_requests_with_the_same_times_on_different_ranks() -> None:
    common: dict[str, Any] = {"batch_size": 1, "steps": 1}
    rows = []
    for i in range(4):
        for rank, (accepted, commit) in enumerate((((2,), (3,)), ((1,), (2,)))):
            rows.append(
                TreeStep(time=at(1 + i / 10), dp_rank=rank, accepted_drafts=accepted, commit_lens=commit, stream=f"s{rank}", **common)
            )
    times: dict[str, Any] = {"received": at(0.5), "first_token": at(0.9), "finished": at(1.31), "source": "request_file"}
    a = Request(request_id="a", prompt_tokens=10, completion_tokens=13, verify_steps=4, accepted_drafts=8, dp_rank=0, **times)
    b = Request(request_id="b", prompt_tokens=99, completion_tokens=9, verify_steps=4, accepted_drafts=4, dp_rank=1, **times)
    out = quiet(steps_frame(*rows), requests_frame(a, b))
    assert out.groupby("dp_rank")["request_id"].unique().map(list).to_dict() == {0: ["a"], 1: ["b"]}
    assert out.loc[out["request_id"] == "b", "context_len"].tolist() == [99, 101, 103, 105]
    assert trusted(out).all()


# -- the ways, by hand --------------------------------------------------------------------------------------------------------------


def test_context_is_prompt_plus_what_was_committed_before() -> None:
    rows = [
        TreeStep(time=at(1 + i / 10), batch_size=1, accepted_drafts=(n - 1,), commit_lens=(n,), steps=1) for i, n in enumerate((3, 1, 4))
    ]
    request = Request(
        request_id="a",
        received=at(0.5),
        first_token=at(0.9),
        finished=at(1.25),
        prompt_tokens=100,
        completion_tokens=8,
        verify_steps=3,
        accepted_drafts=5,
        source="request_file",
    )
    out = quiet(steps_frame(*rows), requests_frame(request))
    assert out["context_len"].tolist() == [100, 103, 104]
    assert out["generated_len"].tolist() == [1, 4, 5]  # the prefill's token is not in the cache yet
    assert out["step_index"].tolist() == [0, 1, 2]
    assert out["reconciled"].tolist() == [1, 1, 1]  # 3 + 1 + 4 committed, 7 asked for: the last step was cut by 1
    assert out["matched"].tolist() == ["alone"] * 3
    assert trusted(out).all()
    assert out.attrs["join"]["reconciled_within_last_cut"] == 1


def test_ids_in_the_lines_are_taken_at_their_word() -> None:
    rows = [
        TreeStep(time=at(1), batch_size=2, commit_lens=(2, 3), accepted_drafts=(1, 2), request_ids=("a", "x"), steps=1),
        TreeStep(
            time=at(1.1), batch_size=2, commit_lens=(1, 4), accepted_drafts=(0, 3), request_ids=("x", "a"), steps=1, context_lens=(7, 12)
        ),
    ]
    request = Request(
        request_id="a", received=at(0), first_token=at(0.9), finished=at(1.2), prompt_tokens=10, completion_tokens=7, source="client"
    )
    out = quiet(steps_frame(*rows), requests_frame(request))
    assert out["request_id"].tolist() == ["a", "x", "x", "a"]
    assert out["matched"].tolist() == ["id"] * 4
    assert out["context_len"].fillna(-1).tolist() == [10, -1, 7, 12]
    assert out["context_from"].fillna("").tolist() == ["request", "", "line", "line"]


def test_averages_only_are_shared_with_weights() -> None:
    run = simulate(seed=3, requests=12, concurrency=3, layout="averages")
    out = run_join(run)
    shared = out[(out["matched"] == "shared").to_numpy(bool)]
    assert len(shared) > 50
    assert all("shared" in f for f in shared["flags"])
    assert not trusted(shared).any()
    # the shares of a step add up to what it committed, and its weights to one step
    sums = out.groupby("time_us")[["tokens", "weight"]].sum()
    assert np.allclose(sums["weight"], 1.0)
    true = run.truth_steps.groupby("time_us")["tokens"].sum()
    assert np.allclose(sums.loc[true.index, "tokens"], true)
    assert score(run, out)[0][(out["batch_size"] == 1).to_numpy(bool) & trusted(out)].all()


def test_a_build_without_the_bonus_is_found_by_reconciling() -> None:
    run = simulate(seed=3, requests=20, concurrency=2, commit_includes_bonus=False)
    f = run.frames
    with pytest.warns(DDTreeWarning, match="leave the bonus token out"):
        out = join_requests(f["steps"], run.requests, f["prefill"])
    assert score(run, out)[0].all()


def test_requests_with_the_same_id_are_told_apart_by_time() -> None:
    works = (Work(100, 60, at=2.0, request_id="same"), Work(900, 70, at=20.0, request_id="same"))
    run = simulate(seed=3, workload=works)
    out = run_join(run)
    assert sorted(out.loc[out["request_id"] == "same", "prompt_len"].unique()) == [100, 900]
    assert score(run, out)[0].all()


def test_a_request_that_began_before_or_ended_after_the_window_is_flagged() -> None:
    run = simulate(seed=3, workload=(Work(100, 300, at=2.0), Work(100, 200, at=30.0), Work(100, 300, at=60.0)), warmup=False)
    true = run.truth_steps
    first, last = (true["request_id"] == rid for rid in (true["request_id"].iloc[0], true["request_id"].iloc[-1]))
    steps = run.steps.iloc[int(first.sum()) // 2 : len(run.steps) - int(last.sum()) // 2]
    out = quiet(steps, run.requests)
    middle = out["request_id"] == true["request_id"][~first & ~last].iloc[0]
    assert trusted(out[middle]).all()
    assert not trusted(out[~middle]).any()
    assert flagged(out[~middle]).all()


def test_steps_of_nobody_are_kept_with_no_request() -> None:
    run = simulate(seed=3, requests=6)
    out = quiet(run.steps, run.requests.iloc[:0])
    assert len(out) == len(run.steps)
    assert (out["matched"] == "none").all()


@pytest.mark.parametrize("requests", [0, 3])
def test_no_steps_at_all(requests: int) -> None:
    run = simulate(seed=3, requests=3)
    out = quiet(run.steps.iloc[:0], run.requests.iloc[:requests])
    assert len(out) == 0
    assert list(out.columns) == [f.name for f in arrow_schema(RequestStep)]


def test_hand_made_frames_of_plain_python() -> None:
    steps = pd.DataFrame({"time": [at(1), at(1.1)], "batch_size": [1, 1], "commit_lens": [[2], [3]], "accepted_drafts": [[1], [2]]})
    requests = pd.DataFrame(
        {
            "request_id": ["a"],
            "received": [at(0.5)],
            "first_token": [at(0.9)],
            "finished": [at(1.2)],
            "prompt_tokens": [5],
            "completion_tokens": [6],
            "verify_steps": [2],
            "accepted_drafts": [3],
        }
    )
    out = quiet(steps, requests)
    assert out["context_len"].tolist() == [5, 7]
    assert trusted(out).all()


def test_columns_that_cannot_be_done_without() -> None:
    with pytest.raises(JoinError, match="no column time"):
        join_requests(pd.DataFrame({"batch_size": [1]}), pd.DataFrame())
    with pytest.raises(JoinError, match="read them with read_requests"):
        join_requests(pd.DataFrame({"time": [at(0)]}), pd.DataFrame({"id": ["a"]}))


def test_duplicates_and_impossible_requests_are_left_out_with_a_count() -> None:
    run = simulate(seed=3, requests=4)
    odd = requests_frame(
        Request(request_id="z", received=at(0), finished=at(-1), flags=("end_before_start",)),
        Request(request_id="y", flags=("no_start", "no_end")),
    )
    with pytest.warns(DDTreeWarning, match=r"2 requests are not joined \(1 end_before_start, 1 no_start\)"):
        out = join_requests(run.steps, pd.concat([run.requests, odd], ignore_index=True))
    assert out.attrs["join"]["requests_left_out"] == {"end_before_start": 1, "no_start": 1}


# -- context from Decode batch lines -------------------------------------------------------------------------------------------------


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_decode_lines_that_do_not_move_are_no_context() -> None:
    # sample 10: five lines of 20800 tokens with 5 running; sample 37: the 0 with one running
    good, zero, constant, _ = usable(ints(20800, 20800, 20800, 20800, 20800), ints(5, 5, 5, 5, 5))
    assert (good.sum(), zero, constant) == (0, 0, 5)
    good, zero, constant, _ = usable(ints(64, 104, 264, 0, 63), ints(1, 1, 1, 1, 1))
    assert (good.tolist(), zero, constant) == ([True, True, True, False, True], 1, 0)


def test_a_number_that_stays_when_the_batch_changes_is_no_context() -> None:
    good, _, constant, _ = usable(ints(8192, 8192, 8192, 8192, 0, 8192), ints(2, 2, 3, 2, 2, 1))
    assert (good.sum(), constant) == (0, 5)


def test_the_line_of_a_last_step_is_no_context() -> None:
    # two run; b ends with the third step: its line counts 2 running and only what a holds
    sizes, commits = (2, 2, 2, 1, 1), ((3, 3), (3, 3), (3, 3), (3,), (3,))
    steps = steps_frame(
        *(
            TreeStep(time=at(1 + i / 10), batch_size=n, commit_lens=c, steps=1, stream="s")
            for i, (n, c) in enumerate(zip(sizes, commits, strict=True))
        )
    )
    told = ((2, 1006), (2, 1012), (2, 109), (1, 112), (1, 115))
    decode = tables.to_pandas(
        tables.from_records(
            [DecodeBatch(time=at(1 + i / 10 + 1 / 64), running=r, tokens=t, stream="s") for i, (r, t) in enumerate(told)], DecodeBatch
        )
    )
    out = quiet(steps, requests_frame(), decode=decode)
    # before the steps: 1006 - 6, 1012 - 6 and, carried on, 1012 of two; then 112 - 3; the last may be a last step
    assert out["context_len"].fillna(-1).tolist() == [500, 500, 503, 503, 506, 506, 109, 112]
    assert out.attrs["join"]["decode_lines"]["somebody_left"] == 2


def test_context_from_decode_lines_of_capture_a_is_near_the_truth() -> None:
    log, truth = capture("A"), truth_steps("A")
    out = quiet(log.steps, requests_frame(), log.prefill, decode=log.decode, events=log.events)
    when = np.array([t["time_ns"] // 1000 for t in truth])
    at_step = np.searchsorted(when, out["time_us"].to_numpy(np.int64), side="right") - 1
    mean = np.array([np.mean(truth[k]["seq_lens"]) for k in at_step])
    known = out["context_len"].notna().to_numpy(bool)
    off = out["context_len"].to_numpy(np.float64, na_value=np.nan)[known] - mean[known]
    # 17 to 23 slots a request are held ahead on that server
    assert 15 <= off.min() <= off.max() <= 25
    assert known.mean() > 0.95


def test_decode_lines_of_large_pages_are_no_context_where_the_page_is_too_large() -> None:
    good, _, _, rounded = usable(ints(256, 512, 1024, 20480), ints(1, 1, 1, 1))
    assert rounded == 3  # pages of 256: more than 2 % of 256, 512 and 1024, less than 2 % of 20480
    assert good.tolist() == [False, False, False, True]


def test_context_from_decode_lines_is_marked_and_near() -> None:
    run = simulate(seed=3, workload=(Work(2000, 600, at=2.0),), decode_log_interval=5, reserve=0, warmup=False)
    f = run.frames
    with pytest.warns(DDTreeWarning, match="is estimated from Decode batch lines"):
        out = join_requests(f["steps"], run.requests.iloc[:0], f["prefill"], decode=f["decode"])
    known = out["context_len"].notna()
    assert known.mean() > 0.9
    assert (out.loc[known, "context_from"] == "decode_line").all()
    true = run.truth_steps["context_len"].to_numpy()
    assert np.abs(out.loc[known, "context_len"].to_numpy(np.int64) - true[known.to_numpy(bool)]).max() <= 1
    assert "17 to 23" in out.attrs["join"]["decode_lines"]["bias"]


def test_decode_lines_of_another_batch_size_say_nothing() -> None:
    steps = steps_frame(TreeStep(time=at(1), batch_size=2, commit_lens=(1, 1), accepted_drafts=(0, 0), steps=1))
    decode = tables.to_pandas(tables.from_records([DecodeBatch(time=at(1.01), running=3, tokens=900)], DecodeBatch))
    assert quiet(steps, requests_frame(), decode=decode)["context_len"].isna().all()


# -- large logs ---------------------------------------------------------------------------------------------------------------------


def test_part_by_part_gives_the_same_rows() -> None:
    run = simulate(seed=8, requests=30, concurrency=4)
    f = run.frames
    whole = tables.from_pandas(run_join(run), RequestStep)
    steps = tables.from_pandas(f["steps"], TreeStep)
    summary: dict[str, Any] = {}
    parts = list(
        join_batches(lambda: iter(steps.to_batches(max_chunksize=97)), run.requests, f["prefill"], events=f.get("events"), summary=summary)
    )
    assert len(parts) > 3
    assert pa.Table.from_batches(parts).select(whole.column_names).equals(whole)
    assert summary["reconciled_share"] == 1.0


def test_the_rows_have_exactly_the_declared_schema() -> None:
    run = simulate(seed=8, requests=5)
    assert tables.from_pandas(run_join(run), RequestStep).schema.equals(arrow_schema(RequestStep))


def test_the_input_frames_are_not_changed() -> None:
    run = simulate(seed=8, requests=5, commit_includes_bonus=False)
    before, asked = run.steps.copy(deep=True), run.requests.copy(deep=True)
    run_join(run)
    pd.testing.assert_frame_equal(run.steps, before)
    pd.testing.assert_frame_equal(run.requests, asked)
