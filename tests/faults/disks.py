"""Where output goes: full disks, limits, signals, outputs that are inputs, and names that are odd."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from tests.faults.attempts import Attempt, Outcome, attempt, basics, exported, judge, left_behind
from tests.faults.lines import COLUMNS, START, Log, log
from tests.journals import entry, field

COMMANDS: dict[str, list[str]] = {
    "a file": ["export", "a.log", "-o", "out/x.jsonl"],
    "Parquet": ["export", "a.log", "-o", "out/x.parquet"],
    "packed CSV": ["export", "a.log", "-o", "out/x.csv.gz"],
    "Arrow": ["export", "a.log", "-o", "out/x.arrow"],
    "a folder": ["export", "a.log", "-o", "out/all/"],
    "a dataset": ["export", "a.log", "--partition", "date", "-o", "out/lake/"],
    "stdout": ["export", "a.log", "-o", "-", "--format", "csv"],
    "a summary": ["summary", "a.log"],
    "a page": ["report", "a.log", "-o", "out/page.html"],
    "a picture": ["plot", "a.log", "-o", "out/x.svg"],
}
QUICK = [name for name in COMMANDS if name not in ("a page", "a picture")]


_BESIDES = ("ddtree-logs: warning:", "ddtree-logs: note:", "ddtree-logs: wrote ")


def one_sentence(ran: Attempt, outcome: Outcome, recipe: str) -> None:
    """Count what is said of a failure and is no sentence of the program's."""
    said = [line for line in ran.err.splitlines() if line.strip() and not line.startswith(_BESIDES)]
    # what a command shows may be the reason itself
    if ran.code not in (0, None) and not ran.out and len([line for line in said if line.startswith("ddtree-logs: ")]) != 1:
        outcome.note("crashed", f"{recipe}: exit {ran.code}, and said {said[:3]}")


def mounted(place: Path, kilobytes: int) -> bool:
    """Put a small file system where output goes, if this machine lets us."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)], capture_output=True, check=False)
    return done.returncode == 0


def full(number: int, place: Path) -> Outcome:
    """Write where too little fits: the output is whole, or one sentence says why not and nothing is left."""
    rng, outcome = random.Random(f"full/{number}"), Outcome()
    written, out = log(rng, rng.choice((20, 400))), place / "out"
    (place / "a.log").write_bytes(written.text)
    out.mkdir()
    how = rng.choice(("disk", "disk", "file size", "open files", "/dev/full", "temporary folder"))
    name = rng.choice(("stdout", "a summary") if how == "/dev/full" else QUICK + (["a page", "a picture"] if rng.random() < 0.1 else []))
    limits, env, stdout, small = {}, {}, None, None
    if how == "disk":
        small = out
    elif how == "temporary folder":
        small = place / "tmp"
        small.mkdir()
        env["TMPDIR"] = str(small)
    elif how == "file size":
        limits[resource.RLIMIT_FSIZE] = rng.choice((0, 1, 500, 4096, 20_000))
    elif how == "open files":
        limits[resource.RLIMIT_NOFILE] = rng.choice((3, 4, 5, 6, 7, 8, 10, 12, 16))
    else:
        stdout = "/dev/full"
    if small is not None and not mounted(small, rng.choice((4, 8, 16, 40))):
        outcome.tried = 0
        return outcome
    recipe = f"{name} of {len(written.lines)} lines, {how} {limits or ''}"
    try:
        ran = attempt(COMMANDS[name], place, limits=limits, env=env, stdout=stdout)
        if basics(ran, outcome, recipe):
            one_sentence(ran, outcome, recipe)
            if ran.code == 0 and name == "a file":
                judge(written.rows, exported(out / "x.jsonl", COLUMNS), outcome, recipe)
            if ran.code == 0 and how == "/dev/full":
                outcome.note("lost", f"{recipe}: exit 0")
            if ran.code == 0 and name not in ("stdout", "a summary") and not any(p.is_file() for p in out.rglob("*")):
                outcome.note("lost", f"{recipe}: exit 0 and no output")
            asked = (
                set() if ran.code else {str(p.relative_to(place)) for p in out.rglob("*") if ".partial" not in p.name and p.name[0] != "."}
            )
            left_behind(place, {"a.log", "out", "tmp", *asked}, outcome, recipe)
    finally:
        if small is not None:
            subprocess.run(["umount", "-l", str(small)], capture_output=True, check=False)
    return outcome


def ended(number: int, place: Path) -> Outcome:
    """End an export by a signal: its output is whole or not there; the next run succeeds and clears what a killed one left."""
    rng, outcome = random.Random(f"ended/{number}"), Outcome()
    written = log(rng, 2000)
    (place / "a.log").write_bytes(written.text)
    (place / "out").mkdir()
    name = rng.choice(("a file", "Parquet", "a folder", "a dataset"))
    how, delay = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)), 0.02 + rng.random() * 0.2
    recipe = f"{name}, {how.name} after {delay:.3f} s"

    def end(child: int) -> None:
        time.sleep(delay)
        os.kill(child, how)

    ran = attempt(COMMANDS[name], place, during=end)
    ran.killed = how == signal.SIGKILL
    basics(ran, outcome, recipe)
    known = {"a.log", "out"}
    if how != signal.SIGKILL:
        left_behind(place, known | finished(place), outcome, recipe)
    if name == "a file" and (place / "out/x.jsonl").exists():
        judge(written.rows, exported(place / "out/x.jsonl", COLUMNS), outcome, recipe)
    again = attempt([*COMMANDS[name], "--force"], place)
    if basics(again, outcome, f"{recipe}, then again"):
        if again.code != 0:
            outcome.note("crashed", f"{recipe}, then again: exit {again.code}, {again.err[-200:]}")
        if name == "a file":
            judge(written.rows, exported(place / "out/x.jsonl", COLUMNS), outcome, f"{recipe}, then again")
        left_behind(place, known | finished(place), outcome, f"{recipe}, then again")
    return outcome


def finished(place: Path) -> set[str]:
    """Name the files that an export was asked for."""
    return {str(p.relative_to(place)) for p in (place / "out").rglob("*") if ".partial" not in p.name and not p.name.startswith(".")}


def onto(number: int, place: Path) -> Outcome:
    """Give the input as the output, under any name, or no name at all: the input stays, and nothing is written."""
    rng, outcome = random.Random(f"onto/{number}"), Outcome()
    written = log(rng, 20)
    kind = rng.choice(("jsonl", "csv", "log"))
    source = place / f"a.{kind}"
    source.write_bytes(written.text)
    (place / "folder").mkdir()
    (place / "here").symlink_to(place)
    (place / "link.jsonl").symlink_to(source)
    os.link(source, place / "hard.jsonl")
    (place / "folder/far.jsonl").symlink_to("../link.jsonl")
    names = [source.name, f"./{source.name}", f"folder/../{source.name}", str(source), f"here/{source.name}", "link.jsonl", "hard.jsonl"]
    names += [f"/proc/self/cwd/{source.name}", "folder/far.jsonl", f"here/here/{source.name}", "", ".parquet", ".csv", "folder/.jsonl"]
    name, read = rng.choice(names), rng.choice((source.name, "link.jsonl", "hard.jsonl", "here/link.jsonl", "folder/far.jsonl"))
    command = rng.choice(
        (["export"], ["export"], ["export", "-t", "decode"], ["report"], ["plot"], ["summary", "--csv"], ["diagnose", "--json"])
    )
    more = ["--format", "jsonl"] if command[0] == "export" and rng.random() < 0.5 else []
    arguments = [command[0], read, *command[1:], *more, "-o", name, *(["--force"] if rng.random() < 0.8 else [])]
    recipe = " ".join(a or repr(a) for a in arguments)
    if command[0] == "diagnose":
        arguments = [command[0], read, "--json"]
    before = {p: p.is_symlink() for p in place.rglob("*")}
    ran = attempt(arguments, place, seconds=60)
    basics(ran, outcome, recipe)
    if source.read_bytes() != written.text or any(p.is_symlink() != link for p, link in before.items()):
        outcome.note("lost", f"{recipe}: the input is gone")
    if ran.code == 0 and command[0] != "diagnose":
        outcome.note("altered", f"{recipe}: exit 0")
    left_behind(place, {str(p.relative_to(place)) for p in before}, outcome, recipe)
    return outcome


ODD_NAMES = (
    b"\xff\xfe.log", b"caf\xe9.log", b"a\x1b[2Jb.log", "a\u202eb.log".encode(), b"a\nb.log", b"a b.log", b"-x.log", b"a'\"b.log",
    b"\x07.log",    "日本.log".encode(), b"%s{}.log", b"a\\b.log", b"[x].log", b"*.log", ("é" * 120 + ".log").encode(),
    b"a\x7f\xc2\x9b31m.log", b"\xed\xa0\x80.log",
)  # fmt: skip
ODD_WRITERS = (
    "gpu\x1b[31m1", "a\u202eb", "h" * 300, "é" * 150, "a/b", "..", "a=b", "a%2Fb", "x\x07", "", " ", "a\nb", "日本", "a\u200bb", "=cmd()",
    "NaN", "null",    "__HIVE_DEFAULT_PARTITION__", "a\x9b31mb", "con", "." * 260, "a\\b", "a:b", "\ufeffx",
)  # fmt: skip


def named(number: int, place: Path) -> Outcome:
    """Give files, hosts and units odd names: all rows come, partitions come back with their names, and the terminal is told no orders."""
    rng, outcome = random.Random(f"named/{number}"), Outcome()
    written = log(rng, 20, others=0.2)
    if rng.random() < 0.5:
        file, host = rng.choice(ODD_NAMES), None
        raw = written.text
    else:
        file, host = b"a.export", rng.choice(ODD_WRITERS)
        unit = rng.choice(("sglang.service", rng.choice(ODD_WRITERS) + ".service"))
        raw = b"".join(odd_entries(written, host, unit))
    (place / "in").mkdir()
    Path(os.fsdecode(bytes(place / "in") + b"/" + file)).write_bytes(raw)
    recipe = f"file {file!r}, host {host and host[:20]!r}"
    given = b"./in/" + file
    partition = rng.choice(("host", "host,date", "unit"))
    ran = attempt(["export", given, "-o", "out.jsonl"], place)
    if basics(ran, outcome, recipe):
        judge(written.rows, exported(place / "out.jsonl", COLUMNS), outcome, recipe)
    parts = attempt(["export", given, "--partition", partition, "-o", "lake/"], place)
    if basics(parts, outcome, f"{recipe}, by {partition}") and parts.code != 0:
        outcome.note("lost", f"{recipe}, by {partition}: exit {parts.code}, {parts.err[-200:]}")
    back = attempt(["export", "lake", "-o", "back.jsonl"], place)
    if basics(back, outcome, f"{recipe}, by {partition}, read back"):
        wanted = exported(place / "out.jsonl", (*COLUMNS, "host", "unit"))
        judge(wanted, exported(place / "back.jsonl", (*COLUMNS, "host", "unit")), outcome, f"{recipe}, by {partition}, read back")
    for command in rng.sample((["inspect"], ["inspect", "--json"], ["summary"], ["summary", "--csv"], ["diagnose"], ["requests"]), 2):
        basics(attempt([command[0], given, *command[1:]], place), outcome, f"{recipe}, {' '.join(command)}")
    return outcome


def odd_entries(written: Log, host: str, unit: str) -> Iterable[bytes]:
    """Wrap lines as a journal export does, from a host and a unit."""
    for number, line in enumerate(written.lines):
        whole = entry(START + 100_000 * number, line, unit=None, _SYSTEMD_UNIT=unit)
        yield whole.replace(b"_HOSTNAME=gpu1\n", field("_HOSTNAME", host.encode()))
