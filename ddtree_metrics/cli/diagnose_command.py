"""``ddtree-logs diagnose``: why it was slow."""

from __future__ import annotations

from typing import Any

import click

from ddtree_metrics.cli import gates, screen
from ddtree_metrics.cli.dead_ends import ask_for_one_service, end_if_nothing
from ddtree_metrics.cli.gates import fail_if_slower_option
from ddtree_metrics.cli.options import Input, SourcedCommand, fail_if_damaged, input_options, say_notes

EXAMPLES = """
\b
Examples:
  ddtree-logs diagnose --since today -u sglang-kimi.service --requests requests.jsonl
  ddtree-logs diagnose run.log --before run:1 --after run:2           two server starts
  ddtree-logs diagnose run.log --before 13:00..13:30 --after 14:00..14:30
  ddtree-logs diagnose run.log --before context:0-1023 --after context:4096-8191
"""


@click.command(cls=SourcedCommand, epilog=EXAMPLES)
@input_options
@click.option(
    "--before", metavar="GROUP", help="Compare these steps: FROM..TO, run:N, boot:ID, unit:NAME, context:LOW-HIGH, requests:ID,ID."
)
@click.option("--after", metavar="GROUP", help="... with these; with only one of the two, the other is all the rest.")
@click.option("--window", type=click.IntRange(1), metavar="TOKENS", help="The drafter's attention window, where no start line says it.")
@click.option("--level", type=click.FloatRange(0.5, 0.999), default=0.9, show_default=True, help="Level of the intervals.")
@click.option(
    "--min-change", type=click.FloatRange(0.001, 0.9), metavar="SHARE", help="The smallest change of speed that counts, as a share."
)
@click.option(
    "--start-floor",
    type=click.FloatRange(0.0, 0.5),
    metavar="SHARE",
    help="By how much step time differs from one server start to the next when nothing was changed (0.02).",
)
@click.option("--beside", is_flag=True, help="Keep messages of other programs that stand beside a change, redacted and cut, in --json.")
@click.option("--full", is_flag=True, help="All evidence under the answer.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@fail_if_slower_option
def diagnose(
    source: Input,
    before: str | None,
    after: str | None,
    window: int | None,
    level: float,
    min_change: float | None,
    start_floor: float | None,
    beside: bool,
    full: bool,
    as_json: bool,
    fail_if_slower: float | None,
) -> None:
    """Say what happened to the speed of requests, since when, and why: step time, acceptance or both, and with what it goes.

    Without --before and --after, what stands out by itself is looked for: server starts, sudden changes in mid-run, long context.
    """
    from ddtree_metrics.diagnosis import diagnose as find
    from ddtree_metrics.diagnosis.text import diagnosis_lines

    log = source.log()
    end_if_nothing(source, log, data=as_json)
    if before is None and after is None:
        ask_for_one_service(log)
    given = {"min_change": min_change, "start_floor": start_floor}
    more: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    found = find(log, before, after, window=window, level=level, tz=source.zone, messages=beside, **more)
    if as_json:
        screen.write_json(found.to_dict())
    else:
        screen.say_lines(diagnosis_lines(found, screen.width(), full=full, shell=True))
    say_notes(log.coverage)
    fail_if_damaged(log.coverage)
    gates.fail_if_slower(found, fail_if_slower, in_time=before is None and after is None)
