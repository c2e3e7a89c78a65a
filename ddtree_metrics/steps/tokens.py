"""What was committed: conventions inferred from step lines, neutral columns made by them, and the counters of whole requests.

``tokens`` comes from the commit alone, never from ``accepted + 1``: builds differ in whether the commit contains the bonus token.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddtree_metrics.errors import DDTreeWarning
from ddtree_metrics.layout import plural
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.columns import whole_sum
from ddtree_metrics.steps.conventions import Conventions
from ddtree_metrics.steps.frames import Bools, Floats, Ints
from ddtree_metrics.steps.given import takes


@dataclass(frozen=True)
class CommitConvention:
    """Whether the commit length contains the bonus token.

    Attributes
    ----------
    counts : dict of int to int
        How often ``commit - accepted`` had which value, over all sequences of all steps.
    convention : str or None
        ``accepted+1``, ``accepted``, ``mixed``, or None where no line has both numbers.
    bonus_in_commit : bool or None
        None where it is not known.
    sentence : str
        The convention in words, with the counts for and against.
    reason : str or None
        Why it is not known.
    """

    counts: dict[int, int]
    convention: str | None
    bonus_in_commit: bool | None
    sentence: str
    reason: str | None = None


@takes("steps")
def commit_convention(steps: pd.DataFrame, *, warn: bool = True) -> CommitConvention:
    """Infer from the data whether a commit contains the bonus token.

    Parameters
    ----------
    steps : pandas.DataFrame
        Step lines (``commit_lens``, ``accepted_drafts``, or the averages of a batch of one), or request steps (``tokens``,
        ``drafts``).
    warn : bool
        Whether to warn where both conventions occur.

    Returns
    -------
    CommitConvention

    Warns
    -----
    DDTreeWarning
        If both ``accepted + 1`` and ``accepted`` occur. A few of the second kind are the cut last steps of requests; many mean
        that two builds are mixed.
    """
    counts = _counts(commit_minus_accepted(steps))
    found = Conventions(commit_minus_accepted=counts)
    sentence = found.sentence()
    one, none = counts.get(1, 0), counts.get(0, 0)
    if not counts:
        return CommitConvention({}, None, None, sentence, "no line has both a commit length and accepted drafts")
    if one and none:
        if warn:
            warnings.warn(
                f"commit lengths of two conventions: {plural(one, 'sequence')} with commit = accepted + 1, {none:,} with "
                "commit = accepted; cut last steps, or two builds in one log",
                DDTreeWarning,
                stacklevel=2,
            )
        bonus = None if found.bonus is None else bool(found.bonus)
        return CommitConvention(counts, "mixed", bonus, sentence, None if bonus is not None else "both conventions occur")
    if found.bonus is None:
        return CommitConvention(counts, None, None, sentence, "commit and accepted drafts do not fit together")
    return CommitConvention(counts, "accepted+1" if found.bonus else "accepted", bool(found.bonus), sentence)


def commit_minus_accepted(steps: pd.DataFrame) -> Floats:
    """Return ``commit - accepted`` of every sequence of every step of which both are known, as a flat array."""
    if "commit_lens" not in steps.columns and "tokens" in steps.columns and "drafts" in steps.columns:
        difference = cols.numeric(steps, "tokens") - cols.numeric(steps, "drafts")
        return np.asarray(difference[np.isfinite(difference)])
    own = cols.text(steps, "step_why") != "duplicate_rank"
    commits, commit_at, has_commits = cols.lists(steps, "commit_lens")
    accepted, accepted_at, has_accepted = cols.lists(steps, "accepted_drafts")
    lengths = np.diff(commit_at)
    both = has_commits & has_accepted & (lengths == np.diff(accepted_at)) & own
    made = [commits[_inside(commit_at, both)] - accepted[_inside(accepted_at, both)]]
    averages = cols.numeric(steps, "avg_commit_len") - cols.numeric(steps, "avg_accepted_drafts")
    size = cols.numeric(steps, "batch_size")
    single = ~has_commits & ~has_accepted & own & ((size == 1) | np.isnan(size))
    made.append(np.round(averages[single], 6))
    flat = np.concatenate(made)
    return np.asarray(flat[np.isfinite(flat)])


def _inside(offsets: Ints, rows: Bools) -> Bools:
    """Mark the elements that belong to the chosen rows."""
    return np.repeat(rows, np.diff(offsets))


def _counts(values: Floats) -> dict[int, int]:
    """Count whole values."""
    whole = values[values == np.round(values)].astype(np.int64)
    distinct, counts = np.unique(whole, return_counts=True)
    return {int(v): int(c) for v, c in zip(distinct, counts, strict=True)}


@dataclass(frozen=True)
class NodesConvention:
    """Whether the node counts contain the root.

    Attributes
    ----------
    counts_root : bool or None
        None where the data cannot say.
    counts : dict of int to int
        How often ``nodes - budget`` had which value.
    sentence : str
        The convention in words.
    reason : str or None
        Why it is not known.
    """

    counts_root: bool | None
    counts: dict[int, int]
    sentence: str
    reason: str | None = None


@takes("steps")
def nodes_convention(steps: pd.DataFrame) -> NodesConvention:
    """Infer from nodes and budget whether the node counts contain the root.

    A tree of ``budget + 1`` nodes proves that the root is counted; trees that reach the budget ten times or more and never pass
    it speak against it; anything else leaves it open.

    Parameters
    ----------
    steps : pandas.DataFrame
        Step lines.

    Returns
    -------
    NodesConvention
    """
    nodes, at, _ = cols.lists(steps, "nodes")
    budget = np.repeat(cols.numeric(steps, "budget"), np.diff(at))
    own = np.repeat(cols.text(steps, "step_why") != "duplicate_rank", np.diff(at))
    difference = (nodes - budget)[own & np.isfinite(nodes) & np.isfinite(budget)]
    counts = _counts(difference)
    root = Conventions(nodes_minus_budget=counts).root
    if root is not None:
        word = "root counted: trees of budget + 1 nodes occur" if root else "root not counted: trees reach the budget and never pass it"
        return NodesConvention(bool(root), counts, f"nodes: {word} ({counts.get(root, 0)} of {sum(counts.values())})")
    if not counts:
        reason = "no line has both nodes and a budget"
    elif max(counts) > 1:
        reason = "trees are larger than budget + 1: padding, or another budget"
    else:
        reason = "no tree reaches budget + 1, and too few reach the budget"
    return NodesConvention(None, counts, f"whether nodes count the root cannot be told: {reason}", reason)


@takes("steps")
def neutral_columns(
    steps: pd.DataFrame, *, commit_includes_bonus: bool | None = None, nodes_include_root: bool | None = None
) -> pd.DataFrame:
    """Add the columns that mean the same whatever server wrote the line; null where its convention is not known.

    Parameters
    ----------
    steps : pandas.DataFrame
        Step lines.
    commit_includes_bonus, nodes_include_root : bool, optional
        The conventions where they are known; inferred from the data otherwise.

    Returns
    -------
    pandas.DataFrame
        A copy with sums over the batch: ``tokens`` (committed), ``drafts`` (draft tokens agreed with, no root, no bonus; known if
        the commit is one more than what was accepted), ``draft_nodes`` (no root), ``verify_rows`` (root counted); with
        ``commit_minus_accepted`` (mean over the batch) and ``tokens_per_step`` (mean over the batch). A list that is longer or
        shorter than the batch is taken as unknown. ``attrs`` says what was taken as ``commit_includes_bonus`` and ``nodes_include_root``.
    """
    if commit_includes_bonus is None:
        commit_includes_bonus = commit_convention(steps, warn=False).bonus_in_commit
    if nodes_include_root is None:
        nodes_include_root = nodes_convention(steps).counts_root
    commits, accepted, nodes = (cols.lists(steps, n) for n in ("commit_lens", "accepted_drafts", "nodes"))
    size = cols.numeric(steps, "batch_size")
    for _, at, valid in (commits, accepted, nodes):
        size = np.where(np.isnan(size) & valid, np.diff(at), size)
    commits, accepted, nodes = (_of_the_batch(*lists, size) for lists in (commits, accepted, nodes))
    tokens = _sum_or_average(*commits, cols.numeric(steps, "avg_commit_len"), size)
    agreed = _sum_or_average(*accepted, cols.numeric(steps, "avg_accepted_drafts"), size)
    verified = cols.row_sums(*nodes)
    unknown = np.full(len(steps), np.nan)
    made = steps.copy()
    made["tokens"] = tokens
    made["drafts"] = agreed if commit_includes_bonus else unknown
    made["draft_nodes"] = unknown if nodes_include_root is None else verified - (size if nodes_include_root else 0)
    made["verify_rows"] = unknown if nodes_include_root is None else verified + (0 if nodes_include_root else size)
    with np.errstate(invalid="ignore", divide="ignore"):
        made["commit_minus_accepted"] = cols.finite((tokens - agreed) / size)
        # the mean over the batch is printed itself; the sum is not sure of a large batch, or one of unknown size
        average = np.where(commits[2] | (size < 100), np.nan, cols.numeric(steps, "avg_commit_len"))
        made["tokens_per_step"] = cols.finite(np.where(np.isfinite(tokens), tokens / size, average))
    made.attrs["commit_includes_bonus"] = commit_includes_bonus
    made.attrs["nodes_include_root"] = nodes_include_root
    return made


def _of_the_batch(values: Floats, offsets: Ints, valid: Bools, size: Floats) -> tuple[Floats, Ints, Bools]:
    """Spoil lists that are longer or shorter than the batch: which of their elements count is not known."""
    wrong = valid & (np.diff(offsets) != size)
    return np.where(np.repeat(wrong, np.diff(offsets)), np.nan, values), offsets, valid


def _sum_or_average(values: Floats, offsets: Ints, valid: Bools, average: Floats, size: Floats) -> Floats:
    """Sum each list, or multiply the average where there is no list; rounded where that is surely the whole number."""
    sums = cols.row_sums(values, offsets, valid)
    return np.where(valid, sums, whole_sum(average, size))
