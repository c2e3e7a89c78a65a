"""The command line: exit codes, outputs, messages; each command is run as a user runs it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from ddtree_metrics.cli import COMMANDS, main
from tests import journals
from tests.captures import journal_export
from tests.journals import T0

UNIT = "sglang-kimi.service"
A = str(journal_export("A"))
C = str(journal_export("C"))


def run(*args: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args], input=stdin, prog_name="ddtree-logs", catch_exceptions=False)


def step(i: int, commit: int = 4) -> str:
    return f"[2026-05-05 12:00:01 TP0] DDTREE metrics: bs=1 budget=8 actual_nodes=[9] accepted_drafts=[{commit - 1}] commit_lens=[{commit}]"


def log_of_steps(n: int = 3) -> bytes:
    return b"".join(journals.entry(T0 + i * 40_000, step(i)) for i in range(n))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of journal files: one with three steps and lines of another unit."""
    place = tmp_path / "journal"
    place.mkdir()
    other = b"".join(journals.entry(T0 + i * 1_000_000, "level=info", unit="kubelet.service") for i in range(3))
    journals.build(place / "system.journal", log_of_steps() + other)
    return place


# -- O20: say which nothing ----------------------------------------------------------------------------------------------------


def test_o20_a_unit_that_never_logged_is_exit_3_and_names_similar_ones(folder: Path, tmp_path: Path) -> None:
    done = run("export", "-D", folder, "-u", "sglnag-kimi.service", "-o", tmp_path / "x.parquet")

    assert done.exit_code == 3
    assert "sglnag-kimi.service" in done.stderr
    assert "similar: sglang-kimi.service" in done.stderr
    assert not (tmp_path / "x.parquet").exists()


def test_o20_a_folder_that_is_not_there_is_exit_3(tmp_path: Path) -> None:
    done = run("export", "-D", tmp_path / "no", "-o", tmp_path / "x.parquet")

    assert done.exit_code == 3
    assert str(tmp_path / "no") in done.stderr


def test_o20_a_file_made_by_a_newer_systemd_is_exit_5_and_named(folder: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer.journal"
    data = bytearray((folder / "system.journal").read_bytes())
    data[12:16] = (1 << 20).to_bytes(4, "little")  # an incompatible flag that nobody knows yet
    newer.write_bytes(data)
    done = run("export", "--file", newer, "-o", tmp_path / "x.parquet")

    assert done.exit_code == 5
    assert "newer.journal" in done.stderr


def test_o20_a_damaged_file_among_good_ones_is_exit_6_after_the_good_ones_were_exported(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "system.journal").read_bytes()
    (folder / "old.journal").write_bytes(whole[: len(whole) // 2])
    done = run("export", "-D", folder, "-u", UNIT, "-o", tmp_path / "x.parquet")

    assert done.exit_code == 6
    assert "old.journal" in done.stderr
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 3


def test_o20_a_unit_without_a_metric_line_is_exit_0_with_a_valid_empty_file_and_a_hint(folder: Path, tmp_path: Path) -> None:
    done = run("export", "-D", folder, "-u", "kubelet.service", "-o", tmp_path / "x.parquet")

    assert done.exit_code == 0
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 0
    assert "--speculative-ddtree-debug-metrics" in done.stderr
    assert "3 lines" in done.stderr


def test_o20_stock_lines_without_metric_lines_are_said_to_be_there(tmp_path: Path) -> None:
    line = "[2026-02-01 10:00:00 TP0] Decode batch, #running-req: 1, #token: 100, token usage: 0.00, accept len: 2.20, "
    line += "cuda graph: True, gen throughput (token/s): 0.40, #queue-req: 0\n"
    (tmp_path / "run.log").write_text(line)
    done = run("export", tmp_path / "run.log", "-o", tmp_path / "x.parquet")

    assert done.exit_code == 0
    assert "but 1 Decode batch line (table decode)" in done.stderr


def test_o20_an_empty_folder_is_exit_3(tmp_path: Path) -> None:
    done = run("export", "-D", tmp_path, "-o", tmp_path / "x.parquet")

    assert done.exit_code == 3
    assert "no journal files" in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["export", "--since", "+1h"],
        ["export", "--since", "1x"],
        ["export", "--since", ""],
        ["export", "--since", "30m", "--until", "1h"],
        ["export", "--no-such-option"],
        ["export", A, "-D", "/var/log/journal"],
        ["export", A, "--dialect", "sglnag", "-o", "x.parquet"],
        ["export", A, "-o", "x.docx"],
        ["export", A, "-t", "steps", "-t", "decode", "-o", "-", "--format", "csv"],
        ["export", A, "--partition", "host"],
        ["schema", "nosuch"],
        ["nosuch"],
    ],
)
def test_a_wrong_call_is_exit_2_and_writes_nothing(args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*args)

    assert done.exit_code == 2
    assert done.stderr.strip()
    assert list(tmp_path.iterdir()) == []


# -- export --------------------------------------------------------------------------------------------------------------------


def test_without_output_the_file_is_named_by_the_end_of_the_window_in_utc(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("export", "-D", folder, "-u", "sglang-kimi", "--since", "@1777982400", "--until", "@1777986000")

    assert done.exit_code == 0, done.stderr
    # 1777986000 is 2026-05-05 13:00:00 UTC
    assert [p.name for p in tmp_path.glob("*.parquet")] == ["ddtree-steps-20260505T130000Z.parquet"]
    assert pq.read_table(tmp_path / "ddtree-steps-20260505T130000Z.parquet").num_rows == 3


def test_a_folder_takes_every_table(tmp_path: Path) -> None:
    done = run("export", A, "-o", f"{tmp_path}/out/")

    assert done.exit_code == 0, done.stderr
    names = {p.stem: pq.read_table(p).num_rows for p in (tmp_path / "out").iterdir()}
    assert names["steps"] == names["decode"] == 545
    assert names["servers"] == 2
    assert names["request_steps"] == 727  # the log's own lines tell of requests; 727 by the capture's README
    assert set(names) == {"steps", "decode", "prefill", "servers", "events", "requests", "request_steps"}


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "arrow"])
def test_every_format_has_every_step(suffix: str, tmp_path: Path) -> None:
    import pandas as pd
    import pyarrow as pa

    path = tmp_path / f"x.{suffix}"
    assert run("export", A, "-o", path).exit_code == 0
    read: Any = {
        "parquet": lambda: pq.read_table(path).num_rows,
        "csv": lambda: len(pd.read_csv(path)),
        "jsonl": lambda: len([json.loads(line) for line in path.read_text().splitlines()]),
        "arrow": lambda: pa.ipc.open_file(path).read_all().num_rows,
    }

    assert read[suffix]() == 545


def test_stdout_carries_data_and_nothing_else(tmp_path: Path) -> None:
    done = run("export", A, "-o", "-", "--format", "jsonl")
    rows = [json.loads(line) for line in done.stdout.splitlines()]

    assert done.exit_code == 0
    assert len(rows) == 545
    assert rows[0]["commit_lens"] == [3]


def test_stdin_is_read_where_the_file_is_a_dash() -> None:
    done = run("export", "-", "-o", "-", "--format", "jsonl", stdin=(step(0) + "\n").encode())

    assert json.loads(done.stdout)["commit_lens"] == [4]


def test_a_file_that_is_there_stays_without_force(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"precious")
    refused = run("export", A, "-o", path)

    assert refused.exit_code == 2
    assert "--force" in refused.stderr or "force" in refused.stderr
    assert path.read_bytes() == b"precious"
    assert run("export", A, "-o", path, "--force").exit_code == 0
    assert pq.read_table(path).num_rows == 545


def test_binary_is_not_written_to_a_terminal() -> None:
    leader, follower = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "ddtree_metrics", "export", A, "-o", "-", "--format", "parquet"],
        stdout=follower,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(follower)
    os.close(leader)

    assert done.returncode == 2
    assert b"terminal" in done.stderr


def test_a_reader_that_leaves_early_is_no_traceback() -> None:
    command = f"{sys.executable} -m ddtree_metrics export {A} -o - --format csv | head -n 2"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    assert len(done.stdout.splitlines()) == 2
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_partitioned_dataset_is_read_by_duckdb_without_options(tmp_path: Path) -> None:
    import duckdb

    root = tmp_path / "lake"
    assert run("export", A, "--partition", "host,date", "-o", root).exit_code == 0
    assert run("export", C, "--partition", "host,date", "-o", root).exit_code == 0
    rows = duckdb.sql(f"select count(*) from read_parquet('{root}/steps/**/*.parquet')").fetchall()

    assert rows == [(545 + 66,)]


def test_a_dataset_takes_the_same_source_once(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    for _ in range(2):
        assert run("export", A, "--partition", "host,date", "-t", "steps", "-o", root).exit_code == 0

    assert pq.read_table(root / "steps").num_rows == 545


def test_a_dataset_holds_the_steps_of_requests_where_lines_tell_of_requests(tmp_path: Path) -> None:
    """Capture A has request lines; steps of batches are several request-steps, so there are more of them than the 545 steps."""
    root, plain = tmp_path / "lake", tmp_path / "plain"
    assert run("export", A, "--partition", "host,date", "-o", root).exit_code == 0
    assert run("export", A, "-o", f"{plain}/").exit_code == 0
    mine, theirs = pq.read_table(root / "request_steps"), pq.read_table(plain / "request_steps.parquet")

    assert mine.num_rows == theirs.num_rows > 545
    assert mine["context_len"].to_pylist() == theirs["context_len"].to_pylist()
    assert not list(tmp_path.glob(".*"))

    bare = tmp_path / "run.log"
    bare.write_text("\n".join(step(i) for i in range(5)) + "\n")
    assert run("export", bare, "--partition", "date", "-o", tmp_path / "bare").exit_code == 0
    assert [p.name for p in (tmp_path / "bare").iterdir()] == ["steps"]


def test_what_export_wrote_is_a_file_that_can_be_read(tmp_path: Path) -> None:
    assert run("export", A, "-o", f"{tmp_path}/out/").exit_code == 0
    again = run("export", tmp_path / "out", "-o", tmp_path / "again.parquet")

    assert again.exit_code == 0, again.stderr
    assert pq.read_table(tmp_path / "again.parquet").equals(pq.read_table(tmp_path / "out" / "steps.parquet"))


def test_requests_that_were_stored_are_exported_again_as_they_were(tmp_path: Path) -> None:
    requests = journal_export("A").parent / "requests.jsonl"
    assert run("export", A, "--requests", requests, "-o", f"{tmp_path}/one/").exit_code == 0
    assert run("export", tmp_path / "one", "-o", f"{tmp_path}/two/").exit_code == 0
    for name in ("requests", "request_steps", "steps"):
        assert pq.read_table(tmp_path / "two" / f"{name}.parquet").equals(pq.read_table(tmp_path / "one" / f"{name}.parquet")), name


def test_requests_add_a_table_with_context_lengths(tmp_path: Path) -> None:
    requests = journal_export("A").parent / "requests.jsonl"
    done = run("export", A, "--requests", requests, "-o", tmp_path / "x.parquet")
    rows = pq.read_table(tmp_path / "x.request_steps.parquet")

    assert done.exit_code == 0, done.stderr
    assert rows.column("context_len").null_count < rows.num_rows * 0.05


def test_o18_a_window_in_which_the_clock_jumped_warns_and_times_no_step_across_what_is_left_out(tmp_path: Path) -> None:
    # D2 was logged while the clock stood an hour back: inside by order, outside by time
    at = [(T0, 9_000_000), (T0 - 3_600_000_000 + 50_000, 9_050_000), (T0 + 100_000, 9_100_000), (T0 + 150_000, 9_150_000)]
    export = b"".join(journals.entry(t, step(i), mono=m) for i, (t, m) in enumerate(at))
    journals.build(tmp_path / "x.journal", export)
    window = ["--since", f"@{T0 // 1_000_000}", "--until", f"@{T0 // 1_000_000 + 60}"]
    (tmp_path / "x.export").write_bytes(export)
    for source in (["--file", str(tmp_path / "x.journal")], [str(tmp_path / "x.export")]):
        done = run("export", *source, *window, "-o", "-", "--format", "jsonl")
        rows = [json.loads(line) for line in done.stdout.splitlines()]

        assert [r["step_why"] for r in rows] == ["first", "outside_window", None]
        assert [r["step_us"] for r in rows] == [None, None, 50_000]
        assert "the wall clock jumped inside the window" in done.stderr


# -- inspect, schema, the rest ---------------------------------------------------------------------------------------------------


def test_inspect_says_what_was_lost_and_what_the_numbers_count() -> None:
    done = run("inspect", C)

    assert done.exit_code == 0
    assert "261 lines suppressed" in done.stdout
    assert "commit = accepted + 1 bonus" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_inspect_as_json_has_the_whole_account() -> None:
    found = json.loads(run("inspect", C, "--json").stdout)

    assert found["schema_version"] == 1
    assert found["coverage"]["parsed"]["steps"] == 66
    assert found["coverage"]["suppressed_lines"] == 261
    assert found["events"]["retraction"] == 1


def test_inspect_shows_broken_lines_with_where_and_text(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(step(0) + "\n[2026-05-05 12:00:01 TP0] DDTREE metrics: bs=1 budget=8 actual_nodes=[9] accepted_drafts=[3] avg_com\n")
    done = run("inspect", path)

    assert "run.log:2" in done.stdout
    assert "1 broken" in done.stderr


def test_a_broken_line_is_an_error_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(step(0) + "\n[2026-05-05 12:00:01 TP0] DDTREE metrics: bs=1 budget=8 accepted_drafts=[3] avg_com\n")
    done = run("export", path, "--on-error", "raise", "-o", tmp_path / "x.parquet")

    assert done.exit_code == 1
    assert "run.log:2" in done.stderr
    assert not (tmp_path / "x.parquet").exists()


def test_schema_prints_every_column_with_its_meaning() -> None:
    made = json.loads(run("schema", "steps", "--json").stdout)
    names = [c["name"] for c in made["tables"]["steps"]]

    assert {"time", "commit_lens", "step_us", "step_why", "tokens_cum"} <= set(names)
    assert all(c["meaning"] for c in made["tables"]["steps"])


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help_with_an_example(command: str) -> None:
    done = run(command, "--help")

    assert done.exit_code == 0
    assert "Example" in done.stdout
    assert f"ddtree-logs {command}" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_program(shell: str) -> None:
    done = run("completion", shell)

    assert done.exit_code == 0
    assert "_DDTREE_LOGS_COMPLETE" in done.stdout


def test_completion_offers_commands_and_tables() -> None:
    env = {**os.environ, "_DDTREE_LOGS_COMPLETE": "bash_complete", "COMP_WORDS": "ddtree-logs export -t re", "COMP_CWORD": "3"}
    script = "from ddtree_metrics.cli import main; main(prog_name='ddtree-logs')"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)

    assert "request_steps" in done.stdout


def test_progress_is_said_on_a_terminal_only(tmp_path: Path) -> None:
    done = run("export", A, "-o", tmp_path / "x.parquet")

    assert "\r" not in done.stderr


def test_lines_that_only_speak_of_a_marker_and_doubtful_times_are_counted(tmp_path: Path) -> None:
    # 02:30 happens twice in that night, and nothing beside it decides
    quote = '[2026-10-26 10:00:00 TP0] the user asked: "what is DDTREE metrics: bs=1 budget=8 commit_lens=[4]?"\n'
    (tmp_path / "run.log").write_text(step(0).replace("2026-05-05 12:00:01", "2026-10-25 02:30:00") + "\n" + quote)
    found = json.loads(run("inspect", tmp_path / "run.log", "--tz", "Europe/Berlin", "--json").stdout)["coverage"]

    assert found["parsed"] == {"steps": 1}
    assert found["doubtful_times"] == {"ambiguous": 1}
    assert found["quoted_lines"] == 1
    assert found["quoted_examples"][0]["where"] == "run.log:2"


def test_a_boot_can_be_chosen_in_a_saved_journal(tmp_path: Path) -> None:
    boots = ("a" * 32, "b" * 32)
    export = b"".join(journals.entry(T0 + i * 3_600_000_000, step(i), boot=boot, mono=1_000_000) for i, boot in enumerate(boots))
    path = journals.build(tmp_path / "x.journal", export)
    for boot, expected in (("0", boots[1]), ("-1", boots[0]), (boots[0], boots[0]), ("bbbbbbbb", boots[1])):
        done = run("export", path, "-b", boot, "-o", "-", "--format", "jsonl")

        assert [json.loads(line)["boot_id"] for line in done.stdout.splitlines()] == [expected], boot


def test_an_interrupted_export_into_a_folder_leaves_no_folder(tmp_path: Path) -> None:
    import functools
    import signal
    import time

    lines = "".join(step(i) + "\n" for i in range(1000)) * 400
    (tmp_path / "big.log").write_text(lines)
    command = [sys.executable, "-m", "ddtree_metrics", "export", str(tmp_path / "big.log"), "-o", f"{tmp_path}/out/dir/"]
    for end in (signal.SIGINT, signal.SIGTERM):
        # a shell that runs the tests in its background ignores SIGINT, and a child inherits that
        default = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=default) as running:
            while running.poll() is None and not list((tmp_path / "out").glob("dir/.*.partial")):
                time.sleep(0.01)
            time.sleep(0.2)  # into the middle of the lines, of which there is more than a second
            running.send_signal(end)
            running.wait(60)

        assert running.returncode != 0
        assert not (tmp_path / "out").exists()


def test_broken_step_lines_are_named_and_no_flag_is_suspected(tmp_path: Path) -> None:
    # the lines are there: that they are off is not the question
    path = tmp_path / "run.log"
    path.write_text("\n".join(step(i).replace("commit_lens=[", "commit_lens=[x") for i in range(5)) + "\n")
    done = run("summary", path)

    assert "5 lines could not be read: their form is broken" in done.stderr
    assert "debug-metrics on?" not in done.stderr


def test_o20_a_journal_that_this_user_may_not_read_is_exit_4_and_names_the_groups(folder: Path) -> None:
    import shutil
    import tempfile

    journals.need_root()
    run("export", "-D", folder, "-o", "-", "--format", "jsonl")  # what is imported later may not be readable later
    place = Path(tempfile.mkdtemp())
    try:
        place.chmod(0o755)
        shutil.copytree(folder, place / "journal")
        (place / "journal" / "system.journal").chmod(0o600)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            done = run("export", "-D", place / "journal", "-o", "-", "--format", "jsonl")
            os.write(write, done.stderr.encode())
            os._exit(done.exit_code)
        os.close(write)
        with os.fdopen(read) as said:
            message = said.read()
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 4, message
        assert "systemd-journal" in message
        assert "adm" in message
    finally:
        shutil.rmtree(place)
