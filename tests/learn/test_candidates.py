"""The race among prompts that somebody wrote, and the search by somebody's own program, without a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.algorithm import AlgorithmState, Batch, Work
from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.flag import ALL_ON
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState
from holdfast.contracts.task import TaskItem
from holdfast.learn.candidates import Candidates, Proposals, Tried, prompt_from
from holdfast.policies.prompt import Prompt

BASE = Prompt(system="a", model="tiny")
TASKS = [TaskItem(id=f"t{n}", input=f"question {n}").row() for n in range(10)]
WORTH = {"a": 0.4, "b": 0.3, "c": 0.9, "d": 0.8, "e": 0.1}


class Context:
    """Attempts are worth what their prompt is worth."""

    run, seed, folder, features, held_s = "run-1", 0, Path(), ALL_ON, 0.0

    def __init__(self, worth: Callable[[Work], float | None] | None = None) -> None:
        self.worth = worth or (lambda work: WORTH[work.policy.manifest["texts"]["system"]])
        self.work, self.blobs = list[Work](), dict[str, Any]()

    def experiences(self, batch: Batch) -> list[Experience]:
        return [made for one in self.work if (made := self._experience(one)) is not None]

    def _experience(self, work: Work) -> Experience | None:
        worth = self.worth(work)
        if worth is None:
            return None
        signals = (RewardTerm(name="success", value=worth, source="rule:test", feedback=f"worth {worth}"),)
        return Experience(
            rollout=f"run-1/{work.name}",
            run="run-1",
            task=work.group,
            split=work.split,
            is_final=True,
            state=RolloutState.SUCCEEDED,
            spans=(),
            sheet=RewardBreakdown(signals=signals),
            input=work.input,
        )

    def check(self) -> None: ...
    def add_checkpoint(self, checkpoint: Checkpoint) -> None: ...
    def now(self) -> float:
        return 0.0

    def save_blob(self, value: Any) -> str:
        text = json.dumps(value)
        name = hashlib.sha256(text.encode()).hexdigest()
        self.blobs[name] = text
        return name

    def read(self, sha256: str) -> Any:
        return json.loads(self.blobs[sha256])


def raced(algorithm: Any, ctx: Context, tasks: Sequence[Any] = TASKS) -> tuple[AlgorithmState, list[list[Work]]]:
    """To its end, through the record of every state: what a resumed run would read."""
    state, rounds = algorithm.start(BASE), []
    while work := algorithm.ask(state, tasks):
        ctx.work = list(work)
        rounds.append(ctx.work)
        state = algorithm.tell(state, Batch(run="run-1", step="x", count=len(work)), ctx)
        state = AlgorithmState.from_record(json.loads(json.dumps(state.record())))
    return state, rounds


def test_the_worse_half_leaves_each_round_and_the_best_is_the_candidate() -> None:
    state, rounds = raced(Candidates(["b", "c", "d", "e"], rollouts=60), Context())
    assert state.candidate == BASE.with_texts({"system": "c"})
    arms = [len({one.policy.version for one in work}) for work in rounds]
    assert arms == [5, 3, 2] and sum(map(len, rounds)) <= 60
    assert state.metrics["arms"][2] == {
        "version": state.candidate.version,
        "rollouts": sum(one.policy == state.candidate for work in rounds for one in work),
        "reward": pytest.approx(0.9),
        "is_left": True,
    }


def test_in_a_round_all_do_the_same_tasks_with_the_same_chance_and_later_rounds_do_others() -> None:
    _, rounds = raced(Candidates(["b", "c", "d"], rollouts=16), Context())
    asked = [{one.policy.version: [] for one in work} for work in rounds]
    for found, work in zip(asked, rounds, strict=True):
        for one in work:
            found[one.policy.version].append((one.input["id"], one.seed))
        assert len({tuple(each) for each in found.values()}) == 1
    first, second = (next(iter(found.values())) for found in asked)
    assert not {task for task, _ in first} & {task for task, _ in second}


def test_a_tie_goes_to_the_prompt_in_force() -> None:
    state, _ = raced(Candidates(["b", "c"]), Context(lambda work: 0.5))
    assert state.candidate is None and "did better than the prompt in force" in state.metrics["skipped"]


def test_what_was_never_measured_cannot_win() -> None:
    state, _ = raced(Candidates(["c"]), Context(lambda work: None if work.policy != BASE else 0.0))
    assert state.candidate is None


def test_candidates_that_are_all_the_prompt_in_force_are_not_run() -> None:
    algorithm = Candidates(["a", {"system": "a"}])
    state = algorithm.start(BASE)
    assert algorithm.ask(state, TASKS) == () and "is the prompt in force" in state.metrics["skipped"]


def test_the_shortest_race_has_one_task_in_each_round() -> None:
    algorithm = Candidates(["b", "c", "d", "e"])
    assert algorithm.least(BASE) == 5 + 3 + 2
    _, rounds = raced(Candidates(["b", "c", "d", "e"], rollouts=10), Context())
    assert sum(map(len, rounds)) == 10


@pytest.mark.parametrize(
    ("given", "texts"),
    [("x", {"system": "x"}), ({"system": "x"}, {"system": "x"}), (Prompt(system="x", more="y"), None)],
)
def test_a_candidate_may_be_written_in_three_ways(given: Any, texts: dict[str, str] | None) -> None:
    made = prompt_from(given, BASE)
    assert made.texts == (texts or {"system": "x", "more": "y"}) and made.model == "tiny"


@pytest.mark.parametrize(
    ("given", "base", "said"),
    [
        ("x", Prompt(one="a", two="b"), "the prompt has 2"),
        (Prompt(other="x"), BASE, "no text called 'system'"),
        (7, BASE, "no prompt"),
    ],
)
def test_a_candidate_that_is_none_is_refused(given: Any, base: Prompt, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        prompt_from(given, base)


@pytest.mark.parametrize("given", ["one", {"system": "x"}, [], None])
def test_a_list_is_a_list(given: Any) -> None:
    with pytest.raises(BadInput, match="is no list of prompts"):
        Candidates(given)


# Proposals -----------------------------------------------------------------------------------------------------------


class Proposer:
    def __init__(self, *texts: str) -> None:
        self.texts, self.seen = texts, list[Sequence[Tried]]()

    def propose(self, history: Sequence[Tried]) -> str | None:
        self.seen.append(history)
        return self.texts[len(history) - 1] if len(history) <= len(self.texts) else None


def test_a_proposer_sees_all_that_was_tried_and_the_best_is_the_candidate() -> None:
    proposer = Proposer("b", "c", "e")
    state, rounds = raced(Proposals(proposer=proposer, tasks=3), Context())
    assert state.candidate == BASE.with_texts({"system": "c"})
    assert [one.prompt.texts["system"] for one in proposer.seen[-1]] == ["a", "b", "c", "e"]
    assert [one.reward for one in proposer.seen[-1]] == pytest.approx([0.4, 0.3, 0.9, 0.1])
    assert proposer.seen[0][0].attempts[0] == {
        "task": "question 0",
        "answer": None,
        "reward": 0.4,
        "feedback": "worth 0.4",
    }
    assert [len(work) for work in rounds] == [3, 3, 3, 3]


def test_proposals_end_with_their_rollouts() -> None:
    state, rounds = raced(Proposals(proposer=Proposer("b", "c", "d"), tasks=3, rollouts=8), Context())
    assert len(rounds) == 2 and state.candidate is None and "did better" in state.metrics["skipped"]
