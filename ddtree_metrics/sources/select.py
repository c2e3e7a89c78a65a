"""Which lines are wanted, and who did log where nothing of the selection is found.

A journal has an index to ask, so a selection becomes groups of journald's matches; a journal that was saved as text, or a log with frames,
is asked line by line.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple, Protocol

from ddtree_metrics.errors import SourceNotFound
from ddtree_metrics.sources import Selection, SourceStats
from ddtree_metrics.sources import journal_fields as f

Group = tuple[str, ...]
"""Terms ``FIELD=value`` that must all hold."""


class Entrance(NamedTuple):
    """What both ways to read need to know: files by name, groups of matches (any group may hold, all of its terms must), where to begin."""

    files: tuple[str, ...]
    groups: tuple[Group, ...]
    since_us: int | None


_LOST = f"MESSAGE_ID={f.SUPPRESSED.decode()}"
_HEX = re.compile(r"[0-9a-f]{8,32}")
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


class Index(Protocol):
    """What a way to read a journal can tell without reading it."""

    def unique(self, files: tuple[str, ...], name: str) -> set[str]:
        """Return the values that a field has in the files."""

    def boots(self, files: tuple[str, ...]) -> list[str]:
        """Return the boots in the files, oldest first."""


class Matcher:
    """Turn selections into matches, for some journal files."""

    def __init__(self, index: Index, files: tuple[str, ...], stats: SourceStats) -> None:
        self._backend = index
        self._files = files
        self.stats = stats
        self._unique: dict[str, set[str]] = {}

    def groups(self, selection: Selection) -> tuple[Group, ...]:
        """Turn a selection into groups of matches, of which one must hold.

        Raises
        ------
        SourceNotFound
            If nothing of the selection ever logged; the message has the nearest names.
        """
        made: list[Group] = []
        missing: list[str] = []
        wanted: list[tuple[str, tuple[Group, ...]]] = []
        for name in selection.units:
            wanted.append((f.unit_name(name), (("_SYSTEMD_UNIT={}",), (_LOST, "OBJECT_SYSTEMD_UNIT={}"), ("_PID=1", "UNIT={}"))))
        for name in selection.user_units:
            wanted.append((f.unit_name(name), (("_SYSTEMD_USER_UNIT={}",), (_LOST, "OBJECT_SYSTEMD_USER_UNIT={}"))))
        wanted += [(name, (("SYSLOG_IDENTIFIER={}",),)) for name in selection.identifiers]
        wanted += [(name, (("CONTAINER_NAME={}",),)) for name in selection.containers]
        for name, templates in wanted:
            some = self._alternative(name, templates)
            made += some
            if not some:
                missing.append(name)
        if missing and not made:
            raise SourceNotFound(self._not_found(selection, missing))
        if missing:
            self.stats.notes.append(f"never logged in this journal: {', '.join(missing)}")
        if (selection.units or selection.user_units) and f.SUPPRESSED.decode() in self._values("MESSAGE_ID"):
            # Notices need not name their unit in a field, so all are taken; EntryRows.wanted leaves out those of other units.
            made = [group for group in made if group[0] != _LOST] + [(_LOST,)]
        boot = self._boot(selection.boot)
        if boot is not None:
            term = f"_BOOT_ID={boot}"
            made = [(*group, term) for group in made] or [(term,)]
        return tuple(made)

    def _values(self, field: str) -> set[str]:
        if field not in self._unique:
            self._unique[field] = self._backend.unique(self._files, field)
        return self._unique[field]

    def _alternative(self, name: str, templates: tuple[Group, ...]) -> list[Group]:
        """Return the groups of one wanted name, which may be a pattern; none if it never logged."""
        pattern = any(c in name for c in "*?[")
        made = []
        for template in templates:
            values = self._values(template[-1].partition("=")[0])
            names = sorted(v for v in values if fnmatchcase(v, name)) if pattern else sorted({name} & values)
            made += [tuple(term.format(n) if "{}" in term else term for term in template) for n in names]
        return made

    def _not_found(self, selection: Selection, missing: list[str]) -> str:
        """Say what never logged."""
        units = self._values("_SYSTEMD_UNIT") | self._values("UNIT")
        users, containers = self._values("_SYSTEMD_USER_UNIT"), self._values("CONTAINER_NAME")
        return similar(selection, missing, "in this journal", units, users, containers, self._values("SYSLOG_IDENTIFIER"))

    def _boot(self, boot: str | None) -> str | None:
        """Turn an offset (0 the newest, -1 the one before, 1 the oldest) into a boot id."""
        if boot is None:
            return None
        accepted = "give a boot id or its first 8 or more hex digits, 0 for the newest boot, -1 for the one before, or 1 for the oldest"
        plain = boot.replace("-", "").lower()
        if boot[:1] not in "+-" and _HEX.fullmatch(plain):
            ids = sorted(b for b in self._values("_BOOT_ID") if b.startswith(plain))
            if len(ids) == 1:
                return ids[0]
            if ids:
                some = ", ".join(ids[:4])
                raise SourceNotFound(f"{len(ids)} boots of this journal have ids that begin with {boot} ({some}): write more of it")
            known = ", ".join(self._backend.boots(self._files)[-3:])
            raise SourceNotFound(f"no boot {boot} in this journal" + (f"; the newest are {known}" if known else ""))
        try:
            offset = int(boot)
        except ValueError:
            raise SourceNotFound(f"no boot {boot!r}: {accepted}") from None
        boots = self._backend.boots(self._files)
        index = offset - 1 if offset > 0 else len(boots) - 1 + offset
        if not 0 <= index < len(boots):
            raise SourceNotFound(f"no boot {offset} in this journal: it holds {len(boots)} boot{'s' * (len(boots) != 1)}; {accepted}")
        return boots[index]


def options(selection: Selection) -> str:
    """Write a selection as it was given: ``-u sglang.service``."""
    made = [f"-u {f.unit_name(name)}" for name in selection.units]
    made += [f"--user-unit {f.unit_name(name)}" for name in selection.user_units]
    made += [f"--identifier {name}" for name in selection.identifiers]
    return " ".join([*made, *(f"--container {name}" for name in selection.containers)])


def similar(
    selection: Selection, missing: list[str], where: str, units: set[str], users: set[str], containers: set[str], idents: set[str]
) -> str:
    """Say what never logged, what is called nearly so, and where its lines may be filed instead.

    Parameters
    ----------
    selection : Selection
        What was asked for.
    missing : list of str
        Names of it that never logged; the first is spoken of.
    where : str
        In what, ``in this journal``.
    units, users, containers, idents : set of str
        The names that did log.

    Returns
    -------
    str
    """
    everything = {u: u for u in units}
    everything |= {u: f"{u} (a user unit)" for u in users - units}
    everything |= {c: f"{c} (a container, CONTAINER_NAME)" for c in containers}
    everything |= {i: f"{i} (an identifier, SYSLOG_IDENTIFIER)" for i in idents - containers - units}
    kind = "unit" if selection.units else "user unit" if selection.user_units else "identifier" if selection.identifiers else "container"
    name = missing[0]
    stem = name.rpartition(".")[0] or name
    near = difflib.get_close_matches(name, everything, n=4, cutoff=0.5)
    near += [n for n in difflib.get_close_matches(stem, everything, n=4, cutoff=0.6) if n not in near]
    near += [n for n in sorted(everything) if (stem in n or n in stem) and len(n) > 2 and n not in near][:4]
    text = f"no {kind} {name!r} {where}"
    if near:
        text += "; similar: " + ", ".join(everything[n] for n in near[:5])
    elsewhere = sorted(n for n in (containers | (idents - {"systemd"})) if n in (name, stem) or n in near)
    if elsewhere and not (selection.containers and selection.identifiers):
        text += "; lines of containers and of programs without a unit are filed elsewhere: select by "
        text += " or ".join(
            f"{'CONTAINER_NAME' if n in containers else 'SYSLOG_IDENTIFIER'} (--{'container' if n in containers else 'identifier'} {n})"
            for n in elsewhere[:2]
        )
    elif containers and not selection.containers:
        text += "; there are lines of containers too: select them by CONTAINER_NAME (--container) or SYSLOG_IDENTIFIER (--identifier)"
    elif not near:
        text += "; if its lines are filed under another name, select by SYSLOG_IDENTIFIER (--identifier) or CONTAINER_NAME (--container)"
    return text


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
