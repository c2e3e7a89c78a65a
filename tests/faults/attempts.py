"""Run ``ddtree-logs`` once, in a child process: its end, its signals, limits, memory and left-overs are seen from outside."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib
import json
import os
import pkgutil
import re
import resource
import select
import shutil
import signal
import sys
import traceback
import unicodedata
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CODES = {0, 1, 2, 3, 4, 5, 6, 130, 141, 143}
GIGABYTE = 1 << 30
_SAID = re.compile(
    r"broken|damag|corrupt|cut|missing|incomplete|not be read|left out|lost|truncat|hole|unreadable|twice|checksum|not a|no such", re.I
)


@dataclass
class Outcome:
    """What some inputs did, in the columns of the table."""

    tried: int = 1
    crashed: int = 0
    lost: int = 0
    altered: int = 0
    hung: int = 0
    leaked: int = 0
    left_over: int = 0
    why: list[str] = field(default_factory=list)

    def note(self, column: str, why: str) -> None:
        """Count a fault."""
        setattr(self, column, getattr(self, column) + 1)
        self.why.append(f"{column}: {why}")

    def __iadd__(self, other: Outcome) -> Outcome:
        for name in ("tried", *COLUMNS):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.why += other.why
        return self


COLUMNS = ("crashed", "lost", "altered", "hung", "leaked", "left_over")


@dataclass
class Attempt:
    """How a run of the program ended."""

    code: int | None
    signal: int | None
    out: bytes
    err: str
    peak: int
    hung: bool
    killed: bool

    @property
    def said(self) -> bool:
        """Whether it told the user that something is not whole."""
        return self.code not in (0, None) or bool(_SAID.search(self.err))


def load_everything() -> None:
    """Import all modules once, so that a child need not."""
    import ddtree_metrics

    for module in pkgutil.walk_packages(ddtree_metrics.__path__, "ddtree_metrics."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError, SystemExit):  # some are run, not imported
                importlib.import_module(module.name)
    for name in ("pyarrow.parquet", "pyarrow.dataset", "pyarrow.csv", "pyarrow.compute", "systemd.journal"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def attempt(
    arguments: Iterable[str | bytes],
    place: Path,
    *,
    stdin: int | None = None,
    stdout: str | None = None,
    limits: dict[int, int] | None = None,
    env: dict[str, str] | None = None,
    close: tuple[int, ...] = (),
    during: Callable[[int], None] | None = None,
    seconds: float = 30.0,
) -> Attempt:
    """Run ``ddtree-logs ARGUMENTS`` in the folder ``place``.

    ``close`` are numbers of files that the child is not to hold open. ``during`` is called with the child's number while it runs,
    and may do to it or to its files what it likes. A child that takes longer than
    ``seconds`` hangs, and is ended.
    """
    streams = place.parent / f"{place.name}.streams"
    streams.mkdir(exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    heard, said = os.pipe()  # no file: its size may be limited
    fcntl.fcntl(heard, fcntl.F_SETPIPE_SZ, 1 << 20)
    ready, started = os.pipe()
    child = os.fork()
    if child == 0:
        _become([os.fsdecode(a) for a in arguments], place, streams, (said, started), stdin, stdout, limits or {}, env or {}, close)
    os.close(said)
    os.close(started)
    os.read(ready, 1)  # it has begun, or has ended
    os.close(ready)
    killed, hung = False, False
    if during is not None:
        during(child)
        killed = True
    handle = os.pidfd_open(child)
    if not select.select([handle], [], [], seconds)[0]:
        hung = True
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    os.close(handle)
    out = b"" if stdout else (streams / "out").read_bytes()
    with open(heard, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
        err = file.read()
    shutil.rmtree(streams)
    exited = os.WIFEXITED(status)
    return Attempt(
        os.WEXITSTATUS(status) if exited else None,
        None if exited else os.WTERMSIG(status),
        out,
        err,
        usage.ru_maxrss * 1024,
        hung,
        killed,
    )


def _become(
    arguments: list[str],
    place: Path,
    streams: Path,
    pipes: tuple[int, int],
    stdin: int | None,
    stdout: str | None,
    limits: dict[int, int],
    env: dict[str, str],
    close: tuple[int, ...],
) -> None:
    """Be the program from here on; never returns."""
    code = 99
    try:
        # what the parent would do at its own end is not the child's
        atexit._clear()
        weakref.finalize._registry.clear()  # type: ignore[attr-defined]
        os.setsid()
        os.chdir(place)
        os.environ.update({"TMPDIR": str(place), "NO_COLOR": "1", "HOME": str(place), **env})
        import tempfile

        tempfile.tempdir = None
        os.dup2(stdin if stdin is not None else os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(stdout or streams / "out", os.O_WRONLY | os.O_CREAT, 0o644), 1)
        said, started = pipes
        os.dup2(said, 2)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in close:
            os.close(number)
        from ddtree_metrics.cli import main

        for name, value in limits.items():
            resource.setrlimit(name, (value, value))

        sys.argv = ["ddtree-logs", *arguments]
        os.write(started, b"!")
        os.close(started)
        try:
            main(arguments, prog_name="ddtree-logs")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
        except OSError as error:
            sys.stderr.write(f"Exception ignored on flush: {error}\n")
            code = 120  # what Python itself does
    except BaseException:
        traceback.print_exc()
        code = 99
    finally:
        os._exit(code)


def basics(made: Attempt, outcome: Outcome, recipe: str, *, memory: int = GIGABYTE) -> bool:
    """Count what no input may do: crash, hang, take all memory, send the terminal orders. Return whether it came to an end by itself."""
    last = made.err.strip().splitlines()[-1][:300] if made.err.strip() else ""
    if made.hung:
        outcome.note("hung", recipe)
    elif made.signal is not None and not made.killed:
        outcome.note("crashed", f"{recipe}: signal {made.signal}")
    elif made.code is not None and (made.code not in CODES or "Traceback (most recent" in made.err or "Exception ignored" in made.err):
        outcome.note("crashed", f"{recipe}: exit {made.code}, {last}")
    elif "this should not have happened" in made.err:
        outcome.note("crashed", f"{recipe}: the last resort answered: {last}")
    if made.peak > memory:
        outcome.note("crashed", f"{recipe}: took {made.peak >> 20} MB")
    if obeyed := [c for c in made.err + made.out.decode("utf-8", "replace") if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cf")]:
        outcome.note("leaked", f"{recipe}: {sorted(set(obeyed))} reach the terminal")
    return not made.hung and made.signal is None


def left_behind(place: Path, known: Iterable[str], outcome: Outcome, recipe: str) -> None:
    """Count files that nobody asked for."""
    names = set(known)
    odd = [str(p.relative_to(place)) for p in place.rglob("*") if str(p.relative_to(place)) not in names]
    odd = [name for name in odd if not name.startswith((".cache", ".config"))]
    if odd:
        outcome.note("left_over", f"{recipe}: {odd[:4]}")


def exported(path: Path, columns: tuple[str, ...]) -> Counter[tuple[Any, ...]]:
    """Read an export in JSON lines without any of the program's own code."""
    rows: Counter[tuple[Any, ...]] = Counter()
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            row = json.loads(line)
            rows[tuple(tuple(v) if isinstance(v := row.get(name), list) else v for name in columns)] += 1
    return rows


def judge(expected: Counter[Any], got: Counter[Any], outcome: Outcome, recipe: str, *, said: bool = False) -> None:
    """Count rows that are missing, and rows that nobody wrote, unless the user was told that the input is not whole."""
    lost, made_up = expected - got, got - expected
    if lost and not said:
        outcome.note("lost", f"{recipe}: {sum(lost.values())} of {sum(expected.values())} rows, {next(iter(lost))}")
    if made_up and not said:
        outcome.note("altered", f"{recipe}: {sum(made_up.values())} rows, {next(iter(made_up))}")
