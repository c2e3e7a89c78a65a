"""Files and streams of text: compressed, torn, rotated, growing, trickling, without end or without sense."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import subprocess
import tempfile
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from ddtree_metrics.errors import SourceDamaged, SourceDenied, SourceError, SourceNotFound, SourceUnsupported
from ddtree_metrics.sources import Selection, open_source, open_sources
from tests.journals import T0, entry, suppressed

LINES = [f"line {i} {'x' * (i % 50)}" for i in range(3000)]
TEXT = ("\n".join(LINES) + "\n").encode()


def pack(data: bytes, kind: str, folder: Path) -> bytes:
    if kind == "zst":
        path = folder / "packed.zst"
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(data)
        return path.read_bytes()
    if kind == "xz":
        return lzma.compress(data, preset=0)
    return gzip.compress(data) if kind == "gz" else bz2.compress(data, 1)


def messages(source) -> list[str]:
    return [m for batch in source.batches() for m in batch.column("message").to_pylist()]


KINDS = ["gz", "zst", "xz", "bz2"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_compressed_file_reads_as_the_plain_one(kind: str, tmp_path):
    path = tmp_path / f"run.log.{kind}"
    path.write_bytes(pack(TEXT, kind, tmp_path))
    source = open_source(path)
    assert messages(source) == LINES
    assert source.stats.damaged == []


@pytest.mark.parametrize("kind", KINDS)
def test_two_compressed_files_put_together_read_as_both(kind: str, tmp_path):
    packed = pack(TEXT, kind, tmp_path)
    assert messages(open_source(io.BytesIO(packed + packed), name="x")) == LINES + LINES


@pytest.mark.parametrize("kind", KINDS)
def test_a_torn_compressed_file_gives_what_came_before_and_is_named(kind: str, tmp_path):
    import random

    noise = random.Random(1)
    lines = [f"{noise.getrandbits(400):x}" for _ in range(6_000)]  # 600 kB that hardly pack
    packed = pack(("\n".join(lines) + "\n").encode(), kind, tmp_path)
    path = tmp_path / f"torn.log.{kind}"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    source = open_source(path)
    got = messages(source)
    # what comes is whole blocks: 100 kB in this bzip2 file (1,000 lines), 128 kB in zstd
    assert 6_000 * 3 // 4 - 1_400 < len(got) < 6_000 * 3 // 4 + 100
    assert got == lines[: len(got)]
    assert len(source.stats.damaged) == 1
    assert f"torn.log.{kind}" in source.stats.damaged[0]


@pytest.mark.parametrize("head", [b"\x1f\x8b", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00"])
def test_a_damaged_file_of_which_nothing_can_be_read_raises_and_says_what_to_do(head: bytes):
    with pytest.raises(SourceDamaged, match=r"lone\.gz: .*: nothing of it can be read; copy it again, or leave it out"):
        messages(open_source(io.BytesIO(head), name="lone.gz"))


def test_an_empty_file_has_no_line_and_no_damage(tmp_path):
    (tmp_path / "e.log").touch()
    source = open_source(tmp_path / "e.log")
    assert messages(source) == []
    assert source.stats.damaged == []


def test_long_lines_and_lines_without_end():
    source = open_source(io.BytesIO(b"a" * 1_000_000 + b"\nb\n" + b"c" * 1_000_000), name="long.log")
    assert [len(m) for m in messages(source)] == [1_000_000, 1, 1_000_000]
    # 20 MiB in one line: the first 8 MiB are kept, the next line is read as usual
    source = open_source(io.BytesIO(b"a" * (20 << 20) + b"\nafter\n"), name="long.log")
    batches = list(source.batches())
    assert [len(m) for b in batches for m in b.column("message").to_pylist()] == [8 << 20, 5]
    assert [w for b in batches for w in b.column("where").to_pylist()] == ["long.log:1", "long.log:2"]
    assert "1 lines are longer than 8 MiB" in source.stats.notes[0]


def test_a_million_columns_of_garbage_are_one_line():
    text = " ".join(f"k{i}=[" for i in range(1_000_000))
    assert messages(open_source(io.BytesIO(text.encode() + b"\n"), name="x")) == [text]


def test_a_log_that_was_emptied_under_its_writer_begins_with_nuls():
    source = open_source(io.BytesIO(b"\0" * (20 << 20) + b"first\nsecond\n"), name="x")
    assert messages(source) == ["first", "second"]


def test_batches_are_of_about_32k_lines():
    sizes = [b.num_rows for b in open_source(io.BytesIO(b"x\n" * 100_000), name="x").batches()]
    assert sum(sizes) == 100_000
    assert max(sizes) <= 32_768


def test_lines_of_a_pipe_come_out_as_they_come_in():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        source = open_source(pipe, name="pipe")
        batches = source.batches()
        for text in ("one", "two"):
            os.write(writing, f"{text}\nhalf a ".encode())
            # the pipe stays open: this would never return if the source waited for more
            assert next(batches).column("message").to_pylist()[-1].endswith(text)
        os.close(writing)
        assert [m for b in batches for m in b.column("message").to_pylist()] == ["half a "]


def test_a_fast_pipe_does_not_make_thousands_of_batches():
    reading, writing = os.pipe()
    data = b"a line of a fast writer\n" * 100_000

    def write() -> None:
        with os.fdopen(writing, "wb") as out:
            out.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reading, "rb") as pipe:
        sizes = [b.num_rows for b in open_source(pipe, name="pipe").batches()]
    thread.join()
    assert sum(sizes) == 100_000
    assert len(sizes) < 40  # 2.4 MB come in pieces of at most 64 KiB: 37 of them


def test_a_compressed_stream_of_a_pipe_is_unpacked():
    with subprocess.Popen(["gzip", "-c"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(TEXT)
        child.stdin.close()
        assert messages(open_source(child.stdout, name="pipe")) == LINES


def test_a_file_that_grows_is_read_to_the_end_of_the_line_of_its_opening(tmp_path):
    path = tmp_path / "run.log"
    path.write_bytes(b"one\ntwo and")
    file = path.open("rb")
    from ddtree_metrics.sources import SourceStats
    from ddtree_metrics.sources.byte_streams import Bytes

    stream = Bytes(file, "run.log", SourceStats())
    with path.open("ab") as more:
        more.write(b" a half\nlater\n")
    assert stream.read() == b"one\ntwo and a half\n"
    assert stream.read() == b""
    file.close()


def test_a_file_cut_while_it_is_read_is_named(tmp_path):
    from ddtree_metrics.sources import SourceStats
    from ddtree_metrics.sources.byte_streams import Bytes

    path = tmp_path / "run.log"
    path.write_bytes(b"one\n" * 100)
    with path.open("rb") as file:
        stats = SourceStats()
        stream = Bytes(file, "run.log", stats)
        path.write_bytes(b"new\n")
        while stream.read():
            pass
    assert "run.log: was cut to" in stats.damaged[0]


def test_a_file_rotated_while_it_is_read_is_read_to_its_end(tmp_path):
    path = tmp_path / "run.log"
    path.write_bytes(b"x" * 99 + b"\n")
    source = open_source(path)
    batches = source.batches()
    first = next(batches)
    path.rename(tmp_path / "run.log.1")
    path.write_bytes(b"new\n")
    assert first.num_rows + sum(b.num_rows for b in batches) == 1


def test_a_rotated_set_is_read_oldest_first(tmp_path):
    for name, text in (("run.log", "4"), ("run.log.1", "3"), ("run.log.2.gz", "2"), ("run.log.10.gz", "1"), ("other.log", "0")):
        data = f"{text}\n".encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert messages(open_sources([tmp_path / "run.log*"])) == ["1", "2", "3", "4"]
    assert messages(open_sources([tmp_path / "run.log", tmp_path / "run.log.1", tmp_path / "run.log.2.gz"])) == ["2", "3", "4"]
    assert messages(open_source(tmp_path / "run.log", follow_rotation=True)) == ["1", "2", "3", "4"]
    assert messages(open_source(tmp_path / "run.log")) == ["4"]


def test_dated_rotations_are_read_by_date(tmp_path):
    names = ["run.log-20260102", "run.log", "run.log-20260101.gz", "0.log.20260129-005248.gz", "0.log"]
    for name in names:
        (tmp_path / name).write_bytes(gzip.compress(name.encode()) if name.endswith("gz") else name.encode())
    assert messages(open_sources([tmp_path / n for n in names])) == [
        "run.log-20260101.gz",
        "run.log-20260102",
        "run.log",
        "0.log.20260129-005248.gz",
        "0.log",
    ]


def test_files_of_one_name_are_told_apart_by_their_folder(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.log").write_text("x\n")
    source = open_sources([tmp_path / "a/run.log", tmp_path / "b/run.log"])
    wheres = [w for b in source.batches() for w in b.column("where").to_pylist()]
    assert wheres == [f"{tmp_path}/a/run.log:1", f"{tmp_path}/b/run.log:1"]
    assert source.stats.lines == 2


def test_what_cannot_be_opened_says_what_to_do(tmp_path):
    with pytest.raises(SourceNotFound, match=r"no file .*nosuch\.log"):
        open_source(tmp_path / "nosuch.log")
    with pytest.raises(SourceNotFound, match="no file matches"):
        open_sources([tmp_path / "*.nosuch"])
    (tmp_path / "a.log").write_text("x\n")
    with pytest.raises(SourceNotFound, match=r"folder without journal files; name the log files in it, such as .*a\.log"):
        open_source(tmp_path)
    (tmp_path / "t.parquet").write_bytes(b"PAR1....")
    with pytest.raises(SourceUnsupported, match="Parquet"):
        list(open_source(tmp_path / "t.parquet").batches())
    with pytest.raises(SourceNotFound, match="no file was named"):
        open_sources([])
    with pytest.raises(SourceNotFound):
        open_source("bad\0name")
    for kind in (SourceNotFound, SourceDenied, SourceUnsupported):
        assert issubclass(kind, SourceError)


def test_a_file_of_another_user_is_denied():
    from tests.journals import need_root

    need_root()
    folder = tempfile.TemporaryDirectory()
    Path(folder.name).chmod(0o755)
    path = Path(folder.name) / "secret.log"
    path.write_text("x\n")
    path.chmod(0o600)
    program = (
        "import os, sys; os.setgid(65534); os.setuid(65534)\n"
        "from ddtree_metrics.sources import open_source\n"
        "from ddtree_metrics.errors import SourceDenied\n"
        "try: list(open_source(sys.argv[1]).batches())\n"
        "except SourceDenied as e: print(e.exit_code, e)\n"
    )
    done = _as_nobody(program, str(path))
    folder.cleanup()
    assert done.stdout.startswith("4 "), done
    assert "secret.log" in done.stdout


def _as_nobody(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    import sys

    # everything is imported before the change of user: the interpreter may be in a folder of root
    head = "import ddtree_metrics.sources.open_files, ddtree_metrics.sources.journal, ddtree_metrics.sources.journalctl, systemd.journal\n"
    root = Path(__file__).parent.parent
    return subprocess.run([sys.executable, "-c", head + program, *words], cwd=root, capture_output=True, text=True, check=False)


def test_export_text_is_read_with_its_binary_fields_and_pieces():
    data = (
        entry(T0, b"plain")
        + entry(T0 + 1, b"\x1b[32mcolour\x1b[0m")
        + entry(T0 + 2, b"two\nlines")
        + entry(T0 + 3, b"bad \xff")
        + entry(T0 + 4, b"z" * 49_152, _LINE_BREAK="line-max")
        + entry(T0 + 4, b"tail")
        + entry(T0 + 5, None)
        + suppressed(T0 + 6, 1234)
        + entry(T0 + 7, b"last", _LINE_BREAK="eof")
    )
    source = open_source(io.BytesIO(data), name="x.export")
    rows = [r for b in source.batches() for r in b.set_column(0, "time", b.column(0).cast("int64")).to_pylist()]
    assert [(r["time"] - T0, r["message"]) for r in rows] == [
        (0, "plain"),
        (1, "colour"),
        (2, "two"),
        (2, "lines"),
        (3, "bad \ufffd"),
        (4, "z" * 49_152 + "tail"),
        (6, "Suppressed 1234 messages from sglang-kimi.service"),
        (7, "last"),
    ]
    assert {r["unit"] for r in rows} == {"sglang-kimi.service"}
    assert {(r["host"], r["pid"]) for r in rows if not r["message"].startswith("Suppressed")} == {("gpu1", 4242)}
    stats = source.stats
    assert (stats.message_missing, stats.pieces_joined, stats.bad_bytes, stats.damaged) == (1, 2, 1, [])


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_export_text_may_come_in_any_pieces(size: int):
    from ddtree_metrics.sources.export_format import ExportParser

    data = entry(T0, b"one\x00two") + entry(T0 + 1, b"x\ny" * 50) + entry(T0 + 2, b"=a=")
    parser = ExportParser()
    made = [e for at in range(0, len(data), size) for e in parser.feed(data[at : at + size])]
    assert [e["MESSAGE"] for e in made] == [b"one\x00two", b"x\ny" * 50, b"=a="]
    assert parser.close() == (None, False)


def test_export_text_that_is_cut_keeps_whole_entries_and_is_named():
    data = entry(T0, b"one") + entry(T0 + 1, b"two\nlines")[:-10]
    source = open_source(io.BytesIO(data), name="cut.export")
    assert messages(source)[0] == "one"
    assert "cut.export: the export text ends inside an entry" in source.stats.damaged[0]
    assert not any("tw" in m for m in messages(open_source(io.BytesIO(data), name="x")))


def test_selection_and_window_apply_to_export_text():
    from ddtree_metrics.times import Window

    data = b"".join(entry(T0 + i, f"{i}", unit="a.service" if i % 2 else "b.service") for i in range(10)) + suppressed(
        T0 + 5, 3, "a.service"
    )
    got = messages(open_source(io.BytesIO(data), selection=Selection(units=("a",)), window=Window(T0 + 3, T0 + 8)))
    assert got == ["3", "5", "7", "Suppressed 3 messages from a.service"]
