"""What a dialect is made of: plain data that says how one server writes its lines.

A dialect names line kinds; a line kind names its marker, how its pairs are written, which key fills which column, and carries
samples. The engine (``engine.py``) turns these declarations into tables; nothing in here reads a line.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddtree_metrics.errors import UnknownDialect
from ddtree_metrics.schema import columns

REASONS: dict[str, str] = {
    "cut": "the line ends in the middle, or parts of it were replaced by dots",
    "bad_number": "a value that should be a number is none (nan and inf included)",
    "out_of_range": "a number is too large for its column",
    "negative": "a count is below zero",
    "list_length": "the lists of one line differ in length, or from the batch size",
    "repeated_key": "one key stands twice in the line",
    "missing_fields": "the marker is there, and the keys that make the line useful are not",
    "bad_value": "a value that should be True or False, or a list, is none",
    "bad_form": "the line has its marker, and then a form that cannot be read",
}
"""Why a line is counted as broken; the list is closed."""


MOST_SEQUENCES = 1 << 16
"""No server runs more sequences at once: a larger batch size is no batch size, and a table of its requests would fill the memory."""


class Broken(Exception):
    """A line that has a marker and breaks its form; ``reason`` is a key of ``REASONS``."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Field:
    """Which column a key fills.

    Parameters
    ----------
    column : str
        A column of the line's record class.
    keep : bool
        Write the key and its value into ``extra`` too, because the column alone does not say which key it was.
    """

    column: str
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """A real line and what it becomes.

    Parameters
    ----------
    text : str
        The line.
    gives : mapping or None
        Columns and their values; ``None`` if the line is nothing to this line kind (a look-alike).
    broken : str or None
        The reason, if the line must be counted as broken.
    """

    text: str
    gives: Mapping[str, Any] | None = None
    broken: str | None = None


MORE = "_more"
"""Ends the name of a group that is not empty where a number of a pattern is only the beginning of one."""


def _with_more(pattern: str, numbers: set[str]) -> str:
    """Put a group for what follows behind the named groups of a regular expression that are numbers."""
    out: list[str] = []
    open_: list[tuple[int, str]] = []
    for part in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P<\w+>|.", pattern, re.S):
        out.append(part)
        if part[0] == "(":
            open_.append((len(out) - 1, part[4:-1]))
        elif part == ")" and open_:
            begin, name = open_.pop()
            if name in numbers:
                # One group around both, for a sign of repetition may follow.
                out[begin] = f"(?:{out[begin]}"
                out.append(f"(?P<{name}{MORE}>(?:[.,_']?[0-9])*))")
    return "".join(out)


Reader = Callable[[str], "dict[str, Any] | None"]
"""Reads the text behind the marker's start: columns, ``None`` (not such a line), or raises ``Broken``."""


@dataclass(frozen=True)
class Line:
    """One kind of line.

    Parameters
    ----------
    record : type
        The record class whose table it fills.
    marker : str
        The text with which the message begins, behind the head (time and ranks).
    fields : mapping of str to str or Field
        Key to column. Where several keys fill one column, the first of the mapping that is present wins.
    pairs, kv : str
        Between pairs (``" "`` or ``", "``) and between key and value (``"="`` or ``": "``), as the writer usually does it.
    loose : bool
        Take ``=`` and ``: ``, blanks and commas alike, and a line with at least two known keys under any other label.
    strong : tuple of str
        Columns of which one must be there for a line under another label (``loose``).
    need : tuple of str
        A line with none of these columns is broken (``missing_fields``).
    same_length : tuple of str
        List columns that have one element a sequence.
    length : str or None
        The column that says how many.
    const : mapping
        Columns with the same value on every line.
    pattern : str or None
        Instead of pairs: a regular expression from the marker on, named groups are columns.
    reader : callable or None
        Instead of pairs: a function from text to columns.
    also : tuple of str
        More markers of the same form.
    anywhere : bool
        The marker may stand anywhere in a line that is of no other kind, outside quotes.
    shared : bool
        Other lines begin with the marker too: one that does not fit is nothing, where with any other marker it is a quotation.
    pid : int or None
        Only lines of this process (1 is systemd).
    decimals : int
        Floats are printed with so many decimals, so that a last value with fewer is cut; 0 if not fixed.
    last : str or None
        The key that all lines have near their end: one without it that ends in a comma or in a whole number is cut.
    means : mapping of str to str
        Columns that are means, and the list each is the mean of: a mean that ends the line, has fewer decimals than its neighbour
        and is not the mean of its list was cut.
    samples : tuple of Sample
        Lines that must be read so.
    """

    record: type
    marker: str
    fields: Mapping[str, str | Field] = field(default_factory=dict)
    pairs: str = " "
    kv: str = "="
    loose: bool = False
    strong: tuple[str, ...] = ()
    need: tuple[str, ...] = ()
    same_length: tuple[str, ...] = ()
    length: str | None = None
    const: Mapping[str, Any] = field(default_factory=dict)
    pattern: str | None = None
    reader: Reader | None = None
    also: tuple[str, ...] = ()
    anywhere: bool = False
    shared: bool = False
    pid: int | None = None
    decimals: int = 0
    last: str | None = None
    means: Mapping[str, str] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()

    @functools.cached_property
    def markers(self) -> tuple[str, ...]:
        """The marker and its other spellings."""
        return (self.marker, *self.also)

    @property
    def is_pairs(self) -> bool:
        """Whether the line is made of keys and values."""
        return self.pattern is None and self.reader is None

    @functools.cached_property
    def whole_pattern(self) -> str:
        """The pattern, with a group ``<column>_more`` behind each number: what goes on where it ends (``1`` of ``1,024``)."""
        kinds = {c.name: c.kind for c in columns(self.record)}
        return _with_more(self.pattern or "", {n for n, kind in kinds.items() if kind in ("int", "float", "list<int>")})

    @functools.cached_property
    def any_marker(self) -> re.Pattern[str]:
        """Find the marker in any of its spellings."""
        return re.compile("|".join(re.escape(m) for m in self.markers), re.I if self.loose else 0)

    @functools.cached_property
    def known_keys(self) -> re.Pattern[str]:
        """Find any of the keys with the sign behind it."""
        names = "|".join(re.escape(k) for k in sorted(self.fields, key=len, reverse=True))
        return re.compile(rf"(?<![\w.#-])[\"']?(?:{names})[\"']?(?: ?=|\s*:\s|\s*:(?=[\[(\d]))", re.ASCII)

    @functools.cached_property
    def words(self) -> frozenset[str]:
        """The words of the markers and the keys, which may be shown of a line that cannot be read."""
        return frozenset(word.strip(".,:;()[]{}#=") for text in (*self.markers, *self.fields) for word in text.split())

    @functools.cached_property
    def targets(self) -> dict[str, tuple[int, Field]]:
        """Map each key to its rank among the keys of its column and to what it fills."""
        return {k: (n, Field(f) if isinstance(f, str) else f) for n, (k, f) in enumerate(self.fields.items())}

    def column_of(self, key: str) -> Field | None:
        """Say which column a key fills, or ``None``."""
        found = self.targets.get(key)
        return None if found is None else found[1]


@dataclass(frozen=True, slots=True)
class Counts:
    """What the numbers of a dialect count; ``None`` is unknown, to be inferred from data.

    Parameters
    ----------
    nodes_include_root : bool or None
        Whether the node counts include the root (the last committed token).
    commit_includes_bonus : bool or None
        Whether the commit length is accepted drafts + 1.
    accepted_include_root : bool or None
        Whether the accepted path counts the root.
    """

    nodes_include_root: bool | None = None
    commit_includes_bonus: bool | None = None
    accepted_include_root: bool | None = None


@dataclass(frozen=True)
class Dialect:
    """What one server writes.

    Parameters
    ----------
    name : str
        Written into the ``dialect`` column.
    lines : tuple of Line
        Its line kinds, the more specific markers first.
    counts : Counts
        What its numbers count.
    about : str
        One sentence for ``inspect``.
    more : str
        What would make the server say more, as it ends a sentence.
    """

    name: str
    lines: tuple[Line, ...]
    counts: Counts = field(default_factory=Counts)
    about: str = ""
    more: str = ""

    def check(self) -> None:
        """Test the declaration itself.

        Raises
        ------
        UnknownDialect
            If a line kind has no samples, no marker, or names a column that its table does not have.
        """
        if not self.lines:
            raise UnknownDialect(f"dialect {self.name!r} declares no line kind; give it at least one")
        for line in self.lines:
            where = f"dialect {self.name!r}, line kind {line.marker!r}"
            if not line.marker.strip():
                raise UnknownDialect(f"dialect {self.name!r} has a line kind without a marker; say with which text its message begins")
            if not line.samples:
                raise UnknownDialect(f"{where}, has no samples; add a real line and what it becomes")
            known = {c.name for c in columns(line.record)}
            named = {f if isinstance(f, str) else f.column for f in line.fields.values()} | set(line.const)
            named |= set(line.same_length) | set(line.need) | ({line.length} if line.length else set())
            if line.pattern is not None:
                try:
                    named |= set(re.compile(line.pattern).groupindex)
                except re.error as error:
                    raise UnknownDialect(f"{where}: the pattern is no regular expression ({error})") from None
            unknown = sorted(named - known)
            if unknown:
                raise UnknownDialect(f"{where}: no column {unknown[0]!r} in its table; choose one of {', '.join(sorted(known))}")
