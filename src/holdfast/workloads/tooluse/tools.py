"""The four tools and the world behind them: strict about arguments, short in their results, flaky on request.

A result is text; a failure begins with "error: ". Nothing here knows questions or answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from fractions import Fraction
from typing import Any

from holdfast.contracts.errors import BadInput

BUSY = "error: busy, try again"
UNKNOWN_KEY = "error: unknown key"
BAD_ARGUMENTS = "error: bad arguments"
UNKNOWN_TOOL = "error: unknown tool"
UNKNOWN_UNIT = "error: unknown unit"
BY_ZERO = "error: division by 0"

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
UNITS: Mapping[str, Mapping[str, Fraction]] = {  # how many of the smallest of its kind
    "length": {"cm": Fraction(1), "m": Fraction(100), "km": Fraction(100_000)},
    "cloth": {"ft": Fraction(1), "yd": Fraction(3)},
    "mass": {"g": Fraction(1), "kg": Fraction(1000)},
    "weight": {"oz": Fraction(1), "lb": Fraction(16)},
    "time": {"s": Fraction(1), "min": Fraction(60), "h": Fraction(3600), "day": Fraction(86_400)},
    "volume": {"ml": Fraction(1), "l": Fraction(1000)},
}
FACTORS = {unit: (kind, factor) for kind, units in UNITS.items() for unit, factor in units.items()}
MAX_EXPRESSION = 64
MAX_VALUE = 10**15
DATE = re.compile(r"\d{4}-\d\d-\d\d")


def _spec(name: str, description: str, required: Iterable[str], **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_TEXT = {"type": "string"}
_DAY = {"type": "string", "description": "YYYY-MM-DD"}
_UNIT = {"type": "string", "enum": list(FACTORS)}
SPECS: Mapping[str, Mapping[str, Any]] = {
    "calc": _spec("calc", "Value of an expression of numbers, + - * / and brackets.", ["expression"], expression=_TEXT),
    "lookup": _spec("lookup", 'Value of a record; keys read "item.property", as in "oak.price".', ["key"], key=_TEXT),
    "convert": _spec(
        "convert",
        "A value in another unit.",
        ["value", "from", "to"],
        **{"value": {"type": "number"}, "from": _UNIT, "to": _UNIT},
    ),
    "calendar": _spec(
        "calendar",
        "weekday of a date; add days to a date; days between a date and until.",
        ["op", "date"],
        op={"type": "string", "enum": ["weekday", "add", "between"]},
        date=_DAY,
        days={"type": "integer", "description": "for add only"},
        until={**_DAY, "description": "YYYY-MM-DD, for between only"},
    ),
}
NAMES = tuple(SPECS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolWorld:
    """The data behind the tools of one task."""

    records: Mapping[str, str] = field(default_factory=dict)
    busy: Mapping[str, int] = field(default_factory=dict)  # how many first calls of a tool find it busy


class Toolbox:
    """The offered tools over one world, for one attempt: it counts calls, so that a busy tool becomes free."""

    def __init__(self, world: ToolWorld, offered: Iterable[str] = NAMES) -> None:
        self._world, self._offered = world, tuple(offered)
        self._left = dict(world.busy)
        if unknown := set(self._offered) - set(NAMES):
            raise BadInput(f"tools {sorted(unknown)}", why="are unknown", remedy=f"there are {', '.join(NAMES)}")

    def call(self, name: str, arguments: str) -> str:
        """The result of one call with its arguments as JSON text. Bad calls do not use up a busy one."""
        if name not in self._offered:
            return UNKNOWN_TOOL
        given = read_arguments(arguments)
        if given is None:
            return BAD_ARGUMENTS
        result = TOOLS[name](given, self._world)
        if result == BAD_ARGUMENTS:
            return result
        if self._left.get(name, 0) > 0:
            self._left[name] -= 1
            return BUSY
        return result


def specs(offered: Iterable[str]) -> list[dict[str, Any]]:
    """The offered tools as an OpenAI-compatible endpoint takes them."""
    return [dict(SPECS[name]) for name in offered]


def is_error(result: str) -> bool:
    return result.startswith("error:")


def read_arguments(text: str) -> dict[str, Any] | None:
    """The arguments of a call, or None where they are no JSON object."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return given if isinstance(given, dict) else None


def number_text(value: Fraction | int) -> str:
    """A number as the tools write it: whole, or with at most six decimals."""
    if value == int(value):
        return str(int(value))
    return f"{float(value):.6f}".rstrip("0").rstrip(".")


def calc(given: Mapping[str, Any], world: ToolWorld) -> str:
    expression = given.get("expression")
    if set(given) != {"expression"} or not isinstance(expression, str) or len(expression) > MAX_EXPRESSION:
        return BAD_ARGUMENTS
    try:
        return number_text(evaluate(expression))
    except ValueError:
        return BAD_ARGUMENTS
    except ZeroDivisionError:
        return BY_ZERO


def lookup(given: Mapping[str, Any], world: ToolWorld) -> str:
    key = given.get("key")
    if set(given) != {"key"} or not isinstance(key, str):
        return BAD_ARGUMENTS
    return world.records.get(key, UNKNOWN_KEY)


def convert(given: Mapping[str, Any], world: ToolWorld) -> str:
    value, source, target = given.get("value"), given.get("from"), given.get("to")
    if set(given) != {"value", "from", "to"} or isinstance(value, bool) or not isinstance(value, int | float):
        return BAD_ARGUMENTS
    if not isinstance(source, str) or not isinstance(target, str) or not -MAX_VALUE < value < MAX_VALUE:
        return BAD_ARGUMENTS
    if source not in FACTORS or target not in FACTORS or FACTORS[source][0] != FACTORS[target][0]:
        return UNKNOWN_UNIT
    return number_text(Fraction(str(value)) * FACTORS[source][1] / FACTORS[target][1])


def calendar(given: Mapping[str, Any], world: ToolWorld) -> str:
    op, day = given.get("op"), _day(given.get("date"))
    if day is None:
        return BAD_ARGUMENTS
    if op == "weekday" and set(given) == {"op", "date"}:
        return WEEKDAYS[day.weekday()]
    if op == "add" and set(given) == {"op", "date", "days"}:
        days = given["days"]
        if isinstance(days, bool) or not isinstance(days, int):
            return BAD_ARGUMENTS
        try:
            return (day + timedelta(days=days)).isoformat()
        except OverflowError:
            return BAD_ARGUMENTS
    if op == "between" and set(given) == {"op", "date", "until"}:
        until = _day(given["until"])
        return BAD_ARGUMENTS if until is None else str((until - day).days)
    return BAD_ARGUMENTS


TOOLS: Mapping[str, Callable[[Mapping[str, Any], ToolWorld], str]] = {
    "calc": calc,
    "lookup": lookup,
    "convert": convert,
    "calendar": calendar,
}


def _day(text: Any) -> date | None:
    if not isinstance(text, str) or not DATE.fullmatch(text):
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def evaluate(expression: str) -> Fraction:
    """The exact value under the usual precedence; ValueError where it is no expression."""
    parts = re.findall(r"\d+(?:\.\d+)?|[-+*/()]", expression)
    if "".join(parts) != re.sub(r"\s+", "", expression) or re.search(r"[\d.]\s+[\d.]", expression):
        raise ValueError(expression)
    parts.append("")  # the end
    value, place = _sum(parts, 0)
    if parts[place]:
        raise ValueError(expression)
    return value


def _sum(parts: list[str], place: int) -> tuple[Fraction, int]:
    value, place = _product(parts, place)
    while (sign := parts[place]) in ("+", "-"):
        right, place = _product(parts, place + 1)
        value = value + right if sign == "+" else value - right
    return value, place


def _product(parts: list[str], place: int) -> tuple[Fraction, int]:
    value, place = _factor(parts, place)
    while (sign := parts[place]) in ("*", "/"):
        right, place = _factor(parts, place + 1)
        value = value * right if sign == "*" else value / right
    return value, place


def _factor(parts: list[str], place: int) -> tuple[Fraction, int]:
    part = parts[place]
    if part == "-":
        value, place = _factor(parts, place + 1)
        return -value, place
    if part == "(":
        value, place = _sum(parts, place + 1)
        if parts[place] != ")":
            raise ValueError("unclosed bracket")
        return value, place + 1
    if not part or part in "+*/)":
        raise ValueError(part or "ends too early")
    return Fraction(part), place + 1
