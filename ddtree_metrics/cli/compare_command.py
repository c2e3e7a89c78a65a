"""``ddtree-logs compare``: two windows, server starts, files or services against each other."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddtree_metrics.cli import gates, screen
from ddtree_metrics.cli.dead_ends import end_if_nothing
from ddtree_metrics.cli.gates import fail_if_slower_option
from ddtree_metrics.cli.lakes import is_partitioned, lake_of
from ddtree_metrics.cli.options import Input, SourcedCommand, fail_if_damaged, input_options, say_notes
from ddtree_metrics.errors import TimeError
from ddtree_metrics.layout import TextLine

if TYPE_CHECKING:
    from ddtree_metrics.diagnosis import Diagnosis
    from ddtree_metrics.fleet import Dataset
    from ddtree_metrics.log import Log

EXAMPLES = """
\b
Examples:
  ddtree-logs compare monday.log tuesday.log
  ddtree-logs compare run:1 run:2 run.log                      before and after a restart
  ddtree-logs compare 13:00..13:30 14:00..14:30 -u sglang-kimi.service --since today
  ddtree-logs compare sglang-a.service sglang-b.service --since 1h
  ddtree-logs compare --around 14:05 run.log                   the half hours before and after 14:05
  ddtree-logs compare lake/ host:kimi-1 host:kimi-2            two hosts of a lake; also day:, run:, unit:, boot:, FROM..TO
  ddtree-logs compare --last 1h -u sglang-kimi.service         the last hour against the one before it
"""

SIDE_US = 30 * 60 * 1_000_000
"""Around a time, so much on each side of it is compared."""


@click.command(cls=SourcedCommand, epilog=EXAMPLES)
@click.option("--around", metavar="TIME", help="Compare the half hours after and before this time.")
@click.option("--last", metavar="SPAN", help="Compare the last 1h (2d, 30m) of the log with as long before it.")
@click.option("--window", type=click.IntRange(1), metavar="TOKENS", help="The drafter's attention window, where no start line says it.")
@click.option("--level", type=click.FloatRange(0.5, 0.999), default=0.9, show_default=True, help="Level of the intervals.")
@click.option("--full", is_flag=True, help="All evidence under the answer.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@fail_if_slower_option
@functools.partial(input_options, leading=("a", "b"), unless=("around", "last"))
def compare(
    source: Input,
    a: str | None,
    b: str | None,
    around: str | None,
    last: str | None,
    window: int | None,
    level: float,
    full: bool,
    as_json: bool,
    fail_if_slower: float | None,
) -> None:
    """Say whether B is slower than A, by which part, and why.

    A and B are two files, windows (FROM..TO), server starts (run:1), services (a unit's name), ranges (context:0-1023) or requests
    (requests:ID,ID); the earlier one first. FILE is what is read; the journal if none is given.
    """
    from ddtree_metrics.diagnosis import diagnose
    from ddtree_metrics.diagnosis.text import diagnosis_lines

    if around is not None and last is not None:
        raise click.UsageError("--around and --last are two ways to choose the same windows; give one of them")
    if around is None and last is None and b is None:
        raise click.UsageError("give two things to compare, A and B, or --around TIME, or --last SPAN")
    if a is not None and b is not None and len(source.files) == 1 and is_partitioned(a):
        a, b, source = b, source.files[0], replace(source, files=(a,))  # the lake may come first
    lake = None if {a, b} & set(source.files) else lake_of(source)
    if lake is not None:
        return _of_lake(lake, *_sides(lake, a, b, around, last, source), level=level, as_json=as_json, fail_if_slower=fail_if_slower)
    source = _with_units(source, a, b)
    for name in {a, b} & set(source.files):
        if name is not None and Path(name).exists() and not Path(name).is_file() and not Path(name).is_dir():
            raise click.UsageError(f"{name} is a pipe and can be read only once, but compared files are read twice; save it first")
    log = source.log()
    end_if_nothing(source, log, data=as_json)
    names: tuple[str, str] | None = None
    before: Any
    after: Any
    if around is not None or last is not None:
        before, after = _halves(log.coverage.last_us or 0, around, last, source)
    elif a is not None and b is not None and source.files == (a, b):
        before, after = _of_files(source, log, a, b)
        names = _short_names(a, b)
    else:
        before, after = _group(a), _group(b)
    found = diagnose(log, before, after, window=window, level=level, tz=source.zone)
    if names is not None:
        found = _renamed(found, names)
    if as_json:
        screen.write_json(found.to_dict())
    else:
        screen.say_lines(diagnosis_lines(found, screen.width(), full=full, shell=True))
    say_notes(log.coverage)
    fail_if_damaged(log.coverage)
    gates.fail_if_slower(found, fail_if_slower, in_time=False)


def _sides(lake: Dataset, a: str | None, b: str | None, around: str | None, last: str | None, source: Input) -> tuple[str, str]:
    """Return the two groups of a lake that are compared, in words."""
    if a is not None and b is not None:
        return a, b
    end = lake.streams["last_us"].max()
    halves = _halves(int(end) if end == end else 0, around, last, source)
    first, second = ("..".join(instant.isoformat() for instant in half) for half in halves)
    return first, second


def _of_lake(lake: Dataset, a: str, b: str, *, level: float, as_json: bool, fail_if_slower: float | None) -> None:
    """Compare two groups of a lake."""
    from dataclasses import asdict

    from ddtree_metrics.fleet.split import rows_of, split, split_lines

    found = split(lake, a, b, level=level)
    names = (rows_of(lake, a)[1], rows_of(lake, b)[1])
    if as_json:
        known = {name: None if isinstance(value, float) and value != value else value for name, value in asdict(found).items()}
        screen.write_json({"schema_version": 1, "before": names[0], "after": names[1], **known, "lake_notes": lake.notes})
    else:
        screen.say_lines([*split_lines(found, names), *(TextLine(note, "warning") for note in lake.notes)])
    gates.fail_if_split_slower(found, fail_if_slower)


def _is_unit(name: str | None) -> bool:
    from ddtree_metrics.sources.journal_fields import UNIT_SUFFIXES

    return name is not None and Path(name).suffix in UNIT_SUFFIXES and ":" not in name and not Path(name).exists()


def _group(name: str | None) -> str:
    """Return a group as ``diagnose`` takes it: the name of a unit alone is a service."""
    return f"unit:{name}" if _is_unit(name) else str(name)


def _with_units(source: Input, a: str | None, b: str | None) -> Input:
    """Return the source with the two units that are compared, where they are read from the journal and no others are asked for."""
    if source.files or source.keywords.get("unit") or not (_is_unit(a) and _is_unit(b)):
        return source
    keywords: Any = {**source.keywords, "unit": (a, b)}
    return replace(source, keywords=keywords)


def _halves(end: int, around: str | None, last: str | None, source: Input) -> tuple[Any, Any]:
    """Return two windows that meet at a time: before it, and after it."""
    from datetime import datetime, timedelta, timezone

    from ddtree_metrics.times import EPOCH, parse_window_of_log

    window = parse_window_of_log(around or last, None, last_us=end, tz=source.zone)
    at = window.since_us or 0
    side = SIDE_US if around is not None else end - at
    if last is not None and side <= 0:
        raise TimeError(f"--last takes a span such as 1h, not {last!r}")

    def instant(us: int) -> datetime:
        return EPOCH.astimezone(timezone.utc) + timedelta(microseconds=us)

    return (instant(at - side), instant(at)), (instant(at), instant(at + side + 1))


def _of_files(source: Input, log: Log, a: str, b: str) -> tuple[Any, Any]:
    """Return the groups that two files are: two services, or two stretches of time."""
    from datetime import datetime, timedelta

    from ddtree_metrics.times import EPOCH

    spans = []
    for name in (a, b):
        span = replace(source, files=(name,)).span()
        if span is None:
            raise click.UsageError(f"{name} has no step with a time: there is nothing to compare")
        spans.append(span)
    (first_a, last_a), (first_b, last_b) = spans
    if last_a < first_b or last_b < first_a:

        def instants(first: int, last: int) -> tuple[datetime, datetime]:
            return EPOCH + timedelta(microseconds=first), EPOCH + timedelta(microseconds=last + 1)

        return instants(first_a, last_a), instants(first_b, last_b)
    services = [name for name in log.basis.services if name]
    if len(services) == 2:
        own = replace(source, files=(a,)).log().basis.services
        first = next((name for name in services if name in own), services[0])
        return f"unit:{first}", f"unit:{next(name for name in services if name != first)}"
    raise click.UsageError(f"{a} and {b} are of one service and overlap in time: compare two windows of them, FROM..TO")


def _short_names(a: str, b: str) -> tuple[str, str]:
    """Return what two paths do not share: ``A/journal.export`` and ``C/journal.export`` are A and C."""
    one, other = list(Path(a).parts), list(Path(b).parts)
    while len(one) > 1 and len(other) > 1 and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while len(one) > 1 and len(other) > 1 and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return (one[-1], other[-1]) if one[-1] != other[-1] else ("/".join(one), "/".join(other))


def _renamed(found: Diagnosis, names: tuple[str, str]) -> Diagnosis:
    """Call the two groups by the names of their files."""
    first, *rest = found.comparisons
    return replace(found, comparisons=(replace(first, before=names[0], after=names[1]), *rest))
