"""Frames and recordings: deltas add up, any moment can be found again, and a veil hides who is who."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from holdfast.town import frames
from holdfast.town.env import Env
from holdfast.town.frames import Pseudonymizer, Recording
from holdfast.town.record import BadFile
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


# Frames -------------------------------------------------------------------------------------------------------------


def pictures(env: Env, count: int, veil: Pseudonymizer | None = None) -> list[frames.Picture]:
    env.reset(2)
    found = []
    for _ in range(count):
        env.step(env.scripted())
        found.append(frames.picture(env.rules, env.state, veil or Pseudonymizer()))
    return found


def test_folding_deltas_gives_what_a_key_frame_would(env: Env) -> None:
    views = pictures(env, 60)
    seen = frames.fold(None, frames.key_frame(views[0], 0))
    for seq in range(1, 60):
        frame = frames.delta(views[seq - 1], views[seq], seq, with_ties=True)
        seen = frames.fold(seen, json.loads(json.dumps(frame)))
        assert seen | {"key": True} == frames.key_frame(views[seq], seq)


def test_every_frame_keeps_to_the_schema_and_most_are_small(env: Env) -> None:
    views = pictures(env, 30)
    check = jsonschema.Draft202012Validator(dict(frames.SCHEMA))
    check.validate(frames.key_frame(views[0], 0, kpis={"alive": 1.0, "chats": None}, says=[[1, "Hm."]]))
    sizes = []
    for seq in range(1, 30):
        frame = frames.delta(views[seq - 1], views[seq], seq, events=[[1, 2, 3, 4, 5]])
        check.validate(frame)
        sizes.append(len(json.dumps(frame, separators=(",", ":"))))
    assert sum(sizes) / len(sizes) < 400  # bytes, of eight residents
    with pytest.raises(jsonschema.ValidationError):
        check.validate({"schema": 1, "seq": 0, "key": True, "tick": 0, "more": 1})


def test_a_delta_only_follows_its_own(env: Env) -> None:
    views = pictures(env, 3)
    first = frames.key_frame(views[0], 7)
    with pytest.raises(BadFile, match="frame 9: follows frame 7; wait for the next key frame"):
        frames.fold(first, frames.delta(views[1], views[2], 9))
    with pytest.raises(BadFile, match="follows nothing"):
        frames.fold(None, frames.delta(views[0], views[1], 8))
    with pytest.raises(BadFile, match="update the viewer"):
        frames.fold(None, first | {"schema": 2})


def test_ties_are_told_once_a_pair(env: Env) -> None:
    env.reset(1)
    people = env.state.people[0]
    people["tie_to"][2, 0], people["tie_trust"][2, 0] = 5, 500_000
    people["tie_to"][5, 3], people["tie_trust"][5, 3] = 2, 100_000
    people["tie_to"][7, 1], people["tie_rivalry"][7, 1] = 0, 250_000  # of which the other knows nothing
    assert frames.relationship_pairs(people, range(8)) == [[2, 5, 50, 0, 0], [7, 0, 0, 0, 25]]


def test_events_are_read_once_and_what_the_ring_lost_is_counted(lived: Env) -> None:
    count = int(lived.state.town["events"][0])
    found, lost = frames.events_since(lived.state, 0)
    assert len(found) == min(count, 256) and lost == max(0, count - 256)
    assert (np.diff(found["tick"]) >= 0).all()
    lived.state.town["events"] = count + 1000
    assert frames.events_since(lived.state, count)[1] == 1000 - 256


# Privacy ------------------------------------------------------------------------------------------------------------


def test_behind_a_veil_names_and_places_are_others_and_belong_to_the_key(env: Env) -> None:
    open_view, hidden = pictures(env, 20)[-1], pictures(env, 20, Pseudonymizer(key=b"k" * 32))[-1]
    order = Pseudonymizer(key=b"k" * 32).order(8)
    assert sorted(order) == list(range(8)) and order != list(range(8))
    assert hidden.at == [open_view.at[seat] for seat in order]
    assert not set(hidden.name) & set(open_view.name) and len(set(hidden.name)) == 8
    assert set(pictures(env, 1, Pseudonymizer(key=b"other" * 8))[-1].name).isdisjoint(hidden.name)
    ties = {frozenset((order[a], order[b])) for a, b, *_ in hidden.ties}
    assert ties == {frozenset((a, b)) for a, b, *_ in open_view.ties}


# Recordings ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(env: Env, tmp_path: Path) -> Iterator[tuple[Recording, list[frames.Picture]]]:
    views = pictures(env, 100)
    with Recording(tmp_path / "town.frames", frames.legend(env.rules)) as recording:
        for seq, view in enumerate(views):
            is_key = seq % 20 == 0
            frame = frames.key_frame(view, seq) if is_key else frames.delta(views[seq - 1], view, seq, with_ties=True)
            recording.add(frame)
        yield recording, views


@pytest.mark.parametrize("tick", [1, 2, 20, 21, 59, 100])
def test_any_moment_can_be_found_again_while_it_is_written_and_after(
    tick: int, recorded: tuple[Recording, list[frames.Picture]]
) -> None:
    recording, views = recorded
    with Recording(recording.path) as closed:
        looks = [(opened.ticks, list(opened.frames(tick, 10))) for opened in (recording, closed)]
    for ticks, (first, *rest) in looks:
        assert ticks == (1, 100)
        assert first["key"] and first["tick"] == tick and first["at"] == views[tick - 1].at
        seen = first
        for frame in rest:
            seen = frames.fold(seen, frame)
            assert seen["needs"] == views[frame["tick"] - 1].needs
        assert len(rest) == min(9, 100 - tick)


def test_a_moment_before_the_first_or_after_the_last_is_the_nearest(
    recorded: tuple[Recording, list[frames.Picture]],
) -> None:
    assert [next(iter(recorded[0].frames(tick)))["tick"] for tick in (0, 10_000)] == [1, 100]


def test_a_line_that_was_cut_off_ends_the_recording_before_it(recorded: tuple[Recording, list[frames.Picture]]) -> None:
    path = recorded[0].path
    path.write_bytes(path.read_bytes()[:-30])
    with Recording(path) as cut:
        assert cut.ticks == (1, 99)


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    for text, message in (
        ("", "is not a recording"),
        ('{"schema": 9}\n', "schema 9: is newer than 1"),
        ("{}\n", "not"),
    ):
        (tmp_path / "a").write_text(text)
        with pytest.raises(BadFile, match=message):
            Recording(tmp_path / "a")
    with Recording(tmp_path / "b", {"schema": 1}) as new, pytest.raises(BadFile, match="begins with a delta"):
        new.add({"key": False, "tick": 0})
