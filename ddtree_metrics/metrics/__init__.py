"""Everything that divides, bins, fits or averages: pure functions, frame in, frame or frozen dataclass out.

Nothing is guessed: what cannot be told is null (NaN, None), and a column or field named ``reason`` or ``..._why`` says why.
Intervals come from resampling requests, for the steps of one request are not independent.
"""

from ddtree_metrics.metrics.acceptance import Acceptance, acceptance, survival_from_histogram
from ddtree_metrics.metrics.attribution import Attribution, attribute_slowdown
from ddtree_metrics.metrics.budgets import by_budget
from ddtree_metrics.metrics.by_request import BY_REQUEST_COLUMNS, by_request
from ddtree_metrics.metrics.comparison import StepTimeComparison, compare_step_times
from ddtree_metrics.metrics.confounding import Confounding, confounded
from ddtree_metrics.metrics.context import BY_CONTEXT_COLUMNS, by_context
from ddtree_metrics.metrics.counters import reconcile_counters
from ddtree_metrics.metrics.fits import FittedEffect, Share, StepTimeFit, fit_step_time
from ddtree_metrics.metrics.gaps import gaps
from ddtree_metrics.metrics.histograms import context_histogram, merge_histograms, summarise_histogram
from ddtree_metrics.metrics.rates import AcceptRate, RankMean, accept_rate, accept_rates, weighted_mean_over_ranks
from ddtree_metrics.metrics.two_point import (
    Run,
    RunRate,
    SweepCheck,
    TwoPointRate,
    check_sweep,
    implied_tokens,
    run_rate,
    two_point_rate,
)
from ddtree_metrics.metrics.wall_time import WALL_TIME_COLUMNS, wall_time
from ddtree_metrics.metrics.window import WindowKnee, find_window_knee
from ddtree_metrics.steps.decode_windows import (
    LogInterval,
    decode_step_times,
    log_interval,
    steps_from_decode,
)
from ddtree_metrics.steps.repeated_prompts import PromptKeys, prompt_keys
from ddtree_metrics.steps.step_time import step_time_bounds, step_times
from ddtree_metrics.steps.tokens import (
    CommitConvention,
    NodesConvention,
    commit_convention,
    neutral_columns,
    nodes_convention,
)

__all__ = [
    "BY_CONTEXT_COLUMNS",
    "BY_REQUEST_COLUMNS",
    "WALL_TIME_COLUMNS",
    "AcceptRate",
    "Acceptance",
    "Attribution",
    "CommitConvention",
    "Confounding",
    "FittedEffect",
    "LogInterval",
    "NodesConvention",
    "PromptKeys",
    "RankMean",
    "Run",
    "RunRate",
    "Share",
    "StepTimeComparison",
    "StepTimeFit",
    "SweepCheck",
    "TwoPointRate",
    "WindowKnee",
    "accept_rate",
    "accept_rates",
    "acceptance",
    "attribute_slowdown",
    "by_budget",
    "by_context",
    "by_request",
    "check_sweep",
    "commit_convention",
    "compare_step_times",
    "confounded",
    "context_histogram",
    "decode_step_times",
    "find_window_knee",
    "fit_step_time",
    "gaps",
    "implied_tokens",
    "log_interval",
    "merge_histograms",
    "neutral_columns",
    "nodes_convention",
    "prompt_keys",
    "reconcile_counters",
    "run_rate",
    "step_time_bounds",
    "step_times",
    "steps_from_decode",
    "summarise_histogram",
    "survival_from_histogram",
    "two_point_rate",
    "wall_time",
    "weighted_mean_over_ranks",
]
