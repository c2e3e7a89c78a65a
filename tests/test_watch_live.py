"""Watch beside something that writes: files, a pipe, a real journald; and how it ends."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddtree_metrics.errors import SourceError
from ddtree_metrics.live import followed
from ddtree_metrics.live.fresh_rows import FreshRows
from ddtree_metrics.live.rolling import boot_clock
from ddtree_metrics.live.watching import Arrivals, Watch
from ddtree_metrics.opening import read_options
from ddtree_metrics.reading import start_reading
from tests.journals import Journald

PATIENCE_S = 60
"""Nothing is asserted of speed; a test that waits for so long has failed."""


def step(n: int, accepted: int = 2) -> str:
    return (
        f"DDTREE metrics: bs=1 budget=16 actual_nodes=[17] accepted_drafts=[{accepted}] commit_lens=[{accepted + 1}] "
        f"avg_accepted_drafts={accepted:.2f} avg_commit_len={accepted + 1:.2f} n={n}\n"
    )


def stamped(n: int, at: datetime, accepted: int = 2) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S.%f}Z gpu1 python3[4242]: {step(n, accepted)}"


def now() -> datetime:
    return datetime.now(timezone.utc)


class Following:
    """A watch of a stream, moved on until something holds."""

    def __init__(self, stream: followed.Gathered, **keywords: Any) -> None:
        self.stream = stream
        self.watch = Watch(start_reading(stream, on_error="skip", **keywords))
        self.arrivals = Arrivals(self.watch.reading)
        self.steps = 0.0

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done() and time.monotonic() < deadline and not self.arrivals.ended:
            new = self.arrivals.within(0.1)
            if new:
                basis, fresh = self.watch.take(new, boot_clock())
                self.steps += float(basis.row_steps[fresh].sum())
        assert done(), self.steps

    def until_steps(self, count: int) -> None:
        self.until(lambda: self.steps >= count)
        assert self.steps == count


@pytest.fixture
def follow() -> Iterator[Callable[..., Following]]:
    made: list[Following] = []

    def start(stream: followed.Gathered, **keywords: Any) -> Following:
        made.append(Following(stream, **keywords))
        return made[-1]

    yield start
    for one in made:
        one.stream.close()


def write(path: Path, first: int, count: int) -> None:
    with path.open("a") as file:
        file.writelines(stamped(n, now() + timedelta(milliseconds=n % 10)) for n in range(first, first + count))


# -- files -----------------------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_yet_grows_is_rotated_and_is_cut_gives_each_step_once(
    tmp_path: Path, follow: Callable[..., Following]
) -> None:
    log = tmp_path / "server.log"
    one = follow(followed.follow_files([str(log)]))
    write(log, 0, 10)
    one.until_steps(10)
    write(log, 10, 5)
    one.until_steps(15)
    log.rename(tmp_path / "server.log.1")  # logrotate's way: another inode under the name
    write(log, 15, 7)
    one.until_steps(22)
    os.truncate(log, 0)  # and its copytruncate
    one.until(lambda: True)
    time.sleep(1.5)  # tail looks at the size once a second
    write(log, 22, 3)
    one.until_steps(25)


def test_a_line_that_is_written_in_two_pieces_is_one_line(tmp_path: Path, follow: Callable[..., Following]) -> None:
    log = tmp_path / "server.log"
    write(log, 0, 3)
    one = follow(followed.follow_files([str(log)]))
    one.until_steps(3)
    line = stamped(3, now())
    with log.open("a") as file:
        file.write(line[:60])
        file.flush()
        time.sleep(1.2)
        file.write(line[60:] + stamped(4, now()))
    one.until_steps(5)
    assert one.watch.reading.coverage.broken == []


def test_old_lines_of_a_file_are_the_past_and_no_clock_that_was_set(tmp_path: Path, follow: Callable[..., Following]) -> None:
    log = tmp_path / "server.log"
    begun = now() - timedelta(minutes=10)
    log.write_text("".join(stamped(n, begun + timedelta(minutes=n)) for n in range(11)))  # the last is of now
    one = follow(followed.follow_files([str(log)]))
    one.until_steps(11)
    assert not [what for _, what in one.watch.events if "clock" in what]
    spans = one.watch.snapshot(boot_clock()).spans
    assert spans["15 min"].steps == 11
    assert spans["1 min"].steps < 4


def test_windows_that_are_logged_after_the_clock_was_set_back_are_counted() -> None:
    def batch(at: datetime, tokens: int) -> str:
        return (
            f"{at:%Y-%m-%dT%H:%M:%S.%f}Z gpu1 python3[4242]: [{at:%Y-%m-%d %H:%M:%S} TP0] Decode batch. #running-req: 1, #token: {tokens}, "
            "token usage: 0.01, accept len: 3.00, accept rate: 0.5, cuda graph: True, gen throughput (token/s): 100.0, #queue-req: 0, \n"
        )

    at = datetime(2026, 11, 1, 12, tzinfo=timezone.utc)
    before = [batch(at + timedelta(seconds=i), 1000 + 3 * i) for i in range(10)]
    after = [batch(at - timedelta(hours=1) + timedelta(seconds=i), 1030 + 3 * i) for i in range(10)]
    rows, counted = FreshRows(), []
    with tempfile.TemporaryDirectory() as folder:
        for i, text in enumerate((before, after)):
            path = Path(folder) / f"{i}.log"
            path.write_text("".join(text))
            _, fresh = rows.feed(list(start_reading([path], on_error="skip")))
            counted.append(int(np.sum(fresh)))
    assert counted[1] == counted[0] > 0


# -- a journal -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def journald() -> Iterator[Journald]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        made = Journald(Path(folder) / "root")
        yield made
        made.stop()


def place(journald: Journald) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := list(journald.folder.glob("*/system.journal"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return str(found[0].parent)


@pytest.mark.journald
def test_an_alert_is_an_entry_of_the_journal_with_its_rule_and_numbers(journald: Journald) -> None:
    (journald.root / "run/systemd/journal").symlink_to("journal.t")
    program = (
        "from ddtree_metrics.live.alerts import Alert\n"
        "from ddtree_metrics.live.journal_entries import send\n"
        "print(send([Alert('nothing_accepted', 'no draft was accepted in 200 steps in a row', {'steps': 200.0})], ['lines_lost']))\n"
    )
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", f'mount --bind "{journald.root}/run" /run && exec "$0" -c "$1"']
    said = subprocess.run([*command, sys.executable, program], capture_output=True, text=True, check=True)
    assert said.stdout == "\n"  # nothing kept it from being written
    journald.synced(2, "SYSLOG_IDENTIFIER=ddtree-logs")
    shown = subprocess.run(
        ["journalctl", f"-D{place(journald)}", "-o", "json", "MESSAGE_ID=7d1f0c6b6a0f4b0f9a4fd2f6b1c3d8e5"],
        capture_output=True,
        text=True,
        check=True,
    )
    begins, ends = map(json.loads, shown.stdout.splitlines())
    assert begins["MESSAGE"] == "ddtree alert: no draft was accepted in 200 steps in a row"
    assert (begins["DDTREE_ALERT"], begins["DDTREE_STATE"], begins["DDTREE_STEPS"], begins["PRIORITY"]) == (
        "nothing_accepted",
        "begins",
        "200",
        "4",
    )
    assert (ends["DDTREE_ALERT"], ends["DDTREE_STATE"]) == ("lines_lost", "ends")


def test_a_journal_that_cannot_be_followed_says_what_journalctl_says(tmp_path: Path, follow: Callable[..., Following]) -> None:
    stream = followed.follow_journal(read_options(files=str(tmp_path / "none.journal")), 0)
    one = follow(stream)
    with pytest.raises(SourceError, match="journalctl ended"):
        one.until(lambda: False)


# -- the command -------------------------------------------------------------------------------------------------------------------------

COMMAND = [sys.executable, "-m", "ddtree_metrics", "watch"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_the_screen_gives_the_terminal_back_and_no_child_stays(tmp_path: Path, number: int, code: int) -> None:
    log = tmp_path / "server.log"
    write(log, 0, 30)
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [*COMMAND, str(log)], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    )
    os.close(theirs)
    shown = drain(ours, lambda text: b"tok/step" in text)
    tail = subprocess.run(["pgrep", "-P", str(child.pid)], capture_output=True, text=True, check=True).stdout.split()
    child.send_signal(number)
    shown += drain(ours, lambda _: child.poll() is not None)
    assert child.wait(PATIENCE_S) == code
    assert child.stderr is not None
    assert b"Traceback" not in child.stderr.read()
    # the alternate screen is entered and left, and the cursor is shown again
    assert shown.index(b"\x1b[?1049h") < shown.rindex(b"\x1b[?1049l")
    assert shown.rindex(b"\x1b[?25l") < shown.rindex(b"\x1b[?25h")
    assert tail
    assert not any(Path(f"/proc/{pid}").exists() for pid in tail)


def drain(fd: int, done: Callable[[bytes], bool]) -> bytes:
    """Read from a terminal until something holds."""
    text, deadline = b"", time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if select.select([fd], [], [], 0.2)[0]:
            try:
                text += os.read(fd, 65536)
            except OSError:  # nobody has it open any more
                return text
        elif done(text):
            return text
    pytest.fail(f"it did not come: {text!r}")


def test_once_has_exit_code_one_where_an_alert_holds_and_zero_where_none_does(tmp_path: Path) -> None:
    begun = now() - timedelta(minutes=1)
    for name, accepted in (("good", 2), ("bad", 0)):
        text = "".join(stamped(n, begun + timedelta(milliseconds=30 * n), accepted) for n in range(250))
        (tmp_path / f"{name}.log").write_text(text)
    codes = {}
    for name in ("good", "bad"):
        done = subprocess.run([*COMMAND, str(tmp_path / f"{name}.log"), "--once", "--alert"], capture_output=True, text=True, check=False)
        codes[name] = done.returncode
    assert codes == {"good": 0, "bad": 1}
    assert "ALERT no draft was accepted in 250 steps in a row" in done.stdout


def test_a_pipe_that_ends_ends_it_and_json_is_a_line_a_time() -> None:
    begun = now()
    text = "".join(stamped(n, begun + timedelta(milliseconds=20 * n)) for n in range(40))
    done = subprocess.run([*COMMAND, "-", "--json"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["schema_version"] == 1
    # 40 steps of 3 tokens, 20 ms apart
    assert last["spans"]["15 min"]["tokens"] == 3.0
    assert last["spans"]["15 min"]["step_ms"] == pytest.approx(20.0)
    assert last["bins"][0]["context"] == "unknown"
    assert "context is unknown" in last["hidden"]
