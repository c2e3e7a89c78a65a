"""Step times that a server prints one line late: each is given to the step that it is of.

A line that waits for its time stays until the next one of its process comes. The next line must be that of the next iteration; after an
iteration in which nothing ran, the time contains the wait and is given to nobody.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ddtree_metrics.dialects.tensorrt_llm import PREVIOUS, TENSORRT_LLM
from ddtree_metrics.records import TreeStep
from ddtree_metrics.schema import arrow_schema
from ddtree_metrics.steps.columns import Ints

Tables = dict[str, pa.RecordBatch]


class LateTimes:
    """Gives late times to their steps, batch by batch."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[Any, ...], tuple[dict[str, Any], int]] = {}

    def feed(self, tables: Tables, line: dict[str, Ints]) -> tuple[Tables, dict[str, Ints]]:
        """Take the tables of one batch of lines, and the line of each row; return them with the times that are known by now."""
        names = [name for name in ("steps", "prefill") if name in tables]
        if not any(_is_late(tables[name]) for name in names):
            return tables, line
        rows = [(row, at, name) for name in names for row, at in zip(tables[name].to_pylist(), line[name].tolist(), strict=True)]
        done: list[tuple[dict[str, Any], int]] = []
        for row, at, name in sorted(rows, key=lambda x: x[1]):
            if row["dialect"] != TENSORRT_LLM.name:
                if name == "steps":
                    done.append((row, at))
                continue
            extra = dict(row["extra"] or ())
            number = int(extra["iteration"]) if name == "steps" else row["iteration"]
            process = tuple(row[key] for key in ("boot_id", "pid", "unit", "tp_rank"))
            before = self._waiting.pop(process, None)
            if before is not None:
                if number == int(dict(before[0]["extra"])["iteration"]) + 1 and PREVIOUS in extra:
                    before[0]["step_ms"] = float(extra[PREVIOUS].removesuffix(" ms"))
                done.append(before)
            if name == "steps":
                self._waiting[process] = (row, at)
        return _with_steps(tables, line, done)

    def rest(self) -> tuple[Tables, dict[str, Ints]]:
        """Return the steps whose time never came."""
        waiting, self._waiting = list(self._waiting.values()), {}
        return _with_steps({}, {}, waiting)


def _is_late(batch: pa.RecordBatch) -> bool:
    return TENSORRT_LLM.name in batch.column(batch.schema.get_field_index("dialect")).unique().to_pylist()


def _with_steps(tables: Tables, line: dict[str, Ints], done: list[tuple[dict[str, Any], int]]) -> tuple[Tables, dict[str, Ints]]:
    rest = {name: table for name, table in tables.items() if name != "steps"}
    lines = {name: at for name, at in line.items() if name != "steps"}
    if done:
        done.sort(key=lambda x: x[1])
        rest["steps"] = pa.RecordBatch.from_pylist([row for row, _ in done], schema=arrow_schema(TreeStep))
        lines["steps"] = np.array([at for _, at in done], dtype=np.int64)
    return rest, lines
