"""Servers that ``bench`` should not wait for, believe or repeat."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.echoes import SPELLINGS, field_plays, left_of
from tests.faults.attempts import Attempt, Outcome, attempt, basics, left_behind
from tests.faults.borders import ANYTHING, places, put
from tests.faults.disks import one_sentence
from tests.rawserver import BAD, Connection, RawServer, completion, healthy, told

SAVED = {"-o": "s.json", "--save": "b.json", "--requests": "r.jsonl"}


def bench(url: str, place: Path, timeout: str, key: str = "", *more: str) -> Attempt:
    """Run a short sweep."""
    arguments = ["bench", url, "--ctx", "30", "--n1", "2", "--n2", "12", "--repeat", "1", "--timeout", timeout, *more]
    arguments += [part for pair in SAVED.items() for part in pair]
    return attempt(arguments, place, env={"DDTREE_API_KEY": key, "OPENAI_API_KEY": ""}, seconds=60)


def hostile(number: int, place: Path) -> Outcome:
    """Ask a server that trickles, floods, packs bombs, or answers with lengths, types and values that are wrong."""
    rng, outcome = random.Random(f"server/{number}"), Outcome()
    if rng.random() < 0.4:
        how = rng.choice(list(BAD))
        play = BAD[how] if rng.random() < 0.3 else healthy(BAD[how])
    else:
        where_new = rng.random(), rng.choice(ANYTHING)
        how = f"{str(where_new[1])[:20]!r} in an answer"
        cut = rng.choice((0, 0, 1, 20, 60, 100))
        length = rng.choice((0, 0, -5, 7, 10**6))

        def play(wire: Connection, request: bytes) -> None:
            whole: Any = completion(request)
            every = places(whole)
            raw = told(put(whole, every[int(where_new[0] * len(every))], where_new[1]))
            if length:
                raw = raw.replace(b"Content-Length: ", b"Content-Length: %d" % length if length > 0 else b"Content-Length: -", 1)
            wire.send(raw[: len(raw) - cut])

        play = healthy(play)
    stream = rng.random() < 0.4
    recipe = f"server {number}: {how}{', streamed' if stream else ''}"
    with RawServer(play) as server:
        ran = bench(server.url, place, "0.5", "", *(["--stream"] if stream else []))
    if basics(ran, outcome, recipe) and not place.joinpath("s.json").exists():
        one_sentence(ran, outcome, recipe)
    left_behind(place, SAVED.values(), outcome, recipe)
    return outcome


def echoing(number: int, place: Path) -> Outcome:
    """Ask a server that says the key back, in one field and one spelling."""
    rng, outcome = random.Random(f"echo/{number}"), Outcome()
    key = rng.choice(("sk-", "hf_", "")) + "".join(
        rng.choice("abcdefghijkmnopqrstuvwxyzABCDEFGHIJ0123456789-_/+=") for _ in range(rng.choice((20, 28, 51)))
    )
    spelling, field = rng.choice(list(SPELLINGS)), rng.choice(list(field_plays("")))
    recipe = f"server {number}: the key {spelling} in {field}"
    with RawServer(field_plays(SPELLINGS[spelling](key))[field]) as server:
        ran = bench(server.url, place, "2", key)
    basics(ran, outcome, recipe)
    said = ran.err + ran.out.decode("utf-8", "replace") + "".join(p.read_text() for p in place.iterdir())
    if (piece := left_of(key, said)) is not None:
        outcome.note("leaked", f"{recipe}: {piece}")
    left_behind(place, SAVED.values(), outcome, recipe)
    return outcome
