"""The two groups of a comparison: what ``before`` and ``after`` may be, and which rows each names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from ddtree_metrics.errors import MetricError
from ddtree_metrics.layout import plural
from ddtree_metrics.steps.basis import Basis
from ddtree_metrics.steps.frames import Bools
from ddtree_metrics.times import format_us, parse_window, parse_window_of_log

GROUP_FORMS = (
    "a window '14:00..14:30' or a pair of instants, 'run:2' or a number (a server start, from 1; -1 is the last), 'boot:ID', 'unit:NAME', "
    "'context:0-1023' or {'context': (0, 1024)}, 'requests:ID,ID' or a list of request ids"
)

_COLUMNS = {
    "context": "context",
    "context_len": "context",
    "batch": "batch",
    "batch_size": "batch",
    "generated": "generated",
    "generated_len": "generated",
    "prompt": "prompt",
    "prompt_len": "prompt",
    "uptime": "uptime_s",
    "uptime_s": "uptime_s",
    "budget": "budget",
}


def pick(panel: Basis, asked: Any) -> tuple[Bools, str, str]:
    """Return the rows that a group names, what kind of group it is, and its name in words.

    Parameters
    ----------
    panel : Basis
        All rows.
    asked : object
        See ``GROUP_FORMS``.

    Raises
    ------
    MetricError
        If it cannot be understood, or names a server start, boot or request that the log does not have, or a range whose first end is
        the larger. A window or range without rows is no error.
    TimeError
        If the ends of a window cannot be read.
    """
    if isinstance(asked, str):
        return _from_words(panel, asked)
    if isinstance(asked, bool):
        raise MetricError(f"cannot understand the group {asked!r}; give {GROUP_FORMS}")
    if isinstance(asked, int | np.integer):
        return _run(panel, int(asked))
    if isinstance(asked, slice):
        return _window(panel, asked.start, asked.stop)
    if isinstance(asked, Mapping):
        if len(asked) == 1:
            name, ends = next(iter(asked.items()))
            if name in ("run", "boot", "unit", "requests", "request"):
                return _from_words(panel, f"{name}:{ends}") if not isinstance(ends, list | tuple | set) else _requests(panel, ends)
            if name in _COLUMNS and isinstance(ends, Sequence) and len(ends) == 2:
                return _range(panel, str(name), ends[0], ends[1])
        if set(asked) <= {"since", "until"} and asked:
            return _window(panel, asked.get("since"), asked.get("until"))
    if isinstance(asked, tuple) and len(asked) == 2 and all(_instant(x) for x in asked) and any(x is not None for x in asked):
        return _window(panel, asked[0], asked[1])
    if isinstance(asked, Collection) and not isinstance(asked, Mapping) and len(asked) and all(isinstance(x, str) for x in asked):
        return _requests(panel, asked)
    raise MetricError(f"cannot understand the group {asked!r}; give {GROUP_FORMS}")


def _instant(x: Any) -> bool:
    if x is None or isinstance(x, datetime | pd.Timestamp | np.datetime64):
        return True
    if not isinstance(x, str):
        return False
    try:
        parse_window(x, None)
    except Exception:
        return False
    return True


def _from_words(panel: Basis, text: str) -> tuple[Bools, str, str]:
    head, _, tail = text.partition(":")
    head, tail = head.strip().lower(), tail.strip()
    ends = range_of(text)
    if ends is not None:
        return _range(panel, *ends)
    if ".." in text:
        since, until = (part.strip() or None for part in text.split("..", 1))
        return _window(panel, since, until)
    if head == "run" and tail.lstrip("-").isdigit():
        return _run(panel, int(tail))
    if head == "boot" and tail:
        hit = np.array([*(str(name).startswith(tail) for name in panel.boot_names), False], dtype=bool)
        mine = hit[panel.boot_code]
        if len(panel) and not mine.any():
            known = [str(name)[:8] for name in panel.boot_names]
            raise MetricError(f"no row is of boot {tail!r}: {_listed('boot', known)}")
        return mine, "boot", f"boot {tail[:8]}"
    if head == "unit" and tail:
        return _service(panel, tail)
    if head in ("request", "requests") and tail:
        return _requests(panel, [part.strip() for part in tail.split(",")])
    raise MetricError(f"cannot understand the group {text!r}; give {GROUP_FORMS}")


def range_of(text: str) -> tuple[str, float, float] | None:
    """Read a group that is a range: ``context:0-1023``, ``batch:2..4``; its upper end is not in it. None if it is another group."""
    head, _, tail = text.partition(":")
    head, tail = head.strip().lower(), tail.strip()
    if head not in _COLUMNS or not tail:
        return None
    if ".." in tail:
        low, _, high = tail.partition("..")
        return head, _number(low, text), _number(high.split("..")[0], text, open_end=True)
    low, dash, high = tail.partition("-")
    if not dash:
        return None
    end = _number(high, text, open_end=True)
    if end < _number(low or "0", text):
        raise MetricError(f"the range {tail!r} of the group {text!r} is empty: its first end is larger than its last")
    # '0-1023' names whole numbers, both ends meant
    return head, _number(low or "0", text), end + 1 if np.isfinite(end) else end


def _number(text: str, whole: str, *, open_end: bool = False) -> float:
    text = text.strip().replace(",", "").replace("_", "")
    if not text and open_end:
        return np.inf
    factor = 1.0
    if text[-1:].lower() == "k":
        text, factor = text[:-1], 1000.0
    try:
        return float(text) * factor
    except ValueError:
        raise MetricError(f"cannot understand the number {text!r} of the group {whole!r}; give {GROUP_FORMS}") from None


def _run(panel: Basis, number: int) -> tuple[Bools, str, str]:
    numbers = [r.number for r in panel.runs if r.number > 0]
    if number < 0 and -number <= len(numbers):
        number = numbers[number]
    if len(panel) and number not in numbers:
        raise MetricError(f"there is no run {number}: {_listed('server start', [f'run {n}' for n in numbers])}")
    return panel.run == number, "runs", f"run {number}"


def _service(panel: Basis, name: str) -> tuple[Bools, str, str]:
    hit = [i for i, known in enumerate(panel.services) if name in known.split("/") or name == known]
    if len(panel) and not hit:
        raise MetricError(f"no row is of unit {name!r}: {_listed('service', list(panel.services))}")
    return np.isin(panel.service, hit), "unit", name


def _range(panel: Basis, name: str, low: Any, high: Any) -> tuple[Bools, str, str]:
    low = 0.0 if low is None else float(low)
    high = np.inf if high is None else float(high)
    if not low < high:
        raise MetricError(f"the range of {name} from {low:g} to {high:g} is empty: give the lower end first")
    values = getattr(panel, _COLUMNS[name])
    with np.errstate(invalid="ignore"):
        mine = (values >= low) & (values < high)
    words = name.replace("_len", "").replace("_s", "").replace("_", " ")
    last = high - 1 if float(high).is_integer() else high
    said = f"{words} {low:g} and more" if not np.isfinite(high) else f"{words} {low:g} to {last:g}"
    return mine, "context" if _COLUMNS[name] == "context" else "range", said


def _requests(panel: Basis, ids: Collection[Any]) -> tuple[Bools, str, str]:
    codes, names = panel.request_code, panel.request_names
    wanted = {_whole_id(str(x), [str(n) for n in names]) for x in ids}
    hit = np.array([str(n) in wanted for n in names] + [False], dtype=bool)
    if len(panel) and not hit.any():
        asked = ", ".join(sorted(wanted)[:3])
        raise MetricError(f"no step is known to be of request {asked}: {_listed('request', [str(n) for n in names])}")
    lost = wanted - {str(n) for n in names}
    if len(panel) and lost:
        panel.notes.append(f"no step is known to be of request {', '.join(sorted(lost)[:3])}{' and others' if len(lost) > 3 else ''}")
    said = f"request {next(iter(wanted))[:16]}" if len(wanted) == 1 else f"{len(wanted)} requests"
    return hit[codes], "requests", said


def _whole_id(asked: str, names: list[str]) -> str:
    """Return the id that begins with what was asked for, where only one does."""
    found = [name for name in names if name.startswith(asked)] if asked and asked not in names else []
    if len(found) > 1:
        raise MetricError(f"{len(found)} request ids begin with {asked!r}: {', '.join(found[:4])}{' and others' if len(found) > 4 else ''}")
    return found[0] if found else asked


def _listed(word: str, names: list[str]) -> str:
    """Say how many there are of what was asked for, and name a few."""
    if not names:
        return f"no {word} is known in this log"
    few = ", ".join(names[:4]) + (" and others" if len(names) > 4 else "")
    return f"the log has {plural(len(names), word)} ({few})"


def _window(panel: Basis, since: Any, until: Any) -> tuple[Bools, str, str]:
    last = int(panel.time_us.max(initial=-1))
    window = parse_window_of_log(_plain(since), _plain(until), last_us=last if last >= 0 else None, tz=panel.tz)
    mine: Bools = (panel.time_us >= 0) & window.contains(panel.time_us)
    ends = [format_us(x)[:19] if x is not None else "" for x in window]
    return mine, "windows", f"{ends[0] or 'the beginning'} to {ends[1] or 'the end'}"


def _plain(x: Any) -> Any:
    if isinstance(x, np.datetime64):
        x = pd.Timestamp(x)
    if isinstance(x, pd.Timestamp):
        x = x.tz_localize("UTC") if x.tzinfo is None else x
        return x.to_pydatetime()
    return x
