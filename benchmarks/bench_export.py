"""End to end: a journal and a log file to Parquet, against what one would otherwise run, in the same run.

    python benchmarks/bench_export.py [--entries 200000] [--lines 500000] [--repeat 3]

Each way runs in a process of its own, in turn, and its CPU seconds (user + system, children included) are taken. Absolute times
mean little on a shared machine: read the ratios. What each way found (steps, and the sum of their committed tokens) is counted afterwards,
from the file it wrote; for the journal, and for the first way always, it must be what was put in.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
UNIT = "sglang-bench.service"
STEP = r"\] DDTREE metrics: bs=(\d+) budget=(\d+) actual_nodes=\[([\d, ]*)\] accepted_drafts=\[([\d, ]*)\] commit_lens=\[([\d, ]*)\]"


def make_journal(folder: Path, entries: int) -> Path:
    """Build a journal: three of four entries are of the unit, most of them steps."""
    export = folder / "bench.export"
    start = 1_777_982_401_000_000
    with export.open("w") as out:
        for i in range(entries):
            at = start + i * 33_000
            unit, message = UNIT, 'INFO:     192.0.2.7:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
            if i % 4 == 3:
                unit, message = "kubelet.service", "level=info msg=noise"
            elif i % 40:
                k = i % 6
                message = (
                    f"[2026-05-05 12:00:01 TP0] DDTREE metrics: bs=1 budget=16 actual_nodes=[17] accepted_drafts=[{k}] "
                    f"commit_lens=[{k + 1}] avg_accepted_drafts={k}.00 avg_commit_len={k + 1}.00"
                )
            fields = {
                "__REALTIME_TIMESTAMP": at, "__MONOTONIC_TIMESTAMP": 5_000_000 + i * 33_000, "_BOOT_ID": "1" * 32, "_TRANSPORT": "stdout",
                "PRIORITY": 6, "SYSLOG_FACILITY": 3, "SYSLOG_IDENTIFIER": "python3", "_STREAM_ID": "a" * 32, "_PID": 4242, "_UID": 1000,
                "_GID": 1000, "_COMM": "python3", "_EXE": "/usr/bin/python3", "_CMDLINE": "python3 -m sglang.launch_server",
                "_CAP_EFFECTIVE": 0, "_SYSTEMD_UNIT": unit, "_SYSTEMD_SLICE": "system.slice", "_MACHINE_ID": "2" * 32,
                "_HOSTNAME": "gpu1", "MESSAGE": message,
            }  # fmt: skip
            out.write("".join(f"{k}={v}\n" for k, v in fields.items()) + "\n")
    remote = next((p for p in ("/lib/systemd/systemd-journal-remote", "/usr/lib/systemd/systemd-journal-remote") if Path(p).exists()), None)
    if remote is None:
        sys.exit("systemd-journal-remote is needed: apt-get install -y systemd-journal-remote")
    subprocess.run([remote, "-o", str(folder / "bench.journal"), str(export)], check=True, capture_output=True)
    export.unlink()
    return folder


COUNT = """
import sys, pyarrow.compute as pc, pyarrow.parquet as pq
table = pq.read_table(sys.argv[1], columns=["commit_lens"])
print(table.num_rows, pc.sum(pc.list_flatten(table["commit_lens"])).as_py() or 0)
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


def by_reader(folder: Path, out: Path) -> None:
    """Read as the documentation of systemd-python shows it: one entry, one match, one tuple at a time."""
    import re

    from systemd import journal

    pattern = re.compile(STEP)
    rows = []
    reader = journal.Reader(path=str(folder))
    reader.add_match(_SYSTEMD_UNIT=UNIT)
    for entry in reader:
        found = pattern.search(entry["MESSAGE"])
        if found:
            bs, budget, *lists = found.groups()
            rows.append((entry["__REALTIME_TIMESTAMP"], int(bs), int(budget), *[numbers(v) for v in lists]))
    write_frame(rows, out)


def by_journalctl(folder: Path, out: Path) -> None:
    """Read ``journalctl -o json`` line by line."""
    import re

    pattern = re.compile(STEP)
    rows = []
    command = ["journalctl", "--directory", str(folder), "-u", UNIT, "-o", "json", "--all", "--no-pager"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as pipe:
        assert pipe.stdout is not None
        for line in pipe.stdout:
            entry = json.loads(line)
            message = entry.get("MESSAGE")
            found = pattern.search(message) if isinstance(message, str) else None
            if found:
                bs, budget, *lists = found.groups()
                rows.append((int(entry["__REALTIME_TIMESTAMP"]), int(bs), int(budget), *[numbers(v) for v in lists]))
    write_frame(rows, out)


def by_script(log: Path, out: Path) -> None:
    """Read a log file as a private script does: a regular expression a line, then pandas."""
    import re

    pattern = re.compile(r"^\[(\S+ \S+)[^\]]*" + STEP)
    rows = []
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            found = pattern.search(line)
            if found:
                time, bs, budget, *lists = found.groups()
                rows.append((time, int(bs), int(budget), *[numbers(v) for v in lists]))
    write_frame(rows, out)


def measured(work: Callable[[], None]) -> tuple[float, float]:
    """Run in a child; return its CPU seconds and its peak memory in MB."""
    read, write = os.pipe()
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
    return cpu, memory


def compare(title: str, items: int, ways: dict[str, Callable[[], None]], repeat: int, out: Path) -> dict[str, tuple[int, int]]:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    memory: dict[str, float] = {}
    found: dict[str, tuple[int, int]] = {}
    for _ in range(repeat):
        for name, work in ways.items():
            cpu, memory[name] = measured(work)
            found[name] = count_rows(out)
            taken[name].append(cpu)
    base = statistics.median(taken["ddtree-logs export"])
    print(f"\n{title}\n")
    print("| way | CPU s, median (min-max) | against ours | k/CPU s | peak MB | steps | tokens |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, cpus in taken.items():
        middle = statistics.median(cpus)
        span = f"{middle:.2f} ({min(cpus):.2f}-{max(cpus):.2f})"
        steps, tokens = found[name]
        print(f"| {name} | {span} | {middle / base:.2f}x | {items / middle / 1e3:.0f} | {memory[name]:.0f} | {steps:,} | {tokens:,} |")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--lines", type=int, default=500_000)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        place = folder / "journal"
        place.mkdir()
        make_journal(place, args.entries)
        out = folder / "x.parquet"
        own = ["-D", str(place), "-u", UNIT]
        ways: dict[str, Callable[[], None]] = {
            "ddtree-logs export": lambda: ours(own, out),
            "for entry in Reader, re, pandas": lambda: by_reader(place, out),
            "journalctl -o json, re, pandas": lambda: by_journalctl(place, out),
        }
        found = compare(f"A journal of {args.entries:,} entries, three of four of the unit", args.entries * 3 // 4, ways, args.repeat, out)
        # of 40 entries 10 are of another unit, and entry 0 is no step; tokens are 1 to 6, in turn
        kept = [i for i in range(args.entries) if i % 4 != 3 and i % 40]
        right = all(one == (len(kept), sum(i % 6 + 1 for i in kept)) for one in found.values())
        log = folder / "run.log"
        subprocess.run([sys.executable, str(HERE / "make_log.py"), str(log), "--lines", str(args.lines)], check=True, capture_output=True)
        size = log.stat().st_size / 1e6
        files: dict[str, Callable[[], None]] = {
            "ddtree-logs export": lambda: ours([str(log)], out),
            "re line by line, pandas": lambda: by_script(log, out),
        }
        found = compare(f"A log file of {args.lines:,} lines ({size:.0f} MB)", args.lines, files, args.repeat, out)
        truth = json.loads(Path(f"{log}.truth.json").read_text())
        right &= found["ddtree-logs export"] == (truth["steps"], truth["commit"])
        shutil.rmtree(place)
    print("\nThe scripts read one spelling of one kind of line and check nothing; lines in another spelling are missing from their counts.")
    if not right:
        sys.exit("what was found is not what was put in")
    return 0


if __name__ == "__main__":
    sys.exit(main())
