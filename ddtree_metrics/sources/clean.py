"""Messages as they should be: valid UTF-8, no colour codes, one line each.

Everything here works on whole arrays; only messages that have something odd in them are looked at one by one.
"""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

ESC = b"\x1b"
# CSI sequences (colours, cursor moves), OSC (titles, links; ended by BEL or ESC \), and two-character sequences. No terminal needs a
# sequence of more than some dozen characters, so a stray ESC [ eats at most 64, and a stray ESC ] at most 512.
_ESCAPES = rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b\r\n\x00]{0,512}(?:\x07|\x1b\\)|[ -/]{1,4}[0-~]|[@-Z\\^_=>])?"
ANSI = re.compile(_ESCAPES)
ANSI_TEXT = re.compile(_ESCAPES.decode("ascii"))

_BREAKS = "[\\r\\n\\x00]+"


def strip_ansi(text: str) -> str:
    """Return a text without colour codes and other terminal sequences."""
    return ANSI_TEXT.sub("", text) if "\x1b" in text else text


def shown(path: str | os.PathLike[str]) -> str:
    """Return a file's name as it can be printed and stored; names are bytes, and may be no UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def decode(value: bytes) -> tuple[str, bool]:
    """Decode bytes, each bad one replaced by U+FFFD; also say whether there was one."""
    try:
        return value.decode(), False
    except UnicodeDecodeError:
        return value.decode("utf-8", "replace"), True


def to_text(values: pa.Array) -> tuple[pa.StringArray, int]:
    """Make strings of a binary array, bad bytes replaced.

    Returns
    -------
    strings : pyarrow.StringArray
    bad : int
        How many values had bytes that are no UTF-8.
    """
    try:
        return values.cast(pa.string()), 0
    except pa.ArrowInvalid:
        pass
    rows = _rows_with_high_bytes(values)
    mended, at = [], []
    for row, value in zip(rows.tolist(), values.take(pa.array(rows)).to_pylist(), strict=True):
        text, bad = decode(value)
        if bad:
            mended.append(text.encode())
            at.append(row)
    return replaced(values, np.asarray(at, dtype=np.int64), pa.array(mended, pa.binary())).cast(pa.string()), len(at)


def _rows_with_high_bytes(values: pa.Array) -> NDArray[np.int64]:
    """Rows of a binary array that hold a byte above 127."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(values.buffers()[2], np.uint8)
    first = int(offsets[0])
    high = np.flatnonzero(data[first : int(offsets[-1])] >= 128) + first
    return np.unique(np.searchsorted(offsets, high, side="right") - 1).astype(np.int64)


def replaced(values: pa.Array, at: NDArray[np.int64], new: pa.Array) -> pa.Array:
    """Return the array with ``new`` in the rows ``at`` (ascending, each once)."""
    if not len(at):
        return values
    mask = np.zeros(len(values), dtype=bool)
    mask[at] = True
    return pc.replace_with_mask(values, pa.array(mask), new)


def without_ansi(values: pa.Array) -> pa.Array:
    """Strip terminal sequences from a binary array."""
    rows = np.flatnonzero(np.asarray(pc.match_substring(values, ESC)))
    if not len(rows):
        return values
    new = pa.array([ANSI.sub(b"", v) for v in values.take(pa.array(rows)).to_pylist()], pa.binary())
    return replaced(values, rows, new)


def split_lines(values: pa.StringArray) -> tuple[pa.StringArray, NDArray[np.int64] | None]:
    """Make one row of each line inside the values.

    Returns
    -------
    lines : pyarrow.StringArray
        Without line ends; empty pieces are left out where a value has others.
    parents : ndarray of int64 or None
        The row each line comes from; ``None`` if the rows are as they were.
    """
    odd = np.asarray(pc.match_substring_regex(values, _BREAKS))
    if not odd.any():
        return values, None
    texts: list[str] = []
    parents: list[Any] = []
    rows = np.flatnonzero(odd)
    for row, value in zip(rows.tolist(), values.take(pa.array(rows)).to_pylist(), strict=True):
        pieces = [p for p in re.split(_BREAKS, value) if p] or [""]
        texts += pieces
        parents += [row] * len(pieces)
    plain = np.flatnonzero(~odd)
    every = np.concatenate([plain, np.asarray(parents, dtype=np.int64)])
    order = np.argsort(every, kind="stable")
    pool = pa.concat_arrays([values.take(pa.array(plain)), pa.array(texts, pa.string())])
    return pool.take(pa.array(order)), every[order]


def any_byte(values: pa.Array, wanted: tuple[bytes, ...]) -> bool:
    """Say whether one of some bytes is anywhere in the data of a binary or string array."""
    data = values.buffers()[2]
    if data is None or not len(values):
        return False
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    whole = data.slice(int(offsets[values.offset]), int(offsets[values.offset + len(values)] - offsets[values.offset])).to_pybytes()
    return any(w in whole for w in wanted)


def clean_messages(values: pa.Array) -> tuple[pa.StringArray, NDArray[np.int64] | None, int]:
    """Strip colours, mend UTF-8 and split lines of raw messages.

    Parameters
    ----------
    values : pyarrow.BinaryArray
        Raw messages.

    Returns
    -------
    lines : pyarrow.StringArray
    parents : ndarray of int64 or None
        The message each line comes from; ``None`` if they are the same rows.
    bad : int
        How many messages had bytes that are no UTF-8.
    """
    odd = any_byte(values, (ESC, b"\r", b"\n", b"\0"))
    texts, bad = to_text(without_ansi(values) if odd else values)
    if not odd:
        return texts, None, bad
    lines, parents = split_lines(texts)
    return lines, parents, bad
