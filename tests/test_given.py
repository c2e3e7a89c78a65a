"""What public functions may be given: a log, the frame they need, and a sentence for anything else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

import ddtree_metrics as ddt
from tests.captures import journal_export

OF_A_FRAME = (
    "accept_rates", "acceptance", "attribute_slowdown", "by_budget", "by_context", "by_request", "commit_convention", "compare_step_times",
    "decode_step_times", "find_window_knee", "fit_step_time", "gaps", "join_requests", "neutral_columns", "nodes_convention",
    "reconcile_counters", "requests_from_log", "step_time_bounds", "step_times", "steps_from_decode", "wall_time",
)  # fmt: skip
OF_A_LOG = ("diagnose", "render_report")
APART = {
    "accept_rate": "numbers of one line", "arrow_schema": "a record class", "check_sweep": "a measured sweep",
    "complement_requests": "two frames of requests", "export": "a source, and where to", "confounded": "and two names of columns",
    "context_histogram": "parts of a log",
    "implied_tokens": "a measured sweep", "iter_journal": "a source", "iter_text": "a source", "join_batches": "parts of a log",
    "load_dialect": "a file", "merge_histograms": "histograms", "open_dataset": "a lake",
    "read": "a source", "read_journal": "a source", "read_parquet": "a source",
    "read_requests": "a source", "read_text": "a source", "render_figure": "a figure", "run_rate": "a measured run",
    "save_figure": "a figure",
    "summarise_histogram": "a histogram", "two_point_rate": "measured runs", "weighted_mean_over_ranks": "two arrays",
}  # fmt: skip
"""Functions that take neither a log nor a frame of one, and what they take."""
PICTURES = tuple(name for name in ddt.__all__ if name.startswith("plot_"))


@pytest.fixture(scope="module")
def log() -> ddt.Log:
    return ddt.read(journal_export("A"))


def public(name: str) -> Callable[..., Any]:
    made: Callable[..., Any] = getattr(ddt, name)
    return made


def test_every_public_function_is_held_against_what_it_may_be_given() -> None:
    functions = {name for name in ddt.__all__ if inspect.isfunction(getattr(ddt, name))}
    assert functions == {*OF_A_FRAME, *OF_A_LOG, *APART, *PICTURES}


@pytest.mark.parametrize("name", [*OF_A_FRAME, *OF_A_LOG, *PICTURES])
@pytest.mark.filterwarnings("ignore::ddtree_metrics.DDTreeWarning")
def test_a_log_will_do(log: ddt.Log, name: str) -> None:
    if name == "attribute_slowdown":
        made = ddt.attribute_slowdown(log.between(until="15:19:17"), log.between("15:19:17"))
        assert made.tokens_ratio == pytest.approx(2.108 / 3.725, abs=0.005)  # tokens a step in the truth of the capture
    else:
        assert public(name)(log) is not None


@pytest.mark.parametrize("name", [n for n in (*OF_A_FRAME, *OF_A_LOG) if n != "attribute_slowdown"])  # it takes numbers of a report too
@pytest.mark.parametrize("given", [None, "run.log", 3])
def test_what_is_neither_is_refused_in_a_sentence(name: str, given: Any) -> None:
    with pytest.raises(ddt.MetricError, match=rf"^{name} takes a Log.*ddt\.read\(\.\.\.\)"):
        public(name)(given)


def test_a_log_gives_the_same_as_its_frames(log: ddt.Log) -> None:
    rows = log.basis.frame()
    pd.testing.assert_frame_equal(ddt.by_context(log), ddt.by_context(rows))
    own = ddt.step_times(log.steps, events=log.events, prefill=log.prefill, servers=log.servers)
    pd.testing.assert_frame_equal(ddt.step_times(log), own)
    pd.testing.assert_frame_equal(ddt.join_requests(log), log.request_steps)


def test_a_log_of_decode_lines_alone_is_taken_for_them(log: ddt.Log) -> None:
    alone = ddt.Log({name: log.table(name) for name in ("decode", "prefill", "events", "servers")}, log.coverage)
    pd.testing.assert_frame_equal(ddt.wall_time(alone), ddt.wall_time(log.decode, log.prefill, log.events))


@pytest.mark.parametrize("name", ["by_context", "fit_step_time", "by_request", "by_budget", "find_window_knee"])
def test_step_lines_are_refused_where_rows_of_requests_are_needed(log: ddt.Log, name: str) -> None:
    steps = log.steps.drop(columns="budget")
    with pytest.raises(ddt.MetricError, match=rf"{name} takes request-steps, and this frame has no column .*ddt.{name}\(log\)"):
        public(name)(steps)


@pytest.mark.parametrize("name", ["plot_step_time", "plot_tokens_per_step", "plot_speed", "plot_overview", "plot_budget"])
def test_a_picture_names_the_call_that_is_missing(log: ddt.Log, name: str) -> None:
    rows = log.basis.frame()
    call = "by_budget" if name == "plot_budget" else "by_context"
    with pytest.raises(ddt.MetricError, match=rf"{name} draws what {call} gives.*: ddt.{name}\(ddt.{call}\(rows\)\)"):
        public(name)(rows)


def test_a_picture_of_a_diagnosis_is_that_of_its_comparison(log: ddt.Log) -> None:
    found = ddt.diagnose(log)
    titles = {ddt.plot_attribution(given).get_title(loc="left") for given in (log, found, found.comparisons[0])}
    assert len(titles) == 1
    assert titles.pop().startswith("34.3 → 18.4 tok/s a request")  # the truth of the capture
