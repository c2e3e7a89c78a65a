"""What CONTRIBUTING.md says of adding a thing: each step is done here, and nothing else is needed.

An option is in ``test_keywords.py``, a counter in ``test_edges.py``: there the steps are taken for every one that exists.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import ddtree_metrics as ddt
from ddtree_metrics import records
from ddtree_metrics.cli import main
from ddtree_metrics.cli.pictures import PICTURES
from ddtree_metrics.dialects import DIALECTS
from ddtree_metrics.dialects.base import Dialect, Line, Sample
from ddtree_metrics.dialects.sglang import SGLANG
from ddtree_metrics.records import DecodeBatch
from ddtree_metrics.schema import Col

LINE = "[2026-05-05 12:00:00] Decode batch, #running-req: 1, #token: 100, token usage: 0.10, gen throughput (token/s): 50.00, #queue-req: 0"


@dataclass(frozen=True, slots=True)
class WiderBatch(DecodeBatch):
    spare_slots: Annotated[int | None, Col("Slots that nobody uses.", "slots")] = None


def test_a_field_is_added_in_two_places_and_read_written_and_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The two: a field of the record class, and the key of the line that fills it."""
    monkeypatch.setitem(records.TABLES, "decode", WiderBatch)
    batch = next(line for line in SGLANG.lines if line.record is DecodeBatch)
    wider = replace(batch, record=WiderBatch, fields={**batch.fields, "#spare": "spare_slots"}, samples=(Sample(LINE, None),))
    log = ddt.read_text(io.BytesIO(f"{LINE}, #spare: 7\n".encode()), dialect=Dialect("wider", (wider,)), on_error="skip")
    log.write(tmp_path / "decode.parquet", "decode")
    field = pq.read_schema(tmp_path / "decode.parquet").field("spare_slots")
    told = CliRunner().invoke(main, ["schema", "decode", "--json"])

    assert log.decode["spare_slots"].tolist() == [7]
    assert next(log.records("decode")).spare_slots == 7  # type: ignore[attr-defined]
    assert ddt.read(tmp_path / "decode.parquet").decode["spare_slots"].tolist() == [7]
    assert (field.metadata[b"unit"], field.metadata[b"meaning"]) == (b"slots", b"Slots that nobody uses.")
    assert "spare_slots" in told.output, told.output


def test_a_dialect_is_added_in_two_places_and_found_by_its_name_and_by_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two: a declaration, and its place in ``DIALECTS``."""
    sample = "slots=3 rate=50.5"
    line = Line(DecodeBatch, "[mine]", fields={"slots": "running", "rate": "gen_throughput"}, samples=(Sample(f"[mine] {sample}", None),))
    monkeypatch.setattr("ddtree_metrics.dialects.DIALECTS", (*DIALECTS, Dialect("mine", (line,))))
    text = f"[mine] {sample}\n".encode()
    named = ddt.read_text(io.BytesIO(text), dialect="mine")

    assert (named.decode["running"].tolist(), named.decode["dialect"].tolist()) == ([3], ["mine"])


def test_every_module_that_declares_a_dialect_is_in_the_list() -> None:
    folder = Path(ddt.__file__).parent / "dialects"
    declared = {
        path.stem for path in folder.glob("*.py") if re.search(r"^[A-Z_]+(: Dialect)? = Dialect\(", path.read_text(encoding="utf-8"), re.M)
    }

    assert declared == {dialect.name for dialect in DIALECTS}


def test_every_plot_has_its_line_among_the_pictures_of_the_command_line() -> None:
    drawn = {name for make in PICTURES.values() for name in make.__code__.co_names if name.startswith("plot_")}

    assert drawn == {name for name in ddt.__all__ if name.startswith("plot_")}


@pytest.mark.parametrize("kind", PICTURES)
def test_every_picture_of_the_command_line_is_drawn(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("".join(f"{LINE.replace('12:00:00', f'12:00:{s:02}')}, \n" for s in range(0, 60, 5)))
    said = CliRunner().invoke(main, ["plot", str(log), "--kind", kind, "-o", str(tmp_path / "picture.svg")])

    assert said.exit_code == 0, said.output
    assert "<svg" in (tmp_path / "picture.svg").read_text()


def test_contributing_names_the_steps() -> None:
    text = (Path(__file__).resolve().parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")

    assert [
        thing for thing in ("field", "option", "counter", "plot", "dialect") if f"| a {thing} |" not in text.replace("| an ", "| a ")
    ] == []
