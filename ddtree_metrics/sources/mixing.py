"""Numbers that stand for what is compared: hashes of several values, and which of some equal ones each is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Ints = NDArray[np.int64]


def mixed(keys: Keys, values: Ints) -> Keys:
    """Mix values into keys (with the constants of MurmurHash3's finaliser, public domain).

    Parameters
    ----------
    keys : ndarray of uint64, shape (n,)
    values : ndarray of int64, shape (n,)

    Returns
    -------
    ndarray of uint64, shape (n,)
    """
    made: Keys = (keys ^ values.astype(np.uint64)) * np.uint64(0xFF51AFD7ED558CCD)
    made ^= made >> np.uint64(33)
    made *= np.uint64(0xC4CEB9FE1A85EC53)
    return made ^ (made >> np.uint64(29))


def turns(ordered: Keys) -> Ints:
    """Say which of the equal ones each of some sorted keys is, from 0."""
    starts = np.flatnonzero(np.insert(ordered[1:] != ordered[:-1], 0, True)) if len(ordered) else np.empty(0, dtype=np.int64)
    return np.arange(len(ordered)) - np.repeat(starts, np.diff(np.append(starts, len(ordered))))


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the different values, sorted; by sorting them, for NumPy's hash table takes a hundred times as long for millions."""
    ordered = np.sort(values)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered
