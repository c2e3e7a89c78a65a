"""The captures of a real server, and the engine's own truth beside them."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
UNIT = "sglang-tiny.service"


def journal_export(capture: str) -> Path:
    """Where the capture's journal stands, as ``journalctl -o export`` wrote it."""
    return FIXTURES / "real" / capture / "journal.export.zst"


def unpacked(path: Path) -> bytes:
    """Read a file compressed with zstd."""
    with pa.input_stream(str(path), compression="zstd") as file:
        data: bytes = file.read()
    return data


@functools.cache
def truth(capture: str) -> tuple[dict[str, Any], ...]:
    """Read what the engine wrote of itself: one dict a start, prefill and step."""
    text = unpacked(FIXTURES / "real" / capture / "truth.jsonl.zst").decode()
    return tuple(json.loads(line) for line in text.splitlines())


def truth_steps(capture: str) -> list[dict[str, Any]]:
    """Only the steps."""
    return [row for row in truth(capture) if row["kind"] == "step"]


def summary(capture: str) -> dict[str, Any]:
    """Read the numbers that were computed from the truth when the capture was made."""
    made: dict[str, Any] = json.loads((FIXTURES / "real" / capture / "truth-summary.json").read_text())
    return made
