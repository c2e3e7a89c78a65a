"""How the metrics read a column: from any frame, of any dtype, or missing, as plain NumPy.

A frame may come from a log (Arrow-backed columns, nullable integers) or be made by hand (Python lists, NaN for null).
What is not there reads as null; nothing in this module raises on odd values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddtree_metrics.tables import flat_lists

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def numeric(frame: pd.DataFrame, name: str) -> Floats:
    """Read a column as float64, null as NaN; a missing column is all NaN.

    Parameters
    ----------
    frame : pandas.DataFrame
        Any frame.
    name : str
        The column.

    Returns
    -------
    ndarray of float64
        One value a row. Infinite values stay; text that is no number is NaN.
    """
    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    series = frame[name]
    if series.dtype == object:
        series = pd.to_numeric(series, errors="coerce")
    try:
        return np.asarray(series.to_numpy(dtype="float64", na_value=np.nan))
    except (TypeError, ValueError):
        return np.asarray(pd.to_numeric(series.astype(object), errors="coerce").to_numpy(dtype="float64", na_value=np.nan))


def finite(values: Floats) -> Floats:
    """Return a copy in which infinite values are NaN."""
    return np.where(np.isfinite(values), values, np.nan)


def has(frame: pd.DataFrame, name: str) -> bool:
    """Tell whether a column is there and holds anything but nulls."""
    return name in frame.columns and bool(frame[name].notna().any())


def text(frame: pd.DataFrame, name: str) -> NDArray[Any]:
    """Read a column as an object array of str or None; a missing column is all None.

    Equal strings of an Arrow column are one object: a million rows of one name take eight bytes each.
    """
    if name not in frame.columns:
        return np.full(len(frame), None, dtype=object)
    if isinstance(frame[name].dtype, pd.StringDtype | pd.CategoricalDtype):
        part, distinct = pd.factorize(frame[name], use_na_sentinel=True)
        return np.array([*distinct, None], dtype=object)[part]
    values = frame[name].astype(object).to_numpy(dtype=object, copy=True)
    values[np.asarray(frame[name].isna())] = None
    return values


def time_us(frame: pd.DataFrame) -> Floats:
    """Read when each row was logged, in microseconds since 1970 (exact in float64 until the year 2255).

    ``time_us`` is taken where it is there, else ``time``.
    """
    made = numeric(frame, "time_us")
    if "time" in frame.columns and np.isnan(made).any():
        made = np.where(np.isnan(made), instants(frame["time"]), made)
    return made


def instants(series: pd.Series[Any]) -> Floats:
    """Read a column of instants as microseconds since 1970; NaN where there is none."""
    if not isinstance(series.dtype, (np.dtype, pd.DatetimeTZDtype)) or series.dtype == object:
        series = pd.to_datetime(series.astype(object), utc=True, errors="coerce")
    elif not pd.api.types.is_datetime64_any_dtype(series.dtype):
        if pd.api.types.is_numeric_dtype(series.dtype):
            return np.asarray(series.to_numpy(dtype="float64", na_value=np.nan))
        series = pd.to_datetime(series, utc=True, errors="coerce")
    if getattr(series.dt, "tz", None) is not None:
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    values = series.to_numpy().astype("datetime64[us]")
    made = values.astype(np.int64).astype(np.float64)
    made[np.isnat(values)] = np.nan
    return np.asarray(made)


def codes(frame: pd.DataFrame, names: tuple[str, ...]) -> Ints:
    """Give a number to each distinct combination of some columns, from 0; nulls are a value like any other."""
    made = np.zeros(len(frame), dtype=np.int64)
    for name in names:
        if name not in frame.columns:
            continue
        part, distinct = pd.factorize(frame[name], use_na_sentinel=True)
        made = made * (len(distinct) + 1) + (np.asarray(part, dtype=np.int64) + 1)
        made = np.asarray(np.unique(made, return_inverse=True)[1], dtype=np.int64).reshape(-1)
    return made


def stream_codes(frame: pd.DataFrame) -> Ints:
    """Give each stream a number: the ``stream`` column, or host, boot, process and DP rank where it is not there."""
    if has(frame, "stream"):
        return codes(frame, ("stream",))
    return codes(frame, ("host", "boot_id", "pid", "dp_rank"))


def lists(frame: pd.DataFrame, name: str) -> tuple[Floats, Ints, Bools]:
    """Read a column of lists as flat values and offsets.

    Parameters
    ----------
    frame : pandas.DataFrame
        Any frame; the column may hold Arrow lists, Python lists, tuples, arrays, bare numbers or nulls.
    name : str
        The column.

    Returns
    -------
    values : ndarray of float64
        All elements, null as NaN.
    offsets : ndarray of int64
        Row ``i`` owns ``values[offsets[i]:offsets[i + 1]]``.
    valid : ndarray of bool
        Whether the row has a list at all.
    """
    rows = len(frame)
    if name not in frame.columns:
        return np.empty(0), np.zeros(rows + 1, dtype=np.int64), np.zeros(rows, dtype=bool)
    series = frame[name]
    if isinstance(series.dtype, pd.ArrowDtype):
        values, offsets, valid = flat_lists(series)
        return values.astype(np.float64, copy=False), offsets, valid
    flat: list[float] = []
    lengths_list: list[int] = []
    valid_list: list[bool] = []
    for cell in series.astype(object):
        items = _items(cell)
        valid_list.append(items is not None)
        lengths_list.append(len(items or ()))
        flat.extend(items or ())
    offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths_list, dtype=np.int64))]).astype(np.int64)
    return np.asarray(flat, dtype=np.float64), offsets, np.asarray(valid_list, dtype=bool)


def _items(cell: Any) -> list[float] | None:
    """Return the numbers of one list cell, or None where it is null."""
    if cell is None or cell is pd.NA or isinstance(cell, float):
        return [cell] if isinstance(cell, float) and not np.isnan(cell) else None
    if isinstance(cell, (int, np.integer)):
        return [float(cell)]
    if isinstance(cell, str):
        return None
    try:
        return [float("nan") if x is None or x is pd.NA else float(x) for x in cell]
    except (TypeError, ValueError):
        return None


def row_sums(values: Floats, offsets: Ints, valid: Bools) -> Floats:
    """Sum each row's list; NaN where there is no list, or an element of it is null."""
    total = np.concatenate([[0.0], np.cumsum(np.nan_to_num(values))])
    nulls = np.concatenate([[0], np.cumsum(np.isnan(values))])
    made = total[offsets[1:]] - total[offsets[:-1]]
    broken = (nulls[offsets[1:]] - nulls[offsets[:-1]]) > 0
    return np.where(valid & ~broken & (np.diff(offsets) > 0), made, np.nan)


def step_ms(frame: pd.DataFrame) -> Floats:
    """Read the step time of each row in ms: ``step_time_ms`` where it is there, else ``step_us``.

    Zero, negative and infinite times are null: a clock that stands still or runs backwards measures nothing.
    """
    made = numeric(frame, "step_time_ms") if "step_time_ms" in frame.columns else numeric(frame, "step_us") / 1000.0
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(made) & (made > 0), made, np.nan)


def row_steps(frame: pd.DataFrame) -> Floats:
    """Read how many steps of a request each row stands for: ``row_steps`` where it is there, else 1."""
    made = finite(numeric(frame, "row_steps")) if has(frame, "row_steps") else np.ones(len(frame))
    return np.where(made > 0, made, 1.0)


def step_codes(frame: pd.DataFrame) -> Ints:
    """Give each step of a frame a number; a step may have several rows, one a request of the batch.

    By the place of the step's line where that is known, else by stream and time, else each row is its own step.
    """
    if has(frame, "where"):
        made = codes(frame, ("stream", "where"))
        null = np.asarray(frame["where"].isna())
    elif "time_us" in frame.columns or "time" in frame.columns:
        stamps = time_us(frame)
        null = np.isnan(stamps)
        part = np.unique(np.where(null, -1.0, stamps), return_inverse=True)[1]
        streams = stream_codes(frame)
        made = np.asarray(np.unique(part.astype(np.int64) * (int(streams.max(initial=0)) + 1) + streams, return_inverse=True)[1])
        if not has(frame, "slot") and not has(frame, "batch_size"):
            return np.arange(len(frame), dtype=np.int64)
    else:
        return np.arange(len(frame), dtype=np.int64)
    made = made.astype(np.int64)
    if null.any():
        made = made.copy()
        made[null] = int(made.max(initial=0)) + 1 + np.arange(int(null.sum()))
    return made
