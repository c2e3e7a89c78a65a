"""``ddtree-logs report``: all of it on one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from ddtree_metrics.cli.dead_ends import ask_for_one_service, end_if_nothing
from ddtree_metrics.cli.lakes import lake_of
from ddtree_metrics.cli.options import Input, SourcedCommand, fail_if_damaged, input_options, output_option, refuse_inputs, say, say_notes

EXAMPLES = """
\b
Examples:
  ddtree-logs report --since today -u sglang-kimi.service --requests requests.jsonl -o report.html
  ddtree-logs report run.log --before run:1 --after run:2 -o report.html
  ddtree-logs report lake/ -o fleet.html
  ddtree-logs report run.log --bench sweep.json -o report.html
"""


@click.command(cls=SourcedCommand, epilog=EXAMPLES)
@input_options
@output_option("FILE", "The page; - for stdout.", required=True)
@click.option("--before", metavar="GROUP", help="As for diagnose.")
@click.option("--after", metavar="GROUP", help="As for diagnose.")
@click.option("--bench", metavar="FILE", help="Lay a measured sweep of 'ddtree-logs bench' over the curve.")
@click.option("--beside", is_flag=True, help="Show messages of other programs that stand beside a change, redacted and cut.")
@click.option("--title", metavar="TEXT", help="Title of the page.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def report(
    source: Input,
    output: str,
    before: str | None,
    after: str | None,
    bench: str | None,
    beside: bool,
    title: str | None,
    force: bool,
) -> None:
    """Write one HTML page that needs no network: verdict, evidence, pictures, and what was left out."""
    from ddtree_metrics.diagnosis import diagnose
    from ddtree_metrics.report import render_lake_report, render_report
    from ddtree_metrics.tables.atomic import refuse_existing

    if output != "-":
        refuse_inputs(source, [output], bench)
        refuse_existing(Path(output), force)
    sweep = None
    if bench is not None:
        from ddtree_metrics.bench import load_sweep

        sweep = load_sweep(bench)
    lake = lake_of(source)
    if lake is not None:
        if before is not None or after is not None or bench is not None or beside:
            raise click.UsageError(
                "--before, --after, --bench and --beside are of one log; two groups of a lake: ddtree-logs compare LAKE/ A B"
            )
        return _write(render_lake_report(lake, title=title), output, force)
    log = source.log()
    end_if_nothing(source, log, data=True)
    if before is None and after is None:
        ask_for_one_service(log)
    page = render_report(log, diagnose(log, before, after, tz=source.zone, messages=beside), bench=sweep, title=title)
    _write(page, output, force)
    say_notes(log.coverage)
    fail_if_damaged(log.coverage)


def _write(page: str, output: str, force: bool) -> None:
    from ddtree_metrics.tables.atomic import write_whole

    if output == "-":
        click.echo(page.encode())
    else:
        write_whole(Path(output), page.encode(), force=force)
        say(f"wrote {output}")
