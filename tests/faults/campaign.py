"""Run all kinds of faults, count what they did, and write the table of ``docs/reliability.md``.

``python -m tests.faults.campaign [--only WORDS] [--short | --share SHARE] [--write]``; a kind's inputs are the same in every run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from tests.faults import borders, disks, journals, planted, servers, texts
from tests.faults.attempts import COLUMNS, Outcome, load_everything

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- faults -->", "<!-- end -->"


@dataclass(frozen=True)
class Kind:
    """A kind of fault."""

    words: str
    run: Callable[[int, Path], Outcome]
    runs: int
    """How often it runs in the whole campaign; a run may try several inputs."""
    short: int
    """How often it runs in the tests."""


KINDS = (
    Kind("lines changed by chance, of every dialect", texts.fuzzed, 100, 2),
    Kind("lines changed behind their markers: each is a row, broken or quoted", texts.fuzzed_markers, 100, 3),
    Kind("numbers with commas, units, other digits", texts.odd_numbers, 110, 3),
    Kind("request lines whose values do not convert", texts.odd_requests, 90, 3),
    Kind("pipes, FIFOs and /dev/stdin in place of a file", texts.unseekable, 500, 6),
    Kind("the same lines given twice", texts.twice, 500, 6),
    Kind("journals cut off", journals.damaged("truncated"), 1000, 5),
    Kind("journals with stretches of zeros", journals.damaged("zeroed"), 500, 5),
    Kind("journals with bytes written over", journals.damaged("flipped"), 1000, 8),
    Kind("journals cut, overwritten or removed while they are read", journals.while_read, 300, 5),
    Kind("journals with entries in both files of a rotation", journals.rotated, 150, 3),
    Kind("full disks, file sizes and open files limited", disks.full, 600, 12),
    Kind("exports ended by signals", disks.ended, 200, 5),
    Kind("outputs that are the input, or have no name", disks.onto, 300, 8),
    Kind("names of files, hosts and units: control characters, not UTF-8, 300 characters", disks.named, 100, 3),
    Kind("secrets in lines", planted.planted, 120, 3),
    Kind("damaged Parquet files, alone and in datasets", borders.parquet, 800, 5),
    Kind("damaged Arrow files", borders.arrow, 400, 3),
    Kind("request files with anything in them", borders.request_files, 250, 6),
    Kind("saved sweeps and baselines with anything in them", borders.sweeps, 1000, 6),
    Kind("dialect files with anything in them", borders.dialect_files, 800, 6),
    Kind("servers that bench should not believe", servers.hostile, 150, 2),
    Kind("servers that say the key back", servers.echoing, 150, 4),
)


def one(task: tuple[int, int, str]) -> tuple[int, Outcome, float]:
    """Run one input of one kind in a folder of its own."""
    number, run, folder = task
    place = Path(tempfile.mkdtemp(dir=folder))
    start = time.monotonic()
    try:
        outcome = KINDS[number].run(run, place)
    except Exception as error:  # a fault of the campaign itself
        outcome = Outcome()
        outcome.note("crashed", f"the campaign: {type(error).__name__}: {error}")
    shutil.rmtree(place, ignore_errors=True)
    return number, outcome, time.monotonic() - start


def campaign(runs: Callable[[Kind], int], kinds: Iterable[int], workers: int) -> tuple[dict[int, Outcome], dict[int, float]]:
    """Run so many of each kind; return what they did, and the seconds that each kind took."""
    total = {number: Outcome(tried=0) for number in kinds}
    took = dict.fromkeys(total, 0.0)
    with tempfile.TemporaryDirectory(prefix="faults-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        tasks = [(number, run, folder) for number in total for run in range(runs(KINDS[number]))]
        # each worker has loaded all modules once, and forks a child for each attempt
        with ProcessPoolExecutor(workers, get_context("fork"), initializer=load_everything) as pool:
            for number, outcome, seconds in pool.map(one, tasks, chunksize=4):
                total[number] += outcome
                took[number] += seconds
                for why in outcome.why:
                    print(f"  {KINDS[number].words}: {why}", file=sys.stderr, flush=True)
    return total, took


def rows_of(page: str) -> dict[str, Outcome]:
    """Read the table of a page."""
    rows = re.findall(r"^\| (.+?) \| ([\d,]+)((?: \| \d+)+) \|$", page, re.MULTILINE)
    return {words: Outcome(int(tried.replace(",", "")), *map(int, re.findall(r"\d+", cells))) for words, tried, cells in rows}


def table(total: dict[str, Outcome]) -> str:
    """Lay the counts out as a table in Markdown, in the order of the kinds."""
    head = ("inputs", "tried", *COLUMNS)
    every, named = Outcome(tried=0), [(kind.words, total[kind.words]) for kind in KINDS if kind.words in total]
    for _, outcome in named:
        every += outcome
    rows = [(words, f"{o.tried:,}", *(str(getattr(o, c)) for c in COLUMNS)) for words, o in (*named, ("all", every))]
    lines = [head, ("---", *["---:"] * (len(head) - 1)), *rows]
    return "\n".join("| " + " | ".join(line).replace("_", " ") + " |" for line in lines)


def main() -> int:
    """Run the campaign as the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="./run faults", description="Damaged, hostile and unlucky inputs, each judged by what its generator knows."
    )
    parser.add_argument("--only", default="", help="kinds whose words contain this")
    parser.add_argument("--short", action="store_true", help="the few runs of each kind that are part of the tests")
    parser.add_argument("--share", type=float, default=1.0, help="this share of the runs of each kind")
    parser.add_argument("--write", action="store_true", help="write what was run into the table of docs/reliability.md")
    given = parser.parse_args()
    kinds = [n for n, kind in enumerate(KINDS) if given.only in kind.words]
    start = time.monotonic()
    total, took = campaign(
        lambda kind: kind.short if given.short else max(1, round(kind.runs * given.share)), kinds, workers=os.cpu_count() or 1
    )
    for number, seconds in took.items():
        print(f"{seconds:7.1f} s  {KINDS[number].words}", file=sys.stderr)
    told = {KINDS[number].words: outcome for number, outcome in total.items()}
    print(table(told))
    print(f"{time.monotonic() - start:.0f} seconds", file=sys.stderr)
    if given.write:
        page = PAGE.read_text(encoding="utf-8")
        before, after = page.partition(BEGIN)[0], page.partition(BEGIN)[2].partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{table({**rows_of(page), **told})}\n{END}{after}", encoding="utf-8")
    return int(any(outcome.why for outcome in total.values()))


if __name__ == "__main__":
    raise SystemExit(main())
