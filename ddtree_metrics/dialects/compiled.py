"""The compiled reader: declarations become the tables of ``tokenizer.c``, and what it read becomes Arrow columns.

It reads whole batches of usual lines and leaves all others, by their number, to the reference reader, which is right by definition.
Keys and rank words that are in no declaration are asked for when they are first met, judged here once, and known from then on.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ddtree_metrics.dialects.assemble import Piece, clean_texts
from ddtree_metrics.dialects.automata import finder, program_of
from ddtree_metrics.dialects.base import MORE, Line
from ddtree_metrics.dialects.pairs import ITERATION, kinds_of
from ddtree_metrics.dialects.reference import LineKind
from ddtree_metrics.dialects.secrets import kept_key, may_be_secret, names_secret
from ddtree_metrics.dialects.stamps import Head, Heads, Ints, read_ranks
from ddtree_metrics.native import load

tokenizer = load("tokenizer")

STRICT, LOOSE, PATTERN, LEFT = range(4)
INT, WIDE, FLOAT, BOOL, INTS, IDS, TEXT, NOTHING = range(8)
SAME_LENGTH, LENGTH, MEAN, NEED, SURE, LAST = 1, 2, 4, 8, 16, 32
KEEP, SECRET, MAYBE, REFUSED = 1, 2, 4, 8
ASK_KEY = 0
STRONG, WEAK = 1, 2
MOST_TAUGHT = 1024
"""Keys, and rank words, that are learned; a log that has more is read by the reference."""
MOST_LABELS = 8
HEAD_SIZE = 97
ROUNDS = 4

_KINDS = {
    ("int", False): INT,
    ("int", True): WIDE,
    ("float", False): FLOAT,
    ("float", True): FLOAT,
    ("bool", False): BOOL,
    ("list<int>", False): INTS,
    ("list<str>", False): IDS,
    ("str", False): TEXT,
}
_LOOSE_KEY = re.compile(r"[A-Za-z_#][\w#./+-]{0,59}", re.A)
_EQUALS_KEY = re.compile(r"[^\s=,;|\"'\[\]]{1,60}", re.A)
_COLON_KEY = re.compile(r"#?[A-Za-z][^:,=\"'\[\]]{0,58}", re.A)
_LABEL = re.compile(r"[ !#-&*-Z^_a-z|~]{0,59}[ !#-&*-/:-@^|~]", re.A)
_SIGNS = ("=", ":", '"', "'", " ", "\t", "\n", "\r", "\x0b", "\x0c")


@dataclass(slots=True)
class Left:
    """Lines that the compiled reader did not read; ``kind`` is -1, or the kind with whose marker the message begins at ``begin``."""

    rows: Ints
    kind: Ints
    begin: Ints


def is_compiled() -> bool:
    """Say whether the compiled reader was built when this package was installed."""
    return tokenizer is not None


def _words(lines: Sequence[Line]) -> tuple[tuple[bytes, int], ...]:
    """List the words of which each line that is something has one; the weak ones count only in a line with damaged bytes."""
    made: dict[bytes, int] = {}
    for line in lines:
        for marker in line.markers:
            made[marker.encode()] = STRONG
        for key, (_, target) in line.targets.items():
            if line.is_pairs and not line.loose and key.startswith("#"):
                made[f"{key}: ".encode()] = STRONG
            if line.loose and (not line.strong or target.column in line.strong):
                made[key.encode()] = STRONG
            elif line.loose:
                made.update({(key + sign).encode(): WEAK for sign in _SIGNS})
    return tuple(sorted(made.items()))


class Compiled:
    """The tables of some kinds of line, and what they have been taught."""

    def __init__(self, kinds: Sequence[LineKind]) -> None:
        self._kinds = list(kinds)
        self._taught = self._labels = 0
        self._ranks: list[tuple[int, int, int, int]] = []
        self._rank_extra: list[dict[str, str] | None] = []
        self._table = tokenizer.make_table(*finder(_words([k.line for k in kinds])))
        self._columns = [self._add(number, kind.line) for number, kind in enumerate(self._kinds)]
        self._keys: list[str] = []
        for number, kind in enumerate(self._kinds):
            self._add_keys(number, kind.line)

    def _add(self, number: int, line: Line) -> list[tuple[str, int]]:
        """Add one kind; return its columns, or the groups of its pattern."""
        kinds = kinds_of(line.record)
        mode, columns, program = LEFT, [], (b"", b"")
        flags: dict[str, int] = {}
        separators = _separators(line)
        if line.is_pairs:
            mode = LOOSE if line.loose else STRICT if separators else LEFT
            names = list(dict.fromkeys(target.column for _, target in line.targets.values()))
            columns = [(name, _KINDS.get(kinds[name], NOTHING)) for name in names]
            for name in names:
                flags[name] = SAME_LENGTH * (name in line.same_length) | LENGTH * (name == line.length) | MEAN * (name in line.means)
                flags[name] |= NEED * (name in line.need) | SURE * (not line.strong or name in line.strong)
        elif line.pattern is not None and line.pid is None:
            groups = tuple(re.compile(line.whole_pattern).groupindex)
            made = program_of(line.whole_pattern, groups)
            columns = [(name, NOTHING if name.endswith(MORE) else _KINDS.get(kinds[name], NOTHING)) for name in groups]
            if made is not None and all(kind in (INT, WIDE, FLOAT, TEXT) or name.endswith(MORE) for name, kind in columns):
                mode, program = PATTERN, made
        packed = np.array([(kind, flags.get(name, 0)) for name, kind in columns], dtype=np.int32).reshape(-1, 2)
        iteration = ITERATION in line.fields
        tokenizer.add_kind(
            self._table,
            mode,
            line.decimals,
            iteration,
            line.last is not None,
            line.shared,
            *(separators or (0, 0)),
            packed.tobytes(),
            *program,
        )
        for marker in () if line.anywhere else line.markers:
            tokenizer.add_marker(self._table, number, (marker.lower() if line.loose else marker).encode(), line.loose, False)
        return columns

    def _add_keys(self, number: int, line: Line) -> None:
        if not line.is_pairs:
            return
        place = {name: n for n, (name, _) in enumerate(self._columns[number])}
        for key, (_, target) in line.targets.items():
            kind = self._columns[number][place[target.column]][1]
            flags = KEEP * target.keep | _judged(key) | LAST * (key == line.last)
            if kind in (TEXT, NOTHING):
                flags |= REFUSED
            self._add_key(number, key, place[target.column], flags)

    def _add_key(self, number: int, key: str, target: int, flags: int) -> None:
        tokenizer.add_key(self._table, number, key.encode(), target, flags)
        self._keys.append(key)

    def _answer(self, what: int, number: int, text: bytes) -> bool:
        """Judge a key or rank words that the tables do not know; return whether that may help to read a line."""
        if self._taught >= MOST_TAUGHT:
            return False
        self._taught += 1
        said = text.decode("ascii", "replace")
        if what == ASK_KEY:
            line = self._kinds[number].line
            form = _LOOSE_KEY if line.loose else _COLON_KEY if line.kv.strip() == ":" else _EQUALS_KEY
            good = text.isascii() and form.fullmatch(said) is not None and kept_key(said) == said
            tokenizer.add_key(self._table, number, text, -1, _judged(said) if good else REFUSED)
            self._keys.append(said)
            return good
        ranks = read_ranks(said) if text.isascii() else None
        tokenizer.add_ranks(self._table, text, ranks is not None)
        numbers = ranks[0] if ranks else (None, None, None, None)
        self._ranks.append(tuple(-1 if r is None else r for r in numbers))  # type: ignore[arg-type]
        self._rank_extra.append(dict(ranks[1]) or None if ranks else None)
        return ranks is not None

    def teach(self, number: int, label: str) -> None:
        """Take lines that begin with a label, and have at least two of its keys, for lines of a loose kind."""
        if self._labels < MOST_LABELS:
            self._labels += 1
            tokenizer.add_marker(self._table, number, label.encode(), False, True)

    def read_at(self, messages: pa.Array, places: Sequence[tuple[int, int, Head]]) -> list[tuple[int, Piece]]:
        """Read lines of which it is known where the message begins, and what head it has.

        Parameters
        ----------
        messages : pyarrow.StringArray
            The batch.
        places : sequence of (int, int, Head)
            The row, the byte at which the message begins, and the head.
        """
        rows = np.array([place[0] for place in places], dtype=np.int64)
        begins = np.array([place[1] for place in places], dtype=np.int32).tobytes()
        kinds, _, _, _, _ = tokenizer.read(self._table, *_addresses(messages), rows.tobytes(), begins)
        found = [(made[0], self._piece(*made)) for made in kinds]
        head_of = {row: head for row, _, head in places}
        for _, piece in found:
            piece.heads = Heads.of([head_of[row] for row in piece.rows.tolist()])
        return found

    def read(self, messages: pa.Array) -> tuple[list[tuple[int, Piece]], Left]:
        """Read the usual lines of a batch.

        Parameters
        ----------
        messages : pyarrow.StringArray
            One line each, no nulls.

        Returns
        -------
        pieces : list of (int, Piece)
            Each with the number of its kind.
        left : Left
            All lines that may be something and were not read.
        """
        found: list[tuple[int, Piece]] = []
        rows: bytes | None = None
        for _ in range(ROUNDS):
            kinds, left, left_kinds, begins, asks = tokenizer.read(self._table, *_addresses(messages), rows, None)
            found += [(made[0], self._piece(*made)) for made in kinds]
            rows = left
            answers = [self._answer(*ask) for ask in asks]
            if not any(answers):
                break
        kind, begin = (np.frombuffer(x, dtype=np.int32).astype(np.int64) for x in (left_kinds, begins))
        return found, Left(np.frombuffer(left, dtype=np.int64), kind, begin)

    def _piece(self, number: int, count: int, rows: bytes, *made: Any) -> Piece:
        naive, known, real, resolution, ranks, columns, extra = made
        kind = self._kinds[number]
        types = kinds_of(kind.line.record)
        piece = Piece(np.frombuffer(rows, dtype=np.int64), {}, self._heads(naive, known, real, resolution, ranks), kind.dialect.name)
        for (name, what), column in zip(self._columns[number], columns, strict=True):
            if what == NOTHING or column[0] == count:
                continue
            piece.columns[name] = _array(what, count, types[name][1], *column)
        nulls, valid, offsets, keys, ends, data = extra
        if nulls < count and kind.line.is_pairs:
            names = pa.array(self._keys, type=pa.string()).take(
                pa.Array.from_buffers(pa.int32(), len(keys) // 4, [None, pa.py_buffer(keys)])
            )
            values = _texts(len(keys) // 4, None, ends, data)
            pairs = pa.StructArray.from_arrays(
                [names, values], fields=[pa.field("key", pa.string(), False), pa.field("value", pa.string())]
            )
            buffers = [pa.py_buffer(valid) if nulls else None, pa.py_buffer(offsets)]
            piece.columns["extra"] = pa.Array.from_buffers(pa.map_(pa.string(), pa.string()), count, buffers, nulls, children=[pairs])
        return piece.filled(kind.line)

    def _heads(self, naive: bytes, known: bytes, real: bytes, resolution: bytes, ranks: bytes) -> Heads:
        codes = np.frombuffer(ranks, dtype=np.int32)
        fine = np.frombuffer(real, dtype=np.bool_)
        # The last one stands for no words at all.
        table = np.array([*self._ranks, (-1, -1, -1, -1)], dtype=np.int64)
        more = [*self._rank_extra, None]
        return Heads(
            np.frombuffer(naive, dtype=np.int64).copy(),
            np.frombuffer(known, dtype=np.bool_),
            np.frombuffer(resolution, dtype=np.int32).astype(np.int64),
            None if fine.all() else [None if good else "nonexistent" for good in fine.tolist()],
            table[codes],
            [more[c] for c in codes.tolist()] if any(more) else None,
        )


@functools.lru_cache(maxsize=4096)
def _judged(key: str) -> int:
    """Say what its name makes of the value of a key that is kept."""
    return SECRET if names_secret(key) else MAYBE if may_be_secret(key) else 0


def usual_begin(line: str) -> int:
    """Say where the compiled reader looks for a message: behind a bracket that the line begins with, or at its beginning."""
    closing = line[:HEAD_SIZE].find("] ") if line.startswith("[") else -1
    return closing + 2 if closing == line.find("]") and closing > 0 else 0


def is_label(text: str) -> bool:
    """Say whether what stands before the pairs is read alike whatever the pairs are."""
    colons = text.count(": ")
    return _LABEL.fullmatch(text) is not None and (colons == 0 or (colons == 1 and text.endswith(": ")))


def _addresses(messages: pa.Array) -> tuple[int, int, int]:
    """Say where the offsets and the bytes of an array of texts lie, and how many texts there are."""
    _, offsets, data = messages.buffers()
    return 0 if offsets is None else offsets.address + 4 * messages.offset, data.address if data else 0, len(messages)


def _separators(line: Line) -> tuple[int, int] | None:
    """Return the signs between pairs and behind a key; ``None`` where one of them is no single sign."""
    pair, sign = line.pairs.strip() or line.pairs, line.kv.rstrip() or line.kv
    spelled = line.pairs == " " or (len(pair) == 1 and line.pairs == pair + " ")
    return (ord(pair), ord(sign)) if spelled and line.kv in ("=", ": ") and pair.isascii() else None


def _texts(count: int, valid: pa.Buffer | None, ends: bytes, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), count, [valid, pa.py_buffer(ends), pa.py_buffer(data)])


def _array(what: int, count: int, wide: bool, nulls: int, valid_bits: bytes, offsets: bytes, ends: bytes, data: bytes) -> pa.Array:
    """Make a column of the buffers that were filled for it."""
    valid = pa.py_buffer(valid_bits) if nulls else None
    if what == TEXT:
        return clean_texts(_texts(count, valid, ends, data))
    if what in (INTS, IDS):
        if what == INTS:
            items = pa.Array.from_buffers(pa.int32(), len(data) // 4, [None, pa.py_buffer(data)])
        else:
            items = _texts(len(ends) // 4 - 1, None, ends, data)
        kind = pa.list_(pa.field("element", items.type))
        return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(offsets)], nulls, children=[items])
    kinds: dict[int, Callable[[], pa.DataType]] = {INT: pa.int32, WIDE: pa.int64, FLOAT: pa.float64, BOOL: pa.bool_}
    return pa.Array.from_buffers(kinds[what](), count, [valid, pa.py_buffer(data)], nulls)


__all__ = ["Compiled", "Left", "is_compiled"]
