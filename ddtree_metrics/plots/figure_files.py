"""Figures as bytes and as files: PNG, SVG, PDF; the same figure gives the same bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from ddtree_metrics.errors import OutputError
from ddtree_metrics.plots.looks import STYLE
from ddtree_metrics.tables.atomic import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS: Final = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
"""What can be written, by suffix."""
# Neither a date nor the version of the writer, so that the same data gives the same file.
PLAIN: Final[dict[str, dict[str, Any]]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": "ddtree_metrics"},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": "ddtree_metrics"},
}


def render_figure(figure: Figure | Axes, format: str = "png", *, text: bool = False) -> bytes:
    """Return a figure as the bytes of a PNG, SVG or PDF.

    Parameters
    ----------
    figure : Figure or Axes
        What to draw; an ``Axes`` stands for its figure.
    format : {"png", "svg", "pdf"}
        What as.
    text : bool
        Whether the letters of an SVG stay text, to be set in the fonts of whoever shows it, instead of outlines.

    Raises
    ------
    OutputError
        If the format is none of these.
    """
    if format not in PLAIN:
        raise OutputError(f"cannot draw a figure as {format!r}; there are png, svg and pdf", usage=True)
    held = figure if isinstance(figure, Figure) else figure.get_figure(root=True)
    assert isinstance(held, Figure)
    into = io.BytesIO()
    with mpl.rc_context({**STYLE, "svg.fonttype": "none" if text else "path"}):
        held.savefig(into, format=format, metadata=PLAIN[format])
    return into.getvalue()


def save_figure(figure: Figure | Axes, path: str | Path, *, force: bool = True) -> Path:
    """Write a figure; the suffix decides between PNG, SVG and PDF. Afterwards the whole file is there, or the old one still is.

    Parameters
    ----------
    figure : Figure or Axes
        What to write; an ``Axes`` stands for its figure.
    path : str or Path
        Where to, ending in ``.png``, ``.svg`` or ``.pdf``.
    force : bool
        Whether a file that is there may be replaced.

    Returns
    -------
    Path
        Where it was written.

    Raises
    ------
    OutputError
        If the suffix is another one, or the file cannot be written.
    """
    target = Path(path)
    kind = FORMATS.get(target.suffix.lower())
    if kind is None:
        raise OutputError(f"cannot tell from {target.name!r} what to write: end it in {', '.join(FORMATS)}", usage=True)
    write_whole(target, render_figure(figure, kind), force=force)
    return target
