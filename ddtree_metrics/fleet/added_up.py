"""Counts and sums over the rows of a lake, as expressions: each is a filter and one group-by, so that files, days and hosts add up.

There is no window function, no sort and no join over steps: an engine adds up where the rows are, and moves the sums only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddtree_metrics.metrics.histograms import GROWTH

if TYPE_CHECKING:
    import ibis.expr.types as ir

COUNTS = ("n", "n_timed", "sum_us", "n_tokens", "sum_tokens", "steps", "timed_steps", "steps_us", "requests")
"""What is counted of a group; all of them add up."""


def bucketed(rows: ir.Table) -> ir.Table:
    """Add ``bucket``, that of ``metrics.histograms``: floor(ln(us) / ln(1.01)), and -1 without a step time."""
    import ibis

    place = (rows.step_us.cast("float64").ln() / math.log(GROWTH)).floor().cast("int32")
    return rows.mutate(bucket=ibis.ifelse(rows.step_us.notnull(), place, ibis.literal(-1, type="int32")))


def binned(rows: ir.Table, width: float, edges: Sequence[float] | None) -> ir.Table:
    """Add ``bin``, the bin of context from 0; null where the context is not known, or outside of the edges."""
    import ibis

    if edges is None:
        return rows.mutate(bin=(rows.context_len / width).floor().cast("int32"))
    limits = [float(edge) for edge in edges]
    inside = (rows.context_len >= limits[0]) & (rows.context_len < limits[-1])
    place: Any = ibis.literal(0, type="int32")
    for edge in limits[1:-1]:
        place = place + (rows.context_len >= edge).cast("int32")
    return rows.mutate(bin=ibis.ifelse(inside, place, None).cast("int32"))


def added(table: ir.Table, by: Sequence[str]) -> ir.Table:
    """Add up the counts of groups that become one; a group that is its own stays as it is."""
    counts = [name for name in table.columns if name not in by]
    return table.group_by(list(by)).aggregate(**{name: table[name].sum() for name in counts})


def histogram(rows: ir.Table, by: Sequence[str], *, width: float, edges: Sequence[float] | None, once: bool) -> ir.Table:
    """Count rows by context and step time.

    Parameters
    ----------
    rows : ibis Table
        Of ``counted_rows``.
    by : sequence of str
        Columns that tell groups apart.
    width, edges
        The bins, as for ``context_histogram``.
    once : bool
        Whether to count steps besides, each once, and requests where they begin: ``steps``, ``steps_us``, ``requests``.
    """
    cells = bucketed(binned(rows, width, edges))
    sums = {
        "n": cells.count(),
        "sum_us": cells.step_us.sum().fill_null(0),
        "n_tokens": cells.tokens.count(),
        "sum_tokens": cells.tokens.sum().fill_null(0.0),
    }
    if once:
        sums |= {
            "steps": cells.weight.sum(),
            "steps_us": (cells.weight * cells.step_us).sum().fill_null(0.0),
            "requests": cells.begins.sum(),
        }
    return cells.group_by([*by, "bin", "bucket"]).aggregate(**sums)


def sums(rows: ir.Table, by: Sequence[str]) -> ir.Table:
    """Count rows, steps and requests of each group, and sum their step times and tokens: ``COUNTS``."""
    timed = rows.step_us.notnull()
    groups: Any = rows.group_by(list(by)) if by else rows
    return groups.aggregate(
        n=rows.count(),
        n_timed=rows.step_us.count(),
        sum_us=rows.step_us.sum().fill_null(0),
        n_tokens=rows.tokens.count(),
        sum_tokens=rows.tokens.sum().fill_null(0.0),
        steps=rows.weight.sum(),
        timed_steps=rows.weight.sum(where=timed).fill_null(0.0),
        steps_us=(rows.weight * rows.step_us).sum().fill_null(0.0),
        requests=rows.begins.sum(),
    )


def with_means(table: ir.Table) -> ir.Table:
    """Add the means of what was counted: ``tokens_per_step``, ``step_time_ms`` (as request-steps saw it) and ``tok_per_s``."""
    tokens, ms = table.sum_tokens / table.n_tokens.nullif(0), table.sum_us / table.n_timed.nullif(0) / 1000.0
    return table.mutate(tokens_per_step=tokens, step_time_ms=ms, tok_per_s=1000.0 * tokens / ms)


def depths(rows: ir.Table, by: Sequence[str]) -> ir.Table:
    """Count rows by how many drafts were accepted."""
    known = rows.filter(rows.drafts >= 0)
    cells = known.mutate(depth=known.drafts.floor().cast("int32"))
    return cells.group_by([*by, "depth"]).aggregate(n=cells.count())


def mixed(rows: ir.Table, by: Sequence[str], growth: float) -> ir.Table:
    """Count rows by context, in classes of this growth, and by batch: what two groups are compared at equal values of."""
    held = rows.mutate(
        class_=((rows.context_len + 1).cast("float64").ln() / math.log(growth)).floor().cast("int32"),
        timed=rows.step_us.notnull(),
        told=rows.tokens.notnull(),
    )
    return held.group_by([*by, "class_", "batch_size", "timed", "told"]).aggregate(
        n=held.count(), context_len=held.context_len.sum(), step_us=held.step_us.sum(), tokens=held.tokens.sum()
    )


def streams(rows: ir.Table) -> ir.Table:
    """Return a row a stream: where it is from, when it began and ended, and whether it took another's place."""
    anew = rows.step_why.isin(["restart", "boot"]).fill_null(False).cast("int64")
    table = rows.mutate(anew=anew)
    return table.group_by(["host", "unit", "boot_id", "stream"]).aggregate(
        first_us=table.time_us.min(), last_us=table.time_us.max(), anew=table.anew.max(), n=table.count()
    )
