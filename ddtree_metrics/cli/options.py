"""Where lines come from, and where results go: the options that commands share, each declared once."""

from __future__ import annotations

import functools
import os
import re
import sys
import time
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ddtree_metrics.cli.screen import write
from ddtree_metrics.keywords import Keyword, PlaceKeywords, ReadKeywords, StoredKeywords, keywords_of

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from ddtree_metrics.coverage import Coverage
    from ddtree_metrics.log import Log

F = TypeVar("F", bound=Callable[..., Any])
_TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")


@dataclass(frozen=True, slots=True)
class Input:
    """What the options say about where lines come from: files, the keywords of ``read``, and those of ``Log.with_requests``."""

    files: tuple[str, ...]
    keywords: ReadKeywords
    requests: tuple[str, ...] = ()
    clock_offset: float | None = None
    columns: Mapping[str, str] | None = None

    @property
    def is_stored(self) -> bool:
        """Whether the files are tables that ``export`` wrote."""
        from ddtree_metrics.tables.datasets import all_stored

        return all_stored(self.files)

    @property
    def given(self) -> Any:
        """The keywords that apply to what is read: for the tables of an earlier export those that choose rows."""
        return {n: v for n, v in self.keywords.items() if n in StoredKeywords.__annotations__} if self.is_stored else self.keywords

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
        from ddtree_metrics import loading

        return self.with_requests(loading.read(self.paths, **self.given))

    def span(self) -> tuple[int, int] | None:
        """Return the first and the last time of what there is without a window, in us; None where nothing is, or from a pipe."""
        from ddtree_metrics import loading
        from ddtree_metrics.errors import DDTreeError
        from ddtree_metrics.reading import start_reading

        if "-" in self.files:
            return None
        without: Any = {name: value for name, value in self.keywords.items() if name not in ("since", "until", "on_error")}
        try:
            if self.is_stored:
                account = loading.read_parquet(list(self.files), **{name: without[name] for name in ("tz",) if name in without}).coverage
            else:
                reading = start_reading(self.paths, **without, on_error="skip")
                for _ in reading:
                    pass
                account = reading.coverage
        except DDTreeError:
            return None  # what is wrong with it is said when it is read
        return (account.first_us, account.last_us) if account.first_us is not None and account.last_us is not None else None

    def on_the_logs_day(self) -> Input:
        """Return the same, where times of day without a date are of the last day of the files, which may be long ago."""
        ends = [self.keywords.get("since"), self.keywords.get("until")]
        if not self.files or not any(isinstance(x, str) and _TIME_OF_DAY.fullmatch(x.strip()) for x in ends):
            return self
        span = self.span()
        if span is None:
            return self
        from ddtree_metrics.times import parse_window_of_log

        window = parse_window_of_log(*ends, last_us=span[1], tz=self.zone)
        made: Any = dict(self.keywords)
        for name, us in (("since", window.since_us), ("until", window.until_us)):
            if us is not None:
                made[name] = f"@{us // 1_000_000}.{us % 1_000_000:06d}"
        return replace(self, keywords=made)

    def with_requests(self, log: Log) -> Log:
        """Return a log with the requests that the options name, if they name any."""
        if not self.requests:
            return log
        return log.with_requests(list(self.requests), tz=self.zone, clock_offset_s=self.clock_offset, columns=self.columns)


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


class SourcedCommand(click.Command):
    """A command whose help lists its own options first, and those that say where lines come from last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in two groups."""
        records = [
            (param.name in _SOURCE_NAMES, param.get_help_record(ctx)) for param in self.get_params(ctx) if isinstance(param, click.Option)
        ]
        for name, source in (("Options", False), ("What is read", True)):
            listed = [record for mine, record in records if record is not None and mine == source]
            if listed:
                with formatter.section(name):
                    formatter.write_dl(listed)


def input_options(command: F, *, leading: tuple[str, ...] = (), unless: tuple[str, ...] = ()) -> F:
    """Add the options that say where lines come from; the command gets them as one ``Input``.

    Parameters
    ----------
    command : function
        What is decorated.
    leading : tuple of str
        Arguments of its own that stand before the files; they are files too, where no others are given and all of them are there.
    unless : tuple of str
        Options that take the place of these arguments.
    """

    @functools.wraps(command)
    def wrapped(**params: Any) -> Any:
        files, requests, clock_offset, mapped = (params.pop(name) for name in ("input_files", "requests", "clock_offset", "mapped"))
        if clock_offset is not None and not requests:
            raise click.UsageError("--clock-offset is that of the requests' clock: give them with --requests")
        if mapped and not requests:
            raise click.UsageError("--map names columns of a file of requests: give it with --requests")
        if leading:
            named = () if any(params.get(name) for name in unless) else files[: len(leading)]
            files = files[len(named) :]
            params |= dict(zip(leading, (*named, *[None] * len(leading)), strict=False))
            if named and not files and all(Path(name).exists() for name in named):
                files = named
        given: Any = {name: params.pop(name) for name in _OPTIONS}
        given = {name: value for name, value in given.items() if value not in (None, ())}
        if files and any(name in given for name in PlaceKeywords.__annotations__):
            raise click.UsageError("FILE and --directory, --file, --namespace are two places; give one of them")
        given["progress"] = Progress()
        return command(Input(_with_stdin(files, given), given, requests, clock_offset, _columns(mapped)).on_the_logs_day(), **params)

    for decorate in reversed(
        (
            click.argument("input_files", metavar=" ".join([*(n.upper() for n in leading), "[FILE]..."]), nargs=-1),
            *_OPTIONS.values(),
            *_REQUESTS,
        )
    ):
        wrapped = decorate(wrapped)
    return wrapped  # type: ignore[return-value]


SILENT_S = 3.0
"""So long is waited for the first byte of a pipe on standard input, where nothing else says what to read."""


def _with_stdin(files: tuple[str, ...], given: dict[str, Any]) -> tuple[str, ...]:
    """Return ``-`` where lines come down a pipe and nothing else is named; a pipe is never left unread for another source."""
    if files:
        return files
    named = [name for name in _OPTIONS if name in given and name in ("unit", "user_unit", "identifier", "container", "boot")]
    named += [name for name in PlaceKeywords.__annotations__ if name in given]
    if not _has_bytes(0.1 if named else SILENT_S):
        return files
    if named:
        flag = "--" + named[0].replace("_", "-")
        raise click.UsageError(f"there are lines on standard input, and {flag} asks for the journal: give - to read them, or </dev/null")
    return ("-",)


def _has_bytes(wait_s: float) -> bool:
    """Whether standard input is a pipe or a file with something in it; nothing is taken out of it."""
    import select
    import stat

    try:
        fd = sys.stdin.fileno()
        mode = os.fstat(fd).st_mode
        if stat.S_ISREG(mode):
            return os.fstat(fd).st_size > os.lseek(fd, 0, os.SEEK_CUR)
        if not stat.S_ISFIFO(mode) or not select.select([fd], [], [], wait_s)[0]:
            return False
        import fcntl
        import termios

        waiting = fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4)
        return int.from_bytes(waiting, sys.byteorder) > 0
    except (AttributeError, ImportError, OSError, ValueError):
        return False


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
    click.option(
        "--map",
        "mapped",
        multiple=True,
        metavar="COLUMN=NAME",
        help="What --requests calls a column, if not found: finished=Ended.",
    ),
)
_SOURCE_NAMES = frozenset((*_OPTIONS, "requests", "clock_offset", "mapped"))


def _columns(mapped: tuple[str, ...]) -> dict[str, str] | None:
    """Read ``finished=Ended`` and the like."""
    pairs = [pair.partition("=") for pair in mapped]
    for (name, equals, theirs), pair in zip(pairs, mapped, strict=True):
        if not (name and equals and theirs):
            raise click.UsageError(f"--map {pair}: write COLUMN=NAME, as in finished=Ended")
    return {name.strip(): theirs.strip() for name, _, theirs in pairs} or None


def output_option(metavar: str, help: str, *, required: bool = False) -> Callable[[F], F]:
    """Return the option that says where the result goes; a name that is none is refused here."""

    def named(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is not None:
            if not value:
                raise click.BadParameter("it is empty; give the name of a file")
            if Path(value).name.lower() in _BARE_SUFFIXES:
                raise click.BadParameter(f"{value!r} is a suffix and no name, which would be a hidden file; put a name before it")
        return value

    return click.option("-o", "--output", metavar=metavar, required=required, callback=named, help=help)


_BARE_SUFFIXES = (".parquet", ".pq", ".csv", ".jsonl", ".ndjson", ".arrow", ".feather", ".png", ".svg", ".pdf", ".html", ".htm", ".json")


def refuse_inputs(source: Input, outputs: Iterable[str | Path], *more: str | None) -> None:
    """Refuse to write over what is read: the same file by whatever name or link, or one in a folder that is read.

    Parameters
    ----------
    source : Input
        What is read.
    outputs : iterable of str or Path
        What will be written.
    *more : str or None
        Other files that are read.
    """
    from ddtree_metrics import destinations

    given: Any = source.keywords
    places = [*source.files, *source.requests, *given.get("dialect_file", ()), *more, given.get("directory"), *(given.get("files") or ())]
    destinations.refuse_inputs(outputs, places)


def say(text: str) -> None:
    """Say something on stderr; stdout carries data only."""
    write(f"ddtree-logs: {text}", err=True)


def say_notes(coverage: Coverage, *, notes: bool = True, told: bool = False) -> None:
    """Say what a reader of the result should know, and which nothing it is when no step was found, unless that was told already."""
    from ddtree_metrics import hints

    for note in coverage.notes if notes else ():
        say(f"note: {note}")
    nothing = hints.nothing_found(coverage)
    if nothing and not told:
        say(" ".join(nothing))
    elif hints.decode_instead(coverage):
        say(f"note: {hints.decode_instead(coverage)}")


def fail_if_damaged(coverage: Any) -> None:
    """End with exit code 6 where part of the input was damaged, after the good part was handled."""
    if coverage.damaged:
        from ddtree_metrics.errors import SourceDamaged

        raise SourceDamaged("what was good was read, but part was damaged: " + "; ".join(coverage.damaged))
