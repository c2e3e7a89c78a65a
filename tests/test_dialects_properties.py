"""Properties that hold for any line: the same row however it is written, no exception, and tiers that agree."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddtree_metrics.dialects import DIALECTS
from ddtree_metrics.dialects.engine import Parser
from ddtree_metrics.schema import arrow_schema
from tests.dialect_lines import SAMPLES, batch, plain

SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
HEAD = "[2026-02-01 10:00:00 TP0] "
KEYS = {
    "batch_size": ["bs", "batch_size"],
    "budget": ["budget", "tree_budget"],
    "nodes": ["actual_nodes", "actual_node"],
    "accepted_drafts": ["accepted_drafts", "accepted_draft"],
    "commit_lens": ["commit_lens", "commit_len"],
    "avg_accepted_drafts": ["avg_accepted_drafts", "avg_accepted_draft"],
    "avg_commit_len": ["avg_commit_len", "avg_commit_lens"],
}
LINES = sorted(
    {s.text for d in DIALECTS for line in d.lines for s in line.samples}
    | {x for f in SAMPLES.glob("*/*.log") for x in f.read_text().splitlines() if 0 < len(x) < 2000}
)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=30)
PIECES = st.sampled_from(
    [
        "\x00",
        "\ufffd",
        "\U0001f600",
        '"',
        "'",
        "`",
        "…",
        "...",
        "nan",
        "1e400",
        "99999999999999999999",
        "-1",
        "[",
        "]",
        "(",
        "{",
        "}",
        "=",
        ": ",
        ", ",
        " ",
        "DDTREE metrics: ",
        "Decode batch",
        "commit_len=",
        "[1, 2]",
        "np.int64(3)",
        "[2026-02-30 10:00:00 TP0] ",
        "#token: ",
        "é",
        "٣",
    ]
)


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.integers(1, 4))
    numbers = st.lists(st.integers(0, 99), min_size=size, max_size=size)
    accepted, commit = draw(numbers), draw(numbers)
    return {
        "batch_size": size,
        "budget": draw(st.integers(0, 4096)),
        "nodes": draw(numbers),
        "accepted_drafts": accepted,
        "commit_lens": commit,
        "avg_accepted_drafts": float(f"{sum(accepted) / size:.2f}"),
        "avg_commit_len": float(f"{sum(commit) / size:.2f}"),
    }


@st.composite
def spelled(draw: st.DrawFn, step: dict[str, Any]) -> str:
    pairs = []
    equals = draw(st.booleans())
    for column in draw(st.permutations(list(step))):
        value = step[column]
        if isinstance(value, list):
            text = draw(
                st.sampled_from(
                    [str(value), str(tuple(value)), str(value).replace(" ", ""), f"[{', '.join(f'np.int64({v})' for v in value)}]"]
                )
            )
            if len(value) == 1 and draw(st.booleans()):
                text = str(value[0])
        else:
            text = f"{value:.2f}" if isinstance(value, float) else str(value)
        pairs.append(draw(st.sampled_from(KEYS[column])) + ("=" if equals else ": ") + text)
    if draw(st.booleans()):
        pairs.insert(draw(st.integers(0, len(pairs))), ("draft_ms=" if equals else "draft_ms: ") + "1.25")
    label = draw(st.sampled_from(["DDTREE metrics: ", "ddtree debug: ", "DDTree step "]))
    return HEAD + label + draw(st.sampled_from([" ", ", "]) if equals else st.just(", ")).join(pairs)


@SETTINGS
@given(st.data())
def test_shuffled_aliased_and_scalar_or_list_keys_give_the_same_row(data: st.DataObject) -> None:
    step = data.draw(steps())
    line = data.draw(spelled(step))
    for fast in (True, False):
        parser = Parser(DIALECTS, fast=fast)
        found = parser.feed(batch([line] * 8)).tables
        found = parser.feed(batch([line])).tables  # the compiled reader has been taught by now
        (row,) = found["steps"].to_pylist()
        assert {k: row[k] for k in step} == step, line


@st.composite
def mangled(draw: st.DrawFn) -> str:
    line = draw(st.sampled_from(LINES))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(line)))
        what = draw(st.integers(0, 3))
        if what == 0:
            line = line[:at]
        elif what == 1:
            line = line[:at] + draw(PIECES) + line[at:]
        elif what == 2:
            line = line[:at] + draw(ANY_TEXT) + line[at:]
        else:
            line = line[:at] + line[at + draw(st.integers(1, 5)) :]
    return line


def outcome(parser: Parser, lines: list[str]) -> dict[str, Any]:
    parsed = parser.feed(batch(lines))
    for table, made in parsed.tables.items():
        made.validate(full=True)
        assert made.schema.equals(arrow_schema(next(line.record for d in DIALECTS for line in d.lines if _named(line.record) == table)))
    return {t: list(zip(parsed.line[t].tolist(), map(plain, b.to_pylist()), strict=True)) for t, b in parsed.tables.items()}


def _named(record: type) -> str:
    from ddtree_metrics.records import TABLES

    return next(name for name, r in TABLES.items() if r is record)


@SETTINGS
@given(st.lists(mangled(), min_size=1, max_size=40))
def test_any_characters_around_or_inside_a_line_never_raise_and_the_tiers_agree(lines: list[str]) -> None:
    fast, slow = Parser(DIALECTS), Parser(DIALECTS, fast=False)
    # Four times, so that the compiled reader is taught every label that it can be taught.
    taught = lines * 4
    assert outcome(fast, taught) == outcome(slow, taught)
    assert outcome(fast, lines) == outcome(slow, lines)
    assert fast.broken.counts == slow.broken.counts
    assert fast.quoted.counts == slow.quoted.counts


MARKERS = [(m, line.loose) for d in DIALECTS for line in d.lines if not line.shared for m in line.markers]


def has_marker(line: str) -> bool:
    return any(m.lower() in line.lower() if loose else m in line for m, loose in MARKERS)


def kinds_of_lines(lines: list[str], fast: bool) -> list[tuple[str, int]]:
    """Feed lines one at a time; return each with how often it was counted, as a row, as broken or as quoted."""
    parser = Parser(DIALECTS, on_error="skip", fast=fast)
    made, before = [], 0
    for line in lines:
        rows = sum(b.num_rows for b in parser.feed(batch([line])).tables.values())
        after = parser.broken.total + parser.quoted.total
        made.append((line, rows + after - before))
        before = after
    return made


@pytest.mark.parametrize("fast", [True, False])
def test_every_line_of_the_fixtures_with_a_marker_is_counted_once(fast: bool) -> None:
    counted = kinds_of_lines(LINES, fast)
    assert len(counted) > 300
    assert [line for line, n in counted if n != 1 and has_marker(line)] == []
    assert [line for line, n in counted if n > 1] == []


@SETTINGS
@given(st.lists(mangled(), min_size=1, max_size=40), st.booleans())
def test_every_mangled_line_with_a_marker_is_counted_once(lines: list[str], fast: bool) -> None:
    for line, count in kinds_of_lines(lines, fast):
        assert count == 1 or (count == 0 and not has_marker(line)), line


@SETTINGS
@given(st.lists(ANY_TEXT, min_size=1, max_size=20))
def test_lines_of_anything_never_raise(lines: list[str]) -> None:
    outcome(Parser(DIALECTS), lines)


MEGABYTE = 1 << 20
REPEATED = [
    *sorted({HEAD + m + " " for d in DIALECTS for line in d.lines for m in line.markers}),
    HEAD + "bs=1 commit_lens=[1] x ",
    HEAD + "Decode batch, #running-req: 1, #queue-req: 0 ",
    HEAD + "DDTREE metrics: bs=1 budget=1,024 ",
    "Finish: obj=GenerateReqInput(rid='a'), out={'meta_info': {'id': 'a', ",
    "server_args=ServerArgs(model_path='m', ",
    "[rank0]: ",
    "1/2 [00:01<00:02] ",
]


@pytest.mark.parametrize("unit", REPEATED)
def test_a_line_that_repeats_its_head_is_read_in_linear_time(unit: str) -> None:
    def cost(size: int) -> float:
        parser = Parser(DIALECTS, on_error="skip")
        line = (unit * (size // len(unit) + 1))[:size]
        start = time.process_time()
        outcome(parser, [line])
        return time.process_time() - start

    # A parser that was never used compiles its patterns first. Four times the length is 4 times the work, or 16 times if it is a square.
    cost(1000)
    ratios = (cost(MEGABYTE // 4) / max(cost(MEGABYTE // 16), 0.002) for _ in range(3))
    assert any(ratio < 9 for ratio in ratios)
    # What is a square would take a quarter of an hour here.
    cost(MEGABYTE)


@pytest.mark.parametrize(
    "line",
    [
        HEAD + "DDTREE metrics: " + "x=1 " * 100_000,
        HEAD + "DDTREE metrics: bs=1 commit_lens=[" + "1, " * 200_000 + "1]",
        HEAD + "Decode batch, " + "#a: 1, " * 100_000,
        HEAD + "DDTREE metrics: " + "[" * 100_000,
        HEAD + "Decode batch, " + "(" * 100_000 + ": ",
        "[" * 200_000,
        HEAD * 20_000,
        "Finish: obj=" + "{" * 100_000,
        '{"timestamp": "a", "event": "request.finished", "x": ' + "[" * 100_000,
        "server_args=ServerArgs(" + "a=(" * 50_000,
        "INFO:     " + "a" * 500_000,
        "x" * 1_000_000,
        HEAD + "DDTREE metrics: commit_lens" + " " * 200_000 + "=",
        HEAD + "Decode batch, a" + "a b" * 60_000,
    ],
    ids=range(14),
)
def test_lines_of_a_megabyte_of_garbage_are_read_in_linear_time(line: str) -> None:
    # No time is asserted: what is not linear in the length would never end here.
    outcome(Parser(DIALECTS), [line, line[:-1]])
