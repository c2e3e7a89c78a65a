"""The rows of one table in one batch: columns as numbers, where the rows come from, and the tokens of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ddtree_metrics.steps.stream_ids import Origins

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class BatchRows:
    """The rows of one table in one batch, as columns, with the running number of each one's line."""

    def __init__(self, batch: pa.RecordBatch, line: Ints) -> None:
        self.batch = batch
        self.line = line
        self.origins = Origins(batch)
        self._ints: dict[str, tuple[Ints, Bools]] = {}

    def ints(self, name: str) -> tuple[Ints, Bools]:
        """Return a column as 64-bit integers, 0 for null, and which of them are there; they are shared and not to be changed."""
        made = self._ints.get(name)
        if made is None:
            made = self._ints[name] = ints_of(self.batch.column(name))
        return made

    def tokens(self) -> tuple[Ints, Bools]:
        """Sum the commit lengths of each step; from the average where there are no lengths, and only where that is exact."""
        lens = self.batch.column("commit_lens")
        n = len(lens)
        valid = np.asarray(lens.is_valid())
        offsets = np.asarray(lens.offsets).astype(np.int64)
        values = np.asarray(lens.values.fill_null(0)).astype(np.int64)
        running = np.concatenate([[0], np.cumsum(values)])
        total = running[offsets[1:]] - running[offsets[:-1]]
        total = np.where(valid, total, 0)
        sizes, sized = self.ints("batch_size")
        mean = self.batch.column("avg_commit_len")
        rest = ~valid & sized & np.asarray(mean.is_valid())
        if rest.any():
            whole = whole_sum(np.asarray(mean.fill_null(0.0)), sizes)
            exact = rest & np.isfinite(whole)
            total = np.where(exact, np.nan_to_num(whole).astype(np.int64), total)
            valid = valid | exact
        steps, said = self.ints("steps")
        assert len(total) == n
        return total, valid & (~said | (steps == 1))


def whole_sum(average: npt.NDArray[np.float64], size: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the whole number that a printed average is of, NaN where that is not sure.

    The average is printed with two decimals, so batch size times average lies within half a hundredth of the batch size of the sum, which
    is a whole number: up to a batch of 99 there is one such number.

    Parameters
    ----------
    average : ndarray of float64
        As printed; NaN where not known.
    size : ndarray
        Sequences of the batch.
    """
    about = average * size
    whole = np.rint(about)
    with np.errstate(invalid="ignore"):
        return np.where((size < 100) & (np.abs(about - whole) <= 0.005 * size + 1e-9), whole, np.nan)


def ints_of(column: pa.Array) -> tuple[Ints, Bools]:
    """Return a column as 64-bit integers, 0 for null, and which of them are there."""
    n = len(column)
    if column.null_count == n:
        return np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if column.null_count == 0:
        return column.to_numpy().astype(np.int64, copy=False), np.ones(n, dtype=bool)
    return column.fill_null(0).to_numpy().astype(np.int64, copy=False), np.asarray(column.is_valid())
