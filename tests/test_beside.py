"""What else the journal says around a change: signals, who wrote more than usual, and never why."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import ddtree_metrics as ddt
from ddtree_metrics.beside.rate_ratios import holm, rate_ratio
from ddtree_metrics.beside.signals import SIGNALS, signal_of
from ddtree_metrics.beside.surroundings import around, other_stretches, said_of
from ddtree_metrics.beside.xid import XID
from ddtree_metrics.diagnosis.text import SCREEN, format_diagnosis
from ddtree_metrics.report import render_report
from ddtree_metrics.sources import JournalPlace
from ddtree_metrics.sources.other_lines import LinesOfOthers, OtherLine, line_of
from tests import journals
from tests.captures import UNIT, journal_export, unpacked

S = 1_000_000
RESTART = 1_795_965_557 * S
"""15:19:17 on 2026-11-29, when capture A's second server started."""

OTHERS = (
    (
        -15,
        "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        {"_TRANSPORT": "kernel", "PRIORITY": "3"},
        None,
        "kernel",
    ),
    (-37, "Starting apt-daily-upgrade.service - Daily apt upgrade...", {}, "init.scope", "systemd"),
    (-22, "Accepted publickey for root from 192.0.2.7 port 5 ssh2: api_key=sk-abcdefghijklmnopqrstuvwx", {}, "ssh.service", "sshd"),
    (-200, "Out of memory: Killed process 7 (other) total-vm:1kB", {"_TRANSPORT": "kernel"}, None, "kernel"),  # too early
)


def with_others(extra: list[tuple[int, str, dict[str, str], str | None, str]] | None = None) -> bytes:
    """Capture A with lines of others around its restart."""
    entries = [
        (int(re.findall(rb"__REALTIME_TIMESTAMP=(\d+)", e)[0]), e + b"\n\n")
        for e in unpacked(journal_export("A")).split(b"\n\n")
        if b"__REALTIME" in e
    ]
    first = entries[0]
    mono = int(re.findall(rb"__MONOTONIC_TIMESTAMP=(\d+)", first[1])[0])
    boot = re.findall(rb"_BOOT_ID=(\w+)", first[1])[0].decode()
    for after, message, more, unit, ident in (*OTHERS, *(extra or ())):
        at = RESTART + after * S
        made = journals.entry(
            at, message, mono=mono + at - first[0], boot=boot, unit=unit, ident=ident, stream=None, _HOSTNAME="gpu-01", **more
        )
        entries.append((at, made))
    return b"".join(text for _, text in sorted(entries, key=lambda e: e[0]))


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return journals.build(tmp_path_factory.mktemp("beside") / "A.journal", with_others())


@pytest.fixture(params=["journal", "export"])
def log(request: pytest.FixtureRequest, journal: Path, tmp_path: Path) -> ddt.Log:
    if request.param == "journal":
        return ddt.read(journal)
    (tmp_path / "A.export").write_bytes(with_others())
    return ddt.read(tmp_path / "A.export")


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda s: s.name)
def test_each_signal_knows_its_samples_and_none_of_its_look_alikes(signal) -> None:  # type: ignore[no-untyped-def]
    assert signal.samples
    for who in signal.who[:1]:
        for sample in signal.samples:
            found = signal_of("systemd" if "of this unit" in sample else who, sample)
            assert found is not None, sample
            assert found[0] is signal
    for who in signal.who:
        for line in signal.look_alikes:
            assert signal_of(who, line) is None, line


def test_what_a_server_or_a_stranger_prints_is_no_line_of_the_kernel() -> None:
    assert signal_of("python3", "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.") is None


def test_a_number_that_is_not_in_the_catalogue_is_told_as_a_number() -> None:
    found = signal_of("kernel", "NVRM: Xid (PCI:0000:65:00): 999, pid=1")
    assert found is not None
    assert found[1] == "NVIDIA Xid 999 (a number that is not in the catalogue used here) of GPU 0000:65:00"


def test_signals_of_the_minutes_around_are_listed_and_the_servers_own_lines_and_others_times_are_not(log: ddt.Log) -> None:
    made = log.beside("15:19:17", "2m")
    assert made["signal"].tolist() == ["unit", "login", "xid"]
    assert made["said"].tolist() == [
        "apt-daily-upgrade.service starting (update)",
        "login over ssh",
        "NVIDIA Xid 79 (GPU has fallen off the bus) of GPU 0000:65:00",
    ]
    assert made.attrs["lines"] == 3
    assert not (made["unit"] == UNIT).any()
    assert made["message"].eq("").all()


def test_messages_are_shown_where_they_are_asked_for_redacted_and_cut(log: ddt.Log) -> None:
    made = log.beside("15:19:17", messages=True)
    assert made["message"].str.len().max() <= 120
    assert "sk-abc" not in " ".join(made["message"])
    assert "fallen off the bus" in " ".join(made["message"])


def test_the_screen_says_beside_and_never_because(log: ddt.Log) -> None:
    found = ddt.diagnose(log)
    text = format_diagnosis(found, 80, shell=True)
    assert len(text.splitlines()) <= SCREEN
    said = " ".join(text.split())
    assert "beside 15:19:02 NVIDIA Xid 79 (GPU has fallen off the bus) of GPU 0000:65:00" in said
    assert "likely cause --speculative-draft-model-path" in said
    full = " ".join(format_diagnosis(found, 80, full=True).split())
    assert "no line says that it is because of it" in full
    assert "login over ssh" in full


def test_the_page_marks_them_and_keeps_them_apart_from_the_cause(log: ddt.Log) -> None:
    page = render_report(log)
    why = re.findall(r'<p class="why">(.*?)</p>', page, re.DOTALL)
    assert any("Likely cause" in p and "Xid" not in p for p in why)
    assert any("Beside:" in p and "Xid 79" in p for p in why)
    assert "line of another program (" in page
    section = re.findall(r'<h2 id="beside">.*?</section>', page, re.DOTALL)
    assert len(section) == 1
    assert "GPU has fallen off the bus" in section[0]
    assert "pid=" not in page
    assert "sk-abc" not in page


def test_json_has_no_message_of_others_unless_it_is_asked_for(log: ddt.Log) -> None:
    for messages in (False, True):
        made = json.dumps(ddt.diagnose(log, messages=messages).to_dict())
        assert ("pid='<unknown>'" in made) == messages
        assert "sk-abc" not in made


def test_a_log_of_the_server_alone_says_that_it_has_no_others(tmp_path: Path) -> None:
    line = "[2026-06-01 12:00:00,000 TP0] Decode batch, #running-req: 1, #token: 70, accept len: 3.00, "
    line += "gen throughput (token/s): 71.38, #queue-req: 0\n"
    (tmp_path / "x.log").write_text(line * 2)
    made = ddt.read(tmp_path / "x.log", tz="UTC").beside("12:00")
    assert made.empty
    assert "of the server alone" in made.attrs["unknown"][0]


def test_a_signal_has_one_meaning_whoever_of_its_writers_writes_it() -> None:
    assert len({signal.name for signal in SIGNALS}) == len(SIGNALS)
    said = [signal_of(s.who[0], line) for s in SIGNALS for line in s.samples if not line.startswith("Killed /")]
    assert all(found is not None and "because" not in found[1] for found in said)


def test_numbers_of_the_driver_have_the_meanings_of_the_published_catalogue() -> None:
    # docs.nvidia.com/deploy/xid-errors: 48 double-bit ECC, 63 row remapping recorded, 74 NVLink, 79 off the bus, 94 and 95 contained and
    # uncontained ECC errors, 119 GSP RPC timeout, 140 unrecovered ECC error, 154 recovery action changed
    words = {
        48: "double",
        63: "recording event",
        74: "NVLink",
        79: "bus",
        94: "contained",
        95: "uncontained",
        119: "GSP",
        140: "unrecovered",
    }
    assert all(word in XID[number] for number, word in words.items())
    assert "recovery action" in XID[154]


@pytest.mark.parametrize("older", ["Starting Daily apt upgrade and clean activities...", "Starting apt-daily-upgrade.service - Daily apt"])
def test_the_unit_is_known_where_systemd_writes_its_description_only(older: str) -> None:
    found = signal_of("systemd", older, "apt-daily-upgrade.service")
    assert found is not None
    assert found[1] == "apt-daily-upgrade.service starting (update)"


def test_that_the_server_itself_starts_is_not_beside_it_and_that_it_was_killed_is(tmp_path: Path) -> None:
    more = [
        (-3, f"Stopping {UNIT} - SGLang...", {"UNIT": UNIT}, "init.scope", "systemd"),
        (-2, f"{UNIT}: A process of this unit has been killed by the OOM killer.", {"UNIT": UNIT}, "init.scope", "systemd"),
    ]
    made = ddt.read(journals.build(tmp_path / "x.journal", with_others(more))).beside("15:19:17")
    assert not any("stopping" in said for said in made["said"])
    assert f"out of memory: {UNIT} was killed" in made["said"].tolist()


def test_lines_that_are_no_signal_are_counted_by_unit_and_priority(tmp_path: Path) -> None:
    more = [(-i, f"scraped {i}", {}, "node-exporter.service", "node_exporter") for i in range(1, 4)]
    made = ddt.read(journals.build(tmp_path / "x.journal", with_others(more))).beside("15:19:17")
    counted = made[made["kind"] == "count"]
    assert counted["said"].tolist() == ["node-exporter.service wrote 3 lines"]
    assert counted["count"].tolist() == [3.0]


def test_a_folder_is_read_whole_and_what_may_not_be_read_or_is_damaged_is_named(tmp_path: Path) -> None:
    journals.build(tmp_path / "system.journal", with_others())
    (tmp_path / "system@1.journal").write_bytes(b"LPKSHHRH" + bytes(20))
    with pytest.warns(ddt.DDTreeWarning):
        log = ddt.read(tmp_path)
    made = log.beside("15:19:17")
    assert "xid" in made["signal"].tolist()
    assert any("system@1.journal" in said and "cut" in said for said in made.attrs["unknown"])


def test_files_of_other_users_are_named_to_somebody_who_may_not_read_them(tmp_path: Path) -> None:
    journals.need_root()
    mine = journals.build(tmp_path / "user-65534.journal", with_others())
    theirs = journals.build(tmp_path / "system.journal", with_others())
    mine.chmod(0o644)
    theirs.chmod(0o600)
    others = LinesOfOthers([str(tmp_path)], JournalPlace())
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    os.seteuid(65534)
    try:
        lines = list(others(RESTART - 60 * S, RESTART))
    finally:
        os.seteuid(0)
    assert any("Xid" in line.message for line in lines)
    assert any("system.journal" in said and "may not be read by this user" in said for said in others.unread)


BACKUP = """
import socket, sys
made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
made.connect(sys.argv[1])
made.sendall(b"borg\\nbackup.service\\n6\\n0\\n0\\n0\\n0\\n" + b"creating archive, token=sk-abcdefghijklmnopqrstuvwx\\n" * 12)
sys.stdin.read()
"""


@pytest.mark.journald
def test_a_service_in_a_namespace_has_others_of_it_beside_it() -> None:
    folder = tempfile.TemporaryDirectory()  # other users may look into it, unlike pytest's own
    Path(folder.name).chmod(0o755)
    journald = journals.Journald(Path(folder.name) / "root")
    try:
        step = "[2026-06-01 12:00:00 TP0] Decode batch, #running-req: 1, #token: 70, accept len: 3.00, gen throughput (token/s): 71.38, "
        # journald keeps what it knows of a process: another unit is another process
        command = [sys.executable, "-c", BACKUP, str(journald.socket)]
        with journald.stream(UNIT) as server, subprocess.Popen(command, stdin=subprocess.PIPE) as backup:  # type: ignore[attr-defined]
            for i in range(20):
                server.sendall(f"{step}#queue-req: 0, id: {i}\n".encode())
            journald.synced(12, "_SYSTEMD_UNIT=backup.service")
            journald.synced(20, f"_SYSTEMD_UNIT={UNIT}")
            backup.communicate()
        log = ddt.read_journal(unit=UNIT, directory=journald.folder, namespace="t")
        found = log.around(0, 1 << 60, messages=True)
        assert log._others is not None
        who = [line.who for line in log._others(0, 1 << 60)]
    finally:
        journald.stop()
        folder.cleanup()
    assert who.count("backup.service") == 12
    assert {*who} == {"backup.service", "systemd-journald"}  # what journald itself says when it starts, and nothing of the server
    assert found.lines == len(who)
    assert found.bursts == ()  # there is no other stretch to compare with


# -- more than usual -----------------------------------------------------------------------------------------------------------------


def test_the_ratio_of_two_rates_is_that_of_their_counts_and_its_interval_is_exact() -> None:
    # 30 lines in one stretch, 10 in each of 9 others with no spread: 3 times. Clopper and Pearson for 30 of 120 at 90 %: 0.1862 to 0.3242,
    # odds 0.2288 and 0.4797, times 9 stretches: 2.06 and 4.32. P(X >= 30 | 120, 1/10) is about 2e-6.
    ratio, low, high, p = rate_ratio(30, [10] * 9)
    assert ratio == pytest.approx(3.0)
    assert (low, high) == (pytest.approx(2.06, abs=0.02), pytest.approx(4.32, abs=0.03))
    assert 1e-7 < p < 1e-5


def test_somebody_who_never_wrote_has_a_ratio_without_end_and_an_interval_with_a_beginning() -> None:
    ratio, low, high, p = rate_ratio(12, [0] * 9)
    # the lower end of 12 of 12 at 90 % is 0.05 ** (1 / 12) = 0.7791, odds 3.527, times 9
    assert ratio == math.inf
    assert low == pytest.approx(31.7, abs=0.1)
    assert high == math.inf
    assert p < 1e-10


def test_chances_are_corrected_for_how_many_were_compared() -> None:
    # Holm: 3 * 0.01, 2 * 0.02, 1 * 0.03, each at least the one before
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_stretches_that_tell_what_is_usual_do_not_touch_the_one_asked_about() -> None:
    made = other_stretches(1000, 1100, (0, 10_000))
    assert len(made) == 16
    assert all(high <= 900 or low >= 1200 for low, high in made)
    assert all(a[1] <= b[0] for a, b in pairwise(made))
    assert other_stretches(1000, 1100, (900, 1200)) == []


def day(rate: float, rng: np.random.Generator, more: list[OtherLine] | None = None) -> list[OtherLine]:
    """A day of several units, each in bursts of a few lines at random times."""
    made = list(more or ())
    for unit, share in (("node-exporter.service", 1.0), ("kubelet.service", 3.0), ("dockerd.service", 0.5), ("cron.service", 0.3)):
        for start in rng.uniform(0, 86_400, rng.poisson(86_400 / 60 * rate * share)):
            made += [OtherLine(int((start + i) * S), "gpu-01", unit, unit, 6, "x") for i in range(int(rng.geometric(0.4)))]
    return sorted(made, key=lambda line: line.time_us)


def look(lines: list[OtherLine], at_s: int):  # type: ignore[no-untyped-def]
    return around(
        lambda low, high: (x for x in lines if low <= x.time_us < high),
        (at_s - 120) * S,
        (at_s + 60) * S,
        (0, 86_400 * S),
    )


def test_an_ordinary_day_has_a_burst_in_no_more_than_one_of_twenty_looks() -> None:
    rng = np.random.default_rng(7)
    alarms = looks = 0
    for _ in range(6):
        lines = day(2.0, rng)
        for at in rng.integers(3600, 82_800, 10):
            looks += 1
            alarms += bool(look(lines, int(at)).bursts)
    assert looks == 60
    assert alarms <= 3


def test_a_unit_that_writes_ten_times_its_usual_is_named_with_how_much() -> None:
    rng = np.random.default_rng(8)
    loud = [OtherLine(int((43_200 + i * 0.2) * S), "gpu-01", "backup.service", "borg", 4, "x") for i in range(200)]
    made = look(day(2.0, rng, loud), 43_230)
    assert [b.unit for b in made.bursts] == ["backup.service"]
    assert said_of(made.bursts[0]) == "backup.service wrote 200 warnings, usual are 0.0"


def test_an_entry_without_a_time_or_with_bytes_is_no_trouble() -> None:
    assert line_of({"MESSAGE": "x"}) is None
    assert line_of({"__REALTIME_TIMESTAMP": "1", "MESSAGE": None}) is None
    made = line_of({"__REALTIME_TIMESTAMP": "1", "MESSAGE": [104, 105, 255], "PRIORITY": "x", "SYSLOG_IDENTIFIER": ["a", "b"]})
    assert made is not None
    assert (made.message, made.priority, made.who) == ("hi\ufffd", 6, "a")
