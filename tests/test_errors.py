"""The tree of errors is drawn once, and is as drawn."""

from __future__ import annotations

import inspect
import re

import pytest

from ddtree_metrics import errors


def drawn() -> dict[str, tuple[str | None, int | None]]:
    """Return each class of the drawing: its parent, and the exit code written beside it."""
    made: dict[str, tuple[str | None, int | None]] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"( +)([A-Z]\w+)(?:\s{2,}(?:exit code )?(\d)?)?", line)
        if not found:
            continue
        depth, name, code = len(found[1]), found[2], found[3]
        while above and above[-1][0] >= depth:
            above.pop()
        made[name] = (above[-1][1] if above else None, int(code) if code else None)
        above.append((depth, name))
    return made


def classes() -> dict[str, type[BaseException]]:
    return {
        name: found
        for name, found in inspect.getmembers(errors, inspect.isclass)
        if found.__module__ == errors.__name__ and issubclass(found, BaseException)
    }


def test_the_drawing_and_the_classes_are_the_same_tree() -> None:
    tree = {name: found.__bases__[0].__name__ for name, found in classes().items()}
    assert set(drawn()) == set(tree)
    for name, (parent, _) in drawn().items():
        assert tree[name] == (parent or {"DDTreeError": "Exception", "DDTreeWarning": "UserWarning"}[name])


def test_the_exit_codes_beside_the_classes_are_theirs() -> None:
    for name, (parent, code) in drawn().items():
        if name == "DDTreeWarning":
            continue
        inherited = 1 if parent is None else getattr(errors, parent).exit_code
        assert getattr(errors, name).exit_code == (code if code is not None else inherited), name


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("DDTreeError", 1),
        ("SourceError", 1),
        ("UsageError", 2),
        ("UnknownDialect", 2),
        ("TimeError", 2),
        ("SourceNotFound", 3),
        ("SourceDenied", 4),
        ("SourceUnsupported", 5),
        ("SourceDamaged", 6),
        ("OutputError", 1),
        ("SchemaError", 1),
        ("JoinError", 1),
        ("MetricError", 1),
        ("BenchError", 1),
    ],
)
def test_o20_each_kind_of_failure_has_its_exit_code(name: str, code: int) -> None:
    assert getattr(errors, name).exit_code == code


def test_a_wrong_call_to_write_is_a_usage_error() -> None:
    assert errors.OutputError("x", usage=True).exit_code == 2
    assert errors.OutputError("x").exit_code == 1
    assert errors.OutputError.exit_code == 1


def test_a_broken_line_carries_where_it_stands_and_is_cut() -> None:
    error = errors.BrokenLine("run.log:118", "x" * 500, "bad_number")
    assert (error.where, len(error.line), error.reason) == ("run.log:118", 200, "bad_number")
    assert str(error).startswith("run.log:118: broken line (bad_number)")


def test_every_class_says_what_it_is_for() -> None:
    for name, found in classes().items():
        assert found.__doc__, name
        assert found.__doc__ != found.__bases__[0].__doc__, name


def test_warnings_are_user_warnings() -> None:
    assert issubclass(errors.DDTreeWarning, UserWarning)
