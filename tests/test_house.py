"""How the package is laid out: no two things of one name, nothing private across packages, nothing that nobody uses."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "ddtree_metrics"
MODULES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def _twice(named: list[tuple[str, str]]) -> dict[str, list[str]]:
    where: dict[str, list[str]] = defaultdict(list)
    for name, place in named:
        where[name].append(place)
    return {name: places for name, places in where.items() if len(places) > 1}


def test_no_two_modules_have_one_name() -> None:
    assert _twice([(path.stem, str(path.relative_to(PACKAGE))) for path in MODULES if path.stem != "__init__"]) == {}


def test_no_two_classes_have_one_name() -> None:
    classes = [
        (node.name, f"{path.relative_to(PACKAGE)}:{node.lineno}")
        for path, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]

    assert _twice(classes) == {}


def test_no_module_takes_a_private_name_of_another() -> None:
    taken = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.module}.{alias.name}"
        for path, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ddtree_metrics")
        for alias in node.names
        if any(part.startswith("_") and not part.startswith("__") for part in f"{node.module}.{alias.name}".split("."))
    ]

    assert taken == []


def test_no_function_class_or_constant_of_a_module_is_unused() -> None:
    texts = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi"), *(PACKAGE.parent / "docs").glob("*.md"), PACKAGE.parent / "README.md"]
    words = Counter(word for path in texts for word in re.findall(r"\w+", re.sub(r'"\w+"', "", path.read_text(encoding="utf-8"))))
    defined = [
        (name, str(path.relative_to(PACKAGE)))
        for path, tree in MODULES.items()
        for node in tree.body
        for name in _names(node)
        if not name.startswith("__")
    ]

    assert [f"{place}: {name}" for name, place in defined if words[name] == 1] == []


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def test_the_sizes_of_the_design_page_are_true_to_a_tenth() -> None:
    """Exactly, every commit would have to write the page anew."""
    sys.path.insert(0, str(PACKAGE.parent / "docs"))
    import size

    page = (PACKAGE.parent / "docs" / "design.md").read_text(encoding="utf-8")
    told = {name: int(lines.replace(",", "")) for name, lines in re.findall(r"^\| `(\w+)/` \| [\d,]+ \| ([\d,]+) \|$", page, re.MULTILINE)}
    now = {name: lines for name, (_, lines) in size.sizes().items() if name != "."}

    assert told.keys() == now.keys()
    assert {name: (told[name], now[name]) for name in now if abs(told[name] - now[name]) > max(now[name] / 10, 50)} == {}


def test_blank_lines_comments_and_docstrings_are_no_code() -> None:
    sys.path.insert(0, str(PACKAGE.parent / "docs"))
    import size

    text = '"""A module."""\n\n# A comment.\nimport os\n\n\ndef f() -> str:\n    """Do it."""\n    return """a\nb"""  # two lines\n'

    assert size.code_lines(text) == 4  # import, def, and the return over two lines


def test_no_file_holds_both_sides_of_a_merge() -> None:
    root = PACKAGE.parent
    texts = [path for kind in ("*.py", "*.md", "*.toml", "*.c") for path in root.rglob(kind) if ".venv" not in path.parts]
    assert len(texts) > 300
    marks = tuple(mark * 7 for mark in "<>")  # written out they would be found here
    both = [str(path.relative_to(root)) for path in texts if any(line.startswith(marks) for line in path.read_text("utf-8").splitlines())]
    assert both == []
