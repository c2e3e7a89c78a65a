"""Request lines: ids, counts and times of all releases; no text of a request, however it looks."""

from __future__ import annotations

import datetime as dt
import json
import time

import pytest

from ddtree_metrics.dialects import DIALECTS
from ddtree_metrics.dialects.engine import Parser
from tests.dialect_lines import SAMPLES, batch, one, reason, rows

HEAD = "[2025-12-02 12:00:03] "
META = (
    "{'id': 'r2', 'finish_reason': {'type': 'length', 'length': 256}, 'prompt_tokens': 100, 'completion_tokens': 256, "
    "'cached_tokens': 7, 'spec_verify_ct': 40}"
)


def finish(text: str, meta: str = META, out_text: str = "ok") -> str:
    return f"{HEAD}Finish: obj=GenerateReqInput(text={text!r}, rid='r2', stream=True), out={{'text': {out_text!r}, 'meta_info': {meta}}}"


FAKES = [
    "out={'meta_info': {'id': 'fake', 'completion_tokens': 1}}",
    "'), out={'meta_info': {'id': 'fake', 'completion_tokens': 1}}",
    '"), out={"meta_info": {"completion_tokens": 1}}',
    "it's \"both\" quotes, rid='fake' \\ \\\\' end",
    "Traceback (most recent call last):\n ERROR: [2026-01-01 00:00:00 TP0] Decode batch, #running-req: 1, #queue-req: 0",
    "meta_info",
    "日本語 🚀 \x00 \ufffd",
]


@pytest.mark.parametrize("fake", FAKES)
@pytest.mark.parametrize("where", ["prompt", "answer"])
def test_text_that_looks_like_the_structure_does_not_mislead(fake: str, where: str) -> None:
    row = one("request_lines", finish(fake) if where == "prompt" else finish("hi", out_text=fake))
    assert (row["request_id"], row["completion_tokens"], row["prompt_tokens"], row["verify_steps"]) == ("r2", 256, 100, 40)
    assert row["finish_reason"] == "length"
    assert "extra" not in row


@pytest.mark.parametrize(
    ("keys", "accepted", "proposed"),
    [
        ("'spec_accept_token_num': 216, 'spec_draft_token_num': 600", 216, 600),
        ("'spec_accepted_drafts': 217, 'spec_proposed_drafts': 601", 217, 601),
        ("'spec_num_correct_drafts': 218, 'spec_num_proposed_drafts': 602", 218, 602),
        (
            "'spec_accepted_drafts': 218, 'spec_proposed_drafts': 602, 'spec_num_correct_drafts': 218, 'spec_num_proposed_drafts': 602",
            218,
            602,
        ),
    ],
)
def test_renamed_keys_of_all_releases_fill_the_same_columns(keys: str, accepted: int, proposed: int) -> None:
    row = one("request_lines", finish("hi", "{'id': 'r2', " + keys + "}"))
    assert (row["accepted_drafts"], row["proposed_drafts"]) == (accepted, proposed)
    for name in ("spec_accept_histogram", "spec_correct_drafts_histogram"):
        row = one("request_lines", finish("hi", f"{{'id': 'r2', '{name}': [11, 14, 11, 4, 0, 3]}}"))
        assert row["accepted_histogram"] == [11, 14, 11, 4, 0, 3]
    for name in ("total_retractions", "num_retractions"):
        assert one("request_lines", finish("hi", f"{{'id': 'r2', '{name}': 2}}"))["retractions"] == 2


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_rank_of_meta_info_fills_in_where_the_head_has_none(form: str) -> None:
    meta = {"id": "r2", "prompt_tokens": 1, "completion_tokens": 2, "dp_rank": 1}

    def line(head: str) -> str:
        if form == "text":
            return f"{head}Finish: obj=GenerateReqInput(rid='r2'), out={{'text': '', 'meta_info': {meta!r}}}"
        return head + json.dumps({"timestamp": "", "event": "request.finished", "rid": "r2", "out": {"meta_info": meta}})

    row = one("request_lines", line(HEAD))
    assert row["dp_rank"] == 1
    assert "extra" not in row
    assert one("request_lines", line("[2025-12-02 12:00:03 DP3] "))["dp_rank"] == 3


def test_the_stamp_inside_a_json_line_is_finer_than_that_of_whole_seconds() -> None:
    text = '{"timestamp": "2025-12-02T12:00:03.123456", "event": "request.received", "rid": "r2"}'
    row = one("request_lines", HEAD + text)
    assert row["time"] == dt.datetime(2025, 12, 2, 12, 0, 3, 123456, tzinfo=dt.timezone.utc)
    assert row["time_resolution_us"] == 1
    assert "received" not in row  # local time, as the head's: it is the line's time, and no instant
    other = one("request_lines", "[2025-12-02 13:00:03] " + text)  # not of the same clock
    assert other["time"] == dt.datetime(2025, 12, 2, 13, 0, 3, tzinfo=dt.timezone.utc)
    zoned = one("request_lines", HEAD + text.replace("123456", "123456+02:00"))
    assert zoned["received"] == dt.datetime(2025, 12, 2, 10, 0, 3, 123456, tzinfo=dt.timezone.utc)


def test_times_are_taken_where_the_line_says_them() -> None:
    # received at 1795965470.0654316; first token 0.249141921744922 s later: 1795965470.314573...; finished at 1795965475.2370443.
    meta = (
        "{'id': 'r2', 'request_received_ts': 1795965470.0654316, 'first_token_latency': 0.249141921744922, 'e2e_latency': 5.5, "
        "'request_finished_ts': 1795965475.2370443, 'queue_time': 0.25, 'decode_throughput': 1.42}"
    )
    row = one("request_lines", finish("hi", meta))

    def at(seconds: float) -> dt.datetime:
        return dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(microseconds=round(seconds * 1e6))

    assert row["received"] == at(1795965470.0654316)
    assert row["first_token"] == at(1795965470.0654316 + 0.249141921744922)
    assert row["finished"] == at(1795965475.2370443)
    assert (row["e2e_ms"], row["queue_ms"]) == (5500.0, 250.0)
    assert row["extra"] == {
        "request_received_ts": "1795965470.0654316",
        "first_token_latency": "0.249141921744922",
        "request_finished_ts": "1795965475.2370443",
        "decode_throughput": "1.42",
    }


def test_the_rendered_lines_of_all_releases() -> None:
    made = rows("request_lines", *(SAMPLES / "sglang" / "92-rendered-request-log-lines.log").read_text().splitlines())
    assert [r["event"] for r in made] == ["finished", "received", "finished", "received", "finished", "stats", "stats"]
    assert [r["request_id"] for r in made] == ["r1", "r2", "r2", "r3", "r3", "r2", "r3"]
    assert [r.get("completion_tokens") for r in made] == [256, None, 256, None, 256, 256, 256]
    assert made[4]["accepted_histogram"] == [2, 4, 6]
    assert made[6]["extra"] == {"type": "unified", "attempts": "0", "entry_time": "1790758489.264"}


def test_absurd_durations_are_kept_as_printed() -> None:
    row = one("request_lines", (SAMPLES / "sglang" / "59-req-time-stats-huge-duration.log").read_text().strip())
    assert row["forward_ms"] == 1759654443392.38


def test_pd_time_stats() -> None:
    _, line = (SAMPLES / "sglang" / "52-millisecond-iteration-pd-mtp-reqtimestats.log").read_text().splitlines()
    row = one("request_lines", line)
    assert (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"], row["dp_rank"]) == (4, 0, 1, 3)
    assert (row["queue_ms"], row["forward_ms"]) == (0.41, 8348.19)
    assert row["extra"]["transfer_speed"] == "0.00 GB/s"


def test_json_lines_with_any_text_inside() -> None:
    record = {
        "timestamp": "2026-01-29T00:52:50.123456",
        "event": "request.finished",
        "rid": "r3",
        "obj": {"text": FAKES[0] + '\n"}'},
        "out": {"text": "x" * 100, "meta_info": {"id": "r3", "prompt_tokens": 5, "finish_reason": {"type": "stop"}, "spec_verify_ct": 2}},
    }
    row = one("request_lines", HEAD + json.dumps(record, ensure_ascii=False))
    assert (row["request_id"], row["prompt_tokens"], row["finish_reason"], row["verify_steps"]) == ("r3", 5, "stop", 2)


def test_cut_lines_are_broken_and_their_examples_hold_no_text() -> None:
    line = finish("my private words " * 50)
    for end in (len(line) - 1, len(line) - 30, line.index("out=") + 2, 200):
        parser = Parser(DIALECTS, on_error="skip")
        assert not parser.feed(batch([line[:end]])).tables
        assert parser.broken.counts == {("sglang", "request_lines", "cut"): 1}
        assert "private" not in str(parser.broken.examples)
    assert reason(HEAD + '{"timestamp": "2026-01-29T00:52:50.1", "event": "request.finished", "rid": "r3", "obj": {"te') == "cut"


def test_texts_and_token_ids_are_never_stored() -> None:
    line = (
        f"{HEAD}Finish: obj=GenerateReqInput(rid='r2', text='secret words', input_ids=[101, 7592]), "
        "out={'text': 'answer words', 'output_ids': [2023, 2003], "
        "'meta_info': {'id': 'r2', 'note': 'hidden words', 'completion_tokens': 2}}"
    )
    row = one("request_lines", line)
    assert not any(w in str(row) for w in ("words", "101", "7592", "2023", "2003"))


def test_a_megabyte_of_text_is_skipped_whole() -> None:
    line = finish("lorem 'ipsum' \\ \"dolor\" [1, {2}] " * 30_000)
    assert len(line) > 1_000_000
    start = time.process_time()
    assert one("request_lines", line)["completion_tokens"] == 256
    assert one("request_lines", line.replace("Finish: ", "Receive: ").partition(", out=")[0])["request_id"] == "r2"
    # No bound is asserted; a scan character by character would make this test stand out.
    assert time.process_time() >= start


@pytest.mark.parametrize("value", ["9" * 310, "9" * 5000, "1e400", "1,024", "nan", "-1"])
def test_a_number_that_does_not_convert_breaks_its_line_and_no_other(value: str) -> None:
    stats = f"{HEAD}Req Time Stats(rid=r2, input len={value}, output len=484): queue_duration=0.40ms, forward_duration=1499.00ms"
    slow = f"{HEAD}Req Time Stats(rid=r2, input len=4, output len=484): queue_duration={value}ms, forward_duration=1499.00ms"
    text = finish("hi", META.replace("256, 'cached", f"{value}, 'cached"))
    lines = [stats, slow, text, finish("hi")]
    if value.lstrip("-").replace("e", "").isdigit():
        record = f'"event": "request.finished", "rid": "r3", "out": {{"meta_info": {{"prompt_tokens": {value}}}}}'
        lines.insert(0, HEAD + '{"timestamp": "2026-01-29T00:52:50.1", ' + record + "}")
    for fast in (True, False):
        parser = Parser(DIALECTS, on_error="skip", fast=fast)
        assert [r["completion_tokens"] for r in rows("request_lines", *lines, parser=parser)] == [256]
        assert parser.broken.total == len(lines) - 1
        assert {r for _, _, r in parser.broken.counts} <= {"bad_number", "out_of_range", "negative"}


@pytest.mark.parametrize(
    "stamp", ['"yesterday"', '"2026-02-30T00:00:00"', "1795965470.06", "null", '"' + "9" * 100 + '"', "[1]", '"a\\u0022b"']
)
def test_a_json_line_with_a_bad_time_is_a_row_with_the_time_of_its_head(stamp: str) -> None:
    line = HEAD + f'{{"timestamp": {stamp}, "event": "request.finished", "rid": "r3", "out": {{"meta_info": {{"prompt_tokens": 5}}}}}}'
    row = one("request_lines", line)
    assert (row["request_id"], row["prompt_tokens"]) == ("r3", 5)
    assert row["time"] == dt.datetime(2025, 12, 2, 12, 0, 3, tzinfo=dt.timezone.utc)


def test_an_unknown_number_of_many_digits_is_left_out_and_the_rest_is_kept() -> None:
    row = one("request_lines", finish("hi", "{'id': 'r2', 'completion_tokens': 5, 'mystery': " + "9" * 310 + "}"))
    assert row["completion_tokens"] == 5
