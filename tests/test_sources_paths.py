"""Names that lead to something else than a plain file: pipes, /proc, loops of links, names that are no UTF-8, folders that are closed."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree_metrics import read_requests
from ddtree_metrics.errors import SourceDenied, SourceError, SourceNotFound
from ddtree_metrics.loading import read_text
from ddtree_metrics.sources import open_files, open_source, open_sources
from ddtree_metrics.tables.datasets import is_stored
from tests.test_sources_text import _as_nobody, messages

BODY = "DDTREE metrics: bs=1 budget=16 commit_lens=[5] avg_commit_len=5.00"
LINES = [f"[2026-02-01 10:{i // 60:02}:{i % 60:02} TP0] {BODY}" for i in range(1000)]
TEXT = "".join(f"{line}\n" for line in LINES).encode()


def piped(data: bytes, use: Callable[[str], None]) -> None:
    """Call with a name of a pipe that gives some bytes, as ``<(...)`` does."""
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as out:
            out.write(data)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        use(f"/dev/fd/{reading}")
    finally:
        os.close(reading)
        writer.join()


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_path_that_cannot_be_sought_keeps_its_beginning(pack: Callable[[bytes], bytes]) -> None:
    def use(path: str) -> None:
        # Whatever looks at the path beforehand must take nothing out of the pipe.
        assert not is_stored(path)
        assert messages(open_sources([path])) == LINES

    piped(pack(TEXT), use)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_request_files_may_come_through_a_pipe(pack: Callable[[bytes], bytes]) -> None:
    text = "id,start,end,prompt_tokens\n" + "".join(f"r{i},{1770000000 + i},{1770000001 + i},7\n" for i in range(300))
    seen = []
    piped(pack(text.encode()), lambda path: seen.append(len(read_requests(path))))
    assert seen == [300]


def test_the_command_line_reads_what_the_shell_substitutes(tmp_path: Path) -> None:
    (tmp_path / "x.log.gz").write_bytes(gzip.compress(TEXT))
    program = f"{sys.executable} -m ddtree_metrics"
    for words in ("export <(zcat x.log.gz) --format jsonl -o -", "export /dev/stdin --format jsonl -o - < <(zcat x.log.gz)"):
        done = subprocess.run(["bash", "-c", f"{program} {words} | wc -l"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert int(done.stdout) == len(LINES)


def test_a_named_pipe_is_read_when_its_writer_comes(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)

    def write() -> None:
        time.sleep(0.2)
        path.write_bytes(TEXT)

    writer = threading.Thread(target=write)
    writer.start()
    assert not is_stored(path)
    assert read_text(path).steps.shape[0] == len(LINES)
    writer.join()


def test_a_writer_that_never_comes_gives_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "FIFO_PATIENCE", 0.1)
    path = tmp_path / "fifo"
    os.mkfifo(path)
    before = threading.active_count()
    with pytest.raises(SourceError, match=r"nobody wrote to the named pipe '.*/fifo' within 0.1 seconds; start the writer"):
        messages(open_source(path))
    for _ in range(100):
        if threading.active_count() == before:
            break
        time.sleep(0.02)
    assert threading.active_count() == before


def test_a_pattern_leaves_named_pipes_out_and_says_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.log")
    (tmp_path / "b.log").write_bytes(TEXT)
    source = open_sources([tmp_path / "*.log"])
    assert messages(source) == LINES
    assert any("named pipes" in note and "a.log" in note for note in source.stats.notes)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_the_files_of_proc_are_not_empty() -> None:
    assert any(line.startswith("Name:") for line in messages(open_source("/proc/self/status")))


def test_a_loop_of_links_and_a_pipe_in_a_folder_do_not_stop_the_others(tmp_path: Path) -> None:
    good = next(Path(__file__).resolve().parent.parent.glob("fixtures/**/*.journal"), None)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "loop.journal").symlink_to("loop.journal")
    (tmp_path / ("0" * 32)).symlink_to("0" * 32)
    os.mkfifo(tmp_path / "pipe.journal")
    if good is None:
        with pytest.raises(SourceError, match=r"loop\.journal: cannot be read.*pipe\.journal: is no regular file"):
            open_source(tmp_path)
        return
    shutil.copy(good, tmp_path / "good.journal")
    source = open_source(tmp_path)
    assert messages(source)
    assert len(source.stats.damaged) == 2


def test_a_looping_link_beside_a_log_is_named_and_the_log_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(TEXT)
    (tmp_path / "b.log").symlink_to("b.log")
    source = open_sources([tmp_path / "*.log"])
    assert messages(source) == LINES
    assert any("b.log" in text and "symbolic links" in text for text in source.stats.damaged)


def test_a_name_that_is_no_utf8_is_shown_with_a_replacement_character(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/r\xffn.log"
    with open(path, "wb") as out:  # noqa: PTH123
        out.write(TEXT)
    log = read_text(os.fsdecode(path))
    assert log.steps["where"].iloc[0] == "r\ufffdn.log:1"
    assert str(log.coverage.source).encode() == "r\ufffdn.log".encode()
    pattern = os.fsdecode(os.fsencode(tmp_path) + b"/r*.log")
    assert messages(open_sources([pattern, os.fsdecode(path)])) == LINES
    done = subprocess.run([sys.executable.encode(), b"-m", b"ddtree_metrics", b"inspect", path], capture_output=True, check=True)
    assert "source      r\ufffdn.log" in done.stdout.decode()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_a_file_in_a_folder_that_may_not_be_entered_is_denied_and_not_missing(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    (folder / "run.log").write_bytes(TEXT)
    program = (
        "import os, sys; os.setgid(65534); os.setuid(65534)\n"
        "from ddtree_metrics.sources import open_source\n"
        "try:\n    open_source(sys.argv[1])\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = _as_nobody(program, str(folder / "run.log"))
    assert done.stdout.startswith("SourceDenied"), done
    assert SourceDenied.exit_code == 4


def test_a_file_behind_a_file_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(SourceNotFound):
        open_source(tmp_path / "a" / "run.log")
