"""What a command ends with fits 80 columns, and can still be copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.options import DEFAULT_STORE, place
from holdfast.cli.show import folded, left, near, step


def test_the_usual_place_is_not_named() -> None:
    assert place(DEFAULT_STORE, "default") == ""
    assert place("my store.db", "mine") == " --store 'my store.db' --project mine"


def test_a_command_has_its_purpose_beside_it_or_above() -> None:
    assert list(step("holdfast runs", "all of them")) == ["  holdfast runs   # all of them"]
    assert list(step("holdfast runs")) == ["  holdfast runs"]
    long = "holdfast release decide tools@2 --run run-1-d4a3 --untrained"
    assert list(step(long, "let the gate decide")) == ["  # let the gate decide", f"  {long}"]


def test_a_long_command_is_carried_on_as_a_shell_takes_it() -> None:
    long = "holdfast release decide tools@2 --run run-1-d4a3 --untrained --store /a/folder/of/some/length/store.sqlite"
    lines = list(step(long))
    assert max(map(len, lines)) <= 80 and len(lines) == 2
    assert " ".join("".join(lines).replace("\\", " ").split()) == long


def test_a_path_is_as_short_as_it_can_be_and_never_folded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert near(tmp_path / "a/b.html") == "a/b.html" and near("/elsewhere/c") == "/elsewhere/c"
    assert left("page", "a.html", "  ") == ["  page  a.html"]
    assert left("page", f"{'x' * 78}", "  ") == ["  page", "x" * 78]


def test_sentences_are_folded_and_words_stay_whole() -> None:
    found = folded(f"{'word ' * 20}{'y' * 100}", "  ")
    assert found[-1] == f"  {'y' * 100}" and max(map(len, found[:-1])) <= 80
