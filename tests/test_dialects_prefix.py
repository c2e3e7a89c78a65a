"""What stands before a line of metrics: any head will do, quotations are counted and are no lines."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from ddtree_metrics.dialects import DIALECTS
from ddtree_metrics.dialects.compiled import is_compiled
from ddtree_metrics.dialects.engine import Parser
from tests.dialect_lines import batch, one, plain, reason, rows

BODY = "DDTREE metrics: bs=1 budget=8 actual_nodes=[9] accepted_drafts=[3] commit_lens=[4] avg_accepted_drafts=3.00 avg_commit_len=4.00"
# What the line says, by reading it.
MEANT = {
    "batch_size": 1,
    "budget": 8,
    "nodes": [9],
    "accepted_drafts": [3],
    "commit_lens": [4],
    "avg_accepted_drafts": 3.0,
    "avg_commit_len": 4.0,
}
STOCK = "Decode batch, #running-req: 1, #token: 100, token usage: 0.00, gen throughput (token/s): 100.40, #queue-req: 0"
BAR = "Capturing batches (bs=1 avail_mem=70.11 GB):  96%|█████▌| 22/23 [00:02<00:00,  9.73it/s]"


def measures(row: dict[str, Any]) -> dict[str, Any]:
    return {k: row[k] for k in MEANT}


@pytest.mark.parametrize(
    "before",
    [
        "[rank0]: ",
        "[gpu01:0]: ",
        "0: ",
        "node01: ",
        "[pod/sglang-0/main] ",
        "sglang-1  | ",
        "<30>Feb  1 10:00:00 host sglang[55]: ",
        "Feb  1 10:00:00 host sglang: ",
        "<30>1 2026-02-01T10:00:00.123456Z host app 55 - - ",
        '<30>1 2026-02-01T10:00:00Z host app 55 - [origin@1 ip="192.0.2.1" x="y"] ',
        "INFO:     ",
        "INFO:sglang:",
        "(EngineCore pid=12) INFO:sglang:",
        "2026-02-01 10:00:00,123 - sglang.srt.worker - INFO - ",
        BAR,
        BAR + " ",
        BAR + BAR,
        "Loading the model: 100%|####| 4/4 [00:01<00:00, 4.85it/s]",
        "[rank0]: 0: ",
    ],
)
@pytest.mark.parametrize("head", ["", "[2026-02-01 10:00:06 TP0] "])
def test_launchers_loggers_syslog_and_progress_bars_may_stand_before_a_line(before: str, head: str) -> None:
    row = one("steps", before + head + BODY)
    assert measures(row) == MEANT
    assert row.get("tp_rank") == (0 if head else None)
    assert row.get("time") == (dt.datetime(2026, 2, 1, 10, 0, 6, tzinfo=dt.timezone.utc) if head else None)
    if not before.startswith(("INFO", "(", "2026")):
        assert one("decode", before + head + STOCK)["tokens"] == 100


@pytest.mark.parametrize("size", [1, 10, 100, 1_000, 100_000, 1_000_000])
def test_a_line_behind_any_text_is_a_line(size: int) -> None:
    assert measures(one("steps", "q" * size + " " + BODY)) == MEANT
    row = one("steps", "[2026-01-01 00:00:00 TP3] " + "word " * (size // 5) + BODY)
    assert measures(row) == MEANT
    assert row["tp_rank"] == 3


def test_a_line_without_a_marker_behind_a_long_label_is_a_line() -> None:
    pairs = BODY.removeprefix("DDTREE metrics: ")
    assert measures(one("steps", "a" * 90 + " tree verify: " + pairs)) == MEANT
    assert reason("she wrote in the answer that we got the other day, a very long one, " + pairs) is None


def quoted(*lines: str) -> tuple[dict[str, int], dict[str, list[tuple[str, str]]]]:
    """Feed lines that must give no row and not be broken, in both tiers."""
    made = []
    for fast in (True, False):
        parser = Parser(DIALECTS, on_error="skip", fast=fast)
        parsed = parser.feed(batch(list(lines), where=[f"f:{n}" for n in range(1, len(lines) + 1)]))
        assert not parsed.tables, [plain(r) for t in parsed.tables.values() for r in t.to_pylist()]
        assert not parser.broken.counts
        assert parser.quoted.total == sum(parser.quoted.counts.values())
        made.append((parser.quoted.counts, parser.quoted.examples))
    assert made[0] == made[1]
    return made[0]


@pytest.mark.parametrize(
    "line",
    [
        f"[2026-02-01 10:00:00 TP0] what are {BODY}",
        f"[2026-02-01 10:00:00 TP0] what are {BODY}?",
        f'prompt was "what are {BODY}"',
        f"prompt was what are {BODY}",
        f'client said: "{BODY}"',
        f"client said: {BODY}",
        f"client said: [2026-02-01 10:00:00 TP0] {BODY}",
        f"text={BODY}",
        f"note: [2026-02-01 10:00:00 TP0] {BODY}",
        f"ValueError: could not parse: [2026-02-01 10:00:00 TP0] {BODY}",
        f'msg="{BODY}" level=info',
        f'{{"level": "info", "message": "{BODY}"}}',
        f'{{"level": "info"}} {BODY}',
        f"“{BODY}”",
        f"print({BODY})",
        f"x = `{BODY}`",
        f"the {STOCK}",
        f"[2026-02-01 10:00:00] prompt: {STOCK}",
        'File "x.py", line 3: logger.info(f"Prefill batch, #new-seq: {n}")',
        f"{'q' * 100} {BODY} and more",
        f"{'q' * 100} {BODY[:-5]}x",
        f"[client said] {BODY}",
    ],
)
def test_quotations_questions_and_prose_are_no_lines_and_are_counted(line: str) -> None:
    counts, examples = quoted(line)
    assert counts == {"sglang": 1}
    assert [where for where, _ in examples["sglang"]] == ["f:1"]
    assert len(examples["sglang"][0][1]) <= 200


def test_quoted_lines_keep_the_places_of_five_and_no_text() -> None:
    counts, examples = quoted(*[f'api_key=sk-abc123456 said "{BODY}"'] * 7)
    assert counts == {"sglang": 7}
    assert [where for where, _ in examples["sglang"]] == [f"f:{n}" for n in range(1, 6)]
    assert "sk-abc123456" not in str(examples)
    for line in (
        f"Receive: something GenerateReqInput(text='my own words {BODY}')",
        '{"prompt": "my own words", "text": "DDTREE metrics: my own words"}',
        f"what are {BODY} my own words",
        f"my own words: “{BODY}”",
    ):
        _, examples = quoted(line)
        assert [text for _, text in examples["sglang"]] == ["DDTREE metrics (the text around it left out)"]


def test_lines_that_are_read_or_broken_are_not_counted_as_quoted() -> None:
    request = f"[2026-02-01 10:00:00] Receive: obj=GenerateReqInput(rid='a', text='{BODY}')"
    for fast in (True, False):
        parser = Parser(DIALECTS, on_error="skip", fast=fast)
        made = parser.feed(batch([BODY, "[rank0]: " + BODY.replace("[4]", "[x]"), request, "noise", "DDTREE"]))
        assert {t: b.num_rows for t, b in made.tables.items()} == {"steps": 1, "request_lines": 1}
        assert parser.broken.total == 1
        assert parser.quoted.counts == {}


def test_a_broken_line_behind_a_known_head_is_broken_and_behind_any_text_it_is_counted() -> None:
    assert reason("[rank0]: " + BODY.replace("=4.00", "=nan")) == "bad_number"
    assert quoted("q" * 100 + " " + BODY.replace("=4.00", "=nan"))[0] == {"sglang": 1}


def test_two_lines_glued_together_are_broken_in_every_tier() -> None:
    for glued in (f"[2026-02-01 10:00:00 TP0] {BODY}[2026-02-01 10:00:00 TP1] {BODY}", f"{BODY} {BODY}"):
        for fast in (True, False):
            parser = Parser(DIALECTS, on_error="skip", fast=fast)
            assert rows("steps", glued, parser=parser) == []
            assert parser.broken.total == 1


def test_many_lines_with_another_head_are_read_by_the_fast_tiers() -> None:
    lines = [f"[rank{n % 4}]: [2026-02-01 10:00:00 TP{n % 4}] {BODY.replace('[4]', f'[{n}]')}" for n in range(600)]
    parser = Parser(DIALECTS, on_error="skip")
    made = rows("steps", *lines, parser=parser)
    assert [r["commit_lens"] for r in made] == [[n] for n in range(600)]
    assert [r["tp_rank"] for r in made] == [n % 4 for n in range(600)]
    assert not is_compiled() or parser.misses["sglang"] <= 64


@pytest.mark.parametrize(
    "line",
    [
        "INFO " * 100_000 + BODY,
        "[" * 300_000 + BODY,
        "0: " * 200_000 + BODY,
        "'" * 300_000 + BODY,
        "1/2 [00:00" * 50_000 + BODY,
        "the " * 200_000 + BODY,
        "commit_lens=[4] " * 30_000,
        "\ufffd " * 200_000 + BODY,
        "a\ufffd," * 100_000 + BODY,
        BODY + " x=\ufffd" * 50_000,
        "-a" * 300_000 + BODY.replace("[4]", "[x]"),
        (BODY + " ") * 3_000,
        "<1>1 " + "[" * 200_000 + BODY,
    ],
    ids=range(13),
)
def test_a_megabyte_before_a_line_is_read_in_linear_time(line: str) -> None:
    # No time is asserted: what is not linear in the length would never end here.
    for fast in (True, False):
        Parser(DIALECTS, on_error="skip", fast=fast).feed(batch([line]))
