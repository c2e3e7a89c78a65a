"""The public names and the modules that they stand in: for type checkers, and for ``__init__.py``, which reads this file."""

from .coverage import (
    Coverage as Coverage,
)
from .diagnosis import (
    diagnose as diagnose,
)
from .dialects import (
    DIALECTS as DIALECTS,
)
from .dialects.base import (
    Dialect as Dialect,
)
from .dialects.custom import (
    load_dialect as load_dialect,
)
from .errors import (
    BenchError as BenchError,
    BrokenLine as BrokenLine,
    DDTreeError as DDTreeError,
    DDTreeWarning as DDTreeWarning,
    DialectError as DialectError,
    JoinError as JoinError,
    MetricError as MetricError,
    OutputError as OutputError,
    SchemaError as SchemaError,
    SourceDamaged as SourceDamaged,
    SourceDenied as SourceDenied,
    SourceError as SourceError,
    SourceNotFound as SourceNotFound,
    SourceUnsupported as SourceUnsupported,
    TimeError as TimeError,
    UnknownDialect as UnknownDialect,
    UsageError as UsageError,
)
from .exporting import (
    export as export,
)
from .iterating import (
    iter_journal as iter_journal,
    iter_text as iter_text,
)
from .fleet import (
    open_dataset as open_dataset,
)
from .join import (
    join_batches as join_batches,
    join_requests as join_requests,
)
from .loading import (
    read as read,
    read_journal as read_journal,
    read_parquet as read_parquet,
    read_text as read_text,
)
from .log import (
    Log as Log,
)
from .metrics import (
    accept_rate as accept_rate,
    accept_rates as accept_rates,
    acceptance as acceptance,
    attribute_slowdown as attribute_slowdown,
    by_budget as by_budget,
    by_context as by_context,
    by_request as by_request,
    check_sweep as check_sweep,
    commit_convention as commit_convention,
    compare_step_times as compare_step_times,
    confounded as confounded,
    context_histogram as context_histogram,
    decode_step_times as decode_step_times,
    find_window_knee as find_window_knee,
    fit_step_time as fit_step_time,
    gaps as gaps,
    implied_tokens as implied_tokens,
    merge_histograms as merge_histograms,
    neutral_columns as neutral_columns,
    nodes_convention as nodes_convention,
    reconcile_counters as reconcile_counters,
    run_rate as run_rate,
    step_time_bounds as step_time_bounds,
    step_times as step_times,
    steps_from_decode as steps_from_decode,
    summarise_histogram as summarise_histogram,
    two_point_rate as two_point_rate,
    wall_time as wall_time,
    weighted_mean_over_ranks as weighted_mean_over_ranks,
)
from .plots import (
    plot_attribution as plot_attribution,
    plot_budget as plot_budget,
    plot_overview as plot_overview,
    plot_speed as plot_speed,
    plot_step_time as plot_step_time,
    plot_step_time_distribution as plot_step_time_distribution,
    plot_survival as plot_survival,
    plot_throughput as plot_throughput,
    plot_tokens_per_step as plot_tokens_per_step,
    render_figure as render_figure,
    save_figure as save_figure,
)
from .records import (
    TABLES as TABLES,
    DecodeBatch as DecodeBatch,
    Event as Event,
    PrefillBatch as PrefillBatch,
    Request as Request,
    RequestLine as RequestLine,
    RequestStep as RequestStep,
    ServerStart as ServerStart,
    TreeStep as TreeStep,
)
from .report import (
    render_report as render_report,
)
from .requests import (
    complement_requests as complement_requests,
    read_requests as read_requests,
    requests_from_log as requests_from_log,
)
from .schema import (
    SCHEMA_VERSION as SCHEMA_VERSION,
    arrow_schema as arrow_schema,
    columns as columns,
)
from .steps.conventions import (
    Conventions as Conventions,
)

__version__: str
