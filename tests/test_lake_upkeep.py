"""Looking after a lake: check, compact, drop; and what a check finds."""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import ddtree_metrics as ddt
from ddtree_metrics.cli import main
from ddtree_metrics.errors import OutputError
from ddtree_metrics.joining_days import join_days
from ddtree_metrics.schema import SCHEMA_VERSION
from ddtree_metrics.sources import resumed
from ddtree_metrics.tables.datasets import read_tables
from ddtree_metrics.tables.lake_check import check_lake
from ddtree_metrics.tables.manifest import commit, load, visible
from ddtree_metrics.tables.upkeep import compact_lake, drop_days, forget_deleted
from tests import journals
from tests.simulator import Restart, simulate
from tests.simulator_text import write_export
from tests.test_lake import append, rows

MIDNIGHT = 1_770_076_800.0  # 2026-02-03 00:00 UTC


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A server over two midnights' worth of lines: one before, one after."""
    run = simulate(requests=24, concurrency=3, dp=2, restarts=(Restart(9.0),), start=MIDNIGHT - 12.0)
    return write_export(run, tmp_path_factory.mktemp("export") / "run.export").read_bytes()


@pytest.fixture
def lake(tmp_path: Path, export: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake of many runs, each with parts of its own."""
    monkeypatch.setattr(resumed, "BATCH_LINES", 60)
    entries = [e + b"\n\n" for e in export.split(b"\n\n") if e.strip()]
    for begin in range(0, len(entries), 250):
        journals.build(tmp_path / "j" / "system.journal", b"".join(entries[begin : begin + 250]))
        append(tmp_path / "j", tmp_path / "lake")
    return tmp_path / "lake"


def files(lake: Path, table: str = "steps") -> list[Path]:
    return sorted((lake / table).rglob("*.parquet"))


def test_a_lake_of_many_runs_is_whole(lake: Path) -> None:
    made = check_lake(lake)
    assert made.problems == []
    assert made.rows == {name: len(some) for name, some in rows(lake).items()}
    assert made.versions == {SCHEMA_VERSION: made.parts}
    assert {p.parent.name for p in files(lake)} == {"date=2026-02-02", "date=2026-02-03"}


def test_compacting_makes_one_part_of_many_with_the_same_rows(lake: Path, tmp_path: Path) -> None:
    before, many = rows(lake), len(files(lake))
    made = compact_lake(lake)
    assert rows(lake) == before
    assert made["parts"] > made["into"] > 0
    open_ = [n for n, e in load(lake).parts.items() if e.source is not None and n.startswith("steps/")]
    assert len(files(lake)) <= 2 + len(open_) < many
    assert check_lake(lake).problems == []
    assert compact_lake(lake) == {"parts": 0, "into": 0, "rows": 0}
    # and what comes next goes on behind it
    assert append(tmp_path / "j", lake).rows == {}
    assert rows(lake) == before


def test_compacting_keeps_what_the_files_say_of_themselves(lake: Path) -> None:
    compact_lake(lake)
    for path in files(lake):
        notes = {k.decode(): v.decode() for k, v in pq.read_schema(path).metadata.items()}
        assert notes["ddtree_metrics.record"] == "TreeStep"
        assert json.loads(notes["ddtree_metrics.partition"])["date"] == path.parent.name.partition("=")[2]


def test_dropped_days_are_gone_do_not_come_back_and_leave_the_check_satisfied(lake: Path, tmp_path: Path) -> None:
    before = rows(lake)
    kept = {name: [r for r in some if r["time"].date() >= date(2026, 2, 3)] for name, some in before.items()}
    made = drop_days(lake, date(2026, 2, 3))
    assert made["rows"] == sum(len(some) for some in before.values()) - sum(len(some) for some in kept.values()) > 0
    assert rows(lake) == {name: some for name, some in kept.items() if some}
    assert check_lake(lake).problems == []
    append(tmp_path / "j", lake, since="2020-01-01")
    shutil.copytree(tmp_path / "j", tmp_path / "copy")
    append(tmp_path / "copy", lake)
    assert rows(lake) == {name: some for name, some in kept.items() if some}
    assert not [p for p in files(lake) if "2026-02-02" in str(p)]


def test_a_partition_deleted_by_hand_is_named_and_no_fault(lake: Path) -> None:
    for folder in lake.glob("*/host=*/date=2026-02-02"):
        shutil.rmtree(folder)
    made = check_lake(lake)
    assert made.problems == []
    assert [note for note in made.notes if "date=2026-02-02 was deleted" in note]
    assert forget_deleted(lake)
    assert check_lake(lake).notes == []


def test_a_part_that_is_missing_beside_others_is_a_fault(lake: Path) -> None:
    path = [p for p in files(lake) if "2026-02-03" in str(p)][1]
    path.unlink()
    made = check_lake(lake)
    assert [p for p in made.problems if path.name in p and "is gone, others are there" in p]
    # the rows that went leave a hole in the running sums besides
    assert [p for p in made.problems if "hole" in p]


def test_rows_that_are_there_twice_are_counted(lake: Path) -> None:
    manifest = load(lake)
    name, entry = next((n, e) for n, e in sorted(manifest.parts.items()) if n.startswith("steps/") and e.source is None)
    again = name.replace("part-", "part-9")
    shutil.copy(lake / name, lake / again)
    manifest.parts[again] = entry
    manifest.commit += 1
    commit(lake, manifest, [])
    made = check_lake(lake)
    assert [p for p in made.problems if f"{entry.rows:,} rows are there twice" in p], made.problems


def test_a_foreign_file_a_cut_part_and_a_newer_schema_are_named(lake: Path) -> None:
    (lake / "steps" / "mine.parquet").write_bytes(b"PAR1")
    manifest = load(lake)
    name = next(n for n in sorted(manifest.parts) if n.startswith("decode/"))
    manifest.parts[name].schema_version = SCHEMA_VERSION + 1
    older = next(n for n in sorted(manifest.parts) if n.startswith("prefill/"))
    manifest.parts[older].schema_version = SCHEMA_VERSION - 1
    manifest.commit += 1
    commit(lake, manifest, [])
    files(lake)[0].write_bytes(b"PAR1 half of it")
    found = CliRunner().invoke(main, ["lake", "check", str(lake)])
    assert found.exit_code == 6
    said = found.output
    assert "mine.parquet is no part of this lake" in said
    assert f"has schema version {SCHEMA_VERSION + 1}, this version reads up to {SCHEMA_VERSION}" in said
    assert f"has schema version {SCHEMA_VERSION - 1}, older than {SCHEMA_VERSION}" in said
    assert "it was changed or half-written" in said
    assert len(check_lake(lake).problems) >= 3
    assert len(ddt.read(lake).steps) > 100


def of_host(export: bytes, name: str, *, boot: bytes | None = None, hours: float = 0.0) -> bytes:
    """The same lines of another machine, with its own boots and a clock that differs."""
    made = []
    for line in export.split(b"\n"):
        key, _, value = line.partition(b"=")
        if key == b"_HOSTNAME":
            line = b"_HOSTNAME=" + name.encode()
        elif key == b"_BOOT_ID" and boot is not None:
            line = b"_BOOT_ID=" + boot + value[len(boot) :]
        elif key == b"__CURSOR":
            continue
        elif key == b"__REALTIME_TIMESTAMP":
            line = key + b"=" + str(int(value) + int(hours * 3.6e9)).encode()
        made.append(line)
    return b"\n".join(made)


def test_hosts_of_one_folder_are_partitions_of_one_export_and_each_is_whole(tmp_path: Path, export: bytes) -> None:
    for name, boot in (("a", b"aaaaaaaa"), ("b", b"bbbbbbbb"), ("c", b"cccccccc")):
        journals.build(tmp_path / "remote" / f"remote-{name}.journal", of_host(export, name, boot=boot))
    append(tmp_path / "remote", tmp_path / "lake")
    made = rows(tmp_path / "lake")
    assert {p.name for p in (tmp_path / "lake" / "steps").iterdir()} == {"host=a", "host=b", "host=c"}
    counts = {h: sum(r["host"] == h for r in made["steps"]) for h in "abc"}
    assert counts["a"] == counts["b"] == counts["c"] > 100
    seen = check_lake(tmp_path / "lake")
    assert (seen.problems, seen.notes) == ([], [])


def test_two_machines_of_one_name_are_named(tmp_path: Path, export: bytes) -> None:
    for number, boot in enumerate((b"aaaaaaaa", b"bbbbbbbb")):
        data = of_host(export, "gpu", boot=boot, hours=number / 3600)
        # a server that runs for three minutes
        journals.build(tmp_path / "j" / f"{number}.journal", data + of_host(export, "gpu", boot=boot, hours=0.05))
    append(tmp_path / "j", tmp_path / "lake")
    notes = check_lake(tmp_path / "lake").notes
    assert [note for note in notes if "two machines are called 'gpu'" in note and "aaaaaaaa" in note and "bbbbbbbb" in note], notes
    made = ddt.read(tmp_path / "lake")
    assert len(made.table("steps")) == len(rows(tmp_path / "lake")["steps"]) > 100
    assert [note for note in made.coverage.notes if "two machines" in note]


def test_clocks_that_are_hours_apart_are_named(tmp_path: Path, export: bytes) -> None:
    for name, boot, hours in (("a", b"aaaaaaaa", 0.0), ("b", b"bbbbbbbb", 5.0)):
        journals.build(tmp_path / "j" / f"{name}.journal", of_host(export, name, boot=boot, hours=hours))
    append(tmp_path / "j", tmp_path / "lake")
    assert [n for n in visible(tmp_path / "lake").notes if "hours apart ('a' by 5.0 h)" in n]


@pytest.mark.parametrize("command", [["compact"], ["drop", "--before", "2026-01-01"], ["drop", "--deleted"]])
def test_what_is_no_lake_is_left_alone(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "x").mkdir()
    found = CliRunner().invoke(main, ["lake", command[0], str(tmp_path / "x"), *command[1:]])
    assert found.exit_code == 1
    assert "is no lake" in found.output
    assert list(tmp_path.rglob("*")) == [tmp_path / "x"]


def test_the_commands_say_what_they_did(lake: Path) -> None:
    def run(*words: str) -> Any:
        return CliRunner().invoke(main, ["lake", *words])

    assert "Each row is there once" in run("check", str(lake)).output
    assert json.loads(run("check", str(lake), "--json").stdout)["ok"] is True
    assert " rows are " in run("compact", str(lake)).output
    assert "nothing to compact" in run("compact", str(lake)).output
    assert " rows dropped" in run("drop", str(lake), "--before", "2026-02-03").output
    assert run("drop", str(lake)).exit_code == 2
    with pytest.raises(OutputError, match="is no lake"):
        compact_lake(lake / "steps")


@pytest.mark.filterwarnings("ignore::ddtree_metrics.errors.DDTreeWarning")
def test_days_are_joined_as_a_whole_log_is_also_requests_over_midnight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumed, "BATCH_LINES", 60)
    run = simulate(requests=24, concurrency=3, start=MIDNIGHT - 8.0)
    entries = [e + b"\n\n" for e in write_export(run, tmp_path / "run.export").read_bytes().split(b"\n\n") if e.strip()]
    lake = tmp_path / "lake"
    for begin in range(0, len(entries), 250):
        journals.build(tmp_path / "j" / "system.journal", b"".join(entries[begin : begin + 250]))
        append(tmp_path / "j", lake)
    ddt.export(tmp_path / "j", tmp_path / "once", partition=("host", "date"), tables=["steps", "request_steps"])

    def joined(root: Path) -> list[dict[str, Any]]:
        found = read_tables(root)["request_steps"].to_pylist()
        return sorted(found, key=lambda row: (row["time_us"], row["stream"], row["slot"], str(row["request_id"])))

    whole = joined(tmp_path / "once")
    days = [{row["time"].date() for row in whole if row["request_id"] == name} for name in {row["request_id"] for row in whole}]
    assert any(len(some) == 2 for some in days)  # some requests ran over midnight
    made = join_days(lake)
    assert made == {"days": 2, "rows": len(whole)}
    assert joined(lake) == whole
    assert join_days(lake) == {"days": 0, "rows": 0}
    assert check_lake(lake).problems == []
    assert ddt.read(lake).table("request_steps").num_rows == len(whole)


@pytest.mark.filterwarnings("ignore::ddtree_metrics.errors.DDTreeWarning")
def test_days_with_new_rows_are_joined_once_more_and_what_is_behind_is_named(tmp_path: Path, export: bytes) -> None:
    entries = [e + b"\n\n" for e in export.split(b"\n\n") if e.strip()]
    journals.build(tmp_path / "j" / "system.journal", b"".join(entries[:300]))
    append(tmp_path / "j", tmp_path / "lake")
    join_days(tmp_path / "lake")
    first = read_tables(tmp_path / "lake")["request_steps"].num_rows
    later = of_host(b"".join(entries[300:]), "simulated", hours=3.0)
    journals.build(tmp_path / "j" / "system.journal", later)
    append(tmp_path / "j", tmp_path / "lake")
    assert [n for n in visible(tmp_path / "lake").notes if "ddtree-logs lake join" in n]
    assert join_days(tmp_path / "lake")["days"] >= 1
    assert read_tables(tmp_path / "lake")["request_steps"].num_rows > first
    assert visible(tmp_path / "lake").notes == []


def test_a_lake_by_unit_knows_its_rows_again(tmp_path: Path, export: bytes) -> None:
    journals.build(tmp_path / "own" / "system.journal", export)
    journals.build(tmp_path / "remote" / "remote-gpu1.journal", export)
    append(tmp_path / "own", tmp_path / "lake", partition=("host", "unit", "date"))
    assert append(tmp_path / "remote", tmp_path / "lake").rows == {}
    assert check_lake(tmp_path / "lake").problems == []
    assert {p.name for p in (tmp_path / "lake" / "steps" / "host=simulated").iterdir()} == {"unit=sglang-simulated.service"}
