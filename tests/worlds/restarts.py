"""Scenarios of two or three starts of a server: changed flags that matter, and those that do not."""

from __future__ import annotations

import math
from dataclasses import replace

from tests.worlds.build import STOCK_LOOK, Look, restart_truth, share, size, spacing, traffic, tree, truth, world
from tests.worlds.engine import Noise, Place, RunLog, Server, simulate
from tests.worlds.flags import PLAIN
from tests.worlds.truth import World, speed

ATTENTION = "flag:attention_backend"
DRAFTER = "flag:speculative_draft_model_path"
NEW_DRAFT = "/models/draft-v2"


def _weaker(place: Place) -> float:
    return 0.72 * place.text


def _pair(seed: int, first: Server, second: Server, low: int = 22, high: int = 36) -> list[RunLog]:
    """Simulate two servers under the same kind of traffic."""
    requests = traffic(seed, 1, size(seed, low, high)), traffic(seed, 2, size(seed, low, high, 1))
    return simulate([(first, requests[0]), (second, requests[1])], seed)


def harmless_restart(seed: int) -> World:
    """A restart adds a reasoning parser; nothing changes."""
    runs = _pair(seed, Server(flags=tree()), Server(flags=tree(reasoning_parser="kimi_k2")))
    return world("harmless_restart", seed, runs, restart_truth(runs, "unchanged", slope=0.0))


def drafter_worse(seed: int) -> World:
    """A restart swaps the drafter for a worse one."""
    runs = _pair(seed, Server(flags=tree()), Server(acceptance=_weaker, flags=tree(speculative_draft_model_path=NEW_DRAFT)))
    return world("drafter_worse", seed, runs, restart_truth(runs, "slower", [DRAFTER], slope=0.0))


def drafter_better(seed: int) -> World:
    """A restart swaps the drafter for a better one."""
    runs = _pair(seed, Server(acceptance=_weaker, flags=tree()), Server(flags=tree(speculative_draft_model_path=NEW_DRAFT)))
    return world("drafter_better", seed, runs, restart_truth(runs, "faster", [DRAFTER], slope=0.0))


def drafter_and_mix(seed: int) -> World:
    """A restart swaps the drafter for a worse one while prompts become longer, which makes steps slower as well."""
    slope = share(seed, 3, 5)
    first = Server(context_ms=slope, flags=tree())
    second = Server(context_ms=slope, acceptance=_weaker, flags=tree(speculative_draft_model_path=NEW_DRAFT))
    short = traffic(seed, 1, size(seed, 24, 34), prompts=(300, 4000))
    far = traffic(seed, 2, size(seed, 24, 34, 1), prompts=(2000, 8000))
    runs = simulate([(first, short), (second, far)], seed)
    return world("drafter_and_mix", seed, runs, restart_truth(runs, "slower", [DRAFTER, "mix"], ["context_step"], slope=slope))


def mix_only(seed: int) -> World:
    """Prompts are longer after a restart that changes nothing: requests are slower, the server is not."""
    slope = share(seed, 3, 5)
    server = Server(context_ms=slope, flags=tree())
    short = traffic(seed, 1, size(seed, 24, 34), prompts=(300, 4000))
    far = traffic(seed, 2, size(seed, 24, 34, 1), prompts=(2000, 8000))
    runs = simulate([(server, short), (server, far)], seed)
    return world("mix_only", seed, runs, restart_truth(runs, "slower", ["mix"], ["context_step"], slope=slope))


def backend_scales(seed: int) -> World:
    """Another attention backend makes every step a quarter longer."""
    slope = share(seed, 1, 3)
    first = Server(context_ms=slope, flags=tree())
    second = Server(30 * 1.25, slope * 1.25, flags=tree(attention_backend="flashinfer"))
    runs = _pair(seed, first, second)
    return world("backend_scales", seed, runs, restart_truth(runs, "slower", [ATTENTION], ["context_step"]))


def backend_slope(seed: int) -> World:
    """Another attention backend changes only how steps grow with context."""
    first = Server(context_ms=2.0, flags=tree())
    second = Server(context_ms=share(seed, 6, 8), flags=tree(attention_backend="flashinfer"))
    prompts = (200.0, 8000.0)
    plans = [
        (first, traffic(seed, 1, size(seed, 26, 36), prompts=prompts)),
        (second, traffic(seed, 2, size(seed, 26, 36, 1), prompts=prompts)),
    ]
    runs = simulate(plans, seed)
    return world("backend_slope", seed, runs, restart_truth(runs, "slower", [ATTENTION], ["context_step"]))


def _speculation(name: str, seed: int, on: Server, off: Server, on_first: bool) -> World:
    lengths = (350, 700)
    requests = traffic(seed, 1, size(seed, 20, 26), lengths=lengths), traffic(seed, 2, size(seed, 20, 26, 1), lengths=lengths)
    order = (on, off) if on_first else (off, on)
    runs = simulate([(order[0], requests[0]), (order[1], requests[1])], seed)
    ratio = speed(runs[1].measured()) / speed(runs[0].measured())
    also = ["flag:speculative_algorithm", DRAFTER]
    facts = restart_truth(runs, "slower" if ratio < 1 else "faster", ["speculation_off"], also, slope=0.0)
    return world(name, seed, runs, facts, STOCK_LOOK)


def speculation_switched_on(seed: int) -> World:
    """Speculation is off, then on: a step gives more tokens and takes far longer, so requests are slower."""
    on = Server(base_ms=38)
    return _speculation("speculation_switched_on", seed, on, Server(base_ms=10, speculative=False, flags=PLAIN), False)


def speculation_switched_off(seed: int) -> World:
    """Speculation is on, then off: a step takes less time and gives one token, so requests are slower."""
    on = Server(base_ms=21)
    return _speculation("speculation_switched_off", seed, on, Server(base_ms=14, speculative=False, flags=PLAIN), True)


def uptime(seed: int) -> World:
    """Steps get slower over more than an hour of uptime, and each of two restarts puts that back."""
    growth = share(seed, 0.2, 0.35)

    def scale(clock: float, up: float) -> float:
        return 1 + growth * up / 3600

    server = Server(scale=scale, flags=tree())
    plans = [(server, traffic(seed, salt, size(seed, 36, 44, salt), lengths=(80, 200), every=110.0)) for salt in (1, 2, 3)]
    runs = simulate(plans, seed)
    return world("uptime", seed, runs, truth("slower", ["uptime"], slope=0.0))


def daily_drift(seed: int) -> World:
    """Steps drift by 5 % over the day, evenly on both sides of a harmless restart."""
    count, every = size(seed, 30, 40), 300.0
    middle = count * every + 60
    phase = share(seed, -0.2, 0.2)
    sign = 1 if seed % 2 else -1

    def scale(clock: float, up: float) -> float:
        return 1 + sign * 0.05 * math.cos(2 * math.pi * (clock - middle) / (2 * middle) + phase)

    def server(salt: int) -> Server:
        return Server(scale=scale, flags=tree(reasoning_parser="kimi_k2") if salt == 2 else tree())

    plans = []
    for salt in (1, 2):
        requests = traffic(seed, salt, count, gap=(1, every))
        for k, request in enumerate(requests):
            request.arrival = every * k + request.gap
        plans.append((server(salt), requests))
    runs = simulate(plans, seed)
    return world("daily_drift", seed, runs, restart_truth(runs, "unchanged", slope=0.0))


def neighbour(seed: int) -> World:
    """Something else on the host slows steps for a minute every few minutes; the restart in between is harmless."""
    period = share(seed, 240, 330)

    def scale(clock: float, up: float) -> float:
        return 1.6 if clock % period < 60 else 1.0

    plans = []
    for salt, flags in ((1, tree()), (2, tree(tool_call_parser="kimi_k2"))):
        requests = traffic(seed, salt, size(seed, 55, 70, salt), lengths=(80, 200), every=40.0)
        plans.append((Server(scale=scale, flags=flags), requests))
    runs = simulate(plans, seed)
    return world("neighbour", seed, runs, restart_truth(runs, "unchanged", ["neighbour"], slope=0.0))


def _noisy(name: str, seed: int, noise: Noise) -> World:
    runs = _pair(seed, Server(noise=noise, flags=tree()), Server(noise=noise, flags=tree(reasoning_parser="kimi_k2")))
    return world(name, seed, runs, restart_truth(runs, "unchanged", slope=0.0))


def slow_noise(seed: int) -> World:
    """Step times wander by 5 % over half minutes; the restart is harmless."""
    return _noisy("slow_noise", seed, Noise(slow_sd=0.05, slow_s=30.0))


def heavy_tails(seed: int) -> World:
    """One or two steps in a hundred take five times as long; the restart is harmless."""
    return _noisy("heavy_tails", seed, Noise(tail=share(seed, 0.01, 0.02)))


def heavy_tails_and_backend(seed: int) -> World:
    """Heavy tails, and an attention backend that makes every step a quarter longer."""
    noise = Noise(tail=share(seed, 0.01, 0.02))
    runs = _pair(seed, Server(noise=noise, flags=tree()), Server(37.5, noise=noise, flags=tree(attention_backend="flashinfer")))
    return world("heavy_tails_and_backend", seed, runs, restart_truth(runs, "slower", [ATTENTION], slope=0.0))


def texts_differ(seed: int) -> World:
    """Acceptance differs by a third from text to text at random; the restart is harmless."""
    plans = [
        (Server(flags=tree()), traffic(seed, 1, size(seed, 26, 40), text=0.62, text_sd=0.12)),
        (Server(flags=tree(reasoning_parser="kimi_k2")), traffic(seed, 2, size(seed, 26, 40, 1), text=0.62, text_sd=0.12)),
    ]
    runs = simulate(plans, seed)
    return world("texts_differ", seed, runs, restart_truth(runs, "unchanged", ["text"], slope=0.0))


def _other_text(name: str, seed: int, **flag: object) -> World:
    plans = [
        (Server(flags=tree()), traffic(seed, 1, size(seed, 26, 36), text=0.70)),
        (Server(flags=tree(**flag)), traffic(seed, 2, size(seed, 26, 36, 1), text=0.50)),
    ]
    runs = simulate(plans, seed)
    return world(name, seed, runs, restart_truth(runs, "slower", ["text"], ["mix"], ["text"], slope=0.0))


def inert_flag_other_text(seed: int) -> World:
    """A restart adds a tool call parser while the traffic turns to another kind of text."""
    return _other_text("inert_flag_other_text", seed, tool_call_parser="kimi_k2")


def backend_other_text(seed: int) -> World:
    """A restart changes the attention backend, which changes nothing, while the traffic turns to another kind of text."""
    return _other_text("backend_other_text", seed, attention_backend="flashinfer")


def stock_drafter(seed: int) -> World:
    """Stock lines alone; a restart swaps the drafter for a worse one."""
    lengths = (500, 1000)
    plans = [
        (Server(), traffic(seed, 1, size(seed, 16, 22), lengths=lengths)),
        (
            Server(acceptance=_weaker, flags={"speculative_draft_model_path": NEW_DRAFT}),
            traffic(seed, 2, size(seed, 16, 22, 1), lengths=lengths),
        ),
    ]
    runs = simulate(plans, seed)
    facts = restart_truth(runs, "slower", [DRAFTER], slope=0.0)
    return world("stock_drafter", seed, runs, facts, Look(form=STOCK_LOOK.form, journal=False, rows=False))


def stock_harmless(seed: int) -> World:
    """Stock lines with rows of requests; a harmless restart."""
    lengths = (500, 1000)
    plans = [
        (Server(), traffic(seed, 1, size(seed, 14, 20), lengths=lengths)),
        (Server(flags={"reasoning_parser": "kimi_k2"}), traffic(seed, 2, size(seed, 14, 20, 1), lengths=lengths)),
    ]
    runs = simulate(plans, seed)
    return world("stock_harmless", seed, runs, restart_truth(runs, "unchanged", slope=0.0), STOCK_LOOK)


def drafter_and_parser(seed: int) -> World:
    """A restart swaps the drafter and adds a reasoning parser: only the drafter matters."""
    flags = tree(speculative_draft_model_path=NEW_DRAFT, reasoning_parser="kimi_k2")
    runs = _pair(seed, Server(flags=tree()), Server(acceptance=_weaker, flags=flags))
    return world("drafter_and_parser", seed, runs, restart_truth(runs, "slower", [DRAFTER], slope=0.0))


def backend_and_drafter(seed: int) -> World:
    """A restart changes the attention backend, which slows steps, and the drafter, which lowers acceptance."""
    flags = tree(speculative_draft_model_path=NEW_DRAFT, attention_backend="flashinfer")
    runs = _pair(seed, Server(flags=tree()), Server(30 * 1.3, acceptance=_weaker, flags=flags))
    return world("backend_and_drafter", seed, runs, restart_truth(runs, "slower", [ATTENTION, DRAFTER], slope=0.0))


def harmless_on_sloped(seed: int) -> World:
    """A harmless restart of a server whose steps grow with context, as most do; asked in words."""
    slope = share(seed, 2, 5)
    runs = _pair(seed, Server(context_ms=slope, flags=tree()), Server(context_ms=slope, flags=tree(tool_call_parser="kimi_k2")))
    facts = restart_truth(runs, "unchanged", [], ["context_step"], slope=slope)
    return world("harmless_on_sloped", seed, runs, facts, before="run:1", after="run:2")


def backend_faster(seed: int) -> World:
    """A restart brings an attention backend that makes every step a fifth shorter: a better run after a worse one."""
    runs = _pair(seed, Server(30 * 1.25, flags=tree()), Server(30, flags=tree(attention_backend="flashinfer")))
    return world("backend_faster", seed, runs, restart_truth(runs, "faster", [ATTENTION], slope=0.0))


def backend_slope_better(seed: int) -> World:
    """A restart brings an attention backend whose steps grow less with context; asked in words."""
    first = Server(context_ms=share(seed, 6, 8), flags=tree())
    second = Server(context_ms=2.0, flags=tree(attention_backend="flashinfer"))
    prompts = (200.0, 8000.0)
    plans = [
        (first, traffic(seed, 1, size(seed, 26, 36), prompts=prompts)),
        (second, traffic(seed, 2, size(seed, 26, 36, 1), prompts=prompts)),
    ]
    runs = simulate(plans, seed)
    facts = restart_truth(runs, "faster", [ATTENTION], ["context_step"])
    return world("backend_slope_better", seed, runs, facts, before="run:1", after="run:2")


def drafter_better_and_mix(seed: int) -> World:
    """A restart swaps the drafter for a better one while prompts become longer, which takes part of the gain away."""
    slope = share(seed, 1, 2)
    first = Server(context_ms=slope, acceptance=_weaker, flags=tree())
    second = Server(context_ms=slope, flags=tree(speculative_draft_model_path=NEW_DRAFT))
    short = traffic(seed, 1, size(seed, 24, 34), prompts=(300, 4000))
    far = traffic(seed, 2, size(seed, 24, 34, 1), prompts=(2000, 8000))
    runs = simulate([(first, short), (second, far)], seed)
    return world("drafter_better_and_mix", seed, runs, restart_truth(runs, "faster", [DRAFTER, "mix"], ["context_step"], slope=slope))


def drafter_under_load(seed: int) -> World:
    """A restart swaps the drafter for a worse one, with about four requests at once on both sides."""
    prompts, lengths = (200.0, 4000.0), (150.0, 400.0)
    sequence = share(seed, 1, 2)
    plans = []
    for salt, server in (
        (1, Server(sequence_ms=sequence, flags=tree())),
        (2, Server(sequence_ms=sequence, acceptance=_weaker, flags=tree(speculative_draft_model_path=NEW_DRAFT))),
    ):
        every = spacing(server, 3 if salt == 2 else 4, prompts, lengths)
        plans.append((server, traffic(seed, salt, size(seed, 45, 60, salt), prompts=prompts, lengths=lengths, every=every)))
    runs = simulate(plans, seed)
    facts = restart_truth(runs, "slower", [DRAFTER], ["batch", "prefill", "mix"], slope=0.0)
    return world("drafter_under_load", seed, runs, facts)


def stalls_after_backend(seed: int) -> World:
    """Another attention backend leaves the usual step as it was, and makes stalls of five times a step four times as frequent."""
    before, after = 0.015, 0.06
    first = Server(noise=Noise(tail=before), flags=tree())
    second = Server(noise=Noise(tail=after), flags=tree(attention_backend="flashinfer"))
    runs = _pair(seed, first, second)
    facts = restart_truth(runs, "slower", [ATTENTION], slope=0.0)
    # a share p of the steps takes five times as long: the mean is 1 + 4 p
    return world("stalls_after_backend", seed, runs, replace(facts, step_ratio=(1 + 4 * after) / (1 + 4 * before)))
