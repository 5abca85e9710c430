"""Which tokens may come next where an answer must be a JSON object (RFC 8259): an automaton over bytes, and masks.

A state says what may follow: the kind of thing that is being written and the open brackets. A mask for each state that
occurs is made once, by walking all tokens' bytes through the automaton as a tree, and kept.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from holdfast.policies.chat_template import ChatTemplate

SPACE, HEX = b" \t\n\r", b"0123456789abcdefABCDEF"
LITERALS = {ord("t"): b"rue", ord("f"): b"alse", ord("n"): b"ull"}
# The first byte of a letter beyond ASCII: the range of the second, and how many follow that one.
LEADS = {
    **dict.fromkeys(range(0xC2, 0xE0), (0x80, 0xBF, 0)),
    0xE0: (0xA0, 0xBF, 1),
    **dict.fromkeys([*range(0xE1, 0xED), 0xEE, 0xEF], (0x80, 0xBF, 1)),
    0xED: (0x80, 0x9F, 1),
    0xF0: (0x90, 0xBF, 2),
    **dict.fromkeys(range(0xF1, 0xF4), (0x80, 0xBF, 2)),
    0xF4: (0x80, 0x8F, 2),
}
ANY, POSITIVE = b"0123456789", b"123456789"
NUMBERS = {  # where in a number it stands: what may follow, and where that leads
    "minus": {b"0": "zero", POSITIVE: "whole"},
    "zero": {b".": "point", b"eE": "power"},
    "whole": {ANY: "whole", b".": "point", b"eE": "power"},
    "point": {ANY: "share"},
    "share": {ANY: "share", b"eE": "power"},
    "power": {b"+-": "sign", ANY: "exponent"},
    "sign": {ANY: "exponent"},
    "exponent": {ANY: "exponent"},
}
COMPLETE = frozenset({"zero", "whole", "share", "exponent"})  # a number may end there
MASKS = 512  # that are kept for one vocabulary


class JsonState(NamedTuple):
    """What is being written, and inside of what."""

    kind: str
    open: str = ""  # brackets; "}" or "]" for each, the innermost last
    rest: bytes = b""  # of a literal; of a letter the range of its next byte and how many follow
    is_key: bool = False  # of a string


BEGINNING, DONE = JsonState("beginning"), "done"


def step(state: JsonState, byte: int) -> JsonState | None:
    """The state after one more byte; None where no JSON goes on so."""
    kind = state.kind
    if kind in ("string", "escape", "hex", "letter"):
        return _in_string(state, byte)
    if kind == "literal":
        rest = state.rest[1:]
        return None if byte != state.rest[0] else state._replace(rest=rest) if rest else _closed(state)
    if kind in NUMBERS:
        return _in_number(state, byte)
    if byte in SPACE:
        return state
    if kind == "colon":
        return state._replace(kind="value") if byte == ord(":") else None
    if kind == "after":
        return _after(state, byte)
    if kind in ("key", "first_key"):
        if byte == ord('"'):
            return state._replace(kind="string", is_key=True)
        return _shut(state, byte) if kind == "first_key" else None
    if kind == "beginning":
        return JsonState("first_key", "}") if byte == ord("{") else None
    return None if kind == DONE else _value(state, byte)


def _value(state: JsonState, byte: int) -> JsonState | None:
    """A value begins, or the list that could have had one ends."""
    if byte == ord("{"):
        return JsonState("first_key", state.open + "}")
    if byte == ord("["):
        return JsonState("first_value", state.open + "]")
    if byte == ord('"'):
        return state._replace(kind="string", is_key=False)
    if byte in LITERALS:
        return state._replace(kind="literal", rest=LITERALS[byte])
    if byte == ord("-"):
        return state._replace(kind="minus")
    if byte in ANY:
        return state._replace(kind="zero" if byte == ord("0") else "whole")
    return _shut(state, byte) if state.kind == "first_value" else None


def _in_string(state: JsonState, byte: int) -> JsonState | None:
    kind, rest = state.kind, state.rest
    if kind == "letter":
        if not rest[0] <= byte <= rest[1]:
            return None
        return state._replace(rest=bytes((0x80, 0xBF, rest[2] - 1))) if rest[2] else _plain(state)
    if kind == "hex":
        left = rest[1:]
        return None if byte not in HEX else state._replace(rest=left) if left else _plain(state)
    if kind == "escape":
        if byte == ord("u"):
            return state._replace(kind="hex", rest=b"0000")
        return _plain(state) if byte in b'"\\/bfnrt' else None
    if byte == ord('"'):
        return state._replace(kind="colon", is_key=False) if state.is_key else _closed(state)
    if byte == ord("\\"):
        return state._replace(kind="escape")
    if byte < 0x80:
        return state if byte >= 0x20 else None
    return state._replace(kind="letter", rest=bytes(LEADS[byte])) if byte in LEADS else None


def _plain(state: JsonState) -> JsonState:
    return state._replace(kind="string", rest=b"")


def _in_number(state: JsonState, byte: int) -> JsonState | None:
    for digits, leads_to in NUMBERS[state.kind].items():
        if byte in digits:
            return state._replace(kind=leads_to)
    if state.kind not in COMPLETE:
        return None
    return state._replace(kind="after") if byte in SPACE else _after(state, byte)


def _after(state: JsonState, byte: int) -> JsonState | None:
    if byte == ord(","):
        return state._replace(kind="key" if state.open[-1] == "}" else "value")
    return _shut(state, byte)


def _shut(state: JsonState, byte: int) -> JsonState | None:
    return _closed(state._replace(open=state.open[:-1])) if byte == ord(state.open[-1]) else None


def _closed(state: JsonState) -> JsonState:
    """A value is complete."""
    return JsonState("after", state.open) if state.open else JsonState(DONE)


def walk(state: JsonState, text: bytes) -> JsonState | None:
    for byte in text:
        following = step(state, byte)
        if following is None:
            return None
        state = following
    return state


class _Node:
    """Tokens that begin alike."""

    __slots__ = ("following", "tokens")

    def __init__(self) -> None:
        self.following: dict[int, _Node] = {}
        self.tokens: list[int] = []


class JsonMasks:
    """The masks of one vocabulary."""

    def __init__(self, template: ChatTemplate, vocabulary: int) -> None:
        self._ends, self._size, self._kept = template.ends, vocabulary, dict[JsonState, Tensor]()
        self._root, self._texts = _Node(), template.spelled(vocabulary)
        for token, text in enumerate(self._texts):
            if text and token not in template.ends:
                node = self._root
                for byte in text:
                    node = node.following.setdefault(byte, _Node())
                node.tokens.append(token)

    def banned(self, state: JsonState) -> Tensor:
        """[V], true where a token may not come next. What is complete is over: an end, and nothing else."""
        if state not in self._kept:
            mask = torch.ones(self._size, dtype=torch.bool)
            mask[sorted(self._ends) if state.kind == DONE else self._allowed(state)] = False
            if len(self._kept) >= MASKS:
                self._kept.pop(next(iter(self._kept)))
            self._kept[state] = mask
        return self._kept[state]

    def text(self, token: int) -> bytes:
        return self._texts[token] or b""

    def _allowed(self, state: JsonState) -> list[int]:
        found, waiting = list[int](), [(self._root, state)]
        while waiting:
            node, here = waiting.pop()
            found += node.tokens
            for byte, following in node.following.items():
                after = step(here, byte)
                if after is not None:
                    waiting.append((following, after))
        return found


_known: WeakKeyDictionary[ChatTemplate, JsonMasks] = WeakKeyDictionary()  # a vocabulary's tree is made once


def masks_of(template: ChatTemplate, vocabulary: int) -> JsonMasks:
    if template not in _known:
        _known[template] = JsonMasks(template, vocabulary)
    return _known[template]
