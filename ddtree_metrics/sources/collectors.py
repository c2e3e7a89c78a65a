"""What collectors make of a log line: Vector, Fluent Bit, Loki's logcli, OpenTelemetry. Their objects become fields of journal entries."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ddtree_metrics.sources import journal_fields as f
from ddtree_metrics.sources.stamp_columns import rfc3339_us

_TIMES = ("timestamp", "@timestamp", "time", "date", "ts", "timeUnixNano", "observedTimeUnixNano")
_UNITS = ("unit", "systemd_unit", "__journal__systemd_unit", "_SYSTEMD_UNIT", "service_name", "service.name", "service", "app")
_CONTAINERS = ("container", "container_name", "k8s.container.name", "job")
_HOSTS = ("host", "hostname", "host.name", "node", "nodename", "pod", "pod_name", "k8s.pod.name", "instance")
_LABEL = re.compile(r'([A-Za-z_][\w.]*)="((?:[^"\\]|\\.)*)"')
_FROM_US, _UNTIL_US = 946_684_800_000_000, 4_102_444_800_000_000
OPEN_TELEMETRY = '{"resourceLogs"'


def _first(names: Iterable[str], labels: Mapping[str, Any]) -> str | None:
    return next((labels[name] for name in names if isinstance(labels.get(name), str) and labels[name]), None)


def writer_of(labels: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields that labels say: whose line it is, and of which host."""
    made = {}
    unit = _first(_UNITS, labels)
    container = _first(_CONTAINERS, labels)
    if unit is not None:
        made["_SYSTEMD_UNIT" if f.looks_like_unit(unit) else "CONTAINER_NAME"] = unit
    elif container is not None:
        made["CONTAINER_NAME"] = container
    host = _first(_HOSTS, labels)
    return {**made, "_HOSTNAME": host} if host is not None else made


def labels_of(text: str) -> dict[str, str]:
    """Read labels as Loki prints them: ``{unit="sg.service", host="h1"}``."""
    return dict(_LABEL.findall(text))


def time_of(found: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the time that a collector put to a line, in microseconds since 1970, and its resolution."""
    for name in _TIMES:
        value = found.get(name)
        if isinstance(value, str):
            if not value.isascii() or not value.isdecimal():
                made = rfc3339_us(value)
                if made is not None:
                    return made
                continue
            value = int(value) if len(value) < 25 else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            continue
        # Nanoseconds, microseconds, milliseconds or seconds: only one of them is a time of this century.
        scale = next((s for s in (1_000, 1, -1_000, -1_000_000) if _FROM_US <= _scaled(value, s) < _UNTIL_US), None)
        if scale is not None:
            decimals = len(repr(value).partition(".")[2]) if isinstance(value, float) and "e" not in repr(value) else 0
            return _scaled(value, scale), 1 if scale > 0 else max(-scale // 10**decimals, 1)
    return None


def _scaled(value: float, scale: int) -> int:
    return round(value / scale) if scale > 0 else round(value * -scale)


def as_entry(found: dict[str, Any]) -> dict[str, Any] | None:
    """Turn an object of a collector into the fields of a journal entry; ``None`` if it is none, or has no time."""
    labels, line = found.get("labels"), found.get("line")
    if isinstance(labels, dict) and isinstance(line, str):
        return {**writer_of(labels), "MESSAGE": line, "timestamp": found.get("timestamp")}
    message = next((found[name] for name in ("message", "log", "msg") if isinstance(found.get(name), str)), None)
    if message is None or ("__REALTIME_TIMESTAMP" not in found and time_of(found) is None):
        return None
    pod = found.get("kubernetes")
    said = writer_of({**found, **(pod if isinstance(pod, dict) else {})})
    return {**said, **found, "MESSAGE": message.removesuffix("\n")}


def split_records(text: str) -> list[str]:
    """Give each record of a line of OpenTelemetry (OTLP/JSON) an object of its own, with the fields of a journal entry."""
    try:
        found = json.loads(text)
        return [
            json.dumps({**writer_of(_attributes(part.get("resource", {}).get("attributes"))), **_record(record)})
            for part in found["resourceLogs"]
            for scope in part.get("scopeLogs", part.get("instrumentationLibraryLogs", []))
            for record in scope.get("logRecords", [])
        ] or [text]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return [text]


def _record(record: dict[str, Any]) -> dict[str, Any]:
    made = _attributes(record.get("attributes"))
    body = record.get("body", {})
    if "kvlistValue" in body:
        made |= _attributes(body["kvlistValue"].get("values"))
    elif isinstance(body.get("stringValue"), str):
        made["MESSAGE"] = body["stringValue"]
    nanoseconds = int(record.get("timeUnixNano") or record.get("observedTimeUnixNano") or 0)
    return {"timeUnixNano": str(nanoseconds), **made} if nanoseconds else made


def _attributes(pairs: Any) -> dict[str, Any]:
    return {p["key"]: next(iter(p["value"].values()), None) for p in pairs or () if isinstance(p.get("value"), dict)}
