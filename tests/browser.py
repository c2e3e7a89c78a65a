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
FRAMES = r"""<!doctype html><meta charset="utf-8"><body><script>
const out = [], jobs = JOBS;
let left = jobs.length;
const box = e => e.getBoundingClientRect();
const shown = e => box(e).width > 0;
function scale(text) {
  const svg = text.closest("svg");
  return parseFloat(getComputedStyle(text).fontSize) * box(svg).width / svg.viewBox.baseVal.width;
}
// Pieces of text in a picture that lie on each other, by more than a hair.
function overlaps(d) {
  const found = [];
  for (const svg of [...d.querySelectorAll("figure svg")].filter(shown)) {
    const texts = [...svg.querySelectorAll("text")].filter(t => t.textContent.trim()).map(t => [t.textContent.trim(), box(t)]);
    const all = box(svg);
    for (const [i, [said, a]] of texts.entries()) {
      if (a.left < all.left - 2 || a.right > all.right + 2 || a.bottom > all.bottom + 2) found.push(["cut off", said]);
      for (const [other, b] of texts.slice(i + 1)) {
        const x = Math.min(a.right, b.right) - Math.max(a.left, b.left), y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (x > 1 && y > 0.3 * Math.min(a.height, b.height)) found.push([said, other]);
      }
    }
  }
  return found;
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
    scrolled: [...d.querySelectorAll("*")]
      .filter(e => shown(e) && e.scrollWidth > e.clientWidth + 1 && ["auto", "scroll"].includes(getComputedStyle(e).overflowX))
      .map(e => e.className + ": " + e.textContent.trim().slice(0, 60)),
    overlaps: overlaps(d),
    words: d.body.innerText.split(/\s+/).filter(w => /[\p{L}\p{N}]/u.test(w)).length,
    boxes: [...d.querySelectorAll("#answer > *, h1")].filter(shown).map(
      e => ({name: e.className || e.tagName, top: box(e).top, bottom: box(e).bottom, right: box(e).right, text: e.innerText})),
    alt: [...d.querySelectorAll("figure svg")].filter(shown).map(e => e.getAttribute("aria-label")),
  };
}
for (const [name, width] of jobs) {
  const frame = document.createElement("iframe");
  frame.style = "border:0;height:900px;width:" + width + "px";
  frame.onload = () => {
    if (UNFOLDED) frame.contentDocument.querySelectorAll("details").forEach(e => { e.open = true; });
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


def look(folder: Path, names: Sequence[str], widths: Sequence[int] = (360, 1200), *, dark: bool = False, unfolded: bool = False) -> Seen:
    """Open pages of a folder at some widths, all in one run of the browser; with every fold open, if that is asked."""
    jobs = [[name, width] for name in names for width in widths]
    frames, log = folder / f"frames-{dark}-{unfolded}.html", folder / f"net-{dark}-{unfolded}.json"
    frames.write_text(FRAMES.replace("JOBS", json.dumps(jobs)).replace("UNFOLDED", json.dumps(unfolded)), encoding="utf-8")
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
