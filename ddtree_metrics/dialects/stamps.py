"""The head of a line: the server's own time stamp and the ranks, in all their spellings.

Heads are read as arrays where they have the usual form (``[2026-02-01 10:00:00 TP0] ``, with milliseconds or without); all
others one at a time, and remembered, since the same few come again and again.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

import numpy as np

from ddtree_metrics.dialects.scan import Bools, Ints, Text, Words, word_of

SECOND_US = 1_000_000
RANKS = ("dp_rank", "pp_rank", "tp_rank", "ep_rank")
STAMP = "_stamp_us"
"""Under this name a reader gives the finer stamp that a line has within itself; see ``Head.refined``."""
_WORD = r"(?:DP|PP|TP|EP|ATTN_CP|MOE_DP|ATTN_TP|CP|MOE_TP|MOE_EP|ATTN_DP)"
_RANKS = rf"(?: +(?:{_WORD}\d{{1,6}}|encode_dp_worker\[\d+\]))*"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{3,6})?"
_DATE = r"\d{4}-\d\d-\d\d"
HEAD_PATTERN = rf"(?:(?:{_DATE}[ T])?{_CLOCK}{_RANKS}|x{_RANKS}|(?:{_WORD}\d{{1,6}}|encode_dp_worker\[\d+\]){_RANKS})"
"""What stands in the brackets before a message."""
CUT_HEAD_PATTERN = rf"(?:[\d:. T-]{{0,22}}(?:{_CLOCK})?|[A-Z_]{{0,8}}\d{{0,6}}){_RANKS}"
"""The same when its beginning was cut off."""

_HEAD = re.compile(rf"(?:(?P<date>{_DATE})?[ T]?(?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{{3,6}}))?|x)?(?P<ranks>.*)", re.S)
_RANK = re.compile(rf" *(?:(?P<word>{_WORD})(?P<number>\d{{1,6}})|encode_dp_worker\[(?P<encode>\d+)\])(?= |$)")


@dataclass(frozen=True, slots=True)
class Head:
    """What a head says.

    Parameters
    ----------
    naive_us : int or None
        The stamp as if it were UTC, microseconds since 1970.
    resolution_us : int or None
        Its smallest step.
    flag : str or None
        ``no_date`` or ``nonexistent``, if there is a stamp and no instant in it.
    ranks : tuple of int or None
        DP, PP, TP and EP rank.
    extra : dict of str to str
        Rank words that have no column.
    """

    naive_us: int | None = None
    resolution_us: int | None = None
    flag: str | None = None
    ranks: tuple[int | None, int | None, int | None, int | None] = (None, None, None, None)
    extra: dict[str, str] = field(default_factory=dict)

    def refined(self, naive_us: int) -> Head:
        """Return the same head with the stamp that its line has within itself, by the same clock, if it is the finer one."""
        if self.naive_us is not None and (self.resolution_us == 1 or abs(self.naive_us - naive_us) > 2 * SECOND_US):
            return self
        return replace(self, naive_us=naive_us, resolution_us=1, flag=None)


NO_HEAD = Head()


@functools.lru_cache(maxsize=4096)
def read_ranks(text: str) -> tuple[tuple[int | None, int | None, int | None, int | None], tuple[tuple[str, str], ...]] | None:
    """Read the rank words behind a stamp; ``None`` if there is anything else among them."""
    ranks: dict[str, int] = {}
    extra: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        found = _RANK.match(text, at)
        if found is None:
            return None
        at = found.end()
        if found["encode"] is not None:
            extra.append(("encode_dp_worker", found["encode"]))
        elif found["word"] in ("DP", "PP", "TP", "EP"):
            ranks.setdefault(found["word"], int(found["number"]))
        else:
            extra.append((found["word"], found["number"]))
    return (ranks.get("DP"), ranks.get("PP"), ranks.get("TP"), ranks.get("EP")), tuple(extra)


@functools.lru_cache(maxsize=65536)
def read_head(text: str, whole: bool = True) -> Head | None:
    """Read the text between the brackets of a head.

    Parameters
    ----------
    text : str
        Without the brackets.
    whole : bool
        False if its beginning was cut off, so that the stamp cannot be trusted.

    Returns
    -------
    Head or None
        ``None`` if it is no head.
    """
    found = _HEAD.fullmatch(text)
    if found is None:
        return None
    ranks = read_ranks(found["ranks"]) if whole else read_ranks(_rank_part(text))
    if ranks is None:
        return None
    extra = dict(ranks[1])
    if not whole or found["clock"] is None:
        return Head(ranks=ranks[0], extra=extra)
    resolution = 10 ** (6 - len(found["part"])) if found["part"] else SECOND_US
    if found["date"] is None:
        return Head(None, resolution, "no_date", ranks[0], extra)
    try:
        when = datetime.strptime(f"{found['date']} {found['clock']}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return Head(None, resolution, "nonexistent", ranks[0], extra)
    naive = int(when.timestamp()) * SECOND_US + (int(found["part"].ljust(6, "0")) if found["part"] else 0)
    return Head(naive, resolution, None, ranks[0], extra)


def _rank_part(text: str) -> str:
    found = re.search(rf"(?:^{_WORD}\d{{1,6}})?{_RANKS}$", text, re.A)
    return found[0] if found else ""


@dataclass(slots=True)
class Heads:
    """The heads of many lines as arrays; -1 stands for "not there" in ``ranks`` and ``resolution``."""

    naive: Ints
    known: Bools
    resolution: Ints
    flags: list[str | None] | None
    ranks: Ints
    extra: list[dict[str, str] | None] | None

    @staticmethod
    def of(heads: list[Head]) -> Heads:
        """Make the arrays from heads that were read one at a time."""
        flags = [h.flag for h in heads]
        extra = [h.extra or None for h in heads]
        return Heads(
            np.array([h.naive_us or 0 for h in heads], dtype=np.int64),
            np.array([h.naive_us is not None for h in heads], dtype=np.bool_),
            np.array([h.resolution_us or -1 for h in heads], dtype=np.int64),
            flags if any(flags) else None,
            np.array([[-1 if r is None else r for r in h.ranks] for h in heads], dtype=np.int64).reshape(len(heads), 4),
            extra if any(extra) else None,
        )


_SIX = np.uint64(0x0606060606060606)
_HIGH = np.uint64(0xF0F0F0F0F0F0F0F0)
_DATE_ZERO, _DAY_ZERO, _CLOCK_ZERO = (np.uint64(word_of(t)) for t in (b"0000-00-", b"00 00:00", b"00:00:00"))
_DATE_MARKS, _DAY_MARKS, _CLOCK_MARKS = (np.uint64(sum(0xFF << (8 * k) for k in places)) for places in ((4, 7), (2, 5), (2, 5)))


def _pair(word: Words, place: int) -> Ints:
    """Read the two digits at a place of a word from which the character 0 was taken away."""
    tens = (word >> np.uint64(8 * place)) & np.uint64(0xFF)
    ones = (word >> np.uint64(8 * place + 8)) & np.uint64(0xFF)
    return (tens * np.uint64(10) + ones).astype(np.int64)


def take_heads(heads: Heads, which: Ints) -> Heads:
    """Return the heads of some of the lines."""
    return Heads(
        heads.naive[which],
        heads.known[which],
        heads.resolution[which],
        None if heads.flags is None else [heads.flags[i] for i in which],
        heads.ranks[which],
        None if heads.extra is None else [heads.extra[i] for i in which],
    )


def read_heads(text: Text, begin: Ints, end: Ints) -> tuple[Heads, Bools]:
    """Read usual heads as arrays; lines in a row with the same head are read once.

    Parameters and results are those of ``read_each_head``.
    """
    size = end - begin
    longest = int(size.max()) if len(size) else 0
    if len(size) < 64 or longest < 8 or longest > 64:
        return read_each_head(text, begin, end)
    new = np.ones(len(size), dtype=np.bool_)
    new[1:] = size[1:] != size[:-1]
    for at in [*range(0, longest - 8, 8), None]:
        # The last word overlaps; a shorter head is compared beyond its end, which can only make it look new.
        word = text.words(end - 8 if at is None else begin + at)
        new[1:] |= word[1:] != word[:-1]
    first = np.flatnonzero(new)
    if 2 * len(first) > len(size):
        return read_each_head(text, begin, end)
    heads, usual = read_each_head(text, begin[first], end[first])
    run = np.cumsum(new) - 1
    return take_heads(heads, run), usual[run]


def read_each_head(text: Text, begin: Ints, end: Ints) -> tuple[Heads, Bools]:
    """Read usual heads as arrays.

    Parameters
    ----------
    text : Text
        The batch.
    begin, end : numpy.ndarray of int64
        Where each head's inside begins and ends; equal where the line has none.

    Returns
    -------
    heads : Heads
    usual : numpy.ndarray of bool
        Which of them were read; the others need ``read_head``.
    """
    count = len(begin)
    bare = begin == end
    size = end - begin
    usual: Bools = size >= 19
    at = np.where(usual, begin, 0)
    date = text.words(at) ^ _DATE_ZERO
    middle = text.words(at + 8) ^ _DAY_ZERO
    clock = text.words(at + 11) ^ _CLOCK_ZERO
    for word, marks in ((date, _DATE_MARKS), (middle, _DAY_MARKS), (clock, _CLOCK_MARKS)):
        usual &= ((word | (word + _SIX)) & (_HIGH | marks)) == (_SIX & marks)
    year = _pair(date, 0) * 100 + _pair(date, 2)
    month, day = _pair(date, 5), _pair(middle, 0)
    hour, minute, second = _pair(clock, 0), _pair(clock, 3), _pair(clock, 6)
    usual &= year >= 1
    months = np.where(usual, (year - 1970) * 12 + np.clip(month, 1, 12) - 1, 0)
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    after = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    real = (month >= 1) & (month <= 12) & (day >= 1) & (day <= after - first) & (hour < 24) & (minute < 60) & (second < 60)
    naive = ((first + day - 1) * 86400 + hour * 3600 + minute * 60 + second) * SECOND_US
    ranks_at = begin + 19
    resolution = np.full(count, SECOND_US, dtype=np.int64)
    dotted = usual & (size >= 23) & (text.data[np.where(size >= 23, begin + 19, 0)] == 46)
    if dotted.any():
        part, fine = text.uints(begin + 20, begin + 23)
        dotted &= fine
        naive = np.where(dotted, naive + part * 1000, naive)
        resolution[dotted] = 1000
        ranks_at = np.where(dotted, begin + 23, ranks_at)
    words = text.strings(np.where(usual, ranks_at, begin), np.where(usual, end, begin)).dictionary_encode()
    table = np.full((len(words.dictionary), 4), -1, dtype=np.int64)
    plain = np.ones(len(words.dictionary), dtype=np.bool_)
    more: list[dict[str, str] | None] = []
    for i, words_text in enumerate(words.dictionary.to_pylist()):
        ranks = read_ranks(words_text) if not words_text or words_text.startswith(" ") else None
        more.append(dict(ranks[1]) or None if ranks else None)
        if ranks is None:
            plain[i] = False
        else:
            table[i] = [-1 if r is None else r for r in ranks[0]]
    codes = words.indices.to_numpy()
    usual &= plain[codes]
    flags: list[str | None] | None = None
    if not real[usual].all():
        flags = ["nonexistent" if wrong else None for wrong in (usual & ~real).tolist()]
    extra = [more[c] for c in codes] if any(more) else None
    known = usual & real
    resolution[bare] = -1
    usual |= bare
    return Heads(naive, known, resolution, flags, table[codes], extra), usual
