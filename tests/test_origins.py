"""Origins: rows are named by the place they come from, however many places there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree_metrics.records import TABLES
from ddtree_metrics.schema import arrow_schema
from ddtree_metrics.steps.stream_ids import Origin, Origins, file_of, in_order

_TEXT = st.sampled_from([None, "", "a", "b", "gpu1"])
_ROWS = st.lists(
    st.fixed_dictionaries(
        {"host": _TEXT, "boot_id": _TEXT, "unit": _TEXT, "pid": st.sampled_from([None, 0, 7]), "dp_rank": st.sampled_from([None, 0, 1])}
    ),
    min_size=1,
    max_size=40,
)


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(TABLES["steps"]))


def _named(row: dict[str, Any]) -> str:
    return "|".join("" if row[name] is None else str(row[name]) for name in ("host", "boot_id", "unit", "pid", "dp_rank"))


def _all(origin: Origin) -> str:
    return "|".join((origin.host, origin.boot_id, origin.unit, origin.pid, origin.dp_rank))


@given(_ROWS)
def test_each_row_has_the_name_of_its_own_place(rows: list[dict[str, Any]]) -> None:
    labels = Origins(_batch(rows)).labels(_all)

    assert [labels.texts[code] for code in labels.codes] == [_named(row) for row in rows]
    assert labels.column().to_pylist() == [_named(row) for row in rows]


@given(_ROWS)
def test_names_come_in_the_order_of_the_rows_and_once_each(rows: list[dict[str, Any]]) -> None:
    hosts = [row["host"] or "" for row in rows]
    labels = Origins(_batch(rows)).labels(lambda o: o.host)

    assert labels.texts == list(dict.fromkeys(hosts))
    for code, text in enumerate(labels.texts):
        assert labels.rows(code).tolist() == [i for i, host in enumerate(hosts) if host == text]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=50), st.sampled_from([6, 1_000_000]))
def test_codes_are_counted_from_the_first_row_on(codes: list[int], size: int) -> None:
    # the two sizes take the two ways: a table of all codes, and a sort
    made, old = in_order(np.array(codes, dtype=np.int64), size)

    assert old == list(dict.fromkeys(codes))
    assert [old[code] for code in made] == codes


@pytest.mark.parametrize(
    ("place", "file"),
    [
        ("run.log:118", "run.log"),
        ("run.log.1:2", "run.log"),
        ("run.log.2.gz:2", "run.log"),
        ("run.log-20260505:2", "run.log"),
        ("run.log.2026-05-05.zst:2", "run.log"),  # the date with hyphens was taken for another server's file
        ("0.log.20260129-005248.gz:1", "0.log"),
        ("server.8000:1", "server.8000"),  # a port
        ("journal:s=1;i=2", ""),
    ],
)
def test_a_file_of_a_rotated_set_is_the_file_of_the_set(place: str, file: str) -> None:
    assert file_of(place) == file
