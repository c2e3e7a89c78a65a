"""See whether the two-point estimate agrees with the server's own clock, and what the naive protocol gives.

Starts llama.cpp's own server on a tiny random-weight model on this machine, measures four context lengths with whole answers and
with event streams, and prints the estimate beside the server's own timings (tokens and milliseconds of its decode phase, which it
puts into each answer). Then the naive protocol on the same server: one prompt cut to growing lengths, the short request first, no
warm-up, whatever the prefix cache does.

    python benchmarks/bench_two_point.py [--rounds 15] [--nice -15] [--ctx 64 1024 3072 5120]

``--nice`` raises the priority of server and client (needs root): use it on a machine that others use too. Takes about ten minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ddtree_metrics.bench import Plan, PromptSource, Sweep, run_sweep
from ddtree_metrics.bench.client import Client
from ddtree_metrics.bench.lengths import fit
from ddtree_metrics.bench.server import Tokenizer
from ddtree_metrics.bench.stats import all_rounds
from tests.tinygguf import write_kind
from tests.tinyserver import TinyServer

HEAD = "          ctx  two-point     95 % interval   server  ratio     best   server  ratio   kept"


def agreement(sweep: Sweep, name: str) -> tuple[list[str], bool]:
    """Return the lines of one sweep, and whether all its points agree: median ratio within 5 %, best within 2 %."""
    lines, good = [], True
    for point in sweep.points:
        rounds = [r for r in all_rounds([a for a in sweep.answers if a.ctx == point.ctx_req], 2) if r.reason is None]
        ratios = []
        server = []
        for r in rounds:
            own = (r.long.server_decode_ms or 0.0) / 1000 / (r.long.server_decode_tokens or 1)
            server.append(own)
            ratios.append(own / (r.seconds_a_token or 1.0))  # our speed over the server's, the same requests
        ratio, best = median(ratios), (point.best_tok_s or 0.0) * min(server)
        good &= 0.95 <= ratio <= 1.05 and 0.98 <= best <= 1.02
        interval = f"{point.low or 0:.1f} - {point.high or 0:.1f}"
        lines.append(
            f"{name:>6} {point.ctx_req:>5} {point.decode_tok_s or 0:>10.1f} {interval:>17} {1 / median(server):>8.1f} {ratio:>6.3f} "
            f"{point.best_tok_s or 0:>8.1f} {1 / min(server):>8.1f} {best:>6.3f} {point.kept:>3}/{point.rounds}"
        )
    return lines, good


def naive(url: str, contexts: list[int], repeats: int) -> list[str]:
    """Return the lines of the protocol that looks right: a (8), then b (200), no warm-up, prompts that begin alike."""
    lines = [f"{'run':>3} {'ctx':>5} {'cached a':>8} {'cached b':>8} {'t_a':>6} {'t_b':>6} {'tok/s':>9} {'server':>8}"]
    for run in range(repeats):
        with Client(url) as client:
            text, _ = PromptSource(9000 + run).make("naive", max(contexts) * 8)
            tokenizer = Tokenizer(client)
            for ctx in contexts:
                prompt = fit(text, ctx, tokenizer.count, characters_a_token=1.3).text
                a = client.ask(prompt, 8, role="measure", ctx=ctx)
                b = client.ask(prompt, 200, role="measure", ctx=ctx)
                rate = ((b.completion_tokens or 0) - (a.completion_tokens or 0)) / ((b.elapsed_s or 0) - (a.elapsed_s or 0))
                own = (b.server_decode_tokens or 0) / (b.server_decode_ms or 1) * 1000
                lines.append(
                    f"{run + 1:>3} {ctx:>5} {a.cached_tokens!s:>8} {b.cached_tokens!s:>8} {a.elapsed_s:>6.2f} {b.elapsed_s:>6.2f} "
                    f"{rate:>9.1f} {own:>8.1f}"
                )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--nice", type=int)
    parser.add_argument("--ctx", type=int, nargs="+", default=[64, 1024, 3072, 5120])
    parser.add_argument("--n2", type=int, default=520, help="long request; on this small model the window should not be shorter")
    parser.add_argument("--modes", nargs="+", choices=["whole", "stream", "naive"], default=["whole", "stream", "naive"])
    chosen = parser.parse_args()
    if chosen.nice is not None:
        os.setpriority(os.PRIO_PROCESS, 0, chosen.nice)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        model = write_kind(Path(folder), "plain")
        if "whole" in chosen.modes or "stream" in chosen.modes:
            load = os.getloadavg()[0]
            print(f"two-point against the server's own timings, {chosen.rounds} rounds, 8 and {chosen.n2} tokens, load {load:.1f}")
            print(HEAD, flush=True)
        for name, stream in (("whole", False), ("stream", True)):
            if name not in chosen.modes:
                continue
            with TinyServer(model, nice=chosen.nice) as server:
                sweep = run_sweep(
                    server.url, Plan(ctx=tuple(chosen.ctx), lengths=(8, chosen.n2), repeat=chosen.rounds, precision=0, stream=stream)
                )
            lines, agrees = agreement(sweep, name)
            good &= agrees
            print("\n".join(lines), flush=True)
        if "naive" in chosen.modes:
            print("\nthe naive protocol: 8 tokens, then 200, the same prompt, prompts that begin alike, no warm-up")
            with TinyServer(model, nice=chosen.nice) as server:
                print("\n".join(naive(server.url, chosen.ctx, 3)), flush=True)
    verdict = "agrees" if good else "DOES NOT AGREE"
    print(f"\n{verdict}: median ratio within 0.95-1.05 and best within 2 % at every length (load {os.getloadavg()[0]:.1f})")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
