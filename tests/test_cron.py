"""For cron: a summary in a file, and exit code 1 with the reason where a server is slow."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from ddtree_metrics.cli import main
from tests.captures import FIXTURES, journal_export

A = str(journal_export("A"))
INCIDENT = str(FIXTURES / "incident" / "simulated-journal.export.zst")


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args], catch_exceptions=False)


# capture A as a whole: 3.02 tokens at 111.3 ms are 27.1 tok/s; 34.2 before and 18.4 after the restart (truth-summary.json)


@pytest.mark.parametrize(("limit", "code"), [(26, 0), (28, 1)])
def test_a_speed_below_the_limit_is_exit_1_with_the_reason_after_the_numbers(limit: int, code: int) -> None:
    done = run("summary", A, "--fail-below", str(limit))
    assert done.exit_code == code
    assert ("27.1 tok/s a request are below 28" in done.stderr) == bool(code)
    assert "tok/s" in done.stdout


@pytest.mark.parametrize("command", [["summary"], ["diagnose"], ["compare", "run:1", "run:2"]])
@pytest.mark.parametrize(("share", "code"), [("10%", 1), ("0.6", 0)])
def test_slower_by_more_than_the_share_is_exit_1_with_the_reason(command: list[str], share: str, code: int) -> None:
    # 46 % slower as logged, 49 % at equal mix
    done = run(*command, A, "--fail-if-slower", share)
    assert done.exit_code == code
    assert ("slower since the restart at 15:19:17: 34.3 → 18.4 tok/s" in done.stderr) == bool(code)


def test_long_context_is_no_regression() -> None:
    done = run("diagnose", INCIDENT, "--requests", Path(INCIDENT).with_name("simulated-requests.jsonl"), "--fail-if-slower", "5%")
    assert "LONG CONTEXT IS SLOW" in done.stdout
    assert done.exit_code == 0


def test_a_speed_that_is_not_known_is_neither_good_nor_bad(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("[2026-05-05 12:00:01 TP0] nothing of interest\n")
    done = run("summary", tmp_path / "run.log", "--fail-below", "30")
    assert done.exit_code == 3
    assert "is not known" in done.stderr


def test_csv_has_a_row_for_the_log_each_start_and_each_bin(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    assert run("summary", A, "-o", path).exit_code == 0
    made = pd.read_csv(path)
    assert made["section"].value_counts().to_dict() == {"context": 7, "server start": 2, "all": 1}
    # truth-summary.json
    assert made.loc[made["name"] == "run 1", "tokens_per_step_micro"].item() == pytest.approx(3.725, rel=0.001)
    assert made.loc[made["name"] == "run 2", "called"].item() == "15:19:17, draft model and reasoning parser changed"
    assert run("summary", A, "--csv").stdout == path.read_text()


def test_a_file_is_json_or_text_by_its_name_and_is_not_written_over(tmp_path: Path) -> None:
    assert run("summary", A, "-o", tmp_path / "x.json").exit_code == 0
    assert json.loads((tmp_path / "x.json").read_text())["total"]["name"] == "all"
    assert run("summary", A, "-o", tmp_path / "x.txt").exit_code == 0
    assert "run 2: 15:19:17" in (tmp_path / "x.txt").read_text()
    before = (tmp_path / "x.txt").read_text()
    refused = run("summary", A, "-o", tmp_path / "x.txt")
    assert refused.exit_code == 2
    assert (tmp_path / "x.txt").read_text() == before
    assert run("summary", A, "-o", tmp_path / "x.docx").exit_code == 2
    assert run("summary", A, "-o", tmp_path / "y.csv", "--json").exit_code == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.json", "x.txt"]
