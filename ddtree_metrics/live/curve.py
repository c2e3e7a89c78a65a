"""A baseline: sums by context of a time that was as it should be, from a log or a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from ddtree_metrics.errors import MetricError
from ddtree_metrics.live.fresh_rows import FreshRows
from ddtree_metrics.live.rolling import EDGES, UNKNOWN, name_of, sums_by_bin
from ddtree_metrics.reading import Reading
from ddtree_metrics.steps.frames import Floats
from ddtree_metrics.tables.atomic import write_whole

FORM = "ddtree_metrics.baseline/1"


class _Bin(msgspec.Struct, forbid_unknown_fields=True):
    context: str
    sums: tuple[float, float, float, float, float, float, float, float]


class _BaselineFile(msgspec.Struct, forbid_unknown_fields=True):
    form: str
    source: str
    edges: list[float]
    bins: list[_Bin]


@dataclass(frozen=True, slots=True)
class Baseline:
    """Sums by context, and what they are of."""

    source: str
    sums: Floats


def baseline_of(reading: Reading, source: str) -> Baseline:
    """Sum up the rows of a log while it is read; memory does not grow with it."""
    rows, sums = FreshRows(), np.zeros((UNKNOWN + 1, 8))
    for tables in reading:
        sums += sums_by_bin(*rows.feed([tables], reading.server_starts()))
    return Baseline(source, sums)


def save_baseline(baseline: Baseline, path: str | Path) -> None:
    """Write a baseline as JSON; the file appears whole, and one that is there is replaced."""
    bins = [{"context": name_of(i), "sums": [float(x) for x in row]} for i, row in enumerate(baseline.sums)]
    made = {"form": FORM, "source": baseline.source, "edges": list(EDGES), "bins": bins}
    write_whole(Path(path), (json.dumps(made, indent=1) + "\n").encode(), force=True)


def load_baseline(path: str | Path) -> Baseline:
    """Read what ``save_baseline`` wrote.

    Raises
    ------
    MetricError
        If it is something else; the message says what.
    """
    try:
        read = msgspec.json.decode(Path(path).read_bytes(), type=_BaselineFile)
    except OSError as error:
        raise MetricError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise MetricError(f"{path} is no baseline of watch ({error}); --save-baseline writes one") from None
    if read.form != FORM or tuple(read.edges) != EDGES or len(read.bins) != UNKNOWN + 1:
        raise MetricError(f"{path} is a baseline of another form ({read.form}, {len(read.bins)} bins); make it anew with --save-baseline")
    sums = np.array([b.sums for b in read.bins], dtype=np.float64)
    if not np.isfinite(sums).all() or (sums < 0).any():
        raise MetricError(f"{path} has sums that no log gives; make it anew with --save-baseline")
    return Baseline(read.source, sums)
