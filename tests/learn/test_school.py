"""The school through the whole loop: scripts are cloned and beaten; what hurts goes back; killed, it goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.algorithm import AlgorithmState
from holdfast.contracts.errors import BadInput
from holdfast.contracts.policy import check_policy
from holdfast.contracts.release import Stage
from holdfast.contracts.run import RunState
from holdfast.learn.anneal import AnnealPlan
from holdfast.learn.control import EnvPPO
from holdfast.learn.ppo import Settings
from holdfast.learn.school import DATA, School
from holdfast.pipeline.context import Endpoints
from holdfast.pipeline.control import EnvProof, env_spec_from, improve_env, is_env_run
from holdfast.pipeline.run import Control, RunSpec
from holdfast.policies import weights
from holdfast.policies.network import Network, Scripted
from holdfast.store.store import Store, open_store
from tests.learn.guided import Guided, GuidedMaker, Recalled, RecalledMaker, Unguided
from tests.pipeline.scene import ran
from tests.pipeline.test_control import steps_of

PRACTICE = EnvPPO(
    updates=20, step_updates=10, envs=8, settings=Settings(steps=16, minibatch=64, lr=2e-2, lr_end=1e-2), warmup=2
)
SCHOOL = School(
    width=16, rounds=1, epochs=12, minibatch=32, lr=2e-2, label_rate=1.0, day=128, anneal_envs=4,
    anneal=AnnealPlan(shares=(0.5, 1.0)), practice=replace(PRACTICE, anchor_cost=0.02),
)  # fmt: skip
PROOF = EnvProof(episodes=120, batch=60)


def school(**changed: Any) -> RunSpec:
    given = {"policy": Scripted(), "algorithm": SCHOOL, "proof": PROOF, "name": "guided", "stage": Stage.LIVE}
    return improve_env(changed.pop("env", GuidedMaker()), **{**given, **changed})


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db", create=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, str]]:
    with open_store(tmp_path_factory.mktemp("unbroken") / "store.db", create=True) as store:
        yield store, asyncio.run(ran(store, school())).run_id


def test_a_network_clones_the_script_beats_it_and_goes_live(unbroken: tuple[Store, str]) -> None:
    store, run = unbroken
    steps = steps_of(store, run)
    assert [steps[f"0/{k}/learn"]["phase"] for k in range(5)] == [
        "clone 1", "dagger 2", "anneal 3", "play 1", "play 1",
    ]  # fmt: skip
    assert steps["0/1/learn"]["agreement"]["accuracy"] > 0.9
    assert [one["action"] for one in steps["0/2/learn"]["anneal"]["windows"]] == ["advance", "done"]
    assert steps["0/decide"]["decision"]["open"]
    first, live = store.releases.get("guided@1"), store.releases.live("guided")
    assert first.source == "scripted:guided" and live is not None and live.id == "guided@2"
    rewards = {
        arm: [one.reward for one in store.views.rollouts(run, most=1000) if f"-{arm}-" in one.name]
        for arm in ("baseline", "candidate")
    }
    assert len(rewards["candidate"]) >= 60 and sum(rewards["candidate"]) > sum(rewards["baseline"])


def test_what_was_shown_lies_beside_the_clone_with_a_manifest(unbroken: tuple[Store, str]) -> None:
    store, run = unbroken
    kept = steps_of(store, run)["0/0/learn"]
    manifest = weights.read(store.folder / "checkpoints" / kept["checkpoint"] / DATA)
    assert manifest.kind == "demonstrations" and manifest.notes["coverage"] == kept["coverage"]
    assert kept["coverage"]["action"]["left"] > 0 and set(kept["coverage"]["sign"]) == {"left", "right"}


async def test_an_anneal_that_hurts_goes_back_and_nothing_is_proposed(fresh: Store) -> None:
    """One pass at no rate: the clone does anything, which costs a third of the script's return."""
    wild = replace(SCHOOL, rounds=0, epochs=1, lr=0.0, lr_end=0.0)
    status = await ran(fresh, school(algorithm=wild))
    steps = steps_of(fresh, status.run_id)
    assert "0/2/learn" not in steps and not [name for name in steps if "prove" in name]
    assert steps["0/1/learn"]["anneal"]["share"] == 0.0
    assert "the anneal went back to a share of 0: return lost" in steps["0/decide"]["why"]


async def test_what_is_live_is_taught_on_and_has_to_be_beaten(unbroken: tuple[Store, str]) -> None:
    store, _ = unbroken
    still = replace(SCHOOL, practice=replace(SCHOOL.practice, settings=Settings(steps=16, lr=1e-9, lr_end=1e-9)))
    status = await ran(store, school(algorithm=still, seed=1))
    steps = steps_of(store, status.run_id)
    assert steps["base"]["release"] == "guided@2" and steps["0/0/learn"]["phase"] == "play 1"
    assert not steps["0/decide"]["decision"]["open"]  # it is no better than itself
    live = store.releases.live("guided")
    assert live is not None and live.id == "guided@2"


@pytest.mark.parametrize("at", [300, 950])  # in DAgger, in practice
async def test_left_in_the_middle_and_taken_up_it_ends_in_the_same_bytes(
    at: int, unbroken: tuple[Store, str], fresh: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, here, played = Control(), asyncio.get_running_loop(), iter(range(10**9))

    def hook() -> None:
        if next(played) == at:
            here.call_soon_threadsafe(asked.stop)

    monkeypatch.setattr(Guided, "hook", staticmethod(hook))
    left = await ran(fresh, school(), asked)
    monkeypatch.undo()
    assert left.run_state is RunState.CANCELLED
    status = await ran(fresh, school(), resume=left.run_id)
    store, run = unbroken
    assert status.run_state is RunState.COMPLETED and steps_of(fresh, status.run_id) == steps_of(store, run)


REMEMBERING = replace(SCHOOL, memory=True, epochs=20, minibatch=256)


def remembering() -> RunSpec:
    return school(env=RecalledMaker(), algorithm=REMEMBERING, name="recalled")


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The steps of a run that nobody stopped, of a network with a memory."""
    with open_store(tmp_path_factory.mktemp("remembered") / "store.db", create=True) as store:
        run = asyncio.run(ran(store, remembering())).run_id
        return steps_of(store, run)


def test_a_network_that_remembers_clones_what_was_seen_earlier(remembered: dict[str, Any]) -> None:
    assert remembered["0/1/learn"]["agreement"]["accuracy"] > 0.95  # without a memory it would be 0.62
    assert [one["action"] for one in remembered["0/2/learn"]["anneal"]["windows"]] == ["advance", "done"]
    assert remembered["0/3/learn"]["phase"] == "play 1" and remembered["0/4/learn"]["update"]["restored"] is None
    assert School.from_record(json.loads(json.dumps(REMEMBERING.record()))).memory
    assert "memory" not in SCHOOL.record()["school"]  # runs of before are the same as they were


@pytest.mark.parametrize("at", [300, 900])  # in DAgger, in practice
async def test_a_network_that_remembers_is_resumed_exactly(
    at: int, remembered: dict[str, Any], fresh: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, here, played = Control(), asyncio.get_running_loop(), iter(range(10**9))

    def hook() -> None:
        if next(played) == at:
            here.call_soon_threadsafe(asked.stop)

    monkeypatch.setattr(Recalled, "hook", staticmethod(hook))
    left = await ran(fresh, remembering(), asked)
    monkeypatch.undo()
    assert left.run_state is RunState.CANCELLED
    status = await ran(fresh, remembering(), resume=left.run_id)
    assert steps_of(fresh, status.run_id) == remembered


def test_a_run_is_the_same_again_from_its_settings() -> None:
    spec = school()
    kept = json.loads(json.dumps(spec.settings))
    assert is_env_run(kept) and env_spec_from(kept, GuidedMaker()).sha256() == spec.sha256()


def test_each_step_says_which_part_of_the_school_it_is() -> None:
    taught = replace(SCHOOL, rounds=2, practice=replace(SCHOOL.practice, updates=4, step_updates=2))
    state = AlgorithmState(base=Scripted())
    told = [taught.title(replace(state, step=step)) for step in range(len(taught.phases(state.base)))]
    assert told == ["clone", "DAgger round 1 of 2", "DAgger round 2 of 2", "anneal", "PPO 1 of 2", "PPO 2 of 2"]


def test_a_script_is_a_policy_like_any_other() -> None:
    check_policy(Scripted(env="guided"), Endpoints())
    act = Scripted(env="guided").open(Endpoints()).act
    assert act is not None
    seen = Guided(2).reset(1)
    assert act.many(4)(seen, seen.mask).tolist() == seen.scripted.tolist()  # type: ignore[union-attr]
    with pytest.raises(BadInput, match="has no script"):
        act.many(4)(Unguided(2).reset(1), seen.mask)


def test_a_network_that_draws_draws_the_same_again_and_old_ones_keep_their_names() -> None:
    spaces = GuidedMaker().describe().spaces
    plain = Network(width=4).fitted("guided", spaces)
    drawing = replace(plain, sampled=True)
    assert "sampled" not in plain.manifest and drawing.version != plain.version
    seen = Guided(20).reset(1)
    draws = [drawing.open(Endpoints()).act.many(40)(seen, seen.mask).tolist() for _ in range(2)]  # type: ignore[union-attr]
    assert draws[0] == draws[1] and len(set(draws[0])) == 2


@pytest.mark.parametrize("wrong", [{"rounds": -1}, {"label_rate": 0.0}, {"day": 0}, {"lr_end": 1.0}])
def test_an_impossible_school_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="school"):
        School(**wrong)
