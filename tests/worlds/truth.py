"""What is true of a simulated world, and how the true ratios are worked out from the simulation without its noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.worlds.engine import Place, RunLog, Server, Step

#: All causes but changed flags, which are named `flag:<argument>`.
PLAIN_CAUSES = frozenset(
    {
        "context_step",
        "context_tokens",
        "window",
        "generated",
        "batch",
        "uptime",
        "cached",
        "graph_off",
        "break_step",
        "break_tokens",
        "budget",
        "prefill",
        "retraction",
        "nothing_accepted",
        "speculation_off",
        "suppressed",
        "text",
        "mix",
        "neighbour",
    }
)
FLAGS = frozenset(
    {
        "flag:attention_backend",
        "flag:speculative_draft_model_path",
        "flag:reasoning_parser",
        "flag:tool_call_parser",
        "flag:speculative_algorithm",
        "flag:speculative_ddtree_budget",
    }
)
EVERYTHING = PLAIN_CAUSES | FLAGS


@dataclass(frozen=True)
class Truth:
    """What is true of a world.

    Parameters
    ----------
    direction
        "slower", "faster" or "unchanged": what happened to the speed of requests over the thing compared: since the last start,
        the break or in the second window; without these at long against short context, large against small batch, late
        against early in a start, many against few generated tokens, requests of one text against another. "unchanged" where
        nothing is to be compared. Where it is "unchanged" after a restart, what happened to be drawn still differs by some
        per cent: see `speed_ratio`.
    causes
        The true causes.
    separable
        False: the log cannot separate the causes in `together`, so the right answer names them all or says that it cannot tell.
    never
        Causes that would be a wrong answer if named as supported.
    step_ratio, tokens_ratio
        Ratio after/before of the mean step time, and of the tokens per step and sequence, at equal context, batch and text.
    speed_ratio
        Ratio after/before of tokens per second of a request as it happened, with all differences of the traffic.
    slope_ms
        Milliseconds of step time per 1000 tokens of batch context, where it is one number.
    break_time_us
        Epoch time of a break in the middle of a run.
    """

    direction: str
    causes: frozenset[str]
    separable: bool
    together: frozenset[str]
    never: frozenset[str]
    step_ratio: float | None
    tokens_ratio: float | None
    speed_ratio: float | None
    slope_ms: float | None
    break_time_us: int | None


@dataclass(frozen=True)
class World:
    """A log with known truth. `before` and `after` are set where the question names what to compare."""

    name: str
    seed: int
    files: dict[str, bytes]
    before: str | None
    after: str | None
    truth: Truth


def step_ratio(before: Server, after: Server, steps: Sequence[Step]) -> float:
    """Return how much longer the same steps take on average, leaving out what depends on the clock."""

    def total(server: Server) -> float:
        return sum(server.step_ms(step.batch, step.context, step.start, step.places[0].uptime) for step in steps)

    return total(after) / total(before)


def tokens_ratio(before: Server, after: Server, steps: Sequence[Step]) -> float:
    """Return how many more tokens the same sequences commit per step on average, with the same text."""

    def total(server: Server) -> float:
        return sum(server.mean_commit(place) for step in steps for place in step.places)

    return total(after) / total(before)


def speed(steps: Sequence[Step]) -> float:
    """Return tokens per second of a request: all tokens committed over all time that sequences waited for them."""
    return sum(step.committed for step in steps) / sum(step.waited for step in steps)


def mean_steps(steps: Sequence[Step], weight: Callable[[Place], float]) -> float:
    """Return the mean of something over all sequences of all steps."""
    values = [weight(place) for step in steps for place in step.places]
    return sum(values) / len(values)


def measured(runs: Sequence[RunLog]) -> list[Step]:
    return [step for run in runs for step in run.measured()]
