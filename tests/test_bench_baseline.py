"""Sweeps saved, loaded and compared: same, slower, faster, or cannot tell."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ddtree_metrics.bench import Plan, Sweep, compare, load_sweep
from ddtree_metrics.bench.answers import TimedAnswer
from ddtree_metrics.bench.stats import summarise
from ddtree_metrics.errors import BenchError, OutputError


def simulate(
    start: int, ms: dict[int, float], *, noise: float = 0.01, prompt_spread: float = 0.0, rounds: int = 9, busy: float = 0.0, **plan: object
) -> Sweep:
    """Make a sweep of a server that takes ``ms[ctx]`` a token.

    ``noise`` is of each request, ``prompt_spread`` of each prompt (the same in all sweeps, as acceptance is), ``busy`` the chance that
    a neighbour makes a long request half as fast.
    """
    rng, made = random.Random(start), Plan(ctx=tuple(ms), repeat=rounds, **plan)  # type: ignore[arg-type]
    answers = []
    for ctx, each in ms.items():
        for number in range(rounds):
            factor = 1 + prompt_spread * random.Random(f"{ctx}/{number}").gauss(0, 1)
            for n in made.lengths:
                took = 0.05 + n * each * factor / 1000 * (1 + abs(rng.gauss(0, noise)))
                if n > 8 and rng.random() < busy:
                    took *= 1.5
                made_answer = TimedAnswer(
                    "measure", n, ctx, number, request_id=f"r{len(answers)}", sent_us=1_780_000_000_000_000, elapsed_s=took
                )
                made_answer.prompt_tokens, made_answer.cached_tokens = ctx, ctx - 1
                made_answer.completion_tokens, made_answer.finish_reason = n, "length"
                answers.append(made_answer)
    points = [summarise(c, [a for a in answers if a.ctx == c], made.lengths) for c in made.ctx]
    return Sweep("http://127.0.0.1:1/v1", made, "tiny", "prose", points, answers, started=1_780_000_000.0, finished=1_780_000_100.0)


FLAT = {64: 4.0, 1024: 5.0, 5120: 15.0}


def verdicts(before: Sweep, now: Sweep, tolerance: float = 0.05) -> dict[int, str]:
    return {v.ctx_req: v.verdict for v in compare(before, now, tolerance).verdicts}


def test_an_unchanged_server_is_the_same_at_every_length():
    assert verdicts(simulate(1, FLAT), simulate(2, FLAT)) == {64: "same", 1024: "same", 5120: "same"}


def test_a_slow_down_is_found_at_the_length_where_it_is():
    after = compare(simulate(1, FLAT), simulate(2, {64: 4.0, 1024: 5.0, 5120: 18.0}))
    assert {v.ctx_req: v.verdict for v in after.verdicts} == {64: "same", 1024: "same", 5120: "slower"}
    slower = after.regressions[0]
    assert slower.ratio == pytest.approx(15 / 18, rel=0.02)  # speed now over speed then
    assert slower.low < 15 / 18 * 1.02
    assert after.sentence == "against the baseline (tolerance 5 %): slower at 5120; same at 64, 1024"


def test_a_faster_server_is_faster():
    assert verdicts(simulate(1, FLAT), simulate(2, {64: 3.0, 1024: 5.0, 5120: 15.0}))[64] == "faster"


def test_a_change_within_the_tolerance_is_none():
    slightly = {64: 4.12, 1024: 5.15, 5120: 15.45}  # 3 % slower
    assert set(verdicts(simulate(1, FLAT), simulate(2, slightly)).values()) == {"same"}
    assert set(verdicts(simulate(1, FLAT), simulate(2, slightly), 0.01).values()) == {"slower"}


def test_too_few_rounds_cannot_tell():
    (v, *_) = compare(simulate(1, FLAT, rounds=3), simulate(2, {64: 9.0, 1024: 9.0, 5120: 30.0}, rounds=3)).verdicts
    assert v.verdict == "cannot tell"
    assert "too few rounds (3 and 3)" in (v.reason or "")


def test_noise_wider_than_the_tolerance_cannot_tell():
    (v,) = compare(simulate(1, {64: 4.0}, noise=0.4), simulate(2, {64: 4.2}, noise=0.4)).verdicts
    assert v.verdict == "cannot tell"


def test_a_busy_machine_is_no_regression_while_undisturbed_rounds_are_as_fast_as_before():
    (v,) = compare(simulate(1, {64: 4.0}, rounds=15), simulate(5, {64: 4.0}, rounds=15, busy=0.85)).verdicts
    assert v.ratio < 0.75
    assert v.verdict == "cannot tell"
    assert "something beside the server" in (v.reason or "")


def test_the_same_prompts_are_compared_round_by_round():
    # prompts differ by 20 %: unpaired, the medians' intervals could not resolve 10 %
    before, after = simulate(1, {64: 4.0}, prompt_spread=0.2), simulate(2, {64: 4.4}, prompt_spread=0.2)
    (v,) = compare(before, after).verdicts
    assert (v.paired, v.verdict) == (True, "slower")
    other = simulate(2, {64: 4.4}, prompt_spread=0.2, seed=77)
    comparison = compare(before, other)
    assert (comparison.verdicts[0].paired, comparison.verdicts[0].verdict) == (False, "cannot tell")
    assert any("prompts differ" in n for n in comparison.notes)


@pytest.mark.parametrize("change", [{"stream": True}, {"chat": True}, {"concurrency": 2}])
def test_sweeps_that_measured_different_things_are_not_compared(change: dict):
    assert set(verdicts(simulate(1, FLAT), simulate(2, {64: 9.0, 1024: 9.0}, **change)).values()) == {"cannot tell"}


def test_lengths_that_only_one_sweep_has_are_named():
    made = compare(simulate(1, {64: 4.0, 99: 4.0}), simulate(2, {64: 4.0, 128: 4.0}))
    assert {v.ctx_req: v.verdict for v in made.verdicts} == {64: "same", 128: "cannot tell"}
    assert made.notes == ["not measured this time: 99"]


def test_changed_flags_of_the_server_are_listed():
    before, after = simulate(1, {64: 4.0}), simulate(2, {64: 4.0})
    before.server = {"kind": "sglang", "version": "0.5.1", "flags": {"page_size": "1", "tp_size": "8"}}
    after.server = {"kind": "sglang", "version": "0.5.1", "flags": {"page_size": "1", "tp_size": "8", "reasoning_parser": "kimi_k2"}}
    assert compare(before, after).changed == {"reasoning_parser": (None, "kimi_k2")}


def test_it_was_not_the_parser():
    """A sweep before and after switching a parser on: the flag is named, and nothing is slower."""
    before, after = simulate(1, FLAT), simulate(2, FLAT)
    after.server = {"flags": {"tool_call_parser": "kimi_k2"}}
    made = compare(before, after)
    assert (list(made.changed), made.regressions) == (["tool_call_parser"], [])


def test_unchanged_sweeps_are_hardly_ever_called_slower():
    wrong = sum(bool(compare(simulate(2 * i, FLAT, noise=0.05), simulate(2 * i + 1, FLAT, noise=0.05)).regressions) for i in range(40))
    assert wrong == 0  # three points each: a false alarm needs an interval of 95 % to lie beyond 5 % altogether


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_a_saved_sweep_comes_back_whole(tmp_path: Path, ending: str):
    made = simulate(1, FLAT)
    made.points[0].notes.append("a note")
    made.points[1].dropped = {"timeout": 2}
    path = tmp_path / f"s.{ending}"
    made.save(path)
    assert load_sweep(path).to_dict() == made.to_dict()


def test_the_parquet_file_is_a_table_of_points(tmp_path: Path):
    simulate(1, FLAT).save(tmp_path / "s.parquet")
    table = pq.read_table(tmp_path / "s.parquet")
    assert table["ctx_req"].to_pylist() == [64, 1024, 5120]
    assert table.schema.field("decode_tok_s").type == "double"
    assert table.schema.field("ctx_req").type == "int64"


def test_json_has_a_version_and_no_nan(tmp_path: Path):
    made = simulate(1, FLAT)
    made.points[0].decode_tok_s = float("nan")
    data = json.loads(made.to_json(), parse_constant=lambda _: pytest.fail("NaN in JSON"))
    assert (data["schema_version"], data["points"][0]["decode_tok_s"]) == (1, None)


@pytest.mark.parametrize("raw", [b"", b"{}", b"[1]", b"PAR1", b"\xff\x00", b'{"kind": "ddtree_metrics.bench", "schema_version": 1}'])
def test_a_file_that_is_no_sweep_is_refused(tmp_path: Path, raw: bytes):
    (tmp_path / "x.json").write_bytes(raw)
    with pytest.raises(BenchError, match="is not a sweep"):
        load_sweep(tmp_path / "x.json")


def test_a_sweep_of_a_newer_version_is_refused(tmp_path: Path):
    (tmp_path / "x.json").write_text(json.dumps(simulate(1, FLAT).to_dict() | {"schema_version": 99}))
    with pytest.raises(BenchError, match="newer version"):
        load_sweep(tmp_path / "x.json")


def test_an_existing_file_is_kept_without_force(tmp_path: Path):
    (tmp_path / "s.json").write_text("mine")
    with pytest.raises(OutputError, match="force"):
        simulate(1, FLAT).save(tmp_path / "s.json", force=False)
    assert (tmp_path / "s.json").read_text() == "mine"


def test_requests_have_the_columns_of_the_requests_table():
    from ddtree_metrics.records import Request
    from ddtree_metrics.schema import columns

    made = simulate(1, {64: 4.0})
    frame = made.requests()
    assert list(frame.columns) == [c.name for c in columns(Request)]
    assert len(frame) == len(made.answers)
    assert (frame["finished"] > frame["received"]).all()


def test_saved_requests_are_read_back_by_read_requests(tmp_path: Path):
    from ddtree_metrics.requests import read_requests

    made = simulate(1, {64: 4.0}, rounds=2)
    made.save_requests(tmp_path / "r.jsonl")
    frame = read_requests([tmp_path / "r.jsonl"])
    assert frame["request_id"].tolist() == ["r0", "r1", "r2", "r3"]
    assert frame["completion_tokens"].tolist() == [8, 264, 8, 264]
    assert frame["received"].dt.year.tolist() == [2026] * 4
    assert frame["prompt_tokens"].tolist() == [64] * 4


def test_the_frame_has_the_names_of_by_context():
    frame = simulate(1, FLAT).frame()
    # prompt + (8 + 264) / 2
    assert frame["x_mean"].tolist() == [64 + 136, 1024 + 136, 5120 + 136]
    assert {"tok_per_s", "tok_per_s_low", "tok_per_s_high", "step_time_mean_ms", "tokens_per_step_pooled"} <= set(frame.columns)
    assert (frame["tok_per_s_low"] <= frame["tok_per_s"]).all()
