"""Lines and tables of plain text: what a terminal, a notebook and a pipe show alike."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line, and what kind it is: ``title``, ``warning``, ``headline``, ``head`` (of columns), ``part``, ``finding``, ``note``."""

    text: str = ""
    kind: str = ""


def table(
    sections: Sequence[tuple[str, Sequence[Sequence[str]]]],
    head: Sequence[str],
    width: int,
    *,
    left: Collection[int] = (),
    first_to_go: Sequence[int] = (),
) -> list[TextLine]:
    """Lay out rows in columns that all sections share, under a head for each section.

    Parameters
    ----------
    sections : sequence of (str, rows)
        The name of each section, which stands above its first column, and its rows, a text a cell.
    head : sequence of str
        The names of the columns after the first.
    width : int
        Columns of the terminal.
    left : collection of int
        Columns that begin at the left, besides the first; a last one of these may be cut to what is left of the width.
    first_to_go : sequence of int
        Columns that are left out where there is no room for all, the first ones first.
    """
    rows = [row for _, part in sections for row in part]
    sizes = [
        max([len(row[i]) for row in rows] + ([len(name) for name, _ in sections] if not i else [len(head[i - 1])]), default=0)
        for i in range(len(head) + 1)
    ]
    shown = list(range(len(sizes)))
    for column in first_to_go:
        if sum(sizes[i] + 2 for i in shown) - 2 <= width:
            break
        shown.remove(column)
    over = sum(sizes[i] + 2 for i in shown) - 2 - width
    if over > 0:
        cut = shown[-1] if shown[-1] in left else 0
        sizes[cut] = max(sizes[cut] - over, 4)
    made: list[TextLine] = []

    def line(cells: Sequence[str], kind: str) -> TextLine:
        placed = [_placed(cells[i], sizes[i], i == 0 or i in left) for i in shown]
        return TextLine("  ".join(placed).rstrip()[:width], kind)

    for i, (name, part) in enumerate(sections):
        made += [TextLine()] if i else []
        made += [line([name, *head], "head"), *(line(row, "part") for row in part)]
    return made


def _placed(cell: str, size: int, left: bool) -> str:
    if len(cell) > size:
        cell = cell[: max(size - 1, 1)] + "…"
    return f"{cell:<{size}}" if left else f"{cell:>{size}}"


def plural(count: int, word: str) -> str:
    """Write a count with its noun: ``1 request``, ``2 requests``."""
    several = word + ("es" if word.endswith(("ch", "s", "x")) else "s")
    return f"{count:,} {word if count == 1 else several}"
