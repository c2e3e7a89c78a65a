"""What an explanation costs: ``diagnose`` and ``render_report`` against reading the same log, in one run.

    python -m benchmarks.bench_explain                     a million steps with their requests, as a journal export
    python -m benchmarks.bench_explain --steps 100000 --kind decode --keep /tmp/log

The log is simulated: one to four requests at a time, two server starts, idle times, retractions, lost lines and jumps of the clock, each
request with the lines that the server writes of it. Every round is a process of its own; what counts is CPU time (user and system), and
parts are timed inside of it: reading, diagnosis, report. Imports are counted with the part that needs them first. The peak is that of the
whole process. The best round of each is taken, and all of them are printed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

KINDS = {"export": "journal.export", "json": "journal.json", "text": "server.log", "decode": "decode.log"}
PARTS = ("read", "diagnose", "report")


def make(path: Path, kind: str, steps: int) -> None:
    """Write the log: about so many steps, one request for every 200 of them."""
    from tests.simulator import Restart, Settings, simulate

    requests = max(20, steps // 150)
    length = steps * 0.045  # seconds, roughly
    run = simulate(
        Settings(
            seed=1,
            requests=requests,
            concurrency=4,
            think_s=9.0,
            output=(300, 4000),
            prompt=(50, 16_000),
            context_ms=2.0,
            pool=36_000,
            lost_share=0.0005,
            restarts=(Restart(length * 0.5, args={"tool_call_parser": "other"}),),
            clock_jumps=((length * 0.3, 4.0), (length * 0.7, -3.0)),
            decode_log_interval=1 if kind == "decode" else 40,
        )
    )
    if kind == "export":
        run.write_export(path)
    elif kind == "json":
        run.write_journal_json(path)
    elif kind == "text":
        run.write_text(path)
    else:  # stock lines only, one a step
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder) / "server.log"
            run.write_text(whole)
            with whole.open(encoding="utf-8") as lines, path.open("w", encoding="utf-8") as out:
                out.writelines(line for line in lines if "DDTREE metrics" not in line)


def once(path: Path) -> None:
    """Read, diagnose and report; print what each took as JSON."""
    import ddtree_metrics as ddt

    begun, wall = time.process_time(), time.perf_counter()
    made: dict[str, float] = {}

    def lap(name: str) -> None:
        nonlocal begun, wall
        made[name], made[f"{name}_wall"] = time.process_time() - begun, time.perf_counter() - wall
        made[f"{name}_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        begun, wall = time.process_time(), time.perf_counter()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        log = ddt.read_text(path)
        lap("read")
        found = ddt.diagnose(log)
        lap("diagnose")
        page = ddt.render_report(log, found)
        lap("report")
    made |= {"steps": len(log.steps), "decode": len(log.decode), "requests": len(log.requests), "events": len(log.events)}
    made |= {"page": len(page), "warnings": len(warned), "said_twice": len(warned) - len({str(w.message) for w in warned})}
    sys.stdout.write(json.dumps(made) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--kind", choices=KINDS, default="export")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a folder for the log, which is used again if it is there")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        once(args.run)
        return
    if args.make:
        make(args.make, args.kind, args.steps)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = (args.keep or Path(folder)) / f"{args.steps}-{KINDS[args.kind]}"
        command = [sys.executable, "-m", "benchmarks.bench_explain"]
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run([*command, "--make", str(path), "--kind", args.kind, "--steps", str(args.steps)], check=True)
        rounds = [
            json.loads(subprocess.run([*command, "--run", str(path)], check=True, stdout=subprocess.PIPE, text=True).stdout)
            for _ in range(args.rounds)
        ]
        size = path.stat().st_size / 1e6
    first = rounds[0]
    sys.stdout.write(
        f"{args.kind}, {size:,.0f} MB: {first['steps']:,} steps, {first['decode']:,} Decode lines, {first['requests']:,} requests, "
        f"{first['events']:,} events; page {first['page'] / 1e6:.2f} MB; {first['warnings']} warnings, {first['said_twice']} said again\n"
    )
    for part in PARTS:
        cpu = [r[part] for r in rounds]
        said = ", ".join(f"{c:.2f}" for c in cpu)
        peak = max(r[f"{part}_mb"] for r in rounds)
        sys.stdout.write(f"{part:9} {min(cpu):8.2f} s CPU  ({said})  peak so far {peak:6.0f} MB\n")
    best = {part: min(r[part] for r in rounds) for part in PARTS}
    sys.stdout.write(f"ratio (diagnose + report) / read {(best['diagnose'] + best['report']) / best['read']:.1f}\n")


if __name__ == "__main__":
    main()
