"""What the numbers of a log count: whether a commit contains the bonus token, and whether nodes count the root.

Servers differ, and so do builds of one server. Nothing is assumed: it is declared by the dialect, given by the user, or inferred
from the data with the counts for and against, and a mixture is said.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(slots=True)
class Conventions:
    """Counts, over all sequences of all steps, of how commit and accepted, nodes and budget differ.

    Attributes
    ----------
    commit_minus_accepted : dict of int to int
        How often ``commit_len - accepted_drafts`` had which value.
    nodes_minus_budget : dict of int to int
        How often ``nodes - budget`` had which value.
    said_bonus, said_root : bool or None
        What the user or the dialect says instead; it goes before what is inferred.
    said_by : str or None
        Who says it: ``user``, or ``dialect NAME``.
    """

    commit_minus_accepted: dict[int, int] = field(default_factory=dict)
    nodes_minus_budget: dict[int, int] = field(default_factory=dict)
    said_bonus: bool | None = None
    said_root: bool | None = None
    said_by: str | None = None

    def say(self, *, bonus: bool | None, root: bool | None, by: str) -> None:
        """Take what somebody who knows says, instead of inferring it."""
        if bonus is None and root is None:
            return
        self.said_bonus = bonus if bonus is not None else self.said_bonus
        self.said_root = root if root is not None else self.said_root
        self.said_by = by

    def feed(self, steps: pa.RecordBatch) -> None:
        """Count one batch of the ``steps`` table; copies from other ranks are left out."""
        why = steps.column("step_why")
        own = np.ones(len(why), dtype=bool)
        if why.null_count < len(why):
            own = np.asarray(pc.fill_null(pc.not_equal(why, "duplicate_rank"), True))
        commit, commit_n = _lists(steps, "commit_lens", "avg_commit_len", own)
        accepted, accepted_n = _lists(steps, "accepted_drafts", "avg_accepted_drafts", own)
        both = commit_n == accepted_n
        _count(self.commit_minus_accepted, _pairs(commit, commit_n, both) - _pairs(accepted, accepted_n, both))
        nodes, nodes_n = _lists(steps, "nodes", None, own)
        budget = steps.column("budget")
        known = np.asarray(budget.is_valid()) & (nodes_n > 0)
        budgets = np.asarray(budget.fill_null(0)).astype(np.int64)
        _count(self.nodes_minus_budget, _pairs(nodes, nodes_n, known) - np.repeat(budgets[known], nodes_n[known]))

    def merge(self, other: Conventions) -> None:
        """Add the counts of another part of the same log."""
        for mine, theirs in (
            (self.commit_minus_accepted, other.commit_minus_accepted),
            (self.nodes_minus_budget, other.nodes_minus_budget),
        ):
            for key, count in theirs.items():
                mine[key] = mine.get(key, 0) + count
        if other.said_by is not None:
            self.say(bonus=other.said_bonus, root=other.said_root, by=other.said_by)

    @property
    def bonus(self) -> int | None:
        """``commit - accepted``: as said, or where all steps agree on it, or all but the short last steps of requests; else None."""
        if self.said_bonus is not None:
            return int(self.said_bonus)
        kinds = {k: n for k, n in self.commit_minus_accepted.items() if n}
        total = sum(kinds.values())
        if not total:
            return None
        best = max(kinds, key=lambda k: kinds[k])
        return best if best in (0, 1) and kinds[best] >= 0.9 * total else None

    @property
    def mixed(self) -> bool:
        """Whether steps of both kinds are there, with and without the bonus."""
        return bool(self.commit_minus_accepted.get(0)) and bool(self.commit_minus_accepted.get(1))

    @property
    def root(self) -> int | None:
        """1 if ``nodes`` count the root, 0 if they do not, None if the data cannot say.

        A tree may have fewer nodes than its budget, never more; so one tree of budget + 1 nodes proves the root, and trees
        that reach the budget often but never exceed it speak against it.
        """
        if self.said_root is not None:
            return int(self.said_root)
        kinds = {k: n for k, n in self.nodes_minus_budget.items() if n}
        if not kinds or any(k > 1 for k in kinds):
            return None
        if kinds.get(1):
            return 1
        return 0 if kinds.get(0, 0) >= 10 else None

    def sentence(self) -> str:
        """Say what a commit contains, and what that rests on."""
        if self.said_bonus is None:
            return self._inferred()
        said = "commit = accepted + 1 bonus" if self.said_bonus else "commit = accepted (bonus not visible)"
        expected = int(self.said_bonus)
        against = sum(n for k, n in self.commit_minus_accepted.items() if k != expected)
        of = sum(self.commit_minus_accepted.values())
        tail = f"; the data say otherwise in {against} of {of}" if against else ""
        return f"{said} (as the {self.said_by} says){tail}"

    def _inferred(self) -> str:
        kinds = self.commit_minus_accepted
        one, none = kinds.get(1, 0), kinds.get(0, 0)
        odd = sum(n for k, n in kinds.items() if k not in (0, 1))
        tail = f"; {odd} of another difference" if odd else ""
        if not sum(kinds.values()):
            return "whether a commit contains the bonus token cannot be told: no line has both numbers"
        if one and none:
            return (
                f"mixed: {one} with commit = accepted + 1, {none} with commit = accepted{tail} "
                "(a few of the second kind are the cut last steps of requests)"
            )
        if one:
            return f"commit = accepted + 1 bonus (inferred from {one} of {one + odd}){tail}"
        if none:
            return f"commit = accepted (bonus not visible; inferred from {none} of {none + odd}){tail}"
        return f"commit and accepted drafts do not fit together: {dict(sorted(kinds.items()))}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        return {
            "commit_minus_accepted": {str(k): n for k, n in sorted(self.commit_minus_accepted.items())},
            "nodes_minus_budget": {str(k): n for k, n in sorted(self.nodes_minus_budget.items())},
            "bonus_in_commit": self.bonus,
            "root_in_nodes": self.root,
            "sentence": self.sentence(),
            "from": self.said_by if self.said_bonus is not None else "inferred" if self.commit_minus_accepted else "unknown",
            "root_from": self.said_by if self.said_root is not None else "inferred" if self.root is not None else "unknown",
            "said": {"bonus": self.said_bonus, "root": self.said_root, "by": self.said_by},
        }

    def to_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Conventions:
        """Read back what ``to_dict`` made."""
        return cls(
            {int(k): n for k, n in data.get("commit_minus_accepted", {}).items()},
            {int(k): n for k, n in data.get("nodes_minus_budget", {}).items()},
            said_bonus=data.get("said", {}).get("bonus"),
            said_root=data.get("said", {}).get("root"),
            said_by=data.get("said", {}).get("by"),
        )


Ints = npt.NDArray[np.int64]


def _lists(steps: pa.RecordBatch, name: str, mean: str | None, own: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return the elements of a list column, and how many each row has; a batch of one may say it as an average only."""
    column = steps.column(name)
    offsets = np.asarray(column.offsets).astype(np.int64)
    counts = np.diff(offsets)
    counts[~np.asarray(column.is_valid())] = 0
    first, last = int(offsets[0]), int(offsets[-1])
    values = column.values.slice(first, last - first)
    values = np.asarray(values.fill_null(0) if values.null_count else values).astype(np.int64)
    if mean is not None and not counts.any():
        averages = steps.column(mean)
        size = np.asarray(steps.column("batch_size").fill_null(1)).astype(np.int64)
        ok = np.asarray(averages.is_valid()) & (size == 1) & own
        whole = np.rint(np.asarray(averages.fill_null(0.0)))
        ok &= whole == np.asarray(averages.fill_null(0.0))
        return whole[ok].astype(np.int64), ok.astype(np.int64)
    if own.all() and counts.sum() == len(values):
        return values, counts
    counts = np.where(own, counts, 0)
    starts = offsets[:-1] - first
    index = np.repeat(starts, counts) + (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts))
    return values[index], counts


def _pairs(values: Ints, counts: Ints, rows: npt.NDArray[np.bool_]) -> Ints:
    return values if rows.all() else values[np.repeat(rows, counts)]


def _count(into: dict[int, int], differences: Ints) -> None:
    if not len(differences):
        return
    low, high = int(differences.min()), int(differences.max())
    if high - low < 4096:
        counts = np.bincount(differences - low)
        values = np.flatnonzero(counts)
        found = zip((values + low).tolist(), counts[values].tolist(), strict=True)
    else:
        found = zip(*(part.tolist() for part in np.unique(differences, return_counts=True)), strict=True)
    for value, n in found:
        into[value] = into.get(value, 0) + n
