"""The DDTree metrics line in all its spellings, and what breaks it."""

from __future__ import annotations

import datetime as dt

import pytest

from ddtree_metrics.dialects import DIALECTS
from ddtree_metrics.dialects.base import REASONS
from ddtree_metrics.dialects.compiled import is_compiled
from ddtree_metrics.dialects.engine import Parser
from ddtree_metrics.errors import BrokenLine
from tests.dialect_lines import SAMPLES, batch, one, reason, rows

HEAD = "[2026-02-01 10:00:00 TP0] "
USUAL = (
    HEAD + "DDTREE metrics: bs=2 budget=16 actual_nodes=[17, 15] accepted_drafts=[4, 0] commit_lens=[5, 1] "
    "avg_accepted_drafts=2.00 avg_commit_len=3.00"
)
# What the line says, by reading it.
MEANT = {
    "batch_size": 2,
    "budget": 16,
    "nodes": [17, 15],
    "accepted_drafts": [4, 0],
    "commit_lens": [5, 1],
    "avg_accepted_drafts": 2.0,
    "avg_commit_len": 3.0,
    "steps": 1,
}


def measures(row: dict[str, object]) -> dict[str, object]:
    return {k: row[k] for k in MEANT if k in row}


def test_the_usual_line_gives_its_numbers_and_its_origin() -> None:
    row = one("steps", USUAL)
    assert measures(row) == MEANT
    assert row["tp_rank"] == 0
    assert row["dialect"] == "sglang"
    assert row["time"] == dt.datetime(2026, 2, 1, 10, tzinfo=dt.timezone.utc)
    assert row["time_from"] == "stamp-local"
    assert row["time_resolution_us"] == 1_000_000
    assert "extra" not in row


@pytest.mark.parametrize(
    "body",
    [
        "DDTREE metrics: avg_commit_len=3.00 commit_lens=[5, 1] bs=2 accepted_drafts=[4, 0] budget=16 avg_accepted_drafts=2.00 "
        "actual_nodes=[17, 15]",
        "DDTREE metrics: bs: 2, budget: 16, actual_nodes: [17, 15], accepted_drafts: [4, 0], commit_lens: [5, 1], "
        "avg_accepted_drafts: 2.00, avg_commit_len: 3.00",
        "ddtree debug: bs=2, budget=16, actual_node=[17,15], accepted_draft=(4, 0), commit_len=[5,1], avg_accepted_draft=2.0, "
        "avg_commit_lens=3.0",
        "DDTree Metrics bs=2 budget=16 actual_nodes=[np.int64(17), np.int64(15)] accepted_drafts=tensor([4, 0], device='cuda:0') "
        "commit_lens=array([5, 1]) avg_accepted_drafts=np.float64(2.0) avg_commit_len=3",
        "tree verify: bs=2 budget=16 actual_nodes=[17, 15, ] accepted_drafts=[4 0] commit_lens=(5, 1,) avg_accepted_drafts=2e0 "
        "avg_commit_len=3.000000",
        "DDTREE metrics: {'bs': 2, 'budget': 16, 'actual_nodes': [17, 15], 'accepted_drafts': [4, 0], 'commit_lens': [5, 1], "
        "'avg_accepted_drafts': 2.0, 'avg_commit_len': 3.0}",
        "bs=2 budget=16 actual_nodes=[17, 15] accepted_drafts=[4, 0] commit_lens=[5, 1] avg_accepted_drafts=2.00 avg_commit_len=3.00",
        "DDTREE metrics: bs = 2 | budget = 16 | actual_nodes = [17, 15] | accepted_drafts = [4, 0] | commit_lens = [5, 1] | "
        "avg_accepted_drafts = 2.00 | avg_commit_len = 3.00",
    ],
)
def test_any_order_sign_separator_and_spelling_gives_the_same_row(body: str) -> None:
    assert measures(one("steps", HEAD + body)) == MEANT


def test_a_scalar_is_a_batch_of_one() -> None:
    row = one("steps", HEAD + "DDTREE metrics: bs=1 budget=16 actual_nodes=17 accepted_drafts=4 commit_lens=5")
    assert (row["nodes"], row["accepted_drafts"], row["commit_lens"]) == ([17], [4], [5])


def test_an_empty_list_is_empty_and_not_null() -> None:
    row = one("steps", HEAD + "DDTREE metrics: bs=0 actual_nodes=[] commit_lens=[]")
    assert (row["batch_size"], row["nodes"], row["commit_lens"]) == (0, [], [])
    assert "accepted_drafts" not in row


def test_without_bs_the_lists_say_the_batch_size_and_averages_do_not() -> None:
    assert one("steps", HEAD + "DDTREE metrics: commit_lens=[5, 1, 2]")["batch_size"] == 3
    assert "batch_size" not in one("steps", HEAD + "DDTREE metrics: avg_accepted_drafts=4.00 avg_commit_len=5.00")


def test_unknown_keys_are_kept_as_text_also_beyond_ascii() -> None:
    row = one("steps", HEAD + "DDTREE metrics: bs=1 draft_ms=1.250 commit_len=5 path=[1, 3, 7] größe=7 note='a b=1' mode=träge")
    assert row["commit_lens"] == [5]
    assert row["extra"]["draft_ms"] == "1.250"
    assert row["extra"]["path"] == "[1, 3, 7]"
    assert row["extra"]["note"] == "<redacted>"  # a text, whatever it says
    assert row["extra"]["mode"] == "träge"


def test_keys_inside_quotes_do_not_count() -> None:
    row = one("steps", HEAD + 'DDTREE metrics: note="commit_lens=[9] bs=7" bs=1 commit_lens=[5]')
    assert (row["batch_size"], row["commit_lens"]) == (1, [5])


def test_step_time_request_ids_and_contexts_are_taken_where_the_line_says_them() -> None:
    row = one("steps", HEAD + "DDTREE metrics: bs=2 commit_lens=[5, 1] step_ms=41.25 rids=['a', 'b'] seq_lens=[100, 2000] steps=4")
    assert (row["step_ms"], row["request_ids"], row["context_lens"], row["steps"]) == (41.25, ["a", "b"], [100, 2000], 4)


def test_request_ids_are_read_by_the_compiled_reader_too() -> None:
    def line(n: int) -> str:
        ids = [f"r{n}-{k}" for k in range(n % 4 + 1)]
        return f"{HEAD}DDTREE metrics: bs={len(ids)} rids={ids} commit_lens={[k + 1 for k in range(len(ids))]}"

    odd = HEAD + "DDTREE metrics: bs=2 rids=['a b', \"c'd\"] commit_lens=[1, 2]"
    parser = Parser(DIALECTS, on_error="skip")
    for _ in range(2):
        before = parser.misses["sglang"]
        made = rows("steps", *[line(n) for n in range(400)], odd, parser=parser)
        assert [r["request_ids"] for r in made[:-1]] == [[f"r{n}-{k}" for k in range(n % 4 + 1)] for n in range(400)]
        assert made[-1]["request_ids"] == ["a b", "c'd"]
    assert not is_compiled() or parser.misses["sglang"] - before == 1


def test_a_unit_behind_milliseconds_is_taken_off() -> None:
    assert one("steps", HEAD + "DDTREE metrics: bs=1 commit_lens=[5] step_ms=41.25ms")["step_ms"] == 41.25


def test_a_scalar_beside_lists_that_is_no_measure_goes_to_extra() -> None:
    row = one("steps", HEAD + "DDTREE metrics: bs=2 commit_lens=[5, 1] seq_len=4096")
    assert row["extra"] == {"seq_len": "4096"}
    assert "context_lens" not in row
    assert reason(HEAD + "DDTREE metrics: bs=2 commit_lens=[5, 1] seq_lens=[4096]") == "list_length"


def test_a_slice_of_a_batch_is_read_like_a_batch() -> None:
    whole = batch(["x" * 50, USUAL, "[noise]", USUAL.replace("bs=2", "bs=3"), USUAL], where=list("abcde"))
    parser = Parser(DIALECTS, on_error="skip")
    made = parser.feed(whole.slice(1, 4)).tables["steps"]
    assert made.column("where").to_pylist() == ["b", "e"]
    assert parser.broken.examples[("sglang", "steps", "list_length")][0][0] == "d"


def test_a_null_message_is_an_empty_line() -> None:
    made = Parser(DIALECTS).feed(batch([None, USUAL, None]))  # type: ignore[list-item]
    assert made.line["steps"].tolist() == [1]


def test_a_commit_smaller_than_accepted_plus_one_is_kept() -> None:
    # The last step of a request may commit less than it accepted; that is no error.
    assert one("steps", HEAD + "DDTREE metrics: bs=1 accepted_drafts=[4] commit_lens=[2]")["commit_lens"] == [2]


def test_o2_commit_is_never_computed_from_accepted() -> None:
    a = (
        HEAD + "DDTREE metrics: bs=1 budget=16 actual_nodes=[17] accepted_drafts=[4] commit_lens=[5] "
        "avg_accepted_drafts=4.00 avg_commit_len=5.00"
    )
    b = (
        HEAD + "DDTREE metrics: bs=1 budget=16 actual_nodes=[17] accepted_drafts=[4] commit_lens=[4] "
        "avg_accepted_drafts=4.00 avg_commit_len=4.00"
    )
    assert [r["commit_lens"] for r in rows("steps", a, b)] == [[5], [4]]
    assert "commit_lens" not in one("steps", HEAD + "DDTREE metrics: bs=1 accepted_drafts=[4]")
    assert DIALECTS[0].counts.commit_includes_bonus is None


def test_o10_every_rank_prefix_keeps_its_ranks() -> None:
    body = "DDTREE metrics: bs=1 budget=8 actual_nodes=[9] accepted_drafts=[3] commit_lens=[4] avg_accepted_drafts=3.00 avg_commit_len=4.00"
    lines = [
        body,
        *(f"[2026-02-01 10:00:00 {ranks}] {body}" for ranks in ("TP0", "DP1 TP4", "DP1 PP0 TP4 EP2", "DP0 ATTN_CP1 MOE_DP0 TP3")),
    ]
    made = [(r.get("dp_rank"), r.get("pp_rank"), r.get("tp_rank"), r.get("ep_rank")) for r in rows("steps", *lines)]
    assert made == [(None,) * 4, (None, None, 0, None), (1, None, 4, None), (1, 0, 4, 2), (0, None, 3, None)]
    assert rows("steps", lines[4])[0]["extra"] == {"ATTN_CP": "1", "MOE_DP": "0"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("bs=1 commit_lens=[5] avg_accepted_drafts=4.00 avg_com...", "cut"),
        ("bs=1 commit_lens=[5] avg_accepted_drafts=4.00 avg_com", "cut"),
        ("bs=1 commit_lens=[5] avg_accepted_drafts=4.00 avg_commit_len=", "cut"),
        ("bs=1 commit_lens=[5] avg_accepted_drafts=4.", "cut"),
        ("bs=2 commit_lens=[5, 1", "cut"),
        ("bs=1 commit_lens=[5] …", "cut"),
        ("", "cut"),
        ("bs=1 commit_lens=[x]", "bad_number"),
        ("bs=1 commit_lens=[nan]", "bad_number"),
        ("bs=1 commit_lens=[5] avg_commit_len=nan", "bad_number"),
        ("bs=1 commit_lens=[5] avg_commit_len=inf", "bad_number"),
        ("bs=1 commit_lens=[5] avg_commit_len=-inf bs=1", "bad_number"),
        ("bs=1 commit_lens=[1.5]", "bad_number"),
        ("bs=1 commit_lens=[5] avg_commit_len=1e400", "out_of_range"),
        ("bs=1 commit_lens=[99999999999]", "out_of_range"),
        ("bs=12345678901234567890 commit_lens=[5]", "out_of_range"),
        ("bs=1 commit_lens=[-5]", "negative"),
        ("bs=-1 commit_lens=[5]", "negative"),
        ("bs=1 commit_lens=[5] avg_commit_len=-1.0", "negative"),
        ("bs=2 commit_lens=[5, 1] accepted_drafts=[4]", "list_length"),
        ("bs=3 commit_lens=[5, 1]", "list_length"),
        ("bs=2 commit_lens=5", "list_length"),
        ("bs=1 commit_lens=[]", "list_length"),
        ("bs=1 budget=16", "missing_fields"),
        ("enabled", "missing_fields"),
    ],
)
def test_a_line_with_the_marker_that_cannot_be_read_is_broken_with_its_reason(body: str, why: str) -> None:
    assert why in REASONS
    assert reason(f"{HEAD}DDTREE metrics: {body}") == why


def test_the_only_known_trace_of_the_flag_is_cut_and_says_so() -> None:
    text = (SAMPLES / "speculative" / "02-seed-ddtree-fragment.log").read_text().strip()
    assert reason(text) == "cut"


def test_one_unconvertible_value_does_not_spoil_the_batch() -> None:
    bad = USUAL.replace("[5, 1]", "[5, 99999999999]")
    parser = Parser(DIALECTS, on_error="skip")
    for _ in range(2):
        assert len(rows("steps", *[USUAL] * 50, bad, *[USUAL] * 50, parser=parser)) == 100
    assert parser.broken.counts == {("sglang", "steps", "out_of_range"): 2}


@pytest.mark.parametrize(
    "line",
    [
        'client said: "please explain DDTREE metrics: bs=" 4711',
        f'client said: "{USUAL}"',
        f"{HEAD}Received prompt: '{USUAL}'",
        f"ValueError: could not parse: {USUAL}",
        f"text={USUAL}",
        f"note: {HEAD}DDTREE metrics: bs=1 commit_lens=[5]",
        "the latest lines said avg_accepted_drafts=4.00 and avg_commit_len=4.00 so it was fine",
        HEAD + "DDTREE config: budget=16 topk=4 draft_model=/models/draft-1",
        HEAD + "what are DDTREE metrics: bs=1 commit_lens=[5]?",
        "RuntimeError: avg_commit_len=4 accepted_drafts=3",
        "DDTREE",
        '{"avg_commit_len": 4.0, "accepted_drafts": [3]}',
    ],
)
def test_a_line_that_merely_quotes_the_marker_or_the_keys_is_nothing(line: str) -> None:
    assert reason(line) is None


def test_a_request_line_that_quotes_a_step_is_only_a_request_line() -> None:
    line = f"[2026-02-01 10:00:00] Receive: obj=GenerateReqInput(rid='a', text='{USUAL}')"
    assert one("request_lines", line)["request_id"] == "a"


@pytest.mark.parametrize(
    "before",
    [
        "(SGLangEngine pid=41820) ",
        "(SGLangEngine pid=111711, ip=192.0.2.30) ",
        "Capturing batches: 100%|###| 4/4 [00:01<00:00, 4.85it/s]",
        "Loading safetensors checkpoint shards",
        "sglang-1  | ",
    ],
)
def test_text_before_the_head_is_opaque(before: str) -> None:
    assert measures(one("steps", before + USUAL)) == MEANT


def test_a_ray_line_that_stands_for_several_keeps_that() -> None:
    row = one("steps", "(SGLangEngine pid=1) " + USUAL + " [repeated 7x across cluster]")
    assert measures(row) == MEANT
    assert row["extra"] == {"repeated": "7"}


def test_the_first_broken_line_is_raised_if_asked_for() -> None:
    parser = Parser(DIALECTS, on_error="raise")
    with pytest.raises(BrokenLine, match=r"run\.log:2: broken line \(negative\)") as caught:
        parser.feed(batch([USUAL, USUAL.replace("[5", "[-5")], where=["run.log:1", "run.log:2"]))
    assert (caught.value.where, caught.value.reason) == ("run.log:2", "negative")


def test_broken_lines_keep_five_examples_with_their_place() -> None:
    parser = Parser(DIALECTS, on_error="skip")
    parser.feed(
        batch(
            [HEAD + "DDTREE metrics: bs=1 commit_lens=[-1] " + " ".join(f"x{n}={n}" for n in range(99))] * 9,
            where=[f"run.log:{i}" for i in range(9)],
        )
    )
    key = ("sglang", "steps", "negative")
    assert parser.broken.counts == {key: 9}
    assert [w for w, _ in parser.broken.examples[key]] == [f"run.log:{i}" for i in range(5)]
    assert all(len(text) == 200 for _, text in parser.broken.examples[key])


def test_rows_come_in_the_order_of_the_lines_whatever_tier_read_them() -> None:
    odd = HEAD + "DDTREE metrics: commit_lens=[{n}] bs=1 x{n}=1"
    lines = [USUAL if n % 3 else odd.format(n=n) for n in range(300)]
    parser = Parser(DIALECTS, on_error="skip")
    for start in (0, 300):
        parsed = parser.feed(batch(lines, where=[f"f:{n}" for n in range(300)]))
        table = parsed.tables["steps"]
        assert table.column("where").to_pylist() == [f"f:{n}" for n in range(300)]
        assert parsed.line["steps"].tolist() == list(range(start, start + 300))
        assert [c for c, n in zip(table.column("commit_lens").to_pylist(), range(300), strict=True) if n % 3 == 0] == [
            [n] for n in range(0, 300, 3)
        ]


def test_lines_that_leave_the_fast_tier_are_counted_and_taught() -> None:
    parser = Parser(DIALECTS, on_error="skip")
    other = HEAD + "my tree: commit_lens=[3] bs=1 spin=2"
    rows("steps", *[other] * 20, parser=parser)
    before = parser.misses["sglang"]
    assert before > 0
    made = rows("steps", *[other] * 500, parser=parser)
    assert len(made) == 500
    assert made[-1]["extra"] == {"spin": "2"}
    assert not is_compiled() or parser.misses["sglang"] == before


def test_a_table_has_the_schema_of_its_record_whatever_was_in_it() -> None:
    from ddtree_metrics.records import TABLES
    from ddtree_metrics.schema import arrow_schema

    parsed = Parser(DIALECTS).feed(batch([USUAL, "Suppressed 3 messages from a.service"]))
    assert {t: b.schema.equals(arrow_schema(TABLES[t]), check_metadata=True) for t, b in parsed.tables.items()} == {
        "steps": True,
        "events": True,
    }


def test_an_empty_batch_and_empty_lines_give_nothing() -> None:
    parser = Parser(DIALECTS)
    assert parser.feed(batch([])).tables == {}
    assert parser.feed(batch(["", " ", "[", "]", "[]", "[] "])).tables == {}
    assert parser.lines == 6


NUMBERS = [
    "1,024",
    "1,5",
    "5,25",
    "12,345",
    "1.024,5",
    "1;024",
    "1|5",
    "1 024",
    "1'024",
    "1_024",
    "1024x",
    "0x10",
    "1,024,",
    "1, 2",
    "5.00.1",
]


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize("key", ["bs", "budget", "ctx_len", "commit_len", "avg_commit_len", "step_ms"])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_comma_in_a_number_is_broken_not_half_read(key: str, value: str, place: str) -> None:
    others = [
        p
        for p in ("bs=1", "accepted_drafts=[4]", "commit_lens=[5]", "avg_accepted_drafts=4.00")
        if not p.startswith((key, "commit_lens"[: len(key)]))
    ]
    at = {"first": 0, "middle": 1, "last": len(others)}[place]
    pairs = [*others[:at], f"{key}={value}", *others[at:]]
    for sep in (" ", ", "):
        line = f"{HEAD}DDTREE metrics: {sep.join(pairs)}"
        whole = f"{key}=1.00" if key == "avg_commit_len" else f"{key}=1"
        usual = f"{HEAD}DDTREE metrics: {sep.join([*others[:at], whole, *others[at:]])}"
        for fast in (True, False):
            # The compiled reader has met the same keys with whole numbers before.
            parser = Parser(DIALECTS, on_error="skip", fast=fast)
            assert len(rows("steps", *[usual] * 80, parser=parser)) == 80
            assert rows("steps", *[line] * 3, parser=parser) == []
            assert {r for _, _, r in parser.broken.counts} <= {"bad_number", "cut"}
            assert parser.broken.total == 3


def test_an_unknown_key_keeps_its_whole_value_with_commas() -> None:
    assert one("steps", f"{HEAD}DDTREE metrics: bs=1 kv_pages=12,345 commit_lens=[5]")["extra"] == {"kv_pages": "12,345"}


def test_ids_without_brackets_and_with_commas_are_no_single_id() -> None:
    assert reason(f"{HEAD}DDTREE metrics: bs=2 rids=a1,b2 commit_lens=[5, 4]") == "bad_value"


@pytest.mark.parametrize("bs", [65_537, 2_147_483_647])
def test_a_batch_size_that_no_server_has_is_out_of_range_in_every_tier(bs: int) -> None:
    line, usual = (f"{HEAD}DDTREE metrics: bs={n} avg_commit_len=5.00" for n in (bs, 65_536))
    parser = Parser(DIALECTS, on_error="skip")
    assert len(rows("steps", *[usual] * 80, parser=parser)) == 80
    assert rows("steps", *[line] * 80, parser=parser) == []
    assert parser.broken.counts == {("sglang", "steps", "out_of_range"): 80}
    assert reason(line) == "out_of_range"


def test_a_measure_of_300_digits_is_out_of_range() -> None:
    assert reason(f"{HEAD}DDTREE metrics: bs=1 commit_lens=[5] avg_commit_len=1e300") == "out_of_range"
    assert reason(f"{HEAD}Decode batch, #running-req: 1, gen throughput (token/s): 1e300, #queue-req: 0") == "out_of_range"


CUT = (
    "[2026-02-01 10:00:00 TP0] DDTREE metrics: bs=2 budget=16 actual_nodes=[17, 17] accepted_drafts=[4, 3] commit_lens=[5, 4] "
    "avg_accepted_drafts=3.50 avg_commit_len=4.50"
)


@pytest.mark.parametrize(
    "line",
    [CUT, CUT.replace("] ", "], ").replace("], DD", "] DD").replace("bs=2 budget=16 ", "bs=2, budget=16, ").replace("3.50 ", "3.50, ")],
)
def test_a_line_cut_at_its_head_is_read_whole_or_counted_as_cut(line: str) -> None:
    begins = [line.index(p) for p in ("bs=", "budget", "actual", "accepted", "commit_lens", "avg_acc", "avg_com")]
    for at in range(1, line.index("avg_com") - 2):
        parser = Parser(DIALECTS, on_error="skip")
        made = rows("steps", line[at:], parser=parser)
        whole = at <= begins[0] or at in begins or at + 1 in begins or at + 2 in begins
        assert len(made) + parser.broken.total == 1, line[at:]
        # Either the line lost whole pairs only, and every value left is right, or it is broken.
        assert not made or whole or line[at] in "[,", line[at:]
        for row in made:
            want = {"budget": 16, "nodes": [17, 17], "accepted_drafts": [4, 3], "commit_lens": [5, 4], "avg_commit_len": 4.5}
            assert all(row[k] == v for k, v in want.items() if k in row)
