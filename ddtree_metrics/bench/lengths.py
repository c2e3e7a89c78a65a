"""Cut a text so that the server counts exactly the wanted number of tokens.

Only the server knows its tokenizer, so the length is found by asking: a cut is tried, the count read, the next cut estimated
from both. Cuts fall between words; characters decide the last token or two.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_FILL = (" a", ".", " the", "\n", ",", " I", "a")


@dataclass(slots=True)
class Fitted:
    """A prompt of a known length.

    Attributes
    ----------
    text : str
    tokens : int or None
        As the server counted it; ``None`` if it does not count.
    exact : bool
        Whether that is the wanted number.
    tries : int
        How often the server was asked.
    """

    text: str
    tokens: int | None
    exact: bool
    tries: int


def fit(text: str, wanted: int, count: Callable[[str], int | None], *, characters_a_token: float = 4.2, tries: int = 24) -> Fitted:
    """Cut ``text`` to ``wanted`` tokens.

    Parameters
    ----------
    text : str
        Longer than will be needed; its head is kept.
    wanted : int
        Tokens.
    count : callable
        Asks the server for the length of a text; ``None`` stops the search.
    characters_a_token : float
        First guess; only the number of tries depends on it.
    tries : int
        How often to ask at most.

    Returns
    -------
    Fitted
        The nearest length found where the exact one does not exist.
    """
    ends = [m.end() for m in re.finditer(r"\S+", text)]
    asked: dict[str, int] = {}
    best: tuple[int, int, str] | None = None

    def ask(piece: str) -> int | None:
        nonlocal best
        if piece not in asked:
            got = count(piece)
            if got is None:
                return None
            asked[piece] = got
            if best is None or (abs(got - wanted), got > wanted) < best[:2]:
                best = (abs(got - wanted), got > wanted, piece)
        return asked[piece]

    def done() -> bool:
        return (best is not None and best[0] == 0) or len(asked) >= tries

    low, high = -1, len(ends)  # word cuts known to be short, and known to be long
    at = _nearest(ends, wanted * characters_a_token)
    while not done() and high - low > 1:
        got = ask(text[: ends[at]])
        if got is None:
            break
        if got <= wanted:
            low = at
        else:
            high = at
        if len(asked) < 8:
            near = _nearest(ends, ends[at] + (wanted - got) * ends[at] / max(1, got))
            at = max(low + 1, min(high - 1, near))
        else:
            at = (low + high) // 2
    if not done() and low >= 0 and high < len(ends):
        for cut in range(ends[low] + 1, ends[high]):  # inside the word that is one too many
            got = ask(text[:cut])
            if done() or got is None or got > wanted:
                break
    shorter = [piece for piece, got in asked.items() if got < wanted]
    if not done() and shorter:  # no cut has it: a character of several tokens lies there
        start = max(shorter, key=lambda piece: asked[piece])
        for filler in _FILL:
            got = ask(start + filler * (wanted - asked[start]))
            if done() or got is None:
                break
    if best is None:
        return Fitted(text[: ends[at]], None, False, len(asked))
    return Fitted(best[2], asked[best[2]], best[0] == 0, len(asked))


def _nearest(ends: list[int], characters: float) -> int:
    """Return the index of the word end nearest to a number of characters."""
    import bisect

    at = bisect.bisect_left(ends, characters)
    return max(0, min(len(ends) - 1, at))
