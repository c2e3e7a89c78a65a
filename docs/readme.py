"""Write the README's tables and outputs anew, or check that they are true.

A block begins with ``<!-- run: COMMAND -->`` (its output follows, as text), ``<!-- python -->`` (the code block that follows is run
and the block after it is what it printed) ``<!-- columns: TABLE -->`` or
``<!-- accepted: requests -->``, and ends with ``<!-- end -->``.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- (run|python|columns|accepted):? ?([^\n]*?) ?-->\n)(.*?)(<!-- end -->)", re.DOTALL)


def output_of(command: str) -> str:
    """Run a command of this project in the repository's root and return what it prints on stdout."""
    words = command.split()
    if words[0] == "ddtree-logs":
        words[:1] = [sys.executable, "-m", "ddtree_metrics"]
    env = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "TZ": "UTC", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def columns_of(table: str) -> str:
    """Make a Markdown table of the columns of one table."""
    from ddtree_metrics.records import TABLES, LoggedLine
    from ddtree_metrics.schema import columns

    record = LoggedLine if table == "common" else TABLES[table]
    shared = set() if table == "common" else {c.name for c in columns(LoggedLine)}
    rows = ["| column | type | unit | meaning |", "| --- | --- | --- | --- |"]
    for c in columns(record):
        if c.name not in shared or not issubclass(record, LoggedLine) or record is LoggedLine:
            rows.append(f"| `{c.name}` | {c.type_name()} | {c.unit or ''} | {c.meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def accepted_names() -> str:
    """Make a Markdown table of the column names that request files may use."""
    from ddtree_metrics.requests.request_fields import ACCEPTED

    rows = ["| column | accepted names |", "| --- | --- |"]
    rows += [f"| `{name}` | {', '.join(f'`{n}`' for n in names)} |" for name, names in ACCEPTED.items()]
    return "\n".join(rows) + "\n"


def run_python(body: str) -> str:
    """Run the code block of ``body`` and put what it printed into the block after it."""
    code = re.search(r"```python\n(.*?)```", body, re.DOTALL)
    if code is None:
        sys.exit("a python block without ```python")
    printed = io.StringIO()
    here = Path.cwd()
    os.chdir(ROOT)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code.group(1), "README", "exec"), {"__name__": "__readme__"})
    finally:
        os.chdir(here)
    return f"```python\n{code.group(1)}```\n\n```\n{printed.getvalue().rstrip()}\n```\n"


def renew(text: str) -> str:
    """Return the page with every block made anew."""

    def make(found: re.Match[str]) -> str:
        head, kind, what, body, end = found.groups()
        if kind == "run":
            return f"{head}```\n{output_of(what).rstrip()}\n```\n{end}"
        if kind == "accepted":
            return head + accepted_names() + end
        if kind == "columns":
            return head + columns_of(what) + end
        return head + run_python(body) + end

    return BLOCK.sub(make, text)


def main() -> None:
    """Renew the pages, or with ``--check`` fail where one is out of date."""
    check = "--check" in sys.argv[1:]
    stale = []
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        new = renew(old)
        if new == old:
            continue
        stale.append(page.relative_to(ROOT))
        if not check:
            page.write_text(new, encoding="utf-8")
    if check and stale:
        sys.exit(f"not up to date: {', '.join(map(str, stale))}; run ./run readme")


if __name__ == "__main__":
    main()
