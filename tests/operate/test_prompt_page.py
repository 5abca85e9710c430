"""What a search for a prompt tells people: changes word by word, and what came of it."""

from __future__ import annotations

import pytest

from holdfast.operate.prompt_page import Piece, text_changes

SAID = "You are a helpful assistant."


@pytest.mark.parametrize(
    ("before", "after", "pieces"),
    [
        (SAID, f"{SAID} Be brief.", (("same", SAID), ("added", " Be brief."))),
        (f"{SAID} Be brief.", SAID, (("same", SAID), ("dropped", " Be brief."))),
        ("a b c", "a x c", (("same", "a "), ("dropped", "b "), ("added", "x "), ("same", "c"))),
        ("a b", "a\nb", (("same", "a"), ("dropped", " "), ("added", "\n"), ("same", "b"))),
        ("a. b", "a.\nc d", (("same", "a."), ("dropped", " b"), ("added", "\nc d"))),
        ("", "a", (("added", "a"),)),
    ],
)
def test_only_words_that_changed_are_marked(before: str, after: str, pieces: tuple[Piece, ...]) -> None:
    assert text_changes(before, after) == pieces
    assert "".join(text for kind, text in pieces if kind != "added") == before
    assert "".join(text for kind, text in pieces if kind != "dropped") == after
