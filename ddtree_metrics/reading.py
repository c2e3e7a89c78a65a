"""Lines in, tables out: a source, the dialects and the streams put together, with the account of what was met.

A ``Reading`` is passed over once. It yields the tables of one batch of lines at a time, so that an export of any length needs
little memory; ``coverage`` and ``conventions`` are complete when it is through.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.counting import copy_counters
from ddtree_metrics.coverage import EXAMPLES, BrokenKind, Coverage
from ddtree_metrics.dialects.engine import Parser
from ddtree_metrics.errors import DDTreeWarning
from ddtree_metrics.occurrences import OCCURRENCE_CLASSES, Occurrences, places
from ddtree_metrics.opening import ReadOptions, open_lines, others_beside
from ddtree_metrics.records import TABLES, ServerStart
from ddtree_metrics.remembering import from_plain, to_plain
from ddtree_metrics.schema import arrow_schema, columns
from ddtree_metrics.sources import AFTER_LEFT_OUT
from ddtree_metrics.steps.conventions import Conventions
from ddtree_metrics.steps.late_times import LateTimes
from ddtree_metrics.steps.streams import STREAM_CLASSES, StreamCounts, Streams
from ddtree_metrics.steps.window_pairs import WindowPairs
from ddtree_metrics.times import ALWAYS, StampBefore, Window

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ddtree_metrics.keywords import Paths, ReadKeywords
    from ddtree_metrics.sources import Source
    from ddtree_metrics.sources.other_lines import LinesOfOthers

Tables = dict[str, pa.RecordBatch]

_REMEMBERED = (*STREAM_CLASSES, *OCCURRENCE_CLASSES, WindowPairs, LateTimes, StampBefore)
"""Whose objects a reading hands on to the next."""

_NO_LINES = np.empty(0, dtype=np.int64)

LINE_TABLES = ("steps", "decode", "prefill", "servers", "events", "request_lines")
"""The tables that lines become; ``requests`` and ``request_steps`` are made from them later."""
JOINED_OF = ("steps", "decode", "prefill", "events", "request_lines")
"""The tables of lines that are joined to ``request_steps``."""


class Readable(Protocol):
    """What can be collected or exported: tables batch by batch, and an account that is complete at their end."""

    @property
    def coverage(self) -> Coverage:
        """What was met."""

    @property
    def conventions(self) -> Conventions:
        """What the numbers count."""

    @property
    def on_error(self) -> str:
        """What a broken line does."""

    def __iter__(self) -> Iterator[Tables]: ...


class Reading:
    """One pass over the lines of a source.

    Parameters
    ----------
    source : Source
        Where the lines come from.
    options : ReadOptions
        How they are read.
    """

    def __init__(self, source: Source, options: ReadOptions | None = None) -> None:
        self.options = options or ReadOptions()
        self.source = source
        self.on_error = self.options.on_error
        self.window = self.options.window
        self.coverage = Coverage(source=source.name)
        self.conventions = Conventions()
        for dialect in self.options.dialects:
            self.conventions.say(
                bonus=dialect.counts.commit_includes_bonus, root=dialect.counts.nodes_include_root, by=f"dialect {dialect.name}"
            )
        self.conventions.say(bonus=self.options.commit_includes_bonus, root=self.options.nodes_include_root, by="user")
        self._parser = Parser(self.options.dialects, tz=self.options.zone, on_error=self.on_error)
        self._pairs = WindowPairs()
        self._late = LateTimes()
        self._occurrences = Occurrences()
        self._streams = Streams()
        self.others: LinesOfOthers | None = None
        """What reads the lines of others where these come from."""
        self._servers: list[tuple[str, dict[str, Any]]] = []
        self._local_times = 0
        self._no_times = 0

    def __iter__(self) -> Iterator[Tables]:
        """Yield the tables of each batch of lines; only tables that have rows are there."""
        progress = self.options.progress
        if progress is None:
            yield from self._tables()
            return
        try:
            for tables in self._tables():
                yield tables
                progress(self.coverage)
        finally:
            progress(None)

    def _tables(self) -> Iterator[Tables]:
        for lines in self.source.batches():
            yield from self.feed(lines)
        yield from self.rest()

    def feed(self, lines: pa.RecordBatch, *, after_hole: bool = False) -> Iterator[Tables]:
        """Yield the tables of one batch of lines; ``after_hole`` says that lines before it are missing."""
        lines, holes = self._holes(lines)
        if after_hole:
            holes = np.append(holes, self._parser.lines)
        parsed = self._parser.feed(lines)
        tables, line = self._late.feed(*self._pairs.feed(dict(parsed.tables), dict(parsed.line)))
        yield from self._placed(tables, line, holes)

    def rest(self) -> Iterator[Tables]:
        """Yield what waited for lines that did not come, and the server starts; then the account is complete."""
        yield from self._placed(*self._pairs.rest(), _NO_LINES)
        yield from self._placed(*self._late.rest(), _NO_LINES)
        if self._servers:
            yield self._told_starts(_merge_starts(self._servers))
        self._finish()

    def server_starts(self) -> pa.RecordBatch | None:
        """Return the server starts that were read until now, which are a table of their own only at the end."""
        return _merge_starts(self._servers) if self._servers else None

    def whole_starts(self) -> Iterator[Tables]:
        """Yield the server starts to which no line can be added any more, and forget them."""
        starts = _merge_starts(self._servers)
        open_ = {place: number for number, place in enumerate(places(starts))} if self._servers else {}
        whole = np.ones(starts.num_rows, dtype=bool)
        whole[list(open_.values())] = False
        self._servers = [(place, starts.slice(number, 1).to_pylist()[0]) for place, number in open_.items()]
        if whole.any():
            yield self._told_starts(starts.filter(pa.array(whole)))

    def _told_starts(self, starts: pa.RecordBatch) -> Tables:
        self._account({"servers": starts})
        return {"servers": starts}

    def memory(self) -> Any:
        """Return, as plain data, what the lines so far mean for those that follow; see `recall`."""
        self._streams.forget_old()
        held = {name: getattr(self, f"_{name}") for name in ("pairs", "late", "occurrences", "streams", "servers")}
        return to_plain({**held, "lines": self._parser.lines, "stamp": self._parser.last_stamp}, _REMEMBERED)

    def recall(self, memory: Any) -> None:
        """Go on behind the lines of another reading; what was counted in it is not counted here."""
        held = from_plain(memory, _REMEMBERED)
        self._parser.lines, self._parser.last_stamp = held.pop("lines"), held.pop("stamp")
        for name, value in held.items():
            setattr(self, f"_{name}", value)
        self._streams.counts = StreamCounts()
        self._occurrences.duplicates = self._occurrences.told = 0

    def _placed(self, tables: Tables, line: dict[str, Any], holes: npt.NDArray[np.int64]) -> Iterator[Tables]:
        """Say of the rows of one batch what they mean beside those before; yield them if there are any."""
        tables, line, left_out = self._within(tables, line)
        tables, line = self._occurrences.feed(tables, line)
        tables = self._streams.feed(tables, line, np.concatenate([holes, *left_out]))
        servers = tables.pop("servers", None)
        if servers is not None:
            self._servers += zip(places(servers), servers.to_pylist(), strict=True)
        self._account(tables)
        if tables:
            yield tables

    def _holes(self, lines: pa.RecordBatch) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """Return the numbers of the lines before which the source left some out, and the batch without that flag."""
        flags = lines.column("time_flag")
        if flags.null_count == len(flags):
            return lines, _NO_LINES
        marked = np.asarray(pc.fill_null(pc.equal(flags, AFTER_LEFT_OUT), False))
        if not marked.any():
            return lines, _NO_LINES
        at = lines.schema.get_field_index("time_flag")
        self.coverage.add_note(
            "the wall clock jumped inside the window: lines that stand in it were logged at times outside of it and were left out; "
            "widen --since and --until to have them"
        )
        cleared = pc.if_else(pa.array(marked), pa.scalar(None, pa.string()), flags)
        return lines.set_column(at, lines.schema.field(at), cleared), np.flatnonzero(marked) + self._parser.lines

    def _within(self, tables: Tables, line: dict[str, Any]) -> tuple[Tables, dict[str, Any], list[npt.NDArray[np.int64]]]:
        """Leave out rows whose own stamp lies outside of the window; the source has tested the times that it knew."""
        if self.window == ALWAYS:
            return tables, line, []
        local_window = Window(*(None if us is None else _local_us(us) for us in self.window))
        left_out = []
        for name, batch in list(tables.items()):
            time = batch.column("time").cast(pa.int64())
            values, valid = np.asarray(time.fill_null(0)), np.asarray(time.is_valid())
            local = np.asarray(pc.fill_null(pc.ends_with(batch.column("time_from"), "-local"), False))
            if (local & valid).any():
                self.coverage.add_note(
                    "times of an unknown zone were compared with the window as if they were this machine's local time; "
                    "give the zone with --tz"
                )
            self._no_times += int((~valid).sum())
            keep = ~valid | np.where(local, local_window.contains(values), self.window.contains(values))
            if keep.all():
                continue
            self.coverage.outside_window += int((~keep).sum())
            left_out.append(line[name][~keep])
            if not keep.any():
                del tables[name], line[name]
                continue
            tables[name] = batch.filter(pa.array(keep))
            line[name] = line[name][keep]
        return tables, line, left_out

    def _account(self, tables: Tables) -> None:
        for name, batch in tables.items():
            times = pc.min_max(batch.column("time").cast(pa.int64()))
            self.coverage.saw(name, batch.num_rows, times["min"].as_py(), times["max"].as_py())
            for kind in batch.column("dialect").drop_null().value_counts().to_pylist():
                self.coverage.dialects[kind["values"]] = self.coverage.dialects.get(kind["values"], 0) + kind["counts"]
            if name != "events":
                kinds = batch.column("time_from").value_counts()
                self._local_times += sum(kind["counts"] for kind in kinds.to_pylist() if (kind["values"] or "").endswith("-local"))
                flags = batch.column("time_flag")
                if flags.null_count < len(flags):
                    for kind in flags.drop_null().value_counts().to_pylist():
                        known = self.coverage.doubtful_times
                        known[kind["values"]] = known.get(kind["values"], 0) + kind["counts"]
        if "steps" in tables:
            self.conventions.feed(tables["steps"])
        if "events" in tables:
            events = tables["events"]
            lost = events.filter(pc.equal(events.column("kind"), "suppressed"))
            self.coverage.suppressed_notices += lost.num_rows
            self.coverage.suppressed_lines += pc.sum(lost.column("count")).as_py() or 0
        self._take_source()

    def _take_source(self) -> None:
        """Bring the account up to what the source and the streams have met so far."""
        stats, counts, account = self.source.stats, self._streams.counts, self.coverage
        copy_counters(stats, account)
        copy_counters(counts, account)
        account.duplicate_events = self._occurrences.duplicates
        account.slow_tier = dict(self._parser.misses)
        quoted = self._parser.quoted
        account.quoted_lines = quoted.total
        account.quoted_examples = [example for kept in quoted.examples.values() for example in kept][:EXAMPLES]
        account.broken = [
            BrokenKind(*key, count=count, examples=list(self._parser.broken.examples[key]))
            for key, count in self._parser.broken.counts.items()
        ]
        for note in stats.notes:
            account.add_note(note)

    def _finish(self) -> None:
        self._take_source()
        account = self.coverage
        if account.message_null:
            account.add_note(
                f"{account.message_null} entries have a null MESSAGE: journalctl -o json leaves out values above 4096 bytes "
                "unless it is run with --all; run it so, or let this tool read the journal itself"
            )
        if account.blob_data:
            account.add_note(f"{account.blob_data} messages read [NB blob data]: run journalctl with --all to keep them")
        if account.suppressed_lines:
            account.add_note(
                f"at least {account.suppressed_lines} lines missing: journald's rate limit dropped them, so counts are lower bounds; "
                "raise LogRateLimitIntervalSec / LogRateLimitBurst of the unit, or RateLimitBurst in journald.conf"
            )
        if account.bursts:
            account.add_note(
                f"{account.bursts} steps were logged in bursts with one time, which says nothing of their step times: "
                "the server's output is block-buffered, or the log was busy; run the server with PYTHONUNBUFFERED=1"
            )
        if self._no_times:
            account.add_note(f"{self._no_times} rows have no time, so the window could not be applied to them: they were kept")
        if account.adopted_ranks:
            account.add_note(f"{account.adopted_ranks} steps of which the lowest rank's line was lost were taken from another rank's copy")
        if self._local_times:
            account.add_note(
                f"{self._local_times} rows have times of an unknown zone (time_from ends in -local): local time is written as if it were "
                "UTC; give the zone with --tz"
            )
        if self.conventions.mixed and self.conventions.said_bonus is None:
            account.add_note("commit lengths: " + self.conventions.sentence())
        if self.on_error == "warn":
            self._warn()

    def _warn(self) -> None:
        account = self.coverage
        if account.broken_lines:
            kinds = ", ".join(f"{k.count} {k.table} {k.reason}" for k in account.broken)
            at = next((e[0] for k in account.broken for e in k.examples), "")
            warnings.warn(
                f"{account.broken_lines} broken lines were counted and left out ({kinds}), the first at {at}; see coverage.broken",
                DDTreeWarning,
                stacklevel=3,
            )
        if self.conventions.mixed and self.conventions.bonus is None:
            warnings.warn(f"commit lengths: {self.conventions.sentence()}", DDTreeWarning, stacklevel=3)


def start_reading(paths: Paths | None, **given: Unpack[ReadKeywords]) -> Reading:
    """Begin to read files or pipes, or a journal where no paths are given; the keywords are those of ``read``."""
    reading = Reading(*open_lines(paths, **given))
    reading.others = others_beside(paths, reading.options.place)
    return reading


def _local_us(us: int) -> int:
    """Return this machine's wall-clock time at an instant, written as if it were UTC."""
    offset = datetime.fromtimestamp(us / 1e6).astimezone().utcoffset()
    return us + (round(offset.total_seconds() * 1e6) if offset is not None else 0)


def _begins_anew(start: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether a part of the arguments is of another start than the one before it: said once more, or by another process."""
    said = {name for name, _ in start["args"] or []}
    return start["pid"] != row["pid"] or any(name in said for name, _ in row["args"])


def _merge_starts(rows: list[tuple[str, dict[str, Any]]]) -> pa.RecordBatch:
    """Fold the lines that a server prints while it starts into one row a start.

    A row without ``args`` carries on the start before it of the same service, whichever of its processes printed it; alone, it is a
    start whose first line is not in the log. A row with a part of ``args`` (``args_cut`` is null: no line has them all) does so too, unless
    that start has said the same thing, or is of another process.
    """
    starts: list[dict[str, Any]] = []
    open_: dict[str, dict[str, Any]] = {}
    own = [c.name for c in columns(ServerStart) if c.name in ServerStart.__annotations__ and c.name not in ("args", "args_cut")]
    for service, row in rows:
        start = open_.get(service)
        part = row["args"] is not None and row["args_cut"] is None
        if start is None or (_begins_anew(start, row) if part else row["args"] is not None):
            start = open_[service] = dict(row)
            starts.append(start)
            continue
        if part:
            start["args"] = [*(start["args"] or []), *row["args"]]
        for name in own:
            if row[name] is not None and (start[name] is None or name in ("budget", "block_size", "draft_window", "max_total_tokens")):
                start[name] = row[name]
    return pa.RecordBatch.from_pylist(starts, schema=arrow_schema(TABLES["servers"]))
