"""The text of an answer while its tokens come: what is certain so far, and no half letters.

Calls of tools are not shown before they are whole, and the message itself is read from all its ids when there are no
more: that is `tokens.read`, and what is shown here is always a beginning of what it says.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from holdfast.policies.tokens import CALL, END, THINK

NAMES = {0: "content", THINK: "reasoning_content"}


class Deltas:
    """Hand it the ids as they come. `stop`: strings that end an answer and do not belong to it."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._letters = {kind: codecs.getincrementaldecoder("utf-8")(errors="replace") for kind in NAMES}
        self._kind = 0  # what the next bytes belong to: text, a thought, a call
        self._ended = False
        self._hold = max((len(word.encode()) - 1 for word in stop), default=0)
        self._held: list[int] = []  # may yet turn out to be the beginning of a stop string

    def add(self, ids: Iterable[int]) -> dict[str, str]:
        """What these let be said, by OpenAI's names; nothing where nothing is certain yet."""
        self._held += ids
        certain = len(self._held) - self._hold
        said: dict[str, str] = {}
        for token in self._held[: max(certain, 0)]:
            if token >= 256:
                self._kind = token if token in (THINK, CALL) else 0
                self._ended = self._ended or token == END
            elif self._kind != CALL and not self._ended:
                name = NAMES[self._kind]
                said[name] = said.get(name, "") + self._letters[self._kind].decode(bytes([token]))
        del self._held[: max(certain, 0)]
        return {name: text for name, text in said.items() if text}
