"""A dialect from a TOML file: the example of the documentation, and errors that name the file, the key and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_metrics.dialects import get
from ddtree_metrics.dialects.compiled import is_compiled
from ddtree_metrics.dialects.custom import load_dialect
from ddtree_metrics.dialects.engine import Parser
from ddtree_metrics.errors import UnknownDialect
from tests.dialect_lines import batch, plain

EXAMPLE = Path(__file__).resolve().parent.parent / "docs" / "dialect-example.toml"


def test_the_example_of_the_documentation_reads_lines_of_that_server() -> None:
    dialect = load_dialect(EXAMPLE)
    assert get(dialect) is dialect
    assert dialect.counts.nodes_include_root is False
    line = "[2026-02-01 10:00:{:02d} TP0] TREE step: n=1; tree=16; nodes=[16]; ok=[{}]; out=[{}]; ms=40.00; depth=3"
    parser = Parser([dialect], on_error="skip")
    for _ in range(2):
        lines = [line.format(k % 60, k % 9, k % 9 + 1) for k in range(500)] + ["noise", "TREE step: n=2; out=[5]"]
        parsed = parser.feed(batch(lines))
        made = [plain(r) for r in parsed.tables["steps"].to_pylist()]
        assert [r["commit_lens"] for r in made] == [[k % 9 + 1] for k in range(500)]
        assert {r["dialect"] for r in made} == {"treeserve"}
        assert made[0]["extra"] == {"depth": "3"}
    assert parser.broken.counts == {("treeserve", "steps", "list_length"): 2}
    assert not is_compiled() or parser.misses["treeserve"] < 300


def changed(tmp_path: Path, old: str, new: str) -> Path:
    text = EXAMPLE.read_text()
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "treeserve"', "", r"mine\.toml: name: is missing; give it a text"),
        ('name = "treeserve"', "name = 3", r"mine\.toml: name: is 3; give it a text"),
        ('name = "treeserve"', 'nane = "x"', r"mine\.toml: nane: is not a key of this place; use one of about, counts, lines, name"),
        ('table = "steps"  ', 'table = "step"  ', r"mine\.toml: lines\[1\]\.table: is 'step'; use one of steps, decode"),
        ('budget = "tree"', 'bugdet = "tree"', r"mine\.toml: lines\[1\]\.fields\.bugdet: table steps has no column 'bugdet'; use one of"),
        ('budget = "tree"', "budget = 3", r"mine\.toml: lines\[1\]\.fields\.budget: must be a key of the line, or a list of keys"),
        ('budget = "tree"', 'budget = "n"', r"mine\.toml: lines\[1\]\.fields\.budget: the key 'n' fills two columns"),
        ('marker = "TREE step"', "", r"mine\.toml: lines\[1\]\.marker: is missing"),
        ("decimals = 2", "decimals = 0x7fffffffffffffff", r"lines\[1\]\.decimals: is 9223372036854775807; a float is printed with 0 to 17"),
        ("decimals = 2", "decimals = -1", r"lines\[1\]\.decimals: is -1; a float is printed with 0 to 17 decimals"),
        ("decimals = 2", "decimals = 18", r"lines\[1\]\.decimals: is 18; a float is printed with 0 to 17 decimals"),
        ("decimals = 2", "decimals = true", r"mine\.toml: lines\[1\]\.decimals: is True; give it a whole number"),
        (
            "budget = 16, nodes",
            "budget = 17, nodes",
            r"mine\.toml: lines\[1\]\.samples\[1\]: column budget should be 17, and is 16; correct the sample",
        ),
        ('broken = "list_length"', 'broken = "cut"', r"lines\[1\]\.samples\[2\]: should be broken \(cut\), and is list_length"),
        ('broken = "list_length"', 'broken = "odd"', r"lines\[1\]\.samples\[2\]\.broken: is 'odd'; use one of cut, bad_number"),
        ("nothing = true", "", r"lines\[1\]\.samples\[4\]\.gives: say one thing of a sample"),
        ("pattern = '^(", "pattern = '(", r"lines\[2\]\.pattern: must begin with \^"),
        ("pattern = '^(", "pattern = '^((", r"mine\.toml: .*the pattern is no regular expression"),
        ("nodes_include_root = false", "nodes_include_root = 1", r"counts\.nodes_include_root: is 1; give it a true or false"),
        ("[counts]", "[counts", r"mine\.toml: is not valid TOML"),
        ('broken = "list_length"', 'broken = ["cut"]', r"samples\[2\]\.broken: is a list; give it a text"),
        ('broken = "list_length"', "broken = { a = 1 }", r"samples\[2\]\.broken: is a table; give it a text"),
        ('name = "treeserve"', f"name = {'[' * 300}{']' * 300}", r"mine\.toml: name: is a list; give it a text"),
        ('name = "treeserve"', f"name = {'[' * 3000}{']' * 3000}", r"mine\.toml: has a number of too many digits, or is nested too deeply"),
        ('name = "treeserve"', f"name = {'9' * 5000}", r"mine\.toml: has a number of too many digits, or is nested too deeply"),
    ],
)
def test_a_mistake_names_the_file_the_key_and_what_to_do(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UnknownDialect, match=message):
        load_dialect(changed(tmp_path, old, new))


def test_a_line_kind_without_samples_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bare.toml"
    path.write_text('name = "bare"\n[[lines]]\ntable = "steps"\nmarker = "S"\nfields = { commit_lens = "c" }\n')
    with pytest.raises(UnknownDialect, match=r"bare\.toml: lines\[1\]\.samples: is missing; give it a list"):
        load_dialect(path)
    path.write_text(path.read_text().replace("marker", "samples = []\nmarker"))
    with pytest.raises(UnknownDialect, match=r"bare\.toml: .*has no samples"):
        load_dialect(path)


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnknownDialect, match="cannot be read"):
        load_dialect(tmp_path / "none.toml")
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(UnknownDialect, match=r"bytes\.toml: is not UTF-8"):
        load_dialect(path)


def test_a_number_of_a_custom_dialect_is_whole_or_its_line_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        """
name = "own"
[[lines]]
table = "events"
marker = "queue grew"
pattern = '^queue grew to (?P<count>[0-9]+)\\b(?P<detail>.*)'
const = { kind = "notice" }
[[lines.samples]]
text = "queue grew to 12 now"
gives = { count = 12 }
[[lines]]
table = "steps"
marker = "round"
loose = true
fields = { budget = "nodes", avg_commit_len = "mean" }
[[lines.samples]]
text = "round nodes=16 mean=4.50"
gives = { budget = 16, avg_commit_len = 4.5 }
"""
    )
    parser = Parser([load_dialect(path)], on_error="skip")
    lines = [f"queue grew to {n} now" for n in ("12", "1,024", "1.5", "99999999999999999999", "7")]
    made = parser.feed(batch([*lines, "round nodes=1,024 mean=4.50", "round nodes=16 mean=4,50"])).tables
    assert made["events"].column("count").to_pylist() == [12, 7]
    assert "steps" not in made
    assert {(t, why): n for (_, t, why), n in parser.broken.counts.items()} == {
        ("events", "bad_number"): 2,
        ("events", "out_of_range"): 1,
        ("steps", "bad_number"): 2,
    }
