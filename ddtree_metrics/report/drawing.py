"""Plots as inline SVG that takes its colours from the page, so that it reads in light and in dark and on paper."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ddtree_metrics.plots import looks, render_figure
from ddtree_metrics.plots.titles import described
from ddtree_metrics.report.markup import Html, escape, tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE: Final = (9.8, 3.0)
NARROW: Final = (4.3, 3.2)
COLOURS: Final = {
    looks.INK: "var(--ink)",
    looks.QUIET: "var(--quiet)",
    looks.FAINT: "var(--grid)",
    looks.BLUE: "var(--blue)",
    looks.ORANGE: "var(--orange)",
    looks.GREEN: "var(--green)",
    looks.VERMILLION: "var(--vermillion)",
    looks.PURPLE: "var(--purple)",
    looks.SKY: "var(--sky)",
}


def draw(plot: Callable[[Axes], Any], *, size: tuple[float, float] = NARROW, class_: str = "") -> Html:
    """Draw a plot and return it as a figure element.

    Parameters
    ----------
    plot : callable
        Draws on the Axes it is given; what it shows, for those who cannot see it, is read off them.
    size : (float, float)
        Inches.
    class_ : str
        Of the figure element.
    """
    with mpl.rc_context(looks.STYLE):
        made = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(made)
        made.patch.set_alpha(0.0)
        ax = made.add_subplot()
        ax.patch.set_alpha(0.0)
        plot(ax)
        text = render_figure(made, "svg", text=True).decode()
    return tag("figure", _themed(text, described(ax)), class_=class_ or None)


def _themed(text: str, what: str) -> Html:
    """Strip what a page does not need, and take colours and letters from the page."""
    inside = text[text.index("<svg") :]
    inside = re.sub(r"<metadata>.*?</metadata>", "", inside, flags=re.S)
    inside = re.sub(r"<!--.*?-->", "", inside, flags=re.S)
    inside = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", inside, flags=re.S)  # page.css says the same, for pictures only
    box = re.search(r'viewBox="([^"]+)"', inside)
    inside = inside[inside.index(">") + 1 :]
    # only what is referred to keeps its id; every picture has its own, made from what it shows
    named = set(re.findall(r"url\(#([^)]+)\)", inside)) | set(re.findall(r'href="#([^"]+)"', inside))
    inside = re.sub(r' id="([^"]+)"', lambda m: m.group(0) if m.group(1) in named else "", inside)
    mark = f"f{zlib.crc32(text.encode()):08x}-"
    inside = re.sub(r"url\(#", f"url(#{mark}", inside)
    inside = re.sub(r'href="#', f'href="#{mark}', inside).replace("xlink:href", "href")
    inside = re.sub(r' id="', f' id="{mark}', inside)
    inside = re.sub(r"font: ([^;\"]*?)(\d+(?:\.\d+)?)px [^;\"]*", r"font: \1\2px var(--sans)", inside)
    for colour, variable in COLOURS.items():
        inside = inside.replace(colour, variable)
    inside = re.sub(r"\n\s*", "\n", inside)
    view = box.group(1) if box else "0 0 100 100"
    return Html(f'<svg viewBox="{escape(view)}" role="img" aria-label="{escape(what)}">{inside}')
