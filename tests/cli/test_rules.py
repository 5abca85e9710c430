"""Rules of flags, as people write and read them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.flags import pair_of, rule_of, text_of, value_of
from holdfast.contracts.errors import BadInput
from holdfast.contracts.flag import Condition, FlagRule


def condition(attribute: str, operator: str, value: Any) -> Condition:
    return Condition(attribute=attribute, operator=operator, value=value)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("on", FlagRule(variant="on")),
        ("on 25%", FlagRule(variant="on", percent=25.0)),
        ("blue 0.5", FlagRule(variant="blue", percent=0.5)),
        (
            "on if group in staff,beta",
            FlagRule(variant="on", conditions=(condition("group", "in", ["staff", "beta"]),)),
        ),
        (
            "on 10% if age above 17 and plan equals 'gold and silver'",
            FlagRule(
                variant="on",
                percent=10.0,
                conditions=(condition("age", "above", 17), condition("plan", "equals", "gold and silver")),
            ),
        ),
        ("on if phone prefix 41", FlagRule(variant="on", conditions=(condition("phone", "prefix", "41"),))),
        ("on if id equals '\"7\"'", FlagRule(variant="on", conditions=(condition("id", "equals", "7"),))),
        ("on if paid equals true", FlagRule(variant="on", conditions=(condition("paid", "equals", True),))),
        ("on if n in '[1, \"2\"]'", FlagRule(variant="on", conditions=(condition("n", "in", [1, "2"]),))),
    ],
)
def test_a_rule_is_what_its_text_says_and_back(text: str, rule: FlagRule) -> None:
    assert rule_of(text) == rule
    assert rule_of(text_of(rule)) == rule


WORDS = st.text(min_size=1)
NUMBERS = st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False)
CONDITIONS = st.one_of(
    st.builds(condition, WORDS, st.just("equals"), st.text() | NUMBERS | st.booleans()),
    st.builds(condition, WORDS, st.sampled_from(["in", "not_in"]), st.lists(st.text() | NUMBERS | st.booleans())),
    st.builds(condition, WORDS, st.sampled_from(["prefix", "suffix"]), st.text()),
    st.builds(condition, WORDS, st.sampled_from(["above", "below"]), NUMBERS),
)


@given(
    st.builds(
        FlagRule, variant=WORDS, percent=st.floats(0, 100), conditions=st.lists(CONDITIONS, max_size=3).map(tuple)
    )
)
def test_every_rule_can_be_written_and_read_again(rule: FlagRule) -> None:
    again = rule_of(text_of(rule))
    assert again == rule
    assert [type(one.value) for one in again.conditions] == [type(one.value) for one in rule.conditions]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "rule: is empty; write VARIANT [PERCENT%] [if ATTRIBUTE OPERATOR VALUE [and …]]"),
        ("on 101%", "percent '101%': must be a number from 0 to 100, such as 25%"),
        ("on 250%", "percent '250%': must be a number from 0 to 100, such as 25%"),
        ("on many", "'many' is neither a share, such as 25%, nor the word if; write VARIANT [PERCENT%] [if ATTRIBUTE"),
        ("on iff group in staff", "'iff' is neither a share, such as 25%, nor the word if; write VARIANT [PERCENT%]"),
        ("on ''", "'' is neither a share, such as 25%, nor the word if; write VARIANT"),
        ("on 5% when x", "has words where 'if' should stand"),
        ("on if", "a condition is an attribute, an operator and one value"),
        ("on if group in", "a condition is an attribute, an operator and one value"),
        ("on if group in staff beta", "a condition is an attribute, an operator and one value"),
        ("on if group in staff and", "a condition is an attribute, an operator and one value"),
        ("on if group like staff", "operator 'like': is unknown; use equals, in, not_in"),
        ("on if group in 'staff", "No closing quotation"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_with_its_form(text: str, expected: str) -> None:
    with pytest.raises(BadInput) as refused:
        rule_of(text)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("3", 3),
        ('"3"', "3"),
        ("gold", "gold"),
        ("NaN", "NaN"),
        ("", ""),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_a_value_is_json_where_it_is_json(text: str, value: object) -> None:
    assert value_of(text) == value


def test_a_pair_needs_a_name() -> None:
    assert pair_of("a=b=c", "--attr") == ("a", "b=c")
    for text in ("a", "=b", " =b"):
        with pytest.raises(BadInput, match="must be NAME=VALUE"):
            pair_of(text, "--attr")
