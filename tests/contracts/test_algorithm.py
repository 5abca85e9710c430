"""What an algorithm is told and leaves behind: small records that come back from their own text."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.collect.gym import describe, vector_env
from holdfast.contracts.algorithm import AlgorithmState, Asked, Batch, LearnContext, Work, check_algorithm
from holdfast.contracts.experience import Experience
from holdfast.contracts.policy import Policy
from holdfast.contracts.rollout import Split, Task
from holdfast.contracts.task import TaskItem
from holdfast.learn.control import EnvPPO
from holdfast.learn.grpo import GRPO, Stages
from holdfast.learn.ppo import Settings
from holdfast.learn.prompt_search import Candidates, PromptSearch
from holdfast.learn.turns import TurnPPO
from holdfast.policies.model import Model
from holdfast.policies.network import Network
from holdfast.policies.prompt import Prompt
from tests.collect.environments import Signpost
from tests.learn.telling import Telling
from tests.workloads.scene import attempt, tiny

BASE, BETTER = Prompt({"system": "a"}), Prompt({"system": "b"})


def again(state: AlgorithmState) -> AlgorithmState:
    return AlgorithmState.from_record(json.loads(json.dumps(state.record())))


def test_a_state_comes_back_from_its_record_with_its_policies() -> None:
    state = AlgorithmState(base=BASE, iteration=2).next(candidate=BETTER, metrics={"reward": 0.5}, seen=[1, 2])
    assert again(state) == state and state.record()["reward"] == 0.5  # metrics stand at the top
    assert (again(state).policy, again(state).step, again(state).data) == (BETTER, 1, {"seen": [1, 2]})


def test_without_a_new_candidate_the_last_one_stays() -> None:
    state = AlgorithmState(base=BASE).next(candidate=BETTER, metrics={}).next(metrics={})
    assert (state.candidate, state.step) == (BETTER, 2)
    assert AlgorithmState(base=BASE).policy == BASE


def test_a_batch_refers_to_its_rollouts_and_comes_back() -> None:
    batch = Batch(run="run-1-a", step="0/1/collect", count=7, ids="ab" * 32)
    assert Batch.from_record(json.loads(json.dumps(batch.record()))) == batch


def test_work_is_known_by_what_is_asked_of_whom_and_not_by_how_a_policy_is_made() -> None:
    work = Work(name="n", input={"q": 1}, policy=BASE, group="g", split=Split.VAL, seed="s")
    known = {"name": "n", "input": {"q": 1}, "policy": BASE.version, "group": "g", "split": "val", "seed": "s"}
    assert work.record() == known


# The kit: algorithms of each kind pass, and each promise is broken once

TASKS = [{"prompt": f"train {n}"} for n in range(4)]


@dataclass(frozen=True)
class Better:
    """An algorithm as somebody writes one; the wrong ones below change one thing each."""

    steps: int = 2

    def start(self, base: Policy) -> AlgorithmState:
        return AlgorithmState(base=base)

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Work]:
        if state.step >= self.steps:
            return ()
        return [
            Work(name=f"{state.step}-{n}", input=one, policy=state.policy, group="g") for n, one in enumerate(tasks)
        ]

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        return state.next(candidate=Prompt(system=f"better {state.step}"), metrics={"rollouts": batch.count})


class Remembering(Better):
    """Has in memory what it needs to go on."""

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        vars(self)["told"] = vars(self).get("told", 0) + 1
        return state.next(candidate=Prompt(system=f"better {vars(self)['told']}"), metrics={})


def asking(change: Callable[[Work], Work]) -> Any:
    """Asks for the same work, each piece of it changed."""
    return type("Asking", (Better,), {"ask": lambda self, *given: [change(one) for one in Better().ask(*given)]})


def telling(tell: Callable[[AlgorithmState], AlgorithmState]) -> Any:
    return type("Telling", (Better,), {"tell": lambda self, state, batch, ctx: tell(state)})


WRONG: dict[str, tuple[Any, str]] = {
    "begun": (
        type("Begun", (Better,), {"start": lambda self, base: AlgorithmState(base=base, candidate=BETTER)}),
        "not with the base and nothing learnt",
    ),
    "nothing": (partial(Better, 0), "it asks for nothing"),
    "drawing": (asking(lambda one: replace(one, name=os.urandom(4).hex())), "step 0: asking changes what is asked"),
    "renamed": (
        asking(lambda one: replace(one, name=one.name.partition("-")[2])),
        "step 1: asks for work under a name that is taken",
    ),
    "endless": (partial(Better, 10**9), "it asks for more after 5 steps"),
    "heaping": (telling(lambda state: state.next(metrics={}, seen={"a", "b"})), "step 1: its state is not plain JSON"),
    "uncounted": (telling(lambda state: replace(state, candidate=BETTER)), "step 0: is followed by step 0"),
    "remembering": (Remembering, "step 2: a process that was killed goes on with .*, not"),
}


def without_store(line: str, work: Sequence[Asked]) -> Any:
    return Telling(Path(line))


@pytest.mark.parametrize("name", WRONG)
def test_an_algorithm_that_breaks_a_promise_fails_the_kit(name: str) -> None:
    make, says = WRONG[name]
    with pytest.raises(AssertionError, match=says):
        check_algorithm(make, BASE, TASKS, without_store, most=5)


def test_an_algorithm_of_somebodys_own_passes() -> None:
    check_algorithm(Better, BASE, TASKS, without_store)


class Worth(Telling):
    """Attempts are worth more, the later they come in their group."""

    work: Sequence[Asked] = ()

    def experiences(self, batch: Batch) -> list[Experience]:
        work = [one for one in self.work if isinstance(one, Work)]
        tasks = [Task(name=one.name, input=0, split=one.split, metadata={"group": one.group}) for one in work]
        return [
            attempt(task, n, float(n % 2), version=one.policy.version, input=one.input)
            for n, (task, one) in enumerate(zip(tasks, work, strict=True))
        ]

    def save(self, value: Any) -> str:
        KEPT[sha256 := hashlib.sha256(json.dumps(value).encode()).hexdigest()] = value
        return sha256

    def read(self, sha256: str) -> Any:
        return KEPT[sha256]


KEPT: dict[str, Any] = {}


class Longer:
    """Proposes as many prompts as are worth trying."""

    def propose(self, history: Sequence[Any]) -> dict[str, str] | None:
        return {"system": "b" * len(history)} if len(history) < 3 else None


def pole(base: Network) -> EnvPPO:
    small = EnvPPO(updates=3, step_updates=1, envs=4, settings=Settings(steps=8, minibatch=32, lr=1e-2))
    return small.within("sign", partial(vector_env, Signpost), ())


BUILT_IN: dict[str, tuple[Any, str]] = {
    "candidates": (lambda: Candidates([Prompt(system=one) for one in "bcd"], rollouts=40), "prompt"),
    "proposals": (lambda: PromptSearch(proposers=[Longer()], rollouts=30), "prompt"),
    "grpo": (lambda: GRPO(tasks=2, samples=2, steps=2), "model"),
    "stages": (
        lambda: Stages([GRPO(tasks=2, samples=2, steps=1), GRPO(phase="more", tasks=1, samples=2, steps=2)]),
        "model",
    ),
    "ppo": (lambda: pole(Network()), "network"),
    "turn ppo": (lambda: TurnPPO(tasks=2, samples=2, steps=3), "model"),
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_is_built_in_passes(name: str, tmp_path: Path) -> None:
    make, kind = BUILT_IN[name]
    base: Any = Prompt(system="a", model="tiny")
    if kind == "model":
        base = Model(tiny(tmp_path / "base"))
    if kind == "network":
        base = Network(width=8).fitted("sign", describe(Signpost).spaces)

    def context(line: str, work: Sequence[Asked]) -> Any:
        made = Worth(tmp_path / line)
        made.work = work
        return made

    tasks = [TaskItem(id=f"t{n}", input=f"question {n}").row() for n in range(10)] if kind == "prompt" else TASKS
    check_algorithm(make, base, tasks, context)
