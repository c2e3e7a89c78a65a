"""A long table that is held compressed, in memory or in a file, and what is written of it without having it whole."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest

import ddtree_metrics as ddt
from ddtree_metrics import tables
from ddtree_metrics.errors import OutputError
from ddtree_metrics.records import RequestStep, TreeStep
from ddtree_metrics.schema import arrow_schema
from ddtree_metrics.tables.packed import Packed, pack
from tests.captures import FIXTURES

JOURNAL = FIXTURES / "real" / "A" / "journal.export.zst"


@pytest.fixture(scope="module")
def log() -> ddt.Log:
    return ddt.read(JOURNAL)


@pytest.mark.parametrize("in_a_file", [False, True])
def test_a_packed_table_comes_back_as_it_was_as_often_as_it_is_asked_for(log: ddt.Log, tmp_path: Path, in_a_file: bool) -> None:
    whole = log.table("steps")
    packed = Packed(TreeStep, tmp_path if in_a_file else None)
    pack(whole.to_batches(max_chunksize=100), packed)
    assert packed.num_rows == whole.num_rows
    for _ in range(2):
        assert packed.table().equals(whole)
    assert packed.table(["time", "tokens"]).equals(whole.select([n for n in whole.column_names if n in ("time", "tokens")]))
    packed.close()


def test_the_file_of_a_packed_table_has_no_name_and_is_smaller_than_its_rows(log: ddt.Log, tmp_path: Path) -> None:
    packed = Packed(TreeStep, tmp_path)
    pack(log.table("steps").to_batches(), packed)
    assert not list(tmp_path.iterdir())
    assert 0 < packed.nbytes < log.table("steps").nbytes
    packed.close()
    with pytest.raises(StopIteration):
        next(packed.batches())


def test_a_full_disk_under_a_packed_table_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = Packed(TreeStep, tmp_path)

    class Full:
        def seek(self, *_: int) -> int:
            return 0

        def write(self, _: memoryview) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ddtree_metrics.tables.packed.tempfile.TemporaryFile", lambda **_: Full())
    with pytest.raises(OutputError, match=f"passing file in {tmp_path}: no space is left on the device"):
        packed.add(pa.RecordBatch.from_pylist([], schema=arrow_schema(TreeStep)))


def test_a_join_of_packed_steps_comes_part_by_part_and_is_that_of_the_whole_table(log: ddt.Log, tmp_path: Path) -> None:
    packed = Packed(TreeStep, tmp_path)
    pack(log.table("steps").to_batches(max_chunksize=100), packed)
    others = {name: log.table(name) for name in ("decode", "prefill", "servers", "events", "request_lines")}
    parts = list(ddt.Log(others, log.coverage, log.counts, {"steps": packed}).joined_parts())
    assert len(parts) == 6  # 545 steps, 100 in a part
    whole = tables.from_pandas(log.request_steps, RequestStep)
    assert tables.concat([batch for part in parts for batch in part.to_batches()], RequestStep).equals(whole)


def test_request_steps_of_an_export_are_those_of_the_log_that_was_read(log: ddt.Log, tmp_path: Path) -> None:
    ddt.export(JOURNAL, tmp_path, tables=("steps", "requests", "request_steps"))
    written = ddt.read_parquet(tmp_path / "request_steps.parquet").table("request_steps")
    assert written.equals(tables.from_pandas(log.request_steps, RequestStep))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["request_steps.parquet", "requests.parquet", "steps.parquet"]
