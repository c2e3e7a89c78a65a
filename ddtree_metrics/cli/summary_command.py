"""``ddtree-logs summary``: the numbers, in the terminal."""

from __future__ import annotations

import click

from ddtree_metrics.cli import screen
from ddtree_metrics.cli.options import Input, fail_if_damaged, input_options, say_notes

EXAMPLES = """
\b
Examples:
  ddtree-logs summary --since 1h -u sglang-kimi.service
  ddtree-logs summary run.log.gz --requests requests.jsonl
  ddtree-logs summary steps.parquet --json
"""


@click.command(epilog=EXAMPLES)
@input_options
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def summary(source: Input, as_json: bool) -> None:
    """Print rows, time span, step time, tokens per step and speed: for each server start and by context."""
    from ddtree_metrics.summary import summarise, summary_lines

    log = source.log()
    made = summarise(log)
    if as_json:
        screen.write_json(made.to_dict())
    else:
        screen.say_lines(summary_lines(made, screen.width()))
    say_notes(log.coverage)
    fail_if_damaged(log.coverage)
