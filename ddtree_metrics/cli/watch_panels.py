"""How a snapshot looks: a line, or a screen that is drawn anew once a second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddtree_metrics.diagnosis.numerals import change, number
from ddtree_metrics.live.alerts import spelled
from ddtree_metrics.live.rolling import Means
from ddtree_metrics.live.watching import PIECE_S, Snapshot
from ddtree_metrics.validation import printable

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

_BARS = "▁▂▃▄▅▆▇█"
_NONE = "-"
_BESIDE = 40
"""So many columns stand beside the bars."""


def sparkline(values: Sequence[float | None]) -> str:
    """Draw values as bars of one character, between the lowest and the highest; a blank where there is none."""
    known = [x for x in values if x is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    span = high - low
    # a change of less than a twentieth is no mountain
    low, span = (low, span) if span > 0.05 * high else (low - 0.5 * high, 1.05 * high)
    return "".join(" " if x is None else _BARS[min(int((x - low) / span * (len(_BARS) - 1) + 0.5), len(_BARS) - 1)] for x in values)


def waiting(s: Snapshot, title: str) -> str:
    """Say what is waited for."""
    if not s.lines:
        return f"waiting for the first line of {title}: none is there yet"
    return f"waiting for the first step of {title}: none in {s.lines:,} lines"


def plain_line(s: Snapshot) -> str:
    """Write a snapshot in one line."""
    if s.time is None:
        return f"no step in {s.lines:,} lines"
    m = s.spans["1 min"]
    parts = [
        s.time[11:19],
        f"{_of(m.tok_per_s)} tok/s",
        f"{_of(m.step_ms)} ms/step",
        f"{_of(m.tokens, 2)} tokens/step",
        f"batch {_of(m.batch, 1)}",
    ]
    if s.step_ratio is not None or s.tokens_ratio is not None:
        parts.append(f"against the baseline: step time {_ratio(s.step_ratio)}, tokens {_ratio(s.tokens_ratio)}")
    return "  ".join(parts)


def _of(x: float | None, digits: int | None = None) -> str:
    return _NONE if x is None else number(x, digits)


def _ratio(x: float | None) -> str:
    return _NONE if x is None else change(x)


def start_screen() -> Live:
    """Take the terminal; ``stop`` gives it back as it was."""
    from rich.console import Console
    from rich.live import Live

    live = Live(console=Console(emoji=False, highlight=False), screen=True, auto_refresh=False, transient=True)
    live.start()
    return live


def panel(s: Snapshot, title: str, width: int, height: int = 100) -> Group:
    """Lay a snapshot out for a terminal of so many columns and lines."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    said: list[Any] = []
    head = f"{title} · {s.time[11:19]} UTC{_behind(s)}" if s.time is not None else waiting(s, title)
    said.append(Text(printable(head)[:width], style="bold"))
    for alert in s.alerts:
        said.append(Text(f"⚠ {alert.said}"[: 2 * width], style="bold red"))
    said.append(Text(""))
    rows = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    rows.add_column("last")
    for name in ("tok/s", "ms/step", "tok/step", "batch"):
        rows.add_column(name, justify="right")
    for name, m in s.spans.items():
        rows.add_row(name, *_cells(m))
    said.append(rows)
    said.append(Text(""))
    against = s.baseline is not None
    by = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    by.add_column("context, 5 min")
    for name in ("tok/s", "ms/step", "tok/step", *(("step", "tokens") if against else ())):
        by.add_column(name, justify="right")
    for b in s.bins:
        ratios = [_coloured(b.step_ratio, up_is_bad=True), _coloured(b.tokens_ratio, up_is_bad=False)] if against else []
        by.add_row("not known" if b.context == "unknown" else b.context, *_cells(b.now)[:3], *ratios)
    if s.bins:
        said += [by, Text("")]
    room = max(min(len(s.step_ms), width - _BESIDE), 1)
    for name, values, unit, digits in (("step time  ", s.step_ms[-room:], "ms", None), ("tokens/step", s.tokens[-room:], "", 2)):
        known = [x for x in values if x is not None]
        if known:
            span = f"{number(min(known), digits)} to {number(max(known), digits)} {unit}".rstrip()
            said.append(Text(f"{name} {sparkline(values)}  {span}, {spelled(room * PIECE_S)}"[:width]))
    lines = 12 + len(s.alerts) + len(s.bins) + 2 * bool(s.bins)
    events = s.events[-max(height - lines - 1, 1) :]
    if events:
        said.append(Text(""))
        said += [Text(printable(f"{at} {what}")[:width], style="yellow") for at, what in events]
    if s.hidden:
        said.append(Text(printable(s.hidden)[: width - 1], style="dim"))
    foot = f"{s.lines:,} lines" + (f", at least {s.lost_lines:,} lost" if s.lost_lines else "")
    foot += " · reading the baseline" if s.waits_for_baseline else f" · baseline: {s.baseline}" if against else " · no baseline"
    said += [Text(""), Text(printable(foot)[:width], style="dim")]
    return Group(*said)


def _behind(s: Snapshot) -> str:
    """Say that the newest step is old, or that none has come for a while."""
    if s.quiet_s is not None and s.quiet_s > 5:
        return f" · no step for {s.quiet_s:,.0f} s"
    return f" · {s.lag_s:,.0f} s behind" if s.lag_s is not None and s.lag_s > 5 else ""


def _cells(m: Means) -> tuple[str, str, str, str]:
    return _of(m.tok_per_s), _of(m.step_ms), _of(m.tokens, 2), _of(m.batch, 1)


def _coloured(ratio: float | None, *, up_is_bad: bool) -> str:
    if ratio is None:
        return _NONE
    worse = ratio if up_is_bad else 1 / ratio
    text = change(ratio)
    return f"[red]{text}[/red]" if worse >= 1.1 else f"[green]{text}[/green]" if worse <= 1 / 1.1 else text
