"""``ddtree-logs compare``: two things against each other, and which of them is named as what."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ddtree_metrics.cli import main
from tests import journals
from tests.captures import FIXTURES, journal_export
from tests.journals import T0

A = str(journal_export("A"))
INCIDENT = str(FIXTURES / "incident" / "simulated-journal.export.zst")


def run(*args: str | Path, columns: int = 100) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, args)], env={"COLUMNS": str(columns)}, catch_exceptions=False)


def comparison(*args: str | Path) -> dict[str, Any]:
    done = run(*args, "--json")
    assert done.exit_code == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)["comparisons"][0]
    return made


@pytest.mark.parametrize(
    "args",
    [
        ("run:1", "run:2", A),
        ("15:17..15:19", "15:19..15:21", A, "--tz", "UTC"),
        # run 2 began at 15:19:17, and nothing was decoded from 15:18:53 to 15:19:50
        ("--around", "15:19:17", A, "--tz", "UTC"),
    ],
)
def test_the_two_runs_of_capture_a_are_compared_however_they_are_named(args: tuple[str, ...]) -> None:
    # truth-summary.json: 3.725 and 2.108 tokens a step
    made = comparison(*args)
    assert made["tokens_before"] == pytest.approx(3.725, rel=0.02)
    assert made["tokens_after"] == pytest.approx(2.108, rel=0.02)


def test_two_files_are_compared_by_their_names() -> None:
    lines = run(INCIDENT, A).stdout.splitlines()
    assert any("journal.export.zst IS SLOWER THAN simulated-journal.export.zst" in line for line in lines)


def test_two_files_of_one_service_are_compared_by_their_times(tmp_path: Path) -> None:
    text = "[2026-05-05 12:00:01 TP0] DDTREE metrics: bs=1 budget=8 actual_nodes=[9] accepted_drafts=[3] commit_lens=[{}]"
    for name, begin, tokens in (("monday", 0, 4), ("tuesday", 86_400_000_000, 2)):
        entries = (journals.entry(T0 + begin + i * 40_000, text.format(tokens)) for i in range(60))
        (tmp_path / f"{name}.export").write_bytes(b"".join(entries))
    made = comparison(tmp_path / "monday.export", tmp_path / "tuesday.export")
    assert (made["before"], made["after"]) == ("monday.export", "tuesday.export")
    assert (made["tokens_before"], made["tokens_after"]) == (4.0, 2.0)


def test_two_services_are_compared_by_their_names(tmp_path: Path) -> None:
    text = "[2026-05-05 12:00:01 TP0] DDTREE metrics: bs=1 budget=8 actual_nodes=[9] accepted_drafts=[3] commit_lens=[{}]"
    entries = [
        journals.entry(
            T0 + i * 40_000, text.format(4 - 2 * (i % 2)), unit=f"sglang-{'ab'[i % 2]}.service", pid=1 + i % 2, stream=f"{i % 2:032x}"
        )
        for i in range(120)
    ]
    (tmp_path / "two.export").write_bytes(b"".join(entries))
    made = comparison("sglang-a.service", "sglang-b.service", tmp_path / "two.export")
    assert (made["tokens_before"], made["tokens_after"]) == (4.0, 2.0)


def test_the_last_minute_is_compared_with_the_one_before_it() -> None:
    # capture A ends at 15:20:30: from 15:19:30 on all is run 2, and before it the end of run 1
    made = comparison("--last", "1m", A)
    assert made["tokens_after"] == pytest.approx(2.108, rel=0.02)
    assert made["tokens_before"] > 3


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((A,), "give two things to compare"),
        (("--around", "15:19", "--last", "1h", A), "give one of them"),
        ((A, A), "are of one service and overlap in time"),
        (("run:1", "run:7", A), "there is no run 7"),
    ],
)
def test_what_cannot_be_compared_says_why(args: tuple[str, ...], said: str) -> None:
    done = run(*args)
    assert done.exit_code in (1, 2)
    assert said in done.stderr


def test_two_pipes_are_refused_before_anything_is_taken_out_of_them(tmp_path: Path) -> None:
    # Two files are read twice, and a pipe gives its bytes once.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = run(pipe, A)
    assert done.exit_code == 2
    assert "is a pipe and can be read only once" in " ".join(done.stderr.split())
