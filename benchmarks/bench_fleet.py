"""Ask a lake of 100 million steps by context and host, on DuckDB through Ibis: CPU, wall time, memory, bytes read.

    python -m benchmarks.bench_fleet [--steps 100000000] [--keep LAKE/]

Four hosts have 25 days each. The files of one day are made and linked into the others, which differ in nothing that costs time. Each
question runs in a process of its own: ``context`` by context and host, ``start`` by server start, ``survival`` by depth and host, and the
whole ``summary``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fleet_lakes import host_rows, write

HOSTS, DAYS = 4, 25
QUESTIONS = ("nothing", "context", "start", "survival", "summary")


def generate(root: Path, steps: int) -> None:
    """Write one day of each host, and link it into the others."""
    each = steps // (HOSTS * DAYS)
    for number in range(HOSTS):
        write(root, host_rows(f"host{number}", each, seed=number), source=f"host{number}")
    for file in list((root / "request_steps").rglob("*.parquet")):
        for day in range(1, DAYS):
            folder = file.parent.parent / f"date=2025-{11 if day < 7 else 12}-{day:02d}"
            folder.mkdir()
            os.link(file, folder / file.name)


def run(question: str, root: Path) -> None:
    """Ask one question, and print what it took as JSON."""
    from ddtree_metrics.fleet import open_dataset
    from ddtree_metrics.fleet.overview import summarise_lake

    began, cpu = time.perf_counter(), time.process_time()
    lake = open_dataset(root)
    rows = 0
    if question == "context":
        rows = int(lake.by_context("host", width=4096).frame()["rows"].sum())
    elif question == "start":
        rows = int(lake.tokens_per_step("start").frame()["n"].sum())
    elif question == "survival":
        rows = int(lake.survival("host").frame().groupby("host")["rows"].max().sum())
    elif question == "summary":
        rows = summarise_lake(lake).total.steps
    took = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - began, "rows": rows}
    print(json.dumps({**took, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000_000)
    parser.add_argument("--keep", type=Path, help="the lake to make, or to ask again")
    parser.add_argument("--ask", choices=QUESTIONS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ask:
        run(args.ask, args.keep)
        return
    with tempfile.TemporaryDirectory() as folder:
        root = args.keep or Path(folder) / "lake"
        if not root.exists():
            generate(root, args.steps)
        files = list(root.rglob("*.parquet"))
        size = sum(file.stat().st_size for file in files)
        print(f"{len(files)} files, {size / 1e6:,.0f} MB, {size / args.steps:.2f} bytes a step")
        print(f"{'question':10} {'rows':>12} {'CPU s':>8} {'wall s':>8} {'peak MB':>8}")
        for question in QUESTIONS:
            command = [sys.executable, "-m", "benchmarks.bench_fleet", "--ask", question, "--keep", str(root)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            took = json.loads(done.stdout)
            assert question == "nothing" or took["rows"] == args.steps, f"{question} counted {took['rows']} rows"
            print(f"{question:10} {took['rows']:12,} {took['cpu']:8.2f} {took['wall']:8.2f} {took['mb']:8.0f}")


if __name__ == "__main__":
    main()
