"""Scenarios of one start of a server: what steps and acceptance depend on, and what only looks like it."""

from __future__ import annotations

import numpy as np

from tests.worlds.build import EVERY_STEP, STOCK_LOOK, Look, share, size, spacing, traffic, tree, truth, world
from tests.worlds.engine import Noise, Place, Request, Server, simulate
from tests.worlds.lines import Form
from tests.worlds.render import RateLimit
from tests.worlds.truth import World

LONG = (200.0, 5000.0)


def falling(place: Place) -> float:
    """Acceptance that falls with context, down to a floor."""
    return place.text * max(0.4, 1 - 0.12 * place.context / 1000)


def context_step(seed: int) -> World:
    """Steps get slower with context; acceptance does not change."""
    slope = share(seed, 3, 7)
    server = Server(context_ms=slope, flags=tree())
    runs = simulate([(server, traffic(seed, 1, size(seed, 30, 50), prompts=(150, 8000)))], seed)
    return world("context_step", seed, runs, truth("slower", ["context_step"], slope=slope))


def context_tokens(seed: int) -> World:
    """Acceptance falls with context, also within each request; steps do not change."""
    server = Server(acceptance=falling, flags=tree())
    runs = simulate([(server, traffic(seed, 1, size(seed, 17, 20), prompts=LONG, lengths=(400, 1100)))], seed)
    return world("context_tokens", seed, runs, truth("slower", ["context_tokens"], slope=0.0))


def context_both(seed: int) -> World:
    """Steps get slower with context and acceptance falls with it."""
    slope = share(seed, 3, 7)
    server = Server(context_ms=slope, acceptance=falling, flags=tree())
    runs = simulate([(server, traffic(seed, 1, size(seed, 17, 20), prompts=LONG, lengths=(400, 1100)))], seed)
    return world("context_both", seed, runs, truth("slower", ["context_step", "context_tokens"], slope=slope))


def batch(seed: int) -> World:
    """Each further sequence of a batch costs time; context does not."""
    server = Server(sequence_ms=share(seed, 4, 7), flags=tree())
    lengths = (120.0, 320.0)
    every = spacing(server, 4, (200, 3000), lengths)
    runs = simulate([(server, traffic(seed, 1, size(seed, 50, 80), lengths=lengths, every=every))], seed)
    return world("batch", seed, runs, truth("slower", ["batch"], also_true=["prefill"], slope=0.0))


def window(seed: int) -> World:
    """Acceptance drops where the context passes the window of the drafter."""

    def acceptance(place: Place) -> float:
        return place.text * (0.6 if place.context > 2048 else 1.0)

    server = Server(acceptance=acceptance, flags=tree(speculative_draft_window_size=2048))
    short = traffic(seed, 1, size(seed, 9, 13), prompts=(300, 1400), lengths=(200, 500))
    across = traffic(seed, 2, size(seed, 7, 10), prompts=(1500, 2000), lengths=(500, 1000))
    far = traffic(seed, 3, size(seed, 6, 9), prompts=(2300, 5000), lengths=(200, 500))
    requests = [*short, *across, *far]
    order = np.random.default_rng([seed, 4]).permutation(len(requests))
    runs = simulate([(server, [requests[int(k)] for k in order])], seed)
    return world("window", seed, runs, truth("slower", ["window"], also_true=["context_tokens"], slope=0.0))


def nothing_wrong(seed: int) -> World:
    """One run in which nothing depends on anything."""
    runs = simulate([(Server(flags=tree()), traffic(seed, 1, size(seed, 25, 60)))], seed)
    return world("nothing_wrong", seed, runs, truth("unchanged", slope=0.0))


def throttling(seed: int) -> World:
    """Steps take 12 % longer within ten minutes of the start, and stay so."""

    def scale(clock: float, uptime: float) -> float:
        return 1 + 0.12 * min(1.0, uptime / 600)

    requests = traffic(seed, 1, size(seed, 60, 80), lengths=(80, 200), every=share(seed, 30, 45))
    runs = simulate([(Server(scale=scale, flags=tree()), requests)], seed)
    return world("throttling", seed, runs, truth("slower", ["uptime"], also_true=["break_step"], slope=0.0))


def long_prompts_other_text(seed: int) -> World:
    """Long prompts are another kind of text; within a request acceptance does not fall."""
    half = size(seed, 10, 14)
    short = traffic(seed, 1, half, prompts=(200, 500), lengths=(250, 600), text=0.70)
    far = traffic(seed, 2, half, prompts=(3500, 6000), lengths=(250, 600), text=0.48)
    order = np.random.default_rng([seed, 4]).permutation(2 * half)
    requests = [*short, *far]
    runs = simulate([(Server(flags=tree()), [requests[int(k)] for k in order])], seed)
    return world("long_prompts_other_text", seed, runs, truth("slower", ["text"], together=["text", "context_tokens"], slope=0.0))


def cached_other_text(seed: int) -> World:
    """Requests with a cached prefix are another kind of text; the cache itself changes nothing."""
    half = size(seed, 14, 20)
    fresh = traffic(seed, 1, half, text=0.70)
    cached = traffic(seed, 2, half, text=0.48, cached_share=1.0)
    order = np.random.default_rng([seed, 4]).permutation(2 * half)
    requests = [*fresh, *cached]
    runs = simulate([(Server(flags=tree()), [requests[int(k)] for k in order])], seed)
    return world("cached_other_text", seed, runs, truth("slower", ["text"], together=["text", "cached"], slope=0.0))


def context_with_uptime(seed: int) -> World:
    """Prompts grow over the day, outputs are short: context and uptime rise together. The context slows the steps."""
    slope = share(seed, 2.5, 4)
    count = size(seed, 80, 110)
    requests = traffic(seed, 1, count, lengths=(18, 36))
    for k, request in enumerate(requests):
        request.arrival = 40.0 * k + request.gap
        request.prompt = round(500 + 11000 * request.arrival / (40.0 * count))
    server = Server(context_ms=slope, noise=Noise(sd=0.08), flags=tree())
    runs = simulate([(server, requests)], seed)
    facts = truth("slower", ["context_step"], together=["context_step", "uptime"], slope=slope)
    return world("context_with_uptime", seed, runs, facts)


def _poisson(name: str, seed: int, concurrency: int, count: int) -> World:
    slope, sequence = share(seed, 0.8, 1.6), share(seed, 1.0, 2.0, 1)
    server = Server(context_ms=slope, sequence_ms=sequence, max_running=2 * concurrency, flags=tree(max_running_requests=2 * concurrency))
    prompts, lengths = (200.0, 6000.0), (150.0, 400.0)
    every = spacing(server, concurrency, prompts, lengths)
    runs = simulate([(server, traffic(seed, 1, count, prompts=prompts, lengths=lengths, every=every))], seed)
    # one more request costs at most 2 of 30 ms, which is no cause by itself where there are seldom two more
    load = ["batch"] if concurrency > 1 else []
    return world(name, seed, runs, truth("slower", ["context_step", *load], also_true=["batch", "prefill"], slope=slope))


def poisson_four(seed: int) -> World:
    """About four requests at once; steps get slower with context and with the batch."""
    return _poisson("poisson_four", seed, 4, size(seed, 60, 80))


def poisson_one(seed: int) -> World:
    """About one request at a time, often none and sometimes three; steps get slower with context and with the batch."""
    return _poisson("poisson_one", seed, 1, size(seed, 60, 80))


def poisson_eight(seed: int) -> World:
    """About eight requests at once; steps get slower with context and with the batch."""
    return _poisson("poisson_eight", seed, 8, size(seed, 100, 130))


def poisson_sixteen(seed: int) -> World:
    """About sixteen requests at once; steps get slower with context and with the batch."""
    return _poisson("poisson_sixteen", seed, 16, size(seed, 180, 220))


def graph_off(seed: int) -> World:
    """Batches above eight run without a graph and take twice as long; the size of the batch itself costs nothing."""
    server = Server(graph_limit=8, graph_off=2.0, flags=tree(cuda_graph_max_bs=8))
    rng = np.random.default_rng([seed, 4])
    requests: list[Request] = []
    at = 0.0
    for salt in range(2):
        for wave in rng.permutation(12):
            group = traffic(seed, 10 + 20 * salt + int(wave), int(wave) + 1, prompts=(200, 800), lengths=(130, 170))
            for k, request in enumerate(group):
                request.arrival = at + 0.001 * k
            requests += group
            at += 9.0
    runs = simulate([(server, requests)], seed)
    look = Look(form=Form(tree_lines=True, interval=1))
    return world("graph_off", seed, runs, truth("slower", ["graph_off"], also_true=["batch"], slope=0.0), look)


def cached_prefix(seed: int) -> World:
    """Half of the requests find part of their prompt in the cache; nothing is wrong."""
    runs = simulate([(Server(flags=tree()), traffic(seed, 1, size(seed, 30, 50), cached_share=0.5))], seed)
    return world("cached_prefix", seed, runs, truth("unchanged", slope=0.0))


def _stock_context(name: str, seed: int, look: Look, interval: int) -> World:
    slope = share(seed, 3, 7)
    server = Server(context_ms=slope)
    lengths = (500, 1100) if interval > 1 else (150, 350)
    runs = simulate([(server, traffic(seed, 1, size(seed, 20, 25), prompts=(200, 8000), lengths=lengths))], seed)
    return world(name, seed, runs, truth("slower", ["context_step"], slope=slope), look)


def stock_context(seed: int) -> World:
    """Stock lines every 40 steps with the rows of requests; steps get slower with context."""
    return _stock_context("stock_context", seed, STOCK_LOOK, 40)


def stock_context_no_rows(seed: int) -> World:
    """Stock lines every 40 steps alone; steps get slower with context."""
    return _stock_context("stock_context_no_rows", seed, Look(form=STOCK_LOOK.form, journal=False, rows=False), 40)


def every_step_context(seed: int) -> World:
    """A stock line every step; steps get slower with context."""
    return _stock_context("every_step_context", seed, Look(form=EVERY_STEP, journal=False), 1)


def two_long_requests(seed: int) -> World:
    """Two long requests of another text among forty short ones: too few to support anything."""
    requests = traffic(seed, 1, 40, prompts=(200, 600))
    odd = traffic(seed, 2, 2, prompts=(5000, 6000), text=0.5)
    requests.insert(size(seed, 5, 15), odd[0])
    requests.insert(size(seed, 22, 35), odd[1])
    runs = simulate([(Server(flags=tree()), requests)], seed)
    facts = truth("unchanged", ["text"], together=["text", "context_tokens"], slope=0.0)
    return world("two_long_requests", seed, runs, facts)


def suppressed_lines(seed: int) -> World:
    """The journal drops lines beyond its rate limit and says so; the server does not change."""
    runs = simulate([(Server(flags=tree()), traffic(seed, 1, size(seed, 30, 50)))], seed)
    look = Look(limit=RateLimit(burst=size(seed, 500, 650), interval_s=30.0))
    return world("suppressed_lines", seed, runs, truth("unchanged", ["suppressed"], slope=0.0), look)


def generated_length(seed: int) -> World:
    """Acceptance falls within each request with the number of tokens generated, whatever the prompt."""

    def acceptance(place: Place) -> float:
        return place.text * (1 - 0.4 * min(1.0, place.generated / 800))

    server = Server(acceptance=acceptance, flags=tree())
    runs = simulate([(server, traffic(seed, 1, size(seed, 20, 24), prompts=(200, 6000), lengths=(300, 1000)))], seed)
    return world("generated_length", seed, runs, truth("slower", ["generated"], slope=0.0))


def nothing_accepted(seed: int) -> World:
    """Speculation is on and no draft is ever accepted."""
    server = Server(acceptance=lambda place: 0.0, flags=tree())
    runs = simulate([(server, traffic(seed, 1, size(seed, 25, 40), lengths=(60, 150)))], seed)
    return world("nothing_accepted", seed, runs, truth("unchanged", ["nothing_accepted"], slope=0.0))


def pool_pressure(seed: int) -> World:
    """The cache is too small for the requests admitted: they are thrown out and prefilled again, again and again."""
    server = Server(pool=5200, new_token_ratio=0.05, flags=tree(max_total_tokens=5200, schedule_conservativeness=0.1))
    prompts, lengths = (300.0, 800.0), (350.0, 600.0)
    every = spacing(server, 9, prompts, lengths)
    runs = simulate([(server, traffic(seed, 1, size(seed, 50, 70), prompts=prompts, lengths=lengths, every=every))], seed)
    look = Look(form=Form(request_lines=True))
    return world("pool_pressure", seed, runs, truth("slower", ["retraction"], also_true=["prefill"], slope=0.0), look)


def text_turns(seed: int) -> World:
    """In the middle of a run the traffic turns to another kind of text, of which less is accepted; the server does not change."""
    first = traffic(seed, 1, size(seed, 20, 28), text=0.70)
    second = traffic(seed, 2, size(seed, 20, 28, 1), text=0.50)
    runs = simulate([(Server(flags=tree()), [*first, *second])], seed)
    facts = truth("slower", ["text"], also_true=["break_tokens"], together=["text", "break_tokens"], slope=0.0)
    return world("text_turns", seed, runs, facts)
