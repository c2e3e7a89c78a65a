"""What editors and mypy know of the public functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SNIPPET = """
import ddtree_metrics as ddt

for step in ddt.iter_text("run.log"):
    reveal_type(step)
    step.no_such_attribute
for line in ddt.iter_journal("sglang.service", since="1h", table="decode", boot=0):
    reveal_type(line)
log = ddt.read_text("run.log")
for step in log.records():
    reveal_type(step.commit_lens)
for row in log.records("request_steps"):
    reveal_type(row.context_len)
"""


def test_records_are_typed_wherever_they_come_from(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"), "user.py"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout

    assert 'user.py:5: note: Revealed type is "ddtree_metrics.records.TreeStep"' in said
    assert '"TreeStep" has no attribute "no_such_attribute"' in said
    assert 'user.py:8: note: Revealed type is "ddtree_metrics.records.DecodeBatch"' in said
    assert 'Revealed type is "tuple[int, ...] | None"' in said
    assert 'Revealed type is "int | None"' in said
