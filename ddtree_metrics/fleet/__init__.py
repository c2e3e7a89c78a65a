"""The analyses of steps over a lake of many hosts, on engines that exist: DuckDB in this process, or Spark, through Ibis.

No row goes through Python: an engine counts and adds up (``added_up``) the rows that count (``counted``), and what comes back is a few
thousand sums, of which means, quantiles and curves are made by the functions that make them of a log in memory.
"""

from __future__ import annotations

from ddtree_metrics.fleet.analyses import Analysis, Dataset, open_dataset

__all__ = ["Analysis", "Dataset", "open_dataset"]
