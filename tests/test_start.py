"""What an export loads: nothing that it does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

HEAVY = ["pandas", "matplotlib", "scipy", "httpcore"]
STEP = (
    "[2026-05-05 12:00:0{second} TP0] DDTREE metrics: bs=1 budget=16 actual_nodes=[17] accepted_drafts=[3] commit_lens=[4] "
    "avg_accepted_drafts=3.00 avg_commit_len=4.00\n"
)


def _loaded_by(*args: str | Path) -> list[str]:
    """Run the command in a process of its own; return which heavy modules it has loaded at its end."""
    code = (
        "import json, sys\nfrom ddtree_metrics.cli import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit as end: assert not end.code, end.code\n"
        f"print(json.dumps([m for m in {HEAVY} if m in sys.modules]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stderr.splitlines()[-1])
    return found


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text("".join(STEP.format(second=i) for i in range(5)))
    return path


@pytest.mark.parametrize("name", ["x.parquet", "x.csv"])
def test_an_export_of_lines_loads_no_pandas(log: Path, name: str) -> None:
    out = log.parent / name

    assert _loaded_by("export", log, "-o", out) == []
    assert out.stat().st_size > 0


def test_an_export_to_a_dataset_loads_no_pandas(log: Path) -> None:
    assert _loaded_by("export", log, "-o", log.parent / "lake", "--partition", "date") == []


def test_tables_that_are_made_of_others_still_come_out(log: Path) -> None:
    # requests are made from frames, so pandas is loaded, and pyarrow knows it
    out = log.parent / "incident"

    assert _loaded_by("export", log, "-o", f"{out}/") == ["pandas"]
    assert pq.read_table(out / "steps.parquet").num_rows == 5
    assert (out / "requests.parquet").exists()
