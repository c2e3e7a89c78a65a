"""Real journal files: both ways to read them give the same lines, damage is named, and nothing is lost in silence."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tempfile
import types
from pathlib import Path

import pyarrow as pa
import pytest

from ddtree_metrics import native
from ddtree_metrics.errors import DDTreeWarning, SourceDamaged, SourceNotFound, SourceUnsupported
from ddtree_metrics.sources import JournalPlace, Selection, journal, list_units, open_journal, open_source, open_sources
from ddtree_metrics.times import Window
from tests.journals import BOOT, T0, Journald, build, entry, need_root, suppressed
from tests.test_sources_text import _as_nobody, messages

REAL = Path(__file__).parent.parent / "fixtures" / "real"
BACKENDS = ["systemd", "journalctl"]


def oddities() -> bytes:
    """A journal with everything odd that journald writes."""
    return b"".join(
        [
            entry(T0, b"first"),
            entry(T0 + 1, b"level=info", unit="kubelet.service", ident="kubelet", pid=100, stream="b" * 32),
            entry(T0 + 2, b"not utf-8 \xe9\xff"),
            entry(T0 + 3, b"\x1b[32mINFO\x1b[0m colour"),
            entry(T0 + 4, b"two\nlines"),
            entry(T0 + 5, b"40%\r50%\rdone"),
            entry(T0 + 6, b"y" * 5000),
            entry(T0 + 7, b"z" * 49_152, _LINE_BREAK="line-max"),
            entry(T0 + 7, b"other stream", stream="c" * 32),
            entry(T0 + 7, b"z" * 49_152, _LINE_BREAK="line-max"),
            entry(T0 + 7, b"z" * 100),
            entry(T0 + 8, None),
            entry(T0 + 9, b""),
            entry(T0 + 10, b"a tail", _LINE_BREAK="eof"),
            entry(T0 + 11, b"nul", _LINE_BREAK="nul"),
            suppressed(T0 + 12, 1234),
            suppressed(T0 + 13, 7, message=False),
            entry(T0 + 14, b"Started the server", unit="init.scope", pid=1, ident="systemd", stream=None, UNIT="sglang-kimi.service"),
            entry(T0 + 15, b"from a container", unit="docker.service", ident="docker", stream=None, CONTAINER_NAME="sglang-1"),
            entry(T0 + 16, b"cut ", unit="docker.service", stream=None, CONTAINER_NAME="sglang-1", CONTAINER_PARTIAL_MESSAGE="true"),
            entry(T0 + 16, b"in two", unit="docker.service", stream=None, CONTAINER_NAME="sglang-1"),
            entry(T0 + 17, b"of a user", unit="user@1000.service", pid=500, stream="e" * 32, _SYSTEMD_USER_UNIT="mine.service"),
            entry(T0 + 18, b"no unit", unit=None, ident="lonely", stream=None),
            entry(T0 - 1_000_000, b"the clock was set back"),
            entry(T0 + 19, b"never ends", stream="d" * 32, _LINE_BREAK="line-max"),
            entry(T0 + 60_000_000, b"after a boot", boot="3" * 32, mono=1_000, pid=77),
        ]
    )


def table(place: JournalPlace, backend: str, **how: object):
    source = open_journal(place, backend=backend, **how)  # type: ignore[arg-type]
    batches = list(source.batches())
    return pa.Table.from_batches(batches, schema=batches[0].schema) if batches else None, source.stats


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("compact", [True, False])
def test_both_backends_read_the_same_lines_from_every_layout(keyed: bool, compact: bool, tmp_path):
    path = build(tmp_path / "odd.journal", oddities(), keyed=keyed, compact=compact)
    place = JournalPlace(files=(str(path),))
    for selection in (Selection(), Selection(units=("sglang-kimi.service",)), Selection(units=("sglang-kimi",), containers=("sglang-1",))):
        low, low_stats = table(place, "systemd", selection=selection)
        pipe, pipe_stats = table(place, "journalctl", selection=selection)
        assert low is not None
        assert low.equals(pipe)
        assert low_stats == pipe_stats
    got = table(place, "systemd")[0].column("message").to_pylist()
    assert got == [
        "first",
        "level=info",
        "not utf-8 \ufffd\ufffd",
        "INFO colour",
        "two",
        "lines",
        "40%",
        "50%",
        "done",
        "y" * 5000,
        "other stream",
        "z" * (2 * 49_152 + 100),
        "",
        "a tail",
        "nul",
        "Suppressed 1234 messages from sglang-kimi.service",
        "Suppressed 7 messages from sglang-kimi.service",
        "Started the server",
        "from a container",
        "cut in two",
        "of a user",
        "no unit",
        "the clock was set back",
        "after a boot",
    ]
    stats = table(place, "systemd")[1]
    # three pieces of one line and two of a container's; one that never ended
    assert (stats.pieces_joined, stats.pieces_unfinished, stats.message_missing, stats.bad_bytes) == (5, 1, 1, 1)


def test_export_text_gives_the_lines_of_the_journal_that_is_built_from_it(tmp_path):
    path = build(tmp_path / "odd.journal", oddities())
    from_journal, _ = table(JournalPlace(files=(str(path),)), "systemd")
    source = open_source(io.BytesIO(oddities()), name="odd.export")
    from_text = pa.Table.from_batches(list(source.batches()))
    drop = ["where"]  # the built file has cursors of its own
    assert from_text.drop_columns(drop).equals(from_journal.drop_columns(drop))


def test_a_unit_comes_with_its_notices_and_with_what_pid_1_says(tmp_path):
    path = build(tmp_path / "odd.journal", oddities())
    made, stats = table(JournalPlace(files=(str(path),)), "systemd", selection=Selection(units=("sglang-kimi",)))
    assert set(made.column("unit").to_pylist()) == {"sglang-kimi.service"}
    got = made.column("message").to_pylist()
    assert got[-4:-2] == ["Suppressed 7 messages from sglang-kimi.service", "Started the server"]
    assert "level=info" not in got
    assert stats.units == {"sglang-kimi.service": len(got)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("selection", "want", "unit"),
    [
        (Selection(user_units=("mine",)), ["of a user"], "mine.service"),
        (Selection(identifiers=("lonely",)), ["no unit"], None),
        (Selection(containers=("sglang-1",)), ["from a container", "cut in two"], "sglang-1"),
        (Selection(units=("kube*",)), ["level=info"], "kubelet.service"),
    ],
)
def test_matches_by_user_unit_identifier_container_and_pattern(
    backend: str, selection: Selection, want: list[str], unit: str | None, tmp_path
):
    path = build(tmp_path / "odd.journal", oddities())
    made, _ = table(JournalPlace(files=(str(path),)), backend, selection=selection)
    assert made.column("message").to_pylist() == want
    assert set(made.column("unit").to_pylist()) == {unit}


@pytest.mark.parametrize("backend", BACKENDS)
def test_boots_are_counted_as_journalctl_counts_them(backend: str, tmp_path):
    path = build(tmp_path / "odd.journal", oddities())
    place = JournalPlace(files=(str(path),))
    for boot in ("0", "3" * 32, "2"):
        made, _ = table(place, backend, selection=Selection(boot=boot))
        assert made.column("message").to_pylist() == ["after a boot"]
    for boot in ("-1", "1", BOOT):
        made, _ = table(place, backend, selection=Selection(boot=boot, units=("kubelet",)))
        assert made.column("message").to_pylist() == ["level=info"]
    with pytest.raises(SourceNotFound, match="no boot -2 in this journal: it holds 2 boots"):
        open_journal(place, Selection(boot="-2"), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_o18_entries_that_a_clock_step_put_back_are_not_lost(backend: str, tmp_path):
    # D2 was logged after D1, with a clock an hour behind; D3 after it was set right again
    hour = 3_600_000_000
    export = (
        entry(T0, b"D1", mono=9_000_000)
        + entry(T0 - hour + 50_000, b"D2", mono=9_050_000)
        + entry(T0 + 100_000, b"D3", mono=9_100_000)
        + entry(T0 + 100_000_000, b"D4", boot="3" * 32, mono=50_000)
    )
    place = JournalPlace(files=(str(build(tmp_path / "steps.journal", export)),))
    made, _ = table(place, backend)
    assert made.column("message").to_pylist() == ["D1", "D2", "D3", "D4"]
    assert made.column("time").cast("int64").to_pylist() == [T0, T0 - hour + 50_000, T0 + 100_000, T0 + 100_000_000]
    assert made.column("monotonic_us").to_pylist() == [9_000_000, 9_050_000, 9_100_000, 50_000]
    assert made.column("boot_id").to_pylist() == [BOOT] * 3 + ["3" * 32]
    # a window that only D2 is in: a search by time would begin at D1, and stop there
    made, _ = table(place, backend, window=Window(T0 - hour, T0))
    assert made.column("message").to_pylist() == ["D2"]
    # both bounds: since is in, until is out
    made, _ = table(place, backend, window=Window(T0, T0 + 100_000))
    assert made.column("message").to_pylist() == ["D1"]


def test_a_search_by_time_is_used_for_large_journals_only_if_the_clock_was_not_set(tmp_path, monkeypatch):
    path = build(tmp_path / "a.journal", b"".join(entry(T0 + i * 1_000_000, f"{i}") for i in range(50)))
    from ddtree_metrics.sources import journal_files

    plain = journal_files.read_header

    def large(*words):
        import dataclasses

        return dataclasses.replace(plain(*words), entries=10_000_000)

    monkeypatch.setattr(journal_files, "read_header", large)
    source = open_journal(JournalPlace(files=(str(path),)), window=Window(T0 + 40_000_000, T0 + 43_000_000))
    assert source._since(ordered=True) == T0 + 40_000_000
    assert source._since(ordered=False) is None
    assert messages(source) == ["40", "41", "42"]
    path = build(tmp_path / "b.journal", entry(T0, b"Time has been changed", MESSAGE_ID="c7a787079b354eaaa9e77b371893cd27", pid=1))
    source = open_journal(JournalPlace(files=(str(path),)), window=Window(T0, None))
    assert source._since(ordered=True) is None


def test_fixture_a_comes_back_whole_from_a_journal_built_from_it(tmp_path):
    export = pa.input_stream(str(REAL / "A/journal.export.zst"), compression="zstd").read()
    path = build(tmp_path / "a.journal", export)
    low, stats = table(JournalPlace(files=(str(path),)), "systemd", selection=Selection(units=("sglang-tiny",)))
    got = low.column("message").to_pylist()
    # 545 metrics lines and 545 Decode lines, its README says
    assert sum("DDTREE metrics" in m for m in got) == 545
    assert sum("Decode batch" in m for m in got) == 545
    assert stats.message_missing == stats.message_null == stats.pieces_unfinished == 0
    assert len(set(low.column("where").to_pylist())) == 1492
    assert set(low.column("host").to_pylist()) == {"gpu-01"}
    assert len(set(low.column("stream").to_pylist())) == 2
    assert len(set(low.column("pid").to_pylist())) == 6
    text = pa.Table.from_batches(list(open_source(REAL / "A/journal.export.zst").batches()))
    assert text.drop_columns(["where"]).equals(low.drop_columns(["where"]))


def test_fixture_c_comes_with_its_three_notices():
    source = open_source(REAL / "C/journal.export.zst", selection=Selection(units=("sglang-tiny",)))
    got = messages(source)
    assert [m for m in got if m.startswith("Suppressed")] == [f"Suppressed {n} messages from sglang-tiny.service" for n in (11, 118, 132)]
    assert sum("DDTREE metrics" in m for m in got) == 66
    assert set(source.stats.units) == {"sglang-tiny.service"}


def test_the_json_that_journalctl_writes_gives_the_same_lines(tmp_path):
    import subprocess

    path = build(tmp_path / "odd.journal", oddities())
    made, _ = table(JournalPlace(files=(str(path),)), "systemd")
    out = subprocess.run(["journalctl", "--file", str(path), "-o", "json", "--all", "-q"], capture_output=True, check=True).stdout
    source = open_source(io.BytesIO(out), name="j.json")
    from_json = pa.Table.from_batches(list(source.batches()))
    drop = ["where"]
    assert from_json.drop_columns(drop).equals(made.drop_columns(drop))
    assert (source.stats.message_missing, source.stats.pieces_joined, source.stats.pieces_unfinished) == (1, 5, 1)


@pytest.mark.parametrize("form", ["short", "short-iso", "short-iso-precise", "short-precise", "short-unix", "short-full"])
def test_the_text_that_journalctl_writes_gives_the_same_messages(form: str, tmp_path):
    import subprocess
    from zoneinfo import ZoneInfo

    path = build(tmp_path / "odd.journal", b"".join(entry(T0 + i * 10_000, f"[2026-05-05 12:00:01 TP0] {i}\nmore") for i in range(20)))
    env = {**os.environ, "TZ": "Europe/Berlin", "LC_ALL": "C"}
    out = subprocess.run(["journalctl", "--file", str(path), "-o", form, "--all", "-q"], capture_output=True, check=True, env=env).stdout
    made = pa.Table.from_batches(list(open_source(io.BytesIO(out), name="x", tz=ZoneInfo("Europe/Berlin")).batches()))
    want = [line for i in range(20) for line in (f"[2026-05-05 12:00:01 TP0] {i}", "more")]
    assert made.column("message").to_pylist() == want
    assert set(made.column("pid").to_pylist()) == {4242}
    assert set(made.column("time_from").to_pylist()) == {"frame"}
    step = 1 if "precise" in form or form == "short-unix" else 1_000_000
    assert made.column("time").cast("int64").to_pylist() == [(T0 + i * 10_000) // step * step for i in range(20) for _ in (0, 1)]


# O20: nothing found, and which nothing


def good(tmp_path: Path, name: str = "good.journal", count: int = 20) -> Path:
    return build(tmp_path / name, b"".join(entry(T0 + i, f"{i}") for i in range(count)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_o20_a_unit_that_never_logged_is_not_found_and_the_nearest_are_named(backend: str, tmp_path):
    place = JournalPlace(files=(str(build(tmp_path / "odd.journal", oddities())),))
    with pytest.raises(SourceNotFound, match=r"no unit 'sglnag-kimi.service' in this journal; similar: sglang-kimi.service") as error:
        open_journal(place, Selection(units=("sglnag-kimi",)), backend=backend)
    assert error.value.exit_code == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_o20_lines_filed_elsewhere_are_hinted_at(backend: str, tmp_path):
    place = JournalPlace(files=(str(build(tmp_path / "odd.journal", oddities())),))
    with pytest.raises(SourceNotFound, match=r"CONTAINER_NAME \(--container sglang-1\)"):
        open_journal(place, Selection(units=("sglang-1",)), backend=backend)
    with pytest.raises(SourceNotFound, match=r"SYSLOG_IDENTIFIER \(--identifier lonely\)"):
        open_journal(place, Selection(units=("lonely",)), backend=backend)


def test_o20_a_unit_that_logged_outside_of_the_window_is_no_error(tmp_path):
    place = JournalPlace(files=(str(good(tmp_path)),))
    assert messages(open_journal(place, Selection(units=("sglang-kimi",)), Window(T0 + 10**9, None))) == []


def test_one_of_several_units_that_never_logged_is_noted(tmp_path):
    source = open_journal(JournalPlace(files=(str(good(tmp_path)),)), Selection(units=("sglang-kimi", "nosuch")))
    assert len(messages(source)) == 20
    assert "never logged in this journal: nosuch.service" in source.stats.notes


def break_file(kind: str, source: Path, at: Path) -> Path:
    """Make a journal file that cannot be read."""
    shutil.copy(source, at)
    size = at.stat().st_size
    with at.open("r+b") as f:
        if kind == "empty":
            f.truncate(0)
        elif kind == "cut in the header":
            f.truncate(100)
        elif kind == "cut":
            f.truncate(size // 2)
        elif kind == "cut by one byte":
            f.truncate(size - 1)
        elif kind == "overwritten":
            f.write(b"\0" * 4096)
        elif kind == "newer":
            f.seek(12)
            f.write(b"\x20\x01\x00\x00")
    return at


BROKEN = {
    "empty": (SourceDamaged, "empty"),
    "cut in the header": (SourceDamaged, "cut inside its header"),
    "cut": (SourceDamaged, "was cut to"),
    "cut by one byte": (SourceDamaged, "was cut to"),
    "overwritten": (SourceDamaged, "no journal file"),
    "newer": (SourceUnsupported, "made by a newer systemd"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_o20_a_broken_file_alone_is_named(kind: str, tmp_path):
    path = break_file(kind, good(tmp_path), tmp_path / "bad.journal")
    error, words = BROKEN[kind]
    with pytest.raises(error, match=rf"bad\.journal.*{words}"):
        open_source(path)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", BROKEN)
def test_o20_good_files_beside_a_broken_one_are_read_and_it_is_named(kind: str, backend: str, tmp_path):
    folder = tmp_path / "j"
    path = good(folder)
    break_file(kind, path, folder / "bad.journal")
    for place in (JournalPlace(directory=str(folder)), JournalPlace(files=(f"{folder}/*.journal",))):
        source = open_journal(place, backend=backend)
        assert messages(source) == [str(i) for i in range(20)]
        assert len(source.stats.damaged) == 1
        assert "bad.journal" in source.stats.damaged[0]
        assert BROKEN[kind][1] in source.stats.damaged[0]
    source = open_sources([folder / "good.journal", folder / "bad.journal"])
    assert len(messages(source)) == 20
    assert len(source.stats.damaged) == 1


def test_a_file_that_libsystemd_refuses_though_its_header_looks_well_is_left_out(tmp_path):
    path = good(tmp_path)
    bad = tmp_path / "bad.journal"
    shutil.copy(path, bad)
    with bad.open("r+b") as f:
        f.seek(104)
        f.write(b"\x01" * 8)  # the place of the data hash table: not aligned
    source = open_journal(JournalPlace(files=(str(path), str(bad))), backend="systemd")
    assert messages(source) == [str(i) for i in range(20)]
    assert "bad.journal: is damaged" in source.stats.damaged[0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("compact", [True, False])
def test_o20_a_block_of_zeros_in_the_middle_of_a_file_is_told(compact: bool, backend: str, tmp_path):
    path = build(tmp_path / "zeros.journal", b"".join(entry(T0 + i, f"{i}") for i in range(2000)), compact=compact)
    whole = open_journal(JournalPlace(files=(str(path),)), backend=backend)
    assert len(messages(whole)) == 2000
    assert whole.stats.damaged == []
    data = path.read_bytes()
    middle = data.index(b"MESSAGE=1000") // 8 * 8
    path.write_bytes(data[:middle] + b"\0" * 4096 + data[middle + 4096 :])
    source = open_journal(JournalPlace(files=(str(path),)), Selection(units=("sglang-kimi",)), backend=backend)
    # libsystemd says nothing of what it leaves out
    assert 0 < len(messages(source)) < 2000
    assert "zeros.journal: " in source.stats.damaged[0]
    assert "of 2000 entries are damaged" in source.stats.damaged[0]


@pytest.mark.parametrize("seed", range(4))
def test_damage_in_the_middle_of_a_file_never_raises(seed: int, tmp_path):
    import random

    dice = random.Random(seed)
    path = good(tmp_path, count=300)
    with path.open("r+b") as f:
        for _ in range(60):
            f.seek(dice.randrange(300, 200_000))
            f.write(bytes([dice.randrange(256)]))
    with contextlib.suppress(SourceDamaged):
        messages(open_journal(JournalPlace(files=(str(path),)), backend="systemd"))


def test_a_folder_without_journal_files_and_a_missing_one_are_not_found(tmp_path):
    with pytest.raises(SourceNotFound, match="no journal files in"):
        open_journal(JournalPlace(directory=str(tmp_path)))
    with pytest.raises(SourceNotFound, match="no such folder"):
        open_journal(JournalPlace(directory=str(tmp_path / "nosuch")))
    with pytest.raises(SourceNotFound, match="no such file"):
        open_journal(JournalPlace(files=(str(tmp_path / "*.journal"),)))


def test_folders_of_machines_and_namespaces_are_looked_into(tmp_path):
    machine = "2" * 32
    build(tmp_path / machine / "system.journal", entry(T0, b"main"))
    build(tmp_path / f"{machine}.t" / "system.journal", entry(T0, b"namespace"))
    (tmp_path / "remote").mkdir()
    build(tmp_path / "remote" / "other.journal", entry(T0, b"remote"))
    assert messages(open_journal(JournalPlace(directory=str(tmp_path)))) == ["main"]
    assert messages(open_journal(JournalPlace(directory=str(tmp_path), namespace="t"))) == ["namespace"]
    assert messages(open_source(tmp_path)) == ["main"]
    with pytest.raises(SourceNotFound, match="no journal files of namespace 'u'"):
        open_journal(JournalPlace(directory=str(tmp_path), namespace="u"))


def test_names_with_the_characters_of_patterns_are_names(tmp_path):
    path = build(tmp_path / "a[1].journal", entry(T0, b"x"))
    for backend in BACKENDS:
        assert messages(open_journal(JournalPlace(files=(str(path),)), backend=backend)) == ["x"]
    assert messages(open_source(path)) == ["x"]


def test_a_missing_file_of_a_sequence_is_noted(tmp_path):
    from ddtree_metrics.sources.journal_files import Header, holes

    def part(name: str, first: int, last: int) -> Header:
        return Header(f"/j/{name}", b"s" * 16, first, last, last - first + 1, 0, 0, False, 0)

    assert holes([part("a", 1, 100), part("b", 101, 200)]) == []
    # 101 to 200 are gone
    assert holes([part("c", 201, 300), part("a", 1, 100)])[0].startswith("100 entries are missing between a and c")
    # a user's file shares the numbers of the system's
    assert holes([part("system", 1, 300), part("user", 50, 60), part("next", 301, 302)]) == []


@pytest.mark.parametrize("kind", ["gz", "xz", "plain"])
def test_a_journal_through_a_pipe_or_a_compressor_is_read(kind: str, tmp_path):
    import gzip
    import lzma

    data = good(tmp_path).read_bytes()
    packed = {"gz": gzip.compress, "xz": lzma.compress, "plain": bytes}[kind](data)
    source = open_source(io.BytesIO(packed), name="x.journal")
    assert messages(source) == [str(i) for i in range(20)]


def test_units_are_listed_with_their_entries(tmp_path):
    made = list_units(JournalPlace(files=(str(build(tmp_path / "odd.journal", oddities())),)))
    assert made["kubelet.service"] == 1
    assert made["sglang-1"] == 3
    assert next(iter(made)) == "sglang-kimi.service"


# Which way it is read


def test_without_systemd_python_the_pipe_is_used_and_the_faster_way_told_once(tmp_path, monkeypatch):
    path = good(tmp_path)
    monkeypatch.setattr(native, "load", lambda name: None)
    monkeypatch.setitem(sys.modules, "systemd", None)
    monkeypatch.setattr(journal, "_warned", set())
    place = JournalPlace(files=(str(path),))
    with pytest.warns(DDTreeWarning, match=r"apt-get install .*libsystemd-dev.*ddtree-metrics\[journal\]"):
        source = open_journal(place)
    assert messages(source) == [str(i) for i in range(20)]
    assert "read through journalctl" in source.stats.notes[0]
    open_journal(place)  # not told again: warnings are errors in these tests


@pytest.mark.skipif(native.load("libsystemd") is None, reason="nothing is compiled here")
@pytest.mark.parametrize("window", [Window(), Window(T0 + 3, T0 + 15)])
def test_the_compiled_reader_gives_what_systemd_python_gives(window: Window, tmp_path, monkeypatch):
    export = oddities() + b"".join(entry(T0 + 100 + n, f"n={n}", pid=n % 3, MESSAGE_ID="x") for n in range(3_000))
    place = JournalPlace(files=(str(build(tmp_path / "odd.journal", export)),))
    made, stats = table(place, "systemd", window=window)
    monkeypatch.setattr(native, "load", lambda name: None)
    want, want_stats = table(place, "systemd", window=window)

    assert made.equals(want)
    assert stats == want_stats


def test_look_alike_packages_are_told_from_systemd_python(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "load", lambda name: None)
    plain = types.ModuleType("systemd")  # PyPI "systemd" is one module, so it has no systemd.journal
    monkeypatch.setitem(sys.modules, "systemd", plain)
    monkeypatch.delitem(sys.modules, "systemd.journal", raising=False)
    with pytest.raises(SourceUnsupported, match="another package with the same name"):
        open_journal(JournalPlace(files=(str(good(tmp_path)),)), backend="systemd")
    package = types.ModuleType("systemd")
    package.journal = types.ModuleType("systemd.journal")  # PyPI "python-systemd" has another one
    monkeypatch.setitem(sys.modules, "systemd", package)
    monkeypatch.setitem(sys.modules, "systemd.journal", package.journal)
    with pytest.raises(SourceUnsupported, match="is not systemd-python"):
        open_journal(JournalPlace(files=(str(good(tmp_path, "b.journal")),)), backend="systemd")


def test_without_both_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "load", lambda name: None)
    path = good(tmp_path)
    monkeypatch.setitem(sys.modules, "systemd", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceUnsupported, match=r"apt-get install .*journalctl") as error:
        open_journal(JournalPlace(files=(str(path),)))
    assert error.value.exit_code == 5


# A live journald


@pytest.fixture
def public():
    """A folder that other users may look into, unlike pytest's own."""
    need_root()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def journald(public):
    made = []

    def start(config: str = "") -> Journald:
        made.append(Journald(public / "root", config))
        return made[-1]

    yield start
    for one in made:
        one.stop()


@pytest.mark.journald
def test_a_live_journal_is_read_to_its_present_end(journald):
    daemon = journald()
    stream = daemon.stream("sglang-kimi.service")
    stream.sendall(b"".join(b"line %d\n" % i for i in range(500)))
    daemon.synced(500, "_SYSTEMD_UNIT=sglang-kimi.service")
    place = JournalPlace(directory=str(daemon.folder), namespace="t")
    selection = Selection(units=("sglang-kimi",))
    for backend in BACKENDS:
        source = open_journal(place, selection, backend=backend)
        assert messages(source) == [f"line {i}" for i in range(500)]
        assert source.stats.damaged == []
    # more lines come, and a read after that has them
    stream.sendall(b"one more\n")
    daemon.synced(501, "_SYSTEMD_UNIT=sglang-kimi.service")
    assert messages(open_journal(place, selection))[-1] == "one more"
    stream.close()


@pytest.mark.journald
def test_o15_rate_limited_lines_leave_a_notice_with_their_number(journald):
    import time

    daemon = journald("RateLimitIntervalSec=1s\nRateLimitBurst=20\n")
    stream = daemon.stream("sglang-kimi.service")
    stream.sendall(b"".join(b"line %d\n" % i for i in range(2000)))
    daemon.synced(1, "_SYSTEMD_UNIT=sglang-kimi.service")
    time.sleep(1.3)  # the interval must end before journald tells what it dropped
    stream.sendall(b"after\n")
    daemon.synced(1, "MESSAGE=after")
    source = open_journal(JournalPlace(directory=str(daemon.folder), namespace="t"), Selection(units=("sglang-kimi",)))
    rows = [r for b in source.batches() for r in b.to_pylist()]
    notices = [r for r in rows if r["message"].startswith("Suppressed ")]
    assert len(notices) == 1
    lost = int(notices[0]["message"].split()[1])
    # every line was either kept or counted as lost
    assert sum(r["message"].startswith("line ") for r in rows) + lost == 2000
    assert notices[0]["unit"] == "sglang-kimi.service"
    assert rows[-1]["message"] == "after"
    stream.close()


@pytest.mark.journald
def test_lines_longer_than_linemax_are_joined(journald):
    daemon = journald("LineMax=100\n")
    stream = daemon.stream("sglang-kimi.service")
    long = "x" * 1050
    stream.sendall(f"short\n{long}\nnul\0split\ntail without end".encode())
    stream.close()
    daemon.synced(1, "_LINE_BREAK=eof")
    for backend in BACKENDS:
        source = open_journal(JournalPlace(directory=str(daemon.folder), namespace="t"), Selection(units=("sglang-kimi",)), backend=backend)
        assert messages(source) == ["short", long, "nul", "split", "tail without end"]
        assert source.stats.pieces_joined == 11  # 1050 characters by 100


@pytest.mark.journald
def test_o20_a_journal_of_another_user_is_denied_and_the_groups_named(journald):
    daemon = journald()
    stream = daemon.stream("sglang-kimi.service")
    stream.sendall(b"secret\n")
    daemon.synced(1, "_SYSTEMD_UNIT=sglang-kimi.service")
    stream.close()
    program = (
        "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "from ddtree_metrics.sources import JournalPlace, open_journal\n"
        "from ddtree_metrics.errors import SourceDenied\n"
        "for backend in ('systemd', 'journalctl'):\n"
        "    try: print(sum(1 for b in open_journal(JournalPlace(directory=sys.argv[1], namespace='t'), backend=backend).batches()))\n"
        "    except SourceDenied as e: print(e.exit_code, e)\n"
    )
    done = _as_nobody(program, str(daemon.folder))
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done
    assert all(line.startswith("4 ") and "systemd-journal" in line and "adm" in line for line in lines)


def test_o20_an_unreadable_file_beside_a_good_one_is_named_and_the_good_one_read(public):
    folder = public / "j"
    good(folder)
    shutil.copy(folder / "good.journal", folder / "secret.journal")
    (folder / "good.journal").chmod(0o644)
    (folder / "secret.journal").chmod(0o600)
    program = (
        "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "from ddtree_metrics.sources import JournalPlace, open_journal\n"
        "s = open_journal(JournalPlace(directory=sys.argv[1]))\n"
        "print(sum(b.num_rows for b in s.batches()), s.stats.damaged)\n"
        "from ddtree_metrics.errors import SourceDenied\n"
        "from ddtree_metrics.sources import Selection\n"
        "try: open_journal(JournalPlace(directory=sys.argv[1]), Selection(units=('other',)))\n"
        "except SourceDenied as e: print('denied', e)\n"
    )
    done = _as_nobody(program, str(folder))
    assert done.stdout.startswith("20 "), done
    # a unit that is not in the readable files may be in the other one
    assert "denied no unit 'other.service' in this journal" in done.stdout
    assert "secret.journal: may not be read by this user" in done.stdout


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_boot_may_be_named_by_the_first_digits_of_its_id(backend: str, tmp_path):
    boots = ["22222222" + "a" * 24, "22222223" + "b" * 24, "abcdef01" + "c" * 24, "abcdef01" + "d" * 24]
    path = build(tmp_path / "b.journal", b"".join(entry(T0 + i, f"{i}", boot=boot, mono=1) for i, boot in enumerate(boots)))
    place = JournalPlace(files=(str(path),))
    # a boot id may begin with eight decimal digits: that is no offset, whose digits are few
    for boot, want in (
        ("22222222", "0"),
        ("22222222aaaa", "0"),
        ("22222223", "1"),
        ("ABCDEF01c", "2"),
        ("abcdef01-dddd", "3"),
        (boots[1], "1"),
    ):
        assert messages(open_journal(place, Selection(boot=boot), backend=backend)) == [want], boot
    for boot, words in (
        ("abcdef01", r"2 boots of this journal have ids that begin with abcdef01 .*write more of it"),
        ("99999999", r"no boot 99999999 in this journal; the newest are"),
        ("9", r"no boot 9 in this journal: it holds 4 boots"),
        ("+22222222", r"no boot 22222222 in this journal"),
        ("2222222x", r"no boot '2222222x': give a boot id or its first 8 or more hex digits"),
    ):
        with pytest.raises(SourceNotFound, match=words):
            open_journal(place, Selection(boot=boot), backend=backend)
