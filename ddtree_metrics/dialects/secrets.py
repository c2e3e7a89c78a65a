"""Secrets do not leave the log: keys and values that look like one are replaced before anything is kept.

A key is a secret by its name (``api_key``, ``auth_token``, ``password``), a value by its shape (``sk-…``, ``Bearer …``) whatever its key
is, and a run of letters and digits by being random. A key that merely ends in ``_key`` (``cache_key``) is one only if its value looks like
a random text. Of a key that no dialect knows, only a value that cannot be one is kept: numbers, truth values, a short word; and of a
line that is shown as an example, only what the dialect knows and such values, for the rest may be anybody's prompt.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Collection

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
# The shapes of keys that can be told from other texts, after the rules of gitleaks (MIT): a prefix, then what may follow it.
_SHAPES = (
    r"sk-[A-Za-z0-9_-]{6,}",
    r"[srp]k_(?:live|test|prod)_[A-Za-z0-9]{6,}",
    r"(?:gsk|whsec|api_org|lsv2_[ps]t|pcsk|tgp_v1|figd|glsa|dckr_pat|do[opr]_v1|shp(?:at|ca|pa|ss)|sntr[yu]s|wandb_v1|rpa)_[A-Za-z0-9_-]{12,}",
    r"r8_[A-Za-z0-9]{12,}",
    r"(?:xai|pplx|csk|tvly|tskey|PMAK|CFPAT)-[A-Za-z0-9_-]{12,}",
    r"AGE-SECRET-KEY-1[A-Z0-9]{6,}",
    r"SG\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+)?",
    r"hf_[A-Za-z0-9]{16,}",
    r"(?:gh[pousr]|github_pat)_[A-Za-z0-9_]{8,}",
    r"(?:glpat|nvapi|xox[abeoprs]|xapp|pypi|npm_[A-Za-z0-9])[-_A-Za-z0-9][A-Za-z0-9_-]{12,}",
    r"(?:AKIA|ASIA|ABIA|ACCA|LTAI)[A-Za-z0-9]{8,}",
    r"(?:AC|SK|key-|dapi)[0-9a-f]{32}",
    r"AIza[A-Za-z0-9_-]{20,}",
    r"(?:ya29|hv[bsr])\.[A-Za-z0-9_-]{10,}",
    r"eyJ[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*){0,4}",
    r"\d{8,10}:AA[A-Za-z0-9_-]{20,}",
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY[^\n]*",
)
_BY_SHAPE = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_SHAPES)})", re.A)
# Parameters that sign a URL (Azure, AWS, Google), whose names say nothing by themselves.
_SIGNED = r"\b(?:sig|Signature|[Xx]-(?:Amz|Goog)-(?:Signature|Credential|Security-Token))="
_BY_SIGNATURE = re.compile(rf"({_SIGNED})[A-Za-z0-9%+/=_-]{{16,}}", re.A)
_OPTION = re.compile(
    r"(?P<key>(?<![\w-])--?[\w-]{0,60}(?:key|token|secret|password|passphrase))(?P<sep> {1,9}|=)(?P<value>[^\s-][^\s,;\"']*)", re.I | re.A
)

SHAPED = (
    r"(?i:(?:key|secret|passw|passphrase|credential|auth|token|bearer)[\w\"'-]*\s*[=:]|--?[\w-]*(?:key|token|secret|password|passphrase)"
    rf"[ =]|\b(?:bearer|basic)\s)|{_SIGNED}|(?:^|[^A-Za-z0-9])(?:" + "|".join(_SHAPES) + ")"
)
"""A pattern for RE2 that finds what is a secret by its shape, and some more."""
DOUBTFUL = SHAPED + r"|://|[A-Za-z0-9]{12,}|[A-Za-z0-9+/_~-]{12,}=|[A-Za-z0-9/_~-]\+|\+[A-Za-z0-9/_~-]"
"""A pattern for RE2 that finds every text which ``clean_value`` may change, and some more."""

_WORD = (
    r"(?:[A-Za-z]?[a-z]{1,15}\d{0,4}|[A-Z]{1,15}\d{0,3}[A-Z]?|(?:[A-Z]{1,3}[a-z]{1,13}){1,3}\d{0,3}|[a-z]{1,13}(?:[A-Z][a-z]{1,13}){1,2})"
)
_PART = rf"(?:{_WORD}|[A-Za-z0-9]{{1,4}}|\d{{1,12}}[A-Za-z]{{0,3}})"
_NUMERIC = r"[\s.,:;+\-/%*~<>\[\]()]*\d[\d\s.,:;+\-/%*~<>\[\]()TZeE]*(?:[A-Za-z]{1,8}(?:/[A-Za-z]{1,8})?)?"
PLAIN = rf"^(?:{_NUMERIC}|[\"']?{_WORD}(?:[-_./:+]{_PART}){{0,3}}%?[\"']?)$"
"""A pattern for RE2 and for ``re`` of values that cannot be a secret or a text: numbers, with a unit or in a list, and a short word."""
_PLAIN = re.compile(PLAIN, re.A)
_KEY_PART = re.compile(rf"[A-Za-z0-9]{{1,6}}|{_PART}", re.A)
_BETWEEN = re.compile(r"[ _./+()#-]+")
_SHORT = 6
_KEY_SIZE = 80
_KEY_PARTS = 12

# What random texts are made of; "/" and "." stand between the parts of paths and names, and in base64.
_RUN = re.compile(r"[A-Za-z0-9+/_~-]{12,}={0,2}")
_ALNUM = re.compile(r"[A-Za-z0-9]+")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_OF_AN_ID = re.compile(
    r"(?:(?:id|uid|uuid|hash|sha\d{0,3}|digest|commit|rev|revision|version|boot|cursor)s?[\"']?\s?[=:@]?\s?[\[(]?[\"']?|snapshots/|blobs/|(?:docker|containerd|crio|libpod)-)$",
    re.I | re.A,
)
_SWITCH = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")
# The 260 most usual pairs of letters in English words and names of code (93 of 100 that are met): the first letter, then the second ones.
_USUAL = {
    first + second
    for first, *seconds in re.findall(
        r"\w+",
        "abcdgiklmnprstuvwxy baeilorsu cacehiklorstu dadeilorstu eabcdefgilmnopqrstvwxy faefilortu gaehilnorsu haeiort iabcdefglmnoprstvxz "
        "keis ladeilostuy mabeimopsu nacdefgiklnopstuv oabcdfgiklmnoprstuvw paeiloprstuy qu racdegiklmnoprstuvy sacehiklmopstuy "
        "tacdefhilmoprstuy uabcegilmnprst vaei waeiors xeipt ynpst ze",
    )
    for second in seconds
}
_LETTERS = re.compile(r"[a-z]{2,}")
_HEX = re.compile(r"(?:0x)?[0-9a-fA-F]+")
_NUMBERS_ONLY = re.compile(r"[\d.,:;+\-/%*()\[\]TZ|]+|[A-Z]{2}\d{1,4}\]?", re.A)


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
    """Remove credentials, bearer words, and what is a secret by its shape or by being random from a value that is kept."""
    value = _URL.sub(r"\1" + REDACTED + "@", value)
    value = _BY_SIGNATURE.sub(r"\1" + REDACTED, value)
    value = _SCHEME.sub(r"\1 " + REDACTED, value)
    return _without_random(redact_pairs(_BY_SHAPE.sub(REDACTED, value)))


def kept(key: str, value: str) -> str:
    """Return the value of an unknown key as it may be kept: a number, a truth value or a short word, or nothing of it."""
    return REDACTED if is_secret(key, value) or not is_plain(value) else value


@functools.lru_cache(maxsize=4096)
def kept_key(key: str) -> str:
    """Return an unknown key as it may be kept: one that looks like a text or like a secret is not."""
    parts = [part for part in _BETWEEN.split(key) if part]
    plain = len(key) <= _KEY_SIZE and len(parts) <= _KEY_PARTS and all(_KEY_PART.fullmatch(part) for part in parts)
    return key if plain and not _BY_SHAPE.search(key) else REDACTED


def _has_shape(text: str) -> bool:
    return _BY_SHAPE.search(text) is not None or _BY_SIGNATURE.search(text) is not None


def kept_id(text: str) -> str:
    """Return a request's id as it may be kept: one with the shape of a secret is replaced, always by the same name."""
    text = text[:200]
    return f"redacted-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:12]}" if _has_shape(text) else text


def is_plain(value: str) -> bool:
    """Say whether a value is a number, a truth value or a short word, and neither text nor secret."""
    return len(value) < _SHORT or (_PLAIN.fullmatch(value) is not None and not _has_shape(value))


def outline(text: str, words: Collection[str]) -> str:
    """Return of a line what is known or plain, and ``…`` for the rest, which may be anybody's text.

    Parameters
    ----------
    text : str
        The line.
    words : collection of str
        The words that may be shown: of markers and keys.
    """
    made: list[str] = []
    for token in text.split():
        key, sign, value = token.partition("=")
        core = token.strip(".,:;()[]{}#")
        if sign and key:
            shown = f"{kept_key(key)}={kept(key, value.rstrip(',;|')) if value else ''}"
        elif core in words or _NUMBERS_ONLY.fullmatch(token):
            shown = token
        else:
            shown = "…"
        if shown != "…" or made[-1:] != ["…"]:
            made.append(shown)
    return " ".join(made)


def is_random(part: str) -> bool:
    """Say whether a run of letters and digits looks random: letters do not follow each other as in words, or alternate with digits."""
    size = len(part)
    if size < 12 or part.isdigit():
        return False
    if _HEX.fullmatch(part):
        return size >= 32  # shorter ones are ids
    pairs, usual = _pairs_of(part)
    if part.isalpha() and (part.islower() or part.isupper()):
        return size >= 16 and usual < 0.65 * pairs
    switches = len(_SWITCH.findall(part))
    return switches >= 3 and (usual < 0.65 * pairs or (switches >= 0.3 * size and usual < 0.85 * pairs))


def _pairs_of(part: str) -> tuple[int, int]:
    """Count the pairs of letters, and those that are usual."""
    pairs = [letters[i : i + 2] for letters in _LETTERS.findall(part.lower()) for i in range(len(letters) - 1)]
    return len(pairs), sum(pair in _USUAL for pair in pairs)


def _without_random(text: str) -> str:
    """Replace what looks random, but for ids that are called so."""

    def is_hidden(found: re.Match[str], at: int) -> bool:
        return is_random(found[0]) and not _OF_AN_ID.search(text, max(0, at + found.start() - 24), at + found.start())

    def swap(run: re.Match[str]) -> str:
        if _UUID.fullmatch(run[0]):
            return run[0]
        base64 = "+" in run[0] or run[0].endswith("=")
        hidden = any(is_hidden(part, run.start()) for part in _ALNUM.finditer(run[0]))
        if not hidden and not (base64 and is_random("".join(_ALNUM.findall(run[0])))):
            return run[0]
        pieces = [run[0]] if base64 else run[0].split("/")
        named = [_is_named(piece) for piece in pieces]
        if not any(named):
            return REDACTED
        # in a path, only the part that is random goes, and what is as short as a piece of it
        return "/".join(piece if name or len(piece) < 4 else REDACTED for piece, name in zip(pieces, named, strict=True))

    return _RUN.sub(swap, text) if len(text) >= 12 else text


def _is_named(piece: str) -> bool:
    """Say whether a part of a path is a name: some pairs of letters, and nearly all of them usual."""
    pairs, usual = _pairs_of(piece)
    return pairs >= 3 and usual == pairs and not any(map(is_random, _ALNUM.findall(piece)))


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
