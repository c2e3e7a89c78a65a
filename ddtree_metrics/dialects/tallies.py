"""The lines that gave nothing: broken ones with their reason, and those that only speak of a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ddtree_metrics.dialects.secrets import outline

EXAMPLES = 5
_LONG = 200
_FAR = 96


@dataclass(slots=True)
class BrokenLines:
    """Lines with a marker that break their form, counted by dialect, table and reason."""

    counts: dict[tuple[str, str, str], int] = field(default_factory=dict)
    examples: dict[tuple[str, str, str], list[tuple[str, str]]] = field(default_factory=dict)

    def add(self, dialect: str, table: str, reason: str, where: str, text: str) -> None:
        """Count one line; the first few are kept, cut to 200 characters, without secrets."""
        key = (dialect, table, reason)
        self.counts[key] = self.counts.get(key, 0) + 1
        kept = self.examples.setdefault(key, [])
        if len(kept) < EXAMPLES:
            kept.append((where, text))

    @property
    def total(self) -> int:
        """How many lines are broken in all."""
        return sum(self.counts.values())


@dataclass(slots=True)
class QuotedLines:
    """Lines that hold a marker of a line of pairs and were taken for somebody's words about one, counted by dialect."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def add(self, dialect: str, example: Callable[[], tuple[str, str]]) -> None:
        """Count one line; of the first few the place and the text (cut to 200 characters, without secrets) are kept."""
        self.counts[dialect] = self.counts.get(dialect, 0) + 1
        kept = self.examples.setdefault(dialect, [])
        if len(kept) < EXAMPLES:
            kept.append(example())

    @property
    def total(self) -> int:
        """How many such lines there are in all."""
        return sum(self.counts.values())


def example_of(message: str, at: int, words: frozenset[str]) -> str:
    """Show of a line what is known or plain from its head on, in 200 characters: no secret, and nothing that may be a prompt.

    Parameters
    ----------
    message : str
        The line.
    at : int
        Where the marker, or the first key, begins.
    words : frozenset of str
        The words of the line kind.
    """
    head = last_bracket(message, at)
    shown = outline(message[head : at + 10 * _LONG], words)
    return (shown if head == 0 else f"… {shown}")[:_LONG]


def last_bracket(message: str, at: int) -> int:
    """Say where the bracket begins that ends right before a place; the place itself where there is none."""
    before = message[max(0, at - _FAR) : at].rstrip()
    begin = before.rfind("[") if before.endswith("]") else -1
    return at if begin < 0 else max(0, at - _FAR) + begin
