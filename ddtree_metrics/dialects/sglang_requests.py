"""SGLang's lines about requests: ``Receive:``, ``Finish:``, their JSON form, and the time stats. Numbers and ids; never a text.

A request's own text may look like anything, a ``meta_info`` included, so strings are skipped whole and only what stands outside
them, at its place in the structure, counts.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any

from ddtree_metrics.dialects.base import Broken
from ddtree_metrics.dialects.cast import MOST, number
from ddtree_metrics.dialects.secrets import kept, kept_id, kept_key
from ddtree_metrics.dialects.stamps import STAMP
from ddtree_metrics.times import EPOCH, parse_iso

_STRING = r"'[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\""
_TOKEN = re.compile(rf"(?P<string>{_STRING})|(?P<open>[\[({{])|(?P<close>[\])}}])|(?P<quote>['\"])|(?P<name>\b(?:out|rid)=)", re.S)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", re.A)

# The first that is there fills the column; vendors and releases renamed them.
COLUMNS: dict[str, tuple[str, ...]] = {
    "prompt_tokens": ("prompt_tokens",),
    "cached_tokens": ("cached_tokens",),
    "completion_tokens": ("completion_tokens",),
    "reasoning_tokens": ("reasoning_tokens",),
    "verify_steps": ("spec_verify_ct",),
    "accepted_drafts": ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
    "proposed_drafts": ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
    "accepted_histogram": ("spec_correct_drafts_histogram", "spec_accept_histogram"),
    "retractions": ("num_retractions", "total_retractions"),
    "dp_rank": ("dp_rank",),
}
_USED = {k for keys in COLUMNS.values() for k in keys} | {"id", "finish_reason"}
_SECONDS = {"e2e_latency": "e2e_ms", "queue_time": "queue_ms"}
TEXT = 60
"""Characters of a value without a column that are kept."""
_NARROW = ("retractions", "dp_rank")


def _text(value: str) -> str:
    """Take the quotes off a printed id; ids are short and hold no escapes."""
    return value[1:-1] if len(value) >= 2 and value[0] in "'\"" else value


def _instant(seconds: float | None) -> datetime | None:
    if seconds is None or not 1e8 < seconds < 1e10:
        return None
    return EPOCH + timedelta(microseconds=round(seconds * 1e6))


def _float(value: Any) -> float | None:
    """Read a time or a duration, which may be negative where clocks differ."""
    if value is None or value == "None":
        return None
    text = str(value).strip()
    if not _NUMBER.fullmatch(text):
        raise Broken("bad_number")
    if abs(float(text)) >= MOST:
        raise Broken("out_of_range")
    return float(text)


def _count(value: Any, wide: bool = True) -> int | None:
    if value is None or value == "None":
        return None
    return int(number(str(value).strip(), "int", wide))


def _counts(value: Any) -> list[int] | None:
    if value is None or value == "None":
        return None
    parts = value if isinstance(value, list) else [p for p in re.split(r"[\s,]+", str(value).strip("[]() ")) if p]
    return [int(number(str(p), "int")) for p in parts]


def meta_columns(meta: dict[str, Any]) -> dict[str, Any]:
    """Turn the ``meta_info`` of a finished request into columns.

    Parameters
    ----------
    meta : dict
        Key to value, as Python values or as their printed text.

    Returns
    -------
    dict
        Columns of ``records.RequestLine``; numbers without a column are in ``extra``.
    """
    made: dict[str, Any] = {}
    for column, keys in COLUMNS.items():
        for key in keys:
            if key in meta:
                value = _counts(meta[key]) if column == "accepted_histogram" else _count(meta[key], column not in _NARROW)
                if value is not None:
                    made[column] = value
                    break
    if meta.get("id") is not None:
        made["request_id"] = kept_id(_text(str(meta["id"])))
    reason = meta.get("finish_reason")
    if isinstance(reason, dict):
        made["finish_reason"] = str(reason.get("type"))[:40]
    elif reason is not None and reason != "None":
        found = re.search(r"['\"]type['\"]: *['\"](\w{1,40})['\"]", str(reason), re.A)
        if found:
            made["finish_reason"] = found[1]
    received = _float(meta.get("request_received_ts"))
    made["received"] = _instant(received)
    made["finished"] = _instant(_float(meta.get("request_finished_ts")))
    first = _float(meta.get("first_token_latency"))
    made["first_token"] = _instant(received + first) if received is not None and first is not None else None
    if made["first_token"] is None:
        made["first_token"] = _instant(_float(meta.get("prefill_finished_time")))
    extra: dict[str, str] = {}
    for key, value in meta.items():
        if key in _SECONDS:
            seconds = _float(value)
            made[_SECONDS[key]] = None if seconds is None else seconds * 1000
        elif key not in _USED and kept_key(key) == key and len(str(value)) <= TEXT and _NUMBER.fullmatch(str(value).strip()):
            extra[key] = str(value)
    if extra:
        made["extra"] = extra
    return {k: v for k, v in made.items() if v is not None}


def _members(text: str, at: int) -> tuple[dict[str, str], int]:
    """Read the members of the dict that opens at ``at``: printed key to printed value; -1 if it does not end."""
    made: dict[str, str] = {}
    depth = 0
    key: str | None = None
    begin = at + 1
    k = at
    while True:
        token = _TOKEN.search(text, k)
        if token is None or token["quote"]:
            return made, -1
        k = token.end()
        if token["open"]:
            depth += 1
        elif token["close"]:
            depth -= 1
            if depth == 0:
                if key is not None:
                    made[key] = text[begin : token.start()].strip().rstrip(",")
                return made, k
        elif token["string"] and depth == 1:
            after = re.compile(r"\s*:\s*").match(text, k)
            before = text[begin : token.start()].rstrip()
            if after and (key is None or before.endswith(",")):
                if key is not None:
                    made[key] = before.rstrip(",").strip()
                key, begin, k = token["string"][1:-1], after.end(), after.end()


def _find(text: str, name: str, start: int = 0) -> int:
    """Say where ``name=`` ends, outside strings; -1 if it is not there."""
    for token in _TOKEN.finditer(text, start):
        if token["name"] == name + "=":
            return token.end()
        if token["quote"]:
            return -1
    return -1


def _request_id(text: str) -> str | None:
    at = _find(text, "rid")
    found = re.compile(_STRING).match(text, at) if at >= 0 else None
    return kept_id(_text(found[0])) if found else None


_RECEIVED = re.compile(r"Receive: obj=\w+\(rid=(?:'([^'\\]{1,200})'|\"([^\"\\]{1,200})\")[,)]", re.A)


def read_received(body: str) -> dict[str, Any] | None:
    """Read ``Receive: obj=GenerateReqInput(rid='r2', …)``."""
    usual = _RECEIVED.match(body)
    if usual:
        return {"event": "received", "request_id": kept_id(usual[1] or usual[2])}
    return {"event": "received", "request_id": _request_id(body)}


def read_finished(body: str) -> dict[str, Any] | None:
    """Read ``Finish: obj=…, out={'meta_info': {…}}`` and the older ``in=…, out={…}``."""
    at = _find(body, "out")
    if at < 0:
        raise Broken("cut")
    if body[at : at + 1] != "{":
        return {"event": "finished", "request_id": _request_id(body)}
    out, end = _members(body, at)
    if end < 0:
        raise Broken("cut")
    meta = out.get("meta_info", "")
    if not meta.startswith("{"):
        raise Broken("missing_fields")
    members, _ = _members(meta, 0)
    made = {"event": "finished", **meta_columns(members)}
    made.setdefault("request_id", _request_id(body))
    return made


_OTHER_EVENT = re.compile(r'\{"timestamp": ?"[^"\\]{0,80}", ?"event": ?"(?!request\.(?:received|finished)")[\w.]+"', re.A)
_REQUEST_EVENT = re.compile(r'\{"timestamp": ?[^{}]{0,4096}?"event": ?"request\.(?:received|finished)"', re.A)


def read_json(body: str) -> dict[str, Any] | None:
    """Read the JSON form; lines of other events are nothing."""
    if _OTHER_EVENT.match(body):
        return None
    try:
        # Numbers stay text: one of thousands of digits would be refused, and with it the whole line.
        record = json.loads(body, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        if not _REQUEST_EVENT.match(body):
            return None
        raise Broken("cut" if not body.rstrip().endswith("}") else "bad_form") from None
    event = record.get("event")
    if event not in ("request.received", "request.finished"):
        return None
    made: dict[str, Any] = {"event": str(event).removeprefix("request.")}
    if made["event"] == "finished":
        out = record.get("out")
        meta = out.get("meta_info") if isinstance(out, dict) else None
        if isinstance(meta, dict):
            made.update(meta_columns(meta))
    if isinstance(record.get("rid"), str):
        made["request_id"] = kept_id(record["rid"])
    stamp = parse_iso(str(record["timestamp"]))  # the server writes its local time without a zone
    if stamp is None and record["timestamp"] not in (None, "") and len(str(record["timestamp"])) <= TEXT:
        made["extra"] = {**made.get("extra", {}), "timestamp": kept("timestamp", str(record["timestamp"]))}
    if stamp is not None and stamp[1]:
        made.setdefault(made["event"], EPOCH + timedelta(microseconds=stamp[0]))
    elif stamp is not None:
        made[STAMP] = stamp[0]
    return made


_DURATIONS = {"queue_duration": "queue_ms", "forward_duration": "forward_ms"}
_STATS = re.compile(r"Req ?Time ?Stats\((?P<inside>[^()]*)\): ?(?P<rest>.*)", re.A | re.S)
_STAT = re.compile(r"([#\w]+)[=(] ?((?:[^\s,;()]|,(?=\S))+)(?: ([A-Za-z]+(?:/[A-Za-z]+)?)(?=[\s,;)]|$))?", re.A)
_MEASURED = re.compile(r"(-?\d+(?:\.\d+)?)([A-Za-z/]*)", re.A)
_WORDS = re.compile(r"[\w .+-]{1,60}", re.A)
_STATS_COLUMNS = {
    "input len": "prompt_tokens",
    "input_len": "prompt_tokens",
    "cached_input_len": "cached_tokens",
    "output len": "completion_tokens",
    "output_len": "completion_tokens",
}


def read_stats(body: str) -> dict[str, Any] | None:
    """Read ``Req Time Stats(rid=…, input len=38, …): queue_duration=0.00ms, …`` of all releases."""
    found = _STATS.match(body)
    if found is None:
        raise Broken("cut" if body.count("(") > body.count(")") or body.rstrip().endswith(")") else "bad_form")
    made: dict[str, Any] = {"event": "stats"}
    extra: dict[str, str] = {}
    for part in found["inside"].split(", "):
        key, sign, value = part.partition("=")
        key = key.strip()
        if key == "rid":
            made["request_id"] = kept_id(_text(value))
        elif key in _STATS_COLUMNS:
            made[_STATS_COLUMNS[key]] = _count(value)
        elif sign and _WORDS.fullmatch(value):
            extra[kept_key(key)] = kept(key, value)
    for key, value, behind in _STAT.findall(found["rest"]):
        measured = _MEASURED.fullmatch(value)
        unit = behind or (measured[2] if measured else "")
        if measured is None and key in _DURATIONS:
            raise Broken("bad_number")
        if measured and key in _DURATIONS and unit == "ms":
            made[_DURATIONS[key]] = float(number(measured[1], "float"))
        elif measured:
            extra[kept_key(key)] = measured[1] + (f" {unit}" if unit else "")
        elif len(value) <= TEXT:
            extra[kept_key(key)] = kept(key, value)
    if extra:
        made["extra"] = extra
    return made
