"""Hooks of affordances: functions that are asked before one begins, and called after it has ended or failed.

The rules name them: one of ours, one that a program has registered here, or a user's own as `module:function`. A hook
sees one use of one affordance. Before it, a hook says whether it may begin; it changes nothing. After it, or where it
failed, a hook gives the changes that it makes. Hooks run between two ticks, in the order of what happened: the kernels
know nothing of them, and a town without hooks pays nothing. `shared_meal` alone is part of a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.town.compiled_rules import CompiledRules
from holdfast.town.console import DEPART, OPS, TownAction, TownView, do
from holdfast.town.frames import events_since
from holdfast.town.hook_registry import AFTER, BEFORE, FAIL, HOOK_STAGES, Hook, hook
from holdfast.town.kernel import ABORTED, FAILED, FINISHED, HOOK_STREAM, below, draw, jit, tell
from holdfast.town.life import is_hard
from holdfast.town.places import NO_HOOK, REASONS, usable
from holdfast.town.rules import ITEMS, MONEY, MOVED_ON, NEEDS, UNIT, Rules, hooks_of
from holdfast.town.state import TownState

DEPARTS = OPS[DEPART]


class HookFailed(RuntimeError):
    """A hook raised, or gave what is no answer."""

    def __init__(self, name: str, call: HookCall, why: str) -> None:
        super().__init__(f"hook {name} {call.stage} {call.affordance}: {why}")
        self.what, self.why = f"hook {name} ({call.stage} {call.affordance}, tick {call.tick})", why


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCall:
    """One use of an affordance, as a hook sees it. Needs are shares, money is in meals, residents are seats."""

    stage: str
    affordance: str
    resident: int
    thing: int  # which one is used; -1: none was near
    reason: str = ""  # why it failed
    view: TownView  # the whole town, a batch of one; whoever writes to it is on their own

    @property
    def tick(self) -> int:
        return self.view.tick

    @property
    def hour(self) -> int:
        return int(self.view.state.town["time"][0]) // int(self.view.compiled.n["hour"])

    def need(self, name: str, resident: int | None = None) -> float:
        return int(self._person(resident)["need"][_place(NEEDS, name)]) / UNIT

    def item(self, name: str, resident: int | None = None) -> int:
        return int(self._person(resident)["item"][_place(ITEMS, name)])

    def money(self, resident: int | None = None) -> float:
        return int(self._person(resident)["money"]) / MONEY

    def near(self, steps: int) -> tuple[int, ...]:
        """The others within so many steps, walls or not."""
        people, tiles = self.view.state.people[0], self.view.compiled.tile
        here = tiles[people["tile"][self.resident]]
        there = tiles[people["tile"]]
        apart = np.abs(there["x"] - here["x"]) + np.abs(there["y"] - here["y"])
        found = np.flatnonzero((people["alive"] == 1) & (apart <= steps))
        return tuple(int(one) for one in found if one != self.resident)

    def random(self, n: int) -> int:
        """From 0 up to before n: the same in the same town at the same tick for the same resident."""
        seed = self.view.state.town["seed"][0]
        return int(below(np.uint64(draw(seed, self.tick, HOOK_STREAM, self.resident)), n))

    def add_need(self, name: str, by: float, resident: int | None = None) -> TownAction:
        """A change of a need by so much; it stays within 0 and 1."""
        who = self.resident if resident is None else resident
        value = min(max(round((self.need(name, who) + by) * UNIT), 0), UNIT)
        return TownAction(op="need", a=who, b=_place(NEEDS, name), values=(value,))

    def give_money(self, meals: float, resident: int | None = None) -> TownAction:
        """Money from outside the town, or to it where negative; nobody has less than nothing."""
        who = self.resident if resident is None else resident
        amount = max(round(meals * MONEY), -int(self._person(who)["money"]))
        return TownAction(op="give", a=who, values=(amount,))

    def days_here(self, resident: int | None = None) -> float:
        """Since the resident moved in."""
        return (self.tick - int(self._person(resident)["born"])) / int(self.view.compiled.n["day"])

    def move_on(self, resident: int | None = None) -> TownAction:
        """The resident leaves town, and did not have to; somebody else will come. Not where nobody may."""
        return TownAction(op=DEPARTS, a=self.resident if resident is None else resident, b=MOVED_ON)

    def _person(self, resident: int | None) -> Any:
        return self.view.state.people[0, self.resident if resident is None else resident]


def _place(names: Sequence[str], name: str) -> int:
    if name not in names:
        raise ValueError(f"{name!r} is unknown; there are {', '.join(names)}")
    return names.index(name)


# Ours ----------------------------------------------------------------------------------------------------------------

COMPANY, CHEERED = 3, 2  # steps
STAY = 10.0  # days


@hook(BEFORE)
def in_company(call: HookCall) -> bool:
    """Only where somebody else is within three steps."""
    return bool(call.near(COMPANY))


@hook(AFTER)
def cheer(call: HookCall) -> list[TownAction]:
    """Whoever is within two steps feels a little less alone."""
    return [call.add_need("social", 0.02, who) for who in call.near(CHEERED)]


@hook(FAIL)
def disappoint(call: HookCall) -> list[TownAction]:
    """Who could not, or not to the end, feels a little more alone."""
    return [call.add_need("social", -0.01)]


@hook(AFTER)
def move_on(call: HookCall) -> list[TownAction]:
    """Who has been here for ten days or more moves on, one time in eight; nobody has to."""
    return [call.move_on()] if call.days_here() >= STAY and call.random(8) == 0 else []


# Around a tick -------------------------------------------------------------------------------------------------------


@jit
def may_leave(law: Any, towns: Any, b: int) -> bool:
    """Whether anybody may leave now: the caps on exits hold for hooks, too."""
    town = towns[b]
    if not town.mortal or is_hard(town) or (town.calm_at > 0 and town.tick - town.calm_at < law.n.exit_grace):
        return False
    return bool(town.exits_today < law.n.exits_per_day and town.tick >= town.exit_ready)


class LostEvents(RuntimeError):
    """More happened in one tick than a town remembers, so some hooks were never called."""


class Hooks:
    """The hooks of some rules, called around each tick of a batch of towns."""

    def __init__(self, rules: Rules, law: CompiledRules) -> None:
        self._rules, self._law = rules, law
        self._ids = [str(entry["id"]) for entry in rules["affordance"]]
        self._hooks: dict[str, list[list[Hook]]] = {
            stage: [
                [found for name in hooks_of(entry)[stage] if (found := rules.hooks[name]).function is not None]
                for entry in rules["affordance"]
            ]
            for stage in HOOK_STAGES
        }

    @property
    def is_used(self) -> bool:
        return any(any(found) for found in self._hooks.values())

    @property
    def _asked(self) -> list[int]:
        """The affordances that are asked about before they begin."""
        return [f for f, hooks in enumerate(self._hooks[BEFORE]) if hooks]

    def restrict(self, state: TownState, first_use: int, mask: NDArray[np.uint8]) -> None:
        """Takes from the mask what a hook refuses now."""
        for f in self._asked:
            for world, seat in zip(*np.nonzero(mask[:, :, first_use + f]), strict=True):
                if not self.may(state, int(world), int(seat), f):
                    mask[world, seat, first_use + f] = 0

    def refused(self, state: TownState, first_use: int, actions: NDArray[np.int64]) -> list[tuple[int, int, int]]:
        """World, seat and affordance of each action that a hook does not allow now."""
        found = []
        for f in self._asked:
            for world, seat in zip(*np.nonzero(actions == first_use + f), strict=True):
                if not self.may(state, int(world), int(seat), f):
                    found.append((int(world), int(seat), f))
        return found

    def may(self, state: TownState, world: int, seat: int, f: int) -> bool:
        """What is not possible anyhow is not asked about."""
        thing = int(usable(self._law, state.town, state.people, state.things, world, seat, f))
        if thing < 0:
            return True
        call = self._call(BEFORE, state, world, seat, thing, f)
        return all(_answer(one, call) for one in self._hooks[BEFORE][f])

    def fail(self, state: TownState, refused: Sequence[tuple[int, int, int]]) -> None:
        """Before a tick: what was refused fails in it, as anything else that is not possible."""
        for world, seat, f in refused:
            state.town["failed"][world] += 1
            tell(state.town[world], state.events[world], FAILED, seat, f, NO_HOOK)

    def follow(self, state: TownState, seen: NDArray[np.int64]) -> None:
        """Calls what is to be called for all that has happened since `seen`, the count of events of each town."""
        for world in range(len(state.town)):
            events, lost = events_since(state, int(seen[world]), world)
            if lost:
                raise LostEvents(f"{lost} events of one tick are lost to the hooks; take fewer residents")
            for event in events.copy():  # what hooks do may tell of more
                for one, call in self._due(state, world, event):
                    for change in _changes(one, call):
                        if change.op != DEPARTS or may_leave(self._law, state.town, world):
                            do(call.view, (change,))

    def _due(self, state: TownState, world: int, event: Any) -> Iterator[tuple[Hook, HookCall]]:
        kind, seat, b, value = (int(event[part]) for part in ("kind", "a", "b", "value"))
        if kind == FINISHED:
            stage, thing, f, reason = AFTER, b, value, ""
        elif kind == ABORTED:
            stage, thing, f, reason = FAIL, b, value, "aborted"
        elif kind == FAILED:
            stage, thing, f, reason = FAIL, -1, b, REASONS[value]
        else:
            return
        for one in self._hooks[stage][f]:
            if state.people["alive"][world, seat]:  # an earlier hook may have sent them away
                yield one, self._call(stage, state, world, seat, thing, f, reason)

    def _call(
        self, stage: str, state: TownState, world: int, seat: int, thing: int, f: int, reason: str = ""
    ) -> HookCall:
        view = TownView(rules=self._rules, compiled=self._law, state=state.pick(world))
        return HookCall(stage=stage, affordance=self._ids[f], resident=seat, thing=thing, reason=reason, view=view)


def _answer(one: Hook, call: HookCall) -> bool:
    answer = _called(one, call)
    if not isinstance(answer, bool | np.bool_):
        raise HookFailed(one.name, call, f"gave {answer!r:.60}, and must give True or False")
    return bool(answer)


def _changes(one: Hook, call: HookCall) -> Sequence[TownAction]:
    changes = _called(one, call)
    if changes is None:
        return ()
    if not isinstance(changes, list | tuple) or not all(isinstance(change, TownAction) for change in changes):
        raise HookFailed(one.name, call, f"gave {changes!r:.60}, and must give a list of changes, or None")
    return changes


def _called(one: Hook, call: HookCall) -> Any:
    assert one.function is not None
    try:
        return one.function(call)
    except HookFailed:
        raise
    except Exception as error:
        raise HookFailed(one.name, call, f"raised {type(error).__name__}: {error}") from error
