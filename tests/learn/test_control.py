"""PPO as an algorithm: steps of play and learning that go on bit by bit, wherever they were left."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.collect.gym import describe, vector_env
from holdfast.contracts.algorithm import AlgorithmState, Batch
from holdfast.contracts.errors import BadInput, Interrupted, Lost
from holdfast.contracts.flag import Features
from holdfast.contracts.policy import FOLDER
from holdfast.learn.checkpoints import TRAINER
from holdfast.learn.control import SEEDS, EnvPPO, LearnerSession
from holdfast.learn.ppo import Settings
from holdfast.policies import weights
from holdfast.policies.network import Network
from holdfast.policies.prompt import Prompt
from tests.collect.environments import Fixed, Signpost
from tests.learn.telling import Telling

SMALL = EnvPPO(updates=5, step_updates=2, envs=4, settings=Settings(steps=8, minibatch=32, lr=1e-2))


def algorithm(make: Any = Signpost, **changed: Any) -> EnvPPO:
    return replace(SMALL, **changed).within("sign", partial(vector_env, make), ())


def base(make: Any = Signpost) -> Network:
    return Network(width=8).fitted("sign", describe(make).spaces)


def told(one: EnvPPO, state: AlgorithmState, ctx: Telling) -> AlgorithmState:
    """One step, read again from its record."""
    [segment] = one.ask(state, ())
    batch = Batch.from_record(json.loads(json.dumps(Batch(run=ctx.run, step="s", count=0, segment=segment).record())))
    return AlgorithmState.from_record(json.loads(json.dumps(one.tell(state, batch, ctx).record(), allow_nan=False)))


def learnt(one: EnvPPO, ctx: Telling) -> AlgorithmState:
    state = one.start(base())
    while one.ask(state, ()):
        state = told(one, state, ctx)
    return state


def test_it_asks_for_segments_until_its_updates_are_spent(tmp_path: Path) -> None:
    one, ctx = algorithm(), Telling(tmp_path)
    state, asked = one.start(base()), []
    while work := one.ask(state, ()):
        asked += work
        state = told(one, state, ctx)
    assert [segment.steps for segment in asked] == [2 * 8 * 4, 2 * 8 * 4, 1 * 8 * 4]
    assert {segment.seed for segment in asked} == {asked[0].seed} and 0 <= asked[0].seed < SEEDS
    assert [segment.policy for segment in asked[1:]] == [f"network/sign@{c.id}" for c in ctx.checkpoints[:2]]
    assert state.metrics["env_steps"] == sum(segment.steps for segment in asked)
    later = one.ask(replace(one.start(base()), iteration=1), ())
    assert later[0].seed != asked[0].seed


def test_one_that_is_left_after_any_step_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    """The learner in memory is dropped, as by a kill, and all of it comes from disk."""
    unbroken = learnt(algorithm(), Telling(tmp_path / "one"))
    ctx, state = Telling(tmp_path / "other"), algorithm().start(base())
    while algorithm().ask(state, ()):
        state = told(algorithm(), state, ctx)
    assert state.candidate == unbroken.candidate is not None
    assert state.data["trainer"] == unbroken.data["trainer"]


def test_the_bytes_do_not_depend_on_the_number_of_cores(tmp_path: Path) -> None:
    before, found = torch.get_num_threads(), []
    big = {"envs": 64, "settings": Settings(steps=64), "updates": 2}
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(learnt(algorithm(**big), Telling(tmp_path / str(threads))).candidate)
            assert torch.get_num_threads() == threads  # whoever else computes here keeps what is theirs
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


def test_a_step_that_was_given_up_leaves_nothing_and_is_done_again_alike(tmp_path: Path) -> None:
    unbroken = learnt(algorithm(), Telling(tmp_path / "one"))
    one, ctx = algorithm(), Telling(tmp_path / "other")
    state = told(one, one.start(base()), ctx)
    checks = iter([False, True])
    ctx.hook = lambda: setattr(ctx, "is_stopped", next(checks, False))
    with pytest.raises(Interrupted):
        told(one, state, ctx)
    assert len(ctx.checkpoints) == 1
    while one.ask(state, ()):
        state = told(one, state, ctx)
    assert state.candidate == unbroken.candidate


def test_only_what_the_run_wrote_itself_is_unpickled(tmp_path: Path) -> None:
    """A trainer folder that is whole, but not the one that the step recorded, is lost and not restored."""
    ctx = Telling(tmp_path)
    state = told(algorithm(), algorithm().start(base()), ctx)
    folder = tmp_path / FOLDER / str(ctx.checkpoints[0].id) / TRAINER
    tensors, manifest = weights.load(folder)
    tensors["player.worlds.pickled"] = tensors["player.worlds.pickled"].flip(0)
    weights.save(folder, tensors, manifest)
    with pytest.raises(Lost, match="and the run recorded"):
        told(algorithm(), state, ctx)
    shutil.rmtree(folder)
    with pytest.raises(Lost, match=f"checkpoint {ctx.checkpoints[0].id}: .* is missing"):
        told(algorithm(), state, ctx)


def test_an_iteration_begins_with_a_new_learner_from_the_same_weights(tmp_path: Path) -> None:
    one, ctx = algorithm(), Telling(tmp_path)
    first = learnt(one, ctx)
    assert first.candidate is not None
    second = told(one, replace(one.start(first.candidate), iteration=1), ctx)
    assert second.metrics["update"]["number"] == 2 and second.candidate != first.candidate
    assert ctx.checkpoints[-1].parent == getattr(first.candidate, "checkpoint", None)


def test_switched_off_it_learns_nothing_and_says_so(tmp_path: Path) -> None:
    ctx = Telling(tmp_path, features=Features(learning=False))
    state = told(algorithm(), algorithm().start(base()), ctx)
    assert (state.candidate, state.metrics["skipped"], ctx.checkpoints) == (None, "learning is switched off", [])
    on = told(algorithm(), state, Telling(tmp_path))  # nothing was saved that it could go on from
    assert on.candidate is not None and on.metrics["update"]["number"] == 2


def test_a_budget_ends_it_with_what_there_is(tmp_path: Path) -> None:
    one = algorithm(budget_s=1e-9)
    state = told(one, one.start(base()), Telling(tmp_path))
    assert state.candidate is not None and not one.ask(state, ())


def test_held_out_seeds_among_those_learnt_in_are_found(tmp_path: Path) -> None:
    one = algorithm()
    [segment] = one.ask(one.start(base()), ())
    leaking = replace(one, held_out=[segment.seed + 1, segment.seed + 3, segment.seed + 4])
    findings = {one["name"]: one for one in told(leaking, one.start(base()), Telling(tmp_path)).metrics["quality"]}
    assert (findings["held_out_seeds"]["count"], findings["held_out_seeds"]["blocks"]) == (2, True)
    clean = {one["name"]: one["count"] for one in learnt(one, Telling(tmp_path / "clean")).metrics["quality"]}
    assert clean == {"held_out_seeds": 0, "updates_undone": 0}


class Nan(Signpost):
    def step(self, action: Any) -> Any:
        seen, _, terminated, truncated, info = super().step(action)
        return seen, float("nan"), terminated, truncated, info


def test_a_reward_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    one = algorithm(Nan)
    with pytest.raises(BadInput, match="a reward or a value is not finite"):
        told(one, one.start(base()), Telling(tmp_path))


def test_updates_that_were_undone_are_told_as_plain_json(tmp_path: Path) -> None:
    one = algorithm(settings=Settings(steps=8, minibatch=8, lr=1e30, grad_limit=1e30))
    state = told(one, one.start(base()), Telling(tmp_path))
    assert "the parameters are those from before" in state.metrics["update"]["restored"]
    assert [one["count"] for one in state.metrics["quality"] if one["name"] == "updates_undone"] == [2]


def test_a_network_whose_updates_were_all_undone_is_no_candidate(tmp_path: Path) -> None:
    """It plays on from where it was, and comes to the same where it is killed after each step."""
    came = []
    for folder in ("whole", "killed"):
        ctx, one = (
            Telling(tmp_path / folder),
            algorithm(settings=Settings(steps=8, minibatch=8, lr=1e30, grad_limit=1e30)),
        )
        state, seen = one.start(base()), []
        while one.ask(state, ()):
            state = told(one, state, ctx)
            seen.append((state.metrics["env_steps"], state.data["trainer"]))
            one = replace(one, session=LearnerSession()) if folder == "killed" else one
        assert state.candidate is None and "checkpoint" not in state.metrics
        came.append(seen)
    assert came[0] == came[1] and len({steps for steps, _ in came[0]}) == 3


def test_an_environment_that_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    one = algorithm(Fixed)
    with pytest.raises(BadInput, match="cannot be saved"):
        told(one, one.start(base(Fixed)), Telling(tmp_path))


def test_what_a_user_chooses_is_read_again_from_its_record() -> None:
    for chosen in (EnvPPO(lr=1e-3, gamma=0.9, seed=3), SMALL):
        assert EnvPPO.from_record(json.loads(json.dumps(chosen.record()))) == chosen
    assert EnvPPO(lr=1e-3, entropy_cost=0.01, updates=7).dials == Settings(
        lr=1e-3, lr_end=1e-3 / 3, entropy_cost=0.01, updates=7
    )


@pytest.mark.parametrize("wrong", [{"updates": 0}, {"step_updates": 0}, {"envs": 0}, {"lr": 0.0}, {"gamma": 2.0}])
def test_impossible_dials_are_refused_with_their_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=rf"ppo\.{next(iter(wrong))} = "):
        EnvPPO(**wrong)


def test_only_a_network_with_an_environment_can_begin() -> None:
    with pytest.raises(BadInput, match="is no network"):
        algorithm().start(Prompt({"system": "x"}))
    with pytest.raises(BadInput, match="has no environment to learn in"):
        EnvPPO().start(base())
