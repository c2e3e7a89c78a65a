"""What the benchmarks of exports share: run each way in a process of its own, in turn, and print a table of ratios."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

STEP = r"\] DDTREE metrics: bs=(\d+) budget=(\d+) actual_nodes=\[([\d, ]*)\] accepted_drafts=\[([\d, ]*)\] commit_lens=\[([\d, ]*)\]"
OURS = "ddtree-logs export"

COUNT = """
import sys, pyarrow.compute as pc, pyarrow.parquet as pq
table = pq.read_table(sys.argv[1], columns=["commit_lens"])
print(table.num_rows, pc.sum(pc.list_flatten(table["commit_lens"])).as_py() or 0)
"""


def awk_program(*keys: str) -> str:
    """Return what prints the time and some keys of each step line: the quickest that a shell gives, untyped, keys in any order."""
    shown = ", ".join(f'value["{key}"]' for key in keys)
    return AWK + f"  print substr($0, 2, at - 2), {shown}\n}}\n"


AWK = r"""
BEGIN { OFS = "\t" }
{
  at = index($0, "] DDTREE metrics: ")
  if (!at || substr($0, 1, 1) != "[") next
  n = split(substr($0, at + 18), word, " ")
  delete value
  key = ""
  for (i = 1; i <= n; i++) {
    e = index(word[i], "=")
    if (e) { key = substr(word[i], 1, e - 1); value[key] = substr(word[i], e + 1) }
    else value[key] = value[key] " " word[i]
  }
"""


def count_rows(path: Path) -> tuple[int, int]:
    done = subprocess.run([sys.executable, "-c", COUNT, str(path)], check=True, capture_output=True, text=True)
    steps, tokens = done.stdout.split()
    return int(steps), int(tokens)


def ours(source: list[str], out: Path) -> None:
    command = [sys.executable, "-m", "ddtree_metrics", "export", *source, "-o", str(out), "--force"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)


def write_frame(rows: list[tuple[object, ...]], out: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame(rows, columns=["time", "bs", "budget", "nodes", "accepted", "commit_lens"])
    frame.to_parquet(out)


def numbers(text: str) -> list[int]:
    return [int(v) for v in text.split(",")]


def measured(work: Callable[[], None]) -> tuple[float, float, float]:
    """Run in a child; return its CPU seconds, its wall seconds and its peak memory in MB."""
    read, write = os.pipe()
    begin = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        work()
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu = sum(u.ru_utime + u.ru_stime for u in used)
        os.write(write, json.dumps([cpu, max(u.ru_maxrss for u in used) / 1e3]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    if not data:
        sys.exit("a way ended without a result")
    cpu, memory = json.loads(data)
    return cpu, time.perf_counter() - begin, memory


def compare(title: str, items: int, ways: dict[str, Callable[[], None]], repeat: int, out: Path) -> dict[str, tuple[int, int]]:
    """Run all ways in turn; the first is the limit that the others are held against, and writes nothing to count."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    memory: dict[str, float] = {}
    found: dict[str, tuple[int, int]] = {}
    limit = next(iter(ways))
    for _ in range(repeat):
        for name, work in ways.items():
            out.unlink(missing_ok=True)
            cpu, wall, memory[name] = measured(work)
            taken[name].append((cpu, wall))
            if out.exists():
                found[name] = count_rows(out)
    middle = {name: statistics.median(cpu for cpu, _ in some) for name, some in taken.items()}
    print(f"\n{title}\n")
    print(f"| way | CPU s, median of {repeat} (min-max) | times {limit} | against ours | wall / CPU | k/CPU s | peak MB | steps | tokens |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, some in taken.items():
        cpu = middle[name]
        span = f"{cpu:.2f} ({min(c for c, _ in some):.2f}-{max(c for c, _ in some):.2f})"
        wall = statistics.median(w / c for c, w in some)
        steps, tokens = (f"{n:,}" for n in found[name]) if name in found else ("", "")
        ratios = f"{cpu / middle[limit]:.1f} | {cpu / middle[OURS]:.2f}x | {wall:.2f}"
        print(f"| {name} | {span} | {ratios} | {items / cpu / 1e3:.0f} | {memory[name]:.0f} | {steps} | {tokens} |")
    return found
