"""What is cut, missing, denied, named twice or written in UTF-16 does not stop what is good, and is told with what to do about it."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import tempfile
from pathlib import Path

import pytest

from ddtree_metrics.errors import SourceDamaged, SourceDenied, SourceNotFound, SourceUnsupported, UsageError
from ddtree_metrics.sources import JournalPlace, Selection, open_journal, open_source, open_sources
from tests.journals import T0, build, entry, need_root
from tests.test_sources_text import _as_nobody, messages

LINES = [{"__CURSOR": f"s=1;i={i}", "__REALTIME_TIMESTAMP": str(T0 + i), "MESSAGE": f"line {i}"} for i in range(5)]
TEXT = "".join(json.dumps(line) + "\n" for line in LINES)


# JSON


@pytest.mark.parametrize("size", [*range(1, 60, 7), 61])
def test_json_that_is_cut_keeps_whole_entries_and_is_named(size: int, tmp_path):
    # size bytes of the last line are left, which has 85 of them
    whole = TEXT.rstrip("\n").rpartition("\n")[0] + "\n"
    last = TEXT[len(whole) :]
    assert size < len(last) - 2
    path = tmp_path / "cut.json"
    path.write_text(whole + last[:size])
    source = open_source(path)
    assert messages(source) == [f"line {i}" for i in range(4)]
    assert source.stats.damaged == [
        "cut.json: the JSON ends inside an entry (line 5); what came before was read: copy or save it again for the rest"
    ]


def test_a_last_line_that_is_whole_but_has_no_newline_is_no_damage():
    source = open_source(io.BytesIO(TEXT.rstrip("\n").encode()), name="x.json")
    assert len(messages(source)) == 5
    assert source.stats.damaged == []


def test_docker_s_json_that_is_cut_is_named_too():
    line = '{"log":"one\\n","stream":"stdout","time":"2026-02-01T09:00:01.5Z"}\n'
    source = open_source(io.BytesIO((line + line[:30]).encode()), name="c-json.log")
    assert messages(source) == ["one"]
    assert "c-json.log: the JSON ends inside an entry (line 2)" in source.stats.damaged[0]


def test_broken_lines_inside_of_json_are_counted_and_the_first_place_is_told():
    lines = TEXT.splitlines()
    lines[1] = lines[1][:40]
    lines[3] = lines[3][:-3] + '{"__REALTIME'
    source = open_source(io.BytesIO(("\n".join(lines) + "\n").encode()), name="x.json")
    assert messages(source) == ["line 0", "line 2", "line 4"]
    assert len(source.stats.damaged) == 1
    assert source.stats.damaged[0].startswith("x.json: 2 lines are broken JSON, the first at x.json:2;")


def test_json_that_was_cut_at_its_beginning_is_named():
    source = open_source(io.BytesIO(TEXT[30:].encode()), name="x.json")
    assert messages(source) == [f"line {i}" for i in range(1, 5)]
    assert "x.json: 1 line is broken JSON, the first at x.json:1;" in source.stats.damaged[0]


def test_half_a_message_is_never_read_as_a_message():
    d = "DDTREE metrics: bs=1 budget=8 actual_nodes=[9] accepted_drafts=[3] commit_lens=[4]"
    data = TEXT + '{"__REALTIME_TIMESTAMP":"1767225600000000","MESSAGE":"' + d
    assert not any("DDTREE" in m for m in messages(open_source(io.BytesIO(data.encode()), name="x.json")))


@pytest.mark.parametrize("size", [1, 7, 100])
def test_damage_to_json_does_not_depend_on_how_a_file_is_cut_into_blocks(size: int, monkeypatch):
    from ddtree_metrics.sources import byte_streams

    lines = TEXT.splitlines()
    lines[2] = lines[2][:40]
    data = ("\n".join(lines)[:-5]).encode()
    whole = open_source(io.BytesIO(data), name="x.json")
    assert messages(whole) == ["line 0", "line 1", "line 3"]
    monkeypatch.setattr(byte_streams, "CHUNK", size)
    cut = open_source(io.BytesIO(data), name="x.json")
    assert messages(cut) == ["line 0", "line 1", "line 3"]
    assert cut.stats == whole.stats
    assert len(whole.stats.damaged) == 2


def test_braces_in_a_log_of_text_are_lines():
    text = '{"event": "x"\n{broken\nplain\n{"log": \'x\'}\n'
    source = open_source(io.BytesIO(text.encode()), name="run.log")
    assert messages(source) == text.splitlines()
    assert source.stats.damaged == []


def test_json_of_an_application_beside_docker_s_is_no_damage():
    docker = '{"log":"one\\n","stream":"stdout","time":"2026-02-01T09:00:01.5Z"}\n'
    source = open_source(io.BytesIO((docker + '{"event": "x"}\nplain\n').encode()), name="run.log")
    assert messages(source) == ["one", '{"event": "x"}', "plain"]
    assert source.stats.damaged == []


# Nothing at all


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("one.json", TEXT[:50].encode()),
        ("one.export", entry(T0, "x")[:30]),
        ("one.log.gz", gzip.compress(b"x" * 100, mtime=0)[:12]),
        ("one.journal", b"LPKSHHRH" + bytes(20)),
    ],
    ids=["json", "export", "gzip", "journal"],
)
def test_a_lone_file_of_which_nothing_can_be_read_is_an_error_that_says_what_to_do(name: str, data: bytes, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceDamaged, match=rf"{name}: .*copy it again.*, or leave it out") as error:
        messages(open_source(tmp_path / name))
    assert error.value.exit_code == 6
    (tmp_path / "good.log").write_text("good\n")
    source = open_sources([tmp_path / name, tmp_path / "good.log"])
    assert messages(source) == ["good"]
    assert len(source.stats.damaged) == 1
    assert name in source.stats.damaged[0]


# Good ones beside bad ones


def test_missing_files_beside_good_ones_are_named_and_the_good_ones_read(tmp_path):
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "t.parquet").write_bytes(b"PAR1....")
    (tmp_path / "empty").mkdir()
    names = ["a.log", "nosuch.log", "*.nosuch", "t.parquet", "empty", "b.log"]
    source = open_sources([tmp_path / name for name in names])
    assert messages(source) == ["a.log", "b.log"]
    damaged = source.stats.damaged
    assert len(damaged) == 4
    for name, words in (("nosuch.log", "no file"), ("*.nosuch", "no file matches"), ("t.parquet", "Parquet"), ("empty", "is a folder")):
        assert any(name in text and words in text for text in damaged), name


@pytest.mark.parametrize(
    ("names", "error", "code"),
    [
        (["nosuch.log", "*.nosuch"], SourceNotFound, 3),
        (["t.parquet", "t2.parquet"], SourceUnsupported, 5),
        (["torn.gz", "nosuch.log"], SourceNotFound, 3),
        (["torn.gz", "torn.journal"], SourceDamaged, 6),
    ],
)
def test_if_nothing_can_be_read_the_first_reason_is_the_error(names: list[str], error: type[Exception], code: int, tmp_path):
    for name in ("t.parquet", "t2.parquet"):
        (tmp_path / name).write_bytes(b"PAR1....")
    (tmp_path / "torn.gz").write_bytes(b"\x1f\x8b")
    (tmp_path / "torn.journal").write_bytes(b"")
    with pytest.raises(error) as raised:
        messages(open_sources([tmp_path / name for name in names]))
    assert raised.value.exit_code == code
    assert all(name in str(raised.value) for name in names)


def test_o20_a_denied_text_file_beside_a_good_one_is_named_and_the_good_one_read(tmp_path):
    need_root()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        (folder / "good.log").write_text("good\n")
        (folder / "secret.log").write_text("x\n")
        (folder / "secret.journal").write_bytes(build(tmp_path / "s.journal", entry(T0, "x")).read_bytes())
        (folder / "secret.log").chmod(0o600)
        (folder / "secret.journal").chmod(0o600)
        program = (
            "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "from ddtree_metrics.sources import open_source, open_sources\n"
            "from ddtree_metrics.errors import SourceDenied\n"
            "d = sys.argv[1]\n"
            "s = open_sources([d + '/secret.log', d + '/secret.journal', d + '/good.log'])\n"
            "print(sum(b.num_rows for b in s.batches()), len(s.stats.damaged), s.stats.damaged)\n"
            "for name in ('secret.log', 'secret.journal'):\n"
            "    try: list(open_source(d + '/' + name).batches())\n"
            "    except SourceDenied as e: print(e.exit_code, e)\n"
        )
        done = _as_nobody(program, str(folder))
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done
    assert lines[0].startswith("1 2 ")
    assert "secret.log" in lines[0]
    assert "secret.journal: may not be read by this user: become a member of the group systemd-journal or adm" in lines[0]
    assert lines[1].startswith("4 ")
    assert "secret.log" in lines[1]
    assert lines[2].startswith("4 ")
    assert "group systemd-journal or adm" in lines[2]
    assert issubclass(SourceDenied, Exception)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("cut", r"x\.journal: was cut to \d+ of \d+ bytes: copy it again from the machine, or leave it out"),
        ("empty", r"x\.journal: is empty \(0 bytes\): copy it again from the machine, or leave it out"),
        ("text", r"x\.journal: is no journal file, or its beginning was overwritten: copy it again from the machine, or leave it out"),
        ("newer", r"x\.journal: was made by a newer systemd .*: read it on the machine that made it, or save it there with journalctl"),
    ],
)
def test_o20_a_broken_journal_file_says_what_to_do(kind: str, words: str, tmp_path):
    path = build(tmp_path / "x.journal", entry(T0, "x"))
    data = bytearray(path.read_bytes())
    if kind == "newer":
        data[12:16] = b"\x20\x01\x00\x00"
    path.write_bytes({"cut": bytes(data[:5_000]), "empty": b"", "text": b"\0" * 5_000, "newer": bytes(data)}[kind])
    place = JournalPlace(files=(str(path),))
    for opened in (lambda: open_source(path), lambda: open_journal(place)):
        with pytest.raises((SourceDamaged, SourceUnsupported), match=words):
            opened()
    (tmp_path / "good.journal").write_bytes(build(tmp_path / "g.journal", entry(T0, "good")).read_bytes())
    source = open_sources([path, tmp_path / "good.journal"])
    assert messages(source) == ["good"]
    import re

    assert re.search(words, source.stats.damaged[0])


# Folders, and files named twice


def test_of_a_folder_of_journal_files_nothing_else_is_read(tmp_path):
    folder = tmp_path / "j"
    build(folder / "system.journal", entry(T0, "from the journal"))
    (folder / "saved.export").write_bytes(entry(T0, "from the export"))
    (folder / "saved.json").write_text(TEXT)
    (folder / "steps.parquet").write_bytes(b"PAR1....PAR1")
    source = open_source(folder)
    assert messages(source) == ["from the journal"]
    assert any("only its journal files were read" in note and "saved.export" in note for note in source.stats.notes)
    from ddtree_metrics.tables.datasets import is_stored

    assert not is_stored(folder)


def test_a_folder_and_a_file_in_it_are_one_journal_and_read_once(tmp_path):
    folder = tmp_path / "j"
    build(folder / "a.journal", entry(T0, "a"))
    build(folder / "b.journal", entry(T0 + 1, "b"))
    other = build(tmp_path / "c.journal", entry(T0 + 2, "c"))
    source = open_sources([other, folder, folder / "a.journal"])
    assert messages(source) == ["a", "b", "c"]
    assert any("named more than once, and read once" in note for note in source.stats.notes)


def test_a_folder_without_journal_files_says_how_to_name_the_files(tmp_path):
    (tmp_path / "run.txt").write_text("x\n")
    with pytest.raises(
        SourceNotFound, match=r"folder without journal files; name the log files in it, such as .*run\.txt.*quotes.*\*\.txt"
    ):
        open_source(tmp_path)


def test_a_file_that_is_named_twice_is_read_once_through_whichever_path(tmp_path, monkeypatch):
    (tmp_path / "run.log").write_text("one\n")
    (tmp_path / "link.log").symlink_to("run.log")
    os.link(tmp_path / "run.log", tmp_path / "hard.log")
    monkeypatch.chdir(tmp_path)
    source = open_sources(["run.log", tmp_path / "run.log", "link.log", "hard.log", "./run.log", "*.log"])
    assert messages(source) == ["one"]
    note = next(n for n in source.stats.notes if "named more than once" in n)
    assert "link.log (the same file as run.log)" in note
    source = open_sources(["run.log"])
    assert messages(source) == ["one"]
    assert source.stats.notes == []


def test_two_files_of_the_same_text_are_two_files(tmp_path):
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text("x\n")
    assert messages(open_sources([tmp_path / "a.log", tmp_path / "b.log"])) == ["x", "x"]


def test_a_stream_that_is_named_twice_is_a_usage_error(tmp_path, monkeypatch):
    (tmp_path / "run.log").write_text("one\n")
    stream = io.BytesIO(b"x\n")
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe, (tmp_path / "run.log").open("rb") as stdin:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        for named in (["-", "-"], [stream, stream], [pipe, f"/dev/fd/{pipe.fileno()}"]):
            with pytest.raises(UsageError, match="named twice, and a stream can be read only once") as error:
                open_sources(named)
            assert error.value.exit_code == 2
        # a file that is also redirected to standard input is a file
        assert messages(open_sources([tmp_path / "run.log", "-"])) == ["one"]


# UTF-16

WINDOWS = "[2026-01-01 00:00:00] größe\r\n" + "x" * 5000 + "\r\nlast\r\n"


@pytest.mark.parametrize("code", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("mark", [True, False])
def test_utf_16_is_read_and_noted(code: str, mark: bool):
    if code == "utf-32" and not mark:
        return
    data = WINDOWS.encode(code) if code in ("utf-16", "utf-32") else ("\ufeff" * mark + WINDOWS).encode(code)
    if code == "utf-16" and not mark:
        data = data[2:]
    for packed in (data, gzip.compress(data)):
        source = open_source(io.BytesIO(packed), name="win.log")
        assert messages(source) == ["[2026-01-01 00:00:00] größe", "x" * 5000, "last"]
        assert any("UTF-" in note for note in source.stats.notes)
        assert source.stats.bad_bytes == 0


def test_utf_16_may_come_in_any_pieces(monkeypatch):
    from ddtree_metrics.sources import byte_streams

    monkeypatch.setattr(byte_streams, "CHUNK", 3)
    assert messages(open_source(io.BytesIO(WINDOWS.encode("utf-16")), name="x"))[0] == "[2026-01-01 00:00:00] größe"


def test_a_journal_saved_in_utf_16_is_a_journal():
    source = open_source(io.BytesIO(TEXT.encode("utf-16")), name="x.json")
    assert messages(source) == [f"line {i}" for i in range(5)]
    source = open_source(io.BytesIO(entry(T0, "x").decode().encode("utf-16")), selection=Selection(units=("sglang-kimi",)), name="x")
    assert messages(source) == ["x"]


def test_utf_16_that_is_cut_inside_a_character_is_read_to_there():
    source = open_source(io.BytesIO("one\ntwo\n".encode("utf-16") + b"x"), name="x")
    assert messages(source)[:2] == ["one", "two"]
    assert source.stats.bad_bytes >= 1


# Lines whose length is a multiple of LineMax

STAMP = "[2026-05-05 12:00:0{}] "


@pytest.mark.parametrize("form", ["export", "json", "journal"])
@pytest.mark.parametrize("pieces", [1, 2])
def test_a_line_as_long_as_its_pieces_does_not_take_the_next_line_with_it(form: str, pieces: int, tmp_path):
    # journald 252 writes no closing piece for a line of exactly k * LineMax bytes
    head = STAMP.format(1)
    long = head + "z" * (49_152 * pieces - len(head))
    export = b"".join(entry(T0 + i, long[49_152 * i : 49_152 * (i + 1)], _LINE_BREAK="line-max") for i in range(pieces))
    export += entry(T0 + 50_000, STAMP.format(2) + "D1") + entry(T0 + 90_000, STAMP.format(3) + "D2")
    assert _read(form, export, tmp_path) == [long, STAMP.format(2) + "D1", STAMP.format(3) + "D2"]


@pytest.mark.parametrize("form", ["export", "json", "journal"])
@pytest.mark.parametrize("head", ["", STAMP.format(1)])
def test_pieces_that_do_belong_together_are_joined(form: str, head: str, tmp_path):
    first = head + "z" * (49_152 - len(head))
    tails = ["tail", "12:00:02] tail"] if head else ["tail", STAMP.format(2) + "quoted"]
    for tail in tails:
        export = entry(T0, first, _LINE_BREAK="line-max") + entry(T0 + 1, tail)
        assert _read(form, export, tmp_path) == [first + tail]


def _read(form: str, export: bytes, folder: Path) -> list[str]:
    if form == "export":
        return messages(open_source(io.BytesIO(export), name="x"))
    path = build(folder / "x.journal", export)
    try:
        if form == "journal":
            return messages(open_journal(JournalPlace(files=(str(path),))))
        import subprocess

        out = subprocess.run(["journalctl", "--file", str(path), "-o", "json", "--all", "-q"], capture_output=True, check=True).stdout
        return messages(open_source(io.BytesIO(out), name="x"))
    finally:
        path.unlink()


@pytest.mark.parametrize("form", ["export", "json"])
def test_a_boot_clock_that_no_machine_reaches_is_none(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{form}"
    far = 2**63 - 1
    fields = {"__REALTIME_TIMESTAMP": str(T0), "__MONOTONIC_TIMESTAMP": str(far), "MESSAGE": "hello"}
    path.write_bytes(entry(T0, "hello", mono=far) if form == "export" else json.dumps(fields).encode() + b"\n")
    (batch,) = open_source(path).batches()
    assert batch.column("monotonic_us").to_pylist() == [None]
    assert batch.column("time").null_count == 0
