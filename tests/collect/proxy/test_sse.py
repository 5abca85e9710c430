"""Events come out the same however the stream is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collect.proxy.dialect import Event, Splitter


def read(*chunks: bytes, **how: int) -> list[Event]:
    splitter = Splitter(**how)
    return [event for chunk in chunks for event in splitter.feed(chunk)]


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [("message", b"a"), ("message", b"b")]),
        (b"data:a\n\n", [("message", b"a")]),  # the space is optional
        (b"data:  a\n\n", [("message", b" a")]),  # and only one is taken away
        (b"event: x\ndata: a\ndata: b\nid: 7\n\n", [("x", b"a\nb")]),
        (b": ping\n\ndata: a\n\n", [("message", b"a")]),  # a comment
        (b"\n\n\ndata: a\n\n\n\n", [("message", b"a")]),
        (b"event: x\n\n", []),  # nothing in it
        (b"data\n\n", [("message", b"")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("message", b"a")]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [("message", b"a"), ("message", b"b"), ("message", b"c")]),
        (b"data: a\r\ndata: b\r\n\r\n", [("message", b"a\nb")]),
        (b"data: a\n\ndata: not whole\n", [("message", b"a")]),
    ],
)
def test_events_are_read_as_the_standard_says(text: bytes, events: list[tuple[str, bytes]]) -> None:
    assert read(text) == events
    assert read(*(text[place : place + 1] for place in range(len(text)))) == events


LINES = st.sampled_from([b"data: x", b"data:", b"event: e", b": c", b"id: 1", b"", b"strange", b"data: \xff{"])


@given(st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]))), st.lists(st.integers(0, 200)))
def test_no_cut_changes_what_is_read(lines: list[tuple[bytes, bytes]], places: list[int]) -> None:
    text = b"".join(line + end for line, end in lines) + b"\n"
    marks = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    assert read(*(text[a:b] for a, b in pairwise(marks))) == read(text)


def test_an_event_that_is_too_large_ends_the_reading_and_nothing_else() -> None:
    splitter = Splitter(largest=10)
    assert splitter.feed(b"data: a\n\n") == [("message", b"a")]
    assert splitter.feed(b"data: " + b"x" * 20) == [] and splitter.is_overfull
    assert splitter.feed(b"\n\ndata: b\n\n") == []
