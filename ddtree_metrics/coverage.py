"""What was read, what was understood, and what is missing: the account that every read gives and every file carries."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html import escape
from typing import Any

from ddtree_metrics.times import format_us

COVERAGE_VERSION = 1
"""1: the first form."""

EXAMPLES = 5

COUNTED = {
    "broken_lines": "lines that have a marker but break its form",
    "message_null": "entries whose message is null (the reader ran without --all)",
    "message_missing": "entries without a message",
    "blob_data": "lines that journalctl replaced by [blob data]",
    "pieces_joined": "pieces of cut lines, joined",
    "pieces_unfinished": "cut lines whose end never came",
    "bad_bytes": "lines with bytes that are no UTF-8, replaced",
    "duplicate_lines": "lines that another of the files has too, counted once",
    "outside_window": "lines outside the window",
    "duplicate_ranks": "copies of a step from other tensor-parallel ranks, not counted again",
    "duplicate_events": "event lines of other ranks, not counted again",
    "suppressed_notices": "notices of journald that it suppressed lines",
    "suppressed_lines": "lines lost that way, at least",
    "gaps": "holes between steps without a reason in the log",
    "bursts": "lines written together, whose times say nothing of the steps",
}
"""What is counted besides lines and rows, in words."""


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


@dataclass(slots=True)
class Coverage:
    """What a read met.

    Attributes
    ----------
    source : str
        What was read, in words.
    lines : int
        Lines seen, those of other units included where they had to be looked at.
    units : dict of str to int
        Lines by unit, where the frame says the unit.
    parsed : dict of str to int
        Rows by table.
    broken : list of BrokenKind
        Lines that have a marker but break its form.
    message_null, message_missing : int
        Journal entries whose MESSAGE is null (the reader ran without ``--all``), or not there.
    blob_data : int
        Lines that ``journalctl`` replaced by ``[123B blob data]``.
    pieces_joined, pieces_unfinished : int
        Pieces of cut lines that were joined; lines whose end never came, which were not read.
    bad_bytes : int
        Lines with bytes that are no UTF-8; they were replaced.
    duplicate_lines : int
        Lines that another of the files has too; they are left out, and in no other count.
    quoted_lines : int
        Lines that speak of a marker, in a prompt or a traceback, and were taken for nothing; ``quoted_examples`` has up to five.
    doubtful_times : dict of str to int
        Rows by ``time_flag``: ambiguous, nonexistent, year_guessed, no_date.
    outside_window : int
        Rows whose own stamp lies outside of the window.
    duplicate_ranks : int
        Copies of a step that other tensor-parallel ranks logged; they are in the table, not in the view.
    duplicate_events : int
        Event lines that say of a retraction, an exception … what another rank had said already; they are in no table.
    suppressed_notices, suppressed_lines : int
        Rate-limit notices of journald, and the lines they say were lost.
    clock_steps : list of float
        Jumps of the wall clock, in seconds.
    gaps, bursts : int
        Holes between steps without a reason in the log; lines that were written together, whose times say nothing of the steps.
    first_us, last_us : int or None
        First and last time of any row, in microseconds since 1970.
    damaged : list of str
        Files, or parts of them, that could not be read.
    slow_tier : dict of str to int
        Lines that left the usual shape of a dialect; they were read all the same, more slowly.
    notes : list of str
        What a reader should know besides.
    """

    source: str = ""
    lines: int = 0
    units: dict[str, int] = field(default_factory=dict)
    parsed: dict[str, int] = field(default_factory=dict)
    broken: list[BrokenKind] = field(default_factory=list)
    message_null: int = 0
    message_missing: int = 0
    blob_data: int = 0
    pieces_joined: int = 0
    pieces_unfinished: int = 0
    bad_bytes: int = 0
    duplicate_lines: int = 0
    quoted_lines: int = 0
    quoted_examples: list[tuple[str, str]] = field(default_factory=list)
    doubtful_times: dict[str, int] = field(default_factory=dict)
    outside_window: int = 0
    duplicate_ranks: int = 0
    duplicate_events: int = 0
    suppressed_notices: int = 0
    suppressed_lines: int = 0
    clock_steps: list[float] = field(default_factory=list)
    gaps: int = 0
    bursts: int = 0
    first_us: int | None = None
    last_us: int | None = None
    damaged: list[str] = field(default_factory=list)
    slow_tier: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def broken_lines(self) -> int:
        """How many lines have a marker but break its form."""
        return sum(kind.count for kind in self.broken)

    def saw(self, table: str, rows: int, first_us: int | None, last_us: int | None) -> None:
        """Count the rows of one batch and widen the span of time."""
        self.parsed[table] = self.parsed.get(table, 0) + rows
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
        made = [("lines read", self.lines), *((f"rows of {name}", n) for name, n in self.parsed.items() if n)]
        return made + [(said, getattr(self, name)) for name, said in COUNTED.items() if getattr(self, name)]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        return {
            "coverage_version": COVERAGE_VERSION,
            "source": self.source,
            "lines": self.lines,
            "units": self.units,
            "parsed": self.parsed,
            "broken_lines": self.broken_lines,
            "broken": [
                {
                    "dialect": kind.dialect,
                    "table": kind.table,
                    "reason": kind.reason,
                    "count": kind.count,
                    "examples": [{"where": where, "text": text} for where, text in kind.examples],
                }
                for kind in self.broken
            ],
            "message_null": self.message_null,
            "message_missing": self.message_missing,
            "blob_data": self.blob_data,
            "pieces_joined": self.pieces_joined,
            "pieces_unfinished": self.pieces_unfinished,
            "bad_bytes": self.bad_bytes,
            "duplicate_lines": self.duplicate_lines,
            "quoted_lines": self.quoted_lines,
            "quoted_examples": [{"where": where, "text": text} for where, text in self.quoted_examples],
            "doubtful_times": self.doubtful_times,
            "outside_window": self.outside_window,
            "duplicate_ranks": self.duplicate_ranks,
            "duplicate_events": self.duplicate_events,
            "suppressed_notices": self.suppressed_notices,
            "suppressed_lines": self.suppressed_lines,
            "clock_steps_s": self.clock_steps,
            "gaps": self.gaps,
            "bursts": self.bursts,
            "first": format_us(self.first_us) if self.first_us is not None else None,
            "last": format_us(self.last_us) if self.last_us is not None else None,
            "first_us": self.first_us,
            "last_us": self.last_us,
            "damaged": self.damaged,
            "slow_tier": self.slow_tier,
            "notes": self.notes,
        }

    def to_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Coverage:
        """Read back what ``to_dict`` made; keys of a newer version are ignored."""
        broken = [
            BrokenKind(b["dialect"], b["table"], b["reason"], b["count"], [(e["where"], e["text"]) for e in b["examples"]])
            for b in data.get("broken", [])
        ]
        quoted = [(e["where"], e["text"]) for e in data.get("quoted_examples", [])]
        apart = ("broken", "quoted_examples")
        plain = {name: data[name] for name in cls.__dataclass_fields__ if name in data and name not in apart}
        return cls(
            **plain, broken=broken, quoted_examples=quoted, **({"clock_steps": data["clock_steps_s"]} if "clock_steps_s" in data else {})
        )

    @classmethod
    def merged(cls, parts: list[Coverage]) -> Coverage:
        """Add up the accounts of several files."""
        total = cls(source=", ".join(dict.fromkeys(p.source for p in parts if p.source)))
        kinds: dict[tuple[str, str, str], BrokenKind] = {}
        for part in parts:
            for name in _ADDED:
                setattr(total, name, getattr(total, name) + getattr(part, name))
            total.quoted_examples = (total.quoted_examples + part.quoted_examples)[:EXAMPLES]
            for name in ("units", "parsed", "slow_tier", "doubtful_times"):
                into = getattr(total, name)
                for key, count in getattr(part, name).items():
                    into[key] = into.get(key, 0) + count
            total.saw("", 0, part.first_us, part.last_us)
            total.clock_steps += part.clock_steps
            total.damaged += part.damaged
            for note in part.notes:
                total.add_note(note)
            for kind in part.broken:
                into = kinds.setdefault((kind.dialect, kind.table, kind.reason), BrokenKind(kind.dialect, kind.table, kind.reason))
                into.count += kind.count
                into.examples = (into.examples + kind.examples)[:EXAMPLES]
        total.parsed.pop("", None)
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


_ADDED = (
    "lines",
    "message_null",
    "message_missing",
    "blob_data",
    "pieces_joined",
    "pieces_unfinished",
    "bad_bytes",
    "duplicate_lines",
    "quoted_lines",
    "outside_window",
    "duplicate_ranks",
    "duplicate_events",
    "suppressed_notices",
    "suppressed_lines",
    "gaps",
    "bursts",
)
