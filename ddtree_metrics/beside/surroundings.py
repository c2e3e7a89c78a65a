"""The minutes around a time: what other programs on the same hosts wrote, and how much they write in other minutes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ddtree_metrics.beside.rate_ratios import holm, rate_ratio
from ddtree_metrics.beside.signals import signal_of
from ddtree_metrics.dialects import detect
from ddtree_metrics.dialects.secrets import redact
from ddtree_metrics.sources.other_lines import LinesOfOthers, OtherLine
from ddtree_metrics.validation import printable

if TYPE_CHECKING:
    import pandas as pd

MESSAGE_MAX = 120
"""Messages of others are cut to so many characters."""

STRETCHES = 16
"""So many other stretches of the same length tell what is usual."""

SURE = 0.02
"""A chance, corrected for how many were compared, below which somebody said more than usual. Days of simulated bursts, for which the
chances are a little too small, gave a false one in 40 of 970 looks."""

LEAST = 10
"""Fewer lines are no burst, however few there are else."""

MOST_COUNTED = 50
"""So many writers are counted by name."""

MOST_SEEN = 200
"""So many lines of signals are kept."""


@dataclass(frozen=True, slots=True)
class SignalSeen:
    """A signal that stands near: when, who, what it says in words, and the message redacted and cut."""

    time_us: int
    host: str
    unit: str
    signal: str
    said: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Burst:
    """Somebody who wrote more than usual near: lines, lines usual, the ratio of the rates with its interval, the corrected chance."""

    host: str
    unit: str
    priority: int
    count: int
    usual: float
    ratio: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, slots=True)
class Around:
    """What stands beside a time.

    Attributes
    ----------
    begin_us, end_us : int
        The minutes that were looked at.
    seen : tuple of SignalSeen
        Signals, in the order of time.
    bursts : tuple of Burst
        Who wrote more than usual, the surest first.
    lines : int
        Lines of others in these minutes.
    counts : tuple of (str, str, int, int)
        Lines that are no signal, by host, unit and priority: how many; the most first.
    left_out : int
        Signals that are not listed, since there are too many.
    unknown : tuple of str
        What could not be read, and why.
    """

    begin_us: int
    end_us: int
    seen: tuple[SignalSeen, ...] = ()
    bursts: tuple[Burst, ...] = ()
    lines: int = 0
    left_out: int = 0
    unknown: tuple[str, ...] = field(default=())
    counts: tuple[tuple[str, str, int, int], ...] = ()


Read = Callable[[int, int], Iterable[OtherLine]]

ALONE = "these lines are of the server alone: a journal, or journalctl -o export of it, has those of others"

LONG_DUMP = 64 << 20
"""A saved journal of more bytes is not read once more unless somebody asks what else it says."""

UNREMARKABLE = ("Starting ", "Started ", "Stopping ", "Stopped ")
"""What systemd says of the server itself, whose starts are what is looked at."""


def around_server(
    others: LinesOfOthers | None,
    units: Collection[str],
    begin_us: int,
    end_us: int,
    log: tuple[int, int],
    *,
    messages: bool = False,
    level: float = 0.9,
    large: bool = False,
) -> Around:
    """Look at what others than a server wrote between two times; parameters as of ``around``.

    Parameters
    ----------
    others : LinesOfOthers or None
        What reads their lines, where the server's come from a journal.
    units : collection of str
        The server's units; where there are none its lines are told by what they say.
    large : bool
        Whether a long dump is read once more.
    """
    if others is None or not others.any:
        return Around(begin_us, end_us, unknown=(ALONE,))
    if not large and others.size > LONG_DUMP:
        return Around(begin_us, end_us, unknown=("the saved journal is long, and would be read once more: log.beside(time) does it",))
    names = {*units, *(unit.removesuffix(".service") for unit in units)}

    def own(line: OtherLine) -> bool:
        if line.ident == "systemd" and line.about in names and line.message.startswith(UNREMARKABLE):
            return True
        return line.who in names or line.ident in names if names else bool(detect([line.message]))

    others.own = own
    return around(others, begin_us, end_us, log, messages=messages, level=level)


def around(
    read: Read,
    begin_us: int,
    end_us: int,
    log: tuple[int, int],
    *,
    messages: bool = False,
    level: float = 0.9,
) -> Around:
    """Look at what others wrote between two times.

    Parameters
    ----------
    read : callable
        From two times to the lines between them.
    begin_us, end_us : int
        The stretch.
    log : (int, int)
        From when to when the log is; other stretches of it tell what is usual.
    messages : bool
        Whether messages are kept, redacted and cut.
    level : float
        Of the intervals of rate ratios.
    """
    seen: list[SignalSeen] = []
    counts: Counter[tuple[str, str, int]] = Counter()
    lines = left_out = 0
    for line in read(begin_us, end_us):
        lines += 1
        found = signal_of(line.ident, line.message, line.about)
        if found is None:
            counts[(line.host, line.who, line.priority)] += 1
        elif len(seen) < MOST_SEEN:
            text = printable(redact(line.message))[:MESSAGE_MAX] if messages else ""
            seen.append(SignalSeen(line.time_us, line.host, line.who, found[0].name, printable(found[1])[:MESSAGE_MAX], text))
        else:
            left_out += 1
    loud = {who: n for who, n in counts.items() if n >= LEAST}
    bursts = tuple(_bursts(loud, read, begin_us, end_us, log, level))
    most = tuple((*who, n) for who, n in counts.most_common(MOST_COUNTED))
    return Around(begin_us, end_us, tuple(seen), bursts, lines, left_out, tuple(getattr(read, "unread", ())), most)


def _bursts(
    loud: dict[tuple[str, str, int], int],
    read: Read,
    begin_us: int,
    end_us: int,
    log: tuple[int, int],
    level: float,
) -> list[Burst]:
    stretches = other_stretches(begin_us, end_us, log)
    if not loud or len(stretches) < 4:
        return []
    base = [Counter((line.host, line.who, line.priority) for line in read(low, high)) for low, high in stretches]
    compared = []
    for (host, unit, priority), count in loud.items():
        usual = [c[(host, unit, priority)] for c in base]
        compared.append((host, unit, priority, count, usual, rate_ratio(count, usual, level)))
    corrected = holm([one[-1][3] for one in compared])
    made = [
        Burst(host, unit, priority, count, sum(usual) / len(usual), ratio, low, high, p)
        for (host, unit, priority, count, usual, (ratio, low, high, _)), p in zip(compared, corrected, strict=True)
        # more than in any other stretch, too: counts of programs have longer tails than their variance tells
        if p < SURE and count > max(usual)
    ]
    return sorted(made, key=lambda b: (b.p, -b.ratio))


def other_stretches(begin_us: int, end_us: int, log: tuple[int, int]) -> list[tuple[int, int]]:
    """Return stretches of the same length, spread over the log, that do not touch the one asked about nor each other."""
    length = end_us - begin_us
    free = [(log[0], min(begin_us - length, log[1])), (max(end_us + length, log[0]), log[1])]
    places = [low + i * length for low, high in free for i in range(max((high - low) // length, 0))]
    if len(places) > STRETCHES:
        places = [places[round(i * (len(places) - 1) / (STRETCHES - 1))] for i in range(STRETCHES)]
    return [(low, low + length) for low in places]


COLUMNS = (*("kind", "time", "host", "unit", "signal", "said", "message", "count", "usual", "rate_ratio", "rate_low", "rate_high", "p"),)


def as_frame(found: Around) -> pd.DataFrame:
    """Return signals and bursts as a frame; its columns are ``COLUMNS``."""
    import pandas as pd

    rows: list[dict[str, Any]] = [
        {"kind": "signal", "time": s.time_us, "host": s.host, "unit": s.unit, "signal": s.signal, "said": s.said, "message": s.message}
        for s in found.seen
    ]
    rows += [
        {
            **{
                "kind": "burst",
                "time": found.begin_us,
                "host": b.host,
                "unit": b.unit,
                "signal": "burst",
                "said": said_of(b),
                "message": "",
            },
            **{"count": b.count, "usual": b.usual, "rate_ratio": b.ratio, "rate_low": b.low, "rate_high": b.high, "p": b.p},
        }
        for b in found.bursts
    ]
    loud = {(b.host, b.unit, b.priority) for b in found.bursts}
    rows += [
        {
            **{"kind": "count", "time": found.begin_us, "host": host, "unit": unit, "signal": "count", "message": "", "count": n},
            "said": f"{printable(unit)[:60]} wrote {n:,} {PRIORITIES[min(max(priority, 0), 7)]}",
        }
        for host, unit, priority, n in found.counts
        if (host, unit, priority) not in loud
    ]
    made = pd.DataFrame(rows, columns=list(COLUMNS))
    made["time"] = pd.to_datetime(made["time"], unit="us", utc=True)
    for name in COLUMNS[7:]:
        made[name] = made[name].astype("float64")
    made.attrs["unknown"] = list(found.unknown)
    made.attrs["lines"] = found.lines
    return made


PRIORITIES = ("emergencies", "alerts", "critical lines", "errors", "warnings", "notices", "lines", "debug lines")


def said_of(burst: Burst) -> str:
    """Say a burst in words."""
    what = PRIORITIES[min(max(burst.priority, 0), 7)]
    return f"{printable(burst.unit)[:60]} wrote {burst.count:,} {what}, usual are {burst.usual:,.1f}"
