"""Where a message begins in a line with an unusual head, and which kinds of line it may be; and what a damaged stream left around it.

A marker counts directly behind a head: the last bracket with a stamp or ranks, the beginning of the line, or what a logging library
or a launcher puts there. What stands before a bracket is opaque, unless it quotes: a quotation mark, or a word with a colon or an
equals sign just before the bracket, makes the rest somebody's words about a line, and no line. Behind anything else a line of pairs
counts only if it is whole and nothing speaks for a quotation (``prefix.py``).

Replacement characters for bad bytes, and control characters, are taken off where they cannot belong to a value: at the ends of a line,
between its head and its message, and between pairs. Inside a value they stay, and the value is then none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.dialects.base import Line
from ddtree_metrics.dialects.prefix import (
    NOT_A_LABEL,
    PROSE,
    behind_bar,
    head_at,
    head_before,
    inside_quotes,
    is_quoted,
    last_head,
    launched,
)
from ddtree_metrics.dialects.stamps import CUT_HEAD_PATTERN, HEAD_PATTERN, NO_HEAD, Head, read_head

_CHARS = "\ufffd\ufeff\x00-\x08\x0b-\x1f\x7f-\x9f"
_RUN = re.compile(rf"[{_CHARS}][{_CHARS}\s]*")
_ENDS = re.compile(rf"^[{_CHARS}][{_CHARS}\s]*|[{_CHARS}][{_CHARS}\s]*$")
_ANY_JUNK = "[\\x{FFFD}\\x{FEFF}\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f]"
_PAIR_KEY = re.compile(r"[,;|]?\s{0,9}[\"']?[A-Za-z_#][^\s=:,;|\"'\[\]{}]{0,60}(?: [^\s=:,;|\"'\[\]{}]{1,60}){0,5}?[\"']?\s?[=:]", re.A)
_BRACKET = re.compile(r"\[[\w.:, -]{0,96}\]", re.A)
_HEAD = re.compile(rf"\[({HEAD_PATTERN})\](?:\s+|(?=\S))", re.A)
_HEADS_MOST = 8
_CUT = re.compile(rf"({CUT_HEAD_PATTERN})\]\s+", re.A)
_QUOTES = re.compile("[\"'`“”„‟«»‘’]")
_QUOTING = re.compile(r"\w\s*[:=(,]\s*$")
_LEVEL = r"\b(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\b"
_LOGGER = re.compile(
    rf"(?:\(\w[^()\"']*pid=\d+[^()\"']*\)\s*)?(?:[\w.:,/+\[\]() |-]*?{_LEVEL}[\w.:,/+\[\]() |-]*?[:\]|-]\s*"
    r"|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]?\d*[^\"'\w\[]*)?",
    re.A,
)
_KEY = re.compile(r" ?([^:,\"']{1,60}): ", re.A)
_REST = re.compile(r" ?(?:[^\s\[][\w .#()/%:,\[\]-]{0,60})?", re.A)
_UNIT = re.compile(r"[\w@.:\\-]+\.(?:service|scope): ", re.A)
_AFTER = re.compile(rf"{_LEVEL}\s+[\w./-]+:\d+:\s+", re.A)


@dataclass(frozen=True, slots=True)
class Found:
    """A place where a message may begin: the kind (its number), the position, and the head before it.

    ``whole``: what stands before it is no head, so that it counts only if nothing is wrong with it.
    """

    kind: int
    begin: int
    head: Head
    marked: bool
    whole: bool = False


class Locator:
    """Finds messages of the given line kinds.

    Parameters
    ----------
    lines : sequence of Line
        The kinds; their numbers are their places.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        kinds = [(n, line) for n, line in enumerate(lines)]
        self._marked = [(n, m.lower() if line.loose else m, line.loose) for n, line in kinds for m in line.markers if not line.anywhere]
        self._anywhere = [(n, m) for n, line in kinds for m in line.markers if line.anywhere]
        self._loose = [n for n, line in enumerate(lines) if line.loose]
        self._keys = {n: lines[n].known_keys for n in self._loose}
        self._any_marker = re.compile(
            "|".join(("(?i:" if loose else "(?:") + re.escape(m) + ")" for _, m, loose in self._marked) or r"(?!)"
        )
        parts = [("(?i:" if loose else "(?:") + _re2(m) + ")" for _, m, loose in self._marked]
        parts += [_re2(m) for _, m in self._anywhere]
        for line in lines:
            if line.loose:
                strong = [k for k in line.fields if (f := line.column_of(k)) and (not line.strong or f.column in line.strong)]
                if strong:
                    parts.append("(?:" + "|".join(_re2(k) for k in strong) + ")[\"']? ?[=:]")
        self._fields = [tuple(line.fields) for line in lines]
        self._strict = [(n, line.known_keys) for n, line in kinds if line.is_pairs and not line.loose]
        numbers = {k for n, _ in self._strict for k in lines[n].fields if k.startswith("#")}
        if numbers:
            parts.append("(?:" + "|".join(map(_re2, sorted(numbers))) + "): ")
        self._likes: dict[str, list[tuple[int, str, bool]]] = {}
        self._pairs = [(n, m, loose) for n, m, loose in self._marked if lines[n].is_pairs]
        named = [("(?i:" if loose else "(?:") + re.escape(m) + ")" for _, m, loose in self._pairs]
        self._pair_marker = re.compile("|".join(named) or r"(?!)")
        spoken = named + [lines[n].known_keys.pattern for n in self._loose]
        self.speaks = re.compile("|".join(spoken) or r"(?!)", re.A)
        sure = [(n, m, loose) for n, m, loose in self._marked if not lines[n].shared] + [(n, m, False) for n, m in self._anywhere]
        self._sure = {m: n for n, m, _ in reversed(sure)}
        self._sure_marker = re.compile("|".join(("(?i:" if loose else "(?:") + re.escape(m) + ")" for _, m, loose in sure) or r"(?!)")
        self.mentions = "|".join(("(?i:" if loose else "(?:") + _re2(m) + ")" for _, m, loose in sure) or r"[^\s\S]"
        # A quotation mark before the marker makes it a quotation, so the search can stop there.
        self.any_of = "(?s)^[^\"'`“”„‟«»‘’]*(?:" + "|".join(parts) + ")"
        self.shortest = min([len(m) for _, m, _ in self._marked] + [len(m) for _, m in self._anywhere] + [8])

    def find(self, text: str) -> list[Found]:
        """List the places where a message may begin, the likeliest first."""
        made: list[Found] = []
        unmarked: list[Found] = []
        begins = self._begins(text)
        if begins[0][1] is not NO_HEAD:
            # Two lines glued together are one that is broken, as the compiled reader sees it.
            first = head_at(text, launched(text))
            if first[1] is not NO_HEAD and self._any_marker.match(text, first[0]):
                begins = [first]
        lost = _CUT.match(text)
        cut = lost.end() if lost else -1
        for begin, head in begins:
            made += self._at(text, begin, head)
            # What is left of a head may be what is left of a list: only a marker tells.
            unmarked += [Found(n, begin, head, False) for n in self._loose if begin != cut]
        for begin, head in self._logged(text, self._any_marker if not made else self._pair_marker):
            made += self._at(text, begin, head)
        if not made and self._anywhere:
            quote = _QUOTES.search(text)
            begin, head = begins[0]
            for number, marker in self._anywhere:
                at = text.find(marker, begin)
                if at >= 0 and (quote is None or at < quote.start()):
                    unmarked.append(Found(number, begin, head, True))
        return made + unmarked

    def _at(self, text: str, begin: int, head: Head) -> list[Found]:
        made: list[Found] = []
        there = self._any_marker.match(text, begin)
        if there is None:
            return made
        for number, marker, loose in self._like(there[0]):
            part = text[begin : begin + len(marker)]
            if (part.lower() if loose else part) == marker:
                made.append(Found(number, begin, head, True))
        return made

    def _like(self, marker: str) -> list[tuple[int, str, bool]]:
        """List the markers of which one begins like the other."""
        known = self._likes.get(marker)
        if known is None:
            low = marker.lower()
            known = [m for m in self._marked if low.startswith(m[1].lower()) or m[1].lower().startswith(low)]
            self._likes[marker] = known
        return known

    @staticmethod
    def _begins(text: str) -> list[tuple[int, Head]]:
        made: list[tuple[int, Head]] = []
        quote = _QUOTES.search(text)
        limit = quote.start() if quote else len(text)
        heads = [m for m in _HEAD.finditer(text, 0, min(limit + 1, len(text))) if m.end() <= limit and m.end() < len(text)]
        heads = [m for m in heads if not _QUOTING.search(text, max(0, m.start() - 80), m.start())]
        # Of very many heads the last ones and the first: to look behind each would take the square of the time.
        for match in [*heads[1:][: -_HEADS_MOST - 1 : -1], *heads[:1]]:
            head = read_head(match[1])
            if head is not None:
                made.append((match.end(), head))
                after = _AFTER.match(text, match.end())
                if after:
                    made.append((after.end(), head))
        for end in sorted({launched(text), behind_bar(text, limit)} - {0}, reverse=True):
            made.append(head_at(text, end))
        cut = _CUT.match(text)
        if cut:
            head = read_head(cut[1], whole=False)
            if head is not None:
                made.append((cut.end(), head))
        made.append((len(text) - len(text.lstrip()), NO_HEAD))
        unit = _UNIT.match(text)
        if unit:
            made.append((unit.end(), NO_HEAD))
        return made

    def buried(self, text: str) -> list[Found]:
        """List the places where a line of pairs may stand at the end of a line behind anything that is no head.

        Such a line counts only if it is whole; it must not be a quotation.
        """
        markers = list(self._pair_marker.finditer(text))
        if markers:
            marker = markers[-1]
            if is_quoted(text, marker.start()):
                return []
            number = self._kind_of(marker[0])
            # The stock lines have a fixed head; what stands behind another is no line of the server.
            return [Found(number, marker.start(), last_head(text, marker.start()), True, whole=True)] if number in self._loose else []
        made: list[Found] = []
        for number in self._loose:
            keys = [m.start() for m in self._keys[number].finditer(text)][-12:]
            if keys and not is_quoted(text, keys[0], labelled=True):
                made += [Found(number, at, last_head(text, at), False, whole=True) for at in keys[:-1]]
        return made

    def headless(self, text: str) -> tuple[int, int] | None:
        """Return the kind of a stock line of pairs that lost its beginning, marker included, and where its first whole pair is."""
        best: tuple[int, int, int] | None = None
        for number, keys in self._strict:
            found = list(keys.finditer(text))
            count = len({m[0] for m in found}) + bool((first := _KEY.match(text)) and self._is_end(number, first[1]))
            before = text[: found[0].start()] if found else ""
            if count > 1 and any(m[0].startswith("#") for m in found) and _REST.fullmatch(before) and not NOT_A_LABEL.search(before):
                best = max(best or (0, 0, 0), (count, -number, found[0].start()))
        return None if best is None or PROSE.search(text, 0, best[2]) else (-best[1], best[2])

    def _is_end(self, number: int, key: str) -> bool:
        return key not in self._fields[number] and any(k.endswith(key) for k in self._fields[number])

    def mention(self, text: str) -> tuple[int, int] | None:
        """Return the kind whose marker a line holds, and where; ``None`` if it holds none that only one kind has."""
        marker = self._sure_marker.search(text)
        if marker is None:
            return None
        return self._sure[marker[0] if marker[0] in self._sure else marker[0].lower()], marker.start()

    def is_quotation(self, text: str, number: int, at: int) -> bool:
        """Whether the only marker of a line, a quotation mark somewhere before it, stands inside quotation marks."""
        return inside_quotes(text, at) and self._sure_marker.search(text, at + 1) is None

    def _kind_of(self, marker: str) -> int:
        return next(n for n, m, loose in self._pairs if m == (marker.lower() if loose else marker))

    @staticmethod
    def _logged(text: str, markers: re.Pattern[str]) -> list[tuple[int, Head]]:
        marker = markers.search(text)
        if marker and 0 < marker.start() < 400 and _LOGGER.fullmatch(text, 0, marker.start()):
            return [(marker.start(), head_before(text, marker.start()))]
        return []


def _re2(text: str) -> str:
    """Quote a text for RE2, which knows fewer escapes than ``re.escape`` writes."""
    return "".join(c if c.isalnum() or c in " _-" or ord(c) > 127 else "\\" + c for c in text)


def _doubtful(data: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the places of all bytes that junk could begin with; much quicker than a search for the characters."""
    made = []
    if ((data < 32) & (data != 9)).any():
        made.append(np.flatnonzero((data < 32) & (data != 9)))
    made += [np.flatnonzero(data == first) for first in (0x7F, 0xC2, 0xEF) if (data == first).any()]
    return np.sort(np.concatenate(made)) if made else np.zeros(0, dtype=np.int64)


def without_junk(messages: pa.Array, speaks: re.Pattern[str]) -> pa.Array:
    """Take junk off all lines of a batch.

    Parameters
    ----------
    messages : pyarrow.StringArray
        One line each.
    speaks : re.Pattern
        Finds a marker. Only lines that hold one lose junk between their parts too; in others it may be part of a text.

    Returns
    -------
    pyarrow.StringArray
        The same array if there is nothing to take off.
    """
    _, offsets, data = messages.buffers()
    if data is None or not len(messages):
        return messages
    bounds = np.frombuffer(offsets, dtype=np.int32)[messages.offset : messages.offset + len(messages) + 1]
    places = _doubtful(np.frombuffer(data, dtype=np.uint8)[bounds[0] : bounds[-1]])
    if not len(places):
        return messages
    rows = np.unique(np.searchsorted(bounds, places + bounds[0], side="right") - 1)
    rows = rows[np.asarray(pc.match_substring_regex(messages.take(pa.array(rows)), _ANY_JUNK).fill_null(False))]
    if not len(rows):
        return messages
    made = messages.to_pylist()
    for row in rows:
        made[row] = clean(made[row], speaks)
    return pa.array(made, type=messages.type)


def clean(text: str, speaks: re.Pattern[str]) -> str:
    """Take junk off one line."""
    marker = speaks.search(text)
    if marker is None:
        return _ENDS.sub("", text)
    out: list[str] = []
    at = 0
    for run in _RUN.finditer(text):
        begin, end = run.span()
        gap = _gap(text, begin, end, speaks)
        if gap is None:
            continue
        out.append(text[at:begin])
        # A blank before the run is enough of one.
        out.append("" if out[-1].endswith((" ", "\t")) else gap)
        at = end
    out.append(text[at:])
    return "".join(out)


def _gap(text: str, begin: int, end: int, speaks: re.Pattern[str]) -> str | None:
    """Say what stands in a line for a run of junk; ``None`` if the run stays."""
    if begin == 0 or end == len(text):
        return ""
    before, after = text[begin - 1], text[end]
    if len(text) - end < 4 and not text[end:].strip(" ,;|"):
        return ""
    last = text[max(0, begin - 4) : begin].rstrip()[-1:]
    if last == "=" or (last == ":" and after in ",;|"):
        # It is all there is of a value.
        return None
    if (before.isalpha() or before == "_") and (after.isalpha() or after == "_") and not any(c.isspace() for c in text[begin:end]):
        return None
    if _PAIR_KEY.match(text, end) or _BRACKET.match(text, end) or speaks.match(text, end):
        return "" if after in ",;|" else " "
    return None
