"""Stamps of frames that leave something out: the year, the zone."""

from __future__ import annotations

from datetime import tzinfo
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics import times
from ddtree_metrics.sources import patterns as p
from ddtree_metrics.sources import stamp_columns
from ddtree_metrics.sources.text_block import FLAGS, FRAME, LOCAL, NO_YEAR, YEAR_GUESSED, LineBlock

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

DAY = 86_400 * stamp_columns.SECOND
SLACK = 14 * 3600 * stamp_columns.SECOND
"""No zone is further from UTC than this."""


class StampCompleter:
    """Complete the stamps of one source, in the order of its lines.

    Parameters
    ----------
    tz : tzinfo or None
        The zone of stamps that name none; without it they stay local times.
    now_us : int
        An instant after which nothing was logged.
    """

    def __init__(self, tz: tzinfo | None, now_us: int) -> None:
        self._tz = tz
        self._localizer = times.Localizer(cast("ZoneInfo", tz)) if tz is not None else None
        self._limit = now_us + SLACK
        self._anchor: int | None = None
        self.guessed = 0

    def resolve(self, rows: LineBlock) -> None:
        """Give stamps their year, and turn local times into UTC where the zone is known."""
        if (rows.kind == NO_YEAR).any():
            self._years(rows)
        local = np.flatnonzero(rows.kind == LOCAL)
        if self._localizer is not None and len(local):
            utc, flags = self._localizer.feed(rows.time[local])
            rows.time[local] = utc
            rows.kind[local] = FRAME
            for i in np.flatnonzero(flags != None).tolist():  # noqa: E711 - an array of objects
                rows.flag[local[i]] = FLAGS.index(flags[i])

    def _years(self, rows: LineBlock) -> None:
        """Take the year from the server's own stamp in the line, from a line above, or guess it."""
        at = np.flatnonzero(rows.kind == NO_YEAR)
        dates = rows.time[at].astype("datetime64[us]")
        month = dates.astype("datetime64[M]").astype(np.int64) % 12 + 1
        day = (dates.astype("datetime64[D]") - dates.astype("datetime64[M]").astype("datetime64[D]")).astype(np.int64) + 1
        in_day = rows.time[at] % DAY
        anchors = self._anchors(rows.message.take(pa.array(at)))
        near, found = stamp_columns.years_for(month, day, in_day, anchors)
        own = found & (anchors != 0) & (np.abs(near - anchors) <= 2 * DAY)
        # Lines without a stamp of their own follow the nearest line above that has one; those before the first one, that one.
        index = np.where(own, np.arange(len(at)), -1)
        above = np.maximum.accumulate(index)
        carried = np.where(above >= 0, near[np.maximum(above, 0)], 0 if self._anchor is None else self._anchor)
        if self._anchor is None and own.any():
            carried = np.where(above >= 0, carried, near[int(np.argmax(own))])
        follow, followed = stamp_columns.years_for(month, day, in_day, carried)
        followed &= carried != 0
        latest, some = stamp_columns.latest_years(month, day, in_day, self._limit)
        naive = np.where(own, near, np.where(followed, follow, latest))
        guessed = ~own & ~followed
        rows.time[at] = naive
        rows.kind[at] = LOCAL
        rows.flag[at[guessed]] = YEAR_GUESSED
        rows.kind[at[guessed & ~some]] = 0
        self.guessed += int(guessed.sum())
        if own.any():
            self._anchor = int(near[np.flatnonzero(own)[-1]])

    def _anchors(self, texts: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Read the server's stamps at the head of messages; 0 where there is none."""
        made = np.zeros(len(texts), np.int64)
        stamp = pc.struct_field(pc.extract_regex(texts, p.SERVER_STAMP), "stamp")
        there = np.flatnonzero(np.asarray(stamp.is_valid()))
        if len(there):
            naive, ok = stamp_columns.date_clock_us(stamp.take(pa.array(there)))
            made[there[ok]] = naive[ok]
        return made
