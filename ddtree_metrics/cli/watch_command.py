"""``ddtree-logs watch``: speed, step time and tokens per step while a log is written."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from ddtree_metrics.cli import screen
from ddtree_metrics.cli.options import Input, SourcedCommand, input_options
from ddtree_metrics.errors import EXIT_ERROR, DDTreeError, SourceNotFound, UsageError
from ddtree_metrics.opening import several

if TYPE_CHECKING:
    from ddtree_metrics.live.alerts import Alert, Thresholds
    from ddtree_metrics.live.curve import Baseline
    from ddtree_metrics.live.watching import Snapshot, Watch
    from ddtree_metrics.reading import Reading

EXAMPLES = """
\b
Examples:
  ddtree-logs watch -u sglang-kimi.service                            a screen, against the last day
  ddtree-logs watch /var/log/sglang.log --baseline none               a file that grows and is rotated
  ddtree-logs watch -u sglang-kimi.service --alert --listen 127.0.0.1:9464
  ddtree-logs watch -u sglang-kimi.service --once --alert || mail …   for cron: exit code 1 where an alert holds
"""


@click.command(cls=SourcedCommand, epilog=EXAMPLES)
@input_options
@click.option("--once", is_flag=True, help="Read the last 15 minutes (of a file all of it), say what they are, and end.")
@click.option("--plain", is_flag=True, help="Lines in place of a screen, as where there is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line.")
@click.option("--every", type=click.FloatRange(0.2, 3600), metavar="SECONDS", help="How often: 1 s for a screen and JSON, 10 s for lines.")
@click.option(
    "--baseline",
    metavar="FILE|SPAN|none",
    default="1d",
    show_default=True,
    help="What it is held against: a file of --save-baseline, or so much of the journal before now.",
)
@click.option("--save-baseline", metavar="FILE", help="Write the baseline that was made of the journal, or with --once of what was read.")
@click.option("--alert", is_flag=True, help="Tell when a rule holds: a line, an entry of the journal, and with --once exit code 1.")
@click.option(
    "--alert-change",
    type=click.FloatRange(0.01, 10),
    default=0.25,
    show_default=True,
    metavar="SHARE",
    help="Off the baseline by so much …",
)
@click.option("--alert-for", type=click.FloatRange(2, 900), default=300, show_default=True, metavar="SECONDS", help="… for so long.")
@click.option(
    "--alert-steps", type=click.IntRange(1), default=200, show_default=True, metavar="N", help="So many steps without an accepted draft."
)
@click.option("--listen", metavar="HOST:PORT", help="Answer Prometheus at http://HOST:PORT/metrics.")
def watch(source: Input, once: bool, plain: bool, as_json: bool, every: float | None, **given: Any) -> None:
    """Follow a log while it is written: tok/s a request, step time and tokens per step of the last 1, 5 and 15 minutes, by context.

    A journal is followed if no FILE is given; - is standard input. Ctrl-C ends it.
    """
    from ddtree_metrics.live.alerts import Thresholds

    if plain and as_json:
        raise click.UsageError("--plain and --json exclude each other")
    if source.is_stored:
        raise UsageError("watch follows lines while they are written; these are tables of an export: ddtree-logs summary shows them")
    if source.requests:
        raise click.UsageError("watch knows no requests but those of the log's own lines; leave --requests out")
    limits = Thresholds(nothing_accepted=given["alert_steps"], change=given["alert_change"], for_s=given["alert_for"])
    if once:
        _once(source, limits, given, as_json=as_json)
        return
    form = "json" if as_json else "plain" if plain or not sys.stdout.isatty() else "screen"
    _follow(source, limits, form, every or (10.0 if form == "plain" else 1.0), given)


def _once(source: Input, limits: Thresholds, given: dict[str, Any], *, as_json: bool) -> None:
    from ddtree_metrics.live.curve import baseline_of, save_baseline
    from ddtree_metrics.live.rolling import boot_clock
    from ddtree_metrics.live.watching import Watch
    from ddtree_metrics.reading import start_reading

    keywords: Any = {**source.keywords, "on_error": "skip"}
    if not source.files:
        keywords.setdefault("since", "15m")
    if given["save_baseline"]:
        if "-" in source.files:
            raise UsageError("--save-baseline with --once reads its lines twice, which a pipe does not allow: give a file")
        save_baseline(baseline_of(start_reading(source.paths, **keywords), _title(source)), given["save_baseline"])
    reading = start_reading(source.paths, **keywords)
    read_baseline = _baseline(source, given, before=keywords.get("since"))
    made = Watch(reading, live=False, baseline=read_baseline() if read_baseline is not None else None, limits=limits)
    for tables in reading:
        made.take([tables], boot_clock())
    shown = made.snapshot(boot_clock())
    _say(shown, "json" if as_json else "plain", shown.alerts if given["alert"] else [])
    if given["alert"] and shown.alerts:
        _to_journal(shown.alerts)
        click.get_current_context().exit(EXIT_ERROR)


def _follow(source: Input, limits: Thresholds, form: str, every: float, given: dict[str, Any]) -> None:
    from ddtree_metrics.live.watching import Watch, snapshots

    read_baseline = _baseline(source, given)
    if given["save_baseline"] and not given["save_baseline"].strip():
        raise click.UsageError("--save-baseline wants the name of a file")
    if given["save_baseline"] and read_baseline is None:
        raise UsageError("--save-baseline has nothing to save: the last day of a journal is one (--baseline 1d), or a file with --once")
    missing = _check_source(source)
    reading, end = _open(source)
    made = Watch(reading, limits=limits)
    shown = None
    try:
        if missing:
            made.notice(f"waiting: {missing}")
            if form != "screen":
                screen.write(f"ddtree-logs: waiting: {missing}", err=True)
        seen = _listen(made, given["listen"]) if given["listen"] else None
        if read_baseline is not None:
            _read_beside(made, read_baseline, given["save_baseline"])
        shown = _Shown(_title(source), form, alert=given["alert"])
        for snapshot in snapshots(made, every, None if seen is None else seen.add):
            if seen is not None:
                seen.snapshot = snapshot
            shown.show(snapshot)
    except KeyboardInterrupt:
        pass  # that is how it ends
    finally:
        if shown is not None:
            shown.close()
        end()


def _read_beside(made: Watch, read_baseline: Callable[[], Baseline | None], save: str | None) -> None:
    """Read the baseline while lines are followed already; a day of a journal takes a while."""
    from ddtree_metrics.live.curve import save_baseline

    made.waits_for_baseline = True

    def read() -> None:
        try:
            found = read_baseline()
            if found is not None and save:
                save_baseline(found, save)
            made.baseline = found
        except DDTreeError as error:
            made.notice(f"no baseline: {error}")
        finally:
            made.waits_for_baseline = False

    threading.Thread(target=read, daemon=True).start()


def _open(source: Input) -> tuple[Reading, Any]:
    """Begin to follow what the options name; return the reading and what ends it."""
    from ddtree_metrics.keywords import TextKeywords, keywords_of
    from ddtree_metrics.live import followed
    from ddtree_metrics.live.rolling import LONGEST_S
    from ddtree_metrics.opening import read_options
    from ddtree_metrics.reading import start_reading

    if "until" in source.keywords:
        raise UsageError("watch has no end: leave --until out, or read it with ddtree-logs summary")
    given: Any = {name: value for name, value in source.keywords.items() if name in keywords_of(TextKeywords) and name != "progress"}
    if source.files == ("-",):
        stream = followed.follow_stdin()
    elif source.files:
        stream = followed.follow_files(source.files)
    else:
        given.pop("since", None)
        options = read_options(**source.keywords)
        at = options.window.since_us if "since" in source.keywords else None
        stream = followed.follow_journal(options, at if at is not None else int((time.time() - LONGEST_S) * 1e6))
    return start_reading(cast("Any", stream), **{**given, "on_error": "skip"}), stream.close


def _check_source(source: Input) -> str | None:
    """Raise what keeps a journal from being read; what is not there yet is waited for, and named."""
    if source.files:
        missing = [name for name in source.files if name != "-" and not Path(name).exists()]
        return f"{', '.join(missing)} {'do' if len(missing) > 1 else 'does'} not exist yet" if missing else None
    from ddtree_metrics.reading import start_reading

    keywords: Any = {**source.keywords, "since": "1s", "on_error": "skip"}
    try:
        for _ in start_reading(None, **keywords):
            pass
    except SourceNotFound as error:
        place = source.keywords.get("directory")
        if place is not None and not Path(str(place)).is_dir():
            raise
        return str(error)
    return None


def _baseline(source: Input, given: dict[str, Any], before: Any = None) -> Callable[[], Baseline | None] | None:
    """Return what reads the baseline that was asked for: a file, or some time of the journal before now; None without one."""
    from ddtree_metrics.live.curve import baseline_of, load_baseline
    from ddtree_metrics.reading import start_reading

    asked = given["baseline"]
    if asked == "none":
        return None
    if Path(asked).is_file() or Path(asked).suffix == ".json":
        loaded = load_baseline(asked)
        return lambda: loaded
    if source.files:
        if click.get_current_context().get_parameter_source("baseline") == click.core.ParameterSource.COMMANDLINE:
            raise UsageError(f"--baseline {asked}: no such file; a span is of the journal, and this is a file")
        return None
    keywords: Any = {**source.keywords, "since": asked, "until": before or "15m", "on_error": "skip"}
    keywords.pop("progress", None)

    def read() -> Baseline | None:
        try:
            made = baseline_of(start_reading(None, **keywords), f"the journal since {asked}")
        except SourceNotFound:
            return None  # no such unit yet: it is waited for
        return made if made.sums[:, 0].sum() else None

    from ddtree_metrics.opening import read_options

    read_options(**keywords)  # what is no span is said at once
    return read


def _title(source: Input) -> str:
    names = ("unit", "user_unit", "identifier", "container")
    wanted: list[str] = [name for key in names for name in several(source.keywords.get(key))]
    return ", ".join([*("standard input" if name == "-" else name for name in source.files), *wanted]) or "journal"


def _listen(made: Watch, where: str) -> Any:
    from ddtree_metrics.live.exposition import Exposition, serve

    host, _, port = where.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise click.UsageError(f"--listen {where}: HOST:PORT is wanted, as in 127.0.0.1:9464")
    exposition = Exposition(made)
    serve(exposition, host.strip("[]") or "127.0.0.1", int(port))
    return exposition


class _Shown:
    """Where snapshots go, and which alerts were told."""

    def __init__(self, title: str, form: str, *, alert: bool) -> None:
        self._title = title
        self._form = form
        self._alert = alert
        self._told: set[str] = set()
        self._waited = ""
        self._live: Any = None
        if form == "screen":
            from ddtree_metrics.cli.watch_panels import start_screen

            self._live = start_screen()

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot; tell alerts that are new."""
        from ddtree_metrics.cli.watch_panels import waiting

        new = [a for a in snapshot.alerts if a.rule not in self._told] if self._alert else []
        over = self._told - {a.rule for a in snapshot.alerts}
        self._told = {a.rule for a in snapshot.alerts} if self._alert else set()
        if new or over:
            _to_journal(new, over)
        if self._live is not None:
            from ddtree_metrics.cli.watch_panels import panel

            self._live.update(panel(snapshot, self._title, self._live.console.width, self._live.console.height), refresh=True)
        elif snapshot.time is None and self._form == "plain":
            said = waiting(snapshot, self._title)
            if said.partition(":")[0] != self._waited:
                screen.write(said)
                sys.stdout.flush()
            self._waited = said.partition(":")[0]
        else:
            _say(snapshot, self._form, new)

    def close(self) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.stop()


def _say(snapshot: Snapshot, form: str, new: Iterable[Alert]) -> None:
    """Write a snapshot as a line."""
    from ddtree_metrics.cli.watch_panels import plain_line

    if form == "json":
        screen.write(json.dumps(snapshot.to_dict()))  # with ASCII only, so that nothing in it is obeyed by a terminal
    else:
        screen.write(plain_line(snapshot))
        for alert in new:
            screen.write(f"ALERT {alert.said}")
    sys.stdout.flush()


_unsaid: list[str] = []


def _to_journal(new: Iterable[Alert], over: Iterable[str] = ()) -> None:
    """Have the journal keep that alerts begin or end; where there is none, say so once."""
    from ddtree_metrics.live.journal_entries import send

    why_not = send(new, over)
    if why_not and not _unsaid:
        _unsaid.append(why_not)
        screen.write(f"ddtree-logs: note: no entry of the journal can be written ({why_not})", err=True)
