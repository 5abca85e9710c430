"""A flag's rules as people write and read them: `on 25% if group in staff,beta and plan equals gold`.

Which operators there are is the contract's; whether a value suits its operator is checked by `promote.flags`.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.contracts.flag import OPERATORS, Condition, FlagRule

FORM = "VARIANT [PERCENT%] [if ATTRIBUTE OPERATOR VALUE [and …]]"


def rule_of(text: str) -> FlagRule:
    """The rule that the text says, or BadInput with the form of one."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"rule {text!r}", why=str(error), remedy=f"write {FORM}") from None
    if not words:
        raise BadInput("rule", why="is empty", remedy=f"write {FORM}")
    variant, *rest = words
    percent = 100.0
    if rest and rest[0] != "if":
        if not re.match(r"[-+.\d]", rest[0]):  # iff, when, many
            why = f"{rest[0]!r} is neither a share, such as 25%, nor the word if"
            raise BadInput(f"rule {text!r}", why=why, remedy=f"write {FORM}")
        percent = percent_of(rest.pop(0))
    if not rest:
        return FlagRule(variant=variant, percent=percent)
    if rest.pop(0) != "if":
        raise BadInput(f"rule {text!r}", why="has words where 'if' should stand", remedy=f"write {FORM}")
    conditions = []
    while True:
        if len(rest) < 3 or (len(rest) > 3 and rest[3] != "and"):
            why = "a condition is an attribute, an operator and one value (with quotes where it has blanks)"
            raise BadInput(f"rule {text!r}", why=why, remedy=f"write {FORM}")
        attribute, operator, value, *rest = rest
        conditions.append(_condition(attribute, operator, value))
        if not rest:
            return FlagRule(variant=variant, percent=percent, conditions=tuple(conditions))
        rest.pop(0)


def text_of(rule: FlagRule) -> str:
    """The rule as `rule_of` reads it."""
    shown = f"{rule.percent:g}" if float(f"{rule.percent:g}") == rule.percent else repr(rule.percent)
    share = "" if rule.percent == 100.0 else f" {shown}%"
    parts = [f"{shlex.quote(one.attribute)} {one.operator} {shlex.quote(_written(one))}" for one in rule.conditions]
    return shlex.quote(rule.variant) + share + (f" if {' and '.join(parts)}" if parts else "")


def percent_of(text: str) -> float:
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0.0 <= percent <= 100.0:
        raise BadInput(f"percent {text!r}", why="must be a number from 0 to 100, such as 25%")
    return percent


def value_of(text: str) -> Any:
    """JSON where it is JSON (true, 3, "3", [1, 2]), else the text itself."""
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text


def pair_of(text: str, option: str) -> tuple[str, str]:
    """`name=value`, of an option that can be given several times."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise BadInput(f"{option} {text!r}", why="must be NAME=VALUE")
    return name.strip(), value


def _condition(attribute: str, operator: str, text: str) -> Condition:
    if operator not in OPERATORS:
        raise BadInput(f"operator {operator!r}", why="is unknown", remedy=f"use {', '.join(OPERATORS)}")
    value = value_of(text)
    if operator in ("in", "not_in") and not isinstance(value, list):
        value = [value_of(part.strip()) for part in text.split(",")]
    elif operator in ("prefix", "suffix") and not isinstance(value, str):
        value = text  # `prefix 41` means the letters
    return Condition(attribute=attribute, operator=operator, value=value)


def _written(condition: Condition) -> str:
    value = condition.value
    if isinstance(value, str) and (condition.operator in ("prefix", "suffix") or value_of(value) == value):
        return value
    listed = ",".join(map(str, value)) if isinstance(value, list | tuple) else ""
    if listed and _condition(condition.attribute, condition.operator, listed).value == list(value):
        return listed
    return json.dumps(value, ensure_ascii=False)
