"""What the numbers count: inferred, with the evidence, and never assumed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ddtree_metrics.coverage import BrokenKind, Coverage
from ddtree_metrics.records import TABLES
from ddtree_metrics.schema import arrow_schema
from ddtree_metrics.steps.conventions import Conventions


def _conventions(rows: list[dict[str, Any]]) -> Conventions:
    made = Conventions()
    made.feed(pa.RecordBatch.from_pylist(rows, schema=arrow_schema(TABLES["steps"])))
    return made


A = {"batch_size": 1, "budget": 16, "nodes": [17], "accepted_drafts": [4], "commit_lens": [5]}
B = {"batch_size": 1, "budget": 16, "nodes": [17], "accepted_drafts": [4], "commit_lens": [4]}


def test_o2_a_file_with_commit_one_above_accepted_says_so() -> None:
    made = _conventions([A, A, A])

    assert made.commit_minus_accepted == {1: 3}
    assert made.bonus == 1
    assert made.sentence().startswith("commit = accepted + 1 bonus")


def test_o2_a_file_with_commit_equal_to_accepted_says_that_no_bonus_is_visible() -> None:
    made = _conventions([B, B])

    assert made.bonus == 0
    assert made.sentence().startswith("commit = accepted (bonus not visible")


def test_o2_a_mixture_is_said_with_the_counts_of_each() -> None:
    made = _conventions([A, A, A, B, B])

    assert made.mixed
    assert made.bonus is None
    assert "3 with commit = accepted + 1" in made.sentence()
    assert "2 with commit = accepted" in made.sentence()


def test_a_few_cut_last_steps_do_not_hide_the_convention() -> None:
    # 19 steps with the bonus, 1 cut at its request's end: 95 %
    assert _conventions([A] * 19 + [B]).bonus == 1


def test_lines_with_averages_only_are_compared_where_the_batch_is_one() -> None:
    line = {"batch_size": 1, "avg_accepted_drafts": 4.0, "avg_commit_len": 5.0}

    assert _conventions([line]).commit_minus_accepted == {1: 1}
    assert _conventions([{**line, "batch_size": 2}]).commit_minus_accepted == {}


def test_one_number_alone_says_nothing() -> None:
    made = _conventions([{"batch_size": 1, "avg_accepted_drafts": 4.0}])

    assert made.bonus is None
    assert "cannot be told" in made.sentence()


def test_copies_from_other_ranks_are_not_counted() -> None:
    assert _conventions([A, {**A, "step_why": "duplicate_rank"}]).commit_minus_accepted == {1: 1}


@pytest.mark.parametrize(
    ("nodes", "root"),
    [
        ([17], 1),  # budget 16 and 17 nodes: only the root explains it
        ([16], None),  # 16 of 16 once: with a root a tree of 15 nodes may print the same
        ([18], None),  # more than the root can explain
    ],
)
def test_whether_nodes_count_the_root_follows_from_the_budget(nodes: list[int], root: int | None) -> None:
    assert _conventions([{**A, "nodes": nodes}]).root == root


def test_trees_that_reach_the_budget_often_and_never_exceed_it_have_no_root() -> None:
    assert _conventions([{**A, "nodes": [16]}] * 10).root == 0


def test_conventions_survive_being_written_down() -> None:
    made = _conventions([A, B])

    assert Conventions.from_dict(made.to_dict()) == made


def test_what_the_user_says_goes_before_what_is_inferred_and_the_contradiction_is_said() -> None:
    made = _conventions([A, A, B])
    made.say(bonus=False, root=None, by="user")

    assert made.bonus == 0
    assert made.sentence() == "commit = accepted (bonus not visible) (as the user says); the data say otherwise in 2 of 3"
    assert made.to_dict()["from"] == "user"


def test_coverage_survives_being_written_down() -> None:
    made = Coverage(source="run.log", lines=7, parsed={"steps": 3}, clock_steps=[-3600.0], damaged=["x.journal: cut"])
    made.broken = [BrokenKind("sglang", "steps", "cut", 2, [("run.log:3", "DDTREE metrics: bs=")])]
    made.saw("steps", 1, 5, 9)

    assert Coverage.from_dict(made.to_dict()) == made


def test_coverage_of_several_files_adds_up() -> None:
    one = Coverage(source="a", lines=2, parsed={"steps": 1}, suppressed_lines=11, first_us=5, last_us=6)
    two = Coverage(source="b", lines=3, parsed={"steps": 2, "decode": 1}, suppressed_lines=118, first_us=1, last_us=2)
    total = Coverage.merged([one, two])

    assert (total.lines, total.parsed, total.suppressed_lines) == (5, {"steps": 3, "decode": 1}, 129)
    assert (total.first_us, total.last_us) == (1, 6)
    assert "at least 129 lines missing" in str(total)
