"""Execute the notebooks in clean kernels; ``python notebooks/run.py`` writes their outputs back, to be read without running."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from html import unescape
from pathlib import Path

import matplotlib
import matplotlib.font_manager  # makes the list of fonts here, once; a kernel that had to would say so in its outputs
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
TIMEOUT_S = 300


def execute(path: Path) -> nbformat.NotebookNode:
    """Run a notebook from its own folder in a new kernel; raises nbclient's CellExecutionError if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as empty:
        # no settings of whoever runs it: neither of IPython nor of matplotlib
        plain = str(Path(matplotlib.get_data_path()) / "matplotlibrc")
        clean = {**os.environ, "IPYTHONDIR": empty, "MATPLOTLIBRC": plain, "PYTHONWARNINGS": "default"}
        client = NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}})
        client.execute(env=clean)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day, which would change with every run
    return notebook


def text_of(notebook: nbformat.NotebookNode) -> str:
    """Return what the cells printed and showed."""
    said = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            said.append(output.get("text", "") or data.get("text/plain", ""))
            said.append(unescape(re.sub(r"<[^>]*>", " ", data.get("text/html", ""))))
    return "\n".join(said)


def main() -> None:
    """Execute the notebooks that are named, or all, and write them back."""
    chosen = [Path(a) for a in sys.argv[1:]] or sorted(HERE.glob("*.ipynb"))
    for path in chosen:
        nbformat.write(execute(path), path)


if __name__ == "__main__":
    main()
