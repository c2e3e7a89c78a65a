"""Work on the bytes of a whole batch of lines at once: where they begin, which words they hold, numbers read eight digits at a time.

A batch's messages are one buffer of bytes with offsets, as Arrow stores them. All functions here take arrays of positions in
that buffer and give arrays; none has a loop over lines.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.dialects.secrets import SHAPED

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

PAD = 64
# Marks the bytes that an id does not have.
NO_ID = np.ones(256, dtype=np.bool_)
NO_ID[[c for c in range(128) if chr(c).isalnum() or chr(c) in "_-"]] = False
_U = np.uint64
_POW10 = 10 ** np.arange(16, dtype=np.int64)
# Keeps the upper ``k`` bytes of a little-endian word: the last ``k`` characters before a position.
_KEEP = np.array([0] + [(0xFFFFFFFFFFFFFFFF << (8 * (8 - k))) & 0xFFFFFFFFFFFFFFFF for k in range(1, 9)], dtype=np.uint64)
_ZEROS = _U(0x3030303030303030)
_SIXES = _U(0x0606060606060606)
_UPPER = _U(0xF0F0F0F0F0F0F0F0)
_PAIRS = _U(0x000000FF000000FF)


def word_of(text: bytes) -> int:
    """Return up to eight bytes as the number that a little-endian load of them gives."""
    return int.from_bytes(text[:8].ljust(8, b"\0"), "little")


class Text:
    """The bytes of a batch of lines, and what was found in them so far.

    Parameters
    ----------
    messages : pyarrow.StringArray
        One line each; null counts as empty.
    """

    def __init__(self, messages: pa.Array) -> None:
        if messages.null_count:
            messages = messages.fill_null("")
        self.messages = messages
        count = len(messages)
        _, offsets, data = messages.buffers()
        if count == 0 or data is None:
            self.start = np.full(count, PAD, dtype=np.int64)
            self.end = self.start.copy()
            raw = np.zeros(0, dtype=np.uint8)
        else:
            bounds = np.frombuffer(offsets, dtype=np.int32)[messages.offset : messages.offset + count + 1].astype(np.int64)
            first, last = int(bounds[0]), int(bounds[-1])
            raw = np.frombuffer(data, dtype=np.uint8)[first:last]
            bounds += PAD - first
            self.start, self.end = bounds[:-1], bounds[1:]
        self.data = np.zeros(len(raw) + 2 * PAD, dtype=np.uint8)
        self.data[PAD : PAD + len(raw)] = raw
        self._words: Words = np.ndarray((len(self.data) - 8,), dtype="<u8", buffer=self.data, strides=(1,))
        self._places: dict[int, Ints] = {}

    def __len__(self) -> int:
        return len(self.start)

    def words(self, at: Ints) -> Words:
        """Load the eight bytes from each position on as one number."""
        return self._words[at]

    def places(self, char: int) -> Ints:
        """Return all positions of a character in the batch, in order."""
        found = self._places.get(char)
        if found is None:
            found = self._places[char] = np.flatnonzero(self.data == char)
        return found

    def equal(self, at: Ints, literal: bytes) -> Bools:
        """Say where a text stands from each position on."""
        size = len(literal)
        if size == 0:
            return np.ones(len(at), dtype=np.bool_)
        if size < 8:
            mask = _U((1 << (8 * size)) - 1)
            return (self._words[at] & mask) == _U(word_of(literal))
        same: Bools = self._words[at] == _U(word_of(literal))
        for k in range(8, size, 8):
            k = min(k, size - 8)
            same &= self._words[at + k] == _U(word_of(literal[k : k + 8]))
        return same

    def uints(self, begin: Ints, end: Ints) -> tuple[Ints, Bools]:
        """Read one to eight digits each; the second array says where that is what stands there."""
        size = end - begin
        # In place where it can be: these lines run for every number of a log.
        word = self._words[end - 8]
        word ^= _ZEROS
        word &= _KEEP.take(size, mode="clip")
        # A digit is 0..9 now: adding 6 must not carry into the upper half, which must be empty.
        carry = word + _SIXES
        carry |= word
        carry &= _UPPER
        size -= 1
        good: Bools = (carry == 0) & (size.view(np.uint64) < _U(8))
        np.right_shift(word, _U(8), out=carry)
        word *= _U(10)
        word += carry
        np.right_shift(word, _U(16), out=carry)
        word &= _PAIRS
        word *= _U(0x000F424000000064)
        carry &= _PAIRS
        carry *= _U(0x0000271000000001)
        word += carry
        word >>= _U(32)
        return word.view(np.int64), good

    def fixed(self, begin: Ints, end: Ints, decimals: int) -> tuple[npt.NDArray[np.float64], Bools]:
        """Read numbers with so many decimals; the values are those that ``float`` gives."""
        if decimals == 0:
            whole, good = self.uints(begin, end)
            return whole.astype(np.float64), good
        dot = end - decimals - 1
        good = (dot > begin) & (self.data[np.maximum(dot, 0)] == 46)
        whole, fine = self.uints(begin, dot)
        good &= fine
        part, fine = self.uints(dot + 1, end)
        good &= fine
        # Both are exact below 2**53, so one division rounds as float() does.
        total = whole * _POW10[decimals] + part
        good &= total < 2**53
        return total / float(_POW10[decimals]), good

    def lists(self, begin: Ints, end: Ints) -> tuple[Ints, Ints, Bools]:
        """Read ``[1, 2, 3]``: lengths, all elements in a row (only of the good ones), and where that is what stands there."""
        good: Bools = (end - begin >= 2) & (self.data[begin] == 91) & (self.data[end - 1] == 93)
        # Most lists have one element; what is no number may be a longer list, or an empty one.
        values, single = self.uints(begin + 1, end - 1)
        single &= good
        if single.all():
            return np.ones(len(begin), dtype=np.int64), values, single
        sizes = np.where(single, 1, 0)
        other = np.flatnonzero(good & ~single)
        more, elements, fine = self._long_lists(begin[other], end[other])
        good[other] = fine
        sizes[other] = np.where(fine, more, 0)
        alone = np.repeat(single, sizes)
        out = np.empty(len(alone), dtype=np.int64)
        out[alone] = values[single]
        out[~alone] = elements
        return sizes, out, good

    def _long_lists(self, begin: Ints, end: Ints) -> tuple[Ints, Ints, Bools]:
        """Read lists that have not just one element; brackets were seen already."""
        commas = self.places(44)
        good: Bools = np.ones(len(begin), dtype=np.bool_)
        empty = end - begin == 2
        if not len(commas):
            return np.zeros(len(begin), dtype=np.int64), np.zeros(0, dtype=np.int64), empty
        first = np.searchsorted(commas, begin)
        sizes = np.searchsorted(commas, end) - first + 1
        sizes[empty] = 0
        offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
        total = int(offsets[-1])
        # An element ends at its comma, the last one at the bracket; behind the comma stand a blank and the next element.
        right = commas.take(np.arange(total) + np.repeat(first - offsets[:-1], sizes), mode="clip")
        full = np.flatnonzero(sizes)
        heads = offsets[:-1][full]
        right[offsets[1:][full] - 1] = end[full] - 1
        left = np.empty(total, dtype=np.int64)
        np.add(right[:-1], 2, out=left[1:])
        left[heads] = begin[full] + 1
        values, fine = self.uints(left, right)
        blank = self.data[left - 1] == 32
        blank[heads] = True
        fine &= blank
        if fine.all():
            return sizes, values, good
        row = np.repeat(np.arange(len(sizes)), sizes)
        good[row[~fine]] = False
        return sizes, values[good[row]], good

    def id_lists(self, begin: Ints, end: Ints) -> tuple[Ints, Ints, Bools]:
        """Read ``['a1', 'b-2']``: lengths, begin and end of each element (two columns, only of the good ones), and where that stands."""
        quotes = self.places(39)
        first = np.searchsorted(quotes, begin)
        inner = np.searchsorted(quotes, end) - first
        good: Bools = (self.data[begin] == 91) & (self.data[end - 1] == 93) & (inner >= 2) & (inner % 2 == 0)
        sizes = np.where(good, inner // 2, 0)
        offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
        total = int(offsets[-1])
        if not total:
            return sizes, np.zeros((0, 2), dtype=np.int64), good
        place = np.repeat(first - 2 * offsets[:-1], sizes) + 2 * np.arange(total)
        left, right = quotes[place] + 1, quotes[place + 1]
        row = np.repeat(np.arange(len(sizes)), sizes)
        head, tail = offsets[:-1][sizes > 0], offsets[1:][sizes > 0] - 1
        fine = (right > left) & ~self.holds(left, right, NO_ID)
        inside = np.ones(total, dtype=np.bool_)
        inside[head] = False
        before = np.where(inside, np.roll(right, 1), left - 4)
        fine &= ~inside | ((left - before == 4) & (self.data[before + 1] == 44) & (self.data[before + 2] == 32))
        fine[head] &= left[head] == begin[row[head]] + 2
        fine[tail] &= right[tail] == end[row[tail]] - 2
        fine &= ~np.asarray(pc.match_substring_regex(self.strings(left, right), SHAPED))
        good[row[~fine]] = False
        kept = good[row]
        return sizes, np.stack([left[kept], right[kept]], axis=1), good

    def holds(self, begin: Ints, end: Ints, table: Bools) -> Bools:
        """Say which stretches hold a byte that the table of 256 marks."""
        size = np.maximum(end - begin, 0)
        flat, offsets = self._flat(begin, size)
        marked = np.zeros(len(flat) + 1, dtype=np.int64)
        np.cumsum(table[self.data[flat]], out=marked[1:])
        return (marked[offsets[1:]] - marked[offsets[:-1]]) > 0

    def strings(self, begin: Ints, end: Ints) -> pa.Array:
        """Copy stretches of the buffer into an Arrow string array."""
        flat, offsets = self._flat(begin, np.maximum(end - begin, 0))
        return pa.StringArray.from_buffers(len(begin), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(self.data[flat]))

    def _flat(self, begin: Ints, size: Ints) -> tuple[Ints, Ints]:
        offsets = np.zeros(len(size) + 1, dtype=np.int64)
        np.cumsum(size, out=offsets[1:])
        return np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], size), offsets

    def text(self, row: int) -> str:
        """Return one line as text."""
        made: Any = self.messages[row].as_py()
        return str(made)
