"""The rows of ``request_steps``: one for each slot of each step, made for any part of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.join.prepare import Asked, Bools, Ints, StepColumns
from ddtree_metrics.join.verify import Matched
from ddtree_metrics.records import RequestStep
from ddtree_metrics.schema import arrow_schema
from ddtree_metrics.tables import flat_lists

Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class RowWriter:
    """Everything that rows are made from."""

    s: StepColumns
    a: Asked
    m: Matched
    names: list[str | None]
    flags: list[tuple[str, ...]]
    root: int | None
    by_id: Bools | None
    estimates: dict[int, tuple[float, int]]
    where: Any

    def table(self, steps: pa.Table | pa.RecordBatch, begin: int, left_out: tuple[str, ...] = ()) -> pa.Table:
        """Make the rows of some steps.

        Parameters
        ----------
        steps : pyarrow.Table
            Rows ``begin`` to ``begin + n`` of the table of steps that was matched.
        begin : int
            Where they stand in it.
        left_out : tuple of str
            Columns that are not wanted.

        Returns
        -------
        pyarrow.Table
            With exactly the columns of ``records.RequestStep``, but for those.
        """
        s, n = self.s, steps.num_rows
        at = self.where[begin : begin + n]
        width = s.place[at + 1] - s.place[at]
        rep = np.repeat(np.arange(n), width)
        slot = np.arange(len(rep)) - np.repeat(np.cumsum(width) - width, width)
        place = np.repeat(s.place[at], width) + slot
        request = self.m.request[place].astype(np.int64)
        step = at[rep]
        known = request >= 0
        r = np.maximum(request, 0)
        size = s.batch[step]
        tokens = s.commit[place].astype(np.float64)
        tokens[tokens < 0] = np.nan
        split = ~s.whole[step]
        total = np.where(s.total[step] >= 0, s.total[step], np.nan).astype(np.float64)
        tokens = np.where(split, total / np.maximum(width[rep], 1), tokens)
        index, generated = self.m.index[place].astype(np.int64), self.m.generated[place].astype(np.int64)
        prompt = np.where(known & (len(self.a) > 0), self.a.prompt[r] if len(self.a) else -1, -1)
        context = np.where(known & (prompt >= 0) & (generated > 0), prompt + generated - 1, -1)
        source = np.where(context >= 0, 1, 0)
        stated = self._stated(steps, width, rep)
        source = np.where(stated >= 0, 2, source)
        context = np.where(stated >= 0, stated, context)
        if self.estimates:
            self._estimate(step, context, source)
        matched = self._matched(known, size, split, place)
        drafts = s.accepted[place].astype(np.float64)
        drafts[drafts < 0] = np.nan
        columns: dict[str, Any] = {
            "time_us": _one(pc.coalesce(steps.column("time_us"), steps.column("time").cast(pa.int64()))).take(pa.array(rep)),
            "request_id": self._ids(steps, request, rep, slot, width),
            "step_index": _ints(index, index >= 0),
            "slot": _ints(slot, size > 0),
            "prompt_len": _ints(prompt, prompt >= 0),
            "generated_len": _ints(generated, known & (generated > 0)),
            "context_len": _ints(context, context >= 0),
            "context_from": pa.array(["request", "line", "decode_line"]).take(pa.array(source - 1, mask=source == 0)),
            "batch_context": self._batch_context(context, rep, n, width),
            "tokens": pa.array(tokens, mask=np.isnan(tokens)),
            "drafts": pa.array(drafts, mask=np.isnan(drafts)),
            "draft_nodes": self._nodes(steps, rep, slot, width),
            "batch_size": _ints(size, size > 0),
            "weight": pa.array(1.0 / np.maximum(width[rep], 1)),
            "matched": matched,
            "reconciled": _ints(self.m.reconciled[r], known & self.m.has_reconciled[r]) if len(self.a) else pa.nulls(len(rep), pa.int64()),
            "trusted": pa.array(self.m.trusted[r], mask=~(known & (self.m.has_reconciled[r] | self._flagged()[r])))
            if len(self.a)
            else pa.nulls(len(rep), pa.bool_()),
            "flags": None if "flags" in left_out else flag_lists(self.flags, request, source == 3, split),
        }
        take = pa.array(rep)
        whole = arrow_schema(RequestStep)
        schema = pa.schema([f for f in whole if f.name not in left_out], metadata=whole.metadata)
        arrays = []
        for f in schema:
            if f.name in columns:
                arrays.append(columns[f.name].cast(f.type) if columns[f.name].type != f.type else columns[f.name])
            elif f.name == "stream":
                from ddtree_metrics.join.prepare import stream_names

                arrays.append(stream_names(steps).take(take))
            else:
                column = steps.column(f.name)
                column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
                arrays.append(column.take(take).cast(f.type))
        return pa.Table.from_arrays([_one(x) for x in arrays], schema=schema)

    def _flagged(self) -> Bools:
        return np.array([bool(f) for f in self.flags], bool)

    def _stated(self, steps: Any, width: Ints, rep: Ints) -> Ints:
        """Return the context lengths that the lines themselves state, -1 where they do not."""
        column = steps.column("context_lens")
        if column.null_count == len(column):
            return np.full(len(rep), -1, np.int64)
        values, offsets, valid = flat_lists(column)
        good = valid & (np.diff(offsets) == width)
        out = np.full(len(rep), -1, np.int64)
        rows = good[rep]
        begin = np.cumsum(width) - width
        inside = np.arange(len(rep)) - begin[rep]
        out[rows] = values[(offsets[:-1][rep] + inside)[rows]]
        return out

    def _estimate(self, step: Ints, context: Ints, source: Ints) -> None:
        for i in np.flatnonzero(context < 0).tolist():
            hit = self.estimates.get(int(step[i]))
            if hit is not None:
                context[i], source[i] = round(hit[0]), 3

    def _matched(self, known: Bools, size: Ints, split: Bools, place: Ints) -> pa.Array:
        code = np.where(~known, 4, np.where(split & (size != 1), 3, np.where(size == 1, 1, 2)))
        if self.by_id is not None:
            code = np.where(self.by_id[place], 0, code)
        return pa.array(["id", "alone", "slots", "shared", "none"]).take(pa.array(code))

    def _ids(self, steps: Any, request: Ints, rep: Ints, slot: Ints, width: Ints) -> pa.Array:
        names = pa.array([*self.names, None], pa.string())
        made = names.take(pa.array(np.where(request >= 0, request, len(self.names))))
        column = steps.column("request_ids")
        if column.null_count == len(column):
            return made
        values, offsets, valid = flat_lists(column)
        good = (valid & (np.diff(offsets) == width))[rep]
        said = np.full(len(rep), None, object)
        said[good] = values[(offsets[:-1][rep] + slot)[good]]
        return pc.coalesce(pa.array(said, pa.string()), made)

    def _batch_context(self, context: Ints, rep: Ints, n: int, width: Ints) -> pa.Array:
        known = np.bincount(rep, weights=context >= 0, minlength=n) == width
        sums = np.bincount(rep, weights=np.maximum(context, 0), minlength=n)
        return _ints(sums[rep].astype(np.int64), known[rep] & (width[rep] > 0))

    def _nodes(self, steps: Any, rep: Ints, slot: Ints, width: Ints) -> pa.Array:
        if self.root is None:
            return pa.nulls(len(rep), pa.float64())
        values, offsets, valid = flat_lists(steps.column("nodes"))
        good = (valid & (np.diff(offsets) == width))[rep]
        out = np.full(len(rep), np.nan)
        out[good] = values[(offsets[:-1][rep] + slot)[good]] - self.root
        return pa.array(out, mask=np.isnan(out))


def flag_lists(flags: list[tuple[str, ...]], request: Ints, estimated: Bools, split: Bools) -> pa.Array:
    """Return the flags of each row: those of its request, whether its context is estimated, whether its step was shared.

    Parameters
    ----------
    flags : list of tuple of str
        Those of each request.
    request : ndarray
        The request of each row, -1 where there is none.
    estimated, split : ndarray of bool
        Of each row.

    Returns
    -------
    pyarrow.Array
        A list of text a row, null where there is nothing to say.
    """
    n = len(flags)
    which = np.where(request >= 0, request, n)
    seen, back = np.unique(which * 4 + estimated * 2 + split, return_inverse=True)
    made = []
    for kind in seen.tolist():
        own = [*(flags[kind // 4] if kind // 4 < n else ()), *(["decode_line"] if kind % 4 >= 2 else []), *(["shared"] if kind % 2 else [])]
        made.append(own or None)
    return pa.array(made, pa.list_(pa.string())).take(pa.array(back))


def _ints(values: Any, valid: Bools) -> pa.Array:
    return pa.array(np.asarray(values, np.int64), pa.int64(), mask=~np.asarray(valid, bool))


def _one(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
