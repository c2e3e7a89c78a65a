"""Which server start, and which service, each row is of.

A service is what takes the place of itself when it is started again: a unit of a host, a container, else a file. Two services in one log
are never two starts of one. A start is told by its line; a hidden one by another process in the place of one that ended, or by speculation
that is turned on or off, for a server speculates always or never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddtree_metrics.layout import plural
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.decode_windows import speculation_changes
from ddtree_metrics.steps.frames import Bools, Floats, Ints
from ddtree_metrics.steps.stream_ids import file_of
from ddtree_metrics.times import format_us

SERVER_COLUMNS = (
    "algorithm",
    "num_draft_tokens",
    "num_steps",
    "topk",
    "budget",
    "block_size",
    "draft_window",
    "page_size",
    "tp_size",
    "dp_size",
    "context_len",
    "max_total_tokens",
    "decode_log_interval",
)
"""What stands for the arguments of a start whose map is not known."""


NOT_SET = "(not set)"


@dataclass(slots=True)
class Start:
    """One start of a server, or one process where the log has no start line.

    Attributes
    ----------
    number : int
        From 1, by time over the whole log; 0 for what was logged before the first start.
    start_us : int or None
        When it was, in us since 1970.
    boot_id : str or None
        The machine's boot.
    args : dict or None
        Its arguments, None where no line tells them.
    label : str
        What to call it.
    service : int
        Which of ``Basis.services`` was started; -1 where it is not known.
    hidden : bool
        Whether no line tells of it.
    args_cut : bool
        Whether the line of its arguments was cut: an argument that is missing may have been given.
    """

    number: int
    start_us: int | None
    boot_id: str | None
    args: dict[str, str] | None
    label: str
    service: int = 0
    hidden: bool = False
    args_cut: bool = False


@dataclass(frozen=True, slots=True)
class StartName:
    """What a server start is called.

    Attributes
    ----------
    label : str
        As in comparisons and groups: ``run 2``.
    time : str or None
        When it was, in UTC.
    service : str
        Which service was started; ``""`` where there is only one.
    changed : tuple of str
        The arguments that it changed against the start before it.
    """

    label: str
    time: str | None
    service: str
    changed: tuple[str, ...]

    @property
    def words(self) -> str:
        """The start in words: ``15:19:17, draft model and reasoning parser changed``."""
        said = [self.time[11:19] if self.time else self.label, self.service]
        if self.changed:
            few = [words_of(name) for name in self.changed[:2]]
            more = f" and {plural(len(self.changed) - 2, 'other argument')}" if len(self.changed) > 2 else ""
            said.append(f"{(', ' if more else ' and ').join(few)}{more} changed")
        return ", ".join(filter(None, said))


def names_of(runs: Sequence[Start], services: Sequence[str]) -> tuple[StartName, ...]:
    """Name server starts by their time, their service where there are several, and what they changed."""
    made = []
    for run in (r for r in runs if r.number > 0):
        earlier = [r for r in runs if r.service == run.service and 0 < r.number < run.number]
        names = [name for name, _, _ in changed_args(earlier[-1], run)] if earlier else []
        names.sort(key=lambda name: not name.startswith("speculative"))  # what is about drafts first
        service = service_name(services[run.service]) if len(services) > 1 and 0 <= run.service < len(services) else ""
        made.append(StartName(run.label, None if run.start_us is None else format_us(run.start_us), service, tuple(names)))
    return tuple(made)


def changed_args(before: Start, after: Start) -> list[tuple[str, str, str]]:
    """Return the arguments whose values differ between two server starts: name, value before, value after.

    One that stands in one start line and not in another that was cut may have been set beyond the cut: it is not listed.
    """
    if before.args is None or after.args is None:
        return []

    def value(args: dict[str, str], key: str) -> str:
        found = args.get(key, NOT_SET)
        return NOT_SET if found.strip().lower() in ("none", "") else found

    made = []
    for key in sorted(set(before.args) | set(after.args)):
        if any(key not in (run.args or {}) and run.args_cut for run in (before, after)):
            continue
        one, other = value(before.args, key), value(after.args, key)
        if one != other:
            made.append((key, one, other))
    return made


def words_of(argument: str) -> str:
    """Write an argument in words: ``speculative_draft_model_path`` is the draft model."""
    name = argument.strip("-").replace("-", "_")
    return name.removeprefix("speculative_").removesuffix("_path").replace("_", " ")


@dataclass(slots=True)
class Placed:
    """The starts of a log and which rows are of which.

    Attributes
    ----------
    runs : list of Start
        In the order of their numbers.
    run : ndarray of int64
        The number of each row's start.
    uptime_s : ndarray of float64
        Since then, NaN where not known.
    notes : list of str
        What a reader should know.
    """

    runs: list[Start]
    run: Ints
    uptime_s: Floats
    notes: list[str] = field(default_factory=list)


def service_keys(frame: pd.DataFrame) -> list[str]:
    """Return the service of each row of a table: host and unit (or container), else host and file, with a separator between them."""
    hosts, units, places = (cols.text(frame, name) for name in ("host", "unit", "where"))
    files: dict[str, str] = {}
    made = []
    for host, unit, where in zip(hosts, units, places, strict=True):
        what = unit or ""
        if unit is None and isinstance(where, str) and not where.startswith("journal:"):
            file, _, number = where.rpartition(":")
            if file and number.isdigit():
                what = files[file] if file in files else files.setdefault(file, file_of(where))
        made.append(f"{host or ''}\x1f{what}")
    return made


def service_name(key: str) -> str:
    """Write a service for people: ``host/unit``, or what of it is known."""
    host, _, what = key.partition("\x1f")
    return f"{host}/{what}" if host and what else host or what


def services_by_stream(*tables: pd.DataFrame) -> dict[str, str]:
    """Return the service of each stream that some tables name, by its first row."""
    made: dict[str, str] = {}
    for table in tables:
        if "stream" not in table.columns or not len(table):
            continue
        firsts = table.drop_duplicates("stream")
        for stream, name in zip(cols.text(firsts, "stream"), service_keys(firsts), strict=True):
            if stream is not None:
                made.setdefault(stream, name)
    return made


def place(
    rows: Rows,
    servers: pd.DataFrame,
    services: list[str],
) -> Placed:
    """Give each row the number of its server start.

    Parameters
    ----------
    rows : Rows
        What of the rows tells it.
    servers : pandas.DataFrame
        Server starts of the log.
    services : list of str
        Keys of the services of ``rows.service``; those of starts that no row is of are added.
    """
    found = _told(servers, services, rows)
    notes: list[str] = []
    hidden = 0
    implied = 0
    by_line = bool(found)
    for code in range(len(services)):
        mine = np.flatnonzero(rows.service == code)
        known = [s.start_us for s in found if s.service == code and s.start_us is not None]
        at = _hidden(rows, mine, known)
        hidden += len(at)
        timed = mine[rows.time_us[mine] >= 0]
        if len(mine) and not known and (by_line or len(at)):
            # nothing tells when this service was started: its first row stands for it
            first = int(timed[np.argmin(rows.time_us[timed])]) if len(timed) else None
            found.append(_unseen(rows, first, code))
            implied += by_line
        found += [_unseen(rows, i, code) for i in at]
    if not found:
        return _by_boot(rows, services)
    found.sort(key=lambda s: (s.start_us is None, s.start_us or 0))
    several = len({s.service for s in found}) > 1
    run, uptime = np.zeros(len(rows.time_us), dtype=np.int64), np.full(len(rows.time_us), np.nan)
    for number, start in enumerate(found, 1):
        start.number = number
        start.label = f"run {number}" + (f" of {service_name(services[start.service]) or 'the other service'}" if several else "")
    for code in range(len(services)):
        mine = np.flatnonzero(rows.service == code)
        own = [s for s in found if s.service == code and s.start_us is not None]
        if not len(mine) or not own:
            continue
        starts = np.array([s.start_us for s in own], dtype=np.int64)
        place = np.searchsorted(starts, rows.time_us[mine], side="right")
        numbers = np.array([0, *(s.number for s in own)], dtype=np.int64)
        run[mine] = numbers[place]
        ok = (place > 0) & (rows.time_us[mine] >= 0)
        uptime[mine[ok]] = (rows.time_us[mine[ok]] - starts[place[ok] - 1]) / 1e6
    if len(run) and (run == 0).any():
        found.insert(0, Start(0, None, None, None, "before the first server start", service=-1))
    if hidden:
        notes.append(
            f"{plural(hidden, 'restart')} known by the process or by speculation only, without a server start line: the flags are not "
            "known, and uptime counts from the first step of the process"
        )
    if implied:
        notes.append(f"{plural(implied, 'service')} without a server start line: uptime counts from the first step")
    return Placed(found, run, uptime, notes)


@dataclass(slots=True)
class Rows:
    """What of the rows of a basis tells their starts.

    Attributes
    ----------
    time_us, stream, family, service : ndarray of int
        Time (-1 where not known); process and rank; host and rank; service.
    speculative : ndarray of float
        1, 0, or NaN.
    begins : ndarray of bool
        Rows whose ``why`` is ``restart`` or ``boot``: their process has another's place.
    first_of_stream : ndarray of bool
        Rows whose ``why`` is that, or ``first``.
    boot : ndarray of int
        The machine's boot, as a number into ``boot_names``; -1 where not known.
    boot_names : ndarray of object
        Boots.
    """

    time_us: Ints
    stream: Ints
    family: Ints
    service: Ints
    speculative: Floats
    begins: Bools
    first_of_stream: Bools
    boot: npt.NDArray[np.int32]
    boot_names: npt.NDArray[Any]

    def boot_of(self, row: int) -> str | None:
        """Return the machine's boot of one row."""
        code = int(self.boot[row])
        return None if code < 0 else str(self.boot_names[code])


def _told(servers: pd.DataFrame, services: list[str], rows: Rows) -> list[Start]:
    """Return the starts that lines tell of, in no order of services; a service that no row is of is added to ``services``."""
    if not len(servers):
        return []
    at = cols.time_us(servers)
    names, boots, args = service_keys(servers), cols.text(servers, "boot_id"), cols.text(servers, "args")
    cut = cols.numeric(servers, "args_cut") if "args_cut" in servers.columns else np.zeros(len(servers))
    made = []
    for i in np.flatnonzero(np.isfinite(at) & (at >= 0)):
        made.append(
            Start(
                0,
                int(at[i]),
                boots[i],
                _mapping(args[i], servers.iloc[int(i)]),
                "",
                service=_service(names[i], services),
                args_cut=bool(cut[i] > 0),
            )
        )
    return made


def _service(name: str, services: list[str]) -> int:
    """Find the service of a start; where rows or start do not name theirs, the only one that fits."""
    if name in services:
        return services.index(name)
    fits = [i for i, other in enumerate(services) if _fits(name, other)]
    if len(fits) == 1:
        return fits[0]
    services.append(name)
    return len(services) - 1


def _fits(one: str, other: str) -> bool:
    return all(not x or not y or x == y for x, y in zip(one.split("\x1f"), other.split("\x1f"), strict=True))


def _unseen(rows: Rows, row: int | None, service: int) -> Start:
    at = None if row is None else int(rows.time_us[row])
    return Start(0, at, None if row is None else rows.boot_of(row), None, "", service=service, hidden=True)


def _hidden(rows: Rows, mine: Ints, told: list[int]) -> list[int]:
    """Return the rows of one service that begin a start of which no line tells.

    A start line is that of the first process of each rank that logs a step after it; a later process of the rank has restarted. Where
    speculation is turned on or off without a start since the row before, there was one too.
    """
    found: list[int] = []
    claimed: set[tuple[int, int]] = set()
    known = sorted(told)
    _, first_rows = np.unique(rows.stream[mine], return_index=True)
    firsts = mine[first_rows]
    begins = np.sort(firsts[rows.first_of_stream[firsts] & (rows.time_us[firsts] >= 0)])
    changes, before = _changes(rows, mine)
    for i in np.union1d(begins, changes).tolist():
        at = int(rows.time_us[i])
        earlier = [s for s in known if s <= at]
        last = earlier[-1] if earlier else -1
        place = (last, int(rows.family[i]))
        replaced = i in begins and place in claimed and bool(rows.begins[i])
        turned = i in before and last <= int(rows.time_us[before[i]])
        if replaced or turned:
            found.append(i)
            known = sorted([*known, at])
            place = (at, place[1])
        claimed.add(place)
    return found


def _changes(rows: Rows, mine: Ints) -> tuple[Ints, dict[int, int]]:
    """Return the rows before which a stream turned speculation on or off, and the row before each."""
    spoken = rows.speculative[mine]
    if not (spoken == 0.0).any() or not (spoken == 1.0).any():
        return np.empty(0, dtype=np.int64), {}
    order = np.argsort(rows.stream[mine], kind="stable")
    previous = np.full(len(mine), -1, dtype=np.int64)
    same = np.diff(rows.stream[mine][order]) == 0
    previous[order[1:][same]] = order[:-1][same]
    at = np.flatnonzero(speculation_changes(spoken, previous) & (rows.time_us[mine] >= 0))
    return mine[at], {int(mine[i]): int(mine[previous[i]]) for i in at}


def _by_boot(rows: Rows, services: list[str]) -> Placed:
    """No start is known: a boot of a service is a run, and its uptime counts from its first line, which is a lower bound."""
    n = len(rows.time_us)
    run, uptime = np.ones(n, dtype=np.int64), np.full(n, np.nan)
    if not n:
        return Placed([], run, uptime)
    both = rows.service * (len(rows.boot_names) + 1) + rows.boot + 1
    codes, found = pd.factorize(both)
    pairs = [divmod(int(x), len(rows.boot_names) + 1) for x in found]
    names = [(service, str(rows.boot_names[boot - 1]) if boot else "") for service, boot in pairs]
    runs = []
    for i, (service, name) in enumerate(names):
        mine = codes == i
        timed = mine & (rows.time_us >= 0)
        start = int(rows.time_us[timed].min()) if timed.any() else None
        label = f"boot {name[:8]}" if name else "the only run" if len(names) == 1 else f"run {i + 1}"
        if len(services) > 1:
            label += f" of {service_name(services[service]) or 'the other service'}"
        run[mine] = i + 1
        runs.append(Start(i + 1, start, name or None, None, label, service=int(service), hidden=True))
        if start is not None:
            uptime[timed] = (rows.time_us[timed] - start) / 1e6
    return Placed(runs, run, uptime, ["no server start line: uptime counts from the first step of each boot"])


def _mapping(args: Any, row: pd.Series[Any]) -> dict[str, str]:
    """Return the arguments of a server start: the map as printed, and the columns where there is no map."""
    try:
        pairs = dict(args) if args is not None else {}
    except (TypeError, ValueError):
        pairs = {}
    made = {str(k): str(v) for k, v in pairs.items()}
    if not made:
        made = {name: str(row[name]) for name in SERVER_COLUMNS if name in row.index and not pd.isna(row[name])}
    return made
