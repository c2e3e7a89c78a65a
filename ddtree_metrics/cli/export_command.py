"""``ddtree-logs export``: tables to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddtree_metrics.cli import OWN_PROCESS
from ddtree_metrics.cli.near import NearChoice
from ddtree_metrics.cli.no_pandas import without_pandas
from ddtree_metrics.cli.options import Input, fail_if_damaged, input_options, output_option, refuse_inputs, say, say_notes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from ddtree_metrics.log import Log
    from ddtree_metrics.reading import Tables

TABLES = ["steps", "decode", "prefill", "servers", "events", "requests", "request_steps", "request_lines"]
SUFFIX = {"parquet": ".parquet", "csv": ".csv", "jsonl": ".jsonl", "arrow": ".arrow"}

EXAMPLES = """
\b
Examples:
  ddtree-logs export --since 1h -u sglang-kimi.service        steps of the last hour, into this folder
  ddtree-logs export run.log.1.gz run.log -o run.parquet      files instead of the journal
  ddtree-logs export -u sglang-kimi -o incident/              every table, one file each
  ddtree-logs export --since today --requests requests.jsonl  and request_steps, with context lengths
  ddtree-logs export --since 1d --partition host,date -o lake/
  ddtree-logs export run.log -t decode --format csv -o -
"""


@click.command(epilog=EXAMPLES)
@input_options
@output_option("PATH", "File, folder ending in / for every table, or - for stdout.")
@click.option("--format", "format_", type=click.Choice(list(SUFFIX)), help="By the suffix of -o if not given; -o - needs it.")
@click.option("-t", "--table", "chosen", multiple=True, type=NearChoice([*TABLES, "all"]), help="Which table; steps if not given.")
@click.option("--partition", metavar="COLUMNS", help="Write a Hive-partitioned dataset into the folder -o: host,date.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def export(source: Input, output: str | None, format_: str | None, chosen: tuple[str, ...], partition: str | None, force: bool) -> None:
    """Write steps (or other tables) as Parquet, CSV, JSON lines or Arrow.

    Lines come from FILE (a server log, plain or compressed; journalctl output in any format; a .journal file; - for stdin), or
    from the systemd journal where no FILE is given.
    """
    names = tuple(TABLES) if "all" in chosen else chosen
    if click.get_current_context().obj == OWN_PROCESS and not source.is_stored and not _needs_frames(source, output, names):
        without_pandas()
    from ddtree_metrics import exporting
    from ddtree_metrics.reading import start_reading

    stored = source.log() if source.is_stored else None
    reading = start_reading(source.paths, **source.keywords) if stored is None else _StoredTables(stored)
    if partition:
        if output is None or output == "-":
            raise click.UsageError("--partition writes a folder: give it with -o DIR/")
        if format_ not in (None, "parquet"):
            raise click.UsageError("a partitioned dataset is made of Parquet files; leave --format out")
        by = tuple(part.strip() for part in partition.split(",") if part.strip())
        wanted = names or ("steps", "decode", "prefill", "servers", "events")
        lines = [n for n in wanted if n not in ("requests", "request_steps")]
        refuse_inputs(source, [output])
        made = exporting.export_dataset(reading, output, lines, partition=by, source=_name_of(source, reading.coverage.source))
    else:
        destinations = _destinations(output, format_, names, source, reading.coverage)
        refuse_inputs(source, destinations.values())
        later = [n for n in ("requests", "request_steps") if n in destinations]
        keep = (
            ("steps", "decode", "prefill", "events", "request_lines") if "request_steps" in later else ("request_lines",) if later else ()
        )

        # steps of requests that nobody asked for are written only where there are any
        kept = stored is not None and "request_steps" in stored.stored
        maybe = "request_steps" in later and not (source.requests or names or kept)

        def finish(log: Log) -> dict[str, pa.Table]:
            log = stored if stored is not None else source.with_requests(log)
            return {name: log.table(name) for name in later if name != "request_steps" or "steps" in log.stored}

        made = exporting.export(
            reading,
            destinations,
            format=format_,
            force=force,
            finish=finish if later else None,
            keep=keep,
            optional=("request_steps",) if maybe else (),
            make_folders=_is_folder(output),
        )
    say_notes(reading.coverage)
    if made.paths:
        rows = ", ".join(f"{count:,} {name}" for name, count in made.rows.items())
        say(f"wrote {rows} to {', '.join(map(str, made.paths))}")
    fail_if_damaged(reading.coverage)


def _needs_frames(source: Input, output: str | None, names: tuple[str, ...]) -> bool:
    """Whether a table is asked for that is made of others, as frames."""
    made = not names and _is_folder(output)
    return made or bool(source.requests) or "requests" in names or "request_steps" in names


class _StoredTables:
    """Tables that an earlier export wrote, as if they were read from lines."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.coverage = log.coverage
        self.conventions = log.counts
        self.on_error = "skip"

    def __iter__(self) -> Iterator[Tables]:
        """Yield the tables, one at a time."""
        for name in TABLES:
            for batch in self._log.table(name).to_batches() if name in self._log.stored else ():
                yield {name: batch}


def _destinations(output: str | None, format_: str | None, names: tuple[str, ...], source: Input, coverage: Any) -> dict[str, str | Path]:
    """Say where each table goes."""
    with_steps = ("request_steps",) if source.requests else ()
    if output is not None and _is_folder(output):
        suffix = SUFFIX[format_ or "parquet"]
        wanted = names or ("steps", "decode", "prefill", "servers", "events", "requests", "request_steps")
        return {name: Path(output) / f"{name}{suffix}" for name in dict.fromkeys(wanted)}
    wanted = tuple(dict.fromkeys(names or ("steps", *with_steps)))
    if output == "-":
        if len(wanted) > 1:
            raise click.UsageError(f"stdout takes one table, not {', '.join(wanted)}; choose one with -t, or give -o DIR/")
        return {wanted[0]: "-"}
    if output is not None:
        path = Path(output)
        return {name: path if i == 0 else path.with_name(f"{path.stem}.{name}{path.suffix}") for i, name in enumerate(wanted)}
    stamp = _end_of_window(source)
    return {name: Path(f"ddtree-{name}-{stamp}{SUFFIX[format_ or 'parquet']}") for name in wanted}


def _is_folder(output: str | None) -> bool:
    """Whether every table is to go into a folder."""
    return output is not None and output != "-" and (output.endswith("/") or Path(output).is_dir())


def _name_of(source: Input, read: str) -> str:
    """Name what is read, so that writing it again replaces its parts of a dataset and anything else is added to it."""
    given = source.keywords
    window = [f"{word} {given[word]}" for word in ("since", "until") if word in given]
    if "since" in given and not source.files:
        window.append(f"read {_end_of_window(source)}")
    files = [name if name == "-" else str(Path(name).resolve()) for name in source.files]
    return " ".join([*window, *(given.get("unit") or ()), *(files or [read])])


def _end_of_window(source: Input) -> str:
    """Write the end of the window in UTC, as part of a file name."""
    import time
    from datetime import datetime, timezone

    from ddtree_metrics.times import parse_window

    now_us = time.time_ns() // 1000
    _, until = parse_window(source.keywords.get("since"), source.keywords.get("until"), now_us=now_us, tz=source.zone)
    return datetime.fromtimestamp((now_us if until is None else until) / 1e6, timezone.utc).strftime("%Y%m%dT%H%M%SZ")
