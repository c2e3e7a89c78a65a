"""What was read, what was understood, and what is missing: the account that every read gives and every file carries."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from html import escape
from typing import Annotated, Any

from ddtree_metrics.counting import Count, add_counters, counters
from ddtree_metrics.sources import SourceStats
from ddtree_metrics.steps.streams import StreamCounts
from ddtree_metrics.times import format_us

COVERAGE_VERSION = 1
"""1: the first form."""

EXAMPLES = 5


@dataclass(slots=True)
class BrokenKind:
    """Lines that have a marker but break its form, for one reason.

    Attributes
    ----------
    dialect, table, reason : str
        What the line claimed to be, and what is wrong with it.
    count : int
        How many there were.
    examples : list of (str, str)
        Up to five of them: where, and the text cut to 200 characters.
    """

    dialect: str
    table: str
    reason: str
    count: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)


@dataclass(repr=False)
class Coverage(StreamCounts, SourceStats):
    """What a read met. Each counter says beside its field what it counts; the parts of a read keep theirs, and these are added to them.

    Attributes
    ----------
    source : str
        What was read, in words.
    broken : list of BrokenKind
        Lines that have a marker but break its form.
    quoted_examples : list of (str, str)
        Up to five of the lines that only speak of a marker: where, and the text cut to 200 characters.
    first_us, last_us : int or None
        First and last time of any row, in microseconds since 1970.
    notes : list of str
        What a reader should know besides.
    """

    source: str = ""
    broken: list[BrokenKind] = field(default_factory=list)
    quoted_examples: list[tuple[str, str]] = field(default_factory=list)
    first_us: int | None = None
    last_us: int | None = None
    parsed: Annotated[dict[str, int], Count("rows by table")] = field(default_factory=dict)
    dialects: Annotated[dict[str, int], Count("rows by dialect, those of events left out")] = field(default_factory=dict)
    quoted_lines: Annotated[int, Count("lines that only speak of a marker, taken for nothing")] = 0
    slow_tier: Annotated[dict[str, int], Count("lines out of a dialect's usual shape, read more slowly")] = field(default_factory=dict)
    doubtful_times: Annotated[dict[str, int], Count("rows whose time is doubtful, by time_flag")] = field(default_factory=dict)
    outside_window: Annotated[int, Count("rows outside of the window")] = 0
    duplicate_events: Annotated[int, Count("event lines of other ranks, not counted again")] = 0
    suppressed_notices: Annotated[int, Count("notices of journald that it suppressed lines")] = 0
    suppressed_lines: Annotated[int, Count("lines suppressed by journald: counts are lower bounds")] = 0

    @property
    def broken_lines(self) -> int:
        """How many lines have a marker but break its form."""
        return sum(kind.count for kind in self.broken)

    def saw(self, table: str, rows: int, first_us: int | None, last_us: int | None) -> None:
        """Count the rows of one batch and widen the span of time."""
        self.parsed[table] = self.parsed.get(table, 0) + rows
        self.span(first_us, last_us)

    def span(self, first_us: int | None, last_us: int | None) -> None:
        """Widen the span of time."""
        if first_us is not None:
            self.first_us = first_us if self.first_us is None else min(self.first_us, first_us)
        if last_us is not None:
            self.last_us = last_us if self.last_us is None else max(self.last_us, last_us)

    def add_note(self, note: str) -> None:
        """Add a note once."""
        if note not in self.notes:
            self.notes.append(note)

    def counted(self) -> list[tuple[str, int]]:
        """Return what was counted, in words, without what was not met."""
        numbers = [(words, getattr(self, name)) for name, words in counters(Coverage).items()]
        counts = [(words, n) for words, n in numbers if isinstance(n, int) and n]
        broken = [("lines that have a marker but break its form", self.broken_lines)] if self.broken_lines else []
        return counts[:1] + [(f"rows of {name}", n) for name, n in self.parsed.items() if n] + broken + counts[1:]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        counts = {name: getattr(self, name) for name in counters(Coverage)}
        return {
            "coverage_version": COVERAGE_VERSION,
            "source": self.source,
            **counts,
            "clock_steps_s": counts.pop("clock_steps"),
            "broken_lines": self.broken_lines,
            "broken": [{**asdict(kind), "examples": _told(kind.examples)} for kind in self.broken],
            "quoted_examples": _told(self.quoted_examples),
            "first": format_us(self.first_us) if self.first_us is not None else None,
            "last": format_us(self.last_us) if self.last_us is not None else None,
            "first_us": self.first_us,
            "last_us": self.last_us,
            "notes": self.notes,
        }

    def to_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Coverage:
        """Read back what ``to_dict`` made; keys of a newer version are ignored."""
        plain = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        plain["clock_steps"] = data.get("clock_steps_s", [])
        plain["broken"] = [
            BrokenKind(b["dialect"], b["table"], b["reason"], b["count"], _examples(b["examples"])) for b in data.get("broken", ())
        ]
        plain["quoted_examples"] = _examples(data.get("quoted_examples", ()))
        return cls(**plain)

    @classmethod
    def merged(cls, parts: list[Coverage]) -> Coverage:
        """Add up the accounts of several files."""
        total = cls(source=", ".join(dict.fromkeys(p.source for p in parts if p.source)))
        kinds: dict[tuple[str, str, str], BrokenKind] = {}
        for part in parts:
            add_counters(part, total)
            total.span(part.first_us, part.last_us)
            total.quoted_examples = (total.quoted_examples + part.quoted_examples)[:EXAMPLES]
            for note in part.notes:
                total.add_note(note)
            for kind in part.broken:
                into = kinds.setdefault((kind.dialect, kind.table, kind.reason), BrokenKind(kind.dialect, kind.table, kind.reason))
                into.count += kind.count
                into.examples = (into.examples + kind.examples)[:EXAMPLES]
        total.broken = list(kinds.values())
        return total

    def __str__(self) -> str:
        """Say it in one line, the most important first."""
        said = [f"{self.lines} lines"]
        said += [f"{self.parsed[table]} {table}" for table in ("steps", "decode", "prefill") if self.parsed.get(table)]
        said.append(f"{self.broken_lines} broken")
        if self.duplicate_ranks:
            said.append(f"{self.duplicate_ranks} duplicate rank lines hidden")
        if self.suppressed_lines:
            said.append(f"at least {self.suppressed_lines} lines missing (suppressed): counts are lower bounds")
        for count, what in (
            (self.message_null, "null messages"),
            (self.message_missing, "entries without a message"),
            (self.pieces_unfinished, "cut lines whose end never came"),
        ):
            if count:
                said.append(f"{count} {what}")
        if self.damaged:
            said.append(f"{len(self.damaged)} damaged")
        return ", ".join(said)

    def __repr__(self) -> str:
        return f"<Coverage: {self}>"

    def _repr_html_(self) -> str:
        """Show it in a notebook: what was read, from when to when, and what was met."""
        span = [format_us(us).replace("T", " ")[:19] for us in (self.first_us, self.last_us) if us is not None]
        head = [self.source[:200], *([f"{' to '.join(span)} UTC"] if span else []), *(f"damaged: {d}" for d in self.damaged)]
        rows = "".join(f"<tr><td style='text-align:left'>{escape(said)}</td><td>{n:,}</td></tr>" for said, n in self.counted())
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return f"<p>{'<br>'.join(escape(h) for h in head if h)}</p><table>{rows}</table>" + (f"<ul>{notes}</ul>" if notes else "")


def _told(examples: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"where": where, "text": text} for where, text in examples]


def _examples(told: Iterable[dict[str, str]]) -> list[tuple[str, str]]:
    return [(example["where"], example["text"]) for example in told]
