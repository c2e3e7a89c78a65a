"""``ddtree-logs completion``: the script that completes commands and options in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ddtree_metrics.cli.screen import write

EXAMPLES = """
\b
Examples:
  eval "$(ddtree-logs completion bash)"
  ddtree-logs completion fish > ~/.config/fish/completions/ddtree-logs.fish
"""


@click.command(epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL; put it where your shell looks, or evaluate it."""
    from ddtree_metrics.cli import main

    cls = get_completion_class(shell)
    assert cls is not None
    write(cls(main, {}, "ddtree-logs", "_DDTREE_LOGS_COMPLETE").source())
