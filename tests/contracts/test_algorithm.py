"""What an algorithm is told and leaves behind: small records that come back from their own text."""

from __future__ import annotations

import json

from holdfast.contracts.algorithm import Batch, State, Work
from holdfast.contracts.rollout import Split
from holdfast.policies.prompt import Prompt

BASE, BETTER = Prompt({"system": "a"}), Prompt({"system": "b"})


def again(state: State) -> State:
    return State.from_record(json.loads(json.dumps(state.record())))


def test_a_state_comes_back_from_its_record_with_its_policies() -> None:
    state = State(base=BASE, iteration=2).next(candidate=BETTER, metrics={"reward": 0.5}, seen=[1, 2])
    assert again(state) == state
    assert (again(state).policy, again(state).step, again(state).data) == (BETTER, 1, {"seen": [1, 2]})


def test_figures_stand_at_the_top_of_a_states_record() -> None:
    assert State(base=BASE).next(metrics={"reward": 0.5}).record()["reward"] == 0.5


def test_without_a_new_candidate_the_last_one_stays() -> None:
    state = State(base=BASE).next(candidate=BETTER, metrics={}).next(metrics={})
    assert (state.candidate, state.step) == (BETTER, 2)
    assert State(base=BASE).policy == BASE


def test_a_batch_refers_to_its_rollouts_and_comes_back() -> None:
    batch = Batch(run="run-1-a", step="0/1/collect", count=7, ids="ab" * 32)
    assert Batch.from_record(json.loads(json.dumps(batch.record()))) == batch


def test_work_is_known_by_what_is_asked_of_whom_and_not_by_how_a_policy_is_made() -> None:
    work = Work(name="n", input={"q": 1}, policy=BASE, group="g", split=Split.VAL, seed="s")
    assert work.record() == {
        "name": "n",
        "input": {"q": 1},
        "policy": BASE.version,
        "group": "g",
        "split": "val",
        "seed": "s",
    }
