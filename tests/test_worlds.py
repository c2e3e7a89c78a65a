"""The simulator of servers is checked against arithmetic that does not depend on it."""

from __future__ import annotations

import functools
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worlds import SCENARIOS, World, make
from tests.worlds.build import spacing, traffic
from tests.worlds.engine import DEPTH, RunLog, Server, simulate
from tests.worlds.lines import decode_line
from tests.worlds.truth import EVERYTHING

REMOTE = next((p for p in ("/lib/systemd/systemd-journal-remote", "/usr/lib/systemd/systemd-journal-remote") if Path(p).exists()), None)
RESTARTS = ["harmless_restart", "drafter_worse", "drafter_better", "backend_and_drafter"]
TREE = re.compile(rb"DDTREE metrics: bs=(\d+) budget=(\d+) .*?accepted_drafts=\[([\d, ]+)\] commit_lens=\[([\d, ]+)\]")
DECODE = re.compile(
    rb"\[(\S+ \S+) TP0\] Decode batch, #running-req: (\d+), #token: (\d+), .*?accept len: ([\d.]+), accept rate: ([\d.]+), "
    rb"cuda graph: True, gen throughput \(token/s\): ([\d.]+)"
)


@functools.cache
def world(name: str, seed: int = 1) -> World:
    return make(name, seed)


def log_of(one: World) -> bytes:
    (name,) = set(one.files) - {"requests.jsonl"}
    return one.files[name]


def rows_of(one: World) -> list[dict[str, Any]]:
    return [json.loads(line) for line in one.files["requests.jsonl"].splitlines()]


def entries(text: bytes) -> Iterator[dict[str, bytes]]:
    """Read export text: `NAME=value` lines, or a name, eight bytes of length and so many bytes."""
    entry: dict[str, bytes] = {}
    at = 0
    while at < len(text):
        end = text.index(b"\n", at)
        line, at = text[at:end], end + 1
        if not line:
            yield entry
            entry = {}
        elif b"=" in line:
            name, _, value = line.partition(b"=")
            entry[name.decode()] = value
        else:
            length = int.from_bytes(text[at : at + 8], "little")
            entry[line.decode()] = text[at + 8 : at + 8 + length]
            at += 8 + length + 1


def step_lines(one: World) -> list[tuple[int, bool, list[int]]]:
    """Return of each tree line its time in microseconds, whether a step is the line before, and what was committed."""
    out, previous = [], False
    for entry in entries(log_of(one)):
        found = TREE.search(entry["MESSAGE"])
        if found is not None:
            out.append((int(entry["__MONOTONIC_TIMESTAMP"]), previous, [int(x) for x in found[4].split(b",")]))
        if b"Decode batch" not in entry["MESSAGE"]:
            previous = found is not None
    return out


def sides_of(one: World) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
    """Return step times in ms and committed tokens of steps alone in the batch, before and after the last start or the break."""
    starts = [int(e["__MONOTONIC_TIMESTAMP"]) for e in entries(log_of(one)) if b"ready to roll" in e["MESSAGE"]]
    cut = starts[-1]
    if one.truth.break_time_us is not None:
        first = next(entries(log_of(one)))
        cut = one.truth.break_time_us - int(first["__REALTIME_TIMESTAMP"]) + int(first["__MONOTONIC_TIMESTAMP"])
    lines = step_lines(one)
    sides: tuple[list[tuple[float, int]], list[tuple[float, int]]] = ([], [])
    for (earlier, _, _), (at, follows, commits) in itertools.pairwise(lines):
        if follows and len(commits) == 1 and earlier >= starts[0]:
            sides[earlier >= cut].append(((at - earlier) / 1000, commits[0]))
    return sides


def accounts(run: RunLog) -> Iterator[tuple[int, int]]:
    for request in run.requests:
        overshoot = 1 + request.retractions + request.committed - request.max_tokens
        yield overshoot, request.committed - request.steps - sum(k * n for k, n in enumerate(request.histogram))


def test_scenarios_are_many_and_named_after_their_functions() -> None:
    assert len(SCENARIOS) >= 52
    assert all(name == function.__name__ for name, function in SCENARIOS.items())


@pytest.mark.parametrize("name", SCENARIOS)
def test_truths_are_consistent(name: str) -> None:
    one = world(name)
    truth = one.truth
    assert one.name == name
    assert truth.direction in {"slower", "faster", "unchanged"}
    assert truth.causes <= EVERYTHING
    assert truth.together <= EVERYTHING
    assert not truth.never & truth.causes
    assert truth.separable == (not truth.together)
    assert (one.before is None) == (one.after is None)
    if truth.speed_ratio is not None:
        low, high = {"slower": (0.0, 0.93), "faster": (1.07, 99.0), "unchanged": (0.85, 1.18)}[truth.direction]
        assert low < truth.speed_ratio < high


@pytest.mark.parametrize("name", SCENARIOS)
def test_tokens_of_lines_and_rows_agree(name: str) -> None:
    """Each request gives one token from its prefill, one from each prefill after a retraction, the rest from steps."""
    one = world(name)
    if "requests.jsonl" not in one.files or name == "suppressed_lines":
        return
    rows = rows_of(one)
    expected = sum(row["completion_tokens"] - 1 - row["num_retractions"] for row in rows)
    lines = TREE.findall(log_of(one))
    if lines:
        commits = [int(x) for line in lines for x in line[3].split(b",")]
        assert all(int(bs) == len(commit.split(b",")) == len(accepted.split(b",")) for bs, _, accepted, commit in lines)
        assert len(commits) == sum(row.get("spec_verify_ct", 0) for row in rows)
        assert 0 <= sum(commits) - expected <= DEPTH * len(rows)
        assert 1 <= min(commits) <= max(commits) <= DEPTH + 1
        assert 300 <= len(lines) <= 9000
    for row in rows:
        if "spec_verify_ct" in row:
            histogram = row["spec_correct_drafts_histogram"]
            assert sum(histogram) == row["spec_verify_ct"]
            assert sum(k * n for k, n in enumerate(histogram)) == row["spec_num_correct_drafts"]
        assert row["request_received_ts"] <= row["forward_entry_time"] < row["prefill_finished_time"] < row["request_finished_ts"]


def test_a_request_commits_its_tokens_and_at_most_the_depth_beyond() -> None:
    server = Server()
    (run,) = simulate([(server, traffic(3, 1, 30, every=1.0))], 3)
    assert {extra for extra, _ in accounts(run)} <= set(range(DEPTH + 1))
    assert all(difference == 0 for _, difference in accounts(run))
    assert all(request.finished_at > request.first_at >= request.prefill_at >= request.received_at for request in run.requests)


def test_retracted_requests_lose_their_place_and_get_one_token_from_the_new_prefill() -> None:
    server = Server(pool=5200, new_token_ratio=0.05)
    every = spacing(server, 9, (300, 800), (350, 600))
    (run,) = simulate([(server, traffic(3, 1, 50, prompts=(300, 800), lengths=(350, 600), every=every))], 3)
    assert len(run.retractions) == sum(request.retractions for request in run.requests) > 5
    assert all(0 <= extra <= DEPTH + request.retractions for (extra, _), request in zip(accounts(run), run.requests, strict=True))
    assert all(step.used <= server.pool for step in run.steps)


def test_steps_and_prefills_never_overlap_and_fill_the_time_of_a_busy_server() -> None:
    (run,) = simulate([(Server(), traffic(4, 1, 40, every=0.4))], 4)
    spans = sorted([(s.start, s.end) for s in run.steps] + [(p.start, p.end) for p in run.prefills])
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    for request in run.requests[1:]:
        steps = [s for s in run.steps if request.rid in s.rids]
        waited = request.finished_at - request.first_at
        inside = sum(p.end - p.start for p in run.prefills if request.first_at <= p.start < request.finished_at)
        assert sum(s.end - s.start for s in steps) + inside == pytest.approx(waited)


def test_step_times_follow_the_formula() -> None:
    server = Server(base_ms=20, context_ms=3, sequence_ms=2)
    (run,) = simulate([(server, traffic(5, 1, 60, every=0.5))], 5)
    steps = run.measured()
    design = np.array([[1.0, s.context / 1000, s.batch - 1] for s in steps])
    took = np.array([(s.end - s.start) * 1000 for s in steps])
    fit = np.linalg.lstsq(design, took, rcond=None)[0]
    assert fit == pytest.approx([20, 3, 2], rel=0.06)


def test_commits_follow_the_acceptance_of_the_text() -> None:
    (run,) = simulate([(Server(), traffic(6, 1, 60, text=0.6, text_sd=0.1))], 6)
    steps = run.measured()
    mean = float(np.mean([a + 1 for s in steps for a in s.accepted]))
    expected = float(np.mean([run.server.mean_commit(p) for s in steps for p in s.places]))
    assert mean == pytest.approx(expected, rel=0.03)


def test_concurrency_is_about_what_was_asked() -> None:
    for wanted, bounds in ((4, (2.5, 7.0)), (16, (9.0, 26.0))):
        server = Server(context_ms=1.2, sequence_ms=1.5, max_running=2 * wanted)
        every = spacing(server, wanted, (200, 6000), (150, 400))
        (run,) = simulate([(server, traffic(7, 1, 60 * wanted // 4, prompts=(200, 6000), lengths=(150, 400), every=every))], 7)
        times = np.array([s.end - s.start for s in run.measured()])
        batches = np.array([s.batch for s in run.measured()])
        assert bounds[0] < float((times * batches).sum() / times.sum()) < bounds[1]


def test_stock_line_counts_the_window() -> None:
    (run,) = simulate([(Server(), traffic(8, 1, 20, every=1.0))], 8)
    window, since = run.steps[100:140], run.steps[99].end
    tokens = sum(a + 1 for s in window for a in s.accepted)
    sequences = sum(len(s.accepted) for s in window)
    line = decode_line(window, since, 5, 400_000)
    assert f"gen throughput (token/s): {tokens / (window[-1].end - since):.2f}" in line
    assert f"accept len: {tokens / sequences:.2f}, accept rate: {(tokens - sequences) / sequences / 4:.2f}" in line
    assert f"#running-req: {len(window[-1].rids)}" in line
    assert "accept" not in decode_line(window, since, None, 400_000)


@pytest.mark.parametrize("name", ["stock_context", "stock_context_no_rows", "every_step_context"])
def test_throughput_of_stock_lines_is_tokens_over_the_time_between_them(name: str) -> None:
    interval = 1 if name.startswith("every") else 40
    found = DECODE.findall(log_of(world(name)))
    stamps = [np.datetime64(stamp.decode().replace(" ", "T"), "ms").astype(int) for stamp, *_ in found]
    good = 0
    for k in range(1, len(found)):
        _, running, _, length, _, rate = found[k]
        implied = interval * int(running) * float(length) / float(rate)
        assert implied == pytest.approx((stamps[k] - stamps[k - 1]) / 1000, abs=0.0025, rel=0.006)
        good += 1
    assert good > 100


@pytest.mark.parametrize(
    "name",
    ["harmless_restart", "drafter_worse", "drafter_better", "heavy_tails_and_backend", "backend_and_drafter", "step_break", "mended"],
)
def test_step_ratio_holds_on_the_lines(name: str) -> None:
    one = world(name)
    before, after = sides_of(one)
    ratio = float(np.median([t for t, _ in after]) / np.median([t for t, _ in before]))
    assert ratio == pytest.approx(one.truth.step_ratio, rel=0.015)


@pytest.mark.parametrize(
    "name", ["harmless_restart", "drafter_worse", "drafter_better", "backend_and_drafter", "acceptance_to_one", "budget_cut"]
)
def test_tokens_ratio_holds_on_the_lines(name: str) -> None:
    one = world(name)
    before, after = sides_of(one)
    ratio = float(np.mean([n for _, n in after]) / np.mean([n for _, n in before]))
    assert ratio == pytest.approx(one.truth.tokens_ratio, rel=0.06)


def placed(one: World) -> list[tuple[float, float, bool]]:
    """Return of each step alone in its batch its context in thousands, its time in ms, and whether it is of the last start."""
    rows = sorted(rows_of(one), key=lambda row: row["prefill_finished_time"])
    warmups = [k for k, row in enumerate(rows) if row["prompt_tokens"] == 6]
    lines = step_lines(one)
    out = []
    k = 0
    for number, row in enumerate(rows):
        context = row["prompt_tokens"]
        for step in range(row["spec_verify_ct"]):
            if step and number not in warmups:
                out.append((context / 1000, (lines[k][0] - lines[k - 1][0]) / 1000, number > warmups[-1]))
            context += lines[k][2][0]
            k += 1
    assert k == len(lines)
    return out


def test_slope_holds_on_the_lines() -> None:
    one = world("context_step")
    steps = placed(one)
    slope = float(np.polyfit([c for c, _, _ in steps], [t for _, t, _ in steps], 1)[0])
    assert slope == pytest.approx(one.truth.slope_ms, rel=0.03)


@pytest.mark.parametrize("name", ["backend_scales", "backend_slope", "mix_only", "drafter_and_mix", "harmless_on_sloped"])
def test_step_ratio_holds_at_equal_mix(name: str) -> None:
    """A line is fitted to each side, and both are read off at the contexts of both sides together."""
    one = world(name)
    steps = placed(one)
    contexts = [c for c, _, _ in steps]
    fits = []
    for side in (False, True):
        mine = [(c, t) for c, t, last in steps if last == side]
        fits.append(np.polyfit([c for c, _ in mine], [t for _, t in mine], 1))
    before, after = fits
    ratio = float(np.polyval(after, contexts).mean() / np.polyval(before, contexts).mean())
    assert ratio == pytest.approx(one.truth.step_ratio, rel=0.02)


def test_cut_budget_is_on_every_line() -> None:
    one = world("budget_cut")
    budgets = [int(found[1]) for found in TREE.findall(log_of(one))]
    assert set(budgets) == {32, 8}
    assert budgets == sorted(budgets, reverse=True)


def test_dropped_lines_are_counted_in_notices() -> None:
    one = world("suppressed_lines")
    dropped = [int(entry["N_DROPPED"]) for entry in entries(log_of(one)) if "N_DROPPED" in entry]
    steps = sum(row["spec_verify_ct"] for row in rows_of(one))
    missing = steps - len(TREE.findall(log_of(one)))
    assert len(dropped) > 2
    assert 0 < missing <= sum(dropped) + 650


def test_graph_is_off_above_eight() -> None:
    one = world("graph_off")
    found = re.findall(rb"#running-req: (\d+), #token.*?cuda graph: (True|False)", b"\n".join(re.findall(rb"Decode batch.*", log_of(one))))
    assert {int(n) for n, _ in found} >= set(range(1, 13))
    assert all((int(n) <= 8) == (graph == b"True") for n, graph in found)


def test_same_seed_same_bytes_and_other_seeds_differ() -> None:
    assert make("step_break", 5) == make("step_break", 5)
    assert make("step_break", 5).files != make("step_break", 6).files


@pytest.mark.parametrize("seed", [2, 3])
def test_other_seeds_have_other_lines(seed: int) -> None:
    text = log_of(world("harmless_restart", seed))
    assert (b"Decode batch" in text) == (seed % 2 == 0)
    assert (b"Finish: obj=" in text) == (seed % 3 == 0)


def test_export_keeps_both_clocks_in_step_and_prefixes_what_is_not_text() -> None:
    read = list(entries(log_of(world("harmless_restart"))))
    clocks = [(int(e["__REALTIME_TIMESTAMP"]), int(e["__MONOTONIC_TIMESTAMP"])) for e in read]
    assert clocks == sorted(clocks)
    assert len({real - mono for real, mono in clocks}) == 1
    assert len({e["_BOOT_ID"] for e in read}) == 1
    assert len({e["_PID"] for e in read}) == 4
    assert any(e["MESSAGE"].endswith(b"\r") for e in read)


@pytest.mark.skipif(REMOTE is None or shutil.which("journalctl") is None, reason="systemd-journal-remote or journalctl is missing")
@pytest.mark.parametrize("name", ["nothing_wrong", "suppressed_lines"])
def test_export_becomes_a_journal_and_back(name: str, tmp_path: Path) -> None:
    text = log_of(world(name))
    (tmp_path / "in.export").write_bytes(text)
    assert REMOTE is not None
    made = subprocess.run([REMOTE, "-o", str(tmp_path / "x.journal"), str(tmp_path / "in.export")], capture_output=True, check=False)
    assert made.returncode == 0, made.stderr
    back = subprocess.run(["journalctl", "--file", str(tmp_path / "x.journal"), "-o", "export"], capture_output=True, check=True)
    keys = ("__REALTIME_TIMESTAMP", "__MONOTONIC_TIMESTAMP", "_BOOT_ID", "_PID", "MESSAGE")
    assert [[e[k] for k in keys] for e in entries(back.stdout)] == [[e[k] for k in keys] for e in entries(text)]
