"""A lake asked through an engine gives the numbers of a log in memory; what is wrong with a lake is named, and the rest is answered."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import ddtree_metrics as ddt
from ddtree_metrics import metrics
from ddtree_metrics.cli import main
from ddtree_metrics.fleet import Dataset
from ddtree_metrics.fleet.added_up import bucketed
from ddtree_metrics.fleet.counted import counted_rows
from ddtree_metrics.fleet.odd_hosts import odd_hosts
from ddtree_metrics.fleet.overview import summarise_lake
from ddtree_metrics.fleet.split import split
from ddtree_metrics.metrics.histograms import BUCKETS, GROWTH, buckets, merge_histograms
from ddtree_metrics.records import RequestStep
from ddtree_metrics.steps.basis_rows import ABSURD_MS, basis_of
from ddtree_metrics.summary import SummaryLine, summarise
from ddtree_metrics.tables import conform, to_pandas
from tests.captures import journal_export
from tests.fleet_lakes import DAY_US, T0, fleet, host_rows, write

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Ibis's own calls into DuckDB and pandas
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
]


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args], prog_name="ddtree-logs", catch_exceptions=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fleet(tmp_path_factory.mktemp("fleet") / "lake")


@pytest.fixture(scope="module")
def lake(root: Path) -> Dataset:
    return ddt.open_dataset(root)


@pytest.fixture(scope="module")
def in_memory(root: Path) -> pd.DataFrame:
    """The same rows as a log has them."""
    return to_pandas(pq.ParquetDataset(root / "request_steps").read())


def same_curve(mine: pd.DataFrame, theirs: pd.DataFrame) -> None:
    """Counts and means alike, quantiles within a bucket: its middle is at most half a per cent away, and two ranks are mixed."""
    for name in ("bin", "low", "high", "rows", "timed_steps"):
        assert mine[name].tolist() == theirs[name].tolist(), name
    for name in ("step_time_mean_ms", "tokens_per_step_pooled", "tok_per_s"):
        np.testing.assert_allclose(mine[name].astype(float), theirs[name].astype(float), rtol=1e-12)
    for name in ("step_time_p50_ms", "step_time_p95_ms"):
        np.testing.assert_allclose(mine[name].astype(float), theirs[name].astype(float), rtol=GROWTH - 1)


# -- the same numbers --------------------------------------------------------------------------------------------------------------


def test_the_curve_of_a_lake_is_that_of_its_rows_in_memory(lake: Dataset, in_memory: pd.DataFrame) -> None:
    same_curve(lake.by_context().frame(), ddt.by_context(in_memory, resamples=2))
    same_curve(lake.by_context(width=8192).frame(), ddt.by_context(in_memory, width=8192, resamples=2))
    edges = [0.0, 500.0, 2000.0, 1e6]
    same_curve(lake.by_context(edges=edges).frame(), ddt.by_context(in_memory, edges, resamples=2))


@pytest.mark.parametrize("by", ["host", "date", "budget"])
def test_each_group_has_the_curve_of_its_own_rows(lake: Dataset, in_memory: pd.DataFrame, by: str) -> None:
    frame = in_memory.assign(date=in_memory["time"].dt.strftime("%Y-%m-%d"))
    mine = lake.by_context(by, width=16384).frame()

    assert sorted(mine[by].unique()) == sorted(frame[by].unique())
    for value, part in mine.groupby(by):
        same_curve(part.reset_index(drop=True), ddt.by_context(frame[frame[by] == value], width=16384, resamples=2))


def test_the_histograms_of_hosts_add_up_to_that_of_all(lake: Dataset) -> None:
    whole = lake.by_context(width=4096).sums().sort_by([("bin", "ascending"), ("bucket", "ascending")])
    parts = lake.by_context("host", width=4096).sums().to_pandas()
    added = merge_histograms(
        *(
            metrics.histograms.described(pa.Table.from_pandas(part.drop(columns="host"), preserve_index=False), 4096, None, 0)
            for _, part in parts.groupby("host")
        )
    )

    assert added.select(["bin", "bucket", "n", "sum_us", "n_tokens", "sum_tokens"]).to_pydict() == whole.to_pydict()


def test_an_engine_puts_every_step_time_into_the_bucket_of_the_others(lake: Dataset) -> None:
    """Whole microseconds on both sides of every edge, up to the longest step time that counts."""
    edges = GROWTH ** np.arange(1, BUCKETS, dtype=float)
    us = np.unique(np.concatenate([np.floor(edges), np.ceil(edges), np.arange(1, 2000)])).astype(np.int64)
    us = us[us < ABSURD_MS * 1000]
    import ibis

    made = lake.connection.to_pyarrow(bucketed(ibis.memtable(pa.table({"step_us": us}))))

    assert (made["bucket"].to_numpy() == buckets(us.astype(float)) - 1).all()
    assert len(us) > 3000


def odd_rows() -> pa.Table:
    """Every kind of value that cannot be used, beside good ones, in batches of two."""
    good: dict[str, Any] = {"step_us": 30_000, "tokens": 4.0, "context_len": 1000, "reconciled": 0, "request_id": "r1", "batch_size": 1}
    good |= {"step_why": None, "flags": None}  # the columns of a table are those of its first row
    odd: list[dict[str, Any]] = [
        {},
        {"step_us": 0},
        {"step_us": -5},
        {"step_us": int(ABSURD_MS * 1000) + 1},
        {"step_us": None, "step_why": "prefill_between"},
        {"step_us": None},
        {"tokens": -1.0},
        {"tokens": 1e6},
        {"tokens": None},
        {"context_len": -7},
        {"context_len": 2_000_000_000},
        {"context_len": None},
        {"reconciled": 16},  # not far off: no more than 16 tokens
        {"reconciled": 17},  # no more than a tenth of 1,000
        {"reconciled": -101},  # more than both
        {"reconciled": 101, "context_len": None},
        {"batch_size": 0},
        {"batch_size": None},
        {"batch_size": 2, "slot": 0, "where": "a:1", "weight": 0.5},
        {"batch_size": 2, "slot": 1, "where": "a:1", "weight": 0.5},
        {"request_id": "own", "flags": ["warmup"]},
        {"request_id": "health", "flags": ["health_check", "not_checked"]},
        {"flags": ["not_trusted"]},
        {"request_id": None},
    ]
    rows = []
    for i, change in enumerate(odd):
        row = {**good, "where": f"b:{i}", "slot": 0, "weight": 1.0, "time_us": T0 + i * 1000, "stream": "h|b|1|", "host": "h", **change}
        rows.append({**row, "time": pd.Timestamp(row["time_us"], unit="us", tz="UTC")})
    return conform(pa.Table.from_pylist(rows), RequestStep)


def test_the_rows_that_count_are_those_of_a_log(tmp_path: Path) -> None:
    table = odd_rows()
    kinds = pd.DataFrame({"request_id": ["r1", "own", "health"], "kind": ["client", "warmup", "health_check"]})
    empty = {name: pd.DataFrame() for name in ("steps", "decode", "prefill", "servers", "events")}
    theirs = basis_of(SimpleNamespace(**empty, requests=kinds, request_steps=to_pandas(table)))
    lake = ddt.open_dataset(write(tmp_path / "lake", table))
    mine = lake.rows.order_by("time_us").to_pandas()

    assert len(mine) == len(theirs) == 22
    for name, other in (("step_us", theirs.step_ms * 1000), ("tokens", theirs.tokens), ("context_len", theirs.context)):
        np.testing.assert_allclose(mine[name].astype(float), other, err_msg=name)
    np.testing.assert_allclose(mine["weight"].astype(float), theirs.weight)
    np.testing.assert_allclose(mine["batch_size"].astype(float), theirs.batch)
    account = lake.account()
    assert account["no step time: prefill_between"] == theirs.excluded["no step time: prefill_between"] == 1
    # negative, absurd and unknown tokens are told apart in a log, and one number here; a step time beyond any sense takes its tokens along
    assert account["tokens unknown"] == int(np.isnan(theirs.tokens).sum()) == 4
    assert account["no context length"] == int(np.isnan(theirs.context).sum()) == 5


def test_the_summary_of_a_lake_is_that_of_its_log(tmp_path: Path) -> None:
    """Capture A: two server starts, batches, warm-ups; read as a log, and exported into a lake and asked there."""
    log = ddt.read(journal_export("A"))
    ddt.export(journal_export("A"), tmp_path / "lake", partition=["host", "date"])
    mine, theirs = summarise_lake(ddt.open_dataset(tmp_path / "lake")), summarise(log)

    def same(one: SummaryLine, other: SummaryLine) -> None:
        for name in ("steps", "timed_steps", "request_steps", "requests"):
            assert getattr(one, name) == getattr(other, name), name
        for name in ("step_time_mean_ms", "step_time_seen_ms", "tokens_per_step_micro", "tok_per_s"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9), name
        for name in ("step_time_p50_ms", "step_time_p95_ms"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=GROWTH - 1), name

    same(mine.total, theirs.total)
    assert len(mine.runs) == len(theirs.runs) == 2
    for one, other in zip(mine.runs, theirs.runs, strict=True):
        same(one, other)
    assert [line.name for line in mine.by_context] == [line.name for line in theirs.by_context]
    for one, other in zip(mine.by_context, theirs.by_context, strict=True):
        assert one.request_steps == other.request_steps
        assert one.step_time_seen_ms == pytest.approx(other.step_time_seen_ms, rel=1e-9)
    assert mine.excluded["request-steps of the server itself (warm-up or health check)"] == 10
    assert [line.name for line in mine.by_host] == ["gpu-01"]


def test_survival_and_budgets_are_those_of_the_rows_in_memory(lake: Dataset, in_memory: pd.DataFrame) -> None:
    theirs = ddt.acceptance(in_memory, resamples=2)
    mine = lake.survival().frame()
    assert mine["rows"].tolist() == theirs.survival["rows"].tolist()
    np.testing.assert_allclose(mine["survival"], theirs.survival["survival"], rtol=1e-12)

    budgets, known = lake.by_budget().frame(), ddt.by_budget(in_memory, resamples=2)
    assert budgets["budget"].tolist() == known["budget"].tolist() == [16, 32]
    assert budgets["n"].tolist() == known["rows"].tolist()
    np.testing.assert_allclose(budgets["tokens_per_step"], known["tokens_per_step"], rtol=1e-12)
    np.testing.assert_allclose(budgets["step_time_ms"], known["step_time_ms"], rtol=1e-12)
    by_host = lake.survival("host").frame()
    assert by_host.groupby("host")["rows"].max().tolist() == [4000.0] * 3


def test_a_lake_of_step_lines_gives_tokens_and_step_times_without_context(tmp_path: Path) -> None:
    ddt.export(journal_export("A"), tmp_path / "lake", partition=["host", "date"], tables=["steps", "servers"])
    lake, steps = ddt.open_dataset(tmp_path / "lake"), ddt.read(journal_export("A")).steps
    found = lake.tokens_per_step().frame().iloc[0]

    assert found["n"] == len(steps) == 545
    assert found["sum_us"] == steps["step_us"].sum()
    assert found["tokens_per_step"] == pytest.approx((steps["tokens"] / steps["batch_size"]).mean())
    assert "without request_steps" in " ".join(summarise_lake(lake).notes)


# -- a difference between two groups -----------------------------------------------------------------------------------------------


def test_a_host_of_half_the_speed_is_told_from_one_with_longer_contexts(tmp_path: Path) -> None:
    """Host b takes 1.5 times the step time at equal context; host c is as fast as a, and half of its prompts are longer."""
    root = tmp_path / "lake"
    for day in range(4):
        write(root, host_rows("a", 4000, seed=day, day=day, longest=2000), source=f"a{day}")
        write(root, host_rows("b", 4000, seed=40 + day, day=day, longest=2000, slower=1.5), source=f"b{day}")
        write(root, host_rows("c", 4000, seed=80 + day, day=day, longest=8000), source=f"c{day}")
    lake = ddt.open_dataset(root)
    slow, long = split(lake, "host:a", "host:b"), split(lake, "host:a", "host:c")

    assert slow.step_time_ratio_equal == pytest.approx(1.5, rel=0.01)
    assert slow.step_time_ratio_equal_low <= 1.5 <= slow.step_time_ratio_equal_high
    assert slow.tokens_ratio_equal == pytest.approx(1.0, abs=0.02)
    assert slow.verdict == "step time"
    assert slow.interval_from == "server processes and days"
    assert long.step_time_ratio > 1.05
    assert long.step_time_ratio_equal == pytest.approx(1.0, abs=0.01)
    assert long.verdict == "mix"


def test_a_split_of_sums_is_that_of_the_rows(lake: Dataset, in_memory: pd.DataFrame) -> None:
    """With the same clusters, which are days of a process; the sums are over classes of context of 5 %."""
    frame = in_memory.assign(
        prompt_id=in_memory["stream"] + in_memory["time"].dt.strftime("%Y-%m-%d"), step_time_ms=in_memory["step_us"] / 1000
    )
    kept = frame[["prompt_id", "context_len", "batch_size", "tokens", "step_time_ms"]]
    theirs = ddt.attribute_slowdown(kept[frame["host"] == "host0"], kept[frame["host"] == "host1"])
    mine = split(lake, "host0", "host1")

    assert split(lake, "host0", "host1") == mine  # to the last digit, in whatever order an engine adds up
    for name in ("speed_ratio", "step_time_ratio", "tokens_ratio"):
        assert getattr(mine, name) == pytest.approx(getattr(theirs, name), rel=1e-9)
    for name in ("step_time_ratio_equal", "tokens_ratio_equal", "mix_ratio"):
        assert getattr(mine, name) == pytest.approx(getattr(theirs, name), abs=0.005)


def test_groups_of_a_lake_are_hosts_days_starts_ranges_and_windows(lake: Dataset) -> None:
    """The lake has 3 hosts, 2 days, 2,000 steps of each; a process is one a host and day."""
    from ddtree_metrics.fleet.split import rows_of

    def count(asked: str) -> int:
        return int(rows_of(lake, asked)[0].count().to_pandas())

    assert count("host:host1") == count("host1") == 4000
    assert count("day:2025-10-26") == count("2025-10-26") == 6000
    assert count("host:host1, day:2025-10-26") == 2000
    assert count("unit:sglang.service") == 12_000
    assert count("2025-10-26T00:00..") == 6000
    assert count("context:0-1023") + count("context:1024-") == 12_000
    assert count("budget:16") == 6 * 667  # every third of 2,000, from the first
    assert count("run:1") == 4000
    for wrong, what in (
        ("host:nobody", "no row of the lake is of host 'nobody'; there are host0"),
        ("run:99", "no run 99"),
        ("what:1", "over a lake"),
    ):
        with pytest.raises(ddt.MetricError, match=re.escape(what)):
            rows_of(lake, wrong)


# -- how an engine does it ---------------------------------------------------------------------------------------------------------


def test_a_query_is_one_group_by_over_the_columns_it_needs(lake: Dataset) -> None:
    """No join, window or sort over rows, and of the 24 columns of the table those that the histogram is made of."""
    plan = lake.connection.raw_sql("EXPLAIN " + lake.connection.compile(lake.by_context("host", width=4096).expression)).fetchall()[0][1]
    read = set(re.findall(r"[a-z_]+", plan[plan.index("Read Parquet") :]))

    assert plan.count("Group By") == 1
    assert not re.search(r"(?i)join|window|order|sort|top", plan)
    assert {"step_us", "tokens", "context_len", "reconciled", "host"} <= read
    assert not read & {"request_id", "stream", "unit", "where", "draft_nodes", "budget", "boot_id", "time_us"}


def test_a_window_opens_only_the_files_of_its_days(lake: Dataset) -> None:
    """The lake has 3 hosts and 2 days, so a day is 3 of its 6 files, and 2,000 steps a host."""
    part = lake.narrowed(since="2025-10-26T00:00", until="2025-10-26T23:00")
    plan = lake.connection.raw_sql("EXPLAIN " + lake.connection.compile(part.tokens_per_step("host").expression)).fetchall()[0][1]

    assert "Scanning Files: 3/6" in plan
    assert part.tokens_per_step("host").frame()["n"].tolist() == [2000] * 3


def test_another_engine_that_ibis_speaks_gives_the_same(root: Path, lake: Dataset) -> None:
    import ibis

    other = ddt.open_dataset(root, engine=ibis.duckdb.connect())  # a connection that is given
    assert other.by_context("host").frame().equals(lake.by_context("host").frame())
    polars = ddt.open_dataset(root, engine=ibis.polars.connect())
    key = ["host", "bin", "bucket"]
    mine, theirs = (one.by_context("host", width=4096).sums().to_pandas().sort_values(key, ignore_index=True) for one in (polars, lake))
    pd.testing.assert_frame_equal(mine[theirs.columns], theirs, check_dtype=False)


def test_an_engine_that_is_none_and_one_that_is_not_installed_are_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ddt.UsageError, match="no engine 'mysql'; give 'duckdb', 'spark'"):
        ddt.open_dataset(root, engine="mysql")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ddt.SourceUnsupported, match=re.escape("pip install 'ddtree-metrics[fleet]'")):
        ddt.open_dataset(root)


def test_what_rows_cannot_be_told_apart_by_is_said(lake: Dataset) -> None:
    with pytest.raises(ddt.MetricError, match="cannot tell rows apart by colour; give one or more of host"):
        lake.by_context("colour")
    with pytest.raises(ddt.SchemaError, match="no table 'step'; there are steps"):
        lake["step"]
    assert lake.request_steps.count().to_pandas() == 12_000
    assert lake.decode.count().to_pandas() == 0


# -- a lake in which something is wrong --------------------------------------------------------------------------------------------


def test_foreign_half_written_and_newer_files_are_named_and_the_rest_is_answered(tmp_path: Path) -> None:
    root = fleet(tmp_path / "lake", hosts=3, days=1, steps=500)
    parts = sorted((root / "request_steps").rglob("*.parquet"))
    parts[0].write_bytes(parts[0].read_bytes()[:-100])  # its end is missing
    pq.write_table(pa.table({"x": [1]}), parts[1].with_name("foreign.parquet"))
    table = pq.read_table(parts[2])
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"ddtree_metrics.schema_version": b"99"}), parts[2])
    found = summarise_lake(ddt.open_dataset(root))

    assert [line.name for line in found.by_host] == ["host1"]
    assert found.total.steps == 500
    for path in (parts[0], parts[1].with_name("foreign.parquet"), parts[2]):
        assert sum(str(path) in note for note in found.notes) == 1, found.notes


def test_a_part_of_an_older_schema_counts_and_its_missing_columns_are_null(tmp_path: Path) -> None:
    root = fleet(tmp_path / "lake", hosts=2, days=1, steps=500)
    old = next((root / "request_steps" / "host=host0").rglob("*.parquet"))
    table = pq.ParquetFile(old).read()
    metadata = {**table.schema.metadata, b"ddtree_metrics.schema_version": b"2"}
    pq.write_table(table.drop_columns(["budget", "reconciled"]).replace_schema_metadata(metadata), old)
    lake = ddt.open_dataset(root)

    assert lake.tokens_per_step("host").frame()["n"].tolist() == [500, 500]
    assert lake.by_budget("host").frame()["budget"].isna().tolist() == [True, False, False]
    assert sum("schema version 2, older than" in note for note in lake.notes) == 1


def test_two_machines_of_one_name_are_named_and_can_be_told_apart(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    write(root, host_rows("kimi", 500, seed=1, boot="one"), source="one")
    write(root, host_rows("kimi", 700, seed=2, boot="two"), source="two")
    write(root, host_rows("other", 500, seed=3, boot="three"), host_rows("other", 500, seed=4, boot="four", day=1), source="three")
    lake = ddt.open_dataset(root)
    notes = [note for note in odd_hosts(lake) if "two machines of one name" in note]

    assert len(notes) == 1
    assert notes[0].startswith("host kimi: two boots ran at the same time")
    found = lake.tokens_per_step("host", "boot_id").frame()
    assert found.loc[found["host"] == "kimi", "n"].tolist() == [500, 700]


def test_clocks_that_are_hours_apart_are_named(tmp_path: Path) -> None:
    """Host b's rows are three hours before those of a; host c's are later than the file that holds them."""
    root = tmp_path / "lake"
    write(root, host_rows("a", 500, seed=1), source="a")
    write(root, host_rows("b", 500, seed=2, lag_us=3 * 3_600_000_000), source="b")
    lake = ddt.open_dataset(root)
    assert [note.partition(":")[0] for note in odd_hosts(lake)] == ["host b"]
    assert "3h" in odd_hosts(lake)[0]

    newest = max((root / "request_steps" / "host=a").rglob("*.parquet"))
    at = (T0 + DAY_US // 2) / 1e6 - 7400  # written two hours before its last row, of some 12:00
    os.utime(newest, (at, at))
    notes = odd_hosts(ddt.open_dataset(root))
    assert any(note.startswith("host a: its clock is at least 2h 2m ahead") for note in notes), notes


def test_a_partition_that_was_deleted_is_no_error(root: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(root, tmp_path / "lake")
    shutil.rmtree(tmp_path / "lake" / "request_steps" / "host=host1" / "date=2025-10-26")
    found = ddt.open_dataset(tmp_path / "lake").tokens_per_step("host").frame()

    assert found["n"].tolist() == [4000, 2000, 4000]


def test_a_folder_that_is_no_lake_is_an_error_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ddt.SourceNotFound, match="no table in"):
        ddt.open_dataset(tmp_path)
    with pytest.raises(ddt.SourceNotFound, match="no folder"):
        ddt.open_dataset(tmp_path / "nowhere")


def test_hosts_and_days_that_are_not_known_are_null(tmp_path: Path) -> None:
    rows = host_rows("x", 100, seed=1)
    table = rows.set_column(rows.column_names.index("host"), "host", pa.nulls(100, pa.string()))
    write(tmp_path / "lake", table, source="a")
    write(tmp_path / "lake", host_rows("unknown", 50, seed=2), source="b")
    write(tmp_path / "lake", host_rows("a b", 30, seed=3), source="c")
    found = ddt.open_dataset(tmp_path / "lake").tokens_per_step("host").frame()

    assert {None if pd.isna(host) else host: n for host, n in zip(found["host"], found["n"], strict=True)} == {
        None: 100,
        "unknown": 50,
        "a b": 30,
    }


# -- the command line --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads rows of a lake into this process fails."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("rows were read")

    for place in ("ddtree_metrics.loading.read_tables", "ddtree_metrics.loading.read", "ddtree_metrics.tables.datasets.read_tables"):
        monkeypatch.setattr(place, refuse)


@pytest.mark.usefixtures("no_rows")
def test_summary_of_a_lake_reads_no_row(root: Path, tmp_path: Path) -> None:
    shown = run("summary", root)
    assert shown.exit_code == 0, shown.output
    assert "12,000 request_steps (steps of requests)" in shown.output
    assert [line.split()[:1] for line in shown.output.splitlines() if line.startswith("host")][1:] == [["host0"], ["host1"], ["host2"]]
    found = json.loads(run("summary", root, "--json").output)
    assert found["total"]["steps"] == 12_000
    assert [line["steps"] for line in found["by_day"]] == [6000, 6000]
    part = json.loads(run("summary", root, "--json", "--since", "2025-10-26", "-u", "sglang").output)
    assert part["total"]["steps"] == 6000
    assert run("summary", root, "-o", tmp_path / "x.csv").exit_code == 0
    assert (tmp_path / "x.csv").read_text().count("\nhost,") == 3
    assert run("summary", root, "--fail-below", "100000").exit_code == 1


@pytest.mark.usefixtures("no_rows")
def test_compare_of_a_lake_reads_no_row(root: Path) -> None:
    first = run("compare", root, "host:host0", "host:host1")
    last = run("compare", "host:host0", "host:host1", root)
    assert first.exit_code == last.exit_code == 0, first.output
    assert first.output == last.output
    assert first.output.startswith("host1 against host0\n")
    found = json.loads(run("compare", root, "day:2025-10-25", "day:2025-10-26", "--json").output)
    assert found["mix_ratio"] * found["tokens_ratio_equal"] / found["step_time_ratio_equal"] == pytest.approx(found["speed_ratio"])
    halves = run("compare", root, "--last", "1d")
    assert halves.exit_code == 0, halves.output
    wrong = run("compare", root, "host:host0", "host:x")
    assert wrong.exit_code == 1
    assert "no row of the lake is of host 'x'" in wrong.output


@pytest.mark.usefixtures("no_rows")
def test_report_of_a_lake_reads_no_row(root: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run("report", root, "-o", page).exit_code == 0
    text = page.read_text()
    assert text.count("<svg") == 5  # step time, tokens, speed, survival, budgets
    assert all(f"host{i}" in text for i in range(3))
    assert "<script" not in text
    assert run("report", root, "-o", page).exit_code != 0  # it is there


def test_a_single_export_is_read_as_before(tmp_path: Path) -> None:
    assert run("export", journal_export("A"), "-o", f"{tmp_path}/out/").exit_code == 0
    assert "macro" in run("summary", tmp_path / "out").output
    assert "host  " not in run("summary", tmp_path / "out").output


def test_the_numbers_of_a_group_multiply(lake: Dataset) -> None:
    for row in lake.tokens_per_step("host", "date").frame().to_dict("records"):
        assert row["tok_per_s"] == pytest.approx(1000 * row["tokens_per_step"] / row["step_time_ms"])
        assert math.isclose(row["tokens_per_step"], row["sum_tokens"] / row["n_tokens"])
    assert counted_rows.__doc__
