"""A life: the same seed and orders give the same town, looking changes nothing, and scenes are kind in every word."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput, Conflict, NotFound
from holdfast.town import talk
from holdfast.town.talk import HARM, LEAVES_FOR, SCENE_PAUSE, SceneQueue, arrival, departure, due, scene_queue
from holdfast.workloads import townlife
from holdfast.workloads.townlife import Life, Pseudonymizer, Rules, read_rules


@pytest.fixture(scope="module")
def rules() -> Rules:
    return townlife.read_rules(residents=12)


def live(rules: Rules, ticks: int, *, look_every: int = 0, **how: Any) -> Life:
    life = Life(rules, seed=5, **how)
    for tick in range(1, ticks + 1):
        life.step()
        if look_every and tick % look_every == 0:
            life.frame()
    return life


def test_looking_changes_nothing(rules: Rules) -> None:
    assert live(rules, 150).env.state.sha256() == live(rules, 150, look_every=1).env.state.sha256()


def test_frames_follow_one_another_with_a_key_every_hour(rules: Rules) -> None:
    life, seen, keys = Life(rules, seed=5), None, []
    for _ in range(200):
        frame = json.loads(json.dumps(life.frame()))
        seen = townlife.fold(seen, frame)
        if frame["key"]:
            keys.append(frame["tick"])
        life.step()
    assert keys == [0, 60, 120, 180] and seen is not None and seen["seq"] == 199


def test_a_run_with_orders_is_lived_again_bit_by_bit(rules: Rules, tmp_path: Path) -> None:
    life = live(rules, 30)
    life.order("rain", {"ticks": 50})
    life.order("set_need", {"resident": 3, "need": "hunger", "value": 0.2})
    life.order("inspect", {"resident": 3})  # changes nothing, and is not kept
    for _ in range(70):
        life.step()
    life.order("kill", {"resident": 2})
    for _ in range(20):
        life.step()
    life.write_script(tmp_path / "a")
    assert [given.name for given in life.commands] == ["rain", "set_need", "kill"]
    again, is_same = townlife.replay(tmp_path / "a", rules)
    assert is_same is True and again.tick == 120
    part, is_same = townlife.replay(tmp_path / "a", rules, upto=50)
    assert is_same is None and part.tick == 50
    text = (tmp_path / "a").read_text().replace('"value": 0.2', '"value": 0.3')
    (tmp_path / "a").write_text(text)
    assert townlife.replay(tmp_path / "a", rules)[1] is False
    with pytest.raises(BadInput, match="give the rules that it was made with"):
        townlife.replay(tmp_path / "a", townlife.read_rules(residents=13))


def test_a_life_goes_on_from_a_snapshot_as_if_nothing_had_been(rules: Rules, tmp_path: Path) -> None:
    life = live(rules, 90)
    life.order("festival", {})
    name = life.save(tmp_path / "a")
    other = Life(rules, seed=1)
    other.restore(tmp_path / "a")
    assert other.env.state.sha256() == name and other.seed == 5 and other.commands == life.commands
    told: list[list[str]] = [[], []]
    for _ in range(300):
        for kept, one in zip(told, (life, other), strict=True):
            kept += [line.text for line in one.step().lines]
    assert other.env.state.sha256() == life.env.state.sha256() and told[0] == told[1] != []
    with pytest.raises(BadInput, match="rules: is of a town"):
        Life(townlife.read_rules(residents=13), seed=1).restore(tmp_path / "a")


def test_a_window_of_half_a_day_is_measured_once_it_is_over(rules: Rules) -> None:
    life = Life(rules, seed=5)
    windows = [(life.tick, moment.window) for moment in (life.step() for _ in range(725)) if moment.window]
    assert [tick for tick, _ in windows] == [720]
    assert windows[0][1] is not None and windows[0][1]["residents"] == 12


def test_behind_a_veil_nothing_that_leaves_tells_who_is_who(rules: Rules) -> None:
    """A sink gets: the legend, frames, answers and refusals."""
    plain, veiled = Life(rules, seed=5), Life(rules, seed=5, veil=Pseudonymizer(key=b"secret" * 6))
    names = {plain.name(seat) for seat in range(12)}
    sent = [json.dumps(veiled.legend())]
    for _ in range(400):
        veiled.step()
        sent.append(json.dumps(veiled.frame()))
    shown = veiled._order.index(3)
    sent.append(json.dumps(veiled.order("give_money", {"resident": shown, "meals": 1})))
    with pytest.raises(Conflict) as caught:
        veiled.order("rain", {"ticks": 0})
    sent.append(str(caught.value))
    text = "\n".join(sent)
    assert not [name for name in names if f'"{name}' in text or f" {name} " in text or f"{name}'s" in text]
    assert '"seed"' not in text and "R-" in text
    assert veiled.commands[-1].args["resident"] == 3  # the order reached the one who was meant


def test_what_is_asked_wrongly_is_explained(rules: Rules, tmp_path: Path) -> None:
    life = Life(rules, seed=5)
    with pytest.raises(NotFound, match="command 'fly': is unknown"):
        life.order("fly", {})
    with pytest.raises(BadInput, match="resident = 40: is out of range"):
        life.order("kill", {"resident": 40})
    (tmp_path / "bad.toml").write_text('ticks_per_day = -1\nresidents = "many"\n')
    with pytest.raises(BadInput, match="rules .*bad.toml") as caught:
        townlife.read_rules(tmp_path / "bad.toml")
    faults = townlife.rule_faults(tmp_path / "bad.toml")
    assert len(faults) >= 2 and caught.value.__notes__ and townlife.rule_faults(None) == []


def test_stages_that_are_locked_are_off() -> None:
    rules = townlife.read_rules(unlocked=("needs", "work"))
    assert rules["stages"]["on"] == ["needs", "work"]


def test_recordings_scripts_and_snapshots_open_by_name(rules: Rules, tmp_path: Path) -> None:
    life = live(rules, 3)
    with townlife.new_recording(tmp_path / "frames", life) as recording:
        recording.add(life.frame())
    life.save(tmp_path / "snapshot")
    life.write_script(tmp_path / "script")
    with townlife.open_recording(tmp_path / "frames") as recording:
        assert recording.ticks == (3, 3)
    assert townlife.inspect_snapshot(tmp_path / "snapshot")["tick"] == 3
    assert townlife.inspect_script(tmp_path / "script")["ticks"] == 3
    for opened in (townlife.open_recording, townlife.inspect_snapshot, townlife.inspect_script):
        with pytest.raises(BadInput, match="No such file"):
            opened(tmp_path / "none")


def test_bench_counts_steps(rules: Rules) -> None:
    seconds = iter((10.0, 12.0))
    told = townlife.bench(rules, worlds=2, ticks=5, seed=1, clock=lambda: next(seconds))
    assert told["agent_steps_per_s"] == 2 * 12 * 5 / 2 and told["tick_ms"] == 400


def test_the_page_about_the_town_lists_every_order_and_limit_as_they_are() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/town.md").read_text(encoding="utf-8")
    assert townlife.command_docs() in page
    for limit in townlife.LIMITS:
        side = f"above {limit.above:g}" if limit.above is not None else f"below {limit.below:g}"
        assert f"| `{limit.alert}` | `{limit.kpi}` {side} | at {limit.clear:g} | {limit.remedy} |" in page


def test_schema_and_words_are_there(rules: Rules) -> None:
    assert townlife.schema()["properties"]["schema"] == {"const": 1}
    assert (townlife.word(rules, 0), townlife.word(rules, -2)) == ("sleep", "at work")


def test_a_scene_is_shown_line_by_line_and_ends() -> None:
    now = arrival(SceneQueue(), tick=100, seat=2, name="Ada")
    shown = []
    for tick in range(100, 120):
        now, beats = due(now, tick)
        assert all(beat.tick == tick and beat.seat == 2 for beat in beats)
        shown += beats
    assert len(shown) == 3 and any("Ada" in beat.text for beat in shown) and now.beats == ()
    assert all(a.tick < b.tick for a, b in pairwise(shown))


def test_one_scene_plays_at_a_time_and_then_there_is_a_pause() -> None:
    now = departure(SceneQueue(), tick=10, seat=1, name="Ben", days=3.2, why="there was no work")
    assert arrival(now, tick=11, seat=2, name="Ada") == now
    over, _ = due(now, 10_000)
    assert arrival(over, tick=over.ready - 1, seat=2, name="Ada") == over
    assert over.ready - now.beats[-1].tick == SCENE_PAUSE
    assert arrival(over, tick=over.ready, seat=2, name="Ada").beats


def test_what_plays_is_kept_in_a_snapshot() -> None:
    now = arrival(SceneQueue(), tick=5, seat=2, name="Ada")
    assert scene_queue(now.plain()) == now


def test_how_long_somebody_stayed_is_said_in_words() -> None:
    assert [talk.stay(days) for days in (0.2, 1.0, 12.4)] == ["less than a day", "a day", "12 days"]


def test_every_scene_can_be_told_and_hurts_nobody() -> None:
    for why in LEAVES_FOR.values():
        for scene in (*talk.ARRIVALS, *talk.DEPARTURES):
            for _, text in scene:
                assert not HARM.search(text.format(name="Ada", stay="a day", why=why))


@pytest.mark.parametrize("key", [None, b"k" * 32], ids=["open", "veiled"])
def test_a_life_shows_who_leaves_and_remembers_the_last(key: bytes | None) -> None:
    life = Life(read_rules(residents=12), seed=5, veil=Pseudonymizer(key=key))
    life.step()
    who = life.name(life._order[3])
    life.order("kill", {"resident": 3, "cause": "jobless"})
    lines = [line for _ in range(40) for line in life.step().lines if line.kind == "vignette"]
    assert lines and who in " ".join(line.text for line in lines) and who.startswith("R-") is (key is not None)
    assert [(one.name, one.cause, one.days) for one in life.left] == [(who, "jobless", 0.0)]
    assert life.left_for == {"jobless": 1}
    sent = life.frame()["lines"]
    assert {line.text for line in lines} <= {line["text"] for line in sent}
    assert {line["a"] for line in sent if line["kind"] == "vignette"} == {3}  # the place at which they are shown
