"""Where there is nothing to show: the reason, the remedy, exit code 3, and no file written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddtree_metrics.cli import screen
from ddtree_metrics.cli.options import Input, say_notes
from ddtree_metrics.errors import EXIT_NOT_FOUND, DDTreeError

if TYPE_CHECKING:
    from ddtree_metrics.log import Log

_WINDOW = ("since", "until")


def end_if_nothing(source: Input, log: Log, *, data: bool = False) -> None:
    """End with exit code 3 where a log has no step: say why and what to do; on stderr where stdout is for data."""
    read = log.coverage.parsed
    if read.get("steps") or read.get("decode") or log.stored & {"request_steps"} or (read.get("request_lines") and len(log.basis)):
        return
    screen.say_lines(screen.dead_end(*_why(source, log)), err=data)
    say_notes(log.coverage, told=True)
    click.get_current_context().exit(EXIT_NOT_FOUND)


def ask_for_one_service(log: Log) -> None:
    """Refuse to explain several services as if they were one: name them, and how to choose.

    Raises
    ------
    UsageError
        If the steps are of several services.
    """
    import numpy as np

    basis = log.basis
    steps = np.bincount(basis.service[basis.first & (basis.service >= 0)], minlength=len(basis.services))
    found = [(name.rpartition("/")[2], int(n)) for name, n in zip(basis.services, steps, strict=True) if n]
    names = list(dict.fromkeys(name for name, _ in found))
    if len(names) < 2:
        return
    listed = ", ".join(f"{name or 'no unit'} ({sum(n for other, n in found if other == name):,} steps)" for name in names)
    units = {str(u) for table in ("steps", "decode") for u in log.frame(table)["unit"].dropna().unique()}
    how = "choose one with -u" if set(names) <= units else "give one of the files"
    raise click.UsageError(
        f"there are {len(names)} services in here, and an answer is about one: {how}, or compare them; there are {listed}"
    )


def _why(source: Input, log: Log) -> tuple[str, str]:
    from ddtree_metrics.hints import empty_window, nothing_found

    if any(name in source.keywords for name in _WINDOW):
        span = source.span()
        if span is not None:
            return empty_window(_window_in_words(source, span[0]), *span, what="file" if source.files else "journal")
    if not log.coverage.broken_lines:
        for name in source.files:
            if found := _what_else(name):
                return found
    return nothing_found(log.coverage) or ("There is nothing to show.", "")


def _window_in_words(source: Input, first_us: int) -> str:
    """Write the window as it was understood, without the day where it is that of the log: ``between 05:38 and 06:38 UTC``."""
    from ddtree_metrics.times import ALWAYS, format_us, parse_window

    window = parse_window(source.keywords.get("since"), source.keywords.get("until"), now_us=source.keywords.get("now_us"), tz=source.zone)
    low, high = (None if us is None else f"{format_us(us)[:16].replace('T', ' ')}" for us in (window.since_us, window.until_us))
    day = format_us(first_us)[:10]
    if all(end is None or end[:10] == day for end in (low, high)):
        low, high = low and low[11:], high and high[11:]
    if window == ALWAYS:
        return "in the window"
    return f"between {low} and {high} UTC" if low and high else f"from {low} UTC on" if low else f"before {high} UTC"


def _what_else(name: str) -> tuple[str, str] | None:
    """Say what a file is that is no log: requests."""
    path = Path(name)
    if name == "-" or not path.is_file():
        return None
    if _is_requests(path):
        return f"{name} is a file of requests, not a log.", f"Give it beside the log: ddtree-logs … LOG --requests {name}"
    return None


def _is_requests(path: Path) -> bool:
    """Whether a file can be read as requests."""
    import warnings

    from ddtree_metrics.requests import read_requests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return bool(len(read_requests(path)))
        except (DDTreeError, ValueError, OSError):
            return False
