"""Pages in a real browser without a screen: what they log, what they ask the network for, and how they lie on wide and narrow screens."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

MISSING = "chromium is not installed, and the report's tests open its pages in it: apt-get install chromium"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--allow-file-access-from-files",
    "--enable-logging=stderr",
]

# Each page is opened in frames of several widths; the script that measures them is the test's, the pages have none.
FRAMES = """<!doctype html><meta charset="utf-8"><body><script>
const out = [], jobs = JOBS;
let left = jobs.length;
const box = e => e.getBoundingClientRect();
const shown = e => box(e).width > 0;
function scale(text) {
  const svg = text.closest("svg");
  return parseFloat(getComputedStyle(text).fontSize) * box(svg).width / svg.viewBox.baseVal.width;
}
function measure(name, width, d) {
  const r = d.documentElement, style = getComputedStyle(d.body);
  const wide = [...d.querySelectorAll("body *")].filter(e => !e.closest(".scroll, pre, svg") && box(e).right > r.clientWidth + 1);
  return {
    name, width, scroll: r.scrollWidth, client: r.clientWidth, height: r.scrollHeight, title: d.title,
    background: style.backgroundColor, ink: style.color, scripts: d.scripts.length,
    figures: [...d.querySelectorAll("figure svg")].filter(shown).length,
    letters: Math.min(...[...d.querySelectorAll("svg text")].filter(shown).map(scale)),
    beyond: wide.map(e => e.tagName + "." + e.className).slice(0, 5),
    ids: [...d.querySelectorAll("[id]")].map(e => e.id),
  };
}
for (const [name, width] of jobs) {
  const frame = document.createElement("iframe");
  frame.style = "border:0;height:900px;width:" + width + "px";
  frame.onload = () => {
    out.push(measure(name, width, frame.contentDocument));
    if (--left > 0) return;
    const pre = document.createElement("pre");
    pre.id = "out";
    pre.textContent = JSON.stringify(out);
    document.body.appendChild(pre);
  };
  frame.src = name;
  document.body.appendChild(frame);
}
</script></body>"""


@dataclass
class Seen:
    """What came of opening pages."""

    frames: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def chromium() -> str:
    """Find the browser; a test that needs it fails without it, it is not skipped."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, MISSING
    return found


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the browser once, with a profile of its own and no way out to the network."""
    command = [chromium(), *FLAGS, f"--user-data-dir={folder / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def look(folder: Path, names: Sequence[str], widths: Sequence[int] = (360, 1200), *, dark: bool = False) -> Seen:
    """Open pages of a folder at some widths, all in one run of the browser."""
    jobs = [[name, width] for name in names for width in widths]
    frames, log = folder / f"frames-{dark}.html", folder / f"net-{dark}.json"
    frames.write_text(FRAMES.replace("JOBS", json.dumps(jobs)), encoding="utf-8")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    done = run(folder, scheme, f"--log-net-log={log}", "--virtual-time-budget=20000", "--dump-dom", frames.as_uri())
    measured = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.S)
    assert measured, f"the browser did not show the pages: {done.stderr[-2000:]}"
    seen = Seen()
    for one in json.loads(unescape(measured.group(1))):
        seen.frames[one["name"], one["width"]] = one
    seen.console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    for event in json.loads(log.read_text())["events"]:
        held = event.get("params") or {}
        # the browser's own calls have no origin; what a page asks for has one
        if isinstance(held, dict) and held.get("initiator", "not an origin") != "not an origin" and not held["url"].startswith("file:"):
            seen.requests.append(held["url"])
    return seen
