"""Run the code of ``gallery.md`` and draw its pictures; ``python docs/gallery.py`` writes them where the page shows them."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BLOCK = re.compile(r"```python\n(.*?)```(?:\s*!\[(.*?)\]\(gallery/(.*?)\))?", re.S)


def draw(folder: Path) -> dict[str, tuple[str, str, str]]:
    """Run each block from the root of the repository; returns code, words beside the picture, and its title, by the picture's name."""
    import ddtree_metrics as ddt

    made: dict[str, tuple[str, str, str]] = {}
    held: dict[str, Any] = {}
    before = Path.cwd()
    os.chdir(HERE.parent)
    try:
        for code, alt, name in BLOCK.findall((HERE / "gallery.md").read_text(encoding="utf-8")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ddt.DDTreeWarning)
                exec(code, held)
            if name:
                ddt.save_figure(held["ax"], folder / name)
                made[name] = code, alt, " ".join(held["ax"].get_title(loc="left").split())
    finally:
        os.chdir(before)
    return made


if __name__ == "__main__":
    (HERE / "gallery").mkdir(exist_ok=True)
    for name, (_, alt, title) in draw(HERE / "gallery").items():
        print(name, title, "" if alt == title else f"BUT THE PAGE SAYS: {alt}", file=sys.stderr)
