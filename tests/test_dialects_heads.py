"""Heads and whose time a row has."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from ddtree_metrics.dialects import DIALECTS
from ddtree_metrics.dialects.engine import Parser
from ddtree_metrics.dialects.stamps import Head, read_head
from tests.dialect_lines import batch, one, plain, rows

BODY = "DDTREE metrics: bs=1 commit_lens=[5]"
UTC = dt.timezone.utc
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("head", "ranks", "extra"),
    [
        ("2026-02-01 10:00:00", (None, None, None, None), {}),
        ("2026-02-01 10:00:00 TP0", (None, None, 0, None), {}),
        ("2026-02-01 10:00:00.123 DP0 TP1 EP2 PP3", (0, 3, 1, 2), {}),
        ("2026-02-01 10:00:00 DP12 PP0 ATTN_CP1 MOE_DP2 TP15 EP15", (12, 0, 15, 15), {"ATTN_CP": "1", "MOE_DP": "2"}),
        ("2026-02-01 10:00:00 encode_dp_worker[3]", (None, None, None, None), {"encode_dp_worker": "3"}),
        ("10:00:00 TP0", (None, None, 0, None), {}),
        ("x DP0 TP0 EP0", (0, None, 0, 0), {}),
        ("TP3", (None, None, 3, None), {}),
    ],
)
def test_heads_of_all_releases(head: str, ranks: tuple[int | None, ...], extra: dict[str, str]) -> None:
    row = one("steps", f"[{head}] {BODY}")
    assert tuple(row.get(k) for k in ("dp_rank", "pp_rank", "tp_rank", "ep_rank")) == ranks
    assert row.get("extra", {}) == extra


@pytest.mark.parametrize("head", ["", "2026-02-01", "client said", "2026-02-01 10:00:00 TP", "2026-02-01 10:00:00 hello", "1, 2"])
def test_other_brackets_are_no_heads(head: str) -> None:
    assert rows("decode", f"[{head}] Decode batch, #running-req: 1, #queue-req: 0") == []


def test_a_step_line_is_taken_under_any_head_and_has_no_time_then() -> None:
    row = one("steps", f"[worker-3] {BODY}")
    assert row["commit_lens"] == [5]
    assert "time" not in row


def test_a_message_may_do_without_a_head() -> None:
    row = one("steps", BODY)
    assert not {"time", "time_from", "time_flag", "tp_rank"} & set(row)


def test_both_readers_read_heads_alike() -> None:
    heads = [
        "2026-02-01 10:00:00 TP0",
        "2024-02-29 23:59:59",
        "2026-02-30 10:00:00 TP0",
        "2026-13-01 10:00:00",
        "1999-12-31 00:00:00.999 DP1 TP2",
        "2026-02-01 24:00:00",
        "0000-01-01 00:00:00",
        "2026-02-01 10:00:00 ATTN_CP3",
    ]
    lines = [f"[{head}] {BODY}" for head in heads]
    compiled, reference = (rows("steps", *lines, parser=Parser(DIALECTS, on_error="skip", fast=fast)) for fast in (True, False))
    assert compiled == reference
    for row, head in zip(compiled, heads, strict=True):
        single = read_head(head)
        assert single is not None
        assert row.get("time") == (None if single.naive_us is None else EPOCH + dt.timedelta(microseconds=single.naive_us))
        # A time that there is not has no resolution.
        assert row.get("time_resolution_us") == (None if single.naive_us is None else single.resolution_us)
        assert row.get("time_flag") == single.flag


def test_a_date_that_does_not_exist_is_no_time_and_no_error() -> None:
    row = one("steps", f"[2026-02-30 10:00:00 TP0] {BODY}")
    assert row["time_flag"] == "nonexistent"
    assert "time" not in row
    assert row["commit_lens"] == [5]


def test_a_stamp_without_a_date_is_no_time() -> None:
    row = one("steps", f"[10:00:00 TP0] {BODY}")
    assert row["time_flag"] == "no_date"
    assert "time" not in row


def test_the_zone_makes_utc_of_stamps() -> None:
    parser = Parser(DIALECTS, tz=ZoneInfo("Europe/Berlin"))
    (row,) = rows("steps", f"[2026-02-01 10:00:00.250 TP0] {BODY}", parser=parser)
    assert row["time"] == dt.datetime(2026, 2, 1, 9, 0, 0, 250_000, tzinfo=UTC)
    assert (row["time_from"], row["time_resolution_us"]) == ("stamp", 1000)


def epochs(*stamps: str, parts: int = 1) -> tuple[list[float], list[str | None]]:
    parser = Parser(DIALECTS, tz=ZoneInfo("Europe/Berlin"))
    lines = [f"[{s} TP0] {BODY if n % 2 else 'Decode batch, #running-req: 1, #queue-req: 0'}" for n, s in enumerate(stamps)]
    found: dict[int, dict[str, Any]] = {}
    for some in np.array_split(np.arange(len(lines)), parts):
        parsed = parser.feed(batch([lines[i] for i in some]))
        for table, made in parsed.tables.items():
            found.update({int(n): plain(r) for n, r in zip(parsed.line[table], made.to_pylist(), strict=True)})
    in_order = [found[i] for i in range(len(lines))]
    return [r["time"].timestamp() for r in in_order], [r.get("time_flag") for r in in_order]


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_o14_order_decides_the_hour_that_happens_twice_across_tables_and_batches(parts: int) -> None:
    made, _ = epochs("2026-10-25 02:59:58", "2026-10-25 02:59:59", "2026-10-25 02:00:00", "2026-10-25 02:00:01", parts=parts)
    assert made == [1792889998, 1792889999, 1792890000, 1792890001]


def test_o14_a_lone_ambiguous_stamp_is_the_earlier_one_with_a_flag() -> None:
    assert epochs("2026-10-25 02:30:00") == ([1792888200], ["ambiguous"])


def test_o14_a_stamp_that_does_not_exist_is_flagged() -> None:
    assert epochs("2026-03-29 02:30:00")[1] == ["nonexistent"]


def test_o14_without_a_zone_the_time_says_that_it_is_local() -> None:
    row = one("steps", f"[2026-10-25 02:30:00 TP0] {BODY}")
    assert row["time"] == dt.datetime(2026, 10, 25, 2, 30, tzinfo=UTC)
    assert row["time_from"] == "stamp-local"


@pytest.mark.parametrize(
    ("time_from", "resolution", "stamp", "wins"),
    [
        ("journal", 1, "2026-02-01 10:00:00.250", "source"),
        ("frame", 1_000_000, "2026-02-01 10:00:00.250", "source"),
        ("frame-local", 1, "2026-02-01 10:00:00", "source"),
        ("frame-local", 1_000_000, "2026-02-01 10:00:00", "stamp-local"),
        ("frame-local", 1_000_000, "2026-02-01 10:00:00.250", "stamp-local"),
        ("frame-local", 1_000_000, "10:00:00", "source"),
        ("frame-local", 1_000_000, "2026-02-30 10:00:00", "source"),
        (None, None, "2026-02-01 10:00:00", "stamp-local"),
    ],
)
def test_whose_time_a_row_has(time_from: str | None, resolution: int | None, stamp: str, wins: str) -> None:
    source = None if time_from is None else 1_767_225_600_123_456
    made = rows(
        "steps", f"[{stamp} TP0] {BODY}", time=[source], time_from=[time_from], time_resolution_us=[resolution], time_flag=["year_guessed"]
    )
    (row,) = made
    if wins == "source":
        assert row["time"] == dt.datetime(2026, 1, 1, 0, 0, 0, 123_456, tzinfo=UTC)
        assert (row["time_from"], row["time_resolution_us"], row["time_flag"]) == (time_from, resolution, "year_guessed")
    else:
        assert row["time_from"] == wins
        assert "time_flag" not in row


def test_o17_one_second_stamps_say_their_resolution() -> None:
    stamps = ["10:00:00"] * 24 + ["10:00:01"] * 25 + ["10:00:02"] * 25 + ["10:00:03"] * 25 + ["10:00:04"] * 2
    made = rows("steps", *(f"[2026-02-01 {s} TP0] {BODY}" for s in stamps))
    assert len(made) == 101
    assert {r["time_resolution_us"] for r in made} == {1_000_000}
    assert (made[-1]["time"] - made[0]["time"]).total_seconds() == 4


def test_the_origin_of_a_line_comes_from_the_source() -> None:
    origin = {
        "monotonic_us": 9_050_000,
        "boot_id": "b1",
        "host": "h",
        "unit": "sglang.service",
        "pid": 4711,
        "where": "journal:s=1",
    }
    (row,) = rows("steps", f"[2026-02-01 10:00:00 TP0] {BODY}", **{k: [v] for k, v in origin.items()})
    assert {k: row[k] for k in origin} == origin


def test_no_head_is_a_head_without_anything() -> None:
    assert Head() == Head(None, None, None, (None,) * 4, {})


def test_a_head_behind_a_word_that_begins_like_a_line_goes_first() -> None:
    row = one("decode", "Decode batch[2026-02-01 10:00:00 TP3] Decode batch, #running-req: 1, #queue-req: 0")
    assert (row["running"], row["tp_rank"]) == (1, 3)
