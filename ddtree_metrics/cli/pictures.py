"""The pictures of ``ddtree-logs plot``, each with what it is drawn of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddtree_metrics.diagnosis import Diagnosis
    from ddtree_metrics.log import Log
    from ddtree_metrics.report.facts import Facts


@dataclass(frozen=True, slots=True)
class Subject:
    """What pictures are drawn of: a log, what is said of it, its facts, and the curve that was asked for."""

    log: Log
    diagnosis: Diagnosis
    facts: Facts
    curve: Any

    def comparison(self) -> Any:
        """Return the change of speed that the diagnosis rests on."""
        return self.diagnosis.comparisons[0] if self.diagnosis.comparisons else None

    def budgets(self) -> Any:
        """Return the rows by budget."""
        from ddtree_metrics.metrics import by_budget

        return by_budget(self.facts.rows)


PICTURES: dict[str, Callable[[Any, Subject], Any]] = {
    "overview": lambda plots, of: plots.plot_overview(of.curve, fit=of.diagnosis, sweep=of.facts.sweep),
    "step-time": lambda plots, of: plots.plot_step_time(of.curve, fit=of.diagnosis, sweep=of.facts.sweep),
    "tokens": lambda plots, of: plots.plot_tokens_per_step(of.curve, sweep=of.facts.sweep),
    "speed": lambda plots, of: plots.plot_speed(of.curve, sweep=of.facts.sweep),
    "survival": lambda plots, of: plots.plot_survival(of.facts.acceptance, starts=of.facts.starts),
    "distribution": lambda plots, of: plots.plot_step_time_distribution(of.facts.once),
    "throughput": lambda plots, of: plots.plot_throughput(of.facts.buckets, events=of.facts.marked, starts=of.facts.starts),
    "attribution": lambda plots, of: plots.plot_attribution(of.comparison()),
    "budget": lambda plots, of: plots.plot_budget(of.budgets()),
}
