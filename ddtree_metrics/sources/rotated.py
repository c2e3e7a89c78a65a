"""The names that rotation gives to files: ``run.log.2.gz``, ``run.log-20260505``."""

from __future__ import annotations

import re

_PACKED = r"(?:\.(?:gz|zst|xz|bz2))?"
# run.log.1, run.log.2.gz; run.log-20260101, run.log.2026-01-01.zst, 0.log.20260129-005248.gz
# A number of four digits tells servers apart (server.8000), not files of one.
_NUMBERED = re.compile(rf"(?P<base>.+)\.(?P<number>\d{{1,3}}){_PACKED}$")
_DATED = re.compile(rf"(?P<base>.+?)[.-](?P<date>\d{{4}}-?\d\d-?\d\d(?:[T_.-]?\d{{2,6}}(?:[:-]?\d\d)*)?){_PACKED}$")


def rotation(name: str) -> tuple[str, tuple[int, str]]:
    """Return the base name of a file of a rotated set, and its place in it: the smaller the older.

    ``run.log.2.gz`` is older than ``run.log.1``, both are older than ``run.log``; dated files go by their dates.
    """
    match = _DATED.match(name)
    if match:
        return match["base"], (-(10**6), re.sub(r"\D", "", match["date"]))
    match = _NUMBERED.match(name)
    if match:
        return match["base"], (-int(match["number"]), "")
    return re.sub(rf"{_PACKED}$", "", name), (0, "")
