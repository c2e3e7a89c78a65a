"""Journals that were cut, zeroed, flipped, rotated twice, or change while they are read."""

from __future__ import annotations

import functools
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.faults.attempts import Outcome, attempt, basics, exported, judge, left_behind
from tests.faults.lines import COLUMNS, START, Log, log
from tests.journals import build, entry

STEPS = 150


@functools.cache
def base(number: int) -> tuple[bytes, Log]:
    """Build one of four journals: keyed hashes or not, compact or not."""
    rng = random.Random(f"journal/{number}")
    made = log(rng, STEPS)
    with tempfile.TemporaryDirectory() as folder:
        path = build(Path(folder) / "a.journal", entries(made), keyed=bool(number & 1), compact=bool(number & 2))
        return path.read_bytes(), made


def entries(made: Log, start: int = 0, stop: int | None = None) -> bytes:
    return b"".join(entry(START + 100_000 * i, line) for i, line in list(enumerate(made.lines))[start:stop])


def _read(place: Path, outcome: Outcome, recipe: str, expected: Counter[object], *, strict_on_exit_0: bool = True) -> None:
    made = attempt(["export", "--file", "*.journal", "-o", "out.jsonl"], place)
    if basics(made, outcome, recipe):
        judge(expected, exported(place / "out.jsonl", COLUMNS), outcome, recipe, said=made.said or not strict_on_exit_0)
    left_behind(place, {"a.journal", "b.journal", "out.jsonl"}, outcome, recipe)


def damaged(how: str) -> Callable[[int, Path], Outcome]:
    """Return a kind: a journal file damaged in one way; what is missing must be said."""

    def kind(number: int, place: Path) -> Outcome:
        rng, outcome = random.Random(f"{how}/{number}"), Outcome()
        raw, made = base(number % 4)
        used = len(raw.rstrip(b"\0"))
        changed = bytearray(raw)
        if how == "truncated":
            at = rng.randrange(used)
            del changed[at:]
            recipe = f"journal {number % 4} cut at {at}"
        elif how == "zeroed":
            at, size = rng.randrange(used), rng.choice((1, 16, 512, 4096, 65536))
            changed[at : at + size] = bytes(len(changed[at : at + size]))
            recipe = f"journal {number % 4} with {size} zeros at {at}"
        else:
            places = [(rng.randrange(used), rng.randrange(1, 256)) for _ in range(rng.choice((1, 1, 1, 4, 32)))]
            for at, flip in places:
                changed[at] ^= flip
            recipe = f"journal {number % 4} with bytes flipped at {places[:4]}{'…' if len(places) > 4 else ''}"
        (place / "a.journal").write_bytes(changed)
        _read(place, outcome, recipe, made.rows)
        return outcome

    return kind


def while_read(number: int, place: Path) -> Outcome:
    """Cut, zero or overwrite a journal while it is read."""
    rng, outcome = random.Random(f"while/{number}"), Outcome()
    raw, made = base(number % 4)
    path, delay, how = place / "a.journal", rng.random() * 0.25, rng.choice(("cut", "overwritten", "removed"))
    path.write_bytes(raw)
    at = rng.choice((0, 4096, rng.randrange(len(raw.rstrip(b"\0")))))
    recipe = f"journal {number % 4} {how} at {at} after {delay:.3f} s of reading"

    def change(_: int) -> None:
        time.sleep(delay)
        if how == "cut":
            os.truncate(path, at)
        elif how == "removed":
            path.unlink()
        else:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes(1 << 16))

    ran = attempt(["export", "--file", "a.journal", "-o", "out.jsonl"], place, during=change)
    ran.killed = False
    if basics(ran, outcome, recipe):
        judge(made.rows, exported(place / "out.jsonl", COLUMNS), outcome, recipe, said=ran.said)
    left_behind(place, {"a.journal", "out.jsonl"}, outcome, recipe)
    return outcome


def rotated(number: int, place: Path) -> Outcome:
    """Split a log over two journals, an entry or more in both: each is one entry."""
    rng, outcome = random.Random(f"rotated/{number}"), Outcome()
    made = log(rng, 60)
    at, both = rng.randrange(1, len(made.lines) - 1), rng.choice((0, 1, 1, 3))
    build(place / "a.journal", entries(made, 0, at + both))
    build(place / "b.journal", entries(made, at))
    _read(place, outcome, f"two journals with {both} entries in both", made.rows, strict_on_exit_0=False)
    got = exported(place / "out.jsonl", COLUMNS)
    judge(made.rows, got, outcome, f"two journals, split at {at}, with {both} entries in both")
    return outcome
