"""Which lines of a text are wanted, and who the lines say that they are of.

A journal has an index to ask (``matching.py``); a journal that was saved as text, or a log with frames, is asked line by line.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ddtree_metrics.errors import SourceNotFound
from ddtree_metrics.sources import Selection, SourceStats
from ddtree_metrics.sources import journal_fields as f
from ddtree_metrics.sources.matching import options, similar

# Fields that say who wrote an entry. A journal has some of them in every entry, if it was saved with all fields.
_WHOSE = (
    "_SYSTEMD_UNIT",
    "_SYSTEMD_USER_UNIT",
    "UNIT",
    "USER_UNIT",
    "CONTAINER_NAME",
    "SYSLOG_IDENTIFIER",
    "_HOSTNAME",
    "PRIORITY",
)
_ASKED = (*_WHOSE, "_PID")
_KNOWN_MAX = 4096


@dataclass(slots=True)
class Roll:
    """Who the lines of some files are of; one for all files that are read together.

    Attributes
    ----------
    selection : Selection
        Who was asked for.
    found : bool
        Whether a line of them was met, in the window or outside of it.
    told, untold : int
        Whether lines said whose they are (counted once a writer), and how many lines did not.
    absent : list of str
        What journals among the files answered, in which none of them ever logged.
    """

    selection: Selection
    found: bool = False
    told: int = 0
    untold: int = 0
    absent: list[str] = field(default_factory=list)
    units: set[str] = field(default_factory=set)
    users: set[str] = field(default_factory=set)
    containers: set[str] = field(default_factory=set)
    idents: set[str] = field(default_factory=set)

    def saw(self, entry: f.Entry) -> None:
        """Remember the names of an entry's writer."""
        self.told += 1
        for names, name in (
            (self.units, "_SYSTEMD_UNIT"),
            (self.units, "OBJECT_SYSTEMD_UNIT"),
            (self.units, "UNIT"),
            (self.users, "_SYSTEMD_USER_UNIT"),
            (self.containers, "CONTAINER_NAME"),
            (self.idents, "SYSLOG_IDENTIFIER"),
        ):
            value = f.text(entry, name)
            if value is not None and len(names) < _KNOWN_MAX:
                names.add(value)

    def check(self, where: str, stats: SourceStats) -> None:
        """Say at the end what was never met.

        Raises
        ------
        SourceNotFound
            If no line is of those who were asked for, and all lines say whose they are.
        """
        wanted = f.wanted_names(self.selection)
        if not wanted or not (self.told or self.found or self.absent):
            return
        every = self.units | self.users | self.containers | self.idents
        missing = [name for name in wanted if not any(f.matches((name,), seen) for seen in every)]
        if self.found:
            if missing and not self.absent and not self.untold:
                stats.notes.append(f"never logged in {where}: {', '.join(missing)}")
            stats.notes += self.absent
            return
        text = "; ".join(self.absent)
        if self.told:
            text = similar(self.selection, wanted, f"in {where}", self.units, self.users, self.containers, self.idents)
            asks_units = self.selection.units or self.selection.user_units
            if asks_units and not (self.units or self.users or self.containers):
                text += (
                    f"; its lines say nothing of units (saved without the field _SYSTEMD_UNIT?): leave {options(self.selection)} out "
                    "to read all of them"
                )
        if self.untold:
            stats.notes.append(f"{text}; {self.untold} lines that do not say whose they are were taken")
            return
        raise SourceNotFound(text)


class Wanted:
    """A test of entries and lines against a selection.

    Parameters
    ----------
    selection : Selection
        What is wanted; a ``boot`` offset (``-1``) cannot be resolved here and is not tested.
    roll : Roll, optional
        Where the names that were met are kept.
    """

    def __init__(self, selection: Selection, roll: Roll | None = None) -> None:
        self.units = tuple(f.unit_name(u) for u in selection.units)
        self.user_units = tuple(f.unit_name(u) for u in selection.user_units)
        self.identifiers = selection.identifiers
        self.containers = selection.containers
        boot = (selection.boot or "").replace("-", "")
        self.boot = boot if len(boot) == 32 else None
        self.any = not (self.units or self.user_units or self.identifiers or self.containers)
        self.roll = Roll(selection) if roll is None else roll
        self._known: dict[tuple[f.Value | None, ...], bool | None] = {}

    def entry(self, entry: f.Entry) -> bool | None:
        """Say whether an entry is wanted; ``None`` if it does not say who wrote it."""
        if self.boot is not None and f.text(entry, "_BOOT_ID") not in (self.boot, None):
            return False
        if self.any:
            return True
        if f.is_suppressed(entry):
            return self._notice(entry)
        key = tuple(map(entry.get, _ASKED))
        try:
            return self._known[key]
        except KeyError:
            pass
        except TypeError:  # a field with several values
            return self._answer(entry)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        answer = self._known[key] = self._answer(entry)
        return answer

    def _notice(self, entry: f.Entry) -> bool:
        """Say whether a notice of suppressed lines concerns those who are wanted; one of an unknown unit may concern anybody."""
        unit = f.unit_of(entry)
        if unit is None:
            return True
        own = f.text(entry, "OBJECT_SYSTEMD_UNIT") or unit
        if f.matches(self.units, own) or f.matches(self.user_units, f.text(entry, "OBJECT_SYSTEMD_USER_UNIT")):
            self.roll.found = True
            return True
        return bool(self._answer(entry))

    def _answer(self, entry: f.Entry) -> bool | None:
        if not any(name in entry for name in _WHOSE):
            return None
        self.roll.saw(entry)
        yes = (
            f.matches(self.units, f.text(entry, "_SYSTEMD_UNIT"))
            or (f.first(entry, "_PID") in (b"1", None) and f.matches(self.units, f.text(entry, "UNIT")))
            or f.matches(self.user_units, f.text(entry, "_SYSTEMD_USER_UNIT"))
            or f.matches(self.identifiers, f.text(entry, "SYSLOG_IDENTIFIER"))
            or f.matches(self.containers, f.text(entry, "CONTAINER_NAME"))
        )
        self.roll.found |= yes
        return yes

    def named(self, unit: str | None, ident: str | None) -> bool | None:
        """Say whether a line with a unit or container name and an identifier is wanted; ``None`` if that cannot be told."""
        if self.any:
            return True
        if ident is not None and not f.looks_like_unit(ident):
            self.roll.idents.add(ident)
        if unit is not None:
            (self.roll.units if f.looks_like_unit(unit) else self.roll.containers).add(unit)
        if (unit is not None and f.matches(self.units + self.user_units + self.containers, unit)) or f.matches(self.identifiers, ident):
            self.roll.found = True
            return True
        said = (unit is not None or not (self.units or self.user_units or self.containers)) and (ident is not None or not self.identifiers)
        self.roll.told += said
        return False if said else None


__all__ = ["Roll", "Wanted"]
