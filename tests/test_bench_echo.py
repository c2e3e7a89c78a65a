"""The key comes back from no output, whatever the server does with it: no piece of eight characters in messages or files."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from ddtree_metrics.bench.key_filter import KeyFilter
from ddtree_metrics.cli import main
from tests.echoes import SPELLINGS, field_plays, left_of
from tests.rawserver import RawServer

KEY = "sk-Very+Secret/0123456789=ab"
PASSWORD = "hunter2:Correct Horse/Battery%7"


def outputs(place: Path, play: object, as_password: bool) -> str:
    """Run ``bench`` with all its outputs; return all that it said and wrote."""
    with RawServer(play) as server:  # type: ignore[arg-type]
        url, env = server.url, {"DDTREE_API_KEY": KEY, "OPENAI_API_KEY": ""}
        if as_password:
            from urllib.parse import quote

            url, env = url.replace("http://", f"http://someone:{quote(PASSWORD, safe='')}@"), {"DDTREE_API_KEY": "", "OPENAI_API_KEY": ""}
        names = {"-o": "s.json", "--save": "b.json", "--requests": "r.jsonl"}
        given = [part for option, name in names.items() for part in (option, str(place / name))]
        again = ["--ctx", "30", "--n1", "2", "--n2", "12", "--repeat", "1", "--timeout", "5", "--force"]
        table = CliRunner().invoke(main, ["bench", url, *again, *given], env=env)
        if (place / "s.json").exists():
            shown = CliRunner().invoke(main, ["bench", str(place / "s.json"), "--compare", str(place / "b.json"), "--json"], env=env)
            CliRunner().invoke(main, ["bench", str(place / "s.json"), "-o", str(place / "s.parquet"), "--force"], env=env)
        else:
            shown = table
    for made in (table, shown):
        assert made.exception is None or isinstance(made.exception, SystemExit), made.exception
        assert all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn") for c in made.output)
    text = table.output + shown.output + "".join(p.read_text() for p in place.iterdir() if p.suffix != ".parquet")
    if (place / "s.parquet").exists():
        text += str(pq.read_table(place / "s.parquet").to_pylist()) + str(pq.read_schema(place / "s.parquet").metadata)
    return text


@pytest.mark.parametrize("field", field_plays(""))
def test_a_key_that_comes_back_in_a_field_is_in_no_output(field: str, tmp_path: Path):
    place = tmp_path / "out"
    place.mkdir()
    text = outputs(place, field_plays(KEY)[field], as_password=False)
    assert left_of(KEY, text) is None
    assert len(text) > 50


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_key_in_any_spelling_is_in_no_output(spelling: str, tmp_path: Path):
    for number, field in enumerate(("id", "error message", "SGLang's version and flags")):
        place = tmp_path / str(number)
        place.mkdir()
        assert left_of(KEY, outputs(place, field_plays(SPELLINGS[spelling](KEY))[field], as_password=False)) is None


@pytest.mark.parametrize("spelling", ["plain", "base64 of user and password", "percent where needed", "HTML"])
def test_the_password_of_the_address_is_a_key_like_any_other(spelling: str, tmp_path: Path):
    for number, field in enumerate(("finish reason", "error as text", "model name")):
        place = tmp_path / str(number)
        place.mkdir()
        assert left_of(PASSWORD, outputs(place, field_plays(SPELLINGS[spelling](PASSWORD))[field], as_password=True)) is None


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_is_around_a_key_stays(spelling: str):
    clean = KeyFilter([KEY])
    text = clean(f"before the word, {SPELLINGS[spelling](KEY)} and after it")
    assert text.startswith("before the word, ")
    assert text.endswith(" and after it")
    assert left_of(KEY, text) is None


def test_the_search_finds_what_it_should():
    assert all(left_of(KEY, f"x{spell(KEY)}x") for spell in SPELLINGS.values())
    assert left_of(KEY, "sk-Very and Secret, 0123456 and nothing else") is None


@pytest.mark.parametrize(("secret", "text", "wanted"), [
    ("pw", "pw or pwd, not the PW", "<redacted> or pwd, not the <redacted>"),
    ("EMPTY", "key EMPTYx", "key <redacted>x"),
    ("", "nothing to hide", "nothing to hide"),
])  # fmt: skip
def test_a_short_secret_is_replaced_as_a_whole(secret: str, text: str, wanted: str):
    assert KeyFilter([secret])(text) == wanted


def test_a_model_named_like_the_key_is_still_asked_for_by_its_name(tmp_path: Path):
    from tests.fakeserver import FakeServer
    from tests.test_bench_client import paced, sweep

    name = "token-abc123-model"
    with FakeServer(paced, {"/v1/models": {"data": [{"id": name}]}}) as server:
        made = sweep(server, api_key="token-abc123")
        assert {b["model"] for b in server.seen} == {name}
    assert made.model == "<redacted>-model"
