"""What a damaged stream leaves in a line without being part of it: replacement characters for bad bytes, and control characters.

They are taken off where they cannot belong to a value: at the ends of a line, between its head and its message, and between pairs.
Inside a value they stay, and the value is then none.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_CHARS = "\ufffd\ufeff\x00-\x08\x0b-\x1f\x7f-\x9f"
_RUN = re.compile(rf"[{_CHARS}][{_CHARS}\s]*")
_ENDS = re.compile(rf"^[{_CHARS}][{_CHARS}\s]*|[{_CHARS}][{_CHARS}\s]*$")
_RE2 = "[\\x{FFFD}\\x{FEFF}\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f]"
_KEY = re.compile(r"[,;|]?\s{0,9}[\"']?[A-Za-z_#][^\s=:,;|\"'\[\]{}]{0,60}(?: [^\s=:,;|\"'\[\]{}]{1,60}){0,5}?[\"']?\s?[=:]", re.A)
_HEAD = re.compile(r"\[[\w.:, -]{0,96}\]", re.A)


def _doubtful(data: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the places of all bytes that junk could begin with; much quicker than a search for the characters."""
    made = []
    if ((data < 32) & (data != 9)).any():
        made.append(np.flatnonzero((data < 32) & (data != 9)))
    made += [np.flatnonzero(data == first) for first in (0x7F, 0xC2, 0xEF) if (data == first).any()]
    return np.sort(np.concatenate(made)) if made else np.zeros(0, dtype=np.int64)


def without_junk(messages: pa.Array, speaks: re.Pattern[str]) -> pa.Array:
    """Take junk off all lines of a batch.

    Parameters
    ----------
    messages : pyarrow.StringArray
        One line each.
    speaks : re.Pattern
        Finds a marker. Only lines that hold one lose junk between their parts too; in others it may be part of a text.

    Returns
    -------
    pyarrow.StringArray
        The same array if there is nothing to take off.
    """
    _, offsets, data = messages.buffers()
    if data is None or not len(messages):
        return messages
    bounds = np.frombuffer(offsets, dtype=np.int32)[messages.offset : messages.offset + len(messages) + 1]
    places = _doubtful(np.frombuffer(data, dtype=np.uint8)[bounds[0] : bounds[-1]])
    if not len(places):
        return messages
    rows = np.unique(np.searchsorted(bounds, places + bounds[0], side="right") - 1)
    rows = rows[np.asarray(pc.match_substring_regex(messages.take(pa.array(rows)), _RE2).fill_null(False))]
    if not len(rows):
        return messages
    made = messages.to_pylist()
    for row in rows:
        made[row] = clean(made[row], speaks)
    return pa.array(made, type=messages.type)


def clean(text: str, speaks: re.Pattern[str]) -> str:
    """Take junk off one line."""
    marker = speaks.search(text)
    if marker is None:
        return _ENDS.sub("", text)
    out: list[str] = []
    at = 0
    for run in _RUN.finditer(text):
        begin, end = run.span()
        gap = _gap(text, begin, end, speaks)
        if gap is None:
            continue
        out.append(text[at:begin])
        # A blank before the run is enough of one.
        out.append("" if out[-1].endswith((" ", "\t")) else gap)
        at = end
    out.append(text[at:])
    return "".join(out)


def _gap(text: str, begin: int, end: int, speaks: re.Pattern[str]) -> str | None:
    """Say what stands in a line for a run of junk; ``None`` if the run stays."""
    if begin == 0 or end == len(text):
        return ""
    before, after = text[begin - 1], text[end]
    if len(text) - end < 4 and not text[end:].strip(" ,;|"):
        return ""
    last = text[max(0, begin - 4) : begin].rstrip()[-1:]
    if last == "=" or (last == ":" and after in ",;|"):
        # It is all there is of a value.
        return None
    if (before.isalpha() or before == "_") and (after.isalpha() or after == "_") and not any(c.isspace() for c in text[begin:end]):
        return None
    if _KEY.match(text, end) or _HEAD.match(text, end) or speaks.match(text, end):
        return "" if after in ",;|" else " "
    return None


__all__ = ["clean", "without_junk"]
