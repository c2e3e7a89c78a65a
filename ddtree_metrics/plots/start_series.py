"""Server starts as series: what each is called, and its colour and marker, the same in every picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from ddtree_metrics.plots.looks import QUIET, SERIES, shorten
from ddtree_metrics.steps.starts import names_of

if TYPE_CHECKING:
    from ddtree_metrics.steps.basis import Basis

MOST: Final = len(SERIES)
"""So many starts have a colour; earlier ones share a quiet one."""
EARLIER: Final = 0
"""The number of those that share it, and of what was logged before the first start."""


@dataclass(frozen=True, slots=True)
class StartLook:
    """A server start in a picture.

    Attributes
    ----------
    number : int
        As in ``run`` of the rows.
    name : str
        What it is called.
    color : str
        Its colour, which has its marker.
    time_us : int or None
        When it was.
    """

    number: int
    name: str
    color: str
    time_us: int | None = None


def start_looks(basis: Basis) -> dict[int, StartLook]:
    """Return the server starts of which there are rows, by number, the oldest first; those before the last six as one, of number 0."""
    numbers = sorted(int(n) for n in np.unique(basis.run))
    runs = {run.number: run for run in basis.runs}
    called = {name.label: name.words for name in names_of(basis.runs, basis.services)}
    made: dict[int, StartLook] = {}
    last = [n for n in numbers if n > 0][-MOST:]
    if len(last) < len(numbers):
        made[EARLIER] = StartLook(EARLIER, "before the first start" if numbers[: -len(last) or None] == [0] else "earlier starts", QUIET)
    for place, number in enumerate(last):
        run = runs.get(number)
        words = called.get(run.label, run.label) if run is not None else f"run {number}"
        made[number] = StartLook(number, shorten(words, 80), SERIES[place], None if run is None else run.start_us)
    return made


def with_starts(frame: pd.DataFrame, looks: Mapping[int, StartLook]) -> pd.DataFrame:
    """Return a frame whose ``run`` has the numbers of these starts, with their names and colours in ``attrs``."""
    made = frame.assign(run=frame["run"].where(frame["run"].isin(list(looks)), EARLIER)) if "run" in frame else frame.copy(deep=False)
    made.attrs["starts"] = dict(looks)
    return made


def parts_of(frame: pd.DataFrame, label: str | None, color: str | None) -> list[tuple[pd.DataFrame, str | None, str | None]]:
    """Split a frame by server start, where it has several; with the name and colour of each series."""
    looks: Mapping[int, Any] = frame.attrs.get("starts") or {}
    if "run" not in frame.columns or not len(frame):
        return [(frame, label, color)]
    numbers = sorted(int(n) for n in frame["run"].dropna().unique())
    if len(numbers) < 2 and not looks:
        return [(frame, label, color)]
    made = []
    for place, number in enumerate(numbers):
        own = looks.get(number) or StartLook(number, f"run {number}", SERIES[place % len(SERIES)])
        part = frame[frame["run"] == number]
        part.attrs = frame.attrs
        name = own.name if len(numbers) > 1 else label
        made.append((part, name if label in (None, name) else f"{label}, {name}" if label else label, color or own.color))
    return made
