"""The same lake on a real Spark cluster: a master and two workers on this machine. ``./run fleet`` asks a lake of 5 million steps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import ddtree_metrics as ddt
from ddtree_metrics.metrics.histograms import GROWTH
from ddtree_metrics.tables import to_pandas
from tests.fleet_lakes import fleet
from tests.spark_cluster import ask, java

pytestmark = [
    pytest.mark.skipif(not java(), reason="Spark needs a JRE of Java 17 or newer: apt-get install openjdk-17-jre-headless, or ./run fleet"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
WHOLE = os.environ.get("DDTREE_FLEET") == "whole"
"""Whether the lake is of 5 million steps, and all analyses are asked."""
HOSTS, DAYS, STEPS = (6, 5, 166_700) if WHOLE else (3, 2, 3000)


def whole(test: Any) -> Any:
    """Leave a test to ``./run fleet``: what it shows on a small lake is shown by DuckDB's tests, and another JVM is dear."""
    return test if WHOLE else None


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fleet(tmp_path_factory.mktemp("spark") / "lake", hosts=HOSTS, days=DAYS, steps=STEPS)


@pytest.fixture(scope="module")
def told(root: Path) -> dict[str, Any]:
    out = root.parent / "told.json"
    command = [sys.executable, "-m", "tests.spark_cluster", str(root), str(out), *([] if WHOLE else ["--few"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(out.read_text())
    print(f"\nSpark: {found['seconds']:.0f} s for all questions; {found['read']:,} rows read, {found['moved']:,} moved")
    return found


def test_spark_counts_and_adds_up_as_duckdb_does_to_the_last_digit(root: Path, told: dict[str, Any]) -> None:
    mine = json.loads(json.dumps(ask(root, "duckdb", few=not WHOLE)))
    asked = ("by_start", "survival") if not WHOLE else ("by_context", "by_start", "by_day", "survival", "by_budget")

    for name in asked:
        assert told["answers"][name] == mine[name], name
        assert mine[name], name
    if WHOLE:
        assert told["answers"]["curve"] == mine["curve"]
        assert told["answers"]["account"] == mine["account"]
        np.testing.assert_allclose(told["answers"]["split"], mine["split"], rtol=1e-9)


@whole
def test_five_million_steps_of_six_hosts_give_the_numbers_of_the_functions_in_memory(root: Path, told: dict[str, Any]) -> None:
    frame = to_pandas(
        pq.ParquetDataset(root / "request_steps").read(columns=["host", "context_len", "tokens", "step_us", "request_id", "drafts"])
    )
    assert len(frame) == HOSTS * DAYS * STEPS >= 5_000_000
    curve = told["answers"]["curve"]
    for host, part in frame.groupby("host"):
        theirs = ddt.by_context(part, width=4096, resamples=2)
        mine = [row for row in curve if row["host"] == host]
        assert [row["bin"] for row in mine] == theirs["bin"].tolist()
        for name in ("rows", "timed_steps"):
            assert [row[name] for row in mine] == theirs[name].tolist()
        for name in ("step_time_mean_ms", "tokens_per_step_pooled"):
            np.testing.assert_allclose([row[name] for row in mine], theirs[name].astype(float), rtol=1e-9)
        for name in ("step_time_p50_ms", "step_time_p95_ms"):
            np.testing.assert_allclose([row[name] for row in mine], theirs[name].astype(float), rtol=GROWTH - 1)
    depth = ddt.acceptance(frame, resamples=2).survival["rows"].to_numpy()
    counts = np.zeros(len(depth))
    for row in told["answers"]["survival"]:
        counts[row[0]] += row[2]  # depth, host, n
    assert np.cumsum(counts[::-1])[::-1].tolist() == depth.tolist()


def test_spark_adds_up_before_it_moves_anything_and_moves_no_row(told: dict[str, Any]) -> None:
    """Scan, filter, projection, partial sums, one exchange of these, and the sums of the sums."""
    steps = [line.split()[-2] for line in re.findall(r"^[ +-]*\w[\w ]* \(\d+\)$", told["plan"], re.MULTILINE)]
    order = [name for name in steps if name in ("HashAggregate", "Exchange", "parquet")]

    assert order == ["HashAggregate", "Exchange", "HashAggregate", "parquet"]
    assert "partial_sum" in told["plan"].partition("(6) Exchange")[0]
    assert not re.search(r"Join|Window|Sort", told["plan"])
    assert told["executors"] == 2
    assert told["read"] == HOSTS * DAYS * STEPS
    # each of the tasks moves at most one row of sums a group: with two executors, no more than the groups twice over (files of a host
    # are read by several tasks where there are more files than cores)
    assert told["groups"] <= told["moved"] <= HOSTS * DAYS * told["groups"]


def test_spark_reads_only_the_columns_that_are_needed(told: dict[str, Any]) -> None:
    schema = re.search(r"ReadSchema: struct<(.*)>$", told["plan"], re.MULTILINE)
    assert schema is not None
    assert {part.partition(":")[0] for part in schema[1].split(",")} == {"context_len", "tokens", "step_us", "reconciled", "flags"}


@whole
def test_a_server_of_spark_connect_gives_the_same(root: Path) -> None:
    """In a process of its own: one server, and a session that knows nothing but its URL."""
    code = f"""
import json, os, sys, warnings
warnings.simplefilter("ignore")
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
from pyspark.sql import SparkSession
SparkSession.builder.remote("local[1]").config("spark.driver.memory", "512m").config("spark.sql.shuffle.partitions", "2").getOrCreate()
import ddtree_metrics as ddt
lake = ddt.open_dataset({str(root)!r}, engine="sc://localhost")
frame = lake.by_context("host", width=65536).frame()
print("told " + frame[["host", "bin", "rows", "step_time_mean_ms"]].to_json(orient="records"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(re.search(r"^told (.*)$", done.stdout, re.MULTILINE)[1])
    mine = ddt.open_dataset(root).by_context("host", width=65536).frame()[["host", "bin", "rows", "step_time_mean_ms"]]
    assert found == json.loads(mine.to_json(orient="records"))
