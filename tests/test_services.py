"""Two services in one journal: whose row is whose, and whose start."""

from __future__ import annotations

import io

import ddtree_metrics as ddt
from ddtree_metrics.cli.inspect_command import describe, lines_of
from tests.journals import T0, entry

A, B = "sglang-a.service", "sglang-b.service"
STEP = "DDTREE metrics: bs=1 budget=16 actual_nodes=[17] accepted_drafts=[4] commit_lens=[5]"


def args(model: str, more: str = "") -> str:
    return f"server_args=ServerArgs(model_path='{model}', tp_size=1{more})"


def read(*lines: tuple[str, int, str]) -> ddt.Log:
    """Unit, process and text of each line, 40 ms apart."""
    data = b"".join(
        entry(T0 + i * 40_000, text, unit=unit, pid=pid, stream=f"{pid:032x}", ident=unit[:8]) for i, (unit, pid, text) in enumerate(lines)
    )
    return ddt.read_text(io.BytesIO(data))


def test_rows_of_two_services_in_one_journal_are_told_apart_by_their_unit() -> None:
    log = read(*[(A, 1, STEP), (B, 2, STEP)] * 10, (B, 2, STEP))
    assert log.steps["unit"].value_counts().to_dict() == {A: 10, B: 11}
    # each service makes a step every 80 ms, though a line comes every 40
    assert set(log.steps["step_us"].dropna()[:-1]) == {80_000}


def test_inspect_lists_each_service_with_its_counts() -> None:
    log = read((A, 1, args("a")), (B, 2, args("b")), *[(A, 1, STEP), (B, 2, STEP)] * 10, (B, 2, STEP))
    found = describe(log, joined=False)
    assert found["services"] == [
        {"host": "gpu1", "unit": A, "steps": 10, "servers": 1},
        {"host": "gpu1", "unit": B, "steps": 11, "servers": 1},
    ]
    text = "\n".join(lines_of(found))
    assert f"service     {A}: 10 steps, 1 servers" in text
    assert f"{B}: 11 steps, 1 servers" in text


def test_the_starts_of_two_services_stay_two_though_their_lines_are_mixed() -> None:
    pool = "[2026-05-05 12:00:01 TP0] max_total_num_tokens={}, chunked_prefill_size=1, context_len=65536"
    log = read((A, 1, args("a")), (B, 2, args("b")), (B, 2, pool.format(200)), (A, 1, pool.format(100)))
    starts = {row["unit"]: (dict(row["args"])["model_path"], row["max_total_tokens"]) for row in log.table("servers").to_pylist()}
    assert starts == {A: ("a", 100), B: ("b", 200)}


def test_a_later_start_of_a_service_is_not_merged_into_the_one_before() -> None:
    pool = "[2026-05-05 12:00:01 TP0] max_total_num_tokens={}, chunked_prefill_size=1"
    # the scheduler is another process than the one that prints the arguments, as in the real capture
    log = read((A, 1, args("a")), (A, 2, pool.format(100)), (A, 7, args("a")), (A, 8, pool.format(300)))
    assert log.servers["max_total_tokens"].tolist() == [100, 300]
    assert log.servers["pid"].tolist() == [1, 7]


def test_the_starts_of_two_files_without_units_stay_two(tmp_path) -> None:
    (tmp_path / "a.log").write_text(f"[2026-05-05 12:00:00] {args('a')}\n")
    (tmp_path / "b.log").write_text("[2026-05-05 12:00:01 TP0] max_total_num_tokens=300, chunked_prefill_size=1\n")
    log = ddt.read_text([tmp_path / "a.log", tmp_path / "b.log"])
    assert log.servers["max_total_tokens"].isna().tolist() == [True, False]
