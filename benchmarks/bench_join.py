"""Join speed: steps × requests against the time that pyarrow takes to read the same Parquet file.

    python -m benchmarks.bench_join                      2 million steps, 20,000 requests
    python -m benchmarks.bench_join --steps 20000000 --requests 200000 --share 0.1

Steps are made at random (numpy, seeded); ``--share`` is the share of requests that overlap their neighbour. Prints the ratio and the peak
memory of the join alone, which runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ddtree_metrics.join import join_batches
from ddtree_metrics.records import TreeStep
from ddtree_metrics.schema import arrow_schema

BATCH = 1 << 17


def make(folder: Path, steps: int, requests: int, share: float, seed: int = 1) -> None:
    """Write ``steps.parquet`` and ``requests.parquet``."""
    rng = np.random.default_rng(seed)
    each = rng.geometric(requests / steps, requests).astype(np.int64) + 4
    pairs = rng.random(requests) < share / 2  # this one and the next start together
    pairs[-1] = False
    pairs[1:] &= ~pairs[:-1]
    second = np.concatenate([[False], pairs[:-1]])
    begin, length, batch = [], [], []
    at = 0
    heads = np.flatnonzero(~second)
    first_step = np.zeros(requests, np.int64)
    for i in heads.tolist():
        first_step[i] = at
        n = int(each[i])
        if pairs[i]:
            first_step[i + 1] = at
            short, long = sorted((n, int(each[i + 1])))
            begin.append(at)
            length.append(short)
            batch.append(2)
            if long > short:
                begin.append(at + short)
                length.append(long - short)
                batch.append(1)
            at += long
        else:
            begin.append(at)
            length.append(n)
            batch.append(1)
            at += n
    size = np.repeat(batch, length)
    total = int(size.sum())
    accepted = np.minimum(rng.geometric(0.3, total) - 1, 7)
    place = np.concatenate([[0], np.cumsum(size)])
    gap = np.zeros(at, np.int64)
    gap[first_step] = 60_000
    time_us = 1_770_000_000_000_000 + np.cumsum(gap + rng.integers(18_000, 22_000, at))
    fresh = gap > 0
    # what each request got: its slot is 0 if it began first or runs alone, 1 beside its elder
    order = np.arange(requests)
    sums, hists = np.zeros(requests, np.int64), np.zeros((requests, 8), np.int64)
    for r in order.tolist():
        a, b = int(first_step[r]), int(first_step[r] + each[r])
        slot = np.full(b - a, 1 if second[r] else 0)
        slot[size[a:b] == 1] = 0
        got = accepted[place[a:b] + slot]
        sums[r] = got.sum()
        hists[r] = np.bincount(got, minlength=8)
    last = time_us[first_step + each - 1]
    received = time_us[first_step] - 79_000 + second * 1_000
    first_token = time_us[first_step] - 25_000 + second * 100
    completion = 1 + each + sums
    table = pa.table(
        {
            "request_id": pa.array([f"r{i:07d}" for i in range(requests)]),
            "received": pa.array(received, pa.timestamp("us", "UTC")),
            "first_token": pa.array(first_token, pa.timestamp("us", "UTC")),
            "finished": pa.array(last + 8_000, pa.timestamp("us", "UTC")),
            "prompt_tokens": rng.integers(50, 8000, requests),
            "completion_tokens": completion,
            "verify_steps": each,
            "accepted_drafts": sums,
            "accepted_histogram": pa.ListArray.from_arrays(
                np.arange(0, 8 * requests + 1, 8).astype(np.int32), hists.ravel().astype(np.int32)
            ),
            "retractions": np.zeros(requests, np.int64),
            "source": ["request_file"] * requests,
        }
    )
    pq.write_table(table, folder / "requests.parquet")
    schema = arrow_schema(TreeStep)
    with pq.ParquetWriter(folder / "steps.parquet", schema, compression="zstd") as writer:
        cum = 0
        for lo in range(0, at, BATCH):
            hi = min(lo + BATCH, at)
            part = slice(place[lo], place[hi])
            offsets = (place[lo : hi + 1] - place[lo]).astype(np.int32)
            n = hi - lo
            values = accepted[part].astype(np.int32)
            commit = pa.ListArray.from_arrays(offsets, values + 1)
            tokens = np.add.reduceat(values + 1, offsets[:-1])
            why = pa.array(np.where(fresh[lo:hi], "prefill_between", ""), pa.string())
            columns = {
                "time": pa.array(time_us[lo:hi], pa.timestamp("us", "UTC")),
                "time_us": pa.array(time_us[lo:hi]),
                "monotonic_us": pa.array(time_us[lo:hi] - 1_769_000_000_000_000),
                "stream": pa.array(["h|b|1|-"] * n),
                "where": pa.array([f"journal:{i}" for i in range(lo, hi)]),
                "batch_size": pa.array(size[lo:hi], pa.int32()),
                "budget": pa.array(np.full(n, 16), pa.int32()),
                "nodes": pa.ListArray.from_arrays(offsets, np.full(len(values), 17, np.int32)),
                "accepted_drafts": pa.ListArray.from_arrays(offsets, values),
                "commit_lens": commit,
                "steps": pa.array(np.ones(n, np.int32)),
                "step_us": pa.array(np.diff(time_us[lo:hi], prepend=time_us[max(lo - 1, 0)]), mask=fresh[lo:hi]),
                "step_why": pa.array(np.where(fresh[lo:hi], why, None), pa.string()),
                "tokens": pa.array(tokens, pa.int64()),
                "tokens_cum": pa.array(cum + np.cumsum(tokens)),
            }
            cum += int(tokens.sum())
            writer.write_batch(
                pa.RecordBatch.from_arrays(
                    [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(n, f.type) for f in schema], schema=schema
                )
            )


def join(folder: Path) -> None:
    """Join part by part; print JSON."""
    begun = time.process_time()
    wall = time.perf_counter()
    requests = pq.read_table(folder / "requests.parquet").to_pandas(
        types_mapper=lambda t: pd.ArrowDtype(t) if pa.types.is_nested(t) else None
    )
    summary: dict[str, object] = {}

    def again():
        return pq.ParquetFile(folder / "steps.parquet").iter_batches(BATCH)

    rows = known = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in join_batches(again, requests, summary=summary):
            rows += batch.num_rows
            known += batch.num_rows - batch.column("request_id").null_count
    made = {
        "cpu_s": time.process_time() - begun,
        "wall_s": time.perf_counter() - wall,
        "rows": rows,
        "known": known,
        "reconciled_share": summary["reconciled_share"],
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    sys.stdout.write(json.dumps(made) + "\n")


def read(folder: Path) -> None:
    """Read the file as pyarrow reads it; print JSON."""
    begun, wall = time.process_time(), time.perf_counter()
    table = pq.read_table(folder / "steps.parquet")
    made = {"cpu_s": time.process_time() - begun, "wall_s": time.perf_counter() - wall, "rows": table.num_rows}
    sys.stdout.write(json.dumps(made) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--only", choices=["read", "join"])
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.only:
        (read if args.only == "read" else join)(args.folder)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, args.steps, args.requests, args.share)
        got = {}
        for only in ("read", "join"):
            command = [sys.executable, "-m", "benchmarks.bench_join", "--only", only, "--folder", name]
            got[only] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    size = f"{args.steps:,} steps, {args.requests:,} requests, {args.share:.0%} of them two at once"
    sys.stdout.write(
        f"{size}\nread  {got['read']['wall_s']:.2f} s wall, {got['read']['cpu_s']:.2f} s CPU\n"
        f"join  {got['join']['wall_s']:.2f} s wall, {got['join']['cpu_s']:.2f} s CPU, peak {got['join']['peak_mb']:.0f} MB, "
        f"{got['join']['known'] / got['join']['rows']:.4f} of rows with their request, reconciled {got['join']['reconciled_share']:.4f}\n"
        f"ratio {got['join']['wall_s'] / got['read']['wall_s']:.1f} (wall), {got['join']['cpu_s'] / got['read']['cpu_s']:.1f} (CPU)\n"
    )


if __name__ == "__main__":
    main()
