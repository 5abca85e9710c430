"""Whole runs from settings, as a config file gives them: scorers of one's own, the same bytes twice, resources, and
models in Hugging Face's format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.contracts.algorithm import AlgorithmState
from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.run import RunState, Status
from holdfast.contracts.settings import OptimizeSettings
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.learn.grpo import GRPO
from holdfast.pipeline.spec import improve_spec, optimize_spec
from holdfast.policies import weights
from holdfast.policies.engine import LocalEngine
from holdfast.policies.model import Model, folder_of, load
from holdfast.store.artifacts import FolderArtifacts
from holdfast.store.store import Store, open_store
from tests.conftest import Files
from tests.learn.telling import Telling
from tests.pipeline.scene import fresh_in, ran
from tests.pipeline.test_improve import Played
from tests.workloads.scene import RUN

HERE = "tests.pipeline.test_whole_runs"


async def ask(task: Mapping[str, Any], context: Any) -> str:
    """Asks once, and passes on what it was told to sample by."""
    messages = [{"role": "user", "content": task["prompt"]}]
    if "system" in context.resources:
        messages.insert(0, {"role": "system", "content": context.prompt("system")})
    call = await context.ask(messages, temperature=1.0, max_tokens=task.get("max_tokens", 6))
    return str(call.response.get("content") or "")


async def insist(task: Mapping[str, Any], context: Any) -> str:
    """Asks twice, and says that it would have gone on."""
    messages = [{"role": "user", "content": task["prompt"]}]
    call = await context.ask(messages, temperature=1.0, max_tokens=4)
    messages += [dict(call.response), {"role": "user", "content": "again"}]
    again = await context.ask(messages, temperature=1.0, max_tokens=4)
    context.truncate("max_turns")
    return str(again.response.get("content") or "")


async def recite(task: Mapping[str, Any], context: Any) -> str:
    """Says the system prompt of the version in force."""
    return str(context.prompt("system"))


def is_odd(task: Mapping[str, Any], answer: str) -> float:
    """What a user would write: the gate. Whatever a model says by chance, about half of it is right."""
    return float(sum(map(ord, answer)) % 2)


def broken(task: Mapping[str, Any], answer: str) -> float:
    return 1.0 if answer == "never" else 0.0  # pays not even the gold answer


def settings(model: str, **fields: Any) -> OptimizeSettings:
    given = {
        "agent": f"{HERE}:ask",
        "model": f"local/{model}",
        "optimize": [{"prompt": f"say {n}", "expected": "a"} for n in (1, 3, 5, 7)],
        "validate": [{"prompt": f"tell {n}", "expected": "a"} for n in (1, 3, 5, 7)],
        "scorers": [{"scorer": f"{HERE}:is_odd", "gate": True}],
        "worker_count": 4,
        "heartbeat_interval_ms": 100,
        "poll_interval_ms": 10,
        "max_attempts": 1,
    }
    return OptimizeSettings.model_validate(given | fields)


IMPROVE = {"steps": 1, "step_tasks": 4, "samples": 4, "learning_rate": 1e-2, "prove": {"seeds": 2}}


def experiences(store: Store, status: Status) -> list[Experience]:
    found = store.views.rollouts(status.run_id, most=1000)
    return store.experiences.of([one.id for one in sorted(found, key=lambda one: one.name)])


# Scorers of one's own


async def test_a_users_own_function_is_the_gate_of_a_run_and_of_what_is_learnt(base: str, store: Store) -> None:
    status = await ran(store, optimize_spec(settings(base, rl_optimizer={})))
    found = experiences(store, status)
    for one in found:
        assert one.breakdown is not None
        paid = [(each.name, each.value, each.source) for each in one.breakdown.signals if each.weight]
        said = str(one.calls[0].response.get("content") or "")
        assert paid == [("success", is_odd({}, said), "scorer:is_odd")]
    assert {one.breakdown.total for one in found if one.breakdown} == {
        0.0,
        1.0,
    }  # so that there is something to tell apart
    assert status.rl_optimizer is not None and status.rl_optimizer["parameter_delta_norm"] > 0.0


async def test_a_users_own_function_is_what_an_improvement_is_proved_by(base: str, store: Store) -> None:
    played = Played(store, await ran(store, improve_spec(settings(base, improve=IMPROVE))))
    assert played.status.run_state is RunState.COMPLETED
    assert played.evidence().primary == "success"
    looked = store.experiences.of([one.id for one in played.rollouts("0/prove/0")])
    assert len(looked) == 16 and {one.breakdown.signals[0].source for one in looked if one.breakdown} == {
        "scorer:is_odd"
    }


@pytest.mark.parametrize("make", [optimize_spec, improve_spec])
def test_a_scorer_that_pays_not_even_its_gold_answer_is_refused_before_the_first_rollout(make: Any, base: str) -> None:
    with pytest.raises(BadInput, match="scorer broken: .*8 of 8 tasks"):
        make(settings(base, scorers=[{"scorer": f"{HERE}:broken", "gate": True}]))


# The same bytes


def bytes_of(played: Played) -> dict[str, Any]:
    """All that must be the same: no ids of runs, no times, no durations."""
    found = experiences(played.store, played.status)
    names = [one.rollout.partition("/")[2] for one in found]
    calls = [[(call.prompt_ids, call.completion_ids, call.logprobs) for call in one.calls] for one in found]
    return {
        "weights": [played.sha256(n) for n in range(len(played.checkpoints))],
        "calls": dict(zip(names, calls, strict=True)),
        "rewards": dict(zip(names, (one.breakdown and one.breakdown.total for one in found), strict=True)),
        "judged": played.judged(),
    }


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
async def test_a_deterministic_run_is_the_same_bytes_every_time(
    algorithm: str, base: str, files: Files, tmp_path: Path
) -> None:
    """Several steps, each acting with what the last one learnt, and other numbers of attempts side by side."""
    found, how = [], {**IMPROVE, "algorithm": algorithm, "learning_rate": None, "steps": 4, "iterations": 2}
    dials = {"grpo": {"learning_rate": 1e-2, "minibatch": 3, "epochs": 2}, "rl_optimizer": {"ppo": {"epochs": 2}}}
    for name, workers in (("one", 4), ("two", 7)):
        with open_store(fresh_in(tmp_path / name, files)) as store:
            given = settings(
                base, agent=f"{HERE}:insist", improve=how, **dials, deterministic=True, seed=4, worker_count=workers
            )
            found.append(bytes_of(Played(store, await ran(store, improve_spec(given)))))
    first, second = found
    assert len(set(first["weights"])) >= 4 and len(set(first["rewards"].values())) > 1
    assert first == second


# Dropout


async def test_a_policy_that_has_not_moved_agrees_with_itself_whatever_its_dropout(
    store: Store, tmp_path: Path
) -> None:
    folder = shutil.copytree(folder_of("tiny-tools"), tmp_path / "forgetful")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    for algorithm in ("grpo", "ppo"):
        how = {**IMPROVE, "algorithm": algorithm, "learning_rate": None, "policy": algorithm}
        ppo = {"mini_batch_size": 1000, "learning_rate": 1e-12}  # it is measured after the update, too
        given = settings(str(folder), improve=how, rl_optimizer={"ppo": ppo})
        body = Played(store, await ran(store, improve_spec(given))).body("0/0/learn")
        told = body.get("update") or body["rl_optimizer"]
        assert told["grad_norm"] > 0.0 and told["clip_fraction"] == 0.0
        assert told.get("approx_kl", told.get("observed_approx_kl")) < 1e-9  # a ratio of 1


# Resources


async def test_the_resources_of_a_local_model_reach_the_agent(base: str, store: Store) -> None:
    texts = {"system": "Be brief.", "depth": 3}
    status = await ran(store, optimize_spec(settings(base, agent=f"{HERE}:recite", resources=texts)))
    rollout = store.views.rollout(f"{status.run_id}/train-1")
    assert {one.output for one in store.experiences.scored(status.run_id)} == {"Be brief."}
    assert (status.resources_id, rollout.resources) == ("resources-1", 1)


async def test_a_candidate_is_proved_with_the_resources_that_it_practised_with(base: str, store: Store) -> None:
    given = settings(base, resources={"system": "Be brief."}, improve=IMPROVE)
    played = Played(store, await ran(store, improve_spec(given)))
    candidate = played.decided().candidate
    assert isinstance(candidate, Model) and candidate.resources == {"system": "Be brief."}
    for one in store.experiences.of([one.id for one in played.rollouts("0/prove/0")]):
        assert one.calls[0].messages[0]["content"] == "Be brief."


# Models in Hugging Face's format


def moved(policy: Model, store: Path) -> tuple[int, int]:
    """How many tensors of the model the checkpoint changed, of how many that can be trained."""
    before, after = load(policy.at(None), None)[0], load(policy, FolderArtifacts(store))[0]
    pairs = zip(before.named_parameters(), after.parameters(), strict=True)
    trained = [(old, new) for (_, old), new in pairs if old.requires_grad]
    return sum(not bool(old.equal(new)) for old, new in trained), len(trained)


@pytest.mark.usefixtures("untraced")
async def test_a_model_in_hugging_faces_format_is_moved_by_rl_optimizer(store: Store, tmp_path: Path) -> None:
    name = str(shutil.copytree(folder_of("tiny-tools"), tmp_path / "mine"))
    block = {"ppo": {"learning_rate": 1e-3}}
    status = await ran(store, optimize_spec(settings(name, rl_optimizer=block)))
    assert status.run_state is RunState.COMPLETED and status.rl_optimizer is not None
    assert status.rl_optimizer["parameter_delta_norm"] > 0.0
    checkpoint = str(status.rl_optimizer["checkpoint"])
    changed, of = moved(Model(name, checkpoint=checkpoint), store.folder)
    assert changed == of > 0


@pytest.mark.usefixtures("untraced")
async def test_a_model_in_hugging_faces_format_is_improved_and_its_checkpoint_answers(store: Store) -> None:
    played = Played(store, await ran(store, improve_spec(settings("tiny-tools", improve=IMPROVE))))
    (checkpoint,) = played.checkpoints
    candidate = played.decided().candidate
    assert candidate == Model("tiny-tools", checkpoint=checkpoint)
    assert moved(Model("tiny-tools", checkpoint=checkpoint), store.folder)[0] > 0
    looked = store.experiences.of([one.id for one in played.rollouts("0/prove/0")])
    assert {one.version for one in looked} == {"local/tiny-tools@0", f"local/tiny-tools@{checkpoint}"}
    engine = LocalEngine(files=store.files, slots=1)
    call = await engine.open_model(Model("tiny-tools", checkpoint=checkpoint))(
        [{"role": "user", "content": "hi"}], max_tokens=3
    )
    engine.close()
    assert call.model == f"local/tiny-tools@{checkpoint}" and call.completion_ids


async def test_adapters_alone_are_trained_and_the_checkpoint_holds_them_alone(files: Files, tmp_path: Path) -> None:
    base = Model("tiny-tools", lora=4)
    engine = LocalEngine(slots=2)
    complete = engine.open_model(base)
    asked = [{"role": "user", "content": "say 1"}]
    calls = [await complete(asked, temperature=1.0, max_tokens=6) for _ in range(4)]
    engine.close()
    given = [tried(call, n, won=float(n % 2)) for n, call in enumerate(calls)]
    telling = Telling(tmp_path)
    state = AlgorithmState(base=base)
    for _ in range(2):  # the second goes on with the trainer of the first
        state = telling.tell(GRPO(lr=1e-2), state, [replace(one, version=state.policy.version) for one in given])
    assert state.candidate == base.at(telling.checkpoints[-1].id)
    changed, of = moved(base.at(telling.checkpoints[-1].id), tmp_path)
    assert 0 < changed <= of
    kept, _ = weights.load(tmp_path / "checkpoints" / telling.checkpoints[-1].id)
    assert kept and all("lora_" in name for name in kept)
    ids = torch.tensor([calls[0].prompt_ids])
    with torch.no_grad():
        before, after = (load(one, FolderArtifacts(tmp_path))[0](ids) for one in (base, state.policy))
    assert not before.equal(after)


def tried(call: ModelCall, n: int, *, won: float) -> Experience:
    return Experience(
        rollout=f"{RUN}/p-{n}",
        run=RUN,
        task="g",
        split=Split.TRAIN,
        is_final=True,
        state=RolloutState.SUCCEEDED,
        spans=(Span(seq=1, kind=SpanKind.MODEL, name="llm", started_at=0.0, ended_at=1.0, model=call),),
        breakdown=RewardBreakdown(signals=(RewardTerm(name="success", value=won, source="rule"),)),
        version=call.model,
    )
