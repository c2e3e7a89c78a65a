"""Stamps of collectors, parsed by the column.

The callers' patterns guarantee where the digits stand; here they become numbers, and what is no date is told apart.
"""

from __future__ import annotations

import functools
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MONTHS = {m: i + 1 for i, m in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"])}
_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
SECOND = 1_000_000


def leap(year: Ints) -> Bools:
    """Say which years are leap years."""
    return (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))


def valid_date(year: Ints, month: Ints, day: Ints) -> Bools:
    """Say which dates exist and are not before 1970."""
    month_ok = (month >= 1) & (month <= 12)
    last = _DAYS[np.where(month_ok, month, 0)] + ((month == 2) & leap(year))
    return month_ok & (day >= 1) & (day <= last) & (year >= 1970)


def days_from_civil(year: Ints, month: Ints, day: Ints) -> Ints:
    """Count the days from 1970-01-01 to dates of the Gregorian calendar.

    Notes
    -----
    The year is taken to begin in March, so that the leap day is its last; then the lengths of the months follow one line
    (H. Hinnant, "chrono-compatible low-level date algorithms").
    """
    y = year - (month <= 2)
    era = y // 400
    yoe = y - era * 400
    doy = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + yoe * 365 + yoe // 4 - yoe // 100 + doy - 719_468


def digits(texts: pa.Array, width: int) -> NDArray[np.int64]:
    """Return the characters of texts that are all ``width`` bytes long, as an (n, width) matrix of digit values."""
    offset = int(np.frombuffer(texts.buffers()[1], np.int32)[texts.offset]) if len(texts) else 0
    data = np.frombuffer(texts.buffers()[2], np.uint8)[offset : offset + len(texts) * width] if len(texts) else np.empty(0, np.uint8)
    return data.reshape(len(texts), width).astype(np.int64) - 48


def _number(matrix: NDArray[np.int64], *at: int) -> Ints:
    total = np.zeros(len(matrix), dtype=np.int64)
    for column in at:
        total = total * 10 + matrix[:, column]
    return total


def clock_us(matrix: NDArray[np.int64], at: int) -> tuple[Ints, Bools]:
    """Read ``HH:MM:SS`` that begins in column ``at``: microseconds of the day, and which are times at all."""
    hour, minute, second = (_number(matrix, at + i, at + i + 1) for i in (0, 3, 6))
    return (hour * 3600 + minute * 60 + second) * SECOND, (hour < 24) & (minute < 60) & (second < 61)


def date_clock_us(texts: pa.Array) -> tuple[Ints, Bools]:
    """Read ``YYYY-MM-DD?HH:MM:SS`` (19 bytes each): microseconds since 1970 of the same wall clock, and which are dates."""
    matrix = digits(texts, 19)
    year, month, day = _number(matrix, 0, 1, 2, 3), _number(matrix, 5, 6), _number(matrix, 8, 9)
    clock, ok = clock_us(matrix, 11)
    ok &= valid_date(year, month, day)
    return np.where(ok, days_from_civil(year, month, day) * 86_400 * SECOND + clock, 0), ok


def fraction_us(texts: pa.Array) -> tuple[Ints, NDArray[np.int32]]:
    """Read the digits after the decimal point: microseconds, and the resolution in microseconds (10**6 where there are none)."""
    places = np.asarray(pc.fill_null(pc.binary_length(texts), 0)).astype(np.int64)
    padded = pc.utf8_slice_codeunits(pc.utf8_rpad(pc.fill_null(texts, ""), 6, "0"), 0, 6)
    return np.asarray(padded.cast(pa.int64())), (10 ** np.maximum(6 - places, 0)).astype(np.int32)


@functools.lru_cache(maxsize=256)
def _zone_us(text: str) -> int | None:
    if text in ("Z", "z", "UTC", "GMT"):
        return 0
    match = re.fullmatch(r"([+-])(\d\d):?(\d\d)?", text, re.ASCII)
    if match is None:
        return None
    return (1 if match[1] == "+" else -1) * (int(match[2]) * 3600 + int(match[3] or 0) * 60) * SECOND


def zone_us(texts: pa.Array) -> tuple[Ints, Bools]:
    """Read zone words (``Z``, ``+01:00``, ``UTC``): the offset in microseconds, and which say one."""
    words = pc.fill_null(texts, "").dictionary_encode()
    known = [_zone_us(w) for w in words.dictionary.to_pylist()]
    codes = np.asarray(words.indices)
    if not known:
        return np.zeros(len(codes), np.int64), np.zeros(len(codes), bool)
    return np.array([k or 0 for k in known], np.int64)[codes], np.array([k is not None for k in known], bool)[codes]


_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(Z|z|[+-]\d\d:?\d\d)$", re.ASCII)


@functools.lru_cache(maxsize=4096)
def _day(text: str) -> int | None:
    year, month, day = (np.array([int(p)], np.int64) for p in text.split("-"))
    return int(days_from_civil(year, month, day)[0]) if valid_date(year, month, day)[0] else None


def rfc3339_us(text: str) -> tuple[int, int] | None:
    """Read one RFC 3339 stamp: microseconds since 1970 and its resolution in microseconds; ``None`` if it is none."""
    match = _RFC3339.match(text)
    if match is None:
        return None
    day = _day(match[1])
    hour, minute, second = int(match[2]), int(match[3]), int(match[4])
    if day is None or hour > 23 or minute > 59 or second > 60:
        return None
    fraction = match[5] or ""
    micros = int((fraction + "000000")[:6])
    offset = _zone_us(match[6]) or 0
    return (day * 86_400 + hour * 3600 + minute * 60 + second) * SECOND + micros - offset, 10 ** max(6 - len(fraction), 0)


def years_for(month: Ints, day: Ints, in_day_us: Ints, anchors_us: Ints) -> tuple[Ints, Bools]:
    """Give dates without a year the year that brings them nearest to an anchor.

    Returns
    -------
    naive_us : ndarray of int64
        Microseconds since 1970 of the same wall clock.
    found : ndarray of bool
        False where no year has such a date near the anchor.
    """
    year = np.asarray(anchors_us, "datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970
    best = np.zeros(len(month), np.int64)
    off = np.full(len(month), np.iinfo(np.int64).max)
    for step in (0, -1, 1):
        ok = valid_date(year + step, month, day)
        at = days_from_civil(year + step, month, day) * 86_400 * SECOND + in_day_us
        nearer = ok & (np.abs(at - anchors_us) < off)
        best[nearer] = at[nearer]
        off[nearer] = np.abs(at - anchors_us)[nearer]
    return best, off < np.iinfo(np.int64).max


def latest_years(month: Ints, day: Ints, in_day_us: Ints, not_after_us: int) -> tuple[Ints, Bools]:
    """Give dates without a year the latest year that does not put them after an instant (same wall clock)."""
    last = int(np.datetime64(not_after_us, "us").astype("datetime64[Y]").astype(np.int64)) + 1970
    best, found = np.zeros(len(month), np.int64), np.zeros(len(month), bool)
    for back in range(9):  # 1896 to 1904 had no leap day for eight years: nine years always hold each date
        year = np.full(len(month), last - back, np.int64)
        at = days_from_civil(year, month, day) * 86_400 * SECOND + in_day_us
        take = ~found & valid_date(year, month, day) & (at <= not_after_us)
        best[take] = at[take]
        found |= take
    return best, found
