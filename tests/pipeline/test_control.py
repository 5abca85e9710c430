"""Networks in environments through the whole loop: learnt, proved, promoted; and killed, they come to the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.envs import Spaces
from holdfast.contracts.errors import BadInput
from holdfast.contracts.flag import Features
from holdfast.contracts.policy import policy_from, policy_record
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.run import RunState, Status
from holdfast.learn.constrain import Constraint
from holdfast.learn.control import MOST_ENVS, SEEDS, EnvPPO
from holdfast.learn.ppo import Settings
from holdfast.pipeline import control
from holdfast.pipeline.context import Endpoints
from holdfast.pipeline.control import EnvProof, env_spec_from, held_out_seeds, improve_env, is_env_run
from holdfast.pipeline.run import Control, RunSpec
from holdfast.policies.network import Network
from holdfast.store.store import Store, open_store
from tests.collect.environments import Sealed, Shortcuts, Signpost
from tests.pipeline.scene import ran

QUICK = EnvPPO(updates=8, step_updates=2, envs=8, settings=Settings(steps=16, minibatch=32, lr=2e-2, lr_end=1e-2))
PROOF = EnvProof(episodes=150, batch=75, reward_range=(0.0, 3.0))
SIGN = "tests.collect.environments:Signpost"
LAPSES = ("learning_s",)  # how long something took is no part of what it came to


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db", create=True) as opened:
        yield opened


def sign(**changed: Any) -> RunSpec:
    how = {"policy": Network(width=16), "algorithm": QUICK, "proof": PROOF, "name": "sign", "stage": Stage.LIVE}
    return improve_env(changed.pop("env", Signpost), **{**how, **changed})


def steps_of(store: Store, run: str) -> dict[str, Any]:
    """What each step came to, without how long it took."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items() if name not in LAPSES}
        return [plain(one) for one in value] if isinstance(value, list) else value

    kept = {one.name: plain(dict(one.body)) for one in store.steps.of_run(run)}
    for name in ("proof", "proof_sha256"):  # the report has its place and its time in it
        kept["0/decide"].pop(name, None)
    return kept


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, str]]:
    """A run that nobody disturbed, and its store."""
    with open_store(tmp_path_factory.mktemp("unbroken") / "store.db", create=True) as store:
        yield store, asyncio.run(ran(store, sign())).run_id


async def test_a_network_whose_updates_were_undone_is_not_proved(fresh: Store) -> None:
    wild = replace(QUICK, settings=Settings(steps=16, minibatch=8, lr=1e30, grad_limit=1e30))
    status = await ran(fresh, sign(algorithm=wild))
    steps = steps_of(fresh, status.run_id)
    assert not [name for name in steps if "prove" in name] and fresh.releases.history("sign") == []
    assert steps["0/decide"]["why"].startswith("nothing was learnt, so there is nothing to prove: 4 updates were taken")


def test_a_network_learns_is_proved_and_goes_live(unbroken: tuple[Store, str]) -> None:
    store, run = unbroken
    assert (store.runs.get(run).state, store.runs.get(run).error) == (RunState.COMPLETED, None)
    live = store.releases.live("sign")
    assert live is not None and (live.id, live.kind) == ("sign@2", PolicyKind.NETWORK)
    assert store.releases.get("sign@1").source.startswith("network:")
    decided = steps_of(store, run)["0/decide"]
    assert decided["decision"]["open"] and decided["verdict"]["outcome"] == "promote"
    engine = Endpoints()
    engine.files = store.files
    act = policy_from(live.manifest["policy"]).open(engine).act
    assert act is not None and [act([-1.0]), act([1.0])] == [0, 1]
    found = store.views.rollouts(run, most=1000)  # each held-out episode is one, and both play the same seeds
    assert {(one.status, one.split, one.attempt_count) for one in found} == {(RolloutState.SUCCEEDED, Split.VAL, 1)}
    arms: dict[str, list[int]] = {"baseline": [], "candidate": []}
    for one in found:
        arms[next(arm for arm in arms if arm in one.name)].append(one.input["seed"])
    assert arms["baseline"] == arms["candidate"] and {*arms["baseline"]} <= {*held_out_seeds(0, 500)}
    mean = {v: [r.reward for r in found if r.version == v] for v in {one.version for one in found}}
    assert sorted(min(rewards) >= 3.0 for rewards in mean.values() if None not in rewards) == [False, True]


async def test_a_run_begins_with_what_is_live(fresh: Store) -> None:
    live = Network.from_manifest(sign(policy=Network(width=16, seed=7)).settings["policy"])
    kept = {"policy": policy_record(live)}
    added = await fresh.releases.add(
        policy="sign", kind=PolicyKind.NETWORK, source="network:1", manifest=kept, who="op", now=1.0
    )
    await fresh.releases.move(added.id, Stage.LIVE, expect=Stage.CANDIDATE, who="op", why="by hand", now=2.0)
    status = await ran(fresh, sign(algorithm=replace(QUICK, updates=2)))
    steps = steps_of(fresh, status.run_id)
    assert steps["base"]["release"] == "sign@1" and policy_from(steps["0/start"]["state"]["base"]) == live


async def test_one_that_is_no_better_is_held(fresh: Store) -> None:
    """Steps too small to change any choice: the candidate does as the baseline does."""
    settings = Settings(steps=16, minibatch=32, lr=1e-12, lr_end=1e-12)
    status = await ran(fresh, sign(algorithm=replace(QUICK, updates=2, settings=settings)))
    decided = steps_of(fresh, status.run_id)["0/decide"]
    assert not decided["decision"]["open"] and decided["verdict"]["outcome"] == "hold"
    live = fresh.releases.live("sign")
    assert live is not None and live.id == "sign@1" and fresh.releases.get("sign@2").stage is Stage.CANDIDATE


async def test_a_network_that_does_harm_is_refused_and_one_with_a_budget_for_it_goes_live(fresh: Store) -> None:
    """Taking every shortcut pays 1.0 and costs 0.5; taking those that do no harm pays 0.75 and costs nothing."""
    settings = Settings(steps=32, minibatch=256, lr=1e-2, lr_end=2e-3)
    free = EnvPPO(updates=60, step_updates=30, envs=32, settings=settings)
    ways = {"env": Shortcuts, "proof": EnvProof(episodes=600, batch=200, reward_range=(0.0, 2.0)), "stage": Stage.LIVE}
    careless = await ran(fresh, sign(**ways, algorithm=free, name="careless"))
    decided = steps_of(fresh, careless.run_id)["0/decide"]
    assert not decided["decision"]["open"] and "safety" in decided["decision"]["reasons"][0]["text"]
    bound = replace(free, constraint=Constraint(budget=0.03, integral=0.5))
    spec = sign(**ways, algorithm=bound, name="careful")
    assert env_spec_from(json.loads(json.dumps(spec.settings)), Shortcuts).sha256() == spec.sha256()
    wide = sign(**{**ways, "proof": replace(ways["proof"], max_safety_regression=0.2)}, algorithm=free)
    assert (
        wide.settings["proof"]["max_safety_regression"] == 0.2 and "max_safety_regression" not in spec.settings["proof"]
    )
    assert env_spec_from(json.loads(json.dumps(wide.settings)), Shortcuts).sha256() == wide.sha256()
    careful = await ran(fresh, spec)
    steps = steps_of(fresh, careful.run_id)
    update = steps["0/1/learn"]["update"]
    assert update["cost"] < 0.15 and update["multiplier"] > 0.1
    assert steps["0/decide"]["decision"]["open"], steps["0/decide"]["decision"]["reasons"]


async def test_nothing_learnt_says_why(fresh: Store) -> None:
    status = await ran(fresh, sign(), features=Features(learning=False))
    assert "learning is switched off" in steps_of(fresh, status.run_id)["0/decide"]["why"]


# Killed --------------------------------------------------------------------------------------------------------------

LEARNT = 8 * 16 * 8  # steps that are played to learn from


async def stopped_after(store: Store, steps: int, monkeypatch: pytest.MonkeyPatch) -> Status:
    """Stopped in the middle of a step, when so many steps were played: what was not recorded then is lost."""
    asked, here, played = Control(), asyncio.get_running_loop(), iter(range(10**9))

    def hook() -> None:
        if next(played) == steps:
            here.call_soon_threadsafe(asked.stop)

    monkeypatch.setattr(Signpost, "hook", staticmethod(hook))
    status = await ran(store, sign(), asked)
    monkeypatch.undo()
    return status


@pytest.mark.parametrize("steps", [0, LEARNT // 2 + 100, LEARNT + 50])
async def test_left_in_the_middle_and_taken_up_it_ends_in_the_same_bytes(
    steps: int, unbroken: tuple[Store, str], fresh: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await stopped_after(fresh, steps, monkeypatch)
    assert left.run_state is RunState.CANCELLED
    again = env_spec_from(fresh.runs.get(left.run_id).settings)
    status = await ran(fresh, again, resume=left.run_id)
    assert status.run_state is RunState.COMPLETED
    store, run = unbroken
    assert steps_of(fresh, status.run_id) == steps_of(store, run)
    folder = Path("checkpoints") / steps_of(store, run)["0/3/learn"]["checkpoint"]
    files = [path.name for path in (store.folder / folder).glob("*.safetensors")]
    assert files and all((fresh.folder / folder / name).exists() for name in files)


async def test_a_damaged_checkpoint_is_made_anew_from_the_one_before(
    fresh: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await stopped_after(fresh, LEARNT // 2 + 100, monkeypatch)
    last = fresh.steps.of_run(left.run_id)[-1].body["segment"]["policy"].rpartition("@")[2]
    [file] = (fresh.folder / "checkpoints" / last).glob("*.safetensors")
    file.write_bytes(b"")
    status = await ran(fresh, sign(), resume=left.run_id)
    assert status.run_state is RunState.COMPLETED
    assert [one.body["checkpoint"] for one in fresh.ledger.entries() if one.kind == "mend"] == [last]


async def test_other_settings_are_refused(fresh: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    left = await stopped_after(fresh, 0, monkeypatch)
    with pytest.raises(BadInput, match="step begin of .* was recorded with other inputs"):
        await ran(fresh, sign(algorithm=replace(QUICK, updates=9)), resume=left.run_id)


# What is asked -------------------------------------------------------------------------------------------------------


def test_a_run_is_the_same_again_from_its_settings() -> None:
    spec = sign(env=SIGN, iterations=2)
    kept = json.loads(json.dumps(spec.settings))
    assert is_env_run(kept) and env_spec_from(kept).sha256() == spec.sha256()
    assert sign(env=Signpost).settings["env"] == sign(env=SIGN).settings["env"] == SIGN


def test_held_out_seeds_are_none_of_those_that_are_learnt_in() -> None:
    most = control.MOST_EPISODES
    assert held_out_seeds(0, most).start >= SEEDS + MOST_ENVS
    assert held_out_seeds(1, most).start == held_out_seeds(0, most).stop
    assert held_out_seeds(2**16 - 1, most).stop <= 2**31


def test_the_range_of_returns_comes_from_the_caller_or_from_what_is_known() -> None:
    made = improve_env("CartPole-v1").runtime.player
    assert made is not None and (made.reward_range, made.most_steps, made.success_at) == ((0.0, 500.0), 500, 475.0)
    made = sign(proof=replace(PROOF, max_steps=7, success_at=2.0)).runtime.player
    assert made is not None and (made.reward_range, made.most_steps, made.success_at) == ((0.0, 3.0), 7, 2.0)
    with pytest.raises(BadInput, match="give reward_range="):
        sign(proof=EnvProof())


async def test_a_return_beyond_the_range_ends_the_run_with_the_reason(fresh: Store) -> None:
    with pytest.raises(BadInput, match="reward_range = 0 to 1: an episode of .*Signpost returned"):
        await ran(fresh, sign(proof=replace(PROOF, reward_range=(0.0, 1.0))))


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ("Nowhere-v0", "environment Nowhere-v0: .*Nowhere"),
        (Sealed, "environment tests.collect.environments:Sealed: neither one choice nor a vector"),
        ("tests.collect.environments:Nobody", "env tests.collect.environments:Nobody: .* has no Nobody"),
        ("nowhere_at_all:Make", "env nowhere_at_all:Make: cannot import"),
        (3, "env 3: is neither a name"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused_before_any_work(env: Any, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        improve_env(env, proof=PROOF)


def test_without_gymnasium_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"Gymnasium is not installed; pip install 'holdfast\[learn\]'"):
        improve_env("CartPole-v1")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"iterations": 0}, "iterations = 0"),
        ({"name": "a@b"}, "policy 'a@b'"),
        ({"policy": "sprout"}, "acts in no environment"),
        ({"policy": Network().fitted("CartPole-v1", Spaces(observation=4, actions=2))}, "was made for CartPole-v1"),
    ],
)
def test_impossible_requests_are_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        sign(**wrong)


@pytest.mark.parametrize("wrong", [{"episodes": 1}, {"episodes": 5000}, {"batch": 0}, {"max_steps": 0}])
def test_an_impossible_proof_is_refused_with_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=rf"proof\.{next(iter(wrong))} = "):
        EnvProof(**wrong)
