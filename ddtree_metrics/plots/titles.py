"""What a picture shows, in one line: its title says what is seen, its axis what is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ddtree_metrics.plots.looks import Floats, drawable, field, number, words
from ddtree_metrics.steps import frames as columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from ddtree_metrics.plots.slopes import Slope

SHORT_WORDS = {
    "context_len": "context",
    "prompt_len": "prompt length",
    "generated_len": "generated length",
    "batch_size": "batch size",
    "batch_context": "context of the batch",
    "uptime_s": "uptime",
}
SAME = 1.1
"""A smaller factor between two numbers is no difference that a title tells of."""


def step_time(curve: pd.DataFrame, fit: Any = None, slope: Slope | None = None) -> str:
    """Say how step time goes with the axis."""
    by = _axis(curve)
    if slope is None and words(fit, "model") == "line":
        value = field(fit, "slope_ms_per_1000")
    else:
        value = slope.value if slope is not None else float("nan")
    if np.isfinite(value):
        if slope is not None and slope.low <= 0 <= slope.high:
            return "Step time hardly goes with context"
        return f"Steps take {number(abs(value))} ms {'longer' if value > 0 else 'less'} per 1,000 tokens"
    if words(fit, "model") == "bend":
        return f"Steps get slower beyond {number(field(fit, 'knee'), whole=True)} tokens"
    if words(fit, "model") == "flat":
        return f"Steps take as long at every {by}"
    return _course(curve, "step_time_mean_ms", plainly("Step time", curve), "Steps take {0} ms at short {by}, {1} at long", "ms a step")


def tokens_per_step(curve: pd.DataFrame) -> str:
    """Say how tokens per step differ between starts, or go with the axis."""
    return _course(
        curve,
        "tokens_per_step_pooled",
        plainly("Tokens per step", curve),
        "{0} tokens a step at short {by}, {1} at long",
        "tokens a step",
    )


def speed(curve: pd.DataFrame) -> str:
    """Say how the speed of a request differs between starts, or goes with the axis."""
    return _course(
        curve,
        "tok_per_s",
        plainly("Speed of one request", curve),
        "A request gets {0} tok/s at short {by}, {1} at long",
        "tok/s a request",
    )


def plainly(what: str, curve: pd.DataFrame) -> str:
    """Say what is drawn, and not what is seen."""
    return f"{what} by {_axis(curve)}"


def measured(values: Floats) -> str:
    """Say what a sweep measured."""
    if len(values) < 2:
        return f"Measured: {number(float(values[0]))}"
    return f"Measured: {number(float(values[0]))} at the shortest context, {number(float(values[-1]))} at the longest"


def several(values: list[float], unit: str) -> str:
    """Write the numbers of server starts in their order: ``3.72, then 2.11 tokens a step``."""
    said = [number(v) for v in values]
    if len(said) > 4:
        return f"{number(min(values))} to {number(max(values))} {unit} over {len(said)} server starts"
    return f"{', then '.join(said)} {unit}"


def _axis(curve: pd.DataFrame) -> str:
    by = str(curve.attrs.get("by", "context_len"))
    return SHORT_WORDS.get(by, by.replace("_", " "))


def _course(curve: pd.DataFrame, value: str, neutral: str, course: str, unit: str) -> str:
    """Compare server starts where they differ, else the ends of the axis."""
    x, y = columns.numeric(curve, "x_mean"), drawable(columns.numeric(curve, value))
    if not np.isfinite(x).any():
        x = columns.numeric(curve, "low")
    ok = np.isfinite(x) & np.isfinite(y)
    if not ok.any():
        return neutral
    by = _axis(curve)
    means = [own[value] for own in (curve.attrs.get("means") or {}).values() if np.isfinite(own[value])]
    if value != "step_time_mean_ms" and len(means) > 1 and _differ(curve, value):
        return several(means, unit)
    order = np.argsort(x[ok], kind="stable")
    first, last = float(y[ok][order][0]), float(y[ok][order][-1])
    if ok.sum() < 2 or by == "batch size":
        return neutral
    if max(first, last) <= SAME * min(first, last):
        return f"About {number(float(np.median(y[ok])))} {unit} at every {by}"
    return course.format(number(first), number(last), by=by)


def _differ(curve: pd.DataFrame, value: str) -> bool:
    """Tell whether server starts differ in the bins that they share: else the mix of requests is what made their means differ."""
    each = curve.attrs.get("each", "run")
    values = curve[each].dropna().unique()
    one, other = (curve[curve[each] == v].set_index("low")[["x_mean", "rows", value]].dropna() for v in (values[0], values[-1]))
    both = one.merge(other, left_index=True, right_index=True, suffixes=("_one", "_other"))
    apart = np.abs(np.log(both["x_mean_other"] / both["x_mean_one"].where(both["x_mean_one"] > 0)))
    both = both[~(apart > 2 * np.log(SAME))]  # in wide bins two starts may stand at its two ends
    weight = np.minimum(both["rows_one"], both["rows_other"])
    if not weight.sum():
        return False
    return bool(abs(np.average(np.log(both[f"{value}_other"] / both[f"{value}_one"]), weights=weight)) > np.log(SAME))


def described(ax: Axes) -> str:
    """Say in words what a picture shows: its title, what is measured against what, and where each series begins and ends."""
    title = " ".join(ax.get_title(loc="left").split())
    nothing = [t.get_text() for t in ax.texts if t.get_gid() == "nothing"]
    if nothing:
        return f"{title}. {' '.join(nothing[0].split())}"
    axes = [" ".join(text.partition("\n")[0].split()) for text in (ax.get_ylabel(), ax.get_xlabel())]
    said = [title, f"{axes[0]} against {axes[1]}" if axes[0] else axes[1]]
    starts = [t.get_text() for t in ax.texts if t.get_gid() == "start"]
    lines = [line for line in ax.lines if line.get_gid() == "series"]
    for place, line in enumerate(lines):
        x, y = np.asarray(line.get_xdata(orig=False), dtype=float), np.asarray(line.get_ydata(), dtype=float)
        x, y = x[np.isfinite(y)], y[np.isfinite(y)]
        name = f"series {place + 1} of {len(lines)}: " if len(lines) > 1 else ""
        if not len(y):
            continue
        if "time (" in axes[1]:
            said.append(f"{name}from {number(float(y.min()))} to {number(float(y.max()))}, {number(float(y.mean()))} on average")
            continue
        ends = [f"{number(float(y[i]))} at {number(float(x[i]), whole=True)}" for i in (0, -1)]
        said.append(name + ", ".join(ends))
    labels = [str(label) for label in ax.get_legend_handles_labels()[1]]
    return ". ".join([*said, *starts, *labels]).replace("$", "")
