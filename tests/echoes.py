"""A server that says the key back, in every field and every spelling, and a search for what is left of it.

The search undoes encodings by the standard library's own functions and knows nothing of the filter that it judges.
"""

from __future__ import annotations

import base64
import html
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

from tests.rawserver import Connection, completion, path_of, told

PIECE = 8

SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda key: key,
    "upper case": str.upper,
    "inside words": lambda key: f"model-{key}-v2",
    "first half": lambda key: key[: len(key) // 2],
    "last half": lambda key: key[len(key) // 2 :],
    "a piece": lambda key: key[5:14],
    "masked but for a piece": lambda key: key[:9] + "..." + key[-9:],
    "percent": lambda key: "".join(f"%{b:02x}" for b in key.encode()),
    "percent where needed": lambda key: urllib.parse.quote(key, safe=""),
    "percent twice": lambda key: urllib.parse.quote("".join(f"%{b:02X}" for b in key.encode()), safe=""),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of a header": lambda key: base64.b64encode(f"Bearer {key}\n".encode()).decode(),
    "base64 of user and password": lambda key: base64.b64encode(f"someone:{key}".encode()).decode(),
    "base64 for addresses": lambda key: base64.urlsafe_b64encode(f"ab{key}?>".encode()).decode(),
    "hexadecimal": lambda key: key.encode().hex(),
    "JSON escapes": lambda key: "".join(f"\\u{ord(c):04x}" for c in key),
    "Python escapes": lambda key: "".join(f"\\x{b:02x}" for b in key.encode()),
    "HTML": lambda key: "".join(f"&#{ord(c)};" for c in key),
    "HTML hexadecimal": lambda key: "".join(f"&#x{ord(c):x};" for c in key),
    "behind 290 characters": lambda key: "x" * 290 + key,
    "behind 190 characters": lambda key: "y " * 95 + key,
    "with a bell": lambda key: f"\x07\x1b[31m{key}\x1b[0m\u202e",
}


def left_of(secret: str, text: str) -> str | None:
    """Return a piece of 8 characters of a secret that a text gives away, plain or in a usual encoding."""
    views = {text}
    for _ in range(3):
        for view in list(views):
            views |= {urllib.parse.unquote(view), html.unescape(view), _unescaped(view)}
    raw = secret.encode()
    forms = {secret, raw.hex()}
    for before in range(3):
        packed = base64.b64encode(b"\0" * before + raw).decode()[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]
        forms |= {packed, packed.replace("+", "-").replace("/", "_")}
    for form in forms:
        for i in range(len(form) - PIECE + 1):
            for view in views:
                if form[i : i + PIECE].lower() in view.lower():
                    return form[i : i + PIECE]
    return None


def _unescaped(text: str) -> str:
    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))", lambda m: chr(int(m[1] or m[2], 16)), text).replace("\\/", "/")


def field_plays(word: str) -> dict[str, Callable[[Connection, bytes], None]]:
    """Return servers that put ``word`` into one field each."""

    def server(
        change: Callable[[dict[str, Any]], Any] | None = None,
        sides: dict[str, Any] | None = None,
        lines: tuple[str, ...] = (),
        status: str = "200 OK",
        fail_from: int = 0,
    ) -> Callable[[Connection, bytes], None]:
        known = {"/v1/models": {"data": [{"id": "fake"}]}} | (sides or {})
        asked = [0]

        def play(wire: Connection, request: bytes) -> None:
            path = path_of(request)
            if path.endswith("/completions"):
                asked[0] += 1
                said: Any = completion(request)
                bad = status != "200 OK" and asked[0] > fail_from
                if change and (bad or status == "200 OK"):
                    said = change(said)
                wire.send(told(said, *lines, status=status if bad else "200 OK"))
            elif path in known:
                wire.send(told(known[path], *lines))
            else:
                wire.send(told({"detail": "Not Found"}, status="404 Not Found"))

        return play

    def error(**fields: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda _: {"error": {"message": "no", "type": "error", "code": 1} | fields}

    line, again = re.sub(r"[^ -~]", "?", word), ("Retry-After: 0",)
    model = {"data": [{"id": word, "root": word, "owned_by": word, "max_model_len": 99, "meta": {word: word}}]}
    return {
        "model name": server(sides={"/v1/models": model}),
        "one of several models": server(sides={"/v1/models": {"data": [{"id": word}, {"id": word + "2"}]}}),
        "model not found": server(error(message=word), {"/v1/models": model}, status="404 Not Found"),
        "id": server(lambda said: said | {"id": word}),
        "finish reason": server(lambda said: said | {"choices": [{"text": " so", "finish_reason": word}]}),
        "finish reason's type": server(lambda said: said | {"choices": [{"text": " so", "finish_reason": {"type": word}}]}),
        "text": server(lambda said: said | {"choices": [{"text": word, "finish_reason": "length"}]}),
        "a key of the answer": server(lambda said: said | {word: word, "usage": said["usage"] | {word: word}}),
        "a count": server(lambda said: said | {"usage": {"prompt_tokens": word, "completion_tokens": word}}),
        "version": server(sides={"/version": {"version": word}}),
        "SGLang's version and flags": server(sides={"/server_info": {"version": word, "note": word, word: "x", "l": [word]}}),
        "llama.cpp's build": server(sides={"/props": {"build_info": word, "chat_template": word, "default_generation_settings": word}}),
        "error message": server(error(message=word), status="400 Bad Request"),
        "error type": server(error(message=None, type=word), status="400 Bad Request"),
        "error code": server(error(message="", code=word, type=word), status="400 Bad Request"),
        "error detail": server(
            lambda _: {"error": {"detail": [{"loc": ["body", word], "msg": word, "input": word}]}}, status="422 Unprocessable Entity"
        ),
        "error as text": server(lambda _: f"<html>{word}</html>".encode(), status="500 Internal Server Error", lines=again),
        "error in an answer": server(lambda _: {"error": word}, lines=again),
        "error after some rounds": server(error(message=f"no {word}"), status="500 Internal Server Error", lines=again, fail_from=4),
        "headers": server(lines=(f"X-Echo: {line}", f"Retry-After: {line}", f"Set-Cookie: k={line}")),
        "retry after": server(error(), status="429 Too Many Requests", lines=(f"Retry-After: {line}",)),
        "redirect": server(error(), status="302 Found", lines=(f"Location: http://127.0.0.1/{line}",)),
        "reason phrase": server(error(message=""), status=f"418 {line}"),
        "content encoding": server(lines=(f"Content-Encoding: {line}",)),
        "no JSON": server(lambda _: f'{{"id": "{line}'.encode()),
        "metrics": server(sides={"/metrics": f"sglang:generation_tokens_total {line}\n"}),
    }  # fmt: skip
