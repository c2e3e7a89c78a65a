"""What a caller asks for, as the layers below take it: the window in microseconds, zone and dialects looked up, a source opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddtree_metrics import native
from ddtree_metrics.dialects import DIALECTS, get
from ddtree_metrics.errors import DDTreeError, UsageError
from ddtree_metrics.keywords import ReadKeywords, TextKeywords, keywords_of
from ddtree_metrics.sources import JournalPlace, Selection, Source, open_journal, open_sources
from ddtree_metrics.sources.journal_fields import UNIT_SUFFIXES
from ddtree_metrics.sources.other_lines import LinesOfOthers
from ddtree_metrics.times import ALWAYS, Window, get_zone, parse_window

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from typing_extensions import Unpack

    from ddtree_metrics.coverage import Coverage
    from ddtree_metrics.dialects.base import Dialect
    from ddtree_metrics.keywords import Paths


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How lines are read; ``read_options`` makes it of the keywords, whose meanings stand in ``keywords``.

    Attributes
    ----------
    window : Window
        Rows outside of it are left out; a row without a time is kept.
    selection, place : Selection, JournalPlace
        Whose lines, and which journal.
    zone : ZoneInfo or None
        The zone of times that do not say theirs.
    dialects : tuple of Dialect
        Who may have written the lines; journald, whose notices are in every journal, is always among them.
    on_error, commit_includes_bonus, nodes_include_root, progress
        As the keywords.
    """

    window: Window = ALWAYS
    selection: Selection = field(default_factory=Selection)
    place: JournalPlace = field(default_factory=JournalPlace)
    zone: ZoneInfo | None = None
    dialects: tuple[Dialect, ...] = DIALECTS
    on_error: str = "warn"
    commit_includes_bonus: bool | None = None
    nodes_include_root: bool | None = None
    progress: Callable[[Coverage | None], object] | None = None


def zone_of(tz: str | ZoneInfo | None) -> ZoneInfo | None:
    """Return the zone of a name."""
    return get_zone(tz) if isinstance(tz, str) else tz


def read_options(**given: Unpack[ReadKeywords]) -> ReadOptions:
    """Look up what was asked for.

    Raises
    ------
    TimeError, UsageError, DialectError
        If a window, a zone, a unit or a dialect cannot be meant.
    """
    on_error = given.get("on_error", "warn")
    if on_error not in ("warn", "raise", "skip"):
        raise DDTreeError(f"on_error is 'warn', 'raise' or 'skip', not {on_error!r}")
    zone = zone_of(given.get("tz"))
    boot, directory = given.get("boot"), given.get("directory")
    return ReadOptions(
        window=parse_window(given.get("since"), given.get("until"), now_us=given.get("now_us"), tz=zone),
        selection=Selection(
            _unit_names(given.get("unit")),
            _unit_names(given.get("user_unit")),
            several(given.get("identifier")),
            several(given.get("container")),
            None if boot is None else str(boot),
        ),
        place=JournalPlace(
            None if directory is None else str(directory), tuple(map(str, several(given.get("files")))), given.get("namespace")
        ),
        zone=zone,
        dialects=_dialects(several(given.get("dialect")), several(given.get("dialect_file"))),
        on_error=on_error,
        commit_includes_bonus=given.get("commit_includes_bonus"),
        nodes_include_root=given.get("nodes_include_root"),
        progress=given.get("progress"),
    )


def open_lines(paths: Paths | None, **given: Unpack[ReadKeywords]) -> tuple[Source, ReadOptions]:
    """Open files or pipes, or a journal where no paths are given."""
    native.tell_once()
    options = read_options(**(only(given, ReadKeywords, "a journal") if paths is None else only(given, TextKeywords, "files")))
    if paths is None:
        return open_journal(options.place, options.selection, options.window), options
    source = open_sources(several(paths), selection=options.selection, window=options.window, tz=options.zone)
    return source, options


def others_beside(paths: Paths | None, place: JournalPlace) -> LinesOfOthers:
    """Return what reads the lines of others where these lines come from; streams have none."""
    if paths is None:
        return LinesOfOthers(None, place)
    names = [str(path) for path in several(paths) if isinstance(path, str | Path) and str(path) != "-"]
    return LinesOfOthers([name for name in names if Path(name).exists()], place)


def only(given: Mapping[str, Any], group: type, what: str) -> Any:
    """Return keywords as they are, if they are all of a group.

    Raises
    ------
    TypeError
        If one is not, as Python says it of a keyword that a function does not have.
    """
    accepted = keywords_of(group)
    unknown = next((name for name in given if name not in accepted), None)
    if unknown is not None:
        raise TypeError(f"unexpected keyword {unknown!r}: {what} can be read with {', '.join(accepted)}")
    return given


def several(value: Any) -> tuple[Any, ...]:
    """Return one or several as a tuple."""
    if value is None:
        return ()
    alone = isinstance(value, str) or hasattr(value, "read") or not isinstance(value, Iterable)
    return (value,) if alone else tuple(value)


def _dialects(chosen: tuple[str | Dialect, ...], files: tuple[str | Path, ...]) -> tuple[Dialect, ...]:
    """Return the dialects: a format of one's own goes first, for the lines around it are still the server's."""
    own: list[Dialect] = []
    if files:
        from ddtree_metrics.dialects.custom import load_dialect

        own = [load_dialect(path) for path in files]
    known = [*own, *(get(name) for name in chosen or DIALECTS)]
    return (*known, *(d for d in (get("journald"),) if d.name not in {k.name for k in known}))


def _unit_names(value: Any) -> tuple[str, ...]:
    """Return the names of units; a file is none."""
    for name in several(value):
        suffix = Path(name).suffix
        if "/" in name or suffix in (".journal", ".journal~") or (suffix and suffix not in UNIT_SUFFIXES and Path(name).is_file()):
            raise UsageError(f"{name!r} is a file, not a unit: ddtree_metrics.read({name!r}) reads it (ddtree-logs: give it as FILE)")
    return several(value)
