"""The keywords of ``read``, ``read_*`` and ``iter_*``, and the options of the command line: each is declared here, and nowhere else.

A keyword is a field of a group below, with its type; ``Keyword`` has its meaning, and its flags where the command line has it too. Type
checkers see the groups as the keywords of the functions; ``spelled_out`` shows them to ``help()`` and to completion in notebooks.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, TypedDict, TypeVar
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from ddtree_metrics.coverage import Coverage
    from ddtree_metrics.dialects.base import Dialect
else:
    Coverage = Dialect = Any  # only type checkers ask

F = TypeVar("F", bound=Callable[..., Any])
PathLike = str | Path
Names = str | Sequence[str] | None
Paths = PathLike | IO[bytes] | Sequence[PathLike | IO[bytes]]


@dataclass(frozen=True, slots=True)
class Keyword:
    """What a keyword means.

    Parameters
    ----------
    help : str
        One sentence, for the command line.
    flags : tuple of str
        The options of the command line that set it; none where it has none.
    metavar : str, optional
        What stands for the value there.
    several : bool
        Whether the option may be given more than once.
    default : object
        The value where it is not given.
    """

    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    several: bool = False
    default: Any = None


class SpanKeywords(TypedDict, total=False):
    """Whose lines, and the window."""

    unit: Annotated[Names, Keyword("Lines of this systemd unit.", ("-u", "--unit"), "UNIT", several=True)]
    since: Annotated[str | None, Keyword("From here on: 1h (ago), yesterday, '2026-05-05 12:00', @1767225600.", ("-S", "--since"), "TIME")]
    until: Annotated[str | None, Keyword("Up to here, not included.", ("-U", "--until"), "TIME")]


class WriterKeywords(TypedDict, total=False):
    """Other ways to say whose lines, and of which boot."""

    boot: Annotated[str | int | None, Keyword("One boot only: an id, 0 for the newest, -1 for the one before.", ("-b", "--boot"), "ID|N")]
    user_unit: Annotated[Names, Keyword("Lines of this user unit.", ("--user-unit",), "UNIT", several=True)]
    identifier: Annotated[Names, Keyword("Lines with this SYSLOG_IDENTIFIER.", ("--identifier",), "NAME", several=True)]
    container: Annotated[Names, Keyword("Lines of this container (journald log driver).", ("--container",), "NAME", several=True)]


class PlaceKeywords(TypedDict, total=False):
    """Another journal than the machine's own."""

    directory: Annotated[PathLike | None, Keyword("The journal in this directory.", ("-D", "--directory"), "DIR")]
    files: Annotated[PathLike | Sequence[PathLike] | None, Keyword("These journal files.", ("--file",), "GLOB", several=True)]
    namespace: Annotated[str | None, Keyword("The journal of this namespace.", ("--namespace",), "NAME")]


class ZoneKeywords(TypedDict, total=False):
    """The zone of times that do not name one, and what is taken as now."""

    tz: Annotated[str | ZoneInfo | None, Keyword("Zone of --since, --until and of times that do not say theirs.", ("--tz",), "ZONE")]
    now_us: Annotated[int | None, Keyword("What is taken as now, in microseconds since 1970.")]


class FormKeywords(ZoneKeywords, total=False):
    """How lines are read."""

    dialect: Annotated[
        str | Dialect | Sequence[str | Dialect] | None,
        Keyword("Who wrote the lines; all that are known if not given.", ("--dialect",), "NAME", several=True),
    ]
    dialect_file: Annotated[
        PathLike | Sequence[PathLike] | None, Keyword("A line format of your own.", ("--dialect-file",), "TOML", several=True)
    ]
    on_error: Annotated[
        Literal["warn", "raise", "skip"],
        Keyword("What a broken line does: counted with a warning, an error, or only counted.", ("--on-error",), default="warn"),
    ]
    commit_includes_bonus: Annotated[
        bool | None, Keyword("Commit lengths contain the bonus token; inferred if not given.", ("--bonus/--no-bonus",))
    ]
    nodes_include_root: Annotated[bool | None, Keyword("Node counts contain the root; inferred if not given.", ("--root/--no-root",))]
    progress: Annotated[
        Callable[[Coverage | None], object] | None, Keyword("Called with the account after each batch of lines, and with None at the end.")
    ]


class TextKeywords(SpanKeywords, WriterKeywords, FormKeywords, total=False):
    """The keywords of ``read_text`` and ``iter_text``."""


class JournalKeywords(WriterKeywords, PlaceKeywords, FormKeywords, total=False):
    """The keywords of ``read_journal`` and ``iter_journal``, besides unit, since and until."""


class StoredKeywords(SpanKeywords, ZoneKeywords, total=False):
    """The keywords of ``read_parquet``."""


class ReadKeywords(SpanKeywords, WriterKeywords, PlaceKeywords, FormKeywords, total=False):
    """All of them."""


def keywords_of(group: type) -> dict[str, tuple[Any, Keyword]]:
    """Return the keywords of a group by name, each with its type and its meaning."""
    hints = typing.get_type_hints(group, include_extras=True)
    return {name: (hint.__origin__, hint.__metadata__[0]) for name, hint in hints.items()}


def spelled_out(group: type) -> Callable[[F], F]:
    """Give a function that takes a group as ``**options`` a signature that names its keywords."""

    def spell(function: F) -> F:
        signature = inspect.signature(function)
        named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=keyword.default, annotation=hint)
            for name, (hint, keyword) in keywords_of(group).items()
        ]
        function.__signature__ = signature.replace(parameters=[*named, *more])  # type: ignore[attr-defined]
        return function

    return spell
