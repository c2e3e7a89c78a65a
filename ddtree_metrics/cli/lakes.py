"""When what is read is a lake: the engine answers, and no row of it comes into this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ddtree_metrics.cli.options import Input, say

if TYPE_CHECKING:
    from ddtree_metrics.fleet import Dataset

IN_MEMORY_ROWS = 2_000_000
"""A lake without steps of requests, of no more steps than this, is read as a log, which joins them; a longer one is asked as it is."""


def is_partitioned(path: str) -> bool:
    """Whether a path is a dataset in Hive's layout: a folder of tables with folders ``name=value`` in them."""
    from ddtree_metrics.fleet.analyses import ROWS_OF

    folders = (Path(path) / table for table in ROWS_OF)
    return any(folder.is_dir() and any("=" in inside.name for inside in folder.iterdir() if inside.is_dir()) for folder in folders)


def lake_of(source: Input) -> Dataset | None:
    """Open the lake that is to be read, narrowed to the unit and the window that are asked for; None where something else is read.

    Parameters
    ----------
    source : Input
        What the options say. Where requests are given, or the engine is not installed, a lake is read as a log.
    """
    if len(source.files) != 1 or source.requests or not is_partitioned(source.files[0]):
        return None
    from ddtree_metrics.errors import SourceUnsupported
    from ddtree_metrics.fleet import open_dataset

    try:
        lake = open_dataset(source.files[0])
    except SourceUnsupported as error:
        say(f"note: every row is read into memory, for {error}")
        return None
    if "request_steps" not in lake.bases and sum(part.rows for part in lake.bases["steps"]) <= IN_MEMORY_ROWS:
        return None
    unit = source.keywords.get("unit") or ()
    return lake.narrowed(
        units=[unit] if isinstance(unit, str) else list(unit),
        since=source.keywords.get("since"),
        until=source.keywords.get("until"),
        tz=source.zone,
    )
