"""Renders simulated runs as log files: a journal's export text, a plain log file, and the server's rows of finished requests."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import numpy as np

from tests.worlds.engine import RunLog
from tests.worlds.lines import SCHEDULER, Form, Line, lines_of, request_row, unit_command

UNIT = "sglang-target.service"
SUPPRESSED_ID = "a596d6fe7bfa4994828e72309e95d61e"
MACHINE = "0123456789abcdef0123456789abcdef"
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class RateLimit:
    """What a journal drops: beyond `burst` lines in `interval_s` seconds, the rest of the interval."""

    burst: int
    interval_s: float


def stamp(epoch_us: int, milliseconds: bool) -> str:
    """Return the local time of a server whose local time is UTC."""
    at = _EPOCH + timedelta(microseconds=epoch_us)
    text = at.strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{at.microsecond // 1000:03d}" if milliseconds else text


def iso(epoch_us: int) -> str:
    """Return a time to the second with its offset, for windows asked in words."""
    return (_EPOCH + timedelta(microseconds=epoch_us // 1_000_000 * 1_000_000)).isoformat()


def message(line: Line, epoch_us: int, milliseconds: bool) -> str:
    if line.bare:
        return line.body
    rank = " TP0" if line.writer == SCHEDULER else ""
    return f"[{stamp(epoch_us, milliseconds)}{rank}] {line.body}"


def plain(runs: Sequence[RunLog], form: Form, origin_us: int, milliseconds: bool = True) -> bytes:
    """Return a log file as the server itself writes it, stamped with `SGLANG_LOG_MS`."""
    out: list[str] = []
    for run in runs:
        for line in lines_of(run, form, origin_us / 1e6):
            out.append(message(line, origin_us + round(line.at * 1e6), milliseconds))
    return ("\n".join(out) + "\n").encode()


def _field(name: str, value: bytes) -> bytes:
    """Return one field; what is not plain text is length-prefixed, as journalctl does."""
    if _CONTROL.search(value) is None:
        return name.encode() + b"=" + value + b"\n"
    return name.encode() + b"\n" + len(value).to_bytes(8, "little") + value + b"\n"


def _fields(values: dict[str, str]) -> bytes:
    return b"".join(_field(name, value.encode()) for name, value in values.items())


class _Journal:
    """Entries of one boot, with both clocks."""

    def __init__(self, origin_us: int, seed: int) -> None:
        rng = np.random.default_rng([seed, 78])
        self._rng = rng
        self._boot = rng.bytes(16).hex()
        self._sequence = rng.bytes(16).hex()
        self._origin = origin_us
        self._behind = origin_us - int(rng.integers(3_600_000_000, 900_000_000_000))
        self._number = int(rng.integers(3, 5000))
        self._last = 0
        self.out: list[bytes] = []

    def accept(self, at: float) -> int:
        """Return when the journal reads a line written at a time: a little later, never out of order."""
        delay = 0.00035 * float(np.exp(0.7 * self._rng.standard_normal()))
        self._last = max(self._last, self._origin + round((at + delay) * 1e6))
        return self._last

    def entry(self, realtime: int, fixed: bytes, text: str) -> None:
        mono = realtime - self._behind
        self._number += 1
        body = text.encode()
        check = zlib.crc32(body) << 32 | zlib.crc32(body[::-1])
        head = (
            f"__CURSOR=s={self._sequence};i={self._number:x};b={self._boot};m={mono:x};t={realtime:x};x={check:x}\n"
            f"__REALTIME_TIMESTAMP={realtime}\n__MONOTONIC_TIMESTAMP={mono}\n_BOOT_ID={self._boot}\n"
        )
        self.out.append(head.encode() + fixed + _field("MESSAGE", body) + b"\n")


def export(runs: Sequence[RunLog], form: Form, origin_us: int, seed: int, limit: RateLimit | None = None) -> bytes:
    """Return the text of `journalctl -o export` for the unit of the server."""
    journal = _Journal(origin_us, seed)
    pids = np.random.default_rng([seed, 79])
    opened, count, dropped = -1e9, 0, 0
    for run in runs:
        main = int(pids.integers(2000, 30000))
        scheduler = main + int(pids.integers(60, 200))
        stream = pids.bytes(16).hex()
        command = unit_command(run, form)
        common = {
            "PRIORITY": "6",
            "_UID": "0",
            "_GID": "0",
            "_CAP_EFFECTIVE": "1fffeffffff",
            "_MACHINE_ID": MACHINE,
            "_HOSTNAME": "gpu-01",
            "_RUNTIME_SCOPE": "system",
        }
        sender = {"_TRANSPORT": "stdout", "_STREAM_ID": stream, "SYSLOG_IDENTIFIER": "sglang-target", "_SYSTEMD_UNIT": UNIT}
        engine = _fields(common | sender | {"_PID": str(scheduler), "_COMM": "sglang::schedul", "_CMDLINE": "sglang::scheduler"})
        server = _fields(common | sender | {"_PID": str(main), "_COMM": "python", "_CMDLINE": command})
        for line in lines_of(run, form, origin_us / 1e6):
            if limit is not None:
                if line.at - opened > limit.interval_s:
                    opened, count = line.at, 0
                    if dropped:
                        fixed = _fields(common | _notice(dropped, scheduler))
                        journal.entry(journal.accept(line.at), fixed, f"Suppressed {dropped} messages from {UNIT}")
                        dropped = 0
                count += 1
                if count > limit.burst:
                    dropped += 1
                    continue
            text = message(line, origin_us + round(line.at * 1e6), False)
            journal.entry(journal.accept(line.at), engine if line.writer == SCHEDULER else server, text)
    return b"".join(journal.out)


def _notice(dropped: int, pid: int) -> dict[str, str]:
    return {
        "_TRANSPORT": "driver",
        "_PID": "312",
        "_COMM": "systemd-journal",
        "SYSLOG_IDENTIFIER": "systemd-journald",
        "_SYSTEMD_UNIT": "systemd-journald.service",
        "MESSAGE_ID": SUPPRESSED_ID,
        "OBJECT_PID": str(pid),
        "OBJECT_COMM": "sglang::schedul",
        "OBJECT_SYSTEMD_UNIT": UNIT,
        "N_DROPPED": str(dropped),
    }


def request_rows(runs: Sequence[RunLog], origin_us: int) -> bytes:
    """Return one JSON row per finished request, in order of finishing."""
    rows = [(request.finished_at, request_row(request, origin_us / 1e6, run)) for run in runs for request in run.requests]
    return ("\n".join(row for _, row in sorted(rows)) + "\n").encode()
