"""Why was speculative decoding slow? Step time and tokens per step, from log lines that are already there.

>>> import ddtree_metrics as ddt
>>> log = ddt.read_text("run.log.gz")  # doctest: +SKIP
>>> log.coverage  # doctest: +SKIP

Names are imported when they are first used, so that importing the package loads no pandas, pyarrow or matplotlib.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE: dict[str, tuple[str, ...]] = {
    "coverage": ("Coverage",),
    "conventions": ("Conventions",),
    "dialects": ("DIALECTS",),
    "dialects.base": ("Dialect",),
    "dialects.custom": ("load_dialect",),
    "records": ("TreeStep", "DecodeBatch", "PrefillBatch", "ServerStart", "Event", "Request", "RequestLine", "RequestStep", "TABLES"),
    "schema": ("SCHEMA_VERSION", "arrow_schema", "columns"),
    "errors": (
        "DDTreeError",
        "SourceError",
        "SourceNotFound",
        "SourceDenied",
        "SourceUnsupported",
        "SourceDamaged",
        "UsageError",
        "DialectError",
        "UnknownDialect",
        "BrokenLine",
        "TimeError",
        "OutputError",
        "SchemaError",
        "JoinError",
        "MetricError",
        "BenchError",
        "DDTreeWarning",
    ),
}
_MODULE = {name: module for module, names in _WHERE.items() for name in names}

__all__ = sorted(_MODULE)

if TYPE_CHECKING:
    from ddtree_metrics.conventions import Conventions as Conventions
    from ddtree_metrics.coverage import Coverage as Coverage
    from ddtree_metrics.dialects import DIALECTS as DIALECTS
    from ddtree_metrics.dialects.base import Dialect as Dialect
    from ddtree_metrics.dialects.custom import load_dialect as load_dialect
    from ddtree_metrics.errors import BenchError as BenchError
    from ddtree_metrics.errors import BrokenLine as BrokenLine
    from ddtree_metrics.errors import DDTreeError as DDTreeError
    from ddtree_metrics.errors import DDTreeWarning as DDTreeWarning
    from ddtree_metrics.errors import DialectError as DialectError
    from ddtree_metrics.errors import JoinError as JoinError
    from ddtree_metrics.errors import MetricError as MetricError
    from ddtree_metrics.errors import OutputError as OutputError
    from ddtree_metrics.errors import SchemaError as SchemaError
    from ddtree_metrics.errors import SourceDamaged as SourceDamaged
    from ddtree_metrics.errors import SourceDenied as SourceDenied
    from ddtree_metrics.errors import SourceError as SourceError
    from ddtree_metrics.errors import SourceNotFound as SourceNotFound
    from ddtree_metrics.errors import SourceUnsupported as SourceUnsupported
    from ddtree_metrics.errors import TimeError as TimeError
    from ddtree_metrics.errors import UnknownDialect as UnknownDialect
    from ddtree_metrics.errors import UsageError as UsageError
    from ddtree_metrics.records import TABLES as TABLES
    from ddtree_metrics.records import DecodeBatch as DecodeBatch
    from ddtree_metrics.records import Event as Event
    from ddtree_metrics.records import PrefillBatch as PrefillBatch
    from ddtree_metrics.records import Request as Request
    from ddtree_metrics.records import RequestLine as RequestLine
    from ddtree_metrics.records import RequestStep as RequestStep
    from ddtree_metrics.records import ServerStart as ServerStart
    from ddtree_metrics.records import TreeStep as TreeStep
    from ddtree_metrics.schema import SCHEMA_VERSION as SCHEMA_VERSION
    from ddtree_metrics.schema import arrow_schema as arrow_schema
    from ddtree_metrics.schema import columns as columns


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'ddtree_metrics' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ddtree_metrics.{_MODULE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_MODULE]
