"""Requests of servers that give each of them a slot and a number, and print a block of lines when one ends (llama.cpp and its forks).

The lines of a request are put together by slot and number, within one process. Where a line has neither, it belongs to the one before it
of the same process, for it was one message; where the number is missing (``task -1``), the release of the slot tells it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ddtree_metrics.requests.checks import Row
from ddtree_metrics.requests.step_means import mean_steps, steps_of

EVENTS = (
    "assigned", "prompt", "cached", "timings", "prefill_timing", "decode_timing", "drafts", "verified", "released", "cancelled", "refused",
)  # fmt: skip
"""The events of ``request_lines`` that are read here."""

BACK_US = 1_000_000
"""Lines of several threads may stand a little out of order; a clock that goes back further is another process's."""

_STATED = ("prompt_tokens", "cached_tokens", "prefill_tokens", "completion_tokens", "prefill_ms", "decode_ms", "end_context")
_DRAFTS = ("accepted_drafts", "proposed_drafts", "mean_accept_len", "position_accept_rates")


def fold(lines: Iterable[Row]) -> list[Row]:
    """Make one row a request out of the lines that speak of slots, in the order of the lines.

    Parameters
    ----------
    lines : iterable of dict
        Rows of ``request_lines``, times in microseconds.

    Returns
    -------
    list of dict
        Rows of ``requests``, before they are checked. Refused requests are none. A request that was cancelled has no times.
    """
    made: list[Row] = []
    processes: dict[tuple[Any, ...], _Process] = {}
    for line in lines:
        key = tuple(line[name] for name in ("boot_id", "pid", "unit", "_file"))
        process = processes.get(key)
        if process is None or process.over(line):
            if process is not None:
                process.finish()
            process = processes[key] = _Process(made)
        process.take(line)
    for process in processes.values():
        process.finish()
    return [row for row in made if not row.get("_refused")]


class _Process:
    """The requests of one server process, as its lines come."""

    def __init__(self, made: list[Row]) -> None:
        self.made = made
        self.own: list[Row] = []
        self.by_slot: dict[int, Row] = {}
        self.last: Row | None = None
        self.begun: int | None = None
        self.reached_us = 0

    def over(self, line: Row) -> bool:
        """Whether a line is of another process: its clock, which counts from the start of the process, is back at the beginning."""
        told = line["since_start_us"]
        return told is not None and told < self.reached_us - BACK_US

    def take(self, line: Row) -> None:
        event = line["event"]
        self.reached_us = max(self.reached_us, line["since_start_us"] or 0)
        if line["time"] is not None and line["since_start_us"] is not None:
            # the frame's clock trails the head's, so that the least difference is nearest to the truth
            apart = line["time"] - line["since_start_us"]
            self.begun = apart if self.begun is None else min(self.begun, apart)
        if event in ("cancelled", "refused"):
            self._end(event, line)
            return
        row = self._row(line)
        if row is None:
            return
        self.last = row
        row["_seen"].add(event)
        for name in _STATED:
            if line[name] is not None and (name != "cached_tokens" or name not in row):
                row[name] = line[name]
        if event == "verified":
            row["_verified"] = row.get("_verified", 0) + 1
        elif event == "drafts":
            row.update({name: line[name] for name in _DRAFTS if line[name] is not None})
        elif event == "decode_timing":
            row["finished"], row["_end_us"] = line["time"], line["since_start_us"]
        elif event == "released":
            row["_truncated"] = dict(line["extra"] or ()).get("truncated") == "1"
            row["_released"] = True

    def _row(self, line: Row) -> Row | None:
        """Return the request that a line is of; a new one where it begins one."""
        event, slot, task = line["event"], line["slot"], line["task"]
        if slot is None:
            if self.last is None:
                return None
            slot = int(self.last["_slot"])
        row = self.by_slot.get(slot)
        known = None if row is None else row.get("_task")
        same = task is None or known is None or task == known
        if row is not None and same and event != "assigned" and not self._over(row, event, task):
            if task is not None:
                row["_task"] = task
            return row
        if event == "released" and task is not None and (row is None or known != task):
            # what was released was never seen to run
            return None
        row = {"_seen": set(), "_task": task, "_slot": slot, "_pid": line["pid"], "_boot": line["boot_id"]}
        row |= {"source": "log", "where": line["where"]}
        self.by_slot[slot] = row
        self.own.append(row)
        self.made.append(row)
        return row

    @staticmethod
    def _over(row: Row, event: str, task: int | None) -> bool:
        """Whether a line is of the next request of the slot, not of this one."""
        if event == "released":
            return bool(row.get("_released"))
        again = event in row["_seen"] and event in ("prefill_timing", "decode_timing", "timings")
        if event == "timings":
            again = "decode_timing" in row["_seen"] and "drafts" in row["_seen"]
        return again or (bool(row.get("_released")) and task is None)

    def finish(self) -> None:
        """Work out what the lines of each request say together, and what the requests do to each other."""
        for row in self.own:
            if self.begun is not None and row.get("_end_us") is not None:
                row["finished"] = self.begun + row["_end_us"]
            _finish(row)
        mean_steps([row for row in self.own if not row.get("_refused")])

    def _end(self, event: str, line: Row) -> None:
        for row in self.by_slot.values():
            if row.get("_task") == line["task"] and row.get("_task") is not None:
                row["_refused"] = row.get("_refused") or event == "refused"
                if event == "cancelled" and "decode_timing" not in row["_seen"]:
                    row["finish_reason"] = "abort"


def _finish(row: Row) -> None:
    """Work out what the lines of one request say together."""
    parts = [str(row[name]) for name in ("_pid", "_slot", "_task") if row.get(name) is not None]
    if row.get("_task") is not None:
        row["request_id"] = "/".join(parts)
    completion, accepted = row.get("completion_tokens"), row.get("accepted_drafts")
    if "decode_timing" in row["_seen"]:
        steps = row.get("_verified") or None
        told = steps_of(completion, accepted, row.get("mean_accept_len"))
        end, prompt = row.get("end_context"), row.get("prompt_tokens")
        whole = end is not None and not row.get("_truncated")
        if whole and prompt is not None:
            told = end - prompt - (accepted or 0)
        # with every verification in the log, steps without a draft are still missing from it
        row["verify_steps"] = told if steps is None else max(steps, told or 0)
        if whole and prompt is None and row["verify_steps"] is not None:
            row["prompt_tokens"] = end - row["verify_steps"] - (accepted or 0)
        if row.get("finished") is not None and row.get("decode_ms") is not None:
            row["first_token"] = row["finished"] - round(row["decode_ms"] * 1000)
        if row.get("_truncated"):
            row["flags"] = (*(row.get("flags") or ()), "context_shifted")
    elif "finish_reason" not in row:
        row["flags"] = (*(row.get("flags") or ()), "no_timings")
    prompt, computed = row.get("prompt_tokens"), row.get("prefill_tokens")
    if prompt is not None and computed is not None:
        row["cached_tokens"] = max(prompt - computed, 0)
    row["_uneven"] = True


__all__ = ["EVENTS", "fold"]
