"""The same log given twice, in any two forms, is counted once; what only looks alike is kept."""

from __future__ import annotations

import gzip
import io
import os
import struct
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest

import ddtree_metrics as ddt
from ddtree_metrics.cli.inspect_command import describe, lines_of
from ddtree_metrics.sources import JournalPlace, SourceStats, open_journal, open_source, open_sources
from ddtree_metrics.sources.journal_files import Header
from ddtree_metrics.sources.twins import Twins
from tests.journals import BOOT, T0, build, entry

REAL = Path(__file__).resolve().parent.parent / "fixtures" / "real" / "A" / "journal.export.zst"
COUNTS = {"steps": 545, "decode": 545, "prefill": 26, "servers": 2, "events": 8, "request_lines": 94}
"""What the README of the capture counts."""


def messages(source) -> list[str]:
    return [m for batch in source.batches() for m in batch.column("message").to_pylist()]


def decode(second: float, running: int = 1) -> str:
    at = datetime(2026, 5, 5, 12, 0, 1) + timedelta(seconds=int(second))
    return f"[{at:%Y-%m-%d %H:%M:%S} TP0] Decode batch, #running-req: {running}, #token: 100, token usage: 0.10, accept len: 2.00, " + (
        "accept rate: 0.50, cuda graph: True, gen throughput (token/s): 80.00, #queue-req: 0"
    )


def step(i: int) -> str:
    """A step line without a stamp; seven texts, again and again."""
    return f"DDTREE metrics: bs=1 budget=16 actual_nodes=[17] accepted_drafts=[{i % 7}] commit_lens=[{i % 7 + 1}]"


def export(*lines: tuple[int, str], **more) -> bytes:
    return b"".join(entry(T0 + us, text, **more) for us, text in lines)


def text(form: str, *lines: tuple[int, str], zone_h: float = 0, ident: str = "python3", pid: int = 4242) -> bytes:
    """Lines as journalctl prints them on a machine in another zone."""
    made = []
    for us, message in lines:
        at = datetime.fromtimestamp((T0 + us) // 1_000_000, timezone.utc).replace(microsecond=(T0 + us) % 1_000_000)
        local = at.astimezone(timezone(timedelta(hours=zone_h)))
        stamp = {
            "short": f"{local:%b %d %H:%M:%S}",
            "short-precise": f"{local:%b %d %H:%M:%S.%f}",
            "short-iso": f"{local:%Y-%m-%dT%H:%M:%S%z}",
            "short-unix": f"{(T0 + us) / 1e6:.6f}",
        }[form]
        made.append(f"{stamp} gpu1 {ident}[{pid}]: {message}")
    return ("\n".join(made) + "\n").encode()


def save(folder: Path, **files: bytes | str) -> list[Path]:
    paths = []
    for name, data in files.items():
        path = folder / name.replace("_", ".")
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        paths.append(path)
    return paths


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real capture in every form that journalctl gives it."""
    folder = tmp_path_factory.mktemp("forms")
    with pa.CompressedInputStream(pa.OSFile(str(REAL)), "zstd") as packed:
        data = packed.read()
    build(folder / "a.journal", data)
    (folder / "a.export").write_bytes(data)
    (folder / "copy.txt").write_bytes(data)
    env = {**os.environ, "LC_ALL": "C", "TZ": "America/St_Johns"}
    for form in ("short", "short-precise", "short-iso", "short-unix", "short-full", "with-unit", "json", "cat"):
        command = ["journalctl", "--file", str(folder / "a.journal"), "-o", form, "--all", "-q"]
        (folder / f"a.{form}").write_bytes(subprocess.run(command, capture_output=True, check=True, env=env).stdout)
    (folder / "a.short.gz").write_bytes(gzip.compress((folder / "a.short").read_bytes()))
    blocks = [block for block in data.split(b"\n\n") if block.strip()]
    (folder / "older.export").write_bytes(b"\n\n".join(blocks[: 2 * len(blocks) // 3]) + b"\n\n")
    (folder / "newer.export").write_bytes(b"\n\n".join(blocks[len(blocks) // 3 :]) + b"\n\n")
    return folder


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[("a.export", f"a.{form}") for form in ("journal", "json", "short", "short-precise", "short-iso", "short-unix", "short-full")],
        ("a.export", "a.with-unit"),
        ("a.export", "copy.txt"),
        ("a.journal", "a.short.gz"),
        ("a.export", "a.cat"),
        ("a.short", "a.short-precise"),
        ("a.short", "a.short.gz"),
        ("a.cat", "a.short"),
        ("older.export", "newer.export"),
    ],
)
def test_a_real_log_in_two_forms_is_counted_once(one: str, other: str, turned: bool, forms: Path) -> None:
    names = [one, other] if not turned else [other, one]
    log = ddt.read_text([forms / name for name in names])
    assert {k: log.coverage.parsed[k] for k in COUNTS} == COUNTS
    (note,) = [n for n in log.coverage.notes if "left out" in n]
    assert all(name in note for name in names)
    assert f"{log.coverage.duplicate_lines:,}" in note
    assert log.coverage.lines == 1496
    assert sum(log.coverage.units.values()) <= 1496


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_forms_the_lines_with_the_better_clock_are_kept(turned: bool, forms: Path) -> None:
    names = ["a.short", "a.json"]
    log = ddt.read_text([forms / name for name in (reversed(names) if turned else names)])
    assert set(log.steps["time_from"]) == {"journal"}
    assert log.steps["step_us"].notna().sum() > 500


def test_three_copies_are_one(tmp_path: Path) -> None:
    data = "\n".join(decode(i) for i in range(5)) + "\n"
    log = ddt.read_text(save(tmp_path, a_log=data, b_log=data, c_gz=gzip.compress(data.encode())))
    assert (log.coverage.parsed["decode"], log.coverage.lines, log.coverage.duplicate_lines) == (5, 5, 10)
    assert "all 5 lines of b.log are in a.log too" in " ".join(log.coverage.notes)
    assert "all 5 lines of c.gz are in a.log too" in " ".join(log.coverage.notes)
    assert "10 lines that another of the files has too" in " ".join(" ".join(lines_of(describe(log, joined=False))).split())


def test_equal_lines_within_one_file_are_real_and_the_kth_of_two_files_are_one() -> None:
    # six equal lines in one second in the first file, eight in the second: there were eight
    six, eight = "\n".join([decode(0)] * 6) + "\n", "\n".join([decode(0)] * 8) + "\n"
    assert ddt.read_text(io.BytesIO(six.encode())).coverage.parsed["decode"] == 6
    assert ddt.read_text([io.BytesIO(six.encode()), io.BytesIO(eight.encode())]).coverage.parsed["decode"] == 8
    assert ddt.read_text([io.BytesIO(eight.encode()), io.BytesIO(six.encode())]).coverage.parsed["decode"] == 8


def test_equal_entries_of_one_journal_stay_whatever_is_beside_it(tmp_path: Path) -> None:
    # journald stamps what it reads in one go with one time
    burst = export(*[(0, step(1))] * 6)
    paths = save(tmp_path, a_export=burst, b_export=burst + export((1_000_000, step(2))))
    log = ddt.read_text(paths)
    assert (log.coverage.parsed["steps"], log.coverage.duplicate_lines) == (7, 6)


def test_one_file_is_read_without_any_comparing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ddtree_metrics.sources.open_files as files

    monkeypatch.setattr(files, "Twice", None)
    (path,) = save(tmp_path, a_log=decode(0) + "\n")
    assert messages(open_sources([path])) == [decode(0)]
    assert messages(open_sources([path, path])) == [decode(0)]  # one file, named twice


def test_the_same_text_at_another_time_or_of_another_process_is_another_line() -> None:
    base = [(i * 40_000, step(i)) for i in range(50)]
    later = [(us + 3_600_000_000, message) for us, message in base]
    for other in (
        export(*later),
        export(*base, pid=77),
        export(*base, unit="sglang-b.service"),
        export(*base, boot="3" * 32),
        export(*base).replace(b"=gpu1", b"=gpu2"),
    ):
        source = open_sources([io.BytesIO(export(*base)), io.BytesIO(other)])
        assert (len(messages(source)), source.stats.duplicate_lines, source.stats.notes) == (100, 0, [])


def test_what_only_one_file_knows_of_a_writer_does_not_tell_lines_apart() -> None:
    # the export names the unit, the text does not; its process is the same, or another
    lines = [(i * 40_000, step(i)) for i in range(50)]
    same = open_sources([io.BytesIO(export(*lines)), io.BytesIO(text("short-iso", *lines))])
    assert (len(messages(same)), same.stats.duplicate_lines) == (50, 50)
    other = open_sources([io.BytesIO(export(*lines)), io.BytesIO(text("short-iso", *lines, pid=77))])
    assert (len(messages(other)), other.stats.duplicate_lines) == (100, 0)


@pytest.mark.parametrize("zone_h", [0, -3.5, 5.75, 13])
@pytest.mark.parametrize("form", ["short", "short-precise"])
def test_lines_without_a_stamp_of_their_own_are_found_in_a_text_of_another_zone(form: str, zone_h: float) -> None:
    lines = [(i * 37_000, step(i)) for i in range(400)]
    source = open_sources([io.BytesIO(export(*lines)), io.BytesIO(text(form, *lines[100:300], zone_h=zone_h))])
    assert (len(messages(source)), source.stats.duplicate_lines) == (400, 200)


def test_a_text_of_another_hour_is_not_taken_for_the_same_log_in_another_zone() -> None:
    # steps of 37 ms; an hour later they fall otherwise into the seconds
    lines = [(i * 37_000, step(i * i)) for i in range(400)]
    later = [(3_600_000_000 + i * 37_000, step(i * i + i)) for i in range(400)]
    source = open_sources([io.BytesIO(export(*lines)), io.BytesIO(text("short", *later))])
    assert (len(messages(source)), source.stats.duplicate_lines) == (800, 0)


def test_steps_without_any_time_in_two_files_are_two_runs_unless_one_begins_like_the_other() -> None:
    one, two = [step(i * i) for i in range(300)], [step(i * i + i) for i in range(300)]
    joined = lambda lines: io.BytesIO(("\n".join(lines) + "\n").encode())  # noqa: E731
    assert len(messages(open_sources([joined(one), joined(two)]))) == 600
    assert len(messages(open_sources([joined(one), joined(one)]))) == 300
    assert len(messages(open_sources([joined(one[:200]), joined(one)]))) == 300
    assert len(messages(open_sources([joined(one), joined(one[:200])]))) == 300
    # nineteen equal lines show nothing, twenty do
    assert len(messages(open_sources([joined(one[:19]), joined(one[:19])]))) == 38
    assert len(messages(open_sources([joined(one[:20]), joined(one[:20])]))) == 20


def test_two_servers_that_print_a_few_equal_lines_in_one_second_stay_two() -> None:
    # both become ready in the same second, and print the same line then; all others have numbers of their own
    ready = "[2026-05-05 12:00:01] The server is fired up and ready to roll!"
    joined = lambda lines: io.BytesIO(("\n".join(lines) + "\n").encode())  # noqa: E731
    one, two = [ready, *[decode(i, 1) for i in range(40)]], [ready, *[decode(i, 2) for i in range(40)]]
    source = open_sources([joined(one), joined(two)])
    assert (len(messages(source)), source.stats.duplicate_lines) == (82, 0)


@pytest.mark.parametrize("turned", [False, True])
def test_a_few_lines_where_one_text_ends_and_the_other_begins_are_one(turned: bool) -> None:
    # a log that was copied while it was rotated: the last three lines of the copy begin the new file
    lines = [decode(i) for i in range(300)]
    parts = [lines[:203], lines[200:]]
    joined = [io.BytesIO(("\n".join(part) + "\n").encode()) for part in (parts[::-1] if turned else parts)]
    assert sorted(messages(open_sources(joined))) == sorted(lines)


def test_lines_without_a_time_go_with_the_line_before_them() -> None:
    trace = ["Traceback (most recent call last):", '  File "x.py", line 1']
    # the second log has another crash; its traceback has the same text
    one = [decode(0), *trace, decode(1)]
    two = [decode(1), decode(5), *trace]
    joined = lambda lines: io.BytesIO(("\n".join(lines) + "\n").encode())  # noqa: E731
    assert messages(open_sources([joined(one), joined(two)])) == [*one, decode(5), *trace]
    assert messages(open_sources([joined(one), joined(one)])) == one


def test_parts_of_a_rotated_set_keep_all_their_lines(tmp_path: Path) -> None:
    parts = {f"run_log_{n}": "\n".join(decode(100 - 10 * n + i // 2) for i in range(20)) + "\n" for n in (3, 2, 1)}
    log = ddt.read_text(save(tmp_path, **parts))
    assert (log.coverage.parsed["decode"], log.coverage.duplicate_lines) == (60, 0)


def test_the_order_of_plain_files_stays_the_given_one(tmp_path: Path) -> None:
    paths = save(tmp_path, b_log=decode(5) + "\n", a_log=decode(0) + "\n")
    assert messages(open_sources(paths)) == [decode(5), decode(0)]


def test_a_journal_folder_and_a_text_of_it_are_counted_once(tmp_path: Path) -> None:
    lines = [(i * 40_000, step(i)) for i in range(50)]
    build(tmp_path / "j" / "system.journal", export(*lines))
    (path,) = save(tmp_path, a_txt=text("short-unix", *lines))
    log = ddt.read_text([path, tmp_path / "j"])
    assert log.coverage.parsed["steps"] == 50
    assert log.steps["step_us"].dropna().tolist() == [40_000] * 49


# Twins: what a rotation wrote into two files


def _shifted(path: Path, like: Path, by: int) -> None:
    """Give a journal file the sequence of another one, with numbers that go on from it."""
    data = bytearray(path.read_bytes())
    data[72:88] = like.read_bytes()[72:88]
    last, first = struct.unpack_from("<QQ", data, 160)
    struct.pack_into("<QQ", data, 160, last + by, first + by)
    # an entry object: header, number, wall clock, boot clock, boot; the boot's id finds them
    boot, at = bytes.fromhex(BOOT), 272
    while (at := data.find(boot, at)) >= 0:
        (number,) = struct.unpack_from("<Q", data, at - 24)
        (wall,) = struct.unpack_from("<Q", data, at - 16)
        if T0 <= wall < T0 + 10**9 and first <= number <= last:
            struct.pack_into("<Q", data, at - 24, number + by)
        at += 16
    path.write_bytes(data)


@pytest.mark.parametrize("backend", ["systemd", "journalctl"])
def test_an_entry_that_a_rotation_wrote_into_both_files_is_one_entry(backend: str, tmp_path: Path) -> None:
    # entries 0 to 9 in the old file, 9 to 19 in the new one: 20 steps, 40 ms apart
    lines = [(i * 40_000, step(i)) for i in range(20)]
    old = build(tmp_path / "system@old.journal", export(*lines[:10]))
    new = build(tmp_path / "system.journal", export(*lines[9:]))
    _shifted(new, old, 10)
    source = open_journal(JournalPlace(directory=str(tmp_path)), backend=backend)
    assert messages(source) == [message for _, message in lines]
    assert source.stats.lines == 20
    assert any("written twice by a rotation" in note for note in source.stats.notes)


def test_equal_entries_of_one_file_and_over_the_end_of_a_batch_are_told_from_twins() -> None:
    sequence = bytes.fromhex("5" * 32)
    headers = [Header("old", sequence, 1, 10, 10, 0, 1, False, 1), Header("new", sequence, 11, 20, 10, 0, 1, False, 1)]
    stats = SourceStats(lines=6)
    (batch,) = open_source(io.BytesIO(export(*[(0, "same")] * 3)), name="x").batches()
    where = lambda *numbers: pa.array([f"journal:s={'5' * 32};i={n:x};b={BOOT}" for n in numbers])  # noqa: E731
    at = batch.schema.get_field_index("where")
    first = batch.set_column(at, batch.schema.field(at), where(8, 9, 10))
    second = batch.set_column(at, batch.schema.field(at), where(11, 12, 13))
    twins = Twins(headers, stats)
    assert twins.feed(first).num_rows == 3  # 8, 9 and 10 stand in one file
    assert twins.feed(second).column("where").to_pylist() == where(12, 13).to_pylist()
    assert (twins.count, stats.lines, stats.duplicate_lines) == (1, 5, 1)


# Tables that were exported twice


def test_rows_of_two_exports_that_overlap_are_there_once(tmp_path: Path, forms: Path) -> None:
    from click.testing import CliRunner

    from ddtree_metrics.cli import main

    for name in ("older", "newer"):
        done = CliRunner().invoke(main, ["export", str(forms / f"{name}.export"), "-o", f"{tmp_path}/{name}/"])
        assert done.exit_code == 0, done.output
    log = ddt.read_parquet([tmp_path / "older", tmp_path / "newer"])
    whole = ddt.read_text(forms / "a.export")
    for table in ("steps", "decode", "prefill", "servers"):
        assert log.table(table).num_rows == COUNTS[table] == log.coverage.parsed[table]
    assert sorted(log.steps["time_us"]) == sorted(whole.steps["time_us"])
    assert any("steps of" in n and "older" in n and "newer" in n for n in log.coverage.notes)


def test_rows_of_one_table_that_look_alike_stay(tmp_path: Path) -> None:
    burst = ddt.read_text(io.BytesIO(export(*[(0, step(1))] * 6)))
    pa.parquet.write_table(burst.table("steps"), tmp_path / "a.parquet")
    pa.parquet.write_table(burst.table("steps"), tmp_path / "b.parquet")
    assert ddt.read_parquet([tmp_path / "a.parquet"]).table("steps").num_rows == 6
    assert ddt.read_parquet([tmp_path / "a.parquet", tmp_path / "b.parquet"]).table("steps").num_rows == 6
