"""SGLang's lines about a start: the arguments (as ``ServerArgs(…)`` or as a dict), the size of the pool, the draft worker.

Values are read by a scanner that knows brackets and quotes; nothing is evaluated. Secrets are removed before anything is kept.
"""

from __future__ import annotations

import re
from typing import Any

from ddtree_metrics.dialects.base import Broken
from ddtree_metrics.dialects.cast import INT32, INT64
from ddtree_metrics.dialects.secrets import REDACTED, clean_value, is_secret, kept_key

_STRING = re.compile(r"'[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\"", re.S)
_KEY = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)\s*=|(?P<quoted>'[A-Za-z_]\w*'|\"[A-Za-z_]\w*\")\s*:)\s*", re.A)
_PLAIN = re.compile(r"[^'\"\[\](){},]+")
_ELIDED = re.compile(r"\.{3}|…|-{2,}|\b(?:cut|snip(?:ped)?|truncated|omitted|elided)\b", re.I)
"""What an author or a terminal puts in the place of what was left out, outside of quotes; no printed value holds it."""
_ELIDED_STRING = re.compile(r"…|-{2,}\s*(?:cut|snip)|<(?:cut|snip)", re.I)
"""The same inside of quotes, where dots and hyphens are usual: two strings may have become one."""
_BEHIND_STRING = frozenset(",)]}: ")
_SKIPPED = re.compile(r"[^'\"={}]*?,(?=\s*(?:[A-Za-z_]\w*\s*=|'[A-Za-z_]\w*'\s*:|\"[A-Za-z_]\w*\"\s*:))", re.A)
_ESCAPE = re.compile(r"\\(['\"\\])")

COLUMNS: dict[str, tuple[str, ...]] = {
    "num_draft_tokens": ("speculative_num_draft_tokens",),
    "num_steps": ("speculative_num_steps",),
    "topk": ("speculative_eagle_topk",),
    "budget": ("speculative_ddtree_budget",),
    "block_size": ("speculative_ddtree_block_size", "speculative_dflash_block_size", "speculative_dspark_block_size"),
    "draft_window": ("speculative_draft_window_size", "speculative_dflash_draft_window_size"),
    "page_size": ("page_size",),
    "tp_size": ("tp_size",),
    "dp_size": ("dp_size",),
    "context_len": ("context_length", "context_len"),
    "max_total_tokens": ("max_total_tokens",),
    "decode_log_interval": ("decode_log_interval",),
}
_WIDE = ("context_len", "max_total_tokens")


def scan_items(text: str, at: int) -> tuple[list[tuple[str, str]], bool]:
    """Read ``key=value, …`` or ``'key': value, …`` from ``at`` up to the bracket that closes it.

    Where something was left out in the middle, what stands behind it is read as well, unless it was cut inside a string.

    Returns
    -------
    items : list of (str, str)
        Key and printed value; only whole ones.
    whole : bool
        Whether the closing bracket was there, and nothing was left out or replaced by dots.
    """
    items: list[tuple[str, str]] = []
    whole = True
    while True:
        key = _KEY.match(text, at)
        if key is None:
            skipped = _SKIPPED.match(text, at)
            if skipped is None or not _ELIDED.search(skipped[0]):
                rest = text[at:].lstrip()
                return items, whole and rest[:1] in (")", "}")
            whole, at = False, skipped.end()
            continue
        begin = key.end()
        end, elided = _value_end(text, begin)
        if end < 0:
            return items, False
        if elided:
            whole = False
        else:
            items.append((key["name"] or key["quoted"][1:-1], text[begin:end].strip()))
        if text[end] != ",":
            return items, whole
        at = end + 1


def _value_end(text: str, at: int) -> tuple[int, bool]:
    """Say where a value ends, -1 if the line ends first or two strings have become one; and whether a part of it was left out."""
    depth = 0
    elided = False
    while at < len(text):
        char = text[at]
        if char in "'\"":
            string = _STRING.match(text, at)
            if string is None or (string.end() < len(text) and text[string.end()] not in _BEHIND_STRING):
                return -1, True
            elided |= bool(_ELIDED_STRING.search(string[0]))
            at = string.end()
        elif char in "[({":
            depth += 1
            at += 1
        elif char in "])}" and depth:
            depth -= 1
            at += 1
        elif char in ",)}]" and depth == 0:
            return at, elided
        elif char == ",":
            at += 1
        else:
            plain = _PLAIN.match(text, at)
            end = plain.end() if plain else at + 1
            elided |= bool(_ELIDED.search(text[at:end]))
            at = end
    return -1, elided


def _printed(value: str) -> str:
    """Take quotes and escapes off a printed string; other values stay as printed."""
    if len(value) >= 2 and value[0] in "'\"" and value[-1] == value[0] and _STRING.fullmatch(value):
        return _ESCAPE.sub(r"\1", value[1:-1])
    return value


def safe_args(items: list[tuple[str, str]]) -> dict[str, str]:
    """Make the ``args`` map: printed values without quotes, secrets removed."""
    made = {}
    for key, value in items:
        plain = _printed(value)
        hidden = is_secret(key, plain) and plain not in ("", "None")
        made[kept_key(key)] = REDACTED if hidden else clean_value(plain)
    return made


def _number(value: str | None, wide: bool) -> int | None:
    if value is None or not re.fullmatch(r"\d{1,19}", value, re.A):
        return None
    made = int(value)
    return made if made <= (INT64 if wide else INT32) else None


def read_server_args(body: str) -> dict[str, Any] | None:
    """Read ``server_args=ServerArgs(model_path='…', …)`` and ``server_args={'model_path': …}``."""
    opening = re.match(r"server_args ?= ?(?:\w+\(|\{)", body, re.A)
    if opening is None:
        if len(body) < len("server_args=ServerArgs(") and re.match(r"server_args=\w*$", body, re.A):
            raise Broken("cut")
        return None
    items, whole = scan_items(body, opening.end())
    if not items and whole:
        raise Broken("missing_fields")
    args = safe_args(items)
    made: dict[str, Any] = {}
    algorithm = args.get("speculative_algorithm")
    if algorithm not in (None, "None", ""):
        made["algorithm"] = algorithm
    for column, keys in COLUMNS.items():
        made[column] = next((n for k in keys if (n := _number(args.get(k), column in _WIDE)) is not None), None)
    return {**{k: v for k, v in made.items() if v is not None}, "args": args, "args_cut": not whole}


_PART_COLUMNS = {
    "max_total_num_tokens": "max_total_tokens",
    "context_len": "context_len",
    "block_size": "block_size",
    "tree_budget": "budget",
    "draft_window_size": "draft_window",
    "gamma": "num_steps",
    "verify_num_draft_tokens": "num_draft_tokens",
}


def _part(body: str, keys: tuple[str, ...]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in re.findall(r"(?<![\w.])([A-Za-z_]\w*)=([^\s,]+)(?=,|\s|$)", body, re.A):
        column = _PART_COLUMNS.get(key)
        if column is not None and key in keys:
            parsed = _number(value, column in _WIDE)
            if parsed is not None:
                made[column] = parsed
    return made


def read_pool(body: str) -> dict[str, Any] | None:
    """Read ``max_total_num_tokens=665690, …``: a part of a start, without ``args``."""
    made = _part(body, ("max_total_num_tokens", "context_len"))
    if "max_total_tokens" not in made:
        raise Broken("cut")
    return made


def read_worker(body: str) -> dict[str, Any] | None:
    """Read ``Initialized DDTree worker. block_size=16, …`` and its relatives: a part of a start, without ``args``."""
    opening = re.match(r"Initialized (DFLASH|DDTree|DDTREE|DSpark)\b[^.]*\.", body, re.A)
    if opening is None:
        raise Broken("cut")
    made = _part(body, ("block_size", "tree_budget", "draft_window_size", "gamma", "verify_num_draft_tokens"))
    if not made:
        raise Broken("cut")
    return {"algorithm": opening[1].upper(), **made}
