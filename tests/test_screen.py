"""What the terminal shows of an answer: whole screens written by hand, and what colour and width do to them.

The screens were written from the shape that an answer shall have and from the truth of each log, not copied from what the program prints.
Numbers are compared with a tolerance: a plain one within 3 %, one with ``~`` before it within 15 %, for it is estimated from noisy steps; a
``#`` stands for any number, which is checked elsewhere. Blanks are compared as one.
"""

from __future__ import annotations

import re
import warnings
from functools import cache

import pytest

import ddtree_metrics as ddt
from ddtree_metrics.diagnosis import Diagnosis, diagnose
from ddtree_metrics.diagnosis.text import SCREEN, format_diagnosis
from ddtree_metrics.errors import DDTreeWarning
from tests.captures import FIXTURES, journal_export

INCIDENT = FIXTURES / "incident" / "simulated-journal.export.zst"


@cache
def diagnosed(name: str) -> Diagnosis:
    """Diagnose a capture, or the incident, with the requests beside it."""
    log = INCIDENT if name == "incident" else journal_export(name)
    requests = INCIDENT.with_name("simulated-requests.jsonl") if name == "incident" else log.with_name("requests.jsonl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DDTreeWarning)  # the join tells of lost lines, in its own tests
        return diagnose(ddt.read_text(log).with_requests(requests))


_NUMBER = re.compile(r"(?<![\w.-])~?[+-]?\d[\d,]*(?:\.\d+)?(?![\w:])|[+-]?#")


def words_and_numbers(line: str) -> tuple[str, list[str]]:
    """Split a line into its words, each number a gap, and its numbers; times, dates and ids are words."""
    return " ".join(_NUMBER.sub("_", line).split()), _NUMBER.findall(line)


def same(line: str, golden: str) -> bool:
    """Whether a line says what the golden one says."""
    words, numbers = words_and_numbers(line)
    wanted, expected = words_and_numbers(golden)
    return words == wanted and all(map(near, numbers, expected))


def near(number: str, golden: str) -> bool:
    if golden.lstrip("+-") == "#":
        return True
    value, true = (float(x.lstrip("~").replace(",", "")) for x in (number, golden))
    part = 0.15 if golden.startswith("~") else 0.03
    return abs(value - true) <= max(part * abs(true), 3.0 if golden.startswith("~") and abs(true) < 20 and "." not in golden else 0.0)


# truth-summary.json: 3.725 to 2.108 tokens a step, 108.9 to 114.7 ms (see test_diagnose_incidents.py), so
# 1000 * 3.725 / 108.9 = 34.2 and 1000 * 2.108 / 114.7 = 18.4 tok/s, 18.4 / 34.2 - 1 = -46 %. The same prompts alone in
# both runs: x 1.14 and x 0.587, and ln 1.14 of ln(1.14 / 0.587) is 20 %. Slopes of its fits: 25.5 to 29.6 ms for 1,000 tokens.
A = {
    80: """
sglang-tiny.service · 2026-11-29 15:17-15:20 UTC · 22 requests · 2 starts

SLOWER SINCE THE RESTART AT 15:19:17    34.3 → 18.4 tok/s a request (-46 %)
  tokens/step    3.72 → 2.11    ~80 % of it  × 0.587 at equal mix
  step time       109 → 115 ms  ~20 %        × 1.14 at equal mix
  likely cause   --speculative-draft-model-path a-draft-v1 → a-draft-v2
  not the cause  --reasoning-parser → qwen3 (same restart; it acts after a step
                 is over)
Also, load and no regression:
  long context   ≤290 → ≥1,274 tokens   32.8 → 22.6 tok/s
                 ~+28 ms per 1,000 tokens
*
Next: restart with the old draft model only; send the same requests
# checks: # yes, # ruled out, # unknown.   Evidence: --full   Charts: report
""",
    60: """
sglang-tiny · 2026-11-29 15:17-15:20 UTC · 22 requests · 2
starts
SLOWER SINCE THE RESTART AT 15:19:17
  34.3 → 18.4 tok/s a request (-46 %)
  tokens/step    3.72 → 2.11    ~80 % of it
  step time       109 → 115 ms  ~20 %
  likely cause   --speculative-draft-model-path a-draft-v1 →
                 a-draft-v2
  not the cause  --reasoning-parser → qwen3 (same restart;
                 it acts after a step is over)
Also, load and no regression:
  long context   ≤290 → ≥1,274 tokens   32.8 → 22.6 tok/s
                 ~+28 ms per 1,000 tokens
*
Next: restart with the old draft model only; send the same
  requests
# checks: # yes, # ruled out, # unknown. (--full)
""",
    120: """
sglang-tiny.service · 2026-11-29 15:17-15:20 UTC · 22 requests · 2 starts

SLOWER SINCE THE RESTART AT 15:19:17    34.3 → 18.4 tok/s a request (-46 %)
  tokens/step    3.72 → 2.11    ~80 % of it  × 0.587 at equal mix
  step time       109 → 115 ms  ~20 %        × 1.14 at equal mix
  likely cause   --speculative-draft-model-path a-draft-v1 → a-draft-v2
  not the cause  --reasoning-parser → qwen3 (same restart; it acts after a step is over)
Also, load and no regression:
  long context   ≤290 → ≥1,274 tokens   32.8 → 22.6 tok/s   ~+28 ms per 1,000 tokens
*
Next: restart with the old draft model only; send the same requests
# checks: # yes, # ruled out, # unknown.   Evidence: --full   Charts: report
""",
}

# simulated-truth.json: a step takes 26.8 ms and 20.8 ms more for 1,000 tokens of context; 4.89 tokens a step for short requests and 4.00
# for the long one. The quarters at the shortest and the longest context: (26.8 + 20.8 * 0.24) and (26.8 + 20.8 * 4.7) are 32 and 125 ms;
# 1000 * 4.89 / 32 = 152 and 1000 * 4.00 / 126 = 31.7 tok/s, -79 %; ln(126 / 32) of ln(152 / 31.7) is 87 %. The restart changed nothing.
INCIDENT_SCREEN = {
    80: """
sglang-kimi-simulated · 2026-02-02 02:40-02:59 UTC · 51 requests · 2 starts

LONG CONTEXT IS SLOW; NOTHING SHOWS THAT THE RESTART MATTERED
  151 → 31.7 tok/s (-79 %)
                 ≤359     ≥3,433 tokens
  step time      32.2 ms  126 ms         87 % of it  +20.8 ms per 1,000 tokens
  tokens/step    4.89     4.00           ~13 %
                 context, window or text: unclear
  restart 02:54:29  step time × 1.00*
  not the cause  --reasoning-parser, --tool-call-parser (act after each step)
Slowest: 5fc3d3d4 25.7 tok/s at 5,000 tokens · 385d98c4 30.8 at 4,000
Next: ddtree-logs bench URL --ctx 384 896 2176 5120
# checks: # yes, # ruled out, # unknown.   Evidence: --full   Charts: report
""",
    60: """
sglang-kimi-simulated · 2026-02-02 02:40-02:59 UTC · 51
requests · 2 starts
LONG CONTEXT IS SLOW; NOTHING SHOWS THAT THE RESTART
MATTERED
  151 → 31.7 tok/s (-79 %)
                 ≤359     ≥3,433 tokens
  step time      32.2 ms  126 ms         87 % of it
                 +20.8 ms per 1,000 tokens
  tokens/step    4.89     4.00           ~13 %
                 context, window or text: unclear
  restart 02:54:29  step time × 1.00*
*
  not the cause  --reasoning-parser, --tool-call-parser (act
                 after each step)
Next: ddtree-logs bench URL --ctx 384 896 2176 5120
# checks: # yes, # ruled out, # unknown. (--full)
""",
    120: """
sglang-kimi-simulated.service · 2026-02-02 02:40-02:59 UTC · 51 requests · 2 starts

LONG CONTEXT IS SLOW; NOTHING SHOWS THAT THE RESTART MATTERED    151 → 31.7 tok/s (-79 %)
                 ≤359     ≥3,433 tokens
  step time      32.2 ms  126 ms         87 % of it   +20.8 ms per 1,000 tokens
  tokens/step    4.89     4.00           ~13 %        context, window or text: unclear
  restart 02:54:29  step time × 1.00*
  not the cause  --reasoning-parser, --tool-call-parser (act after each step)
Slowest: 5fc3d3d4 25.7 tok/s at 5,000 tokens · 385d98c4 30.8 at 4,000 · the-slow 32.0 at 3,239
Next: ddtree-logs bench URL --ctx 384 896 2176 5120
# checks: # yes, # ruled out, # unknown.   Evidence: --full   Charts: report
""",
}

# The README of capture C: 11 + 118 + 132 = 261 lines dropped, one retraction at a full KV cache of 1,400 tokens, 7 requests, one start.
# 58 of its 183 steps can be timed: its speeds, a third of which are of other requests than the truth has, are not compared.
C = {
    80: """
sglang-tiny.service · 2026-11-29 15:16-15:17 UTC · 7 requests · 1 start
⚠ journald dropped at least 261 lines; the KV pool reached 99 %, 1 retraction

LONG CONTEXT IS SLOW    # → # tok/s (-# %)
               ≤# ≥# tokens
  step time    # ms   # ms        speed × #   # ms per 1,000 tokens
  tokens/step  #      #          speed × #   context or window: unclear
*
Next: ddtree-logs bench URL --ctx 512 2048 3072 5120
# checks: # yes, # ruled out, # unknown.   Evidence: --full   Charts: report
""",
    60: """
sglang-tiny · 2026-11-29 15:16-15:17 UTC · 7 requests · 1
start
⚠ journald dropped at least 261 lines; the KV pool reached
  99 %, 1 retraction
*
LONG CONTEXT IS SLOW    # → # tok/s (-# %)
               ≤# ≥# tokens
  step time    # ms   # ms        speed × #
               # ms per 1,000 tokens
  tokens/step  #      #          speed × #
               context or window: unclear
*
Next: ddtree-logs bench URL --ctx 512 2048 3072 5120
# checks: # yes, # ruled out, # unknown. (--full)
""",
    120: """
sglang-tiny.service · 2026-11-29 15:16-15:17 UTC · 7 requests · 1 start
⚠ journald dropped at least 261 lines; the KV pool reached 99 %, 1 retraction

LONG CONTEXT IS SLOW    # → # tok/s (-# %)
               ≤# ≥# tokens
  step time    # ms   # ms        speed × #   # ms per 1,000 tokens
  tokens/step  #      #          speed × #   context or window: unclear
*
Next: ddtree-logs bench URL --ctx 512 2048 3072 5120
# checks: # yes, # ruled out, # unknown.   Evidence: --full   Charts: report
""",
}

GOLDEN = {"A": A, "C": C, "incident": INCIDENT_SCREEN}
"""A ``*`` alone stands for lines on what is unclear or slow besides, one at the end of a line for more of it."""


def assert_like(lines: list[str], golden: list[str]) -> None:
    """Compare a screen with the golden one, line by line."""
    rest = list(lines)
    for i, wanted in enumerate(golden):
        if wanted == "*":
            following = golden[i + 1]
            while rest and not like(rest[0], following):
                assert rest[0].startswith(("Unclear", "Slowest", "  ")) or not rest[0], rest[0]
                rest.pop(0)
            continue
        assert rest, f"missing: {wanted!r}"
        assert like(rest[0], wanted), f"\n  got  {rest[0]!r}\n  want {wanted!r}"
        rest.pop(0)
    assert not rest, rest


def like(line: str, wanted: str) -> bool:
    if not wanted.endswith("*"):
        return same(line, wanted)
    (words, numbers), (first, expected) = words_and_numbers(line), words_and_numbers(wanted[:-1])
    return words.startswith(first) and all(map(near, numbers, expected))


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", list(GOLDEN))
def test_the_answer_is_the_screen_that_was_written_by_hand(name: str, width: int) -> None:
    lines = format_diagnosis(diagnosed(name), width, shell=True).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= SCREEN == 16
    assert_like(lines, GOLDEN[name][width].strip("\n").splitlines())


def test_a_golden_screen_can_fail() -> None:
    golden = A[80].strip("\n").splitlines()
    lines = format_diagnosis(diagnosed("A"), 80, shell=True).splitlines()
    changes: list[tuple[str, str]] = [
        ("34.3", "37.3"),
        ("SLOWER", "FASTER"),
        ("a-draft-v1", "a-draft-v3"),
        ("15:19:17", "15:18:17"),
        ("-46", "-64"),
    ]
    for old, new in changes:
        with pytest.raises(AssertionError):
            assert_like([line.replace(old, new) for line in lines], golden)


# The server prints 71.5 tok/s over the 160 windows, with one request each; a step makes one token: 1000 / 71.5 = 14.0 ms.
NOTHING_ACCEPTED = """
nothing-accepted.log · 2026-06-25 09:00-09:02 UTC · 160 steps · 1 start

NO DRAFT IS ACCEPTED    71.5 tok/s a request
  evidence  1.00 tokens per step in 160 rows: every step pays for a draft, and
            none is accepted
  overall   step time 14.0 ms, 1.00 tokens/step
*
Next: check that the draft model belongs to the target (vocabulary, chat
  template, revision), or switch speculation off
# checks: 1 yes, # ruled out, # unknown.   Evidence: --full   Charts: report
"""

# Four windows, a prefill before the third, which is not timed. Each line prints 3 tokens a step and 120 tok/s: 1000 * 3 / 120 = 25 ms.
TOO_SHORT = """
order-in-one-second.log · 2026-08-24 15:56:10-15:56:14 UTC · 4 steps · 1 start

IT CANNOT BE TOLD    120 tok/s a request
  3 timed steps only, and nothing to compare them by: batch size was always 1
  and uptime was only #.
  overall  step time 25.0 ms, 3.00 tokens/step
Next: sweep over context with one request at a time (ddtree-logs bench), again
  after each change of the attention backend
# checks: 0 yes, # ruled out, # unknown.   Evidence: --full   Charts: report
"""


@pytest.mark.parametrize("golden", [NOTHING_ACCEPTED, TOO_SHORT], ids=["nothing accepted", "too short"])
def test_what_is_no_difference_between_groups_is_told_by_one_speed(golden: str) -> None:
    lines = golden.strip("\n").splitlines()
    found = diagnose(ddt.read_text(FIXTURES / "failing" / lines[0].split()[0], tz="UTC"))
    shown = [re.sub(r"uptime was only .*", "uptime was only #.", line) for line in format_diagnosis(found, 80, shell=True).splitlines()]
    assert_like(shown, lines)
    assert not re.search(r"[-+]0(\.0+)? ms per", "\n".join(shown))


@pytest.mark.parametrize("name", list(GOLDEN))
def test_the_counts_of_checks_add_up(name: str) -> None:
    d = diagnosed(name)
    text = format_diagnosis(d)
    total, yes, out, unknown = map(int, re.search(r"(\d+) checks: (\d+) yes, (\d+) ruled out, (\d+) unknown", text).groups())  # type: ignore[union-attr]
    assert total == len(d.hypotheses) == yes + out + unknown
    assert yes == sum(h.status == "supported" for h in d.hypotheses)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("name", list(GOLDEN))
def test_all_evidence_fits_the_width_and_says_nothing_twice(name: str, width: int) -> None:
    d = diagnosed(name)
    lines = format_diagnosis(d, width, full=True).splitlines()
    assert max(map(len, lines)) <= min(width, 120)
    whole = " ".join(" ".join(lines).split())
    told = {h.evidence for h in d.hypotheses if len(h.evidence) > 40}
    for said in told if width >= 60 else ():
        others = [other for other in told if said in other]
        assert whole.count(" ".join(said.split())) == len(others), said
    for old in ("[supported]", "[refuted]", "[cannot tell]"):
        assert old not in whole


def test_a_screen_asks_for_nothing_of_a_shell_in_a_notebook() -> None:
    text = str(diagnosed("A"))
    assert "--full" not in text
    assert text == format_diagnosis(diagnosed("A"))
