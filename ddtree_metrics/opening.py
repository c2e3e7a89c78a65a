"""What a caller asks for, as the layers below take it: names completed, windows in microseconds, a source opened, a reading begun."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ddtree_metrics.errors import UsageError
from ddtree_metrics.reading import Reading
from ddtree_metrics.sources import JournalPlace, Selection, Window, open_journal, open_sources
from ddtree_metrics.times import get_zone, parse_window

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from ddtree_metrics.sources import Source

Names = str | Sequence[str] | None
PathLike = str | Path
UNIT_SUFFIXES = frozenset(
    f".{kind}" for kind in ("service", "scope", "slice", "socket", "mount", "target", "timer", "path", "device", "swap", "automount")
)
"""The kinds of units; a name with another suffix is no unit's."""


def zone_of(tz: str | ZoneInfo | None) -> ZoneInfo | None:
    """Return the zone of a name."""
    return get_zone(tz) if isinstance(tz, str) else tz


def start_reading(
    source: Source, window: Window, dialect: Any, zone: ZoneInfo | None, on_error: str, bonus: bool | None, root: bool | None
) -> Reading:
    """Begin to read a source; arguments as in ``read_journal``."""
    chosen = _dialects(dialect)
    return Reading(source, dialects=chosen, tz=zone, on_error=on_error, window=window, commit_includes_bonus=bonus, nodes_include_root=root)


def _names(value: Names) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def _dialects(value: Any) -> list[Any] | None:
    if value is None:
        return None
    return list(value) if isinstance(value, list | tuple) else [value]


def _unit_names(value: Names) -> tuple[str, ...]:
    """Complete unit names as journalctl does: ``sglang`` is ``sglang.service``; a file is no unit."""
    for name in _names(value):
        suffix = Path(name).suffix
        if "/" in name or suffix in (".journal", ".journal~") or (suffix and suffix not in UNIT_SUFFIXES and Path(name).is_file()):
            raise UsageError(f"{name!r} is a file, not a unit: ddtree_metrics.read({name!r}) reads it (ddtree-logs: give it as FILE)")
    return tuple(name if "." in name else f"{name}.service" for name in _names(value))


def open_any_journal(
    unit: Names,
    since: str | None,
    until: str | None,
    boot: str | int | None,
    directory: PathLike | None,
    files: PathLike | Sequence[PathLike] | None,
    namespace: str | None,
    user_unit: Names,
    identifier: Names,
    container: Names,
    zone: ZoneInfo | None,
    now_us: int | None,
) -> tuple[Source, Window]:
    """Open a journal; arguments as in ``read_journal``."""
    window = Window(*parse_window(since, until, now_us=now_us, tz=zone))
    paths: Iterable[PathLike] = () if files is None else [files] if isinstance(files, str | Path) else files
    place = JournalPlace(None if directory is None else str(directory), tuple(str(p) for p in paths), namespace)
    selection = Selection(
        _unit_names(unit), _unit_names(user_unit), _names(identifier), _names(container), None if boot is None else str(boot)
    )
    return open_journal(place, selection, window), window


def open_text(
    paths: PathLike | IO[bytes] | Sequence[PathLike | IO[bytes]],
    since: str | None,
    until: str | None,
    unit: Names,
    user_unit: Names,
    identifier: Names,
    container: Names,
    zone: ZoneInfo | None,
    now_us: int | None,
    boot: str | None = None,
) -> tuple[Source, Window]:
    """Open files or pipes; arguments as in ``read_text``."""
    window = Window(*parse_window(since, until, now_us=now_us, tz=zone))
    several: list[Any] = list(paths) if isinstance(paths, list | tuple) else [paths]
    selection = Selection(_unit_names(unit), _unit_names(user_unit), _names(identifier), _names(container), boot)
    return open_sources(several, selection=selection, window=window, tz=zone), window
