"""Alerts as entries of the journal, with fields of their own, so that others can match them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ddtree_metrics.live.alerts import Alert

ALERT_ID = "7d1f0c6b6a0f4b0f9a4fd2f6b1c3d8e5"
"""The MESSAGE_ID of these entries: ``journalctl MESSAGE_ID=…`` lists them."""


def send(new: Iterable[Alert], over: Iterable[str] = ()) -> str:
    """Write an entry for each alert that begins, and for each rule whose alert is over; return why it cannot be done, or an empty text."""
    for message, fields in entries(new, over):
        try:
            from systemd import journal

            journal.send(message, MESSAGE_ID=ALERT_ID, SYSLOG_IDENTIFIER="ddtree-logs", **fields)
        except (ImportError, OSError, AttributeError) as error:
            return str(error)
    return ""


def entries(new: Iterable[Alert], over: Iterable[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield message and fields of each entry."""
    for alert in new:
        numbers = {f"DDTREE_{name.upper()}": f"{value:g}" for name, value in alert.numbers.items()}
        yield f"ddtree alert: {alert.said}", {"PRIORITY": "4", "DDTREE_ALERT": alert.rule, "DDTREE_STATE": "begins", **numbers}
    for rule in over:
        yield f"ddtree alert is over: {rule}", {"PRIORITY": "6", "DDTREE_ALERT": rule, "DDTREE_STATE": "ends"}
