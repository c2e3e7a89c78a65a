"""The gallery: one picture and at most five lines of code for each question of the incident, run as they stand."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_gallery", DOCS / "gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def drawn(gallery: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str, str]]:
    made: dict[str, tuple[str, str, str]] = gallery.draw(tmp_path_factory.mktemp("gallery"))
    return made


def test_each_picture_takes_five_lines_and_the_words_beside_it_are_its_title(drawn: dict[str, tuple[str, str, str]]) -> None:
    """Where they differ: ``python docs/gallery.py`` draws the pictures again and says what the page should."""
    assert len(drawn) == 6
    for name, (code, alt, title) in drawn.items():
        assert len(code.strip().splitlines()) <= 5, name
        assert alt == title, name
        assert (DOCS / "gallery" / name).read_text(encoding="utf-8").startswith("<?xml"), name


def test_every_picture_that_is_kept_is_shown_and_every_question_has_one(drawn: dict[str, tuple[str, str, str]]) -> None:
    assert {path.name for path in (DOCS / "gallery").iterdir()} == set(drawn)
    questions = re.findall(r"^## (.*\?)$", (DOCS / "gallery.md").read_text(encoding="utf-8"), flags=re.M)
    assert len(questions) == len(drawn)


def test_the_code_imports_nothing_internal(drawn: dict[str, tuple[str, str, str]]) -> None:
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    assert re.findall(r"^(?:from|import) ddtree_metrics.*$", page, flags=re.M) == ["import ddtree_metrics as ddt"]
