"""Edges of the join: how much of a log it gives to its requests, and how far times may be off, by arithmetic."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ddtree_metrics import tables
from ddtree_metrics.errors import DDTreeWarning
from ddtree_metrics.join import join_batches
from ddtree_metrics.join.alone import match_alone
from ddtree_metrics.join.batch import Tolerance
from ddtree_metrics.join.decode_context import usable
from ddtree_metrics.join.joined_rows import flag_lists
from ddtree_metrics.join.prepare import prepare_requests, prepare_steps
from ddtree_metrics.records import RequestStep, TreeStep
from tests.simulator import Run, simulate
from tests.test_join import SCENES, client_of, ints, quiet, run_join, score, trusted

# -- simulated logs whose truth is known -----------------------------------------------------------------------------------------

ALL_TRUSTED = ("one at a time", "4 at once", "noise", "aborts", "chunked prefill", "cached prompts")
"""Scenes in which every request can be told from its neighbours by its own numbers."""

DOUBTED: dict[tuple[str, int], dict[str, int]] = {
    ("16 at once", 1): {"warmup": 1, "prefill_differs": 15, "beside_doubtful": 5},
    ("16 at once", 2): {"warmup": 1, "prefill_differs": 14, "beside_doubtful": 11},
    ("arrivals", 1): {"warmup": 1, "prefill_differs": 2},
    ("arrivals", 2): {"warmup": 1},
    ("two ranks", 1): {"warmup": 2},
    ("two ranks", 2): {"warmup": 2, "prefill_differs": 4},
    ("retractions", 1): {"warmup": 1, "prefill_differs": 2, "retracted": 9, "retraction_guessed": 6, "beside_doubtful": 3},
    ("retractions", 2): {"warmup": 1, "retracted": 8, "retraction_guessed": 5, "beside_doubtful": 1},
    ("restart", 1): {"warmup": 2, "beside_unknown": 3},
    ("restart", 2): {"warmup": 2, "beside_unknown": 1},
    ("last commit cut", 1): {"not_reconciled": 38, "warmup": 1, "beside_doubtful": 4},
    ("last commit cut", 2): {"not_reconciled": 37, "warmup": 1, "beside_doubtful": 5},
}
"""The flags of the other scenes as they are: prefills of several requests at once, retractions, requests that a restart cut off."""


def by_batch(run: Run, known: np.ndarray) -> dict[str, int]:
    """Count the steps of the truth: alone, all of a batch known, some of it, none."""
    true = run.truth_steps[run.truth_steps["logged"]].sort_values(["step", "slot"], kind="stable")
    steps = pd.DataFrame({"step": true["step"].to_numpy(), "known": known}).groupby("step")["known"].agg(["size", "sum"])
    alone, several = steps["size"] == 1, steps["size"] > 1
    return {
        "alone": int((alone & (steps["sum"] == 1)).sum()),
        "slots": int((several & (steps["sum"] == steps["size"])).sum()),
        "slots_in_part": int((several & (steps["sum"] > 0) & (steps["sum"] < steps["size"])).sum()),
        "none": int((steps["sum"] == 0).sum()),
    }


def over(run: Run, requests: pd.DataFrame) -> tuple[int, int]:
    """Of how many requests the steps committed exactly what the client got (less the prefill's token), and of how many more."""
    true = run.truth_steps[run.truth_steps["logged"]]
    committed = true.groupby("request_id")["tokens"].sum()
    got = requests.set_index("request_id")["completion_tokens"].astype(int) - 1
    more = (committed - got).dropna()
    return int((more == 0).sum()), int((more > 0).sum())


@pytest.mark.parametrize("source", ["server", "client"])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("scene", ALL_TRUSTED)
def test_every_step_of_a_plain_log_is_given_to_its_request_and_trusted(scene: str, seed: int, source: str, tmp_path: Path) -> None:
    run = simulate(seed=seed, requests=50, **SCENES[scene])
    requests = run.requests if source == "server" else client_of(run, tmp_path)
    out = run_join(run, requests)
    right, _ = score(run, out)
    true = run.truth_steps[run.truth_steps["logged"]].sort_values(["step", "slot"], kind="stable")
    known = true["request_id"].isin(requests["request_id"]).to_numpy()
    told = out.attrs["join"]

    assert right[known].all()
    assert {k: told["steps_by_way"][k] for k in ("alone", "slots", "slots_in_part", "none")} == by_batch(run, known)
    assert (told["clock_how"], told["clock_offset_s"]) == ("same clock", 0.0)
    if (scene, seed, source) == ("noise", 1, "client"):
        # two requests whose order of arrival a client's clock does not tell, and four that ran beside them
        assert told["flags"] == {"order_ambiguous": 2, "beside_doubtful": 4}
        return
    assert trusted(out)[known].all()
    assert (told["reconciled_exactly"], told["reconciled_within_last_cut"]) == over(run, requests)
    assert (told["reconciled_but_doubted"], told["not_reconciled"]) == (0, 0)
    assert told["flags"] == ({"warmup": 1} if source == "server" else {})


@pytest.mark.parametrize(("scene", "seed"), DOUBTED)
def test_what_is_doubted_in_a_busy_log_is_said_of_those_requests_and_no_others(scene: str, seed: int) -> None:
    run = simulate(seed=seed, requests=50, **SCENES[scene])
    out = run_join(run)
    right, known = score(run, out)
    told = out.attrs["join"]

    assert right[known].all()
    assert {k: told["steps_by_way"][k] for k in ("alone", "slots", "slots_in_part", "none")} == by_batch(run, known)
    assert told["flags"] == DOUBTED[scene, seed]


@pytest.mark.parametrize("scene", ["4 at once", "last commit cut"])
def test_what_reconciles_is_the_difference_of_steps_and_answer(scene: str) -> None:
    run = simulate(seed=1, requests=50, **SCENES[scene])
    out = run_join(run)
    true = run.truth_steps[run.truth_steps["logged"]]
    committed = true.groupby("request_id")["tokens"].sum()
    got = run.requests.set_index("request_id")["completion_tokens"].astype(int) - 1
    first = out.groupby("request_id")["reconciled"].first()

    assert first.astype(int).to_dict() == (committed - got).loc[first.index].to_dict()


@pytest.mark.parametrize("scene", ["retractions", "lost lines", "a clock that jumps"])
def test_a_join_part_by_part_knows_of_retractions_and_lost_lines_too(scene: str) -> None:
    more = {"lost lines": {"concurrency": 4, "burst": (3.0, 60)}, "a clock that jumps": {"concurrency": 2, "clock_jumps": ((6.0, -30.0),)}}
    run = simulate(seed=1, requests=30, **(SCENES | more)[scene])
    f = run.frames
    whole = quiet(f["steps"], run.requests, f["prefill"], events=f["events"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DDTreeWarning)
        parts = list(join_batches(tables.from_pandas(f["steps"], TreeStep), run.requests, f["prefill"], events=f["events"]))

    assert pa.Table.from_batches(parts).equals(tables.from_pandas(whole, RequestStep))


@pytest.mark.parametrize("root", [True, False])
def test_each_slot_has_its_own_draft_nodes_the_root_not_counted(root: bool) -> None:
    run = simulate(seed=1, requests=12, concurrency=3, nodes_include_root=root)
    out = run_join(run)
    logged = [n for nodes in run.steps["nodes"].tolist() for n in nodes]

    assert out["draft_nodes"].tolist() == [n - root for n in logged]


# -- one request at a time, by hand -------------------------------------------------------------------------------------------------

T0 = 1_770_000_000_000_000


def stamp(us: Any) -> Any:
    return pd.to_datetime(T0 + np.asarray(us, dtype=np.int64), unit="us", utc=True)


def steps_of(times_ms: list[float], commits: list[int], fresh: tuple[int, ...] = (0,)) -> pd.DataFrame:
    """Steps of a batch of one; ``fresh`` are those that follow a prefill."""
    why = ["prefill_between" if i in fresh else None for i in range(len(times_ms))]
    why[0] = "first"
    us = [round(t * 1000) for t in times_ms]
    took = [None if w else us[i] - us[i - 1] for i, w in enumerate(why)]
    return pd.DataFrame(
        {
            "time": stamp(us),
            "time_us": [T0 + u for u in us],
            "batch_size": 1,
            "commit_lens": [[c] for c in commits],
            "accepted_drafts": [[c - 1] for c in commits],
            "steps": 1,
            "step_us": pd.array(took, dtype="Int64"),
            "step_why": why,
            "stream": "s",
        }
    )


def asked(**columns: Any) -> pd.DataFrame:
    """Make a table of requests; times are in ms."""
    made = pd.DataFrame(columns)
    for name in ("received", "first_token", "finished"):
        if name in made:
            made[name] = stamp(np.round(made[name].to_numpy(float) * 1000))
    return made.assign(request_id=[chr(97 + i) for i in range(len(made))])


def given(out: pd.DataFrame) -> list[str | None]:
    return [None if x is pd.NA or x is None else str(x) for x in out["request_id"].tolist()]


def told_apart(kinds: int) -> tuple[pd.DataFrame, dict[str, Any]]:
    """So many steps of 40 ms from 1040 on, each of which accepts another number of drafts, and what the server says of their request."""
    drafts = list(range(kinds))
    request: dict[str, Any] = {
        "prompt_tokens": [7],
        "received": [900],
        "first_token": [1000],
        "completion_tokens": [1 + sum(drafts) + kinds],
    }
    request |= {"verify_steps": [kinds], "accepted_drafts": [sum(drafts)], "accepted_histogram": [tuple([1] * kinds)]}
    return steps_of([1040 + 40 * i for i in range(kinds)], [d + 1 for d in drafts]), request


@pytest.mark.parametrize(
    ("kinds", "late_ms", "ok"),
    [
        # ten steps of ten kinds have one histogram in ten**10 / 10! = 2756 by accident: no other proof is needed,
        (10, 100.0, True),
        # ... and a server may state the end a tenth of a second before the line of the last step
        (10, 101.0, False),
        # nine of nine kinds: one in 1068; eight of eight: one in 416, which is more than one in a thousand, and the times must agree
        (9, 100.0, True),
        (8, 100.0, False),
        # ... within 2 ms, and a fiftieth of the 30 ms that a server may be late with the first token
        (8, 2.6, True),
        (8, 2.7, False),
    ],
)
def test_a_histogram_that_is_no_accident_allows_a_late_last_line(kinds: int, late_ms: float, ok: bool) -> None:
    steps, request = told_apart(kinds)
    out = quiet(steps, asked(**request, finished=[1000 + 40 * kinds - late_ms]))

    assert (trusted(out).sum() == kinds) == ok


@pytest.mark.parametrize(("late_ms", "ok"), [(100.0, True), (101.0, False)])
def test_a_clients_first_token_may_come_a_tenth_of_a_second_after_the_line_of_the_first_step(late_ms: float, ok: bool) -> None:
    # 41 tokens: one of the prefill, and ten steps of four, the first at 1040 and the last at 1400
    steps = steps_of([1040 + 40 * i for i in range(10)], [4] * 10)
    request: dict[str, Any] = {"received": [900], "first_token": [1040 + late_ms], "finished": [1410], "completion_tokens": [41]}
    out = quiet(steps, asked(**request, prompt_tokens=[7], source=["client"]))

    assert (given(out) == ["a"] * 10) == ok
    assert (trusted(out).sum() == 10) == ok


@pytest.mark.parametrize(("later_ms", "ok"), [(24.0, True), (26.0, False)])
def test_a_client_that_goes_on_after_its_last_token_was_no_client_of_these_steps(later_ms: float, ok: bool) -> None:
    # ten steps of four are its 41 tokens, but then somebody makes a step at 1440: a client hears of its end within 25 ms or so,
    # and if it heard later than that after the step of somebody else, the step may have been its own
    steps = steps_of([1040 + 40 * i for i in range(12)], [4] * 12)
    request: dict[str, Any] = {"received": [900], "first_token": [1010], "finished": [1440 + later_ms], "completion_tokens": [41]}
    out = quiet(steps, asked(**request, prompt_tokens=[7], source=["client"]), clock_offset_s=0.0)

    assert (trusted(out).sum() == 10) == ok


@pytest.mark.parametrize(("later_ms", "ok"), [(9.0, True), (11.0, False)])
def test_a_server_states_the_end_within_10_ms_unless_the_histogram_is_proof(later_ms: float, ok: bool) -> None:
    steps = steps_of([1040 + 40 * i for i in range(12)], [4] * 12)
    request: dict[str, Any] = {"received": [900], "first_token": [1000], "finished": [1440 + later_ms], "completion_tokens": [41]}
    out = quiet(steps, asked(**request, verify_steps=[10], accepted_drafts=[30], prompt_tokens=[7]), clock_offset_s=0.0)

    assert (trusted(out).sum() == 10) == ok


@pytest.mark.parametrize(
    ("source", "later_ms", "ok"), [("client", 24.0, True), ("client", 26.0, False), ("log", 9.0, True), ("log", 11.0, False)]
)
def test_without_a_request_to_compare_clocks_by_the_usual_lag_is_taken(source: str, later_ms: float, ok: bool) -> None:
    # an aborted request says nothing of the clocks, so it is not known how late its end was noted
    steps = steps_of([1040 + 40 * i for i in range(12)], [4] * 12)
    request: dict[str, Any] = {"received": [900], "first_token": [1010], "finished": [1440 + later_ms], "completion_tokens": [41]}
    out = quiet(steps, asked(**request, prompt_tokens=[7], finish_reason=["abort"], source=[source]))

    assert out.attrs["join"]["clock_how"] == "not checked"
    assert (trusted(out).sum() == 10) == ok


def test_an_offset_that_rests_on_a_client_is_not_known_better_than_its_client_lag(tmp_path: Path) -> None:
    run = simulate(seed=4, requests=40, concurrency=1)
    out = quiet(run.steps, client_of(run, tmp_path, 7200.7), run.frames["prefill"])

    # requests agree within 2 ms or so, but a client sees all its tokens up to 25 ms late
    assert 0.025 <= out.attrs["join"]["clock_uncertainty_s"] < 0.030


def alone(steps: pd.DataFrame, requests: pd.DataFrame, lag_ms: float = 25.0) -> list[tuple[int, int]]:
    """Return the stretches that are given to requests which ran alone."""
    s = prepare_steps(tables.from_pandas(steps, TreeStep, extra="drop").to_batches())
    a, _ = prepare_requests(requests)
    tol = Tolerance(start_us=100_000, end_us=100_000, tie_us=60_000, lag_us=round(lag_ms * 1000))
    _, begin, end = match_alone(s, a, s.runs[0], np.arange(len(a)), tol)
    return list(zip(begin.tolist(), end.tolist(), strict=True))


PLAIN = {"received": [900], "first_token": [1000], "completion_tokens": [41], "prompt_tokens": [7]}
COUNTED = {"verify_steps": [10], "accepted_drafts": [30]}


@pytest.mark.parametrize("counted", [{}, COUNTED])
@pytest.mark.parametrize(("end_ms", "found"), [(1464.999, [(0, 10)]), (1465.0, [])])
def test_a_request_that_is_there_at_the_next_step_did_not_end_before_it(counted: dict[str, Any], end_ms: float, found: list[Any]) -> None:
    # its tokens are complete with the step at 1400; another comes at 1440, and ends are noted within 25 ms
    steps = steps_of([1040 + 40 * i for i in range(12)], [4] * 12)

    assert alone(steps, asked(**PLAIN, **counted, finished=[end_ms])) == found


@pytest.mark.parametrize(
    ("counted", "end_ms", "found"),
    [
        # the last step is logged at 1400: 2 ms after the end at most, or 100 ms where the server says how many steps there were
        ({}, 1398.0, [(0, 10)]),
        ({}, 1397.999, []),
        (COUNTED, 1300.0, [(0, 10)]),
        (COUNTED, 1299.999, []),
    ],
)
def test_a_request_alone_has_its_last_step_before_its_end(counted: dict[str, Any], end_ms: float, found: list[Any]) -> None:
    steps = steps_of([1040 + 40 * i for i in range(10)], [4] * 10)

    assert alone(steps, asked(**PLAIN, **counted, finished=[end_ms])) == found


@pytest.mark.parametrize(("first_ms", "found"), [(820.0, [(0, 10)]), (819.999, [])])
def test_a_request_alone_has_its_first_step_soon_after_its_first_token(first_ms: float, found: list[Any]) -> None:
    # 1040 is 100 ms and three usual steps of 40 ms after 820
    steps = steps_of([1040 + 40 * i for i in range(10)], [4] * 10)
    request = {**PLAIN, "received": [800], "first_token": [first_ms]}

    assert alone(steps, asked(**request, finished=[1410])) == found


@pytest.mark.parametrize(("counted", "found"), [({}, []), (COUNTED, [(0, 10)])])
def test_nothing_is_prefilled_while_a_request_is_alone_unless_its_counters_say_so(counted: dict[str, Any], found: list[Any]) -> None:
    steps = steps_of([1040 + 40 * i for i in range(10)], [4] * 10, fresh=(0, 5))

    assert alone(steps, asked(**PLAIN, **counted, finished=[1410])) == found


@pytest.mark.parametrize(("tokens", "found"), [(40, [(0, 10)]), (38, [(0, 10)]), (37, [(0, 9)]), (42, [])])
def test_the_tokens_of_a_request_end_within_its_last_step(tokens: int, found: list[Any]) -> None:
    # nine steps of four are 36 tokens, ten are 40; the prefill gives one more, and the answer may end within the last step
    steps = steps_of([1040 + 40 * i for i in range(10)], [4] * 10)

    assert alone(steps, asked(**{**PLAIN, "completion_tokens": [tokens]}, finished=[1410])) == found


def test_steps_are_given_once_though_two_requests_would_fit_them() -> None:
    steps = steps_of([1040 + 40 * i for i in range(10)], [4] * 10)
    twice = {name: value * 2 for name, value in {**PLAIN, **COUNTED}.items()}

    assert alone(steps, asked(**twice, finished=[1410, 1410])) == [(0, 10)]


def test_of_two_requests_with_the_id_of_a_line_the_one_that_ran_then_is_meant() -> None:
    # a ran from 1.0 to 1.4 s with a prompt of 7, and from 2.0 to 2.4 s with one of 9; 1.69 s is nearer to the first, 1.71 s to the second
    steps = steps_of([1100, 1690, 1710, 2100], [4] * 4).assign(request_ids=[["a"]] * 4)
    requests = asked(
        received=[900, 1900], first_token=[1000, 2000], finished=[1400, 2400], completion_tokens=[41, 41], prompt_tokens=[7, 9]
    )
    out = quiet(steps, requests.assign(request_id="a"))

    assert out["prompt_len"].tolist() == [7, 7, 9, 9]
    assert (out["matched"] == "id").all()


# -- context from Decode batch lines --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "good"),
    [
        ((160, 320, 496), True),  # pages of 16 are let pass however short the context is
        ((170, 340, 527), False),  # pages of 17 are not: more than 16, and more than 2 % of a context of less than 850
        ((3200, 6400, 12864), True),  # pages of 64 are 2 % of 3200, and less of the others
        ((3136, 3072, 3008), False),  # ... and more of what is shorter
    ],
)
def test_pages_may_round_the_context_by_16_tokens_or_a_fiftieth(tokens: tuple[int, ...], good: bool) -> None:
    found, _, _, rounded = usable(ints(*tokens), ints(1, 1, 1))

    assert (found.all(), rounded) == ((True, 0) if good else (False, 3))


@pytest.mark.parametrize("away", [200, 201])
def test_a_decode_line_says_something_of_200_steps_before_it(away: int) -> None:
    # one step every 40 ms that commits 2; the only line stands right after the last step but one and counts 1000 tokens.
    # The first step follows a prefill: whose it is, the line does not tell
    n = away + 3
    steps = steps_of([1000 + 40 * i for i in range(n)], [2] * n)
    line = pd.DataFrame({"time": stamp([(1000 + 40 * (n - 2)) * 1000 + 100]), "running": [1], "tokens": [1000], "stream": ["s"]})
    out = quiet(steps, asked(received=[], first_token=[], finished=[], completion_tokens=[]), decode=line)

    # the line of step i holds what the steps up to it committed: 2 for each of them and itself
    expected = [1000 - 2 * (n - 1 - i) for i in range(n)]
    expected[0] = -1
    if away == 201:
        expected[1] = -1
    assert out["context_len"].fillna(-1).astype(int).tolist() == expected


# -- the flags of a row -------------------------------------------------------------------------------------------------------


def test_a_row_has_the_flags_of_its_request_and_those_of_its_step() -> None:
    request, estimated, split = np.array([0, 0, 0, 0, 1, 1, -1, -1]), np.array([0, 0, 1, 1, 0, 1, 0, 1]), np.array([0, 1, 0, 1, 1, 0, 0, 1])

    made = flag_lists([("aborted",), ()], request, estimated.astype(bool), split.astype(bool))

    assert made.to_pylist() == [
        ["aborted"],
        ["aborted", "shared"],
        ["aborted", "decode_line"],
        ["aborted", "decode_line", "shared"],
        ["shared"],
        ["decode_line"],
        None,
        ["decode_line", "shared"],
    ]


def test_without_prefill_lines_nobody_unknown_leaves_for_somebody_who_came() -> None:
    """A third of the requests is not in the file: still most steps of the others are known, and what is trusted is right."""
    run = simulate(seed=3, requests=24, concurrency=3)
    known = run.requests[np.arange(len(run.requests)) % 3 != 1].reset_index(drop=True)

    out = quiet(run.frames["steps"], known)
    right, could = score(run, out)

    assert right[could].mean() > 0.5
    assert not (trusted(out) & ~right).any()
