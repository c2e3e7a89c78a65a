"""Windows that a server tells of in two lines: what was done, and what was drafted. The two are one row.

The second line names no engine: it belongs to the line before it of the same process. A window whose second line may still come waits for
the next batch of lines.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.records import DecodeBatch
from ddtree_metrics.schema import arrow_schema
from ddtree_metrics.steps.columns import Ints

DRAFTS = (
    "accept_rate", "accepted", "drafted", "accepted_throughput", "drafted_throughput", "mean_accept_len", "position_accept_rates", "extra",
)  # fmt: skip
"""The columns that the second line fills."""


class WindowPairs:
    """Puts the two lines of each window together, batch by batch."""

    def __init__(self) -> None:
        self._waiting: tuple[dict[str, Any], int] | None = None

    def feed(self, tables: dict[str, pa.RecordBatch], line: dict[str, Ints]) -> tuple[dict[str, pa.RecordBatch], dict[str, Ints]]:
        """Take the tables of one batch of lines, and the line of each row; return them with each window once.

        Parameters
        ----------
        tables : dict of str to RecordBatch
        line : dict of str to ndarray of int64
            The number of each row's line.
        """
        batch = tables.get("decode")
        if batch is None and self._waiting is None:
            return tables, line
        if batch is not None and self._waiting is None and not _first_lines(batch).any():
            return tables, line
        rows = [] if batch is None else list(zip(batch.to_pylist(), line["decode"].tolist(), strict=True))
        if self._waiting is not None:
            rows.insert(0, self._waiting)
            self._waiting = None
        made: list[tuple[dict[str, Any], int]] = []
        last: dict[tuple[Any, Any], int] = {}
        for row, at in rows:
            process = (row["boot_id"], row["pid"])
            before = last.get(process)
            if before is not None and _is_second(row) and not _told(made[before][0]):
                _fill(made[before][0], row)
                continue
            last[process] = len(made)
            made.append((row, at))
        if made and _is_first(made[-1][0]) and not _told(made[-1][0]):
            self._waiting = made.pop()
        return _replaced(tables, line, made)

    def rest(self) -> tuple[dict[str, pa.RecordBatch], dict[str, Ints]]:
        """Return the window that still waited when the lines ended."""
        waiting, self._waiting = self._waiting, None
        return _replaced({}, {}, [] if waiting is None else [waiting])


def _first_lines(batch: pa.RecordBatch) -> Any:
    return np.asarray(batch.column(batch.schema.get_field_index("prompt_throughput")).is_valid()) | np.asarray(
        pc.and_(batch.column(batch.schema.get_field_index("gen_throughput")).is_null(), batch.column("drafted").is_valid())
    )


def _is_first(row: dict[str, Any]) -> bool:
    return row["prompt_throughput"] is not None


def _is_second(row: dict[str, Any]) -> bool:
    return row["gen_throughput"] is None and row["running"] is None and (row["drafted"] is not None or row["accept_rate"] is not None)


def _told(row: dict[str, Any]) -> bool:
    """Whether a row is no first line, or has its second line already."""
    return not _is_first(row) or row["drafted"] is not None or row["accept_rate"] is not None


def _fill(row: dict[str, Any], second: dict[str, Any]) -> None:
    for name in DRAFTS:
        if name == "extra":
            row[name] = [*(row[name] or []), *(second[name] or [])] or None
        else:
            row[name] = second[name]


def _replaced(
    tables: dict[str, pa.RecordBatch], line: dict[str, Ints], made: list[tuple[dict[str, Any], int]]
) -> tuple[dict[str, pa.RecordBatch], dict[str, Ints]]:
    rest = {name: table for name, table in tables.items() if name != "decode"}
    lines = {name: at for name, at in line.items() if name != "decode"}
    if made:
        rest["decode"] = pa.RecordBatch.from_pylist([row for row, _ in made], schema=arrow_schema(DecodeBatch))
        lines["decode"] = np.array([at for _, at in made], dtype=np.int64)
    return rest, lines
