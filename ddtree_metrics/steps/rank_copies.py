"""Copies of a step: which lines of other ranks say what the lowest rank of their group has said already.

Every tensor-parallel rank (and, with pipeline parallelism, every stage) may log the same step. The lowest rank of each
data-parallel group stands for it; the others are copies. Where lines of the lowest rank were lost and another rank's copy was not,
that copy is kept and takes the place of the lost line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ddtree_metrics.steps.columns import BatchRows
from ddtree_metrics.steps.intervals import COARSE_US
from ddtree_metrics.steps.stream_ids import Labels

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

CONTENT = ("batch_size", "budget", "nodes", "accepted_drafts", "commit_lens", "avg_accepted_drafts", "avg_commit_len")
"""What two lines of one step have in common."""

LOOK_BACK = 16
"""How many lines of the lowest rank are remembered over the end of a batch, and looked through without a fine clock."""

PARTED = 2
"""How many pairs of copies the end of a batch may part."""

MOST_APART_US = 250_000
"""Copies of one step are logged nearer to each other than this, however long a step takes."""


@dataclass(slots=True)
class Group:
    """What is remembered of one group: its lowest rank, its stream, and its newest lines."""

    lowest: int = 1 << 40
    stream: str | None = None
    recent: list[tuple[tuple[Any, ...], int | None]] = field(default_factory=list)


@dataclass(slots=True)
class Copies:
    """What was found in one batch.

    Attributes
    ----------
    duplicate : ndarray of bool, shape (n,)
        Rows that are copies.
    streams : Labels
        The stream of each row; a copy that stands in for a lost line has the stream of the lost one.
    adopted : int
        How many stand in.
    """

    duplicate: Bools
    streams: Labels
    adopted: int = 0


class Ranks:
    """Find copies from batch to batch."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], Group] = {}

    def feed(self, name: str, r: BatchRows, streams: Labels) -> Copies:
        """Find the copies among the rows of one batch of a table.

        Parameters
        ----------
        name : str
            The table: ``steps`` or ``decode``; only steps can stand in for lost ones.
        r : BatchRows
            The rows.
        streams : Labels
            The stream of each row, as its origin says.
        """
        tp, _ = r.ints("tp_rank")
        pp, _ = r.ints("pp_rank")
        rank = pp * 65_536 + tp
        made = Copies(np.zeros(len(rank), dtype=bool), streams)
        groups = r.origins.labels(lambda o: f"{o.host}\x1f{o.boot_id}\x1f{o.unit or o.file}\x1f{o.dp_rank}")
        adopted: list[tuple[Ints, str]] = []
        for code, key in enumerate(groups.texts):
            at = groups.rows(code)
            group = self._groups.setdefault((name, key), Group())
            group.lowest = min(int(rank[at].min()), group.lowest)
            own, others = at[rank[at] == group.lowest], at[rank[at] != group.lowest]
            made.duplicate[others] = True
            if name == "steps" and len(others):
                lost = self._stand_ins(r, group, own, others, rank)
                stream = streams.texts[int(streams.codes[own[0]])] if len(own) else group.stream
                if len(lost) and stream is not None:
                    made.duplicate[lost] = False
                    adopted.append((lost, stream))
            if len(own):
                group.stream = streams.texts[int(streams.codes[own[-1]])]
                if name == "steps":
                    group.recent = (group.recent + self._remembered(r, own[-LOOK_BACK:]))[-LOOK_BACK:]
        if adopted:
            codes, texts = streams.codes.copy(), list(streams.texts)
            for rows, stream in adopted:
                if stream not in texts:
                    texts.append(stream)
                codes[rows] = texts.index(stream)
                made.adopted += len(rows)
            made.streams = Labels(codes, texts)
        return made

    def _stand_ins(self, r: BatchRows, group: Group, own: Ints, others: Ints, rank: Ints) -> Ints:
        """Return the lines of other ranks whose step the lowest rank did not log."""
        if not self._is_fine(r, others):
            return np.empty(0, dtype=np.int64)  # it cannot be told which step a line is of: all stay copies
        before = [content for content, _ in group.recent]
        ranks = [one for one in np.unique(rank[others]) if not self._all_copies(r, before, own, others[rank[others] == one])]
        if not ranks:
            return np.empty(0, dtype=np.int64)
        ours = [*group.recent, *self._remembered(r, own)]
        apart = self._apart(ours) if ours and all(time is not None for _, time in ours) else None
        end = self._last_time(r)
        lost: list[int] = []
        stood: list[tuple[tuple[Any, ...], int | None]] = []
        for one in ranks:
            theirs = others[rank[others] == one]
            used = [False] * len(ours)
            at = 0
            for row, (content, time) in zip(theirs.tolist(), self._remembered(r, theirs), strict=True):
                found = _find(ours, used, content, time, at, apart)
                if found is not None:
                    used[found] = True
                    at = found if apart is not None else found + 1
                    continue
                if any(c == content and _near(t, time, apart) for c, t in stood):
                    continue  # a copy of a stand-in, by a third rank
                if apart is None or (time is not None and end is not None and end - time <= apart):
                    continue  # without a fine clock, or at the end of the batch, it cannot be told: it stays a copy
                lost.append(row)
                stood.append((content, time))
        return np.asarray(sorted(lost), dtype=np.int64)

    def _all_copies(self, r: BatchRows, before: list[tuple[Any, ...]], own: Ints, theirs: Ints) -> bool:
        """Whether a rank logged the same steps in the same order as the lowest one, but for pairs that an end of the batch parts.

        The first few of its lines may copy lines of the batch before; the last few of either may be without their pair yet.
        """
        for shift in range(min(PARTED, len(theirs), len(before)) + 1):
            n = min(len(theirs) - shift, len(own))
            if len(theirs) - shift - n > PARTED or len(own) - n > PARTED:
                continue
            if shift and [content for content, _ in self._remembered(r, theirs[:shift])] != before[-shift:]:
                continue
            if all(r.batch.column(name).take(own[:n]).equals(r.batch.column(name).take(theirs[shift : shift + n])) for name in CONTENT):
                return True
        return False

    def _remembered(self, r: BatchRows, rows: Ints) -> list[tuple[tuple[Any, ...], int | None]]:
        """Return what each row says, and when: by the boot clock, else by the wall clock."""
        mono, has_mono = r.ints("monotonic_us")
        time, timed = r.ints("time")
        part = r.batch.select(list(CONTENT)).take(rows)
        said = [tuple(tuple(v) if isinstance(v, list) else v for v in row.values()) for row in part.to_pylist()]
        when = [int(mono[i]) if has_mono[i] else int(time[i]) if timed[i] else None for i in rows.tolist()]
        return list(zip(said, when, strict=True))

    def _is_fine(self, r: BatchRows, rows: Ints) -> bool:
        _, has_mono = r.ints("monotonic_us")
        resolution, known = r.ints("time_resolution_us")
        return bool((has_mono[rows] | (known[rows] & (resolution[rows] < COARSE_US))).all())

    def _last_time(self, r: BatchRows) -> int | None:
        mono, has_mono = r.ints("monotonic_us")
        time, timed = r.ints("time")
        if has_mono.any():
            return int(mono[has_mono].max())
        return int(time[timed].max()) if timed.any() else None

    def _apart(self, ours: list[tuple[tuple[Any, ...], int | None]]) -> int:
        """Return how far apart two copies of one step may be: half the usual step."""
        times = np.asarray([t for _, t in ours if t is not None], dtype=np.int64)
        between = np.diff(np.sort(times))
        between = between[between > 0]
        return min(int(np.median(between)) // 2, MOST_APART_US) if len(between) else MOST_APART_US


def _find(
    ours: list[tuple[tuple[Any, ...], int | None]],
    used: list[bool],
    content: tuple[Any, ...],
    time: int | None,
    start: int,
    apart: int | None,
) -> int | None:
    """Return the line of the lowest rank that a line of another rank copies."""
    begin = max(0, start - LOOK_BACK) if apart is not None else start
    for i in range(begin, len(ours)):
        there, when = ours[i]
        if apart is None and i >= start + LOOK_BACK:
            return None
        if apart is not None and when is not None and time is not None and when > time + apart:
            return None
        if not used[i] and there == content and _near(when, time, apart):
            return i
    return None


def _near(one: int | None, other: int | None, apart: int | None) -> bool:
    return apart is None or (one is not None and other is not None and abs(one - other) <= apart)
