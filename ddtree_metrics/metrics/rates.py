"""The accept rate: one name, several denominators. Which one was printed is inferred, and one meaning is made of all.

With A tokens committed a request and step (bonus included), n draft tokens and s draft steps, SGLang printed as ``accept rate``

* ``with_bonus``: A / n (0.5.6 to 0.5.10; never 0);
* ``with_bonus_steps``: A / (s + 1) (0.5.3.post2 to 0.5.5; above 1 where n differs from s + 1);
* ``drafts_only``: (A - 1) / (n - 1) (since 0.5.11);
* ``drafts_only_steps``: (A - 1) / s (per request, 0.5.3.post2 to 0.5.5).

They are comparable only within one; ``draft_acceptance`` is always (A - 1) / (n - 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddtree_metrics.metrics.confidence import number
from ddtree_metrics.steps import frames as cols
from ddtree_metrics.steps.frames import Floats
from ddtree_metrics.steps.given import takes

PRINTED = 0.005
"""Both numbers are printed with two decimals, so each is known to within this."""

CONVENTIONS = ("drafts_only", "with_bonus", "with_bonus_steps", "drafts_only_steps")


@dataclass(frozen=True)
class AcceptRate:
    """One accept rate, read.

    Attributes
    ----------
    draft_acceptance : float
        Accepted drafts by drafts proposed, ``(accept_len - 1) / (num_draft_tokens - 1)``; NaN where the draft count is not known.
    depth_acceptance : float
        The same by depth, ``(accept_len - 1) / num_steps``; NaN where the depth is not known.
    rate_convention : str or None
        Which formula gives the printed rate; ``ambiguous`` where several do.
    raw : float
        The rate as printed.
    reason : str or None
        Why something is not known.
    """

    draft_acceptance: float
    depth_acceptance: float
    rate_convention: str | None
    raw: float
    reason: str | None = None


def accept_rate(accept_len: Any, accept_rate: Any, num_draft_tokens: Any = None, num_steps: Any = None) -> AcceptRate:
    """Read one pair of ``accept len`` and ``accept rate``.

    Parameters
    ----------
    accept_len, accept_rate : float
        As printed.
    num_draft_tokens, num_steps : int, optional
        ``--speculative-num-draft-tokens`` and ``--speculative-num-steps`` of the server.

    Returns
    -------
    AcceptRate

    Examples
    --------
    >>> accept_rate(2.20, 0.55, 4).rate_convention, round(accept_rate(2.20, 0.55, 4).draft_acceptance, 3)
    ('with_bonus', 0.4)
    >>> accept_rate(2.20, 0.40, 4).rate_convention
    'drafts_only'
    """
    row = pd.DataFrame({"accept_len": [number(accept_len)], "accept_rate": [number(accept_rate)]})
    made = accept_rates(row, num_draft_tokens=num_draft_tokens, num_steps=num_steps).iloc[0]
    return AcceptRate(
        float(made["draft_acceptance"]),
        float(made["depth_acceptance"]),
        made["rate_convention"],
        float(made["accept_rate"]),
        made["rate_why"],
    )


@takes("decode")
def accept_rates(
    decode: pd.DataFrame, *, num_draft_tokens: Any = None, num_steps: Any = None, servers: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Read the accept rates of Decode lines.

    Parameters
    ----------
    decode : pandas.DataFrame
        ``accept_len`` and ``accept_rate``, as printed.
    num_draft_tokens, num_steps : int, optional
        The server's settings. Taken from ``servers`` where they are not given.
    servers : pandas.DataFrame, optional
        Server starts; each line takes the last one before it on the same host and unit.

    Returns
    -------
    pandas.DataFrame
        A copy with ``draft_acceptance``, ``depth_acceptance``, ``rate_convention`` and ``rate_why``. A line that fits several
        formulas takes the one that the other lines of the same server start settle, and is ``ambiguous`` where none does. The raw
        column stays as it is and must not be averaged over lines of different conventions.
    """
    accept, rate = cols.finite(cols.numeric(decode, "accept_len")), cols.finite(cols.numeric(decode, "accept_rate"))
    start = _server_of(decode, servers)
    drafts = _setting(decode, servers, start, "num_draft_tokens", num_draft_tokens)
    depth = _setting(decode, servers, start, "num_steps", num_steps)
    with np.errstate(invalid="ignore", divide="ignore"):
        draft_acceptance = np.where(drafts > 1, (accept - 1) / (drafts - 1), np.nan)
        depth_acceptance = np.where(depth > 0, (accept - 1) / depth, np.nan)
        fits = np.column_stack(
            [
                _near(rate, accept - 1, drafts - 1),
                _near(rate, accept, drafts),
                _near(rate, accept, depth + 1),
                _near(rate, accept - 1, depth),
            ]
        )
    fits[drafts == depth + 1, 2] = False  # then it is the same formula as with_bonus
    fits[:, 3] &= ~fits[:, :3].any(axis=1)  # log lines never used it; it is tried last
    count = fits.sum(axis=1)
    convention = np.full(len(decode), None, dtype=object)
    only = count == 1
    convention[only] = np.asarray(CONVENTIONS, dtype=object)[np.argmax(fits[only], axis=1)]
    convention[count > 1] = "ambiguous"
    for group in np.unique(start):
        rows = start == group
        clear = list(convention[rows & only])
        if clear:
            names, counts = np.unique(np.asarray(clear, dtype=str), return_counts=True)
            best = str(names[int(np.argmax(counts))])
            if counts.max() >= 0.9 * counts.sum():
                convention[rows & (count > 1) & fits[:, CONVENTIONS.index(best)]] = best
    why = _rate_reasons(accept, rate, drafts, depth, convention, draft_acceptance)
    made = decode.copy()
    made["draft_acceptance"] = draft_acceptance
    made["depth_acceptance"] = depth_acceptance
    made["rate_convention"] = pd.Series(convention, index=decode.index, dtype=object)
    made["rate_why"] = pd.Series(why, index=decode.index, dtype=object)
    return made


def _rate_reasons(
    accept: Floats, rate: Floats, drafts: Floats, depth: Floats, convention: NDArray[Any], acceptance: Floats
) -> NDArray[Any]:
    """Say for each line what is not known, or None."""
    why = np.full(len(accept), None, dtype=object)
    unknown = np.isnan(drafts) & np.isnan(depth)
    why[convention == "ambiguous"] = "the printed rate fits more than one formula"
    no_fit = (convention == None) & np.isfinite(rate)  # noqa: E711 - elementwise
    why[no_fit] = "the printed rate fits no known formula with these settings (adaptive drafting, or other settings)"
    why[no_fit & (rate > 1)] = "the printed rate is above 1 and fits no known formula with these settings"
    why[np.isnan(rate)] = "no accept rate was printed"
    why[np.isnan(drafts)] = "the number of draft tokens is not known"
    why[unknown] = "neither the number of draft tokens nor the depth is known: the printed rate is kept as it is"
    why[np.isnan(accept)] = "no accept length was printed"
    why[(drafts <= 1) & np.isnan(acceptance)] = "there are no draft tokens"
    return why


def _near(rate: Floats, above: Floats, below: Floats) -> NDArray[np.bool_]:
    """Tell whether a printed rate may be ``above / below``, both numbers rounded to two decimals."""
    return np.asarray((below > 0) & (np.abs(rate - above / below) <= PRINTED + PRINTED / below + 1e-9))


def _server_of(decode: pd.DataFrame, servers: pd.DataFrame | None) -> NDArray[np.int64]:
    """Find the number of the server start that each line belongs to; -1 before the first, or where none is known."""
    made = np.full(len(decode), -1, dtype=np.int64)
    if servers is None or not len(servers):
        return made
    starts, stamps = cols.time_us(servers), cols.time_us(decode)
    keys = {k: (cols.text(servers, k), cols.text(decode, k)) for k in ("host", "unit")}
    for row in np.argsort(np.nan_to_num(starts, nan=-np.inf), kind="stable"):
        with np.errstate(invalid="ignore"):
            hit = (stamps >= starts[row]) | np.isnan(stamps) | np.isnan(starts[row])
        for theirs, mine in keys.values():
            if theirs[row] is not None:
                hit &= (mine == theirs[row]) | (mine == None)  # noqa: E711 - elementwise
        made[hit] = row
    return made


def _setting(decode: pd.DataFrame, servers: pd.DataFrame | None, start: NDArray[np.int64], name: str, given: Any) -> Floats:
    """Return a server setting for each line: as given, else of its server start, else of a column of the line."""
    if given is not None:
        return np.full(len(decode), number(given))
    made = cols.numeric(decode, name)
    if servers is not None and len(servers):
        values = cols.numeric(servers, name)
        made = np.where(start >= 0, values[np.maximum(start, 0)], made)
    return made


@dataclass(frozen=True)
class RankMean:
    """A mean over ranks, each weighted by how much it counted.

    Attributes
    ----------
    value : float
        The mean; NaN where no rank counts.
    ranks, nulls : int
        Ranks used, and ranks that said nothing (they are not zero, they are left out).
    weight : float
        Sum of the weights used.
    reason : str or None
        Why there is no value.
    """

    value: float
    ranks: int
    nulls: int
    weight: float
    reason: str | None = None


def weighted_mean_over_ranks(values: Iterable[Any], weights: Iterable[Any]) -> RankMean:
    """Average a value over ranks by weight; a rank without value or weight is left out, not counted as zero.

    Parameters
    ----------
    values : iterable of float or None
        One value a rank, such as its mean commit length.
    weights : iterable of float or None
        How much each stands for, such as its verify count.

    Returns
    -------
    RankMean

    Examples
    --------
    >>> round(weighted_mean_over_ranks([None, 2.90, 3.67, None, 4.64], [None, 100, 300, None, 50]).value, 3)
    3.607
    """
    value = np.array([number(v) for v in values], dtype=float)
    weight = np.array([number(w) for w in weights], dtype=float)
    if len(value) != len(weight):
        return RankMean(float("nan"), 0, 0, 0.0, "not as many weights as values")
    with np.errstate(invalid="ignore"):
        used = np.isfinite(value) & np.isfinite(weight) & (weight > 0)
    total = float(weight[used].sum())
    if not used.any():
        return RankMean(float("nan"), 0, len(value), 0.0, "no rank has both a value and a weight")
    return RankMean(float((value[used] * weight[used]).sum() / total), int(used.sum()), int((~used).sum()), total)
