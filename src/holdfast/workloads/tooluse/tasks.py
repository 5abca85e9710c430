"""Tasks: a question with its instructions, its world and its hidden answer; a number gives the same task again.

Every split has wordings and random keys of its own. `forms` draws the calls and answers; `score` judges an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from random import Random
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.workloads.tooluse.forms import (
    COUNTED,
    FORMS,
    NAMED,
    TEMPLATES,
    Sketch,
    ToolUse,
    named,
    number,
    pick,
    word,
)
from holdfast.workloads.tooluse.tools import BUSY, NAMES, UNKNOWN_KEY, ToolWorld

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
}
SPLITS = tuple(TEMPLATES)
SEEDS = {split: range(place << 56, (place + 1) << 56) for place, split in enumerate(SPLITS)}  # the random keys of each
PER_SEED = 1 << 24  # so many tasks has a seed
MAX_TOKENS = 480  # no demonstration is longer, at any setting of the dials


@dataclass(frozen=True, slots=True, kw_only=True)
class Dials:
    """How hard the tasks are. A family that is named twice comes twice as often."""

    families: tuple[str, ...] = (*FAMILIES, "calc", "two")
    digits: int = 3  # of the longest numbers
    operations: int = 2  # at most so many in one expression
    distractors: int = 3  # at most so many tools are offered that are not needed
    busy: int = 1  # at most so many calls find a flaky tool busy
    records: int = 4  # in the world, those that are needed among them
    think: float = 0.5  # share of tasks that ask for thinking
    styles: tuple[str, ...] = tuple(STYLES)

    def __post_init__(self) -> None:
        for name, known in (("families", FAMILIES), ("styles", STYLES)):
            chosen = getattr(self, name)
            if not chosen or set(chosen) - set(known):
                raise BadInput(f"dials.{name} = {chosen}", why="has unknown names", remedy=f"use {', '.join(known)}")
        limits = {"digits": (1, 5), "operations": (1, 3), "distractors": (0, 3), "busy": (1, 2), "records": (0, 50)}
        for name, (low, high) in {**limits, "think": (0, 1)}.items():
            if not low <= getattr(self, name) <= high:
                raise BadInput(f"dials.{name} = {getattr(self, name)}", why=f"must be between {low} and {high}")


USUAL = Dials()
EASY = Dials(families=("calc", "lookup", "convert", "calendar", "trivial"), digits=2, operations=1, distractors=1)
HARD = Dials(families=("two", "three", "three", "flaky", "missing", "unoffered"), digits=4, operations=3, busy=2)


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
    plausible: str  # the answer, or what it would have been: what a guess looks like


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
    sketch = FORMS[form](chance, dials.digits, dials.operations)
    wordings = TEMPLATES[split]["convert" if form == "by_calc" else form]
    calls, busy = _solution(chance, family, sketch, dials)
    needs = tuple({call.tool: None for call in calls})
    is_allowed, tools = _offer(chance, family, form, needs, dials)
    is_thinking, style = chance.random() < dials.think, pick(chance, dials.styles)
    is_open = family in ("missing", "unoffered")
    return SolvedTask(
        task=ToolTask(
            prompt=pick(chance, wordings).format(**sketch.fields),
            system=_system(chance, is_allowed, is_thinking, style),
            tools=tools,
            style=style,
            think=is_thinking,
            world=ToolWorld(records={} if family == "missing" else dict(sketch.records), busy=busy),
            family=family,
            form=form,
            difficulty=len(calls),
            needs=needs,
            expected=UNKNOWN if is_open else sketch.answer,
        ),
        calls=calls,
        thought="no lookup here" if family == "unoffered" else sketch.thought,
        plausible=sketch.answer,
    )


def fill(world: ToolWorld, chance: Random, dials: Dials) -> None:
    """Records that no question asks for."""
    records: Any = world.records
    for _ in range(dials.records - len(records)):
        attribute = pick(chance, COUNTED + NAMED)
        value = named(chance, attribute) if attribute in NAMED else str(number(chance, dials.digits))
        # No word is another word with one of these letters after it: the record that is said to be missing stays so.
        records.setdefault(f"{word(chance)}{pick(chance, 'ywq')}.{attribute}", value)


def _solution(chance: Random, family: str, sketch: Sketch, dials: Dials) -> tuple[tuple[ToolUse, ...], dict[str, int]]:
    """The calls that lead to the answer, and how often a tool will be busy on the way."""
    calls = sketch.calls
    if family == "unoffered":
        return (), {}
    if family == "missing":
        return (ToolUse("lookup", calls[0].arguments, UNKNOWN_KEY),), {}
    if family != "flaky":
        return calls, {}
    at = int(chance.random() * len(calls))
    may_repeat = len(calls) == 1 and len(calls[at].arguments) < 50  # what is tried thrice must be short: see MAX_TOKENS
    times = 1 + int(chance.random() * (dials.busy if may_repeat else 1))
    again = ToolUse(calls[at].tool, calls[at].arguments, BUSY)
    return (*calls[:at], *([again] * times), *calls[at:]), {again.tool: times}


def _offer(
    chance: Random, family: str, form: str, needs: tuple[str, ...], dials: Dials
) -> tuple[bool, tuple[str, ...]]:
    """Whether tools may be used, and which are offered: the needed ones, and others that are not."""
    is_allowed = bool(needs) or chance.random() < (0.5 if family == "unoffered" else 0.7)
    shut = "convert" if form == "by_calc" else ""
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
