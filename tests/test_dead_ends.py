"""Dead ends that a person meets in the first five minutes: each says why, and what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from ddtree_metrics.cli import main
from tests import journals
from tests.captures import FIXTURES, journal_export, unpacked
from tests.journals import T0

A = journal_export("A")
STEP = "[2026-05-05 12:00:01 TP0] DDTREE metrics: bs=1 budget=8 actual_nodes=[9] accepted_drafts=[3] commit_lens=[4]"


def run(*args: str | Path, columns: int = 80) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args], prog_name="ddtree-logs", env={"COLUMNS": str(columns)}, catch_exceptions=False)


def flat(text: str) -> str:
    return " ".join(text.split())


def piped(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command.replace("ddtree-logs", f"{sys.executable} -m ddtree_metrics")], capture_output=True, text=True
    )


# -- stamps of whole seconds -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Capture A as ``journalctl -u sglang-tiny`` prints it: syslog stamps of whole seconds."""
    import ddtree_metrics as ddt

    made = tmp_path_factory.mktemp("short") / "journal.txt"
    entries = [e for e in unpacked(A).split(b"\n\n") if e.strip()]
    lines = []
    for entry in entries:
        fields = dict(line.split(b"=", 1) for line in entry.split(b"\n") if b"=" in line)
        if b"MESSAGE" not in fields or b"__REALTIME_TIMESTAMP" not in fields:
            continue
        from datetime import datetime, timezone

        at = datetime.fromtimestamp(int(fields[b"__REALTIME_TIMESTAMP"]) / 1e6, timezone.utc)
        lines.append(f"{at:%b %d %H:%M:%S} host python[{fields[b'_PID'].decode()}]: {fields[b'MESSAGE'].decode(errors='replace')}")
    made.write_text("\n".join(lines) + "\n")
    assert len(ddt.read_text(made).steps) == 545
    return made


@pytest.mark.parametrize("zone", ["", " --tz UTC"])
def test_whole_second_stamps_say_so_in_one_line_with_the_remedy_and_what_is_known_anyway(short_output: Path, zone: str) -> None:
    done = piped(f"cat {short_output} | ddtree-logs diagnose -{zone}")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0] == "Timestamps are whole seconds, so steps cannot be timed. Run again with"
    assert lines[1].strip() == "journalctl -o short-precise … (or -o export)".replace("… (", "…   (")
    # truth-summary.json: 3.725 and 2.108 tokens a step
    assert lines[2:] == ["Known anyway: tokens/step 3.72 → 2.11 at the restart of 15:19:17."]


# -- an empty window -------------------------------------------------------------------------------------------------------------


def test_an_empty_window_says_what_the_file_covers_and_the_since_that_reaches_it() -> None:
    # capture A: 15:17:18 to 15:20:30 on 2026-11-29
    done = run("diagnose", A, "--since", "2026-11-29 05:38", "--until", "2026-11-29 06:38", "--tz", "UTC")
    assert done.exit_code == 3
    assert flat(done.stdout) == (
        "No lines between 05:38 and 06:38 UTC. The file covers 2026-11-29 15:17:18 to 15:20:30 UTC. Try: --since 2026-11-29T15:17Z"
    )
    again = run("diagnose", A, "--since", "2026-11-29T15:17Z")
    assert again.exit_code == 0
    assert "22 requests" in again.stdout


@pytest.mark.parametrize("command", ["report", "plot"])
def test_where_there_is_nothing_to_show_no_file_is_written_and_the_exit_code_is_3(command: str, tmp_path: Path) -> None:
    out = tmp_path / ("x.html" if command == "report" else "x.png")
    done = run(command, A, "--since", "2026-11-29T05:38Z", "--until", "2026-11-29T06:38Z", "-o", out)
    assert done.exit_code == 3
    assert "The file covers" in flat(done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_export_of_an_empty_window_keeps_its_empty_file_and_exit_code_0(tmp_path: Path) -> None:
    done = run("export", A, "--since", "2026-11-29T05:38Z", "--until", "2026-11-29T06:38Z", "-o", tmp_path / "x.parquet")
    assert done.exit_code == 0
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 0


def test_json_of_nothing_is_no_text_on_stdout() -> None:
    done = run("diagnose", A, "--since", "2026-11-29T05:38Z", "--until", "2026-11-29T06:38Z", "--json")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "The file covers" in flat(done.stderr)


def test_a_time_of_day_is_of_the_logs_own_day_for_since_as_for_before() -> None:
    # the second start of capture A was at 15:19:17, and it has 8 requests
    done = run("diagnose", A, "--since", "15:19", "--tz", "UTC")
    assert done.exit_code == 0, done.stderr
    assert "8 requests · 1 start" in done.stdout
    both = run("diagnose", A, "--before", "15:17..15:19", "--after", "15:19..15:21", "--tz", "UTC")
    assert both.exit_code == 0, both.stderr
    assert "SLOWER" in both.stdout.upper()


def test_a_time_of_day_is_of_the_logs_own_day_for_an_export_too(tmp_path: Path) -> None:
    assert run("export", A, "--since", "15:19", "--tz", "UTC", "-o", tmp_path / "x.parquet").exit_code == 0
    # the README of capture A: 242 steps and the warm-up's 6 in run 2, of 545
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 545 - 303


# -- a pipe ------------------------------------------------------------------------------------------------------------------------


def test_a_pipe_without_a_file_is_read() -> None:
    done = piped(f"cat {A} | ddtree-logs diagnose")
    assert done.returncode == 0, done.stderr
    assert "SLOWER SINCE THE RESTART AT 15:19:17" in done.stdout


def test_a_file_redirected_to_standard_input_is_read() -> None:
    done = piped(f"ddtree-logs diagnose < {A}")
    assert done.returncode == 0, done.stderr
    assert "SLOWER SINCE THE RESTART AT 15:19:17" in done.stdout


def test_a_pipe_beside_options_of_the_journal_is_refused_with_one_sentence() -> None:
    done = piped(f"(cat {A}; sleep 1) | ddtree-logs diagnose -u sglang")
    assert done.returncode == 2
    assert "there are lines on standard input, and --unit asks for the journal" in done.stderr
    assert done.stdout == ""


def test_an_empty_standard_input_does_not_keep_the_journal_from_being_read(tmp_path: Path) -> None:
    # as cron and systemd start programs
    journals.build(tmp_path / "system.journal", b"".join(journals.entry(T0 + i * 40_000, STEP) for i in range(3)))
    for stdin in ("</dev/null", "<&-"):
        done = piped(f"ddtree-logs summary -D {tmp_path} {stdin}")
        assert "3 steps" in done.stdout, done.stderr


# -- what was read instead -----------------------------------------------------------------------------------------------------------


def test_a_file_of_requests_given_as_a_log_is_named_as_what_it_is() -> None:
    done = run("diagnose", A.with_name("requests.jsonl"), columns=200)
    assert done.exit_code == 3
    assert "requests.jsonl is a file of requests, not a log." in done.stdout
    assert "--requests" in done.stdout


def test_broken_lines_of_another_engine_name_it_and_no_flag_of_sglang_is_asked_for(tmp_path: Path) -> None:
    line = "INFO 05-05 12:00:01 [loggers.py:118] Engine 000: Avg prompt throughput: 4.2 tokens/s, Avg generation throughput: 31.9 tokens/s"
    (tmp_path / "run.log").write_text(f"{line}\n" * 5)
    done = run("diagnose", tmp_path / "run.log", columns=200)
    assert done.exit_code == 3
    assert "5 lines of vLLM could not be read" in done.stdout
    assert "--speculative-ddtree-debug-metrics" not in done.output


def test_a_log_of_requests_alone_is_no_dead_end(tmp_path: Path) -> None:
    log = (FIXTURES / "samples" / "llamacpp" / "06-llama-server-ngram.log").read_text()
    (tmp_path / "run.log").write_text(log)
    done = run("summary", tmp_path / "run.log", columns=200)
    assert done.exit_code == 0
    assert "one row for all steps of each" in done.stdout
    assert run("diagnose", tmp_path / "run.log", columns=200).exit_code == 0


def test_broken_lines_are_told_as_broken_and_not_asked_for_a_flag(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(f"{STEP[:-1]}\n" * 3)
    done = run("diagnose", tmp_path / "run.log", columns=200)
    assert done.exit_code == 3
    assert "3 lines could not be read: their form is broken" in done.stdout
    assert "run.log:1" in done.stdout
    assert "--speculative-ddtree-debug-metrics" not in done.output


def test_decode_lines_are_enough_and_nobody_is_asked_for_a_flag(tmp_path: Path) -> None:
    line = "[2026-02-01 10:00:{:02d} TP0] Decode batch, #running-req: 1, #token: 100, token usage: 0.00, accept len: 2.20, "
    line += "cuda graph: True, gen throughput (token/s): 40.40, #queue-req: 0\n"
    (tmp_path / "run.log").write_text("".join(line.format(i) for i in range(20)))
    done = run("summary", tmp_path / "run.log", columns=200)
    assert "20 Decode batch lines" in done.stderr
    assert "--speculative-ddtree-debug-metrics" not in done.output


# -- several services ----------------------------------------------------------------------------------------------------------------


def test_two_services_in_one_source_are_listed_and_one_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "two.export"
    units = ("sglang-a.service", "sglang-b.service", "sglang-b.service")
    path.write_bytes(
        b"".join(journals.entry(T0 + i * 40_000, STEP, unit=units[i % 3], pid=1 + i % 3, stream=f"{1 + i % 3:032x}") for i in range(60))
    )
    for command in (["diagnose", path], ["report", path, "-o", tmp_path / "x.html"]):
        done = run(*command, columns=300)
        assert done.exit_code == 2
        assert "choose one with -u" in done.stderr
        assert "sglang-a.service (20 steps), sglang-b.service (40 steps)" in done.stderr
    assert not (tmp_path / "x.html").exists()
    one = run("diagnose", path, "-u", "sglang-a")
    assert one.exit_code == 0, one.stderr
    assert "sglang-a.service" in one.stdout


# -- near misses ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["schema", "stps"], "there is no table 'stps'; did you mean 'steps'?"),
        (["export", str(A), "-t", "step"], "there is no table 'step'; did you mean 'steps'?"),
        (["export", str(A), "--format", "parket"], "there is no format 'parket'; did you mean 'parquet'?"),
        (["plot", str(A), "-o", "x.png", "--kind", "tokns"], "did you mean 'tokens'?"),
        (["diagnos"], "no command 'diagnos'; did you mean 'diagnose'?"),
        ([str(A)], "is a file, not a command: ddtree-logs diagnose"),
    ],
)
def test_a_near_miss_names_what_was_meant(args: list[str], said: str) -> None:
    done = run(*args)
    assert done.exit_code == 2
    assert said in flat(done.stderr)


# -- requests ------------------------------------------------------------------------------------------------------------------------


def test_a_log_without_requests_says_how_to_make_them_known(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(f"{STEP}\n" * 5)
    done = run("requests", tmp_path / "run.log")
    assert done.exit_code == 3
    assert "--requests FILE" in flat(done.stdout)


def test_an_unknown_id_names_some_that_there_are() -> None:
    done = run("requests", A, "--id", "zzz")
    assert done.exit_code == 1
    assert "no request id begins with 'zzz'; the log has 22 requests" in done.stderr


def test_the_beginning_of_an_id_is_enough_where_only_one_begins_so() -> None:
    # two ids of capture A begin with 80030fc7 and 7491b6fe; three begin with 1: 10f457c8, 11deb4ae, 1282dce6, 1f784064 are four
    done = run("diagnose", A, "--after", "requests:80030fc7")
    assert done.exit_code == 0, done.stderr
    assert "80030fc7a34a4773" in done.stdout
    several = run("diagnose", A, "--after", "requests:1")
    assert several.exit_code == 1
    assert "4 request ids begin with '1'" in several.stderr


def test_unknown_columns_of_a_request_file_name_the_nearest_and_the_option(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("who,Began,finish_at\n80030fc7,2026-11-29T15:20:11Z,2026-11-29T15:20:20Z\n")
    refused = run("summary", A, "--requests", path)
    assert refused.exit_code == 1
    assert "--map finished=finish_at" in refused.stderr
    assert len(refused.stderr) < 500
    read = run("requests", A, "--requests", path, "--map", "finished=finish_at", "--map", "received=Began", "--map", "rid=who")
    assert read.exit_code == 0, read.stderr
    assert "80030fc7" in read.stdout


def test_columns_are_mapped_in_python_too_and_a_wrong_one_is_named() -> None:
    import pandas as pd

    import ddtree_metrics as ddt
    from ddtree_metrics.errors import JoinError

    frame = pd.DataFrame({"who": ["a"], "sent": ["2026-11-29T15:20:10Z"], "Prompt": [7], "Ended": ["2026-11-29T15:20:20Z"]})
    made = ddt.read_requests(frame, columns={"request_id": "who", "finished": "Ended", "prompt_tokens": "Prompt"})
    assert made["request_id"].tolist() == ["a"]
    assert str(made["finished"][0]) == "2026-11-29 15:20:20+00:00"
    with pytest.raises(JoinError, match="no column is called 'finishd'; did you mean 'finished'"):
        ddt.read_requests(frame, columns={"finishd": "Ended"})


def test_the_help_of_a_command_lists_its_own_options_before_those_of_the_source() -> None:
    text = run("diagnose", "--help").stdout.partition("\nOptions:")[2]
    places = [text.index(word) for word in ("--before", "--full", "What is read:", "--unit", "--requests PATH", "Examples:")]
    assert places == sorted(places)


@pytest.mark.parametrize("name", ["export", "text"])
def test_a_log_that_is_given_as_a_file_of_requests_is_called_one(name: str, short_output: Path) -> None:
    done = run("diagnose", A, "--requests", A if name == "export" else short_output)
    assert done.exit_code == 1
    assert "is a log, not a file of requests: give it as the log" in done.stderr


def test_why_a_request_stands_out_is_never_cut() -> None:
    done = run("requests", A, "--slowest", "3", columns=60)
    assert max(map(len, done.stdout.splitlines())) <= 60
    assert "as all of its server start" in " ".join(done.stdout.split())


def test_a_server_of_another_engine_that_says_little_is_named_with_the_switch_that_makes_it_say_more(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(
        "INFO 06-06 14:20:30 [api_server.py:1289] vLLM API server version 0.9.1\n"
        'INFO:     127.0.0.1:51234 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    )
    done = run("diagnose", log)
    assert done.exit_code == 3
    said = " ".join(done.stdout.split())
    assert "this is the log of vLLM" in said
    assert "--enable-logging-iteration-details" in said
    assert "--speculative-ddtree-debug-metrics" not in said
