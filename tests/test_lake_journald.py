"""A lake beside a real journald: it rotates between runs, and removes what was not read yet."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ddtree_metrics as ddt
from ddtree_metrics.tables.lake_check import check_lake
from tests.journals import Journald, need_root
from tests.test_lake import append, at_once, rows

UNIT = "_SYSTEMD_UNIT=sglang-kimi.service"


@pytest.fixture
def daemon() -> Iterator[Journald]:
    """A journald whose folder it may enter: without root's rights it cannot enter pytest's."""
    need_root()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        made = Journald(Path(folder) / "root")
        yield made
        made.stop()


def rotated(daemon: Journald) -> set[Path]:
    """Have journald begin a new file, and return those that are archived."""
    before = set(daemon.folder.rglob("*@*.journal"))
    daemon._child.send_signal(signal.SIGUSR2)
    until = time.monotonic() + 20
    while (now := set(daemon.folder.rglob("*@*.journal"))) == before:
        assert time.monotonic() < until, "journald did not rotate"
        time.sleep(0.05)
    return now


def steps(first: int, count: int) -> bytes:
    line = b"DDTREE metrics: bs=1 budget=16 actual_nodes=[17] accepted_drafts=[%d] commit_len=[%d]\n"
    return b"".join(line % (n % 7, n % 7 + 1) for n in range(first, first + count))


@pytest.mark.journald
def test_a_journal_that_rotates_between_runs_gives_each_row_once_and_what_was_removed_is_named(daemon: Journald, tmp_path: Path) -> None:
    lake, sent = tmp_path / "lake", 0
    stream = daemon.stream("sglang-kimi.service")

    def send(count: int) -> None:
        nonlocal sent
        stream.sendall(steps(sent, count))  # type: ignore[attr-defined]
        sent += count

    def run() -> ddt.Coverage:
        return append(None, lake, unit="sglang-kimi", directory=str(daemon.folder), namespace="t").coverage

    send(200)
    daemon.synced(200, UNIT)
    run()
    send(150)
    daemon.synced(350, UNIT)
    rotated(daemon)
    send(120)
    daemon.synced(470, UNIT)
    run()
    assert rows(lake) == at_once(None, tmp_path / "once", unit="sglang-kimi", directory=str(daemon.folder), namespace="t")
    kept = rotated(daemon)
    run()
    before = rows(lake)["steps"]
    assert len(before) == 470
    send(90)
    daemon.synced(560, UNIT)
    gone = rotated(daemon) - kept
    send(60)
    daemon.synced(620, UNIT)
    for path in (*kept, *gone):
        path.unlink()
    said = run()
    # 90 lines were there between two runs, in a file that was removed
    assert [note for note in said.notes if ": 90 entries of the journal" in note and "missing in the lake" in note], said.notes
    after = rows(lake)["steps"]
    assert len(after) == 530
    assert [row for row in after if row in before] == before
    assert after[470]["step_why"] == "outside_window"
    assert check_lake(lake).problems == []
    run()
    assert rows(lake)["steps"] == after
    stream.close()  # type: ignore[attr-defined]
