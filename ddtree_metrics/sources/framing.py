"""What wraps a message in a line of text: found, read and taken off, a block of lines at a time.

Frames nest (compose over Kubernetes over Ray): each round takes off the outermost one, and pieces of cut lines are put together before
the next round looks inside. Each line is decided for itself, as a file may mix them; a line without a frame is its own message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import tzinfo
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ddtree_metrics.sources import Selection, SourceStats, collectors, jsonlines, pieces, stamp_columns
from ddtree_metrics.sources import journal_fields as f
from ddtree_metrics.sources import patterns as p
from ddtree_metrics.sources.clean import replaced
from ddtree_metrics.sources.clocks import StampCompleter
from ddtree_metrics.sources.extracting import Index, extract, first_bytes, only
from ddtree_metrics.sources.select import Roll, Wanted
from ddtree_metrics.sources.text_block import FRAME, JOURNAL, LEFT_OUT, LOCAL, NO_YEAR, LineBlock, Names
from ddtree_metrics.times import Window

DEPTH = 6
"""Frames around one message, at most."""

Handler = Callable[[LineBlock, pa.Array, Index], "tuple[NDArray[np.bool_], pa.Array]"]


def _starts(characters: str) -> NDArray[np.bool_]:
    table = np.zeros(256, bool)
    table[[ord(c) for c in characters]] = True
    return table


_SEVERAL = r'^(?:\x1e|data: )?[ \t]*\{ *".*\}[ \t,]*\{ *"(?:log|MESSAGE|_)|^\{"resourceLogs"'
"""A line that holds several JSON objects, or one of many records."""
_DIGIT = _starts("0123456789")
_CAPITAL = _starts("JFMASONDTW")
_WORD = _starts("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


class Framer:
    """Take the frames off the lines of one source, block by block.

    Parameters
    ----------
    stats : SourceStats
        Where counts go.
    selection, window : Selection, Window
        What is wanted, applied where the frames say it.
    tz : tzinfo or None
        The zone of stamps that name none.
    now_us : int, optional
        When the file was last written (or now): no stamp without a year is put after it.
    roll : Roll, optional
        Where the names that lines say are kept.
    """

    def __init__(
        self,
        stats: SourceStats,
        selection: Selection,
        window: Window,
        tz: tzinfo | None,
        now_us: int | None = None,
        roll: Roll | None = None,
    ) -> None:
        self.stats = stats
        self.names = Names()
        self.wanted = Wanted(selection, roll)
        self.window = window
        self.pieces = pieces.Pieces(stats)
        self._reader = jsonlines.Reader(self.wanted)
        self.clocks = StampCompleter(tz, int(time.time() * 1e6) if now_us is None else now_us)
        self.asked = 0
        """Lines that were looked at."""
        self.untold = 0
        """Lines that do not say whose they are, so that the selection could not be applied to them."""
        self.torn = jsonlines.Torn()
        self._boot = -1
        self._notices: list[tuple[int, int]] = []
        self._above: dict[str, Any] | None = None
        self._handlers: list[tuple[NDArray[np.bool_], Handler]] = [
            (_starts("{\x1ed \t"), self._json),
            (_DIGIT, self._cri),
            (_DIGIT, self._iso),
            (_DIGIT, self._pod),
            (_DIGIT, self._logged),
            (_DIGIT, self._bare),
            (_CAPITAL, self._short),
            (_CAPITAL, self._full),
            (_DIGIT, self._unix),
            (_starts("("), self._ray),
            (_starts("["), self._monotonic),
            (_starts("["), self._kubectl),
            (_starts("{"), self._labels),
            (_starts("-"), self._notice),
            (_WORD, self._compose),
        ]

    @property
    def busy(self) -> bool:
        """Whether earlier lines may still matter to lines without a frame of their own."""
        return self._above is not None or self.pieces.waiting or self.torn.since is not None

    def unframe(self, rows: LineBlock) -> None:
        """Take the frames off; rows that hold no line of their own are removed, selection and window applied."""
        self._expand(rows)
        at = np.flatnonzero(np.asarray(pc.match_substring_regex(rows.message, p.ANY)))
        for depth in range(DEPTH):
            at = self._round(rows, at, depth == 0)
            if depth == 0:
                self._boots(rows)
                self._continued(rows)
            if not len(at):
                break
        self._blobs(rows)
        if not rows.keep.all():
            rows.select(rows.keep)
        self.clocks.resolve(rows)
        self._apply(rows)

    def finish(self) -> None:
        """Count the pieces whose lines never ended."""
        self.pieces.finish()

    def _round(self, rows: LineBlock, at: Index, outermost: bool) -> Index:
        """Take one frame off each of some rows; return those that may have another."""
        self._outermost = outermost
        done = np.zeros(len(rows), bool)
        rows.more[:] = 0
        rest = at
        for starts, handler in self._handlers:
            if not len(rest):
                break
            texts = rows.message.take(pa.array(rest))
            here = np.flatnonzero(starts[first_bytes(texts)])
            if not len(here):
                continue
            if handler == self._notice and not outermost:
                continue
            matched, inner = handler(rows, texts.take(pa.array(here)), rest[here])
            if not matched.any():
                continue
            hit = rest[here[matched]]
            rows.message = replaced(rows.message, hit, inner)
            done[hit] = True
            left = np.ones(len(rest), bool)
            left[here[matched]] = False
            rest = rest[left]
        if outermost:
            self._torn(rows, rest if (len(rest) and rest[0] == 0) or not len(rows) or done[0] else np.insert(rest, 0, 0))
        self.pieces.join(rows)
        again = np.flatnonzero(done & rows.keep)
        if len(again):
            again = again[np.asarray(pc.match_substring_regex(rows.message.take(pa.array(again)), p.ANY))]
        return again

    def _torn(self, rows: LineBlock, rest: Index) -> None:
        """Leave out what is left of broken JSON lines: half a message could read as other numbers."""
        if self.torn.since is not None:
            rest = np.union1d(rest, np.flatnonzero(np.asarray(pc.equal(rows.message, "{"))))
        if len(rest):
            broken = rest[self.torn.find(rows.message.take(pa.array(rest)), rows.line[rest])]
            rows.keep[broken] = False

    # The kinds of frame. Each handler gets texts and their rows, sets what the frame says in the rows that match, and returns which
    # ones match and what is left of these.

    def _json(self, rows: LineBlock, texts: pa.Array, at: Index) -> tuple[NDArray[np.bool_], pa.Array]:
        matched = np.asarray(pc.match_substring_regex(texts, p.JSON_KEYS)).copy()
        candidates = np.flatnonzero(matched)
        lines = list(map(self._reader.parse, texts.take(pa.array(candidates)).to_pylist()))
        matched[candidates[[line is None for line in lines]]] = False
        found = [line for line in lines if line is not None]
        if found:
            if self._outermost:
                self.torn.met(rows.line[at[matched]])
            self._take(rows, at[matched], found)
        return matched, pa.array([line.text or "" for line in found], pa.string())

    def _take(self, rows: LineBlock, hit: Index, lines: list[jsonlines.EntryText]) -> None:
        """Set what JSON objects say."""
        journal = np.array([line.journal for line in lines])
        known = np.array([line.time is not None for line in lines])
        time = np.array([line.time or 0 for line in lines], np.int64)
        resolution = np.array([line.resolution for line in lines], np.int32)
        for some, kind in ((known & journal, JOURNAL), (known & ~journal, FRAME)):
            rows.set_time(hit[some], time[some], kind, resolution[some])
        rows.monotonic[hit] = [-1 if line.monotonic is None else line.monotonic for line in lines]
        numbers: dict[int, int] = {}
        which = np.array([numbers.setdefault(id(line.writer), len(numbers)) for line in lines])
        writers = list({id(line.writer): line.writer for line in lines}.values())
        pids = np.array([-1 if w.context.pid is None else w.context.pid for w in writers], np.int32)[which]
        rows.pid[hit] = np.where(pids < 0, rows.pid[hit], pids)
        for name in ("unit", "host", "stream", "boot"):
            column = getattr(rows, name)
            codes = np.array([self.names.code(getattr(w.context, name)) for w in writers], np.int32)[which]
            column[hit] = np.where(codes < 0, column[hit], codes)
        rows.ident[hit] = np.array([self.names.code(w.ident) for w in writers], np.int32)[which]
        rows.wanted[hit] = np.array([w.wanted for w in writers], np.int8)[which]
        rows.more[hit] = [line.more for line in lines]
        stats = self.stats
        stats.bad_bytes += sum(line.bad for line in lines)
        if self.pieces.waiting or any(line.more == 2 for line in lines):
            self.pieces.keys.update(
                (r, line.writer.key) for r, line in zip(hit.tolist(), lines, strict=True) if line.writer.key is not None
            )
        for row, line in zip(hit.tolist(), lines, strict=True):
            if line.text is None:
                rows.keep[row] = False
                rows.more[row] = 0
                if line.writer.wanted and self._in_window(line.time):
                    stats.message_null += line.null
                    stats.message_missing += not line.null

    def _in_window(self, time: int | None) -> bool:
        return time is None or bool(self.window.contains(time))

    def _expand(self, rows: LineBlock) -> None:
        """Give each of several JSON objects on one line a row of its own."""
        many = np.flatnonzero(np.asarray(pc.match_substring_regex(rows.message, _SEVERAL)))
        if not len(many):
            return
        split = {int(i): jsonlines.split_objects(rows.message[int(i)].as_py()) for i in many}
        counts = np.ones(len(rows), np.int64)
        for i, parts in split.items():
            counts[i] = len(parts)
        if counts.max() == 1:
            return
        start = np.cumsum(counts) - counts
        rows.select(np.repeat(np.arange(len(rows)), counts))
        at = np.concatenate([np.arange(start[i], start[i] + len(parts)) for i, parts in split.items()])
        rows.message = replaced(rows.message, at, pa.array([part for parts in split.values() for part in parts], pa.string()))

    def _iso(self, rows: LineBlock, texts: pa.Array, at: Index) -> tuple[NDArray[np.bool_], pa.Array]:
        return self._stamped(rows, texts, at, p.ISO)

    def _full(self, rows: LineBlock, texts: pa.Array, at: Index) -> tuple[NDArray[np.bool_], pa.Array]:
        return self._stamped(rows, texts, at, p.FULL)

    def _bare(self, rows: LineBlock, texts: pa.Array, at: Index) -> tuple[NDArray[np.bool_], pa.Array]:
        return self._stamped(rows, texts, at, p.BARE)

    def _pod(self, rows: LineBlock, texts: pa.Array, at: Index) -> tuple[NDArray[np.bool_], pa.Array]:
        return self._stamped(rows, texts, at, p.POD)

    def _logged(self, rows: LineBlock, texts: pa.Array, at: Index) -> tuple[NDArray[np.bool_], pa.Array]:
        return self._stamped(rows, texts, at, p.LOGGED)

    def _cri(self, rows: LineBlock, texts: pa.Array, at: Index) -> tuple[NDArray[np.bool_], pa.Array]:
        return self._stamped(rows, texts, at, p.CRI)

    def _stamped(self, rows: LineBlock, texts: pa.Array, at: Index, pattern: str) -> tuple[NDArray[np.bool_], pa.Array]:
        """Read frames that begin with a date and a time."""
        matched, groups = extract(texts, pattern)
        if not matched.any():
            return matched, groups
        naive, ok = stamp_columns.date_clock_us(groups["stamp"])
        matched, groups, naive = only(matched, groups, ok & self._writer_ok(groups), naive)
        fraction, resolution = stamp_columns.fraction_us(groups["fraction"])
        offset, zoned = stamp_columns.zone_us(groups["zone"])
        hit = at[matched]
        naive = naive + fraction
        rows.set_time(hit[zoned], (naive - offset)[zoned], FRAME, resolution[zoned])
        rows.set_time(hit[~zoned], naive[~zoned], LOCAL, resolution[~zoned])
        if pattern == p.CRI:
            rows.stream[hit] = self.names.codes(groups["stream"])
            rows.more[hit] = np.where(np.asarray(pc.equal(groups["part"], "P")), 2, 1)
        if pattern in (p.ISO, p.FULL):
            self._writer(rows, hit, groups)
        if pattern == p.POD:
            rows.host[hit] = self.names.codes(groups["host"])
        if pattern == p.LOGGED:
            self._pids(rows, hit, groups["pid"])
        return matched, groups["text"]

    def _short(self, rows: LineBlock, texts: pa.Array, at: Index) -> tuple[NDArray[np.bool_], pa.Array]:
        matched, groups = extract(texts, p.SHORT)
        if not matched.any():
            return matched, groups
        months = groups["month"].dictionary_encode()
        month = np.array([stamp_columns.MONTHS[m] for m in months.dictionary.to_pylist()], np.int64)[np.asarray(months.indices)]
        day = np.asarray(pc.utf8_trim(groups["day"], " ").cast(pa.int64()))
        clock, ok = stamp_columns.clock_us(stamp_columns.digits(groups["clock"], 8), 0)
        year = np.full(len(month), 2000, np.int64)  # a leap year stands for the year that is not there
        ok &= stamp_columns.valid_date(year, month, day)
        naive = np.where(ok, stamp_columns.days_from_civil(year, month, np.where(ok, day, 1)) * 86_400 * stamp_columns.SECOND + clock, 0)
        matched, groups, naive = only(matched, groups, ok & self._writer_ok(groups), naive)
        fraction, resolution = stamp_columns.fraction_us(groups["fraction"])
        hit = at[matched]
        rows.set_time(hit, naive + fraction, NO_YEAR, resolution)
        self._writer(rows, hit, groups)
        return matched, groups["text"]

    def _unix(self, rows: LineBlock, texts: pa.Array, at: Index) -> tuple[NDArray[np.bool_], pa.Array]:
        return self._counted(rows, texts, at, p.UNIX)

    def _monotonic(self, rows: LineBlock, texts: pa.Array, at: Index) -> tuple[NDArray[np.bool_], pa.Array]:
        return self._counted(rows, texts, at, p.MONOTONIC)

    def _counted(self, rows: LineBlock, texts: pa.Array, at: Index, pattern: str) -> tuple[NDArray[np.bool_], pa.Array]:
        """Read frames that begin with seconds since 1970, or since boot."""
        matched, groups = extract(texts, pattern)
        if not matched.any():
            return matched, groups
        matched, groups, _ = only(matched, groups, self._writer_ok(groups), np.zeros(len(groups["text"]), np.int64))
        value = np.asarray(groups["seconds"].cast(pa.int64())) * stamp_columns.SECOND + np.asarray(groups["fraction"].cast(pa.int64()))
        hit = at[matched]
        if pattern == p.UNIX:
            rows.set_time(hit, value, FRAME, 1)
        else:
            rows.monotonic[hit] = value
        self._writer(rows, hit, groups)
        return matched, groups["text"]

    def _ray(self, rows: LineBlock, texts: pa.Array, at: Index) -> tuple[NDArray[np.bool_], pa.Array]:
        matched, groups = extract(texts, p.RAY)
        if matched.any():
            hit = at[matched]
            self._pids(rows, hit, groups["pid"])
            host = self.names.codes(groups["host"])
            rows.host[hit] = np.where(rows.host[hit] < 0, host, rows.host[hit])
        return matched, groups["text"] if matched.any() else groups

    def _kubectl(self, rows: LineBlock, texts: pa.Array, at: Index) -> tuple[NDArray[np.bool_], pa.Array]:
        return self._named(rows, texts, at, p.KUBECTL)

    def _labels(self, rows: LineBlock, texts: pa.Array, at: Index) -> tuple[NDArray[np.bool_], pa.Array]:
        matched, groups = extract(texts, p.LABELS)
        if not matched.any():
            return matched, groups
        hit = at[matched]
        encoded = groups["labels"].dictionary_encode()
        writers = [collectors.writer_of(collectors.labels_of(text)) for text in encoded.dictionary.to_pylist()]
        which = np.asarray(encoded.indices)
        for name, column in (("_HOSTNAME", rows.host), ("_SYSTEMD_UNIT", rows.unit), ("CONTAINER_NAME", rows.unit)):
            codes = np.array([self.names.code(w.get(name)) for w in writers], np.int32)[which]
            column[hit] = np.where(codes < 0, column[hit], codes)
        return matched, groups["text"]

    def _compose(self, rows: LineBlock, texts: pa.Array, at: Index) -> tuple[NDArray[np.bool_], pa.Array]:
        return self._named(rows, texts, at, p.COMPOSE)

    def _named(self, rows: LineBlock, texts: pa.Array, at: Index, pattern: str) -> tuple[NDArray[np.bool_], pa.Array]:
        """Read frames that are the name of a container."""
        matched, groups = extract(texts, pattern)
        if not matched.any():
            return matched, groups
        rows.unit[at[matched]] = self.names.codes(pc.utf8_trim(groups["unit"], " "))
        return matched, groups["text"]

    def _notice(self, rows: LineBlock, texts: pa.Array, at: Index) -> tuple[NDArray[np.bool_], pa.Array]:
        matched, groups = extract(texts, p.NOTICE)
        if not matched.any():
            return matched, groups
        hit = at[matched]
        rows.keep[hit] = False
        self._notices = list(zip(hit.tolist(), self.names.codes(groups["boot"]).tolist(), strict=True))
        return matched, pc.fill_null(groups["boot"], "")

    def _boots(self, rows: LineBlock) -> None:
        """Give journalctl's lines the boot that the last ``-- Boot ... --`` above them names."""
        notices, self._notices = self._notices, []
        if self._boot < 0 and not notices:
            return
        steps = np.zeros(len(rows), np.int64)
        steps[[row for row, _ in notices]] = 1
        table = np.array([self._boot, *(boot for _, boot in notices)], np.int32)
        fill = (rows.prefix > 0) & (rows.boot < 0)
        rows.boot[fill] = table[np.cumsum(steps)][fill]
        self._boot = int(table[-1])

    # What frames say of the writer.

    def _writer_ok(self, groups: dict[str, pa.Array]) -> NDArray[np.bool_]:
        """Tell journalctl's "host ident[pid]:" from the words that programs write at the same place."""
        ident, host = groups.get("ident"), groups.get("host")
        if ident is None or host is None:
            return np.ones(len(groups["text"]), bool)
        levels = pa.array(sorted(p.LEVELS))
        odd = pc.or_(pc.is_in(host, levels), pc.is_in(ident, levels))
        lone = pc.and_(pc.equal(host, ""), pc.equal(groups["pid"], ""))
        return ~np.asarray(pc.or_(odd, lone))

    def _writer(self, rows: LineBlock, hit: Index, groups: dict[str, pa.Array]) -> None:
        rows.host[hit] = np.where(rows.host[hit] < 0, self.names.codes(groups["host"]), rows.host[hit])
        idents = self.names.codes(groups["ident"])
        rows.ident[hit] = idents
        words = self.names.words
        units = {c: c for c in np.unique(idents).tolist() if c >= 0 and f.looks_like_unit(words[c])}
        if units:
            rows.unit[hit] = np.where(np.isin(idents, list(units)), idents, rows.unit[hit])
        self._pids(rows, hit, groups["pid"])
        rows.prefix[hit] = np.asarray(pc.binary_length(groups["head"]))
        self._suppressed(rows, hit, idents, groups["text"])

    def _pids(self, rows: LineBlock, hit: Index, pids: pa.Array) -> None:
        said = pc.not_equal(pids, "")
        value = np.asarray(pc.if_else(said, pids, "-1").cast(pa.int64()))
        fits = (value >= 0) & (value < 2**31)
        rows.pid[hit[fits]] = value[fits]

    def _suppressed(self, rows: LineBlock, hit: Index, idents: NDArray[np.int32], texts: pa.Array) -> None:
        """Give a notice of journald to the unit that lost the lines."""
        known = np.unique(idents).tolist()
        journald = [code for code in known if code >= 0 and f.is_journald(self.names.words[code])]
        for i in np.flatnonzero(np.isin(idents, journald)).tolist() if journald else ():
            unit = f.lost_unit(texts[i].as_py())
            if unit is not None:
                rows.unit[hit[i]] = self.names.code(unit)

    def _continued(self, rows: LineBlock) -> None:
        """Give journalctl's indented lines, the rest of a message of several lines, to the line they belong to."""
        heads = np.flatnonzero(rows.prefix > 0)
        if not len(heads) and self._above is None:
            return
        spaces = pc.starts_with(rows.message, " " * 16)
        for row in np.flatnonzero(np.asarray(spaces) & (rows.prefix == 0) & rows.keep).tolist():
            before = int(np.searchsorted(heads, row)) - 1
            if before >= 0:
                head = {name: getattr(rows, name)[heads[before]] for name in _COPIED}
            elif self._above is not None:
                head = self._above
            else:
                continue
            indent = int(head["prefix"])
            text = rows.message[row].as_py()
            if text[:indent].strip(" ") or rows.kind[row]:
                continue
            for name in _COPIED:
                if name != "prefix":
                    getattr(rows, name)[row] = head[name]
            rows.message = replaced(rows.message, np.array([row]), pa.array([text[indent:]], pa.string()))
        if len(heads):
            self._above = {name: getattr(rows, name)[heads[-1]] for name in _COPIED}

    def _blobs(self, rows: LineBlock) -> None:
        """Count and leave out messages that journalctl did not print."""
        blob = np.asarray(pc.match_substring_regex(rows.message, p.BLOB)) & rows.keep & (rows.prefix > 0)
        self.stats.blob_data += int(blob.sum())
        rows.keep &= ~blob

    def _apply(self, rows: LineBlock) -> None:
        """Count the lines, then leave out those outside of selection and window."""
        self.stats.lines += len(rows)
        self.asked += len(rows)
        keep = np.ones(len(rows), bool)
        if not self.wanted.any or self.wanted.boot:
            keep &= self._selected(rows)
        known = (rows.kind == JOURNAL) | (rows.kind == FRAME)
        if known.any():
            times = np.append(self._last or rows.time[known][0], rows.time[known])
            self._rises = self._rises or bool((np.diff(times) > 0).any())
            self._falls = self._falls or bool((np.diff(times) < 0).any())
            self._last = int(times[-1])
        selected = keep.copy()
        keep &= ~known | self.window.contains(rows.time)
        self._mark_left_out(rows, keep, selected & ~keep)
        if not keep.all():
            rows.select(keep)

    def count_units(self, rows: LineBlock) -> None:
        """Count the lines of each unit, as they are yielded."""
        codes, counts = np.unique(rows.unit[rows.unit >= 0], return_counts=True)
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
            unit = self.names.words[code]
            self.stats.units[unit] = self.stats.units.get(unit, 0) + count

    def _mark_left_out(self, rows: LineBlock, keep: NDArray[np.bool_], left_out: NDArray[np.bool_]) -> None:
        """Flag the rows before which others were left out: the clock had jumped there."""
        if not left_out.any() and not self._left_out:
            self._begun = self._begun or bool(keep.any())
            return
        kept = np.flatnonzero(keep)
        passed = np.cumsum(left_out)
        if len(kept):
            before = np.insert(passed[kept[:-1]], 0, -int(self._left_out) if self._begun else passed[kept[0]])
            rows.flag[kept[passed[kept] > before]] = LEFT_OUT
        self._left_out = bool(passed[-1] > (passed[kept[-1]] if len(kept) else 0)) or (not len(kept) and self._left_out)
        self._begun = self._begun or len(kept) > 0

    @property
    def backwards(self) -> bool:
        """Whether the lines came newest first."""
        return self._falls and not self._rises

    _rises = _falls = False
    _last = 0
    _left_out = False
    _begun = False
    _outermost = True

    def _selected(self, rows: LineBlock) -> NDArray[np.bool_]:
        keep = rows.wanted != 0
        ask = np.flatnonzero(rows.wanted < 0)
        pairs, inverse, counts = np.unique(
            np.stack([rows.unit[ask], rows.ident[ask], rows.boot[ask]], axis=1), axis=0, return_inverse=True, return_counts=True
        )
        words = self.names.words
        answers = []
        for (unit, ident, boot), count in zip(pairs.tolist(), counts.tolist(), strict=True):
            answer = self.wanted.named(words[unit] if unit >= 0 else None, words[ident] if ident >= 0 else None)
            if self.wanted.boot and boot >= 0 and words[boot] != self.wanted.boot:
                answer = False
            if answer is None:
                self.untold += count
            answers.append(answer is not False)
        keep[ask] = np.array(answers, bool)[inverse.reshape(-1)]
        return keep


_COPIED = ("time", "kind", "resolution", "flag", "monotonic", "pid", "unit", "host", "stream", "boot", "ident", "line", "prefix", "wanted")
