"""Whose a line is: notices of suppressed lines that name nobody in a field, selections that text cannot answer, units that are counted."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import pytest

from ddtree_metrics.errors import SourceNotFound
from ddtree_metrics.sources import JournalPlace, Selection, open_journal, open_source, open_sources
from tests.journals import BOOT, SUPPRESSED, T0, build, entry

SGLANG = Selection(units=("sglang.service",))
NOTICE = "Suppressed 740 messages from sglang.service"


def rows(source) -> list[tuple[str | None, str]]:
    return [(r["unit"], r["message"]) for b in source.batches() for r in b.select(["unit", "message"]).to_pylist()]


def as_json(*entries: dict[str, str]) -> bytes:
    return "".join(json.dumps({"__REALTIME_TIMESTAMP": str(T0 + i), **e}) + "\n" for i, e in enumerate(entries)).encode()


def as_export(*entries: dict[str, str]) -> bytes:
    text = ""
    for i, e in enumerate(entries):
        text += f"__REALTIME_TIMESTAMP={T0 + i}\n__MONOTONIC_TIMESTAMP={i}\n_BOOT_ID={BOOT}\n"
        text += "".join(f"{k}={v}\n" for k, v in e.items()) + "\n"
    return text.encode()


D1, D2 = ({"_SYSTEMD_UNIT": "sglang.service", "_PID": "5", "MESSAGE": m} for m in ("D1", "D2"))
# what is left of a notice, depending on which fields were saved (journalctl --output-fields=MESSAGE,_SYSTEMD_UNIT,_PID)
STRIPPED = {
    "message only": {"MESSAGE": NOTICE},
    "message and pid": {"MESSAGE": NOTICE, "_PID": "300"},
    "journald's unit": {"MESSAGE": NOTICE, "_PID": "300", "_SYSTEMD_UNIT": "systemd-journald.service"},
    "journald of a namespace": {"MESSAGE": NOTICE, "_SYSTEMD_UNIT": "systemd-journald@t.service", "SYSLOG_IDENTIFIER": "systemd-journald"},
    "count": {"MESSAGE": NOTICE, "N_DROPPED": "740"},
    "id": {"MESSAGE": NOTICE, "MESSAGE_ID": SUPPRESSED},
    "control group": {"MESSAGE": NOTICE.replace("from ", "from /system.slice/")},
}


@pytest.mark.parametrize("form", [as_json, as_export])
@pytest.mark.parametrize("selection", [Selection(), SGLANG, Selection(units=("sglang",)), Selection(units=("sgl*",))])
@pytest.mark.parametrize("kind", STRIPPED)
def test_o15_a_notice_without_the_unit_in_a_field_is_of_the_unit_in_its_words(kind: str, selection: Selection, form):
    source = open_source(io.BytesIO(form(D1, STRIPPED[kind], D2)), selection=selection, name="x")
    got = rows(source)
    assert got == [("sglang.service", m) for m in ("D1", STRIPPED[kind]["MESSAGE"], "D2")]
    assert source.stats.units == {"sglang.service": 3}


@pytest.mark.parametrize("form", [as_json, as_export])
def test_o15_a_notice_of_another_unit_is_not_selected(form):
    other = {"MESSAGE": "Suppressed 9 messages from nginx.service", "_PID": "300"}
    assert rows(open_source(io.BytesIO(form(D1, other)), selection=SGLANG)) == [("sglang.service", "D1")]


@pytest.mark.parametrize("form", [as_json, as_export])
@pytest.mark.parametrize("selection", [Selection(), SGLANG, Selection(identifiers=("x",)), Selection(containers=("x",))])
def test_o15_a_notice_that_names_no_unit_may_concern_any(selection: Selection, form):
    wanted = {"SYSLOG_IDENTIFIER": "x", "CONTAINER_NAME": "x", "_SYSTEMD_UNIT": "sglang.service", "MESSAGE": "D1"}
    got = rows(open_source(io.BytesIO(form(wanted, {"N_DROPPED": "740"})), selection=selection))
    assert got[1:] == [(None, "Suppressed 740 messages from an unknown unit")]


def test_what_a_server_prints_is_no_notice_whatever_it_says():
    mine = {"_SYSTEMD_UNIT": "a.service", "_PID": "5", "_STREAM_ID": "1", "MESSAGE": NOTICE}
    assert rows(open_source(io.BytesIO(as_json(mine)))) == [("a.service", NOTICE)]
    assert rows(open_source(io.BytesIO(as_export(mine)))) == [("a.service", NOTICE)]


@pytest.mark.parametrize("backend", ["systemd", "journalctl"])
def test_o15_journal_files_have_notices_without_a_unit_too(backend: str, tmp_path):
    def notice(at: int, message: str | None) -> bytes:
        return entry(at, message, unit=None, ident="systemd-journald", stream=None, pid=300, MESSAGE_ID=SUPPRESSED, N_DROPPED="740")

    export = entry(T0, "D1", unit="sglang.service") + notice(T0 + 1, NOTICE) + notice(T0 + 2, None)
    export += notice(T0 + 3, "Suppressed 740 messages from nginx.service") + entry(T0 + 4, "x", unit="nginx.service")
    place = JournalPlace(files=(str(build(tmp_path / "n.journal", export)),))
    want = [("sglang.service", "D1"), ("sglang.service", NOTICE), (None, "Suppressed 740 messages from an unknown unit")]
    assert rows(open_journal(place, SGLANG, backend=backend)) == want
    assert rows(open_source(io.BytesIO(export), selection=SGLANG)) == want


PREFIXES = [
    "Jan 29 00:52:50 h {}[300]: ",
    "2026-01-29T00:52:50+0100 h {}[300]: ",
    "1769647968.482913 h {}[300]: ",
    "[    1.000000] h {}[300]: ",
]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("ident", ["systemd-journald", "systemd-journald.service", "systemd-journal"])
@pytest.mark.parametrize("selection", [Selection(), SGLANG])
def test_o15_the_notice_in_a_line_of_journalctl_is_of_the_unit_that_lost_lines(prefix: str, ident: str, selection: Selection):
    text = f"{prefix.format(ident)}{NOTICE}\n{prefix.format(ident)}Suppressed 9 messages from nginx.service\n"
    got = rows(open_source(io.BytesIO(text.encode()), selection=selection))
    assert ("sglang.service", NOTICE) in got
    assert len(got) == (2 if selection == Selection() else 1)


def test_o15_steps_are_not_timed_across_a_notice_that_only_its_words_give_to_the_unit(tmp_path):
    import ddtree_metrics as ddt

    line = "DDTREE metrics: bs=1 budget=8 actual_nodes=[9] accepted_drafts=[3] commit_lens=[4] avg_accepted_drafts=3.00 avg_commit_len=4.00"
    # milliseconds after the first line, as in the case: two steps, the notice after 30 s, two steps
    made = [(0, line), (40, line), (30_000, NOTICE), (30_010, line), (30_050, line)]
    entries = [
        {
            "__REALTIME_TIMESTAMP": str(T0 + ms * 1000),
            "__MONOTONIC_TIMESTAMP": str(1_000_000 + ms * 1000),
            "_BOOT_ID": "b1",
            "_PID": "5" if m == line else "300",
            "_SYSTEMD_UNIT": "sglang.service" if m == line else "systemd-journald.service",
            "MESSAGE": m,
        }
        for ms, m in made
    ]
    path = tmp_path / "o15.json"
    path.write_text("".join(json.dumps(e) + "\n" for e in entries))
    log = ddt.read_text(path, unit="sglang")
    steps = log.steps
    assert [None if us is None else int(us) for us in steps["step_us"].astype(object).where(steps["step_us"].notna(), None)] == [
        None,
        40_000,
        None,
        40_000,
    ]
    assert steps["step_why"].astype(object).where(steps["step_why"].notna(), None).tolist() == ["first", None, "suppressed", None]


# Selections


def test_lines_that_say_nothing_of_units_are_kept_and_the_note_says_that_the_unit_could_not_be_applied():
    source = open_source(io.BytesIO(b"one\ntwo\n"), selection=Selection(units=("foo",)), name="run.log")
    assert rows(source) == [(None, "one"), (None, "two")]
    assert source.stats.notes == ["run.log: the lines say nothing of units, so -u foo.service could not be applied; all 2 were taken"]


def test_the_identifiers_that_lines_do_say_are_named():
    text = b"Jan 29 00:52:50 h python3[1]: one\nJan 29 00:52:50 h nginx[2]: two\n"
    source = open_source(io.BytesIO(text), selection=Selection(units=("foo",)), name="run.log")
    assert len(rows(source)) == 2
    assert "-u foo.service could not be applied; all 2 were taken (--identifier can be: nginx, python3)" in source.stats.notes[0]


@pytest.mark.parametrize("form", [as_json, as_export])
def test_entries_that_were_saved_without_their_writers_are_kept_with_a_note(form):
    source = open_source(io.BytesIO(form({"MESSAGE": "D1"}, {"MESSAGE": "D2", "_PID": "5"})), selection=SGLANG, name="x")
    assert [m for _, m in rows(source)] == ["D1", "D2"]
    assert "the lines say nothing of units, so -u sglang.service could not be applied; all 2 were taken" in source.stats.notes[0]


WITH_UNITS = {
    "json": as_json(D1, D2),
    "export": as_export(D1, D2),
    "with-unit": b"Jan 29 00:52:50 h sglang.service[1]: D1\n",
}


@pytest.mark.parametrize("kind", WITH_UNITS)
def test_o20_a_unit_that_no_line_of_a_text_names_is_not_found_and_the_nearest_are_named(kind: str):
    source = open_source(io.BytesIO(WITH_UNITS[kind]), selection=Selection(units=("sglnag",)), name="x")
    with pytest.raises(SourceNotFound, match=r"no unit 'sglnag\.service' in x; similar: sglang\.service") as error:
        rows(source)
    assert error.value.exit_code == 3


def test_o20_a_container_that_no_line_names_is_not_found():
    source = open_source(io.BytesIO(b"sglang-1  | x\n"), selection=Selection(containers=("sglang-2",)), name="x")
    with pytest.raises(SourceNotFound, match=r"no container 'sglang-2' in x; similar: sglang-1 \(a container"):
        rows(source)


def test_o20_entries_without_any_unit_say_how_to_read_them_all():
    data = as_json({"MESSAGE": "D1", "SYSLOG_IDENTIFIER": "python3"})
    with pytest.raises(SourceNotFound, match=r"say nothing of units .*leave -u sglang\.service out to read all of them"):
        rows(open_source(io.BytesIO(data), selection=SGLANG, name="x"))


def test_o20_a_unit_outside_of_the_window_is_no_error():
    from ddtree_metrics.times import Window

    assert rows(open_source(io.BytesIO(as_json(D1)), selection=SGLANG, window=Window(T0 + 10**9, None))) == []


def test_a_unit_may_be_in_one_of_several_files(tmp_path):
    (tmp_path / "a.json").write_bytes(as_json(D1))
    (tmp_path / "b.json").write_bytes(as_json({"_SYSTEMD_UNIT": "nginx.service", "MESSAGE": "x"}))
    build(tmp_path / "c.journal", entry(T0, "y", unit="cron.service"))
    names = [tmp_path / "b.json", tmp_path / "a.json", tmp_path / "c.journal"]
    assert rows(open_sources(names, selection=SGLANG)) == [("sglang.service", "D1")]
    assert rows(open_sources(names, selection=Selection(units=("cron",)))) == [("cron.service", "y")]
    with pytest.raises(SourceNotFound, match=r"no unit 'foo\.service'"):
        rows(open_sources(names, selection=Selection(units=("foo",))))


def test_one_of_several_units_that_no_line_names_is_noted():
    source = open_source(io.BytesIO(as_json(D1)), selection=Selection(units=("sglang", "nosuch")), name="x")
    assert len(rows(source)) == 1
    assert source.stats.notes == ["never logged in x: nosuch.service"]


# Counts


def test_the_lines_of_a_unit_are_counted_alike_from_a_journal_export_text_and_json(tmp_path):
    # one entry of three lines, one with a carriage return, one without a message, one of two pieces: 3 + 2 + 0 + 1 lines
    export = (
        entry(T0, b"one\ntwo\nthree")
        + entry(T0 + 1, b"40%\rdone")
        + entry(T0 + 2, None)
        + entry(T0 + 3, b"z" * 49_152, _LINE_BREAK="line-max")
        + entry(T0 + 3, b"tail")
    )
    path = build(tmp_path / "x.journal", export)
    out = subprocess.run(["journalctl", "--file", str(path), "-o", "json", "--all", "-q"], capture_output=True, check=True).stdout
    for what in (Path(path), io.BytesIO(export), io.BytesIO(out)):
        source = open_source(what, name="x")
        assert len(rows(source)) == 6
        assert source.stats.units == {"sglang-kimi.service": 6}
        assert source.stats.lines == 6
