"""What a server says, without the key that it was sent: an echo in any field, whole or in pieces, plain or encoded."""

from __future__ import annotations

import base64
import dataclasses
import re
import urllib.parse
from collections.abc import Callable, Iterable
from typing import Any

from ddtree_metrics.dialects.secrets import REDACTED
from ddtree_metrics.validation import printable

PIECE = 8
"""Characters of a secret that give it away; a shorter secret is replaced as a whole."""
_LAYERS = 4
_ESCAPE = re.compile(
    r"(?:%[0-9a-fA-F]{2})+|\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|&#x([0-9a-fA-F]{1,5});|&#([0-9]{1,6});|&(amp|lt|gt|quot|apos);|\\([\\/\"'])"
)
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_SIXTEEN = (1, 2, 3)


class KeyFilter:
    """Replace secrets in texts.

    Parameters
    ----------
    secrets : iterable of str
        Keys and passwords; empty ones are none.
    packed : iterable of str
        Texts that are secret only in base64, as ``user:password`` is in a header.
    """

    def __init__(self, secrets: Iterable[str], packed: Iterable[str] = ()) -> None:
        self._short: list[re.Pattern[str]] = []
        self._pieces: set[str] = set()
        for secret in filter(None, secrets):
            if len(secret) < PIECE:
                edge = r"(?<!\w){}(?!\w)" if len(secret) < PIECE // 2 else "{}"
                self._short.append(re.compile(edge.format(re.escape(secret)), re.I))
            for form in {secret, secret.encode().hex(), *_in_base64(secret)}:
                self._learn(form)
        for text in filter(None, packed):
            for form in _in_base64(text):
                self._learn(form)

    def _learn(self, form: str) -> None:
        form = form.lower()
        self._pieces.update(form[i : i + PIECE] for i in range(len(form) - PIECE + 1))

    def __call__(self, text: str) -> str:
        """Return a text without pieces of a secret and with nothing that a terminal would obey."""
        text = printable(text)
        if not self._pieces and not self._short:
            return text
        plain, places = text, [(i, i + 1) for i in range(len(text))]
        covered: list[tuple[int, int]] = []
        for _ in range(_LAYERS):
            covered += [(places[a][0], places[b - 1][1]) for a, b in self._found(plain)]
            opened, where = _opened(plain)
            if opened == plain:
                break
            plain, places = opened, [(places[a][0], places[b - 1][1]) for a, b in where]
        return _without(text, covered)

    def _found(self, text: str) -> list[tuple[int, int]]:
        found = [(i, i + PIECE) for i in range(len(text) - PIECE + 1) if text[i : i + PIECE].lower() in self._pieces]
        return found + [m.span() for pattern in self._short for m in pattern.finditer(text)]


def _in_base64(secret: str) -> set[str]:
    """Return the characters of base64 that depend on the secret alone, for each place in a triple that it may begin at."""
    made = set()
    for before, dependent in enumerate((0, 2, 3)):
        raw = base64.b64encode(b"\0" * before + secret.encode()).decode()
        whole = (before + len(secret.encode())) * 8 // 6
        made |= {raw[dependent:whole], raw[dependent:whole].translate({ord("+"): "-", ord("/"): "_"})}
    return made


def _opened(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Undo one layer of escapes of URLs, JSON, Python and HTML; return the text, and where each character of it stood."""
    made: list[str] = []
    where: list[tuple[int, int]] = []
    at = 0
    for found in _ESCAPE.finditer(text):
        made += text[at : found.start()]
        where += [(i, i + 1) for i in range(at, found.start())]
        at = found.end()
        characters = _unescaped(found)
        made += characters
        if found[0][0] == "%" and len(characters) * 3 == len(found[0]):
            where += [(i, i + 3) for i in range(found.start(), at, 3)]
        else:
            where += [found.span()] * len(characters)
    made += text[at:]
    where += [(i, i + 1) for i in range(at, len(text))]
    return "".join(made), where


def _unescaped(found: re.Match[str]) -> str:
    if found[0][0] == "%":
        return urllib.parse.unquote(found[0])
    if found[5]:
        return _NAMED[found[5]]
    if found[6]:
        return found[6]
    hexadecimal = next((found[i] for i in _SIXTEEN if found[i]), None)
    return chr(int(hexadecimal, 16) if hexadecimal else int(found[4]))


def _without(text: str, covered: list[tuple[int, int]]) -> str:
    made, at, end = [], 0, -1
    for start, stop in sorted(covered):
        if start > end:
            made += [text[at:start], REDACTED]
        end = max(end, stop)
        at = end
    return "".join([*made, text[at:]])


def clean_texts(value: Any, clean: Callable[[str], str]) -> Any:
    """Return plain values and dataclasses with every text in them cleaned, names of settings too."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean_texts(k, clean): clean_texts(v, clean) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(clean_texts(v, clean) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{f.name: clean_texts(getattr(value, f.name), clean) for f in dataclasses.fields(value)})
    return value
