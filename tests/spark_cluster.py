"""A standalone Spark cluster on this machine, a master and two workers, asked about a lake: what it answers, and how it went about it.

    python -m tests.spark_cluster LAKE OUT.json [--few]

It is a process of its own: a session of Spark keeps its process's JVM, and two kinds of session do not live in one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAP = "512m"
CLASS = "org.apache.spark.deploy"


def java() -> bool:
    """Whether there is a JRE that Spark 4 runs on: 17 or newer."""
    try:
        said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return False
    found = re.search(r'version "(\d+)', said)
    return found is not None and int(found[1]) >= 17


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Start a master and two workers, give the master's URL, and end all three."""
    import pyspark

    home = Path(pyspark.__file__).parent
    env = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"}
    port = _free_port()
    url = f"spark://127.0.0.1:{port}"
    spark_class = str(home / "bin" / "spark-class")
    master = [f"{CLASS}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    worker = [f"{CLASS}.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", HEAP, "--webui-port", "0"]
    started = []
    try:
        for name, command in (
            ("master", master),
            ("one", [*worker, "-d", str(folder / "one"), url]),
            ("two", [*worker, "-d", str(folder / "two"), url]),
        ):
            log = (folder / f"{name}.log").open("w")
            started.append(subprocess.Popen([spark_class, *command], env=env, stdout=log, stderr=subprocess.STDOUT))
            log.close()
        until = time.monotonic() + 120
        while (folder / "master.log").read_text().count("Registering worker") < 2:
            if time.monotonic() > until or any(p.poll() is not None for p in started):
                raise RuntimeError("the cluster did not start: " + (folder / "master.log").read_text()[-2000:])
            time.sleep(0.2)
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            process.wait(30)


def session_of(url: str) -> Any:
    """Return a session of the cluster, with little memory and one executor a worker."""
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(url).appName("ddtree-metrics")
    more = {
        "spark.driver.memory": HEAP,
        "spark.executor.memory": HEAP,
        "spark.executor.cores": "1",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    for name, value in more.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def stages(session: Any) -> list[dict[str, Any]]:
    """Return what the driver says of the stages that ran."""
    root = session.sparkContext.uiWebUrl.replace(re.search(r"//([^:]+):", session.sparkContext.uiWebUrl)[1], "127.0.0.1")
    with urllib.request.urlopen(f"{root}/api/v1/applications/{session.sparkContext.applicationId}/stages") as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def ask(root: Path, engine: Any, *, few: bool = False) -> dict[str, Any]:
    """Ask a lake all that the fleet's analyses are, or a few; sums in order, so that two engines can be held against each other."""
    from ddtree_metrics.fleet import open_dataset
    from ddtree_metrics.fleet.split import split

    lake = open_dataset(root, engine=engine)
    asked = {
        "by_context": lake.by_context("host", width=4096),
        "by_start": lake.by_context("start", edges=[0, 1024, 8192, 1e6]),
        "by_day": lake.tokens_per_step("unit", "date"),
        "survival": lake.survival("host"),
        "by_budget": lake.by_budget(),
    }
    asked = {name: asked[name] for name in ("by_start", "survival")} if few else asked
    made: dict[str, Any] = {}
    for name, analysis in asked.items():
        table = analysis.sums().to_pandas()
        exact = table.drop(columns=[n for n in table.columns if n in ("tokens_per_step", "step_time_ms", "tok_per_s", "steps_us")])
        keys = [n for n in exact.columns if not n.startswith(("sum_", "n_")) and n not in ("n", "steps", "timed_steps", "requests")]
        exact = exact.sort_values(keys, ignore_index=True)[sorted(exact.columns)]
        made[name] = json.loads(exact.to_json(orient="split"))["data"]
    if few:
        return made
    curve = lake.by_context("host", width=4096).frame()
    made["curve"] = json.loads(curve.to_json(orient="records"))
    found = split(lake, "host:host0", "host:host1")
    made["split"] = [found.speed_ratio, found.step_time_ratio_equal, found.tokens_ratio_equal, found.mix_ratio]
    made["account"] = lake.account()
    return made


def main(root: Path, out: Path, *, few: bool) -> None:
    """Ask a lake on a cluster; write the answers, the plan of a histogram, what its stages moved, and what a server of Connect says."""
    from ddtree_metrics.fleet import open_dataset

    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder)) as url:
        session = session_of(url)
        began = time.monotonic()
        answers = ask(root, session, few=few)
        seconds = time.monotonic() - began
        lake = open_dataset(root, engine=session)
        before = {stage["stageId"] for stage in stages(session)}
        histogram = lake.by_context("host", width=4096)
        groups = histogram.sums().num_rows
        ran = [stage for stage in stages(session) if stage["stageId"] not in before]
        plan = session.sql("EXPLAIN FORMATTED " + lake.connection.compile(histogram.expression)).collect()[0][0]
        executors = len(session.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1
        session.stop()
        moved = sum(stage["shuffleWriteRecords"] for stage in ran)
        read = sum(stage["inputRecords"] for stage in ran)
        cpu = sum(stage["executorCpuTime"] for stage in ran) / 1e9
        told = {
            "cpu": cpu,
            "answers": answers,
            "plan": plan,
            "groups": groups,
            "moved": moved,
            "read": read,
            "executors": executors,
            "seconds": seconds,
        }
    out.write_text(json.dumps(told))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), Path(sys.argv[2]), few="--few" in sys.argv[3:])
