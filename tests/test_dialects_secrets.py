"""What is a secret by its key or by its shape is nowhere kept; what merely sounds like one is."""

from __future__ import annotations

import pytest

from ddtree_metrics.dialects import DIALECTS
from ddtree_metrics.dialects.engine import Parser
from ddtree_metrics.dialects.secrets import is_secret, redact
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
        ("note", "hf_transformers"), ("note", "risk-averse"), ("note", "basic"), ("url", "http://h/x"),
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
