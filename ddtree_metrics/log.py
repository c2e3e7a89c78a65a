"""The front door: ``read`` gives a ``Log`` of whatever it is given; ``read_journal``, ``read_text`` and ``read_parquet`` of one kind.

A ``Log`` holds the tables of one read, the account of what was met, and what the numbers count.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics import tables as _tables
from ddtree_metrics.beside import Around, around_server, as_frame
from ddtree_metrics.coverage import Coverage
from ddtree_metrics.errors import DDTreeWarning, SchemaError
from ddtree_metrics.memory import give_back
from ddtree_metrics.opening import zone_of
from ddtree_metrics.records import TABLES
from ddtree_metrics.steps.conventions import Conventions
from ddtree_metrics.tables.packed import PACKED_ROWS, Packed
from ddtree_metrics.tables.window_cuts import rows_within, starts_within
from ddtree_metrics.tables.writers import FORMATS, open_writer, write_tables
from ddtree_metrics.times import get_zone, parse_window, parse_window_of_log

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    import pandas as pd

    from ddtree_metrics.join import Whole
    from ddtree_metrics.keywords import PathLike
    from ddtree_metrics.records import (
        DecodeBatch,
        Event,
        PrefillBatch,
        Request,
        RequestLine,
        RequestStep,
        ServerStart,
        TreeStep,
    )
    from ddtree_metrics.sources.other_lines import LinesOfOthers
    from ddtree_metrics.steps.basis import Basis

LEAN_STEPS = (
    *("time", "time_us", "time_from", "time_resolution_us", "monotonic_us", "boot_id", "unit", "dp_rank", "batch_size", "steps"),
    *("step_ms", "stream", "step_us", "step_why", "tokens"),
)
"""The columns of steps that a report reads; what else there is names a line, counts slots, or is a map."""


class Log:
    """The tables of one read.

    Parameters
    ----------
    tables : dict of str to pyarrow.Table
        The tables by name; those that are missing are empty.
    coverage : Coverage
        What the read met.
    counts : Conventions
        What the numbers count, inferred from the steps.
    packed : dict of str to Packed, optional
        Long tables that are held compressed.
    """

    def __init__(
        self,
        tables: dict[str, pa.Table],
        coverage: Coverage | None = None,
        counts: Conventions | None = None,
        packed: dict[str, Packed] | None = None,
    ) -> None:
        self._tables = tables
        self._packed = dict(packed or {})
        self._frames: dict[str, pd.DataFrame] = {}
        self._joined_once = False
        self.stored = frozenset(tables) | frozenset(self._packed)
        self.coverage = coverage or Coverage()
        self.counts = counts or Conventions()
        self.clock_offset_s: float | None = None
        self._others: LinesOfOthers | None = None

    def table(self, name: str) -> pa.Table:
        """Return a table with all its rows, copies from other ranks included.

        Parameters
        ----------
        name : str
            One of ``steps, decode, prefill, servers, events, requests, request_lines, request_steps``.

        Raises
        ------
        SchemaError
            If there is no such table.
        """
        if name not in TABLES:
            raise SchemaError(f"no table {name!r}; there are {', '.join(TABLES)}")
        if name in self._packed:
            self._tables[name] = self._packed.pop(name).table()
        if name not in self._tables:
            if name in ("requests", "request_steps"):
                return _tables.from_pandas(self.requests if name == "requests" else self.request_steps, TABLES[name])
            self._tables[name] = _tables.empty(TABLES[name])
        return self._tables[name]

    def frame(self, name: str) -> pd.DataFrame:
        """Return a table as a DataFrame, without the copies that other ranks logged."""
        if name not in self._frames:
            self._frames[name] = _tables.to_pandas(self._rows(name))
        return self._frames[name]

    def _rows(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a table without the copies that other ranks logged, or some columns of it (and the one that tells the copies)."""
        why = {"steps": "step_why", "decode": "line_why"}.get(name)
        if columns is None:
            table = self.table(name)
        else:
            wanted = {*columns, *([why] if why else [])}
            packed = self._packed.get(name)
            table = (
                packed.table([*wanted]) if packed else self.table(name).select([n for n in self.table(name).column_names if n in wanted])
            )
        if why is None or not table.num_rows:
            return table
        copies = pc.fill_null(pc.equal(table[why], "duplicate_rank"), False)
        return table.filter(pc.invert(copies)) if pc.any(copies).as_py() else table

    @property
    def steps(self) -> pd.DataFrame:
        """One row a step, copies from other ranks left out (``coverage.duplicate_ranks`` says how many)."""
        return self.frame("steps")

    @property
    def decode(self) -> pd.DataFrame:
        """One row a ``Decode batch`` line."""
        return self.frame("decode")

    @property
    def prefill(self) -> pd.DataFrame:
        """One row a ``Prefill batch`` line."""
        return self.frame("prefill")

    @property
    def servers(self) -> pd.DataFrame:
        """One row a server start."""
        return self.frame("servers")

    @property
    def events(self) -> pd.DataFrame:
        """Whatever breaks a run of steps."""
        return self.frame("events")

    @property
    def request_lines(self) -> pd.DataFrame:
        """One row a line that speaks of a request."""
        return self.frame("request_lines")

    @functools.cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request: what was given to ``with_requests``, else what the log's own lines say."""
        if "requests" in self._tables:
            return _tables.to_pandas(self._tables["requests"])
        from ddtree_metrics.requests import requests_from_log

        return requests_from_log(self.request_lines)

    @functools.cached_property
    def request_steps(self) -> pd.DataFrame:
        """One row a request a step, with the context length; see ``join_requests``."""
        if "request_steps" in self._tables:
            return _tables.to_pandas(self._tables["request_steps"])
        return self._joined.rows()

    @functools.cached_property
    def decode_steps(self) -> pd.DataFrame:
        """The table of steps that the ``Decode batch`` lines give; see ``metrics.steps_from_decode``, also for its ``attrs``."""
        from ddtree_metrics.steps.decode_windows import steps_from_decode

        return steps_from_decode(self.decode, prefill=self.prefill, events=self.events, servers=self.servers)

    @functools.cached_property
    def decode_request_steps(self) -> pd.DataFrame:
        """One row a request a step, where the steps are ``decode_steps`` and a line is one step."""
        return self._decode_joined.rows()

    @functools.cached_property
    def lean_steps(self) -> pd.DataFrame:
        """``steps`` without lists, maps and the places of lines, text as categories: drawn over time, looked through for gaps."""
        table = self._rows("steps", LEAN_STEPS)
        for i, field in enumerate(table.schema):
            if pa.types.is_string(field.type):
                table = table.set_column(i, field.name, table.column(i).dictionary_encode().unify_dictionaries())
        return _tables.to_pandas(table)

    def has_rows(self, name: str) -> bool:
        """Tell whether a table that was read has rows, without making a frame of it."""
        packed = self._packed.get(name)
        return bool(packed.num_rows if packed else self.table(name).num_rows) and bool(self._rows(name, []).num_rows)

    def heads(self, name: str) -> pd.DataFrame:
        """Return the first row of each stream of a table, with the columns that identify its service."""
        table = self._rows(name, ("stream", "host", "unit", "where"))
        firsts: dict[Any, int] = {}
        begin = 0
        for chunk in table.column("stream").chunks:
            encoded = chunk.dictionary_encode()
            codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
            for code, row in zip(*np.unique(codes, return_index=True), strict=True):
                firsts.setdefault(encoded.dictionary[int(code)].as_py() if code < len(encoded.dictionary) else None, begin + int(row))
            begin += len(chunk)
        return _tables.to_pandas(table.take(pa.array(sorted(firsts.values()), pa.int64())))

    @functools.cached_property
    def _joined(self) -> Whole:
        whole = self._whole(self._batches_of_steps, quiet=self._joined_once or not self.has_rows("steps"))
        self._joined_once = True
        if len(whole.joined.writer.s) >= PACKED_ROWS:
            give_back()
        return whole

    def _batches_of_steps(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the steps without the copies that other ranks logged, or some columns of them; a packed table stays packed."""
        held = self._packed.get("steps")
        if held is None:
            yield from self._rows("steps", columns).to_batches(max_chunksize=PACKED_ROWS)
            return
        for batch in held.batches(None if columns is None else {*columns, "step_why"}):
            copies = pc.fill_null(pc.equal(batch.column("step_why"), "duplicate_rank"), False)
            yield batch.filter(pc.invert(copies)) if pc.any(copies).as_py() else batch

    def joined_parts(self) -> Iterator[pa.Table]:
        """Yield the table ``request_steps`` part by part, so that it is never whole in memory."""
        if "request_steps" in self._tables or "request_steps" in vars(self):
            yield self.table("request_steps")
        else:
            yield from self._joined.parts()

    @functools.cached_property
    def _decode_joined(self) -> Whole:
        windows = self.decode_steps
        filled = [name for name in windows.columns if windows[name].notna().any()]  # a column that is missing is null, and costs nothing
        steps = _tables.from_pandas(windows[filled], TABLES["steps"], extra="drop")
        return self._whole(lambda columns: iter((steps if columns is None else steps.select(columns)).to_batches(PACKED_ROWS)))

    def _whole(self, steps: Callable[[Sequence[str] | None], Iterator[pa.RecordBatch]], *, quiet: bool = False) -> Whole:
        from ddtree_metrics.join import Whole

        own = self.clock_offset_s
        return Whole(steps, self.requests, self.prefill, decode=self.decode, events=self.events, clock_offset_s=own, quiet=quiet)

    @functools.cached_property
    def lean_request_steps(self) -> pd.DataFrame:
        """``request_steps`` in a quarter of the memory: enough for all metrics; see ``ddtree_metrics.join.compact``."""
        if "request_steps" in self._tables:
            from ddtree_metrics.join import compact_rows

            return compact_rows(self._tables["request_steps"])
        return self._joined.lean()

    def fresh_request_steps(self) -> pd.DataFrame:
        """Return ``lean_request_steps`` for one use: neither they nor the join behind them are kept afterwards."""
        cached = vars(self)
        if "lean_request_steps" in cached:
            return cached["lean_request_steps"].copy(deep=False)
        was_joined = "_joined" in cached
        rows = self.lean_request_steps
        del cached["lean_request_steps"]
        if not was_joined and len(rows) >= PACKED_ROWS:
            cached.pop("_joined", None)
            give_back()
        return rows

    @functools.cached_property
    def lean_decode_request_steps(self) -> pd.DataFrame:
        """``decode_request_steps`` in a quarter of the memory."""
        return self._decode_joined.lean()

    @functools.cached_property
    def own_requests(self) -> pd.DataFrame:
        """What the log's own lines say of the server's own requests (warm-ups, health checks), wherever ``requests`` come from."""
        from ddtree_metrics.steps.own_requests import OWN_KINDS, own_in

        if "request_steps" in self._tables and not len(self.requests):
            return own_in(self._tables["request_steps"])
        return self.told_requests[self.told_requests["kind"].isin(OWN_KINDS)]

    @functools.cached_property
    def told_requests(self) -> pd.DataFrame:
        """What the log's own lines say of requests, wherever ``requests`` come from."""
        from ddtree_metrics.requests import requests_from_log

        return self.requests if "requests" not in self._tables else requests_from_log(self.request_lines)

    @functools.cached_property
    def basis(self) -> Basis:
        """The rows that summary, report, plots and diagnosis rest on; see ``ddtree_metrics.steps.basis``."""
        from ddtree_metrics.steps.basis_rows import build

        return build(self)

    def with_requests(
        self,
        requests: pd.DataFrame | PathLike | Sequence[PathLike],
        *,
        tz: str | ZoneInfo | None = None,
        clock_offset_s: float | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> Log:
        """Return the same log with these requests instead of what its own lines say.

        Parameters
        ----------
        requests : DataFrame, path, or sequence of paths
            What ``read_requests`` takes or gives.
        tz : str or ZoneInfo, optional
            The zone of times without one.
        clock_offset_s : float, optional
            By how many seconds the requests' clock is ahead of the log's, if that is known; ``request_steps`` estimates it otherwise.
        columns : mapping of str to str, optional
            What files call a column, where they do not call it by an accepted name: ``{"finished": "Ended"}``.

        Returns
        -------
        Log
            If files are given and hold no request, those of the log's own lines stay.

        Warns
        -----
        DDTreeWarning
            What ``read_requests`` warns of; if files hold no request; if requests of the server's file without times got those of the
            log's own lines with the same ids.
        """
        import pandas as pd

        from ddtree_metrics.requests import complement, read_requests, requests_from_log

        own = self.requests if "requests" not in self._tables else None
        if not isinstance(requests, pd.DataFrame):
            requests = read_requests(requests, tz=zone_of(tz), columns=columns)
            if not len(requests) and own is not None and len(own):
                warnings.warn(
                    f"the files of requests hold none: the {len(own)} requests of the log's own lines stay", DDTreeWarning, stacklevel=2
                )
                requests = own
        if requests is not own and "source" in requests and (requests["source"] == "request_file").any():
            requests, filled = complement.times_from(requests, requests_from_log(self.request_lines) if own is None else own)
            if filled:
                warnings.warn(
                    f"{filled} requests of the file have no times: those of the log's own lines with the same ids are taken",
                    DDTreeWarning,
                    stacklevel=2,
                )
        others = {k: v for k, v in self._tables.items() if k not in ("requests", "request_steps")}
        requests = complement.kinds_from(requests, requests_from_log(self.request_lines) if own is None else own)
        log = Log({**others, "requests": _tables.from_pandas(requests, TABLES["requests"])}, self.coverage, self.counts, self._packed)
        log.requests = requests
        log.clock_offset_s, log._others = clock_offset_s, self._others
        return log

    @overload
    def records(self, name: Literal["steps"] = "steps") -> Iterator[TreeStep]: ...
    @overload
    def records(self, name: Literal["decode"]) -> Iterator[DecodeBatch]: ...
    @overload
    def records(self, name: Literal["prefill"]) -> Iterator[PrefillBatch]: ...
    @overload
    def records(self, name: Literal["servers"]) -> Iterator[ServerStart]: ...
    @overload
    def records(self, name: Literal["events"]) -> Iterator[Event]: ...
    @overload
    def records(self, name: Literal["requests"]) -> Iterator[Request]: ...
    @overload
    def records(self, name: Literal["request_lines"]) -> Iterator[RequestLine]: ...
    @overload
    def records(self, name: Literal["request_steps"]) -> Iterator[RequestStep]: ...
    @overload
    def records(self, name: str) -> Iterator[Any]: ...
    def records(self, name: str = "steps") -> Iterator[Any]:
        """Yield the rows of a table as typed records, one at a time.

        Parameters
        ----------
        name : str
            The table; its record class is ``ddtree_metrics.records.TABLES[name]``.
        """
        yield from _tables.to_records(self.table(name), TABLES[name])

    @functools.cached_property
    def requests_table(self) -> pd.DataFrame:
        """One row a request: when, at what context and batch, and how fast; see ``by_request``."""
        from ddtree_metrics.metrics import by_request

        return by_request(self.basis.frame())

    def between(self, since: str | datetime | None = None, until: str | datetime | None = None, *, tz: str | ZoneInfo = "UTC") -> Log:
        """Return the part of the log from one instant to another.

        Steps are joined with requests before they are cut, so that context lengths stay as they were. A request stays if it ran within
        the window, and the last server start before it stays, which says how the server was started.

        Parameters
        ----------
        since, until : str or datetime, optional
            The window, ``since <= t < until``, as for ``read_journal``; ``1h`` is the last hour of the log, ``14:05`` of its last day.
        tz : str or ZoneInfo
            The zone of times that do not say theirs.
        """
        account = self.coverage
        window = parse_window_of_log(since, until, last_us=account.last_us, tz=zone_of(tz))
        tables = {name: rows_within(self.table(name), window) for name in TABLES}
        tables["servers"] = starts_within(self.table("servers"), window)
        rows = {name: table.num_rows for name, table in tables.items() if name in account.parsed}
        first, last = account.first_us, account.last_us
        cut = replace(
            account,
            parsed=rows,
            first_us=None if first is None else max(window.bounds[0], first),
            last_us=None if last is None else min(window.bounds[1], last),
            notes=[*account.notes, "a part of what was read: counts of lines are those of all of it"],
        )
        part = Log(tables, cut, self.counts)
        part.clock_offset_s, part._others = self.clock_offset_s, self._others
        return part

    def beside(
        self, time: str | datetime, span: str = "2m", *, tz: str | ZoneInfo = "UTC", messages: bool = False, level: float = 0.9
    ) -> pd.DataFrame:
        """Return what else the journal says around a time: signals of the kernel and of services, and who wrote more than usual.

        It stands beside what happened to the server; no line says that it is because of it. Only the minutes around the time are read, and
        where somebody wrote ten lines or more, up to 16 other stretches of the same length, which tell what is usual.

        Parameters
        ----------
        time : str or datetime
            The middle of what is looked at; ``14:05`` is of the log's last day.
        span : str
            How much before and after it.
        tz : str or ZoneInfo
            The zone of a time that does not say its own.
        messages : bool
            Whether messages of others are shown, redacted and cut to 120 characters; else they are only counted.
        level : float
            Of the intervals.

        Returns
        -------
        DataFrame
            ``kind`` (``signal``, ``burst``, or ``count`` for other lines), ``time``, ``host``, ``unit``, ``signal``, ``said``, ``message``,
            ``count``, and for bursts ``usual`` (the mean elsewhere), ``rate_ratio``, ``rate_low``, ``rate_high``, ``p`` (corrected for how
            many were compared, Holm).
            ``attrs["unknown"]`` says what could not be read.

        Raises
        ------
        TimeError
            If the time cannot be read.
        """
        account, zone = self.coverage, zone_of(tz)
        at, _ = parse_window_of_log(time, None, last_us=account.last_us, tz=zone)
        middle = at or 0
        before = parse_window(span, None, now_us=middle, tz=get_zone("UTC")).since_us or middle
        return as_frame(self.around(before, 2 * middle - before, messages=messages, level=level, large=True))

    def around(self, begin_us: int, end_us: int, *, messages: bool = False, level: float = 0.9, large: bool = False) -> Around:
        """Return what stands in the journal between two times, as records; see ``beside``. A long dump is only read if it is ``large``."""
        units = {str(unit) for name in ("steps", "decode") for unit in self.heads(name)["unit"].dropna()}
        span = (self.coverage.first_us or begin_us, self.coverage.last_us or end_us)
        return around_server(self._others, units, begin_us, end_us, span, messages=messages, level=level, large=large)

    def write(self, path: PathLike, table: str | None = None, *, force: bool = False) -> Path:
        """Write all tables into a folder, or one table into a file; ``read`` reads both back.

        Parameters
        ----------
        path : str or Path
            A folder, or a file whose suffix says its format (``.parquet``, ``.csv``, ``.jsonl``, ``.arrow``).
        table : str, optional
            Which table a file gets; ``steps`` if not given.
        force : bool
            Whether files that are there may be replaced.

        Returns
        -------
        Path
            Where it was written.

        Raises
        ------
        OutputError
            If it cannot be written, or is there already; nothing half-written is left.
        """
        where = Path(path)
        if table is not None or where.suffix.lower() in {end for ends in FORMATS.values() for end in ends}:
            name = table or "steps"
            rows = self.table(name)
            with open_writer(where, TABLES[name], force=force, metadata=self.metadata()) as writer:
                writer.write(rows)
        else:
            write_tables(where, {name: (TABLES[name], self.table(name)) for name in TABLES}, force=force, metadata=self.metadata())
        return where

    def metadata(self) -> dict[str, str]:
        """Return what a file of this log says of itself: coverage and conventions, each as JSON."""
        return {"coverage": self.coverage.to_json(), "counts": self.counts.to_json()}

    def __str__(self) -> str:
        return f"Log of {self.coverage}"

    def __repr__(self) -> str:
        return f"<{self}>"

    def _repr_html_(self) -> str:
        return self.coverage._repr_html_()


# -- reading ------------------------------------------------------------------------------------------------------------------
