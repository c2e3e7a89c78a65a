"""The prompts: varied, repeatable, begun differently, and cut to the token."""

from __future__ import annotations

import itertools
import re
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_metrics.bench.lengths import fit
from ddtree_metrics.bench.prompts import PromptSource, prose
from ddtree_metrics.errors import BenchError


def test_no_sentence_comes_twice():
    sentences = [s.strip() for s in itertools.islice(prose("1"), 2000)]
    assert len(set(sentences)) == 2000


def test_the_text_is_no_easier_to_guess_than_prose():
    text = PromptSource(0).make("5120/0/0", 30_000)[0]
    words = text.split()
    runs = [tuple(words[i : i + 8]) for i in range(len(words) - 7)]
    assert len(set(runs)) / len(runs) > 0.97  # runs of eight words hardly ever return
    # plain English prose compresses to about 0.35-0.4, one paragraph repeated to below 0.05
    assert len(zlib.compress(text.encode(), 9)) / len(text) > 0.27


def test_same_seed_same_prompt_and_other_rounds_other_prompts():
    source = PromptSource(7)
    assert source.make("64/0/0", 500) == PromptSource(7).make("64/0/0", 500)
    assert source.make("64/0/0", 500) != PromptSource(8).make("64/0/0", 500)
    texts = [source.make(f"{ctx}/{number}/0", 200)[0] for ctx in (64, 1024) for number in range(20)]
    assert len({t[:24] for t in texts}) == 40  # they differ from the first words on: no prefix cache can help


def test_a_users_text_begins_elsewhere_each_round_and_says_when_it_repeats(tmp_path: Path):
    path = tmp_path / "mine.txt"
    path.write_text(" ".join(f"word{i}" for i in range(300)))
    source = PromptSource.from_file(path, seed=1)
    (first, repeats), (second, _) = source.make("a", 500), source.make("b", 500)
    assert not repeats
    assert first[60:] != second[60:]
    assert source.make("a", 5000)[1]
    assert "mine.txt" in source.description


@pytest.mark.parametrize("content", [b"", b"too short", b"\xff\xfe\x00 bad bytes here and some more words to be sure"])
def test_a_useless_prompt_file_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "p.txt").write_bytes(content)
    with pytest.raises(BenchError, match=r"p\.txt"):
        PromptSource.from_file(tmp_path / "p.txt")


def test_a_missing_prompt_file_is_named(tmp_path: Path):
    with pytest.raises(BenchError, match="No such file"):
        PromptSource.from_file(tmp_path / "none.txt")


def pieces_of(piece: int, extra: int):
    """Make a tokenizer that cuts words every few characters and adds some tokens of its own."""
    return lambda text: extra + sum(-(-len(w) // piece) for w in re.findall(r"\s?\w+|[^\w\s]|\s", text))


@given(st.integers(24, 6000), st.integers(1, 9), st.integers(0, 12), st.floats(1.0, 8.0))
@settings(max_examples=40, deadline=None)
def test_any_length_is_hit_exactly_whatever_the_tokenizer(wanted: int, piece: int, extra: int, guess: float):
    count = pieces_of(piece, extra)
    text = PromptSource(1).make("x", wanted * 12 + 400)[0]
    made = fit(text, wanted, count, characters_a_token=guess)
    assert (made.exact, made.tokens, count(made.text)) == (True, wanted, wanted)


def test_a_good_guess_needs_few_questions():
    text = PromptSource(1).make("x", 40_000)[0]
    count = pieces_of(5, 1)
    scale = len(text) / count(text)
    tries = [fit(text, wanted, count, characters_a_token=scale).tries for wanted in (64, 1024, 3072, 5120)]
    assert max(tries) <= 8


def test_a_character_of_several_tokens_is_stepped_around():
    # “ and ” are three tokens each, any other character one: 11 lies inside the quotation mark
    made = fit("ab cd efg ”hij klm", 11, lambda text: sum(3 if c in "“”" else 1 for c in text))
    assert (made.exact, made.tokens) == (True, 11)
    assert made.text.startswith("ab cd efg")


def test_a_length_that_cannot_be_had_gives_the_nearest():
    made = fit("one two three four", 3, lambda text: 2 * len(text.split()))  # even numbers only
    assert (made.exact, made.tokens) == (False, 2)


def test_a_server_that_does_not_count_ends_the_search():
    made = fit("one two three", 2, lambda _: None)
    assert (made.tokens, made.exact) == (None, False)
