"""Which requests are repeats of one prompt: their steps say nothing of other texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ddtree_metrics.layout import plural
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.frames import Bools, Ints

MIN_MATCH = 8
"""Two requests are called the same prompt only if at least so many first steps committed the same tokens."""


@dataclass(frozen=True)
class PromptKeys:
    """Which rows belong to the same prompt.

    Attributes
    ----------
    codes : ndarray of int64
        The prompt's number for each row, from 0.
    request_codes : ndarray of int64
        The request's number for each row.
    prompts, requests : int
        How many there are.
    source : str
        ``prompt_id`` (a column said it), ``sequence`` (same length and the same commits, step for step), ``request_id`` (nothing
        tells repeats apart: each request counts as a prompt of its own), or ``stretch`` (no request is known: a stretch of steps
        without a break stands for one).
    known : ndarray of bool, optional
        Rows whose request is known; the others are in stretches, which are no requests. All rows, or none where the source is
        ``stretch``, if not given.

    Notes
    -----
    Without the texts (``prompt_id``) nobody can know that two prompts differ: ``prompts`` is then the most there can be.
    """

    codes: Ints
    request_codes: Ints
    prompts: int
    requests: int
    source: str
    known: Bools | None = None

    def counts(self, rows: Ints | None = None) -> tuple[int, int]:
        """Return how many requests and how many prompts are among some rows (all if not given); stretches are neither."""
        mine = np.arange(len(self.codes)) if rows is None else rows
        if self.known is not None:
            mine = mine[self.known[mine]]
        elif self.source == "stretch":
            return 0, 0
        return len(np.unique(self.request_codes[mine])), len(np.unique(self.codes[mine]))

    def distinct(self, count: int) -> str:
        """Write a number of distinct prompts, ``at most 23 distinct prompts`` where the texts are not known."""
        sure = self.source == "prompt_id" or count < 2
        return f"{'' if sure else 'at most '}{plural(count, 'distinct prompt')}"


def prompt_keys(request_steps: pd.DataFrame) -> PromptKeys:
    """Find out which requests are repeats of one prompt.

    A benchmark that sends one prompt twenty times has twenty requests and one prompt, and says nothing about other prompts. A log
    does not hold the text. Two requests are taken as the same prompt if a column ``prompt_id`` says so, or if their prompts are
    equally long and their first steps committed the same number of tokens, step for step, over so many steps that chance cannot
    explain it (fewer than one false match in a hundred such tables).

    Parameters
    ----------
    request_steps : pandas.DataFrame
        One row a request a step.

    Returns
    -------
    PromptKeys
    """
    requests, rows_known = _request_codes(request_steps)
    known = bool(rows_known.any())
    count = int(requests.max(initial=-1)) + 1
    source = "request_id" if known else "stretch"
    if not count:
        return PromptKeys(requests, requests, 0, 0, source, rows_known)
    if cols.has(request_steps, "prompt_id"):
        prompt = cols.codes(request_steps, ("prompt_id",))
        null = np.asarray(request_steps["prompt_id"].isna())
        prompt = np.where(null, int(prompt.max()) + 1 + requests, prompt)
        made = np.unique(prompt, return_inverse=True)[1].astype(np.int64)
        return PromptKeys(made, requests, int(made.max()) + 1, count, "prompt_id", rows_known)
    merged = _same_sequences(request_steps, requests, count) if known and cols.has(request_steps, "prompt_len") else None
    if merged is None:
        return PromptKeys(requests, requests, count, count, source, rows_known)
    return PromptKeys(merged[requests], requests, int(merged.max()) + 1, count, "sequence", rows_known)


def _request_codes(frame: pd.DataFrame) -> tuple[Ints, Bools]:
    """Give each row the number of its request; rows without one get the number of their stretch of unbroken steps."""
    rows = len(frame)
    if "request_id" in frame.columns:
        part, distinct = pd.factorize(frame["request_id"], use_na_sentinel=True)
        made = np.asarray(part, dtype=np.int64)
    else:
        made, distinct = np.full(rows, -1, dtype=np.int64), pd.Index([])
    null = made < 0
    if null.any():
        streams = cols.stream_codes(frame)
        order = np.argsort(streams, kind="stable")
        timed = "step_us" in frame.columns or "step_time_ms" in frame.columns
        broken = np.isnan(cols.step_ms(frame)) if timed else np.zeros(rows, dtype=bool)
        starts = np.concatenate([[True], np.diff(streams[order]) != 0]) | (broken[order] if not broken.all() else False)
        stretch = np.empty(rows, dtype=np.int64)
        stretch[order] = np.cumsum(starts)
        made = np.where(null, len(distinct) + stretch, made)
    made = np.unique(made, return_inverse=True)[1].astype(np.int64).reshape(-1)
    return made, ~null


def _same_sequences(frame: pd.DataFrame, requests: Ints, count: int) -> Ints | None:
    """Give each request the number of its prompt, by prompt length and first commits; None if no two are the same."""
    tokens = cols.numeric(frame, "tokens")
    usable = np.isfinite(tokens)
    if "matched" in frame.columns:
        usable &= cols.text(frame, "matched") != "shared"
    if not usable.any():
        return None
    shares = np.unique(tokens[usable], return_counts=True)[1] / usable.sum()
    coincidence = float((shares**2).sum())
    lengths = np.full(count, np.nan)
    lengths[requests] = cols.numeric(frame, "prompt_len")
    _, twins = np.unique(lengths[np.isfinite(lengths)], return_counts=True)
    pairs = float((twins * (twins - 1) / 2).sum())
    if pairs == 0 or coincidence > 0.98:
        return None
    need = max(MIN_MATCH, int(np.ceil(np.log(0.01 / pairs) / np.log(coincidence))))
    picked = np.flatnonzero(usable)
    picked = picked[np.argsort(requests[picked], kind="stable")]
    who = requests[picked]
    starts = np.flatnonzero(np.concatenate([[True], np.diff(who) != 0]))
    sizes = np.diff(np.concatenate([starts, [len(who)]]))
    long = (sizes >= need) & np.isfinite(lengths[who[starts]])
    if long.sum() < 2:
        return None
    window = tokens[picked[(starts[long][:, None] + np.arange(need)[None, :])]]
    keys = np.column_stack([lengths[who[starts[long]]], window])
    inverse = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    if len(np.unique(inverse)) == len(inverse):
        return None
    made = np.arange(count, dtype=np.int64) + len(inverse)
    made[who[starts[long]]] = inverse
    return np.unique(made, return_inverse=True)[1].astype(np.int64).reshape(-1)
