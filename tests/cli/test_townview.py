"""The town in 80 columns: who is where, in colour and without, and what is told beside it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from holdfast.cli.townview import NATURES, moment, town

LEGEND: dict[str, Any] = {
    "town": "hamlet", "day": 1440, "width": 6, "height": 4,
    "glyphs": "######" + "#_b_+=" + '#_"__=' + "######",
    "legend": {"walls": "#", "doors": "+", "ground": '._="', "entry": "=", "objects": {"b": "bed"}},
    "needs": ["hunger", "energy"], "troubles": ["rain", "festival"],
}  # fmt: skip
FRAME: dict[str, Any] = {
    "tick": 1440 + 605, "at": [7, 15, -1], "nature": [0, 1, 0], "needs": [255, 0, 127, 255, 0, 0],
    "until": [9999, 0], "kpis": {"alive": 0.5, "chats": None},
}  # fmt: skip


def shown(**how: Any) -> str:
    console = Console(file=io.StringIO(), width=80, color_system="truecolor" if how.get("is_coloured", True) else None,
                      force_terminal=True, highlight=False)  # fmt: skip
    console.print(town(LEGEND, FRAME, **how))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_two_tiles_are_one_character_in_the_colours_of_who_stands_there() -> None:
    text = shown()
    assert text.count("▀") == 6 * 2
    for colour in NATURES[:2]:
        red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
        assert f"{red};{green};{blue}" in text


def test_without_colours_the_one_who_tells_more_is_seen() -> None:
    lines = [line[:6] for line in shown(is_coloured=False).splitlines()]
    assert lines == ["#@o###", "###@##"]


def test_time_troubles_and_needs_are_told() -> None:
    lines = [line[7:].rstrip() for line in shown(is_coloured=False).splitlines()]
    assert lines == ["hamlet · day 2, 10:05", "rain"]  # of a map of two rows, no more than that
    tall = LEGEND | {"height": 40, "glyphs": LEGEND["glyphs"] * 10}
    console = Console(file=io.StringIO(), width=80, color_system=None)
    news = [{"tick": 1440 + 600, "text": "Ada and Ben have a very good and quite long talk."}]
    console.print(town(tall, FRAME, news=news, alerts=["exits"], state="8×", is_coloured=False))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "8×, rain" in text and "! exits" in text and "10:00 Ada and Ben have a very" in text
    assert "hunger   ━━━━━━━━━╌╌╌  75%" in text  # of the two who are there
    assert "here                   50%" in text and "talks a day              -" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("tick", "words"), [(0, "day 1, 00:00"), (1439, "day 1, 23:59"), (1440 * 9 + 61, "day 10, 01:01")]
)
def test_a_tick_has_a_day_and_a_time(tick: int, words: str) -> None:
    assert moment(LEGEND, tick) == words
