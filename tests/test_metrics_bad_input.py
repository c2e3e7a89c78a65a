"""Every metric on input that no metric can do anything with: a result that says so, no traceback, no nan in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddtree_metrics import metrics
from ddtree_metrics.records import DecodeBatch, Request, RequestStep, TreeStep
from ddtree_metrics.schema import arrow_schema
from ddtree_metrics.tables import to_pandas

TEN = pd.Timestamp("2026-02-01T10:00:00Z")


def table(record: type, rows: int, **values: Any) -> pd.DataFrame:
    """Return a frame of a record class as a log would have it, null but for what is given."""
    import pyarrow as pa

    schema = arrow_schema(record)
    made = to_pandas(pa.Table.from_arrays([pa.nulls(rows, f.type) for f in schema], schema=schema))
    return made.assign(**values)


REQUEST_STEPS: dict[str, pd.DataFrame] = {
    "no columns": pd.DataFrame(),
    "no rows": table(RequestStep, 0),
    "all null": table(RequestStep, 5),
    "one step": table(RequestStep, 1, context_len=[500], tokens=[4.0], drafts=[3.0], step_us=[30_000], request_id=["a"], batch_size=[1]),
    "one request": pd.DataFrame(
        {"request_id": ["a"] * 9, "context_len": range(9), "tokens": 4, "drafts": 3, "step_us": 30_000, "budget": 16}
    ),
    "constant context": pd.DataFrame({"request_id": list("abc") * 5, "context_len": 700, "tokens": 4, "drafts": 3, "step_us": 30_000}),
    "two rows": pd.DataFrame({"request_id": ["a", "b"], "context_len": [1, 2], "tokens": [1, 1], "step_us": [1, 1]}),
    "negative times": pd.DataFrame({"request_id": list("ab") * 4, "context_len": range(8), "tokens": 4, "step_us": -5_000}),
    "zero times": pd.DataFrame(
        {"request_id": list("ab") * 4, "context_len": range(8), "tokens": 0, "drafts": 0, "step_us": 0, "budget": 0}
    ),
    "infinite": pd.DataFrame(
        {
            "request_id": list("ab") * 4,
            "context_len": [np.inf, *range(7)],
            "tokens": np.inf,
            "drafts": -np.inf,
            "step_us": np.inf,
            "budget": np.inf,
        }
    ),
    "text": pd.DataFrame(
        {"request_id": ["a", None], "context_len": ["x", "y"], "tokens": ["?", None], "step_us": ["", "z"], "budget": ["a", "b"]}
    ),
    "huge": pd.DataFrame(
        {"request_id": list("ab") * 4, "context_len": [2**50] * 8, "tokens": 1e18, "drafts": 9, "step_us": 1e15, "budget": 16}
    ),
    "negative context": pd.DataFrame({"request_id": list("ab") * 4, "context_len": range(-8, 0), "tokens": 4, "step_us": 30_000}),
}

STEPS: dict[str, pd.DataFrame] = {
    "no columns": pd.DataFrame(),
    "no rows": table(TreeStep, 0),
    "all null": table(TreeStep, 4),
    "one step": table(TreeStep, 1, time=[TEN], batch_size=[1], commit_lens=[[4]], accepted_drafts=[[3]]),
    "lists longer than the batch": pd.DataFrame(
        {"time": [TEN, TEN + pd.Timedelta("40ms")], "batch_size": [1, 1], "commit_lens": [[4, 5, 6], [1]], "accepted_drafts": [[3], [0, 1]]}
    ),
    "empty lists": pd.DataFrame(
        {"batch_size": [0, 0], "commit_lens": [[], []], "accepted_drafts": [[], None], "nodes": [[], []], "budget": 16}
    ),
    "scalars for lists": pd.DataFrame({"batch_size": [1], "commit_lens": [4], "accepted_drafts": [3], "nodes": [17], "budget": [16]}),
    "negative lists": pd.DataFrame({"batch_size": [1], "commit_lens": [[-4]], "accepted_drafts": [[-3]], "budget": [-1], "nodes": [[-2]]}),
    "backwards": pd.DataFrame({"time": [TEN, TEN - pd.Timedelta("1h")], "monotonic_us": [5, 1], "commit_lens": [[4], [4]]}),
    "equal stamps": pd.DataFrame({"time": [TEN] * 5, "commit_lens": [[4]] * 5}),
    "text": pd.DataFrame({"time": ["yesterday", None], "batch_size": ["a", "b"], "commit_lens": ["x", "y"]}),
    "step_ms odd": pd.DataFrame({"step_ms": [np.inf, -np.inf, 0.0, -1.0, np.nan]}),
}

DECODE: dict[str, pd.DataFrame] = {
    "no columns": pd.DataFrame(),
    "no rows": table(DecodeBatch, 0),
    "all null": table(DecodeBatch, 3),
    "one line": table(DecodeBatch, 1, time=[TEN], running=[1], accept_len=[2.0], gen_throughput=[80.0]),
    "zero throughput": pd.DataFrame({"running": 1, "accept_len": 2.0, "gen_throughput": [0.0, 0.0, 0.0], "tokens": 0}),
    "infinite throughput": pd.DataFrame({"running": 1, "accept_len": 2.0, "gen_throughput": [np.inf, -np.inf, np.nan], "tokens": 5}),
    "nothing runs": pd.DataFrame(
        {"running": 0, "accept_len": [0.0, 1.0], "accept_rate": [0.0, 2.5], "gen_throughput": 50.0, "tokens": [9, 3]}
    ),
}

REQUESTS: dict[str, pd.DataFrame] = {
    "no columns": pd.DataFrame(),
    "no rows": table(Request, 0),
    "all null": table(Request, 3),
    "zero": pd.DataFrame({"completion_tokens": [0], "verify_steps": [0], "accepted_drafts": [0], "accepted_histogram": [[]]}),
    "negative": pd.DataFrame(
        {"completion_tokens": [-1], "verify_steps": [-2], "accepted_drafts": [-3], "accepted_histogram": [[-1, None]]}
    ),
}


def sentences(value: Any) -> list[str]:
    """Collect every text of a result that a reader would see."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, pd.DataFrame):
        own = [s for s in value.attrs.values() if isinstance(s, str)]
        for name in ("reason", "detail", "note", "step_why", "rate_why", "counters_why", "bin"):
            if name in value.columns:
                own += [s for s in value[name] if isinstance(s, str)]
        return own
    if isinstance(value, dict):
        return [s for v in value.values() for s in sentences(v)]
    if isinstance(value, (tuple, list)):
        return [s for v in value for s in sentences(v)]
    if is_dataclass(value):
        found = [s for f in fields(value) for s in sentences(getattr(value, f.name))]
        return found + ([value.sentence] if isinstance(value, metrics.Attribution) else [])
    return []


def sound(value: Any) -> None:
    for text in sentences(value):
        words = text.replace("(", " ").replace(",", " ").replace("%", " ").split()
        assert not {"nan", "inf", "-inf", "<NA>", "None"} & set(words), text


OF_REQUEST_STEPS: list[Callable[[pd.DataFrame], Any]] = [
    metrics.by_context,
    lambda f: metrics.by_context(f, [0, 100, 1000]),
    lambda f: metrics.by_context(f, bins=3),
    lambda f: metrics.by_context(f, by="prompt_len"),
    metrics.fit_step_time,
    lambda f: metrics.fit_step_time(f, nodes=True).predict([0, 1000]),
    lambda f: metrics.fit_step_time(f).share_at(1000),
    metrics.acceptance,
    metrics.by_budget,
    metrics.find_window_knee,
    lambda f: metrics.find_window_knee(f, 4),
    lambda f: metrics.attribute_slowdown(f, f),
    lambda f: metrics.attribute_slowdown(f.head(1), f.tail(3)),
    lambda f: metrics.attribute_slowdown(f, f, control=("context_len", "batch_size")),
    lambda f: metrics.attribute_slowdown(f, f, step_time="p50"),
    metrics.prompt_keys,
    metrics.step_times,
    lambda f: metrics.commit_convention(f, warn=False),
]
OF_STEPS: list[Callable[[pd.DataFrame], Any]] = [
    metrics.step_times,
    metrics.step_time_bounds,
    metrics.gaps,
    lambda f: metrics.commit_convention(f, warn=False),
    metrics.nodes_convention,
    metrics.neutral_columns,
    metrics.acceptance,
    lambda f: metrics.step_times(f, DECODE["one line"], table(TreeStep, 0)),
    lambda f: metrics.compare_step_times(f, DECODE["zero throughput"]),
]
OF_DECODE: list[Callable[[pd.DataFrame], Any]] = [
    metrics.decode_step_times,
    metrics.log_interval,
    metrics.steps_from_decode,
    lambda f: metrics.steps_from_decode(f, interval=1),
    lambda f: metrics.accept_rates(f, num_draft_tokens=4, num_steps=3),
    metrics.accept_rates,
    lambda f: metrics.compare_step_times(STEPS["one step"], f),
]
OF_REQUESTS: list[Callable[[pd.DataFrame], Any]] = [metrics.reconcile_counters, metrics.acceptance]


@pytest.mark.parametrize("case", REQUEST_STEPS)
def test_request_steps_of_any_kind_give_a_result(case: str) -> None:
    for call in OF_REQUEST_STEPS:
        sound(call(REQUEST_STEPS[case].copy()))


@pytest.mark.parametrize("case", STEPS)
def test_step_lines_of_any_kind_give_a_result(case: str) -> None:
    for call in OF_STEPS:
        sound(call(STEPS[case].copy()))


@pytest.mark.parametrize("case", DECODE)
def test_decode_lines_of_any_kind_give_a_result(case: str) -> None:
    for call in OF_DECODE:
        sound(call(DECODE[case].copy()))


@pytest.mark.parametrize("case", REQUESTS)
def test_requests_of_any_kind_give_a_result(case: str) -> None:
    for call in OF_REQUESTS:
        sound(call(REQUESTS[case].copy()))


@pytest.mark.parametrize("case", ["no columns", "no rows", "all null"])
def test_what_cannot_be_told_has_a_reason(case: str) -> None:
    frame = REQUEST_STEPS[case]
    assert metrics.by_context(frame).attrs["reason"]
    for made in (
        metrics.fit_step_time(frame),
        metrics.acceptance(frame),
        metrics.find_window_knee(frame),
        metrics.attribute_slowdown(frame, frame),
    ):
        assert made.reason


def test_a_single_bin_says_that_nothing_can_be_said_about_context() -> None:
    assert "one bin" in metrics.by_context(REQUEST_STEPS["constant context"]).attrs["reason"]


def test_lists_longer_than_the_batch_are_not_paired_with_others() -> None:
    assert metrics.commit_convention(STEPS["lists longer than the batch"], warn=False).counts == {}


def test_lists_longer_than_the_batch_are_no_tokens() -> None:
    steps = STEPS["lists longer than the batch"]
    assert metrics.neutral_columns(steps)["tokens"].isna().tolist() == [True, False]
    made = metrics.acceptance(steps.assign(accepted_drafts=[[3, 4, 5], [0]]))
    assert made.rows == 1
    assert any("longer or shorter than the batch" in note for note in made.notes)


def test_the_input_is_not_changed() -> None:
    for cases, calls in ((REQUEST_STEPS, OF_REQUEST_STEPS), (STEPS, OF_STEPS), (DECODE, OF_DECODE), (REQUESTS, OF_REQUESTS)):
        for frame in cases.values():
            before = frame.copy(deep=True)
            for call in calls:
                call(frame)
            pd.testing.assert_frame_equal(frame, before)
