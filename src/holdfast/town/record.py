"""Snapshots of a town, and the script of a replay.

A snapshot is the whole state with the hashes that tell whether it fits. A replay is a seed and the commands given; all
else follows from them. What viewers see is in `frames`.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import descr_to_dtype, dtype_to_descr
from numpy.typing import NDArray

from holdfast.town import state as states
from holdfast.town.rules import Rules
from holdfast.town.state import TownState

SNAPSHOT, REPLAY = 1, 1  # versions of the two formats
LARGEST = 2**30  # bytes of a snapshot, unpacked
ABOUT = {"format": int, "schema": int, "rules": str, "state": str, "tick": int, "notes": dict, "arrays": dict}
Arrays = dict[str, NDArray[Any]]
Migration = Callable[[Arrays], Arrays]
MIGRATIONS: Mapping[int, Migration] = {}  # from this version of the state to the next


class BadFile(ValueError):
    """A file that does not fit; it says what of it, why, and what would."""

    def __init__(self, what: str, why: str, remedy: str) -> None:
        super().__init__(f"{what}: {why}; {remedy}")
        self.what, self.why, self.remedy = what, why, remedy


# Snapshots ----------------------------------------------------------------------------------------------------------


def save(path: Path, state: TownState, rules: Rules, notes: Mapping[str, Any] | None = None) -> str:
    """Write everything, or nothing; the hash of the state."""
    name = state.sha256()
    about = {
        "format": SNAPSHOT,
        "schema": states.SCHEMA,
        "rules": rules.sha256,
        "state": name,
        "tick": int(state.town["tick"][0]),
        "notes": dict(notes or {}),
        "arrays": {name: [list(array.shape), dtype_to_descr(array.dtype)] for name, array in state.arrays.items()},
    }
    packed = io.BytesIO()
    # As bytes: numpy would lose what lies between the fields of a record, and the hash is of every byte.
    raw = {name: np.frombuffer(array.tobytes(), np.uint8) for name, array in state.arrays.items()}
    np.savez_compressed(packed, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **raw)  # type: ignore[arg-type]
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        file.write(packed.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    return name


def load(
    path: Path,
    rules: Rules,
    *,
    migrations: Mapping[int, Migration] = MIGRATIONS,
    schema: int = states.SCHEMA,
) -> tuple[TownState, dict[str, Any]]:
    """The state and the notes; refused by name where rules, schema, records or content do not fit."""
    about, arrays = _read(path)
    if about["rules"] != rules.sha256:
        why = f"is of a town with rules {about['rules'][:12]}, and these are {rules.sha256[:12]}"
        raise BadFile(f"{path}: rules", why, "give the rules that it was made with")
    if about["schema"] > schema:
        raise BadFile(f"{path}: schema {about['schema']}", f"is newer than {schema}", "update the program")
    for version in range(about["schema"], schema):
        if version not in migrations:
            raise BadFile(f"{path}: schema {about['schema']}", f"nothing leads from {version} on", "make it anew")
        arrays = migrations[version](arrays)
    blank = states.blank(1, 1, 1, 1, 1).arrays
    for name, like in blank.items():
        if name not in arrays:
            raise BadFile(f"{path}: {name}", "is missing", "the file is not whole: take another")
        if arrays[name].dtype != like.dtype:
            raise BadFile(f"{path}: {name}", _difference(arrays[name].dtype, like.dtype), "make it anew")
        if arrays[name].ndim != like.ndim:
            raise BadFile(f"{path}: {name}", f"has {arrays[name].ndim} dimensions and not {like.ndim}", "make it anew")
        arrays[name] = arrays[name].view(like.dtype)  # a file does not tell of alignment
    state = TownState(**{name: arrays[name] for name in blank})
    if about["schema"] == schema and state.sha256() != about["state"]:
        raise BadFile(f"{path}: state", "its hash is not what it says", "the file is damaged: take another")
    return state, dict(about["notes"])


def inspect(path: Path) -> dict[str, Any]:
    """What a snapshot says about itself, whatever the rules."""
    about, arrays = _read(path)
    people = arrays["people"]
    payload = {"worlds": int(people.shape[0]), "residents": int(people.shape[1]), "alive": int(people["alive"].sum())}
    return {key: value for key, value in about.items() if key not in ("notes", "arrays")} | payload


def _read(path: Path) -> tuple[dict[str, Any], Arrays]:
    try:
        _check_sizes(path)
        with np.load(path, allow_pickle=False) as file:
            raw = {name: file[name] for name in file.files}
        about = json.loads(raw.pop("about").tobytes())
        if about["format"] > SNAPSHOT:
            raise BadFile(f"{path}: format {about['format']}", f"is newer than {SNAPSHOT}", "update the program")
        _check_types(about, ABOUT)
        arrays = {}
        for name, data in raw.items():
            shape, fields = about["arrays"][name]
            arrays[name] = data.view(descr_to_dtype(_tuples(fields))).reshape(shape)
        if arrays["people"].ndim != 2 or "alive" not in (arrays["people"].dtype.names or ()):
            raise ValueError("people")
    except BadFile:
        raise
    except OSError as error:
        raise BadFile(str(path), error.strerror or str(error), "name a snapshot that can be read") from error
    except Exception as error:  # zip, deflate, numpy and JSON have a dozen ways to refuse bytes that are none of theirs
        raise BadFile(str(path), "is not a snapshot of a town", "name a file that `town run --save` wrote") from error
    return about, arrays


def _check_types(told: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """TypeError where something is not of its kind, KeyError where it is missing."""
    if wrong := [name for name, kind in kinds.items() if type(told[name]) is not kind]:
        raise TypeError(f"{', '.join(wrong)}: of another type")


def _check_sizes(path: Path) -> None:
    """Refuses a file that would fill the memory: a kilobyte can unpack to a gigabyte, and an array say any shape."""
    left = LARGEST
    with zipfile.ZipFile(path) as packed:
        for info in packed.infolist():
            with packed.open(info) as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, kind = read(file)
            left -= info.file_size
            if left < 0 or math.prod(shape) * kind.itemsize > info.file_size:
                raise BadFile(str(path), f"unpacks to more than {LARGEST} bytes", "name a file that `town run` wrote")


def _tuples(fields: Any) -> Any:
    """JSON has no tuples, and a description of a record needs them."""
    if isinstance(fields, str):
        return fields
    return [tuple(tuple(part) if isinstance(part, list) else part for part in field) for field in fields]


def _difference(found: np.dtype[Any], wanted: np.dtype[Any]) -> str:
    have: Mapping[str, Any] = found.fields or {}
    need: Mapping[str, Any] = wanted.fields or {}
    missing, more = sorted(set(need) - set(have)), sorted(set(have) - set(need))
    changed = sorted(one for one in set(have) & set(need) if have[one] != need[one])
    return f"has other records (missing {missing}, unknown {more}, changed {changed})"


# Replays ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAtTick:
    """A command that was carried out before the tick of this number."""

    tick: int
    name: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayScript:
    """All that a run depends on besides its rules."""

    seed: int
    rules: str
    commands: tuple[CommandAtTick, ...] = ()
    ticks: int = 0
    state: str | None = None  # the hash after the last tick, where the run ended well


def write_script(path: Path, script: ReplayScript) -> None:
    lines: list[dict[str, Any]] = [{"replay": REPLAY, "seed": script.seed, "rules": script.rules}]
    lines += [{"tick": command.tick, "name": command.name, "args": dict(command.args)} for command in script.commands]
    lines.append({"ticks": script.ticks, "state": script.state})
    beside = path.with_name(path.name + ".part")
    beside.write_text("".join(json.dumps(line) + "\n" for line in lines))
    beside.replace(path)


def read_script(path: Path) -> ReplayScript:
    try:
        head, *middle, end = (json.loads(line) for line in path.read_text().splitlines())
        if head["replay"] > REPLAY:
            raise BadFile(f"{path}: replay {head['replay']}", f"is newer than {REPLAY}", "update the program")
        _check_types(head, {"seed": int, "rules": str})
        for one in middle:
            _check_types(one, {"tick": int, "name": str, "args": dict})
        commands = tuple(CommandAtTick(tick=one["tick"], name=one["name"], args=one["args"]) for one in middle)
        if [command.tick for command in commands] != sorted(command.tick for command in commands):
            raise BadFile(str(path), "its commands are not in order", "write them by tick")
        _check_types(end, {"ticks": int, "state": type(None) if end["state"] is None else str})
        return ReplayScript(
            seed=head["seed"], rules=head["rules"], commands=commands, ticks=end["ticks"], state=end["state"]
        )
    except BadFile:
        raise
    except OSError as error:
        raise BadFile(str(path), error.strerror or str(error), "name a replay that can be read") from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise BadFile(str(path), "is not a replay of a town", "name a file that `town run --replay` wrote") from error
