"""The tolerant reader of one line of keys and values: any order, any usual spelling, and the reason if it cannot be read.

It is what the reference reader does with lines of pairs, and the model of the compiled one, which sees the usual ones only.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import Any

from ddtree_metrics.dialects.base import MOST_SEQUENCES, Broken, Field, Line
from ddtree_metrics.dialects.cast import convert
from ddtree_metrics.dialects.prefix import NOT_A_LABEL, PROSE
from ddtree_metrics.dialects.secrets import REDACTED, is_plain, kept, kept_key
from ddtree_metrics.schema import columns

RESIDUE = 8
"""How many words without a key are kept of a line."""
ITERATION = "[N]"
"""The name under which a number in brackets behind the marker is declared as a key."""

_A = re.ASCII
_KEY = r"[A-Za-z_#][\w#./+-]*"
_PAIR = re.compile(rf"(?P<quote>[\"']?)(?P<key>{_KEY})(?P=quote)(?: ?= ?(?=\S)|=|\s*:\s+|\s*:(?=[\[(\d]))", _A)
_EQUALS = re.compile(r"(?<![\w\"'])[\"']?[A-Za-z_#][\w#./+-]{0,80}[\"']? ?=", _A)
_COLON = re.compile(r":\s+")
_FRAGMENT = re.compile(r"=.*|(?!\s+\d+\s+[^\d\s])(?:[\[(]\d+,)?[\d.,;)\]}'\" ]*[\d)\]}'\"][,; ]*", _A)
"""What stands before the first pair of a line that was cut inside a value: its end."""
_LABEL = re.compile(r"[\w .:/()\[\]#<>|-]{0,60}", _A)
_QUOTED_HEAD = re.compile(r"\w\s*[:=(,]\s*\[[^\]]*\]", _A)
_SKIP = re.compile(r"[\s,;|{}]*")
_BARE = re.compile(r"[^\s,;|}]+")
_GLUED = re.compile(r"[,;|]?(?=[^\s,;|{}()\[\]])")
_GOES_ON = re.compile(r"[\s,;|]+[+-]?\.?\d")
_CALL = re.compile(r"(?:[A-Za-z_][\w.]*)?[\[(]", _A)
_DOTS = re.compile(r"(?:\.\.\.|…)\s*\W{0,3}$")
_HALF = re.compile(r"[+-]?(?:\d+\.|\d+(?:\.\d+)?[eE][+-]?)?|T|Tr|Tru|F|Fa|Fal|Fals", _A)
_REPEATED = re.compile(r"\s*\[repeated (\d+)x across (?:the )?cluster\]\s*$", _A)
_ITERATION = re.compile(r" ?\[(\d+)\]", _A)
_SECRET_WORD = re.compile(r"[ \t]+[^\s,;|}=\[\](){}\"']+(?=[\s,;|}]|$)", _A)
_COMMA_KEY = r"#?[A-Za-z][^:,=\"'\[\]]{0,60}?"


@dataclass(slots=True)
class PairSpans:
    """The pairs of one line: key, and where its value begins and ends in the text."""

    pairs: list[tuple[str, int, int]] = field(default_factory=list)
    residue: list[str] = field(default_factory=list)
    cut: bool = False
    half: list[int] = field(default_factory=list)
    """Pairs (their places) with a bare value behind which a number follows that is no pair's: ``1 024`` is not 1."""


@dataclass(slots=True)
class LineValues:
    """What one line gave: column values, the unknown keys, and what a shape can be made of."""

    values: dict[str, Any]
    extra: dict[str, str]
    tokens: PairSpans


@functools.cache
def kinds_of(record: type) -> dict[str, tuple[str, bool]]:
    """Map the columns of a record class to their kind and width."""
    return {c.name: (c.kind, c.col.wide) for c in columns(record)}


def _value_end(text: str, at: int) -> int:
    """Say where the value that begins here ends; -1 if the line ends first."""
    char = text[at]
    if char in "\"'":
        escaped = False
        for k in range(at + 1, len(text)):
            if escaped:
                escaped = False
            elif text[k] == "\\":
                escaped = True
            elif text[k] == char:
                return k + 1
        return -1
    call = _CALL.match(text, at)
    if call is None:
        bare = _BARE.match(text, at)
        return bare.end() if bare else at
    depth = 0
    k = call.end() - 1
    quote = ""
    while k < len(text):
        char = text[k]
        if quote:
            if char == quote:
                quote = ""
        elif char in "\"'":
            quote = char
        elif char in "[(":
            depth += 1
        elif char in "])":
            depth -= 1
            if depth == 0:
                return k + 1
        k += 1
    return -1


def _whole_end(text: str, end: int) -> int:
    """Say where a value really ends of which the first part ends here: what follows without a blank and is no pair belongs to it."""
    while (glued := _GLUED.match(text, end)) and glued.end() < len(text) and not _PAIR.match(text, glued.end()):
        bare = _BARE.match(text, glued.end())
        assert bare is not None
        end = bare.end()
    return end


def loose_tokens(text: str, start: int) -> PairSpans:
    """Find the pairs behind ``start``: ``=`` or ``: ``, blanks or commas between them, nothing inside quotes."""
    made = PairSpans()
    at = start
    while True:
        skipped = _SKIP.match(text, at)
        at = skipped.end() if skipped else at
        if at >= len(text):
            return made
        pair = _PAIR.match(text, at)
        if pair is None:
            if text[at] in "\"'([":
                end = _value_end(text, at)
                made.cut |= end < 0
                made.residue.append(text[at : end if end > 0 else len(text)])
                at = end if end > 0 else len(text)
            else:
                bare = _BARE.match(text, at)
                end = bare.end() if bare else at + 1
                made.residue.append(text[at:end])
                at = max(end, at + 1)
            continue
        at = pair.end()
        if at >= len(text):
            made.pairs.append((pair["key"], at, at))
            made.cut = True
            return made
        if text[at].isspace() or text[at] in ",;|}":
            made.pairs.append((pair["key"], at, at))
            continue
        end = _value_end(text, at)
        if end < 0:
            made.cut = True
            made.pairs.append((pair["key"], at, len(text)))
            return made
        end = _whole_end(text, end)
        if text[at] not in "[(\"'" and _GOES_ON.match(text, end):
            made.half.append(len(made.pairs))
        if text[at:end].lower() in ("bearer", "basic"):
            secret = _SECRET_WORD.match(text, end)
            end = secret.end() if secret else end
        made.pairs.append((pair["key"], at, end))
        at = end


@functools.lru_cache(maxsize=64)
def _split_pattern(pairs: str, kv: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    pair, sep = re.escape(pairs.strip() or pairs), re.escape(kv.rstrip() or kv)
    blank = r"(?: +|$)" if kv.endswith(" ") else " *"
    key = _COMMA_KEY if kv.strip() == ":" else r"[^\s=,;|\"'\[\]]{1,60}?"
    head = re.compile(rf"\s*(?P<key>{key}){sep}{blank}", _A)
    stop = re.compile(rf"\s*{pair}\s*(?={key}{sep}{blank}|$)", _A)
    return head, stop


def split_tokens(text: str, start: int, pairs: str, kv: str) -> PairSpans:
    """Find the pairs behind ``start`` where separator and key-value sign are fixed; a separator ends a value only before a key."""
    head, stop = _split_pattern(pairs, kv)
    made = PairSpans()
    at = start
    while at < len(text):
        key = head.match(text, at)
        if key is None:
            rest = text[at:].strip().strip(pairs.strip() or " ").strip()
            if rest:
                made.residue.append(rest)
                made.cut = True
            return made
        ends = stop.search(text, key.end())
        end = ends.start() if ends else len(text)
        value = text[key.end() : end]
        if ends is None or ends.end() >= len(text):
            value, rest = _first_value(value, pairs.strip())
            if rest:
                made.residue.append(rest)
                made.cut = True
        stripped = value.rstrip()
        made.pairs.append((key["key"], key.end(), key.end() + len(stripped)))
        if not stripped:
            made.cut = True
        at = ends.end() if ends else len(text)
    return made


def _first_value(value: str, pair: str) -> tuple[str, str]:
    """Split what follows the last key at the first separator outside brackets: behind it stands the beginning of a key."""
    if not pair or pair not in value:
        return value, ""
    depth = 0
    for k, char in enumerate(value):
        depth += (char in "[(") - (char in "])")
        if depth <= 0 and value.startswith(pair, k):
            return value[:k], value[k:].strip().strip(pair).strip()
    return value, ""


def _fill(line: Line, text: str, tokens: PairSpans) -> tuple[dict[str, Any], dict[str, str]]:
    """Put the pairs into columns, the unknown ones into extra."""
    kinds = kinds_of(line.record)
    targets = line.targets
    best: dict[str, tuple[int, str, int, int, Field, int]] = {}
    extra: dict[str, str] = {}
    last = len(tokens.pairs) - 1
    times: dict[str, int] = {}
    seen: set[str] = set()
    repeated = False
    for place, (key, begin, end) in enumerate(tokens.pairs):
        found = targets.get(key)
        if found is None:
            n = times[key] = times.get(key, 0) + 1
            name = kept_key(key)
            extra.setdefault(name if n == 1 else f"{name}#{n}", kept(key, text[begin:end]))
            continue
        repeated |= key in seen
        seen.add(key)
        rank, target = found
        if target.keep:
            extra.setdefault(key, kept(key, text[begin:end]))
        old = best.get(target.column)
        if old is None or rank < old[0]:
            if old is not None and not old[4].keep:
                extra.setdefault(old[1], kept(old[1], text[old[2] : old[3]]))
            best[target.column] = (rank, key, begin, end, target, place)
        elif key != old[1] and not target.keep:
            extra.setdefault(key, kept(key, text[begin:end]))
    values: dict[str, Any] = {}
    for column, (_, _, begin, end, _, place) in best.items():
        value = text[begin:end]
        kind, wide = kinds[column]
        if column.endswith("_ms") and value.endswith("ms"):
            value = value[:-2].rstrip()
        if place in tokens.half and kind in ("int", "float", "list<int>"):
            raise Broken("bad_number")
        try:
            values[column] = convert(value, kind, wide)
        except Broken as problem:
            if place == last and not text[end:].strip() and problem.reason in ("bad_number", "bad_value") and _HALF.fullmatch(value):
                raise Broken("cut") from None
            raise
        decimals = value.partition(".")[2]
        if line.decimals and kind == "float" and place == last and "e" not in value and len(decimals) < line.decimals and not text[end:]:
            raise Broken("cut")
    if repeated:
        raise Broken("repeated_key")
    return values, extra


def _spare_scalars(line: Line, text: str, tokens: PairSpans, values: dict[str, Any], extra: dict[str, str]) -> None:
    """Move a scalar beside lists to extra where its column is not a measure: a maximum or a sum, not one a sequence."""
    sizes = {len(values[c]) for c in line.same_length if c in line.strong and values.get(c) is not None}
    if not sizes or sizes == {1}:
        return
    for key, begin, end in tokens.pairs:
        column = line.targets[key][1].column if key in line.targets else ""
        if column in line.same_length and column not in line.strong and text[begin] not in "[(" and column in values:
            extra.setdefault(key, kept(key, text[begin:end]))
            del values[column]


def _check_lengths(line: Line, values: dict[str, Any]) -> None:
    if line.length is not None and (values.get(line.length) or 0) > MOST_SEQUENCES:
        raise Broken("out_of_range")
    lists = [values[c] for c in line.same_length if values.get(c) is not None]
    if len({len(v) for v in lists}) > 1:
        raise Broken("list_length")
    if line.length is None or not lists:
        return
    said = values.get(line.length)
    if said is None:
        values[line.length] = len(lists[0])
    elif said != len(lists[0]):
        raise Broken("list_length")


def read_pairs(line: Line, text: str, marked: bool) -> LineValues | None:
    """Read one line of pairs.

    Parameters
    ----------
    line : Line
        Its declaration.
    text : str
        The message without its head.
    marked : bool
        Whether it begins with a marker of the line kind; if not, it must earn being one (``Line.loose``).

    Returns
    -------
    Reading or None
        ``None`` if it is no such line.

    Raises
    ------
    Broken
        If it is one, and cannot be read.
    """
    repeated = _REPEATED.search(text) if "[repeated" in text else None
    if repeated:
        text = text[: repeated.start()]
    dots = bool(_DOTS.search(text))
    start = 0
    iteration: tuple[str, int, int] | None = None
    if marked:
        low = text[:80].lower() if line.loose else text
        start = max((len(m) for m in line.markers if low.startswith(m.lower() if line.loose else m)), default=0)
        if ITERATION in line.fields:
            found = _ITERATION.match(text, start)
            if found:
                iteration = (ITERATION, found.start(1), found.end(1))
                start = found.end()
    if line.loose:
        tokens = _loose(line, text, start, marked, dots)
        if tokens is None:
            return None
    else:
        tokens = _strict(line, text, start)
    if iteration:
        tokens.pairs.insert(0, iteration)
        tokens.half = [place + 1 for place in tokens.half]
    if tokens.cut or dots:
        raise Broken("cut")
    if any(text[b:e] in ("...", "…") for _, b, e in tokens.pairs):
        raise Broken("cut")
    if line.loose and tokens.residue and _is_key_start(line, tokens, text):
        raise Broken("cut")
    values, extra = _fill(line, text, tokens)
    if not values and not marked:
        return None
    if line.need and not any(values.get(c) is not None for c in line.need):
        raise Broken("missing_fields")
    if line.strong:
        _spare_scalars(line, text, tokens, values, extra)
    _check_lengths(line, values)
    if line.means and _is_half_mean(line, text, tokens, values):
        raise Broken("cut")
    if tokens.residue:
        extra.setdefault("text", " ".join(word if is_plain(word) else REDACTED for word in tokens.residue[:RESIDUE]))
    if repeated:
        extra["repeated"] = repeated[1]
    return LineValues({**line.const, **values}, extra, tokens)


def read_whole(line: Line, text: str, marked: bool) -> LineValues | None:
    """Read a line of pairs behind something that is no head: it is one only if nothing is wrong with it.

    Parameters and result are those of ``read_pairs``.
    """
    try:
        reading = read_pairs(line, text, marked)
    except Broken:
        return None
    if reading is None or reading.tokens.residue:
        return None
    there = {f.column for k, _, _ in reading.tokens.pairs if (f := line.column_of(k))}
    return reading if len(there) > 1 and (not line.strong or there & set(line.strong)) else None


def _is_half_mean(line: Line, text: str, tokens: PairSpans, values: dict[str, Any]) -> bool:
    """Whether the line ends in a mean that lost its last digits."""
    key, begin, end = tokens.pairs[-1]
    column = line.targets[key][1].column if key in line.targets else ""
    if column not in line.means or values.get(column) is None or text[end:].strip(" ,;|}"):
        return False
    others = [
        len(text[b:e].partition(".")[2]) for k, b, e in tokens.pairs[:-1] if k in line.targets and line.targets[k][1].column in line.means
    ]
    if not others or len(text[begin:end].partition(".")[2]) >= max(others):
        return False
    of = values.get(line.means[column])
    if not of:
        return "." not in text[begin:end]
    return abs(values[column] - sum(of) / len(of)) > 1e-6


def _is_key_start(line: Line, tokens: PairSpans, text: str) -> bool:
    """Whether the line ends in the beginning of a key that it would have had."""
    word = tokens.residue[-1]
    if not text.rstrip().endswith(word):
        return False
    return any(k.startswith(word) for k in line.fields)


def _loose(line: Line, text: str, start: int, marked: bool, dots: bool) -> PairSpans | None:
    known = line.known_keys.search(text, start)
    if known is None:
        if not marked:
            return None
        rest = text[start:].strip(" :-")
        if dots or not rest or any(k.startswith(rest) for k in line.fields):
            raise Broken("cut")
        raise Broken("missing_fields")
    label = text[start : known.start()]
    equals = _EQUALS.search(text, start, known.start())
    if equals:
        begin = equals.start()
    else:
        colon = _COLON.search(label)
        begin = start + colon.end() if colon else known.start()
    label = text[:begin]
    headless = not marked and _headless(line, text, begin)
    if not headless and not _LABEL.fullmatch(label.strip("{ ,;|")):
        return None if not marked else _marked_label(line, text, start)
    if not marked and (NOT_A_LABEL.search(label) or _QUOTED_HEAD.search(label)):
        return None
    if not marked and (marker := line.any_marker.search(text, start, known.start())) and (marker.start() >= begin or PROSE.search(label)):
        # The marker is no part of a pair, and a sentence about it is no label.
        return None
    tokens = loose_tokens(text, begin)
    if marked:
        return tokens
    columns_there = {f.column for k, _, _ in tokens.pairs if (f := line.column_of(k))}
    sure = not line.strong or bool(columns_there & set(line.strong))
    ends_in_key = dots and any(k.startswith(w.rstrip(".…")) for w in tokens.residue[-1:] for k in line.fields)
    if not sure or len(columns_there) + ends_in_key + headless < 2:
        return None
    if headless:
        raise Broken("cut")
    if tokens.residue and not ends_in_key and not _is_key_start(line, tokens, text):
        return None
    return tokens


def _headless(line: Line, text: str, begin: int) -> bool:
    """Whether a line begins in the middle of a value, or of a key that it would have had."""
    if begin:
        return _FRAGMENT.fullmatch(text, 0, begin) is not None
    pair = _PAIR.match(text)
    return pair is not None and pair["key"] not in line.fields and any(k.endswith(pair["key"]) for k in line.fields)


def _marked_label(line: Line, text: str, start: int) -> PairSpans:
    return loose_tokens(text, start)


_SENTENCE = re.compile(r"\s*(?:\((?:mixed )?(?P<inside>[^()]*)\))?\s*[.,:]?(?:\s+|$)")


def _strict(line: Line, text: str, start: int) -> PairSpans:
    """Find the pairs of a line whose marker is followed by a full stop or a comma."""
    opening = _SENTENCE.match(text, start)
    begin = opening.end() if opening else start
    inside: list[tuple[str, int, int]] = []
    if opening and opening["inside"]:
        shift = opening.start("inside")
        inside = [(k, b + shift, e + shift) for k, b, e in split_tokens(opening["inside"], 0, line.pairs, line.kv).pairs]
    tokens = split_tokens(text, begin, line.pairs, line.kv)
    if not tokens.pairs:
        raise Broken("cut" if not text[begin:].strip() or tokens.cut else "missing_fields")
    if line.last and all(k != line.last for k, _, _ in tokens.pairs):
        _, first, end = tokens.pairs[-1]
        if text.rstrip().endswith(",") or text[first:end].isdigit():
            raise Broken("cut")
    tokens.pairs = inside + tokens.pairs
    return tokens
