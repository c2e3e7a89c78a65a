"""The words for an instant, and local stamps made UTC: ``1h``, ``yesterday``, ``2026-10-25 02:59:58`` in Europe/Berlin.

Instants are whole microseconds since 1970 (UTC) everywhere in this library. ``parse_instant`` reads what people type after
``--since``; ``Localizer`` turns a log's local stamps into UTC, by the thousand, through the two nights a year that make it hard.
"""

from __future__ import annotations

import difflib
import re
import time as _time
import zoneinfo
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, NamedTuple

from ddtree_metrics.errors import TimeError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UTC = timezone.utc
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_NEVER = 1 << 62

ACCEPTED = (
    "accepted are a span before now (1h, 2h30m, 90min, 2d), now, today, yesterday, 2026-05-05, 2026-05-05 14:05:00 "
    "(with Z, +02:00 or a zone such as Europe/Berlin behind it), 14:05, and @1767225600"
)

# Months and years have systemd's lengths (30.4375 and 365.25 days), so that a span means the same as in journalctl.
_UNITS: dict[str, int] = {}
for _names, _length in (
    ("us usec µs μs microsecond microseconds", 1),
    ("ms msec millisecond milliseconds", 1_000),
    ("s sec secs second seconds", _SECOND),
    ("m min mins minute minutes", 60 * _SECOND),
    ("h hr hrs hour hours", 3_600 * _SECOND),
    ("d day days", 86_400 * _SECOND),
    ("w week weeks", 7 * 86_400 * _SECOND),
    ("M month months", 2_629_800 * _SECOND),
    ("y year years", 31_557_600 * _SECOND),
):
    for _name in _names.split():
        _UNITS[_name] = _length

_PART = r"(?:[0-9]{1,15}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})\s*[A-Za-zµμ]+"
_SPAN = re.compile(rf"([+-]?)\s*({_PART}(?:\s*{_PART})*)(?:\s+(ago|left))?")
_PIECE = re.compile(r"([0-9.]+)\s*([A-Za-zµμ]+)")
_EPOCH = re.compile(r"@(-?[0-9]{1,15})(?:\.([0-9]{1,9}))?")
_COUNT = re.compile(r"[@+]?([0-9]{9,20})(?:\.[0-9]*)?")
_YEAR_2100 = 4_102_444_800
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_ISO = re.compile(
    r"(?:(?P<weekday>[A-Za-z]{3,9}),?\s+)?"
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2}|today|yesterday|tomorrow)?"
    r"(?:(?:(?<=[0-9])[Tt]|(?<=[0-9a-z])\s+|^)(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:[.,](?P<fraction>[0-9]{1,9}))?)?)?"
    r"(?:\s*(?P<offset>[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)|\s+(?P<zone>[A-Za-z][A-Za-z0-9_+/-]*))?"
)


class Window(NamedTuple):
    """A half-open stretch of time, ``since <= t < until``, in microseconds since 1970; ``None`` is an open end."""

    since_us: int | None = None
    until_us: int | None = None

    @property
    def bounds(self) -> tuple[int, int]:
        """Both ends as numbers, the open ones far away."""
        return -_NEVER if self.since_us is None else self.since_us, _NEVER if self.until_us is None else self.until_us

    def contains(self, time_us: Any) -> Any:
        """Say of an instant, or of each of an array of them, whether it lies in the window."""
        low, high = self.bounds
        return (low <= time_us) & (time_us < high)


ALWAYS = Window()


def get_zone(name: str) -> zoneinfo.ZoneInfo:
    """Return the time zone of that name.

    Parameters
    ----------
    name : str
        A name of the IANA database, ``Europe/Berlin`` or ``UTC``.

    Returns
    -------
    zoneinfo.ZoneInfo

    Raises
    ------
    TimeError
        If there is none; the message names those that are spelled alike.
    """
    try:
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        pass
    known = sorted(zoneinfo.available_timezones())
    if not known:
        raise TimeError(f"no time zone {name!r}: this machine has no time zone data; install tzdata (apt-get install tzdata, or pip)")
    whole = {k.lower(): k for k in known}
    last = {k.rpartition("/")[2].lower(): k for k in known}
    asked = name.strip().lower().replace(" ", "_")
    near = [whole[w] for w in difflib.get_close_matches(asked, whole, n=3, cutoff=0.75)]
    near += [last[w] for w in difflib.get_close_matches(asked, last, n=3, cutoff=0.75)]
    shifted = re.fullmatch(r"(?:utc|gmt)?([+-])0?([0-9]{1,2})(?::?00)?", asked)
    if shifted:
        near.insert(0, f"Etc/GMT{'-' if shifted[1] == '+' else '+'}{int(shifted[2])} (in these names the sign is turned round)")
    found = "; similar: " + ", ".join(dict.fromkeys(near)) if near else "; names look like Europe/Berlin or UTC"
    raise TimeError(f"no time zone {name!r}{found}")


def parse_instant(text: str | datetime, *, now_us: int, tz: zoneinfo.ZoneInfo | None = None) -> int:
    """Read an instant as people write it.

    A bare span lies before now: ``1h``, ``-1h``, ``1h ago``, ``2h30m``, ``-1h 30m``, ``1.5h``, ``90 min``, ``2d``; units are us, ms,
    s, m or min, h, d, w, M (months of 30.4375 days) and y (365.25 days). ``today`` and ``yesterday`` are midnights, and may have a
    time of day behind them. A date or a time of day is local time unless it ends in ``Z``, an offset or the name of a zone; a
    time of day without a date is today's. In the hour that happens twice the earlier instant is meant; a local time that a
    clock change leaves out is refused. A day begins with its first instant, also where midnight is left out.

    Parameters
    ----------
    text : str or datetime
        What was written. A datetime without a zone is local time.
    now_us : int
        The present instant, in microseconds since 1970.
    tz : zoneinfo.ZoneInfo, optional
        The zone of local times; without it, the machine's.

    Returns
    -------
    int
        Microseconds since 1970.

    Raises
    ------
    TimeError
        If it cannot be read, does not exist, lies in the future or before 1970.
    """
    if isinstance(text, datetime):
        if text.tzinfo is not None:
            return _bounded(str(text), (text - EPOCH) // _US, now_us)
        return _bounded(str(text), _from_local(text.replace(fold=0), tz, str(text)), now_us)
    asked = text.strip()
    if asked == "":
        raise TimeError(f"an empty text is no instant; {ACCEPTED}")
    if asked.lower() == "now":
        return now_us
    _refuse_finer_counts(asked, text)
    found = _EPOCH.fullmatch(asked)
    if found:
        part = int((found[2] or "").ljust(6, "0")[:6])
        return _bounded(asked, int(found[1]) * _SECOND + (-part if found[1].startswith("-") else part), now_us)
    if re.fullmatch(r"[+-]?[0-9.]+", asked):
        if len(asked.strip("+-").partition(".")[0]) >= 9:
            raise TimeError(f"{text!r} looks like seconds since 1970: write @{asked.lstrip('+')}")
        raise TimeError(f"{text!r} has no unit: write {asked}s, {asked}min or {asked}h; {ACCEPTED}")
    found = _SPAN.fullmatch(asked)
    if found:
        return _bounded(asked, now_us - _span(found, text), now_us)
    return _bounded(asked, _calendar(asked, text, now_us, tz), now_us)


def parse_iso(text: str) -> tuple[int, bool] | None:
    """Read an ISO 8601 stamp of a machine, ``2026-05-05T12:00:00.123+02:00``.

    Returns
    -------
    tuple of int and bool, or None
        Microseconds since 1970, of its own wall clock where it names no zone, and whether it names one; None if it is no stamp.
    """
    found = _ISO.fullmatch(text.strip())
    if not found or found["weekday"] or found["hour"] is None or not (found["date"] or "-")[0].isdigit():
        return None
    if found["zone"] and found["zone"].upper() != "UTC":
        return None
    try:
        offset = UTC if found["zone"] else _offset(found["offset"], text) if found["offset"] else None
        naive = _at(date.fromisoformat(found["date"]), found)
    except (ValueError, TimeError):
        return None
    return (naive.replace(tzinfo=offset or UTC) - EPOCH) // _US, offset is not None


def _at(day: date, found: re.Match[str]) -> datetime:
    """Return the time of day that was written, on a day."""
    part = int((found["fraction"] or "").ljust(6, "0")[:6])
    return datetime(day.year, day.month, day.day, int(found["hour"]), int(found["minute"]), int(found["second"] or 0), part)


def parse_window(
    since: str | datetime | None,
    until: str | datetime | None,
    *,
    now_us: int | None = None,
    tz: zoneinfo.ZoneInfo | None = None,
) -> Window:
    """Read both ends of a window; ``None`` is an open end.

    Parameters
    ----------
    since, until : str, datetime or None
        As for `parse_instant`; the window holds ``since <= t < until``.
    now_us : int, optional
        The present instant; without it, the machine's clock is asked, once for both ends.
    tz : zoneinfo.ZoneInfo, optional
        The zone of local times; without it, the machine's.

    Returns
    -------
    Window

    Raises
    ------
    TimeError
        If an end cannot be read or lies in the future, or if until is not after since.
    """
    now = _time.time_ns() // 1_000 if now_us is None else now_us
    since_us = None if since is None else parse_instant(since, now_us=now, tz=tz)
    until_us = None if until is None else parse_instant(until, now_us=now, tz=tz)
    if since_us is not None and until_us is not None and until_us <= since_us:
        how = "is the same instant as" if until_us == since_us else "lies before"
        raise TimeError(
            f"the window is empty: until {str(until)!r} ({format_us(until_us)}) {how} since {str(since)!r} ({format_us(since_us)}); "
            "exchange the two, or leave one out"
        )
    return Window(since_us, until_us)


def parse_window_of_log(
    since: str | datetime | None, until: str | datetime | None, *, last_us: int | None, tz: zoneinfo.ZoneInfo | None = None
) -> Window:
    """Read both ends of a window of a log; a span or a time of day without a date is meant from the log's end, which may be long ago.

    Parameters
    ----------
    since, until, tz
        As for `parse_window`.
    last_us : int or None
        The last instant of the log; where it is not known, the machine's clock is asked.
    """
    machine = _time.time_ns() // 1_000
    attempts = [machine] if last_us is None else [last_us + 1, (last_us // _DAY + 1) * _DAY - 1, machine]
    for now in attempts[:-1]:
        try:
            return parse_window(since, until, now_us=now, tz=tz)
        except TimeError:
            continue
    return parse_window(since, until, now_us=attempts[-1], tz=tz)


def format_us(us: int) -> str:
    """Write an instant as ISO 8601 in UTC, ``2026-01-01T12:00:00Z``, with a fraction where it has one."""
    try:
        moment = EPOCH + timedelta(microseconds=int(us))
    except OverflowError:
        return f"@{us // _SECOND}"
    return moment.replace(tzinfo=None).isoformat() + "Z"


def short_span(first: str, last: str) -> str:
    """Write the time between two instants (ISO 8601, UTC) for people: ``2026-11-29 15:17-15:20 UTC``."""
    digits = 16 if first[:16] != last[:16] else 19
    one, other = first[:digits].replace("T", " "), last[:digits].replace("T", " ")
    return f"{one}-{other[11:]} UTC" if one[:10] == other[:10] else f"{one} to {other} UTC"


def format_span(us: int) -> str:
    """Write a length of time in its two largest units: ``1h 30m``, ``2d 3h``, ``4.25s``, ``40ms``."""
    sign, us = ("-", -us) if us < 0 else ("", us)
    if us < 1_000:
        return f"{sign}{us}us" if us else "0s"
    if us < _SECOND:
        return f"{sign}{us / 1_000:.4g}ms"
    if us < 59_995_000:
        return f"{sign}{us / _SECOND:.4g}s"
    seconds = (us + _SECOND // 2) // _SECOND
    if seconds >= 3_600:
        seconds = (seconds + 30) // 60 * 60
    if seconds >= 86_400:
        seconds = (seconds + 1_800) // 3_600 * 3_600
    parts = ((seconds // 86_400, "d"), (seconds // 3_600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    return sign + " ".join(f"{n}{unit}" for n, unit in parts if n)


def _refuse_finer_counts(asked: str, text: str) -> None:
    """Refuse a count since 1970 that is too large for seconds, and say what it is in seconds."""
    found = _COUNT.fullmatch(asked)
    if not found or int(found[1]) < _YEAR_2100:
        return
    for unit, digits in (("milliseconds", 3), ("microseconds", 6), ("nanoseconds", 9)):
        whole, part = found[1][:-digits], found[1][-digits:][:6].rstrip("0")
        if 100_000_000 <= int(whole) < _YEAR_2100:
            raise TimeError(f"{text!r} looks like {unit} since 1970: write @{whole}{'.' if part else ''}{part}")
    raise TimeError(f"{text!r} is no count of seconds since 1970 before the year 2100; {ACCEPTED}")


def _bounded(asked: str, us: int, now_us: int) -> int:
    if us > now_us:
        raise TimeError(f"{asked!r} lies in the future ({format_us(us)}; it is {format_us(now_us)} now); a span such as 1h means 1h ago")
    if us < 0:
        raise TimeError(f"{asked!r} lies before 1970; leave the bound out to read from the beginning")
    return us


def _span(found: re.Match[str], text: str) -> int:
    """Return how far before now a span lies; negative in the future."""
    sign, parts, word = found.groups()
    if word and sign:
        raise TimeError(f"{text!r} has a sign and {word!r}; one of them is enough; {ACCEPTED}")
    length = 0
    for number, unit in _PIECE.findall(parts):
        of_one = _UNITS.get(unit) or _UNITS.get(unit.lower())
        if of_one is None:
            raise TimeError(f"{text!r}: no unit of time is called {unit!r}; {ACCEPTED}")
        try:
            length += int(Decimal(number) * of_one)
        except InvalidOperation:
            raise TimeError(f"{text!r}: {number!r} is no number; {ACCEPTED}") from None
    return -length if sign == "+" or word == "left" else length


def _calendar(asked: str, text: str, now_us: int, tz: zoneinfo.ZoneInfo | None) -> int:
    """Read a date, a time of day, or both."""
    found = _ISO.fullmatch(asked) or _ISO.fullmatch(asked.lower())
    if not found or (found["date"] is None and found["hour"] is None) or (found["offset"] and found["hour"] is None):
        raise TimeError(f"cannot read the instant {text!r}; {ACCEPTED}")
    zone: tzinfo | None = tz
    if found["zone"]:
        # Names are as the zone database spells them; what matched in lower case is looked up as it was written.
        zone = get_zone(asked[found.start("zone") :])
    elif found["offset"]:
        zone = _offset(found["offset"], text)
    today = _in_zone(now_us, zone).date()
    word = found["date"]
    try:
        if word in (None, "today"):
            day = today
        elif word in ("yesterday", "tomorrow"):
            day = today + timedelta(days=1 if word == "tomorrow" else -1)
        else:
            day = date.fromisoformat(word)
        naive = datetime(day.year, day.month, day.day) if found["hour"] is None else _at(day, found)
    except ValueError as error:
        raise TimeError(f"{text!r} does not exist in the calendar ({error}); {ACCEPTED}") from None
    weekday = found["weekday"]
    if weekday:
        named = [n for n, d in enumerate(_DAYS) if d.lower().startswith(weekday.lower())]
        if not named or word is None:
            raise TimeError(f"cannot read the instant {text!r}; {ACCEPTED}")
        if named[0] != day.weekday():
            raise TimeError(f"{text!r}: {day} is a {_DAYS[day.weekday()]}; leave the day's name out, or correct one of them")
    us = _from_local(naive, zone, text, first_of_day=found["hour"] is None)
    if word is None and us > now_us:
        raise TimeError(f"{text!r} is today's and lies in the future ({format_us(us)}); for the day before write 'yesterday {asked}'")
    return us


def _offset(text: str, whole: str) -> timezone:
    if text in "Zz":
        return UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 23 or minutes > 59:
        raise TimeError(f"{whole!r}: {text} is no offset from UTC; {ACCEPTED}")
    shift = timedelta(hours=hours, minutes=minutes)
    return timezone(-shift if text[0] == "-" else shift)


def _in_zone(us: int, zone: tzinfo | None) -> datetime:
    """Return the wall clock of a zone (``None``: the machine's) at an instant."""
    return (EPOCH + timedelta(microseconds=us)).astimezone(zone)


def _from_local(naive: datetime, zone: tzinfo | None, text: str, first_of_day: bool = False) -> int:
    """Turn a wall clock into an instant: the earlier of two; none is an error."""
    try:
        moment = (naive.astimezone() if zone is None else naive.replace(tzinfo=zone)).astimezone(UTC)
        back = moment.astimezone(zone).replace(tzinfo=None, fold=0)
    except (OverflowError, ValueError, OSError):
        raise TimeError(f"{text!r} is out of range; {ACCEPTED}") from None
    if back != naive and not first_of_day:
        where = str(zone) if zone is not None else "the local zone"
        raise TimeError(f"{text!r} does not exist in {where}: the clocks were set forward over it; the next instant is {back}")
    return (moment - EPOCH) // _US


@dataclass(slots=True)
class StampBefore:
    """The line before, as it was resolved: local, UTC, its repeated hour (-1: none), which pass, and whether that is sure."""

    local: int
    utc: int
    fold: int
    second: bool
    sure: bool


class Localizer:
    """Turn the local stamps of one log, in the order of its lines, into UTC.

    In the hour that happens twice, order decides: a stamp is the earliest of its two instants that lies not more than five
    minutes before the line above it. So ``02:59:59, 02:00:00`` are one second apart, while lines of several ranks that come a
    second out of order stay where they are. After a line of the second pass, a stamp whose first instant lies shortly before that line is
    one of these that come late, unless the next stamp has left the repeated hour: then the second pass has gone on after a pause, as that
    needs no clock to go back. A stamp keeps the flag ``ambiguous`` where its neighbours leave room for doubt: no line
    before it, or the reading that was taken leaves a hole of more than half the repeated stretch. Earlier lines of the same batch
    lose the flag when a clear turn follows them.

    A stamp that a clock change leaves out gets the flag ``nonexistent`` and is stored as if the clock had not been changed
    yet (with the offset before the gap), the reading of PEP 495; it is not moved to the end of the gap.

    Parameters
    ----------
    tz : zoneinfo.ZoneInfo or None
        The zone of the stamps. ``None``: unknown; stamps are passed through as if they were UTC, without flags.

    Notes
    -----
    One object a log: the last line of a batch is remembered for the next. Offsets come from the zone's rules, found by
    bisection once a year of stamps; the work is done by numpy, and only where a stamp jumps does Python look at it.
    """

    def __init__(self, tz: zoneinfo.ZoneInfo | None) -> None:
        self._tz = tz
        self.last: StampBefore | None = None
        self._years: dict[int, list[tuple[int, int, int]]] = {}
        self._steps: NDArray[np.int64] | None = None

    def feed(self, naive_us: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Resolve the next lines of the log.

        Parameters
        ----------
        naive_us : ndarray of int64, shape (n,)
            Local stamps in file order, as microseconds since 1970-01-01 00:00 of the same wall clock.

        Returns
        -------
        utc_us : ndarray of int64, shape (n,)
            Microseconds since 1970 in UTC (unchanged where the zone is unknown).
        flags : ndarray of object, shape (n,)
            ``None``, ``"ambiguous"`` or ``"nonexistent"``.
        """
        import numpy as np

        local = np.asarray(naive_us, dtype=np.int64)
        flags = np.full(len(local), None, dtype=object)
        if self._tz is None or not len(local):
            return local.copy(), flags
        steps = self._transitions(local)
        at, before, after = steps[:, 0], steps[:, 1], steps[:, 2]
        lows, highs = at + np.minimum(before, after), at + np.maximum(before, after)
        which = np.searchsorted(lows, local, side="right") - 1
        which = np.maximum(which, 0)  # the first entry begins a year before the first stamp, or is clipped
        inside = (local >= lows[which]) & (local < highs[which])
        utc = local - after[which]
        if inside.any():
            gap = inside & (after[which] > before[which])
            utc[gap] = local[gap] - before[which[gap]]
            flags[gap] = "nonexistent"
            fold = inside & ~gap
            if fold.any():
                self._resolve(local, utc, flags, np.where(fold, which, -1), steps)
        folded = inside[-1] and after[which[-1]] < before[which[-1]]
        if not folded:
            self.last = StampBefore(int(local[-1]), int(utc[-1]), -1, False, True)
        return utc, flags

    def _resolve(self, local: Any, utc: Any, flags: Any, folds: Any, steps: Any) -> None:
        """Decide which pass each ambiguous stamp belongs to; ``folds`` is -1 for all others."""
        import numpy as np

        index = np.flatnonzero(folds >= 0)
        width = (steps[:, 1] - steps[:, 2])[folds[index]]
        jump = np.diff(local, prepend=local[:1])[index]
        neighbour = np.concatenate(([-2], folds[:-1]))[index]
        looked_at = (neighbour != folds[index]) | (jump < -_slack(width)) | (jump > width // 2)
        starts = np.flatnonzero(looked_at)
        ends = np.append(starts[1:], len(index))
        run_since = 0  # where the present unbroken stretch of first-pass lines began
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            i = int(index[start])
            key = int(steps[folds[i], 0])
            last = self.last
            if i > 0 and neighbour[start] < 0:
                last = StampBefore(int(local[i - 1]), int(utc[i - 1]), -1, False, True)
            wide = int(width[start])
            first = int(local[i]) - int(steps[folds[i], 1])
            slack = int(_slack(wide))
            second, sure, near, turned = False, False, False, False
            if last is not None and first + wide >= last.utc - slack:
                second = first < last.utc - slack
                if not second and last.second and last.fold == key and first < last.utc:
                    second = _goes_on(local, utc, folds, steps, int(index[end - 1]), slack)
                near = abs(first + wide * second - last.utc) <= wide // 2
                turned = second and last.fold == key and not last.second
                sure = near and (turned or last.sure)
            if turned and sure:
                flags[index[run_since:start]] = None
            if not (near and last is not None and last.fold == key and last.second == second):
                run_since = start
            part = index[start:end]
            utc[part] = local[part] - int(steps[folds[i], 2 if second else 1])
            if not sure:
                flags[part] = "ambiguous"
            j = int(part[-1])
            self.last = StampBefore(int(local[j]), int(utc[j]), key, second, sure)

    def _transitions(self, local: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (instant, offset before, offset after), all in us, for all years that were met so far."""
        import numpy as np

        met = np.unique(local.astype("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970)
        new = [y for y in np.clip(met, 2, 9998).tolist() if y not in self._years]
        if new or self._steps is None:
            for year in new:
                self._years[year] = self._year(year)
            rows = sorted({row for rows in self._years.values() for row in rows})
            self._steps = np.array(rows, dtype=np.int64)
        return self._steps

    def _offset_at(self, second: int) -> int:
        shift = (EPOCH + timedelta(seconds=second)).astimezone(self._tz).utcoffset()
        return 0 if shift is None else shift // _US

    def _year(self, year: int) -> list[tuple[int, int, int]]:
        """Find the changes of offset in a year, seventeen days more on both sides, by bisection between days."""
        start = int((datetime(year, 1, 1, tzinfo=UTC) - EPOCH).total_seconds()) - 17 * 86_400
        left, before = start, self._offset_at(start)
        rows = [(start * _SECOND, before, before)]  # no change: what holds at the beginning
        for day in range(1, 401):
            right = start + day * 86_400
            after = self._offset_at(right)
            if after != before:
                low, high = left, right
                while high - low > 1:
                    middle = (low + high) // 2
                    if self._offset_at(middle) == before:
                        low = middle
                    else:
                        high = middle
                rows.append((high * _SECOND, before, after))
            left, before = right, after
        return rows


def _goes_on(local: Any, utc: Any, folds: Any, steps: Any, at: int, slack: int) -> bool:
    """Say whether the line after a repeated one comes after its second instant, too, so that it may be meant."""
    following = at + 1
    if following >= len(local):
        return False
    fold = folds[at]
    next_us = int(utc[following]) if folds[following] < 0 else int(local[following]) - int(steps[folds[following], 2])
    return next_us >= int(local[at]) - int(steps[fold, 2]) - slack


def _slack(width: Any) -> Any:
    """How far out of order lines may be: five minutes, or a quarter of a short repeated stretch."""
    import numpy as np

    return np.minimum(300 * _SECOND, width // 4)
