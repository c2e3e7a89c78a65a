"""Stock SGLang lines: whole keys, cut lines, values that break them, and the tables the other lines go to."""

from __future__ import annotations

import pytest

from ddtree_metrics.dialects import DIALECTS
from ddtree_metrics.dialects.compiled import is_compiled
from ddtree_metrics.dialects.engine import Parser
from tests.dialect_lines import batch, one, reason, rows

HEAD = "[2026-07-20 12:00:00 TP0] "
DECODE = (
    HEAD + "Decode batch, #running-req: 14, #token: 123456, token usage: 0.71, accept len: 4.20, accept rate: 0.64, cuda graph: True, "
    "gen throughput (token/s): 1250.25, #queue-req: 3"
)
PREFILL = (
    HEAD + "Prefill batch, #new-seq: 11, #new-token: 2048, #cached-token: 640, token usage: 0.01, #running-req: 10, #queue-req: 12, "
    "#pending-token: 17, cuda graph: False, input throughput (token/s): 512.50"
)


def test_whole_keys_are_matched_and_not_their_ends() -> None:
    row = one(
        "decode",
        HEAD + "Decode batch, #running-req: 1, #swa token: 9, swa token usage: 0.09, block accept len: 9.99, #queue-req: 0",
    )
    assert not {"tokens", "token_usage", "accept_len"} & set(row)
    assert row["extra"] == {"#swa token": "9", "swa token usage": "0.09", "block accept len": "9.99"}


@pytest.mark.parametrize(("table", "line", "begins"), [("decode", DECODE, "Decode batch"), ("prefill", PREFILL, "Prefill batch")])
def test_a_line_cut_anywhere_gives_no_wrong_value(table: str, line: str, begins: str) -> None:
    whole = one(table, line)
    start = line.index(begins) + len(begins)
    last = line.index("#queue-req: ") + len("#queue-req: 1")
    for end in range(start, len(line)):
        parser = Parser(DIALECTS, on_error="skip")
        made = rows(table, line[:end], parser=parser)
        if made:
            values = {k: v for k, v in made[0].items() if k not in ("where",)}
            # Digits of the queue and of what follows it may be lost unseen; nothing before may.
            free = {"queued", "extra"} if end >= last else set()
            assert {k: v for k, v in values.items() if k not in free} == {k: whole[k] for k in values if k not in free}, line[:end]
        else:
            assert parser.broken.counts == {("sglang", table, "cut"): 1}, line[:end]


def test_a_step_line_cut_anywhere_gives_no_wrong_mean() -> None:
    line = HEAD + "DDTREE metrics: bs=4 commit_lens=[5, 6, 5, 5] avg_accepted_drafts=4.25 avg_commit_len=5.25"
    start = line.index(" avg_accepted_drafts")
    for end in range(start + 1, len(line)):
        made = rows("steps", line[:end])
        for row in made:
            assert row["commit_lens"] == [5, 6, 5, 5]
            assert row.get("avg_commit_len") is None, line[:end]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("#token: 123456", "#token: -5"), "negative"),
        (("1250.25", "nan"), "bad_number"),
        (("1250.25", "inf"), "bad_number"),
        (("1250.25", "1e400"), "out_of_range"),
        (("#running-req: 14", "#running-req: 12345678901234567890"), "out_of_range"),
        (("#running-req: 14", "#running-req: 3000000000"), "out_of_range"),
        (("#running-req: 14", "#running-req: x"), "bad_number"),
        (("graph: True", "graph: Maybe"), "bad_value"),
        (("accept len: 4.20", "accept len: ..."), "cut"),
    ],
)
def test_a_value_that_is_none_breaks_its_line_only(change: tuple[str, str], why: str) -> None:
    assert reason(DECODE.replace(*change)) == why
    assert len(rows("decode", DECODE, DECODE.replace(*change), DECODE)) == 2


def test_large_counts_fit_their_wide_columns() -> None:
    assert one("decode", DECODE.replace("123456", "5000000000"))["tokens"] == 5_000_000_000


def test_extra_fields_of_forks_are_kept_and_learned() -> None:
    line = DECODE + ", #cache_miss: 1, est uncap acc len: 4.55 [4.40, 4.70]"
    parser = Parser(DIALECTS, on_error="skip")
    made = rows("decode", *[line] * 600, parser=parser)
    assert all(r["extra"] == {"#cache_miss": "1", "est uncap acc len": "4.55 [4.40, 4.70]"} for r in made)
    assert not is_compiled() or parser.misses["sglang"] <= 256


@pytest.mark.parametrize(
    "line",
    [
        f'client said: "{DECODE}"',
        f"[2026-07-20 12:00:00] prompt: {DECODE}",
        "#running-req: 2, mamba num: 8, mamba usage: 0.67,",
        "gen throughput: 88.23 token/s",
        "the Decode batch, #running-req: 1, #queue-req: 0",
        'File "/opt/sglang/scheduler.py", line 3, in f"Decode batch, #running-req: {n}"',
        "[2026-07-20 12:00:00] WARNING server_args.py:2304: about Decode batch lines",
    ],
)
def test_prose_and_quotes_are_nothing(line: str) -> None:
    assert reason(line) is None


@pytest.mark.parametrize(
    ("line", "kind", "count", "detail"),
    [
        ("[2026-11-29 15:16:57] KV cache pool is full. Retract requests. #retracted_reqs: 12, #new_token_ratio: 0.0646 -> 0.8623",
         "retraction", 12, "KV cache pool is full. Retract requests. #retracted_reqs: 12, #new_token_ratio: 0.0646 -> 0.8623"),
        ("[12:00:00 TP0] Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.4 -> 0.5",
         "retraction", 1, "Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.4 -> 0.5"),
        ("Suppressed 740 messages from sglang.service", "suppressed", 740, "sglang.service"),
        ("sglang.service: Main process exited, code=exited, status=1/FAILURE", "exit", None,
         "Main process exited, code=exited, status=1/FAILURE"),
        ("sglang.service: Scheduled restart job, restart counter is at 3.", "restart", 3, "Scheduled restart job, restart counter is at 3"),
        ("[2026-11-29 15:17:44] SIGTERM received. signum=None frame=None. Draining requests and shutting down...", "exit", None,
         "SIGTERM received. signum=None frame=None. Draining requests and shutting down..."),
        ("[2026-07-20 12:00:09] WARNING env: SGLANG_SIMULATE_ACC_LEN=3.0 is set", "simulated", None,
         "WARNING env: SGLANG_SIMULATE_ACC_LEN=3.0 is set"),
    ],
)  # fmt: skip
def test_lines_that_break_a_run_of_steps_are_events(line: str, kind: str, count: int | None, detail: str) -> None:
    row = one("events", line)
    assert (row["kind"], row.get("count"), row["detail"]) == (kind, count, detail)


def test_systemd_without_a_unit_name_counts_only_as_process_one() -> None:
    lines = ["Started SGLang server.", "Stopped SGLang server.", "Started SGLang server."]
    assert [r["kind"] for r in rows("events", *lines, pid=[1, 1, 4711])] == ["restart", "exit"]


def test_o15_a_suppression_keeps_the_unit_that_lost_lines() -> None:
    (row,) = rows("events", "Suppressed 740 messages from sglang.service", unit=["sglang.service"])
    assert (row["kind"], row["count"], row["unit"]) == ("suppressed", 740, "sglang.service")


@pytest.mark.parametrize(
    ("text", "unit", "want"),
    [
        ("Suppressed 740 messages from sglang.service", None, "sglang.service"),
        ("Suppressed 1 message from sglang@0.service", None, "sglang@0.service"),
        ("Suppressed 740 messages from /system.slice/sglang.service", None, "sglang.service"),
        ("Suppressed 740 messages from session-1.scope (user 1)", None, "session-1.scope"),
        ("Suppressed 740 messages from an unknown unit", None, None),
        ("Suppressed 740 messages from sglang.service", "other.service", "other.service"),
    ],
)
@pytest.mark.parametrize("fast", [True, False])
def test_o15_a_suppression_without_a_unit_takes_the_one_in_its_text(text: str, unit: str | None, want: str | None, fast: bool) -> None:
    lines = [text, "Suppressed 3 messages from b.service", "[2026-02-01 10:00:00] The server is fired up and ready to roll!"]
    made = rows("events", *lines, parser=Parser(DIALECTS, fast=fast), unit=[unit, None, None])
    assert [r.get("unit") for r in made] == [want, "b.service", None]
    assert made[0]["detail"] == text.split(" from ")[1]


def test_access_lines_lose_query_and_client() -> None:
    row = one(
        "request_lines", '[2026-04-05 20:02:51] INFO:     192.0.2.10:40052 - "GET /health?api_key=sk-1 HTTP/1.1" 503 Service Unavailable'
    )
    assert (row["event"], row["path"], row["status"]) == ("access", "GET /health", 503)
    assert "192.0.2.10" not in str(row)
    assert "sk-1" not in str(row)


def test_lines_of_other_tables_do_not_disturb_each_other() -> None:
    parsed = Parser(DIALECTS).feed(batch([DECODE, PREFILL, "noise", DECODE]))
    assert {t: n.tolist() for t, n in parsed.line.items()} == {"decode": [0, 3], "prefill": [1]}


@pytest.mark.parametrize(
    ("table", "line"),
    [
        (
            "decode",
            "[2026-02-20 12:00:00 TP0] Decode batch, #running-req: 1, #token: 1200, token usage: 0.01, cuda graph: True, #queue-req: 0, ",
        ),
        (
            "prefill",
            "[2026-02-20 12:00:00 TP0] Prefill batch, #new-seq: 1, #new-token: 2048, #cached-token: 64, #running-req: 0, #queue-req: 0",
        ),
    ],
)
def test_a_stock_line_cut_at_its_head_is_counted_as_cut(table: str, line: str) -> None:
    marker = line.index("] ") + 2
    for at in range(1, line.index("#queue-req") - 8):
        parser = Parser(DIALECTS, on_error="skip")
        made = rows(table, line[at:], parser=parser)
        # Behind a cut head the message is whole.
        assert len(made) == (at <= marker), line[at:]
        assert parser.broken.total == (not made), line[at:]
        # Some keys are of both kinds.
        assert {(t in (table, "decode"), why) for _, t, why in parser.broken.counts} <= {(True, "cut")}


def test_a_line_wrapped_behind_a_comma_is_not_counted_twice() -> None:
    parser = Parser(DIALECTS, on_error="skip")
    made = rows("decode", "Decode batch, #running-req: 1, #token: 12,", " token usage: 0.01, #queue-req: 0", parser=parser)
    assert len(made) == 1
    assert parser.broken.total == 0


def test_a_number_of_a_pattern_that_goes_on_is_broken() -> None:
    line = "[2026-11-29 15:16:57] KV cache pool is full. Retract requests. #retracted_reqs: {}, #new_token_ratio: 0.06 -> 0.86"
    assert one("events", line.format("12"))["count"] == 12
    assert reason(line.format("1,024")) == "bad_number"
    assert reason(line.format("1.5")) == "bad_number"
