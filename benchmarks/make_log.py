"""Write a log like an SGLang server's with DDTree metrics, and beside it what is in it.

    python benchmarks/make_log.py run.log --lines 1000000

Six lines in ten are step lines, one in ten is a ``Decode batch`` line, one in twenty a ``Prefill batch`` line, the rest is what else a
server writes: access lines, requests, tracebacks, other alphabets, and lines that only speak of the metrics. A small part of the step
lines (``--odd``) is written in another order, with keys more, or with scalars for lists. The same seed gives the same bytes.
``run.log.truth.json`` holds the counts and sums that a reader must find.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

START = 1_770_000_000


class Maker:
    """Makes lines one after the other and keeps the books."""

    def __init__(self, seed: int, odd: float) -> None:
        self.random = random.Random(seed)
        self.odd = odd
        self.now = float(START)
        books = "lines steps decode prefill other odd batch_size budget elements nodes accepted commit commit_x100 tokens new_tokens access"
        self.truth: dict[str, int] = dict.fromkeys(books.split(), 0)

    def stamp(self, ranks: str = "") -> str:
        """Return the head of a line."""
        return time.strftime("[%Y-%m-%d %H:%M:%S", time.gmtime(self.now)) + ranks + "] "

    def step(self) -> str:
        """Make a step line."""
        r, t = self.random, self.truth
        size = r.choice((1, 1, 1, 1, 1, 1, 2, 2, 3, 4, 6, 8))
        budget = r.choice((16, 16, 16, 32))
        nodes = [budget + 1 - r.choice((0, 0, 0, 0, 1, 2)) for _ in range(size)]
        accepted = [min(r.randrange(10), r.randrange(10)) for _ in range(size)]
        commit = [a + 1 for a in accepted]
        mean = f"{sum(commit) / size:.2f}"
        pairs: list[tuple[str, Any]] = [
            ("bs", size), ("budget", budget), ("actual_nodes", nodes), ("accepted_drafts", accepted), ("commit_lens", commit),
            ("avg_accepted_drafts", f"{sum(accepted) / size:.2f}"), ("avg_commit_len", mean),
        ]  # fmt: skip
        if r.random() < self.odd:
            t["odd"] += 1
            way = r.randrange(3)
            if way == 0:
                r.shuffle(pairs)
            elif way == 1:
                pairs.insert(r.randrange(len(pairs)), ("draft_ms", f"{r.random() * 9:.3f}"))
            elif size == 1:
                pairs = [(k, v[0] if isinstance(v, list) else v) for k, v in pairs]
        for name, value in (("steps", 1), ("batch_size", size), ("budget", budget), ("elements", size), ("nodes", sum(nodes))):
            t[name] += value
        t["accepted"] += sum(accepted)
        t["commit"] += sum(commit)
        t["commit_x100"] += round(float(mean) * 100)
        return self.stamp(r.choice((" TP0",) * 9 + (" TP1",))) + "DDTREE metrics: " + " ".join(f"{k}={v}" for k, v in pairs)

    def decode(self) -> str:
        """Make a ``Decode batch`` line."""
        r = self.random
        tokens = r.randrange(100, 200_000)
        self.truth["decode"] += 1
        self.truth["tokens"] += tokens
        return (
            f"{self.stamp(' TP0')}Decode batch, #running-req: {r.randrange(1, 9)}, #token: {tokens}, token usage: {r.random():.2f}, "
            f"accept len: {1 + 7 * r.random():.2f}, accept rate: {r.random():.2f}, cuda graph: {r.random() < 0.97}, "
            f"gen throughput (token/s): {20 + 300 * r.random():.2f}, #queue-req: {r.randrange(4)}"
        )

    def prefill(self) -> str:
        """Make a ``Prefill batch`` line."""
        r = self.random
        tokens = r.randrange(1, 8192)
        self.truth["prefill"] += 1
        self.truth["new_tokens"] += tokens
        return (
            f"{self.stamp(' TP0')}Prefill batch, #new-seq: {r.randrange(1, 4)}, #new-token: {tokens}, #cached-token: {r.randrange(4096)}, "
            f"token usage: {r.random():.2f}, #running-req: {r.randrange(8)}, #queue-req: {r.randrange(3)}, #pending-token: 0, "
            f"cuda graph: False, input throughput (token/s): {9000 * r.random():.2f}"
        )

    def other(self) -> str:
        """Make a line of something else."""
        r, t = self.random, self.truth
        t["other"] += 1
        n = r.randrange(1024, 65_000)
        way = r.randrange(14)
        if way < 4:
            t["access"] += 1
            path = r.choice(("POST /v1/chat/completions", "POST /generate", "GET /health", "GET /metrics"))
            return f'{self.stamp()}INFO:     192.0.2.{n % 200}:{n} - "{path} HTTP/1.1" 200 OK'
        return (
            "",
            "Traceback (most recent call last):",
            f'  File "/srv/engine/worker.py", line {n}, in forward',
            "    out = self.model(batch)",
            "          ^^^^^^^^^^^^^^^^^",
            f"RuntimeError: tried to allocate {n} MiB",
            f"{self.stamp()}warten auf Gerät {n}: übersprungen – 重试 🚀",
            f'{self.stamp(" TP0")}prompt was "what are DDTREE metrics: bs={n}?"',
            f"{self.stamp(' TP0')}DDTREE config: budget=16 topk={n}",
            f"Loading shards: 50%|#####     | {n}/65000",
        )[way - 4]

    def lines(self, count: int) -> Iterator[str]:
        """Make so many lines."""
        for _ in range(count):
            self.now += 0.02 + 0.03 * self.random.random()
            u = self.random.random()
            self.truth["lines"] += 1
            yield self.step() if u < 0.6 else self.decode() if u < 0.7 else self.prefill() if u < 0.75 else self.other()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--odd", type=float, default=0.005)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    maker = Maker(given.seed, given.odd)
    with given.out.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in maker.lines(given.lines))
    Path(f"{given.out}.truth.json").write_text(json.dumps(maker.truth, indent=1) + "\n")


if __name__ == "__main__":
    main()
