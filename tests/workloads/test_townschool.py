"""The town as an environment of the loop, and a town that lives for long."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import holdfast as hf
from holdfast.contracts.envs import Observation
from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.policy import policy_record
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.learn.anneal import AnnealPlan
from holdfast.learn.control import EnvPPO
from holdfast.learn.ppo import Settings
from holdfast.learn.school import PRACTISED, School
from holdfast.pipeline.control import EnvProof, env_spec_from, improve_env
from holdfast.policies.nets import VectorActor, action_distribution
from holdfast.policies.network import Network, Scripted, ScriptedAct
from holdfast.store.store import Store, open_store
from holdfast.town.observations import groups
from holdfast.workloads.towngate import golden_name
from holdfast.workloads.townlife import Env, Life, Rules, contracts, read_rules
from holdfast.workloads.townobserver import Soak, page, soak
from holdfast.workloads.townschool import (
    Lived,
    TownMaker,
    TownMind,
    TownVectorEnv,
    check_line,
    check_natures,
    entrants,
    lived,
    made_for,
    mind_of,
    missed_targets,
    natures_of,
    policy_in,
    school_report,
    school_run,
    school_spec,
    standings,
)
from holdfast.workloads.townservice import LiveMind
from tests.pipeline.scene import ran
from tests.town.small import small


@pytest.fixture(scope="module")
def rules() -> Rules:
    return small()


def test_seats_are_the_native_towns_each_named_by_its_seed(rules: Rules) -> None:
    seats, native = TownVectorEnv(rules, towns=3), Env(rules, variant="recall")
    view = seats.reset(7)
    for k in range(3):
        native.begin_world(0, 7 + k)
        assert np.array_equal(view.values.reshape(3, 4, -1)[k], native.look().features[0])
        for _ in range(30):
            alone = native.step(native.scripted()).features
        again = seats.reset(7)
        for _ in range(30):
            assert again.scripted is not None
            again = seats.step(again.scripted).observation
        assert np.array_equal(again.values.reshape(3, 4, -1)[k], alone[0])
        view = seats.reset(7)


def test_what_one_did_last_and_where_one_is_bound_is_seen(rules: Rules) -> None:
    env = Env(rules, variant="recall")
    env.begin_world(0, 3)
    home = env.actions.index("go:home")
    seen = env.step(np.full((1, 4), home))
    parts = groups(env.senses)
    did, bound = parts["last action"], parts["goal"]
    assert env.senses.features[did[home]] == "did_go:home" and env.senses.features[bound[0]] == "bound_home"
    people = env.state.people[0]
    for i in range(4):
        ones = np.flatnonzero(seen.features[0, i, did.start :]) + did.start
        assert ones[0] == did[people["last_action"][i]]
        assert len(ones) == 1 + int(people["goal_kind"][i] >= 0)
    assert [one for part in parts.values() for one in part] == list(range(len(env.senses.features)))


def test_who_leaves_is_terminated_and_who_comes_begins_an_episode(rules: Rules) -> None:
    seats = TownVectorEnv(rules, towns=1, days=9)
    view = seats.reset(1)
    seats.env.state.people["unpaid"][0, 2] = 100
    ended = seats.step(np.zeros(4, np.int64))
    assert ended.terminated.tolist() == [False, False, True, False] and ended.reward[2] <= -2.0
    view = ended.observation
    while not seats.env.state.people["alive"][0, 2]:
        assert view.scripted is not None
        result = seats.step(view.scripted)
        view = result.observation
        assert result.reward[2] == 0.0 or result.terminated[2]
    assert result.terminated[2] and not result.truncated.any()  # nobody's time there is over: somebody moves in


SHORT = {"ticks_per_day": 48, "job": [{"id": "a", "venue": "office", "start": 0, "end": 40, "wage": 1.0, "slots": 4}]}


def test_staggered_towns_are_at_different_hours_and_each_begins_anew_by_itself() -> None:
    seats = TownVectorEnv(small(SHORT), towns=2, staggered=True)
    view = seats.reset(5)
    assert seats.env.state.town["tick"].tolist() == [6, 0]
    ends = []
    for tick in range(60):
        assert view.scripted is not None
        result = seats.step(view.scripted)
        view = result.observation
        if result.truncated.any():
            ends.append((tick, result.truncated.reshape(2, 4).any(axis=1).tolist()))
            assert not np.array_equal(result.final, view.values)
    assert ends == [(41, [True, False]), (47, [False, True])]
    assert len(set(seats.env.state.town["seed"].tolist())) == 2


def test_seats_go_on_from_where_they_were(rules: Rules) -> None:
    one, other = TownVectorEnv(rules, towns=2), TownVectorEnv(rules, towns=2)
    view = one.reset(9)
    for _ in range(20):
        view = one.step(view.scripted).observation  # type: ignore[arg-type]
    again = other.restore(one.state())
    assert np.array_equal(again.values, view.values) and other.env.state.sha256() == one.env.state.sha256()
    for _ in range(20):
        view, again = one.step(view.scripted).observation, other.step(again.scripted).observation  # type: ignore[arg-type]
    assert other.env.state.sha256() == one.env.state.sha256()


def test_demonstrations_are_counted_by_hour_need_and_nature(rules: Rules) -> None:
    seats = TownVectorEnv(rules, towns=2)
    labels = seats.labels(seats.reset(2).values)
    people = seats.env.state.people
    ids = [one["id"] for one in rules["profile"]]
    assert labels["nature"].tolist() == [ids[k] for k in people["profile"].ravel()]
    assert set(labels["hour"].tolist()) == {int(seats.env.state.town["time"][0]) * 24 // rules["ticks_per_day"]}
    assert labels["lowest_need"][0] == list(rules["needs"])[people["need"][0, 0].argmin()]


def test_other_rules_are_another_environment_and_the_usual_one_has_a_short_name() -> None:
    usual = improve_env("town")
    assert usual.settings["env"] == TownMaker().name != TownMaker(residents=12).name
    assert env_spec_from(json.loads(json.dumps(usual.settings))).sha256() == usual.sha256()
    assert school_run(TownMaker(residents=12), seed=1, quick=True).settings["env"] == TownMaker(residents=12).name
    with pytest.raises(BadInput, match="use the command that began the run"):
        improve_env(TownMaker(residents=12).name)
    with pytest.raises(BadInput, match="days = 0"):
        TownMaker(days=0)


def test_a_league_is_lived_in_the_same_towns_and_natures_are_told_apart() -> None:
    maker = TownMaker(residents=12)
    paid = {
        "scripts": lived(maker, ScriptedAct("town"), towns=3),
        "chance": lived(maker, None, towns=3),
    }
    again = lived(maker, ScriptedAct("town"), towns=3)
    assert np.array_equal(again.returns, paid["scripts"].returns)
    table = standings(paid)
    assert [one["who"] for one in table] == ["scripts", "chance"] and table[1]["gain_high"] < 0.0 == table[0]["gain"]
    natures = natures_of(again, maker.rules)
    assert sum(one["residents"] for one in natures.values()) == 36
    mean = sum(one["residents"] * one["return"] for one in natures.values()) / 36
    assert mean == pytest.approx(again.returns.mean())
    assert missed_targets(natures) == []  # scripts live well, whatever their nature
    by_chance = natures_of(paid["chance"], maker.rules)
    assert any(missed.startswith("stoic: at work") for missed in missed_targets(by_chance))
    assert all(0 <= one["kpis"]["needs_met"] <= 1 and one["kpis"]["exits"] == 0 for one in natures.values())


def test_an_interval_over_three_towns_is_students(rules: Rules) -> None:
    returns = np.array([[1.0, 3.0, 2.0, 2.0], [2.0, 4.0, 3.0, 3.0], [4.0, 8.0, 6.0, 6.0]])
    paid = Lived(returns=returns, natures=np.array([[0, 1, 2, 3]] * 3))
    (told,) = standings({"scripts": paid})
    half = 4.30265 * np.std([2.0, 3.0, 6.0], ddof=1) / np.sqrt(3)
    assert (told["high"] - told["low"]) / 2 == pytest.approx(half, rel=1e-4) and told["gain_low"] == 0.0
    natures = natures_of(paid, rules)
    half = 4.30265 * np.std([1.0, 2.0, 4.0], ddof=1) / np.sqrt(3)
    assert (natures["balanced"]["high"] - natures["balanced"]["low"]) / 2 == pytest.approx(half, rel=1e-4)


def test_a_town_too_small_for_every_nature_is_refused_by_the_natures_it_lacks() -> None:
    check_natures(TownMaker(residents=12))
    with pytest.raises(
        BadInput, match="residents = 1: too few for every nature: nobody would be balanced, industrious, stoic"
    ):
        check_natures(TownMaker(residents=1))


def test_a_league_takes_what_is_live_and_refuses_lines_and_versions_that_are_not_there(tmp_path: Path) -> None:
    with open_store(tmp_path / "store.db", create=True) as store:
        assert entrants(store, ["live"]) == {"live": Scripted(env="town")}
        with pytest.raises(BadInput, match="--name nosuch: there is no such line; there are none"):
            entrants(store, None, "nosuch")
        with pytest.raises(BadInput, match="version town: is not the name of a release; give town@N, or live"):
            policy_in(store, "town")
        manifest = {"policy": policy_record(Scripted(env="town"))}
        how: dict[str, Any] = {"source": "shelf:1", "kind": PolicyKind.NETWORK, "manifest": manifest}
        store.releases.add(policy="town", who="me", now=1.0, **how).result()
        with pytest.raises(BadInput, match="--name nosuch: there is no such line; there are town"):
            entrants(store, ["live"], "nosuch")
        for refused in (lambda: policy_in(store, "town"), lambda: entrants(store, ["town"])):
            with pytest.raises(BadInput, match="version town: is not the name of a release; give town@1 or live"):
                refused()


def test_a_version_drives_a_town_and_looking_into_it_changes_nothing(rules: Rules, tmp_path: Path) -> None:
    with open_store(tmp_path / "store.db", create=True) as store:
        assert policy_in(store, None) == (None, Scripted(env="town")) and entrants(store, None) == {}
        spaces = TownVectorEnv(rules, towns=1).spaces
        network = Network(width=8, sampled=True).fitted("town", spaces)
        scripted, driven, looked = (
            TownMind(store, policy, rules, version="v") for policy in (Scripted(env="town"), network, network)
        )
        lives = [Life(rules, seed=4, mind=mind, variant="recall") for mind in (Env.scripted, scripted, driven, looked)]
        for _ in range(40):
            for life in lives:
                life.step()
            found = lives[-1].look_into(2)
    states = [life.env.state.sha256() for life in lives]
    assert states[0] == states[1] != states[2] == states[3]
    env = lives[-1].env
    assert sum(one["p"] for one in found["actions"]) == pytest.approx(1.0, abs=1e-3)
    assert {one["name"] for one in found["actions"]} == {
        name for name, is_allowed in zip(env.actions, env.look().mask[0, 2], strict=True) if is_allowed
    }
    assert found["scripted"] == env.actions[int(env.scripted()[0, 2])] and found["likeliest"] in env.actions
    assert (
        set(found["why"]) == set(found["seen"]) == set(groups(env.senses)) and "identity" not in found["seen"]["self"]
    )
    with pytest.raises(NotFound, match="follow their script"):
        lives[0].look_into(2)
    with pytest.raises(BadInput, match="resident 4"):
        lives[-1].look_into(4)


def released(store: Store, policy: Network, name: str = "town") -> str:
    """A release of this network, live."""
    how: dict[str, Any] = {"kind": PolicyKind.NETWORK, "manifest": {"policy": policy_record(policy)}}
    made = store.releases.add(policy=name, source=policy.source, who="me", now=1.0, **how).result()
    how = {"expect": made.stage, "who": "me", "why": "a test", "now": 2.0}
    store.releases.move(made.id, Stage.LIVE, known_good=True, **how).result()
    return made.id


def test_a_version_sees_what_it_was_trained_on_and_is_refused_anything_else(rules: Rules, tmp_path: Path) -> None:
    sizes = {one.variant: one.size for one in contracts(rules)}
    assert len(set(sizes.values())) == 4 and sizes["hybrid"] == sizes["compact"] + 4 * 121
    seats = TownVectorEnv(rules, towns=2, observation="hybrid")
    view, native = seats.reset(7), Env(rules, variant="hybrid")
    native.begin_world(0, 8)
    row = view.values.reshape(2, 4, -1)[1]
    assert seats.spaces.observation == sizes["hybrid"] == row.shape[1]
    assert np.array_equal(row[:, sizes["compact"] :], native.look().maps[0].reshape(4, -1))
    assert len(native.senses.names) == sizes["hybrid"] and native.senses.names[-1] == "taken(+5,+5)"
    with open_store(tmp_path / "store.db", create=True) as store:
        version = released(store, Network(width=8).fitted("town", seats.spaces))
        mind = mind_of(store, version, rules)
        assert mind.observation == "hybrid" == LiveMind(store, rules, clock=lambda: 1.0).observation
        life = Life(rules, seed=4, mind=mind, variant=mind.observation)
        for _ in range(5):
            life.step()
        found = life.look_into(1)
        assert found["why"].keys() - found["seen"].keys() == {f"map: {name}" for name in native.senses.channels}
        with pytest.raises(
            BadInput, match=r"observation recall: network/town@\w+ was trained on hybrid@1-\w+, and this"
        ):
            mind_of(store, version, rules, observation="recall")
        with pytest.raises(BadInput, match="observation recall: .* was trained on hybrid"):
            check_line(store, SmallMaker())
        check_line(store, SmallMaker(observation="hybrid"))
        with pytest.raises(BadInput, match="--network recurrent: town@1 is feedforward, and what is live is taught on"):
            check_line(store, SmallMaker(observation="hybrid"), memory=True)
        assert made_for(SmallMaker(), policy_in(store, version)[1]).observation == "hybrid"
        odd = replace(seats.spaces, observation=5)
        with pytest.raises(BadInput, match="was made for odd"):
            mind_of(store, released(store, Network(width=8).fitted("odd", odd), "odd"), rules)
    with pytest.raises(BadInput, match="observation 'odd': is unknown; use compact, recall, hybrid, full"):
        TownMaker(observation="odd")


@dataclass(frozen=True, kw_only=True)
class SmallMaker(TownMaker):
    """Towns of the hamlet."""

    @property
    def rules(self) -> Rules:
        return small(SHORT)


def test_each_contract_is_another_environment() -> None:
    names = {SmallMaker(observation=one).name for one in ("compact", "recall", "hybrid", "full")}
    assert len(names) == 4 and SmallMaker().name == SmallMaker(observation="recall").name
    assert {golden_name(SmallMaker(observation=one), "town") for one in ("recall", "full")} == {"town-4", "town-4-full"}


def test_a_network_with_a_memory_drives_a_town_and_its_mind_is_what_it_remembers(rules: Rules, tmp_path: Path) -> None:
    with open_store(tmp_path / "store.db", create=True) as store:
        network = Network(width=8, memory=True, sampled=True).fitted("town", TownVectorEnv(rules, towns=1).spaces)
        driven, looked = (TownMind(store, network, rules, version="v") for _ in range(2))
        lives = [Life(rules, seed=4, mind=mind, variant="recall") for mind in (driven, looked)]
        for _ in range(30):
            for life in lives:
                life.step()
            found = lives[-1].look_into(2)
    assert lives[0].env.state.sha256() == lives[1].env.state.sha256()
    env = lives[-1].env
    seen, playing = env.look(), driven._choose
    assert isinstance(playing, VectorActor) and playing.hidden.abs().sum() > 0
    view = Observation(seen.features[0], seen.mask[0].view(np.bool_))
    policy, _ = action_distribution(network.load(None), view, playing.hidden, np.zeros(4, np.bool_))
    shares = {env.actions[k]: float(p) for k, p in enumerate(policy.log_p.detach().exp()[2]) if p > 0}  # type: ignore[union-attr]
    assert {one["name"]: one["p"] for one in found["actions"]} == pytest.approx(shares, abs=1e-3)


def test_a_network_with_a_memory_learns_in_a_town_by_the_plain_call(tmp_path: Path) -> None:
    dials = Settings(steps=24, minibatch=96)
    result = hf.improve(
        env=SmallMaker(),
        policy=hf.Network(width=8, memory=True),
        algorithm=EnvPPO(updates=2, step_updates=1, envs=2, settings=dials),
        store=str(tmp_path / "store.db"),
    )
    with open_store(tmp_path / "store.db") as store:
        bodies = [dict(step.body) for step in store.steps.of_run(result.run.id)]
    played = [body for body in bodies if "env_steps" in body]
    assert len(played) == 2 and all(body["update"]["restored"] is None for body in played)
    assert played[-1]["update"]["gradient_steps"] > 0


async def test_the_school_reports_every_nature_with_an_interval(tmp_path: Path) -> None:
    """A course that is real and short, of a network with a memory, in days of 48 ticks."""
    lenient = AnnealPlan(shares=(1.0,), better=1e9, worse=1e9)
    practice = replace(PRACTISED, updates=2, step_updates=1, warmup=1, envs=2)
    school = School(memory=True, rounds=1, epochs=2, label_rate=0.5, anneal_envs=1, anneal=lenient, practice=practice)
    with open_store(tmp_path / "store.db", create=True) as store:
        spec = school_spec(SmallMaker(), seed=1, school=school, proof=EnvProof(episodes=4, batch=4))
        report = school_report(store, (await ran(store, spec)).run_id)
        policy = policy_in(store, report.release)[1]
        mind = mind_of(store, report.release, SmallMaker().rules)
        life = Life(SmallMaker().rules, seed=4, mind=mind, variant=mind.observation)
        looks = []
        for _ in range(6):
            life.step()
            looks.append((life.look_into(1), float(life.env.look().reward[0, 1])))
    assert mind._scale is not None
    mean, spread, gamma = mind._scale
    assert gamma == 0.999 and spread > 0
    for (before, _), (after, reward) in pairwise(looks):
        assert after["expected"] == pytest.approx(mean + spread * after["value"], abs=2e-3 * max(1.0, spread))
        wanted = reward + gamma * after["expected"] - before["expected"]
        assert after["advantage"] == pytest.approx(wanted, abs=1e-3)
    assert isinstance(policy, Network) and policy.memory and report.towns == 4
    assert set(report.by_nature) <= {one["id"] for one in small()["profile"]} and report.by_nature
    for one in report.by_nature.values():
        assert one["gain"] == pytest.approx(one["learnt"] - one["before"]) and one["towns"] <= 4
        if one["towns"] > 2:
            assert one["gain_low"] <= one["gain"] <= one["gain_high"]
    assert report.plain()["by_nature"] == report.by_nature


def soaked(life: Life, ticks: int, *, stop_at: int = -1) -> Soak:
    memory, clock = iter([100.0, 104.0, *[104.5] * 20]), count()
    done = count(1)

    def each() -> None:
        if next(done) == stop_at:
            raise KeyboardInterrupt

    return soak(life, ticks, looks=4, memory_mb=lambda: next(memory), clock=lambda: float(next(clock)), each=each)


def test_it_looks_at_even_distances_and_growth_begins_at_the_second_look() -> None:
    life = Life(read_rules(residents=12), seed=3)
    told = soaked(life, 800)
    assert [look.tick for look in told.looks] == [200, 400, 600, 800] and told.grown_mb == 0.5
    assert told.looks[-1].state == life.env.state.sha256() and told.windows == 1
    assert len({look.state for look in told.looks}) == 4 and told.looks[0].here == 12


def test_ctrl_c_keeps_what_there_was() -> None:
    told = soaked(Life(read_rules(residents=12), seed=3), 800, stop_at=250)
    assert told.ticks == 250 and [look.tick for look in told.looks] == [200, 250]


def test_the_page_tells_hashes_memory_alerts_and_who_left() -> None:
    life = Life(read_rules(residents=12), seed=3)
    life.step()
    for seat in range(4):
        life.order("kill", {"resident": seat, "cause": "neglect"})
    told = soaked(life, 720)
    text = page(told, command="holdfast town soak --ticks 720", date="2026-01-01", machine="a machine")
    assert told.left_for == {"neglect": 4} and "4 × neglect" in text and told.looks[-1].state in text
    assert told.alerts and all(f"  - {alert}" in text for alert in told.alerts)  # so many exits in half a day
    assert "| 181 |" in text and "holdfast town soak --ticks 720" in text and "104.5" in text
