"""Stories 2 and 8 of models: a local model learns from an agent as it is, by our algorithm or by yours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.contracts.errors import BadInput
from holdfast.policies.model import Model
from holdfast.store.store import open_store

WORDS = ("red", "blue", "green", "grey", "pink", "gold", "teal", "navy")


def tasks(count: int = 24) -> hf.TaskSet:
    rows = [
        {"id": f"t{n}", "input": {"question": f"{WORDS[n % 8]} {'x' * (n // 8)}?"}, "expected": WORDS[n % 8]}
        for n in range(count)
    ]
    return hf.tasks(rows, held_out=0.4, seed=1)


async def agent(task: Any, ctx: hf.Context) -> str:
    call = await ctx.ask([{"role": "user", "content": task.input["question"]}], max_tokens=8, temperature=1.0)
    return str(call.response.get("content") or "")


def letters(task: Any, answer: str) -> float:
    """Any two answers differ in it: there is always something to learn."""
    return min(1.0, (len(set(answer)) + len(answer) / 100) / 30)


def practised(policy: hf.Model, algorithm: Any, at: Path, **more: Any) -> hf.Result:
    return hf.improve(
        agent,
        tasks(),
        name="helper",
        scorers=[hf.Scorer(letters)],
        policy=policy,
        algorithm=algorithm,
        workers=8,
        seeds=1,
        store=at,
        **more,
    )


@pytest.mark.parametrize(("name", "lora"), [("tiny-tools", 4), ("sprout-weak", 0)])
def test_a_local_model_learns_and_its_candidate_is_measured(name: str, lora: int, at: Path) -> None:
    grpo = hf.GRPO(lr=1e-3, steps=1, tasks=3, samples=4, turn_credit=0.3)
    result = practised(hf.Model(name, lora=lora), grpo, at)
    candidate = result.candidate
    assert isinstance(candidate, Model) and candidate.checkpoint is not None and candidate.lora == lora
    assert result.proof is not None and "reward" in result.proof.comparisons and result.release == "helper@2"
    with open_store(at, create=False) as store:
        steps = {one.name: one.body for one in store.steps.of_run(result.run.id)}
        assert steps["0/0/learn"]["update"] and store.checkpoints.get(candidate.checkpoint)


def test_advantages_of_your_own_decide_what_becomes_likelier(at: Path) -> None:
    seen: list[int] = []

    class LeaveOneOut:
        lr, steps, tasks, samples = 1e-3, 1, 2, 4

        def advantages(self, group: Any) -> list[float]:
            rewards = [one.reward for one in group]
            seen.append(len(rewards))
            others = [(sum(rewards) - one) / (len(rewards) - 1) for one in rewards]
            return [one - other for one, other in zip(rewards, others, strict=True)]

    result = practised(hf.Model("sprout-weak"), LeaveOneOut(), at)
    assert seen == [4, 4] and result.candidate is not None


def test_advantages_that_are_no_numbers_end_the_run_with_the_reason(at: Path) -> None:
    class Short:
        steps, tasks, samples = 1, 1, 2

        def advantages(self, group: Any) -> list[float]:
            return [1.0]

    with pytest.raises(BadInput, match="gives 1 numbers for 2 attempts"):
        practised(hf.Model("sprout-weak"), Short(), at)


def test_a_budget_bounds_learning_and_proof_together(at: Path) -> None:
    grpo = hf.GRPO(steps=8, tasks=2, samples=2)
    result = practised(hf.Model("sprout-weak"), grpo, at, budget=hf.Budget(rollouts=26))
    assert len(result.run.rollouts()) <= 26
    assert len(result.run.rollouts("split == 'train'")) in (8, 12)
    with pytest.raises(BadInput, match="one step takes 128"):
        practised(hf.Model("sprout-weak"), "grpo", at, budget=hf.Budget(rollouts=60))


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        (hf.Model("no-such-model"), {}, "neither in the package nor a folder"),
        (hf.Model("sprout-weak", lora=4), {}, "adapters are for Hugging Face models"),
        (hf.Model("sprout-weak"), {"model": "gpt-4o-mini"}, "a model of its own"),
        (hf.Model("sprout-weak"), {"algorithm": hf.Candidates(["x"])}, "only prompts can be raced"),
    ],
)
def test_a_model_that_cannot_be_is_refused_before_any_work(
    model: hf.Model, more: dict[str, Any], said: str, at: Path
) -> None:
    with pytest.raises(BadInput, match=said):
        practised(model, more.pop("algorithm", "grpo"), at, **more)
    assert not at.exists()
