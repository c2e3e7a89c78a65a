"""How often ``diagnose`` is right on simulated incidents whose truth is known: prints the table of docs/diagnose-table.md.

    python -m benchmarks.diagnose_table [SEEDS] [FIRST] > docs/diagnose-table.md

Every log is simulated (tests/simulator.py, tests/incidents.py); no server was measured.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from ddtree_metrics.diagnosis import Diagnosis, Interval, diagnose
from tests.incidents import Incident, frames_of, incidents, judge, run_of, true_share


def _covers(interval: Interval | None, truth: float) -> bool | None:
    """Say whether an interval holds the truth; None where there is no interval."""
    if interval is None or interval.low is None or interval.high is None:
        return None
    return interval.low <= truth <= interval.high


def _checks(incident: Incident, log: object, d: Diagnosis) -> Iterator[tuple[str, bool | None]]:
    """Yield each true number of an incident, and whether its interval holds it."""
    for name, truth in incident.slopes.items():
        yield name, _covers(d.slopes.get(name), truth)
    if incident.share:
        requests, rows = log.requests, log.request_steps  # type: ignore[attr-defined]
        own = rows["request_id"].isin(requests.loc[requests["kind"] != "client", "request_id"]).to_numpy()
        context = rows["context_len"].to_numpy(float)
        low, high = np.quantile(context[~own], [0.25, 0.75])
        truth = true_share(incident.settings, rows, (context <= low) & ~own, (context >= high) & ~own)
        yield "share of step time", _covers(d.share_step_time, truth)


def table(seeds: range) -> Iterator[str]:
    """Yield the lines of the page."""
    verdicts: dict[str, Counter[str]] = defaultdict(Counter)
    named: Counter[str] = Counter()
    held: dict[tuple[str, str], Counter[bool | None]] = defaultdict(Counter)
    expected: dict[str, str] = {}
    for seed in seeds:
        for incident in incidents(seed):
            log = frames_of(run_of(incident))
            d = diagnose(log)
            expected[incident.name] = incident.kind + (f": {', '.join(sorted(incident.causes))}" if incident.causes else "")
            verdicts[incident.name][judge(incident, d) or "right"] += 1
            named[incident.name] += bool(d.causes)
            for what, ok in _checks(incident, log, d):
                held[incident.name, what][ok] += 1
    n = len(seeds)
    yield "# How often `diagnose` is right"
    yield ""
    yield f"Simulated incidents with known truth, {n} seeds each (from {seeds.start}). Every number here is about simulations:"
    yield "no server was measured. A verdict is right if its kind is right, every true cause is named, and no other is."
    yield 'Where a log is too short to rule out a slow-down of 5 %, the right answer is not "nothing" but that it cannot be told, with'
    yield "how large a slow-down remains possible: that counts as right."
    yield f"`python -m benchmarks.diagnose_table {n}` makes this page."
    yield ""
    yield "| incident | the verdict must say | right | a cause named | else |"
    yield "| --- | --- | ---: | ---: | --- |"
    for name, counts in verdicts.items():
        other = "; ".join(f"{k} ({c})" for k, c in counts.items() if k != "right")
        yield f"| {name} | {expected[name]} | {100 * counts['right'] / n:.0f} % | {100 * named[name] / n:.0f} % | {other} |"
    separable = [k for k in verdicts if not expected[k].startswith(("nothing", "cannot_tell"))]
    right = sum(verdicts[k]["right"] for k in separable)
    yield ""
    yield f"Separable incidents: right in {100 * right / (n * len(separable)):.1f} % of {n * len(separable)} runs."
    together = [k for k in verdicts if expected[k].startswith("cannot_tell")]
    told = sum(verdicts[k]["right"] for k in together)
    yield f'Causes that rise together: "cannot tell" in {100 * told / (n * len(together)):.1f} % of {n * len(together)} runs.'
    calm = [k for k in verdicts if expected[k] == "nothing"]
    false = sum(named[k] for k in calm)
    yield f"Nothing wrong: a cause named in {100 * false / (n * len(calm)):.1f} % of {n * len(calm)} runs."
    yield ""
    yield "## Do the 90 % intervals hold the truth?"
    yield ""
    yield "| incident | number | held | of |"
    yield "| --- | --- | ---: | ---: |"
    total: dict[str, Counter[bool]] = {"slopes": Counter(), "shares": Counter()}
    for (name, what), counts in held.items():
        ok, of = counts[True], counts[True] + counts[False]
        none = f" ({counts[None]} without an interval)" if counts[None] else ""
        yield f"| {name} | {what} | {100 * ok / of:.0f} % | {of}{none} |" if of else f"| {name} | {what} | | 0{none} |"
        total["shares" if what.startswith("share") else "slopes"].update({True: ok, False: of - ok})
    yield ""
    for kind, counts in total.items():
        of = counts[True] + counts[False]
        yield f"All {kind}: {100 * counts[True] / of:.1f} % of {of}."


def main(argv: list[str]) -> None:
    """Print the page for so many seeds, from the first."""
    n, first = (int(argv[i]) if len(argv) > i else default for i, default in ((1, 20), (2, 0)))
    for line in table(range(first, first + n)):
        print(line)


if __name__ == "__main__":
    main(sys.argv)
