"""Which rows count, as an expression: the rules of ``steps.basis_rows``, whose constants stand there; a test holds both equal.

One row is a request-step. Where a lake has no ``request_steps``, a row is a step line: its tokens are the mean over the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddtree_metrics.steps.basis_rows import ABSURD_CONTEXT, ABSURD_MS, ABSURD_TOKENS, FAR_OFF_SHARE, FAR_OFF_TOKENS
from ddtree_metrics.steps.own_requests import OWN_KINDS

if TYPE_CHECKING:
    import ibis.expr.types as ir

KEYS = ("host", "unit", "date", "stream", "boot_id", "time_us", "step_why")
"""What rows are grouped and chosen by."""


def counted_rows(table: ir.Table, *, joined: bool) -> ir.Table:
    """Return the rows that numbers rest on, each value null where it cannot be used.

    Parameters
    ----------
    table : ibis Table
        ``request_steps`` or ``steps`` of a lake.
    joined : bool
        Whether it is ``request_steps``.

    Returns
    -------
    ibis Table
        ``KEYS``; ``step_us``, ``tokens``, ``context_len``, ``drafts``, ``draft_nodes``, ``budget``, ``batch_size``; ``weight``, the share
        of the step that is the row's; ``begins``, 1 for the first step of a request.
    """
    import ibis

    rows = _request_steps(table) if joined else _step_lines(table)
    if "date" not in rows.columns:
        rows = rows.mutate(date=rows.time.date().cast("string"))
    absurd = ((rows.step_us.abs() > int(ABSURD_MS * 1000)) | (rows.tokens.abs() > ABSURD_TOKENS)).fill_null(False)
    held = ibis.ifelse((rows.context_len >= 0) & (rows.context_len <= int(ABSURD_CONTEXT)), rows.context_len, None)
    off = rows.reconciled.abs()
    far = ((off > FAR_OFF_TOKENS) & (off * round(1 / FAR_OFF_SHARE) > held)).fill_null(False)
    batch = ibis.ifelse(rows.batch_size >= 1, rows.batch_size, None)
    return rows.select(
        *(rows[name] for name in KEYS),
        step_us=ibis.ifelse((rows.step_us > 0) & ~absurd, rows.step_us, None),
        tokens=ibis.ifelse((rows.tokens >= 0) & ~absurd, rows.tokens, None),
        context_len=ibis.ifelse(far, None, held),
        drafts=rows.drafts,
        draft_nodes=rows.draft_nodes,
        budget=rows.budget,
        batch_size=batch,
        weight=ibis.ifelse(rows.weight > 0, rows.weight, 1.0 / batch.fill_null(1)).fill_null(1.0 / batch.fill_null(1)),
        begins=(rows.step_index == 0).fill_null(False).cast("int64"),
    )


def _request_steps(table: ir.Table) -> ir.Table:
    """Leave out the server's own requests, and the drafts of rows that are shares of an average."""
    import ibis

    own: Any = False
    for kind in OWN_KINDS:
        own = own | table.flags.contains(kind)
    rows = table.filter(~own.fill_null(False))
    return rows.mutate(drafts=ibis.ifelse(rows.matched.fill_null("") == "shared", None, rows.drafts))


def _step_lines(table: ir.Table) -> ir.Table:
    """Take a step line as a row: without the copies of other ranks, tokens as a mean over the batch."""
    import ibis

    rows = table.filter(table.step_why.fill_null("") != "duplicate_rank")
    batch = ibis.ifelse(rows.batch_size >= 1, rows.batch_size, None)
    nothing = ibis.literal(None, type="float64")
    said = rows.context_lens.length() == batch
    return rows.mutate(
        tokens=ibis.coalesce(rows.tokens / batch, rows.avg_commit_len),
        context_len=ibis.ifelse(said, rows.context_lens.sums() // batch, None),
        drafts=nothing,
        draft_nodes=nothing,
        reconciled=ibis.literal(None, type="int64"),
        weight=ibis.literal(1.0),
        step_index=ibis.literal(None, type="int64"),
    )
