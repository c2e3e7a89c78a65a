"""The pictures: what stands on them, for good data, odd data and none."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

import ddtree_metrics as ddt
from ddtree_metrics import plots
from ddtree_metrics.diagnosis.result import Comparison
from ddtree_metrics.errors import MetricError, OutputError
from ddtree_metrics.metrics.doubt import Interval
from ddtree_metrics.plots.looks import MARKERS, QUIET, SERIES
from ddtree_metrics.plots.start_series import start_looks, with_starts
from tests.captures import FIXTURES, journal_export


def curve(low: list[int] | None = None, **changed: Any) -> pd.DataFrame:
    """Make a table as ``by_context`` does: 30 ms and 20 ms more for each 1,000 tokens, 4.5 tokens a step."""
    low = low or [0, 512, 1024, 2048, 4096]
    high = [*low[1:], 2 * low[-1] or 128]
    x = (np.array(low) + np.array(high)) / 2
    ms = 30 + 0.02 * x
    made = pd.DataFrame({"low": low, "high": high, "x_mean": x, "rows": 120, "steps": 110, "timed_steps": 100, "requests": 7})
    for name, value in (("step_time_mean_ms", ms), ("tokens_per_step_pooled", np.full(len(x), 4.5)), ("tok_per_s", 4500 / ms)):
        made[name], made[f"{name}_low"], made[f"{name}_high"] = value, value * 0.9, value * 1.1
    for name, value in changed.items():
        made[name] = value
    made.attrs = {"by": "context_len", "level": 0.9, "reason": None}
    return made


def fitted(**changed: Any) -> SimpleNamespace:
    def predict(context: Any, batch: float | None = None) -> pd.DataFrame:
        y = 30 + 0.02 * np.asarray(context)
        return pd.DataFrame({"context": context, "step_time_ms": y, "low": y - 2, "high": y + 2, "extrapolated": False})

    held: dict[str, Any] = {
        "model": "line", "slope_ms_per_1000": 20.0, "slope_low": 19.0, "slope_high": 21.0, "knee": None, "context_min": 64.0,
        "context_max": 6000.0, "batch_typical": 1.0, "reason": None, "predict": predict,
    }  # fmt: skip
    return SimpleNamespace(**(held | changed))


def steps(n: int = 300) -> pd.DataFrame:
    """One step each 50 ms, 4 tokens a step: 80 tokens/s."""
    at = 1_767_225_600_000_000 + 50_000 * np.arange(n)
    return pd.DataFrame({"time_us": at, "tokens": 4, "step_us": 50_000, "stream": "a"})


SURVIVAL = pd.DataFrame({"depth": [0, 1, 2, 3], "rows": 900, "survival": [1, 0.8, 0.6, 0.3], "conditional": [None, 0.8, 0.75, 0.5]})
ATTRIBUTION = {
    "share_step_time": 0.986, "share_step_time_low": 0.95, "share_step_time_high": 1.0, "share_acceptance": 0.014,
    "share_acceptance_low": 0.0, "share_acceptance_high": 0.05, "speed_before": 138.0, "speed_after": 32.2,
}  # fmt: skip


def words(ax: Axes) -> str:
    """All text of a picture."""
    legend = ax.get_legend()
    said = [ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel(), *(t.get_text() for t in ax.texts)]
    said += [t.get_text() for t in (*ax.get_xticklabels(), *ax.get_yticklabels())]
    said += [t.get_text().replace("\n", " ") for t in legend.get_texts()] if legend else []
    return "\n".join(said)


def drawn(ax: Axes) -> bytes:
    """Draw it all, which is when matplotlib finds most faults."""
    return plots.render_figure(ax, "svg")


PICTURES = {
    "step_time": lambda ax=None: plots.plot_step_time(curve(), ax, fit=fitted()),
    "tokens": lambda ax=None: plots.plot_tokens_per_step(curve(), ax),
    "speed": lambda ax=None: plots.plot_speed(curve(), ax),
    "survival": lambda ax=None: plots.plot_survival(SURVIVAL, ax),
    "throughput": lambda ax=None: plots.plot_throughput(steps(), ax),
    "distribution": lambda ax=None: plots.plot_step_time_distribution(steps(), ax),
    "attribution": lambda ax=None: plots.plot_attribution(ATTRIBUTION, ax),
    "budget": lambda ax=None: plots.plot_budget(pd.DataFrame({"budget": [8, 16], "tok_per_s": [50.0, 60], "tokens_per_step": [3, 4]}), ax),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_draws_on_the_axes_it_is_given_and_returns_it(name: str) -> None:
    ax = Figure().add_subplot()
    assert PICTURES[name](ax) is ax
    assert drawn(ax)[:5] == b"<?xml"


@pytest.mark.parametrize("name", PICTURES)
def test_without_axes_a_figure_is_made_and_pyplot_knows_nothing_of_it(name: str) -> None:
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    assert drawn(PICTURES[name]())[:5] == b"<?xml"
    assert plt.get_fignums() == before


@pytest.mark.parametrize("name", PICTURES)
def test_every_axis_says_its_unit(name: str) -> None:
    ax = PICTURES[name]()
    x, y = ax.get_xlabel(), ax.get_ylabel()
    assert re.search(r"\((tokens|ms, log scale|UTC|accepted drafts|%|draft nodes|sequences)\)|time \(UTC\)", x), x
    if name != "attribution":  # its y axis has two names, no unit
        assert y in (
            "step time (ms)",
            "tokens per step",
            "tokens/s",
            "tokens/s of one request",
            "share of request-steps (%)",
            "share of steps (%)",
            "share of its own best (%)",
        )


@pytest.mark.parametrize("name", PICTURES)
def test_letters_are_large_enough_for_half_a_page(name: str) -> None:
    """4.8 inches wide on half of an A4 page (3.3 inches) shrinks to 0.69: 8 points become 5.5, as in a footnote; sizes stay above 4.8."""
    ax = PICTURES[name]()
    texts = [
        t for t in (*ax.texts, ax.xaxis.label, ax.yaxis.label, *(ax.get_legend().get_texts() if ax.get_legend() else [])) if t.get_text()
    ]
    assert min(t.get_fontsize() for t in texts) >= 7
    assert all(t.get_fontsize() >= 8 for t in texts if t.get_gid() != "size")


@pytest.mark.parametrize(("name", "format"), [*((n, "svg") for n in PICTURES), ("step_time", "png"), ("throughput", "pdf")])
def test_the_same_data_gives_the_same_bytes(name: str, format: str) -> None:
    first, second = plots.render_figure(PICTURES[name](), format), plots.render_figure(PICTURES[name](), format)
    assert first == second
    assert b"dc:date" not in first
    assert b"CreationDate" not in first


def test_colours_are_those_of_okabe_and_ito_and_every_series_has_its_own_marker() -> None:
    """The published palette (Okabe and Ito, Color Universal Design, 2008)."""
    published = {"#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#000000"}
    assert set(SERIES) <= published
    assert len(set(MARKERS)) == len(SERIES) == len(set(SERIES))


# -- what stands on them -----------------------------------------------------------------------------------------------------


def test_sample_sizes_are_visible_for_every_bin() -> None:
    ax = plots.plot_step_time(curve(timed_steps=[11, 22, 33, 44, 55]))
    assert [t.get_text() for t in ax.texts if t.get_gid() == "size"] == ["11", "22", "33", "44", "55", "n"]
    assert "n: timed steps in a bin" in words(ax)  # no sum: a step of a batch may be in several bins


def test_sample_sizes_do_not_overlap() -> None:
    """Doubling bins crowd at the left of a linear axis; the numbers are moved aside."""
    ax = plots.plot_step_time(curve([0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384], timed_steps=12345))
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    figure.canvas.draw()
    # of the letters alone: the box of an annotation holds its thin line too
    boxes = [Text.get_window_extent(t) for t in ax.texts if t.get_gid() == "size" and t.get_text() != "n"]
    assert len(boxes) == 9
    assert all(a.x1 <= b.x0 + 1 for a, b in itertools.pairwise(boxes))
    assert boxes[-1].x1 <= ax.get_window_extent().x1 + 1


def test_a_bin_without_an_interval_is_hollow_and_the_legend_says_so() -> None:
    made = curve()
    made.loc[4, ["step_time_mean_ms_low", "step_time_mean_ms_high"]] = np.nan
    ax = plots.plot_step_time(made)
    (hollow,) = [line for line in ax.lines if line.get_gid() == "hollow"]
    assert list(hollow.get_xdata()) == [6144]  # (4096 + 8192) / 2
    assert hollow.get_markerfacecolor() == "none"
    assert "no interval" in words(ax)


def test_the_fit_is_named_with_its_slope_and_interval() -> None:
    assert "line fit: +20 ms per 1,000 tokens (19 to 21), at batch 1" in words(plots.plot_step_time(curve(), fit=fitted()))


def test_a_bend_marks_its_knee() -> None:
    assert "knee at 2,048" in words(plots.plot_step_time(curve(), fit=fitted(model="bend", knee=2048.0)))


def test_no_fit_says_why() -> None:
    assert "no fit: one distinct context" in words(
        plots.plot_step_time(curve(), fit=SimpleNamespace(model=None, reason="one distinct context"))
    )


def test_a_second_series_has_its_own_colour_marker_and_row_of_sizes() -> None:
    ax = plots.plot_step_time(curve(timed_steps=10), label="run 1")
    plots.plot_step_time(curve([0, 512, 1024, 2048, 4096, 8192], timed_steps=20), ax, label="run 2")
    first, second = [line for line in ax.lines if line.get_gid() == "series"]
    assert first.get_color() != second.get_color()
    assert {t.get_text() for t in ax.texts if t.get_gid() == "size"} == {"n", "10", "20"}
    assert ax.get_xlim()[1] > 12288  # (8192 + 16384) / 2: the wider series is not cut off
    assert ax.get_ylim()[1] > 30 + 0.02 * 12288
    assert "run 1" in words(ax)
    assert "run 2" in words(ax)


@pytest.mark.parametrize(
    "sweep",
    [
        pd.DataFrame({"prompt_tok": [82, 1407], "tok_per_s": [255.7, 216.4]}),
        pd.DataFrame({"prompt_tokens": [82, 1407], "decode_tok_s": [255.7, 216.4]}),
        pd.DataFrame({"x_mean": [82, 1407], "tok_per_s": [255.7, 216.4], "tok_per_s_low": [250, 210], "tok_per_s_high": [260, None]}),
    ],
)
def test_a_measured_sweep_is_laid_over_the_curve(sweep: pd.DataFrame) -> None:
    ax = plots.plot_speed(curve(), sweep=sweep)
    (line,) = [line for line in ax.lines if "measured" in str(line.get_label())]
    assert list(line.get_ydata()) == [255.7, 216.4]
    assert "measured sweep (2 points)" in words(ax)


def test_a_sweep_alone_is_drawn_where_the_log_has_nothing() -> None:
    ax = plots.plot_speed(curve().iloc[:0], sweep=pd.DataFrame({"prompt_tok": [82], "tok_per_s": [255.7]}))
    assert "Nothing to draw" not in words(ax)
    assert "measured" in words(ax)


def test_step_time_and_tokens_start_at_zero_so_that_ratios_can_be_seen() -> None:
    assert plots.plot_step_time(curve()).get_ylim()[0] == 0
    assert plots.plot_tokens_per_step(curve()).get_ylim()[0] == 0


def test_throughput_leaves_idle_time_out_and_the_hole_open() -> None:
    """Two runs of 300 steps with ten idle minutes between: 80 tokens/s in both, and a break in the line."""
    both = pd.concat([steps(), steps().assign(time_us=steps()["time_us"] + 600_000_000)])
    ax = plots.plot_throughput(both)
    y = np.asarray(next(line for line in ax.lines if line.get_gid() == "series").get_ydata(), dtype=float)
    assert np.isnan(y).any()
    np.testing.assert_allclose(y[np.isfinite(y)], 80.0)  # 4 tokens / 0.05 s


def test_throughput_of_streams_side_by_side_adds_up() -> None:
    ax = plots.plot_throughput(pd.concat([steps(), steps().assign(stream="b")]))
    y = np.asarray(next(line for line in ax.lines if line.get_gid() == "series").get_ydata(), dtype=float)
    np.testing.assert_allclose(y, 160.0)  # two ranks of 80


def test_throughput_of_decode_lines_is_what_they_print() -> None:
    lines = pd.DataFrame({"time_us": 1_767_225_600_000_000 + 1_000_000 * np.arange(4), "gen_throughput": [100.0, 110, 0, np.inf]})
    ax = plots.plot_throughput(lines)
    y = np.asarray(next(line for line in ax.lines if line.get_gid() == "series").get_ydata(), dtype=float)
    assert list(y[np.isfinite(y)]) == [100.0, 110.0]


def test_events_are_marked_counted_and_named() -> None:
    at = steps()["time_us"]
    events = pd.DataFrame({"kind": ["suppressed", "retraction", "retraction", "never seen"], "time_us": at[[10, 20, 250, 30]].to_numpy()})
    said = words(plots.plot_throughput(steps(), events=events))
    assert "lines lost" in said
    assert "retraction (2)" in said
    assert "never seen" in said


def test_a_hundred_thousand_events_are_as_many_marks_as_there_is_room_for() -> None:
    at = np.linspace(steps()["time_us"].min(), steps()["time_us"].max(), 100_000)
    ax = plots.plot_throughput(steps(), events=pd.DataFrame({"kind": "retraction", "time_us": at}))
    assert "retraction (100,000)" in words(ax)
    assert len(plots.render_figure(ax, "svg")) < 200_000


def test_local_times_are_called_so() -> None:
    assert "zone unknown" in plots.plot_throughput(steps().assign(time_from="stamp-local")).get_xlabel()


def test_survival_shows_depths_from_one_and_the_cap() -> None:
    ax = plots.plot_survival(SimpleNamespace(survival=SURVIVAL, depth_cap=3, reason=None))
    line = next(line for line in ax.lines if line.get_gid() == "series")
    assert list(line.get_xdata()) == [1, 2, 3]
    assert list(line.get_ydata()) == [0.8, 0.6, 0.3]
    assert "n = 900 request-steps" in words(ax)
    assert "depth cap (3)" in words(ax)


def test_the_distribution_marks_median_and_95th_percentile() -> None:
    """1 to 100 ms: half of the steps are at most 50 ms, 95 % at most 95 ms."""
    said = words(plots.plot_step_time_distribution(pd.DataFrame({"step_time_ms": np.arange(1.0, 101.0)})))
    assert "median 50 ms" in said
    assert "95th percentile 95 ms" in said
    assert "n = 100 steps" in said


def test_the_distribution_counts_a_step_of_a_batch_once() -> None:
    """One step of four requests at 10 ms, three steps of one at 40 ms: four steps, median 40 ms."""
    rows = pd.DataFrame({"step_time_ms": [10.0] * 4 + [40.0] * 3, "weight": [0.25] * 4 + [1.0] * 3})
    said = words(plots.plot_step_time_distribution(rows))
    assert "n = 4 steps" in said
    assert "median 40 ms" in said


def test_o6_the_attribution_bar_says_both_shares_with_intervals() -> None:
    said = words(plots.plot_attribution(ATTRIBUTION))
    assert "98.6 % (95.0 to 100.0)" in said
    assert "1.4 % (0.0 to 5.0)" in said
    assert "138 → 32.2 tok/s a request (\N{MINUS SIGN}77 %)" in said  # 32.2 / 138 = 0.233


def test_causes_that_work_against_each_other_are_drawn_beyond_the_ends() -> None:
    ax = plots.plot_attribution({"share_step_time": 1.3, "share_acceptance": -0.3})
    assert ax.get_xlim()[0] < -0.3
    assert "\N{MINUS SIGN}30.0 %" in words(ax)


def test_the_mix_has_a_bar_of_its_own_where_it_is_known() -> None:
    held = {**ATTRIBUTION, "share_step_time": 0.3, "share_acceptance": 0.2, "share_mix": 0.5, "share_mix_low": 0.4, "share_mix_high": 0.6}
    ax = plots.plot_attribution(held)
    assert len(ax.patches) == 3
    assert "50.0 % (40.0 to 60.0)" in words(ax)
    assert "mix of\nrequests" in words(ax)
    assert "mix of" not in words(plots.plot_attribution(ATTRIBUTION))


def test_parts_that_worked_against_each_other_are_drawn_as_what_each_did_to_speed() -> None:
    """Steps that take 1.6 times as long make requests 1 / 1.6 = 0.625 times as fast; 1.23 times the tokens, 1.23 times."""
    found = Comparison(
        "context", "short", "long", "step_time", "", speed_before=46.7, speed_after=35.6,
        step_time_ratio=Interval(1.6, 1.25, 2.0), tokens_ratio=Interval(1.23),
    )  # fmt: skip
    ax = plots.plot_attribution(found)
    said = words(ax)
    assert "× 0.62 (0.50 to 0.80)" in said
    assert "× 1.23" in said
    assert [round(float(np.exp(bar.get_width())), 3) for bar in ax.patches] == [0.625, 1.23]
    nothing_known = Comparison("context", "short", "long", "step_time", "", reason="before has no step time")
    assert "before has no step time" in words(plots.plot_attribution(nothing_known))


def test_a_title_tells_what_is_seen_of_all_series_or_nothing() -> None:
    ax = plots.plot_tokens_per_step(curve(), label="one")
    assert ax.get_title(loc="left") == "About 4.5 tokens a step at every context"
    plots.plot_tokens_per_step(curve(), ax, label="other")
    assert ax.get_title(loc="left") == "Tokens per step by context"
    mine = Figure().add_subplot()
    mine.set_title("mine", loc="left")
    plots.plot_tokens_per_step(curve(), plots.plot_tokens_per_step(curve(), mine))
    assert mine.get_title(loc="left") == "mine"


def test_a_comparison_of_a_diagnosis_can_be_drawn() -> None:
    found = Comparison(
        "context", "short", "long", "both", "", speed_before=150.0, speed_after=30.0,
        share_step_time=Interval(0.569, 0.5, 0.6, "share"), share_acceptance=Interval(0.431, 0.4, 0.5, "share"),
    )  # fmt: skip
    assert "56.9 % (50.0 to 60.0)" in words(plots.plot_attribution(found))


def test_budget_rings_the_best_of_each() -> None:
    """Budgets of the RTX 3090 rows of fixtures: fastest at 22, most tokens a step at 24."""
    frame = pd.DataFrame(
        {"budget": [20, 22, 24, 30], "tok_per_s": [133.9, 135.8, 133.0, 120.5], "tokens_per_step": [8.64, 8.88, 8.91, 8.86]}
    )
    said = words(plots.plot_budget(frame))
    assert "speed: best at 22 (136 tokens/s)" in said
    assert "tokens per step: best at 24 (8.91 a step)" in said


def test_the_overview_holds_three_pictures() -> None:
    figure = plots.plot_overview(curve(), fit=fitted(), title="a <title> with $dollars$")
    assert len(figure.axes) == 3
    assert plots.render_figure(figure, "pdf")[:5] == b"%PDF-"


# -- nothing to draw ---------------------------------------------------------------------------------------------------------

EMPTY = {
    "step_time": plots.plot_step_time,
    "tokens": plots.plot_tokens_per_step,
    "speed": plots.plot_speed,
    "survival": plots.plot_survival,
    "throughput": plots.plot_throughput,
    "distribution": plots.plot_step_time_distribution,
    "budget": plots.plot_budget,
}
FRAMES = {
    "no rows, no columns": pd.DataFrame(),
    "no rows": pd.concat([curve(), steps(), SURVIVAL]).iloc[:0],
    "all null": pd.DataFrame({c: [None, None] for c in [*curve().columns, *steps().columns, *SURVIVAL.columns, "budget"]}),
    "not finite": pd.DataFrame(
        {c: [np.inf, -np.inf, np.nan] for c in [*curve().columns, *SURVIVAL.columns, "step_time_ms", "gen_throughput", "budget"]}
    ),
    "negative times": pd.DataFrame({"time_us": [1, 2], "tokens": [4, 4], "step_us": [-5, 0]}),
}


@pytest.mark.parametrize("picture", EMPTY)
@pytest.mark.parametrize("frame", FRAMES)
def test_nothing_to_draw_is_a_sentence_that_says_why(picture: str, frame: str) -> None:
    if frame == "negative times" and picture not in ("throughput", "distribution", "attribution"):
        with pytest.raises(MetricError, match="give it the log itself"):  # steps, and a picture that is drawn of something else
            EMPTY[picture](FRAMES[frame])
        return
    ax = EMPTY[picture](FRAMES[frame])
    said = words(ax)
    assert "Nothing to draw: " in said.replace("\n", " ")
    assert "nan" not in said
    assert not ax.get_xticks().size
    assert frame != "no rows" or drawn(ax)[:5] == b"<?xml"


def test_the_reason_that_a_metric_gives_is_the_sentence() -> None:
    empty = curve().iloc[:0]
    empty.attrs["reason"] = "no step has a known context_len"
    assert "no step has a known context_len" in words(plots.plot_step_time(empty)).replace("\n", " ")
    ax = plots.plot_attribution({"share_step_time": None, "reason": "before has no step time"})
    assert "before has no step time" in words(ax).replace("\n", " ")


def test_a_second_series_without_data_is_a_line_of_the_legend() -> None:
    ax = plots.plot_step_time(curve(), label="run 1")
    plots.plot_step_time(curve().iloc[:0], ax, label="run 2")
    assert "run 2: " in words(ax)
    assert "run 1" in words(ax)
    assert drawn(ax)


@pytest.mark.parametrize("n", [1, 2])
def test_one_step_is_enough_for_a_picture(n: int) -> None:
    for ax in (plots.plot_step_time(curve().iloc[:n]), plots.plot_throughput(steps(n)), plots.plot_step_time_distribution(steps(n))):
        assert "Nothing to draw" not in words(ax)
        assert drawn(ax)


def test_text_of_a_log_is_never_read_as_mathematics() -> None:
    ax = plots.plot_step_time(curve(), label="unit $x_{1$ \x07 end")
    drawn(ax)
    assert "\x07" not in words(ax)
    assert r"unit \$x_{1\$" in words(ax)  # as matplotlib takes it


values = st.floats(allow_nan=True, allow_infinity=True) | st.none()


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(values, values, values, values, st.integers(0, 10**9)), max_size=6))
def test_no_value_makes_a_picture_fail(rows: list[tuple[Any, ...]]) -> None:
    frame = pd.DataFrame(rows, columns=["x_mean", "step_time_mean_ms", "step_time_mean_ms_low", "step_time_mean_ms_high", "timed_steps"])
    frame["step_time_ms"], frame["time_us"], frame["tokens"] = frame["step_time_mean_ms"], frame["timed_steps"], frame["x_mean"]
    for ax in (plots.plot_step_time(frame), plots.plot_throughput(frame), plots.plot_step_time_distribution(frame)):
        drawn(ax)


# -- server starts -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def capture() -> ddt.Log:
    return ddt.read(journal_export("A"))


def by_start(log: ddt.Log) -> pd.DataFrame:
    """Rows of a log with the looks of its server starts."""
    rows = log.basis.frame()
    rows.attrs["starts"] = start_looks(log.basis)
    return rows


def curve_of(rows: pd.DataFrame) -> pd.DataFrame:
    made = ddt.by_context(rows, each="run")
    made.attrs["starts"] = rows.attrs["starts"]
    return made


def series(ax: Axes) -> list[Any]:
    return [drawn for drawn in (*ax.lines, *ax.patches) if drawn.get_gid() == "series"]


def test_each_server_start_is_a_series_of_the_same_colour_in_every_picture(capture: ddt.Log) -> None:
    """The two starts of the capture: 15:17:18 and 15:19:17 (the times of their server_args lines)."""
    rows = by_start(capture)
    made = [plot(curve_of(rows)) for plot in (plots.plot_step_time, plots.plot_tokens_per_step, plots.plot_speed)]
    made += [plots.plot_step_time_distribution(rows), plots.plot_throughput(rows)]
    for ax in made:
        drawn = [line.get_color() if hasattr(line, "get_color") else line.get_edgecolor() for line in series(ax)]
        assert [to_hex(c) for c in drawn] == list(SERIES[:2])
        assert "15:17:18" in words(ax)
        assert "15:19:17, draft model and reasoning parser changed" in words(ax)


def test_curves_of_starts_share_their_bins_and_their_rows_add_up(capture: ddt.Log) -> None:
    rows = by_start(capture)
    whole, parts = ddt.by_context(rows), ddt.by_context(rows, each="run")
    added = parts.groupby("low")["rows"].sum()
    assert added.to_dict() == dict(zip(whole["low"], whole["rows"], strict=True))
    alone = ddt.by_context(rows[rows["run"] == 2], [*whole["low"], whole["high"].iloc[-1]])
    np.testing.assert_allclose(parts[parts["run"] == 2]["step_time_mean_ms"], alone["step_time_mean_ms"])
    with pytest.raises(MetricError, match="no column 'start' to tell rows apart by"):
        ddt.by_context(rows, each="start")


def test_the_titles_tell_starts_apart_by_the_means_of_their_requests(capture: ddt.Log) -> None:
    """The truth of the capture: 3.72 and 2.11 tokens a step, 34.3 and 18.4 tok/s a request."""
    made = curve_of(by_start(capture))
    assert plots.plot_tokens_per_step(made).get_title(loc="left") == "3.72, then 2.11 tokens a step"
    assert plots.plot_speed(made).get_title(loc="left") == "34.3, then 18.4 tok/s a request"


def test_starts_that_differ_by_what_they_were_asked_are_not_told_apart_in_a_title() -> None:
    """In the simulated incident both servers are alike at equal context; the second got the long requests."""
    log = ddt.read(FIXTURES / "incident" / "simulated-journal.export.zst")
    assert "at short context" in plots.plot_speed(curve_of(by_start(log))).get_title(loc="left")


def test_a_start_is_marked_where_the_new_server_began_and_the_hole_before_its_first_step_is_shaded(capture: ddt.Log) -> None:
    rows = by_start(capture)
    ax = plots.plot_throughput(rows, events=capture.events, starts=rows.attrs["starts"])
    (mark,) = [line for line in ax.lines if line.get_gid() == "event"]
    (hole,) = [patch for patch in ax.patches if patch.get_gid() == "hole"]
    told = capture.servers["time"].iloc[1]
    assert mark.get_xdata()[0] * 86400 == pytest.approx(told.timestamp(), abs=1e-3)
    assert "restart 15:19:17" in words(ax)
    at = rows["time_us"].astype(float) / 1e6
    box = hole.get_bbox()
    assert box.x0 * 86400 == pytest.approx(at[rows["run"] == 1].max(), abs=1e-3)
    assert box.x1 * 86400 == pytest.approx(at[rows["run"] == 2].min(), abs=1e-3)
    assert box.x0 < mark.get_xdata()[0] < box.x1


def test_a_hole_that_ends_in_a_restart_is_marked_at_its_end() -> None:
    ends = pd.to_datetime(steps()["time_us"].to_numpy()[[100, 200]], unit="us", utc=True)
    hole = pd.DataFrame({"kind": ["restart"], "start": ends[:1], "end": ends[1:]})
    ax = plots.plot_throughput(steps(), events=hole)
    (mark,) = [line for line in ax.lines if line.get_gid() == "event"]
    assert mark.get_xdata()[0] * 86400e6 == pytest.approx(int(steps()["time_us"].iloc[200]), abs=2e5)  # marks stand in places of 1 %


def test_of_eight_starts_the_last_six_have_colours_and_the_others_are_one_quiet_series() -> None:
    looks = start_looks(SimpleNamespace(run=np.arange(1, 9), runs=[], services=[]))  # type: ignore[arg-type]
    assert [(n, one.color) for n, one in looks.items()] == [(0, QUIET), *zip(range(3, 9), SERIES, strict=True)]
    assert looks[0].name == "earlier starts"
    rows = with_starts(pd.DataFrame({"run": range(1, 9), "context_len": 100, "step_time_ms": 50.0, "tokens": 3}), looks)
    made = ddt.by_context(rows, each="run")
    made.attrs["starts"] = looks
    ax = plots.plot_step_time(made)
    assert [line.get_color() for line in series(ax)] == [QUIET, *SERIES]
    assert [t.get_text() for t in ax.texts if t.get_gid() == "size"] == ["8", "n"]  # seven rows would leave no room: added up


# -- where things stand --------------------------------------------------------------------------------------------------------


def laid_out(ax: Axes) -> Figure:
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    figure.canvas.draw()
    return figure


@pytest.mark.parametrize("name", PICTURES)
def test_legends_and_sample_sizes_stand_outside_of_the_data(name: str) -> None:
    ax = PICTURES[name]()
    laid_out(ax)
    inside = ax.get_window_extent()
    legend = ax.get_legend()
    assert legend is None or legend.get_window_extent().y1 < ax.xaxis.label.get_window_extent().y0 + 1
    for text in ax.texts:
        if text.get_gid() == "size":
            assert Text.get_window_extent(text).y1 <= inside.y0


def test_intervals_lie_inside_the_axes_and_one_that_is_cut_is_an_arrow() -> None:
    made = curve()
    made.loc[2, "step_time_mean_ms_high"] = 5000.0
    ax = plots.plot_step_time(made)
    top = ax.get_ylim()[1]
    ends = [segment[:, 1].max() for held in ax.collections if held.get_gid() == "interval" for segment in held.get_segments()]
    assert max(ends) < top < 5000
    (arrow,) = [line for line in ax.lines if line.get_gid() == "beyond"]
    assert list(arrow.get_xdata()) == [1536]  # (1024 + 2048) / 2


@pytest.mark.parametrize(("low", "scale"), [([64, 512, 4096], "linear"), ([16, 512, 4096], "log")])
def test_context_has_a_log_axis_beyond_two_decades(low: list[int], scale: str) -> None:
    """From (64 + 512) / 2 to 6144 is a factor of 21; bins at 20 and 6144 tokens are a factor of 307 apart."""
    made = curve(low)
    if scale == "log":
        made.loc[0, "x_mean"] = 20.0
    ax = plots.plot_step_time(made)
    assert ax.get_xscale() == scale
    laid_out(ax)
    assert "0" not in [t.get_text() for t in ax.get_xticklabels()] or scale == "linear"


def test_the_line_that_is_drawn_has_the_slope_that_the_diagnosis_tells(capture: ddt.Log) -> None:
    found = ddt.diagnose(capture)
    slope = found.slopes["context_step_ms"].value
    assert slope is not None
    rows = by_start(capture)
    ax = plots.plot_step_time(curve_of(rows[rows["batch_size"] == 1].copy()), fit=found)
    for line in (line for line in ax.lines if line.get_gid() == "fit"):
        x, y = line.get_xdata(), line.get_ydata()
        assert 1000 * (y[-1] - y[0]) / (x[-1] - x[0]) == pytest.approx(slope)
    assert ax.get_title(loc="left") == f"Steps take {slope:.3g} ms longer per 1,000 tokens"


def test_one_budget_is_no_curve() -> None:
    ax = plots.plot_budget(pd.DataFrame({"budget": [11], "tok_per_s": [34.3], "tokens_per_step": [3.72]}))
    said = words(ax).replace("\n", " ")
    assert "the budget was always 11 nodes, and one budget is no curve (34.3 tok/s, 3.72 tokens a step)" in said
    assert not series(ax)


# -- files -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "start"), [("x.png", b"\x89PNG"), ("x.SVG", b"<?xml"), ("x.pdf", b"%PDF")])
def test_the_suffix_decides_what_is_written(tmp_path: Path, name: str, start: bytes) -> None:
    assert plots.save_figure(plots.plot_step_time(curve()), tmp_path / name) == tmp_path / name
    assert (tmp_path / name).read_bytes().startswith(start)
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["x.bmp", "x", "x.png.gz"])
def test_another_suffix_names_those_there_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError, match=r"\.png, \.svg, \.pdf") as caught:
        plots.save_figure(plots.plot_step_time(curve()), tmp_path / name)
    assert caught.value.exit_code == 2
    assert not list(tmp_path.iterdir())


def test_a_figure_that_cannot_be_written_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(b"old")

    def fail(*_: Any, **__: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ddtree_metrics.tables.atomic.Beside.write", fail)
    with pytest.raises(OutputError, match="no space is left"):
        plots.save_figure(Figure(), path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.png"]


def test_a_file_is_kept_unless_it_may_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    plots.save_figure(plots.plot_step_time(curve()), path)
    with pytest.raises(OutputError, match="exists already"):
        plots.save_figure(plots.plot_step_time(curve()), path, force=False)


def test_the_fit_is_drawn_at_the_batch_of_each_bin() -> None:
    # 20 ms, 30 ms for each 1000 tokens in the batch, 10 ms for each request more; the bins have batches of 1, 3 and 1
    frame = curve().head(3).assign(batch_size_mean=[1.0, 3.0, 1.0], batch_context_mean=[256.0, 2000.0, 1500.0])

    def predict(context: Any, batch: float | None = None, *, batch_context: float | None = None) -> pd.DataFrame:
        y = np.full(len(context), 10 + 0.03 * (batch_context or 0.0) + 10 * (batch or 0.0))
        return pd.DataFrame({"context": context, "step_time_ms": y, "low": y - 2, "high": y + 2, "extrapolated": False})

    ax = plots.plot_step_time(frame, fit=fitted(predict=predict))
    (line,) = [line for line in ax.lines if line.get_gid() == "fit"]
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([20 + 7.68, 40 + 60, 20 + 45])
    assert "at each bin's batch" in words(ax)


def test_a_part_that_worked_against_the_change_is_said_in_words() -> None:
    said = words(plots.plot_attribution({"share_step_time": 1.319, "share_acceptance": -0.319, "speed_before": 32.8, "speed_after": 22.6}))
    assert "tokens per step rose and made up for part of the slow-down" in said.replace("\n", " ")
    assert "no interval is known" in said
    assert "made up" not in words(plots.plot_attribution(ATTRIBUTION))
