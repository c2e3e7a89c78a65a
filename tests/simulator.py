"""A discrete-event simulator of an SGLang server with DDTree speculative decoding: a log whose truth is known.

    run = simulate(Settings(seed=1, requests=40, concurrency=4))
    run.truth_steps        # one row a request a step: who, which slot, at what context
    run.truth_requests     # one row a request
    run.frames["steps"]    # the library's own tables, without the way through text
    run.write_export("simulated.export.zst")
    run.write_requests("simulated-requests.jsonl")

What it copies from the real server: a prefill goes before a decode step, long prompts are cut in chunks, a request joins the end of
the batch when its prefill is done, the batch keeps its order when one leaves, the prefill gives the first token, the last step may
commit more than the client gets, a retracted request is prefilled again with what it had written, `Decode batch` lines come every 40
steps and follow the real formulas. A step takes
``a + b * sum(context) + c * batch`` times noise. Nothing in here is measured: whatever it writes says that it is simulated.

    python -m tests.simulator incident fixtures/incident     remakes the fixture of the incident
"""

from __future__ import annotations

import heapq
import math
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

START = 1_770_000_000.0  # 2026-02-02 02:40:00 UTC


@dataclass(frozen=True)
class Work:
    """One request of an explicit workload; ``at`` is seconds after the start, or None for "when a client is free"."""

    prompt: int
    output: int
    at: float | None = None
    cached: int = 0
    acceptance: float | None = None
    abort_at: int | None = None
    request_id: str | None = None


@dataclass(frozen=True)
class Restart:
    """A restart of the server ``at`` seconds after the start; running requests die. ``args`` are flags that change with it."""

    at: float
    downtime_s: float = 20.0
    args: dict[str, str] = field(default_factory=dict)
    reboot: bool = False


@dataclass(frozen=True)
class Settings:
    """Everything the simulated server does; two runs with equal settings are equal."""

    seed: int = 0
    # workload
    requests: int = 20
    concurrency: int = 1  # clients that send the next request when the last one is answered
    rate: float | None = None  # arrivals a second instead of clients
    think_s: float = 0.3
    prompt: tuple[int, int] = (50, 4000)
    output: tuple[int, int] = (40, 400)
    workload: tuple[Work, ...] = ()
    cached_share: float = 0.0  # share of requests whose prompt was seen before
    abort_share: float = 0.0
    # server
    dp: int = 1
    tp: int = 1
    tp_copies: bool = False  # every TP rank prints the step
    max_running: int = 32
    chunk: int = 8192
    pool: int = 2_000_000
    reserve: int = 20  # slots held ahead for each running request
    budget: int = 16
    depth: int = 7
    window: int | None = None  # the drafter's attention window
    decode_log_interval: int = 40
    retraction_order: str = "length"  # what is left of the batch: "length" (most output first) or "kept"
    warmup: bool = True
    args: dict[str, str] = field(default_factory=dict)
    restarts: tuple[Restart, ...] = ()
    # speed, ms
    step_ms: float = 20.0
    context_ms: float = 4.0  # for each 1000 tokens of context in the batch
    batch_ms: float = 1.0
    uptime_ms: float = 0.0  # for each minute since the server's start
    generated_ms: float = 0.0  # for each 1000 tokens generated (a fragmenting cache)
    graph_max_batch: int = 64
    graph_off_ms: float = 0.0
    noise: float = 0.05  # sigma of the log of step time
    stall_share: float = 0.0  # steps that take five times as long
    prefill_ms: float = 15.0
    prefill_token_ms: float = 60.0  # for each 1000 tokens
    # acceptance: chance that the next draft token is right
    acceptance: float = 0.8
    acceptance_spread: float = 0.04  # between requests
    acceptance_context: float = 0.0  # added for each 1000 tokens of context
    acceptance_generated: float = 0.0  # added for each 1000 tokens generated
    acceptance_beyond_window: float = 0.0  # added once the context passes the window
    commit_includes_bonus: bool = True
    nodes_include_root: bool = True
    cut_last_commit: bool = False  # the fork that stops counting at the last token
    # clocks and losses
    start: float = START
    line_lag_ms: float = 0.4
    finish_lag_ms: float = 8.0
    clock_jumps: tuple[tuple[float, float], ...] = ()  # (seconds after the start, seconds jumped)
    burst: tuple[float, int] | None = None  # journald's rate limit: (interval in s, lines)
    lost_share: float = 0.0  # step lines lost without a word
    # spelling
    layout: str = "working"  # working, colon, singular, scalar, shuffled, averages
    release: str = "0.5.23"
    log_requests: str = "text"  # text, json, none
    time_stats: bool = False
    milliseconds: bool = False
    unit: str = "sglang-simulated.service"
    host: str = "simulated"


@dataclass
class _Request:
    """What the simulator knows of a request while it runs."""

    rid: str
    prompt: int
    output: int
    cached: int
    p: float
    abort_at: int | None
    dp: int
    client: int
    kind: str = "client"
    run: int = 0
    received: float = 0.0
    first: float = math.nan
    finished: float = math.nan
    out: int = 0
    steps: int = 0
    committed: int = 0
    accepted: int = 0
    retractions: int = 0
    hist: list[int] = field(default_factory=list)
    reason: str | None = None
    completion: int = 0
    forward: float = math.nan


class _Tape:
    """What happened, as flat columns in the order of one scheduler."""

    def __init__(self) -> None:
        self.step: list[tuple[Any, ...]] = []  # time, dp, run, bs, uptime, ms, why, graph
        self.rows: list[tuple[Any, ...]] = []  # step, request, slot, index, context, generated, commit, accepted, nodes
        self.prefill: list[tuple[Any, ...]] = []
        self.decode: list[tuple[Any, ...]] = []
        self.event: list[tuple[Any, ...]] = []
        self.requests: list[_Request] = []


def simulate(settings: Settings | None = None, **changes: Any) -> Run:
    """Run a server; keywords change single settings."""
    chosen = replace(settings or Settings(), **changes)
    tape = _Tape()
    for dp in range(chosen.dp):
        _Scheduler(chosen, dp, tape).go()
    return Run(chosen, tape)


class _Scheduler:
    """One DP rank: its queue, its batch, its clock (seconds after the start)."""

    def __init__(self, s: Settings, dp: int, tape: _Tape) -> None:
        self.s, self.dp, self.tape = s, dp, tape
        self.rng = np.random.default_rng([s.seed, dp])
        self.logu: list[float] = []
        self.noise: list[float] = []
        self.heap: list[tuple[float, int, _Request]] = []
        self.later: deque[_Request] = deque()
        self.seq = 0
        self.waiting: deque[_Request] = deque()
        self.running: list[_Request] = []
        self.chunk: tuple[_Request, int] | None = None
        self.restarts = deque(sorted(s.restarts, key=lambda r: r.at))
        self.run, self.born, self.t = 0, 0.0, 0.0
        self.window_tokens = self.window_steps = self.decodes = 0
        self.last_decode = 0.0
        self.why: str | None = "first"
        self._workload()

    def _workload(self) -> None:
        s, rng = self.s, self.rng
        works = list(s.workload[self.dp :: s.dp])
        if not works:
            n = s.requests // s.dp + (self.dp < s.requests % s.dp)
            prompts = np.exp(rng.uniform(math.log(s.prompt[0]), math.log(s.prompt[1] + 1), n)).astype(int)
            outputs = np.exp(rng.uniform(math.log(s.output[0]), math.log(s.output[1] + 1), n)).astype(int)
            cached = rng.random(n) < s.cached_share
            aborts = rng.random(n) < s.abort_share
            cuts = rng.random(n)
            works = [
                Work(
                    prompt=int(prompts[i]),
                    output=int(outputs[i]),
                    cached=int(prompts[i]) - 1 if cached[i] else 0,
                    abort_at=max(1, int(outputs[i] * cuts[i])) if aborts[i] else None,
                )
                for i in range(n)
            ]
            if s.rate is not None:
                at = np.cumsum(rng.exponential(s.dp / s.rate, n)) + 1.0
                works = [replace(w, at=float(a)) for w, a in zip(works, at, strict=True)]
        spread = rng.normal(0, s.acceptance_spread, len(works)) if works else []
        first: list[_Request] = []
        for i, w in enumerate(works):
            p = (s.acceptance if w.acceptance is None else w.acceptance) + float(spread[i])
            rid = w.request_id or rng.bytes(16).hex()
            made = _Request(rid, w.prompt, w.output, w.cached, p, w.abort_at, self.dp, client=i)
            self.tape.requests.append(made)
            if w.at is None:
                first.append(made)
            else:
                self._arrive(w.at, made)
        self.later = deque(first)
        mine = s.concurrency // s.dp + (self.dp < s.concurrency % s.dp)
        for _ in range(min(max(mine, 1), len(first))):
            self._arrive(2.0 + float(rng.exponential(s.think_s)), self.later.popleft())

    def _arrive(self, at: float, request: _Request) -> None:
        self.seq += 1
        request.received = at
        heapq.heappush(self.heap, (at, self.seq, request))

    def _ended(self, request: _Request, reason: str) -> None:
        request.reason = reason
        request.finished = self.t + self.s.finish_lag_ms / 1000 * (0.5 + self.rng.random())
        if reason != "killed":
            request.completion = min(request.out, request.output)
        if self.later and request.kind == "client":
            self._arrive(request.finished + float(self.rng.exponential(self.s.think_s)), self.later.popleft())

    def _start_run(self) -> None:
        self.tape.event.append((self.t, self.dp, self.run, "start", None, ""))
        self.born = self.t
        self.window_tokens = self.window_steps = self.decodes = 0
        self.last_decode = self.t
        if self.s.warmup:
            for rid, prompt, out, kind in (
                (self.rng.bytes(16).hex(), 6, 8, "warmup"),
                (f"HEALTH_CHECK_{self.rng.bytes(8).hex()}", 1, 1, "health_check"),
            ):
                made = _Request(rid, prompt, out, 0, self.s.acceptance, None, self.dp, client=-1, kind=kind)
                self.tape.requests.append(made)
                self._arrive(self.t + (0.1 if kind == "warmup" else 1.2), made)

    def go(self) -> None:
        self._start_run()
        while True:
            if self.restarts and self.t >= self.restarts[0].at:
                self._restart()
            while self.heap and self.heap[0][0] <= self.t:
                request = heapq.heappop(self.heap)[2]
                request.run = self.run
                self.waiting.append(request)
            if self.chunk is not None or self._can_admit():
                self._prefill()
            elif self.running:
                self._decode()
            elif self.heap:
                soon = self.restarts[0].at if self.restarts else math.inf
                self.t = max(self.t, min(self.heap[0][0], soon))
                if self.why is None:
                    self.why = "gap"
            elif self.restarts:
                self.t = self.restarts[0].at
            else:
                return

    def _restart(self) -> None:
        restart = self.restarts.popleft()
        for request in [*self.running, *self.waiting, *([self.chunk[0]] if self.chunk else [])]:
            self._ended(request, "killed")
            request.finished = math.nan
        self.running, self.waiting, self.chunk = [], deque(), None
        self.tape.event.append((self.t, self.dp, self.run, "exit", None, ""))
        self.t += restart.downtime_s
        self.run += 1
        self.why = "restart"
        late = [(at if at > self.t + 2.0 else self.t + 2.0 + 0.05 * i, n, r) for i, (at, n, r) in enumerate(sorted(self.heap))]
        for at, _, r in late:
            r.received = at
        self.heap = late
        heapq.heapify(self.heap)
        self._start_run()

    def _used(self) -> int:
        used = sum(r.prompt + r.out + self.s.reserve for r in self.running)
        return used + (self.chunk[0].prompt if self.chunk else 0)

    def _can_admit(self) -> bool:
        if not self.waiting or len(self.running) >= self.s.max_running:
            return False
        return self._used() + self.waiting[0].prompt + self.waiting[0].out + 2 * self.s.reserve <= self.s.pool or not self.running

    def _prefill(self) -> None:
        s = self.s
        room, new_tokens, cached, done, seqs = s.chunk, 0, 0, [], 0
        running = len(self.running)
        if self.chunk is not None:
            request, left = self.chunk
            take = min(left, room)
            seqs, new_tokens, room = 1, take, room - take
            self.chunk = (request, left - take) if left > take else None
            if self.chunk is None:
                done.append(request)
        while self.chunk is None and room > 0 and self._can_admit() and running + len(done) < s.max_running:
            request = self.waiting.popleft()
            if math.isnan(request.forward):
                request.forward = self.t
            have = request.cached if request.retractions == 0 else 0
            need = max(1, request.prompt + request.out - have)
            take = min(need, room)
            seqs, new_tokens, cached, room = seqs + 1, new_tokens + take, cached + have, room - take
            if take < need:
                self.chunk = (request, need - take)
            else:
                done.append(request)
                self.running.append(request)  # counts for admission; taken out again below
        self.running = self.running[:running]
        self.t += (s.prefill_ms + s.prefill_token_ms * new_tokens / 1000) / 1000
        self.tape.prefill.append((self.t, self.dp, self.run, seqs, new_tokens, cached, running, len(self.waiting)))
        if self.why is None:
            self.why = "prefill_between"
        for request in done:
            request.out += 1
            if math.isnan(request.first):
                request.first = self.t
            if request.out >= request.output:
                self._ended(request, "length")
            else:
                self.running.append(request)

    def _retract(self) -> None:
        s = self.s
        gone = 0
        need = s.depth + 1
        while len(self.running) > 1 and self._used() + need * len(self.running) > s.pool:
            ordered = sorted(self.running, key=lambda r: (r.out, -r.prompt), reverse=True)
            last = ordered.pop()
            self.running = ordered if s.retraction_order == "length" else [r for r in self.running if r is not last]
            last.retractions += 1
            self.waiting.append(last)
            gone += 1
        if gone:
            self.tape.event.append((self.t, self.dp, self.run, "retraction", gone, f"{gone} requests retracted"))
            if self.why is None:
                self.why = "retraction"

    def _decode(self) -> None:
        s, tape = self.s, self.tape
        self._retract()
        batch = self.running
        bs = len(batch)
        if len(self.logu) < bs:
            self.logu = np.log(self.rng.random(4096)).tolist()
        if not self.noise:
            draw = np.exp(self.rng.normal(0, s.noise, 2048))
            draw[self.rng.random(2048) < s.stall_share] *= 5
            self.noise = draw.tolist()
        total = 0
        number = len(tape.step)
        ended: list[tuple[_Request, str]] = []
        longest = 0
        tokens = 0
        for slot, r in enumerate(batch):
            context = r.prompt + r.out - 1
            total += context
            longest = max(longest, r.out)
            p = r.p + s.acceptance_context * context / 1000 + s.acceptance_generated * r.out / 1000
            if s.window is not None and context > s.window:
                p += s.acceptance_beyond_window
            p = min(max(p, 0.02), 0.98)
            accepted = min(int(self.logu.pop() / math.log(p)), s.depth)
            commit = accepted + 1
            before = r.out
            left = r.output - before
            if s.cut_last_commit and commit > left:
                commit = left
            tape.rows.append((number, r, slot, r.steps, context, before, commit, accepted))
            r.steps += 1
            r.out += commit
            r.committed += commit
            r.accepted += accepted
            hist = r.hist
            while len(hist) <= accepted:
                hist.append(0)
            hist[accepted] += 1
            tokens += commit
            if r.abort_at is not None and r.out >= r.abort_at:
                ended.append((r, "abort"))
            elif r.out >= r.output:
                ended.append((r, "stop" if r.client % 3 == 0 else "length"))
        graph = bs <= s.graph_max_batch
        ms = s.step_ms + s.context_ms * total / 1000 + s.batch_ms * bs + s.uptime_ms * (self.t - self.born) / 60
        ms += s.generated_ms * longest / 1000 + (0 if graph else s.graph_off_ms)
        ms *= self.noise.pop()
        self.t += ms / 1000
        tape.step.append((self.t, self.dp, self.run, bs, ms, self.why, total))
        self.why = None
        self.decodes += 1
        self.window_tokens += tokens
        self.window_steps += bs
        if ended:
            gone = {id(r) for r, _ in ended}
            self.running = [r for r in batch if id(r) not in gone]
            for r, reason in ended:
                self._ended(r, reason)
        if self.decodes % s.decode_log_interval == 0:
            after = self.t + 0.002
            took = max(after - self.last_decode, 1e-6)
            held = sum(r.prompt + r.out - 1 + s.reserve for r in self.running)
            accept = self.window_tokens / self.window_steps
            tape.decode.append(
                (after, self.dp, self.run, bs, held, accept, self.window_tokens / took, len(self.waiting), graph, self.decodes)
            )
            self.window_tokens = self.window_steps = 0
            self.last_decode = after


class Run:
    """One simulated run: its truth, its tables and its lines."""

    def __init__(self, settings: Settings, tape: _Tape) -> None:
        self.settings = settings
        self._tape = tape
        self._rng = np.random.default_rng([settings.seed, 99])
        self._build()

    # -- clocks -------------------------------------------------------------------------------------------------------
    def wall_us(self, t: np.ndarray) -> np.ndarray:
        """Wall clock (us since 1970) at ``t`` seconds after the start, with the jumps that were set."""
        jumps = sorted(self.settings.clock_jumps)
        add = np.zeros(len(t))
        for at, by in jumps:
            add += np.where(t >= at, by, 0.0)
        return np.round((self.settings.start + t + add) * 1e6).astype(np.int64)

    def boot_of(self, t: np.ndarray) -> np.ndarray:
        """Which boot of the machine it was at ``t``, from 0."""
        reboots = sorted(r.at + r.downtime_s / 2 for r in self.settings.restarts if r.reboot)
        return np.searchsorted(np.array(reboots), t, side="right")

    def mono_us(self, t: np.ndarray) -> np.ndarray:
        """Boot clock at ``t``."""
        reboots = np.array([-1000.0, *sorted(r.at + r.downtime_s / 2 for r in self.settings.restarts if r.reboot)])
        return np.round((t - reboots[self.boot_of(t)]) * 1e6).astype(np.int64)

    @staticmethod
    def boot_id(number: int) -> str:
        """Name of a boot."""
        return f"{number:02d}" + "51313a1ed" * 3 + "000"

    def pid(self, run: int, dp: int) -> int:
        """Process of a scheduler; the HTTP process has ``dp`` -1."""
        return 4000 + 100 * run + 1 + dp

    # -- truth --------------------------------------------------------------------------------------------------------
    def _build(self) -> None:
        _s, tape = self.settings, self._tape
        step = pd.DataFrame(tape.step, columns=["t", "dp", "run", "bs", "ms", "why", "sum_context"])
        step["t_line"] = self._line_times()
        order = np.argsort(step["t_line"].to_numpy(), kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        self._step = step.iloc[order].reset_index(drop=True)
        rows = pd.DataFrame(tape.rows, columns=["step", "r", "slot", "index", "context", "generated", "commit", "accepted"])
        rows["step"] = rank[rows["step"].to_numpy(np.int64)] if len(rows) else []
        rows = rows.sort_values(["step", "slot"], kind="stable", ignore_index=True)
        self._rows = rows
        self._offsets = np.concatenate([[0], np.cumsum(self._step["bs"].to_numpy(np.int64))])
        self._step["first_row"] = self._offsets[:-1]
        self._prefill = pd.DataFrame(tape.prefill, columns=["t", "dp", "run", "seqs", "new", "cached", "running", "queued"])
        self._decode = pd.DataFrame(
            tape.decode, columns=["t", "dp", "run", "bs", "held", "accept", "rate", "queued", "graph", "decodes"]
        ).sort_values("t", kind="stable", ignore_index=True)
        self._prefill = self._prefill.sort_values("t", kind="stable", ignore_index=True)
        self._limit()

    def _line_times(self) -> np.ndarray:
        """When the steps' lines are written; those of prefills, decode windows and events are moved with them, so that order holds."""
        s, tape = self.settings, self._tape
        lag = s.line_lag_ms / 1000
        lines = [(row[0], row[1], 0, i) for i, row in enumerate(tape.step)]
        lines += [(row[0], row[1], 1, i) for i, row in enumerate(tape.event)]
        lines += [(row[0], row[1], 2, i) for i, row in enumerate(tape.prefill)]
        lines += [(row[0], row[1], 3, i) for i, row in enumerate(tape.decode)]
        lines.sort(key=lambda x: (x[1], x[0], x[2]))
        late = lag * self._rng.lognormal(0, 0.5, len(lines))
        made = np.zeros(len(tape.step))
        last: dict[int, float] = {}
        for (t, dp, kind, i), more in zip(lines, late.tolist(), strict=True):
            at = max(t + more, last.get(dp, -1.0) + 2e-5)
            last[dp] = at
            if kind == 0:
                made[i] = at
            elif kind == 1:
                tape.event[i] = (at, *tape.event[i][1:])
            elif kind == 2:
                tape.prefill[i] = (at, *tape.prefill[i][1:])
            else:
                tape.decode[i] = (at, *tape.decode[i][1:])
        return made

    def _limit(self) -> None:
        """Which lines journald let through, and its notices."""
        s = self.settings
        self._step["kept"] = self._rng.random(len(self._step)) >= s.lost_share if s.lost_share else True
        self._prefill["kept"] = True
        self._decode["kept"] = True
        self.notices: list[tuple[float, int]] = []
        self._talk = _request_talk(self)
        self._talk_kept = np.ones(len(self._talk), bool)
        if s.burst is None:
            return
        interval, burst = s.burst
        parts = [
            (self._step["t_line"], 0),
            (self._prefill["t"], 1),
            (self._decode["t"], 2),
            (pd.Series([x[0] for x in self._talk], dtype=float), 3),
        ]
        times = np.concatenate([p.to_numpy(float) for p, _ in parts])
        kinds = np.concatenate([np.full(len(p), k) for p, k in parts])
        index = np.concatenate([np.arange(len(p)) for p, _ in parts])
        kept = [self._step["kept"].to_numpy().copy(), np.ones(len(self._prefill), bool), np.ones(len(self._decode), bool), self._talk_kept]
        begin, seen, lost = -math.inf, 0, 0
        for i in np.argsort(times, kind="stable"):
            t = float(times[i])
            if t > begin + interval:
                if lost:
                    self.notices.append((t - 1e-6, lost))
                begin, seen, lost = t, 0, 0
            if seen < burst:
                seen += 1
            else:
                lost += 1
                kept[kinds[i]][index[i]] = False
        self._step["kept"], self._prefill["kept"], self._decode["kept"], self._talk_kept = kept

    @cached_property
    def truth_steps(self) -> pd.DataFrame:
        """One row a request a step, whether or not its line survived (``logged``); ``step`` counts the lines in order."""
        step, rows = self._step, self._rows
        at = rows["step"].to_numpy(np.int64)
        of = {name: step[name].to_numpy()[at] for name in ("t", "t_line", "dp", "run", "bs", "ms", "why", "kept")}
        requests = rows["r"].tolist()
        return pd.DataFrame(
            {
                "step": at,
                "time_us": self.wall_us(of["t_line"]) if len(at) else np.empty(0, np.int64),
                "seconds": of["t"],
                "run": of["run"],
                "dp_rank": of["dp"],
                "request_id": [r.rid for r in requests],
                "slot": rows["slot"].to_numpy(),
                "step_index": rows["index"].to_numpy(),
                "prompt_len": [r.prompt for r in requests],
                "generated_len": rows["generated"].to_numpy(),
                "context_len": rows["context"].to_numpy(),
                "tokens": rows["commit"].to_numpy(),
                "drafts": rows["accepted"].to_numpy(),
                "batch_size": of["bs"],
                "step_ms": of["ms"],
                "step_why": of["why"],
                "logged": of["kept"],
            }
        )

    @cached_property
    def truth_requests(self) -> pd.DataFrame:
        """One row a request; times are wall-clock microseconds, null (-1) where it never got so far."""
        rs = self._tape.requests

        def us(values: list[float]) -> np.ndarray:
            t = np.array(values, float)
            return np.where(np.isnan(t), -1, self.wall_us(np.nan_to_num(t)))

        return pd.DataFrame(
            {
                "request_id": [r.rid for r in rs],
                "kind": [r.kind for r in rs],
                "run": [r.run for r in rs],
                "dp_rank": [r.dp for r in rs],
                "received_us": us([r.received for r in rs]),
                "first_token_us": us([r.first for r in rs]),
                "finished_us": us([r.finished for r in rs]),
                "prompt_tokens": [r.prompt for r in rs],
                "cached_tokens": [r.cached for r in rs],
                "completion_tokens": [r.completion for r in rs],
                "verify_steps": [r.steps for r in rs],
                "committed": [r.committed for r in rs],
                "accepted_drafts": [r.accepted for r in rs],
                "accepted_histogram": [list(r.hist) for r in rs],
                "retractions": [r.retractions for r in rs],
                "finish_reason": [r.reason for r in rs],
            }
        )

    # -- what is made of it, in the modules beside this one ------------------------------------------------------------
    @cached_property
    def frames(self) -> dict[str, pd.DataFrame]:
        """The library's tables: steps, decode, prefill, servers, events, requests, request_lines."""
        from tests.simulator_frames import frames

        return frames(self)

    @property
    def steps(self) -> pd.DataFrame:
        """The table of steps."""
        return self.frames["steps"]

    @property
    def requests(self) -> pd.DataFrame:
        """The table of requests, as read from the server's request file."""
        return self.frames["requests"]

    @cached_property
    def lines(self) -> list[Any]:
        """Every line as journald would keep it, in order (``tests.simulator_text.Entry``)."""
        from tests.simulator_text import lines

        return lines(self)

    def write_text(self, path: str | Path) -> Path:
        """Write the bare messages, one a line (a log file without journald)."""
        from tests.simulator_text import write_text

        return write_text(self, Path(path))

    def write_export(self, path: str | Path) -> Path:
        """Write as ``journalctl -o export`` does; compressed if the name ends in .zst or .gz."""
        from tests.simulator_text import write_export

        return write_export(self, Path(path))

    def write_journal_json(self, path: str | Path) -> Path:
        """Write as ``journalctl -o json`` does."""
        from tests.simulator_text import write_journal_json

        return write_journal_json(self, Path(path))

    @cached_property
    def requests_jsonl(self) -> list[str]:
        """The lines of the server's request file (``--export-metrics-to-file``)."""
        from tests.simulator_text import requests_jsonl

        return requests_jsonl(self)

    def write_requests(self, path: str | Path) -> Path:
        """Write the server's request file."""
        path = Path(path)
        path.write_text("".join(line + "\n" for line in self.requests_jsonl))
        return path

    def client_frame(self, offset_s: float = 0.0) -> pd.DataFrame:
        """What a client would note of its requests, its clock ``offset_s`` ahead of the server's."""
        from tests.simulator_frames import client_frame

        return client_frame(self, offset_s)


def _request_talk(run: Run) -> list[tuple[float, str, _Request]]:
    """When the HTTP process speaks of requests: (seconds, received | finished, request), in order."""
    if run.settings.log_requests == "none":
        return []
    talk: list[tuple[float, str, _Request]] = []
    for r in run._tape.requests:
        talk.append((r.received + 0.001, "received", r))
        if r.reason is not None and not math.isnan(r.finished):
            talk.append((r.finished + 0.0005, "finished", r))
    return sorted(talk, key=lambda x: x[0])


def main(argv: list[str]) -> Iterator[str]:
    """Remake a fixture; yields what was written."""
    from tests.simulator_incident import write_incident

    if len(argv) != 2 or argv[0] != "incident":
        raise SystemExit("usage: python -m tests.simulator incident FOLDER")
    yield from write_incident(Path(argv[1]))


if __name__ == "__main__":
    for written in main(sys.argv[1:]):
        sys.stdout.write(written + "\n")

__all__ = ["Restart", "Run", "Settings", "Work", "simulate"]
