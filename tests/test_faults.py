"""A few inputs of each kind of the fault campaign, and that the campaign would notice each kind of fault."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.attempts import COLUMNS, Attempt, Outcome, basics, judge, left_behind
from tests.faults.campaign import KINDS, PAGE

ROOT = Path(__file__).resolve().parent.parent


def test_a_few_inputs_of_each_kind_do_nothing_bad() -> None:
    """In a process of its own, for it forks, and limits what its children may do."""
    done = subprocess.run([sys.executable, "-m", "tests.faults.campaign", "--short"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| (.+?) \| ([\d,]+) \|((?: \d+ \|)+)$", done.stdout, re.MULTILINE)
    assert len(rows) == len(KINDS) + 1
    assert {cells for _, _, cells in rows} == {" 0 |" * len(COLUMNS)}


def ended(
    code: int | None = 0, number: int | None = None, *, err: str = "", out: bytes = b"", peak: int = 0, hung: bool = False
) -> Attempt:
    return Attempt(code, number, out, err, peak, hung, False)


@pytest.mark.parametrize(
    ("attempt", "column"),
    [
        (ended(1, err="Traceback (most recent call last):\n  …\nKeyError: 3\n"), "crashed"),
        (ended(1, err="ddtree-logs: this should not have happened (KeyError: 3)"), "crashed"),
        (ended(99), "crashed"),
        (ended(None, signal.SIGBUS), "crashed"),
        (ended(peak=3 << 30), "crashed"),
        (ended(None, signal.SIGKILL, hung=True), "hung"),
        (ended(out=b"a\x1b[2Jb"), "leaked"),
        (ended(err="a\u202eb"), "leaked"),
    ],
)
def test_the_campaign_notices_a_bad_end(attempt: Attempt, column: str) -> None:
    outcome = Outcome()
    basics(attempt, outcome, "this test")

    assert {name: getattr(outcome, name) for name in COLUMNS} == {**dict.fromkeys(COLUMNS, 0), column: 1}


def test_the_campaign_notices_rows_that_are_lost_or_made_up_and_files_that_are_left(tmp_path: Path) -> None:
    outcome = Outcome()
    (tmp_path / ".x.parquet.1.partial").touch()
    judge(Counter({("a",): 2}), Counter({("a",): 1, ("b",): 1}), outcome, "this test")
    judge(Counter({("a",): 2}), Counter(), outcome, "what was said is no silent loss", said=True)
    left_behind(tmp_path, (), outcome, "this test")

    assert (outcome.lost, outcome.altered, outcome.left_over, outcome.crashed) == (1, 1, 1, 0)


def test_the_page_has_a_row_for_each_kind_and_says_why_of_each_that_is_not_zero() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = {name: cells.split(" | ") for name, cells in re.findall(r"^\| (.+?) \| ([\d, |]+) \|$", page, re.MULTILINE)}

    assert list(rows) == [*(kind.words for kind in KINDS), "all"]
    assert [name for name, cells in rows.items() if name != "all" and set(cells[1:]) != {"0"} and f"**{name}**" not in page] == []
    assert int(rows["all"][0].replace(",", "")) == sum(int(cells[0].replace(",", "")) for name, cells in rows.items() if name != "all")
