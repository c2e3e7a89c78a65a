"""Print how many lines of code each package has: without blank lines, comments and docstrings.

``python docs/size.py`` prints the table; with ``--write`` it is put into ``docs/design.md``, which a test keeps true to a tenth.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "ddtree_metrics"
PAGE = Path(__file__).parent / "design.md"
TABLE = re.compile(r"\| package \| modules \|.*?(?=\n\n)", re.DOTALL)
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Count the lines of a module that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def sizes(package: Path = PACKAGE) -> dict[str, tuple[int, int]]:
    """Return the modules and code lines of each package; modules of no package are ``.``."""
    found: dict[str, list[int]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        found[path.parent.relative_to(package).as_posix()].append(code_lines(path.read_text()))
    return {name: (len(counts), sum(counts)) for name, counts in sorted(found.items())}


def table() -> str:
    """Lay the sizes out as a table in Markdown."""
    packages = sizes()
    rows = [(f"`{name}/`" if name != "." else "modules of no package", *counts) for name, counts in packages.items()]
    rows.append(("all", sum(m for m, _ in packages.values()), sum(n for _, n in packages.values())))
    body = [f"| {name} | {modules} | {lines:,} |" for name, modules, lines in rows]
    return "\n".join(["| package | modules | code lines |", "| --- | ---: | ---: |", *body])


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(TABLE.sub(table(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table())
