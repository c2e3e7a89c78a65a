"""``ddtree-logs requests``: the slowest, those around a time, one; and why each stands out."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pandas as pd
from click.testing import CliRunner, Result

from ddtree_metrics.cli import main
from ddtree_metrics.diagnosis.standing_out import why_slow
from tests.captures import FIXTURES, journal_export

INCIDENT = FIXTURES / "incident" / "simulated-journal.export.zst"
REQUESTS = INCIDENT.with_name("simulated-requests.jsonl")


def run(*args: str | Path, columns: int = 160) -> Result:
    return CliRunner().invoke(main, ["requests", *map(str, args)], env={"COLUMNS": str(columns)}, catch_exceptions=False)


def test_the_slowest_requests_of_the_incident_are_its_long_ones() -> None:
    # simulator_incident.py: prompts of 5000, 4000 and 3239 tokens; all others have 2800 at most
    lines = run(INCIDENT, "--requests", REQUESTS, "--slowest", "3").stdout.splitlines()
    assert lines[0].split() == ["request", "time", "context", "batch", "tok/s", "ms/step", "tok/step", "why", "it", "stands", "out"]
    assert [line.split()[0] for line in lines[1:]] == ["5fc3d3d4", "385d98c4", "the-slow"]
    assert all("long context" in line for line in lines[1:])
    # simulated-truth.json: the slow one made 32.05 tok/s at 124.7 ms and 4.00 tokens a step
    slow = lines[3].split()
    assert abs(float(slow[4]) / 32.05 - 1) < 0.01
    assert abs(float(slow[5]) / 124.7 - 1) < 0.01
    assert slow[6] == "4.00"


def test_in_a_narrow_terminal_the_reason_stands_below_its_request() -> None:
    for columns in (60, 80):
        lines = run(INCIDENT, "--requests", REQUESTS, "--slowest", "2", columns=columns).stdout.splitlines()
        assert max(map(len, lines)) <= columns
        reasons = [line for before, line in pairwise(lines) if line.startswith("  ") and not before.startswith("  ")]
        assert [reason.startswith("  long context") for reason in reasons] == [True, True]


def test_around_a_time_lists_what_began_nearest_to_it_in_the_order_of_time() -> None:
    # the README of capture A lists them in the order of their first step; run 2 began at 15:19:17, its first request at 15:19:51
    lines = run(journal_export("A"), "--around", "15:19:51", "--slowest", "3", "--tz", "UTC").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:] if not line.startswith(" ")] == ["1f784064", "45665f43", "e1951341"]


def test_one_request_is_found_by_the_beginning_of_its_id() -> None:
    made = json.loads(run(INCIDENT, "--requests", REQUESTS, "--id", "the-sl", "--json").stdout)
    assert [row["request_id"] for row in made] == ["the-slow-one-simulated"]
    assert made[0]["prompt_len"] == 3239


def test_csv_has_all_requests(tmp_path: Path) -> None:
    done = run(INCIDENT, "--requests", REQUESTS, "--csv")
    path = tmp_path / "x.csv"
    path.write_text(done.stdout)
    made = pd.read_csv(path)
    assert len(made) == 51
    assert {"request_id", "tok_per_s", "step_time_ms", "tokens_per_step", "why"} <= set(made.columns)


def rows(*requests: tuple[float, float, float, float]) -> pd.DataFrame:
    """Context, batch, ms a step, tokens a step of each request."""
    frame = pd.DataFrame(requests, columns=["context_len", "batch_size", "step_time_ms", "tokens_per_step"])
    return frame.assign(tok_per_s=1000 * frame["tokens_per_step"] / frame["step_time_ms"], run=1)


USUAL = [(500.0, 1.0, 20.0, 4.0)] * 5


def test_a_request_that_is_not_slower_than_usual_stands_out_by_nothing() -> None:
    # 16 % longer steps are beyond the 15 % of grace, 14 % are not
    assert why_slow(rows(*USUAL, (500, 1, 22.8, 4.0)))[-1] == ""
    assert why_slow(rows(*USUAL, (500, 1, 23.3, 4.0)))[-1] != ""


def test_slow_steps_at_the_context_of_others_are_told_from_long_context() -> None:
    # twice as long as five requests of the same context and batch
    assert why_slow(rows(*USUAL, (500, 1, 40, 4.0)))[-1] == "steps × 2.00 those of requests like it"
    assert why_slow(rows(*USUAL, (5000, 1, 40, 4.0)))[-1] == "long context: 5,000 (usual 500)"
    assert why_slow(rows(*USUAL, (500, 4, 40, 4.0)))[-1] == "batch of 4.0 (usual 1.0)"


def test_few_tokens_a_step_are_told_apart_from_slow_steps() -> None:
    assert why_slow(rows(*USUAL, (500, 1, 20, 2.0)))[-1] == "2.00 tokens/step (usual 4.00)"
    half = rows(*USUAL, *[(500.0, 1.0, 20.0, 2.0)] * 3)
    half.loc[5:, "run"] = 2
    assert why_slow(half)[-1] == "2.00 tokens/step (usual 4.00), as all of its server start"


def test_of_requests_without_numbers_nothing_is_said() -> None:
    assert why_slow(rows(*USUAL, (float("nan"), float("nan"), float("nan"), float("nan"))))[-1] == ""
    assert why_slow(rows()) == []
