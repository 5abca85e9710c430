"""A prompt as a policy: texts by name, and the same content is the same version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.policy import policy_from, policy_record
from holdfast.policies.prompt import Prompt


def test_texts_are_given_by_name_or_as_one_mapping() -> None:
    named = Prompt(system="a", tone="b", model="tiny", sampling={"temperature": 0.0})
    assert named == Prompt({"system": "a", "tone": "b"}, model="tiny", sampling={"temperature": 0.0})
    assert named.version == Prompt({"tone": "b"}, system="a", model="tiny", sampling={"temperature": 0.0}).version
    assert named.version != Prompt(system="a", tone="b", model="tiny").version
    assert policy_from(policy_record(named)) == named


def test_some_texts_are_replaced_for_the_same_model() -> None:
    made = Prompt(system="a", tone="b", model="tiny").with_texts({"system": "c"})
    assert made == Prompt(system="c", tone="b", model="tiny")
    assert replace(made, model="other") == Prompt(system="c", tone="b", model="other")


@pytest.mark.parametrize("wrong", ["You answer.", {"_policy": "x"}, {"system": object()}, {"system": float("nan")}])
def test_what_cannot_be_kept_is_refused(wrong: Any) -> None:
    with pytest.raises(BadInput, match="prompt"):
        Prompt(wrong)
