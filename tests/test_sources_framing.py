"""What wraps a line is taken off, whatever it is, and what it says is kept."""

from __future__ import annotations

import io
import json
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_metrics.errors import SourceDamaged, SourceNotFound, SourceUnsupported
from ddtree_metrics.sources import LINE_SCHEMA, Selection, open_source
from ddtree_metrics.times import Window

UTC = timezone.utc
D = "[2026-01-29 00:52:48 TP0] DDTREE metrics: bs=1 budget=8 actual_nodes=[9] accepted_drafts=[3] commit_lens=[4]"


def us(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp()) * 1_000_000


def read(text: str | bytes, **how: object):
    """All rows of a text, and the source."""
    data = text.encode() if isinstance(text, str) else text
    source = open_source(io.BytesIO(data), name="run.log", **how)  # type: ignore[arg-type]
    batches = list(source.batches())
    for batch in batches:
        assert batch.schema.equals(LINE_SCHEMA)
        batch.validate(full=True)
    rows = []
    for batch in batches:
        batch = batch.set_column(0, "time", batch.column(0).cast("int64"))
        rows += batch.to_pylist()
    return rows, source


def one(text: str | bytes, **how: object):
    rows, _ = read(text, **how)
    assert len(rows) == 1, rows
    return rows[0]


def test_a_plain_line_says_nothing_but_where_it_stands():
    rows, source = read("one\ntwo\n\nfour")
    assert [r["message"] for r in rows] == ["one", "two", "", "four"]
    assert [r["where"] for r in rows] == ["run.log:1", "run.log:2", "run.log:3", "run.log:4"]
    assert all(v is None for r in rows for k, v in r.items() if k not in ("where", "message"))
    assert source.stats.lines == 4


def test_o13_a_message_is_a_string_or_bytes_or_null_or_missing():
    d = [f"{D} n={i}" for i in range(1, 6)]
    colour = list(b"\x1b[32m" + d[1].encode() + b"\x1b[0m")
    cr = list(b"40%\r" + d[2].encode())
    bad = list(d[3].encode() + b"\xff")
    at = 1_767_225_600_000_000
    messages = [d[0], colour, cr, bad, None, ..., f"noise\n{d[4]}"]
    lines = []
    for i, m in enumerate(messages):
        made = {"__REALTIME_TIMESTAMP": str(at + 50_000 * i)}
        if m is not ...:
            made["MESSAGE"] = m
        lines.append(json.dumps(made))
    rows, source = read("\n".join(lines) + "\n")
    hits = [r for r in rows if "DDTREE" in r["message"]]
    assert [r["message"] for r in hits] == [d[0], d[1], d[2], d[3] + "\ufffd", d[4]]
    # 50 ms apart; the entries without a message are the fifth and the sixth
    assert [r["time"] for r in hits] == [at, at + 50_000, at + 100_000, at + 150_000, at + 300_000]
    assert {r["time_from"] for r in hits} == {"journal"}
    assert {r["time_resolution_us"] for r in hits} == {1}
    assert (source.stats.message_null, source.stats.message_missing, source.stats.bad_bytes) == (1, 1, 1)
    assert [r["message"] for r in rows if r not in hits] == ["40%", "noise"]


def test_a_message_that_is_a_list_of_strings_is_several_lines():
    rows, _ = read('{"__REALTIME_TIMESTAMP":"1767225600000000","MESSAGE":["one","two"]}\n')
    assert [r["message"] for r in rows] == ["one", "two"]


def test_o16_container_pieces_are_joined_a_stream_at_a_time():
    cri = "2026-02-01T10:00:00.10000000{}+01:00 stdout {} "
    head = "DDTREE metrics: bs=1 budget=8 actual_nodes=[9]"
    text = cri.format(1, "P") + f"[2026-02-01 09:00:00 TP0] {head}\n"
    text += cri.format(2, "F") + " accepted_drafts=[3] commit_lens=[4] avg_accepted_drafts=3.00 avg_commit_len=4.00\n"
    for log, time in (
        (f"[2026-02-01 09:00:01 TP0] {head} accepted_", "2026-02-01T09:00:01.5Z"),
        ("drafts=[2] commit_lens=[3] avg_accepted_drafts=2.00 avg_commit_len=3.00\n", "2026-02-01T09:00:01.6Z"),
    ):
        text += json.dumps({"log": log, "stream": "stderr", "time": time}) + "\n"
    rows, source = read(text)
    tail = "avg_accepted_drafts={} avg_commit_len={}"
    head += " accepted_drafts="
    assert [r["message"] for r in rows] == [
        f"[2026-02-01 09:00:00 TP0] {head}[3] commit_lens=[4] " + tail.format("3.00", "4.00"),
        f"[2026-02-01 09:00:01 TP0] {head}[2] commit_lens=[3] " + tail.format("2.00", "3.00"),
    ]
    # the time of the first piece, in UTC
    assert [r["time"] for r in rows] == [us(2026, 2, 1, 9) + 100_000, us(2026, 2, 1, 9, 0, 1) + 500_000]
    assert [r["stream"] for r in rows] == ["stdout", "stderr"]
    assert [r["where"] for r in rows] == ["run.log:1", "run.log:3"]
    assert (source.stats.pieces_joined, source.stats.pieces_unfinished) == (4, 0)


def test_o16_pieces_of_stdout_and_stderr_are_never_joined_with_each_other():
    stamp = "2026-02-01T10:00:00.1Z"
    rows, source = read(f"{stamp} stdout P out-1 \n{stamp} stderr P err-1 \n{stamp} stdout F out-2\n{stamp} stderr F err-2\n")
    assert [(r["stream"], r["message"]) for r in rows] == [("stdout", "out-1 out-2"), ("stderr", "err-1 err-2")]
    assert source.stats.pieces_joined == 4


@pytest.mark.parametrize(
    "text",
    ["2026-02-01T10:00:00.1Z stdout P cut off\n", '{"log":"cut off","stream":"stdout","time":"2026-02-01T09:00:01.5Z"}\n'],
)
def test_o16_a_piece_without_its_end_is_counted_and_not_read(text: str):
    rows, source = read(text)
    assert rows == []
    assert (source.stats.pieces_joined, source.stats.pieces_unfinished) == (0, 1)


def test_journald_pieces_in_json_are_joined_by_stream():
    def line(message: str, stream: str, **more: str) -> str:
        return json.dumps({"__REALTIME_TIMESTAMP": "1767225600000000", "MESSAGE": message, "_STREAM_ID": stream, **more}) + "\n"

    text = line("x" * 10, "a", _LINE_BREAK="line-max") + line("other", "b", _LINE_BREAK="eof") + line("y", "a", _LINE_BREAK="pid-change")
    rows, source = read(text)
    # nul, eof and pid-change end a whole line; only line-max goes on
    assert [(r["stream"], r["message"]) for r in rows] == [("b", "other"), ("a", "x" * 10 + "y")]
    assert source.stats.pieces_joined == 2


@pytest.mark.parametrize(
    ("prefix", "time", "time_from", "resolution"),
    [
        ("2026-01-29T00:52:48+0100", us(2026, 1, 28, 23, 52, 48), "frame", 1_000_000),
        ("2026-01-29T00:52:48+01:00", us(2026, 1, 28, 23, 52, 48), "frame", 1_000_000),
        ("2026-01-29T00:52:48.482913+00:00", us(2026, 1, 29, 0, 52, 48) + 482_913, "frame", 1),
        ("2026-01-29T00:52:48", us(2026, 1, 29, 0, 52, 48), "frame-local", 1_000_000),
        ("Jan 29 00:52:48", us(2026, 1, 29, 0, 52, 48), "frame-local", 1_000_000),
        ("Jan 29 00:52:48.482913", us(2026, 1, 29, 0, 52, 48) + 482_913, "frame-local", 1),
        ("1769647968.482913", 1_769_647_968_482_913, "frame", 1),
        ("Thu 2026-01-29 00:52:48 UTC", us(2026, 1, 29, 0, 52, 48), "frame", 1_000_000),
        ("Thu 2026-01-29 00:52:48 CET", us(2026, 1, 29, 0, 52, 48), "frame-local", 1_000_000),
    ],
)
def test_journalctl_text_formats_say_time_host_and_pid(prefix: str, time: int, time_from: str, resolution: int):
    row = one(f"{prefix} host-a python[1234]: {D}\n")
    assert (row["time"], row["time_from"], row["time_resolution_us"], row["time_flag"]) == (time, time_from, resolution, None)
    assert (row["host"], row["pid"], row["message"], row["unit"]) == ("host-a", 1234, D, None)


def test_without_a_host_the_pid_must_be_there():
    assert one(f"Jan 29 00:52:48 python[1234]: {D}\n")["pid"] == 1234
    assert one("2026-01-29T00:52:48Z INFO sglang: ready\n")["message"] == "INFO sglang: ready"


def test_a_zone_makes_local_stamps_utc():
    # Berlin is one hour ahead in January
    row = one(f"Jan 29 00:52:48 host-a python[1]: {D}\n", tz=ZoneInfo("Europe/Berlin"))
    assert (row["time"], row["time_from"]) == (us(2026, 1, 28, 23, 52, 48), "frame")
    row = one(f"2026-01-29T00:52:48 host-a python[1]: {D}\n", tz=ZoneInfo("Europe/Berlin"))
    assert (row["time"], row["time_from"]) == (us(2026, 1, 28, 23, 52, 48), "frame")


def test_o14_order_decides_which_of_the_two_hours_a_frame_means():
    clock = ["02:59:58", "02:59:59", "02:00:00", "02:00:01"]
    text = "".join(f"2026-10-25T{c} host-a python[1]: D{i}\n" for i, c in enumerate(clock))
    rows, _ = read(text, tz=ZoneInfo("Europe/Berlin"))
    assert [r["time"] // 1_000_000 for r in rows] == [1_792_889_998, 1_792_889_999, 1_792_890_000, 1_792_890_001]
    assert one("2026-03-29T02:30:00 host-a python[1]: D\n", tz=ZoneInfo("Europe/Berlin"))["time_flag"] == "nonexistent"


def test_the_year_of_a_short_stamp_comes_from_the_servers_own_stamp():
    # across New Year: the server's stamp is of the old year, journald's of the new one
    rows, _ = read(
        "Dec 31 23:59:59 h python[1]: [2024-12-31 23:59:59 TP0] a\nJan  1 00:00:00 h python[1]: [2024-12-31 23:59:59 TP0] b\n"
        "Jan  1 00:00:01 h python[1]: no stamp\n"
    )
    assert [r["time"] for r in rows] == [us(2024, 12, 31, 23, 59, 59), us(2025, 1, 1), us(2025, 1, 1, 0, 0, 1)]
    assert [r["time_flag"] for r in rows] == [None] * 3


def test_a_year_that_nothing_tells_is_the_latest_before_the_file_was_written(tmp_path):
    import os

    path = tmp_path / "x.log"
    path.write_text("Mar  2 00:00:00 h python[1]: a\nDec 31 00:00:00 h python[1]: b\nFeb 29 00:00:00 h python[1]: c\n")
    written = us(2026, 3, 3) / 1e6
    os.utime(path, (written, written))
    source = open_source(path)
    rows = [r for b in source.batches() for r in b.to_pylist()]
    assert [(r["time"].year, r["time_flag"]) for r in rows] == [(2026, "year_guessed"), (2025, "year_guessed"), (2024, "year_guessed")]
    assert "year" in " ".join(source.stats.notes)


def test_blob_data_and_boot_lines_are_no_lines_and_boots_are_kept():
    boot = "0123456789abcdef" * 2
    rows, source = read(
        f"Jan 29 00:52:49 h python[1]: [204B blob data]\n-- Boot {boot} --\nJan 29 00:52:50 h python[1]: after\n-- No entries --\n"
    )
    assert [(r["message"], r["boot_id"]) for r in rows] == [("after", boot)]
    assert source.stats.blob_data == 1


def test_indented_lines_belong_to_the_message_above():
    prefix = "Jan 29 00:52:50 host-a python[1234]: "
    rows, _ = read(f"{prefix}noise\n{' ' * len(prefix)}  D5\nplain\n")
    assert [(r["message"], r["pid"], r["where"]) for r in rows] == [
        ("noise", 1234, "run.log:1"),
        ("  D5", 1234, "run.log:1"),
        ("plain", None, "run.log:3"),
    ]


def test_a_suppressed_notice_belongs_to_the_unit_that_lost_lines():
    row = one("Jan 29 00:52:50 h systemd-journald[300]: Suppressed 740 messages from sglang.service\n")
    assert (row["unit"], row["message"]) == ("sglang.service", "Suppressed 740 messages from sglang.service")
    row = one('{"__REALTIME_TIMESTAMP":"1767225600000000","N_DROPPED":"740","OBJECT_SYSTEMD_UNIT":"sglang.service"}\n')
    assert (row["unit"], row["message"]) == ("sglang.service", "Suppressed 740 messages from sglang.service")


@pytest.mark.parametrize("ray", ["(Engine pid=77) ", "(Engine pid=77, ip=10.0.0.3) ", "\x1b[36m(Engine pid=77)\x1b[0m "])
@pytest.mark.parametrize("compose", ["", "sglang-1  | "])
@pytest.mark.parametrize("outer", ["", "2026-01-29T00:52:48.482913000Z stderr F ", "2026-01-29T00:52:48.482913000Z "])
def test_frames_nest(ray: str, compose: str, outer: str):
    row = one(compose + outer + ray + D + "\n")
    assert (row["message"], row["pid"]) == (D, 77)
    assert row["unit"] == ("sglang-1" if compose else None)
    assert row["time"] == (us(2026, 1, 29, 0, 52, 48) + 482_913 if outer else None)
    assert row["host"] == ("10.0.0.3" if "ip=" in ray else None)


def test_compose_names_of_one_width_are_units():
    rows, _ = read(f"sglang-1        | {D}\nproxy           | up\na | b\n| table |\n")
    assert [(r["unit"], r["message"]) for r in rows] == [("sglang-1", D), ("proxy", "up"), (None, "a | b"), (None, "| table |")]


def test_framed_and_unframed_lines_in_one_file_are_decided_each():
    rows, _ = read(f"{D} 1\n2026-01-29T00:52:48Z stdout F {D} 2\n  plain\nsglang-1  | {D} 3\n{D} 4\n")
    assert [r["message"] for r in rows] == [f"{D} 1", f"{D} 2", "  plain", f"{D} 3", f"{D} 4"]
    assert [r["where"] for r in rows] == [f"run.log:{i}" for i in range(1, 6)]


def test_other_json_lines_are_messages():
    text = '{"event": "request.finished", "rid": "1"}\n{"log": 5}\n[1]\n{"broken\n'
    rows, _ = read(text)
    assert [r["message"] for r in rows] == text.splitlines()


def test_several_docker_objects_on_one_line_are_several_lines():
    rows, _ = read(
        '{"log":"a\\n","stream":"stdout","time":"2026-02-01T09:00:01Z"} {"log":"b\\n","stream":"stdout","time":"2026-02-01T09:00:02Z"}\n'
    )
    assert [(r["message"], r["time"]) for r in rows] == [("a", us(2026, 2, 1, 9, 0, 1)), ("b", us(2026, 2, 1, 9, 0, 2))]


def test_selection_applies_where_the_frame_says_it_and_is_noted_where_not():
    text = (
        '{"__REALTIME_TIMESTAMP":"1767225600000000","_SYSTEMD_UNIT":"a.service","MESSAGE":"json a"}\n'
        '{"__REALTIME_TIMESTAMP":"1767225600000000","_SYSTEMD_UNIT":"b.service","MESSAGE":"json b"}\n'
        "Jan 29 00:52:50 h python[1]: short\nplain\n"
    )
    rows, source = read(text, selection=Selection(units=("a",)))
    assert [r["message"] for r in rows] == ["json a", "short", "plain"]
    assert any("2 lines do not say whose they are" in n for n in source.stats.notes)
    assert source.stats.lines == 4
    rows, _ = read("Jan 29 00:52:50 h python[1]: x\nJan 29 00:52:50 h nginx[1]: y\n", selection=Selection(identifiers=("nginx",)))
    assert [r["message"] for r in rows] == ["y"]
    rows, _ = read("a-1  | x\nb-1  | y\n", selection=Selection(containers=("b-1",)))
    assert [r["message"] for r in rows] == ["y"]


def test_the_window_is_tested_on_times_that_are_known():
    text = "".join(f"2026-02-01T10:00:0{i}Z stdout F line {i}\n" for i in range(5)) + "no time\n2026-02-01T10:00:09 h p[1]: local\n"
    window = Window(us(2026, 2, 1, 10, 0, 1), us(2026, 2, 1, 10, 0, 3))
    rows, _ = read(text, window=window)
    # since is in, until is out; what has no known time stays
    assert [r["message"] for r in rows] == ["line 1", "line 2", "no time", "local"]


def test_carriage_returns_colours_and_nuls_do_not_hide_a_line():
    rows, source = read(b"\x00\x00\x00one\r\n10%\r50%\r\x1b[1mtwo\x1b[0m\nthr\xffee\x00four\r\r\n\r\n\x1b]0;title\x07five\n")
    assert [(r["message"], r["where"][8:]) for r in rows] == [
        ("one", "1"),
        ("10%", "2"),
        ("50%", "2"),
        ("two", "2"),
        ("thr\ufffdee", "3"),
        ("four", "3"),
        ("", "4"),
        ("five", "5"),
    ]
    assert source.stats.bad_bytes == 1


def test_a_carriage_return_inside_a_framed_line_keeps_its_time():
    rows, _ = read("2026-02-01T10:00:00Z stdout F 40%\rD3\n")
    assert [(r["message"], r["time"]) for r in rows] == [("40%", us(2026, 2, 1, 10)), ("D3", us(2026, 2, 1, 10))]


def test_dates_that_do_not_exist_are_no_frames():
    for text in (
        "2026-13-01T10:00:00Z stdout F x",
        "Feb 31 00:52:50 h p[1]: x",
        "2026-02-30T10:00:00Z h p[1]: x",
        "2026-02-01T25:00:00Z x",
    ):
        row = one(text + "\n")
        assert (row["message"], row["time"]) == (text, None)


FRAMES = [
    "",
    "Jan 29 00:52:48 h p[1]: ",
    "2026-01-29T00:52:48+01:00 h p[1]: ",
    "2026-01-29T00:52:48.482913000Z stderr F ",
    "2026-01-29T00:52:48.482913000Z stderr P ",
    "sglang-1  | ",
    "(Engine pid=7) ",
    '{"__REALTIME_TIMESTAMP":"1767225600000000","MESSAGE":"',
    '{"log":"',
    "__CURSOR=s=1\n__REALTIME_TIMESTAMP=1767225600000000\nMESSAGE=",
    "MESSAGE\n\x05\x00\x00\x00\x00\x00\x00\x00",
    "-- Boot ",
    "\x1b[",
    "\x1f\x8b",
    "\x28\xb5\x2f\xfd",
    "\xfd7zXZ\x00",
    "BZh91AY&SY",
    "1769647968.482913 h p[1]: ",
    "[ 12.345678] h p[1]: ",
    "[pod/a/b] ",
    '"}\n',
    "\n",
    "\r",
    "[204B blob data]",
    "00000000000000000000000000000001 --",
    "99999999999999999999",
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.sampled_from([f.encode("latin-1") for f in FRAMES]), st.binary(max_size=30)), max_size=14), st.booleans())
def test_no_bytes_around_or_inside_a_line_ever_raise(parts: list[bytes], zoned: bool):
    how = {"tz": ZoneInfo("Europe/Berlin"), "selection": Selection(units=("a",)), "window": Window(0, 2**60)} if zoned else {}
    try:
        rows, source = read(b"".join(parts), **how)
    except SourceUnsupported:  # the first bytes of a Parquet file, or of a ZIP archive
        assert b"".join(parts).startswith((b"PAR1", b"PK\x03\x04"))
        return
    except SourceDamaged:  # a compressed file, a journal, or lines of JSON, of which nothing is whole
        return
    except SourceNotFound:  # lines that say whose they are, none of them unit a's
        assert zoned
        return
    assert all("\n" not in r["message"] and "\r" not in r["message"] and "\x00" not in r["message"] for r in rows)
    assert all(r["where"] for r in rows)
    assert len(rows) <= source.stats.lines


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=40), st.sampled_from([f for f in FRAMES[:7] if "P " not in f]))
def test_what_stands_inside_a_frame_comes_out_as_it_was(inner: str, frame: str):
    inner = "x" + inner  # so that it does not look like a frame itself
    rows, _ = read(frame + inner + "\n")
    assert [r["message"] for r in rows] == [inner]


STATEFUL = (
    "Jan 29 00:52:48 h python[1]: [2026-01-29 00:52:48 TP0] a\n                             rest of a\n"
    "-- Boot 0123456789abcdef0123456789abcdef --\nJan 29 00:52:49 h python[1]: b\n"
    "2026-02-01T10:00:00.1Z stdout P one \nplain\n2026-02-01T10:00:00.2Z stderr F err\n2026-02-01T10:00:00.3Z stdout F two\n"
    '{"log":"x","stream":"stdout","time":"2026-02-01T09:00:01.5Z"}\n{"log":"y\\n","stream":"stdout","time":"2026-02-01T09:00:01.6Z"}\n'
    "2026-10-25T02:59:59 h p[1]: c\n2026-10-25T02:00:00 h p[1]: d\nend"
)


@pytest.mark.parametrize("size", [1, 2, 7, 40, 100, 300])
def test_lines_do_not_depend_on_how_a_file_is_cut_into_blocks(size: int, monkeypatch):
    from ddtree_metrics.sources import byte_streams

    whole, source = read(STATEFUL, tz=ZoneInfo("Europe/Berlin"))
    stamp = "[2026-01-29 00:52:48 TP0] a"
    assert [r["message"] for r in whole] == [stamp, "rest of a", "b", "plain", "err", "one two", "xy", "c", "d", "end"]
    monkeypatch.setattr(byte_streams, "CHUNK", size)
    cut, again = read(STATEFUL, tz=ZoneInfo("Europe/Berlin"))
    for row in (*cut, *whole):
        row.pop("time_flag")  # whether an hour is in doubt depends on how far one can look ahead
    assert cut == whole
    assert again.stats == source.stats
