"""Bob Jenkins' lookup3 hash (public domain) of many byte strings at once, as journal files use it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
_INIT = np.uint32(0xDEADBEEF)


def _turned(x: Words, by: int) -> Words:
    return (x << np.uint32(by)) | (x >> np.uint32(32 - by))


def hashes(words: Words, begin: NDArray[np.int64], length: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return ``jenkins_hash64`` of stretches of a buffer.

    Parameters
    ----------
    words : ndarray of uint32
        The buffer; three words behind the last stretch must be there.
    begin : ndarray of int64
        Where each stretch begins, in words.
    length : ndarray of int64
        Its bytes, at least one.

    Returns
    -------
    ndarray of uint64
    """
    # Those of many rounds first, so that each round works on the first ones.
    order = np.argsort(-length, kind="stable")
    at, left = begin[order], length[order].copy()
    a = _INIT + left.astype(np.uint32)
    b, c = a.copy(), a.copy()
    rounds = (left - 1) // 12
    for turn in range(int(rounds[0]) if len(rounds) else 0):
        n = int(np.searchsorted(-rounds, -turn, side="left"))
        x, y, z = (part[:n] for part in (a, b, c))
        place = at[:n] + 3 * turn
        x += words[place]
        y += words[place + 1]
        z += words[place + 2]
        for one, two, three, by in ((x, z, y, 4), (y, x, z, 6), (z, y, x, 8), (x, z, y, 16), (y, x, z, 19), (z, y, x, 4)):
            one -= two
            one ^= _turned(two, by)
            two += three
    place, rest = at + 3 * rounds, left - 12 * rounds
    for k, part in enumerate((a, b, c)):
        kept = np.clip(rest - 4 * k, 0, 4).astype(np.uint64)
        part += words[place + k] & ((np.uint64(1) << (np.uint64(8) * kept)) - np.uint64(1)).astype(np.uint32)
    for one, two, by in ((c, b, 14), (a, c, 11), (b, a, 25), (c, b, 16), (a, c, 4), (b, a, 14), (c, b, 24)):
        one ^= two
        one -= _turned(two, by)
    made = np.empty(len(order), np.uint64)
    made[order] = (c.astype(np.uint64) << np.uint64(32)) | b.astype(np.uint64)
    return made


def hashes_of(texts: list[bytes]) -> NDArray[np.uint64]:
    """Return the hashes of some byte strings; 0 for empty ones."""
    sizes = np.array([len(text) for text in texts], np.int64)
    padded = [text + bytes(4 + -len(text) % 4) for text in texts]
    begin = np.cumsum([0, *map(len, padded)])[:-1] // 4
    words = np.frombuffer(b"".join([*padded, bytes(16)]), np.uint32)
    made = np.zeros(len(texts), np.uint64)
    some = sizes > 0
    made[some] = hashes(words, begin[some], sizes[some])
    return made
