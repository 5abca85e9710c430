"""Tasks: a question with its instructions, its world and its hidden answer; a number gives the same task again.

Every split has wordings and random keys of its own: what a model learnt on one has to carry over to wordings it never
saw. A form draws numbers, words, the calls that answer, and the answer. Results of calls are computed here and not
asked of the tools, because millions are drawn for demonstrations; the tests ask the tools for every one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date
from random import Random
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.workloads.tooluse.tools import BUSY, NAMES, UNITS, UNKNOWN_KEY, WEEKDAYS, ToolWorld
from holdfast.workloads.tooluse.wordings import TEMPLATES, instructions, pick, worded

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


FIRST_DAY, LAST_DAY = date(2000, 1, 1).toordinal(), date(2049, 12, 31).toordinal()
WORDED = tuple(OPERATIONS)
SUMMED = WORDED[:2]
JOINTS = (", then ", ", then ", "; ", ", ", " and then ")  # between the steps of a chain
MOST_STEPS = 8
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
class Question:
    """One question before it has a wording."""

    fields: Mapping[str, object]  # what the wording is filled with
    calls: tuple[ToolUse, ...] = ()
    answer: str
    thought: str = ""  # the plan, where it takes more than one call
    working: str = ""  # the way from what is known to the answer, where no tool goes it
    records: Mapping[str, str] = field(default_factory=dict)


Form = Callable[[Random, int, int], Question]  # chance, digits of a number, operations of an expression


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


def calc(chance: Random, digits: int, operations: int) -> Question:
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
    return Question(fields={"x": shown}, calls=(call,), answer=call.result)


def lookup(chance: Random, digits: int, operations: int) -> Question:
    item = word(chance)
    if chance.random() < 0.5:
        attribute = pick(chance, COUNTED)
        value = str(number(chance, digits))
    else:
        attribute = pick(chance, NAMED)
        value = named(chance, attribute)
    key = f"{item}.{attribute}"
    call = lookup_call(key, value)
    return Question(fields={"a": attribute, "i": item}, calls=(call,), answer=value, records={key: value})


def convert(chance: Random, digits: int, operations: int) -> Question:
    pair, value = pick(chance, PAIRS[pick(chance, KINDS)]), number(chance, digits)
    call, _ = convert_call(value, pair)
    return Question(fields={"v": value, "f": pair[0], "t": pair[1]}, calls=(call,), answer=call.result)


def by_calc(chance: Random, digits: int, operations: int) -> Question:
    """A conversion for which only the calculator is there: the factor has to be known."""
    pair, value = pick(chance, PAIRS[pick(chance, KINDS)]), number(chance, digits)
    factor = RATIOS[pair]
    call = calc_call(f"{value}*{factor}", value * factor)
    fields = {"v": value, "f": pair[0], "t": pair[1]}
    return Question(fields=fields, calls=(call,), answer=call.result, thought=f"1 {pair[0]} = {factor} {pair[1]}")


def weekday(chance: Random, digits: int, operations: int) -> Question:
    start = day(chance)
    call = weekday_call(start)
    return Question(fields={"d": iso(start)}, calls=(call,), answer=call.result)


def add(chance: Random, digits: int, operations: int) -> Question:
    start, days = day(chance), number(chance, min(digits, 3))
    call = add_call(start, days)
    return Question(fields={"d": iso(start), "n": days}, calls=(call,), answer=call.result)


def between_(chance: Random, digits: int, operations: int) -> Question:
    start, days = day(chance), number(chance, min(digits, 3))
    first, last = iso(start), iso(start + days)
    call = ToolUse("calendar", f'{{"op":"between","date":"{first}","until":"{last}"}}', str(days))
    return Question(fields={"d": first, "e": last}, calls=(call,), answer=call.result)


def lookup_calc(chance: Random, digits: int, operations: int) -> Question:
    item, attribute, verb = word(chance), pick(chance, COUNTED), pick(chance, WORDED)
    value, right = number(chance, digits), number(chance, digits)
    key, sign = f"{item}.{attribute}", OPERATIONS[verb]
    last = calc_call(f"{value}{sign}{right}", value_of(value, sign, right))
    return Question(
        fields={"a": attribute, "i": item, "o": verb, "n": right},
        calls=(lookup_call(key, str(value)), last),
        answer=last.result,
        thought=f"lookup {key}, then calc {sign}{right}",
        records={key: str(value)},
    )


def lookup_convert(chance: Random, digits: int, operations: int) -> Question:
    item, attribute = word(chance), pick(chance, MEASURES)
    pair, value = pick(chance, PAIRS[pick(chance, MEASURED[attribute])]), number(chance, digits)
    key, last = f"{item}.{attribute}", convert_call(value, pair)[0]
    record = f"{value} {pair[0]}"
    return Question(
        fields={"a": attribute, "i": item, "t": pair[1]},
        calls=(lookup_call(key, record), last),
        answer=last.result,
        thought=f"lookup {key}, then convert to {pair[1]}",
        records={key: record},
    )


def lookup_weekday(chance: Random, digits: int, operations: int) -> Question:
    item, attribute, start = word(chance), pick(chance, DATED), day(chance)
    key, last = f"{item}.{attribute}", weekday_call(start)
    return Question(
        fields={"a": attribute, "i": item},
        calls=(lookup_call(key, iso(start)), last),
        answer=last.result,
        thought=f"lookup {key}, then weekday",
        records={key: iso(start)},
    )


def lookup_lookup_calc(chance: Random, digits: int, operations: int) -> Question:
    item, other = word(chance), word(chance)
    if other == item:
        other += "x"
    attribute, verb = pick(chance, COUNTED), pick(chance, WORDED)
    left, right, sign = number(chance, digits), number(chance, digits), OPERATIONS[verb]
    first, second = f"{item}.{attribute}", f"{other}.{attribute}"
    last = calc_call(f"{left}{sign}{right}", value_of(left, sign, right))
    return Question(
        fields={"a": attribute, "i": item, "j": other, "o": verb},
        calls=(lookup_call(first, str(left)), lookup_call(second, str(right)), last),
        answer=last.result,
        thought=f"lookup {first}, lookup {second}, then calc {sign}",
        records={first: str(left), second: str(right)},
    )


def lookup_convert_calc(chance: Random, digits: int, operations: int) -> Question:
    item, attribute, verb = word(chance), pick(chance, MEASURES), pick(chance, WORDED)
    pair, value = pick(chance, PAIRS[pick(chance, MEASURED[attribute])]), number(chance, digits)
    key, sign, right = f"{item}.{attribute}", OPERATIONS[verb], number(chance, digits)
    middle, converted = convert_call(value, pair)
    last = calc_call(f"{converted}{sign}{right}", value_of(converted, sign, right))
    record = f"{value} {pair[0]}"
    return Question(
        fields={"a": attribute, "i": item, "t": pair[1], "o": verb, "n": right},
        calls=(lookup_call(key, record), middle, last),
        answer=last.result,
        thought=f"lookup {key}, convert to {pair[1]}, then calc {sign}{right}",
        records={key: record},
    )


def lookup_add_weekday(chance: Random, digits: int, operations: int) -> Question:
    item, attribute, start, days = word(chance), pick(chance, DATED), day(chance), number(chance, min(digits, 3))
    key, last = f"{item}.{attribute}", weekday_call(start + days)
    return Question(
        fields={"a": attribute, "i": item, "n": days},
        calls=(lookup_call(key, iso(start)), add_call(start, days), last),
        answer=last.result,
        thought=f"lookup {key}, add {days}, then weekday",
        records={key: iso(start)},
    )


def summed(lookups: int) -> Form:
    """The sum of what several records say: a lookup for each, then one calculation."""

    def form(chance: Random, digits: int, operations: int) -> Question:
        items: dict[str, int] = {}
        while len(items) < lookups:
            items.setdefault(word(chance), number(chance, digits))
        attribute = pick(chance, COUNTED)
        keys = [f"{item}.{attribute}" for item in items]
        verbs = [pick(chance, SUMMED) for _ in keys[1:]]
        terms = [f"{OPERATIONS[verb]}{value}" for verb, value in zip(("plus", *verbs), items.values(), strict=True)]
        last = calc_call("".join(terms)[1:], sum(map(int, terms)))
        records = {key: str(value) for key, value in zip(keys, items.values(), strict=True)}
        said = {**dict(zip("ijklm", items, strict=False)), **dict(zip("opqr", verbs, strict=False))}
        plan = keys[0] + "".join(f" {OPERATIONS[verb]} {key}" for verb, key in zip(verbs, keys[1:], strict=True))
        return Question(
            fields={"a": attribute, **said},
            calls=(*(lookup_call(key, value) for key, value in records.items()), last),
            answer=last.result,
            thought=f"calc {plan}",
            records=records,
        )

    form.__name__ = f"{'lookup_' * lookups}calc"
    return form


def lookup_lookup_add_weekday(chance: Random, digits: int, operations: int) -> Question:
    item, other = word(chance), word(chance)
    other += "x" if other == item else ""
    attribute, counted, start, days = pick(chance, DATED), pick(chance, COUNTED), day(chance), number(chance, 2)
    key, second, last = f"{item}.{attribute}", f"{other}.{counted}", weekday_call(start + days)
    return Question(
        fields={"a": attribute, "i": item, "b": counted, "j": other},
        calls=(lookup_call(key, iso(start)), lookup_call(second, str(days)), add_call(start, days), last),
        answer=last.result,
        thought=f"lookup {key}, lookup {second}, add, then weekday",
        records={key: iso(start), second: str(days)},
    )


def lookup_convert_lookup_convert_calc(chance: Random, digits: int, operations: int) -> Question:
    item, other = word(chance), word(chance)
    other += "x" if other == item else ""
    attribute, verb = pick(chance, MEASURES), pick(chance, SUMMED)
    pair = pick(chance, PAIRS[pick(chance, MEASURED[attribute])])
    second = pick(chance, [one for one in RATIOS if one[1] == pair[1]])
    (left, value), (right, minus) = (convert_call(number(chance, min(digits, 3)), one) for one in (pair, second))
    keys, sign = (f"{item}.{attribute}", f"{other}.{attribute}"), OPERATIONS[verb]
    records = {keys[0]: f"{value // RATIOS[pair]} {pair[0]}", keys[1]: f"{minus // RATIOS[second]} {second[0]}"}
    first, then = (lookup_call(key, record) for key, record in records.items())
    last = calc_call(f"{value}{sign}{minus}", value_of(value, sign, minus))
    return Question(
        fields={"a": attribute, "i": item, "j": other, "t": pair[1], "o": verb},
        calls=(first, left, then, right, last),
        answer=last.result,
        thought=f"{keys[0]} to {pair[1]}, {keys[1]} to {pair[1]}, then calc {sign}",
        records=records,
    )


def lookup_convert_lookup_convert_calc_calc(chance: Random, digits: int, operations: int) -> Question:
    made = lookup_convert_lookup_convert_calc(chance, digits, operations)
    verb, right = pick(chance, SUMMED), number(chance, min(digits, 3))
    sign, before = OPERATIONS[verb], int(made.answer)
    last = calc_call(f"{before}{sign}{right}", value_of(before, sign, right))
    return replace(
        made,
        fields={**made.fields, "p": verb, "n": right},
        calls=(*made.calls, last),
        answer=last.result,
        thought=f"{made.thought}, calc {sign}{right}",
    )


def chain(chance: Random, value: int, most: int) -> tuple[str, str, int]:
    """Some operations on a small number, each done in the head: in words, worked out, and the last number."""
    lines, worked = [], []
    for _ in range(2 + int(chance.random() * (most - 1))):
        verb = pick(chance, WORDED)
        right = 2 + int(chance.random() * (2 if verb == "times" else 8))
        if not 0 <= value_of(value, OPERATIONS[verb], right) < 100:
            verb, right = (
                ("minus", 2 + int(chance.random() * 8)) if value > 50 else ("plus", 2 + int(chance.random() * 8))
            )
        after = value_of(value, OPERATIONS[verb], right)
        lines.append(f"{verb} {right}")
        worked.append(f"{value}{OPERATIONS[verb]}{right}={after}")
        value = after
    return pick(chance, JOINTS).join(lines), " ".join(worked), value


def steps(chance: Random, digits: int, operations: int) -> Question:
    """No tool fits: whoever writes every step down gets there."""
    start = 1 + int(chance.random() * 30)
    text, worked, last = chain(chance, start, MOST_STEPS)
    return Question(fields={"x": f"{start} {text}"}, answer=str(last), working=worked)


def lookup_steps(chance: Random, digits: int, operations: int) -> Question:
    item, attribute, start = word(chance), pick(chance, COUNTED), 10 + int(chance.random() * 30)
    text, worked, last = chain(chance, start, MOST_STEPS)
    key = f"{item}.{attribute}"
    return Question(
        fields={"a": attribute, "i": item, "x": text},
        calls=(lookup_call(key, str(start)),),
        answer=str(last),
        working=worked,
        records={key: str(start)},
    )


def trivial(chance: Random, digits: int, operations: int) -> Question:
    left, right = 1 + int(chance.random() * 9), 1 + int(chance.random() * 9)
    verb = "plus" if left < right or chance.random() < 0.6 else "minus"
    sign = OPERATIONS[verb]
    shown = f"{left} {verb if chance.random() < 0.4 else sign} {right}"
    return Question(fields={"x": shown}, answer=str(value_of(left, sign, right)))


def repeat(chance: Random, digits: int, operations: int) -> Question:
    answer = word(chance)
    return Question(fields={"w": answer}, answer=answer)


def first(chance: Random, digits: int, operations: int) -> Question:
    answer = word(chance)
    return Question(fields={"w": answer, "z": word(chance)}, answer=answer)


FORMS: Mapping[str, Form] = {
    form.__name__.strip("_"): form
    for form in (
        calc, lookup, convert, by_calc, weekday, add, between_, lookup_calc, lookup_convert, lookup_weekday,
        lookup_lookup_calc, lookup_convert_calc, lookup_add_weekday, summed(3), lookup_lookup_add_weekday, summed(4),
        lookup_convert_lookup_convert_calc, summed(5), lookup_convert_lookup_convert_calc_calc, trivial, steps,
        lookup_steps, repeat, first,
    )
}  # fmt: skip


UNKNOWN = "unknown"
STYLES: Mapping[str, str] = {"brief": "Reply: X", "full": "Reply: The answer is X.", "json": 'Reply: {"answer":"X"}'}
USE = "Use tools. If unsure: unknown."
USE_NOT = "Use no tools. If unsure: unknown."
THINK = "Think first."

SINGLE = ("calc", "lookup", "convert", "weekday", "add", "between")
TWO = ("lookup_calc", "lookup_convert", "lookup_weekday")
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "calc": ("calc",),
    "lookup": ("lookup",),
    "convert": ("convert", "convert", "convert", "by_calc"),
    "calendar": ("weekday", "add", "between"),
    "two": TWO,
    "three": ("lookup_lookup_calc", "lookup_convert_calc", "lookup_add_weekday"),
    "flaky": (*SINGLE, *TWO),  # a tool is busy at first
    "missing": ("lookup", *TWO),  # there is no such record
    "trivial": ("trivial",),  # no tool and no thinking needed
    "chat": ("repeat", "first"),  # no tool fits
    "unoffered": ("lookup", *TWO),  # nobody can know this without the tool that is not there, or not to be used
    "four": ("lookup_lookup_lookup_calc", "lookup_lookup_add_weekday"),
    "five": ("lookup_lookup_lookup_lookup_calc", "lookup_convert_lookup_convert_calc"),
    "six": ("lookup_lookup_lookup_lookup_lookup_calc", "lookup_convert_lookup_convert_calc_calc"),
    "failing": ("lookup_calc", "lookup_lookup_calc", "lookup_add_weekday", "lookup_lookup_lookup_calc"),  # busy midway
    "steps": ("steps",),  # nothing but thinking helps
    "record_steps": ("lookup_steps",),
}
CLASSIC = tuple(FAMILIES)[:11]
SPLITS = tuple(TEMPLATES)
SEEDS = {split: range(place << 56, (place + 1) << 56) for place, split in enumerate(SPLITS)}  # the random keys of each
PER_SEED = 1 << 24  # so many tasks has a seed
MAX_TOKENS = 820  # no demonstration is longer, at any setting of the dials


@dataclass(frozen=True, slots=True, kw_only=True)
class Dials:
    """How hard the tasks are. A family that is named twice comes twice as often."""

    families: tuple[str, ...] = (*CLASSIC, "calc", "two")
    digits: int = 3  # of the longest numbers
    operations: int = 2  # at most so many in one expression
    distractors: int = 3  # at most so many tools are offered that are not needed
    busy: int = 1  # at most so many calls find a flaky tool busy
    records: int = 4  # in the world, those that are needed among them
    think: float = 0.5  # share of tasks that ask for thinking
    styles: tuple[str, ...] = tuple(STYLES)
    prompts: str = "usual"  # the instructions; "free": in any words, and some left out; "bare": only the style

    def __post_init__(self) -> None:
        for name, known in (("families", FAMILIES), ("styles", STYLES)):
            chosen = getattr(self, name)
            if not chosen or set(chosen) - set(known):
                raise BadInput(f"dials.{name} = {chosen}", why="has unknown names", remedy=f"use {', '.join(known)}")
        if self.prompts not in PROMPTS:
            raise BadInput(f"dials.prompts = {self.prompts}", why="is unknown", remedy=f"use {', '.join(PROMPTS)}")
        limits = {"digits": (1, 5), "operations": (1, 3), "distractors": (0, 3), "busy": (1, 2), "records": (0, 50)}
        for name, (low, high) in {**limits, "think": (0, 1)}.items():
            if not low <= getattr(self, name) <= high:
                raise BadInput(f"dials.{name} = {getattr(self, name)}", why=f"must be between {low} and {high}")


PROMPTS = ("usual", "free", "bare")
USUAL = Dials()
EASY = Dials(families=("calc", "lookup", "convert", "calendar", "trivial"), digits=2, operations=1, distractors=1)
HARD = Dials(families=("two", "three", "three", "flaky", "missing", "unoffered"), digits=4, operations=3, busy=2)
LONG = Dials(families=("two", "three", "four", "five", "six", "failing", "failing", "steps", "steps", "record_steps"))
DIALS = {"usual": USUAL, "easy": EASY, "hard": HARD, "long": LONG}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTask:
    """What the agent is given, and, under `expected`, what it is not shown."""

    prompt: str  # the question
    system: str  # the instructions
    tools: tuple[str, ...]  # those offered
    style: str
    think: bool
    world: ToolWorld
    family: str
    form: str
    difficulty: int  # calls on the shortest honest way to the answer
    needs: tuple[str, ...]  # tools without which the answer cannot be had
    expected: str | None  # None: hidden

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.prompt}]


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedTask:
    """A task with its solution: for demonstrations and for tests, never for an agent."""

    task: ToolTask
    calls: tuple[ToolUse, ...]  # busy ones included
    thought: str
    working: str
    plausible: str  # the answer, or what it would have been: what a guess looks like
    instructed: frozenset[str] | None = None  # what free instructions ask for; None: the usual ones


def generate(split: str, seed: int, n: int, dials: Dials = USUAL) -> list[ToolTask]:
    """The first n tasks of a seed. Equal arguments give equal tasks; splits and seeds never share one's random key."""
    if not 0 <= n <= PER_SEED:
        raise BadInput(f"n = {n}", why=f"a seed has {PER_SEED} tasks", remedy="take another seed as well")
    return [task(split, seed * PER_SEED + place, dials) for place in range(n)]


def task(split: str, place: int, dials: Dials = USUAL) -> ToolTask:
    return case(split, place, dials).task


def key(split: str, place: int) -> int:
    """The random key of a split's task by its place, among SEEDS[split]."""
    keys = SEEDS.get(split)
    if keys is None or not 0 <= place < len(keys):
        raise BadInput(f"task {place} of split {split!r}", why="does not exist", remedy=f"splits: {', '.join(SPLITS)}")
    return keys.start + place


def case(split: str, place: int, dials: Dials = USUAL) -> SolvedTask:
    chance = Random(key(split, place))
    drawn = draw(chance, split, dials)
    fill(drawn.task.world, chance, dials)
    return drawn


def draw(chance: Random, split: str, dials: Dials) -> SolvedTask:
    """One task with its solution; its world holds only what the solution needs."""
    family = pick(chance, dials.families)
    form = pick(chance, FAMILIES[family])
    question = FORMS[form](chance, dials.digits, dials.operations)
    calls, busy = _solution(chance, family, question.calls, dials)
    needs = tuple({call.tool: None for call in calls})
    is_allowed, tools = _offer(chance, family, form, needs, dials)
    is_thinking, style = chance.random() < dials.think, pick(chance, dials.styles)
    is_open = family in ("missing", "unoffered")
    prompt = worded(chance, split, "convert" if form == "by_calc" else form).format(**question.fields)
    told: frozenset[str] | None = None
    if dials.prompts == "usual":
        system = _system(chance, is_allowed, is_thinking, style)
    elif dials.prompts == "bare":
        system, is_thinking, told = STYLES[style], False, frozenset()
    else:
        told = _told(chance, is_allowed, is_thinking)
        system, is_thinking = _instructed(chance, split, told, style), {"think", "hurry"} & told == {"think"}
    return SolvedTask(
        task=ToolTask(
            prompt=prompt,
            system=system,
            tools=tools,
            style=style,
            think=is_thinking,
            world=ToolWorld(records={} if family == "missing" else dict(question.records), busy=busy),
            family=family,
            form=form,
            difficulty=len(calls),
            needs=needs,
            expected=UNKNOWN if is_open else question.answer,
        ),
        calls=calls,
        thought="no lookup here" if family == "unoffered" else question.thought,
        working="" if is_open else question.working,
        plausible=question.answer,
        instructed=told,
    )


def fill(world: ToolWorld, chance: Random, dials: Dials) -> None:
    """Records that no question asks for."""
    records: Any = world.records
    for _ in range(dials.records - len(records)):
        attribute = pick(chance, COUNTED + NAMED)
        value = named(chance, attribute) if attribute in NAMED else str(number(chance, dials.digits))
        # No word is another word with one of these letters after it: the record that is said to be missing stays so.
        records.setdefault(f"{word(chance)}{pick(chance, 'ywq')}.{attribute}", value)


def _solution(
    chance: Random, family: str, calls: tuple[ToolUse, ...], dials: Dials
) -> tuple[tuple[ToolUse, ...], dict[str, int]]:
    """The calls that lead to the answer, and how often a tool will be busy on the way."""
    if family == "unoffered":
        return (), {}
    if family == "missing":
        return (ToolUse("lookup", calls[0].arguments, UNKNOWN_KEY),), {}
    if family not in ("flaky", "failing"):
        return calls, {}
    at = int(chance.random() * len(calls))
    at = next(place for place, call in enumerate(calls) if call.tool == calls[at].tool)  # first calls are the busy ones
    may_repeat = len(calls) == 1 and len(calls[at].arguments) < 50  # what is tried thrice must be short: see MAX_TOKENS
    times = 1 + int(chance.random() * (dials.busy if may_repeat else 1))
    again = ToolUse(calls[at].tool, calls[at].arguments, BUSY)
    return (*calls[:at], *([again] * times), *calls[at:]), {again.tool: times}


def _offer(
    chance: Random, family: str, form: str, needs: tuple[str, ...], dials: Dials
) -> tuple[bool, tuple[str, ...]]:
    """Whether tools may be used, and which are offered: the needed ones, and others that are not."""
    is_allowed = bool(needs) or chance.random() < (0.5 if family == "unoffered" else 0.7) or dials.prompts == "bare"
    shut = "convert" if form == "by_calc" else "calc" if form.endswith("steps") else ""
    offered = list(needs)
    if family == "unoffered" and is_allowed:
        shut = "lookup"
    elif family == "unoffered":
        offered.append("lookup")
    others = [name for name in NAMES if name not in offered and name != shut]
    extra = min(int(chance.random() * (dials.distractors + 1)), len(others))
    offered += [others.pop(int(chance.random() * len(others))) for _ in range(extra)]
    return is_allowed, tuple([name for name in NAMES if name in offered])


def _system(chance: Random, is_allowed: bool, is_thinking: bool, style: str) -> str:
    """The instructions, in any order."""
    parts = [USE if is_allowed else USE_NOT, STYLES[style]]
    if chance.random() < 0.3:
        parts.reverse()
    if is_thinking:
        parts.insert(int(chance.random() * 3), THINK)
    return " ".join(parts)


ASPECTS = ("tools", "retry", "finish", "unknown")  # what good instructions ask for, beside thinking


def _told(chance: Random, is_allowed: bool, is_thinking: bool) -> frozenset[str]:
    """What free instructions ask for: often not all that they should."""
    fate = chance.random()
    if fate < 0.12:
        return frozenset()
    chosen = {aspect for aspect in ASPECTS if fate < 0.3 or chance.random() < 0.6}
    if is_thinking:
        chosen.add("think")
    if not is_allowed:
        chosen = (chosen - {"tools"}) | {"no_tools"}
    if chance.random() < 0.1:
        chosen.add("hurry")
    return frozenset(chosen)


def _instructed(chance: Random, split: str, told: frozenset[str], style: str) -> str:
    """Sentences for all that is told, in any order, with some that ask for nothing."""
    parts = [pick(chance, instructions(split, aspect)) for aspect in sorted(told)]
    if {*ASPECTS} <= told and chance.random() < 0.3:  # the usual words say it all, too
        parts = [USE, *(pick(chance, instructions(split, aspect)) for aspect in sorted(told.difference(ASPECTS)))]
    parts += [pick(chance, instructions(split, "other")) for _ in range(int(chance.random() * (3.0 - len(told) / 2)))]
    chance.shuffle(parts)
    parts.insert(0 if chance.random() < 0.2 else len(parts), STYLES[style])
    return " ".join(parts)


def to_input(task: ToolTask) -> dict[str, Any]:
    """The task as the JSON that travels; `expected` is for the scorer alone."""
    plain = {part.name: getattr(task, part.name) for part in fields(task)}
    plain["world"] = {"records": dict(task.world.records), "busy": dict(task.world.busy)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def from_input(given: Any) -> ToolTask:
    """The task in the JSON, with or without its hidden fields; other keys are ignored."""
    if not isinstance(given, Mapping):
        raise BadInput("task", why="is not an object", remedy="give what to_input gave")
    world = _part(given, "world", Mapping)
    style = _part(given, "style", str)
    tools = _names(_part(given, "tools", list | tuple), "tools", NAMES)
    if style not in STYLES:
        raise BadInput(f"task.style = {style!r}", why="is unknown", remedy=f"use {', '.join(STYLES)}")
    return ToolTask(
        prompt=_part(given, "prompt", str),
        system=_part(given, "system", str),
        tools=tools,
        style=style,
        think=_part(given, "think", bool),
        world=ToolWorld(records=dict(world.get("records") or {}), busy=dict(world.get("busy") or {})),
        family=_part(given, "family", str),
        form=_part(given, "form", str),
        difficulty=_part(given, "difficulty", int),
        needs=_names(_part(given, "needs", list | tuple), "needs", NAMES),
        expected=None if given.get("expected") is None else _part(given, "expected", str),
    )


def _part(given: Mapping[str, Any], name: str, kind: Any) -> Any:
    if not isinstance(given.get(name), kind):
        raise BadInput(f"task.{name}", why=f"cannot be {given.get(name)!r}", remedy="give what to_input gave")
    return given[name]


def _names(given: Iterable[Any], where: str, known: Iterable[str]) -> tuple[str, ...]:
    names = tuple(given)
    if unknown := [name for name in names if name not in known]:
        raise BadInput(f"task.{where}", why=f"has unknown {unknown}", remedy=f"use {', '.join(known)}")
    return names
