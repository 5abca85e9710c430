"""A town of four that fits into a test: one house, a shop, a cafe, an office and a park round one road."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.town.env import Env, Seen
from holdfast.town.kernel import KINDS
from holdfast.town.rules import Rules, load, merged

ROWS = """
####################
#bbbb_#_s_w#_t_t_t##
#_____+____+______##
#_____#____#______##
##+######+####+#####
====================
##+####+#####+###""#
#__g_#__c_#_d_d_#""#
#____#____#_____+n"#
#_g__#__c_#_d_d_#""#
####################
"""
VENUES = [
    {"id": "house", "kind": "home", "area": [0, 0, 17, 4]},
    {"id": "grocer", "kind": "shop", "area": [0, 6, 5, 10]},
    {"id": "cafe", "kind": "cafe", "area": [5, 6, 10, 10]},
    {"id": "office", "kind": "work", "area": [10, 6, 16, 10]},
    {"id": "park", "kind": "park", "area": [17, 7, 18, 9]},
]


def small(override: Mapping[str, Any] | None = None, residents: int = 4) -> Rules:
    """The default rules on the small map, with what else is said."""
    told = {"name": "hamlet", "residents": residents, "map": {"rows": ROWS}, "venue": VENUES}
    return load(override=merged(told, override or {}))


def hamlet(folder: Path) -> Path:
    """A file of rules: the small map, with days so short that exams are."""
    venues = "".join(f"[[venue]]\nid = '{one['id']}'\nkind = '{one['kind']}'\narea = {one['area']}\n" for one in VENUES)
    job = "[[job]]\nid = 'a'\nvenue = 'office'\nstart = 0\nend = 40\nwage = 1.0\nslots = 4\n"
    path = folder / "hamlet.toml"
    path.write_text(f"residents = 4\nticks_per_day = 48\n[map]\nrows = '''{ROWS}'''\n{venues}{job}")
    return path


def put(env: Env, i: int, x: int, y: int) -> None:
    """Let a resident of the first world stand somewhere."""
    width = env.rules.grid.width
    who, people = env.state.who[0], env.state.people[0]
    assert env.rules.grid.walkable[y * width + x] and who[y * width + x] < 0
    who[people["tile"][i]] = -1
    people["tile"][i] = y * width + x
    who[y * width + x] = i


def at(env: Env, tick: int) -> Env:
    """The clock of the first world, put to a tick."""
    env.state.town["tick"], env.state.town["time"] = tick, tick % env.rules["ticks_per_day"]
    return env


def step(env: Env, **deeds: str) -> Seen:
    """One tick in which residents do what is said (r0="chat"), and the others wait."""
    actions = np.zeros((env.worlds, env.residents), np.int64)
    for who, deed in deeds.items():
        actions[0, int(who[1:])] = env.actions.index(deed)
    return env.step(actions)


def told(env: Env, kind: str) -> list[tuple[int, int, int]]:
    """The events of a kind that the first world remembers: a, b and value."""
    ring = env.state.events[0]
    ring = ring[ring["kind"] == KINDS.index(kind)]
    return [(int(one["a"]), int(one["b"]), int(one["value"])) for one in np.sort(ring, order="tick")]
