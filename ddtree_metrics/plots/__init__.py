"""Pictures for a post-mortem: each takes a frame and an ``Axes``, draws, and returns the ``Axes``.

Without an ``Axes`` a figure is made that is readable at half a page. A title says what is seen, an axis what is measured. Server starts are
series: colours are those of Okabe and Ito (2008), told apart by people who see few of them, and each has its own marker besides. The number
of steps behind a point stands below the x axis; a hollow point has no interval. Where there is nothing to draw, the picture is a sentence
that says why.

Nothing here touches pyplot: a figure belongs to whoever holds it.
"""

from __future__ import annotations

from ddtree_metrics.plots.curves import plot_overview, plot_speed, plot_step_time, plot_tokens_per_step
from ddtree_metrics.plots.distributions import plot_step_time_distribution, plot_survival
from ddtree_metrics.plots.figure_files import render_figure, save_figure
from ddtree_metrics.plots.share_pictures import plot_attribution, plot_budget
from ddtree_metrics.plots.timeline import plot_throughput

__all__ = [
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
]
