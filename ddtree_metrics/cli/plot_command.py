"""``ddtree-logs plot``: pictures."""

from __future__ import annotations

from pathlib import Path

import click

from ddtree_metrics.cli.dead_ends import end_if_nothing
from ddtree_metrics.cli.near import NearChoice
from ddtree_metrics.cli.options import Input, SourcedCommand, fail_if_damaged, input_options, output_option, refuse_inputs, say, say_notes
from ddtree_metrics.cli.pictures import PICTURES, Subject

AXES = {"context": "context_len", "prompt": "prompt_len", "generated": "generated_len"}

EXAMPLES = """
\b
Examples:
  ddtree-logs plot --since 1h -u sglang-kimi.service -o steps.png
  ddtree-logs plot steps.parquet --kind survival -o survival.svg
  ddtree-logs plot run.log --by generated -o generated.pdf
"""


@click.command(cls=SourcedCommand, epilog=EXAMPLES)
@input_options
@output_option("FILE", "Ending in .png, .svg or .pdf.", required=True)
@click.option("--kind", type=NearChoice(list(PICTURES)), default="overview", show_default=True, help="Which picture.")
@click.option("--by", type=click.Choice(list(AXES)), default="context", show_default=True, help="What lies on the x axis of a curve.")
@click.option("--bench", metavar="FILE", help="Lay a measured sweep of 'ddtree-logs bench' over the curve.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def plot(source: Input, output: str, kind: str, by: str, bench: str | None, force: bool) -> None:
    """Draw step time and tokens per step against context, or another picture."""
    from ddtree_metrics import metrics, plots
    from ddtree_metrics.diagnosis import diagnose
    from ddtree_metrics.report.facts import gather

    refuse_inputs(source, [output], bench)
    sweep = None
    if bench is not None:
        from ddtree_metrics.bench import load_sweep

        sweep = load_sweep(bench)
    log = source.log()
    end_if_nothing(source, log, data=True)
    found = diagnose(log)
    facts = gather(log, found, sweep)
    curve = facts.curve if by == "context" else metrics.by_context(facts.rows, by=AXES[by], each="run")
    curve.attrs["starts"] = facts.starts
    written = plots.save_figure(PICTURES[kind](plots, Subject(log, found, facts, curve)), Path(output), force=force)
    say_notes(log.coverage)
    say(f"wrote {written}")
    fail_if_damaged(log.coverage)
