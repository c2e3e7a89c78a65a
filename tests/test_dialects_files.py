"""Every collected sample file parses, or is counted broken, as its index says; the expectations were written from the files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddtree_metrics.dialects import DIALECTS
from ddtree_metrics.dialects.engine import Parser
from tests.dialect_lines import SAMPLES, batch, plain

# Per file: which lines (from 1) give a row of which table, and which are broken and why. All other lines are nothing.
# D decode, P prefill, E events, S servers, R request_lines, T steps.
FILES: dict[str, str] = {
    "01-eagle3-tp0-dot-accept-rate.log": "P1 D2-6 cut:decode7",
    "03-eagle2-0.4.1-cache-hit-rate.log": "R1 P2-5 cut:prefill6",
    "04-no-spec-uvicorn-interleaved.log": "D1 R2 P3 R4 P5 R6 P7 cut:decode8",
    "05-no-spec-0.5.5-trailing-comma.log": "D1-5 cut:decode6",
    "07-dflash-report-baseline-0.5.13.log": "D1-3 cut:decode4",
    "09-time-only-prefix-0.3.0.log": "D1-6 cut:decode7",
    "10-hisparse-token-field-constant.log": "D1-5",
    "11-ray-actor-prefix.log": "D1-4",  # the fifth ends inside its head: there is no marker
    "12-uvicorn-only-no-decode-lines.log": "R1-5",
    "14-swa-prefill-throughput-before-graph.log": "P1-3",
    "16-npu-tp-ep-mtp.log": "P1 D2 R3 D4 R5 D6",
    "18-multinode-second-node-two-digit-ranks.log": "D1-5 cut:decode6",
    "20-swa-prefill-docker-client-ips.log": "P1 R2 P3-4 cut:prefill5",
    "21-sglang-jax-extra-cache-miss-field.log": "D1-3 cut:decode4",
    "22-scheduler-exception-foreign-warning.log": "E2",
    "23-millisecond-timestamp-head-cut-off.log": "E1",
    "24-log-requests-tail-prefill-exception-other-rank.log": "P2 E3",
    "26-time-only-prefix-2026-capture-line-cut.log": "",
    "27-fields-elided-by-the-author.log": "cut:prefill1 cut:decode2",
    "28-ray-prefix-foreign-warning-repeated-suffix.log": "",
    "30-startup-banner-and-server-args-cut.log": "S7",  # what stands before the cut, and a mark
    "31-upstream-parser-fixtures.log": "D1-3",
    "32-docs-line-without-prefix.log": "D1",
    "34-response-spec-details-json.log": "",  # an answer of the API, not a log line
    "35-mamba-prefill-dp-tp-ep-long-notice.log": "P1-3",
    "37-token-zero-with-one-running-request.log": "D1-5",
    "38-startup-sequence-2026.log": "S2 S9 E10 R12 E13",
    "39-eagle-startup-level-and-file-in-prefix.log": "",
    "52-millisecond-iteration-pd-mtp-reqtimestats.log": "D1 R2",
    "54-repetition-loop-accept-rate-one.log": "D1-4 cut:decode5",
    "56-k8s-cri-prefix.log": "",
    "57-journald-short-iso-prefix-proxy-unit.log": "D6",  # whole, of a kind that prints neither #token nor throughput
    "59-req-time-stats-huge-duration.log": "R1",
    "61-throughput-zero-after-a-day-idle.log": "P1 D2 R3 P4",
    "63-placeholder-timestamp-missing-fields.log": "D2-3",
    "65-pd-first-decode-line-after-start.log": "D1",
    "67-notes-quoting-decode-line-in-prose.log": "",
    "90-rendered-decode-line-by-version.log": "D1-15",
    "91-rendered-prefill-line-by-version.log": "P1-12",
    "92-rendered-request-log-lines.log": "R1-5 R7-8",
    "93-rendered-spec-startup-lines.log": "S1 E3-5 S6 E7-9 S10 E11-14 S15-16 E17",
    "94-rendered-ddtree-profile-and-rank-probe.log": "E1-3",
    "95-constructed-journald-short.log": "D1 R2 E5",  # wrapped lines: taking the wrap off is the sources' part
    "96-constructed-journald-short-iso-precise.log": "D1 R2",
    "97-constructed-journald-json.log": "",
    "98-constructed-docker-compose-and-k8s.log": "D1 R2 D3 cut:decode4",
}
SPECULATIVE: dict[str, str] = {
    "01-seed-context-sweep.log": "",
    "02-seed-ddtree-fragment.log": "cut:steps1",
    "03-sglang-decode-nospec.log": "D1-3",
    "04-sglang-dspark-decode-prefill.log": "D1 P2 R3 P4-5",
    "05-sglang-decode-variants.log": "D1-3",
    "07-sglang-meta-info.log": "",
    "10-sglang-modelled-throughput.log": "D1",
    "11-sglang-decode-wrapped.log": "D1",  # two lines that a terminal wrapped are one
    "13-sglang-bench-serving-cut.log": "",
    "14-sglang-gsm8k-oneliner.log": "",
    "31-lucebox-probes.log": "",
    "33-aeon-ddtree-payload.log": "",
}
TABLES = {"D": "decode", "P": "prefill", "E": "events", "S": "servers", "R": "request_lines", "T": "steps"}


def expected(said: str) -> tuple[dict[str, list[int]], dict[tuple[str, str, str], int]]:
    rows: dict[str, list[int]] = {}
    broken: dict[tuple[str, str, str], int] = {}
    for word in said.split():
        if ":" in word:
            reason, place = word.split(":")
            key = ("sglang", place.rstrip("0123456789"), reason)
            broken[key] = broken.get(key, 0) + 1
        else:
            first, _, last = word[1:].partition("-")
            rows.setdefault(TABLES[word[0]], []).extend(range(int(first), int(last or first) + 1))
    return rows, broken


def read(folder: str, name: str, fast: bool = True) -> tuple[dict[str, list[int]], Parser, dict[str, list[dict[str, Any]]]]:
    lines = (SAMPLES / folder / name).read_text().removesuffix("\n").split("\n")
    parser = Parser(DIALECTS, on_error="skip", fast=fast)
    parsed = parser.feed(batch(lines, where=[f"{name}:{n}" for n in range(1, len(lines) + 1)]))
    places = {t: [int(n) + 1 for n in numbers] for t, numbers in parsed.line.items()}
    return places, parser, {t: [plain(r) for r in b.to_pylist()] for t, b in parsed.tables.items()}


def all_files() -> list[tuple[str, str, str]]:
    return [("sglang", n, s) for n, s in FILES.items()] + [("speculative", n, s) for n, s in SPECULATIVE.items()]


@pytest.mark.parametrize(("folder", "name", "said"), all_files(), ids=[n for _, n, _ in all_files()])
def test_a_sample_file_gives_what_its_index_says(folder: str, name: str, said: str) -> None:
    rows, broken = expected(said)
    for fast in (True, False):
        places, parser, _ = read(folder, name, fast)
        assert places == rows
        assert parser.broken.counts == broken


def test_every_sample_file_is_expected() -> None:
    assert {p.name for p in (SAMPLES / "sglang").glob("*.log")} == set(FILES)
    assert {p.name for p in (SAMPLES / "speculative").glob("*.log")} == set(SPECULATIVE)


def table(name: str, table: str, folder: str = "sglang") -> list[dict[str, Any]]:
    return read(folder, name)[2][table]


def pick(rows: list[dict[str, Any]], column: str) -> list[Any]:
    return [r.get(column) for r in rows]


def test_decode_lines_of_all_releases_have_their_fields() -> None:
    rows = table("90-rendered-decode-line-by-version.log", "decode")
    assert pick(rows, "running") == [1] * 15
    assert pick(rows, "tokens") == [1200] * 15
    assert pick(rows, "token_usage") == [0.01] * 15
    assert pick(rows, "queued") == [0] * 15
    assert pick(rows, "accept_len") == [None] + [3.1] * 9 + [6.4] * 3 + [4.2, 6.4]
    assert pick(rows, "accept_rate") == [None] * 7 + [0.78] * 3 + [0.40, 0.36, 0.36, 0.64, 0.36]
    assert pick(rows, "gen_throughput") == [80.12] + [190.5] * 9 + [393.0] * 3 + [250.0, 393.0]
    assert pick(rows, "cuda_graph") == [None] * 4 + [True] * 4 + [False] + [True] * 6
    assert pick(rows, "iteration") == [None] * 7 + [4711] + [None] * 7
    assert pick(rows, "retracted") == [None] * 8 + [0] + [None] * 5 + [0]
    assert pick(rows, "time_flag") == ["no_date"] + [None] * 14
    assert rows[6]["extra"] == {"#full token": "1200", "full token usage": "0.01", "#swa token": "800", "swa token usage": "0.04"}
    assert (rows[6]["dp_rank"], rows[6]["tp_rank"], rows[6]["ep_rank"], rows[6]["pp_rank"]) == (0, 0, 0, 0)
    assert rows[9]["extra"] == {"ATTN_CP": "0", "MOE_DP": "0", "waiting-image-req": "0"}
    assert rows[9]["time_resolution_us"] == 1000
    assert rows[10]["extra"]["est. read BW (GB/s per GPU)"] == "456.78"
    assert rows[11]["extra"] == {"fwd occupancy": "nan%"}
    assert rows[12]["extra"] == {
        "#gpu token": "1200", "gpu token usage": "0.01", "#cpu token": "64000", "cpu token usage": "0.50",
    }  # fmt: skip
    assert rows[13]["extra"] == {"cap len": "5.00", "block accept len": "4.90", "est uncap acc len": "4.55 [4.40, 4.70]"}


def test_prefill_lines_of_all_releases_have_their_fields() -> None:
    rows = table("91-rendered-prefill-line-by-version.log", "prefill")
    assert pick(rows, "new_seqs") == [1] * 12
    assert pick(rows, "new_tokens") == [128] * 12
    assert pick(rows, "cached_tokens") == [0, 0] + [64] * 10
    assert pick(rows, "running") == [3, 0, 0, 0, None] + [0] * 7
    assert pick(rows, "queued") == [0] * 12
    assert pick(rows, "token_usage") == [None, None] + [0.01] * 10
    assert pick(rows, "input_throughput") == [None] * 4 + [512.0] + [None] * 3 + [512.0] * 4
    assert pick(rows, "cuda_graph") == [None] * 8 + [False] * 4
    assert pick(rows, "iteration") == [None] * 7 + [4712] + [None] * 4
    assert rows[2]["extra"] == {"cache hit rate": "33.33%"}
    assert rows[4]["extra"] == {"#unbootstrapped-req": "0", "#transferring-req": "1"}
    assert rows[7]["extra"] == {"full token usage": "0.01", "mamba usage": "0.02"}


def test_pasted_lines_have_their_values() -> None:
    assert pick(table("01-eagle3-tp0-dot-accept-rate.log", "decode"), "tokens") == [108, 186, 258, 340, 412]
    assert pick(table("18-multinode-second-node-two-digit-ranks.log", "decode"), "dp_rank") == [9, 13, 15, 10, 8]
    assert pick(table("37-token-zero-with-one-running-request.log", "decode"), "tokens") == [64, 104, 264, 0, 63]
    assert pick(table("61-throughput-zero-after-a-day-idle.log", "decode"), "gen_throughput") == [0.0]
    assert pick(table("31-upstream-parser-fixtures.log", "decode"), "iteration") == [51341, 39913, None]
    assert pick(table("21-sglang-jax-extra-cache-miss-field.log", "decode"), "extra") == [{"#cache_miss": "1"}] * 3
    assert pick(table("54-repetition-loop-accept-rate-one.log", "decode"), "tokens") == [47360, 47680, 48000, 48320]
    fork = table("10-sglang-modelled-throughput.log", "decode", "speculative")[0]
    assert (fork["accept_len"], fork["gen_throughput"]) == (2.0, 800.0)
    assert fork["extra"]["iter latency (ms)"] == "20.0000"


def test_lines_without_some_fields_are_whole_where_nothing_was_cut() -> None:
    (row,) = table("57-journald-short-iso-prefix-proxy-unit.log", "decode")
    assert (row["running"], row["accept_len"]) == (1, 2.16)
    assert not {"tokens", "gen_throughput", "queued"} & set(row)
    rows = table("63-placeholder-timestamp-missing-fields.log", "decode")
    assert pick(rows, "dp_rank") == [1, 0]
    assert pick(rows, "accept_len") == [4.8, 1.0]
    assert pick(rows, "gen_throughput") == [None, None]
    assert pick(rows, "time") == [None, None]
    assert pick(rows, "iteration") == [77, 9]


def test_a_wrapped_line_is_joined_with_its_second_half() -> None:
    (row,) = table("11-sglang-decode-wrapped.log", "decode", "speculative")
    assert (row["accept_len"], row["cuda_graph"], row["gen_throughput"], row["queued"]) == (1.57, True, 42.78, 0)


def test_the_cut_head_keeps_its_ranks_and_no_time() -> None:
    (row,) = table("23-millisecond-timestamp-head-cut-off.log", "events")
    assert (row["kind"], row["dp_rank"], row["tp_rank"], row["ep_rank"], row.get("time")) == ("exception", 0, 0, 0, None)


def test_events_of_the_startup_lines() -> None:
    rows = table("93-rendered-spec-startup-lines.log", "events")
    assert pick(rows, "kind") == ["notice"] * 8 + ["adaptive_tier"] * 2 + ["ready"]
    assert pick(table("94-rendered-ddtree-profile-and-rank-probe.log", "events"), "kind") == ["profiling"] * 3
    assert pick(table("38-startup-sequence-2026.log", "events"), "kind") == ["restart", "ready"]


def test_messages_of_the_journal_json_sample_parse_when_they_are_unwrapped() -> None:
    lines = [json.loads(x)["MESSAGE"] for x in (SAMPLES / "sglang" / "97-constructed-journald-json.log").read_text().splitlines()]
    assert bytes(lines[1]) == b"\x1b[36mDecode batch"
    parser = Parser(DIALECTS, on_error="skip")
    parsed = parser.feed(batch([lines[0], "Decode batch"]))  # a source takes the colour off
    assert parsed.line["decode"].tolist() == [0]
    assert parser.broken.counts == {("sglang", "decode", "cut"): 1}
