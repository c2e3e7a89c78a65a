"""Where lines come from, and where results go: the options that commands share, each declared once."""

from __future__ import annotations

import functools
import sys
import time
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ddtree_metrics.keywords import Keyword, PlaceKeywords, ReadKeywords, keywords_of

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from ddtree_metrics.coverage import Coverage
    from ddtree_metrics.log import Log

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Input:
    """What the options say about where lines come from: files, the keywords of ``read``, and those of ``Log.with_requests``."""

    files: tuple[str, ...]
    keywords: ReadKeywords
    requests: tuple[str, ...] = ()
    clock_offset: float | None = None

    @property
    def is_stored(self) -> bool:
        """Whether the files are tables that ``export`` wrote."""
        from ddtree_metrics.tables.datasets import is_stored

        return bool(self.files) and all(name != "-" and is_stored(Path(name)) for name in self.files)

    @property
    def paths(self) -> list[Any] | None:
        """The files, or ``None`` for the journal."""
        return [sys.stdin.buffer if name == "-" else name for name in self.files] or None

    @property
    def zone(self) -> ZoneInfo | None:
        """The zone of times without one."""
        from ddtree_metrics.opening import zone_of

        return zone_of(self.keywords.get("tz"))

    def log(self) -> Log:
        """Read it all."""
        from ddtree_metrics import log

        if self.is_stored:
            return self.with_requests(log.read_parquet(list(self.files), **_of_window(self.keywords)))
        return self.with_requests(log.read(self.paths, **self.keywords))

    def with_requests(self, log: Log) -> Log:
        """Return a log with the requests that the options name, if they name any."""
        if not self.requests:
            return log
        return log.with_requests(list(self.requests), tz=self.zone, clock_offset_s=self.clock_offset)


def _of_window(keywords: ReadKeywords) -> dict[str, Any]:
    """Return the keywords that tables of an earlier export can be read with."""
    return {name: value for name, value in keywords.items() if name in ("since", "until", "tz")}


class Progress:
    """Says on a terminal how far a read is."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._said = time.monotonic()

    def __call__(self, account: Coverage | None) -> None:
        """Say it, five times a second at most; ``None`` ends it."""
        if not self._shown:
            return
        if account is None:
            click.echo("\r\033[K", nl=False, err=True)
        elif time.monotonic() - self._said > 0.2:
            self._said = time.monotonic()
            click.echo(f"\r{account.lines:,} lines, {account.parsed.get('steps', 0):,} steps ", nl=False, err=True)


def input_options(command: F) -> F:
    """Add the options that say where lines come from; the command gets them as one ``Input``."""

    @functools.wraps(command)
    def wrapped(**params: Any) -> Any:
        files, requests, clock_offset = (params.pop(name) for name in ("input_files", "requests", "clock_offset"))
        if clock_offset is not None and not requests:
            raise click.UsageError("--clock-offset is that of the requests' clock: give them with --requests")
        given: Any = {name: params.pop(name) for name in _OPTIONS}
        given = {name: value for name, value in given.items() if value not in (None, ())}
        if files and any(name in given for name in PlaceKeywords.__annotations__):
            raise click.UsageError("FILE and --directory, --file, --namespace are two places; give one of them")
        given["progress"] = Progress()
        return command(Input(files, given, requests, clock_offset), **params)

    for decorate in reversed((click.argument("input_files", metavar="[FILE]...", nargs=-1), *_OPTIONS.values(), *_REQUESTS)):
        wrapped = decorate(wrapped)
    return wrapped  # type: ignore[return-value]


def _zone_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    import zoneinfo

    return sorted(name for name in zoneinfo.available_timezones() if name.startswith(incomplete))


def _unit_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete unit names from the journal; a journal that cannot be read completes nothing."""
    from ddtree_metrics.errors import DDTreeError
    from ddtree_metrics.sources import JournalPlace, list_units

    try:
        units = list_units(JournalPlace(directory=ctx.params.get("directory"), namespace=ctx.params.get("namespace")))
    except (DDTreeError, OSError):
        return []
    return sorted(name for name in units if name.startswith(incomplete))


_COMPLETE = {"unit": _unit_names, "tz": _zone_names}


def _option(name: str, hint: Any, keyword: Keyword) -> Callable[[F], F]:
    """Make an option of the command line of a keyword."""
    choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    return click.option(
        *keyword.flags,
        name,
        multiple=keyword.several,
        metavar=keyword.metavar,
        default=keyword.default,
        show_default=keyword.default is not None,
        type=click.Choice(choices) if choices else None,
        shell_complete=_COMPLETE.get(name),
        help=keyword.help,
    )


_OPTIONS = {name: _option(name, hint, keyword) for name, (hint, keyword) in keywords_of(ReadKeywords).items() if keyword.flags}
_REQUESTS = (
    click.option(
        "--requests", multiple=True, metavar="PATH", help="Request timestamps: SGLang's request file, or a client's CSV, JSONL or Parquet."
    ),
    click.option(
        "--clock-offset",
        type=float,
        metavar="SECONDS",
        help="By how much the clock of --requests is ahead of the log's; estimated if not given.",
    ),
)


def say(text: str) -> None:
    """Say something on stderr; stdout carries data only."""
    click.echo(f"ddtree-logs: {text}", err=True)


def _more_of(coverage: Any) -> str | None:
    """Say whose log it is, and what would make that server say more, where it has a word for it."""
    from ddtree_metrics.dialects import DIALECTS

    read = {d.name: coverage.dialects.get(d.name, 0) for d in DIALECTS}
    most = max(DIALECTS, key=lambda d: read[d.name])
    return f"this is the log of {most.about}; {most.more}" if read[most.name] and most.more else None


def say_notes(coverage: Any, *, notes: bool = True) -> None:
    """Say what a reader of the result should know, and which nothing it is when no step line was found."""
    for note in coverage.notes if notes else ():
        say(f"note: {note}")
    if coverage.parsed.get("steps"):
        return
    decode = coverage.parsed.get("decode", 0)
    broken = sum(kind.count for kind in coverage.broken if kind.table == "steps")
    if broken:
        say(
            f"no DDTree metrics line could be read, for {broken:,} that are there break their form (see 'ddtree-logs inspect'); "
            f"{decode:,} Decode batch lines were read"
        )
    elif (wanted := _more_of(coverage)) is not None:
        say(wanted)
    elif decode:
        say(
            f"no DDTree metrics line in {coverage.lines:,} lines, but {decode:,} Decode batch lines (table decode): is "
            "--speculative-ddtree-debug-metrics on? diagnose and summary work with Decode lines too"
        )
    elif coverage.lines or coverage.message_null or coverage.message_missing:
        say(
            f"no metric line in {coverage.lines:,} lines: is --speculative-ddtree-debug-metrics on, and is it the right unit and window? "
            "container entries are often filed under another unit: select them with --identifier or --container"
        )
    else:
        say("no line at all was found: if there is a window, --since reaches further back; 'ddtree-logs inspect' shows what is there")


def fail_if_damaged(coverage: Any) -> None:
    """End with exit code 6 where part of the input was damaged, after the good part was handled."""
    if coverage.damaged:
        from ddtree_metrics.errors import SourceDamaged

        raise SourceDamaged("what was good was read, but part was damaged: " + "; ".join(coverage.damaged))
