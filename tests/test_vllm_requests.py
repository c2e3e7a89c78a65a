"""What a client knows of vLLM's requests, and the log does not: the context of windows, and the drafts of each request."""

from __future__ import annotations

import functools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ddtree_metrics as ddt
from ddtree_metrics import tables
from ddtree_metrics.diagnosis.text import SCREEN, format_diagnosis
from ddtree_metrics.errors import DDTreeWarning
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.engine_windows import engine_windows
from ddtree_metrics.steps.window_contexts import contexts_of_windows
from tests.captures import FIXTURES, journal_export, unpacked

F = FIXTURES / "real" / "F"


@functools.cache
def steps() -> pd.DataFrame:
    """The engine's own account of every step: when it ended, and the contexts of the requests that decoded in it."""
    made = []
    for line in unpacked(F / "steps.jsonl.zst").decode().splitlines():
        step = json.loads(line)
        decoding = [i for i, tokens in enumerate(step["ctx_phase"]) if not tokens]
        made += [(step["run"], step["time_ns"] / 1e3, step["rids"][i], step["context"][i]) for i in decoding]
    return pd.DataFrame(made, columns=["run", "at", "request", "context"])


@functools.cache
def requests() -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DDTreeWarning)  # one request was broken off
        return ddt.read_requests(F / "requests.jsonl.zst")


@functools.cache
def log() -> ddt.Log:
    return ddt.read_text(journal_export("F")).with_requests(requests())


def test_steps_drafts_and_acceptances_of_each_answer_are_those_of_the_engine() -> None:
    true = steps().groupby("request").size()
    told = requests()[requests()["accepted_drafts"].notna()].set_index("request_id")
    assert len(told) == 96
    error = told["verify_steps"] - true.reindex(told.index)
    sure = pd.Series([flags is pd.NA or flags is None or "tail_unknown" not in flags for flags in told["flags"]], index=told.index)
    assert (error[sure] == 0).all()
    assert sure.sum() == 64  # with a draft model every step has a draft
    # n-gram drafts: up to 5 tokens of the last step may be past the end
    assert error[~sure].between(-5, 0).all()
    with_draft = [json.loads(line).get("speculative_decoding") for line in unpacked(F / "requests.jsonl.zst").decode().splitlines()]
    assert told["proposed_drafts"].sum() == sum(x["num_draft_tokens"] for x in with_draft if x)


def test_an_answer_that_has_its_metrics_inside_is_read_as_well(tmp_path: Path) -> None:
    inside = {"num_spec_steps": 6, "num_accepted_draft_tokens": 12, "num_draft_tokens": 24, "acceptance_histogram": [1, 2, 1, 0, 2]}
    answer: dict[str, Any] = {"id": "cmpl-1", "created": 1796027447, "usage": {"prompt_tokens": 32, "completion_tokens": 16}}
    answer["metrics"] = {"speculative_decoding": inside}
    (tmp_path / "answers.jsonl").write_text(json.dumps(answer) + "\n")
    with pytest.warns(DDTreeWarning, match="no end"):
        row = ddt.read_requests(tmp_path / "answers.jsonl").iloc[0]
    # 16 = 1 + 6 + 12 - 3: the last step was cut by 3, so 16 - 1 - 12 = 3 is too few, and the 6 that had a draft are all
    assert (row["verify_steps"], row["accepted_drafts"], row["proposed_drafts"]) == (6, 12, 24)
    assert list(row["accepted_histogram"]) == [1, 2, 1, 0, 2]


def compared() -> pd.DataFrame:
    """Set the context of each window beside the mean of the engine's steps in it."""
    decode = log().decode
    lines = decode[decode["prompt_throughput"].notna()].reset_index(drop=True)
    length = dict(zip(cols.time_us(lines), engine_windows(lines, log().servers)["window_ms"], strict=True))
    basis, made = log().basis, []
    for i in range(len(basis)):
        end = int(basis.time_us[i])
        within = steps()[(steps()["at"] > end - 1000 * length[end]) & (steps()["at"] <= end)]
        made.append((int(basis.run[i]), np.isfinite(basis.step_ms[i]), basis.context[i], within["context"].mean()))
    return pd.DataFrame(made, columns=["run", "steady", "ours", "true"])


def test_the_context_of_steady_windows_is_that_of_the_requests_that_ran_in_them() -> None:
    w = compared()
    assert w["ours"].notna().sum() >= 40
    steady = w[w["steady"]]
    assert steady["ours"].notna().all()
    error = (steady["ours"] / steady["true"] - 1).abs()
    assert error[steady["run"] < 3].max() < 0.05  # a draft model; a window holds no whole number of steps
    assert error[steady["run"] == 3].max() < 0.2  # n-gram drafts: more steps where none is found, and the context stands still
    assert error.median() < 0.02


def test_windows_in_which_several_requests_came_and_went_have_no_context() -> None:
    end, length, none = np.array([10e6]), np.array([2e6]), np.array([False])
    frame = pd.DataFrame({"prompt_tokens": [100, 900], "completion_tokens": [50, 50]})
    for name, at in (("received", (8.0, 8.5)), ("first_token", (8.1, 8.6)), ("finished", (11.0, 11.0))):
        frame[name] = pd.to_datetime([x * 1e6 for x in at], unit="us", utc=True)
    one, two = np.array([1.0]), np.array([2.0])
    tokens = np.array([50.0])
    assert np.isnan(contexts_of_windows(end, length, two, tokens, none, frame)).all()  # the mix is not known
    assert np.isnan(contexts_of_windows(end, length, one, tokens, none, frame)).all()  # nor whose it is
    # one request from 8.1 s on: from 8.1 to 10 s half of 50 tokens came out in the mean at half of them; 50 until 10 s, none later
    alone = contexts_of_windows(end, length, one, tokens, none, frame[:1])
    assert alone == pytest.approx([100 + 25], abs=1)


def test_the_clock_of_another_machine_gives_no_context() -> None:
    later = requests().copy()
    for name in ("received", "first_token", "finished"):
        later[name] = later[name] + pd.Timedelta(minutes=7)
    shifted = ddt.read_text(journal_export("F")).with_requests(later)
    assert np.isnan(shifted.basis.context).all()
    known = ddt.read_text(journal_export("F")).with_requests(later, clock_offset_s=420.0)
    assert np.isfinite(known.basis.context).sum() == np.isfinite(log().basis.context).sum()


def test_two_services_and_one_client_give_no_context() -> None:
    read = ddt.read_text(journal_export("F"))
    decode = read.decode.copy()
    decode.loc[decode.index[:10], "unit"] = "another.service"
    both = ddt.Log({"decode": tables.from_pandas(decode, ddt.DecodeBatch)})
    assert np.isnan(both.with_requests(requests()).basis.context).all()


def test_restarts_are_shown_as_logged_where_the_context_is_not_known() -> None:
    text = format_diagnosis(ddt.diagnose(ddt.read_text(journal_export("F"))), 100, shell=True)
    assert len(text.splitlines()) <= SCREEN
    # steady windows of runs 2 and 3: 26.9 and 85.0 ms, 2.01 and 3.69 tokens a step (windows.jsonl)
    said = " ".join(text.split())
    assert "restart 08:33:30 74.8 → 43.4 tok/s a request (-42 %) as logged: step time × 3.16, tokens/step × 1.83" in said
    assert "Next: give the client's requests (--requests FILE)" in text
