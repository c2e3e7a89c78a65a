"""Every error and warning of this library.

::

    DDTreeError                exit code 1
      SourceError              the lines could not be read
        UsageError             2  the call asks for what cannot be, such as standard input twice
        SourceNotFound         3  no such unit, journal, directory or file
        SourceDenied           4  it exists and may not be read
        SourceUnsupported      5  this machine cannot read it (newer format, systemd missing)
        SourceDamaged          6  part was damaged; what was good was read
      DialectError             the lines were read, and not understood
        UnknownDialect         2  no dialect of that name
        BrokenLine                a line has a marker but breaks its form (``--on-error raise``)
      TimeError                2  an instant that cannot be read, or a window that is empty
      OutputError              1  the result could not be written; 2 where the call was wrong
      SchemaError              a table has not the columns that were asked for
      JoinError                steps and requests cannot be joined
      MetricError              a metric cannot be computed from what was given
      BenchError               a measurement could not be made

    DDTreeWarning              the work goes on, and the reader should know

A message says what, where and what to do, in one sentence. Programs read the attributes.
"""

from __future__ import annotations

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_DENIED = 4
EXIT_UNSUPPORTED = 5
EXIT_DAMAGED = 6


class DDTreeError(Exception):
    """The base of every error that this library raises on purpose."""

    exit_code = EXIT_ERROR


class SourceError(DDTreeError):
    """The lines could not be read."""


class UsageError(SourceError):
    """The call asks for what cannot be done, such as to read standard input twice."""

    exit_code = EXIT_USAGE


class SourceNotFound(SourceError):
    """No such unit, journal, directory or file."""

    exit_code = EXIT_NOT_FOUND


class SourceDenied(SourceError):
    """It exists, and this user may not read it."""

    exit_code = EXIT_DENIED


class SourceUnsupported(SourceError):
    """It cannot be read on this machine: a newer format, or a part of systemd is missing."""

    exit_code = EXIT_UNSUPPORTED


class SourceDamaged(SourceError):
    """Part of it was damaged; what was good was read."""

    exit_code = EXIT_DAMAGED


class DialectError(DDTreeError):
    """The lines were read, and could not be understood."""


class UnknownDialect(DialectError):
    """No dialect has that name, or its description cannot be used."""

    exit_code = EXIT_USAGE


class BrokenLine(DialectError):
    """A line has a dialect's marker but breaks its form.

    Attributes
    ----------
    where : str
        Where the line stands, ``run.log:118`` or ``journal:<cursor>``.
    line : str
        The text, cut to 200 characters.
    reason : str
        What is wrong with it, one of a short fixed list.
    """

    def __init__(self, where: str, line: str, reason: str) -> None:
        self.where = where
        self.line = line[:200]
        self.reason = reason
        super().__init__(f"{where}: broken line ({reason}): {self.line!r}; use on_error='warn' to count it and go on")


class TimeError(DDTreeError):
    """An instant that cannot be read, or a window that holds nothing by construction."""

    exit_code = EXIT_USAGE


class OutputError(DDTreeError):
    """The result could not be written; nothing half-written was left."""

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        if usage:
            self.exit_code = EXIT_USAGE


class SchemaError(DDTreeError):
    """A table has not the columns that were asked for, or is of a schema this version cannot read."""


class JoinError(DDTreeError):
    """Steps and requests cannot be joined."""


class MetricError(DDTreeError):
    """A metric cannot be computed from what was given."""


class BenchError(DDTreeError):
    """A measurement could not be made."""


class DDTreeWarning(UserWarning):
    """The work goes on, and the reader should know; once a cause, with a count."""
