"""Bad bytes and control characters beside values are no part of them; inside a value they spoil it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import ddtree_metrics as ddt
from ddtree_metrics.dialects import DIALECTS
from ddtree_metrics.dialects.engine import Parser
from ddtree_metrics.dialects.find import clean
from tests.dialect_lines import batch, one, reason, rows

HEAD = "[2026-02-01 10:00:00 TP0] "
BODY = "DDTREE metrics: bs=1 budget=16 actual_nodes=[17] accepted_drafts=[4] commit_lens=[5] avg_accepted_drafts=4.00 avg_commit_len=5.00"
STOCK = "Decode batch, #running-req: 1, #token: 100, token usage: 0.50, gen throughput (token/s): 100.40, #queue-req: 3"
JUNK = ["\ufffd", "\ufffd\ufffd", "\x00", "\x07 ", " \x00\x01", "\x7f", "\ufeff", "\x9b"]


def test_o13_five_messages_give_five_steps_whatever_form_they_have(tmp_path: Path) -> None:
    bodies = [BODY.replace("[4]", f"[{n - 1}]").replace("[5]", f"[{n}]") for n in range(1, 6)]
    messages = [
        bodies[0],
        list(f"\x1b[32m{bodies[1]}\x1b[0m".encode()),
        list(f"40%\r{bodies[2]}".encode()),
        [*bodies[3].encode(), 255],
        None,
        ...,
        f"noise\n{bodies[4]}",
    ]
    path = tmp_path / "journal.json"
    start = 1_767_225_600_000_000
    with path.open("w") as file:
        for n, message in enumerate(messages):
            entry = {"__REALTIME_TIMESTAMP": str(start + 50_000 * n)}
            file.write(json.dumps(entry if message is ... else {**entry, "MESSAGE": message}) + "\n")
    log = ddt.read_text(path)
    assert log.steps["commit_lens"].tolist() == [[1], [2], [3], [4], [5]]
    assert [(us - start) // 1000 for us in log.steps["time_us"]] == [0, 50, 100, 150, 300]
    assert (log.coverage.message_null, log.coverage.message_missing, log.coverage.broken_lines) == (1, 1, 0)


@pytest.mark.parametrize("junk", JUNK)
def test_junk_at_the_ends_behind_the_head_and_between_pairs_changes_nothing(junk: str) -> None:
    want = one("steps", HEAD + BODY)
    stock = one("decode", HEAD + STOCK)
    for line in (
        HEAD + BODY + junk,
        HEAD + BODY + " " + junk,
        junk + HEAD + BODY,
        HEAD + junk + BODY,
        HEAD.rstrip() + junk + " " + BODY,
        HEAD.rstrip() + junk + BODY,
        HEAD + BODY.replace("bs=1 ", f"bs=1{junk} "),
        HEAD + BODY.replace("bs=1 ", f"bs=1{junk}"),
        HEAD + BODY.replace("[17] ", f"[17] {junk}"),
        HEAD + BODY.replace("metrics: ", f"metrics: {junk} "),
        f"loading{junk}{HEAD}{BODY}",
    ):
        assert one("steps", line) == want, ascii(line)
    for line in (HEAD + STOCK + junk, HEAD + junk + STOCK, HEAD + STOCK.replace(", #token", f"{junk}, #token"), HEAD + STOCK + "," + junk):
        assert one("decode", line) == stock, ascii(line)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("4.00", "4.0\ufffd0"), "bad_number"),
        (("=5.00", "=5.0\ufffd0"), "bad_number"),
        (("bs=1", "bs=1\ufffd2"), "bad_number"),
        (("bs=1", "bs=\ufffd"), "bad_number"),
        (("bs=1", "bs=\ufffd1"), "bad_number"),
        (("[17]", "[1\x007]"), "bad_number"),
        (("[17]", "[1\ufffd, 2]"), "bad_number"),
        (("=5.00", "=\ufffd"), "cut"),
        (("=5.00", "=5.\ufffd"), "cut"),
    ],
)
def test_junk_inside_a_value_spoils_it(change: tuple[str, str], why: str) -> None:
    assert reason(HEAD + BODY.replace(*change)) == why


def test_a_junk_byte_in_a_stock_value_spoils_it() -> None:
    assert reason(HEAD + STOCK.replace("0.50", "0.\ufffd5")) == "bad_number"
    assert reason(HEAD + STOCK.replace("0.50", "\ufffd")) == "bad_number"


def test_junk_is_taken_off_in_the_middle_of_a_batch_that_is_a_slice() -> None:
    lines = ["é", "x" * 70, "\ufffdno", HEAD + BODY + "\ufffd", "中文，。", HEAD + BODY.replace("[5]", "[6]") + "\x00", "\ufffd"]
    parser = Parser(DIALECTS, on_error="skip")
    parsed = parser.feed(batch(lines).slice(1, 5))
    assert parsed.line["steps"].tolist() == [2, 4]
    assert parsed.tables["steps"].column("commit_lens").to_pylist() == [[5], [6]]
    assert parser.broken.total == 0


def test_the_text_of_other_lines_keeps_what_stands_in_the_middle() -> None:
    speaks = re.compile("DDTREE metrics")
    assert clean("caf\ufffd au lait\ufffd", speaks) == "caf\ufffd au lait"
    (row,) = rows("events", "[2026-02-01 10:00:00] SIGTERM received. caf\ufffd x\ufffd")
    assert row["detail"] == "SIGTERM received. caf\ufffd x"
