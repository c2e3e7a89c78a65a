"""Requests: every source, every name, every flag; what is never kept; what bad input gets."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_metrics import tables
from ddtree_metrics.errors import DDTreeWarning, JoinError, SourceDamaged, SourceNotFound
from ddtree_metrics.records import Request, RequestLine
from ddtree_metrics.requests import complement_requests, read_requests, request_fields, requests_from_log, tokens_per_step
from tests.captures import FIXTURES
from tests.simulator import simulate

NOON = 1_767_268_800  # 2026-01-01 12:00:00 UTC


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def at(frame: pd.DataFrame, column: str, row: int = 0) -> float:
    return frame[column].iloc[row].timestamp()


# -- the server's own file ----------------------------------------------------------------------------------------------------


def test_request_file_of_a_real_server() -> None:
    requests = read_requests(FIXTURES / "real" / "A" / "requests.jsonl")
    # the README of the capture: 24 records, two of them the server's warm-up, prompt 64 → completion 120 in 35 steps
    assert len(requests) == 24
    assert requests["kind"].value_counts().to_dict() == {"client": 22, "warmup": 2}
    first = requests[requests["request_id"] == "df7f1b33aef741e887d3ce5db0eaa33a"].iloc[0]
    assert (first["prompt_tokens"], first["completion_tokens"], first["verify_steps"], first["accepted_drafts"]) == (64, 120, 35, 85)
    assert list(first["accepted_histogram"]) == [3, 2, 12, 13, 5]
    assert first["discarded_tail"] == 1  # 1 + 35 + 85 - 120
    assert first["source"] == "request_file"
    assert (requests["received"] < requests["first_token"]).all()
    assert (requests["first_token"] < requests["finished"]).all()
    assert requests["flags"].isna().all()


def test_a_retraction_gives_one_more_token() -> None:
    requests = read_requests(FIXTURES / "real" / "C" / "requests.jsonl")
    again = requests[requests["retractions"] == 1].iloc[0]
    # 250 tokens in 68 steps with 181 drafts: 1 + 1 + 68 + 181 - 250 = 1
    assert (again["completion_tokens"], again["verify_steps"], again["accepted_drafts"], again["discarded_tail"]) == (250, 68, 181, 1)


@pytest.mark.parametrize(
    "names",
    [
        ("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
        ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
        ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
    ],
)
def test_three_names_of_the_vendor_mean_one_thing(tmp_path: Path, names: tuple[str, str, str]) -> None:
    record = {
        "id": "a",
        "prompt_tokens": 10,
        "completion_tokens": 106,
        "spec_verify_ct": 43,
        "request_received_ts": NOON,
        "request_finished_ts": NOON + 9,
    }
    record |= {names[0]: 63, names[1]: 215, names[2]: [11, 14, 11, 4, 0, 3]}
    requests = read_requests(write(tmp_path / "r.jsonl", record))
    row = requests.iloc[0]
    assert (row["accepted_drafts"], row["proposed_drafts"], list(row["accepted_histogram"])) == (63, 215, [11, 14, 11, 4, 0, 3])
    assert row["discarded_tail"] == 1  # 1 + 43 + 63 - 106
    assert requests["flags"].isna().all()


def test_without_timestamps_the_file_says_so(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.jsonl", {"request_parameters": "{}", "id": "a", "prompt_tokens": 5, "completion_tokens": 7, "e2e_latency": 0.5}
    )
    with pytest.warns(DDTreeWarning) as told:
        requests = read_requests(path)
    texts = sorted(str(w.message) for w in told)
    assert texts[0] == "1 requests have no end (flag no_end)"
    assert texts[1].startswith("1 requests have no start time, which SGLang writes with --enable-metrics")
    assert "--log-requests" in texts[1]
    assert pd.isna(requests["received"].iloc[0])


def test_hourly_files_and_compressed_ones_in_a_folder(tmp_path: Path) -> None:
    one = json.dumps({"id": "a", "received": NOON, "finished": NOON + 1, "prompt_tokens": 1, "completion_tokens": 2})
    (tmp_path / "sglang-request-metrics-20260101_12.log").write_text(one + "\n")
    (tmp_path / "sglang-request-metrics-20260101_13.log.gz").write_bytes(gzip.compress(one.replace('"a"', '"b"').encode()))
    (tmp_path / "notes.txt").write_text("no requests")
    assert read_requests(tmp_path)["request_id"].tolist() == ["a", "b"]
    assert len(read_requests(str(tmp_path / "*.log"))) == 1


# -- identities: O11, O12, counter_identities.csv --------------------------------------------------------------------------------


def test_o12_the_last_step_may_commit_less_than_it_accepted(tmp_path: Path) -> None:
    base = {"received": NOON, "finished": NOON + 60, "prompt_tokens": 20}
    path = write(
        tmp_path / "r.jsonl",
        {"id": "R1", "completion_tokens": 200, "spec_verify_ct": 188, "spec_num_correct_drafts": 11, **base},
        {"id": "R2", "completion_tokens": 57, "spec_verify_ct": 12, "spec_num_correct_drafts": 48, **base},
        {"id": "R3", "completion_tokens": 70, "spec_verify_ct": 12, "spec_num_correct_drafts": 48, **base},
    )
    with pytest.warns(DDTreeWarning, match="1 requests break an identity"):
        requests = read_requests(path)
    assert requests["discarded_tail"].fillna(-1).tolist() == [0, 4, -1]  # 1 + 188 + 11 = 200; 1 + 12 + 48 = 61; 61 < 70 cannot be
    assert requests["flags"].map(lambda x: list(x) if x is not pd.NA else []).tolist() == [[], [], ["identity_broken"]]
    assert len(requests) == 3  # flagged, not dropped
    # 199 / 188 and 56 / 12, the prefill's token counted in neither
    assert tokens_per_step(requests).iloc[:2].round(4).tolist() == [1.0585, 4.6667]


def test_o11_a_missing_count_is_no_zero() -> None:
    requests = tables.to_pandas(
        tables.from_records(
            [Request(completion_tokens=200, verify_steps=188), Request(completion_tokens=9), Request(verify_steps=0)], Request
        )
    )
    made = tokens_per_step(requests)
    assert made.notna().tolist() == [True, False, False]


def test_the_published_counter_identities_hold_in_the_reader(tmp_path: Path) -> None:
    with (FIXTURES / "oracles" / "counter_identities.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["dialect"] == "SGLang meta_info"]
    assert [r["value"] for r in rows] == ["2.4651162790697674", "215", "0.2930232558139535", "43;63", "106"]
    record = {
        "id": "a",
        "received": NOON,
        "finished": NOON + 1,
        "prompt_tokens": 3,
        "completion_tokens": 106,
        "spec_verify_ct": 43,
        "spec_num_correct_drafts": 63,
        "spec_num_proposed_drafts": 215,
        "spec_correct_drafts_histogram": [11, 14, 11, 4, 0, 3],
    }
    row = read_requests(write(tmp_path / "r.jsonl", record)).iloc[0]
    assert row["completion_tokens"] / row["verify_steps"] == float(rows[0]["value"])
    assert row["verify_steps"] * 5 == row["proposed_drafts"] == int(rows[1]["value"])
    assert row["accepted_drafts"] / row["proposed_drafts"] == float(rows[2]["value"])
    hist = list(row["accepted_histogram"])
    assert f"{sum(hist)};{sum(i * n for i, n in enumerate(hist))}" == rows[3]["value"]
    assert row["accepted_drafts"] + row["verify_steps"] == int(rows[4]["value"])
    # the vLLM row "hist [39,1,0,3] steps=43 accepted=10": 39 + 1 + 0 + 3 = 43, 0 + 1 + 0 + 9 = 10
    other = {
        "id": "b",
        "received": NOON,
        "finished": NOON + 1,
        "prompt_tokens": 3,
        "completion_tokens": 54,
        "verify_steps": 43,
        "accepted_drafts": 10,
        "proposed_drafts": 129,
        "accepted_histogram": [39, 1, 0, 3],
    }
    assert read_requests(write(tmp_path / "v.jsonl", other))["flags"].isna().all()


def test_a_histogram_that_does_not_add_up_is_flagged(tmp_path: Path) -> None:
    record = {
        "id": "a",
        "received": NOON,
        "finished": NOON + 1,
        "prompt_tokens": 3,
        "completion_tokens": 106,
        "spec_verify_ct": 44,
        "spec_num_correct_drafts": 63,
        "spec_correct_drafts_histogram": [11, 14, 11, 4, 0, 3],
    }
    with pytest.warns(DDTreeWarning, match="identity"):
        assert "identity_broken" in read_requests(write(tmp_path / "r.jsonl", record))["flags"].iloc[0]


@settings(max_examples=60, deadline=None)
@given(hist=st.lists(st.integers(0, 50), min_size=1, max_size=9).filter(sum), tail=st.integers(0, 3), again=st.integers(0, 2))
def test_identities_never_flag_what_a_server_can_count(
    hist: list[int], tail: int, again: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    steps, accepted = sum(hist), sum(i * n for i, n in enumerate(hist))
    tail = min(tail, len(hist) - 1, accepted)
    record = {
        "id": "a",
        "received": NOON,
        "finished": NOON + 1,
        "prompt_tokens": 3,
        "spec_verify_ct": steps,
        "num_retractions": again,
        "completion_tokens": 1 + again + steps + accepted - tail,
        "spec_num_correct_drafts": accepted,
        "spec_correct_drafts_histogram": hist,
    }
    row = read_requests(write(tmp_path_factory.mktemp("h") / "r.jsonl", record)).iloc[0]
    assert row["discarded_tail"] == tail
    assert row["flags"] is pd.NA or row["flags"] is None


# -- clients ------------------------------------------------------------------------------------------------------------------


def test_client_csv_of_the_capture() -> None:
    requests = read_requests(FIXTURES / "real" / "A" / "client.csv")
    assert len(requests) == 22
    assert (requests["source"] == "client").all()
    assert requests["received"].iloc[0] == pd.Timestamp("2026-11-29 15:17:57.264451+00:00")  # 1795965477.264451


@pytest.mark.parametrize(
    "text",
    [
        str(NOON),
        f"{NOON}.0",
        f"{NOON}000",
        f"{NOON}000000",
        f"{NOON}000000000",
        "2026-01-01T12:00:00Z",
        "2026-01-01 13:00:00+01:00",
        "2026-01-01T07:00:00.000-0500",
    ],
)
def test_epoch_units_by_size_and_iso_with_a_zone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.csv"
    path.write_text(f"request_id,sent,last_chunk,prompt_tokens,completion_tokens\na,{text},{NOON + 5},10,20\n")
    assert at(read_requests(path), "received") == NOON


@pytest.mark.parametrize(
    ("name", "value"), [("start_ms", NOON * 1000), ("start_time_ns", NOON * 10**9), ("Start Time", NOON), ("request-start", NOON)]
)
def test_names_in_other_dress(tmp_path: Path, name: str, value: int) -> None:
    path = tmp_path / "c.csv"
    path.write_text(f"id;{name};End;Input Tokens;output_tokens\na;{value};{NOON + 5};10;20\n")
    requests = read_requests(path)
    assert (at(requests, "received"), requests["prompt_tokens"].iloc[0], requests["completion_tokens"].iloc[0]) == (NOON, 10, 20)


def test_times_without_a_zone_ask_for_one(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("request_id,sent,last_chunk,prompt_tokens,completion_tokens\na,2026-07-01T12:00:00,2026-07-01T12:00:05,1,2\n")
    with pytest.raises(JoinError, match=r"'sent' has no zone.*--tz"):
        read_requests(path)
    berlin = read_requests(path, tz="Europe/Berlin")  # two hours ahead in summer
    assert berlin["received"].iloc[0] == datetime(2026, 7, 1, 10, tzinfo=timezone.utc)


def test_unknown_columns_are_named_with_the_accepted_ones(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("colour,weight\nred,3\n")
    with pytest.raises(
        JoinError, match=r"no column of 'colour', 'weight'.*--map finished=colour .*request_id, received, first_token or finished"
    ):
        read_requests(path)
    path.write_text(f"request_id,sent,last_chunk,prompt_tokens,completion_tokens,colour\na,{NOON},{NOON + 1},1,2,red\n")
    with pytest.warns(DDTreeWarning, match=r"1 columns are not used \(colour\); accepted are"):
        assert len(read_requests(path)) == 1


def test_parquet_written_by_this_library_comes_back(tmp_path: Path) -> None:
    run = simulate(seed=5, requests=6)
    table = tables.from_pandas(run.requests, Request)
    pq.write_table(table, tmp_path / "requests.parquet")
    back = read_requests(tmp_path / "requests.parquet")
    for name in ("request_id", "received", "first_token", "finished", "prompt_tokens", "verify_steps", "accepted_drafts", "kind", "source"):
        assert back[name].tolist() == run.requests[name].tolist(), name


def test_parquet_with_naive_times_asks_for_a_zone(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"rid": ["a"], "start": pa.array([datetime(2026, 1, 1)], pa.timestamp("us")), "osl": [4]}), tmp_path / "r.parquet"
    )
    with pytest.raises(JoinError, match="no zone"):
        read_requests(tmp_path / "r.parquet")


def test_openai_responses(tmp_path: Path) -> None:
    record = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": NOON,
        "choices": [{"message": {"content": "secret text"}}],
        "latency_ms": 1500,
        "usage": {
            "prompt_tokens": 12,
            "completion_tokens": 34,
            "completion_tokens_details": {"reasoning_tokens": 5},
            "prompt_tokens_details": {"cached_tokens": 8},
        },
    }
    row = read_requests(write(tmp_path / "r.jsonl", record)).iloc[0]
    assert (row["prompt_tokens"], row["completion_tokens"], row["reasoning_tokens"], row["cached_tokens"]) == (12, 34, 5, 8)
    assert (row["finished"] - row["received"]).total_seconds() == 1.5


def test_bench_serving_lists(tmp_path: Path) -> None:
    run = {
        "backend": "sglang",
        "duration": 9.0,
        "input_lens": [100, 200],
        "output_lens": [8, 16],
        "ttfts": [0.1, 0.2],
        "itls": [[0.1, 0.1], [0.5]],
        "start_times": [1234.0, 1235.0],
        "generated_texts": ["a secret", "b secret"],
        "errors": ["", ""],
    }
    with pytest.warns(DDTreeWarning, match="2 requests have times that count from an unknown start"):
        requests = read_requests(write(tmp_path / "bench.jsonl", run))
    assert requests["prompt_tokens"].tolist() == [100, 200]
    assert (requests["finished"] - requests["received"]).dt.total_seconds().round(6).tolist() == [0.3, 0.7]  # 0.1 + 0.2, 0.2 + 0.5


def test_requests_without_an_id_get_one_that_says_where_they_stand(tmp_path: Path) -> None:
    one = {"received": NOON + 0.25, "finished": NOON + 1.5, "prompt_tokens": 1, "completion_tokens": 2}
    write(tmp_path / "r.jsonl", {**one, "id": "a"}, one, {**one, "received": NOON + 0.5})
    requests = read_requests(tmp_path / "r.jsonl")
    assert requests["request_id"].tolist() == ["a", "r.jsonl#2", "r.jsonl#3"]
    assert [x is not pd.NA and list(x) for x in requests["flags"]] == [False, ["no_id"], ["no_id"]]
    assert requests.attrs["requests"]["flags"] == {"no_id": 2}


def test_requests_without_an_id_are_told_twice_where_all_their_content_is_the_same(tmp_path: Path) -> None:
    one = {"received": NOON + 0.25, "finished": NOON + 1.5, "prompt_tokens": 1, "completion_tokens": 2}
    burst = {
        "received": NOON,
        "finished": NOON + 1,
        "prompt_tokens": 1,
        "completion_tokens": 2,
    }  # whole seconds: two of a burst may be alike
    write(tmp_path / "r.jsonl", one, one, burst, burst)
    with pytest.warns(DDTreeWarning, match="1 requests are told twice"):
        requests = read_requests(tmp_path / "r.jsonl")
    assert [list(x) for x in requests["flags"]] == [["no_id"], ["duplicate", "no_id"], ["no_id"], ["no_id"]]


@pytest.mark.parametrize("name", ["requests", "results"])
def test_a_document_with_the_requests_inside(tmp_path: Path, name: str) -> None:
    one = {"id": "a", "received": NOON, "finished": NOON + 1, "prompt_tokens": 1, "completion_tokens": 2}
    (tmp_path / "r.json").write_text(json.dumps({"model": "m", name: [one, {**one, "id": "b"}]}, indent=1))
    assert read_requests(tmp_path / "r.json")["request_id"].tolist() == ["a", "b"]


def test_json_without_a_known_field_names_the_accepted_ones(tmp_path: Path) -> None:
    with pytest.raises(
        JoinError, match=r"no field of 'colour', 'weight'.*--map finished=colour .*request_id, received, first_token or finished"
    ):
        read_requests(write(tmp_path / "r.jsonl", {"colour": "red", "weight": 3}, {"colour": "blue"}))


def test_blank_lines_before_the_head_of_a_csv(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(f"\n  \nrequest_id;sent;last_chunk;prompt_tokens;completion_tokens\na;{NOON};{NOON + 1};1;2\nb;1\n")
    with pytest.warns(DDTreeWarning, match=r"1 records could not be read .* c\.csv:5"):  # two blank lines, the head, a, b
        assert read_requests(tmp_path / "c.csv")["request_id"].tolist() == ["a"]


def test_a_csv_field_without_end_spoils_its_row_only_and_a_head_of_that_kind_the_file(tmp_path: Path) -> None:
    rows = [f"a,{NOON},{NOON + 1},1,2", f"{'x' * 140_000},{NOON},{NOON + 1},1,2", f"c,{NOON},{NOON + 1},1,2"]
    (tmp_path / "c.csv").write_text("\n".join(["request_id,sent,last_chunk,prompt_tokens,completion_tokens", *rows]))
    with pytest.warns(DDTreeWarning, match=r"1 records could not be read"):
        assert read_requests(tmp_path / "c.csv")["request_id"].tolist() == ["a", "c"]
    (tmp_path / "h.csv").write_text(f"request_id,{'x' * 140_000}\na,1\n")
    with pytest.raises(SourceDamaged, match=r"h\.csv: its first line has no names of columns that can be read"):
        read_requests(tmp_path / "h.csv")


def test_a_column_with_a_line_end_in_its_name_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(f'request_id,sent,last_chunk,"odd\n\x1b[2J"\na,{NOON},{NOON + 1},1\n')
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        read_requests(tmp_path / "c.csv")
    assert any("odd" in str(one.message) for one in told)
    assert all(str(one.message).isprintable() for one in told)


@pytest.mark.filterwarnings("ignore::ddtree_metrics.errors.DDTreeWarning")  # one has no end
@pytest.mark.parametrize("huge", ["2147483648", str(2**63), str(10**30), str(10**400), f'"{10**30}"', "1e308"])
def test_a_number_that_no_column_holds_is_not_known(tmp_path: Path, huge: str) -> None:
    text = f'{{"id": "a", "received": {NOON}, "finished": {NOON + 1}, "prompt_tokens": {huge}, "completion_tokens": 2}}\n'
    text += f'{{"id": "b", "received": {NOON}, "finished": {huge if len(huge) > 20 else 0}, "prompt_tokens": 1, "completion_tokens": 2}}\n'
    (tmp_path / "r.jsonl").write_text(text)
    requests = read_requests(tmp_path / "r.jsonl").set_index("request_id")
    assert pd.isna(requests.loc["a", "prompt_tokens"])
    assert pd.isna(requests.loc["b", "finished"])
    assert requests["completion_tokens"].tolist() == [2, 2]


@pytest.mark.parametrize("deep", ['{"a":' * 100_000, "[" * 100_000, "[" * 500 + "]" * 500])
def test_json_that_is_nested_too_deeply_is_one_record_that_cannot_be_read(tmp_path: Path, deep: str) -> None:
    one = json.dumps({"id": "a", "received": NOON, "finished": NOON + 1, "prompt_tokens": 1, "completion_tokens": 2})
    (tmp_path / "r.jsonl").write_text(f"{one}\n{deep}\n")
    with pytest.warns(DDTreeWarning, match=r"1 records could not be read"):
        assert read_requests(tmp_path / "r.jsonl")["request_id"].tolist() == ["a"]


@pytest.mark.parametrize("text", ["", "\n\n", "[]", '{"requests": []}', "request_id,sent\n"])
def test_a_file_without_requests_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "nothing.json").write_text(text)
    with pytest.warns(DDTreeWarning, match=r"no request in 1 of 1 request files \(nothing\.json\)"):
        assert len(read_requests(tmp_path / "nothing.json")) == 0


def test_guidellm_document(tmp_path: Path) -> None:
    timings = {
        "request_start": NOON + 0.5,
        "first_token_iteration": NOON + 0.75,
        "last_token_iteration": NOON + 2.0,
        "request_end": NOON + 2.25,
    }
    one = {
        "request_id": "g1",
        "info": {"timings": timings},
        "input_metrics": {"total_tokens": 64},
        "output_metrics": {"total_tokens": 32},
        "output": "x",
    }
    old = {
        "request_id": "g2",
        "start_time": NOON + 3.0,
        "first_token_time": NOON + 3.5,
        "end_time": NOON + 4.0,
        "prompt_tokens": 7,
        "output_tokens": 9,
    }
    document = {"benchmarks": [{"requests": {"successful": [one, old], "errored": [], "incomplete": []}}]}
    (tmp_path / "guidellm.json").write_text(json.dumps(document, indent=1))
    requests = read_requests(tmp_path / "guidellm.json")
    assert requests["request_id"].tolist() == ["g1", "g2"]
    assert requests["prompt_tokens"].tolist() == [64, 7]
    assert [at(requests, c) for c in ("received", "first_token", "finished")] == [NOON + 0.5, NOON + 0.75, NOON + 2.25]


def test_aiperf_records(tmp_path: Path) -> None:
    good = {
        "metadata": {
            "x_request_id": "x1",
            "request_start_ns": NOON * 10**9 + 123_456_789,
            "request_end_ns": (NOON + 2) * 10**9,
            "benchmark_phase": "profiling",
        },
        "metrics": {
            "input_sequence_length": {"value": 550, "unit": "tokens"},
            "output_sequence_length": {"value": 9, "unit": "tokens"},
            "time_to_first_token": {"value": 250.0, "unit": "ms"},
            "inter_chunk_latency": {"value": [4.8, 5.3], "unit": "ms"},
        },
        "error": None,
    }
    bad = {
        "metadata": {"x_request_id": "x2", "request_start_ns": NOON * 10**9, "request_end_ns": NOON * 10**9 + 5000, "was_cancelled": True},
        "metrics": {"error_isl": {"value": 550, "unit": "tokens"}},
        "error": {"code": 499},
    }
    with pytest.warns(DDTreeWarning, match="no prompt length"):
        requests = read_requests(write(tmp_path / "profile_export.jsonl", good, bad))
    assert requests["received"].iloc[0] == pd.Timestamp("2026-01-01 12:00:00.123456+00:00")
    assert (requests["first_token"].iloc[0] - requests["received"].iloc[0]).total_seconds() == 0.25
    assert (requests["prompt_tokens"].iloc[0], requests["completion_tokens"].iloc[0]) == (550, 9)
    assert requests["finish_reason"].fillna("").tolist() == ["", "abort"]


def test_json_request_log_of_the_server(tmp_path: Path) -> None:
    run = simulate(seed=2, requests=3, log_requests="json")
    path = tmp_path / "host_0.log"
    path.write_text("".join(e.message + "\n" for e in run.lines if "request." in e.message))
    requests = read_requests(path)
    assert requests.attrs["requests"]["not_requests"] == 5  # 3 clients, the warm-up and the health check were received
    assert set(run.requests["request_id"]) < set(requests["request_id"])


# -- what is never kept, and bad input ---------------------------------------------------------------------------------------------


def test_no_text_no_ids_no_keys_are_kept(tmp_path: Path) -> None:
    secrets = {
        "prompt": "SECRET-1",
        "text": "SECRET-2",
        "output_ids": [11, 22],
        "headers": {"authorization": "Bearer SECRET-3"},
        "api_key": "SECRET-4",
        "request_parameters": json.dumps({"text": "SECRET-5", "rid": "a"}),
        "finish_reason": {"type": "stop", "matched": "SECRET-6"},
    }
    path = write(
        tmp_path / "r.jsonl", {"id": "a", "received": NOON, "finished": NOON + 1, "prompt_tokens": 1, "completion_tokens": 2, **secrets}
    )
    requests = read_requests(path)
    assert "SECRET" not in requests.to_csv() + str(requests.attrs)
    assert requests["finish_reason"].iloc[0] == "stop"


def test_cut_line_duplicates_and_impossible_times_are_counted_not_dropped(tmp_path: Path) -> None:
    one = {"id": "a", "received": NOON, "finished": NOON + 1, "prompt_tokens": 1, "completion_tokens": 2}
    lines = [
        one,
        one,
        {**one, "id": "b", "finished": NOON - 5},
        {**one, "id": "c", "finished": NOON + 30 * 86_400},
        {**one, "id": "d", "finished": None},
        {**one, "id": "e", "prompt_tokens": None},
    ]
    path = write(tmp_path / "r.jsonl", *lines)
    with path.open("a") as file:
        file.write(json.dumps(one)[:30])
    with pytest.warns(DDTreeWarning) as told:
        requests = read_requests(path)
    texts = " | ".join(str(w.message) for w in told)
    assert "1 records could not be read and are left out, the first at r.jsonl:7" in texts
    assert "1 requests are told twice" in texts
    assert requests.attrs["requests"]["flags"] == {
        "duplicate": 1,
        "end_before_start": 1,
        "absurd_duration": 1,
        "no_end": 1,
        "no_prompt_length": 1,
    }
    assert len(requests) == 6
    assert len({str(w.message) for w in told}) == len(told)  # once a cause


def test_health_checks_are_recognised(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.jsonl", {"id": "HEALTH_CHECK_1", "received": NOON, "finished": NOON + 1, "prompt_tokens": 1, "completion_tokens": 1}
    )
    assert read_requests(path)["kind"].iloc[0] == "health_check"


def test_missing_files() -> None:
    with pytest.raises(SourceNotFound, match="no request file"):
        read_requests("nowhere/requests.jsonl")
    with pytest.raises(SourceNotFound, match="no file matches"):
        read_requests("nowhere/*.jsonl")


def test_every_accepted_name_is_found_and_none_twice() -> None:
    names = [n for some in request_fields.ACCEPTED.values() for n in some]
    assert len(names) == len(set(names))
    assert all(request_fields.find(n) is not None for n in names)
    documented = read_requests.__doc__ or ""
    assert all(column in documented for column in request_fields.ACCEPTED if column not in ("ttft", "e2e"))


# -- the log's own lines -----------------------------------------------------------------------------------------------------------


def lines(*some: RequestLine) -> pd.DataFrame:
    return tables.to_pandas(tables.from_records(some, RequestLine))


def when(s: float) -> datetime:
    return datetime.fromtimestamp(NOON + s, timezone.utc)


def test_received_and_finished_are_folded_by_id() -> None:
    made = requests_from_log(
        lines(
            RequestLine(time=when(0), event="received", request_id="a", pid=1),
            RequestLine(time=when(1), event="received", request_id="b", pid=1),
            RequestLine(time=when(3), event="finished", request_id="b", prompt_tokens=5, completion_tokens=6, e2e_ms=2000.0, pid=1),
            RequestLine(time=when(4), event="finished", request_id="a", prompt_tokens=7, completion_tokens=8, e2e_ms=4000.0, pid=1),
            RequestLine(time=when(5), event="received", request_id="a", pid=1),
        )
    )
    assert made["request_id"].tolist() == ["a", "b", "a"]
    assert [at(made, "received", i) - NOON for i in range(3)] == [0, 1, 5]
    assert made["flags"].iloc[2] is not pd.NA
    assert "no_end" in made["flags"].iloc[2]
    assert "same_id" in made["flags"].iloc[0]
    assert (made["source"] == "log").all()


def test_the_rank_that_a_line_states_is_kept() -> None:
    made = requests_from_log(
        lines(
            RequestLine(time=when(0), event="received", request_id="a", pid=1),
            RequestLine(time=when(3), event="finished", request_id="a", dp_rank=1, prompt_tokens=5, completion_tokens=6, pid=1),
        )
    )
    assert made["dp_rank"].tolist() == [1]


def test_lines_without_an_id_are_named_by_their_place() -> None:
    made = requests_from_log(lines(RequestLine(time=when(3), event="finished", where="run.log:17", prompt_tokens=5, completion_tokens=6)))
    assert made["request_id"].tolist() == ["run.log#17"]
    assert "no_id" in made["flags"].iloc[0]


def test_stated_instants_are_moved_onto_stamps_without_a_zone() -> None:
    # a server in +02:00 prints 14:00:03 and states 12:00:02.5 UTC: on the log's clock, 14:00:02.5
    line = RequestLine(
        time=when(7203),
        time_from="stamp-local",
        event="finished",
        request_id="a",
        received=when(0.5),
        first_token=when(1),
        finished=when(2.5),
    )
    made = requests_from_log(lines(line))
    assert [at(made, c) - NOON for c in ("received", "first_token", "finished")] == [7200.5, 7201, 7202.5]
    assert made.attrs["requests"]["moved_onto_stamps"] == 1
    same = requests_from_log(lines(dataclasses.replace(line, time_from="stamp", time=when(3))))
    assert at(same, "finished") - NOON == 2.5


def test_finish_alone_gives_the_start_from_the_latency() -> None:
    made = requests_from_log(
        lines(RequestLine(time=when(4), event="finished", request_id="a", prompt_tokens=7, completion_tokens=8, e2e_ms=1500.0))
    )
    assert at(made, "received") == NOON + 2.5


def test_access_lines_give_ends_only_where_nothing_else_speaks() -> None:
    access = [
        RequestLine(time=when(i), event="access", status=200, path=p)
        for i, p in enumerate(("POST /generate", "GET /health", "POST /v1/chat/completions"))
    ]
    made = requests_from_log(lines(*access))
    assert len(made) == 2
    assert made["received"].isna().all()
    assert all("access_line" in f for f in made["flags"])
    both = requests_from_log(lines(*access, RequestLine(time=when(9), event="received", request_id="a")))
    assert both["request_id"].tolist() == ["a"]
    assert both.attrs["requests"]["access_lines"] == 3


def test_absurd_durations_of_old_releases_are_recognised() -> None:
    line = RequestLine(
        time=when(4), event="stats", request_id="a", prompt_tokens=38, completion_tokens=484, forward_ms=1759654443392.38, queue_ms=0.0
    )
    with pytest.warns(DDTreeWarning, match="1 requests of the log state an impossible duration"):
        made = requests_from_log(lines(line))
    assert "absurd_duration" in made["flags"].iloc[0]
    assert pd.isna(made["received"].iloc[0])


def test_no_lines_at_all() -> None:
    assert len(requests_from_log(lines())) == 0


def test_a_clients_file_is_complemented_from_the_log() -> None:
    run = simulate(seed=3, requests=5)
    whole = run.requests
    client = whole[whole["kind"] == "client"].assign(verify_steps=pd.NA, accepted_drafts=pd.NA, source="client")
    made = complement_requests(client, whole)
    assert made.attrs["complement"] == {"filled": 5, "added": 1}
    assert sorted(made["request_id"]) == sorted(whole["request_id"])
    assert made["verify_steps"].notna().all()


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read_requests(FIXTURES / "real" / "C" / "client.csv")
    assert capsys.readouterr() == ("", "")
