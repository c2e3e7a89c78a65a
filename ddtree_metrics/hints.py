"""What to do where nothing was found: the reason in one sentence, and the remedy in another, by what was read.

A reason never asks for a flag that the lines show to be on, nor for lines that were there and could not be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddtree_metrics.dialects import DIALECTS
from ddtree_metrics.layout import plural
from ddtree_metrics.times import format_us

if TYPE_CHECKING:
    from ddtree_metrics.coverage import Coverage

DEBUG_FLAG = "--speculative-ddtree-debug-metrics"


def nothing_found(coverage: Coverage) -> tuple[str, str] | None:
    """Say why no step can be measured and what to do; None where there are steps, or Decode lines, which do as well.

    Parameters
    ----------
    coverage : Coverage
        What the read met.
    """
    parsed, lines = coverage.parsed, coverage.lines
    if parsed.get("steps") or parsed.get("decode"):
        return None
    broken = [kind for kind in coverage.broken if kind.table in ("steps", "decode")]
    if broken:
        worst = max(broken, key=lambda kind: kind.count)
        where = f", first at {worst.examples[0][0]}" if worst.examples else ""
        about = next((d.about for d in DIALECTS if d.name == worst.dialect and d.name != "sglang"), "")
        whose = f" of {about.partition(':')[0]}" if about else ""
        return (
            f"{plural(sum(k.count for k in broken), 'line')}{whose} could not be read: their form is broken ({worst.reason}{where}).",
            "'ddtree-logs inspect' shows them; a form of your own is described in a file for --dialect-file.",
        )
    if coverage.outside_window:
        return f"No step lies in the window: {plural(coverage.outside_window, 'row')} lie outside of it.", "Try another --since or --until."
    if server := other_server(coverage):
        return f"There is no step in {plural(lines, 'line')}: {server[0]}.", f"{server[1]}."
    others = [name for name in ("prefill", "servers", "request_lines") if parsed.get(name)]
    if others:
        return (
            f"There is no step in {plural(lines, 'line')}, only other lines of the server: nothing was decoded, or no step was logged.",
            f"Start the server with {DEBUG_FLAG}, or with --decode-log-interval 1.",
        )
    if lines or coverage.message_null or coverage.message_missing:
        return (
            f"There is no line of SGLang in {plural(lines, 'line')}.",
            f"Is it the right unit and window, and is {DEBUG_FLAG} on? Lines of a container are often filed under another unit: "
            "select them with --identifier or --container.",
        )
    return "No line at all was found.", "If there is a window, --since reaches further back; 'ddtree-logs inspect' shows what is there."


def other_server(coverage: Coverage) -> tuple[str, str] | None:
    """Say whose log it is, and what would make that server say more, where its dialect has a word for it."""
    # access lines, which many servers write in one way, are read as SGLang's: a line that only one of them writes tells more
    told = [d for d in DIALECTS if d.more and coverage.dialects.get(d.name, 0)]
    if not told:
        return None
    most = max(told, key=lambda d: coverage.dialects[d.name])
    return f"this is the log of {most.about}", most.more


def decode_instead(coverage: Coverage) -> str:
    """Say that there is no DDTree line, but Decode lines, which do as well; ``""`` where it is not so."""
    if coverage.parsed.get("steps") or not coverage.parsed.get("decode"):
        return ""
    if server := other_server(coverage):
        return "; ".join(server)
    decode = plural(coverage.parsed["decode"], "Decode batch line")
    broken = sum(kind.count for kind in coverage.broken if kind.table == "steps")
    if broken:
        return f"{plural(broken, 'DDTree line')} could not be read ('ddtree-logs inspect' shows them); {decode} were read instead"
    return f"no DDTree line in {plural(coverage.lines, 'line')}, but {decode} (table decode): diagnose and summary work with them too"


def empty_window(asked: str, first_us: int, last_us: int, what: str = "file") -> tuple[str, str]:
    """Say that a window holds nothing, what there is, and the ``--since`` that reaches it.

    Parameters
    ----------
    asked : str
        The window in words.
    first_us, last_us : int
        What the file or journal covers.
    what : str
        ``file`` or ``journal``.
    """
    first, last = format_us(first_us)[:19].replace("T", " "), format_us(last_us)[:19].replace("T", " ")
    last = last[11:] if first[:10] == last[:10] else last
    return f"No lines {asked}. The {what} covers {first} to {last} UTC.", f"Try: --since {format_us(first_us)[:16]}Z"


def no_requests(coverage: Coverage) -> tuple[str, str]:
    """Say that no request is known, and how to make them known."""
    return nothing_found(coverage) or (
        "Which steps are of which request is not known from this log.",
        "Give the requests with --requests FILE (SGLang's --export-metrics-to-file, or a client's CSV), or start the server with "
        "--log-requests.",
    )
