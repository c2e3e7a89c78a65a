"""The requests of a sweep find their steps in the log of the server that was measured."""

from __future__ import annotations

from datetime import datetime, timezone

from ddtree_metrics.bench import Sweep
from ddtree_metrics.join import join_requests
from ddtree_metrics.records import PrefillBatch, TreeStep
from ddtree_metrics.tables import from_records, to_pandas
from tests.test_bench_baseline import simulate

LINE = {"host": "h", "boot_id": "b", "pid": 1, "unit": "u", "stream": "s"}


def moment(us: int) -> datetime:
    return datetime.fromtimestamp(us // 1_000_000, timezone.utc).replace(microsecond=us % 1_000_000)


def server_log(sweep: Sweep) -> tuple[list[TreeStep], list[PrefillBatch]]:
    """Write what the server would have logged: a prefill, then steps of four tokens, each request in its own time."""
    steps, prefills = [], []
    for a in sweep.answers:
        prefill = a.sent_us + 20_000
        prefills.append(PrefillBatch(time=moment(prefill), time_us=prefill, new_seqs=1, new_tokens=1, cached_tokens=63, running=0, **LINE))
        left = (a.completion_tokens or 0) - 1  # the prefill makes the first token
        count = -(-left // 4)
        end = a.sent_us + int((a.elapsed_s or 0) * 1e6) - 500
        for k in range(count):
            at = prefill + (end - prefill) * (k + 1) // count
            made = min(4, left)
            left -= made
            why = "prefill_between" if k == 0 else None
            steps.append(
                TreeStep(time=moment(at), time_us=at, batch_size=1, commit_lens=(made,), accepted_drafts=(made - 1,), tokens=made,
                         step_us=None if why else (end - prefill) // count, step_why=why, where=f"x:{len(steps)}", **LINE)
            )  # fmt: skip
    return steps, prefills


def test_join_requests_takes_the_requests_of_a_sweep():
    sweep = simulate(1, {64: 4.0}, rounds=4)
    for i, a in enumerate(sweep.answers):
        a.sent_us += i * 10_000_000
    steps, prefills = server_log(sweep)
    joined = join_requests(
        to_pandas(from_records(steps, TreeStep)), sweep.requests(), to_pandas(from_records(prefills, PrefillBatch)), clock_offset_s=0.0
    )
    committed = joined.groupby("request_id")["tokens"].sum()
    # all tokens of an answer but the prefill's, at contexts from the prompt's length on
    assert committed.to_dict() == {a.request_id: (a.completion_tokens or 0) - 1 for a in sweep.answers}
    assert set(joined["reconciled"]) == {0}
    assert joined.groupby("request_id")["context_len"].min().eq(64).all()
    assert joined["trusted"].all()
