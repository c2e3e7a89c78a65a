"""Secrets planted into lines: none may be in any output."""

from __future__ import annotations

import base64
import random
import string
from collections.abc import Callable
from pathlib import Path

from tests.faults.attempts import Outcome, attempt, basics
from tests.faults.lines import log, stamp, step


def _chance(rng: random.Random, letters: str, size: int) -> str:
    return "".join(rng.choice(letters) for _ in range(size))


_ALNUM = string.ascii_letters + string.digits
SECRETS: dict[str, Callable[[random.Random], str]] = {
    "OpenAI": lambda r: "sk-proj-" + _chance(r, _ALNUM + "_-", 48),
    "Anthropic": lambda r: "sk-ant-api03-" + _chance(r, _ALNUM + "_-", 60),
    "Hugging Face": lambda r: "hf_" + _chance(r, _ALNUM, 34),
    "GitHub": lambda r: "ghp_" + _chance(r, _ALNUM, 36),
    "GitLab": lambda r: "glpat-" + _chance(r, _ALNUM, 20),
    "Groq": lambda r: "gsk_" + _chance(r, _ALNUM, 52),
    "Replicate": lambda r: "r8_" + _chance(r, _ALNUM, 37),
    "age": lambda r: "AGE-SECRET-KEY-1" + _chance(r, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58),
    "Stripe": lambda r: "sk_live_" + _chance(r, _ALNUM, 24),
    "SendGrid": lambda r: f"SG.{_chance(r, _ALNUM, 22)}.{_chance(r, _ALNUM, 43)}",
    "Azure SAS": lambda r: f"sv=2022-11-02&sig={_chance(r, _ALNUM, 43)}%3D",
    "xAI": lambda r: "xai-" + _chance(r, _ALNUM, 80),
    "AWS id": lambda r: "AKIA" + _chance(r, string.ascii_uppercase + "234567", 16),
    "AWS secret": lambda r: _chance(r, _ALNUM + "/+", 40),
    "Google": lambda r: "AIza" + _chance(r, _ALNUM + "_-", 35),
    "Slack": lambda r: f"xoxb-{_chance(r, string.digits, 12)}-{_chance(r, _ALNUM, 24)}",
    "JWT": lambda r: ".".join(base64.urlsafe_b64encode(_chance(r, _ALNUM, n).encode()).decode().rstrip("=") for n in (20, 60, 32)).replace(
        ".", ".", 1
    ),
    "NVIDIA": lambda r: "nvapi-" + _chance(r, _ALNUM + "_-", 64),
    "PyPI": lambda r: "pypi-AgEIcHlwaS5vcmc" + _chance(r, _ALNUM + "_-", 60),
    "npm": lambda r: "npm_" + _chance(r, _ALNUM, 36),
    "hexadecimal": lambda r: _chance(r, "0123456789abcdef", 40),
    "base64": lambda r: base64.b64encode(bytes(r.randrange(256) for _ in range(32))).decode(),
    "UUID": lambda r: "-".join(_chance(r, "0123456789abcdef", n) for n in (8, 4, 4, 4, 12)),
    "password": lambda r: _chance(r, _ALNUM + "!$%*", 14),
}
_NAMED_ONLY = {"UUID", "password", "hexadecimal"}
"""Without a name beside it, nobody could tell these from a request's id or a checksum."""


def _hidden(secret: str, how: str, rng: random.Random) -> str:
    """Put a secret into a line as servers do."""
    line, _ = step(5, rng)
    places: dict[str, str] = {
        "a key of a step": f"{line} api_key={secret}",
        "a token of a step": f"{line} auth_token={secret}",
        "an unknown key of a step": f"{line} backend={secret}",
        "an unknown key, quoted": f"{line} note='{secret}'",
        "server arguments": f"{stamp(1)} server_args=ServerArgs(model_path='m', api_key='{secret}', tp_size=1)",
        "an argument without a name": f"{stamp(1)} server_args=ServerArgs(model_path='m', served_model_name='{secret}', tp_size=1)",
        "an address": f"{stamp(1)} server_args=ServerArgs(model_path='https://user:{secret}@host/m', tp_size=1)",
        "a bearer in an exception": f"{stamp(2)} Exception: request failed: Authorization: Bearer {secret}",
        "an exception": f"{stamp(2)} Scheduler hit an exception: ValueError: bad key {secret}",
        "an option in a start": f"{stamp(1)} launch_server --api-key {secret} --tp 1",
        "a broken line": f"{stamp(3)} DDTREE metrics: bs=x budget=9 api_key={secret} commit_lens=[1",
        "a broken line, unnamed": f"{stamp(3)} DDTREE metrics: bs=1,0 budget=9 thing={secret} commit_lens=[1]",
        "a decode line": f"{stamp(4)} Decode batch, #running-req: 3, #token: 12, token usage: 0.01, peer: {secret}, #queue-req: 0",
        "a request line": f"{stamp(6)} Receive: obj=GenerateReqInput(rid='r1', text='hello', bootstrap_room='{secret}', stream=True)",
    }
    return places[how]


HIDING = (
    "a key of a step", "a token of a step", "an unknown key of a step", "an unknown key, quoted", "server arguments",
    "an argument without a name", "an address", "a bearer in an exception", "an exception", "an option in a start", "a broken line",
    "a broken line, unnamed", "a decode line", "a request line",
)  # fmt: skip
_NAMED = {
    "a key of a step",
    "a token of a step",
    "server arguments",
    "an address",
    "a bearer in an exception",
    "an option in a start",
    "a broken line",
}


def planted(number: int, place: Path) -> Outcome:
    """Plant secrets into lines; export all tables, inspect, report: no piece of eight characters may be in any output."""
    rng, outcome = random.Random(f"secret/{number}"), Outcome(tried=4)
    written = log(rng, 8)
    secrets: list[tuple[str, str, str]] = []
    for _ in range(4):
        how = rng.choice(HIDING)
        kind = rng.choice([k for k in SECRETS if how in _NAMED or k not in _NAMED_ONLY])
        secret = SECRETS[kind](rng)
        secrets.append((kind, how, secret))
        written.lines.insert(rng.randrange(len(written.lines)), _hidden(secret, how, rng))
    (place / "a.log").write_bytes(written.text)
    runs = [["export", "a.log", "-o", "all/", "--format", "jsonl"], ["inspect", "a.log", "--json"], ["inspect", "a.log"]]
    if number % 8 == 0:
        runs.append(["report", "a.log", "-o", "page.html"])
    said = ""
    for arguments in runs:
        ran = attempt(arguments, place, seconds=60)
        basics(ran, outcome, f"{' '.join(arguments)} with planted secrets {number}")
        said += ran.err + ran.out.decode("utf-8", "replace")
    said += "".join(p.read_text(errors="replace") for p in place.rglob("*") if p.is_file() and p.name != "a.log")
    for kind, how, secret in secrets:
        core = secret.rpartition("sig=")[2]
        pieces = [core[i : i + 8] for i in range(len(core) - 7)]
        if any(piece in said for piece in pieces[8:] if not _common(piece)) or (len(pieces) < 9 and core in said):
            outcome.note("leaked", f"a secret of kind {kind} in {how}: {secret}")
    return outcome


def _common(piece: str) -> bool:
    return piece.lower() in "agehicHlwas5vcmc".lower()
