"""A journal to Parquet, against a loop in C over libsystemd and what one would otherwise run, in the same run.

    python benchmarks/bench_journal.py [--entries 1000000] [--repeat 3]

The loop in C is compiled here (gcc, libsystemd-dev): next, realtime, monotonic, MESSAGE and _PID of each entry of the unit, and nothing
done with them. Each way runs in a process of its own, in turn, and its CPU seconds (user + system, children included) are taken. Absolute
times mean little on a shared machine: read the ratios. What each way found must be what was put in.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from measuring import OURS, STEP, compare, numbers, ours, write_frame

UNIT = "sglang-bench.service"
LOOP = r"""
#include <stdio.h>
#include <systemd/sd-journal.h>
int main(int count, char **words) {
    const char *fields[] = {"MESSAGE", "_PID"};
    sd_journal *journal;
    unsigned long entries = 0, bytes = 0;
    uint64_t time, mono;
    sd_id128_t boot;
    if (count != 3 || sd_journal_open_directory(&journal, words[1], 0) < 0 || sd_journal_add_match(journal, words[2], 0) < 0) return 1;
    sd_journal_set_data_threshold(journal, 0);
    while (sd_journal_next(journal) > 0) {
        if (sd_journal_get_realtime_usec(journal, &time) < 0 || sd_journal_get_monotonic_usec(journal, &mono, &boot) < 0) return 1;
        for (int i = 0; i < 2; i++) {
            const void *data;
            size_t size;
            if (sd_journal_get_data(journal, fields[i], &data, &size) >= 0) bytes += size;
        }
        entries++;
    }
    printf("%lu %lu\n", entries, bytes);
    return 0;
}
"""


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


def make_loop(folder: Path) -> Path:
    """Compile the loop."""
    source, program = folder / "loop.c", folder / "loop"
    source.write_text(LOOP)
    done = subprocess.run(["cc", "-O2", str(source), "-o", str(program), "-lsystemd"], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the loop in C needs gcc and libsystemd-dev: {done.stderr}")
    return program


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


def by_jq(folder: Path, out: Path) -> None:
    """Let jq pick the numbers out of ``journalctl -o json``, as text, and pandas type them."""
    import pandas as pd

    program = (
        r'select(.MESSAGE | type == "string") | .__REALTIME_TIMESTAMP as $t | .MESSAGE '
        r'| capture("] DDTREE metrics: bs=(?<b>[0-9]+) budget=(?<g>[0-9]+) actual_nodes=\\[(?<n>[^]]*)\\] '
        r"accepted_drafts=\\[(?<a>[^]]*)\\] "
        r'commit_lens=\\[(?<c>[^]]*)\\]") | [$t, .b, .g, .n, .a, .c] | @tsv'
    )
    command = ["journalctl", "--directory", str(folder), "-u", UNIT, "-o", "json", "--all", "--no-pager"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as pipe:
        picked = subprocess.run(["jq", "-r", program], stdin=pipe.stdout, stdout=subprocess.PIPE, check=True)
    rows = [line.split("\t") for line in picked.stdout.decode().splitlines()]
    frame = pd.DataFrame(rows, columns=["time", "bs", "budget", "nodes", "accepted", "commit_lens"])
    for name in ("nodes", "accepted", "commit_lens"):
        frame[name] = frame[name].map(numbers)
    frame.to_parquet(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="only ours and the loop in C")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        place, out = folder / "journal", folder / "x.parquet"
        place.mkdir()
        make_journal(place, args.entries)
        loop = [str(make_loop(folder)), str(place), f"_SYSTEMD_UNIT={UNIT}"]
        ways: dict[str, Callable[[], object]] = {
            "the loop in C": lambda: subprocess.run(loop, check=True, stdout=subprocess.DEVNULL),
            OURS: lambda: ours(["-D", str(place), "-u", UNIT], out),
        }
        if not args.quick:
            ways["for entry in Reader, re, pandas"] = lambda: by_reader(place, out)
            ways["journalctl -o json, re, pandas"] = lambda: by_journalctl(place, out)
            if shutil.which("jq"):
                ways["journalctl -o json, jq, pandas"] = lambda: by_jq(place, out)
        found = compare(f"A journal of {args.entries:,} entries, three of four of the unit", args.entries * 3 // 4, ways, args.repeat, out)
        # of 40 entries 10 are of another unit, and entry 0 is no step; tokens are 1 to 6, in turn
        kept = [i for i in range(args.entries) if i % 4 != 3 and i % 40]
        if not all(one == (len(kept), sum(i % 6 + 1 for i in kept)) for one in found.values()):
            sys.exit("what was found is not what was put in")
    return 0


if __name__ == "__main__":
    sys.exit(main())
