"""Flip bits of a journal file, and look whether what was lost or altered is told: ``python -m tests.journal_flips [RUNS] [SEED]``."""

from __future__ import annotations

import random
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from ddtree_metrics.errors import DDTreeError, SourceError
from ddtree_metrics.sources import JournalPlace, Selection, open_journal
from ddtree_metrics.times import Window
from tests.journals import T0, build, entry

UNIT = "sglang-kimi.service"
CLOCK_US = 8
"""Microseconds by which a clock may be wrong without a word: as much as the clocks of entries differ among themselves."""


class Outcome(NamedTuple):
    """What one damaged file gave."""

    kind: str
    """``same``, ``told``, ``refused``, ``lost`` or ``altered``; the last two are silent."""
    detail: str = ""


def journal(path: Path, lines: int = 1500, **how: bool) -> Path:
    """Make a journal of two units; the file is cut to what is used, so that flips hit something."""
    made = []
    for i in range(lines):
        text = f"[2026-05-05 12:00:01 TP0] DDTREE metrics: bs=1 budget=16 commit_lens=[{i % 17}] avg_commit_len={i % 17}.00 n={i}"
        unit = UNIT if i % 3 else "other.service"
        made.append(entry(T0 + 10_000 * i, text, unit=unit, pid=4242 if i % 3 else 77, stream=("a" if i % 3 else "b") * 32))
    return build(path, b"".join(made), **how)


def used(path: Path) -> list[tuple[int, int]]:
    """List the stretches of a file that hold something: not the zeros of hash tables that were never filled."""
    data = path.read_bytes()
    step = 64
    return [(at, min(at + step, len(data))) for at in range(0, len(data), step) if any(data[at : at + step])]


def rows_of(path: Path, unit: str | None, backend: str) -> tuple[list[tuple[object, ...]], bool]:
    """Read a journal; return what its lines say, and whether damage was told."""
    selection = Selection(units=(unit,)) if unit else Selection()
    source = open_journal(JournalPlace(files=(str(path),)), selection, Window(), backend=backend)
    names = ("time", "monotonic_us", "boot_id", "host", "unit", "pid", "message")
    rows = [row for batch in source.batches() for row in zip(*(batch.column(n).to_pylist() for n in names), strict=True)]
    return rows, bool(source.stats.damaged)


def same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """Whether two rows are the same, as far as the clocks of a journal can tell."""
    near = abs((one[0] - other[0]).total_seconds() * 1e6) <= CLOCK_US and abs(one[1] - other[1]) <= CLOCK_US  # type: ignore[operator]
    return near and one[2:] == other[2:]


def outcome(path: Path, right: list[tuple[object, ...]], unit: str | None, backend: str) -> Outcome:
    """Read a damaged file and compare."""
    try:
        rows, told = rows_of(path, unit, backend)
    except SourceError as error:
        return Outcome("refused", str(error))
    if rows == right:
        return Outcome("same")
    if told:
        return Outcome("told")
    if len(rows) == len(right) and all(same(a, b) for a, b in zip(rows, right, strict=True)):
        return Outcome("same")
    missing = len(right) - sum((Counter(r[1:] for r in rows) & Counter(r[1:] for r in right)).values())
    return Outcome("lost" if len(rows) < len(right) else "altered", f"{len(rows)} of {len(right)} rows, {missing} not as they were")


def campaign(folder: Path, runs: int, seed: int, *, backends: tuple[str, ...] = ("systemd",)) -> Counter[str]:
    """Flip one bit in each of some copies, and count what comes of it."""
    chance = random.Random(seed)
    counts: Counter[str] = Counter()
    layouts = [journal(folder / f"{k}{c}.journal", keyed=bool(k), compact=bool(c)) for k in (0, 1) for c in (0, 1)]
    wholes = [path.read_bytes() for path in layouts]
    places = [used(path) for path in layouts]
    right = {(n, unit): rows_of(path, unit, "systemd")[0] for n, path in enumerate(layouts) for unit in (None, UNIT)}
    for run in range(runs):
        n = run % len(layouts)
        begin, end = chance.choice(places[n])
        at, bit = chance.randrange(begin, end), chance.randrange(8)
        data = bytearray(wholes[n])
        data[at] ^= 1 << bit
        path = folder / "damaged.journal"
        path.write_bytes(data)
        unit = chance.choice([None, UNIT])
        for backend in backends:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    made = outcome(path, right[n, unit], unit, backend)
                except DDTreeError as error:
                    made = Outcome("refused", str(error))
            counts[made.kind] += 1
            if made.kind in ("lost", "altered"):
                print(f"run {run} ({backend}): byte {at} bit {bit} of {layouts[n].name}, {unit}: {made}", file=sys.stderr)
    return counts


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        numbers = [int(word) for word in sys.argv[1:]]
        print(dict(campaign(Path(name), *(numbers + [500, 1][len(numbers) :]))))
