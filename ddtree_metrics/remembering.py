"""What a reading remembers from line to line, as JSON and back: plain values and objects of classes that are named beforehand.

Nothing of it is run, and no class is looked up by a name in the text that was not given, so that a file of somebody else does no harm.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from ddtree_metrics.times import EPOCH


def to_plain(value: Any, classes: Iterable[type]) -> Any:
    """Return a value as data that JSON can hold.

    Parameters
    ----------
    value : object
        Numbers, text, bytes, instants, arrays of int64, lists, tuples, sets and dicts of them, and objects of ``classes``.
    classes : iterable of type
        The classes whose objects may be among them.
    """
    known = {kind: name for name, kind in _named(classes).items()}

    def plain(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, datetime):
            return {"us": (value - EPOCH) // timedelta(microseconds=1)}
        if isinstance(value, np.ndarray):
            return {"array": value.tolist()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        if isinstance(value, tuple | set | frozenset):
            kind = "tuple" if isinstance(value, tuple) else "set"
            return {kind: [plain(item) for item in (value if kind == "tuple" else sorted(value))]}
        if isinstance(value, dict):
            return {"dict": [[plain(key), plain(item)] for key, item in value.items()]}
        return {"object": known[type(value)], "fields": {name: plain(getattr(value, name)) for name in _fields(value)}}

    return plain(value)


def from_plain(data: Any, classes: Iterable[type]) -> Any:
    """Return the value that `to_plain` made plain."""
    known = _named(classes)

    def value(data: Any) -> Any:
        if isinstance(data, list):
            return [value(item) for item in data]
        if not isinstance(data, dict):
            return data
        if "object" in data:
            made: Any = object.__new__(known[data["object"]])
            for name, item in data["fields"].items():
                setattr(made, name, value(item))
            return made
        ((kind, inner),) = data.items()
        if kind == "dict":
            return {value(key): value(item) for key, item in inner}
        if kind == "bytes":
            return base64.b64decode(inner)
        if kind == "us":
            return EPOCH + timedelta(microseconds=inner)
        if kind == "array":
            return np.asarray(inner, dtype=np.int64)
        return (tuple if kind == "tuple" else set)(value(item) for item in inner)

    return value(data)


def _named(classes: Iterable[type]) -> dict[str, type]:
    return {f"{kind.__module__}.{kind.__qualname__}": kind for kind in classes}


def _fields(value: Any) -> list[str]:
    return [f.name for f in fields(value)] if is_dataclass(value) else list(vars(value))
