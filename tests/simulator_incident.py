"""The fixture of the incident: a simulated journal of a slow afternoon, its requests, and the truth about them.

Short requests ran at about 138 tok/s. The server was restarted with ``--reasoning-parser`` and ``--tool-call-parser``; all else
stayed. Then one request with 3,239 prompt and 2,750 output tokens ran at about 32 tok/s. In this simulation two things change with
context, and the parsers change nothing: a step takes longer, and the drafter, which sees the last 2,048 tokens only, is right less often.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.simulator import Restart, Run, Settings, Work, simulate

UNIT = "sglang-kimi-simulated.service"


def incident(seed: int = 7) -> Run:
    """Simulate the incident."""
    rng = np.random.default_rng(seed)
    short = [Work(int(p), int(o)) for p, o in zip(rng.integers(60, 420, 40), rng.integers(120, 360, 40), strict=True)]
    sizes = (700, 1400, 2100, 2800)
    middle = [Work(n, 220) for n in sizes]
    at = 2.0
    works = []
    for w in (*short[:30], *middle):
        works.append(Work(w.prompt, w.output, at=at))
        at += 2.0 + w.output / 60 + float(rng.exponential(1.0))
    restart_at = at + 30
    at = restart_at + 600 + 30
    for w in short[30:]:
        works.append(Work(w.prompt, w.output, at=at))
        at += 2.0 + w.output / 60 + float(rng.exponential(1.0))
    works.append(Work(3239, 2750, at=at + 5, request_id="the-slow-one-simulated"))
    at += 5 + 2750 / 25
    for n in (4000, 5000):
        works.append(Work(n, 250, at=at))
        at += 30
    works.extend(Work(int(p), 200, at=at + 8 * i) for i, p in enumerate(rng.integers(60, 420, 4)))
    parsers = {"reasoning_parser": "kimi_k2", "tool_call_parser": "kimi_k2"}
    return simulate(
        Settings(
            seed=seed,
            workload=tuple(works),
            restarts=(Restart(restart_at, downtime_s=600.0, args=parsers),),
            budget=32,
            depth=8,
            window=2048,
            tp=8,
            # 35 ms at 390 tokens of context, about 122 ms at 4590; 4.8 and 4.0 tokens a step
            step_ms=26.8,
            context_ms=20.8,
            batch_ms=0.0,
            noise=0.06,
            stall_share=0.002,
            acceptance=0.840,
            acceptance_spread=0.012,
            acceptance_context=-0.005,
            acceptance_beyond_window=-0.058,
            unit=UNIT,
            host="simulated",
            args={"model_path": "simulated/kimi-k2.6", "attention_backend": "triton"},
        )
    )


def write_incident(folder: Path) -> Iterator[str]:
    """Write the fixture into a folder; yields the paths."""
    run = incident()
    folder.mkdir(parents=True, exist_ok=True)
    yield str(run.write_export(folder / "simulated-journal.export.zst"))
    yield str(run.write_requests(folder / "simulated-requests.jsonl"))
    path = folder / "simulated-truth.json"
    path.write_text(json.dumps(truth(run), indent=1) + "\n")
    yield str(path)


def truth(run: Run) -> dict[str, object]:
    """Sum up what is true of the run: speed, step time and tokens per step of the short requests and of the slow one."""
    steps, requests = run.truth_steps, run.truth_requests
    clients = requests[requests["kind"] == "client"]
    made: dict[str, object] = {
        "what": "SIMULATED by tests/simulator.py of ddtree_metrics; no server ran, nothing in here was measured",
        "settings": {
            "step_ms": "26.8 + 20.8 for each 1000 tokens of context, times noise (sigma of log 0.06; 0.2 % of steps five times as long)",
            "acceptance": "0.840 a draft token, -0.005 for each 1000 tokens of context, -0.058 once the context passes the drafter's 2048",
            "parsers": "reasoning_parser and tool_call_parser change with the restart and change nothing",
        },
        "steps": len(steps),
        "requests": len(clients),
    }
    slow = clients[clients["request_id"] == "the-slow-one-simulated"]["request_id"].iloc[0]
    short = clients[clients["prompt_tokens"] < 500]["request_id"]
    for name, chosen in (("short", steps[steps["request_id"].isin(short)]), ("slow", steps[steps["request_id"] == slow])):
        tokens, ms = float(chosen["tokens"].mean()), float(chosen["step_ms"].mean())
        made[name] = {
            "requests": int(chosen["request_id"].nunique()),
            "steps": len(chosen),
            "mean_context": round(float(chosen["context_len"].mean()), 1),
            "mean_step_ms": round(ms, 3),
            "median_step_ms": round(float(chosen["step_ms"].median()), 3),
            "tokens_per_step": round(tokens, 4),
            "tokens_per_s": round(1000 * tokens / ms, 2),
        }
    a, b = made["short"], made["slow"]
    assert isinstance(a, dict)
    assert isinstance(b, dict)
    step, tokens = np.log(b["mean_step_ms"] / a["mean_step_ms"]), np.log(a["tokens_per_step"] / b["tokens_per_step"])
    made["shares_of_the_slowdown"] = {"step_time": round(step / (step + tokens), 4), "acceptance": round(tokens / (step + tokens), 4)}
    return made
