"""A log file to Parquet, against grep and what one would otherwise run, in the same run.

    python benchmarks/bench_export.py [--lines 5000000] [--repeat 3]

The limit is `LC_ALL=C grep -c` into a pipe: it counts lines, and reads nothing. Each way runs in a process of its own, in turn, and its
CPU seconds (user + system, children included) are taken. Absolute times mean little on a shared machine: read the ratios. What each way
found is counted afterwards, from the file it wrote; for ours it must be what was put in.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from measuring import OURS, STEP, awk_program, compare, numbers, ours, write_frame

HERE = Path(__file__).resolve().parent
AWK = awk_program("bs", "budget", "actual_nodes", "accepted_drafts", "commit_lens")


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


def by_grep(log: Path) -> None:
    """Count lines, into a pipe."""
    with log.open("rb") as file:
        subprocess.run(
            ["grep", "-c", "DDTREE metrics: "], stdin=file, stdout=subprocess.PIPE, check=True, env={**os.environ, "LC_ALL": "C"}
        )


def by_awk(log: Path, out: Path) -> None:
    """Let mawk pick the keys, in any order, and DuckDB type them and write Parquet."""
    import duckdb

    picked = out.with_suffix(".tsv")
    with picked.open("wb") as sink:
        subprocess.run(["mawk", AWK, str(log)], stdout=sink, check=True, env={**os.environ, "LC_ALL": "C"})
    names = ("nodes", "accepted", "commit_lens")
    lists = ", ".join(f"case when {n}[1] = '[' then {n}::int[] else [{n}::int] end as {n}" for n in names)
    kinds = ", ".join(f"'{name}': 'varchar'" for name in ("time", "bs", "budget", *names))
    duckdb.sql(
        f"copy (select time, bs::int as bs, budget::int as budget, {lists} from read_csv('{picked}', delim='\t', header=false, quote='', "
        f"columns={{{kinds}}})) to '{out}' (format parquet, compression zstd)"
    )
    picked.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lines", type=int, default=5_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="only ours, grep, and mawk with DuckDB")
    parser.add_argument("--log", type=Path, help="a log of make_log.py; otherwise one is made")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        out, log = folder / "x.parquet", args.log or folder / "run.log"
        if args.log is None:
            command = [sys.executable, str(HERE / "make_log.py"), str(log), "--lines", str(args.lines)]
            subprocess.run(command, check=True, capture_output=True)
        truth = json.loads(Path(f"{log}.truth.json").read_text())
        ways: dict[str, Callable[[], None]] = {"grep -c": lambda: by_grep(log), OURS: lambda: ours([str(log)], out)}
        if shutil.which("mawk"):
            ways["mawk, DuckDB"] = lambda: by_awk(log, out)
        if not args.quick:
            ways["re line by line, pandas"] = lambda: by_script(log, out)
        title = f"A log file of {truth['lines']:,} lines ({log.stat().st_size / 1e6:.0f} MB)"
        found = compare(title, truth["lines"], ways, args.repeat, out)
    print("\nThe scripts read one spelling or one kind of line and check nothing; what they miss is missing from their counts.")
    if found[OURS] != (truth["steps"], truth["commit"]):
        sys.exit("what was found is not what was put in")
    return 0


if __name__ == "__main__":
    sys.exit(main())
