"""Secrets do not leave the log: keys and values that look like one are replaced before anything is kept.

A key is a secret by its name (``api_key``, ``auth_token``, ``password``), a value by its shape (``sk-…``, ``Bearer …``) whatever its key
is. A key that merely ends in ``_key`` (``cache_key``) is one only if its value looks like a random text.
"""

from __future__ import annotations

import functools
import re

REDACTED = "<redacted>"

_KEY_WORDS = (
    r"(?:api|access|secret|private|signing|encryption|license|master|admin|auth|client|service|account|session|ssh|ssl|user|subscription"
    r"|watermark)_keys?"
)
_SECRET = re.compile(
    rf"(?:^|_)(?:{_KEY_WORDS}|api_?keys?|secret\w*|passw(?:or)?ds?|passphrases?|credentials?|authorization|bearer)(?:_|$)"
    r"|(?:^|_)(?:tokens?(?:_(?:value|secret|\d+))?|auth(?:_(?:header|value|string|data))?)$",
    re.I,
)
_KEYED = re.compile(r"(?:^|_)keys?(?:_|$)", re.I)
_RANDOM = re.compile(r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[\w+/=.-]{16,}", re.A)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|True|False|None|null|true|false|\[[\d, ]*\]", re.A)
_URL = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]{0,30}://)[^\s/@'\"]+@")
_NAMES = r"(?:key|secret|passw(?:or)?d|passphrase|credential|authorization|auth|token|bearer)s?"
_IN_TEXT = re.compile(
    rf"(?P<key>[\"']?(?<![\w-])[\w-]{{0,60}}{_NAMES}(?:[_-]\w{{1,40}})?[\"']?)(?P<sep>\s{{0,9}}[=:]\s{{0,9}})"
    r"(?P<value>\"(?:\\.|[^\"\\])*\"?|'(?:\\.|[^'\\])*'?|(?:(?:Bearer|Basic)\s+)?[^\s,;)}\]]+)",
    re.I | re.A,
)
_SCHEME = re.compile(
    r"\b(Bearer|Basic)\s{1,9}(?=[A-Za-z0-9._~+/=-]{6})(?:[A-Za-z0-9._~+/=-]{16,}|[A-Za-z]*[\d._~+/=-][A-Za-z0-9._~+/=-]*)", re.I
)
_SHAPES = (
    r"sk-[A-Za-z0-9_-]{6,}",
    r"hf_[A-Za-z0-9]{16,}",
    r"(?:gh[pousr]|github_pat)_[A-Za-z0-9_]{8,}",
    r"(?:glpat|nvapi|xox[abeoprs]|pypi|npm_[A-Za-z0-9])[-_A-Za-z0-9][A-Za-z0-9_-]{12,}",
    r"(?:AKIA|ASIA)[A-Z0-9]{8,}",
    r"AIza[A-Za-z0-9_-]{20,}",
    r"eyJ[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*){0,4}",
)
_BY_SHAPE = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_SHAPES)})", re.A)
_OPTION = re.compile(
    r"(?P<key>(?<![\w-])--?[\w-]{0,60}(?:key|token|secret|password|passphrase))(?P<sep> {1,9}|=)(?P<value>[^\s-][^\s,;\"']*)", re.I | re.A
)

SHAPED = (
    r"(?i:(?:key|secret|passw|passphrase|credential|auth|token|bearer)[\w\"'-]*\s*[=:]|--?[\w-]*(?:key|token|secret|password|passphrase)"
    r"[ =]|\b(?:bearer|basic)\s)|(?:^|[^A-Za-z0-9])(?:" + "|".join(_SHAPES) + ")"
)
"""A pattern for RE2 that finds every text without an address which ``clean_value`` may change, and some more."""
DOUBTFUL = SHAPED + "|://"
"""A pattern for RE2 that finds every text which ``clean_value`` may change."""


@functools.lru_cache(maxsize=4096)
def _plain_name(key: str) -> str:
    return re.sub(r"[-. #]+", "_", _CAMEL.sub("_", key))


@functools.lru_cache(maxsize=4096)
def names_secret(key: str) -> bool:
    """Say whether a key has the name of a secret, whatever its value."""
    return bool(_SECRET.search(_plain_name(key)))


@functools.lru_cache(maxsize=4096)
def may_be_secret(key: str) -> bool:
    """Say whether it depends on the value if a key with this name is a secret."""
    return names_secret(key) or bool(_KEYED.search(_plain_name(key)))


def is_secret(key: str, value: str) -> bool:
    """Say whether a value must not be kept because of its key.

    Parameters
    ----------
    key : str
        ``api_key``; a name that speaks of counts (``max_total_tokens``) with a plain number or nothing as its value is none. A name
        that only ends in ``key`` is one if the value is long and mixes letters and digits.
    value : str
        As printed.
    """
    value = value.strip()
    if names_secret(key):
        return not _NUMBER.fullmatch(value)
    return may_be_secret(key) and bool(_RANDOM.fullmatch(value.strip("\"'")))


def clean_value(value: str) -> str:
    """Remove credentials, bearer words and what has the shape of a secret from a value that is kept."""
    value = _URL.sub(r"\1" + REDACTED + "@", value)
    value = _SCHEME.sub(r"\1 " + REDACTED, value)
    return redact_pairs(_BY_SHAPE.sub(REDACTED, value))


def kept(key: str, value: str) -> str:
    """Return the value of an unknown key as it may be kept."""
    if is_secret(key, value):
        return REDACTED
    return value if len(value) < 6 or _NUMBER.fullmatch(value) else clean_value(value)


def redact_pairs(text: str) -> str:
    """Replace the values behind secret keys inside a text."""

    def swap(found: re.Match[str]) -> str:
        value = found["value"].strip("\"'")
        if not is_secret(found["key"].strip("\"'-"), value) or value in ("", "...", REDACTED):
            return found[0]
        return found["key"] + found["sep"] + REDACTED

    return _OPTION.sub(swap, _IN_TEXT.sub(swap, text))


def redact(text: str) -> str:
    """Return a line without what looks like a secret in it, for examples and messages."""
    return clean_value(text)
