"""The four tools: right, strict, short, and busy as often as the world says."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.policies import tokens
from holdfast.workloads.tooluse.tools import (
    BAD_ARGUMENTS,
    BUSY,
    BY_ZERO,
    NAMES,
    SPECS,
    UNKNOWN_KEY,
    UNKNOWN_TOOL,
    UNKNOWN_UNIT,
    Toolbox,
    ToolWorld,
    evaluate,
    is_error,
    specs,
)
from tests.policies.small import show

WORLD = ToolWorld(records={"oak.price": "42"})


@pytest.mark.parametrize(
    ("tool", "arguments", "result"),
    [
        ("calc", {"expression": "2+3*4"}, "14"),
        ("calc", {"expression": " (2 + 3) * -4 "}, "-20"),
        ("calc", {"expression": "1/8"}, "0.125"),
        ("calc", {"expression": "2/3"}, "0.666667"),
        ("calc", {"expression": "10-4-3"}, "3"),  # from the left
        ("calc", {"expression": "0.1+0.2"}, "0.3"),  # exact
        ("calc", {"expression": "1/(2-2)"}, BY_ZERO),
        ("lookup", {"key": "oak.price"}, "42"),
        ("lookup", {"key": "oak.size"}, UNKNOWN_KEY),
        ("convert", {"value": 42, "from": "kg", "to": "g"}, "42000"),
        ("convert", {"value": 1.5, "from": "h", "to": "min"}, "90"),
        ("convert", {"value": 1, "from": "ft", "to": "yd"}, "0.333333"),
        ("convert", {"value": 1, "from": "kg", "to": "min"}, UNKNOWN_UNIT),
        ("convert", {"value": 1, "from": "stone", "to": "kg"}, UNKNOWN_UNIT),
        ("calendar", {"op": "weekday", "date": "2024-02-29"}, "Thursday"),
        ("calendar", {"op": "add", "date": "2024-02-28", "days": 2}, "2024-03-01"),
        ("calendar", {"op": "add", "date": "2024-03-01", "days": -1}, "2024-02-29"),
        ("calendar", {"op": "between", "date": "2023-12-31", "until": "2024-12-31"}, "366"),
        ("calendar", {"op": "between", "date": "2024-01-02", "until": "2024-01-01"}, "-1"),
    ],
)
def test_a_tool_gives_its_result(tool: str, arguments: dict[str, Any], result: str) -> None:
    assert Toolbox(WORLD).call(tool, json.dumps(arguments)) == result


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("calc", ""),  # nothing at all
        ("calc", '{"expression":"1+1"'),  # cut short
        ("calc", '["1+1"]'),  # not an object
        ("calc", '{"expression":2}'),
        ("calc", '{"expr":"1+1"}'),
        ("calc", '{"expression":"1+1","key":"a"}'),  # one too many
        ("calc", '{"expression":"1 1"}'),  # no sign between
        ("calc", '{"expression":"2**8"}'),
        ("calc", '{"expression":"(1+2"}'),
        ("calc", '{"expression":"1+"}'),
        ("calc", '{"expression":""}'),
        ("calc", '{"expression":"__import__"}'),
        ("calc", json.dumps({"expression": "1+" * 40 + "1"})),  # too long
        ("lookup", '{"key":1}'),
        ("lookup", "{}"),
        ("convert", '{"value":"42","from":"kg","to":"g"}'),  # text is no number
        ("convert", '{"value":true,"from":"kg","to":"g"}'),
        ("convert", '{"value":NaN,"from":"kg","to":"g"}'),
        ("convert", '{"value":1e999,"from":"kg","to":"g"}'),
        ("convert", '{"value":1,"from":["kg"],"to":"g"}'),
        ("calendar", '{"op":"weekday","date":"2024-02-30"}'),
        ("calendar", '{"op":"weekday","date":"20240229"}'),
        ("calendar", '{"op":"weekday","date":"2024-02-29","days":1}'),  # not for this op
        ("calendar", '{"op":"add","date":"2024-02-29"}'),
        ("calendar", '{"op":"add","date":"2024-02-29","days":1.5}'),
        ("calendar", '{"op":"add","date":"2024-02-29","days":99999999999}'),
        ("calendar", '{"op":"between","date":"2024-02-29","until":"soon"}'),
        ("calendar", '{"op":"sing","date":"2024-02-29"}'),
        ("calendar", '{"op":["add"],"date":"2024-02-29"}'),
        ("calc", "[" * 100_000),
    ],
)
def test_bad_arguments_are_told_so(tool: str, arguments: str) -> None:
    assert Toolbox(WORLD).call(tool, arguments) == BAD_ARGUMENTS


@given(
    st.sampled_from(NAMES), st.text(max_size=40) | st.dictionaries(st.text(max_size=5), st.integers()).map(json.dumps)
)
def test_no_call_breaks_a_tool(tool: str, arguments: str) -> None:
    assert is_error(Toolbox(WORLD).call(tool, arguments))


@given(st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 999)), max_size=5), st.integers(0, 999))
def test_expressions_have_the_value_python_gives_them(rest: list[tuple[str, int]], first: int) -> None:
    expression = f"{first}" + "".join(f"{sign}{number}" for sign, number in rest)
    assert evaluate(expression) == Fraction(eval(expression))


def test_a_tool_that_is_not_offered_is_unknown() -> None:
    box = Toolbox(WORLD, ["lookup"])
    assert box.call("calc", '{"expression":"1+1"}') == UNKNOWN_TOOL
    assert box.call("sing", "{}") == UNKNOWN_TOOL
    with pytest.raises(BadInput, match="sing"):
        Toolbox(WORLD, ["sing"])


def test_a_busy_tool_is_free_after_as_many_good_calls_as_planned() -> None:
    box = Toolbox(ToolWorld(records=WORLD.records, busy={"lookup": 2}))
    asked = '{"key":"oak.price"}'
    assert box.call("lookup", "oak") == BAD_ARGUMENTS  # does not count
    assert [box.call("lookup", asked) for _ in range(4)] == [BUSY, BUSY, "42", "42"]
    assert box.call("calc", '{"expression":"1+1"}') == "2"  # nobody else is busy


def test_specs_are_what_openai_takes_and_what_the_template_shows() -> None:
    for name, spec in SPECS.items():
        function = spec["function"]
        assert spec["type"] == "function" and function["name"] == name and function["description"]
        assert set(function["parameters"]["required"]) <= set(function["parameters"]["properties"])
    assert json.loads(json.dumps(specs(NAMES))) == specs(NAMES)
    shown = show(tokens.prompt([{"role": "user", "content": "?"}], specs(NAMES)))
    assert "tools: calc(expression) lookup(key) convert(value,from,to) calendar(op,date,days,until)" in shown
