"""What a person meets who reads a log in Python: one door, short words, parts of a log, files back and forth."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ddtree_metrics as ddt
from ddtree_metrics.diagnosis import format_diagnosis
from ddtree_metrics.times import EPOCH
from tests.captures import FIXTURES, UNIT, journal_export, truth_steps

CAPTURE = journal_export("A")


@pytest.fixture(scope="module")
def log() -> ddt.Log:
    return ddt.read(CAPTURE)


# -- one door ----------------------------------------------------------------------------------------------------------------


def test_read_takes_a_journal_export_a_text_a_folder_and_what_was_written_from_it(log: ddt.Log, tmp_path: Path) -> None:
    text = FIXTURES / "failing" / "prefill-stalls.log"
    folder = tmp_path / "logs"
    folder.mkdir()
    shutil.copy(text, folder / "server.log")
    assert len(ddt.read(text).decode) == len(ddt.read(folder).decode) > 0
    assert len(ddt.read([folder / "server.log"]).decode) == len(ddt.read(str(folder / "*.log")).decode) > 0
    with CAPTURE.open("rb") as file:
        assert len(ddt.read(file).steps) == 545  # metrics lines, by the capture's README
    log.write(tmp_path / "all")
    assert len(ddt.read(tmp_path / "all").steps) == 545
    log.write(tmp_path / "steps.parquet")
    assert len(ddt.read(tmp_path / "steps.parquet").steps) == 545


def test_a_unit_is_only_named_by_its_keyword() -> None:
    with pytest.raises(ddt.SourceNotFound, match=rf"no file '{UNIT}'; a unit of the journal is read with unit='{UNIT}'"):
        ddt.read(UNIT)
    for name in ("A.journal", "logs/A", str(CAPTURE)):
        with pytest.raises(ddt.UsageError, match="is a file, not a unit: ddtree_metrics"):
            ddt.read_journal(name)


def test_a_window_goes_to_whatever_is_read(log: ddt.Log, tmp_path: Path) -> None:
    log.write(tmp_path / "all")
    since = "2026-11-29 15:19:17 Z"
    assert len(ddt.read(CAPTURE, since=since).steps) == len(ddt.read(tmp_path / "all", since=since).steps) == 242


# -- a part of a log ---------------------------------------------------------------------------------------------------------


def test_a_part_has_the_steps_of_its_window_and_their_context_as_in_the_whole(log: ddt.Log) -> None:
    """The second start's first step stands after 15:19:17, its server was started at 15:19:17."""
    part = log.between("15:19:17", "15:20:05")
    whole = log.request_steps
    inside = whole[(whole["time"] >= "2026-11-29 15:19:17Z") & (whole["time"] < "2026-11-29 15:20:05Z")]
    pd.testing.assert_frame_equal(part.request_steps.reset_index(drop=True), inside.reset_index(drop=True))
    assert part.steps["time"].min() >= pd.Timestamp("2026-11-29 15:19:17", tz="UTC")


def test_a_part_keeps_the_server_start_before_it_and_the_requests_that_ran_within_it(log: ddt.Log) -> None:
    part = log.between("2026-11-29 15:20:00", None)
    assert len(part.servers) == 1
    assert part.servers["args"].iloc[0] == log.servers["args"].iloc[-1]
    ended = log.requests[log.requests["finished"] >= "2026-11-29 15:20:00Z"]
    assert set(part.requests["request_id"]) == set(ended["request_id"])


def test_a_span_is_taken_from_the_end_of_the_log_not_from_now(log: ddt.Log) -> None:
    last = log.steps["time"].max()
    part = log.between("30s")
    assert 0 < len(part.steps) < 545
    assert part.steps["time"].min() >= last - pd.Timedelta("31s")


# -- files back and forth ----------------------------------------------------------------------------------------------------


def test_what_is_written_reads_back_as_it_was(log: ddt.Log, tmp_path: Path) -> None:
    back = ddt.read(log.write(tmp_path / "all"))
    for name in ddt.TABLES:
        assert back.table(name).equals(log.table(name)), name
    assert back.coverage.to_dict() == log.coverage.to_dict()


def test_a_file_that_is_there_is_kept_and_a_table_is_chosen_by_its_name(log: ddt.Log, tmp_path: Path) -> None:
    path = log.write(tmp_path / "x.csv", "requests")
    assert len(pd.read_csv(path)) == len(log.requests)
    with pytest.raises(ddt.OutputError, match="exists already"):
        log.write(path)
    log.write(path, force=True)
    with pytest.raises(ddt.SchemaError, match="no table 'step'"):
        log.write(tmp_path / "y.csv", "step")
    assert not (tmp_path / "y.csv").exists()


# -- one row a request -------------------------------------------------------------------------------------------------------


def test_a_request_has_its_speed_beside_its_context_and_batch() -> None:
    """Three steps of 4, 4, 1 tokens, 50, 70 and an unknown number of ms: 3 tokens a step at 60 ms is 50 tok/s."""
    rows = pd.DataFrame(
        {"request_id": ["a", "a", "b", "a", None], "tokens": [4, 4, 2, 1, 9], "step_time_ms": [50, 70, 40, None, 1],
         "context_len": [100, 104, 7, 108, 1], "prompt_len": [99, 99, 7, 99, 1], "batch_size": [1, 1, 2, 4, 1], "time_us": [3, 4, 1, 5, 9]}
    )  # fmt: skip
    made = ddt.by_request(rows)
    assert made["request_id"].tolist() == ["b", "a"]  # by the time of the first step
    a = made.iloc[1]
    assert (a["steps"], a["timed_steps"], a["tokens"], a["prompt_len"], a["context_len"], a["batch_size"]) == (3, 2, 9, 99, 108, 2.0)
    assert (a["step_time_ms"], a["tokens_per_step"], a["tok_per_s"]) == (60.0, 3.0, 50.0)
    assert a["time"] == pd.Timestamp(3, unit="us", tz="UTC")
    assert list(ddt.by_request(rows.iloc[:0]).columns) == list(made.columns)


def test_the_requests_of_a_capture_have_the_tokens_and_steps_that_its_engine_counted(log: ddt.Log) -> None:
    tokens: dict[str, int] = {}
    steps: dict[str, int] = {}
    for step in truth_steps("A"):
        for name, committed in zip(step["rids"], step["committed"], strict=True):
            tokens[name] = tokens.get(name, 0) + committed
            steps[name] = steps.get(name, 0) + 1
    made = log.requests_table.set_index("request_id")
    assert len(made) == 22
    assert made["tokens"].to_dict() == {name: tokens[name] for name in made.index}
    assert made["steps"].to_dict() == {name: steps[name] for name in made.index}


# -- short words -------------------------------------------------------------------------------------------------------------


def test_a_log_its_account_and_a_diagnosis_have_short_names(log: ddt.Log) -> None:
    found = ddt.diagnose(log)
    for held in (log, log.coverage, found):
        assert len(repr(held)) < 200
        assert "\n" not in repr(held)
    assert "545 steps" in str(log)
    assert str(found) == format_diagnosis(found)


def test_a_cell_shows_the_answer_and_what_was_read(log: ddt.Log) -> None:
    found = ddt.diagnose(log)
    shown = found._repr_html_()
    assert found.verdict.split()[0].upper() in shown
    assert shown.startswith("<pre")
    for held in (log, log.coverage):
        assert "<td>545</td>" in held._repr_html_()


def test_nothing_of_a_log_becomes_html_in_a_notebook() -> None:
    evil = "<script>alert(1)</script>"
    account = ddt.Coverage(
        source=evil,
        damaged=[evil],
        notes=[evil],
        parsed={evil: 1},
        first_us=0,
        last_us=(pd.Timestamp("2026-01-01", tz="UTC") - EPOCH) // pd.Timedelta("1us"),
    )
    assert "<script" not in account._repr_html_()
    assert "1970-01-01 00:00:00 to 2026-01-01 00:00:00 UTC" in account._repr_html_()


def test_dir_lists_public_names_only() -> None:
    assert set(dir(ddt)) == {*ddt.__all__, "__version__"}


# -- requests from a frame ---------------------------------------------------------------------------------------------------


def test_requests_are_read_from_a_frame_as_from_a_file(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"rid": ["a", "b"], "start_time": pd.to_datetime(["2026-01-01 10:00", "2026-01-01 10:01"], utc=True),
         "end_time": [pd.Timestamp("2026-01-01 10:00:30", tz="UTC"), pd.NaT], "input_tokens": [5, np.nan], "output_tokens": [7, 8]}
    )  # fmt: skip
    frame.to_parquet(tmp_path / "r.parquet")
    with pytest.warns(ddt.DDTreeWarning):
        made, told = ddt.read_requests(frame), ddt.read_requests(tmp_path / "r.parquet")
    pd.testing.assert_frame_equal(made.drop(columns="where"), told.drop(columns="where"))
    assert made["prompt_tokens"].tolist() == [5, pd.NA]
    assert made["where"].tolist() == ["frame:1", "frame:2"]
