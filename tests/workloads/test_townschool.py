"""Residents who learn, and a town that lives for long: seats as environments, looks at even distances."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput
from holdfast.learn.ppo import Settings
from holdfast.workloads.townlife import Env, Life, Rules, read_rules
from holdfast.workloads.townobserver import Soak, page, soak
from holdfast.workloads.townschool import (
    EvalPoint,
    TownTrainer,
    TownVectorEnv,
    TrainingPlan,
    as_planned,
    by_chance,
    learn,
    load,
    returns,
)
from tests.town.small import small

SHORT = TrainingPlan(
    worlds=16,
    ppo=Settings(steps=64, epochs=3, minibatch=1024, entropy_cost=0.005, updates=24),
    exams=2,
    exam_worlds=2,
    final_worlds=4,
)


@pytest.fixture(scope="module")
def rules() -> Rules:
    return small()


@pytest.mark.usefixtures("untraced")
def test_residents_learn_to_live_better_than_by_chance_where_they_never_were(rules: Rules, tmp_path: Path) -> None:
    """The world's own claim: parameters move, held-out returns rise, and the gain over chance is no chance."""
    clock = count()
    school = TownTrainer(rules, SHORT, seed=1)
    news = list(learn(school, seconds=1e9, clock=lambda: float(next(clock)), most=24))
    points = [one for one in news if isinstance(one, EvalPoint)]
    assert [point.update for point in points] == [0, 12, 24] and points[-1].step == 24 * 64 * 16 * 4
    assert points[-1].low > points[0].high
    lesson = school.finish()
    assert lesson.is_better and lesson.over_random.low > 0 and lesson.moved > 0.001
    assert lesson.scores["learnt"].value > lesson.scores["random"].interval.high
    assert lesson.scores["scripted"].value > lesson.scores["random"].interval.high
    random, untaught = lesson.scores["random"], lesson.scores["untaught"]
    assert random.interval.low <= untaught.value <= random.interval.high  # it knew nothing before
    school.save(tmp_path / "kept", now=1.0)
    again = load(tmp_path / "kept", Env(rules))
    for one, other in zip(school.net.parameters(), again.parameters(), strict=True):
        assert bool((one == other).all())


def test_the_same_seed_learns_the_same_bit_by_bit(rules: Rules) -> None:
    told = []
    for seed in (3, 3, 4):
        school = TownTrainer(rules, SHORT, seed=seed)
        told.append([school.teach(lambda: 0.0) for _ in range(2)])
    assert told[0] == told[1] != told[2]


def test_seats_are_the_native_world(rules: Rules) -> None:
    seats, native = TownVectorEnv(rules, worlds=3), Env(rules, worlds=3)
    view, seen = seats.reset(7), native.reset(7)
    act = by_chance(np.random.default_rng(0))
    for _ in range(50):
        actions = act(seats.env, view)
        assert view.mask is not None and view.mask[np.arange(12), actions].all()
        result = seats.step(actions)
        view, seen = result.observation, native.step(actions.reshape(3, 4))
        assert np.array_equal(view.values, seen.features.reshape(12, -1))
        assert np.array_equal(result.reward, seen.reward.ravel()) and not result.truncated.any()
    assert seats.env.state.sha256() == native.state.sha256()


def test_who_leaves_is_terminated_and_who_comes_begins_an_episode(rules: Rules) -> None:
    seats = TownVectorEnv(rules, worlds=1, days=9)
    seats.reset(1)
    seats.env.state.people["unpaid"][0, 2] = 100
    wait = np.zeros(4, np.int64)
    ended = seats.step(wait)
    assert ended.terminated.tolist() == [False, False, True, False] and ended.reward[2] <= -2.0
    while not seats.env.state.people["alive"][0, 2]:
        result = seats.step(as_planned(seats.env, ended.observation))
        assert result.reward[2] == 0.0 or result.terminated[2]
    assert result.terminated[2] and not result.truncated.any()  # nobody's time there is over: somebody moves in


def test_when_the_days_are_over_all_are_truncated_and_other_towns_begin() -> None:
    job = {"id": "a", "venue": "office", "start": 0, "end": 40, "wage": 1.0, "slots": 4}
    seats = TownVectorEnv(small({"ticks_per_day": 48, "job": [job]}), worlds=2)
    view = seats.reset(5)
    first = view.values.copy()
    begun = seats.env.state.sha256()
    for tick in range(48):
        result = seats.step(as_planned(seats.env, view))
        assert (result.truncated | result.terminated).all() == (tick == 47), tick
    assert result.truncated.any() and not np.array_equal(result.final, result.observation.values)
    assert seats.env.state.sha256() != begun and int(seats.env.state.town["tick"][0]) == 0
    assert np.array_equal(seats.reset(5).values, first)


def test_seats_go_on_from_where_they_were(rules: Rules) -> None:
    one, other = TownVectorEnv(rules, worlds=2), TownVectorEnv(rules, worlds=2)
    view = one.reset(9)
    for _ in range(20):
        view = one.step(as_planned(one.env, view)).observation
    again = other.restore(one.state())
    assert np.array_equal(again.values, view.values) and other.env.state.sha256() == one.env.state.sha256()
    for _ in range(20):
        one.step(as_planned(one.env, view))
        other.step(as_planned(other.env, view))
    assert other.env.state.sha256() == one.env.state.sha256()


def test_held_out_towns_are_the_same_whatever_the_seed(rules: Rules) -> None:
    towns = TownVectorEnv(rules, worlds=2, days=2, fixed=99)
    assert np.array_equal(towns.reset(1).values.copy(), towns.reset(2).values)
    assert returns(towns, as_planned, 10).shape == (2, 4)


def test_a_policy_of_other_senses_is_refused_by_name(rules: Rules, tmp_path: Path) -> None:
    TownTrainer(rules, SHORT, seed=1).save(tmp_path / "kept", now=1.0)
    other = read_rules(residents=12)
    objects = {**other["map"]["objects"], "z": "well"}
    with pytest.raises(BadInput, match=r"was made for senses compact@1-\w+, and this town gives compact@1-"):
        load(tmp_path / "kept", Env(small({"map": {"objects": objects}})))


@pytest.mark.parametrize("name", ["worlds", "exams", "final_worlds"])
def test_a_course_that_teaches_nothing_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=rf"course.{name} = 0: must be at least"):
        TrainingPlan(**{name: 0})


def lived(life: Life, ticks: int, *, stop_at: int = -1) -> Soak:
    memory, clock = iter([100.0, 104.0, *[104.5] * 20]), count()
    done = count(1)

    def each() -> None:
        if next(done) == stop_at:
            raise KeyboardInterrupt

    return soak(life, ticks, looks=4, memory_mb=lambda: next(memory), clock=lambda: float(next(clock)), each=each)


def test_it_looks_at_even_distances_and_growth_begins_at_the_second_look() -> None:
    life = Life(read_rules(residents=12), seed=3)
    told = lived(life, 800)
    assert [look.tick for look in told.looks] == [200, 400, 600, 800] and told.grown_mb == 0.5
    assert told.looks[-1].state == life.env.state.sha256() and told.windows == 1
    assert len({look.state for look in told.looks}) == 4 and told.looks[0].here == 12


def test_ctrl_c_keeps_what_there_was() -> None:
    told = lived(Life(read_rules(residents=12), seed=3), 800, stop_at=250)
    assert told.ticks == 250 and [look.tick for look in told.looks] == [200, 250]


def test_the_page_tells_hashes_memory_alerts_and_who_left() -> None:
    life = Life(read_rules(residents=12), seed=3)
    life.step()
    for seat in range(4):
        life.order("kill", {"resident": seat, "cause": "neglect"})
    told = lived(life, 720)
    text = page(told, command="holdfast town soak --ticks 720", date="2026-01-01", machine="a machine")
    assert told.left_for == {"neglect": 4} and "4 × neglect" in text and told.looks[-1].state in text
    assert told.alerts and all(f"  - {alert}" in text for alert in told.alerts)  # so many exits in half a day
    assert "| 181 |" in text and "holdfast town soak --ticks 720" in text and "104.5" in text
