"""A user's own dialect from a TOML file: no code, the same engine.

The file says what one server writes (see ``docs/dialect-example.toml``): for each line kind its table, its marker, which keys fill
which column, and samples. The samples are read when the file is loaded, so a mistake shows at once, with the file and the key.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddtree_metrics.dialects.base import REASONS, Counts, Dialect, Field, Line, Sample
from ddtree_metrics.errors import UnknownDialect
from ddtree_metrics.records import TABLES, table_of
from ddtree_metrics.schema import columns

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

_TABLES = ("steps", "decode", "prefill", "events", "servers", "request_lines")
_LINE_KEYS = {
    "table", "marker", "also", "fields", "keep", "pairs", "kv", "loose", "need", "same_length", "length", "const", "pattern", "decimals",
    "samples",
}  # fmt: skip
_TOP_KEYS = {"name", "about", "lines", "counts"}
_COUNT_KEYS = {"nodes_include_root", "commit_includes_bonus", "accepted_include_root"}
MOST_DECIMALS = 17
"""A float has no more digits that mean something."""
_STEP_LISTS = ("nodes", "accepted_drafts", "commit_lens", "request_ids", "context_lens")


class _File:
    """The file being read, for messages that name it and the key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def wrong(self, key: str, what: str) -> UnknownDialect:
        return UnknownDialect(f"{self.path.name}: {key}: {what}")

    def of(self, table: Mapping[str, Any], key: str, kind: type, at: str, default: Any = None) -> Any:
        if key not in table:
            if default is None:
                raise self.wrong(f"{at}{key}", f"is missing; give it a {_NAMES[kind]}")
            return default
        value = table[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.wrong(f"{at}{key}", f"is {_shown(value)}; give it a {_NAMES[kind]}")
        return value

    def known(self, table: Mapping[str, Any], allowed: set[str], at: str) -> None:
        for key in table:
            if key not in allowed:
                raise self.wrong(f"{at}{key}", f"is not a key of this place; use one of {', '.join(sorted(allowed))}")


_NAMES = {str: "text", int: "whole number", bool: "true or false", list: "list", dict: "table"}


def _shown(value: Any) -> str:
    """Quote a value, in short; of what holds others only its kind is said."""
    return f"a {_NAMES[type(value)]}" if isinstance(value, (list, dict)) else repr(value)[:100]


def load_dialect(path: str | Path) -> Dialect:
    """Load a dialect from a TOML file and test it on its own samples.

    Parameters
    ----------
    path : str or Path
        The file.

    Returns
    -------
    Dialect
        Ready for ``Parser``, ``read_text`` and all that take a dialect.

    Raises
    ------
    UnknownDialect
        If the file cannot be read, a key is wrong, or a sample does not become what the file says; the message names the file, the
        key and what to do.
    """
    file = _File(Path(path))
    try:
        top = tomllib.loads(file.path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnknownDialect(f"{path}: cannot be read ({error.strerror}); give the path of a dialect's TOML file") from None
    except UnicodeDecodeError:
        raise UnknownDialect(f"{file.path.name}: is not UTF-8 text; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise UnknownDialect(f"{file.path.name}: is not valid TOML ({error}); correct it there") from None
    except (ValueError, RecursionError):
        raise UnknownDialect(f"{file.path.name}: has a number of too many digits, or is nested too deeply; correct it there") from None
    file.known(top, _TOP_KEYS, "")
    name = file.of(top, "name", str, "")
    if not name.strip():
        raise file.wrong("name", "is empty; give the dialect a name")
    counts = file.of(top, "counts", dict, "", {})
    file.known(counts, _COUNT_KEYS, "counts.")
    for key in counts:
        file.of(counts, key, bool, "counts.")
    lines = file.of(top, "lines", list, "")
    made = tuple(_line(file, line, f"lines[{n}].") for n, line in enumerate(lines, 1))
    dialect = Dialect(name, made, Counts(**counts), file.of(top, "about", str, "", " ").strip())
    try:
        dialect.check()
    except UnknownDialect as error:
        raise UnknownDialect(f"{file.path.name}: {error}") from None
    _try(file, dialect)
    return dialect


def _line(file: _File, table: Any, at: str) -> Line:
    if not isinstance(table, dict):
        raise file.wrong(at.rstrip("."), "is no table; write it as [[lines]]")
    file.known(table, _LINE_KEYS, at)
    name = file.of(table, "table", str, at)
    if name not in _TABLES:
        raise file.wrong(f"{at}table", f"is {name!r}; use one of {', '.join(_TABLES)}")
    record = TABLES[name]
    known = {c.name for c in columns(record)}

    def column(value: Any, key: str) -> str:
        if value not in known:
            raise file.wrong(key, f"table {name} has no column {value!r}; use one of {', '.join(sorted(known))}")
        return str(value)

    keep = set(_texts(file, table, "keep", at))
    fields: dict[str, str | Field] = {}
    for target, keys in file.of(table, "fields", dict, at, {}).items():
        column(target, f"{at}fields.{target}")
        for key in [keys] if isinstance(keys, str) else keys if isinstance(keys, list) else [None]:
            if not isinstance(key, str) or not key:
                raise file.wrong(f"{at}fields.{target}", "must be a key of the line, or a list of keys")
            if key in fields:
                raise file.wrong(f"{at}fields.{target}", f"the key {key!r} fills two columns; remove one")
            fields[key] = Field(target, keep=key in keep)
    pattern = table.get("pattern")
    if pattern is None and not fields:
        raise file.wrong(f"{at}fields", "is missing; say which key fills which column, or give a pattern")
    if pattern is not None:
        file.of(table, "pattern", str, at)
        if not pattern.startswith("^"):
            raise file.wrong(f"{at}pattern", "must begin with ^, at the marker")
    decimals = file.of(table, "decimals", int, at, 0) if "decimals" in table else 0
    if not 0 <= decimals <= MOST_DECIMALS:
        raise file.wrong(f"{at}decimals", f"is {decimals}; a float is printed with 0 to {MOST_DECIMALS} decimals")
    steps = name == "steps"
    const = file.of(table, "const", dict, at, {})
    for key in const:
        column(key, f"{at}const.{key}")
    lists = _texts(file, table, "same_length", at) or (_STEP_LISTS if steps else ())
    for value in (*lists, *_texts(file, table, "need", at)):
        column(value, f"{at}same_length")
    return Line(
        record,
        marker=file.of(table, "marker", str, at),
        also=_texts(file, table, "also", at),
        fields=fields,
        pairs=file.of(table, "pairs", str, at, " "),
        kv=file.of(table, "kv", str, at, "="),
        loose=file.of(table, "loose", bool, at, False),
        need=_texts(file, table, "need", at),
        same_length=lists,
        length=column(file.of(table, "length", str, at), f"{at}length") if "length" in table else ("batch_size" if steps else None),
        const={**({"steps": 1} if steps else {}), **const},
        pattern=pattern,
        decimals=decimals,
        samples=tuple(_sample(file, s, f"{at}samples[{n}].", known) for n, s in enumerate(file.of(table, "samples", list, at), 1)),
    )


def _texts(file: _File, table: Mapping[str, Any], key: str, at: str) -> tuple[str, ...]:
    value = table.get(key, [])
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
        raise file.wrong(f"{at}{key}", f"is {_shown(value)}; give it a list of texts")
    return tuple(value)


def _sample(file: _File, table: Any, at: str, known: set[str]) -> Sample:
    if not isinstance(table, dict):
        raise file.wrong(at.rstrip("."), "is no table; write it as [[lines.samples]]")
    file.known(table, {"text", "gives", "broken", "nothing"}, at)
    text = file.of(table, "text", str, at)
    said = [k for k in ("gives", "broken", "nothing") if k in table]
    if len(said) != 1:
        raise file.wrong(f"{at}gives", 'say one thing of a sample: gives = {...}, broken = "reason", or nothing = true')
    broken = file.of(table, "broken", str, at) if "broken" in table else None
    if broken is not None and broken not in REASONS:
        raise file.wrong(f"{at}broken", f"is {broken!r}; use one of {', '.join(REASONS)}")
    gives = table.get("gives")
    if gives is not None:
        file.of(table, "gives", dict, at)
        for key in gives:
            if key not in known:
                raise file.wrong(f"{at}gives.{key}", f"is no column of the table; use one of {', '.join(sorted(known))}")
    return Sample(text, gives, broken)


def _try(file: _File, dialect: Dialect) -> None:
    """Read all samples and compare."""
    for number, line in enumerate(dialect.lines, 1):
        for k, sample in enumerate(line.samples, 1):
            problem = check_sample(dialect, line, sample)
            if problem:
                raise file.wrong(f"lines[{number}].samples[{k}]", f"{problem}; correct the sample or the declaration")


def check_sample(dialect: Dialect, line: Line, sample: Sample) -> str | None:
    """Read one sample and say what is wrong with what comes out, or ``None``.

    Parameters
    ----------
    dialect : Dialect
        The dialect the line kind is of.
    line : Line
        The line kind.
    sample : Sample
        The sample.
    """
    from ddtree_metrics.dialects.assemble import bare_lines
    from ddtree_metrics.dialects.engine import Parser

    batch = bare_lines([sample.text])
    table = table_of(line.record)
    for fast in (True, False):
        parser = Parser([dialect], on_error="skip", fast=fast)
        found = parser.feed(batch).tables
        rows = found[table].to_pylist() if table in found else []
        reasons = [reason for _, _, reason in parser.broken.counts]
        if sample.broken is not None:
            if reasons != [sample.broken] or rows:
                return f"should be broken ({sample.broken}), and is {reasons[0] if reasons else 'read' if rows else 'nothing'}"
            continue
        if reasons:
            return f"is broken ({reasons[0]}: {REASONS[reasons[0]]})"
        if sample.gives is None:
            if rows:
                return f"should become nothing, and becomes a row of {table}"
            continue
        if not rows:
            return f"should become a row of {table}, and becomes nothing"
        for column, want in sample.gives.items():
            got = rows[0][column]
            got = dict(got) if isinstance(got, list) and got and isinstance(got[0], tuple) else got
            if isinstance(want, tuple):
                want = list(want)
            if got != want:
                return f"column {column} should be {want!r}, and is {got!r}"
    return None
