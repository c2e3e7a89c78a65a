"""What a picture is drawn of, where it is given a log; of a frame of another kind, which call is missing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import pandas as pd

from ddtree_metrics.errors import MetricError
from ddtree_metrics.metrics import acceptance, by_budget, by_context
from ddtree_metrics.plots.start_series import start_looks, with_starts
from ddtree_metrics.steps.basis import Kind
from ddtree_metrics.steps.given import is_log

if TYPE_CHECKING:
    from ddtree_metrics.log import Log

P = ParamSpec("P")
R = TypeVar("R")
Drawn = tuple[Any, dict[str, Any]]
"""The first argument of a picture, and those by name that a log gives too."""


def draws(
    of_log: Callable[[Log], Drawn], call: str, *needs: str
) -> Callable[[Callable[Concatenate[Any, P], R]], Callable[Concatenate[Any, P], R]]:
    """Make a picture take a ``Log``, and refuse a frame with rows that has none of the columns it is drawn from.

    Parameters
    ----------
    of_log : callable
        What the picture is drawn of.
    call : str
        The call that gives such a frame of ``rows``.
    *needs : str
        Columns of which one must be there.
    """

    def decorate(function: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
        @functools.wraps(function)
        def wrapped(given: Any, /, *args: Any, **kwargs: Any) -> R:
            if is_log(given):
                given, more = of_log(given)
                kwargs = {**more, **{k: v for k, v in kwargs.items() if v is not None or k not in more}}
            elif isinstance(given, pd.DataFrame) and len(given) and needs and not any(n in given.columns for n in needs):
                name = function.__name__
                raise MetricError(
                    f"{name} draws what {call.partition('(')[0]} gives, with {' or '.join(needs)}, and this frame has none of these: "
                    f"ddt.{name}(ddt.{call}), or give it the log itself, ddt.{name}(log)"
                )
            return function(given, *args, **kwargs)

        return wrapped

    return decorate


def rows_by_start(log: Log) -> pd.DataFrame:
    """Return the rows that the numbers of a log rest on, with the looks of its server starts."""
    return with_starts(log.basis.frame(), start_looks(log.basis))


def curve_of(log: Log) -> Drawn:
    """Return step time, tokens and speed by context, of each server start."""
    rows = rows_by_start(log)
    made = by_context(rows, each="run")
    made.attrs["starts"] = rows.attrs["starts"]
    return made, {}


def curve_and_slope_of(log: Log) -> Drawn:
    """Return the same, and what is said of the log: its slope is drawn."""
    from ddtree_metrics.diagnosis import diagnose

    return curve_of(log)[0], {"fit": diagnose(log)}


def survival_of(log: Log) -> Drawn:
    """Return how drafts were accepted, of each server start."""
    rows = rows_by_start(log)
    starts = rows.attrs["starts"]
    return {n: acceptance(rows[rows["run"] == n]) for n in starts}, {"starts": starts}


def once_of(log: Log) -> Drawn:
    """Return one row a step."""
    rows = rows_by_start(log)
    return rows[["where", "step_time_ms", "run"]].drop_duplicates("where"), {}


def over_time_of(log: Log) -> Drawn:
    """Return what throughput is drawn of, and what is marked in it."""
    basis = log.basis
    starts = start_looks(basis)
    decode = basis.kind in (Kind.DECODE_STEPS, Kind.DECODE_WINDOWS)
    lines = with_starts(log.decode.assign(run=basis.run_of(log.decode)), starts) if decode else rows_by_start(log)
    return lines, {"events": log.events, "starts": starts}


def change_of(log: Log) -> Drawn:
    """Return the change of speed that the answer rests on."""
    from ddtree_metrics.diagnosis import diagnose

    return diagnose(log), {}


def budgets_of(log: Log) -> Drawn:
    """Return speed and tokens by budget."""
    return by_budget(log), {}
