"""Exit codes for cron: a speed below a limit, or slower than before, ends a command with 1 and the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ddtree_metrics.cli.options import say
from ddtree_metrics.errors import EXIT_ERROR, EXIT_NOT_FOUND

if TYPE_CHECKING:
    from ddtree_metrics.diagnosis import Diagnosis
    from ddtree_metrics.metrics.attribution import Attribution
    from ddtree_metrics.summary import Summary


class ShareType(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """A share: 0.05 or 5%."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it."""
        text = str(value).strip()
        try:
            number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1:
            self.fail(f"{text!r} is no share between 0 and 1; write 0.05 or 5%", param, ctx)
        return number


fail_if_slower_option = click.option(
    "--fail-if-slower", type=ShareType(), metavar="SHARE", help="Exit with 1 if requests got slower by more than this (10%), beyond doubt."
)
fail_below_option = click.option(
    "--fail-below",
    type=click.FloatRange(0, min_open=True),
    metavar="TOK_S",
    help="Exit with 1 if a request is slower than this on average.",
)


def fail_below(made: Summary, limit: float | None) -> None:
    """End with 1 where the mean speed of a request is below a limit; with 3 where it is not known."""
    if limit is None:
        return
    speed = made.total.tok_per_s
    if speed is None:
        _end(EXIT_NOT_FOUND, f"the speed of a request is not known, so it cannot be held against {limit:g} tok/s")
    elif speed < limit:
        _end(EXIT_ERROR, f"{speed:.1f} tok/s a request are below {limit:g} ({made.total.timed_steps:,} timed steps)")


def fail_if_slower(found: Diagnosis, limit: float | None, *, in_time: bool) -> None:
    """End with 1 where requests got slower by more than a share; a slow-down that is not shown does not count.

    Parameters
    ----------
    found : Diagnosis
        What was diagnosed.
    limit : float or None
        The share; None asks for nothing.
    in_time : bool
        Whether only a change in time counts, a restart or a break, and not that long context is slow.
    """
    if limit is None or found.direction != "slower" or not found.comparisons or (in_time and found.since is None):
        return
    main = found.comparisons[0]
    ratio = main.speed_ratio_equal if main.speed_ratio_equal.value is not None else main.speed_ratio
    if ratio.value is None or 1 - ratio.value <= limit:
        return
    from ddtree_metrics.diagnosis.answer import answer

    said = answer(found)
    equal = f", {100 * (1 - ratio.value):.0f} % at equal mix" if ratio is main.speed_ratio_equal else ""
    _end(EXIT_ERROR, f"{said.headline[0].lower()}{said.headline[1:]}: {said.speeds}{equal}, more than {100 * limit:g} %")


def fail_if_split_slower(found: Attribution, limit: float | None) -> None:
    """End with 1 where the second group of a lake is slower than the first by more than a share, at equal mix where that is known."""
    if limit is None or not found.speed_ratio_high < 1:
        return
    equal = found.tokens_ratio_equal / found.step_time_ratio_equal
    ratio = equal if equal > 0 else found.speed_ratio
    if 1 - ratio > limit:
        _end(EXIT_ERROR, f"{100 * (1 - ratio):.0f} % slower{' at equal mix' if equal > 0 else ''}, more than {100 * limit:g} %")


def _end(code: int, reason: str) -> None:
    say(reason)
    click.get_current_context().exit(code)
