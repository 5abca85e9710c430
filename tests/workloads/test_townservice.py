"""A canary that drives a share of the residents, a shadow in a copy of the town, and the guard that moves them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.contracts.envs import Spaces
from holdfast.contracts.policy import policy_record
from holdfast.contracts.release import PolicyKind, Release, Stage
from holdfast.operate.canary_controller import WHO
from holdfast.policies.network import Network, Scripted
from holdfast.promote.bucketing import bucket
from holdfast.store.store import Store, open_store
from holdfast.workloads.townlife import OBSERVED, UNIT, Env, Life, Rules, read_rules
from holdfast.workloads.townschool import LINE, TownVectorEnv
from holdfast.workloads.townservice import LiveMind, ResidentDays
from tests.town.small import hamlet

GOOD = Scripted(env="town-b")  # as good as what is live: the same script under another name


DAY = 60  # ticks that are compared as one: as a day, and shorter


@pytest.fixture(scope="module")
def rules() -> Rules:
    return read_rules()


class Line:
    """The versions of the town's line; each step is at another moment."""

    def __init__(self, store: Store, *policies: Any) -> None:
        self.store, self._moments = store, count(1)
        for policy in policies:
            told: dict[str, Any] = {"kind": PolicyKind.NETWORK, "manifest": {"policy": policy_record(policy)}}
            store.releases.add(policy=LINE, source=policy.source, who="me", now=self.now(), **told).result()
        self.go(1, Stage.LIVE, known_good=True)

    def now(self) -> float:
        return float(next(self._moments))

    def at(self, number: int) -> Release:
        return self.store.releases.get(f"{LINE}@{number}")

    def go(self, number: int, to: Stage, share: int | None = None, **how: Any) -> None:
        by: dict[str, Any] = {"expect": self.at(number).stage, "who": "me", "why": "told", "now": self.now(), **how}
        self.store.releases.move(f"{LINE}@{number}", to, share=share, **by).result()

    def life(self, rules: Rules, seed: int = 1, **how: Any) -> tuple[Life, LiveMind]:
        mind = LiveMind(self.store, rules, clock=self.now, day=DAY, **how)
        return Life(rules, seed=seed, mind=mind, variant=OBSERVED, lived=mind.lived), mind

    def moves(self) -> list[tuple[str, int | None, str]]:
        """Where the guard moved versions."""
        bodies = [one.body for one in self.store.releases.history(LINE) if one.who == WHO]
        return [(str(body.get("to", "back")), body.get("share"), str(body["why"])) for body in bodies]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db", create=True) as opened:
        yield opened


def untaught(rules: Rules) -> Network:
    return Network(width=8, sampled=True).fitted("town", TownVectorEnv(rules, towns=1).spaces)


def lived(life: Life, days: int) -> None:
    for _ in range(days * DAY):
        life.step()


def test_a_canary_drives_its_share_of_the_residents_and_each_keeps_its_version(rules: Rules, store: Store) -> None:
    line = Line(store, Scripted(env="town"), untaught(rules))
    line.go(2, Stage.CANARY, 25)
    life, mind = line.life(rules, is_guarded=False)
    scripted = Life(rules, seed=1, variant=OBSERVED)
    life.step()
    scripted.step()
    people = life.env.state.people[0]
    town = f"{rules.sha256[:8]}-{int(life.env.state.town['seed'][0]):x}"
    places = [bucket(f"{town}-{one['slot']}-{one['born']}", "town@2") for one in people]
    is_canarys = np.array(places) < 0.25
    assert 8 <= is_canarys.sum() <= 24
    other = people["last_action"] != scripted.env.state.people["last_action"][0]
    assert not other[~is_canarys].any() and other[is_canarys].any()  # the others live by the script, as before
    seats = [int(np.flatnonzero(is_canarys == which)[0]) for which in (True, False)]
    assert [life.look_into(seat)["version"] for seat in seats] == ["town@2", "town@1"]
    line.go(2, Stage.CANARY, 50)
    lived(life, 1)
    assert mind.rollout is not None and mind.version == "town@1" and mind.rollout["share"] == 50
    larger = np.array(places) < 0.5
    assert mind.rollout["residents"] == {"town@2": larger.sum(), "town@1": (~larger).sum()}
    assert not (is_canarys & ~larger).any()


def test_a_bad_canary_is_taken_back_by_itself_and_the_ledger_says_why(rules: Rules, store: Store) -> None:
    line = Line(store, Scripted(env="town"), untaught(rules))
    line.go(2, Stage.CANARY, 25)
    life, mind = line.life(rules)
    lived(life, 8)
    assert line.at(2).stage is Stage.ROLLED_BACK and line.at(1).stage is Stage.LIVE
    ((to, _, why),) = line.moves()
    assert "canary's mean" in why and mind.moves[0]["action"] == "rollback" and mind.moves[0]["why"] in why, to
    assert mind.rollout is None  # the live version drives all again
    state = life.env.state.copy()
    lived(life, 1)
    alone = Life(rules, seed=1, variant=OBSERVED)
    alone.go_on(state)
    lived(alone, 1)
    assert alone.env.state.sha256() == life.env.state.sha256()


def test_a_canary_that_is_better_goes_on_step_by_step_over_towns_and_is_live(rules: Rules, store: Store) -> None:
    line = Line(store, untaught(rules), GOOD)
    line.go(2, Stage.CANARY, 25)
    for seed in range(40):
        life, _ = line.life(rules, seed=seed)
        lived(life, 1)
        if line.at(2).stage is Stage.LIVE:
            break
    assert line.at(2).stage is Stage.LIVE and line.at(1).stage is Stage.RETIRED
    assert [(to, share) for to, share, _ in line.moves()] == [("canary", 50), ("canary", 100), ("live", 100)]
    assert seed >= 4  # few residents prove nothing


def test_the_same_town_lived_again_proves_nothing_more(rules: Rules, store: Store) -> None:
    line = Line(store, Scripted(env="town"), GOOD)
    line.go(2, Stage.CANARY, 50)
    counts = []
    for seed in (1, 1, 2):
        life, _ = line.life(rules, seed=seed, is_guarded=False)
        lived(life, 1)
        (trial,) = store.trials.all()
        counts.append(store.trials.count(trial.name))
    assert counts == [64, 64, 128]


def test_a_canary_that_cannot_be_loaded_fails_its_days_and_is_taken_back(rules: Rules, store: Store) -> None:
    line = Line(store, Scripted(env="town"), Network(width=8).fitted("town", Spaces(observation=3, actions=2)))
    line.go(2, Stage.CANARY, 50)
    life, mind = line.life(rules)
    alone = Life(rules, seed=1, variant=OBSERVED)
    lived(life, 3)
    lived(alone, 3)
    assert line.at(2).stage is Stage.ROLLED_BACK and "town@2" in mind.refused
    assert alone.env.state.sha256() == life.env.state.sha256()  # its residents were never without a version


def test_a_shadow_lives_in_a_copy_and_nothing_of_it_reaches_the_town(rules: Rules, store: Store) -> None:
    line = Line(store, Scripted(env="town"), untaught(rules))

    def day() -> tuple[Life, LiveMind]:
        life, mind = line.life(rules)
        for tick in range(DAY):
            if tick == 20:
                life.order("rain", {"ticks": 10})
                life.order("teleport", {"resident": 3, "x": 24, "y": 24})
            life.step()
        return life, mind

    alone, without = day()
    assert without.rollout is None
    line.go(2, Stage.SHADOW)
    life, mind = day()
    assert alone.env.state.sha256() == life.env.state.sha256()
    assert mind.rollout is not None and mind.rollout["shadow"] == "town@2"
    assert mind.rollout["kpis"]["reward"]["shadow"] < mind.rollout["kpis"]["reward"]["live"]
    readings = {one["metric"]: one for one in mind.rollout["guard"]["readings"]}
    assert readings["reward"]["canary"] < readings["reward"]["live"] and readings["reward"]["n"] == 64
    assert line.at(2).stage is Stage.REJECTED and mind.moves[0]["action"] == "rollback"  # 64 pairs are enough


def test_a_shadow_takes_the_same_orders_and_by_the_same_script_lives_the_same_town(rules: Rules, store: Store) -> None:
    line = Line(store, Scripted(env="town"), GOOD)
    life, mind = line.life(rules, is_guarded=False)
    for tick in range(60):
        if tick == 13:
            line.go(2, Stage.SHADOW)  # while it runs: the copy begins at tick 20
        if tick in (20, 31):
            life.order("give_money", {"resident": tick, "meals": 3})
        life.step()
        if tick >= 20:
            assert mind._shadow is not None
            assert mind._shadow.life.env.state.sha256() == life.env.state.sha256()


def test_a_shadow_as_good_as_live_becomes_a_canary(rules: Rules, store: Store) -> None:
    line = Line(store, Scripted(env="town"), GOOD)
    line.go(2, Stage.SHADOW)
    life, _ = line.life(rules)
    lived(life, 1)
    assert (line.at(2).stage, line.at(2).share) == (Stage.CANARY, 5)
    lived(life, 1)
    assert line.at(2).share == 5  # three residents prove nothing


def test_days_are_of_who_was_there_from_the_beginning_or_had_to_leave(tmp_path: Path) -> None:
    env = Env(read_rules(hamlet(tmp_path)), variant=OBSERVED)
    env.reset(3)
    days = ResidentDays(env, 48)
    names = [days.unit(seat) for seat in range(4)]
    assert len(set(names)) == 4
    env.state.people["unpaid"][0, 2] = 100
    env.state.people["respawn_at"][0, 2] = 0
    news = []
    for _ in range(48):
        env.step(env.scripted())
        news.append(days.add())
    ended = days.ended()
    assert [(one.place, one.unit) for one in ended] == [(0, names[0]), (1, names[1]), (2, names[2]), (3, names[3])]
    people = env.state.people[0]
    assert ended[0].reward == int(people["returned"][0]) / UNIT and 0.0 < ended[0].success <= 1.0
    assert ended[2].reward <= -2.0 and ended[2].success < 0.1  # who left early had nothing of the rest of the day
    assert days.is_over and any(one[2] for one in news) and people["alive"][2]
    days.begin()
    assert days.unit(2) != names[2] and not days.is_over
