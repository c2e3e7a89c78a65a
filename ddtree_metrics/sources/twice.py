"""The same log given twice: lines of one file that another file has too are left out.

A text and a journal of the same log, a plain and a compressed one, copies under other names, exports that overlap: a line is the same
where its text is, its writer as far as both files know it (host, unit, process), and its time as far as both know it (the boot clock,
else the wall clock to the coarser of the two resolutions). Equal lines *within* one file are real, for a second may hold many: the
k-th of a later file is left out for the k-th of the earlier ones.

Where a file has no times of its own (a plain server log), the text must hold a time of day, and a stretch of them must be in both files,
or a few where one file ends and the other begins;
lines without one go with the line before them. A file without any time is the same as another only where it begins like it, line by
line, for twenty lines at least. A local time of an unknown zone is compared by the zone that makes lines the same.

What it costs, with two or more inputs only: about 0.5 us and 24 bytes a line of plain text, 44 of a journal, for all files but the last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ddtree_metrics.sources import SourceStats
from ddtree_metrics.sources.mixing import Ints, Keys, mixed, turns

Bools = NDArray[np.bool_]

CLOCKED, ZONED, LOCAL, UNTIMED = range(4)
"""What is known of a line's time: both clocks; an instant; a local time of an unknown zone; nothing."""

_SURE = pa.array(["journal", "frame"])
_TIME_OF_DAY = r"\d\d:\d\d:\d\d"
_WORDS = ("host", "unit", "pid")
QUARTER_US = 900_000_000
"""Zones differ by multiples of a quarter of an hour, ..."""
ZONES = range(-14 * 4, 14 * 4 + 1)
"""... up to 14 hours."""
SAMPLE = 4096
ALIKE = 0.95
"""So large a share of the lines in the stretch that two files share must be the same for their zones to be known, ..."""
ENOUGH = 20
"""... or so many lines whose texts hold a time of day; and so many lines must be the same where a file has no time at all."""
SHARED = 0.1
"""Where texts alone are compared, so large a share of a stretch must be in the other file, ..."""
FEW = 100
"""... and of so many lines, or of all if they are fewer: two servers may print a few equal lines in one second."""


class Comparable(NamedTuple):
    """What can be compared: the kind of time, its smallest step, and which of host, unit and process are known (bits)."""

    clock: int
    resolution_us: int
    known: int


@dataclass(slots=True)
class _Lines:
    """Lines of one kind: hashes of their texts, times, and writers."""

    text: Keys
    time: Ints
    mono: Ints
    who: NDArray[np.int32]

    def take(self, at: Ints) -> _Lines:
        empty = not len(self.time)
        return _Lines(self.text[at], self.time if empty else self.time[at], self.mono[at] if len(self.mono) else self.mono, self.who[at])


@dataclass(slots=True)
class _SeenLines:
    """Distinct keys in order, how often each is there, and the first file that has it."""

    keys: Keys
    count: NDArray[np.int32]
    file: NDArray[np.int32]
    low: int
    high: int
    used: NDArray[np.int32] | None = None

    def take(self, keys: Keys) -> tuple[Bools, NDArray[np.int32]]:
        """Use up entries for some keys, each as often as it is there; say which found one, and in which file."""
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        place = np.minimum(np.searchsorted(self.keys, ordered), len(self.keys) - 1)
        there = self.keys[place] == ordered
        found = np.zeros(len(keys), dtype=bool)
        if not there.any():
            return found, place.astype(np.int32)
        if self.used is None:
            self.used = np.zeros(len(self.keys), dtype=np.int32)
        hit = there & (turns(ordered) < self.count[place] - self.used[place])
        np.add.at(self.used, place[hit], 1)
        found[order] = hit
        file = np.empty(len(keys), dtype=np.int32)
        file[order] = self.file[place]
        return found, file


class _Known:
    """The lines of one kind of the files before, and their keys by whatever they were compared."""

    def __init__(self) -> None:
        self.files: list[tuple[int, _Lines]] = []
        self.tables: dict[tuple[int, ...], list[_SeenLines]] = {}
        self._made: dict[tuple[int, ...], int] = {}

    def by(self, how: _How, whos: list[tuple[str | None, ...]]) -> list[_SeenLines]:
        """Return the tables of keys of one way to compare; small ones are merged, so that there are few."""
        known = self.tables.setdefault(how.key, [])
        for number, lines in self.files[self._made.get(how.key, 0) :]:
            keys, count = np.unique(how.keys(lines, whos), return_counts=True)
            low, high = (int(lines.time.min()), int(lines.time.max())) if len(lines.time) else (0, 0)
            known.append(_SeenLines(keys, count.astype(np.int32), np.full(len(keys), number, np.int32), low, high))
            while len(known) > 1 and 2 * len(known[-1].keys) >= len(known[-2].keys):
                known[-2:] = [_merge(known[-2], known[-1])]
        self._made[how.key] = len(self.files)
        return known

    def holds(self, how: _How, keys: Keys, whos: list[tuple[str | None, ...]]) -> Bools:
        """Say which keys are there, without using them up."""
        made = np.zeros(len(keys), dtype=bool)
        for table in self.by(how, whos):
            made |= table.keys[np.minimum(np.searchsorted(table.keys, keys), len(table.keys) - 1)] == keys
        return made

    def span(self) -> tuple[int, int]:
        """Return the first and the last time."""
        return min(int(lines.time.min()) for _, lines in self.files), max(int(lines.time.max()) for _, lines in self.files)


def _meets(part: _Part, lines: _Lines, known: _Known, stamped: Bools) -> bool:
    """Say whether an earlier file ends with what this one begins with, or begins with what it ends with, as a rotation leaves them."""
    mine = lines.text
    for _, theirs in known.files:
        for size in range(min(len(mine), len(theirs.text), FEW), 1, -1):
            if part.met == 0 and stamped[:size].sum() > 1 and (theirs.text[-size:] == mine[:size]).all():
                return True
            if stamped[-size:].sum() > 1 and (theirs.text[:size] == mine[-size:]).all():
                return True
    return False


def _merge(one: _SeenLines, other: _SeenLines) -> _SeenLines:
    keys = np.concatenate([one.keys, other.keys])
    distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    count = np.zeros(len(distinct), np.int32)
    np.add.at(count, inverse.reshape(-1), np.concatenate([one.count, other.count]))
    file = np.concatenate([one.file, other.file])[first]
    return _SeenLines(distinct, count, file, min(one.low, other.low), max(one.high, other.high))


@dataclass(frozen=True, slots=True)
class _How:
    """How two kinds of line are compared.

    Attributes
    ----------
    clock : int
        ``CLOCKED`` by the boot clock, ``ZONED`` by the wall clock, ``UNTIMED`` by the text alone.
    resolution_us : int
        The coarser of the two resolutions.
    known : int
        Which of host, unit and process both know.
    shift_us : int
        What makes the time of the later line that of the earlier one.
    """

    clock: int
    resolution_us: int
    known: int
    shift_us: int = 0

    @property
    def key(self) -> tuple[int, ...]:
        """What the keys of the earlier lines depend on."""
        return (self.clock, self.resolution_us, self.known)

    def keys(self, lines: _Lines, whos: list[tuple[str | None, ...]], shift_us: int = 0) -> Keys:
        """Make one number of all that is compared."""
        made = lines.text
        if self.clock == CLOCKED:
            made = mixed(made, lines.mono)
        elif self.clock == ZONED:
            made = mixed(made, (lines.time + shift_us) // self.resolution_us)
        if self.known or self.clock == CLOCKED:
            each = [hash((self.clock == CLOCKED and w[3], *(self.known >> i & 1 and w[i] for i in range(len(_WORDS))))) for w in whos]
            made = mixed(made, np.array(each, np.int64)[lines.who])
        return made


@dataclass(slots=True)
class _Part:
    """What is remembered of the file that is being read."""

    number: int
    name: str
    lines: dict[Comparable, list[_Lines]] = field(default_factory=dict)
    met: int = 0
    left_out: int = 0
    others: set[int] = field(default_factory=set)
    before: bool | None = None
    """Whether the newest line that could be told was left out."""
    alike: list[int] | None = None
    """The files that begin like this one, as long as it has no time at all."""
    shifts: dict[Comparable, int] = field(default_factory=dict)
    shares: bool = False
    """Whether texts alone have shown that it shares a stretch with an earlier file."""


class Twice:
    """Follow several files, one after the other, and leave out what an earlier one had.

    Parameters
    ----------
    stats : SourceStats
        The account of all files; lines that are left out are taken off it.
    """

    def __init__(self, stats: SourceStats) -> None:
        self._stats = stats
        self._names: list[str] = []
        self._whos: list[tuple[str | None, ...]] = []
        self._codes: dict[tuple[str | None, ...], int] = {}
        self._known: dict[Comparable, _Known] = {}
        self._part: _Part | None = None

    def begin(self, name: str) -> None:
        """Begin another file."""
        self._names.append(name)
        self._part = _Part(len(self._names) - 1, name)
        for known in self._known.values():
            for tables in known.tables.values():
                for table in tables:
                    table.used = None

    def feed(self, batch: pa.RecordBatch, *, last: bool) -> pa.RecordBatch:
        """Return the lines of a batch that no earlier file has; with ``last`` no other file follows."""
        part = self._part
        assert part is not None
        n = batch.num_rows
        kinds, lines = self._facts(batch)
        same, file = np.zeros(n, dtype=bool), np.full(n, -1, dtype=np.int32)
        if self._known:
            stamped = self._stamped(batch, kinds)
            told = np.zeros(n, dtype=bool)
            for kind, at in kinds.items():
                self._compare(part, kind, lines[kind], at, stamped, same, told, file)
            self._carry_over(part, kinds, lines, same, told, file)
            if part.before is None and not told.any():
                self._as_beginning(part, kinds, lines, same, file)
        part.met += n
        keep = ~same
        if not last:
            for kind, at in kinds.items():
                mine = np.flatnonzero(keep[at])
                if len(mine):
                    part.lines.setdefault(kind, []).append(lines[kind].take(mine))
        if not same.any():
            return batch
        part.left_out += int(same.sum())
        part.others.update(file[same].tolist())
        self._stats.take_off(batch.filter(pa.array(same)))
        return batch.filter(pa.array(keep))

    def finish(self) -> None:
        """End a file: its lines are known from now on, and what was left out of it is told."""
        part = self._part
        assert part is not None
        for kind, some in part.lines.items():
            whole = _Lines(*(np.concatenate([getattr(s, name) for s in some]) for name in ("text", "time", "mono", "who")))
            self._known.setdefault(kind, _Known()).files.append((part.number, whole))
        if part.left_out:
            others = " and ".join(self._names[i] for i in sorted(part.others)[:3])
            more = f" and {len(part.others) - 3} more files" if len(part.others) > 3 else ""
            every = f"all {part.met:,}" if part.left_out == part.met else f"{part.left_out:,} of the {part.met:,}"
            self._stats.notes.append(
                f"{every} lines of {part.name} are in {others}{more} too (same text, writer and time): they were left out, and count once"
            )
        self._part = None

    # -- what is known of lines -------------------------------------------------------------------------------------------------

    def _facts(self, batch: pa.RecordBatch) -> tuple[dict[Comparable, Ints], dict[Comparable, _Lines]]:
        """Sort the lines of a batch by what is known of them."""
        n = batch.num_rows
        text = np.fromiter(map(hash, batch.column("message").to_pylist()), np.int64, n).astype(np.uint64)
        time = batch.column("time").cast(pa.int64())
        timed = np.asarray(time.is_valid())
        sure = timed & np.asarray(pc.is_in(batch.column("time_from"), value_set=_SURE))
        mono = batch.column("monotonic_us")
        boot = batch.column("boot_id")
        clocked = sure & np.asarray(mono.is_valid()) & np.asarray(boot.is_valid())
        clock = np.where(clocked, CLOCKED, np.where(sure, ZONED, np.where(timed, LOCAL, UNTIMED)))
        steps = np.where(timed & ~clocked, np.asarray(batch.column("time_resolution_us").fill_null(1)), 1).astype(np.int64)
        who, known = self._writers(batch)
        times, monos = np.asarray(time.fill_null(0)), np.asarray(mono.fill_null(0))
        packed = np.stack([clock, steps, known], axis=1)
        if (packed == packed[:1]).all():
            kinds = {Comparable(*(int(v) for v in packed[0])): np.arange(n)} if n else {}
        else:
            some, inverse = np.unique(packed, axis=0, return_inverse=True)
            inverse = inverse.reshape(-1)
            kinds = {Comparable(*(int(v) for v in row)): np.flatnonzero(inverse == i) for i, row in enumerate(some)}
        none = np.empty(0, dtype=np.int64)
        lines = {
            kind: _Lines(
                text[at],
                none if kind.clock == UNTIMED else times[at],
                monos[at] if kind.clock == CLOCKED else none,
                who[at].astype(np.int32),
            )
            for kind, at in kinds.items()
        }
        return kinds, lines

    def _writers(self, batch: pa.RecordBatch) -> tuple[Ints, Ints]:
        """Give each distinct writer a number, and say which of its names are known."""
        n = batch.num_rows
        codes = np.zeros(n, dtype=np.int64)
        words: list[list[str | None]] = []
        for name in (*_WORDS, "boot_id"):
            column = batch.column(name)
            if column.null_count == n:
                words.append([None])
                continue
            encoded = column.dictionary_encode()
            values = [*(str(v) for v in encoded.dictionary.to_pylist()), None]
            words.append(values)
            codes = codes * len(values) + np.asarray(encoded.indices.fill_null(len(values) - 1)).astype(np.int64)
        some, inverse = np.unique(codes, return_inverse=True)
        numbers, bits = [], []
        for code in some.tolist():
            who: list[str | None] = []
            for values in reversed(words):
                code, place = divmod(code, len(values))
                who.append(values[place])
            writer = tuple(reversed(who))
            if writer not in self._codes:
                self._codes[writer] = len(self._whos)
                self._whos.append(writer)
            numbers.append(self._codes[writer])
            bits.append(sum(1 << i for i in range(len(_WORDS)) if writer[i] is not None))
        inverse = inverse.reshape(-1)
        return np.array(numbers, np.int64)[inverse], np.array(bits, np.int64)[inverse]

    def _stamped(self, batch: pa.RecordBatch, kinds: dict[Comparable, Ints]) -> Bools:
        """Say which texts hold a time of day; asked only where it matters."""
        if not any(kind.clock in (LOCAL, UNTIMED) for kind in (*kinds, *self._known)):
            return np.ones(batch.num_rows, dtype=bool)
        return np.asarray(pc.match_substring_regex(batch.column("message"), _TIME_OF_DAY))

    # -- comparing --------------------------------------------------------------------------------------------------------------

    def _compare(
        self, part: _Part, kind: Comparable, lines: _Lines, at: Ints, stamped: Bools, same: Bools, told: Bools, file: Ints
    ) -> None:
        """Mark the lines of one kind that an earlier file has, and those of which it could be told."""
        for other, known in self._known.items():
            how = self._how(part, kind, lines, other, known, stamped[at])
            if how is None:
                continue
            ask = ~same[at]
            if how.clock == UNTIMED:
                ask &= stamped[at]
            asked = np.flatnonzero(ask)
            told[at[asked]] = True
            if how.clock == UNTIMED:
                part.shares = part.shares or self._shares(how, known, lines.take(asked)) or _meets(part, lines, known, stamped[at])
                if not part.shares:
                    continue
            self._look_up(how, known, lines, at, asked, same, file)

    def _shares(self, how: _How, known: _Known, lines: _Lines) -> bool:
        """Say whether texts are so often those of earlier files that these are the same log, and not another server of the same hour."""
        there = np.flatnonzero(known.holds(how, how.keys(lines, self._whos), self._whos))
        return len(there) > 0 and len(there) >= SHARED * (there[-1] - there[0] + 1) and len(there) >= SHARED * min(len(lines.text), FEW)

    def _look_up(self, how: _How, known: _Known, lines: _Lines, at: Ints, asked: Ints, same: Bools, file: Ints) -> None:
        for table in known.by(how, self._whos):
            if not len(asked):
                return
            some = lines.take(asked)
            if how.clock == ZONED or (how.clock == CLOCKED and len(some.time)):
                low, high = int(some.time.min()) + how.shift_us, int(some.time.max()) + how.shift_us
                if high < table.low - how.resolution_us or low > table.high + how.resolution_us:
                    continue
            found, where = table.take(how.keys(some, self._whos, how.shift_us))
            same[at[asked[found]]] = True
            file[at[asked[found]]] = where[found]
            asked = asked[~found]

    def _how(self, part: _Part, kind: Comparable, lines: _Lines, other: Comparable, known: _Known, stamped: Bools) -> _How | None:
        """Return how lines of a kind are compared with earlier ones of another; None if they cannot be, so far."""
        both = kind.known & other.known
        coarser = max(kind.resolution_us, other.resolution_us)
        clocks = {kind.clock, other.clock}
        if clocks == {CLOCKED}:
            return _How(CLOCKED, 1, both)
        if UNTIMED in clocks:
            return _How(UNTIMED, 1, both)
        if LOCAL not in clocks:
            return _How(ZONED, coarser, both)
        if other not in part.shifts:
            shift = self._shift(_How(ZONED, coarser, both), lines, known, stamped)
            if shift is None:
                return None
            part.shifts[other] = shift
        return _How(ZONED, coarser, both, part.shifts[other])

    def _shift(self, how: _How, lines: _Lines, known: _Known, stamped: Bools) -> int | None:
        """Find the zone of a local time: the one that makes lines the same. None if none does."""
        step = max(1, len(lines.text) // SAMPLE)
        some = lines.take(np.arange(0, len(lines.text), step))
        certain = stamped[::step]
        low, high = known.span()
        best: tuple[int, int] | None = None
        for quarter in sorted(ZONES, key=abs):
            shift = quarter * QUARTER_US
            inside = (some.time + shift >= low - how.resolution_us) & (some.time + shift <= high + how.resolution_us)
            if not inside.any() or (best is not None and inside.sum() <= best[0]):
                continue
            there = known.holds(how, how.keys(some.take(np.flatnonzero(inside)), self._whos, shift), self._whos)
            matched = int(there.sum())
            whole = matched >= ALIKE * inside.sum() and 2 * matched >= len(some.text)
            # a text that holds a time of day is found at another time by nothing but a zone
            if (whole or (there & certain[inside]).sum() >= ENOUGH) and (best is None or matched > best[0]):
                best = (matched, shift)
        return None if best is None else best[1]

    def _carry_over(
        self, part: _Part, kinds: dict[Comparable, Ints], lines: dict[Comparable, _Lines], same: Bools, told: Bools, file: Ints
    ) -> None:
        """Let lines of which it could not be told go with the line before them, if an earlier file has their text too."""
        decided = np.flatnonzero(told)
        if not len(decided) and part.before is None:
            return
        place = np.searchsorted(decided, np.arange(len(same)), side="right") - 1
        first = part.before if part.before is not None else bool(same[decided[0]])
        verdict = np.where(place >= 0, same[decided[np.maximum(place, 0)]] if len(decided) else first, first)
        for kind, at in kinds.items():
            open_ = ~told[at] & verdict[at]
            for other, known in self._known.items():
                asked = np.flatnonzero(open_ & ~same[at])
                if len(asked) and UNTIMED in (kind.clock, other.clock):
                    self._look_up(_How(UNTIMED, 1, kind.known & other.known), known, lines[kind], at, asked, same, file)
        if len(decided):
            part.before = bool(same[decided[-1]])

    def _as_beginning(self, part: _Part, kinds: dict[Comparable, Ints], lines: dict[Comparable, _Lines], same: Bools, file: Ints) -> None:
        """Compare a file without any time with the beginning of earlier ones of that kind."""
        if len(kinds) != 1 or next(iter(kinds)).clock != UNTIMED:
            return
        (mine,) = lines.values()
        earlier: dict[int, Keys] = {}
        for known in self._known.values():
            for number, theirs in known.files:
                earlier.setdefault(number, theirs.text)
        alike = earlier if part.alike is None else {k: v for k, v in earlier.items() if k in part.alike}
        part.alike = []
        for number, text in alike.items():
            stretch = text[part.met : part.met + len(mine.text)]
            enough = part.met > 0 or len(stretch) >= ENOUGH
            if enough and len(stretch) and (stretch == mine.text[: len(stretch)]).all():
                part.alike.append(number)
                same[: len(stretch)] = True
                file[: len(stretch)] = number


__all__ = ["Twice"]
