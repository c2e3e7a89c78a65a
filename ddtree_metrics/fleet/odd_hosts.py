"""What should be known of hosts before their rows are added up: two of one name, and clocks that are hours apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from ddtree_metrics.times import format_span, format_us

if TYPE_CHECKING:
    from ddtree_metrics.fleet.analyses import Dataset

APART_US = 3_600_000_000
"""A host whose newest row is this much older than the newest of all is named: its clock is behind, or it is not exported any more."""

AHEAD_US = 300_000_000
"""A row so much later than the file it stands in was written by a clock that is ahead."""

MOST_NAMED = 5


def odd_hosts(lake: Dataset) -> list[str]:
    """Name hosts whose rows may not be what they seem, each in a sentence; all of their rows are counted.

    Parameters
    ----------
    lake : Dataset
        The lake.
    """
    return [*_two_of_one_name(lake.streams), *_behind(lake.streams), *_ahead(lake)]


def _two_of_one_name(streams: pd.DataFrame) -> list[str]:
    """Name hosts of which two boots were up at the same time."""
    made = []
    known = streams.dropna(subset=["boot_id", "first_us", "last_us"])
    for host, part in known.groupby("host", sort=True):
        boots = part.groupby("boot_id").agg(first=("first_us", "min"), last=("last_us", "max")).sort_values("first")
        latest = boots["last"].cummax().shift()
        over = boots[boots["first"] < latest]
        if len(over):
            at = format_us(int(over["first"].iloc[0]))[:19]
            made.append(
                f"host {host}: two boots ran at the same time (from {at}Z): two machines of one name, or a clock that was set back; "
                "by='boot_id' tells them apart"
            )
    return _few(made, "hosts of two boots at once")


def _behind(streams: pd.DataFrame) -> list[str]:
    last = streams.groupby("host")["last_us"].max().dropna()
    made = []
    if len(last) > 1:
        newest = float(last.max())
        for host, at in last.items():
            if newest - float(at) > APART_US:
                made.append(
                    f"host {host}: its newest row is {format_span(int(newest - float(at)))} older than the newest of all: its clock is "
                    "behind (or another's ahead), or it is not exported any more; days are those of its own clock"
                )
    return _few(made, "hosts whose newest rows are hours older than others'")


def _ahead(lake: Dataset) -> list[str]:
    most: dict[str, int] = {}
    for part in [part for parts in lake.bases.values() for part in parts]:
        host = part.partition.get("host")
        if host is None or part.last_us is None:
            continue
        try:
            over = part.last_us - int(part.path.stat().st_mtime * 1e6)
        except OSError:
            continue
        if over > AHEAD_US:
            most[host] = max(most.get(host, 0), over)
    made = [
        f"host {host}: its clock is at least {format_span(over)} ahead of the machine that wrote the lake; days are those of its own clock"
        for host, over in sorted(most.items())
    ]
    return _few(made, "hosts whose clocks are ahead")


def _few(notes: list[str], what: str) -> list[str]:
    more = len(notes) - MOST_NAMED
    return notes if more <= 0 else [*notes[:MOST_NAMED], f"and {more} more {what}"]
