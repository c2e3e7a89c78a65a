"""Whether a server speculates, stretch by stretch: a server prints ``accept len`` on every Decode line, or on none."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.frames import Floats, Ints

FEWEST = 3
"""So many Decode lines in a row without ``accept len`` are a server without speculation; fewer are lines that were cut."""

OFF = ("", "none", "null", "false")
"""How a server start says that there is no algorithm."""


def speculative(decode: pd.DataFrame, servers: pd.DataFrame | None = None) -> Floats:
    """Say of each Decode line whether its server speculates: 1, 0, or NaN where it cannot be told.

    Parameters
    ----------
    decode : pandas.DataFrame
        Decode lines in the order in which they were logged.
    servers : pandas.DataFrame, optional
        Server starts: one without an algorithm says that the lines after it are of a server without speculation; one with an algorithm
        (of an old release) that lines without ``accept len`` say nothing.

    Returns
    -------
    ndarray of float64
        In a stream where all lines lack ``accept len``, or ``FEWEST`` in a row do, these are 0. A single line that lacks it among others
        that have it is NaN.
    """
    accept = cols.numeric(decode, "accept_len")
    made = np.where(np.isfinite(accept), 1.0, np.nan)
    lacking = np.isnan(made) & np.isfinite(cols.numeric(decode, "gen_throughput"))
    if not lacking.any():
        return made
    anywhere = np.isfinite(accept).any()
    streams = cols.stream_codes(decode)
    told = _told(decode, servers)
    order = np.argsort(streams, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(streams[order])) + 1):
        mine = lacking[rows]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], mine, [False]]).astype(np.int8)))
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            if end - begin >= FEWEST or not anywhere:
                made[rows[begin:end]] = 0.0
    made[lacking & (told == 0.0)] = 0.0
    made[lacking & (told == 1.0)] = np.nan
    return made


def _told(decode: pd.DataFrame, servers: pd.DataFrame | None) -> Floats:
    """Return what the server start before each line says: 1 with an algorithm, 0 without, NaN where nothing is said."""
    made = np.full(len(decode), np.nan)
    if servers is None or not len(servers) or not (cols.has(servers, "algorithm") or cols.has(servers, "args")):
        return made
    says = np.array([_says(a, args) for a, args in zip(cols.text(servers, "algorithm"), _maps(servers), strict=True)])
    starts, at = cols.time_us(servers), cols.time_us(decode)
    units, own = cols.text(servers, "unit"), cols.text(decode, "unit")
    for unit in set(own.tolist()):
        mine = np.flatnonzero(np.isfinite(starts) & np.isfinite(says) & np.array([u is None or unit is None or u == unit for u in units]))
        if not len(mine):
            continue
        mine = mine[np.argsort(starts[mine], kind="stable")]
        rows = np.flatnonzero(own == unit)
        place: Ints = np.searchsorted(starts[mine], at[rows], side="right") - 1
        made[rows] = np.where(place >= 0, says[mine[np.maximum(place, 0)]], np.nan)
    return made


def _maps(servers: pd.DataFrame) -> list[object]:
    return list(servers["args"]) if "args" in servers.columns else [None] * len(servers)


def _says(algorithm: object, args: object) -> float:
    """Read one server start: 1 with an algorithm, 0 without one, NaN where it does not say."""
    if algorithm is None and args is not None:
        try:
            pairs = {str(k): v for k, v in dict(args).items()}  # type: ignore[call-overload]
        except (TypeError, ValueError):
            return np.nan
        if "speculative_algorithm" not in pairs:
            return np.nan
        algorithm = pairs["speculative_algorithm"]
        return 0.0 if algorithm is None or str(algorithm).lower() in OFF else 1.0
    if algorithm is None:
        return np.nan
    return 0.0 if str(algorithm).lower() in OFF else 1.0


__all__ = ["FEWEST", "OFF", "speculative"]
