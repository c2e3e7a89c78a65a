"""What a function may be given: the frame that it needs, or the log that has it; of anything else, which call is missing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

import pandas as pd

from ddtree_metrics.errors import MetricError

if TYPE_CHECKING:
    from ddtree_metrics.log import Log

P = ParamSpec("P")
R = TypeVar("R")
Given: TypeAlias = "pd.DataFrame | Log"

FRAMES: Final[dict[str, tuple[Callable[[Any], pd.DataFrame], str, str]]] = {
    "request_steps": (lambda log: log.basis.frame(), "request-steps", "log.basis.frame()"),
    "steps": (lambda log: log.steps, "steps", "log.steps"),
    "lines": (lambda log: log.steps if len(log.steps) else log.decode, "steps or Decode lines", "log.steps"),
    "decode": (lambda log: log.decode, "Decode lines", "log.decode"),
    "requests": (lambda log: log.requests, "requests", "log.requests"),
    "request_lines": (lambda log: log.request_lines, "lines about requests", "log.request_lines"),
}
"""The frames that functions take: how a log gives one, what its rows are, and the call for it."""


def is_log(given: Any) -> bool:
    """Tell whether something is a log: it has the rows that numbers rest on."""
    return hasattr(type(given), "basis") and hasattr(given, "table")


def takes(
    name: str,
    *needs: str | tuple[str, ...],
    fill: Sequence[str] = ("events", "prefill", "servers"),
    also: Sequence[str] = (),
    strict: bool = True,
) -> Callable[[Callable[Concatenate[pd.DataFrame, P], R]], Callable[Concatenate[Given, P], R]]:
    """Make a function of a frame take a ``Log`` too, and refuse a frame without the columns that it needs.

    Parameters
    ----------
    name : str
        Which of ``FRAMES`` its first argument is.
    *needs : str or tuple of str
        Columns that must be there, or one of several, where the frame has rows.
    fill : sequence of str
        Arguments that are taken from the log too, where a log is given and they are not.
    also : sequence of str
        Other arguments that are such a frame.
    strict : bool
        Whether anything but a log and a frame is refused here, and not by the function.
    """

    def decorate(function: Callable[Concatenate[pd.DataFrame, P], R]) -> Callable[Concatenate[Given, P], R]:
        signature = inspect.signature(function)
        first = next(iter(signature.parameters))
        filled = [other for other in fill if other in signature.parameters]

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> R:
            bound = signature.bind_partial(*args, **kwargs)
            log = bound.arguments.get(first)
            for which in (first, *also):
                if which in bound.arguments and (strict or is_log(bound.arguments[which])):
                    bound.arguments[which] = frame_of(bound.arguments[which], name, needs, function.__name__)
            if is_log(log):
                for other in filled:
                    if bound.arguments.get(other) is None:
                        bound.arguments[other] = getattr(log, other)
            return function(*bound.args, **bound.kwargs)

        return wrapped

    return decorate


def frame_of(given: Any, name: str, needs: Sequence[str | tuple[str, ...]], function: str) -> pd.DataFrame:
    """Return the frame that a function needs of a log, or the frame itself.

    Raises
    ------
    MetricError
        If it is neither, or lacks a column; the message names the call that is missing.
    """
    of_log, rows, call = FRAMES[name]
    if is_log(given):
        return of_log(given)
    if not isinstance(given, pd.DataFrame):
        kind = "None" if given is None else f"a {type(given).__name__}"
        raise MetricError(f"{function} takes a Log or a frame of {rows}, not {kind}: ddt.read(...) gives a Log, {call} such a frame")
    for need in needs if len(given) else ():
        either = (need,) if isinstance(need, str) else need
        if not any(column in given.columns for column in either):
            held = ", ".join(map(str, given.columns[:6])) + (" …" if len(given.columns) > 6 else "")
            raise MetricError(
                f"{function} takes {rows}, and this frame has no column {' or '.join(either)} (it has {held}): "
                f"give it the log itself, ddt.{function}(log), or {call}"
            )
    return given


def need_log(given: Any, function: str) -> None:
    """Refuse what is not a log, where a frame is not enough.

    Raises
    ------
    MetricError
        The message names the call that gives a log.
    """
    # hasattr would make the frame of a long log only to see that it can be made
    if isinstance(given, pd.DataFrame) or inspect.getattr_static(given, "steps", None) is None:
        kind = "a frame" if isinstance(given, pd.DataFrame) else "None" if given is None else f"a {type(given).__name__}"
        raise MetricError(f"{function} takes a Log, not {kind}: ddt.{function}(ddt.read(...))")
