"""Rows of a basis from tables as they come: each step, window or request once, with what the lines just before it say."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics import tables as _tables
from ddtree_metrics.errors import DDTreeWarning
from ddtree_metrics.live.rolling import STEP_BACK_S
from ddtree_metrics.log import Log
from ddtree_metrics.records import TABLES
from ddtree_metrics.requests import requests_from_log
from ddtree_metrics.steps.basis import Basis
from ddtree_metrics.steps.basis_rows import build
from ddtree_metrics.steps.frames import Bools

KEPT = 256
"""So many lines of each kind are looked at again with the next: a window needs the one before, a step the Decode line beside it."""

NO_LONGER_US = 30_000_000
"""So long after its last step line a server logs no steps any more, and its Decode lines are what there is."""

NAMES = ("steps", "decode", "prefill", "events", "request_lines")


class FreshRows:
    """Turns tables of new lines into rows, without those that were given before."""

    def __init__(self) -> None:
        self._before: dict[str, pa.Table] = {}
        self._seen_us: dict[str, int] = {}
        self._last_step_us = -NO_LONGER_US
        self._newest_us = 0

    def feed(self, new: Iterable[Mapping[str, pa.RecordBatch]], servers: pa.RecordBatch | None = None) -> tuple[Basis, Bools]:
        """Make the rows of some more lines.

        Parameters
        ----------
        new : iterable of mapping of str to pyarrow.RecordBatch
            Tables in the order in which they were read.
        servers : pyarrow.RecordBatch, optional
            All server starts until now.

        Returns
        -------
        basis : Basis
            Rows; some of them were there before.
        fresh : ndarray of bool
            Which were not.
        """
        added: dict[str, list[pa.RecordBatch]] = {name: [] for name in NAMES}
        for tables in new:
            for name, batch in tables.items():
                if name in added:
                    added[name].append(batch)
        self._mind_the_clock(added)
        held: dict[str, pa.Table] = {}
        for name, batches in added.items():
            before = self._before.get(name)
            table = _tables.concat([*(before.to_batches() if before is not None and name != "steps" else ()), *batches], TABLES[name])
            self._before[name] = table.slice(max(table.num_rows - KEPT, 0)).combine_chunks()
            held[name] = table
        if held["steps"].num_rows:
            self._last_step_us = max(self._last_step_us, _newest(held["steps"]))
        else:  # where there is a line a step, Decode lines tell the same once more
            later = pc.greater(held["decode"].column("time").cast(pa.int64()), self._last_step_us + NO_LONGER_US)
            held["decode"] = held["decode"].filter(pc.fill_null(later, False))
        if servers is not None:
            held["servers"] = _tables.concat([servers], TABLES["servers"])
        log = Log(held)
        frames = {name: log.frame(name) if name in held and held[name].num_rows else pd.DataFrame() for name in (*NAMES, "servers")}
        told = frames["request_lines"]
        frames["requests"] = requests_from_log(told) if len(told) and told["decode_ms"].notna().any() else pd.DataFrame()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DDTreeWarning)  # whose steps they are is not asked here
            basis = build(SimpleNamespace(**frames, request_steps=pd.DataFrame()))
        return basis, np.ones(len(basis), dtype=bool) if held["steps"].num_rows else self._fresh(basis)

    def _mind_the_clock(self, added: Mapping[str, list[pa.RecordBatch]]) -> None:
        """Begin anew where the clock was set back: what was read before it would seem to be later than all that comes."""
        newest = max((_newest(batch) for batches in added.values() for batch in batches if batch.num_rows), default=0)
        if newest and newest < self._newest_us - STEP_BACK_S * 1e6:
            self._before.clear()
            self._seen_us.clear()
            self._last_step_us = min(self._last_step_us, newest)
            self._newest_us = newest
        self._newest_us = max(self._newest_us, newest)

    def _fresh(self, basis: Basis) -> Bools:
        """Tell which rows are later than those of the same stream before."""
        fresh = np.zeros(len(basis), dtype=bool)
        for code, name in enumerate(basis.stream_names):
            mine = np.flatnonzero((basis.stream == code) & (basis.time_us >= 0))
            if len(mine):
                fresh[mine] = basis.time_us[mine] > self._seen_us.get(str(name), -1)
                self._seen_us[str(name)] = int(max(basis.time_us[mine].max(), self._seen_us.get(str(name), -1)))
        return fresh


def _newest(table: pa.Table | pa.RecordBatch) -> int:
    return int(pc.max(table.column("time").cast(pa.int64())).as_py() or 0)
