"""The numbers of ``watch`` for Prometheus: counters and histograms by context, which no engine publishes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ddtree_metrics.errors import SourceUnsupported
from ddtree_metrics.live.alerts import RULE_NAMES
from ddtree_metrics.live.rolling import UNKNOWN, bins_of, name_of
from ddtree_metrics.live.watching import Snapshot, Watch
from ddtree_metrics.steps.basis import Basis
from ddtree_metrics.steps.frames import Bools, Floats

STEP_BUCKETS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.5, 1.0, 2.0, 5.0)
"""Seconds."""
TOKEN_BUCKETS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0)
"""Tokens of one request in one step."""

NAMES = (
    "ddtree_step_time_seconds",
    "ddtree_tokens_per_step",
    "ddtree_lines_total",
    "ddtree_lost_lines_total",
    "ddtree_events_total",
    "ddtree_running_requests",
    "ddtree_last_step_timestamp_seconds",
    "ddtree_baseline_ratio",
    "ddtree_alert",
)
"""The families that are published."""


class _ByContext:
    """Counts by context and bucket, the last bucket without an end, and sums by context."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.counts = np.zeros((UNKNOWN + 1, len(buckets) + 1))
        self.sums = np.zeros(UNKNOWN + 1)

    def add(self, bins: Any, values: Floats, weight: Floats) -> None:
        known = np.isfinite(values)
        np.add.at(self.counts, (bins[known], np.searchsorted(self.buckets, values[known], side="left")), weight[known])
        np.add.at(self.sums, bins[known], (weight * values)[known])

    def rows(self) -> Iterator[tuple[str, list[tuple[str, float]], float]]:
        """Yield context, cumulative buckets and sum, of each context that was seen."""
        for b in np.flatnonzero(self.counts.sum(axis=1)):
            rising = np.cumsum(self.counts[b])
            ends = [*(f"{x:g}" for x in self.buckets), "+Inf"]
            yield name_of(int(b)), [(end, float(n)) for end, n in zip(ends, rising, strict=True)], float(self.sums[b])


class Exposition:
    """What a scrape gets.

    Parameters
    ----------
    watch : Watch
        Whose rows are counted with ``add``.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._step, self._tokens = _ByContext(STEP_BUCKETS), _ByContext(TOKEN_BUCKETS)
        self._newest: float | None = None
        self.snapshot: Snapshot | None = None

    def add(self, basis: Basis, fresh: Bools) -> None:
        """Count new rows; a row of a window counts for its steps."""
        bins, weight = bins_of(basis.context[fresh]), np.asarray(basis.row_steps[fresh], dtype=np.float64)
        self._step.add(bins, basis.step_ms[fresh] / 1000, weight)
        self._tokens.add(bins, basis.tokens[fresh], weight)
        if fresh.any():
            self._newest = float(basis.time_us[fresh].max()) / 1e6

    def collect(self) -> Iterator[Any]:
        """Yield the families of metrics, as ``prometheus_client`` asks a collector for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for name, meaning, histogram in (
            ("ddtree_step_time_seconds", "Time of a decode step as each request saw it, by context length.", self._step),
            ("ddtree_tokens_per_step", "Tokens of one request in one decode step, by context length.", self._tokens),
        ):
            family = HistogramMetricFamily(name, meaning, labels=["context"])
            for context, buckets, total in histogram.rows():
                family.add_metric([context], buckets, total)
            yield family
        lines = CounterMetricFamily("ddtree_lines", "Lines that were read.")
        lines.add_metric([], self._watch.reading.coverage.lines)
        lost = CounterMetricFamily("ddtree_lost_lines", "Lines that journald says it dropped, at least.")
        lost.add_metric([], self._watch.lost_lines)
        events = CounterMetricFamily("ddtree_events", "What broke a run of steps: restarts, retractions and the like.", labels=["kind"])
        for kind, count in sorted(self._watch.kinds.items()):
            events.add_metric([kind], count)
        yield from (lines, lost, events)
        if self._newest is not None:
            yield GaugeMetricFamily("ddtree_last_step_timestamp_seconds", "When the newest step was logged.", value=self._newest)
        s = self.snapshot
        if s is None:
            return
        batch = s.spans["1 min"].batch
        if batch is not None:
            yield GaugeMetricFamily("ddtree_running_requests", "Requests in a decode step, in the mean of a minute.", value=batch)
        ratio = GaugeMetricFamily("ddtree_baseline_ratio", "Five minutes by the baseline, at equal context.", labels=["quantity"])
        for quantity, value in (("step_time", s.step_ratio), ("tokens_per_step", s.tokens_ratio)):
            if value is not None:
                ratio.add_metric([quantity], value)
        alert = GaugeMetricFamily("ddtree_alert", "1 while the alert holds.", labels=["rule"])
        for rule in RULE_NAMES:
            alert.add_metric([rule], float(any(a.rule == rule for a in s.alerts)))
        yield from (ratio, alert)


def serve(exposition: Exposition, host: str, port: int) -> Any:
    """Answer scrapes at ``/metrics`` on a thread; return the server, to shut it down.

    Raises
    ------
    SourceUnsupported
        If ``prometheus_client`` is not installed, or the address cannot be had.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise SourceUnsupported("--listen needs prometheus_client: pip install 'ddtree-metrics[watch]'") from None
    registry = CollectorRegistry()
    registry.register(exposition)  # type: ignore[arg-type,unused-ignore]
    try:
        server, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise SourceUnsupported(f"cannot listen on {host}:{port}: {error.strerror}; choose another with --listen HOST:PORT") from None
    return server
