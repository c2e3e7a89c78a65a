"""``ddtree-logs export``: tables to files."""

from __future__ import annotations

import click

from ddtree_metrics.cli import OWN_PROCESS
from ddtree_metrics.cli.near import NearChoice
from ddtree_metrics.cli.no_pandas import without_pandas
from ddtree_metrics.cli.options import Input, SourcedCommand, fail_if_damaged, input_options, output_option, say, say_notes
from ddtree_metrics.records import TABLES

FORMATS = ("parquet", "csv", "jsonl", "arrow")  # as in tables.writers, which would load pyarrow for --help

EXAMPLES = """
\b
Examples:
  ddtree-logs export --since 1h -u sglang-kimi.service        steps of the last hour, into this folder
  ddtree-logs export run.log.1.gz run.log -o run.parquet      files instead of the journal
  ddtree-logs export -u sglang-kimi -o incident/              every table, one file each
  ddtree-logs export --since today --requests requests.jsonl  and request_steps, with context lengths
  ddtree-logs export --since 1d --partition host,date -o lake/
  ddtree-logs export --append lake/ -u sglang-kimi            what is new since the last run, once a day or an hour
  ddtree-logs export run.log -t decode --format csv -o -
"""


@click.command(cls=SourcedCommand, epilog=EXAMPLES)
@input_options
@output_option("PATH", "File, folder ending in / for every table, or - for stdout.")
@click.option("--format", "format_", type=NearChoice(list(FORMATS)), help="By the suffix of -o if not given; -o - needs it.")
@click.option("-t", "--table", "chosen", multiple=True, type=NearChoice([*TABLES, "all"]), help="Which table; steps if not given.")
@click.option("--partition", metavar="COLUMNS", help="Write a Hive-partitioned dataset into the folder -o: host,date.")
@click.option("--append", metavar="LAKE/", help="Add what is new to a lake: go on where the last run ended, each row once.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def export(
    source: Input,
    output: str | None,
    format_: str | None,
    chosen: tuple[str, ...],
    partition: str | None,
    append: str | None,
    force: bool,
) -> None:
    """Write steps (or other tables) as Parquet, CSV, JSON lines or Arrow.

    Lines come from FILE (a server log, plain or compressed; journalctl output in any format; a .journal file; - for stdin), or
    from the systemd journal where no FILE is given.
    """
    if append is not None and output is not None:
        raise click.UsageError("--append LAKE/ names the folder; leave -o out")
    output = append if append is not None else output
    by = tuple(part.strip() for part in (partition or "").split(",") if part.strip())
    if click.get_current_context().obj == OWN_PROCESS and not source.is_stored and not _needs_frames(source, output, chosen):
        without_pandas()
    from ddtree_metrics import exporting

    made = exporting.export(
        source.paths,
        output,
        tables=chosen,
        format=format_,
        partition=by,
        append=append is not None,
        requests=source.requests or None,
        clock_offset_s=source.clock_offset,
        force=force,
        **source.given,
    )
    say_notes(made.coverage)
    if made.paths:
        rows = ", ".join(f"{count:,} {name}" for name, count in made.rows.items() if count or append is None)
        say(f"{f'wrote {rows} to' if rows else 'nothing is new for'} {', '.join(map(str, made.paths))}")
    fail_if_damaged(made.coverage)


def _needs_frames(source: Input, output: str | None, chosen: tuple[str, ...]) -> bool:
    """Whether a table is asked for that is made of others, as frames."""
    from ddtree_metrics.destinations import OF_REQUESTS, chosen_tables

    return any(name in OF_REQUESTS for name in chosen_tables(chosen, output, with_requests=bool(source.requests)))
