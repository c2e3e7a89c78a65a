"""What the fields of a journal entry mean: whose line it is, what it says, whether it goes on in the next entry.

One reading of an entry for all its forms: systemd-python, the export text, and JSON. Values are bytes; a field that an entry has
more than once is a list of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from ddtree_metrics.sources import Selection

Value = bytes | list[bytes]
Entry = Mapping[str, Value]

SUPPRESSED = b"a596d6fe7bfa4994828e72309e95d61e"
"""MESSAGE_ID of journald's notice that it dropped messages of a unit (SD_MESSAGE_JOURNAL_DROPPED)."""
TIME_CHANGE = "c7a787079b354eaaa9e77b371893cd27"
"""MESSAGE_ID of the notice that somebody set the clock (SD_MESSAGE_TIME_CHANGE)."""

WANTED = (
    "MESSAGE",
    "MESSAGE_ID",
    "N_DROPPED",
    "OBJECT_SYSTEMD_UNIT",
    "OBJECT_SYSTEMD_USER_UNIT",
    "SYSLOG_IDENTIFIER",
    "SYSLOG_PID",
    "PRIORITY",
    "UNIT",
    "USER_UNIT",
    "CONTAINER_NAME",
    "CONTAINER_ID",
    "CONTAINER_ID_FULL",
    "CONTAINER_PARTIAL_ID",
    "CONTAINER_PARTIAL_MESSAGE",
    "_BOOT_ID",
    "_HOSTNAME",
    "_LINE_BREAK",
    "_PID",
    "_STREAM_ID",
    "_SYSTEMD_UNIT",
    "_SYSTEMD_USER_UNIT",
)
"""The fields that are looked at; everything else of an entry may be left out when it is fetched."""

TIME_MAX = 253_402_300_800_000_000
"""Microseconds from 1970 to the year 10000: larger times are broken ones."""
BOOT_CLOCK_MAX = 1 << 55
"""Microseconds; libsystemd takes larger ones for no time either."""

UNIT_SUFFIXES = (
    ".service",
    ".scope",
    ".slice",
    ".socket",
    ".target",
    ".mount",
    ".automount",
    ".timer",
    ".path",
    ".device",
    ".swap",
)
"""The kinds of units; a name with another suffix is no unit's."""


class Context(NamedTuple):
    """What many entries have in common."""

    unit: str | None
    host: str | None
    stream: str | None
    pid: int | None
    boot: str | None


def first(entry: Entry, name: str) -> bytes | None:
    """Return a field's first value."""
    value = entry.get(name)
    if isinstance(value, list):
        return value[0] if value else None
    return value


def text(entry: Entry, name: str) -> str | None:
    """Return a field's first value as text; empty is ``None``."""
    value = first(entry, name)
    return value.decode("utf-8", "replace") if value else None


def place_of(cursor: str | None) -> str:
    """Return where an entry stands: its cursor, of which sequence and number are enough for ``journalctl --cursor``.

    The rest of it (boot, clocks, a hash) is in other columns, or in none that anybody asks for.
    """
    return f"journal:{(cursor or '').partition(';b=')[0]}"


def number(value: bytes | str | None, below: int = 2**31) -> int | None:
    """Read a plain decimal number; ``None`` if it is none, or too large."""
    if not value or len(value) > 20:
        return None
    try:
        made = int(value)
    except ValueError:
        return None
    return made if 0 <= made < below else None


def unit_name(name: str) -> str:
    """Complete a unit's name as systemctl does: without a suffix it is a service."""
    return name if name.endswith(UNIT_SUFFIXES) or any(c in name for c in "*?[") else f"{name}.service"


def looks_like_unit(name: str) -> bool:
    """Say whether a word ends as the name of a unit does."""
    return name.endswith(UNIT_SUFFIXES)


# Old releases name the control group instead of the unit: /system.slice/sglang.service
_NOTICE = re.compile(r"Suppressed [0-9]{1,18} messages? from (\S+)\s*")
_JOURNALD = re.compile(r"systemd-journald?(?:@[^.]*)?(?:\.service)?|journal")


def lost_unit(message: str) -> str | None:
    """Return the unit that a notice of journald names (``Suppressed 740 messages from sglang.service``); ``None`` if it is none."""
    match = _NOTICE.fullmatch(message)
    return match[1].rpartition("/")[2] or match[1] if match else None


def is_journald(name: str | None) -> bool:
    """Say whether an identifier or a unit is journald's own."""
    return name is not None and _JOURNALD.fullmatch(name) is not None


def _lost(entry: Entry) -> str | None:
    message = first(entry, "MESSAGE")
    return lost_unit(message.decode("utf-8", "replace")) if message is not None and message.startswith(b"Suppressed ") else None


def is_suppressed(entry: Entry) -> bool:
    """Say whether an entry is journald's notice that lines were dropped.

    Its MESSAGE_ID tells it, or N_DROPPED with the unit. Where fields were left out when the journal was saved, N_DROPPED alone or the
    words of the message do, unless another program is said to have written it.
    """
    if "MESSAGE_ID" not in entry and "N_DROPPED" not in entry:
        message = entry.get("MESSAGE")
        if not isinstance(message, bytes) or not message.startswith(b"Suppressed "):
            return False
    if first(entry, "MESSAGE_ID") == SUPPRESSED or ("N_DROPPED" in entry and "OBJECT_SYSTEMD_UNIT" in entry):
        return True
    if "MESSAGE_ID" in entry or not ("N_DROPPED" in entry or _lost(entry)):
        return False
    others = ("_STREAM_ID", "CONTAINER_NAME", "_SYSTEMD_USER_UNIT")
    writers = (text(entry, "SYSLOG_IDENTIFIER"), text(entry, "_SYSTEMD_UNIT"))
    return not any(name in entry for name in others) and all(is_journald(w) for w in writers if w is not None)


def unit_of(entry: Entry) -> str | None:
    """Say whose line it is, the most specific first: container, user unit, unit.

    A notice of suppressed lines belongs to the unit that lost them, and what PID 1 says of a unit to that unit. For a notice that
    names no unit the answer is ``None``: any unit may have lost the lines.
    """
    if is_suppressed(entry):
        return text(entry, "OBJECT_SYSTEMD_USER_UNIT") or text(entry, "OBJECT_SYSTEMD_UNIT") or text(entry, "UNIT") or _lost(entry)
    own = text(entry, "_SYSTEMD_UNIT")
    if own in (None, "init.scope"):
        own = text(entry, "UNIT") or own
    return text(entry, "CONTAINER_NAME") or text(entry, "_SYSTEMD_USER_UNIT") or own or text(entry, "USER_UNIT")


def context(entry: Entry, boot: str | None = None) -> Context:
    """Return what an entry says of its writer."""
    pid = number(first(entry, "_PID")) if "_PID" in entry else number(first(entry, "SYSLOG_PID"))
    return Context(unit_of(entry), text(entry, "_HOSTNAME"), text(entry, "_STREAM_ID"), pid, boot or text(entry, "_BOOT_ID"))


def message(entry: Entry) -> bytes | None:
    """Return what an entry says; ``None`` if it has no MESSAGE. Several MESSAGE fields become several lines."""
    value = entry.get("MESSAGE")
    if isinstance(value, list):
        return b"\n".join(value)
    if value is None and is_suppressed(entry):
        lost = number(first(entry, "N_DROPPED"), 2**63)
        if lost is not None:
            return f"Suppressed {lost} messages from {unit_of(entry) or 'an unknown unit'}".encode()
    return value


def piece_key(entry: Entry) -> tuple[bytes | None, ...]:
    """Name the stream whose pieces an entry belongs to; pieces of different streams are never joined."""
    stream = first(entry, "_STREAM_ID")
    if stream is not None:
        return (stream,)
    container = first(entry, "CONTAINER_ID_FULL") or first(entry, "CONTAINER_ID") or first(entry, "CONTAINER_NAME")
    return (container, first(entry, "PRIORITY"), first(entry, "_BOOT_ID"), None if container else first(entry, "_PID"))


def goes_on(entry: Entry) -> bool:
    """Say whether the line goes on in the stream's next entry: cut at LineMax by journald, at 16 KiB by a container engine.

    ``_LINE_BREAK=nul``, ``eof`` and ``pid-change`` end a line that is whole. A line that is exactly as long as some pieces has no
    last piece that says so (tried with systemd 252); only `begins_anew` may tell that the next entry is another line.
    """
    if "_LINE_BREAK" in entry:
        return first(entry, "_LINE_BREAK") == b"line-max"
    return "CONTAINER_PARTIAL_MESSAGE" in entry and first(entry, "CONTAINER_PARTIAL_MESSAGE") == b"true"


# A server's stamp at the head of a line, perhaps coloured: [2026-05-05 12:00:01
_STAMPED = re.compile(rb"(?:\x1b\[[0-9;]{0,16}m){0,4}\[?20[0-9]{2}-[01][0-9]-[0-3][0-9][ T][0-2][0-9]:[0-5][0-9]:[0-5][0-9]")


def begins_anew(begun: bytes, entry: bytes) -> bool:
    """Say whether an entry begins another line, though the line before it was cut and no last piece has come.

    Only where the line that was cut began with a stamp, and this entry does, too: a line that is cut right before a stamp that it
    quotes is much rarer than one whose length is a multiple of LineMax.
    """
    return _STAMPED.match(entry) is not None and _STAMPED.match(begun) is not None


def matches(names: tuple[str, ...], value: str | None) -> bool:
    """Say whether a value is one of some names, or fits one that is a pattern."""
    return value is not None and any(value == n or fnmatchcase(value, n) for n in names)


def wanted_names(selection: Selection) -> list[str]:
    """Return the names that a selection asks for, those of units complete."""
    units = [unit_name(name) for name in (*selection.units, *selection.user_units)]
    return [*units, *selection.identifiers, *selection.containers]
