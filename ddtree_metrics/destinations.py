"""Where an export goes: which tables, which files, and what the parts of a dataset are called."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from ddtree_metrics.errors import OutputError
from ddtree_metrics.keywords import PathLike, ReadKeywords
from ddtree_metrics.records import TABLES
from ddtree_metrics.tables.writers import FORMATS
from ddtree_metrics.times import EPOCH

IN_A_FOLDER = ("steps", "decode", "prefill", "servers", "events", "requests", "request_steps")
"""What is written into a folder where no table is chosen; ``request_lines`` are in ``requests``."""
OF_REQUESTS = ("requests", "request_steps")
"""The tables that are made of others when all lines are read."""


def is_folder(output: PathLike | None) -> bool:
    """Whether every table is to go into a folder."""
    return output is not None and str(output) != "-" and (str(output).endswith("/") or Path(output).is_dir())


def chosen_tables(tables: Iterable[str], output: PathLike | None, *, with_requests: bool) -> tuple[str, ...]:
    """Return the tables that are written: those that are asked for, ``all``, or what the kind of destination suggests."""
    asked = tuple(dict.fromkeys(tables))
    if "all" in asked:
        return tuple(TABLES)
    unknown = next((name for name in asked if name not in TABLES), None)
    if unknown is not None:
        raise OutputError(f"no table {unknown!r}; there are {', '.join(TABLES)}, and 'all'", usage=True)
    return asked or (IN_A_FOLDER if is_folder(output) else ("steps", "request_steps") if with_requests else ("steps",))


def files_of(names: tuple[str, ...], output: PathLike | None, format: str | None, end_us: int) -> dict[str, PathLike]:
    """Say into which file each table goes.

    Parameters
    ----------
    names : tuple of str
        The tables.
    output : str, Path or None
        A folder (it is there, or its name ends in ``/``) for a file each; a file, beside which further tables have theirs; ``-`` for
        stdout; or nothing, for files in this folder that are named after the end of the window.
    format : str or None
        The format, where no suffix says it.
    end_us : int
        The end of the window.
    """
    suffix = FORMATS[format or "parquet"][0]
    if output is None:
        stamp = (EPOCH + timedelta(microseconds=end_us)).strftime("%Y%m%dT%H%M%SZ")
        return {name: Path(f"ddtree-{name}-{stamp}{suffix}") for name in names}
    if is_folder(output):
        return {name: Path(output) / f"{name}{suffix}" for name in names}
    if str(output) == "-":
        if len(names) > 1:
            raise OutputError(f"stdout takes one table, not {', '.join(names)}; choose one with -t, or give a folder (-o DIR/)", usage=True)
        return {names[0]: "-"}
    path = Path(output)
    return {name: path if i == 0 else path.with_name(f"{path.stem}.{name}{path.suffix}") for i, name in enumerate(names)}


def dataset_source(files: Iterable[str], read: str, end_us: int, keywords: ReadKeywords) -> str:
    """Name what is read, so that writing it again replaces its parts of a dataset and anything else is added to it."""
    whole = [name if name == "-" else str(Path(name).resolve()) for name in files]
    window = [f"{word} {text}" for word, text in (("since", keywords.get("since")), ("until", keywords.get("until"))) if text is not None]
    if keywords.get("since") is not None and not whole:
        window.append(f"read {(EPOCH + timedelta(microseconds=end_us)).strftime('%Y%m%dT%H%M%SZ')}")
    unit = keywords.get("unit") or ()
    return " ".join([*window, *([unit] if isinstance(unit, str) else unit), *(whole or [read])])


def refuse_inputs(outputs: Iterable[PathLike], inputs: Iterable[PathLike | None]) -> None:
    """Refuse to write over what is read: the same file by whatever name or link, or one in a folder that is read."""
    places = [str(place) for place in inputs if place]
    for output in outputs:
        for place in places:
            if "-" not in (str(output), place) and _holds(Path(place), Path(output)):
                raise OutputError(f"{output} is read, and would be replaced by what comes of it; write it elsewhere", usage=True)


def _holds(place: Path, output: Path) -> bool:
    """Whether a place that is read is this file, or a folder with it."""
    try:
        if output.samefile(place):
            return True
        return place.is_dir() and output.is_file() and any(above.samefile(place) for above in Path(os.path.realpath(output)).parents)
    except OSError:  # one of them is not there
        return False
