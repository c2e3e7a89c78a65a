"""How often the 90 % intervals cover the truth, on simulated runs whose truth is known.

    python -m benchmarks.bench_intervals [--seeds 200]

Truth is what one very large run of the same settings shows; slopes are the simulator's own settings. Prints one row a quantity:
runs that had an interval, the share that covered, and the median relative width.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import pandas as pd

from ddtree_metrics.metrics import acceptance, attribute_slowdown, by_context, fit_step_time
from tests.simulator import Settings, simulate

SCENARIOS: dict[str, dict[str, object]] = {
    "one at a time": {"requests": 40, "concurrency": 1, "acceptance_context": -0.02},
    "few requests": {"requests": 10, "concurrency": 1, "acceptance_context": -0.02},
    "four at once": {"requests": 60, "concurrency": 4, "acceptance_context": -0.02},
    "stalls": {"requests": 40, "concurrency": 1, "stall_share": 0.01, "noise": 0.1, "acceptance_context": -0.02},
}


def request_steps(seed: int, **settings: object) -> pd.DataFrame:
    """Simulate, and return one row a request a step as the join would."""
    truth = simulate(Settings(seed=seed, warmup=False, **settings)).truth_steps  # type: ignore[arg-type]
    truth["step_us"] = np.where(truth["step_why"].isna(), truth["step_ms"] * 1000, np.nan)
    truth["where"] = "simulated:" + truth["step"].astype(str)
    return truth


def quantities(frame: pd.DataFrame) -> Iterator[tuple[str, float, float, float]]:
    """Yield name, estimate and interval of everything that is checked."""
    made = acceptance(frame)
    yield "tokens per step, micro", made.tokens_per_step_micro, made.tokens_per_step_micro_low, made.tokens_per_step_micro_high
    yield "tokens per step, macro", made.tokens_per_step_macro, made.tokens_per_step_macro_low, made.tokens_per_step_macro_high
    fit = fit_step_time(frame)
    yield "slope, ms per 1000 tokens", fit.slope_ms_per_1000, fit.slope_low, fit.slope_high
    for row in by_context(frame, [0, 512, 1500, 6000]).itertuples():
        yield f"step time p50, {row.bin}", row.step_time_p50_ms, row.step_time_p50_ms_low, row.step_time_p50_ms_high
        yield f"tokens per step, {row.bin}", row.tokens_per_step_pooled, row.tokens_per_step_pooled_low, row.tokens_per_step_pooled_high
    split = attribute_slowdown(frame[frame["context_len"] < 512], frame[frame["context_len"] >= 1500])
    yield "share of step time", split.share_step_time, split.share_step_time_low, split.share_step_time_high
    yield "ratio of speeds", split.speed_ratio, split.speed_ratio_low, split.speed_ratio_high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    seeds = parser.parse_args().seeds
    print(f"{'scenario':16} {'quantity':30} {'runs':>5} {'covered':>8} {'width':>7}")
    for name, settings in SCENARIOS.items():
        big = request_steps(10_000, **{**settings, "requests": 6000})
        truth = {q: value for q, value, _, _ in quantities(big)}
        truth["slope, ms per 1000 tokens"] = Settings().context_ms
        rows: dict[str, list[tuple[bool, float]]] = {}
        for seed in range(seeds):
            for quantity, value, low, high in quantities(request_steps(seed, **settings)):
                if np.isfinite(low) and np.isfinite(truth[quantity]):
                    rows.setdefault(quantity, []).append((low <= truth[quantity] <= high, (high - low) / abs(value)))
        for quantity, found in rows.items():
            covered, width = np.mean([f[0] for f in found]), np.median([f[1] for f in found])
            print(f"{name:16} {quantity:30} {len(found):5d} {100 * covered:7.1f} % {100 * width:5.1f} %")


if __name__ == "__main__":
    main()
