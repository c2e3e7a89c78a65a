"""Every dialect carries its own samples, and every sample becomes what stands beside it."""

from __future__ import annotations

import dataclasses

import pytest

from ddtree_metrics.dialects import DIALECTS, Dialect, Line, Sample, detect, get
from ddtree_metrics.dialects.custom import check_sample
from ddtree_metrics.errors import UnknownDialect
from ddtree_metrics.records import Event

_ALL = [
    pytest.param(dialect, line, sample, id=f"{dialect.name}-{line.marker.strip()}-{line.pid or ''}{k}")
    for dialect in DIALECTS
    for line in dialect.lines
    for k, sample in enumerate(line.samples)
]


@pytest.mark.parametrize(("dialect", "line", "sample"), _ALL)
def test_every_sample_becomes_what_the_declaration_says(dialect: Dialect, line: Line, sample: Sample) -> None:
    assert check_sample(dialect, line, sample) is None


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_every_line_kind_has_samples_and_names_real_columns(dialect: Dialect) -> None:
    dialect.check()


def test_a_dialect_without_samples_is_refused() -> None:
    bare = Dialect("bare", (Line(Event, marker="X", pattern="^X"),))
    with pytest.raises(UnknownDialect, match="has no samples"):
        get(bare)


def test_a_column_that_the_table_does_not_have_is_refused() -> None:
    wrong = Dialect("wrong", (Line(Event, marker="X", pattern="^X(?P<colour>.)", samples=(Sample("X"),)),))
    with pytest.raises(UnknownDialect, match="no column 'colour'"):
        get(wrong)


def test_a_name_is_found_and_a_typo_gets_a_hint() -> None:
    assert get("sglang").name == "sglang"
    assert get(DIALECTS[0]) is DIALECTS[0]
    with pytest.raises(UnknownDialect, match="no dialect 'sglnag'; did you mean 'sglang'"):
        get("sglnag")


def test_the_dialect_of_some_lines_is_detected() -> None:
    line = DIALECTS[0].lines[0].samples[0].text
    assert [d.name for d in detect([line, "noise", "Suppressed 3 messages from a.service", line])] == ["sglang", "journald"]
    assert detect(["hello", ""]) == []


def test_line_declarations_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        DIALECTS[0].lines[0].marker = "other"  # type: ignore[misc]
