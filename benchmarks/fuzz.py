"""Mutate lines and journal files, and hold what is fast against what is plain: ``./run fuzz [--lines N] [--files N] [--seed S] [--asan]``.

Lines: those of the dialects' samples, with pieces dropped, doubled, exchanged and overwritten. The engine reads each batch by its fast
readers and by the one that reads line by line; tables and reasons must be the same. Files: a journal with flipped bits is read by the
compiled reader and by systemd-python, which must give the same lines, or both refuse. With ``--asan`` the compiled parts are built with the
address and undefined-behaviour sanitizers (gcc), so that a read behind a buffer ends the run. The same seed makes the same cases.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
BATCH = 4_096
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")
ODD = (
    "",
    " ",
    "=",
    ": ",
    ", ",
    "[",
    "]",
    "-1",
    "1e9",
    "99999999999999999999",
    "nan",
    "é",
    "\x1b[0m",
    '"',
    "DDTREE metrics: ",
    "Decode batch, ",
)


def mutated(line: str, dice: random.Random, others: list[str]) -> str:
    """Change a line in one to four places; a tenth of the lines stay as they are."""
    for _ in range(dice.choice((0, 1, 1, 1, 1, 2, 2, 2, 3, 4))):
        a, b = sorted(dice.randrange(len(line) + 1) for _ in range(2))
        b = min(b, a + dice.choice((1, 2, 5, 20)))
        way = dice.randrange(5)
        if way == 0:
            line = line[:a] + line[b:]
        elif way == 1:
            line = line[:b] + line[a:]
        elif way == 2:
            line = line[:a] + dice.choice(ODD) + line[b:]
        elif way == 3:
            other = dice.choice(others)
            line = line[:a] + other[dice.randrange(len(other) + 1) :]
        else:
            words = line.split(" ")
            i, j = dice.randrange(len(words)), dice.randrange(len(words))
            words[i], words[j] = words[j], words[i]
            line = " ".join(words)
    return line.replace("\n", " ")


def fuzz_lines(count: int, seed: int) -> int:
    """Read mutated lines both ways; return how many batches differ."""
    import pyarrow as pa

    from ddtree_metrics.dialects import DIALECTS
    from ddtree_metrics.dialects.engine import Parser
    from ddtree_metrics.sources import LINE_SCHEMA

    corpus = [sample.text for dialect in DIALECTS for line in dialect.lines for sample in line.samples if sample.text]
    dice = random.Random(seed)
    differ, rows = 0, Counter[str]()

    def read(lines: list[str], fast: bool) -> tuple[dict[str, list[dict[str, object]]], object]:
        given = {"message": pa.array(lines), "where": pa.array([f"x:{n}" for n in range(len(lines))])}
        columns = [given.get(f.name, pa.nulls(len(lines), f.type)) for f in LINE_SCHEMA]
        parser = Parser(DIALECTS, on_error="skip", fast=fast)
        tables = parser.feed(pa.RecordBatch.from_arrays(columns, schema=LINE_SCHEMA)).tables
        return {name: tables[name].to_pylist() for name in sorted(tables) if tables[name].num_rows}, sorted(parser.broken.counts.items())

    done = 0
    while done < count:
        lines = [mutated(dice.choice(corpus), dice, corpus) for _ in range(min(BATCH, count - done))]
        fast, plain = read(lines, True), read(lines, False)
        for name, table in plain[0].items():
            rows[name] += len(table)
        if repr(fast) != repr(plain):
            differ += 1
            odd = next((line for line in lines if repr(read([line], True)) != repr(read([line], False))), None)
            print(f"read in two ways: {odd!r}" if odd is not None else f"a batch differs that no line of it does alone: from line {done}")
        done += len(lines)
    print(f"{done:,} lines, {sum(rows.values()):,} rows ({dict(rows.most_common())}), {differ} batches differ")
    return differ


def fuzz_files(count: int, seed: int) -> int:
    """Read flipped journals both ways; return how many differ."""
    from ddtree_metrics import native
    from ddtree_metrics.errors import SourceError
    from ddtree_metrics.sources import JournalPlace, open_journal
    from tests import journal_flips

    load, dice = native.load, random.Random(seed)
    if load("libsystemd") is None:
        print("the compiled reader of journals is not built: no files are read")
        return 0

    def read(path: Path) -> object:
        source = open_journal(JournalPlace(files=(str(path),)), backend="systemd")
        try:
            return [batch.to_pylist() for batch in source.batches()], sorted(source.stats.damaged)
        except SourceError as error:
            return str(error)

    differ = refused = 0
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = journal_flips.journal(Path(folder) / "whole.journal", 300).read_bytes()
        path = Path(folder) / "x.journal"
        for number in range(count):
            data = bytearray(whole)
            for _ in range(dice.choice((1, 1, 2, 8, 40))):
                data[dice.randrange(300, len(data))] ^= 1 << dice.randrange(8)
            path.write_bytes(data)
            made = []
            for found in (load, lambda name: None):
                native.load = found
                try:
                    made.append(read(path))
                except SourceError as error:
                    made.append(str(error))
                finally:
                    native.load = load
            refused += isinstance(made[1], str)
            if made[0] != made[1]:
                differ += 1
                print(f"file {number} is read in two ways")
    print(f"{count:,} files, {refused} of them refused, {differ} differ")
    return differ


def sanitized(folder: str) -> None:
    """Start again with the compiled parts built with sanitizers."""
    done = subprocess.run([sys.executable, str(HERE.parent / "hatch_build.py"), "--into", folder, *SANITIZED], check=False)
    if done.returncode:
        sys.exit(done.returncode)
    named = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()
    # Python does not free all it has when it ends, which is no leak of ours.
    env = {**os.environ, "LD_PRELOAD": named, "ASAN_OPTIONS": "detect_leaks=0", "DDTREE_SANITIZED": folder}
    again = [word for word in sys.argv[1:] if word != "--asan"]
    sys.exit(subprocess.run([sys.executable, str(Path(__file__)), *again], env=env, check=False).returncode)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--files", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--asan", action="store_true", help="with the address sanitizer; slower")
    args = parser.parse_args()
    if args.asan:
        with tempfile.TemporaryDirectory() as folder:
            sanitized(folder)
    from ddtree_metrics import native

    if "DDTREE_SANITIZED" in os.environ:
        native.__path__.insert(0, os.environ["DDTREE_SANITIZED"])
    return 1 if fuzz_lines(args.lines, args.seed) + fuzz_files(args.files, args.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
