"""Whether a journal file still says what was written into it: every entry against the hash that it carries.

libsystemd reads around damage without a word, and does not look at hashes. Here the list of entries of a file is followed: each entry must
be where the list says, in order, and the exclusive or of the hashes of its fields must be the one that was stored with it. The clocks of
an entry have no hash: a time is wrong where it leaves those before and after it by one bit, or by one byte above the lowest two, that no
clock explains. Only ``read`` is used, never a map of the file, which may be cut short meanwhile. Layout: systemd's journal-def.h.
"""

from __future__ import annotations

import contextlib
import lzma
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ddtree_metrics.sources import jenkins
from ddtree_metrics.sources.journal_fields import BOOT_CLOCK_MAX
from ddtree_metrics.sources.journal_files import Header
from ddtree_metrics.sources.mixing import distinct, mixed
from ddtree_metrics.sources.select import Group
from ddtree_metrics.times import Window

Ints = NDArray[np.int64]
Marks = NDArray[np.uint64]
Bools = NDArray[np.bool_]

_DATA, _ENTRY, _ENTRY_ARRAY = 1, 3, 6
_COMPACT = 16
_XZ, _LZ4, _ZSTD = 1, 2, 4
_BLOCK = 2 << 20
"""Bytes of a file that are looked at together."""
_MOST_ITEMS = 1024
_MOST_BOOTS = 64
_SECOND = 1_000_000
_STOPPED = 1 << 16
"""Microseconds; so long is hardly ever a process stopped between two looks at clocks."""
_MANY = 64
_PAD = 64


@dataclass(slots=True)
class JournalCheck:
    """What was found in one file.

    Attributes
    ----------
    entries : int
        Entries that were looked at.
    bad : int
        How many of them are not where they should be, or are not as they were written.
    spoiled : set of (int, int)
        The clocks (wall, boot) of the ones that are not as they were written; libsystemd may give them all the same.
    ordered : bool
        Whether no entry has an earlier time than the one before it.
    keys : ndarray of uint64
        A number for each good entry of the window that is wanted.
    """

    entries: int = 0
    bad: int = 0
    spoiled: set[tuple[int, int]] = field(default_factory=set)
    ordered: bool = True
    keys: Marks = field(default_factory=lambda: np.empty(0, np.uint64))


def check(header: Header, groups: tuple[Group, ...], window: Window) -> JournalCheck | None:
    """Look at all entries of a file; ``None`` if it cannot be read.

    Parameters
    ----------
    header : Header
        The file.
    groups : tuple of Group
        Which entries are wanted: those that all terms of one of the groups match; all if there is none.
    window : Window
        Which stretch of time is wanted.
    """
    if not header.entries:
        return JournalCheck()
    try:
        file = os.open(header.path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return _Check(file, header, groups, window).run()
    except OSError:
        return None
    finally:
        os.close(file)


@dataclass(slots=True)
class _Entries:
    """Entries that lie together, as columns; the items (places of the fields) of all of them in a row."""

    place: Ints
    number: Marks
    real: Ints
    mono: Ints
    boot: Marks
    stored: Marks
    size: Ints
    items: Ints

    @property
    def starts(self) -> Ints:
        return np.cumsum(self.size) - self.size


class _Check:
    def __init__(self, file: int, header: Header, groups: tuple[Group, ...], window: Window) -> None:
        self.file, self.header = file, header
        self.size = os.fstat(file).st_size
        self.compact = bool(int.from_bytes(os.pread(file, 4, 12), "little") & _COMPACT)
        self.known_at, self.known = np.empty(0, np.int64), np.empty(0, np.uint64)
        self.terms = [jenkins.hashes_of([os.fsencode(term) for term in group]).tolist() for group in groups]
        self.window = window
        self.found = JournalCheck()

    def run(self) -> JournalCheck:
        places, beyond = self._places()
        found = self.found
        inside = (places > 0) & (places % 8 == 0) & (places + 64 < self.size)
        inside[1:] &= places[1:] > np.maximum.accumulate(np.where(inside, places, 0))[:-1]
        found.entries = self.header.entries + beyond
        found.bad = found.entries - int(inside.sum())
        parts: list[_Entries] = []
        good: list[Bools] = []
        wanted: list[Bools] = []
        for at, end, some in self._blocks(places[inside]):
            entries, whole = self._entries(at, end, some)
            parts.append(entries)
            good.append(self._as_written(at, end, entries))
            wanted.append(self._wanted(entries))
            found.bad += int((~whole).sum())
        if parts:
            self._judge(parts, np.concatenate(good), np.concatenate(wanted))
        return found

    def _judge(self, parts: list[_Entries], good: Bools, wanted: Bools) -> None:
        """Look at order and clocks of all entries, and sum up."""
        found = self.found
        number, real, mono, boot, stored = (
            np.concatenate([getattr(p, n) for p in parts]) for n in ("number", "real", "mono", "boot", "stored")
        )
        if not len(number):
            return
        step = np.diff(number.astype(np.int64)) > 0
        if not step.all():
            # Of two that are out of order, the one that does not fit both of its neighbours is wrong.
            for k in np.flatnonzero(~step).tolist():
                odd = k if k and k + 1 < len(number) and number[k - 1] < number[k + 1] else k + 1
                good[odd] = False
        # libsystemd passes over entries with times of this kind.
        good &= (real > 0) & (real < BOOT_CLOCK_MAX) & (mono >= 0) & (mono < BOOT_CLOCK_MAX) & (number > 0)
        good &= ~_odd_clocks(real, mono, boot)
        header = self.header
        ends = [(number[0], header.first), (real[0], header.first_us)]
        if not header.online:
            ends += [(number[-1], header.last), (real[-1], header.last_us)]
        # The header has the numbers and times of both ends; which of the two is wrong cannot be told.
        found.bad += any(int(one) != other for one, other in ends)
        found.ordered = bool((np.diff(real) >= 0).all())
        spoiled = np.flatnonzero(~good)
        found.bad += len(spoiled)
        found.spoiled = set(zip(real[spoiled].tolist(), mono[spoiled].tolist(), strict=True))
        keep = good & wanted & self.window.contains(real)
        found.keys = mixed(mixed(mixed(boot[keep], mono[keep]), real[keep]), stored[keep].view(np.int64))

    # -- where things are -----------------------------------------------------------------------------------------------------

    def _read(self, at: int, size: int) -> NDArray[np.uint8]:
        """Read bytes into an array that is filled up with zeros, so that what is looked up behind its end is there."""
        made = np.zeros(size // 8 * 8 + _PAD, np.uint8)
        data = os.pread(self.file, size, at)
        made[: len(data)] = np.frombuffer(data, np.uint8)
        return made

    def _number(self, at: int) -> int:
        return int.from_bytes(os.pread(self.file, 8, at), "little")

    def _places(self) -> tuple[Ints, int]:
        """Follow the chain of entry arrays: the place of each entry that the header promises, and how many more there are."""
        width, kind = (4, "<u4") if self.compact else (8, "<u8")
        at, last, count, beyond = self._number(176), 0, 0, 0
        parts: list[Ints] = []
        while at > last and at % 8 == 0 and at + 24 <= self.size:
            head = os.pread(self.file, 24, at)
            size, following = int.from_bytes(head[8:16], "little"), int.from_bytes(head[16:24], "little")
            if head[:1] != bytes([_ENTRY_ARRAY]) or size < 24 or at + size > self.size:
                break
            data = os.pread(self.file, size - 24, at + 24)
            slots = np.frombuffer(data, kind, len(data) // width).astype(np.int64)  # fewer where the file is cut meanwhile
            parts.append(slots[: self.header.entries - count])
            count += len(parts[-1])
            beyond += int(np.count_nonzero(slots[len(parts[-1]) :]))
            last, at = at, following
        # A file that is being written may have got entries since its header was read.
        return (np.concatenate(parts) if parts else np.empty(0, np.int64)), 0 if self.header.online else beyond

    def _blocks(self, places: Ints) -> Iterator[tuple[int, int, Ints]]:
        """Cut the entries into stretches of the file: where each begins and ends, and the places of its entries."""
        if not len(places):
            return
        begin = int(places[0])
        while len(places):
            n = max(int(np.searchsorted(places, begin + _BLOCK)), 1)
            end = int(places[n]) if n < len(places) else min(int(places[n - 1]) + self._object_size(int(places[n - 1])), self.size)
            yield begin, end, places[:n]
            places, begin = places[n:], end

    def _object_size(self, at: int) -> int:
        return max(64, min(self._number(at + 8), self.size - at))

    def _entries(self, begin: int, end: int, places: Ints) -> tuple[_Entries, Bools]:
        """Read the entries of a stretch; the mask says of each place whether there is one."""
        data = self._buffer = self._read(begin, end - begin)
        words = data.view("<u8")
        at = (places - begin) // 8
        size = words[at + 1].astype(np.int64)
        width = 4 if self.compact else 16
        count = (size - 64) // width
        whole = (data[places - begin] == _ENTRY) & (count >= 1) & (count <= _MOST_ITEMS) & (places + size <= end + 8)
        at, count = at[whole], count[whole]
        starts = np.cumsum(count) - count
        inner = np.arange(int(count.sum())) - np.repeat(starts, count)
        if self.compact:
            items = data.view("<u4")[np.repeat(2 * at + 16, count) + inner].astype(np.int64)
        else:
            items = words[np.repeat(at + 8, count) + 2 * inner].astype(np.int64)
        real, mono = (words[at + k].astype(np.int64) for k in (3, 4))
        boot = mixed(mixed(np.zeros(len(at), np.uint64), words[at + 5].astype(np.int64)), words[at + 6].astype(np.int64))
        marks, one_of = np.unique(boot, return_index=True)
        self._boots = {int(k): words[at[i] + 5 : at[i] + 7].tobytes() for k, i in zip(marks[:_MOST_BOOTS], one_of, strict=False)}
        return _Entries(places[whole], words[at + 2], real, mono, boot, words[at + 7], count, items), whole

    # -- what stands there ----------------------------------------------------------------------------------------------------

    def _as_written(self, begin: int, end: int, entries: _Entries) -> Bools:
        """Say which entries have the fields that their hash was made of."""
        size, items, starts = entries.size, entries.items, entries.starts
        n = len(size)
        if not n:
            return np.empty(0, np.bool_)
        # The entries of a process have most fields in common with the one before: only what differs is looked up.
        alone = np.ones(n, np.bool_)
        alone[1:] = size[1:] != size[:-1]
        owner = np.repeat(np.arange(n), size)
        before = np.maximum(np.arange(len(items)) - np.repeat(size, size), 0)
        single = alone[owner]
        differs = single | (items != items[before])
        mine = np.flatnonzero(differs)
        theirs = np.flatnonzero(differs & ~single)
        asked = distinct(np.concatenate([items[mine], items[before[theirs]]]))
        self._forget(asked)
        self._learn(begin, end, asked)
        value = np.zeros(len(items), np.uint64)
        value[mine] = self._hashes(items[mine])
        value[theirs] ^= self._hashes(items[before[theirs]])
        made = np.bitwise_xor.reduceat(value, starts)
        made[1:] ^= np.where(alone[1:], np.uint64(0), entries.stored[:-1])
        good = made == entries.stored
        odd = np.flatnonzero(~good)
        if len(odd):
            good[odd] = self._each_as_written(begin, end, entries, odd)
        for mark, raw in self._boots.items():
            # The boot of an entry stands in one of its fields too.
            term = int(jenkins.hashes_of([b"_BOOT_ID=" + raw.hex().encode()])[0])
            good &= (entries.boot != np.uint64(mark)) | self._has(entries, term)
        return good

    def _each_as_written(self, begin: int, end: int, entries: _Entries, which: Ints) -> Bools:
        """Look at some entries by themselves: a wrong one makes the next one look wrong, and a field may have been given twice."""
        size = entries.size[which]
        starts = np.cumsum(size) - size
        at = np.repeat(entries.starts[which], size) + np.arange(int(size.sum())) - np.repeat(starts, size)
        items = entries.items[at]
        self._learn(begin, end, distinct(items))
        value = self._hashes(items)
        rest = np.bitwise_xor.reduceat(value, starts) ^ entries.stored[which]
        twice = np.logical_or.reduceat(value == np.repeat(rest, size), starts)
        made: Bools = (rest == 0) | twice
        return made

    def _hashes(self, items: Ints) -> Marks:
        """Look up the hashes of fields that were learned."""
        made: Marks = self.known[np.searchsorted(self.known_at, items)]
        return made

    def _forget(self, items: Ints) -> None:
        """Forget the fields that a stretch does not ask for: most messages are of one entry."""
        at = np.searchsorted(self.known_at, items)
        there = at < len(self.known_at)
        there[there] = self.known_at[at[there]] == items[there]
        self.known_at, self.known = items[there], self.known[at[there]]

    def _learn(self, begin: int, end: int, items: Ints) -> None:
        """Compute the hashes of fields that are not known yet."""
        if len(self.known_at):
            place = np.minimum(np.searchsorted(self.known_at, items), len(self.known_at) - 1)
            items = items[self.known_at[place] != items]
        here = (items >= begin) & (items + 64 < end) & (items % 8 == 0)
        made = np.zeros(len(items), np.uint64)
        made[here] = self._of_buffer(self._buffer, items[here] - begin, end - begin)
        made[~here] = jenkins.hashes_of([self._field_at(at) for at in items[~here].tolist()])
        every = np.concatenate([self.known_at, items])
        order = np.argsort(every, kind="stable")
        self.known_at, self.known = every[order], np.concatenate([self.known, made])[order]

    def _of_buffer(self, data: NDArray[np.uint8], at: Ints, size: int) -> Marks:
        """Return the hash of each field that begins at a place of a buffer; 0 where none does."""
        head = 72 if self.compact else 64
        length = data.view("<u8")[at // 8 + 1].astype(np.int64) - head
        fine = (data[at] == _DATA) & (length > 0) & (at + head + length <= size)
        # libsystemd leaves out a field whose links cannot be right.
        words = data.view("<u8")
        for link in (3, 4, 5, 6):
            fine &= words[at // 8 + link] % np.uint64(8) == 0
        fine &= (words[at // 8 + 5] == 0) == (words[at // 8 + 7] == 0)
        packed = fine & (data[at + 1] != 0)
        made = np.zeros(len(at), np.uint64)
        plain = fine & ~packed
        made[plain] = jenkins.hashes(data.view("<u4"), (at[plain] + head) // 4, length[plain])
        begin, end = at[packed] + head, at[packed] + head + length[packed]
        texts = [_unpacked(data[b:e].tobytes(), flags) for b, e, flags in zip(begin, end, data[at[packed] + 1].tolist(), strict=True)]
        made[packed] = jenkins.hashes_of(texts)
        return made

    def _field_at(self, at: int) -> bytes:
        """Read a field far from the others; empty where there is none."""
        if at % 8 or not 0 < at < self.size - 64:
            return b""
        head = 72 if self.compact else 64
        data = os.pread(self.file, self._object_size(at), at)
        links = [int.from_bytes(data[k : k + 8], "little") for k in (24, 32, 40, 48, 56)]
        if len(data) <= head or data[0] != _DATA or any(link % 8 for link in links[:4]) or (links[2] == 0) != (links[4] == 0):
            return b""
        return _unpacked(data[head:], data[1]) if data[1] else data[head:]

    # -- what is wanted -------------------------------------------------------------------------------------------------------

    def _has(self, entries: _Entries, term: int) -> Bools:
        """Say which entries have a field."""
        places = self.known_at[self.known == np.uint64(term)]
        made = np.zeros(len(entries.size), np.bool_)
        for place in places:
            made |= np.logical_or.reduceat(entries.items == place, entries.starts)
        return made

    def _wanted(self, entries: _Entries) -> Bools:
        """Say which entries one of the groups of matches selects."""
        if not self.terms or not len(entries.size):
            return np.ones(len(entries.size), np.bool_)
        made = np.zeros(len(entries.size), np.bool_)
        for group in self.terms:
            made |= np.logical_and.reduce([self._has(entries, term) for term in group])
        return made


def _unpacked(data: bytes, flags: int) -> bytes:
    """Unpack the value of a field; empty if that cannot be done."""
    with contextlib.suppress(OSError, ValueError, lzma.LZMAError, OverflowError, MemoryError):
        if flags == _ZSTD:
            return bytes(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read())
        if flags == _LZ4:
            size = int.from_bytes(data[:8], "little")
            return pa.Codec("lz4_raw").decompress(data[8:], decompressed_size=size, asbytes=True) if size < 1 << 30 else b""
        if flags == _XZ:
            return lzma.decompress(data)
    return b""


def _odd_clocks(real: Ints, mono: Ints, boot: Marks) -> Bools:
    """Say which entries have a clock that leaves those around it and comes back: no clock that is set does so for one entry."""
    made = np.zeros(len(real), np.bool_)
    if len(real) < 3:
        return made
    gap = real - mono
    step = np.diff(gap)
    same = (boot[1:-1] == boot[:-2]) & (boot[1:-1] == boot[2:])
    there, back = step[:-1], step[1:]
    least = np.minimum(np.abs(there), np.abs(back))
    usual = np.abs(step)
    jitter = 2 + 4 * int(np.percentile(usual[usual < _SECOND], 95)) if (usual < _SECOND).any() else 2
    returns = same & (np.sign(there) == -np.sign(back)) & (np.abs(there + back) <= jitter)
    if not returns.any():
        return made
    # One bit that was flipped, or one byte that was written over.
    flipped = np.zeros(len(least), np.bool_)
    for bit in range(63):
        flipped |= np.abs(least - (1 << bit)) <= jitter
    for shift in range(16, 56, 8):
        byte = (least + (1 << shift >> 1)) >> shift
        flipped |= (byte > 0) & (byte < 256) & (np.abs(least - (byte << shift)) <= jitter)
    # A process that was stopped between its looks at two clocks makes them differ too, by milliseconds, and more than once.
    others = np.sort(np.where(returns, least, 0))[-2:]
    alone = (least >= _STOPPED) | ((least > 4 * jitter) & (len(least) >= _MANY) & (least >= 8 * others[0]) & (least == others[-1]))
    made[1:-1] = returns & flipped & alone
    return made
