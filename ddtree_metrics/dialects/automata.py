"""What the compiled reader runs on: an automaton that finds any of many words, and programs for regular expressions.

Both are plain arrays; ``tokenizer.c`` says what their numbers mean. A pattern with a part that has no instruction has no program, and its
lines are left to the reference reader.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

CHAR, SET, ANY, SPLIT, JUMP, SAVE, BEGIN, END, BORDER, MATCH = range(10)
MOST_INSTRUCTIONS = 4000


class NoProgram(Exception):
    """A part of a pattern has no instruction."""


@functools.lru_cache(maxsize=16)
def finder(words: tuple[tuple[bytes, int], ...]) -> tuple[bytes, bytes, bytes, int]:
    """Make the automaton (Aho and Corasick, 1975) that finds words, whatever their case.

    Parameters
    ----------
    words : tuple of (bytes, int)
        Each word and the bits that it sets.

    Returns
    -------
    classes : bytes
        The class of each byte.
    steps : bytes
        The next state, for each state and class (16 bits).
    found : bytes
        The bits of the words that end in each state.
    count : int
        How many classes there are.
    """
    lowered = [(word.lower(), bits) for word, bits in words]
    used = sorted({byte for word, _ in lowered for byte in word})
    class_of = {byte: n + 1 for n, byte in enumerate(used)}
    classes = bytes(class_of.get(ord(chr(b).lower()) if b < 128 else b, 0) for b in range(256))
    count = len(used) + 1
    tree: list[dict[int, int]] = [{}]
    found = [0]
    for word, bits in lowered:
        state = 0
        for byte in word:
            if class_of[byte] not in tree[state]:
                tree[state][class_of[byte]] = len(tree)
                tree.append({})
                found.append(0)
            state = tree[state][class_of[byte]]
        found[state] |= bits
    steps = np.zeros((len(tree), count), dtype=np.uint16)
    fallback = [0] * len(tree)
    waiting = deque([0])
    while waiting:
        state = waiting.popleft()
        if state:
            steps[state] = steps[fallback[state]]
        for byte, there in tree[state].items():
            fallback[there] = int(steps[fallback[state], byte]) if state else 0
            found[there] |= found[fallback[there]]
            steps[state, byte] = there
            waiting.append(there)
    return classes, steps.tobytes(), bytes(found), count


_CATEGORIES = {"CATEGORY_DIGIT": r"\d", "CATEGORY_SPACE": r"\s", "CATEGORY_WORD": r"\w"}
_PLACES = {"AT_BEGINNING": BEGIN, "AT_BEGINNING_STRING": BEGIN, "AT_END": END, "AT_END_STRING": END, "AT_BOUNDARY": BORDER}


@functools.lru_cache(maxsize=256)
def program_of(pattern: str, names: tuple[str, ...]) -> tuple[bytes, bytes] | None:
    """Make the program of a regular expression over printable ASCII.

    Parameters
    ----------
    pattern : str
        As ``re`` reads it with the flags ASCII and DOTALL.
    names : tuple of str
        The groups whose places are wanted; the place of a group is that of its name here.

    Returns
    -------
    (bytes, bytes) or None
        Instructions of three 32-bit numbers, and sets of 32 bytes; ``None`` if a part has no instruction.
    """
    parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    tree = parser.parse(pattern, re.A | re.S)
    if tree.state.flags & re.I:
        return None
    made = _Program({tree.state.groupdict[name]: n for n, name in enumerate(names)})
    try:
        made.sequence(tree)
    except NoProgram:
        return None
    made.code.append([MATCH, 0, 0])
    return np.array(made.code, dtype=np.int32).tobytes(), b"".join(made.sets)


class _Program:
    """Instructions in the making."""

    def __init__(self, groups: dict[int, int]) -> None:
        self.groups = groups
        self.code: list[list[int]] = []
        self.sets: list[bytes] = []

    def sequence(self, parts: Any) -> None:
        for op, value in parts:
            if len(self.code) > MOST_INSTRUCTIONS:
                raise NoProgram
            self._part(str(op), value)

    def _part(self, op: str, value: Any) -> None:
        if op == "LITERAL" and value < 127:
            self.code.append([CHAR, value, 0])
        elif op == "ANY":
            self.code.append([ANY, 0, 0])
        elif op == "NOT_LITERAL":
            self._set({value}, True)
        elif op == "IN":
            self._set(*_members(value))
        elif op == "AT" and str(value) in _PLACES:
            self.code.append([_PLACES[str(value)], 0, 0])
        elif op == "SUBPATTERN" and not value[1] and not value[2]:
            slot = self.groups.get(value[0])
            if slot is not None:
                self.code.append([SAVE, 2 * slot, 0])
            self.sequence(value[3])
            if slot is not None:
                self.code.append([SAVE, 2 * slot + 1, 0])
        elif op == "BRANCH":
            self._branch(value[1])
        elif op in ("MAX_REPEAT", "MIN_REPEAT"):
            self._repeat(value[0], value[1], value[2], op == "MAX_REPEAT")
        else:
            raise NoProgram

    def _set(self, members: set[int], negated: bool) -> None:
        bits = np.zeros(256, dtype=np.uint8)
        bits[list(members)] = 1
        self.code.append([SET, len(self.sets), 0])
        self.sets.append(np.packbits(1 - bits if negated else bits, bitorder="little").tobytes())

    def _branch(self, branches: Sequence[Any]) -> None:
        ends = []
        for branch in branches[:-1]:
            split = self._split()
            self.sequence(branch)
            ends.append(len(self.code))
            self.code.append([JUMP, 0, 0])
            split[2] = len(self.code)
        self.sequence(branches[-1])
        for end in ends:
            self.code[end][1] = len(self.code)

    def _split(self) -> list[int]:
        made = [SPLIT, len(self.code) + 1, 0]
        self.code.append(made)
        return made

    def _repeat(self, least: int, most: Any, body: Any, greedy: bool) -> None:
        for _ in range(least):
            self.sequence(body)
        splits = []
        if str(most) == "MAXREPEAT":
            if not body.getwidth()[0]:
                raise NoProgram
            splits.append(self._split())
            start = len(self.code) - 1
            self.sequence(body)
            self.code.append([JUMP, start, 0])
        else:
            for _ in range(int(most) - least):
                splits.append(self._split())
                self.sequence(body)
        for split in splits:
            split[2] = len(self.code)
            if not greedy:
                split[1], split[2] = split[2], split[1]


def _members(parts: Sequence[Any]) -> tuple[set[int], bool]:
    members: set[int] = set()
    negated = False
    for op, value in parts:
        name = str(op)
        if name == "NEGATE":
            negated = True
        elif name == "LITERAL":
            members.add(value)
        elif name == "RANGE":
            members |= set(range(value[0], value[1] + 1))
        elif name == "CATEGORY" and str(value).replace("_NOT", "") in _CATEGORIES:
            kind = _CATEGORIES[str(value).replace("_NOT", "")]
            wanted = kind.upper() if "_NOT_" in str(value) else kind
            members |= {b for b in range(128) if re.match(wanted, chr(b), re.A)}
        else:
            raise NoProgram
    # What stands here above ASCII is in no line that a program sees.
    return {m for m in members if m < 128}, negated
