"""How every picture looks: colours, sizes, axes, legends, and the sentence that stands where there is nothing to draw."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

BLUE, ORANGE, GREEN, VERMILLION = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PURPLE, SKY = "#cc79a7", "#56b4e9"
SERIES: Final = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
"""The order in which series are coloured: Okabe and Ito's palette, without the yellow that white paper swallows."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P")
INK: Final = "#1f2328"
QUIET: Final = "#6f7680"
"""For what is read second: sample sizes, reference lines."""
FAINT: Final = "#d5d9de"
"""For the grid."""

SIZE: Final = (4.8, 3.3)
"""Inches; the letters of 8 to 10 points stay readable when it fills half a page."""
# mypy knows each name of a matplotlib setting, and a dict of them no more.
STYLE: Final[Any] = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "svg.hashsalt": "ddtree_metrics",
    "savefig.dpi": 200,
}
DASHES: Final = (0, (4, 3))
DOTS: Final = (0, (2, 2))


def new_axes(ax: Axes | None, title: str, size: tuple[float, float] = SIZE, *, plainly: str | None = None) -> Axes:
    """Return the Axes to draw on, a new figure's if there is none, dressed if it is still bare.

    A title tells what is seen of one call; where a second one draws on the same Axes, ``plainly`` takes the place of a title of ours.
    """
    if ax is None:
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=size, layout="constrained")
            FigureCanvasAgg(figure)
            ax = figure.add_subplot()
    if not series_of(ax) and not has(ax, "nothing"):
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8.5)
        ax.grid(axis="y", color=FAINT, lw=0.7, zorder=0)
        ax.set_axisbelow(True)
    own = ax.get_title(loc="left") in ("", ax.__dict__.get("_ddtree_title"))
    if series_of(ax):
        title = plainly or ""
    if title and own:
        entitle(ax, title)
    return ax


def entitle(ax: Axes, title: str) -> None:
    """Write what is seen above a picture, in lines that fit it."""
    ax.set_title(textwrap.fill(plain(title), fitting(ax, 6.6)), loc="left", fontsize=10, fontweight="bold")
    ax.__dict__["_ddtree_title"] = ax.get_title(loc="left")


def finish(ax: Axes, ylabel: str, *, top: float | None = None, ncols: int = 1) -> Axes:
    """Start the y axis at zero with all intervals inside, and write sample sizes and legend below; without a series nothing is done."""
    if not series_of(ax):
        return ax
    ax.set_ylabel(ylabel, fontsize=9)
    highest = top if top is not None else _highest(ax)
    headroom = 1.18 if has(ax, "start") else 1.06  # words of server starts stand above the data
    ax.set_ylim(0.0, (highest or 1.0) * (1.0 if top is not None else headroom))
    below = _write_sizes(ax)
    lines_of_label = 1 + ax.get_xlabel().count("\n")
    handles, labels = ax.get_legend_handles_labels()
    if len(handles) > MOST_LINES:  # sizes of series that are named elsewhere would take the room of the picture
        kept = [i for i, said in enumerate(labels) if not str(said).startswith("n = ")]
        handles, labels = [handles[i] for i in kept], [labels[i] for i in kept]
    ncols = ncols if all(len(str(said)) < 28 for said in labels) else 1
    if handles:
        from matplotlib.transforms import ScaledTranslation

        figure: Any = ax.get_figure(root=True)
        under = ax.transAxes + ScaledTranslation(0.0, -(below + 20 + 12 * lines_of_label) / 72, figure.dpi_scale_trans)
        ax.legend(
            handles,
            [textwrap.fill(plain(shorten(str(said), 90)), fitting(ax, 5.6) - 6) for said in labels],
            fontsize=8,
            loc="upper left",
            bbox_to_anchor=(-0.02, 0.0),
            bbox_transform=under,
            ncols=ncols,
            frameon=False,
            handlelength=1.8,
            borderaxespad=0.0,
            borderpad=0.1,
            columnspacing=1.2,
            labelspacing=0.35,
        )
    return ax


def _highest(ax: Axes) -> float:
    """Return the highest finite thing that is drawn in data coordinates."""
    found = [0.0]
    for line in ax.lines:
        if line.get_transform().contains_branch(ax.transData) and line.get_gid() not in ("event", "reference", "size"):
            y = np.asarray(line.get_ydata(), dtype=float)
            found += [float(np.nanmax(y))] if np.isfinite(y).any() else []
    drawn: Any
    for drawn in (*ax.collections, *ax.patches):
        if drawn.get_gid() in ("interval", "series"):
            box = drawn.get_datalim(ax.transData) if hasattr(drawn, "get_datalim") else drawn.get_path().get_extents()
            found.append(float(box.y1))
    return max(v for v in found if np.isfinite(v))


def nothing(ax: Axes, why: str, label: str | None = None) -> Axes:
    """Say why there is nothing to draw; beside other series it is a line of the legend."""
    if series_of(ax):
        ax.plot([], [], ls="none", label=f"{label or 'one more'}: {plain(why)}")
        return finish(ax, ax.get_ylabel())
    for text in [t for t in ax.texts if t.get_gid() == "nothing"]:
        why = f"{text.get_text()}\n{label or 'one more'}: {plain(why)}"
        text.remove()
    ax.grid(visible=False)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    said = textwrap.fill(f"Nothing to draw: {shorten(plain(why), 400)}", 44)
    ax.text(0.02, 0.96, said, transform=ax.transAxes, ha="left", va="top", fontsize=9.5, color=QUIET, gid="nothing", linespacing=1.5)
    return ax


def series_of(ax: Axes) -> list[Any]:
    """Return what was drawn as a series so far."""
    return [drawn for drawn in (*ax.lines, *ax.patches) if drawn.get_gid() == "series"]


def has(ax: Axes, gid: str) -> bool:
    """Tell whether something of this kind is drawn already."""
    return any(drawn.get_gid() == gid for drawn in (*ax.lines, *ax.texts, *ax.collections))


def look(ax: Axes, color: str | None) -> tuple[str, str]:
    """Return the colour and marker of the next series; a colour of the palette has its marker, so that both stay together."""
    n = SERIES.index(color) if color in SERIES else len(series_of(ax))
    return color or SERIES[n % len(SERIES)], MARKERS[n % len(MARKERS)]


WIDEST: Final = 1.75
"""An interval that reaches beyond so many times the highest point is cut there."""


def error_bars(ax: Axes, x: Floats, y: Floats, low: Floats, high: Floats, color: str) -> None:
    """Draw the intervals that are there."""
    ok = np.isfinite(low) & np.isfinite(high) & np.isfinite(x) & np.isfinite(y)
    if not ok.any():
        return
    most = WIDEST * float(np.nanmax(y))  # an interval that is far wider than anything else would hide the rest: its end becomes an arrow
    ax.vlines(x[ok], low[ok], np.minimum(high[ok], most), color=color, lw=1.3, zorder=3, gid="interval")
    beyond = ok & (high > most)
    if beyond.any():
        ax.plot(x[beyond], np.full(int(beyond.sum()), most), ls="none", marker="^", ms=4.5, color=color, zorder=3, gid="beyond")


def sizes(ax: Axes, x: Floats, n: Floats, color: str) -> None:
    """Note sample sizes; ``finish`` writes them in a row a series below the x axis, each under its point."""
    ok = np.isfinite(n)
    if ok.any():
        _kept(ax).append((x[ok], n[ok], color))


def _kept(ax: Axes) -> list[tuple[Floats, Floats, str]]:
    kept: list[tuple[Floats, Floats, str]] = ax.__dict__.setdefault("_ddtree_sizes", [])
    return kept


STRIP_PT: Final = 6.0
"""Room for the thin lines from points to sample sizes that had to be moved aside."""
ROW_PT: Final = 9.5
MOST_LINES: Final = 5
"""Of longer legends, lines that only say sizes are left out."""
MOST_ROWS: Final = 3
"""More series than that share one row, in which sizes at about the same place are added up."""


def _write_sizes(ax: Axes) -> float:
    """Write the rows of sample sizes between the axis and its numbers; returns how many points of room they take.

    Those that would run into each other are moved aside, with a thin line to their place.
    """
    for old in [drawn for drawn in ax.texts if drawn.get_gid() == "size"]:
        old.remove()
    rows = _kept(ax)
    if not rows:
        return 0.0
    across = _points_across(ax)
    if len(rows) > MOST_ROWS:
        rows = [_together(ax, rows)]
    for row, (x, n, color) in enumerate(rows):
        down = -(STRIP_PT + ROW_PT * row)
        shown = [number(v, whole=True) for v in n]
        if _widths(shown).sum() > 0.95 * across:
            shown = [_short(v) for v in n]
        widths = _widths(shown)
        wanted = _along(ax, x) * across
        keep = np.ones(len(x), dtype=bool)
        while widths[keep].sum() > 0.95 * across and keep.sum() > 2:  # too many to stand in one row: every other one
            keep[np.flatnonzero(keep)[1::2]] = False
        tint = QUIET if len(rows) == 1 else color
        places = _spread(wanted[keep], widths[keep], across)
        for place, at, text in zip(places, wanted[keep], (t for t, k in zip(shown, keep, strict=True) if k), strict=True):
            moved = (
                None
                if row or abs(place - at) < 2
                else {"arrowstyle": "-", "lw": 0.5, "color": tint, "shrinkA": 0, "shrinkB": 0, "relpos": (0.5, 1.0)}
            )
            ax.annotate(
                text,
                (at / across, 0.0),
                (place - at, down),
                xycoords="axes fraction",
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=7,
                color=tint,
                gid="size",
                annotation_clip=False,
                arrowprops=moved,
            )
        if row == 0:
            ax.annotate(
                "n", (0.0, 0.0), (-5.0, down), xycoords="axes fraction", textcoords="offset points", ha="right", va="top", fontsize=7,
                color=QUIET, gid="size", annotation_clip=False,
            )  # fmt: skip
    room = STRIP_PT + ROW_PT * len(rows)
    ax.tick_params(axis="x", pad=room + 3, length=0)
    return room


def fitting(ax: Axes, points: float) -> int:
    """Return how many letters of so many points fit between the ends of the x axis."""
    return max(24, int(_points_across(ax) / points))


def _together(ax: Axes, rows: list[tuple[Floats, Floats, str]]) -> tuple[Floats, Floats, str]:
    """Add up the sizes of several series where they stand at about the same place."""
    x, n = (np.concatenate([row[i] for row in rows]) for i in (0, 1))
    order = np.argsort(x, kind="stable")
    x, n = x[order], n[order]
    group = np.cumsum(np.concatenate([[0], np.diff(_along(ax, x)) > 0.03]))
    many = np.bincount(group)
    return np.bincount(group, x) / many, np.asarray(np.bincount(group, n), dtype=np.float64), QUIET


def _points_across(ax: Axes) -> float:
    """Guess how many points wide the axes will be: most of their part of the figure."""
    figure: Any = ax.get_figure(root=True)
    spec = ax.get_subplotspec()
    columns_of_figure = 1 if spec is None else spec.get_gridspec().ncols
    return float(72 * figure.get_figwidth() / columns_of_figure * 0.84)


def _along(ax: Axes, x: Floats) -> Floats:
    """Return where values lie between the ends of the x axis, as shares of its length."""
    left, right = ax.get_xlim()
    if ax.get_xscale() == "log":
        return np.asarray(np.log(x / left) / np.log(right / left))
    return np.asarray((x - left) / (right - left))


def _widths(texts: list[str]) -> Floats:
    """Return how many points texts of 7 points take, with a gap."""
    return np.array([4.6 * len(t) + 5.0 for t in texts])


def _short(value: float) -> str:
    """Write a count with three figures: 12.3k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"


def _spread(wanted: Floats, widths: Floats, across: float) -> Floats:
    """Move labels sideways until none overlaps the next, as little as a sweep from each side can."""
    places = wanted.copy()
    places[:1] = np.maximum(places[:1], widths[:1] / 2)
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + (widths[i] + widths[i - 1]) / 2)
    if len(places):
        places[-1] = min(places[-1], across)
    for i in range(len(places) - 2, -1, -1):
        places[i] = min(places[i], places[i + 1] - (widths[i] + widths[i + 1]) / 2)
    return places


def drawable(values: Floats) -> Floats:
    """Return values with NaN where they are infinite, or so large that no axis can hold them and they are no measurement."""
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(values) <= 1e15, values, np.nan)


def shorten(text: str, most: int) -> str:
    """Cut a text that would not fit."""
    return text if len(text) <= most else text[: most - 1] + "…"


def plain(text: str) -> str:
    """Return text that matplotlib will not read as mathematics, without control characters."""
    return re.sub(r"(?<!\\)\$", r"\\$", "".join(c if c.isprintable() or c == "\n" else " " for c in text))


def number(value: float, *, whole: bool = False, signed: bool = False) -> str:
    """Write a number as it is read: three figures, thousands apart; dust of floating-point arithmetic as 0."""
    if not np.isfinite(value):
        return "?"
    if abs(value) < 5e-6:
        return "0"
    if signed and value > 0:
        return "+" + number(value, whole=whole)
    if whole or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def field(held: Any, name: str, end: str = "") -> float:
    """Read a number from an object or mapping; NaN where it is missing, null or no number.

    ``end`` is ``low`` or ``high`` for the ends of an interval, which stand beside the number (``name_low``) or inside it (``.low``).
    """
    value = _read(held, name)
    if hasattr(value, "low") and hasattr(value, "value"):
        value = getattr(value, end or "value")
    elif end:
        value = _read(held, f"{name}_{end}")
    try:
        made = float(value)
    except (TypeError, ValueError):
        return float("nan")
    return made if np.isfinite(made) else float("nan")


def words(held: Any, name: str) -> str | None:
    """Read a text from an object or mapping."""
    value = _read(held, name)
    return value if isinstance(value, str) and value else None


def _read(held: Any, name: str) -> Any:
    return held.get(name) if isinstance(held, Mapping) else getattr(held, name, None)
