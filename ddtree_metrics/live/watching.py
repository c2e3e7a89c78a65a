"""The loop of ``watch``: lines come in on a thread of their own, sums are kept, and once in a while somebody is shown what they are."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa

from ddtree_metrics.diagnosis.numerals import change as percent_of
from ddtree_metrics.live.alerts import LEAST, Alert, State, Thresholds, alerts, steps_without_accepted
from ddtree_metrics.live.curve import Baseline
from ddtree_metrics.live.fresh_rows import FreshRows
from ddtree_metrics.live.rolling import LONGEST_S, UNKNOWN, Means, Rolling, Steady, boot_clock, means, name_of, ratios
from ddtree_metrics.reading import Reading
from ddtree_metrics.steps.basis import Basis
from ddtree_metrics.steps.frames import Bools

Tables = Mapping[str, pa.RecordBatch]

SPANS = {"1 min": 60, "5 min": 300, "15 min": 900}
PIECE_S, PIECES = 15, 60
"""So long is what a bar stands for, and so many bars are kept."""

EVENTS = 8
"""So many of the newest events are shown."""

SILENT = ("ready", "notice", "gap", "profiling", "simulated", "adaptive_tier")
"""Kinds of event that break nothing, or are seen in the numbers."""

BREAK_S, BEFORE_S, COOL_S = 60, 300, 300
"""The last minute is compared with the minutes before it; after a break the next is looked for when it is among those."""

STREAMS = 64
"""Of so many streams it is remembered when they last accepted a draft."""

SNAPSHOT_VERSION = 1
"""Of the JSON of a snapshot."""

UNKNOWN_SAID = "lines do not say whose steps they are, so their context is unknown; Decode lines or request ids would tell it"

_AHEAD = 4
"""Batches that may wait."""


@dataclass(frozen=True, slots=True)
class BinNow:
    """One bin of context: the last five minutes, the baseline, and how they compare."""

    context: str
    now: Means
    step_ratio: float | None = None
    tokens_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is shown.

    Attributes
    ----------
    time : str or None
        The time of the newest line, in UTC; None before the first.
    lag_s : float or None
        How long ago it was written when it was read.
    spans : dict of str to Means
        The last minutes.
    bins : list of BinNow
        By context.
    step_ms, tokens : list of float or None
        Of each quarter of a minute of the last 15 minutes, the oldest first.
    step_ratio, tokens_ratio : float or None
        The last five minutes by the baseline at equal context.
    events : list of (str, str)
        The newest, each with its time.
    alerts : list of Alert
        What holds by now.
    lines, lost_lines : int
        Lines read, and lines that journald says it dropped.
    baseline : str or None
        What the baseline is of.
    waits_for_baseline : bool
        Whether it is still being read.
    quiet_s : float or None
        For so long no step has come.
    hidden : str or None
        Why steps have no context, if some have none.
    """

    time: str | None
    lag_s: float | None
    spans: dict[str, Means]
    bins: list[BinNow]
    step_ms: list[float | None]
    tokens: list[float | None]
    step_ratio: float | None
    tokens_ratio: float | None
    events: list[tuple[str, str]]
    alerts: list[Alert]
    lines: int
    lost_lines: int
    baseline: str | None = None
    waits_for_baseline: bool = False
    quiet_s: float | None = None
    hidden: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        import dataclasses

        return {"schema_version": SNAPSHOT_VERSION, **dataclasses.asdict(self)}


@dataclass
class Watch:
    """What is known of a log while it is written.

    Parameters
    ----------
    reading : Reading
        Where lines come from.
    live : bool
        Whether they come as they are written.
    baseline : Baseline, optional
        What they are held against.
    limits : Thresholds
        From where on it is told.
    """

    reading: Reading
    live: bool = True
    baseline: Baseline | None = None
    limits: Thresholds = field(default_factory=Thresholds)

    def __post_init__(self) -> None:
        self.rolling = Rolling()
        self.steady = Steady(self.live)
        self.events: deque[tuple[str, str]] = deque(maxlen=EVENTS)
        self.lost_lines = 0
        self.kinds: Counter[str] = Counter()
        self.waits_for_baseline = False
        self._lost: deque[tuple[float, int]] = deque(maxlen=1000)
        self._rows = FreshRows()
        self._without_accepted: dict[str, int] = {}
        self._arrived: float | None = None
        self._newest_us: int | None = None
        self._lag: float | None = None
        self._broke: float | None = None

    def take(self, new: list[Tables], arrived_s: float) -> tuple[Basis, Bools]:
        """Take tables as they were read; return their rows, and which of them are new."""
        basis, fresh = self._rows.feed(new, self.reading.server_starts())
        order = np.flatnonzero(fresh)
        if len(order):
            at = basis.time_us[fresh] / 1e6
            on_clock = self.steady.feed(at, arrived_s, time.time() if self.live else None)
            self.rolling.add(on_clock, basis, fresh)
            self._newest_us, self._arrived = int(basis.time_us[order[-1]]), arrived_s
            self._lag = time.time() - self._newest_us / 1e6 if self.live else None
            self._count_without_accepted(basis, fresh)
        told = [self._take_events(tables["events"], arrived_s) for tables in new if "events" in tables]
        for moved in self.steady.set_by:
            if not any("clock_step" in kinds for kinds in told):
                self.events.append((_iso(self._newest_us), f"clock step: {moved:+.1f} s"))
        self.steady.set_by.clear()
        now = self.steady.now(arrived_s)
        if now is not None:
            self._look_for_break(now)
        return basis, fresh

    def _count_without_accepted(self, basis: Basis, fresh: Bools) -> None:
        """Count on, stream by stream, the steps since the last that accepted a draft."""
        count: dict[str, int] = {}
        for code in np.unique(basis.stream[fresh]):
            name, mine = str(basis.stream_names[code]), fresh & (basis.stream == code)
            drafting = mine & (basis.speculative != 0.0)
            if drafting.any():
                before = self._without_accepted.pop(name, 0)
                count[name] = steps_without_accepted(before, basis.tokens[drafting], basis.row_steps[drafting])
            else:
                self._without_accepted.pop(name, None)
        # the newest last, and of those of long ago only some
        self._without_accepted = {**dict(list(self._without_accepted.items())[-STREAMS:]), **count}

    def _take_events(self, events: pa.RecordBatch, arrived_s: float) -> set[str]:
        """Note what broke, and what was lost; return the kinds that there were."""
        rows = events.select(["time", "kind", "count", "detail", "unit"]).to_pylist()
        self.kinds.update(str(row["kind"]) for row in rows)
        for row in rows:
            if row["kind"] == "suppressed":
                self.lost_lines += row["count"] or 0
                self._lost.append((arrived_s, row["count"] or 0))
            if row["kind"] not in SILENT:
                what = str(row["kind"]).replace("_", " ") + (f": {row['detail']}" if row["detail"] else "")
                self.events.append((row["time"].strftime("%H:%M:%S") if row["time"] is not None else "", what[:160]))
        return {row["kind"] for row in rows}

    def notice(self, text: str) -> None:
        """Show a sentence among the events."""
        self.events.append((datetime.now(timezone.utc).strftime("%H:%M:%S"), text))

    def _look_for_break(self, now: float) -> None:
        """Note where the last minute differs from the minutes before it at equal context."""
        if self._broke is not None and now - self._broke < COOL_S:
            return
        last = self.rolling.last(BREAK_S, now)
        before = self.rolling.last(BEFORE_S, now, until_s=now - BREAK_S)
        step, tokens, _ = ratios(last, before, LEAST)
        change = 1 + self.limits.change
        said = [
            f"{name} {percent_of(r)}"
            for name, r in (("step time", step), ("tokens/step", tokens))
            if r is not None and (r >= change or r <= 1 / change)
        ]
        if said:
            self._broke = now
            self.events.append((_iso(self._newest_us), f"break: {', '.join(said)} at equal context, in the last minute"))

    def state(self, arrived_s: float) -> State:
        """Return what alerts look at."""
        now = self.steady.now(arrived_s) or 0.0
        lost = sum(count for at, count in self._lost if not self.live or arrived_s - at < LONGEST_S)
        without = max(self._without_accepted.values(), default=0)
        return State(self.rolling, now, self.baseline, self.limits, without, lost)

    def snapshot(self, arrived_s: float) -> Snapshot:
        """Sum up what is known by now."""
        now = self.steady.now(arrived_s) or 0.0
        five = self.rolling.last(300, now)
        base = self.baseline.sums if self.baseline is not None else None
        step, tokens, _ = ratios(five, base, LEAST) if base is not None else (None, None, 0.0)
        minutes = self.rolling.each(PIECE_S, now, PIECES)
        return Snapshot(
            time=None if self._newest_us is None else _iso(self._newest_us, whole=True),
            lag_s=self._lag,
            spans={name: means(self.rolling.last(seconds, now).sum(axis=0)) for name, seconds in SPANS.items()},
            bins=[_bin(b, five[b], None if base is None else base[b]) for b in range(UNKNOWN + 1) if five[b, 0] > 0],
            step_ms=[m.step_ms for m in minutes],
            tokens=[m.tokens for m in minutes],
            step_ratio=step,
            tokens_ratio=tokens,
            events=list(self.events),
            alerts=alerts(self.state(arrived_s)),
            lines=self.reading.coverage.lines,
            lost_lines=self.lost_lines,
            baseline=None if self.baseline is None else self.baseline.source,
            waits_for_baseline=self.waits_for_baseline,
            quiet_s=arrived_s - self._arrived if self.live and self._arrived is not None else None,
            hidden=UNKNOWN_SAID if five[UNKNOWN, 0] > 0 else None,
        )


def _bin(b: int, now: Any, base: Any) -> BinNow:
    seen, then = means(now), means(base) if base is not None else Means()
    enough = base is not None and min(seen.steps, then.steps) >= LEAST
    return BinNow(
        name_of(b),
        seen,
        seen.step_ms / then.step_ms if enough and seen.step_ms and then.step_ms else None,
        seen.tokens / then.tokens if enough and seen.tokens and then.tokens else None,
    )


def _iso(us: int | None, *, whole: bool = False) -> str:
    if us is None:
        return ""
    at = datetime.fromtimestamp(us / 1e6, timezone.utc)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ" if whole else "%H:%M:%S")


class Arrivals:
    """Reads on a thread of its own, so that a quiet log keeps nobody waiting."""

    def __init__(self, reading: Reading) -> None:
        self._waiting: queue.Queue[Tables | BaseException | None] = queue.Queue(_AHEAD)
        self._thread = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self.ended = False
        self._thread.start()

    def _read(self, reading: Reading) -> None:
        try:
            for tables in reading:
                self._waiting.put(tables)
            self._waiting.put(None)
        except BaseException as error:
            self._waiting.put(error)

    def within(self, seconds: float) -> list[Tables]:
        """Return what came within so many seconds, as soon as that is over, or the log has ended.

        Raises
        ------
        BaseException
            What reading raised.
        """
        until = time.monotonic() + seconds
        found: list[Tables] = []
        while not self.ended:
            wait = until - time.monotonic()
            try:
                one = self._waiting.get(timeout=wait) if wait > 0 else self._waiting.get_nowait()
            except queue.Empty:
                break
            if isinstance(one, BaseException):
                raise one
            if one is None:
                self.ended = True
            else:
                found.append(one)
            if len(found) >= _AHEAD:
                break
        return found


def snapshots(watch: Watch, every_s: float, seen: Any = None) -> Iterator[Snapshot]:
    """Yield what is known every so many seconds, until the log ends.

    Parameters
    ----------
    watch : Watch
    every_s : float
        Seconds.
    seen : callable, optional
        Called with the rows of each batch and which of them are new; for counters.
    """
    arrivals = Arrivals(watch.reading)
    told = time.monotonic()
    while True:
        new = arrivals.within(max(told + every_s - time.monotonic(), 0.0))
        if new:
            basis, fresh = watch.take(new, boot_clock())
            if seen is not None:
                seen(basis, fresh)
        if arrivals.ended or time.monotonic() - told >= every_s:
            told = time.monotonic()
            yield watch.snapshot(boot_clock())
        if arrivals.ended:
            return
