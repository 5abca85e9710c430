"""What a type looks like as JSON: one walk over a type hint gives its writer, its reader and its JSON Schema.

Versions, and the text around a record, belong to `records`. Writers and readers are closures made once per type, and a
path is put together only after something went wrong, so that reading a span costs microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from holdfast.contracts.errors import LATER, BadRecord

NAMES = {NoneType: "null", bool: "true or false", int: "a whole number", float: "a number", str: "text"}
NAMES |= {list: "a list", dict: "an object"}
AS_IT_IS = frozenset({str, int, bool, NoneType})  # JSON values that have nothing to be looked at


class Unfit(Exception):
    """A value that its type does not allow. Each level of the walk adds its part of the path while it unwinds."""

    def __init__(self, why: str, remedy: str, *, value: Any = MISSING, broken: BadRecord | None = None) -> None:
        super().__init__(why)
        self.why, self.remedy, self.value, self.broken = why, remedy, value, broken
        self.path = ""

    def inside(self, part: str) -> Unfit:
        self.path = part + self.path
        return self


def kind_of(value: Any) -> str:
    """What a value is, in the words of errors."""
    return NAMES.get(type(value), f"of type {type(value).__name__}")


def not_a(value: Any, wanted: str) -> Unfit:
    return Unfit(f"is {kind_of(value)}, not {wanted}", f"give {wanted}", value=value)


class DoubledKey(ValueError):
    """A key that a JSON object has twice; readers disagree on which of them counts."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these members, for `object_pairs_hook`; DoubledKey with the first key that is there again."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise DoubledKey(next(name for place, name in enumerate(names) if name in names[:place]))
    return found


@dataclass(frozen=True, slots=True)
class Shape:
    says: str  # what an error asks for
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    schema: Callable[[dict[str, Any]], dict[str, Any]]  # adds the records it meets to the given $defs


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str.__str__(value)  # an enum's member becomes its value
    raise not_a(value, "text")


def _flag(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise not_a(value, "true or false")


def _whole(value: Any) -> int:
    if type(value) is int:
        return value
    raise not_a(value, "a whole number")


def _number(value: Any) -> float:
    if isinstance(value, float):
        if isfinite(value):
            return float(value)
        raise Unfit("is not finite", "give a finite number, or leave the record out", value=value)
    if type(value) is not int:
        raise not_a(value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if number != value:
        raise Unfit("is too large to be kept exactly", "give a number that a 64-bit float can hold", value=value)
    return number


def _json(value: Any) -> Any:
    """A copy of any JSON value, lists and objects included."""
    kind = type(value)
    if kind in AS_IT_IS:
        return value
    if kind is list or kind is tuple:
        return _list(value, _json)
    if isinstance(value, float):
        return _number(value)
    if kind is dict or isinstance(value, Mapping):  # the second question is slow
        return _object(value, _json)
    if isinstance(value, str):
        return _text(value)
    raise not_a(value, "a JSON value")


def _list(value: Any, each: Callable[[Any], Any]) -> list[Any]:
    # Token ids and log-probs come by the thousand: they are looked at all at once, and singly only to find a fault.
    if each is _whole and set(map(type, value)) == {int}:
        return list(value)
    if each is _number and set(map(type, value)) == {float} and all(map(isfinite, value)):
        return list(value)
    if each is _json and set(map(type, value)) <= AS_IT_IS:
        return list(value)
    out: list[Any] = []
    try:
        out.extend(map(each, value))  # what was read before a failure stays, so the length is the place
    except Unfit as unfit:
        raise unfit.inside(f"[{len(out)}]") from None
    return out


def _object(value: Mapping[Any, Any], each: Callable[[Any], Any]) -> dict[str, Any]:
    out = {}
    key = None
    try:
        for key, item in value.items():
            if not isinstance(key, str):
                raise Unfit("has a key that is not text", "write every key as text")
            out[key] = item if each is _json and type(item) in AS_IT_IS else each(item)
    except Unfit as unfit:
        raise unfit.inside(f"[{key!r}]") from None
    return out


def _array(item: Shape) -> Shape:
    says = "a list"

    def encode(value: Any) -> list[Any]:
        if not isinstance(value, (tuple, list)):
            raise not_a(value, says)
        return _list(value, item.encode)

    def decode(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise not_a(value, says)
        return tuple(_list(value, item.decode))

    return Shape(says, encode, decode, lambda defs: {"type": "array", "items": item.schema(defs)})


def _mapping(item: Shape) -> Shape:
    says = "an object"

    def over(each: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
        def walk(value: Any) -> dict[str, Any]:
            if type(value) is not dict and not isinstance(value, Mapping):
                raise not_a(value, says)
            return _object(value, each)

        return walk

    def schema(defs: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": item.schema(defs)}

    return Shape(says, over(item.encode), over(item.decode), schema)


def _optional(item: Shape) -> Shape:
    def encode(value: Any) -> Any:
        return None if value is None else item.encode(value)

    def decode(value: Any) -> Any:
        return None if value is None else item.decode(value)

    says = f"{item.says} or null"
    return Shape(says, encode, decode, lambda defs: {"anyOf": [item.schema(defs), {"type": "null"}]})


def _choice(values: Mapping[str, Any]) -> Shape:
    """An enum's members or a literal's texts, by what stands in the JSON."""
    says = f"one of: {', '.join(values)}"

    def decode(value: Any) -> Any:
        if isinstance(value, str) and value in values:
            return values[value]
        raise Unfit("is not one of its values", f"use {says}", value=value)

    return Shape(says, lambda value: _text(decode(value)), decode, lambda defs: {"enum": list(values)})


def _record(cls: Any) -> Shape:
    hints = get_type_hints(cls)
    plan = [(f.name, shape(hints[f.name]), _required(f)) for f in fields(cls)]
    later = {f.name: f.default for f in fields(cls) if LATER.keys() <= f.metadata.keys()}
    names = [name for name, _, _ in plan]
    known = frozenset(names)

    def encode(value: Any) -> dict[str, Any]:
        if type(value) is not cls:
            raise not_a(value, f"a {cls.__name__}")
        out = {}
        name = ""
        try:
            for name, item, _ in plan:
                found = getattr(value, name)
                if name not in later or found != later[name]:
                    out[name] = item.encode(found)
        except Unfit as unfit:
            raise unfit.inside(f".{name}") from None
        return out

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            raise not_a(value, f"a {cls.__name__} object")
        if not value.keys() <= known:
            extra = next(key for key in value if key not in known)
            remedy = f"remove it: the fields are {', '.join(names)}"
            raise Unfit(f"is not a field of {cls.__name__}", remedy, value=value[extra]).inside(f".{extra}")
        given = {}
        name = ""
        try:
            for name, item, required in plan:
                if name in value:
                    given[name] = item.decode(value[name])
                elif required:
                    raise Unfit("is missing", f"give {item.says}")
        except Unfit as unfit:
            raise unfit.inside(f".{name}") from None
        try:
            return cls(**given)
        except BadRecord as broken:
            raise Unfit(f"{broken.what}: {broken.why}", broken.remedy, broken=broken) from None

    return Shape(f"a {cls.__name__} object", encode, decode, lambda defs: _document(cls, hints, defs))


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _document(cls: Any, hints: Mapping[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """Put the record's own schema under $defs and refer to it. A field's metadata holds its JSON Schema keywords."""
    if cls.__name__ not in defs:
        document = defs[cls.__name__] = {"title": cls.__name__}
        if not cls.__doc__.startswith(f"{cls.__name__}("):  # dataclass writes that one itself
            document["description"] = " ".join(cls.__doc__.split())
        document |= {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
        for f in fields(cls):
            item = shape(hints[f.name])
            document["properties"][f.name] = {**item.schema(defs), **f.metadata}
            if f.default is not MISSING:
                document["properties"][f.name]["default"] = item.encode(f.default)
        document["required"] = [f.name for f in fields(cls) if _required(f)]
    return {"$ref": f"#/$defs/{cls.__name__}"}


SCALARS = {
    str: Shape("text", _text, _text, lambda defs: {"type": "string"}),
    bool: Shape("true or false", _flag, _flag, lambda defs: {"type": "boolean"}),
    int: Shape("a whole number", _whole, _whole, lambda defs: {"type": "integer"}),
    float: Shape("a number", _number, _number, lambda defs: {"type": "number"}),
    Any: Shape("any JSON value", _json, _json, lambda defs: {}),
}


@cache
def shape(hint: Any) -> Shape:
    """The shape of a type; a type that no record uses yet is refused when it is first met."""
    if hint in SCALARS:
        return SCALARS[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType) and len(args) == 2 and NoneType in args:
        return _optional(shape(next(arg for arg in args if arg is not NoneType)))
    if origin is tuple and args[1:] == (Ellipsis,):
        return _array(shape(args[0]))
    if origin is Mapping and args[0] is str:
        return _mapping(shape(args[1]))
    if origin is Literal:
        return _choice({text: text for text in args})
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _choice({member.value: member for member in hint})
    if is_dataclass(hint):
        return _record(hint)
    raise TypeError(f"{hint}: records hold text, numbers, flags, enums, records, tuples and mappings of them, or Any")
