"""Server starts: arguments of both spellings, cut ones, partial ones; and no secret anywhere."""

from __future__ import annotations

import re

import pytest

from ddtree_metrics.dialects import DIALECTS
from ddtree_metrics.dialects.engine import Parser
from ddtree_metrics.dialects.secrets import redact
from ddtree_metrics.errors import BrokenLine
from tests.dialect_lines import SAMPLES, batch, one, reason, rows

HEAD = "[2026-04-27 02:35:54] "
REPR = (
    "server_args=ServerArgs(model_path='org/model', host='0.0.0.0', port=8000, speculative_algorithm='DDTREE', "
    "speculative_num_steps=7, speculative_eagle_topk=4, speculative_num_draft_tokens=17, speculative_ddtree_budget=16, page_size=1, "
    "tp_size=8, dp_size=2, context_length=262144, max_total_tokens=665690, decode_log_interval=40, "
    'json_model_override_args=\'{"a": [1, 2], "b": "x)"}\', lora_paths=[\'a\', "it\'s"], quantization=None, '
    "max_queued_requests=9223372036854775807)"
)


def as_dict(text: str) -> str:
    """Write the arguments as the dict that newer releases print."""
    inside = text.removeprefix("server_args=ServerArgs(").removesuffix(")")
    return "server_args={" + re.sub(r"(?:(?<=, )|^)([a-z_]+)=", r"'\1': ", inside) + "}"


@pytest.mark.parametrize("body", [REPR, as_dict(REPR)], ids=["repr", "dict"])
def test_arguments_of_both_spellings_fill_the_columns(body: str) -> None:
    row = one("servers", HEAD + body)
    said = {
        "algorithm": "DDTREE", "num_steps": 7, "topk": 4, "num_draft_tokens": 17, "budget": 16, "page_size": 1, "tp_size": 8, "dp_size": 2,
        "context_len": 262144, "max_total_tokens": 665690, "decode_log_interval": 40,
    }  # fmt: skip
    assert {k: row[k] for k in said} == said
    args = row["args"]
    assert args["json_model_override_args"] == '{"a": [1, 2], "b": "x)"}'
    assert args["lora_paths"] == "['a', \"it's\"]"
    assert args["max_queued_requests"] == "9223372036854775807"
    assert args["max_total_tokens"] == "665690"
    assert row["args_cut"] is False


def test_a_cut_start_keeps_what_stands_before_the_cut_and_says_so() -> None:
    row = one("servers", HEAD + REPR[: REPR.index("context_length=262144") + len("context_length=262")])
    assert row["args_cut"] is True
    assert row["args"]["dp_size"] == "2"
    assert "context_len" not in row
    (pasted,) = rows("servers", *(SAMPLES / "sglang" / "30-startup-banner-and-server-args-cut.log").read_text().splitlines())
    assert pasted["page_size"] == 1
    assert pasted["args"]["max_queued_requests"] == "9223372036854775807"
    assert pasted["args_cut"] is True
    assert "swa_full_tokens_ratio" not in pasted["args"]


def _pairs_before(end: int) -> int:
    """How many arguments of REPR stand whole before a place, by the places of their commas."""
    commas = [REPR.index(key) for key in re.findall(r"(?<=, )[a-z_]+=", REPR)]
    return sum(place - 2 < end for place in commas)


@pytest.mark.parametrize("end", range(len("server_args=ServerArgs("), len(REPR), 7))
def test_a_start_cut_anywhere_never_raises_and_never_holds_half_a_value(end: int) -> None:
    whole = one("servers", HEAD + REPR)["args"]
    for made in rows("servers", HEAD + REPR[:end]):
        assert made["args_cut"] is True
        assert dict(made["args"]) == {k: whole[k] for k in dict(made["args"])}
        # every argument whose comma is there was read
        assert len(made["args"]) == _pairs_before(end)


@pytest.mark.parametrize("form", ["repr", "dict"])
@pytest.mark.parametrize(
    ("marker", "lost"),
    [
        (", ...)", 0),
        (", ...", 0),
        (", …)", 0),
        (", ----cut--", 0),
        (", ----cut----)", 0),
        (" ----cut--", 1),
        ("----cut--", 1),
        ("...)", 1),
        (" ...", 1),
        (", <snip>", 0),
        (", [...])", 0),
        (", (1234 characters omitted)", 0),
        ("", 1),
        (",", 0),
        (", page_si", 0),
        (", page_si----cut--", 0),
        (", page_size=", 0),
        (", page_size=1", 0),
        (", chat_template='/opt/te", 0),
        (", chat_template='/opt/te…)", 0),
        (", chat_template='/opt/te----cut--", 0),
    ],
)
def test_a_marker_of_a_cut_is_no_argument_and_no_part_of_one(marker: str, lost: int, form: str) -> None:
    whole = "server_args=ServerArgs(model_path='m', dtype=None, tp_size=8)"
    text = as_dict(whole) if form == "dict" else whole
    if form == "dict":
        marker = re.sub(r"(page_size|chat_template)=", r"'\1': ", marker).replace(")", "}")
    row = one("servers", HEAD + text[:-1] + marker)
    assert row["args_cut"] is True
    # the value before the cut is whole only if its comma is there
    assert row["args"] == {"model_path": "m", "dtype": "None"} | ({} if lost else {"tp_size": "8"})
    assert row.get("tp_size") == (None if lost else 8)


def test_what_stands_behind_a_cut_in_the_middle_is_read_too() -> None:
    row = one("servers", HEAD + "server_args=ServerArgs(model_path='m', tp_size=8, dtype=...,----cut----, page_size=16, a={'b': ...}, c=1)")
    assert row["args"] == {"model_path": "m", "tp_size": "8", "page_size": "16", "c": "1"}
    assert row["args_cut"] is True


@pytest.mark.parametrize("middle", ["…ue, revision='x', ", "…to', revision='x', ", "…', "])
def test_a_line_shortened_in_the_middle_of_a_string_makes_no_argument_of_two(middle: str) -> None:
    # journalctl shortens a line to the width of the terminal, in its middle
    row = one("servers", HEAD + "server_args=ServerArgs(model_path='m', tokenizer_path='/pa" + middle + "tp_size=8)")
    assert row["args_cut"] is True
    assert {"model_path": "m"}.items() <= row["args"].items()
    assert "tokenizer_path" not in row["args"]
    assert set(row["args"]) <= {"model_path", "revision", "tp_size"}


def test_a_start_of_which_nothing_is_left_is_a_start_whose_arguments_are_unknown() -> None:
    for text in ("server_args=ServerArgs(...)", "server_args={", "server_args=ServerArgs(model_pa"):
        row = one("servers", HEAD + text)
        assert row["args_cut"] is True
        assert not row["args"]
    assert reason(HEAD + "server_args=ServerArgs()") == "missing_fields"


def test_dots_and_hyphens_inside_of_a_string_are_no_cut() -> None:
    line = "server_args=ServerArgs(model_path='/models/.../m--v2', extra='--a ... --b', tp_size=8)"
    row = one("servers", HEAD + line)
    assert row["args"] == {"model_path": "/models/.../m--v2", "extra": "--a ... --b", "tp_size": "8"}
    assert row["args_cut"] is False


def test_the_cut_samples_of_public_reports_are_told_as_cut() -> None:
    for name in ("30-startup-banner-and-server-args-cut.log", "38-startup-sequence-2026.log"):
        (start,) = (r for r in rows("servers", *(SAMPLES / "sglang" / name).read_text().splitlines()) if "args" in r)
        assert start["args_cut"] is True
        assert not any("cut" in key or "." in key or "-" in key for key in start["args"])


@pytest.mark.parametrize(
    ("item", "secret"),
    [
        ("api_key='sk-super-secret'", "sk-super-secret"),
        ("admin_api_key='adm77'", "adm77"),
        ("hf_token='hf_abcdefghijklmnop'", "hf_abcdefghijklmnop"),
        ("ssl_keyfile_password='pw1'", "pw1"),
        ("client_secret='cs1'", "cs1"),
        ("watermark_key='wk1'", "wk1"),
        ("otlp_traces_endpoint='http://user:pw2@collector:4317'", "pw2"),
        ("hf_overrides={'auth_token': 'tok3', 'n': 1}", "tok3"),
        ("headers={'Authorization': 'Bearer abcdef123456'}", "abcdef123456"),
    ],
)
@pytest.mark.parametrize("form", ["repr", "dict", "cut", "broken"])
def test_a_secret_reaches_no_table_example_or_message(item: str, secret: str, form: str) -> None:
    body = f"server_args=ServerArgs(model_path='m', {item}, tp_size=1)"
    if form == "dict":
        body = as_dict(body)
    if form == "cut":
        body = body.removesuffix(", tp_size=1)")
    if form == "broken":
        body = f"DDTREE metrics: bs=1 commit_lens=[-1] {item}"
    line = HEAD + body
    parser = Parser(DIALECTS, on_error="skip")
    parsed = parser.feed(batch([line], where=["f:1"]))
    seen = str({t: b.to_pylist() for t, b in parsed.tables.items()}) + str(parser.broken.examples)
    assert secret.strip("'") not in seen
    assert parsed.tables or parser.broken.total
    if form == "broken":
        with pytest.raises(BrokenLine) as caught:
            Parser(DIALECTS, on_error="raise").feed(batch([line], where=["f:1"]))
        assert secret.strip("'") not in str(caught.value) + caught.value.line


def test_secrets_in_unknown_keys_of_a_step_line_are_removed_in_every_tier() -> None:
    line = HEAD + "DDTREE metrics: bs=1 commit_lens=[5] session_token=abc123 url=http://u:pw@h/x draft_tokens=7"
    for row in rows("steps", *[line] * 300):
        assert row["extra"] == {"session_token": "<redacted>", "url": "<redacted>", "draft_tokens": "7"}


def test_plain_counts_and_paths_are_no_secrets() -> None:
    line = HEAD + "server_args=ServerArgs(max_total_tokens=64, tokenizer_path='t', api_key=None, num_reserved_decode_tokens=512)"
    args = one("servers", line)["args"]
    assert args == {"max_total_tokens": "64", "tokenizer_path": "t", "api_key": "None", "num_reserved_decode_tokens": "512"}


def test_command_lines_are_redacted_too() -> None:
    assert redact("run --api-key sk-1 --tp 8 --hf-token=abc") == "run --api-key <redacted> --tp 8 --hf-token=<redacted>"


def test_partial_starts_have_no_args_so_that_they_can_be_merged() -> None:
    pool = one("servers", HEAD + "max_total_num_tokens=992896, chunked_prefill_size=16384, ...")
    assert pool["max_total_tokens"] == 992896
    assert "args" not in pool
    worker = one(
        "servers",
        "[2026-07-20 12:00:00 TP0] Initialized DDTREE v2 worker. block_size=16, tree_budget=64, max_tree_nodes=65, prune=False, "
        "tree_attention=True, cpu_build=False, cpu_follow=False, graph_buckets=[8, 16, 32, 65]",
    )
    assert (worker["algorithm"], worker["block_size"], worker["budget"]) == ("DDTREE", 16, 64)
    assert "args" not in worker
    assert reason(HEAD + "max_total_num_tokens=") == "cut"
