"""A flag names only variants that it has, all of one type, and is off unless told otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.flag import OPERATORS, Condition, Flag, FlagRule


def flag(**changes: Any) -> Flag:
    return Flag(**{"name": "beta", "variants": {"on": True, "off": False}, "off": "off", **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "flag '': a name has no blanks in it, and is not empty"),
        ({"name": "two words"}, "flag 'two words': a name has no blanks in it, and is not empty"),
        ({"name": "tab\t"}, "flag 'tab\\t': a name has no blanks in it, and is not empty"),
        ({"variants": {}}, "flag 'beta': variants: there is none"),
        ({"variants": {"on": True, "off": "no"}}, "flag 'beta': variants: are of more than one type"),
        ({"variants": {"on": 1, "off": False}}, "flag 'beta': variants: are of more than one type"),  # true is not 1
        ({"off": "gone"}, "flag 'beta': variant 'gone': is not one of its variants; use on, off"),
        ({"rules": (FlagRule(variant="x"),)}, "flag 'beta': variant 'x': is not one of its variants; use on, off"),
        ({"requires": {"beta": "on"}}, "flag 'beta': requires: itself"),
    ],
)
def test_what_is_no_flag_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        flag(**changes)
    assert str(refusal.value) == message


@pytest.mark.parametrize("percent", [-0.1, 100.1, float("nan")])
def test_a_share_is_a_percentage(percent: float) -> None:
    with pytest.raises(BadRecord, match=f"^rule for on: percent = {percent}: must be from 0 to 100$"):
        FlagRule(variant="on", percent=percent)


def test_an_operator_is_one_of_the_list() -> None:
    for operator in OPERATORS:
        assert Condition(attribute="group", operator=operator, value=1).operator == operator
    with pytest.raises(
        BadRecord, match="^operator 'like': is unknown; use equals, in, not_in, prefix, suffix, above, below$"
    ):
        Condition(attribute="group", operator="like", value=1)


def test_a_flag_is_off_unless_told_otherwise() -> None:
    bare = flag()
    assert (bare.enabled, bare.killed, bare.rules, bare.requires, bare.expires_at) == (False, False, (), {}, None)
    everybody = FlagRule(variant="on")
    assert (everybody.conditions, everybody.percent) == ((), 100.0)
