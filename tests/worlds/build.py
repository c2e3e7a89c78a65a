"""Building blocks of scenarios: traffic, plans of server starts, and the truth that belongs to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.worlds.engine import Request, RunLog, Server, Step, simulate
from tests.worlds.flags import TREE
from tests.worlds.lines import Form
from tests.worlds.render import RateLimit, export, plain, request_rows
from tests.worlds.truth import EVERYTHING, Truth, World, measured, speed, step_ratio, tokens_ratio

Plan = list[tuple[Server, list[Request]]]
Span = tuple[float, float]

TREE_LINES = Form()
STOCK = Form(tree_lines=False, interval=40)
EVERY_STEP = Form(tree_lines=False, interval=1)


def size(seed: int, low: int, high: int, salt: int = 0) -> int:
    """Return a size that varies with the seed."""
    return int(np.random.default_rng([seed, 500 + salt]).integers(low, high + 1))


def share(seed: int, low: float, high: float, salt: int = 0) -> float:
    """Return a number that varies with the seed."""
    return float(np.random.default_rng([seed, 600 + salt]).uniform(low, high))


def tree(**changed: object) -> dict[str, object]:
    """Return the arguments of a server that prints a tree line per step."""
    return {**TREE, **changed}


def traffic(
    seed: int,
    salt: int,
    count: int,
    prompts: Span = (200, 3000),
    lengths: Span = (120, 320),
    text: float = 0.65,
    text_sd: float = 0.02,
    gap: Span = (0.3, 2.0),
    every: float | None = None,
    cached_share: float = 0.0,
) -> list[Request]:
    """Return requests that follow one another, or arrive at random times.

    Parameters
    ----------
    prompts
        Bounds of the prompt length; lengths are spread evenly on the logarithmic scale.
    text, text_sd
        Mean and spread over requests of the acceptance probability of the text.
    every
        Mean seconds between arrivals (Poisson). None: each request waits for the one before, and `gap` seconds more.
    cached_share
        Share of requests of which part of the prompt is found in the prefix cache.
    """
    rng = np.random.default_rng([seed, salt])
    out: list[Request] = []
    at = 0.0
    for _ in range(count):
        prompt = round(float(np.exp(rng.uniform(np.log(prompts[0]), np.log(prompts[1])))))
        length = int(rng.integers(int(lengths[0]), int(lengths[1]) + 1))
        p = float(np.clip(rng.normal(text, text_sd), 0.05, 0.93))
        pause = float(rng.uniform(*gap))
        cached = round(prompt * float(rng.uniform(0.5, 0.9))) if rng.random() < cached_share else 0
        if every is not None:
            at += float(rng.exponential(every))
        out.append(Request(prompt, length, text=p, arrival=at if every is not None else None, gap=pause, cached=cached))
    return out


def spacing(server: Server, concurrency: float, prompts: Span, lengths: Span, text: float = 0.65) -> float:
    """Return the mean time between arrivals at which about so many requests run at once (Little's law)."""
    mean_prompt = (prompts[1] - prompts[0]) / np.log(prompts[1] / prompts[0])
    commits = 1.0 + sum(text**k for k in range(1, 5))
    step_ms = server.step_ms(round(concurrency), round(concurrency * mean_prompt), 0.0, 0.0)
    steps = sum(lengths) / 2 / commits
    return float(steps * step_ms / 1000 / concurrency)


def split_at(plan: Callable[[float], Plan], seed: int, fraction: float) -> tuple[list[RunLog], float]:
    """Simulate a plan with something that happens at a share of the steps.

    Parameters
    ----------
    plan
        Makes the plan for the second at which it happens (infinity: never).

    Returns
    -------
    tuple of list of RunLog, float
        The runs and that second, a whole number.
    """
    steps = measured(simulate(plan(float("inf")), seed))
    at = float(int(steps[int(len(steps) * fraction)].start))
    return simulate(plan(at), seed), at


def sides(runs: Sequence[RunLog], at: float) -> tuple[list[Step], list[Step]]:
    """Return the steps before and after a time."""
    steps = measured(runs)
    return [s for s in steps if s.end <= at], [s for s in steps if s.start >= at]


@dataclass(frozen=True)
class Look:
    """How a world is written down."""

    form: Form = TREE_LINES
    journal: bool = True
    rows: bool = True
    limit: RateLimit | None = None


STOCK_LOOK = Look(form=STOCK, journal=False)


def origin_us(seed: int) -> int:
    """Return the epoch microseconds of the start of a world, a whole second."""
    rng = np.random.default_rng([seed, 700])
    return (1_767_571_200 + int(rng.integers(0, 180)) * 86400 + int(rng.integers(0, 86400))) * 1_000_000


def usual_look(seed: int) -> Look:
    """Return how a log with tree lines looks for a seed.

    Every second seed has stock lines too, every third the lines of requests, and every fifth is a plain file in place of a journal.
    """
    form = Form(interval=40 if seed % 2 == 0 else None, request_lines=seed % 3 == 0)
    return Look(form=form, journal=seed % 5 != 4)


def world(
    name: str,
    seed: int,
    runs: Sequence[RunLog],
    truth: Truth,
    look: Look | None = None,
    before: str | None = None,
    after: str | None = None,
) -> World:
    """Write the runs down as files."""
    look = look or usual_look(seed)
    origin = origin_us(seed)
    files: dict[str, bytes] = {}
    if look.journal:
        files["server.export"] = export(runs, look.form, origin, seed, look.limit)
    else:
        files["server.log"] = plain(runs, look.form, origin)
    if look.rows:
        files["requests.jsonl"] = request_rows(runs, origin)
    return World(name, seed, files, before, after, truth)


def truth(
    direction: str,
    causes: Iterable[str] = (),
    also_true: Iterable[str] = (),
    together: Iterable[str] = (),
    step: float | None = None,
    tokens: float | None = None,
    speed_ratio: float | None = None,
    slope: float | None = None,
    break_us: int | None = None,
) -> Truth:
    """Return a truth in which everything is wrong to name that is neither a cause nor also true.

    Parameters
    ----------
    also_true
        What holds beside the causes, or is a coarser word for one of them: no mistake if named.
    together
        Causes that the log cannot separate. Those that are not true causes stay wrong if named as supported.
    """
    true, inseparable = frozenset(causes), frozenset(together)
    never = EVERYTHING - true - frozenset(also_true)
    return Truth(direction, true, not inseparable, inseparable, never, step, tokens, speed_ratio, slope, break_us)


def restart_truth(
    runs: Sequence[RunLog],
    direction: str,
    causes: Iterable[str] = (),
    also_true: Iterable[str] = (),
    together: Iterable[str] = (),
    slope: float | None = None,
) -> Truth:
    """Return the truth about the last start against the one before, with its ratios from the two servers."""
    first, second = runs[-2], runs[-1]
    steps = [*first.measured(), *second.measured()]
    return truth(
        direction,
        causes,
        also_true,
        together,
        step=step_ratio(first.server, second.server, steps),
        tokens=tokens_ratio(first.server, second.server, steps),
        speed_ratio=speed(second.measured()) / speed(first.measured()),
        slope=slope,
    )


def break_truth(
    runs: Sequence[RunLog],
    seed: int,
    at: float,
    direction: str,
    causes: Iterable[str],
    also_true: Iterable[str] = (),
    step: float = 1.0,
    tokens: float | None = 1.0,
) -> Truth:
    """Return the truth about a change in the middle of a run."""
    before, after = sides(runs, at)
    return truth(
        direction,
        causes,
        also_true,
        step=step,
        tokens=tokens,
        speed_ratio=speed(after) / speed(before),
        break_us=origin_us(seed) + round(at * 1e6),
    )
