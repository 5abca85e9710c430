"""The rules of a town, their conditions and the map: read whole, checked whole, every fault named at once.

A fault says where it is, what is wrong and what would be right. What no resident could live by is refused as well: a
day that costs more than it earns, a venue that cannot be reached. A condition is a small part of Python's expressions
(names, numbers, comparisons, and, or, not), compiled to numbers that the kernel can run. `compiled_rules` turns rules
into numbers.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.town.hook_registry import HOOK_STAGES, NoHook, find
from holdfast.town.kernel import jit

FAR = 65_535  # cannot be reached
STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))  # north, east, south, west


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    width: int
    height: int
    walkable: NDArray[np.uint8]  # by tile; a tile is y × width + x
    glyphs: str  # the map itself, row after row, for pictures
    objects: tuple[tuple[str, int], ...]  # type and tile: by type in the order of the rules, then in reading order
    entries: tuple[int, ...]

    def beside(self, tile: int) -> list[int]:
        """The tiles around one that can be walked on: north, east, south, west."""
        x, y = tile % self.width, tile // self.width
        around = [(x + dx, y + dy) for dx, dy in STEPS]
        inside = [b * self.width + a for a, b in around if 0 <= a < self.width and 0 <= b < self.height]
        return [one for one in inside if self.walkable[one]]


def read(rows: list[str], *, walls: str, doors: str, ground: str, entry: str, objects: Mapping[str, str]) -> Grid:
    """The map that the rows draw; what is odd about it has been refused before (rules)."""
    width, height = len(rows[0]), len(rows)
    glyphs = "".join(rows)
    walkable = np.array([glyph in ground or glyph in doors for glyph in glyphs], np.uint8)
    types = list(dict.fromkeys(objects.values()))
    placed = [(objects[glyph], tile) for tile, glyph in enumerate(glyphs) if glyph in objects]
    edge = [t for t in range(width * height) if t % width in (0, width - 1) or t // width in (0, height - 1)]
    return Grid(
        width=width,
        height=height,
        walkable=walkable,
        glyphs=glyphs,
        objects=tuple(sorted(placed, key=lambda one: (types.index(one[0]), one[1]))),
        entries=tuple(t for t in edge if glyphs[t] == entry and walkable[t]),
    )


def distances(grid: Grid, targets: Iterable[int]) -> NDArray[np.uint16]:
    """Steps from every tile to the nearest of the targets, all of which can be walked on."""
    far = np.full(grid.walkable.size, FAR, np.uint16)
    _flood(grid.walkable, grid.width, np.array(sorted(targets), np.int64), far, np.empty(far.size, np.int64))
    return far


@jit
def _flood(walkable: Any, width: int, targets: Any, far: Any, waiting: Any) -> None:
    last = 0
    for tile in targets:
        far[tile] = 0
        waiting[last] = tile
        last += 1
    first = 0
    while first < last:
        tile = waiting[first]
        first += 1
        for step in range(4):
            x = tile % width + (1 if step == 1 else -1 if step == 3 else 0)
            near = tile + (-width if step == 0 else 1 if step == 1 else width if step == 2 else -1)
            if 0 <= x < width and 0 <= near < walkable.size and walkable[near] and far[near] == FAR:
                far[near] = far[tile] + 1
                waiting[last] = near
                last += 1


SCHEMA = 1
DEFAULT = Path(__file__).with_name("rules.toml")
NEEDS = ("hunger", "hygiene", "energy", "social")
ITEMS = ("raw", "meal")
TRAITS = ("extroversion", "forgiveness", "ambition")
TROUBLES = ("price_spike", "blackout", "outage", "meeting", "rain", "festival")
VENUES = ("home", "shop", "cafe", "work", "park")
CAUSES = ("collapse", "eviction", "neglect", "jobless")  # why somebody has to leave
MOVED_ON, GONE = 5, (*CAUSES, "moved_on")  # and the number of what nobody has to; all that an exit is told with
MOST_TIES, MOST_RESIDENTS, MOST_OBJECTS = 8, 256, 4096
MOST_TYPES, MOST_AFFORDANCES, MOST_JOBS, MOST_PROFILES, MOST_CODE = 16, 32, 32, 16, 512
MOST_ENTRIES = {"affordance": MOST_AFFORDANCES, "job": MOST_JOBS, "profile": MOST_PROFILES}
UNIT, MONEY = 1_000_000, 10_000  # a whole need or tie; the price of a plain meal

# What a condition can ask, with its unit; 0: yes or no. The order is that of `law.n.values`.
ASKED: Mapping[str, int] = {
    **dict.fromkeys(NEEDS, UNIT), **dict.fromkeys(ITEMS, 1), "wallet": MONEY, "stock": 1, "hour": 1, "queue": 1,
    "power": 0, "water": 0, "own": 0, "on_shift": 0,
}  # fmt: skip
NAMES = {name: (place, unit) for place, (name, unit) in enumerate(ASKED.items())}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFault:
    """One thing that is wrong with the rules."""

    where: str  # "affordance[2] cook: duration"
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}; {self.remedy}"


class BadRules(ValueError):
    """Everything that is wrong with a rules file."""

    def __init__(self, source: str, faults: Sequence[RuleFault]) -> None:
        super().__init__(f"{source}: " + "\n".join(map(str, faults)))
        self.source, self.faults = source, tuple(faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Checked rules: plain values, and the map that they draw."""

    source: str
    values: Mapping[str, Any]
    grid: Grid
    sha256: str  # of the values, and of the code of a user's hooks: the same rules have the same, however written
    hooks: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)  # by name; `town.hooks.Hook`
    never: tuple[str, ...] = ()  # words that nobody here says or is told of with; no part of the world, nor of the hash
    personalities: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # mixes of natures, by name

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


LARGEST = 2**20  # bytes of a file of rules
LONG_NAME = re.compile(r"""(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){32}""")


Importer = Callable[[str], Any]  # what `module:function` names; ValueError with the reason where there is none


def load(
    path: Path | None = None,
    *,
    override: Mapping[str, Any] | None = None,
    unlocked: Sequence[str] | None = None,
    importer: Importer | None = None,
    profile: str | None = None,
) -> Rules:
    """The default rules, with what the file and then `override` say instead.

    `unlocked` are the stages that may be on; None: all of them. Without an `importer` a hook of a user's is refused:
    to read rules imports nothing by itself. `profile` names a mix of natures; None: each has the share it is given.
    """
    values = tomllib.loads(DEFAULT.read_text())
    source = str(path or DEFAULT.name)
    if path is not None:
        try:
            if path.stat().st_size > LARGEST:
                raise tomllib.TOMLDecodeError(f"it has more than {LARGEST} bytes")
            text = path.read_text()
            if LONG_NAME.search(text) is not None:  # the parser would fill the memory
                raise tomllib.TOMLDecodeError("a name in it has more than 32 parts")
            values = _with_own_mixes(values, tomllib.loads(text))
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise BadRules(source, [RuleFault(where="file", why=why, remedy="name a file that can be read")]) from error
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise BadRules(source, [RuleFault(where="file", why=str(error), remedy="write it as TOML")]) from error
    values = merged(values, override or {})
    return checked(values, source=source, unlocked=unlocked, importer=importer, profile=profile)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; everything else, lists of tables included, is replaced."""
    out = dict(below)
    for key, value in above.items():
        is_table = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = merged(out[key], value) if is_table else value
    return out


def _with_own_mixes(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The merged rules. A mix of natures takes the place of one of its name: half of each would be none."""
    mixes = [part.get("personalities", {}) for part in (below, above)]
    out = merged(below, above)
    return out | {"personalities": {**mixes[0], **mixes[1]}} if all(isinstance(mix, Mapping) for mix in mixes) else out


def checked(
    values: Mapping[str, Any],
    *,
    source: str = "rules",
    unlocked: Sequence[str] | None = None,
    importer: Importer | None = None,
    profile: str | None = None,
) -> Rules:
    """The rules, or everything that is wrong with them."""
    resolved = _Resolved(values, profile)
    values = resolved.values
    check = _Check(values, importer)
    check.faults += resolved.faults
    grid = check.all(unlocked)
    if check.faults or grid is None:
        raise BadRules(source, check.faults)
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    text += "".join(f"\n{name} {one.source_sha256}" for name, one in sorted(check.hooks.items()) if one.source_sha256)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return Rules(
        source=source,
        values=values,
        grid=grid,
        sha256=sha256,
        hooks=check.hooks,
        never=resolved.never,
        personalities=resolved.mixes,
    )


class _Resolved:
    """Rules without what only helps to write them: the mixes of natures, one of which may be chosen; hooks that are
    given beside the affordances; and words that are never said, which change nothing in the world. What they amount to
    is in the values, so rules that mean the same have the same hash."""

    def __init__(self, values: Mapping[str, Any], profile: str | None) -> None:
        self.values, self.faults = dict(values), list[RuleFault]()
        self.mixes = self._mixes(self.values.pop("personalities", {}))
        self.never = self._never(self.values.pop("talk", {}))
        self._hook(self.values.pop("hooks", {}))
        if profile is not None:
            self._choose(profile)

    def bad(self, where: str, why: str, remedy: str) -> None:
        self.faults.append(RuleFault(where=where, why=why, remedy=remedy))

    def _mixes(self, given: Any) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for name, shares in given.items() if isinstance(given, Mapping) else ():
            numbers = shares.values() if isinstance(shares, Mapping) else [None]
            if not all(
                isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= 1
                for number in numbers
            ):
                self.bad(f"personalities.{name}", f"{shares!r:.80} is no mix", "give each nature a share from 0 to 1")
            elif not 0.999 <= (total := sum(numbers)) <= 1.001:
                self.bad(f"personalities.{name}", f"the shares sum to {total:g}", "make them sum to 1")
            else:
                found[str(name)] = dict(shares)
        if not isinstance(given, Mapping):
            self.bad("personalities", f"{given!r:.80} is not a table", "give [personalities.NAME] with shares")
        return found

    def _never(self, given: Any) -> tuple[str, ...]:
        words = given.get("never", []) if isinstance(given, Mapping) and not set(given) - {"never"} else None
        if isinstance(words, list) and all(isinstance(word, str) and word.strip(" *") for word in words):
            return tuple(words)
        self.bad("talk", f"{given!r:.80} is no list of words", 'write it like never = ["word", "begin*"]')
        return ()

    def _hook(self, given: Any) -> None:
        if not isinstance(given, Mapping):
            self.bad("hooks", f"{given!r:.80} is not a table", 'give [hooks.AFFORDANCE] with after = ["name"]')
            return
        entries = self.values.get("affordance")
        entries = list(entries) if isinstance(entries, list) else []
        ids = [entry.get("id") if isinstance(entry, Mapping) else None for entry in entries]
        for name, hooks in given.items():
            if name not in ids:
                self.bad(f"hooks.{name}", "is no affordance", f"use one of {', '.join(map(str, ids))}")
                continue
            entry = entries[ids.index(name)]
            own = entry.get("hooks", [])
            own = own if isinstance(own, Mapping) else {"after": own}
            lists = (*own.values(), *hooks.values()) if isinstance(hooks, Mapping) else (hooks,)
            if not isinstance(hooks, Mapping) or not all(isinstance(one, list) for one in lists):
                self.bad(f"hooks.{name}", f"{hooks!r:.80} has no lists of names", 'write it like after = ["name"]')
                continue
            joined = {stage: [*own.get(stage, []), *hooks.get(stage, [])] for stage in (*own, *hooks)}
            entries[ids.index(name)] = {**entry, "hooks": joined}
        if given:
            self.values["affordance"] = entries

    def _choose(self, profile: str) -> None:
        natures = self.values.get("profile")
        if profile not in self.mixes:
            known = ", ".join(self.mixes) or "none"
            self.bad(f"personalities.{profile}", "there is no such profile", f"there are {known}")
            return
        mix, ids = self.mixes[profile], []
        if isinstance(natures, list) and all(isinstance(nature, Mapping) for nature in natures):
            ids = [nature.get("id") for nature in natures]
            self.values["profile"] = [{**nature, "share": mix.get(nature.get("id"), 0.0)} for nature in natures]
        if absent := [name for name in mix if name not in ids]:
            self.bad(f"personalities.{profile}", f"there is no nature {absent[0]}", f"use {', '.join(map(str, ids))}")


def hooks_of(entry: Mapping[str, Any]) -> dict[str, list[str]]:
    """The hooks of an affordance by stage; a plain list is of those after it."""
    given = entry.get("hooks", [])
    by_stage = given if isinstance(given, Mapping) else {"after": given}
    return {stage: list(by_stage.get(stage, [])) for stage in HOOK_STAGES}


# What each table may hold: name → (least, most) of a number, or another table, or a kind of value.
Range = tuple[float, float]
_SHARE: Range = (0.0, 1.0)
_TICKS: Range = (0, 1_000_000)
_TIE: Mapping[str, Any] = dict.fromkeys(("trust", "familiarity", "rivalry"), (-1.0, 1.0))
TABLES: Mapping[str, Mapping[str, Any]] = {
    "employment": {
        "grace": (0, 120), "absent_after": (1, 600), "late_fine": (0.0, 10.0), "absent_fine": (0.0, 10.0),
        "most_absences": (1, 7), "exits_per_day": (0, 256), "rehire_after": _TICKS,
    },
    "economy": {"rent": (0.0, 1e3), "slack": (1.0, 10.0), "meals_a_day": (0, 20), "showers_a_day": (0, 20)},
    "lifecycle": {
        "collapse_below": _SHARE, "collapse_ticks": (1, 10_000), "neglect_below": _SHARE, "neglect_share": _SHARE,
        "unpaid_days": (1, 100), "jobless_days": (1, 100), "exits_per_day": (0, 256), "cooldown": _TICKS,
        "grace": _TICKS, "respawn": "span", "starter_money": (0.0, 1e3),
        "starter_items": dict.fromkeys(ITEMS, (0, 100)), "slots": (1, 4096), "slot_cooldown": _TICKS,
    },
    "queues": {
        "reach": (0, 5), "hold": (1, 100), "cooldown": (0, 600), "ghost_after": (1, 100),
        "conflict_after": (1, 10_000),
    },
    "ties": {
        "most": (1, MOST_TIES),
        "chat": {**dict.fromkeys(("trust", "familiarity", "social", "base"), _SHARE), "cooldown": (1, 1440)},
        "diminish": (1, 1000), "meal": {**_TIE, "social": _SHARE}, "help": _TIE, "conflict": _TIE, "rebuff": _TIE,
        "meeting": _TIE, "decay_every": (1, 10_000),
        "decay": dict.fromkeys(("trust", "familiarity", "rivalry"), _SHARE), "avoid_at": _SHARE,
    },
    "scheduler": {
        "most_at_once": (0, 6), "cooldown": _TICKS, "per_resident": _TICKS, "bucket": (1, 100),
        "bucket_refill": (1, 1_000_000),
    },
    "rewards": {
        "alive": _SHARE, "deficit": (0.0, 10.0), "wage": (0.0, 10.0), "punctual": _SHARE, "chat": _SHARE,
        "avoid": _SHARE, "shaping": (0.0, 10.0), "gamma": (0.5, 1.0), "squash": (0.001, 10.0),
        "terminal": dict.fromkeys(CAUSES, (-100.0, 0.0)), "no_positive_before_exit": (0, 200), "needs_first": _SHARE,
    },
}  # fmt: skip
OPTIONAL = {"ties.meal": {"rivalry"}, "ties.conflict": {"familiarity"}, "ties.rebuff": {"trust"}}
TOP = ("schema", "name", "ticks_per_day", "residents", "stages", "map", "venue", "needs", "items", "prices",
       "affordance", "stock", "job", "trouble", "profile", *TABLES)  # fmt: skip
EXTRA = ("personalities", "talk", "hooks")  # may be left out: what they say is in the others in the end


class _Check:
    """One walk over the rules that writes down every fault."""

    def __init__(self, values: Mapping[str, Any], importer: Importer | None = None) -> None:
        self.values, self.faults = values, []  # type: Mapping[str, Any], list[RuleFault]
        self.hooks: dict[str, Any] = {}
        self._importer = importer

    def bad(self, where: str, why: str, remedy: str) -> None:
        self.faults.append(RuleFault(where=where, why=why, remedy=remedy))

    def all(self, unlocked: Sequence[str] | None) -> Grid | None:
        faulty = len(self.faults)
        for name in TOP:
            if name not in self.values:
                self.bad(name, "is missing", "see the default rules for what belongs there")
        for name in self.values:
            if name not in TOP:
                self.bad(name, "is unknown", f"use {', '.join((*TOP, *EXTRA))}")
        if len(self.faults) > faulty:
            return None
        if self.values["schema"] != SCHEMA:
            self.bad("schema", f"is {self.values['schema']!r}", f"this version reads {SCHEMA}")
        if not self.kinds():
            return None
        self.number("ticks_per_day", self.values["ticks_per_day"], (24, 100_000), whole=True)
        self.number("residents", self.values["residents"], (1, MOST_RESIDENTS), whole=True)
        for name, shape in TABLES.items():
            self.table(name, self.values[name], shape)
        self.stages(unlocked)
        self.needs()
        self.entries()
        grid = self.map()
        if not self.faults and self.values["lifecycle"]["slots"] < self.values["residents"]:
            slots, residents = self.values["lifecycle"]["slots"], self.values["residents"]
            self.bad("lifecycle.slots", f"{slots} for {residents} residents", "give each resident one at least")
        if grid is not None and not self.faults:
            self.reach(grid)
            self.economy()
        return grid

    def kinds(self) -> bool:
        """What is of another kind altogether: nothing more can be asked of the rules before it is put right."""
        before = len(self.faults)
        if type(self.values["ticks_per_day"]) is not int:
            self.number("ticks_per_day", self.values["ticks_per_day"], (24, 100_000), whole=True)
        for name in ("stages", "map", "prices", "stock"):
            if not isinstance(self.values[name], Mapping):
                self.bad(name, f"{self.values[name]!r} is not a table", f"write it as [{name}]")
        if len(self.faults) > before:
            return False
        table, stages = self.values["map"], self.values["stages"]
        texts = {f"map.{key}": table.get(key, "") for key in ("walls", "doors", "ground", "entry", "rows")}
        for where, value in {"name": self.values["name"], **texts}.items():
            if not isinstance(value, str):
                self.bad(where, f"{value!r} is no text", "write it in quotes")
        objects = table.get("objects", {})
        if not isinstance(objects, Mapping) or not all(isinstance(kind, str) for kind in objects.values()):
            self.bad("map.objects", f"{objects!r} is no table of names", 'write it like { b = "bed" }')
        for key in ("order", "on"):
            self.names(f"stages.{key}", stages.get(key, []))
        return len(self.faults) == before

    def names(self, where: str, value: Any) -> bool:
        if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
            return True
        self.bad(where, f"{value!r} is no list of names", 'write it like ["one", "other"]')
        return False

    # Values ----------------------------------------------------------------------------------------------------------

    def number(self, where: str, value: Any, bounds: Range, *, whole: bool = False) -> bool:
        kinds = (int,) if whole or all(isinstance(end, int) for end in bounds) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            kind = "a whole number" if kinds == (int,) else "a number"
            self.bad(where, f"{value!r} is not {kind}", f"give one from {bounds[0]:g} to {bounds[1]:g}")
            return False
        if not bounds[0] <= value <= bounds[1]:
            self.bad(where, f"{value!r} is out of range", f"give one from {bounds[0]:g} to {bounds[1]:g}")
            return False
        return True

    def table(self, where: str, value: Any, shape: Mapping[str, Any], *, partial: bool = False) -> None:
        if not isinstance(value, Mapping):
            self.bad(where, f"{value!r} is not a table", f"give {', '.join(shape)}")
            return
        for key in value:
            if key not in shape:
                self.bad(f"{where}.{key}", "is unknown", f"use {', '.join(shape)}")
        left_out = OPTIONAL.get(where, set())
        for key, kind in shape.items():
            if key not in value:
                if not partial and key not in left_out and not where.startswith(("ties.help", "ties.meeting")):
                    self.bad(f"{where}.{key}", "is missing", "give it")
            elif isinstance(kind, Mapping):
                self.table(f"{where}.{key}", value[key], kind, partial=key in ("starter_items",))
            elif kind == "span":
                self.span(f"{where}.{key}", value[key])
            else:
                self.number(f"{where}.{key}", value[key], kind)

    def span(self, where: str, value: Any) -> None:
        is_pair = isinstance(value, list) and len(value) == 2 and all(type(end) is int for end in value)
        if not is_pair or not 1 <= value[0] <= value[1]:
            self.bad(where, f"{value!r} is no span", "give [least, most] in ticks, least at least 1")

    def name(self, where: str, value: Any, known: Sequence[str]) -> bool:
        if value not in known:
            self.bad(where, f"{value!r} is unknown", f"use {', '.join(known)}")
            return False
        return True

    def listed(self, kind: str) -> list[tuple[str, Mapping[str, Any]]]:
        """The entries of a list of tables, with their places; ids are there and unique."""
        found, seen, entries = [], set(), self.values[kind]
        if not isinstance(entries, list) or not entries:
            self.bad(kind, "has no entries", f"give at least one [[{kind}]]")
            return []
        if len(entries) > MOST_ENTRIES.get(kind, len(entries)):
            self.bad(kind, f"has {len(entries)} entries", f"give at most {MOST_ENTRIES[kind]}")
        for place, entry in enumerate(entries):
            where = f"{kind}[{place}]"
            if not isinstance(entry, Mapping) or not isinstance(entry.get("id"), str) or not entry["id"].strip():
                self.bad(where, "has no id", "give it a name of its own")
                continue
            if entry["id"] in seen:
                self.bad(f"{where} {entry['id']}", "is there twice", "give each a name of its own")
            seen.add(entry["id"])
            found.append((f"{where} {entry['id']}", entry))
        return found

    def keys(self, where: str, entry: Mapping[str, Any], needed: Sequence[str], optional: Sequence[str] = ()) -> bool:
        missing = [key for key in needed if key not in entry]
        for key in missing:
            self.bad(f"{where}: {key}", "is missing", "give it")
        for key in entry:
            if key not in (*needed, *optional):
                self.bad(f"{where}: {key}", "is unknown", f"use {', '.join((*needed, *optional))}")
        return not missing

    # Parts -----------------------------------------------------------------------------------------------------------

    def stages(self, unlocked: Sequence[str] | None) -> None:
        table = self.values["stages"]
        if not isinstance(table, Mapping) or not self.keys("stages", table, ("order", "on", "green_windows")):
            return
        order, on = table["order"], table["on"]
        if sorted(order) != sorted(STAGES):
            self.bad("stages.order", f"{order!r} is not all of them", f"give {', '.join(STAGES)}")
            return
        for stage in on:
            if not self.name("stages.on", stage, order):
                continue
            before = order[: order.index(stage)]
            if skipped := [one for one in before if one not in on]:
                self.bad(f"stages.on: {stage}", f"comes after {skipped[0]}, which is off", f"switch {skipped[0]} on")
            if unlocked is not None and stage not in unlocked:
                windows = table["green_windows"]
                self.bad(f"stages.on: {stage}", f"its stage before has not had {windows} green windows",
                         "leave it off, or override it by name with a reason")  # fmt: skip
        self.number("stages.green_windows", table["green_windows"], (1, 10))

    def needs(self) -> None:
        self.table("needs", self.values["needs"], {n: {"decay": (0.0, 50.0), "weight": (0.0, 10.0), "low": _SHARE}
                                                   for n in NEEDS})  # fmt: skip
        self.table("items", self.values["items"], dict.fromkeys(ITEMS, (0, 1000)))
        prices = self.values["prices"]
        if not isinstance(prices, Mapping):
            self.bad("prices", f"{prices!r} is not a table", "give name = price")
            return
        for name, price in prices.items():
            self.number(f"prices.{name}", price, (0.0, 1e4))

    def entries(self) -> None:
        self._venues()
        self._affordances()
        self._jobs()
        for where, entry in self.listed("trouble"):
            self.name(f"{where}: id", entry["id"], TROUBLES)
            if self.keys(where, entry, ("id", "per_day", "duration", "cooldown"), ("factor",)):
                self.number(f"{where}: per_day", entry["per_day"], (0.0, 24.0))
                self.span(f"{where}: duration", entry["duration"])
                self.number(f"{where}: cooldown", entry["cooldown"], (0, 1_000_000))
            self.number(f"{where}: factor", entry.get("factor", 1.0), (0.1, 10.0))
        shares = 0.0
        for where, entry in self.listed("profile"):
            if self.keys(where, entry, ("id", "share", "traits"), ("decay",)):
                shares += entry["share"] if self.number(f"{where}: share", entry["share"], _SHARE) else 0.0
                self.table(f"{where}: traits", entry["traits"], dict.fromkeys(TRAITS, (-1.0, 1.0)))
                self.table(f"{where}: decay", entry.get("decay", {}), dict.fromkeys(NEEDS, (0.1, 10.0)), partial=True)
        if not 0.999 <= shares <= 1.001:
            self.bad("profile: share", f"the shares sum to {shares:g}", "make them sum to 1")

    def _venues(self) -> None:
        for where, entry in self.listed("venue"):
            if self.keys(where, entry, ("id", "kind", "area")):
                self.name(f"{where}: kind", entry["kind"], VENUES)
                area = entry["area"]
                if not (isinstance(area, list) and len(area) == 4 and all(type(end) is int for end in area)):
                    self.bad(f"{where}: area", f"{area!r} is no rectangle", "give [left, top, right, bottom]")

    def _affordances(self) -> None:
        types, length = self._types(), 0
        if len(types) > MOST_TYPES:
            self.bad("map.objects", f"has {len(types)} types", f"give at most {MOST_TYPES}")
        needed = ("id", "object", "duration", "effects")
        optional = ("per_tick", "until_full", "price", "takes", "gives", "uses", "when", "hooks")
        for where, entry in self.listed("affordance"):
            if not self.keys(where, entry, needed, optional):
                continue
            known = self.name(f"{where}: object", entry["object"], types)
            self.number(f"{where}: duration", entry["duration"], (1, 10_000))
            self.table(f"{where}: effects", entry["effects"], dict.fromkeys(NEEDS, (-1.0, 2.0)), partial=True)
            for part in ("takes", "gives"):
                self.table(f"{where}: {part}", entry.get(part, {}), dict.fromkeys(ITEMS, (0, 100)), partial=True)
            self.number(f"{where}: uses", entry.get("uses", 0), (0, 100))
            if "price" in entry:
                self.name(f"{where}: price", entry["price"], list(self.values["prices"]))
            if not isinstance(entry.get("per_tick", False), bool):
                self.bad(f"{where}: per_tick", f"{entry['per_tick']!r} is not true or false", "write true or false")
            if "until_full" in entry:
                self.name(f"{where}: until_full", entry["until_full"], NEEDS)
            if known and entry.get("uses") and entry["object"] not in self.values["stock"]:
                self.bad(f"{where}: uses", f"{entry['object']} has no stock", f"give [stock] {entry['object']}")
            self._hooks(where, entry.get("hooks", []))
            try:
                if "when" in entry:
                    length += len(compile_condition(str(entry["when"]), NAMES))
            except Bad as error:
                self.bad(f"{where}: when", str(error), 'write it like "power and meal < 4"')
        if length > MOST_CODE:
            self.bad("affordance: when", "the conditions are too long together", "ask for less")
        day = self.values["ticks_per_day"]
        for name, entry in self.values["stock"].items():
            self.name(f"stock.{name}", name, types)
            self.table(f"stock.{name}", entry, {"most": (0, 30_000), "start": (0, 30_000), "hour": (0, 23)})
        if day % 24:
            self.bad("ticks_per_day", f"{day} cannot be divided into hours", "take a multiple of 24")

    def _hooks(self, where: str, given: Any) -> None:
        by_stage = given if isinstance(given, Mapping) else {"after": given}
        for stage, names in by_stage.items():
            part = f"hooks.{stage}" if isinstance(given, Mapping) else "hooks"
            if stage not in HOOK_STAGES:
                self.bad(f"{where}: {part}", "is unknown", f"use {', '.join(HOOK_STAGES)}")
                continue
            for name in names if self.names(f"{where}: {part}", names) else ():
                try:
                    self.hooks[name] = find(name, stage, self._importer)
                except NoHook as error:
                    self.bad(f"{where}: {part}", error.why, error.remedy)

    def _types(self) -> list[str]:
        table = self.values["map"]
        objects = table.get("objects") if isinstance(table, Mapping) else None
        return list(dict.fromkeys(objects.values())) if isinstance(objects, Mapping) else []

    def _jobs(self) -> None:
        entries = self.values["venue"] if isinstance(self.values["venue"], list) else []
        venues = [str(entry.get("id")) for entry in entries if isinstance(entry, Mapping)]
        day = self.values["ticks_per_day"]
        for where, entry in self.listed("job"):
            if not self.keys(where, entry, ("id", "venue", "start", "end", "wage", "slots")):
                continue
            self.name(f"{where}: venue", entry["venue"], venues)
            ends = [self.number(f"{where}: {end}", entry[end], (0, day)) for end in ("start", "end")]
            if all(ends) and not entry["start"] < entry["end"]:
                self.bad(f"{where}: end", f"{entry['end']} is not after the start {entry['start']}", "let it end later")
            self.number(f"{where}: wage", entry["wage"], (0.0, 10.0))
            self.number(f"{where}: slots", entry["slots"], (1, MOST_RESIDENTS))

    def map(self) -> Grid | None:
        table = self.values["map"]
        needed = ("walls", "doors", "ground", "entry", "objects", "rows")
        if not isinstance(table, Mapping) or not self.keys("map", table, needed):
            return None
        rows = table["rows"].strip("\n").splitlines()
        if not rows or len({len(row) for row in rows}) != 1:
            self.bad("map.rows", "the rows are not all of one length", "draw a rectangle")
            return None
        if not (3 <= len(rows) <= 250 and 3 <= len(rows[0]) <= 250):
            self.bad("map.rows", f"is {len(rows[0])} × {len(rows)}", "draw from 3 × 3 up to 250 × 250")
            return None
        known = table["walls"] + table["doors"] + table["ground"] + "".join(table["objects"])
        for y, row in enumerate(rows):
            for x, glyph in enumerate(row):
                if glyph not in known:
                    self.bad(f"map.rows: row {y}, column {x}", f"{glyph!r} is unknown", f"use {known}")
        if self.faults:
            return None
        grid = read(rows, **{key: table[key] for key in needed[:-1]})
        if not grid.entries:
            self.bad("map.entry", f"{table['entry']!r} is nowhere on the edge", "let a road leave the town")
        if len(grid.objects) > MOST_OBJECTS:
            self.bad("map.rows", f"has {len(grid.objects)} objects", f"draw at most {MOST_OBJECTS}")
        return grid

    # What no resident could live by ----------------------------------------------------------------------------------

    def reach(self, grid: Grid) -> None:
        from_entry = distances(grid, grid.entries)
        for kind, tile in grid.objects:
            if not any(from_entry[near] < FAR for near in grid.beside(tile)):
                x, y = tile % grid.width, tile // grid.width
                self.bad(f"map.rows: {kind} at row {y}, column {x}", "cannot be reached", "open a way to it")
        for where, entry in self.listed("venue"):
            left, top, right, bottom = entry["area"]
            if not (0 <= left <= right < grid.width and 0 <= top <= bottom < grid.height):
                self.bad(f"{where}: area", "is not on the map", f"stay within {grid.width} × {grid.height}")
                continue
            tiles = [y * grid.width + x for y in range(top, bottom + 1) for x in range(left, right + 1)]
            if not any(from_entry[tile] < FAR for tile in tiles):
                self.bad(where, "cannot be reached", "open a way to it")
        have = {kind for kind, _ in grid.objects}
        for where, entry in self.listed("affordance"):
            if entry["object"] not in have:
                self.bad(f"{where}: object", f"there is no {entry['object']} on the map", "draw one")
        beds = sum(kind == "bed" for kind, _ in grid.objects)
        if beds < self.values["residents"]:
            self.bad("residents", f"{self.values['residents']} for {beds} beds", "draw more beds, or take fewer in")

    def economy(self) -> None:
        """Wages of a day against what a day costs: rent, meals cooked at home, showers."""
        table, prices = self.values["economy"], self.values["prices"]
        priced = {entry["id"]: prices[entry["price"]] for entry in self.values["affordance"] if "price" in entry}
        meal = min((priced[name] for name in ("buy", "cafe_meal") if name in priced), default=0.0)
        basket = table["rent"] + table["meals_a_day"] * meal + table["showers_a_day"] * priced.get("shower", 0.0)
        for where, entry in self.listed("job"):
            wages = (entry["end"] - entry["start"]) * entry["wage"]
            if wages < table["slack"] * basket - 1e-9:
                self.bad(f"{where}: wage", f"earns {wages:.2f} a day and a day costs {basket:.2f}",
                         f"pay at least {table['slack'] * basket / (entry['end'] - entry['start']):.5f}")  # fmt: skip


STAGES = ("needs", "work", "ties", "chat_rewards", "avoidance_rewards", "trouble", "personalities")


LOAD, CONST, LT, LE, GT, GE, EQ, NE, AND, OR, NOT = range(11)
COMPARE = {ast.Lt: LT, ast.LtE: LE, ast.Gt: GT, ast.GtE: GE, ast.Eq: EQ, ast.NotEq: NE}
DEPTH = 16  # of the stack


class Bad(ValueError):
    """Why an expression is refused."""


def compile_condition(text: str, names: Mapping[str, tuple[int, int]]) -> list[tuple[int, int]]:
    """The operations in order; `names` says of each name its place and how many units its 1 is (0: it is yes or no)."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise Bad(f"is no expression: {error.msg}") from None
    code: list[tuple[int, int]] = []
    _put(tree, names, code)
    if _deepest(code) > DEPTH:
        raise Bad("is nested too deeply")
    return code


def _put(node: ast.expr, names: Mapping[str, tuple[int, int]], code: list[tuple[int, int]]) -> None:
    if isinstance(node, ast.BoolOp):
        for place, value in enumerate(node.values):
            _put(value, names, code)
            if place:
                code.append((AND if isinstance(node.op, ast.And) else OR, 0))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        _put(node.operand, names, code)
        code.append((NOT, 0))
    elif isinstance(node, ast.Name):
        place, unit = _known(node.id, names)
        if unit:
            raise Bad(f"{node.id} is a number: compare it with one")
        code.append((LOAD, place))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARE:
        left, right = node.left, node.comparators[0]
        unit = _unit(left, names) or _unit(right, names)
        if not unit:
            raise Bad("compares no number that is known")
        code += [_side(side, names, unit) for side in (left, right)]
        code.append((COMPARE[type(node.ops[0])], 0))
    else:
        raise Bad(f"{ast.unparse(node)!r} is not allowed; use names, numbers, < <= > >= == !=, and, or, not")


def _known(name: str, names: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    if name not in names:
        raise Bad(f"{name} is unknown; there are {', '.join(sorted(names))}")
    return names[name]


def _unit(node: ast.expr, names: Mapping[str, tuple[int, int]]) -> int:
    return _known(node.id, names)[1] if isinstance(node, ast.Name) else 0


def _side(node: ast.expr, names: Mapping[str, tuple[int, int]], unit: int) -> tuple[int, int]:
    if isinstance(node, ast.Name):
        place, own = _known(node.id, names)
        if own != unit:
            raise Bad(f"{node.id} is measured otherwise than what it is compared with")
        return LOAD, place
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return CONST, round(node.value * unit)  # type: ignore[operator, arg-type]
    raise Bad(f"{ast.unparse(node)!r} cannot be compared: use a name or a number")


def _deepest(code: list[tuple[int, int]]) -> int:
    depth = deepest = 0
    for operation, _ in code:
        depth += 1 if operation in (LOAD, CONST) else 0 if operation == NOT else -1
        deepest = max(deepest, depth)
    return deepest


@jit
def holds(code: NDArray[np.int64], first: int, last: int, values: NDArray[np.int64], stack: NDArray[np.int64]) -> bool:
    """Whether the condition that code[first:last] spells is true of the values; an empty one is."""
    if first == last:
        return True
    top = -1
    for place in range(first, last):
        operation, operand = code[place, 0], code[place, 1]
        if operation == LOAD:
            top += 1
            stack[top] = values[operand]
        elif operation == CONST:
            top += 1
            stack[top] = operand
        elif operation == NOT:
            stack[top] = 1 - min(stack[top], 1)
        else:
            a, b = stack[top - 1], stack[top]
            top -= 1
            if operation == LT:
                stack[top] = a < b
            elif operation == LE:
                stack[top] = a <= b
            elif operation == GT:
                stack[top] = a > b
            elif operation == GE:
                stack[top] = a >= b
            elif operation == EQ:
                stack[top] = a == b
            elif operation == NE:
                stack[top] = a != b
            elif operation == AND:
                stack[top] = min(a, 1) & min(b, 1)
            else:
                stack[top] = min(a, 1) | min(b, 1)
    return bool(stack[0] != 0)
