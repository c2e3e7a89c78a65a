"""What a diagnosis of a simulated world is worth: right, too careful, or wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.worlds.truth import World

#: The key of a hypothesis for each cause of a world that is one.
HYPOTHESES = {
    "context_step": "context_step_time",
    "context_tokens": "context_acceptance",
    "window": "window_knee",
    "generated": "generated_acceptance",
    "batch": "batch",
    "uptime": "uptime",
    "cached": "cached_prefix",
    "graph_off": "graph_off",
    "break_step": "break_step_time",
    "break_tokens": "break_acceptance",
    "budget": "budget",
    "prefill": "prefill_between",
    "retraction": "retraction",
    "nothing_accepted": "nothing_accepted",
    "speculation_off": "speculation",
    "neighbour": "episodes",
}

#: What may be true of a world and is nothing that a server's log can be blamed for, or asked to name.
NOT_NAMED = frozenset({"text", "mix", "suppressed", "neighbour"})

#: A level that is reached within ten minutes of the start is a break that came little by little, or uptime: either is right.
EITHER = {"throttling": frozenset({"break_step"})}


@dataclass(frozen=True)
class Judged:
    """The worth of one diagnosis.

    Parameters
    ----------
    verdict
        ``right``, ``careful`` (a true cause is not named, or it is said that it cannot be told) or ``wrong``.
    named
        The causes that are called supported.
    wrongly
        Those of them that are not true.
    why
        What is missing or wrong.
    """

    verdict: str
    named: frozenset[str]
    wrongly: frozenset[str]
    why: str


def read(world: World, folder: Path) -> Any:
    """Write the files of a world, and read its log; the plain ones are in UTC."""
    import ddtree_metrics as ddt

    for name, content in world.files.items():
        (folder / name).write_bytes(content)
    log = ddt.read_text(next(folder / name for name in world.files if name != "requests.jsonl"), tz="UTC")
    return log.with_requests(folder / "requests.jsonl") if "requests.jsonl" in world.files else log


def judge(world: World, d: Any) -> Judged:
    """Hold a diagnosis against the truth."""
    truth = world.truth
    back = {key: cause for cause, key in HYPOTHESES.items()}
    named = {back[h.key] for h in d.hypotheses if h.status == "supported" and h.key in back}
    named |= {f"flag:{f.flag}" for c in d.comparisons for f in c.flags if f.status == "supported"}
    wrongly = named & truth.never
    true = {c for c in truth.causes if c not in NOT_NAMED}
    missing = true - named if truth.separable else set()
    if missing and EITHER.get(world.name, frozenset()) & named:
        missing = set()
    allowed = {"slower": {"slower"}, "faster": {"faster"}, "unchanged": {"unchanged", "cannot_tell"}}[truth.direction]
    if truth.direction == "unchanged" and truth.causes:
        allowed |= {"slower"}  # nothing is compared, and what is wrong makes it slow
    told = d.direction
    if truth.direction == "unchanged" and world.before is not None and d.comparisons[0].direction_equal is not None:
        told = d.comparisons[0].direction_equal  # two starts were asked for, and what differs as logged is what happened to be sent
    told = "cannot_tell" if told == "mixed" else told
    opposite = {"slower": "faster", "faster": "slower"}.get(truth.direction)
    backwards = told == opposite or (told == "unchanged" and truth.direction != "unchanged" and truth.separable)
    false_alarm = truth.direction == "unchanged" and told in ("slower", "faster") and told not in allowed
    if wrongly or backwards or false_alarm:
        parts = [f"named {', '.join(sorted(wrongly))}"] if wrongly else []
        return Judged(
            "wrong", frozenset(named), frozenset(wrongly), "; ".join([*parts, *([f"says {told}"] if backwards or false_alarm else [])])
        )
    if missing or (truth.separable and told not in allowed):
        parts = [f"missed {', '.join(sorted(missing))}"] if missing else []
        return Judged("careful", frozenset(named), frozenset(), "; ".join([*parts, *([f"says {told}"] if told not in allowed else [])]))
    return Judged("right", frozenset(named), frozenset(), "")


def intervals(world: World, d: Any) -> Iterator[tuple[str, bool, float]]:
    """Yield each true number that has an interval in the diagnosis: what it is, whether it is held, and estimate by truth."""
    truth = world.truth
    pair = next((c for c in d.comparisons if c.kind in ("runs", "groups", "break")), None)
    if pair is not None:
        for what, true, found in (
            ("step time at equal mix", truth.step_ratio, pair.step_time_ratio_equal),
            ("tokens per step at equal mix", truth.tokens_ratio, pair.tokens_ratio_equal),
        ):
            if true and found.low is not None and found.high is not None:
                yield what, found.low <= true <= found.high, found.value / true
    slope = d.slopes.get("context_step_ms")
    if truth.slope_ms is not None and slope is not None and slope.low is not None and slope.high is not None:
        yield (
            "ms per 1,000 tokens",
            slope.low <= truth.slope_ms <= slope.high,
            slope.value / truth.slope_ms if truth.slope_ms else float("nan"),
        )


__all__ = ["Judged", "intervals", "judge", "read"]
