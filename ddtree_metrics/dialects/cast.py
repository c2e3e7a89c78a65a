"""From the text of one value to what its column holds, strictly: what is no number is not made one."""

from __future__ import annotations

import math
import re
from typing import Any

from ddtree_metrics.dialects.base import Broken
from ddtree_metrics.dialects.secrets import clean_value, kept_id

INT32 = 2**31 - 1
INT64 = 2**63 - 1
MOST = 1e15
"""No measure of a server is as large; sums and squares of smaller ones are finite and exact."""

_A = re.ASCII
_TEXTS = re.compile(r"'[^']*'|\"[^\"]*\"|[^\s,]+")
_NAME_CALL = re.compile(r"\b(?:np|numpy|torch|jnp)?\.?(?:u?int\d*|float\d+|array|tensor|Tensor|Array)\(", _A)
_KEYWORD = re.compile(r",\s*(?:device|dtype)\s*=[^,)\]]*", _A)
_THOUSANDS = re.compile(r",0\d", _A)
"""What no list holds, but a number with commas does: ``[1,024]``."""
_INT = re.compile(r"[+-]?\d+", _A)
_WHOLE = re.compile(r"[+-]?\d+(?:\.0+)?", _A)
_FLOAT = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?", _A)


def number(text: str, kind: str, wide: bool = False, whole: bool = False) -> int | float:
    """Read one number that a count or a mean may be.

    Parameters
    ----------
    text : str
        Without blanks around it.
    kind : str
        ``int`` or ``float``.
    wide : bool
        Whether the column holds 64 bits.
    whole : bool
        Take ``4.00`` for an integer too.

    Raises
    ------
    Broken
        ``bad_number``, ``negative`` or ``out_of_range``.
    """
    if kind == "int":
        if not (_WHOLE if whole else _INT).fullmatch(text):
            raise Broken("out_of_range" if _FLOAT.fullmatch(text) and math.isinf(float(text)) else "bad_number")
        digits = text.partition(".")[0]
        if len(digits.lstrip("+-0")) > 19:
            raise Broken("negative" if digits.startswith("-") else "out_of_range")
        made = int(digits)
        if made < 0:
            raise Broken("negative")
        if made > (INT64 if wide else INT32):
            raise Broken("out_of_range")
        return made
    if not _FLOAT.fullmatch(text):
        raise Broken("bad_number")
    value = float(text)
    if value < 0:
        raise Broken("negative")
    if value >= MOST:
        raise Broken("out_of_range")
    return value


def _unwrap(text: str) -> str:
    """Take quotes and NumPy's, PyTorch's and JAX's wrapping off a value."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1].strip()
    if "(" in text and _NAME_CALL.search(text):
        text = _KEYWORD.sub("", text)
        out, depth = [], []
        at = 0
        while at < len(text):
            call = _NAME_CALL.match(text, at)
            if call:
                depth.append(True)
                at = call.end()
                continue
            char = text[at]
            if char == "(":
                depth.append(False)
            if char == ")" and depth and depth.pop():
                at += 1
                continue
            out.append(char)
            at += 1
        text = "".join(out).strip()
    return text


def _elements(text: str) -> list[str] | None:
    """Split ``[1, 2]``, ``(1,)`` or ``[1 2]`` into its elements; ``None`` if it is no list."""
    if len(text) < 2 or (text[0], text[-1]) not in (("[", "]"), ("(", ")")):
        return None
    inner = text[1:-1].strip()
    if inner.endswith(","):
        inner = inner[:-1].rstrip()
    if not inner:
        return []
    return re.split(r"\s*,\s*|\s+", inner)


def convert(text: str, kind: str, wide: bool = False) -> Any:
    """Turn the text of a value into what its column holds; a scalar for a list becomes a list of one.

    Raises
    ------
    Broken
        With the reason.
    """
    if kind in ("int", "list<int>") and text.isdecimal() and text.isascii() and len(text) < 10:
        return int(text) if kind == "int" else [int(text)]
    text = text.strip()
    quoted = text[:1] in ("'", '"')
    text = _unwrap(text)
    if text in ("None", "null", "n/a", "NULL"):
        return None
    if kind == "str":
        return clean_value(text)
    if kind == "bool":
        if text in ("True", "true", "1"):
            return True
        if text in ("False", "false", "0"):
            return False
        raise Broken("bad_value")
    if kind == "list<str>":
        if len(text) < 2 or (text[0], text[-1]) not in (("[", "]"), ("(", ")")):
            if not quoted and re.search("[,;|]", text):
                raise Broken("bad_value")
            return [kept_id(text)]
        return [kept_id(m[0][1:-1] if m[0][0] in "\"'" else m[0]) for m in _TEXTS.finditer(text, 1, len(text) - 1)]
    if kind == "list<int>":
        parts = _elements(text)
        if parts is None:
            return [number(text, "int", wide, whole=True)]
        if _THOUSANDS.search(text):
            raise Broken("bad_number")
        return [number(p, "int", wide) for p in parts]
    if kind in ("int", "float"):
        parts = _elements(text)
        if parts is not None:
            if len(parts) != 1:
                raise Broken("bad_value")
            text = parts[0]
        return number(text, kind, wide)
    raise Broken("bad_value")
