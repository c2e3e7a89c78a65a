"""What is damaged in a journal is told, and what was good is kept: flipped bits, and files that are cut short while they are read."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ddtree_metrics.sources import JournalPlace, Selection, jenkins, journal_child, open_journal
from ddtree_metrics.sources.journal_check import check
from ddtree_metrics.sources.journal_files import Files
from ddtree_metrics.sources.journal_process import LowLevel
from ddtree_metrics.times import Window
from tests import journal_flips
from tests.journals import T0, build, entry

BACKENDS = ["systemd", "journalctl"]


def lines(source: object) -> list[str]:
    return [m for batch in source.batches() for m in batch.column("message").to_pylist()]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        # lookup3.c, driver5: hashlittle2("", 0, c, b) with both seeds 0 and "Four score and seven years ago" gives c=17770551 b=ce7226e6.
        (b"Four score and seven years ago", 0x17770551CE7226E6),
    ],
)
def test_the_hash_is_that_of_its_author(text: bytes, want: int) -> None:
    assert int(jenkins.hashes_of([text])[0]) == want
    # Among others of all lengths it is the same.
    many = [b"x" * n for n in range(1, 60)] + [text] + [b"y" * 1000]
    assert int(jenkins.hashes_of(many)[59]) == want


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("compact", [True, False])
def test_a_whole_journal_has_no_damage_and_its_entries_are_counted(keyed: bool, compact: bool, tmp_path: Path) -> None:
    # Of 200 entries every third, from the first on, is of b.service (67); every 20th message is long enough to be packed; some have a
    # field twice, which the stored hash counts twice and the list of fields once.
    export = b"".join(
        entry(T0 + 1000 * n, f"{'long ' * 300 if n % 20 == 0 else ''}{n}", unit="a.service" if n % 3 else "b.service", TWICE="1")
        for n in range(200)
    )
    path = build(tmp_path / "x.journal", export.replace(b"TWICE=1\n", b"TWICE=1\nTWICE=1\n", 5), keyed=keyed, compact=compact)
    files = Files()
    files.add(str(path))
    groups = (("_SYSTEMD_UNIT=b.service",),)
    made = check(files.good[0], groups, Window())
    assert made is not None
    assert (made.entries, made.bad, made.ordered, made.spoiled) == (200, 0, True, set())
    assert len(np.unique(made.keys)) == 67
    some = check(files.good[0], groups, Window(T0, T0 + 30_000))
    assert some is not None
    assert len(some.keys) == 10


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", ["message", "realtime", "monotonic", "boot", "place"])
def test_an_entry_that_is_not_as_it_was_written_is_left_out_and_counted(what: str, backend: str, tmp_path: Path) -> None:
    path = journal_flips.journal(tmp_path / "x.journal", 300)
    data = bytearray(path.read_bytes())
    message = data.index(b" n=150") - 20
    # The entry object follows the data object of its message, at the next multiple of 8; its first byte is 3.
    at = (data.index(b" n=150") + 6 + 7) // 8 * 8
    assert data[at] == 3
    data[{"message": message, "realtime": at + 27, "monotonic": at + 35, "boot": at + 47, "place": at}[what]] ^= 0x40
    path.write_bytes(data)
    source = open_journal(JournalPlace(files=(str(path),)), backend=backend)
    made = lines(source)
    assert [int(text.rpartition("=")[2]) for text in made] == [n for n in range(300) if n != 150]
    assert len(source.stats.damaged) >= 1
    assert "1 of 300 entries are damaged" in source.stats.damaged[0]


def test_flipped_bits_lose_and_alter_nothing_without_a_word(tmp_path: Path) -> None:
    # The long form, 500 flips and more, is ``python -m tests.journal_flips``.
    counts = journal_flips.campaign(tmp_path, 40, 7)
    assert counts["lost"] == counts["altered"] == 0
    assert counts["told"] >= 5
    assert sum(counts.values()) == 40


def test_a_clock_that_was_set_for_one_entry_is_no_damage(tmp_path: Path) -> None:
    # 3,600 s there and back, as a person sets it; and half a second of a stopped process.
    export = b"".join(
        entry(T0 + 10_000 * n - (3_600_000_000 if n == 50 else 0) + (500_000 if n == 70 else 0), f"n={n}", mono=10_000 * n)
        for n in range(100)
    )
    source = open_journal(JournalPlace(files=(str(build(tmp_path / "x.journal", export)),)))
    assert len(lines(source)) == 100
    assert source.stats.damaged == []


def test_a_name_of_a_field_that_is_no_text_costs_its_entry_only(tmp_path: Path) -> None:
    export = b"".join(entry(T0 + n, f"n={n}", stream=None, ODD=str(n)) for n in range(20))
    path = build(tmp_path / "x.journal", export)
    data = bytearray(path.read_bytes())
    at = data.index(b"ODD=7")
    data[at] = 0xFF
    path.write_bytes(data)
    source = open_journal(JournalPlace(files=(str(path),)))
    assert lines(source) == [f"n={n}" for n in range(20) if n != 7]
    assert source.stats.damaged


class CutWhenRead(LowLevel):
    """Cut the file short when the first entries have come."""

    path = ""

    def _answers(self, *command: object) -> object:  # type: ignore[override]
        for number, answer in enumerate(super()._answers(*command)):
            yield answer
            if command[0] == "entries" and number == 1:
                os.truncate(self.path, 65_536)


@pytest.mark.parametrize("how", ["cut", "killed"])
def test_a_journal_that_is_cut_short_while_it_is_read_costs_its_rest_only(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So many that the child cannot be through with them when the first ones arrive: a pipe holds 64 KiB.
    export = b"".join(entry(T0 + n, f"n={n} " + "x" * 200) for n in range(30_000))
    path = build(tmp_path / "x.journal", export)
    CutWhenRead.path = str(path)
    monkeypatch.setattr("ddtree_metrics.sources.journal.LowLevel", CutWhenRead if how == "cut" else KilledWhenRead)
    source = open_journal(JournalPlace(files=(str(path),)), backend="systemd")
    made = lines(source)
    assert 1024 <= len(made) < 30_000
    assert [int(text[2:].split()[0]) for text in made] == list(range(len(made)))
    assert len(source.stats.damaged) == 1
    assert ("was cut to 65536 of" if how == "cut" else "its reader was killed (SIGKILL)") in source.stats.damaged[0]


class KilledWhenRead(LowLevel):
    """End the process when the first entries have come."""

    def _answers(self, *command: object) -> object:  # type: ignore[override]
        for number, answer in enumerate(super()._answers(*command)):
            yield answer
            if command[0] == "entries" and number == 1:
                assert self._child is not None
                self._child.kill()


@pytest.mark.parametrize("compact", [True, False])
def test_a_journal_that_is_cut_short_while_it_is_checked_is_damaged_wherever_it_is_cut(
    compact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build(tmp_path / "a.journal", b"".join(entry(T0 + i, f"line {i}") for i in range(60)), compact=compact)
    files = Files()
    files.add(str(path))
    whole = path.read_bytes()
    # the file is cut right after its size was asked for
    monkeypatch.setattr("ddtree_metrics.sources.journal_check.os.fstat", lambda _: SimpleNamespace(st_size=len(whole)))
    # up to the last entry; behind it nothing is looked at
    for size in range(0, whole.rindex(b"line 59") - 600, 997):
        path.write_bytes(whole[:size])
        found = check(files.good[0], (), Window())
        assert found is None or found.bad > 0, size


def test_where_no_process_can_be_started_the_journal_is_read_in_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build(tmp_path / "x.journal", b"".join(entry(T0 + n, f"n={n}") for n in range(3000)))
    want = lines(open_journal(JournalPlace(files=(str(path),)), Selection(units=("sglang-kimi",)), backend="systemd"))
    assert len(want) == 3000
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    source = open_journal(JournalPlace(files=(str(path),)), Selection(units=("sglang-kimi",)), backend="systemd")
    assert lines(source) == want
    assert Counter(source.stats.damaged) == Counter()


def test_the_script_of_the_process_needs_nothing_but_systemd() -> None:
    text = Path(journal_child.__file__).read_text()
    assert "import ddtree" not in text
    assert "from ddtree" not in text


@pytest.mark.parametrize("backend", BACKENDS)
def test_entries_of_a_unit_that_a_damaged_index_hides_are_counted(backend: str, tmp_path: Path) -> None:
    path = journal_flips.journal(tmp_path / "x.journal", 300)
    data = bytearray(path.read_bytes())
    # The data object of the unit: 72 bytes before its value, with the array of its entries at 48. Two of three entries are of the unit;
    # the first stands in the object itself, the other 199 in the array.
    at = data.index(b"_SYSTEMD_UNIT=" + journal_flips.UNIT.encode()) - 72
    assert data[at] == 1
    data[at + 48 : at + 56] = bytes(8)
    path.write_bytes(data)
    source = open_journal(JournalPlace(files=(str(path),)), Selection(units=(journal_flips.UNIT,)), backend=backend)
    made = lines(source)
    assert len(made) == 1
    assert any("199 entries cannot be read" in text for text in source.stats.damaged)
    assert len(lines(open_journal(JournalPlace(files=(str(path),)), backend=backend))) == 300
