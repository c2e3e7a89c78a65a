"""Why was speculative decoding slow? Step time and tokens per step, from log lines that are already there.

>>> import ddtree_metrics as ddt
>>> log = ddt.read("run.log.gz")  # doctest: +SKIP
>>> log.coverage  # doctest: +SKIP

Names are imported when they are first used, so that importing the package loads no pandas, pyarrow or matplotlib.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "iterating": ("iter_journal", "iter_text"),
    "log": ("Log", "read", "read_journal", "read_text", "read_parquet"),
    "requests": ("complement_requests", "read_requests", "requests_from_log"),
    "join": ("join_batches", "join_requests"),
    "coverage": ("Coverage",),
    "steps.conventions": ("Conventions",),
    "dialects": ("DIALECTS",),
    "dialects.base": ("Dialect",),
    "dialects.custom": ("load_dialect",),
    "records": ("TreeStep", "DecodeBatch", "PrefillBatch", "ServerStart", "Event", "Request", "RequestLine", "RequestStep", "TABLES"),
    "schema": ("SCHEMA_VERSION", "arrow_schema", "columns"),
    "metrics": (
        "acceptance",
        "accept_rate",
        "accept_rates",
        "attribute_slowdown",
        "by_budget",
        "by_context",
        "by_request",
        "check_sweep",
        "commit_convention",
        "confounded",
        "compare_step_times",
        "context_histogram",
        "decode_step_times",
        "find_window_knee",
        "fit_step_time",
        "gaps",
        "implied_tokens",
        "merge_histograms",
        "neutral_columns",
        "nodes_convention",
        "reconcile_counters",
        "run_rate",
        "step_time_bounds",
        "step_times",
        "steps_from_decode",
        "summarise_histogram",
        "two_point_rate",
        "wall_time",
        "weighted_mean_over_ranks",
    ),
    "diagnosis": ("diagnose",),
    "plots": (
        "plot_attribution",
        "plot_budget",
        "plot_overview",
        "plot_speed",
        "plot_step_time",
        "plot_step_time_distribution",
        "plot_survival",
        "plot_throughput",
        "plot_tokens_per_step",
        "render_figure",
        "save_figure",
    ),
    "report": ("render_report",),
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
    from ddtree_metrics.coverage import Coverage as Coverage
    from ddtree_metrics.diagnosis import diagnose as diagnose
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
    from ddtree_metrics.iterating import iter_journal as iter_journal
    from ddtree_metrics.iterating import iter_text as iter_text
    from ddtree_metrics.join import join_batches as join_batches
    from ddtree_metrics.join import join_requests as join_requests
    from ddtree_metrics.log import Log as Log
    from ddtree_metrics.log import read as read
    from ddtree_metrics.log import read_journal as read_journal
    from ddtree_metrics.log import read_parquet as read_parquet
    from ddtree_metrics.log import read_text as read_text
    from ddtree_metrics.metrics import accept_rate as accept_rate
    from ddtree_metrics.metrics import accept_rates as accept_rates
    from ddtree_metrics.metrics import acceptance as acceptance
    from ddtree_metrics.metrics import attribute_slowdown as attribute_slowdown
    from ddtree_metrics.metrics import by_budget as by_budget
    from ddtree_metrics.metrics import by_context as by_context
    from ddtree_metrics.metrics import by_request as by_request
    from ddtree_metrics.metrics import check_sweep as check_sweep
    from ddtree_metrics.metrics import commit_convention as commit_convention
    from ddtree_metrics.metrics import compare_step_times as compare_step_times
    from ddtree_metrics.metrics import confounded as confounded
    from ddtree_metrics.metrics import context_histogram as context_histogram
    from ddtree_metrics.metrics import decode_step_times as decode_step_times
    from ddtree_metrics.metrics import find_window_knee as find_window_knee
    from ddtree_metrics.metrics import fit_step_time as fit_step_time
    from ddtree_metrics.metrics import gaps as gaps
    from ddtree_metrics.metrics import implied_tokens as implied_tokens
    from ddtree_metrics.metrics import merge_histograms as merge_histograms
    from ddtree_metrics.metrics import neutral_columns as neutral_columns
    from ddtree_metrics.metrics import nodes_convention as nodes_convention
    from ddtree_metrics.metrics import reconcile_counters as reconcile_counters
    from ddtree_metrics.metrics import run_rate as run_rate
    from ddtree_metrics.metrics import step_time_bounds as step_time_bounds
    from ddtree_metrics.metrics import step_times as step_times
    from ddtree_metrics.metrics import steps_from_decode as steps_from_decode
    from ddtree_metrics.metrics import summarise_histogram as summarise_histogram
    from ddtree_metrics.metrics import two_point_rate as two_point_rate
    from ddtree_metrics.metrics import wall_time as wall_time
    from ddtree_metrics.metrics import weighted_mean_over_ranks as weighted_mean_over_ranks
    from ddtree_metrics.plots import plot_attribution as plot_attribution
    from ddtree_metrics.plots import plot_budget as plot_budget
    from ddtree_metrics.plots import plot_overview as plot_overview
    from ddtree_metrics.plots import plot_speed as plot_speed
    from ddtree_metrics.plots import plot_step_time as plot_step_time
    from ddtree_metrics.plots import plot_step_time_distribution as plot_step_time_distribution
    from ddtree_metrics.plots import plot_survival as plot_survival
    from ddtree_metrics.plots import plot_throughput as plot_throughput
    from ddtree_metrics.plots import plot_tokens_per_step as plot_tokens_per_step
    from ddtree_metrics.plots import render_figure as render_figure
    from ddtree_metrics.plots import save_figure as save_figure
    from ddtree_metrics.records import TABLES as TABLES
    from ddtree_metrics.records import DecodeBatch as DecodeBatch
    from ddtree_metrics.records import Event as Event
    from ddtree_metrics.records import PrefillBatch as PrefillBatch
    from ddtree_metrics.records import Request as Request
    from ddtree_metrics.records import RequestLine as RequestLine
    from ddtree_metrics.records import RequestStep as RequestStep
    from ddtree_metrics.records import ServerStart as ServerStart
    from ddtree_metrics.records import TreeStep as TreeStep
    from ddtree_metrics.report import render_report as render_report
    from ddtree_metrics.requests import complement_requests as complement_requests
    from ddtree_metrics.requests import read_requests as read_requests
    from ddtree_metrics.requests import requests_from_log as requests_from_log
    from ddtree_metrics.schema import SCHEMA_VERSION as SCHEMA_VERSION
    from ddtree_metrics.schema import arrow_schema as arrow_schema
    from ddtree_metrics.schema import columns as columns
    from ddtree_metrics.steps.conventions import Conventions as Conventions


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'ddtree_metrics' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ddtree_metrics.{_MODULE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
