"""Lines whose keys stand in another order each are read by the compiled reader, and as the reference reader reads them."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddtree_metrics.dialects import DIALECTS
from ddtree_metrics.dialects.compiled import is_compiled
from ddtree_metrics.dialects.engine import Parser
from tests.dialect_lines import batch, plain, rows

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
HEAD = "[2026-02-01 10:00:00 TP0] "
MARK = "DDTREE metrics: "


def test_every_order_of_the_keys_is_read_by_the_fast_tiers() -> None:
    pairs = ["bs=2", "budget=16", "actual_nodes=[17, 15]", "accepted_drafts=[4, 0]", "commit_lens=[5, 1]", "avg_commit_len=3.00"]
    lines = [HEAD + MARK + " ".join(p) for p in itertools.permutations(pairs)]
    parser = Parser(DIALECTS, on_error="skip")
    made = rows("steps", *lines, parser=parser)
    assert len(made) == 720
    for row in made:
        assert (row["batch_size"], row["budget"], row["nodes"], row["accepted_drafts"], row["commit_lens"], row["avg_commit_len"]) == (
            2, 16, [17, 15], [4, 0], [5, 1], 3.0,
        )  # fmt: skip
        assert "extra" not in row
    # What the parser has to see one by one before it knows how such lines open.
    assert not is_compiled() or parser.misses["sglang"] <= 64


def test_each_line_keeps_what_only_it_has() -> None:
    order = random.Random(1)
    lines, want = [], []
    for n in range(500):
        size = n % 3 + 1
        pairs = {"commit_lens": str([n + k for k in range(size)])}
        row: dict[str, Any] = {"commit_lens": [n + k for k in range(size)], "batch_size": size, "steps": 1}
        if n % 2:
            pairs["bs"] = str(size)
        if n % 3 == 0:
            pairs["actual_node"] = str(n)  # a scalar, in the singular
            row["nodes"] = [n]
        if n % 5 == 0:
            pairs["steps"] = "4"
            row["steps"] = 4
        if n % 7 == 0:
            pairs["rids"] = str([f"r{n}-{k}" for k in range(size)])
            row["request_ids"] = [f"r{n}-{k}" for k in range(size)]
        if n % 11 == 0:
            pairs["draft_ms"] = f"{n}.125"
            row["extra"] = {"draft_ms": f"{n}.125"}
        if n % 13 == 0:
            pairs["step_ms"] = f"{n}.5"
            row["step_ms"] = n + 0.5
        items = list(pairs.items())
        order.shuffle(items)
        lines.append(HEAD + MARK + " ".join(f"{k}={v}" for k, v in items))
        want.append(row)
    parser = Parser(DIALECTS, on_error="skip")
    made = rows("steps", *lines, parser=parser)
    shown = ("commit_lens", "batch_size", "steps", "nodes", "request_ids", "extra", "step_ms")
    assert [{k: r[k] for k in shown if k in r} for r in made] == want
    assert not is_compiled() or parser.misses["sglang"] <= 64


@pytest.mark.parametrize(
    "odd",
    [
        "bs=1 commit_lens=[5] bs=1", "bs=1 batch=1 commit_lens=[5]", "bs=1, commit_lens=[5]", "bs=1  commit_lens=[5]",
        "bs=1 commit_lens=[5] ",
        "bs=2 commit_lens=[5]", "bs=1 budget=16", "bs=1 commit_lens=[-1]", "bs=1 commit_lens=[5] note=a...", "bs=1 commit_lens=[5] x=",
        "commit_lens=[5] avg_accepted_drafts=4.00 avg_commit_len=4.5", "bs=1 commit_lens=[5] größe=7", "bs=1 commit_lens=[5] note='a b=1'",
        "bs=1 commit_lens=[5] api_key=x1", "bs=123456789 commit_lens=[5]", "bs=1 commit_lens=[5] step_ms=1.1234567",
        "x bs=1 commit_lens=[5]",
        "bs=1 commit_lens=[5] [repeated 7x across cluster]", "bs=None commit_lens=[5]", "bs=2 commit_lens=[5, 1] seq_len=7",
        "bs=1 commit_lens=[5] avg_commit_len=None", "bs=1 commit_lens=[5] x=1=2", "=1 bs=1 commit_lens=[5]", "bs=1 commit_lens=[5] a@b=1",
    ],
)  # fmt: skip
def test_an_odd_line_among_many_is_read_like_alone(odd: str) -> None:
    order = random.Random(2)
    lines = []
    for n in range(150):
        pairs = ["bs=1", f"budget={n}", "commit_lens=[5]", "accepted_drafts=[4]", "avg_commit_len=5.00", "avg_accepted_drafts=4.00"]
        order.shuffle(pairs)
        lines.append(HEAD + MARK + " ".join(pairs))
    lines.insert(100, HEAD + MARK + odd)
    alone, among = Parser(DIALECTS, on_error="skip", fast=False), Parser(DIALECTS, on_error="skip")
    want = rows("steps", lines[100], parser=alone)
    for _ in range(2):
        made = rows("steps", *lines, parser=among)
        assert made[100 : len(made) - 50] == want
        assert [r["budget"] for r in made[:100] + made[-50:]] == list(range(150))
    assert {k: 2 * n for k, n in alone.broken.counts.items()} == among.broken.counts


VALUES = {
    "bs": ["1", "2", "1", "-1", "x"],
    "budget": ["16", "00016", "1e3", "123456789"],
    "actual_nodes": ["[17]", "[17, 15]", "17", "[]", "[17,15]"],
    "accepted_draft": ["[4]", "[4, 0]", "4", "[nan]"],
    "commit_lens": ["[5]", "[5, 1]", "5", "[5, 1"],
    "avg_accepted_drafts": ["4.00", "2.00", "4", "4.125", "nan", "4."],
    "avg_commit_len": ["5.00", "3.00", "5", "5.0", "None"],
    "steps": ["4"],
    "step_ms": ["41.25", "41.25ms"],
    "rids": ["['a']", "['a', 'b']", "a"],
    "seq_lens": ["[100]", "[100, 200]", "100"],
    "note": ["abc", "1.5", "a...", "sk-abcdefgh123", "Bearer", "(1, 2)"],
    "cache_key": ["abc", "a1b2c3d4e5f6a7b8c9d0"],
}


@st.composite
def lines_of(draw: st.DrawFn) -> list[str]:
    made = []
    for _ in range(draw(st.integers(60, 120))):
        keys = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=8, unique=draw(st.booleans())))
        # Mostly the first value, so that many lines are whole.
        pairs = [f"{k}={VALUES[k][min(draw(st.integers(0, 12)) // 3, len(VALUES[k]) - 1)]}" for k in keys]
        made.append(
            HEAD + MARK + draw(st.sampled_from([" "] * 9 + [", "])).join(pairs) + draw(st.sampled_from([""] * 9 + [" ", "\ufffd", "x"]))
        )
    return made


@SETTINGS
@given(lines_of())
def test_all_tiers_read_any_mixture_of_lines_alike(lines: list[str]) -> None:
    found = []
    for fast in (True, False):
        parser = Parser(DIALECTS, on_error="skip", fast=fast)
        made = []
        for _ in range(2):
            parsed = parser.feed(batch(lines))
            for table in parsed.tables.values():
                table.validate(full=True)
            made.append(
                [(n, plain(r)) for t in parsed.tables for n, r in zip(parsed.line[t].tolist(), parsed.tables[t].to_pylist(), strict=True)]
            )
        found.append((made, parser.broken.counts, parser.quoted.counts))
    assert found[0] == found[1]
