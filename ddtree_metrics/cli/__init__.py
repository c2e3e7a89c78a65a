"""The command line: it translates options into keywords of library functions, and errors into messages and exit codes.

This file is read on every start, for ``--help`` too: nothing heavy is imported here, and commands import when they run.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import warnings
from typing import Any, NoReturn

import click

from ddtree_metrics import __version__
from ddtree_metrics.cli.screen import write
from ddtree_metrics.errors import DDTreeError, DDTreeWarning

# The order in which ``--help`` lists them: the way a user goes.
COMMANDS = {
    "export": "steps (or another table, or all) to Parquet, CSV, JSON lines, Arrow",
    "lake": "look after what export --append makes: join requests, check, compact, drop old days",
    "inspect": "what is in there: units, kinds of line, broken ones, gaps, clocks, conventions",
    "summary": "the numbers, in the terminal",
    "diagnose": "why it was slow",
    "compare": "two windows, server starts, files or services against each other",
    "requests": "the slowest requests, those around a time, or one, and why they stand out",
    "watch": "speed, step time and tokens per step while a log is written",
    "plot": "step time and tokens per step against context: PNG, SVG, PDF",
    "report": "all of it on one HTML page that needs no network",
    "bench": "two-point decode speed against context, of a running server",
    "schema": "columns, types, units, meanings",
    "completion": "the script that completes commands and options in a shell",
}

EXAMPLES = """
\b
Examples:
  ddtree-logs export --since 1h -u sglang-kimi.service
  ddtree-logs export run.log.gz -o run.parquet
  ddtree-logs diagnose -u sglang-kimi.service --since yesterday --requests requests.jsonl
  journalctl -o export -u sglang-kimi -S -1h | ddtree-logs summary -

\b
Exit codes: 0 done, also where no metric line was found; 1 another error; 2 usage; 3 no such unit, journal or file;
4 it may not be read; 5 this machine cannot read it; 6 part was damaged, what was good was exported.
"""

TRACEBACK = "DDTREE_LOGS_TRACEBACK"
"""The environment variable with which an error that nobody expected shows its traceback."""
OWN_PROCESS = "own process"
"""``ctx.obj`` where a command has the process to itself."""


class Commands(click.Group):
    """The group: it loads a command when it is called, and holds the one ``except`` of the program."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run as the program; whoever runs commands inside of another program calls ``main.main``."""
        return super().__call__(*args, **{"obj": OWN_PROCESS, **kwargs})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands without importing them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import one command."""
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"ddtree_metrics.cli.{name}_command"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from their one-line descriptions, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command when one is mistyped."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            from pathlib import Path

            from ddtree_metrics.cli.near import meant

            if Path(args[0]).exists():
                ctx.fail(f"{args[0]!r} is a file, not a command: ddtree-logs diagnose {args[0]}")
            ctx.fail(f"no command {args[0]!r}{meant(args[0], COMMANDS)}")

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a library error becomes its sentence on stderr and its exit code."""
        with contextlib.suppress(ValueError):  # only the main thread may
            signal.signal(signal.SIGTERM, _end)
        with warnings.catch_warnings():
            warnings.simplefilter("always", DDTreeWarning)
            warnings.showwarning = _say_warning
            try:
                made = super().invoke(ctx)
                sys.stdout.flush()
                return made
            except DDTreeError as error:
                _give_up(ctx, str(error), error.exit_code)
            except BrokenPipeError:
                # The reader of stdout has gone, `head` for one.
                _let_go_of(sys.stdout)
                ctx.exit(141)  # as the shell says of a program that SIGPIPE ended
            except KeyboardInterrupt:
                _give_up(ctx, "interrupted; nothing half-written was left", 130)
            except (click.ClickException, click.exceptions.Exit, click.Abort):
                raise
            except Exception as error:
                if os.environ.get(TRACEBACK):
                    raise
                _give_up(ctx, _unexpected(error), 1)


def _give_up(ctx: click.Context, why: str, code: int) -> NoReturn:
    """Say in one sentence what went wrong, and end; where stdout or stderr cannot take it any more, that is no news."""
    with contextlib.suppress(OSError, DDTreeError):
        write(f"ddtree-logs: {why}", err=True)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            _let_go_of(stream)
    ctx.exit(code)


def _let_go_of(stream: Any) -> None:
    """Have what a stream still holds go nowhere; Python would complain once more when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _unexpected(error: Exception) -> str:
    """Say what no part of the library has put into words: the system's refusal, or a fault of this program."""
    from ddtree_metrics.dialects.secrets import redact
    from ddtree_metrics.tables.atomic import why_not

    if isinstance(error, OSError):
        return f"cannot go on{f' with {error.filename}' if error.filename else ''}: {why_not(error)}"
    if isinstance(error, MemoryError):
        return "there is not enough memory; narrow what is read with --since, --until or --unit"
    what = redact(" ".join(f"{type(error).__name__}: {error}".split()))[:200]
    return f"this should not have happened ({what}); run it again with {TRACEBACK}=1 to see where, and report it"


def _end(number: int, frame: Any) -> None:
    """End on SIGTERM as on Ctrl-C, so that nothing half-written stays behind."""
    raise SystemExit(128 + number)


def _say_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None
) -> None:
    if issubclass(category, DDTreeWarning):
        write(f"ddtree-logs: warning: {message}", err=True)


@click.command(cls=Commands, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="ddtree-logs")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Find out why speculative decoding was slow, from the log lines that are already there.

    Reads SGLang's step and batch lines from the systemd journal or from files, and derives step time and tokens per step.
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False
