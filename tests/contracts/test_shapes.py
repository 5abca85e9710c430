"""Which types a record may hold, how each looks as JSON, and how each is described."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, Literal

import pytest

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.shapes import Unfit, shape


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


class Text(str):
    __slots__ = ()


class Number(float):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    left: int
    right: Colour = Colour.RED

    def __post_init__(self) -> None:
        if self.left == 13:
            raise BadRecord("pair: left = 13", why="brings bad luck", remedy="take 12")


FITTING = [
    # hint, in Python, as JSON
    (str, "a", "a"),
    (str, "", ""),
    (bool, True, True),
    (bool, False, False),
    (int, -3, -3),
    (int, 10**30, 10**30),
    (float, 0.1, 0.1),
    (Any, None, None),
    (Any, {"a": [1, 2.5, "x", None, True]}, {"a": [1, 2.5, "x", None, True]}),
    (int | None, None, None),
    (int | None, 4, 4),
    (None | int, 4, 4),
    (tuple[int, ...], (), []),
    (tuple[int, ...], (1, 2), [1, 2]),
    (tuple[float, ...], (1.0, 2.5), [1.0, 2.5]),
    (tuple[tuple[float, ...], ...], ((1.0,), (2.0,)), [[1.0], [2.0]]),
    (tuple[str, ...] | None, ("a",), ["a"]),
    (Mapping[str, int], {"a": 1}, {"a": 1}),
    (Mapping[str, Any], {"a": {"b": []}}, {"a": {"b": []}}),
    (Colour, Colour.BLUE, "blue"),
    (Literal["on", "off"], "on", "on"),
    (Pair, Pair(left=1), {"left": 1, "right": "red"}),
    (Mapping[str, Pair], {"p": Pair(left=1)}, {"p": {"left": 1, "right": "red"}}),
]


@pytest.mark.parametrize(("hint", "value", "written"), FITTING, ids=str)
def test_a_value_is_written_and_read_again(hint: Any, value: Any, written: Any) -> None:
    assert shape(hint).encode(value) == written
    assert shape(hint).decode(written) == value
    assert type(shape(hint).decode(written)) is type(value)


UNREADABLE = [
    # hint, what was found, path, why
    (str, 1, "", "is a whole number, not text"),
    (str, None, "", "is null, not text"),
    (bool, 1, "", "is a whole number, not true or false"),
    (bool, "true", "", "is text, not true or false"),
    (int, True, "", "is true or false, not a whole number"),
    (int, 1.0, "", "is a number, not a whole number"),
    (int, Size.SMALL, "", "is of type Size, not a whole number"),
    (float, True, "", "is true or false, not a number"),
    (float, "1", "", "is text, not a number"),
    (float, float("-inf"), "", "is not finite"),
    (float, 2**53 + 1, "", "is too large to be kept exactly"),
    (float, 10**400, "", "is too large to be kept exactly"),
    (Any, {1}, "", "is of type set, not a JSON value"),
    (Any, [0, b"x"], "[1]", "is of type bytes, not a JSON value"),
    (Any, {"a": {2: 3}}, "['a'][2]", "has a key that is not text"),
    (int | None, "1", "", "is text, not a whole number"),
    (tuple[int, ...], (1,), "", "is of type tuple, not a list"),  # a tuple is what we write from, never what JSON gave
    (tuple[int, ...], [1, 2, "3"], "[2]", "is text, not a whole number"),
    (tuple[int, ...], [1, True], "[1]", "is true or false, not a whole number"),
    (tuple[float, ...], [1.0, float("nan")], "[1]", "is not finite"),
    (tuple[tuple[int, ...], ...], [[1], [2, None]], "[1][1]", "is null, not a whole number"),
    (Mapping[str, int], [], "", "is a list, not an object"),
    (Mapping[str, int], {"a": "b"}, "['a']", "is text, not a whole number"),
    (Colour, "green", "", "is not one of its values"),
    (Colour, 1, "", "is not one of its values"),
    (Colour, ["red"], "", "is not one of its values"),
    (Literal["on"], "off", "", "is not one of its values"),
    (Pair, {"left": 1, "middle": 2}, ".middle", "is not a field of Pair"),
    (Pair, {"right": "red"}, ".left", "is missing"),
    (Pair, {"left": 13}, "", "pair: left = 13: brings bad luck"),
]


@pytest.mark.parametrize(("hint", "found", "path", "why"), UNREADABLE, ids=str)
def test_a_value_of_another_type_is_refused_with_its_place(hint: Any, found: Any, path: str, why: str) -> None:
    with pytest.raises(Unfit) as refusal:
        shape(hint).decode(found)
    assert (refusal.value.path, refusal.value.why) == (path, why)


def test_a_refusal_carries_the_remedy() -> None:
    def remedy(hint: Any, found: Any) -> str:
        with pytest.raises(Unfit) as refusal:
            shape(hint).decode(found)
        return refusal.value.remedy

    assert remedy(int | None, "x") == "give a whole number"
    assert remedy(Colour, "green") == "use one of: red, blue"
    assert remedy(Pair, {"left": 1, "middle": 2}) == "remove it: the fields are left, right"
    assert remedy(Pair, {}) == "give a whole number"
    assert remedy(Pair, {"left": 13}) == "take 12"
    assert remedy(Mapping[str, Pair], {"p": {}}) == "give a whole number"


def test_what_is_written_is_plain_whatever_kind_of_text_number_or_mapping_it_was() -> None:
    for hint in (str, Any):
        assert type(shape(hint).encode(Colour.RED)) is str
        assert type(shape(hint).encode(Text("x"))) is str
    for hint in (float, Any):
        assert type(shape(hint).encode(Number(1.5))) is float
    assert type(shape(float).encode(3)) is float
    assert type(shape(Mapping[str, Any]).encode(MappingProxyType({"a": MappingProxyType({})}))["a"]) is dict
    assert type(shape(Colour).encode("red")) is str
    assert shape(Any).encode((1, (2,))) == [1, [2]]


def test_a_mixed_list_of_numbers_is_read_as_numbers() -> None:
    read = shape(tuple[float, ...]).decode([1, 2.5])
    assert read == (1.0, 2.5)
    assert [type(value) for value in read] == [float, float]


def test_a_whole_number_that_a_float_holds_exactly_is_a_number() -> None:
    assert shape(float).decode(2**53) == 2.0**53


def test_only_its_own_record_is_written() -> None:
    with pytest.raises(Unfit, match=r"^is an object, not a Pair$"):
        shape(Pair).encode({"left": 1})


DESCRIBED = [
    (str, {"type": "string"}),
    (bool, {"type": "boolean"}),
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (Any, {}),
    (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    (tuple[str, ...], {"type": "array", "items": {"type": "string"}}),
    (Mapping[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
    (Colour, {"enum": ["red", "blue"]}),
    (Literal["on", "off"], {"enum": ["on", "off"]}),
    (Pair, {"$ref": "#/$defs/Pair"}),
]


@pytest.mark.parametrize(("hint", "document"), DESCRIBED, ids=str)
def test_a_type_has_its_json_schema(hint: Any, document: Any) -> None:
    assert shape(hint).schema({}) == document


def test_a_nested_record_is_described_once_and_without_the_docstring_that_python_makes_up() -> None:
    defs: dict[str, Any] = {}
    shape(tuple[Pair, ...]).schema(defs)
    shape(Pair | None).schema(defs)
    assert defs == {
        "Pair": {
            "title": "Pair",
            "type": "object",
            "properties": {"left": {"type": "integer"}, "right": {"enum": ["red", "blue"], "default": "red"}},
            "required": ["left"],
            "additionalProperties": False,
        }
    }


@pytest.mark.parametrize("hint", [set, list[int], tuple[int, int], int | str, Mapping[int, str], Size, bytes], ids=str)
def test_a_type_that_no_record_needs_is_a_mistake_of_ours(hint: Any) -> None:
    with pytest.raises(TypeError, match="records hold text, numbers, flags, enums, records, tuples and mappings"):
        shape(hint)
