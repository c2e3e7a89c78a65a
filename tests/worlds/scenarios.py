"""The registry of scenarios: a name and the function that makes its world from a seed."""

from __future__ import annotations

from collections.abc import Callable

from tests.worlds import breaks, oneruns, restarts
from tests.worlds.truth import World

_IN_ORDER: list[Callable[[int], World]] = [
    oneruns.context_step,
    oneruns.context_tokens,
    oneruns.context_both,
    oneruns.batch,
    oneruns.window,
    oneruns.nothing_wrong,
    restarts.harmless_restart,
    restarts.drafter_worse,
    restarts.drafter_better,
    restarts.drafter_and_mix,
    restarts.mix_only,
    restarts.backend_scales,
    restarts.backend_slope,
    restarts.speculation_switched_on,
    restarts.speculation_switched_off,
    breaks.step_break,
    breaks.break_after_retraction,
    breaks.acceptance_to_one,
    oneruns.nothing_accepted,
    breaks.budget_cut,
    restarts.uptime,
    oneruns.throttling,
    restarts.daily_drift,
    restarts.neighbour,
    restarts.slow_noise,
    restarts.heavy_tails,
    restarts.heavy_tails_and_backend,
    restarts.texts_differ,
    oneruns.long_prompts_other_text,
    oneruns.cached_other_text,
    restarts.inert_flag_other_text,
    oneruns.context_with_uptime,
    oneruns.poisson_four,
    oneruns.poisson_sixteen,
    breaks.prefill_stalls,
    oneruns.graph_off,
    oneruns.cached_prefix,
    oneruns.stock_context,
    oneruns.stock_context_no_rows,
    restarts.stock_drafter,
    restarts.stock_harmless,
    oneruns.every_step_context,
    oneruns.two_long_requests,
    oneruns.suppressed_lines,
    oneruns.generated_length,
    restarts.drafter_and_parser,
    restarts.backend_and_drafter,
    restarts.backend_other_text,
    breaks.window_slower,
    breaks.window_unchanged,
    breaks.mended,
    oneruns.pool_pressure,
    restarts.harmless_on_sloped,
    restarts.backend_faster,
    restarts.backend_slope_better,
    restarts.drafter_better_and_mix,
    restarts.drafter_under_load,
    restarts.stalls_after_backend,
    oneruns.poisson_one,
    oneruns.poisson_eight,
    oneruns.text_turns,
]

SCENARIOS: dict[str, Callable[[int], World]] = {scenario.__name__: scenario for scenario in _IN_ORDER}


def make(name: str, seed: int) -> World:
    """Return the world of a scenario for a seed; the same seed gives the same bytes."""
    return SCENARIOS[name](seed)
