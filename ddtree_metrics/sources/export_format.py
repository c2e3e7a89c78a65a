"""The journal export format: ``NAME=value`` lines, length-prefixed binary fields, an empty line after each entry.

The format is described in systemd's JOURNAL_EXPORT_FORMATS. The parser is fed with bytes as they come.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddtree_metrics.sources.journal_fields import WANTED

FIELD_MAX = 256 << 20
"""Longer binary fields are taken as damage: journald itself stops at 768 MiB an entry and 64 MiB a datum."""

_HEAD = {b"__CURSOR", b"__REALTIME_TIMESTAMP", b"__MONOTONIC_TIMESTAMP"}
_KEEP = {name.encode(): name for name in (*WANTED, "__CURSOR", "__REALTIME_TIMESTAMP", "__MONOTONIC_TIMESTAMP")}


class ExportParser:
    """Split export text into entries; bytes that are not of the format are skipped and counted, never raised.

    Parameters
    ----------
    more : iterable of str
        Fields that are kept besides those that lines are made of.

    Attributes
    ----------
    broken : int
        Places where the text is not of the format.
    """

    def __init__(self, more: Iterable[str] = ()) -> None:
        self.broken = 0
        self._keep = {**_KEEP, **{name.encode(): name for name in more}}
        self._rest = b""
        self._entry: dict[str, bytes | list[bytes]] = {}
        self._need = 0

    def feed(self, data: bytes) -> list[dict[str, bytes | list[bytes]]]:
        """Take more bytes and return the entries that are whole by now."""
        data = self._rest + data if self._rest else data
        if len(data) < self._need:
            self._rest = data
            return []
        self._need = 0
        made: list[dict[str, bytes | list[bytes]]] = []
        at, entry, keep, find = 0, self._entry, self._keep, data.find
        while True:
            end = find(b"\n", at)
            if end < 0:
                if len(data) - at > FIELD_MAX:
                    self.broken += 1
                    at = len(data)
                break
            if end == at:
                if entry:
                    made.append(entry)
                    entry = {}
                at += 1
                continue
            equals = find(b"=", at, end)
            if equals >= 0:
                name = keep.get(data[at:equals])
                value = data[equals + 1 : end]
                at = end + 1
            else:
                if len(data) < end + 9:
                    break
                size = int.from_bytes(data[end + 1 : end + 9], "little")
                if size > FIELD_MAX:
                    self.broken += 1
                    at = end + 1
                    continue
                stop = end + 9 + size
                if len(data) < stop + 1:
                    self._need = stop + 1 - at
                    break
                if data[stop] != 10:
                    self.broken += 1
                    at = end + 1
                    continue
                name = keep.get(data[at:end])
                value = data[end + 9 : stop]
                at = stop + 1
            if name is not None:
                old = entry.get(name)
                if old is None:
                    entry[name] = value
                elif name in ("__CURSOR", "__REALTIME_TIMESTAMP"):
                    # A new entry without the empty line before it: two files put together, or a lost byte.
                    made.append(entry)
                    entry = {name: value}
                elif isinstance(old, list):
                    old.append(value)
                else:
                    entry[name] = [old, value]
        self._entry = entry
        self._rest = data[at:]
        return made

    def close(self) -> tuple[dict[str, bytes | list[bytes]] | None, bool]:
        """End the text: return the last entry, if it had no empty line after it, and whether the text was cut inside a field.

        A field that is not whole is left out: half a message could read as other numbers.
        """
        entry, self._entry = self._entry, {}
        cut = bool(self._rest)
        self._rest = b""
        return (entry or None), cut
