"""Where the wall time of a server went: steps, the prefills of other requests, idle time, retractions, lost lines, restarts.

No request need be known. An interval between two lines in which nothing else happened is steps. Where something else lies in it, the
steps of it take what they usually take, and the rest is of what lies there: a window of 40 steps that takes 36.6 s instead of 1.5 s,
with five chunks of a prompt prefilled in it, is 1.5 s of steps and 35.1 s of prefill.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.decode_windows import decode_step_times
from ddtree_metrics.steps.frames import Bools, Floats, Ints
from ddtree_metrics.steps.given import takes
from ddtree_metrics.steps.line_intervals import Intervals
from ddtree_metrics.steps.step_time import step_times

WALL_TIME_COLUMNS = ("stream", "what", "seconds", "share", "intervals", "interval_seconds")

STEP, IDLE_OR_PREFILL, UNKNOWN = "step", "idle_or_prefill", "unknown"
PREFILL = "prefill_between"

_AS = {
    "prefill_between": PREFILL,
    "after_idle": "gap",
    "retraction": "retraction",
    "suppressed": "suppressed",
    "outside_window": "outside_window",
    "restart": "restart",
    "boot": "restart",
    "exit": "restart",
    "clock_step": UNKNOWN,
    "no_time": UNKNOWN,
    "gap": "gap",
}
"""What an interval is put down to, by the reason why it is no step time. All other reasons say that it could not be timed as one step
(``burst``, ``coarse_clock``, ``window``, ``requests_changed`` …): its time is that of steps all the same."""
_ALL_OF_IT = ("suppressed", "outside_window", "restart", UNKNOWN)
"""Nobody knows how many steps lie in these, if any: the whole interval is put down to them."""
_NONE_AT_ALL = ("first", "duplicate_rank")


@takes("lines")
def wall_time(lines: pd.DataFrame, prefill: pd.DataFrame | None = None, events: pd.DataFrame | None = None) -> pd.DataFrame:
    """Split the wall time between the lines of each stream by what lay in it.

    Parameters
    ----------
    lines : pandas.DataFrame
        ``Decode batch`` lines, or steps, in the order in which they were logged.
    prefill : pandas.DataFrame, optional
        ``Prefill batch`` lines of the same log.
    events : pandas.DataFrame, optional
        Its retractions, suppressions and restarts.

    Returns
    -------
    pandas.DataFrame
        For each stream a row a kind of time, most first: ``stream``; ``what`` (below); ``seconds``; ``share`` of the stream's time, 0 to 1;
        ``intervals``, those that hold any of it; ``interval_seconds``, how long these are altogether. Seconds of a stream add up to the
        time between its first and its last line, as far as both clocks of a line are known. ``attrs["usual_ms"]`` has the usual interval
        by number of running requests (sequences of the batch), in ms; ``attrs["unsplit_s"]`` the seconds of intervals whose part of steps
        is not known, for there is no clean interval in the log: they are put down to what lies in them as a whole;
        ``attrs["sentence"]`` says the largest part that is no step.

        ================= ============================================================================================
        step              steps, also of intervals in which something else happened, at their usual time
        prefill_between   prefills while other requests were running, which waited for them
        idle_or_prefill   a prefill when nothing was running: idle time before it, and the prefill; not to be told apart
        gap               an interval far longer than the usual one, without a reason in the log: idle time, most often
        retraction        requests lost their place and were prefilled again
        suppressed        journald dropped lines: how many steps lie in it is not known
        outside_window    lines between were left out by the window
        restart           another start of the server, or another boot
        unknown           the clock was set, or is not known
        ================= ============================================================================================

    Notes
    -----
    The usual interval is the median of the clean ones with the same number of running requests, of the nearest numbers where there is
    none: a line stands for the same number of steps each time, so nothing need be known of ``--decode-log-interval``.

    Examples
    --------
    Four windows of 1.5 s and one of 36 s with a prefill in it: 7.5 s of steps, 34.5 s of prefill.

    >>> import pandas as pd
    >>> decode = pd.DataFrame({"time_us": [0, 1_500_000, 3_000_000, 4_500_000, 6_000_000, 42_000_000], "running": 10, "accept_len": 2.0,
    ...                        "gen_throughput": [500.0] * 5 + [20.0]})
    >>> made = wall_time(decode, pd.DataFrame({"time_us": [7_000_000], "running": [10]}))
    >>> made[["what", "seconds"]].values.tolist()
    [['prefill_between', 34.5], ['step', 7.5]]
    """
    decode = "gen_throughput" in lines.columns
    frame = Intervals.of(lines)
    elapsed = _elapsed(lines, frame, decode)
    why, size = _reasons(lines, prefill, events, decode)
    kept = np.isfinite(elapsed) & (elapsed >= 0) & ~np.isin(why.astype(str), _NONE_AT_ALL)
    what = np.array([_AS.get(w, STEP) if w is not None else STEP for w in why], dtype=object)
    mine = (what == PREFILL) & kept
    if prefill is not None and len(prefill):
        what[mine & _began_idle(lines, frame, prefill, mine)] = IDLE_OR_PREFILL
    usual = _usual(elapsed, size, kept & _is_clean(why, decode))
    of_steps = np.where(what == STEP, elapsed, np.minimum(_expected(size, usual), elapsed))
    whole = np.isin(what.astype(str), _ALL_OF_IT)
    of_steps[whole] = 0.0
    unsplit = kept & ~whole & np.isnan(of_steps)
    of_steps[unsplit] = 0.0
    made = pd.DataFrame(
        list(_rows(frame.streams, cols.text(lines, "stream"), kept, what, elapsed, of_steps)), columns=list(WALL_TIME_COLUMNS)
    )
    made["intervals"] = made["intervals"].astype("int64")
    made.attrs["usual_ms"] = {count: us / 1e3 for count, us in usual.items()}
    made.attrs["unsplit_s"] = float(elapsed[unsplit].sum()) / 1e6
    made.attrs["sentence"] = _sentence(made)
    return made


def _elapsed(lines: pd.DataFrame, frame: Intervals, decode: bool) -> Floats:
    """Return the time since the line before, in us: as it was read, else by the clocks of the two rows."""
    read = cols.numeric(lines, "line_us" if decode else "step_us")
    return np.where(np.isfinite(read), read, frame.elapsed_us)


def _reasons(
    lines: pd.DataFrame, prefill: pd.DataFrame | None, events: pd.DataFrame | None, decode: bool
) -> tuple[NDArray[np.object_], Floats]:
    """Say of each interval why it is no step time, None if it is one; and how many requests were running."""
    if not decode:
        timed = step_times(lines, events=events, prefill=prefill)
        return cols.text(timed, "step_why"), cols.numeric(lines, "batch_size")
    timed = decode_step_times(lines, prefill=prefill, events=events)
    why = cols.text(timed, "step_why")
    if cols.has(lines, "line_why"):
        # what was seen when the lines were read goes by their order, and so before what their times tell
        read = cols.text(lines, "line_why")
        told = np.array([w in _AS or w in _NONE_AT_ALL for w in read], dtype=bool)
        quiet = read == None  # noqa: E711 - elementwise
        why[told] = read[told]
        why[quiet & np.array([w is not None and _AS.get(w) not in (None, "gap") for w in why], dtype=bool)] = None
    return why, cols.numeric(lines, "running")


def _is_clean(why: NDArray[np.object_], decode: bool) -> Bools:
    """Say which intervals may make the usual one: those of which nothing is known against it; whole-second stamps too, in windows."""
    clean = why == None  # noqa: E711 - elementwise
    return np.asarray(clean | ((why == "coarse_clock") & decode), dtype=bool)


def _usual(elapsed: Floats, size: Floats, clean: Bools) -> dict[int, float]:
    """Return the usual interval by number of running requests, in us."""
    some = np.flatnonzero(clean & np.isfinite(size))
    return {int(count): float(np.median(elapsed[some[size[some] == count]])) for count in np.unique(size[some]).tolist()}


def _expected(size: Floats, usual: dict[int, float]) -> Floats:
    """Return what the steps of each interval usually take; between known numbers of requests on the line between them."""
    if not usual:
        return np.full(len(size), np.nan)
    counts = sorted(usual)
    made = np.interp(size, counts, [usual[count] for count in counts])
    return np.where(np.isfinite(made), made, float(np.median(list(usual.values()))))


def _began_idle(lines: pd.DataFrame, frame: Intervals, prefill: pd.DataFrame, rows: Bools) -> Bools:
    """Say in which intervals a prefill began when nothing was running, or does not say what was; the ends belong to both neighbours."""
    made = np.zeros(len(lines), dtype=bool)
    at = cols.time_us(prefill)
    running = cols.numeric(prefill, "running")
    idle = np.isfinite(at) & ~(running > 0)
    if not idle.any():
        return made
    by_stream = cols.has(prefill, "stream") and cols.has(lines, "stream")
    own = cols.text(lines, "stream" if by_stream else "dp_rank")
    theirs = cols.text(prefill, "stream" if by_stream else "dp_rank")
    for key in dict.fromkeys(own[rows]):
        mine = np.flatnonzero(rows & (own == key))
        times = np.sort(at[idle & (theirs == key)])
        low = np.searchsorted(times, frame.previous_stamps[mine], side="left")
        high = np.searchsorted(times, frame.stamps[mine], side="right")
        made[mine] = high > low
    return made


def _rows(
    streams: Ints, names: NDArray[np.object_], kept: Bools, what: NDArray[np.object_], elapsed: Floats, of_steps: Floats
) -> Iterator[dict[str, object]]:
    for stream in np.unique(streams[kept]):
        mine = kept & (streams == stream)
        total = float(elapsed[mine].sum())
        name = names[np.flatnonzero(mine)[0]]
        some = []
        for kind in dict.fromkeys([STEP, *what[mine]]):
            part = mine & (of_steps > 0) if kind == STEP else mine & (what == kind)
            seconds = float((of_steps[part] if kind == STEP else elapsed[part] - of_steps[part]).sum()) / 1e6
            if part.any():
                some.append(
                    {
                        "stream": name,
                        "what": kind,
                        "seconds": seconds,
                        "share": seconds * 1e6 / total if total else np.nan,
                        "intervals": int(part.sum()),
                        "interval_seconds": float(elapsed[part].sum()) / 1e6,
                    }
                )
        yield from sorted(some, key=lambda row: -float(row["seconds"]))


_WORDS = {
    PREFILL: "prefills, for which running requests waited",
    IDLE_OR_PREFILL: "idle time and the prefills that ended it",
    "gap": "gaps without a reason in the log",
    "retraction": "retractions",
    "suppressed": "stretches of which journald dropped lines",
    "outside_window": "stretches outside of the window",
    "restart": "restarts",
    UNKNOWN: "stretches without a clock",
}


def _sentence(made: pd.DataFrame) -> str | None:
    """Say which part of all streams together is the largest that is no step."""
    by_kind = made[made["what"] != STEP].groupby("what")[["seconds", "interval_seconds"]].sum()
    total = float(made["seconds"].sum())
    if not len(by_kind) or total <= 0:
        return None
    kind = str(by_kind["seconds"].idxmax())
    seconds, within = (float(by_kind.loc[kind, name]) for name in ("seconds", "interval_seconds"))
    return (
        f"{seconds / total:.0%} of the wall time ({seconds:,.1f} of {total:,.1f} s) went to {_WORDS[kind]}: {seconds / within:.0%} of the "
        "intervals that hold any."
        if within > 0
        else None
    )
