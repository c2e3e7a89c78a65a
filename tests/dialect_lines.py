"""Feed lines of text to the engine and look at what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from ddtree_metrics.dialects import DIALECTS
from ddtree_metrics.dialects.engine import Parser
from ddtree_metrics.sources import LINE_SCHEMA

SAMPLES = Path(__file__).resolve().parent.parent / "fixtures" / "samples"


def batch(lines: list[str], **columns: list[Any]) -> pa.RecordBatch:
    """Make a batch of lines as a source would; ``columns`` fills others than the message."""
    made = []
    for field in LINE_SCHEMA:
        if field.name == "message":
            made.append(pa.array(lines, type=pa.string()))
        elif field.name in columns:
            made.append(pa.array(columns[field.name], type=field.type))
        else:
            made.append(pa.nulls(len(lines), field.type))
    return pa.RecordBatch.from_arrays(made, schema=LINE_SCHEMA)


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Show a map as a dict, and leave out what is null."""
    return {k: dict(v) if isinstance(v, list) and v and isinstance(v[0], tuple) else v for k, v in row.items() if v is not None}


def rows(table: str, *lines: str, parser: Parser | None = None, **columns: list[Any]) -> list[dict[str, Any]]:
    """Feed lines in one batch and return the rows of one table."""
    parser = parser or Parser(DIALECTS, on_error="skip")
    found = parser.feed(batch(list(lines), **columns)).tables
    return [plain(r) for r in found[table].to_pylist()] if table in found else []


def one(table: str, line: str) -> dict[str, Any]:
    """Feed one line that must give one row, fast and slow, and nothing else."""
    made = []
    for fast in (True, False):
        parser = Parser(DIALECTS, on_error="skip", fast=fast)
        found = parser.feed(batch([line])).tables
        assert {t: b.num_rows for t, b in found.items()} == {table: 1}, (line, parser.broken.counts)
        assert not parser.broken.counts
        made.append(plain(found[table].to_pylist()[0]))
    assert made[0] == made[1]
    return made[0]


def reason(line: str) -> str | None:
    """Feed one line; return why it is broken, or None if it gave nothing at all."""
    parser = Parser(DIALECTS, on_error="skip")
    found = parser.feed(batch([line])).tables
    assert not found, (line, {t: b.to_pylist() for t, b in found.items()})
    assert len(parser.broken.counts) <= 1
    return next((r for _, _, r in parser.broken.counts), None)
