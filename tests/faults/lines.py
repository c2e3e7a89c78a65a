"""Logs whose rows are known: each step has a number of its own as its budget, so that a row tells which line it was."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

COLUMNS = ("budget", "batch_size", "nodes", "accepted_drafts", "commit_lens")
Key = tuple[Any, ...]
START = 1_777_982_401_000_000  # 2026-05-05 12:00:01 UTC


@dataclass
class Log:
    """Lines, and the rows that they are."""

    lines: list[str] = field(default_factory=list)
    keys: list[Key | None] = field(default_factory=list)

    @property
    def rows(self) -> Counter[Key]:
        return Counter(key for key in self.keys if key is not None)

    @property
    def text(self) -> bytes:
        return "".join(f"{line}\n" for line in self.lines).encode()

    def add(self, line: str, key: Key | None) -> None:
        self.lines.append(line)
        self.keys.append(key)


def stamp(number: int) -> str:
    """Return a time, one a line."""
    return f"[2026-05-05 {12 + number // 3600:02}:{number // 60 % 60:02}:{number % 60:02} TP0]"


def step(number: int, rng: random.Random, head: str | None = None) -> tuple[str, Key]:
    """Write the step line ``number``."""
    size = rng.randint(1, 4)
    accepted = [rng.randint(0, 9) for _ in range(size)]
    nodes, commits = [rng.randint(a + 1, 60) for a in accepted], [a + 1 for a in accepted]
    head = stamp(number) if head is None else head
    text = f"{head} DDTREE metrics: bs={size} budget={1000 + number} actual_nodes={nodes} accepted_drafts={accepted} commit_lens={commits}"
    return text.strip(), (1000 + number, size, tuple(nodes), tuple(accepted), tuple(commits))


def other(number: int, rng: random.Random) -> str:
    """Write a line that is no step."""
    return f"{stamp(number)} " + rng.choice(
        (
            "Decode batch, #running-req: 3, #token: 1200, token usage: 0.01, accept len: 2.50, cuda graph: True, "
            "gen throughput (token/s): 99.50, #queue-req: 0",
            "Prefill batch, #new-seq: 1, #new-token: 512, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0",
            'INFO:     127.0.0.1:4444 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
            "The server is fired up and ready to roll!",
        )
    )


def log(rng: random.Random, steps: int = 40, *, others: float = 0.3) -> Log:
    """Write a log."""
    made = Log()
    for number in range(steps):
        made.add(*step(number, rng))
        if rng.random() < others:
            made.add(other(number, rng), None)
    return made


_WHOLE = re.compile(
    r"\[2026-05-05 \d\d:\d\d:\d\d TP0\] DDTREE metrics: bs=(\d{1,4}) budget=(\d{1,9}) actual_nodes=\[(\d{1,9}(?:, \d{1,9})*)\] "
    r"accepted_drafts=\[(\d{1,9}(?:, \d{1,9})*)\] commit_lens=\[(\d{1,9}(?:, \d{1,9})*)\]",
    re.A,
)


def strict(line: str) -> Key | None:
    """Read a step line only if each character is as this module writes it: an opinion of its own on lines that were changed."""
    found = _WHOLE.fullmatch(line)
    if not found:
        return None
    lists = [tuple(int(n) for n in found[i].split(", ")) for i in (3, 4, 5)]
    size = int(found[1])
    return (int(found[2]), size, *lists) if all(len(values) == size for values in lists) else None
