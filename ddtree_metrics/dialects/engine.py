"""The engine: lines become Arrow tables, a batch at a time; broken lines are counted with their reason.

Two readers know the grammar, both from the dialects' declarations:

1. the compiled one (``compiled.py``, ``tokenizer.c``) reads the usual lines of a whole batch, and says which others may be something;
2. the reference (``reference.py``) reads those one at a time, and all lines where the compiled one was not built.

Neither reads what the other would read in another way: the tests feed the same lines to both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ddtree_metrics.dialects import assemble
from ddtree_metrics.dialects.assemble import Piece
from ddtree_metrics.dialects.base import Dialect
from ddtree_metrics.dialects.compiled import Compiled, Left, is_compiled, is_label, usual_begin
from ddtree_metrics.dialects.find import Found, without_junk
from ddtree_metrics.dialects.reference import LineKind, ReadLines, Reference
from ddtree_metrics.dialects.tallies import BrokenLines, QuotedLines
from ddtree_metrics.records import TABLES
from ddtree_metrics.times import StampBefore

LEARN_AFTER = 4
"""After so many lines with one label the compiled reader is taught it."""
MOST_LABELS = 4096


@dataclass(slots=True)
class Parsed:
    """What a batch of lines gave.

    Parameters
    ----------
    tables : dict of str to pyarrow.RecordBatch
        The tables with at least one row, each with the columns of its record class.
    line : dict of str to numpy.ndarray of int64
        The running number of the line of each row, from 0 at the first line that was ever fed.
    """

    tables: dict[str, pa.RecordBatch] = field(default_factory=dict)
    line: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)


class Parser:
    """Turns batches of lines into tables.

    Parameters
    ----------
    dialects : iterable of Dialect or str
        Which writers to understand; where two know a line, the first wins.
    tz : zoneinfo.ZoneInfo or None
        The zone of the servers' own stamps. Without it a stamp is stored as if it were UTC, and ``time_from`` says so.
    on_error : str
        ``"warn"`` and ``"skip"`` count broken lines (who reads warns, once, with the count); ``"raise"`` raises at the first.
    fast : bool
        Use the compiled reader where it was built; False reads line by line, to compare.

    Attributes
    ----------
    broken : BrokenLines
        What could not be read, with reasons and examples.
    quoted : QuotedLines
        Lines with a marker that gave nothing and are not broken: quotations, sentences, code.
    misses : dict of str to int
        Lines that the reference reader read, by dialect.
    lines : int
        How many lines were fed.
    """

    def __init__(self, dialects: Iterable[Dialect | str], *, tz: ZoneInfo | None = None, on_error: str = "warn", fast: bool = True) -> None:
        from ddtree_metrics.dialects import get

        self.dialects = tuple(get(d) for d in dialects)
        self.on_error = on_error
        self.lines = 0
        self._clock = assemble.RowTimes(tz)
        self._kinds = [LineKind.of(dialect, line) for dialect in self.dialects for line in dialect.lines]
        self._reference = Reference(self._kinds, on_error)
        self._labels: dict[tuple[int, str], int] = {}
        self._compiled = Compiled(self._kinds) if fast and is_compiled() else None

    @property
    def last_stamp(self) -> StampBefore | None:
        """The newest stamp whose zone had to be worked out: where clocks are set back, it decides on the next one."""
        return self._clock.localizer.last if self._clock.localizer is not None else None

    @last_stamp.setter
    def last_stamp(self, stamp: StampBefore | None) -> None:
        if stamp is not None:
            self._clock.begin().last = stamp

    @property
    def broken(self) -> BrokenLines:
        """Say what could not be read."""
        return self._reference.broken

    @property
    def quoted(self) -> QuotedLines:
        """Say which lines only speak of a line."""
        return self._reference.quoted

    @property
    def misses(self) -> dict[str, int]:
        """Say how many lines the reference reader read, by dialect."""
        return self._reference.misses

    def feed(self, batch: pa.RecordBatch) -> Parsed:
        """Read one batch of lines.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            Lines as ``sources.LINE_SCHEMA`` describes them.

        Returns
        -------
        Parsed

        Raises
        ------
        BrokenLine
            With ``on_error="raise"``, at the first broken line.
        """
        messages = batch.column(batch.schema.get_field_index("message"))
        if messages.null_count:
            messages = messages.fill_null("")
        count = len(messages)
        pieces: dict[str, list[Piece]] = {}
        nowhere = np.full(count, -1, dtype=np.int64)
        left = Left(np.arange(count), nowhere, nowhere)
        if self._compiled is not None:
            read, left = self._compiled.read(messages)
            for number, piece in read:
                pieces.setdefault(self._kinds[number].table, []).append(piece)
        lines = ReadLines(batch, messages, self.lines, self._reference.locator.speaks)
        self._rest(lines, left, pieces)
        for table, alone in lines.rows.items():
            pieces.setdefault(table, []).append(assemble.from_rows(TABLES[table], alone))
        made = Parsed()
        self._clock.localize(batch, [p for parts in pieces.values() for p in parts])
        for table, parts in pieces.items():
            rows, made.tables[table] = assemble.table(TABLES[table], parts, batch, self._clock)
            made.line[table] = rows + self.lines
        self.lines += count
        return made

    def _rest(self, lines: ReadLines, left: Left, pieces: dict[str, list[Piece]]) -> None:
        """Read the lines that are left one at a time, in their order."""
        reference = self._reference
        locator = reference.locator
        whole = lines.messages if len(left.rows) == len(lines.messages) else lines.messages.take(pa.array(left.rows))
        clean = without_junk(whole, locator.speaks)
        some = np.asarray(pc.match_substring_regex(clean, locator.any_of))
        spoken = np.zeros(len(some), dtype=np.bool_)
        others = np.flatnonzero(~some)
        spoken[others] = np.asarray(pc.match_substring_regex(clean.take(pa.array(others)), locator.mentions))
        # A place in a line is one only as long as nothing was taken off it.
        same = np.ones(len(some), dtype=np.bool_) if clean is whole else np.asarray(pc.equal(clean, whole))
        known = (left.kind >= 0) & same
        which = np.flatnonzero(known | some | spoken)
        texts = clean.take(pa.array(which)).to_pylist()
        found: dict[int, list[Found]] = {}
        done: set[int] = set()
        if self._compiled is not None:
            found = {
                place: locator.find(text) for place, text in zip(which.tolist(), texts, strict=True) if some[place] and not known[place]
            }
            places = [
                (int(left.rows[p]), found[p][0])
                for p, text in zip(which.tolist(), texts, strict=True)
                if same[p] and found.get(p) and text[: found[p][0].begin].isascii()
            ]
            done = self._behind_heads(lines.messages, places, pieces)
        for place, message in zip(which.tolist(), texts, strict=True):
            row = int(left.rows[place])
            if row in done or (known[place] and reference.read_at(lines, row, int(left.kind[place]), message, int(left.begin[place]))):
                continue
            if some[place]:
                reference.read(lines, row, message, found.get(place))
            elif spoken[place]:
                reference.read_spoken(lines, row, message)
        self._learn()

    def _behind_heads(self, messages: pa.Array, found: list[tuple[int, Found]], pieces: dict[str, list[Piece]]) -> set[int]:
        """Give lines of pairs behind an unusual head to the compiled reader; return the rows that it read."""
        assert self._compiled is not None
        places = [(row, one.begin, one.head) for row, one in found if one.marked and self._kinds[one.kind].line.is_pairs]
        read = self._compiled.read_at(messages, places) if places else []
        for number, piece in read:
            pieces.setdefault(self._kinds[number].table, []).append(piece)
        return {row for _, piece in read for row in piece.rows.tolist()}

    def _learn(self) -> None:
        """Teach the compiled reader the labels that several lines of pairs without a marker had."""
        for number, begin, before in self._reference.labelled if self._compiled is not None else ():
            if begin != usual_begin(before) or not is_label(before[begin:]):
                continue
            label = (number, before[begin:])
            self._labels[label] = self._labels.get(label, 0) + 1
            if self._labels[label] == LEARN_AFTER and self._compiled is not None:
                self._compiled.teach(*label)
        self._reference.labelled.clear()
        if len(self._labels) > MOST_LABELS:
            self._labels.clear()
