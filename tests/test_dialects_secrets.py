"""What is a secret by its key or by its shape is nowhere kept; what merely sounds like one is."""

from __future__ import annotations

import base64
import random
import string
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import ddtree_metrics as ddt
from ddtree_metrics.cli import main
from ddtree_metrics.dialects import DIALECTS
from ddtree_metrics.dialects.engine import Parser
from ddtree_metrics.dialects.secrets import clean_value, is_secret, redact
from tests.dialect_lines import batch, one, reason, rows

HEAD = "[2026-02-01 10:00:00 TP0] "
GONE = "<redacted>"
# Made up, in the form of the real ones.
SHAPES = [
    "sk-ABCDefgh12345678",
    "sk-proj-abc_DEF-123456",
    "hf_ABCDEFGHIJKLMNOPqrst",
    "ghp_abcdEFGH12345678",
    "github_pat_11ABCDEFG0abcdefgh",
    "AKIAABCDEFGHIJKLMNOP",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-DEF_123",
    "glpat-ABCDefgh12345678",
]


@pytest.mark.parametrize("secret", [*SHAPES, "Bearer abcDEF123456", "bearer abcdef123456ghijk"])
@pytest.mark.parametrize("fast", [True, False])
def test_a_value_with_the_shape_of_a_secret_is_kept_nowhere(secret: str, fast: bool) -> None:
    word = secret.split()[-1]
    lines = [
        *[f"{HEAD}DDTREE metrics: bs=1 commit_lens=[5] note={secret}"] * 200,
        *[f"{HEAD}DDTREE metrics: bs=1 note={secret} commit_lens=[5]"] * 2,
        f"{HEAD}DDTREE metrics: bs=1 commit_lens=[5] {secret}",
        f"{HEAD}DDTREE metrics: bs=1 commit_lens=[x] note={secret}",
        f"{HEAD}Decode batch, #running-req: 1, note: {secret}, #queue-req: 0",
        f"{HEAD}server_args=ServerArgs(model_path='m', served_model_name='{secret}', tp_size=1)",
        f"{HEAD}Scheduler hit an exception: no access with {secret}",
        f'client said: "{secret} DDTREE metrics: bs=1"',
    ]
    parser = Parser(DIALECTS, on_error="skip", fast=fast)
    parsed = parser.feed(batch(lines))
    parsed = parser.feed(batch(lines))  # the shapes have been learned by now
    assert {t: b.num_rows for t, b in parsed.tables.items()} == {"steps": 203, "decode": 1, "servers": 1, "events": 1}
    assert (parser.broken.total, parser.quoted.total) == (2, 2)
    seen = str({t: b.to_pylist() for t, b in parsed.tables.items()}) + str(parser.broken.examples) + str(parser.quoted.examples)
    assert word not in seen
    assert GONE in seen


def test_a_shape_that_was_learned_from_a_harmless_value_lets_no_secret_pass() -> None:
    harmless = f"{HEAD}DDTREE metrics: bs=1 commit_lens=[5] note=hello"
    parser = Parser(DIALECTS, on_error="skip")
    rows("steps", *[harmless] * 100, parser=parser)
    made = rows("steps", *[harmless] * 100, *[harmless.replace("hello", s) for s in SHAPES], parser=parser)
    assert [r["extra"]["note"] for r in made] == ["hello"] * 100 + [GONE] * len(SHAPES)


@pytest.mark.parametrize(
    "key",
    [
        "api_key", "apikey", "x-api-key", "apiKey", "access_key", "secret", "secret_id", "client_secret", "auth_token", "access_token",
        "accessToken", "hf_token", "bearer_token", "token", "password", "passwd", "db_password", "authorization", "Authorization",
        "credential", "credentials", "private_key", "watermark_key", "admin_api_key",
    ],
)  # fmt: skip
def test_keys_of_secrets_lose_any_value_but_a_count(key: str) -> None:
    assert is_secret(key, "abc")
    assert one("steps", f"{HEAD}DDTREE metrics: bs=1 commit_lens=[5] {key}=abc")["extra"] == {key: GONE}
    assert "abc" not in redact(f"{key}=abc {key}: abc")
    assert not is_secret(key, "17")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cache_key", "abc"), ("new_key", "xyz"), ("key", "k1"), ("sort_keys", "a"), ("monkey", "x"), ("tokens", "7"),
        ("draft_tokens", "[1,2]"),
        ("tokenizer", "fast"), ("token_usage", "high"), ("keyboard", "us"), ("author", "me"), ("task", "sk"),
        ("note", "hf_transformers"), ("note", "risk-averse"), ("note", "basic"), ("path", "org/model-8b"), ("rate", "93.10%"),
        ("est", "[4.40,4.70]"), ("took", "0.32ms"), ("at", "2025-07-11T12:00:00.123456"), ("kv", "fp8_e4m3"), ("on", "True"),
    ],
)  # fmt: skip
def test_harmless_keys_and_values_stay(key: str, value: str) -> None:
    lines = [f"{HEAD}DDTREE metrics: bs=1 commit_lens=[5] {key}={value}"] * 40
    assert [r["extra"] for r in rows("steps", *lines)] == [{key: value}] * 40


def test_a_key_that_only_ends_in_key_loses_a_long_random_value() -> None:
    line = f"{HEAD}DDTREE metrics: bs=1 commit_lens=[5] cache_key="
    made = rows("steps", *[line + "abc"] * 100, line + "a1b2c3d4e5f6a7b8c9d0")
    assert [r["extra"]["cache_key"] for r in made] == ["abc"] * 100 + [GONE]


@pytest.mark.parametrize(
    "body",
    [
        "DDTREE metrics: commit_lens=[4] commit_lens=[5]",
        "DDTREE metrics: bs=1 commit_lens=[4] accepted_drafts=[3] bs=1",
        "DDTREE metrics: bs=1 commit_lens=[4] avg_commit_len=4.00 bs=1 commit_lens=[5] avg_commit_len=5.00",
        "Decode batch, #running-req: 1, #token: 5, #token: 6, #queue-req: 0",
    ],
)
def test_a_key_that_stands_twice_breaks_its_line(body: str) -> None:
    assert reason(HEAD + body) == "repeated_key"
    for fast in (True, False):
        parser = Parser(DIALECTS, on_error="skip", fast=fast)
        assert not parser.feed(batch([HEAD + body] * 200)).tables
        assert parser.broken.total == 200


def test_an_unknown_key_that_stands_twice_keeps_both_values() -> None:
    row = one("steps", HEAD + "DDTREE metrics: bs=1 commit_lens=[5] x=1 y=0 x=2 x=3")
    assert row["extra"] == {"x": "1", "y": "0", "x#2": "2", "x#3": "3"}


def test_two_spellings_of_one_column_are_not_one_key_twice() -> None:
    row = one("steps", HEAD + "DDTREE metrics: bs=1 batch=1 commit_lens=[5]")
    assert (row["batch_size"], row["extra"]) == (1, {"batch": "1"})


LETTERS = string.ascii_letters + string.digits
HEX = "0123456789abcdef"


def kinds(rng: random.Random) -> dict[str, Callable[[], str]]:
    """How the keys of some services look, and keys that have no form of their own."""

    def of(size: int, signs: str = LETTERS) -> str:
        return "".join(rng.choice(signs) for _ in range(size))

    return {
        "openai": lambda: "sk-proj-" + of(48),
        "anthropic": lambda: "sk-ant-api03-" + of(40),
        "groq": lambda: "gsk_" + of(52),
        "replicate": lambda: "r8_" + of(37),
        "age": lambda: "AGE-SECRET-KEY-1" + of(58, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L"),
        "stripe": lambda: "sk_live_" + of(24),
        "sendgrid": lambda: f"SG.{of(22)}.{of(43)}",
        "azure": lambda: f"sig={of(43)}%3D",
        "xai": lambda: "xai-" + of(80),
        "huggingface": lambda: "hf_" + of(34),
        "github": lambda: "ghp_" + of(36),
        "aws": lambda: "AKIA" + of(16, string.ascii_uppercase + string.digits),
        "google": lambda: "AIza" + of(35),
        "vault": lambda: "hvs." + of(24),
        "telegram": lambda: f"{rng.randrange(10**8, 10**9)}:AA{of(33)}",
        "jwt": lambda: f"eyJ{of(20)}.eyJ{of(30)}.{of(43)}",
        "letters and digits": lambda: of(40),
        "hex": lambda: of(40, HEX),
        "base64": lambda: base64.b64encode(rng.randbytes(32)).decode(),
        "base64 of URLs": lambda: base64.urlsafe_b64encode(rng.randbytes(32)).decode(),
    }


def planted() -> Iterator[tuple[str, str]]:
    """128 secrets, their kinds in turn."""
    made = kinds(random.Random(9))
    for i in range(128):
        kind = list(made)[i % len(made)]
        yield kind, made[kind]()


PLACES = (
    HEAD + "DDTREE metrics: bs=1 commit_lens=[5] note={}",
    HEAD + "DDTREE metrics: bs=1 {}=1 commit_lens=[5]",
    HEAD + "DDTREE metrics: bs=1 commit_lens=[5] {}",
    HEAD + "DDTREE metrics: bs=1 commit_lens=[5] note='{}'",
    HEAD + "DDTREE metrics: bs=1 commit_lens=[5] note={{'a': '{}'}}",
    HEAD + "DDTREE metrics: bs=1 commit_lens=[x] note={}",
    HEAD + "DDTREE metrics: bs=1 commit_lens={}",
    HEAD + "DDTREE metrics: {}",
    HEAD + "Decode batch, #running-req: 1, note: {}, #queue-req: 0",
    HEAD + "Decode batch, #running-req: 1, {}: 5, #queue-req: 0",
    HEAD + "Decode batch, #running-req: 1, #token: {}, #queue-req: 0",
    HEAD + "Prefill batch, #new-seq: 1, #new-token: 5, #cached-token: 0, #running-req: 0, #queue-req: 0, note: {}",
    HEAD + "server_args=ServerArgs(model_path='m', served_model_name='{}', tp_size=1)",
    HEAD + "server_args=ServerArgs(model_path='https://h.example/m?{}&n=1', tp_size=1)",
    HEAD + "server_args=ServerArgs(model_path='m', hf_overrides={{'x': '{}'}}, tp_size=1)",
    HEAD + "Scheduler hit an exception: PermissionError: no access with {}",
    HEAD + "SIGTERM received. frame={} and {}",
    HEAD + "The server is fired up and ready, see {}",
    HEAD + "DDTREE v2 verify completed. {}",
    HEAD + 'INFO:     192.0.2.10:40052 - "POST /v1/{} HTTP/1.1" 200 OK',
    "Started worker.service - with {}.",
    "Suppressed 740 messages from {}",
    HEAD + "Req Time Stats(rid=r2, input len=38, output len=4, note={}): queue_duration=0.40ms",
    'client said: "DDTREE metrics: bs=1 commit_lens=[4] {}"',
    "{} DDTREE metrics: bs=1 commit_lens=[4]",
)
# What a request is called is the client's own choice; what cannot be an id by its form is none.
IDS = (
    HEAD + "DDTREE metrics: bs=1 commit_lens=[5] rids=['{}']",
    HEAD + "Receive: obj=GenerateReqInput(rid='{}', text='a')",
)
NO_FORM = ("letters and digits", "hex", "base64", "base64 of URLs")


def pieces(kind: str, secret: str) -> list[str]:
    """All that is secret in one, in pieces of eight characters."""
    secret = secret.removeprefix("sig=").rstrip("=")
    return [secret[i : i + 8] for i in range(len(secret) - 7)]


def test_none_of_128_planted_secrets_is_in_any_table_or_example() -> None:
    for fast in (True, False):
        parser = Parser(DIALECTS, on_error="skip", fast=fast)
        for kind, secret in planted():
            lines = [place.format(secret, secret) for place in (*PLACES, *(IDS if kind not in NO_FORM else ()))]
            parsed = parser.feed(batch(lines))
            seen = str([b.to_pylist() for b in parsed.tables.values()]) + str(parser.broken.examples) + str(parser.quoted.examples)
            parser.broken.examples.clear()
            parser.quoted.examples.clear()
            left = [piece for piece in pieces(kind, secret) if piece in seen]
            assert not left, (kind, secret, left, fast)


def test_none_of_128_planted_secrets_is_in_what_the_commands_write(tmp_path: Path) -> None:
    lines = [HEAD + f"DDTREE metrics: bs=1 commit_lens=[{n % 7 + 1}]" for n in range(50)]
    lines += [
        place.format(secret, secret)
        for i, (kind, secret) in enumerate(planted())
        for place in [*PLACES, *(IDS if kind not in NO_FORM else ())][i % 3 :: 3]
    ]
    log = tmp_path / "run.log"
    log.write_text("\n".join(lines) + "\n")
    seen = ""
    for arguments in (
        ["inspect"],
        ["inspect", "--json"],
        ["summary", "--json"],
        ["diagnose", "--json"],
        ["export", "-o", f"{tmp_path}/all/", "--format", "jsonl"],
        ["report", "-o", f"{tmp_path}/all/page.html"],
    ):
        done = CliRunner().invoke(main, [arguments[0], str(log), *arguments[1:]], catch_exceptions=False)
        assert done.exit_code == 0, done.stderr
        seen += done.output
    files = list((tmp_path / "all").iterdir())
    assert len(files) >= 6
    seen += "".join(path.read_text() for path in files)
    for kind, secret in planted():
        assert not [piece for piece in pieces(kind, secret) if piece in seen], (kind, secret)


def test_an_id_with_the_form_of_a_secret_is_the_same_other_name_wherever_it_stands() -> None:
    secret = "sk-proj-" + "a1B2c3D4" * 5
    asked = one("request_lines", HEAD + f"Receive: obj=GenerateReqInput(rid='{secret}', text='a')")["request_id"]
    stepped = one("steps", HEAD + f"DDTREE metrics: bs=1 commit_lens=[5] rids=['{secret}']")["request_ids"]
    assert [asked] == stepped
    assert secret not in asked


@pytest.mark.parametrize(
    "text",
    [
        "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", "moonshotai/Kimi-K2-Instruct-0905", "neuralmagic/Meta-Llama-3.1-405B-Instruct.w8a8",
        "/srv/models/hub/models--Qwen--Qwen3-8B/snapshots/b968826d9c46dd6066d109eabc6255188de91218",
        "sglang-kimi@0.service", "docker-3f2a9b8c7d6e5f4a3f2a9b8c7d6e5f4a3f2a9b8c7d6e5f4a3f2a9b8c7d6e5f4a.scope",
        "chatcmpl-5ba7b810-9dad-11d1-80b4-00c04fd430c8", "rid=5ba7b8109dad11d180b400c04fd430c8", "Qwen3ForCausalLMEagle3",
        "CompressedTensorsW8A8Fp8MoEMethod", "flashinfer_trtllm_nvfp4", "20250711T120000Z", "gpu-node-17a.dc2.example.com", "fp8_e4m3fnuz",
        "NVIDIA-H100-80GB-HBM3", "0x7f3a2c1d4e50", "speculative_num_draft_tokens=16", "steps 3 -> 7 (ema_accept_len=2.76)",
        "10000000000000000000000000", "https://huggingface.co/org/model", "accept_length_per_req=[6, 5, 4]",
    ],
)  # fmt: skip
def test_names_of_models_units_and_files_figures_and_ids_are_left_alone(text: str) -> None:
    assert clean_value(text) == text


# What the servers' own arguments hide in the fixtures: keys by their name.
HIDDEN = {"watermark_config", "watermark_key", "watermark_key_b"}


def test_nothing_in_the_fixtures_is_taken_for_a_secret_but_three_arguments() -> None:
    root = Path(__file__).resolve().parent.parent / "fixtures"
    logs = [p for p in sorted(root.rglob("*")) if p.name.endswith((".log", ".export.zst"))]
    cells = 0
    for path in logs:
        log = ddt.read_text(path, on_error="skip")
        for name in log.stored:
            for row in log.table(name).to_pylist():
                for column, value in row.items():
                    for key, text in value if column in ("extra", "args") and value else [(column, value)]:
                        cells += 1
                        assert "redacted" not in f"{key} {text}" or key in HIDDEN, (path.name, column, key, text)
    # 66 + 545 + 3155 steps of more than twenty columns each
    assert cells > 75_000


def test_of_a_broken_line_only_what_is_known_is_shown() -> None:
    line = f"{HEAD}DDTREE metrics: bs=1,024 commit_lens=[x] tell me a secret story note=once mood='so sad'"
    parser = Parser(DIALECTS, on_error="skip")
    parser.feed(batch([line]))
    ((_, text),) = next(iter(parser.broken.examples.values()))
    assert text == "[2026-02-01 10:00:00 TP0] DDTREE metrics: bs=1,024 commit_lens=[x] … note=once mood='so …"


def test_a_run_of_short_parts_with_a_sign_of_base64_is_looked_at_in_every_line() -> None:
    import re

    from ddtree_metrics.dialects.secrets import DOUBTFUL

    # no part has twelve letters and digits; together they look random
    for text in ("n/a top_cpu_1e9pu_ms=", "a x7q_9Zk+3Vw/8Tt+2Lp b"):
        assert clean_value(text) != text
        assert re.search(DOUBTFUL, text)
