"""What may stand before a message: what launchers, syslog and progress bars put there, and words that only speak of a line.

A text in front of a whole line of metrics is opaque, whatever it is. It makes the line a quotation if the message stands inside
quotation marks, inside a request or a traceback, behind a name and an equals sign, or at the end of a sentence about it.
"""

from __future__ import annotations

import re

from ddtree_metrics.dialects.stamps import HEAD_PATTERN, NO_HEAD, Head, read_head

_A = re.A
_STAMP = r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)"
_IDENT = r"[\w./@-]{1,80}(?:\[\d{1,10}\])?:\s{1,9}"
_LAUNCHER = re.compile(
    r"\[[\w.-]{1,64}(?::\d{1,6})?\]:\s{1,9}"  # torchrun, mpirun
    r"|(?=[\w.-]{0,64}\d)[\w.-]{1,64}:\s{1,9}"  # srun -l, pdsh
    r"|\[pod/[\w./-]{1,200}\]\s{1,9}"  # kubectl logs --prefix
    r"|[\w.-]{1,64}\s{1,40}\|\s{1,9}"  # docker compose
    rf"|(?:<\d{{1,3}}>)?{_STAMP} [\w.:-]{{1,255}} {_IDENT}"  # syslog, RFC 3164
    rf"|<\d{{1,3}}>(?:{_STAMP} )?{_IDENT}"
    r"|<\d{1,3}>\d{1,2}(?: [^\s\"'\[]{1,255}){5} (?:-|(?:\[[^\]\"]*(?:\"[^\"]*\"[^\]\"]*)*\]){1,20})\s{1,9}",  # RFC 5424
    _A,
)
_BAR = re.compile(r"(?:\d/\d+|\dit) \[\d+:\d\d[^\[\]\"']{0,80}\]\s*")
_HEAD_BEFORE = re.compile(rf"\[({HEAD_PATTERN})\]\s*$", _A)
_HEAD = re.compile(rf"\[({HEAD_PATTERN})\]\s*", _A)
_NEAR = re.compile(r"[=(,]\s*$|(?<![\w.\-/\])])[A-Za-z]+\s*:\s*$", _A)
NOT_A_LABEL = re.compile(
    r"(?:error|exception)\b|\b(?:said|says|prompt|text|receive|finish|obj|file|line|traceback|warning|expected)\b", re.I | _A
)
"""Words before pairs that make them somebody's words about a line."""
_OPENING = re.compile(r"[=(,]\s*$", _A)
_SENTENCE = re.compile(r"[\w ,.;!?'’-]{0,160}$")
PROSE = re.compile(
    r"\b(?:what|which|why|how|when|where|who|whose|is|are|was|were|be|mean|means|meant|please|explain|about|like|asks?|asked|the|an"
    r"|these|this|that|those|such|of|for|example|see|saw|read|reads|parse|print|prints|printed|wrote|writes|show|shows|grep|quotes?|quoted"
    r"|quoting|client|user|assistant|you|your|we|they|he|she|it|can|could|would|should|does|do|did|if|than|then|because)\b",
    re.I | _A,
)
"""Words of a sentence, directly before a marker."""
_REQUEST = re.compile(r"\b(?:Receive|Finish)\b[\w ]{0,20}: obj=|\bin=\w{1,40}\(|\bGenerateReqInput\(|^\s*(?:\[[^\]]{0,96}\]\s*)?\{", _A)
_TRACE = re.compile(r"\b[\w.]{0,80}(?:Error|Exception)\b\s*:|\bTraceback\b|\bFile \"", _A)
_PAIRED = (("\u201c\u201e", "\u201d\u201f"), ("\u00ab", "\u00bb"), ("\u2018", "\u2019"))


def launched(text: str) -> int:
    """Say where a line begins behind what launchers, syslog and the like put before it; 0 if there is no such thing."""
    at = 0
    for _ in range(3):
        found = _LAUNCHER.match(text, at)
        if found is None:
            break
        at = found.end()
    return at


def behind_bar(text: str, limit: int) -> int:
    """Say where a line begins behind the last progress bar before ``limit``; 0 if there is none."""
    at = 0
    for found in _BAR.finditer(text, 0, limit):
        at = found.end()
    return at


def head_at(text: str, at: int) -> tuple[int, Head]:
    """Read the head that stands at a place; return where the message begins behind it."""
    found = _HEAD.match(text, at)
    head = read_head(found[1]) if found else None
    return (found.end(), head) if found and head is not None else (at, NO_HEAD)


def head_before(text: str, at: int) -> Head:
    """Read the head that ends at a place."""
    found = _HEAD_BEFORE.search(text, max(0, at - 100), at)
    head = read_head(found[1]) if found else None
    return NO_HEAD if head is None else head


def last_head(text: str, limit: int) -> Head:
    """Return the last head before a place."""
    for found in reversed(list(_HEAD.finditer(text, max(0, limit - 4096), limit))):
        head = read_head(found[1])
        if head is not None:
            return head
    first = head_at(text, 0)[1]
    return first


def is_request(text: str, limit: int) -> bool:
    """Whether a place lies in the text of a request, or in JSON."""
    return _REQUEST.search(text, 0, limit) is not None


def inside_quotes(text: str, at: int) -> bool:
    """Whether a quotation mark is open at a place; apostrophes inside words and escaped marks are none."""
    if len(re.findall(r"(?<!\\)\"", text[:at])) % 2 or text.count("`", 0, at) % 2:
        return True
    if len(re.findall(r"(?<![\\\w])'|(?<!\\)'(?!\w)", text[:at])) % 2:
        return True
    return any(sum(text.count(c, 0, at) for c in opening) > sum(text.count(c, 0, at) for c in closing) for opening, closing in _PAIRED)


def is_quoted(text: str, at: int, labelled: bool = False) -> bool:
    """Whether what stands before a place makes the rest of the line somebody's words about a line.

    Parameters
    ----------
    text : str
        The line.
    at : int
        Where the marker, or the first key, begins.
    labelled : bool
        Pairs without a marker: a word with a colon before them is their label.
    """
    if inside_quotes(text, at) or is_request(text, at):
        return True
    before = text[max(0, at - 200) : at]
    if behind_bar(before, len(before)) == len(before) > 0:
        return False
    head = _HEAD_BEFORE.search(before)
    if head:
        before = before[: head.start()]
        if not before.strip() or behind_bar(before, len(before)) == len(before):
            return False
    if (_OPENING if labelled else _NEAR).search(before) or NOT_A_LABEL.search(before[-80:]) or _TRACE.search(text[: min(at, 400)]):
        return True
    sentence = _SENTENCE.search(before)
    return sentence is not None and PROSE.search(sentence[0]) is not None
