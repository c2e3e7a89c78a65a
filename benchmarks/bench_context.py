"""Summarise a large Parquet file of steps by context: our streaming histogram beside DuckDB and pandas doing the same.

    python -m benchmarks.bench_context [--rows 10000000] [--keep FILE] [--engines ours,ours-steps,duckdb,pandas]

Each engine runs in a process of its own. Per engine: CPU seconds, wall seconds, peak memory, and by how much its quantiles
differ from exact ones. ``ours`` and the others read request steps (``context_len``, ``step_us``, ``tokens``); ``ours-steps`` reads
step lines as exported and gives them their context from a table of requests. No engine uses a window function over steps.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WIDTH = 4096
MEAN_STEPS = 500


def generate(path: Path, rows: int, seed: int = 0) -> None:
    """Write the file of steps and, beside it, that of the requests: one request after another, 500 steps each on average."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(seed)
    schema = pa.schema([(n, pa.int64()) for n in ("time_us", "step_us", "tokens", "tokens_cum", "context_len")])
    count = max(1, rows // MEAN_STEPS)
    lengths = rng.geometric(1 / MEAN_STEPS, count)
    lengths[-1] += max(0, rows - lengths.sum())
    prompt = np.exp(rng.uniform(np.log(50), np.log(100_000), count)).astype(np.int64)
    now = cum = 0
    starts, ends = [], []
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=3) as writer:
        for first in range(0, count, 500):
            part = slice(first, min(first + 500, count))
            who = np.repeat(np.arange(part.start, part.stop), lengths[part])
            if not len(who):
                continue
            tokens = rng.integers(1, 8, len(who))
            total = np.cumsum(tokens)
            begins = np.concatenate([[True], np.diff(who) > 0])
            before = (total - tokens)[begins]
            context = prompt[who] + (total - tokens) - np.repeat(before, lengths[part])
            step = ((20_000 + 4 * context) * rng.lognormal(0, 0.08, len(who))).astype(np.int64)
            stamps = now + np.cumsum(step + np.where(begins, 500_000, 0))
            starts.append(stamps[begins] - step[begins] - 1)
            ends.append(stamps[np.append(np.flatnonzero(begins)[1:] - 1, len(who) - 1)] + 1)
            columns = [stamps, pa.array(step, mask=begins), tokens, cum + total, context]
            writer.write_table(pa.Table.from_arrays([pa.array(c, type=pa.int64()) for c in columns], schema=schema), row_group_size=262_144)
            now, cum = int(stamps[-1]) + 1_000_000, cum + int(total[-1])
    requests = {"first_token_us": np.concatenate(starts), "finished_us": np.concatenate(ends), "prompt_tokens": prompt}
    pq.write_table(pa.table(requests), path.with_suffix(".requests.parquet"))


def ours(path: Path) -> Any:
    """Stream request steps into a histogram."""
    import pyarrow.parquet as pq

    from ddtree_metrics.metrics import context_histogram, summarise_histogram

    batches = pq.ParquetFile(path, pre_buffer=False).iter_batches(batch_size=262_144, columns=["context_len", "step_us", "tokens"])
    return summarise_histogram(context_histogram(batches, width=WIDTH))


def ours_steps(path: Path) -> Any:
    """Stream step lines into a histogram, their context from the requests."""
    import pandas as pd
    import pyarrow.parquet as pq

    from ddtree_metrics.metrics import context_histogram, summarise_histogram

    raw = pq.read_table(path.with_suffix(".requests.parquet")).to_pandas()
    times = {n: pd.to_datetime(raw[n + "_us"], unit="us", utc=True) for n in ("first_token", "finished")}
    requests = pd.DataFrame({**times, "prompt_tokens": raw["prompt_tokens"]})
    batches = pq.ParquetFile(path, pre_buffer=False).iter_batches(
        batch_size=262_144, columns=["time_us", "step_us", "tokens", "tokens_cum"]
    )
    return summarise_histogram(context_histogram(batches, requests=requests, width=WIDTH))


def duckdb(path: Path) -> Any:
    """Make the same histogram in SQL."""
    import duckdb as db

    rows = db.sql(
        f"""
        WITH h AS (
            SELECT context_len // {WIDTH} AS bin, floor(ln(step_us) / ln(1.01)) AS bucket,
                   count(*) AS n, sum(step_us) AS us, sum(tokens) AS tokens
            FROM read_parquet('{path}') GROUP BY ALL),
        c AS (SELECT *, sum(n) FILTER (bucket IS NOT NULL) OVER (PARTITION BY bin ORDER BY bucket NULLS LAST) AS upto,
                     sum(n) FILTER (bucket IS NOT NULL) OVER (PARTITION BY bin) AS timed FROM h)
        SELECT bin, sum(n)::BIGINT AS rows, (sum(us) / any_value(timed) / 1000)::DOUBLE AS step_time_mean_ms,
               (min(pow(1.01, bucket + 0.5)) FILTER (upto >= 0.5 * timed) / 1000)::DOUBLE AS step_time_p50_ms,
               (min(pow(1.01, bucket + 0.5)) FILTER (upto >= 0.95 * timed) / 1000)::DOUBLE AS step_time_p95_ms,
               (sum(tokens) / sum(n))::DOUBLE AS tokens_per_step_pooled
        FROM c GROUP BY bin ORDER BY bin"""
    )
    return rows.df().set_index("bin")


def pandas(path: Path) -> Any:
    """Read everything and group: exact quantiles."""
    import pandas as pd

    frame = pd.read_parquet(path, columns=["context_len", "step_us", "tokens"])
    groups = frame.groupby(frame["context_len"] // WIDTH)
    quantiles = groups["step_us"].quantile([0.5, 0.95]).unstack() / 1000
    made = pd.DataFrame({"rows": groups.size(), "step_time_mean_ms": groups["step_us"].mean() / 1000})
    return made.assign(step_time_p50_ms=quantiles[0.5], step_time_p95_ms=quantiles[0.95], tokens_per_step_pooled=groups["tokens"].mean())


ENGINES = {"ours": ours, "ours-steps": ours_steps, "duckdb": duckdb, "pandas": pandas}
CHECKED = ("rows", "step_time_mean_ms", "step_time_p50_ms", "step_time_p95_ms", "tokens_per_step_pooled")


def run(engine: str, path: Path) -> None:
    """Run one engine and print what it took as JSON."""
    __import__("ddtree_metrics.metrics" if engine.startswith("ours") else engine)
    began, cpu = time.perf_counter(), time.process_time()
    made = ENGINES[engine](path)
    took = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - began}
    took["mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**took, "made": {n: [float(v) for v in made[n]] for n in CHECKED}}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--keep", type=Path, help="the file to make, or to use again")
    parser.add_argument("--engines", default="ours,ours-steps,duckdb,pandas")
    parser.add_argument("--run", choices=ENGINES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        run(args.run, args.keep)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = args.keep or Path(folder) / "steps.parquet"
        if not path.exists():
            generate(path, args.rows)
        results: dict[str, dict[str, Any]] = {}
        for engine in args.engines.split(","):
            command = [sys.executable, "-m", "benchmarks.bench_context", "--run", engine, "--keep", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{engine}: failed: {done.stderr.strip().splitlines()[-1]}")
                continue
            results[engine] = json.loads(done.stdout)
    base = results.get("ours")
    exact = results.get("pandas", {}).get("made")
    print(f"{'engine':12} {'CPU s':>8} {'wall s':>8} {'peak MB':>8} {'CPU / ours':>11} {'worst p50':>10} {'worst p95':>10}")
    for engine, r in results.items():
        ratio = f"{r['cpu'] / base['cpu']:10.1f}x" if base else ""
        worst = [
            f"{100 * max(abs(a / b - 1) for a, b in zip(r['made'][n], exact[n], strict=True)):9.2f}%" if exact else ""
            for n in ("step_time_p50_ms", "step_time_p95_ms")
        ]
        print(f"{engine:12} {r['cpu']:8.2f} {r['wall']:8.2f} {r['mb']:8.0f} {ratio:>11} {worst[0]:>10} {worst[1]:>10}")
        if exact:
            assert r["made"]["rows"] == exact["rows"], f"{engine} counted other rows"


if __name__ == "__main__":
    main()
