"""The head of a line: the server's own time stamp and the ranks, in all their spellings.

Heads are remembered, since the same few come again and again.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

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
