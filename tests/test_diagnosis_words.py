"""Numbers, shares and long values in the text of a diagnosis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddtree_metrics.diagnosis import phrases
from ddtree_metrics.diagnosis.numerals import cut_words, factor, number
from ddtree_metrics.diagnosis.result import Comparison, Diagnosis, FlagChange
from ddtree_metrics.diagnosis.text import format_diagnosis
from ddtree_metrics.metrics.doubt import Interval
from ddtree_metrics.metrics.shares import counteracting

UNKNOWN = Interval(unit="share")


def told(comparison: Comparison, step: Interval = UNKNOWN, acceptance: Interval = UNKNOWN) -> Diagnosis:
    used = dict.fromkeys(("request_steps", "timed_steps", "requests", "server_starts"), 1)
    return Diagnosis("Slow.", "step_time", step, acceptance, (comparison,), (), {}, (), (), {}, used, "step lines", 0.9, "slower")


def compared() -> Comparison:
    # 89.2 -> 146 ms and 2.93 -> 3.30 tokens: ln 1.637 = 0.493 and -ln 1.126 = -0.119, of 0.374: 131.8 % and -31.8 %
    return Comparison(
        "context", "context up to 290", "context from 1274", "step_time", "", 89.2, 146.0, 2.93, 3.30, 32.8, 22.6,
        step_time_ratio=Interval(1.64, 1.34, 2.00), tokens_ratio=Interval(1.13, 0.98, 1.30), speed_ratio=Interval(0.69, 0.53, 0.88),
        share_step_time=Interval(1.318, 0.958, 2.469, "share"), share_acceptance=Interval(-0.318, -1.469, 0.042, "share"),
    )  # fmt: skip


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (2.13e-15, "0"), (-2.13e-15, "0"), (0.0, "0"), (4e-6, "0"), (-0.00542, "-0.00542"), (0.0000421, "0.00004"), (0.0969, "0.0969"),
        (1.5, "1.50"), (27.6, "27.6"), (516.2, "516"), (4113.4, "4,113"), (123456.0, "123,500"), (1234567.0, "1.23e+06"),
        (None, "(not known)"), (float("nan"), "(not known)"),
    ],
)  # fmt: skip
def test_numbers_have_no_more_digits_than_they_are_worth(x, said):
    assert number(x) == said


def test_a_number_that_rounds_to_zero_has_no_sign():
    assert number(-0.001, 2) == "0.00"


def test_an_interval_that_spans_a_factor_of_twenty_is_called_none():
    assert factor(Interval(0.58, 0.0024, 139.42)) == "× 0.58 (no interval: too few rows)"
    assert factor(Interval(0.58, 0.2, 3.0)) == "× 0.58 (0.20 to 3.00)"
    assert factor(Interval(0.0042, 0.0021, 0.0084)) == "× 0.00420 (0.00210 to 0.00840)"


def test_a_part_that_worked_against_the_change_is_said_in_words_and_not_in_per_cent():
    # 131.8 % and -31.8 %: nobody can picture such a share. 1 / 1.64 is 0.61
    why = "tokens per step rose and made up for part of the slow-down"
    d = told(replace(compared(), share_step_time=UNKNOWN, share_acceptance=UNKNOWN, shares_reason=why))
    assert "step time 89.2 ms 146 ms speed × 0.61 tokens/step 2.93 3.30 speed × 1.13" in flat(format_diagnosis(d))
    assert why in flat(format_diagnosis(d, full=True))


@pytest.mark.parametrize(
    ("share", "slower", "said"),
    [
        (1.3, True, "tokens per step rose"),
        (-0.3, True, "steps got faster"),
        (1.3, False, "tokens per step fell"),
        (-0.3, False, "steps got slower"),
    ],
)  # fmt: skip
def test_the_part_that_worked_against_a_change_is_named(share, slower, said):
    assert str(counteracting(share, slower=slower)).startswith(said)


def test_an_interval_that_leaves_open_whether_a_part_worked_against_is_said():
    assert "leaves it open" in str(counteracting(1.3, 0.9, 2.0))
    assert "leaves it open" in str(counteracting(-0.3, -1.0, 0.1))
    assert "leaves it open" not in str(counteracting(1.3, 1.1, 2.0))
    assert "leaves it open" not in str(counteracting(-0.3, -1.0, -0.1))


@pytest.mark.parametrize("share", [None, float("nan"), 0.0, 0.4, 1.0, 1.004])
def test_no_part_is_said_to_work_against_a_change_that_both_made(share):
    assert counteracting(share) is None


@pytest.mark.parametrize("width", [40, 60, 80])
def test_ratios_stay_in_a_narrow_terminal(width):
    text = format_diagnosis(told(compared()), width, full=True)
    assert max(map(len, text.splitlines())) <= width
    for ratio in ("× 1.64 (1.34 to 2.00)", "× 1.13 (0.98 to 1.30)", "× 0.69 (0.53 to 0.88)"):
        assert ratio in flat(text)


def test_a_flag_of_3000_characters_is_cut_and_long_words_are_broken():
    flag = FlagChange("json_model_override_args", "a" * 3000, "b" * 150, "any", "cannot tell", f"from {'c' * 5000} on")
    text = format_diagnosis(told(replace(compared(), flags=(flag,))), 60, full=True)
    assert max(map(len, text.splitlines())) <= 60
    assert "(3,000 characters)" in flat(text)
    assert "(5,000 characters)" in flat(text)
    assert text.replace("\n", "").replace(" ", "").count("b" * 150) == 1
    assert len(text) < 3000


def test_short_words_are_not_cut():
    assert cut_words("a/path of no great length") == "a/path of no great length"


NOUNS = {
    "context_step_time": ("context", "step"),
    "context_acceptance": ("acceptance", "context"),
    "window_knee": ("acceptance", "window"),
    "generated_acceptance": ("acceptance", "generated"),
    "batch": ("batch", "slower"),
    "uptime": ("slower", "up"),
    "fragmentation": ("steps", "generated", "equal context"),
    "cached_prefix": ("cached prefix", "slower"),
    "graph_off": ("graph", "without"),
    "budget": ("budget", "change"),
    "break_step_time": ("step time", "suddenly"),
    "break_acceptance": ("acceptance", "suddenly"),
    "retraction": ("requests", "retracted"),
    "prefill_between": ("prefills", "decoding"),
    "suppressed": ("lines", "suppressed"),
    "simulated": ("simulated acceptance", "left on"),
    "profiling": ("profiling", "left on"),
    "too_good": ("acceptance", "repetition loop"),
    "nothing_accepted": ("speculation", "no draft"),
    "speculation": ("speculation", "switched"),
    "episodes": ("steps", "for a while"),
}
"""What a person has to read in the name of each hypothesis, and in what a verdict calls it."""


def test_a_hypothesis_names_its_cause_and_what_the_cause_does():
    assert set(phrases.CAUSES) - {"flags"} == set(NOUNS)
    unsaid = [
        (key, word)
        for key, words in NOUNS.items()
        for word in words
        if word not in phrases.CAUSES[key].name.lower() and word not in phrases.CAUSES[key].as_cause
    ]
    assert unsaid == []
    assert "flag" in phrases.CAUSES["flags"].name


@pytest.mark.parametrize("key", NOUNS)
def test_the_name_and_the_cause_of_a_hypothesis_are_phrases_of_at_least_three_words(key):
    phrase = phrases.CAUSES[key]
    assert min(len(phrase.name.split()), len(phrase.as_cause.split())) >= 3
    assert phrase.name[0].isupper()
    assert phrase.as_cause[0].islower() or phrase.as_cause.startswith("KV")
    assert [x.name for x in phrases.CAUSES.values()].count(phrase.name) == 1
