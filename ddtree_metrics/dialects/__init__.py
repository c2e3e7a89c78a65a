"""What servers write: one module a writer, and the engine that turns their declarations into tables."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from ddtree_metrics.dialects.base import Counts, Dialect, Field, Line, Sample
from ddtree_metrics.dialects.journald import JOURNALD
from ddtree_metrics.dialects.llamacpp import LLAMACPP
from ddtree_metrics.dialects.lmdeploy import LMDEPLOY
from ddtree_metrics.dialects.sglang import SGLANG
from ddtree_metrics.dialects.tensorrt_llm import TENSORRT_LLM
from ddtree_metrics.dialects.vllm import VLLM
from ddtree_metrics.errors import UnknownDialect

DIALECTS: tuple[Dialect, ...] = (SGLANG, LLAMACPP, VLLM, LMDEPLOY, TENSORRT_LLM, JOURNALD)
"""The dialects that are known by name."""


def get(dialect: str | Dialect) -> Dialect:
    """Return a dialect by its name; a ``Dialect`` is returned as it is, after its declaration was checked.

    Raises
    ------
    UnknownDialect
        If no dialect has that name, or the declaration cannot be used.
    """
    if isinstance(dialect, Dialect):
        dialect.check()
        return dialect
    for known in DIALECTS:
        if known.name == dialect:
            return known
    names = [d.name for d in DIALECTS]
    near = difflib.get_close_matches(dialect, names, 1)
    hint = f"did you mean {near[0]!r}" if near else f"choose one of {', '.join(names)}"
    raise UnknownDialect(f"no dialect {dialect!r}; {hint}, or describe your own in a TOML file")


def detect(lines: Iterable[str]) -> list[Dialect]:
    """Say which dialects understand any of some lines, the one that understands most of them first.

    Parameters
    ----------
    lines : iterable of str
        A sample of the input; a thousand lines are plenty.

    Returns
    -------
    list of Dialect
        Empty if none of the lines is known.
    """
    from ddtree_metrics.dialects.assemble import bare_lines
    from ddtree_metrics.dialects.engine import Parser

    batch = bare_lines(list(lines))
    found = []
    for dialect in DIALECTS:
        parser = Parser([dialect], on_error="skip")
        rows = sum(t.num_rows for t in parser.feed(batch).tables.values()) + parser.broken.total
        if rows:
            found.append((rows, dialect))
    return [d for _, d in sorted(found, key=lambda f: -f[0])]


__all__ = ["DIALECTS", "Counts", "Dialect", "Field", "Line", "Sample", "detect", "get"]
