"""Where lines come from, and where results go: the options that commands share, each declared once."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ddtree_metrics.log import Log
    from ddtree_metrics.reading import Reading, Tables

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Input:
    """What the options say about where lines come from."""

    files: tuple[str, ...]
    unit: tuple[str, ...]
    user_unit: tuple[str, ...]
    identifier: tuple[str, ...]
    container: tuple[str, ...]
    since: str | None
    until: str | None
    boot: str | None
    directory: str | None
    file: tuple[str, ...]
    namespace: str | None
    dialect: tuple[str, ...]
    dialect_file: tuple[str, ...]
    tz: str | None
    on_error: str
    requests: tuple[str, ...]
    clock_offset: float | None
    bonus: bool | None
    root: bool | None

    @property
    def is_stored(self) -> bool:
        """Whether the files are tables that ``export`` wrote."""
        from ddtree_metrics.tables.datasets import is_stored

        return bool(self.files) and all(name != "-" and is_stored(Path(name)) for name in self.files)

    def reading(self) -> Reading:
        """Open the lines; for tables that ``export`` wrote use ``log``."""
        from ddtree_metrics import opening
        from ddtree_metrics.reading import Reading

        zone = opening.zone_of(self.tz)
        dialects: list[Any] = list(self.dialect)
        if self.dialect_file:
            from ddtree_metrics.dialects import DIALECTS
            from ddtree_metrics.dialects.custom import load_dialect

            # a format of one's own goes first; the lines around it are still the server's
            dialects = [*(load_dialect(path) for path in self.dialect_file), *(self.dialect or DIALECTS)]
        if self.files:
            if self.directory or self.file or self.namespace:
                raise click.UsageError("FILE and --directory, --file, --namespace are two places; give one of them")
            paths = [sys.stdin.buffer if name == "-" else name for name in self.files]
            source, window = opening.open_text(
                paths, self.since, self.until, self.unit, self.user_unit, self.identifier, self.container, zone, None, self.boot
            )
        else:
            source, window = opening.open_any_journal(
                self.unit,
                self.since,
                self.until,
                self.boot,
                self.directory,
                self.file or None,
                self.namespace,
                self.user_unit,
                self.identifier,
                self.container,
                zone,
                None,
            )
        return Reading(
            source,
            dialects=dialects or None,
            tz=zone,
            on_error=self.on_error,
            window=window,
            commit_includes_bonus=self.bonus,
            nodes_include_root=self.root,
        )

    def log(self) -> Log:
        """Read it all."""
        from ddtree_metrics import log

        if self.is_stored:
            made = log.read_parquet(list(self.files), since=self.since, until=self.until, tz=self.tz)
        else:
            made = log.collect(Watched(self.reading()))
        return self.with_requests(made)

    def with_requests(self, made: Log) -> Log:
        """Return a log with the requests that the options name, if they name any."""
        if not self.requests:
            return made
        return made.with_requests(list(self.requests), tz=self.tz, clock_offset_s=self.clock_offset)


class Watched:
    """A ``Reading`` that says on a terminal how far it is."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reading, name)

    def __iter__(self) -> Iterator[Tables]:
        """Yield what the reading yields."""
        shown = sys.stderr.isatty()
        said = time.monotonic()
        for tables in self._reading:
            yield tables
            if shown and time.monotonic() - said > 0.2:
                said = time.monotonic()
                account = self._reading.coverage
                steps = account.parsed.get("steps", 0)
                click.echo(f"\r{account.lines:,} lines, {steps:,} steps ", nl=False, err=True)
        if shown:
            click.echo("\r\033[K", nl=False, err=True)


def input_options(command: F) -> F:
    """Add the options that say where lines come from; the command gets them as one ``Input``."""

    @functools.wraps(command)
    def wrapped(**params: Any) -> Any:
        taken = {name: params.pop(name) for name in Input.__dataclass_fields__}
        if taken["clock_offset"] is not None and not taken["requests"]:
            raise click.UsageError("--clock-offset is that of the requests' clock: give them with --requests")
        return command(Input(**taken), **params)

    for decorate in reversed(_INPUT):
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


_INPUT = (
    click.argument("files", metavar="[FILE]...", nargs=-1),
    click.option("-u", "--unit", multiple=True, metavar="UNIT", shell_complete=_unit_names, help="Lines of this systemd unit."),
    click.option("--user-unit", multiple=True, metavar="UNIT", help="Lines of this user unit."),
    click.option("--identifier", multiple=True, metavar="NAME", help="Lines with this SYSLOG_IDENTIFIER."),
    click.option("--container", multiple=True, metavar="NAME", help="Lines of this container (journald log driver)."),
    click.option("-S", "--since", metavar="TIME", help="From here on: 1h (ago), yesterday, '2026-05-05 12:00', @1767225600."),
    click.option("-U", "--until", metavar="TIME", help="Up to here, not included."),
    click.option("-b", "--boot", metavar="ID|N", help="One boot only: an id, 0 for the newest, -1 for the one before."),
    click.option("-D", "--directory", metavar="DIR", help="The journal in this directory."),
    click.option("--file", multiple=True, metavar="GLOB", help="These journal files."),
    click.option("--namespace", metavar="NAME", help="The journal of this namespace."),
    click.option("--dialect", multiple=True, metavar="NAME", help="Who wrote the lines; all that are known if not given."),
    click.option("--dialect-file", multiple=True, metavar="TOML", help="A line format of your own."),
    click.option("--tz", metavar="ZONE", shell_complete=_zone_names, help="Zone of --since, --until and of times that do not say theirs."),
    click.option(
        "--on-error",
        type=click.Choice(["warn", "raise", "skip"]),
        default="warn",
        show_default=True,
        help="What a broken line does: counted with a warning, an error, or only counted.",
    ),
    click.option("--bonus/--no-bonus", default=None, help="Commit lengths contain the bonus token; inferred if not given."),
    click.option("--root/--no-root", default=None, help="Node counts contain the root; inferred if not given."),
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
