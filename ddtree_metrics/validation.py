"""The border: what comes from outside (JSON, TOML) is held against a declared form once, and is of that form from there on.

The forms are msgspec's: structs, dataclasses and annotated numbers. A value of a wrong type is named by its key and by what is wanted,
never quoted: it may hold a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

Form = TypeVar("Form")
_WORDS = {
    "object": "an object",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
}


def decode_json(raw: bytes, form: type[Form] | Any, fail: Callable[[str], Exception]) -> Form:
    """Decode JSON into ``form``.

    Parameters
    ----------
    raw : bytes
        The text.
    form : type
        What it must be; ``Any`` for plain values.
    fail : callable
        Makes the exception to raise from what is wrong, in words: ``points[0].kept: a whole number is wanted, not a text``.
    """
    import msgspec

    try:
        return msgspec.json.decode(raw, type=form)
    except RecursionError:
        raise fail("its JSON is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise fail(in_words(str(error))) from None
    except msgspec.DecodeError:
        raise fail("it is not JSON") from None


def checked(value: Any, form: type[Form] | Any, fail: Callable[[str], Exception]) -> Form:
    """Hold plain values (of TOML, for one) against ``form``; as ``decode_json``."""
    import msgspec

    try:
        return msgspec.convert(value, type=form)
    except RecursionError:
        raise fail("it is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise fail(in_words(str(error))) from None


def in_words(told: str) -> str:
    """Turn what msgspec says into ``key: what is wanted``."""
    text, _, place = told.partition(" - at ")
    key = place.strip("`").removeprefix("$").lstrip(".")
    if key.startswith("key in "):
        key = f"a name in {key[len('key in ') :].strip('`').removeprefix('$').lstrip('.')}"
    found = re.fullmatch(r"Expected `([^`]+)`( of length)?(?: ([<>]=? \S+))?(?:, got `?([^`]+)`?)?", text)
    if found:
        wanted = " or ".join(_WORDS.get(part, part) for part in found[1].split(" | "))
        text = f"{wanted}{found[2] or ''}{f' {found[3]}' if found[3] else ''} is wanted"
        if found[4]:
            text += f", not {_WORDS.get(found[4], found[4])}"
    elif missing := re.fullmatch(r"Object missing required field `([^`]+)`", text):
        key, text = f"{key}.{missing[1]}".lstrip("."), "it is missing"
    elif text.startswith("Invalid"):
        text = "it has a value that is not allowed there"
    else:
        text = text[:1].lower() + text[1:]
    return f"{key}: {text}" if key else text


def printable(text: str) -> str:
    """Return a text on one line, without characters that a terminal obeys: control, direction and others that cannot be seen.

    Parameters
    ----------
    text : str
        Of a server, a file, or a name.

    Returns
    -------
    str
        Line ends, tabs and other blanks as blanks, each other such character as U+FFFD.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() and c not in "\x1c\x1d\x1e\x1f\x85\u2028\u2029" else "\ufffd" for c in text)
