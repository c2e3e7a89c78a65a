"""HTML that escapes by default: text is escaped unless it was made by ``tag`` itself."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

DUST = 5e-6
"""A smaller number is rounding of floating-point arithmetic, or too small to mean anything: it is written as 0."""

VOID = frozenset({"br", "hr", "col", "meta"})


class Html(str):
    """Text that is HTML already; everything else is escaped when it is put into an element."""

    __slots__ = ()


def escape(value: object) -> Html:
    """Escape a value, unless it is HTML already; characters that no page may hold become a replacement character."""
    if isinstance(value, Html):
        return value
    text = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in str(value))
    return Html(html.escape(text, quote=True))


def tag(name: str, *children: object, **attributes: object) -> Html:
    """Make an element.

    Parameters
    ----------
    name : str
        Its name.
    *children
        What it holds: text, which is escaped; elements; lists of them; None is left out.
    **attributes
        Its attributes; a trailing underscore is dropped (``class_``), others become hyphens, None and False leave one out.
    """
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    inside = join(children)
    return Html(f"<{name}{said}>" if name in VOID else f"<{name}{said}>{inside}</{name}>")


def join(children: Iterable[object]) -> Html:
    """Put pieces together, escaping what is text."""
    made: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, list | tuple):
            made.append(join(child))
        else:
            made.append(escape(child))
    return Html("".join(made))


def table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    numeric: Iterable[int] = (),
    whole: Iterable[int] = (),
    class_: str = "",
    caption: object = None,
) -> Html:
    """Make a table that scrolls sideways on a narrow screen, or turns into a list of cards there if its class is ``cards``.

    Parameters
    ----------
    head : sequence
        The column heads; they are repeated in every cell for the narrow form.
    rows : iterable of sequences
        The cells.
    numeric : iterable of int
        Columns that are set right.
    whole : iterable of int
        Columns whose cells are not broken into lines.
    class_ : str
        Of the table.
    caption : object, optional
        Above it.
    """
    right, unbroken = set(numeric), set(whole)

    def cell(i: int, value: object) -> Html:
        kind = "n" if i in right else "t" if i in unbroken else None
        label = None if isinstance(head[i], Html) else str(head[i]) or None
        if i == 0:
            return tag("th", value, scope="row", class_=kind, data_label=label)
        return tag("td", value, class_=kind, data_label=label)

    body = [tag("tr", [cell(i, v) for i, v in enumerate(row)]) for row in rows]
    heads = tag("thead", tag("tr", [tag("th", h, scope="col", class_="n" if i in right else None) for i, h in enumerate(head)]))
    made = tag("table", None if caption is None else tag("caption", caption), heads, tag("tbody", body), class_=class_ or None)
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption if isinstance(caption, str) else "table")


def how(python: str | None = None, sql: str | None = None, note: object = None) -> Html:
    """Make the fold under a block that says which call, and which SQL over the export, gives its numbers."""
    return tag(
        "details",
        tag("summary", "Where these numbers come from"),
        None if note is None else tag("p", note),
        None if python is None else [tag("p", "Python", class_="lang"), tag("pre", tag("code", python), class_="python", tabindex="0")],
        None
        if sql is None
        else [tag("p", "SQL (DuckDB, over an export)", class_="lang"), tag("pre", tag("code", sql), class_="sql", tabindex="0")],
        class_="how",
    )


def known(value: Any) -> TypeGuard[float]:
    """Tell whether a value is a finite number."""
    try:
        return value is not None and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def figure(value: Any, digits: int = 3, unit: str = "") -> str:
    """Write a number for reading, an en dash where there is none."""
    if not known(value):
        return "–"
    number = float(value) if abs(float(value)) >= DUST else 0.0
    if abs(number) >= 1000:
        text = f"{number:,.0f}"
    else:
        text = f"{number:#.{digits}g}".rstrip(".")
        if "e" in text or 0 < abs(number) < 0.001:
            text = f"{number:.5f}"
    return text.replace("-", "\N{MINUS SIGN}") + (f" {unit}" if unit else "")


def ratio(value: Any) -> str:
    """Write a ratio with its sign."""
    return f"×{float(value):.2f}" if known(value) and 0.1 <= abs(float(value)) < 10 else f"×{figure(value)}"


def count(value: Any) -> str:
    """Write a whole number with its thousands apart."""
    return f"{round(float(value)):,}" if known(value) else "–"


def percent(value: Any, digits: int = 1) -> str:
    """Write a share of 1 as per cent."""
    if not known(value):
        return "–"
    number = 100 * float(value)
    return f"{number if abs(number) >= 0.5 * 10.0**-digits else 0.0:.{digits}f} %".replace("-", "\N{MINUS SIGN}")


def between(low: Any, high: Any, write: Any = figure) -> str:
    """Write an interval, nothing where there is none."""
    return f"{write(low)} to {write(high)}" if known(low) and known(high) else ""


def quantity(value: Any, low: Any = None, high: Any = None, write: Any = figure) -> Html:
    """Write a number with its interval beneath."""
    said = between(low, high, write)
    return join([write(value), tag("span", said, class_="ci") if said else None])
