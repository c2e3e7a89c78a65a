"""Real ``.journal`` files for tests, built from export text by systemd-journal-remote; and a live journald in its own namespaces."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

BOOT = "1" * 32
MACHINE = "2" * 32
STREAM = "a" * 32
T0 = 1_777_982_401_000_000  # 2026-05-05 12:00:01 UTC
SUPPRESSED = "a596d6fe7bfa4994828e72309e95d61e"


def field(name: str, value: bytes) -> bytes:
    """One field of the export format: text if it is plain, else with its length."""
    try:
        plain = all(c >= " " or c == "\t" for c in value.decode())
    except UnicodeDecodeError:
        plain = False
    if plain:
        return name.encode() + b"=" + value + b"\n"
    return name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"


def entry(
    at_us: int = T0,
    message: bytes | str | None = b"hello",
    *,
    mono: int | None = None,
    boot: str = BOOT,
    unit: str | None = "sglang-kimi.service",
    pid: int = 4242,
    ident: str = "python3",
    stream: str | None = STREAM,
    **more: str | bytes,
) -> bytes:
    """One entry of export text, as journald would have stored it."""
    fields: list[tuple[str, str | bytes]] = [
        ("PRIORITY", "6"),
        ("_MACHINE_ID", MACHINE),
        ("_HOSTNAME", "gpu1"),
        ("SYSLOG_IDENTIFIER", ident),
    ]
    fields += [("_PID", str(pid)), ("_TRANSPORT", "stdout" if stream else "journal")]
    if unit is not None:
        fields.append(("_SYSTEMD_UNIT", unit))
    if stream is not None:
        fields.append(("_STREAM_ID", stream))
    fields += list(more.items())
    if message is not None:
        fields.append(("MESSAGE", message))
    mono = at_us - T0 + 5_000_000 if mono is None else mono
    head = f"__REALTIME_TIMESTAMP={at_us}\n__MONOTONIC_TIMESTAMP={mono}\n_BOOT_ID={boot}\n".encode()
    return head + b"".join(field(k, v if isinstance(v, bytes) else v.encode()) for k, v in fields) + b"\n"


def suppressed(at_us: int, lost: int, unit: str = "sglang-kimi.service", message: bool = True) -> bytes:
    """Journald's own notice that it dropped lines of a unit."""
    return entry(
        at_us,
        f"Suppressed {lost} messages from {unit}" if message else None,
        unit="systemd-journald.service",
        pid=300,
        ident="systemd-journald",
        stream=None,
        MESSAGE_ID=SUPPRESSED,
        N_DROPPED=str(lost),
        OBJECT_SYSTEMD_UNIT=unit,
        OBJECT_PID="4242",
    )


def remote() -> str:
    """Find systemd-journal-remote, which turns export text into journal files."""
    for folder in ("/lib/systemd", "/usr/lib/systemd"):
        if (Path(folder) / "systemd-journal-remote").exists():
            return f"{folder}/systemd-journal-remote"
    found = shutil.which("systemd-journal-remote")
    if found is None:
        pytest.fail("these tests build real journal files: apt-get install -y systemd-journal-remote")
    return found


def build(path: Path, export: bytes, *, keyed: bool = True, compact: bool = True) -> Path:
    """Build a journal file from export text.

    Parameters
    ----------
    path : Path
        Where it goes; the name ends in ``.journal``.
    export : bytes
        The entries.
    keyed, compact : bool
        Whether the file has keyed hashes, and the compact layout of systemd 252 and later.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "SYSTEMD_JOURNAL_KEYED_HASH": str(int(keyed)), "SYSTEMD_JOURNAL_COMPACT": str(int(compact))}
    source = path.with_suffix(".export")
    source.write_bytes(export)
    done = subprocess.run([remote(), f"--output={path}", str(source)], env=env, capture_output=True, text=True, check=False)
    source.unlink()
    assert done.returncode == 0, done.stderr
    return path


def need_root() -> None:
    """Say what to do where the tests of a live journald cannot run."""
    if os.geteuid() != 0:
        pytest.fail(
            "tests marked journald start a systemd-journald in its own mount namespace: run them as root (sudo -E pytest -m journald)"
        )


class Journald:
    """A systemd-journald of its own, in its own mount namespace, for namespace ``t``; its files can be seen from here.

    ``/run`` and ``/var/log/journal`` of the new mount namespace are folders of ``root``, so that nothing of the machine is touched.
    """

    def __init__(self, root: Path, config: str = "") -> None:
        need_root()
        self.root = root
        for name in ("run/log/journal", "run/systemd/journal.t", "run/systemd/journald@t.conf.d"):
            (root / name).mkdir(parents=True)
        (root / "run/systemd/journald@t.conf.d/t.conf").write_text(f"[Journal]\nStorage=volatile\n{config}")
        daemon = next((d for d in ("/lib/systemd/systemd-journald", "/usr/lib/systemd/systemd-journald") if Path(d).exists()), None)
        if daemon is None:
            pytest.fail("systemd-journald is missing: apt-get install -y systemd")
        self._child = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", f'mount --bind "{root}/run" /run && exec {daemon} t'],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.socket = root / "run/systemd/journal.t/stdout"
        self._wait(self.socket.exists, "its socket did not come up; are mount namespaces allowed here?")

    def _wait(self, done: object, failed: str) -> None:
        import time

        assert callable(done)
        for _ in range(400):
            if done():
                return
            if self._child.poll() is not None:
                break
            time.sleep(0.02)
        pytest.fail(f"systemd-journald: {failed}")

    @property
    def folder(self) -> Path:
        """The folder that its journal files are in, one subfolder a machine."""
        return self.root / "run/log/journal"

    def stream(self, unit: str, ident: str = "python3") -> object:
        """Open a stdout stream as systemd does for a unit; what is written to it is logged."""
        import socket
        import time

        deadline = time.monotonic() + 20  # the socket is there before journald listens, on a busy machine long before
        while True:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                made.connect(str(self.socket))
                break
            except ConnectionRefusedError:
                made.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        made.sendall(f"{ident}\n{unit}\n6\n0\n0\n0\n0\n".encode())
        return made

    def synced(self, count: int, match: str) -> None:
        """Wait until that many entries with a match are in the journal."""
        from systemd import journal

        def there() -> bool:
            files = [str(p) for p in self.folder.rglob("*.journal")]
            if not files:
                return False
            reader = journal.Reader(files=files)
            reader.add_match(match)
            found = 0
            while reader._next():
                found += 1
            reader.close()
            return found >= count

        self._wait(there, f"{count} entries with {match} did not arrive")

    def stop(self) -> None:
        """End it."""
        self._child.terminate()
        self._child.wait(10)
