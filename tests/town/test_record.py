"""Snapshots and replays: what goes in comes out, and what does not fit is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.town import record
from holdfast.town.env import Env
from holdfast.town.record import BadFile, CommandAtTick, ReplayScript
from holdfast.town.rules import load


@pytest.fixture(scope="module")
def env() -> Env:
    return Env(load(override={"residents": 8}))


@pytest.fixture
def lived(env: Env) -> Env:
    env.reset(4)
    for _ in range(40):
        env.step(env.scripted())
    return env


# Snapshots ----------------------------------------------------------------------------------------------------------


def test_going_on_from_a_snapshot_is_going_on(lived: Env, tmp_path: Path) -> None:
    file = tmp_path / "town.npz"
    name = record.save(file, lived.state, lived.rules, {"x": [1, "two"]})
    for _ in range(60):
        lived.step(lived.scripted())
    end = lived.state.sha256()
    state, notes = record.load(file, lived.rules)
    assert state.sha256() == name and notes == {"x": [1, "two"]}
    lived.restore(state)
    for _ in range(60):
        lived.step(lived.scripted())
    assert lived.state.sha256() == end


def test_a_snapshot_says_what_it_is_of(lived: Env, tmp_path: Path) -> None:
    record.save(tmp_path / "a", lived.state, lived.rules)
    told = record.inspect(tmp_path / "a")
    assert (told["tick"], told["residents"], told["alive"], told["rules"]) == (40, 8, 8, lived.rules.sha256)


def test_a_snapshot_of_other_rules_is_refused(lived: Env, tmp_path: Path) -> None:
    record.save(tmp_path / "a", lived.state, lived.rules)
    with pytest.raises(BadFile, match="rules: is of a town with rules .* and these are .*; give the rules"):
        record.load(tmp_path / "a", load(override={"residents": 9}))


def altered(lived: Env, file: Path, **changes: Any) -> Path:
    """A snapshot that says something else about itself."""
    record.save(file, lived.state, lived.rules)
    with np.load(file) as opened:
        arrays = {name: opened[name] for name in opened.files}
    about = json.loads(arrays.pop("about").tobytes()) | changes
    kept = {name: array for name, array in arrays.items() if name in about["arrays"]}
    with file.open("wb") as out:
        np.savez(out, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **kept)
    return file


def test_what_does_not_fit_is_refused_by_name(lived: Env, tmp_path: Path) -> None:
    file = tmp_path / "a"
    for changes, message in (
        ({"schema": 99}, "schema 99: is newer than 1; update the program"),
        ({"schema": 0}, "schema 0: nothing leads from 0 on; make it anew"),
        ({"format": 9}, "format 9: is newer than 1"),
        ({"state": "0" * 64}, "state: its hash is not what it says; the file is damaged"),
    ):
        with pytest.raises(BadFile, match=message):
            record.load(altered(lived, file, **changes), lived.rules)
    for content in (b"", b"PK", b"hello", file.read_bytes()[:200]):
        file.write_bytes(content)
        with pytest.raises(BadFile, match="is not a snapshot of a town"):
            record.load(file, lived.rules)
    with pytest.raises(BadFile, match="No such file"):
        record.load(tmp_path / "none", lived.rules)


def test_records_of_another_shape_are_refused_with_the_fields_that_differ(lived: Env, tmp_path: Path) -> None:
    file = tmp_path / "a"
    record.save(file, lived.state, lived.rules)
    with np.load(file) as opened:
        about = json.loads(opened["about"].tobytes())
    fields = about["arrays"]["people"][1]
    next(field for field in fields if field[0] == "money")[0] = "gold"
    with pytest.raises(BadFile, match=r"people: has other records \(missing \['money'\], unknown \['gold'\]"):
        record.load(altered(lived, file, arrays=about["arrays"]), lived.rules)


def test_older_snapshots_go_through_every_migration(lived: Env, tmp_path: Path) -> None:
    file = altered(lived, tmp_path / "a", schema=1)
    steps: list[int] = []

    def step(version: int) -> record.Migration:
        def migrate(arrays: record.Arrays) -> record.Arrays:
            steps.append(version)
            arrays["town"]["chats"] += 100
            return arrays

        return migrate

    state, _ = record.load(file, lived.rules, migrations={1: step(1), 2: step(2)}, schema=3)
    assert steps == [1, 2] and state.town["chats"][0] == lived.state.town["chats"][0] + 200


# Replays ------------------------------------------------------------------------------------------------------------


def test_a_script_is_read_as_it_was_written(tmp_path: Path) -> None:
    given = (
        CommandAtTick(tick=3, name="rain", args={"ticks": 9}),
        CommandAtTick(tick=3, name="kill", args={"resident": 1}),
    )
    script = ReplayScript(seed=2**63 - 1, rules="ab", commands=given, ticks=10, state="cd")
    record.write_script(tmp_path / "a", script)
    assert record.read_script(tmp_path / "a") == script


LATE = '{"tick":5,"name":"a","args":{}}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a replay"),
        ("{}\n{}", "is not a replay"),
        ('{"replay": 9}\n{}', "replay 9: is newer than 1"),
        ('{"replay":1,"seed":1,"rules":""}\n' + LATE + LATE.replace("5", "4") + "{}", "its commands are not in order"),
    ],
)
def test_what_is_no_script_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(BadFile, match=message):
        record.read_script(tmp_path / "a")
