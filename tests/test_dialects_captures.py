"""The captures of a real server: every step line comes back with the values the engine itself wrote beside the journal."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from ddtree_metrics.dialects import DIALECTS, detect
from ddtree_metrics.dialects.engine import Parser
from tests.captures import journal_export, summary, truth_steps, unpacked
from tests.dialect_lines import batch, plain


def messages(export: bytes) -> list[str]:
    """Take the messages out of journalctl's export format, plain ones and those with a length."""
    made = []
    at = 0
    while at < len(export):
        end = export.index(b"\n", at)
        line = export[at:end]
        if line and b"=" not in line:
            size = int.from_bytes(export[end + 1 : end + 9], "little")
            if line == b"MESSAGE":
                made += export[end + 9 : end + 9 + size].decode("utf-8", "replace").replace("\r", "\n").split("\n")
            at = end + 10 + size
            continue
        if line.startswith(b"MESSAGE="):
            made.append(line[8:].decode("utf-8", "replace"))
        at = end + 1
    return made


@functools.cache
def parsed(capture: str, fast: bool = True) -> tuple[dict[str, list[dict[str, Any]]], Parser]:
    lines = messages(unpacked(journal_export(capture)))
    parser = Parser(DIALECTS, on_error="skip", fast=fast)
    made = parser.feed(batch(lines))
    return {t: [plain(r) for r in b.to_pylist()] for t, b in made.tables.items()}, parser


def test_every_step_line_of_capture_a_has_the_values_of_the_truth() -> None:
    steps, truth = parsed("A")[0]["steps"], truth_steps("A")
    assert len(steps) == len(truth) == 545
    for row, true in zip(steps, truth, strict=True):
        assert row["commit_lens"] == true["committed"]
        assert row["accepted_drafts"] == true["accepted"]
        assert row["batch_size"] == len(true["rids"])


def test_the_other_lines_of_capture_a() -> None:
    # README of the capture: 545 Decode lines, 26 Prefill, 26 Receive, 26 Finish, 42 access lines, 2 starts.
    tables, parser = parsed("A")
    assert parser.broken.counts == {}
    assert len(tables["decode"]) == 545
    assert len(tables["prefill"]) == 26
    events = [r["event"] for r in tables["request_lines"]]
    assert {e: events.count(e) for e in set(events)} == {"received": 26, "finished": 26, "access": 42}
    assert len([r for r in tables["servers"] if "args" in r]) == 2
    kinds = [r["kind"] for r in tables["events"]]
    assert kinds.count("ready") == 2
    assert kinds.count("exit") >= 2


def test_finish_lines_agree_with_the_truth() -> None:
    verify: dict[str, int] = {}
    for step in truth_steps("A"):
        for rid in step["rids"]:
            verify[rid] = verify.get(rid, 0) + 1
    finished = [r for r in parsed("A")[0]["request_lines"] if r["event"] == "finished" and r["request_id"] in verify]
    assert len(finished) == len(verify)
    for row in finished:
        assert row["verify_steps"] == verify[row["request_id"]]
        # Every verify step accepts as many drafts as its place in the histogram says.
        assert sum(k * n for k, n in enumerate(row["accepted_histogram"])) == row["accepted_drafts"]


def test_the_starts_of_capture_a_hold_no_secret_and_the_right_numbers() -> None:
    for row in (r for r in parsed("A")[0]["servers"] if "args" in r):
        said = (
            "algorithm",
            "num_steps",
            "topk",
            "num_draft_tokens",
            "page_size",
            "tp_size",
            "context_len",
            "max_total_tokens",
            "decode_log_interval",
        )
        assert [row[k] for k in said] == ["STANDALONE", 4, 2, 12, 1, 1, 8192, 16384, 1]
        assert row["args"]["watermark_key"] == "<redacted>"
        assert row["args"]["api_key"] == "None"


def test_capture_c_has_what_the_journal_kept_and_what_it_suppressed() -> None:
    tables, parser = parsed("C")
    assert parser.broken.counts == {}
    assert len(tables["steps"]) == 66
    assert [r["count"] for r in tables["events"] if r["kind"] == "suppressed"] == [11, 118, 132]
    assert [r["count"] for r in tables["events"] if r["kind"] == "retraction"] == [1]


@pytest.mark.parametrize("capture", ["A", "C"])
def test_both_tiers_read_the_captures_alike(capture: str) -> None:
    assert parsed(capture)[0] == parsed(capture, fast=False)[0]
    assert summary(capture)


def test_the_captures_are_detected() -> None:
    assert [d.name for d in detect(messages(unpacked(journal_export("C"))))] == ["sglang", "journald"]
