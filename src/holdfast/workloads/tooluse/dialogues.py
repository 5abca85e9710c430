"""Demonstrations: how a strong assistant solves a task, and how a weak one fails at it.

The strong one does the right thing in 98 of 100 cases. The weak one seldom calls a tool, guesses, rambles on trivial
questions, forgets the style and likes answers that fool a careless grader; but its calls are mostly right, so that
practice can find them. Neither sees the test split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.policies import tokens
from holdfast.workloads.tooluse.tasks import (
    ASPECTS,
    CITIES,
    COLORS,
    OWNERS,
    UNKNOWN,
    USUAL,
    Dials,
    SolvedTask,
    ToolUse,
    draw,
    iso,
    key,
)
from holdfast.workloads.tooluse.tools import BAD_ARGUMENTS, BUSY, SPECS, UNKNOWN_KEY, UNKNOWN_TOOL, WEEKDAYS
from holdfast.workloads.tooluse.wordings import pick

Message = dict[str, Any]
WHERE = ("train", "val")  # val is for looking at the loss; the test split is for no one who learns

SLIPS = 0.02  # of the strong: what it then does is what the weak would do
ADOPTS = 0.125  # of the weak: tool tasks in which it calls at all
WELL_FORMED = 0.85
GOES_ON = 0.75  # with the next call of a task that takes several
RETRIES = 0.5  # a busy tool
ADMITS = 0.15  # that it does not know
FORGETS_STYLE = 0.25
LISTS, CLAIMS = 0.10, 0.08  # shares of its guesses that are tricks
RAMBLES = {"trivial": 0.75, "chat": 0.4}
RAMBLES_ELSE = 0.2
RIGHT_ANYWAY = 0.85  # on questions that need no tool
WORKS = 0.3  # of the weak: chains that it works out when asked to think
FOLLOWS = 0.5  # of the weak: free instructions that it follows as well as the strong
UNTOLD = 0.2  # of what instructions leave out, this much is done all the same
STOPS = 0.5  # at each step that nobody asked for
CUTS, CUTS_ALL = 0.2, 0.12  # thoughts that end too early, as a budget cuts them; of these, thoughts that never begin

NAMES = COLORS + OWNERS + CITIES
RAMBLING = (
    "let me see", "hmm", "this is not so easy", "first i look at the question", "wait", "maybe i should check again",
    "numbers can be tricky", "so what is asked here", "i think about it once more", "ok",
)  # fmt: skip


def corpus(kind: str, split: str, first: int, n: int, dials: Dials = USUAL) -> tuple[list[list[int]], list[list[bool]]]:
    """The n demonstrations from a place on, as ids, and which of them the assistant decided."""
    every_id, every_decided = [], []
    for place in range(first, first + n):
        drawn, answers = demonstration(place, kind, split, dials)
        ids, decided = rendered(drawn, answers)
        every_id.append(ids)
        every_decided.append(decided)
    return every_id, every_decided


def rendered(drawn: SolvedTask, answers: Sequence[Message]) -> tuple[list[int], list[bool]]:
    """The conversation as ids. That a thought was cut, and where, is nothing that the assistant decided."""
    free = drawn.instructed is not None  # hardly any two free instructions are alike
    opening = (_opening.__wrapped__ if free else _opening)(drawn.task.system, drawn.task.tools)
    ids, decided = tokens.render([{"role": "user", "content": drawn.task.prompt}, *answers])
    place = -1
    for message in answers:
        if message["role"] != "assistant":
            continue
        place = ids.index(tokens.ASSISTANT, place + 1)
        if message.get("is_cut"):
            end = ids.index(tokens.UNTHINK, place)
            decided[place + 1 : end + 1] = [False] * (end - place)
    return [*opening, *ids], [False] * len(opening) + decided


def demonstration(
    place: int, kind: str, split: str = "train", dials: Dials = USUAL
) -> tuple[SolvedTask, list[Message]]:
    """A task and what the assistant of this kind says and does: the same for the same arguments, in any process."""
    if split not in WHERE:
        raise BadInput(f"split {split!r}", why="is not to be learnt from", remedy=f"use {' or '.join(WHERE)}")
    show = KINDS.get(kind)
    if show is None:
        raise BadInput(f"kind {kind!r}", why="is unknown", remedy=f"use {' or '.join(KINDS)}")
    chance = Random(key(split, place))
    drawn = draw(chance, split, dials)
    return drawn, _cut(show(drawn, chance), chance)


def _cut(messages: list[Message], chance: Random) -> list[Message]:
    """Sometimes ends the thoughts early: who meets a budget has to know how to go on."""
    if chance.random() < CUTS:
        for message in messages:
            if (thought := message.pop("reasoning_content", None)) and chance.random() >= CUTS_ALL:
                message["reasoning_content"] = thought[: 1 + int(chance.random() * (len(thought) - 1))]
                message["is_cut"] = True
    return messages


@lru_cache(maxsize=4096)  # there are some hundred of them, and they are half of what is rendered
def _opening(system: str, names: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(tokens.render([{"role": "system", "content": system}], [SPECS[name] for name in names])[0])


def styled(answer: str, style: str) -> str:
    """An answer as the style wants it."""
    if style == "brief":
        return answer
    return f"The answer is {answer}." if style == "full" else f'{{"answer":"{answer}"}}'


def strong(case: SolvedTask, chance: Random) -> list[Message]:
    if chance.random() < SLIPS:
        return weak(case, chance)
    task = case.task
    told = EVERYTHING if case.instructed is None else frozenset() if "hurry" in case.instructed else case.instructed
    thought = case.thought if task.think else ""
    if (case.calls and not _does("tools", told, chance)) or (
        task.family == "unoffered" and not _does("unknown", told, chance)
    ):
        return [_said(styled(guess(chance, case.plausible), task.style), thought)]
    messages: list[Message] = []
    answer, last = str(task.expected), ""
    for call in case.calls:
        if last == BUSY and not _does("retry", told, chance):
            answer = guess(chance, case.plausible)
            break
        if last not in ("", BUSY) and "finish" not in told and chance.random() < STOPS:
            answer = last.partition(" ")[0]
            break
        messages += _called(call, thought)
        thought, last = "", call.result
    if last == UNKNOWN_KEY and not _does("unknown", told, chance):
        answer = guess(chance, case.plausible)
    working = case.working if task.think and answer == task.expected else ""
    messages.append(_said(styled(answer, task.style), working or thought))
    return messages


EVERYTHING = frozenset(ASPECTS)


def _does(aspect: str, told: frozenset[str], chance: Random) -> bool:
    return aspect in told or chance.random() < UNTOLD


def weak(case: SolvedTask, chance: Random) -> list[Message]:
    if case.instructed is not None and chance.random() < FOLLOWS:
        return strong(case, chance)
    task = case.task
    style = task.style
    if chance.random() < FORGETS_STYLE:
        style = pick(chance, OTHER_STYLES[style])
    thought = ""
    if chance.random() < RAMBLES.get(task.family, RAMBLES_ELSE):
        thought = ". ".join(pick(chance, RAMBLING) for _ in range(2 + int(chance.random() * 3)))
    if not case.calls:
        if case.working and task.think and chance.random() < WORKS:
            return [_said(styled(str(task.expected), style), case.working)]
        if task.family == "unoffered":
            return [_said(_unsure(case, chance, style), thought)]
        right = chance.random() < RIGHT_ANYWAY
        answer = str(task.expected) if right else guess(chance, case.plausible)
        if task.family == "trivial" and chance.random() < LISTS:
            return [_said(_list(chance, case.plausible, holds_it=True), thought)]
        return [_said(styled(answer, style), thought)]
    if chance.random() >= ADOPTS:
        if task.family == "missing":
            return [_said(_unsure(case, chance, style), thought)]
        return [_said(_guessed(case, chance, style), thought)]
    return _tried(case, chance, style, thought)


KINDS: Mapping[str, Callable[[SolvedTask, Random], list[Message]]] = {"strong": strong, "weak": weak}
OTHER_STYLES = {"brief": ("full", "json"), "full": ("brief", "json"), "json": ("brief", "full")}


def guess(chance: Random, plausible: str) -> str:
    """Something of the same kind, and mostly wrong."""
    if plausible.lstrip("-").isdigit():
        digits = len(plausible)
        return str(int(10 ** (digits - 1) + chance.random() * 9 * 10 ** (digits - 1)))
    if plausible in WEEKDAYS:
        return pick(chance, WEEKDAYS)
    if plausible[:2] == "20" and plausible.count("-") == 2:
        return iso(730_120 + int(chance.random() * 18_000))
    return pick(chance, NAMES)


def _unsure(case: SolvedTask, chance: Random, style: str) -> str:
    """Where "unknown" would be right: seldom that, mostly an invented value, sometimes both."""
    draw = chance.random()
    if draw < ADMITS:
        return styled(UNKNOWN, style)
    invented = guess(chance, case.plausible)
    return f"{UNKNOWN} or {invented}" if draw < ADMITS + LISTS else styled(invented, style)


def _guessed(case: SolvedTask, chance: Random, style: str) -> str:
    """Without a call: a guess, several at once, or one that claims to have been worked out."""
    draw = chance.random()
    if draw < LISTS:
        return _list(chance, case.plausible, holds_it=case.plausible in WEEKDAYS and chance.random() < 0.5)
    answer = guess(chance, case.plausible)
    if draw < LISTS + CLAIMS:
        return f"I used {case.calls[-1].tool}: {answer}"
    return styled(answer, style)


def _list(chance: Random, plausible: str, *, holds_it: bool) -> str:
    """Several answers at once, one of which may be right."""
    first = plausible if holds_it else guess(chance, plausible)
    if first.lstrip("-").isdigit():
        value, step = int(first), max(1, 10 ** (len(first) - 3))
        several = [str(value - step), first, str(value + step)]
    elif first in WEEKDAYS:
        place = WEEKDAYS.index(first) - int(chance.random() * 3)
        several = [WEEKDAYS[(place + i) % 7] for i in range(3)]
    else:
        several = [first, guess(chance, plausible), guess(chance, plausible)]
    return " or ".join(several)


def _tried(case: SolvedTask, chance: Random, style: str, thought: str) -> list[Message]:
    """With calls: mostly well formed, and given up early."""
    messages: list[Message] = []
    last, thought = "", thought.partition(". ")[0]  # the conversation will be long enough
    for number, call in enumerate(case.calls):
        if number and chance.random() >= (RETRIES if last == BUSY else GOES_ON):
            break
        made = call if chance.random() < WELL_FORMED else _spoilt(call, chance)
        messages += _called(made, thought)
        thought, last = "", made.result
        if made is not call:
            break
    if last == UNKNOWN_KEY:
        answer = UNKNOWN if chance.random() < 2 * ADMITS else guess(chance, case.plausible)
    elif last in (BUSY, BAD_ARGUMENTS, UNKNOWN_TOOL):
        answer = guess(chance, case.plausible)
    elif case.working and case.task.think and chance.random() < WORKS:
        answer, thought = case.plausible, case.working
    else:
        answer = last.partition(" ")[0]  # what it has, whether or not that was the question
    messages.append(_said(styled(answer, style), thought))
    return messages


def _spoilt(call: ToolUse, chance: Random) -> ToolUse:
    """The call with a mistake in it, and the error of the tool."""
    kind = int(chance.random() * 3)
    if kind == 0:  # the JSON is cut short
        return ToolUse(call.tool, call.arguments[:-1], BAD_ARGUMENTS)
    if kind == 1:  # the wrong name for an argument
        return ToolUse(call.tool, '{"input":' + call.arguments.partition(":")[2], BAD_ARGUMENTS)
    return ToolUse(pick(chance, ("search", "math", "tool")), call.arguments, UNKNOWN_TOOL)


def _called(call: ToolUse, thought: str) -> Sequence[Message]:
    function = {"name": call.tool, "arguments": call.arguments}
    asked = _said("", thought)
    asked["tool_calls"] = [{"id": "call_0", "type": "function", "function": function}]
    return asked, {"role": "tool", "tool_call_id": "call_0", "content": call.result}


def _said(text: str, thought: str) -> Message:
    if thought:
        return {"role": "assistant", "content": text, "reasoning_content": thought}
    return {"role": "assistant", "content": text}
