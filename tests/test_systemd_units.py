"""The units in docs/systemd: systemd takes them, they may do little, and what they run is what the commands understand."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from ddtree_metrics.cli import main
from tests import journals
from tests.simulator import simulate
from tests.simulator_text import write_export

UNITS = Path(__file__).parent.parent / "docs" / "systemd"
PROGRAM = "/usr/local/bin/ddtree-logs"
NAMED = [path.name.replace("@.", "@sglang-simulated.") for path in sorted(UNITS.iterdir())]


@pytest.fixture
def analyze(tmp_path: Path) -> Path:
    """A folder with the units, whose program is one that is there."""
    if shutil.which("systemd-analyze") is None:
        pytest.fail("these tests check units: apt-get install -y systemd")
    for path in UNITS.iterdir():
        text = path.read_text(encoding="utf-8")
        (tmp_path / path.name).write_text(text.replace(PROGRAM, sys.executable), encoding="utf-8")
    return tmp_path


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)


def test_there_is_a_service_and_a_timer_for_the_export_and_for_the_upkeep() -> None:
    assert NAMED == [
        "ddtree-export@sglang-simulated.service",
        "ddtree-export@sglang-simulated.timer",
        "ddtree-upkeep.service",
        "ddtree-upkeep.timer",
    ]


@pytest.mark.parametrize("unit", NAMED)
def test_systemd_has_nothing_to_say_of_a_unit(analyze: Path, unit: str) -> None:
    found = run("verify", "--man=no", str(analyze / unit))
    assert (found.returncode, found.stderr) == (0, "")


def test_systemd_would_say_what_is_wrong_with_a_unit(analyze: Path) -> None:
    path = analyze / "ddtree-upkeep.service"
    path.write_text(path.read_text().replace("ProtectSystem=strict", "ProtectSytem=strict").replace(sys.executable, "/no/such/program"))
    found = run("verify", "--man=no", str(path))
    assert "ProtectSytem" in found.stderr
    assert found.returncode != 0


@pytest.mark.parametrize("unit", [name for name in NAMED if name.endswith(".service")])
def test_a_service_may_do_little(analyze: Path, unit: str) -> None:
    # systemd's own scale goes from 0 to 10, and calls up to 2 safe; given in tenths
    found = run("security", "--offline=true", "--threshold=20", str(analyze / unit))
    assert found.returncode == 0, found.stdout
    text = (UNITS / unit.replace("@sglang-simulated.", "@.")).read_text()
    for line in ("ProtectSystem=strict", "DynamicUser=yes", "StateDirectory=ddtree", "CapabilityBoundingSet=", "PrivateNetwork=yes"):
        assert line in text.splitlines()
    assert ("SupplementaryGroups=systemd-journal" in text) == unit.startswith("ddtree-export")


def test_what_the_services_run_makes_a_lake_and_looks_after_it(tmp_path: Path) -> None:
    export = write_export(simulate(requests=6, start=time.time() - 3_600.0), tmp_path / "run.export").read_bytes()
    journals.build(tmp_path / "j" / "system.journal", export)
    done = []
    for unit in ("ddtree-export@.service", "ddtree-upkeep.service"):
        for line in re.findall(rf"^ExecStart={PROGRAM} (.*)$", (UNITS / unit).read_text(), re.MULTILINE):
            words = line.replace("%S", str(tmp_path)).replace("%i", "sglang-simulated").split()
            more = ["--directory", str(tmp_path / "j")] if words[0] == "export" else []
            found = CliRunner().invoke(main, [*words, *more])
            assert found.exit_code == 0, found.output
            done.append(words[:2])
    assert done == [["export", "--append"], ["lake", "join"], ["lake", "compact"], ["lake", "drop"], ["lake", "check"]]
    assert list((tmp_path / "ddtree" / "lake" / "steps").rglob("*.parquet"))
