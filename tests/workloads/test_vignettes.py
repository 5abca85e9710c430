"""Scenes of coming and going: in order, one at a time, kind in every word."""

from __future__ import annotations

from itertools import pairwise

import pytest

from holdfast.town import talk
from holdfast.town.talk import HARM, LEAVES_FOR, SCENE_PAUSE, Playing, arrival, departure, due, playing
from holdfast.workloads.townlife import Life, Pseudonymizer, read_rules


def test_a_scene_is_shown_line_by_line_and_ends() -> None:
    now = arrival(Playing(), tick=100, seat=2, name="Ada")
    shown = []
    for tick in range(100, 120):
        now, beats = due(now, tick)
        assert all(beat.tick == tick and beat.seat == 2 for beat in beats)
        shown += beats
    assert len(shown) == 3 and any("Ada" in beat.text for beat in shown) and now.beats == ()
    assert all(a.tick < b.tick for a, b in pairwise(shown))


def test_one_scene_plays_at_a_time_and_then_there_is_a_pause() -> None:
    now = departure(Playing(), tick=10, seat=1, name="Ben", days=3.2, why="there was no work")
    assert arrival(now, tick=11, seat=2, name="Ada") == now
    over, _ = due(now, 10_000)
    assert arrival(over, tick=over.ready - 1, seat=2, name="Ada") == over
    assert over.ready - now.beats[-1].tick == SCENE_PAUSE
    assert arrival(over, tick=over.ready, seat=2, name="Ada").beats


def test_what_plays_is_kept_in_a_snapshot() -> None:
    now = arrival(Playing(), tick=5, seat=2, name="Ada")
    assert playing(now.plain()) == now


def test_how_long_somebody_stayed_is_said_in_words() -> None:
    assert [talk.stay(days) for days in (0.2, 1.0, 12.4)] == ["less than a day", "a day", "12 days"]


def test_every_scene_can_be_told_and_hurts_nobody() -> None:
    for why in LEAVES_FOR.values():
        for scene in (*talk.ARRIVALS, *talk.DEPARTURES):
            for _, text in scene:
                assert not HARM.search(text.format(name="Ada", stay="a day", why=why))


@pytest.mark.parametrize("key", [None, b"k" * 32], ids=["open", "veiled"])
def test_a_life_shows_who_leaves_and_remembers_the_last(key: bytes | None) -> None:
    life = Life(read_rules(residents=12), seed=5, veil=Pseudonymizer(key=key))
    life.step()
    who = life.name(life._order[3])
    life.order("kill", {"resident": 3, "cause": "jobless"})
    lines = [line for _ in range(40) for line in life.step().lines if line.kind == "vignette"]
    assert lines and who in " ".join(line.text for line in lines) and who.startswith("R-") is (key is not None)
    assert [(one.name, one.cause, one.days) for one in life.left] == [(who, "jobless", 0.0)]
    assert life.left_for == {"jobless": 1}
    sent = life.frame()["lines"]
    assert {line.text for line in lines} <= {line["text"] for line in sent}
    assert {line["a"] for line in sent if line["kind"] == "vignette"} == {3}  # the place at which they are shown
