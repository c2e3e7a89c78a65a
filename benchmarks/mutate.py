"""Change the code a little, and see whether a test notices: mutation testing, sampled and bounded in time.

The changes (mutants) are made by cosmic-ray's operators, the tests of each are chosen by what coverage saw them run, and all of it
happens in a copy of the tree. See ``docs/mutation.md``.

    ./run mutate [PACKAGE...] [--seconds N] [--mutants N] [--seed N] [--each N] [--processes N] [--write]
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import coverage
import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "bench-out"
DOC = ROOT / "docs" / "mutation.md"

PACKAGES = ("steps", "join", "metrics", "diagnosis")
"""What is mutated if nothing is named: folders of ``ddtree_metrics``."""

OPERATORS = (
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is")),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul", "Pow_Mul")),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("BitAnd_BitOr", "BitOr_BitAnd", "LShift_RShift", "RShift_LShift")),
    *(f"ReplaceUnaryOperator_{what}" for what in ("Delete_Not", "Delete_Invert", "Delete_USub")),
    *("AddNot", "NumberReplacer", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop", "ExceptionReplacer"),
)
"""cosmic-ray's operators that are used: of each kind the boundary and the opposite, not all eleven that a ``+`` may become."""

SIZES = ("PART", "CHUNK", "SAMPLE", "CELL_ROWS", "MAX_GROUPS", "MOST_TRIED", "MOST_ORDERS", "LOOK_AHEAD", "WAITING")
"""Constants that say how much is done at a time or how long is tried: another value costs time or memory, and no answer changes."""

SILENT_KEYWORDS = ("strict", "seed", "resamples", "slots", "frozen", "stacklevel", "copy", "dtype")
"""Keywords whose value is a guard, a seed or a wish about memory."""

UNTESTABLE = tuple(f"tests/test_{name}.py" for name in ("notebooks", "bench_engine", "typing", "start", "writing"))
"""Tests that start other processes, which coverage does not follow, or allow no file to grow, coverage's own among them."""

EACH_S = 90.0
"""So long, by the durations under coverage, may the tests of one mutant take together; the longest are left out. In truth it is half."""

PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist", "--hypothesis-seed=0")


@dataclass(frozen=True)
class Mutant:
    """One change."""

    package: str
    file: str
    line: int
    column: int
    operator: str
    occurrence: int


@dataclass
class Outcome:
    """What became of a mutant: ``killed``, ``survived``, ``timeout`` or ``no test``."""

    mutant: Mutant
    what: str
    change: str
    tests: int
    left_out: int
    seconds: float


# -- what may be changed ------------------------------------------------------------------------------------------------------


def files_of(name: str) -> list[str]:
    """List the modules of a package, of a folder, or the one file."""
    for path in (ROOT / "ddtree_metrics" / name, ROOT / name):
        if path.is_dir():
            return sorted(str(p.relative_to(ROOT)) for p in path.rglob("*.py"))
        if path.is_file():
            return [str(path.relative_to(ROOT))]
    raise SystemExit(f"mutate: there is no package, folder or file {name}")


def silent(tree: ast.Module, code: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """List the stretches that are not mutated: annotations, prose, guards, seeds, sizes."""
    nodes: list[ast.AST | None] = []
    for node in ast.walk(tree):
        match node:
            case ast.arg():
                nodes.append(node.annotation)
            case ast.FunctionDef():
                nodes += [node.returns, *node.decorator_list]
                args = [*node.args.posonlyargs, *node.args.args]
                defaults = [*zip(args[len(args) - len(node.args.defaults) :], node.args.defaults, strict=True)]
                defaults += [*zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
                nodes += [value for arg, value in defaults if arg.arg in SILENT_KEYWORDS]
            case ast.ClassDef():
                nodes += [*node.decorator_list, *node.bases]
                if any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
                    nodes.append(node)
            case ast.AnnAssign():
                nodes.append(node.annotation)
                if isinstance(node.target, ast.Name) and node.target.id in SIZES:
                    nodes.append(node)
            case ast.Assign(targets=[ast.Name(id=name)]):
                alias = isinstance(node.value, ast.Subscript) and isinstance(node.value.value, (ast.Name, ast.Attribute))
                if name in SIZES or name == "__all__" or (alias and name[0].isupper() and not name.isupper()):
                    nodes.append(node)
            case ast.JoinedStr() | ast.Raise() | ast.Assert():
                nodes.append(node)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="warnings"))):
                nodes.append(node)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.If(test=ast.Attribute(attr="TYPE_CHECKING")):
                nodes.append(node)
            case ast.keyword() if node.arg in SILENT_KEYWORDS:
                nodes.append(node.value)
            case ast.Call(func=ast.Name(id="cast" | "TypeVar" | "overload")):
                nodes.append(node)
    made = [((n.lineno, n.col_offset), (n.end_lineno or n.lineno, n.end_col_offset or 0)) for n in nodes if hasattr(n, "lineno")]
    for number, line in enumerate(code.splitlines(), 1):
        if "# pragma: no mutate" in line:
            made.append(((number, 0), (number, len(line))))
    return made


def is_small_move(code: str) -> bool:
    """Whether one more or less is no other number: 5 000 000 and 5 000 001."""
    value = ast.literal_eval(code)
    return isinstance(value, (int, float)) and abs(value) > 1000


def sites(package: str, file: str) -> dict[tuple[int, int], list[Mutant]]:
    """List all mutants of a file by their place."""
    code = (ROOT / file).read_text(encoding="utf-8")
    quiet = silent(ast.parse(code), code)
    found: dict[tuple[int, int], list[Mutant]] = defaultdict(list)
    nodes = list(ast_nodes(get_ast(code)))
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        occurrence = 0
        for node in nodes:
            for begin, end in operator.mutation_positions(node):
                at = occurrence
                occurrence += 1
                if any(first <= begin and end <= last for first, last in quiet):
                    continue
                if isinstance(node, parso.python.tree.Number) and is_small_move(node.value):
                    continue
                found[begin].append(Mutant(package, file, begin[0], begin[1], name, at))
    return found


def sample(package: str, most: int, seed: int) -> tuple[list[Mutant], int]:
    """Draw places evenly over the package, then one change for each; also say how many places there are."""
    places: dict[tuple[str, int, int], list[Mutant]] = {}
    for file in files_of(package):
        for (line, column), mutants in sites(package, file).items():
            places[(file, line, column)] = mutants
    draw = random.Random(f"{seed} {package}")
    chosen = draw.sample(sorted(places), min(most, len(places)))
    return [draw.choice(places[place]) for place in chosen], len(places)


def mutated(mutant: Mutant, code: str) -> str | None:
    """Return the code with the change, or None where it changes nothing or makes no Python."""
    made = mutate_code(code, get_operator(f"core/{mutant.operator}")(), mutant.occurrence)
    if made is None or made == code:
        return None
    try:
        compile(made, mutant.file, "exec")
    except SyntaxError:
        return None
    return made


def first_difference(old: str, new: str) -> str:
    """Show the first line that differs, before and after."""
    for a, b in zip(old.splitlines(), new.splitlines(), strict=False):
        if a != b:
            return f"- {a.strip()}\n    + {b.strip()}"
    return "- (end of file)"


# -- which tests --------------------------------------------------------------------------------------------------------------


@dataclass
class Tests:
    """What coverage saw: which tests ran which lines, and how long each took."""

    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    each_s: float = EACH_S

    def of(self, mutant: Mutant, code: str) -> tuple[list[str], int]:
        """Choose the tests of a mutant; also say how many of those that ran its line were left out.

        Those that ran its line come first: those of files that name the package, then the others, the quickest first. A fixture or a
        helper with a memory is run by the first test that needs it only, so the other tests of the same files follow.
        """
        by_line = self.lines.get(mutant.file, {})
        first, last = statement(ast.parse(code), mutant.line)
        own = {test for line in range(first, last + 1) for test in by_line.get(line, ())} - {""}
        if not own:  # a constant: whoever runs the module
            own = {test for tests in by_line.values() for test in tests} - {""}
        files = {test.partition("::")[0] for test in own}
        parts = Path(mutant.file).with_suffix("").parts[1:3]
        near = {file for file in files if re.search(rf"ddtree_metrics[. ](import )?({'|'.join(parts)})\b", self.text_of(file))}

        def order(test: str) -> tuple[bool, float, str]:
            return test.partition("::")[0] not in near, self.seconds.get(test, 0.0), test

        others = {test for test in self.seconds if test.partition("::")[0] in files} - own
        chosen: list[str] = []
        spent = 0.0
        for test in [*sorted(own, key=order), *sorted(others, key=order)]:
            if test in self.seconds and spent + self.seconds[test] <= self.each_s:
                chosen.append(test)
                spent += self.seconds[test]
        return chosen, len(own.intersection(self.seconds) - set(chosen))

    @staticmethod
    @functools.cache
    def text_of(file: str) -> str:
        """Return what stands in a test file."""
        return (ROOT / file).read_text(encoding="utf-8")


def statement(tree: ast.Module, line: int) -> tuple[int, int]:
    """Return the lines of the smallest statement around a line; of a compound one, its head."""
    best = (line, line)
    size = 1 << 30
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
            if line <= last and last - node.lineno < size:
                size, best = last - node.lineno, (node.lineno, last)
    return best


def digests(folder: Path, suffixes: tuple[str, ...] = (".py",)) -> dict[str, str]:
    """Return what is in each file, shortened to a number."""
    files = sorted(p for p in folder.rglob("*") if p.suffix in suffixes and "__pycache__" not in p.parts)
    return {str(p.relative_to(ROOT)): hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in files}


def know_tests(tree: Path) -> Tests:
    """Run the tests under coverage, or take what is known from the last run; test files that are new are run and added."""
    data, notes = OUT / "mutate.coverage", OUT / "mutate.json"
    code, tests = digests(ROOT / "ddtree_metrics"), digests(ROOT / "tests")
    known = json.loads(notes.read_text()) if notes.exists() and data.exists() else {}
    helpers = {name: mark for name, mark in tests.items() if not Path(name).name.startswith("test_")}
    if known.get("code") == code and known.get("helpers") == helpers:
        seconds: dict[str, float] = known["seconds"]
        changed = [name for name, mark in tests.items() if name not in helpers and known["tests"].get(name) != mark]
    else:
        seconds, changed = {}, []
        data.unlink(missing_ok=True)
    wanted = [name for name in changed if name not in UNTESTABLE]
    if not seconds or wanted:
        say(f"running {'all tests' if not seconds else ', '.join(wanted)} under coverage, once")
        seconds = {test: s for test, s in seconds.items() if test.partition("::")[0] not in wanted}
        seconds |= measure(tree, wanted or [name for name in tests if name not in helpers and name not in UNTESTABLE], data)
        notes.write_text(json.dumps({"code": code, "helpers": helpers, "tests": tests, "seconds": seconds}))
    return read_map(data, seconds)


def measure(tree: Path, files: Sequence[str], data: Path) -> dict[str, float]:
    """Run test files under coverage, and return how long each test that passed took."""
    report = tree / "mutate-junit.xml"
    command = [sys.executable, *PYTEST, "--cov=ddtree_metrics", "--cov-context=test", "--cov-report=", "--cov-append"]
    command += [f"--junitxml={report}", "-o", "junit_family=xunit1", *files]
    subprocess.run(command, cwd=tree, env={**environment(tree), "COVERAGE_FILE": str(data)}, stdout=subprocess.DEVNULL, check=False)
    seconds: dict[str, float] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        if not list(case.iter("failure")) and not list(case.iter("error")) and not list(case.iter("skipped")):
            classes = case.get("classname", "").split(".")[len(Path(case.get("file", "")).parts) :]
            seconds["::".join([case.get("file", ""), *classes, case.get("name", "")])] = float(case.get("time", 0))
    return seconds


def read_map(path: Path, seconds: dict[str, float]) -> Tests:
    """Read which tests ran which lines; what a fixture of a module ran, all tests of the file may rest on."""
    data = coverage.CoverageData(str(path))
    data.read()
    of_file: dict[str, set[str]] = defaultdict(set)
    for test in seconds:
        of_file[test.partition("::")[0]].add(test)
    made = Tests(seconds=seconds)
    for name in data.measured_files():
        file = name[name.rindex("ddtree_metrics/") :]
        into = made.lines.setdefault(file, defaultdict(set))
        for line, contexts in data.contexts_by_lineno(name).items():
            for context in contexts:
                test, _, phase = context.partition("|")
                into[line] |= of_file[test.partition("::")[0]] if phase == "setup" else {test}
    return made


# -- the run ------------------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Say what is going on."""
    print(f"==> {text}", file=sys.stderr, flush=True)


def environment(tree: Path, **more: str) -> dict[str, str]:
    """Return the environment in which the tests of a copy run."""
    return {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **more}


def copy_tree(to: Path) -> Path:
    """Copy what the tests need; the tree that is worked on is never changed."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in names.stdout.splitlines():
        source = ROOT / name
        if source.is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, to / name)
    return to


def run_tests(tree: Path, tests: Sequence[str], seconds: float) -> str:
    """Run tests until one fails: ``killed``, ``survived`` or ``timeout``."""
    listed = tree / "mutate-tests.txt"
    listed.write_text("\n".join(tests))
    process = subprocess.Popen(
        [sys.executable, *PYTEST, "-x", "--tb=no", "--no-cov", f"@{listed}"],
        cwd=tree,
        env=environment(tree, PYTHONDONTWRITEBYTECODE="1"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return "survived" if process.wait(timeout=seconds) == 0 else "killed"
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def try_one(tree: Path, mutant: Mutant, tests: Tests) -> Outcome | None:
    """Make one change, run its tests, and put the file back."""
    path = tree / mutant.file
    code = path.read_text(encoding="utf-8")
    made = mutated(mutant, code)
    if made is None:
        return None
    chosen, left_out = tests.of(mutant, code)
    began = time.monotonic()
    if not chosen:
        return Outcome(mutant, "no test", first_difference(code, made), 0, left_out, 0.0)
    cached = Path(importlib.util.cache_from_source(str(path)))
    try:
        path.write_text(made, encoding="utf-8")
        cached.unlink(missing_ok=True)
        what = run_tests(tree, chosen, 60 + 5 * sum(tests.seconds[t] for t in chosen))
    finally:
        path.write_text(code, encoding="utf-8")
    return Outcome(mutant, what, first_difference(code, made), len(chosen), left_out, time.monotonic() - began)


def run_all(trees: Sequence[Path], queue: list[Mutant], tests: Tests, seconds: float) -> list[Outcome]:
    """Try mutants, one tree a thread, until all are tried, the time is up, or Ctrl-C is pressed."""
    end = time.monotonic() + seconds
    done: list[Outcome] = []
    waiting = iter(queue)
    lock, stop = threading.Lock(), threading.Event()

    def work(tree: Path) -> None:
        while time.monotonic() < end and not stop.is_set():
            with lock:
                mutant = next(waiting, None)
            if mutant is None:
                return
            made = try_one(tree, mutant, tests)
            if made is not None:
                with lock:
                    done.append(made)
                    show(made, len(done), len(queue))

    threads = [threading.Thread(target=work, args=(tree,)) for tree in trees]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        say("stopping after the mutants that are being tried")
        stop.set()
        for thread in threads:
            thread.join()
    return done


def show(o: Outcome, number: int, of: int) -> None:
    """Say what became of one mutant."""
    place = f"{o.mutant.file}:{o.mutant.line}"
    print(f"{number:4d}/{of} {o.what:9s} {o.seconds:5.1f} s {o.tests:4d} tests  {place} {o.mutant.operator}", file=sys.stderr, flush=True)


def by_turns(lists: Sequence[list[Mutant]]) -> Iterator[Mutant]:
    """Take one of each list in turn, so that a run that is cut short has as many of each."""
    for i in range(max(map(len, lists), default=0)):
        yield from (mutants[i] for mutants in lists if i < len(mutants))


def rows_of(outcomes: Sequence[Outcome], places: dict[str, int]) -> list[tuple[str, ...]]:
    """Count by package: places, mutants, killed, survived, timed out, score."""
    rows = []
    for package in (*places, "all"):
        own = [o for o in outcomes if package in (o.mutant.package, "all")]
        killed, late = sum(o.what == "killed" for o in own), sum(o.what == "timeout" for o in own)
        lived = len(own) - killed - late
        score = f"{100 * (killed + late) / len(own):.0f} %" if own else ""
        count = sum(places.values()) if package == "all" else places[package]
        rows.append((package, str(count), str(len(own)), str(killed), str(lived), str(late), score))
    return rows


HEAD = ("package", "places", "mutants", "killed", "survived", "timed out", "score")


def as_markdown(rows: Sequence[tuple[str, ...]]) -> str:
    """Write the table as Markdown."""
    lines = ["| " + " | ".join(HEAD) + " |", "| --- |" + " ---: |" * (len(HEAD) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def write_doc(rows: Sequence[tuple[str, ...]], seed: int) -> None:
    """Put the table between its marks in the document."""
    text = DOC.read_text(encoding="utf-8")
    before, _, rest = text.partition("<!-- table -->\n")
    _, _, after = rest.partition("<!-- end -->")
    made = f"{as_markdown(rows)}\n\nSeed {seed}, Python {sys.version_info.major}.{sys.version_info.minor}.\n"
    DOC.write_text(f"{before}<!-- table -->\n{made}<!-- end -->{after}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="./run mutate", description="Change the code a little, and see whether a test notices.")
    parser.add_argument("packages", nargs="*", default=PACKAGES, help=f"packages, folders or files; {', '.join(PACKAGES)} if none")
    parser.add_argument("--seconds", type=float, default=1800, help="how long to go on (1800), without the run under coverage")
    parser.add_argument("--mutants", type=int, default=100, help="how many mutants a package (100)")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--each", type=float, default=EACH_S, help=f"seconds of tests a mutant, as under coverage ({EACH_S:.0f})")
    parser.add_argument("--processes", type=int, default=2, help="how many at once (2)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/mutation.md")
    given = parser.parse_args(arguments)
    OUT.mkdir(exist_ok=True)
    drawn = {package: sample(package, given.mutants, given.seed) for package in given.packages}
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        trees = [copy_tree(Path(folder) / str(i)) for i in range(max(1, given.processes))]
        tests = know_tests(trees[0])
        tests.each_s = given.each
        queue = list(by_turns([mutants for mutants, _ in drawn.values()]))
        say(f"{len(queue)} mutants, {len(tests.seconds)} tests")
        for tree in trees:  # the copies must pass as they are, and have their bytecode
            chosen, _ = tests.of(queue[0], (ROOT / queue[0].file).read_text(encoding="utf-8"))
            subprocess.run([sys.executable, "-m", "compileall", "-q", "ddtree_metrics"], cwd=tree, env=environment(tree), check=True)
            if run_tests(tree, chosen, 600) != "survived":
                raise SystemExit("mutate: tests fail on the code as it is; run ./run test first")
        outcomes = run_all(trees, queue, tests, given.seconds)
    outcomes.sort(key=lambda o: (o.mutant.file, o.mutant.line, o.mutant.column))
    rows = rows_of(outcomes, {package: count for package, (_, count) in drawn.items()})
    widths = [max(len(row[i]) for row in (HEAD, *rows)) for i in range(len(HEAD))]
    for row in (HEAD, *rows):
        print("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))))
    lived = [o for o in outcomes if o.what in ("survived", "no test")]
    (OUT / "mutate.txt").write_text(
        "".join(
            f"{o.mutant.file}:{o.mutant.line}:{o.mutant.column} {o.mutant.operator} ({o.what}, {o.tests} tests, {o.left_out} left out)\n"
            f"    {o.change}\n"
            for o in lived
        )
    )
    print(f"{len(lived)} survivors in bench-out/mutate.txt")
    if given.write:
        write_doc(rows, given.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
