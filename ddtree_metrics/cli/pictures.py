"""The pictures of ``ddtree-logs plot``, each with what it is drawn of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddtree_metrics.log import Log
    from ddtree_metrics.report.facts import Facts


@dataclass(frozen=True, slots=True)
class Subject:
    """What pictures are drawn of: a log, its facts, and the curve that was asked for with its fit."""

    log: Log
    facts: Facts
    curve: Any
    fit: Any

    def comparison(self) -> Any:
        """Return the change of speed that the diagnosis rests on."""
        from ddtree_metrics.diagnosis import diagnose

        found = diagnose(self.log)
        return found.comparisons[0] if found.comparisons else None

    def budgets(self) -> Any:
        """Return the rows by budget."""
        from ddtree_metrics.metrics import by_budget

        return by_budget(self.facts.rows)


PICTURES: dict[str, Callable[[Any, Subject], Any]] = {
    "overview": lambda plots, of: plots.plot_overview(of.curve, fit=of.fit, sweep=of.facts.sweep),
    "step-time": lambda plots, of: plots.plot_step_time(of.curve, fit=of.fit, sweep=of.facts.sweep),
    "tokens": lambda plots, of: plots.plot_tokens_per_step(of.curve, sweep=of.facts.sweep),
    "speed": lambda plots, of: plots.plot_speed(of.curve, sweep=of.facts.sweep),
    "survival": lambda plots, of: plots.plot_survival(of.facts.acceptance),
    "distribution": lambda plots, of: plots.plot_step_time_distribution(of.facts.once),
    "throughput": lambda plots, of: plots.plot_throughput(of.facts.steps, events=of.log.events),
    "attribution": lambda plots, of: plots.plot_attribution(of.comparison()),
    "budget": lambda plots, of: plots.plot_budget(of.budgets()),
}
