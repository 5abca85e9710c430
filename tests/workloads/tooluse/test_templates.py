"""Wordings: each split has its own, for every form of question."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from holdfast.workloads.tooluse.forms import FORMS, TEMPLATES


def wordings(split: str) -> set[str]:
    return {wording for several in TEMPLATES[split].values() for wording in several}


def plain(wording: str) -> str:
    """What is left of a wording when case and stops are not looked at."""
    return " ".join(re.findall(r"[\w{}']+", wording.lower()))


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
