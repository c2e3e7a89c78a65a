"""Files from outside that have a form: tables, request files, sweeps, dialects; each is used, or refused in one sentence."""

from __future__ import annotations

import functools
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.faults.attempts import Outcome, attempt, basics, exported, judge, left_behind
from tests.faults.disks import one_sentence
from tests.faults.lines import COLUMNS, START, Log, log


def damage(raw: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Damage bytes in one of several ways, and say how."""
    how = rng.choice(("cut", "zeros", "written over", "written over", "twice", "inserted", "moved"))
    changed, at, size = bytearray(raw), rng.randrange(len(raw)), rng.choice((1, 4, 64, 1000))
    if how == "cut":
        del changed[at:]
    elif how == "zeros":
        changed[at : at + size] = bytes(len(changed[at : at + size]))
    elif how == "written over":
        for _ in range(rng.choice((1, 1, 8))):
            changed[rng.randrange(len(raw))] ^= rng.randrange(1, 256)
    elif how == "twice":
        changed += raw
    elif how == "inserted":
        changed[at:at] = rng.randbytes(size)
    else:
        changed[:] = raw[at:] + raw[:at]
    return bytes(changed), f"{how} at {at}"


TABLE_FORMS = {"parquet": ["-o", "x.parquet"], "arrow": ["-o", "x.arrow"], "dataset": ["--partition", "date", "-o", "x"]}


@functools.cache
def written(form: str) -> tuple[Path, Log]:
    """Export a log once, in one form; the folder lives as long as the process."""
    folder = tempfile.TemporaryDirectory(prefix="faults-table-")
    _FOLDERS.append(folder)
    place, made = Path(folder.name) / "a", log(random.Random(form), 200)
    place.mkdir()
    (place / "a.log").write_bytes(made.text)
    ran = attempt(["export", "a.log", *TABLE_FORMS[form]], place)
    assert ran.code == 0, ran.err
    return place / TABLE_FORMS[form][-1], made


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def parquet(number: int, place: Path) -> Outcome:
    """Damage a Parquet file or one of a dataset."""
    return tables(("parquet", "dataset")[number % 2], number, place)


def arrow(number: int, place: Path) -> Outcome:
    """Damage an Arrow file."""
    return tables("arrow", number, place)


def tables(form: str, number: int, place: Path) -> Outcome:
    """Damage an export, and read it: the rows are right, or it is said that they are not whole."""
    rng, outcome = random.Random(f"{form}/{number}"), Outcome()
    whole, made = written(form)
    target = place / whole.name
    if whole.is_dir():
        shutil.copytree(whole, target)
        file = rng.choice([p for p in sorted(target.rglob("*")) if p.is_file()])
    else:
        file = Path(shutil.copy(whole, target))
    raw, how = damage(file.read_bytes(), rng)
    known = {str(p.relative_to(place)) for p in place.rglob("*")} | {"out.jsonl"}
    file.write_bytes(raw)
    recipe = f"{form} {number}, {how}"
    ran = attempt(["export", target.name, "-o", "out.jsonl"], place)
    if basics(ran, outcome, recipe):
        one_sentence(ran, outcome, recipe)
        if ran.code == 0:
            judge(made.rows, exported(place / "out.jsonl", COLUMNS), outcome, recipe, said="warning" in ran.err)
    left_behind(place, known, outcome, recipe)
    return outcome


ANYTHING: tuple[Any, ...] = (
    None, True, -1, 1.5, 10**30, 10**400, 1e308, "text", "", "\x1b[2J\u202e", [], [[]], {}, {"x": {"y": [1]}}, [None], 0, "9" * 5000,
    "x" * 140_000,    "2026-01-01T00:00:00Z", "NaN", float("nan"), float("inf"), "\ud800", 2**63, -(2**63), "=cmd()",
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List all places of plain data."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, inner in items for found in places(inner, (*path, key)))]


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return plain data with another value at a place."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new)
    return copy


def deep(rng: random.Random) -> str:
    """Write JSON that is nested, long or no JSON."""
    n = rng.choice((100, 2000, 100_000))
    return rng.choice(
        (
            "[" * n,
            '{"a":' * n,
            "[" * n + "]" * n,
            '{"a":[' * n + "1" + "]}" * n,
            "9" * n,
            f'{{"id": {"9" * n}}}',
            "\0" * 100,
            "\ufeff[]",
            "",
        )
    )


def spoiled(whole: Any, rng: random.Random) -> tuple[bytes, str]:
    """Spoil a JSON document."""
    if rng.random() < 0.15:
        text = deep(rng)
        return text.encode(), f"{text[:12]!r} of {len(text)}"
    if rng.random() < 0.2:
        return damage(json.dumps(whole).encode(), rng)
    where = rng.choice(places(whole))
    new = rng.choice(ANYTHING)
    return json.dumps(put(whole, where, new)).encode(), f"{str(new)[:20]!r} at {where}"


def requests(rng: random.Random, n: int = 6) -> list[dict[str, Any]]:
    """Make rows of a client's request file."""
    made = []
    for i in range(n):
        at = START / 1e6 + 5 * i
        made.append({
            "request_id": f"r{i}", "sent": at, "first_token": at + 0.2, "finished": at + 4, "prompt_tokens": 100 * i + 5,
            "completion_tokens": 20,
        })  # fmt: skip
    return made


def request_files(number: int, place: Path) -> Outcome:
    """Spoil a request file, as JSON, JSON lines or CSV."""
    rng, outcome = random.Random(f"requests/{number}"), Outcome()
    rows, form = requests(rng), rng.choice(("jsonl", "json", "csv"))
    if form == "json":
        raw, how = spoiled(rows, rng)
    elif form == "jsonl":
        lines = [json.dumps(row).encode() for row in rows]
        at = rng.randrange(len(rows))
        lines[at], how = spoiled(rows[at], rng)
        raw = b"\n".join(lines) + b"\n"
    else:
        cells = [list(rows[0]), *([str(v) for v in row.values()] for row in rows)]
        row, column = rng.randrange(len(cells)), rng.randrange(len(cells[0]))
        cells[row][column] = rng.choice(
            ("", '"', "x" * 140_000, "9" * 5000, "1e999", "nan", "-1", "\x1b[2J", "2026-13-01", "=1+1", "1,5", "\0", "a\nb")
        )
        how = f"{cells[row][column][:12]!r} at {row}, {column}"
        raw = "\n".join(",".join(line) for line in cells).encode()
        if rng.random() < 0.2:
            raw, how = damage(raw, rng)
    (place / f"r.{form}").write_bytes(raw)
    (place / "a.log").write_bytes(log(rng, 20).text)
    command = rng.choice((["summary"], ["export", "-t", "request_steps", "-o", "out.jsonl"], ["requests"], ["diagnose"]))
    recipe = f"{' '.join(command)} with {form} {number}: {how}"
    ran = attempt([command[0], "a.log", *command[1:], "--requests", f"r.{form}"], place)
    if basics(ran, outcome, recipe):
        one_sentence(ran, outcome, recipe)
    left_behind(place, {"a.log", f"r.{form}", "out.jsonl"}, outcome, recipe)
    return outcome


@functools.cache
def sweep() -> Any:
    """Make a saved sweep, as plain data."""
    from tests.test_bench_saved import small

    return small()


def sweeps(number: int, place: Path) -> Outcome:
    """Spoil a saved sweep or the baseline that it is compared with."""
    rng, outcome = random.Random(f"sweep/{number}"), Outcome()
    raw, how = spoiled(sweep(), rng)
    bad, good = rng.choice((("s.json", "b.json"), ("b.json", "s.json")))
    (place / bad).write_bytes(raw)
    (place / good).write_text(json.dumps(sweep()))
    more = rng.choice(([], ["--json"], ["--plain"], ["--compare", "b.json"], ["--compare", "b.json", "--json"], ["-o", "again.json"]))
    recipe = f"bench s.json {' '.join(more)}, {bad} has {how}"
    ran = attempt(["bench", "s.json", *more], place)
    if basics(ran, outcome, recipe):
        if ran.code == 130:
            outcome.note("crashed", f"{recipe}: exit 130, and nobody interrupted it")
        if ran.code != 1 or "slower" not in ran.err + ran.out.decode():
            one_sentence(ran, outcome, recipe)
    left_behind(place, {"s.json", "b.json", "again.json"}, outcome, recipe)
    return outcome


TOML = (Path(__file__).resolve().parents[2] / "docs" / "dialect-example.toml").read_text()
TOML_VALUES = (
    "[" * 2000 + "]" * 2000, "9" * 5000, "true", "1.5", '"x"', "[]", "{}", "-1", "nan", "1979-05-27", '"\\u001b[2J"', '["a", ["b"]]',
    "{ a = { b = 1 } }",    '"' + "(" * 5000 + '"', "'(a+)+$'", "'(?P<batch_size>x'", "''", "0x7fffffffffffffff", "[1, 'a']",
    "'steps'", "'requests'", "'\\d{1000}'",
)  # fmt: skip


def dialect_files(number: int, place: Path) -> Outcome:
    """Spoil a dialect file."""
    rng, outcome = random.Random(f"dialect/{number}"), Outcome()
    lines = TOML.splitlines()
    if rng.random() < 0.25:
        raw, how = damage(TOML.encode(), rng)
    else:
        at = rng.choice([i for i, line in enumerate(lines) if " = " in line])
        value = rng.choice(TOML_VALUES)
        lines[at] = f"{lines[at].partition(' = ')[0]} = {value}"
        raw, how = "\n".join(lines).encode(), f"{lines[at][:60]!r}"
    (place / "d.toml").write_bytes(raw)
    (place / "a.log").write_text("[2026-02-01 10:00:00 TP0] TREE step: n=2; tree=16; nodes=[16, 12]; ok=[4, 0]; out=[5, 1]; ms=41.25\n" * 5)
    ran = attempt(["export", "a.log", "--dialect-file", "d.toml", "-o", "out.jsonl"], place)
    if basics(ran, outcome, f"dialect file {number}: {how}"):
        one_sentence(ran, outcome, f"dialect file {number}: {how}")
    left_behind(place, {"a.log", "d.toml", "out.jsonl"}, outcome, f"dialect file {number}: {how}")
    return outcome
