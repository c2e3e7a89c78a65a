"""The compiled parts: built where there is a compiler, done without where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from ddtree_metrics import native
from ddtree_metrics.errors import DDTreeWarning

ROOT = Path(__file__).resolve().parent.parent
WORD = """
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
static PyObject *word(PyObject *self, PyObject *none) { (void)self; (void)none; return PyLong_FromLong(42); }
static PyMethodDef METHODS[] = {{"word", word, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "toy", "", -1, METHODS, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_toy(void) { return PyModule_Create(&MODULE); }
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with one C file."""
    (tmp_path / "ddtree_metrics/native").mkdir(parents=True)
    (tmp_path / "hatch_build.py").write_text((ROOT / "hatch_build.py").read_text())
    (tmp_path / "ddtree_metrics/native/toy.c").write_text(WORD)
    return tmp_path


def build(tree: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tree / "hatch_build.py"), *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


def test_a_c_file_becomes_a_module_by_being_there(tree: Path) -> None:
    done = build(tree)

    assert (done.returncode, done.stderr) == (0, "")
    code = f"import sys; sys.path.insert(0, {str(tree / 'ddtree_metrics/native')!r}); import toy; print(toy.word())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "42\n"


def test_a_file_that_does_not_compile_is_one_sentence_with_the_compilers_reason(tree: Path) -> None:
    (tree / "ddtree_metrics/native/toy.c").write_text(WORD.replace("return PyLong", "return nothing + PyLong"))

    done = build(tree)

    assert done.returncode == 1
    assert done.stderr.startswith("toy.c does not compile: ")
    assert "'nothing' undeclared" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_a_compiler_the_build_says_which_one_was_not_found(tree: Path) -> None:
    done = build(tree, CC="no-such-compiler")

    assert done.returncode == 1
    assert "no-such-compiler" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_warning_of_the_compiler_fails_the_check_and_no_build(tree: Path) -> None:
    (tree / "ddtree_metrics/native/toy.c").write_text(WORD.replace("return PyLong", "int unused; return PyLong"))

    assert build(tree).returncode == 0
    done = build(tree, "--check")
    assert done.returncode == 1
    assert "unused" in done.stderr


def test_nothing_compiled_is_used_where_the_environment_says_so() -> None:
    code = "from ddtree_metrics import native; print(native.load('json'), native.load('errors')); native.tell_once()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env={**os.environ, "DDTREE_PURE": "1"}, capture_output=True, text=True, check=True
    )

    assert done.stdout == "None None\n"


def test_one_warning_tells_that_parts_were_not_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "no_such_module.c").write_text("")
    monkeypatch.delenv(native.PURE, raising=False)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(native, "_missing", {})
    native.tell_once.cache_clear()
    try:
        with pytest.warns(DDTreeWarning, match=r"were not built .* 5 to 35 times as long: install ddtree-metrics again after"):
            native.tell_once()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            native.tell_once()
    finally:
        native.tell_once.cache_clear()
        native.load.cache_clear()
