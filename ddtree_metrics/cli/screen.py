"""How answers look in a terminal: width, colour, and signs that its encoding has.

Colour is for a terminal only, through ``rich``, which knows ``NO_COLOR``, dumb terminals and their number of colours; it is imported when
there is something to colour. A pipe gets the same lines, plain.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import Any, TextIO

import click

from ddtree_metrics.layout import TextLine
from ddtree_metrics.validation import printable

_ASCII = str.maketrans({"×": "x", "÷": "/", "→": "->", "≤": "<=", "≥": ">=", "·": "-", "⚠": "!", "…": "...", "–": "-"})

_STYLES = {
    "headline slower": "bold red",
    "headline mixed": "bold red",
    "headline faster": "bold green",
    "headline unchanged": "bold green",
    "headline": "bold yellow",
    "warning": "yellow",
    "speeds": "bold",
    "head": "dim",
    "label": "bold",
    "note": "dim",
    "next": "bold",
}
"""How each kind of line looks; the first word of a kind counts where the whole is not named."""

_INTERVAL = r"\([-+\d.,× ]+ to [-+\d., %]+\)"
_SLOWER, _FASTER = r"\(-[\d,.]+ %\)", r"\(\+[\d,.]+ %\)"
_STATUS = {
    r"^  (cause)\b": "bold red",
    r"^  (likely cause)\b": "bold",
    r"^  (ruled out|not the cause)\b": "green",
    r"^  (unknown|possible)\b": "yellow",
}


def width() -> int:
    """Return the columns of the terminal; 80 where there is none."""
    return shutil.get_terminal_size((80, 24)).columns


def say_lines(lines: Iterable[TextLine], *, err: bool = False) -> None:
    """Write lines to stdout, or to stderr, coloured on a terminal."""
    if not _colours(sys.stderr if err else sys.stdout):
        for line in lines:
            write(line.text, err=err)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=err, highlight=False, soft_wrap=True, emoji=False, markup=False)
    for line in lines:
        made = Text(plain(printable(line.text)), style=_STYLES.get(line.kind, _STYLES.get(line.kind.partition(" ")[0], "")))
        made.highlight_regex(_INTERVAL, "dim")
        made.highlight_regex(_SLOWER, "red")
        made.highlight_regex(_FASTER, "green")
        for pattern, style in _STATUS.items():
            made.highlight_regex(pattern, style)
        console.print(made)


def dead_end(reason: str, remedy: str = "") -> list[TextLine]:
    """Return the lines that say why there is nothing to show, and what to do."""
    wide = min(width(), 120)
    said = ((reason, "headline"), (remedy, "next"))
    return [TextLine(part, kind) for text, kind in said if text for part in textwrap.wrap(text, wide, break_on_hyphens=False)]


def write(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Write text to stdout or stderr, with nothing in it that a terminal obeys: names and messages may hold anything."""
    try:
        click.echo(plain("\n".join(map(printable, text.split("\n"))), err=err), err=err, nl=nl)
    except BrokenPipeError:
        raise
    except OSError as error:
        from ddtree_metrics.tables.atomic import told

        raise told(error, "stderr" if err else "stdout") from error


def write_json(data: Any) -> None:
    """Write data to stdout as JSON; what cannot be seen is escaped in it."""
    write(json_text(data), nl=False)


def json_text(data: Any) -> str:
    """Return data as JSON, with a newline at its end; what cannot be seen is escaped."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    return "".join(c if c.isprintable() or c in "\n " else json.dumps(c)[1:-1] for c in text) + "\n"


def plain(text: str, *, err: bool = False) -> str:
    """Return a text with signs that the encoding of stdout, or of stderr, has."""
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    return text


def _colours(stream: TextIO) -> bool:
    context = click.get_current_context(silent=True)
    wanted = context.color if context is not None else None
    if wanted is not None:
        return wanted
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
