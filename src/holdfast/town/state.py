"""The whole state of a batch of worlds, in arrays of records. A copy is a snapshot; its hash is its name.

A record has one fixed layout whatever the rules say, so kernels are compiled once. There is no other state: random
numbers have none, and the rules have a hash of their own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.town.compiled_rules import N_ITEMS, N_NEEDS, N_TROUBLES
from holdfast.town.kernel import EVENTS
from holdfast.town.rules import MOST_TIES, TRAITS

SCHEMA = 1
OFF, BEFORE, DUE, ON_TIME, LATE, ABSENT, AFTER = range(7)  # of a shift
SHIFTS = ("off", "before", "due", "on_time", "late", "absent", "after")

i1, i2, i4, i8, u1, u8 = np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint64


def _record(fields: list[Any]) -> np.dtype[Any]:
    """A record in which every byte belongs to a field: numpy copies no others, and the name is of all of them."""
    size = sum(np.dtype([field]).itemsize for field in fields)
    spare = [("spare", u1, (-size % 8,))] if size % 8 else []
    record = np.dtype([*fields, *spare], align=True)
    assert record.itemsize == size + -size % 8, "a gap between fields: order them by size"
    return record


PERSON = _record(  # what every tick asks comes first, in few lines of the cache; i4 is enough for thousands of years
    [
        ("need", i4, (N_NEEDS,)), ("tile", i4), ("left", i4),
        ("doing", i2), ("using", i2), ("queue", i2), ("goal", i2), ("job", i2), ("job_slot", i2), ("home", i2),
        ("blocked", i2), ("last_action", i2), ("avoided", i2), ("item", i2, (N_ITEMS,)),
        ("alive", u1), ("fresh", u1), ("profile", u1), ("shift", u1), ("goal_kind", i1), ("success", u1),
        ("switches", u1), ("cause", u1), ("unpaid", u1), ("was_late", u1), ("blocker", i2), ("chat_at", i4),
        ("money", i8), ("returned", i8),  # returned: the sum of all rewards
        ("earned", i4), ("chat_gain", i4), ("shaped", i4), ("reward", i4),  # of this tick
        ("low_ticks", i4), ("neglect", i4),
        ("jobless_since", i4),  # the last wage, or hour in which there was no work to be had
        ("away", i4), ("worked", i4), ("tie_to", i2, (MOST_TIES,)),
        ("tie_trust", i4, (MOST_TIES,)), ("tie_familiarity", i4, (MOST_TIES,)), ("tie_rivalry", i4, (MOST_TIES,)),
        ("tie_chats", i2, (MOST_TIES,)), ("trait", i4, (len(TRAITS),)), ("slot", i2), ("behind", i2), ("tokens", i4),
        ("paid", i4),  # for what is being done: given back where it is broken off
        ("queue_since", i4), ("waited", i4), ("born", i4), ("left_at", i4), ("respawn_at", i4), ("hire_at", i4),
        ("met_at", i4), ("refill_at", i4),
        ("avoided_at", i4),
        ("absent", u1, (7,)),  # by day of the week
    ]
)  # fmt: skip
THING = _record(
    [
        ("used_at", i4), ("held_until", i4), ("stock", i4), ("holder", i2), ("held_for", i2), ("last_user", i2),
        ("waiting", i2),
    ]
)  # fmt: skip
COUNTS = (
    "finished", "failed", "aborted", "chats", "rebuffs", "shared_meals", "helps", "conflicts", "ghost_steps", "exits",
    "spawns", "lates", "absences", "meetings", "missed_meetings", "troubles", "forced_slots", "moves", "blocked",
    "worked", "delivered", "eaten", "lost", "deficit_ticks", "longest_wait",
)  # fmt: skip
TOWN = _record(
    [
        ("seed", u8), ("tick", i8), ("treasury", i8), ("outside", i8), ("births", i8), ("exit_ready", i8),
        ("calm_at", i8), ("trouble_ready", i8), ("meeting_until", i8), ("events", i8),
        ("until", i8, (N_TROUBLES,)), ("ready", i8, (N_TROUBLES,)),
        *[(name, i8) for name in COUNTS],
        ("time", i4),  # the tick of the day
        ("exits_today", i4), ("job_exits_today", i4), ("meeting_a", i2), ("meeting_b", i2), ("meeting_place", i2),
        ("met", u1), ("mortal", u1),
    ]
)  # fmt: skip
EVENT = _record([("tick", i8), ("kind", i4), ("a", i4), ("b", i4), ("value", i4)])


@dataclass(frozen=True, slots=True, kw_only=True)
class TownState:
    """B worlds. The arrays are changed in place by whoever steps them."""

    town: NDArray[Any]  # [B] of TOWN
    people: NDArray[Any]  # [B, A] of PERSON
    things: NDArray[Any]  # [B, O] of THING
    who: NDArray[np.int16]  # [B, tile]: the resident who stands there, -1 for nobody
    slots: NDArray[np.int64]  # [B, slot]: when it was given back; -1: never used, -2: in use
    events: NDArray[Any]  # [B, EVENTS] of EVENT, a ring

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        return {name: getattr(self, name) for name in ("town", "people", "things", "who", "slots", "events")}

    def copy(self) -> TownState:
        return TownState(**{name: array.copy() for name, array in self.arrays.items()})

    def pick(self, world: int) -> TownState:
        """One world of the batch, as a batch of one; it shares the arrays."""
        return TownState(**{name: array[world : world + 1] for name, array in self.arrays.items()})

    def sha256(self, world: int | None = None) -> str:
        """The name of this moment: equal names, equal futures."""
        digest = hashlib.sha256()
        for name, array in (self if world is None else self.pick(world)).arrays.items():
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def blank(worlds: int, residents: int, things: int, tiles: int, slots: int) -> TownState:
    return TownState(
        town=np.zeros(worlds, TOWN),
        people=np.zeros((worlds, residents), PERSON),
        things=np.zeros((worlds, things), THING),
        who=np.full((worlds, tiles), -1, np.int16),
        slots=np.full((worlds, slots), -1, np.int64),
        events=np.zeros((worlds, EVENTS), EVENT),
    )
