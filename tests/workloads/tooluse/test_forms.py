"""Forms of questions and their wordings: tools give what was worked out, and no two splits share a wording."""

from __future__ import annotations

import re
from itertools import combinations
from random import Random

import pytest

from holdfast.workloads.tooluse.tasks import FORMS, iso, number, weekday_of, word
from holdfast.workloads.tooluse.tools import WEEKDAYS, Toolbox, ToolWorld
from holdfast.workloads.tooluse.wordings import HELD_OUT, TEMPLATES, plain, worded


@pytest.mark.parametrize("form", FORMS)
def test_the_tools_give_what_the_form_worked_out(form: str) -> None:
    for seed in range(300):
        sketch = FORMS[form](Random(seed), 1 + seed % 5, 1 + seed % 3)
        box = Toolbox(ToolWorld(records=sketch.records))
        for call in sketch.calls:
            assert box.call(call.tool, call.arguments) == call.result
        if sketch.calls and not sketch.working:
            assert sketch.answer == sketch.calls[-1].result
        assert " " not in sketch.answer


def test_a_form_takes_as_many_calls_as_its_name_has_words() -> None:
    few = {"trivial": 0, "repeat": 0, "first": 0, "steps": 0, "by_calc": 1, "lookup_steps": 1}
    for form in FORMS:
        wanted = few.get(form, form.count("_") + 1)
        assert len(FORMS[form](Random(1), 3, 2).calls) == wanted


def test_weekdays_are_those_of_the_calendar() -> None:
    assert weekday_of(738_945) == "Thursday" and iso(738_945) == "2024-02-29"
    assert [weekday_of(738_949 + i) for i in range(7)] == list(WEEKDAYS)


def test_numbers_keep_to_their_digits() -> None:
    drawn = [number(Random(seed), 3) for seed in range(2000)]
    assert min(drawn) >= 10 and 900 < max(drawn) <= 999
    assert {len(str(n)) for n in drawn} == {2, 3}
    assert {number(Random(seed), 1) for seed in range(200)} == set(range(2, 10))


def test_most_words_were_never_seen_before() -> None:
    words = [word(Random(seed)) for seed in range(3000)]
    assert len(set(words)) > 1200 and all(2 < len(w) <= 8 for w in words)


def wordings(split: str) -> set[str]:
    return {wording for several in TEMPLATES[split].values() for wording in several}


@pytest.mark.parametrize(("one", "other"), list(combinations(TEMPLATES, 2)))
def test_no_two_splits_share_a_wording(one: str, other: str) -> None:
    assert not {plain(w) for w in wordings(one)} & {plain(w) for w in wordings(other)}


@pytest.mark.parametrize("split", TEMPLATES)
def test_every_form_has_several_wordings_in_every_split(split: str) -> None:
    assert set(TEMPLATES[split]) == set(FORMS) - {"by_calc"}  # that one is asked as a conversion
    assert all(len(set(several)) == len(several) >= 2 for several in TEMPLATES[split].values())


@pytest.mark.parametrize("form", TEMPLATES["train"])
def test_all_wordings_of_a_form_say_the_same_things(form: str) -> None:
    named = [sorted(set(re.findall(r"{(\w)}", w))) for split in TEMPLATES for w in TEMPLATES[split][form]]
    assert all(one == named[0] for one in named)


def test_no_train_wording_has_a_frame_of_the_test_split() -> None:
    assert all(any(phrase in w.lower() for w in wordings("test")) for phrase in HELD_OUT)
    assert not [w for w in wordings("train") if any(phrase in w.lower() for phrase in HELD_OUT)]
    assert not {plain(w) for w in wordings("train")} & {plain(w) for split in ("val", "test") for w in wordings(split)}


@pytest.mark.parametrize("form", TEMPLATES["train"])
def test_train_tasks_have_a_hundred_wordings_of_each_form(form: str) -> None:
    assert len(TEMPLATES["train"][form]) > 100
    drawn = {worded(Random(seed), "train", form) for seed in range(300)}
    assert drawn <= set(TEMPLATES["train"][form]) and len(drawn) > 60
