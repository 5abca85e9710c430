"""What can be asked: wordings a split, and forms that draw numbers, words, the calls that answer, and the answer.

No wording is shared between splits: what a model learnt on one has to carry over to wordings it never saw. Results of
calls are computed here and not asked of the tools, because millions are drawn for demonstrations; the tests ask the
tools for every one. `tasks` decides how hard they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from random import Random
from typing import TypeVar

from holdfast.workloads.tooluse.tools import UNITS, WEEKDAYS

TRAIN: Mapping[str, tuple[str, ...]] = {
    "calc": (
        "What is {x}?",
        "Compute {x}.",
        "{x} = ?",
        "Work out {x}.",
        "Please calculate {x}.",
        "How much is {x}?",
        "I need the value of {x}.",
        "Tell me {x}.",
    ),
    "lookup": (
        "What is the {a} of {i}?",
        "Look up the {a} of {i}.",
        "Tell me the {a} of {i}.",
        "{i}: what is the {a}?",
        "Please find the {a} of {i}.",
        "Which {a} has {i}?",
        "I want to know {i}'s {a}.",
    ),
    "convert": (
        "Convert {v} {f} to {t}.",
        "What is {v} {f} in {t}?",
        "How many {t} are {v} {f}?",
        "{v} {f} = ? {t}",
        "Change {v} {f} into {t}.",
        "Please give {v} {f} in {t}.",
        "I have {v} {f}; how many {t}?",
    ),
    "weekday": (
        "What weekday is {d}?",
        "Which day of the week is {d}?",
        "{d}: which weekday?",
        "Tell me the weekday of {d}.",
        "Please find the weekday of {d}.",
    ),
    "add": (
        "What date is {n} days after {d}?",
        "Add {n} days to {d}.",
        "{d} plus {n} days?",
        "Tell me the date {n} days after {d}.",
        "Which date comes {n} days after {d}?",
    ),
    "between": (
        "How many days from {d} to {e}?",
        "Count the days between {d} and {e}.",
        "{d} to {e}: how many days?",
        "Tell me the days from {d} to {e}.",
        "How many days are between {d} and {e}?",
    ),
    "lookup_calc": (
        "What is the {a} of {i} {o} {n}?",
        "Compute the {a} of {i} {o} {n}.",
        "Take the {a} of {i} {o} {n}.",
        "{i}: what is the {a} {o} {n}?",
        "Look up the {a} of {i}; what is it {o} {n}?",
        "Tell me {i}'s {a} {o} {n}.",
    ),
    "lookup_convert": (
        "What is the {a} of {i} in {t}?",
        "Tell me the {a} of {i} in {t}.",
        "How many {t} is the {a} of {i}?",
        "{i}: what is the {a} in {t}?",
        "Look up the {a} of {i}; give it in {t}.",
        "Convert {i}'s {a} to {t}.",
    ),
    "lookup_weekday": (
        "What weekday is the {a} of {i}?",
        "Tell me the weekday of the {a} of {i}.",
        "{i}: which weekday is the {a}?",
        "Look up the {a} of {i}; which weekday is it?",
        "Which day of the week is {i}'s {a}?",
    ),
    "lookup_lookup_calc": (
        "What is the {a} of {i} {o} the {a} of {j}?",
        "Compute the {a} of {i} {o} the {a} of {j}.",
        "Tell me {i}'s {a} {o} {j}'s {a}.",
        "Look up the {a} of {i}; what is it {o} the {a} of {j}?",
    ),
    "lookup_convert_calc": (
        "What is the {a} of {i} in {t} {o} {n}?",
        "Compute the {a} of {i} in {t} {o} {n}.",
        "Convert {i}'s {a} to {t}; what is it {o} {n}?",
        "Take the {a} of {i} in {t} {o} {n}.",
    ),
    "lookup_add_weekday": (
        "What weekday is {n} days after the {a} of {i}?",
        "Which day of the week is {n} days after {i}'s {a}?",
        "Tell me the weekday {n} days after the {a} of {i}.",
        "Take the {a} of {i} plus {n} days; which weekday is it?",
    ),
    "trivial": ("What is {x}?", "Compute {x}.", "{x} = ?", "Tell me {x}.", "How much is {x}?", "Please calculate {x}."),
    "repeat": ("Repeat the word {w}.", "Say {w}.", "Please write {w}.", "Write the word {w}.", "Tell me the word {w}."),
    "first": (
        "Which word is first: {w} {z}?",
        "Say the first word of {w} {z}.",
        "Tell me the first of {w} and {z}.",
        "{w} {z}: which is first?",
    ),
}

VAL: Mapping[str, tuple[str, ...]] = {
    "calc": ("Find {x}.", "What do I get for {x}?", "Please tell me the value of {x}."),
    "lookup": ("Find {i}'s {a}.", "What {a} has {i}?", "I need the {a} of {i}, please."),
    "convert": ("How much is {v} {f} in {t}?", "{v} {f} to {t}, please.", "Please change {v} {f} to {t}."),
    "weekday": ("{d} is which weekday?", "Find the day of the week of {d}."),
    "add": ("Which date is {d} plus {n} days?", "Find the date {n} days after {d}."),
    "between": ("Find the days from {d} to {e}.", "From {d} to {e}, how many days?"),
    "lookup_calc": ("How much is the {a} of {i} {o} {n}?", "Find {i}'s {a} {o} {n}."),
    "lookup_convert": ("Find the {a} of {i} in {t}.", "What is {i}'s {a} in {t}?"),
    "lookup_weekday": ("Find the weekday of the {a} of {i}.", "What weekday is {i}'s {a}?"),
    "lookup_lookup_calc": ("How much is {i}'s {a} {o} the {a} of {j}?", "Find the {a} of {i} {o} the {a} of {j}."),
    "lookup_convert_calc": ("Find the {a} of {i} in {t} {o} {n}.", "How much is {i}'s {a} in {t} {o} {n}?"),
    "lookup_add_weekday": (
        "Find the weekday {n} days after {i}'s {a}.",
        "{n} days after the {a} of {i}: which weekday?",
    ),
    "trivial": ("Find {x}.", "What do I get for {x}?"),
    "repeat": ("Please repeat {w}.", "Say the word {w}."),
    "first": ("Tell me which is first: {w} {z}.", "Write the first word of {w} {z}."),
}

TEST: Mapping[str, tuple[str, ...]] = {
    "calc": ("{x} is how much?", "Please work out {x}.", "I want to know {x}.", "The value of {x} is?"),
    "lookup": (
        "The {a} of {i} is what?",
        "I need {i}'s {a}.",
        "Please tell me which {a} {i} has.",
        "For {i}, look up the {a}.",
    ),
    "convert": (
        "In {t}, what is {v} {f}?",
        "{v} {f} is how many {t}?",
        "I want {v} {f} in {t}.",
        "Take {v} {f}; convert it to {t}.",
    ),
    "weekday": ("Which weekday is it on {d}?", "The weekday of {d} is?", "I need the day of the week of {d}."),
    "add": ("{n} days after {d} is which date?", "Take {d}; add {n} days.", "I need the date {n} days after {d}."),
    "between": (
        "Between {d} and {e}, how many days?",
        "I need the days between {d} and {e}.",
        "How many days is it from {d} to {e}?",
    ),
    "lookup_calc": (
        "Look up {i}'s {a} and compute it {o} {n}.",
        "The {a} of {i} {o} {n} is how much?",
        "I need the {a} of {i} {o} {n}.",
    ),
    "lookup_convert": (
        "In {t}, what is the {a} of {i}?",
        "I need {i}'s {a} in {t}.",
        "Look up {i}'s {a} and convert it to {t}.",
    ),
    "lookup_weekday": (
        "The {a} of {i} is on which weekday?",
        "I need the weekday of {i}'s {a}.",
        "For {i}, which day of the week is the {a}?",
    ),
    "lookup_lookup_calc": (
        "The {a} of {i} {o} the {a} of {j} is how much?",
        "I need {i}'s {a} {o} {j}'s {a}.",
        "Take the {a} of {i} {o} the {a} of {j}.",
    ),
    "lookup_convert_calc": (
        "Take {i}'s {a} in {t}; what is it {o} {n}?",
        "I need the {a} of {i} in {t} {o} {n}.",
    ),
    "lookup_add_weekday": (
        "Take {i}'s {a}, add {n} days; which weekday is it?",
        "I need the weekday {n} days after the {a} of {i}.",
    ),
    "trivial": ("{x} is how much?", "Please work out {x}.", "I want to know {x}."),
    "repeat": ("The word is {w}. Repeat it.", "I want you to say {w}."),
    "first": ("Of {w} and {z}, which is first?", "Please say the first word: {w} {z}."),
}

TEMPLATES: Mapping[str, Mapping[str, tuple[str, ...]]] = {"train": TRAIN, "val": VAL, "test": TEST}

OPERATIONS = {"plus": "+", "minus": "-", "times": "*"}
_ITEMS = """
    oak elm ash fir pine maple birch cedar lamp desk chair table shelf boat truck wheel engine cable robot camera clock
    radio guitar violin apple melon bread sugar honey coffee tea salt iron copper tin brick stone glass paper alpha beta
    gamma delta omega north river lake hill garden
"""
_COLORS = "red blue green black white gray brown pink gold silver teal olive amber ivory navy coral"
_OWNERS = "Ada Ben Cleo Dan Eva Finn Gus Hana Ida Jon Kim Leo Mia Nora Otto Pia Raj Sam Tia Uma Vic Zoe"
_CITIES = "Oslo Rome Lima Cairo Paris Tokyo Quito Bonn Kyiv Riga Bern Delhi Perth Lagos Porto Turin"
ITEMS, COLORS, OWNERS, CITIES = (tuple(words.split()) for words in (_ITEMS, _COLORS, _OWNERS, _CITIES))
OPENINGS = tuple(f"{c}{v}" for c in "bdfgklmnprstvz" for v in "aeiou")  # two or three of these make a word nobody saw
CLOSINGS = ("", "n", "r", "s", "l", "x")
COUNTED = ("price", "stock", "size", "age", "score", "rank")  # a bare number
NAMED = ("color", "owner", "code", "city")
MEASURED = {"weight": ("mass", "weight"), "length": ("length", "cloth"), "time": ("time",), "volume": ("volume",)}
DATED = ("deadline", "launch", "start", "end")


T = TypeVar("T")
FIRST_DAY, LAST_DAY = date(2000, 1, 1).toordinal(), date(2049, 12, 31).toordinal()
WORDED = tuple(OPERATIONS)
# From the larger unit to the smaller: whole numbers stay whole.
PAIRS = {
    kind: tuple((a, b) for a in units for b in units if units[a] > units[b] and units[a] / units[b] <= 100_000)
    for kind, units in UNITS.items()
}
KINDS = tuple(UNITS)
RATIOS = {(a, b): int(units[a] / units[b]) for kind, units in UNITS.items() for a, b in PAIRS[kind]}
MEASURES = tuple(MEASURED)
LETTERS = "ABCDEFGHKLMNPRSTVWXYZ"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One call of a tool as it should be made, and what comes back."""

    tool: str
    arguments: str  # JSON
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """One question before it has a wording."""

    fields: Mapping[str, object]  # what the wording is filled with
    calls: tuple[ToolUse, ...] = ()
    answer: str
    thought: str = ""  # the plan, where it takes more than one call
    records: Mapping[str, str] = field(default_factory=dict)


Form = Callable[[Random, int, int], Sketch]  # chance, digits of a number, operations of an expression


def pick(chance: Random, options: Sequence[T]) -> T:
    return options[int(chance.random() * len(options))]


def number(chance: Random, digits: int) -> int:
    """At least two digits where two are allowed: smaller ones need no tool."""
    high = 10 ** (1 + int(chance.random() * digits)) if digits > 1 else 10
    low = 10 if digits > 1 else 2
    return low + int(chance.random() * (max(high, 100 if digits > 1 else 10) - low))


def word(chance: Random) -> str:
    """A known word, or one that was never seen: it has to be copied, not remembered."""
    if chance.random() < 0.4:
        return pick(chance, ITEMS)
    middle = pick(chance, OPENINGS) if chance.random() < 0.3 else ""
    return pick(chance, OPENINGS) + middle + pick(chance, OPENINGS) + pick(chance, CLOSINGS)


def day(chance: Random) -> int:
    return FIRST_DAY + int(chance.random() * (LAST_DAY - FIRST_DAY))


def iso(ordinal: int) -> str:
    return date.fromordinal(ordinal).isoformat()


def weekday_of(ordinal: int) -> str:
    return WEEKDAYS[(ordinal + 6) % 7]


def named(chance: Random, attribute: str) -> str:
    """A value in words for a record."""
    if attribute == "color":
        return pick(chance, COLORS)
    if attribute == "owner":
        return pick(chance, OWNERS)
    if attribute == "city":
        return pick(chance, CITIES)
    return f"{pick(chance, LETTERS)}{int(chance.random() * 10)}{pick(chance, LETTERS)}{int(chance.random() * 10)}"


def value_of(left: int, sign: str, right: int) -> int:
    return left + right if sign == "+" else left - right if sign == "-" else left * right


def calc_call(expression: str, value: int) -> ToolUse:
    return ToolUse("calc", f'{{"expression":"{expression}"}}', str(value))


def lookup_call(key: str, result: str) -> ToolUse:
    return ToolUse("lookup", f'{{"key":"{key}"}}', result)


def convert_call(value: int, pair: tuple[str, str]) -> tuple[ToolUse, int]:
    result = value * RATIOS[pair]
    return ToolUse("convert", f'{{"value":{value},"from":"{pair[0]}","to":"{pair[1]}"}}', str(result)), result


def weekday_call(ordinal: int) -> ToolUse:
    return ToolUse("calendar", f'{{"op":"weekday","date":"{iso(ordinal)}"}}', weekday_of(ordinal))


def add_call(ordinal: int, days: int) -> ToolUse:
    return ToolUse("calendar", f'{{"op":"add","date":"{iso(ordinal)}","days":{days}}}', iso(ordinal + days))


def calc(chance: Random, digits: int, operations: int) -> Sketch:
    value = number(chance, digits)
    shown, expression = str(value), str(value)
    total, term = 0, value  # what is summed up so far, and the product that is still open
    in_words = chance.random() < 0.4
    for _ in range(1 + int(chance.random() * operations)):
        verb, right = pick(chance, WORDED), number(chance, digits)
        sign = OPERATIONS[verb]
        shown += f" {verb if in_words else sign} {right}"
        expression += f"{sign}{right}"
        if sign == "*":
            term *= right
        else:
            total, term = total + term, right if sign == "+" else -right
    call = calc_call(expression, total + term)
    return Sketch(fields={"x": shown}, calls=(call,), answer=call.result)


def lookup(chance: Random, digits: int, operations: int) -> Sketch:
    item = word(chance)
    if chance.random() < 0.5:
        attribute = pick(chance, COUNTED)
        value = str(number(chance, digits))
    else:
        attribute = pick(chance, NAMED)
        value = named(chance, attribute)
    key = f"{item}.{attribute}"
    call = lookup_call(key, value)
    return Sketch(fields={"a": attribute, "i": item}, calls=(call,), answer=value, records={key: value})


def convert(chance: Random, digits: int, operations: int) -> Sketch:
    pair, value = pick(chance, PAIRS[pick(chance, KINDS)]), number(chance, digits)
    call, _ = convert_call(value, pair)
    return Sketch(fields={"v": value, "f": pair[0], "t": pair[1]}, calls=(call,), answer=call.result)


def by_calc(chance: Random, digits: int, operations: int) -> Sketch:
    """A conversion for which only the calculator is there: the factor has to be known."""
    pair, value = pick(chance, PAIRS[pick(chance, KINDS)]), number(chance, digits)
    factor = RATIOS[pair]
    call = calc_call(f"{value}*{factor}", value * factor)
    fields = {"v": value, "f": pair[0], "t": pair[1]}
    return Sketch(fields=fields, calls=(call,), answer=call.result, thought=f"1 {pair[0]} = {factor} {pair[1]}")


def weekday(chance: Random, digits: int, operations: int) -> Sketch:
    start = day(chance)
    call = weekday_call(start)
    return Sketch(fields={"d": iso(start)}, calls=(call,), answer=call.result)


def add(chance: Random, digits: int, operations: int) -> Sketch:
    start, days = day(chance), number(chance, min(digits, 3))
    call = add_call(start, days)
    return Sketch(fields={"d": iso(start), "n": days}, calls=(call,), answer=call.result)


def between(chance: Random, digits: int, operations: int) -> Sketch:
    start, days = day(chance), number(chance, min(digits, 3))
    first, last = iso(start), iso(start + days)
    call = ToolUse("calendar", f'{{"op":"between","date":"{first}","until":"{last}"}}', str(days))
    return Sketch(fields={"d": first, "e": last}, calls=(call,), answer=call.result)


def lookup_calc(chance: Random, digits: int, operations: int) -> Sketch:
    item, attribute, verb = word(chance), pick(chance, COUNTED), pick(chance, WORDED)
    value, right = number(chance, digits), number(chance, digits)
    key, sign = f"{item}.{attribute}", OPERATIONS[verb]
    last = calc_call(f"{value}{sign}{right}", value_of(value, sign, right))
    return Sketch(
        fields={"a": attribute, "i": item, "o": verb, "n": right},
        calls=(lookup_call(key, str(value)), last),
        answer=last.result,
        thought=f"lookup {key}, then calc {sign}{right}",
        records={key: str(value)},
    )


def lookup_convert(chance: Random, digits: int, operations: int) -> Sketch:
    item, attribute = word(chance), pick(chance, MEASURES)
    pair, value = pick(chance, PAIRS[pick(chance, MEASURED[attribute])]), number(chance, digits)
    key, last = f"{item}.{attribute}", convert_call(value, pair)[0]
    record = f"{value} {pair[0]}"
    return Sketch(
        fields={"a": attribute, "i": item, "t": pair[1]},
        calls=(lookup_call(key, record), last),
        answer=last.result,
        thought=f"lookup {key}, then convert to {pair[1]}",
        records={key: record},
    )


def lookup_weekday(chance: Random, digits: int, operations: int) -> Sketch:
    item, attribute, start = word(chance), pick(chance, DATED), day(chance)
    key, last = f"{item}.{attribute}", weekday_call(start)
    return Sketch(
        fields={"a": attribute, "i": item},
        calls=(lookup_call(key, iso(start)), last),
        answer=last.result,
        thought=f"lookup {key}, then weekday",
        records={key: iso(start)},
    )


def lookup_lookup_calc(chance: Random, digits: int, operations: int) -> Sketch:
    item, other = word(chance), word(chance)
    if other == item:
        other += "x"
    attribute, verb = pick(chance, COUNTED), pick(chance, WORDED)
    left, right, sign = number(chance, digits), number(chance, digits), OPERATIONS[verb]
    first, second = f"{item}.{attribute}", f"{other}.{attribute}"
    last = calc_call(f"{left}{sign}{right}", value_of(left, sign, right))
    return Sketch(
        fields={"a": attribute, "i": item, "j": other, "o": verb},
        calls=(lookup_call(first, str(left)), lookup_call(second, str(right)), last),
        answer=last.result,
        thought=f"lookup {first}, lookup {second}, then calc {sign}",
        records={first: str(left), second: str(right)},
    )


def lookup_convert_calc(chance: Random, digits: int, operations: int) -> Sketch:
    item, attribute, verb = word(chance), pick(chance, MEASURES), pick(chance, WORDED)
    pair, value = pick(chance, PAIRS[pick(chance, MEASURED[attribute])]), number(chance, digits)
    key, sign, right = f"{item}.{attribute}", OPERATIONS[verb], number(chance, digits)
    middle, converted = convert_call(value, pair)
    last = calc_call(f"{converted}{sign}{right}", value_of(converted, sign, right))
    record = f"{value} {pair[0]}"
    return Sketch(
        fields={"a": attribute, "i": item, "t": pair[1], "o": verb, "n": right},
        calls=(lookup_call(key, record), middle, last),
        answer=last.result,
        thought=f"lookup {key}, convert to {pair[1]}, then calc {sign}{right}",
        records={key: record},
    )


def lookup_add_weekday(chance: Random, digits: int, operations: int) -> Sketch:
    item, attribute, start, days = word(chance), pick(chance, DATED), day(chance), number(chance, min(digits, 3))
    key, last = f"{item}.{attribute}", weekday_call(start + days)
    return Sketch(
        fields={"a": attribute, "i": item, "n": days},
        calls=(lookup_call(key, iso(start)), add_call(start, days), last),
        answer=last.result,
        thought=f"lookup {key}, add {days}, then weekday",
        records={key: iso(start)},
    )


def trivial(chance: Random, digits: int, operations: int) -> Sketch:
    left, right = 1 + int(chance.random() * 9), 1 + int(chance.random() * 9)
    verb = "plus" if left < right or chance.random() < 0.6 else "minus"
    sign = OPERATIONS[verb]
    shown = f"{left} {verb if chance.random() < 0.4 else sign} {right}"
    return Sketch(fields={"x": shown}, answer=str(value_of(left, sign, right)))


def repeat(chance: Random, digits: int, operations: int) -> Sketch:
    said = word(chance)
    return Sketch(fields={"w": said}, answer=said)


def first(chance: Random, digits: int, operations: int) -> Sketch:
    said = word(chance)
    return Sketch(fields={"w": said, "z": word(chance)}, answer=said)


FORMS: Mapping[str, Form] = {
    "calc": calc,
    "lookup": lookup,
    "convert": convert,
    "by_calc": by_calc,
    "weekday": weekday,
    "add": add,
    "between": between,
    "lookup_calc": lookup_calc,
    "lookup_convert": lookup_convert,
    "lookup_weekday": lookup_weekday,
    "lookup_lookup_calc": lookup_lookup_calc,
    "lookup_convert_calc": lookup_convert_calc,
    "lookup_add_weekday": lookup_add_weekday,
    "trivial": trivial,
    "repeat": repeat,
    "first": first,
}
