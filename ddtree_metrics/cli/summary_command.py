"""``ddtree-logs summary``: the numbers, in the terminal or a file."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddtree_metrics.cli import gates, screen
from ddtree_metrics.cli.gates import fail_below_option, fail_if_slower_option
from ddtree_metrics.cli.lakes import lake_of
from ddtree_metrics.cli.options import Input, SourcedCommand, fail_if_damaged, input_options, output_option, refuse_inputs, say, say_notes

if TYPE_CHECKING:
    from ddtree_metrics.summary import Summary

SUFFIXES = {".csv": "csv", ".json": "json", ".txt": "text"}

EXAMPLES = """
\b
Examples:
  ddtree-logs summary --since 1h -u sglang-kimi.service
  ddtree-logs summary run.log.gz --requests requests.jsonl
  ddtree-logs summary --since today -u sglang-kimi.service -o today.csv
  ddtree-logs summary lake/ --since 7d                                       a lake of many hosts, by DuckDB
  ddtree-logs summary --since 1h -u sglang-kimi.service --fail-below 30      for cron: 1 where it is slower
  ddtree-logs summary --since 1d -u sglang-kimi.service --fail-if-slower 10%
"""


@click.command(cls=SourcedCommand, epilog=EXAMPLES)
@click.option("--csv", "as_csv", is_flag=True, help="As CSV: a row for the log, each server start and each bin of context.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@output_option("FILE", "Into a file: .csv, .json or .txt.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@fail_below_option
@fail_if_slower_option
@input_options
def summary(
    source: Input,
    as_csv: bool,
    as_json: bool,
    output: str | None,
    force: bool,
    fail_below: float | None,
    fail_if_slower: float | None,
) -> None:
    """Print rows, time span, step time, tokens per step and speed: for each server start and by context."""
    from ddtree_metrics.summary import summarise, summary_lines
    from ddtree_metrics.tables.atomic import refuse_existing, write_whole

    form = _form(as_csv, as_json, output)
    if output is not None:
        refuse_inputs(source, [output])
        refuse_existing(Path(output), force)
    lake = lake_of(source)
    if lake is not None:
        from ddtree_metrics.fleet.overview import summarise_lake

        if fail_if_slower is not None:
            raise click.UsageError(
                "--fail-if-slower asks for a change in time, and a lake is asked for it by: ddtree-logs compare LAKE/ A B"
            )
        log, made = None, summarise_lake(lake)
    else:
        log = source.log()
        made = summarise(log)
    text = _csv(made) if form == "csv" else screen.json_text(made.to_dict()) if form == "json" else ""
    if output is not None:
        text = text or "".join(f"{line.text}\n" for line in summary_lines(made))
        write_whole(Path(output), text.encode(), force=force)
        say(f"wrote {output}")
    elif text:
        screen.write(text, nl=False)
    else:
        screen.say_lines(summary_lines(made, screen.width()))
    if log is not None:
        say_notes(log.coverage)
        fail_if_damaged(log.coverage)
    gates.fail_below(made, fail_below)
    if log is not None and fail_if_slower is not None:
        from ddtree_metrics.diagnosis import diagnose

        gates.fail_if_slower(diagnose(log, tz=source.zone), fail_if_slower, in_time=True)


def _form(as_csv: bool, as_json: bool, output: str | None) -> str:
    """Say whether CSV, JSON or text is asked for."""
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude each other")
    asked = "csv" if as_csv else "json" if as_json else None
    if output is None:
        return asked or "text"
    by_name = SUFFIXES.get(Path(output).suffix.lower())
    if by_name is None and asked is None:
        raise click.UsageError(f"-o {output}: the name must end in {', '.join(SUFFIXES)}, or give --csv or --json")
    if by_name is not None and asked is not None and by_name != asked:
        raise click.UsageError(f"-o {output} is a name for {by_name}, and --{asked} asks for another form")
    return asked or str(by_name)


def _csv(made: Summary) -> str:
    """Write the lines of a summary as CSV; an empty cell is not known."""
    from ddtree_metrics.summary import SummaryLine

    names = [f.name for f in fields(SummaryLine)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["section", *names])
    for section, lines in made.sections.items():
        for line in lines:
            row = asdict(line)
            writer.writerow([section, *("" if row[name] is None else row[name] for name in names)])
    return out.getvalue()
