"""``ddtree_metrics.export``: what ``ddtree-logs export`` does, from Python."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import ddtree_metrics as ddt

LINE = "[2026-05-05 12:00:{:02}] Decode batch, #running-req: 1, #token: 9, token usage: 0.10, gen throughput (token/s): 9.00, #queue-req: 0"
LINES = "".join(f"{LINE.format(second)}\n" for second in range(0, 60, 5))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text(LINES)
    return path


def test_one_table_goes_into_one_file(log: Path, tmp_path: Path) -> None:
    made = ddt.export(log, tmp_path / "decode.parquet", tables=["decode"], tz="UTC")

    assert (made.rows, made.paths) == ({"decode": 12}, [tmp_path / "decode.parquet"])
    assert made.coverage.lines == 12
    assert pq.read_metadata(made.paths[0]).num_rows == 12


def test_a_log_that_was_read_is_written_as_its_lines_are(log: Path, tmp_path: Path) -> None:
    ddt.export(log, tmp_path / "lines.csv", tables=["decode"], tz="UTC")
    ddt.export(ddt.read(log, tz="UTC"), tmp_path / "log.csv", tables=["decode"])

    assert (tmp_path / "log.csv").read_text() == (tmp_path / "lines.csv").read_text()


def test_a_window_of_stored_tables_is_written(log: Path, tmp_path: Path) -> None:
    ddt.export(log, tmp_path / "all.parquet", tables=["decode"], tz="UTC")
    made = ddt.export(tmp_path / "all.parquet", tmp_path / "part.parquet", tables=["decode"], since="2026-05-05 12:00:30", tz="UTC")

    assert made.rows == {"decode": 6}  # 30, 35, 40, 45, 50, 55


def test_a_dataset_is_parted_and_written_again_without_doubles(log: Path, tmp_path: Path) -> None:
    for _ in range(2):
        made = ddt.export(log, tmp_path / "lake", tables=["decode"], partition=["date"], tz="UTC")

    assert made.rows == {"decode": 12}
    assert [p.parent.name for p in (tmp_path / "lake").rglob("*.parquet")] == ["date=2026-05-05"]


def test_what_cannot_be_written_is_said_and_nothing_is_left(log: Path, tmp_path: Path) -> None:
    for asked, said in (
        ({"output": "-", "tables": ["steps", "decode"]}, "stdout takes one table"),
        ({"output": "-", "partition": ["date"]}, "into a folder"),
        ({"output": str(tmp_path / "lake"), "partition": ["date"], "format": "csv"}, "made of Parquet files"),
        ({"output": str(log)}, "is read, and would be replaced"),
        ({"output": str(tmp_path / "x.csv"), "tables": ["stepz"]}, "no table 'stepz'"),
    ):
        with pytest.raises(ddt.OutputError, match=said):
            ddt.export(log, **asked)  # type: ignore[arg-type]
    assert [p.name for p in tmp_path.iterdir()] == ["run.log"]


def test_a_stream_is_written_too(tmp_path: Path) -> None:
    assert ddt.export(io.BytesIO(LINES.encode()), tmp_path / "x.jsonl", tables=["decode"], tz="UTC").rows == {"decode": 12}


@pytest.mark.parametrize(("unit", "rows"), [("a.service", 4), ("a", 4), ("[ab]*", 7), (["a", "b"], 7), (None, 9)])
def test_stored_tables_are_narrowed_to_units_by_name_or_pattern(tmp_path: Path, unit: str | list[str] | None, rows: int) -> None:
    """Four lines of a.service, three of b.service, two of c.service."""
    entries = [
        {
            "__REALTIME_TIMESTAMP": str(1_777_982_400_000_000 + i * 1_000_000),
            "_SYSTEMD_UNIT": f"{name}.service",
            "MESSAGE": LINES.split("\n")[i],
        }
        for i, name in enumerate("aaaabbbcc")
    ]
    (tmp_path / "j.json").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    ddt.export(tmp_path / "j.json", tmp_path / "all.parquet", tables=["decode"])

    assert len(ddt.read(tmp_path / "all.parquet", unit=unit).decode) == rows
