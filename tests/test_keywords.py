"""A keyword of reading is declared once: functions, their signatures and the command line have it from there."""

from __future__ import annotations

import inspect
import io
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import ddtree_metrics as ddt
from ddtree_metrics.cli import main
from ddtree_metrics.keywords import JournalKeywords, ReadKeywords, TextKeywords, keywords_of
from ddtree_metrics.opening import read_options
from ddtree_metrics.times import ALWAYS, Window

LINE = (
    "[2026-05-05 12:00:00] Decode batch, #running-req: 1, #token: 100, token usage: 0.10, gen throughput (token/s): 50.00, #queue-req: 0, "
)
FLAGS = [(name, flag) for name, (_, keyword) in keywords_of(ReadKeywords).items() for flag in keyword.flags]


@pytest.mark.parametrize(("name", "flag"), FLAGS)
def test_an_option_that_is_one_declaration_is_on_the_command_line_and_in_every_function(name: str, flag: str) -> None:
    said = CliRunner().invoke(main, ["summary", "--help"]).stdout
    functions = {ReadKeywords: (ddt.read,), TextKeywords: (ddt.read_text, ddt.iter_text)}
    functions[JournalKeywords] = (ddt.read_journal, ddt.iter_journal)
    takers = [function for group, some in functions.items() for function in some if name in keywords_of(group)]

    assert flag.partition("/")[0] in said
    assert len(takers) >= 3
    assert [f for f in takers if name not in inspect.signature(f).parameters] == []


def test_the_documentation_of_reading_speaks_of_every_keyword() -> None:
    told = str(ddt.read_journal.__doc__)

    assert [name for name in keywords_of(JournalKeywords) if name not in told] == []


def test_a_keyword_that_is_none_is_refused_and_those_that_are_there_are_named() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword 'sinse'.*since, until"):
        ddt.read_text(io.BytesIO(b""), sinse="1h")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword 'directory': files can be read with"):
        ddt.read_text(io.BytesIO(b""), directory="/var/log/journal")  # type: ignore[call-arg]


def test_progress_is_told_after_each_batch_and_at_the_end() -> None:
    told: list[int | None] = []
    ddt.read_text(io.BytesIO(LINE.encode()), progress=lambda account: told.append(account and account.lines), on_error="skip")

    assert told[-1] is None
    assert told[0] is not None
    assert told[0] > 0


def test_a_pattern_of_units_stays_one() -> None:
    """As systemd does it (unit_name_mangle with GLOB): a name with *, ? or [ is a pattern, and is not completed."""
    given = ("sglang*", "sglang-kimi", "kimi-?", "a.service")

    assert read_options(unit=given).selection.units == given


def test_a_pattern_of_units_on_the_command_line_finds_them(tmp_path: Path) -> None:
    line = json.dumps({"__REALTIME_TIMESTAMP": "1777982400000000", "_SYSTEMD_UNIT": "sglang-kimi.service", "MESSAGE": LINE})
    path = tmp_path / "journal.json"
    path.write_text(line + "\n")
    said = CliRunner().invoke(main, ["inspect", str(path), "-u", "sglang*"])

    assert said.exit_code == 0, said.output
    assert "1 decode" in said.output


def test_a_window_holds_its_beginning_and_not_its_end() -> None:
    window = Window(10, 20)

    assert [bool(window.contains(t)) for t in (9, 10, 19, 20)] == [False, True, True, False]
    assert window.contains(np.array([9, 10, 19, 20])).tolist() == [False, True, True, False]
    assert bool(ALWAYS.contains(-(10**15)))
    assert Window(None, 20).contains(np.array([-1, 20])).tolist() == [True, False]
