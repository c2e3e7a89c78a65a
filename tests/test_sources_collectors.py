"""Logs that a collector or journalctl has wrapped: the rows are those of the plain log, with whose they are and when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddtree_metrics.loading import read_text
from ddtree_metrics.sources import byte_streams, documents, open_source
from tests.test_sources_text import messages

FAILING = Path(__file__).resolve().parent.parent / "fixtures" / "failing"
WRAPPED = FAILING / "wrapped"
BOOT = "a" * 32


def decode(path: Path) -> list[dict[str, Any]]:
    table = read_text(path).decode
    rows: list[dict[str, Any]] = table.to_dict("records")
    return rows


@pytest.mark.parametrize("name", ["verbose.txt", "json-pretty.txt"])
def test_what_journalctl_lays_out_for_reading_gives_the_entries(name: str) -> None:
    made = decode(WRAPPED / name)
    # Four entries a second apart, from 2026-01-01 00:00:00 UTC and 5 s after the boot; two have a second MESSAGE.
    assert [r["time_us"] for r in made] == [1_767_225_600_000_000 + 1_000_000 * n for n in range(4)]
    assert [r["monotonic_us"] for r in made] == [5_000_000 + 1_000_000 * n for n in range(4)]
    assert [r["tokens"] for r in made] == [100, 200, 300, 400]
    assert {(r["unit"], r["pid"], r["boot_id"], r["time_from"]) for r in made} == {("sg.service", 77, BOOT, "journal")}
    lines = messages(open_source(WRAPPED / name))
    assert len(lines) == 6
    assert (lines[2], lines[3]) == ("second value", "first")


def test_an_array_of_entries_gives_the_entries(tmp_path: Path) -> None:
    made = decode(WRAPPED / "array.json")
    assert [(r["time_us"], r["monotonic_us"], r["tokens"]) for r in made] == [
        (1_767_225_600_000_000, 5_000_000, 100),
        (1_767_225_606_000_000, 11_000_000, 700),
    ]
    # As jq -s prints it: over many lines.
    laid_out = tmp_path / "array.json"
    for indent in (1, 2, 4, "\t"):
        laid_out.write_text(json.dumps(json.loads((WRAPPED / "array.json").read_text()), indent=indent))
        assert [r["tokens"] for r in decode(laid_out)] == [100, 700]


def test_the_objects_of_vector_have_both_clocks() -> None:
    made = decode(WRAPPED / "vector.jsonl")
    assert [r["monotonic_us"] for r in made] == [5_000_000, 6_000_000, 7_000_000]
    assert {(r["unit"], r["host"], r["pid"], r["boot_id"]) for r in made} == {("sg.service", "h1", 77, BOOT)}


@pytest.mark.parametrize(
    ("name", "times", "resolution", "unit", "host"),
    [
        ("fluentbit.jsonl", [600_123_000, 601_123_000, 602_123_000], 1000, "sg.service", None),
        ("otel.jsonl", [600_000_000, 601_000_000, 602_000_000], 1, None, None),
        ("logcli.jsonl", [602_123_456, 601_123_456, 600_123_456], 1, "sg.service", "h1"),
        ("logcli.txt", [602_123_456, 601_123_456, 600_123_456], 1, "sg.service", "h1"),
    ],
)
def test_what_collectors_write_has_their_time_and_the_unit(
    name: str, times: list[int], resolution: int, unit: str | None, host: str | None
) -> None:
    log = read_text(WRAPPED / name)
    table = log.decode
    assert table["time_us"].tolist() == [1_767_225_000_000_000 + t for t in times]
    assert set(table["time_from"]) == {"frame"}
    assert set(table["time_resolution_us"]) == {resolution}
    for column, want in (("unit", unit), ("host", host)):
        assert set(table[column].dropna()) == ({want} if want else set())
    backwards = any("newest first" in note and "--forward" in note for note in log.coverage.notes)
    assert backwards == name.startswith("logcli")


@pytest.mark.parametrize("key", ["message", "msg", "log"])
@pytest.mark.parametrize(
    "stamp", ["1767225600", "1767225600.5", "1767225600123", "1767225600123456", '"1767225600123456789"', '"2026-01-01T00:00:00Z"']
)
def test_a_time_is_known_in_whatever_unit_it_is_written(stamp: str, key: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    line = "DDTREE metrics: bs=1 commit_lens=[5]"
    path.write_text(f'{{"ts": {stamp}, "{key}": "{line}", "kubernetes": {{"pod_name": "p1", "container_name": "sg"}}}}\n')
    (row,) = read_text(path).steps.to_dict("records")
    assert row["time_us"] // 1_000_000 == 1_767_225_600
    assert (row["unit"], row["host"]) == ("sg", "p1")


def test_labels_before_a_line_do_not_hide_it(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text('{unit="sg.service"} [2026-02-01 10:00:00 TP0] DDTREE metrics: bs=1 commit_lens=[5]\n')
    (row,) = read_text(path).steps.to_dict("records")
    assert (row["unit"], row["tp_rank"], row["commit_lens"].tolist() if hasattr(row["commit_lens"], "tolist") else row["commit_lens"]) == (
        "sg.service",
        0,
        [5],
    )


def test_json_over_many_lines_may_come_in_any_pieces_and_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (WRAPPED / "json-pretty.txt").read_text()
    broken = tmp_path / "x.txt"
    broken.write_text(text.replace('"__REALTIME_TIMESTAMP" : "1767225601000000",', '"__REALTIME_TIMESTAMP" : "17672256'))
    for size in (1 << 20, 100, 7):
        monkeypatch.setattr(byte_streams, "CHUNK", size)
        assert len(messages(open_source(WRAPPED / "json-pretty.txt"))) == 6
        source = open_source(broken)
        made = messages(source)
        assert [m for m in made if "#token: 200" not in m and "batch" in m] == [
            m for m in messages(open_source(WRAPPED / "json-pretty.txt")) if "batch" in m and "#token: 200" not in m
        ]
        assert source.stats.damaged or any("#token: 200" in m for m in made)


def test_a_text_log_that_begins_with_a_lone_brace_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("{\n  some words\n}\n[2026-02-01 10:00:00 TP0] DDTREE metrics: bs=1 commit_lens=[5]\n")
    assert len(read_text(path).steps) == 1


def test_a_message_of_several_lines_of_a_verbose_journal_stays_one_message() -> None:
    head = b"Thu 2026-01-01 00:00:00.000000 UTC [s=6a;i=1;b=" + BOOT.encode() + b";m=4c4b40;t=6474846204000;x=40]\n"
    parser = documents.VerboseParser()
    assert parser.feed(head + b"    MESSAGE=one\n            two\n    _PID=7\n" + head) == [
        {
            "__CURSOR": b"s=6a;i=1;b=" + BOOT.encode() + b";m=4c4b40;t=6474846204000;x=40",
            "__REALTIME_TIMESTAMP": b"1767225600000000",
            "__MONOTONIC_TIMESTAMP": b"5000000",
            "_BOOT_ID": BOOT.encode(),
            "MESSAGE": b"one\ntwo",
            "_PID": b"7",
        }
    ]
    assert parser.broken == 0


def test_two_pods_in_one_file_are_two_streams() -> None:
    table = read_text(FAILING / "two-pods.log").decode
    assert set(table["tp_rank"]) == {0}
    assert set(table["host"]) == {"pod-aaa", "pod-bbb"}
    assert table["stream"].nunique() == 2
    assert set(table["line_us"].dropna()) == {1_000_000}


def test_the_process_and_the_time_of_a_python_log_head_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    body = "DDTREE metrics: bs=1 commit_lens=[5]"
    path.write_text(f"2026-02-01 10:00:00 INFO 20417 [scheduler.py:301] {body}\n2026-02-01 10:00:01,250 WARNING 20418 [a/b.py:3] {body}\n")
    rows = read_text(path, tz="UTC").steps.to_dict("records")
    # 2026-02-01 10:00:00 UTC is 1769940000.
    assert [(r["time_us"], r["pid"]) for r in rows] == [(1_769_940_000_000_000, 20417), (1_769_940_001_250_000, 20418)]


def test_tokens_of_two_memories_are_kept_apart() -> None:
    rows = read_text(FAILING / "hisparse.log").decode
    assert rows["tokens"].isna().all()
    assert dict(rows["extra"].iloc[0]) == {
        "#gpu-token": "20800",
        "gpu token usage": "0.29",
        "#cpu-token": "41422",
        "cpu token usage": "0.29",
    }
