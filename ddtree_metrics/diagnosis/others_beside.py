"""What other programs wrote around breaks and server starts: beside them, for no line says that it is because of it."""

from __future__ import annotations

from textwrap import shorten
from typing import Any

from ddtree_metrics.beside import Around, said_of
from ddtree_metrics.diagnosis.result import Diagnosis
from ddtree_metrics.errors import SourceError
from ddtree_metrics.times import format_us, parse_iso

BEFORE_US, AFTER_US = 120_000_000, 60_000_000
"""So much before and after a change is looked at."""

MOST = 6
"""So many times are looked at."""


def others_beside(d: Diagnosis, log: Any, *, messages: bool = False) -> tuple[Around, ...]:
    """Look at what others wrote where speed changed, and around other breaks, server starts and slow times.

    Parameters
    ----------
    d : Diagnosis
    log : Log
        Where its lines come from is asked again; anything else has no others.
    messages : bool
        Whether messages are kept, redacted and cut.
    """
    if not hasattr(log, "around") or d.scene is None:
        return ()
    times = [(d.since.low, d.since.high)] if d.since is not None else []
    times += [(b.low, b.high) for b in d.breaks]
    times += [(start.time, start.time) for start in d.scene.starts[1:] if start.time]
    times += [(begin, begin) for begin in d.slow_since]
    made: list[Around] = []
    for low, high in dict.fromkeys(times):
        begin, end = _us(low), _us(high)
        if begin is None or end is None or any(a.begin_us <= begin < a.end_us for a in made) or len(made) >= MOST:
            continue
        try:
            found: Around = log.around(begin - BEFORE_US, end + AFTER_US, messages=messages)
        except SourceError as error:
            found = Around(begin - BEFORE_US, end + AFTER_US, unknown=(str(error),))
        made.append(found)
        if found.unknown and not found.lines:
            break  # the next will say the same
    return tuple(made)


def _us(text: str) -> int | None:
    read = parse_iso(text)
    return None if read is None else read[0]


def in_words(found: Around, most: int) -> list[str]:
    """Say what stands beside, the rarest kinds first: errors of machines before jobs and logins."""
    order = {name: i for i, name in enumerate(FIRST)}
    kinds: dict[str, list[str]] = {}
    for one in sorted(found.seen, key=lambda s: (order.get(s.signal, len(order)), s.time_us)):
        kinds.setdefault(one.said, []).append(_clock(one.time_us))
    said = [f"{times[0]} {what}" + (f" ({len(times)} times)" if len(times) > 1 else "") for what, times in kinds.items()]
    said += [said_of(b) for b in found.bursts]
    left = len(said) - most
    return said[:most] + ([f"and {left} more"] if left > 0 else [])


def in_two_lines(found: Around) -> str:
    """Say the most telling of it in two lines of a screen; empty where there is nothing."""
    both = "; ".join(in_words(found, 2))
    return both if len(both) <= TWO_LINES else shorten("; ".join(in_words(found, 1)), TWO_LINES, placeholder=" …")


TWO_LINES = 116

FIRST = (
    *("xid", "nvswitch", "oom_kill", "machine_check", "thermal", "pcie_error", "io_error", "stall", "network", "suspend", "clock"),
    *("crash", "unit_failed", "unit", "packages"),
)
"""Signals that are named first, and marked on the chart."""


def _clock(us: int) -> str:
    return format_us(us)[11:19]
