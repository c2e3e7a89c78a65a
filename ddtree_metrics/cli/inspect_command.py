"""``ddtree-logs inspect``: what is in there."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import click

from ddtree_metrics.cli.options import Input, SourcedCommand, fail_if_damaged, input_options, say_notes
from ddtree_metrics.cli.screen import write, write_json

if TYPE_CHECKING:
    from ddtree_metrics.log import Log

INSPECT_VERSION = 1
"""1: the first form."""

EXAMPLES = """
\b
Examples:
  ddtree-logs inspect --since 1h
  ddtree-logs inspect run.log.gz --json
  ddtree-logs inspect -u sglang-kimi --since today --requests requests.jsonl
"""


@click.command(cls=SourcedCommand, epilog=EXAMPLES)
@input_options
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def inspect(source: Input, as_json: bool) -> None:
    """Say what is in the lines: units, kinds of line, broken ones, gaps, clocks, and what the numbers count."""
    log = source.log()
    found = describe(log, joined=bool(source.requests) or log.coverage.parsed.get("request_lines", 0) > 0)
    if as_json:
        write_json(found)
    else:
        write("\n".join(lines_of(found)))
    say_notes(log.coverage, notes=as_json)
    fail_if_damaged(log.coverage)


def describe(log: Log, *, joined: bool) -> dict[str, Any]:
    """Return what ``inspect`` says, as plain data."""
    made: dict[str, Any] = {
        "schema_version": INSPECT_VERSION,
        "coverage": log.coverage.to_dict(),
        "counts": log.counts.to_dict(),
        "services": _services(log),
        "streams": _streams(log),
        "servers": _servers(log),
        "events": {str(k): int(n) for k, n in log.events["kind"].value_counts().items()} if len(log.events) else {},
    }
    if joined and (log.coverage.parsed.get("steps") or log.coverage.parsed.get("decode")):
        made["join"] = log.request_steps.attrs.get("join", {})
    return made


def _services(log: Log) -> list[dict[str, Any]]:
    """Count the rows of each service: a unit of a host, or what does not say its unit."""
    from ddtree_metrics.reading import LINE_TABLES

    found: dict[tuple[str | None, ...], dict[str, int]] = {}
    for name in LINE_TABLES:
        frame = log.frame(name)
        of = frame[["host", "unit"]].astype(object) if len(frame) else frame
        for (host, unit), rows in of.groupby(["host", "unit"], dropna=False, sort=False) if len(frame) else ():
            who = tuple(v if isinstance(v, str) else None for v in (host, unit))
            found.setdefault(who, {})[name] = len(rows)
    return [{"host": host, "unit": unit, **counts} for (host, unit), counts in found.items()]


def _streams(log: Log) -> list[dict[str, Any]]:
    steps = log.steps
    if not len(steps):
        return []
    grouped = steps.groupby("stream", sort=False)
    return [
        {
            "stream": str(name),
            "steps": len(part),
            "timed": int(part["step_us"].notna().sum()),
            "not_timed": {str(k): int(n) for k, n in part["step_why"].value_counts().items()},
        }
        for name, part in grouped
    ]


def _servers(log: Log) -> list[dict[str, Any]]:
    from ddtree_metrics.records import LoggedLine, ServerStart
    from ddtree_metrics.schema import columns

    shared = {c.name for c in columns(LoggedLine)}
    names = [c.name for c in columns(ServerStart) if c.name not in shared and c.name not in ("args", "args_cut")]
    made = []
    for row in log.table("servers").to_pylist():
        said = {n: row[n] for n in names if row[n] is not None}
        cut = {"args_cut": True} if row["args_cut"] else {}
        made.append({"time": row["time"].isoformat() if row["time"] else None, "unit": row["unit"], **said, **cut})
    return made


def lines_of(found: dict[str, Any]) -> list[str]:
    """Lay it out for a terminal of 80 columns."""
    from ddtree_metrics.counting import counters
    from ddtree_metrics.coverage import Coverage

    c = found["coverage"]
    out = [f"source      {c['source']}", f"lines       {c['lines']:,}"]
    if c["first"]:
        out.append(f"time        {c['first']} to {c['last']}")
    for i, (unit, n) in enumerate(sorted(c["units"].items(), key=lambda item: -item[1])[:10]):
        out.append(f"{'units' if not i else '':<12}{unit}: {n:,}")
    parsed = ", ".join(f"{n:,} {name}" for name, n in c["parsed"].items() if n) or "nothing"
    out += _wrapped("parsed", parsed)
    out += _wrapped("broken", f"{c['broken_lines']:,}")
    for kind in c["broken"]:
        out += _wrapped("", f"{kind['count']:,} {kind['table']} ({kind['dialect']}): {kind['reason']}")
        for example in kind["examples"][:2]:
            out += _wrapped("", f"  {example['where']}: {example['text'][:100]!r}")
    for name, label in counters(Coverage).items():
        if name != "lines" and isinstance(c[name], int) and c[name]:
            out += _wrapped("", f"{c[name]:,} {label}")
    for flag, n in c["doubtful_times"].items():
        out += _wrapped("", f"{n:,} rows whose time is doubtful: {flag}")
    if c["clock_steps_s"]:
        jumps = ", ".join(f"{s:+.1f} s" for s in c["clock_steps_s"][:8])
        out += _wrapped("clock", f"{len(c['clock_steps_s'])} jumps of the wall clock: {jumps}")
    out += _wrapped("commit", found["counts"]["sentence"])
    root = {1: "nodes count the root", 0: "nodes do not count the root", None: "whether nodes count the root cannot be told"}
    if found["counts"]["nodes_minus_budget"]:
        out += _wrapped("nodes", root[found["counts"]["root_in_nodes"]])
    for service in found["services"] if len(found["services"]) > 1 else ():
        counts = ", ".join(f"{n:,} {name}" for name, n in service.items() if name not in ("host", "unit"))
        out += _wrapped("service", f"{service['unit'] or 'lines of no unit'}{_at(service, found['services'])}: {counts}")
    for stream in found["streams"]:
        why = ", ".join(f"{n} {k}" for k, n in stream["not_timed"].items())
        out += _wrapped(
            "stream", f"{stream['stream']}: {stream['steps']:,} steps, {stream['timed']:,} timed" + (f" (not: {why})" if why else "")
        )
    for server in found["servers"]:
        settings = [f"{k} {v}" for k, v in server.items() if k not in ("time", "unit", "args_cut")]
        settings += ["the line of arguments was cut, so what is not named is unknown"] if server.get("args_cut") else []
        who = f"{server['unit']}, " if server["unit"] else ""
        out += _wrapped("start", f"{who}{server['time'] or 'time unknown'}: {', '.join(settings)}")
    if found["events"]:
        out += _wrapped("events", ", ".join(f"{n} {k}" for k, n in found["events"].items()))
    if found.get("join"):
        out += _wrapped("join", "; ".join(_join_lines(found["join"])))
    for text in c["damaged"]:
        out += _wrapped("damaged", text)
    for text in c["notes"]:
        out += _wrapped("note", text)
    return out


def _at(service: dict[str, Any], services: list[dict[str, Any]]) -> str:
    """Name the host, where there are several."""
    return f" on {service['host']}" if service["host"] and len({s["host"] for s in services}) > 1 else ""


def _join_lines(join: dict[str, Any]) -> list[str]:
    if join.get("sentence"):
        return [str(join["sentence"])]
    return [f"{key} {value}" for key, value in join.items() if not isinstance(value, dict | list)]


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, 80, initial_indent=f"{label:<12}", subsequent_indent=" " * 12, break_long_words=True, break_on_hyphens=False
    ) or [label]
