"""The commands of a town: one list, each with its arguments, its role and its effects.

Pure: `plan` looks at the world and returns the effects without applying them; `do` applies them. Help, docs and checks
come from the list. Roles and repeated commands are checked elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from holdfast.town.compiled_rules import BLACKOUT, FESTIVAL, MEETING, OUTAGE, RAIN, SPIKE, CompiledRules
from holdfast.town.kernel import MEETING_STREAM, TROUBLE_BEGINS, below, draw, jit, tell
from holdfast.town.life import begin_trouble, depart
from holdfast.town.places import abort, leave_queue
from holdfast.town.relationships import chat
from holdfast.town.rules import CAUSES, MONEY, NEEDS, UNIT, Rules
from holdfast.town.state import SHIFTS, TownState

ROLES = ("viewer", "operator", "admin")  # each may do what those before it may
DEPART, TELEPORT, NEED, GIVE, BEGIN, END, MEET, CHAT, TIE, MORTAL = range(10)
OPS = ("depart", "teleport", "need", "give", "begin", "end", "meet", "chat", "tie", "mortal")


class Wrong(ValueError):
    """A command that cannot be carried out; nothing of it has been."""

    def __init__(self, what: str, why: str, remedy: str, *, code: str = "invalid_args") -> None:
        super().__init__(f"{what}: {why}; {remedy}" if remedy else f"{what}: {why}")
        self.what, self.why, self.remedy, self.code = what, why, remedy, code


@dataclass(frozen=True, slots=True, kw_only=True)
class TownView:
    """One town at one moment."""

    rules: Rules
    compiled: CompiledRules
    state: TownState  # a batch of one

    @property
    def tick(self) -> int:
        return int(self.state.town["tick"][0])


@dataclass(frozen=True, slots=True, kw_only=True)
class TownAction:
    """One change of the world, in numbers."""

    op: str
    a: int = -1
    b: int = -1
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPlan:
    """What a command comes to: changes, or an answer, and a line that says so."""

    summary: str
    actions: tuple[TownAction, ...] = ()
    answer: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arg:
    name: str
    kind: str  # resident, integer, number, choice, flag
    help: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    default: Any = None  # None: it must be given


Args = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TownCommand:
    name: str
    role: str
    help: str
    plan: Callable[[TownView, Args], CommandPlan]
    args: tuple[Arg, ...] = ()

    @property
    def usage(self) -> str:
        words = [f"{arg.name}=…" if arg.default is None else f"[{arg.name}={_text(arg.default)}]" for arg in self.args]
        return " ".join((self.name, *words))


def _text(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


# Reading -------------------------------------------------------------------------------------------------------------


def find(name: str) -> TownCommand:
    if name not in COMMANDS:
        raise Wrong(f"command {name[:40]!r}", "is unknown", f"there are {', '.join(COMMANDS)}", code="not_found")
    return COMMANDS[name]


def plan(world: TownView, name: str, given: Mapping[str, Any]) -> CommandPlan:
    """What the command would do to this world now."""
    command = find(name)
    return command.plan(world, checked(world, command, given))


def checked(world: TownView, command: TownCommand, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every argument in its kind and range; words are read as numbers where numbers are wanted."""
    unknown = sorted(set(given) - {arg.name for arg in command.args})
    if unknown:
        raise Wrong(f"{command.name}: {unknown[0]}", "is unknown", f"usage: {command.usage}", code="usage")
    found = {}
    for arg in command.args:
        if arg.name in given:
            found[arg.name] = _value(world, command, arg, given[arg.name])
        elif arg.default is None:
            raise Wrong(f"{command.name}: {arg.name}", "is missing", f"usage: {command.usage}", code="usage")
        else:
            found[arg.name] = arg.default
    return found


def _value(world: TownView, command: TownCommand, arg: Arg, value: Any) -> Any:
    where = f"{command.name}: {arg.name} = {str(value)[:40]}"
    if arg.kind == "choice":
        if value not in arg.choices:
            raise Wrong(where, "is unknown", f"one of {', '.join(arg.choices)}")
        return value
    if arg.kind == "flag":
        if value in (True, "on", "true", "1"):
            return True
        if value in (False, "off", "false", "0"):
            return False
        raise Wrong(where, "is neither on nor off", "write on or off")
    try:
        if isinstance(value, bool):
            raise ValueError
        number: float = float(value) if arg.kind == "number" else int(value)
        if not isfinite(number) or (arg.kind != "number" and number != float(value)):
            raise ValueError
    except (ValueError, TypeError, OverflowError):
        whole = "a number" if arg.kind == "number" else "a whole number"
        raise Wrong(where, f"is not {whole}", f"usage: {command.usage}") from None
    low, high = (arg.least, arg.most) if arg.kind != "resident" else (0, int(world.compiled.n["residents"]) - 1)
    if (low is not None and number < low) or (high is not None and number > high):
        raise Wrong(where, "is out of range", f"from {low:g} to {high:g}")
    if arg.kind == "resident" and not world.state.people["alive"][0, int(number)]:
        raise Wrong(where, "has left town", "name one who is there", code="not_found")
    return number


# The commands --------------------------------------------------------------------------------------------------------


def _kill(world: TownView, args: Args) -> CommandPlan:
    cause = CAUSES.index(args["cause"]) + 1
    return CommandPlan(
        summary=f"{args['resident']} has to leave town", actions=(TownAction(op="depart", a=args["resident"], b=cause),)
    )


def _teleport(world: TownView, args: Args) -> CommandPlan:
    grid, who = world.rules.grid, args["resident"]
    where = f"teleport: ({args['x']}, {args['y']})"
    if not (args["x"] < grid.width and args["y"] < grid.height):
        raise Wrong(where, "is not on the map", f"stay within {grid.width} × {grid.height}")
    tile = args["y"] * grid.width + args["x"]
    if not grid.walkable[tile]:
        raise Wrong(where, "cannot be stood on", "choose ground or a door")
    if world.state.who[0, tile] not in (-1, who):
        raise Wrong(where, f"{world.state.who[0, tile]} stands there", "choose a free tile", code="conflict")
    return CommandPlan(
        summary=f"{who} is put at {args['x']}, {args['y']}", actions=(TownAction(op="teleport", a=who, b=tile),)
    )


def _set_need(world: TownView, args: Args) -> CommandPlan:
    need, value = NEEDS.index(args["need"]), round(args["value"] * UNIT)
    summary = f"{args['need']} of {args['resident']} becomes {args['value']:g}"
    return CommandPlan(summary=summary, actions=(TownAction(op="need", a=args["resident"], b=need, values=(value,)),))


def _give_money(world: TownView, args: Args) -> CommandPlan:
    amount, has = round(args["meals"] * MONEY), int(world.state.people["money"][0, args["resident"]])
    if has + amount < 0:
        raise Wrong(f"give_money: meals = {args['meals']:g}", f"{args['resident']} has {has / MONEY:g}", "take less")
    summary = f"{args['resident']} gets {args['meals']:g} meals' worth"
    return CommandPlan(summary=summary, actions=(TownAction(op="give", a=args["resident"], values=(amount,)),))


def _trouble(kind: int, name: str) -> Callable[[TownView, Args], CommandPlan]:
    def planned(world: TownView, args: Args) -> CommandPlan:
        _with_stage(world, name, "with_trouble", "trouble")
        is_on = int(world.state.town["until"][0, kind]) > world.tick
        if args["ticks"] == 0:
            if not is_on:
                raise Wrong(f"{name}: ticks = 0", "there is none to end", "give its length", code="conflict")
            return CommandPlan(summary=f"{name} ends", actions=(TownAction(op="end", a=kind),))
        if is_on:
            raise Wrong(name, "is on already", "end it with ticks=0", code="conflict")
        summary = f"{name} for {args['ticks']} ticks"
        return CommandPlan(summary=summary, actions=(TownAction(op="begin", a=kind, values=(args["ticks"],)),))

    return planned


def _with_stage(world: TownView, name: str, field: str, stage: str) -> None:
    if not world.compiled.n[field]:
        raise Wrong(name, f"the stage {stage!r} is off", "unlock it first", code="unsupported")


def _two(name: str, args: Args) -> tuple[int, int]:
    if args["a"] == args["b"]:
        raise Wrong(f"{name}: b = {args['b']}", "is the same resident", "name two")
    return args["a"], args["b"]


def _arrange_meet(world: TownView, args: Args) -> CommandPlan:
    _with_stage(world, "arrange_meet", "with_trouble", "trouble")
    a, b = _two("arrange_meet", args)
    if int(world.state.town["meeting_until"][0]) > world.tick:
        raise Wrong("arrange_meet", "two are on their way to a meeting", "wait until it is over", code="conflict")
    return CommandPlan(
        summary=f"{a} and {b} are asked to meet", actions=(TownAction(op="meet", a=a, b=b, values=(args["ticks"],)),)
    )


def _force_chat(world: TownView, args: Args) -> CommandPlan:
    _with_stage(world, "force_chat", "with_ties", "ties")
    a, b = _two("force_chat", args)
    people, width = world.state.people[0], world.rules.grid.width
    for one in (a, b):
        if people["doing"][one] >= 0:
            raise Wrong(f"force_chat: {one}", "is busy", "wait until they are done", code="conflict")
    near = [(int(people["tile"][one]) % width, int(people["tile"][one]) // width) for one in (a, b)]
    if abs(near[0][0] - near[1][0]) + abs(near[0][1] - near[1][1]) > 2:
        raise Wrong(f"force_chat: {a}, {b}", "are too far apart", "arrange a meeting", code="conflict")
    return CommandPlan(summary=f"{a} talks to {b}", actions=(TownAction(op="chat", a=a, b=b),))


def _set_tie(world: TownView, args: Args) -> CommandPlan:
    _with_stage(world, "set_tie", "with_ties", "ties")
    a, b = _two("set_tie", args)
    values = tuple(round(args[part] * UNIT) for part in ("trust", "familiarity", "rivalry"))
    both = tuple(TownAction(op="tie", a=one, b=other, values=values) for one, other in ((a, b), (b, a)))
    return CommandPlan(summary=f"the tie of {a} and {b} is set", actions=both)


def _mortality(world: TownView, args: Args) -> CommandPlan:
    summary = "residents leave when they must" if args["on"] else "nobody has to leave"
    return CommandPlan(summary=summary, actions=(TownAction(op="mortal", a=int(args["on"])),))


def _inspect(world: TownView, args: Args) -> CommandPlan:
    person = world.state.people[0, args["resident"]]
    width, job = world.rules.grid.width, int(person["job"])
    answer = {
        "resident": args["resident"],
        "x": int(person["tile"]) % width,
        "y": int(person["tile"]) // width,
        "needs": {need: round(int(person["need"][k]) / UNIT, 3) for k, need in enumerate(NEEDS)},
        "money": int(person["money"]) / MONEY,
        "job": world.rules["job"][job]["id"] if job >= 0 else None,
        "shift": SHIFTS[int(person["shift"])],
        "nature": world.rules["profile"][int(person["profile"])]["id"],
        "ties": [{"to": int(to)} | _tie_of(person, k) for k, to in enumerate(person["tie_to"]) if to >= 0],
    }
    return CommandPlan(summary=f"resident {args['resident']}", answer=answer)


def _tie_of(person: Any, k: int) -> dict[str, float]:
    return {part: round(int(person[f"tie_{part}"][k]) / UNIT, 3) for part in ("trust", "familiarity", "rivalry")}


def _queues(world: TownView, args: Args) -> CommandPlan:
    things, people = world.state.things[0], world.state.people[0]
    lines = [
        {"thing": world.rules.grid.objects[o][0], "number": int(o), "user": int(things["holder"][o]),
         "waiting": np.flatnonzero((people["queue"] == o) & (people["alive"] == 1)).tolist()}
        for o in np.flatnonzero(things["waiting"] > 0)
    ]  # fmt: skip
    return CommandPlan(summary=f"{len(lines)} lines", answer={"queues": lines})


_WHO = Arg(name="resident", kind="resident", help="who")
_A, _B = Arg(name="a", kind="resident", help="one"), Arg(name="b", kind="resident", help="the other")


def _ticks(default: int, least: int = 0) -> Arg:
    return Arg(name="ticks", kind="integer", least=least, most=10_000, default=default, help="how long; 0 ends it")


def _tie(name: str, least: float) -> Arg:
    return Arg(name=name, kind="number", least=least, most=1.0, default=0.0, help="from least to most")


COMMANDS: Mapping[str, TownCommand] = {
    command.name: command
    for command in (
        TownCommand(name="inspect", role="viewer", help="All about a resident.", plan=_inspect, args=(_WHO,)),
        TownCommand(name="queues", role="viewer", help="Who waits for what.", plan=_queues),
        TownCommand(name="price_spike", role="operator", help="Everything costs more.",
                    plan=_trouble(SPIKE, "price_spike"), args=(_ticks(360),)),
        TownCommand(name="blackout", role="operator", help="No power.", plan=_trouble(BLACKOUT, "blackout"),
                    args=(_ticks(60),)),
        TownCommand(name="outage", role="operator", help="No water.", plan=_trouble(OUTAGE, "outage"),
                    args=(_ticks(60),)),
        TownCommand(name="rain", role="operator", help="Rain: needs run down faster outside.",
                    plan=_trouble(RAIN, "rain"), args=(_ticks(240),)),
        TownCommand(name="festival", role="operator", help="Music in the park, good for company.",
                    plan=_trouble(FESTIVAL, "festival"), args=(_ticks(240),)),
        TownCommand(name="arrange_meet", role="operator", help="Ask two to meet; they have to walk there.",
                    plan=_arrange_meet, args=(_A, _B, _ticks(180, 10))),
        TownCommand(name="force_chat", role="operator", help="Let one talk to another who is near.", plan=_force_chat,
                    args=(_A, _B)),
        TownCommand(name="teleport", role="admin", help="Put a resident on another tile.", plan=_teleport,
                    args=(_WHO, Arg(name="x", kind="integer", least=0, most=249, help="column"),
                          Arg(name="y", kind="integer", least=0, most=249, help="row"))),
        TownCommand(name="set_need", role="admin", help="Set a need.", plan=_set_need,
                    args=(_WHO, Arg(name="need", kind="choice", choices=NEEDS, help="which"),
                          Arg(name="value", kind="number", least=0.0, most=1.0, help="1 is full"))),
        TownCommand(name="give_money", role="admin", help="Give money, or take some.", plan=_give_money,
                    args=(_WHO, Arg(name="meals", kind="number", least=-1000.0, most=1000.0, help="in meals"))),
        TownCommand(name="set_tie", role="admin", help="Set what two feel for one another.", plan=_set_tie,
                    args=(_A, _B, _tie("trust", -1.0), _tie("familiarity", 0.0), _tie("rivalry", 0.0))),
        TownCommand(name="kill", role="admin", help="Let a resident leave town for good.", plan=_kill,
                    args=(_WHO, Arg(name="cause", kind="choice", choices=CAUSES, default="eviction", help="told as"))),
        TownCommand(name="toggle_mortality", role="admin", help="Whether residents have to leave at all.",
                    plan=_mortality, args=(Arg(name="on", kind="flag", help="on or off"),)),
    )
}  # fmt: skip


def docs() -> str:
    """Every command as a row of a Markdown table."""
    rows = [f"| `{command.usage}` | {command.role} | {command.help} |" for command in COMMANDS.values()]
    return "\n".join(("| command | role | what it does |", "|---|---|---|", *rows))


def described() -> list[dict[str, Any]]:
    """Every command for a program that draws buttons and forms."""
    return [
        {
            "name": command.name,
            "role": command.role,
            "what": command.help,
            "usage": command.usage,
            "args": [
                {"name": a.name, "kind": a.kind, "what": a.help, "choices": list(a.choices), "default": a.default}
                for a in command.args
            ],
        }
        for command in COMMANDS.values()
    ]


# Doing ---------------------------------------------------------------------------------------------------------------


def do(world: TownView, actions: Sequence[TownAction]) -> None:
    """Carry out what was planned for this very moment."""
    for action in actions:
        values = np.zeros(3, np.int64)
        values[: len(action.values)] = action.values
        s, op = world.state, OPS.index(action.op)
        _do(world.compiled, s.town, s.people, s.things, s.who, s.slots, s.events, op, action.a, action.b, values)


@jit
def _do(
    law: Any, towns: Any, folk: Any, all_things: Any, tiles: Any, all_slots: Any, rings: Any,
    op: int, a: int, b: int, values: Any,
) -> None:  # fmt: skip
    town, people, things, who, slots, ring = towns[0], folk[0], all_things[0], tiles[0], all_slots[0], rings[0]
    if op == DEPART:
        depart(law, town, people, things, who, slots, ring, a, b)
    elif op == TELEPORT:
        if people[a].doing >= 0:
            abort(law, town, people, things, ring, a)
        leave_queue(law, town, people, things, ring, a)
        who[people[a].tile] = -1
        who[b] = a
        people[a].tile = b
        people[a].goal, people[a].blocked = -1, 0
    elif op == NEED:
        people[a].need[b] = values[0]
    elif op == GIVE:
        people[a].money += values[0]
        town.outside -= values[0]
    elif op == BEGIN:
        begin_trouble(law, town, people, ring, a, values[0])
    elif op == END:
        town.until[a] = town.tick
    elif op == MEET:
        _invite(law, town, people, ring, a, b, values[0])
    elif op == CHAT:
        chat(law, town, people, ring, a, b)
    elif op == TIE:
        _bind(law, people[a], b, values)
    elif op == MORTAL:
        town.mortal = a


@jit
def _invite(law: Any, town: Any, people: Any, ring: Any, a: int, b: int, length: int) -> None:
    """As the town itself invites, but these two, whether or not it is their turn."""
    for i in (a, b):
        people[i].met_at = town.tick
    place = below(draw(town.seed, town.tick, MEETING_STREAM, 1), law.n.meetings)
    town.meeting_a, town.meeting_b, town.met = a, b, 0
    town.meeting_place, town.meeting_until = law.n.first_meeting + place, town.tick + length
    town.until[MEETING] = town.tick + length
    town.troubles += 1
    tell(town, ring, TROUBLE_BEGINS, MEETING, a, length)


@jit
def _bind(law: Any, person: Any, other: int, values: Any) -> None:
    """In the place of the tie there is, a free one, or the weakest."""
    place, least = 0, 1 << 40
    for k in range(law.n.most_ties):
        strength = abs(person.tie_trust[k]) + abs(person.tie_familiarity[k]) + person.tie_rivalry[k]
        if person.tie_to[k] == other:
            strength = -2
        elif person.tie_to[k] < 0:
            strength = -1
        if strength < least:
            place, least = k, strength
    if least != -2:
        person.tie_chats[place] = 0
    is_nothing = values[0] == 0 and values[1] == 0 and values[2] == 0
    person.tie_to[place] = -1 if is_nothing else other
    person.tie_trust[place], person.tie_familiarity[place], person.tie_rivalry[place] = values[0], values[1], values[2]
