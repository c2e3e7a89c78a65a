"""The fields of window lines that several engines share, and what they printed of drafts."""

from __future__ import annotations

import re
from typing import Any

from ddtree_metrics.dialects.base import Broken
from ddtree_metrics.dialects.cast import number

_KEY = re.compile(r"([A-Za-z][\w /-]{2,60}): ", re.A)


def pairs_of(text: str) -> dict[str, str]:
    """Read ``name: value, name: value``; a value may be a list of numbers with commas between them."""
    names = [(m.start(), m.end(), m[1]) for m in _KEY.finditer(text)]
    ends = [start for start, _, _ in names[1:]] + [len(text)][: len(names)]
    return {name: text[begin:end].strip().rstrip(",.").strip() for (_, begin, name), end in zip(names, ends, strict=True)}


def share_of(text: str) -> float | None:
    """Read a share, printed as ``9.5%`` or ``0.095``; null where it divides by nothing."""
    if text.rstrip("%").strip() == "nan":
        return None
    value = float(number(text.rstrip("%").strip(), "float"))
    return round(value / 100, 6) if text.endswith("%") else value


def count_of(text: str) -> int:
    """Read a count with its unit behind it."""
    return int(number(text.split(" ")[0], "int", wide=True))


def drafts_in(pairs: dict[str, str]) -> dict[str, Any]:
    """Return the columns of ``decode`` that tell of drafts.

    Raises
    ------
    Broken
        Where accepted or drafted tokens are missing, no numbers, or do not go together.
    """
    accepted, drafted = (
        pairs.get(name) or pairs.get(f"Number of {other} tokens") for name, other in (("Accepted", "accepted"), ("Drafted", "draft"))
    )
    if accepted is None or drafted is None:
        raise Broken("cut")
    rate = pairs.get("Avg Draft acceptance rate", pairs.get("Draft acceptance rate"))
    made: dict[str, Any] = {"accept_rate": None if rate is None else share_of(rate)}
    if "Number of emitted tokens" in pairs:
        # counted since the start, not in a window
        sums = ("Number of accepted tokens", "Number of draft tokens", "Number of emitted tokens", "Number of speculative tokens")
        return {**made, "extra": {name: str(count_of(pairs[name])) for name in sums if name in pairs}}
    made["accepted"], made["drafted"] = count_of(accepted), count_of(drafted)
    if made["accepted"] > made["drafted"]:
        raise Broken("bad_value")
    for name, column in (
        ("Mean acceptance length", "mean_accept_len"),
        ("Accepted throughput", "accepted_throughput"),
        ("Drafted throughput", "drafted_throughput"),
    ):
        if name in pairs and pairs[name].split(" ")[0] != "nan":
            made[column] = float(number(pairs[name].split(" ")[0], "float"))
    positions = pairs.get("Per-position acceptance rate")
    if positions:
        rates = [part.strip() for part in positions.split(",") if part.strip()]
        made["position_accept_rates"] = tuple(float(number(part, "float")) for part in rates if not re.fullmatch(r"-+|nan", part))
    depth = pairs.get("Current speculative depth")
    return {**made, **({"extra": {"Current speculative depth": str(count_of(depth))}} if depth else {})}
