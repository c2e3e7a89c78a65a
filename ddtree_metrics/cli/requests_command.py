"""``ddtree-logs requests``: the numbers of each request, and why it stands out."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

import click

from ddtree_metrics.cli import screen
from ddtree_metrics.cli.options import Input, SourcedCommand, fail_if_damaged, input_options, say_notes
from ddtree_metrics.errors import EXIT_NOT_FOUND, MetricError

if TYPE_CHECKING:
    import pandas as pd

    from ddtree_metrics.layout import TextLine

EXAMPLES = """
\b
Examples:
  ddtree-logs requests -u sglang-kimi.service --since today           the ten slowest
  ddtree-logs requests run.log --around 14:05                         a user says that it was slow at 14:05
  ddtree-logs requests run.log --id 5fc3d3d4                          one request
  ddtree-logs requests run.log --requests requests.jsonl --csv        all of them, for a spreadsheet
"""

HEAD = ("time", "context", "batch", "tok/s", "ms/step", "tok/step", "why it stands out")
_ID = 8
"""So many characters of an id are shown, and more where they are needed to tell ids apart."""


@click.command(cls=SourcedCommand, epilog=EXAMPLES)
@click.option("--slowest", type=click.IntRange(1), metavar="N", help="The slowest N; 10 if nothing else is asked for.")
@click.option("--around", metavar="TIME", help="The ten (or --slowest N) that began nearest to this time: 14:05 is of the log's last day.")
@click.option("--id", "prefix", metavar="PREFIX", help="The request whose id begins with this.")
@click.option("--csv", "as_csv", is_flag=True, help="All requests as CSV.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@input_options
def requests(source: Input, slowest: int | None, around: str | None, prefix: str | None, as_csv: bool, as_json: bool) -> None:
    """List requests, the slowest first: when, at what context and batch, how fast, and why each stands out.

    Incidents begin with one slow request. Which steps are of which request is known from the log's own request lines, or from --requests.
    """
    from ddtree_metrics.diagnosis.standing_out import why_slow

    log = source.log()
    made = log.requests_table
    made["why"] = why_slow(made)
    asked = made if as_csv and slowest is None and around is None and prefix is None else _asked(made, slowest, around, prefix, source)
    if as_csv:
        screen.write(asked.to_csv(index=False), nl=False)
    elif as_json:
        screen.write_json(json.loads(asked.to_json(orient="records", date_format="iso")))
    elif len(made):
        screen.say_lines(lines(made, asked, screen.width()))
    else:
        from ddtree_metrics.hints import no_requests

        screen.say_lines(screen.dead_end(*no_requests(log.coverage)))
    say_notes(log.coverage)
    fail_if_damaged(log.coverage)
    if not len(made):
        click.get_current_context().exit(EXIT_NOT_FOUND)


def _asked(made: pd.DataFrame, slowest: int | None, around: str | None, prefix: str | None, source: Input) -> pd.DataFrame:
    """Return the requests that the options ask for."""
    count = slowest or 10
    if prefix is not None:
        found = made[made["request_id"].str.startswith(prefix)]
        if not len(found) and len(made):
            few = ", ".join(made["request_id"].str[:_ID].head(4))
            raise MetricError(f"no request id begins with {prefix!r}; the log has {len(made):,} requests ({few} …)")
        made = found
    if around is not None and len(made):
        from ddtree_metrics.times import parse_window_of_log

        last = int(made["time"].max().value // 1000)
        at, _ = parse_window_of_log(around, None, last_us=last, tz=source.zone)
        away = (made["time"] - _instant(at or 0)).abs()
        return made.loc[away.nsmallest(count).index].sort_values("time", kind="stable")
    return made.sort_values("tok_per_s", kind="stable", na_position="last").head(count)


def _instant(us: int) -> Any:
    import pandas as pd

    return pd.Timestamp(us, unit="us", tz="UTC")


def lines(all_of_them: pd.DataFrame, asked: pd.DataFrame, width: int) -> list[TextLine]:
    """Lay requests out: a row each, and why each stands out behind it, or below it in a narrow terminal."""
    from ddtree_metrics.diagnosis.numerals import number, tokens
    from ddtree_metrics.layout import TextLine, table

    short = _short_ids(all_of_them["request_id"])
    days = asked["time"].dt.strftime("%Y-%m-%d").nunique() > 1
    rows = [
        (
            short[str(r["request_id"])],
            r["time"].strftime("%m-%d %H:%M:%S" if days else "%H:%M:%S"),
            *("-" if _unknown(r[name]) else tokens(float(r[name])) for name in ("context_len",)),
            *("-" if _unknown(r[name]) else number(float(r[name]), digits) for name, digits in _NUMBERS),
            str(r["why"]),
        )
        for r in asked.to_dict("records")
    ]
    wide = max((len(row[-1]) for row in rows), default=0)
    head: tuple[str, ...] = HEAD
    left: tuple[int, ...] = (len(HEAD),)
    narrow = sum(max(len(row[i]) for row in [*rows, ("id", *HEAD)]) + 2 for i in range(len(HEAD))) + wide > width
    if narrow:
        head, left = HEAD[:-1], ()
    made = table([("request", [row[: len(head) + 1] for row in rows])], head, min(width, 200), left=left, first_to_go=(1, 3))
    if narrow:
        made = [
            made[0],
            *(
                x
                for line, row in zip(made[1:], rows, strict=True)
                for x in (line, *map(TextLine, textwrap.wrap(row[-1], width, initial_indent="  ", subsequent_indent="  ")))
            ),
        ]
    return made


_NUMBERS = (("batch_size", 1), ("tok_per_s", None), ("step_time_ms", None), ("tokens_per_step", 2))


def _unknown(x: Any) -> bool:
    import pandas as pd

    return bool(pd.isna(x))


def _short_ids(ids: pd.Series[str]) -> dict[str, str]:
    """Return the shortest beginnings of ids, of eight characters at least, that no other id has."""
    names = sorted({str(x) for x in ids})
    made = {}
    for before, name, after in zip(["", *names], names, [*names[1:], ""], strict=False):
        shared = max(_shared(name, before), _shared(name, after))
        made[name] = name[: max(_ID, shared + 1)]
    return made


def _shared(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
