"""``ddtree-logs bench``: decode speed against context length, measured at a running server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddtree_metrics.cli.gates import ShareType
from ddtree_metrics.cli.options import output_option
from ddtree_metrics.cli.screen import write, write_json
from ddtree_metrics.errors import EXIT_ERROR, BenchError

if TYPE_CHECKING:
    from ddtree_metrics.bench.baseline import SweepComparison
    from ddtree_metrics.bench.prompts import PromptSource
    from ddtree_metrics.bench.sweep import Plan, Sweep

KEY_VARIABLES = ["DDTREE_API_KEY", "OPENAI_API_KEY"]
INTERRUPTED = 130

EXAMPLES = """
\b
Examples:
  ddtree-logs bench http://127.0.0.1:30000 --ctx 64 1024 3072 5120
  ddtree-logs bench 127.0.0.1:30000 --save baseline.json
  ddtree-logs bench 127.0.0.1:30000 --compare baseline.json --tolerance 10%
  ddtree-logs bench sweep.json --compare baseline.json     (two saved sweeps, nothing is sent)

\b
Exit codes: 0 all measured, none slower; 1 a context length could not be measured, or is slower than the
baseline beyond the tolerance; 2 usage; 130 ended by Ctrl-C (what was measured is shown and saved).
"""


class _SeveralValues(click.Command):
    """A command whose ``--ctx`` and ``--n2`` take several numbers after one name: ``--ctx 64 1024``."""

    several = ("--ctx", "--n2")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option's name before each further number."""
        made: list[str] = []
        current: str | None = None
        for i, arg in enumerate(args):
            if arg == "--":
                made += args[i:]
                break
            name, _, value = arg.partition("=")
            if name in self.several:
                current = name
                if value:
                    made += [part for piece in value.split(",") if piece for part in (name, piece)]
                elif i + 1 >= len(args) or not _is_number(args[i + 1]):
                    made.append(name)  # click will say what is missing
                continue
            if current and _is_number(arg):
                made += [part for piece in arg.split(",") if piece for part in (current, piece)]
                continue
            current = None
            made.append(arg)
        return super().parse_args(ctx, made)


def _is_number(text: str) -> bool:
    return text.replace(",", "").isdigit()


@click.command(cls=_SeveralValues, epilog=EXAMPLES)
@click.argument("url", metavar="URL")
@click.option(
    "--ctx",
    "contexts",
    type=click.IntRange(1),
    multiple=True,
    metavar="TOKENS...",
    default=(64, 1024, 3072, 5120),
    help="Prompt lengths, as the server counts them.  [default: 64 1024 3072 5120]",
)
@click.option("--n1", type=click.IntRange(2), default=8, show_default=True, metavar="TOKENS", help="Output of the short request.")
@click.option(
    "--n2",
    type=click.IntRange(3),
    multiple=True,
    metavar="TOKENS...",
    default=(264,),
    help="Output of the long request; several for a regression over more than two points.  [default: 264]",
)
@click.option("--repeat", type=click.IntRange(1), default=15, show_default=True, metavar="N", help="Rounds, each with fresh prompts.")
@click.option(
    "--precision",
    type=ShareType(),
    default="5%",
    show_default=True,
    help="After seven rounds, stop a length whose 95 % interval is narrower than this; 0 never.",
)
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Requests at once.")
@click.option("--model", metavar="NAME", help="Model to ask for; the first that the server names if not given.")
@click.option(
    "--api-key",
    envvar=KEY_VARIABLES,
    show_envvar=True,
    metavar="KEY",
    help="Better in the environment than here, where other users of the machine can see it. Never printed or saved.",
)
@click.option("--prompt-file", metavar="FILE", help="Text for the prompts instead of the built-in varied prose.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=300, show_default=True, metavar="S", help="For one request.")
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same prompts.")
@click.option("--stream/--no-stream", default=False, show_default=True, help="Event streams (what a chat client sees) or whole answers.")
@click.option("--chat/--completions", default=False, show_default=True, help="Which endpoint; reasoning counts as output.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent; send nothing.")
@click.option("--plain", is_flag=True, help="Five columns only: ctx_req prompt_tok decode_tok/s t_a t_b.")
@click.option("--json", "as_json", is_flag=True, help="The whole sweep as JSON.")
@output_option("FILE", "Save the sweep: .json or .parquet.")
@click.option(
    "--requests",
    "requests_file",
    metavar="FILE",
    help="Save ids and times of all requests, as JSON lines for --requests of the other commands.",
)
@click.option("--plot", metavar="FILE", help="Draw the curve: .png, .svg or .pdf.")
@click.option("--save", metavar="FILE", help="Save the sweep as a baseline (.json).")
@click.option("--compare", metavar="FILE", help="Compare with a saved baseline.")
@click.option("--tolerance", type=ShareType(), default="5%", show_default=True, help="A slow-down up to this is none.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.pass_context
def bench(ctx: click.Context, /, url: str, **options: Any) -> None:
    """Measure decode speed against context length at the OpenAI-compatible server URL.

    For each context length and round, a fresh prompt of exactly that many tokens is sent with few and with many output tokens; the
    difference in time over the difference in tokens really produced is the time of a token, prefill left out. URL may also be a
    saved sweep: it is shown again, and nothing is sent.
    """
    from ddtree_metrics.bench.baseline import compare
    from ddtree_metrics.bench.sweep import load_sweep

    if options["plain"] and options["as_json"]:
        raise click.UsageError("--plain and --json exclude each other")
    _check_outputs(options)
    baseline = load_sweep(options["compare"]) if options["compare"] else None
    saved = _is_saved(url)
    if saved:
        sweep = load_sweep(url)
    else:
        plan = _plan(options)
        prompts = _prompts(options)
        if options["dry_run"]:
            write(_plan_text(url, plan, prompts, ctx), nl=False)
            return
        sweep = _measure(url, plan, prompts, options["api_key"])
    comparison = compare(baseline, sweep, options["tolerance"]) if baseline else None
    _show(sweep, comparison, options)
    _write(sweep, options)
    _end(ctx, sweep, comparison, interrupted=sweep.interrupted and not saved)


def _is_saved(url: str) -> bool:
    """Whether it names a file and no server."""
    try:
        return Path(url).is_file() or ("://" not in url and Path(url).suffix in (".json", ".parquet"))
    except (OSError, ValueError):  # no file can have such a name
        return False


def _plan(options: dict[str, Any]) -> Plan:
    from ddtree_metrics.bench.sweep import Plan

    longer: Sequence[int] = sorted(set(options["n2"]))
    if longer[0] <= options["n1"]:
        raise click.UsageError(f"--n2 ({longer[0]}) must be more than --n1 ({options['n1']})")
    return Plan(
        ctx=tuple(dict.fromkeys(options["contexts"])),
        lengths=(options["n1"], *longer),
        repeat=options["repeat"],
        precision=options["precision"],
        concurrency=options["concurrency"],
        chat=options["chat"],
        stream=options["stream"],
        seed=options["seed"],
        timeout=options["timeout"],
        model=options["model"],
    )


def _prompts(options: dict[str, Any]) -> PromptSource:
    from ddtree_metrics.bench.prompts import PromptSource

    if options["prompt_file"]:
        return PromptSource.from_file(options["prompt_file"], options["seed"])
    return PromptSource(options["seed"])


def _check_outputs(options: dict[str, Any]) -> None:
    """Refuse before measuring what could not be written after it."""
    for name, endings in (
        ("output", (".json", ".parquet")),
        ("save", (".json",)),
        ("plot", (".png", ".svg", ".pdf")),
        ("requests_file", ()),
    ):
        given = options[name]
        if not given:
            continue
        path, option = Path(given), "--" + name.removesuffix("_file")
        if endings and path.suffix.lower() not in endings:
            raise click.UsageError(f"{option} {given}: the name must end in {' or '.join(endings)}")
        if path.exists() and not options["force"]:
            raise click.UsageError(f"{option} {given} exists; --force overwrites it")
        if not path.absolute().parent.is_dir():
            raise click.UsageError(f"{option} {given}: there is no folder {path.parent}")


def _plan_text(url: str, plan: Plan, prompts: PromptSource, ctx: click.Context) -> str:
    from ddtree_metrics.bench.client import base_address

    address = base_address(url)[0].split("?", 1)[0]
    prompt_tokens, output_tokens = plan.tokens
    source = ctx.get_parameter_source("api_key")
    if ctx.params.get("api_key") is None:
        key = "none"
    elif source is click.core.ParameterSource.ENVIRONMENT:
        key = f"from {next(v for v in KEY_VARIABLES if os.environ.get(v))}"
    else:
        key = "given"
    endpoint = "/chat/completions" if plan.chat else "/completions"
    early = f", fewer where the interval is narrower than {100 * plan.precision:g} %" if plan.precision else ""
    lines = [
        f"server       {address}{endpoint}, {'event streams' if plan.stream else 'whole answers'}",
        f"model        {plan.model or 'the first that the server names'}",
        f"API key      {key}",
        f"prompt       {prompts.description}",
        f"contexts     {' '.join(map(str, plan.ctx))} tokens, counted by the server",
        f"outputs      {' '.join(map(str, plan.lengths))} tokens",
        f"rounds       {plan.repeat}{early}",
        f"at once      {plan.concurrency}",
        f"requests     {plan.requests}, and some to find the prompts' lengths",
        f"tokens       up to {prompt_tokens} of prompts (most of them cached) and {output_tokens} of output",
        "nothing was sent",
    ]
    return "\n".join(lines) + "\n"


def _measure(url: str, plan: Plan, prompts: PromptSource, key: str | None) -> Sweep:
    from ddtree_metrics.bench.protocol import run_sweep

    if not sys.stderr.isatty():
        return run_sweep(url, plan, prompts=prompts, api_key=key)

    def progress(done: int, total: int, text: str) -> None:
        filled = round(24 * done / total) if total else 0
        click.echo(f"\r\x1b[K[{'#' * filled}{'.' * (24 - filled)}] {done}/{total}  {text}", err=True, nl=False)

    try:
        return run_sweep(url, plan, prompts=prompts, api_key=key, progress=progress)
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)


def _show(sweep: Sweep, comparison: SweepComparison | None, options: dict[str, Any]) -> None:
    """Write the result to stdout, and what to know about it to stderr."""
    if options["as_json"]:
        made = json.loads(sweep.to_json())
        if comparison:
            made["comparison"] = comparison.to_dict()
        write_json(made)
    else:
        click.echo(sweep.plain() if options["plain"] else sweep.table(), nl=False)
        if comparison and not options["plain"]:
            click.echo()
            write(comparison.table(), nl=False)
    version = sweep.server.get("version")
    say = [f"{sweep.model or 'model unnamed'} at {sweep.url} ({sweep.server.get('kind', 'unknown')}{f' {version}' if version else ''})"]
    say.append(f"prompt: {sweep.prompt}")
    if sweep.interrupted:
        say.append("this sweep was interrupted: it holds what was measured until then")
    say += sweep.notes
    say += [f"{p.ctx_req}: {note}" for p in sweep.points for note in p.notes]
    if comparison:
        say += comparison.notes
        say += [f"changed: {name}: {old} -> {new}" for name, (old, new) in comparison.changed.items()]
        say += [f"{v.ctx_req}: {v.verdict}: {v.reason}" for v in comparison.verdicts if v.reason]
        say.append(comparison.sentence)
    for line in say:
        write(line, err=True)


def _write(sweep: Sweep, options: dict[str, Any]) -> None:
    for name in ("output", "save"):
        if options[name]:
            sweep.save(options[name], force=options["force"])
    if options["requests_file"]:
        sweep.save_requests(options["requests_file"], force=options["force"])
    if options["plot"]:
        import pandas as pd

        from ddtree_metrics.plots import plot_speed
        from ddtree_metrics.plots.figure_files import save_figure

        save_figure(plot_speed(pd.DataFrame(), sweep=sweep.frame()), options["plot"], force=options["force"])


def _end(ctx: click.Context, sweep: Sweep, comparison: SweepComparison | None, *, interrupted: bool) -> None:
    """Choose the exit code: interrupted, slower, not measured, done."""
    if interrupted:
        write("ddtree-logs: interrupted; what was measured until then is above", err=True)
        ctx.exit(INTERRUPTED)
    wrong = [f"{p.ctx_req} tokens: {p.reason}" for p in sweep.unmeasured]
    if comparison and comparison.regressions:
        slower = "; ".join(
            f"{v.ctx_req} tokens: {v.before:.1f} -> {v.now:.1f} tok/s ({100 * ((v.ratio or 0) - 1):+.1f} %)" for v in comparison.regressions
        )
        for line in wrong:
            write(f"ddtree-logs: cannot be measured: {line}", err=True)
        write(f"ddtree-logs: slower than the baseline beyond {100 * comparison.tolerance:g} %: {slower}", err=True)
        ctx.exit(EXIT_ERROR)
    if wrong:
        raise BenchError(f"{len(wrong)} of {len(sweep.points)} context lengths cannot be measured: {'; '.join(wrong)}")
