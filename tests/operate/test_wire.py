"""Lines from other programs: every parser can read what comes of them, and nothing else is changed."""

from __future__ import annotations

import json
import os

import pytest

from holdfast.operate.mcp import DEEPEST, lines, readable


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (r'{"a": "\ud800"}', {"a": "\ufffd"}),
        (r'{"a": "\udc00\ud800x"}', {"a": "\ufffd\ufffdx"}),
        (r'{"a": "\ud83d\ude00"}', {"a": "\U0001f600"}),  # a whole pair is a letter
        (r'{"a": "\\ud800"}', {"a": "\\ud800"}),  # a backslash and five letters
        (r'{"a\ud9ff": ["\u00e9"]}', {"a\ufffd": ["\u00e9"]}),
    ],
    ids=["half", "wrong-way-round", "pair", "escaped", "key"],
)
def test_half_a_pair_becomes_a_letter_and_nothing_else_is_touched(line: str, read: object) -> None:
    assert json.loads(readable(line)) == read


@pytest.mark.parametrize("depth", [DEEPEST - 1, 900, 200_000])
def test_what_is_nested_too_deeply_is_cut_off_there(depth: int) -> None:
    line = '{"id": 5, "text": "[[{\\"", "deep": ' + "[" * depth + "7" + "]" * depth + ', "after": {"a": [1]}}'
    read = json.loads(readable(line))
    assert (read["id"], read["text"], read["after"]) == (5, '[[{"', {"a": [1]})
    found, levels = read["deep"], 0
    while isinstance(found, list):
        found, levels = found[0], levels + 1
    assert (found, levels) == ((7, depth) if depth < DEEPEST else (None, DEEPEST - 1))


async def test_lines_are_read_and_whoever_else_reads_there_finds_nothing() -> None:
    out, into = os.pipe()
    os.write(into, b'{"a": "\\ud800"}\n{"b": 1}\n')
    os.close(into)
    assert [line async for line in lines(out)] == ['{"a": "\\ufffd"}\n', '{"b": 1}\n']
    assert os.read(out, 10) == b""
    os.close(out)
