"""Saved sweeps come from files that anyone may have touched: each is used, or refused with file, key and what is wanted."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from ddtree_metrics.bench import compare, load_sweep
from ddtree_metrics.cli import main
from ddtree_metrics.errors import BenchError
from tests.test_bench_bad_servers import WRONG, places, put
from tests.test_bench_baseline import FLAT, simulate


def small() -> dict[str, Any]:
    made = simulate(1, {64: 4.0, 1024: 5.0}, rounds=2)
    made.server = {"kind": "sglang", "version": "0.5.1", "flags": {"page_size": "1"}, "context_len": 4096}
    made.points[0].dropped, made.points[0].notes = {"timeout": 1}, ["a note"]
    made.answers = made.answers[:3]
    plain: dict[str, Any] = json.loads(made.to_json())
    return plain


def use(path: Path) -> None:
    """Do all that can be done with a sweep."""
    loaded = load_sweep(path)
    loaded.table(), loaded.plain(), loaded.to_json(), loaded.frame(), loaded.requests()
    for made in (compare(loaded, simulate(2, FLAT)), compare(simulate(2, FLAT), loaded)):
        made.table(), made.to_dict(), made.sentence


def test_a_wrong_value_at_every_place_is_used_or_named(tmp_path: Path):
    path, whole = tmp_path / "s.json", small()
    refused = used = 0
    for place in places(whole):
        for wrong in WRONG:
            path.write_text(json.dumps(put(whole, place, wrong)))
            try:
                use(path)
                used += 1
            except BenchError as error:
                text = str(error)
                assert text.startswith(f"{path} ")
                assert "\n" not in text
                last = next((key for key in reversed(place) if isinstance(key, str)), "")
                generic = (
                    "kind",
                    "schema_version",
                    "page_size",
                    "timeout",
                    *whole["client"],
                )  # no sweep, a newer one; names of settings are not quoted
                assert last in text or last in generic or (place[0] == "plan" and " plan: " in text)
                refused += 1
    assert refused > 1500
    assert used > 100  # null where a value may be unknown, another text or number


def test_a_missing_key_is_named(tmp_path: Path):
    path, whole = tmp_path / "s.json", small()
    for name in ("plan", "points", "url", "started"):
        path.write_text(json.dumps({k: v for k, v in whole.items() if k != name}))
        with pytest.raises(BenchError, match=rf"s\.json is not a sweep that can be used: {name}: it is missing"):
            load_sweep(path)


def test_what_a_later_release_adds_is_passed_over(tmp_path: Path):
    whole = small()
    whole["new"] = whole["points"][0]["new"] = whole["answers"][0]["new"] = {"x": 1}
    (tmp_path / "s.json").write_text(json.dumps(whole))
    assert load_sweep(tmp_path / "s.json").points[0].ctx_req == 64


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_flipped_and_cut_files_never_end_in_a_traceback(tmp_path: Path, ending: str):
    made, rng, path = simulate(1, {64: 4.0}, rounds=2), random.Random(4), tmp_path / f"x.{ending}"
    made.save(path)
    whole = path.read_bytes()
    for number in range(300):
        raw = bytearray(whole)
        for _ in range(rng.choice((1, 3, 30))):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        path.write_bytes(raw if number % 2 else raw[: rng.randrange(len(raw))])
        with contextlib.suppress(BenchError):
            use(path)


def test_a_sweep_that_was_interrupted_is_shown_and_is_no_interruption(tmp_path: Path):
    made = simulate(1, {64: 4.0})
    made.interrupted = True
    made.save(tmp_path / "s.json")
    shown = CliRunner().invoke(main, ["bench", str(tmp_path / "s.json")])
    assert shown.exit_code == 0
    assert "this sweep was interrupted" in shown.stderr


def test_what_a_terminal_would_obey_in_a_file_is_not_shown(tmp_path: Path):
    whole = copy.deepcopy(small())
    whole["model"] = "a\x1b[2Jb\u202ec"
    whole["server"]["flags"]["x\x07"] = whole["notes"] = ["\x9b31m"]
    whole["server"]["flags"] = {"x\x07": "\x1b"}
    (tmp_path / "s.json").write_text(json.dumps(whole))
    simulate(3, {64: 4.0}).save(tmp_path / "b.json")
    shown = CliRunner().invoke(main, ["bench", str(tmp_path / "s.json"), "--compare", str(tmp_path / "b.json")])
    assert "a\ufffd[2Jb\ufffdc" in shown.stderr
    assert all(c.isprintable() or c == "\n" for c in shown.output)


@pytest.mark.parametrize("name", ["/dev/zero", "/nonexistent/x.json", "/", "x\0.json", "y" * 300 + ".json"])
def test_what_is_no_file_is_one_sentence(name: str, monkeypatch: pytest.MonkeyPatch):
    from ddtree_metrics.bench import sweep

    monkeypatch.setattr(sweep, "LARGEST_FILE", 1 << 16)
    for arguments in (["bench", "127.0.0.1:9", "--compare", name], ["bench", name, "--timeout", "1"]):
        made = CliRunner().invoke(main, arguments)
        assert made.exit_code == 1
        assert made.stderr.startswith("ddtree-logs: ")


def test_a_parquet_file_of_something_else_is_no_sweep(tmp_path: Path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    with pytest.raises(BenchError, match="is not a sweep"):
        load_sweep(tmp_path / "x.parquet")


def test_all_that_a_hostile_server_leaves_in_a_sweep_can_be_loaded_again(tmp_path: Path):
    from tests.echoes import field_plays
    from tests.rawserver import RawServer

    for number, play in enumerate(field_plays("\x1b\U0001f600" + "9" * 500).values()):
        with RawServer(play) as server:
            out = tmp_path / f"{number}.json"
            given = ["--ctx", "30", "--n1", "2", "--n2", "12", "--repeat", "1", "--timeout", "0.3", "-o", str(out)]
            made = CliRunner().invoke(main, ["bench", server.url, *given], env={"DDTREE_API_KEY": "", "OPENAI_API_KEY": ""})
        assert made.exception is None or isinstance(made.exception, SystemExit), made.exception
        if out.exists():
            use(out)
