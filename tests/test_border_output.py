"""What leaves the program: files that are whole or not there, on full disks too, and nothing that a terminal obeys."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import ddtree_metrics as ddt
from ddtree_metrics.cli import main, summary_command
from ddtree_metrics.errors import DDTreeError, OutputError
from ddtree_metrics.records import TreeStep
from ddtree_metrics.tables import from_records
from ddtree_metrics.tables.atomic import write_whole
from ddtree_metrics.tables.datasets import DatasetWriter, read_tables
from ddtree_metrics.validation import printable
from tests import journals
from tests.journals import T0

HEAD = "[2026-05-05 12:00:0{} TP0] "
LINES = "".join(f"{HEAD.format(n % 10)}DDTREE metrics: bs=1 budget=8 commit_lens=[{n % 5 + 1}] note=n{n}\n" for n in range(400))


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [os.fspath(a) for a in args], prog_name="ddtree-logs", catch_exceptions=False)


def outside(*args: str | Path, stdout: int, limit: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command as a process of its own."""
    command = [sys.executable, "-m", "ddtree_metrics", *map(os.fspath, args)]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, preexec_fn=limit, check=False)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "run.log"
    path.parent.mkdir()
    path.write_text(LINES)
    return path


# -- no room --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["inspect", "summary --json", "report -o -", "export --format csv -o -", "export --format arrow -o -"])
def test_a_full_stdout_is_one_sentence_and_exit_1(log: Path, command: str) -> None:
    name, *options = command.split()
    with Path("/dev/full").open("wb") as full:
        done = outside(name, log, *options, stdout=full.fileno())
    assert done.returncode == 1
    assert "no space is left" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def no_large_file() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))


@pytest.mark.parametrize("limit", [no_large_file, few_files])
@pytest.mark.parametrize("options", ["-o OUT/x.csv", "-o OUT/x.arrow", "-o OUT/all/", "--partition unit,date -o OUT/lake"])
def test_where_a_file_cannot_grow_or_open_nothing_is_left_and_one_sentence_says_so(
    log: Path, tmp_path: Path, options: str, limit: Callable[[], None]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    done = outside("export", log, *options.replace("OUT", str(out)).split(), stdout=subprocess.DEVNULL, limit=limit)
    if done.returncode == 0:  # nine files are enough for one
        assert limit is few_files
        return
    assert done.returncode == 1, done.stderr
    assert list(out.iterdir()) == []
    said = [line for line in done.stderr.splitlines() if "cannot" in line]
    assert len(said) == 1
    assert "ulimit" in said[0]
    assert limit is few_files or str(tmp_path) in said[0]
    assert "staging" not in said[0]
    assert "Traceback" not in done.stderr


# -- left by others -------------------------------------------------------------------------------------------------------------


def test_what_a_killed_run_left_is_removed_by_the_next_and_nothing_else(tmp_path: Path) -> None:
    dead, alive, foreign = (tmp_path / name for name in (".x.csv.0123abcd.partial", ".y.csv.0123abcd.partial", ".z.partial"))
    for path in (dead, alive, foreign):
        path.write_text("half")
    with alive.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as a process does that is still writing
        write_whole(tmp_path / "new.txt", b"whole", force=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".y.csv.0123abcd.partial", ".z.partial", "new.txt"]


def test_what_a_killed_dataset_left_is_removed_by_the_next_and_nothing_else(tmp_path: Path) -> None:
    above = tmp_path / ".staging-lake"
    for name in ("0123abcd/host=a", "89abcdef", "mine"):
        (above / name).mkdir(parents=True)
    number = os.open(above / "89abcdef", os.O_RDONLY)
    fcntl.flock(number, fcntl.LOCK_EX)
    with DatasetWriter(tmp_path / "lake", TreeStep, source="x") as out:
        out.write(from_records([TreeStep(batch_size=1)], TreeStep))
    os.close(number)
    assert sorted(p.name for p in above.iterdir()) == ["89abcdef", "mine"]


def test_a_file_that_is_being_written_is_no_left_over(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "lake", TreeStep, source="x") as out:
        out.write(from_records([TreeStep(batch_size=1)], TreeStep))
        with DatasetWriter(tmp_path / "lake", TreeStep, source="y") as other:
            other.write(from_records([TreeStep(batch_size=2)], TreeStep))
    assert sorted(read_tables(tmp_path / "lake")["steps"]["batch_size"].to_pylist()) == [1, 2]
    assert [p.name for p in tmp_path.iterdir()] == ["lake"]


# -- names ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["export", "report", "plot", "summary"])
@pytest.mark.parametrize("link", ["itself", "link", "hard link"])
def test_what_is_read_is_not_written_over_by_any_of_its_names(log: Path, command: str, link: str) -> None:
    other = log if link == "itself" else log.parent / "other.png"
    if link != "itself":
        (other.symlink_to if link == "link" else other.hardlink_to)(log)
    more: dict[str, tuple[str, ...]] = {"export": ("--format", "csv"), "report": (), "plot": (), "summary": ("--csv",)}
    done = run(command, log, "-o", other, "--force", *more[command])
    assert done.exit_code == 2
    assert "is read, and would be replaced" in done.stderr
    assert log.read_text() == LINES


def test_a_folder_of_tables_is_not_written_over_by_an_export_of_itself(log: Path, tmp_path: Path) -> None:
    assert run("export", log, "-o", f"{tmp_path}/all/").exit_code == 0
    before = (tmp_path / "all" / "steps.parquet").read_bytes()
    assert run("export", tmp_path / "all", "-o", f"{tmp_path}/all/", "--force").exit_code == 2
    assert (tmp_path / "all" / "steps.parquet").read_bytes() == before


@pytest.mark.parametrize("command", ["export", "report", "plot", "summary", "bench"])
@pytest.mark.parametrize("name", ["", ".parquet", ".png", "sub/.CSV"])
def test_an_empty_name_and_a_bare_suffix_are_refused(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(command, log, "-o", name)
    assert done.exit_code == 2
    assert "Invalid value for '-o'" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_values_that_no_file_system_takes_as_a_name_can_be_partitioned_by_and_come_back(tmp_path: Path) -> None:
    units = ["u" * 300, "u" * 299 + "v", "é" * 150, "\u202egnp.service", "a/../b"]
    rows = [TreeStep(batch_size=n, unit=unit) for n, unit in enumerate(units, 1)]
    with DatasetWriter(tmp_path / "lake", TreeStep, ["unit"], source="x") as out:
        out.write(from_records(rows, TreeStep))
    back = read_tables(tmp_path / "lake")["steps"]
    assert dict(zip(back["batch_size"].to_pylist(), back["unit"].to_pylist(), strict=True)) == dict(enumerate(units, 1))
    folders = [p.name for p in (tmp_path / "lake" / "steps").iterdir()]
    assert len(folders) == len(units)
    assert all(len(os.fsencode(name)) <= 255 and name.isprintable() for name in folders)


# -- what is printed ------------------------------------------------------------------------------------------------------------

ODD = "a\x1b[31m\u202eb\x07\u2066\x9bc"
COMMANDS = ["inspect", "inspect --json", "summary", "summary --json", "summary --csv", "diagnose", "diagnose --full", "diagnose --json"]


def unseen(text: str) -> set[str]:
    """Return the characters of an output that a terminal might obey."""
    return {c for c in text if not c.isprintable() and c != "\n"}


def test_nothing_that_a_terminal_obeys_comes_from_units_hosts_algorithms_and_messages(tmp_path: Path) -> None:
    lines = [
        f"{HEAD.format(0)}server_args=ServerArgs(model_path='{ODD}', speculative_algorithm='{ODD}', tp_size=1)",
        *(f"{HEAD.format(n % 10)}DDTREE metrics: bs=1 budget=8 commit_lens=[{n % 5 + 1}] note{ODD}=1" for n in range(60)),
        f"{HEAD.format(1)}DDTREE metrics: bs=1 commit_lens=[x] {ODD}",
        f"{HEAD.format(2)}SIGTERM received. {ODD}",
    ]
    entries = b"".join(
        journals.entry(T0 + n * 40_000, line, unit=f"{ODD}{n % 2}.service", _HOSTNAME=f"{ODD}{n % 2}") for n, line in enumerate(lines)
    )
    path = tmp_path / f"{ODD}.export"
    path.write_bytes(entries)
    for command in COMMANDS:
        name, *options = command.split()
        done = run(name, path, *options)
        assert not unseen(done.output), command
    assert run("report", path, "-o", tmp_path / "page.html").exit_code == 0
    assert not unseen((tmp_path / "page.html").read_text())


@pytest.mark.parametrize(
    "command",
    [*COMMANDS, "export -o OUT/x.csv", "export -o OUT/all/", "export --partition unit,date -o OUT/lake", "report -o OUT/x.html",
     "plot -o OUT/x.png"],
)  # fmt: skip
def test_a_file_name_that_is_no_utf8_ends_no_command(log: Path, tmp_path: Path, command: str) -> None:
    path = log.parent / os.fsdecode(b"r\xff\xfeun.log")
    path.write_text(LINES)
    name, *options = command.replace("OUT", str(tmp_path)).split()
    done = run(name, path, *options)
    assert done.exit_code == 0, done.stderr
    assert not unseen(done.output)


def test_a_file_name_that_is_no_utf8_can_be_written_and_read(log: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.parquet")
    done = run("export", log, "-o", tmp_path / name)
    assert done.exit_code == 0, done.stderr
    assert not unseen(done.output)
    assert run("summary", tmp_path / name).exit_code == 0
    assert run("summary", tmp_path / os.fsdecode(b"\xfe.parquet")).exit_code == 3


def test_printable_leaves_blanks_and_letters_of_any_script() -> None:
    assert printable("Größe 漢字 a\u00a0b\tc\nd") == "Größe 漢字 a b c d"
    assert printable("\x1b[2J\u202e\ud800\x85") == "\ufffd[2J\ufffd\ufffd\ufffd"


# -- what nobody expected -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("api_key=abcdefgh12345678"), "this should not have happened"),
        (RecursionError("deep"), "DDTREE_LOGS_TRACEBACK=1"),
        (MemoryError(), "not enough memory"),
        (OSError(28, "No space left on device", "/x/y"), "cannot go on with /x/y: no space is left"),
        (ValueError("two\nlines \x1b[31m"), "two lines"),
    ],
)
def test_an_error_that_nobody_expected_is_one_sentence(log: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    def fail(*args: object, **keywords: object) -> None:
        raise error

    monkeypatch.setattr(summary_command.Input, "log", fail)
    done = run("summary", log)
    assert done.exit_code == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "abcdefgh12345678" not in done.stderr
    assert not unseen(done.stderr)
    monkeypatch.setenv("DDTREE_LOGS_TRACEBACK", "1")
    with pytest.raises(type(error)):
        run("summary", log)


def test_without_force_a_folder_that_cannot_be_written_to_is_told() -> None:
    with pytest.raises(OutputError, match="there is no folder"):
        write_whole(Path("/no/such/folder/x"), b"", force=False)


@pytest.mark.parametrize("name", ["x.parquet", "x.ARROW"])
@pytest.mark.parametrize("content", [b"", b"PA", b"\x15\x04\x15\x10PAR1"])
def test_a_file_with_the_name_of_a_table_that_is_none_is_damaged_and_no_empty_log(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    done = run("export", tmp_path / name, "-o", tmp_path / "out.csv")
    assert (done.exit_code, [p.name for p in tmp_path.iterdir()]) == (6, [name])
    assert "has the name of a table, and does not begin like one" in done.stderr


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_table_with_a_byte_written_over_is_right_or_said_to_be_damaged(log: Path, tmp_path: Path, form: str) -> None:
    log.write_text("".join(f"DDTREE metrics: bs=1 budget={16 + i} actual_nodes=[17] commit_lens=[{i % 9 + 1}]\n" for i in range(200)))
    assert run("export", log, "-o", tmp_path / f"x.{form}").exit_code == 0
    whole = (tmp_path / f"x.{form}").read_bytes()
    right, told = list(range(16, 216)), 0
    for at in range(8, len(whole), max(len(whole) // 150, 1)):
        (tmp_path / f"y.{form}").write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            read = ddt.read(tmp_path / f"y.{form}")
            told += bool(read.coverage.damaged)
            # Arrow has no sums over its columns, so that there a number may have become another one
            assert form == "arrow" or sorted(read.steps["budget"]) == right
        except DDTreeError:
            told += 1
    assert told > (20 if form == "parquet" else 5)


def test_rows_are_read_where_only_the_account_beside_them_is_damaged(log: Path, tmp_path: Path) -> None:
    assert run("export", log, "-o", tmp_path / "x.parquet").exit_code == 0
    table = pq.read_table(tmp_path / "x.parquet")
    notes = {key: b'{"lines": ' if key.endswith(b"coverage") else value for key, value in table.schema.metadata.items()}
    pq.write_table(table.replace_schema_metadata(notes), tmp_path / "y.parquet")
    done = run("export", tmp_path / "y.parquet", "-o", tmp_path / "z.csv")
    assert done.exit_code == 6
    assert "what an export said of its reading (y.parquet); its rows were read" in done.stderr
    assert (tmp_path / "z.csv").read_text().count("\n") == table.num_rows + 1
