"""How fast the engine turns lines into tables, against a shell script and a plain Python loop, in one run.

    python benchmarks/bench_parse.py --lines 1000000

Three readers read the same log, in turn, several times; each runs in a process of its own, and what counts is the CPU time of that
process (user and system, children included), less that of the same process doing nothing (start and imports). All three must find
every step with its values, or the run fails; the engine must find all other kinds of line besides, which the script does not read.

The engine is fed with batches of lines that are ready in memory: this measures reading the lines, not the file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import awk_program

HERE = Path(__file__).resolve().parent
BATCH = 32_768

AWK = awk_program("bs", "budget", "actual_nodes", "accepted_drafts", "commit_lens", "avg_accepted_drafts", "avg_commit_len")

COUNTED = {"steps": "steps", "decode": "decode", "prefill": "prefill", "request_lines": "access"}
# What is summed up, and of which column of which table.
SUMS: dict[str, tuple[str, str]] = {
    **{name: (table, "") for table, name in COUNTED.items()},
    "more": ("", ""),
    "batch_size": ("steps", "batch_size"),
    "budget": ("steps", "budget"),
    "elements": ("steps", "nodes"),
    "nodes": ("steps", "nodes"),
    "accepted": ("steps", "accepted_drafts"),
    "commit": ("steps", "commit_lens"),
    "tokens": ("decode", "tokens"),
    "new_tokens": ("prefill", "new_tokens"),
}


@dataclasses.dataclass
class Step:
    """What the plain loop makes of a line."""

    head: str
    batch_size: int
    budget: int
    nodes: list[int]
    accepted: list[int]
    commit: list[int]
    avg_accepted: float
    avg_commit: float


def ints(text: str) -> list[int]:
    return [int(v) for v in text.strip("[]").split(",") if v.strip()]


def by_engine(log: Path) -> dict[str, int]:
    """Read with the engine; the CPU time of making the batches is taken off."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from ddtree_metrics.dialects.engine import Parser
    from ddtree_metrics.sources import LINE_SCHEMA

    text = log.read_text(encoding="utf-8").split("\n")[:-1]
    batches = []
    for start in range(0, len(text), BATCH):
        some = text[start : start + BATCH]
        given = {"message": pa.array(some), "where": pa.array([f"{log.name}:{n}" for n in range(start + 1, start + len(some) + 1)])}
        columns = [given.get(f.name, pa.nulls(len(some), f.type)) for f in LINE_SCHEMA]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=LINE_SCHEMA))
    lines = len(text)
    del text
    parser = Parser(["sglang", "journald"], on_error="skip")
    found = dict.fromkeys(SUMS, 0)
    found["lines"] = lines
    mean = 0.0
    spent = 0.0
    for batch in batches:
        begin = time.process_time()
        tables = parser.feed(batch).tables
        spent += time.process_time() - begin
        for name, table in tables.items():
            found[COUNTED.get(name, "more")] += table.num_rows
        for key, (name, column) in SUMS.items():
            if column and name in tables:
                values = tables[name].column(column)
                values = pc.list_flatten(values) if pa.types.is_list(values.type) else values
                found[key] += len(values) if key == "elements" else int(pc.sum(values).as_py() or 0)
        mean += pc.sum(tables["steps"].column("avg_commit_len")).as_py() if "steps" in tables else 0
    return {
        **found,
        "commit_x100": round(mean * 100),
        "cpu_us": round(spent * 1e6),
        "misses": parser.misses["sglang"],
        "broken": parser.broken.total,
    }


def by_awk(log: Path) -> dict[str, int]:
    """Read with mawk; the result is text, and is summed up outside of what is measured."""
    with tempfile.NamedTemporaryFile("r", suffix=".tsv", encoding="utf-8") as out:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with Path(out.name).open("w") as sink:
            subprocess.run(["mawk", AWK, str(log)], stdout=sink, check=True, env={**os.environ, "LC_ALL": "C"})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        made = dict.fromkeys(("steps", "batch_size", "budget", "elements", "nodes", "accepted", "commit", "commit_x100"), 0)
        for line in out:
            _, size, budget, nodes, accepted, commit, _, mean = line.rstrip("\n").split("\t")
            made["steps"] += 1
            made["batch_size"] += int(size)
            made["budget"] += int(budget)
            made["elements"] += len(ints(nodes))
            made["nodes"] += sum(ints(nodes))
            made["accepted"] += sum(ints(accepted))
            made["commit"] += sum(ints(commit))
            made["commit_x100"] += round(float(mean) * 100)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**made, "cpu_us": round(spent * 1e6)}


def by_loop(log: Path) -> dict[str, int]:
    """Read line by line with ``re`` into dataclasses, and make a frame of them."""
    import pandas as pd

    usual = re.compile(r"\[([^\]]*)\] DDTREE metrics: (.*)")
    pair = re.compile(r"(\w+)=(\[[^\]]*\]|\S+)")
    begin = time.process_time()
    steps = []
    with log.open(encoding="utf-8") as file:
        for line in file:
            found = usual.match(line)
            if found is None:
                continue
            value = dict(pair.findall(found[2]))
            steps.append(
                Step(
                    found[1], int(value["bs"]), int(value["budget"]), ints(value["actual_nodes"]), ints(value["accepted_drafts"]),
                    ints(value["commit_lens"]), float(value["avg_accepted_drafts"]), float(value["avg_commit_len"]),
                )
            )  # fmt: skip
    frame = pd.DataFrame([vars(s) for s in steps])
    spent = time.process_time() - begin
    return {
        "steps": len(frame), "batch_size": int(frame["batch_size"].sum()), "budget": int(frame["budget"].sum()),
        "elements": int(frame["nodes"].map(len).sum()), "nodes": int(frame["nodes"].map(sum).sum()),
        "accepted": int(frame["accepted"].map(sum).sum()), "commit": int(frame["commit"].map(sum).sum()),
        "commit_x100": round(frame["avg_commit"].sum() * 100), "cpu_us": round(spent * 1e6),
    }  # fmt: skip


READERS = {"engine": by_engine, "mawk": by_awk, "re + dataclass + pandas": by_loop}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--odd", type=float, default=0.005, help="share of step lines that are written in another way")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--log", type=Path, help="a log of make_log.py; otherwise one is made")
    parser.add_argument("--reader", choices=READERS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.reader:
        print(json.dumps(READERS[given.reader](given.log)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        log = given.log or Path(folder) / "run.log"
        if given.log is None:
            options = ["--lines", str(given.lines), "--odd", str(given.odd)]
            subprocess.run([sys.executable, str(HERE / "make_log.py"), str(log), *options], check=True)
        return compare(log, given.repeat)


def compare(log: Path, repeat: int) -> int:
    """Run all readers in turn, check what they found, print the ratios."""
    truth = json.loads(Path(f"{log}.truth.json").read_text())
    names = [n for n in READERS if n != "mawk" or shutil.which("mawk")]
    spent: dict[str, list[float]] = {n: [] for n in names}
    wrong = 0
    for _ in range(repeat):
        for name in names:
            command = [sys.executable, str(Path(__file__).resolve()), "--reader", name, "--log", str(log)]
            env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout)
            spent[name].append(found["cpu_us"] / 1e6)
            differs = {k: (v, truth[k]) for k, v in found.items() if k in truth and truth[k] != v}
            if differs:
                wrong += 1
                print(f"{name}: found, and is: {differs}", file=sys.stderr)
    lines = truth["lines"]
    base = min(spent["engine"])
    print(f"{lines} lines, {log.stat().st_size / 1e6:.0f} MB, {truth['odd']} step lines written in another way; best of {repeat}")
    print(f"{'reader':26s} {'CPU s':>7s} {'k lines/CPU-s':>14s} {'CPU / engine':>13s}  reads")
    what = {"engine": "all kinds, typed", "mawk": "step lines, as text"}
    for name in names:
        best = min(spent[name])
        print(f"{name:26s} {best:7.2f} {lines / best / 1e3:14.0f} {best / base:13.2f}  {what.get(name, 'step lines, typed')}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
