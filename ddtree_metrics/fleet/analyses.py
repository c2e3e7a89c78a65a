"""A lake, opened: a table of Ibis for each of its tables, and the analyses as expressions over them."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ddtree_metrics.errors import MetricError, SchemaError, SourceNotFound
from ddtree_metrics.fleet import added_up
from ddtree_metrics.fleet.counted import counted_rows
from ddtree_metrics.fleet.engines import connect, read_parts
from ddtree_metrics.metrics.acceptance import survival_from_histogram
from ddtree_metrics.metrics.context import BY_CONTEXT_COLUMNS, bin_edges
from ddtree_metrics.metrics.histograms import SCHEMA, described, summarise_histogram
from ddtree_metrics.records import TABLES
from ddtree_metrics.sources.journal_fields import unit_name
from ddtree_metrics.steps.starts import Placed, Rows, place, service_keys, service_name
from ddtree_metrics.tables.manifest import LakePart, Visible, visible
from ddtree_metrics.times import format_us, parse_window_of_log

if TYPE_CHECKING:
    import ibis.expr.types as ir

GROUPS = ("host", "unit", "date", "start", "boot_id", "stream", "budget", "batch_size")
"""What an analysis may be told apart by; ``start`` is the server start."""

ROWS_OF = ("request_steps", "steps")
"""Of which tables the rows are: of each partition the first that it has."""


@dataclass(frozen=True)
class Analysis:
    """What is asked of a lake.

    Attributes
    ----------
    expression : ibis Table
        Counts and sums: those of two files, days or hosts add up.
    finish : callable
        Makes the result of them.
    """

    expression: ir.Table
    finish: Callable[[pa.Table], pd.DataFrame]

    def sums(self) -> pa.Table:
        """Have the engine count and add up."""
        return self.expression.to_pyarrow()

    def frame(self) -> pd.DataFrame:
        """Return the result."""
        return self.finish(self.sums())


class Dataset:
    """A lake as an engine sees it.

    Parameters
    ----------
    root : str or Path
        The lake.
    engine : object
        See ``fleet.engines.connect``.

    Attributes
    ----------
    notes : list of str
        What of the lake was left out, and why.
    """

    def __init__(self, root: str | os.PathLike[str], engine: Any = "duckdb") -> None:
        self.root = Path(root)
        if not self.root.is_dir():
            raise SourceNotFound(
                f"no folder {self.root}; a lake is what this writes: ddtree-logs export FILE... --partition host,date -o LAKE/"
            )
        self.seen: Visible = visible(self.root)
        self.notes = list(self.seen.notes)
        if not any(self.seen.parts.values()):
            raise SourceNotFound(f"no table in {self.root} that could be read" + (f": {'; '.join(self.notes[:3])}" if self.notes else ""))
        self.connection = connect(engine)
        self._read: dict[str, ir.Table] = {}

    def __getitem__(self, name: str) -> ir.Table:
        """Return a table as Ibis sees it, with all its rows."""
        if name not in TABLES:
            raise SchemaError(f"no table {name!r}; there are {', '.join(TABLES)}")
        if name not in self._read:
            self._read[name] = read_parts(self.connection, name, self.seen.parts.get(name, ()), self.root)
        return self._read[name]

    def __getattr__(self, name: str) -> ir.Table:
        if name in TABLES:
            return self[name]
        raise AttributeError(f"a dataset has no {name!r}; its tables are {', '.join(TABLES)}")

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that have rows."""
        return tuple(name for name in TABLES if self.seen.parts.get(name))

    @functools.cached_property
    def bases(self) -> dict[str, list[LakePart]]:
        """The parts that rows are of, by table: ``request_steps``, and ``steps`` of the partitions that have none of these."""
        joined, lines = (self.seen.parts.get(name, []) for name in ROWS_OF)
        have = {tuple(part.partition.items()) for part in joined}
        found = {"request_steps": joined, "steps": [part for part in lines if tuple(part.partition.items()) not in have]}
        found = {name: parts for name, parts in found.items() if parts}
        if not found:
            raise MetricError(f"{self.root} has no steps: its tables are {', '.join(self.tables) or 'none'}")
        return found

    @functools.cached_property
    def rows(self) -> ir.Table:
        """The rows that count, as an expression; see ``fleet.counted``."""
        made = []
        for name, parts in self.bases.items():
            whole = len(parts) == len(self.seen.parts[name])
            table = self[name] if whole else read_parts(self.connection, name, parts, self.root)
            made.append(counted_rows(table, joined=name == "request_steps"))
        return made[0] if len(made) == 1 else made[0].union(made[1].cast(made[0].schema()))

    def narrowed(
        self, *, units: Sequence[str] = (), since: str | datetime | None = None, until: str | datetime | None = None, tz: Any = None
    ) -> Dataset:
        """Return the same lake with a part of its rows.

        Parameters
        ----------
        units : sequence of str
            Units that count, all if none is given.
        since, until, tz
            A window, as for ``Log.between``: spans and times of day are meant from the lake's last row.
        """
        rows = self.rows.filter(self.rows.unit.isin([unit_name(unit) for unit in units])) if units else self.rows
        if since is not None or until is not None:
            last = self.streams["last_us"].max()
            low, high = parse_window_of_log(since, until, last_us=None if pd.isna(last) else int(last), tz=tz)
            # by day besides, which is a folder: files of other days are not opened
            rows = rows if low is None else rows.filter(rows.time_us >= low, rows.date >= format_us(low)[:10])
            rows = rows if high is None else rows.filter(rows.time_us < high, rows.date <= format_us(high)[:10])
        return self if rows is self.rows else self.with_rows(rows)

    def with_rows(self, rows: ir.Table) -> Dataset:
        """Return the same lake with other rows, an expression over its own."""
        made = copy.copy(self)
        for name in ("streams", "starts", "edges"):
            vars(made).pop(name, None)
        made.rows = rows
        return made

    # -- server starts ---------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def streams(self) -> pd.DataFrame:
        """One row a stream (a rank of a process): where it is from, when it began and ended, its number of rows and server start."""
        found: pd.DataFrame = added_up.streams(self.rows).to_pandas()
        return found.sort_values(["first_us", "stream"], kind="stable", ignore_index=True)

    @functools.cached_property
    def starts(self) -> Placed:
        """The server starts, found as in a log: by their lines, and by processes that take another's place."""
        streams = self.streams
        names = ["time", "host", "unit", "boot_id", "where", "args", "args_cut"]
        servers = self["servers"].select(*names).to_pyarrow() if self.seen.parts.get("servers") else None
        table = pd.DataFrame(columns=names) if servers is None else servers.to_pandas()
        where = np.full(len(streams), None, dtype=object)
        keys, services = pd.factorize(np.array(service_keys(streams.assign(where=where)) or [], dtype=object))
        boots, boot_names = pd.factorize(streams["boot_id"])
        family = [f"{str(s).partition('|')[0]}|{str(s).rpartition('|')[2]}" for s in streams["stream"]]
        n = len(streams)
        return place(
            Rows(
                time_us=streams["first_us"].fillna(-1).to_numpy(dtype=np.int64),
                stream=np.arange(n),
                family=pd.factorize(np.array(family, dtype=object))[0].astype(np.int64) if n else np.empty(0, np.int64),
                service=keys.astype(np.int64),
                speculative=np.ones(n),
                begins=streams["anew"].to_numpy(dtype=np.int64) > 0,
                first_of_stream=np.ones(n, dtype=bool),
                boot=boots.astype(np.int32),
                boot_names=np.asarray(boot_names, dtype=object),
            ),
            table,
            [str(s) for s in services],
        )

    # -- analyses --------------------------------------------------------------------------------------------------------------

    def by_context(self, *by: str, width: float | None = None, edges: Sequence[float] | None = None, once: bool = False) -> Analysis:
        """Histograms of step time by context, and tokens: ``by_context`` of a log, without intervals.

        Parameters
        ----------
        *by : str
            What to tell apart: ``host``, ``unit``, ``date``, ``start``, ``boot_id``, ``budget``, ``batch_size``.
        width, edges
            Equal widths, or rising edges; else the bins that ``by_context`` would choose.
        once : bool
            Whether to count each step once besides.

        Returns
        -------
        Analysis
            Its expression has ``bin``, ``bucket``, ``n``, ``sum_us``, ``n_tokens``, ``sum_tokens``: ``metrics.merge_histograms`` adds
            such tables up. Its frame has the columns of ``by_context``: means exact, quantiles within a bucket of 1 %.
        """
        if width is None and edges is None:
            edges = self.edges
        made = self._grouped(by, lambda rows, keys: added_up.histogram(rows, keys, width=width or 1, edges=edges, once=once))
        return Analysis(made, functools.partial(_curves, by=by, width=width, edges=edges))

    @functools.cached_property
    def edges(self) -> list[float]:
        """The bins of context that ``by_context`` would choose for such contexts."""
        ends = self.rows.aggregate(low=self.rows.context_len.min(), high=self.rows.context_len.max()).to_pandas().iloc[0]
        if pd.isna(ends["low"]):
            return [0.0, 1.0]
        return bin_edges(np.unique(np.linspace(float(ends["low"]), float(ends["high"]), 1000))).tolist()

    def tokens_per_step(self, *by: str) -> Analysis:
        """Tokens per step, step time and speed of each group, with the counts and sums that they are made of."""
        made = self._grouped(by, added_up.sums)
        return Analysis(added_up.with_means(made), functools.partial(_sorted, by=by))

    def by_budget(self, *by: str) -> Analysis:
        """Tokens per step, step time and speed for each node budget seen."""
        return self.tokens_per_step(*by, "budget")

    def survival(self, *by: str) -> Analysis:
        """Share of request-steps that accepted at least so many drafts; the expression counts them by how many they accepted."""
        return Analysis(self._grouped(by, added_up.depths), functools.partial(_survival, by=by))

    def _grouped(self, by: Sequence[str], count: Callable[[ir.Table, Sequence[str]], ir.Table]) -> ir.Table:
        """Count by groups; server starts are counted by stream, and the sums of streams are added up."""
        wrong = next((name for name in by if name not in GROUPS), None)
        if wrong is not None or len(set(by)) < len(by):
            raise MetricError(f"cannot tell rows apart by {', '.join(by)}; give one or more of {', '.join(GROUPS)}")
        if "start" not in by:
            return count(self.rows, list(by))
        import ibis

        placed = self.starts
        names = pd.DataFrame({"stream": self.streams["stream"], "start": placed.run.astype(np.int64)}).dropna().drop_duplicates("stream")
        found = count(self.rows, [*(name for name in by if name not in ("start", "stream")), "stream"])
        labelled = found.left_join(ibis.memtable(pa.Table.from_pandas(names, preserve_index=False)), "stream").drop("stream_right")
        if "stream" not in by:
            labelled = labelled.drop("stream")
        return added_up.added(labelled, [*by, *(n for n in ("bin", "bucket", "depth") if n in labelled.columns)])

    def account(self) -> dict[str, int]:
        """Count the rows that cannot be used, by reason."""
        rows = self.rows
        why = rows.step_why.fill_null("")
        found = rows.filter(rows.step_us.isnull()).mutate(why=why).group_by("why").aggregate(n=lambda t: t.weight.sum()).to_pandas()
        made = {f"no step time: {why}" if why else "no step time": round(float(n)) for why, n in zip(found["why"], found["n"], strict=True)}
        made = dict(sorted(made.items(), key=lambda item: -item[1]))
        lacking = rows.aggregate(tokens=rows.tokens.isnull().sum(), context=rows.context_len.isnull().sum()).to_pandas().iloc[0]
        made |= {"tokens unknown": int(lacking["tokens"] or 0), "no context length": int(lacking["context"] or 0)}
        return {reason: n for reason, n in made.items() if n}

    def called(self, start: int) -> str:
        """Name a server start: its number, and of which host and unit it is."""
        placed = self.starts
        streams = self.streams[placed.run == start]
        key = service_keys(streams.head(1).assign(where=None))
        return f"run {start}" + (f" of {service_name(key[0])}" if key and service_name(key[0]) else "")


def open_dataset(root: str | os.PathLike[str], *, engine: Any = "duckdb") -> Dataset:
    """Open a lake: a table of Ibis for each of its tables, and the analyses as Ibis expressions over them.

    Parameters
    ----------
    root : str or Path
        What ``ddtree-logs export --partition host,date`` or ``--append`` wrote.
    engine : str, SparkSession or ibis connection
        ``duckdb`` in this process; ``spark``, the URL of a master (``spark://…``) or of a Spark Connect server (``sc://…``), a session; or
        any connection of Ibis that reads Parquet.

    Returns
    -------
    Dataset

    Raises
    ------
    SourceNotFound
        If there is no lake.
    SourceUnsupported
        If the engine is not installed: ``pip install 'ddtree-metrics[fleet]'``, or ``[spark]``.

    Examples
    --------
    >>> lake = open_dataset("lake/")  # doctest: +SKIP
    >>> lake.by_context("host", width=4096).frame()  # doctest: +SKIP
    """
    return Dataset(root, engine)


def _groups(table: pa.Table, by: Sequence[str]) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Take sums apart by group, in order."""
    frame = table.to_pandas()
    if not by:
        return [({}, frame)]
    made = []
    for key, part in frame.groupby(list(by), sort=True, dropna=False):
        made.append((dict(zip(by, key if isinstance(key, tuple) else (key,), strict=True)), part))
    return made


def _curves(table: pa.Table, *, by: Sequence[str], width: float | None, edges: Sequence[float] | None) -> pd.DataFrame:
    """Make a row a group and bin of histograms."""
    made, left_out = [], 0
    for key, part in _groups(table, by):
        known = part[part["bin"].notna()]
        lacking = int(part.loc[part["bin"].isna(), "n"].sum())
        left_out += lacking
        columns = {field.name: pa.array(known[field.name].to_numpy(), type=field.type, safe=False) for field in SCHEMA}
        curve = summarise_histogram(described(pa.table(columns, schema=SCHEMA), width, edges, lacking))
        for number, (name, value) in enumerate(key.items()):
            curve.insert(number, name, value)
        made.append(curve)
    whole = [curve for curve in made if len(curve)]
    found = pd.concat(whole, ignore_index=True) if whole else pd.DataFrame(columns=[*by, *BY_CONTEXT_COLUMNS])
    found.attrs = {"by": "context_len", "rows_without_axis": left_out}
    return found


def _sorted(table: pa.Table, *, by: Sequence[str]) -> pd.DataFrame:
    frame = table.to_pandas()
    return frame.sort_values(list(by), ignore_index=True) if by else frame


def _survival(table: pa.Table, *, by: Sequence[str]) -> pd.DataFrame:
    made = []
    for key, part in _groups(table, by):
        counts = np.zeros(int(part["depth"].max()) + 1 if len(part) else 0)
        counts[part["depth"].to_numpy(dtype=np.int64)] = part["n"]
        curve = survival_from_histogram(counts)
        for number, (name, value) in enumerate(key.items()):
            curve.insert(number, name, value)
        made.append(curve)
    return pd.concat(made, ignore_index=True)
