"""Text logs: through pipes, fuzzed, with odd numbers, given twice, and with secrets in them."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import re
import string
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddtree_metrics.dialects import DIALECTS
from ddtree_metrics.records import TABLES, ServerStart
from tests.faults.attempts import Attempt, Outcome, attempt, basics, exported, judge, left_behind
from tests.faults.journals import entries
from tests.faults.lines import COLUMNS, Log, log, strict
from tests.journals import build


def _zstd(raw: bytes) -> bytes:
    import pyarrow as pa

    return pa.compress(raw, codec="zstd", asbytes=True)


PACKED: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": _zstd}


def export(place: Path, *arguments: str, **more: Any) -> Attempt:
    return attempt(["export", *arguments, "-o", "out.jsonl", "--force"], place, **more)


def unseekable(number: int, place: Path) -> Outcome:
    """A pipe in place of a file, in each form, cut into pieces by chance."""
    rng, outcome = random.Random(f"pipe/{number}"), Outcome()
    made = log(rng, rng.choice((1, 30, 400)))
    ending, wrapped = rng.choice(list(PACKED)), rng.random() < 0.3
    raw = PACKED[ending](entries(made) if wrapped else made.text)
    how = rng.choice(("/dev/stdin", "-", "/dev/fd/0", "fifo", "/proc/self/fd/0"))
    recipe = f"{'export text' if wrapped else 'text'}{ending}, {len(raw)} bytes, through {how}"
    if how == "fifo":
        os.mkfifo(place / "fifo")
        reader, writer = None, None
    else:
        reader, writer = os.pipe()

    def feed() -> None:
        to = os.open(place / "fifo", os.O_WRONLY) if writer is None else writer
        at = 0
        try:
            while at < len(raw):
                at += os.write(to, raw[at : at + rng.choice((1, 7, 100, 4096, 65536))])
        except BrokenPipeError:
            pass
        os.close(to)

    thread = threading.Thread(target=feed, daemon=True)
    before = os.dup(reader) if reader is not None else None
    thread.start()
    ran = export(place, how, stdin=before, close=() if writer is None else (writer,))
    for end in (reader, before):
        if end is not None:
            os.close(end)
    if how == "fifo" and thread.is_alive():  # nobody opened it
        os.close(os.open(place / "fifo", os.O_RDONLY | os.O_NONBLOCK))
    thread.join(5)
    if basics(ran, outcome, recipe):
        judge(made.rows, exported(place / "out.jsonl", COLUMNS), outcome, recipe)
    left_behind(place, {"fifo", "out.jsonl"}, outcome, recipe)
    return outcome


ODD = (
    "1,024", "5,25", "1_000", "٣", "１２", "0x10", "1e3", "--3", "1.5", "3.", ".5", "nan", "inf", "-1", "99999999999999999999", "12abc",
    "1 2", "", "{3}", "true", "1;2", "1/2", "½", "²", "3-4", "9" * 400, "1,2,3", "1\u200b2", "4ms", "4%", "1'024", "1k",
)  # fmt: skip
"""What is no whole number from zero on, in whole; one in brackets or quotes is one."""


def odd_numbers(number: int, place: Path) -> Outcome:
    """Put what is no number, or not wholly one, into one field of many lines: each is broken, and no part of it is a row."""
    rng = random.Random(f"odd/{number}")
    made, changed = log(rng, 40, others=0.1), 0
    for at, key in enumerate(made.keys):
        if key is None or rng.random() < 0.3:
            continue
        odd, name = rng.choice(ODD), rng.choice(("bs", "budget", "actual_nodes", "accepted_drafts", "commit_lens"))
        before, _, rest = made.lines[at].partition(f"{name}=")
        if name in ("bs", "budget"):
            made.lines[at] = f"{before}{name}={odd} {rest.partition(' ')[2]}"
        else:
            inner, close, after = rest[1:].partition("]")
            values = inner.split(", ")
            values[rng.randrange(len(values))] = odd
            if odd == "" and len(values) == 1:  # an empty list is no odd number
                continue
            made.lines[at] = f"{before}{name}=[{', '.join(values)}{close}{after}"
        made.keys[at] = None
        changed += 1
    outcome = Outcome(tried=changed)
    (place / "a.log").write_bytes(made.text)
    recipe = f"odd numbers {number}"
    ran = export(place, "a.log")
    if basics(ran, outcome, recipe):
        judge(made.rows, exported(place / "out.jsonl", COLUMNS), outcome, recipe)
    counted_once(place, len(made.lines), outcome, recipe)
    return outcome


def counted_once(place: Path, lines: int, outcome: Outcome, recipe: str, name: str = "a.log") -> None:
    """Hold what ``inspect`` counts against the number of lines that have a marker: each is a row, broken or quoted."""
    told = attempt(["inspect", name, "--json"], place)
    if not basics(told, outcome, f"inspect, {recipe}") or told.code != 0:
        return
    said = json.loads(told.out)["coverage"]
    rows = sum(said["parsed"].get(table, 0) for table in TABLES if table not in ("requests", "request_steps"))
    counted = rows + said["broken_lines"] + said["quoted_lines"] + said["duplicate_events"]
    if counted != lines:
        parts = {name: said[name] for name in ("parsed", "broken_lines", "quoted_lines", "duplicate_events")}
        outcome.note("lost" if counted < lines else "altered", f"inspect, {recipe}: {counted} of {lines} lines with a marker, {parts}")


def samples(table: str | None = None) -> list[str]:
    """Whole lines of each kind of line, as dialects declare them in their samples."""
    return [
        sample.text
        for dialect in DIALECTS
        for line in dialect.lines
        for sample in line.samples
        if "\n" not in sample.text and (table is None or (TABLES[table] is line.record and sample.gives is not None))
    ]


MARKERS = [(marker, line.loose) for dialect in DIALECTS for line in dialect.lines if not line.shared for marker in line.markers]


def has_marker(line: str) -> bool:
    """Whether a line has what its dialect declares as a marker."""
    return any(marker.lower() in line.lower() if loose else marker in line for marker, loose in MARKERS)


def odd_requests(number: int, place: Path) -> Outcome:
    """Put what does not convert in place of a number of a request line: it is a row without it, broken or quoted, never nothing."""
    rng, lines, whole = random.Random(f"requests/{number}"), [], [line for line in samples("request_lines") if has_marker(line)]
    for _ in range(40):
        line = rng.choice(whole)
        start = next(line.find(m) + len(m) for m, _ in MARKERS if m in line or m.lower() in line.lower())
        numbers = list(re.finditer(r"\d+(?:\.\d+)?", line[start:], re.A))
        if numbers:
            at = rng.choice(numbers)
            line = line[: start + at.start()] + rng.choice((*ODD, "null", "9" * 5000, "1e400", '"x"', "[]")) + line[start + at.end() :]
        lines.append(line)
    outcome = Outcome(tried=len(lines))
    (place / "a.log").write_text("".join(f"{x}\n" for x in lines), encoding="utf-8")
    counted_once(place, sum(map(has_marker, lines)), outcome, f"request lines {number}")
    ran = export(place, "a.log", "-t", "request_lines")
    basics(ran, outcome, f"request lines {number}")
    return outcome


def marked() -> list[str]:
    """Whole lines with a marker, without those of which several are one row: a server's start, and vLLM's two lines of one interval."""
    starts = {sample.text for dialect in DIALECTS for line in dialect.lines if line.record is ServerStart for sample in line.samples}
    return [line for line in samples() if has_marker(line) and line not in starts and "SpecDecoding metrics" not in line]


def _mutated(line: str, rng: random.Random) -> str:
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, how = rng.randrange(len(line) + 1), rng.randrange(8)
        if how == 0:
            line = line[:at]
        elif how == 1:
            line = line[:at] + chr(rng.choice((0, 7, 27, 34, 39, 40, 91, 93, 123, 0x202E, 0x3B1, 0x1F600))) + line[at:]
        elif how == 2:
            line = line[:at] + line[at + rng.randint(1, 6) :]
        elif how == 3:
            line = line[:at] + line[at:].replace(rng.choice(string.digits), rng.choice(("", ",", "9" * 50, "-", "e9", ".")), 1)
        elif how == 4:
            part = line[at : at + rng.randint(1, 40)]
            line = line[:at] + part * rng.randint(2, 30) + line[at:]
        elif how == 5:
            line = line[at:] + line[:at]
        elif how == 6:
            line = line.replace(
                rng.choice(("=", ": ", ", ", "'", '"', "[", ")")), rng.choice(("", "=", " ", "\\", '"', "((")), rng.randint(1, 3)
            )
        else:
            line = line[:at] + rng.choice(("true", "{}", "[[", "\\u0000", "1" * 400, "(((", "'" * 9)) + line[at:]
        line = line or "x"
    return line


def fuzzed(number: int, place: Path) -> Outcome:
    """Change lines by chance, of all kinds: a step that is still whole is read, and none is made up of numbers that no line has."""
    rng, made, expected = random.Random(f"fuzz/{number}"), log(random.Random(f"fuzz/{number}"), 10, others=0), Counter[Any]()
    lines, kinds = [], samples()
    for line, key in zip(made.lines, made.keys, strict=True):
        lines += [_mutated(line, rng) for _ in range(3)] + [_mutated(rng.choice(kinds), rng)]
        expected.update(key for key in map(strict, lines[-4:]) if key is not None)
        lines.append(line)
        expected[key] += 1
    outcome, recipe = Outcome(tried=4 * len(made.lines)), f"fuzzed lines {number}"
    (place / "a.log").write_text("".join(f"{x}\n" for x in lines), encoding="utf-8", errors="surrogatepass")
    ran = export(place, "a.log")
    if basics(ran, outcome, recipe):
        got = exported(place / "out.jsonl", COLUMNS)
        if lost := expected - got:
            outcome.note("lost", f"{recipe}: {next(iter(lost))}")
        numbers = {int(part) for line in lines for part in re.findall(r"\d+", line, re.A) if len(part) < 20}
        for row in got - expected:  # a changed line may still be one: then each of its numbers stands in some line, as a whole
            whole = [n for value in row for n in (value if isinstance(value, tuple) else (value,)) if n is not None]
            if any(abs(n) not in numbers for n in whole):
                outcome.note("altered", f"{recipe}: {row} stands in no line")
    left_behind(place, {"a.log", "out.jsonl"}, outcome, recipe)
    return outcome


def fuzzed_markers(number: int, place: Path) -> Outcome:
    """Change lines behind their markers: each is counted once, as a row, as broken or as quoted."""
    rng, kinds, lines = random.Random(f"markers/{number}"), marked(), []
    while len(lines) < 40:
        changed = _mutated(rng.choice(kinds), rng)
        # another end of line inside a line makes it two; colours are taken out before a line is looked at
        if has_marker(changed) and not any(c in changed for c in "\0\x1b\r"):
            lines.append(changed)
    outcome = Outcome(tried=len(lines))
    (place / "a.log").write_text("".join(f"{x}\n" for x in lines), encoding="utf-8")
    counted_once(place, len(lines), outcome, f"fuzzed markers {number}")
    return outcome


def twice(number: int, place: Path) -> Outcome:
    """Give a log twice: two copies, plain and packed, rotated with an overlap, text and journal. Each line is told once."""
    rng, outcome = random.Random(f"twice/{number}"), Outcome()
    made = log(rng, rng.choice((5, 40, 200)), others=0.2)
    how, files = rng.choice(("copies", "packed", "rotated", "journal and export", "folder")), ["a.log", "b.log"]
    (place / "a.log").write_bytes(made.text)
    if how == "packed":
        ending = rng.choice([e for e in PACKED if e])
        files[1] = f"a.log{ending}"
        (place / files[1]).write_bytes(PACKED[ending](made.text))
    elif how == "rotated":
        at = rng.randrange(len(made.lines) + 1)
        # what copytruncate copied once more: a stretch of lines in both files
        both = rng.choice((0, 3, 20))
        (place / "a.log").write_bytes(Log(made.lines[: at + both]).text)
        (place / "b.log").write_bytes(Log(made.lines[at:]).text)
    elif how == "journal and export":
        (place / "a.log").unlink()
        files = ["a.journal", "a.export"]
        build(place / "a.journal", entries(made))
        (place / "a.export").write_bytes(entries(made))
    elif how == "copies":
        (place / "b.log").write_bytes(made.text)
    else:
        (place / "b.log").symlink_to("a.log")
    if rng.random() < 0.5:
        files.reverse()
    recipe = f"{len(made.lines)} lines given twice: {how} ({' '.join(files)})"
    ran = export(place, *files)
    if basics(ran, outcome, recipe):
        judge(made.rows, exported(place / "out.jsonl", COLUMNS), outcome, recipe, said=ran.code not in (0, None))
    left_behind(place, {*files, "out.jsonl"}, outcome, recipe)
    return outcome
