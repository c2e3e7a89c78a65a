"""``ddtree-logs lake``: check a lake, make one part of many, drop old days."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import click

from ddtree_metrics.cli.options import say
from ddtree_metrics.cli.screen import write, write_json

EXAMPLES = """
\b
Examples:
  ddtree-logs lake check lake/
  ddtree-logs lake compact lake/
  ddtree-logs lake join lake/
  ddtree-logs lake drop lake/ --before 2026-09-01
  ddtree-logs lake drop lake/ --keep 90
"""


@click.group(epilog=EXAMPLES)
def lake() -> None:
    """Look after a lake that ``export --append`` makes."""


_WHERE = click.argument("folder", metavar="LAKE/", type=click.Path(exists=True, file_okay=False))


@lake.command()
@_WHERE
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def check(folder: str, as_json: bool) -> None:
    """Count all rows, and look for what is missing, cut, foreign or there twice, and for holes in streams.

    Ends with 6 where something is not as it should be. Partitions that were deleted are named, and are no fault.
    """
    from ddtree_metrics.errors import SourceDamaged
    from ddtree_metrics.layout import plural
    from ddtree_metrics.tables.lake_check import check_lake

    made = check_lake(folder)
    if as_json:
        write_json(
            {
                "ok": made.ok,
                "rows": made.rows,
                "parts": made.parts,
                "bytes": made.bytes,
                "schema_versions": {str(version): parts for version, parts in sorted(made.versions.items())},
                "problems": made.problems,
                "notes": made.notes,
            }
        )
    else:
        rows = ", ".join(f"{count:,} {name}" for name, count in made.rows.items()) or "no rows"
        versions = ", ".join(map(str, sorted(made.versions)))
        write(f"{rows} in {plural(made.parts, 'part')}, {made.bytes / 1e6:,.1f} MB" + (f", schema version {versions}" if versions else ""))
        for note in made.notes:
            write(f"  note: {note}")
        for problem in made.problems:
            write(f"  {problem}")
        if made.ok:
            write("Each row is there once, no stream has a hole, and all parts are as the manifest says.")
    if not made.ok:
        raise SourceDamaged(f"{folder}: {plural(len(made.problems), 'problem')}, see above; the rest can be read")


@lake.command()
@_WHERE
def compact(folder: str) -> None:
    """Make one part of the small parts of each partition."""
    from ddtree_metrics.layout import plural
    from ddtree_metrics.tables.upkeep import compact_lake

    made = compact_lake(folder)
    if made["parts"]:
        say(f"{plural(made['parts'], 'part')} with {made['rows']:,} rows are {made['into']:,} now")
    else:
        say("there is nothing to compact: no partition has more than one small part")


@lake.command()
@_WHERE
def join(folder: str) -> None:
    """Join steps with the requests that the lines tell of, for days that are new or have new rows.

    The table request_steps has the context length of each step of a request, which summary, compare and report of a lake rest on.
    """
    from ddtree_metrics.joining_days import join_days
    from ddtree_metrics.layout import plural

    made = join_days(folder)
    say(f"{plural(made['days'], 'day')} of hosts joined: {made['rows']:,} request_steps" if made["days"] else "all days are joined already")


@lake.command()
@_WHERE
@click.option("--before", type=click.DateTime(["%Y-%m-%d"]), metavar="DATE", help="The first day (UTC) that stays.")
@click.option("--keep", type=click.IntRange(1), metavar="DAYS", help="How many days stay, today among them.")
@click.option("--deleted", is_flag=True, help="Forget partitions that were deleted by hand.")
def drop(folder: str, before: datetime | None, keep: int | None, deleted: bool) -> None:
    """Drop the days before a date for good; lines of these days are not taken again."""
    from ddtree_metrics.layout import plural
    from ddtree_metrics.tables.upkeep import drop_days, forget_deleted

    if sum((before is not None, keep is not None, deleted)) != 1:
        raise click.UsageError(
            "say what to drop: --before DATE, all but the newest with --keep DAYS, or --deleted for what was deleted by hand"
        )
    if deleted:
        say(f"{plural(len(forget_deleted(folder)), 'deleted partition')} forgotten")
    else:
        first = before or datetime.now(timezone.utc) - timedelta(days=(keep or 1) - 1)
        made = drop_days(folder, first.date())
        say(f"{plural(made['parts'], 'part')} with {made['rows']:,} rows dropped")
