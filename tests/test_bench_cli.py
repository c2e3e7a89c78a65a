"""``ddtree-logs bench`` from a shell: options, what goes to stdout, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ddtree_metrics.bench import client as client_module
from ddtree_metrics.bench import load_sweep
from ddtree_metrics.cli import main
from tests.fakeserver import CLOCK, FakeServer, error
from tests.test_bench_baseline import FLAT, simulate
from tests.test_bench_client import KEY, paced

NO_KEYS = {"DDTREE_API_KEY": "", "OPENAI_API_KEY": ""}


@pytest.fixture(autouse=True)
def _own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "clock", CLOCK)


def run(*arguments: object, **env: str) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, arguments)], env=NO_KEYS | env)


QUICK = ("--ctx", 30, "--n1", 2, "--n2", 12, "--repeat", 2)


def test_plain_prints_exactly_the_five_columns():
    with FakeServer(paced) as server:
        made = run(server.url, "--ctx", 30, 40, "--n1", 2, "--n2", 12, "--repeat", 2, "--plain")
    lines = made.stdout.splitlines()
    assert made.exit_code == 0
    assert lines[0] == "ctx_req prompt_tok decode_tok/s    t_a     t_b"
    assert [line.split()[:2] for line in lines[1:]] == [["30", "30"], ["40", "40"]]
    assert all(len(line.split()) == 5 for line in lines)


def test_the_table_shows_rounds_and_the_rest_goes_to_stderr():
    with FakeServer(paced) as server:
        made = run(server.url, *QUICK)
    assert made.stdout.splitlines()[0].split()[:3] == ["ctx_req", "prompt_tok", "decode_tok/s"]
    assert "2/2" in made.stdout
    assert "built-in varied prose (prose-1, seed 0)" in made.stderr
    assert "\r" not in made.stderr  # no progress bar: stderr is no terminal


def test_json_is_the_whole_sweep():
    with FakeServer(paced) as server:
        made = run(server.url, *QUICK, "--json")
    data = json.loads(made.stdout)
    assert (data["schema_version"], data["points"][0]["prompt_tok"], data["plan"]["lengths"]) == (1, 30, [2, 12])


def test_several_numbers_after_one_option_and_commas_are_the_same():
    outputs = [
        run("127.0.0.1:1", *given, "--dry-run").stdout
        for given in (["--ctx", 64, 128, 256], ["--ctx=64,128,256"], ["--ctx", "64,128", "--ctx", 256])
    ]
    assert outputs[0] == outputs[1] == outputs[2]
    assert "64 128 256 tokens" in outputs[0]
    assert run("--ctx", 64, 128, "127.0.0.1:1", "--dry-run").exit_code == 0  # the address may come last


def test_dry_run_sends_nothing_and_counts_what_it_would_send():
    with FakeServer(paced) as server:
        made = run(server.url, "--ctx", 100, "--repeat", 5, "--dry-run", "--api-key", KEY)
        assert server.seen == []
    # 1 to see whether it answers, 1 to find the length, 5 rounds of warm-up, short and long
    assert "requests     17," in made.stdout
    assert "nothing was sent" in made.stdout
    assert KEY not in made.output


@pytest.mark.parametrize("name", ["DDTREE_API_KEY", "OPENAI_API_KEY"])
def test_the_key_comes_from_the_environment_and_is_never_shown(name: str):
    with FakeServer(paced) as server:
        made = run(server.url, *QUICK, "--json", **{name: KEY})
        assert {h.get("Authorization") for h in server.headers} == {f"Bearer {KEY}"}
        dry = run(server.url, "--dry-run", **{name: KEY})
        shown = run("--help", **{name: KEY})
    assert KEY not in made.output + dry.output + shown.output
    assert f"from {name}" in dry.stdout


def test_a_length_that_cannot_be_measured_exits_1_with_the_reason_and_shows_the_others():
    def window(body: dict, number: int):
        return error(400, "maximum context length is 100 tokens") if len(body["prompt"].split()) > 100 else paced(body)

    with FakeServer(window) as server:
        made = run(server.url, "--ctx", 30, 300, "--n1", 2, "--n2", 12, "--repeat", 2, "--plain")
    assert made.exit_code == 1
    assert "1 of 2 context lengths cannot be measured: 300 tokens" in made.stderr
    assert made.stdout.splitlines()[2].split() == ["300", "-", "-", "-", "-"]


def test_outputs_are_written_and_not_overwritten_without_force(tmp_path: Path):
    names = {"-o": "s.parquet", "--save": "b.json", "--requests": "r.jsonl", "--plot": "p.svg"}
    arguments = [part for option, name in names.items() for part in (option, tmp_path / name)]
    with FakeServer(paced) as server:
        first = run(server.url, *QUICK, *arguments)
        again = run(server.url, *QUICK, *arguments)
        forced = run(server.url, *QUICK, *arguments, "--force")
    assert (first.exit_code, again.exit_code, forced.exit_code) == (0, 2, 0), first.stderr
    assert load_sweep(tmp_path / "s.parquet").points[0].ctx_req == 30
    assert (tmp_path / "p.svg").read_bytes().lstrip().startswith(b"<?xml")
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) >= 6


@pytest.mark.parametrize("arguments", [["-o", "x.csv"], ["--save", "x.parquet"], ["--plot", "x.txt"], ["-o", "no/such/folder/x.json"]])
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_sent(arguments: list[str]):
    with FakeServer(paced) as server:
        made = run(server.url, *QUICK, *arguments)
        assert server.seen == []
    assert made.exit_code == 2


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    simulate(1, FLAT).save(tmp_path / "base.json")
    simulate(2, FLAT).save(tmp_path / "same.json")
    simulate(2, {64: 4.0, 1024: 5.0, 5120: 18.0}).save(tmp_path / "slow.json")
    return tmp_path


def test_compare_exits_1_on_a_regression_and_names_it(saved: Path):
    made = run(saved / "slow.json", "--compare", saved / "base.json")
    assert made.exit_code == 1
    assert "slower than the baseline beyond 5 %: 5120 tokens: " in made.stderr
    assert [line.split()[-1] for line in made.stdout.split("\n\n")[1].splitlines()[1:]] == ["same", "same", "slower"]


def test_compare_exits_0_without_one(saved: Path):
    assert run(saved / "same.json", "--compare", saved / "base.json").exit_code == 0
    assert run(saved / "slow.json", "--compare", saved / "base.json", "--tolerance", "30%").exit_code == 0


def test_compare_in_json(saved: Path):
    data = json.loads(run(saved / "slow.json", "--compare", saved / "base.json", "--json").stdout)
    assert [v["verdict"] for v in data["comparison"]["verdicts"]] == ["same", "same", "slower"]


def test_a_missing_baseline_is_told_before_anything_is_sent(tmp_path: Path):
    with FakeServer(paced) as server:
        made = run(server.url, *QUICK, "--compare", tmp_path / "none.json")
        assert server.seen == []
    assert made.exit_code == 1
    assert "cannot read the sweep" in made.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["u", "--ctx"],
        ["u", "--ctx", "0"],
        ["u", "--ctx", "abc"],
        ["u", "--n1", "1"],
        ["u", "--n1", "300"],
        ["u", "--repeat", "0"],
        ["u", "--timeout", "0"],
        ["u", "--tolerance", "2"],
        ["u", "--tolerance", "x"],
        ["u", "--plain", "--json"],
    ],
)
def test_wrong_use_exits_2(arguments: list[str]):
    assert run(*arguments).exit_code == 2


def test_ctrl_c_prints_and_saves_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from ddtree_metrics.bench import protocol

    real = protocol._Runner.round

    def stop(self: protocol._Runner, number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt
        real(self, number)

    monkeypatch.setattr(protocol._Runner, "round", stop)
    with FakeServer(paced) as server:
        made = run(server.url, "--ctx", 30, "--n1", 2, "--n2", 12, "--repeat", 9, "-o", tmp_path / "s.json")
    assert made.exit_code == 130
    assert "2/2" in made.stdout
    assert load_sweep(tmp_path / "s.json").interrupted


def test_a_real_ctrl_c_ends_with_130_and_the_table():
    with FakeServer(paced) as server:
        code = "import sys; from ddtree_metrics.cli import main; main(sys.argv[1:])"
        command = [
            sys.executable,
            "-c",
            code,
            "bench",
            server.url,
            "--ctx",
            "30",
            "--n1",
            "2",
            "--n2",
            "12",
            "--repeat",
            "100000",
            "--precision",
            "0",
        ]
        # a shell's background jobs ignore SIGINT, and so would their children
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            while len(server.seen) < 12 and child.poll() is None:
                time.sleep(0.01)
            child.send_signal(signal.SIGINT)
            out, told = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == 130, told
    assert out.startswith("ctx_req prompt_tok decode_tok/s")
    assert "interrupted" in told
    assert "Traceback" not in told


def test_nothing_at_the_address_exits_1_without_a_traceback():
    made = run("127.0.0.1:9", *QUICK)
    assert (made.exit_code, made.stdout) == (1, "")
    assert made.stderr.startswith("ddtree-logs: nothing answers at http://127.0.0.1:9/v1")
