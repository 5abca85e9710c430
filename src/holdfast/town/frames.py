"""What a viewer sees of a town: key frames, deltas, and recordings that can be searched by tick.

A viewer who has missed a frame waits for the next key frame. Looking changes nothing, and names leave only through the
pseudonymizer.
"""

from __future__ import annotations

import hmac
import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.town import talk
from holdfast.town.actions import names as action_names
from holdfast.town.kernel import EVENTS, KINDS
from holdfast.town.record import BadFile
from holdfast.town.rules import NEEDS, TROUBLES, UNIT, Rules
from holdfast.town.state import SHIFTS, TownState

FRAMES = 1  # version of the format

# Names --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pseudonymizer:
    """What hides who is who: with a key, other names and another order of places; without one, nothing.

    A new key for each run, and nothing seen in one run can be found again in another.
    """

    key: bytes | None = None

    def name(self, slot: int) -> str:
        if self.key is None:
            return talk.resident(slot)
        return "R-" + hmac.digest(self.key, f"name:{slot}".encode(), "sha256").hex()[:6]

    def order(self, residents: int) -> list[int]:
        """Which place is shown first, second, …"""
        if self.key is None:
            return list(range(residents))
        key = self.key
        return sorted(range(residents), key=lambda seat: hmac.digest(key, f"seat:{seat}".encode(), "sha256"))


# Frames -------------------------------------------------------------------------------------------------------------

COLUMNS = ("at", "doing", "shift", "job", "purse", "name", "nature")  # of a resident, one value each
WORKING, WAITING, WALKING = -2, -3, -4  # of `doing`; -1: nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What a viewer sees of a world at one moment: plain lists, by shown place."""

    tick: int
    at: list[int]  # tile; -1: away
    needs: list[int]  # 0 to 255, four of a resident
    doing: list[int]
    shift: list[int]
    job: list[int]
    purse: list[int]  # tenths of a meal
    name: list[str]
    nature: list[int]
    until: list[int]  # of each trouble
    ties: list[list[int]] = field(default_factory=list)  # [place, place, trust, familiarity, rivalry] in hundredths


def picture(rules: Rules, state: TownState, veil: Pseudonymizer, *, with_ties: bool = True, world: int = 0) -> Picture:
    people, town = state.people[world], state.town[world]
    order = veil.order(len(people))
    shown = people[order]
    alive = shown["alive"] == 1
    uses = action_names(rules)
    step = shown["last_action"]
    is_working = (step == uses.index("work")) & (shown["success"] == 1)
    is_walking = (step >= 1) & (step < uses.index(f"use:{rules['affordance'][0]['id']}")) & (shown["success"] == 1)
    doing = np.where(is_working, WORKING, np.where(is_walking, WALKING, -1))
    doing = np.where(shown["queue"] >= 0, WAITING, doing)
    doing = np.where(shown["doing"] >= 0, shown["doing"], doing)
    return Picture(
        tick=int(town["tick"]),
        at=np.where(alive, shown["tile"], -1).tolist(),
        needs=(shown["need"].astype(np.int64) * 255 // UNIT * alive[:, None]).ravel().tolist(),
        doing=np.where(alive, doing, -1).tolist(),
        shift=shown["shift"].tolist(),
        job=shown["job"].tolist(),
        purse=(shown["money"] // 1000).tolist(),
        name=[veil.name(int(slot)) for slot in shown["slot"]],
        nature=shown["profile"].tolist(),
        until=town["until"].tolist(),
        ties=relationship_pairs(people, order) if with_ties else [],
    )


def relationship_pairs(people: NDArray[Any], order: Sequence[int]) -> list[list[int]]:
    """The ties of every pair, each once, as its first member feels it."""
    place = np.argsort(order)
    to = people["tie_to"].astype(np.int64)
    seat, k = np.nonzero((to >= 0) & (people["alive"] == 1)[:, None])
    other = to[seat, k]
    is_first = (seat < other) | ~(to[other] == seat[:, None]).any(axis=1)
    seat, k, other = seat[is_first], k[is_first], other[is_first]
    names = ("tie_trust", "tie_familiarity", "tie_rivalry")
    parts = [people[name][seat, k].astype(np.int64) * 100 // UNIT for name in names]
    pairs: list[list[int]] = np.stack([place[seat], place[other], *parts], axis=1).tolist()
    return sorted(pairs)


Frame = dict[str, Any]


def key_frame(now: Picture, seq: int, **more: Any) -> Frame:
    """All there is to see."""
    columns = {name: getattr(now, name) for name in ("tick", *COLUMNS, "needs", "until", "ties")}
    return {"schema": FRAMES, "seq": seq, "key": True} | columns | _given(more)


def delta(before: Picture, now: Picture, seq: int, *, with_ties: bool = False, **more: Any) -> Frame:
    """What has changed: place and value, one after the other."""
    frame: Frame = {"schema": FRAMES, "seq": seq, "key": False, "tick": now.tick}
    for name in (*COLUMNS, "needs"):
        pairs = zip(getattr(before, name), getattr(now, name), strict=True)
        changed = [part for place, (old, new) in enumerate(pairs) if old != new for part in (place, new)]
        if changed:
            frame[name] = changed
    if now.until != before.until:
        frame["until"] = now.until
    if with_ties:
        frame["ties"] = now.ties
    return frame | _given(more)


def _given(more: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in more.items() if value}


def fold(before: Frame | None, frame: Frame) -> Frame:
    """What is seen after one more frame. A key frame needs nothing before it; a delta only follows its own."""
    if frame["schema"] > FRAMES:
        raise BadFile(
            f"frame {frame['seq']}", f"is of schema {frame['schema']}, newer than {FRAMES}", "update the viewer"
        )
    if frame["key"]:
        return dict(frame)
    if before is None or frame["seq"] != before["seq"] + 1:
        last = "nothing" if before is None else f"frame {before['seq']}"
        raise BadFile(f"frame {frame['seq']}", f"follows {last}", "wait for the next key frame")
    now = dict(before) | {"seq": frame["seq"], "tick": frame["tick"], "key": False}
    for name in (*COLUMNS, "needs"):
        values = list(now[name])
        for place, value in zip(frame.get(name, ())[::2], frame.get(name, ())[1::2], strict=True):
            values[place] = value
        now[name] = values
    for name in ("events", "lines", "says"):  # of this frame alone
        now.pop(name, None)
    return now | {name: frame[name] for name in ("until", "ties", "kpis", "events", "lines", "says") if name in frame}


def legend(rules: Rules, **more: Any) -> dict[str, Any]:
    """What the numbers of frames mean, and the map they are drawn on: sent once."""
    grid = rules.grid
    return {
        "schema": FRAMES,
        "town": rules["name"],
        "rules": rules.sha256,
        "day": rules["ticks_per_day"],
        "width": grid.width,
        "height": grid.height,
        "glyphs": grid.glyphs,
        "legend": {key: rules["map"][key] for key in ("walls", "doors", "ground", "entry", "objects")},
        "venues": [{"id": one["id"], "kind": one["kind"], "area": one["area"]} for one in rules["venue"]],
        "needs": list(NEEDS),
        "doing": [one["id"] for one in rules["affordance"]],
        "jobs": [one["id"] for one in rules["job"]],
        "natures": [one["id"] for one in rules["profile"]],
        "shifts": list(SHIFTS),
        "troubles": list(TROUBLES),
        "kinds": list(KINDS),
        "avoid_at": round(100 * rules["ties"]["avoid_at"]),
    } | more


_INTS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
_MIXED: dict[str, Any] = {"type": "array", "items": {"type": ["integer", "string"]}}
SCHEMA: Mapping[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "A frame of the town",
    "type": "object",
    "required": ["schema", "seq", "key", "tick"],
    "properties": {
        "schema": {"const": FRAMES},
        "seq": {"type": "integer", "minimum": 0},
        "key": {"type": "boolean"},
        "tick": {"type": "integer", "minimum": 0},
        **{name: _MIXED if name == "name" else _INTS for name in (*COLUMNS, "needs", "until")},
        "ties": {"type": "array", "items": _INTS | {"minItems": 5, "maxItems": 5}},
        "events": {"type": "array", "items": _INTS | {"minItems": 5, "maxItems": 5}},  # tick, kind, a, b, value
        "says": {"type": "array", "items": _MIXED | {"minItems": 2, "maxItems": 2}},
        "lines": {"type": "array", "items": {"type": "object", "required": ["tick", "kind", "text", "a", "b"]}},
        "kpis": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
    },
    "additionalProperties": False,
}


def events_since(state: TownState, seen: int, world: int = 0) -> tuple[NDArray[Any], int]:
    """Events from number `seen` on, oldest first, and how many of them the ring no longer has."""
    count = int(state.town["events"][world])
    first = max(seen, count - EVENTS)
    return state.events[world][np.arange(first, count) % EVENTS], first - seen


# Recordings ---------------------------------------------------------------------------------------------------------


class Recording:
    """Frames in a file, one a line after the legend; any moment can be found again while it is still written to.

    A line that was cut off, as by a crash, ends the recording before it.
    """

    def __init__(self, path: Path, legend: Mapping[str, Any] | None = None) -> None:
        """To be written, where a legend is given, else to be read."""
        self.path = path
        self._keys: list[tuple[int, int]] = []  # tick and offset of each key frame
        self._end = 0
        try:
            self._file = path.open("w+b" if legend is not None else "rb", buffering=0)
        except OSError as error:
            raise BadFile(str(path), error.strerror or str(error), "name a file that can be opened") from error
        self.ticks = (0, 0)
        try:
            if legend is not None:
                self.legend = dict(legend)
                self._append(legend)
            else:
                self._scan()
        except BaseException:
            self.close()
            raise

    def _append(self, line: Mapping[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        self._file.write(data)
        self._end += len(data)

    def add(self, frame: Frame) -> None:
        if frame["key"]:
            self._keys.append((frame["tick"], self._end))
        elif not self._keys:
            raise BadFile("recording", "begins with a delta", "begin with a key frame")
        self._append(frame)
        self.ticks = (self._keys[0][0], frame["tick"])

    def _scan(self) -> None:
        try:
            with self.path.open("rb") as file:
                self.legend = json.loads(file.readline())
                if self.legend["schema"] > FRAMES:
                    why = f"is newer than {FRAMES}"
                    raise BadFile(f"{self.path}: schema {self.legend['schema']}", why, "update the program")
                offset = file.tell()
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    frame = json.loads(line)
                    if frame["key"]:
                        self._keys.append((frame["tick"], offset))
                    self.ticks = (self._keys[0][0], frame["tick"])
                    offset += len(line)
                self._end = offset
        except BadFile:
            raise
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise BadFile(str(self.path), "is not a recording of a town", "name a file of `--record`") from error

    def frames(self, tick: int, most: int = 600) -> Iterator[Frame]:
        """A key frame of this tick, made up of what was before it, and what follows, up to `most`."""
        start, last = self._before(tick), None
        given = 0
        for frame in self._read(start):
            if frame["tick"] <= tick or last is None:
                last = fold(last, frame)
                continue
            if given == 0:
                yield last | {"key": True}
                given = 1
            if given >= most:
                return
            yield frame
            given += 1
        if given == 0 and last is not None:
            yield last | {"key": True}

    def _before(self, tick: int) -> int:
        """Where the last key frame not after the tick begins."""
        place = bisect_right(self._keys, tick, key=lambda one: one[0]) - 1
        return self._keys[max(0, place)][1] if self._keys else self._end

    def _read(self, offset: int) -> Iterable[Frame]:
        rest, end = b"", self._end
        while offset < end:
            part = os.pread(self._file.fileno(), min(1 << 16, end - offset), offset)
            if not part:
                return
            offset += len(part)
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
