"""Some days of a town as a page: the film is what was lived, each day is told in order, and learning is drawn."""

from __future__ import annotations

import json
import re

from holdfast.workloads.townlife import Life, fold
from holdfast.workloads.townstory import EVERY, MOST_LINES, curve_of, day_of, lived_story, page
from tests.town.small import small

JOB = {"id": "a", "venue": "office", "start": 60, "end": 180, "wage": 1.0, "slots": 4}
RULES = small({"ticks_per_day": 240, "job": [JOB]})


def line(tick: int, kind: str, text: str, *, priority: bool = False) -> dict[str, object]:
    return {"tick": tick, "kind": kind, "text": text, "priority": priority}


def test_the_film_is_what_was_lived_and_telling_changes_nothing() -> None:
    life, plain = Life(RULES, seed=3), Life(RULES, seed=3)
    story = lived_story(life, 2)
    for tick in range(1, 481):
        plain.step()
        if tick % EVERY == 0:
            assert story.film[tick // EVERY] == [tick, *fold(None, plain.frame(key=True))["at"]]
    assert plain.env.state.sha256() == life.env.state.sha256() and [day.number for day in story.days] == [1, 2]
    assert "of 4 are here" in story.days[0].paragraphs[-1]


def test_a_day_is_told_by_its_parts_and_what_matters_is_its_title() -> None:
    talks = [line(130 + k, "chat", f"talk {k}.") for k in range(6)]
    rain, meal = line(150, "trouble_begins", "It begins to rain.", priority=True), line(149, "shared_meal", "A meal.")
    picture = {"at": [4, -1], "name": ["Ada", "Ben"], "ties": [[0, 1, 40, 30, 0]]}
    told = day_of(1, [line(20, "late", "Late."), *talks, meal, rain], picture, {"needs_met": 0.9, "chats": 3.0}, 240)
    assert told.title == "It begins to rain"
    night, noon, end = told.paragraphs
    assert night == "In the night: Late." and noon == "In the afternoon: talk 0. talk 1. A meal. It begins to rain."
    assert (
        len(noon.split(". ")) == MOST_LINES
        and "Ada and Ben" in end
        and end.startswith("At midnight 1 of 2 are here; 90%")
    )
    assert day_of(1, [], picture, {}, 240).title == "A quiet day"


def test_the_page_holds_all_it_needs_and_escapes_what_it_is_told() -> None:
    learning = {
        "version": "town@2<b>", "return_before": 4.0, "gain": 1.0, "gain_low": 0.5, "gain_high": 1.5, "towns": 96,
        "curve": [{"steps": 100, "reward": 3.0}, {"steps": 200, "reward": 5.0}],
    }  # fmt: skip
    story = lived_story(Life(RULES, seed=3), 1)
    text = page(story, learning=learning)
    kept = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert kept is not None and json.loads(kept[1])["film"] == story.film
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", text) and "town@2<b>" not in text
    assert page(story, learning=learning) == text and 'id="learning"' not in page(story)


def test_a_curve_has_the_script_as_its_base_and_needs_two_points() -> None:
    points = [{"steps": 100, "reward": 3.0}, {"steps": 200, "reward": 5.0}]
    drawn = curve_of({"curve": points, "return_before": 4.0})
    assert drawn is not None and drawn["points"] == "320.0,160.0 640.0,20.0" and drawn["base"] == 90.0
    assert curve_of({"curve": points[:1]}) is None and curve_of(None) is None
