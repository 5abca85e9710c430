"""Lines of JSON from other programs, made so that every reader can read them: what came as a call gets an answer.

Half of a surrogate pair becomes U+FFFD, as in the store, and what is nested deeper than anybody needs is cut off there.
What a line means, and what is wrong with it, is for whoever reads it to say.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from typing import TextIO

DEEPEST = 64  # levels; a parser that others wrote gives up at some two hundred
ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.S
)
TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.S)


async def lines(descriptor: int) -> AsyncIterator[str]:
    """What comes in there, readable. Whoever else reads from it, as a child process might, finds nothing."""
    import anyio

    async for line in anyio.wrap_file(_taken(descriptor)):
        yield readable(line)


def _taken(descriptor: int) -> TextIO:
    mine, nothing = os.dup(descriptor), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)
    # Never closed: a thread may still wait for a line when all is over.
    return open(mine, encoding="utf-8", errors="replace", closefd=False)


def readable(line: str) -> str:
    if "\\u" in line:
        line = ESCAPE.sub(lambda found: "\\ufffd" if found["half"] else found[0], line)
    return _cut(line) if line.count("[") + line.count("{") > DEEPEST else line


def _cut(line: str) -> str:
    """With null in place of what lies too deep."""
    kept, depth, after = list[str](), 0, 0
    for found in TOKEN.finditer(line):
        if found[0] in ("[", "{"):
            depth += 1
            if depth == DEEPEST + 1:
                kept.append(line[after : found.start()])
        elif found[0] in ("]", "}"):
            if depth == DEEPEST + 1:
                kept.append("null")
                after = found.end()
            depth -= 1
    return "".join([*kept, line[after:]])
