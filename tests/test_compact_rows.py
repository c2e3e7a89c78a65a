"""Compact rows of a join: less memory, the same numbers."""

from __future__ import annotations

import functools
import warnings

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

import ddtree_metrics as ddt
from ddtree_metrics import tables
from ddtree_metrics.errors import DDTreeWarning
from ddtree_metrics.join import compact_rows
from ddtree_metrics.join.compact import LEFT_OUT
from ddtree_metrics.records import TABLES
from tests.simulator import Settings, simulate


@functools.cache
def read(kind: str) -> ddt.Log:
    """Three requests at a time; of ``kind`` "steps" with DDTree lines, of "decode" with one stock line a step and no other."""
    run = simulate(Settings(seed=5, requests=16, concurrency=3, decode_log_interval=1 if kind == "decode" else 40))
    frames = {name: run.frames[name] for name in ("steps", "decode", "prefill", "servers", "events", "requests")}
    if kind == "decode":
        del frames["steps"]
    return ddt.Log({name: tables.from_pandas(frame, TABLES[name]) for name, frame in frames.items()})


def both(kind: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    log = read(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DDTreeWarning)
        return (log.request_steps, log.lean_request_steps) if kind == "steps" else (log.decode_request_steps, log.lean_decode_request_steps)


@pytest.mark.parametrize("kind", ["steps", "decode"])
def test_lean_rows_give_the_numbers_of_the_whole_rows(kind: str) -> None:
    whole, lean = both(kind)
    assert len(whole) > 100
    assert_frame_equal(ddt.by_context(whole), ddt.by_context(lean))
    assert_frame_equal(ddt.fit_step_time(whole).coefficients, ddt.fit_step_time(lean).coefficients)
    assert_frame_equal(ddt.acceptance(whole).survival, ddt.acceptance(lean).survival)
    assert_frame_equal(
        ddt.step_times(whole)[["step_time_ms", "step_time_from", "step_why"]],
        ddt.step_times(lean)[["step_time_ms", "step_time_from", "step_why"]],
    )


def test_lean_rows_keep_every_value_of_the_columns_they_have() -> None:
    whole, lean = both("steps")
    assert set(lean.columns) == set(whole.columns) - set(LEFT_OUT)
    for name in set(lean.columns) - {"where"}:
        assert [None if pd.isna(x) else x for x in lean[name]] == [None if pd.isna(x) else x for x in whole[name]], name
    # a place is a number, the same for the rows of one line and for no others
    assert (pd.factorize(whole["where"])[0] == pd.factorize(lean["where"])[0]).all()
    assert lean.attrs["join"] == whole.attrs["join"]


def test_lean_rows_take_less_than_half_of_the_memory() -> None:
    whole, lean = both("steps")
    assert lean.memory_usage(deep=True).sum() < 0.5 * whole.memory_usage(deep=True).sum()


def test_lean_rows_of_an_exported_table_are_those_of_the_join() -> None:
    whole, lean = both("steps")
    assert_frame_equal(compact_rows(tables.from_pandas(whole, TABLES["request_steps"])), lean)


def test_lean_rows_of_an_empty_log_have_the_same_columns() -> None:
    _, lean = both("steps")
    empty = ddt.Log({}).lean_request_steps
    assert not len(empty)
    assert list(empty.columns) == list(lean.columns)


def test_the_join_of_stock_lines_is_made_once_for_diagnosis_and_report() -> None:
    run = simulate(Settings(seed=5, requests=16, concurrency=3, decode_log_interval=1))
    frames = {name: run.frames[name] for name in ("decode", "prefill", "servers", "events", "requests")}
    log = ddt.Log({name: tables.from_pandas(frame, TABLES[name]) for name, frame in frames.items()})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ddt.render_report(log, ddt.diagnose(log))
    words = [str(w.message) for w in said]
    assert len(words) == len(set(words))


def test_steps_without_lists_are_shared_by_time_where_the_batch_changes_between_arrivals() -> None:
    # clients come and go all the time, so that a batch can shrink a step before or after the time at which a request is over
    run = simulate(Settings(seed=1, requests=150, concurrency=4, think_s=3.0, output=(100, 900), decode_log_interval=1, lost_share=0.01))
    frames = {name: run.frames[name] for name in ("decode", "prefill", "servers", "events", "requests")}
    log = ddt.Log({name: tables.from_pandas(frame, TABLES[name]) for name, frame in frames.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DDTreeWarning)
        rows = log.decode_request_steps
    # a request is in a step once
    known = rows[rows["request_id"].notna()]
    assert len(known) > 1000
    assert not known.duplicated(["stream", "time_us", "request_id"]).any()
