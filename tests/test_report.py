"""The report: one page, checked in a real browser, on small, large and empty logs and on logs that try to break out of it."""

from __future__ import annotations

import dataclasses
import io
import re
import warnings
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import ddtree_metrics as ddt
from ddtree_metrics import tables
from ddtree_metrics.coverage import BrokenKind, Coverage
from ddtree_metrics.diagnosis.answer import answer
from ddtree_metrics.errors import DDTreeWarning
from ddtree_metrics.log import Log
from ddtree_metrics.metrics.doubt import Interval
from ddtree_metrics.records import TABLES
from ddtree_metrics.report import render_report
from ddtree_metrics.report.account import cut
from ddtree_metrics.report.facts import gather, sweep_frame
from ddtree_metrics.report.markup import Html, between, count, escape, figure, percent, ratio, tag
from tests import browser
from tests.captures import FIXTURES, journal_export

CAPTURE = journal_export("A")
EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;</style></svg>]]>"
SWEEP = pd.DataFrame(
    {
        "prompt_tok": [82, 1407, 4257],
        "tok_per_s": [41.0, 26.0, 14.0],
        "tok_per_s_low": [40.0, 25.0, None],
        "tok_per_s_high": [42.0, 27.0, None],
    }
)
EMPTY = Log({})


def large(requests: int = 60, per_request: int = 200) -> Log:
    """Make a log of 12,000 steps, 40 server starts and 5,000 events; 30 ms and 20 ms more for each 1,000 tokens."""
    rng = np.random.default_rng(5)
    n = requests * per_request
    request = np.repeat(np.arange(requests), per_request)
    tokens = rng.integers(1, 8, n)
    cum = np.concatenate([np.cumsum(part) - part for part in np.split(tokens, requests)])
    prompt = rng.integers(50, 6000, requests)[request]
    step_us = ((30_000 + 20 * (prompt + cum)) * rng.lognormal(0, 0.05, n)).astype(np.int64)
    at = 1_767_225_600_000_000 + np.cumsum(step_us)
    shared = {
        "time_us": at,
        "time": pd.to_datetime(at, unit="us", utc=True),
        "stream": "s",
        "step_us": step_us,
        "batch_size": 1,
        "budget": 16,
    }
    steps = pd.DataFrame(
        {**shared, "tokens": tokens, "commit_lens": [[t] for t in tokens], "accepted_drafts": [[t - 1] for t in tokens], "steps": 1}
    )
    rows = pd.DataFrame(
        {**shared, "request_id": [f"r{i}" for i in request], "step_index": np.tile(np.arange(per_request), requests), "slot": 0,
         "prompt_len": prompt, "generated_len": cum + 1, "context_len": prompt + cum, "batch_context": prompt + cum,
         "tokens": tokens.astype(float), "drafts": tokens - 1.0,
         "draft_nodes": 16.0, "weight": 1.0, "matched": "id", "where": [f"run.log:{i}" for i in range(n)]}
    )  # fmt: skip
    starts = pd.DataFrame(
        {"time": shared["time"][:: n // 40][:40], "algorithm": "DDTREE", "args": [{f"flag_{i}": "v" * 500 for i in range(400)}] * 40}
    )
    events = pd.DataFrame({"time": shared["time"][:5000], "kind": "retraction", "count": 1, "detail": "d" * 5000})
    made = {"steps": steps, "request_steps": rows, "servers": starts, "events": events}
    coverage = Coverage(source="x" * 5000, lines=n, units={f"unit-{i}.service": i for i in range(500)}, parsed={"steps": n})
    return Log({name: tables.from_pandas(frame, TABLES[name]) for name, frame in made.items()}, coverage)


def evil() -> tuple[Log, Any]:
    """Make a log and a diagnosis in which every text is hostile."""
    log = ddt.read_text(CAPTURE)
    servers = pd.DataFrame({"time": log.servers["time"], "algorithm": EVIL, "args": [{EVIL: EVIL}] * len(log.servers)})
    events = pd.DataFrame({"time": log.servers["time"], "kind": EVIL, "detail": EVIL, "count": 1})
    bad = BrokenKind(EVIL, EVIL, EVIL, 3, [(EVIL, EVIL)])
    coverage = Coverage(source=EVIL, lines=9, units={EVIL: 5, "b": 4}, broken=[bad], damaged=[EVIL], notes=[EVIL], suppressed_lines=7)
    steps = log.steps.assign(where=EVIL, unit=EVIL, host=EVIL, stream=EVIL, time_from=EVIL, step_why=EVIL)
    made = {"servers": servers, "events": events, "steps": steps, "request_steps": log.request_steps.assign(request_id=EVIL)}
    hostile = Log({name: tables.from_pandas(frame, TABLES[name]) for name, frame in made.items()}, coverage)
    found = ddt.diagnose(log)
    hypotheses = tuple(
        dataclasses.replace(h, name=EVIL, evidence=EVIL, next=EVIL, status=EVIL, together_with=(EVIL,)) for h in found.hypotheses
    )
    comparisons = []
    for c in found.comparisons:
        flags = tuple(dataclasses.replace(f, flag=EVIL, before=EVIL, after=EVIL, evidence=EVIL, status=EVIL) for f in c.flags)
        comparisons.append(dataclasses.replace(c, sentence=EVIL, before=EVIL, after=EVIL, reason=EVIL, rows={EVIL: 3}, flags=flags))
    return hostile, dataclasses.replace(
        found,
        verdict=EVIL,
        hypotheses=hypotheses,
        comparisons=tuple(comparisons),
        cannot_tell=(EVIL,),
        next=(EVIL,),
        excluded={EVIL: 1},
        used={EVIL: 1},
        basis=EVIL,
    )


@pytest.fixture(scope="module")
def capture() -> Log:
    return ddt.read_text(CAPTURE)


@pytest.fixture(scope="module")
def pages(capture: Log) -> dict[str, str]:
    hostile, found = evil()
    return {
        "small.html": render_report(capture, bench=SWEEP),
        "empty.html": render_report(EMPTY),
        "incident.html": render_report(ddt.read(FIXTURES / "incident" / "simulated-journal.export.zst")),
        "large.html": render_report(large()),
        "evil.html": render_report(hostile, found, title=EVIL, bench=SWEEP.assign(reason=EVIL)),
    }


@pytest.fixture(scope="module")
def folder(pages: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pages")
    for name, page in pages.items():
        (made / name).write_text(page, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def seen(folder: Path, pages: dict[str, str]) -> browser.Seen:
    return browser.look(folder, list(pages), WIDTHS)


WIDTHS = (360, 400, 800, 1200, 1280)
NAMES = ("small.html", "incident.html", "empty.html", "large.html", "evil.html")


# -- in a browser ------------------------------------------------------------------------------------------------------------


def test_the_checker_sees_a_console_error_a_request_and_a_page_that_is_too_wide(tmp_path: Path) -> None:
    """Without this the tests below could pass because nothing is looked at."""
    bad = '<img src="http://example.invalid/x.png"><script>console.error("boom")</script><p style="width:900px">wide'
    (tmp_path / "bad.html").write_text(f"<!doctype html><title>t</title>{bad}")
    found = browser.look(tmp_path, ["bad.html"], (360,))
    assert any("boom" in line for line in found.console)
    assert found.requests == ["http://example.invalid/x.png"]
    assert found.frames["bad.html", 360]["scroll"] > 360
    assert found.frames["bad.html", 360]["beyond"] == ["P."]


def test_the_checker_sees_texts_on_each_other_texts_cut_off_boxes_that_scroll_and_counts_words(tmp_path: Path) -> None:
    text = '<text x="{}" y="20" font-size="10">{}</text>'
    svg = "".join(text.format(x, said) for x, said in ((0, "overlapping"), (20, "words"), (185, "cut off")))
    inside = f'<figure><svg width="200" viewBox="0 0 200 40">{svg}</svg></figure>'
    wide = '<div style="overflow-x: auto; width: 100px"><p style="width: 300px">wide'
    (tmp_path / "bad.html").write_text(
        f"<!doctype html><title>t</title>{inside}<details><summary>four words</summary>folded</details>{wide}"
    )
    frame = browser.look(tmp_path, ["bad.html"], (360,)).frames["bad.html", 360]
    assert ["overlapping", "words"] in frame["overlaps"]
    assert ["cut off", "cut off"] in frame["overlaps"]
    assert frame["scrolled"] == [": wide"]
    assert frame["words"] == 7  # overlapping words cut off, four words, wide; what is folded is not counted


def test_no_page_logs_an_error(seen: browser.Seen) -> None:
    assert seen.console == []


def test_no_page_asks_the_network_for_anything(seen: browser.Seen) -> None:
    assert seen.requests == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_fits_its_screen_and_shows_its_pictures(seen: browser.Seen, name: str, width: int) -> None:
    frame = seen.frames[name, width]
    assert frame["scroll"] <= frame["client"]
    assert frame["beyond"] == []
    assert frame["scrolled"] == []
    assert frame["figures"] >= 7  # six against context and the like, one over time; one more where there is a comparison
    assert frame["height"] > 1500
    assert frame["title"]


@pytest.mark.parametrize("width", WIDTHS)
def test_letters_in_pictures_can_be_read(seen: browser.Seen, width: int) -> None:
    """Sample sizes are the smallest: 7 points of a picture 4.3 inches wide, in the 328 pixels of a phone, are 7.4 pixels."""
    assert seen.frames["small.html", width]["letters"] >= 7


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_no_text_of_a_picture_lies_on_another_or_is_cut_off(seen: browser.Seen, name: str, width: int) -> None:
    assert seen.frames[name, width]["overlaps"] == []


def test_nothing_scrolls_sideways_when_every_fold_is_open(folder: Path) -> None:
    opened = browser.look(folder, ["small.html", "evil.html"], (400, 800, 1200), unfolded=True)
    for (name, width), frame in opened.frames.items():
        assert frame["scroll"] <= frame["client"], (name, width)
        assert frame["scrolled"] == [], (name, width)


@pytest.mark.parametrize(("width", "height"), [(400, 800), (1280, 800)])
def test_the_first_screen_holds_what_was_read_both_speeds_the_cause_and_what_is_not(seen: browser.Seen, width: int, height: int) -> None:
    """The truth of the capture: 34.3 and 18.4 tok/s; the drafter is the cause, the parser of the same restart is not."""
    shown = [one for one in seen.frames["small.html", width]["boxes"] if one["bottom"] <= height and one["right"] <= width]
    said = [" ".join(one["text"].split()) for one in shown if one["text"]]
    assert said[0].startswith("sglang-tiny.service · 2026-11-29 15:17-15:20 UTC")
    assert said[1] == "Slower since the restart at 15:19:17"
    assert said[2].startswith("34.3 → 18.4 tok/s a request")
    assert said[3].startswith("Likely cause: --speculative-draft-model-path a-draft-v1 → a-draft-v2")
    assert said[4].startswith("Not the cause: --reasoning-parser → qwen3")
    assert any(one["name"].startswith("whole") for one in shown), "throughput over time is on the first screen too"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_at_most_1200_words_before_anything_is_unfolded(seen: browser.Seen, name: str) -> None:
    assert 100 < seen.frames[name, 1200]["words"] <= 1200


def test_every_picture_says_in_words_what_it_shows(seen: browser.Seen) -> None:
    told = seen.frames["small.html", 1200]["alt"]
    assert len(set(told)) == len(told) == 8
    assert all(len(one.split()) >= 8 for one in told)
    over_time, shares, step_time, tokens, *_ = told
    assert "restart 15:19:17" in over_time
    assert "34.3 → 18.4 tok/s" in shares
    assert "ms longer per 1,000 tokens" in step_time
    assert "3.72, then 2.11 tokens a step" in tokens


@pytest.mark.parametrize("name", NAMES)
def test_no_page_has_a_script_or_an_id_twice(seen: browser.Seen, name: str) -> None:
    frame = seen.frames[name, 1200]
    assert frame["scripts"] == 0
    assert len(frame["ids"]) == len(set(frame["ids"]))


def test_light_and_dark_follow_the_reader(folder: Path, seen: browser.Seen) -> None:
    dark = browser.look(folder, ["small.html"], (1200,), dark=True).frames["small.html", 1200]
    light = seen.frames["small.html", 1200]
    assert light["background"] == "rgb(255, 255, 255)"
    assert sum(map(int, re.findall(r"\d+", dark["background"]))) < 3 * 40
    assert sum(map(int, re.findall(r"\d+", dark["ink"]))) > 3 * 200


def test_a_page_can_be_printed(folder: Path) -> None:
    made = folder / "page.pdf"
    browser.run(folder, f"--print-to-pdf={made}", "--no-pdf-header-footer", (folder / "small.html").as_uri())
    data = made.read_bytes()
    assert data.startswith(b"%PDF-")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 25


def test_a_missing_browser_fails_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(AssertionError, match="apt-get install chromium"):
        browser.chromium()


# -- text of a log stays text ------------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """The elements of a page, and whether they are closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: set[str] = set()
        self.open: list[str] = []
        self.faults: list[str] = []
        self.attributes: set[tuple[str, str]] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.attributes |= {(tag, name) for name, _ in attrs}
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)


@pytest.mark.parametrize("name", NAMES)
def test_every_element_is_closed_and_none_can_load_or_run_anything(pages: dict[str, str], name: str) -> None:
    parser = Tags()
    parser.feed(pages[name])
    assert parser.faults == []
    assert parser.open == []
    assert not parser.found & {"script", "img", "iframe", "object", "embed", "image", "video", "audio", "form", "base", "foreignobject"}
    assert not [a for _, a in parser.attributes if a.startswith("on") or a in ("src", "srcset", "action", "formaction")]
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org/)", pages[name])


def test_hostile_text_is_shown_as_it_is_written(pages: dict[str, str]) -> None:
    page = pages["evil.html"]
    assert "<script" not in page
    assert "<img" not in page
    # title, verdict, hypotheses, groups, flags, arguments, units, events, examples of broken lines, notes
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 25
    assert page.count("</style>") == 1


def test_the_same_log_gives_the_same_page(capture: Log, pages: dict[str, str]) -> None:
    assert render_report(capture, ddt.diagnose(capture), bench=SWEEP) == pages["small.html"]


def test_text_is_escaped_unless_it_was_made_as_html() -> None:
    assert tag("p", "<b>", Html("<i>x</i>"), [None, 3], title='"') == '<p title="&quot;">&lt;b&gt;<i>x</i>3</p>'
    assert escape("a\x00\x1b[31mb") == "a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[31mb"


# -- what stands on it -------------------------------------------------------------------------------------------------------


def text_of(page: str) -> str:
    """What a reader reads."""
    body = re.sub(r"<style>.*?</style>|<svg.*?</svg>", " ", page, flags=re.S)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", body)))


def test_the_answer_comes_first_and_every_hypothesis_stands_below(capture: Log, pages: dict[str, str]) -> None:
    found, said = ddt.diagnose(capture), text_of(pages["small.html"])
    assert said.index(answer(found).headline) < said.index(found.hypotheses[0].name) < said.index("All counts and notes")
    for one in found.hypotheses:
        assert one.name in said
        assert re.sub(r"\s+", " ", one.evidence) in said
    names = tuple(f"{one.name}:" for one in found.hypotheses)
    for sentence in (*(said for said in found.cannot_tell if not said.startswith(names)), *found.next):
        assert sentence in said


@pytest.mark.parametrize("name", ["small.html", "incident.html"])
def test_no_sentence_stands_in_two_sections(pages: dict[str, str], name: str) -> None:
    """Of five words and more, wherever it is folded; code, and what a fold is called, may come again."""
    page = pages[name]
    page = re.sub(r"<pre.*?</pre>|<summary>Where these.*?</summary>|<p class=.lang.>.*?</p>|<nav.*?</nav>", " ", page, flags=re.S)
    held: dict[str, set[int]] = {}
    for number, section in enumerate(re.split(r"<section", page)):
        texts = re.split(r"</(?:p|li|td|th|dd|dt|h[1-3]|summary|span|text|title)>", re.sub(r'aria-label="[^"]*"', "", section))
        for text in texts:
            for sentence in re.split(r"(?<=[.;!?]) ", text_of(text)):
                if len(sentence.split()) >= 5:
                    held.setdefault(sentence.strip(" .;"), set()).add(number)
    assert {said: where for said, where in held.items() if len(where) > 1} == {}


def test_flags_that_changed_stand_beside_what_the_data_say(pages: dict[str, str]) -> None:
    """Between the two runs of the capture --reasoning-parser and the draft model changed (its README)."""
    said = text_of(pages["small.html"])
    assert re.search(r"--reasoning-parser \(not set\) qwen3 ruled out", said)
    assert re.search(r"--speculative-draft-model-path m/a-draft-v1 m/a-draft-v2 cause", said)


def test_the_numbers_of_the_capture_stand_on_the_page(pages: dict[str, str]) -> None:
    """545 metrics lines, 2 server starts, tokens per step and request 3.725 and 2.108 (the capture's truth)."""
    said = text_of(pages["small.html"])
    assert "rows of steps 545" in said
    assert re.search(r"tokens/step 3\.72 2\.11", said)
    assert "STANDALONE" in said


@pytest.mark.parametrize(
    "bench", [SWEEP, SWEEP.to_dict("records"), {"points": [{"prompt_tokens": 82, "decode_tok_s": 41.0, "low": 40.0, "high": 42.0}]}]
)
def test_a_sweep_is_read_as_a_frame_as_rows_and_as_its_file(bench: Any) -> None:
    made = sweep_frame(bench)
    assert made is not None
    assert made["tok_per_s"].iloc[0] == 41.0
    assert made["x_mean"].iloc[0] == 82


def test_the_sweep_stands_beside_the_log_at_equal_context(capture: Log, pages: dict[str, str]) -> None:
    said = text_of(pages["small.html"])
    curve = ddt.by_context(capture.basis.frame())
    row = curve[(curve["low"] <= 1407) & (curve["high"] > 1407)].iloc[0]
    assert f"1,407 26.0 25.0 to 27.0 {figure(row['tok_per_s'])}" in said
    assert ratio(26.0 / row["tok_per_s"]) in said
    assert "measured sweep (3 points)" in pages["small.html"]
    assert "Measured sweep" not in text_of(pages["empty.html"])


def test_an_empty_log_gives_a_page_that_says_what_is_missing(pages: dict[str, str]) -> None:
    page, said = pages["empty.html"], text_of(pages["empty.html"])
    assert "No line at all was found" in said
    assert "The log has no server start" in said
    assert len(re.findall(r"<text[^>]*>Nothing to draw: ", page)) == 8  # six pictures, and the one over time in its wide and narrow form
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b|<NA>", said)


@pytest.mark.parametrize("name", NAMES)
def test_no_page_shows_a_number_that_is_none(pages: dict[str, str], name: str) -> None:
    shown = re.sub(r"<pre.*?</pre>", " ", pages[name], flags=re.S)
    assert not re.search(r"\bnan\b|\binf\b|<NA>|\bNaT\b", text_of(shown))


def test_a_large_log_gives_a_page_of_bounded_size(pages: dict[str, str]) -> None:
    assert len(pages["large.html"]) < 2_000_000
    said = text_of(pages["large.html"])
    assert "more starts are not shown" in said
    assert "more are not listed" in said


def test_odd_tables_give_a_page() -> None:
    """One step; all null; constant context; infinite throughput; lists longer than the batch; negative step times."""
    frames = (
        {"steps": pd.DataFrame({"batch_size": [1], "commit_lens": [[4]], "accepted_drafts": [[3]]})},
        {"steps": pd.DataFrame({"batch_size": [None, None]})},
        {
            "steps": pd.DataFrame(
                {"batch_size": [1] * 5, "commit_lens": [[4, 4, 4]] * 5, "step_us": [-1, 0, -7, None, 10**15], "time_us": range(5)}
            )
        },
        {
            "decode": pd.DataFrame(
                {"running": [1, 0, 1], "gen_throughput": [np.inf, 0.0, -1.0], "accept_len": [2.0, None, np.nan], "tokens": [5, 5, 5]}
            )
        },
        {"events": pd.DataFrame({"kind": [None, "gap"], "time": [None, None]})},
        {"servers": pd.DataFrame({"algorithm": [None], "args": [None]})},
    )
    for made in frames:
        page = render_report(Log({name: tables.from_pandas(frame, TABLES[name]) for name, frame in made.items()}))
        assert not re.search(r"\bnan\b|\binf\b|<NA>", text_of(re.sub(r"<pre.*?</pre>", " ", page, flags=re.S)))


def test_numbers_are_written_for_reading() -> None:
    assert [figure(v) for v in (None, float("nan"), 0, 0.0123, 2.0, 39.04, 147.2, 12345.6, -3.14159)] == [
        "–", "–", "0.00", "0.0123", "2.00", "39.0", "147", "12,346", "\N{MINUS SIGN}3.14",
    ]  # fmt: skip
    assert [ratio(v) for v in (0.5, 1, 0.0123, 12.34)] == ["×0.50", "×1.00", "×0.0123", "×12.3"]
    assert percent(-0.305) == "\N{MINUS SIGN}30.5 %"
    assert count(1234567) == "1,234,567"
    assert between(1, None) == ""


# -- where each number comes from --------------------------------------------------------------------------------------------


def blocks(page: str, kind: str) -> list[str]:
    """The code of a kind that stands on a page."""
    return [unescape(code) for code in re.findall(rf'<pre class="{kind}"[^>]*><code>(.*?)</code></pre>', page, flags=re.S)]


def test_every_section_says_where_its_numbers_come_from(pages: dict[str, str]) -> None:
    sections = re.split(r"<h2 ", pages["small.html"])[1:]
    assert len(sections) >= 8
    for section in sections[:-1]:  # the last one is about how to get them all again
        assert "Where these numbers come from" in section, section[:200]


def test_the_calls_on_the_page_run(pages: dict[str, str], capture: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved = '{"points": [{"prompt_tokens": 82, "decode_tok_s": 41.0}]}'
    calls = blocks(pages["small.html"], "python")
    assert len(calls) >= 8
    for call in calls:
        exec(
            call.replace('open("sweep.json")', "sweep_file"),
            {"ddt": ddt, "log": capture, "print": lambda *_: None, "sweep_file": io.StringIO(saved)},
        )
    assert (tmp_path / "step-time.svg").exists()


def test_the_queries_on_the_page_run_on_an_export_and_give_its_numbers(pages: dict[str, str], capture: Log, tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    for name in TABLES:
        pq.write_table(capture.table(name), tmp_path / "export" / f"{name}.parquet")
    queries = blocks(pages["small.html"], "sql")
    assert len(queries) >= 5
    results = [duckdb.sql(q.replace("'export/", f"'{tmp_path}/export/")).df() for q in queries]
    (curve,) = [r for r in results if "step_time_mean_ms" in r]
    facts = gather(capture, ddt.diagnose(capture))
    np.testing.assert_allclose(curve["step_time_mean_ms"], facts.curve["step_time_mean_ms"])
    np.testing.assert_allclose(curve["tokens_per_step_pooled"], facts.curve["tokens_per_step_pooled"])
    np.testing.assert_array_equal(curve["request_steps"], facts.curve["rows"])
    (commits,) = [r for r in results if "commit_minus_accepted" in r]
    assert dict(zip(commits["commit_minus_accepted"], commits["sequences"], strict=True)) == capture.counts.commit_minus_accepted
    said = text_of(pages["small.html"])
    for value in curve["step_time_mean_ms"]:
        assert figure(value) in said


def test_dust_of_floating_point_arithmetic_is_written_as_zero() -> None:
    assert [figure(v) for v in (2.13e-15, -2.13e-15, 0.00042, -1e-7)] == ["0.00", "0.00", "0.00042", "0.00"]
    assert percent(-1e-9) == "0.0 %"


def test_a_long_value_is_cut_and_its_length_is_said() -> None:
    assert cut("v" * 3000).endswith("v… (3,000 characters)")
    assert len(cut("v" * 3000)) < 230
    assert cut("v" * 200) == "v" * 200


def test_parts_that_work_against_each_other_are_remarked() -> None:
    log = ddt.read_text(CAPTURE)
    found = ddt.diagnose(log)
    first = dataclasses.replace(
        found.comparisons[0],
        share_step_time=Interval(1.319, 0.958, 2.469, "share"),
        share_acceptance=Interval(-0.319, -1.469, 0.042, "share"),
        speed_ratio=Interval(0.58, 0.0024, 139.0),
    )
    page = render_report(log, dataclasses.replace(found, comparisons=(first,)))
    assert "131.9 %" in page
    assert "95.8 % to 246.9 %" in page
    assert "By these estimates tokens per step rose and made up for part of the slow-down (the interval leaves it open)" in page
    assert "no interval: too few rows" in page
    assert "139" not in text_of(page[page.index("95.8 % to 246.9 %") - 900 : page.index("95.8 % to 246.9 %") + 900])


def test_one_slope_stands_on_the_page(capture: Log, pages: dict[str, str]) -> None:
    slope = ddt.diagnose(capture).slopes["context_step_ms"].value
    assert slope is not None
    said = text_of(pages["small.html"]) + " ".join(re.findall(r"<text[^>]*>(.*?)</text>", pages["small.html"]))
    told = {round(float(v)) for v in re.findall(r"([\d.]+) ms (?:longer )?per 1,000 tokens", said)}
    assert told == {round(slope)}


def test_by_context_values_of_decode_lines_are_said_to_be_means() -> None:
    log = ddt.read_text(CAPTURE)
    only = Log({name: log.table(name) for name in ("decode", "prefill", "servers", "events", "requests")}, log.coverage)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DDTreeWarning)
        page = render_report(only)
    assert "steps with several requests share one mean" in page.lower()
    assert "share one mean" not in render_report(log)
