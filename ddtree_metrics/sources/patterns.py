"""The shapes of what collectors put before a line, as patterns for RE2.

Each is anchored at the first byte and takes all of the frame (the group ``head``) and nothing of what follows it: to match the rest of
the line too would cost five times as much.
"""

from __future__ import annotations

_STAMP = r"(?P<stamp>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,](?P<fraction>[0-9]{1,9}))?"
_ZONE = r"(?P<zone>Z|[+-][0-9]{2}:?[0-9]{2})"
_MONTH = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_WEEKDAY = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
# "host ident[pid]: " as journalctl and syslog write it; with --no-hostname the host is missing, and then the pid must be there.
_WRITER = r"(?:(?P<host>[A-Za-z0-9_.-]+) )?(?P<ident>[^\s:\[\]]+)(?:\[(?P<pid>[0-9]{1,10})\])?:(?: |$)"

SHORT = (
    rf"^(?P<head>(?P<month>{_MONTH}) (?P<day>[ 0-3][0-9]) (?P<clock>[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}})"
    rf"(?:\.(?P<fraction>[0-9]{{1,9}}))? {_WRITER})"
)
ISO = rf"^(?P<head>{_STAMP}{_ZONE}? {_WRITER})"
FULL = (
    rf"^(?P<head>(?:{_WEEKDAY}) (?P<stamp>[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}} [0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}})"
    rf"(?:\.(?P<fraction>[0-9]{{1,9}}))? (?P<zone>[A-Z]{{1,6}}|[+-][0-9:]{{2,6}}) {_WRITER})"
)
UNIX = rf"^(?P<head>(?P<seconds>[0-9]{{9,11}})\.(?P<fraction>[0-9]{{6}}) {_WRITER})"
MONOTONIC = rf"^(?P<head>\[ *(?P<seconds>[0-9]{{1,10}})\.(?P<fraction>[0-9]{{6}})\] {_WRITER})"
CRI = rf"^(?P<head>{_STAMP}{_ZONE} (?P<stream>stdout|stderr) (?P<part>[PF])(?::[A-Za-z0-9:_-]*)?(?: |$))"
BARE = rf"^(?P<head>{_STAMP}{_ZONE}(?: |$))"
_LEVEL = "(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)"
# A collector took the stamp out of the server's bracket and put its own, the pod and the level before what is left: "TP0] Decode batch".
POD = rf"^(?P<head>{_STAMP}{_ZONE} (?P<host>[A-Za-z0-9][A-Za-z0-9_.-]*) {_LEVEL} +)[A-Z_]+[0-9]+(?: [A-Z_]+[0-9]+)*\] "
# Python's logging with the process and the place in the source.
LOGGED = (
    r"^(?P<head>(?P<stamp>[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,](?P<fraction>[0-9]{1,9}))?(?P<zone>) "
    rf"{_LEVEL} +(?P<pid>[0-9]{{1,10}}) +\[[A-Za-z0-9_./-]+:[0-9]+\](?: +|$))"
)
RAY = r"^(?P<head>\((?P<actor>[^()]*(?:\([^()]*\))?) pid=(?P<pid>[0-9]{1,10})(?:, ip=(?P<host>[0-9A-Za-z.:_-]+))?\)(?: |$))"
KUBECTL = r"^(?P<head>\[pod/(?P<pod>[^/\]\s]+)/(?P<unit>[^/\]\s]+)\](?: |$))"
# compose pads names to one column: at least two blanks, or one after a number.
COMPOSE = r"^(?P<head>(?P<unit>[A-Za-z0-9][A-Za-z0-9_.-]*[_-][0-9]+|[A-Za-z0-9][A-Za-z0-9_.-]*  ) *\|(?: |$))"
_PAIR = r'[A-Za-z_][A-Za-z0-9_.]*="(?:[^"\\]|\\.)*"'
# Labels as Loki's logcli prints them.
LABELS = rf"^(?P<head>(?P<labels>\{{{_PAIR}(?:, ?{_PAIR})*\}})(?: |$))"
NOTICE = r"^(?P<head>-- (?:Boot (?P<boot>[0-9a-f]{32}) --|Boot [0-9a-f]+ --|Reboot --|No entries --|(?:Logs|Journal) begins? at .* --)$)"

ANY = (
    r"^(?:(?:\x1e|data: )?[ \t]*\{ *\""
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:"
    rf"|[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}} [0-9:.,]{{8,18}} {_LEVEL} +[0-9]{{1,10}} +\["
    rf"|(?:{_MONTH}) [ 0-3][0-9] [0-9]{{2}}:"
    rf"|(?:{_WEEKDAY}) [0-9]{{4}}-"
    r"|[0-9]{9,11}\.[0-9]{6} "
    r"|\[ *[0-9]{1,10}\.[0-9]{6}\] "
    r"|\([^()]*(?:\([^()]*\))? pid=[0-9]"
    r"|\[pod/"
    r"|\{[A-Za-z_][A-Za-z0-9_.]*=\""
    r"|[A-Za-z0-9][A-Za-z0-9_.-]* *\|"
    r"|-- (?:Boot|Reboot|No entries|Logs begin|Journal begin))"
)
"""One cheap pattern that every framed line matches; a line without a match has no frame."""

JSON_KEYS = '"(?:MESSAGE|__REALTIME_TIMESTAMP|__CURSOR|N_DROPPED|log|message|msg|line)"'
BLOB = r"^\[[0-9.]+[BKMGT] blob data\]$"
# The server's own stamp at the head of a message; it has the year that journalctl's short format leaves out.
SERVER_STAMP = r"^[^0-9A-Za-z]{0,2}(?P<stamp>[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})"

_LEVELS = ("trace", "debug", "info", "warn", "warning", "error", "fatal", "critical", "notice")
LEVELS = frozenset((*_LEVELS, *(level.upper() for level in _LEVELS)))
"""Words that stand where a host or an identifier would, in the formats of programs: such a line has no journalctl prefix."""
