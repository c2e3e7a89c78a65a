"""A counter is declared once, as an annotated field; how accounts are copied, added up and told is derived from it."""

from __future__ import annotations

import typing
from copy import copy
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Count:
    """Marks a field as a counter: a number, numbers by name, or a list of what was met.

    Parameters
    ----------
    words : str
        What it counts, as it stands behind the number: ``lines read``.
    """

    words: str


def counters(account: type) -> dict[str, str]:
    """Return the counters of a dataclass, each with what it counts."""
    hints = typing.get_type_hints(account, include_extras=True)
    marks = {f.name: getattr(hints[f.name], "__metadata__", ()) for f in fields(account)}
    return {name: mark.words for name, found in marks.items() for mark in found if isinstance(mark, Count)}


def copy_counters(part: Any, total: Any) -> None:
    """Set the counters of an account to those of one that was kept for a part of the work."""
    for name in counters(type(part)):
        setattr(total, name, copy(getattr(part, name)))


def add_counters(part: Any, total: Any) -> None:
    """Add the counters of an account to those of another: numbers, numbers by name, and lists one after the other."""
    for name in counters(type(part)):
        so_far, more = getattr(total, name), getattr(part, name)
        if isinstance(so_far, dict):
            setattr(total, name, so_far | {key: so_far.get(key, 0) + count for key, count in more.items()})
        else:
            setattr(total, name, so_far + more)
