"""Simulated incidents with known truth, for ``diagnose``: one function a kind, what the verdict must say, and the true numbers.

Used by tests/test_diagnose_incidents.py (few seeds) and benchmarks/diagnose_table.py (many).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from tests.simulator import Restart, Run, Settings, Work, simulate

FLAT = Settings(requests=40, step_ms=20.0, context_ms=0.0, batch_ms=0.0, acceptance=0.8, acceptance_spread=0.03, prompt=(100, 6000))


@dataclass(frozen=True)
class Incident:
    """One simulated incident and what a diagnosis must say of it.

    ``kind`` and ``causes`` are the verdict's; ``slopes`` are true coefficients by their name in ``Diagnosis.slopes``; ``share`` says
    whether the true share of step time can be worked out. A hypothesis in ``never`` must not be named.
    """

    name: str
    kind: str
    causes: frozenset[str]
    settings: Settings
    slopes: dict[str, float] = field(default_factory=dict)
    share: bool = False
    together: frozenset[str] = frozenset()


def frames_of(run: Run) -> SimpleNamespace:
    """Make a stand-in for a log, its request-steps taken from the truth instead of from a join."""
    made = run.frames
    truth = run.truth_steps
    rows = truth[truth["logged"]]
    timed = rows["step_why"].isna()
    request_steps = pd.DataFrame(
        {
            "time_us": rows["time_us"],
            "where": rows["step"].astype(str),
            "stream": rows["run"].astype(str) + "|" + rows["dp_rank"].astype(str),
            "boot_id": [run.boot_id(int(b)) for b in run.boot_of(rows["seconds"].to_numpy(float))],
            "request_id": rows["request_id"],
            "slot": rows["slot"],
            "prompt_len": rows["prompt_len"],
            "generated_len": rows["generated_len"],
            "context_len": rows["context_len"],
            "tokens": rows["tokens"],
            "batch_size": rows["batch_size"],
            "batch_context": rows.groupby("step")["context_len"].transform("sum"),
            "weight": 1.0 / rows["batch_size"],
            "budget": run.settings.budget,
            "step_us": np.where(timed, np.round(rows["step_ms"] * 1000), np.nan),
            "step_why": rows["step_why"],
        }
    ).reset_index(drop=True)
    return SimpleNamespace(
        steps=made["steps"],
        decode=made["decode"],
        prefill=made["prefill"],
        servers=made["servers"],
        events=made["events"],
        requests=made["requests"],
        request_steps=request_steps,
        coverage=None,
        counts=None,
    )


def _rising(rng: np.random.Generator, n: int = 30, gap_s: float = 25.0) -> tuple[Work, ...]:
    """Requests whose prompts get longer at a steady pace, one after the other."""
    return tuple(Work(int(200 + 180 * i + rng.integers(0, 40)), 120, at=2.0 + gap_s * i) for i in range(n))


def _swap(rng: np.random.Generator, worse: float) -> tuple[tuple[Work, ...], float]:
    """Two dozen requests, a restart, and two dozen more with a drafter that is right less often."""
    works, at = [], 2.0
    for i in range(48):
        if i == 24:
            at += 60
        works.append(Work(int(np.exp(rng.uniform(np.log(100), np.log(5000)))), 150, at=at, acceptance=0.8 if i < 24 else worse))
        at += 8.0
    return tuple(works), 2.0 + 24 * 8.0 + 20


def _cached(rng: np.random.Generator, n: int = 48) -> tuple[Work, ...]:
    """Half of the prompts come from the prefix cache and are accepted less: by the cache or by their text, which no line tells."""
    made = []
    for i in range(n):
        prompt = int(np.exp(rng.uniform(np.log(100), np.log(5000))))
        made.append(Work(prompt, 150, at=2.0 + 8.0 * i, cached=prompt - 1 if i % 2 else 0, acceptance=0.62 if i % 2 else 0.8))
    return tuple(made)


def incidents(seed: int) -> list[Incident]:
    """Make every kind of incident for one seed."""
    rng = np.random.default_rng([seed, 17])
    flat = replace(FLAT, seed=seed)
    noise = math.exp(flat.noise**2 / 2)  # mean of the log-normal noise on step times
    swapped, at = _swap(rng, 0.55)
    same, _ = _swap(rng, 0.8)
    return [
        Incident(
            "context only",
            "step_time",
            frozenset({"context_step_time"}),
            replace(flat, context_ms=4.0),
            {"context_step_ms": 4.0 * noise, "context_tokens": 0.0},
            True,
        ),
        Incident(
            "acceptance only",
            "acceptance",
            frozenset({"context_acceptance"}),
            replace(flat, acceptance_context=-0.05, output=(800, 1600)),
            {"context_step_ms": 0.0},
            True,
        ),
        Incident(
            "both",
            "both",
            frozenset({"context_step_time", "context_acceptance"}),
            replace(flat, context_ms=3.0, acceptance_context=-0.05, output=(800, 1600)),
            {"context_step_ms": 3.0 * noise},
            True,
        ),
        Incident(
            "batch only",
            "step_time",
            frozenset({"batch"}),
            replace(flat, requests=80, concurrency=6, think_s=2.0, batch_ms=4.0),
            {"batch_step_ms": 4.0 * noise, "context_step_ms": 0.0},
        ),
        Incident(
            "uptime only",
            "step_time",
            frozenset({"uptime"}),
            replace(flat, think_s=70.0, uptime_ms=0.5),
            {"uptime_step_ms": 0.5 * noise, "context_step_ms": 0.0},
        ),
        Incident(
            "window knee",
            "acceptance",
            frozenset({"window_knee"}),
            replace(flat, requests=60, window=2048, acceptance_beyond_window=-0.25),
            {"context_step_ms": 0.0},
        ),
        Incident(
            "retraction",
            "between_steps",
            frozenset({"retraction"}),
            replace(flat, requests=60, concurrency=8, pool=9000, prompt=(500, 2500), output=(300, 900), think_s=0.1),
            {"batch_step_ms": 0.0},
        ),
        Incident(
            "cached prefix",
            "cannot_tell",
            frozenset(),
            replace(flat, workload=_cached(rng)),
            {"context_step_ms": 0.0},
            together=frozenset({"cached_prefix"}),
        ),
        Incident(
            "graph off",
            "step_time",
            frozenset({"graph_off"}),
            replace(flat, requests=80, concurrency=8, think_s=2.0, graph_max_batch=4, graph_off_ms=15.0, decode_log_interval=10),
            {"graph_off_step_ms": 15.0 * noise, "batch_step_ms": 0.0},
        ),
        Incident("nothing wrong", "nothing", frozenset(), flat, {"context_step_ms": 0.0, "context_tokens": 0.0}),
        Incident(
            "context and uptime together",
            "cannot_tell",
            frozenset(),
            replace(flat, workload=_rising(rng), context_ms=4.0 if seed % 2 else 0.0, uptime_ms=0.0 if seed % 2 else 2.0),
            together=frozenset({"context_step_time", "uptime"}),
        ),
        Incident(
            "drafter swapped by a restart",
            "acceptance",
            frozenset({"flags"}),
            replace(
                flat,
                workload=swapped,
                restarts=(Restart(at, args={"speculative_draft_model_path": "worse", "reasoning_parser": "kimi_k2"}),),
            ),
            {"context_step_ms": 0.0},
        ),
        Incident(
            "parser flag, nothing wrong",
            "nothing",
            frozenset(),
            replace(flat, workload=same, restarts=(Restart(at, args={"reasoning_parser": "kimi_k2"}),)),
            {"context_step_ms": 0.0},
        ),
    ]


def expected_tokens(p: np.ndarray, spread: float, depth: int) -> np.ndarray:
    """Mean commit length of a step: 1 + p + ... + p^depth, over texts whose chance differs by ``spread`` (cut to 0.02 .. 0.98)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(15)
    total = np.zeros(len(p))
    for z, w in zip(nodes, weights / weights.sum(), strict=True):
        q = np.clip(p + spread * z, 0.02, 0.98)
        total += w * (1 - q ** (depth + 1)) / (1 - q)
    return total


def true_share(s: Settings, rows: pd.DataFrame, short: np.ndarray, long: np.ndarray) -> float:
    """Return the true share of step time in the slow-down from short to long context, for one request at a time."""
    context = rows["context_len"].to_numpy(float)
    step = s.step_ms + s.context_ms * context / 1000
    p = s.acceptance + s.acceptance_context * context / 1000
    tokens = expected_tokens(p, s.acceptance_spread, s.depth)
    step_log = math.log(step[long].mean() / step[short].mean())
    tokens_log = math.log(tokens[short].mean() / tokens[long].mean())
    return step_log / (step_log + tokens_log)


def judge(incident: Incident, d: Any) -> str:
    """Return ``""`` where the verdict is right, else what is wrong with it."""
    named = {h.key for h in d.causes}
    # a log too short to rule out a slow-down of 5 % must say so, and how large a one remains possible
    open_ = incident.kind == "nothing" and d.kind == "cannot_tell" and "is not ruled out" in d.verdict
    if d.kind != incident.kind and not open_:
        return f"kind {d.kind}"
    if incident.together:
        wrong = [k for k in incident.together if d.hypothesis(k).status != "cannot tell"]
        return f"told {', '.join(wrong)}" if wrong else f"named {', '.join(named)}" if named else ""
    missing, extra = incident.causes - named, named - incident.causes
    parts = [f"missed {', '.join(sorted(missing))}"] if missing else []
    if extra:
        parts.append(f"named {', '.join(sorted(extra))}")
    return "; ".join(parts)


def run_of(incident: Incident) -> Run:
    """Simulate it."""
    return simulate(incident.settings)
