"""Instants as people write them, windows, and local stamps through the nights of a clock change."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ddtree_metrics.errors import TimeError
from ddtree_metrics.times import Localizer, format_span, format_us, get_zone, parse_instant, parse_iso, parse_window

UTC = ZoneInfo("UTC")
BERLIN = ZoneInfo("Europe/Berlin")
NOW = 1767268800  # 2026-01-01T12:00:00Z
S = 1_000_000


def instant(text: str | datetime, tz: ZoneInfo = UTC, now: int = NOW) -> float:
    return parse_instant(text, now_us=now * S, tz=tz) / S


def naive(*stamps: str) -> np.ndarray:
    return np.array(stamps, dtype="datetime64[us]").astype(np.int64)


# Instants


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1h", 1767265200),
        ("-1h", 1767265200),
        ("1h ago", 1767265200),
        ("60min", 1767265200),
        ("3600s", 1767265200),
        ("1h30m", 1767263400),
        ("2d", 1767096000),
        ("@1767225600", 1767225600),
        ("2026-01-01T00:00:00Z", 1767225600),
        ("2026-01-01T01:00:00+01:00", 1767225600),
    ],
)
def test_o01_a_bare_span_means_ago(text: str, expected: int) -> None:
    assert instant(text) == expected


@pytest.mark.parametrize("text", ["+1h", "1h left", "tomorrow", "2026-01-01 12:00:01", "@1767268801"])
def test_o01_the_future_is_an_error_and_not_an_empty_file(text: str) -> None:
    with pytest.raises(TimeError, match="lies in the future") as caught:
        instant(text)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "text", ["1x", "", "   ", "monday", "05/06/2026", "last week", "26-05-05", "-", "1.5.5h", "Z", "h", "1h ago ago", "@", "١h"]
)
def test_o01_what_cannot_be_read_names_the_accepted_forms(text: str) -> None:
    with pytest.raises(TimeError, match="accepted are a span before now") as caught:
        instant(text)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90 min", 5400),
        ("1.5h", 5400),
        ("-1h 30m", 5400),
        ("2h30m ago", 9000),
        ("5 minutes ago", 300),
        ("1 hour 5 secs", 3605),
        ("2w", 14 * 86400),
        ("500ms", 0.5),
        ("250us", 0.00025),
        (".5s", 0.5),
        ("2 Days", 172800),
        ("1m", 60),
        ("1M", 2629800),  # 365.25 / 12 days, systemd's month
        ("1y", 31557600),  # 365.25 days
        ("now", 0),
        (" 1h ", 3600),
    ],
)
def test_spans_are_measured_back_from_now(text: str, seconds: float) -> None:
    assert instant(text) == pytest.approx(NOW - seconds, abs=1e-7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("today", "2025-12-31T23:00:00Z"),
        ("yesterday", "2025-12-30T23:00:00Z"),
        ("yesterday 14:05", "2025-12-31T13:05:00Z"),
        ("2025-05-05", "2025-05-04T22:00:00Z"),
        ("2025-05-05 12:00", "2025-05-05T10:00:00Z"),
        ("2025-05-05T12:00:01", "2025-05-05T10:00:01Z"),
        ("2025-05-05 12:00:01.123456", "2025-05-05T10:00:01.123456Z"),
        ("2025-05-05 12:00:01,5", "2025-05-05T10:00:01.500000Z"),
        ("2025-05-05 12:00:01 UTC", "2025-05-05T12:00:01Z"),
        ("2025-05-05 12:00:01Z", "2025-05-05T12:00:01Z"),
        ("2025-05-05t12:00:01z", "2025-05-05T12:00:01Z"),
        ("2025-05-05T12:00:01+0530", "2025-05-05T06:30:01Z"),
        ("2025-05-05T12:00:01-03", "2025-05-05T15:00:01Z"),
        ("2025-05-05 12:00:01 America/New_York", "2025-05-05T16:00:01Z"),
        ("2025-05-05 Asia/Tokyo", "2025-05-04T15:00:00Z"),
        ("Mon 2025-05-05 12:00:01", "2025-05-05T10:00:01Z"),
        ("monday 2025-05-05", "2025-05-04T22:00:00Z"),
        ("12:59", "2026-01-01T11:59:00Z"),
        ("00:00:30", "2025-12-31T23:00:30Z"),
        ("@1767225600.5", "2026-01-01T00:00:00.500000Z"),
        ("@0", "1970-01-01T00:00:00Z"),
    ],
)
def test_calendar_times_are_local_unless_they_say_a_zone(text: str, expected: str) -> None:
    assert format_us(parse_instant(text, now_us=NOW * S, tz=BERLIN)) == expected


def test_without_a_zone_the_machine_s_own_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        # 12:00 in New York in winter is 17:00 UTC
        assert format_us(parse_instant("2025-12-05 12:00", now_us=NOW * S)) == "2025-12-05T17:00:00Z"
        assert format_us(parse_instant("yesterday", now_us=NOW * S)) == "2025-12-31T05:00:00Z"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2026-02-30", "does not exist in the calendar"),
        ("2025-05-05 25:00", "does not exist in the calendar"),
        ("2025-05-05 12:61", "does not exist in the calendar"),
        ("1767225600", "write @1767225600"),
        ("90", "has no unit: write 90s"),
        ("14:05", "write 'yesterday 14:05'"),
        ("Tue 2025-05-05", "is a Monday"),
        ("-1h ago", "one of them is enough"),
        ("2025-05-05 12:00 CEST", "no time zone 'CEST'; similar: .*CET"),
        ("2025-05-05 12:00 europe/berlin", "similar: Europe/Berlin"),
        ("100y", "before 1970"),
        ("@-5", "before 1970"),
        ("2025-05-05T12:00:00+99:00", "no offset from UTC"),
        ("999999999999999y", "before 1970"),
    ],
)
def test_wrong_instants_say_what_to_write(text: str, words: str) -> None:
    with pytest.raises(TimeError, match=words):
        instant(text)


@pytest.mark.parametrize(
    ("text", "unit", "write"),
    [
        ("1767225600000", "milliseconds", "@1767225600"),
        ("@1767225600000", "milliseconds", "@1767225600"),
        ("1767225600123", "milliseconds", "@1767225600.123"),
        ("1767225600000000", "microseconds", "@1767225600"),
        ("@1767225600000001", "microseconds", "@1767225600.000001"),
        ("1767225600000000000", "nanoseconds", "@1767225600"),
        ("1767225600500000999", "nanoseconds", "@1767225600.5"),
        ("1767225600", "seconds", "@1767225600"),
    ],
)
def test_a_count_since_1970_in_another_unit_is_written_out_in_seconds(text: str, unit: str, write: str) -> None:
    with pytest.raises(TimeError, match=rf"{text}' looks like {unit} since 1970: write {write}$"):
        parse_instant(text, now_us=NOW * S)
    # what it says to write is taken
    assert parse_instant(write, now_us=NOW * S) // S == 1767225600


def test_a_local_time_that_a_clock_change_leaves_out_is_refused() -> None:
    with pytest.raises(TimeError, match="does not exist in Europe/Berlin"):
        instant("2025-03-30 02:30", BERLIN)


def test_of_the_two_instants_of_a_repeated_hour_the_earlier_is_meant() -> None:
    # 2025-10-26 02:30 first under +02:00: 00:30 UTC
    assert instant("2025-10-26 02:30", BERLIN) == datetime(2025, 10, 26, 0, 30, tzinfo=timezone.utc).timestamp()


def test_a_day_without_midnight_begins_with_its_first_instant() -> None:
    # Santiago leaves out 00:00-01:00 on 2025-09-07: the day begins at 04:00 UTC, as 01:00 (-03:00)
    assert instant("2025-09-07", ZoneInfo("America/Santiago")) == datetime(2025, 9, 7, 4, tzinfo=timezone.utc).timestamp()


def test_datetimes_are_taken_as_they_are() -> None:
    assert (
        instant(datetime(2025, 5, 5, 12, tzinfo=timezone(timedelta(hours=2)))) == datetime(2025, 5, 5, 10, tzinfo=timezone.utc).timestamp()
    )
    assert instant(datetime(2025, 5, 5, 12), BERLIN) == datetime(2025, 5, 5, 10, tzinfo=timezone.utc).timestamp()


@given(st.text(max_size=40))
def test_any_text_is_an_instant_or_a_time_error(text: str) -> None:
    try:
        us = parse_instant(text, now_us=NOW * S, tz=UTC)
    except TimeError:
        return
    assert 0 <= us <= NOW * S


@given(st.integers(0, 2_000_000_000), st.integers(0, 999_999))
def test_iso_texts_come_back_as_the_instants_they_were_made_of(second: int, part: int) -> None:
    us = second * S + part
    assert parse_instant(format_us(us), now_us=3_000_000_000 * S, tz=BERLIN) == us


# Windows


def test_o01_until_before_since_is_an_error() -> None:
    with pytest.raises(TimeError, match="the window is empty"):
        parse_window("30m", "1h", now_us=NOW * S, tz=UTC)


def test_a_window_of_no_length_is_an_error() -> None:
    with pytest.raises(TimeError, match="is the same instant as"):
        parse_window("1h", "60min", now_us=NOW * S, tz=UTC)


@pytest.mark.parametrize(("since", "until"), [("+1h", None), (None, "+1h"), ("2030-01-01", None)])
def test_no_end_of_a_window_lies_in_the_future(since: str | None, until: str | None) -> None:
    with pytest.raises(TimeError, match="lies in the future"):
        parse_window(since, until, now_us=NOW * S, tz=UTC)


def test_windows_may_be_open() -> None:
    assert parse_window("1h", "30m", now_us=NOW * S) == ((NOW - 3600) * S, (NOW - 1800) * S)
    assert parse_window(None, None) == (None, None)
    since, until = parse_window("1h", None)
    assert until is None
    assert since is not None
    assert since > NOW * S - 3600 * S * 24 * 3650  # the machine's clock was asked


# Zones


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Europe/Berln", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("UTC+2", "Etc/GMT-2"),
        ("", "names look like"),
        ("../../etc/passwd", "names look like"),
        ("Europe", "names look like"),
        ("a\0b", "names look like"),
    ],
)
def test_unknown_zones_name_those_spelled_alike(name: str, hint: str) -> None:
    with pytest.raises(TimeError, match=hint):
        get_zone(name)


def test_known_zones_are_found() -> None:
    assert get_zone("Europe/Berlin").key == "Europe/Berlin"


# Local stamps


def test_o14_order_decides_which_two_o_clock_is_meant() -> None:
    utc, flags = Localizer(BERLIN).feed(naive("2026-10-25T02:59:58", "2026-10-25T02:59:59", "2026-10-25T02:00:00", "2026-10-25T02:00:01"))
    assert (utc // S).tolist() == [1792889998, 1792889999, 1792890000, 1792890001]
    assert flags.tolist() == [None] * 4


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_o14_the_same_when_a_batch_ends_in_between(cut: int) -> None:
    stamps = naive("2026-10-25T02:59:58", "2026-10-25T02:59:59", "2026-10-25T02:00:00", "2026-10-25T02:00:01")
    local = Localizer(BERLIN)
    utc = np.concatenate([local.feed(stamps[:cut])[0], local.feed(stamps[cut:])[0]])
    assert (utc // S).tolist() == [1792889998, 1792889999, 1792890000, 1792890001]


def test_o14_a_lone_ambiguous_stamp_is_the_earlier_and_flagged() -> None:
    utc, flags = Localizer(BERLIN).feed(naive("2026-10-25T02:30:00"))
    assert (utc // S).tolist() == [1792888200]
    assert flags.tolist() == ["ambiguous"]


def test_o14_a_stamp_that_does_not_exist_is_flagged_and_not_moved() -> None:
    utc, flags = Localizer(BERLIN).feed(naive("2026-03-29T01:59:59", "2026-03-29T02:30:00", "2026-03-29T03:00:00"))
    # 01:59:59 +01:00; 02:30 with the offset before the gap, 01:30 UTC; 03:00 +02:00 is 01:00 UTC
    assert [format_us(u) for u in utc] == ["2026-03-29T00:59:59Z", "2026-03-29T01:30:00Z", "2026-03-29T01:00:00Z"]
    assert flags.tolist() == [None, "nonexistent", None]


def test_o14_without_a_zone_stamps_pass_as_they_are() -> None:
    stamps = naive("2026-10-25T02:59:59", "2026-10-25T02:00:00")
    utc, flags = Localizer(None).feed(stamps)
    assert utc.tolist() == stamps.tolist()
    assert flags.tolist() == [None, None]


def test_a_whole_night_through_the_repeated_hour_runs_evenly() -> None:
    # a line every ten seconds from 23:00 to 05:00 UTC, written in local time, must come back as it was
    truth = np.arange(1792879200, 1792900800, 10, dtype=np.int64)
    written = np.where(truth < 1792890000, truth + 7200, truth + 3600) * S
    utc, flags = Localizer(BERLIN).feed(written)
    assert (utc // S).tolist() == truth.tolist()
    assert set(flags.tolist()) == {None}


@pytest.mark.parametrize("size", [1, 7, 100])
def test_batches_do_not_change_the_result(size: int) -> None:
    truth = np.arange(1792885000, 1792896000, 20, dtype=np.int64)
    written = np.where(truth < 1792890000, truth + 7200, truth + 3600) * S
    local = Localizer(BERLIN)
    parts = [local.feed(written[i : i + size]) for i in range(0, len(written), size)]
    assert (np.concatenate([utc for utc, _ in parts]) // S).tolist() == truth.tolist()
    assert {flag for _, flags in parts for flag in flags.tolist()} == {None}


def test_lines_of_ranks_a_second_out_of_order_stay_in_the_first_pass() -> None:
    stamps = ("2026-10-25T01:59:59", "2026-10-25T02:00:01", "2026-10-25T02:00:00", "2026-10-25T02:00:02", "2026-10-25T02:00:01")
    utc, flags = Localizer(BERLIN).feed(naive(*stamps))
    # 02:00:00 +02:00 is 1792886400
    assert (utc // S).tolist() == [1792886399, 1792886401, 1792886400, 1792886402, 1792886401]
    assert flags.tolist() == [None] * 5


def test_a_rank_that_comes_late_at_the_turn_keeps_its_pass() -> None:
    stamps = (
        "2026-10-25T02:59:58",
        "2026-10-25T02:59:59",
        "2026-10-25T02:00:00",
        "2026-10-25T02:59:59",
        "2026-10-25T02:00:00",
        "2026-10-25T02:00:01",
    )
    utc, flags = Localizer(BERLIN).feed(naive(*stamps))
    assert (utc // S).tolist() == [1792889998, 1792889999, 1792890000, 1792889999, 1792890000, 1792890001]
    assert flags.tolist() == [None] * 6


def test_ranks_that_come_late_by_milliseconds_keep_their_pass() -> None:
    clock = ("02:59:59.950", "02:00:00.000", "02:59:59.990", "02:00:00.040", "02:59:59.995", "02:00:00.080")
    utc, flags = Localizer(BERLIN).feed(naive(*(f"2026-10-25T{c}" for c in clock)))
    # 03:00 +02:00 is 1792890000; milliseconds from there
    assert ((utc - 1792890000 * S) // 1000).tolist() == [-50, 0, -10, 40, -5, 80]
    assert flags.tolist() == [None] * 6


@pytest.mark.parametrize("late", [("02:59:59.990",), ("02:59:59.980", "02:59:59.970", "02:59:59.990")])
def test_the_end_of_the_second_pass_after_a_pause_does_not_go_back_an_hour(late: tuple[str, ...]) -> None:
    # the line after it is past the repeated hour: the pause lies before the stamp, and no clock went back
    clock = ("02:59:59.950", "02:00:00.000", *late, "03:00:00.040")
    utc, flags = Localizer(BERLIN).feed(naive(*(f"2026-10-25T{c}" for c in clock)))
    # 03:00 +01:00 is 1792893600, an hour after 02:00 +01:00
    ends = [-1000 + int(c.rpartition(".")[2]) for c in late]
    assert ((utc - 1792893600 * S) // 1000).tolist() == [-3_600_050, -3_600_000, *ends, 40]
    assert flags.tolist() == [None, None, *["ambiguous"] * len(late), None]


def test_a_stamp_with_an_hour_of_nothing_behind_it_stays_doubtful() -> None:
    utc, flags = Localizer(BERLIN).feed(naive("2026-10-25T02:00:00", "2026-10-25T02:59:59", "2026-10-25T02:00:00"))
    assert np.diff(utc // S).tolist() == [3599, 1]
    assert flags.tolist() == ["ambiguous", None, None]


def test_a_rank_that_comes_late_at_the_end_belongs_to_the_second_pass() -> None:
    utc, _ = Localizer(BERLIN).feed(naive("2026-10-25T03:00:00", "2026-10-25T02:59:59", "2026-10-25T03:00:01"))
    # 03:00:00 +01:00 is 1792893600
    assert (utc // S).tolist() == [1792893600, 1792893599, 1792893601]


def test_a_turn_after_a_pause_is_seen_and_called_doubtful() -> None:
    # 02:40 (first pass), then 02:10: forty minutes later in the second pass, not thirty earlier
    utc, flags = Localizer(BERLIN).feed(naive("2026-10-25T01:55:00", "2026-10-25T02:20:00", "2026-10-25T02:10:00"))
    assert np.diff(utc // S).tolist() == [1500, 3000]
    assert flags.tolist() == [None, None, "ambiguous"]


def test_an_ambiguous_stamp_long_after_the_line_before_is_flagged() -> None:
    utc, flags = Localizer(BERLIN).feed(naive("2026-10-24T12:00:00", "2026-10-25T02:30:00"))
    assert int(utc[1]) // S == 1792888200
    assert flags.tolist() == [None, "ambiguous"]


def test_southern_zones_repeat_their_hour_in_april() -> None:
    # Sydney, 2026-04-05: 03:00 +11:00 becomes 02:00 +10:00 at 16:00 UTC the day before
    utc, flags = Localizer(ZoneInfo("Australia/Sydney")).feed(naive("2026-04-05T02:59:59", "2026-04-05T02:00:00"))
    assert [format_us(u) for u in utc] == ["2026-04-04T15:59:59Z", "2026-04-04T16:00:00Z"]
    assert flags.tolist() == [None, None]
    utc, flags = Localizer(ZoneInfo("Australia/Sydney")).feed(naive("2026-10-04T02:30:00"))
    assert flags.tolist() == ["nonexistent"]


def test_lord_howe_repeats_half_an_hour() -> None:
    # 2026-04-05: 02:00 +11:00 becomes 01:30 +10:30 at 15:00 UTC the day before
    clock = ("01:29:59", "01:30:00", "01:45:00", "01:59:59", "01:30:00", "01:45:00", "01:59:59", "02:00:00")
    utc, flags = Localizer(ZoneInfo("Australia/Lord_Howe")).feed(naive(*(f"2026-04-05T{c}" for c in clock)))
    expected = ["14:29:59Z", "14:30:00Z", "14:45:00Z", "14:59:59Z", "15:00:00Z", "15:15:00Z", "15:29:59Z", "15:30:00Z"]
    assert [format_us(u)[11:] for u in utc] == expected
    assert flags.tolist() == [None] * 8


ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Asia/Kolkata",
    "Africa/Casablanca",
    "UTC",
]


@given(st.sampled_from(ZONES), st.lists(st.integers(0, 2_500_000_000), min_size=1, max_size=30))
def test_unambiguous_stamps_agree_with_zoneinfo(name: str, seconds: list[int]) -> None:
    zone = ZoneInfo(name)
    truth = []
    written = []
    for second in seconds:
        wall = datetime.fromtimestamp(second, zone)
        if wall.utcoffset() == wall.replace(fold=1 - wall.fold).utcoffset():
            truth.append(second)
            written.append(wall.replace(tzinfo=None))
    assume(truth)
    utc, flags = Localizer(zone).feed(np.array(written, dtype="datetime64[us]").astype(np.int64))
    assert (utc // S).tolist() == truth
    assert set(flags.tolist()) == {None}


@given(st.sampled_from(ZONES), st.integers(0, 2_500_000_000))
def test_lone_stamps_are_read_as_zoneinfo_s_first_fold_and_flagged_where_it_doubts(name: str, second: int) -> None:
    zone = ZoneInfo(name)
    wall = datetime(1970, 1, 1) + timedelta(seconds=second)
    early, late = wall.replace(tzinfo=zone), wall.replace(tzinfo=zone, fold=1)
    utc, flags = Localizer(zone).feed(np.array([wall], dtype="datetime64[us]").astype(np.int64))
    assert int(utc[0]) // S == int(early.timestamp())
    doubt = {0: None, 1: "ambiguous", -1: "nonexistent"}
    gap = (late.timestamp() > early.timestamp()) - (late.timestamp() < early.timestamp())
    assert flags.tolist() == [doubt[gap]]


@given(st.lists(st.integers(-(2**62), 2**62), max_size=20))
def test_any_stamps_are_taken(stamps: list[int]) -> None:
    utc, flags = Localizer(BERLIN).feed(np.array(stamps, dtype=np.int64))
    assert len(utc) == len(flags) == len(stamps)


def test_an_empty_batch_is_taken() -> None:
    utc, flags = Localizer(BERLIN).feed(naive())
    assert (len(utc), len(flags)) == (0, 0)


# Words


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0s"),
        (5, "5us"),
        (40_000, "40ms"),
        (4_250_000, "4.25s"),
        (59_999_000, "1m"),
        (90 * S, "1m 30s"),
        (5400 * S, "1h 30m"),
        (86400 * S, "1d"),
        (97_200 * S, "1d 3h"),
        (-90 * S, "-1m 30s"),
    ],
)
def test_spans_are_written_in_their_two_largest_units(us: int, text: str) -> None:
    assert format_span(us) == text


def test_instants_are_written_in_utc() -> None:
    assert format_us(NOW * S) == "2026-01-01T12:00:00Z"
    assert format_us(NOW * S + 1) == "2026-01-01T12:00:00.000001Z"
    assert format_us(2**62) == f"@{2**62 // S}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # 2026-01-01 00:00 UTC is 1,767,225,600 s after 1970
        ("2026-01-01T00:00:00Z", (1_767_225_600 * S, True)),
        ("2026-01-01 01:00:00.5 +01:00", (1_767_225_600 * S + 500_000, True)),
        ("2026-01-01 00:00 UTC", (1_767_225_600 * S, True)),
        ("2026-01-01 00:00:00,123", (1_767_225_600 * S + 123_000, False)),
        ("2026-01-01", None),
        ("today 12:00", None),
        ("Thu 2026-01-01 12:00", None),
        ("2026-01-01 12:00 Europe/Berlin", None),
        ("2026-02-30 12:00", None),
        ("12:00", None),
    ],
)
def test_a_stamp_of_a_machine_is_read_and_what_people_write_is_none(text: str, said: tuple[int, bool] | None) -> None:
    assert parse_iso(text) == said
