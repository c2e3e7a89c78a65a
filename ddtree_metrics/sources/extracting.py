"""Frames found at the heads of texts, and taken off: a column at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Index = NDArray[np.int64]


def first_bytes(texts: pa.Array) -> NDArray[np.uint8]:
    """Return the first byte of each string, 0 for empty ones."""
    n = len(texts)
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + n + 1]
    data = texts.buffers()[2]
    if data is None or not len(data):
        return np.zeros(n, np.uint8)
    every = np.frombuffer(data, np.uint8)
    return np.where(offsets[1:] > offsets[:-1], every[np.minimum(offsets[:-1], len(every) - 1)], 0).astype(np.uint8)


def extract(texts: pa.Array, pattern: str) -> tuple[NDArray[np.bool_], Any]:
    """Return which texts match, and the groups of those that do."""
    found = pc.extract_regex(texts, pattern)
    matched = np.asarray(found.is_valid()).copy()
    if not matched.any():
        return matched, pa.array([], pa.string())
    if not matched.all():
        found, texts = found.filter(pa.array(matched)), texts.filter(pa.array(matched))
    groups = {found.type.field(i).name: column for i, column in enumerate(found.flatten())}
    groups["text"] = _tails(texts, np.asarray(pc.binary_length(groups["head"])))
    return matched, groups


def _tails(texts: pa.Array, lengths: NDArray[np.int32]) -> pa.Array:
    """Return what follows the first bytes of each text; the heads of a file have few different lengths."""
    different = np.unique(lengths).tolist()
    if len(different) > 256:
        whole = zip(texts.to_pylist(), lengths.tolist(), strict=True)
        return pa.array([text.encode()[length:].decode() for text, length in whole], pa.string())
    raw = texts.view(pa.binary())
    if len(different) == 1:
        return pc.binary_replace_slice(raw, 0, different[0], b"").view(pa.string())
    at = [np.flatnonzero(lengths == length) for length in different]
    parts = [pc.binary_replace_slice(raw.take(pa.array(rows)), 0, length, b"") for rows, length in zip(at, different, strict=True)]
    return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(at)))).view(pa.string())


def only(
    matched: NDArray[np.bool_], groups: dict[str, pa.Array], ok: NDArray[np.bool_], values: Index
) -> tuple[NDArray[np.bool_], dict[str, pa.Array], Index]:
    """Keep those of the matches that are right in other ways, too."""
    if ok.all():
        return matched, groups, values
    matched[np.flatnonzero(matched)[~ok]] = False
    keep = pa.array(ok)
    return matched, {name: column.filter(keep) for name, column in groups.items()}, values[ok]
