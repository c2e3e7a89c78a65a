"""What a larger node budget buys: tokens per step, step time and speed for each budget seen."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ddtree_metrics.metrics.context import by_context
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.given import takes

BUDGET_COLUMNS = (
    "budget",
    "rows",
    "steps",
    "requests",
    "tokens_per_step",
    "tokens_per_step_low",
    "tokens_per_step_high",
    "step_time_ms",
    "step_time_ms_low",
    "step_time_ms_high",
    "tok_per_s",
    "tok_per_s_low",
    "tok_per_s_high",
    "draft_nodes_mean",
    "best_by_speed",
    "best_by_acceptance",
    "reason",
)


@takes("request_steps", ("budget", "request_id"))
def by_budget(request_steps: pd.DataFrame, *, level: float = 0.9, resamples: int = 400, seed: int = 0) -> pd.DataFrame:
    """Summarise tokens per step, step time and speed for each node budget seen.

    Parameters
    ----------
    request_steps : pandas.DataFrame
        One row a request a step, with ``budget``.
    level, resamples, seed
        Level of the intervals; how often requests are resampled, and from which start.

    Returns
    -------
    pandas.DataFrame
        A row a budget with ``BUDGET_COLUMNS``. ``best_by_speed`` and ``best_by_acceptance`` mark the best budget by each: more
        nodes accept more and take longer, so the two differ often. ``attrs["sentence"]`` compares them, ``attrs["warning"]`` says
        where acceptance falls with the budget by more than its interval, which a correct tree cannot do at equal depth and text.
    """
    frame = request_steps if "budget" in request_steps.columns else request_steps.assign(budget=np.nan)
    summary = by_context(frame, _budgets(frame), by="budget", level=level, resamples=resamples, seed=seed)
    nodes, budget = cols.finite(cols.numeric(frame, "draft_nodes")), cols.numeric(frame, "budget")
    made = pd.DataFrame({"budget": summary["low"], "rows": summary["rows"], "steps": summary["steps"], "requests": summary["requests"]})
    for new, old in (("tokens_per_step", "tokens_per_step_pooled"), ("step_time_ms", "step_time_mean_ms"), ("tok_per_s", "tok_per_s")):
        for end in ("", "_low", "_high"):
            made[new + end] = summary[old + end].astype(float)
    own = [nodes[(budget == b) & np.isfinite(nodes)] for b in made["budget"]]
    made["draft_nodes_mean"] = [float(n.mean()) if len(n) else np.nan for n in own]
    for name, column in (("best_by_speed", "tok_per_s"), ("best_by_acceptance", "tokens_per_step")):
        known = made[column].notna()
        made[name] = made.index == made[column].idxmax() if len(made) > 1 and known.any() else False
    made["reason"] = summary["reason"]
    made = made[list(BUDGET_COLUMNS)]
    made.attrs = {"sentence": _budget_sentence(made), "warning": _falls_with_budget(made), "level": level}
    return made


def _budgets(frame: pd.DataFrame) -> list[float] | None:
    """Return edges that put each budget into a bin of its own."""
    budget = cols.finite(cols.numeric(frame, "budget"))
    distinct = np.unique(budget[np.isfinite(budget)])
    return [*distinct, distinct[-1] + 1] if len(distinct) else None


def _budget_sentence(made: pd.DataFrame) -> str:
    """Compare the best budget by speed with the best by acceptance."""
    if not len(made):
        return "No step says its budget."
    if len(made) == 1:
        return f"One budget was used ({made['budget'].iloc[0]:.0f}): there is nothing to compare."
    accepts = made.loc[made["best_by_acceptance"]]
    fast = made.loc[made["best_by_speed"]]
    if not len(accepts):
        return "No budget has a token count."
    text = f"Most tokens per step: budget {accepts['budget'].iloc[0]:.0f} ({accepts['tokens_per_step'].iloc[0]:.2f})"
    if not len(fast):
        return text + "; the fastest cannot be told, for no step has a step time."
    best = f"budget {fast['budget'].iloc[0]:.0f} ({fast['tok_per_s'].iloc[0]:.1f} tok/s)"
    same = fast["budget"].iloc[0] == accepts["budget"].iloc[0]
    return f"{text}; fastest: {'the same, ' if same else ''}{best}."


def _falls_with_budget(made: pd.DataFrame) -> str | None:
    """Say where a larger budget accepts less, beyond what its interval explains."""
    known = made[made["tokens_per_step"].notna()]
    if len(known) < 3:
        return None
    first, last = known.iloc[0], known.iloc[-1]
    margin = 0.95 * first["tokens_per_step"]
    top, bottom = last["tokens_per_step_high"], first["tokens_per_step_low"]
    apart = not (np.isfinite(top) and np.isfinite(bottom)) or top < bottom
    rank = known["budget"].rank().corr(known["tokens_per_step"].rank())
    if last["tokens_per_step"] < margin and rank < -0.7 and apart:
        return (
            f"Tokens per step fall as the budget grows ({first['tokens_per_step']:.2f} at {first['budget']:.0f}, "
            f"{last['tokens_per_step']:.2f} at {last['budget']:.0f}): at equal depth and text a correct tree cannot do that."
        )
    return None
