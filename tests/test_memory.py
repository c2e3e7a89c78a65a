"""What a long log holds: bounded by bytes a row, not by time."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pandas.testing import assert_frame_equal

import ddtree_metrics as ddt
from ddtree_metrics import tables
from ddtree_metrics.errors import DDTreeWarning
from ddtree_metrics.records import TABLES, TreeStep
from ddtree_metrics.report.facts import gather
from ddtree_metrics.tables.packed import Packed, pack
from tests.simulator import Settings, simulate

TABLES_READ = ("steps", "decode", "prefill", "servers", "events", "requests")


@pytest.fixture(scope="module")
def read() -> dict[str, pa.Table]:
    run = simulate(Settings(seed=5, requests=40, concurrency=3))
    return {name: tables.from_pandas(run.frames[name], TABLES[name]) for name in TABLES_READ}


def packed(read: dict[str, pa.Table]) -> ddt.Log:
    """Make the log that reading gives if its table of steps is long."""
    log = ddt.Log({name: table for name, table in read.items() if name != "steps"})
    log._packed["steps"] = Packed(TreeStep)
    log.stored |= {"steps"}
    pack(read["steps"].to_batches(max_chunksize=500), log._packed["steps"])
    return log


def test_a_packed_table_comes_back_exactly_and_so_do_some_columns(read: dict[str, pa.Table]) -> None:
    log = packed(read)
    assert log._packed["steps"].nbytes < 0.5 * read["steps"].nbytes
    assert log._rows("steps", ("where", "tokens")).column("where").to_pylist() == ddt.Log(read).steps["where"].tolist()
    assert log.has_rows("steps")
    table = log.table("steps")
    assert table.equals(read["steps"])
    assert table.schema.equals(read["steps"].schema, check_metadata=True)


@pytest.mark.filterwarnings("ignore::ddtree_metrics.errors.DDTreeWarning")
def test_the_basis_holds_at_most_170_bytes_a_row_and_no_text_of_rows(read: dict[str, pa.Table]) -> None:
    basis = packed(read).basis
    held = 0
    arrays = [getattr(basis, name) for name in basis.__slots__] + list(basis.more.values())
    for values in arrays:
        if isinstance(values, np.ndarray) and len(values) == len(basis):
            assert values.dtype != object
            held += values.nbytes if any(values.strides) else values.itemsize
    assert len(basis) > 1000
    assert held < 170 * len(basis)


@pytest.mark.filterwarnings("ignore::ddtree_metrics.errors.DDTreeWarning")
def test_diagnosis_and_report_unpack_neither_the_steps_nor_keep_the_rows_of_the_join(read: dict[str, pa.Table]) -> None:
    log = packed(read)
    ddt.render_report(log, ddt.diagnose(log))
    assert "steps" in log._packed
    assert not {"steps", "request_steps"} & (set(log._frames) | set(log._tables))
    assert not {"lean_request_steps", "request_steps"} & set(vars(log))


@pytest.mark.filterwarnings("ignore::ddtree_metrics.errors.DDTreeWarning")
def test_the_rows_of_a_report_are_those_of_the_basis_without_a_copy(read: dict[str, pa.Table]) -> None:
    log = packed(read)
    rows = gather(log, ddt.diagnose(log)).rows
    for name, values in (("tokens", log.basis.tokens), ("step_time_ms", log.basis.step_ms), ("context_len", log.basis.context)):
        assert np.shares_memory(rows[name].to_numpy(), values), name


def test_a_packed_log_gives_the_rows_of_a_plain_one(read: dict[str, pa.Table]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DDTreeWarning)
        one, other = packed(read), ddt.Log(read)
        assert_frame_equal(one.basis.frame(), other.basis.frame())
        assert one.basis.runs == other.basis.runs
        assert_frame_equal(pd.DataFrame(one.request_steps), pd.DataFrame(other.request_steps))
