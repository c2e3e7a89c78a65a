"""Lines that were cut in pieces, put together again, a stream at a time."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pyarrow as pa

from ddtree_metrics.sources import SourceStats
from ddtree_metrics.sources import journal_fields as f
from ddtree_metrics.sources.clean import replaced
from ddtree_metrics.sources.entries import PIECES_MAX
from ddtree_metrics.sources.text_block import LineBlock

_KEPT = ("time", "kind", "resolution", "flag", "monotonic", "line", "pid", "unit", "host", "stream", "boot", "ident", "wanted")


class Pieces:
    """Keep the pieces of lines that go on, over the blocks of a source.

    A line takes its time and place from its first piece.
    """

    def __init__(self, stats: SourceStats) -> None:
        self.stats = stats
        self.keys: dict[int, Any] = {}
        """Streams of rows that name them in fields of their own (journal entries), by row."""
        self._pending: dict[Any, dict[str, Any]] = {}
        self._rows: weakref.ref[LineBlock] | None = None
        self._block = 0

    @property
    def waiting(self) -> bool:
        """Whether a line has begun and not ended yet."""
        return bool(self._pending)

    def join(self, rows: LineBlock) -> None:
        """Put pieces together: the last one's row becomes the whole line, the others go."""
        if not self._pending and not (rows.more == 2).any():
            self.keys.clear()
            return
        if self._rows is None or self._rows() is not rows:
            self._rows, self._block = weakref.ref(rows), self._block + 1
        at: list[int] = []
        texts: list[str] = []
        involved = np.flatnonzero(rows.more > 0)
        words = rows.message.take(pa.array(involved))
        for i, row in enumerate(involved.tolist()):
            key = self.keys.get(row)
            if key is None:
                key = (int(rows.unit[row]), int(rows.host[row]), int(rows.stream[row]))
            begun = self._pending.get(key)
            goes_on = rows.more[row] == 2
            if begun is None and not goes_on:
                continue
            text = words[i].as_py()
            if begun is not None and self._anew(begun, row, text):
                # The line before was whole after all: it gets the row of its last piece.
                del self._pending[key]
                self.stats.pieces_joined += begun["pieces"] if begun["pieces"] > 1 else 0
                last = begun["row"]
                for name in _KEPT:
                    getattr(rows, name)[last] = begun[name]
                rows.keep[last] = True
                at.append(last)
                texts.append("".join(begun["texts"]))
                if not goes_on:
                    continue
                begun = None
            if begun is None:
                begun = {name: getattr(rows, name)[row] for name in _KEPT}
                begun["texts"], begun["size"] = [], 0
                self._pending[key] = begun
            if begun["size"] < PIECES_MAX:
                begun["texts"].append(text)
                begun["size"] += len(text)
            begun["pieces"] = begun.get("pieces", 0) + 1
            begun["row"], begun["block"] = row, self._block
            if goes_on:
                rows.keep[row] = False
                continue
            del self._pending[key]
            self.stats.pieces_joined += begun["pieces"]
            for name in _KEPT:
                getattr(rows, name)[row] = begun[name]
            at.append(row)
            texts.append("".join(begun["texts"]))
        if at:
            order = np.argsort(at)
            rows.message = replaced(rows.message, np.array(at, np.int64)[order], pa.array(texts, pa.string()).take(pa.array(order)))
        self.keys.clear()

    def _anew(self, begun: dict[str, Any], row: int, text: str) -> bool:
        """Say whether a journal entry begins another line; only where the row of the last piece is still there."""
        return begun["block"] == self._block and row in self.keys and f.begins_anew(begun["texts"][0].encode(), text.encode())

    def finish(self) -> None:
        """Give up on lines whose end never came."""
        self.stats.pieces_unfinished += sum(begun["pieces"] for begun in self._pending.values())
        self._pending.clear()
