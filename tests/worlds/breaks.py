"""Scenarios in which something changes in the middle of a run."""

from __future__ import annotations

from dataclasses import replace

from tests.worlds.build import (
    Look,
    Plan,
    break_truth,
    origin_us,
    share,
    sides,
    size,
    spacing,
    split_at,
    traffic,
    tree,
    truth,
    world,
)
from tests.worlds.engine import Place, RunLog, Server, simulate
from tests.worlds.render import iso
from tests.worlds.truth import World, measured, speed, tokens_ratio


def _middle(seed: int) -> float:
    return share(seed, 0.42, 0.6, 9)


def _step_break(seed: int, factor: float, retract: bool = False) -> tuple[list[RunLog], float]:
    """Simulate a run whose steps take a factor longer from some time on."""

    def plan(at: float) -> Plan:
        def scale(clock: float, up: float) -> float:
            return factor if clock >= at else 1.0

        retractions = (at,) if retract and at != float("inf") else ()
        return [(Server(base_ms=32, scale=scale, retract_at=retractions, flags=tree()), traffic(seed, 1, size(seed, 30, 50)))]

    return split_at(plan, seed, _middle(seed))


def step_break(seed: int) -> World:
    """Steps suddenly take half as long again; nothing is logged about it."""
    runs, at = _step_break(seed, 1.5)
    return world("step_break", seed, runs, break_truth(runs, seed, at, "slower", ["break_step"], step=1.5))


def break_after_retraction(seed: int) -> World:
    """After one retraction steps take 250 ms in place of 32, and stay so."""
    runs, at = _step_break(seed, 250 / 32, retract=True)
    facts = break_truth(runs, seed, at, "slower", ["break_step"], ["retraction"], step=250 / 32)
    return world("break_after_retraction", seed, runs, facts)


def mended(seed: int) -> World:
    """Steps are slow for the first half, then suddenly fast."""
    factor = 1 / share(seed, 1.5, 2.0)
    runs, at = _step_break(seed, factor)
    return world("mended", seed, runs, break_truth(runs, seed, at, "faster", ["break_step"], step=factor))


def acceptance_to_one(seed: int) -> World:
    """From some time on no draft is accepted."""

    def plan(at: float) -> Plan:
        def acceptance(place: Place) -> float:
            return place.text if place.clock < at else 0.0

        return [(Server(acceptance=acceptance, flags=tree()), traffic(seed, 1, size(seed, 28, 40)))]

    runs, at = split_at(plan, seed, _middle(seed))
    tokens = 1 / tokens_ratio(replace(runs[0].server, acceptance=lambda place: 0.0), Server(), measured(runs))
    facts = break_truth(runs, seed, at, "slower", ["break_tokens"], ["nothing_accepted"], tokens=tokens)
    return world("acceptance_to_one", seed, runs, facts)


def budget_cut(seed: int) -> World:
    """The budget of the tree goes from 32 to 8 on every line, and acceptance falls with it."""

    def plan(at: float) -> Plan:
        def budget(clock: float) -> int:
            return 32 if clock < at else 8

        def acceptance(place: Place) -> float:
            return place.text * (1.0 if place.clock < at else 0.75)

        return [(Server(budget=budget, acceptance=acceptance, flags=tree()), traffic(seed, 1, size(seed, 28, 44)))]

    runs, at = split_at(plan, seed, _middle(seed))
    small = Server(acceptance=lambda place: 0.75 * place.text)
    tokens = tokens_ratio(Server(), small, measured(runs))
    return world("budget_cut", seed, runs, break_truth(runs, seed, at, "slower", ["budget"], ["break_tokens"], tokens=tokens))


def prefill_stalls(seed: int) -> World:
    """Huge prompts of another client stop decoding for a second or more again and again in the second half."""
    server = Server(flags=tree())
    own = traffic(seed, 1, size(seed, 60, 80), every=spacing(server, 0.8, (200, 3000), (120, 320)))
    last = own[-1].arrival or 0.0
    half = last / 2
    huge = traffic(seed, 2, int(half / 3.6), prompts=(24000, 32000), lengths=(1, 1))
    for k, request in enumerate(huge):
        request.arrival = half + 3.6 * k + request.gap
    requests = sorted([*own, *huge], key=lambda r: r.arrival or 0.0)
    runs = simulate([(server, requests)], seed)
    when = runs[0].ready + 5.0 + half
    before, after = sides(runs, when)
    ratio = speed(after) / speed(before)
    facts = truth("slower", ["prefill"], ["mix"], step=1.0, tokens=1.0, speed_ratio=ratio, slope=0.0)
    return world("prefill_stalls", seed, runs, facts)


def _windows(runs: list[RunLog], seed: int, at: float) -> tuple[str, str]:
    steps, origin = measured(runs), origin_us(seed)
    start, middle, end = (iso(origin + round(t * 1e6)) for t in (steps[0].start - 1, at, steps[-1].end + 2))
    return f"{start}..{middle}", f"{middle}..{end}"


def window_slower(seed: int) -> World:
    """Two windows are compared; from the second on steps take 1.4 times as long."""
    runs, at = _step_break(seed, 1.4)
    before, after = _windows(runs, seed, at)
    return world(
        "window_slower", seed, runs, break_truth(runs, seed, at, "slower", ["break_step"], step=1.4), Look(), before=before, after=after
    )


def window_unchanged(seed: int) -> World:
    """Two windows are compared, and nothing has changed."""
    runs, at = _step_break(seed, 1.0)
    before, after = _windows(runs, seed, at)
    left, right = sides(runs, at)
    facts = truth("unchanged", step=1.0, tokens=1.0, speed_ratio=speed(right) / speed(left), slope=0.0)
    return world("window_unchanged", seed, runs, facts, Look(), before=before, after=after)
