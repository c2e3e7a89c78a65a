"""See whether a slowed server is reported as a regression where it is slower, and an unchanged one is not.

On this machine, with llama.cpp's own server: a baseline of a tiny model is saved; then, again and again, sweeps of the same model (is
anything called slower?), of a model with twice the layers (slower everywhere), of one with twice the attention but no more weights
(slower where the context is long), and, if asked for, of the same model with a CPU hog on its core (not together with ``--realtime``).
What is true is taken from the server's own clock: the best decode time of its answers.

    python benchmarks/bench_regression.py [--repetitions 20] [--rounds 9] [--realtime]

Prints how often each context length got each verdict. Takes about ten minutes. On a machine with other work on it, ``--realtime`` gives
the measurement one core of its own while it runs; without, neighbours widen the intervals, and more points cannot be told.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ddtree_metrics.bench import Plan, Sweep, compare, load_sweep, run_sweep
from tests.tinygguf import write_kind
from tests.tinyserver import TinyServer

CONTEXTS = (64, 512, 1024)
WORDS = ("same", "slower", "faster", "cannot tell")


def hog(core: int) -> None:
    """Keep one core busy."""
    os.sched_setaffinity(0, {core})
    while True:
        sum(range(10_000))


def own_speed(sweep: Sweep, ctx: int) -> float:
    """Return the best decode speed by the server's own clock."""
    answers = [a for a in sweep.answers if a.ctx == ctx and a.role == "measure" and a.max_tokens == sweep.plan.lengths[-1]]
    return max(1000 * (a.server_decode_tokens or 0) / a.server_decode_ms for a in answers if a.server_decode_ms)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--realtime", action="store_true", help="server and client on one core, before all other work there (needs root)")
    parser.add_argument("--cases", nargs="+", default=["unchanged", "big", "deep"], choices=["unchanged", "big", "deep", "hog"])
    chosen = parser.parse_args()
    plan = Plan(ctx=CONTEXTS, lengths=(8, 136), repeat=chosen.rounds, precision=0)
    cores = sorted(os.sched_getaffinity(0))
    if chosen.realtime:  # children inherit both
        os.sched_setaffinity(0, {cores[-1]})
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    found: dict[tuple[str, int], Counter[str]] = {}
    truth: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        models = {kind: write_kind(place, kind) for kind in ("plain", "big", "deep")}
        with TinyServer(models["plain"], cpu=cores[-1]) as server:
            run_sweep(server.url, plan).save(place / "baseline.json")
        baseline = load_sweep(place / "baseline.json")
        started = time.monotonic()
        for number in range(chosen.repetitions):
            for case in chosen.cases:
                busy = multiprocessing.Process(target=hog, args=(cores[-1],), daemon=True) if case == "hog" else None
                if busy:
                    busy.start()
                try:
                    with TinyServer(models.get(case, models["plain"]), cpu=cores[-1]) as server:
                        now = run_sweep(server.url, plan)
                finally:
                    if busy:
                        busy.kill()
                        busy.join()
                for v in compare(baseline, now, chosen.tolerance).verdicts:
                    found.setdefault((case, v.ctx_req), Counter())[v.verdict] += 1
                    truth.setdefault((case, v.ctx_req), []).append(own_speed(now, v.ctx_req) / own_speed(baseline, v.ctx_req))
            spent = time.monotonic() - started
            print(
                f"repetition {number + 1} of {chosen.repetitions}, {spent:.0f} s, load {os.getloadavg()[0]:.1f}",
                file=sys.stderr,
                flush=True,
            )
    print(f"{chosen.repetitions} repetitions, {chosen.rounds} rounds, tolerance {100 * chosen.tolerance:g} %; verdicts by context length")
    print(f"{'case':>10} {'ctx':>5} {'true change':>18} " + " ".join(f"{w:>11}" for w in WORDS))
    wrong = 0
    for (case, ctx), counts in found.items():
        values = sorted(truth[case, ctx])
        middle = values[len(values) // 2]
        shown = f"{100 * (middle - 1):+.0f} % ({100 * (values[0] - 1):+.0f}..{100 * (values[-1] - 1):+.0f})"
        print(f"{case:>10} {ctx:>5} {shown:>18} " + " ".join(f"{counts[w]:>11}" for w in WORDS))
        if case == "unchanged" or middle > 1:
            wrong += counts["slower"]
        elif middle < 0.8:
            wrong += chosen.repetitions - counts["slower"]
    print(f"wrong: {wrong} (an unchanged or faster point called slower, or one more than 20 % slower not called so)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
