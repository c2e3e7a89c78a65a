"""The border: a wrong value is named by its key and by what is wanted, and never quoted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import pytest

from ddtree_metrics.errors import BenchError
from ddtree_metrics.validation import checked, decode_json


@dataclass
class Inner:
    count: Annotated[int, msgspec.Meta(ge=0, le=10)] = 0
    share: float | None = None
    words: list[str] = field(default_factory=list)
    by: dict[str, int] = field(default_factory=dict)


@dataclass
class Outer:
    name: str
    inner: list[Inner] = field(default_factory=list)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ('{"name": 3}', "name: a text is wanted, not a whole number"),
        ("{}", "name: it is missing"),
        ("[]", "an object is wanted, not a list"),
        ('{"name": "x", "inner": [{"count": "9"}]}', "inner[0].count: a whole number is wanted, not a text"),
        ('{"name": "x", "inner": [{}, {"count": 11}]}', "inner[1].count: a whole number <= 10 is wanted"),
        ('{"name": "x", "inner": [{"share": []}]}', "inner[0].share: a number or null is wanted, not a list"),
        ('{"name": "x", "inner": [{"by": {"secret": "secret"}}]}', "inner[0].by[...]: a whole number is wanted, not a text"),
        ('{"name": "x", "inner": [{"share": 1e999}]}', "inner[0].share: number out of range"),
        ('{"name": "x", "inner": [{"count": ' + "9" * 5000 + "}]}", "inner[0].count: integer value out of range"),
        ("[" * 100_000, "its JSON is nested too deeply"),
        ('{"name": "\\ud800"}', "it is not JSON"),
        ('{"name": NaN}', "it is not JSON"),
        ("", "it is not JSON"),
    ],
)
def test_what_is_wrong_is_named_by_its_key_and_what_is_wanted(raw: str, told: str) -> None:
    with pytest.raises(BenchError) as caught:
        decode_json(raw.encode(), Outer if not raw.startswith("[[") else Any, BenchError)

    assert str(caught.value) == told


def test_plain_values_are_held_against_the_same_forms() -> None:
    with pytest.raises(BenchError, match=r"^inner\[0\]\.words\[1\]: a text is wanted, not true or false$"):
        checked({"name": "x", "inner": [{"words": ["a", True]}]}, Outer, BenchError)
    assert checked({"name": "x", "inner": [{"count": 3}]}, Outer, BenchError) == Outer("x", [Inner(3)])
