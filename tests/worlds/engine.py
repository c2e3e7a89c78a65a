"""A discrete-event simulation of one server that decodes with a draft model.

Times are seconds since the start of the world. A server alternates between prefill batches, which block decoding, and decode
steps over all running requests. A step takes

    (base + per 1000 tokens of batch context + per sequence) x scale(clock, uptime) x noise

and commits, for each sequence, one token and the drafts accepted before the first refusal (at most `DEPTH`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

DEPTH = 4
#: Slots of the key-value cache held for drafts of a running sequence, beyond its context.
AHEAD = 20


class Draws:
    """Random numbers one at a time, drawn in blocks because single draws are slow."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._uniform: list[float] = []
        self._normal: list[float] = []

    def uniform(self) -> float:
        if not self._uniform:
            self._uniform = self._rng.random(4096).tolist()
        return self._uniform.pop()

    def normal(self) -> float:
        if not self._normal:
            self._normal = self._rng.standard_normal(4096).tolist()
        return self._normal.pop()


@dataclass(frozen=True)
class Noise:
    """Multiplicative noise of step times, with mean 1 apart from the tails.

    Parameters
    ----------
    sd
        Standard deviation of the independent part.
    slow_sd, slow_s
        Standard deviation and time constant of a part that is correlated in time (an AR(1) process in continuous time).
    tail, tail_factor
        Share of steps that take `tail_factor` times as long.
    """

    sd: float = 0.03
    slow_sd: float = 0.0
    slow_s: float = 30.0
    tail: float = 0.0
    tail_factor: float = 5.0


class _NoiseState:
    def __init__(self, noise: Noise, draws: Draws) -> None:
        self._noise, self._draws = noise, draws
        self._slow = draws.normal()
        self._at = 0.0

    def factor(self, clock: float) -> float:
        noise, draws = self._noise, self._draws
        log = noise.sd * draws.normal() - noise.sd**2 / 2
        if noise.slow_sd:
            keep = math.exp(-max(0.0, clock - self._at) / noise.slow_s)
            self._slow = keep * self._slow + math.sqrt(1 - keep**2) * draws.normal()
            log += noise.slow_sd * self._slow - noise.slow_sd**2 / 2
            self._at = clock
        factor = math.exp(log)
        if noise.tail and draws.uniform() < noise.tail:
            factor *= noise.tail_factor
        return factor


@dataclass(frozen=True)
class Place:
    """Where a sequence stands before a step: all that its acceptance may depend on."""

    text: float
    context: int
    generated: int
    cached: int
    clock: float
    uptime: float


def _always_one(clock: float, uptime: float) -> float:
    return 1.0


def _text_only(place: Place) -> float:
    return place.text


def _usual_budget(clock: float) -> int:
    return 32


@dataclass(frozen=True)
class Server:
    """How a server behaves between one start and the next.

    Parameters
    ----------
    base_ms, context_ms, sequence_ms
        Step time: constant part, per 1000 tokens of context summed over the batch, and per sequence beyond the first.
    scale
        Factor of the step time as a function of clock and uptime.
    acceptance
        Probability that a draft is accepted when all drafts before it were.
    budget
        Nodes of the draft tree without its root, as a function of the clock.
    graph_limit, graph_off
        Largest batch that runs in a graph, and the factor of the step time above it.
    new_token_ratio
        Share of the tokens still to come that admission keeps free. Small values lead to retractions.
    retract_at
        Clock times at which one running request is retracted, come what may.
    flags
        Server arguments that differ from the usual ones.
    """

    base_ms: float = 30.0
    context_ms: float = 0.0
    sequence_ms: float = 0.0
    scale: Callable[[float, float], float] = _always_one
    noise: Noise = Noise()
    acceptance: Callable[[Place], float] = _text_only
    speculative: bool = True
    budget: Callable[[float], int] = _usual_budget
    graph_limit: int | None = None
    graph_off: float = 1.0
    prefill_base_ms: float = 18.0
    prefill_ms: float = 45.0
    chunk: int = 4096
    max_running: int = 16
    pool: int = 400_000
    new_token_ratio: float = 0.7
    retract_at: tuple[float, ...] = ()
    flags: Mapping[str, object] = field(default_factory=dict)

    def step_ms(self, batch: int, context: int, clock: float, uptime: float) -> float:
        """Return the step time without noise."""
        plain = self.base_ms + self.context_ms * context / 1000 + self.sequence_ms * (batch - 1)
        if not self.in_graph(batch):
            plain *= self.graph_off
        return plain * self.scale(clock, uptime)

    def in_graph(self, batch: int) -> bool:
        return self.graph_limit is None or batch <= self.graph_limit

    def mean_commit(self, place: Place) -> float:
        """Return the expected number of tokens that a sequence commits in a step."""
        if not self.speculative:
            return 1.0
        p = self.acceptance(place)
        return 1.0 + sum(p**k for k in range(1, DEPTH + 1))


@dataclass
class Request:
    """A request and, once simulated, what became of it.

    Parameters
    ----------
    arrival
        Seconds after the server was ready, or None: `gap` seconds after the request before it has finished.
    text
        Acceptance probability of a draft of this text under the usual drafter.
    """

    prompt: int
    max_tokens: int
    text: float = 0.65
    arrival: float | None = None
    gap: float = 0.5
    cached: int = 0
    warmup: bool = False
    rid: str = ""
    run: int = 0
    generated: int = 0
    committed: int = 0
    histogram: list[int] = field(default_factory=lambda: [0] * (DEPTH + 1))
    retractions: int = 0
    received_at: float = 0.0
    prefill_at: float = -1.0
    first_at: float = -1.0
    emitted_at: float = 0.0
    finished_at: float = 0.0

    @property
    def steps(self) -> int:
        return sum(self.histogram)

    @property
    def context(self) -> int:
        """Tokens whose keys and values are in the cache: the newest token's are not."""
        return self.prompt + self.generated - 1


@dataclass(frozen=True)
class Prefill:
    """One prefill batch, reported when its result is there."""

    start: float
    end: float
    sequences: int
    new_tokens: int
    cached_tokens: int
    running: int
    queue: int
    pending: int
    used: int


@dataclass(frozen=True)
class Step:
    """One decode step: who took part, what was accepted, and how long it took."""

    run: int
    start: float
    end: float
    rids: tuple[str, ...]
    places: tuple[Place, ...]
    accepted: tuple[int, ...]
    budget: int
    graph: bool
    used: int
    queue: int
    waited: float
    warmup: bool

    @property
    def batch(self) -> int:
        return len(self.rids)

    @property
    def context(self) -> int:
        return sum(place.context for place in self.places)

    @property
    def committed(self) -> int:
        return sum(self.accepted) + len(self.accepted)


@dataclass(frozen=True)
class Retraction:
    """A running request was thrown out of the cache, to be prefilled again."""

    at: float
    gained: int
    ratio_before: float
    ratio_after: float


@dataclass
class RunLog:
    """Everything that happened between one start of the server and its end."""

    index: int
    server: Server
    started: float
    ready: float
    ended: float = 0.0
    requests: list[Request] = field(default_factory=list)
    prefills: list[Prefill] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    retractions: list[Retraction] = field(default_factory=list)

    def measured(self) -> list[Step]:
        """Return the steps without those of the server's own warm-up request."""
        return [step for step in self.steps if not step.warmup]


class _Run:
    """The state of one server while it is simulated."""

    def __init__(self, log: RunLog, requests: Sequence[Request], draws: Draws) -> None:
        self.log, self.server, self.draws = log, log.server, draws
        self.noise = _NoiseState(log.server.noise, draws)
        self.clock = log.ready
        self.pending = deque(requests)
        self.waiting: deque[Request] = deque()
        self.chunked: Request | None = None
        self.done_tokens = 0
        self.running: list[Request] = []
        self.ratio = self.server.new_token_ratio
        self.forced = deque(sorted(self.server.retract_at))
        self.last_finish = log.ready

    def used(self) -> int:
        ahead = AHEAD if self.server.speculative else 1
        return sum(r.context + ahead for r in self.running)

    def next_arrival(self) -> float | None:
        if not self.pending:
            return None
        head = self.pending[0]
        if head.arrival is not None:
            return self.log.ready + head.arrival
        earlier = self.log.requests[-1] if self.log.requests else None
        if earlier is not None and earlier.finished_at == 0.0:
            return None
        return self.last_finish + head.gap

    def receive(self) -> None:
        while True:
            at = self.next_arrival()
            if at is None or at > self.clock:
                return
            request = self.pending.popleft()
            request.received_at = at
            self.log.requests.append(request)
            self.waiting.append(request)

    def fits(self, request: Request) -> bool:
        if not self.running:
            return True
        if len(self.running) >= self.server.max_running:
            return False
        remaining = sum(r.max_tokens - r.generated for r in [*self.running, request])
        needed = self.used() + request.prompt + request.generated + AHEAD
        return needed + self.ratio * remaining <= self.server.pool

    def prefill(self) -> bool:
        """Run one prefill batch if there is anything to prefill."""
        room = self.server.chunk
        taken: list[Request] = []
        complete: list[Request] = []
        new = cached = 0
        running = len(self.running)
        while room > 0:
            if self.chunked is not None:
                request = self.chunked
            elif self.waiting and running + len(complete) < self.server.max_running and self.fits(self.waiting[0]):
                request = self.waiting.popleft()
                self.done_tokens = request.cached if request.retractions == 0 else 0
                cached += self.done_tokens
            else:
                break
            todo = request.prompt + request.generated - self.done_tokens
            part = min(todo, room)
            room, new = room - part, new + part
            self.done_tokens += part
            taken.append(request)
            if part < todo:
                self.chunked = request
            else:
                self.chunked = None
                complete.append(request)
        if not taken:
            return False
        start = self.clock
        self.clock += (self.server.prefill_base_ms + self.server.prefill_ms * new / 1000) / 1000 * self.noise.factor(self.clock)
        for request in taken:
            if request.prefill_at < 0:
                request.prefill_at = start
        left = self.chunked.prompt + self.chunked.generated - self.done_tokens if self.chunked is not None else 0
        pending = left + sum(r.prompt + r.generated - r.cached for r in self.waiting)
        self.log.prefills.append(Prefill(start, self.clock, len(taken), new, cached, running, len(self.waiting), pending, self.used()))
        for request in complete:
            request.generated += 1
            if request.first_at < 0:
                request.first_at = self.clock
                request.emitted_at = self.clock
            if request.generated >= request.max_tokens:
                self.finish(request)
            else:
                self.running.append(request)
        return True

    def finish(self, request: Request) -> None:
        request.generated = request.max_tokens
        request.finished_at = self.clock
        self.last_finish = self.clock

    def retract(self) -> None:
        """Throw out the request with the shortest output, as the server does."""
        victim = min(self.running, key=lambda r: (r.generated, -r.prompt))
        self.running.remove(victim)
        victim.retractions += 1
        self.waiting.appendleft(victim)
        before, self.ratio = self.ratio, max(self.ratio, 0.85)
        self.log.retractions.append(Retraction(self.clock, victim.context, before, self.ratio))

    def step(self) -> None:
        server, start = self.server, self.clock
        uptime = start - self.log.ready
        batch = tuple(self.running)
        places = tuple(Place(r.text, r.context, r.generated, r.cached, start, uptime) for r in batch)
        took = server.step_ms(len(batch), sum(p.context for p in places), start, uptime) / 1000 * self.noise.factor(start)
        warmup = batch[0].warmup
        if warmup and batch[0].steps == 0:
            took += 1.5
        self.clock = start + took
        accepted, waited, alive = [], 0.0, []
        for request, place in zip(batch, places, strict=True):
            drafts = 0
            if server.speculative:
                p = server.acceptance(place)
                while drafts < DEPTH and self.draws.uniform() < p:
                    drafts += 1
            accepted.append(drafts)
            request.histogram[drafts] += 1
            request.committed += drafts + 1
            request.generated += drafts + 1
            waited += self.clock - request.emitted_at
            request.emitted_at = self.clock
            if request.generated >= request.max_tokens:
                self.finish(request)
            else:
                alive.append(request)
        self.running = alive
        self.ratio = max(server.new_token_ratio, self.ratio - 0.002)
        rids = tuple(r.rid for r in batch)
        shape = (server.budget(start), server.in_graph(len(batch)))
        load = (self.used(), len(self.waiting))
        self.log.steps.append(
            Step(
                self.log.index,
                start,
                self.clock,
                rids,
                places,
                tuple(accepted),
                *shape,
                *load,
                waited,
                warmup,
            )
        )

    def run(self) -> None:
        while True:
            self.receive()
            if self.forced and self.clock >= self.forced[0] and self.running:
                self.forced.popleft()
                self.retract()
            if self.prefill():
                continue
            while len(self.running) > 1 and self.used() + DEPTH * len(self.running) > self.server.pool:
                self.retract()
            if self.running:
                self.step()
                continue
            at = self.next_arrival()
            if at is None:
                break
            self.clock = max(self.clock, at)
        self.log.ended = self.clock


def simulate(plans: Sequence[tuple[Server, Sequence[Request]]], seed: int, load_s: float = 60.0, down_s: float = 20.0) -> list[RunLog]:
    """Simulate the starts of a server one after the other.

    Parameters
    ----------
    plans
        For each start, the server and its requests. Requests are filled in place.
    seed
        Seed of all that is random here.
    load_s
        Seconds from the start of a process until it is ready.
    down_s
        Seconds from the last finished request to the next start.
    """
    rng = np.random.default_rng([seed, 77])
    draws = Draws(rng)
    clock, logs = 0.0, []
    for index, (server, requests) in enumerate(plans, start=1):
        log = RunLog(index, server, clock, clock + load_s)
        warmup = Request(6, 8, arrival=0.1, warmup=True)
        every = [warmup, *requests]
        for request in every:
            request.run = index
            request.rid = rng.bytes(16).hex()
            if request is not warmup and request.arrival is not None:
                request.arrival += 5.0
        if len(requests) and requests[0].arrival is None:
            requests[0].gap += 3.0
        state = _Run(log, every, draws)
        state.run()
        logs.append(log)
        clock = log.ended + down_s
    return logs
